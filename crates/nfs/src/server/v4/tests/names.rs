//! Names, attributes, listings.

use super::*;
use crate::server::duplicates::HASHED;
use crate::server::tests::make;

fn create(name: &str, kind: FileType) -> Op {
    Op::Create(Create { kind: CreateType::Other(kind), name: text(name), attributes: mode(0o755) })
}

#[test]
fn the_shares_are_the_root_of_all() {
    let server = server();
    let old = Old::new(&server, "a");
    let wanted = Bitmap::of(&[attr::TYPE, attr::FSID, attr::FILEID, attr::MOUNTED_ON_FILEID]);
    let list =
        Op::Readdir(Readdir { cookie: 0, verifier: [0; 8], dircount: 0, maxcount: 4096, attributes: wanted });
    let mut answer = old.run(&[Op::Putrootfh, list]);
    answer.ok::<()>(opnum::PUTROOTFH);
    let listed: ReaddirOk = answer.ok(opnum::READDIR);
    assert!(listed.eof);
    let mut names: Vec<_> = listed.entries.iter().map(|e| &e.name.0[..]).collect();
    names.sort_unstable();
    assert_eq!(names, [&b"other"[..], b"ram"]);
    let values = |n: usize| Attributes::parse(&listed.entries[n].attributes).unwrap();
    assert_ne!(values(0).fsid, values(1).fsid);
    // Down, up, and up again.
    let ops = [Op::Putrootfh, Op::Lookup(text("ram")), Op::Lookupp, Op::Getfh];
    let mut answer = old.run(&ops);
    for op in [opnum::PUTROOTFH, opnum::LOOKUP, opnum::LOOKUPP] {
        answer.ok::<()>(op);
    }
    answer.ok::<Handle>(opnum::GETFH);
    answer.end();
    assert_eq!(old.run(&[Op::Putrootfh, Op::Lookupp]).status, Status::NOENT);
    assert_eq!(old.run(&[Op::Putrootfh, Op::Lookup(text("none"))]).status, Status::NOENT);
    assert_eq!(old.run(&[Op::Putrootfh, create("new", FileType::DIR)]).status, Status::ROFS);
    assert_eq!(old.run(&[Op::Putrootfh, Op::Remove(text("ram"))]).status, Status::ROFS);
}

#[test]
fn a_name_that_cannot_be_gets_the_status_that_the_rfc_names() {
    let server = server();
    let old = Old::new(&server, "a");
    let long = "x".repeat(256);
    let cases: [(&[u8], Status); 7] = [
        (b"", Status::INVAL),
        (b"\xc0\xc1", Status::INVAL),
        (b".", Status::BADNAME),
        (b"..", Status::BADNAME),
        (b"a/b", Status::BADCHAR),
        (b"a\0b", Status::BADCHAR),
        (long.as_bytes(), Status::NAMETOOLONG),
    ];
    for (name, expected) in cases {
        let name = Text(Bytes::copy_from_slice(name));
        let rename = Rename { from: name.clone(), to: text("b") };
        let make = Create {
            kind: CreateType::Other(FileType::DIR),
            name: name.clone(),
            attributes: Fattr::default(),
        };
        for op in
            [Op::Lookup(name.clone()), Op::Remove(name.clone()), Op::Create(make), Op::Secinfo(name.clone())]
        {
            assert_eq!(old.at_root(std::slice::from_ref(&op)).status, expected, "{op:?}");
        }
        assert_eq!(old.at_root(&[Op::Savefh, Op::Rename(rename)]).status, expected);
    }
}

