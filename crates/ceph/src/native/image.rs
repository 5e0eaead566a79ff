//! An open image, its exclusive lock, and the news about it.

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::io::{self, IoSlice, IoSliceMut};
use std::ops::DerefMut;
use std::ptr;

use bytes::Bytes;

use super::cluster::until_zero;
use super::library::{
    EXCLUSIVE, FEATURE_FAST_DIFF, FEATURE_LOCK, ImageInfo, Library, RawImage, THICK, Timespec,
};
use super::{Pool, Request, done};

/// The longest id of an image (RBD_MAX_IMAGE_ID_LENGTH, with its zero).
const MAX_ID: usize = 20;
/// An exclusive lock has one holder.
const HOLDERS: usize = 4;

/// What does not change about an open image.
#[derive(Clone, Debug)]
pub(crate) struct Facts {
    /// Its id in the pool: another image with its name has another one.
    pub id: String,
    /// When it was created, in microseconds of Unix time.
    pub created_us: i64,
    /// Bytes after which its striping begins anew.
    pub period: u64,
    /// Whether it can be locked.
    pub can_lock: bool,
    /// Whether a map tells its objects apart that exist.
    pub fast_diff: bool,
}

/// A part of an image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Diff {
    pub offset: u64,
    pub len: u64,
    /// Whether something is stored there.
    pub data: bool,
}

type Notice = Box<dyn Fn() + Send + Sync>;

/// An open image.
pub(crate) struct OpenImage {
    library: &'static Library,
    raw: RawImage,
    /// The handle of the watch, and the function that its callback calls.
    watch: Option<(u64, *mut Notice)>,
    _pool: Pool,
}

// SAFETY: a rbd_image_t may be used by any thread, by several at once. The notice is Send and Sync.
unsafe impl Send for OpenImage {}
// SAFETY: as above.
unsafe impl Sync for OpenImage {}

/// Slices of memory that librbd uses during a request. They are kept with the memory itself.
struct Slices<S>(Vec<S>);

// SAFETY: they point to memory that belongs to the same request, which moves between threads as a whole.
unsafe impl<S> Send for Slices<S> {}

/// Buffers of a read, with their slices.
pub(crate) struct Filled<B> {
    slices: Slices<IoSliceMut<'static>>,
    pub(crate) buffers: Vec<B>,
}

/// Data of a write, with its slices.
pub(crate) struct Stored<T> {
    slices: Slices<IoSlice<'static>>,
    data: Vec<Bytes>,
    /// Dropped with the rest.
    _held: T,
}

impl OpenImage {
    /// Opens an image of a pool; `read_only` neither locks nor watches it.
    pub(crate) fn open(pool: Pool, name: &CStr, read_only: bool) -> io::Result<OpenImage> {
        let (library, mut raw) = (pool.library, ptr::null_mut());
        let open = if read_only { library.rbd_open_read_only } else { library.rbd_open };
        // SAFETY: the pool lives, the name is a C string, no snapshot is named, and `raw` is written during the call.
        done(unsafe { open(pool.raw, name.as_ptr(), &mut raw, ptr::null()) })?;
        Ok(OpenImage { library, raw, watch: None, _pool: pool })
    }

    pub(crate) fn facts(&self) -> io::Result<Facts> {
        let (library, raw) = (self.library, self.raw);
        let mut id = [0_u8; MAX_ID];
        // SAFETY: the image is open, and at most `len` bytes are written.
        done(unsafe { (library.rbd_get_id)(raw, id.as_mut_ptr().cast::<c_char>(), id.len()) })?;
        let mut created = Timespec::default();
        // SAFETY: the image is open, and `created` is written during the call, as the numbers below.
        done(unsafe { (library.rbd_get_create_timestamp)(raw, &mut created) })?;
        let (mut features, mut stripe_count) = (0, 0);
        // SAFETY: as above.
        done(unsafe { (library.rbd_get_features)(raw, &mut features) })?;
        // SAFETY: as above.
        done(unsafe { (library.rbd_get_stripe_count)(raw, &mut stripe_count) })?;
        let object_size = self.info()?.object_size;
        Ok(Facts {
            id: until_zero(&id),
            created_us: created.seconds.saturating_mul(1_000_000).saturating_add(created.nanoseconds / 1000),
            period: object_size.saturating_mul(stripe_count.max(1)).max(1),
            can_lock: features & FEATURE_LOCK != 0,
            fast_diff: features & FEATURE_FAST_DIFF != 0,
        })
    }

