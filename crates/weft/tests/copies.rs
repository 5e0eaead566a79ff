//! How often Weft's own code copies payload between a ramdisk on the server and a buffer of the client, both ends
//! counted together: never on the way out, at most once on the way in over iWARP, never over shared memory. SMB, and NFS where
//! it is another way.
#![forbid(unsafe_code)]

use std::rc::Rc;
use std::sync::Arc;

use bytes::Bytes;
use weft_machine::{Listener, Pool, Stream, buf, rt};
use weft_nfs::client::{Credential, Mount, SetAttributes};
use weft_nfs::{client as nfs, server as nfsd};
use weft_rdma::{Provider, iwarp, shm};
use weft_smb::auth::Secret;
use weft_smb::client::{File, OpenOptions, Options, Session};
use weft_smb::server::{Config, Limits, Server, User};
use weft_store::backend::Ram;
use weft_store::{Share, Vfs};
use weft_transport::{Channel, nbss, rpcrdma, smbd};

const SIZE: usize = 256 << 10;
const OPERATIONS: u64 = 20;
/// What a TCP receive may copy: the head of a large frame that came with the frame before it.
const FRAME_HEAD: u64 = 8 << 10;

fn server(pool: &Pool) -> Arc<Server> {
    Server::new(Config {
        server_guid: [7; 16],
        name: "COPIES".into(),
        shares: vec![Share::new("ram", Vfs::new(Ram::new(16 << 20)))],
        users: vec![User { name: "tester".into(), secret: Secret::password("secret") }],
        names: weft_smb::auth::ServerNames::new(["weft"], Vec::new).into(),
        signing: weft_smb::server::Signing::Enabled,
        min_dialect: weft_smb::server::Dialect::V2_0_2,
        require_encryption: false,
        multichannel: true,
        interfaces: Vec::new().into(),
        endpoints: String::new(),
        offers: Default::default(),
        pool: pool.clone(),
        limits: Limits::default(),
    })
}

/// A channel to `server` over TCP, on this core.
async fn over_tcp(server: Arc<Server>, pool: &Pool) -> Rc<dyn Channel> {
    let listener = Listener::bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let addr = listener.local_addr();
    let buffers = pool.clone();
    rt::spawn(async move {
        let stream = Stream::from_socket(listener.accept().await.unwrap()).unwrap();
        server.serve(nbss::Nbss::new(stream, buffers, nbss::Config::default())).await;
    })
    .detach();
    nbss::Nbss::new(Stream::connect(addr).await.unwrap(), pool.clone(), nbss::Config::default())
}

/// A channel to `server` over an RDMA provider, on this core.
async fn over_rdma(server: Arc<Server>, provider: &dyn Provider, pool: &Pool) -> Rc<dyn Channel> {
    let listener = provider.listen("127.0.0.1:0".parse().unwrap()).await.unwrap();
    let addr = listener.local_addr();
    let buffers = pool.clone();
    rt::spawn(async move {
        let request = listener.accept().await.unwrap().request().await.unwrap();
        server.serve(smbd::accept(request, smbd::Config::default(), buffers).await.unwrap()).await;
    })
    .detach();
    smbd::connect(provider, addr, smbd::Config::default(), pool.clone()).await.unwrap()
}

async fn open(channel: Rc<dyn Channel>, pool: &Pool) -> (Session, File) {
    let options = Options::new("127.0.0.1", "tester", "secret", pool.clone());
    let session = Session::connect(channel, options).await.unwrap();
    let tree = session.tree("ram").await.unwrap();
    let file = tree.open("file", OpenOptions::create()).await.unwrap();
    (session, file)
}

/// Bytes copied per operation: (READ, WRITE).
async fn copied(file: &File, pool: &Pool) -> (u64, u64) {
    let mut data = pool.alloc(SIZE).await;
    data.set_len(SIZE);
    data.fill(0x5a);
    // Once, so that what happens at the first time only is not counted.
    data = file.write_buf(0, data).await.unwrap();
    let before = buf::copies().1;
    for _ in 0..OPERATIONS {
        data = file.write_buf(0, data).await.unwrap();
    }
    let written = buf::copies().1 - before;
    let before = buf::copies().1;
    for _ in 0..OPERATIONS {
        let back = file.read(0, SIZE).await.unwrap();
        assert!(back.len() == SIZE && back.iter().all(|byte| *byte == 0x5a));
    }
    let read = buf::copies().1 - before;
    (read / OPERATIONS, written / OPERATIONS)
}

