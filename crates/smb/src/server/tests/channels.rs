//! Multichannel sessions: binding, every reason for a refusal, lost channels, and unsolicited messages.

use std::time::Duration;

use weft_machine::rt;
use weft_machine::sim::Sim;
use weft_wire::smb2::create::CreateOptions;
use weft_wire::smb2::header::Flags;
use weft_wire::smb2::negotiate::{Capabilities, CipherId, Context, HashId, SigningId};
use weft_wire::smb2::{Command, Dialect, FileId, HEADER_LEN, Header, Id, NtStatus, logoff};

use super::harness::*;
use crate::crypto::{Role, SessionKeys};

/// A second connection of the same client, not yet bound.
async fn another(world: &World) -> Client {
    let mut client = world.connect();
    client.negotiate(Offer::default()).await;
    client
}

/// One more channel for the session of `first`, which signs.
async fn channel(world: &World, first: &Client) -> Client {
    let mut client = another(world).await;
    client.bind(first).await.unwrap();
    (client.tree, client.sign) = (first.tree, true);
    client
}

/// The keys of the session's first connection.
fn session_keys(of: &Client) -> SessionKeys {
    let (profile, key, preauth) = of.material.as_ref().unwrap();
    SessionKeys::derive(Role::Client, profile, key, preauth)
}

async fn reads(client: &mut Client, file: FileId) -> NtStatus {
    client.read(file, 10).await.0
}

#[test]
fn multichannel_is_offered_to_those_who_know_it() {
    story(async {
        for (server, client, dialect) in [
            (true, true, Dialect::V3_0),
            (true, true, Dialect::V3_1_1),
            (true, true, Dialect::V2_1),
            (false, true, Dialect::V3_1_1),
            (true, false, Dialect::V3_1_1),
        ] {
            let world = World::with(|config| config.multichannel = server);
            let mut offer = Offer::dialect(dialect);
            if client {
                offer.capabilities |= Capabilities::MULTI_CHANNEL;
            }
            let answer = world.connect().negotiate(offer).await;
            let expected = server && client && dialect >= Dialect::V3_0;
            assert_eq!(answer.capabilities.contains(Capabilities::MULTI_CHANNEL), expected, "{dialect}");
        }
    });
}

#[test]
fn a_channel_has_the_opens_of_the_session_and_a_key_of_its_own() {
    story(async {
        for dialect in [Dialect::V3_0, Dialect::V3_0_2, Dialect::V3_1_1] {
            let world = World::new();
            let mut first = world.connect();
            first.negotiate(Offer::dialect(dialect)).await;
            first.log_on("alice", PASSWORD).await.unwrap();
            first.tree().await;
            first.sign = true;
            let file = first.open("f", CreateOptions::NONE).await;
            assert_eq!(first.write(file, b"hello").await, NtStatus::SUCCESS);

            let mut second = world.connect();
            second.negotiate(Offer::dialect(dialect)).await;
            second.bind(&first).await.unwrap();
            (second.tree, second.sign) = (first.tree, true);
            let (status, bytes) = second.read(file, 10).await;
            assert_eq!((status, &bytes[..]), (NtStatus::SUCCESS, &b"hello"[..]), "{dialect}");
            assert_eq!(world.server.session_count(), 1);

            // The session's key does not sign here, nor does the channel's key there.
            std::mem::swap(&mut first.keys, &mut second.keys);
            let signed_wrongly = |client: &mut Client| {
                let request = client.request(Command::Read, |out| read_request(file, 10).emit(out));
                client.send(request);
                client.sign = false;
            };
            signed_wrongly(&mut second);
            let frame = second.wire.recv(&second.pool).await.unwrap();
            assert_eq!(Header::parse(&frame).unwrap().status, NtStatus::ACCESS_DENIED);
        }
    });
}

#[test]
fn sealed_messages_go_by_any_channel() {
    story(async {
        let world = World::with(|config| config.require_encryption = true);
        let mut first = world.connect();
        first.negotiate(Offer::default()).await;
        first.log_on("alice", PASSWORD).await.unwrap();
        first.seal = true;
        first.tree().await;
        let file = first.open("f", CreateOptions::NONE).await;
        let mut second = another(&world).await;
        second.bind(&first).await.unwrap();
        (second.tree, second.seal) = (first.tree, true);
        assert_eq!(reads(&mut second, file).await, NtStatus::END_OF_FILE);
        assert_eq!(reads(&mut first, file).await, NtStatus::END_OF_FILE);
    });
}

