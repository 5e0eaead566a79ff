use super::control::{Era, Hello, Refusal, Report, Request, Response, Sync, Welcome};
use super::record::{Header, Kind, MAX_PAYLOAD, SECTOR};
use super::*;

fn header(kind: Kind) -> Header {
    Header {
        log: 0x1112_1314_1516_1718,
        life: 3,
        epoch: 2,
        sequence: 0x0102,
        member: 1,
        offset: 0x4000,
        unix_ms: 1_790_000_000_000,
        settled: 0x27,
        claimed: 0,
        kind,
    }
}

fn requests() -> Vec<Request> {
    let era = Era { epoch: 2, tag: 0xabcd, after: 17 };
    let hello = Hello {
        partnership: *b"0123456789abcdef",
        first: 5,
        last: 17,
        synchronous: true,
        adopt: false,
        sizes: vec![10 << 30, 4096],
        eras: vec![Era { epoch: 1, tag: 9, after: 0 }, era],
    };
    vec![
        Request::Hello(hello),
        Request::Begin { session: 7, base: 17, sync: Sync::Seeded },
        Request::Zero { session: 7, member: 1, offset: 4096, len: 1 << 40 },
        Request::Barrier { session: 7 },
        Request::Finish { session: 7, at: 21 },
        Request::Checksums { session: 7, member: 0, offset: 0, len: 1 << 20, piece: 65536, after: 3 },
        Request::Diverged { session: 7, member: 0, from: 4096 },
        Request::Suspend { session: 7 },
        Request::TakeOver { session: 7, era },
        Request::Status,
        Request::Beat { session: 7 },
        Request::Prepare { session: 7 },
    ]
}

fn responses() -> Vec<Response> {
    let era = Era { epoch: 3, tag: 1, after: 2 };
    let mut all = vec![
        Response::Welcome(Welcome {
            session: 9,
            last: 4,
            consistent: true,
            fresh: false,
            diverged: true,
            sizes: vec![512],
        }),
        Response::Done,
        Response::Digests(vec![[7; 16], [8; 16]]),
        Response::Ranges { ranges: vec![(0, 4096), (8192, 1)], next: Some(9000) },
        Response::Report(Report { epoch: 1, source: true, last: 9, log_used: 3, ..Report::default() }),
    ];
    let refusals = [
        Refusal::Fenced(era),
        Refusal::SplitBrain(era),
        Refusal::Session,
        Refusal::Partnership,
        Refusal::Sizes(3),
        Refusal::Gap(MAX_SEQUENCE),
        Refusal::Inconsistent,
        Refusal::Damaged,
        Refusal::Invalid,
        Refusal::Io,
        Refusal::NoSpace,
        Refusal::Version(9),
        Refusal::Undecided,
        Refusal::Stopped,
        Refusal::SetBack { both: 206, copy: 691 },
        Refusal::Lacks { copy: 8009 },
        Refusal::Ended,
    ];
    all.extend(refusals.map(Response::Refused));
    all
}

#[test]
fn a_record_lies_in_the_log_as_it_always_did() {
    let bytes = header(Kind::Write { len: 4096, sum: 0xdead_beef }).emit();
    assert_eq!(&bytes[..16], b"WfLR\x02\0\x01\0\x18\x17\x16\x15\x14\x13\x12\x11");
    assert_eq!(&bytes[16..40], b"\x03\0\0\0\0\0\0\0\x02\0\0\0\0\0\0\0\x02\x01\0\0\0\0\0\0");
    assert_eq!(&bytes[40..64], b"\x01\0\0\0\0\x10\0\0\0\x40\0\0\0\0\0\0\0\x10\0\0\0\0\0\0");
    assert_eq!(&bytes[72..84], b"\x27\0\0\0\0\0\0\0\xef\xbe\xad\xde");
    assert!(bytes[88..].iter().all(|byte| *byte == 0));
}

#[test]
fn what_a_source_had_lies_behind_what_older_versions_read() {
    let kind = Kind::Write { len: 4096, sum: 0xdead_beef };
    let bytes = Header { claimed: 0x28, ..header(kind) }.emit();
    assert_eq!(bytes[..88], header(kind).emit()[..88]);
    assert_eq!(&bytes[88..96], b"\x28\0\0\0\0\0\0\0");
    // Damaged, it says nothing, and the record is what it was.
    for bit in 8 * 88..8 * 100 {
        let mut damaged = bytes;
        damaged[bit / 8] ^= 1 << (bit % 8);
        assert_eq!(Header::parse(&damaged), Ok(header(kind)), "bit {bit}");
    }
}

#[test]
fn records_are_read_as_they_were_written() {
    let zeroes = Kind::Zeroes { len: 1 << 40, keep_space: true };
    for kind in [Kind::Write { len: 1, sum: 5 }, zeroes, Kind::Pad] {
        assert_eq!(Header::parse(&header(kind).emit()), Ok(header(kind)));
        let claims = Header { claimed: 0x28, ..header(kind) };
        assert_eq!(Header::parse(&claims.emit()), Ok(claims));
    }
    assert_eq!(header(Kind::Write { len: 513, sum: 0 }).record_len(), 3 * SECTOR);
    assert_eq!(header(Kind::Pad).record_len(), SECTOR);
}

