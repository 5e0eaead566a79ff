//! Compounds of every minor version, and replies to callbacks. See RFC 7530, RFC 8881, RFC 7862 and RFC 8276. It
//! holds what clients have learned.

use std::collections::BTreeMap;

use bytes::Bytes;
use weft_machine::sim::Script;
use weft_wire::nfs4::*;
use weft_wire::rpc::Reply;
use weft_wire::xdr::{Decoder, Encoder};

use super::RecentItems;

/// Slots used of each session, including one that the server does not grant.
const SLOTS: usize = 4;
const OWNERS: [&[u8]; 3] = [b"one", b"two", b"three"];
const OPERATIONS: u32 = 12;

/// What version 4 clients have learned.
#[derive(Default)]
pub struct Knowledge {
    /// By index of the client; the last one is of minor version 0.
    pub exchanged: Vec<ExchangeIdOk>,
    pub confirm: Option<Confirm>,
    pub clients: RecentItems<u64>,
    pub confirms: RecentItems<Confirm>,
    pub sessions: RecentItems<SessionId>,
    stateids: RecentItems<Stateid>,
    /// The next sequence number of each slot.
    slots: BTreeMap<(SessionId, u32), u32>,
    /// The next sequence id of each owner of minor version 0.
    owners: [u32; OWNERS.len()],
    cookies: RecentItems<u64>,
    opens: RecentItems<Opened>,
    /// The file that the current compound uses.
    subject: Option<Opened>,
}

/// An open file: its state ids are valid in its client's session, with this file.
#[derive(Clone)]
struct Opened {
    session: SessionId,
    handle: Bytes,
    stateid: Stateid,
}

fn client_owner(number: u8, verifier: u8) -> ClientOwner {
    ClientOwner { verifier: [verifier; 8], id: Opaque(Bytes::from(vec![b'a' + number])) }
}

pub fn exchange_id(number: u8) -> Op {
    let client = client_owner(number, 1);
    Op::ExchangeId(ExchangeId {
        client,
        flags: 0,
        protect: ProtectHow::None,
        implementation: UpTo::default(),
    })
}

pub fn setclientid() -> Op {
    let location = NetAddr { netid: Text::known("tcp"), addr: Text::known("127.0.0.1.0.1") };
    let callback = CallbackClient { program: 0x4000_0000, location };
    Op::Setclientid(Setclientid { client: client_owner(9, 1), callback, callback_ident: 1 })
}

fn channel() -> ChannelAttrs {
    ChannelAttrs {
        header_pad: 0,
        max_request: 32 << 10,
        max_response: 32 << 10,
        max_response_cached: 1024,
        max_operations: OPERATIONS,
        max_requests: SLOTS as u32 - 1,
        rdma_ird: UpTo::default(),
    }
}

fn create_session(client: u64, sequence: u32) -> CreateSession {
    CreateSession {
        client,
        sequence,
        flags: session_flag::CONN_BACK_CHAN,
        fore: channel(),
        back: channel(),
        callback_program: 0x4000_0000,
        callback_sec: UpTo(vec![CallbackSec::None]),
    }
}

/// Confirms the clients that have registered: connection, minor version, operation.
pub fn second_steps(known: &Knowledge) -> Vec<(usize, u32, Op)> {
    let session =
        |(on, ok): (usize, &ExchangeIdOk)| (on, 1, Op::CreateSession(create_session(ok.client, ok.sequence)));
    let mut steps: Vec<_> = known.exchanged.iter().enumerate().map(session).collect();
    steps.extend(known.confirm.clone().map(|confirm| (2, 0, Op::SetclientidConfirm(confirm))));
    steps
}

