//! A backend whose files have no descriptor: another task holds their bytes, and answers later or fails on request.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use futures_util::future::LocalBoxFuture;
use weft_machine::{Payload, Pool, rt};

use super::api::*;

/// Files of `inner`, far away.
#[derive(Clone)]
pub struct Far {
    inner: Arc<dyn Backend>,
    pool: Pool,
    /// Whether every operation on a file's bytes fails.
    pub fails: Arc<AtomicBool>,
}

impl Far {
    pub fn new(inner: impl Backend + 'static) -> Far {
        Far { inner: Arc::new(inner), pool: Pool::new(32 << 20), fails: Arc::default() }
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
    fn submit(&self, op: Op) -> LocalBoxFuture<'_, Result<Outcome, Error>> {
        Box::pin(async {
            Ok(match self.inner.submit(op).await? {
                Outcome::File(file) => {
                    let (pool, fails) = (self.pool.clone(), self.fails.clone());
                    Outcome::File(OpenFile::new(file.node, Arc::new(FarFile { file, pool, fails })))
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
    pool: Pool,
    fails: Arc<AtomicBool>,
}

impl std::fmt::Debug for FarFile {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("FarFile")
    }
}

impl FarFile {
    /// The round trip.
    async fn travel(&self) -> Result<(), Error> {
        rt::spawn(rt::yield_now()).await;
        match self.fails.load(Ordering::SeqCst) {
            true => Err(Error::Io(std::io::Error::from_raw_os_error(5))),
            false => Ok(()),
        }
    }

    async fn copy(&self, at: u64, from: &dyn Object, offset: u64, len: u64) -> Result<Done, Error> {
        let len = usize::try_from(len).map_err(|_| Error::TooLarge)?;
        let Done::Data(data) = from.submit(ObjectOp::Read { offset, len, size: None }).await? else {
            panic!("a read answers with data");
        };
        let chain = data.into_chain(&self.pool).await?;
        self.file.write(at, &chain).await?;
        Ok(Done::Copied(chain.iter().map(|piece| piece.len() as u64).sum()))
    }
}

impl Object for FarFile {
    fn submit<'a>(&'a self, op: ObjectOp<'a>) -> Submission<'a> {
        if matches!(op, ObjectOp::Place { .. }) {
            return Submission::Now(Ok(Done::Placed(false)));
        }
        Submission::later(async move {
            self.travel().await?;
            let op = match op {
                ObjectOp::Copy { at, from, offset, len } => return self.copy(at, from, offset, len).await,
                op => op,
            };
            Ok(match self.file.object().submit(op).await? {
                Done::Data(data) => Done::Data(Payload::Chain(data.into_chain(&self.pool).await?)),
                other => other,
            })
        })
    }

    fn is_read_only(&self) -> bool {
        self.file.object().is_read_only()
    }
}
