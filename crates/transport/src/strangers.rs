//! Limits for peers that a server has not identified yet.
//!
//! Anybody can connect, so the memory of a connection before its log-on (SMB) or its first call (RPC, which has no
//! log-on) comes from a separate budget, grows only as bytes arrive, and has a time limit. The protocol decides when a
//! peer is identified ([`crate::Channel::authenticated`]).

use std::sync::Arc;
use std::time::Duration;

use weft_machine::{Pool, Time};

use crate::arriving::Arriving;

/// Longest message of a peer before it has logged on over SMB: NEGOTIATE and SESSION_SETUP with a Kerberos ticket
/// (itself limited to 64 KiB, [MS-KILE]) fit, and a flood of them stays small.
pub const LOGON_MESSAGE: usize = 64 << 10;
/// Time limit for the log-on of a peer over SMB: tickets come from elsewhere, and failed attempts are delayed.
pub const LOGON: Duration = Duration::from_secs(120);
/// Time limit for the first call of a peer over RPC: a client connects because it has one.
pub const FIRST_CALL: Duration = Duration::from_secs(30);
/// Period over which the rate of a partial message is measured, before the peer is identified.
const STRANGER_WINDOW: Duration = Duration::from_secs(10);
/// The same for an identified peer: network failures of this length are tolerated.
const KNOWN_WINDOW: Duration = Duration::from_secs(60);
/// Lowest rate of a partial message, in bytes per second: a modem's. An honest peer sends a message at once and is slow
/// only if its network is; a slower one occupies our memory for nothing.
const MIN_RATE: u64 = 4 << 10;
/// How often deadlines are checked while there is one.
pub(crate) const TICK: Duration = Duration::from_secs(5);

/// The terms for peers that are not identified yet, and the memory for their messages afterwards.
#[derive(Clone, Debug)]
pub struct Strangers {
    /// The source of their buffers.
    pub pool: Pool,
    /// The source of buffers for their messages once they are identified.
    pub identified: Pool,
    /// What they hold of it for messages that have not arrived in full.
    pub arriving: Arc<Arriving>,
    /// Longest message in bytes.
    pub max_message: usize,
    /// How long they may remain unidentified.
    pub limit: Duration,
}

/// The state of a receiver when its deadlines are checked.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Progress {
    /// The time limit, while the peer is a stranger.
    pub stranger: Option<Duration>,
    /// Part of a message has arrived, and we wait for the remainder.
    pub waits_inside: bool,
    /// Bytes received so far.
    pub bytes: u64,
    /// Messages received so far.
    pub messages: u64,
}

/// The deadlines of one connection.
#[derive(Debug)]
pub(crate) struct Deadlines {
    born: Time,
    /// Since when a message is incomplete, and what had been received by then.
    slow: Option<(Time, Progress)>,
}

impl Deadlines {
    pub fn new(now: Time) -> Deadlines {
        Deadlines { born: now, slow: None }
    }

    /// Why the connection must end, if it must.
    pub fn check(&mut self, now: Time, progress: Progress) -> Option<&'static str> {
        if progress.stranger.is_some_and(|limit| now.since(self.born) >= limit) {
            return Some("a log-on or a first call");
        }
        if !progress.waits_inside {
            self.slow = None;
            return None;
        }
        let (since, before) = match self.slow {
            Some((since, before)) if before.messages == progress.messages => (since, before),
            _ => {
                self.slow = Some((now, progress));
                return None;
            }
        };
        let window = if progress.stranger.is_some() { STRANGER_WINDOW } else { KNOWN_WINDOW };
        if now.since(since) < window {
            return None;
        }
        self.slow = Some((now, progress));
        let came = progress.bytes.saturating_sub(before.bytes);
        (came < MIN_RATE.saturating_mul(window.as_secs())).then_some("the remainder of a message")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(secs: u64) -> Time {
        Time::ZERO + Duration::from_secs(secs)
    }

    fn inside(bytes: u64) -> Progress {
        Progress { stranger: None, waits_inside: true, bytes, messages: 0 }
    }

    #[test]
    fn a_stranger_has_so_long_and_a_known_peer_for_ever() {
        let mut deadlines = Deadlines::new(at(0));
        let idle = Progress { stranger: Some(FIRST_CALL), waits_inside: false, bytes: 0, messages: 0 };
        assert_eq!(deadlines.check(at(29), idle), None);
        assert!(deadlines.check(at(30), idle).is_some());
        assert_eq!(deadlines.check(at(1 << 30), Progress { stranger: None, ..idle }), None);
    }

    #[test]
    fn a_begun_message_keeps_a_rate() {
        let mut deadlines = Deadlines::new(at(0));
        let rate = MIN_RATE * KNOWN_WINDOW.as_secs();
        assert_eq!(deadlines.check(at(5), inside(1)), None);
        assert_eq!(deadlines.check(at(64), inside(1)), None, "not yet");
        assert_eq!(deadlines.check(at(65), inside(1 + rate)), None, "fast enough");
        assert!(deadlines.check(at(125), inside(rate + rate)).is_some(), "a byte too slow");
        // The period starts again with another message, and after a wait for our own memory.
        let mut deadlines = Deadlines::new(at(0));
        assert_eq!(deadlines.check(at(5), inside(1)), None);
        assert_eq!(deadlines.check(at(70), Progress { messages: 1, ..inside(2) }), None);
        assert_eq!(deadlines.check(at(71), Progress { waits_inside: false, ..inside(2) }), None);
        assert_eq!(deadlines.check(at(200), Progress { messages: 1, ..inside(2) }), None);
    }

    #[test]
    fn strangers_have_a_shorter_window() {
        let mut deadlines = Deadlines::new(at(0));
        let stranger = Progress { stranger: Some(LOGON), ..inside(9) };
        assert_eq!(deadlines.check(at(5), stranger), None);
        assert_eq!(deadlines.check(at(10), stranger), None);
        assert!(deadlines.check(at(15), stranger).is_some());
    }
}
