//! SipHash-2-4: a short keyed hash that cannot be forged without the key.
//!
//! Spec: Aumasson and Bernstein, "SipHash: a fast short-input PRF" (2012), section 2. Owns: nothing.
//! Does not: serve as a hash table's hasher (std has one).

/// The 64-bit tag of `message` under `key`.
pub(super) fn siphash(key: &[u8; 16], message: &[u8]) -> u64 {
    let (k0, k1) = key.split_at(8);
    let (k0, k1) = (word(k0), word(k1));
    let mut v = [
        k0 ^ 0x736f_6d65_7073_6575,
        k1 ^ 0x646f_7261_6e64_6f6d,
        k0 ^ 0x6c79_6765_6e65_7261,
        k1 ^ 0x7465_6462_7974_6573,
    ];
    let mut words = message.chunks_exact(8);
    for m in words.by_ref().map(word) {
        absorb(&mut v, m);
    }
    // The last word holds what is left and the length modulo 256.
    let last = word(words.remainder()) | (message.len() as u64) << 56;
    absorb(&mut v, last);
    v[2] ^= 0xff;
    (0..4).for_each(|_| round(&mut v));
    v[0] ^ v[1] ^ v[2] ^ v[3]
}

fn word(bytes: &[u8]) -> u64 {
    bytes.iter().rev().fold(0, |word, byte| word << 8 | u64::from(*byte))
}

fn absorb(v: &mut [u64; 4], m: u64) {
    v[3] ^= m;
    round(v);
    round(v);
    v[0] ^= m;
}

fn round(v: &mut [u64; 4]) {
    v[0] = v[0].wrapping_add(v[1]);
    v[1] = v[1].rotate_left(13) ^ v[0];
    v[0] = v[0].rotate_left(32);
    v[2] = v[2].wrapping_add(v[3]);
    v[3] = v[3].rotate_left(16) ^ v[2];
    v[0] = v[0].wrapping_add(v[3]);
    v[3] = v[3].rotate_left(21) ^ v[0];
    v[2] = v[2].wrapping_add(v[1]);
    v[1] = v[1].rotate_left(17) ^ v[2];
    v[2] = v[2].rotate_left(32);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_papers_vector() {
        let key: [u8; 16] = std::array::from_fn(|n| n as u8);
        let message: Vec<u8> = (0..15).collect();
        assert_eq!(siphash(&key, &message), 0xa129_ca61_49be_45e5);
    }

    #[test]
    fn agrees_with_the_reference_vectors_for_whole_words() {
        let key: [u8; 16] = std::array::from_fn(|n| n as u8);
        // vectors_sip64 of the reference implementation: lengths 0, 8 and 16.
        assert_eq!(siphash(&key, &[]).to_le_bytes(), [0x31, 0x0e, 0x0e, 0xdd, 0x47, 0xdb, 0x6f, 0x72]);
        let message: Vec<u8> = (0..8).collect();
        assert_eq!(siphash(&key, &message).to_le_bytes(), [0x62, 0x24, 0x93, 0x9a, 0x79, 0xf5, 0xf5, 0x93]);
    }
}
