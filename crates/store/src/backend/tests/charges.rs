//! What the files of a memory disk are charged: exactly what they occupy, whatever becomes of a write.

use std::cell::RefCell;
use std::io;
use std::task::Poll;

use futures_util::FutureExt;
use weft_machine::file::busy;
use weft_machine::payload::Fetching;
use weft_machine::{File, PayloadSource, RemotePayload};

use super::*;

const PAGE: u64 = 4096;
const HALF: u64 = LIMIT / 2;

/// A memory disk with one file, `f`.
struct Disk {
    vfs: Vfs,
    node: NodeId,
}

impl Disk {
    async fn new() -> Disk {
        let vfs = Vfs::from(Ram::new(LIMIT));
        let node = file(&vfs, ROOT, "f").await.node;
        Disk { vfs, node }
    }

    async fn open(&self) -> OpenFile {
        self.vfs.open(self.node, true).await.unwrap()
    }

    /// The bytes that all files are charged.
    async fn charged(&self) -> u64 {
        LIMIT - self.vfs.statfs().await.unwrap().free
    }

    async fn truncate(&self, size: u64) {
        self.vfs.setattr(self.node, SetAttr { size: Some(size), ..SetAttr::default() }).await.unwrap();
    }
}

fn story<F: Future<Output = ()>>(run: impl FnOnce() -> F) {
    rt::block_on(run()).unwrap();
}

/// Waits for the end of everything that workers still do with a file, and until `charged` bytes are charged: those who
/// wait for the same run in turns of their own.
async fn settles(what: &str, disk: &Disk, file: &OpenFile, charged: impl AsyncFn() -> u64) {
    drop(busy::shared_of(file.object().plain().unwrap()).await.unwrap());
    for _ in 0..100_000 {
        if disk.charged().await == charged().await {
            return;
        }
        rt::yield_now().await;
    }
    assert_eq!(disk.charged().await, charged().await, "{what}");
}

/// How the payload of a write does not arrive.
#[derive(Debug, Clone, Copy)]
enum Fate {
    /// The connection has ended.
    Lost,
    /// Fewer bytes arrive than were announced.
    Short,
    /// The peer never answers.
    Silent,
    /// The peer's memory has filled one page of the file when it fails.
    FillFails,
    /// The same, but the remainder is lost on the way.
    FillStops,
}

/// Payload in the memory of a peer, and what happens while it travels.
struct Afar<'a> {
    len: u64,
    fate: Fate,
    meanwhile: RefCell<Option<Box<dyn FnOnce() + 'a>>>,
}

impl std::fmt::Debug for Afar<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.fate.fmt(f)
    }
}

impl RemotePayload for Afar<'_> {
    fn len(&self) -> usize {
        self.len as usize
    }
    fn fill(&self, file: &File, offset: u64, _: usize) -> Option<io::Result<()>> {
        let page = Pool::new(1 << 20).buf_from(&[7; PAGE as usize])?;
        match self.fate {
            Fate::FillFails => {
                file.place_at(offset, &page.into_window()).unwrap();
                Some(Err(io::Error::from_raw_os_error(5)))
            }
            Fate::FillStops => {
                file.place_at(offset, &page.into_window()).unwrap();
                None
            }
            _ => None,
        }
    }
    fn fetch(&self) -> Fetching {
        if let Some(meanwhile) = self.meanwhile.take() {
            meanwhile();
        }
        match self.fate {
            Fate::Short => Box::pin(std::future::ready(Ok(Bytes::from(vec![1; self.len as usize / 2])))),
            Fate::Silent => Box::pin(std::future::pending()),
            _ => Box::pin(std::future::ready(Err(io::ErrorKind::ConnectionAborted.into()))),
        }
    }
}

/// A write of `len` bytes at `offset` whose payload meets this fate.
async fn write_from(file: &OpenFile, offset: u64, len: u64, fate: Fate) -> Result<(), Error> {
    write_while(file, offset, len, fate, || ()).await
}

/// The same, with a call made when the payload is requested.
async fn write_while(
    file: &OpenFile,
    offset: u64,
    len: u64,
    fate: Fate,
    meanwhile: impl FnOnce(),
) -> Result<(), Error> {
    let payload = Afar { len, fate, meanwhile: RefCell::new(Some(Box::new(meanwhile))) };
    let source = PayloadSource::Remote { payload: &payload, len: len as usize };
    file.write_from(offset, source, async || Ok(None)).await.map(drop)
}