/// The initial state: both sessions have sent RECLAIM_COMPLETE and have files open.
pub fn third_steps(known: &mut Knowledge, root: &Bytes) -> Vec<(usize, u32, Vec<Op>)> {
    let root = Handle::new(root).expect("one of ours");
    let mut steps = Vec::new();
    for (on, session) in known.sessions.0.clone().into_iter().enumerate() {
        let file = |name, access| {
            Op::Open(Open {
                seqid: 0,
                access,
                deny: 0,
                owner: Owner { client: 0, owner: Opaque(Bytes::from_static(OWNERS[0])) },
                how: Some(CreateHow::Unchecked(Fattr::default())),
                claim: Claim::Null(Text::known(name)),
            })
        };
        let mut compound = |ops: &[Op]| {
            let next = known.slots.entry((session, 0)).or_insert(1);
            let sequence = Sequence { session, sequence: *next, slot: 0, highest_slot: 0, cache: false };
            *next += 1;
            steps.push((on, 1, [&[Op::Sequence(sequence), Op::Putfh(root)], ops].concat()));
        };
        compound(&[Op::ReclaimComplete(false)]);
        let name = ["a", "b"][on % 2];
        compound(&[file(name, share::BOTH), Op::Getfh]);
        let kind = CreateType::Other(FileType::DIR);
        let name = Text::known(["c", "d"][on % 2]);
        compound(&[Op::Create(Create { kind, name, attributes: Fattr::default() }), Op::Getfh]);
        compound(&[file("e", share::READ), Op::Getfh]);
    }
    steps
}

/// A meaningful compound, and its minor version.
pub fn compound(known: &mut super::Knowledge, script: &mut Script<'_>) -> (u32, Vec<Op>) {
    let minor = *script.one_of(&[0, 1, 2, 2, 2, 2]);
    let mut ops = Vec::new();
    known.v4.subject = if script.rarely(3) { None } else { known.v4.opens.pick(script) };
    if minor > 0 && !script.rarely(16) {
        ops.extend(sequence(&mut known.v4, script));
    }
    if !script.rarely(16) {
        ops.push(put(known, script));
    }
    if script.rarely(4) {
        ops.push(Op::Savefh);
        ops.push(put(known, script));
    }
    for _ in 0..=script.below(4) {
        let op = operation(known, minor, script);
        let opens = matches!(op, Op::Open(_) | Op::Lookup(_) | Op::Create(_));
        ops.push(op);
        if opens {
            ops.push(Op::Getfh);
        }
    }
    (minor, ops)
}

fn sequence(known: &mut Knowledge, script: &mut Script<'_>) -> Option<Op> {
    let session = match &known.subject {
        Some(opened) => opened.session,
        None => known.sessions.pick(script)?,
    };
    let slot = if script.rarely(32) { script.below(SLOTS) } else { script.below(SLOTS - 1) } as u32;
    let next = known.slots.entry((session, slot)).or_insert(1);
    let sequence = match script.byte() % 16 {
        15 => match script.flag() {
            true => next.wrapping_sub(1),
            false => next.wrapping_add(1),
        },
        _ => {
            let now = *next;
            *next = next.wrapping_add(1);
            now
        }
    };
    let cache = script.rarely(3);
    Some(Op::Sequence(Sequence { session, sequence, slot, highest_slot: slot, cache }))
}

fn put(known: &super::Knowledge, script: &mut Script<'_>) -> Op {
    if script.rarely(16) {
        return Op::Putrootfh;
    }
    let subject = known.v4.subject.as_ref().filter(|_| !script.rarely(4)).map(|opened| opened.handle.clone());
    let mut bytes = subject.or_else(|| known.handles.pick(script)).expect("a root at least").to_vec();
    if script.rarely(64) {
        let at = script.below(bytes.len());
        bytes[at] ^= 1;
    }
    Op::Putfh(Handle::new(&bytes).expect("one of ours"))
}

fn text(script: &mut Script<'_>) -> Text {
    Text(super::name(script))
}

fn stateid(known: &Knowledge, script: &mut Script<'_>) -> Stateid {
    let known = match script.byte() % 16 {
        0..=9 if known.subject.is_some() => known.subject.as_ref().map(|opened| opened.stateid),
        12 => Some(Stateid::ANONYMOUS),
        13 => Some(Stateid::BYPASS),
        14 => Some(Stateid::CURRENT),
        15 if script.flag() => Some(Stateid::INVALID),
        _ => known.stateids.pick(script),
    };
    let mut id = known.unwrap_or(Stateid::ANONYMOUS);
    match script.byte() % 16 {
        13 => id.seqid = script.edge() as u32,
        14 => id.other[script.below(12)] ^= 1,
        15 | 12 => id.seqid = 0,
        _ => {}
    }
    id
}

