//! Opens of minor version 0: owners and their sequence ids, share reservations, leases.

use std::time::Duration;

use super::*;
use weft_store::opens::{Opening, Rights};

#[test]
fn a_file_is_opened_written_read_and_closed() {
    let server = server();
    let mut old = Old::new(&server, "a");
    let (file, stateid) = old.open("f", 3, 0);
    let mut answer = old.run(&[Op::Putfh(file), write_op(stateid, 0, b"hello"), read_op(stateid, 1, 9)]);
    answer.ok::<()>(opnum::PUTFH);
    assert_eq!(answer.ok::<WriteOk>(opnum::WRITE).count, 5);
    assert!(answer.ok::<bool>(opnum::READ));
    assert_eq!(&answer.d.opaque(9).unwrap()[..], b"ello");
    answer.end();
    let close = Op::Close(Close { seqid: old.seqid, stateid });
    assert_eq!(old.status(file, close.clone()), Status::OK);
    // A repeated CLOSE gets the same reply; any other use of the state does not.
    assert_eq!(old.status(file, close), Status::OK);
    assert_eq!(old.status(file, read_op(stateid, 0, 1)), Status::BAD_STATEID);
    assert_eq!(server.vfs(0).opens().count(file_node(&server, file)), 0);
}

#[test]
fn a_state_id_is_no_password() {
    let server = server_of(Limits::default(), Policy { decides: true, squash_root: true });
    let mut old = Old::new(&server, "a");
    let (file, stateid) = old.open("f", 3, 0);
    let set = |bits| Op::Setattr(Setattr { stateid, attributes: mode(bits) });
    assert_eq!(old.status(file, set(0o604)), Status::OK);
    assert_eq!(old.status(file, write_op(stateid, 0, b"mine")), Status::OK);
    old.uid = 2;
    assert_eq!(old.status(file, write_op(stateid, 0, b"not mine")), Status::ACCESS);
    assert_eq!(old.status(file, read_op(stateid, 0, 4)), Status::OK, "the mode lets others read");
    old.uid = 1;
    assert_eq!(old.status(file, set(0)), Status::OK);
    assert_eq!(old.status(file, write_op(stateid, 0, b"mine")), Status::OK, "it was opened before");
}

pub fn file_node(server: &Server, handle: Handle) -> NodeId {
    let handle = weft_wire::nfs3::Handle::new(handle.as_bytes()).unwrap();
    crate::server::tests::node_of(server, &handle)
}

#[test]
fn an_owner_counts_its_requests() {
    let server = server();
    let mut old = Old::new(&server, "a");
    old.seqid = 41;
    let how = || Some(CreateHow::Unchecked(Fattr::default()));
    let open = old.open_op(41, "f", 1, 0, how());
    let mut first = old.at_root(&[open.clone(), Op::Getfh]);
    let ok: OpenOk = first.ok(opnum::OPEN);
    let file: Handle = first.ok(opnum::GETFH);
    assert_eq!(ok.flags & open_flag::CONFIRM, open_flag::CONFIRM);
    // An unconfirmed owner cannot use its opens.
    assert_eq!(old.status(file, read_op(ok.stateid, 0, 1)), Status::BAD_STATEID);
    // A repetition gets the first reply, and leads to the same file.
    let mut again = old.at_root(&[open, Op::Getfh]);
    assert_eq!(again.ok::<OpenOk>(opnum::OPEN), ok);
    assert_eq!(again.ok::<Handle>(opnum::GETFH), file);
    let confirm = |seqid, stateid| Op::OpenConfirm(OpenConfirm { stateid, seqid });
    assert_eq!(old.status(file, confirm(44, ok.stateid)), Status::BAD_SEQID);
    let bad = Stateid { seqid: 9, ..ok.stateid };
    assert_eq!(old.status(file, confirm(42, bad)), Status::BAD_STATEID);
    assert_eq!(old.status(file, confirm(42, ok.stateid)), Status::OK);
    assert_eq!(old.status(file, confirm(42, ok.stateid)), Status::OK);
    let stale = Stateid { other: [1; 12], ..ok.stateid };
    assert_eq!(old.status(file, confirm(43, stale)), Status::STALE_STATEID);
    let close = |seqid, stateid| Op::Close(Close { seqid, stateid });
    assert_eq!(old.status(file, close(43, ok.stateid)), Status::OLD_STATEID);
    let now = Stateid { seqid: 2, ..ok.stateid };
    assert_eq!(old.status(file, close(60, now)), Status::BAD_SEQID);
    assert_eq!(old.status(file, close(44, now)), Status::OK);
    assert_eq!(old.at_root(&[old.open_op(7, "f", 1, 0, None)]).status, Status::BAD_SEQID);
    assert_eq!(old.at_root(&[old.open_op(45, "f", 1, 0, None)]).status, Status::OK);
}

