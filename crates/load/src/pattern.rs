//! The content of measured files: bytes computed from the file and the offset, so that every read can be verified
//! whichever writer was last.
//!
//! It is incompressible (no two words are equal). It does not protect against a malicious server.

/// Bytes of a word; offsets need not be aligned to it.
const WORD: u64 = 8;

/// The word at `index` of file number `file` (splitmix64: S. Vigna, public domain).
fn word(file: u64, index: u64) -> [u8; WORD as usize] {
    let mut z =
        file.wrapping_add(1).wrapping_mul(0xd1b5_4a32_d192_ed03) ^ index.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    (z ^ (z >> 31)).to_le_bytes()
}

/// The bytes of file number `file` from `offset` on.
pub fn fill(file: u64, offset: u64, out: &mut [u8]) {
    let (mut index, mut skip) = (offset / WORD, (offset % WORD) as usize);
    let mut rest = out;
    while !rest.is_empty() {
        let word = word(file, index);
        let n = rest.len().min(word.len() - skip);
        let (now, behind) = rest.split_at_mut(n);
        now.copy_from_slice(&word[skip..skip + n]);
        (rest, skip) = (behind, 0);
        index += 1;
    }
}

/// The same bytes, as a new block.
pub fn block(file: u64, offset: u64, len: usize) -> Vec<u8> {
    let mut block = vec![0; len];
    fill(file, offset, &mut block);
    block
}

/// The first offset at which `bytes`, read at `offset`, differ from the expected content.
pub fn differs(file: u64, offset: u64, bytes: &[u8]) -> Option<u64> {
    let (mut index, mut skip) = (offset / WORD, (offset % WORD) as usize);
    let mut at = 0;
    while at < bytes.len() {
        let word = word(file, index);
        let n = (bytes.len() - at).min(word.len() - skip);
        if bytes[at..at + n] != word[skip..skip + n] {
            let wrong = (0..n).find(|i| bytes[at + i] != word[skip + i]).unwrap_or(0);
            return Some(offset + (at + wrong) as u64);
        }
        at += n;
        skip = 0;
        index += 1;
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_of_any_alignment_fit_together() {
        let whole = block(3, 0, 100);
        for at in 0..50 {
            for len in [0, 1, 7, 8, 9, 50] {
                assert_eq!(block(3, at, len as usize), whole[at as usize..(at + len) as usize], "{at} {len}");
                assert_eq!(differs(3, at, &whole[at as usize..(at + len) as usize]), None);
            }
        }
    }

    #[test]
    fn one_wrong_bit_is_found_and_another_file_is_not_taken_for_this_one() {
        let mut bytes = block(1, 4093, 64);
        assert_eq!(differs(1, 4093, &bytes), None);
        assert_eq!(differs(2, 4093, &bytes), Some(4093));
        assert_eq!(differs(1, 4101, &bytes), Some(4101), "of another place");
        bytes[37] ^= 4;
        assert_eq!(differs(1, 4093, &bytes), Some(4093 + 37));
    }
}
