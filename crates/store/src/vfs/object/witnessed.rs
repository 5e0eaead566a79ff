//! An open file whose changes are reported to watches of directories.
//!
//! Cost: while nobody watches, one atomic load per change.

use std::sync::Arc;

use bytes::Bytes;
use weft_machine::clock;

use super::super::stream::Stream;
use super::super::watch::{What, Witness};
use super::super::{Error, NodeId};
use super::{Done, Layer, Object, ObjectOp, Submission};

/// The changing object.
#[derive(Debug)]
pub enum Told {
    /// A file.
    File(NodeId),
    /// A stream of a file.
    Stream(Arc<Stream>),
}

/// See the module.
#[derive(Debug)]
pub struct Witnessed {
    inner: Arc<dyn Object>,
    told: Told,
    witness: Witness,
}

impl Witnessed {
    /// Reports changes through `inner` to `witness`.
    pub fn new(inner: Arc<dyn Object>, told: Told, witness: Witness) -> Witnessed {
        Witnessed { inner, told, witness }
    }

    /// Before a change: marks it as our own for whoever sees it on the disk.
    fn mark(&self) {
        let own = self.witness.watches.own();
        if own.is_observed() {
            let node = match &self.told {
                Told::File(node) => *node,
                Told::Stream(stream) => stream.id,
            };
            own.content(node, clock::instant());
        }
    }

    async fn changed(&self, what: What) {
        match &self.told {
            Told::File(node) => self.witness.modified(*node, what).await,
            Told::Stream(stream) => stream.modified(&self.witness).await,
        }
    }
}

impl Layer for Witnessed {
    fn inner(&self) -> &dyn Object {
        &*self.inner
    }

    fn submit<'a>(&'a self, op: ObjectOp<'a>) -> Submission<'a> {
        let what = match &op {
            ObjectOp::Allocate { .. } | ObjectOp::Resize { .. } => What::SIZE,
            ObjectOp::Zero { .. } => What::WRITTEN,
            ObjectOp::Exchange { .. } => return self.inner.submit(op),
            op if op.changes() => What::SIZE | What::WRITTEN,
            _ => return self.inner.submit(op),
        };
        self.mark();
        let done = self.inner.submit(op);
        done.then(move |done| {
            let changed = matches!(done, Ok(Done::Done | Done::Copied(_)));
            if !changed || !self.witness.is_watched() {
                return Submission::Now(done);
            }
            Submission::later(async move {
                self.changed(what).await;
                done
            })
        })
    }

    fn write_now(&self, offset: u64, chain: &[Bytes]) -> Option<Result<(), Error>> {
        // Reporting may have to wait.
        if self.witness.is_watched() {
            return None;
        }
        self.mark();
        self.inner.write_now(offset, chain)
    }
}