fn client(known: &Knowledge, script: &mut Script<'_>) -> u64 {
    known.clients.pick(script).unwrap_or_default() ^ u64::from(script.rarely(64))
}

fn owner(known: &Knowledge, which: usize, script: &mut Script<'_>) -> Owner {
    // Sessions identify their client; the client of minor version 0 is the confirmed one.
    let confirmed = known.confirm.as_ref().filter(|_| !script.rarely(8)).map(|confirm| confirm.client);
    Owner {
        client: confirmed.unwrap_or_else(|| client(known, script)),
        owner: Opaque(Bytes::from_static(OWNERS[which])),
    }
}

/// The sequence id of a request by this owner, usually the right one.
fn number(known: &mut Knowledge, which: usize, minor: u32, script: &mut Script<'_>) -> u32 {
    let next = &mut known.owners[which];
    match script.byte() % 16 {
        14 => next.wrapping_sub(1),
        15 => script.edge() as u32,
        _ if minor > 0 => 0,
        _ => {
            let now = *next;
            *next = next.wrapping_add(1);
            now
        }
    }
}

fn attributes(script: &mut Script<'_>) -> Fattr {
    let time = |script: &mut Script<'_>| match script.flag() {
        true => SetTime::Server,
        false => {
            SetTime::Client(Time { seconds: script.edge().cast_signed(), nseconds: script.edge() as u32 })
        }
    };
    let wish = script.byte();
    let mut fattr = Attributes {
        size: (wish & 1 != 0).then(|| script.edge()),
        mode: (wish & 2 != 0).then(|| script.edge() as u32),
        owner: (wish & 12 == 4).then(|| text(script)),
        time_access_set: (wish & 24 == 8).then(|| time(script)),
        time_modify_set: (wish & 32 != 0).then(|| time(script)),
        hidden: (wish & 0xc0 == 0x40).then(|| script.flag()),
        ..Attributes::default()
    }
    .fattr();
    if script.rarely(64) {
        fattr.mask.set(script.below(90) as u32);
    }
    fattr
}

fn wanted(script: &mut Script<'_>) -> Bitmap {
    let mut wanted = Bitmap::EMPTY;
    (0..script.below(12)).for_each(|_| wanted.set(script.below(90) as u32));
    if script.rarely(8) { Attributes::TYPED } else { wanted }
}

fn open(known: &mut Knowledge, minor: u32, script: &mut Script<'_>) -> Op {
    let which = script.below(OWNERS.len());
    let how = match script.byte() % 8 {
        0 | 1 => None,
        2 => Some(CreateHow::Guarded(attributes(script))),
        3 => Some(CreateHow::Exclusive([script.byte() % 2; 8])),
        4 => Some(CreateHow::Exclusive41([script.byte() % 2; 8], attributes(script))),
        _ => Some(CreateHow::Unchecked(Fattr::default())),
    };
    let claim = match script.byte() % 16 {
        0 => Claim::Previous(u32::from(script.byte() % 4)),
        1 => Claim::DelegateCur(stateid(known, script), text(script)),
        2 => Claim::DelegatePrev(text(script)),
        3 => Claim::Fh,
        4 => Claim::DelegCurFh(stateid(known, script)),
        5 => Claim::DelegPrevFh,
        _ => Claim::Null(text(script)),
    };
    let want = match script.byte() % 8 {
        0 => share::WANT_READ_DELEG,
        1 => share::WANT_WRITE_DELEG | share::WANT_DELEG_TIMESTAMPS,
        2 => share::WANT_ANY_DELEG | share::WANT_OPEN_XOR_DELEG,
        3 => script.edge() as u32,
        _ => 0,
    };
    Op::Open(Open {
        seqid: number(known, which, minor, script),
        access: u32::from(1 + script.byte() % 3) | want,
        deny: if script.rarely(3) { u32::from(script.byte() % 4) } else { 0 },
        owner: owner(known, which, script),
        how,
        claim,
    })
}

