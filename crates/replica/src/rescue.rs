//! Reopens a source whose log is damaged, or a side whose journal is lost, after an administrator has decided which
//! side counts (docs/replication.md, "Damage"). Nobody may have the journal open.

use weft_wire::repl::MAX_SEQUENCE;
use weft_wire::repl::control::Era;

use crate::bitmap::Bitmap;
use crate::destination::MAX_EPOCHS_AHEAD;
use crate::error::Error;
use crate::journal::{Format, Journal, Side, erase, look};
use crate::partner::Partner;
use crate::replay::{self, Opened};
use crate::state::{MAX_PEERS, PeerState, State, Tail};
use crate::status::{Mode, Role};

const WHOLE: Error = Error::State("its log is not damaged: there is nothing to decide");

/// The remainder of this source counts: all readable records are applied, and an era of this random tag begins behind
/// the last one before the damage. Destinations are compared as a whole, and whatever differs there is overwritten.
/// Opened again, this side is a source.
pub async fn salvage(side: &Side, tag: u64) -> Result<State, Error> {
    // A stop in the middle is harmless: the next call starts over.
    let opened = replay::open(side, Role::Source, 0).await?;
    let damage = opened.damage.ok_or(WHOLE)?;
    let last = replay::salvage(side, &opened, damage).await?;
    replay::flush(side).await?;
    let Opened { mut state, journal, log, .. } = opened;
    tracing::warn!(
        "group {}: its log is damaged, and records {} to {last} are given up, as far as they could not be read; its destinations are \
         compared as a whole",
        side.names.group(),
        damage.first
    );
    let after = damage.first.saturating_sub(1);
    let mut pages = Vec::new();
    for (n, peer) in state.peers.iter().enumerate().filter(|(_, peer)| peer.is_some()) {
        debug_assert!(peer.as_ref().is_some_and(|peer| peer.covered <= after));
        for (number, member) in state.members.iter().enumerate() {
            let mut map = Bitmap::new(member.size, member.granule);
            map.mark_all();
            pages.extend((0..map.pages()).map(|page| Journal::page(&state, n, number, page, &map)));
        }
    }
    journal.write_pages(pages).await?;
    for peer in state.peers.iter_mut().flatten() {
        // No destination is known to be equal.
        peer.unprotected = peer.mode == Mode::Synchronous;
    }
    let epoch = state.promised.epoch.max(state.era().epoch).saturating_add(1);
    let era = Era { epoch, tag, after };
    state.push_era(era);
    state.promised = era;
    state.tail = Tail { sequence: damage.first, life: state.life, ..log.tail_after(after) };
    journal.write_state(state.clone()).await?;
    state.generation = journal.generation();
    Ok(state)
}

/// Formats a new journal in place of a lost one. If this side counts, it is a source of what its volumes hold: its era
/// is later than `known`, and than any other is likely to be, and its destinations are compared as a whole. Else it is
/// a destination, and is compared as a whole.
///
/// The journal is of no use before its final state, which is written last, so an interrupted call can be repeated.
pub async fn renew(
    side: &Side,
    new: &Format,
    partners: &[Partner],
    keep_here: bool,
    known: u64,
) -> Result<(), Error> {
    let role = if keep_here { Role::Source } else { Role::Destination };
    let mut state = erase(&side.journal, &Format { role, ..new.clone() }).await?;
    let journal = Journal::new(side, &state);
    if !keep_here {
        (state.holds, state.gave_up, state.damaged) = (true, true, true);
        return journal.write_state(state).await;
    }
    let epoch = later_epoch(known, side.wall.now_ms() / 1000);
    let era = Era { epoch, tag: new.tag, after: 0 };
    (state.eras, state.promised) = (vec![era], era);
    let peer = |partner: &Partner| PeerState {
        name: partner.name.clone(),
        mode: partner.mode,
        // Its content is unknown: everything is compared, and what differs is overwritten.
        seeded: true,
        copied: false,
        unprotected: false,
        suspended: false,
        may_be_gone: true,
        covered: 0,
        verified: None,
    };
    state.peers = partners.iter().take(MAX_PEERS).map(|partner| Some(peer(partner))).collect();
    let mut pages = Vec::new();
    for n in 0..state.peers.len() {
        for (number, member) in state.members.iter().enumerate() {
            let mut map = Bitmap::new(member.size, member.granule);
            map.mark_all();
            pages.extend((0..map.pages()).map(|page| Journal::page(&state, n, number, page, &map)));
        }
    }
    journal.write_pages(pages).await?;
    journal.write_state(state).await
}

/// An epoch that is later than any other is likely to be. Epochs count sources, and their number may be unknown here;
/// the clock in seconds grows faster, unless it is set back. A clock that is far ahead is capped: destinations refuse
/// an epoch more than [`MAX_EPOCHS_AHEAD`] past their own, and know at least `known` if they were asked.
fn later_epoch(known: u64, seconds: u64) -> u64 {
    let most = known.saturating_add(MAX_EPOCHS_AHEAD);
    known.max(seconds).saturating_add(1).min(most).min(MAX_SEQUENCE)
}

/// A destination counts, which has been or will be promoted: this side becomes a destination that is compared as a
/// whole.
pub async fn give_up(side: &Side) -> Result<State, Error> {
    let damaged = replay::open(side, Role::Source, 0).await?.damage;
    damaged.ok_or(WHOLE)?;
    let mut state = look(&side.journal, &side.pool).await?;
    let journal = Journal::new(side, &state);
    state.role = Role::Destination;
    (state.gave_up, state.consistent, state.damaged) = (true, false, true);
    journal.write_state(state.clone()).await?;
    state.generation = journal.generation();
    Ok(state)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clock_that_is_far_ahead_makes_no_epoch_that_every_destination_refuses() {
        let (today, year_2125) = (1_795_000_000, 4_949_112_177);
        assert_eq!(later_epoch(1, today), today + 1);
        for known in [0, 1, 77, today] {
            for seconds in [0, today, year_2125, u64::MAX] {
                let epoch = later_epoch(known, seconds);
                assert!(epoch > known && epoch - known <= MAX_EPOCHS_AHEAD, "{known}, {seconds}: {epoch}");
            }
        }
        assert_eq!(later_epoch(MAX_SEQUENCE, u64::MAX), MAX_SEQUENCE);
    }
}
