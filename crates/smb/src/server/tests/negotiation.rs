//! NEGOTIATE, from SMB1 to 3.1.1.

use bytes::Bytes;
use weft_wire::smb2::negotiate::{Capabilities, CipherId, Context, HashId, SecurityMode, SigningId};
use weft_wire::smb2::{Command, Dialect, Header, NtStatus, echo, header, negotiate};

use super::harness::*;

const ALL: [Dialect; 5] = [Dialect::V2_0_2, Dialect::V2_1, Dialect::V3_0, Dialect::V3_0_2, Dialect::V3_1_1];

#[test]
fn every_dialect_is_spoken() {
    story(async {
        let world = World::new();
        for (n, dialect) in ALL.into_iter().enumerate() {
            let mut client = world.connect();
            let response = client.negotiate(Offer { guid: [n as u8; 16], ..Offer::dialect(dialect) }).await;
            assert_eq!(response.dialect, dialect);
            assert_eq!(response.capabilities.contains(Capabilities::LARGE_MTU), dialect > Dialect::V2_0_2);
            assert_eq!(
                response.max_read_size,
                if dialect == Dialect::V2_0_2 { 65_536 } else { (1 << 20) + (64 << 10) - 164 }
            );
            client.log_on("alice", PASSWORD).await.unwrap();
            client.tree().await;
            for sign in [false, true] {
                client.sign = sign;
                let file = client.open("file", Default::default()).await;
                assert_eq!(client.write(file, b"hello").await, NtStatus::SUCCESS);
                assert_eq!(client.read(file, 100).await, (NtStatus::SUCCESS, Bytes::from_static(b"hello")));
                assert_eq!(client.close(file).await, NtStatus::SUCCESS);
            }
        }
    });
}

/// Encrypted payload does not move by RDMA: a server that requires encryption announces no more than a message holds.
#[test]
fn sizes_for_rdma_are_offered_where_payload_may_use_it() {
    story(async {
        for (encrypted, expected) in [(false, 8 << 20), (true, (1 << 20) + (64 << 10) - 164)] {
            let world = World::with(|config| config.require_encryption = encrypted);
            let mut client = world.connect();
            client.wire.max_rdma.set(Some(8 << 20));
            let response = client.negotiate(Offer::dialect(Dialect::V3_1_1)).await;
            assert_eq!((response.max_read_size, response.max_write_size), (expected, expected));
        }
    });
}

/// With transforms it may, so the larger sizes are announced again.
#[test]
fn rdma_transforms_are_agreed_on_where_there_is_rdma() {
    story(async {
        let world = World::with(|config| config.require_encryption = true);
        let agreed = async |rdma: bool, ids: &[u16], ciphers: bool| {
            let mut client = world.connect();
            client.wire.max_rdma.set(rdma.then_some(8 << 20));
            let mut offer = Offer::default();
            offer.contexts.retain(|context| ciphers || !matches!(context, Context::Encryption(_)));
            // Before the others: the order does not matter.
            offer.contexts.insert(0, Context::RdmaTransform(ids.to_vec()));
            let (header, response) = client.try_negotiate(offer).await;
            let Some(response) = response else { return Err(header.status) };
            let ids = response.contexts.into_iter().find_map(|context| match context {
                Context::RdmaTransform(ids) => Some(ids),
                _ => None,
            });
            Ok((ids, response.max_read_size == 8 << 20))
        };
        assert_eq!(agreed(true, &[2, 1, 9], true).await, Ok((Some(vec![1, 2]), true)));
        assert_eq!(agreed(true, &[2], true).await, Ok((Some(vec![2]), false)));
        assert_eq!(agreed(true, &[1], false).await, Ok((Some(vec![0]), false)), "nothing to encrypt with");
        assert_eq!(agreed(true, &[7], true).await, Ok((Some(vec![0]), false)));
        assert_eq!(agreed(false, &[1, 2], true).await, Ok((None, false)));
        assert_eq!(agreed(true, &[], true).await, Err(NtStatus::INVALID_PARAMETER));
    });
}

