//! Bounds what clients can make a server keep: a total, and a part of it for each address and each user.
//!
//! Everything kept for a client holds a [`Charge`], which returns its bytes when dropped. So nothing that nobody counts
//! can grow past the budget.
//!
//! An address may hold a quarter of what is still free (the dynamic threshold of shared switch buffers, Choudhury and
//! Hahne 1998): a single address gets a fifth of all, and ten addresses that each take all they can leave a tenth for
//! the next one. A user, if known, may hold as much as is still free, thus half of all when alone: a user may work on
//! many hosts, and an attacker may have many addresses. An address that got more while more was free is overdrawn: it
//! is given nothing more, and keeps what it has, unless the protocol asks its clients to return some
//! ([`Charge::is_overdrawn`]). The budget does not know what is kept, and takes nothing away.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::net::Source;

/// By default, an address may hold one in this many of the free bytes.
pub const SOURCE_SHARE: usize = 4;
/// A user may hold one in this many of the free bytes.
pub const USER_SHARE: usize = 1;

/// There is no room. The client can ask again when it or others have released something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Full;

/// The account that something is kept on.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Holder {
    /// The client's address; none for what was restored before the client is back.
    pub source: Option<Source>,
    /// The logged-on user, if known.
    pub user: Option<Arc<str>>,
}

impl From<Source> for Holder {
    fn from(source: Source) -> Holder {
        Holder { source: Some(source), user: None }
    }
}

/// Clones share it. It mostly counts memory; if it counts something else, a "byte" is one unit of that.
#[derive(Clone)]
pub struct Budget(Arc<Inner>);

struct Inner {
    limit_bytes: usize,
    /// An address may hold one in this many of the free bytes.
    source_share: usize,
    used: Mutex<Used>,
    /// So much is taken that an address may be overdrawn.
    scarce: AtomicBool,
}

#[derive(Default)]
struct Used {
    /// `total_bytes <= limit_bytes`, except for [`Budget::restore`].
    total_bytes: usize,
    /// Only addresses that hold something.
    by_source: HashMap<Source, usize>,
    by_user: HashMap<Arc<str>, usize>,
}

impl Used {
    fn of(&self, source: Source) -> usize {
        self.by_source.get(&source).copied().unwrap_or(0)
    }

    fn of_user(&self, user: &str) -> usize {
        self.by_user.get(user).copied().unwrap_or(0)
    }

    /// A holder of nothing gets no entry.
    fn add(&mut self, holder: &Holder, bytes: usize) {
        if bytes == 0 {
            return;
        }
        self.total_bytes = self.total_bytes.saturating_add(bytes);
        if let Some(source) = holder.source {
            let own = self.by_source.entry(source).or_default();
            *own = own.saturating_add(bytes);
        }
        if let Some(user) = &holder.user {
            match self.by_user.get_mut(user) {
                Some(own) => *own = own.saturating_add(bytes),
                None => drop(self.by_user.insert(user.clone(), bytes)),
            }
        }
    }

    fn take(&mut self, holder: &Holder, bytes: usize) {
        self.total_bytes = self.total_bytes.saturating_sub(bytes);
        if let Some(source) = &holder.source {
            lower(&mut self.by_source, source, bytes);
        }
        if let Some(user) = &holder.user {
            lower(&mut self.by_user, user, bytes);
        }
    }
}

/// A key that holds nothing any more is removed.
fn lower<K: Eq + Hash>(held: &mut HashMap<K, usize>, who: &K, bytes: usize) {
    if let Some(own) = held.get_mut(who) {
        *own = own.saturating_sub(bytes);
        if *own == 0 {
            held.remove(who);
        }
    }
}

impl Budget {
    /// A budget of `limit_bytes` for all holders together.
    pub fn new(limit_bytes: usize) -> Budget {
        Budget::shared(limit_bytes, SOURCE_SHARE)
    }

