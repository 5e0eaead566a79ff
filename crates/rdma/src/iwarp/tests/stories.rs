//! The promises of the contract, one story each.

use bytes::Bytes;
use weft_machine::{File, FileRange};

use super::*;
use crate::iwarp::setup::Opening;
use crate::verbs::{Disconnect, Refusal, Stag, WorkError};

fn both_modes(story: impl Fn(Setting)) {
    for crc in [true, false] {
        for chunk in [1, 7, 64, 5000, 1 << 20] {
            story(Setting { crc, chunk, ..Setting::default() });
        }
    }
}

#[test]
fn messages_writes_and_reads_pass() {
    both_modes(|setting| {
        let mut pair = Pair::new(setting);
        let sink = pair.region(1, &[FILL; 3000], Access::RemoteWrite);
        let source = pair.region(1, &pattern(5, 3000), Access::RemoteRead);
        pair.recv(1, 1, 4096);
        pair.recv(1, 2, 4096);
        pair.write(0, 10, &pattern(1, 2500), part(sink, 100, 2500));
        pair.read(0, 11, part(source, 7, 2900));
        pair.send(0, 12, &pattern(2, 1234));
        pair.send(0, 13, b"");
        pair.settle();
        assert!(pair.received(1, 1)[..] == pattern(2, 1234));
        assert!(pair.received(1, 2).is_empty());
        match pair.completed(0, 11).result {
            Ok(Done::Read { buf }) => assert!(buf[..] == pattern(5, 3000)[7..2907]),
            other => panic!("{other:?}"),
        }
        let buf = pair.ends[1].invalidate(sink.stag, pair.now).unwrap();
        assert!(buf[100..2600] == pattern(1, 2500));
        assert!(buf[..100].iter().chain(&buf[2600..]).all(|byte| *byte == FILL));
        let sent: Vec<_> = pair.done[0].iter().map(|c| c.id).collect();
        assert_eq!(sent, [10, 12, 13]);
    });
}

/// RFC 5044 7.1.2 rule 4.
#[test]
fn a_responder_keeps_quiet_until_it_is_spoken_to() {
    both_modes(|setting| {
        let mut pair = Pair::new(setting);
        pair.recv(0, 1, 100);
        pair.recv(1, 1, 100);
        pair.send(1, 2, b"I have something to say");
        pair.settle();
        assert_eq!(pair.sent[1], 0);
        pair.send(0, 2, b"go ahead");
        pair.settle();
        assert_eq!(&pair.received(0, 1)[..], b"I have something to say");
    });
}

/// RFC 6581 9.2: with the peer-to-peer model the responder may send first.
#[test]
fn every_ready_to_receive_indication_opens_the_way() {
    for opening in [Opening::Write, Opening::Send, Opening::Read] {
        both_modes(|setting| {
            let roles = [
                Role::Initiator { open_with: Some(opening) },
                Role::Responder { empty_send_opens: opening == Opening::Send },
            ];
            let mut pair = Pair::new(Setting { roles, ..setting });
            pair.recv(0, 1, 100);
            pair.recv(1, 1, 100);
            pair.send(1, 2, b"me first");
            pair.settle();
            assert_eq!(&pair.received(0, 1)[..], b"me first");
            // The indication is not delivered as a message; the next message is the first.
            assert!(pair.done[1].iter().all(|c| c.id == 2), "{:?}", pair.done[1]);
            pair.send(0, 3, b"now me");
            pair.settle();
            assert_eq!(&pair.received(1, 1)[..], b"now me");
        });
    }
}

/// Its completion does not mean that the peer has the message.
#[test]
fn a_send_completes_when_the_socket_has_it() {
    both_modes(|setting| {
        let mut pair = Pair::new(setting);
        pair.recv(1, 1, 5000);
        pair.send(0, 2, &pattern(1, 4000));
        pair.ends[0].pump();
        pair.ends[0].take_completions(&mut pair.done[0]);
        assert!(pair.done[0].is_empty(), "framed, but with nobody");
        while pair.transmit(0) {}
        pair.ends[0].take_completions(&mut pair.done[0]);
        assert!(matches!(pair.completed(0, 2).result, Ok(Done::Sent)));
        assert!(pair.done[1].is_empty() && pair.ends[1].traffic().received.1 == 0);
    });
}

