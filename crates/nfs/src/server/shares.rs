//! What happens when the shares are replaced.
//!
//! [`Server::replace_shares`] installs the new list before it releases what clients hold in shares that are gone.
//! A request that still uses an old list may enter something in between. So every table is entered under a lock, or
//! followed by a check, that finds the share gone: see `OpenFiles::open`, `Client::hold` and `nlm`.

use futures_util::future::LocalBoxFuture;
use weft_machine::rt;
use weft_store::{Share, ShareKey};

use super::{Server, nlm, v4};

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
    pub fn replace_shares(&self, shares: Vec<Share>) -> LocalBoxFuture<'_, ()> {
        Box::pin(async move {
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
        })
    }
}

#[cfg(test)]
mod tests;
