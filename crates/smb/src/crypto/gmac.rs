//! AES-128-GMAC over a message in parts, without gathering them.
//!
//! Spec: RFC 4543 3 (GMAC = AES-GCM of no plaintext), NIST SP800-38D 6.4 (GHASH).
//! Owns: the key schedule, H and its powers. Does not: choose nonces.
//!
//! The libraries take additional data in one piece only, and copying a 1 MiB WRITE to put its 64-byte header with a
//! zeroed signature before it would cost more than the MAC. GHASH is a polynomial in H, so the tag of A‖B follows
//! from the tags of A and B when A is whole blocks:
//!
//! ```text
//! tag(X) = E ^ (P(X) ^ L(X))·H     E = E_K(nonce‖1) = tag(""), L(X) = bit lengths, P(X) = Horner sum of the blocks
//! P(A‖B) = P(A)·H^n ^ P(B)         n = blocks of B
//! ```
//!
//! Three calls of the library and a few multiplications replace the copy; below [`GATHER_BELOW`] bytes copying wins.

use aws_lc_rs::aead::{AES_128_GCM, Aad, LessSafeKey, Nonce, UnboundKey};
use aws_lc_rs::cipher::{AES_128, EncryptingKey, UnboundCipherKey};
use zeroize::Zeroize;

/// Messages up to this long are gathered on the stack.
const GATHER_BELOW: usize = 4096;
/// Powers H^(2^i) for tails of up to 2^POWERS blocks: 16 MiB and more than the largest message.
const POWERS: usize = 21;

/// A GMAC key.
pub(super) struct Gmac {
    key: LessSafeKey,
    /// H^(2^i), as field elements with the first bit of the block in the most significant place.
    powers: [u128; POWERS],
}

impl Drop for Gmac {
    fn drop(&mut self) {
        self.powers.zeroize();
    }
}

impl Gmac {
    pub fn new(key: &[u8; 16]) -> Gmac {
        let aes =
            UnboundCipherKey::new(&AES_128, key).and_then(EncryptingKey::ecb).expect("16 bytes are a key");
        let mut h = [0; 16];
        aes.encrypt(&mut h).expect("one block");
        let mut powers = [u128::from_be_bytes(h); POWERS];
        h.zeroize();
        for i in 1..POWERS {
            powers[i] = multiply(powers[i - 1], powers[i - 1]);
        }
        let key = UnboundKey::new(&AES_128_GCM, key).expect("16 bytes are an AES-128 key");
        Gmac { key: LessSafeKey::new(key), powers }
    }

    /// The tag of the concatenated parts.
    pub fn tag(&self, nonce: [u8; 12], parts: &[&[u8]]) -> [u8; 16] {
        let total: usize = parts.iter().map(|p| p.len()).sum();
        if total <= GATHER_BELOW {
            let mut gathered = [0; GATHER_BELOW];
            let mut at = 0;
            for part in parts {
                gathered[at..at + part.len()].copy_from_slice(part);
                at += part.len();
            }
            return self.whole(nonce, &gathered[..total]).to_be_bytes();
        }
        let boundaries = &parts[..parts.len() - 1];
        let tail_blocks = total.div_ceil(16);
        if boundaries.iter().any(|p| !p.len().is_multiple_of(16)) || tail_blocks >> POWERS != 0 {
            let mut gathered = Vec::with_capacity(total);
            parts.iter().for_each(|part| gathered.extend_from_slice(part));
            return self.whole(nonce, &gathered).to_be_bytes();
        }
        if let [only] = parts {
            return self.whole(nonce, only).to_be_bytes();
        }
        let h = self.powers[0];
        let e = self.whole(nonce, &[]);
        // (P ^ length)·H of what was taken in so far, with the length taken out again: P·H.
        let mut ph = 0;
        for part in parts {
            let piece = self.whole(nonce, part) ^ e ^ multiply(length(part.len()), h);
            ph = multiply(ph, self.power(part.len().div_ceil(16))) ^ piece;
        }
        (ph ^ multiply(length(total), h) ^ e).to_be_bytes()
    }

    fn whole(&self, nonce: [u8; 12], data: &[u8]) -> u128 {
        let nonce = Nonce::assume_unique_for_key(nonce);
        let tag = self.key.seal_in_place_separate_tag(nonce, Aad::from(data), &mut []);
        let tag = tag.expect("GMAC of memory does not fail");
        u128::from_be_bytes(tag.as_ref().try_into().expect("a tag has 16 bytes"))
    }

    /// H^n. The number of blocks is public, so branching on it leaks nothing.
    fn power(&self, n: usize) -> u128 {
        let mut product = None;
        for (i, power) in self.powers.iter().enumerate().filter(|(i, _)| n >> i & 1 == 1) {
            debug_assert!(i < POWERS);
            product = Some(product.map_or(*power, |p| multiply(p, *power)));
        }
        // n = 0: the field's one, x^0, is the first bit.
        product.unwrap_or(1 << 127)
    }
}

/// GHASH's length block for additional data alone.
fn length(bytes: usize) -> u128 {
    (bytes as u128 * 8) << 64
}

/// Multiplication in GF(2^128) as GCM numbers its bits (SP800-38D 6.3), in constant time.
fn multiply(x: u128, y: u128) -> u128 {
    const R: u128 = 0xe1 << 120;
    let (mut z, mut v) = (0u128, y);
    for i in (0..128).rev() {
        z ^= v & (x >> i & 1).wrapping_neg();
        v = (v >> 1) ^ (R & (v & 1).wrapping_neg());
    }
    z
}