#[test]
fn reads_wait_for_the_depth_and_hold_back_what_is_behind_them() {
    let mut pair = Pair::new(Setting { depth: 2, ..Setting::default() });
    let source = pair.region(1, &pattern(1, 4000), Access::RemoteRead);
    pair.recv(1, 1, 100);
    for id in 0..7 {
        pair.read(0, id, part(source, id * 500, 500));
    }
    pair.send(0, 9, b"after the Reads");
    while pair.transmit(0) {}
    assert_eq!(pair.ends[0].reads.len(), 2);
    pair.settle();
    for id in 0..7 {
        let Ok(Done::Read { buf }) = pair.completed(0, id).result else { panic!("Read {id}") };
        assert!(buf[..] == pattern(1, 4000)[id as usize * 500..][..500]);
    }
    pair.received(1, 1);
}

#[test]
fn send_with_invalidate_leaves_the_buffer_to_its_owner() {
    both_modes(|setting| {
        let mut pair = Pair::new(setting);
        let region = pair.region(1, &[FILL; 100], Access::RemoteWrite);
        pair.recv(1, 1, 100);
        pair.write(0, 2, b"written before", part(region, 0, 14));
        let (data, invalidate) = (vec![Bytes::from_static(b"yours")], Some(region.stag));
        pair.post(0, Work::Send { id: 3, data, invalidate, solicited: true, signalled: true });
        pair.settle();
        match pair.completed(1, 1).result {
            Ok(Done::Received { invalidated, solicited: true, .. }) => assert_eq!(invalidated, invalidate),
            other => panic!("{other:?}"),
        }
        pair.write(0, 4, b"too late", part(region, 0, 8));
        pair.settle();
        assert_eq!(pair.ends[1].ended(), Some(&Disconnect::Refused(Refusal::InvalidStag)));
        assert_eq!(pair.ends[0].ended(), Some(&Disconnect::Terminated(Refusal::InvalidStag)));
        assert_eq!(pair.ends[1].invalidate(region.stag, pair.now).unwrap()[..14], b"written before"[..]);
    });
}

/// A buffer that is taken back while a Write into it is arriving receives nothing more, wherever the bytes would have
/// gone.
#[test]
fn nothing_is_placed_after_invalidate() {
    both_modes(|setting| {
        for after in [0, 1, 30, 99, 100, 101, 150, 500, 700] {
            let mut pair = Pair::new(Setting { chunk: 1, ..setting });
            let region = pair.region(1, &[FILL; 600], Access::RemoteWrite);
            pair.write(0, 1, &pattern(1, 600), region);
            for _ in 0..after {
                pair.transmit(0);
                pair.deliver(0);
            }
            let buf = pair.ends[1].invalidate(region.stag, pair.now).unwrap();
            let placed = buf.iter().take_while(|byte| **byte != FILL).count();
            assert!(buf[..placed] == pattern(1, 600)[..placed]);
            assert!(buf[placed..].iter().all(|byte| *byte == FILL));
            let snapshot = buf.to_vec();
            pair.settle();
            assert_eq!(buf[..], snapshot[..]);
            assert_eq!(pair.ends[1].ended(), Some(&Disconnect::Refused(Refusal::InvalidStag)));
        }
    });
}

