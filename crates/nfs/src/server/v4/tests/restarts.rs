//! The server is killed and restarts: grace period, and who reclaims what.

use std::path::Path;
use std::time::Duration;

use super::*;
use crate::server::Durable;
use weft_store::backend::Dir;

/// A server on a folder, with its state in another; `lease` is also the length of the grace period.
fn started(folder: &Path, state: &Path, lease: Duration) -> Arc<Server> {
    started_with(folder, state, Limits { lease, ..Limits::default() })
}

fn started_with(folder: &Path, state: &Path, limits: Limits) -> Arc<Server> {
    Server::new(Config {
        shares: vec![Share::new("data", Vfs::new(Dir::open(folder).unwrap()))],
        pool: weft_machine::Pool::new(16 << 20),
        limits,
        policy: Policy { decides: false, squash_root: true },
        durable: Some(Durable::open(state, "story").unwrap()),
    })
}

const LONG: Duration = Duration::from_secs(3600);

fn reclaim(owner: Owner, seqid: u32) -> Op {
    Op::Open(Open { seqid, access: 3, deny: 0, owner, how: None, claim: Claim::Previous(0) })
}

#[test]
fn those_who_had_something_take_it_back_before_others_get_in() {
    let (folder, state) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let server = started(folder.path(), state.path(), LONG);
    let (file, stateid) = Modern::new(&server, "a").open("f", 3, 0);
    let (_, old_stateid) = Old::new(&server, "old").open("f", 3, 0);
    drop(server);

    let server = started(folder.path(), state.path(), LONG);
    // The handle still opens the file; states and sessions belong to another run.
    let mut old = Old::new(&server, "old");
    assert_eq!(old.status(file, Op::Getattr(Bitmap::of(&[attr::FILEID]))), Status::OK);
    assert_eq!(old.status(file, read_op(old_stateid, 0, 1)), Status::STALE_STATEID);
    let a = Modern::unclaimed(&server, "a", channel());
    assert_eq!(a.status(file, read_op(stateid, 0, 1)), Status::BAD_STATEID);
    // Nobody else is admitted, and nobody reclaims what it never had.
    let stranger = Modern::unclaimed(&server, "stranger", channel());
    let owner = |client| Owner { client, owner: Opaque(Bytes::from_static(b"owner")) };
    assert_eq!(stranger.status(file, reclaim(owner(0), 0)), Status::RECLAIM_BAD);
    assert_eq!(stranger.run(&[Op::ReclaimComplete(false)]).status, Status::OK);
    assert_eq!(stranger.at_root(&[stranger.open_op("f", 1, 0, None)]).status, Status::GRACE);
    assert_eq!(stranger.status(file, read_op(Stateid::ANONYMOUS, 0, 1)), Status::GRACE);
    assert_eq!(a.at_root(&[a.open_op("f", 1, 0, None)]).status, Status::GRACE);
    // With a session, and without, where the owner need not be confirmed.
    assert_eq!(a.status(file, reclaim(owner(0), 0)), Status::OK);
    let mut answer = old.run(&[Op::Putfh(file), reclaim(owner(old.id), 7)]);
    old.seqid = 8;
    answer.ok::<()>(opnum::PUTFH);
    let ok: OpenOk = answer.ok(opnum::OPEN);
    assert_eq!(ok.flags & open_flag::CONFIRM, 0);
    let lock = |reclaim| {
        let kind = LockType { exclusive: true, waits: false };
        let locker =
            Locker::New { open_seqid: 8, open_stateid: ok.stateid, lock_seqid: 0, owner: owner(old.id) };
        Op::Lock(Lock { kind, reclaim, offset: 0, length: 1, locker })
    };
    assert_eq!(old.status(file, lock(true)), Status::OK);
    // Version 0 has no RECLAIM_COMPLETE, so the period lasts for its sake.
    assert_eq!(a.run(&[Op::ReclaimComplete(false)]).status, Status::OK);
    assert_eq!(a.status(file, reclaim(owner(0), 0)), Status::NO_GRACE);
    assert_eq!(a.at_root(&[a.open_op("f", 1, 0, None)]).status, Status::GRACE);
}

