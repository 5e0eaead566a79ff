//! What a durable handle keeps to be reconnected.
//!
//! Spec: [MS-SMB2] 3.2.1.6 (open), 3.2.4.4 (reconnecting a handle). Owns the create GUID, which identifies the handle's
//! owner, and the lease, which ends with it.

use std::rc::Rc;

use weft_wire::smb2::Guid;

use super::leases::Leases;
use super::open_options::OpenOptions;

/// The parameters of the open, needed to reconnect the handle.
pub(super) struct Kept {
    pub name: String,
    pub options: OpenOptions,
    pub create_guid: Guid,
    pub lease: Guid,
    /// Whether the server granted a durable handle.
    pub durable: bool,
    /// Whether the handle is persistent: the flag of the context, both in the request and in the reconnect.
    pub persistent: bool,
    /// File and volume ids, as the server assigns them.
    pub on_disk: Option<(u64, u64)>,
    pub leases: Rc<Leases>,
}

impl Drop for Kept {
    fn drop(&mut self) {
        self.leases.leave(&self.lease);
    }
}
