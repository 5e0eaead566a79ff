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
