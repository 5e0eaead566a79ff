//! Version 4 in a folder whose callers the kernel judges: opens, state ids and attributes. `server::tests::judged` has the
//! table of rights; what is here exists only in version 4. Only root can act for others.

use std::os::unix::fs::{MetadataExt, PermissionsExt};

use weft_machine::credentials;
use weft_store::backend::Dir;
use weft_store::rules::ActsAs;

use super::*;

const OWNER: u32 = 2001;
const NAMED: u32 = 2004;
const STRANGER: u32 = 2006;

/// An ACL as Linux stores it, which lets one user read and write besides the owner.
fn lets(uid: u32) -> Vec<u8> {
    let mut bytes = 2_u32.to_le_bytes().to_vec();
    for (tag, permissions, id) in [
        (0x01_u16, 6_u16, u32::MAX),
        (0x02, 6, uid),
        (0x04, 0, u32::MAX),
        (0x10, 6, u32::MAX),
        (0x20, 0, u32::MAX),
    ] {
        bytes.extend(tag.to_le_bytes());
        bytes.extend(permissions.to_le_bytes());
        bytes.extend(id.to_le_bytes());
    }
    bytes
}

#[test]
fn an_acl_admits_whom_it_names_to_opens_and_a_state_id_admits_nobody_else() {
    if let Err(e) = credentials::check() {
        println!("SKIPPED: only root can act for other users: {e}");
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    std::fs::set_permissions(folder.path(), PermissionsExt::from_mode(0o777)).unwrap();
    let mut share = Share::new("folder", Dir::open(folder.path()).unwrap().into());
    share.rules.acts = ActsAs::Caller;
    let (pool, limits) = (weft_machine::Pool::new(16 << 20), Limits::default());
    let policy = Policy { decides: true, squash_root: true };
    let server = Server::new(Config { shares: vec![share], pool, limits, policy, durable: None });

    let mut old = Old::new(&server, "a");
    old.uid = OWNER;
    let (file, stateid) = old.open("f", 3, 0);
    assert_eq!(old.status(file, write_op(stateid, 0, b"mine")), Status::OK);
    let path = folder.path().join("f");
    let meta = path.metadata().unwrap();
    assert_eq!((meta.uid(), meta.gid()), (OWNER, OWNER));

    let none = rustix::fs::XattrFlags::empty();
    if let Err(e) = rustix::fs::setxattr(&path, "system.posix_acl_access", &lets(NAMED), none) {
        println!("SKIPPED: no POSIX ACLs: {e}");
        return;
    }
    let granted = |old: &Old<'_>| {
        let mut answer =
            old.run(&[Op::Putfh(file), Op::Access(access::READ | access::MODIFY | access::EXECUTE)]);
        answer.ok::<()>(opnum::PUTFH);
        answer.ok::<AccessOk>(opnum::ACCESS).access
    };
    for (uid, may) in [(NAMED, true), (STRANGER, false)] {
        let expected = if may { Status::OK } else { Status::ACCESS };
        let mut other = Old::new(&server, if may { "named" } else { "stranger" });
        other.uid = uid;
        assert_eq!(granted(&other), if may { access::READ | access::MODIFY } else { 0 });
        for opened in [1, 2, 3] {
            let open = other.open_op(other.seqid, "f", opened, 0, None);
            other.seqid += 1;
            assert_eq!(other.at_root(&[open]).status, expected, "uid {uid} opens for {opened}");
        }
        old.uid = uid;
        assert_eq!(old.status(file, write_op(stateid, 0, b"else")), expected);
        assert_eq!(old.status(file, read_op(stateid, 0, 4)), expected);
        let set = Op::Setattr(Setattr { stateid, attributes: mode(0o666) });
        assert_eq!(old.status(file, set), Status::PERM);
    }

    // The owner keeps what he has opened, and the kernel refuses a new open.
    old.uid = OWNER;
    let set = |attributes| Op::Setattr(Setattr { stateid, attributes });
    assert_eq!(old.status(file, set(mode(0))), Status::OK);
    assert_eq!(old.status(file, write_op(stateid, 0, b"mine")), Status::OK);
    let empty = Attributes { size: Some(0), ..Attributes::default() }.fattr();
    assert_eq!(old.status(file, set(empty)), Status::OK);
    assert_eq!(path.metadata().unwrap().len(), 0);
    let mut again = Old::new(&server, "again");
    again.uid = OWNER;
    assert_eq!(again.at_root(&[again.open_op(0, "f", 2, 0, None)]).status, Status::ACCESS);
}
