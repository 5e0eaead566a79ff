use proptest::prelude::*;

use super::*;

fn request() -> Frame {
    Frame {
        kind: Kind::Request,
        markers: false,
        crc: true,
        rejected: false,
        revision: 2,
        enhanced: Some(Enhanced {
            ird: 0x1234,
            ord: 0x0021,
            peer_to_peer: Some(Rtr { send: true, write: true, read: false }),
        }),
        private_data: Bytes::from_static(b"hello"),
    }
}

fn plain_reply() -> Frame {
    Frame {
        kind: Kind::Reply,
        markers: true,
        crc: false,
        rejected: true,
        revision: 1,
        enhanced: None,
        private_data: Bytes::new(),
    }
}

fn bytes_of(frame: &Frame) -> Vec<u8> {
    let mut out = Vec::new();
    frame.emit(&mut out);
    out
}

#[test]
fn an_enhanced_request_on_the_wire() {
    let mut expected = b"MPA ID Req Frame".to_vec();
    expected.extend_from_slice(&[
        0x50, 0x02, 0x00, 0x09, // C and S, revision 2, nine bytes of private data
        0xd2, 0x34, 0x80, 0x21, // A and B with the IRD, C with the ORD
    ]);
    expected.extend_from_slice(b"hello");
    assert_eq!(bytes_of(&request()), expected);
    assert_eq!(Frame::parse(&expected), Ok(request()));
}

#[test]
fn a_plain_rejection_on_the_wire() {
    let mut expected = b"MPA ID Rep Frame".to_vec();
    expected.extend_from_slice(&[0xa0, 0x01, 0x00, 0x00]);
    assert_eq!(bytes_of(&plain_reply()), expected);
    assert_eq!(Frame::parse(&expected), Ok(plain_reply()));
}

#[test]
fn every_prefix_and_every_tail_is_refused() {
    for frame in [request(), plain_reply()] {
        let mut bytes = bytes_of(&frame);
        for len in 0..bytes.len() {
            assert_eq!(Frame::parse(&bytes[..len]), Err(Malformed::Truncated), "{len} bytes");
        }
        bytes.push(0);
        assert_eq!(Frame::parse(&bytes), Err(Malformed::Trailing));
    }
}

#[test]
fn hostile_fields_are_refused() {
    let good = bytes_of(&request());
    let with = |at: usize, value: u8| {
        let mut bytes = good.clone();
        bytes[at] = value;
        Frame::parse(&bytes)
    };
    assert_eq!(with(0, b'm'), Err(Malformed::Key));
    assert_eq!(with(17, 0), Err(Malformed::Revision(0)));
    assert_eq!(with(17, 3), Err(Malformed::Revision(3)));
    // 0x0209 is above 512; three bytes cannot hold the enhanced word.
    assert_eq!(with(18, 2), Err(Malformed::PrivateData(0x209)));
    assert_eq!(with(19, 3), Err(Malformed::PrivateData(3)));
}

#[test]
fn reserved_bits_are_not_looked_at() {
    let mut bytes = bytes_of(&request());
    // siw sets one of the reserved bits for segmentation offload.
    bytes[16] |= 0x08;
    assert_eq!(Frame::parse(&bytes), Ok(request()));
    // In revision 1, the bit of the enhanced word is reserved too.
    let mut bytes = bytes_of(&plain_reply());
    bytes[16] |= 0x1f;
    assert_eq!(Frame::parse(&bytes), Ok(plain_reply()));
    // Without A, the other control flags mean nothing.
    let mut client_server = request();
    client_server.enhanced.as_mut().unwrap().peer_to_peer = None;
    let mut bytes = bytes_of(&client_server);
    bytes[20] |= 0x40;
    bytes[22] |= 0xc0;
    assert_eq!(Frame::parse(&bytes), Ok(client_server));
}

#[test]
fn the_crc_examples_of_rfc_5044() {
    // Figure 5: a marker, the length, a DDP header and 24 zero bytes.
    let mut fpdu = vec![0, 0, 0, 0, 0x00, 0x2a, 0x41, 0x43, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0];
    fpdu.extend_from_slice(&[0; 24]);
    let mut crc = Crc::default();
    crc.update(&fpdu[..7]);
    crc.update(&fpdu[7..]);
    assert_eq!(crc.field(), [0x52, 0x23, 0x99, 0x83]);
    // Figure 6: the marker lies between header and payload.
    let mut fpdu = vec![0x00, 0x2a, 0x41, 0x43, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 0];
    fpdu.extend_from_slice(&marker(0x14));
    fpdu.extend_from_slice(&[0; 24]);
    let mut crc = Crc::default();
    crc.update(&fpdu);
    assert_eq!(crc.field(), [0x84, 0x92, 0x58, 0x98]);
}

#[test]
fn an_fpdu_is_a_multiple_of_four() {
    for ulpdu in 0..=u16::MAX {
        assert_eq!(fpdu_len(ulpdu) % 4, 0);
        assert!(pad(ulpdu) < 4);
    }
    assert_eq!(fpdu_len(0x2a), 48);
    assert_eq!(MAX_FPDU, 65_544);
}

proptest! {
    #[test]
    fn whatever_parses_comes_out_again(
        reply: bool, markers: bool, crc: bool, rejected: bool, enhanced: bool, a: bool,
        b: bool, c: bool, d: bool, ird in 0u16..0x4000, ord in 0u16..0x4000,
        private in proptest::collection::vec(any::<u8>(), 0..=MAX_USER_PRIVATE_DATA),
    ) {
        let frame = Frame {
            kind: if reply { Kind::Reply } else { Kind::Request },
            markers,
            crc,
            rejected: reply && rejected,
            revision: if enhanced { 2 } else { 1 },
            enhanced: enhanced.then_some(Enhanced {
                ird,
                ord,
                peer_to_peer: a.then_some(Rtr { send: b, write: c, read: d }),
            }),
            private_data: private.into(),
        };
        prop_assert_eq!(Frame::parse(&bytes_of(&frame)), Ok(frame));
    }

    #[test]
    fn sums_made_elsewhere_are_as_good(
        head in proptest::collection::vec(any::<u8>(), 0..40),
        body in proptest::collection::vec(any::<u8>(), 0..9000),
        tail in proptest::collection::vec(any::<u8>(), 0..5),
    ) {
        let mut whole = Crc::default();
        [&head, &body, &tail].into_iter().for_each(|bytes| whole.update(bytes));
        let mut parts = Crc::default();
        parts.update(&head);
        parts.append(crc32c::crc32c(&body), &Shift::over(body.len()));
        parts.update(&tail);
        prop_assert_eq!(parts, whole);
    }

    #[test]
    fn no_bytes_panic(bytes in proptest::collection::vec(any::<u8>(), 0..600)) {
        let _ = Frame::parse(&bytes);
    }

    #[test]
    fn no_mutation_panics(at in 0usize..29, value: u8) {
        let mut bytes = bytes_of(&request());
        let at = at % bytes.len();
        bytes[at] = value;
        if let Ok(frame) = Frame::parse(&bytes) {
            prop_assert!(frame.private_data.len() <= MAX_PRIVATE_DATA);
        }
    }
}
