//! The shares as a connection sees them.
//!
//! A request uses one [`PeerShares`] until it ends, so it sees one configuration. The connection keeps it for the next
//! requests until there is a newer list of shares, so a request costs one atomic load more and no lock.

use std::sync::Arc;

use weft_store::rules::{ActsAs, Protection};
use weft_store::{Share, ShareList};
use weft_transport::Peer;

use weft_wire::rpc::Credential;

use super::caller::{Caller, Policy};

/// A list of shares, and what its rules mean for one peer.
pub(super) struct PeerShares {
    pub list: Arc<ShareList>,
    /// Whether each call of this peer must be checked against the rules of its share: some share has rules, or the peer
    /// has a port that not every share admits.
    pub ruled: bool,
    /// Whether some share admits callers from this address, whatever the protection of their connection.
    pub admits: bool,
    /// Whether some share admits callers over this connection. Callers that no share admits have no access to
    /// clients' records.
    pub let_in: bool,
    /// Whether some share acts for its callers.
    pub act: bool,
}

impl PeerShares {
    /// The same shares, acting for a caller where they act for their callers.
    pub fn acting_for(&self, credential: &Credential, policy: Policy) -> PeerShares {
        let mut credential = credential.clone();
        if let Credential::Sys(sys) = &mut credential {
            // It would keep the call's whole receive buffer in use.
            sys.machine_name = Default::default();
        }
        let view = move |share: &Share| {
            let caller = Caller::by(&credential, policy, &share.rules.nfs);
            Share { vfs: share.vfs.acting_as(caller.acting(&share.rules.acts)), ..share.clone() }
        };
        // What a caller may do in a share is no longer the same in all.
        PeerShares { list: Arc::new(self.list.viewed(view)), ruled: true, ..*self }
    }

    /// These shares for a peer whose connection has this protection.
    pub fn new(list: Arc<ShareList>, policy: Policy, peer: Peer, protection: Protection) -> PeerShares {
        let ports = policy.ports();
        let rules = || list.iter().map(|share| &share.rules.nfs);
        let ruled = rules().any(|export| !export.is_plain()) || !ports.include(peer);
        let admits = rules().any(|export| export.admits(peer, ports).is_ok());
        let let_in = rules().any(|export| export.lets_in(peer, ports, protection));
        let act = list.iter().any(|share| share.rules.acts != ActsAs::Server);
        PeerShares { list, ruled, admits, let_in, act }
    }
}
