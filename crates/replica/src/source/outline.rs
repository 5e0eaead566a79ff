//! What the loops of the destinations and administrators wait for: whatever in the core of a source changes rarely, and
//! belongs to no single write.

use super::{Core, Partner};
use crate::state::{MAX_PEERS, PeerState};
use crate::status::{Mode, Phase};

/// Everything in the core that something waits for and that is not in [`Waiting`](super::waiting::Waiting).
#[derive(PartialEq, Default, Debug)]
pub(super) struct Outline {
    whole: WholeOutline,
    peers: [Option<PeerOutline>; MAX_PEERS],
}

/// What is of no single destination.
#[derive(Clone, Copy, PartialEq, Default, Debug)]
struct WholeOutline {
    halted: Option<Phase>,
    given_up: bool,
    closing: bool,
    quiet: bool,
    replayed: bool,
    ahead: bool,
    /// Nothing is on its way any more, which only those wait for who have stopped the writes.
    is_idle: bool,
}

#[derive(Clone, Copy, PartialEq, Debug)]
struct PeerOutline {
    /// The last record that it has acknowledged, while somebody waits for that: while it is copied to or compared, the roles
    /// are exchanged, or a write waits for room in the log. At all other times each write would be news.
    acked: Option<u64>,
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

/// What has changed.
#[derive(Debug)]
pub(super) struct News {
    /// What decides which records may be sent to whom: the signal of the log tells of it.
    pub sends: bool,
}

impl WholeOutline {
    fn of(core: &Core) -> WholeOutline {
        WholeOutline {
            halted: core.halted.as_ref().map(|halt| halt.phase),
            given_up: core.given_up,
            closing: core.closing,
            quiet: core.quiet,
            replayed: core.replayed,
            ahead: core.ahead,
            is_idle: (core.quiet || core.halted.is_some()) && core.active.is_empty(),
        }
    }
}

impl PeerOutline {
    fn of(core: &Core, partner: &Partner, state: &PeerState) -> PeerOutline {
        let is_caught_up_with = !partner.consistent || partner.comparing || core.quiet || core.has_unplaced();
        PeerOutline {
            acked: is_caught_up_with.then_some(partner.acked),
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
        }
    }
}

impl Outline {
    pub fn of(core: &Core) -> Outline {
        let mut outline = Outline::default();
        outline.renew(core);
        outline
    }

    /// Brings it up to date, and says what has changed, if anything has.
    pub fn renew(&mut self, core: &Core) -> Option<News> {
        let whole = WholeOutline::of(core);
        let mut is_news = self.whole != whole;
        let mut sends = self.whole.ahead != whole.ahead;
        self.whole = whole;
        for (n, outline) in self.peers.iter_mut().enumerate() {
            let peer = core.peer(n).ok().map(|(partner, state)| PeerOutline::of(core, partner, state));
            if *outline != peer {
                is_news = true;
                sends |= outline.map(|peer| peer.is_awaited) != peer.map(|peer| peer.is_awaited);
                *outline = peer;
            }
        }
        is_news.then_some(News { sends })
    }
}
