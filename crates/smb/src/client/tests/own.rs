//! Against our own server: over simulated TCP, and over RDMA in memory.

use std::net::{IpAddr, Ipv4Addr};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use weft_machine::sim::Sim;
use weft_machine::{Listener, Pool, Stream, buf, rt};
use weft_store::backend::Ram;
use weft_store::vfs::{Share, Vfs};
use weft_transport::Channel;
use weft_transport::nbss::{Config as NbssConfig, Nbss};
use weft_wire::smb2::negotiate::SigningId;
use weft_wire::smb2::{Command, Dialect, HEADER_LEN, Header, NtStatus};

use super::super::*;
use super::direct::{self, Direct};
use super::{Between, CIPHERS, story};
use crate::auth::Secret;
use crate::server::{self, Server};

pub(super) struct Own {
    pub server: Arc<Server>,
    pub pool: Pool,
}

const ENDPOINTS: &str = "iwarp 127.0.0.1:5445\nshm 5445\nnfs 127.0.0.1:2049\n";

impl Own {
    pub fn new(adjust: impl FnOnce(&mut server::Config)) -> Own {
        let pool = Pool::new(512 << 20);
        let mut config = server::Config {
            names: crate::auth::ServerNames::new(["server"], Vec::new).into(),
            signing: crate::server::Signing::Enabled,
            min_dialect: weft_wire::smb2::Dialect::V2_0_2,
            interfaces: vec![server::NetworkInterface {
                index: 2,
                addr: IpAddr::V4(Ipv4Addr::LOCALHOST),
                link_speed_bps: 10_000_000_000,
                rdma: true,
                rss: false,
            }]
            .into(),
            endpoints: ENDPOINTS.into(),
            ..server::Config::new(
                *b"a server's guid!",
                vec![Share::new("data", Vfs::new(Ram::new(256 << 20)))],
                vec![server::User::new("alice", Secret::password("secret"))],
                pool.clone(),
            )
        };
        adjust(&mut config);
        Own { server: Server::new(config), pool }
    }

    pub fn serve(&self, channel: Rc<dyn Channel>) {
        let server = self.server.clone();
        rt::spawn(async move { server.serve(channel).await }).detach();
    }

    pub async fn tcp(&self) -> Rc<Between> {
        let listener = Listener::bind("127.0.0.1:0".parse().unwrap()).unwrap();
        let (server, client) = futures_util::join!(listener.accept(), Stream::connect(listener.local_addr()));
        let server = Stream::from_socket(server.unwrap()).unwrap();
        self.serve(Nbss::channel(server, self.pool.clone(), NbssConfig::default()));
        Between::new(Nbss::channel(client.unwrap(), self.pool.clone(), NbssConfig::default()))
    }

    pub fn rdma(&self) -> (Rc<Between>, Rc<Direct>) {
        let (server, client) = direct::pair(&self.pool);
        self.serve(server);
        (Between::new(client.clone()), client)
    }

    pub fn options(&self) -> Options {
        Options::new("server", "alice", "secret", self.pool.clone())
    }
}

fn only(dialect: Dialect, options: Options) -> Options {
    Options { dialects: dialect..=dialect, ..options }
}

const DIALECTS: [Dialect; 4] = [Dialect::V2_1, Dialect::V3_0, Dialect::V3_0_2, Dialect::V3_1_1];

#[test]
fn the_story_in_every_dialect_signed_or_not() {
    for dialect in DIALECTS {
        for signing in [Wish::IfRequired, Wish::Required] {
            Sim::new(1).run(async {
                let own = Own::new(|_| {});
                let options = Options { signing, ..only(dialect, own.options()) };
                let session = Session::connect(own.tcp().await, options).await.unwrap();
                let described = session.describe();
                assert_eq!(described.dialect, dialect);
                assert_eq!(described.signing.is_some(), signing == Wish::Required, "{described}");
                story::tell(&session, "data").await.unwrap();
                session.logoff().await.unwrap();
            });
        }
    }
}

