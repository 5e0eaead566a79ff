//! Maps errors of the store, of parsing and of the open table to NTSTATUS.
//!
//! Spec: [MS-ERREF] 2.3.1; [MS-FSA] 2.1.5 names the status of each failure. The mapping does not know the operation, so
//! "not found" means the last name; code that looks up the names before it returns STATUS_OBJECT_PATH_NOT_FOUND itself.

use weft_machine::random;
use weft_store::opens::Refused;
use weft_store::vfs::Error;
use weft_wire::smb2::{Malformed, NtStatus};

use crate::server::answer::Failure;
use crate::server::limits;

pub(super) const EA_TOO_LARGE: NtStatus = NtStatus(0xC000_0050);
pub(super) const IO_REPARSE_DATA_INVALID: NtStatus = NtStatus(0xC000_0278);
pub(super) const IO_REPARSE_TAG_MISMATCH: NtStatus = NtStatus(0xC000_0277);
pub(super) const IO_REPARSE_TAG_INVALID: NtStatus = NtStatus(0xC000_0276);
pub(super) const NONE_MAPPED: NtStatus = NtStatus(0xC000_0073);
pub(super) const VOLUME_NOT_UPGRADED: NtStatus = NtStatus(0xC000_029C);
pub(super) const UNEXPECTED_IO_ERROR: NtStatus = NtStatus(0xC000_00E9);

/// The status for an error of the store.
pub(super) fn of(error: &Error) -> NtStatus {
    match error {
        Error::NotFound => NtStatus::OBJECT_NAME_NOT_FOUND,
        // The file was removed although the handle is open.
        Error::Stale => NtStatus::FILE_CLOSED,
        Error::Exists => NtStatus::OBJECT_NAME_COLLISION,
        Error::NotDir => NtStatus::NOT_A_DIRECTORY,
        Error::IsDir => NtStatus::FILE_IS_A_DIRECTORY,
        Error::NotEmpty => NtStatus::DIRECTORY_NOT_EMPTY,
        Error::Access | Error::NotPermitted => NtStatus::ACCESS_DENIED,
        Error::BadName | Error::NameTooLong => NtStatus::OBJECT_NAME_INVALID,
        Error::Invalid => NtStatus::INVALID_PARAMETER,
        // [MS-FSA] 2.1.5.4: an offset beyond the volume's MaxFileSize is invalid.
        Error::TooLarge => NtStatus::INVALID_PARAMETER,
        // [MS-FSA] knows no other status for a volume whose space is used up; a quota is told to clients as its size.
        Error::NoSpace | Error::OverQuota => NtStatus::DISK_FULL,
        Error::Limit(what @ "open files (ulimit -n)") => {
            limits::reached(what);
            NtStatus::TOO_MANY_OPENED_FILES
        }
        Error::Limit(what) => {
            limits::reached(what);
            NtStatus::INSUFFICIENT_RESOURCES
        }
        Error::ReadOnly => NtStatus::MEDIA_WRITE_PROTECTED,
        Error::NotSupported => NtStatus::NOT_SUPPORTED,
        Error::NoXattr => NtStatus::OBJECT_NAME_NOT_FOUND,
        Error::XattrTooBig => EA_TOO_LARGE,
        Error::Sharing => NtStatus::SHARING_VIOLATION,
        // The connection ends over this; the answer is for the log of whoever still hears it.
        Error::Payload(_) => {
            tracing::debug!("a WRITE: {error}");
            UNEXPECTED_IO_ERROR
        }
        Error::Io(e) => {
            tracing::warn!("the file system failed: {e}");
            UNEXPECTED_IO_ERROR
        }
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Failure {
        of(&error).into()
    }
}

impl From<Refused> for Failure {
    fn from(refused: Refused) -> Failure {
        let status = match refused {
            Refused::Sharing | Refused::Recalling => NtStatus::SHARING_VIOLATION,
            Refused::DeletePending => NtStatus::DELETE_PENDING,
            Refused::Locked => NtStatus::FILE_LOCK_CONFLICT,
            Refused::NotLocked => NtStatus::RANGE_NOT_LOCKED,
            Refused::Closed => NtStatus::FILE_CLOSED,
            Refused::Limit(_) => NtStatus::INSUFFICIENT_RESOURCES,
        };
        status.into()
    }
}

impl From<random::Unavailable> for Failure {
    fn from(_: random::Unavailable) -> Failure {
        NtStatus::INSUFFICIENT_RESOURCES.into()
    }
}

/// [MS-SMB2] 3.3.5.2.6: a malformed request is an invalid parameter.
impl From<Malformed> for Failure {
    fn from(malformed: Malformed) -> Failure {
        tracing::debug!("{malformed}");
        NtStatus::INVALID_PARAMETER.into()
    }
}
