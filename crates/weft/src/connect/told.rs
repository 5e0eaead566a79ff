//! Tests that announced time limits hold.

use std::cell::Cell;
use std::io::IoSliceMut;
use std::net::SocketAddr;
use std::time::Duration;

use bytes::Bytes;
use weft_machine::{Listener, Pool, Stream, rt, sim};
use weft_rdma::Work;

use super::dial::{Dial, Medium};
use super::logon::let_in;
use super::{WHOLE_LIMIT, channels, in_all, nfs, reach};
use crate::Failure;
use crate::args::{Connect, Transport};
use crate::url::Url;

/// Runs a story that ends with its wait: returns the announced seconds and the actual ones.
fn told_and_waited(story: impl Future<Output = ()>) -> (u64, u64) {
    let (end, waits) = sim::logged(1, async {
        story.await;
        rt::now()
    });
    let waits: Vec<_> = waits.into_iter().filter(|(_, told)| told.contains(" s at most")).collect();
    let [(told_at, told)] = &waits[..] else { panic!("told once: {waits:?}") };
    let seconds = told.strip_suffix(" s at most").and_then(|told| told.rsplit(' ').next()).unwrap();
    (seconds.parse().unwrap(), (end - *told_at).as_secs())
}

#[test]
fn a_port_of_rdma_that_is_silent_is_waited_for_as_long_as_is_told() {
    // One peer says nothing at all; the other sets up iWARP but no SMB Direct.
    for sets_up in [false, true] {
        let (told, waited) = told_and_waited(async move {
            let pool = &Pool::new(64 << 20);
            let listen = ([127, 0, 0, 1], 0).into();
            let (port, _server) = if sets_up {
                let provider = crate::providers::iwarp_provider(pool, true, None);
                let listener = provider.listen(listen).await.unwrap();
                let port = listener.local_addr().port();
                let first = Work::Recv { id: 1, buf: pool.alloc(4096).await };
                let server = rt::spawn(async move {
                    let request = listener.accept().await.unwrap().request().await.unwrap();
                    let _queue_pair = request.accept(Default::default(), vec![first]).await.unwrap();
                    std::future::pending::<()>().await;
                });
                (port, server)
            } else {
                let listener = Listener::bind(listen).unwrap();
                let port = listener.local_addr().port();
                let server = rt::spawn(async move {
                    let _silent = listener.accept().await.unwrap();
                    std::future::pending::<()>().await;
                });
                (port, server)
            };
            let url = Url::parse("smb://alice@127.0.0.1/data").unwrap().unwrap();
            let options = Connect::by(Transport::Iwarp);
            let ips = vec![[127, 0, 0, 1].into()];
            let (congestion, reached, until) = (None, Cell::new(None), rt::now() + WHOLE_LIMIT);
            let dial = Dial { url: &url, options: &options, pool, congestion, ips, reached, until };
            let begun = rt::now();
            assert!(channels::open(&dial, Medium::Iwarp, port).await.is_err());
            let limit = Duration::from_secs(10);
            assert!((limit..limit + Duration::from_secs(1)).contains(&(rt::now() - begun)));
        });
        assert_eq!(told, waited, "sets up: {sets_up}");
    }
}

#[test]
fn what_is_left_of_all_attempts_together_is_what_is_told() {
    let (told, waited) = told_and_waited(async {
        let begun = rt::now();
        let steps = async |until| {
            // Stands for other transports and versions.
            rt::sleep(Duration::from_secs(80)).await;
            let never = std::future::pending::<Result<(), Failure>>();
            reach::patiently_until(until, Duration::from_secs(20), "NFS at nas:2049", never).await
        };
        let late = in_all("nas", steps).await.unwrap_err();
        assert_eq!(late.to_string(), "no answer in 90 s from nas, all attempts together");
        assert_eq!(rt::now() - begun, WHOLE_LIMIT);
    });
    assert_eq!((told, waited), (8, 8));
}

