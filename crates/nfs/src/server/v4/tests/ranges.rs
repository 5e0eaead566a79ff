//! Minor version 2: holes, copies, extended attributes.

use std::sync::atomic::Ordering;

use weft_machine::rt;
use weft_store::opens::{Caching, Form, Opening, Range, Rights};

use super::*;

use self::recalled::Recalled;

#[path = "../../../../../store/src/opens/tests/recalled.rs"]
mod recalled;

#[test]
fn holes_are_found_and_read_as_such() {
    let server = server();
    let a = Modern::new(&server, "a");
    let (file, stateid) = a.open("f", 3, 0);
    assert_eq!(a.status(file, write_op(stateid, 1 << 20, b"data")), Status::OK);
    let seek = |offset, what| {
        let mut answer = a.run(&[Op::Putfh(file), Op::Seek(Seek { stateid, offset, what })]);
        answer.ok::<()>(opnum::PUTFH);
        match answer.next(opnum::SEEK) {
            Status::OK => Ok(SeekOk::parse(&mut answer.d).unwrap().offset),
            status => Err(status),
        }
    };
    assert_eq!(seek(0, 0), Ok(1 << 20));
    assert_eq!(seek(0, 1), Ok(0));
    assert_eq!(seek(1 << 20, 1), Ok((1 << 20) + 4));
    assert_eq!(seek((1 << 20) + 4, 0), Err(Status::NXIO));
    assert_eq!(seek(0, 2), Err(Status::UNION_NOTSUPP));
    let mut answer = a.run(&[Op::Putfh(file), Op::ReadPlus(Read { stateid, offset: 0, count: 1 << 16 })]);
    answer.ok::<()>(opnum::PUTFH);
    assert!(!answer.ok::<bool>(opnum::READ_PLUS));
    assert_eq!(
        (answer.d.u32(), answer.d.u32(), answer.d.u64(), answer.d.u64()),
        (Ok(1), Ok(1), Ok(0), Ok(1 << 16))
    );
    answer.end();
    let tail = Read { stateid, offset: (1 << 20) - 4096, count: 8192 };
    let mut answer = a.run(&[Op::Putfh(file), Op::ReadPlus(tail)]);
    answer.ok::<()>(opnum::PUTFH);
    assert!(answer.ok::<bool>(opnum::READ_PLUS));
    assert_eq!(answer.d.u32(), Ok(2));
    assert_eq!((answer.d.u32(), answer.d.u64(), answer.d.u64()), (Ok(1), Ok((1 << 20) - 4096), Ok(4096)));
    assert_eq!((answer.d.u32(), answer.d.u64()), (Ok(0), Ok(1 << 20)));
    assert_eq!(&answer.d.opaque(10).unwrap()[..], b"data");
    answer.end();
    let range = |offset, length| Allocate { stateid, offset, length };
    assert_eq!(a.status(file, Op::Allocate(range(0, 4096))), Status::OK);
    assert_eq!(a.status(file, Op::Deallocate(range(1 << 20, 4096))), Status::OK);
    assert_eq!(a.status(file, Op::Allocate(range(u64::MAX, 2))), Status::INVAL);
}

#[test]
fn a_copy_needs_no_bytes_on_the_wire() {
    let server = server();
    let a = Modern::new(&server, "a");
    let (from, source) = a.open("from", 3, 0);
    assert_eq!(a.status(from, write_op(source, 0, b"hello world")), Status::OK);
    let (to, target) = a.open("to", 3, 0);
    let copy = |from_offset, to_offset, count| {
        let copy = Copy {
            from_stateid: source,
            to_stateid: target,
            from_offset,
            to_offset,
            count,
            consecutive: true,
            synchronous: true,
            servers: UpTo::default(),
        };
        a.run(&[Op::Putfh(from), Op::Savefh, Op::Putfh(to), Op::Copy(copy)])
    };
    let mut answer = copy(6, 0, 0);
    for op in [opnum::PUTFH, opnum::SAVEFH, opnum::PUTFH] {
        answer.ok::<()>(op);
    }
    assert_eq!(answer.ok::<CopyOk>(opnum::COPY).response.count, 5);
    let mut answer = a.run(&[Op::Putfh(to), read_op(target, 0, 20)]);
    answer.ok::<()>(opnum::PUTFH);
    answer.ok::<bool>(opnum::READ);
    assert_eq!(&answer.d.opaque(20).unwrap()[..], b"world");
    assert_eq!(copy(0, 0, 12).status, Status::INVAL);
    assert_eq!(a.run(&[Op::Putfh(to), Op::OffloadStatus(source)]).status, Status::BAD_STATEID);
    // A count of zero means up to the end: the locks of SMB there count.
    let opens = server.vfs(0).opens().clone();
    for name in ["from", "to"] {
        let node =
            rt::block_on(server.vfs(0).lookup(NodeId::ROOT, name.as_bytes(), false)).unwrap().unwrap().node;
        let smb = opens.try_open(node, &Opening::new(Rights::ALL, Rights::ALL, opens.key())).unwrap();
        smb.try_lock(Range::new(3, 1).unwrap(), true).unwrap();
        for count in [11, 0] {
            assert_eq!(copy(0, 0, count).status, Status::LOCKED, "{count}");
        }
        smb.unlock(Range::new(3, 1).unwrap()).unwrap();
    }
    assert_eq!(copy(0, 0, 0).status, Status::OK);
}

