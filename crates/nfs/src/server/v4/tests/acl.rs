//! Access control lists, and what SMB's descriptors deny to NFS.

use weft_machine::rt;
use weft_store::access;
use weft_wire::nfs3;
use weft_wire::security::{Ace as Entry, AceFlags, Dacl, SecurityDescriptor, Sid};
use weft_wire::smb2::access::AccessMask;

use super::*;

fn ace(kind: u32, flags: u32, mask: u32, who: &str) -> Ace {
    Ace { kind, flags, mask, who: text(who) }
}

fn acl(aces: &[Ace]) -> Fattr {
    Attributes { acl: Some(UpTo(aces.to_vec())), ..Attributes::default() }.fattr()
}

fn set(attributes: Fattr) -> Op {
    Op::Setattr(Setattr { stateid: Stateid::ANONYMOUS, attributes })
}

/// Attributes that depend on each other.
fn look(client: &Modern<'_>, file: Handle) -> (Vec<Ace>, u32) {
    let mut answer = client.run(&[Op::Putfh(file), Op::Getattr(Bitmap::of(&[attr::ACL, attr::MODE]))]);
    answer.ok::<()>(opnum::PUTFH);
    let values = Attributes::parse(&answer.ok(opnum::GETATTR)).unwrap();
    (values.acl.unwrap().0, values.mode.unwrap())
}

#[test]
fn a_list_says_what_the_mode_says_until_one_is_set() {
    let server = server();
    let client = Modern::new(&server, "a");
    let (file, stateid) = client.open("f", share::BOTH, 0);
    assert_eq!(client.status(file, set(mode(0o604))), Status::OK);
    let (list, _) = look(&client, file);
    let read = |ace: &Ace| ace.mask & ace_mask::READ_DATA != 0;
    let said: Vec<_> =
        list.iter().map(|ace| (ace.kind, std::str::from_utf8(&ace.who.0).unwrap(), read(ace))).collect();
    assert_eq!(
        said,
        [
            (ace_type::ALLOWED, "OWNER@", true),
            (ace_type::ALLOWED, "GROUP@", false),
            (ace_type::DENIED, "GROUP@", true),
            (ace_type::ALLOWED, "EVERYONE@", true),
        ]
    );
    // The ACL is kept as set, and the mode becomes the closest match.
    let mine = [
        ace(ace_type::DENIED, 0, ace_mask::WRITE_DATA, "1001"),
        ace(ace_type::ALLOWED, 0, 0x1f_01ff, "OWNER@"),
        ace(ace_type::ALLOWED, 0x40, ace_mask::READ_DATA, "GROUP@"),
        ace(ace_type::ALLOWED, 0x40, ace_mask::READ_DATA | ace_mask::WRITE_DATA, "200"),
        ace(ace_type::ALLOWED, 0, ace_mask::READ_DATA, "S-1-5-21-1-2-3-1000"),
    ];
    assert_eq!(client.status(file, set(acl(&mine))), Status::OK);
    let (list, now) = look(&client, file);
    assert_eq!((&list[..], now & 0o77), (&mine[..], 0o40));
    // Unknown principals, and entries that are not kept.
    for (wrong, status) in [
        (ace(ace_type::ALLOWED, 0, 1, "alice@example.org"), Status::BADOWNER),
        (ace(ace_type::AUDIT, 0, 1, "EVERYONE@"), Status::ATTRNOTSUPP),
        (ace(9, 0, 1, "EVERYONE@"), Status::INVAL),
    ] {
        assert_eq!(client.status(file, set(acl(&[wrong]))), status);
    }
    assert_eq!(client.status(file, Op::Close(Close { seqid: 0, stateid })), Status::OK);
}

#[test]
fn what_a_descriptor_denies_is_denied_by_every_version() {
    let server = server();
    let client = Modern::new(&server, "a");
    let (file, stateid) = client.open("f", share::BOTH, 0);
    assert_eq!(client.status(file, write_op(stateid, 0, b"secret")), Status::OK);
    assert_eq!(client.status(file, Op::Close(Close { seqid: 0, stateid })), Status::OK);
    let vfs = &server.vfs(0);
    let node = opens::file_node(&server, file);
    // As an SMB client sets it: alice has full access, this Unix user may read.
    let guard = |mask: AccessMask| {
        let alice: Sid = "S-1-5-21-1-2-3-1000".parse().unwrap();
        let dacl = Dacl::List(vec![
            Entry::allow(alice.clone(), AccessMask::FILE_ALL, AceFlags::NONE),
            Entry::allow(Sid::unix_user(1), mask, AceFlags::NONE),
        ]);
        let descriptor = SecurityDescriptor { owner: Some(alice), dacl, ..SecurityDescriptor::default() };
        rt::block_on(access::keep(vfs, node, &descriptor)).unwrap().unwrap();
    };
    let open = |access| client.at_root(&[client.open_op("f", access, 0, None)]).status;
    let old_read = || {
        let file = nfs3::Handle::new(file.as_bytes()).unwrap();
        let args = nfs3::ReadArgs { file, offset: 0, count: 6 };
        crate::server::tests::status_of(&server, nfs3::procedure::READ, &args)
    };
    let allowed = |wanted| {
        let mut answer = client.run(&[Op::Putfh(file), Op::Access(wanted)]);
        answer.ok::<()>(opnum::PUTFH);
        answer.ok::<AccessOk>(opnum::ACCESS).access
    };
    assert_eq!((old_read(), allowed(0x3f) & 0x0d), (nfs3::Status::OK, 0x0d));
    guard(AccessMask::FILE_GENERIC_READ);
    assert_eq!((old_read(), allowed(0x3f) & 0x0d), (nfs3::Status::OK, 0x01));
    assert_eq!((open(share::READ), open(share::BOTH)), (Status::OK, Status::ACCESS));
    assert_eq!(client.status(file, write_op(Stateid::ANONYMOUS, 0, b"x")), Status::ACCESS);
    assert_eq!(client.status(file, set(mode(0o666))), Status::ACCESS);
    assert_eq!(client.at_root(&[Op::Remove(text("f"))]).status, Status::ACCESS);
    // The descriptor of a file in the server's cache is read again after a change.
    guard(AccessMask::NONE);
    assert_eq!((old_read(), allowed(0x3f) & 0x0d), (nfs3::Status::ACCES, 0));
    assert_eq!(client.status(file, read_op(Stateid::ANONYMOUS, 0, 1)), Status::ACCESS);
    guard(AccessMask::FILE_ALL);
    assert_eq!((old_read(), open(share::BOTH)), (nfs3::Status::OK, Status::OK));
}

