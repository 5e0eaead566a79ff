//! The shares of a server, which handles and tables identify by their ids.
//!
//! An id does not depend on the other shares; nothing stored refers to a position in the list.

use weft_store::{Share, ShareId};

/// The exported shares, in listing order.
pub(super) struct Shares(Vec<Share>);

impl Shares {
    /// Shares, whose names must differ.
    pub fn new(shares: Vec<Share>) -> Shares {
        Shares(shares)
    }

    /// The share with this id.
    pub fn get(&self, id: ShareId) -> Option<&Share> {
        self.0.iter().find(|share| share.id == id)
    }

    /// The share with this name.
    pub fn named(&self, name: &[u8]) -> Option<&Share> {
        self.0.iter().find(|share| share.name.as_bytes() == name)
    }

    /// All of them.
    pub fn iter(&self) -> std::slice::Iter<'_, Share> {
        self.0.iter()
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.0.len()
    }
}

#[cfg(test)]
impl std::ops::Index<usize> for Shares {
    type Output = Share;

    fn index(&self, at: usize) -> &Share {
        &self.0[at]
    }
}

#[cfg(test)]
impl<'a> IntoIterator for &'a Shares {
    type Item = &'a Share;
    type IntoIter = std::slice::Iter<'a, Share>;

    fn into_iter(self) -> std::slice::Iter<'a, Share> {
        self.iter()
    }
}

#[cfg(test)]
mod tests {
    use weft_store::backend::Ram;
    use weft_store::{NodeId, Vfs};
    use weft_wire::nfs3::{GetattrArgs, GetattrOk, Outcome, PROGRAM, VERSION, procedure};

    use super::*;
    use crate::server::tests::{handle_of, results_for};
    use crate::server::{Config, Limits, Policy, Server};

    /// Regression: when the first of two shares was removed, the second took over its file system id.
    #[test]
    fn a_share_is_the_same_to_clients_when_another_one_goes() {
        let seen = |names: &[&str]| {
            let share = |name: &&str| Share::new(*name, Vfs::new(Ram::new(1 << 20)));
            let config = Config {
                shares: names.iter().map(share).collect(),
                pool: weft_machine::Pool::new(0),
                limits: Limits::default(),
                policy: Policy { decides: false, squash_root: true },
                durable: None,
            };
            let server = Server::new(config);
            let at = names.iter().position(|name| *name == "data").unwrap();
            let args = GetattrArgs { object: handle_of(&server, at, NodeId::ROOT) };
            let number = (PROGRAM, VERSION, procedure::GETATTR);
            let got = results_for::<Outcome<GetattrOk, ()>>(&server, "192.0.2.1:700", number, &args);
            weft_machine::rt::block_on(got).unwrap().unwrap().attributes.fsid
        };
        assert_eq!(seen(&["gone", "data"]), seen(&["data"]));
        assert_ne!(seen(&["data"]), 0, "that is the pseudo file system's");
    }
}