    /// The same; an address may hold one in `source_share` of the free bytes.
    pub fn shared(limit_bytes: usize, source_share: usize) -> Budget {
        let scarce = AtomicBool::new(false);
        Budget(Arc::new(Inner { limit_bytes, source_share, used: Mutex::default(), scarce }))
    }

    /// Bytes that are taken.
    pub fn used_bytes(&self) -> usize {
        self.0.lock().total_bytes
    }

    /// Whether any address may be overdrawn; takes no lock, so it can be called often.
    pub fn is_scarce(&self) -> bool {
        self.0.scarce.load(Ordering::Relaxed)
    }

    /// How much more a holder's address may take.
    pub fn allowance(&self, holder: &Holder) -> usize {
        let (used, share) = (self.0.lock(), self.0.source_share);
        let free = self.0.limit_bytes.saturating_sub(used.total_bytes);
        let Some(source) = holder.source else { return free };
        // What the holder takes is no longer free: `own + x <= (free - x) / share`.
        let left = free.saturating_sub(used.of(source).saturating_mul(share));
        left.checked_div(share.saturating_add(1)).unwrap_or(0)
    }

    /// Takes `bytes` for a holder.
    ///
    /// # Errors
    /// The whole budget, or the holder's part, is used up.
    pub fn charge(&self, holder: impl Into<Holder>, bytes: usize) -> Result<Charge, Full> {
        let charge = Charge { budget: self.clone(), holder: holder.into(), bytes: AtomicUsize::new(0) };
        charge.grow(bytes)?;
        Ok(charge)
    }

    /// Takes `bytes` whether there is room or not: for what a client was promised before this run and must not lose.
    pub fn restore(&self, holder: impl Into<Holder>, bytes: usize) -> Charge {
        let charge = Charge { budget: self.clone(), holder: holder.into(), bytes: AtomicUsize::new(bytes) };
        let mut used = self.0.lock();
        used.add(&charge.holder, bytes);
        self.0.note(&used);
        drop(used);
        charge
    }

    /// Takes `bytes` if there is room, otherwise nothing: for what must not be refused, and whose number is bounded by
    /// other means. A charge that holds nothing takes no room from others.
    pub fn charge_if_room(&self, holder: impl Into<Holder>, bytes: usize) -> Charge {
        let charge = Charge { budget: self.clone(), holder: holder.into(), bytes: AtomicUsize::new(0) };
        let _ = charge.grow(bytes);
        charge
    }
}

impl Inner {
    // The sums change together, and nothing panics while they do.
    fn lock(&self) -> MutexGuard<'_, Used> {
        self.used.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What an address may hold.
    fn threshold(&self, used: &Used) -> usize {
        self.limit_bytes.saturating_sub(used.total_bytes).checked_div(self.source_share).unwrap_or(0)
    }

    /// Must be called after each change.
    fn note(&self, used: &Used) {
        // No address holds more than the total.
        self.scarce.store(used.total_bytes > self.threshold(used), Ordering::Relaxed);
    }
}

/// Bytes of the budget that a holder occupies.
#[must_use = "what is not held is given back"]
pub struct Charge {
    budget: Budget,
    holder: Holder,
    /// Changes only while the budget is locked.
    bytes: AtomicUsize,
}

impl std::fmt::Debug for Charge {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Charge({} bytes)", self.bytes())
    }
}

impl Charge {
    /// The budget that it belongs to.
    pub fn budget(&self) -> &Budget {
        &self.budget
    }

    /// The account that it is on.
    pub fn holder(&self) -> &Holder {
        &self.holder
    }

    /// The bytes that it holds.
    pub fn bytes(&self) -> usize {
        self.bytes.load(Ordering::Relaxed)
    }

    /// Whether its address holds more than it would be granted now.
    pub fn is_overdrawn(&self) -> bool {
        let inner = &self.budget.0;
        let used = inner.lock();
        self.holder.source.is_some_and(|source| used.of(source) > inner.threshold(&used))
    }

    /// Another charge on the same account.
    ///
    /// # Errors
    /// As [`Budget::charge`].
    pub fn beside(&self, bytes: usize) -> Result<Charge, Full> {
        self.budget.charge(self.holder.clone(), bytes)
    }

