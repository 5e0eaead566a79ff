use std::net::Ipv4Addr;

use weft_machine::File;
use weft_machine::FileRange;

use super::*;

/// A port with no verified addresses.
fn wary_port() -> Port {
    Port::bind(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)), Pool::new(1 << 20)).unwrap()
}

/// A port for which this host is verified.
fn port() -> Port {
    let reached = Reached::default();
    drop(reached.arrive(Ipv4Addr::LOCALHOST.into()));
    wary_port().trusting(reached)
}

fn peer(of: &Port) -> UdpSocket {
    let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    socket.connect(of.local_addr()).unwrap();
    socket.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    socket
}

fn answer(from: &UdpSocket) -> Vec<u8> {
    let mut bytes = vec![0xa5; 65_536];
    let len = from.recv(&mut bytes).unwrap();
    bytes.truncate(len);
    bytes
}

#[test]
fn each_peer_has_a_channel_and_gets_its_own_answers() {
    rt::block_on(async {
        let port = port();
        let (one, two) = (peer(&port), peer(&port));
        one.send(b"one's").unwrap();
        let to_one = port.accept().await.unwrap();
        one.send(b"next").unwrap();
        two.send(b"two's").unwrap();
        // The next datagram of `one` goes to the channel of `one`; only `two` is new.
        let to_two = port.accept().await.unwrap();
        assert_eq!(to_two.peer(), Peer::Udp(two.local_addr().unwrap()));
        assert_eq!(to_one.recv().await.unwrap().unwrap().body, "one's");
        assert_eq!(to_one.try_recv().unwrap().body, "next");
        assert!(to_one.try_recv().is_none());
        // Nobody needs to wait for it.
        drop(to_two.send(Outgoing::bytes("for two")));
        to_one.send(Outgoing::bytes("for one")).await.unwrap();
        assert_eq!((answer(&one), answer(&two)), (b"for one".to_vec(), b"for two".to_vec()));
        assert_eq!((to_one.traffic().received, to_one.traffic().sent), ((9, 2), (7, 1)));
    })
    .unwrap();
}

#[test]
fn payload_is_padded_and_read_from_its_file() {
    rt::block_on(async {
        let port = port();
        let peer = peer(&port);
        peer.send(b"?").unwrap();
        let channel = port.accept().await.unwrap();
        let file = File::in_memory("payload").unwrap();
        file.write_at(0, &[Bytes::from_static(b"abcde")]).await.unwrap();
        let data = Payload::File(FileRange { file, offset: 0, len: 5 });
        let parts = vec![Part::Bytes("head".into()), Part::Payload { data, to: To::Ticket }];
        drop(channel.send(Outgoing { parts, ..Outgoing::default() }));
        peer.set_nonblocking(true).unwrap();
        let mut bytes = [0xa5; 64];
        let len = loop {
            match peer.recv(&mut bytes) {
                Ok(len) => break len,
                // Reading the file on another thread takes time.
                Err(_) => rt::yield_now().await,
            }
        };
        assert_eq!(&bytes[..len], b"headabcde\0\0\0");
    })
    .unwrap();
}

#[test]
fn what_is_too_long_is_dropped_on_the_way_in_and_refused_on_the_way_out() {
    rt::block_on(async {
        let port = port();
        let peer = peer(&port);
        peer.send(&vec![1; MAX_MESSAGE + 1]).unwrap();
        peer.send(&vec![2; MAX_MESSAGE]).unwrap();
        let channel = port.accept().await.unwrap();
        assert_eq!(channel.recv().await.unwrap().unwrap().body, vec![2; MAX_MESSAGE]);
        let long = channel.send(Outgoing::bytes(vec![3; MAX_MESSAGE + 1])).await;
        assert!(matches!(long, Err(Error::Misuse(_))));
        channel.send(Outgoing::bytes(vec![4; MAX_MESSAGE])).await.unwrap();
        assert_eq!(answer(&peer), vec![4; MAX_MESSAGE]);
    })
    .unwrap();
}

#[test]
fn a_peer_without_a_reader_holds_so_many_datagrams_and_a_port_so_many_peers() {
    rt::block_on(async {
        let port = port();
        let at = |n: u16| SocketAddr::from((Ipv4Addr::LOCALHOST, n));
        let channel = port.deliver(at(1), Bytes::from_static(b"0")).unwrap();
        for _ in 0..2 * MAX_WAITING {
            assert!(port.deliver(at(1), Bytes::from_static(b"more")).is_none());
        }
        assert_eq!(std::iter::from_fn(|| channel.try_recv()).count(), MAX_WAITING);
        let others: Vec<_> = (2..).map_while(|n| port.deliver(at(n), Bytes::new())).collect();
        assert_eq!(others.len(), MAX_PEERS - 1);
        // A peer that leaves makes room, and is new when it returns.
        drop(channel);
        assert!(port.deliver(at(1), Bytes::new()).is_some());
    })
    .unwrap();
}

#[test]
fn a_closed_channel_ends_in_order_and_sends_no_more() {
    rt::block_on(async {
        let port = port();
        let peer = peer(&port);
        peer.send(b"?").unwrap();
        let channel = port.accept().await.unwrap();
        channel.close();
        assert!(channel.recv().await.unwrap().is_none());
        assert!(matches!(channel.send(Outgoing::bytes("x")).await, Err(Error::Closed)));
    })
    .unwrap();
}

/// A READ over UDP sent a victim 274 times as many bytes as the attacker sent, the list of rpcbind 21 times.
#[test]
fn an_address_at_which_nobody_was_seen_is_sent_no_more_than_has_come_from_it() {
    rt::block_on(async {
        let reached = Reached::default();
        let port = wary_port().trusting(reached.clone());
        let peer = peer(&port);
        peer.send(&[1; 40]).unwrap();
        let channel = port.accept().await.unwrap();
        assert_eq!(channel.recv().await.unwrap().unwrap().body.len(), 40);
        let long = || [&7_u32.to_be_bytes()[..], &[3; 32 << 10]].concat();
        channel.send(Outgoing::bytes(long())).await.unwrap();
        let mut d = weft_wire::xdr::Decoder::new(answer(&peer).into());
        assert_eq!(Reply::parse(&mut d).unwrap(), (7, Reply::AuthError(AuthStat::TOOWEAK)));
        // 20 of 40 bytes are left: enough for one more refusal, and then nothing.
        for _ in 0..3 {
            channel.send(Outgoing::bytes(long())).await.unwrap();
        }
        assert_eq!((channel.traffic().sent, channel.traffic().received), ((40, 2), (40, 1)));
        assert_eq!(answer(&peer).len(), 20);
        // An answer as long as its call is sent, whatever was refused before.
        peer.send(&[1; 24]).unwrap();
        assert!(futures_util::FutureExt::now_or_never(port.accept()).is_none(), "a new peer");
        assert_eq!(channel.recv().await.unwrap().unwrap().body.len(), 24);
        channel.send(Outgoing::bytes(vec![5; 24])).await.unwrap();
        assert_eq!(answer(&peer), [5; 24]);
        // A connection from there verifies the address.
        let _connection = reached.arrive(Ipv4Addr::LOCALHOST.into());
        channel.send(Outgoing::bytes(long())).await.unwrap();
        assert_eq!(answer(&peer), long());
    })
    .unwrap();
}
