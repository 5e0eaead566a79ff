//! Counts work and completions by kind, and logs the events of connections.
//!
//! Each connection is a debug span, with its start, end and refusals as events and each piece of work at trace level;
//! [`Counts`] sums over all connections. It costs almost nothing while the log is off.

use std::cell::Cell;
use std::io;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};

use bytes::Bytes;
use weft_machine::{Buf, File};

use super::{Layer, SetUp};
use crate::verbs::{Access, Completion, Disconnect, Done, PostError, QueuePair, Segment, Stag, Work};

/// The layer. Its clones share the counts.
#[derive(Clone, Debug, Default)]
pub struct Trace(Arc<Counters>);

/// Totals so far over all connections of a [`Trace`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Connections made.
    pub opened: u64,
    /// Connections whose user has seen the end.
    pub ended: u64,
    /// Sends posted.
    pub sends: u64,
    /// Receive buffers posted, except those passed with an acceptance.
    pub recvs: u64,
    /// RDMA Writes posted.
    pub writes: u64,
    /// RDMA Reads posted.
    pub reads: u64,
    /// Work refused by `post`.
    pub refused: u64,
    /// Messages received.
    pub received: u64,
    /// Completions of successful work, including received messages.
    pub succeeded: u64,
    /// Completions of work that failed or was flushed.
    pub failed: u64,
    /// Regions opened to peers.
    pub registered: u64,
    /// Regions taken back.
    pub invalidated: u64,
}

#[derive(Debug, Default)]
struct Counters {
    opened: AtomicU64,
    ended: AtomicU64,
    sends: AtomicU64,
    recvs: AtomicU64,
    writes: AtomicU64,
    reads: AtomicU64,
    refused: AtomicU64,
    received: AtomicU64,
    succeeded: AtomicU64,
    failed: AtomicU64,
    registered: AtomicU64,
    invalidated: AtomicU64,
}

fn add(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}

impl Trace {
    /// The totals so far.
    pub fn counts(&self) -> Counts {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let c = &self.0;
        Counts {
            opened: read(&c.opened),
            ended: read(&c.ended),
            sends: read(&c.sends),
            recvs: read(&c.recvs),
            writes: read(&c.writes),
            reads: read(&c.reads),
            refused: read(&c.refused),
            received: read(&c.received),
            succeeded: read(&c.succeeded),
            failed: read(&c.failed),
            registered: read(&c.registered),
            invalidated: read(&c.invalidated),
        }
    }
}

impl Layer for Trace {
    fn layer(&self, inner: Rc<dyn QueuePair>, _: &SetUp<'_>) -> Rc<dyn QueuePair> {
        add(&self.0.opened);
        let span = tracing::debug_span!("queue_pair", provider = inner.provider(), peer = %inner.peer());
        span.in_scope(|| tracing::debug!(caps = ?inner.caps(), "opened"));
        Rc::new(Traced { inner, counters: self.0.clone(), span, ended: Cell::new(false) })
    }
}

struct Traced {
    inner: Rc<dyn QueuePair>,
    counters: Arc<Counters>,
    span: tracing::Span,
    ended: Cell<bool>,
}

impl Traced {
    fn completed(&self, completion: &Completion) {
        tracing::trace!(?completion, "completed");
        match &completion.result {
            Ok(done) => {
                add(&self.counters.succeeded);
                if matches!(done, Done::Received { .. }) {
                    add(&self.counters.received);
                }
            }
            Err(_) => add(&self.counters.failed),
        }
    }
}

impl QueuePair for Traced {
    pass_on!(provider caps peer look stage traffic);

    fn register(&self, buf: Buf, access: Access) -> Result<Segment, PostError> {
        let result = self.inner.register(buf, access);
        match &result {
            Ok(segment) => {
                add(&self.counters.registered);
                self.span.in_scope(|| tracing::trace!(?segment, ?access, "registered"));
            }
            Err(e) => self.span.in_scope(|| tracing::debug!("region refused: {e}")),
        }
        result
    }

    fn register_shared(&self, bytes: &Bytes) -> Option<Segment> {
        let segment = self.inner.register_shared(bytes)?;
        add(&self.counters.registered);
        self.span.in_scope(|| tracing::trace!(?segment, "lent"));
        Some(segment)
    }

    fn invalidate(&self, stag: Stag) -> Option<Buf> {
        let buf = self.inner.invalidate(stag)?;
        add(&self.counters.invalidated);
        self.span.in_scope(|| tracing::trace!(?stag, "invalidated"));
        Some(buf)
    }

    fn post(&self, work: Work) -> Result<(), (PostError, Work)> {
        let counter = match &work {
            Work::Send { .. } => &self.counters.sends,
            Work::Recv { .. } => &self.counters.recvs,
            Work::Write { .. } => &self.counters.writes,
            Work::Read { .. } => &self.counters.reads,
        };
        self.span.in_scope(|| tracing::trace!(?work, "posted"));
        match self.inner.post(work) {
            Ok(()) => {
                add(counter);
                Ok(())
            }
            Err((e, work)) => {
                add(&self.counters.refused);
                self.span.in_scope(|| tracing::debug!("work refused: {e}"));
                Err((e, work))
            }
        }
    }

    fn read_into(&self, from: Segment, file: &File, offset: u64) -> Option<io::Result<()>> {
        let read = self.inner.read_into(from, file, offset)?;
        add(&self.counters.reads);
        add(if read.is_ok() { &self.counters.succeeded } else { &self.counters.failed });
        self.span.in_scope(|| tracing::trace!(?from, ?read, "read into a file"));
        Some(read)
    }

    fn poll(&self, cx: &mut Context<'_>, out: &mut Vec<Completion>) -> Poll<Result<(), Disconnect>> {
        let before = out.len();
        let polled = self.inner.poll(cx, out);
        let _entered = self.span.enter();
        out[before..].iter().for_each(|completion| self.completed(completion));
        if let Poll::Ready(Err(reason)) = &polled
            && !self.ended.replace(true)
        {
            add(&self.counters.ended);
            tracing::debug!(traffic = ?self.inner.traffic(), "ended: {reason}");
        }
        polled
    }

    fn close(&self) {
        self.span.in_scope(|| tracing::debug!("closing"));
        self.inner.close();
    }
}