#[test]
fn the_story_with_each_algorithm() {
    for algorithm in [SigningId::AES_GMAC, SigningId::AES_CMAC, SigningId::HMAC_SHA256] {
        Sim::new(2).run(async {
            let own = Own::new(|config| config.signing = crate::server::Signing::Required);
            let options = Options { signing_algorithms: vec![algorithm], ..own.options() };
            let session = Session::connect(own.tcp().await, options).await.unwrap();
            assert_eq!(session.describe().signing, Some(algorithm));
            story::tell(&session, "data").await.unwrap();
        });
    }
    for (dialect, cipher) in super::CIPHERS {
        Sim::new(3).run(async {
            let own = Own::new(|config| config.require_encryption = true);
            let between = own.tcp().await;
            let options = Options { ciphers: vec![cipher], ..only(dialect, own.options()) };
            let session = Session::connect(between.clone(), options).await.unwrap();
            assert_eq!(session.describe().cipher, Some(cipher));
            story::tell(&session, "data").await.unwrap();
            assert!(!between.saw(b"hello, world"), "plaintext on the wire");
        });
    }
}

#[test]
fn the_story_over_rdma() {
    let dialects = [Dialect::V3_0, Dialect::V3_0_2, Dialect::V3_1_1].map(|dialect| (dialect, true));
    // The last case: a device whose regions the server must not be asked to invalidate.
    for (dialect, revocable) in dialects.into_iter().chain([(Dialect::V3_1_1, false)]) {
        Sim::new(4).run(async {
            let own = Own::new(|_| {});
            let (between, direct) = own.rdma();
            direct.revocable.set(revocable);
            let options = only(dialect, own.options());
            let session = Session::connect(between.clone(), options).await.unwrap();
            assert!(session.describe().rdma);
            story::tell(&session, "data").await.unwrap();
            let exposed = between.exposed.get();
            assert!(exposed > 1200, "{exposed} regions");
            session.echo().await.unwrap();
            assert_eq!(direct.open_regions(), 0, "every region was taken back");
            match dialect {
                _ if !revocable => assert_eq!(direct.invalidated.get(), 0),
                Dialect::V3_0 => assert_eq!(direct.invalidated.get(), 0),
                _ => assert_eq!(direct.invalidated.get(), exposed, "each by the server's answer"),
            }
        });
    }
}

#[test]
fn without_transforms_what_is_signed_or_encrypted_does_not_travel_by_rdma() {
    for (signing, encryption) in [(Wish::Required, Wish::IfRequired), (Wish::IfRequired, Wish::Required)] {
        Sim::new(5).run(async {
            let own = Own::new(|_| {});
            let (between, _) = own.rdma();
            let options = Options { signing, encryption, rdma_transforms: false, ..own.options() };
            let session = Session::connect(between.clone(), options).await.unwrap();
            assert!(!session.describe().rdma);
            story::tell(&session, "data").await.unwrap();
            assert_eq!(between.exposed.get(), 0);
            assert_eq!(between.saw(b"hello, world"), encryption == Wish::IfRequired);
        });
    }
}

/// What a tap on the RDMA provider must never show of an encrypted session.
const PLAIN: &[u8] = b"nobody but the two of us may read this";

fn payload() -> Bytes {
    PLAIN.iter().copied().cycle().take(1 << 20).collect::<Vec<u8>>().into()
}

#[test]
fn encrypted_payload_travels_by_rdma_and_a_tap_sees_nothing_of_it() {
    for (_, cipher) in CIPHERS.into_iter().filter(|(dialect, _)| *dialect == Dialect::V3_1_1) {
        for by_server in [false, true] {
            Sim::new(31).run(async {
                let own = Own::new(|config| config.require_encryption = by_server);
                let (between, direct) = own.rdma();
                let encryption = if by_server { Wish::IfRequired } else { Wish::Required };
                let options = Options { encryption, ciphers: vec![cipher], ..own.options() };
                let session = Session::connect(between.clone(), options).await.unwrap();
                assert!(session.describe().rdma, "{}", session.describe());
                story::tell(&session, "data").await.unwrap();
                let tree = session.tree("data").await.unwrap();
                let file = tree.open("secret", OpenOptions::create()).await.unwrap();
                let server = direct.far();
                server.tap.borrow_mut().clear();
                file.write(0, payload()).await.unwrap();
                let buf = own.pool.buf_from(&payload()).unwrap();
                let back = file.write_buf(1 << 20, buf).await.unwrap();
                assert_eq!(back[..], payload()[..], "the caller's buffer is as it was");
                assert_eq!(file.read(0, 1 << 20).await.unwrap(), payload());
                assert_eq!(server.tap.borrow().len(), 3 << 20, "all of it by RDMA");
                let saw = |bytes: &[u8]| bytes.windows(PLAIN.len()).any(|window| window == PLAIN);
                assert!(!saw(&server.tap.borrow()), "{cipher:?}: plaintext by RDMA");
                assert!(!between.saw(PLAIN), "{cipher:?}: plaintext in messages");
                session.echo().await.unwrap();
                assert_eq!(direct.open_regions(), 0);
            });
        }
    }
}

