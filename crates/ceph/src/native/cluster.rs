//! A connection to a cluster, and a pool in it.

use std::ffi::{CStr, c_char};
use std::io;
use std::ptr;
use std::sync::Arc;

use super::library::{IoContext, Library, Rados};
use super::{done, failure};
use crate::Error;

/// The longest value of a key of the configuration that we read.
const MAX_VALUE: usize = 64 << 10;
/// The size of a cluster's identity, a UUID in text, with its zero.
const FSID_BYTES: usize = 37;

/// A user's connection to a cluster, or the preparation of one.
pub(crate) struct Cluster {
    library: &'static Library,
    raw: Rados,
}

// SAFETY: a rados_t may be used by any thread, by several at once.
unsafe impl Send for Cluster {}
// SAFETY: as above.
unsafe impl Sync for Cluster {}

impl Cluster {
    /// Prepares a connection of this user.
    pub(crate) fn new(id: &CStr) -> Result<Cluster, Error> {
        let library = Library::get()?;
        let mut raw = ptr::null_mut();
        // SAFETY: `raw` is written during the call, and the id is a C string.
        let created = unsafe { (library.rados_create)(&mut raw, id.as_ptr()) };
        match done(created) {
            Ok(()) => Ok(Cluster { library, raw }),
            Err(e) => Err(Error::Library(format!("rados_create: {e}"))),
        }
    }

    /// Reads a configuration file.
    pub(crate) fn read_conf(&self, path: &CStr) -> io::Result<()> {
        // SAFETY: the handle lives, and the path is a C string.
        done(unsafe { (self.library.rados_conf_read_file)(self.raw, path.as_ptr()) })
    }

    /// Sets a key of the configuration.
    pub(crate) fn set(&self, key: &CStr, value: &CStr) -> io::Result<()> {
        // SAFETY: the handle lives, and both are C strings.
        done(unsafe { (self.library.rados_conf_set)(self.raw, key.as_ptr(), value.as_ptr()) })
    }

    /// The value of a key; empty if there is none.
    pub(crate) fn get(&self, key: &CStr) -> String {
        let mut value = vec![0_u8; MAX_VALUE];
        // SAFETY: the handle lives, the key is a C string, and at most `len` bytes are written.
        let got = unsafe {
            (self.library.rados_conf_get)(
                self.raw,
                key.as_ptr(),
                value.as_mut_ptr().cast::<c_char>(),
                value.len(),
            )
        };
        match got {
            0 => until_zero(&value),
            _ => String::new(),
        }
    }

    /// Connects; waits for a monitor as long as the configuration says.
    pub(crate) fn connect(&self) -> io::Result<()> {
        // SAFETY: the handle lives.
        done(unsafe { (self.library.rados_connect)(self.raw) })
    }

    /// The cluster's identity.
    pub(crate) fn fsid(&self) -> io::Result<String> {
        let mut fsid = [0_u8; FSID_BYTES];
        // SAFETY: the handle lives, and at most `len` bytes are written.
        let got = unsafe {
            (self.library.rados_cluster_fsid)(self.raw, fsid.as_mut_ptr().cast::<c_char>(), fsid.len())
        };
        done(got).map(|()| until_zero(&fsid))
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        // SAFETY: the handle is used for the last time; pools hold their cluster.
        unsafe { (self.library.rados_shutdown)(self.raw) };
    }
}

/// A pool, or a namespace of it.
pub(crate) struct Pool {
    pub(super) library: &'static Library,
    pub(super) raw: IoContext,
    _cluster: Arc<Cluster>,
}

// SAFETY: a rados_ioctx_t may be used by any thread, by several at once; its namespace is set before others have it.
unsafe impl Send for Pool {}
// SAFETY: as above.
unsafe impl Sync for Pool {}

impl Pool {
    /// Opens a pool by its name.
    pub(crate) fn open(cluster: &Arc<Cluster>, name: &CStr, namespace: &CStr) -> io::Result<Pool> {
        let (library, mut raw) = (cluster.library, ptr::null_mut());
        // SAFETY: the cluster lives, the name is a C string, and `raw` is written during the call.
        done(unsafe { (library.rados_ioctx_create)(cluster.raw, name.as_ptr(), &mut raw) })?;
        let pool = Pool { library, raw, _cluster: cluster.clone() };
        // SAFETY: the handle lives, and nobody else has it yet; the namespace is a C string, which is copied.
        unsafe { (library.rados_ioctx_set_namespace)(raw, namespace.as_ptr()) };
        Ok(pool)
    }

    /// Creates an image with the features that the configuration asks for.
    pub(crate) fn create(&self, name: &CStr, size: u64) -> io::Result<()> {
        let mut options = ptr::null_mut();
        // SAFETY: `options` is written during the call.
        unsafe { (self.library.rbd_image_options_create)(&mut options) };
        if options.is_null() {
            return Err(io::ErrorKind::OutOfMemory.into());
        }
        // SAFETY: the pool and the options live, and the name is a C string.
        let created = unsafe { (self.library.rbd_create4)(self.raw, name.as_ptr(), size, options) };
        // SAFETY: used for the last time.
        unsafe { (self.library.rbd_image_options_destroy)(options) };
        if created < 0 { Err(failure(created)) } else { Ok(()) }
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        // SAFETY: the handle is used for the last time; images hold their pool.
        unsafe { (self.library.rados_ioctx_destroy)(self.raw) };
    }
}

/// The text before the first zero.
pub(super) fn until_zero(bytes: &[u8]) -> String {
    let text = bytes.split(|byte| *byte == 0).next().unwrap_or_default();
    String::from_utf8_lossy(text).into_owned()
}
