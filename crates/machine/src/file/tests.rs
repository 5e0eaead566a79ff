use std::future::poll_fn;
use std::pin::Pin;
use std::task::Poll;

use super::*;
use crate::buf::Pool;
use crate::net::{Socket, Stream};

/// A file in memory and one on disk, both with the content `bytes`; the one on disk is evicted from the page cache if
/// possible.
fn files_of(bytes: &[u8]) -> [File; 2] {
    let memory = File::in_memory("file-test").expect("memfd");
    let disk = tempfile::tempfile_in(env!("CARGO_MANIFEST_DIR")).expect("a temporary file");
    let disk = File::from(OwnedFd::from(disk));
    run(async {
        for file in [&memory, &disk] {
            file.write_at(0, &[Bytes::copy_from_slice(bytes)]).await.expect("write");
        }
    });
    rustix::fs::fsync(&disk).expect("sync");
    rustix::fs::fadvise(&disk, 0, None, rustix::fs::Advice::DontNeed).expect("advice");
    [memory, disk]
}

fn numbers(len: usize) -> Vec<u8> {
    (0..len as u32).flat_map(|i| i.to_le_bytes()).take(len).collect()
}

fn content(window: &Window, len: usize) -> Vec<u8> {
    let mut bytes = vec![0xa5; len];
    assert!(window.read_at(0, &mut bytes));
    bytes
}

fn window(pool: &Pool, len: usize) -> Window {
    let mut buf = pool.try_alloc(len).expect("room");
    buf.set_len(len);
    buf.fill(0xa5);
    buf.into_window()
}

fn run(test: impl Future<Output = ()>) {
    rt::block_on(test).expect("the loop starts");
}

#[test]
fn reads_fill_the_window_and_stop_at_the_end() {
    run(async {
        let pool = Pool::new(1 << 24);
        let all = numbers(3_000_000);
        for file in files_of(&all) {
            assert_eq!(file.len().expect("size"), 3_000_000);
            let into = window(&pool, 2_000_000);
            assert_eq!(file.read_at(500_000, &into).await.expect("read"), 2_000_000);
            assert!(content(&into, 2_000_000) == all[500_000..2_500_000]);
            let into = window(&pool, 2_000_000);
            assert_eq!(file.read_at(2_999_990, &into).await.expect("read"), 10);
            assert_eq!(content(&into, 11)[..10], all[2_999_990..]);
            assert_eq!(content(&into, 11)[10], 0xa5, "nothing beyond what was read is touched");
            assert_eq!(file.read_at(3_000_000, &into).await.expect("read"), 0);
            // Now that it has been read it is in the page cache.
            assert_eq!(file.try_read_at(600_000, &window(&pool, 100)).expect("cached").expect("read"), 100);
            file.read_at(u64::MAX - 1, &into).await.expect_err("there is no such place");
        }
    });
}

#[test]
fn a_chain_of_any_length_is_written_in_order() {
    run(async {
        let all = Bytes::from(numbers(100_000));
        // More pieces than one call takes, some empty.
        let mut chain = vec![Bytes::new()];
        for (i, start) in (0..all.len()).step_by(100).enumerate() {
            chain.push(all.slice(start..start + 100));
            if i % 7 == 0 {
                chain.push(Bytes::new());
            }
        }
        assert!(chain.len() > 3 * SLICES_PER_CALL);
        for file in files_of(b"xx") {
            file.write_at(5, &chain).await.expect("write");
            file.write_at(0, &[]).await.expect("nothing is no error");
            file.write_at(0, &[Bytes::new()]).await.expect("nothing is no error");
            let mut read = vec![0; 100_005];
            assert_eq!(rustix::io::pread(&file, &mut read[..], 0).expect("read"), 100_005);
            assert_eq!(read[..5], *b"xx\0\0\0", "the gap reads as zeros");
            assert!(read[5..] == all);
            file.sync(true).await.expect("sync");
            file.sync(false).await.expect("sync");
            file.write_at(u64::MAX - 1, &[Bytes::from_static(b"far")]).await.expect_err("no such place");
            file.set_len(3).expect("truncate");
            assert_eq!(file.len().expect("size"), 3);
            assert!(!file.is_empty().expect("size"));
        }
    });
}