#[test]
fn the_ways_to_be_refused() {
    story(async {
        let world = World::new();
        let mut first = world.client().await;
        first.sign = true;
        let file = first.open("f", CreateOptions::NONE).await;

        let mut unknown = another(&world).await;
        let refused = unknown.bind_as("alice", PASSWORD, 77, session_keys(&first)).await;
        assert_eq!(refused.unwrap_err(), NtStatus::USER_SESSION_DELETED);

        for (dialect, refused) in
            [(Dialect::V2_1, NtStatus::REQUEST_NOT_ACCEPTED), (Dialect::V3_0, NtStatus::INVALID_PARAMETER)]
        {
            let mut cmac = world.connect();
            let mut offer = Offer { guid: [2; 16], ..Offer::default() };
            offer.contexts.truncate(2);
            cmac.negotiate(offer).await;
            cmac.log_on("alice", PASSWORD).await.unwrap();
            let mut old = world.connect();
            old.negotiate(Offer { guid: [2; 16], ..Offer::dialect(dialect) }).await;
            assert_eq!(old.bind(&cmac).await.unwrap_err(), refused);
            cmac.wire.hang_up();
            rt::sleep(Duration::from_millis(1)).await;
        }

        let mut unsigned = another(&world).await;
        unsigned.session = first.session;
        let flags = weft_wire::smb2::session_setup::RequestFlags::BINDING;
        let refused = unsigned.authenticate("alice", PASSWORD, None, |setup| setup.flags = flags).await;
        assert_eq!(refused.err(), Some(NtStatus::INVALID_PARAMETER));

        let mut stranger = world.connect();
        stranger.negotiate(Offer { guid: [1; 16], ..Offer::default() }).await;
        assert_eq!(stranger.bind(&first).await.unwrap_err(), NtStatus::USER_SESSION_DELETED);

        let mut weaker = world.connect();
        let mut offer = Offer::default();
        offer.contexts[1] = Context::Encryption(vec![CipherId::AES_128_CCM]);
        weaker.negotiate(offer).await;
        assert_eq!(weaker.bind(&first).await.unwrap_err(), NtStatus::INVALID_PARAMETER);

        // A client that knows the session's id, but not its key.
        let other = world.client().await;
        let mut guessed = another(&world).await;
        let refused = guessed.bind_as("alice", PASSWORD, first.session, session_keys(&other)).await;
        assert_eq!(refused.unwrap_err(), NtStatus::ACCESS_DENIED);

        let mut bob = another(&world).await;
        let refused = bob.bind_as("bob", PASSWORD, first.session, session_keys(&first)).await;
        assert_eq!(refused.unwrap_err(), NtStatus::NOT_SUPPORTED);

        let mut wrong = another(&world).await;
        let refused = wrong.bind_as("alice", "wrong", first.session, session_keys(&first)).await;
        assert_eq!(refused.unwrap_err(), NtStatus::LOGON_FAILURE);

        let mut twice = channel(&world, &first).await;
        assert_eq!(twice.bind(&first).await.unwrap_err(), NtStatus::ACCESS_DENIED);
        let keys = twice.keys.clone().unwrap();
        let refused = twice.bind_as("alice", PASSWORD, first.session, keys).await;
        assert_eq!(refused.unwrap_err(), NtStatus::REQUEST_NOT_ACCEPTED);

        // No attempt has affected the session or its bound channel.
        assert_eq!(reads(&mut first, file).await, NtStatus::END_OF_FILE);
        first.tree().await;
        assert_eq!(world.server.session_count(), 2);
    });
}

#[test]
fn a_server_without_multichannel_binds_nothing() {
    story(async {
        let world = World::with(|config| config.multichannel = false);
        let first = world.client().await;
        let mut second = another(&world).await;
        assert_eq!(second.bind(&first).await.unwrap_err(), NtStatus::REQUEST_NOT_ACCEPTED);
    });
}

#[test]
fn an_expired_session_takes_no_channel() {
    story(async {
        let world = World::with(|config| config.limits.session_ms = Some(1000));
        let first = world.client().await;
        rt::sleep(Duration::from_secs(2)).await;
        let mut second = another(&world).await;
        assert_eq!(second.bind(&first).await.unwrap_err(), NtStatus::NETWORK_SESSION_EXPIRED);
    });
}

