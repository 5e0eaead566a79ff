//! The checklist against peers of every kind: our own server, and faulty ones.

use std::io::IoSliceMut;
use std::rc::Rc;
use std::sync::Arc;

use bytes::Bytes;
use weft_machine::{Listener, Pool};
use weft_smb::auth::Secret;
use weft_smb::server::{Config, NetworkInterface, Server, User};
use weft_store::backend::Ram;
use weft_store::{Share, Vfs};
use weft_transport::Channel;

use super::super::report::Status;
use super::*;

/// Long enough for a busy machine; only silent peers use up a limit, and for those it is shorter.
const PATIENCE: Duration = Duration::from_secs(20);
const IMPATIENCE: Duration = Duration::from_millis(30);

/// A question about a port of this host.
fn about(port: u16, dir: &std::path::Path) -> Question {
    Question {
        host: Host { name: "127.0.0.1".into(), port: Some(port) },
        service: Some(Service::Smb),
        crc: true,
        limit: PATIENCE,
        logon: None,
        shm: shm::Config { dir: dir.join("weft"), ..shm::Config::default() },
    }
}

/// Examines while `peer` runs on the same core.
fn examined<F: Future<Output = ()> + 'static>(
    peer: impl AsyncFnOnce(&std::path::Path) -> (u16, F),
    change: impl FnOnce(&mut Question),
) -> Report {
    let dir = tempfile::tempdir().unwrap();
    rt::block_on(async {
        let (port, peer) = peer(dir.path()).await;
        let _peer = rt::spawn(peer);
        let mut question = about(port, dir.path());
        change(&mut question);
        examine(question, Pool::new(64 << 20)).await
    })
    .unwrap()
}

fn any() -> SocketAddr {
    "127.0.0.1:0".parse().unwrap()
}

/// A TCP peer that answers every first message with `bytes`.
async fn answers(bytes: &'static [u8]) -> (u16, impl Future<Output = ()>) {
    let listener = Listener::bind(any()).unwrap();
    let port = listener.local_addr().port();
    let life = async move {
        loop {
            let stream = Stream::from_socket(listener.accept().await.unwrap()).unwrap();
            rt::spawn(async move {
                let mut request = [0; 64];
                if stream.recv(&mut [IoSliceMut::new(&mut request)]).await.is_ok_and(|n| n > 0) {
                    let _ = stream.send_all(&[Bytes::from_static(bytes)]).await;
                    // Open until the other side closes.
                    while stream.recv(&mut [IoSliceMut::new(&mut request)]).await.is_ok_and(|n| n > 0) {}
                }
            })
            .detach();
        }
    };
    (port, life)
}

fn server(pool: &Pool, endpoints: String, encrypted: bool) -> Arc<Server> {
    Server::new(Config {
        name: "DOCTOR".into(),
        signing: weft_smb::server::Signing::Enabled,
        min_dialect: weft_smb::server::Dialect::V2_0_2,
        require_encryption: encrypted,
        interfaces: vec![NetworkInterface {
            index: 1,
            addr: [127, 0, 0, 1].into(),
            link_speed_bps: 10_000_000_000,
            rdma: true,
            rss: false,
        }]
        .into(),
        endpoints,
        ..Config::new(
            [7; 16],
            vec![Share::new("ram", Vfs::new(Ram::new(1 << 20)))],
            vec![User::new("tester", Secret::password("secret"))],
            pool.clone(),
        )
    })
}

/// Our own server: SMB over TCP, and SMB Direct over these providers on one port.
async fn own_server(
    dir: &std::path::Path,
    with_shm: bool,
    encrypted: bool,
) -> (u16, u16, impl Future<Output = ()> + use<>) {
    let pool = Pool::new(256 << 20);
    let tcp = Listener::bind(any()).unwrap();
    let smb_port = tcp.local_addr().port();
    let iwarp = iwarp::Provider::new(pool.clone(), iwarp::Config::default());
    let mut listeners = vec![iwarp.listen(any()).await.unwrap()];
    let addr = listeners[0].local_addr();
    if with_shm {
        let config = shm::Config { dir: dir.join("weft"), ..shm::Config::default() };
        listeners.push(shm::Provider::new(pool.clone(), config).listen(addr).await.unwrap());
    }
    let server = server(&pool, format!("iwarp {}\n", addr.port()), encrypted);
    for listener in listeners {
        let (server, pool) = (server.clone(), pool.clone());
        rt::spawn(async move {
            loop {
                let incoming = listener.accept().await.unwrap();
                let (server, pool) = (server.clone(), pool.clone());
                rt::spawn(async move {
                    // A probe leaves during set-up on purpose.
                    let Ok(request) = incoming.request().await else { return };
                    if let Ok(channel) = smbd::accept(request, smbd::Config::default(), pool).await {
                        server.serve(channel).await;
                    }
                })
                .detach();
            }
        })
        .detach();
    }
    let life = async move {
        loop {
            let stream = Stream::from_socket(tcp.accept().await.unwrap()).unwrap();
            let channel: Rc<dyn Channel> = nbss::Nbss::channel(stream, pool.clone(), nbss::Config::default());
            let server = server.clone();
            rt::spawn(async move { server.serve(channel).await }).detach();
        }
    };
    (addr.port(), smb_port, life)
}

