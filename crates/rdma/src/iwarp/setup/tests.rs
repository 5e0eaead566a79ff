use proptest::prelude::*;

use super::*;

const DEADLINE: Time = Time::from_nanos(1000);

fn offer(crc: bool, ird: u16, ord: u16, private_data: &'static [u8]) -> Offer {
    Offer {
        crc,
        markers: false,
        ird,
        ord,
        peer_to_peer: false,
        enhanced: true,
        private_data: Bytes::from_static(private_data),
    }
}

fn request_of(bytes: &[u8]) -> Asked {
    let mut responder = Responder::new(DEADLINE);
    responder.handle(&mut &bytes[..]).unwrap().unwrap()
}

/// Both sides, and the result of each.
fn agree(initiator: Offer, responder: Offer) -> (Agreed, Agreed) {
    let (mut active, request) = Initiator::new(initiator, DEADLINE);
    let (reply, passive) = request_of(&request).accept(&responder);
    (active.handle(&mut &reply[..]).unwrap().unwrap(), passive)
}

/// The request as another implementation would have sent it, after `change`.
fn foreign(change: impl FnOnce(&mut Frame)) -> Asked {
    let (_, request) = Initiator::new(offer(false, 10, 10, b"hi"), DEADLINE);
    let mut frame = Frame::parse(&request).unwrap();
    change(&mut frame);
    request_of(&bytes_of(&frame))
}

#[test]
fn either_side_can_ask_for_crcs() {
    for (ours, theirs) in [(false, false), (false, true), (true, false), (true, true)] {
        let (active, passive) = agree(offer(ours, 1, 1, b""), offer(theirs, 1, 1, b""));
        assert_eq!((active.crc, passive.crc), (ours || theirs, ours || theirs));
    }
}

#[test]
fn private_data_passes_both_ways() {
    let (active, passive) = agree(offer(true, 1, 1, b"may I?"), offer(true, 1, 1, b"please"));
    assert_eq!((&active.private_data[..], &passive.private_data[..]), (&b"please"[..], &b"may I?"[..]));
}

/// RFC 6581 9.1.
#[test]
fn read_depths() {
    let depths = |a: (u16, u16), b: (u16, u16)| {
        let (active, passive) = agree(offer(true, a.0, a.1, b""), offer(true, b.0, b.1, b""));
        assert!(active.ord <= passive.ird && passive.ord <= active.ird);
        ((active.ird, active.ord), (passive.ird, passive.ord))
    };
    assert_eq!(depths((8, 8), (8, 8)), ((8, 8), (8, 8)));
    // The responder asks for no more than it is offered, and serves what it can.
    assert_eq!(depths((2, 100), (16, 32)), ((2, 16), (16, 2)));
    assert_eq!(depths((64, 4), (16, 32)), ((32, 4), (16, 32)));
    assert_eq!(depths((0, 0), (5, 5)), ((0, 0), (5, 0)));
}

#[test]
fn all_ones_leaves_the_depths_to_the_users() {
    let asked = foreign(|frame| {
        let word = frame.enhanced.as_mut().unwrap();
        (word.ird, word.ord) = (NOT_NEGOTIATED, NOT_NEGOTIATED);
    });
    let (reply, agreed) = asked.accept(&offer(true, 7, 9, b""));
    let word = Frame::parse(&reply).unwrap().enhanced.unwrap();
    assert_eq!((word.ird, word.ord), (NOT_NEGOTIATED, NOT_NEGOTIATED));
    assert_eq!((agreed.ird, agreed.ord), (7, 9));
    let (mut active, _) = Initiator::new(offer(true, 7, 9, b""), DEADLINE);
    let agreed = active.handle(&mut &reply[..]).unwrap().unwrap();
    assert_eq!((agreed.ird, agreed.ord), (7, 9));
}

#[test]
fn a_responder_that_wants_more_reads_than_were_offered_is_told_why() {
    let (reply, _) = foreign(|_| {}).accept(&offer(true, 1, 1, b""));
    let mut frame = Frame::parse(&reply).unwrap();
    frame.enhanced.as_mut().unwrap().ord = 11;
    let (mut active, _) = Initiator::new(offer(true, 10, 10, b""), DEADLINE);
    let failure = active.handle(&mut &bytes_of(&frame)[..]).unwrap_err();
    assert!(matches!(failure.error, ConnectError::Violation(_)));
    // A Terminate of layer 2, type 0, code 6 (RFC 6581 8), with its CRC.
    assert_eq!(failure.farewell[2..4], [0x41, 0x47]);
    assert_eq!(failure.farewell[20..24], [0x20, 0x06, 0, 0]);
    let mut crc = mpa::Crc::default();
    crc.update(&failure.farewell[..24]);
    assert_eq!(failure.farewell[24..], crc.field());
}

