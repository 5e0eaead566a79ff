//! A backend whose files are far away: each operation on their bytes is answered later, may overtake others, and fails on request.
//! Without descriptors only the operations remain; with them, an open file keeps its other capabilities.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Instant;

use futures_util::future::LocalBoxFuture;
use weft_machine::{File, Payload, PayloadSource, Pool, rt};

use super::api::object::Ended;
use super::api::*;

/// Files of `inner`, far away.
#[derive(Clone)]
pub struct Far {
    inner: Arc<dyn Backend>,
    descriptors: bool,
    pool: Pool,
    /// Whether every operation on a file's bytes fails.
    pub fails: Arc<AtomicBool>,
    calls: Arc<AtomicUsize>,
    /// How often it was asked where a node is.
    pub places: Arc<AtomicUsize>,
}

impl Far {
    /// Files without descriptors.
    pub fn new(inner: impl Backend + 'static) -> Far {
        let (fails, calls, places) = Default::default();
        Far { inner: Arc::new(inner), descriptors: false, pool: Pool::new(32 << 20), fails, calls, places }
    }

    /// Files with the descriptors that those of `inner` have.
    pub fn with_descriptors(inner: impl Backend + 'static) -> Far {
        Far { descriptors: true, ..Far::new(inner) }
    }
}

impl Backend for Far {
    fn kind(&self) -> &'static str {
        self.inner.kind()
    }
    fn is_read_only(&self) -> bool {
        self.inner.is_read_only()
    }
    fn changes_on_the_host(&self) -> bool {
        self.inner.changes_on_the_host()
    }
    fn sweep(&self, max: usize) {
        self.inner.sweep(max);
    }
    fn tidy(&self, now: Instant) {
        self.inner.tidy(now);
    }
    fn submit(&self, op: Op, by: Caller) -> LocalBoxFuture<'_, Result<Outcome, Error>> {
        Box::pin(async {
            if matches!(op, Op::Place { .. }) {
                self.places.fetch_add(1, Ordering::SeqCst);
            }
            Ok(match self.inner.submit(op, by).await? {
                Outcome::File(file) => {
                    Outcome::File(OpenFile::new(file.node, Arc::new(FarFile { file, far: self.clone() })))
                }
                other => other,
            })
        })
    }
    fn observe(
        self: Arc<Self>,
        dir: NodeId,
        recursive: bool,
        watches: &Arc<Watches>,
    ) -> LocalBoxFuture<'static, Option<Box<dyn std::any::Any + Send + Sync>>> {
        self.inner.clone().observe(dir, recursive, watches)
    }
}

struct FarFile {
    file: OpenFile,
    far: Far,
}

impl std::fmt::Debug for FarFile {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("FarFile")
    }
}

impl FarFile {
    /// The round trip; operations differ in its length.
    async fn travel(&self) -> Result<(), Error> {
        let turns = self.far.calls.fetch_add(1, Ordering::SeqCst) % 3;
        rt::spawn(async move {
            for _ in 0..=turns {
                rt::yield_now().await;
            }
        })
        .await;
        match self.far.fails.load(Ordering::SeqCst) {
            true => Err(Error::Io(std::io::Error::from_raw_os_error(5))),
            false => Ok(()),
        }
    }

    /// The same for a flush, of which others hear as well.
    async fn sync(&self, ended: Ended) -> Result<Done, Error> {
        if let Err(e) = self.travel().await {
            let done = Err(e);
            ended(&done);
            return done.map(|()| Done::Done);
        }
        self.file.object().submit(ObjectOp::Sync { ended }).await
    }

    async fn copy(&self, at: u64, from: &dyn Object, offset: u64, len: u64) -> Result<Done, Error> {
        let len = usize::try_from(len).map_err(|_| Error::TooLarge)?;
        let Done::Data(data) = from.submit(ObjectOp::Read { offset, len, size: None }).await? else {
            panic!("a read answers with data");
        };
        let chain = data.into_chain(&self.far.pool).await?;
        self.file.write(at, &chain).await?;
        Ok(Done::Copied(chain.iter().map(|piece| piece.len() as u64).sum()))
    }
}

impl Object for FarFile {
    fn submit<'a>(&'a self, op: ObjectOp<'a>) -> Submission<'a> {
        let descriptors = self.far.descriptors;
        let op = match op {
            ObjectOp::Sync { ended } => return Submission::later(self.sync(ended)),
            ObjectOp::Write { source: PayloadSource::Remote { .. }, .. } if !descriptors => {
                return Submission::Now(Ok(Done::NeedsMemory));
            }
            op => op,
        };
        Submission::later(async move {
            self.travel().await?;
            let op = match op {
                ObjectOp::Copy { at, from, offset, len } if !descriptors => {
                    return self.copy(at, from, offset, len).await;
                }
                op => op,
            };
            Ok(match self.file.object().submit(op).await? {
                Done::Data(data) if !descriptors => {
                    Done::Data(Payload::Chain(data.into_chain(&self.far.pool).await?))
                }
                other => other,
            })
        })
    }

    fn plain(&self) -> Option<&File> {
        self.file.object().plain().filter(|_| self.far.descriptors)
    }

    fn content(&self) -> Option<&File> {
        self.file.object().content().filter(|_| self.far.descriptors)
    }

    fn is_read_only(&self) -> bool {
        self.file.object().is_read_only()
    }
}
