//! Files out of the ordinary: some whose attributes cannot be read, some that chattr(1) protects, and links to those of others.

use rustix::fs::{IFlags, ioctl_getflags, ioctl_setflags};
use rustix::io::Errno;
use weft_store::backend::Dir;
use weft_store::{Backend, Caller, Kind, Op, Outcome as Done, SetAttr, Unread};
use weft_wire::nfs4::{self, Bitmap, Op as Op4, Readdir, Stateid, attr};

use super::*;
use crate::server::v4::tests::{Old, text};

/// An in-memory file system on which the attributes of "broken" cannot be read.
struct Broken(Ram);

const UNREAD: Unread = Unread { fileid: 77, kind: Some(Kind::Dir), why: Errno::ACCESS };

impl Backend for Broken {
    fn kind(&self) -> &'static str {
        "ram"
    }

    fn submit(&self, op: Op, by: Caller) -> LocalBoxFuture<'_, Result<Done, weft_store::Error>> {
        Box::pin(async move {
            let mut done = self.0.submit(op, by).await?;
            if let Done::Entries(listing) = &mut done {
                let broken = listing.entries.iter_mut().filter(|entry| entry.name == b"broken");
                broken.for_each(|entry| entry.attr = Err(UNREAD));
            }
            Ok(done)
        })
    }
}

fn served(vfs: Vfs, decides: bool) -> Arc<Server> {
    let policy = Policy { decides, squash_root: true };
    let (shares, pool, limits) = (vec![Share::new("ram", vfs)], Pool::new(16 << 20), Limits::default());
    Server::new(Config { shares, pool, limits, policy, durable: None })
}

/// A user's FUSE mount is like this for everybody else, root included.
#[test]
fn a_file_whose_attributes_cannot_be_read_is_listed_with_the_others() {
    let server = served(Vfs::new(Broken(Ram::new(16 << 20))), false);
    make(&server, b"whole");
    make(&server, b"broken");
    let dir = root(&server);
    let args = ReaddirArgs { dir, cookie: 0, verifier: [0; 8], count: 4096 };
    let listed: Outcome<ReaddirOk, AttrOnly> = results(&server, nfs(procedure::READDIR, &args));
    let listed = listed.unwrap().entries;
    let names: Vec<_> = listed.iter().map(|entry| &entry.name.0[..]).collect();
    assert_eq!(names, [&b"."[..], b"..", b"whole", b"broken"]);
    assert_eq!(listed[3].fileid, 77);
    let args = ReaddirplusArgs { dir, cookie: 0, verifier: [0; 8], dircount: 4096, maxcount: 8192 };
    let listed: Outcome<ReaddirplusOk, AttrOnly> = results(&server, nfs(procedure::READDIRPLUS, &args));
    let listed = listed.unwrap().entries;
    assert!(listed[2].attributes.is_some() && listed[2].handle.is_some());
    assert_eq!((listed[3].fileid, &listed[3].attributes, &listed[3].handle), (77, &None, &None));

    let old = Old::new(&server, "a");
    let list = |attributes| {
        old.at_root(&[Op4::Readdir(Readdir {
            cookie: 0,
            verifier: [0; 8],
            dircount: 0,
            maxcount: 8192,
            attributes,
        })])
    };
    let wanted = [attr::TYPE, attr::SIZE, attr::FILEID, attr::MOUNTED_ON_FILEID];
    assert_eq!(list(Bitmap::of(&wanted)).status, nfs4::Status::ACCESS);
    let [kind, size, fileid, mounted_on] = wanted;
    let mut answer = list(Bitmap::of(&[kind, size, fileid, mounted_on, attr::RDATTR_ERROR]));
    let listed: nfs4::ReaddirOk = answer.ok(nfs4::opnum::READDIR);
    let values = |n: usize| nfs4::Attributes::parse(&listed.entries[n].attributes).unwrap();
    assert_eq!((values(0).rdattr_error, values(0).size), (Some(0), Some(0)));
    let broken = values(1);
    assert_eq!((broken.rdattr_error, broken.size, broken.fileid), (Some(nfs4::Status::ACCESS.0), None, None));
    assert_eq!((broken.kind, broken.mounted_on_fileid), (Some(nfs4::FileType::DIR), Some(77)));
}

