//! Compounds as they come from the wire, against a server without a network.

mod acl;
mod acting;
mod audit;
mod budget;
mod delegations;
mod disk;
mod exports;
mod judged;
mod known;
mod leaving;
pub mod live;
mod locks;
mod named;
mod names;
mod opens;
mod payloads;
mod ranges;
mod restarts;
mod sessions;
mod strangers;

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use bytes::Bytes;
use weft_store::backend::Ram;
use weft_store::{NodeId, Share, Vfs};
use weft_transport::{Peer, Security};
use weft_wire::nfs4::*;
use weft_wire::rpc::{AuthSys, Call, Credential, Reply};
use weft_wire::xdr::{Decoder, Encoder};

use crate::server::identity::Origin;
use crate::server::tests::{PEER, replies_to_parts, reply_to_parts};
use crate::server::{Config, Limits, Policy, Server};

pub fn server_with(limits: Limits) -> Arc<Server> {
    server_of(limits, Policy { decides: false, squash_root: true })
}

pub fn server_of(limits: Limits, policy: Policy) -> Arc<Server> {
    let share = |name: &str| Share::new(name, Vfs::new(Ram::new(64 << 20)));
    let shares = vec![share("ram"), share("other")];
    Server::new(Config { shares, pool: weft_machine::Pool::new(16 << 20), limits, policy, durable: None })
}

pub fn server() -> Arc<Server> {
    server_with(Limits::default())
}

pub fn text(s: &str) -> Text {
    Text(Bytes::copy_from_slice(s.as_bytes()))
}

/// A connection of this peer, as the key of clients' records.
pub fn origin(peer: &str) -> Origin {
    Origin::of(Peer::Tcp(peer.parse().unwrap()), None)
}

/// A reply: the status, and results to be read in order.
pub struct Answer {
    pub status: Status,
    pub count: u32,
    pub d: Decoder,
}

impl Answer {
    /// The status of the next result, which must be that of `op`.
    pub fn next(&mut self, op: u32) -> Status {
        assert_eq!(self.d.u32().unwrap(), op);
        Status(self.d.u32().unwrap())
    }

    /// The next result, which must be a success of `op`.
    pub fn ok<T: Xdr>(&mut self, op: u32) -> T {
        assert_eq!(self.next(op), Status::OK, "operation {op}");
        T::parse(&mut self.d).unwrap()
    }

    pub fn end(self) {
        self.d.end().unwrap();
    }
}

/// A COMPOUND of these operations, encoded.
pub fn call(minor: u32, uid: u32, ops: &[Op]) -> Bytes {
    // Each is a new request.
    static XID: AtomicU32 = AtomicU32::new(0);
    numbered_call(XID.fetch_add(1, Ordering::Relaxed), minor, uid, ops)
}

pub fn numbered_call(xid: u32, minor: u32, uid: u32, ops: &[Op]) -> Bytes {
    let credential = Credential::Sys(AuthSys::new(Bytes::from_static(b"host"), uid, uid));
    call_as(xid, minor, credential, ops)
}

pub fn call_as(xid: u32, minor: u32, credential: Credential, ops: &[Op]) -> Bytes {
    let mut e = Encoder::default();
    Call { xid, program: PROGRAM, version: VERSION, procedure: COMPOUND, credential }.emit(&mut e);
    CompoundHead { tag: Text::known("story"), minor, count: ops.len() as u32 }.emit(&mut e);
    ops.iter().for_each(|op| op.emit(&mut e));
    e.into_bytes()
}

pub fn send(server: &Server, message: Bytes) -> Answer {
    send_by(server, PEER, message)
}

/// The same by this peer.
pub fn send_by(server: &Server, peer: &str, message: Bytes) -> Answer {
    let (reply, mut d) = reply_to_parts(server, peer, message);
    assert_eq!(reply, Reply::Success);
    let head = ReplyHead::parse(&mut d).unwrap();
    assert_eq!(head.tag, Text::known("story"));
    Answer { status: head.status, count: head.count, d }
}

/// Replies to messages of one connection of this peer with this protection.
pub fn send_over(server: &Server, peer: &str, security: Option<Security>, messages: &[Bytes]) -> Vec<Answer> {
    let answers = replies_to_parts(server, peer, security, messages).into_iter().map(|(reply, mut d)| {
        assert_eq!(reply, Reply::Success);
        let head = ReplyHead::parse(&mut d).unwrap();
        Answer { status: head.status, count: head.count, d }
    });
    answers.collect()
}

