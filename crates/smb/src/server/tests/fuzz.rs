//! Clients that break the rules knowingly: requests that are well-formed and refer to existing objects, but make no
//! sense.
//!
//! Spec: [MS-SMB2]. Owns a server in memory, and hand-made clients (`harness`). Other tests check what an honest client
//! is told. This module exists only in test and fuzzing builds.
//!
//! An input is a [`Script`]. Its requests (built by `requests`) refer to files, keys and leases from earlier answers.
//! They are sent alone and in compounds, in and out of order, signed, encrypted, repeated and damaged, from two
//! channels of one session and from another user; time passes, breaks are acknowledged or not, requests are cancelled,
//! connections end. Checked: nothing panics, every request is answered once in time or when cancelled (unless its
//! connection ends), answers can be parsed, sessions end with their last channel, another client is served afterwards,
//! and no buffer leaks.

mod requests;

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use bytes::Bytes;
use weft_machine::sim::{Script, Sim};
use weft_machine::{Pool, rt};
use weft_store::backend::Ram;
use weft_store::{Share, Vfs};
use weft_wire::smb2::create::CreateOptions;
use weft_wire::smb2::header::Flags;
use weft_wire::smb2::oplock_break::{Acknowledgment, Notification};
use weft_wire::smb2::{
    Command, FileId, Guid, HEADER_LEN, Header, Id, NtStatus, cancel, compound, create, ioctl,
};

use super::harness::*;
use crate::crypto;
use crate::server::Limits;

