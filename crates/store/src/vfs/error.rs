//! Why an operation failed, and which of the kernel's errors say so.
//!
//! Does not: know the codes of a protocol; each maps these to its own.

use std::io;

use weft_machine::file::system::Unanswered;

/// A limit that is reached where a file system does not answer: protocols say to ask again later.
pub(crate) const UNANSWERED: &str = "calls of a file system that does not answer";

/// Why an operation failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// No such name.
    #[error("no such file or directory")]
    NotFound,
    /// The node is gone.
    #[error("stale node")]
    Stale,
    /// The name exists.
    #[error("exists")]
    Exists,
    /// Not a directory.
    #[error("not a directory")]
    NotDir,
    /// A directory where a file was wanted.
    #[error("is a directory")]
    IsDir,
    /// Directory not empty.
    #[error("directory not empty")]
    NotEmpty,
    /// The user may not.
    #[error("access denied")]
    Access,
    /// Only the owner, or root, may.
    #[error("operation not permitted")]
    NotPermitted,
    /// A name that no file can have (empty, `/`, NUL, too long) or one that leaves the share.
    #[error("bad name")]
    BadName,
    /// Name too long.
    #[error("name too long")]
    NameTooLong,
    /// An argument makes no sense.
    #[error("invalid argument")]
    Invalid,
    /// Disk, quota or ram limit full.
    #[error("no space")]
    NoSpace,
    /// A file larger than the file system's files can be.
    #[error("file too large")]
    TooLarge,
    /// A named limit of the server (open files, nodes).
    #[error("limit reached: {0}")]
    Limit(&'static str),
    /// The share is read-only.
    #[error("read-only")]
    ReadOnly,
    /// Not here.
    #[error("not supported")]
    NotSupported,
    /// No such extended attribute.
    #[error("no such extended attribute")]
    NoXattr,
    /// An extended attribute, or all of them together, longer than the file system takes.
    #[error("extended attribute too big")]
    XattrTooBig,
    /// An open by somebody else forbids it (share modes).
    #[error("sharing violation")]
    Sharing,
    /// What was to be written does not come: the connection to the peer that keeps it has ended.
    #[error("the payload does not come: {0}")]
    Payload(io::Error),
    /// The world failed.
    #[error("{0}")]
    Io(io::Error),
}

impl Error {
    /// The same for another one who asked. Of an error of the system its code is kept.
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
            Some(Errno::NOSPC | Errno::DQUOT) => Error::NoSpace,
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
