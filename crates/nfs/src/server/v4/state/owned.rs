//! Whose a client's record is: who made it, and where else that client has been.
//!
//! Spec: RFC 8881 18.35.4 (a record has a principal). Owns: the addresses that a client has shown to be its own.

use std::sync::{Mutex, PoisonError};

use weft_machine::Source;

use crate::server::identity::{Identity, Origin};

/// Addresses of a client that are remembered; the one that it came from first is always one of them.
const MAX_SOURCES: usize = 8;

/// Whose a client's record is.
#[derive(Debug)]
pub struct Owned {
    pub by: Identity,
    /// It has sessions (minor versions from 1 on).
    pub sessions: bool,
    /// Other addresses from which it has shown that it knows one of its sessions; the latest is the last.
    elsewhere: Mutex<Vec<Source>>,
    /// Who said last that he is the client, and did not show it.
    refused: Mutex<Option<Source>>,
}

impl Owned {
    pub fn new(by: Identity, sessions: bool) -> Owned {
        Owned { by, sessions, elsewhere: Mutex::default(), refused: Mutex::default() }
    }

    /// Whoever is there is not this client, or no more: it is another one from now on.
    pub fn refuse(&self, source: Source) {
        *self.refused.lock().unwrap_or_else(PoisonError::into_inner) = Some(source);
    }

    pub fn has_refused(&self, source: Source) -> bool {
        *self.refused.lock().unwrap_or_else(PoisonError::into_inner) == Some(source) && !self.is_at(source)
    }

    /// Whether who comes from there may have to do with it at all, if it knows what to ask for.
    pub fn allows(&self, from: &Origin) -> bool {
        from.standing.is_as_good_as(&self.by.origin.standing)
    }

    /// Whether the client is known to be at this address.
    pub fn is_at(&self, source: Source) -> bool {
        source == self.by.origin.source
            || self.elsewhere.lock().unwrap_or_else(PoisonError::into_inner).contains(&source)
    }

    /// The client is at this address, too.
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
        let owned = Owned::new(Identity { principal: Principal { flavor: 1, uid: 0 }, origin }, true);
        (1..100).for_each(|n| owned.moves_to(at(n)));
        let known = (0..100).filter(|n| owned.is_at(at(*n)));
        assert_eq!(known.collect::<Vec<_>>(), [0, 93, 94, 95, 96, 97, 98, 99]);
    }
}
