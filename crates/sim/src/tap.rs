//! A tap between a server and its connection: every request gets exactly one answer.
//!
//! It numbers requests as their protocols do ([MS-SMB2] 2.2.1 MessageId; RFC 5531 section 9 xid) and refuses an answer to no request, a
//! second answer, and a request without an answer: on a living connection when nothing goes on any more, and on one that ends after its client
//! must have lost patience. An interim response of SMB is no answer; CANCEL has none. Encrypted messages pass unseen.
//!
//! It also delivers some calls of NFS twice, the second time at once or later, as a network or a client that sends them again would: `copies`
//! says which, and what the second answer must be.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::{Rc, Weak};
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::LocalBoxFuture;
use weft_machine::{Buf, Payload, Peer, Pool, Time, rt};
use weft_transport::{
    Access, Channel, Error, Exposed, Kind, Limits, Message, Outgoing, Part, RemotePayload, Security, Segment,
    Sending, Ticket, Traffic,
};

use crate::copies::{Answered, Copies};

/// Bytes of an SMB header, and where its fields are.
const SMB_HEADER: usize = 64;
const SMB_MAGIC: [u8; 4] = *b"\xfeSMB";
const STATUS: usize = 8;
const COMMAND: usize = 12;
const FLAGS: usize = 16;
const NEXT_COMMAND: usize = 20;
const MESSAGE_ID: usize = 24;
/// A command without an answer, and one that waits for others without an interim response.
const CANCEL: u16 = 0x0c;
const SET_INFO: u16 = 0x11;
/// A server answers by then, unless it says that it waits for others. Clients wait for a minute.
const IN_TIME: Duration = Duration::from_secs(50);
/// STATUS_PENDING: the status of an interim response, which has this flag.
const PENDING: u32 = 0x103;
const ASYNC: u32 = 0x02;
/// Where an RPC message says whether it is a call, and that it is.
const MESSAGE_TYPE: usize = 4;
const CALL: u32 = 0;

/// What was asked in one direction of a connection and not answered.
#[derive(Default)]
struct Asked(BTreeMap<u64, Request>);

struct Request {
    /// Answers that are due: more than one if it was repeated.
    due: u32,
    since: Time,
    /// There was an interim response.
    interim: bool,
    /// It may wait for others without one.
    waits: bool,
}

impl Asked {
    fn ask(&mut self, number: u64, waits: bool) {
        let request = || Request { due: 0, since: rt::now(), interim: false, waits };
        self.0.entry(number).or_insert_with(request).due += 1;
    }

    /// A request that should have been answered long ago.
    fn overdue(&self) -> Option<u64> {
        let overdue = |request: &Request| {
            !request.interim && !request.waits && rt::now().since(request.since) > IN_TIME
        };
        self.0.iter().find(|(_, request)| overdue(request)).map(|(number, _)| *number)
    }

    /// Why it may not be answered.
    fn answer(&mut self, number: u64, interim: bool) -> Result<(), &'static str> {
        let request = self.0.get_mut(&number).ok_or("nobody waits for this answer")?;
        if interim {
            return match std::mem::replace(&mut request.interim, true) {
                true => Err("a second interim response"),
                false => Ok(()),
            };
        }
        request.due -= 1;
        if request.due == 0 {
            self.0.remove(&number);
        }
        Ok(())
    }
}

/// See the module.
pub struct Tap {
    channel: Rc<dyn Channel>,
    /// By the client, and by the server (callbacks of NFSv4).
    asked: RefCell<[Asked; 2]>,
    ended: Cell<bool>,
    /// Calls that are delivered twice.
    copies: RefCell<Copies>,
}

/// All taps of a world.
#[derive(Default)]
pub struct Taps {
    taps: RefCell<Vec<Weak<Tap>>>,
    /// Calls that were delivered twice, and answered twice.
    copied: Rc<Cell<u64>>,
}

impl Taps {
    /// The channel, tapped.
    pub fn tap(&self, channel: Rc<dyn Channel>) -> Rc<dyn Channel> {
        let copies = RefCell::new(Copies::new(self.copied.clone()));
        let tap = Rc::new(Tap { channel, asked: RefCell::default(), ended: Cell::new(false), copies });
        let taps = &mut *self.taps.borrow_mut();
        taps.retain(|tap| tap.strong_count() > 0);
        taps.push(Rc::downgrade(&tap));
        tap
    }

    /// Calls that were delivered twice, and answered twice.
    pub fn copied(&self) -> u64 {
        self.copied.get()
    }

    /// Nothing goes on any more. A request that is not answered, if there is one.
    pub fn quiet(&self) -> Result<(), String> {
        for tap in self.taps.borrow().iter().filter_map(Weak::upgrade) {
            let living = !tap.ended.get() && !tap.channel.has_ended();
            let asked = tap.asked.borrow();
            if let Some((number, _)) = asked[0].0.iter().next().filter(|_| living) {
                return Err(format!("{:?} {number} was never answered", tap.channel.kind()));
            }
        }
        Ok(())
    }
}

