//! Paths, and the operations that lead to them.
//!
//! See RFC 8881 18.13 (LOOKUP) and 18.21 (PUTROOTFH). Symbolic links are not followed.

use bytes::Bytes;
use weft_wire::nfs4::{Op, Text, opnum};

use super::opened::skip;
use super::session::{Client, Keep};
use crate::client::Error;
use crate::client::rpc::Cargo;

/// Longest name sent.
const MAX_NAME: usize = 1024;
/// Names walked in one compound.
const MAX_WALK: usize = 8;

/// A starting point, and the names still to be walked from it.
pub(super) struct PendingWalk {
    /// PUTROOTFH or PUTFH.
    pub from: Op,
    pub names: Vec<Text>,
}

impl PendingWalk {
    /// The operations that lead there. The leading part of a long path is walked in compounds of its own first.
    pub async fn walk(&mut self, client: &Client) -> Result<Vec<Op>, Error> {
        while self.names.len() > MAX_WALK {
            let rest = self.names.split_off(MAX_WALK);
            let walked = self.ops();
            let ops = || [&walked[..], &[Op::Getfh]].concat();
            let mut results = client.run(ops, Keep::No, None, Cargo::default()).await?;
            skip(&mut results, &walked)?;
            *self = PendingWalk { from: Op::Putfh(results.ok(opnum::GETFH)?), names: rest };
        }
        Ok(self.ops())
    }

    fn ops(&self) -> Vec<Op> {
        let names = self.names.iter().cloned().map(Op::Lookup);
        std::iter::once(self.from.clone()).chain(names).collect()
    }
}

/// The names of a path.
pub(super) fn names(path: &str) -> Result<Vec<Text>, Error> {
    let names = path.split('/').filter(|name| !name.is_empty() && *name != ".");
    names
        .map(|name| match name {
            ".." => Err(Error::BadPath),
            name if name.len() > MAX_NAME => Err(Error::BadPath),
            name => Ok(Text(Bytes::copy_from_slice(name.as_bytes()))),
        })
        .collect()
}
