//! A named stream as an open object.
//!
//! The location of its bytes may change: a stream that outgrows its attribute moves to its own file, which from then
//! on handles every operation.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use weft_machine::{File, Payload, PayloadSource, Pool};

use super::object::{Done, Object, ObjectOp, Submission};
use super::stream::{Content, Stream};
use super::{Error, OpenFile};

/// See the module.
#[derive(Debug)]
pub(super) struct OpenStream {
    stream: Arc<Stream>,
    content: Arc<Content>,
    /// Failed flushes of the stream that this open has been told about.
    told: AtomicU64,
}

impl OpenStream {
    async fn sync(&self) -> Result<(), Error> {
        let done = Box::pin(self.stream.sync(&self.content)).await;
        let failures = self.stream.failed_flushes();
        let is_news = self.told.fetch_max(failures, Ordering::SeqCst) < failures;
        done?;
        // The flush of another open has failed, and what this one has written may be lost as well.
        if is_news { Err(rustix::io::Errno::IO.into()) } else { Ok(()) }
    }

    /// Changes a stream that was small a moment ago, up to `end`.
    async fn change<'a>(&'a self, op: ObjectOp<'a>, end: u64) -> Result<Done, Error> {
        // A small stream is changed by one task at a time, which owns it until the change is stored.
        let alone = Box::pin(self.stream.begin(&self.content, end)).await?;
        let done = self.content.object().submit(op).await?;
        if alone.is_some() {
            Box::pin(self.stream.save(&self.content)).await?;
        }
        Ok(done)
    }

    async fn append<'a>(&'a self, op: ObjectOp<'a>, len: u64) -> Result<Done, Error> {
        let end = self.content.len().await?;
        self.change(op, end.checked_add(len).ok_or(Error::Invalid)?).await
    }
}

impl Stream {
    /// Opens its content.
    pub(super) async fn open(self: &Arc<Stream>, write: bool) -> Result<OpenFile, Error> {
        let content = self.load().await?;
        if write && content.large().is_some_and(|file| file.object().is_read_only()) {
            return Err(Error::Access);
        }
        let told = AtomicU64::new(self.failed_flushes());
        let file = OpenFile::new(self.id, Arc::new(OpenStream { stream: self.clone(), content, told }));
        Ok(if write { file } else { file.read_only() })
    }
}

impl Object for OpenStream {
    fn submit<'a>(&'a self, op: ObjectOp<'a>) -> Submission<'a> {
        let op = match op {
            ObjectOp::Sync { ended } => {
                return Submission::later(async {
                    let done = self.sync().await;
                    ended(&done);
                    done.map(|()| Done::Done)
                });
            }
            op => op,
        };
        if matches!(op, ObjectOp::Write { source: PayloadSource::Remote { .. }, .. }) {
            // Bytes written to a small stream must also go to its attribute.
            return Submission::Now(Ok(Done::NeedsMemory));
        }
        if let ObjectOp::Append { bytes, .. } = &op {
            let len = bytes.len() as u64;
            return Submission::later(self.append(op, len));
        }
        let end = op.grows_to().unwrap_or(0);
        if op.changes() && (self.content.large().is_none() || end > super::MAX_STREAM_BYTES) {
            return Submission::later(self.change(op, end));
        }
        self.content.object().submit(op)
    }

    fn content(&self) -> Option<&File> {
        self.content.object().content()
    }

    fn read_now(&self, pool: &Pool, offset: u64, len: usize) -> Option<Payload> {
        self.content.object().read_now(pool, offset, len)
    }

    fn is_read_only(&self) -> bool {
        self.content.object().is_read_only()
    }
}
