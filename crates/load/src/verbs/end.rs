//! One end of a connection, for work that waits for completions of one kind at a time.
//!
//! An [`End`] posts work and sorts completions into messages and finished work, as `weft_rdma::verbs` defines them;
//! it keeps those not yet requested. Nothing is retried: the first failure ends the workload.
#![cfg_attr(not(test), deny(clippy::indexing_slicing, clippy::arithmetic_side_effects))]

use std::collections::VecDeque;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use bytes::Bytes;
use weft_machine::{Buf, Pool, rt};
use weft_rdma::{Access, Completion, Disconnect, Done, PostError, QueuePair, Segment, Stag, Work, WorkError};

use super::patience::{Heard, Silent};

/// Why a workload on verbs ended early.
#[derive(Debug, thiserror::Error)]
pub enum EndError {
    /// The connection ended.
    #[error("{0}")]
    Ended(Disconnect),
    /// A work request failed.
    #[error("{0}")]
    Work(WorkError),
    /// The provider rejected a work request.
    #[error("{0}")]
    Post(#[from] PostError),
    /// The peer violated the protocol of the workload.
    #[error("the peer violated the protocol: {0}")]
    Peer(&'static str),
    /// The peer owed a reply, and nothing arrived.
    #[error("{0} from the peer: its process hangs or is stopped, or the path to it is gone")]
    Silent(#[from] Silent),
    /// The buffer pool is empty.
    #[error("out of buffers: the pool's limit is too small for this size and depth")]
    Memory,
}

/// A queue pair with its pool and the completions that have arrived.
pub struct End {
    /// The queue pair.
    pub qp: Rc<dyn QueuePair>,
    /// The pool for its buffers.
    pub pool: Pool,
    messages: VecDeque<Buf>,
    finished: VecDeque<(u64, Done)>,
    news: Vec<Completion>,
    busy: bool,
    heard: Heard,
    /// Polls since the core was last yielded.
    looks: u32,
}

/// Polls of a queue pair in a row before the core's other tasks get a turn: some hundred microseconds for a socket,
/// some tens for a ring.
const LOOKS_PER_TURN: u32 = 512;
/// After polling this long for one completion in vain, the core may sleep.
const BUSY_MAX: Duration = Duration::from_millis(1);

impl End {
    /// Takes a connected queue pair.
    pub fn new(qp: Rc<dyn QueuePair>, pool: Pool) -> End {
        End {
            qp,
            pool,
            messages: VecDeque::new(),
            finished: VecDeque::new(),
            news: Vec::new(),
            busy: false,
            heard: Heard::default(),
            looks: 0,
        }
    }

    /// Whether to wait by polling the queue pair, as perftest polls `ibv_poll_cq`: for one operation at a time, whose
    /// reply takes about as long as one round of the core's event loop. After `BUSY_MAX` without a completion, it
    /// waits as usual.
    pub fn set_busy(&mut self, busy: bool) {
        self.busy = busy;
    }

    /// Counts completions, for a caller that waits with a limit.
    pub fn heard(&self) -> Heard {
        self.heard.clone()
    }

    async fn news(&mut self) -> Result<(), Disconnect> {
        let mut since = None;
        while self.busy {
            while self.looks < LOOKS_PER_TURN {
                self.looks = self.looks.saturating_add(1);
                let cx = &mut Context::from_waker(Waker::noop());
                if let Poll::Ready(polled) = self.qp.poll(cx, &mut self.news) {
                    return polled;
                }
                self.qp.look();
            }
            self.looks = 0;
            rt::yield_now().await;
            let now = rt::now();
            if now.since(*since.get_or_insert(now)) > BUSY_MAX {
                break;
            }
        }
        std::future::poll_fn(|cx| self.qp.poll(cx, &mut self.news)).await
    }

    /// Waits for at least one completion, and sorts all that arrived.
    pub async fn poll(&mut self) -> Result<(), EndError> {
        let ended = self.news().await;
        self.heard.note();
        for completion in self.news.drain(..) {
            match completion.result {
                Ok(Done::Received { buf, .. }) => self.messages.push_back(buf),
                Ok(done) => self.finished.push_back((completion.id, done)),
                // The connection's end says more, and follows the last of these.
                Err(WorkError::Flushed) => {}
                Err(e) => return Err(EndError::Work(e)),
            }
        }
        ended.map_err(EndError::Ended)
    }

    /// The next message, in its receive buffer; post that again with [`End::recv`].
    pub async fn message(&mut self) -> Result<Buf, EndError> {
        loop {
            if let Some(buf) = self.messages.pop_front() {
                return Ok(buf);
            }
            self.poll().await?;
        }
    }

    /// The next finished work request.
    pub async fn finished(&mut self) -> Result<(u64, Done), EndError> {
        loop {
            if let Some(finished) = self.finished.pop_front() {
                return Ok(finished);
            }
            self.poll().await?;
        }
    }

    /// A message that has already arrived.
    pub fn take_message(&mut self) -> Option<Buf> {
        self.messages.pop_front()
    }

    /// A work request that has already finished.
    pub fn take_finished(&mut self) -> Option<(u64, Done)> {
        self.finished.pop_front()
    }

    /// A buffer of `len` bytes with undefined content.
    pub fn buffer(&self, len: usize) -> Result<Buf, EndError> {
        let mut buf = self.pool.try_alloc(len).ok_or(EndError::Memory)?;
        buf.set_len(len);
        Ok(buf)
    }

    /// Posts a receive buffer.
    pub fn recv(&self, buf: Buf) -> Result<(), EndError> {
        self.post(Work::Recv { id: 0, buf })
    }

    /// Sends a message; only its failure is reported.
    pub fn send(&self, data: Bytes) -> Result<(), EndError> {
        let data = vec![data];
        self.post(Work::Send { id: 0, data, invalidate: None, solicited: false, signalled: false })
    }

    /// Posts work.
    pub fn post(&self, work: Work) -> Result<(), EndError> {
        self.qp.post(work).map_err(|(e, _)| EndError::Post(e))
    }

    /// Registers `buf` for the peer.
    pub fn register(&self, buf: Buf, access: Access) -> Result<Segment, EndError> {
        Ok(self.qp.register(buf, access)?)
    }

    /// Invalidates a region that [`End::register`] registered.
    pub fn take_back(&self, stag: Stag) -> Result<Buf, EndError> {
        self.qp.invalidate(stag).ok_or(EndError::Peer("a region was invalidated twice"))
    }

    /// Closes the connection in order: queued data is sent, and the peer sees the end.
    pub async fn close(mut self) {
        self.qp.close();
        while self.poll().await.is_ok() {}
    }
}