fn tester(smb_port: u16) -> Option<Logon> {
    Some(Logon { user: "tester".into(), password: Zeroizing::new("secret".into()), smb_port: Some(smb_port) })
}

#[test]
fn our_own_server_works_over_both_providers() {
    let report = examined(
        async |dir: &std::path::Path| {
            let (port, _, life) = own_server(dir, true, false).await;
            (port, life)
        },
        |_| {},
    );
    assert!(report.verdict.rdma, "{report:#?}");
    assert_eq!(report.verdict.by, ["shm", "iwarp"]);
    assert_eq!(report.verdict.because, "RDMA would be used, over shm (else over iwarp)");
    for name in ["name", "MPA", "CRC", "IRD/ORD", "peer-to-peer", "path", "SMB Direct", "shm"] {
        assert_eq!(report.step(name).status, Status::Ok, "{:?}", report.step(name));
    }
    assert!(report.step("SMB Direct").found.contains("credits"));
    assert_eq!(report.step("announced").status, Status::Skipped);
    // Every step that is not OK says what to do.
    let silent = |step: &&super::super::report::Step| {
        matches!(step.status, Status::Warning | Status::Failed) && step.remedy.is_none()
    };
    assert!(report.steps.iter().find(silent).is_none());
}

/// The same with a log-on; whether payload moves by RDMA depends on the session.
fn logged_on(encrypted: bool) -> Report {
    let smb_port = std::cell::Cell::new(0);
    examined(
        async |dir: &std::path::Path| {
            let (port, smb, life) = own_server(dir, false, encrypted).await;
            smb_port.set(smb);
            (port, life)
        },
        |question| question.logon = tester(smb_port.get()),
    )
}

#[test]
fn with_credentials_the_session_itself_is_examined() {
    let report = logged_on(false);
    assert_eq!(report.verdict.because, "RDMA is used, over iwarp", "{report:#?}");
    assert!(report.step("announced").found.contains("127.0.0.1 (RDMA, 10 Gbit/s)"));
    assert!(report.step("announced").found.contains("iwarp at port"));
    assert_eq!((report.step("session").status, report.step("shm").status), (Status::Ok, Status::Warning));
}

#[test]
fn an_encrypted_session_keeps_its_rdma() {
    let report = logged_on(true);
    assert!(report.verdict.rdma, "what is encrypted in messages is so by RDMA too");
    assert_eq!(report.step("session").status, Status::Ok);
}

#[test]
fn a_wrong_password_is_named_and_rdma_is_not_to_blame() {
    let report = examined(
        async |dir: &std::path::Path| {
            let (port, smb, life) = own_server(dir, false, false).await;
            // The file passes the port of SMB to the test.
            std::fs::write(dir.join("smb"), smb.to_string()).unwrap();
            (port, life)
        },
        |question| {
            let smb = std::fs::read_to_string(question.shm.dir.with_file_name("smb")).unwrap();
            let logon = tester(smb.parse().unwrap()).unwrap();
            question.logon = Some(Logon { password: Zeroizing::new("wrong".into()), ..logon });
        },
    );
    assert_eq!(report.step("log-on").status, Status::Failed);
    assert!(report.step("log-on").found.contains("wrong user name or password"), "{report:#?}");
    // The log-on is not repeated over RDMA.
    assert!(report.steps.iter().all(|step| step.name != "session"));
    assert!(report.verdict.rdma);
    let because = &report.verdict.because;
    assert!(because.starts_with("RDMA would be used, over iwarp; tester cannot log on"), "{because}");
}

#[test]
fn a_closed_port_says_how_to_start_the_server() {
    let report = examined(
        async |_: &std::path::Path| {
            let port = Listener::bind(any()).unwrap().local_addr().port();
            (port, std::future::pending())
        },
        |_| {},
    );
    let closed = &report.steps[2];
    assert_eq!(closed.status, Status::Failed);
    assert!(closed.found.contains("closed"), "{closed:?}");
    assert!(
        closed.remedy.as_ref().is_some_and(|remedy| remedy.contains("weft serve --listen ADDR --smbd-port"))
    );
    assert!(!report.verdict.rdma && report.verdict.because.contains("closed"));
    assert!(!report.steps.iter().any(|step| step.name == "MPA"));
}

