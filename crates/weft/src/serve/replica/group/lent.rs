//! Growth that is lent: the source is about to grow, and its volumes here have room for that before it does.
//!
//! Owns: what members had before, as long as the group has not grown. Does not: let the group grow (see [`weft_replica::group`]).

use std::collections::BTreeMap;
use std::sync::Arc;

use weft_machine::rt;
use weft_store::volume::{Before, Error as VolumeError, Store};

use super::{Group, lock};
use crate::serve::replica::{Member, setup};

impl Group {
    /// The source is about to grow: gives its volumes here room for that, as far as there is any, to all of them or to none.
    pub async fn lend(&self, sizes: &[u64]) -> Result<(), String> {
        if sizes.len() != self.members.len() {
            return Err("the number of volumes and that of their sizes differ".into());
        }
        self.keep_what_is_used();
        let lent = lock(&self.lent).clone();
        let members: Vec<Arc<Member>> = self.members.clone();
        let sizes = sizes.to_vec();
        let now = rt::blocking(move || lend_all(&members, &sizes, &lent)).await?;
        let mut lent = lock(&self.lent);
        now.into_iter().for_each(|(member, before)| {
            lent.entry(member).or_insert(before);
        });
        Ok(())
    }

    /// What the group has grown into is no longer to be given back.
    pub(super) fn keep_what_is_used(&self) {
        let mut lent = lock(&self.lent);
        match self.status() {
            Some(status) => lent
                .retain(|member, before| status.sizes.get(*member).is_some_and(|size| *size <= before.size)),
            // How long its volumes are for the group is not known.
            None => lent.clear(),
        }
    }

    /// Gives back what the group has not grown into. Nobody uses the volumes.
    pub(super) async fn give_back(&self) {
        let lent = std::mem::take(&mut *lock(&self.lent));
        let members = self.members.clone();
        rt::blocking(move || give_back(&members, lent)).await;
    }
}

/// Lets volumes grow, and tells what those had that did; where one cannot, none has. Blocks.
fn lend_all(
    members: &[Arc<Member>],
    sizes: &[u64],
    lent: &BTreeMap<usize, Before>,
) -> Result<BTreeMap<usize, Before>, String> {
    // What earlier growth was given for and is not used counts as free, and as taken again.
    let mut wanted: BTreeMap<Store, (u64, u64)> = BTreeMap::new();
    let mut longer = BTreeMap::new();
    for (i, (member, size)) in members.iter().zip(sizes).enumerate() {
        let wrong = |e: VolumeError| format!("volume {}: {e}", member.name);
        let before = member.growth.before().map_err(wrong)?;
        if *size > before.size {
            longer.insert(i, before);
        }
        let base = lent.get(&i).map_or(before.size, |before| before.size);
        let more = (*size).max(before.size).saturating_sub(base);
        let (store, free) = member.growth.room().map_err(wrong)?;
        let (all, least) = wanted.entry(store).or_insert((0, free));
        (*all, *least) = (all.saturating_add(more), free.min(*least));
    }
    if longer.is_empty() {
        return Ok(longer);
    }
    wanted.into_values().try_for_each(|(all, free)| setup::leaves_enough("that growth", all, free))?;
    let mut done = BTreeMap::new();
    for (i, before) in longer {
        let (Some(member), Some(size)) = (members.get(i), sizes.get(i)) else { continue };
        done.insert(i, before);
        if let Err(e) = member.growth.grow(*size) {
            give_back(members, done);
            return Err(format!("volume {}: {e}", member.name));
        }
    }
    Ok(done)
}

/// Blocks.
fn give_back(members: &[Arc<Member>], lent: BTreeMap<usize, Before>) {
    for (i, before) in lent {
        let Some(member) = members.get(i) else { continue };
        if let Err(e) = member.growth.give_back(&before) {
            tracing::warn!("volume {} stays longer than it was: {e}", member.name);
        }
    }
}