#[test]
fn the_best_common_dialect_is_chosen() {
    story(async {
        let world = World::new();
        let mut client = world.connect();
        let offer = Offer {
            dialects: vec![Dialect::V3_0, Dialect(0x0400), Dialect::V3_0_2, Dialect::V2_1],
            ..Offer::default()
        };
        assert_eq!(client.negotiate(offer).await.dialect, Dialect::V3_0_2);
        let (header, _) = world.connect().try_negotiate(Offer::dialect(Dialect(0x0400))).await;
        assert_eq!(header.status, NtStatus::NOT_SUPPORTED);
    });
}

#[test]
fn algorithms_are_chosen() {
    story(async {
        let world = World::new();
        let preauth = || Context::Preauth { hashes: vec![HashId::SHA512], salt: Bytes::new() };
        for (ciphers, chosen) in [
            (vec![CipherId::AES_256_GCM, CipherId::AES_128_GCM], CipherId::AES_256_GCM),
            (vec![CipherId::AES_128_CCM, CipherId::AES_128_GCM], CipherId::AES_128_GCM),
            (vec![CipherId::AES_256_CCM], CipherId::AES_256_CCM),
            (vec![CipherId(9)], CipherId(0)),
        ] {
            let mut client = world.connect();
            let contexts = vec![preauth(), Context::Encryption(ciphers)];
            let response = client.negotiate(Offer { contexts, ..Offer::default() }).await;
            assert!(response.contexts.contains(&Context::Encryption(vec![chosen])));
            assert_eq!(response.contexts.len(), 2, "no signing context was sent");
        }
        // A client that offers no cipher (smb-rs with encryption disabled) does not understand the answer 0.
        let contexts = vec![preauth(), Context::Encryption(Vec::new())];
        let response = world.connect().negotiate(Offer { contexts, ..Offer::default() }).await;
        assert!(matches!(response.contexts[..], [Context::Preauth { .. }]), "{:?}", response.contexts);
        for (algorithms, chosen) in [
            (vec![SigningId::HMAC_SHA256, SigningId::AES_CMAC, SigningId::AES_GMAC], SigningId::AES_GMAC),
            (vec![SigningId::HMAC_SHA256], SigningId::HMAC_SHA256),
            (vec![SigningId(77)], SigningId::AES_CMAC),
        ] {
            let mut client = world.connect();
            let contexts = vec![preauth(), Context::Signing(algorithms)];
            let response = client.negotiate(Offer { contexts, ..Offer::default() }).await;
            assert!(response.contexts.contains(&Context::Signing(vec![chosen])));
            // And it is used.
            client.log_on("alice", PASSWORD).await.unwrap();
            client.tree().await;
            client.sign = true;
            assert!(client.is_served().await);
        }
    });
}

#[test]
fn contexts_that_contradict_are_refused() {
    story(async {
        let world = World::new();
        let offer = Offer::default();
        let twice = |i: usize| {
            let mut contexts = offer.contexts.clone();
            contexts.push(contexts[i].clone());
            contexts
        };
        let other_hash = Context::Preauth { hashes: vec![HashId(2)], salt: Bytes::new() };
        for (contexts, status) in [
            (twice(0), NtStatus::INVALID_PARAMETER),
            (twice(1), NtStatus::INVALID_PARAMETER),
            (twice(2), NtStatus::INVALID_PARAMETER),
            (offer.contexts[1..].to_vec(), NtStatus::INVALID_PARAMETER),
            (vec![], NtStatus::INVALID_PARAMETER),
            (vec![other_hash], NtStatus::SMB_NO_PREAUTH_INTEGRITY_HASH_OVERLAP),
            (vec![offer.contexts[0].clone(), Context::Signing(vec![])], NtStatus::INVALID_PARAMETER),
        ] {
            let mut client = world.connect();
            let (header, _) = client.try_negotiate(Offer { contexts, ..offer.clone() }).await;
            assert_eq!(header.status, status);
            // Nothing was negotiated: the client may try again.
            client.negotiate(offer.clone()).await;
        }
        // Unknown ones are ignored.
        let mut contexts = offer.contexts.clone();
        contexts.push(Context::Unknown { kind: 0x7777, data: Bytes::from_static(b"?") });
        contexts.push(Context::Compression { flags: 0, algorithms: vec![1] });
        contexts.push(Context::RdmaTransform(vec![1]));
        let response = world.connect().negotiate(Offer { contexts, ..offer.clone() }).await;
        assert_eq!(response.contexts.len(), 3);
    });
}

