//! What is open below a directory.

use std::sync::atomic::Ordering;

use futures_util::future::LocalBoxFuture;

use super::*;
use crate::opens::{Opening, Rights};

const DEPTH: usize = 20;
const FILES: usize = 30;

#[test]
fn each_directory_above_open_files_is_asked_once() {
    let far = Far::new(Ram::new(LIMIT));
    let places = far.places.clone();
    let vfs = Vfs::new(far);
    rt::block_on(async {
        let opening = || Opening::new(Rights::READ, Rights::ALL, vfs.opens().key());
        let mut claims = Vec::new();
        let mut chains = Vec::new();
        for top in ["in", "out"] {
            let first = dir(&vfs, ROOT, top).await.node;
            let mut last = first;
            for _ in 0..DEPTH {
                last = dir(&vfs, last, "d").await.node;
            }
            let mut files = Vec::new();
            for n in 0..FILES {
                files.push(file(&vfs, last, &format!("f{n}")).await.node);
            }
            for node in [first, last].iter().chain(&files) {
                claims.push(vfs.opens().open(*node, &opening()).await.unwrap());
            }
            chains.push((first, last, files));
        }
        let (first, last, mut wanted) = chains.swap_remove(0);
        wanted.push(last);
        wanted.sort_unstable();
        places.store(0, Ordering::SeqCst);
        assert_eq!(vfs.open_below(first).await.unwrap(), wanted);
        // Once for each open node, and for each directory of both chains and the root.
        let asked = places.load(Ordering::SeqCst);
        assert!(asked <= 2 * (FILES + DEPTH + 3) + 1, "{asked}");
        // An open file without a name is below nothing.
        vfs.remove(last, b"f0").await.unwrap();
        assert_eq!(vfs.open_below(first).await.unwrap().len(), FILES);
        drop(claims);
    })
    .unwrap();
}

/// A disk that does not tell where anything is.
struct Lost(Ram);

impl Backend for Lost {
    fn kind(&self) -> &'static str {
        self.0.kind()
    }

    fn submit(&self, op: Op) -> LocalBoxFuture<'_, Result<Outcome, Error>> {
        match op {
            Op::Place { .. } => Box::pin(async { Err(Error::Io(std::io::Error::from_raw_os_error(5))) }),
            op => self.0.submit(op),
        }
    }
}

#[test]
fn an_error_does_not_count_as_an_answer() {
    let vfs = Vfs::new(Lost(Ram::new(LIMIT)));
    rt::block_on(async {
        let top = dir(&vfs, ROOT, "d").await.node;
        let node = file(&vfs, top, "f").await.node;
        let opening = Opening::new(Rights::READ, Rights::ALL, vfs.opens().key());
        let claim = vfs.opens().open(node, &opening).await.unwrap();
        assert!(matches!(vfs.open_below(top).await, Err(Error::Io(_))));
        drop(claim);
    })
    .unwrap();
}