#[test]
fn what_is_no_character_is_not_made_into_a_name_and_found_where_it_is_one() {
    let server = server();
    let old = Old::new(&server, "a");
    let none = ["a\u{fffe}", "\u{ffff}", "\u{fdd0}", "\u{1ffff}z", "\u{10fffe}"];
    // U+FFFC and U+FDCF are characters, or may become some.
    for name in ["\u{fffc}", "\u{fdcf}", "\u{fffd}"] {
        assert_eq!(old.at_root(&[create(name, FileType::DIR)]).status, Status::OK);
    }
    assert_eq!(old.at_root(&[create("d", FileType::DIR)]).status, Status::OK);
    let rename = |from, to| [Op::Savefh, Op::Rename(Rename { from: text(from), to: text(to) })];
    for name in none {
        let how = Some(CreateHow::Unchecked(Fattr::default()));
        for op in [
            create(name, FileType::DIR),
            old.open_op(0, name, share::BOTH, 0, how),
            old.open_op(0, name, share::READ, 0, None),
            Op::Lookup(text(name)),
            Op::Secinfo(text(name)),
            Op::Remove(text(name)),
        ] {
            assert_eq!(old.at_root(std::slice::from_ref(&op)).status, Status::INVAL, "{op:?}");
        }
        assert_eq!(old.at_root(&rename("d", name)).status, Status::INVAL);
        assert_eq!(old.at_root(&rename(name, "d")).status, Status::INVAL);
        let owner = Attributes { owner: Some(text(name)), ..Attributes::default() }.fattr();
        let chown = Op::Setattr(Setattr { stateid: Stateid::ANONYMOUS, attributes: owner });
        assert_eq!(old.at_root(&[Op::Lookup(text("d")), chown]).status, Status::INVAL);
    }
    // Created by a client to which names are bytes.
    let (name, file) = ("\u{ffff}", make(&server, "\u{ffff}".as_bytes()));
    let file = Handle::new(file.as_bytes()).unwrap();
    let attributes = Bitmap::EMPTY;
    let list = Op::Readdir(Readdir { cookie: 0, verifier: [0; 8], dircount: 0, maxcount: 4096, attributes });
    let listed: ReaddirOk = old.at_root(&[list]).ok(opnum::READDIR);
    assert!(listed.entries.iter().any(|entry| entry.name == text(name)));
    let mut answer = old.at_root(&[Op::Lookup(text(name)), Op::Getfh]);
    answer.ok::<()>(opnum::LOOKUP);
    assert_eq!(answer.ok::<Handle>(opnum::GETFH), file);
    assert_eq!(old.at_root(&rename(name, "named")).status, Status::OK);
    assert_eq!(old.at_root(&rename("named", name)).status, Status::INVAL);
    let other = "\u{fffe}";
    make(&server, other.as_bytes());
    assert_eq!(old.at_root(&rename("named", other)).status, Status::OK);
    assert_eq!(old.at_root(&[Op::Remove(text(other))]).status, Status::OK);
}

/// Version 3 carries names unchanged, version 4 as text; both name the same file.
#[test]
fn a_name_that_is_not_utf8_travels_as_text_and_back() {
    let server = server();
    let old = Old::new(&server, "a");
    let file = Handle::new(make(&server, b"caf\xe9").as_bytes()).unwrap();
    let shown = "caf\u{efe9}";
    let attributes = Bitmap::EMPTY;
    let list = Op::Readdir(Readdir { cookie: 0, verifier: [0; 8], dircount: 0, maxcount: 4096, attributes });
    let listed: ReaddirOk = old.at_root(&[list]).ok(opnum::READDIR);
    assert!(listed.entries.iter().any(|entry| entry.name == text(shown)));
    let mut answer = old.at_root(&[Op::Lookup(text(shown)), Op::Getfh]);
    answer.ok::<()>(opnum::LOOKUP);
    assert_eq!(answer.ok::<Handle>(opnum::GETFH), file);
    // The encoded form of a valid character is not a second name for it.
    let twice = "\u{efc3}\u{efa9}";
    assert_eq!(old.at_root(&[create(twice, FileType::DIR)]).status, Status::BADCHAR);
    let rename = |from, to| [Op::Savefh, Op::Rename(Rename { from: text(from), to: text(to) })];
    assert_eq!(old.at_root(&rename(shown, "plain")).status, Status::OK);
    assert_eq!(old.at_root(&rename("plain", shown)).status, Status::OK);
    assert_eq!(old.at_root(&[Op::Remove(text(shown))]).status, Status::OK);
}

