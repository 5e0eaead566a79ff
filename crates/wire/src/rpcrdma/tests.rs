use proptest::prelude::*;

use super::*;

fn seg(handle: u32, length: u32) -> Segment {
    Segment { handle, length, offset: 0x1122_3344_5566_7788 }
}

fn emit(header: &Header) -> Bytes {
    let mut e = Encoder::default();
    header.emit(&mut e);
    e.into_bytes()
}

fn samples() -> Vec<Header> {
    let chunks = Chunks {
        reads: vec![
            ReadSegment { position: 0, target: seg(1, 2000) },
            ReadSegment { position: 128, target: seg(2, 4096) },
        ],
        writes: vec![vec![seg(3, 100), seg(4, 50)], vec![]],
        reply: Some(vec![seg(5, 64)]),
    };
    let header = |body| Header { xid: 0xcafe, version: VERSION, credits: 32, body };
    vec![
        header(Body::Msg(Chunks::default())),
        header(Body::Msg(Chunks { writes: vec![vec![seg(9, 8192)]], ..Chunks::default() })),
        header(Body::NoMsg(chunks)),
        header(Body::Error(ErrorCode::Chunk)),
        header(Body::Error(ErrorCode::Version { low: 1, high: 1 })),
    ]
}

#[test]
fn a_read_call_as_it_lies_on_the_wire() {
    let header = &samples()[1];
    let expected = [
        0, 0, 0xca, 0xfe, /**/ 0, 0, 0, 1, /**/ 0, 0, 0, 32, /**/ 0, 0, 0, 0, //
        0, 0, 0, 0, // no read list
        0, 0, 0, 1, /**/ 0, 0, 0, 1, /**/ 0, 0, 0, 9, /**/ 0, 0, 0x20, 0, //
        0x11, 0x22, 0x33, 0x44, 0x55, 0x66, 0x77, 0x88, /**/ 0, 0, 0, 0, //
        0, 0, 0, 0, // no reply chunk
    ];
    assert_eq!(&emit(header)[..], &expected[..]);
}

#[test]
fn headers_come_back_with_what_follows_them() {
    for header in samples() {
        let mut bytes = emit(&header).to_vec();
        if let Body::Msg(chunks) | Body::NoMsg(chunks) = &header.body {
            assert_eq!(bytes.len(), 16 + chunks.emitted_len());
        }
        bytes.extend_from_slice(b"rpc!");
        assert_eq!(Header::parse(Bytes::from(bytes)), Ok((header, Bytes::from_static(b"rpc!"))));
    }
}

#[test]
fn every_truncation_is_an_error() {
    for header in samples() {
        let bytes = emit(&header);
        for len in 0..bytes.len() {
            assert!(Header::parse(bytes.slice(..len)).is_err(), "{header:?} {len}");
        }
    }
}

#[test]
fn below_28_bytes_nothing_is_said() {
    let bytes = emit(&samples()[0]);
    assert_eq!(bytes.len(), MIN_HEADER);
    assert_eq!(Header::parse(bytes.slice(..27)), Err(Unusable::Short));
}

#[test]
fn versions_and_procedures_that_are_not_spoken_can_be_answered() {
    let mut bytes = emit(&samples()[0]).to_vec();
    bytes[7] = 2;
    assert_eq!(Header::parse(bytes.clone().into()), Err(Unusable::Version { xid: 0xcafe, version: 2 }));
    bytes[7] = 1;
    for procedure in [2, 5, 255] {
        bytes[15] = procedure;
        assert!(matches!(Header::parse(bytes.clone().into()), Err(Unusable::Chunk { xid: 0xcafe, .. })));
    }
    bytes[15] = 3;
    assert!(matches!(Header::parse(bytes.into()), Ok((Header { body: Body::Done, .. }, _))));
}

#[test]
fn an_endless_list_stops_at_the_limit() {
    let prefix = [1, 1, 1, 0];
    let words = |more: &[u32]| {
        let mut e = Encoder::default();
        prefix.iter().chain(more).for_each(|w| e.u32(*w));
        e.into_bytes()
    };
    let reads = words(&[1, 4, 1, 1, 0, 0].repeat(MAX_SEGMENTS + 1));
    let why = |bytes| match Header::parse(bytes) {
        Err(Unusable::Chunk { why, .. }) => why,
        other => panic!("{other:?}"),
    };
    assert_eq!(why(reads), "too many segments");
    let empty_write_chunks = words(&[&[0][..], &[1, 0].repeat(MAX_SEGMENTS + 1)].concat());
    assert_eq!(why(empty_write_chunks), "too many segments");
    let huge_write_chunk = words(&[0, 1, u32::MAX]);
    assert_eq!(why(huge_write_chunk), "length above its limit");
}

#[test]
fn private_data_is_found_at_any_offset() {
    let data = PrivateData { remote_invalidation: true, send_bytes: 4096, receive_bytes: 262_144 };
    assert_eq!(data.emit(), [0xf6, 0xab, 0x0e, 0x18, 1, 1, 3, 255]);
    let mut framed = vec![0xf6, 0xab, 0x0e];
    framed.extend_from_slice(&data.emit());
    framed.push(7);
    assert_eq!(PrivateData::find(&framed), data);
}

#[test]
fn a_peer_that_says_nothing_or_something_else_gets_the_defaults() {
    let data = PrivateData { remote_invalidation: true, send_bytes: 4096, receive_bytes: 4096 }.emit();
    for len in 0..data.len() {
        assert_eq!(PrivateData::find(&data[..len]), PrivateData::default());
    }
    let mut version_2 = data;
    version_2[4] = 2;
    assert_eq!(PrivateData::find(&version_2), PrivateData::default());
}

proptest! {
    #[test]
    fn mutations_never_panic(which in 0..5_usize, at in 0..1000_usize, flip in 1..=255_u8) {
        let mut bytes = emit(&samples()[which]).to_vec();
        let at = at % bytes.len();
        bytes[at] ^= flip;
        let _ = Header::parse(Bytes::from(bytes));
    }

    #[test]
    fn noise_never_panics(noise in proptest::collection::vec(any::<u8>(), 0..300)) {
        let _ = Header::parse(Bytes::from(noise.clone()));
        let _ = PrivateData::find(&noise);
    }
}