#[test]
fn negotiate_comes_first_and_once() {
    story(async {
        let world = World::new();
        let mut client = world.connect();
        let echo = client.request(Command::Echo, |out| echo::Request.emit(out));
        client.wire.send(echo);
        client.assert_closed().await;

        let mut client = world.connect();
        client.negotiate(Offer::default()).await;
        client.wire.send(Offer::default().emit(client.next_id));
        client.assert_closed().await;

        let mut client = world.connect();
        let mut signed = Offer::default().emit(0);
        header::patch_flags(&mut signed, header::Flags::SIGNED);
        client.wire.send(signed);
        assert_eq!(client.recv().await.unwrap().0.status, NtStatus::INVALID_PARAMETER);

        let mut client = world.connect();
        client.wire.send(link(vec![Offer::default().emit(0), Offer::default().emit(1)], false));
        client.assert_closed().await;
    });
}

/// SMB_COM_NEGOTIATE with these dialects.
fn smb1(dialects: &[&str]) -> Vec<u8> {
    let mut out = b"\xFFSMB\x72".to_vec();
    out.resize(33, 0);
    let names: Vec<u8> = dialects.iter().flat_map(|d| [b"\x02", d.as_bytes(), b"\0"].concat()).collect();
    out.extend((names.len() as u16).to_le_bytes());
    out.extend(names);
    out
}

#[test]
fn a_client_that_starts_with_smb1_is_led_to_3_1_1() {
    story(async {
        let world = World::new();
        let mut client = world.connect();
        client.wire.send(smb1(&["NT LM 0.12", "SMB 2.002", "SMB 2.???"]));
        let (header, bytes) = client.recv().await.unwrap();
        assert_eq!((header.status, header.message_id, header.credits), (NtStatus::SUCCESS, 0, 1));
        assert_eq!(negotiate::Response::parse(&bytes).unwrap().dialect, Dialect::WILDCARD);
        client.next_id = 1;
        client.negotiate(Offer::default()).await;
        client.log_on("alice", PASSWORD).await.unwrap();

        let mut client = world.connect();
        client.wire.send(smb1(&["SMB 2.002"]));
        let (_, bytes) = client.recv().await.unwrap();
        assert_eq!(negotiate::Response::parse(&bytes).unwrap().dialect, Dialect::V2_0_2);
        client.profile.dialect = Dialect::V2_0_2;
        client.profile.signing = SigningId::HMAC_SHA256;
        client.next_id = 1;
        client.log_on("alice", PASSWORD).await.unwrap();
    });
}

#[test]
fn smb1_alone_or_again_ends_the_connection() {
    story(async {
        let world = World::new();
        for messages in [
            vec![smb1(&["NT LM 0.12"])],
            vec![smb1(&["SMB 2.???"]), smb1(&["SMB 2.???"])],
            vec![Offer::default().emit(0), smb1(&["SMB 2.???"])],
            vec![b"\xFFSMB\x73".to_vec()],
        ] {
            let mut client = world.connect();
            let answered = messages.len() - 1;
            messages.into_iter().for_each(|message| client.wire.send(message));
            for _ in 0..answered {
                client.recv().await.unwrap();
            }
            client.assert_closed().await;
        }
    });
}

#[test]
fn required_signing_is_announced() {
    story(async {
        let world = World::with(|config| config.signing = crate::server::Signing::Required);
        let response = world.connect().negotiate(Offer::default()).await;
        assert_eq!(response.security_mode, SecurityMode::SIGNING_ENABLED | SecurityMode::SIGNING_REQUIRED);
    });
}

#[test]
fn a_negotiate_that_cannot_be_read_is_an_invalid_parameter() {
    story(async {
        let mut client = World::new().connect();
        let mut request = Offer::default().emit(0);
        // DialectCount 0.
        request[66] = 0;
        client.wire.send(request);
        let (header, _): (Header, _) = client.recv().await.unwrap();
        assert_eq!(header.status, NtStatus::INVALID_PARAMETER);
    });
}
