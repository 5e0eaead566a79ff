//! Status codes of the core that are not constants of [`NtStatus`].
//!
//! Spec: [MS-ERREF] 2.3.1, [MS-SMB2] 3.3.5.

use weft_kerberos::Cause;
use weft_wire::smb2::NtStatus;

use crate::auth::{AuthError, Refused};

pub(super) const UNEXPECTED_IO_ERROR: NtStatus = NtStatus(0xC000_00E9);

/// The status of a failed log-on, for its client: it does not say which users there are.
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

/// The status of a failed log-on for those who administer the server. It says what is wrong.
pub(super) fn in_full(error: &AuthError, refused: &Refused) -> NtStatus {
    match error {
        AuthError::LogonFailure if !refused.is_user => NtStatus::NO_SUCH_USER,
        AuthError::LogonFailure if !refused.is_proven => NtStatus::WRONG_PASSWORD,
        AuthError::Obsolete => NtStatus::NTLM_BLOCKED,
        AuthError::Ticket => match refused.cause {
            Some(Cause::Clock) => NtStatus::TIME_DIFFERENCE_AT_DC,
            Some(Cause::Expired) => NtStatus::NETWORK_SESSION_EXPIRED,
            _ => NtStatus::LOGON_FAILURE,
        },
        AuthError::Stranger => NtStatus::LOGON_TYPE_NOT_GRANTED,
        AuthError::Root => NtStatus::ACCOUNT_RESTRICTION,
        AuthError::Spelling => NtStatus::NO_SUCH_USER,
        _ => of(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_client_is_not_told_is_told_in_full() {
        let password = |is_user, is_proven| Refused { is_user, is_proven, ..Refused::default() };
        let ticket = |cause| Refused { cause: Some(cause), ..Refused::default() };
        for (error, refused, status) in [
            (AuthError::LogonFailure, password(false, false), NtStatus::NO_SUCH_USER),
            // The secret that stands for that of an unknown user is no password.
            (AuthError::LogonFailure, password(false, true), NtStatus::NO_SUCH_USER),
            (AuthError::LogonFailure, password(true, false), NtStatus::WRONG_PASSWORD),
            (AuthError::LogonFailure, password(true, true), NtStatus::LOGON_FAILURE),
            (AuthError::Obsolete, Refused::default(), NtStatus::NTLM_BLOCKED),
            (AuthError::Ticket, ticket(Cause::Clock), NtStatus::TIME_DIFFERENCE_AT_DC),
            (AuthError::Ticket, ticket(Cause::Expired), NtStatus::NETWORK_SESSION_EXPIRED),
            (AuthError::Ticket, ticket(Cause::WrongKey), NtStatus::LOGON_FAILURE),
            (AuthError::Ticket, Refused::default(), NtStatus::LOGON_FAILURE),
            (AuthError::Stranger, Refused::default(), NtStatus::LOGON_TYPE_NOT_GRANTED),
            (AuthError::Root, Refused::default(), NtStatus::ACCOUNT_RESTRICTION),
            (AuthError::Spelling, Refused::default(), NtStatus::NO_SUCH_USER),
        ] {
            assert_eq!(in_full(&error, &refused), status, "{error:?} {refused:?}");
            assert_eq!(of(&error), NtStatus::LOGON_FAILURE, "the client");
        }
        assert_eq!(in_full(&AuthError::Bound, &Refused::default()), NtStatus::ACCESS_DENIED);
        let client = in_full(&AuthError::NoMechanism, &Refused::default());
        assert_eq!(client, of(&AuthError::NoMechanism), "as the client is told");
    }
}
