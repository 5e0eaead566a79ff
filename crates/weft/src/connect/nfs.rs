//! NFS exports as remote folders.
//!
//! Owns: nothing beyond the mount. Does not: choose (see the parent).

use super::{Dial, Medium, RemoteFolder};
use crate::Failure;

/// Connects and mounts the export.
pub(super) async fn connect(
    _dial: &Dial<'_>,
) -> Result<(Box<dyn RemoteFolder>, Medium, &'static str), Failure> {
    Err("NFS".into())
}
