//! Encryption: the transform header, and AES-GCM over everything behind it.
//!
//! Spec: [MS-SMB2] 2.2.41, 3.1.4.3. AES-128-GCM and AES-256-GCM; CCM is never negotiated here.
//! Owns: key schedules and the nonce counter. Does not: look up sessions; the caller reads [`Transform`] first.
//! Buffers: sealing works in place behind 52 reserved bytes; opening writes into a buffer of the caller.
//!
//! ```text
//!  0 FD 'S' 'M' 'B' | 4 Signature (16) | 20 Nonce (12, then 4 zeros) | 36 OriginalMessageSize | 40 Reserved
//! 42 Flags = 1      | 44 SessionId     | 52 ciphertext                 (20..52 is authenticated, not encrypted)
//! ```

use std::sync::atomic::{AtomicU64, Ordering};

use aws_lc_rs::aead as aws;
use ring::aead as ring;
use weft_machine::buf;

use super::engine::{Choice, Engine};

/// Length of the transform header.
pub const TRANSFORM_LEN: usize = 52;
const MAGIC: [u8; 4] = [0xFD, b'S', b'M', b'B'];
const SIGNATURE: std::ops::Range<usize> = 4..20;
const AUTHENTICATED: std::ops::Range<usize> = 20..TRANSFORM_LEN;

/// Why a message could not be sealed or opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SealError {
    /// 2^64 messages: the session must end.
    #[error("the session's nonces are used up")]
    Exhausted,
    /// The tag does not fit: forged, damaged, or another key.
    #[error("message fails authentication")]
    Forged,
    /// Not a transform header as 2.2.41 has it.
    #[error("malformed transform header: {0}")]
    Malformed(&'static str),
}

/// The readable part of a transform header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Transform {
    /// Which session's keys.
    pub session_id: u64,
    /// Bytes of the message inside; equals the bytes that follow the header.
    pub original_size: u32,
}

impl Transform {
    /// Whether a message from the transport is encrypted.
    pub fn is_one(message: &[u8]) -> bool {
        message.starts_with(&MAGIC)
    }

    /// Reads the header of an encrypted message and checks its length.
    pub fn parse(message: &[u8]) -> Result<Transform, SealError> {
        let (head, sealed) =
            message.split_first_chunk::<TRANSFORM_LEN>().ok_or(SealError::Malformed("truncated"))?;
        if head[..4] != MAGIC {
            return Err(SealError::Malformed("ProtocolId"));
        }
        if head[42..44] != [1, 0] {
            return Err(SealError::Malformed("Flags is not Encrypted"));
        }
        let original_size = u32::from_le_bytes([head[36], head[37], head[38], head[39]]);
        if original_size as usize != sealed.len() {
            return Err(SealError::Malformed("OriginalMessageSize is not what follows"));
        }
        let session_id = u64::from_le_bytes(head[44..].try_into().expect("8 bytes"));
        Ok(Transform { session_id, original_size })
    }
}

enum Key {
    AwsLc(aws::LessSafeKey),
    Ring(ring::LessSafeKey),
}

impl Key {
    /// Expands 16 or 32 bytes.
    fn new(engine: Engine, key: &[u8]) -> Key {
        const WHY: &str = "the key derivation gives 16 or 32 bytes";
        match engine {
            Engine::AwsLc => {
                let algorithm = if key.len() == 32 { &aws::AES_256_GCM } else { &aws::AES_128_GCM };
                Key::AwsLc(aws::LessSafeKey::new(aws::UnboundKey::new(algorithm, key).expect(WHY)))
            }
            Engine::Ring => {
                let algorithm = if key.len() == 32 { &ring::AES_256_GCM } else { &ring::AES_128_GCM };
                Key::Ring(ring::LessSafeKey::new(ring::UnboundKey::new(algorithm, key).expect(WHY)))
            }
        }
    }
}

/// Encrypts one direction of a session. Shared by the session's connections.
pub struct Sealer {
    key: Key,
    /// Nonces are a counter: the key is new with each session and used in this direction only.
    next_nonce: AtomicU64,
}