    /// Takes more.
    ///
    /// # Errors
    /// As [`Budget::charge`]; the charge is then unchanged.
    pub fn grow(&self, bytes: usize) -> Result<(), Full> {
        if bytes == 0 {
            return Ok(());
        }
        let inner = &self.budget.0;
        let mut used = inner.lock();
        let total = used.total_bytes.checked_add(bytes).ok_or(Full)?;
        let free = inner.limit_bytes.checked_sub(total).ok_or(Full)?;
        let part = |share| free.checked_div(share).unwrap_or(0);
        let fits = |own: usize, share| own.checked_add(bytes).is_some_and(|own| own <= part(share));
        let source_fits = self.holder.source.is_none_or(|source| fits(used.of(source), inner.source_share));
        let user_fits = self.holder.user.as_ref().is_none_or(|user| fits(used.of_user(user), USER_SHARE));
        if !source_fits || !user_fits {
            return Err(Full);
        }
        used.add(&self.holder, bytes);
        inner.note(&used);
        self.bytes.store(self.bytes().saturating_add(bytes), Ordering::Relaxed);
        Ok(())
    }

    /// Returns some of its bytes.
    pub fn shrink(&self, bytes: usize) {
        let inner = &self.budget.0;
        let mut used = inner.lock();
        let bytes = bytes.min(self.bytes());
        self.bytes.store(self.bytes().saturating_sub(bytes), Ordering::Relaxed);
        used.take(&self.holder, bytes);
        inner.note(&used);
    }

    /// Takes over the bytes of another charge on the same account.
    pub fn absorb(&self, other: Charge) {
        debug_assert!(self.holder == other.holder && Arc::ptr_eq(&self.budget.0, &other.budget.0));
        let _used = self.budget.0.lock();
        self.bytes
            .store(self.bytes().saturating_add(other.bytes.swap(0, Ordering::Relaxed)), Ordering::Relaxed);
    }