#[test]
fn signed_payload_travels_by_rdma() {
    for algorithm in [SigningId::AES_GMAC, SigningId::AES_CMAC, SigningId::HMAC_SHA256] {
        Sim::new(32).run(async {
            let own = Own::new(|config| config.signing = crate::server::Signing::Required);
            let (between, direct) = own.rdma();
            let options = Options { signing_algorithms: vec![algorithm], ..own.options() };
            let session = Session::connect(between.clone(), options).await.unwrap();
            assert!(session.describe().rdma && session.describe().signing == Some(algorithm));
            let tree = session.tree("data").await.unwrap();
            let file = tree.open("f", OpenOptions::create()).await.unwrap();
            let server = direct.far();
            server.tap.borrow_mut().clear();
            file.write(0, payload()).await.unwrap();
            assert_eq!(file.read(0, 1 << 20).await.unwrap(), payload());
            assert_eq!(server.tap.borrow().len(), 2 << 20);
        });
    }
}

#[test]
fn payload_that_is_changed_on_its_way_by_rdma_is_found_out() {
    for (signing, encryption) in [(Wish::Required, Wish::IfRequired), (Wish::IfRequired, Wish::Required)] {
        Sim::new(33).run(async {
            let own = Own::new(|_| {});
            let (between, direct) = own.rdma();
            let options = Options { signing, encryption, ..own.options() };
            let session = Session::connect(between.clone(), options).await.unwrap();
            let tree = session.tree("data").await.unwrap();
            let file = tree.open("f", OpenOptions::create()).await.unwrap();
            file.write(0, payload()).await.unwrap();
            let server = direct.far();
            server.damage.set(true);
            let expected = match encryption {
                Wish::Required => NtStatus::AUTH_TAG_MISMATCH,
                Wish::IfRequired => NtStatus::INVALID_SIGNATURE,
            };
            let refused = file.write(0, vec![7; 1 << 20].into()).await.unwrap_err();
            assert_eq!(refused.status(), Some(expected));
            let found = file.read(0, 1 << 20).await.unwrap_err();
            assert!(matches!(found, Error::Tampered(_)), "{found}");
            server.damage.set(false);
            assert_eq!(file.read(0, 1 << 20).await.unwrap(), payload(), "what was refused was not written");
        });
    }
}

#[test]
fn what_does_not_fit_one_request_is_split() {
    for (dialect, rdma) in [(Dialect::V3_1_1, false), (Dialect::V2_1, false), (Dialect::V3_1_1, true)] {
        Sim::new(19).run(async {
            let own = Own::new(|_| {});
            let channel: Rc<dyn Channel> = if rdma { own.rdma().0 } else { own.tcp().await };
            let session = Session::connect(channel, only(dialect, own.options())).await.unwrap();
            story::tell_large(&session, "data").await.unwrap();
        });
    }
}

#[test]
fn before_3_0_there_is_no_rdma_channel() {
    Sim::new(6).run(async {
        let own = Own::new(|_| {});
        let (between, _) = own.rdma();
        let session = Session::connect(between.clone(), only(Dialect::V2_1, own.options())).await.unwrap();
        story::tell(&session, "data").await.unwrap();
        assert_eq!(between.exposed.get(), 0);
    });
}

#[test]
fn payload_by_rdma_is_not_copied_by_the_client() {
    Sim::new(7).run(async {
        let own = Own::new(|_| {});
        let (between, _) = own.rdma();
        let session = Session::connect(between, own.options()).await.unwrap();
        let tree = session.tree("data").await.unwrap();
        let file = tree.open("f", OpenOptions::create()).await.unwrap();
        let data = own.pool.buf_from(&story::pattern(1 << 20, 5)).unwrap();
        let before = buf::copies();
        let data = file.write_buf(0, data).await.unwrap();
        assert_eq!(data[..], story::pattern(1 << 20, 5), "the buffer comes back as it was");
        let read = file.read(0, 1 << 20).await.unwrap();
        assert_eq!(buf::copies(), before);
        assert_eq!(read, data[..]);
        file.write(0, read).await.unwrap();
        let (copies, bytes) = buf::copies();
        assert_eq!((copies - before.0, bytes - before.1), (1, 1 << 20), "shared bytes are copied once");
    });
}

