//! Decides how many receive buffers a responder keeps posted: few for an idle client, as many as it uses for a busy
//! one.
//!
//! RFC 8166 3.3.1: a grant is backed by posted receives, and a requester has one credit before its first reply. RFC
//! 8167 4.2: replies to the responder's own calls have their own receives. This file keeps the counts; the driver
//! posts. Each received message's buffer, or another one, is posted again before anything else happens.

use weft_machine::meter::{Events, Level};

/// The credits that the clients of open connections hold, over all connections of the process.
pub static CREDITS_GRANTED: Level = Level::new();
/// How often a client had used its last credit, so that its next call had to wait for a reply.
pub static CREDITS_EXHAUSTED: Events = Events::new();

/// The most calls that a server makes to its client at a time: this many buffers are posted for replies.
pub(super) const REVERSE_CREDITS: u32 = 16;
/// Receives of a client that has not called yet: 16 KiB at the default size, and enough for a client that makes one
/// call at a time.
pub(super) const FIRST_RECEIVES: u32 = 4;

/// The counts.
#[derive(Debug)]
pub(super) struct Receives {
    /// The most credits granted.
    most: u32,
    /// Receives for calls that should be posted; at most `most`.
    goal: u32,
    /// Receives for calls that are posted, and so the grant; at least 1.
    calls: u32,
    /// Receives for replies: how many should be posted, and how many are.
    replies: (u32, u32),
    /// Whether the client has no credit left.
    is_exhausted: bool,
}

impl Drop for Receives {
    fn drop(&mut self) {
        CREDITS_GRANTED.remove(self.calls.into());
    }
}

impl Receives {
    /// [`Receives::first`] receives are already posted.
    pub(super) fn new(most: u32) -> Receives {
        let first = Receives::first(most);
        CREDITS_GRANTED.add(first.into());
        Receives { most, goal: first, calls: first, replies: (0, 0), is_exhausted: false }
    }

    /// Receives to post before the client can call.
    pub(super) fn first(most: u32) -> u32 {
        FIRST_RECEIVES.clamp(1, most.max(1))
    }

    /// Receives to post now; fewer may be posted while memory is short.
    pub(super) fn wanted(&self) -> u32 {
        self.calls_missing().saturating_add(self.replies_missing())
    }

    fn calls_missing(&self) -> u32 {
        self.goal.saturating_sub(self.calls)
    }

    fn replies_missing(&self) -> u32 {
        self.replies.0.saturating_sub(self.replies.1)
    }

    /// Whether some of them are needed, and not only for speed.
    pub(super) fn needed(&self) -> bool {
        self.replies.0 > self.replies.1
    }

    /// `n` of [`Receives::wanted`] were posted.
    pub(super) fn posted(&mut self, n: u32) {
        let replies = n.min(self.replies_missing());
        self.replies.1 = self.replies.1.saturating_add(replies);
        let calls = n.saturating_sub(replies).min(self.calls_missing());
        self.calls = self.calls.saturating_add(calls);
        CREDITS_GRANTED.add(calls.into());
    }

    /// The credits to grant with the next reply.
    pub(super) fn granted(&self) -> u32 {
        self.calls
    }

    /// Notes that `unanswered` calls have no reply yet: a client that uses half of its credits gets twice as many.
    pub(super) fn used(&mut self, unanswered: u32) {
        let is_exhausted = unanswered >= self.calls;
        if is_exhausted && !std::mem::replace(&mut self.is_exhausted, is_exhausted) {
            CREDITS_EXHAUSTED.count();
        }
        if unanswered.saturating_mul(2) >= self.calls && self.calls == self.goal {
            self.goal = self.goal.saturating_mul(2).min(self.most);
        }
    }

    /// `unanswered` calls have no reply yet, because one was answered.
    pub(super) fn answered(&mut self, unanswered: u32) {
        self.is_exhausted &= unanswered >= self.calls;
    }

    /// The server wants to call its client.
    pub(super) fn call_back(&mut self) {
        self.replies.0 = REVERSE_CREDITS;
    }

    /// Calls to the client that may be outstanding now.
    pub(super) fn replies(&self) -> u32 {
        self.replies.1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_idle_client_holds_little_and_a_busy_one_what_it_uses() {
        let mut receives = Receives::new(64);
        assert_eq!((receives.granted(), receives.wanted()), (4, 0));
        receives.used(1);
        assert_eq!(receives.wanted(), 0, "one at a time is no reason");
        for granted in [4, 8, 16, 32] {
            receives.used(granted);
            assert_eq!(
                (receives.granted(), receives.wanted()),
                (granted, granted),
                "granted when it is posted"
            );
            receives.used(granted);
            assert_eq!(receives.wanted(), granted, "one step at a time");
            receives.posted(granted);
        }
        receives.used(64);
        assert_eq!((receives.granted(), receives.wanted()), (64, 0));
    }

    /// Other tests of this process count, too, so only differences of one's own are exact.
    #[test]
    fn a_client_without_credit_is_counted_once_until_it_has_one_again() {
        let mut receives = Receives::new(4);
        let before = CREDITS_EXHAUSTED.total();
        let mut exhausted = |unanswered: u32| {
            receives.used(unanswered);
            receives.is_exhausted
        };
        assert_eq!([1, 3, 4, 5].map(&mut exhausted), [false, false, true, true]);
        receives.answered(4);
        assert!(receives.is_exhausted, "one too many is answered");
        receives.answered(3);
        assert!(!receives.is_exhausted);
        receives.used(4);
        assert!(CREDITS_EXHAUSTED.total() >= before + 2);
    }

    #[test]
    fn the_credits_of_open_connections_are_added_up() {
        let before = CREDITS_GRANTED.now();
        let all: Vec<Receives> = (0..1000).map(|_| Receives::new(64)).collect();
        // Tests beside this one open and close a few connections.
        assert!(CREDITS_GRANTED.now().abs_diff(before + 4000) < 1000);
        drop(all);
        assert!(CREDITS_GRANTED.now().abs_diff(before) < 1000);
    }

    #[test]
    fn replies_have_receives_of_their_own() {
        let mut receives = Receives::new(1);
        assert_eq!((receives.granted(), receives.replies(), receives.needed()), (1, 0, false));
        receives.call_back();
        assert_eq!((receives.wanted(), receives.needed()), (16, true));
        receives.posted(10);
        assert_eq!((receives.granted(), receives.replies(), receives.wanted()), (1, 10, 6));
        receives.posted(6);
        assert_eq!((receives.granted(), receives.replies(), receives.needed()), (1, 16, false));
    }
}
