//! One function maps the store's errors to NTSTATUS; others do it for what the wire and the open table refuse.
//!
//! Spec: [MS-ERREF] 2.3.1; [MS-FSA] 2.1.5 names the status of each failure.
//! Owns: nothing. Does not: know which operation failed, so "not found" means the last name; whoever looks at the
//! names before it says STATUS_OBJECT_PATH_NOT_FOUND itself.

use weft_store::opens::Refused;
use weft_store::vfs::Error;
use weft_wire::smb2::{Malformed, NtStatus};

use crate::server::context::Failure;

pub(super) const BAD_IMPERSONATION_LEVEL: NtStatus = NtStatus(0xC000_00A5);
pub(super) const CANCELLED: NtStatus = NtStatus(0xC000_0120);
pub(super) const CANNOT_DELETE: NtStatus = NtStatus(0xC000_0121);
pub(super) const DELETE_PENDING: NtStatus = NtStatus(0xC000_0056);
pub(super) const DIRECTORY_NOT_EMPTY: NtStatus = NtStatus(0xC000_0101);
pub(super) const DISK_FULL: NtStatus = NtStatus(0xC000_007F);
pub(super) const FILE_CLOSED: NtStatus = NtStatus(0xC000_0128);
pub(super) const FILE_IS_A_DIRECTORY: NtStatus = NtStatus(0xC000_00BA);
pub(super) const FILE_LOCK_CONFLICT: NtStatus = NtStatus(0xC000_0054);
pub(super) const FS_DRIVER_REQUIRED: NtStatus = NtStatus(0xC000_019C);
pub(super) const INSUFFICIENT_RESOURCES: NtStatus = NtStatus(0xC000_009A);
pub(super) const INVALID_DEVICE_STATE: NtStatus = NtStatus(0xC000_0184);
pub(super) const INVALID_LOCK_RANGE: NtStatus = NtStatus(0xC000_01A1);
pub(super) const LOCK_NOT_GRANTED: NtStatus = NtStatus(0xC000_0055);
pub(super) const MEDIA_WRITE_PROTECTED: NtStatus = NtStatus(0xC000_00A2);
pub(super) const NONE_MAPPED: NtStatus = NtStatus(0xC000_0073);
pub(super) const NOT_A_DIRECTORY: NtStatus = NtStatus(0xC000_0103);
pub(super) const NOT_A_REPARSE_POINT: NtStatus = NtStatus(0xC000_0275);
pub(super) const NOT_SUPPORTED: NtStatus = NtStatus(0xC000_00BB);
pub(super) const NO_EAS_ON_FILE: NtStatus = NtStatus(0xC000_0052);
pub(super) const PRIVILEGE_NOT_HELD: NtStatus = NtStatus(0xC000_0061);
pub(super) const RANGE_NOT_LOCKED: NtStatus = NtStatus(0xC000_007E);
pub(super) const TOO_MANY_OPENED_FILES: NtStatus = NtStatus(0xC000_011F);
pub(super) const UNEXPECTED_IO_ERROR: NtStatus = NtStatus(0xC000_00E9);

/// What the client is told about a failure of the store.
pub(super) fn of(error: &Error) -> NtStatus {
    match error {
        Error::NotFound => NtStatus::OBJECT_NAME_NOT_FOUND,
        // The file was removed behind the handle's back.
        Error::Stale => FILE_CLOSED,
        Error::Exists => NtStatus::OBJECT_NAME_COLLISION,
        Error::NotDir => NOT_A_DIRECTORY,
        Error::IsDir => FILE_IS_A_DIRECTORY,
        Error::NotEmpty => DIRECTORY_NOT_EMPTY,
        Error::Access => NtStatus::ACCESS_DENIED,
        Error::BadName | Error::NameTooLong => NtStatus::OBJECT_NAME_INVALID,
        Error::Invalid => NtStatus::INVALID_PARAMETER,
        Error::NoSpace => DISK_FULL,
        Error::Limit("open files (ulimit -n)") => TOO_MANY_OPENED_FILES,
        Error::Limit(_) => INSUFFICIENT_RESOURCES,
        Error::ReadOnly => MEDIA_WRITE_PROTECTED,
        Error::NotSupported => NOT_SUPPORTED,
        Error::Sharing => NtStatus::SHARING_VIOLATION,
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
            Refused::Sharing => NtStatus::SHARING_VIOLATION,
            Refused::DeletePending => DELETE_PENDING,
            Refused::Locked => FILE_LOCK_CONFLICT,
            Refused::NotLocked => RANGE_NOT_LOCKED,
            Refused::Limit(_) => INSUFFICIENT_RESOURCES,
        };
        status.into()
    }
}

/// [MS-SMB2] 3.3.5.2.6: what cannot be read is an invalid parameter.
impl From<Malformed> for Failure {
    fn from(malformed: Malformed) -> Failure {
        tracing::debug!("{malformed}");
        NtStatus::INVALID_PARAMETER.into()
    }
}