/// The owner of a region takes it back while the peer reads it: the owner has it at once, exclusively.
#[test]
fn a_region_is_taken_back_in_the_middle_of_a_read() {
    for steps in [0, 1, 40, 300, 1000, 2500] {
        let mut pair = Pair::new(Setting { chunk: 20, ..Setting::default() });
        // Longer than a batch: some of the response is framed, some is not.
        let content = pattern(1, 600_000);
        let region = pair.region(1, &content, Access::RemoteRead);
        pair.read(0, 1, region);
        while pair.ends[1].tx.responses() == 0 {
            pair.step();
        }
        (0..steps).for_each(|_| _ = pair.step());
        let mut buf = pair.ends[1].invalidate(region.stag, pair.now).unwrap();
        // The peer sees no later change by the owner.
        buf.fill(FILL);
        pair.chunk = 1 << 20;
        pair.settle();
        assert_eq!(pair.ends[1].ended(), Some(&Disconnect::Refused(Refusal::InvalidStag)));
        assert_eq!(pair.ends[0].ended(), Some(&Disconnect::Terminated(Refusal::InvalidStag)));
        let refused = pair.completed(0, 1).result.unwrap_err();
        assert_eq!(refused, WorkError::Remote(Refusal::InvalidStag));
    }
    // A response that was completely framed is sent from a copy, and nothing is refused.
    let mut pair = Pair::new(Setting::default());
    let region = pair.region(1, &pattern(1, 3000), Access::RemoteRead);
    pair.read(0, 1, region);
    while pair.ends[1].tx.responses() == 0 {
        pair.transmit(0);
        pair.deliver(0);
    }
    pair.ends[1].pump();
    let mut buf = pair.ends[1].invalidate(region.stag, pair.now).unwrap();
    buf.fill(FILL);
    pair.settle();
    let Ok(Done::Read { buf }) = pair.completed(0, 1).result else { panic!("the Read was admitted") };
    assert!(buf[..] == pattern(1, 3000));
}

#[test]
fn a_refused_read_is_the_one_that_is_blamed() {
    both_modes(|setting| {
        let mut pair = Pair::new(setting);
        let source = pair.region(1, &pattern(1, 1000), Access::RemoteRead);
        pair.recv(0, 1, 100);
        pair.read(0, 2, source);
        pair.read(0, 3, part(source, 999, 2));
        pair.read(0, 4, source);
        pair.settle();
        assert_eq!(pair.completed(0, 3).result.unwrap_err(), WorkError::Remote(Refusal::Bounds));
        assert_eq!(pair.completed(0, 4).result.unwrap_err(), WorkError::Flushed);
        assert_eq!(pair.completed(0, 1).result.unwrap_err(), WorkError::Flushed);
        assert_eq!(pair.ends[0].ended(), Some(&Disconnect::Terminated(Refusal::Bounds)));
        assert_eq!(pair.ends[1].ended(), Some(&Disconnect::Refused(Refusal::Bounds)));
    });
}

