//! A client over SMB Direct that sends arbitrary messages in arbitrary fragments, and grants arbitrary credits.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use bytes::Bytes;
use weft_machine::{FileRange, Payload, Pool, rt};
use weft_rdma::{Access, Disconnect, QueuePair, Segment, Stag};
use weft_wire::smbd::{DataTransfer, NegotiateRequest, NegotiateResponse, RESPONSE_REQUESTED, VERSION};

use super::Script;
use super::frame::{self, FILE_BYTES, Frame, World};
use super::peer::{Scripted, an_end};
use crate::channel::{Channel, Exposed, Outgoing, Part, To};
use crate::smbd::{self, Config, Smbd};

/// Longer than a peer may be silent: the keepalive and its answer.
const PATIENCE: Duration = Duration::from_secs(400);

/// A scripted misbehaving client over SMB Direct.
pub fn smbd_peer(data: &[u8]) {
    frame::run::<Transfers>(data);
}

struct Transfers {
    frame: Frame,
    /// The channel, once both sides have negotiated.
    channel: Rc<RefCell<Option<Rc<Smbd>>>>,
    exposed: Vec<Exposed>,
    /// Bytes missing from the client's message.
    rest: u32,
    /// Messages that the client may send.
    credits: u32,
}

impl World for Transfers {
    async fn begin(pool: &Pool, script: &mut Script<'_>) -> Transfers {
        let flags = script.byte();
        let qp = Rc::new(Scripted::new(flags & 1 != 0, if flags & 2 != 0 { 4 } else { 1024 }));
        let config = Config {
            receive_credits: [1, 2, 16, 255][usize::from(flags >> 2 & 3)],
            send_credits: [1, 255][usize::from(flags >> 4 & 1)],
            ..Config::default()
        };
        let config = config.clamped();
        let first = pool.try_alloc(config.max_receive_size as usize).expect("room");
        qp.post(smbd::first_receive(first)).map_err(|(e, _)| e).expect("room");
        let mut frame = Frame::new(pool, qp);
        let channel: Rc<RefCell<Option<Rc<Smbd>>>> = Rc::default();
        frame.reader = {
            let (qp, pool) = (frame.qp.clone(), pool.clone());
            let (channel, ended) = (channel.clone(), frame.ended.clone());
            Some(rt::spawn(async move {
                if let Ok(smbd) = smbd::passive(qp, config, pool).await {
                    *channel.borrow_mut() = Some(smbd.clone());
                    while let Ok(Some(message)) = smbd.recv().await {
                        assert!(!message.body.is_empty(), "SMB Direct has no empty messages");
                    }
                }
                ended.set(true);
            }))
        };
        let mut world = Transfers { frame, channel, exposed: Vec::new(), rest: 0, credits: 0 };
        if !script.rarely(16) {
            world.negotiate(script);
        }
        // Whatever the outcome, the server has begun.
        world.turn().await;
        world
    }

    async fn turn(&mut self) {
        self.frame.turn(4).await;
        for message in self.frame.qp.heard() {
            let granted = NegotiateResponse::parse(&message).map(|response| response.credits_granted).ok();
            // [MS-SMBD] 2.2.3: CreditsGranted is the second field.
            let granted = granted.or_else(|| Some(u16::from_le_bytes(*message.get(2..)?.first_chunk()?)));
            self.credits = self.credits.saturating_add(granted.unwrap_or(0).into());
        }
    }

    async fn act(&mut self, script: &mut Script<'_>) {
        match script.byte() % 16 {
            0 if script.rarely(8) => self.negotiate(script),
            0..=5 => self.transfer(script),
            6 if script.rarely(8) => {
                let len = script.below(80);
                self.frame.qp.says(script.bytes(len));
            }
            6..=8 => self.frame.qp.takes(1 + script.below(40)),
            9 if script.rarely(8) => self.frame.qp.refuses(),
            9 => self.frame.qp.answers(&[script.byte()]),
            10 => self.send(script),
            11 => self.fetch(script),
            12 => self.memory(script),
            13 => self.frame.squeeze(script),
            14 => rt::sleep(Duration::from_millis(1 << script.below(18))).await,
            _ => match script.byte() % 16 {
                0 => self.frame.qp.ends(an_end(script)),
                1 => {
                    if let Some(channel) = &*self.channel.borrow() {
                        channel.close();
                    }
                }
                2 => {
                    self.frame.reader = None;
                    *self.channel.borrow_mut() = None;
                }
                3 => self.frame.give_up_tasks(),
                _ => {}
            },
        }
    }

    async fn end(mut self, script: &mut Script<'_>) {
        self.frame.relax();
        self.turn().await;
        if script.flag() {
            // The peer is silent, and gets a keepalive.
            rt::sleep(PATIENCE).await;
            assert!(self.frame.qp.is_over(), "a silent peer is kept for ever");
        }
        self.frame.qp.ends(Disconnect::Peer);
        rt::sleep(PATIENCE).await;
        self.frame.check_ended();
        if let Some(channel) = self.channel() {
            for exposed in self.exposed.drain(..) {
                drop(channel.revoke(exposed));
            }
        }
    }
}

