//! The guarantees of every block, checked for all implementers. A new implementer is one line in `every_block`.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use weft_ceph::{Client, DEFAULT_ID, ImageSpec};
use weft_machine::buf::MAX_BUF;
use weft_machine::file::busy::{self, Inode};
use weft_machine::{File, Pool, rt};

use crate::Error;
use crate::block::{Block, BlockOp, Extent, Medium, Outcome};
use crate::volume::plain::{Direct, Plain};
use crate::volume::rbd::{ImageRecord, Rbd};

/// Room for a huge page, if available, followed by small ones.
const SIZE: u64 = 3 << 20;

struct Bench {
    name: &'static str,
    block: Arc<dyn Block>,
    /// Unless it is an image.
    plain: Option<Arc<Plain>>,
    pool: Pool,
    _dir: tempfile::TempDir,
}

/// All implementers, each with bytes of its own. If the file system has no direct transfers, that one is left out,
/// and the suite says so.
fn every_block() -> Vec<Bench> {
    let mut benches = Vec::new();
    for name in ["ram", "taken", "file", "direct"] {
        let dir = tempfile::tempdir().expect("a folder");
        let pool = Pool::new(4 * MAX_BUF);
        let path = dir.path().join("bytes");
        let open = |flags: i32| {
            use std::os::unix::fs::OpenOptionsExt;
            let mut options = std::fs::OpenOptions::new();
            let file =
                options.read(true).write(true).create(true).truncate(false).custom_flags(flags).open(&path);
            file.map(|file| {
                file.set_len(SIZE).expect("it is sized");
                File::from(OwnedFd::from(file))
            })
        };
        let block = match name {
            "ram" => Plain::in_memory(SIZE).expect("memory"),
            "taken" => Plain::in_taken_memory(SIZE).expect("memory"),
            "file" => Plain::new(open(0).expect("a file"), None, Medium::File, SIZE),
            _ => match open(rustix::fs::OFlags::DIRECT.bits() as i32) {
                Ok(file) => {
                    let direct = Some(Direct { file, pool: pool.clone() });
                    Plain::new(open(0).expect("a file"), direct, Medium::File, SIZE)
                }
                Err(e) => {
                    eprintln!("no direct transfers here: {e}");
                    continue;
                }
            },
        };
        let plain = Arc::new(block);
        benches.push(Bench { name, block: plain.clone(), plain: Some(plain), pool, _dir: dir });
    }
    benches.extend(image());
    benches
}

/// A new image, if `make test-ceph` runs this suite: `WEFT_TEST_CEPH` is the configuration of its cluster, in which objects are
/// smaller than [`SIZE`].
fn image() -> Option<Bench> {
    static NUMBER: AtomicUsize = AtomicUsize::new(0);
    let conf = std::env::var_os("WEFT_TEST_CEPH")?;
    let name = format!("rbd/suite-{}-{}", std::process::id(), NUMBER.fetch_add(1, Ordering::Relaxed));
    let spec: ImageSpec = name.parse().expect("a name");
    let client = Client { conf: conf.into(), id: DEFAULT_ID.to_owned() };
    weft_ceph::create(&client, &spec, SIZE).expect("an image");
    let record = ImageRecord { spec, client, holder: String::new() };
    let pool = Pool::new(4 * MAX_BUF);
    let block = Arc::new(Rbd::open(&record, SIZE, &pool).expect("it is opened"));
    let dir = tempfile::tempdir().expect("a folder");
    Some(Bench { name: "rbd", block, plain: None, pool, _dir: dir })
}

impl Bench {
    async fn submit(&self, op: BlockOp) -> Result<Outcome, Error> {
        self.block.submit(op).await
    }

    async fn done(&self, op: BlockOp) {
        let outcome = self.submit(op.clone()).await;
        assert!(matches!(outcome, Ok(Outcome::Done)), "{}: {op:?}: {outcome:?}", self.name);
    }

    async fn write(&self, offset: u64, data: &[u8]) {
        // Page-aligned, as payload arrives from a connection.
        let mut buf = self.pool.alloc(data.len()).await;
        buf.extend_from_slice(data);
        self.done(BlockOp::Write { offset, data: vec![buf.freeze()], durable: false }).await;
    }

    async fn read(&self, offset: u64, len: usize) -> Vec<u8> {
        match self.submit(BlockOp::Read { offset, len }).await {
            Ok(Outcome::Data(payload)) => {
                assert_eq!(payload.len(), len);
                payload.into_chain(&self.pool).await.expect("it can be read").concat()
            }
            other => panic!("{}: {other:?}", self.name),
        }
    }

