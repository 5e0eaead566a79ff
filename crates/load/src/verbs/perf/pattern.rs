//! Bytes that identify their operation.
//!
//! They reveal lost, stale, duplicated and misplaced bytes, but do not resist an adversary.

/// Fills `bytes` with the pattern of operation `n`.
pub fn fill(bytes: &mut [u8], n: u64) {
    for (at, chunk) in (0..).zip(bytes.chunks_mut(8)) {
        chunk.copy_from_slice(&word(n, at)[..chunk.len()]);
    }
}

/// Whether `bytes` match the pattern of operation `n`.
pub fn matches(bytes: &[u8], n: u64) -> bool {
    (0..).zip(bytes.chunks(8)).all(|(at, chunk)| *chunk == word(n, at)[..chunk.len()])
}

/// Word `at` (eight bytes) of operation `n` (splitmix64).
fn word(n: u64, at: u64) -> [u8; 8] {
    let mut z = n
        .wrapping_mul(0x9e37_79b9_7f4a_7c15)
        .wrapping_add(at.wrapping_add(1).wrapping_mul(0xd1b5_4a32_d192_ed03));
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    (z ^ (z >> 31)).to_le_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_operation_place_and_bit_counts() {
        for len in [1, 7, 8, 9, 64, 1000] {
            let mut bytes = vec![0; len];
            fill(&mut bytes, 5);
            assert!(matches(&bytes, 5));
            for at in 0..len {
                bytes[at] ^= 0x10;
                assert!(!matches(&bytes, 5));
                bytes[at] ^= 0x10;
            }
        }
        let mut bytes = vec![0; 4096];
        fill(&mut bytes, 5);
        assert!(!matches(&bytes, 6));
        // Misplaced words are found.
        bytes.copy_within(8..16, 0);
        assert!(!matches(&bytes, 5));
    }
}
