//! What a server grants peers that have not shown yet who they are.
//!
//! Everybody can connect, so what a connection takes before a log-on (SMB) or before its first call (RPC, which has no
//! log-on) comes out of a budget of its own, grows only as bytes arrive, and ends by itself.
//! Does not: decide who is known; the protocol says so ([`crate::Channel::authenticated`]).

use std::time::Duration;

use weft_machine::{Pool, Time};

/// Longest message of a peer before it has logged on over SMB: NEGOTIATE and SESSION_SETUP with a Kerberos ticket (which has
/// a limit of 64 KiB itself, [MS-KILE]) fit, and a flood of them stays small.
pub const LOGON_MESSAGE: usize = 64 << 10;
/// How long a peer may take to log on over SMB: tickets come from elsewhere, and failed attempts are delayed.
pub const LOGON: Duration = Duration::from_secs(120);
/// How long a peer may take to send its first call over RPC: a client connects because it has one.
pub const FIRST_CALL: Duration = Duration::from_secs(30);
/// Time over which the rate of a begun message is looked at, before the peer is known.
const STRANGER_WINDOW: Duration = Duration::from_secs(10);
/// The same of a peer that is known: a network that fails for so long is borne.
const KNOWN_WINDOW: Duration = Duration::from_secs(60);
/// Least rate of a begun message, bytes a second: a modem's. An honest peer sends a message at once and is only slower where
/// its network is; one that is slower than this keeps memory of ours for nothing.
const MIN_RATE: u64 = 4 << 10;
/// How often deadlines are looked at while there is one.
pub(crate) const TICK: Duration = Duration::from_secs(5);

/// The terms of peers that nobody knows yet.
#[derive(Clone, Debug)]
pub struct Strangers {
    /// Where their buffers come from.
    pub pool: Pool,
    /// Longest message in bytes.
    pub max_message: usize,
    /// How long they may remain strangers.
    pub limit: Duration,
}

/// Where a receiver stands, when its deadlines are looked at.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Progress {
    /// The terms while the peer is a stranger.
    pub stranger: Option<Duration>,
    /// Part of a message is here, and the rest is waited for.
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
    /// Since when a message is inside, and what had been received by then.
    slow: Option<(Time, Progress)>,
}

impl Deadlines {
    pub fn new(now: Time) -> Deadlines {
        Deadlines { born: now, slow: None }
    }

    /// Why the connection is to end, where it is.
    pub fn look(&mut self, now: Time, progress: Progress) -> Option<&'static str> {
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
        (came < MIN_RATE.saturating_mul(window.as_secs())).then_some("the rest of a begun message")
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
        assert_eq!(deadlines.look(at(29), idle), None);
        assert!(deadlines.look(at(30), idle).is_some());
        assert_eq!(deadlines.look(at(1 << 30), Progress { stranger: None, ..idle }), None);
    }

    #[test]
    fn a_begun_message_keeps_a_rate() {
        let mut deadlines = Deadlines::new(at(0));
        let rate = MIN_RATE * KNOWN_WINDOW.as_secs();
        assert_eq!(deadlines.look(at(5), inside(1)), None);
        assert_eq!(deadlines.look(at(64), inside(1)), None, "not yet");
        assert_eq!(deadlines.look(at(65), inside(1 + rate)), None, "fast enough");
        assert!(deadlines.look(at(125), inside(rate + rate)).is_some(), "a byte too slow");
        // Another message begins anew, and so does one behind a wait of our own.
        let mut deadlines = Deadlines::new(at(0));
        assert_eq!(deadlines.look(at(5), inside(1)), None);
        assert_eq!(deadlines.look(at(70), Progress { messages: 1, ..inside(2) }), None);
        assert_eq!(deadlines.look(at(71), Progress { waits_inside: false, ..inside(2) }), None);
        assert_eq!(deadlines.look(at(200), Progress { messages: 1, ..inside(2) }), None);
    }

    #[test]
    fn strangers_have_a_shorter_window() {
        let mut deadlines = Deadlines::new(at(0));
        let stranger = Progress { stranger: Some(LOGON), ..inside(9) };
        assert_eq!(deadlines.look(at(5), stranger), None);
        assert_eq!(deadlines.look(at(10), stranger), None);
        assert!(deadlines.look(at(15), stranger).is_some());
    }
}
