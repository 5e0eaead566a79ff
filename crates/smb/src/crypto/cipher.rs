//! The ciphers: AES-GCM by either of two libraries, and AES-CCM.
//!
//! Spec: [MS-SMB2] 2.2.41 (nonces and tags), 3.1.4.3. Owns the key schedules; callers choose the nonces.

use aws_lc_rs::aead as aws;
use ring::aead as ring;
use weft_machine::buf;
use weft_wire::smb2::negotiate::CipherId;

use super::ccm::{self, Ccm};

/// A library that provides AES-GCM.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Engine {
    /// aws-lc-rs: decrypts from one buffer into another.
    AwsLc,
    /// ring: works in place, so decryption copies first.
    Ring,
}

/// The tag is wrong: the data is forged, damaged, or encrypted with another key.
pub(super) struct Forged;

/// Key length of a cipher in bytes.
pub(super) fn key_len(cipher: CipherId) -> usize {
    match cipher {
        CipherId::AES_256_GCM | CipherId::AES_256_CCM => 32,
        _ => 16,
    }
}

/// An expanded key.
#[allow(clippy::large_enum_variant, reason = "two in a session, which is behind an Arc")]
pub(super) enum Key {
    AwsLc(aws::LessSafeKey),
    Ring(ring::LessSafeKey),
    Ccm(Ccm),
}

impl Key {
    /// Nonce length in bytes (2.2.41).
    pub fn nonce_len(&self) -> usize {
        match self {
            Key::Ccm(_) => ccm::NONCE_LEN,
            Key::AwsLc(_) | Key::Ring(_) => 12,
        }
    }

    /// Expands a key of [`key_len`] bytes.
    pub fn new(cipher: CipherId, engine: Engine, key: &[u8]) -> Key {
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

    /// Encrypts `body` in place and returns its tag, which also covers `aad`. A nonce must not be used twice.
    pub fn encrypt(&self, nonce: [u8; 12], aad: &[u8], body: &mut [u8]) -> [u8; 16] {
        // The only possible errors are lengths beyond GCM's limit (64 GiB).
        match self {
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

    /// Decrypts `sealed` into `plain`, which has the same length. On error the content of `plain` is unspecified.
    pub fn decrypt(
        &self,
        nonce: [u8; 12],
        aad: &[u8],
        tag: &[u8],
        sealed: &[u8],
        plain: &mut [u8],
    ) -> Result<(), Forged> {
        match self {
            Key::AwsLc(key) => {
                let nonce = aws::Nonce::assume_unique_for_key(nonce);
                key.open_separate_gather(nonce, aws::Aad::from(aad), sealed, tag, plain).map_err(|_| Forged)
            }
            Key::Ring(key) => {
                buf::copy(plain, sealed);
                let nonce = ring::Nonce::assume_unique_for_key(nonce);
                let tag = ring::Tag::try_from(tag).expect("16 bytes");
                key.open_in_place_separate_tag(nonce, ring::Aad::from(aad), tag, plain, 0..)
                    .map(drop)
                    .map_err(|_| Forged)
            }
            Key::Ccm(key) => {
                buf::copy(plain, sealed);
                match key.open(&short(&nonce), aad, tag, plain) {
                    true => Ok(()),
                    false => Err(Forged),
                }
            }
        }
    }
}

/// The part of the nonce field that CCM uses.
fn short(nonce: &[u8; 12]) -> [u8; ccm::NONCE_LEN] {
    *nonce.first_chunk().expect("11 of 12 bytes")
}
