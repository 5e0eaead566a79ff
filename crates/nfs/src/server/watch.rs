//! What a connection has shown of its client, for the server's administrator.
//!
//! See RFC 5531 appendix A (AUTH_SYS: a claimed identity). Without a ticket, these are claims; `caller` decides who is served as whom.
//! The values stay on the connection's core.

use std::cell::{Cell, RefCell};

use super::credential::Credential;

/// Most users remembered for a connection; later ones are not shown.
const MAX_USERS: usize = 16;

/// What was seen; pass it to [`crate::server::Server::serve_watched`].
#[derive(Debug, Default)]
pub struct Watch {
    version: Cell<Option<(u32, u32)>>,
    /// The last caller, because most calls come from the same user.
    last: Cell<Option<u32>>,
    users: RefCell<Vec<u32>>,
}

impl Watch {
    /// NFS version and minor version of the last call; `None` before the first one.
    pub fn version(&self) -> Option<(u32, u32)> {
        self.version.get()
    }

    /// The user ids that the client's calls claimed (AUTH_SYS) or proved (RPCSEC_GSS), in order of appearance.
    pub fn users(&self) -> Vec<u32> {
        self.users.borrow().clone()
    }

    /// Notes a call of this version by a caller who has called before.
    pub(super) fn called_again(&self, version: u32, minor: u32) {
        self.version.set(Some((version, minor)));
    }

    /// Notes a call of this version. It costs a comparison and a store, because every READ and WRITE passes here.
    pub(super) fn called(&self, version: u32, minor: u32, credential: &Credential) {
        self.version.set(Some((version, minor)));
        if let Some((uid, _, _)) = credential.ids()
            && self.last.get() != Some(uid)
        {
            self.last.set(Some(uid));
            let mut users = self.users.borrow_mut();
            if users.len() < MAX_USERS && !users.contains(&uid) {
                users.push(uid);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use weft_wire::rpc::AuthSys;

    use super::*;

    #[test]
    fn users_are_told_once_and_not_without_end() {
        let watch = Watch::default();
        assert_eq!((watch.version(), watch.users()), (None, vec![]));
        let by = |uid| Credential::Sys(AuthSys::new("host".into(), uid, 0));
        for uid in [0, 1000, 1000, 0] {
            watch.called(4, 1, &by(uid));
        }
        watch.called(4, 2, &Credential::None);
        assert_eq!((watch.version(), watch.users()), (Some((4, 2)), vec![0, 1000]));
        (0..100).for_each(|uid| watch.called(3, 0, &by(uid)));
        assert_eq!((watch.version(), watch.users().len()), (Some((3, 0)), MAX_USERS));
    }
}
