//! Every kind of file (in a folder, in memory, without a descriptor, a volume), however late it answers, is served by SMB and
//! NFS, over TCP, iWARP and shared memory. Its errors reach the client, and the connection continues.
#![forbid(unsafe_code)]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bytes::Bytes;
use weft_machine::{Pool, rt};
use weft_rdma::{Provider, iwarp, shm};
use weft_store::backend::{Dir, Ram, ShareVolume, Shelf, volumes};
use weft_store::{Exists, Make, NodeId, SetAttr, Vfs, volume};

use self::far::Far;

#[path = "../../store/src/backend/tests/far.rs"]
mod far;
mod served;

/// The API for writing a backend.
mod api {
    pub use weft_store::*;
}

/// Too large to travel inside a message, and not a multiple of a page.
const SIZE: usize = (256 << 10) + 7;
/// Small enough for a READ that is answered at once.
const SHORT: usize = 100;
const VOLUME: usize = 1 << 20;

/// A share of one file, `file`, of which every operation comes late, and fails where that is said.
struct Late {
    vfs: Vfs,
    fails: Arc<AtomicBool>,
    _folder: tempfile::TempDir,
}

/// One wrapper over all that can be behind a file.
async fn late(what: &str) -> Late {
    let folder = tempfile::tempdir().unwrap();
    let far = match what {
        "dir" => Far::with_descriptors(Dir::open(folder.path()).unwrap()),
        "ram" => Far::with_descriptors(Ram::new(16 << 20)),
        "without descriptors" => Far::with_descriptors(Far::new(Ram::new(16 << 20))),
        "volume" => Far::with_descriptors(shelf(&folder)),
        other => panic!("{other}"),
    };
    let (fails, vfs) = (far.fails.clone(), Vfs::new(far));
    if what != "volume" {
        vfs.create(NodeId::ROOT, b"file", Make::File, Exists::Fail, SetAttr::default()).await.unwrap();
    }
    Late { vfs, fails, _folder: folder }
}

/// A share of one volume, `file`.
fn shelf(folder: &tempfile::TempDir) -> Shelf<volumes::Volumes> {
    let known = volume::Volumes::at(folder.path());
    let create = volume::Create {
        storage: volume::Storage::Ram,
        size: Some(VOLUME as u64),
        allocate: false,
        direct: false,
        id: [1; 16],
        created: 0,
    };
    known.create("file", &create).unwrap();
    let open = known.open("file", &Pool::new(1 << 20)).unwrap();
    let (block, content) = (open.block.clone(), open.content.clone());
    volumes::Volumes::shelf(vec![ShareVolume { name: "file".into(), block, content, read_only: false }])
}

const SUBJECTS: [&str; 4] = ["dir", "ram", "without descriptors", "volume"];

fn pattern() -> Bytes {
    (0..SIZE).map(|n| (n * 7) as u8).collect::<Vec<u8>>().into()
}

fn providers(pool: &Pool) -> [Box<dyn Provider>; 2] {
    [
        Box::new(iwarp::Provider::new(pool.clone(), iwarp::Config::default())),
        Box::new(shm::Provider::new(pool.clone(), shm::Config::default())),
    ]
}

#[test]
fn smb_serves_whatever_is_behind_a_file() {
    rt::block_on(async {
        let pool = Pool::new(256 << 20);
        let providers = providers(&pool);
        let ways = [None, Some(&providers[0]), Some(&providers[1])];
        for (what, by) in SUBJECTS.iter().flat_map(|what| ways.map(|by| (*what, by))) {
            let Late { vfs, fails, _folder } = late(what).await;
            println!("{what} over {}", by.map_or("tcp", |provider| provider.name()));
            let server = served::smb(vfs, &pool);
            let channel = match by {
                None => served::smb_over_tcp(server, &pool).await,
                Some(provider) => served::smb_over_rdma(server, &**provider, &pool).await,
            };
            let (session, file) = served::open(channel, &pool).await;
            let data = pattern();
            file.write(0, data.clone()).await.unwrap();
            assert_eq!(file.read(0, SIZE).await.unwrap(), data);
            assert_eq!(file.read(1, SHORT).await.unwrap(), data.slice(1..1 + SHORT));
            file.flush().await.unwrap();
            fails.store(true, Ordering::SeqCst);
            file.read(0, SHORT).await.unwrap_err();
            file.write(0, data.slice(..SHORT)).await.unwrap_err();
            fails.store(false, Ordering::SeqCst);
            assert_eq!(file.read(0, SIZE).await.unwrap(), data);
            session.logoff().await.unwrap();
        }
    })
    .unwrap();
}

#[test]
fn nfs_serves_whatever_is_behind_a_file() {
    rt::block_on(async {
        let pool = Pool::new(256 << 20);
        let providers = providers(&pool);
        let ways = [None, Some(&providers[0]), Some(&providers[1])];
        for (what, by) in SUBJECTS.iter().flat_map(|what| ways.map(|by| (*what, by))) {
            let Late { vfs, fails, _folder } = late(what).await;
            println!("{what} over {}", by.map_or("tcp", |provider| provider.name()));
            let server = served::nfs(vfs, &pool);
            let mount = match by {
                None => served::mounted_over_tcp(server, &pool).await,
                Some(provider) => served::mounted_over_rdma(server, &**provider, &pool).await,
            };
            let file = mount.open("file").await.unwrap();
            let data = pattern();
            file.write(0, data.clone()).await.unwrap();
            assert_eq!(file.read(0, SIZE).await.unwrap(), data);
            assert_eq!(file.read(1, SHORT).await.unwrap(), data.slice(1..1 + SHORT));
            fails.store(true, Ordering::SeqCst);
            file.read(0, SHORT).await.unwrap_err();
            file.write(0, data.slice(..SHORT)).await.unwrap_err();
            fails.store(false, Ordering::SeqCst);
            assert_eq!(file.read(0, SIZE).await.unwrap(), data);
        }
    })
    .unwrap();
}
