//! Shares that are replaced between the requests of clients of versions 3, 4.0 and 4.1.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use weft_machine::{Pool, rt};
use weft_store::backend::{Dir, Ram};
use weft_store::opens::{Opening, Range, Rights};
use weft_store::rules::Export;
use weft_store::{NodeId, ShareId, Vfs};
use weft_wire::mount::{self, DirPath, List, MountEntry, MountResult, MountStatus};
use weft_wire::nfs3::{self, *};
use weft_wire::nfs4::{self, Op, Stateid, Status as Status4, attr, opnum, share as access};
use weft_wire::nlm;

use super::*;
use crate::server::file_id::FileId;
use crate::server::tests::{PEER, handle_of, node_of, results_for};
use crate::server::v4::state::clients::NotHeld;
use crate::server::v4::tests::live::{Live, story};
use crate::server::v4::tests::{Modern, Old, read_op, text, write_op};
use crate::server::{Config, Limits, Policy};

fn ram() -> Vfs {
    Vfs::new(Ram::new(16 << 20))
}

fn share(name: &str, vfs: &Vfs) -> Share {
    Share::new(name, vfs.clone())
}

fn server(shares: Vec<Share>) -> Arc<Server> {
    let policy = Policy { decides: false, squash_root: true };
    let pool = Pool::new(16 << 20);
    Server::new(Config { shares, pool, limits: Limits::default(), policy, durable: None })
}

fn replace(server: &Server, shares: Vec<Share>) {
    rt::block_on(server.replace_shares(shares)).unwrap();
}

/// The results of a call of version 3.
fn call<T: Xdr>(server: &Server, procedure: u32, args: &impl Xdr) -> T {
    rt::block_on(results_for(server, PEER, (nfs3::PROGRAM, nfs3::VERSION, procedure), args)).unwrap()
}

/// A call of MOUNT.
fn mounting<T: Xdr>(server: &Server, procedure: u32, args: &impl Xdr) -> T {
    rt::block_on(results_for(server, PEER, (mount::PROGRAM, mount::VERSION, procedure), args)).unwrap()
}

fn mnt(server: &Server, path: &'static str) -> Result<Handle, MountStatus> {
    let path = DirPath(Bytes::from_static(path.as_bytes()));
    match mounting(server, mount::procedure::MNT, &path) {
        MountResult::Ok { handle, .. } => Ok(handle),
        MountResult::Failed(status) => Err(status),
    }
}

/// The file system id of a handle's file.
fn fsid(server: &Server, object: Handle) -> Result<u64, Status> {
    let got: Outcome<GetattrOk, ()> = call(server, procedure::GETATTR, &GetattrArgs { object });
    got.map(|got| got.attributes.fsid).map_err(|failed| failed.status)
}

/// Makes a file in a share's root.
fn make(server: &Server, dir: Handle, name: &'static [u8]) -> Handle {
    let object = DirOp { dir, name: Name(Bytes::from_static(name)) };
    let args = CreateArgs { object, how: CreateHow::Guarded(SetAttributes::default()) };
    let made: Outcome<CreateOk, WccOnly> = call(server, procedure::CREATE, &args);
    made.unwrap().object.unwrap()
}

fn write(server: &Server, file: Handle) -> Result<(), Status> {
    let data = Bytes::from_static(b"x").into();
    let head = WriteHead { file, offset: 0, count: 1, stable: Stable::Unstable };
    let args = WriteArgs { head, data };
    let written: Outcome<WriteOk, WccOnly> = call(server, procedure::WRITE, &args);
    written.map(drop).map_err(|failed| failed.status)
}

/// A handle of version 3 as one of version 4.
fn newer(handle: Handle) -> nfs4::Handle {
    nfs4::Handle::new(handle.as_bytes()).unwrap()
}

/// The node of a handle of version 4.
fn node(server: &Server, handle: nfs4::Handle) -> NodeId {
    node_of(server, &Handle::new(handle.as_bytes()).unwrap())
}

/// Whether somebody could have the file to itself, so nobody has it open, locks it or caches it.
fn is_free(vfs: &Vfs, node: NodeId) -> bool {
    let opens = vfs.opens();
    let opened = opens.try_open(node, &Opening::new(Rights::ALL, Rights::NONE, opens.key()));
    let locked = opened.is_ok_and(|open| open.try_lock(Range::new(0, 100).unwrap(), true).is_ok());
    locked && opens.count(node) == 0
}

