//! What can go wrong for a client, by fault, with advice.
//!
//! Does not: retry. Every error clones, because the end of a connection is told to all who wait on it.

use std::sync::Arc;
use std::time::Duration;

use weft_machine::random;
use weft_wire::smb2::{Command, Malformed, NtStatus};

use crate::auth::{AuthError, TicketError};

/// Why a client call did not succeed.
#[derive(Clone, Debug, thiserror::Error)]
pub enum Error {
    /// The connection ended below us.
    #[error("the connection to the server is lost: {0}")]
    Transport(Arc<weft_transport::Error>),
    /// The server closed the connection, or we did.
    #[error("the connection is closed")]
    Closed,
    /// No answer within [`super::Options::timeout`].
    #[error("the server does not answer; is it overloaded, or the network interrupted?")]
    TimedOut,
    /// The same, and what was not received, or not sent, waited for memory.
    #[error("{0}")]
    Starved(weft_transport::Starved),
    /// The server has answered that it is at work, and no more within the limit of that. It answers other requests.
    #[error(
        "the server has been at work on this for {} s; does another client keep the file open, or does the server's disk hang? try again later",
        .0.as_secs()
    )]
    Overdue(Duration),
    /// The server answered with an error status.
    #[error("{}", advice(*.command, *.status))]
    Status {
        /// What was asked.
        command: Command,
        /// What the server said.
        status: NtStatus,
    },
    /// The server sent something that its specification does not allow. The connection has ended.
    #[error("the server sent a {0}")]
    Malformed(#[from] Malformed),
    /// The server broke a rule of the protocol. The connection has ended.
    #[error("the server broke a rule: {0}")]
    Violation(&'static str),
    /// A response failed its signature or tag: it was changed on its way. The connection has ended.
    #[error("a response was tampered with ({0}); do not trust the network between here and the server")]
    Tampered(&'static str),
    /// What we insist on and what the server offers do not meet.
    #[error("{0}")]
    Denied(Denial),
    /// The server's tokens cannot be answered, or prove nothing; the server has not judged ours.
    #[error(
        "the server's part of the log-on is not accepted: {0}; `weft doctor HOST` shows each step, --kerberos logs on with a ticket"
    )]
    Auth(#[from] AuthError),
    /// Kerberos has no ticket for us, or not for this server.
    #[error(
        "no log-on by Kerberos: {0} (is there a ticket? see klist, and kinit gets one; a server is named as in the ticket cifs/HOST, not by its address)"
    )]
    Ticket(TicketError),
    /// What is there where a list of shares should be.
    #[error(
        "the server lists no shares: {0}; name one in the URL (smb://USER@HOST/SHARE), or log on as another user"
    )]
    Unlisted(&'static str),
    /// The call makes no sense.
    #[error("{0}")]
    Misuse(&'static str),
}

/// A demand of one side that the other does not meet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Denial {
    /// No dialect in common.
    #[error(
        "the server speaks none of the dialects allowed here, 3.0 to 3.1.1 (--min-dialect 2.1 lets an older one in)"
    )]
    Dialect,
    /// Its ServerGuid is not that of [`super::Options::server`].
    #[error("another server answers there")]
    OtherServer,
    /// Encryption was asked for.
    #[error("encryption is required, but the server offers no cipher of ours")]
    Encryption,
    /// Logged on as a guest: such a session can be neither signed nor encrypted.
    #[error("the server took us for a guest; check the user name, or disable guest access on the server")]
    Guest,
    /// NEGOTIATE was tampered with ([MS-SMB2] 3.2.5.5).
    #[error("the negotiation was tampered with: somebody between here and the server weakens it")]
    Downgrade,
}

impl Error {
    /// The server's status, when it is what failed the call.
    pub fn status(&self) -> Option<NtStatus> {
        match self {
            Error::Status { status, .. } => Some(*status),
            _ => None,
        }
    }

