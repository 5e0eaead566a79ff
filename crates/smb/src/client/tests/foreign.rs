//! Runs against another vendor's server. `WEFT_FOREIGN=address:port/share/sealed-share/user/password`, then `cargo test
//! -p weft-smb --lib client::tests::foreign -- --ignored --nocapture`.

use std::rc::Rc;
use std::sync::{Mutex, PoisonError};

use weft_machine::{Pool, Stream, rt};
use weft_transport::Channel;
use weft_transport::nbss::{Config, Nbss};
use weft_wire::smb2::negotiate::SigningId;
use weft_wire::smb2::{Dialect, HEADER_LEN, NtStatus};

use super::super::*;
use super::{Between, story};

struct Foreign {
    addr: std::net::SocketAddr,
    share: String,
    sealed: String,
    user: String,
    password: String,
    pool: Pool,
}

impl Foreign {
    fn of_environment() -> Foreign {
        let text =
            std::env::var("WEFT_FOREIGN").expect("WEFT_FOREIGN=address:port/share/sealed/user/password");
        let mut parts = text.split('/').map(str::to_owned);
        let mut next = || parts.next().expect("five parts");
        Foreign {
            addr: next().parse().expect("an address and port"),
            share: next(),
            sealed: next(),
            user: next(),
            password: next(),
            pool: Pool::new(256 << 20),
        }
    }

    async fn channel(&self) -> Rc<Between> {
        let stream = Stream::connect(self.addr).await.expect("the server listens");
        let channel: Rc<dyn Channel> = Nbss::channel(stream, self.pool.clone(), Config::default());
        Between::new(channel)
    }

    fn options(&self) -> Options {
        Options::new("127.0.0.1", &self.user, &self.password, self.pool.clone())
    }
}

/// The stories use the same names.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

fn run<F: Future>(future: impl FnOnce(Foreign) -> F) {
    let _one = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    rt::block_on(future(Foreign::of_environment())).expect("a loop");
}

#[test]
#[ignore = "needs a foreign server"]
fn the_story_in_every_dialect_and_protection() {
    run(|foreign| async move {
        for dialect in [Dialect::V2_1, Dialect::V3_0, Dialect::V3_0_2, Dialect::V3_1_1] {
            for signing in [Wish::IfRequired, Wish::Required] {
                let options = Options { dialects: dialect..=dialect, signing, ..foreign.options() };
                let session = Session::connect(foreign.channel().await, options).await.unwrap();
                println!("{}", session.describe());
                story::tell(&session, &foreign.share).await.unwrap();
                story::tell_large(&session, &foreign.share).await.unwrap();
                session.logoff().await.unwrap();
            }
        }
        for algorithm in [SigningId::AES_GMAC, SigningId::AES_CMAC, SigningId::HMAC_SHA256] {
            let options =
                Options { signing: Wish::Required, signing_algorithms: vec![algorithm], ..foreign.options() };
            let session = Session::connect(foreign.channel().await, options).await.unwrap();
            println!("{}", session.describe());
            story::tell(&session, &foreign.share).await.unwrap();
        }
        for (dialect, cipher) in super::CIPHERS {
            let options = Options {
                encryption: Wish::Required,
                ciphers: vec![cipher],
                dialects: dialect..=dialect,
                ..foreign.options()
            };
            let between = foreign.channel().await;
            let session = Session::connect(between.clone(), options).await.unwrap();
            println!("{}", session.describe());
            story::tell(&session, &foreign.share).await.unwrap();
            assert!(!between.saw(b"hello, world"), "plaintext on the wire");
        }
    });
}

#[test]
#[ignore = "needs a foreign server"]
fn a_share_that_insists_on_encryption_gets_it() {
    run(|foreign| async move {
        for (dialect, cipher) in super::CIPHERS {
            let between = foreign.channel().await;
            let options = Options { dialects: dialect..=dialect, ciphers: vec![cipher], ..foreign.options() };
            let session = Session::connect(between.clone(), options).await.unwrap();
            let tree = session.tree(&foreign.sealed).await.unwrap();
            println!("{}", tree.describe());
            assert_eq!(tree.describe().cipher, Some(cipher));
            // Names the tree of that share.
            session.interfaces().await.unwrap();
            story::tell(&session, &foreign.sealed).await.unwrap();
            assert!(!between.saw(b"hello, world"), "plaintext on the wire");
            story::tell(&session, &foreign.share).await.unwrap();
            assert!(between.saw(b"hello, world"), "the other share is plain");
        }
    });
}

#[test]
#[ignore = "needs a foreign server"]
fn a_wrong_password_is_refused_with_advice() {
    run(|foreign| async move {
        let options = Options::new("127.0.0.1", &foreign.user, "wrong", foreign.pool.clone());
        let error = Session::connect(foreign.channel().await, options).await.map(drop).unwrap_err();
        assert_eq!(error.status(), Some(NtStatus::LOGON_FAILURE));
        assert!(error.to_string().contains("wrong user name or password"), "{error}");
    });
}

#[test]
#[ignore = "needs a foreign server"]
fn tampered_answers_end_the_connection() {
    run(|foreign| async move {
        for (signing, encryption) in [(Wish::Required, Wish::IfRequired), (Wish::IfRequired, Wish::Required)]
        {
            for attack in 0..3 {
                let between = foreign.channel().await;
                let options = Options { signing, encryption, ..foreign.options() };
                let session = Session::connect(between.clone(), options).await.unwrap();
                let tree = session.tree(&foreign.share).await.unwrap();
                between.tamper(move |bytes| {
                    match attack {
                        // One bit of the content.
                        0 => *bytes.last_mut().unwrap() ^= 1,
                        // Removes the signature and its flag (of a plain message).
                        1 if bytes[0] == 0xfe => {
                            bytes[16] &= !8;
                            bytes[48..HEADER_LEN].fill(0);
                        }
                        // The signature.
                        _ => {
                            let at = if bytes[0] == 0xfe { 48 } else { 4 };
                            bytes[at] ^= 0x80;
                        }
                    }
                    true
                });
                let error = tree.stat("").await.unwrap_err();
                assert!(matches!(error, Error::Tampered(_)), "attack {attack}: {error}");
                assert!(session.echo().await.is_err(), "the connection has ended");
            }
        }
    });
}

#[test]
#[ignore = "needs a foreign server"]
fn a_downgraded_negotiation_is_found_out() {
    run(|foreign| async move {
        // The attacker removes signing-enabled and the capabilities from the NEGOTIATE response. In 3.1.1 the keys then
        // differ; in 3.0 the validation detects it.
        for dialect in [Dialect::V3_0, Dialect::V3_1_1] {
            let between = foreign.channel().await;
            between.tamper(|bytes| {
                let negotiate = bytes[0] == 0xfe && bytes[12] == 0;
                if negotiate {
                    bytes[HEADER_LEN + 24] ^= 0x01;
                }
                negotiate
            });
            let options = Options { dialects: dialect..=dialect, ..foreign.options() };
            let outcome = match Session::connect(between.clone(), options).await {
                Ok(session) => session.tree(&foreign.share).await.map(drop),
                Err(e) => Err(e),
            };
            let error = outcome.unwrap_err();
            println!("{dialect}: {error}");
            match dialect {
                Dialect::V3_0 => assert!(matches!(error, Error::Denied(Denial::Downgrade)), "{error}"),
                _ => assert!(matches!(error, Error::Tampered(_)), "{error}"),
            }
            assert_eq!(between.changed.get(), 1);
        }
    });
}