#[test]
fn a_range_is_filled_up_with_zeros_when_the_file_has_shrunk() {
    run(async {
        let pool = Pool::new(1 << 24);
        for file in files_of(&numbers(10_000)) {
            let range = FileRange { file: file.clone(), offset: 100, len: 9_900 };
            file.set_len(5_000).expect("truncate");
            let into = window(&pool, 9_901);
            range.read_into(&into).await.expect("read");
            let bytes = content(&into, 9_901);
            assert!(bytes[..4_900] == numbers(10_000)[100..5_000]);
            assert!(bytes[4_900..9_900].iter().all(|&byte| byte == 0));
            assert_eq!(bytes[9_900], 0xa5);
            let small = window(&pool, 9_899);
            range.read_into(&small).await.expect_err("the window is too small");
        }
    });
}

#[test]
fn warming_brings_a_range_into_the_page_cache() {
    run(async {
        let all = numbers(2_500_000);
        for file in files_of(&all) {
            let range = FileRange { file: file.clone(), offset: 1000, len: 2_400_000 };
            range.warm(0, range.len).await.expect("warm");
            assert!(file.0.is_cached(1000) && file.0.is_cached(2_400_999));
            range.warm(5, 0).await.expect("nothing is no error");
            range.warm(range.len - 1, 1_000_000).await.expect("past the end is no error");
        }
        // Cold again: a send reads what it needs piece by piece.
        for file in files_of(&all) {
            let range = FileRange { file, offset: 1000, len: 2_400_000 };
            let (ours, theirs) = std::os::unix::net::UnixStream::pair().expect("socketpair");
            let reader = std::thread::spawn(move || {
                let mut theirs = theirs;
                let mut got = Vec::new();
                io::Read::read_to_end(&mut theirs, &mut got).map(|_| got)
            });
            let ours = Stream::from_socket(Socket::from_unix(ours).expect("a pair")).expect("take over");
            ours.send_file(&range).await.expect("send file");
            drop(ours);
            let got = reader.join().expect("the reader ends").expect("read");
            assert!(got == all[1000..2_401_000]);
        }
    });
}

#[test]
fn a_query_of_the_page_cache_covers_what_lies_around() {
    run(async {
        let system = File::from(OwnedFd::from(tempfile::tempfile().expect("a file")));
        system.write_at(0, &[Bytes::from(numbers((2 << 20) + 5))]).await.expect("write");
        let range = |offset, len| FileRange { file: system.clone(), offset, len };
        assert!(range(200 << 10, 64 << 10).begins_warm());
        let knows = |bytes| system.0.warm.knows(&bytes, rt::now());
        // An older kernel tells of less.
        let tells = resident::around(system.as_fd(), &(0..1)).is_some();
        assert_eq!(knows(0..1 << 20), tells);
        assert!(!knows(1 << 20..(1 << 20) + 1));
        // Past the end nothing is cached.
        assert_eq!(resident::around(system.as_fd(), &(2 << 20..(2 << 20) + 5)), None);
        assert_eq!(resident::around(system.as_fd(), &(0..1 << 20)), None, "that is no more than the range");
        assert_eq!(resident::around(system.as_fd(), &(u64::MAX - 5..u64::MAX)), None);
    });
}

#[test]
fn a_file_in_memory_shrinks_and_grows_without_showing_old_bytes() {
    run(async {
        let pool = Pool::new(0);
        let file = File::in_memory("grow").expect("memfd");
        file.write_at(0, &[Bytes::from(numbers(10_000))]).await.expect("write");
        let all = window(&pool, 16_384);
        assert_eq!(file.read_at(0, &all).await.expect("read"), 10_000);
        file.set_len(5000).expect("shrink");
        assert_eq!(file.len().expect("length"), 5000);
        assert_eq!(file.read_at(0, &all).await.expect("read"), 5000);
        assert_eq!(file.read_at(5000, &all).await.expect("read"), 0);
        file.set_len(12_000).expect("grow");
        assert_eq!(file.read_at(0, &all).await.expect("read"), 12_000);
        let bytes = content(&all, 12_000);
        assert_eq!(bytes[..5000], numbers(10_000)[..5000]);
        assert!(bytes[5000..].iter().all(|b| *b == 0), "what was cut off stays zero");
        // Longer than what was mapped for the reads above.
        file.write_at(300_000, &[Bytes::from_static(b"far")]).await.expect("write");
        assert_eq!(file.read_at(299_999, &all).await.expect("read"), 4);
        assert_eq!(content(&all, 4), b"\0far");
        assert_eq!(file.read_at(1 << 40, &all).await.expect("read"), 0);
    });
}

