//! Connecting, rejecting, and the data that the two sides exchange.

use bytes::Bytes;
use weft_machine::Peer;
use weft_rdma::{ConnectError, ConnectParams};

use crate::net::{End, Net, pattern};

fn saying(private_data: impl Into<Bytes>) -> ConnectParams {
    ConnectParams { private_data: private_data.into(), ..ConnectParams::default() }
}

/// Connects with these parameters; returns both ends and the private data of the answer.
async fn connect(net: &Net, ours: ConnectParams, theirs: ConnectParams) -> (End, End, Bytes, Bytes) {
    let listener = net.provider.listen(net.any_port()).await.unwrap();
    let accept = async {
        let request = listener.accept().await.unwrap().request().await.unwrap();
        let asked = request.private_data().clone();
        assert!(matches!(request.peer(), Peer::Rdma(_) | Peer::Local { .. }));
        (request.accept(theirs, Vec::new()).await.unwrap(), asked)
    };
    let connect = async { net.client_provider.connect(listener.local_addr(), ours).await.unwrap() };
    let ((server, asked), (client, answered)) = futures_util::join!(accept, connect);
    let client = End::new(client, net.client_pool.clone(), net.medium);
    (client, End::new(server, net.pool.clone(), net.medium), asked, answered)
}

/// The private data, as it arrives.
fn assert_said(net: &Net, arrived: &[u8], said: &[u8]) {
    let behind = arrived.strip_prefix(said).unwrap_or_else(|| panic!("{arrived:02x?} for {said:02x?}"));
    assert!(behind.is_empty() || net.medium.private_data_padded && behind.iter().all(|byte| *byte == 0));
}

pub async fn private_data_both_ways(net: &Net) {
    let (client, server, asked, answered) = connect(net, saying("may I?"), saying("please")).await;
    assert_said(net, &asked, b"may I?");
    assert_said(net, &answered, b"please");
    let (_client, _server, asked, answered) = connect(net, saying(""), saying("")).await;
    assert!(asked.is_empty() && answered.is_empty(), "nobody said anything");
    assert_eq!(client.qp.provider(), net.client_provider.name());
    assert_eq!(server.qp.provider(), net.provider.name());
    for end in [&client, &server] {
        assert!(matches!(end.qp.peer(), Peer::Rdma(_) | Peer::Local { .. }));
    }
}

pub async fn long_private_data(net: &Net) {
    let most = net.medium.private_data;
    let longest = Bytes::from(pattern(1, most));
    let (_client, _server, asked, answered) =
        connect(net, saying(longest.clone()), saying(longest.clone())).await;
    assert_said(net, &asked, &longest);
    assert_said(net, &answered, &longest);
    let listener = net.provider.listen(net.any_port()).await.unwrap();
    let too_long = net
        .client_provider
        .connect(listener.local_addr(), saying(pattern(1, net.medium.private_data_refused)))
        .await;
    assert!(matches!(too_long, Err(ConnectError::Io(e)) if e.kind() == std::io::ErrorKind::InvalidInput));
}

pub async fn a_rejection_carries_its_reason(net: &Net) {
    let listener = net.provider.listen(net.any_port()).await.unwrap();
    let reject = async {
        let request = listener.accept().await.unwrap().request().await.unwrap();
        request.reject(Bytes::from_static(b"too busy")).await.unwrap();
    };
    let connect = net.client_provider.connect(listener.local_addr(), saying("may I?"));
    let ((), refused) = futures_util::join!(reject, connect);
    match refused {
        Err(ConnectError::Rejected(reason)) => assert_said(net, &reason, b"too busy"),
        other => panic!("{:?}", other.map(|_| "connected").map_err(|e| e.to_string())),
    }
}

pub async fn read_depths_are_negotiated(net: &Net) {
    let depths = |ird, ord| ConnectParams { ird, ord, ..ConnectParams::default() };
    let (client, server, ..) = connect(net, depths(3, 20), depths(5, 30)).await;
    let (ours, theirs) = (client.qp.caps(), server.qp.caps());
    // RFC 6581 9.1: each ORD is at most the other's IRD.
    let (most, said) = if net.medium.keeps_ird { (5, theirs.ird) } else { (20, 20) };
    assert!(ours.ord <= said && theirs.ord <= ours.ird, "{ours:?} {theirs:?}");
    assert!((1..=most).contains(&ours.ord), "{ours:?}");
    assert!((1..=3).contains(&theirs.ord), "{theirs:?}");
}

pub async fn nobody_listens(net: &Net) {
    let addr = net.provider.listen(net.any_port()).await.unwrap().local_addr();
    assert!(net.client_provider.connect(addr, ConnectParams::default()).await.is_err());
}
