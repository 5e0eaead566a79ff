//! Round trips of packets and calls, truncation at every length, and random damage.

use bytes::Bytes;

use super::ndr::{Handle, Reader, Writer};
use super::pdu::*;
use super::*;
use crate::smb2::fscc::security::Sid;

fn bind() -> Bind {
    Bind {
        max_xmit: 4280,
        max_recv: 4280,
        group: 0,
        contexts: vec![
            Context { id: 0, interface: srvsvc::INTERFACE, transfers: vec![Syntax::NDR] },
            Context { id: 1, interface: srvsvc::INTERFACE, transfers: vec![Syntax::NDR64, Syntax::NDR] },
        ],
    }
}

/// A captured BIND of `smbclient -L`.
#[test]
fn a_bind_of_samba_is_read() {
    let bytes: Vec<u8> = [
        "05 00 0b 03 10000000 4800 0000 01000000", // header: bind, whole, 72 bytes, call 1
        "b810 b810 00000000 01000000",             // fragments of 4280 bytes, a new group, one context
        "0000 0100 c84f324b7016d30112785a47bf6ee188 03000000",
        "045d888aeb1cc9119fe808002b104860 02000000",
    ]
    .concat()
    .split_whitespace()
    .collect::<String>()
    .as_bytes()
    .chunks(2)
    .map(|pair| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap())
    .collect();
    let read = Bind::parse(&bytes).unwrap();
    assert_eq!((read.max_xmit, read.group, read.contexts.len()), (4280, 0, 1));
    assert_eq!(read.contexts[0].interface, srvsvc::INTERFACE);
    assert_eq!(read.contexts[0].transfers, [Syntax::NDR]);
    let mut again = Vec::new();
    read.emit(PacketType::BIND, 1, &mut again);
    assert_eq!(again, bytes);
}

#[test]
fn packets_come_back_as_they_went() {
    let mut out = Vec::new();
    bind().emit(PacketType::BIND, 7, &mut out);
    assert_eq!(Bind::parse(&out).unwrap(), bind());
    for address in ["\\PIPE\\srvsvc", "", "x", "xy", "xyz"] {
        let ack = BindAck {
            max_xmit: 4280,
            max_recv: 4280,
            group: 5,
            address: address.into(),
            verdicts: vec![
                Verdict::Accepted(Syntax::NDR),
                Verdict::NoInterface,
                Verdict::NoTransfer,
                Verdict::Features(0),
            ],
        };
        let mut out = Vec::new();
        ack.emit(PacketType::BIND_ACK, 7, &mut out);
        assert_eq!(BindAck::parse(&out).unwrap(), ack);
    }
    let request = Request { context: 1, opnum: 15, stub: Bytes::from_static(b"stub") };
    let mut out = Vec::new();
    request.emit(Flags::WHOLE, 9, &mut out);
    assert_eq!(Request::parse(&out.into()).unwrap(), request);
    let mut out = Vec::new();
    emit_fault(0, 1, FaultStatus::OPERATION_OUT_OF_RANGE, &mut out);
    assert_eq!(parse_fault(&out).unwrap(), FaultStatus::OPERATION_OUT_OF_RANGE);
}

#[test]
fn a_long_answer_goes_in_fragments_that_fit() {
    let stub: Vec<u8> = (0..10_000u32).map(|i| i as u8).collect();
    let packets = response(3, 8, &stub, 4280);
    assert_eq!(packets.len(), 3);
    let mut back = Vec::new();
    for (i, packet) in packets.iter().enumerate() {
        let header = Header::parse(packet).unwrap();
        assert_eq!(usize::from(header.frag_len), packet.len());
        assert!(packet.len() <= 4280);
        assert_eq!(header.flags.contains(Flags::FIRST), i == 0);
        assert_eq!(header.flags.contains(Flags::LAST), i == 2);
        let part = Response::parse(packet).unwrap();
        assert!(i == 2 || part.stub.len().is_multiple_of(8));
        back.extend_from_slice(&part.stub);
    }
    assert_eq!(back, stub);
    // An answer without a stub is also one packet.
    assert_eq!(response(0, 1, &[], 4280).len(), 1);
}

#[test]
fn nothing_reads_beyond_a_truncated_packet() {
    let mut whole = Vec::new();
    bind().emit(PacketType::BIND, 7, &mut whole);
    for len in 0..whole.len() {
        assert!(Bind::parse(&whole[..len]).is_err(), "{len}");
        let mut shorter = whole[..len].to_vec();
        if len >= 12 {
            shorter[8..10].copy_from_slice(&(len as u16).to_le_bytes());
            assert!(Bind::parse(&shorter).is_err(), "{len} said to be whole");
        }
    }
}

