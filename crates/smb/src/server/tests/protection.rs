//! Signing and encryption: required, tampered with, and their cost in copies.

use bytes::Bytes;
use weft_machine::{Payload, buf};
use weft_transport::{Part, To};
use weft_wire::smb2::channel;
use weft_wire::smb2::create::CreateOptions;
use weft_wire::smb2::header::{self, Flags};
use weft_wire::smb2::negotiate::{CipherId, Context, SecurityMode};
use weft_wire::smb2::session_setup::SessionFlags;
use weft_wire::smb2::tree_connect::{self, ShareFlags};
use weft_wire::smb2::{Command, Dialect, HEADER_LEN, Header, NtStatus, echo, tree_disconnect};

use super::harness::*;
use crate::crypto::{Sender, TRANSFORM_LEN};

const SECRET: &[u8] = b"attack at dawn, bring the 16-byte blocks";

#[test]
fn wrong_signatures_are_told_and_end_this_connection_alone() {
    story(async {
        let world = World::new();
        let mut bystander = world.client().await;
        for tamper in [
            (|m: &mut Vec<u8>| m[header::SIGNATURE_AT] ^= 1) as fn(&mut Vec<u8>),
            |m| *m.last_mut().unwrap() ^= 1,
            |m| m[header::CREDITS_AT] ^= 1,
        ] {
            let mut client = world.client().await;
            for _ in 0..4 {
                let mut request =
                    client.request(Command::Create, |out| create_request("x", CreateOptions::NONE).emit(out));
                client.keys.as_ref().unwrap().signing.sign(Sender::Client, &mut request);
                tamper(&mut request);
                client.wire.send(request);
                let (header, _) = client.recv().await.unwrap();
                assert_eq!(header.status, NtStatus::ACCESS_DENIED);
                assert!(!header.flags.contains(Flags::SIGNED));
            }
            client.assert_closed().await;
        }
        assert!(bystander.is_served().await);
        assert_eq!(world.server.session_count(), 1);
    });
}

#[test]
fn signed_requests_get_signed_answers() {
    story(async {
        let mut client = World::new().client().await;
        for sign in [true, false, true] {
            client.sign = sign;
            // The harness verifies the signature.
            let (header, _) = client.call(Command::Echo, |out| echo::Request.emit(out)).await;
            assert_eq!(header.flags.contains(Flags::SIGNED), sign);
            let (header, _) = client
                .call(Command::Create, |out| create_request(r"no\such", CreateOptions::NONE).emit(out))
                .await;
            assert!(header.status.is_error());
            assert_eq!(header.flags.contains(Flags::SIGNED), sign, "errors as well");
        }
    });
}

/// READs take a fast path, with the same checks.
#[test]
fn a_read_is_verified_and_its_answer_signed_whatever_its_length() {
    story(async {
        let world = World::new();
        let mut client = world.client().await;
        let file = client.open("file", CreateOptions::NONE).await;
        let data: Vec<u8> = (0..60_000u32).map(|i| i as u8).collect();
        assert_eq!(client.write(file, &data).await, NtStatus::SUCCESS);
        for length in [1, 4000, 8192, 16_384, 16_385, 60_000, 0] {
            for sign in [true, false] {
                client.sign = sign;
                let request = client.request(Command::Read, |out| read_request(file, length).emit(out));
                client.send(request);
                // The harness verifies the signature.
                let (header, bytes) = client.recv().await.unwrap();
                assert_eq!((header.status, header.flags.contains(Flags::SIGNED)), (NtStatus::SUCCESS, sign));
                if length > 0 {
                    let answer = weft_wire::smb2::read::Response::parse(&bytes).unwrap();
                    assert!(answer.data == data[..length as usize], "{length} bytes");
                }
            }
        }
        // Errors too.
        client.sign = true;
        let (status, _) = client.read(weft_wire::smb2::FileId::RELATED, 10).await;
        assert_eq!(status, NtStatus::FILE_CLOSED);
        // A tampered READ is not executed: nothing is read that the signature does not cover.
        let mut request = client.request(Command::Read, |out| read_request(file, 10).emit(out));
        client.keys.as_ref().unwrap().signing.sign(Sender::Client, &mut request);
        *request.last_mut().unwrap() ^= 1;
        client.wire.send(request);
        let (header, _) = client.recv().await.unwrap();
        assert_eq!(header.status, NtStatus::ACCESS_DENIED);
        assert!(!header.flags.contains(Flags::SIGNED));
    });
    story(async {
        let world = World::with(|config| config.signing = crate::server::Signing::Required);
        let mut client = world.client().await;
        client.sign = true;
        let file = client.open("file", CreateOptions::NONE).await;
        assert_eq!(client.write(file, SECRET).await, NtStatus::SUCCESS);
        client.sign = false;
        assert_eq!(client.read(file, 10).await.0, NtStatus::ACCESS_DENIED);
        client.sign = true;
        assert_eq!(client.read(file, 10).await.1, SECRET[..10]);
    });
}

