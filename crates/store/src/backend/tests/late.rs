//! Whatever keeps the bytes of an open file: answers may come late and in any order, and a failure is told and changes nothing.

use std::cell::Cell;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};

use futures_util::FutureExt;
use futures_util::future::{join_all, try_join_all};
use weft_machine::payload::Fetching;
use weft_machine::{File, PayloadSource, RemotePayload};

use super::*;
use crate::backend::volumes::Volumes as Shelved;
use crate::volume::{Create, Storage, Volumes};

const PIECE: usize = 4099;
const PIECES: usize = 40;
const SIZE: u64 = 1 << 20;

/// A file to test.
struct Late {
    what: &'static str,
    vfs: Vfs,
    node: NodeId,
    fails: Arc<AtomicBool>,
    /// Whether its flushes are counted: a file in memory has none.
    flushes: bool,
    _folder: tempfile::TempDir,
}

/// One wrapper over all that can be behind an open file.
fn each_late<F: Future<Output = ()>>(story: impl Fn(Late) -> F) {
    for what in ["dir", "ram", "without descriptors", "volume in memory", "volume in a file"] {
        println!("over {what}");
        let folder = tempfile::tempdir().unwrap();
        rt::block_on(async {
            let far = match what {
                "dir" => Far::with_descriptors(Dir::open(folder.path()).unwrap()),
                "ram" => Far::with_descriptors(Ram::new(LIMIT)),
                "without descriptors" => Far::with_descriptors(Far::new(Ram::new(LIMIT))),
                "volume in memory" => Far::with_descriptors(shelf(&folder, Storage::Ram)),
                _ => Far::with_descriptors(shelf(&folder, Storage::File(folder.path().join("content")))),
            };
            let fails = far.fails.clone();
            let vfs = Vfs::new(far);
            let node = match vfs.lookup(ROOT, b"file", false).await {
                Ok(found) => found.node,
                Err(_) => file(&vfs, ROOT, "file").await.node,
            };
            let flushes = what != "ram";
            story(Late { what, vfs, node, fails, flushes, _folder: folder }).await;
        })
        .unwrap();
    }
}

/// A share of one volume, `file`.
fn shelf(folder: &tempfile::TempDir, storage: Storage) -> Shelf<Shelved> {
    let known = Volumes::at(folder.path());
    let create =
        Create { storage, size: Some(SIZE), allocate: false, direct: false, id: [1; 16], created: 0 };
    known.create("file", &create).unwrap();
    let volume = known.open("file", &Pool::new(1 << 20)).unwrap();
    let (block, content) = (volume.block.clone(), volume.content.clone());
    Shelved::shelf(vec![ShareVolume { name: "file".into(), block, content, read_only: false }])
}

/// The piece of this number.
fn piece(n: usize) -> Bytes {
    Bytes::from(vec![b'a' + n as u8; PIECE])
}

fn place(n: usize) -> u64 {
    (n * PIECE) as u64
}

#[test]
fn each_request_gets_its_own_answer_in_whatever_order_they_come() {
    each_late(async |late| {
        let file = late.vfs.open(late.node, true).await.unwrap();
        let write = async |n: usize| file.write(place(n), &[piece(n)]).await;
        try_join_all((0..PIECES).map(write)).await.unwrap();
        let answers = Mutex::new(Vec::new());
        let back = async |n: usize| {
            let found = read(&file, place(n), PIECE).await;
            answers.lock().unwrap().push(n);
            found
        };
        for (n, found) in join_all((0..PIECES).map(back)).await.into_iter().enumerate() {
            assert!(found == piece(n), "piece {n} of {}", late.what);
        }
        assert!(
            !answers.into_inner().unwrap().is_sorted(),
            "nothing was overtaken: the wrapper tests nothing"
        );
        file.sync().await.unwrap();
        assert!(!file.is_unflushed());
    });
}

#[test]
fn a_failure_is_told_and_changes_nothing() {
    each_late(async |late| {
        let file = late.vfs.open(late.node, true).await.unwrap();
        let other = late.vfs.open(late.node, true).await.unwrap();
        file.write(0, &[piece(0)]).await.unwrap();
        file.sync().await.unwrap();
        let size = file.len().await.unwrap();
        late.fails.store(true, Ordering::SeqCst);
        let data = piece(1);
        refused!(file.read(0, 10).data().await, Error::Io(_));
        refused!(file.write(0, std::slice::from_ref(&data)).await, Error::Io(_));
        refused!(file.append::<Error>(&data, |_| Ok(())).await, Error::Io(_));
        refused!(file.allocate(0, SIZE, false).await, Error::Io(_));
        refused!(file.punch_hole(0, 4096).await, Error::Io(_));
        refused!(file.zero_range(0, 4096).await, Error::Io(_));
        refused!(file.data_ranges(0, SIZE, 10).await, Error::Io(_));
        refused!(file.copy_from(0, &other, 4, 10).await, Error::Io(_));
        refused!(file.exchange(data.clone(), 10).await, Error::Io(_));
        refused!(file.len().await, Error::Io(_));
        assert_eq!(late.vfs.failed_flushes(), 0);
        refused!(file.sync().await, Error::Io(_));
        assert_eq!(late.vfs.failed_flushes(), u64::from(late.flushes));
        // What failed may have written a part.
        assert_eq!(file.is_unflushed(), late.flushes);
        late.fails.store(false, Ordering::SeqCst);
        assert_eq!(file.len().await.unwrap(), size);
        assert!(read(&file, 0, PIECE).await == piece(0), "{} has changed", late.what);
        file.write(0, &[data]).await.unwrap();
        file.sync().await.unwrap();
        assert!(!file.is_unflushed());
        assert!(read(&file, 0, PIECE).await == piece(1));
    });
}

