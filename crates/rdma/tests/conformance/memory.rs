//! RDMA Write and Read: which memory they reach, and which they must not.

use bytes::Bytes;
use weft_machine::{File, FileRange, Payload, buf};
use weft_rdma::{Access, Done, PostError, Refusal, Segment, Stag, Work};

use crate::net::{End, FILL, Net, Pair, part, pattern};

pub async fn a_write_is_there_when_the_next_send_arrives(net: &Net) {
    let Pair { client, server } = net.connect().await;
    for (round, len) in [1, 4, 1000, 4096, 65_536, 1 << 20].into_iter().enumerate() {
        let region = server.region(len, Access::RemoteWrite);
        server.recv(1, 16);
        client.write(2, pattern(round as u64, len), region);
        client.send(3, b"look");
        server.received(1).await;
        let buf = server.qp.invalidate(region.stag).unwrap();
        assert!(buf[..] == pattern(round as u64, len), "{len} bytes");
        // Sends and Writes complete in order.
        assert_eq!(client.next().await.unwrap().id, 2);
        assert_eq!(client.next().await.unwrap().id, 3);
    }
}

/// However a provider receives ahead: in any order, and beside each other.
pub async fn a_region_to_be_filled_has_all_that_was_written(net: &Net) {
    let Pair { client, server } = net.connect().await;
    let len = 1 << 20;
    for (round, writes) in [
        &[(0, 1 << 20)][..],
        &[(500_000, 300_000), (0, 400_000), (400_000, 100_000)],
        &[(0, 100_000), (100_000, 131_072), (300_000, 1), (231_072, 68_928)],
        &[(900_000, 100), (0, 900_000), (65_000, 70_000)],
        &[(0, 200_000), (0, 200_000)],
    ]
    .into_iter()
    .enumerate()
    {
        let (before, region, behind) = (
            server.region(4096, Access::RemoteWrite),
            server.region(len, Access::RemoteFill),
            server.region(4096, Access::RemoteWrite),
        );
        server.recv(1, 5000);
        let mut expected = vec![None; len];
        for (i, &(at, n)) in writes.iter().enumerate() {
            let data = pattern((10 * round + i) as u64, n);
            for (to, from) in expected[at..at + n].iter_mut().zip(&data) {
                *to = Some(*from);
            }
            client.write(10 + i as u64, data, part(region, at as u64, n as u32));
            // Between two Writes, so that something other than a Write follows the first.
            if i == 0 {
                client.send(20, &pattern(99, 5000));
            }
        }
        assert!(server.received(1).await[..] == pattern(99, 5000));
        server.settle(&client).await;
        let filled = server.qp.invalidate(region.stag).unwrap();
        for (i, (byte, wanted)) in filled.iter().zip(&expected).enumerate() {
            assert!(wanted.is_none_or(|wanted| wanted == *byte), "round {round}: byte {i}");
        }
        for untouched in [before, behind] {
            assert!(server.qp.invalidate(untouched.stag).unwrap().iter().all(|byte| *byte == FILL));
        }
    }
}

pub async fn writes_change_nothing_else(net: &Net) {
    let Pair { client, server } = net.connect().await;
    let len = 20_000;
    let (before, region, behind) = (
        server.region(len, Access::RemoteWrite),
        server.region(len, Access::RemoteWrite),
        server.region(len, Access::RemoteWrite),
    );
    let mut expected = vec![FILL; len];
    for (round, (at, n)) in
        [(0, 1), (1, 3), (4095, 2), (5000, 10_000), (0, 0), (19_999, 1), (7, 4093)].into_iter().enumerate()
    {
        let data = pattern(round as u64, n);
        expected[at..at + n].copy_from_slice(&data);
        client.write(10 + round as u64, data, part(region, at as u64, n as u32));
    }
    server.settle(&client).await;
    assert!(server.qp.invalidate(region.stag).unwrap()[..] == expected);
    for untouched in [before, behind] {
        assert!(server.qp.invalidate(untouched.stag).unwrap().iter().all(|byte| *byte == FILL));
    }
    assert!(server.qp.invalidate(region.stag).is_none());
}

