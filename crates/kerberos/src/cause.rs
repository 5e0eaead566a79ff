//! Why GSS-API failed, as far as a user or an administrator can mend it.
//!
//! Spec: RFC 2744 3.9.1 (major status); RFC 4120 7.5.9 (error codes). MIT's minor status is the error code of its library:
//! those of the protocol plus a base, then its own.

/// `GSS_S_NO_CRED` of the major status.
const NO_CRED: u32 = 7;
/// `GSS_S_CREDENTIALS_EXPIRED`.
const CREDENTIALS_EXPIRED: u32 = 11;
/// The error codes of MIT's library (krb5_err.et) count from here.
const BASE: i32 = -1_765_328_384;

/// What is wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// The credential cache has no ticket.
    NoTicket,
    /// The ticket has expired.
    Expired,
    /// The realm has no service of this name.
    UnknownService,
    /// The clocks of the two ends differ by more than Kerberos allows.
    Clock,
    /// No KDC of the realm answers, or none is known.
    NoKdc,
    /// The service does not have the key that the ticket is encrypted with.
    WrongKey,
    /// Anything else.
    Other,
}

impl Cause {
    /// The cause that a status tells, ours or a peer's.
    pub fn of(major: u32, minor: u32) -> Cause {
        // The minor status is a signed number in an unsigned one.
        match minor.cast_signed().checked_sub(BASE) {
            // KDC_ERR_S_PRINCIPAL_UNKNOWN, KRB5_ERR_BAD_HOSTNAME and KRB5_ERR_HOST_REALM_UNKNOWN.
            Some(7 | 216 | 217) => return Cause::UnknownService,
            // KRB_AP_ERR_TKT_EXPIRED.
            Some(32) => return Cause::Expired,
            // KRB_AP_ERR_TKT_NYV and KRB_AP_ERR_SKEW, and KRB5_KDCREP_SKEW.
            Some(33 | 37 | 148) => return Cause::Clock,
            // KRB_AP_ERR_BAD_INTEGRITY, _NOT_US, _MODIFIED, _BADKEYVER, _NOKEY; KRB5_KT_NOTFOUND, KRB5_KT_KVNONOTFOUND and
            // KRB5KRB_AP_WRONG_PRINC.
            Some(31 | 35 | 41 | 44 | 45 | 144 | 181 | 230) => return Cause::WrongKey,
            // KRB5_REALM_UNKNOWN, KRB5_KDC_UNREACH and KRB5_REALM_CANT_RESOLVE.
            Some(154 | 156 | 220) => return Cause::NoKdc,
            // KRB5_CC_NOTFOUND and KRB5_FCC_NOFILE.
            Some(141 | 195) => return Cause::NoTicket,
            _ => {}
        }
        match major >> 16 & 0xff {
            NO_CRED => Cause::NoTicket,
            CREDENTIALS_EXPIRED => Cause::Expired,
            _ => Cause::Other,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_status_tells_its_cause() {
        // As MIT's library numbers them: -1765328377 is the server that is not found in the database.
        for (major, minor, cause) in [
            (13 << 16, -1_765_328_377_i32, Cause::UnknownService),
            (13 << 16, -1_765_328_352, Cause::Expired),
            (13 << 16, -1_765_328_347, Cause::Clock),
            (13 << 16, -1_765_328_228, Cause::NoKdc),
            (7 << 16, -1_765_328_189, Cause::NoTicket),
            (7 << 16, 0, Cause::NoTicket),
            (11 << 16, 0, Cause::Expired),
            (13 << 16, -1_765_328_343, Cause::WrongKey),
            (13 << 16, 0, Cause::Other),
            (0, i32::MAX, Cause::Other),
        ] {
            assert_eq!(Cause::of(major, minor.cast_unsigned()), cause, "{major:#x} {minor}");
        }
    }
}