#[test]
fn what_nobody_waits_for_any_more_keeps_nobody_else_waiting() {
    each_late(async |late| {
        let file = late.vfs.open(late.node, true).await.unwrap();
        file.write(0, &[piece(0)]).await.unwrap();
        assert!(file.write(0, &[piece(1)]).now_or_never().is_none());
        assert!(file.sync().now_or_never().is_none());
        assert!(read(&file, 0, PIECE).await == piece(0), "it had not arrived");
        file.sync().await.unwrap();
        file.write(0, &[piece(2)]).await.unwrap();
        assert!(read(&file, 0, PIECE).await == piece(2));
        assert_eq!(late.vfs.failed_flushes(), 0);
    });
}

/// A stream is flushed in several steps. Others who have written to it learn of a failure by the number of failures only.
#[test]
fn a_failed_flush_of_a_stream_counts_although_nobody_waits_for_it_any_more() {
    let folder = tempfile::tempdir().unwrap();
    rt::block_on(async {
        let far = Far::with_descriptors(Dir::open(folder.path()).unwrap());
        let fails = far.fails.clone();
        let vfs = Vfs::new(far);
        let base = file(&vfs, ROOT, "f").await.node;
        let stream = vfs.stream(base, b"large", true).await.unwrap().attr.node;
        put(&vfs, stream, 0, &vec![7; SIZE as usize]).await.unwrap();
        let open = vfs.open(stream, true).await.unwrap();
        fails.store(true, Ordering::SeqCst);
        assert!(open.sync().now_or_never().is_none());
        for _ in 0..1000 {
            rt::yield_now().await;
        }
        assert!(vfs.failed_flushes() > 0);
    })
    .unwrap();
}

/// Payload in the memory of a peer.
#[derive(Debug)]
struct Kept {
    bytes: Bytes,
    reaches_files: bool,
    /// The connection has ended.
    lost: bool,
    filled: Cell<bool>,
    fetched: Cell<bool>,
}

impl Kept {
    fn new(bytes: Bytes, reaches_files: bool, lost: bool) -> Kept {
        Kept { bytes, reaches_files, lost, filled: Cell::default(), fetched: Cell::default() }
    }
}

impl RemotePayload for Kept {
    fn len(&self) -> usize {
        self.bytes.len()
    }
    fn fill(&self, file: &File, offset: u64, len: usize) -> Option<io::Result<()>> {
        assert!(file.is_in_memory());
        self.filled.set(self.reaches_files);
        let bytes = Pool::new(1 << 20).buf_from(&self.bytes[..len]).filter(|_| self.reaches_files)?;
        Some(file.place_at(offset, &bytes.into_window()))
    }
    fn fetch(&self) -> Fetching {
        self.fetched.set(true);
        let lost = self.lost.then(|| io::ErrorKind::ConnectionAborted.into());
        Box::pin(std::future::ready(lost.map_or_else(|| Ok(self.bytes.clone()), Err)))
    }
}

#[test]
fn what_a_peer_keeps_fills_a_file_in_memory_and_is_fetched_for_all_others() {
    each_late(async |late| {
        let file = late.vfs.open(late.node, true).await.unwrap();
        for (n, reaches_files) in [(1, false), (2, true)] {
            let kept = Kept::new(piece(n), reaches_files, false);
            let source = PayloadSource::Remote { payload: &kept, len: PIECE - 1 };
            let admitted = Cell::new(false);
            let admit = async || {
                assert!(kept.fetched.get(), "it is admitted when the bytes are there");
                admitted.set(true);
                Ok(None)
            };
            file.write_from::<Error>(10, source, admit).await.unwrap();
            let fills = reaches_files && late.what == "ram";
            assert_eq!(kept.filled.get(), fills, "{}", late.what);
            assert_eq!((kept.fetched.get(), admitted.get()), (!fills, !fills), "{}", late.what);
            assert!(read(&file, 10, PIECE - 1).await == piece(n)[1..]);
            assert!(
                read(&file, 10 + PIECE as u64 - 1, 1).await.iter().all(|byte| *byte == 0),
                "more than asked"
            );
        }
        let kept = Kept::new(piece(3), false, false);
        let source = PayloadSource::Remote { payload: &kept, len: PIECE };
        refused!(file.write_from(10, source, async || Err(Error::Sharing)).await, Error::Sharing);
        let lost = Kept::new(piece(4), false, true);
        let source = PayloadSource::Remote { payload: &lost, len: PIECE };
        refused!(file.write_from(10, source, async || Ok(None)).await, Error::Payload(_));
        assert!(read(&file, 10, PIECE - 1).await == piece(2)[1..], "what is refused changes nothing");
    });
}
