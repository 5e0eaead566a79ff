//! Connecting, refusing, and what the two sides tell each other.

use bytes::Bytes;
use weft_rdma::{ConnectError, ConnectParams};

use crate::net::{End, Net, any_port, pattern};

fn saying(private_data: impl Into<Bytes>) -> ConnectParams {
    ConnectParams { private_data: private_data.into(), ..ConnectParams::default() }
}

/// Connects with these parameters; returns both ends and the private data that the client was answered with.
async fn connect(net: &Net, ours: ConnectParams, theirs: ConnectParams) -> (End, End, Bytes, Bytes) {
    let listener = net.provider.listen(any_port()).await.unwrap();
    let accept = async {
        let request = listener.accept().await.unwrap().request().await.unwrap();
        let asked = request.private_data().clone();
        assert!(!request.peer().is_empty());
        (request.accept(theirs, Vec::new()).await.unwrap(), asked)
    };
    let connect = net.client_provider.connect(listener.local_addr(), ours);
    let ((server, asked), connected) = futures_util::join!(accept, connect);
    let (client, answered) = connected.unwrap();
    (End::new(client, net.client_pool.clone()), End::new(server, net.pool.clone()), asked, answered)
}

pub async fn private_data_both_ways(net: &Net) {
    let (client, server, asked, answered) = connect(net, saying("may I?"), saying("please")).await;
    assert_eq!((&asked[..], &answered[..]), (&b"may I?"[..], &b"please"[..]));
    assert_eq!(client.qp.provider(), net.provider.name());
    assert!(!client.qp.peer().is_empty() && !server.qp.peer().is_empty());
}

pub async fn long_private_data(net: &Net) {
    let longest = Bytes::from(pattern(1, 508));
    let (_client, _server, asked, answered) =
        connect(net, saying(longest.clone()), saying(longest.clone())).await;
    assert_eq!((&asked, &answered), (&longest, &longest));
    let listener = net.provider.listen(any_port()).await.unwrap();
    let too_long = net.client_provider.connect(listener.local_addr(), saying(pattern(1, 509))).await;
    assert!(matches!(too_long, Err(ConnectError::Io(e)) if e.kind() == std::io::ErrorKind::InvalidInput));
}

pub async fn a_rejection_carries_its_reason(net: &Net) {
    let listener = net.provider.listen(any_port()).await.unwrap();
    let reject = async {
        let request = listener.accept().await.unwrap().request().await.unwrap();
        request.reject(Bytes::from_static(b"too busy")).await.unwrap();
    };
    let connect = net.client_provider.connect(listener.local_addr(), saying("may I?"));
    let ((), refused) = futures_util::join!(reject, connect);
    match refused {
        Err(ConnectError::Rejected(reason)) => assert_eq!(&reason[..], b"too busy"),
        other => panic!("{:?}", other.map(|_| "connected").map_err(|e| e.to_string())),
    }
}

pub async fn read_depths_are_negotiated(net: &Net) {
    let depths = |ird, ord| ConnectParams { ird, ord, ..ConnectParams::default() };
    let (client, server, ..) = connect(net, depths(3, 20), depths(5, 30)).await;
    let (ours, theirs) = (client.qp.caps(), server.qp.caps());
    // RFC 6581 9.1: each ORD is at most the other's IRD.
    assert!(ours.ord <= theirs.ird && theirs.ord <= ours.ird, "{ours:?} {theirs:?}");
    assert!((1..=5).contains(&ours.ord), "{ours:?}");
    assert!((1..=3).contains(&theirs.ord), "{theirs:?}");
}

pub async fn nobody_listens(net: &Net) {
    let addr = net.provider.listen(any_port()).await.unwrap().local_addr();
    assert!(net.client_provider.connect(addr, ConnectParams::default()).await.is_err());
}