/// A name, a stub, and a function that parses it.
type Sample = (&'static str, Vec<u8>, fn(&[u8]) -> bool);

fn calls() -> Vec<Sample> {
    let handle = Handle([7; 20]);
    let name = "somebody";
    let mut names = Writer::new();
    names.handle(handle);
    names.u32(1);
    names.u32(1);
    names.counted_string(name);
    let mut sids = Writer::new();
    sids.handle(handle);
    sids.u32(1);
    sids.parameter(|w| {
        w.u32(1);
        w.pointer(|w| w.sid(&Sid::unix_user(5)));
    });
    let mut samr_names = Writer::new();
    samr_names.handle(handle);
    for value in [1, 1000, 0, 1] {
        samr_names.u32(value);
    }
    samr_names.counted_string(name);
    let mut share = Writer::new();
    share.parameter(|w| w.wide_string("\\\\server"));
    share.wide_string("data");
    share.u32(1);
    let mut sessions = Writer::new();
    for text in ["\\\\server", "client", "user"] {
        sessions.parameter(|w| w.wide_string(text));
    }
    for value in [10, 10, 0, 99] {
        sessions.u32(value);
    }
    sessions.parameter(|w| w.u32(4));
    vec![
        ("shares", srvsvc::client::share_enum("\\\\server", 3), |s| srvsvc::Enum::parse_shares(s).is_ok()),
        ("sessions", sessions.finish(), |s| srvsvc::Enum::parse_sessions(s).is_ok()),
        ("share", share.finish(), |s| srvsvc::parse_share_get_info(s).is_ok()),
        ("names", names.finish(), |s| lsarpc::parse_lookup_names(s).is_ok()),
        ("sids", sids.finish(), |s| lsarpc::parse_lookup_sids(s).is_ok()),
        ("samr names", samr_names.finish(), |s| samr::parse_lookup_names(s).is_ok()),
    ]
}

#[test]
fn calls_are_read_whole_or_not_at_all() {
    for (what, stub, reads) in calls() {
        assert!(reads(&stub), "{what}");
        for len in 0..stub.len() {
            assert!(!reads(&stub[..len]), "{what} cut to {len}");
        }
        // Damage causes an error or a different value, but never a panic or a large allocation.
        let mut seed = 1u32;
        for _ in 0..2000 {
            let mut damaged = stub.clone();
            for _ in 0..3 {
                seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                let at = (seed >> 8) as usize % damaged.len();
                damaged[at] = seed as u8;
            }
            reads(&damaged);
        }
    }
}

#[test]
fn counts_that_the_bytes_do_not_bear_out_are_refused() {
    let mut w = Writer::new();
    w.handle(Handle::default());
    w.u32(u32::MAX);
    w.u32(u32::MAX);
    assert!(lsarpc::parse_lookup_names(&w.finish()).is_err());
    let mut w = Writer::new();
    w.u32(u32::MAX);
    w.u32(0);
    w.u32(0x7fff_ffff);
    assert!(Reader::new(&w.finish()).wide_string().is_err());
}

#[test]
fn what_a_share_list_says_is_what_a_client_reads() {
    let share = |name: &str, kind| srvsvc::ShareInfo {
        name: name.into(),
        kind,
        remark: "Grüße".into(),
        path: "C:\\x".into(),
        current_uses: 1,
    };
    let shares = [share("data", srvsvc::TYPE_DISK), share("IPC$", srvsvc::TYPE_IPC)];
    let stub = srvsvc::emit_shares(1, &shares, 2, Some(2), 0);
    let (listed, resume, status) = srvsvc::client::parse_shares(&stub).unwrap();
    assert_eq!((resume, status), (2, 0));
    let wanted: Vec<_> = shares.iter().map(|s| (s.name.clone(), s.kind, s.remark.clone())).collect();
    assert_eq!(listed, wanted);
    for len in 0..stub.len() {
        assert!(srvsvc::client::parse_shares(&stub[..len]).is_err(), "{len}");
    }
}

#[test]
fn the_calendar() {
    let at = |secs: i64| {
        let stub = srvsvc::emit_time_of_day(secs, 0, 0);
        let word = |i: usize| u32::from_le_bytes(stub[4 + i * 4..8 + i * 4].try_into().unwrap());
        (word(10), word(9), word(8), word(2), word(11))
    };
    // Year, month, day, hour, day of the week.
    assert_eq!(at(0), (1970, 1, 1, 0, 4));
    assert_eq!(at(951_782_400), (2000, 2, 29, 0, 2));
    assert_eq!(at(1_795_305_600 + 7200), (2026, 11, 22, 2, 0));
}
