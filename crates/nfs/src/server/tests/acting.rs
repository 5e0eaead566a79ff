//! What callers of a folder may do although the kernel, asked by the same calls, would refuse them, and what their refused
//! calls must not do. Only root can act for others.

use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};

use weft_machine::credentials;
use weft_store::backend::Dir;
use weft_store::opens::{Caching, Form, Holder, Opening, Recall, Rights};
use weft_store::rules::ActsAs;
use weft_wire::nfs3::{self, SetAttributes, SetTime, SetattrArgs, procedure};

use super::*;

const HOST: &str = "192.0.2.1:700";
const OWNER: u32 = 2001;
const GROUP: u32 = 3000;

/// A folder, and a server that uses it as its callers.
fn served(story: impl AsyncFnOnce(&Path, Arc<Server>)) {
    if let Err(e) = credentials::check() {
        println!("SKIPPED: only root can act for other users: {e}");
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    std::fs::set_permissions(folder.path(), PermissionsExt::from_mode(0o755)).unwrap();
    let mut share = Share::new("folder", Dir::open(folder.path()).unwrap().into());
    share.rules.acts = ActsAs::Caller;
    let policy = Policy { decides: true, squash_root: true };
    let (shares, pool, limits) = (vec![share], Pool::new(0), Limits::default());
    let server = Server::new(Config { shares, pool, limits, policy, durable: None });
    rt::block_on(story(folder.path(), server)).unwrap();
}

fn sys(uid: u32, gid: u32) -> Credential {
    Credential::Sys(AuthSys::new(Bytes::from_static(b"host"), uid, gid))
}

/// A file of the owner and the group, which may both write to it.
async fn file(folder: &Path, server: &Server) -> (NodeId, Handle) {
    let path = folder.join("f");
    std::fs::write(&path, b"content").unwrap();
    chown(&path, Some(OWNER), Some(GROUP)).unwrap();
    std::fs::set_permissions(&path, PermissionsExt::from_mode(0o664)).unwrap();
    let node = server.vfs(0).lookup(NodeId::ROOT, b"f", false).await.unwrap().node;
    let id = FileId { share: server.share(0).key(), node };
    (node, server.handles.make(&server.shares.now(), id).await.unwrap())
}

async fn set(server: &Server, who: Credential, object: Handle, attributes: SetAttributes) -> Status {
    let args = SetattrArgs { object, attributes, guard: None };
    let number = (nfs3::PROGRAM, nfs3::VERSION, procedure::SETATTR);
    let done: Outcome<WccOnly, WccOnly> = results_for_as(server, HOST, who, number, &args).await.unwrap();
    done.map_or_else(|failed| failed.status, |_| Status::OK)
}

/// What Linux's ftruncate(2) and O_TRUNC send.
#[test]
fn who_may_write_truncates_a_file_and_sets_the_time_of_that() {
    served(async |folder, server| {
        let (_, object) = file(folder, &server).await;
        let truncate = || SetAttributes { size: Some(3), mtime: SetTime::Server, ..SetAttributes::default() };
        assert_eq!(set(&server, sys(2006, 3008), object, truncate()).await, Status::ACCES);
        assert_eq!(folder.join("f").metadata().unwrap().len(), 7);
        assert_eq!(set(&server, sys(2002, GROUP), object, truncate()).await, Status::OK);
        assert_eq!(folder.join("f").metadata().unwrap().size(), 3);
    });
}

/// Counts the recalls of what it caches.
#[derive(Default)]
struct Recalls(AtomicUsize);

impl Holder for Recalls {
    fn recall(&self, _: Recall) -> bool {
        self.0.fetch_add(1, Ordering::Relaxed);
        true
    }
}

#[test]
fn a_refused_caller_takes_nothing_from_who_caches_the_file() {
    served(async |folder, server| {
        let (node, object) = file(folder, &server).await;
        let opens = server.vfs(0).opens().clone();
        let open = opens.try_open(node, &Opening::new(Rights::READ, Rights::ALL, opens.key())).unwrap();
        let recalls = Arc::new(Recalls::default());
        let (granted, _) = open.request(Form::Lease, Caching::R, recalls.clone());
        assert_eq!(granted, Caching::R);
        let touch =
            || SetAttributes { mtime: SetTime::Server, atime: SetTime::Server, ..SetAttributes::default() };
        assert_eq!(set(&server, sys(2006, 3008), object, touch()).await, Status::ACCES);
        assert_eq!(recalls.0.load(Ordering::Relaxed), 0);
        assert_eq!(set(&server, sys(2002, GROUP), object, touch()).await, Status::OK);
        assert_eq!(recalls.0.load(Ordering::Relaxed), 1);
    });
}

#[test]
fn a_folder_below_a_private_one_is_mounted() {
    served(async |folder, server| {
        let private = folder.join("private");
        std::fs::create_dir_all(private.join("public")).unwrap();
        std::fs::set_permissions(&private, PermissionsExt::from_mode(0o700)).unwrap();
        let number = (mount::PROGRAM, mount::VERSION, mount::procedure::MNT);
        let path = DirPath(Bytes::from_static(b"/folder/private/public"));
        for who in [sys(0, 0), sys(2006, 3008), Credential::None] {
            let mounted: MountResult = results_for_as(&server, HOST, who, number, &path).await.unwrap();
            assert!(matches!(mounted, MountResult::Ok { .. }), "{mounted:?}");
        }
    });
}
