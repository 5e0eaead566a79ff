use super::*;

fn decoder(bytes: &[u8]) -> Decoder {
    Decoder::new(Bytes::copy_from_slice(bytes))
}

#[test]
fn an_opaque_is_a_slice_of_the_stream_and_its_fill_is_skipped() {
    let mut d = decoder(&[0, 0, 0, 5, b'h', b'e', b'l', b'l', b'o', 9, 9, 9, 0, 0, 0, 7]);
    assert_eq!(&d.opaque(5).unwrap()[..], b"hello");
    assert_eq!(d.position(), 12);
    assert_eq!(d.u32(), Ok(7));
    assert_eq!(d.end(), Ok(()));
}

#[test]
fn an_opaque_without_its_fill_is_malformed() {
    for len in 4..8 {
        assert!(decoder(&[0, 0, 0, 1, b'x', 0, 0, 0][..len]).opaque(9).is_err());
    }
}

#[test]
fn lengths_above_the_limit_or_the_stream_are_malformed_whatever_they_are() {
    for len in [6_u32, 7, 1 << 16, i32::MAX as u32, u32::MAX - 3, u32::MAX] {
        let mut bytes = len.to_be_bytes().to_vec();
        bytes.extend_from_slice(&[0; 8]);
        assert!(decoder(&bytes).opaque(5).is_err(), "{len}");
        if len > 8 {
            assert!(decoder(&bytes).opaque(usize::MAX).is_err(), "{len}");
        }
        assert!(decoder(&bytes).short_opaque::<5>().is_err(), "{len}");
    }
}

#[test]
fn a_bool_is_zero_or_one() {
    assert_eq!(decoder(&[0, 0, 0, 1]).bool(), Ok(true));
    assert!(decoder(&[0, 0, 0, 2]).bool().is_err());
    assert!(decoder(&[1, 0, 0, 0]).bool().is_err());
}

#[test]
fn detached_payload_stands_for_content_and_fill() {
    let stream = Bytes::from_static(&[0, 0, 0, 3, 0, 0, 0, 7]);
    for detached in [&b"abc"[..], b"abc\xee"] {
        let mut d = Decoder::reduced(stream.clone(), Some(Bytes::copy_from_slice(detached)));
        assert_eq!(&d.payload(8).unwrap()[..], b"abc");
        assert_eq!(d.u32(), Ok(7));
    }
    for wrong in [&b"ab"[..], b"abcde", b"abcdefgh"] {
        let mut d = Decoder::reduced(stream.clone(), Some(Bytes::copy_from_slice(wrong)));
        assert!(d.payload(8).is_err());
    }
}

#[test]
fn an_unused_write_chunk_leaves_the_payload_in_the_stream() {
    let stream = Bytes::from_static(&[0, 0, 0, 3, b'a', b'b', b'c', 0]);
    let mut d = Decoder::reduced(stream, Some(Bytes::new()));
    assert_eq!(&d.payload(8).unwrap()[..], b"abc");
    assert_eq!(d.end(), Ok(()));
}

#[test]
fn what_is_emitted_parses() {
    let mut e = Encoder::with_capacity(64);
    e.u32(1);
    e.u64(u64::MAX);
    e.bool(true);
    e.opaque(b"abcde");
    e.optional(Some(&4_u32), |e, v| e.u32(*v));
    e.optional(None::<&u32>, |e, v| e.u32(*v));
    e.fixed(&[1, 2, 3, 4]);
    let mut d = Decoder::new(e.into_bytes());
    assert_eq!((d.u32(), d.u64(), d.bool()), (Ok(1), Ok(u64::MAX), Ok(true)));
    assert_eq!(&d.opaque(5).unwrap()[..], b"abcde");
    assert_eq!((d.optional(Decoder::u32), d.optional(Decoder::u32)), (Ok(Some(4)), Ok(None)));
    assert_eq!(d.fixed(), Ok([1, 2, 3, 4]));
    assert_eq!(d.end(), Ok(()));
}

#[test]
fn payload_that_is_still_with_its_sender_is_a_length_until_it_comes() {
    let stream = || Bytes::from_static(&[0, 0, 0, 3, 0xff]);
    for len in [3, 4] {
        let mut d = Decoder::distant(stream(), len);
        assert!(d.is_distant());
        assert_eq!(d.total(), 5 + len);
        assert_eq!(d.data(8), Ok(Data::There(3)));
        assert_eq!((d.remaining(), d.is_distant()), (1, false));
    }
    for len in [1, 2, 5] {
        assert!(Decoder::distant(stream(), len).data(8).is_err());
    }
    assert!(Decoder::distant(stream(), 3).data(2).is_err());
    assert!(Decoder::distant(stream(), 3).payload(8).is_err(), "nobody takes it for bytes");
    let mut d = Decoder::distant(stream(), 3);
    d.arrived(Bytes::from_static(b"abc"));
    assert_eq!(&d.payload(8).unwrap()[..], b"abc");
}
