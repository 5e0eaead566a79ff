//! Encryption: the transform header, and AES-GCM or AES-CCM over everything after it.
//!
//! Spec: [MS-SMB2] 2.2.41, 3.1.4.3. Owns key schedules and the nonce counter. The caller reads the header with
//! [`transform`] first, to look up the session. Sealing works in place after 52 reserved bytes; opening writes into a
//! buffer of the caller.

use std::sync::atomic::{AtomicU64, Ordering};

use aws_lc_rs::aead as aws;
use bytes::Bytes;
use ring::aead as ring;
use weft_machine::buf;
use weft_wire::smb2::Malformed;
use weft_wire::smb2::negotiate::CipherId;
use weft_wire::smb2::transform::{AUTHENTICATED, SIGNATURE_AT, TRANSFORM_LEN, TransformHeader};

use super::ccm::{Ccm, NONCE_LEN};
use super::engine::{Choice, Engine};

/// Position of the tag in a transform header.
const SIGNATURE: std::ops::Range<usize> = SIGNATURE_AT..SIGNATURE_AT + 16;
const WHOLE: &str = "fields of a transform header are inside of it";

/// Why a message could not be sealed or opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SealError {
    /// 2^64 messages were sent: the session must end.
    #[error("the session's nonces are used up")]
    Exhausted,
    /// The tag is wrong: the message is forged, damaged, or encrypted with another key.
    #[error("message fails authentication")]
    Forged,
}

/// Parses the header of an encrypted message and checks that the declared length matches the rest of the message.
pub fn transform(message: &[u8]) -> Result<TransformHeader, Malformed> {
    let header = TransformHeader::parse(message)?;
    match Some(header.original_message_size as usize) == message.len().checked_sub(TRANSFORM_LEN) {
        true => Ok(header),
        false => Err(Malformed("OriginalMessageSize differs from the bytes that follow")),
    }
}

#[allow(clippy::large_enum_variant, reason = "two in a session, which is behind an Arc")]
enum Key {
    AwsLc(aws::LessSafeKey),
    Ring(ring::LessSafeKey),
    Ccm(Ccm),
}

/// Key length of a cipher in bytes.
pub(super) fn key_len(cipher: CipherId) -> usize {
    match cipher {
        CipherId::AES_256_GCM | CipherId::AES_256_CCM => 32,
        _ => 16,
    }
}

impl Key {
    /// Nonce length in bytes (2.2.41).
    fn nonce_len(&self) -> usize {
        match self {
            Key::Ccm(_) => NONCE_LEN,
            Key::AwsLc(_) | Key::Ring(_) => 12,
        }
    }