    fn info(&self) -> io::Result<ImageInfo> {
        let mut info = ImageInfo {
            size: 0,
            object_size: 0,
            objects: 0,
            order: 0,
            prefix: [0; 24],
            parent_pool: 0,
            parent_name: [0; 96],
        };
        // SAFETY: the image is open, and at most the given size of `info` is written.
        done(unsafe { (self.library.rbd_stat)(self.raw, &mut info, size_of::<ImageInfo>()) })?;
        Ok(info)
    }

    /// The size in bytes now.
    pub(crate) fn size(&self) -> io::Result<u64> {
        let mut size = 0;
        // SAFETY: the image is open, and `size` is written during the call.
        done(unsafe { (self.library.rbd_get_size)(self.raw, &mut size) })?;
        Ok(size)
    }

    /// Changes the size.
    pub(crate) fn resize(&self, size: u64) -> io::Result<()> {
        // SAFETY: the image is open.
        done(unsafe { (self.library.rbd_resize)(self.raw, size) })
    }

    /// Calls `notice`, on a thread of librbd, after each change of the image's size or snapshots. It must not call librbd.
    pub(crate) fn watch(&mut self, notice: Notice) -> io::Result<()> {
        let (notice, mut handle) = (Box::into_raw(Box::new(notice)), 0);
        // SAFETY: the image is open; the notice lives until the watch has ended, in `drop`.
        let watched = done(unsafe {
            (self.library.rbd_update_watch)(self.raw, &mut handle, updated, notice.cast::<c_void>())
        });
        match watched {
            Ok(()) => self.watch = Some((handle, notice)),
            // SAFETY: made by `into_raw` above; without a watch nobody has it.
            Err(_) => drop(unsafe { Box::from_raw(notice) }),
        }
        watched
    }

    /// Takes the exclusive lock, and does not give it to others that ask for it.
    pub(crate) fn lock(&self) -> io::Result<()> {
        // SAFETY: the image is open.
        done(unsafe { (self.library.rbd_lock_acquire)(self.raw, EXCLUSIVE) })
    }

    /// Gives the lock back, after the requests that have begun.
    pub(crate) fn unlock(&self) -> io::Result<()> {
        // SAFETY: the image is open.
        done(unsafe { (self.library.rbd_lock_release)(self.raw) })
    }

    /// Whether this process has the lock, by the cluster's own record.
    pub(crate) fn has_lock(&self) -> io::Result<bool> {
        let mut is_owner = 0;
        // SAFETY: the image is open, and `is_owner` is written during the call.
        done(unsafe { (self.library.rbd_is_exclusive_lock_owner)(self.raw, &mut is_owner) })?;
        Ok(is_owner != 0)
    }

    /// The address of the client that has the lock, if any has.
    pub(crate) fn holder(&self) -> io::Result<Option<CString>> {
        let mut owners: [*mut c_char; HOLDERS] = [ptr::null_mut(); HOLDERS];
        let (mut mode, mut count) = (EXCLUSIVE, HOLDERS);
        // SAFETY: the image is open; at most `count` pointers are written.
        let got = done(unsafe {
            (self.library.rbd_lock_get_owners)(self.raw, &mut mode, owners.as_mut_ptr(), &mut count)
        });
        match got {
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
            other => other?,
        }
        let [first, ..] = owners;
        let holder = (count > 0 && !first.is_null()).then(|| {
            // SAFETY: librbd has written a C string, which lives until it is freed below.
            unsafe { CStr::from_ptr(first) }.to_owned()
        });
        // SAFETY: those that librbd has written, freed once.
        unsafe { (self.library.rbd_lock_get_owners_cleanup)(owners.as_mut_ptr(), count.min(HOLDERS)) };
        Ok(holder)
    }

    /// Takes the lock from a client, and keeps that client from writing.
    pub(crate) fn break_lock(&self, holder: &CStr) -> io::Result<()> {
        // SAFETY: the image is open, and the holder is a C string.
        done(unsafe { (self.library.rbd_lock_break)(self.raw, EXCLUSIVE, holder.as_ptr()) })
    }

    /// What is stored in a range, by objects where a map of them exists (`whole_objects`).
    pub(crate) fn diff(&self, offset: u64, len: u64, whole_objects: bool) -> io::Result<Vec<Diff>> {
        let mut found: Vec<Diff> = Vec::new();
        // SAFETY: the image is open, no snapshot is named, and `found` outlives the call, which alone calls back.
        let looked = done(unsafe {
            (self.library.rbd_diff_iterate2)(
                self.raw,
                ptr::null(),
                offset,
                len,
                1,
                u8::from(whole_objects),
                differs,
                (&raw mut found).cast::<c_void>(),
            )
        });
        looked.map(|()| found)
    }

