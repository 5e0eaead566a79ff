//! The one place where the core of a source changes: an event is applied, and what follows from it is derived from what
//! has changed.
//!
//! [`Owner::read`] gives a view that cannot change anything, so each change goes through [`Owner::handle`]. That
//! applies one event under the lock, wakes the writes whose condition has become true ([`Core::settle`]), finds out
//! whether something has changed that the loops of the destinations or an administrator wait for, and checks the
//! invariants. Whoever writes an event names nobody to be woken, and so forgets nobody.

use std::ops::Deref;
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::Core;
use super::waiting::Wakes;
use crate::state::MAX_PEERS;
use crate::status::{Mode, Phase};

/// Owns the core.
#[derive(Debug)]
pub(super) struct Owner(Mutex<Core>);

/// The core at one moment, to look at. Nothing changes as long as it lives, so it does not live across a wait.
pub(super) struct View<'a>(MutexGuard<'a, Core>);

impl Deref for View<'_> {
    type Target = Core;

    fn deref(&self) -> &Core {
        &self.0
    }
}

/// What follows from an event.
#[derive(Debug)]
#[must_use]
pub(super) struct Effects {
    /// Writes that go on.
    pub wakes: Wakes,
    /// Something has changed that the signal of the source tells of.
    pub is_news: bool,
    /// Other records may be sent, or to other destinations: the signal of the log tells of that.
    pub sends: bool,
}

impl Owner {
    pub fn new(core: Core) -> Owner {
        Owner(Mutex::new(core))
    }

    fn lock(&self) -> MutexGuard<'_, Core> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn read(&self) -> View<'_> {
        View(self.lock())
    }

    /// Applies one event. It neither waits nor calls back.
    pub fn handle<R>(&self, event: impl FnOnce(&mut Core) -> R) -> (R, Effects) {
        let mut core = self.lock();
        let before = Outline::of(&core);
        let result = event(&mut core);
        let after = Outline::of(&core);
        let is_news = before != after;
        let wakes = core.settle(is_news);
        #[cfg(debug_assertions)]
        core.check();
        (result, Effects { wakes, is_news, sends: before.sends() != after.sends() })
    }
}

/// Everything in the core that something waits for and that is not in [`Waiting`](super::waiting::Waiting).
#[derive(Clone, Copy, PartialEq, Default)]
struct Outline {
    halted: Option<Phase>,
    given_up: bool,
    closing: bool,
    quiet: bool,
    replayed: bool,
    ahead: bool,
    /// Nothing is on its way any more, which only those wait for who have stopped the writes.
    is_idle: bool,
    peers: [Option<PeerOutline>; MAX_PEERS],
}

#[derive(Clone, Copy, PartialEq)]
struct PeerOutline {
    acked: u64,
    commands: u64,
    is_awaited: bool,
    suspended: bool,
    connected: bool,
    consistent: bool,
    greeted: bool,
    lone: bool,
    again: bool,
    shipping: bool,
    comparing: bool,
    clean: bool,
}

impl Outline {
    fn of(core: &Core) -> Outline {
        let mut outline = Outline {
            halted: core.halted.as_ref().map(|halt| halt.phase),
            given_up: core.given_up,
            closing: core.closing,
            quiet: core.quiet,
            replayed: core.replayed,
            ahead: core.ahead,
            is_idle: (core.quiet || core.halted.is_some()) && core.active.is_empty(),
            peers: Default::default(),
        };
        let peers = core.peers.iter().zip(&core.state.peers);
        for (outline, peer) in outline.peers.iter_mut().zip(peers) {
            let (Some(partner), Some(state)) = peer else { continue };
            *outline = Some(PeerOutline {
                acked: partner.acked,
                commands: partner.commands_left,
                is_awaited: partner.is_awaited(state),
                suspended: state.suspended,
                connected: partner.connected,
                consistent: partner.consistent,
                greeted: partner.greeted,
                lone: partner.lone && state.mode == Mode::Synchronous,
                again: partner.again,
                shipping: partner.shipping,
                comparing: partner.comparing,
                clean: partner.is_clean(),
            });
        }
        outline
    }

    /// What decides which records may be sent to whom.
    fn sends(&self) -> (bool, [Option<bool>; MAX_PEERS]) {
        (self.ahead, self.peers.map(|peer| peer.map(|peer| peer.is_awaited)))
    }
}
