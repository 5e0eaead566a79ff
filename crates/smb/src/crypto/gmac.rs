//! AES-128-GMAC over a message in parts, without gathering them.
//!
//! Spec: RFC 4543 3 (GMAC = AES-GCM of no plaintext), NIST SP800-38D 6.4 (GHASH). Owns the key schedule, H and its
//! powers; callers choose the nonces.
//!
//! The libraries accept additional data in one piece only, and copying a 1 MiB WRITE to put its 64-byte header with a
//! zeroed signature before it would cost more than the MAC. GHASH is a polynomial in H, so the tag of A‖B follows from
//! the tags of A and B if A is whole blocks:
//!
//! ```text
//! tag(X) = E ^ (P(X) ^ L(X))·H     E = E_K(nonce‖1) = tag(""), L(X) = bit lengths, P(X) = Horner sum of the blocks
//! P(A‖B) = P(A)·H^n ^ P(B)         n = blocks of B
//! ```
//!
//! Three library calls and a few multiplications replace the copy; below [`GATHER_BELOW`] bytes copying is faster.

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
        let mut next = u128::from_be_bytes(h);
        h.zeroize();
        let powers = std::array::from_fn(|_| {
            let power = next;
            next = multiply(power, power);
            power
        });
        next.zeroize();
        let key = UnboundKey::new(&AES_128_GCM, key).expect("16 bytes are an AES-128 key");
        Gmac { key: LessSafeKey::new(key), powers }
    }

    /// The tag of the concatenated parts.
    pub fn tag(&self, nonce: [u8; 12], parts: &[&[u8]]) -> [u8; 16] {
        let total: usize = parts.iter().map(|p| p.len()).sum();
        if total <= GATHER_BELOW {
            let mut gathered = [0; GATHER_BELOW];
            let mut rest = &mut gathered[..];
            for part in parts {
                let (room, behind) = rest.split_at_mut(part.len());
                room.copy_from_slice(part);
                rest = behind;
            }
            return self
                .contiguous_tag(nonce, gathered.get(..total).expect("at most all of it"))
                .to_be_bytes();
        }
        let boundaries = parts.split_last().map_or(&[][..], |(_, before)| before);
        let tail_blocks = total.div_ceil(16);
        if boundaries.iter().any(|p| !p.len().is_multiple_of(16)) || tail_blocks >> POWERS != 0 {
            let mut gathered = Vec::with_capacity(total);
            parts.iter().for_each(|part| gathered.extend_from_slice(part));
            return self.contiguous_tag(nonce, &gathered).to_be_bytes();
        }
        if let [only] = parts {
            return self.contiguous_tag(nonce, only).to_be_bytes();
        }
        let e = self.contiguous_tag(nonce, &[]);
        // State of the parts absorbed so far: P·H, and the length blocks that have not been multiplied yet.
        let (mut ph, mut lengths) = (0, 0);
        for (i, part) in parts.iter().enumerate() {
            if i > 0 {
                // The previous parts' length block is removed before the shift.
                ph = multiply(ph ^ self.times_h(lengths), self.power(part.len().div_ceil(16)));
            }
            ph ^= self.contiguous_tag(nonce, part) ^ e;
            lengths = length(part.len());
        }
        (ph ^ self.times_h(lengths ^ length(total)) ^ e).to_be_bytes()
    }

    fn times_h(&self, x: u128) -> u128 {
        multiply(x, self.powers[0])
    }

    fn contiguous_tag(&self, nonce: [u8; 12], data: &[u8]) -> u128 {
        let nonce = Nonce::assume_unique_for_key(nonce);
        let tag = self.key.seal_in_place_separate_tag(nonce, Aad::from(data), &mut []);
        let tag = tag.expect("GMAC of memory does not fail");
        u128::from_be_bytes(tag.as_ref().try_into().expect("a tag has 16 bytes"))
    }

    /// H^n. The number of blocks is public, so branching on it leaks nothing.
    fn power(&self, n: usize) -> u128 {
        let mut product = None;
        for (i, power) in self.powers.iter().enumerate().filter(|(i, _)| n.wrapping_shr(*i as u32) & 1 == 1) {
            debug_assert!(i < POWERS);
            product = Some(product.map_or(*power, |p| multiply(p, *power)));
        }
        // n = 0: the field's one, x^0, is the first bit.
        product.unwrap_or(1 << 127)
    }
}

