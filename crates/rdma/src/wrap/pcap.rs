//! Writes what happens on queue pairs into a capture file, as the iWARP packets that it would be: Wireshark shows what went by shared
//! memory, by a device, or by iWARP that tcpdump may not see.
//!
//! What: [`Pcap`], the layer; its [`Capture`] is the file. Spec: see `pcap::flow`.
//! Owns: the Reads that are not answered yet. Does not: see what the peer reads and writes here by itself: that is what RDMA is for.
//! The end that posts the Reads and Writes sees them; of SMB Direct and RPC-over-RDMA that is the server.
//!
//! Buffers: payload is copied into the file, on the core that moves it, and files that are not in memory are waited for: a
//! tool for finding out what happens, not how fast.

mod file;
mod flow;

use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;
use std::task::{Context, Poll};

use bytes::Bytes;
use weft_machine::{FileRange, Payload};
use weft_wire::rdmap::Opcode;

use self::flow::{Flow, From};
use super::{Layer, SetUp};
use crate::verbs::{Completion, Disconnect, Done, PostError, QueuePair, Segment, Stag, Work};

pub use self::file::Capture;

/// The layer. Its clones write to the same capture.
#[derive(Clone, Debug)]
pub struct Pcap(Capture);

impl Pcap {
    /// Captures into `capture`.
    pub fn new(capture: Capture) -> Pcap {
        Pcap(capture)
    }
}

impl Layer for Pcap {
    fn layer(&self, inner: Rc<dyn QueuePair>, set_up: &SetUp<'_>) -> Rc<dyn QueuePair> {
        let flow = RefCell::new(Flow::new(self.0.clone(), inner.peer(), set_up));
        Rc::new(Captured { inner, flow, reads: RefCell::default() })
    }
}

struct Captured {
    inner: Rc<dyn QueuePair>,
    flow: RefCell<Flow>,
    /// Reads that were asked for: their numbers, and the made-up STags that they are answered to.
    reads: RefCell<Reads>,
}

#[derive(Default)]
struct Reads {
    waiting: VecDeque<(u64, u32)>,
    last_sink: u32,
}

/// What of a piece of work is worth writing down once it was taken.
enum Seen {
    Send { data: Vec<Bytes>, invalidate: Option<Stag>, solicited: bool },
    Write { data: Payload, to: Segment },
    Read { id: u64, from: Segment },
    Nothing,
}

impl Seen {
    fn of(work: &Work) -> Seen {
        match work {
            Work::Send { data, invalidate, solicited, .. } => {
                Seen::Send { data: data.clone(), invalidate: *invalidate, solicited: *solicited }
            }
            Work::Write { data, to, .. } => Seen::Write { data: data.clone(), to: *to },
            Work::Read { id, from, .. } => Seen::Read { id: *id, from: *from },
            Work::Recv { .. } => Seen::Nothing,
        }
    }
}

impl Captured {
    fn posted(&self, seen: Seen) {
        let mut flow = self.flow.borrow_mut();
        match seen {
            Seen::Send { data, invalidate, solicited } => {
                flow.send(From::Here, &data.concat(), invalidate.map(|stag| stag.0), solicited);
            }
            Seen::Write { data, to } => {
                let data = match data {
                    Payload::Chain(chain) => chain.concat(),
                    Payload::File(range) => read(&range),
                };
                flow.tagged(From::Here, Opcode::Write, to.stag.0, to.offset, &data);
            }
            Seen::Read { id, from } => {
                let reads = &mut *self.reads.borrow_mut();
                reads.last_sink = reads.last_sink.wrapping_add(1);
                reads.waiting.push_back((id, reads.last_sink));
                flow.read_request(From::Here, from, reads.last_sink);
            }
            Seen::Nothing => {}
        }
    }

    fn completed(&self, completion: &Completion) {
        match &completion.result {
            Ok(Done::Received { buf, invalidated, solicited }) => {
                let invalidate = invalidated.map(|stag| stag.0);
                self.flow.borrow_mut().send(From::Peer, buf, invalidate, *solicited);
            }
            Ok(Done::Read { buf }) => {
                let waiting = &mut self.reads.borrow_mut().waiting;
                // Reads are answered in their order (RFC 5040 5.2.2), and completed so.
                if let Some(at) = waiting.iter().position(|(id, _)| *id == completion.id)
                    && let Some((_, sink)) = waiting.remove(at)
                {
                    self.flow.borrow_mut().tagged(From::Peer, Opcode::ReadResponse, sink, 0, buf);
                }
            }
            Ok(Done::Sent | Done::Written) | Err(_) => {}
        }
    }
}

/// What the peer gets of a file range.
fn read(range: &FileRange) -> Vec<u8> {
    let mut bytes = vec![0; range.len];
    let mut done = 0;
    while done < bytes.len() {
        match range.read_or_zero(done, range.len - done, &mut bytes[done..]) {
            Ok(n) => done += n,
            Err(e) => {
                tracing::warn!("what is captured of a file is zeros: {e}");
                break;
            }
        }
    }
    bytes
}

impl QueuePair for Captured {
    pass_on!(provider caps peer register invalidate look traffic close);

    fn post(&self, work: Work) -> Result<(), (PostError, Work)> {
        let seen = Seen::of(&work);
        self.inner.post(work)?;
        self.posted(seen);
        Ok(())
    }

    fn poll(&self, cx: &mut Context<'_>, out: &mut Vec<Completion>) -> Poll<Result<(), Disconnect>> {
        let before = out.len();
        let polled = self.inner.poll(cx, out);
        out[before..].iter().for_each(|completion| self.completed(completion));
        if let Poll::Ready(Err(_)) = &polled {
            self.flow.borrow_mut().close();
        }
        polled
    }
}
