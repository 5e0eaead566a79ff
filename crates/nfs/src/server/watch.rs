//! What a connection has shown of its client, for whoever runs the server.
//!
//! Spec: RFC 5531 appendix A (AUTH_SYS: who somebody claims to be). Owns: a few words of one connection, which stays on its core.
//! Does not: believe anything: who is served as whom is `caller`'s.

use std::cell::{Cell, RefCell};

use weft_wire::rpc::Credential;

/// Users of a connection that are remembered; who comes later is not shown.
const MAX_USERS: usize = 16;

/// What was seen; give it to [`crate::server::Server::serve_watched`].
#[derive(Debug, Default)]
pub struct Watch {
    version: Cell<Option<(u32, u32)>>,
    /// Who called last: most calls are the same user's.
    last: Cell<Option<u32>>,
    users: RefCell<Vec<u32>>,
}

impl Watch {
    /// Version and minor version of NFS, by the last call; `None` while there was none.
    pub fn version(&self) -> Option<(u32, u32)> {
        self.version.get()
    }

    /// The users that calls were made for, by the numbers that the client claims (AUTH_SYS), in the order in which they came.
    pub fn users(&self) -> Vec<u32> {
        self.users.borrow().clone()
    }

    /// A call of this version came. A compare and a store: READ and WRITE pass here.
    pub(super) fn called(&self, version: u32, minor: u32, credential: &Credential) {
        self.version.set(Some((version, minor)));
        if let Credential::Sys(sys) = credential
            && self.last.get() != Some(sys.uid)
        {
            self.last.set(Some(sys.uid));
            let mut users = self.users.borrow_mut();
            if users.len() < MAX_USERS && !users.contains(&sys.uid) {
                users.push(sys.uid);
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
