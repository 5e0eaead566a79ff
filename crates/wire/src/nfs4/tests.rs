//! Round trips of every operation, cuts at every byte, and damage.

use bytes::Bytes;
use proptest::prelude::*;

use super::*;
use crate::rpc::AuthSys;

fn text(s: &'static str) -> Text {
    Text::known(s)
}

fn stateid() -> Stateid {
    Stateid { seqid: 7, other: *b"twelve bytes" }
}

fn owner() -> Owner {
    Owner { client: 9, owner: Opaque(Bytes::from_static(b"me")) }
}

fn fattr() -> Fattr {
    Attributes { size: Some(5), mode: Some(0o640), ..Attributes::default() }.fattr()
}

fn client() -> ClientOwner {
    ClientOwner { verifier: *b"verifier", id: Opaque(Bytes::from_static(b"host")) }
}

fn channel() -> ChannelAttrs {
    ChannelAttrs {
        header_pad: 0,
        max_request: 1 << 20,
        max_response: 1 << 20,
        max_response_cached: 4096,
        max_operations: 16,
        max_requests: 64,
        rdma_ird: UpTo(vec![8]),
    }
}

fn sec() -> UpTo<CallbackSec, 8> {
    let mut sys = AuthSys::new(Bytes::from_static(b"host"), 1, 2);
    sys.push_gid(3);
    UpTo(vec![CallbackSec::Sys(sys), CallbackSec::None, CallbackSec::Gss])
}

