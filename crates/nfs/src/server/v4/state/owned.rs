//! The owner of a client's record: the identity that created it, and the other addresses of that client.
//!
//! See RFC 8881 18.35.4 (a record has a principal).

use std::sync::{Mutex, PoisonError};

use weft_machine::Source;

use crate::server::identity::{Identity, Origin};

/// Most addresses remembered for a client; the first one is always kept.
const MAX_SOURCES: usize = 8;

/// The owner of a client's record.
#[derive(Debug)]
pub struct Owned {
    pub by: Identity,
    /// It has sessions (minor version 1 or later).
    pub sessions: bool,
    /// Other addresses from which it used one of its sessions; latest last.
    elsewhere: Mutex<Vec<Source>>,
    /// The last address that claimed to be the client without proof.
    refused: Mutex<Option<Source>>,
}

impl Owned {
    pub fn new(by: Identity, sessions: bool) -> Owned {
        Owned { by, sessions, elsewhere: Mutex::default(), refused: Mutex::default() }
    }

    /// The caller at this address is not this client, or no longer: it counts as another one from now on.
    pub fn refuse(&self, source: Source) {
        *self.refused.lock().unwrap_or_else(PoisonError::into_inner) = Some(source);
    }

    pub fn has_refused(&self, source: Source) -> bool {
        *self.refused.lock().unwrap_or_else(PoisonError::into_inner) == Some(source) && !self.is_at(source)
    }

    /// Whether a caller from there may use this client at all, if it knows the ids.
    pub fn allows(&self, from: &Origin) -> bool {
        from.standing.is_as_good_as(&self.by.origin.standing)
    }

    /// Whether the client is known at this address.
    pub fn is_at(&self, source: Source) -> bool {
        source == self.by.origin.source
            || self.elsewhere.lock().unwrap_or_else(PoisonError::into_inner).contains(&source)
    }

    /// The client is also at this address.
    pub fn moves_to(&self, source: Source) {
        if self.is_at(source) {
            return;
        }
        let mut elsewhere = self.elsewhere.lock().unwrap_or_else(PoisonError::into_inner);
        if elsewhere.len() >= MAX_SOURCES.saturating_sub(1) {
            elsewhere.remove(0);
        }
        elsewhere.push(source);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::server::identity::{Principal, Proof, Standing};

    #[test]
    fn a_client_is_at_few_addresses_and_always_at_its_first() {
        let at = |n: u8| Source::V4([192, 0, 2, n].into());
        let origin = Origin { source: at(0), standing: Standing { proof: Proof::Nothing, reserved: true } };
        let owned =
            Owned::new(Identity { principal: Principal { flavor: 1, uid: 0, proved: None }, origin }, true);
        (1..100).for_each(|n| owned.moves_to(at(n)));
        let known = (0..100).filter(|n| owned.is_at(at(*n)));
        assert_eq!(known.collect::<Vec<_>>(), [0, 93, 94, 95, 96, 97, 98, 99]);
    }
}