impl Transfers {
    fn negotiate(&mut self, script: &mut Script<'_>) {
        let odd = script.rarely(16);
        let any = script.edge();
        let or = |usual: u32| if odd { any as u32 } else { usual };
        let request = NegotiateRequest {
            min_version: VERSION,
            max_version: if odd { any as u16 } else { VERSION },
            credits_requested: *script.one_of(&[255, 255, 1, 2, 10, or(3) as u16]),
            preferred_send_size: *script.one_of(&[1364, 8192, 128, or(512)]),
            max_receive_size: *script.one_of(&[8192, 1364, 128, or(4096)]),
            max_fragmented_size: *script.one_of(&[1 << 20, 131_072, or(1 << 19)]),
        };
        let mut bytes = Vec::new();
        request.emit(&mut bytes);
        self.frame.qp.says(&bytes);
    }

    fn transfer(&mut self, script: &mut Script<'_>) {
        // A client that keeps to its credits survives longer.
        if self.credits == 0 && !script.rarely(32) {
            return;
        }
        self.credits = self.credits.saturating_sub(1);
        let wish = if script.rarely(32) { 0 } else { 50 };
        let requested = *script.one_of(&[255, 255, 255, 1, 10, wish]);
        let granted = *script.one_of(&[0, 1, 10, 100]);
        let flags = if script.one_in(8) { RESPONSE_REQUESTED } else { 0 };
        let data = match script.byte() % 8 {
            0 => 0,
            1 => 1,
            2..=4 => 100,
            5 => 1000,
            _ => 340,
        };
        let (len, remaining) = if data == 0 {
            (0, 0)
        } else if self.rest > 0 {
            let len = self.rest.min(data);
            self.rest -= len;
            (len, self.rest)
        } else {
            self.rest = *script.one_of(&[0, 0, 50, 700, 3000, 100_000, 1_000_000, u32::MAX]);
            // A message that is far too long ends the connection, so it is rare.
            if self.rest == u32::MAX && !script.rarely(16) {
                self.rest = 0;
            }
            (data, self.rest)
        };
        let remaining = if script.rarely(64) { script.edge() as u32 } else { remaining };
        let mut bytes = DataTransfer::header(requested, granted, flags, remaining, len).to_vec();
        bytes.resize(bytes.len() + len as usize, 5);
        if len == 0 {
            bytes.truncate(DataTransfer::LEN);
        }
        if script.rarely(64) {
            let at = script.below(bytes.len());
            bytes[at] ^= script.byte();
        }
        self.frame.qp.says(&bytes);
    }

    fn channel(&self) -> Option<Rc<Smbd>> {
        self.channel.borrow().clone()
    }

    fn send(&mut self, script: &mut Script<'_>) {
        let Some(channel) = self.channel() else { return };
        let len = *script.one_of(&[0, 1, 100, 5000, 70_000, FILE_BYTES, 1_000_000]);
        let data: Payload = if script.flag() {
            Payload::File(FileRange { file: self.frame.file.clone(), offset: 0, len: len.min(FILE_BYTES) })
        } else {
            Bytes::from(vec![3; len]).into()
        };
        let to = if script.flag() { To::Segments(segments(script)) } else { To::Inline };
        let parts = vec![Part::Bytes("head".into()), Part::Payload { data, to }];
        let invalidate = script.one_in(8).then(|| Stag(script.byte().into()));
        let sending = channel.send(Outgoing { parts, invalidate, ..Outgoing::default() });
        self.frame.spawn(sending);
    }

    fn fetch(&mut self, script: &mut Script<'_>) {
        let Some(channel) = self.channel() else { return };
        let remote = channel.remote(segments(script));
        if script.one_in(4) {
            let _ = remote.fill(&self.frame.file, 0, remote.len());
        } else {
            self.frame.spawn(remote.fetch());
        }
    }

    fn memory(&mut self, script: &mut Script<'_>) {
        let Some(channel) = self.channel() else { return };
        if script.flag() && !self.exposed.is_empty() {
            let at = script.below(self.exposed.len());
            drop(channel.revoke(self.exposed.swap_remove(at)));
        } else if let Some(mut buf) = self.frame.pool.try_alloc(4096) {
            buf.set_len(1 + script.below(4096));
            let access = if script.flag() { Access::RemoteRead } else { Access::RemoteWrite };
            self.exposed.extend(channel.expose(buf, access));
        }
    }
}

fn segments(script: &mut Script<'_>) -> Vec<Segment> {
    let len = |script: &mut Script<'_>| match script.byte() % 8 {
        0 => 0,
        1 => 1,
        2 | 3 => 5000,
        4 => 70_000,
        5 => 1 << 20,
        6 => 8 << 20,
        _ => script.edge() as u32,
    };
    let count = 1 + script.below(4);
    (0..count)
        .map(|_| Segment { stag: Stag(script.byte().into()), offset: script.edge(), len: len(script) })
        .collect()
}