/// RFC 6581 10: a peer that knows only RFC 5044 gets an answer of that form, and is understood.
#[test]
fn older_peers() {
    for revision in [1, 2] {
        let asked = foreign(|frame| (frame.revision, frame.enhanced) = (revision, None));
        let (reply, agreed) = asked.accept(&offer(true, 7, 9, b"yes"));
        let frame = Frame::parse(&reply).unwrap();
        assert_eq!((frame.revision, frame.enhanced), (revision, None));
        assert_eq!((agreed.ird, agreed.ord), (7, 9));
        assert_eq!(agreed.role, Role::Responder { empty_send_opens: false });
        let (mut active, _) = Initiator::new(offer(true, 3, 4, b""), DEADLINE);
        let agreed = active.handle(&mut &reply[..]).unwrap().unwrap();
        assert_eq!((agreed.ird, agreed.ord, &agreed.private_data[..]), (3, 4, &b"yes"[..]));
    }
}

/// RFC 6581 10: the older form, for a peer that hung up on the newer one.
#[test]
fn the_older_request_is_that_of_rfc_5044() {
    let older = Offer { enhanced: false, ..offer(true, 3, 4, b"hi") };
    let (active, request) = Initiator::new(older.clone(), DEADLINE);
    assert_eq!(request, *b"MPA ID Req Frame\x40\x01\0\x02hi");
    assert!(!active.may_ask_again());
    let (active, passive) = agree(older, offer(false, 7, 9, b""));
    assert_eq!((active.ird, active.ord, passive.ird, passive.ord), (3, 4, 7, 9));
    // Only before the peer has sent anything, and only if the older form can express the request.
    let (mut active, _) = Initiator::new(offer(true, 3, 4, b""), DEADLINE);
    assert!(active.may_ask_again());
    active.handle(&mut &b"MPA"[..]).unwrap();
    assert!(!active.may_ask_again());
    let peers = Offer { peer_to_peer: true, ..offer(true, 3, 4, b"") };
    assert!(!Initiator::new(peers, DEADLINE).0.may_ask_again());
}

/// RFC 6581 9.2.
#[test]
fn peer_to_peer() {
    let rtr = |send, write, read| Rtr { send, write, read };
    let answer = |asked: Rtr, ird: u16| {
        let asked = foreign(|frame| frame.enhanced.as_mut().unwrap().peer_to_peer = Some(asked));
        let (reply, agreed) = asked.accept(&offer(true, ird, 1, b""));
        let answered = Frame::parse(&reply).unwrap().enhanced.unwrap().peer_to_peer.unwrap();
        (answered, agreed.role == Role::Responder { empty_send_opens: true })
    };
    assert_eq!(answer(rtr(true, false, false), 1), (rtr(true, false, false), true));
    assert_eq!(answer(rtr(false, true, false), 1), (rtr(false, true, false), false));
    assert_eq!(answer(rtr(false, false, true), 1), (rtr(false, false, true), false));
    assert_eq!(answer(rtr(true, true, true), 1), (rtr(true, true, true), true));
    // Nothing in common: we answer with what we support.
    assert_eq!(answer(rtr(false, false, false), 1), (rtr(true, true, true), true));
    assert_eq!(answer(rtr(false, false, true), 0), (rtr(true, true, false), true));

    let ask = Offer { peer_to_peer: true, ..offer(true, 4, 4, b"") };
    let opening = |answer: Option<Rtr>| {
        let (mut active, request) = Initiator::new(ask.clone(), DEADLINE);
        let (reply, _) = request_of(&request).accept(&offer(true, 4, 4, b""));
        let mut frame = Frame::parse(&reply).unwrap();
        frame.enhanced.as_mut().unwrap().peer_to_peer = answer;
        active.handle(&mut &bytes_of(&frame)[..]).map(|agreed| agreed.unwrap().role)
    };
    let initiator = |opening| Role::Initiator { open_with: Some(opening) };
    assert_eq!(opening(Some(rtr(true, true, true))).unwrap(), initiator(Opening::Write));
    assert_eq!(opening(Some(rtr(true, false, true))).unwrap(), initiator(Opening::Send));
    assert_eq!(opening(Some(rtr(false, false, true))).unwrap(), initiator(Opening::Read));
    for nothing in [Some(rtr(false, false, false)), None] {
        let failure = opening(nothing).unwrap_err();
        assert_eq!(failure.farewell[20..24], [0x20, 0x07, 0, 0]);
    }
    // If we do not ask for it, there is no opening message, whatever the peer answers.
    let (active, passive) = agree(offer(true, 1, 1, b""), offer(true, 1, 1, b""));
    assert_eq!(active.role, Role::Initiator { open_with: None });
    assert_eq!(passive.role, Role::Responder { empty_send_opens: false });
}

#[test]
fn a_peer_that_requires_markers_gets_them() {
    let (_, agreed) = foreign(|frame| frame.markers = true).accept(&offer(true, 1, 1, b""));
    assert!(agreed.markers && !agreed.marked);
    let wish = |markers| Offer { markers, ..offer(true, 1, 1, b"") };
    for (ours, theirs) in [(false, false), (false, true), (true, false), (true, true)] {
        let (active, passive) = agree(wish(ours), wish(theirs));
        assert_eq!((active.marked, active.markers), (ours, theirs));
        assert_eq!((passive.marked, passive.markers), (theirs, ours));
    }
}

