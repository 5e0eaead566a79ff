use proptest::prelude::*;

use super::*;

const TAGGED: Tagged = Tagged { last: true, control: 0x40, stag: 0x1122_3344, to: 0x0102_0304_0506_0708 };
const UNTAGGED: Untagged =
    Untagged { last: false, control: 0x44, invalidate: 0xa1a2_a3a4, qn: 1, msn: 2, mo: 0x0001_0000 };

#[test]
fn a_tagged_header_on_the_wire() {
    let bytes = [0xc1, 0x40, 0x11, 0x22, 0x33, 0x44, 1, 2, 3, 4, 5, 6, 7, 8];
    assert_eq!(TAGGED.emit(), bytes);
    assert_eq!(Header::parse(&bytes), Ok(Header::Tagged(TAGGED)));
    assert_eq!(Header::len_of(bytes[0]), TAGGED_LEN);
}

#[test]
fn an_untagged_header_on_the_wire() {
    let bytes = [0x01, 0x44, 0xa1, 0xa2, 0xa3, 0xa4, 0, 0, 0, 1, 0, 0, 0, 2, 0, 1, 0, 0];
    assert_eq!(UNTAGGED.emit(), bytes);
    assert_eq!(Header::parse(&bytes), Ok(Header::Untagged(UNTAGGED)));
    assert_eq!(Header::len_of(bytes[0]), UNTAGGED_LEN);
}

#[test]
fn every_prefix_is_refused() {
    for bytes in [&TAGGED.emit()[..], &UNTAGGED.emit()] {
        for len in 0..bytes.len() {
            assert_eq!(Header::parse(&bytes[..len]), Err(Malformed::Truncated), "{len} bytes");
        }
    }
}

#[test]
fn other_versions_are_refused_by_kind() {
    for version in [0, 2, 3] {
        let mut bytes = TAGGED.emit();
        bytes[0] = bytes[0] & !3 | version;
        assert_eq!(Header::parse(&bytes), Err(Malformed::Version { tagged: true }));
        let mut bytes = UNTAGGED.emit();
        bytes[0] = bytes[0] & !3 | version;
        assert_eq!(Header::parse(&bytes), Err(Malformed::Version { tagged: false }));
    }
}

#[test]
fn reserved_bits_are_not_looked_at() {
    let mut bytes = TAGGED.emit();
    bytes[0] |= 0x3c;
    assert_eq!(Header::parse(&bytes), Ok(Header::Tagged(TAGGED)));
}

proptest! {
    #[test]
    fn tagged_round_trip(last: bool, control: u8, stag: u32, to: u64) {
        let header = Header::Tagged(Tagged { last, control, stag, to });
        let mut bytes = Vec::new();
        header.emit(&mut bytes);
        prop_assert_eq!(bytes.len(), header.len());
        prop_assert_eq!(Header::parse(&bytes), Ok(header));
    }

    #[test]
    fn untagged_round_trip(last: bool, control: u8, invalidate: u32, qn: u32, msn: u32, mo: u32) {
        let header = Header::Untagged(Untagged { last, control, invalidate, qn, msn, mo });
        let mut bytes = Vec::new();
        header.emit(&mut bytes);
        prop_assert_eq!(bytes.len(), header.len());
        prop_assert_eq!(Header::parse(&bytes), Ok(header));
    }

    #[test]
    fn no_bytes_panic(bytes in proptest::collection::vec(any::<u8>(), 0..32)) {
        if let Ok(header) = Header::parse(&bytes) {
            prop_assert!(header.len() <= bytes.len());
        }
    }
}