/// `--service nfs` and `--service ping` without a port tested that of SMB Direct.
#[test]
fn a_service_is_sought_at_its_own_port() {
    let ports = |service| super::usual_ports(service).into_iter().map(|(port, _)| port).collect::<Vec<_>>();
    assert_eq!(ports(Some(Service::Smb)), [5445]);
    assert_eq!(ports(Some(Service::Nfs)), [20049]);
    assert_eq!(ports(Some(Service::Ping)), [7174]);
    assert_eq!(ports(None), [5445, 20049]);
}

#[test]
fn a_web_server_is_recognised_as_something_else() {
    let report =
        examined(async |_: &std::path::Path| answers(b"HTTP/1.1 400 Bad Request\r\n\r\n").await, |_| {});
    let mpa = report.step("MPA");
    assert_eq!(mpa.status, Status::Failed);
    assert!(mpa.found.contains("a protocol other than MPA") && mpa.found.contains("HTTP/1.1 400"), "{mpa:?}");
    assert!(mpa.found.is_ascii() && !mpa.found.contains('\r'));
}

#[test]
fn a_silent_port_is_recognised() {
    let report = examined(
        async |_: &std::path::Path| {
            let listener = Listener::bind(any()).unwrap();
            let port = listener.local_addr().port();
            (port, async move {
                let _held = listener;
                std::future::pending().await
            })
        },
        |question| question.limit = IMPATIENCE,
    );
    assert_eq!(report.step("MPA").found, "connected, but silent");
    assert!(!report.verdict.rdma);
}