/// The request of Linux's siw (6.12, NFS over RDMA), as captured: revision 2, no CRC asked for, no markers, IRD 128, ORD 0,
/// and the 8 bytes of RFC 8797. Then with siw's own flag 0x0800 for segmentation offload, and as a peer-to-peer request that
/// opens with an empty Write.
#[test]
fn siw_asks() {
    let captured = b"MPA ID Req Frame\x10\x02\0\x0c\0\x80\0\0\xf6\xab\x0e\x18\x01\x01\x03\x03";
    let with = |changes: &[(usize, u8)]| {
        let mut bytes = captured.to_vec();
        changes.iter().for_each(|(at, bits)| bytes[*at] |= bits);
        request_of(&bytes).accept(&offer(false, 64, 64, b""))
    };
    let (reply, agreed) = with(&[]);
    assert_eq!(reply, *b"MPA ID Rep Frame\x10\x02\0\x04\0\x40\0\x40");
    assert_eq!((agreed.ird, agreed.ord, agreed.crc, agreed.markers), (64, 64, false, false));
    assert_eq!(agreed.private_data[..], captured[24..]);
    // The flag is not returned.
    assert_eq!(with(&[(16, 0x08)]), (reply, agreed));
    let (reply, agreed) = with(&[(20, 0x80), (22, 0x80)]);
    assert_eq!(reply[20..], [0x80, 0x40, 0x80, 0x40]);
    assert_eq!(agreed.role, Role::Responder { empty_send_opens: false });
}

#[test]
fn a_rejection_says_why() {
    for enhanced in [true, false] {
        let asked = foreign(|frame| frame.enhanced = frame.enhanced.filter(|_| enhanced));
        let reply = asked.reject(&offer(true, 1, 1, b"too busy"));
        let (mut active, _) = Initiator::new(offer(true, 1, 1, b""), DEADLINE);
        match active.handle(&mut &reply[..]).unwrap_err().error {
            ConnectError::Rejected(reason) => assert_eq!(&reason[..], b"too busy"),
            other => panic!("{other}"),
        }
    }
}

#[test]
fn two_of_a_kind_notice_each_other() {
    let (mut active, request) = Initiator::new(offer(true, 1, 1, b""), DEADLINE);
    assert!(matches!(active.handle(&mut &request[..]).unwrap_err().error, ConnectError::Violation(_)));
    let (reply, _) = request_of(&request).accept(&offer(true, 1, 1, b""));
    let mut responder = Responder::new(DEADLINE);
    assert!(matches!(responder.handle(&mut &reply[..]).unwrap_err().error, ConnectError::Violation(_)));
}

#[test]
fn each_step_has_its_time() {
    let (active, _) = Initiator::new(offer(true, 1, 1, b""), DEADLINE);
    let passive = Responder::new(DEADLINE);
    assert_eq!((active.deadline(), passive.deadline()), (DEADLINE, DEADLINE));
    let before = Time::from_nanos(999);
    assert!(active.handle_timeout(before).is_ok() && passive.handle_timeout(before).is_ok());
    for late in [active.handle_timeout(DEADLINE), passive.handle_timeout(DEADLINE)] {
        assert!(matches!(late.unwrap_err().error, ConnectError::TimedOut(_)));
    }
}

#[test]
fn frames_come_in_any_pieces_and_take_no_byte_too_many() {
    let (_, request) = Initiator::new(offer(true, 1, 1, b"some private data"), DEADLINE);
    let stream = [&request[..], b"an FPDU"].concat();
    for piece in 1..=stream.len() {
        let mut responder = Responder::new(DEADLINE);
        let mut at = 0;
        let asked = loop {
            // A reader that asks for no more than is wanted leaves the FPDU in the socket.
            assert!(responder.wanted() > 0 && at + responder.wanted() <= request.len());
            let end = (at + piece).min(stream.len());
            let mut input = &stream[at..end];
            let step = responder.handle(&mut input).unwrap();
            at = end - input.len();
            if let Some(asked) = step {
                break asked;
            }
        };
        assert_eq!(&asked.private_data()[..], b"some private data");
        assert_eq!(at, request.len());
    }
}

proptest! {
    #[test]
    fn hostile_frames_are_refused_or_understood(at in 0usize..29, value: u8, cut in 0usize..40) {
        let (mut active, mut bytes) = Initiator::new(offer(true, 1, 1, b"hello"), DEADLINE);
        let at = at % bytes.len();
        bytes[at] = value;
        bytes.truncate(cut);
        let mut responder = Responder::new(DEADLINE);
        match responder.handle(&mut &bytes[..]) {
            Ok(None) => prop_assert!(responder.wanted() > 0 && responder.wanted() <= 532),
            Ok(Some(asked)) => _ = asked.accept(&offer(true, 1, 1, b"")),
            Err(failure) => prop_assert!(matches!(failure.error, ConnectError::Violation(_))),
        }
        let _ = active.handle(&mut &bytes[..]);
    }
}
