//! Provisional growth: before a source grows, its destinations' volumes get room for it.
//!
//! This module owns the members' earlier sizes until the group has grown. [`weft_replica::group`] grows the group.

use std::collections::BTreeMap;
use std::sync::Arc;

use weft_machine::rt;
use weft_store::volume::{Before, Error as VolumeError, Store};

use super::{Group, lock};
use crate::serve::replica::error::{Error, Unlent};
use crate::serve::replica::{Member, setup};

impl Group {
    /// The source is about to grow: gives all of its volumes on this side room for that, or none.
    pub async fn lend(&self, sizes: &[u64]) -> Result<(), Error> {
        if sizes.len() != self.members.len() {
            return Err(Error::Sizes);
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

    /// Growth that the group uses must not be given back.
    pub(super) fn keep_what_is_used(&self) {
        let mut lent = lock(&self.lent);
        match self.status() {
            Some(status) => lent
                .retain(|member, before| status.sizes.get(*member).is_some_and(|size| *size <= before.size)),
            // The length of its volumes in the group is unknown.
            None => lent.clear(),
        }
    }

    /// Gives back growth that the group does not use. Nobody uses the volumes.
    pub(super) async fn give_back(&self) {
        let lent = std::mem::take(&mut *lock(&self.lent));
        let members = self.members.clone();
        rt::blocking(move || give_back(&members, lent)).await;
    }
}

/// Grows volumes and returns the earlier sizes of those that grew; if one cannot grow, none does. Blocks.
fn lend_all(
    members: &[Arc<Member>],
    sizes: &[u64],
    lent: &BTreeMap<usize, Before>,
) -> Result<BTreeMap<usize, Before>, Unlent> {
    // Unused earlier growth counts as free, and as taken again.
    let mut wanted: BTreeMap<Store, (u64, u64)> = BTreeMap::new();
    let mut longer = BTreeMap::new();
    for (i, (member, size)) in members.iter().zip(sizes).enumerate() {
        let wrong = |e: VolumeError| Unlent::Volume(member.fault(e));
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
            return Err(member.fault(e).into());
        }
    }
    Ok(done)
}

/// Blocks.
fn give_back(members: &[Arc<Member>], lent: BTreeMap<usize, Before>) {
    for (i, before) in lent {
        let Some(member) = members.get(i) else { continue };
        if let Err(e) = member.growth.give_back(&before) {
            tracing::warn!("volume {} keeps its longer size: {e}", member.name);
        }
    }
}