fn u32_at(bytes: &[u8], at: usize, kind: Kind) -> Option<u32> {
    let word = bytes.get(at..)?.first_chunk()?;
    Some(if kind == Kind::Nbss { u32::from_le_bytes(*word) } else { u32::from_be_bytes(*word) })
}

/// One message of SMB.
struct Smb {
    number: u64,
    command: u16,
    interim: bool,
}

/// The messages of a frame; none if it is encrypted.
fn smb_messages(frame: &[u8]) -> Vec<Smb> {
    let (mut messages, mut rest) = (Vec::new(), frame);
    while rest.len() >= SMB_HEADER && rest.starts_with(&SMB_MAGIC) {
        let word = |at| u32_at(rest, at, Kind::Nbss).unwrap_or_default();
        let number = u64::from(word(MESSAGE_ID)) | u64::from(word(MESSAGE_ID + 4)) << 32;
        let interim = word(STATUS) == PENDING && word(FLAGS) & ASYNC != 0;
        messages.push(Smb { number, command: word(COMMAND) as u16, interim });
        match word(NEXT_COMMAND) as usize {
            0 => break,
            next => rest = rest.get(next..).unwrap_or_default(),
        }
    }
    messages
}

/// The bytes of a message, but for payload that is in no memory.
fn bytes_of(message: &Outgoing) -> Bytes {
    match &message.parts[..] {
        [Part::Bytes(bytes)] => bytes.clone(),
        parts => {
            let mut all = Vec::new();
            for part in parts {
                match part {
                    Part::Bytes(bytes) => all.extend_from_slice(bytes),
                    Part::Payload { data: Payload::Chain(chain), .. } => {
                        chain.iter().for_each(|bytes| all.extend_from_slice(bytes));
                    }
                    Part::Payload { data, .. } => all.resize(all.len() + data.len(), 0),
                }
            }
            all.into()
        }
    }
}

impl Tap {
    fn received(&self, body: &Bytes) {
        let [by_client, by_server] = &mut *self.asked.borrow_mut();
        match self.channel.kind() {
            Kind::Nbss => {
                let asks = smb_messages(body).into_iter().filter(|message| message.command != CANCEL);
                asks.for_each(|message| by_client.ask(message.number, message.command == SET_INFO));
            }
            kind => {
                let Some(xid) = u32_at(body, 0, kind).map(u64::from) else { return };
                match u32_at(body, MESSAGE_TYPE, kind) {
                    Some(CALL) => {
                        by_client.ask(xid, false);
                        self.copies.borrow_mut().called(xid as u32, body);
                    }
                    _ => {
                        if let Err(why) = by_server.answer(xid, false) {
                            panic!("callback {xid}: {why}");
                        }
                    }
                }
            }
        }
    }

    fn end(&self) {
        if !self.ended.replace(true)
            && let Some(number) = self.asked.borrow()[0].overdue()
        {
            panic!("{:?} {number} was not answered in time", self.channel.kind());
        }
    }

    /// Whether the message is for the client: it has asked once.
    fn sends(&self, message: &Outgoing) -> bool {
        let [by_client, by_server] = &mut *self.asked.borrow_mut();
        let body = bytes_of(message);
        match self.channel.kind() {
            Kind::Nbss => {
                // Breaks of leases answer nothing.
                for Smb { number, command, interim } in smb_messages(&body) {
                    if number != u64::MAX
                        && let Err(why) = by_client.answer(number, interim)
                    {
                        panic!("SMB {number}, command {command}: {why}");
                    }
                }
                true
            }
            kind => {
                let Some(xid) = u32_at(&body, 0, kind).map(u64::from) else { return true };
                if u32_at(&body, MESSAGE_TYPE, kind) == Some(CALL) {
                    by_server.ask(xid, false);
                    return true;
                }
                let answered = by_client.answer(xid, false).map_err(str::to_owned);
                match answered.and_then(|()| self.copies.borrow_mut().answered(xid as u32, &body)) {
                    Ok(Answered::Client) => true,
                    Ok(Answered::Nobody) => false,
                    Err(why) => panic!("NFS {xid}: {why}"),
                }
            }
        }
    }

    /// A call that arrives a second time.
    fn copy(&self) -> Option<Message> {
        let (xid, body) = self.copies.borrow_mut().take(rt::now())?;
        self.asked.borrow_mut()[0].ask(u64::from(xid), false);
        Some(Message { body, detached: None, ticket: Ticket::default() })
    }
}

