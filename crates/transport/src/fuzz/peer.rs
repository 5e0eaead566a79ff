//! A queue pair whose other end is a script: posted work waits until the peer completes it.
//!
//! It keeps the contract of `weft_rdma::verbs`: work completes in order, Reads separately, and everything completes
//! before the end is reported. It makes no decisions.

use std::cell::{Cell, RefCell};
use std::collections::{HashMap, VecDeque};
use std::io;
use std::net::Ipv4Addr;
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use weft_machine::{Buf, File, Peer};
use weft_rdma::{
    Access, Caps, Completion, Disconnect, Done, PostError, QueuePair, Refusal, Segment, Stag, Traffic, Work,
    WorkError,
};

/// Polls of the queue pair between two acts of the script; more means a loop.
const MAX_POLLS: usize = 20_000;
const MAX_RECV_WORK: usize = 300;

/// Work that the peer has not completed.
struct Posted {
    id: u64,
    done: Done,
    signalled: bool,
}

#[derive(Default)]
struct State {
    recvs: VecDeque<(u64, Buf)>,
    /// Sends and Writes.
    sends: VecDeque<Posted>,
    reads: VecDeque<(u64, Buf, Segment)>,
    regions: HashMap<Stag, (Buf, Access)>,
    next_stag: u32,
    completions: VecDeque<Completion>,
    ended: Option<Disconnect>,
    /// The first bytes of each message sent to the peer.
    heard: Vec<Bytes>,
    waker: Option<Waker>,
    traffic: Traffic,
}

/// See the module.
pub(super) struct Scripted {
    state: RefCell<State>,
    caps: Caps,
    polls: Cell<usize>,
}

impl Scripted {
    /// Like shared memory, where payload can go straight into files, or like a network.
    pub(super) fn new(shared_memory: bool, max_send_work: usize) -> Scripted {
        let caps = Caps {
            max_send_work,
            max_recv_work: MAX_RECV_WORK,
            ird: 16,
            ord: 16,
            max_regions: 64,
            kernel_bypass: shared_memory,
            send_with_invalidate: true,
            revocable_regions: true,
            reads_into_files: shared_memory,
        };
        Scripted { state: RefCell::default(), caps, polls: Cell::new(0) }
    }

    /// The next act begins: earlier polls no longer count.
    pub(super) fn next_act(&self) {
        self.polls.set(0);
    }

    /// Whether the connection has ended on this side.
    pub(super) fn is_over(&self) -> bool {
        self.state.borrow().ended.is_some()
    }

    /// Reads that wait for the peer.
    pub(super) fn reads(&self) -> usize {
        self.state.borrow().reads.len()
    }

    /// Receives that the peer can send into.
    pub(super) fn recvs(&self) -> usize {
        self.state.borrow().recvs.len()
    }

    /// The first bytes of each message that reached the peer since the last call.
    pub(super) fn heard(&self) -> Vec<Bytes> {
        std::mem::take(&mut self.state.borrow_mut().heard)
    }

    /// The peer sends a message.
    pub(super) fn says(&self, bytes: &[u8]) {
        let state = &mut *self.state.borrow_mut();
        if state.ended.is_some() {
            return;
        }
        let Some((id, mut buf)) = state.recvs.pop_front() else {
            return state.end(Disconnect::Refused(Refusal::NoBuffer));
        };
        if bytes.len() > buf.capacity() {
            state.recvs.push_front((id, buf));
            return state.end(Disconnect::Refused(Refusal::TooLong));
        }
        buf.set_len(bytes.len());
        buf.copy_from_slice(bytes);
        state.complete(id, Ok(Done::Received { buf, invalidated: None, solicited: false }));
    }

    /// The medium takes the `n` oldest messages.
    pub(super) fn takes(&self, n: usize) {
        let state = &mut *self.state.borrow_mut();
        let n = n.min(state.sends.len());
        for Posted { id, done, signalled } in state.sends.drain(..n).collect::<Vec<_>>() {
            if signalled {
                state.complete(id, Ok(done));
            }
        }
    }

    /// The peer answers the oldest Read with these bytes, repeated.
    pub(super) fn answers(&self, pattern: &[u8]) {
        let state = &mut *self.state.borrow_mut();
        if let Some((id, mut buf, from)) = state.reads.pop_front() {
            buf.set_len(from.len as usize);
            for (byte, with) in buf.iter_mut().zip(pattern.iter().cycle()) {
                *byte = *with;
            }
            state.complete(id, Ok(Done::Read { buf }));
        }
    }

    /// The peer has no such memory.
    pub(super) fn refuses(&self) {
        let state = &mut *self.state.borrow_mut();
        if let Some((id, _, _)) = state.reads.pop_front() {
            state.complete(id, Err(WorkError::Remote(Refusal::InvalidStag)));
            state.end(Disconnect::Terminated(Refusal::InvalidStag));
        }
    }

