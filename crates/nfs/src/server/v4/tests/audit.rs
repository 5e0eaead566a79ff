//! The audit log of version 4: what is repeated, and files that were moved while they were open.

use weft_store::SetAttr;
use weft_store::audit::Wanted;

use super::*;
use crate::server::tests::audit::Log;

const ANONYMOUS: Stateid = Stateid { seqid: 0, other: [0; 12] };

#[test]
fn what_was_denied_hides_nothing_that_is_done() {
    let server = server_of(Limits::default(), Policy { decides: true, squash_root: true });
    let mut old = Old::new(&server, "a");
    let (file, _) = old.open("f", 3, 0);
    let node = opens::file_node(&server, file);
    let set_mode = |mode| {
        let set = SetAttr { uid: Some(2001), gid: Some(3000), mode: Some(mode), ..SetAttr::default() };
        weft_machine::rt::block_on(async { server.vfs(0).setattr(node, set).await.unwrap() }).unwrap();
    };
    let log = Log::of(&server, Wanted::ALL);
    old.uid = 2;
    for (bits, result, read, write) in
        [(0o600, "denied", Status::ACCESS, Status::ACCESS), (0o666, "ok", Status::OK, Status::OK)]
    {
        set_mode(bits);
        for _ in 0..2 {
            assert_eq!(old.status(file, read_op(ANONYMOUS, 0, 1)), read);
            assert_eq!(old.status(file, write_op(ANONYMOUS, 0, b"x")), write);
        }
        assert_eq!(log.new_lines(), [format!("open {result} ram f"), format!("write {result} ram f")]);
    }
}

#[test]
fn a_share_that_was_not_there_is_told_once_it_is_connected_to() {
    let server = server();
    let old = Old::new(&server, "a");
    let log = Log::of(&server, Wanted::ALL);
    let look_up = |name| old.run(&[Op::Putrootfh, Op::Lookup(text(name))]).status;
    assert_eq!(look_up("none"), Status::NOENT);
    assert_eq!(log.new_lines(), [""; 0]);
    assert_eq!((look_up("ram"), look_up("ram"), look_up("other")), (Status::OK, Status::OK, Status::OK));
    assert_eq!(log.new_lines(), ["connect ok ram -", "connect ok other -"]);
    let key = "none";
    let added =
        [Share::new("ram", Vfs::new(Ram::new(1 << 20))), Share::new(key, Vfs::new(Ram::new(1 << 20)))];
    server.shares.replace(added.into_iter().map(crate::server::shares::settled).collect());
    assert_eq!(look_up("none"), Status::OK);
    assert_eq!(log.new_lines(), ["connect ok none -"]);
}

#[test]
fn an_open_is_told_with_the_name_that_its_file_has_by_then() {
    let server = server();
    let mut old = Old::new(&server, "a");
    let log = Log::of(&server, Wanted::ALL);
    let (file, stateid) = old.open("f", 3, 0);
    assert_eq!(log.new_lines(), ["create ok ram f"]);
    let rename = |from, to| {
        let root = Op::Putfh(root(&server));
        let rename = Op::Rename(Rename { from: text(from), to: text(to) });
        assert_eq!(old.run(&[root.clone(), Op::Savefh, root, rename]).status, Status::OK);
    };
    rename("f", "g");
    assert_eq!(log.new_lines(), ["rename ok ram f"]);
    assert_eq!(old.status(file, write_op(stateid, 0, b"x")), Status::OK);
    assert_eq!(log.new_lines(), ["write ok ram g"]);
    rename("g", "h");
    assert_eq!(log.new_lines(), ["rename ok ram g"]);
    assert_eq!(old.status(file, Op::Close(Close { seqid: old.seqid, stateid })), Status::OK);
    assert_eq!(log.new_lines(), ["close ok ram h"]);
}

#[test]
fn a_rename_that_replaces_a_file_says_so() {
    let server = server();
    let mut old = Old::new(&server, "a");
    for name in ["f", "g"] {
        let (file, stateid) = old.open(name, 3, 0);
        assert_eq!(old.status(file, Op::Close(Close { seqid: old.seqid, stateid })), Status::OK);
        old.seqid += 1;
    }
    let log = Log::of(&server, Wanted::ALL);
    let rename = |from, to| Op::Rename(Rename { from: text(from), to: text(to) });
    let dir = Op::Putfh(root(&server));
    // A compound has several of them.
    let all = [dir.clone(), Op::Savefh, dir, rename("f", "g"), rename("g", "h")];
    assert_eq!(old.run(&all).status, Status::OK);
    assert_eq!(log.fields(&["event", "path", "to", "replaced"]), ["rename f g true", "rename g h -"]);
}

