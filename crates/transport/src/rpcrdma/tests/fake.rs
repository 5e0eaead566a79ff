//! Two queue pairs in memory, for states that a real provider rarely reaches.
//!
//! Work is carried out when it is posted. Nothing waits, so every test is a sequence of calls.

use std::cell::{Cell, RefCell};
use std::collections::{HashMap, VecDeque};
use std::io;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use weft_machine::Peer;
use weft_machine::{Buf, File, Payload, Pool};
use weft_rdma::{
    Access, Caps, Completion, Disconnect, Done, PostError, QueuePair, Refusal, Segment, Stag, Traffic, Work,
    WorkError,
};

/// An action of one end, for assertions.
#[derive(Debug, PartialEq, Eq, Clone)]
pub enum Did {
    Send { bytes: Vec<u8>, invalidate: Option<Stag> },
    Write { bytes: Vec<u8>, to: Segment, signalled: bool },
    Read { from: Segment },
}

struct Region {
    buf: Buf,
    access: Access,
    revoked: bool,
}

#[derive(Default)]
struct End {
    recvs: VecDeque<(u64, Buf)>,
    regions: HashMap<Stag, Region>,
    next_stag: u32,
    completions: VecDeque<Completion>,
    waker: Option<Waker>,
    ended: Option<Disconnect>,
    /// Work posted since the last poll.
    posted: usize,
    did: Vec<Did>,
    /// Reads that the peer does not answer.
    unanswered: Vec<(u64, Buf, Segment)>,
}

impl End {
    fn complete(&mut self, id: u64, result: Result<Done, WorkError>) {
        self.completions.push_back(Completion { id, result });
        if let Some(waker) = self.waker.take() {
            waker.wake();
        }
    }

    /// The position in a region of a peer's access.
    fn place(&mut self, s: Segment, access: Access) -> Result<&mut [u8], Refusal> {
        let region = self.regions.get_mut(&s.stag).filter(|r| !r.revoked).ok_or(Refusal::InvalidStag)?;
        if !region.access.allows(access) {
            return Err(Refusal::Access);
        }
        let start = usize::try_from(s.offset).map_err(|_| Refusal::Bounds)?;
        let end = start.checked_add(s.len as usize).ok_or(Refusal::Bounds)?;
        region.buf.get_mut(start..end).ok_or(Refusal::Bounds)
    }

    fn end(&mut self, why: Disconnect) {
        self.ended.get_or_insert(why);
        let recvs = std::mem::take(&mut self.recvs).into_iter().map(|(id, _)| id);
        let reads = std::mem::take(&mut self.unanswered).into_iter().map(|(id, _, _)| id);
        for id in recvs.chain(reads).collect::<Vec<_>>() {
            self.complete(id, Err(WorkError::Flushed));
        }
        if let Some(waker) = self.waker.take() {
            waker.wake();
        }
    }
}

/// One end of the pair.
pub struct FakeQp {
    ends: Rc<RefCell<[End; 2]>>,
    me: usize,
    max_send_work: usize,
    /// If set, this end reads into files and lends what lies in this pool.
    pub reaches: RefCell<Option<Pool>>,
    /// Whether its Reads wait for [`FakeQp::answer_reads`].
    pub reads_wait: Cell<bool>,
}

/// A connected pair whose send queues take `max_send_work` pieces of work between two polls.
pub fn pair(max_send_work: usize) -> (Rc<FakeQp>, Rc<FakeQp>) {
    let ends: Rc<RefCell<[End; 2]>> = Rc::default();
    let end = |me| {
        let (reaches, reads_wait) = Default::default();
        Rc::new(FakeQp { ends: ends.clone(), me, max_send_work, reaches, reads_wait })
    };
    (end(0), end(1))
}

impl FakeQp {
    /// The actions of this end since the last call.
    pub fn did(&self) -> Vec<Did> {
        std::mem::take(&mut self.ends.borrow_mut()[self.me].did)
    }