#[test]
fn a_buffer_lent_to_tcp_comes_back() {
    Sim::new(8).run(async {
        let own = Own::new(|_| {});
        let session = Session::connect(own.tcp().await, own.options()).await.unwrap();
        let tree = session.tree("data").await.unwrap();
        let file = tree.open("f", OpenOptions::create()).await.unwrap();
        let pattern = story::pattern(100_000, 6);
        let data = own.pool.buf_from(&pattern).unwrap();
        let address = data.as_ptr();
        let data = file.write_buf(10, data).await.unwrap();
        assert_eq!(data.as_ptr(), address, "the same memory");
        assert_eq!(file.read(10, 100_000).await.unwrap(), pattern[..]);
    });
}

#[test]
fn a_wrong_password_is_refused_with_advice() {
    Sim::new(9).run(async {
        let own = Own::new(|_| {});
        for (user, password) in [("alice", "wrong"), ("mallory", "secret"), ("", "")] {
            let options = Options::new("server", user, password, own.pool.clone());
            let error = Session::connect(own.tcp().await, options).await.map(drop).unwrap_err();
            assert_eq!(error.status(), Some(NtStatus::LOGON_FAILURE), "{user:?}: {error}");
            assert!(error.to_string().contains("wrong user name or password"), "{error}");
        }
    });
}

#[test]
fn encryption_that_is_not_to_be_had_is_an_error() {
    Sim::new(10).run(async {
        let own = Own::new(|_| {});
        let options = Options { encryption: Wish::Required, ..only(Dialect::V2_1, own.options()) };
        let error = Session::connect(own.tcp().await, options).await.map(drop).unwrap_err();
        assert!(matches!(error, Error::Denied(Denial::Encryption)), "{error}");
    });
}

#[test]
fn tampered_answers_end_the_connection() {
    for encryption in [Wish::IfRequired, Wish::Required] {
        for attack in 0..4 {
            Sim::new(11).run(async {
                let own = Own::new(|_| {});
                let between = own.tcp().await;
                let options = Options { signing: Wish::Required, encryption, ..own.options() };
                let session = Session::connect(between.clone(), options).await.unwrap();
                let tree = session.tree("data").await.unwrap();
                between.tamper(move |bytes| {
                    let plain = bytes[0] == 0xfe;
                    match attack {
                        // One bit of the content.
                        0 => *bytes.last_mut().unwrap() ^= 1,
                        // Removes the signature and its flag.
                        1 if plain => {
                            bytes[16] &= !8;
                            bytes[48..HEADER_LEN].fill(0);
                        }
                        // A forged error.
                        2 => {
                            let header = Header::request(Command::Create, 4);
                            *bytes = header.reply(NtStatus::ACCESS_DENIED, 1).to_bytes().to_vec();
                            bytes.extend_from_slice(&[9, 0, 0, 0, 0, 0, 0, 0, 0]);
                        }
                        // The signature.
                        _ => bytes[if plain { 48 } else { 4 }] ^= 0x80,
                    }
                    true
                });
                let error = tree.stat("").await.unwrap_err();
                assert!(matches!(error, Error::Tampered(_)), "attack {attack}: {error}");
                let after = session.echo().await.unwrap_err();
                assert!(matches!(after, Error::Tampered(_)), "the connection has ended: {after}");
            });
        }
    }
}

#[test]
fn a_downgraded_negotiation_is_found_out() {
    for dialect in [Dialect::V3_0, Dialect::V3_0_2, Dialect::V3_1_1] {
        Sim::new(12).run(async {
            let own = Own::new(|_| {});
            let between = own.tcp().await;
            between.tamper(|bytes| {
                let negotiate = bytes[0] == 0xfe && bytes[12] == 0;
                if negotiate {
                    bytes[HEADER_LEN + 24] ^= 0x01;
                }
                negotiate
            });
            let outcome = match Session::connect(between.clone(), only(dialect, own.options())).await {
                Ok(session) => session.tree("data").await.map(drop),
                Err(e) => Err(e),
            };
            let error = outcome.unwrap_err();
            match dialect {
                Dialect::V3_1_1 => assert!(matches!(error, Error::Tampered(_)), "{error}"),
                _ => assert!(matches!(error, Error::Denied(Denial::Downgrade)), "{error}"),
            }
            assert_eq!(between.changed.get(), 1);
        });
    }
}

