//! Counts how often Weft's own code copies payload between a ramdisk on the server and a buffer of the client, on
//! both ends together: never on the way out, at most once on the way in over iWARP, never over shared memory. Covers
//! SMB, and NFS over TCP and shared memory.
#![forbid(unsafe_code)]

use std::sync::Arc;

use bytes::Bytes;
use weft_machine::{Pool, buf, rt};
use weft_nfs::client::SetAttributes;
use weft_rdma::{Provider, iwarp, shm};
use weft_smb::client::File;
use weft_smb::server::Server;
use weft_store::Vfs;
use weft_store::backend::Ram;

mod served;

const SIZE: usize = 256 << 10;
const OPERATIONS: u64 = 20;
/// A TCP receive may copy the head of a large frame that arrived with the previous frame.
const FRAME_HEAD: u64 = 8 << 10;

fn ramdisk() -> Vfs {
    Vfs::new(Ram::new(16 << 20))
}

fn server(pool: &Pool) -> Arc<Server> {
    served::smb(ramdisk(), pool)
}

/// Bytes copied per operation: (READ, WRITE).
async fn copied(file: &File, pool: &Pool) -> (u64, u64) {
    let mut data = pool.alloc(SIZE).await;
    data.set_len(SIZE);
    data.fill(0x5a);
    // One operation first, so that one-time costs do not count.
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
        let (session, file) = served::open(served::smb_over_tcp(server(&pool), &pool).await, &pool).await;
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
            let (session, file) =
                served::open(served::smb_over_rdma(server(&pool), &provider, &pool).await, &pool).await;
            let (read, written) = copied(&file, &pool).await;
            // A second copy could not hide in the few extra bytes for the messages.
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
        let (session, file) =
            served::open(served::smb_over_rdma(server(&pool), &provider, &pool).await, &pool).await;
        let (read, written) = copied(&file, &pool).await;
        assert_eq!((read, written), (0, 0), "bytes copied per READ and WRITE of {SIZE}");
        assert!(session.traffic().placed.0 >= OPERATIONS * SIZE as u64, "READs came by RDMA Write");
        session.logoff().await.unwrap();
    })
    .unwrap();
}

#[test]
fn nfs_over_tcp_copies_heads_only() {
    rt::block_on(async {
        let pool = Pool::new(256 << 20);
        let mount = served::mounted_over_tcp(served::nfs(ramdisk(), &pool), &pool).await;
        let file = mount.create("file", SetAttributes::default()).await.unwrap();
        let data = Bytes::from(vec![0x5a; SIZE]);
        // Once, so that what happens at the first time only is not counted.
        file.write(0, data.clone()).await.unwrap();
        let before = buf::copies().1;
        for _ in 0..OPERATIONS {
            file.write(0, data.clone()).await.unwrap();
        }
        let written = (buf::copies().1 - before) / OPERATIONS;
        let before = buf::copies().1;
        for _ in 0..OPERATIONS {
            assert!(file.read(0, SIZE).await.unwrap() == data);
        }
        let read = (buf::copies().1 - before) / OPERATIONS;
        assert!(read <= FRAME_HEAD, "{read} bytes copied per READ of {SIZE}");
        assert!(written <= FRAME_HEAD, "{written} bytes copied per WRITE of {SIZE}");
    })
    .unwrap();
}

/// Bytes copied per WRITE over NFS, with payload in a buffer and elsewhere.
async fn copied_by_nfs(provider: &dyn Provider, pool: &Pool) -> (u64, u64) {
    let mount = served::mounted_over_rdma(served::nfs(ramdisk(), pool), provider, pool).await;
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