#[test]
fn unsigned_requests_are_refused_where_signing_is_required() {
    story(async {
        let by_server = World::with(|config| config.signing = crate::server::Signing::Required);
        let by_client = World::new();
        for dialect in [Dialect::V2_1, Dialect::V3_0, Dialect::V3_1_1] {
            for (world, mode) in
                [(&by_server, SecurityMode::SIGNING_ENABLED), (&by_client, SecurityMode::SIGNING_REQUIRED)]
            {
                let mut client = world.connect();
                let guid = [dialect.0 as u8; 16];
                client.negotiate(Offer { mode, guid, ..Offer::dialect(dialect) }).await;
                client.log_on("alice", PASSWORD).await.unwrap();
                client.tree().await;
                client.sign = false;
                let request = create_request("x", CreateOptions::NONE);
                let status = client.status(Command::Create, |out| request.emit(out)).await;
                assert_eq!(status, NtStatus::ACCESS_DENIED, "{dialect}");
                assert_eq!(
                    client.status(Command::Echo, |out| echo::Request.emit(out)).await,
                    NtStatus::ACCESS_DENIED
                );
                client.sign = true;
                client.open("x", CreateOptions::NONE).await;
            }
        }
    });
}

/// The final response of SESSION_SETUP is signed, so a changed NEGOTIATE is detected; here the client's chain differs,
/// as if somebody had changed the offer in transit.
#[test]
fn a_changed_negotiate_leads_to_other_keys() {
    story(async {
        let world = World::new();
        let mut client = world.connect();
        client.negotiate(Offer::default()).await;
        client.preauth.update(b"something else");
        let log_on = futures_util::future::FutureExt::catch_unwind(std::panic::AssertUnwindSafe(
            client.log_on("alice", PASSWORD),
        ));
        assert!(log_on.await.is_err(), "the signature of the final response verified");
    });
}

fn encrypting(cipher: CipherId) -> Offer {
    let mut offer = Offer::default();
    offer.contexts[1] = Context::Encryption(vec![cipher]);
    offer
}

#[test]
fn everything_works_encrypted() {
    story(async {
        let required = World::with(|config| config.require_encryption = true);
        let optional = World::new();
        for (world, cipher) in [
            (&required, CipherId::AES_128_GCM),
            (&required, CipherId::AES_256_GCM),
            (&optional, CipherId::AES_128_CCM),
            (&optional, CipherId::AES_256_CCM),
        ] {
            let mut client = world.connect();
            client.negotiate(encrypting(cipher)).await;
            let setup = client.log_on("alice", PASSWORD).await.unwrap();
            let forced = setup.flags.contains(SessionFlags::ENCRYPT_DATA);
            assert_eq!(forced, world.server.config.require_encryption);
            client.seal = true;
            let (header, _) = client.tree_connect(r"\\s\data").await;
            assert_eq!(header.status, NtStatus::SUCCESS);
            client.tree = header.tree_id().unwrap();
            let file = client.open("f", CreateOptions::NONE).await;
            let data = SECRET.repeat(3000);
            assert_eq!(client.write(file, &data).await, NtStatus::SUCCESS);
            let (status, read) = client.read(file, 200_000).await;
            assert!(status == NtStatus::SUCCESS && read == data);
            let (status, _) = client.read(file, 3).await;
            assert_eq!(status, NtStatus::SUCCESS);
        }
    });
}

