//! What the loops of the destinations and administrators wait for: whatever in the core of a source changes rarely, and
//! belongs to no single write.

use super::Core;
use crate::state::MAX_PEERS;
use crate::status::{Mode, Phase};

/// Everything in the core that something waits for and that is not in [`Waiting`](super::waiting::Waiting).
#[derive(Clone, Copy, PartialEq, Default, Debug)]
pub(super) struct Outline {
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

#[derive(Clone, Copy, PartialEq, Debug)]
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
    pub fn of(core: &Core) -> Outline {
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

    /// What decides which records may be sent to whom: the signal of the log tells of a change.
    pub fn sends(&self) -> (bool, [Option<bool>; MAX_PEERS]) {
        (self.ahead, self.peers.map(|peer| peer.map(|peer| peer.is_awaited)))
    }
}