/// A client of minor version 0: no session, an owner with sequence ids.
pub struct Old<'a> {
    pub server: &'a Server,
    pub id: u64,
    pub uid: u32,
    pub seqid: u32,
}

impl<'a> Old<'a> {
    pub fn new(server: &'a Server, name: &'static str) -> Old<'a> {
        let mut old = Old { server, id: 0, uid: 1, seqid: 0 };
        let confirm = old.setclientid(name, *b"first---");
        assert_eq!(old.run(&[Op::SetclientidConfirm(confirm.clone())]).status, Status::OK);
        old.id = confirm.client;
        old
    }

    pub fn setclientid(&self, name: &'static str, verifier: Verifier) -> Confirm {
        let callback = CallbackClient {
            program: 0x4000_0000,
            location: NetAddr { netid: text("tcp"), addr: text("0.0.0.0.0.0") },
        };
        let client = ClientOwner { verifier, id: Opaque(Bytes::from_static(name.as_bytes())) };
        self.run(&[Op::Setclientid(Setclientid { client, callback, callback_ident: 1 })])
            .ok(opnum::SETCLIENTID)
    }

    pub fn run(&self, ops: &[Op]) -> Answer {
        send(self.server, call(0, self.uid, ops))
    }

    /// The operations on the root of share "ram".
    pub fn at_root(&self, ops: &[Op]) -> Answer {
        let mut all = vec![Op::Putfh(root(self.server))];
        all.extend_from_slice(ops);
        let mut answer = self.run(&all);
        answer.ok::<()>(opnum::PUTFH);
        answer
    }

    pub fn owner(&self, owner: &'static str) -> Owner {
        Owner { client: self.id, owner: Opaque(Bytes::from_static(owner.as_bytes())) }
    }

    pub fn open_op(&self, seqid: u32, name: &str, access: u32, deny: u32, how: OpenHow) -> Op {
        Op::Open(Open {
            seqid,
            access,
            deny,
            owner: self.owner("owner"),
            how,
            claim: Claim::Null(text(name)),
        })
    }

    /// Opens (and creates) a file, confirms the owner if asked to; its handle and state.
    pub fn open(&mut self, name: &str, access: u32, deny: u32) -> (Handle, Stateid) {
        let how = Some(CreateHow::Unchecked(Fattr::default()));
        let mut answer = self.at_root(&[self.open_op(self.seqid, name, access, deny, how), Op::Getfh]);
        self.seqid += 1;
        let ok: OpenOk = answer.ok(opnum::OPEN);
        let handle = answer.ok(opnum::GETFH);
        let mut stateid = ok.stateid;
        if ok.flags & open_flag::CONFIRM != 0 {
            let confirm = Op::OpenConfirm(OpenConfirm { stateid, seqid: self.seqid });
            self.seqid += 1;
            let mut answer = self.run(&[Op::Putfh(handle), confirm]);
            answer.ok::<()>(opnum::PUTFH);
            stateid = answer.ok(opnum::OPEN_CONFIRM);
        }
        (handle, stateid)
    }

    /// One operation on a file: its status.
    pub fn status(&self, handle: Handle, op: Op) -> Status {
        self.run(&[Op::Putfh(handle), op]).status
    }
}

/// A client with a session; uses slot 0 only.
pub struct Modern<'a> {
    pub server: &'a Server,
    pub id: u64,
    pub uid: u32,
    pub session: SessionId,
    pub sequence: std::cell::Cell<u32>,
    pub minor: u32,
    pub peer: &'static str,
}

pub fn channel() -> ChannelAttrs {
    ChannelAttrs {
        header_pad: 0,
        max_request: 1 << 20,
        max_response: 1 << 20,
        max_response_cached: 4096,
        max_operations: 16,
        max_requests: 8,
        rdma_ird: UpTo::default(),
    }
}

pub fn exchange_id(name: &'static str, verifier: Verifier, flags: u32) -> Op {
    let client = ClientOwner { verifier, id: Opaque(Bytes::from_static(name.as_bytes())) };
    Op::ExchangeId(ExchangeId { client, flags, protect: ProtectHow::None, implementation: UpTo::default() })
}