    /// Whether it is the connection that failed, not the request or what it asked for.
    pub fn is_loss(&self) -> bool {
        matches!(self, Error::Transport(_) | Error::Closed | Error::TimedOut | Error::Starved(_))
    }

    /// Whether what was to be replaced or removed is protected: read-only perhaps, see [`super::Tree::set_read_only`].
    pub fn is_protected(&self) -> bool {
        matches!(self.status(), Some(NtStatus::ACCESS_DENIED | NtStatus::CANNOT_DELETE))
    }

    /// Whether somebody else has the file open, in a way that keeps us out, or deletes it at this moment.
    pub fn is_in_use(&self) -> bool {
        matches!(self.status(), Some(NtStatus::SHARING_VIOLATION | NtStatus::DELETE_PENDING))
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
        Error::Misuse("the system gives no random numbers")
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

/// What a status means to a user, and what to do.
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
        NtStatus::ACCOUNT_DISABLED | NtStatus::ACCOUNT_LOCKED_OUT | NtStatus::ACCOUNT_RESTRICTION => {
            "the account is disabled, locked or restricted on the server"
        }
        NtStatus::ACCESS_DENIED => {
            "access denied; the user may not do this, or the server requires signing or encryption"
        }
        NtStatus::BAD_NETWORK_NAME => "no share of that name; `weft ls smb://USER@HOST` lists the shares",
        NtStatus::OBJECT_NAME_NOT_FOUND | NtStatus::NO_SUCH_FILE => "no such file or directory",
        NtStatus::OBJECT_PATH_NOT_FOUND => "a directory of the path does not exist",
        NtStatus::OBJECT_NAME_COLLISION => "the name exists already",
        NtStatus::OBJECT_NAME_INVALID | NtStatus::OBJECT_PATH_SYNTAX_BAD => {
            "not a valid name on this server: too long (255 characters at most), or with one of \" * / : < > ? \\ |"
        }
        NtStatus::SHARING_VIOLATION => "the file is in use by somebody else",
        NtStatus::DELETE_PENDING => "the file is about to be deleted",
        NtStatus::DIRECTORY_NOT_EMPTY => "the directory is not empty",
        NtStatus::FILE_IS_A_DIRECTORY => "it is a directory",
        NtStatus::NOT_A_DIRECTORY => "it is not a directory",
        NtStatus::DISK_FULL => "no space left on the server",
        NtStatus::MEDIA_WRITE_PROTECTED => "the share is read-only",
        NtStatus::FILE_LOCK_CONFLICT | NtStatus::LOCK_NOT_GRANTED => "the range is locked by somebody else",
        NtStatus::INSUFFICIENT_RESOURCES | NtStatus::INSUFF_SERVER_RESOURCES => {
            "the server is out of resources; try again later"
        }
        NtStatus::NETWORK_SESSION_EXPIRED | NtStatus::USER_SESSION_DELETED => {
            "the session has ended; connect again"
        }
        NtStatus::PATH_NOT_COVERED => {
            "a DFS link leads from here to another server; name what is behind the link in the URL itself"
        }
        NtStatus::STOPPED_ON_SYMLINK => {
            "a symbolic link is in the way, and the server follows none; name what it leads to"
        }
        NtStatus::CANNOT_DELETE => "it is read-only, or must not be deleted",
        NtStatus::NETWORK_NAME_DELETED => "the share has gone; connect again",
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

    #[test]
    fn what_failed_comes_first_then_why_then_what_to_type() {
        let text = Error::Auth(AuthError::Unexpected("no responseToken")).to_string();
        assert!(text.starts_with("the server's part of the log-on is not accepted: "), "{text}");
        assert!(text.contains("no responseToken; `weft doctor HOST`"), "{text}");
        let text = Error::Unlisted("it refuses the call").to_string();
        assert!(text.starts_with("the server lists no shares: it refuses the call; name one"), "{text}");
        // Functions of a protocol tell nobody anything.
        assert!(!text.contains("srvsvc"), "{text}");
    }
}
