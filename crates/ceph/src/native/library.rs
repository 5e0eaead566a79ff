//! Loads librados and librbd at run time (dlopen), so that the binary runs without them.
//!
//! The functions are those that each version since 16 has. The libraries are never unloaded, because they keep threads of
//! their own.

use std::ffi::{c_char, c_int, c_void};
use std::io::{IoSlice, IoSliceMut};
use std::sync::OnceLock;

use crate::Error;

pub(super) type Rados = *mut c_void;
pub(super) type IoContext = *mut c_void;
pub(super) type RawImage = *mut c_void;
pub(super) type Options = *mut c_void;
pub(super) type Completion = *mut c_void;
pub(super) type Completed = unsafe extern "C" fn(Completion, *mut c_void);
pub(super) type Updated = unsafe extern "C" fn(*mut c_void);
pub(super) type Differs = unsafe extern "C" fn(u64, usize, c_int, *mut c_void) -> c_int;

/// RBD_LOCK_MODE_EXCLUSIVE.
pub(super) const EXCLUSIVE: c_int = 0;
/// RBD_WRITE_ZEROES_FLAG_THICK_PROVISION.
pub(super) const THICK: c_int = 1;
/// RBD_FEATURE_EXCLUSIVE_LOCK.
pub(super) const FEATURE_LOCK: u64 = 1 << 2;
/// RBD_FEATURE_FAST_DIFF.
pub(super) const FEATURE_FAST_DIFF: u64 = 1 << 4;

/// `struct timespec`.
#[repr(C)]
#[derive(Default)]
pub(super) struct Timespec {
    pub seconds: i64,
    pub nanoseconds: i64,
}

/// `rbd_image_info_t`.
#[repr(C)]
pub(super) struct ImageInfo {
    pub size: u64,
    pub object_size: u64,
    pub objects: u64,
    pub order: c_int,
    pub prefix: [c_char; 24],
    pub parent_pool: i64,
    pub parent_name: [c_char; 96],
}

/// Declares the function table and the code that fills it.
macro_rules! functions {
    ($($library:ident = $file:literal: { $($name:ident: fn($($arg:ty),* $(,)?) $(-> $ret:ty)?;)* })*) => {
        /// The functions that we use, by their C names.
        pub(super) struct Library {
            $($(pub(super) $name: unsafe extern "C" fn($($arg),*) $(-> $ret)?,)*)*
        }

        impl Library {
            fn load() -> Result<Library, String> {
                $(let $library = open($file)?;)*
                end_before_destructors();
                // SAFETY: the types are those of Ceph's documentation of these functions.
                Ok(Library { $($($name: unsafe { symbol($library, stringify!($name))? },)*)* })
            }
        }
    };
}

