//! How connections end, and that nothing is lost or leaked when they do.

use bytes::Bytes;
use weft_rdma::{Access, Disconnect, Done, PostError, Work, WorkError};

use crate::net::{Net, Pair, pattern, wait_until};

pub async fn close_lets_what_was_posted_out(net: &Net) {
    let Pair { client, server } = net.connect().await;
    let region = server.region(1 << 20, Access::RemoteWrite);
    server.recv(1, 100);
    client.write(2, pattern(1, 1 << 20), region);
    client.send(3, b"the last word");
    client.qp.close();
    assert_eq!(&server.received(1).await[..], b"the last word");
    assert!(server.qp.invalidate(region.stag).unwrap()[..] == pattern(1, 1 << 20));
    assert!(matches!(client.done(2).await, Done::Written));
    assert!(matches!(client.done(3).await, Done::Sent));
    assert_eq!(client.end().await.1, Disconnect::Local);
    assert_eq!(server.end().await.1, Disconnect::Peer);
}

pub async fn the_last_message_arrives_before_the_end(net: &Net) {
    let Pair { client, server } = net.connect().await;
    (0..10).for_each(|id| server.recv(id, 100));
    (0..5).for_each(|id| client.send(id, &pattern(id, 10)));
    client.qp.close();
    let (completions, reason) = server.end().await;
    assert_eq!(reason, Disconnect::Peer);
    let kinds: Vec<_> = completions.iter().map(|c| c.result.is_ok()).collect();
    assert_eq!(kinds, [[true; 5], [false; 5]].concat());
    assert!(completions.iter().map(|c| c.id).eq(0..10));
    assert!(completions[5..].iter().all(|c| matches!(c.result, Err(WorkError::Flushed))));
}

pub async fn dropping_a_queue_pair_ends_it(net: &Net) {
    let Pair { client, server } = net.connect().await;
    drop(client);
    assert_eq!(server.end().await.1, Disconnect::Peer);
}

pub async fn everything_flushes_and_buffers_come_back(net: &Net) {
    let quiet = (net.pool.in_use_bytes(), net.client_pool.in_use_bytes());
    let Pair { client, server } = net.connect().await;
    (0..20).for_each(|id| client.recv(id, 10_000));
    (0..20).for_each(|id| server.recv(id, 10_000));
    let region = server.region(1 << 20, Access::RemoteRead);
    server.region(1 << 20, Access::RemoteWrite);
    client.region(1 << 20, Access::RemoteWrite);
    for id in 100..110 {
        client.read(id, region);
    }
    server.qp.close();
    let (flushed, reason) = server.end().await;
    assert_eq!(reason, Disconnect::Local);
    assert_eq!(flushed.len(), 20);
    let (completions, reason) = client.end().await;
    assert!(matches!(reason, Disconnect::Peer | Disconnect::Lost(_)), "{reason}");
    // Every piece of work completed once, with success or failure.
    let mut ids: Vec<_> = completions.iter().map(|c| c.id).collect();
    ids.sort_unstable();
    assert!(ids.into_iter().eq((0..20).chain(100..110)), "{completions:?}");
    drop(completions);
    drop((client, server, flushed));
    wait_until("all buffers are back in their pools", || {
        (net.pool.in_use_bytes(), net.client_pool.in_use_bytes()) == quiet
    })
    .await;
}

pub async fn a_closed_queue_pair_takes_no_work(net: &Net) {
    let Pair { client, server } = net.connect().await;
    client.qp.close();
    client.end().await;
    let data = vec![Bytes::from_static(b"late")];
    let work = Work::Send { id: 1, data, invalidate: None, solicited: false, signalled: true };
    let (error, work) = client.qp.post(work).unwrap_err();
    assert!(matches!(error, PostError::Closed));
    assert!(matches!(work, Work::Send { id: 1, .. }));
    let buf = client.pool.buf_from(b"x").unwrap();
    assert!(client.qp.register(buf, Access::RemoteRead).is_err());
    server.end().await;
}