#[test]
fn reads_of_a_file_in_memory_survive_truncation_at_any_moment() {
    let file = File::in_memory("race").expect("memfd");
    let full = Bytes::from(vec![7u8; 1 << 20]);
    let other = file.clone();
    let bytes = full.clone();
    let truncating = std::thread::spawn(move || {
        run(async {
            for _ in 0..300 {
                other.set_len(1).expect("shrink");
                other.write_at(0, std::slice::from_ref(&bytes)).await.expect("write");
            }
        });
    });
    run(async {
        let pool = Pool::new(0);
        let all = window(&pool, 1 << 20);
        while !truncating.is_finished() {
            file.read_at(0, &all).await.expect("read");
        }
        file.set_len(0).expect("shrink");
        file.write_at(0, std::slice::from_ref(&full)).await.expect("write");
        assert_eq!(file.read_at(0, &all).await.expect("read"), 1 << 20);
        assert!(content(&all, 1 << 20).iter().all(|b| *b == 7));
    });
    truncating.join().expect("no panic");
}

#[test]
fn a_file_in_memory_is_written_over_in_place_where_it_has_pages_and_nowhere_else() {
    run(async {
        let pool = Pool::new(1 << 24);
        let file = File::in_memory("over").expect("memfd");
        let memory = file.0.memory.as_ref().expect("its own length");
        let in_place = |offset, bytes: &[u8]| memory.write_at(file.as_fd(), offset, bytes);
        assert_eq!(in_place(0, &[1; 8192]), 0, "nothing is there yet");
        // Pages 0 to 99, a hole up to page 200, and one more page.
        let mut all = numbers(100 * 4096);
        file.write_at(0, &[Bytes::from(all.clone())]).await.expect("write");
        file.write_at(200 * 4096, &[Bytes::from(vec![9; 4096])]).await.expect("write");
        all.resize(200 * 4096, 0);
        all.extend([9; 4096]);
        let end = all.len() as u64;
        assert_eq!(in_place(100 * 4096, &[1; 8192]), 0, "a hole has no pages");
        assert_eq!(in_place(end - 10, &[1; 8192]), 0, "ten bytes are for the descriptor");
        assert_eq!(in_place(u64::MAX - 10, &[1; 8192]), 0, "there is no such place");
        let up_to_the_hole = in_place(98 * 4096, &[3; 5 * 4096]);
        assert!(up_to_the_hole <= 2 * 4096, "up to the hole");
        all[98 * 4096..][..up_to_the_hole].fill(3);
        // From page 50, across the end of one query's range, through the hole, to beyond the end.
        let long: Vec<u8> = numbers(160 * 4096).iter().map(|byte| !byte).collect();
        file.write_at(50 * 4096 + 7, &[Bytes::from(long.clone())]).await.expect("write");
        all.resize(all.len().max(50 * 4096 + 7 + long.len()), 0);
        all[50 * 4096 + 7..][..long.len()].copy_from_slice(&long);
        assert_eq!(file.len().expect("length"), all.len() as u64);
        // Pages that the system has swapped out come back with a write.
        let over = Bytes::from(vec![4; 150 * 4096]);
        let mut again = 0;
        while in_place(5, &over) != over.len() {
            again += 1;
            assert!(again < 1000, "what was just written has no pages");
            file.write_at(5, std::slice::from_ref(&over)).await.expect("write");
        }
        all[5..][..over.len()].fill(4);
        let into = window(&pool, all.len() + 1);
        assert_eq!(file.read_at(0, &into).await.expect("read"), all.len());
        assert!(content(&into, all.len()) == all, "by the mapping");
        let mut by_descriptor = vec![0; all.len() + 1];
        assert_eq!(rustix::io::pread(&file, &mut by_descriptor, 0).expect("read"), all.len());
        assert!(by_descriptor[..all.len()] == all, "by the descriptor");
    });
}