#[test]
fn algorithms_of_signing_may_be_mixed_but_for_gmac() {
    const ALL: [SigningId; 3] = [SigningId::AES_GMAC, SigningId::AES_CMAC, SigningId::HMAC_SHA256];
    story(async {
        for (ours, theirs) in ALL.into_iter().flat_map(|ours| ALL.map(|theirs| (ours, theirs))) {
            let world = World::new();
            let offer = |algorithm| {
                let mut offer = Offer::default();
                offer.contexts[2] = Context::Signing(vec![algorithm]);
                offer
            };
            let mut first = world.connect();
            first.negotiate(offer(ours)).await;
            first.log_on("alice", PASSWORD).await.unwrap();
            first.tree().await;
            first.sign = true;
            let file = first.open("f", CreateOptions::NONE).await;
            let mut second = world.connect();
            second.negotiate(offer(theirs)).await;
            let bound = second.bind(&first).await;
            let gmac = SigningId::AES_GMAC;
            match (ours == gmac, theirs == gmac) {
                (true, false) => assert_eq!(bound, Err(NtStatus::REQUEST_OUT_OF_SEQUENCE)),
                (false, true) => assert_eq!(bound, Err(NtStatus::NOT_SUPPORTED)),
                _ => {
                    bound.unwrap();
                    (second.tree, second.sign) = (first.tree, true);
                    assert_eq!(reads(&mut second, file).await, NtStatus::END_OF_FILE);
                }
            }
        }
    });
}

/// On an unbound connection an answer is signed with the session's key only for a client that has this key.
#[test]
fn nobody_has_answers_signed_by_a_session_that_is_not_theirs() {
    story(async {
        let world = World::new();
        let first = world.client().await;
        for (keys, signed) in [(session_keys(&first), true), (session_keys(&world.client().await), false)] {
            let mut stranger = another(&world).await;
            (stranger.session, stranger.tree) = (first.session, first.tree);
            let mut request = stranger.request(Command::Logoff, |out| logoff::Request.emit(out));
            keys.signing.sign(crate::crypto::Sender::Client, &mut request);
            stranger.wire.send(request);
            let frame = stranger.wire.recv(&stranger.pool).await.unwrap();
            let header = Header::parse(&frame).unwrap();
            assert_eq!(header.status, NtStatus::USER_SESSION_DELETED);
            assert_eq!(header.flags.contains(Flags::SIGNED), signed);
            if signed {
                assert!(keys.signing.verify(crate::crypto::Sender::Server, &frame));
            }
        }
        assert_eq!(world.server.session_count(), 1 + 1);
    });
}

#[test]
fn a_session_outlives_its_first_channel_and_ends_with_its_last() {
    story(async {
        let world = World::new();
        let mut first = world.client().await;
        first.sign = true;
        let file = first.open("gone", CreateOptions::DELETE_ON_CLOSE).await;
        let mut second = channel(&world, &first).await;
        first.wire.hang_up();
        first.assert_closed().await;
        rt::sleep(Duration::from_millis(1)).await;
        assert_eq!(reads(&mut second, file).await, NtStatus::END_OF_FILE);
        // And joins another one with the session's key, although the channel that had it is gone.
        let third = channel(&world, &first).await;
        second.wire.hang_up();
        rt::sleep(Duration::from_millis(1)).await;
        assert_eq!(world.server.session_count(), 1);
        third.wire.hang_up();
        rt::sleep(Duration::from_millis(1)).await;
        assert_eq!(world.server.session_count(), 0);
        let mut late = another(&world).await;
        assert_eq!(late.bind(&first).await.unwrap_err(), NtStatus::USER_SESSION_DELETED);
    });
}

#[test]
fn a_logoff_on_one_channel_is_one_on_all() {
    story(async {
        let world = World::new();
        let mut first = world.client().await;
        first.sign = true;
        let file = first.open("f", CreateOptions::NONE).await;
        let mut second = channel(&world, &first).await;
        let (header, _) = second.call(Command::Logoff, |out| logoff::Request.emit(out)).await;
        assert_eq!(header.status, NtStatus::SUCCESS);
        assert!(header.flags.contains(Flags::SIGNED));
        for client in [&mut first, &mut second] {
            let status = reads(client, file).await;
            assert_eq!(status, NtStatus::USER_SESSION_DELETED);
            let again = client.call(Command::Logoff, |out| logoff::Request.emit(out)).await;
            assert_eq!(again.0.status, NtStatus::USER_SESSION_DELETED);
        }
        assert_eq!(world.server.session_count(), 0);
    });
}

#[test]
fn a_failed_reauthentication_ends_all_channels() {
    story(async {
        let world = World::new();
        let mut first = world.client().await;
        first.sign = true;
        let mut second = channel(&world, &first).await;
        second.log_on("alice", PASSWORD).await.unwrap();
        assert_eq!(second.log_on("alice", "wrong").await.unwrap_err(), NtStatus::LOGON_FAILURE);
        assert_eq!(first.tree_connect(r"\\s\data").await.0.status, NtStatus::USER_SESSION_DELETED);
        assert_eq!(world.server.session_count(), 0);
    });
}

