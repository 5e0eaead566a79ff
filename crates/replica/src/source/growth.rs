//! Grows the volumes of a group while they are in use.
//!
//! The volumes themselves are made longer first, on both sides; the additional bytes are not part of the group yet. The
//! size in the state counts, and is durable before users see it. A destination reports the size of its copy at every
//! hello, and the bytes behind that are marked then, so the source remembers nothing about it here.

use bytes::Bytes;

use super::{Core, Source};
use crate::bitmap::PAGE_BYTES;
use crate::error::Error;
use crate::journal::Journal;
use crate::state::{Member, State};
use crate::status::Phase;

impl Source {
    /// Gives the volumes these sizes, in the group's order, none of them smaller than before. Writes go on meanwhile.
    /// Each destination is resynchronised at once. One whose volumes are too short refuses until they are longer, so
    /// they should grow first.
    pub async fn grow(&self, sizes: &[u64]) -> Result<(), Error> {
        let _turn = self.journal.gate.enter().await;
        let old = {
            let core = self.core();
            self.may_grow(&core, sizes)?;
            core.state.clone()
        };
        let members: Vec<Member> = old
            .members
            .iter()
            .zip(sizes)
            .map(|(member, size)| member.resized(*size, old.layout.bitmap_bytes))
            .collect();
        // Sizes that users do not see yet are not done: an earlier call may have been dropped in the middle.
        if members == old.members && self.core().sizes == sizes {
            return Ok(());
        }
        self.grow_to(&old, members).await
    }

    async fn grow_to(&self, old: &State, members: Vec<Member>) -> Result<(), Error> {
        // The state defines how large the granules of a page are. A page whose granules become coarser is written as
        // all dirty first, which is safe before and after the new state.
        let both = old.members.iter().zip(&members).enumerate();
        let coarser: Vec<(usize, &Member)> = both
            .filter(|(_, (old, new))| old.granule != new.granule)
            .map(|(number, (old, _))| (number, old))
            .collect();
        let mut pages = Vec::new();
        for (n, _) in old.peers.iter().enumerate().filter(|(_, peer)| peer.is_some()) {
            for (number, member) in &coarser {
                let all = Bytes::from_static(&[0xff; PAGE_BYTES]);
                pages.extend((0..member.pages()).map(|page| {
                    let at = Journal::page_at(old, n, *number, page);
                    (at, all.clone())
                }));
            }
        }
        let failed = |e: Error| {
            self.halt(Phase::Failed, format!("the journal has failed: {e}"), None);
            e
        };
        self.journal.write_pages(pages).await.map_err(failed)?;
        let (state, sizes) = self.handle(|core| {
            let sizes: Vec<u64> = members.iter().map(|member| member.size).collect();
            // Meanwhile the roles may be exchanged, or the source closed.
            self.may_grow(core, &sizes)?;
            let Core { state, peers, .. } = core;
            state.members = members;
            for partner in peers.iter_mut().flatten() {
                for (map, member) in partner.maps.iter_mut().zip(&state.members) {
                    map.resize(member.size, member.granule);
                }
                // It is inconsistent until it has the new bytes, and its session has the old sizes.
                partner.consistent = false;
                partner.must_begin_again(self.side.wall.now_ms());
            }
            Ok::<_, Error>((state.clone(), sizes))
        })?;
        self.journal.write_state(state).await.map_err(failed)?;
        self.write_bitmaps().await.map_err(failed)?;
        self.handle(|core| core.sizes = sizes);
        Ok(())
    }