#[test]
fn an_owner_that_has_opened_nothing_may_try_again_under_its_number() {
    let server = server();
    let old = Old::new(&server, "a");
    let open = |old: &Old<'_>, seqid, name| old.at_root(&[old.open_op(seqid, name, 1, 0, None)]).status;
    old.at_root(&[old.open_op(1, "f", 1, 0, Some(CreateHow::Unchecked(Fattr::default())))])
        .ok::<OpenOk>(opnum::OPEN);
    let mut new = Old::new(&server, "b");
    let link = CreateType::Link(LinkText(Bytes::from_static(b"f")));
    let make = Op::Create(Create { kind: link, name: text("l"), attributes: Fattr::default() });
    assert_eq!(new.at_root(&[make]).status, Status::OK);
    // libnfs opens a link's target under the same sequence id.
    assert_eq!(open(&new, 0, "l"), Status::SYMLINK);
    assert_eq!(open(&new, 0, "f"), Status::OK);
    // After an open, the reply is repeated whatever is asked.
    assert_eq!(open(&new, 0, "none"), Status::OK);
    // A confirmed owner also counts its failures.
    new.seqid = 8;
    let (..) = new.open("f", 1, 0);
    let seqid = new.seqid;
    assert_eq!(open(&new, seqid, "l"), Status::SYMLINK);
    assert_eq!(open(&new, seqid, "f"), Status::SYMLINK);
}

#[test]
fn what_cannot_be_opened() {
    let server = server();
    let old = Old::new(&server, "a");
    let make = |kind, name| Op::Create(Create { kind, name: text(name), attributes: Fattr::default() });
    let link = CreateType::Link(LinkText(Bytes::from_static(b"t")));
    assert_eq!(old.at_root(&[make(CreateType::Other(FileType::DIR), "d")]).status, Status::OK);
    assert_eq!(old.at_root(&[make(link, "l")]).status, Status::OK);
    let mut seqid = 0;
    let mut status = |name: &str, access, deny, how: OpenHow| {
        seqid += 1;
        let owner = Owner { client: old.id, owner: Opaque(Bytes::from(seqid.to_string())) };
        let claim = Claim::Null(text(name));
        old.at_root(&[Op::Open(Open { seqid, access, deny, owner, how, claim })]).status
    };
    assert_eq!(status("d", 1, 0, None), Status::ISDIR);
    assert_eq!(status("l", 1, 0, None), Status::SYMLINK);
    assert_eq!(status("none", 1, 0, None), Status::NOENT);
    assert_eq!(status("f", 0, 0, None), Status::INVAL);
    assert_eq!(status("f", 4, 0, None), Status::INVAL);
    assert_eq!(status("f", 1, 4, None), Status::INVAL);
    assert_eq!(status("", 1, 0, None), Status::INVAL);
    let unsupported = Fattr { mask: Bitmap::of(&[62]), values: Bytes::new() };
    assert_eq!(status("f", 1, 0, Some(CreateHow::Guarded(unsupported))), Status::ATTRNOTSUPP);
    assert_eq!(status("f", 1, 0, Some(CreateHow::Guarded(mode(0o600)))), Status::OK);
    assert_eq!(status("f", 1, 0, Some(CreateHow::Guarded(mode(0o600)))), Status::EXIST);
    assert_eq!(status("e", 1, 0, Some(CreateHow::Exclusive([1; 8]))), Status::OK);
    assert_eq!(status("e", 1, 0, Some(CreateHow::Exclusive([1; 8]))), Status::OK);
    assert_eq!(status("e", 1, 0, Some(CreateHow::Exclusive([2; 8]))), Status::EXIST);
    assert_eq!(status("d", 1, 0, Some(CreateHow::Unchecked(mode(0o600)))), Status::ISDIR);
    let reclaim = |claim| {
        let owner = Owner { client: old.id, owner: Opaque(Bytes::from_static(b"r")) };
        old.at_root(&[Op::Open(Open { seqid: 1, access: 1, deny: 0, owner, how: None, claim })]).status
    };
    assert_eq!(reclaim(Claim::Previous(0)), Status::NO_GRACE);
    let stranger = Owner { client: old.id + 1, owner: Opaque::default() };
    let open =
        Open { seqid: 1, access: 1, deny: 0, owner: stranger, how: None, claim: Claim::Null(text("f")) };
    assert_eq!(old.at_root(&[Op::Open(open)]).status, Status::STALE_CLIENTID);
}