#[test]
fn operations_without_a_file_handle() {
    let server = server();
    let old = Old::new(&server, "a");
    let stateid = Stateid::ANONYMOUS;
    for op in [
        Op::Getattr(Bitmap::EMPTY),
        Op::Getfh,
        Op::Lookup(text("x")),
        Op::Lookupp,
        Op::Access(1),
        Op::Savefh,
        Op::Readlink,
        Op::Remove(text("x")),
        Op::Link(text("x")),
        create("x", FileType::DIR),
        read_op(stateid, 0, 1),
        Op::Commit(Commit { offset: 0, count: 0 }),
        Op::Verify(Fattr::default()),
        Op::Setattr(Setattr { stateid, attributes: Fattr::default() }),
        Op::Openattr(false),
        Op::Close(Close { seqid: 0, stateid }),
    ] {
        assert_eq!(old.run(std::slice::from_ref(&op)).status, Status::NOFILEHANDLE, "{op:?}");
    }
    assert_eq!(old.run(&[Op::Restorefh]).status, Status::RESTOREFH);
    assert_eq!(Modern::new(&server, "b").run(&[Op::Restorefh]).status, Status::NOFILEHANDLE);
    let forged = Handle::new(&[7; 40]).unwrap();
    assert_eq!(old.run(&[Op::Putfh(forged)]).status, Status::BADHANDLE);
}

#[test]
fn a_listing_fits_into_what_is_asked_for() {
    let server = server();
    let old = Old::new(&server, "a");
    let names = ["one", "two-two", "three-three-three"];
    for name in names {
        assert_eq!(old.at_root(&[create(name, FileType::DIR)]).status, Status::OK);
    }
    let list = |cookie, maxcount| {
        let attributes = Bitmap::of(&[attr::TYPE, attr::FILEID, attr::FILEHANDLE]);
        Op::Readdir(Readdir { cookie, verifier: [0; 8], dircount: 0, maxcount, attributes })
    };
    let mut complete = 0;
    for maxcount in 0..600 {
        let (mut cookie, mut seen) = (0, Vec::new());
        loop {
            let mut answer = old.at_root(&[list(cookie, maxcount)]);
            match answer.next(opnum::READDIR) {
                Status::OK => {}
                Status::TOOSMALL => break,
                other => panic!("{other}"),
            }
            assert!(answer.d.remaining() <= maxcount as usize);
            let page = ReaddirOk::parse(&mut answer.d).unwrap();
            answer.end();
            seen.extend(page.entries.iter().map(|e| e.name.0.clone()));
            cookie = page.entries.last().map_or(cookie, |e| e.cookie);
            if page.eof {
                seen.sort();
                assert_eq!(seen, [&b"one"[..], b"three-three-three", b"two-two"]);
                complete += 1;
                break;
            }
        }
    }
    assert!(complete > 300);
    for cookie in [1, 2] {
        assert_eq!(old.at_root(&[list(cookie, 4096)]).status, Status::BAD_COOKIE);
    }
    let set_only = Readdir {
        cookie: 0,
        verifier: [0; 8],
        dircount: 0,
        maxcount: 4096,
        attributes: Bitmap::of(&[attr::TIME_MODIFY_SET]),
    };
    assert_eq!(old.at_root(&[Op::Readdir(set_only)]).status, Status::INVAL);
}