#[test]
fn an_encrypted_share_takes_encrypted_requests_only() {
    story(async {
        let world = World::with(|config| config.shares[0].rules.encrypted = true);
        // Without a cipher no log-on is possible.
        let mut client = world.connect();
        client.negotiate(Offer { guid: [8; 16], ..Offer::dialect(Dialect::V2_1) }).await;
        client.log_on("alice", PASSWORD).await.unwrap();
        client.sign = true;
        assert_eq!(client.tree_connect(r"\\s\data").await.0.status, NtStatus::ACCESS_DENIED);

        let mut client = world.connect();
        client.negotiate(encrypting(CipherId::AES_128_GCM)).await;
        let setup = client.log_on("alice", PASSWORD).await.unwrap();
        assert!(!setup.flags.contains(SessionFlags::ENCRYPT_DATA), "other shares need no encryption");
        client.sign = true;
        let (header, body) = client.tree_connect(r"\\s\data").await;
        assert_eq!(header.status, NtStatus::SUCCESS);
        let tree = tree_connect::Response::parse(&body).unwrap();
        assert!(tree.flags.contains(ShareFlags::ENCRYPT_DATA));
        client.tree = header.tree_id().unwrap();
        let create = create_request("f", CreateOptions::NONE);
        let status = client.status(Command::Create, |out| create.emit(out)).await;
        assert_eq!(status, NtStatus::ACCESS_DENIED, "signed is not encrypted");
        // 3.3.5.2.11 covers TREE_DISCONNECT too: a man in the middle must not close open files.
        for sign in [true, false] {
            client.sign = sign;
            let status =
                client.status(Command::TreeDisconnect, |out| tree_disconnect::Request.emit(out)).await;
            assert_eq!(status, NtStatus::ACCESS_DENIED);
        }
        client.seal = true;
        let file = client.open("f", CreateOptions::NONE).await;
        assert_eq!(client.write(file, SECRET).await, NtStatus::SUCCESS);
        (client.seal, client.sign) = (false, false);
        assert_eq!(
            client.read(file, 3).await.0,
            NtStatus::ACCESS_DENIED,
            "nor is plain, not even for a READ"
        );
        client.seal = true;
        assert_eq!(
            client.read(file, SECRET.len() as u32).await,
            (NtStatus::SUCCESS, Bytes::from_static(SECRET))
        );
    });
}

#[test]
fn plain_requests_are_refused_where_encryption_is_required() {
    story(async {
        let world = World::with(|config| config.require_encryption = true);
        let mut client = world.connect();
        client.negotiate(Offer::default()).await;
        client.log_on("alice", PASSWORD).await.unwrap();
        for sign in [false, true] {
            client.sign = sign;
            let request = create_request("x", CreateOptions::NONE);
            assert_eq!(
                client.status(Command::Create, |out| request.emit(out)).await,
                NtStatus::ACCESS_DENIED
            );
            assert_eq!(client.tree_connect(r"\\s\data").await.0.status, NtStatus::ACCESS_DENIED);
        }
        // A client without a cipher cannot even connect.
        for offer in [
            Offer::dialect(Dialect::V2_1),
            Offer { capabilities: Default::default(), ..Offer::dialect(Dialect::V3_0) },
            encrypting(CipherId(99)),
        ] {
            let mut client = world.connect();
            client.negotiate(offer).await;
            assert_eq!(client.log_on("alice", PASSWORD).await.unwrap_err(), NtStatus::ACCESS_DENIED);
        }
    });
}