/// Regression: when the first of two shares was removed, the second took over its file system id.
#[test]
fn a_share_is_the_same_to_clients_when_another_one_goes() {
    let seen = |names: &[&str]| {
        let server = server(names.iter().map(|name| share(name, &ram())).collect());
        let at = names.iter().position(|name| *name == "data").unwrap();
        fsid(&server, handle_of(&server, at, NodeId::ROOT)).unwrap()
    };
    assert_eq!(seen(&["gone", "data"]), seen(&["data"]));
    assert_ne!(seen(&["data"]), 0, "that is the pseudo file system's");
}

#[test]
fn handles_and_mounts_of_a_removed_share_go_and_others_stay() {
    let (a, b, c) = (ram(), ram(), ram());
    let server = server(vec![share("a", &a), share("b", &b)]);
    let (old, kept) = (mnt(&server, "/a").unwrap(), mnt(&server, "/b").unwrap());
    let (lost, file) = (make(&server, old, b"f"), make(&server, kept, b"f"));
    let (id, number) = (fsid(&server, kept).unwrap(), fsid(&server, file).unwrap());
    assert_eq!((write(&server, lost), write(&server, file)), (Ok(()), Ok(())));
    assert_eq!(server.files.len(), 2);

    replace(&server, vec![share("c", &c), share("b", &b)]);
    assert_eq!((fsid(&server, old), fsid(&server, lost)), (Err(Status::STALE), Err(Status::STALE)));
    assert_eq!(write(&server, lost), Err(Status::STALE));
    assert_eq!((fsid(&server, kept), fsid(&server, file)), (Ok(id), Ok(number)));
    assert_eq!(write(&server, file), Ok(()));
    assert_eq!(server.files.len(), 1, "the other one is closed");
    assert_eq!(mnt(&server, "/a"), Err(MountStatus::NOENT));
    assert_eq!(mnt(&server, "/b"), Ok(kept));
    let List(exports): List<mount::Export> = mounting(&server, mount::procedure::EXPORT, &());
    assert_eq!(exports.iter().map(|export| &export.dir.0[..]).collect::<Vec<_>>(), [b"/c", b"/b"]);
    let List(mounts): List<MountEntry> = mounting(&server, mount::procedure::DUMP, &());
    assert_eq!(mounts.iter().map(|mount| &mount.directory.0[..]).collect::<Vec<_>>(), [b"/b"]);
    assert_eq!(
        fsid(&server, mnt(&server, "/c").unwrap()),
        fsid(&server, handle_of(&server, 0, NodeId::ROOT))
    );

    // Neither with another id, nor with other files, does it revive old handles.
    let renamed = Share { id: ShareId::of_name("another"), ..share("a", &a) };
    for (again, revived) in [(renamed, false), (share("a", &ram()), false), (share("a", &a), true)] {
        replace(&server, vec![again, share("b", &b)]);
        let expected = if revived { Ok(()) } else { Err(Status::STALE) };
        assert_eq!(fsid(&server, old).map(drop), expected);
        assert_eq!(write(&server, lost), expected);
        assert_eq!(mnt(&server, "/a").is_ok_and(|handle| handle == old), revived);
        assert_eq!(write(&server, file), Ok(()));
        replace(&server, vec![share("b", &b)]);
    }
}

/// As after a restart.
#[test]
fn a_share_that_comes_back_with_the_same_files_has_the_same_handles() {
    let folder = tempfile::tempdir().unwrap();
    let open = || share("data", &Vfs::new(Dir::open(folder.path()).unwrap()));
    let server = server(vec![open()]);
    let file = make(&server, mnt(&server, "/data").unwrap(), b"f");
    assert_eq!(write(&server, file), Ok(()));
    let client = Modern::new(&server, "a");
    let (_, state) = client.open("f", access::BOTH, 0);
    assert_eq!(client.status(newer(file), read_op(state, 0, 1)), Status4::OK);
    // Another file system of the same folder: its nodes have other numbers, and nobody has them open.
    replace(&server, vec![open()]);
    assert_eq!(server.files.len(), 0);
    assert_eq!(write(&server, file), Ok(()));
    assert_eq!(client.status(newer(file), read_op(state, 0, 1)), Status4::BAD_STATEID);
    assert!(is_free(&server.vfs(0), node_of(&server, &file)));
    let (_, state) = client.open("f", access::BOTH, 0);
    assert_eq!(client.status(newer(file), write_op(state, 0, b"y")), Status4::OK);
}

