//! Files whose attributes cannot be read.

use rustix::io::Errno;
use weft_store::{Backend, Caller, Kind, Op, Outcome as Done, Unread};
use weft_wire::nfs4::{self, Bitmap, Op as Op4, Readdir, attr};

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