    async fn status(&self, offset: u64, len: u64, max_extents: usize) -> Vec<Extent> {
        match self.submit(BlockOp::Status { offset, len, max_extents }).await {
            Ok(Outcome::Extents(extents)) => extents,
            other => panic!("{}: {other:?}", self.name),
        }
    }
}

fn each<F: Future<Output = ()>>(story: impl Fn(Bench) -> F) {
    for bench in every_block() {
        rt::block_on(story(bench)).expect("the loop starts");
    }
}

#[test]
fn a_new_volume_is_zeros_and_a_hole() {
    each(|bench| async move {
        assert_eq!(bench.read(0, SIZE as usize).await, vec![0; SIZE as usize]);
        assert_eq!(bench.block.geometry().size, SIZE);
    });
}

#[test]
fn what_was_written_is_read() {
    each(|bench| async move {
        for (offset, len) in [(0, 4096), (4096, 8192), (1, 1), (511, 1026), (SIZE - 3, 3), (70_000, 200_001)]
        {
            let data: Vec<u8> = (0..len).map(|i| (i * 7 + offset as usize) as u8).collect();
            bench.write(offset, &data).await;
            assert_eq!(bench.read(offset, len).await, data, "{} at {offset}", bench.name);
        }
    });
}

#[test]
fn a_chain_of_any_pieces_is_one_write() {
    each(|bench| async move {
        let pieces = [&b"one"[..], b"", b"and", b"two"].map(Bytes::copy_from_slice).to_vec();
        bench.done(BlockOp::Write { offset: 5000, data: pieces, durable: true }).await;
        assert_eq!(bench.read(4999, 11).await, b"\0oneandtwo\0");
    });
}

#[test]
fn what_is_not_inside_is_refused_and_changes_nothing() {
    each(|bench| async move {
        let some = |len: usize| vec![Bytes::from(vec![1; len])];
        let refused = [
            BlockOp::Read { offset: SIZE, len: 1 },
            BlockOp::Read { offset: SIZE - 1, len: 2 },
            BlockOp::Read { offset: u64::MAX, len: 2 },
            BlockOp::Read { offset: 0, len: 0 },
            BlockOp::Write { offset: SIZE - 1, data: some(2), durable: false },
            BlockOp::Write { offset: u64::MAX, data: some(2), durable: false },
            BlockOp::Write { offset: 0, data: Vec::new(), durable: false },
            BlockOp::Trim { offset: SIZE - 512, len: 513, durable: false },
            BlockOp::WriteZeroes { offset: 1, len: u64::MAX, durable: false, keep_space: false, fast: false },
            BlockOp::Status { offset: 0, len: SIZE + 1, max_extents: 1 },
            BlockOp::Status { offset: 0, len: SIZE, max_extents: 0 },
        ];
        for op in refused {
            let outcome = bench.submit(op.clone()).await;
            assert!(matches!(outcome, Err(Error::Invalid)), "{}: {op:?}: {outcome:?}", bench.name);
        }
        assert_eq!(bench.read(SIZE - 1, 1).await, [0]);
    });
}

#[test]
fn zeroes_are_zeros_whether_they_keep_their_space_or_not() {
    each(|bench| async move {
        for (keep_space, fast) in [(false, false), (true, false), (false, true), (true, true)] {
            bench.write(0, &[0xee; 65_536]).await;
            let op = |offset, len| BlockOp::WriteZeroes { offset, len, durable: true, keep_space, fast };
            for (offset, len) in [(4096, 8192), (20_001, 3), (30_000, 10_000)] {
                match bench.submit(op(offset, len)).await {
                    Ok(Outcome::Done) => {
                        assert_eq!(bench.read(offset, len as usize).await, vec![0; len as usize]);
                    }
                    // Fast or not at all.
                    Err(Error::NotSupported) if fast => {
                        assert_eq!(bench.read(offset, len as usize).await, vec![0xee; len as usize]);
                    }
                    other => panic!("{}: {other:?}", bench.name),
                }
                // And the bytes beside it are unchanged.
                assert_eq!(bench.read(offset - 1, 1).await, [0xee]);
                assert_eq!(bench.read(offset + len, 1).await, [0xee]);
            }
        }
    });
}

#[test]
fn a_trim_touches_only_its_range() {
    each(|bench| async move {
        bench.write(0, &[0xee; 65_536]).await;
        bench.done(BlockOp::Trim { offset: 5000, len: 20_000, durable: true }).await;
        assert_eq!(bench.read(0, 5000).await, [0xee; 5000]);
        assert_eq!(bench.read(25_000, 1000).await, [0xee; 1000]);
        let trimmed = bench.read(5000, 20_000).await;
        assert!(trimmed.iter().all(|byte| *byte == 0) || trimmed.iter().all(|byte| *byte == 0xee));
    });
}

