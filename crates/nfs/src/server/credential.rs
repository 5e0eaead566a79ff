//! A caller's credential: claimed by AUTH_SYS, or proved by a Kerberos ticket.
//!
//! See RFC 5531 appendix A (AUTH_SYS: claims) and RFC 2203 (RPCSEC_GSS: proofs, see `gss`). [`Ticket`] is the caller as
//! far as the ticket tells: the principal, and the user for whom it stands. `caller` applies the rules of a share to it.

use std::collections::HashMap;
use std::sync::Arc;

use ring::digest::{Context, SHA256};
use weft_kerberos::Principal;
use weft_store::ShareId;
use weft_store::rights::Right;
use weft_wire::rpc::AuthSys;
use weft_wire::rpc::gss::Service;

/// Who calls.
#[derive(Clone, Debug)]
pub(super) enum Credential {
    /// AUTH_NONE.
    None,
    /// AUTH_SYS.
    Sys(AuthSys),
    /// RPCSEC_GSS: how the call is protected, and whose ticket established its context.
    Ticket(Service, Arc<Ticket>),
}

impl Credential {
    /// The ids of the user: claimed ones, or those of a ticket's user. `None` is the anonymous user.
    pub fn ids(&self) -> Option<(u32, u32, &[u32])> {
        match self {
            Credential::Sys(sys) => Some((sys.uid, sys.gid, sys.gids())),
            Credential::Ticket(_, ticket) => {
                ticket.ids.as_ref().map(|ids| (ids.uid, ids.gid, &ids.groups[..]))
            }
            Credential::None => None,
        }
    }

    /// The ticket of a caller who has proved a principal.
    pub fn ticket(&self) -> Option<&Ticket> {
        match self {
            Credential::Ticket(_, ticket) => Some(ticket),
            Credential::None | Credential::Sys(_) => None,
        }
    }
}

/// A proved principal. Two principals are never equal, even if both stand for the same user.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PrincipalId(pub [u8; 32]);

impl PrincipalId {
    /// The id of a principal, the same after a restart.
    pub fn of(principal: &Principal) -> PrincipalId {
        let mut digest = Context::new(&SHA256);
        for part in [&principal.realm, &principal.name] {
            digest.update(&(part.len() as u64).to_be_bytes());
            digest.update(part.as_bytes());
        }
        let mut id = [0; 32];
        id.copy_from_slice(digest.finish().as_ref());
        PrincipalId(id)
    }
}

/// The ids of an account of the system.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Ids {
    pub uid: u32,
    pub gid: u32,
    pub groups: Vec<u32>,
}

/// What a ticket has proved.
#[derive(Clone, Debug)]
pub(super) struct Ticket {
    pub principal: PrincipalId,
    /// The account of the user; `None`: the principal stands for nobody who has one.
    pub ids: Option<Ids>,
    /// The right in each share that has rights. A share that is missing here grants none.
    pub rights: HashMap<ShareId, Right>,
}