fn lock_type(script: &mut Script<'_>) -> LockType {
    LockType { exclusive: script.flag(), waits: script.flag() }
}

fn lock(known: &mut Knowledge, minor: u32, script: &mut Script<'_>) -> Op {
    let which = script.below(OWNERS.len());
    let locker = match script.flag() {
        true => Locker::New {
            open_seqid: number(known, which, minor, script),
            open_stateid: stateid(known, script),
            lock_seqid: u32::from(script.rarely(8)),
            owner: owner(known, which, script),
        },
        false => {
            Locker::Known { stateid: stateid(known, script), seqid: number(known, which, minor, script) }
        }
    };
    let (kind, reclaim) = (lock_type(script), script.rarely(64));
    Op::Lock(Lock { kind, reclaim, offset: script.edge(), length: script.edge(), locker })
}

fn operation(known: &mut super::Knowledge, minor: u32, script: &mut Script<'_>) -> Op {
    let v4 = &mut known.v4;
    match script.byte() % 40 {
        0..=5 => open(v4, minor, script),
        6 | 7 => lock(v4, minor, script),
        8 => Op::Lockt(Lockt {
            kind: lock_type(script),
            offset: script.edge(),
            length: script.edge(),
            owner: owner(v4, 0, script),
        }),
        9 => Op::Locku(Locku {
            kind: lock_type(script),
            seqid: number(v4, 0, minor, script),
            stateid: stateid(v4, script),
            offset: script.edge(),
            length: script.edge(),
        }),
        10 | 11 => Op::Close(Close { seqid: number(v4, 0, minor, script), stateid: stateid(v4, script) }),
        12 => Op::OpenDowngrade(OpenDowngrade {
            stateid: stateid(v4, script),
            seqid: number(v4, 0, minor, script),
            access: u32::from(script.byte() % 4),
            deny: u32::from(script.byte() % 4),
        }),
        13 => {
            Op::OpenConfirm(OpenConfirm { stateid: stateid(v4, script), seqid: number(v4, 0, minor, script) })
        }
        14 | 15 => Op::Write(Write {
            stateid: stateid(v4, script),
            offset: script.edge(),
            stable: *script.one_of(&[Stable::Unstable, Stable::DataSync, Stable::FileSync]),
            data: Bytes::from(vec![0x22; script.below(5000)]).into(),
        }),
        16 => Op::Read(read(v4, script)),
        17 => Op::ReadPlus(read(v4, script)),
        18 => Op::Setattr(Setattr { stateid: stateid(v4, script), attributes: attributes(script) }),
        19 => Op::Getattr(wanted(script)),
        20 | 21 => {
            Op::Create(Create { kind: kind(script), name: text(script), attributes: attributes(script) })
        }
        22 => Op::Remove(text(script)),
        23 => Op::Rename(Rename { from: text(script), to: text(script) }),
        24 => Op::Link(text(script)),
        25 | 26 => Op::Lookup(text(script)),
        27 => readdir(v4, script),
        28 | 29 => Op::Delegreturn(stateid(v4, script)),
        30 => Op::Copy(Copy {
            from_stateid: stateid(v4, script),
            to_stateid: stateid(v4, script),
            from_offset: script.edge(),
            to_offset: script.edge(),
            count: script.edge(),
            consecutive: script.flag(),
            synchronous: script.flag(),
            servers: UpTo::default(),
        }),
        31 => Op::Clone(Clone_ {
            from_stateid: stateid(v4, script),
            to_stateid: stateid(v4, script),
            from_offset: script.edge(),
            to_offset: script.edge(),
            count: script.edge(),
        }),
        32 => {
            let args =
                Allocate { stateid: stateid(v4, script), offset: script.edge(), length: script.edge() };
            if script.flag() { Op::Allocate(args) } else { Op::Deallocate(args) }
        }
        33 => Op::Seek(Seek {
            stateid: stateid(v4, script),
            offset: script.edge(),
            what: u32::from(script.byte() % 3),
        }),
        34 => xattr(script),
        35 => administration(v4, script),
        36 => Op::WantDelegation(WantDelegation {
            want: *script.one_of(&[
                share::WANT_READ_DELEG,
                share::WANT_WRITE_DELEG,
                share::WANT_ANY_DELEG,
                0,
            ]),
            claim: *script.one_of(&[DelegClaim::Fh, DelegClaim::PrevFh, DelegClaim::Previous(1)]),
        }),
        _ => rest(v4, script),
    }
}