#[test]
fn tcp_copies_heads_only() {
    rt::block_on(async {
        let pool = Pool::new(256 << 20);
        let (session, file) = open(over_tcp(server(&pool), &pool).await, &pool).await;
        let (read, written) = copied(&file, &pool).await;
        assert!(read <= FRAME_HEAD, "{read} bytes copied per READ of {SIZE}");
        assert!(written <= FRAME_HEAD, "{written} bytes copied per WRITE of {SIZE}");
        session.logoff().await.unwrap();
    })
    .unwrap();
}

#[test]
fn iwarp_copies_at_most_once_on_receive() {
    for crc in [true, false] {
        rt::block_on(async {
            let pool = Pool::new(256 << 20);
            let config = iwarp::Config { crc, ..iwarp::Config::default() };
            let provider = iwarp::Provider::new(pool.clone(), config);
            let (session, file) = open(over_rdma(server(&pool), &provider, &pool).await, &pool).await;
            let (read, written) = copied(&file, &pool).await;
            // A few bytes more for the messages themselves would hide nothing of a second copy.
            assert!(read <= SIZE as u64 + FRAME_HEAD, "CRC {crc}: {read} bytes copied per READ of {SIZE}");
            assert!(written <= SIZE as u64 + FRAME_HEAD, "CRC {crc}: {written} bytes per WRITE of {SIZE}");
            assert!(session.traffic().placed.0 >= OPERATIONS * SIZE as u64, "READs came by RDMA Write");
            assert!(session.traffic().served.0 >= OPERATIONS * SIZE as u64, "WRITEs went by RDMA Read");
            session.logoff().await.unwrap();
        })
        .unwrap();
    }
}

#[test]
fn shared_memory_copies_nothing() {
    rt::block_on(async {
        let pool = Pool::new(256 << 20);
        let provider = shm::Provider::new(pool.clone(), shm::Config::default());
        let (session, file) = open(over_rdma(server(&pool), &provider, &pool).await, &pool).await;
        let (read, written) = copied(&file, &pool).await;
        assert_eq!((read, written), (0, 0), "bytes copied per READ and WRITE of {SIZE}");
        assert!(session.traffic().placed.0 >= OPERATIONS * SIZE as u64, "READs came by RDMA Write");
        session.logoff().await.unwrap();
    })
    .unwrap();
}

/// Bytes copied per WRITE over NFS, of bytes that are kept: in a buffer, and elsewhere.
async fn copied_by_nfs(provider: &dyn Provider, pool: &Pool) -> (u64, u64) {
    let server = nfsd::Server::new(nfsd::Config {
        shares: vec![Share::new("ram", Vfs::new(Ram::new(16 << 20)))],
        pool: pool.clone(),
        limits: nfsd::Limits::default(),
        policy: nfsd::Policy { decides: false, squash_root: true },
        durable: None,
    });
    let listener = provider.listen("127.0.0.1:0".parse().unwrap()).await.unwrap();
    let addr = listener.local_addr();
    let buffers = pool.clone();
    rt::spawn(async move {
        let request = listener.accept().await.unwrap().request().await.unwrap();
        let channel = rpcrdma::accept(request, rpcrdma::Config::default(), buffers).await.unwrap();
        server.serve(channel).await.unwrap();
    })
    .detach();
    let channel = rpcrdma::connect(provider, addr, rpcrdma::Config::default(), pool.clone()).await.unwrap();
    let options = nfs::Options { credential: Credential::None, pool: pool.clone() };
    let mount = Mount::connect(channel, "/ram", options).await.unwrap();
    let file = mount.create("file", SetAttributes::default()).await.unwrap();
    let pattern: Vec<u8> = (0..SIZE).map(|n| (n * 7) as u8).collect();
    let mut per_write = Vec::new();
    for data in [pool.buf_from(&pattern).unwrap().freeze(), Bytes::from(pattern.clone())] {
        let before = buf::copies().1;
        for n in 0..OPERATIONS {
            file.write(n * 10, data.clone()).await.unwrap();
        }
        per_write.push((buf::copies().1 - before) / OPERATIONS);
        let back = file.read((OPERATIONS - 1) * 10, SIZE).await.unwrap();
        assert!(back == data);
        file.write(0, Bytes::from(vec![0; SIZE])).await.unwrap();
    }
    (per_write[0], per_write[1])
}

#[test]
fn nfs_over_shared_memory_copies_only_what_cannot_be_opened() {
    rt::block_on(async {
        let pool = Pool::new(256 << 20);
        let provider = shm::Provider::new(pool.clone(), shm::Config::default());
        assert_eq!(copied_by_nfs(&provider, &pool).await, (0, SIZE as u64), "bytes per WRITE of {SIZE}");
    })
    .unwrap();
}