#[test]
fn a_rejection_shows_its_private_data() {
    let report = examined(
        async |_: &std::path::Path| {
            let provider = iwarp::Provider::new(Pool::new(1 << 20), iwarp::Config::default());
            let listener = provider.listen(any()).await.unwrap();
            let port = listener.local_addr().port();
            (port, async move {
                loop {
                    // The probe first checks whether the port is open, with a connection without a request.
                    let Ok(request) = listener.accept().await.unwrap().request().await else { continue };
                    let _ = request.reject(Bytes::from_static(b"go away\n")).await;
                }
            })
        },
        |_| {},
    );
    let mpa = report.step("MPA");
    assert_eq!(mpa.status, Status::Failed);
    assert!(mpa.found.contains(r#""go away\n""#), "{mpa:?}");
}

#[test]
fn a_peer_that_refuses_crcs_is_told_from_one_that_refuses_us() {
    let report = examined(
        async |_: &std::path::Path| {
            let listener = Listener::bind(any()).unwrap();
            let port = listener.local_addr().port();
            (port, async move {
                loop {
                    let stream = Stream::from_socket(listener.accept().await.unwrap()).unwrap();
                    let mut request = [0; 24];
                    let mut into = [IoSliceMut::new(&mut request)];
                    if !stream.recv(&mut into).await.is_ok_and(|n| n == 24) {
                        continue;
                    }
                    // The C flag of the request decides (RFC 5044 7.1.1).
                    let reply: &[u8] = if request[16] & 0x40 != 0 {
                        b"MPA ID Rep Frame\x30\x02\x00\x04\x00\x08\x00\x08"
                    } else {
                        b"MPA ID Rep Frame\x10\x02\x00\x04\x00\x08\x00\x08"
                    };
                    let _ = stream.send_all(&[Bytes::copy_from_slice(reply)]).await;
                    // It sends nothing more: the stream ends.
                    stream.shutdown_write();
                }
            })
        },
        |_| {},
    );
    let crc = report.step("CRC");
    assert_eq!(crc.status, Status::Failed);
    assert!(crc.remedy.as_ref().is_some_and(|remedy| remedy.contains("--no-crc")), "{crc:?}");
    assert_eq!(report.step("MPA").status, Status::Ok);
    // Eight Reads in each direction, without peer-to-peer.
    assert!(report.step("IRD/ORD").found.contains("accepts 8"));
    assert_eq!(report.step("peer-to-peer").status, Status::Skipped);
    assert!(!report.verdict.rdma && report.verdict.because.contains("CRC"));
}

#[test]
fn a_peer_that_knows_only_the_first_revision_is_asked_again() {
    let report = examined(
        async |_: &std::path::Path| {
            let listener = Listener::bind(any()).unwrap();
            let port = listener.local_addr().port();
            (port, async move {
                loop {
                    let stream = Stream::from_socket(listener.accept().await.unwrap()).unwrap();
                    let mut request = [0; 24];
                    let came = stream.recv(&mut [IoSliceMut::new(&mut request)]).await;
                    // Revision 1 has no enhanced header; every other request is dropped.
                    if came.is_ok_and(|n| n == 20 && request[17] == 1) {
                        let reply = Bytes::from_static(b"MPA ID Rep Frame\x40\x01\x00\x00");
                        let _ = stream.send_all(&[reply]).await;
                        stream.shutdown_write();
                    }
                }
            })
        },
        |_| {},
    );
    let mpa = report.step("MPA");
    assert_eq!(mpa.status, Status::Warning);
    assert!(mpa.found.contains("revision 1"), "{mpa:?}");
    assert_eq!(report.step("IRD/ORD").status, Status::Warning);
}

#[test]
fn another_service_on_an_rdma_port_is_named() {
    let report = examined(
        async |_: &std::path::Path| {
            let pool = Pool::new(64 << 20);
            let provider = iwarp::Provider::new(pool.clone(), iwarp::Config::default());
            let listener = provider.listen(any()).await.unwrap();
            let port = listener.local_addr().port();
            let answers = weft_load::verbs::server::Answers::All;
            (port, async move { weft_load::verbs::server::serve(listener, answers, pool).await.unwrap() })
        },
        |_| {},
    );
    let direct = report.step("SMB Direct");
    assert_eq!(direct.status, Status::Failed);
    assert!(direct.remedy.as_ref().is_some_and(|remedy| remedy.contains("--service ping")), "{direct:?}");
}

#[test]
fn pings_are_a_service_too() {
    let report = examined(
        async |_: &std::path::Path| {
            let pool = Pool::new(64 << 20);
            let provider = iwarp::Provider::new(pool.clone(), iwarp::Config::default());
            let listener = provider.listen(any()).await.unwrap();
            let port = listener.local_addr().port();
            let answers = weft_load::verbs::server::Answers::Pings;
            (port, async move { weft_load::verbs::server::serve(listener, answers, pool).await.unwrap() })
        },
        |question| question.service = Some(Service::Ping),
    );
    assert!(report.verdict.rdma, "{report:#?}");
    assert!(report.step("ping").found.contains("unchanged"));
}

#[test]
fn a_name_that_does_not_exist_ends_the_examination() {
    let report = examined(
        async |_: &std::path::Path| (1, std::future::pending()),
        |question| question.host.name = "no-such-host.invalid".into(),
    );
    assert_eq!(report.step("name").status, Status::Failed);
    assert_eq!(report.steps.last().map(|step| step.name.as_str()), Some("name"));
    assert!(!report.verdict.rdma);
}

#[test]
fn the_checklist_prints_every_remedy() {
    let mut report = Report { host: "h".into(), ..Report::default() };
    report.ok("one", "fine");
    report.warn("a longer name", "so so", "do this");
    report.fail("three", "broken", "do that");
    report.verdict = verdict(&report, Vec::new(), None);
    let text = report.render(false);
    for part in [
        "ok       one            fine",
        "-> do this",
        "failed   three",
        "not used, because of three: broken",
        "\n-> do that",
    ] {
        assert!(text.contains(part), "{part:?} is not in\n{text}");
    }
    assert!(report.render(true).contains("\x1b[31m"));
}

#[test]
fn an_nfs_server_over_rdma_is_called() {
    let report = examined(
        async |_: &std::path::Path| {
            let pool = Pool::new(256 << 20);
            let provider = iwarp::Provider::new(pool.clone(), iwarp::Config::default());
            let listener = provider.listen(any()).await.unwrap();
            let port = listener.local_addr().port();
            let share = Share::new("ram", Vfs::new(Ram::new(1 << 20)));
            let server = weft_nfs::server::Server::new(weft_nfs::server::Config {
                shares: vec![share],
                pool: pool.clone(),
                limits: weft_nfs::server::Limits::default(),
                policy: weft_nfs::server::Policy { decides: false, squash_root: true },
                durable: None,
            });
            (port, async move {
                loop {
                    let Ok(request) = listener.accept().await.unwrap().request().await else { continue };
                    let config = weft_transport::rpcrdma::Config::default();
                    let Ok(channel) = weft_transport::rpcrdma::accept(request, config, pool.clone()).await
                    else {
                        continue;
                    };
                    let server = server.clone();
                    rt::spawn(async move { drop(server.serve(channel).await) }).detach();
                }
            })
        },
        |question| question.service = Some(Service::Nfs),
    );
    assert!(report.verdict.rdma, "{report:#?}");
    assert!(report.step("NFS over RDMA").found.contains("NFSv3 answers"));
}