#[test]
fn every_flipped_bit_of_a_record_is_seen() {
    let whole = header(Kind::Write { len: 4096, sum: 1 }).emit();
    for bit in 0..8 * 88 {
        let mut damaged = whole;
        damaged[bit / 8] ^= 1 << (bit % 8);
        assert!(Header::parse(&damaged).is_err(), "bit {bit}");
    }
}

/// Changes bytes under a sum that fits.
fn forged(kind: Kind, at: usize, with: &[u8]) -> [u8; SECTOR] {
    let mut bytes = header(kind).emit();
    bytes[at..at + with.len()].copy_from_slice(with);
    let sum = crc32c::crc32c(&bytes[..84]).to_le_bytes();
    bytes[84..88].copy_from_slice(&sum);
    bytes
}

#[test]
fn fields_that_make_no_sense_are_refused() {
    let write = Kind::Write { len: 4096, sum: 1 };
    let too_long = (MAX_PAYLOAD as u64 + 1).to_le_bytes();
    assert_eq!(Header::parse(&forged(write, 4, &[1])), Err(Malformed::Version(1)));
    for (at, with) in [(6, &[9][..]), (7, &[1]), (40, &[64]), (42, &[1]), (44, &[1]), (56, &too_long)] {
        assert!(
            matches!(Header::parse(&forged(write, at, with)), Err(Malformed::Field(_))),
            "{with:?} at {at}"
        );
    }
    let zeroes = Kind::Zeroes { len: 2, keep_space: false };
    assert_eq!(Header::parse(&forged(zeroes, 48, &[0xff; 8])), Err(Malformed::Field("its member or range")));
    assert_eq!(Header::parse(&forged(zeroes, 56, &[0; 8])), Err(Malformed::Field("its length")));
}

#[test]
fn messages_are_read_as_they_were_written_and_not_when_cut_or_damaged() {
    for request in requests() {
        let bytes = request.emit();
        assert_eq!(Request::parse(&bytes).as_ref(), Ok(&request));
        (0..bytes.len()).for_each(|len| assert!(Request::parse(&bytes[..len]).is_err()));
        for bit in 0..8 * bytes.len() {
            let mut damaged = bytes.clone();
            damaged[bit / 8] ^= 1 << (bit % 8);
            assert!(Request::parse(&damaged).is_err());
        }
        assert_eq!(Response::parse(&bytes), Err(Malformed::Magic));
    }
    for response in responses() {
        let bytes = response.emit();
        assert_eq!(Response::parse(&bytes).as_ref(), Ok(&response));
        (0..bytes.len()).for_each(|len| assert!(Response::parse(&bytes[..len]).is_err()));
    }
}

#[test]
fn numbers_from_which_counting_on_would_overflow_are_refused() {
    let write = Kind::Write { len: 4096, sum: 1 };
    for sequence in [0, MAX_SEQUENCE + 1, u64::MAX] {
        let forged = forged(write, 32, &sequence.to_le_bytes());
        assert!(matches!(Header::parse(&forged), Err(Malformed::Field(_))), "{sequence}");
    }
    assert!(Header::parse(&forged(write, 32, &MAX_SEQUENCE.to_le_bytes())).is_ok());
    let (most, more) = (Era { epoch: MAX_EPOCH, tag: 1, after: MAX_SEQUENCE }, MAX_SEQUENCE + 1);
    let check = |after| Request::Checksums { session: 7, member: 0, offset: 0, len: 1, piece: 1, after };
    assert!(Request::parse(&Request::TakeOver { session: 7, era: most }.emit()).is_ok());
    for request in [
        Request::Begin { session: 7, base: more, sync: Sync::Initial },
        Request::Finish { session: 7, at: u64::MAX },
        check(more),
        Request::TakeOver { session: 7, era: Era { epoch: MAX_EPOCH + 1, ..most } },
        Request::TakeOver { session: 7, era: Era { after: more, ..most } },
    ] {
        assert!(matches!(Request::parse(&request.emit()), Err(Malformed::Field(_))), "{request:?}");
    }
}

#[test]
fn a_volume_without_bytes_is_none() {
    let Request::Hello(hello) = requests().swap_remove(0) else { panic!("a hello") };
    let empty = Request::Hello(Hello { sizes: vec![4096, 0], ..hello }).emit();
    assert_eq!(Request::parse(&empty), Err(Malformed::Field("the size of a volume")));
}

#[test]
fn a_history_that_runs_backwards_is_none() {
    let Request::Hello(mut hello) = requests().swap_remove(0) else { panic!("a hello") };
    hello.eras.reverse();
    let backwards = Request::Hello(hello.clone()).emit();
    assert_eq!(Request::parse(&backwards), Err(Malformed::Field("the history")));
    hello.eras.clear();
    assert_eq!(Request::parse(&Request::Hello(hello).emit()), Err(Malformed::Field("the history")));
}