pub async fn a_large_write_arrives_whole(net: &Net) {
    let Pair { client, server } = net.connect().await;
    let len = 8 << 20;
    let region = server.region(len, Access::RemoteWrite);
    let data = Bytes::from(pattern(3, len));
    // In uneven pieces, as a chain.
    let mut chain = Vec::new();
    let mut rest = data.clone();
    for size in [1, 4096, 70_000, 100_003, 3].into_iter().cycle() {
        if rest.is_empty() {
            break;
        }
        chain.push(rest.split_to(size.min(rest.len())));
    }
    client.post(Work::Write { id: 1, data: Payload::Chain(chain), to: region, signalled: true });
    server.settle(&client).await;
    assert!(matches!(client.done(1).await, Done::Written));
    assert!(server.qp.invalidate(region.stag).unwrap()[..] == data[..]);
}

pub async fn reads_bring_what_is_there(net: &Net) {
    let Pair { client, server } = net.connect().await;
    let content = pattern(9, 3 << 20);
    let region = server.region_of(&content, Access::RemoteRead);
    for (at, len) in [(0, 1), (1, 4095), (4096, 65_536), (3, 1 << 20), (0, 3 << 20), ((3 << 20) - 1, 1)] {
        client.read(1, part(region, at as u64, len as u32));
        match client.done(1).await {
            Done::Read { buf } => {
                assert_eq!(buf.len(), len);
                assert!(buf[..] == content[at..at + len], "{len} bytes at {at}");
            }
            other => panic!("{other:?}"),
        }
    }
    assert!(server.qp.invalidate(region.stag).unwrap()[..] == content);
}

pub async fn many_reads_at_once_come_back_in_order(net: &Net) {
    let Pair { client, server } = net.connect().await;
    let content = pattern(2, 1 << 20);
    let region = server.region_of(&content, Access::RemoteRead);
    // More than the peer serves at a time: the rest queue.
    let count = u64::from(client.qp.caps().ord) * 3;
    for id in 0..count {
        client.read(id, part(region, id * 1000, 5000));
    }
    for id in 0..count {
        let completion = client.next().await.unwrap();
        assert_eq!(completion.id, id);
        let Ok(Done::Read { buf }) = completion.result else { panic!("{completion:?}") };
        let at = id as usize * 1000;
        assert!(buf[..] == content[at..at + 5000], "Read {id}");
    }
}

pub async fn sends_behind_a_read_do_not_complete_it(net: &Net) {
    let Pair { client, server } = net.connect().await;
    let content = pattern(5, 1 << 20);
    let region = server.region_of(&content, Access::RemoteRead);
    for round in 0..10 {
        for id in 0..4 {
            server.recv(1000 + id, 100);
            client.read(id, region);
            client.send(100 + id, b"done already?");
        }
        for id in 0..4 {
            let Done::Read { buf } = client.done(id).await else { panic!("no Read") };
            assert!(buf[..] == content, "Read {id} of round {round} was not there when it completed");
            client.done(100 + id).await;
            server.received(1000 + id).await;
        }
    }
}

/// Ranges that extend beyond a region of `len` bytes.
fn outside(region: Segment) -> Vec<Segment> {
    let len = u64::from(region.len);
    vec![
        part(region, len, 1),
        part(region, len - 1, 2),
        part(region, 0, region.len + 1),
        part(region, u64::MAX, 1),
        part(region, len + 4096, 8),
        Segment { offset: u64::MAX, len: 2, ..region },
        Segment { offset: u64::MAX - 7, len: 16, ..region },
        Segment { offset: u64::MAX - u64::from(region.len) + 1, len: region.len, ..region },
    ]
}

