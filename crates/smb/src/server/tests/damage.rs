//! Truncated messages and changed bytes: an error or a closed connection, and other clients are still served.

use proptest::prelude::*;
use proptest::test_runner::{Config as Cases, TestRunner};
use weft_wire::smb2::create::CreateOptions;
use weft_wire::smb2::negotiate::{Capabilities, SecurityMode};
use weft_wire::smb2::session_setup::{Request, RequestFlags};
use weft_wire::smb2::{Command, FileId, echo};
use zeroize::Zeroizing;

use super::harness::*;
use crate::auth::{Credentials, Initiator, Nonces, Secret};

/// The first SESSION_SETUP of an honest client.
fn session_setup(client: &mut Client) -> Vec<u8> {
    let credentials =
        Credentials { user: "alice".into(), domain: String::new(), secret: Secret::password(PASSWORD) };
    let nonces = Nonces { client_challenge: [3; 8], session_key: Zeroizing::new([4; 16]) };
    let (_, token) = Initiator::start(credentials, "weft", nonces);
    let setup = Request {
        flags: RequestFlags::NONE,
        security_mode: SecurityMode::SIGNING_ENABLED,
        capabilities: Capabilities::NONE,
        previous_session_id: 0,
        token: token.into(),
    };
    client.request(Command::SessionSetup, |out| setup.emit(out))
}

/// Sends a damaged message; afterwards the connection has answered with an error or is closed, and `bystander` is
/// served.
async fn survives(client: &mut Client, damaged: Vec<u8>, bystander: &mut Client) {
    client.wire.send(damaged);
    if let Some(frame) = client.wire.recv(&client.pool).await {
        assert!(frame.len() >= SHORTEST);
    }
    assert!(bystander.is_served().await);
}

#[test]
fn every_truncation_of_negotiate() {
    story(async {
        let world = World::new();
        let mut bystander = world.client().await;
        let whole = Offer::default().emit(0);
        for len in 0..whole.len() {
            let mut client = world.connect();
            client.wire.send(whole[..len].to_vec());
            match client.recv().await {
                Some((header, _)) => assert!(header.status.is_error(), "cut to {len}"),
                None => assert!(len < SHORTEST, "cut to {len}"),
            }
        }
        assert!(bystander.is_served().await);
        assert_eq!(world.server.session_count(), 1);
    });
}

#[test]
fn every_truncation_of_session_setup() {
    story(async {
        let world = World::new();
        let mut bystander = world.client().await;
        let len = {
            let mut client = world.connect();
            session_setup(&mut client).len()
        };
        for len in 0..len {
            let mut client = world.connect();
            client.negotiate(Offer::default()).await;
            let setup = session_setup(&mut client);
            client.wire.send(setup[..len].to_vec());
            match client.recv().await {
                Some((header, _)) => assert!(header.status.is_error(), "cut to {len}"),
                None => assert!(len < SHORTEST, "cut to {len}"),
            }
        }
        assert!(bystander.is_served().await);
        assert_eq!(world.server.session_count(), 1);
    });
}

#[test]
fn every_truncation_of_a_compound_and_of_an_encrypted_message() {
    story(async {
        let world = World::new();
        let mut bystander = world.client().await;
        let compound = |client: &mut Client| {
            let create =
                client.request(Command::Create, |out| create_request("f", CreateOptions::NONE).emit(out));
            let read = client.request(Command::Read, |out| read_request(FileId::RELATED, 10).emit(out));
            let close = client.request(Command::Close, |out| close_request(FileId::RELATED).emit(out));
            link(vec![create, read, close], true)
        };
        let len = compound(&mut world.client().await).len();
        for len in 0..len {
            let mut client = world.client().await;
            let message = compound(&mut client);
            survives(&mut client, message[..len].to_vec(), &mut bystander).await;
        }
        let mut client = world.client().await;
        let request = client.request(Command::Echo, |out| echo::Request.emit(out));
        let len = client.sealed(&request).len();
        for len in 0..len {
            let mut client = world.client().await;
            let request = client.request(Command::Echo, |out| echo::Request.emit(out));
            let sealed = client.sealed(&request);
            client.wire.send(sealed[..len].to_vec());
            client.assert_closed().await;
        }
        assert!(bystander.is_served().await);
    });
}

/// Random damage to every kind of message, before and after log-on. Every answer can be parsed, and nothing panics: a
/// panic of the connection's task ends the story.
#[test]
fn random_damage() {
    let mut runner = TestRunner::new(Cases { cases: 300, ..Cases::default() });
    let damage = prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6);
    runner
        .run(&(0..6usize, damage, any::<prop::sample::Index>()), |(kind, damage, cut)| {
            story(async {
                let world = World::new();
                let mut bystander = world.client().await;
                let mut client = match kind {
                    0 => world.connect(),
                    1 => {
                        let mut client = world.connect();
                        client.negotiate(Offer::default()).await;
                        client
                    }
                    _ => world.client().await,
                };
                let mut message = match kind {
                    0 => Offer::default().emit(0),
                    1 => session_setup(&mut client),
                    2 => client
                        .request(Command::Create, |out| create_request("f", CreateOptions::NONE).emit(out)),
                    3 => {
                        let file = client.open("f", CreateOptions::NONE).await;
                        client.request(Command::Read, |out| read_request(file, 100).emit(out))
                    }
                    4 => {
                        let create = client.request(Command::Create, |out| {
                            create_request("f", CreateOptions::NONE).emit(out)
                        });
                        let close =
                            client.request(Command::Close, |out| close_request(FileId::RELATED).emit(out));
                        link(vec![create, close], true)
                    }
                    _ => {
                        let echo = client.request(Command::Echo, |out| echo::Request.emit(out));
                        client.sealed(&echo)
                    }
                };
                for (at, value) in damage {
                    let at = at.index(message.len());
                    message[at] = value;
                }
                if cut.index(4) == 0 {
                    message.truncate(cut.index(message.len()));
                }
                client.wire.send(message);
                // The request may wait (a damaged LOCK, for example): then there is no answer, which is fine.
                let answer = weft_machine::rt::timeout(
                    std::time::Duration::from_secs(1),
                    client.wire.recv(&client.pool),
                );
                if let Ok(Some(frame)) = answer.await {
                    assert!(frame.len() >= SHORTEST);
                }
                assert!(bystander.is_served().await);
            });
            Ok(())
        })
        .unwrap();
}
