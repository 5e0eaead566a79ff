//! Captures the work of queue pairs into a file as the iWARP packets that it would be, so that Wireshark can show what
//! went over shared memory, a device, or iWARP that tcpdump may not capture.
//!
//! [`Pcap`] is the layer; its [`Capture`] is the file. `pcap::flow` describes the packets. The layer owns the Reads
//! that are not answered yet. It cannot see the peer's own Reads and Writes, which is the point of RDMA. The end that
//! posts the Reads and Writes sees them; for SMB Direct and RPC-over-RDMA that is the server.
//!
//! Payload is copied into the file on the core that moves it, and a file that is not in memory is read
//! synchronously: the tool shows what happens, not how fast.

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
    /// Outstanding Reads: their numbers, and invented STags for the responses.
    reads: RefCell<Reads>,
}

#[derive(Default)]
struct Reads {
    waiting: VecDeque<(u64, u32)>,
    last_sink: u32,
}

/// What to capture of a piece of work once it is accepted.
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
                // Reads are answered in order (RFC 5040 5.2.2), and completed in order.
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

/// The bytes that the peer gets of a file range.
fn read(range: &FileRange) -> Vec<u8> {
    let mut bytes = vec![0; range.len];
    let mut done = 0;
    while done < bytes.len() {
        match range.read_or_zero(done, range.len - done, &mut bytes[done..]) {
            Ok(n) => done += n,
            Err(e) => {
                tracing::warn!("the capture shows zeros for a file that cannot be read: {e}");
                break;
            }
        }
    }
    bytes
}

impl QueuePair for Captured {
    pass_on!(provider caps peer register invalidate look stage traffic close);

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
