use proptest::prelude::*;

use super::*;

const READ: ReadRequest = ReadRequest {
    sink_stag: 0x1111_1111,
    sink_to: 0x2222_2222_3333_3333,
    size: 0x4444,
    source_stag: 0x5555_5555,
    source_to: 0x6666_6666_7777_7777,
};

const HEADER: ddp::Header =
    ddp::Header::Untagged(ddp::Untagged { last: true, control: 0x41, invalidate: 0, qn: 1, msn: 9, mo: 0 });

fn refusal() -> Terminate {
    Terminate { layer: 0, etype: 1, code: 2, segment_len: Some(46), header: Some(HEADER), read: Some(READ) }
}

fn bytes_of(terminate: &Terminate) -> Vec<u8> {
    let mut out = Vec::new();
    terminate.emit(&mut out);
    out
}

#[test]
fn a_read_request_on_the_wire() {
    let mut bytes = vec![0x11; 4];
    bytes.extend([0x22; 4]);
    bytes.extend([0x33; 4]);
    bytes.extend([0, 0, 0x44, 0x44]);
    bytes.extend([0x55; 4]);
    bytes.extend([0x66; 4]);
    bytes.extend([0x77; 4]);
    assert_eq!(READ.emit()[..], bytes);
    assert_eq!(ReadRequest::parse(&bytes), Ok(READ));
    for len in 0..bytes.len() {
        assert_eq!(ReadRequest::parse(&bytes[..len]), Err(Malformed::Truncated));
    }
}

#[test]
fn a_terminate_on_the_wire() {
    let bytes = bytes_of(&refusal());
    assert_eq!(bytes[..6], [0x01, 0x02, 0xe0, 0x00, 0x00, 0x2e]);
    assert_eq!(bytes[6..8], [0x41, 0x41]);
    assert_eq!(bytes.len(), MAX_TERMINATE_LEN);
    assert_eq!(Terminate::parse(&bytes), Ok(refusal()));
    for len in 0..bytes.len() {
        let short = Terminate::parse(&bytes[..len]).unwrap_err();
        assert!(matches!(short, Malformed::Truncated | Malformed::Refused(ddp::Malformed::Truncated)));
    }
    let bare = Terminate { layer: 2, etype: 0, code: 2, segment_len: None, header: None, read: None };
    assert_eq!(bytes_of(&bare), [0x20, 0x02, 0x00, 0x00]);
    assert_eq!(Terminate::parse(&[0x20, 0x02, 0x00, 0x00]), Ok(bare));
}

#[test]
fn opcodes_and_versions() {
    for opcode in [
        Opcode::Write,
        Opcode::ReadRequest,
        Opcode::ReadResponse,
        Opcode::Send,
        Opcode::SendInvalidate,
        Opcode::SendSolicited,
        Opcode::SendSolicitedInvalidate,
        Opcode::Terminate,
    ] {
        assert_eq!(Opcode::parse(opcode.control()), Ok(opcode));
        // Reserved bits are ignored.
        assert_eq!(Opcode::parse(opcode.control() | 0x30), Ok(opcode));
    }
    assert_eq!(Opcode::Send.control(), 0x43);
    for reserved in 8..16 {
        assert_eq!(Opcode::parse(0x40 | reserved), Err(Malformed::Opcode(reserved)));
    }
    for version in [0x00, 0x80, 0xc0] {
        assert_eq!(Opcode::parse(version | 3), Err(Malformed::Version));
    }
    for (invalidate, solicited) in [(false, false), (false, true), (true, false), (true, true)] {
        let opcode = Opcode::send(invalidate, solicited);
        assert_eq!((opcode.invalidates(), opcode.solicited()), (invalidate, solicited));
    }
}

proptest! {
    #[test]
    fn no_terminate_panics(bytes in proptest::collection::vec(any::<u8>(), 0..64)) {
        if let Ok(terminate) = Terminate::parse(&bytes) {
            prop_assert!(terminate.layer < 16 && terminate.etype < 16);
        }
    }

    #[test]
    fn no_mutation_of_a_terminate_panics(at in 0usize..MAX_TERMINATE_LEN, value: u8) {
        let mut bytes = bytes_of(&refusal());
        bytes[at] = value;
        let _ = Terminate::parse(&bytes);
    }
}