#[test]
fn the_status_tells_holes_and_covers_the_range() {
    each(|bench| async move {
        bench.write(128 << 10, &[1; 64 << 10]).await;
        let extents = bench.status(0, SIZE, 100).await;
        assert_eq!(extents.iter().map(|extent| extent.len).sum::<u64>(), SIZE);
        assert!(extents.windows(2).all(|pair| pair[0].hole != pair[1].hole), "neighbours differ");
        // There is no hole where data is; a file system may report more data than that.
        let mut at = 0;
        for extent in &extents {
            let data = (128 << 10)..(192 << 10);
            assert!(!extent.hole || at + extent.len <= data.start || at >= data.end, "{}", bench.name);
            at += extent.len;
        }
        let holes = extents.iter().any(|extent| extent.hole);
        assert_eq!(holes, bench.name != "taken", "{}: {extents:?}", bench.name);
        // One at a time, from anywhere, never past the range.
        for offset in [0, 1, 100_000, 140_000, SIZE - 1] {
            let one = bench.status(offset, SIZE - offset, 1).await;
            assert!(one.len() == 1 && one[0].len > 0 && one[0].len <= SIZE - offset);
        }
        bench
            .done(BlockOp::WriteZeroes {
                offset: 0,
                len: SIZE,
                durable: false,
                keep_space: false,
                fast: false,
            })
            .await;
        assert_eq!(bench.status(0, SIZE, 100).await, [Extent { len: SIZE, hole: true }]);
    });
}

#[test]
fn flushing_is_answered() {
    each(|bench| async move {
        bench.write(0, b"something").await;
        bench.done(BlockOp::Flush).await;
        bench.done(BlockOp::Write { offset: 9, data: vec![Bytes::from_static(b"!")], durable: true }).await;
        assert_eq!(bench.read(0, 10).await, b"something!");
    });
}

/// xorshift64*: the same story on every machine.
struct Chance(u64);

impl Chance {
    fn below(&mut self, n: u64) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 11) % n
    }
}

#[test]
fn a_long_story_agrees_with_a_plain_vector() {
    each(|bench| async move {
        let mut chance = Chance(0x5eed);
        let mut model = vec![0_u8; SIZE as usize];
        for step in 0..600 {
            // Half of all ranges are aligned, so that a direct volume uses both paths.
            let unit = [1, 4096][chance.below(2) as usize];
            let offset = chance.below(SIZE / unit) * unit;
            let len = ((1 + chance.below(65_536 / unit)) * unit).min(SIZE - offset);
            let range = offset as usize..(offset + len) as usize;
            match chance.below(5) {
                0 | 1 => {
                    let data: Vec<u8> = (0..len).map(|i| (i ^ step) as u8 | 1).collect();
                    bench.write(offset, &data).await;
                    model[range].copy_from_slice(&data);
                }
                2 => {
                    let keep_space = chance.below(2) == 0;
                    let op = BlockOp::WriteZeroes { offset, len, durable: false, keep_space, fast: false };
                    bench.done(op).await;
                    model[range].fill(0);
                }
                3 => bench.done(BlockOp::Flush).await,
                _ => assert_eq!(
                    bench.read(offset, len as usize).await,
                    model[range],
                    "{} after {step} steps at {offset}",
                    bench.name
                ),
            }
        }
        assert_eq!(bench.read(0, SIZE as usize).await, model);
    });
}

#[test]
fn reads_of_a_file_are_ranges_that_nobody_has_read() {
    each(|bench| async move {
        let read = bench.submit(BlockOp::Read { offset: 4096, len: 65_536 }).await.expect("it is read");
        let Outcome::Data(payload) = read else { panic!("{read:?}") };
        let is_range = matches!(payload, weft_machine::Payload::File(_));
        assert_eq!(is_range, !["direct", "rbd"].contains(&bench.name), "{}", bench.name);
        // Aligned writes that bypass the page cache, and others, see each other.
        bench.write(4096, &[7; 4096]).await;
        assert_eq!(bench.read(4097, 4095).await, [7; 4095]);
        bench.write(4097, &[8; 2]).await;
        assert_eq!(bench.read(4096, 4096).await[..4], [7, 8, 8, 7]);
    });
}

