//! AES-CCM, the only cipher of SMB 3.0 and 3.0.2, for clients that support no other.
//!
//! Spec: RFC 3610 2 with L = 4 and M = 16, which gives the 11-byte nonces of [MS-SMB2] 2.2.41. Owns the key schedules;
//! callers choose the nonces. CBC-MAC is serial, which limits a core to about 0.5 GB/s: GCM is preferred whenever both
//! ends support it.

use aws_lc_rs::cipher::{AES_128, AES_256, EncryptingKey, EncryptionContext, UnboundCipherKey};
use aws_lc_rs::iv::FixedLength;
use subtle::ConstantTimeEq;
use zeroize::Zeroize;

/// Nonce length in bytes.
pub(super) const NONCE_LEN: usize = 11;
/// L - 1: the length field has four bytes.
const LENGTH_FLAG: u8 = 3;
/// Additional data follows, M = 16, L = 4.
const FIRST_BLOCK_FLAGS: u8 = 0x40 | ((16 - 2) / 2) << 3 | LENGTH_FLAG;
/// Bytes MACed per library call; they are copied, because the library encrypts in place.
const CHUNK: usize = 4096;

/// A CCM key.
pub(super) struct Ccm {
    cbc: EncryptingKey,
    ctr: EncryptingKey,
}

impl Ccm {
    /// Expands 16 or 32 bytes.
    pub fn new(key: &[u8]) -> Ccm {
        let algorithm = if key.len() == 32 { &AES_256 } else { &AES_128 };
        let bind = |mode: fn(UnboundCipherKey) -> Result<EncryptingKey, _>| {
            UnboundCipherKey::new(algorithm, key).and_then(mode).expect("the derivation gives 16 or 32 bytes")
        };
        Ccm { cbc: bind(EncryptingKey::cbc), ctr: bind(EncryptingKey::ctr) }
    }

    /// Encrypts in place and returns the tag.
    pub fn seal(&self, nonce: &[u8; NONCE_LEN], aad: &[u8], body: &mut [u8]) -> [u8; 16] {
        let tag = self.tag(nonce, aad, body);
        self.apply(nonce, 1, body);
        tag
    }

    /// Decrypts in place and returns whether `tag` is right; if not, wipes the plaintext.
    #[must_use]
    pub fn open(&self, nonce: &[u8; NONCE_LEN], aad: &[u8], tag: &[u8], body: &mut [u8]) -> bool {
        self.apply(nonce, 1, body);
        let right = bool::from(self.tag(nonce, aad, body)[..].ct_eq(tag));
        if !right {
            body.fill(0);
        }
        right
    }

    /// The encrypted CBC-MAC (RFC 3610 2.2, 2.3).
    fn tag(&self, nonce: &[u8; NONCE_LEN], aad: &[u8], plain: &[u8]) -> [u8; 16] {
        let len = u32::try_from(plain.len()).expect("messages are far below 4 GiB");
        let mut first = vec![FIRST_BLOCK_FLAGS];
        first.extend(nonce);
        first.extend(len.to_be_bytes());
        // The short form of the length: transform headers have 32 bytes of additional data.
        first.extend(u16::try_from(aad.len()).expect("a header").to_be_bytes());
        first.extend(aad);
        first.resize(first.len().next_multiple_of(16), 0);
        let mut mac = self.chain([0; 16], &mut first);
        let mut chunk = [0; CHUNK];
        for piece in plain.chunks(CHUNK) {
            let padded = piece.len().next_multiple_of(16);
            let blocks = chunk.get_mut(..padded).expect("a chunk is whole blocks");
            let (front, pad) = blocks.split_at_mut(piece.len());
            front.copy_from_slice(piece);
            pad.fill(0);
            mac = self.chain(mac, blocks);
        }
        chunk.zeroize();
        self.apply(nonce, 0, &mut mac);
        mac
    }

    /// Encrypts whole blocks in CBC mode and returns the last one.
    fn chain(&self, iv: [u8; 16], blocks: &mut [u8]) -> [u8; 16] {
        let context = EncryptionContext::Iv128(FixedLength::from(iv));
        self.cbc.less_safe_encrypt(blocks, context).expect("whole blocks");
        *blocks.last_chunk().expect("at least one block")
    }

    /// Applies counter mode, starting at this block (RFC 3610 2.3).
    fn apply(&self, nonce: &[u8; NONCE_LEN], block: u32, data: &mut [u8]) {
        let mut counter = [LENGTH_FLAG; 16];
        counter[1..12].copy_from_slice(nonce);
        counter[12..].copy_from_slice(&block.to_be_bytes());
        let context = EncryptionContext::Iv128(FixedLength::from(counter));
        self.ctr.less_safe_encrypt(data, context).expect("counter mode takes any length");
    }
}