    /// Reads into all of these buffers.
    pub(crate) fn read<B: DerefMut<Target = [u8]> + Send + 'static>(
        &self,
        offset: u64,
        buffers: Vec<B>,
    ) -> Request<Filled<B>> {
        let Ok(count) = c_int::try_from(buffers.len()) else {
            return Request::failed(io::ErrorKind::InvalidInput.into());
        };
        let filled = Filled { slices: Slices(Vec::with_capacity(buffers.len())), buffers };
        Request::submit(self.library, filled, |filled, completion| {
            for buffer in &mut filled.buffers {
                let buffer: &mut [u8] = buffer;
                // SAFETY: the buffers belong to the request until it has ended, and nobody else uses them meanwhile.
                let slice = unsafe { std::slice::from_raw_parts_mut(buffer.as_mut_ptr(), buffer.len()) };
                filled.slices.0.push(IoSliceMut::new(slice));
            }
            let slices = filled.slices.0.as_ptr();
            // SAFETY: the image is open, and closing it waits for the request; the slices live as long as the request.
            unsafe { (self.library.rbd_aio_readv)(self.raw, slices, count, offset, completion) }
        })
    }

    /// Writes these bytes; `held` is dropped, or returned, when librbd has ended the request.
    pub(crate) fn write<T: Send + 'static>(
        &self,
        offset: u64,
        data: Vec<Bytes>,
        held: T,
    ) -> Request<Stored<T>> {
        let Ok(count) = c_int::try_from(data.len()) else {
            return Request::failed(io::ErrorKind::InvalidInput.into());
        };
        let stored = Stored { slices: Slices(Vec::with_capacity(data.len())), data, _held: held };
        Request::submit(self.library, stored, |stored, completion| {
            for bytes in &stored.data {
                // SAFETY: the bytes belong to the request until it has ended.
                let slice = unsafe { std::slice::from_raw_parts(bytes.as_ptr(), bytes.len()) };
                stored.slices.0.push(IoSlice::new(slice));
            }
            let slices = stored.slices.0.as_ptr();
            // SAFETY: the image is open, and closing it waits for the request; the slices live as long as the request.
            unsafe { (self.library.rbd_aio_writev)(self.raw, slices, count, offset, completion) }
        })
    }

    /// Says that a range is not needed.
    pub(crate) fn discard<T: Send + 'static>(&self, offset: u64, len: u64, held: T) -> Request<T> {
        Request::submit(self.library, held, |_, completion| {
            // SAFETY: the image is open, and closing it waits for the request.
            unsafe { (self.library.rbd_aio_discard)(self.raw, offset, len, completion) }
        })
    }

    /// Makes a range read as zeros; with `thick` they are stored.
    pub(crate) fn write_zeroes<T: Send + 'static>(
        &self,
        offset: u64,
        len: usize,
        thick: bool,
        held: T,
    ) -> Request<T> {
        let flags = if thick { THICK } else { 0 };
        Request::submit(self.library, held, |_, completion| {
            // SAFETY: the image is open, and closing it waits for the request.
            unsafe { (self.library.rbd_aio_write_zeroes)(self.raw, offset, len, completion, flags, 0) }
        })
    }

    /// Makes durable what was answered before.
    pub(crate) fn flush(&self) -> Request<()> {
        Request::submit(self.library, (), |(), completion| {
            // SAFETY: the image is open, and closing it waits for the request.
            unsafe { (self.library.rbd_aio_flush)(self.raw, completion) }
        })
    }
}

impl Drop for OpenImage {
    fn drop(&mut self) {
        if let Some((handle, notice)) = self.watch.take() {
            // SAFETY: the image is open, and the watch is its own. It returns when no callback runs any more.
            let ended = unsafe { (self.library.rbd_update_unwatch)(self.raw, handle) };
            if ended == 0 {
                // SAFETY: made by `into_raw`, and nobody calls it any more. After a failure somebody may, so it stays.
                drop(unsafe { Box::from_raw(notice) });
            }
        }
        // SAFETY: used for the last time; it waits for the requests that have begun.
        let closed = unsafe { (self.library.rbd_close)(self.raw) };
        if closed < 0 {
            tracing::warn!("an image was not closed cleanly: {}", super::failure(closed));
        }
    }
}

/// # Safety
/// `argument` is the notice of the watch.
unsafe extern "C" fn updated(argument: *mut c_void) {
    // SAFETY: as promised; it lives until the watch has ended.
    let notice = unsafe { &*argument.cast::<Notice>() };
    notice();
}

/// # Safety
/// `argument` is the vector of the call that calls back.
unsafe extern "C" fn differs(offset: u64, len: usize, exists: c_int, argument: *mut c_void) -> c_int {
    // SAFETY: as promised; calls of one iteration come one after another.
    let found = unsafe { &mut *argument.cast::<Vec<Diff>>() };
    found.push(Diff { offset, len: len as u64, data: exists != 0 });
    0
}
