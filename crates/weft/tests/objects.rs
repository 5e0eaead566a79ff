//! A file without a descriptor on the server is served like any other, by SMB and NFS, over TCP, iWARP and shared
//! memory; errors of its backend reach the client, and the connection continues.
#![forbid(unsafe_code)]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bytes::Bytes;
use weft_machine::{Listener, Pool, Stream, rt};
use weft_nfs::client::{Mount, SetAttributes};
use weft_nfs::server as nfsd;
use weft_rdma::{Provider, iwarp, shm};
use weft_store::Vfs;
use weft_store::backend::Ram;
use weft_transport::record;

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

fn far() -> (Vfs, Arc<AtomicBool>) {
    let far = Far::new(Ram::new(16 << 20));
    let fails = far.fails.clone();
    (Vfs::new(far), fails)
}

fn pattern() -> Bytes {
    (0..SIZE).map(|n| (n * 7) as u8).collect::<Vec<u8>>().into()
}

fn providers(pool: &Pool) -> [Box<dyn Provider>; 2] {
    [
        Box::new(iwarp::Provider::new(pool.clone(), iwarp::Config::default())),
        Box::new(shm::Provider::new(pool.clone(), shm::Config::default())),
    ]
}

async fn mounted_over_tcp(server: Arc<nfsd::Server>, pool: &Pool) -> Mount {
    let listener = Listener::bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let addr = listener.local_addr();
    let buffers = pool.clone();
    rt::spawn(async move {
        let stream = Stream::from_socket(listener.accept().await.unwrap()).unwrap();
        server.serve(record::Record::new(stream, buffers, record::Config::default())).await.unwrap();
    })
    .detach();
    let stream = Stream::connect(addr).await.unwrap();
    served::mounted(record::Record::new(stream, pool.clone(), record::Config::default()), pool).await
}

#[test]
fn smb_serves_files_without_descriptors() {
    rt::block_on(async {
        let pool = Pool::new(256 << 20);
        let providers = providers(&pool);
        for by in [None, Some(&providers[0]), Some(&providers[1])] {
            let (vfs, fails) = far();
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
fn nfs_serves_files_without_descriptors() {
    rt::block_on(async {
        let pool = Pool::new(256 << 20);
        let providers = providers(&pool);
        for by in [None, Some(&providers[0]), Some(&providers[1])] {
            let (vfs, fails) = far();
            let server = served::nfs(vfs, &pool);
            let mount = match by {
                None => mounted_over_tcp(server, &pool).await,
                Some(provider) => served::mounted_over_rdma(server, &**provider, &pool).await,
            };
            let file = mount.create("file", SetAttributes::default()).await.unwrap();
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