/// One of each operation, and of each arm of its unions.
fn operations() -> Vec<Op> {
    let open = |how, claim| Op::Open(Open { seqid: 1, access: 1, deny: 2, owner: owner(), how, claim });
    let create = |kind| Op::Create(Create { kind, name: text("n"), attributes: fattr() });
    let exchange = |protect| {
        Op::ExchangeId(ExchangeId {
            client: client(),
            flags: 1,
            protect,
            implementation: UpTo(vec![ImplId {
                domain: text("example.org"),
                name: text("x"),
                date: Time { seconds: -1, nseconds: 2 },
            }]),
        })
    };
    let allocate = Allocate { stateid: stateid(), offset: 1, length: 2 };
    let read = Read { stateid: stateid(), offset: 1, count: 2 };
    let locker = Locker::New { open_seqid: 1, open_stateid: stateid(), lock_seqid: 2, owner: owner() };
    let lock = |locker| Lock {
        kind: LockType { exclusive: true, waits: true },
        reclaim: false,
        offset: 1,
        length: u64::MAX,
        locker,
    };
    let kind = LockType { exclusive: false, waits: false };
    vec![
        Op::Access(0x1f),
        Op::Close(Close { seqid: 1, stateid: stateid() }),
        Op::Commit(Commit { offset: 1, count: 2 }),
        create(CreateType::Link(LinkText(Bytes::from_static(b"target")))),
        create(CreateType::Device(FileType::BLK, SpecData { major: 1, minor: 2 })),
        create(CreateType::Other(FileType::DIR)),
        Op::Delegpurge(1),
        Op::Delegreturn(stateid()),
        Op::Getattr(Bitmap::of(&[1, 33, 75])),
        Op::Getfh,
        Op::Link(text("n")),
        Op::Lock(lock(locker)),
        Op::Lock(lock(Locker::Known { stateid: stateid(), seqid: 3 })),
        Op::Lockt(Lockt { kind, offset: 1, length: 2, owner: owner() }),
        Op::Locku(Locku { kind, seqid: 1, stateid: stateid(), offset: 1, length: 2 }),
        Op::Lookup(text("n")),
        Op::Lookupp,
        Op::Nverify(fattr()),
        open(None, Claim::Null(text("n"))),
        open(Some(CreateHow::Unchecked(fattr())), Claim::Previous(1)),
        open(Some(CreateHow::Guarded(fattr())), Claim::DelegateCur(stateid(), text("n"))),
        open(Some(CreateHow::Exclusive(*b"verifier")), Claim::DelegatePrev(text("n"))),
        open(Some(CreateHow::Exclusive41(*b"verifier", fattr())), Claim::Fh),
        open(None, Claim::DelegCurFh(stateid())),
        open(None, Claim::DelegPrevFh),
        Op::Openattr(true),
        Op::OpenConfirm(OpenConfirm { stateid: stateid(), seqid: 1 }),
        Op::OpenDowngrade(OpenDowngrade { stateid: stateid(), seqid: 1, access: 1, deny: 0 }),
        Op::Putfh(Handle::new(&[5; 128]).unwrap()),
        Op::Putpubfh,
        Op::Putrootfh,
        Op::Read(read.clone()),
        Op::Readdir(Readdir {
            cookie: 1,
            verifier: [1; 8],
            dircount: 2,
            maxcount: 3,
            attributes: Bitmap::of(&[1]),
        }),
        Op::Readlink,
        Op::Remove(text("n")),
        Op::Rename(Rename { from: text("a"), to: text("b") }),
        Op::Renew(1),
        Op::Restorefh,
        Op::Savefh,
        Op::Secinfo(text("n")),
        Op::Setattr(Setattr { stateid: stateid(), attributes: fattr() }),
        Op::Setclientid(Setclientid {
            client: client(),
            callback: CallbackClient {
                program: 1,
                location: NetAddr { netid: text("tcp"), addr: text("127.0.0.1.8.1") },
            },
            callback_ident: 2,
        }),
        Op::SetclientidConfirm(Confirm { client: 1, verifier: [2; 8] }),
        Op::Verify(fattr()),
        Op::Write(Write {
            stateid: stateid(),
            offset: 1,
            stable: Stable::DataSync,
            data: Bytes::from_static(b"hello").into(),
        }),
        Op::ReleaseLockowner(owner()),
        Op::BackchannelCtl(BackchannelCtl { program: 1, sec: sec() }),
        Op::BindConnToSession(BindConn { session: [1; 16], direction: 3, rdma: false }),
        exchange(ProtectHow::None),
        exchange(ProtectHow::MachCred(ProtectOps { enforce: Bitmap::of(&[42]), allow: Bitmap::EMPTY })),
        exchange(ProtectHow::Ssv),
        Op::CreateSession(CreateSession {
            client: 1,
            sequence: 2,
            flags: 3,
            fore: channel(),
            back: channel(),
            callback_program: 4,
            callback_sec: sec(),
        }),
        Op::DestroySession([3; 16]),
        Op::FreeStateid(stateid()),
        Op::SecinfoNoName(1),
        Op::Sequence(Sequence { session: [1; 16], sequence: 2, slot: 3, highest_slot: 4, cache: true }),
        Op::TestStateid(UpTo(vec![stateid(), Stateid::CURRENT])),
        Op::DestroyClientid(1),
        Op::ReclaimComplete(false),
        Op::Allocate(allocate.clone()),
        Op::Copy(Copy {
            from_stateid: stateid(),
            to_stateid: stateid(),
            from_offset: 1,
            to_offset: 2,
            count: 3,
            consecutive: true,
            synchronous: true,
            servers: UpTo(vec![
                NetLoc::Name(text("h")),
                NetLoc::Url(text("u")),
                NetLoc::Addr(NetAddr { netid: text("tcp"), addr: text("a") }),
            ]),
        }),
        Op::Deallocate(allocate),
        Op::IoAdvise(IoAdvise { stateid: stateid(), offset: 1, count: 2, hints: Bitmap::of(&[4]) }),
        Op::OffloadCancel(stateid()),
        Op::OffloadStatus(stateid()),
        Op::ReadPlus(read),
        Op::Seek(Seek { stateid: stateid(), offset: 1, what: 1 }),
        Op::Clone(Clone_ {
            from_stateid: stateid(),
            to_stateid: stateid(),
            from_offset: 1,
            to_offset: 2,
            count: 3,
        }),
        Op::Getxattr(text("x")),
        Op::Setxattr(Setxattr { option: 1, name: text("x"), value: XattrValue(Bytes::from_static(b"v")) }),
        Op::Listxattrs(Listxattrs { cookie: 0, maxcount: 100 }),
        Op::Removexattr(text("x")),
    ]
}