#[test]
fn nonsense_from_the_server_is_an_error_for_all_who_wait() {
    for len in [0, 1, 63, 64, 70] {
        Sim::new(13).run(async {
            let own = Own::new(|_| {});
            let between = own.tcp().await;
            let session = Session::connect(between.clone(), own.options()).await.unwrap();
            let tree = session.tree("data").await.unwrap();
            let file = tree.open("f", OpenOptions::create()).await.unwrap();
            file.write(0, Bytes::from_static(b"0123456789")).await.unwrap();
            between.tamper(move |bytes| {
                bytes.truncate(len);
                true
            });
            let (a, b) = futures_util::join!(file.read(0, 10), session.echo());
            let (a, b) = (a.unwrap_err(), b.map(|()| "parsed"));
            assert!(matches!(a, Error::Malformed(_)), "{len}: {a}");
            assert!(b.is_err() || len == 70, "{len}: {b:?}");
        });
    }
}

#[test]
fn a_server_that_says_nothing_is_given_up_and_not_blamed_for_memory_of_ours() {
    for starved in [false, true] {
        given_up(starved);
    }
}

fn given_up(starved: bool) {
    Sim::new(14).run(async {
        let pool = Pool::new(64 << 20);
        let (_silent, client) = direct::pair(&pool);
        client.starved.set(starved);
        let options = Options {
            timeout: Duration::from_secs(10),
            ..Options::new("server", "alice", "secret", pool.clone())
        };
        let start = rt::now();
        let error = Session::connect(client, options).await.map(drop).unwrap_err();
        match starved {
            true => assert!(matches!(error, Error::Starved(_)), "{error}"),
            false => assert!(matches!(error, Error::TimedOut), "{error}"),
        }
        let waited = rt::now().since(start);
        assert!((Duration::from_secs(10)..=Duration::from_secs(20)).contains(&waited), "{waited:?}");
    });
}

#[test]
fn a_server_that_is_at_work_for_ever_loses_the_request_alone() {
    Sim::new(14).run(async {
        let own = Own::new(|_| {});
        let between = own.tcp().await;
        let session = Session::connect(between.clone(), own.options()).await.unwrap();
        let tree = session.tree("data").await.unwrap();
        // The answer to a CREATE becomes an interim response (2.2.2, 3.3.4.2), and nothing follows.
        between.tamper(|bytes| {
            let create = bytes[12..14] == [5, 0];
            if create {
                bytes.truncate(HEADER_LEN);
                bytes[8..12].copy_from_slice(&0x103u32.to_le_bytes());
                bytes[16] |= 2;
                bytes[32..40].copy_from_slice(&77u64.to_le_bytes());
                bytes.extend_from_slice(&[9, 0, 0, 0, 0, 0, 0, 0, 0]);
            }
            create
        });
        let start = rt::now();
        let error = tree.open("f", OpenOptions::create()).await.map(drop).unwrap_err();
        assert!(matches!(error, Error::Overdue(limit) if limit.as_secs() == 120), "{error}");
        assert!(!error.is_loss());
        let waited = rt::now().since(start).as_secs_f64();
        assert!((120.0..121.0).contains(&waited), "{waited}");
        session.echo().await.unwrap();
    });
}

#[test]
fn a_server_that_goes_away_is_an_error_for_all_who_wait() {
    Sim::new(15).run(async {
        let own = Own::new(|_| {});
        let between = own.tcp().await;
        let session = Session::connect(between.clone(), own.options()).await.unwrap();
        weft_machine::sim::cut_all(weft_machine::sim::CutHow::Reset);
        assert!(session.echo().await.is_err());
        assert!(session.tree("data").await.is_err());
    });
}

#[test]
fn the_server_tells_its_endpoints_and_interfaces() {
    Sim::new(16).run(async {
        let own = Own::new(|_| {});
        let session = Session::connect(own.tcp().await, own.options()).await.unwrap();
        // No share was connected, so this connects to IPC$.
        let endpoints = session.endpoints().await.unwrap();
        let told: Vec<_> = endpoints.iter().map(|e| (e.kind.as_str(), e.address.as_str())).collect();
        assert_eq!(told, [("iwarp", "127.0.0.1:5445"), ("shm", "5445"), ("nfs", "127.0.0.1:2049")]);
        let interfaces = session.interfaces().await.unwrap();
        assert_eq!(interfaces.len(), 1);
        assert!(interfaces[0].rdma);
        assert_eq!(interfaces[0].link_speed_bps, 10_000_000_000);
    });
}

