//! Hand-made compressed messages: every algorithm, alone and in chains, and the messages that end a connection.

use bytes::Bytes;
use weft_wire::smb2::channel::Channel;
use weft_wire::smb2::compression::{Algorithm, Compressed, Payload};
use weft_wire::smb2::create::CreateOptions;
use weft_wire::smb2::negotiate::Context;
use weft_wire::smb2::{Command, FileId, NtStatus, echo, read, tree_connect, write};

use super::harness::*;
use crate::compression::Agreed;

const CODECS: [Algorithm; 4] = [Algorithm::LZNT1, Algorithm::LZ77, Algorithm::LZ77_HUFFMAN, Algorithm::LZ4];

fn world() -> World {
    World::with(|config| {
        config.offers.compression = true;
        config.offers.compressed = vec!["data".into()];
    })
}

/// Negotiates with a list of algorithms; returns the server's choice.
async fn agree(client: &mut Client, flags: u32, algorithms: &[Algorithm]) -> Option<Agreed> {
    let mut offer = Offer::default();
    let algorithms = algorithms.iter().map(|algorithm| algorithm.0).collect();
    offer.contexts.push(Context::Compression { flags, algorithms });
    let response = client.negotiate(offer).await;
    response.contexts.iter().find_map(|context| match context {
        Context::Compression { flags, algorithms } => Agreed::of(*flags, algorithms),
        _ => None,
    })
}

async fn connected(world: &World, flags: u32, algorithms: &[Algorithm]) -> (Client, Agreed) {
    let mut client = world.connect();
    let agreed = agree(&mut client, flags, algorithms).await.unwrap();
    client.log_on("alice", PASSWORD).await.unwrap();
    client.tree().await;
    (client, agreed)
}

fn emit_write(file: FileId, data: &[u8], out: &mut Vec<u8>) {
    write::Request {
        offset: 0,
        file,
        channel: Channel::None,
        remaining_bytes: 0,
        flags: write::Flags::NONE,
        data: Bytes::copy_from_slice(data),
    }
    .emit_head(out);
    out.extend_from_slice(data);
}

fn text() -> Vec<u8> {
    (0..4000).flat_map(|i| format!("line {} of {i}\n", i * i % 977).into_bytes()).take(50_000).collect()
}

#[test]
fn requests_and_answers_of_every_kind() {
    story(async {
        let world = world();
        for codec in CODECS {
            for (flags, algorithms) in
                [(0, vec![codec]), (1, vec![codec]), (1, vec![Algorithm::PATTERN_V1, codec])]
            {
                let (mut client, agreed) = connected(&world, flags, &algorithms).await;
                let file = client.open("text", CreateOptions::NONE).await;
                let data = [&text()[..], &[0; 10_000]].concat();
                let request = client.request(Command::Write, |out| emit_write(file, &data, out));
                let short = agreed.compress(&request, 112).unwrap();
                assert!(short.len() < request.len() / 2 + 10_000, "{codec:?}");
                client.wire.send(short);
                assert_eq!(client.recv().await.unwrap().0.status, NtStatus::SUCCESS, "{codec:?}");

                let asked = read::Request {
                    flags: read::Flags::REQUEST_COMPRESSED,
                    ..read_request(file, data.len() as u32)
                };
                let request = client.request(Command::Read, |out| asked.emit(out));
                client.wire.send(request);
                let frame = client.recv_frame().await.unwrap();
                assert!(frame.len() < data.len(), "{codec:?}");
                let header = Compressed::parse(&frame).unwrap();
                assert_eq!(matches!(header, Compressed::Chain { .. }), flags == 1);
                let mut message = vec![0; agreed.original_len(&frame, 1 << 20).unwrap()];
                agreed.decompress(&frame, &mut message).unwrap();
                let answer = read::Response::parse(&message.into()).unwrap();
                assert_eq!(answer.data, data, "{codec:?}");

                // Only on request.
                let request = client.request(Command::Read, |out| read_request(file, 60_000).emit(out));
                client.wire.send(request);
                assert!(client.recv_frame().await.unwrap().len() > 60_000);
            }
        }
    });
}

#[test]
fn what_is_in_common_and_what_is_not() {
    story(async {
        let world = world();
        let mut client = world.connect();
        assert_eq!(agree(&mut client, 1, &[Algorithm(9), Algorithm(0)]).await, None);
        client.log_on("alice", PASSWORD).await.unwrap();
        client.tree().await;
        let tree = async |client: &mut Client| {
            let (_, message) = client.tree_connect(r"\\server\Data").await;
            tree_connect::Response::parse(&message).unwrap().flags
        };
        let flag = tree_connect::ShareFlags::COMPRESS_DATA;
        assert!(!tree(&mut client).await.contains(flag));
        let (mut client, _) = connected(&world, 1, &[Algorithm::LZ77]).await;
        assert!(tree(&mut client).await.contains(flag));
        // An empty list is an error.
        let mut offer = Offer::default();
        offer.contexts.push(Context::Compression { flags: 0, algorithms: Vec::new() });
        let (header, _) = world.connect().try_negotiate(offer).await;
        assert_eq!(header.status, NtStatus::INVALID_PARAMETER);
    });
}

#[test]
fn what_ends_a_connection() {
    story(async {
        let world = world();
        let mut bystander = world.client().await;
        let bomb = |original: u32, count: u32| {
            let mut out = Vec::new();
            Compressed::Chain { original }.emit(&mut out);
            Payload::Pattern { byte: 0xfe, count }.emit(true, &mut out);
            out
        };
        let piece = |algorithm| {
            let mut out = Vec::new();
            Compressed::Piece { original: 5000, algorithm, plain: 0 }.emit(&mut out);
            out.extend([0; 300]);
            out
        };
        let all = [Algorithm::PATTERN_V1, Algorithm::LZ77];
        for message in [
            bomb(u32::MAX, u32::MAX),
            bomb(4096, u32::MAX),
            bomb(4096, 4095),
            // Decompresses correctly, but not to a message.
            bomb(4096, 4096),
            bomb(0, 0),
            piece(Algorithm::LZ77),
            piece(Algorithm::LZ4),
            piece(Algorithm::PATTERN_V1),
            piece(Algorithm::NONE),
            b"\xfcSMB".to_vec(),
        ] {
            let (mut client, _) = connected(&world, 1, &all).await;
            client.wire.send(message);
            client.assert_closed().await;
        }
        // Without negotiated compression a compressed message is refused; so it is before NEGOTIATE.
        let mut client = world.client().await;
        client.wire.send(bomb(4096, 4096));
        client.assert_closed().await;
        let mut client = world.connect();
        client.wire.send(bomb(4096, 4096));
        client.assert_closed().await;
        // And between NEGOTIATE and the log-on, whatever it contains.
        let mut client = world.connect();
        let agreed = agree(&mut client, 1, &all).await.unwrap();
        let echo = client.request(Command::Echo, |out| {
            echo::Request.emit(out);
            out.extend([0; 5000]);
        });
        client.wire.send(agreed.compress(&echo, 64).unwrap());
        client.assert_closed().await;
        assert!(bystander.is_served().await);
    });
}
