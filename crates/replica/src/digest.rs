//! Digests by which two sides find out whether they hold the same bytes.
//!
//! A digest is the first 16 bytes of the SHA-256 (FIPS 180-4) of a piece. It does not protect against somebody who
//! chooses the bytes of both sides.

use bytes::Bytes;
use ring::digest::{Context, SHA256};
use weft_wire::repl::control::DIGEST;

/// One digest for each `piece` bytes of the chain, the last over the remainder.
pub(crate) fn digests(chain: &[Bytes], piece: usize) -> Vec<[u8; DIGEST]> {
    let mut all = Vec::new();
    let mut context = Context::new(&SHA256);
    let mut room = piece;
    let mut end = |context: &mut Context| {
        let whole = std::mem::replace(context, Context::new(&SHA256)).finish();
        let short = whole.as_ref().first_chunk::<DIGEST>().copied();
        all.push(short.expect("SHA-256 has 32 bytes"));
    };
    for bytes in chain {
        let mut rest = &bytes[..];
        while !rest.is_empty() {
            let (part, more) = rest.split_at(rest.len().min(room));
            context.update(part);
            (rest, room) = (more, room.saturating_sub(part.len()));
            if room == 0 {
                end(&mut context);
                room = piece;
            }
        }
    }
    if room < piece {
        end(&mut context);
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digests_do_not_depend_on_how_a_chain_is_cut() {
        let bytes: Vec<u8> = (0..1000u32).map(|n| n as u8).collect();
        let whole = digests(&[Bytes::from(bytes.clone())], 300);
        assert_eq!(whole.len(), 4);
        for cut in [0, 1, 299, 300, 301, 999] {
            let (a, b) = bytes.split_at(cut);
            assert_eq!(digests(&[Bytes::copy_from_slice(a), Bytes::copy_from_slice(b)], 300), whole);
        }
        // FIPS 180-4's own example.
        let abc = digests(&[Bytes::from_static(b"abc")], 300);
        assert_eq!(abc, [*b"\xba\x78\x16\xbf\x8f\x01\xcf\xea\x41\x41\x40\xde\x5d\xae\x22\x23"]);
    }
}