/// Clients of 4.0 and 4.1 hold something in two shares, one of which goes.
#[test]
fn what_clients_hold_in_a_removed_share_is_released() {
    let (a, b) = (ram(), ram());
    let server = server(vec![share("a", &a), share("b", &b)]);
    let lock = |open_seqid, open_stateid, client| {
        let owner = nfs4::Owner { client, owner: nfs4::Opaque(Bytes::from_static(b"locker")) };
        let locker = nfs4::Locker::New { open_seqid, open_stateid, lock_seqid: 0, owner };
        let kind = nfs4::LockType { exclusive: true, waits: false };
        Op::Lock(nfs4::Lock { kind, reclaim: false, offset: 0, length: 10, locker })
    };
    let mut old = Old::new(&server, "old");
    let new = Modern::new(&server, "new");
    let in_a = old.open("f", access::BOTH, 0);
    assert_eq!(old.status(in_a.0, lock(old.seqid, in_a.1, old.id)), Status4::OK);
    old.seqid += 1;
    let also_in_a = new.open("g", access::BOTH, access::WRITE);
    assert_eq!(new.status(also_in_a.0, lock(0, also_in_a.1, 0)), Status4::OK);
    let (f, g) = (node(&server, in_a.0), node(&server, also_in_a.0));
    // The helpers open in the first share.
    replace(&server, vec![share("b", &b), share("a", &a)]);
    let in_b = new.open("h", access::BOTH, 0);
    assert_eq!(new.status(in_b.0, lock(0, in_b.1, 0)), Status4::OK);
    let h = node(&server, in_b.0);
    assert!(!is_free(&a, f) && !is_free(&a, g) && !is_free(&b, h), "reordering releases nothing");
    assert_eq!(old.status(in_a.0, write_op(in_a.1, 0, b"x")), Status4::OK);

    replace(&server, vec![share("b", &b)]);
    assert!(is_free(&a, f) && is_free(&a, g));
    assert_eq!(old.status(in_a.0, write_op(in_a.1, 0, b"x")), Status4::STALE);
    assert_eq!(new.status(also_in_a.0, read_op(also_in_a.1, 0, 1)), Status4::STALE);
    let test = Op::TestStateid(nfs4::UpTo(vec![also_in_a.1, in_b.1]));
    let tested: nfs4::UpTo<Status4, 4096> = new.run(&[test]).ok(opnum::TEST_STATEID);
    assert_eq!(tested.0, [Status4::BAD_STATEID, Status4::OK]);
    // The other share notices nothing.
    assert!(!is_free(&b, h));
    assert_eq!(new.status(in_b.0, write_op(in_b.1, 0, b"x")), Status4::OK);
    let close = Op::Close(nfs4::Close { seqid: 0, stateid: in_b.1 });
    assert_eq!(new.status(in_b.0, close), Status4::OK);
    assert!(is_free(&b, h));
    // Both clients go on, also in a share that comes back.
    replace(&server, vec![share("a", &a)]);
    assert_eq!(old.status(in_a.0, write_op(in_a.1, 0, b"x")), Status4::BAD_STATEID);
    let again = old.open("f", access::BOTH, access::BOTH);
    assert_eq!(again.0, in_a.0);
    assert_eq!(old.status(again.0, write_op(again.1, 0, b"x")), Status4::OK);
}

/// A request that began with the old shares opens or caches something after everything else was released.
#[test]
fn a_late_request_leaves_nothing_behind() {
    let (a, b) = (ram(), ram());
    let server = server(vec![share("a", &a), share("b", &b)]);
    let client = Modern::new(&server, "a");
    let (file, _) = client.open("f", access::BOTH, 0);
    let node = node(&server, file);
    let key = server.share(0).key();
    let known = {
        let session =
            server.states.session(&client.session, &crate::server::v4::tests::origin(PEER)).unwrap();
        server.states.holder(&session.lease).unwrap()
    };
    let state = known.mine().states.values().next().unwrap().clone();
    replace(&server, vec![share("b", &b)]);
    assert!(known.mine().states.is_empty());
    assert_eq!(known.hold(&state, &server.shares), Err(NotHeld::ShareGone));
    assert!(known.mine().states.is_empty());
    rt::block_on(server.files.open(&a, FileId { share: key, node }, true)).unwrap().unwrap();
    assert_eq!(server.files.len(), 0);
}

