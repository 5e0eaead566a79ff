//! Files out of the ordinary: some whose attributes cannot be read, and some that chattr(1) protects.

use rustix::fs::{IFlags, ioctl_getflags, ioctl_setflags};
use rustix::io::Errno;
use weft_store::backend::Dir;
use weft_store::{Backend, Caller, Kind, Op, Outcome as Done, Unread};
use weft_wire::nfs4::{self, Bitmap, Op as Op4, Readdir, Stateid, attr};

use super::*;
use crate::server::v4::tests::Old;

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
