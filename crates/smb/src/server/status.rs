//! Status codes of the core that are not constants of [`NtStatus`].
//!
//! Spec: [MS-ERREF] 2.3.1, [MS-SMB2] 3.3.5.

use weft_wire::smb2::NtStatus;

use crate::auth::AuthError;

/// `STATUS_NO_LOGON_SERVERS`: it is not known whether the user has an account of the system.
pub(super) const NO_LOGON_SERVERS: NtStatus = NtStatus(0xC000_005E);
pub(super) const UNEXPECTED_IO_ERROR: NtStatus = NtStatus(0xC000_00E9);

/// The status of a failed log-on.
pub(super) fn of(error: &AuthError) -> NtStatus {
    match error {
        AuthError::Ntlm(_) | AuthError::Spnego(_) | AuthError::Unexpected(_) => NtStatus::INVALID_PARAMETER,
        AuthError::NoMechanism => NtStatus::NOT_SUPPORTED,
        AuthError::Anonymous | AuthError::Bound => NtStatus::ACCESS_DENIED,
        AuthError::Obsolete
        | AuthError::LogonFailure
        | AuthError::Ticket
        | AuthError::Stranger
        | AuthError::Root
        | AuthError::Spelling => NtStatus::LOGON_FAILURE,
    }
}
