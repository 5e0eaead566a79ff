//! Test failover: writable snapshots of the volumes at a point between two records, while replication goes on.
//!
//! The caller owns the snapshots. They do not survive a restart: see [`crate::overlay`].

use std::sync::Arc;

use weft_store::block::{Block, BlockOp};

use super::Destination;
use crate::error::Error;
use crate::overlay::Overlay;
use crate::state::Member;

impl Destination {
    /// Writable snapshots of all volumes at one point of the source's history, behind every record that is logged at
    /// the call. Differences are kept in `stores`, one for each volume and as long as it, which must read as zeros. The
    /// snapshots end when they are dropped, or when a store fails: [`Destination::status`] reports that.
    pub async fn snapshot(&self, stores: Vec<Arc<dyn Block>>) -> Result<Vec<Arc<dyn Block>>, Error> {
        if stores.len() != self.side.members.len() {
            return Err(Error::Members(format!(
                "{} stores for {} volumes",
                stores.len(),
                self.side.members.len()
            )));
        }
        // Nothing is applied while this is held.
        let _turn = loop {
            self.drain().await?;
            let turn = self.volumes.enter().await;
            let core = self.core();
            if core.applied >= core.whole {
                break turn;
            }
            // A resync has ended meanwhile, and its blocks may contain later writes than the applied records.
        };
        self.handle(|core| {
            if !core.state.consistent {
                return Err(Error::State(
                    "a resync is under way: the volumes here hold no state that the source ever had",
                ));
            }
            let too_short = |(store, member): (&Arc<dyn Block>, &Member)| store.geometry().size < member.size;
            if stores.iter().zip(&core.state.members).any(too_short) {
                return Err(Error::Members("a store is shorter than its volume".into()));
            }
            core.snapshots.retain(|snapshot| snapshot.strong_count() > 0);
            let mut blocks: Vec<Arc<dyn Block>> = Vec::with_capacity(stores.len());
            let sizes: Vec<u64> = core.state.members.iter().map(|member| member.size).collect();
            for (member, ((base, store), size)) in self.side.members.iter().zip(stores).zip(sizes).enumerate()
            {
                let pool = self.side.pool.clone();
                let what = self.side.names.volume(member);
                let overlay = Arc::new(Overlay::new(member as u16, what, base.clone(), store, size, pool));
                core.snapshots.push(Arc::downgrade(&overlay));
                blocks.push(overlay);
            }
            Ok(blocks)
        })
    }

    /// Preserves the old content in the snapshots before a volume changes.
    pub(super) async fn preserve(&self, member: u16, op: &BlockOp) {
        match op {
            BlockOp::Write { offset, data, .. } => {
                let len = data.iter().map(|bytes| bytes.len() as u64).sum();
                self.preserve_range(member, *offset, len).await;
            }
            BlockOp::WriteZeroes { offset, len, .. } => self.preserve_range(member, *offset, *len).await,
            _ => {}
        }
    }

    /// Preserves the old content of a range in the snapshots.
    pub(super) async fn preserve_range(&self, member: u16, offset: u64, len: u64) {
        let snapshots: Vec<Arc<Overlay>> =
            self.core().snapshots.iter().filter_map(std::sync::Weak::upgrade).collect();
        for snapshot in snapshots.iter().filter(|snapshot| snapshot.member() == member) {
            snapshot.preserve(offset, len).await;
        }
    }
}