#[test]
fn a_delegation_in_a_removed_share_is_taken_without_a_call() {
    let (a, b) = (ram(), ram());
    story(async {
        let server = server(vec![share("a", &a), share("b", &b)]);
        let client = Live::new(&server, "a").await;
        let wanted = access::BOTH | access::WANT_WRITE_DELEG;
        let (file, opened) = client.open(&server, "f", wanted).await;
        let nfs4::Delegation::Write(delegation, ..) = opened.delegation else { panic!("{opened:?}") };
        let handle = Handle::new(file.as_bytes()).unwrap();
        let shares = server.shares.now();
        let crate::server::handles::Named::Node(FileId { node, .. }) =
            server.handles.open(&shares, &handle).await.unwrap()
        else {
            panic!("a node")
        };
        drop(shares);
        let free = |vfs: &Vfs| {
            let key = vfs.opens().key();
            vfs.opens().try_open(node, &Opening::new(Rights::ALL, Rights::NONE, key)).is_ok()
        };
        server.replace_shares(vec![share("b", &b)]).await;
        assert!(free(&a));
        assert!(client.wire.is_silent().await);
        assert_eq!(client.run(&[Op::Putfh(file)]).await.status, Status4::STALE);
        // Counted as returned, and unknown.
        server.replace_shares(vec![share("a", &a)]).await;
        assert_eq!(client.at(file, Op::Delegreturn(delegation)).await.status, Status4::BAD_STATEID);
        assert_eq!(client.flags.get(), 0);
        let (_, opened) = client.open(&server, "f", wanted).await;
        assert!(matches!(opened.delegation, nfs4::Delegation::Write(..)), "{opened:?}");
    });
}

#[test]
fn a_copy_that_goes_on_alone_ends_with_its_share() {
    const WHOLE: u64 = 192 << 20;
    let vfs = || Vfs::new(Ram::new(2 * WHOLE));
    for keeps in [false, true] {
        let (a, b) = (vfs(), vfs());
        story(async {
            let server = server(vec![share("a", &a), share("b", &b)]);
            let client = Live::new(&server, "a").await;
            let (from, source) = client.open(&server, "from", access::BOTH).await;
            let (to, target) = client.open(&server, "to", access::BOTH).await;
            let file = a.lookup(NodeId::ROOT, b"from", false).await.unwrap().node;
            let long = weft_store::SetAttr { size: Some(WHOLE), ..Default::default() };
            a.setattr(file, long).await.unwrap();
            let copy = nfs4::Copy {
                from_stateid: source.stateid,
                to_stateid: target.stateid,
                from_offset: 0,
                to_offset: 0,
                count: WHOLE,
                consecutive: true,
                synchronous: false,
                servers: nfs4::UpTo::default(),
            };
            let ops = [Op::Putfh(from), Op::Savefh, Op::Putfh(to), Op::Copy(copy)];
            assert_eq!(client.run(&ops).await.status, Status4::OK);
            let now = if keeps { vec![share("a", &a.clone().read_only())] } else { vec![share("b", &b)] };
            server.replace_shares(now).await;
            let asked = client.wire.asked().await;
            let nfs4::CbOp::Offload(nfs4::CbOffload { end, .. }) = &asked.op else {
                panic!("{:?}", asked.op)
            };
            let nfs4::OffloadEnd::Failed(status, copied) = end else { panic!("{end:?}") };
            assert_eq!(*status, if keeps { Status4::ROFS } else { Status4::STALE });
            assert!(*copied < WHOLE);
        });
    }
}

