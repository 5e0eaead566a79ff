//! Why an operation failed, and the mapping from the kernel's errors. Each protocol maps these to its own codes.

use std::io;

use weft_machine::file::system::Unanswered;

/// The limit that is reached when a file system does not answer: protocols ask the client to retry later.
pub(crate) const UNANSWERED: &str = "calls of a file system that does not answer";

/// Why an operation failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// No such name.
    #[error("no such file or directory")]
    NotFound,
    /// The node no longer exists.
    #[error("stale node")]
    Stale,
    /// The name exists.
    #[error("exists")]
    Exists,
    /// Not a directory.
    #[error("not a directory")]
    NotDir,
    /// A directory instead of a file.
    #[error("is a directory")]
    IsDir,
    /// Directory not empty.
    #[error("directory not empty")]
    NotEmpty,
    /// The user lacks the right.
    #[error("access denied")]
    Access,
    /// Only the owner or root has the right.
    #[error("operation not permitted")]
    NotPermitted,
    /// A name that no file can have (empty, `/`, NUL, too long) or one that leaves the share.
    #[error("bad name")]
    BadName,
    /// Name too long.
    #[error("name too long")]
    NameTooLong,
    /// An invalid argument.
    #[error("invalid argument")]
    Invalid,
    /// Disk or ram limit full.
    #[error("no space")]
    NoSpace,
    /// The quota of a share, or of a user on the host, is used up.
    #[error("quota exceeded")]
    OverQuota,
    /// A file larger than the file system supports.
    #[error("file too large")]
    TooLarge,
    /// A named limit of the server (open files, nodes).
    #[error("limit reached: {0}")]
    Limit(&'static str),
    /// The share is read-only.
    #[error("read-only")]
    ReadOnly,
    /// Not supported.
    #[error("not supported")]
    NotSupported,
    /// No such extended attribute.
    #[error("no such extended attribute")]
    NoXattr,
    /// An extended attribute, or all of them together, exceed the file system's limit.
    #[error("extended attribute too big")]
    XattrTooBig,
    /// Another open forbids it (share modes).
    #[error("sharing violation")]
    Sharing,
    /// The payload of a write did not arrive, because the connection to the peer that has it ended.
    #[error("the payload did not arrive: {0}")]
    Payload(io::Error),
    /// An error of the system.
    #[error("{0}")]
    Io(io::Error),
}

impl Error {
    /// The same error for another caller; for a system error, its code is kept.
    pub(super) fn repeated(&self) -> Error {
        match self {
            Error::NotFound => Error::NotFound,
            Error::Stale => Error::Stale,
            Error::Exists => Error::Exists,
            Error::NotDir => Error::NotDir,
            Error::IsDir => Error::IsDir,
            Error::NotEmpty => Error::NotEmpty,
            Error::Access => Error::Access,
            Error::NotPermitted => Error::NotPermitted,
            Error::BadName => Error::BadName,
            Error::NameTooLong => Error::NameTooLong,
            Error::Invalid => Error::Invalid,
            Error::NoSpace => Error::NoSpace,
            Error::OverQuota => Error::OverQuota,
            Error::TooLarge => Error::TooLarge,
            Error::Limit(which) => Error::Limit(which),
            Error::ReadOnly => Error::ReadOnly,
            Error::NotSupported => Error::NotSupported,
            Error::NoXattr => Error::NoXattr,
            Error::XattrTooBig => Error::XattrTooBig,
            Error::Sharing => Error::Sharing,
            Error::Payload(e) => Error::Payload(repeated(e)),
            Error::Io(e) => Error::Io(repeated(e)),
        }
    }
}

fn repeated(e: &io::Error) -> io::Error {
    e.raw_os_error().map_or_else(|| e.kind().into(), io::Error::from_raw_os_error)
}

impl From<Unanswered> for Error {
    fn from(_: Unanswered) -> Error {
        Error::Limit(UNANSWERED)
    }
}

impl From<rustix::io::Errno> for Error {
    fn from(e: rustix::io::Errno) -> Error {
        io::Error::from(e).into()
    }
}

impl From<io::Error> for Error {
    fn from(e: io::Error) -> Error {
        use rustix::io::Errno;
        match e.raw_os_error().map(Errno::from_raw_os_error) {
            Some(Errno::NOENT) => Error::NotFound,
            Some(Errno::EXIST) => Error::Exists,
            Some(Errno::NOTDIR) => Error::NotDir,
            Some(Errno::ISDIR) => Error::IsDir,
            Some(Errno::NOTEMPTY) => Error::NotEmpty,
            Some(Errno::ACCESS | Errno::PERM) => Error::Access,
            // openat2 RESOLVE_BENEATH: the path would leave the share.
            Some(Errno::XDEV | Errno::LOOP) => Error::BadName,
            Some(Errno::NAMETOOLONG) => Error::NameTooLong,
            Some(Errno::INVAL) => Error::Invalid,
            Some(Errno::NOSPC) => Error::NoSpace,
            Some(Errno::DQUOT) => Error::OverQuota,
            Some(Errno::FBIG) => Error::TooLarge,
            Some(Errno::MFILE | Errno::NFILE) => Error::Limit("open files (ulimit -n)"),
            Some(Errno::ROFS) => Error::ReadOnly,
            Some(Errno::STALE) => Error::Stale,
            Some(Errno::NOTSUP) => Error::NotSupported,
            Some(Errno::NODATA) => Error::NoXattr,
            Some(Errno::TOOBIG) => Error::XattrTooBig,
            None if e.kind() == io::ErrorKind::Unsupported => Error::NotSupported,
            // The kernel's own EBUSY has a number.
            None if e.kind() == io::ErrorKind::ResourceBusy => Error::Limit(UNANSWERED),
            _ => Error::Io(e),
        }
    }
}