#[test]
fn share_reservations_meet_those_of_others_and_of_smb() {
    let server = server();
    let (mut a, mut b) = (Old::new(&server, "a"), Old::new(&server, "b"));
    let (file, stateid) = a.open("f", 1, 2);
    let open = |b: &mut Old<'_>, access, deny| {
        b.seqid += 1;
        b.at_root(&[b.open_op(b.seqid - 1, "f", access, deny, None)]).status
    };
    assert_eq!(open(&mut b, 2, 0), Status::SHARE_DENIED);
    assert_eq!(open(&mut b, 1, 1), Status::SHARE_DENIED);
    // A write without an open is refused, too.
    assert_eq!(b.status(file, write_op(Stateid::ANONYMOUS, 0, b"x")), Status::LOCKED);
    assert_eq!(a.status(file, write_op(stateid, 0, b"x")), Status::OPENMODE);
    // SMB's opens are in the same table.
    let opens = server.vfs(0).opens().clone();
    let node = file_node(&server, file);
    let smb = |access, share| opens.try_open(node, &Opening::new(access, share, opens.key()));
    assert!(smb(Rights::WRITE, Rights::ALL).is_err());
    let reader = smb(Rights::READ, Rights::READ).unwrap();
    assert_eq!(a.at_root(&[Op::Remove(text("f"))]).status, Status::FILE_OPEN);
    drop(reader);
    // RFC 8881 9.7: the owner itself cannot do what it denies, or deny what it does.
    assert_eq!(open(&mut a, 2, 0), Status::SHARE_DENIED);
    assert_eq!(open(&mut a, 1, 1), Status::SHARE_DENIED);
    // It may extend its access as long as nobody conflicts.
    let (file, _) = a.open("g", 1, 0);
    let (_, stateid) = a.open("g", 2, 0);
    assert_eq!(stateid.seqid, 2);
    assert_eq!(a.status(file, write_op(stateid, 0, b"x")), Status::OK);
    // And reduce it to what it requested before.
    let down = |a: &mut Old<'_>, stateid, access, deny| {
        let op = Op::OpenDowngrade(OpenDowngrade { stateid, seqid: a.seqid, access, deny });
        a.seqid += 1;
        a.status(file, op)
    };
    assert_eq!(down(&mut a, stateid, 1, 1), Status::INVAL);
    assert_eq!(down(&mut a, stateid, 2, 0), Status::OK);
    let stateid = Stateid { seqid: 3, ..stateid };
    assert_eq!(a.status(file, read_op(stateid, 0, 1)), Status::OPENMODE);
}

