//! Loads libibverbs and librdmacm of rdma-core at run time (dlopen), so that the binary runs without them.
//!
//! It resolves the symbols of IBVERBS_1.1 and RDMACM_1.0. The two libraries are never unloaded, because they keep
//! threads and descriptors of their own. It does not open devices.

use std::ffi::{c_char, c_int, c_uint, c_void};
use std::sync::OnceLock;

use super::bindings::*;

/// Why no RDMA device can be used, and what to do about it.
#[derive(Clone, Debug, thiserror::Error, PartialEq, Eq)]
pub enum Unavailable {
    /// The libraries are not installed, or too old.
    #[error(
        "rdma-core is not usable ({0}); install it: apt install libibverbs1 librdmacm1 ibverbs-providers \
         (Debian, Ubuntu), dnf install libibverbs librdmacm (Fedora, RHEL)"
    )]
    Library(String),
    /// The libraries are installed, but the kernel knows no device.
    #[error(
        "no RDMA device on this host: load the driver of your card, or make one of an Ethernet port in software: \
         modprobe siw; rdma link add siw0 type siw netdev eth0"
    )]
    NoDevice,
    /// Devices exist, but connections cannot be made.
    #[error(
        "the RDMA connection manager is not usable ({0}): modprobe rdma_ucm, and /dev/infiniband/rdma_cm must be accessible"
    )]
    ConnectionManager(String),
}

/// Declares the function table and the code that fills it.
macro_rules! functions {
    ($($library:ident: { $($name:ident: fn($($arg:ty),*) $(-> $ret:ty)?;)* })*) => {
        /// The functions that we use, by their C names.
        pub(super) struct Library {
            $($(pub(super) $name: unsafe extern "C" fn($($arg),*) $(-> $ret)?,)*)*
        }

        impl Library {
            fn load() -> Result<Library, Unavailable> {
                $(let $library = open(concat!(stringify!($library), ".so.1"))?;)*
                // SAFETY: the types are those of the headers; `layout` checks the structures against them.
                Ok(Library { $($($name: unsafe { symbol($library, stringify!($name))? },)*)* })
            }
        }
    };
}

functions! {
    libibverbs: {
        ibv_get_device_list: fn(*mut c_int) -> *mut *mut ibv_device;
        ibv_free_device_list: fn(*mut *mut ibv_device);
        ibv_open_device: fn(*mut ibv_device) -> *mut ibv_context;
        ibv_close_device: fn(*mut ibv_context) -> c_int;
        ibv_query_device: fn(*mut ibv_context, *mut ibv_device_attr) -> c_int;
        ibv_query_port: fn(*mut ibv_context, u8, *mut ibv_port_attr) -> c_int;
        ibv_alloc_pd: fn(*mut ibv_context) -> *mut ibv_pd;
        ibv_dealloc_pd: fn(*mut ibv_pd) -> c_int;
        ibv_reg_mr: fn(*mut ibv_pd, *mut c_void, usize, c_int) -> *mut ibv_mr;
        ibv_dereg_mr: fn(*mut ibv_mr) -> c_int;
        ibv_create_comp_channel: fn(*mut ibv_context) -> *mut ibv_comp_channel;
        ibv_destroy_comp_channel: fn(*mut ibv_comp_channel) -> c_int;
        ibv_create_cq: fn(*mut ibv_context, c_int, *mut c_void, *mut ibv_comp_channel, c_int) -> *mut ibv_cq;
        ibv_destroy_cq: fn(*mut ibv_cq) -> c_int;
        ibv_get_cq_event: fn(*mut ibv_comp_channel, *mut *mut ibv_cq, *mut *mut c_void) -> c_int;
        ibv_ack_cq_events: fn(*mut ibv_cq, c_uint);
        ibv_get_async_event: fn(*mut ibv_context, *mut ibv_async_event) -> c_int;
        ibv_ack_async_event: fn(*mut ibv_async_event);
        ibv_wc_status_str: fn(c_uint) -> *const c_char;
    }
    librdmacm: {
        rdma_get_devices: fn(*mut c_int) -> *mut *mut ibv_context;
        rdma_create_event_channel: fn() -> *mut rdma_event_channel;
        rdma_destroy_event_channel: fn(*mut rdma_event_channel);
        rdma_create_id: fn(*mut rdma_event_channel, *mut *mut rdma_cm_id, *mut c_void, c_uint) -> c_int;
        rdma_destroy_id: fn(*mut rdma_cm_id) -> c_int;
        rdma_migrate_id: fn(*mut rdma_cm_id, *mut rdma_event_channel) -> c_int;
        rdma_bind_addr: fn(*mut rdma_cm_id, *mut c_void) -> c_int;
        rdma_listen: fn(*mut rdma_cm_id, c_int) -> c_int;
        rdma_get_src_port: fn(*mut rdma_cm_id) -> u16;
        rdma_resolve_addr: fn(*mut rdma_cm_id, *mut c_void, *mut c_void, c_int) -> c_int;
        rdma_resolve_route: fn(*mut rdma_cm_id, c_int) -> c_int;
        rdma_create_qp: fn(*mut rdma_cm_id, *mut ibv_pd, *mut ibv_qp_init_attr) -> c_int;
        rdma_destroy_qp: fn(*mut rdma_cm_id);
        rdma_connect: fn(*mut rdma_cm_id, *mut rdma_conn_param) -> c_int;
        rdma_accept: fn(*mut rdma_cm_id, *mut rdma_conn_param) -> c_int;
        rdma_reject: fn(*mut rdma_cm_id, *const c_void, u8) -> c_int;
        rdma_disconnect: fn(*mut rdma_cm_id) -> c_int;
        rdma_get_cm_event: fn(*mut rdma_event_channel, *mut *mut rdma_cm_event) -> c_int;
        rdma_ack_cm_event: fn(*mut rdma_cm_event) -> c_int;
    }
}

impl Library {
    /// The loaded libraries, or the reason why they are unavailable; looked up once per process.
    pub(super) fn get() -> Result<&'static Library, Unavailable> {
        static LIBRARY: OnceLock<Result<Library, Unavailable>> = OnceLock::new();
        LIBRARY.get_or_init(Library::load).as_ref().map_err(Unavailable::clone)
    }
}

fn open(name: &'static str) -> Result<&'static libloading::Library, Unavailable> {
    // SAFETY: initialisers of rdma-core's libraries have no preconditions; as with any library, whoever can replace the
    // file controls this process already.
    let library = unsafe { libloading::Library::new(name) };
    library
        .map(|library| &*Box::leak(Box::new(library)))
        .map_err(|e| Unavailable::Library(format!("{name}: {}", first_cause(&e))))
}

/// # Safety
/// `T` is the function pointer type of the symbol.
unsafe fn symbol<T: Copy>(library: &'static libloading::Library, name: &str) -> Result<T, Unavailable> {
    // SAFETY: as promised by the caller; the library is never unloaded.
    match unsafe { library.get::<T>(name.as_bytes()) } {
        Ok(symbol) => Ok(*symbol),
        Err(_) => Err(Unavailable::Library(format!("{name} is missing: the version is too old"))),
    }
}

/// dlopen's own message, without the text that the crate adds.
fn first_cause(error: &libloading::Error) -> String {
    std::error::Error::source(error).map_or_else(|| error.to_string(), ToString::to_string)
}
