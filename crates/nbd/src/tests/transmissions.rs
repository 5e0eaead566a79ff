//! Requests and their outcomes, with simple and with structured replies.

use weft_machine::{buf, rt};
use weft_wire::nbd::transmission::{Chunk, Code, Command, Descriptor, command_flags as flag};

use super::client::{Client, SIZE, server, tell};
use crate::Limits;

const HOLE: u32 = Descriptor::HOLE | Descriptor::ZERO;

fn pattern(len: usize, seed: u8) -> Vec<u8> {
    (0..len).map(|i| (i as u8).wrapping_mul(31).wrapping_add(seed)).collect()
}

/// Runs a story once with each kind of reply.
fn each<F: Future<Output = ()>>(story: impl Fn(Client) -> F) {
    for structured in [false, true] {
        tell(async {
            story(Client::go(&server(&["vol1"], Limits::default()), "vol1", structured).await).await
        });
    }
}

#[test]
fn what_was_written_is_read() {
    each(|mut client| async move {
        // Small ones from memory, large ones by sendfile, one in pieces; at unaligned offsets, too.
        for (offset, len) in
            [(0, 4096), (513, 1), (1, 65_536), (4096, 65_537), (777, 3 << 20), (SIZE - (9 << 20), 9 << 20)]
        {
            let data = pattern(len, offset as u8);
            assert_eq!(client.write(0, offset, &data).await, None);
            assert!(client.read(offset, len as u32).await == data, "{len} bytes at {offset}");
        }
        assert_eq!(client.write(flag::FUA, 5, b"durable").await, None);
        assert_eq!(client.read(4, 9).await[1..8], *b"durable");
    });
}

#[test]
fn the_longest_requests_pass_and_longer_ones_do_not() {
    each(|mut client| async move {
        let most = 32 << 20;
        assert_eq!(client.write(flag::FUA, 3, &pattern(most, 1)).await, None);
        assert!(client.read(3, most as u32).await == pattern(most, 1));
        let answer = client.call(Command::READ, 0, 0, most as u32 + 1).await;
        assert_eq!(answer.error, Some(Code::Invalid));
    });
}

#[test]
fn many_requests_at_once_are_answered_each_by_its_cookie() {
    each(|mut client| async move {
        let mut open = std::collections::HashMap::new();
        for i in 0..500_u64 {
            let data = pattern(512, i as u8);
            open.insert(client.ask(Command::WRITE, 0, i * 512, 512, &data).await, i);
        }
        while !open.is_empty() {
            let answer = client.answer(0, 0).await;
            assert!(open.remove(&answer.cookie).is_some() && answer.error.is_none());
        }
        for i in 0..500_u64 {
            open.insert(client.ask(Command::READ, 0, i * 512, 512, &[]).await, i);
        }
        // Replies may come in any order; these were all cached, and come in the order of the requests.
        for i in 0..500_u64 {
            let answer = client.answer(i * 512, 512).await;
            assert_eq!((open.remove(&answer.cookie), answer.data), (Some(i), pattern(512, i as u8)));
        }
    });
}

#[test]
fn zeros_and_trims_and_flushes() {
    each(|mut client| async move {
        client.write(0, 0, &pattern(1 << 20, 9)).await;
        for flags in [0, flag::FUA, flag::NO_HOLE, flag::NO_HOLE | flag::FUA, flag::FAST_ZERO] {
            assert_eq!(client.call(Command::WRITE_ZEROES, flags, 4097, 70_000).await.error, None);
            assert_eq!(client.read(4097, 70_000).await, vec![0; 70_000]);
            assert_eq!(client.read(4000, 97).await, pattern(1 << 20, 9)[4000..4097]);
            client.write(0, 4097, &pattern(70_000, 3)).await;
        }
        assert_eq!(client.call(Command::TRIM, 0, 8192, 8192).await.error, None);
        assert_eq!(client.call(Command::FLUSH, 0, 0, 0).await.error, None);
        assert_eq!(client.call(Command::CACHE, 0, 0, 1 << 20).await.error, None);
        // The whole volume at once, which exceeds the limit of a READ.
        assert_eq!(client.call(Command::WRITE_ZEROES, 0, 0, SIZE as u32).await.error, None);
        assert_eq!(client.read(0, 1 << 20).await, vec![0; 1 << 20]);
    });
}