fn emitted(value: &impl Xdr) -> Bytes {
    let mut e = Encoder::with_capacity(64);
    value.emit(&mut e);
    e.into_bytes()
}

/// A minor version that has the operation: the last one, except for operations that version 1 removed.
fn minor_of(op: &Op) -> u32 {
    let obsolete = [
        opnum::OPEN_CONFIRM,
        opnum::RENEW,
        opnum::SETCLIENTID,
        opnum::SETCLIENTID_CONFIRM,
        opnum::RELEASE_LOCKOWNER,
    ];
    if obsolete.contains(&op.number()) { 0 } else { 2 }
}

#[test]
fn every_operation_there_and_back() {
    for op in operations() {
        let mut e = Encoder::with_capacity(64);
        op.emit(&mut e);
        let bytes = e.into_bytes();
        let mut d = Decoder::new(bytes.clone());
        match Op::parse(&mut d, minor_of(&op)) {
            // The parameters of SSV are discarded.
            Ok(parsed) => assert_eq!(parsed, op),
            Err(e) => panic!("{}: {e:?}", op.name()),
        }
        d.end().unwrap();
        for len in 4..bytes.len() {
            let cut = Op::parse(&mut Decoder::new(bytes.slice(..len)), minor_of(&op));
            assert!(matches!(cut, Err(NoOp::BadXdr(n, _)) if n == op.number()), "{} cut at {len}", op.name());
        }
    }
}

#[test]
fn an_operation_belongs_to_its_minor_versions() {
    let renew = emitted(&2_u64);
    let parse = |number: u32, minor| {
        let mut e = Encoder::with_capacity(16);
        e.u32(number);
        e.fixed(&renew);
        Op::parse(&mut Decoder::new(e.into_bytes()), minor)
    };
    assert_eq!(parse(opnum::RENEW, 0), Ok(Op::Renew(2)));
    assert_eq!(parse(opnum::RENEW, 1), Err(NoOp::Illegal));
    assert_eq!(parse(opnum::DESTROY_CLIENTID, 0), Err(NoOp::Illegal));
    assert_eq!(parse(opnum::DESTROY_CLIENTID, 1), Ok(Op::DestroyClientid(2)));
    assert_eq!(parse(opnum::SEEK, 1), Err(NoOp::Illegal));
    for number in [0, 1, 2, 76, 10_044, u32::MAX] {
        assert_eq!(parse(number, 2), Err(NoOp::Illegal));
    }
}

#[test]
fn attributes_travel_in_order_of_their_numbers() {
    let attributes = Attributes {
        kind: Some(FileType::REG),
        fsid: Some(Fsid { major: 1, minor: 2 }),
        acl: Some(UpTo(vec![Ace { kind: 0, flags: 0, mask: 1, who: text("OWNER@") }])),
        filehandle: Handle::new(b"fh"),
        owner: Some(text("0")),
        time_modify_set: Some(SetTime::Client(Time { seconds: 1, nseconds: 2 })),
        xattr_support: Some(true),
        ..Attributes::default()
    };
    let fattr = attributes.fattr();
    assert_eq!(fattr.mask, Bitmap::of(&[1, 8, 12, 19, 36, 54, 82]));
    assert_eq!(Attributes::parse(&fattr), Ok(attributes));
    assert!(
        Attributes::parse(&Fattr { mask: Bitmap::of(&[1]), ..fattr.clone() }).is_err(),
        "bytes behind the last"
    );
    assert!(Attributes::parse(&Fattr { mask: Bitmap::of(&[62]), ..fattr }).is_err(), "no such type");
}

#[test]
fn a_bitmap_keeps_what_means_something() {
    let mut e = Encoder::with_capacity(32);
    [5_u32, 1, 0, 1 << 18, 0, 9].iter().for_each(|word| e.u32(*word));
    let map = Bitmap::parse(&mut Decoder::new(e.into_bytes())).unwrap();
    assert_eq!(map.iter().collect::<Vec<_>>(), [0, 82]);
    assert!(map.beyond() && !map.is_empty() && map.without(Attributes::TYPED).beyond());
    assert_eq!(&emitted(&Bitmap::of(&[0, 33]))[..], [0, 0, 0, 2, 0, 0, 0, 1, 0, 0, 0, 2]);
    assert_eq!(&emitted(&Bitmap::EMPTY)[..], [0, 0, 0, 0]);
}

