//! What is open below a directory.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};

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
        assert_eq!(vfs.open_below(first).await, wanted);
        // Once for each open node, and for each directory of both chains and the root.
        let asked = places.load(Ordering::SeqCst);
        assert!(asked <= 2 * (FILES + DEPTH + 3) + 1, "{asked}");
        // An open file without a name is below nothing.
        vfs.remove(last, b"f0").await.unwrap();
        assert_eq!(vfs.open_below(first).await.len(), FILES);
        drop(claims);
    })
    .unwrap();
}

/// A backend that does not tell where a node is, once, and has no place for its root.
struct Lost {
    ram: Ram,
    lost: Arc<Mutex<Option<NodeId>>>,
}

impl Backend for Lost {
    fn kind(&self) -> &'static str {
        self.ram.kind()
    }

    fn submit(&self, op: Op, by: Caller) -> LocalBoxFuture<'_, Result<Outcome, Error>> {
        match op {
            Op::Place { node } if node == ROOT => Box::pin(async { Err(Error::Invalid) }),
            Op::Place { node } if self.lost.lock().unwrap().take_if(|lost| *lost == node).is_some() => {
                Box::pin(async { Err(Error::Io(std::io::Error::from_raw_os_error(5))) })
            }
            op => self.ram.submit(op, by),
        }
    }
}

#[test]
fn a_place_that_is_not_known_says_nothing_about_others_and_streams_are_where_their_file_is() {
    let lost = Arc::new(Mutex::new(None));
    let vfs = Vfs::new(Lost { ram: Ram::new(LIMIT), lost: lost.clone() });
    rt::block_on(async {
        let top = dir(&vfs, ROOT, "d").await.node;
        let last = dir(&vfs, top, "d").await.node;
        let mut nodes = Vec::new();
        for name in ["f", "g"] {
            nodes.push(file(&vfs, last, name).await.node);
        }
        let mut streams = Vec::new();
        for base in [ROOT, top, last] {
            streams.push(vfs.stream(base, b"s", true).await.unwrap().attr.node);
        }
        let opening = || Opening::new(Rights::READ, Rights::ALL, vfs.opens().key());
        let mut claims = Vec::new();
        for node in nodes.iter().chain(&streams) {
            claims.push(vfs.opens().open(*node, &opening()).await.unwrap());
        }
        let mut all = vec![nodes[0], nodes[1], streams[2]];
        all.sort_unstable();
        assert_eq!(vfs.open_below(top).await, all);
        // Whoever is asked first is left out, and nobody else.
        *lost.lock().unwrap() = Some(last);
        assert_eq!(vfs.open_below(top).await.len(), all.len() - 1);
        drop(claims);
    })
    .unwrap();
}
