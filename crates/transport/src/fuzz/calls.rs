//! A client over RPC-over-RDMA that makes arbitrary calls, names arbitrary memory, and answers Reads at any time.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use bytes::Bytes;
use weft_machine::{FileRange, Payload, Pool, rt};
use weft_rdma::{Disconnect, QueuePair, Work};
use weft_wire::rpcrdma::{Body, Chunks, ErrorCode, Header, PrivateData, ReadSegment, Segment, VERSION};
use weft_wire::xdr::Encoder;

use super::Script;
use super::frame::{self, FILE_BYTES, Frame, World};
use super::peer::{Scripted, an_end};
use crate::channel::{Channel, Detached, Message, Outgoing, Part, Ticket, To};
use crate::rpcrdma::{self, Config, RpcRdma};

/// Longer than any of our waits for a client.
const PATIENCE: Duration = Duration::from_secs(400);

/// A scripted misbehaving client over RPC-over-RDMA.
pub fn rpcrdma_peer(data: &[u8]) {
    frame::run::<Calls>(data);
}

struct Calls {
    frame: Frame,
    server: Rc<RpcRdma>,
    /// Calls delivered and not answered.
    inbox: Rc<RefCell<Vec<Message>>>,
    xid: u32,
}

impl World for Calls {
    async fn begin(pool: &Pool, script: &mut Script<'_>) -> Calls {
        let flags = script.byte();
        let qp = Rc::new(Scripted::new(flags & 1 != 0, if flags & 2 != 0 { 8 } else { 1024 }));
        let config = Config {
            credits: [1, 4, 64, 64][usize::from(flags >> 2 & 3)],
            inline_bytes: if flags & 16 != 0 { 1024 } else { 4096 },
            ..Config::default()
        };
        let config = config.normal();
        for _ in 0..rpcrdma::first_receives(config.credits) {
            let buf = pool.try_alloc(config.inline_bytes).expect("room");
            qp.post(Work::Recv { id: 0, buf }).map_err(|(e, _)| e).expect("room");
        }
        let peer = PrivateData {
            remote_invalidation: flags & 32 != 0,
            send_bytes: 1024 << (flags >> 6 & 1),
            receive_bytes: 1024 << (flags >> 7),
        };
        let first_call = rt::now() + Duration::from_secs(30);
        let server = rpcrdma::server(qp.clone(), peer, config, pool.clone(), Some(first_call));
        let mut frame = Frame::new(pool, qp);
        let inbox: Rc<RefCell<Vec<Message>>> = Rc::default();
        frame.reader = {
            let (server, inbox, ended) = (server.clone(), inbox.clone(), frame.ended.clone());
            Some(rt::spawn(async move {
                while let Ok(Some(message)) = server.recv().await {
                    inbox.borrow_mut().push(message);
                }
                ended.set(true);
            }))
        };
        Calls { frame, server, inbox, xid: 1 }
    }

    async fn turn(&mut self) {
        self.frame.turn(3).await;
    }

    async fn act(&mut self, script: &mut Script<'_>) {
        match script.byte() % 16 {
            0..=3 => self.call(script),
            4 => {
                let len = script.below(80);
                self.frame.qp.says(script.bytes(len));
            }
            5 | 6 => self.frame.qp.takes(1 + script.below(40)),
            7 | 8 => {
                let xid = if script.one_in(4) { script.byte().into() } else { self.xid };
                let pattern = [xid.to_be_bytes(), [0, 0, 0, script.byte() % 2]].concat();
                for _ in 0..1 + script.below(8) {
                    self.frame.qp.answers(&pattern);
                }
            }
            9 if script.rarely(8) => self.frame.qp.refuses(),
            9..=11 => self.reply(script),
            12 => self.payload(script),
            13 => self.frame.squeeze(script),
            14 => rt::sleep(Duration::from_millis(1 << script.below(16))).await,
            _ => match script.byte() % 16 {
                0 => self.frame.qp.ends(an_end(script)),
                1 => self.server.close(),
                2 => self.frame.reader = None,
                3 => self.frame.give_up_tasks(),
                4 => drop(self.inbox.borrow_mut().pop()),
                _ => {
                    // The server calls its client.
                    let words = [u32::from(script.byte()), 0, 2];
                    self.send(Outgoing::bytes(words.iter().flat_map(|w| w.to_be_bytes()).collect::<Bytes>()));
                }
            },
        }
    }

