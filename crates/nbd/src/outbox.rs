//! Sends replies: a queue in order, gather writes, and sendfile.
//!
//! See doc/proto.md "NBD_CMD_READ", on errors after a reply has begun.
//!
//! Operation: replies that are in memory are sent together, in one call; a reply with a file range ends the batch and
//! is sent by sendfile. If a range proves unreadable after its header was sent, it is filled up with zeros and
//! followed by an error chunk; a simple reply cannot report that, and the connection ends.

use std::collections::VecDeque;
use std::io;

use bytes::Bytes;
use weft_machine::recorder::Operation;
use weft_machine::{FileRange, LogLimit, Payload, Pool, Stream, rt};
use weft_wire::nbd::transmission::{Chunk, Code};

use weft_machine::net::Link;

/// File bytes that are brought into the page cache, and then sent, at a time.
const WARM_BYTES: usize = 1 << 20;
/// Most bytes in one gather write when it begins.
const BATCH_BYTES: usize = 256 << 10;
/// Most zeros in one write that replaces the bytes of a chunk that could not be read.
const ZEROS_BYTES: usize = 64 << 10;

/// A reply, ready to send.
#[derive(Debug)]
pub(crate) struct Reply {
    /// Header and payload in memory.
    pub bytes: Vec<Bytes>,
    /// Payload that is still in a file, and what ends the reply after it.
    pub file: Option<(FileRange, Ending)>,
    /// WRITE bytes that the request counted in the limits.
    pub counted_bytes: usize,
}

/// How a reply with a file range ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Ending {
    /// After its last byte.
    Simple,
    /// With a chunk: an empty one, or an error.
    Chunk {
        /// The request's cookie.
        cookie: u64,
        /// Offset of the range in the export.
        offset: u64,
    },
}

#[derive(Debug, Default)]
pub(crate) struct Outbox {
    queue: VecDeque<(Reply, Operation)>,
    /// The requests whose replies are being sent. Each ends when it is dropped.
    sending: Vec<Operation>,
}

/// Replies that are sent together.
pub(crate) struct Batch {
    pub bytes: Vec<Bytes>,
    pub file: Option<(FileRange, Ending)>,
    /// Number of replies in it.
    pub replies: usize,
    /// Their WRITE bytes.
    pub counted_bytes: usize,
}

impl Outbox {
    pub(crate) fn push(&mut self, reply: Reply, operation: Operation) {
        self.queue.push_back((reply, operation));
    }

    /// The requests of the last batch, and of all that is queued behind it.
    pub(crate) fn operations(&mut self) -> impl Iterator<Item = &mut Operation> {
        let queued = self.queue.iter_mut().map(|(_, operation)| operation);
        self.sending.iter_mut().chain(queued)
    }

    /// The last batch was sent.
    pub(crate) fn sent(&mut self) {
        self.sending.clear();
    }

    pub(crate) fn len(&self) -> usize {
        self.queue.len()
    }

    /// Replies up to the first with a file range, or up to [`BATCH_BYTES`].
    pub(crate) fn take(&mut self) -> Option<Batch> {
        let mut batch = Batch { bytes: Vec::new(), file: None, replies: 0, counted_bytes: 0 };
        let mut gathered = 0usize;
        while gathered < BATCH_BYTES && batch.file.is_none() {
            let Some((reply, operation)) = self.queue.pop_front() else { break };
            self.sending.push(operation);
            gathered = gathered.saturating_add(reply.bytes.iter().map(Bytes::len).sum());
            batch.bytes.extend(reply.bytes);
            batch.file = reply.file;
            batch.replies = batch.replies.saturating_add(1);
            batch.counted_bytes = batch.counted_bytes.saturating_add(reply.counted_bytes);
        }
        (batch.replies > 0).then_some(batch)
    }
}

impl Batch {
    /// Sends the whole batch.
    pub(crate) async fn send(&self, link: &Link, pool: &Pool) -> io::Result<()> {
        let Some((range, ending)) = &self.file else { return link.send_all(&self.bytes).await };
        let read = match link.plain() {
            Some(stream) => {
                stream.send_all_more(&self.bytes).await?;
                send_file(stream, range).await?
            }
            None => {
                link.send_all(&self.bytes).await?;
                send_read(link, pool, range).await?
            }
        };
        let Ending::Chunk { cookie, offset } = *ending else {
            // "If an error occurs while reading after the server has already sent out the reply header": hang up.
            return read.map_err(|(_, e)| e);
        };
        let last = match read {
            Ok(()) => Chunk::None.emit(cookie, true),
            Err((sent, e)) => {
                static UNREADABLE: LogLimit = LogLimit::new();
                if let Some(left_out) = UNREADABLE.pass(rt::now()) {
                    tracing::warn!("a part of a volume cannot be read: {e}{left_out}");
                }
                pad(link, range.len.saturating_sub(sent)).await?;
                let offset = Some(offset.saturating_add(sent as u64));
                let message = "this part of the volume cannot be read".to_owned();
                Chunk::Error { code: Code::Io, offset, message }.emit(cookie, true)
            }
        };
        link.send_all(&[last.into()]).await
    }
}

/// Sends a file range. The outer error is the connection's; the inner one is the file's, with the number of bytes
/// sent before it.
async fn send_file(stream: &Stream, range: &FileRange) -> io::Result<Result<(), (usize, io::Error)>> {
    let mut done = 0usize;
    while done < range.len {
        let warm = done.saturating_add(WARM_BYTES).min(range.len);
        let mut claims = match range.warm_claimed(done, warm.saturating_sub(done)).await {
            Ok(claims) => claims,
            Err(e) => return Ok(Err((done, e))),
        };
        while done < warm {
            let sent =
                std::future::poll_fn(|cx| stream.poll_send_claimed(cx, range, done..warm, &mut claims));
            match sent.await? {
                // The range must be warmed again.
                0 => break,
                sent => done = done.saturating_add(sent),
            }
        }
    }
    Ok(Ok(()))
}

/// The same for bytes that must be encrypted first.
async fn send_read(
    link: &Link,
    pool: &Pool,
    range: &FileRange,
) -> io::Result<Result<(), (usize, io::Error)>> {
    let mut rest = Payload::File(range.clone());
    while !rest.is_empty() {
        let sent = range.len.saturating_sub(rest.len());
        let piece = rest.take_front(rest.len().min(WARM_BYTES));
        match piece.into_chain(pool).await {
            Ok(chain) => link.send_all(&chain).await?,
            Err(e) => return Ok(Err((sent, e))),
        }
    }
    Ok(Ok(()))
}

async fn pad(link: &Link, len: usize) -> io::Result<()> {
    let zeros = Bytes::from(vec![0; len.min(ZEROS_BYTES)]);
    let mut left = len;
    while left > 0 {
        let piece = zeros.slice(..left.min(zeros.len()));
        left = left.saturating_sub(piece.len());
        link.send_all(&[piece]).await?;
    }
    Ok(())
}