#[test]
fn hosts_lose_their_locks_share_modes_and_waits_in_a_removed_share() {
    const OTHER: &str = "192.0.2.7:700";
    let (a, b) = (ram(), ram());
    let server = server(vec![share("a", &a), share("b", &b)]);
    let in_a = make(&server, mnt(&server, "/a").unwrap(), b"f");
    let in_b = make(&server, mnt(&server, "/b").unwrap(), b"f");
    let node = node_of(&server, &in_a);
    let object = |text: &'static str| nlm::Object(Bytes::from_static(text.as_bytes()));
    let lock = |file, block| nlm::LockArgs {
        cookie: object("cookie"),
        block,
        exclusive: true,
        lock: nlm::Lock {
            caller: object("box"),
            file,
            owner: object("1@box"),
            svid: 1,
            offset: 0,
            length: 0,
        },
        reclaim: false,
        state: 1,
    };
    rt::block_on(async {
        let server = &server;
        let ask = async |peer, file, block| -> nlm::Status {
            let number = (nlm::PROGRAM, nlm::VERSION, nlm::procedure::LOCK);
            results_for::<nlm::Answer>(server, peer, number, &lock(file, block)).await.status
        };
        assert_eq!(ask(PEER, in_a, false).await, nlm::Status::GRANTED);
        assert_eq!(ask(OTHER, in_a, true).await, nlm::Status::BLOCKED);
        assert_eq!(ask(PEER, in_b, false).await, nlm::Status::GRANTED);
        let args = nlm::ShareArgs {
            cookie: object("s"),
            share: nlm::Share {
                caller: object("box"),
                file: in_a,
                owner: object("1@box"),
                deny: 0,
                access: 1,
            },
            reclaim: false,
        };
        let number = (nlm::PROGRAM, nlm::VERSION, nlm::procedure::SHARE);
        let shared: nlm::ShareAnswer = results_for(server, PEER, number, &args).await;
        assert_eq!(shared.status, nlm::Status::GRANTED);
        assert!(!is_free(&a, node));
        server.replace_shares(vec![share("b", &b)]).await;
        // A task that waited would lock now.
        rt::sleep(Duration::from_millis(1)).await;
        assert!(is_free(&a, node));
        assert_eq!(ask(PEER, in_a, false).await, nlm::Status::STALE_FH);
        assert_eq!(ask(OTHER, in_b, false).await, nlm::Status::DENIED, "that lock stays");
        server.replace_shares(vec![share("a", &a)]).await;
        assert_eq!(ask(OTHER, in_a, false).await, nlm::Status::GRANTED);
    })
    .unwrap();
}

/// By its rules and by its file system: what was opened for writing before cannot be written any more.
#[test]
fn a_share_becomes_read_only_for_those_who_have_files_open() {
    let vfs = ram();
    let server = server(vec![share("a", &vfs)]);
    let file = make(&server, mnt(&server, "/a").unwrap(), b"f");
    assert_eq!(write(&server, file), Ok(()));
    let mut old = Old::new(&server, "old");
    let new = Modern::new(&server, "new");
    let (by_old, by_new) = (old.open("f", access::BOTH, 0), new.open("f", access::BOTH, 0));
    let rules = || {
        let mut share = share("a", &vfs);
        share.rules.nfs = Export { read_only: true, ..Export::default() };
        share
    };
    for (changed, expected) in [
        (rules(), Status4::ROFS),
        (share("a", &vfs), Status4::OK),
        (share("a", &vfs.clone().read_only()), Status4::ROFS),
        (share("a", &vfs), Status4::OK),
    ] {
        replace(&server, vec![changed]);
        assert_eq!(old.status(by_old.0, read_op(by_old.1, 0, 1)), Status4::OK);
        assert_eq!(old.status(by_old.0, write_op(by_old.1, 0, b"x")), expected);
        assert_eq!(new.status(by_new.0, read_op(by_new.1, 0, 1)), Status4::OK);
        assert_eq!(new.status(by_new.0, write_op(by_new.1, 0, b"x")), expected);
        assert_eq!(new.status(by_new.0, write_op(Stateid::ANONYMOUS, 0, b"x")), expected);
        assert_eq!(write(&server, file).is_ok(), expected == Status4::OK);
    }
}