functions! {
    librados = "librados.so.2": {
        rados_create: fn(*mut Rados, *const c_char) -> c_int;
        rados_conf_read_file: fn(Rados, *const c_char) -> c_int;
        rados_conf_set: fn(Rados, *const c_char, *const c_char) -> c_int;
        rados_conf_get: fn(Rados, *const c_char, *mut c_char, usize) -> c_int;
        rados_connect: fn(Rados) -> c_int;
        rados_shutdown: fn(Rados);
        rados_cluster_fsid: fn(Rados, *mut c_char, usize) -> c_int;
        rados_ioctx_create: fn(Rados, *const c_char, *mut IoContext) -> c_int;
        rados_ioctx_destroy: fn(IoContext);
        rados_ioctx_set_namespace: fn(IoContext, *const c_char);
    }
    librbd = "librbd.so.1": {
        rbd_image_options_create: fn(*mut Options);
        rbd_image_options_destroy: fn(Options);
        rbd_create4: fn(IoContext, *const c_char, u64, Options) -> c_int;
        rbd_open: fn(IoContext, *const c_char, *mut RawImage, *const c_char) -> c_int;
        rbd_open_read_only: fn(IoContext, *const c_char, *mut RawImage, *const c_char) -> c_int;
        rbd_close: fn(RawImage) -> c_int;
        rbd_stat: fn(RawImage, *mut ImageInfo, usize) -> c_int;
        rbd_get_size: fn(RawImage, *mut u64) -> c_int;
        rbd_get_features: fn(RawImage, *mut u64) -> c_int;
        rbd_get_stripe_count: fn(RawImage, *mut u64) -> c_int;
        rbd_get_id: fn(RawImage, *mut c_char, usize) -> c_int;
        rbd_get_create_timestamp: fn(RawImage, *mut Timespec) -> c_int;
        rbd_resize: fn(RawImage, u64) -> c_int;
        rbd_update_watch: fn(RawImage, *mut u64, Updated, *mut c_void) -> c_int;
        rbd_update_unwatch: fn(RawImage, u64) -> c_int;
        rbd_lock_acquire: fn(RawImage, c_int) -> c_int;
        rbd_lock_release: fn(RawImage) -> c_int;
        rbd_lock_get_owners: fn(RawImage, *mut c_int, *mut *mut c_char, *mut usize) -> c_int;
        rbd_lock_get_owners_cleanup: fn(*mut *mut c_char, usize);
        rbd_lock_break: fn(RawImage, c_int, *const c_char) -> c_int;
        rbd_is_exclusive_lock_owner: fn(RawImage, *mut c_int) -> c_int;
        rbd_diff_iterate2: fn(RawImage, *const c_char, u64, u64, u8, u8, Differs, *mut c_void) -> c_int;
        rbd_aio_create_completion: fn(*mut c_void, Completed, *mut Completion) -> c_int;
        rbd_aio_get_return_value: fn(Completion) -> isize;
        rbd_aio_release: fn(Completion);
        rbd_aio_readv: fn(RawImage, *const IoSliceMut<'static>, c_int, u64, Completion) -> c_int;
        rbd_aio_writev: fn(RawImage, *const IoSlice<'static>, c_int, u64, Completion) -> c_int;
        rbd_aio_discard: fn(RawImage, u64, u64, Completion) -> c_int;
        rbd_aio_write_zeroes: fn(RawImage, u64, usize, Completion, c_int, c_int) -> c_int;
        rbd_aio_flush: fn(RawImage, Completion) -> c_int;
    }
}

impl Library {
    /// The loaded libraries, or the reason why they are unavailable; looked up once per process.
    pub(super) fn get() -> Result<&'static Library, Error> {
        static LIBRARY: OnceLock<Result<Library, String>> = OnceLock::new();
        LIBRARY.get_or_init(Library::load).as_ref().map_err(|why| Error::Library(why.clone()))
    }
}

/// Has the process end without the destructors of Ceph's static objects. Where a cluster does not answer, threads of librados
/// still use these, and a process that has nothing left to do would crash.
fn end_before_destructors() {
    unsafe extern "C" {
        /// on_exit(3) of glibc: unlike atexit(3), it tells the status.
        fn on_exit(function: extern "C" fn(c_int, *mut c_void), argument: *mut c_void) -> c_int;
        fn _exit(status: c_int) -> !;
    }
    extern "C" fn end(status: c_int, _: *mut c_void) {
        // SAFETY: it runs no code of this process. Rust has flushed standard output before it calls exit(3).
        unsafe { _exit(status) }
    }
    // SAFETY: the function is always there, and takes no argument. Handlers run in the reverse order, so this one comes before
    // the destructors that the libraries have registered while they were loaded.
    let registered = unsafe { on_exit(end, std::ptr::null_mut()) };
    if registered != 0 {
        tracing::debug!("the end of this process runs the destructors of librados");
    }
}

fn open(name: &'static str) -> Result<&'static libloading::Library, String> {
    // SAFETY: initialisers of Ceph's libraries have no preconditions; as with any library, whoever can replace the file
    // controls this process already.
    let library = unsafe { libloading::Library::new(name) };
    library.map(|library| &*Box::leak(Box::new(library))).map_err(|e| format!("{name}: {}", first_cause(&e)))
}

/// # Safety
/// `T` is the function pointer type of the symbol.
unsafe fn symbol<T: Copy>(library: &'static libloading::Library, name: &str) -> Result<T, String> {
    // SAFETY: as promised by the caller; the library is never unloaded.
    match unsafe { library.get::<T>(name.as_bytes()) } {
        Ok(symbol) => Ok(*symbol),
        Err(_) => Err(format!("{name} is missing: the version is too old")),
    }
}

/// dlopen's own message, without the text that the crate adds.
fn first_cause(error: &libloading::Error) -> String {
    std::error::Error::source(error).map_or_else(|| error.to_string(), ToString::to_string)
}
