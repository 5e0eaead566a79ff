//! The NFS client: one mounted export over any channel.
//!
//! [`Mount`] works by path and by handle; [`v4::Mount`] does the same over a session of version 4.1; [`File`] reads
//! and writes with many requests outstanding, for both; [`exports`] lists a server's exports. See RFC 1813 and RFC
//! 8881.
//!
//! The client does not cache attributes or data, or follow links. It locks byte ranges in version 4.1. It reconnects if it is given a dial function:
//! see [`Mount::keep_connected`].
//!
//! Every value here stays on the core on which it was made.

mod attributes;
mod connections;
mod credential;
mod file;
mod gss;
mod listing;
mod locks;
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
pub use connections::{Dial, MAX_LINES};
pub use credential::{Credential, Offered};
pub use file::File;
pub use gss::{Ticket, TicketError};
pub use listing::Entry;
pub use locks::{ByteRange, LockConflict, LockKind, OnConflict};
pub use mount::{Mount, Options, exports, flavors, null};
pub use weft_wire::nfs3::Status;
pub use weft_wire::nfs3::{FileType, FsinfoOk, FsstatOk, Handle, Stable};
pub use weft_wire::rpc::gss::Service;
pub use weft_wire::rpc::{AuthSys, Flavor};

/// Why a call failed.
#[derive(Clone, Debug, thiserror::Error)]
pub enum Error {
    /// The server returned an error status of version 3.
    #[error("{}", told(.0))]
    Status(Status),
    /// The server returned an error status of version 4; [`Error::status`] maps both.
    #[error("{}", told(.0))]
    Status4(weft_wire::nfs4::Status),
    /// The server does not export this path.
    #[error("mount refused: {0}")]
    Mount(MountStatus),
    /// The server did not carry the call out.
    #[error("{0}")]
    Rpc(Reply),
    /// The reply does not parse.
    #[error("{0}")]
    Malformed(#[from] Malformed),
    /// The Kerberos ticket does not serve.
    #[error("{0}")]
    Ticket(#[from] TicketError),
    /// The export does not accept calls with the flavor of our credential, but with these.
    #[error("the export accepts only these security flavors: {0}")]
    Flavors(Offered),
    /// A reply to a call with a ticket is not the server's.
    #[error("a reply is not what the server has sent: its checksum is missing or wrong (RPCSEC_GSS)")]
    Forged,
    /// The channel failed or ended.
    #[error("{0}")]
    Channel(Arc<weft_transport::Error>),
    /// The request ran out of time: the server was silent, unreachable or busy.
    #[error("the server has not carried the request out within {} s", .0.as_secs())]
    Late(Duration),
    /// No memory was free to receive replies: other requests of this client hold it.
    #[error("{0}")]
    Starved(weft_transport::Starved),
    /// The server restarted and may have lost what was written since the last commit: write it again.
    #[error("the server lost uncommitted data")]
    Lost,
    /// A lock of another owner conflicts: see [`File::lock`].
    #[error("the range is locked by another client")]
    Locked(LockConflict),
    /// The server has lost the byte-range locks of this file, because it restarted or has not heard from this client for
    /// a lease period. Others may have locked the ranges and changed them meanwhile. The file can only be closed.
    #[error(
        "the server has lost the locks on this file, because it restarted or could not be reached; others may have \
         changed the file meanwhile: open it again"
    )]
    LocksLost,
    /// The caller's mistake.
    #[error("{0}")]
    Misuse(&'static str),
    /// The path names no file, or a name in it is too long.
    #[error("the path names no file, or contains a name of more than 255 bytes")]
    BadPath,
    /// Version 3 cannot express this time.
    #[error("NFS version 3 has no time before 1970 or after 2106")]
    Time,
    /// More calls are outstanding than there are transaction ids.
    #[error("too many calls")]
    Busy,
}

/// Formats a status by its name, and adds an explanation where the name alone does not tell a user enough.
fn told(status: &impl fmt::Display) -> String {
    let name = status.to_string();
    let meaning = match name.split_once("ERR_").map(|(_, kind)| kind) {
        Some("PERM" | "ACCES" | "ACCESS") => {
            "access denied; the server judges by the uid and gids of weft's user, or by the user of the Kerberos ticket, and usually maps root to nobody"
        }
        Some("NOENT") => "no such file or folder",
        Some("EXIST") => "the name already exists",
        Some("NOTDIR") => "it is not a folder",
        Some("ISDIR") => "it is a folder",
        Some("NOTEMPTY") => "the folder is not empty",
        Some("NOSPC") => "no space left on the server",
        Some("DQUOT") => "the quota of the share, or of the user, is used up",
        Some("FBIG") => "the file would be too large for the server",
        Some("ROFS") => "the export is read-only",
        Some("NAMETOOLONG") => "the name is too long for the server; most accept 255 bytes",
        Some("BADNAME" | "BADCHAR") => "not a valid name on this server",
        Some("STALE") => "the file or folder no longer exists",
        _ => return name,
    };
    format!("{meaning} ({name})")
}

impl Error {
    /// The server's status in version 3's terms; `None` if there was no status, or version 3 has no equivalent.
    pub fn status(&self) -> Option<Status> {
        use weft_wire::nfs4::Status as Status4;
        /// Above 10000 hardly any number means the same in both versions.
        const SAME: [Status4; 5] = [
            Status4::BADHANDLE,
            Status4::BAD_COOKIE,
            Status4::NOTSUPP,
            Status4::TOOSMALL,
            Status4::SERVERFAULT,
        ];
        match self {
            Error::Status(status) => Some(*status),
            // The path leads through a symbolic link, which neither client follows; version 3 reports it with this
            // status.
            Error::Status4(Status4::SYMLINK) => Some(Status::INVAL),
            Error::Status4(status) if status.0 < 10_000 || SAME.contains(status) => Some(Status(status.0)),
            _ => None,
        }
    }

    /// Whether another client has the file open in a way that excludes us.
    pub fn is_in_use(&self) -> bool {
        use weft_wire::nfs4::Status as Status4;
        matches!(self, Error::Status4(Status4::SHARE_DENIED | Status4::FILE_OPEN | Status4::LOCKED))
    }

    /// Whether a byte-range lock of another owner conflicts.
    pub fn is_locked(&self) -> bool {
        matches!(self, Error::Locked(_) | Error::Status4(weft_wire::nfs4::Status::LOCKED))
    }

    /// Whether the server reports that it does not support this version of NFS.
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