#[test]
fn an_open_is_told_by_the_user_who_opens_whoever_else_has_the_file_open_through_the_same_owner() {
    let server = server();
    let mut old = Old::new(&server, "a");
    let log = Log::of(&server, Wanted::ALL);
    let fields = ["event", "uid", "path", "read_bytes", "written_bytes"];
    let (file, stateid) = old.open("f", 3, 0);
    assert_eq!(old.status(file, write_op(stateid, 0, b"abc")), Status::OK);
    assert_eq!(log.fields(&fields), ["create 1 f - -", "write 1 f - -"]);
    let mode = Op::Setattr(Setattr { stateid: Stateid::ANONYMOUS, attributes: mode(0o666) });
    assert_eq!(old.status(file, mode), Status::OK);
    assert_eq!(log.fields(&fields), ["rights 1 f - -"]);
    // The client's owner acts for another user by now.
    old.uid = 2;
    let (_, stateid) = old.open("f", 3, 0);
    assert_eq!(log.fields(&fields), ["open 2 f - -"]);
    assert_eq!(old.status(file, write_op(stateid, 0, b"defgh")), Status::OK);
    assert_eq!(log.fields(&fields), ["write 2 f - -"]);
    assert_eq!(old.status(file, read_op(stateid, 0, 2)), Status::OK);
    // A third has not opened it, but uses the state.
    old.uid = 3;
    assert_eq!(old.status(file, read_op(stateid, 0, 1)), Status::OK);
    assert_eq!(log.fields(&fields), ["open 3 f - -"]);
    old.uid = 2;
    assert_eq!(old.status(file, Op::Close(Close { seqid: old.seqid, stateid })), Status::OK);
    assert_eq!(log.fields(&fields), ["close 1 f 0 3", "close 2 f 2 5"]);
}

#[test]
fn the_users_of_one_state_are_limited_and_the_others_are_told_as_without_an_open() {
    let server = server();
    let mut old = Old::new(&server, "a");
    let log = Log::of(&server, Wanted::ALL);
    let fields = ["event", "uid"];
    let (file, mut stateid) = old.open("f", 3, 0);
    let mode = Op::Setattr(Setattr { stateid: Stateid::ANONYMOUS, attributes: mode(0o666) });
    assert_eq!(old.status(file, mode), Status::OK);
    for uid in 2..=6 {
        old.uid = uid;
        stateid = old.open("f", 3, 0).1;
    }
    let opens = ["create 1", "rights 1", "open 2", "open 3", "open 4", "open 5", "open 6"];
    assert_eq!(log.fields(&fields), opens);
    for _ in 0..2 {
        assert_eq!(old.status(file, write_op(stateid, 0, b"x")), Status::OK);
    }
    assert_eq!(log.fields(&fields), ["write 6"]);
    assert_eq!(old.status(file, Op::Close(Close { seqid: old.seqid, stateid })), Status::OK);
    assert_eq!(log.fields(&fields), ["close 1", "close 2", "close 3", "close 4"]);
}

#[test]
fn a_named_attribute_has_the_name_of_its_file() {
    let server = server();
    let client = Modern::new(&server, "a");
    let (file, _) = client.open("f", 3, 0);
    let log = Log::of(&server, Wanted::ALL);
    let fields = ["event", "path", "to", "replaced"];
    let made = |name| client.open_op(name, 3, 0, Some(CreateHow::Guarded(Fattr::default())));
    let mut answer = client.run(&[Op::Putfh(file), Op::Openattr(true), made("one"), Op::Getfh]);
    answer.ok::<()>(opnum::PUTFH);
    answer.ok::<()>(opnum::OPENATTR);
    let stateid = answer.ok::<OpenOk>(opnum::OPEN).stateid;
    let one: Handle = answer.ok(opnum::GETFH);
    assert_eq!(client.status(one, write_op(stateid, 0, b"x")), Status::OK);
    let mut answer = client.run(&[Op::Putfh(file), Op::Openattr(true), made("two")]);
    assert_eq!(answer.status, Status::OK);
    answer.ok::<()>(opnum::PUTFH);
    assert_eq!(log.fields(&fields), ["create f:one - -", "write f:one - -", "create f:two - -"]);
    let rename = Op::Rename(Rename { from: text("two"), to: text("one") });
    let again = [Op::Putfh(file), Op::Openattr(true), Op::Savefh, rename];
    assert_eq!(client.run(&again).status, Status::OK);
    assert_eq!(log.fields(&fields), ["rename f:two f:one true"]);
    let remove = [Op::Putfh(file), Op::Openattr(true), Op::Remove(text("one"))];
    assert_eq!(client.run(&remove).status, Status::OK);
    assert_eq!(log.fields(&fields), ["delete f:one - -"]);
}