/// The methods that a wrapper of a channel passes on.
macro_rules! passed_on {
    () => {
        fn kind(&self) -> Kind {
            self.channel.kind()
        }
        fn medium(&self) -> &'static str {
            self.channel.medium()
        }
        fn peer(&self) -> Peer {
            self.channel.peer()
        }
        fn limits(&self) -> Limits {
            self.channel.limits()
        }
        fn security(&self) -> Option<Security> {
            self.channel.security()
        }
        fn authenticated(&self) {
            self.channel.authenticated();
        }
        fn backlog(&self) -> usize {
            self.channel.backlog()
        }
        fn unsent_bytes(&self) -> usize {
            self.channel.unsent_bytes()
        }
        fn answers(&self) -> Option<Pool> {
            self.channel.answers()
        }
        fn has_ended(&self) -> bool {
            self.channel.has_ended()
        }
        fn unacknowledged(&self) -> usize {
            self.channel.unacknowledged()
        }
        fn waits_for_memory(&self) -> bool {
            self.channel.waits_for_memory()
        }
        fn cork(&self, on: bool) {
            self.channel.cork(on);
        }
        fn remote(&self, from: Vec<Segment>) -> Box<dyn RemotePayload> {
            self.channel.remote(from)
        }
        fn expose(&self, buf: Buf, access: Access) -> Result<Exposed, Error> {
            self.channel.expose(buf, access)
        }
        fn revoke(&self, exposed: Exposed) -> Option<Buf> {
            self.channel.revoke(exposed)
        }
        fn traffic(&self) -> Traffic {
            self.channel.traffic()
        }
    };
}
pub(crate) use passed_on;

impl Channel for Tap {
    fn recv(&self) -> LocalBoxFuture<'_, Result<Option<Message>, Error>> {
        Box::pin(async {
            loop {
                if let Some(copy) = self.copy() {
                    return Ok(Some(copy));
                }
                let next = self.copies.borrow().next();
                let received = match next {
                    None => self.channel.recv().await,
                    Some(at) => match rt::timeout(at.since(rt::now()), self.channel.recv()).await {
                        Ok(received) => received,
                        Err(rt::Elapsed) => continue,
                    },
                };
                match &received {
                    Ok(Some(message)) => self.received(&message.body),
                    Ok(None) | Err(_) => self.end(),
                }
                return received;
            }
        })
    }

    fn try_recv(&self) -> Option<Message> {
        self.copy().or_else(|| self.channel.try_recv().inspect(|message| self.received(&message.body)))
    }

    fn send(&self, message: Outgoing) -> Sending {
        match self.sends(&message) {
            true => self.channel.send(message),
            false => Sending::answered(Ok(())),
        }
    }

    fn close(&self) {
        self.end();
        self.channel.close();
    }

    passed_on!();
}

#[cfg(test)]
mod tests {
    use weft_machine::sim::Sim;

    use super::*;

    #[test]
    fn every_request_has_one_answer() {
        Sim::new(1).run(async {
            let mut asked = Asked::default();
            assert!(asked.answer(1, false).is_err(), "to no request");
            asked.ask(1, false);
            assert!(asked.answer(1, true).is_ok() && asked.answer(1, true).is_err(), "one interim response");
            assert!(asked.answer(1, false).is_ok() && asked.answer(1, false).is_err(), "twice");
            asked.ask(1, false);
            asked.ask(1, false);
            assert!(asked.answer(1, false).is_ok() && asked.answer(1, false).is_ok(), "it was asked twice");
            for number in [1, 2, 3] {
                asked.ask(number, number == 1);
            }
            asked.answer(2, true).unwrap();
            assert_eq!(asked.overdue(), None);
            rt::sleep(IN_TIME * 2).await;
            assert_eq!(asked.overdue(), Some(3), "the others wait for somebody");
        });
    }

    #[test]
    fn messages_of_a_frame_are_found() {
        let message = |number: u64, next: u32, status: u32, flags: u32| {
            let mut message = vec![0; SMB_HEADER];
            message[..4].copy_from_slice(&SMB_MAGIC);
            message[STATUS..][..4].copy_from_slice(&status.to_le_bytes());
            message[COMMAND] = 5;
            message[FLAGS..][..4].copy_from_slice(&flags.to_le_bytes());
            message[NEXT_COMMAND..][..4].copy_from_slice(&next.to_le_bytes());
            message[MESSAGE_ID..][..8].copy_from_slice(&number.to_le_bytes());
            message
        };
        let frame = [message(1 << 40, 64, 0, 0), message(7, 0, PENDING, 1 | ASYNC)].concat();
        let found: Vec<_> =
            smb_messages(&frame).into_iter().map(|found| (found.number, found.interim)).collect();
        assert_eq!(found, [(1 << 40, false), (7, true)]);
        assert!(smb_messages(&frame[..SMB_HEADER]).len() == 1 && smb_messages(b"\xfdSMB").is_empty());
    }
}