impl Sealer {
    /// Expands a key of 16 or 32 bytes.
    pub fn new(key: &[u8]) -> Sealer {
        Sealer::with(Choice::of_this_machine(), key)
    }

    pub(super) fn with(choice: Choice, key: &[u8]) -> Sealer {
        Sealer { key: Key::new(choice.seal, key), next_nonce: AtomicU64::new(1) }
    }

    /// Encrypts `message[TRANSFORM_LEN..]` in place and fills the header in before it.
    ///
    /// # Panics
    /// When `message` is shorter than the header or 4 GiB long: the caller made it.
    pub fn seal(&self, session_id: u64, message: &mut [u8]) -> Result<(), SealError> {
        let counter = self.next_nonce.fetch_add(1, Ordering::Relaxed);
        if counter == 0 || counter == u64::MAX {
            // Stay at the end for good.
            self.next_nonce.store(u64::MAX, Ordering::Relaxed);
            return Err(SealError::Exhausted);
        }
        let (head, body) = message.split_at_mut(TRANSFORM_LEN);
        let mut nonce = [0; 12];
        nonce[..8].copy_from_slice(&counter.to_le_bytes());
        head[..4].copy_from_slice(&MAGIC);
        head[20..32].copy_from_slice(&nonce);
        head[32..36].fill(0);
        let size = u32::try_from(body.len()).expect("messages are far below 4 GiB");
        head[36..40].copy_from_slice(&size.to_le_bytes());
        head[40..44].copy_from_slice(&[0, 0, 1, 0]);
        head[44..].copy_from_slice(&session_id.to_le_bytes());
        let aad = &head[AUTHENTICATED];
        // The only errors are lengths beyond what GCM takes (64 GiB).
        let tag: [u8; 16] = match &self.key {
            Key::AwsLc(key) => {
                let nonce = aws::Nonce::assume_unique_for_key(nonce);
                let tag = key.seal_in_place_separate_tag(nonce, aws::Aad::from(aad), body);
                tag.expect("length within GCM's").as_ref().try_into().expect("a tag has 16 bytes")
            }
            Key::Ring(key) => {
                let nonce = ring::Nonce::assume_unique_for_key(nonce);
                let tag = key.seal_in_place_separate_tag(nonce, ring::Aad::from(aad), body);
                tag.expect("length within GCM's").as_ref().try_into().expect("a tag has 16 bytes")
            }
        };
        head[SIGNATURE].copy_from_slice(&tag);
        Ok(())
    }
}

/// Decrypts one direction of a session.
pub struct Opener {
    key: Key,
}

impl Opener {
    /// Expands a key of 16 or 32 bytes.
    pub fn new(key: &[u8]) -> Opener {
        Opener::with(Choice::of_this_machine(), key)
    }

    pub(super) fn with(choice: Choice, key: &[u8]) -> Opener {
        Opener { key: Key::new(choice.open, key) }
    }

    /// Decrypts a message for which [`Transform::parse`] succeeded into `plain`, which is as long as its
    /// `original_size`. On error `plain` holds nothing of use.
    ///
    /// # Panics
    /// When the lengths do not match.
    pub fn open(&self, message: &[u8], plain: &mut [u8]) -> Result<(), SealError> {
        let (head, sealed) = message.split_at(TRANSFORM_LEN);
        assert_eq!(sealed.len(), plain.len());
        let nonce: [u8; 12] = head[20..32].try_into().expect("12 bytes");
        let (aad, tag) = (&head[AUTHENTICATED], &head[SIGNATURE]);
        match &self.key {
            Key::AwsLc(key) => {
                let nonce = aws::Nonce::assume_unique_for_key(nonce);
                key.open_separate_gather(nonce, aws::Aad::from(aad), sealed, tag, plain)
                    .map_err(|_| SealError::Forged)
            }
            Key::Ring(key) => {
                buf::copy(plain, sealed);
                let nonce = ring::Nonce::assume_unique_for_key(nonce);
                let tag = ring::Tag::try_from(tag).expect("16 bytes");
                key.open_in_place_separate_tag(nonce, ring::Aad::from(aad), tag, plain, 0..)
                    .map(drop)
                    .map_err(|_| SealError::Forged)
            }
        }
    }
}