#[test]
fn nothing_leaves_an_encrypted_session_in_the_clear() {
    story(async {
        let world = World::new();
        let mut client = world.client().await;
        client.seal = true;
        let file = client.open("f", CreateOptions::NONE).await;
        assert_eq!(client.write(file, SECRET).await, NtStatus::SUCCESS);
        let request = client.request(Command::Read, |out| read_request(file, 1000).emit(out));
        client.send(request);
        let frame = client.wire.recv(&client.pool).await.unwrap();
        assert!(!frame.windows(8).any(|w| w == &SECRET[..8]));
        // RDMA would bypass the encryption: refused, with nothing written anywhere.
        client.wire.max_rdma.set(Some(1 << 20));
        let mut by_rdma = read_request(file, 1000);
        let descriptor = channel::Descriptor { offset: 0, token: 7, length: 4096 };
        by_rdma.channel = channel::Channel::RdmaV1([descriptor].into_iter().collect());
        let request = client.request(Command::Read, |out| by_rdma.emit(out));
        client.send(request);
        let (header, _) = client.recv().await.unwrap();
        assert_eq!(header.status, NtStatus::INVALID_PARAMETER);
    });
}

#[test]
fn tampered_encryption_ends_the_connection() {
    story(async {
        let world = World::new();
        let mut bystander = world.client().await;
        for at in [4, 21, 36, 42, 44, TRANSFORM_LEN, TRANSFORM_LEN + HEADER_LEN] {
            let mut client = world.client().await;
            let request = client.request(Command::Echo, |out| echo::Request.emit(out));
            let mut sealed = client.sealed(&request);
            sealed[at] ^= 1;
            client.wire.send(sealed);
            client.assert_closed().await;
        }
        assert!(bystander.is_served().await);
    });
}

#[test]
fn what_is_inside_the_encryption_must_fit() {
    story(async {
        let world = World::new();
        let other = world.client().await;
        // Another session inside ours.
        let mut client = world.client().await;
        let session = std::mem::replace(&mut client.session, other.session);
        let request = client.request(Command::Echo, |out| echo::Request.emit(out));
        client.session = session;
        client.wire.send(client.sealed(&request));
        client.assert_closed().await;
        // Not an SMB2 message, shorter than a header, encrypted twice.
        for inside in [vec![0; 100], vec![0xFE, b'S', b'M', b'B'], {
            let mut client = world.client().await;
            let request = client.request(Command::Echo, |out| echo::Request.emit(out));
            client.sealed(&request)
        }] {
            let mut client = world.client().await;
            client.wire.send(client.sealed(&inside));
            client.assert_closed().await;
        }
        // Of a session that exists, but not on this connection.
        let mut client = world.connect();
        client.negotiate(Offer::default()).await;
        let mut sealed = vec![0; TRANSFORM_LEN];
        sealed.extend(client.request(Command::Echo, |out| echo::Request.emit(out)));
        other.keys.as_ref().unwrap().sealer.as_ref().unwrap().seal(other.session, &mut sealed).unwrap();
        client.wire.send(sealed);
        client.assert_closed().await;
    });
}

#[test]
fn a_plain_read_stays_a_file_range_and_no_read_is_copied() {
    story(async {
        let world = World::new();
        let mut client = world.client().await;
        let file = client.open("f", CreateOptions::NONE).await;
        let data = vec![0x5a; 65_536];
        client.write(file, &data).await;
        let parts_of = async |client: &mut Client| {
            let request = client.request(Command::Read, |out| read_request(file, 65_536).emit(out));
            client.send(request);
            let (_, before) = buf::copies();
            let outgoing = client.wire.recv_outgoing().await.unwrap();
            (outgoing.parts, buf::copies().1 - before)
        };
        let (parts, copied) = parts_of(&mut client).await;
        assert!(matches!(
            &parts[..],
            [Part::Bytes(head), Part::Payload { data: Payload::File(range), to: To::Inline }]
                if head.len() == 80 && range.len == 65_536
        ));
        assert_eq!(copied, 0);

        client.sign = true;
        let (parts, copied) = parts_of(&mut client).await;
        let [Part::Bytes(head), Part::Payload { data: Payload::Chain(chain), .. }] = &parts[..] else {
            panic!("{parts:?}")
        };
        let whole = [&head[..], &chain[0][..]].concat();
        assert!(client.keys.as_ref().unwrap().signing.verify(Sender::Server, &whole));
        assert_eq!(copied, 0);

        client.seal = true;
        let (parts, copied) = parts_of(&mut client).await;
        assert!(matches!(&parts[..], [Part::Bytes(all)] if all.len() == TRANSFORM_LEN + 80 + 65_536));
        // Some ciphers are fastest in place, and then the request is copied to be decrypted.
        assert!(copied < 1024, "{copied}");
    });
}