#[test]
fn a_dropped_rdma_read_keeps_its_memory_until_the_answer() {
    Sim::new(17).run(async {
        let own = Own::new(|_| {});
        let (between, direct) = own.rdma();
        let session = Session::connect(between, own.options()).await.unwrap();
        let tree = session.tree("data").await.unwrap();
        let file = tree.open("f", OpenOptions::create()).await.unwrap();
        file.write(0, Bytes::from(story::pattern(100_000, 1))).await.unwrap();
        {
            let reading = file.read(0, 100_000);
            futures_util::pin_mut!(reading);
            assert!(futures_util::poll!(&mut reading).is_pending());
            assert_eq!(direct.open_regions(), 1);
        }
        assert_eq!(direct.open_regions(), 1, "the server may still write there");
        session.echo().await.unwrap();
        assert_eq!(direct.open_regions(), 0);
        assert!(file.read(0, 100_000).await.is_ok(), "the connection lives");
    });
}

/// An encrypted message of a session that has ended would end the connection and add a line to the server's log.
#[test]
fn what_is_dropped_after_the_log_off_says_nothing() {
    Sim::new(27).run(async {
        let own = Own::new(|_| {});
        let tcp = own.tcp().await;
        let options = Options { encryption: Wish::Required, ..own.options() };
        let session = Session::connect(tcp.clone(), options).await.unwrap();
        let tree = session.tree("data").await.unwrap();
        let file = tree.open("f", OpenOptions::create()).await.unwrap();
        session.logoff().await.unwrap();
        let sent = session.traffic().sent;
        drop(file);
        drop(tree);
        assert_eq!(session.traffic().sent, sent);
    });
}

#[test]
fn handles_that_are_dropped_are_closed() {
    Sim::new(18).run(async {
        let own = Own::new(|_| {});
        let session = Session::connect(own.tcp().await, own.options()).await.unwrap();
        let tree = session.tree("data").await.unwrap();
        let exclusive =
            OpenOptions { share: weft_wire::smb2::access::ShareAccess::NONE, ..OpenOptions::create() };
        for _ in 0..5 {
            let file = tree.open("f", exclusive).await.unwrap();
            let second = tree.open("f", OpenOptions::read()).await.map(drop).unwrap_err();
            assert_eq!(second.status(), Some(NtStatus::SHARING_VIOLATION));
            drop(file);
        }
        assert_eq!(own.server.session_count(), 1);
        session.logoff().await.unwrap();
        assert_eq!(own.server.session_count(), 0);
    });
}

/// CPU time of one READ on both ends together, without a kernel in between; run with `--release -- --ignored
/// --nocapture`. READS=n sets the number per case; CASE=name selects one case, for callgrind.
#[test]
#[ignore = "prints numbers, asserts nothing about them"]
fn read_cost() {
    rt::block_on(async {
        let own = Own::new(|_| {});
        for (name, len, signing, encryption, threshold) in [
            ("8 KiB by RDMA", 8192, Wish::IfRequired, Wish::IfRequired, 4096),
            ("8 KiB in messages", 8192, Wish::IfRequired, Wish::IfRequired, usize::MAX),
            ("8 KiB in messages, signed", 8192, Wish::Required, Wish::IfRequired, 4096),
            ("8 KiB in messages, encrypted", 8192, Wish::IfRequired, Wish::Required, 4096),
            ("1 byte in messages", 1, Wish::IfRequired, Wish::IfRequired, 4096),
        ] {
            if std::env::var("CASE").is_ok_and(|case| case != name) {
                continue;
            }
            let options = Options { signing, encryption, rdma_threshold: threshold, ..own.options() };
            let (server, client) = direct::pair(&own.pool);
            own.serve(server);
            let session = Session::connect(client, options).await.unwrap();
            let tree = session.tree("data").await.unwrap();
            let file = tree.open("f", OpenOptions::create()).await.unwrap();
            file.write(0, Bytes::from(vec![7; 8192])).await.unwrap();
            let n: u32 = std::env::var("READS").ok().and_then(|n| n.parse().ok()).unwrap_or(100_000);
            let start = std::time::Instant::now();
            for _ in 0..n {
                assert_eq!(file.read(0, len).await.unwrap().len(), len);
            }
            println!("{name}: {:.2} us", start.elapsed().as_micros() as f64 / f64::from(n));
        }
    })
    .unwrap();
}