/// GHASH's length block for a message of additional data only.
fn length(bytes: usize) -> u128 {
    (bytes as u128) << (64 + 3)
}

/// Multiplication in GF(2^128) with GCM's bit order (SP800-38D 6.3), in constant time.
fn multiply(x: u128, y: u128) -> u128 {
    // Reversed, bit i is the coefficient of x^i.
    let (x, y) = (x.reverse_bits(), y.reverse_bits());
    let (x0, x1, y0, y1) = (x as u64, (x >> 64) as u64, y as u64, (y >> 64) as u64);
    let (low, high) = (carryless(x0, y0), carryless(x1, y1));
    let middle = carryless(x0 ^ x1, y0 ^ y1) ^ low ^ high;
    let (low, high) = (low ^ middle << 64, high ^ middle >> 64);
    // x^128 = x^7 + x^2 + x + 1, applied twice: the second time for the bits that the first pushed beyond x^127.
    let over = high >> 127 ^ high >> 126 ^ high >> 121;
    let high = high ^ over;
    (low ^ high ^ high << 1 ^ high << 2 ^ high << 7).reverse_bits()
}

/// The 127-bit product of two polynomials over GF(2).
fn carryless(x: u64, y: u64) -> u128 {
    let high = carryless_low(x.reverse_bits(), y.reverse_bits()).reverse_bits() >> 1;
    u128::from(high) << 64 | u128::from(carryless_low(x, y))
}

/// The low half of the product, by integer multiplications of numbers that use only every fourth bit, so that no carry
/// reaches a bit that counts: 16 ones meet only in the topmost position, whose carry falls off.
fn carryless_low(x: u64, y: u64) -> u64 {
    const EVERY_FOURTH: u64 = 0x1111_1111_1111_1111;
    const MASKS: [u64; 4] = [EVERY_FOURTH, EVERY_FOURTH << 1, EVERY_FOURTH << 2, EVERY_FOURTH << 3];
    let split = |n: u64| MASKS.map(|mask| n & mask);
    let ([x0, x1, x2, x3], [y0, y1, y2, y3]) = (split(x), split(y));
    let sum = |pairs: [(u64, u64); 4]| pairs.iter().fold(0, |sum, (x, y)| sum ^ x.wrapping_mul(*y));
    // The pairs whose positions add up to 0, 1, 2 and 3 modulo 4.
    sum([(x0, y0), (x1, y3), (x2, y2), (x3, y1)]) & MASKS[0]
        | sum([(x0, y1), (x1, y0), (x2, y3), (x3, y2)]) & MASKS[1]
        | sum([(x0, y2), (x1, y1), (x2, y0), (x3, y3)]) & MASKS[2]
        | sum([(x0, y3), (x1, y2), (x2, y1), (x3, y0)]) & MASKS[3]
}

#[cfg(test)]
mod tests {
    use super::*;

    /// SP800-38D 6.3 as it is written.
    fn by_the_book(x: u128, y: u128) -> u128 {
        let (mut z, mut v) = (0, y);
        for i in (0..128).rev() {
            z ^= if x >> i & 1 == 1 { v } else { 0 };
            v = v >> 1 ^ if v & 1 == 1 { 0xe1 << 120 } else { 0 };
        }
        z
    }

    #[test]
    fn multiplication_is_that_of_the_field() {
        let mut numbers = vec![0, 1, 1 << 127, u128::MAX, 0x11111111 << 64, !0 << 64, 0xe1 << 120];
        let mut n = 0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c834u128;
        for _ in 0..100 {
            n = n.wrapping_mul(0x2360_ed05_1fc6_5da4_4385_df64_9fcc_f645).rotate_left(29) ^ 0xabcdef;
            numbers.push(n);
        }
        for x in &numbers {
            for y in &numbers {
                assert_eq!(multiply(*x, *y), by_the_book(*x, *y), "{x:x} {y:x}");
            }
        }
    }
}
