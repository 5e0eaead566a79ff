//! All opens of one node, as needed for checking another open against them.
//!
//! [MS-FSA] 2.1.5.1.2.2 (share modes). Caching rights, locks and waiting are elsewhere.
//!
//! A node may have many thousands of opens, and each open, close and change must be checked against all others. So
//! they are not walked: everything that is checked is counted, for the whole node and for each key.

use std::collections::HashMap;

use super::{Key, Reach, Refused, Rights};

/// One open.
#[derive(Clone, Copy, Debug)]
pub(super) struct Entry {
    pub key: Key,
    pub access: Rights,
    pub share: Rights,
    pub reach: Reach,
    /// Held by the server for a delegation: no client has the node open by it.
    pub delegates: bool,
}

/// The effects of closing an open.
#[derive(Clone, Copy, Default)]
pub(super) struct Ending {
    /// The directory's caching right that changes by this open do not break: see [`super::Open::set_parent`].
    pub parent: Option<Key>,
    pub delete_on_close: bool,
    /// A pending deletion takes effect when this open closes, even if others have the node open.
    pub delete_at_once: bool,
}

/// Counts of opens by kind.
#[derive(Clone, Copy, Default)]
struct Tally {
    opens: u32,
    /// Opens that the server holds for delegations.
    delegating: u32,
    /// Opens for more than attributes.
    reaching: u32,
    /// Opens that read, write, delete.
    doing: [u32; 3],
    /// Opens that do any of it, and forbid others to read, write, delete.
    forbidding: [u32; 3],
}

impl Tally {
    fn each(&mut self, entry: &Entry, change: impl Fn(&mut u32)) {
        let any = entry.access.any();
        change(&mut self.opens);
        if entry.delegates {
            change(&mut self.delegating);
        }
        if entry.reach > Reach::Attributes {
            change(&mut self.reaching);
        }
        for (doing, does) in self.doing.iter_mut().zip(entry.access.each()) {
            if does {
                change(doing);
            }
        }
        for (forbidding, allows) in self.forbidding.iter_mut().zip(entry.share.each()) {
            if any && !allows {
                change(forbidding);
            }
        }
    }

    fn add(&mut self, entry: &Entry) {
        self.each(entry, |count| *count += 1);
    }

    fn take(&mut self, entry: &Entry) {
        self.each(entry, |count| *count -= 1);
    }

    /// Whether another open with this access would conflict with one that forbids it, or forbids an access that
    /// exists.
    fn clashes(&self, access: Rights, share: Rights) -> bool {
        let meets =
            |counts: [u32; 3], wanted: [bool; 3]| counts.iter().zip(wanted).any(|(n, is)| is && *n > 0);
        access.any()
            && (meets(self.forbidding, access.each())
                || meets(self.doing, share.each().map(|allows| !allows)))
    }
}

/// All opens of a node.
#[derive(Default)]
pub(super) struct Holders {
    by_id: HashMap<u64, (Entry, Ending)>,
    /// Counts of the keys that have opens.
    by_key: HashMap<Key, Tally>,
    all: Tally,
}

#[cfg(test)]
thread_local! {
    /// Number of opens examined because of another one.
    pub(super) static LOOKS: std::cell::Cell<usize> = const { std::cell::Cell::new(0) };
}

impl Holders {
    pub fn insert(&mut self, id: u64, entry: Entry) {
        self.count(&entry);
        self.by_id.insert(id, (entry, Ending::default()));
    }

    pub fn remove(&mut self, id: u64) -> Option<Ending> {
        let (entry, ending) = self.by_id.remove(&id)?;
        self.discount(&entry);
        Some(ending)
    }

    fn count(&mut self, entry: &Entry) {
        self.all.add(entry);
        self.by_key.entry(entry.key).or_default().add(entry);
    }

    fn discount(&mut self, entry: &Entry) {
        self.all.take(entry);
        if let Some(own) = self.by_key.get_mut(&entry.key) {
            own.take(entry);
            if own.opens == 0 {
                self.by_key.remove(&entry.key);
            }
        }
    }

    /// Changes access and share mode; on a conflict everything stays unchanged.
    pub fn change(&mut self, id: u64, access: Rights, share: Rights) -> Result<(), Refused> {
        let Some((old, _)) = self.by_id.get(&id).copied() else { return Err(Refused::NotLocked) };
        self.discount(&old);
        let clashes = self.all.clashes(access, share);
        let now = if clashes { old } else { Entry { access, share, ..old } };
        self.count(&now);
        if let Some((entry, _)) = self.by_id.get_mut(&id) {
            *entry = now;
        }
        if clashes { Err(Refused::Sharing) } else { Ok(()) }
    }

    /// The effects of closing this open.
    pub fn ending(&mut self, id: u64) -> Option<&mut Ending> {
        self.by_id.get_mut(&id).map(|(_, ending)| ending)
    }

    pub fn contains(&self, id: u64) -> bool {
        self.by_id.contains_key(&id)
    }

    pub fn len(&self) -> usize {
        self.by_id.len()
    }

    /// The number of opens of clients.
    pub fn of_clients(&self) -> usize {
        (self.all.opens - self.all.delegating) as usize
    }