#[test]
fn permissions_that_any_version_sets_change_the_list_that_smb_shows_too() {
    let server = server();
    let client = Modern::new(&server, "a");
    let (file, _) = client.open("f", share::BOTH, 0);
    let vfs = &server.vfs(0);
    let node = opens::file_node(&server, file);
    let alice: Sid = "S-1-5-21-1-2-3-1000".parse().unwrap();
    let token =
        access::Token { user: alice.clone(), group: Sid::unix_group(9), others: vec![Sid::everyone()] };
    // As an SMB client sets it: alice has full access, and everyone may read and write.
    let protect = || {
        let all = AceFlags::NONE;
        let dacl = Dacl::List(vec![
            Entry::allow(alice.clone(), AccessMask::FILE_ALL, all),
            Entry::allow(Sid::everyone(), AccessMask::FILE_ALL, all),
        ]);
        let descriptor = SecurityDescriptor { dacl, ..SecurityDescriptor::default() };
        rt::block_on(access::keep(vfs, node, &descriptor)).unwrap().unwrap();
    };
    // What SMB then grants alice.
    let granted = || {
        let look = async { access::look(vfs, &vfs.getattr(node).await.unwrap(), &token).await.unwrap() };
        rt::block_on(look).unwrap().grants(&token)
    };
    let old = |bits: u32| {
        let object = nfs3::Handle::new(file.as_bytes()).unwrap();
        let attributes = nfs3::SetAttributes { mode: Some(bits), ..nfs3::SetAttributes::default() };
        let args = nfs3::SetattrArgs { object, attributes, guard: None };
        let status = crate::server::tests::status_of(&server, nfs3::procedure::SETATTR, &args);
        assert_eq!(status, nfs3::Status::OK);
    };
    let new = |bits: u32| assert_eq!(client.status(file, set(mode(bits))), Status::OK);
    for (bits, reads, writes) in [(0o600, false, false), (0o640, true, false), (0o660, true, true)] {
        for by in [&old as &dyn Fn(u32), &new] {
            protect();
            assert!(granted().contains(AccessMask::FILE_READ_DATA | AccessMask::FILE_WRITE_DATA));
            by(bits);
            let granted = granted();
            assert_eq!(granted.contains(AccessMask::FILE_READ_DATA), reads, "{bits:o}");
            assert_eq!(granted.contains(AccessMask::FILE_WRITE_DATA), writes, "{bits:o}");
            let (list, now) = look(&client, file);
            assert_eq!(now & 0o777, bits);
            let everyone = list.iter().filter(|ace| &ace.who.0[..] == b"EVERYONE@");
            let others = everyone.fold(0, |mask, ace| mask | ace.mask);
            assert_eq!(others & (ace_mask::READ_DATA | ace_mask::WRITE_DATA), 0, "{bits:o}: {list:?}");
        }
    }
}

#[test]
fn a_directory_hands_down_what_it_was_given() {
    let server = server();
    let client = Modern::new(&server, "a");
    let dir = Op::Create(Create {
        kind: CreateType::Other(FileType::DIR),
        name: text("d"),
        attributes: Fattr::default(),
    });
    let mut answer = client.at_root(&[dir, Op::Getfh]);
    answer.ok::<CreateOk>(opnum::CREATE);
    let dir: Handle = answer.ok(opnum::GETFH);
    let inherit = 0x1 | 0x2;
    let list = [
        ace(ace_type::ALLOWED, inherit, 0x1f_01ff, "OWNER@"),
        ace(ace_type::ALLOWED, inherit, ace_mask::READ_DATA, "7"),
    ];
    assert_eq!(client.status(dir, set(acl(&list))), Status::OK);
    let how = Some(CreateHow::Unchecked(Fattr::default()));
    let mut answer = client.run(&[Op::Putfh(dir), client.open_op("f", share::READ, 0, how), Op::Getfh]);
    answer.ok::<()>(opnum::PUTFH);
    answer.ok::<OpenOk>(opnum::OPEN);
    let file: Handle = answer.ok(opnum::GETFH);
    let (list, _) = look(&client, file);
    let who: Vec<_> = list.iter().map(|ace| &ace.who.0[..]).collect();
    assert_eq!(who, [&b"OWNER@"[..], b"7"]);
    assert!(list.iter().all(|ace| ace.flags & inherit == 0));
}