fn read(known: &Knowledge, script: &mut Script<'_>) -> Read {
    Read { stateid: stateid(known, script), offset: script.edge(), count: script.edge() as u32 }
}

fn kind(script: &mut Script<'_>) -> CreateType {
    match script.byte() % 8 {
        0 | 1 => CreateType::Link(LinkText(super::name(script))),
        2 => CreateType::Device(FileType::CHR, SpecData::default()),
        3 => CreateType::Other(*script.one_of(&[FileType::FIFO, FileType::SOCK, FileType::REG])),
        _ => CreateType::Other(FileType::DIR),
    }
}

fn readdir(known: &Knowledge, script: &mut Script<'_>) -> Op {
    let cookie = known.cookies.pick(script).filter(|_| script.flag()).unwrap_or_else(|| script.edge());
    Op::Readdir(Readdir {
        cookie,
        verifier: [0; 8],
        dircount: script.edge() as u32,
        maxcount: if script.flag() { 4096 } else { script.edge() as u32 },
        attributes: wanted(script),
    })
}

fn xattr(script: &mut Script<'_>) -> Op {
    match script.byte() % 6 {
        0 => Op::Getxattr(text(script)),
        1 => Op::Listxattrs(Listxattrs { cookie: script.edge(), maxcount: script.edge() as u32 }),
        2 => Op::Removexattr(text(script)),
        _ => Op::Setxattr(Setxattr {
            option: u32::from(script.byte() % 4),
            name: text(script),
            value: XattrValue(Bytes::from(vec![0x33; script.below(5000)])),
        }),
    }
}

/// Operations that create and remove clients and sessions.
fn administration(known: &Knowledge, script: &mut Script<'_>) -> Op {
    let session = known.sessions.pick(script).unwrap_or_default();
    match script.byte() % 16 {
        0 => Op::DestroySession(session),
        1 => Op::DestroyClientid(client(known, script)),
        2 | 3 => Op::ExchangeId(ExchangeId {
            client: client_owner(script.byte() % 4, 1 + script.byte() % 2),
            flags: if script.rarely(4) { exchange_flag::UPD_CONFIRMED_REC_A } else { 0 },
            protect: ProtectHow::None,
            implementation: UpTo::default(),
        }),
        4..=7 => {
            let fore = if script.rarely(3) { odd_channel(script) } else { channel() };
            let made = create_session(client(known, script), u32::from(script.byte() % 4));
            Op::CreateSession(CreateSession { fore, ..made })
        }
        8 => {
            Op::BindConnToSession(BindConn { session, direction: u32::from(script.byte() % 8), rdma: false })
        }
        9 => Op::BackchannelCtl(BackchannelCtl { program: 1, sec: UpTo(vec![CallbackSec::None]) }),
        10 => setclientid(),
        11 => Op::SetclientidConfirm(
            known.confirms.pick(script).unwrap_or(Confirm { client: 1, verifier: [0; 8] }),
        ),
        12 => Op::Renew(client(known, script)),
        13 => Op::ReleaseLockowner(owner(known, script.below(OWNERS.len()), script)),
        14 => Op::Delegpurge(client(known, script)),
        _ => Op::ReclaimComplete(script.rarely(4)),
    }
}

fn odd_channel(script: &mut Script<'_>) -> ChannelAttrs {
    ChannelAttrs {
        header_pad: script.edge() as u32,
        max_request: script.edge() as u32,
        max_response: script.edge() as u32,
        max_response_cached: script.edge() as u32,
        max_operations: script.edge() as u32,
        max_requests: script.edge() as u32,
        rdma_ird: UpTo::default(),
    }
}

