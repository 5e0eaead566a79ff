//! Encryption: the transform header, and AES-GCM or AES-CCM over everything after it.
//!
//! Spec: [MS-SMB2] 2.2.41, 3.1.4.3. Owns the nonce counter. The caller reads the header with
//! [`transform`] first, to look up the session. Sealing works in place after 52 reserved bytes; opening writes into a
//! buffer of the caller.

use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use weft_wire::smb2::Malformed;
use weft_wire::smb2::negotiate::CipherId;
use weft_wire::smb2::transform::{AUTHENTICATED, SIGNATURE_AT, TRANSFORM_LEN, TransformHeader};

use super::cipher::{Engine, Forged, Key};
use super::engine::Choice;

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

impl From<Forged> for SealError {
    fn from(Forged: Forged) -> SealError {
        SealError::Forged
    }
}

/// Parses the header of an encrypted message and checks that the declared length matches the rest of the message.
pub fn transform(message: &[u8]) -> Result<TransformHeader, Malformed> {
    let header = TransformHeader::parse(message)?;
    match Some(header.original_message_size as usize) == message.len().checked_sub(TRANSFORM_LEN) {
        true => Ok(header),
        false => Err(Malformed("OriginalMessageSize differs from the bytes that follow")),
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
        Sealer::with(Choice::of_this_machine().seal, cipher, key)
    }

    pub(super) fn with(engine: Engine, cipher: CipherId, key: &[u8]) -> Sealer {
        Sealer { key: Key::new(cipher, engine, key), next_nonce: AtomicU64::new(1) }
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
        let tag = self.key.encrypt(nonce, head.get(AUTHENTICATED).expect(WHOLE), body);
        head.get_mut(SIGNATURE).expect(WHOLE).copy_from_slice(&tag);
        Ok(())
    }

    /// Encrypts, in place, payload that travels beside its message ([MS-SMB2] 2.2.43.1). Returns the nonce, taken from
    /// the same counter, and the tag.
    pub fn seal_payload(&self, payload: &mut [u8]) -> Result<(Bytes, Bytes), SealError> {
        let nonce = self.nonce()?;
        let tag = self.key.encrypt(nonce, &[], payload);
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
}

/// Decrypts one direction of a session.
pub struct Opener {
    key: Key,
}

impl Opener {
    /// Expands a key: 32 bytes for 256-bit ciphers, 16 for the others.
    pub fn new(cipher: CipherId, key: &[u8]) -> Opener {
        Opener::with(Choice::of_this_machine().open, cipher, key)
    }

    pub(super) fn with(engine: Engine, cipher: CipherId, key: &[u8]) -> Opener {
        Opener { key: Key::new(cipher, engine, key) }
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
        Ok(self.key.decrypt(nonce, aad, tag, sealed, plain)?)
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
        Ok(self.key.decrypt(padded, &[], tag, sealed, plain)?)
    }
}