#[test]
fn every_supported_attribute_has_a_value() {
    let server = server();
    for minor in 0..=2 {
        let wanted = super::super::attributes::supported(minor);
        let set_only = Bitmap::of(&[48, 54, 74, 81, 84, 85, attr::RDATTR_ERROR]);
        let ask = [Op::Putrootfh, Op::Getattr(wanted.without(set_only)), Op::Lookup(text("ram"))];
        let again = Op::Getattr(wanted.without(set_only));
        let mut answer = if minor == 0 {
            send(&server, call(0, 1, &[&ask[..], &[again]].concat()))
        } else {
            Modern { minor, ..Modern::new(&server, ["", "a", "b"][minor as usize]) }
                .run(&[&ask[..], &[again]].concat())
        };
        answer.ok::<()>(opnum::PUTROOTFH);
        let fattr: Fattr = answer.ok(opnum::GETATTR);
        assert_eq!(fattr.mask, wanted.without(set_only));
        Attributes::parse(&fattr).unwrap();
        answer.ok::<()>(opnum::LOOKUP);
        let fattr: Fattr = answer.ok(opnum::GETATTR);
        assert_eq!(fattr.mask, wanted.without(set_only));
        // They belong to this node and to no other.
        if minor == 0 {
            let there =
                |name, op| send(&server, call(0, 1, &[Op::Putrootfh, Op::Lookup(text(name)), op])).status;
            assert_eq!(there("ram", Op::Verify(fattr.clone())), Status::OK);
            assert_eq!(there("ram", Op::Nverify(fattr.clone())), Status::SAME);
            assert_eq!(there("other", Op::Nverify(fattr.clone())), Status::OK);
            assert_eq!(there("other", Op::Verify(fattr)), Status::NOT_SAME);
        }
    }
}

#[test]
fn attributes_that_cannot_be_set() {
    let server = server();
    let mut old = Old::new(&server, "a");
    let (file, _) = old.open("f", 3, 0);
    let set = |attributes| Op::Setattr(Setattr { stateid: Stateid::ANONYMOUS, attributes });
    let status = |fattr: Fattr| {
        let mut answer = old.run(&[Op::Putfh(file), set(fattr)]);
        answer.ok::<()>(opnum::PUTFH);
        let status = answer.next(opnum::SETATTR);
        let done = Bitmap::parse(&mut answer.d).unwrap();
        answer.end();
        (status, done.is_empty())
    };
    assert_eq!(status(mode(0o600)), (Status::OK, false));
    assert_eq!(status(mode(0o1_0000)), (Status::INVAL, true));
    let sized = |size| Attributes { size: Some(size), ..Attributes::default() }.fattr();
    assert_eq!(status(sized(1 << 63)), (Status::FBIG, true));
    assert_eq!(super::super::names::status(&weft_store::Error::TooLarge), Status::FBIG);
    let read_only = Attributes { link_support: Some(false), ..Attributes::default() }.fattr();
    assert_eq!(status(read_only), (Status::INVAL, true));
    let unknown = Fattr { mask: Bitmap::of(&[62]), values: Bytes::new() };
    assert_eq!(status(unknown), (Status::ATTRNOTSUPP, true));
    let short = Fattr { mask: Bitmap::of(&[attr::MODE]), values: Bytes::from_static(&[0, 0]) };
    assert_eq!(status(short), (Status::BADXDR, true));
    let owner = Attributes { owner: Some(text("nobody@example.org")), ..Attributes::default() }.fattr();
    assert_eq!(status(owner), (Status::BADOWNER, true));
    let time = SetTime::Client(Time { seconds: 0, nseconds: 1_000_000_000 });
    let time = Attributes { time_modify_set: Some(time), ..Attributes::default() }.fattr();
    assert_eq!(status(time), (Status::INVAL, true));
}