    /// Messages sent by this end since the last call.
    pub fn sent(&self) -> Vec<Vec<u8>> {
        let sends = self.did().into_iter().filter_map(|did| match did {
            Did::Send { bytes, .. } => Some(bytes),
            _ => None,
        });
        sends.collect()
    }

    /// The peer answers the waiting Reads of this end.
    pub fn answer_reads(&self) {
        self.reads_wait.set(false);
        let waited = std::mem::take(&mut self.ends.borrow_mut()[self.me].unanswered);
        for (id, into, from) in waited {
            assert_eq!(self.carry_out(Work::Read { id, into, from }), None);
        }
    }

    /// Regions that the peer can access now.
    pub fn regions(&self) -> usize {
        self.ends.borrow()[self.me].regions.len()
    }

    /// Sends raw bytes, as a peer that ignores all rules would.
    pub fn send_raw(&self, bytes: impl Into<Bytes>) {
        let data = vec![bytes.into()];
        let send = Work::Send { id: u64::MAX, data, invalidate: None, solicited: false, signalled: false };
        self.post(send).map_err(|(e, _)| e).unwrap();
    }

    /// Posts receive buffers for `n` messages, so that a raw peer can be answered.
    pub fn post_receives(&self, n: usize, pool: &Pool) {
        for _ in 0..n {
            let buf = pool.try_alloc(4096).unwrap();
            self.post(Work::Recv { id: 0, buf }).map_err(|(e, _)| e).unwrap();
        }
    }

    /// Messages that have arrived at a raw peer.
    pub fn received(&self) -> Vec<Bytes> {
        let end = &mut self.ends.borrow_mut()[self.me];
        let done = end.completions.drain(..).filter_map(|c| match c.result {
            Ok(Done::Received { buf, .. }) => Some(buf.freeze()),
            _ => None,
        });
        done.collect()
    }

    fn carry_out(&self, work: Work) -> Option<Refusal> {
        let ends = &mut *self.ends.borrow_mut();
        let (low, high) = ends.split_at_mut(1);
        let (mine, peer) =
            if self.me == 0 { (&mut low[0], &mut high[0]) } else { (&mut high[0], &mut low[0]) };
        match work {
            Work::Send { id, data, invalidate, signalled, solicited } => {
                let bytes = data.concat();
                mine.did.push(Did::Send { bytes: bytes.clone(), invalidate });
                let Some((recv, mut buf)) = peer.recvs.pop_front() else { return Some(Refusal::NoBuffer) };
                if bytes.len() > buf.capacity() {
                    return Some(Refusal::TooLong);
                }
                buf.set_len(bytes.len());
                buf.copy_from_slice(&bytes);
                if let Some(stag) = invalidate {
                    match peer.regions.get_mut(&stag) {
                        Some(region) => region.revoked = true,
                        None => return Some(Refusal::InvalidStag),
                    }
                }
                if signalled {
                    mine.complete(id, Ok(Done::Sent));
                }
                peer.complete(recv, Ok(Done::Received { buf, invalidated: invalidate, solicited }));
            }
            Work::Write { id, data, to, signalled } => {
                let bytes = content(data);
                mine.did.push(Did::Write { bytes: bytes.clone(), to, signalled });
                match peer.place(Segment { len: bytes.len() as u32, ..to }, Access::RemoteWrite) {
                    Ok(place) => place.copy_from_slice(&bytes),
                    Err(refusal) => return Some(refusal),
                }
                if signalled {
                    mine.complete(id, Ok(Done::Written));
                }
            }
            Work::Read { id, into, from } if self.reads_wait.get() => mine.unanswered.push((id, into, from)),
            Work::Read { id, mut into, from } => {
                mine.did.push(Did::Read { from });
                match peer.place(from, Access::RemoteRead) {
                    Ok(place) => {
                        into.set_len(place.len());
                        into.copy_from_slice(place);
                    }
                    Err(refusal) => {
                        mine.complete(id, Err(WorkError::Remote(refusal)));
                        return Some(refusal);
                    }
                }
                mine.complete(id, Ok(Done::Read { buf: into }));
            }
            Work::Recv { id, buf } => mine.recvs.push_back((id, buf)),
        }
        None
    }
}