/// A target's name, as in `fuzz/`, and its function.
#[cfg(test)]
pub type Target = (&'static str, fn(&[u8]));

/// All fuzz targets of the server.
#[cfg(test)]
pub const TARGETS: &[Target] = &[("smb_server", smb_server)];

const MAX_ACTS: usize = 120;
/// Two channels of one session, and one of another user.
const CLIENTS: usize = 3;
/// Objects remembered per kind; the oldest are forgotten.
const MAX_RECENT: usize = 12;
/// Longer than any of our waits for a client: for a break, a durable handle, a resilient one.
const PATIENCE: Duration = Duration::from_secs(1200);
const SHARE_BYTES: u64 = 1 << 20;
/// Compounds that are held back and sent later.
const MAX_HELD: usize = 4;

thread_local! {
    // Shared by all inputs: creating a pool takes as long as a short script.
    static POOL: Pool = Pool::new(64 << 20);
}

/// Runs a script of misbehaving clients.
pub fn smb_server(data: &[u8]) {
    let pool = POOL.with(Pool::clone);
    let mut script = Script::new(data);
    Sim::new(u64::from(script.byte())).time_limit(Duration::from_secs(1 << 20)).run(async {
        let mut room = Room::new(&pool).await;
        let mut acts = 0;
        while !script.is_over() && acts < MAX_ACTS {
            room.act(&mut script).await;
            acts += 1;
        }
        room.end().await;
    });
    assert_eq!(pool.in_use_bytes(), 0, "a buffer is lost");
}

/// Objects that can be referred to, latest last.
struct Recent<T>(VecDeque<T>);

impl<T> Default for Recent<T> {
    fn default() -> Recent<T> {
        Recent(VecDeque::new())
    }
}

impl<T: Clone> Recent<T> {
    fn learn(&mut self, thing: T) {
        self.0.push_back(thing);
        if self.0.len() > MAX_RECENT {
            self.0.pop_front();
        }
    }

    fn pick(&self, script: &mut Script<'_>) -> Option<T> {
        (!self.0.is_empty()).then(|| self.0[script.below(self.0.len())].clone())
    }
}

/// The objects that clients have learnt of.
#[derive(Default)]
struct Knowledge {
    files: Recent<FileId>,
    /// Keys of SRV_REQUEST_RESUME_KEY, and tokens of offloaded reads.
    tokens: Recent<Bytes>,
    breaks: Recent<Acknowledgment>,
}

/// An unanswered request.
struct Asked {
    command: Command,
    /// Set by STATUS_PENDING.
    async_id: Option<u64>,
}

/// A client, and its unanswered requests.
struct ClientSlot {
    client: Client,
    /// Tree of the pipes; the share's tree is the client's own.
    pipes: u32,
    open: BTreeMap<u64, Asked>,
    held: Vec<Vec<u8>>,
    sent: Recent<Vec<u8>>,
}

struct Room {
    world: World,
    slots: Vec<ClientSlot>,
    known: Knowledge,
}

impl Room {
    async fn new(pool: &Pool) -> Room {
        let world = World::with(|config| {
            config.pool = pool.clone();
            config.offers.mac_model = Some("Xserve".into());
            config.shares = vec![Share::new("Data", Vfs::new(Ram::new(SHARE_BYTES)))];
            config.limits = Limits {
                opens: 64,
                credits: 128,
                compound: 8,
                max_io: 64 << 10,
                trees: 8,
                channels: 4,
                ..Limits::default()
            };
        });
        let world = World { pool: pool.clone(), ..world };
        let mut room = Room { world, slots: Vec::new(), known: Knowledge::default() };
        for at in 0..CLIENTS {
            let slot = room.enter(at).await;
            room.slots.push(slot);
        }
        let client = &mut room.slots[0].client;
        for (name, options) in
            [("d", CreateOptions::DIRECTORY_FILE), ("a", CreateOptions::NONE), (r"d\a", CreateOptions::NONE)]
        {
            room.known.files.learn(client.open(name, options).await);
        }
        room
    }

    /// A client for this slot, logged on and connected to the share.
    async fn enter(&mut self, at: usize) -> ClientSlot {
        let mut client = self.world.connect();
        // Both channels belong to one client; the other user is on another machine.
        let guid: Guid = [9 + (at as u8 / 2); 16];
        client.negotiate(Offer { guid, ..Offer::default() }).await;
        let mut bound = false;
        if at == 1
            && let Some(first) = self.slots.first()
            && first.client.material.is_some()
        {
            bound = client.bind(&first.client).await.is_ok();
        }
        let mut pipes = 0;
        if bound {
            let first = &self.slots[0];
            (client.tree, pipes) = (first.client.tree, first.pipes);
        } else {
            if at == 1 {
                // A connection whose binding was refused is not used any more.
                client.wire.hang_up();
                client = self.world.connect();
                client.negotiate(Offer { guid, ..Offer::default() }).await;
            }
            client.log_on(["alice", "alice", "bob"][at], PASSWORD).await.expect("a log-on");
            client.tree().await;
            let (header, _) = client.tree_connect(r"\\server\IPC$").await;
            if header.status == NtStatus::SUCCESS {
                pipes = header.tree_id().expect("a tree");
            }
        }
        ClientSlot { client, pipes, open: BTreeMap::new(), held: Vec::new(), sent: Recent::default() }
    }

    async fn act(&mut self, script: &mut Script<'_>) {
        let at = script.below(CLIENTS);
        match script.byte() % 32 {
            0 => {
                if script.rarely(4) {
                    // Another one replaces it once the server has noticed.
                    self.slots[at].client.wire.hang_up();
                }
            }
            1 => {
                let seconds = *script.one_of(&[1, 20, 36, 130]);
                self.settle(Duration::from_secs(seconds)).await;
            }
            2 => {
                let slot = &mut self.slots[at];
                if let Some(message) = slot.sent.pick(script).filter(|_| script.rarely(4)) {
                    slot.client.wire.send(message);
                }
            }
            3 => {
                let slot = &mut self.slots[at];
                if let Some(mut message) = slot.sent.pick(script) {
                    damage(&mut message, script);
                    slot.client.wire.send(message);
                }
            }
            4 | 5 => self.slots[at].cancel(script),
            6 => {
                if let Some(message) = self.slots[at].held.pop() {
                    self.slots[at].client.wire.send(message);
                }
            }
            _ => self.slots[at].ask(&self.known, script),
        }
        // Requests accumulate now and then.
        if script.byte() % 4 != 3 {
            self.settle(Duration::from_millis(1)).await;
        }
    }

    /// Lets time pass, and checks the answers.
    async fn settle(&mut self, time: Duration) {
        rt::sleep(time).await;
        for at in 0..self.slots.len() {
            while self.slots[at].client.wire.is_answered() {
                let slot = &mut self.slots[at];
                let message = slot.client.wire.recv(&slot.client.pool).await.expect("there is one");
                slot.hear(message, &mut self.known);
            }
            if self.slots[at].client.wire.closed_by_server.get() {
                self.slots[at] = self.enter(at).await;
            }
        }
    }

    async fn end(&mut self) {
        for slot in &mut self.slots {
            slot.held.drain(..).for_each(|message| slot.client.wire.send(message));
        }
        // For unacknowledged breaks, and requests that wait for them.
        self.settle(Duration::from_secs(200)).await;
        // Each may unblock others that waited, which may wait for a break in turn.
        for _ in 0..2 {
            for slot in &self.slots {
                slot.open.iter().for_each(|(id, asked)| slot.cancel_one(*id, asked));
            }
            self.settle(Duration::from_secs(200)).await;
        }
        for slot in &self.slots {
            let open: Vec<_> =
                slot.open.iter().map(|(id, asked)| (id, asked.command, asked.async_id)).collect();
            assert!(open.is_empty(), "never answered: {open:?}");
        }
        assert!(self.world.client().await.is_served().await, "nobody else is served");
        self.slots.iter().for_each(|slot| slot.client.wire.hang_up());
        rt::sleep(PATIENCE).await;
        // The client that was served last is still connected.
        assert!(self.world.server.session_count() <= 1, "sessions outlive their channels");
    }
}

impl ClientSlot {
    /// A request or a compound; sent, or held back.
    fn ask(&mut self, known: &Knowledge, script: &mut Script<'_>) {
        let client = &mut self.client;
        let count = if script.rarely(3) { 1 + script.below(4) } else { 1 };
        // The server disconnects a client that sends without credits.
        if client.credits < 2 * count as u64 {
            return;
        }
        let (tree, sequence) = (client.tree, client.sequence);
        if script.rarely(8) {
            client.tree = self.pipes;
        }
        client.replay = script.rarely(16);
        if script.rarely(32) {
            client.sequence = script.word();
        }
        let related = count > 1 && !script.rarely(4);
        let mut requests = Vec::new();
        for at in 0..count {
            let id = client.next_id;
            let request = requests::request(client, known, related && at > 0, script);
            let command = Header::parse(&request).expect("made here").command;
            client.credits -= client.next_id - id;
            self.open.insert(id, Asked { command, async_id: None });
            requests.push(request);
        }
        (client.tree, client.sequence, client.replay) = (tree, sequence, false);
        let mut message = link(requests, related);
        match script.byte() % 8 {
            0 => sign_each(client.keys.as_ref().expect("logged on"), &mut message),
            1 => message = client.sealed(&message),
            _ => {}
        }
        self.sent.learn(message.clone());
        match self.held.len() < MAX_HELD && script.rarely(8) {
            true => self.held.push(message),
            false => client.wire.send(message),
        }
    }

    fn cancel(&self, script: &mut Script<'_>) {
        if !self.open.is_empty() {
            let at = script.below(self.open.len());
            let (id, asked) = self.open.iter().nth(at).expect("one of them");
            self.cancel_one(*id, asked);
        }
    }

    /// CANCEL has no message id of its own and costs no credit.
    fn cancel_one(&self, id: u64, asked: &Asked) {
        let mut header = Header { credit_charge: 0, ..Header::request(Command::Cancel, id) };
        header.session_id = self.client.session;
        header.id = Id::tree(self.client.tree);
        if let Some(id) = asked.async_id {
            header.id = Id::Async(id);
            header.flags |= Flags::ASYNC_COMMAND;
        }
        let mut message = header.to_bytes().to_vec();
        cancel::Request.emit(&mut message);
        self.client.wire.send(message);
    }

    fn hear(&mut self, mut message: Bytes, known: &mut Knowledge) {
        if message.starts_with(&[0xFD]) {
            let header = crypto::transform(&message).expect("a header that can be read");
            let mut plain = vec![0; header.original_message_size as usize];
            let opener = self.client.keys.as_ref().and_then(|keys| keys.opener.as_ref()).expect("a cipher");
            opener.open(&message, &mut plain).expect("encrypted with our key");
            message = plain.into();
        }
        for response in compound::split(message) {
            let response = response.expect("a compound that can be split");
            let header = Header::parse(&response).expect("a header that can be read");
            assert!(header.is_response());
            self.client.credits += u64::from(header.credits);
            if header.message_id == u64::MAX {
                known.breaks.learn(acknowledgment(&Notification::parse(&response).expect("a break")));
                continue;
            }
            if header.status == NtStatus::PENDING {
                if let Some(asked) = self.open.get_mut(&header.message_id) {
                    asked.async_id = header.async_id();
                }
                continue;
            }
            // `None`: the answer to a damaged message with another number.
            let Some(asked) = self.open.remove(&header.message_id) else { continue };
            if header.status == NtStatus::SUCCESS && asked.command == header.command {
                learn(header.command, &response, known);
            }
        }
    }
}

/// The acknowledgement of a well-behaved client.
fn acknowledgment(notification: &Notification) -> Acknowledgment {
    match *notification {
        Notification::Oplock { level, file } => Acknowledgment::Oplock { level, file },
        Notification::Lease { key, new, .. } => Acknowledgment::Lease { key, state: new },
    }
}

/// Learns the objects that an answer names.
fn learn(command: Command, response: &Bytes, known: &mut Knowledge) {
    match command {
        Command::Create => {
            let response = create::Response::parse(response).expect("CREATE's answer");
            known.files.learn(response.file);
        }
        Command::Ioctl => {
            let response = ioctl::Response::parse(response).expect("IOCTL's answer");
            let token = match response.code {
                ioctl::CtlCode::SRV_REQUEST_RESUME_KEY => response.output.get(..24),
                ioctl::CtlCode::OFFLOAD_READ => response.output.get(16..528),
                _ => None,
            };
            token.into_iter().for_each(|token| known.tokens.learn(Bytes::copy_from_slice(token)));
        }
        _ => {}
    }
}

/// Changes some bytes after the routing fields.
fn damage(message: &mut [u8], script: &mut Script<'_>) {
    for _ in 0..=script.below(3) {
        let at = if script.rarely(4) { 0 } else { HEADER_LEN };
        let at = at + script.below(message.len() - at);
        message[at] = match script.byte() % 4 {
            0 => 0,
            1 => u8::MAX,
            2 => message[at] ^ 1 << (script.byte() % 8),
            _ => script.byte(),
        };
    }
}

#[cfg(test)]
mod smoke;