fn assert_untouched(server: &End, region: Segment) {
    let buf = server.qp.invalidate(region.stag).expect("the region is still the owner's");
    assert!(buf.iter().all(|byte| *byte == FILL), "placed out of bounds");
}

pub async fn writes_out_of_bounds_are_refused(net: &Net) {
    for case in 0..8 {
        let pair = net.connect().await;
        let neighbours =
            [pair.server.region(4096, Access::RemoteWrite), pair.server.region(4096, Access::RemoteWrite)];
        let region = pair.server.region(4096, Access::RemoteWrite);
        let to = outside(region)[case];
        // Never the fill byte, so that placed bytes can be told from others.
        let data: Vec<u8> = pattern(1, to.len as usize).iter().map(|byte| byte & 0x5f).collect();
        pair.client.write(1, data.clone(), to);
        pair.refused_on_both_sides(1, &[Refusal::Bounds]).await;
        neighbours.into_iter().for_each(|region| assert_untouched(&pair.server, region));
        // A Write that begins inside may have been placed up to the segment that leaves the region.
        let placed = pair.server.qp.invalidate(region.stag).unwrap();
        let begin = to.offset.wrapping_sub(region.offset);
        for (at, byte) in (0u64..).zip(placed.iter()).filter(|(_, byte)| **byte != FILL) {
            let of_data = usize::try_from(at.wrapping_sub(begin)).unwrap();
            assert_eq!(data.get(of_data), Some(byte), "byte {at} of the region");
        }
    }
}

pub async fn reads_out_of_bounds_are_refused(net: &Net) {
    for case in 0..8 {
        let pair = net.connect().await;
        let region = pair.server.region(4096, Access::RemoteRead);
        pair.client.read(1, outside(region)[case]);
        pair.refused_on_both_sides(1, &[Refusal::Bounds]).await;
    }
}

pub async fn empty_writes_are_not_checked(net: &Net) {
    let pair = net.connect().await;
    // RFC 5041 5.2: STag and offset of an empty tagged message are not checked.
    pair.client.write(1, Bytes::new(), Segment { stag: Stag(0xdead_beef), offset: u64::MAX, len: 0 });
    assert!(matches!(pair.client.done(1).await, Done::Written));
    pair.server.settle(&pair.client).await;
}

pub async fn empty_reads_complete_in_their_turn(net: &Net) {
    let pair = net.connect().await;
    let region = pair.server.region(4096, Access::RemoteRead);
    // RFC 5040 5.2.1: STag and offset of an empty Read are not checked.
    let nowhere = Segment { stag: Stag(0xdead_beef), offset: u64::MAX, len: 0 };
    let [nothing, end] = match net.medium.checks_empty_reads {
        false => [nowhere, part(region, 4096, 0)],
        true => [part(region, 7, 0); 2],
    };
    let segments = [region, nothing, end, part(region, 10, 100), nothing];
    let read = |id, from: Segment| pair.client.read(id, from);
    // A provider that checks them also answers them wrongly after others; it gets them one at a time.
    let one_by_one = net.medium.checks_empty_reads;
    if !one_by_one {
        (1..).zip(segments).for_each(|(id, from)| read(id, from));
    }
    for (id, from) in (1..).zip(segments) {
        if one_by_one {
            read(id, from);
        }
        let Done::Read { buf } = pair.client.done(id).await else { panic!("{id} is no Read") };
        assert_eq!(buf.len(), from.len as usize);
    }
    assert_eq!(pair.client.qp.traffic().read, (4196, 5));
    pair.server.settle(&pair.client).await;
}

pub async fn the_wrong_right_is_refused(net: &Net) {
    let pair = net.connect().await;
    let region = pair.server.region(4096, Access::RemoteRead);
    pair.client.write(1, pattern(1, 100), part(region, 0, 100));
    pair.refused_on_both_sides(1, &[Refusal::Access]).await;
    assert_untouched(&pair.server, region);

    let pair = net.connect().await;
    let region = pair.server.region(4096, Access::RemoteWrite);
    pair.client.read(1, region);
    if net.medium.refuses_wrong_reads {
        return pair.refused_on_both_sides(1, &[Refusal::Access]).await;
    }
    assert!(matches!(pair.client.done(1).await, Done::Read { .. }));
    assert_untouched(&pair.server, region);
}