fn content(data: Payload) -> Vec<u8> {
    match data {
        Payload::Chain(chain) => chain.concat(),
        Payload::File(range) => {
            let mut buf = Pool::new(0).try_alloc(range.len).unwrap();
            buf.set_len(range.len);
            let window = buf.into_window();
            range.try_read_into(&window).unwrap().unwrap();
            window.try_into_buf().unwrap().to_vec()
        }
    }
}

impl QueuePair for FakeQp {
    fn provider(&self) -> &'static str {
        "fake"
    }

    fn caps(&self) -> Caps {
        Caps {
            max_send_work: self.max_send_work,
            max_recv_work: 1024,
            ird: 16,
            ord: 16,
            max_regions: 1024,
            kernel_bypass: false,
            send_with_invalidate: true,
            revocable_regions: true,
            reads_into_files: self.reaches.borrow().is_some(),
        }
    }

    fn peer(&self) -> Peer {
        Peer::Rdma(([192, 0, 2, 1], 700).into())
    }

    fn register(&self, buf: Buf, access: Access) -> Result<Segment, PostError> {
        let end = &mut self.ends.borrow_mut()[self.me];
        if end.ended.is_some() {
            return Err(PostError::Closed);
        }
        end.next_stag += 1;
        let stag = Stag(end.next_stag);
        let len = buf.len() as u32;
        end.regions.insert(stag, Region { buf, access, revoked: false });
        Ok(Segment { stag, offset: 0, len })
    }

    fn invalidate(&self, stag: Stag) -> Option<Buf> {
        self.ends.borrow_mut()[self.me].regions.remove(&stag).map(|r| r.buf)
    }

    fn post(&self, work: Work) -> Result<(), (PostError, Work)> {
        {
            let end = &mut self.ends.borrow_mut()[self.me];
            if end.ended.is_some() {
                return Err((PostError::Closed, work));
            }
            if !matches!(work, Work::Recv { .. }) {
                if end.posted == self.max_send_work {
                    return Err((PostError::QueueFull, work));
                }
                end.posted += 1;
            }
        }
        if let Some(refusal) = self.carry_out(work) {
            let ends = &mut *self.ends.borrow_mut();
            ends[self.me].end(Disconnect::Terminated(refusal));
            ends[1 - self.me].end(Disconnect::Refused(refusal));
        }
        Ok(())
    }

    fn poll(&self, cx: &mut Context<'_>, out: &mut Vec<Completion>) -> Poll<Result<(), Disconnect>> {
        let end = &mut self.ends.borrow_mut()[self.me];
        end.posted = 0;
        if !end.completions.is_empty() {
            out.extend(end.completions.drain(..));
            return Poll::Ready(Ok(()));
        }
        if let Some(ended) = &end.ended {
            return Poll::Ready(Err(ended.clone()));
        }
        end.waker = Some(cx.waker().clone());
        Poll::Pending
    }

    fn read_into(&self, from: Segment, file: &File, offset: u64) -> Option<io::Result<()>> {
        let reaches = self.reaches.borrow();
        let pool = reaches.as_ref().filter(|_| file.is_in_memory())?;
        let peer = &mut self.ends.borrow_mut()[1 - self.me];
        let place = peer.place(from, Access::RemoteRead).ok()?;
        Some(file.place_at(offset, &pool.buf_from(place).unwrap().into_window()))
    }

    fn register_shared(&self, bytes: &Bytes) -> Option<Segment> {
        let pool = self.reaches.borrow().clone()?;
        pool.location(bytes)?;
        self.register(pool.buf_from(bytes)?, Access::RemoteRead).ok()
    }

    fn look(&self) {}

    fn traffic(&self) -> Traffic {
        Traffic::default()
    }

    fn close(&self) {
        let ends = &mut *self.ends.borrow_mut();
        ends[self.me].end(Disconnect::Local);
        ends[1 - self.me].end(Disconnect::Peer);
    }
}
