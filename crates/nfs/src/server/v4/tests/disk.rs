//! What a server promises, of either version, when the disk does not keep it.

use std::sync::Mutex;

use futures_util::future::LocalBoxFuture;
use weft_machine::rt;
use weft_store::{Backend, Error, OpenFile, Outcome, Sink};
use weft_wire::nfs3;
use weft_wire::nfs3::procedure;

use super::*;
use crate::server::tests::{handle_of, results_for};

/// A disk of which a test knows which flushes failed. It stands before a file system in memory.
#[derive(Clone)]
pub struct Disk(Arc<Known>);

struct Known {
    ram: Ram,
    /// The next flush of a file fails, and as the kernel does, it says so once.
    lost: Mutex<bool>,
    /// Files that were flushed.
    flushed: Mutex<Vec<NodeId>>,
}

#[derive(Debug)]
struct Written(OpenFile, Disk);

impl std::fmt::Debug for Disk {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Disk")
    }
}

fn failed() -> Error {
    Error::Io(std::io::Error::from_raw_os_error(5))
}

impl Disk {
    pub fn new() -> Disk {
        Disk(Arc::new(Known { ram: Ram::new(16 << 20), lost: Mutex::default(), flushed: Mutex::default() }))
    }

    /// A server of this disk.
    fn serve(&self, limits: Limits) -> Arc<Server> {
        let shares = vec![Share::new("ram", Vfs::new(self.clone()))];
        let policy = Policy { decides: false, squash_root: true };
        Server::new(Config { shares, pool: weft_machine::Pool::new(16 << 20), limits, policy, durable: None })
    }
}

impl Sink for Written {
    fn len(&self) -> u64 {
        self.0.len().unwrap()
    }

    fn write(&self, offset: u64, chain: Vec<Bytes>) -> LocalBoxFuture<'_, Result<(), Error>> {
        Box::pin(async move { self.0.write(offset, &chain).await })
    }

    fn sync(&self) -> LocalBoxFuture<'_, Result<(), Error>> {
        let known = &self.1.0;
        known.flushed.lock().unwrap().push(self.0.node);
        let lost = std::mem::take(&mut *known.lost.lock().unwrap());
        Box::pin(std::future::ready(if lost { Err(failed()) } else { Ok(()) }))
    }

    fn zero(&self, _: u64, _: u64, _: bool) -> LocalBoxFuture<'_, Result<(), Error>> {
        unimplemented!()
    }
}

impl Backend for Disk {
    fn kind(&self) -> &'static str {
        "dir"
    }

    fn changes_on_the_host(&self) -> bool {
        true
    }

    fn submit(&self, op: weft_store::Op) -> LocalBoxFuture<'_, Result<Outcome, Error>> {
        Box::pin(async move {
            Ok(match self.0.ram.submit(op).await? {
                Outcome::File(file) => {
                    let written = Written(file.clone(), self.clone());
                    Outcome::File(file.through(Arc::new(written)))
                }
                other => other,
            })
        })
    }
}

/// A call of version 3.
async fn ask<T: nfs3::Xdr>(server: &Server, number: u32, args: &impl nfs3::Xdr) -> T {
    results_for(server, PEER, (nfs3::PROGRAM, nfs3::VERSION, number), args).await
}

fn name(text: &str) -> nfs3::Name {
    nfs3::Name(Bytes::copy_from_slice(text.as_bytes()))
}

fn at_root(server: &Server, text: &str) -> nfs3::DirOp {
    nfs3::DirOp { dir: handle_of(server, 0, NodeId::ROOT), name: name(text) }
}

async fn make(server: &Server, object: nfs3::DirOp) -> nfs3::Handle {
    let args = nfs3::CreateArgs { object, how: nfs3::CreateHow::Guarded(nfs3::SetAttributes::default()) };
    let made: nfs3::Outcome<nfs3::CreateOk, nfs3::WccOnly> = ask(server, procedure::CREATE, &args).await;
    made.unwrap().object.unwrap()
}

async fn write(server: &Server, file: nfs3::Handle, stable: nfs3::Stable) -> Result<Verifier, nfs3::Status> {
    let args = nfs3::WriteArgs {
        head: nfs3::WriteHead { file, offset: 0, count: 4, stable },
        data: Bytes::from_static(b"data").into(),
    };
    let done: nfs3::Outcome<nfs3::WriteOk, nfs3::WccOnly> = ask(server, procedure::WRITE, &args).await;
    done.map(|ok| ok.verifier).map_err(|failed| failed.status)
}