#[test]
fn who_caches_a_listing_hears_of_each_change_of_a_file_in_it() {
    let server = server();
    let a = Modern::new(&server, "a");
    let (from, source) = a.open("from", 3, 0);
    let (to, target) = a.open("to", 3, 0);
    assert_eq!(a.status(from, write_op(source, 0, b"hello world")), Status::OK);
    let opens = server.vfs(0).opens().clone();
    opens.cache_directories();
    let range = Allocate { stateid: target, offset: 0, length: 1 << 16 };
    let copy = Copy {
        from_stateid: source,
        to_stateid: target,
        from_offset: 0,
        to_offset: 0,
        count: 0,
        consecutive: true,
        synchronous: true,
        servers: UpTo::default(),
    };
    let at = |op| vec![Op::Putfh(to), op];
    for ops in [
        at(write_op(target, 0, b"data")),
        at(Op::Allocate(range.clone())),
        at(Op::Deallocate(range)),
        vec![Op::Putfh(from), Op::Savefh, Op::Putfh(to), Op::Copy(copy)],
    ] {
        let listing = Opening::new(Rights::READ, Rights::ALL, opens.key());
        let listing = opens.try_open(NodeId::ROOT, &listing).unwrap();
        let recalled = Arc::new(Recalled::default());
        listing.request(Form::Lease, Caching::RH, recalled.clone());
        assert_eq!(a.run(&ops).status, Status::OK, "{ops:?}");
        assert_eq!(recalled.0.load(Ordering::SeqCst), 1, "{ops:?}");
    }
}

#[test]
fn extended_attributes() {
    let server = server();
    let a = Modern::new(&server, "a");
    let (file, _) = a.open("f", 3, 0);
    let set = |option, name: &str, value: &'static [u8]| {
        let value = XattrValue(Bytes::from_static(value));
        a.status(file, Op::Setxattr(Setxattr { option, name: text(name), value }))
    };
    assert_eq!(set(2, "x", b"1"), Status::NOXATTR);
    assert_eq!(set(1, "x", b"1"), Status::OK);
    assert_eq!(set(1, "x", b"2"), Status::EXIST);
    assert_eq!(set(0, "y", b"3"), Status::OK);
    assert_eq!(set(0, "", b"3"), Status::INVAL);
    assert_eq!(set(0, "weft.dos", b"3"), Status::ACCESS);
    let mut answer = a.run(&[Op::Putfh(file), Op::Getxattr(text("x"))]);
    answer.ok::<()>(opnum::PUTFH);
    assert_eq!(&answer.ok::<XattrValue>(opnum::GETXATTR).0[..], b"1");
    let list = |cookie, maxcount| {
        let mut answer = a.run(&[Op::Putfh(file), Op::Listxattrs(Listxattrs { cookie, maxcount })]);
        answer.ok::<()>(opnum::PUTFH);
        match answer.next(opnum::LISTXATTRS) {
            Status::OK => Ok(ListxattrsOk::parse(&mut answer.d).unwrap()),
            status => Err(status),
        }
    };
    assert_eq!(list(0, 17).unwrap_err(), Status::TOOSMALL);
    let page = list(0, 24).unwrap();
    assert_eq!((page.names.0.len(), page.eof), (1, false));
    let rest = list(page.cookie, 24).unwrap();
    assert_eq!((rest.names.0, rest.eof), (vec![text("y")], true));
    assert_eq!(a.status(file, Op::Removexattr(text("x"))), Status::OK);
    assert_eq!(a.status(file, Op::Removexattr(text("x"))), Status::NOXATTR);
    assert_eq!(a.status(file, Op::Getxattr(text("x"))), Status::NOXATTR);
}
