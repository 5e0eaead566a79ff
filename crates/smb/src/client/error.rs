//! A client's errors, grouped by who is at fault, with advice.
//!
//! Every error is cloneable, because the end of a connection is reported to every waiter.

use std::sync::Arc;
use std::time::Duration;

use weft_machine::random;
use weft_wire::smb2::{Command, Malformed, NtStatus};

use crate::auth::{AuthError, TicketError};

/// Why a client call failed.
#[derive(Clone, Debug, thiserror::Error)]
pub enum Error {
    /// The transport below us failed.
    #[error("the connection to the server is lost: {0}")]
    Transport(Arc<weft_transport::Error>),
    /// The server closed the connection, or we did.
    #[error("the connection is closed")]
    Closed,
    /// No answer within [`super::Options::timeout`].
    #[error("the server does not answer; is it overloaded, or the network interrupted?")]
    TimedOut,
    /// No answer in time, because a message could not be received or sent for lack of memory.
    #[error("{0}")]
    Starved(weft_transport::Starved),
    /// The server reported that it is working on the request, but has not finished within the limit. It answers other
    /// requests.
    #[error(
        "the server has been working on this for {} s; another client may keep the file open, or the server's disk may hang; try again later",
        .0.as_secs()
    )]
    Overdue(Duration),
    /// The server answered with an error status.
    #[error("{}", advice(*.command, *.status))]
    Status {
        /// The command that failed.
        command: Command,
        /// The status that the server returned.
        status: NtStatus,
    },
    /// The server sent a malformed message. The connection has ended.
    #[error("the server sent a {0}")]
    Malformed(#[from] Malformed),
    /// The server violated the protocol. The connection has ended.
    #[error("the server violated the protocol: {0}")]
    Violation(&'static str),
    /// The signature or tag of a response is wrong: it was changed in transit. The connection has ended.
    #[error("a response was tampered with ({0}); do not trust the network between here and the server")]
    Tampered(&'static str),
    /// One side insists on something that the other does not offer.
    #[error("{0}")]
    Denied(Denial),
    /// The server's tokens cannot be answered or prove nothing; the server has not judged ours.
    #[error(
        "the server's part of the log-on is not accepted: {0}; `weft doctor HOST` shows each step, --kerberos logs on with a ticket"
    )]
    Auth(#[from] AuthError),
    /// We have no Kerberos ticket, or none for this server.
    #[error(
        "Kerberos log-on failed: {0} (check for a ticket with klist, get one with kinit; name the server as in its ticket cifs/HOST, not by address)"
    )]
    Ticket(TicketError),
    /// The server does not list its shares.
    #[error(
        "the server lists no shares: {0}; name one in the URL (smb://USER@HOST/SHARE), or log on as another user"
    )]
    Unlisted(&'static str),
    /// The caller's mistake.
    #[error("{0}")]
    Misuse(&'static str),
}

/// A requirement of one side that the other does not meet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Denial {
    /// No dialect in common.
    #[error(
        "the server speaks none of the dialects allowed here, 3.0 to 3.1.1 (--min-dialect 2.1 lets an older one in)"
    )]
    Dialect,
    /// Its ServerGuid differs from [`super::Options::server`].
    #[error("another server answers there")]
    OtherServer,
    /// We require encryption.
    #[error("encryption is required, but the server supports none of the offered ciphers")]
    Encryption,
    /// The server logged us on as a guest: such a session can be neither signed nor encrypted.
    #[error("the server logged us on as a guest; check the user name, or disable guest access on the server")]
    Guest,
    /// NEGOTIATE was tampered with ([MS-SMB2] 3.2.5.5).
    #[error("the negotiation was tampered with: someone between here and the server tried to weaken it")]
    Downgrade,
}

impl Error {
    /// The server's status, if that is why the call failed.
    pub fn status(&self) -> Option<NtStatus> {
        match self {
            Error::Status { status, .. } => Some(*status),
            _ => None,
        }
    }

    /// Whether the connection failed, rather than the request.
    pub fn is_loss(&self) -> bool {
        matches!(self, Error::Transport(_) | Error::Closed | Error::TimedOut | Error::Starved(_))
    }

    /// Whether the file that was to be replaced or removed is protected, perhaps read-only: see
    /// [`super::Tree::set_read_only`].
    pub fn is_protected(&self) -> bool {
        matches!(self.status(), Some(NtStatus::ACCESS_DENIED | NtStatus::CANNOT_DELETE))
    }

    /// Whether another client has the file open in a way that excludes us, or is deleting it.
    pub fn is_in_use(&self) -> bool {
        matches!(self.status(), Some(NtStatus::SHARING_VIOLATION | NtStatus::DELETE_PENDING))
    }

    /// Whether a byte-range lock of another handle conflicts: see [`super::File::lock`].
    pub fn is_locked(&self) -> bool {
        matches!(self.status(), Some(NtStatus::LOCK_NOT_GRANTED | NtStatus::FILE_LOCK_CONFLICT))
    }

    /// Whether the name does not exist.
    pub fn is_not_found(&self) -> bool {
        matches!(
            self.status(),
            Some(NtStatus::OBJECT_NAME_NOT_FOUND | NtStatus::OBJECT_PATH_NOT_FOUND | NtStatus::NO_SUCH_FILE)
        )
    }
}

impl From<TicketError> for Error {
    fn from(e: TicketError) -> Error {
        match e {
            TicketError::Auth(e) => Error::Auth(e),
            e => Error::Ticket(e),
        }
    }
}