    pub fn is_empty(&self) -> bool {
        self.by_id.is_empty()
    }

    /// Whether share modes forbid another open with this access.
    pub fn clashes(&self, access: Rights, share: Rights) -> bool {
        self.all.clashes(access, share)
    }

    /// Whether any open may delete the node.
    pub fn deletes(&self) -> bool {
        let [_, _, deleting] = self.all.doing;
        deleting > 0
    }

    /// Whether this key has opens.
    pub fn has(&self, key: Key) -> bool {
        self.by_key.contains_key(&key)
    }

    /// The number of this key's opens.
    pub fn count_of(&self, key: Key) -> usize {
        self.of(key).opens as usize
    }

    fn of(&self, key: Key) -> Tally {
        self.by_key.get(&key).copied().unwrap_or_default()
    }

    /// Whether no other key has the node open for more than its attributes.
    pub fn is_alone(&self, key: Key) -> bool {
        self.all.reaching == self.of(key).reaching
    }

    /// Whether no other key writes.
    pub fn is_unwritten(&self, key: Key) -> bool {
        let writing = |tally: Tally| {
            let [_, writing, _] = tally.doing;
            writing
        };
        writing(self.all) == writing(self.of(key))
    }

    /// Whether a condition holds for every key with opens.
    pub fn all_keys(&self, is: impl Fn(Key) -> bool) -> bool {
        self.by_key.keys().all(|key| {
            #[cfg(test)]
            LOOKS.set(LOOKS.get() + 1);
            is(*key)
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn rights() -> impl Strategy<Value = Rights> {
        any::<[bool; 3]>().prop_map(|[read, write, delete]| Rights { read, write, delete })
    }

    fn entry() -> impl Strategy<Value = Entry> {
        let reach = prop_oneof![Just(Reach::Attributes), Just(Reach::Security), Just(Reach::Data)];
        (0..4u64, rights(), rights(), reach, any::<bool>()).prop_map(
            |(key, access, share, reach, delegates)| Entry { key: Key(key), access, share, reach, delegates },
        )
    }

    #[derive(Clone, Debug)]
    enum Step {
        Insert(usize),
        Remove(usize),
        Change(usize, Rights, Rights),
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let step = prop_oneof![
            (0..16usize).prop_map(Step::Insert),
            (0..16usize).prop_map(Step::Remove),
            (0..16usize, rights(), rights()).prop_map(|(id, access, share)| Step::Change(id, access, share)),
        ];
        proptest::collection::vec(step, 0..60)
    }

    /// The specification's algorithm: each open is examined.
    fn clash(holder: &Entry, access: Rights, share: Rights) -> bool {
        let exceeds =
            |does: Rights, allowed: Rights| does.each().iter().zip(allowed.each()).any(|(a, b)| *a && !b);
        access.any()
            && holder.access.any()
            && (exceeds(access, holder.share) || exceeds(holder.access, share))
    }

    proptest! {
        #[test]
        fn what_is_counted_is_what_each_open_says(
            entries in proptest::collection::vec(entry(), 16),
            steps in steps(),
            (access, share) in (rights(), rights()),
        ) {
            let (mut holders, mut known) = (Holders::default(), HashMap::<usize, Entry>::new());
            for step in steps {
                match step {
                    Step::Insert(id) if !known.contains_key(&id) => {
                        holders.insert(id as u64, entries[id]);
                        known.insert(id, entries[id]);
                    }
                    Step::Insert(_) => {}
                    Step::Remove(id) => {
                        prop_assert_eq!(holders.remove(id as u64).is_some(), known.remove(&id).is_some());
                    }
                    Step::Change(id, access, share) => {
                        let others = known.iter().filter(|(other, _)| **other != id);
                        let clashes = others.into_iter().any(|(_, holder)| clash(holder, access, share));
                        let expected = match known.get_mut(&id) {
                            None => Err(Refused::NotLocked),
                            Some(_) if clashes => Err(Refused::Sharing),
                            Some(entry) => {
                                (entry.access, entry.share) = (access, share);
                                Ok(())
                            }
                        };
                        prop_assert_eq!(holders.change(id as u64, access, share), expected);
                    }
                }
                let all = || known.values();
                prop_assert_eq!(holders.len(), known.len());
                let of_clients = known.values().filter(|holder| !holder.delegates).count();
                prop_assert_eq!(holders.of_clients(), of_clients);
                prop_assert_eq!(holders.clashes(access, share), all().any(|holder| clash(holder, access, share)));
                prop_assert_eq!(holders.deletes(), all().any(|holder| holder.access.delete));
                for key in (0..4).map(Key) {
                    let others = || all().filter(|holder| holder.key != key);
                    prop_assert_eq!(holders.has(key), all().any(|holder| holder.key == key));
                    prop_assert_eq!(holders.is_alone(key), others().all(|holder| holder.reach == Reach::Attributes));
                    prop_assert_eq!(holders.is_unwritten(key), others().all(|holder| !holder.access.write));
                }
            }
            let all_known = known.keys().all(|id| holders.remove(*id as u64).is_some());
            prop_assert!(all_known && holders.is_empty() && holders.by_key.is_empty());
        }
    }
}
