//! The client: one mounted export over any channel.
//!
//! What: [`Mount`], paths and handles; [`v4::Mount`], the same over a session of version 4.1; [`File`], reads and writes
//! with many outstanding, for both; [`exports`]. Spec: RFC 1813, RFC 8881. Owns: the channel's replies. Does not: cache attributes or data,
//! follow links, lock. It reconnects where it is told how: see [`Mount::keep_connected`].
//!
//! Everything here lives on the core that it was made on.

mod attributes;
mod file;
mod lines;
mod listing;
mod mount;
mod paths;
mod patience;
pub(crate) mod rpc;
pub mod v4;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use weft_machine::random;
use weft_wire::mount::MountStatus;
use weft_wire::rpc::Reply;
use weft_wire::xdr::Malformed;

pub use attributes::{Attributes, SetAttributes, SetTime, Time};
pub use file::File;
pub use lines::{Dial, MAX_LINES};
pub use listing::Entry;
pub use mount::{Mount, Options, exports, null};
pub use weft_wire::nfs3::Status;
pub use weft_wire::nfs3::{FileType, FsinfoOk, FsstatOk, Handle, Stable};
pub use weft_wire::rpc::{AuthSys, Credential};

/// Why a call failed.
#[derive(Clone, Debug, thiserror::Error)]
pub enum Error {
    /// The server said no, by version 3.
    #[error("{}", told(.0))]
    Status(Status),
    /// The same by version 4: see [`Error::status`] for what both mean.
    #[error("{}", told(.0))]
    Status4(weft_wire::nfs4::Status),
    /// The server does not export this path.
    #[error("mount refused: {0}")]
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
    /// The server let the whole time of the request pass: it said nothing, was away, or was busy.
    #[error("the server has not carried the request out within {} s", .0.as_secs())]
    Late(Duration),
    /// There was no memory to receive answers in: other requests of this client hold it.
    #[error("{0}")]
    Starved(weft_transport::Starved),
    /// The server restarted and may have lost what was written since the last commit: write it again.
    #[error("the server lost uncommitted data")]
    Lost,
    /// A path without a name where one is needed, or a name that is too long.
    #[error("the path names no file, or has a name of more than 255 bytes")]
    BadPath,
    /// A time that version 3 has no number for.
    #[error("NFS version 3 has no time before 1970 or after 2106")]
    Time,
    /// More calls outstanding than there are transaction numbers.
    #[error("too many calls")]
    Busy,
}

/// A status by its name, with what it means to a user where the name alone does not say it.
fn told(status: &impl fmt::Display) -> String {
    let name = status.to_string();
    let meaning = match name.split_once("ERR_").map(|(_, kind)| kind) {
        Some("PERM" | "ACCES" | "ACCESS") => {
            "access denied; the server judges by the numbers of the user who runs weft, and as a rule takes root for nobody"
        }
        Some("NOENT") => "no such file or folder",
        Some("EXIST") => "the name exists already",
        Some("NOTDIR") => "it is no folder",
        Some("ISDIR") => "it is a folder",
        Some("NOTEMPTY") => "the folder is not empty",
        Some("NOSPC") => "no space left on the server",
        Some("DQUOT") => "the user's quota on the server is used up",
        Some("FBIG") => "the file would be too large for the server",
        Some("ROFS") => "the export is read-only",
        Some("NAMETOOLONG") => "the name is too long for the server: as a rule it takes 255 bytes",
        Some("BADNAME" | "BADCHAR") => "not a valid name on this server",
        Some("STALE") => "the file or folder is not there any more",
        _ => return name,
    };
    format!("{meaning} ({name})")
}

impl Error {
    /// What the server said, in the words of version 3; `None` where it said nothing, or version 3 has no word for it.
    pub fn status(&self) -> Option<Status> {
        use weft_wire::nfs4::Status as Status4;
        /// Above 10000 hardly any number means the same in both.
        const SAME: [Status4; 5] = [
            Status4::BADHANDLE,
            Status4::BAD_COOKIE,
            Status4::NOTSUPP,
            Status4::TOOSMALL,
            Status4::SERVERFAULT,
        ];
        match self {
            Error::Status(status) => Some(*status),
            // A path leads through a link, which nobody follows; version 3 says so with this status.
            Error::Status4(Status4::SYMLINK) => Some(Status::INVAL),
            Error::Status4(status) if status.0 < 10_000 || SAME.contains(status) => Some(Status(status.0)),
            _ => None,
        }
    }

    /// Whether somebody else has the file open, in a way that keeps us out.
    pub fn is_in_use(&self) -> bool {
        use weft_wire::nfs4::Status as Status4;
        matches!(self, Error::Status4(Status4::SHARE_DENIED | Status4::FILE_OPEN | Status4::LOCKED))
    }

    /// Whether the server says that it does not speak this version of NFS.
    pub fn is_version(&self) -> bool {
        match self {
            Error::Rpc(Reply::ProgramMismatch { .. } | Reply::ProgramUnavailable) => true,
            Error::Status4(status) => *status == weft_wire::nfs4::Status::MINOR_VERS_MISMATCH,
            _ => false,
        }
    }
}

impl From<random::Unavailable> for Error {
    fn from(_: random::Unavailable) -> Error {
        Error::Busy
    }
}

impl From<Status> for Error {
    fn from(status: Status) -> Error {
        Error::Status(status)
    }
}

#[cfg(test)]
mod tests;
