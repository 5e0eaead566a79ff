//! The caller's identity: what it claims, and how much of that the connection proves.
//!
//! See RFC 8881 2.10.8.3 (who may use what a client made) and 18.35.4 (a record has a principal). Export rules are
//! checked elsewhere; a caller that no export admits has no [`Origin`].
//!
//! Everything that looks up a client, a session or a state takes one of these, so nobody finds the state of another.
//! Guessable keys (a client's name) are looked up only together with the whole origin. Unguessable keys (ids) can be
//! used by a caller whose [`Standing`] is as strong as that of their creator: addresses may change, because hosts
//! roam and have several.

use ring::digest::{Context, SHA256};
use weft_machine::Source;
use weft_machine::net::Holder;
use weft_store::rules::Ports;
use weft_transport::{Peer, Security};

use super::credential::{Credential, PrincipalId};

/// The principal, as far as the credential tells: flavour and user, or a proved name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Principal {
    pub flavor: u32,
    pub uid: u32,
    /// What a ticket has proved. The protection of a single call is not part of a principal.
    pub proved: Option<PrincipalId>,
}

impl Principal {
    pub fn of(credential: &Credential) -> Principal {
        match credential {
            Credential::Sys(sys) => Principal { flavor: 1, uid: sys.uid, proved: None },
            Credential::None => Principal { flavor: 0, uid: u32::MAX, proved: None },
            Credential::Ticket(_, ticket) => {
                Principal { flavor: 6, uid: u32::MAX, proved: Some(ticket.principal) }
            }
        }
    }
}

/// What TLS proves of a connection, weakest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Proof {
    /// Plain text.
    Nothing,
    /// Others cannot read it.
    Private,
    /// The peer holds this certificate.
    Holder(Holder),
}

/// What distinguishes a connection from others of the same address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Standing {
    pub proof: Proof,
    /// The port is reserved, so root of the peer's host made the connection.
    pub reserved: bool,
}

impl Standing {
    /// Whether this caller may use what one with `made` has created.
    pub fn is_as_good_as(&self, made: &Standing) -> bool {
        let proven = match made.proof {
            Proof::Nothing => true,
            Proof::Private => self.proof != Proof::Nothing,
            Proof::Holder(_) => self.proof == made.proof,
        };
        proven && (self.reserved || !made.reserved)
    }
}

/// Where a connection comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Origin {
    pub source: Source,
    pub standing: Standing,
}

/// Bytes of [`Origin::bytes`] and [`Identity::bytes`].
const ORIGIN_BYTES: usize = 43;
/// Where the holder of a certificate begins in it: after the kind and the source of the address, and the proof.
const HOLDER_AT: usize = 10;
pub const IDENTITY_BYTES: usize = ORIGIN_BYTES + 8;

impl Origin {
    pub fn of(peer: Peer, security: Option<Security>) -> Origin {
        let proof = match security {
            None => Proof::Nothing,
            Some(Security { holder: None }) => Proof::Private,
            Some(Security { holder: Some(holder) }) => Proof::Holder(holder),
        };
        let standing = Standing { proof, reserved: Ports::Reserved.include(peer) };
        Origin { source: Source::of(peer), standing }
    }

    /// All fields as bytes; different origins have different bytes.
    pub fn bytes(&self) -> [u8; ORIGIN_BYTES] {
        let (kind, source) = match self.source {
            Source::V4(ip) => (4, u64::from(ip.to_bits())),
            Source::V6(prefix) => (6, prefix),
            Source::Local => (0, 0),
        };
        let (proof, holder) = match self.standing.proof {
            Proof::Nothing => (0, [0; 32]),
            Proof::Private => (1, [0; 32]),
            Proof::Holder(Holder(holder)) => (2, holder),
        };
        let mut bytes = [0; ORIGIN_BYTES];
        let parts = [&[kind][..], &source.to_be_bytes(), &[proof], &holder, &[self.standing.reserved.into()]];
        bytes.iter_mut().zip(parts.iter().copied().flatten()).for_each(|(to, from)| *to = *from);
        bytes
    }
}

/// The creator of a client's record, or a caller that wants to use it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Identity {
    pub principal: Principal,
    pub origin: Origin,
}

impl Identity {
    /// The form that is remembered over a restart.
    pub fn bytes(&self) -> [u8; IDENTITY_BYTES] {
        let mut bytes = [0; IDENTITY_BYTES];
        let mut origin = self.origin.bytes();
        let Principal { flavor, uid, proved } = self.principal;
        if let Some(PrincipalId(proved)) = proved {
            // In the place of a certificate's holder, together with it, so that the form keeps its length.
            let mut digest = Context::new(&SHA256);
            digest.update(&origin);
            digest.update(&proved);
            let both = digest.finish();
            origin.iter_mut().skip(HOLDER_AT).zip(both.as_ref()).for_each(|(to, from)| *to = *from);
        }
        let all = origin.into_iter().chain(flavor.to_be_bytes()).chain(uid.to_be_bytes());
        bytes.iter_mut().zip(all).for_each(|(to, from)| *to = from);
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STANDINGS: [Standing; 6] = {
        let (a, b) = (Proof::Holder(Holder([1; 32])), Proof::Holder(Holder([2; 32])));
        [
            Standing { proof: Proof::Nothing, reserved: false },
            Standing { proof: Proof::Nothing, reserved: true },
            Standing { proof: Proof::Private, reserved: true },
            Standing { proof: a, reserved: true },
            Standing { proof: b, reserved: true },
            Standing { proof: a, reserved: false },
        ]
    };

    #[test]
    fn nobody_uses_what_was_made_with_more_than_he_has() {
        // Rows are callers, columns are creators.
        let may = |asks: usize| STANDINGS.map(|made| STANDINGS[asks].is_as_good_as(&made));
        assert_eq!(may(0), [true, false, false, false, false, false]);
        assert_eq!(may(1), [true, true, false, false, false, false]);
        assert_eq!(may(2), [true, true, true, false, false, false]);
        assert_eq!(may(3), [true, true, true, true, false, true]);
        assert_eq!(may(4), [true, true, true, false, true, false]);
        assert_eq!(may(5), [true, false, false, false, false, true]);
    }

    #[test]
    fn others_have_other_bytes() {
        let sources = [
            Source::V4([192, 0, 2, 1].into()),
            Source::V4([192, 0, 2, 2].into()),
            Source::V6(1),
            Source::Local,
        ];
        let mut seen = std::collections::HashSet::new();
        for source in sources {
            for standing in STANDINGS {
                let origin = Origin { source, standing };
                let claimed = [0, 1000].map(|uid| Principal { flavor: 1, uid, proved: None });
                let proved = [[1; 32], [2; 32]].map(|id| Principal {
                    flavor: 6,
                    uid: u32::MAX,
                    proved: Some(PrincipalId(id)),
                });
                for principal in claimed.into_iter().chain(proved) {
                    assert!(seen.insert(Identity { principal, origin }.bytes()));
                }
            }
        }
    }
}