#[test]
fn pages_that_a_file_in_memory_has_lost_are_not_taken_for_there() {
    run(async {
        const CHUNK: u64 = 64 << 10;
        let file = File::in_memory("lost").expect("memfd");
        let memory = file.0.memory.as_ref().expect("its own length");
        let all = Bytes::from(vec![1; 5 * CHUNK as usize]);
        let in_place = |offset, len| memory.write_at(file.as_fd(), offset, &all[..len]);
        let lost_by_each_way: [Pin<Box<dyn Future<Output = io::Result<()>>>>; 4] = [
            // One page each in the second and the third chunk.
            Box::pin(file.punch_hole(2 * CHUNK - 4096, 8192)),
            Box::pin(file.zero_range(2 * CHUNK - 4096, 8192)),
            Box::pin(async { file.set_len(2 * CHUNK - 4096).and_then(|()| file.set_len(5 * CHUNK)) }),
            Box::pin(async { file.set_len(0).and_then(|()| file.set_len(5 * CHUNK)) }),
        ];
        for lost in lost_by_each_way {
            // The longer file is remapped, and keeps what was known. Pages that the system has swapped out come back
            // with a write.
            let mut again = 0;
            while in_place(0, all.len()) < all.len() || in_place(2 * CHUNK, 10) < 10 {
                again += 1;
                assert!(again < 1000, "what was just written has no pages");
                file.write_at(0, std::slice::from_ref(&all)).await.expect("write");
            }
            lost.await.expect("lost");
            assert_eq!(in_place(2 * CHUNK - 4096, 4096), 0, "a page of the second chunk is gone");
            assert_eq!(in_place(2 * CHUNK - 4096, 10), 0);
            assert_eq!(in_place(2 * CHUNK, 4096), 0, "and one of the third");
        }
    });
}

#[test]
fn a_file_in_memory_knows_what_it_takes_and_when_it_changed() {
    run(async {
        let file = File::in_memory("state").expect("memfd");
        let pages = Bytes::from(vec![1; 4 * 4096]);
        let state = || file.state_in_memory().expect("in memory");
        let never = state();
        assert_eq!((never.len, never.allocated, never.changed.as_nanos()), (0, 0, 0));
        let mut last = never.changed;
        let mut later = |what, len| {
            let now = state();
            assert!(now.changed > last, "{what}: each change has a later time");
            last = now.changed;
            let blocks = rustix::fs::fstat(&file).expect("it is there").st_blocks;
            assert_eq!((now.len, now.allocated), (len, blocks as u64 * 512), "{what}");
            assert_eq!(now, state());
        };
        for (at, len) in [(0, 4), (4, 8), (4, 8), (4, 8), (12, 16)] {
            // Beyond the end, over existing pages, through a gap.
            file.write_at(at * 4096, std::slice::from_ref(&pages)).await.expect("write");
            later("write", len * 4096);
        }
        file.punch_hole(4096, 8192).await.expect("punch");
        later("hole", 16 * 4096);
        file.allocate(0, 16 * 4096, true).await.expect("allocate");
        later("allocate", 16 * 4096);
        file.copy_from(16 * 4096, &file, 0, 4096).await.expect("copy");
        later("copy", 17 * 4096);
        file.set_len(4096).expect("cut");
        later("cut", 4096);
        let from = Pool::new(1 << 24).buf_from(&pages[..100]).expect("room").into_window();
        file.place_at(7, &from).expect("placed");
        later("place", 4096);
        let disk = files_of(b"x")[1].clone();
        assert_eq!(disk.state_in_memory().expect_err("on disk").kind(), io::ErrorKind::Unsupported);
    });
}