const NOT_OURS: [Refusal; 2] = [Refusal::InvalidStag, Refusal::NotAssociated];

pub async fn unknown_tags_are_refused(net: &Net) {
    for flip in [1, 0x100, 0x8000_0000, u32::MAX] {
        let pair = net.connect().await;
        let region = pair.server.region(4096, Access::RemoteWrite);
        let wrong = Segment { stag: Stag(region.stag.0 ^ flip), ..region };
        pair.client.write(1, pattern(1, 100), wrong);
        pair.refused_on_both_sides(1, &NOT_OURS).await;
        assert_untouched(&pair.server, region);

        let pair = net.connect().await;
        let region = pair.server.region(4096, Access::RemoteRead);
        pair.client.read(1, Segment { stag: Stag(region.stag.0 ^ flip), ..region });
        pair.refused_on_both_sides(1, &NOT_OURS).await;
    }
}

pub async fn a_tag_of_another_connection_is_refused(net: &Net) {
    let (owner, stranger) = (net.connect().await, net.connect().await);
    let region = owner.server.region(4096, Access::RemoteWrite);
    let source = owner.server.region(4096, Access::RemoteRead);
    stranger.client.write(1, pattern(1, 100), region);
    stranger.refused_on_both_sides(1, &NOT_OURS).await;
    let stranger = net.connect().await;
    stranger.client.read(1, source);
    stranger.refused_on_both_sides(1, &NOT_OURS).await;
    // The owner did not notice.
    owner.server.settle(&owner.client).await;
    assert_untouched(&owner.server, region);
}

pub async fn a_revoked_tag_is_refused(net: &Net) {
    let pair = net.connect().await;
    let region = pair.server.region(4096, Access::RemoteWrite);
    let buf = pair.server.qp.invalidate(region.stag).unwrap();
    // Its memory is registered again at once, with another STag.
    let again = pair.server.qp.register(buf, Access::RemoteWrite).unwrap();
    assert_ne!(again.stag, region.stag);
    pair.client.write(1, pattern(1, 100), region);
    pair.refused_on_both_sides(1, &NOT_OURS).await;
    assert_untouched(&pair.server, again);

    let pair = net.connect().await;
    let region = pair.server.region(4096, Access::RemoteRead);
    pair.server.qp.invalidate(region.stag).unwrap();
    pair.client.read(1, region);
    pair.refused_on_both_sides(1, &NOT_OURS).await;
}

fn send_invalidating(client: &End, id: u64, stag: Stag) {
    let data = vec![Bytes::from_static(b"done with it")];
    client.post(Work::Send { id, data, invalidate: Some(stag), solicited: false, signalled: true });
}

/// For a device without Send with Invalidate: it is sent as a plain Send, and the owner takes the region back.
async fn invalidates_nothing(net: &Net, pair: &Pair, stag: Stag) {
    assert!(!net.medium.refusals_named, "only devices lack it");
    pair.server.recv(1, 100);
    send_invalidating(&pair.client, 2, stag);
    assert!(matches!(pair.server.done(1).await, Done::Received { invalidated: None, .. }));
}