#[test]
fn a_file_that_became_append_only_or_immutable_is_not_overwritten() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("f");
    std::fs::write(&path, b"first").unwrap();
    let server = served(Dir::open(folder.path()).unwrap().into(), false);
    let node = rt::block_on(server.vfs(0).lookup(NodeId::ROOT, b"f", false)).unwrap().unwrap().node;
    let file = handle_of(&server, 0, node);
    let write = || {
        let head = WriteHead { file, offset: 0, count: 5, stable: Stable::FileSync };
        let args = WriteArgs { head, data: Bytes::from_static(b"hello").into() };
        let done: Outcome<WriteOk, WccOnly> = results(&server, nfs(procedure::WRITE, &args));
        done.map_or_else(|failed| failed.status, |_| Status::OK)
    };
    let old = Old::new(&server, "a");
    let write_4 = || {
        let (stable, data) = (nfs4::Stable::FileSync, Bytes::from_static(b"howdy").into());
        let write = nfs4::Write { stateid: Stateid::ANONYMOUS, offset: 0, stable, data };
        let file = nfs4::Handle::new(file.as_bytes()).unwrap();
        old.run(&[Op4::Putfh(file), Op4::Write(write)]).status
    };
    // The server keeps a descriptor from now on.
    assert_eq!(write(), Status::OK);
    let opened = std::fs::File::open(&path).unwrap();
    let usual = ioctl_getflags(&opened).unwrap_or(IFlags::empty());
    for flag in [IFlags::APPEND, IFlags::IMMUTABLE] {
        if let Err(e) = ioctl_setflags(&opened, usual | flag) {
            println!("SKIPPED: {flag:?} cannot be set here: {e}");
            return;
        }
        let (done, done_4) = (write(), write_4());
        ioctl_setflags(&opened, usual).unwrap();
        assert_eq!((done, done_4), (Status::PERM, nfs4::Status::PERM), "{flag:?}");
        assert_eq!(std::fs::read(&path).unwrap(), b"hello");
    }
    assert_eq!((write(), write_4()), (Status::OK, nfs4::Status::OK));
}

/// As fs.protected_hardlinks has it. Where the kernel judges, it does so itself.
#[test]
fn a_user_links_files_that_are_his_or_that_he_may_write() {
    let server = served(Vfs::new(Ram::new(16 << 20)), true);
    let vfs = server.vfs(0);
    let open = SetAttr { mode: Some(0o777), ..SetAttr::default() };
    rt::block_on(vfs.setattr(NodeId::ROOT, open)).unwrap().unwrap();
    let by = |uid: u32| Credential::Sys(AuthSys::new(Bytes::from_static(b"host"), uid, uid));
    let linked_by = |uid: u32, file: Handle, name: &'static [u8]| {
        let link = DirOp { dir: root(&server), name: Name(Bytes::from_static(name)) };
        let call = call_of(nfs3::PROGRAM, nfs3::VERSION, procedure::LINK, by(uid), &LinkArgs { file, link });
        Status(reply_to(&server, call).1.u32().unwrap())
    };
    // A repeated call would be answered from memory, so each has a file of its own.
    let cases: [(u32, bool, &'static [u8]); 5] = [
        (0o600, false, b"a"),
        (0o644, false, b"b"),
        (0o666, true, b"c"),
        (0o4666, false, b"d"),
        (0o2676, false, b"e"),
    ];
    for (mode, may, name) in cases {
        let file = make(&server, name);
        let node = node_of(&server, &file);
        let set = SetAttr { mode: Some(mode), uid: Some(2000), gid: Some(2000), ..SetAttr::default() };
        rt::block_on(vfs.setattr(node, set)).unwrap().unwrap();
        let expected = if may { Status::OK } else { Status::PERM };
        assert_eq!(linked_by(3000, file, b"his"), expected, "{mode:o}");
        let mut old = Old::new(&server, "a");
        old.uid = 3000;
        let from = nfs4::Handle::new(file.as_bytes()).unwrap();
        let to = nfs4::Handle::new(root(&server).as_bytes()).unwrap();
        let link = Op4::Link(text("his4"));
        let status = old.run(&[Op4::Putfh(from), Op4::Savefh, Op4::Putfh(to), link]).status;
        assert_eq!(status.0, expected.0, "{mode:o}");
        assert_eq!(linked_by(2000, file, b"own"), Status::OK, "{mode:o}");
        for name in [&b"his"[..], b"his4", b"own"] {
            if let Err(e) = rt::block_on(vfs.remove(NodeId::ROOT, name)).unwrap() {
                assert!(!may && matches!(e, weft_store::Error::NotFound), "{mode:o}: {e}");
            }
        }
    }
}