#[test]
fn a_write_whose_payload_does_not_come_is_not_charged() {
    for fate in [Fate::Lost, Fate::Short, Fate::Silent] {
        story(async || {
            let disk = Disk::new().await;
            let file = disk.open().await;
            file.write(0, &[Bytes::from_static(b"abc")]).await.unwrap();
            for n in 0..10 {
                match write_from(&file, n * HALF / 4, HALF, fate).now_or_never() {
                    Some(done) => assert!(done.is_err(), "{fate:?}"),
                    None => assert!(matches!(fate, Fate::Silent), "{fate:?}"),
                }
                assert_eq!(disk.charged().await, PAGE, "{fate:?}");
            }
            // Everything else is still free.
            let other = super::file(&disk.vfs, ROOT, "other").await.node;
            put(&disk.vfs, other, 0, &vec![1; (LIMIT - PAGE) as usize]).await.unwrap();
        });
    }
}

#[test]
fn what_a_peer_has_filled_before_it_fails_is_charged() {
    for fate in [Fate::FillFails, Fate::FillStops] {
        story(async || {
            let disk = Disk::new().await;
            let file = disk.open().await;
            write_from(&file, 3 * PAGE, HALF, fate).await.unwrap_err();
            assert_eq!(file.len().await.unwrap(), 4 * PAGE);
            assert_eq!(disk.charged().await, 4 * PAGE, "{fate:?}");
        });
    }
}

#[test]
fn a_failed_write_leaves_the_charge_of_others_alone() {
    story(async || {
        let disk = Disk::new().await;
        let (file, other) = (disk.open().await, disk.open().await);
        // Both write the same range, and one of them arrives while the other one's payload travels.
        let lands = || put(&disk.vfs, disk.node, 0, &[1; 3 * PAGE as usize]).now_or_never().unwrap().unwrap();
        write_while(&file, 0, HALF, Fate::Lost, lands).await.unwrap_err();
        assert_eq!((file.len().await.unwrap(), disk.charged().await), (3 * PAGE, 3 * PAGE));
        // Two that fail.
        let fails = || drop(write_from(&other, 0, HALF, Fate::Lost).now_or_never().unwrap().unwrap_err());
        write_while(&file, PAGE, HALF, Fate::Short, fails).await.unwrap_err();
        assert_eq!(disk.charged().await, 3 * PAGE);
    });
}

#[test]
fn a_file_is_truncated_or_removed_while_a_write_travels() {
    story(async || {
        let disk = Disk::new().await;
        let file = disk.open().await;
        file.write(0, &[vec![1; 5 * PAGE as usize].into()]).await.unwrap();
        let cuts = || disk.truncate(1).now_or_never().unwrap();
        write_while(&file, 0, HALF, Fate::Lost, cuts).await.unwrap_err();
        assert_eq!((file.len().await.unwrap(), disk.charged().await), (1, PAGE));
        let removes = || disk.vfs.remove(ROOT, b"f").now_or_never().unwrap().unwrap();
        write_while(&file, 0, HALF, Fate::Lost, removes).await.unwrap_err();
        assert_eq!(disk.charged().await, PAGE, "it is still open");
        drop(file);
        assert_eq!(disk.charged().await, 0);
    });
}

/// Writers, truncations and lost payload on several threads: neither a charge too much nor one too little is left.
#[test]
fn whatever_happens_at_once_the_charge_is_the_length_in_the_end() {
    for round in 0..6 {
        let vfs = Vfs::from(Ram::new(LIMIT));
        let node = rt::block_on(file(&vfs, ROOT, "f")).unwrap().node;
        let disk = || Disk { vfs: vfs.clone(), node };
        std::thread::scope(|threads| {
            for writer in 0..3u64 {
                let disk = disk();
                threads.spawn(move || {
                    story(async || {
                        let file = disk.open().await;
                        for n in 0..100 {
                            let at = (n * 7 + writer * 13 + round) % 50 * PAGE;
                            file.write(at, &[vec![1; 100].into()]).await.unwrap();
                            write_from(&file, at, HALF, Fate::Lost).await.unwrap_err();
                        }
                    });
                });
            }
            let disk = disk();
            threads.spawn(move || {
                story(async || {
                    for n in 0..100 {
                        disk.truncate(n % 40 * PAGE + 1).await;
                    }
                });
            });
        });
        story(async || {
            let disk = disk();
            let len = disk.open().await.len().await.unwrap();
            assert_eq!(disk.charged().await, len.div_ceil(PAGE) * PAGE);
        });
    }
}