pub async fn send_with_invalidate_revokes(net: &Net) {
    for access in [Access::RemoteWrite, Access::RemoteRead] {
        let pair = net.connect().await;
        if !pair.client.qp.caps().send_with_invalidate {
            let region = pair.server.region(4096, access);
            invalidates_nothing(net, &pair, region.stag).await;
            assert_untouched(&pair.server, region);
            continue;
        }
        if !pair.server.qp.caps().revocable_regions {
            // A peer that was not invited to use it does so: the region is revoked silently, or the connection ends.
            assert!(!net.medium.refusals_named, "only devices lack it");
            let region = pair.server.region(4096, access);
            pair.server.recv(1, 100);
            send_invalidating(&pair.client, 2, region.stag);
            if pair.server.completion(1).await.result.is_err() {
                pair.refused_on_both_sides(2, &[Refusal::CannotInvalidate]).await;
            }
            assert_untouched(&pair.server, region);
            continue;
        }
        let region = pair.server.region(4096, access);
        pair.server.recv(1, 100);
        send_invalidating(&pair.client, 2, region.stag);
        match pair.server.done(1).await {
            Done::Received { buf, invalidated, .. } => {
                assert_eq!(&buf[..], b"done with it");
                assert_eq!(invalidated, Some(region.stag));
            }
            other => panic!("{other:?}"),
        }
        // The peer can no longer use it, but its buffer waits for the owner.
        match access {
            Access::RemoteWrite | Access::RemoteFill => pair.client.write(3, pattern(1, 10), region),
            Access::RemoteRead => pair.client.read(3, region),
        }
        pair.refused_on_both_sides(3, &NOT_OURS).await;
        assert_untouched(&pair.server, region);
        assert!(pair.server.qp.invalidate(region.stag).is_none());
    }
}

pub async fn only_live_regions_can_be_invalidated_by_the_peer(net: &Net) {
    const CANNOT: [Refusal; 3] = [Refusal::CannotInvalidate, Refusal::InvalidStag, Refusal::NotAssociated];
    let pair = net.connect().await;
    if !pair.client.qp.caps().send_with_invalidate {
        return invalidates_nothing(net, &pair, Stag(0x1234_5678)).await;
    }
    pair.server.recv(1, 100);
    send_invalidating(&pair.client, 2, Stag(0x1234_5678));
    pair.refused_on_both_sides(2, &CANNOT).await;

    let pair = net.connect().await;
    let region = pair.server.region(4096, Access::RemoteWrite);
    pair.server.qp.invalidate(region.stag).unwrap();
    pair.server.recv(1, 100);
    send_invalidating(&pair.client, 2, region.stag);
    pair.refused_on_both_sides(2, &CANNOT).await;
}

pub async fn a_full_region_table_refuses_and_recovers(net: &Net) {
    let pair = net.connect().await;
    let limit = pair.server.qp.caps().max_regions;
    let regions: Vec<_> = (0..limit).map(|_| pair.server.region(1, Access::RemoteWrite)).collect();
    let buf = pair.server.pool.buf_from(b"x").unwrap();
    assert!(
        matches!(pair.server.qp.register(buf, Access::RemoteWrite), Err(PostError::RegionsFull(n)) if n == limit)
    );
    let mut tags: Vec<_> = regions.iter().map(|region| region.stag).collect();
    tags.sort_unstable();
    tags.dedup();
    assert_eq!(tags.len(), limit, "two regions of one name");
    pair.server.qp.invalidate(regions[limit / 2].stag).unwrap();
    let again = pair.server.region(1, Access::RemoteWrite);
    assert!(!tags.contains(&again.stag), "a name used again at once");
    pair.client.write(1, pattern(1, 1), again);
    pair.server.settle(&pair.client).await;
    assert_eq!(pair.server.qp.invalidate(again.stag).unwrap()[..], pattern(1, 1));
}