    fn may_grow(&self, core: &Core, sizes: &[u64]) -> Result<(), Error> {
        if let Some(halt) = &core.halted {
            return Err(Error::Halted(halt.why.clone()));
        }
        if core.quiet || core.given_up || core.closing {
            return Err(Error::State("the roles are being exchanged, or the source ends: try again later"));
        }
        if sizes.len() != core.state.members.len() {
            return Err(Error::Members(format!(
                "{} sizes for {} volumes",
                sizes.len(),
                core.state.members.len()
            )));
        }
        for ((member, size), block) in core.state.members.iter().zip(sizes).zip(&self.side.members) {
            if *size < member.size {
                return Err(Error::Limit(format!(
                    "a replicated volume cannot shrink from {} to {size} bytes: remove the replica first",
                    member.size
                )));
            }
            let there = block.geometry().size;
            if there < *size {
                return Err(Error::Limit(format!("the volume has {there} bytes, which is less than {size}")));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use futures_util::future::LocalBoxFuture;
    use weft_machine::{Pool, rt};
    use weft_store::Error as StoreError;
    use weft_store::block::{Block, BlockOp, Geometry, Medium, Outcome};
    use weft_store::volume::plain::Plain;

    use super::*;
    use crate::journal::{self, Format, MIN_LOG_BYTES, Names, Side, Wall};
    use crate::source::{Config, First, PeerConfig};
    use crate::status::{Mode, Role};

    /// A disk that nobody needs to read.
    #[derive(Debug)]
    struct Vast;

    impl Block for Vast {
        fn geometry(&self) -> Geometry {
            Geometry { size: 1 << 40, medium: Medium::File, preferred: 4096 }
        }

        fn submit(&self, op: BlockOp) -> LocalBoxFuture<'_, Result<Outcome, StoreError>> {
            assert!(matches!(op, BlockOp::Flush), "{op:?}");
            Box::pin(async { Ok(Outcome::Done) })
        }
    }

    /// A journal that takes so many more writes.
    #[derive(Debug)]
    struct Dying(Arc<Plain>, AtomicUsize);

    impl Block for Dying {
        fn geometry(&self) -> Geometry {
            self.0.geometry()
        }

        fn submit(&self, op: BlockOp) -> LocalBoxFuture<'_, Result<Outcome, StoreError>> {
            Box::pin(async move {
                let writes = matches!(op, BlockOp::Write { .. });
                let spent = |left: usize| left.checked_sub(1);
                if writes && self.1.fetch_update(Ordering::SeqCst, Ordering::SeqCst, spent).is_err() {
                    return Err(StoreError::Io(std::io::Error::other("it has died")));
                }
                self.0.submit(op).await
            })
        }
    }

    #[test]
    fn wherever_it_ends_no_dirty_range_is_forgotten_though_granules_become_coarser() {
        // As much as one page of bits names, and then twice that.
        const OLD: u64 = 1 << 30;
        const NEW: u64 = 3 << 30;
        let dirty = OLD - (1 << 20)..OLD - (1 << 20) + 4096;
        rt::block_on(async {
            for left in 0.. {
                let format = Format {
                    partnership: [7; 16],
                    role: Role::Source,
                    tag: 1,
                    sizes: vec![OLD],
                    log_bytes: MIN_LOG_BYTES,
                };
                let bytes = journal::bytes(&format).unwrap();
                let plain = Arc::new(Plain::in_memory(bytes).unwrap());
                let block: Arc<dyn Block> = plain.clone();
                let mut state = journal::format(&block, &format).await.unwrap();
                // No room for more bits.
                state.layout.bitmap_bytes = PAGE_BYTES as u64;
                let dying = Arc::new(Dying(plain, AtomicUsize::new(usize::MAX)));
                let side = Side {
                    journal: dying.clone(),
                    members: vec![Arc::new(Vast)],
                    pool: Pool::new(1 << 20),
                    log_memory: Default::default(),
                    wall: Wall::new(0),
                    names: Names::new("db", []),
                    draw: 1,
                };
                Journal::new(&side, &state).write_state(state).await.unwrap();
                let source = Source::open(side.clone(), Config::default()).await.unwrap();
                let peer =
                    PeerConfig { name: "copy".into(), mode: Mode::Asynchronous, first: First::Partner };
                source.add_peer(peer).await.unwrap();
                source.on_peer(0, |copy, _| copy.maps[0].mark(dirty.start, dirty.end - dirty.start)).unwrap();
                source.persist_bitmaps().await.unwrap();
                dying.1.store(left, Ordering::SeqCst);
                let grown = source.grow(&[NEW]).await;
                let shown = source.size(0);
                drop(source);
                // The host comes back, with a journal that works.
                dying.1.store(usize::MAX, Ordering::SeqCst);
                let state = journal::look(&side.journal, &side.pool).await.unwrap();
                assert!(shown <= state.members[0].size, "{left}: {shown} was shown, and is forgotten");
                let maps = Journal::new(&side, &state).bitmaps(&state, 0).await;
                let named = maps[0].ranges(0, usize::MAX).0;
                let is_named =
                    named.iter().any(|(offset, len)| *offset <= dirty.start && dirty.end <= offset + len);
                assert!(is_named, "{left}: {dirty:?} is not in {named:?} ({:?})", state.members);
                if grown.is_ok() {
                    assert_eq!((state.members[0].size, shown), (NEW, NEW));
                    assert!(state.members[0].granule > old_granule() && maps[0].bytes() <= 1 << 20);
                    assert!(left >= 3, "pages, the state, and the pages again");
                    return;
                }
            }
        })
        .unwrap();
    }

    fn old_granule() -> u64 {
        crate::bitmap::layout(1 << 30, PAGE_BYTES as u64).0
    }
}