/// Client and server have negotiated encryption of RDMA payload. A WRITE from memory that is not encrypted is refused
/// before the server reads that memory, and a READ's payload differs from the file's content.
#[test]
fn with_transforms_nothing_encrypted_travels_by_rdma_in_the_clear() {
    use weft_wire::smb2::channel::{Channel, Descriptor};
    use weft_wire::smb2::negotiate::Context;
    use weft_wire::smb2::{read, write};
    story(async {
        let world = World::new();
        let mut client = world.connect();
        client.wire.max_rdma.set(Some(8 << 20));
        let mut offer = Offer::default();
        offer.contexts.push(Context::RdmaTransform(vec![1, 2]));
        client.negotiate(offer).await;
        client.log_on("alice", PASSWORD).await.unwrap();
        client.seal = true;
        client.tree().await;
        let file = client.open("f", CreateOptions::NONE).await;
        assert_eq!(client.write(file, &[0x5a; 8192]).await, NtStatus::SUCCESS);
        let memory =
            || Channel::RdmaV1([Descriptor { offset: 0, token: 7, length: 8192 }].into_iter().collect());
        let request = write::Request {
            offset: 0,
            file,
            channel: memory(),
            remaining_bytes: 8192,
            flags: write::Flags::NONE,
            data: Default::default(),
        };
        // The transport of these tests cannot fetch: another status would show an attempt.
        let status = client.status(Command::Write, |out| request.emit_head(out)).await;
        assert_eq!(status, NtStatus::INVALID_PARAMETER);

        let request = read::Request { channel: memory(), ..read_request(file, 8192) };
        let request = client.request(Command::Read, |out| request.emit(out));
        client.send(request);
        let parts = client.wire.recv_outgoing().await.unwrap().parts;
        let [Part::Payload { data: Payload::Chain(chain), to: To::Segments(_) }, Part::Bytes(message)] =
            &parts[..]
        else {
            panic!("{parts:?}")
        };
        let sealed = chain.concat();
        assert_eq!(sealed.len(), 8192);
        assert!(sealed.chunks(16).all(|block| block != [0x5a; 16]), "plaintext");
        assert!(message.starts_with(&[0xFD]), "and the message that belongs to it is encrypted");
    });
}

#[test]
fn a_payload_that_cannot_be_read_is_an_error_to_the_client() {
    story(async {
        let mut client = World::new().client().await;
        let file = client.open("f", CreateOptions::NONE).await;
        // Large enough that the transport reads it, not the operation.
        client.write(file, &[7; 65_536]).await;
        client.wire.unreadable.set(true);
        let before = client.credits;
        let (status, _) = client.read(file, 65_536).await;
        assert_eq!(status, NtStatus(0xC000_00E9));
        assert!(client.credits > before, "the credits came with the error");
        assert_eq!(client.read(file, 100).await.0, NtStatus::SUCCESS);
    });
}

#[test]
fn a_header_of_a_response_or_of_no_command_ends_the_connection() {
    story(async {
        let world = World::new();
        for change in [
            (|h: &mut Header| h.flags |= Flags::SERVER_TO_REDIR) as fn(&mut Header),
            |h| h.command = Command::Unknown(0x14),
            |h| h.command = Command::ServerToClient,
        ] {
            let mut client = world.client().await;
            let mut request = client.request(Command::Echo, |out| echo::Request.emit(out));
            let mut header = Header::parse(&request).unwrap();
            change(&mut header);
            request[..HEADER_LEN].copy_from_slice(&header.to_bytes());
            client.wire.send(request);
            client.assert_closed().await;
        }
    });
}
