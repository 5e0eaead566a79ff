//! Maps a device's error codes to the errors of the contract.
//!
//! The statuses are those of ibv_poll_cq(3); their causes are in InfiniBand Architecture 10.10.3 and RFC 5040 7 and 8.
//! Devices do not say whether they objected to the STag, the bounds or the rights.

use super::bindings::*;
use super::faults::Report;
use crate::{Disconnect, Refusal, WorkError};

/// "Remote Protection Error, unspecified" (RFC 5040 4.8: layer RDMA, type 1, code 0xff): all that a device reports
/// about an access that it refused.
pub(super) const PROTECTION: Refusal = Refusal::Other { layer: 0, etype: 1, code: 0xff };
/// "Remote Operation Error, unspecified".
pub(super) const OPERATION: Refusal = Refusal::Other { layer: 0, etype: 2, code: 0xff };

/// The kind of work that failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Failed {
    Send { invalidates: bool },
    WriteOrRead,
}

/// The error of a failed Send, Write or Read, and the reason for the connection's end, if the status gives one.
pub(super) fn of_send(status: u32, failed: Failed) -> (WorkError, Option<Disconnect>) {
    let refusal = match (status, failed) {
        (IBV_WC_WR_FLUSH_ERR, _) => return (WorkError::Flushed, None),
        (IBV_WC_REM_ACCESS_ERR, Failed::Send { invalidates: true }) => Refusal::CannotInvalidate,
        (IBV_WC_REM_INV_REQ_ERR, Failed::Send { invalidates: true }) => Refusal::CannotInvalidate,
        // A message that does not fit the buffer is an invalid request.
        (IBV_WC_REM_INV_REQ_ERR, Failed::Send { invalidates: false }) => Refusal::TooLong,
        (IBV_WC_RNR_RETRY_EXC_ERR, _) => Refusal::NoBuffer,
        (IBV_WC_REM_INV_RD_REQ_ERR, _) => Refusal::TooManyReads,
        (IBV_WC_REM_ACCESS_ERR | IBV_WC_REM_INV_REQ_ERR, _) => PROTECTION,
        (IBV_WC_REM_OP_ERR, _) => OPERATION,
        (IBV_WC_RETRY_EXC_ERR | IBV_WC_RESP_TIMEOUT_ERR, _) => {
            return (WorkError::Flushed, Some(Disconnect::Lost(std::io::ErrorKind::TimedOut)));
        }
        (IBV_WC_REM_ABORT_ERR, _) => {
            return (WorkError::Flushed, Some(Disconnect::Lost(std::io::ErrorKind::ConnectionAborted)));
        }
        // Everything else is a local error: of a device or driver that does not do what it was asked.
        _ => return (WorkError::Flushed, Some(Disconnect::Lost(std::io::ErrorKind::Other))),
    };
    (WorkError::Remote(refusal), Some(Disconnect::Terminated(refusal)))
}

/// The reason for the connection's end that a failed receive gives, if any.
pub(super) fn of_recv(status: u32) -> Option<Disconnect> {
    match status {
        IBV_WC_WR_FLUSH_ERR => None,
        IBV_WC_LOC_LEN_ERR => Some(Disconnect::Refused(Refusal::TooLong)),
        // The peer's message could not be placed, or revoked a region that it may not.
        _ => Some(Disconnect::Refused(OPERATION)),
    }
}

/// The reason for the connection's end that a report of the device gives.
pub(super) fn of_report(report: Report) -> Disconnect {
    match report {
        Report::Access => Disconnect::Refused(PROTECTION),
        Report::Request => Disconnect::Refused(OPERATION),
        Report::Broken => Disconnect::Lost(std::io::ErrorKind::ConnectionAborted),
        Report::Device => Disconnect::Lost(std::io::ErrorKind::NotConnected),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flushed_work_says_nothing_about_the_end() {
        assert_eq!(of_send(IBV_WC_WR_FLUSH_ERR, Failed::WriteOrRead), (WorkError::Flushed, None));
        assert_eq!(of_recv(IBV_WC_WR_FLUSH_ERR), None);
    }

    #[test]
    fn refusals_are_told_by_status_and_work() {
        let refusal = |status, failed| match of_send(status, failed) {
            (WorkError::Remote(refusal), Some(Disconnect::Terminated(reason))) => {
                assert_eq!(refusal, reason);
                refusal
            }
            other => panic!("{other:?}"),
        };
        let send = Failed::Send { invalidates: false };
        assert_eq!(refusal(IBV_WC_REM_ACCESS_ERR, Failed::WriteOrRead), PROTECTION);
        assert_eq!(refusal(IBV_WC_REM_INV_REQ_ERR, send), Refusal::TooLong);
        assert_eq!(
            refusal(IBV_WC_REM_INV_REQ_ERR, Failed::Send { invalidates: true }),
            Refusal::CannotInvalidate
        );
        assert_eq!(refusal(IBV_WC_RNR_RETRY_EXC_ERR, send), Refusal::NoBuffer);
        assert_eq!(refusal(IBV_WC_REM_OP_ERR, send), OPERATION);
        assert_eq!(of_recv(IBV_WC_LOC_LEN_ERR), Some(Disconnect::Refused(Refusal::TooLong)));
    }

    #[test]
    fn a_peer_that_does_not_answer_is_lost_not_refusing() {
        let (error, reason) = of_send(IBV_WC_RETRY_EXC_ERR, Failed::WriteOrRead);
        assert_eq!(error, WorkError::Flushed);
        assert_eq!(reason, Some(Disconnect::Lost(std::io::ErrorKind::TimedOut)));
    }
}