/// Linux's siw as responder, seen on the wire: our first Send arrived 0.3 ms after its MPA reply,
/// `00 22 41 43 00000000 00000000 00000001 00000000 ...`, and siw never read it. The next bytes wake it.
#[test]
fn a_peer_that_missed_our_first_words_is_nudged() {
    let mut pair = Pair::new(Setting::default());
    pair.recv(1, 1, 100);
    pair.send(0, 2, b"hello");
    assert_eq!(pair.ends[0].timeout(), None, "nothing was said yet");
    while pair.transmit(0) {}
    let said = pair.wire[0].len();
    let mut silence = Vec::new();
    while let Some(at) = pair.ends[0].timeout() {
        silence.push((at - pair.now).as_millis());
        assert!(!pair.ends[0].handle_timeout(pair.now), "too early");
        assert!(!pair.transmit(0));
        pair.now = at;
        assert!(!pair.ends[0].handle_timeout(pair.now), "nobody is given up");
        while pair.transmit(0) {}
    }
    assert_eq!(silence, [40, 80, 160, 320, 640, 1280]);
    let nudges: Vec<u8> = pair.wire[0].iter().skip(said).copied().collect();
    // ULPDU of 14 bytes, a tagged last segment, Write, STag 0, offset 0, CRC.
    let nudge = [0, 14, 0xc1, 0x40, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    assert_eq!(nudges.len(), 6 * (nudge.len() + 4));
    assert!(nudges.chunks(nudge.len() + 4).all(|chunk| chunk[..nudge.len()] == nudge));
    // The peer wakes up: it received nothing but the message.
    pair.settle();
    assert_eq!(pair.received(1, 1)[..], *b"hello");
    assert_eq!(pair.ends[1].traffic().placed.0, 0);
    // A peer that answered is not nudged, nor is a peer that speaks first.
    let mut pair = Pair::new(Setting::default());
    pair.recv(1, 1, 100);
    pair.recv(0, 3, 100);
    pair.send(0, 2, b"hello");
    pair.settle();
    assert!(pair.ends[0].timeout().is_some());
    pair.send(1, 4, b"hello yourself");
    pair.settle();
    assert_eq!(pair.received(0, 3)[..], *b"hello yourself");
    assert_eq!((pair.ends[0].timeout(), pair.ends[1].timeout()), (None, None));
}

#[test]
fn close_drains_and_both_ends_finish() {
    both_modes(|setting| {
        let mut pair = Pair::new(setting);
        pair.recv(1, 1, 5000);
        pair.recv(1, 2, 100);
        pair.send(0, 3, &pattern(1, 4000));
        pair.ends[0].close(pair.now);
        pair.settle();
        assert!(pair.received(1, 1)[..] == pattern(1, 4000));
        assert!(pair.completed(0, 3).result.is_ok());
        assert_eq!(pair.completed(1, 2).result.unwrap_err(), WorkError::Flushed);
        assert_eq!(pair.ends[0].ended(), Some(&Disconnect::Local));
        assert_eq!(pair.ends[1].ended(), Some(&Disconnect::Peer));
        assert!(pair.ends[0].finished() && pair.ends[1].finished());
    });
}

#[test]
fn closing_does_not_wait_for_ever() {
    let mut pair = Pair::new(Setting { depth: 1, ..Setting::default() });
    let nowhere = Segment { stag: Stag(1), offset: 0, len: 10 };
    pair.read(0, 1, nowhere);
    pair.read(0, 2, nowhere);
    let data = vec![Bytes::from_static(b"stuck")];
    pair.post(0, Work::Send { id: 3, data, invalidate: None, solicited: false, signalled: false });
    pair.ends[0].pump();
    pair.ends[0].close(pair.now);
    // The peer accepts nothing.
    assert_eq!(pair.ends[0].timeout(), Some(pair.now + CLOSE_TIMEOUT));
    pair.ends[0].handle_timeout(pair.now + CLOSE_TIMEOUT / 2);
    assert!(pair.ends[0].ended().is_none());
    pair.ends[0].handle_timeout(pair.now + CLOSE_TIMEOUT);
    assert_eq!(pair.ends[0].ended(), Some(&Disconnect::Local));
    assert!(pair.ends[0].finished());
    let mut done = Vec::new();
    pair.ends[0].take_completions(&mut done);
    done.sort_by_key(|c| c.id);
    // Failure is reported for the unsignalled Send as well.
    assert!(done.iter().map(|c| c.id).eq(1..=3));
    assert!(done.iter().all(|c| matches!(c.result, Err(WorkError::Flushed))));
}

#[test]
fn a_terminate_that_the_peer_does_not_take_is_given_up() {
    let mut pair = Pair::new(Setting::default());
    pair.recv(1, 1, 100);
    pair.send(0, 1, b"hello");
    pair.settle();
    pair.send(0, 2, b"one too many");
    while pair.transmit(0) {}
    while pair.deliver(0) {}
    assert_eq!(pair.ends[1].ended(), Some(&Disconnect::Refused(Refusal::NoBuffer)));
    assert!(!pair.ends[1].finished_sending());
    pair.ends[1].handle_timeout(pair.now + CLOSE_TIMEOUT);
    assert!(pair.ends[1].finished());
}

#[test]
fn file_payload_is_read_a_piece_at_a_time() {
    let file = File::in_memory("story").unwrap();
    let content = pattern(3, 10_000);
    let bytes = Bytes::from(content.clone());
    weft_machine::rt::block_on(async { file.write_at(0, &[bytes]).await.unwrap() }).unwrap();
    both_modes(|setting| {
        // Whole FPDUs, so that reading the file gives the checksums as well.
        let mut pair = Pair::new(Setting { fpdu_payload: 640, ..setting });
        let region = pair.region(1, &[FILL; 12_000], Access::RemoteWrite);
        pair.recv(1, 1, 100);
        let data = Payload::File(FileRange { file: file.clone(), offset: 1000, len: 9000 });
        pair.post(0, Work::Write { id: 2, data, to: part(region, 500, 9000), signalled: true });
        pair.send(0, 3, b"behind it");
        pair.settle();
        assert_eq!(&pair.received(1, 1)[..], b"behind it");
        let buf = pair.ends[1].invalidate(region.stag, pair.now).unwrap();
        assert!(buf[500..9500] == content[1000..]);
        assert!(buf[9500..].iter().all(|byte| *byte == FILL));
    });
}

/// Without CRCs nobody needs the payload's bytes: it goes from the page cache to the socket.
#[test]
fn long_file_payload_stays_in_its_file() {
    let file = File::in_memory("story").unwrap();
    let content = pattern(3, 200_000);
    let bytes = Bytes::from(content.clone());
    weft_machine::rt::block_on(async { file.write_at(0, &[bytes]).await.unwrap() }).unwrap();
    for chunk in [999, 30_000, 1 << 20] {
        let mut pair = Pair::new(Setting { crc: false, fpdu_payload: 3000, chunk, ..Setting::default() });
        let region = pair.region(1, &[FILL; 200_000], Access::RemoteWrite);
        pair.recv(1, 1, 100);
        let data = Payload::File(FileRange { file: file.clone(), offset: 1000, len: 190_001 });
        pair.post(0, Work::Write { id: 2, data, to: part(region, 500, 190_001), signalled: true });
        pair.send(0, 3, b"behind it");
        pair.ends[0].pump();
        assert!(matches!(pair.ends[0].wants_file(), Some(FileNeed::Warm(range)) if range.len == 48_000));
        pair.ends[0].file_warm(Ok(48_000), pair.now);
        pair.ends[0].pump();
        // The first gather write is only a header.
        let mut slices = [IoSlice::new(&[]); 4];
        assert!(matches!(pair.ends[0].next_out(&mut slices), Next::Slices { filled: 1, more: true }));
        pair.settle();
        assert_eq!(&pair.received(1, 1)[..], b"behind it");
        let buf = pair.ends[1].invalidate(region.stag, pair.now).unwrap();
        assert!(buf[500..190_501] == content[1000..191_001]);
        assert!(buf[..500].iter().chain(&buf[190_501..]).all(|byte| *byte == FILL));
    }
}

#[test]
fn an_unreadable_file_ends_the_connection_and_says_so() {
    // Open for writing only.
    let dir = tempfile::tempdir().unwrap();
    let unreadable = std::fs::File::create(dir.path().join("f")).unwrap();
    let file = File::from(std::os::fd::OwnedFd::from(unreadable));
    let mut pair = Pair::new(Setting::default());
    let region = pair.region(1, &[FILL; 1000], Access::RemoteWrite);
    let data = Payload::File(FileRange { file, offset: 0, len: 1000 });
    pair.post(0, Work::Write { id: 1, data, to: region, signalled: false });
    pair.send(0, 2, b"behind it");
    pair.settle();
    assert!(matches!(pair.completed(0, 1).result, Err(WorkError::Payload(_))));
    assert_eq!(pair.completed(0, 2).result.unwrap_err(), WorkError::Flushed);
    assert_eq!(pair.ends[0].ended(), Some(&Disconnect::Local));
    let told = Refusal::Other { layer: 0, etype: 0, code: 0 };
    assert_eq!(pair.ends[1].ended(), Some(&Disconnect::Terminated(told)));
    assert!(pair.ends[1].invalidate(region.stag, pair.now).unwrap().iter().all(|byte| *byte == FILL));
}

#[test]
fn no_payload_is_copied_to_send_it() {
    let mut pair = Pair::new(Setting { fpdu_payload: 50_000, ..Setting::default() });
    let data = Bytes::from(pattern(1, 200_000));
    pair.post(
        0,
        Work::Send { id: 1, data: vec![data.clone()], invalidate: None, solicited: false, signalled: true },
    );
    pair.ends[0].pump();
    let mut slices = [IoSlice::new(&[]); 16];
    let Next::Slices { filled, .. } = pair.ends[0].next_out(&mut slices) else { panic!("nothing to send") };
    let range = data.as_ptr_range();
    let in_place: usize = slices[..filled]
        .iter()
        .filter(|slice| range.contains(&slice.as_ptr()))
        .map(|slice| slice.len())
        .sum();
    assert_eq!(in_place, data.len());
}

/// Without CRCs, payload is received directly into place.
#[test]
fn plain_payload_is_not_staged() {
    let mut pair = Pair::new(Setting { crc: false, fpdu_payload: 60_000, ..Setting::default() });
    let region = pair.region(1, &[FILL; 600_000], Access::RemoteWrite);
    pair.write(0, 1, &pattern(1, 600_000), region);
    let before = weft_machine::buf::copies().1;
    pair.settle();
    let staged = weft_machine::buf::copies().1 - before;
    assert!(staged < 40_000, "{staged} of 600000 bytes were staged");
    assert!(pair.ends[1].invalidate(region.stag, pair.now).unwrap()[..] == pattern(1, 600_000));
}

/// With CRCs, too, a Read Response is received directly into its buffer, which nobody may look at before it is
/// verified.
#[test]
fn a_read_response_goes_to_its_buffer_and_a_damaged_one_to_nobody() {
    const LEN: usize = 100_000;
    let run = |chunk, flip| {
        let mut pair = Pair::new(Setting { fpdu_payload: 30_000, chunk, ..Setting::default() });
        pair.flip = flip;
        let source = pair.region(1, &pattern(1, LEN), Access::RemoteRead);
        pair.read(0, 1, source);
        pair.recv(0, 2, 100);
        pair.recv(1, 2, 100);
        pair.send(1, 3, b"behind the response");
        let before = weft_machine::buf::copies().1;
        pair.settle();
        let copied = weft_machine::buf::copies().1 - before;
        let total = pair.sent[1];
        if flip.is_some() && pair.ends[0].ended().is_none() {
            // A larger length makes the receiver wait for bytes that do not come.
            pair.ends[0].eof(pair.now);
            pair.settle();
        }
        (pair.completed(0, 1).result, pair.ends[0].ended().cloned(), copied, total)
    };
    for chunk in [4000, 1 << 20] {
        let (result, ended, copied, total) = run(chunk, None);
        let Ok(Done::Read { buf }) = result else { panic!("{result:?}") };
        assert!(buf[..] == pattern(1, LEN));
        assert!(ended.is_none());
        assert!(copied < 80_000, "{copied} of {LEN} bytes were copied");
        // Headers, payload, pad and CRC of each FPDU, sampled.
        for at in (0..total).step_by(6007).chain(0..70).chain(30_040..30_090) {
            let (result, ended, ..) = run(chunk, Some((1, at, 0x40)));
            match (result, ended) {
                (Err(WorkError::Flushed), Some(Disconnect::Violation(_) | Disconnect::Lost(_))) => {}
                // The damaged byte was in the next message.
                (Ok(Done::Read { buf }), _) if at > LEN => assert!(buf[..] == pattern(1, LEN)),
                other => panic!("byte {at}: {other:?}"),
            }
        }
    }
}

/// The state that every prefix of an exchange leaves.
#[test]
fn the_stream_may_be_cut_anywhere() {
    for (crc, markers) in [(true, false), (false, false), (true, true)] {
        for chunk in [3, 1 << 20] {
            let markers = [markers; 2];
            let setting = Setting { crc, markers, chunk, fpdu_payload: 20, ..Setting::default() };
            for side in 0..2 {
                let total = exchange(setting, None).sent[side];
                for cut in 0..total {
                    let mut pair = exchange(setting, Some((side, cut)));
                    check_cut(&mut pair, side, cut);
                }
            }
        }
    }
}

/// A Write, a Read and a message in each direction.
fn exchange(setting: Setting, cut: Option<(usize, usize)>) -> Pair {
    let mut pair = Pair::new(setting);
    if let Some((side, at)) = cut {
        pair.cut[side] = Some(at);
    }
    let sink = pair.region(1, &[FILL; 100], Access::RemoteWrite);
    let source = pair.region(1, &pattern(2, 70), Access::RemoteRead);
    for side in 0..2 {
        pair.recv(side, 1, 100);
        pair.recv(side, 2, 100);
    }
    pair.write(0, 10, &pattern(1, 50), part(sink, 10, 50));
    pair.read(0, 11, source);
    pair.send(0, 12, &pattern(3, 45));
    pair.send(1, 13, &pattern(4, 45));
    pair.settle();
    pair
}

fn check_cut(pair: &mut Pair, side: usize, cut: usize) {
    let there = 1 - side;
    let reason = pair.ends[there].ended().unwrap_or_else(|| panic!("cut at {cut}: not noticed")).clone();
    match reason {
        Disconnect::Peer | Disconnect::Lost(std::io::ErrorKind::UnexpectedEof) => {}
        other => panic!("cut at {cut}: {other}"),
    }
    // Everything delivered is correct, and everything else was flushed.
    for (side, received) in [(0, 4), (1, 3)] {
        let done = std::mem::take(&mut pair.done[side]);
        for completion in &done {
            match &completion.result {
                Ok(Done::Received { buf, .. }) => assert!(buf[..] == pattern(received, 45)),
                Ok(Done::Read { buf }) => assert!(buf[..] == pattern(2, 70)),
                Ok(Done::Sent | Done::Written) | Err(WorkError::Flushed) => {}
                other => panic!("cut at {cut}: {other:?}"),
            }
        }
        if side == there {
            assert_eq!(done.len(), if side == 0 { 5 } else { 3 }, "cut at {cut}: {done:?}");
        }
    }
    let stag = pair.ends[1].regions.stags()[0];
    let sink = pair.ends[1].invalidate(stag, pair.now).unwrap();
    let placed = sink[10..60].iter().take_while(|byte| **byte != FILL).count();
    assert!(sink[10..10 + placed] == pattern(1, 50)[..placed]);
    assert!(sink[..10].iter().chain(&sink[10 + placed..]).all(|byte| *byte == FILL));
}

/// With CRCs on, a byte changed in transit is never placed, delivered or acted on.
#[test]
fn a_corrupted_fpdu_changes_nothing() {
    a_corrupted_fpdu(Setting { fpdu_payload: 200, ..Setting::default() }, 2 + 14 + 50 + 2 + 4);
    // The first marker precedes the first FPDU.
    let markers = [true; 2];
    a_corrupted_fpdu(Setting { markers, fpdu_payload: 200, ..Setting::default() }, 4 + 2 + 14 + 50 + 2 + 4);
}

fn a_corrupted_fpdu(setting: Setting, write_fpdu: usize) {
    let run = |flip: Option<(usize, usize, u8)>| {
        let mut pair = Pair::new(setting);
        pair.flip = flip;
        let sink = pair.region(1, &[FILL; 100], Access::RemoteWrite);
        pair.recv(1, 1, 100);
        pair.write(0, 10, &pattern(1, 50), part(sink, 10, 50));
        pair.send(0, 12, &pattern(3, 45));
        pair.settle();
        (pair, sink)
    };
    let (whole, _) = run(None);
    for at in 0..whole.sent[0] {
        for bits in [0x01, 0x80, 0xff] {
            let (mut pair, sink) = run(Some((0, at, bits)));
            // A larger length makes the receiver wait for bytes that do not come.
            if pair.ends[1].ended().is_none() {
                pair.ends[1].eof(pair.now);
            }
            match pair.ends[1].ended() {
                Some(Disconnect::Violation(_) | Disconnect::Lost(_)) => {}
                other => panic!("byte {at}: {other:?}"),
            }
            assert!(pair.done[1].iter().all(|c| c.result.is_err()), "byte {at} was delivered");
            let buf = pair.ends[1].invalidate(sink.stag, pair.now).unwrap();
            if at < write_fpdu {
                assert!(buf.iter().all(|byte| *byte == FILL), "byte {at} was placed");
            } else {
                assert!(buf[10..60] == pattern(1, 50));
            }
        }
    }
}