/// The same connection is refused at the next request, and admitted again.
#[test]
fn networks_and_flavours_change_under_a_connection() {
    let (a, b) = (ram(), ram());
    let ruled = |export| {
        let mut share = share("a", &a);
        share.rules.nfs = export;
        vec![share, share_b(&b)]
    };
    fn share_b(vfs: &Vfs) -> Share {
        share("b", vfs)
    }
    story(async {
        let server = server(ruled(Export::default()));
        let client = Live::new(&server, "a").await;
        let (file, opened) = client.open(&server, "f", access::BOTH).await;
        let put = async || client.run(&[Op::Putfh(file), write_op(opened.stateid, 0, b"x")]).await.status;
        assert_eq!(put().await, Status4::OK);
        let elsewhere = Export { networks: vec!["203.0.113.0/24".parse().unwrap()], ..Export::default() };
        server.replace_shares(ruled(elsewhere)).await;
        assert_eq!(put().await, Status4::ACCESS);
        let flavors = vec![weft_store::rules::Flavor::None];
        server.replace_shares(ruled(Export { flavors, ..Export::default() })).await;
        assert_eq!(put().await, Status4::WRONGSEC);
        server.replace_shares(ruled(Export::default())).await;
        assert_eq!(put().await, Status4::OK, "the open is still there");
    });
}

#[test]
fn the_root_of_all_shares_changes_with_them() {
    let vfs = ram();
    let shares = |names: &[&str]| names.iter().map(|name| share(name, &vfs)).collect::<Vec<_>>();
    let server = server(shares(&["a", "b", "c", "d"]));
    let old = Old::new(&server, "a");
    let list = |cookie, maxcount| -> (Vec<(String, u64)>, bool) {
        let attributes = nfs4::Bitmap::of(&[attr::TYPE]);
        let list = nfs4::Readdir { cookie, verifier: [0; 8], dircount: 0, maxcount, attributes };
        let mut answer = old.run(&[Op::Putrootfh, Op::Readdir(list)]);
        answer.ok::<()>(opnum::PUTROOTFH);
        let listed: nfs4::ReaddirOk = answer.ok(opnum::READDIR);
        let name = |entry: &nfs4::Entry| String::from_utf8(entry.name.0.to_vec()).unwrap();
        (listed.entries.iter().map(|entry| (name(entry), entry.cookie)).collect(), listed.eof)
    };
    let change = || {
        let mut answer =
            old.run(&[Op::Putrootfh, Op::Getattr(nfs4::Bitmap::of(&[attr::CHANGE, attr::NUMLINKS]))]);
        answer.ok::<()>(opnum::PUTROOTFH);
        let fattr: nfs4::Fattr = answer.ok(opnum::GETATTR);
        let values = nfs4::Attributes::parse(&fattr).unwrap();
        (values.change.unwrap(), values.numlinks.unwrap())
    };
    let (all, end) = list(0, 4096);
    assert!(end && all.len() == 4);
    let (before, links) = change();
    // The first two entries; then the first one goes, and a new share comes.
    let two = |from: &[(String, u64)]| from.iter().map(|(name, _)| name.clone()).collect::<Vec<_>>();
    let (first, end) = list(0, 120);
    assert!(!end && first.len() >= 2 && first.len() < 4, "{first:?}");
    let rest: Vec<_> = all[first.len()..].to_vec();
    let mut left: Vec<&str> = all[1..].iter().map(|(name, _)| name.as_str()).collect();
    left.reverse();
    replace(&server, shares(&left));
    let (next, end) = list(first.last().unwrap().1, 4096);
    assert!(end);
    assert_eq!(next, rest, "no entry is listed twice or left out");
    assert_eq!(two(&next), two(&rest));
    let (after, fewer) = change();
    assert!(after > before && fewer == links - 1);
    assert_eq!(old.run(&[Op::Putrootfh, Op::Lookup(text(&all[0].0))]).status, Status4::NOENT);
    assert_eq!(old.run(&[Op::Putrootfh, Op::Lookup(text(&all[1].0))]).status, Status4::OK);
}

#[test]
fn a_connection_that_waits_does_not_keep_removed_shares() {
    story(async {
        let b = ram();
        let server = server(vec![share("a", &ram()), share("b", &b)]);
        let client = Live::new(&server, "a").await;
        let (file, _) = client.open(&server, "f", access::BOTH).await;
        let (list, gone) = (Arc::downgrade(&server.shares.now()), Arc::downgrade(&server.share(0)));
        server.replace_shares(vec![share("b", &b)]).await;
        assert!(client.wire.is_silent().await);
        assert!(list.upgrade().is_none() && gone.upgrade().is_none());
        assert_eq!(client.run(&[Op::Putfh(file)]).await.status, Status4::STALE);
    });
}