fn rest(known: &Knowledge, script: &mut Script<'_>) -> Op {
    match script.byte() % 20 {
        0 => Op::Access(script.edge() as u32),
        1 => Op::Commit(Commit { offset: script.edge(), count: script.edge() as u32 }),
        2 => Op::Lookupp,
        3 => Op::Nverify(attributes(script)),
        4 => Op::Verify(attributes(script)),
        5 | 6 => Op::Openattr(script.flag()),
        7 => Op::Readlink,
        8 => Op::Restorefh,
        9 => Op::Savefh,
        10 => Op::Secinfo(text(script)),
        11 => Op::SecinfoNoName(u32::from(script.byte() % 3)),
        12 => Op::FreeStateid(stateid(known, script)),
        13 => Op::TestStateid(UpTo((0..script.below(9)).map(|_| stateid(known, script)).collect())),
        14 => Op::OffloadCancel(stateid(known, script)),
        15 => Op::OffloadStatus(stateid(known, script)),
        16 => Op::IoAdvise(IoAdvise {
            stateid: stateid(known, script),
            offset: script.edge(),
            count: script.edge(),
            hints: wanted(script),
        }),
        17 => Op::Putpubfh,
        18 => Op::GetDirDelegation,
        _ => Op::Getfh,
    }
}

/// Learns from a reply. It has a result for each operation up to the first that failed, and that one's status.
pub fn learn(ops: &[Op], mut d: Decoder, known: &mut super::Knowledge) {
    let head = ReplyHead::parse(&mut d).expect("a compound's answer");
    if ops.is_empty() || head.count == 0 {
        return;
    }
    let count = head.count as usize;
    assert!(count <= ops.len(), "more results than operations");
    if head.status == Status::OK {
        assert_eq!(count, ops.len(), "a success that is cut short");
    }
    let session = match ops.first() {
        Some(Op::Sequence(args)) => args.session,
        _ => SessionId::default(),
    };
    let mut before = known.v4.stateids.0.back().copied();
    for (at, op) in ops[..count].iter().enumerate() {
        let number = d.u32().expect("the number of an operation");
        let status = Status::parse(&mut d).expect("the status of an operation");
        if number == opnum::ILLEGAL {
            return;
        }
        assert_eq!(number, op.number(), "the result of another operation");
        assert!(status != Status::OK || at + 1 < count || head.status == Status::OK);
        if status != Status::OK {
            assert_eq!(
                (at + 1, status),
                (count, head.status),
                "{op:?} is not what ends the answer to {ops:?}"
            );
            unlearn(op, status, &mut known.v4);
            return;
        }
        if result(op, &mut d, known).is_none() {
            return;
        }
        let latest = known.v4.stateids.0.back().copied();
        if let (Op::Getfh, Some(stateid), Some(handle)) = (op, latest, known.handles.0.back())
            && latest != before
        {
            known.v4.opens.learn(Opened { session, handle: handle.clone(), stateid });
            before = latest;
        }
    }
    d.end().expect("nothing behind the results");
}

/// A slot whose request did not start has not advanced.
fn unlearn(op: &Op, status: Status, known: &mut Knowledge) {
    if let Op::Sequence(args) = op
        && status != Status::DELAY
        && let Some(next) = known.slots.get_mut(&(args.session, args.slot))
        && *next == args.sequence.wrapping_add(1)
    {
        *next = args.sequence;
    }
}