#[test]
fn what_a_peer_has_is_placed_over_pages_through_holes_and_behind_the_end() {
    run(async {
        let pool = Pool::new(1 << 24);
        let file = File::in_memory("place").expect("memfd");
        let mut all = numbers(100 * 4096);
        file.write_at(0, &[Bytes::from(all.clone())]).await.expect("write");
        file.write_at(200 * 4096, &[Bytes::from(vec![9; 4096])]).await.expect("write");
        all.resize(200 * 4096, 0);
        all.extend([9; 4096]);
        let peers = |len: usize| -> (Vec<u8>, Window) {
            let bytes: Vec<u8> = numbers(len).iter().map(|byte| !byte).collect();
            let buf = pool.buf_from(&bytes).expect("room");
            (bytes, buf.into_window())
        };
        // Over pages, over a few bytes, from pages through the hole to beyond the end, and only beyond the end.
        for (offset, len) in [(3, 70 * 4096), (5, 10), (60 * 4096 + 7, 150 * 4096), (all.len() + 99, 5000)] {
            let (bytes, peers) = peers(len);
            file.place_at(offset as u64, &peers).expect("placed");
            all.resize(all.len().max(offset + len), 0);
            all[offset..][..len].copy_from_slice(&bytes);
            assert_eq!(file.len().expect("length"), all.len() as u64);
            let into = window(&pool, all.len() + 1);
            assert_eq!(file.read_at(0, &into).await.expect("read"), all.len());
            assert!(content(&into, all.len()) == all, "{offset} {len}");
        }
        assert!(file.place_at(u64::MAX - 10, &peers(8192).1).is_err(), "there is no such place");
    });
}

#[test]
fn large_and_odd_reads_of_a_file_in_memory_are_exact() {
    run(async {
        let pool = Pool::new(1 << 24);
        let all = numbers(700_001);
        let file = File::in_memory("large").expect("memfd");
        file.write_at(0, &[Bytes::from(all.clone())]).await.expect("write");
        for (offset, len) in
            [(0, 65_535), (1, 65_536), (3, 65_537), (4096, 300_001), (0, 700_001), (17, 524_288)]
        {
            let into = window(&pool, len + 1);
            let into_exact = into.slice(0, len).expect("inside");
            assert_eq!(file.read_at(offset as u64, &into_exact).await.expect("read"), len);
            let bytes = content(&into, len + 1);
            assert!(bytes[..len] == all[offset..offset + len], "{len} at {offset}");
            assert_eq!(bytes[len], 0xa5, "nothing beyond is touched");
        }
    });
}

/// CRC32C bit by bit, as defined.
fn crc32c(bytes: &[u8]) -> u32 {
    !bytes.iter().fold(u32::MAX, |crc, byte| {
        (0..8).fold(crc ^ u32::from(*byte), |crc, _| crc >> 1 ^ (0x82f6_3b78 & (crc & 1).wrapping_neg()))
    })
}

#[test]
fn sums_of_a_file_in_memory_are_those_of_its_pieces() {
    assert_eq!(crc32c(b"123456789"), 0xe306_9283);
    run(async {
        let pool = Pool::new(1 << 24);
        let all = numbers(70_000);
        let file = File::in_memory("summed").expect("memfd");
        file.write_at(0, &[Bytes::from(all.clone())]).await.expect("write");
        for (offset, len, piece) in
            [(0, 64, 64), (0, 63, 64), (5, 5000, 640), (1, 69_000, 6400), (0, 70_000, 64), (9, 1000, 2048)]
        {
            let into = window(&pool, len + 1);
            let range = FileRange { file: file.clone(), offset: offset as u64, len };
            let mut sums = vec![7];
            range.try_read_summed(&into, piece, &mut sums).expect("in memory").expect("read");
            let bytes = content(&into, len + 1);
            assert!(bytes[..len] == all[offset..offset + len], "{len} at {offset}");
            assert_eq!(bytes[len], 0xa5, "nothing beyond is touched");
            if cfg!(target_arch = "x86_64") && std::arch::is_x86_feature_detected!("sse4.2") {
                let expected: Vec<_> = bytes[..len].chunks_exact(piece).map(crc32c).collect();
                assert_eq!(sums[1..], expected);
            }
        }
        // No checksums of pieces that are not whole lines, nor of bytes that the file has lost.
        let into = window(&pool, 70_000);
        let range = FileRange { file: file.clone(), offset: 0, len: 70_000 };
        let mut sums = Vec::new();
        range.try_read_summed(&into, 100, &mut sums).expect("in memory").expect("read");
        assert!(sums.is_empty());
        file.set_len(60_000).expect("shrink");
        range.try_read_summed(&into, 6400, &mut sums).expect("in memory").expect("read");
        assert!(sums.is_empty());
        assert!(content(&into, 70_000)[60_000..].iter().all(|b| *b == 0));
    });
}