#[test]
fn a_session_that_ends_while_somebody_binds_stays_ended() {
    story(async {
        let world = World::new();
        let mut first = world.client().await;
        first.sign = true;
        let mut second = another(&world).await;
        // One round trip of two.
        second.session = first.session;
        let keys = session_keys(&first);
        let mut request = second.request(Command::SessionSetup, |out| bind_leg().emit(out));
        keys.signing.sign(crate::crypto::Sender::Client, &mut request);
        second.wire.send(request);
        let frame = second.wire.recv(&second.pool).await.unwrap();
        assert_eq!(Header::parse(&frame).unwrap().status, NtStatus::MORE_PROCESSING_REQUIRED);
        first.call(Command::Logoff, |out| logoff::Request.emit(out)).await;
        let mut request = second.request(Command::SessionSetup, |out| bind_leg().emit(out));
        keys.signing.sign(crate::crypto::Sender::Client, &mut request);
        second.wire.send(request);
        let frame = second.wire.recv(&second.pool).await.unwrap();
        assert_eq!(Header::parse(&frame).unwrap().status, NtStatus::USER_SESSION_DELETED);
        assert_eq!(world.server.session_count(), 0);
    });
}

/// The first round trip of a binding: an NTLM NEGOTIATE.
fn bind_leg() -> weft_wire::smb2::session_setup::Request {
    use crate::auth::{Credentials, Initiator, Nonces, Secret};
    let credentials =
        Credentials { user: "alice".into(), domain: String::new(), secret: Secret::password(PASSWORD) };
    let nonces = Nonces { client_challenge: [1; 8], session_key: zeroize::Zeroizing::new([2; 16]) };
    weft_wire::smb2::session_setup::Request {
        flags: weft_wire::smb2::session_setup::RequestFlags::BINDING,
        security_mode: weft_wire::smb2::negotiate::SecurityMode::SIGNING_ENABLED,
        capabilities: Capabilities::NONE,
        previous_session_id: 0,
        token: Initiator::start(credentials, "weft", nonces).1.into(),
    }
}

#[test]
fn the_number_of_channels_is_limited() {
    story(async {
        let world = World::with(|config| config.limits.channels = 2);
        let first = world.client().await;
        let second = channel(&world, &first).await;
        let mut third = another(&world).await;
        assert_eq!(third.bind(&first).await.unwrap_err(), NtStatus::INSUFFICIENT_RESOURCES);
        second.wire.hang_up();
        rt::sleep(Duration::from_millis(1)).await;
        third.bind(&first).await.unwrap();
    });
}

/// The bytes of an oplock break as the opens send it.
fn break_message(mark: u8) -> Vec<u8> {
    let header = Header { id: Id::tree(0), ..Header::request(Command::OplockBreak, u64::MAX) };
    let mut message = header.reply(NtStatus::SUCCESS, 0).to_bytes().to_vec();
    message.extend([24, 0, mark, 0, 0, 0, 0, 0]);
    message.extend([0; 16]);
    message
}

#[test]
fn a_notice_goes_out_by_the_first_channel_that_lives() {
    story(async {
        let world = World::new();
        let first = world.client().await;
        let second = channel(&world, &first).await;
        let session = world.server.sessions.find(first.session).unwrap();
        assert!(session.notice(break_message(1)).send());
        let message = first.wire.recv(&first.pool).await.unwrap();
        assert_eq!((Header::parse(&message).unwrap().message_id, message[HEADER_LEN + 2]), (u64::MAX, 1));
        // The second channel sends what the first had not sent when it was lost.
        first.wire.stalled.set(true);
        assert!(session.notice(break_message(2)).send());
        assert!(session.notice(break_message(3)).send());
        rt::sleep(Duration::from_millis(1)).await;
        first.wire.hang_up();
        for mark in [2, 3] {
            let message = second.wire.recv(&second.pool).await.unwrap();
            assert_eq!(message[HEADER_LEN + 2], mark);
        }
        second.wire.hang_up();
        rt::sleep(Duration::from_millis(1)).await;
        assert!(!session.notice(break_message(4)).send(), "nobody is there");
    });
}

#[test]
fn a_notice_that_the_network_swallows_goes_by_the_next_channel() {
    story(async {
        let world = World::new();
        let first = world.client().await;
        let second = channel(&world, &first).await;
        let third = channel(&world, &first).await;
        let session = world.server.sessions.find(first.session).unwrap();
        first.wire.hole.set(true);
        second.wire.hole.set(true);
        let start = rt::now();
        assert!(session.notice(break_message(5)).send());
        let message = third.wire.recv(&third.pool).await.unwrap();
        assert_eq!(message[HEADER_LEN + 2], 5);
        let took = rt::now() - start;
        assert!((Duration::from_secs(5)..Duration::from_secs(10)).contains(&took), "{took:?}");
    });
}