#[test]
fn renames_and_links() {
    let server = server();
    let mut old = Old::new(&server, "a");
    let (file, _) = old.open("f", 3, 0);
    for name in ["d", "full", "full2"] {
        assert_eq!(old.at_root(&[create(name, FileType::DIR)]).status, Status::OK);
    }
    for full in ["full", "full2"] {
        assert_eq!(old.at_root(&[Op::Lookup(text(full)), create("x", FileType::DIR)]).status, Status::OK);
    }
    let rename = |from: &str, to: &str| {
        old.at_root(&[Op::Savefh, Op::Rename(Rename { from: text(from), to: text(to) })]).status
    };
    assert_eq!(rename("none", "g"), Status::NOENT);
    assert_eq!(rename("f", "d"), Status::EXIST);
    assert_eq!(rename("d", "f"), Status::EXIST);
    assert_eq!(rename("full", "full2"), Status::EXIST);
    assert_eq!(rename("full", "d"), Status::OK);
    assert_eq!(rename("f", "f"), Status::OK);
    assert_eq!(rename("f", "g"), Status::OK);
    let into_itself =
        [Op::Savefh, Op::Lookup(text("d")), Op::Rename(Rename { from: text("d"), to: text("e") })];
    assert_eq!(old.at_root(&into_itself).status, Status::INVAL);
    let link =
        |name: &str| old.run(&[Op::Putfh(file), Op::Savefh, Op::Putfh(root(&server)), Op::Link(text(name))]);
    assert_eq!(link("l").status, Status::OK);
    assert_eq!(link("l").status, Status::EXIST);
    let directory = [Op::Savefh, Op::Link(text("m"))];
    assert_eq!(old.at_root(&directory).status, Status::ISDIR);
    let across = [Op::Putfh(file), Op::Savefh, Op::Putrootfh, Op::Lookup(text("other")), Op::Link(text("l"))];
    assert_eq!(old.run(&across).status, Status::XDEV);
    assert_eq!(old.at_root(&[Op::Remove(text("d"))]).status, Status::NOTEMPTY);
    assert_eq!(old.at_root(&[Op::Lookup(text("g")), Op::Lookup(text("x"))]).status, Status::NOTDIR);
}

#[test]
fn the_handle_of_what_is_gone_is_stale_unless_somebody_has_it_open() {
    let server = server();
    let mut old = Old::new(&server, "a");
    let putfh = |handle| send(&server, call(0, 1, &[Op::Putfh(handle)])).status;
    let remove = |name| send(&server, call(0, 1, &[Op::Putfh(root(&server)), Op::Remove(text(name))])).status;
    let (file, stateid) = old.open("f", share::BOTH, 0);
    let link = [Op::Putfh(file), Op::Savefh, Op::Putfh(root(&server)), Op::Link(text("l"))];
    assert_eq!(old.run(&link).status, Status::OK);
    assert_eq!(remove("f"), Status::OK);
    assert_eq!(putfh(file), Status::OK, "it has another name");
    assert_eq!(remove("l"), Status::OK);
    assert_eq!(old.status(file, read_op(stateid, 0, 1)), Status::OK, "it is open");
    // One that was replaced, and a directory.
    let make = Handle::new(make(&server, b"replaced").as_bytes()).unwrap();
    let mut answer = old.at_root(&[create("d", FileType::DIR), Op::Getfh]);
    answer.ok::<CreateOk>(opnum::CREATE);
    let folder = answer.ok(opnum::GETFH);
    let (_, _) = old.open("new", share::BOTH, 0);
    let rename = Op::Rename(Rename { from: text("new"), to: text("replaced") });
    assert_eq!(old.at_root(&[Op::Savefh, rename]).status, Status::OK);
    assert_eq!(remove("d"), Status::OK);
    assert_eq!([putfh(make), putfh(folder)], [Status::STALE, Status::STALE]);
    // The name now belongs to another file.
    let mut answer = old.at_root(&[create("d", FileType::DIR), Op::Getfh]);
    answer.ok::<CreateOk>(opnum::CREATE);
    assert_eq!(putfh(answer.ok(opnum::GETFH)), Status::OK);
}

#[test]
fn a_change_that_is_asked_for_again_is_answered_as_the_first_time() {
    let server = server();
    let old = Old::new(&server, "a");
    let make = create("d", FileType::DIR);
    let ops = [Op::Putfh(root(&server)), make.clone()];
    let first = numbered_call(1 << 31, 0, 1, &ops);
    for _ in 0..2 {
        assert_eq!(send(&server, first.clone()).status, Status::OK);
    }
    assert_eq!(old.at_root(std::slice::from_ref(&make)).status, Status::EXIST);
    // With a session, the slot decides, not the xid.
    let new = Modern::new(&server, "b");
    assert_eq!(new.at_root(&[make]).status, Status::EXIST);
}