#[test]
fn payload_is_not_copied_but_what_comes_with_a_header() {
    each(|mut client| async move {
        let bytes = |since: (u64, u64)| buf::copies().1 - since.1;
        let before = buf::copies();
        assert_eq!(client.write(0, 0, &pattern(1 << 20, 1)).await, None);
        assert!(bytes(before) <= 8192, "{} bytes of a WRITE were copied", bytes(before));
        let before = buf::copies();
        for len in [512, 65_536, 1 << 20] {
            client.read(0, len).await;
        }
        assert_eq!(bytes(before), 0);
    });
}

#[test]
fn nothing_is_done_with_nothing() {
    each(|mut client| async move {
        for command in [Command::READ, Command::TRIM, Command::WRITE_ZEROES, Command::CACHE] {
            for offset in [0, SIZE] {
                assert_eq!(client.call(command, 0, offset, 0).await.error, None, "{command:?}");
            }
        }
        assert_eq!(client.write(0, 7, b"").await, None);
    });
}

#[test]
fn what_is_refused_has_a_reason_and_the_connection_goes_on() {
    each(|mut client| async move {
        let structured = client.structured;
        for (command, flags, offset, len, expected) in [
            (Command::READ, 0, SIZE, 1, Code::Invalid),
            (Command::READ, 0, u64::MAX, 2, Code::Invalid),
            (Command::READ, flag::NO_HOLE, 0, 1, Code::Invalid),
            (Command::READ, 1 << 9, 0, 1, Code::Invalid),
            (Command::TRIM, 0, SIZE - 1, 2, Code::NoSpace),
            (Command::TRIM, flag::DF, 0, 1, Code::Invalid),
            (Command::WRITE_ZEROES, 0, SIZE - 1, u32::MAX, Code::NoSpace),
            (Command::FLUSH, 0, 1, 0, Code::Invalid),
            (Command::FLUSH, 0, 0, 1, Code::Invalid),
            (Command(8), 0, 0, 0, Code::Invalid),
            (Command(999), 0, 0, u32::MAX, Code::Invalid),
        ] {
            let answer = client.call(command, flags, offset, len).await;
            assert_eq!(answer.error, Some(expected), "{command:?} {flags} {offset} {len}");
            // An error text, if the reply has space for it.
            assert_eq!(
                structured,
                matches!(&answer.chunks[..], [Chunk::Error { message, .. }] if !message.is_empty())
            );
        }
        // A refused WRITE is still followed by its payload.
        for (flags, offset, expected) in
            [(0, SIZE - 100, Code::NoSpace), (0, u64::MAX, Code::NoSpace), (flag::REQ_ONE, 0, Code::Invalid)]
        {
            assert_eq!(client.write(flags, offset, &[1; 5000]).await, Some(expected));
        }
        assert_eq!(client.read(SIZE - 100, 100).await, [0; 100]);
    });
}

#[test]
fn without_fragments_there_is_one_chunk() {
    tell(async {
        let server = server(&["vol1"], Limits::default());
        let mut client = Client::go(&server, "vol1", true).await;
        client.write(0, 1 << 20, &pattern(4096, 5)).await;
        for flags in [0, flag::DF] {
            let answer = client.call(Command::READ, flags, 0, 2 << 20).await;
            assert_eq!((answer.error, answer.pieces), (None, 1));
            assert_eq!(answer.data[1 << 20..][..4096], pattern(4096, 5));
        }
        // DF requires structured replies.
        let mut simple = Client::go(&server, "vol1", false).await;
        assert_eq!(simple.call(Command::READ, flag::DF, 0, 512).await.error, Some(Code::Invalid));
    });
}

