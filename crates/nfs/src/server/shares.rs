//! The shares as a connection sees them, and what happens when they are replaced.
//!
//! A request uses one [`PeerShares`] until it ends, so it sees one configuration. The connection keeps it for the next
//! requests until there is a newer list of shares, so a request costs one atomic load more and no lock.
//!
//! [`Server::replace_shares`] installs the new list before it releases what clients hold in shares that are gone.
//! A request that still uses an old list may enter something in between. So every table is entered under a lock, or
//! followed by a check, that finds the share gone: see `OpenFiles::open`, `Client::hold` and `nlm`.

use std::sync::Arc;

use weft_machine::rt;
use weft_store::rules::Protection;
use weft_store::{Share, ShareKey, ShareList};
use weft_transport::Peer;

use super::caller::Policy;
use super::{Server, nlm, v4};

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
}

impl PeerShares {
    /// These shares for a peer whose connection has this protection.
    pub fn new(list: Arc<ShareList>, policy: Policy, peer: Peer, protection: Protection) -> PeerShares {
        let ports = policy.ports();
        let rules = || list.iter().map(|share| &share.rules.nfs);
        PeerShares {
            ruled: rules().any(|export| !export.is_plain()) || !ports.include(peer),
            admits: rules().any(|export| export.admits(peer, ports).is_ok()),
            let_in: rules().any(|export| export.lets_in(peer, ports, protection)),
            list,
        }
    }
}

/// A share as NFS serves it: changes are durable when they are answered, unless its rules say otherwise.
pub(super) fn settled(share: Share) -> Share {
    match share.rules.nfs.asynchronous {
        true => share,
        false => Share { vfs: share.vfs.clone().settled(), ..share },
    }
}

impl Server {
    /// Serves these shares from the next requests on. A share with the id and the file system of an earlier one keeps
    /// its handles, and what clients hold in it; its new rules apply to them at once. The handles of all others become
    /// stale (RFC 1813 2.6, RFC 8881 4.2.2), and their opens, locks and delegations are released before this returns.
    ///
    /// A share that returns by the same name with other files has other handles, unless the files are the same on
    /// disk: then the handles are valid again, as after a restart.
    pub async fn replace_shares(&self, shares: Vec<Share>) {
        let _one_at_a_time = self.replacing.lock().await;
        let shares: Vec<Share> = shares.into_iter().map(settled).collect();
        let new = || shares.iter().filter(|share| !self.shares.serves(share.key()));
        self.files.follow(new());
        // Their tables of opens are those of other protocols, too.
        self.states.grace.reserve(new().map(|share| share.vfs.opens()), rt::now());
        let old = self.shares.replace(shares);
        let gone: Vec<ShareKey> =
            old.iter().map(|share| share.key()).filter(|key| !self.shares.serves(*key)).collect();
        if gone.is_empty() {
            return;
        }
        self.handles.forget(&gone);
        self.mounts.keep_of(&self.shares.now());
        v4::release(self, &gone).await;
        nlm::release(self, &old, &gone).await;
        self.files.close(&gone).await;
    }
}

#[cfg(test)]
mod tests;