#[test]
fn a_notice_of_an_encrypted_session_is_encrypted() {
    story(async {
        let world = World::with(|config| config.require_encryption = true);
        let mut client = world.connect();
        client.negotiate(Offer::default()).await;
        client.log_on("alice", PASSWORD).await.unwrap();
        client.seal = true;
        let session = world.server.sessions.find(client.session).unwrap();
        assert!(session.notice(break_message(9)).send());
        let message = client.recv_frame().await.unwrap();
        assert_eq!(message[HEADER_LEN + 2], 9);
    });
}

/// Connections of many clients bind, drop, log off and authenticate again in random order and at random times. Whatever
/// the order: a session lives exactly as long as it has a channel, and nobody signs with another's key.
#[test]
fn whatever_the_order_sessions_end_once_and_with_their_last_channel() {
    for seed in 0..24 {
        Sim::new(seed).run(async move {
            let world = World::new();
            let first = world.client().await;
            let mut channels = vec![];
            for step in 0..30 {
                match weft_machine::sim::with_rng(|rng| rng.below(6)) {
                    0..3 => {
                        let mut client = another(&world).await;
                        let (server, id) = (world.server.clone(), first.session);
                        let alive = server.sessions.find(id).is_some();
                        match client.bind(&first).await {
                            Ok(()) => {
                                assert!(alive, "seed {seed} step {step}: bound to what had ended");
                                (client.tree, client.sign) = (first.tree, true);
                                channels.push(client);
                            }
                            Err(status) => {
                                assert!(matches!(status, NtStatus::USER_SESSION_DELETED), "{status}");
                                assert!(!alive || server.sessions.find(id).is_none());
                            }
                        }
                    }
                    3 if !channels.is_empty() => {
                        let n = weft_machine::sim::with_rng(|rng| rng.below(channels.len()));
                        let lost: Client = channels.swap_remove(n);
                        lost.wire.hang_up();
                        if weft_machine::sim::with_rng(|rng| rng.one_in(2)) {
                            rt::sleep(Duration::from_millis(1)).await;
                        }
                    }
                    4 => {
                        if let Some(client) = channels.last_mut() {
                            let alive = world.server.sessions.find(first.session).is_some();
                            let (header, _) = client.tree_connect(r"\\s\data").await;
                            assert_eq!(header.status.is_error(), !alive, "{}", header.status);
                        }
                    }
                    _ if step > 20 && !channels.is_empty() => {
                        let client = channels.last_mut().unwrap();
                        client.call(Command::Logoff, |out| logoff::Request.emit(out)).await;
                        assert!(world.server.sessions.find(first.session).is_none());
                    }
                    _ => {}
                }
            }
            first.wire.hang_up();
            channels.iter().for_each(|client| client.wire.hang_up());
            rt::sleep(Duration::from_millis(1)).await;
            assert_eq!(world.server.session_count(), 0, "seed {seed}");
        });
    }
}

#[test]
fn a_chain_of_contexts_without_preauth_binds_nothing() {
    story(async {
        let world = World::new();
        let first = world.client().await;
        let mut second = world.connect();
        let mut offer = Offer::default();
        offer.contexts.retain(|c| !matches!(c, Context::Preauth { .. }));
        let (header, _) = second.try_negotiate(offer.clone()).await;
        assert_eq!(header.status, NtStatus::INVALID_PARAMETER);
        offer.contexts.push(Context::Preauth { hashes: vec![HashId::SHA512], salt: Default::default() });
        second.negotiate(offer).await;
        second.bind(&first).await.unwrap();
    });
}

/// The client lost a channel, wrote again on another one, and then the first write arrives.
#[test]
fn a_write_of_before_a_channel_was_lost_changes_nothing() {
    story(async {
        let world = World::new();
        let mut first = world.client().await;
        first.sign = true;
        let file = first.open("f", CreateOptions::NONE).await;
        let mut second = channel(&world, &first).await;
        second.sequence = 1;
        assert_eq!(second.write(file, b"new").await, NtStatus::SUCCESS);
        assert_eq!(first.write(file, b"old").await, NtStatus::FILE_NOT_AVAILABLE);
        assert_eq!(&first.read(file, 10).await.1[..], b"new", "to read is harmless");
        (first.sequence, first.replay) = (1, true);
        assert_eq!(first.write(file, b"yes").await, NtStatus::SUCCESS, "a replay of this incarnation");
    });
}
