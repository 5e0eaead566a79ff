//! As whom this process speaks to which cluster.

use std::path::PathBuf;

/// The configuration that Ceph's own programs read.
pub const DEFAULT_CONF: &str = "/etc/ceph/ceph.conf";
/// The user of Ceph's own programs: `client.admin`.
pub const DEFAULT_ID: &str = "admin";

/// A user of a cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Client {
    /// Ceph's configuration file: the monitors, and where the keyring is.
    pub conf: PathBuf,
    /// The user's name, without `client.`.
    pub id: String,
}