async fn commit(server: &Server, file: nfs3::Handle) -> Result<Verifier, nfs3::Status> {
    let args = nfs3::CommitArgs { file, offset: 0, count: 0 };
    let done: nfs3::Outcome<nfs3::CommitOk, nfs3::WccOnly> = ask(server, procedure::COMMIT, &args).await;
    done.map(|ok| ok.verifier).map_err(|failed| failed.status)
}

#[test]
fn who_was_not_told_of_a_failed_flush_writes_again() {
    // Whether the one who is told commits, or writes what is to be stable.
    for stable in [nfs3::Stable::Unstable, nfs3::Stable::FileSync] {
        let disk = Disk::new();
        let server = disk.serve(Limits::default());
        rt::block_on(async {
            let file = make(&server, at_root(&server, "f")).await;
            let ours = write(&server, file, nfs3::Stable::Unstable).await.unwrap();
            assert_eq!(commit(&server, file).await, Ok(ours));
            let ours = write(&server, file, nfs3::Stable::Unstable).await.unwrap();
            *disk.0.lost.lock().unwrap() = true;
            let told = match stable {
                nfs3::Stable::Unstable => commit(&server, file).await,
                _ => write(&server, file, stable).await,
            };
            assert_eq!(told, Err(nfs3::Status::IO));
            let theirs = commit(&server, file).await.unwrap();
            assert_ne!(theirs, ours, "{stable:?}");
            // What is written from now on is not written twice.
            assert_eq!(write(&server, file, nfs3::Stable::Unstable).await, Ok(theirs));
            assert_eq!(commit(&server, file).await, Ok(theirs));
        })
        .unwrap();
    }
}

#[test]
fn version_4_tells_of_a_failed_flush_by_the_verifier_too() {
    let disk = Disk::new();
    let server = disk.serve(Limits::default());
    let a = Modern::new(&server, "a");
    let (file, stateid) = a.open("f", 3, 0);
    let write = || {
        let mut answer = a.run(&[Op::Putfh(file), write_op(stateid, 0, b"data")]);
        answer.ok::<()>(opnum::PUTFH);
        answer.ok::<WriteOk>(opnum::WRITE).verifier
    };
    let commit = || {
        let mut answer = a.run(&[Op::Putfh(file), Op::Commit(Commit { offset: 0, count: 0 })]);
        answer.ok::<()>(opnum::PUTFH);
        match answer.next(opnum::COMMIT) {
            Status::OK => Ok(Verifier::parse(&mut answer.d).unwrap()),
            status => Err(status),
        }
    };
    let ours = write();
    assert_eq!(commit(), Ok(ours));
    let ours = write();
    *disk.0.lost.lock().unwrap() = true;
    assert_eq!(commit(), Err(Status::IO));
    let theirs = commit().unwrap();
    assert_ne!(theirs, ours);
    assert_eq!(write(), theirs);
}

#[test]
fn a_file_that_is_closed_for_want_of_room_is_flushed_before() {
    let disk = Disk::new();
    // Each part of the cache keeps one.
    let server = disk.serve(Limits { open_files: 16, ..Limits::default() });
    rt::block_on(async {
        let file = make(&server, at_root(&server, "f")).await;
        let ours = write(&server, file, nfs3::Stable::Unstable).await.unwrap();
        *disk.0.lost.lock().unwrap() = true;
        disk.0.flushed.lock().unwrap().clear();
        let vfs = &server.shares[0].vfs;
        for other in 0..16 {
            make(&server, at_root(&server, &other.to_string())).await;
            let other = vfs.lookup(NodeId::ROOT, other.to_string().as_bytes(), false).await.unwrap();
            server.files.open(vfs, 0, other.node, false).await.unwrap();
        }
        // What was only read is closed as it is.
        rt::yield_now().await;
        assert_eq!(disk.0.flushed.lock().unwrap().len(), 1);
        assert_ne!(commit(&server, file).await, Ok(ours), "the disk failed meanwhile");
    })
    .unwrap();
}
