//! Writes to a full disk wait until there is space (docs/replication.md, "Full disks").
//!
//! While a side is opened or closed they do not wait: a full disk is an error then.

use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock, Weak};
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
    watcher: OnceLock<Weak<dyn Watcher>>,
}

/// Is told of a disk that becomes full, and of one that has space again.
pub(crate) trait Watcher: Send + Sync {
    /// [`Space::is_wanted`] has changed. The caller may be in a drop, but is in no event.
    fn space_has_changed(&self);
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

    /// Tells this one, and no later one, from now on.
    pub fn tell(&self, watcher: Weak<dyn Watcher>) {
        self.0.watcher.get_or_init(|| watcher);
    }

    /// One write waits for space now, or no longer, beside so many others.
    fn changes(&self, others: usize) {
        if others == 0
            && let Some(watcher) = self.0.watcher.get().and_then(Weak::upgrade)
        {
            watcher.space_has_changed();
        }
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
        let others = self.0.0.waiting.fetch_sub(1, Ordering::AcqRel).saturating_sub(1);
        self.0.changes(others);
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
                    Err(Error::NoSpace | Error::OverQuota)
                        if self.space.0.patient.load(Ordering::Acquire) =>
                    {
                        if waits.is_none() {
                            tracing::warn!("{} is full: writes to it wait; free some space", self.what);
                            let others = self.space.0.waiting.fetch_add(1, Ordering::AcqRel);
                            waits = Some(Waits(&self.space));
                            self.space.changes(others);
                        }
                        rt::sleep(RETRY).await;
                    }
                    done => return done,
                }
            }
        })
    }
}