pub fn create_session(client: u64, sequence: u32, fore: ChannelAttrs) -> Op {
    Op::CreateSession(CreateSession {
        client,
        sequence,
        flags: 0,
        fore,
        back: channel(),
        callback_program: 0x4000_0000,
        callback_sec: UpTo(vec![CallbackSec::None]),
    })
}

impl<'a> Modern<'a> {
    pub fn new(server: &'a Server, name: &'static str) -> Modern<'a> {
        let new = Modern::unclaimed(server, name, channel());
        assert_eq!(new.run(&[Op::ReclaimComplete(false)]).status, Status::OK);
        new
    }

    /// One that has not sent RECLAIM_COMPLETE.
    pub fn unclaimed(server: &'a Server, name: &'static str, fore: ChannelAttrs) -> Modern<'a> {
        Modern::by(server, PEER, name, fore)
    }

    /// The same by this peer.
    pub fn by(server: &'a Server, peer: &'static str, name: &'static str, fore: ChannelAttrs) -> Modern<'a> {
        let uid = 1;
        let mut answer = send_by(server, peer, call(1, uid, &[exchange_id(name, *b"verifier", 0)]));
        let known: ExchangeIdOk = answer.ok(opnum::EXCHANGE_ID);
        let new = create_session(known.client, known.sequence, fore);
        let mut answer = send_by(server, peer, call(1, uid, &[new]));
        let made: CreateSessionOk = answer.ok(opnum::CREATE_SESSION);
        Modern { server, id: known.client, uid, session: made.session, sequence: 0.into(), minor: 2, peer }
    }

    pub fn sequence_op(&self, sequence: u32, slot: u32, cache: bool) -> Op {
        Op::Sequence(Sequence { session: self.session, sequence, slot, highest_slot: slot, cache })
    }

    /// A compound after its SEQUENCE.
    pub fn run(&self, ops: &[Op]) -> Answer {
        self.sequence.set(self.sequence.get() + 1);
        let mut all = vec![self.sequence_op(self.sequence.get(), 0, false)];
        all.extend_from_slice(ops);
        let mut answer = send_by(self.server, self.peer, call(self.minor, self.uid, &all));
        answer.ok::<SequenceOk>(opnum::SEQUENCE);
        answer
    }

    pub fn at_root(&self, ops: &[Op]) -> Answer {
        let mut all = vec![Op::Putfh(root(self.server))];
        all.extend_from_slice(ops);
        let mut answer = self.run(&all);
        answer.ok::<()>(opnum::PUTFH);
        answer
    }

    pub fn open_op(&self, name: &str, access: u32, deny: u32, how: OpenHow) -> Op {
        let owner = Owner { client: 0, owner: Opaque(Bytes::from_static(b"owner")) };
        Op::Open(Open { seqid: 0, access, deny, owner, how, claim: Claim::Null(text(name)) })
    }

    pub fn open(&self, name: &str, access: u32, deny: u32) -> (Handle, Stateid) {
        let how = Some(CreateHow::Unchecked(Fattr::default()));
        let mut answer = self.at_root(&[self.open_op(name, access, deny, how), Op::Getfh]);
        let ok: OpenOk = answer.ok(opnum::OPEN);
        (answer.ok(opnum::GETFH), ok.stateid)
    }

    pub fn status(&self, handle: Handle, op: Op) -> Status {
        self.run(&[Op::Putfh(handle), op]).status
    }
}

/// The root of share "ram".
pub fn root(server: &Server) -> Handle {
    Handle::new(crate::server::tests::handle_of(server, 0, NodeId::ROOT).as_bytes()).unwrap()
}

pub fn write_op(stateid: Stateid, offset: u64, data: &'static [u8]) -> Op {
    Op::Write(Write { stateid, offset, stable: Stable::Unstable, data: Bytes::from_static(data).into() })
}

pub fn read_op(stateid: Stateid, offset: u64, count: u32) -> Op {
    Op::Read(Read { stateid, offset, count })
}

pub fn mode(mode: u32) -> Fattr {
    Attributes { mode: Some(mode), ..Attributes::default() }.fattr()
}