#[test]
fn results_there_and_back() {
    fn check<T: Xdr + PartialEq + std::fmt::Debug>(value: &T) {
        let bytes = emitted(value);
        let mut d = Decoder::new(bytes.clone());
        assert_eq!(&T::parse(&mut d).unwrap(), value);
        d.end().unwrap();
        for len in 0..bytes.len() {
            assert!(T::parse(&mut Decoder::new(bytes.slice(..len))).is_err());
        }
    }
    let change = ChangeInfo { atomic: true, before: 1, after: 2 };
    let ace = || Ace { kind: 0, flags: 0, mask: 1, who: text("EVERYONE@") };
    for delegation in [
        Delegation::None,
        Delegation::Read(stateid(), false, ace(), false),
        Delegation::Read(stateid(), false, ace(), true),
        Delegation::Write(stateid(), true, SpaceLimit::Size(9), ace(), false),
        Delegation::Write(stateid(), true, SpaceLimit::Blocks(1, 2), ace(), true),
        Delegation::NoneExt(why_no_delegation::RESOURCE, true),
        Delegation::NoneExt(why_no_delegation::NOT_WANTED, false),
    ] {
        let attrset = Bitmap::of(&[4]);
        check(&OpenOk { stateid: stateid(), change: change.clone(), flags: 4, attrset, delegation });
    }
    check(&LockDenied {
        offset: 1,
        length: 2,
        kind: LockType { exclusive: true, waits: false },
        owner: owner(),
    });
    let entry = Entry { cookie: 3, name: text("n"), attributes: fattr() };
    check(&ReaddirOk { verifier: [1; 8], entries: vec![entry], eof: true });
    check(&UpTo::<Secinfo, 32>(vec![
        Secinfo::Flavor(crate::rpc::Flavor::SYS),
        Secinfo::Gss(Bytes::from_static(b"oid"), 1, 2),
    ]));
    let response = WriteResponse {
        callback: UpTo(vec![stateid()]),
        count: 1,
        committed: Stable::FileSync,
        verifier: [1; 8],
    };
    check(&CopyOk { response, consecutive: true, synchronous: false });
    let call = ReferringCall { sequence: 1, slot: 2 };
    let sequence = CbSequence {
        session: [1; 16],
        sequence: 1,
        slot: 0,
        highest_slot: 0,
        cache: false,
        referring: UpTo(vec![ReferringCalls { session: [1; 16], calls: UpTo(vec![call]) }]),
    };
    let recall = CbRecall { stateid: stateid(), truncate: false, handle: Handle::new(b"fh").unwrap() };
    let handle = Handle::new(b"fh").unwrap();
    let owner = Owner { client: 7, owner: Opaque(Bytes::from_static(b"owner")) };
    let response = || WriteResponse {
        callback: UpTo::default(),
        count: 9,
        committed: Stable::FileSync,
        verifier: [2; 8],
    };
    let offload = |end| CbOp::Offload(CbOffload { handle, stateid: stateid(), end });
    let ops = UpTo(vec![
        CbOp::Sequence(sequence),
        CbOp::Recall(recall),
        CbOp::Getattr(CbGetattr { handle, wanted: Bitmap::of(&[3, 4, 85]) }),
        CbOp::NotifyLock(CbNotifyLock { handle, owner }),
        offload(OffloadEnd::Done(response())),
        offload(OffloadEnd::Failed(Status::NOSPC, 3)),
    ]);
    check(&CbCompound { tag: text(""), minor: 1, ident: 0, ops });
}

proptest! {
    #[test]
    fn damaged_operations_panic_nothing(flip in 1..=255_u8, at in any::<prop::sample::Index>()) {
        for op in operations() {
            let mut e = Encoder::with_capacity(64);
            op.emit(&mut e);
            let mut bytes = e.into_bytes().to_vec();
            let at = at.index(bytes.len());
            bytes[at] ^= flip;
            let _ = Op::parse(&mut Decoder::new(bytes.into()), minor_of(&op));
        }
    }
}