/// Over any protocol: SMB's opens, and NFSv3's operations on names, use the one table.
#[test]
fn nobody_takes_by_another_protocol_what_is_still_to_be_taken_back() {
    use weft_store::opens::{Access, Opening, Refused, Rights};

    let (folder, state) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let server = started(folder.path(), state.path(), LONG);
    let (file, _) = Modern::new(&server, "a").open("f", 3, 0);
    drop(server);

    let server = started(folder.path(), state.path(), LONG);
    let vfs = server.vfs(0);
    let opens = vfs.opens();
    let story = async { vfs.lookup(weft_store::NodeId::ROOT, b"f", false).await.unwrap().node };
    let node = weft_machine::rt::block_on(story).unwrap();
    let by_smb = |access, share| opens.try_open(node, &Opening::new(access, share, opens.key())).map(drop);
    let removed_by_version_3 = || {
        let pass = opens.pass(node, Access::Handle, Rights::DELETE);
        weft_machine::rt::block_on(async { futures_util::FutureExt::now_or_never(pass) }).unwrap()
    };
    let a = Modern::unclaimed(&server, "a", channel());
    assert_eq!(by_smb(Rights::ALL, Rights::NONE), Err(Refused::Recalling), "it is a's, who may come back");
    assert_eq!(by_smb(Rights::DELETE, Rights::ALL), Err(Refused::Recalling));
    assert_eq!(by_smb(Rights::READ, Rights::ALL), Ok(()));
    assert_eq!(removed_by_version_3(), None, "it waits");
    let owner = Owner { client: 0, owner: Opaque(Bytes::from_static(b"owner")) };
    assert_eq!(a.status(file, reclaim(owner, 0)), Status::OK);
    assert_eq!(by_smb(Rights::ALL, Rights::NONE), Err(Refused::Recalling), "a has not said that it is all");
    assert_eq!(a.run(&[Op::ReclaimComplete(false)]).status, Status::OK);
    assert_eq!(by_smb(Rights::ALL, Rights::NONE), Err(Refused::Sharing));
    assert_eq!(by_smb(Rights::ALL, Rights::ALL), Ok(()));
    assert_eq!(removed_by_version_3(), Some(Ok(())));
}

/// Names cost nothing, so invented ones must not fill the disk.
#[test]
fn clients_that_make_room_for_others_are_not_remembered_on_disk() {
    let (folder, state) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let server =
        started_with(folder.path(), state.path(), Limits { lease: LONG, clients: 4, ..Limits::default() });
    for name in ["a", "b", "c", "d"] {
        let client = Modern::by(&server, "192.0.2.10:700", name, channel());
        assert_eq!(client.run(&[Op::ReclaimComplete(false)]).status, Status::OK);
        let (file, stateid) = client.open("f", 3, 0);
        assert_eq!(client.status(file, Op::Close(Close { seqid: 0, stateid })), Status::OK);
    }
    let remembered = || server.states.durable().unwrap().clients().unwrap();
    assert_eq!(remembered().len(), 4);
    let other = Modern::by(&server, "192.0.2.11:700", "other", channel());
    assert_eq!(other.run(&[Op::ReclaimComplete(false)]).status, Status::OK);
    other.open("f", 3, 0);
    weft_machine::rt::block_on(crate::server::v4::sweep(&server)).unwrap();
    let names: Vec<_> = remembered().into_iter().map(|who| (who.sessions, who.name)).collect();
    assert_eq!(names, [(true, Bytes::from_static(b"other"))]);
}

#[test]
fn the_grace_period_ends_with_the_last_who_says_so() {
    let (folder, state) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let server = started(folder.path(), state.path(), LONG);
    let (file, _) = Modern::new(&server, "a").open("f", 3, 0);
    // A client that opened nothing has nothing to reclaim.
    Modern::new(&server, "idle");
    drop(server);
    let server = started(folder.path(), state.path(), LONG);
    let b = Modern::new(&server, "b");
    assert_eq!(b.at_root(&[b.open_op("f", 1, 0, None)]).status, Status::GRACE);
    let a = Modern::new(&server, "a");
    assert_eq!(b.at_root(&[b.open_op("f", 1, 0, None)]).status, Status::OK);
    let owner = Owner { client: 0, owner: Opaque(Bytes::from_static(b"owner")) };
    assert_eq!(a.status(file, reclaim(owner, 0)), Status::NO_GRACE);
}

#[test]
fn who_does_not_come_back_is_not_waited_for_a_second_time() {
    let (folder, state) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let server = started(folder.path(), state.path(), LONG);
    Modern::new(&server, "a").open("f", 3, 0);
    drop(server);
    // The period is over at once, and nobody came.
    let server = started(folder.path(), state.path(), Duration::ZERO);
    weft_machine::rt::block_on(super::super::sweep(&server)).unwrap();
    drop(server);
    let server = started(folder.path(), state.path(), LONG);
    let b = Modern::new(&server, "b");
    assert_eq!(b.at_root(&[b.open_op("f", 1, 0, None)]).status, Status::OK);
}
