//! Writes to a full disk wait until there is space (docs/replication.md, "Full disks").
//!
//! While a side is opened or closed they do not wait: a full disk is an error then.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use futures_util::future::LocalBoxFuture;
use weft_machine::{File, rt};
use weft_store::Error;
use weft_store::block::{Block, BlockOp, Geometry, Outcome};

use crate::journal::Side;

/// Why a decision of an administrator is not carried out.
pub(crate) const FULL: &str = "a disk is full here: make room first, and try again";

/// How often somebody who does not wait for space looks whether there is any.
pub(crate) const LOOK: Duration = Duration::from_millis(100);

/// How often a write that waits for space is tried again.
const RETRY: Duration = Duration::from_secs(1);

/// Whether the disks of one side are full. Cloning shares it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Space(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    patient: AtomicBool,
    /// Writes that wait for space.
    waiting: AtomicUsize,
}

impl Space {
    /// Wraps the blocks of a side: their writes wait for space once [`Space::be_patient`] was called.
    pub fn of(&self, side: &Side) -> Side {
        let patient = |block: &Arc<dyn Block>, what: String| -> Arc<dyn Block> {
            let what = format!("group {}: the disk of {what}", side.names.group());
            Arc::new(Patient { block: block.clone(), space: self.clone(), what })
        };
        let member = |(number, block)| patient(block, side.names.volume(number));
        Side {
            journal: patient(&side.journal, "its journal".into()),
            members: side.members.iter().enumerate().map(member).collect(),
            ..side.clone()
        }
    }

    /// Makes writes wait for space from now on, or fail.
    pub fn be_patient(&self, patient: bool) {
        self.0.patient.store(patient, Ordering::Release);
    }

    /// Whether something waits for space.
    pub fn is_wanted(&self) -> bool {
        self.0.waiting.load(Ordering::Acquire) > 0
    }

    /// Carries out a step, unless it takes longer than a moment while something waits for space.
    pub async fn unless_full<T>(&self, step: impl Future<Output = T>) -> Option<T> {
        let mut step = pin!(step);
        loop {
            if let Ok(done) = rt::timeout(LOOK, step.as_mut()).await {
                return Some(done);
            }
            if self.is_wanted() {
                return None;
            }
        }
    }
}

/// A block whose writes wait for space.
#[derive(Debug)]
struct Patient {
    block: Arc<dyn Block>,
    space: Space,
    /// Its name in messages, with its group.
    what: String,
}

/// Counts one waiting write until it is dropped.
struct Waits<'a>(&'a Space);

impl Drop for Waits<'_> {
    fn drop(&mut self) {
        self.0.0.waiting.fetch_sub(1, Ordering::AcqRel);
    }
}

impl Block for Patient {
    fn geometry(&self) -> Geometry {
        self.block.geometry()
    }

    fn memory(&self) -> Option<&File> {
        self.block.memory()
    }

    fn submit(&self, op: BlockOp) -> LocalBoxFuture<'_, Result<Outcome, Error>> {
        if matches!(op, BlockOp::Read { .. } | BlockOp::Status { .. }) {
            return self.block.submit(op);
        }
        Box::pin(async move {
            let mut waits = None;
            loop {
                match self.block.submit(op.clone()).await {
                    Err(Error::NoSpace) if self.space.0.patient.load(Ordering::Acquire) => {
                        if waits.is_none() {
                            tracing::warn!("{} is full: writes to it wait; free some space", self.what);
                            self.space.0.waiting.fetch_add(1, Ordering::AcqRel);
                            waits = Some(Waits(&self.space));
                        }
                        rt::sleep(RETRY).await;
                    }
                    done => return done,
                }
            }
        })
    }
}
