//! A server that has no time now (NFS3ERR_JUKEBOX): the request is made again, as RFC 1813 3.3 asks for.
//!
//! Servers say so while somebody else's client gives back what it caches of a file, which may take half a minute, or a lease.
//! Owns: the pauses of one request. Does not: make it; with another transaction id it is another call.

use std::time::Duration;

use weft_machine::{Time, rt};
use weft_wire::nfs3::Status;

use super::Error;

/// How long a server may be busy before that is an error.
pub(super) const PATIENCE: Duration = Duration::from_secs(180);
/// The pauses between attempts grow from here to there.
pub(super) const PAUSES: (Duration, Duration) = (Duration::from_millis(20), Duration::from_secs(2));

/// Of one request.
pub(super) struct Busy {
    until: Time,
    pause: Duration,
    told: bool,
}

impl Busy {
    pub fn new() -> Busy {
        Busy { until: rt::now() + PATIENCE, pause: PAUSES.0, told: false }
    }

    /// Whether a request that failed like this is to be made again; it waits before that is answered.
    pub async fn again(&mut self, e: &Error) -> bool {
        if !matches!(e, Error::Status(Status::JUKEBOX)) || rt::now() >= self.until {
            return false;
        }
        if self.pause >= PAUSES.1 && !self.told {
            self.told = true;
            tracing::warn!(
                "the server is busy, or waits for another client ({e}); waiting for {} s at most",
                PATIENCE.as_secs()
            );
        }
        rt::sleep(self.pause).await;
        self.pause = self.pause.saturating_mul(2).min(PAUSES.1);
        true
    }
}