#[test]
fn holes_are_punched_and_ranges_of_data_told() {
    const MIB: u64 = 1 << 20;
    for file in files_of(&vec![7; 4 << 20]) {
        run(async {
            file.punch_hole(MIB, MIB).await.expect("a hole");
            file.zero_range(3 * MIB, 10).await.expect("zeros");
            assert_eq!(file.len().expect("length"), 4 * MIB);
            let DataRanges { ranges, more } = file.data_ranges(0, u64::MAX, 10).await.expect("ranges");
            assert_eq!((&ranges[0], ranges.last().map(|r| r.end), more), (&(0..MIB), Some(4 * MIB), false));
            assert!(ranges[1].start == 2 * MIB);
            assert_eq!(file.data_ranges(MIB, MIB, 10).await.expect("ranges"), DataRanges::default());
            assert_eq!(
                file.data_ranges(100, 100, 10).await.expect("ranges"),
                DataRanges { ranges: std::iter::once(100..200).collect(), more: false }
            );
            assert_eq!(
                file.data_ranges(0, u64::MAX, 1).await.expect("ranges"),
                DataRanges { ranges: std::iter::once(0..MIB).collect(), more: true }
            );
            assert_eq!(file.data_ranges(9 * MIB, 1, 1).await.expect("ranges"), DataRanges::default());
            let pool = Pool::new(1 << 20);
            for (at, want) in [(0, 7), (MIB, 0), (3 * MIB + 9, 0), (3 * MIB + 10, 7)] {
                let into = window(&pool, 1);
                assert_eq!(file.read_at(at, &into).await.expect("read"), 1);
                assert_eq!(content(&into, 1), [want], "at {at}");
            }
        });
    }
}

#[test]
fn space_is_reserved_with_and_without_growth() {
    for file in files_of(b"abc") {
        run(async {
            file.allocate(0, 1 << 20, true).await.expect("room");
            assert_eq!(file.len().expect("length"), 3);
            file.allocate(0, 5000, false).await.expect("room");
            assert_eq!(file.len().expect("length"), 5000);
            file.allocate(7, 0, false).await.expect("nothing to do");
            let pool = Pool::new(1 << 20);
            let into = window(&pool, 5);
            assert_eq!(file.read_at(1, &into).await.expect("read"), 5);
            assert_eq!(content(&into, 5), b"bc\0\0\0");
        });
    }
}

#[test]
fn space_is_looked_for_and_reserved_in_one_trip_to_a_worker() {
    let trips = || rt::tests::BLOCKING_CALLS.get();
    for file in files_of(b"abc") {
        run(async {
            let before = trips();
            for keep_size in [true, false] {
                file.allocate(0, 1 << 20, keep_size).await.expect("room");
            }
            assert_eq!(trips() - before, 2);
            file.allocate(2 << 20, 0, false).await.expect("nothing to do");
            assert_eq!(trips() - before, 2);
            assert_eq!(file.len().expect("length"), 1 << 20, "no space, no growth");
        });
    }
}

/// The length that a file in memory reports is the file's, even if a caller no longer waits.
#[test]
fn a_reservation_that_nobody_waits_for_makes_the_file_as_long_as_it_is() {
    let file = File::in_memory("allocate").expect("memfd");
    run(async {
        let mut reserving = Box::pin(file.allocate(0, 1 << 20, false));
        let before = rt::tests::BLOCKING_CALLS.get();
        while rt::tests::BLOCKING_CALLS.get() == before {
            let polled = poll_fn(|cx| Poll::Ready(reserving.as_mut().poll(cx).is_ready())).await;
            assert!(!polled, "it runs elsewhere");
            // Concurrent tests may take all worker places, and the worker gets its call in a later turn.
            rt::yield_now().await;
        }
        drop(reserving);
        // The worker finishes the call, and drops its reference to the file.
        while Arc::strong_count(&file.0) > 1 {
            rt::yield_now().await;
        }
        assert_eq!(file.len().expect("length"), 1 << 20);
        assert_eq!(rustix::fs::fstat(&file).expect("it is there").st_size, 1 << 20);
    });
}

