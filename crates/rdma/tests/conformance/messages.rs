//! Sends into posted buffers.

use bytes::Bytes;
use weft_rdma::{Done, PostError, Refusal, Segment, Stag, Work};

use crate::net::{Net, pattern};

pub async fn sends_arrive_in_order_with_their_sizes(net: &Net) {
    let pair = net.connect().await;
    let sizes = [0, 1, 2, 3, 4, 5, 63, 0, 999, 1000, 1001, 4096, 8192, 65_535, 65_536, 70_001, 300_000, 7];
    for (id, size) in (100..).zip(sizes) {
        pair.server.recv(id, size);
    }
    for (id, size) in (100..).zip(sizes) {
        pair.client.send(id, &pattern(id, size));
    }
    for (id, size) in (100..).zip(sizes) {
        let completion = pair.server.next().await.unwrap();
        assert_eq!(completion.id, id);
        let Ok(Done::Received { buf, invalidated: None, solicited: false }) = completion.result else {
            panic!("not plainly received: {completion:?}")
        };
        assert_eq!(buf.len(), size);
        assert!(buf[..] == pattern(id, size), "message {id} differs");
    }
    for (id, _) in (100..).zip(sizes) {
        let completion = pair.client.next().await.unwrap();
        assert_eq!(completion.id, id);
        assert!(matches!(completion.result, Ok(Done::Sent)));
    }
}

pub async fn both_sides_send_at_once(net: &Net) {
    let pair = net.connect().await;
    let ends = [&pair.client, &pair.server];
    for end in ends {
        (0..200).for_each(|id| end.recv(id, 10_000));
    }
    for end in ends {
        (0..200).for_each(|id| end.send(1000 + id, &pattern(id, id as usize * 50)));
    }
    let check = async |end: &crate::net::End| {
        for id in 0..200 {
            assert!(end.received(id).await[..] == pattern(id, id as usize * 50));
        }
    };
    futures_util::join!(check(ends[0]), check(ends[1]));
}

pub async fn a_message_may_fill_its_buffer(net: &Net) {
    let pair = net.connect().await;
    pair.server.recv(1, 4096);
    pair.client.send(2, &pattern(1, 4096));
    assert!(pair.server.received(1).await[..] == pattern(1, 4096));
}

pub async fn a_message_longer_than_its_buffer_is_refused(net: &Net) {
    let pair = net.connect().await;
    // Longer than the buffer's whole room, which the pool may have rounded up.
    pair.server.recv(1, 4096);
    pair.client.send(2, &pattern(1, 4097));
    pair.refused_on_both_sides(2, &[Refusal::TooLong]).await;
}

pub async fn a_message_without_a_buffer_is_refused(net: &Net) {
    let pair = net.connect().await;
    pair.client.send(2, b"");
    pair.refused_on_both_sides(2, &[Refusal::NoBuffer]).await;
}

pub async fn unsignalled_sends_say_nothing(net: &Net) {
    let pair = net.connect().await;
    (0..3).for_each(|id| pair.server.recv(id, 16));
    for (id, signalled) in [(1, false), (2, false), (3, true)] {
        let data = vec![Bytes::from_static(b"x")];
        pair.client.post(Work::Send { id, data, invalidate: None, solicited: false, signalled });
    }
    assert_eq!(pair.client.next().await.unwrap().id, 3);
    pair.server.received(2).await;
}

pub async fn solicited_and_gathered(net: &Net) {
    let pair = net.connect().await;
    pair.server.recv(1, 100);
    let data = vec![
        Bytes::from_static(b"one "),
        Bytes::new(),
        Bytes::from_static(b"two "),
        Bytes::from_static(b"three"),
    ];
    pair.client.post(Work::Send { id: 2, data, invalidate: None, solicited: true, signalled: true });
    match pair.server.done(1).await {
        Done::Received { buf, invalidated: None, solicited } => {
            assert_eq!(&buf[..], b"one two three");
            assert_eq!(solicited, net.medium.tells_solicited);
        }
        other => panic!("{other:?}"),
    }
}

pub async fn full_queues_refuse_and_recover(net: &Net) {
    let pair = net.connect().await;
    let caps = pair.server.qp.caps();
    for id in 0..caps.max_recv_work as u64 {
        pair.server.recv(id, 16);
    }
    let buf = pair.server.pool.buf_from(b"mine").unwrap();
    let (error, work) = pair.server.qp.post(Work::Recv { id: 77, buf }).unwrap_err();
    assert!(matches!(error, PostError::QueueFull));
    // The work was returned unchanged.
    let Work::Recv { id: 77, buf } = work else { panic!("{work:?}") };
    assert_eq!(&buf[..], b"mine");
    // One message makes room for one buffer.
    pair.client.send(1, b"room");
    pair.server.received(0).await;
    pair.server.post(Work::Recv { id: 77, buf });
    // The send queue: nobody polls while it fills, though a provider may carry out work when it is posted.
    let mut refused = 0;
    for id in 0..caps.max_recv_work as u64 {
        let data = vec![Bytes::from_static(b"x")];
        let work = Work::Send { id: 1000 + id, data, invalidate: None, solicited: false, signalled: true };
        if let Err(e) = pair.client.try_post(work) {
            assert!(matches!(e, PostError::QueueFull), "{e}");
            refused += 1;
        }
    }
    for id in 1..caps.max_recv_work as u64 - refused {
        pair.server.received(id).await;
    }
    let mut completed = 0;
    while completed < caps.max_recv_work as u64 - refused {
        let completion = pair.client.next().await.unwrap();
        assert!(matches!(completion.result, Ok(Done::Sent)));
        completed += u64::from(completion.id >= 1000);
    }
}

pub async fn misuse_is_refused_before_it_leaves(net: &Net) {
    let pair = net.connect().await;
    let nowhere = Segment { stag: Stag(1), offset: 0, len: 10 };
    let data = Bytes::from(vec![0; 11]).into();
    let long = Work::Write { id: 1, data, to: nowhere, signalled: true };
    assert!(matches!(pair.client.try_post(long), Err(PostError::Misuse(_))));
    let into = pair.client.pool.try_alloc(4096).unwrap();
    let small = Work::Read { id: 1, into, from: Segment { len: 4097, ..nowhere } };
    assert!(matches!(pair.client.try_post(small), Err(PostError::Misuse(_))));
    // None of it affected the connection.
    pair.server.settle(&pair.client).await;
}