    /// Sets the number of bytes. Only one task at a time may set a charge.
    ///
    /// # Errors
    /// As [`Budget::charge`]; the charge is then unchanged.
    pub fn set(&self, bytes: usize) -> Result<(), Full> {
        let held = self.bytes();
        match bytes.checked_sub(held) {
            Some(0) => Ok(()),
            Some(more) => self.grow(more),
            None => {
                self.shrink(held.saturating_sub(bytes));
                Ok(())
            }
        }
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        if self.bytes() > 0 {
            self.shrink(self.bytes());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn host(n: u8) -> Source {
        Source::V4([192, 0, 2, n].into())
    }

    fn user(name: &str, n: u8) -> Holder {
        Holder { source: Some(host(n)), user: Some(name.into()) }
    }

    #[test]
    fn greedy_addresses_leave_room_for_the_next() {
        let budget = Budget::new(1100);
        let mut held = Vec::new();
        while let Some(more) = (0..10).find_map(|n| budget.charge(host(n), 1).ok()) {
            held.push(more);
        }
        assert!(budget.used_bytes() <= 1000, "{}", budget.used_bytes());
        assert!(budget.charge(host(10), 20).is_ok());
        assert!((0..10).all(|n| budget.charge(host(n), 100).is_err()));
        held.clear();
        assert_eq!(budget.used_bytes(), 0);
        assert!(budget.0.lock().by_source.is_empty(), "nothing is kept of who holds nothing");
    }

    #[test]
    fn one_alone_gets_a_fifth_and_no_more_when_others_come() {
        let budget = Budget::new(1000);
        let one = budget.charge(host(1), 200).unwrap();
        assert!(budget.charge(host(1), 1).is_err());
        let other = budget.charge(host(2), 100).unwrap();
        // Bytes that are returned are not granted again, because less is free now.
        one.shrink(20);
        assert_eq!((one.grow(1), other.grow(1)), (Err(Full), Ok(())));
    }

    #[test]
    fn who_holds_more_than_there_would_be_now_is_overdrawn() {
        let budget = Budget::new(1000);
        let one = budget.charge(host(1), 200).unwrap();
        assert!(!one.is_overdrawn() && !budget.is_scarce() && budget.allowance(one.holder()) == 0);
        let other = budget.charge(host(2), 100).unwrap();
        assert!(one.is_overdrawn() && !other.is_overdrawn() && budget.is_scarce());
        // With 60 more it holds 160, a quarter of the 640 that are free then.
        assert_eq!(budget.allowance(other.holder()), 60);
        drop(one);
        assert!(!other.is_overdrawn() && !budget.is_scarce());
    }

    #[test]
    fn of_what_is_shared_by_halves_an_address_takes_as_much_as_it_leaves() {
        let budget = Budget::shared(80, 1);
        let one = budget.charge(host(1), 40).unwrap();
        assert_eq!((one.grow(1), budget.allowance(one.holder())), (Err(Full), 0));
        let other = budget.charge(host(2), 20).unwrap();
        assert_eq!(other.grow(1), Err(Full));
        assert!(one.is_overdrawn());
        assert_eq!(budget.allowance(&host(3).into()), 10);
        // An address may have no part at all, so nothing is granted.
        assert!(Budget::shared(80, 0).charge(host(1), 1).is_err());
    }

    #[test]
    fn what_must_not_be_refused_takes_no_room_from_others() {
        let budget = Budget::new(1000);
        let kept = budget.charge(host(1), 200).unwrap();
        let more: Vec<_> = (0..100).map(|_| budget.charge_if_room(host(1), 10)).collect();
        assert_eq!((more.iter().map(Charge::bytes).sum::<usize>(), budget.used_bytes()), (0, 200));
        assert!(budget.charge(host(2), 150).is_ok());
        drop(kept);
        assert_eq!(budget.charge_if_room(host(1), 10).bytes(), 10);
        drop(more);
        assert_eq!(budget.used_bytes(), 0);
    }

    #[test]
    fn who_takes_nothing_is_not_remembered_nor_refused() {
        let budget = Budget::new(1000);
        for n in 0..100 {
            assert!(budget.charge(user("alice", n), 0).is_ok());
            drop(budget.restore(user("bob", n), 0));
        }
        let used = budget.0.lock();
        assert!(used.by_source.is_empty() && used.by_user.is_empty());
        drop(used);
        let full = budget.restore(host(1), 1001);
        assert!(full.beside(0).is_ok() && full.beside(1).is_err());
    }

    #[test]
    fn a_user_of_many_addresses_gets_half_and_leaves_the_other_to_others() {
        let budget = Budget::new(1000);
        let mut held = Vec::new();
        while let Some(more) = (0..200).find_map(|n| budget.charge(user("alice", n), 1).ok()) {
            held.push(more);
        }
        assert_eq!(budget.used_bytes(), 500);
        let bob = budget.charge(user("bob", 201), 100);
        assert!(bob.is_ok());
        drop(bob);
        held.clear();
        assert_eq!(budget.used_bytes(), 0);
        assert!(budget.0.lock().by_user.is_empty());
    }

    #[test]
    fn a_charge_grows_and_shrinks_and_is_what_it_was_where_there_is_no_room() {
        let budget = Budget::new(1000);
        let charge = budget.charge(user("alice", 1), 10).unwrap();
        assert_eq!(charge.set(200), Ok(()));
        assert_eq!((charge.set(201), charge.bytes(), budget.used_bytes()), (Err(Full), 200, 200));
        assert!(charge.beside(1).is_err());
        assert_eq!(charge.set(5), Ok(()));
        charge.shrink(100);
        assert_eq!((charge.bytes(), budget.used_bytes()), (0, 0));
        // What was promised is kept, and counts.
        let restored = budget.restore(user("alice", 1), 600);
        assert_eq!((budget.used_bytes(), charge.grow(1)), (600, Err(Full)));
        drop((restored, charge));
        assert_eq!(budget.used_bytes(), 0);
    }
}