/// Otherwise a file that grows later would show what it has copied behind its end.
#[test]
fn a_copy_that_nobody_waits_for_makes_the_file_as_long_as_it_is() {
    let [source, _] = files_of(&numbers(1 << 20));
    // By the kernel, and by hand within one file.
    for is_same in [false, true] {
        let target = if is_same { source.clone() } else { File::in_memory("copy").expect("memfd") };
        let at = if is_same { 1 << 19 } else { 0 };
        run(async {
            let mut copying = Box::pin(target.copy_from(at, &source, 0, 1 << 20));
            let before = rt::tests::BLOCKING_CALLS.get();
            while rt::tests::BLOCKING_CALLS.get() == before {
                let polled = poll_fn(|cx| Poll::Ready(copying.as_mut().poll(cx).is_ready())).await;
                assert!(!polled, "it runs elsewhere");
                rt::yield_now().await;
            }
            drop(copying);
            drop(busy::shared_of(&target).await.expect("the worker ends"));
            assert_eq!(target.len().expect("length"), at + (1 << 20));
        });
    }
}

#[test]
fn a_truncation_frees_what_was_reserved_past_the_end() {
    for file in files_of(b"abc") {
        run(async {
            file.allocate(0, 1 << 20, true).await.expect("room");
            file.set_len(1).expect("shorter");
            let (_, allocated) = file.links_and_allocated().expect("it is there");
            assert!(allocated <= 64 << 10, "{allocated}");
        });
    }
}

/// lseek passes one extent after the other, and a short file has few.
#[test]
fn holes_of_a_file_that_may_be_fragmented_are_sought_on_a_worker() {
    let trips = || rt::tests::BLOCKING_CALLS.get();
    for (len, expected) in [(64 << 10, 0), (2 << 20, 1)] {
        for file in files_of(&vec![7; len]) {
            run(async {
                let before = trips();
                let DataRanges { ranges, more } = file.data_ranges(0, u64::MAX, 1).await.expect("ranges");
                assert_eq!((ranges.len(), ranges[0].end, more), (1, len as u64, false));
                assert_eq!(trips() - before, expected);
            });
        }
    }
}

/// A file that is locked for minutes occupies one worker, however many callers there are.
#[test]
fn holes_of_one_file_are_sought_by_one_worker_at_a_time() {
    let [_, file] = files_of(&vec![7; 2 << 20]);
    run(async {
        let mut all: Vec<_> = (0..50).map(|_| Box::pin(file.data_ranges(0, u64::MAX, 1))).collect();
        let before = rt::tests::BLOCKING_CALLS.get();
        poll_fn(|cx| {
            assert!(all.iter_mut().all(|one| one.as_mut().poll(cx).is_pending()));
            Poll::Ready(())
        })
        .await;
        let handed = rt::tests::BLOCKING_CALLS.get() - before;
        assert!(handed <= 1, "{handed}");
        for one in all {
            assert!(!one.await.expect("ranges").more);
        }
        assert_eq!(rt::tests::BLOCKING_CALLS.get() - before, 50);
    });
}

#[test]
fn what_the_disk_has_no_room_for_takes_none_of_it() {
    let [_, file] = files_of(b"");
    run(async {
        // More than ext4's maximum file size: an attempt would fail with another error, and would fill no disk.
        for keep_size in [false, true] {
            let refused = file.allocate(0, 1 << 45, keep_size).await.expect_err("no disk is so large");
            assert_eq!(refused.kind(), io::ErrorKind::StorageFull, "{refused}");
        }
        assert_eq!(file.len().expect("length"), 0);
        assert_eq!(rustix::fs::fstat(&file).expect("it is there").st_blocks, 0);
    });
}