    async fn end(mut self, script: &mut Script<'_>) {
        self.frame.relax();
        self.turn().await;
        let Frame { qp, .. } = &self.frame;
        if script.flag() {
            // Nobody acts any more: waits for the peer time out.
            rt::sleep(PATIENCE).await;
            let driven = self.frame.reader.is_some();
            assert!(!driven || qp.is_over() || qp.reads() == 0, "Reads wait for ever");
        }
        qp.ends(Disconnect::Peer);
        rt::sleep(Duration::from_millis(1)).await;
        self.frame.check_ended();
    }
}

impl Calls {
    fn call(&mut self, script: &mut Script<'_>) {
        // A client that keeps to its credits survives longer.
        if self.frame.qp.recvs() < 2 && !script.rarely(16) {
            return;
        }
        if !script.one_in(5) {
            self.xid = self.xid % 9 + 1;
        }
        let mut chunks = Chunks::default();
        if script.flag() {
            let position = *script.one_of(&[0, 0, 8, 8, 12, 4, 6, 4000]);
            let count = *script.one_of(&[1, 1, 1, 2, 3, 8, 40, 150]);
            let shape = segment(script);
            for n in 0..count {
                let target = if script.one_in(8) { segment(script) } else { Segment { handle: n, ..shape } };
                let position = if script.one_in(6) { 8 } else { position };
                chunks.reads.push(ReadSegment { position, target });
            }
        }
        for _ in 0..script.below(3) {
            let count = script.below(5);
            chunks.writes.push((0..count).map(|_| segment(script)).collect());
        }
        if script.flag() {
            chunks.reply = Some((0..script.below(4)).map(|_| segment(script)).collect());
        }
        let stream = script.flag();
        let body = match script.byte() % 16 {
            0 => Body::Done,
            1 => Body::Error(ErrorCode::Chunk),
            2..=8 if stream => Body::NoMsg(chunks),
            _ => Body::Msg(chunks),
        };
        let credits = script.byte().into();
        let version = if script.one_in(30) { 2 } else { VERSION };
        let mut e = Encoder::default();
        Header { xid: self.xid, version, credits, body }.emit(&mut e);
        let direction = u32::from(script.one_in(8));
        [self.xid, direction, 2].iter().for_each(|word| e.u32(*word));
        self.frame.qp.says(&e.into_bytes());
    }

    fn reply(&mut self, script: &mut Script<'_>) {
        let mut inbox = self.inbox.borrow_mut();
        if inbox.is_empty() {
            return;
        }
        let at = script.below(inbox.len());
        let Message { body, ticket, .. } = inbox.swap_remove(at);
        drop(inbox);
        let xid = body.first_chunk().copied().unwrap_or_default();
        let mut parts = vec![Part::Bytes([xid, [0, 0, 0, 1]].concat().into())];
        for _ in 0..script.below(3) {
            let to = if script.flag() { To::Ticket } else { To::Inline };
            let len = *script.one_of(&[0, 1, 3, 100, 3000, 5000, 70_000, FILE_BYTES]);
            let data = if script.flag() {
                Payload::File(FileRange { file: self.frame.file.clone(), offset: 0, len })
            } else {
                Bytes::from(vec![1; len]).into()
            };
            parts.push(Part::Payload { data, to });
        }
        // Some answers have lost their tickets.
        let ticket = if script.rarely(16) { Ticket::default() } else { ticket };
        self.send(Outgoing { parts, ticket, ..Outgoing::default() });
    }

    fn send(&mut self, outgoing: Outgoing) {
        let sending = self.server.send(outgoing);
        self.frame.spawn(sending);
    }

    /// Requests the payload that was left with the peer.
    fn payload(&mut self, script: &mut Script<'_>) {
        let mut inbox = self.inbox.borrow_mut();
        if inbox.is_empty() {
            return;
        }
        let at = script.below(inbox.len());
        let Some(Detached::There(there)) = inbox[at].detached.take() else { return };
        drop(inbox);
        if script.flag() {
            let _ = there.fill(&self.frame.file, 0, there.len());
        } else {
            let fetched = there.fetch();
            self.frame.spawn(fetched);
        }
    }
}

fn segment(script: &mut Script<'_>) -> Segment {
    let length = match script.byte() % 12 {
        0 => 0,
        1 => 1,
        2..=4 => 100,
        5 | 6 => 4096,
        7 => 6200,
        8 => 65_536,
        9 => 300_000,
        10 => 1 << 20,
        _ => script.edge() as u32,
    };
    let offset = if script.one_in(16) { script.edge() } else { 0 };
    Segment { handle: script.byte().into(), length, offset }
}