/// Parses one result; `None`: it is not parsed here, so what follows cannot be either.
fn result(op: &Op, d: &mut Decoder, known: &mut super::Knowledge) -> Option<()> {
    fn read<T: Xdr>(d: &mut Decoder) -> T {
        T::parse(d).expect("results that can be read")
    }
    let v4 = &mut known.v4;
    match op {
        Op::Putfh(_) | Op::Putrootfh | Op::Putpubfh | Op::Savefh | Op::Restorefh => {}
        Op::Lookup(_) | Op::Lookupp | Op::Openattr(_) | Op::Delegreturn(_) | Op::Verify(_) => {}
        Op::Getfh => known.handles.learn(Bytes::copy_from_slice(read::<Handle>(d).as_bytes())),
        Op::Open(_) => {
            let ok = read::<OpenOk>(d);
            v4.stateids.learn(ok.stateid);
            if let Delegation::Read(id, ..) | Delegation::Write(id, ..) = ok.delegation {
                v4.stateids.learn(id);
            }
        }
        Op::WantDelegation(_) => match read::<Delegation>(d) {
            Delegation::Read(id, ..) | Delegation::Write(id, ..) => v4.stateids.learn(id),
            _ => {}
        },
        Op::OpenConfirm(_) | Op::OpenDowngrade(_) | Op::Close(_) | Op::Lock(_) | Op::Locku(_) => {
            v4.stateids.learn(read::<Stateid>(d));
        }
        Op::Sequence(args) => {
            let ok = read::<SequenceOk>(d);
            assert_eq!((ok.session, ok.slot, ok.sequence), (args.session, args.slot, args.sequence));
        }
        Op::ExchangeId(_) => {
            let ok = read::<ExchangeIdOk>(d);
            v4.clients.learn(ok.client);
            if v4.exchanged.len() < 2 {
                v4.exchanged.push(ok);
            }
        }
        Op::CreateSession(_) => {
            let ok = read::<CreateSessionOk>(d);
            v4.sessions.learn(ok.session);
            if v4.slots.len() > 64 {
                v4.slots.clear();
            }
        }
        Op::Setclientid(_) => {
            let confirm = read::<Confirm>(d);
            v4.clients.learn(confirm.client);
            v4.confirms.learn(confirm.clone());
            v4.confirm.get_or_insert(confirm);
        }
        Op::Create(_) => drop(read::<CreateOk>(d)),
        Op::Write(_) => drop(read::<WriteOk>(d)),
        Op::Read(_) => {
            let head = read::<ReadHead>(d);
            let (count, padded) =
                (head.count as usize, head.count as usize + weft_wire::xdr::pad(head.count as usize));
            assert!(d.remaining() >= padded, "a READ with {count} bytes is cut short");
            *d = Decoder::new(d.clone().rest().slice(padded..));
        }
        Op::Readdir(_) => read::<ReaddirOk>(d).entries.iter().for_each(|e| v4.cookies.learn(e.cookie)),
        Op::Getattr(_) => drop(read::<Fattr>(d)),
        Op::Copy(_) => {
            let ok = read::<CopyOk>(d);
            ok.response.callback.0.iter().for_each(|id| v4.stateids.learn(*id));
        }
        _ => return None,
    }
    Some(())
}

/// A reply to a callback, usually a proper one.
pub fn answer_callback(call: &Bytes, script: &mut Script<'_>) -> Bytes {
    let mut e = Encoder::default();
    let mut d = Decoder::new(call.clone());
    let Ok(head) = weft_wire::rpc::Call::parse(&mut d) else { return Bytes::from_static(&[0; 8]) };
    Reply::Success.emit(head.xid, &mut e);
    if head.procedure == CB_COMPOUND
        && let Ok(compound) = CbCompound::parse(&mut d)
    {
        let status = if script.rarely(4) { Status::DELAY } else { Status::OK };
        let ops = &compound.ops.0;
        CbReplyHead { status, tag: compound.tag, count: ops.len() as u32 }.emit(&mut e);
        for op in ops {
            e.u32(op.number());
            match op {
                CbOp::Sequence(args) => {
                    Status::OK.emit(&mut e);
                    e.fixed(&args.session);
                    for word in [args.sequence, args.slot, args.highest_slot, args.highest_slot] {
                        e.u32(word);
                    }
                }
                CbOp::Getattr(_) if status == Status::OK => {
                    Status::OK.emit(&mut e);
                    Attributes { change: Some(1), size: Some(script.edge()), ..Attributes::default() }
                        .fattr()
                        .emit(&mut e);
                }
                _ => status.emit(&mut e),
            }
        }
    }
    let reply = e.into_bytes();
    if script.rarely(8) { super::damaged(&reply, script) } else { reply }
}
