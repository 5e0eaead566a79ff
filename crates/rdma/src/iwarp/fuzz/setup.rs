//! MPA set-up against an arbitrary peer: either role alone, and both against each other over a damaged line.
//!
//! Covers RFC 5044 7.1 and RFC 6581 9. It checks that the outcome does not depend on the pieces in which a frame
//! arrives, that no byte after the frame is taken, that an unfinished frame always wants more, and that two sides over
//! a clean line agree.

use bytes::Bytes;
use weft_machine::Time;
use weft_wire::mpa::{FRAME_LEN, MAX_PRIVATE_DATA, MAX_USER_PRIVATE_DATA, NOT_NEGOTIATED};

use crate::fuzz::Script;
use crate::iwarp::setup::{Agreed, Asked, Failure, Initiator, Offer, Opening, Responder, Role};
use crate::verbs::ConnectError;

const DEADLINE: Time = Time::from_nanos(1000);

/// A scripted set-up.
pub fn mpa_setup(data: &[u8]) {
    let mut script = Script::new(data);
    let kind = script.below(4);
    let chunk = 1 + usize::from(script.byte());
    let ours = offer(&mut script);
    match kind {
        0 => {
            let bytes = script.rest();
            let respond = |bytes: &[u8], chunk| respond(bytes, chunk).0;
            assert_eq!(respond(bytes, chunk), respond(bytes, 1), "pieces make a difference");
        }
        1 => {
            let bytes = script.rest();
            let initiate = |bytes: &[u8], chunk| initiate(&ours, bytes, chunk).0;
            assert_eq!(initiate(bytes, chunk), initiate(bytes, 1), "pieces make a difference");
        }
        _ => conversation(ours, chunk, &mut script),
    }
}

fn offer(script: &mut Script<'_>) -> Offer {
    let flags = script.byte();
    let private_len = script.below(MAX_USER_PRIVATE_DATA + 1);
    Offer {
        crc: flags & 1 != 0,
        markers: flags & 2 != 0,
        peer_to_peer: flags & 4 != 0,
        enhanced: flags & 8 == 0,
        ird: script.word() % NOT_NEGOTIATED,
        ord: script.word() % NOT_NEGOTIATED,
        private_data: Bytes::copy_from_slice(&vec![flags; private_len]),
    }
}

/// The outcome as comparable text, and the outcome itself.
type Outcome<T> = (String, Option<Result<T, Failure>>);

/// Hands over `bytes` in pieces of `chunk`, as long as they are wanted.
fn feed<T: std::fmt::Debug>(
    mut bytes: &[u8],
    chunk: usize,
    mut step: impl FnMut(&mut &[u8]) -> (Result<Option<T>, Failure>, usize),
) -> Outcome<T> {
    let all = bytes.len();
    while !bytes.is_empty() {
        let (piece, rest) = bytes.split_at(chunk.min(bytes.len()));
        let mut left = piece;
        let (outcome, wanted) = step(&mut left);
        let taken = all - rest.len() - left.len();
        assert!(taken <= FRAME_LEN + MAX_PRIVATE_DATA, "more was taken than a frame has");
        match outcome {
            Ok(None) => {
                assert!(left.is_empty(), "left lying, and not done");
                assert!((1..=FRAME_LEN + MAX_PRIVATE_DATA).contains(&wanted), "wants {wanted} bytes");
            }
            done => {
                let done = done.map(|done| done.expect("not None"));
                // Where an error is found in a broken frame depends on the pieces; a good frame ends where it ends.
                let taken = if done.is_ok() { taken } else { 0 };
                return (format!("{taken} {done:?}"), Some(done));
            }
        }
        bytes = rest;
    }
    ("unfinished".into(), None)
}

fn respond(bytes: &[u8], chunk: usize) -> Outcome<Asked> {
    let mut responder = Responder::new(DEADLINE);
    let outcome = feed(bytes, chunk, |input| (responder.handle(input), responder.wanted()));
    assert!(responder.handle_timeout(Time::from_nanos(999)).is_ok());
    assert!(responder.handle_timeout(responder.deadline()).is_err(), "waits for ever");
    outcome
}

fn initiate(offer: &Offer, bytes: &[u8], chunk: usize) -> Outcome<Agreed> {
    let (mut initiator, _) = Initiator::new(offer.clone(), DEADLINE);
    let outcome = feed(bytes, chunk, |input| (initiator.handle(input), initiator.wanted()));
    assert!(initiator.handle_timeout(initiator.deadline()).is_err(), "waits for ever");
    outcome
}

/// Both sides, and a line that may change up to three bytes each way.
fn conversation(ours: Offer, chunk: usize, script: &mut Script<'_>) {
    let theirs = offer(script);
    let (_, mut request) = Initiator::new(ours.clone(), DEADLINE);
    let damaged = damage(&mut request, script);
    // Bytes that follow in the same read do not belong to the frame.
    request.extend_from_slice(&[0x5a; 9]);
    let (_, Some(Ok(asked))) = respond(&request, chunk) else {
        assert!(damaged, "a clean request was not understood");
        return;
    };
    if !damaged {
        assert_eq!(*asked.private_data(), ours.private_data);
    }
    let reject = script.flag();
    let (mut reply, accepted) = if reject {
        (asked.reject(&theirs), None)
    } else {
        let (reply, accepted) = asked.accept(&theirs);
        (reply, Some(accepted))
    };
    let damaged = damage(&mut reply, script) || damaged;
    let (_, Some(answered)) = initiate(&ours, &reply, chunk) else {
        assert!(damaged, "a clean reply was not understood");
        return;
    };
    if let Ok(answered) = &answered {
        // Whatever was received, nothing exceeds the offer.
        assert!(answered.ird <= ours.ird && answered.ord <= ours.ord);
        assert!(answered.crc || !ours.crc, "a CRC that was asked for is used");
    }
    if damaged {
        return;
    }
    match (answered, accepted) {
        (Ok(a), Some(b)) => agreement(&ours, &theirs, &a, &b),
        (Err(Failure { error: ConnectError::Rejected(why), .. }), None) => {
            assert_eq!(why, theirs.private_data);
        }
        // The reply's ORD never exceeds our IRD, and the other side always knows one of our openings.
        (other, _) => panic!("{other:?}"),
    }
}

fn agreement(ours: &Offer, theirs: &Offer, a: &Agreed, b: &Agreed) {
    assert_eq!((a.crc, a.markers, a.marked), (b.crc, b.marked, b.markers));
    assert_eq!((&a.private_data, &b.private_data), (&theirs.private_data, &ours.private_data));
    if ours.enhanced {
        assert!(a.ord <= b.ird, "more Reads than the responder takes");
        assert!(b.ord <= a.ird, "more Reads than the initiator takes");
    }
    let Role::Initiator { open_with } = a.role else { panic!("{a:?}") };
    assert_eq!(open_with.is_some(), ours.enhanced && ours.peer_to_peer);
    let Role::Responder { empty_send_opens } = b.role else { panic!("{b:?}") };
    assert!(open_with != Some(Opening::Send) || empty_send_opens);
}

/// Changes up to three bytes; returns whether it changed any.
fn damage(frame: &mut [u8], script: &mut Script<'_>) -> bool {
    let times = script.byte() % 4;
    let mut changed = false;
    for _ in 0..times {
        let at = script.below(frame.len());
        let bits = script.byte();
        frame[at] ^= bits;
        changed |= bits != 0;
    }
    changed
}