#[test]
fn a_client_that_comes_back_after_a_restart_of_its_own_begins_anew() {
    let server = server();
    let mut a = Old::new(&server, "a");
    let (file, stateid) = a.open("f", 3, 3);
    let confirm = a.setclientid("a", *b"second--");
    // Until the new instance confirms, the old one keeps its state.
    assert_eq!(a.status(file, write_op(stateid, 0, b"x")), Status::OK);
    assert_eq!(
        a.run(&[Op::SetclientidConfirm(Confirm { verifier: [9; 8], ..confirm.clone() })]).status,
        Status::STALE_CLIENTID
    );
    assert_eq!(a.run(&[Op::SetclientidConfirm(confirm.clone())]).status, Status::OK);
    assert_eq!(a.run(&[Op::SetclientidConfirm(confirm.clone())]).status, Status::OK);
    assert_ne!(a.status(file, write_op(stateid, 0, b"x")), Status::OK);
    assert_eq!(a.run(&[Op::Renew(a.id)]).status, Status::STALE_CLIENTID);
    assert_eq!(a.run(&[Op::Renew(confirm.client)]).status, Status::OK);
    let mut b = Old::new(&server, "b");
    b.open("f", 3, 3);
    // Another client must not take over its name.
    a.id = confirm.client;
    a.seqid = 0;
    a.open("g", 1, 0);
    let thief = Old { uid: 2, ..Old::new(&server, "thief") };
    let callback = CallbackClient { program: 0, location: NetAddr { netid: text("tcp"), addr: text("") } };
    let client = ClientOwner { verifier: [0; 8], id: Opaque(Bytes::from_static(b"a")) };
    let mut answer = thief.run(&[Op::Setclientid(Setclientid { client, callback, callback_ident: 0 })]);
    assert_eq!(answer.next(opnum::SETCLIENTID), Status::CLID_INUSE);
    assert_eq!(NetAddr::parse(&mut answer.d).unwrap().addr, text("0.0.0.0.0.0"));
    answer.end();
}

#[test]
fn a_lease_that_ran_out_is_honoured_until_somebody_wants_what_it_covers() {
    // Every lease expires as soon as it is renewed.
    let server = server_with(Limits { lease: Duration::ZERO, ..Limits::default() });
    let (mut a, mut b) = (Old::new(&server, "a"), Old::new(&server, "b"));
    let (file, stateid) = a.open("f", 3, 2);
    assert_eq!(a.status(file, write_op(stateid, 0, b"x")), Status::OK);
    assert_eq!(a.run(&[Op::Renew(a.id)]).status, Status::OK);
    b.open("f", 2, 0);
    assert_eq!(a.status(file, write_op(stateid, 0, b"x")), Status::EXPIRED);
    assert_eq!(a.run(&[Op::Renew(a.id)]).status, Status::EXPIRED);
    assert_eq!(a.at_root(&[a.open_op(a.seqid, "f", 1, 0, None)]).status, Status::EXPIRED);
    assert_eq!(b.run(&[Op::Renew(b.id)]).status, Status::OK);
}

#[test]
fn a_removed_file_lives_on_for_who_has_it_open() {
    let server = server();
    let mut a = Old::new(&server, "a");
    let (file, stateid) = a.open("f", 3, 0);
    assert_eq!(a.status(file, write_op(stateid, 0, b"hello")), Status::OK);
    assert_eq!(a.at_root(&[Op::Remove(text("f"))]).status, Status::OK);
    let mut answer =
        a.run(&[Op::Putfh(file), read_op(stateid, 0, 5), Op::Getattr(Bitmap::of(&[attr::NUMLINKS]))]);
    answer.ok::<()>(opnum::PUTFH);
    answer.ok::<bool>(opnum::READ);
    assert_eq!(&answer.d.opaque(9).unwrap()[..], b"hello");
    let links = Attributes::parse(&answer.ok(opnum::GETATTR)).unwrap();
    assert_eq!(links.numlinks, Some(0));
    assert_eq!(a.status(file, Op::Close(Close { seqid: a.seqid, stateid })), Status::OK);
    assert_eq!(a.status(file, Op::Getattr(Bitmap::of(&[1]))), Status::STALE);
}
