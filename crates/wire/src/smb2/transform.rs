//! The header of an encrypted message ([MS-SMB2] 2.2.41, 3.1.4.3).
//!
//! ```text
//!  0 FD 'S' 'M' 'B' | 4 Signature (16) | 20 Nonce (16) | 36 OriginalMessageSize | 40 Reserved | 42 Flags=1
//! 44 SessionId      | 52 the encrypted message
//! ```

use super::Malformed;
use super::field::{array_at, u16_at, u32_at, u64_at};

/// Length of the header in bytes.
pub const TRANSFORM_LEN: usize = 52;
/// First bytes of an encrypted message.
pub const MAGIC_ENCRYPTED: [u8; 4] = [0xFD, b'S', b'M', b'B'];
/// Offset of the signature.
pub const SIGNATURE_AT: usize = 4;
/// The bytes that are authenticated but not encrypted: from the nonce to the end of the header.
pub const AUTHENTICATED: std::ops::Range<usize> = 20..TRANSFORM_LEN;

/// A header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TransformHeader {
    /// The tag of the cipher.
    pub signature: [u8; 16],
    /// Nonce: 11 bytes for CCM, 12 for GCM, then zeros.
    pub nonce: [u8; 16],
    /// Length of the plain message in bytes.
    pub original_message_size: u32,
    /// The session whose keys apply.
    pub session_id: u64,
}

impl TransformHeader {
    /// Parses the first 52 bytes.
    pub fn parse(message: &[u8]) -> Result<TransformHeader, Malformed> {
        let h = message.first_chunk::<TRANSFORM_LEN>().ok_or(Malformed("shorter than a transform header"))?;
        if array_at::<4>(h, 0) != MAGIC_ENCRYPTED {
            return Err(Malformed("ProtocolId is not that of an encrypted message"));
        }
        // 3.0 and 3.0.2: EncryptionAlgorithm, AES-128-CCM; 3.1.1: Flags, encrypted. Both 1.
        if u16_at(h, 42) != 1 {
            return Err(Malformed("transform flags"));
        }
        Ok(TransformHeader {
            signature: array_at(h, SIGNATURE_AT),
            nonce: array_at(h, 20),
            original_message_size: u32_at(h, 36),
            session_id: u64_at(h, 44),
        })
    }

    /// The 52 bytes.
    pub fn to_bytes(&self) -> [u8; TRANSFORM_LEN] {
        let mut h = [0; TRANSFORM_LEN];
        h[..4].copy_from_slice(&MAGIC_ENCRYPTED);
        h[4..20].copy_from_slice(&self.signature);
        h[20..36].copy_from_slice(&self.nonce);
        h[36..40].copy_from_slice(&self.original_message_size.to_le_bytes());
        h[42..44].copy_from_slice(&1u16.to_le_bytes());
        h[44..52].copy_from_slice(&self.session_id.to_le_bytes());
        h
    }
}
