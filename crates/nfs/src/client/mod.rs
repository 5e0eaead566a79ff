//! The client: one mounted export over any channel.
//!
//! What: [`Mount`], paths and handles; [`File`], reads and writes with many outstanding; [`exports`].
//! Spec: RFC 1813. Owns: the channel's replies. Does not: cache attributes or data, follow links, lock, reconnect.
//!
//! Everything here lives on the core that it was made on.

mod file;
mod mount;
mod rpc;

use std::sync::Arc;

use weft_wire::mount::MountStatus;
use weft_wire::rpc::Reply;
use weft_wire::xdr::Malformed;

pub use file::File;
pub use mount::{Entry, Mount, Options, exports, null};
pub use weft_wire::nfs3::Status;
pub use weft_wire::nfs3::{
    Attributes, FileType, FsinfoOk, FsstatOk, Handle, SetAttributes, SetTime, Stable, Time,
};
pub use weft_wire::rpc::{AuthSys, Credential};

/// Why a call failed.
#[derive(Clone, Debug, thiserror::Error)]
pub enum Error {
    /// The server said no.
    #[error("{0}")]
    Status(Status),
    /// The server does not export this path.
    #[error("mount refused (mountstat3 {})", .0.0)]
    Mount(MountStatus),
    /// The server did not carry the call out.
    #[error("call refused: {0:?}")]
    Rpc(Reply),
    /// The reply does not parse.
    #[error("{0}")]
    Malformed(#[from] Malformed),
    /// The channel failed or ended.
    #[error("{0}")]
    Channel(Arc<weft_transport::Error>),
    /// The server restarted and may have lost what was written since the last commit: write it again.
    #[error("the server lost uncommitted data")]
    Lost,
    /// A path without a name where one is needed, or a name that is too long.
    #[error("bad path")]
    BadPath,
    /// More calls outstanding than there are transaction numbers.
    #[error("too many calls")]
    Busy,
}

impl From<Status> for Error {
    fn from(status: Status) -> Error {
        Error::Status(status)
    }
}

#[cfg(test)]
mod tests;