impl From<random::Unavailable> for Error {
    fn from(_: random::Unavailable) -> Error {
        Error::Misuse("the system returned no random numbers")
    }
}

impl From<weft_transport::Error> for Error {
    fn from(e: weft_transport::Error) -> Error {
        match e {
            weft_transport::Error::Closed => Error::Closed,
            e => Error::Transport(Arc::new(e)),
        }
    }
}

impl From<Denial> for Error {
    fn from(denial: Denial) -> Error {
        Error::Denied(denial)
    }
}

/// What a status means for a user, and what to do about it.
fn advice(command: Command, status: NtStatus) -> String {
    let text = match status {
        NtStatus::ACCESS_DENIED if command == Command::SessionSetup => {
            "the log-on was refused: the user may not log on, or the server does not know the name that you call it by \
             (`weft serve --server-name NAME` tells a Weft server; or use its address)"
        }
        NtStatus::LOGON_FAILURE | NtStatus::WRONG_PASSWORD | NtStatus::NO_SUCH_USER => {
            "wrong user name or password"
        }
        NtStatus::PASSWORD_EXPIRED | NtStatus::PASSWORD_MUST_CHANGE => {
            "the password has expired; change it on the server"
        }
        NtStatus::ACCOUNT_LOCKED_OUT => {
            "the server refuses log-ons for now, after too many wrong passwords: wait a minute, then log on with the right one. \
             Weft delays only the address that they came from; another server may have locked the account, which its \
             administrator can unlock"
        }
        NtStatus::ACCOUNT_DISABLED | NtStatus::ACCOUNT_RESTRICTION => {
            "the account is disabled or restricted on the server"
        }
        NtStatus::ACCESS_DENIED => {
            "access denied; the user may not do this, or the server requires signing or encryption"
        }
        NtStatus::BAD_NETWORK_NAME => "no share with that name; `weft ls smb://USER@HOST` lists the shares",
        NtStatus::OBJECT_NAME_NOT_FOUND | NtStatus::NO_SUCH_FILE => "no such file or folder",
        NtStatus::OBJECT_PATH_NOT_FOUND => "a folder in the path does not exist",
        NtStatus::OBJECT_NAME_COLLISION => "the name exists already",
        NtStatus::OBJECT_NAME_INVALID | NtStatus::OBJECT_PATH_SYNTAX_BAD => {
            "not a valid name on this server: too long (255 characters at most), or with one of \" * / : < > ? \\ |"
        }
        NtStatus::SHARING_VIOLATION => "the file is in use by another client",
        NtStatus::DELETE_PENDING => "the file is about to be deleted",
        NtStatus::DIRECTORY_NOT_EMPTY => "the folder is not empty",
        NtStatus::FILE_IS_A_DIRECTORY => "it is a folder",
        NtStatus::NOT_A_DIRECTORY => "it is not a folder",
        NtStatus::DISK_FULL => "no space left on the server",
        NtStatus::MEDIA_WRITE_PROTECTED => "the share is read-only",
        NtStatus::FILE_LOCK_CONFLICT | NtStatus::LOCK_NOT_GRANTED => "the range is locked by another client",
        NtStatus::RANGE_NOT_LOCKED => "the range is not locked through this handle",
        NtStatus::INSUFFICIENT_RESOURCES | NtStatus::INSUFF_SERVER_RESOURCES => {
            "the server is out of resources; try again later"
        }
        NtStatus::NETWORK_SESSION_EXPIRED | NtStatus::USER_SESSION_DELETED => {
            "the session has ended; connect again"
        }
        NtStatus::PATH_NOT_COVERED => {
            "the path crosses a DFS link to another server; name the link's target in the URL"
        }
        NtStatus::STOPPED_ON_SYMLINK => {
            "the path contains a symbolic link, which the server does not follow; name the link's target"
        }
        NtStatus::CANNOT_DELETE => "it is read-only, or must not be deleted",
        NtStatus::NETWORK_NAME_DELETED => "the share is gone; connect again",
        NtStatus::FILE_CLOSED => "the file is closed",
        NtStatus::NOT_SUPPORTED | NtStatus::INVALID_DEVICE_REQUEST => "the server does not support this",
        NtStatus::CANCELLED => "cancelled",
        other => return other.to_string(),
    };
    format!("{text} ({status})")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Weft's messages call a directory a folder, whichever protocol they come from.
    #[test]
    fn a_status_says_what_it_means_and_what_to_do() {
        let said = |status| Error::Status { command: Command::SessionSetup, status }.to_string();
        let locked = said(NtStatus::ACCOUNT_LOCKED_OUT);
        assert!(locked.contains("too many wrong passwords: wait a minute"), "{locked}");
        let of_folders =
            [NtStatus::OBJECT_PATH_NOT_FOUND, NtStatus::DIRECTORY_NOT_EMPTY, NtStatus::FILE_IS_A_DIRECTORY];
        for status in of_folders {
            let said = said(status);
            assert!(said.contains("folder") && !said.contains("directory"), "{said}");
        }
    }

    #[test]
    fn what_failed_comes_first_then_why_then_what_to_type() {
        let text = Error::Auth(AuthError::Unexpected("no responseToken")).to_string();
        assert!(text.starts_with("the server's part of the log-on is not accepted: "), "{text}");
        assert!(text.contains("no responseToken; `weft doctor HOST`"), "{text}");
        let text = Error::Unlisted("it refuses the call").to_string();
        assert!(text.starts_with("the server lists no shares: it refuses the call; name one"), "{text}");
        // Users do not know the names of protocol functions.
        assert!(!text.contains("srvsvc"), "{text}");
    }
}