#[test]
fn an_append_that_is_refused_is_not_charged() {
    story(async || {
        let disk = Disk::new().await;
        let file = disk.open().await;
        let bytes = Bytes::from(vec![1; HALF as usize]);
        refused!(file.append(&bytes, |_| Err(Error::Sharing)).await, Error::Sharing);
        assert_eq!(disk.charged().await, 0);
        file.append::<Error>(&bytes, |_| Ok(())).await.unwrap();
        assert_eq!(disk.charged().await, HALF);
    });
}

#[test]
fn a_copy_is_charged_what_it_has_copied() {
    story(async || {
        let disk = Disk::new().await;
        let file = disk.open().await;
        let g = super::file(&disk.vfs, ROOT, "g").await.node;
        put(&disk.vfs, g, 0, &[1; 100]).await.unwrap();
        let source = disk.vfs.open(g, false).await.unwrap();
        // The source is shorter than its caller believes.
        let copy = ObjectOp::Copy { at: 0, from: source.object(), offset: 0, len: HALF };
        assert!(matches!(file.object().submit(copy).await, Ok(Done::Copied(100))));
        assert_eq!(disk.charged().await, 2 * PAGE);
        // Nor is one that fails.
        refused!(
            file.object()
                .submit(ObjectOp::Clone { at: 0, from: source.object(), offset: 0, len: HALF })
                .await,
            Error::NotSupported
        );
        assert_eq!(disk.charged().await, 2 * PAGE);
    });
}

/// A worker finishes what it has begun, even if its caller no longer waits.
#[test]
fn copies_and_allocations_that_nobody_waits_for_are_charged_what_they_have_taken() {
    for turns in [0, 1, 100] {
        story(async || {
            let disk = Disk::new().await;
            let file = disk.open().await;
            let g = super::file(&disk.vfs, ROOT, "g").await.node;
            put(&disk.vfs, g, 0, &vec![1; HALF as usize / 2]).await.unwrap();
            let source = disk.vfs.open(g, false).await.unwrap();
            let mut copying = Box::pin(file.copy_from(0, &source, 0, HALF));
            for _ in 0..=turns {
                let poll = std::future::poll_fn(|cx| Poll::Ready(copying.as_mut().poll(cx)));
                if poll.await.is_ready() {
                    break;
                }
                rt::yield_now().await;
            }
            drop(copying);
            settles("a copy", &disk, &file, async || {
                let len = file.len().await.unwrap();
                HALF / 2 + len.div_ceil(PAGE) * PAGE
            })
            .await;
            for (keep_size, taken) in [(false, HALF / 4), (true, HALF / 2)] {
                disk.truncate(0).await;
                settles("before an allocation", &disk, &file, async || HALF / 2).await;
                assert!(file.allocate(0, taken, keep_size).now_or_never().is_none());
                while disk.vfs.getattr(disk.node).await.unwrap().allocated < taken {
                    rt::yield_now().await;
                }
                settles("an allocation", &disk, &file, async || HALF / 2 + taken).await;
            }
            // An allocation that ends during a truncation stays charged until the next one.
            settles("in the end", &disk, &file, async || {
                disk.truncate(1).await;
                disk.truncate(0).await;
                HALF / 2
            })
            .await;
        });
    }
}

#[test]
fn space_reserved_past_the_end_is_charged_until_a_truncation_releases_it() {
    story(async || {
        let disk = Disk::new().await;
        let file = disk.open().await;
        file.write(0, &[vec![1; 2 * PAGE as usize].into()]).await.unwrap();
        file.allocate(0, HALF, true).await.unwrap();
        assert_eq!(disk.charged().await, HALF);
        // Not by what others do meanwhile.
        file.write(0, &[vec![1; 3 * PAGE as usize].into()]).await.unwrap();
        write_from(&file, 0, LIMIT, Fate::Lost).await.unwrap_err();
        assert_eq!(disk.charged().await, HALF);
        disk.truncate(PAGE).await;
        assert_eq!(disk.charged().await, PAGE);
        assert_eq!(disk.vfs.getattr(disk.node).await.unwrap().allocated, PAGE, "it is really free");
        refused!(file.allocate(0, LIMIT + 1, true).await, Error::NoSpace);
        assert_eq!(disk.charged().await, PAGE);
    });
}

#[test]
fn an_open_file_that_is_resized_gives_back_its_space() {
    story(async || {
        let disk = Disk::new().await;
        let file = disk.open().await;
        for (size, charged) in [(HALF, HALF), (1, PAGE), (0, 0)] {
            file.object().submit(ObjectOp::Resize { size }).await.unwrap();
            assert_eq!(disk.charged().await, charged);
        }
    });
}