#[test]
fn the_status_tells_data_from_holes() {
    tell(async {
        let server = server(&["vol1"], Limits { extents: 4, ..Limits::default() });
        let mut client = Client::go(&server, "vol1", true).await;
        for i in 1..10_u64 {
            client.write(0, i << 20, &[1; 65_536]).await;
        }
        let status = |answer: super::client::Answer| match &answer.chunks[..] {
            [Chunk::BlockStatus { context: 1, descriptors }] => descriptors.clone(),
            other => panic!("{other:?} {:?}", answer.error),
        };
        let descriptors = status(client.call(Command::BLOCK_STATUS, 0, 0, SIZE as u32).await);
        let hole = Descriptor { len: (1 << 20) - 65_536, flags: HOLE };
        let data = Descriptor { len: 65_536, flags: 0 };
        // At most the limit; the client continues from there.
        assert_eq!(descriptors, [Descriptor { len: 1 << 20, flags: HOLE }, data, hole, data]);
        let one = status(client.call(Command::BLOCK_STATUS, flag::REQ_ONE, 1 << 20, 1 << 20).await);
        assert_eq!(one, [data]);
        let rest = status(client.call(Command::BLOCK_STATUS, 0, 10 << 20, SIZE as u32 - (10 << 20)).await);
        assert_eq!(rest, [Descriptor { len: SIZE as u32 - (10 << 20), flags: HOLE }]);
        for (offset, len) in [(0, 0), (SIZE, 1), (1, SIZE as u32)] {
            let answer = client.call(Command::BLOCK_STATUS, 0, offset, len).await;
            assert_eq!(answer.error, Some(Code::Invalid));
        }
    });
}

#[test]
fn a_read_only_volume_refuses_what_would_change_it() {
    tell(async {
        let mut client = Client::go(&server(&["ro1"], Limits::default()), "ro1", true).await;
        assert_eq!(client.write(0, 0, b"no").await, Some(Code::Permission));
        for command in [Command::TRIM, Command::WRITE_ZEROES] {
            assert_eq!(client.call(command, 0, 0, 512).await.error, Some(Code::Permission));
        }
        assert_eq!(client.call(Command::FLUSH, 0, 0, 0).await.error, None);
        assert_eq!(client.read(0, 2).await, [0, 0]);
    });
}

#[test]
fn several_connections_see_one_volume() {
    tell(async {
        let server = server(&["vol1"], Limits::default());
        let mut one = Client::go(&server, "vol1", true).await;
        let mut two = Client::go(&server, "vol1", false).await;
        one.write(0, 4096, b"seen").await;
        assert_eq!(two.read(4096, 4).await, b"seen");
        assert_eq!(two.call(Command::FLUSH, 0, 0, 0).await.error, None);
    });
}

#[test]
fn goodbye_waits_for_what_is_under_way() {
    tell(async {
        let mut client = Client::go(&server(&["vol1"], Limits::default()), "vol1", false).await;
        let cookie = client.ask(Command::WRITE_ZEROES, 0, 0, SIZE as u32, &[]).await;
        client.ask(Command::DISC, 0, 0, 0, &[]).await;
        assert_eq!(client.answer(0, 0).await.cookie, cookie);
        assert!(client.is_over().await && client.ended.wait().await.is_ok());
    });
}

#[test]
fn a_server_that_drains_answers_what_it_has_taken() {
    tell(async {
        let server = server(&["vol1"], Limits::default());
        let mut client = Client::go(&server, "vol1", false).await;
        let idle = Client::go(&server, "vol1", true).await;
        let handshaking = Client::connect(&server).await;
        let cookie = client.ask(Command::WRITE_ZEROES, 0, 0, SIZE as u32, &[]).await;
        rt::yield_now().await;
        server.drain();
        assert_eq!(client.answer(0, 0).await.cookie, cookie);
        assert!(client.is_over().await && idle.is_over().await);
        drop((client.stream, idle.stream));
        client.ended.wait().await.expect("in order");
        idle.ended.wait().await.expect("in order");
        // A client that has chosen no export loses nothing.
        drop(handshaking.stream);
        handshaking.ended.wait().await.expect("in order");
    });
}