#[test]
fn a_request_of_minor_version_0_is_hashed_only_where_its_answer_is_kept_or_its_number_known() {
    let server = server();
    let mut old = Old::new(&server, "a");
    let (file, stateid) = old.open("f", share::BOTH, 0);
    let root = root(&server);
    let hashed = |what: &[Op], xid| {
        let before = HASHED.get();
        let status = send(&server, numbered_call(xid, 0, 1, what)).status;
        (HASHED.get() - before, status)
    };
    let write = [Op::Putfh(file), write_op(stateid, 0, &[7; 8192])];
    let rename = |to| [Op::Putfh(root), Op::Savefh, Op::Rename(Rename { from: text("f"), to: text(to) })];
    let (long, longer) = ("n".repeat(250) + "1", "n".repeat(250) + "2");
    let back = Rename { from: text(&long), to: text("f") };
    let back = [Op::Putfh(root), Op::Savefh, Op::Rename(back)];
    assert_eq!(hashed(&write, 1 << 31), (0, Status::OK));
    assert_eq!(hashed(&write, 1 << 31), (0, Status::OK), "nothing was kept");
    assert_eq!(hashed(&rename(&long), 1 << 31), (1, Status::OK));
    // The same request again, and with the number of the first: one that differs in its last byte, and a much shorter
    // one.
    assert_eq!(hashed(&rename(&long), 1 << 31), (1, Status::OK));
    assert_eq!(hashed(&back, (1 << 31) + 1), (1, Status::OK));
    assert_eq!(hashed(&rename(&longer), 1 << 31), (1, Status::OK));
    assert_eq!(hashed(&write, 1 << 31), (1, Status::OK));
}

#[test]
fn a_compound_that_is_wrong_itself() {
    let server = server();

    let answer = send(&server, call(3, 1, &[Op::Putrootfh]));
    assert_eq!((answer.status, answer.count), (Status::MINOR_VERS_MISMATCH, 0));
    let answer = send(&server, call(0, 1, &[]));
    assert_eq!((answer.status, answer.count), (Status::OK, 0));
    // An unknown operation, and one that this minor version does not have.
    for number in [0_u32, 1, 2, 40, 1000] {
        let mut bytes = call(0, 1, &[Op::Putrootfh, Op::Putrootfh]).to_vec();
        let last = bytes.len() - 4;
        bytes[last..].copy_from_slice(&number.to_be_bytes());
        let mut answer = send(&server, bytes.into());
        assert_eq!(answer.status, Status::OP_ILLEGAL);
        answer.ok::<()>(opnum::PUTROOTFH);
        assert_eq!(answer.next(opnum::ILLEGAL), Status::OP_ILLEGAL);
    }
    // Truncated arguments.
    let whole = call(0, 1, &[Op::Putrootfh, Op::Lookup(text("ram"))]);
    let mut answer = send(&server, whole.slice(..whole.len() - 4));
    answer.ok::<()>(opnum::PUTROOTFH);
    assert_eq!(answer.next(opnum::LOOKUP), Status::BADXDR);
    // A million GETATTRs are carried out up to the limit.
    let announced = |minor, first: &[Op]| {
        let getattr = Op::Getattr(Bitmap::of(&[1]));
        let some = [first, &vec![getattr; 10_000][..]].concat();
        let mut bytes = call(minor, 1, &some).to_vec();
        let count = (some.len() as u32).to_be_bytes();
        let at = bytes.windows(4).position(|word| word == count).unwrap();
        bytes[at..at + 4].copy_from_slice(&1_000_000_u32.to_be_bytes());
        send(&server, bytes.into())
    };
    let answer = announced(0, &[Op::Putfh(root(&server))]);
    assert_eq!((answer.status, answer.count), (Status::RESOURCE, 129));
    let modern = Modern::new(&server, "m");
    let answer = announced(1, &[modern.sequence_op(2, 0, false), Op::Putrootfh]);
    assert_eq!((answer.status, answer.count), (Status::TOO_MANY_OPS, 1));
}