    /// Expands a key of [`key_len`] bytes.
    fn new(cipher: CipherId, engine: Engine, key: &[u8]) -> Key {
        const WHY: &str = "the key derivation gives 16 or 32 bytes";
        match engine {
            _ if cipher == CipherId::AES_128_CCM || cipher == CipherId::AES_256_CCM => {
                Key::Ccm(Ccm::new(key))
            }
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
    /// The nonces are a counter: each session has a new key, which is used in this direction only.
    next_nonce: AtomicU64,
}

impl Sealer {
    /// Expands a key: 32 bytes for 256-bit ciphers, 16 for the others.
    pub fn new(cipher: CipherId, key: &[u8]) -> Sealer {
        Sealer::with(Choice::of_this_machine(), cipher, key)
    }

    pub(super) fn with(choice: Choice, cipher: CipherId, key: &[u8]) -> Sealer {
        Sealer { key: Key::new(cipher, choice.seal, key), next_nonce: AtomicU64::new(1) }
    }

    /// Encrypts `message[TRANSFORM_LEN..]` in place and fills in the header before it.
    ///
    /// # Panics
    /// If `message` is shorter than the header or 4 GiB long: we built it.
    pub fn seal(&self, session_id: u64, message: &mut [u8]) -> Result<(), SealError> {
        let nonce = self.nonce()?;
        let (head, body) = message.split_first_chunk_mut::<TRANSFORM_LEN>().expect("room for a header");
        let mut header = TransformHeader {
            signature: [0; 16],
            nonce: [0; 16],
            original_message_size: u32::try_from(body.len()).expect("messages are far below 4 GiB"),
            session_id,
        };
        header.nonce[..12].copy_from_slice(&nonce);
        head.copy_from_slice(&header.to_bytes());
        let tag = self.encrypt(nonce, head.get(AUTHENTICATED).expect(WHOLE), body);
        head.get_mut(SIGNATURE).expect(WHOLE).copy_from_slice(&tag);
        Ok(())
    }

    /// Encrypts, in place, payload that travels beside its message ([MS-SMB2] 2.2.43.1). Returns the nonce, taken from
    /// the same counter, and the tag.
    pub fn seal_payload(&self, payload: &mut [u8]) -> Result<(Bytes, Bytes), SealError> {
        let nonce = self.nonce()?;
        let tag = self.encrypt(nonce, &[], payload);
        let nonce = nonce.get(..self.nonce_len()).expect("11 or 12 of 12 bytes");
        Ok((Bytes::copy_from_slice(nonce), Bytes::copy_from_slice(&tag)))
    }

    /// Length of the nonce that [`Sealer::seal_payload`] returns, in bytes.
    pub fn nonce_len(&self) -> usize {
        self.key.nonce_len()
    }

    /// A nonce that was never used with this key.
    fn nonce(&self) -> Result<[u8; 12], SealError> {
        let counter = self.next_nonce.fetch_add(1, Ordering::Relaxed);
        if counter == 0 || counter == u64::MAX {
            // Once exhausted, the counter stays exhausted.
            self.next_nonce.store(u64::MAX, Ordering::Relaxed);
            return Err(SealError::Exhausted);
        }
        let mut nonce = [0; 12];
        nonce[..8].copy_from_slice(&counter.to_le_bytes());
        Ok(nonce)
    }

    fn encrypt(&self, nonce: [u8; 12], aad: &[u8], body: &mut [u8]) -> [u8; 16] {
        // The only possible errors are lengths beyond GCM's limit (64 GiB).
        match &self.key {
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
            // The counter fits into CCM's shorter nonce; byte 11 of the field is zero either way.
            Key::Ccm(key) => key.seal(&short(&nonce), aad, body),
        }
    }
}

/// Decrypts one direction of a session.
pub struct Opener {
    key: Key,
}

impl Opener {
    /// Expands a key: 32 bytes for 256-bit ciphers, 16 for the others.
    pub fn new(cipher: CipherId, key: &[u8]) -> Opener {
        Opener::with(Choice::of_this_machine(), cipher, key)
    }

    pub(super) fn with(choice: Choice, cipher: CipherId, key: &[u8]) -> Opener {
        Opener { key: Key::new(cipher, choice.open, key) }
    }

    /// Decrypts a message for which [`transform`] succeeded into `plain`, which must be `original_message_size` bytes
    /// long. On error the content of `plain` is unspecified.
    ///
    /// # Panics
    /// If the lengths do not match.
    pub fn open(&self, message: &[u8], plain: &mut [u8]) -> Result<(), SealError> {
        let (head, sealed) = message.split_first_chunk::<TRANSFORM_LEN>().ok_or(SealError::Forged)?;
        assert_eq!(sealed.len(), plain.len());
        let nonce: [u8; 12] = head[20..32].try_into().expect("12 bytes");
        let (aad, tag) = (head.get(AUTHENTICATED).expect(WHOLE), head.get(SIGNATURE).expect(WHOLE));
        self.decrypt(nonce, aad, tag, sealed, plain)
    }

    /// Decrypts payload that travelled beside its message into `plain`, which must have the payload's length. A nonce
    /// or tag of another length than the cipher's counts as forged.
    ///
    /// # Panics
    /// If the lengths do not match.
    pub fn open_payload(
        &self,
        nonce: &[u8],
        tag: &[u8],
        sealed: &[u8],
        plain: &mut [u8],
    ) -> Result<(), SealError> {
        assert_eq!(sealed.len(), plain.len());
        if nonce.len() != self.key.nonce_len() || tag.len() != 16 {
            return Err(SealError::Forged);
        }
        let mut padded = [0; 12];
        padded.get_mut(..nonce.len()).ok_or(SealError::Forged)?.copy_from_slice(nonce);
        self.decrypt(padded, &[], tag, sealed, plain)
    }

    fn decrypt(
        &self,
        nonce: [u8; 12],
        aad: &[u8],
        tag: &[u8],
        sealed: &[u8],
        plain: &mut [u8],
    ) -> Result<(), SealError> {
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
            Key::Ccm(key) => {
                buf::copy(plain, sealed);
                match key.open(&short(&nonce), aad, tag, plain) {
                    true => Ok(()),
                    false => Err(SealError::Forged),
                }
            }
        }
    }
}

/// The part of the nonce field that CCM uses.
fn short(nonce: &[u8; 12]) -> [u8; NONCE_LEN] {
    *nonce.first_chunk().expect("11 of 12 bytes")
}
