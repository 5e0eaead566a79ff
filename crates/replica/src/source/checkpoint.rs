//! Makes room in the log: flushes the volumes, and marks in each bitmap the records that its destination lacks.
//!
//! The order of the steps is the contract of `journal`: bitmaps, then the state with the new tail, then the space.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::Bytes;
use weft_machine::rt;

use super::{Core, OnFull, Source};
use crate::error::Error;
use crate::journal::Journal;
use crate::record::Header;
use crate::replay;
use crate::state::State;
use crate::status::Phase;

impl Source {
    /// Starts to make room. If that is under way, it is done once more afterwards: what has asked for it may have changed since it
    /// was looked at.
    pub(super) fn make_room(self: &Arc<Self>) {
        self.room_wanted.store(true, Ordering::SeqCst);
        // This only tests the gate: the task enters it.
        let free = self.checkpoints.try_enter().is_some();
        if free && self.core().halted.is_none() {
            let source = self.clone();
            rt::spawn(async move {
                while source.room_wanted.load(Ordering::SeqCst) {
                    let Some(_turn) = source.checkpoints.try_enter() else { return };
                    source.room_wanted.store(false, Ordering::SeqCst);
                    source.reclaim(false).await;
                }
            })
            .detach();
        }
    }

    /// Flushes the volumes and frees as much of the log as possible: through the last applied record, or as far as slow
    /// destinations allow.
    pub async fn checkpoint(&self) -> Result<(), Error> {
        let _turn = self.checkpoints.enter().await;
        self.reclaim(true).await;
        match &self.core().halted {
            Some(halt) => Err(Error::Halted(halt.why.clone())),
            None => Ok(()),
        }
    }

    /// Applies the log and flushes the volumes: nobody opens this side again.
    pub async fn apply_all(&self) -> Result<(), Error> {
        self.replay().await?;
        replay::flush(&self.side).await
    }

    async fn reclaim(&self, all: bool) {
        if let Err(e) = self.try_reclaim(all).await {
            self.halt(Phase::Failed, format!("no room could be made in the log: {e}"), None);
        }
    }

    async fn try_reclaim(&self, all: bool) -> Result<(), Error> {
        let (through, fill) = {
            let core = self.core();
            if !core.replayed {
                // The records of the log are not in the volumes yet.
                return Ok(());
            }
            let fill = self.log.fill();
            let applied = core.applied(&fill).min(fill.durable);
            // Records that every destination has go; of the others, as many as necessary.
            let needed = if all { 0 } else { self.log.excess() };
            (core.reach(self.config.on_full, applied, needed), fill)
        };
        if through < fill.first {
            return Ok(());
        }
        replay::flush(&self.side).await?;
        let _turn = self.journal.gate.enter().await;
        let now = self.side.wall.now_ms();
        self.handle(|core| core.mark_missing(through, now, |from, to| self.log.headers(from, to)));
        self.write_bitmaps().await?;
        let tail = self.log.tail_after(through);
        let state = self.handle(|core| {
            core.state.tail = tail;
            core.state.clone()
        });
        self.journal.write_state(state).await?;
        self.log.free_through(through);
        self.handle(Core::make_way);
        Ok(())
    }

    /// Makes the bitmaps durable. The caller is in the journal's gate.
    pub(super) async fn write_bitmaps(&self) -> Result<(), Error> {
        let mut unwritten = Unwritten { source: self, pages: Vec::new() };
        let pages: Vec<(u64, Bytes)> = self.handle(|core| {
            let Core { state, peers, .. } = core;
            let mut pages = Vec::new();
            for (n, peer) in peers.iter_mut().enumerate() {
                for (member, map) in peer.iter_mut().flat_map(|peer| peer.maps.iter_mut().enumerate()) {
                    for page in map.take_stale() {
                        pages.push(Journal::page(state, n, member, page, map));
                        unwritten.pages.push((n, member, page));
                    }
                }
            }
            pages
        });
        self.journal.write_pages(pages).await?;
        unwritten.pages.clear();
        Ok(())
    }

    /// Changes the state and makes it durable.
    pub(super) async fn persist(&self, change: impl FnOnce(&mut State)) -> Result<(), Error> {
        let _turn = self.journal.gate.enter().await;
        let state = self.handle(|core| {
            change(&mut core.state);
            core.state.clone()
        });
        self.write_state(state).await
    }

    /// Makes a state durable. The caller is in the journal's gate.
    pub(super) async fn write_state(&self, state: State) -> Result<(), Error> {
        let written = self.journal.write_state(state).await;
        if let Err(e) = &written {
            self.halt(Phase::Failed, format!("the journal has failed: {e}"), None);
        }
        written
    }

    /// Makes bitmaps durable.
    pub(super) async fn persist_bitmaps(&self) -> Result<(), Error> {
        let _turn = self.journal.gate.enter().await;
        let written = self.write_bitmaps().await;
        if let Err(e) = &written {
            self.halt(Phase::Failed, format!("the journal has failed: {e}"), None);
        }
        written
    }
}

/// Pages of bitmaps that are being written. If the caller is dropped before the end, they are stale again.
struct Unwritten<'a> {
    source: &'a Source,
    pages: Vec<(usize, usize, u64)>,
}

impl Drop for Unwritten<'_> {
    fn drop(&mut self) {
        if self.pages.is_empty() {
            return;
        }
        self.source.release(|core| {
            for (n, member, page) in &self.pages {
                if let Ok((partner, _)) = core.peer_mut(*n)
                    && let Some(map) = partner.maps.get_mut(*member)
                {
                    map.give_back_stale(*page);
                }
            }
        });
    }
}

impl Core {
    /// Through which record the log can be freed: those that all destinations have, or as many as needed, if they are
    /// applied and no destination that has to be waited for lacks them.
    fn reach(&self, on_full: OnFull, applied: u64, needed: u64) -> u64 {
        let peers = || self.peers.iter().flatten();
        let common = peers().map(|p| p.acked).fold(applied, u64::min);
        let awaited = peers().filter(|p| p.connected && on_full == OnFull::Slow).map(|p| p.acked);
        common.max(awaited.fold(applied.min(needed), u64::min))
    }

    /// Marks the records that destinations lack and that are about to leave the log.
    fn mark_missing(&mut self, through: u64, now_ms: u64, headers: impl Fn(u64, u64) -> Vec<Header>) {
        for (partner, state) in self.peers.iter_mut().zip(&mut self.state.peers) {
            let (Some(partner), Some(state)) = (partner, state) else { continue };
            for header in headers(partner.acked.saturating_add(1), through) {
                if let Some(map) = partner.maps.get_mut(usize::from(header.member)) {
                    map.mark(header.offset, header.range_len());
                }
            }
            state.covered = state.covered.max(partner.acked.min(through));
            if partner.connected && partner.acked < through {
                partner.must_begin_again(now_ms);
            }
        }
    }
}