/// A closing connection drops the futures of its requests, while threads still carry them out.
#[test]
fn requests_that_follow_the_drop_of_a_change_wait_for_it() {
    const LEN: usize = 8192;
    let changes = |pool: &Pool| {
        let mut old = pool.try_alloc(LEN).expect("there is room");
        old.extend_from_slice(&[b'o'; LEN]);
        let write = BlockOp::Write { offset: 0, data: vec![old.freeze()], durable: false };
        let (offset, len, durable) = (0, LEN as u64, false);
        let zeroes = BlockOp::WriteZeroes { offset, len, durable, keep_space: false, fast: false };
        [
            ("direct", write),
            ("file", BlockOp::Trim { offset, len, durable }),
            ("file", zeroes.clone()),
            ("ram", zeroes),
        ]
    };
    for (name, change) in changes(&Pool::new(4 * MAX_BUF)) {
        let Some(bench) = every_block().into_iter().find(|bench| bench.name == name) else { continue };
        rt::block_on(async {
            let plain = bench.plain.as_ref().expect("it has a file");
            let held = plain.abandoned().hold();
            let mut dropped = bench.block.submit(change.clone());
            assert!(futures_util::poll!(&mut dropped).is_pending(), "{name}: {change:?}");
            // Until it has a thread.
            for _ in 0..100 {
                rt::yield_now().await;
            }
            drop(dropped);
            assert!(bench.block.memory().is_none(), "{name}: whoever writes to it does not wait");
            let mut next = Box::pin(bench.write(0, &[b'n'; LEN]));
            let mut reads = bench.block.submit(BlockOp::Read { offset: 0, len: LEN });
            assert!(futures_util::poll!(&mut next).is_pending(), "{name}: a write does not wait");
            assert!(futures_util::poll!(&mut reads).is_pending(), "{name}: a read does not wait");
            drop(held);
            next.await;
            reads.await.expect("it is read");
            assert_eq!(bench.read(0, LEN).await, [b'n'; LEN], "{name}: {change:?} came later");
            assert_eq!(bench.block.memory().is_some(), name == "ram");
        })
        .expect("the loop starts");
    }
}

/// fallocate excludes everybody else from the file until it ends, which takes minutes if a client has fragmented it.
#[test]
fn who_writes_to_a_volume_while_a_range_of_it_is_freed_waits_as_a_task() {
    let (offset, len, durable) = (0, 8192, false);
    let zeroes = |keep_space| BlockOp::WriteZeroes { offset, len, durable, keep_space, fast: false };
    for change in [BlockOp::Trim { offset, len, durable }, zeroes(false), zeroes(true)] {
        each(async |bench| {
            let Some(plain) = &bench.plain else { return };
            let held = plain.abandoned().hold();
            let mut changes = bench.block.submit(change.clone());
            assert!(futures_util::poll!(&mut changes).is_pending());
            assert!(busy::is_locked(plain.content()), "{}: {change:?}", bench.name);
            assert!(bench.block.memory().is_none(), "{}: whoever stores to it does not wait", bench.name);
            // Not aligned, so it goes by the page cache.
            let mut writes = Box::pin(bench.write(8193, b"after"));
            assert!(futures_util::poll!(&mut writes).is_pending(), "{}: {change:?}", bench.name);
            drop(held);
            changes.await.expect("it is changed");
            writes.await;
            assert_eq!(bench.read(8193, 5).await, b"after");
            assert!(!busy::is_locked(plain.content()), "nothing is left of it");
        });
    }
}

#[test]
fn direct_writes_wait_for_a_range_that_is_freed_in_no_workers_place() {
    let Some(bench) = every_block().into_iter().find(|bench| bench.name == "direct") else { return };
    rt::block_on(async {
        let plain = bench.plain.as_ref().expect("it has a file");
        let claim = busy::alone(Inode::of(plain.content()).expect("its inode")).await;
        let held = plain.abandoned().hold();
        let mut writes = Box::pin(bench.write(0, &[7; 4096]));
        assert!(futures_util::poll!(&mut writes).is_pending());
        drop(writes);
        assert!(!plain.abandoned().any(), "no worker has it");
        drop((held, claim));
        bench.write(0, &[7; 4096]).await;
    })
    .expect("the loop starts");
}

/// librbd goes on with a request whose future was dropped.
#[test]
fn what_an_image_is_asked_after_a_dropped_write_comes_after_it() {
    let Some(bench) = image() else { return };
    rt::block_on(async {
        for round in 0..200_u8 {
            let old =
                BlockOp::Write { offset: 0, data: vec![Bytes::from(vec![b'o'; 65_536])], durable: false };
            let mut dropped = bench.block.submit(old);
            assert!(futures_util::poll!(&mut dropped).is_pending(), "it is answered by the cluster");
            drop(dropped);
            bench.write(0, &[round; 8192]).await;
            assert_eq!(bench.read(0, 8192).await, [round; 8192]);
        }
    })
    .expect("the loop starts");
}
