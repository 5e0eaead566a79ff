//! Bytes of [MS-SMBD] section 4, and generic malformation.

use proptest::prelude::*;

use super::*;

fn hex(text: &str) -> Vec<u8> {
    let digits: Vec<u8> = text.bytes().filter(u8::is_ascii_hexdigit).collect();
    digits.chunks(2).map(|d| u8::from_str_radix(std::str::from_utf8(d).unwrap(), 16).unwrap()).collect()
}

/// [MS-SMBD] 4.1, first message.
const REQUEST: &str = "0001 0001 0000 0a00 00040000 00040000 00000200";
/// [MS-SMBD] 4.1, second message.
const RESPONSE: &str = "0001 0001 0001 0000 0a00 0a00 00000000 00001000 00040000 00040000 00000200";
/// [MS-SMBD] 4.2, shortened to eight bytes of data.
const DATA: &str = "0a00 0100 0000 0000 00000000 18000000 08000000 00000000 fe534d42 40000100";

fn request() -> NegotiateRequest {
    NegotiateRequest {
        min_version: VERSION,
        max_version: VERSION,
        credits_requested: 10,
        preferred_send_size: 1024,
        max_receive_size: 1024,
        max_fragmented_size: 128 << 10,
    }
}

fn response() -> NegotiateResponse {
    NegotiateResponse {
        min_version: VERSION,
        max_version: VERSION,
        negotiated_version: VERSION,
        credits_requested: 10,
        credits_granted: 10,
        status: 0,
        max_read_write_size: 1 << 20,
        preferred_send_size: 1024,
        max_receive_size: 1024,
        max_fragmented_size: 128 << 10,
    }
}

#[test]
fn the_negotiate_request_of_the_specifications_example() {
    let mut bytes = Vec::new();
    request().emit(&mut bytes);
    assert_eq!(bytes, hex(REQUEST));
    assert_eq!(NegotiateRequest::parse(&bytes), Ok(request()));
    assert_eq!(bytes.len(), NegotiateRequest::LEN);
    assert_eq!(NegotiateRequest::LEN, 20);
}

#[test]
fn the_negotiate_response_of_the_specifications_example() {
    let mut bytes = Vec::new();
    response().emit(&mut bytes);
    assert_eq!(bytes, hex(RESPONSE));
    assert_eq!(NegotiateResponse::parse(&bytes), Ok(response()));
    assert_eq!(bytes.len(), NegotiateResponse::LEN);
    assert_eq!(NegotiateResponse::LEN, 32);
}

#[test]
fn a_refusal_is_zero_but_for_versions_and_status() {
    let mut bytes = Vec::new();
    NegotiateResponse::refusal(0xc000_00bb).emit(&mut bytes);
    assert_eq!(bytes, hex("0001 0001 0000 0000 0000 0000 bb0000c0 00000000 00000000 00000000 00000000"));
}

#[test]
fn a_data_transfer_of_the_specifications_example() {
    let bytes = hex(DATA);
    let parsed = DataTransfer::parse(&bytes).unwrap();
    assert_eq!(parsed.data, 24..32);
    assert_eq!((parsed.credits_requested, parsed.credits_granted), (10, 1));
    assert_eq!((parsed.flags, parsed.remaining_data_length), (0, 0));
    assert_eq!(DataTransfer::header(10, 1, 0, 0, 8), bytes[..24]);
}

#[test]
fn a_data_transfer_without_data_is_twenty_bytes() {
    let header = DataTransfer::header(255, 3, RESPONSE_REQUESTED, 0, 0);
    let bytes = &header[..DataTransfer::LEN];
    assert_eq!(bytes, hex("ff00 0300 0100 0000 00000000 00000000 00000000"));
    let parsed = DataTransfer::parse(bytes).unwrap();
    assert!(parsed.data.is_empty());
    assert_eq!(parsed.flags, RESPONSE_REQUESTED);
}

#[test]
fn data_must_be_aligned_behind_the_header_and_inside_the_message() {
    let at = |offset: u32, len: u32| {
        let mut bytes = hex(DATA);
        bytes[12..16].copy_from_slice(&offset.to_le_bytes());
        bytes[16..20].copy_from_slice(&len.to_le_bytes());
        DataTransfer::parse(&bytes).map(|m| m.data)
    };
    assert_eq!(at(24, 8), Ok(24..32));
    assert_eq!(at(32, 0), Ok(0..0));
    assert_eq!(at(20, 8), Err(Malformed::Unaligned));
    assert_eq!(at(25, 1), Err(Malformed::Unaligned));
    assert_eq!(at(24, 9), Err(Malformed::OutOfBounds));
    assert_eq!(at(40, 0), Err(Malformed::OutOfBounds));
    assert_eq!(at(24, u32::MAX), Err(Malformed::OutOfBounds));
    assert_eq!(at(0xffff_fff8, 0xffff_fff8), Err(Malformed::OutOfBounds));
    assert_eq!(at(0, 8), Err(Malformed::OffsetInHeader));
    assert_eq!(at(16, 8), Err(Malformed::OffsetInHeader));
}