/// Otherwise the copy of a large file onto itself would hold its worker place, and the file, until all of it is done.
#[test]
fn what_is_copied_or_zeroed_by_hand_gives_its_worker_back_after_each_piece() {
    const MIB: u64 = 1 << 20;
    let trips = || rt::tests::BLOCKING_CALLS.get();
    run(async {
        // Backwards and forwards.
        for (from, at) in [(0, 2 * MIB), (2 * MIB, 0)] {
            let file = File::in_memory("onto itself").expect("memfd");
            let bytes = numbers(40 << 20);
            file.write_at(from, &[Bytes::from(bytes.clone())]).await.expect("write");
            let before = trips();
            assert_eq!(file.copy_from(at, &file, from, 40 * MIB).await.expect("copied"), 40 * MIB);
            assert_eq!(trips() - before, 3);
            let pool = Pool::new(1 << 26);
            for part in 0..40 {
                let into = window(&pool, 1 << 20);
                file.read_at(at + part * MIB, &into).await.expect("read");
                let expected = &bytes[(part << 20) as usize..][..1 << 20];
                assert!(content(&into, 1 << 20) == expected, "{part} of {from} to {at}");
            }
        }
        let file = File::in_memory("zeroed").expect("memfd");
        file.write_at(0, &[Bytes::from(numbers(40 << 20))]).await.expect("write");
        let before = trips();
        file.write_zeros(MIB, 40 * MIB - 5).await.expect("zeros");
        assert_eq!(trips() - before, 3);
        let pool = Pool::new(1 << 20);
        for (at, is_zero) in
            [(MIB - 4, false), (MIB, true), (17 * MIB - 2, true), (40 * MIB - 9, true), (40 * MIB - 4, false)]
        {
            let into = window(&pool, 4);
            file.read_at(at, &into).await.expect("read");
            assert_eq!(content(&into, 4) == [0; 4], is_zero, "{at}");
        }
    });
}

#[test]
fn copies_go_between_files_and_within_one() {
    let bytes = numbers(3 << 20);
    let all = files_of(&bytes);
    run(async {
        for source in &all {
            for target in files_of(b"") {
                // Past the end there is nothing to copy.
                assert_eq!(target.copy_from(5, source, 1 << 20, u64::MAX / 4).await.expect("copy"), 2 << 20);
                assert_eq!(target.len().expect("length"), (2 << 20) + 5);
                assert_eq!(target.copy_from(0, source, 9 << 20, 10).await.expect("copy"), 0);
                let pool = Pool::new(4 << 20);
                let into = window(&pool, 2 << 20);
                assert_eq!(target.read_at(5, &into).await.expect("read"), 2 << 20);
                assert!(content(&into, 2 << 20) == bytes[1 << 20..]);
            }
        }
        for file in &all {
            for (at, from) in [(1000, 0), (0, 1000)] {
                let mut want = bytes.clone();
                want.copy_within(from..from + (2 << 20), at);
                file.write_at(0, &[Bytes::copy_from_slice(&bytes)]).await.expect("write");
                let copied = file.copy_from(at as u64, file, from as u64, 2 << 20).await.expect("copy");
                assert_eq!(copied, 2 << 20);
                let pool = Pool::new(4 << 20);
                let into = window(&pool, 3 << 20);
                assert_eq!(file.read_at(0, &into).await.expect("read"), 3 << 20);
                assert!(content(&into, 3 << 20) == want, "{from} to {at}");
            }
            assert!(file.copy_from(u64::MAX - 1, file, 0, 10).await.is_err());
        }
    });
}

#[test]
fn blocks_are_shared_or_it_is_said_that_they_cannot_be() {
    let [memory, disk] = files_of(&numbers(1 << 20));
    run(async {
        let kind = |outcome: io::Result<()>| outcome.map_err(|e| e.kind());
        assert_eq!(kind(memory.clone_range(0, &memory, 4096, 4096).await), Err(io::ErrorKind::Unsupported));
        assert_eq!(kind(memory.clone_range(0, &disk, 0, 4096).await), Err(io::ErrorKind::Unsupported));
        // Whether this disk supports it does not matter; nothing else may fail.
        match kind(disk.clone_range(0, &disk, 4096, 4096).await) {
            Ok(()) | Err(io::ErrorKind::Unsupported) => {}
            other => panic!("{other:?}"),
        }
        disk.clone_range(0, &disk, 0, 0).await.expect("nothing to do");
    });
}
