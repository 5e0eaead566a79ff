//! Tunnelling: a file that is removed by its 8.3 name and created again by it keeps its long name.
//!
//! Spec: [MS-FSA] 2.1.1.2 (TunnelCacheEntry), 2.1.5.1.1 (creation), 2.1.5.5, phase 7 (deletion). Owns at most
//! [`MAX_ENTRIES`] names, each for [`LIFETIME`]. Creation times are not restored, because they would be wrong; files
//! removed by their long names are not remembered.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use weft_machine::Time;
use weft_store::NodeId;
use weft_store::backend::short_name;
use weft_store::opens::Opens;

/// Entries; the oldest is replaced.
const MAX_ENTRIES: usize = 256;
/// How long an entry lives.
const LIFETIME: Duration = Duration::from_secs(15);

/// A directory of a share.
type DirKey<'a> = (&'a Arc<Opens>, NodeId);

struct Entry {
    until: Time,
    /// Identifies the share.
    opens: Arc<Opens>,
    dir: NodeId,
    short: String,
    long: Vec<u8>,
}

/// Files that were recently removed by their 8.3 names.
#[derive(Default)]
pub(crate) struct Tunnel(Mutex<VecDeque<Entry>>);

/// The 8.3 name, if `asked` is that of the file that the store calls `name`; `None` if `asked` is its long name.
pub(super) fn asked_short(asked: &[u8], name: &[u8]) -> Option<String> {
    if !asked.contains(&b'~') {
        return None;
    }
    short_name(name).filter(|short| short.as_bytes().eq_ignore_ascii_case(asked))
}

impl Tunnel {
    /// Records that `long` was removed by its name `short`.
    pub(super) fn removed(&self, dir: DirKey<'_>, short: &str, long: Vec<u8>, now: Time) {
        let mut entries = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if entries.len() >= MAX_ENTRIES {
            entries.pop_front();
        }
        let (opens, dir) = (dir.0.clone(), dir.1);
        entries.push_back(Entry { until: now + LIFETIME, opens, dir, short: short.to_owned(), long });
    }

    /// Takes the long name of the file that was recently called `short`.
    pub(super) fn take(&self, dir: DirKey<'_>, short: &[u8], now: Time) -> Option<Vec<u8>> {
        if !short.contains(&b'~') {
            return None;
        }
        let mut entries = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        entries.retain(|entry| entry.until > now);
        let is_it = |entry: &Entry| {
            (entry.dir == dir.1 && Arc::ptr_eq(&entry.opens, dir.0))
                && entry.short.as_bytes().eq_ignore_ascii_case(short)
        };
        let at = entries.iter().position(is_it)?;
        entries.remove(at).map(|entry| entry.long)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_name_comes_back_once_and_for_a_moment() {
        let (tunnel, share, other) = (Tunnel::default(), Arc::default(), Arc::default());
        let (here, now) = ((&share, NodeId(7)), Time::from_nanos(1));
        let long = b"a long name.text".to_vec();
        let short = short_name(&long).unwrap();
        assert_eq!(asked_short(short.to_lowercase().as_bytes(), &long), Some(short.clone()));
        assert_eq!(asked_short(&long, &long), None);
        tunnel.removed(here, &short, long.clone(), now);
        let asked = short.to_lowercase();
        assert_eq!(tunnel.take((&other, NodeId(7)), asked.as_bytes(), now), None);
        assert_eq!(tunnel.take((&share, NodeId(8)), asked.as_bytes(), now), None);
        assert_eq!(tunnel.take(here, asked.as_bytes(), now), Some(long.clone()));
        assert_eq!(tunnel.take(here, asked.as_bytes(), now), None);
        tunnel.removed(here, &short, long.clone(), now);
        assert_eq!(tunnel.take(here, asked.as_bytes(), now + LIFETIME), None);
        (0..1000).for_each(|_| tunnel.removed(here, &short, long.clone(), now));
        assert_eq!(tunnel.0.lock().unwrap().len(), MAX_ENTRIES);
    }
}