#[test]
fn truncation_at_every_length_is_an_error() {
    for n in 0..NegotiateRequest::LEN {
        assert_eq!(NegotiateRequest::parse(&hex(REQUEST)[..n]), Err(Malformed::Truncated));
    }
    for n in 0..NegotiateResponse::LEN {
        assert_eq!(NegotiateResponse::parse(&hex(RESPONSE)[..n]), Err(Malformed::Truncated));
    }
    for n in 0..hex(DATA).len() {
        assert!(DataTransfer::parse(&hex(DATA)[..n]).is_err(), "{n} bytes");
    }
    for n in 0..BufferDescriptorV1::LEN {
        assert_eq!(BufferDescriptorV1::parse(&[0; 16][..n]), Err(Malformed::Truncated));
    }
    for n in 0..ReadDepths::LEN {
        assert_eq!(ReadDepths::parse(&[0, 0, 0, 1, 0, 0, 0, 1][..n]), Err(Malformed::Truncated));
    }
}

#[test]
fn buffer_descriptors_come_in_arrays() {
    // [MS-SMBD] 4.4.
    let one = BufferDescriptorV1 { offset: 0xabcd_e012, token: 0x1a00_bc56, length: 1 << 20 };
    let two = BufferDescriptorV1 { offset: u64::MAX, token: 1, length: 0 };
    let mut bytes = Vec::new();
    one.emit(&mut bytes);
    assert_eq!(bytes, hex("12e0cdab00000000 56bc001a 00001000"));
    two.emit(&mut bytes);
    assert_eq!(BufferDescriptorV1::parse_array(&bytes), Ok(vec![one, two]));
    assert_eq!(BufferDescriptorV1::parse_array(&bytes[..31]), Err(Malformed::Truncated));
    assert_eq!(BufferDescriptorV1::parse_array(&[]), Ok(vec![]));
}

#[test]
fn read_depths_are_understood_in_both_byte_orders() {
    // What recent Linux sends (network order), and what older cifs.ko sends (host order).
    let new_linux = ReadDepths::parse(&hex("00000020 00000001")).unwrap();
    assert_eq!(new_linux, ReadDepths { ird: 32, ord: 1, order: ByteOrder::Big });
    let old_linux = ReadDepths::parse(&hex("20000000 01000000")).unwrap();
    assert_eq!(old_linux, ReadDepths { ird: 32, ord: 1, order: ByteOrder::Little });
    for depths in [new_linux, old_linux] {
        assert_eq!(ReadDepths::parse(&depths.emit()), Ok(depths));
    }
}

#[test]
fn read_depths_of_zero_are_refused() {
    // [MS-SMBD] 6.1: both have to be greater than zero.
    for bytes in ["00000000 00000001", "00000001 00000000", "ffffffff ffffffff", "01000001 01000001"] {
        assert_eq!(ReadDepths::parse(&hex(bytes)), Err(Malformed::NoDepth), "{bytes}");
    }
}

proptest! {
    #[test]
    fn arbitrary_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..64)) {
        let _ = NegotiateRequest::parse(&bytes);
        let _ = NegotiateResponse::parse(&bytes);
        let _ = BufferDescriptorV1::parse_array(&bytes);
        let _ = ReadDepths::parse(&bytes);
        if let Ok(transfer) = DataTransfer::parse(&bytes) {
            prop_assert!(bytes.get(transfer.data.clone()).is_some());
            prop_assert!(transfer.data.is_empty() || transfer.data.start >= DataTransfer::LEN);
        }
    }

    #[test]
    fn flipped_bits_give_data_inside_the_message_or_an_error(
        bit in 0usize..32 * 8,
        other in 0usize..32 * 8,
    ) {
        let mut bytes = hex(DATA);
        bytes[bit / 8] ^= 1 << (bit % 8);
        bytes[other / 8] ^= 1 << (other % 8);
        if let Ok(transfer) = DataTransfer::parse(&bytes) {
            prop_assert!(bytes.get(transfer.data).is_some());
        }
    }

    #[test]
    fn what_is_emitted_is_parsed(
        credits in any::<(u16, u16)>(),
        flags in any::<u16>(),
        remaining in any::<u32>(),
        len in 0usize..64,
    ) {
        let header = DataTransfer::header(credits.0, credits.1, flags, remaining, len as u32);
        let mut bytes = header[..if len == 0 { DataTransfer::LEN } else { DataTransfer::DATA_OFFSET }].to_vec();
        bytes.resize(bytes.len() + len, 0xa5);
        let parsed = DataTransfer::parse(&bytes).unwrap();
        prop_assert_eq!((parsed.credits_requested, parsed.credits_granted), credits);
        prop_assert_eq!((parsed.flags, parsed.remaining_data_length), (flags, remaining));
        prop_assert_eq!(parsed.data.len(), len);
    }
}