/// Accepts connections; answers NFS's NULL call if `speaks_nfs`, an SMB NEGOTIATE otherwise, and waits for more after
/// anything else, as NFS servers do with what they take for a long record.
async fn one_language(speaks_nfs: bool) -> (SocketAddr, rt::Task<()>) {
    let listener = Listener::bind(([127, 0, 0, 1], 0).into()).unwrap();
    let addr = listener.local_addr();
    let server = rt::spawn(async move {
        loop {
            let stream = Stream::from_socket(listener.accept().await.unwrap()).unwrap();
            rt::spawn(async move {
                let mut bytes = [0; 512];
                let asked = stream.recv(&mut [IoSliceMut::new(&mut bytes)]).await.unwrap_or(0);
                let answer: Option<Bytes> = match (speaks_nfs, bytes.get(4..8)) {
                    (true, Some(xid)) if asked > 8 && bytes[0] == 0x80 => {
                        // A REPLY, MSG_ACCEPTED, without a verifier, SUCCESS.
                        Some([&[0x80, 0, 0, 24][..], xid, &[0, 0, 0, 1], &[0; 16]].concat().into())
                    }
                    (false, Some(b"\xfeSMB")) => Some(Bytes::from_static(b"\0\0\0\x08\xfeSMB\x40\0\0\0")),
                    _ => None,
                };
                if let Some(answer) = answer {
                    stream.send_all(&[answer]).await.unwrap();
                }
                std::future::pending::<()>().await;
            })
            .detach();
        }
    });
    (addr, server)
}

/// Finding out that smb:// was used with an NFS port took 16 s.
#[test]
fn a_port_that_speaks_another_protocol_is_found_out_soon() {
    let (refused, told) = sim::logged(1, async {
        let (nfs, _nfs) = one_language(true).await;
        let (smb, _smb) = one_language(false).await;
        let mut refused = Vec::new();
        for (url, addr, mountd) in [
            ("smb://a@127.0.0.1/da%20ta", nfs, None),
            ("nfs://127.0.0.1/data", smb, None),
            ("nfs://127.0.0.1/data", nfs, Some(smb)),
        ] {
            let url = Url::parse(url).unwrap().unwrap();
            let (options, pool) = (Connect::by(Transport::Tcp), &Pool::new(64 << 20));
            let begun = rt::now();
            let dial = Dial::new(&url, &options, pool, None, begun + WHOLE_LIMIT).await.unwrap();
            let silent = std::future::pending::<Result<(), Failure>>();
            let e = let_in(&dial, Medium::Tcp, addr, mountd, silent).await.unwrap_err();
            refused.push((e.to_string(), rt::now() - begun));
        }
        (refused, nfs.port(), smb.port())
    });
    let (refused, nfs, smb) = refused;
    let expected = [
        format!("127.0.0.1:{nfs} speaks NFS, not SMB; try nfs://127.0.0.1:{nfs}/da%20ta"),
        format!("127.0.0.1:{smb} speaks SMB, not NFS; try smb://USER@127.0.0.1:{smb}/data"),
        format!(
            "127.0.0.1:{smb} speaks SMB, not MOUNT; name the port of MOUNT as ?mountport=N (weft serve: --mountd-port)"
        ),
    ];
    for ((said, waited), expected) in refused.iter().zip(expected) {
        assert_eq!(*said, expected);
        assert!(*waited < Duration::from_secs(2), "{said}: {waited:?}");
    }
    assert!(!told.iter().any(|(_, line)| line.contains("waiting for")), "found out before a wait is told");
}

/// A failed mount was reported as a closed channel.
#[test]
fn a_mountport_that_closes_what_is_no_smb_is_named() {
    let ended = sim::logged(1, async {
        let (nfs, _nfs) = one_language(true).await;
        let (smb, _smb) = one_language(false).await;
        let url = Url::parse("nfs://127.0.0.1/data").unwrap().unwrap();
        let (options, pool) = (Connect::by(Transport::Tcp), &Pool::new(64 << 20));
        let dial = Dial::new(&url, &options, pool, None, rt::now() + WHOLE_LIMIT).await.unwrap();
        let closed = async { Err::<(), Failure>("channel closed".into()) };
        let e = let_in(&dial, Medium::Tcp, nfs, Some(smb), closed).await.unwrap_err();
        (e.to_string(), smb.port())
    });
    let ((said, port), _) = ended;
    assert!(said.starts_with(&format!("127.0.0.1:{port} speaks SMB, not MOUNT")), "{said}");
}

/// "Connection refused" alone did not say which port.
#[test]
fn a_port_of_rdma_that_nobody_has_named_is_asked_for() {
    let said = |url: &'static str| {
        let (said, _) = sim::logged(1, async move {
            let url = Url::parse(url).unwrap().unwrap();
            let (options, pool) = (Connect::by(Transport::Iwarp), &Pool::new(64 << 20));
            let dial = Dial::new(&url, &options, pool, None, rt::now() + WHOLE_LIMIT).await.unwrap();
            nfs::connect(&dial).await.err().unwrap().to_string()
        });
        said
    };
    assert!(said("nfs://127.0.0.1/data").ends_with("?rdmaport=N (weft serve: --nfs-rdma-port)"));
    assert!(!said("nfs://127.0.0.1/data?rdmaport=7").contains("rdmaport=N"));
}