    /// The connection ends.
    pub(super) fn ends(&self, why: Disconnect) {
        self.state.borrow_mut().end(why);
    }
}

impl State {
    fn complete(&mut self, id: u64, result: Result<Done, WorkError>) {
        self.completions.push_back(Completion { id, result });
        if let Some(waker) = self.waker.take() {
            waker.wake();
        }
    }

    fn end(&mut self, why: Disconnect) {
        if self.ended.is_some() {
            return;
        }
        self.ended = Some(why);
        let sends = self.sends.drain(..).map(|posted| posted.id);
        let reads = self.reads.drain(..).map(|(id, _, _)| id);
        let recvs = self.recvs.drain(..).map(|(id, _)| id);
        for id in sends.chain(reads).chain(recvs).collect::<Vec<_>>() {
            self.complete(id, Err(WorkError::Flushed));
        }
        if let Some(waker) = self.waker.take() {
            waker.wake();
        }
    }
}

impl QueuePair for Scripted {
    fn provider(&self) -> &'static str {
        "scripted"
    }

    fn caps(&self) -> Caps {
        self.caps
    }

    fn peer(&self) -> Peer {
        Peer::Rdma((Ipv4Addr::LOCALHOST, 1).into())
    }

    fn register(&self, buf: Buf, access: Access) -> Result<Segment, PostError> {
        let state = &mut *self.state.borrow_mut();
        if state.ended.is_some() {
            return Err(PostError::Closed);
        }
        if state.regions.len() == self.caps.max_regions {
            return Err(PostError::RegionsFull(self.caps.max_regions));
        }
        state.next_stag += 1;
        let (stag, len) = (Stag(state.next_stag), buf.len() as u32);
        state.regions.insert(stag, (buf, access));
        Ok(Segment { stag, offset: 0, len })
    }

    fn invalidate(&self, stag: Stag) -> Option<Buf> {
        self.state.borrow_mut().regions.remove(&stag).map(|(buf, _)| buf)
    }

    fn post(&self, work: Work) -> Result<(), (PostError, Work)> {
        let state = &mut *self.state.borrow_mut();
        if state.ended.is_some() {
            return Err((PostError::Closed, work));
        }
        let full = match &work {
            Work::Recv { .. } => state.recvs.len() == self.caps.max_recv_work,
            _ => state.sends.len() + state.reads.len() >= self.caps.max_send_work,
        };
        if full {
            return Err((PostError::QueueFull, work));
        }
        match work {
            Work::Recv { id, buf } => state.recvs.push_back((id, buf)),
            Work::Send { id, data, signalled, .. } => {
                assert!(!data.iter().all(|piece| piece.is_empty()), "an empty message");
                state.traffic.sent.1 += 1;
                state.heard.extend(data.into_iter().next());
                state.sends.push_back(Posted { id, done: Done::Sent, signalled });
            }
            Work::Write { id, data, to, signalled } => {
                assert!(data.len() <= to.len as usize, "more than the peer has room for");
                state.sends.push_back(Posted { id, done: Done::Written, signalled });
            }
            Work::Read { id, into, from } => {
                assert!(from.len as usize <= into.capacity(), "more than there is room for");
                state.reads.push_back((id, into, from));
            }
        }
        Ok(())
    }

    fn read_into(&self, from: Segment, _file: &File, _offset: u64) -> Option<io::Result<()>> {
        // Some regions can be read this way, and some are gone.
        match from.stag.0 % 4 {
            0 => Some(Ok(())),
            1 => Some(Err(io::ErrorKind::StorageFull.into())),
            _ => None,
        }
    }

    fn poll(&self, cx: &mut Context<'_>, out: &mut Vec<Completion>) -> Poll<Result<(), Disconnect>> {
        self.polls.set(self.polls.get() + 1);
        assert!(self.polls.get() < MAX_POLLS, "a loop: nothing new has come");
        let state = &mut *self.state.borrow_mut();
        if !state.completions.is_empty() {
            out.extend(state.completions.drain(..));
            return Poll::Ready(Ok(()));
        }
        if let Some(why) = &state.ended {
            return Poll::Ready(Err(why.clone()));
        }
        state.waker = Some(cx.waker().clone());
        Poll::Pending
    }

    fn look(&self) {}

    fn traffic(&self) -> Traffic {
        self.state.borrow().traffic
    }

    fn close(&self) {
        self.state.borrow_mut().end(Disconnect::Local);
    }
}

/// A random reason for the end of a connection.
pub(super) fn an_end(script: &mut super::Script<'_>) -> Disconnect {
    match script.byte() % 4 {
        0 => Disconnect::Peer,
        1 => Disconnect::Lost(io::ErrorKind::ConnectionReset),
        2 => Disconnect::Violation("as the script has it"),
        _ => Disconnect::Terminated(Refusal::Bounds),
    }
}
