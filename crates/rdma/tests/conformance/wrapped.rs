//! What the layers add, beyond leaving the contract as it is.

use std::net::SocketAddr;
use std::rc::Rc;

use weft_machine::{Pool, rt};
use weft_rdma::wrap::Wrapped;
use weft_rdma::wrap::fault::{Fault, Faults};
use weft_rdma::wrap::trace::{Counts, Trace};
use weft_rdma::{Access, ConnectParams, Disconnect, Done, PostError, Provider, Segment, Work, iwarp};

use crate::net::{End, part, pattern};

fn plain(pool: &Pool) -> Rc<dyn Provider> {
    Rc::new(iwarp::Provider::new(pool.clone(), iwarp::Config::default()))
}

/// A wrapped client and a bare server, with receive buffers 0..n at the server.
async fn connect(client: &dyn Provider, server: &dyn Provider, pool: &Pool, n: u64) -> (End, End) {
    let listener = server.listen(SocketAddr::from(([127, 0, 0, 1], 0))).await.unwrap();
    let accept = async {
        let request = listener.accept().await.unwrap().request().await.unwrap();
        let recvs = (0..n).map(|id| Work::Recv { id, buf: pool.try_alloc(4096).unwrap() }).collect();
        request.accept(ConnectParams::default(), recvs).await.unwrap()
    };
    let connect = client.connect(listener.local_addr(), ConnectParams::default());
    let (server, client) = futures_util::join!(accept, connect);
    let end = |qp| End::new(qp, pool.clone(), crate::software().unwrap());
    (end(client.unwrap().0), end(server))
}

#[test]
fn trace_counts_by_kind() {
    rt::block_on(async {
        let pool = Pool::new(64 << 20);
        let trace = Trace::default();
        let wrapped = Wrapped::new(plain(&pool), trace.clone());
        let (client, server) = connect(&wrapped, &*plain(&pool), &pool, 2).await;
        client.send(1, b"hello");
        server.received(0).await;
        let sink = server.region(100, Access::RemoteWrite);
        client.write(2, pattern(1, 100), sink);
        client.write(3, pattern(1, 50), part(sink, 0, 50));
        client.recv(4, 100);
        let into = pool.try_alloc(1).unwrap();
        let long = Work::Read { id: 5, from: Segment { len: into.capacity() as u32 + 1, ..sink }, into };
        assert!(matches!(client.try_post(long), Err(PostError::Misuse(_))));
        let own = client.region(10, Access::RemoteRead);
        client.qp.invalidate(own.stag).unwrap();
        client.qp.close();
        client.end().await;
        let expected = Counts {
            opened: 1,
            ended: 1,
            sends: 1,
            recvs: 1,
            writes: 2,
            refused: 1,
            succeeded: 3,
            failed: 1,
            registered: 1,
            invalidated: 1,
            ..Counts::default()
        };
        assert_eq!(trace.counts(), expected);
    })
    .unwrap();
}

#[test]
fn refusals_come_from_the_seed_and_lose_nothing() {
    let run = |seed| {
        rt::block_on(async {
            let pool = Pool::new(64 << 20);
            let faults = Faults { refuse_one_in: 3, ..Faults::default() };
            let wrapped = Wrapped::new(plain(&pool), Fault::new(seed, faults));
            let (client, server) = connect(&wrapped, &*plain(&pool), &pool, 50).await;
            let mut refused = Vec::new();
            for id in 0..50 {
                let data = vec![pattern(id, 100).into()];
                let mut work = Work::Send { id, data, invalidate: None, solicited: false, signalled: true };
                while let Err((e, back)) = client.qp.post(work) {
                    assert!(matches!(e, PostError::QueueFull));
                    refused.push(id);
                    work = back;
                }
            }
            for id in 0..50 {
                assert!(server.received(id).await[..] == pattern(id, 100));
            }
            refused
        })
        .unwrap()
    };
    assert!(run(1).len() > 5);
    assert_eq!(run(1), run(1));
    assert_ne!(run(1), run(2));
}

#[test]
fn a_cut_ends_the_connection_with_everything_completed() {
    rt::block_on(async {
        let pool = Pool::new(64 << 20);
        let faults = Faults { cut_one_in: 10, ..Faults::default() };
        let wrapped = Wrapped::new(plain(&pool), Fault::new(7, faults));
        let (client, server) = connect(&wrapped, &*plain(&pool), &pool, 1000).await;
        let mut posted = 0;
        for id in 0..1000 {
            let data = vec![pattern(id, 100).into()];
            let work = Work::Send { id, data, invalidate: None, solicited: false, signalled: true };
            match client.try_post(work) {
                Ok(()) => posted += 1,
                Err(PostError::Closed) => break,
                Err(e) => panic!("{e}"),
            }
        }
        assert!((1..1000).contains(&posted), "{posted} posted");
        let (completions, reason) = client.end().await;
        assert_eq!(reason, Disconnect::Local);
        assert!(completions.iter().map(|c| c.id).eq(0..posted));
        let (received, reason) = server.end().await;
        assert_eq!(reason, Disconnect::Peer);
        let arrived = received.iter().filter(|c| matches!(c.result, Ok(Done::Received { .. }))).count();
        let sent = completions.iter().filter(|c| c.result.is_ok()).count();
        assert_eq!(arrived, sent);
        assert_eq!(received.len(), 1000);
    })
    .unwrap();
}
