//! The conformance suite: each test runs on every backend of the table.

use std::future::Future;
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use weft_machine::{Budget, Charge, Pool, Source, rt};

use self::far::Far;
use super::*;
use crate::vfs::*;

mod acting;
mod appends;
mod below;
mod charges;
mod claimed;
mod descriptors;
mod far;
mod identity;
mod judged;
mod large_streams;
mod late;
mod mounted;
mod observed;
mod rules;
mod settled;
mod space;
mod stream_files;
mod streams;
mod trees;
mod unlinked;
mod unlinking;
mod watches;
mod xattrs;

const LIMIT: u64 = 8 << 20;

/// The charge of a watch without a limit.
fn room() -> Charge {
    Budget::new(usize::MAX).charge(Source::Local, 0).unwrap()
}

/// A name in a directory.
fn at(dir: NodeId, name: &[u8]) -> DirName<&[u8]> {
    DirName { dir, name }
}

/// A share to test, with its owner.
struct Subject {
    vfs: Vfs,
    /// The folder behind `dir`, for looking at it from outside.
    _folder: Option<tempfile::TempDir>,
}

/// The table: a new backend is one more line.
fn subjects() -> Vec<Subject> {
    let [folder, slow, far] = [(); 3].map(|()| tempfile::tempdir().unwrap());
    vec![
        Subject { vfs: Dir::open(folder.path()).unwrap().into(), _folder: Some(folder) },
        Subject { vfs: Dir::open_on_workers(slow.path()).unwrap().into(), _folder: Some(slow) },
        Subject { vfs: Ram::new(LIMIT).into(), _folder: None },
        Subject { vfs: Vfs::new(Far::new(Dir::open(far.path()).unwrap())), _folder: Some(far) },
        Subject { vfs: Vfs::new(Far::new(Ram::new(LIMIT))), _folder: None },
    ]
}

/// The API for writing a backend.
mod api {
    pub use crate::vfs::*;
}

/// Runs a story on every backend.
fn each<F: Future<Output = ()>>(story: impl Fn(Vfs) -> F) {
    for subject in subjects() {
        let kind = subject.vfs.kind();
        println!("backend {kind}");
        rt::block_on(story(subject.vfs.clone())).unwrap();
    }
}

const ROOT: NodeId = NodeId::ROOT;

async fn file(vfs: &Vfs, dir: NodeId, name: &str) -> Attr {
    vfs.create(dir, name.as_bytes(), Make::File, Exists::Fail, SetAttr::default()).await.unwrap().attr
}

async fn dir(vfs: &Vfs, parent: NodeId, name: &str) -> Attr {
    vfs.create(parent, name.as_bytes(), Make::Dir, Exists::Fail, SetAttr::default()).await.unwrap().attr
}

async fn put(vfs: &Vfs, node: NodeId, offset: u64, bytes: &[u8]) -> Result<(), Error> {
    vfs.open(node, true).await?.write(offset, &[Bytes::copy_from_slice(bytes)]).await
}

async fn read(file: &OpenFile, offset: u64, len: usize) -> Vec<u8> {
    let chain = file.read(offset, len).data().await.unwrap().into_chain(&Pool::new(1)).await.unwrap();
    chain.concat()
}

async fn contents(vfs: &Vfs, node: NodeId) -> Vec<u8> {
    read(&vfs.open(node, false).await.unwrap(), 0, 1 << 20).await
}

/// Every name of a directory, in batches of `batch`.
async fn list(vfs: &Vfs, dir: NodeId, batch: usize) -> Vec<String> {
    let mut names = Vec::new();
    let mut cookie = 0;
    loop {
        let Listing { entries, is_last: end } = vfs.readdir(dir, cookie, batch).await.unwrap();
        assert!(entries.len() <= batch);
        assert!(end || !entries.is_empty(), "a batch without entries that is not the end");
        for entry in entries {
            assert_ne!(entry.cookie, 0);
            cookie = entry.cookie;
            names.push(String::from_utf8(entry.name).unwrap());
        }
        if end {
            return names;
        }
    }
}

async fn sorted(vfs: &Vfs, dir: NodeId) -> Vec<String> {
    let mut names = list(vfs, dir, 3).await;
    names.sort();
    names
}

/// Asserts on an error by its pattern, and shows the other outcome when it does not match.
macro_rules! refused {
    ($outcome:expr, $pattern:pat) => {
        match $outcome {
            Err($pattern) => {}
            other => panic!("expected Err({}), got {other:?}", stringify!($pattern)),
        }
    };
}
pub(crate) use refused;