pub async fn files_are_payload_too(net: &Net) {
    let Pair { client, server } = net.connect().await;
    let content = Bytes::from(pattern(4, 2 << 20));
    let file = File::in_memory("conformance").unwrap();
    file.write_at(0, std::slice::from_ref(&content)).await.unwrap();
    for (at, len) in [(0, 0), (0, 1), (1, 4096), (12_345, 1 << 20), (0, 2 << 20)] {
        let region = server.region((2 << 20) + 4096, Access::RemoteWrite);
        let data = Payload::File(FileRange { file: file.clone(), offset: at as u64, len });
        client.post(Work::Write { id: 1, data, to: part(region, 100, len as u32), signalled: true });
        server.settle(&client).await;
        assert!(matches!(client.done(1).await, Done::Written));
        let buf = server.qp.invalidate(region.stag).unwrap();
        assert!(buf[100..100 + len] == content[at..at + len], "{len} bytes at {at}");
        assert!(buf[..100].iter().chain(&buf[100 + len..]).all(|byte| *byte == FILL));
    }
    // A file that has shrunk: its range was promised, so zeros replace the lost bytes.
    file.set_len(1000).unwrap();
    let region = server.region(5000, Access::RemoteWrite);
    let data = Payload::File(FileRange { file, offset: 0, len: 5000 });
    client.post(Work::Write { id: 1, data, to: region, signalled: true });
    server.settle(&client).await;
    let buf = server.qp.invalidate(region.stag).unwrap();
    assert!(buf[..1000] == content[..1000] && buf[1000..].iter().all(|byte| *byte == 0));
}

pub async fn nothing_is_copied_that_need_not_be(net: &Net) {
    let Pair { client, server } = net.connect().await;
    let len = 1 << 20;
    let region = server.region(len, Access::RemoteWrite);
    let source = server.region_of(&pattern(1, len), Access::RemoteRead);
    let data = Bytes::from(pattern(2, len));
    server.settle(&client).await;
    // What one side has written arrives on the other.
    let moved = |end: &End| {
        let traffic = end.qp.traffic();
        traffic.received.0 + traffic.written.0 + traffic.read.0
    };
    let before = (buf::copies().1, moved(&client) + moved(&server));
    for id in 0..4 {
        client.write(id, data.clone(), region);
        client.read(10 + id, source);
    }
    for id in 0..4 {
        assert!(matches!(client.done(10 + id).await, Done::Read { .. }));
    }
    server.settle(&client).await;
    // Both sides run on this thread, so the counter includes the copies of both.
    let (copied, arrived) = (buf::copies().1 - before.0, moved(&client) + moved(&server) - before.1);
    assert!(arrived >= 8 * len as u64);
    assert!(
        copied <= arrived * net.copies_per_received_byte,
        "{copied} bytes copied of {arrived} received on {}",
        net.name
    );
}

pub async fn traffic_is_counted(net: &Net) {
    let Pair { client, server } = net.connect().await;
    let (to, from) = (server.region(10_000, Access::RemoteWrite), server.region(10_000, Access::RemoteRead));
    let before = (client.qp.traffic(), server.qp.traffic());
    server.recv(1, 100);
    client.write(2, pattern(1, 7000), part(to, 0, 7000));
    client.write(3, pattern(1, 300), part(to, 0, 300));
    client.read(4, part(from, 0, 2500));
    client.send(5, &[0; 55]);
    server.received(1).await;
    client.done(5).await;
    client.done(4).await;
    let (ours, theirs) = (client.qp.traffic(), server.qp.traffic());
    let grown = |now: (u64, u64), then: (u64, u64)| (now.0 - then.0, now.1 - then.1);
    assert_eq!(grown(ours.written, before.0.written), (7300, 2));
    assert_eq!(grown(ours.read, before.0.read), (2500, 1));
    let (placed, served) = if net.medium.counts_peer { ((7300, 2), (2500, 1)) } else { ((0, 0), (0, 0)) };
    assert_eq!(grown(theirs.placed, before.1.placed), placed);
    assert_eq!(grown(theirs.served, before.1.served), served);
    assert_eq!(grown(ours.sent, before.0.sent), (55, 1));
    assert_eq!(grown(theirs.received, before.1.received), (55, 1));
    assert_eq!(grown(theirs.sent, before.1.sent), (0, 0));
    assert_eq!(grown(ours.placed, before.0.placed), (0, 0));
}
