//! Signing: the 16 bytes of the header that authenticate the whole message.
//!
//! Spec: [MS-SMB2] 3.1.4.1, 3.1.5.1. HMAC-SHA256 (2.x), AES-128-CMAC (3.x), AES-128-GMAC (3.1.1). Owns the key
//! schedule; callers decide what is signed. Interim responses must not be: they share their MessageId with the final
//! response, and using a GMAC nonce twice reveals the key.

use std::sync::atomic::{AtomicU64, Ordering};

use aws_lc_rs::{cmac, hmac};
use bytes::Bytes;
use subtle::ConstantTimeEq;
use weft_wire::smb2::negotiate::SigningId;
use weft_wire::smb2::{Command, HEADER_LEN, header};

use super::gmac::Gmac;

/// The sender of a message, which is part of the GMAC nonce.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sender {
    /// A request.
    Client,
    /// A response.
    Server,
}

/// Set in the last byte of a GMAC nonce that belongs to payload.
const PAYLOAD: u8 = 0x80;

/// A session's signing key, expanded.
pub struct SigningKey {
    algorithm: Algorithm,
    /// Counts the nonces for payload, which has no MessageId.
    next_nonce: AtomicU64,
}

#[allow(clippy::large_enum_variant, reason = "one in a session, which is behind an Arc")]
enum Algorithm {
    HmacSha256(hmac::Key),
    Cmac(cmac::Key),
    Gmac(Box<Gmac>),
}

impl SigningKey {
    /// Expands a key. Any other algorithm, which negotiation never yields, is treated as AES-CMAC.
    pub fn new(algorithm: SigningId, key: &[u8; 16]) -> SigningKey {
        let algorithm = match algorithm {
            SigningId::HMAC_SHA256 => Algorithm::HmacSha256(hmac::Key::new(hmac::HMAC_SHA256, key)),
            SigningId::AES_GMAC => Algorithm::Gmac(Box::new(Gmac::new(key))),
            _ => Algorithm::Cmac(cmac::Key::new(cmac::AES_128, key).expect("16 bytes are an AES-128 key")),
        };
        SigningKey { algorithm, next_nonce: AtomicU64::new(0) }
    }

    /// Signs payload that travels beside its message ([MS-SMB2] 2.2.43.1). Returns the nonce, empty if the algorithm
    /// has none, and the signature.
    pub fn sign_payload(&self, sender: Sender, payload: &[&[u8]]) -> (Bytes, Bytes) {
        let nonce = match self.algorithm {
            Algorithm::Gmac(_) => {
                let counter = self.next_nonce.fetch_add(1, Ordering::Relaxed);
                let mut nonce = [0; 12];
                nonce[..8].copy_from_slice(&counter.to_le_bytes());
                nonce[8] = u8::from(sender == Sender::Server);
                // No message's nonce has this bit set, so a nonce is never used twice, which would reveal the key.
                nonce[11] = PAYLOAD;
                Bytes::copy_from_slice(&nonce)
            }
            _ => Bytes::new(),
        };
        let signature = Bytes::copy_from_slice(&self.tag_of(&nonce, payload));
        (nonce, signature)
    }

    /// Whether payload carries the right signature, compared in constant time.
    #[must_use]
    pub fn verify_payload(&self, nonce: &[u8], signature: &[u8], payload: &[u8]) -> bool {
        let right = nonce.len() == self.payload_nonce_len() && signature.len() == 16;
        right && bool::from(self.tag_of(nonce, &[payload])[..].ct_eq(signature))
    }

    /// Length of the nonce that [`SigningKey::sign_payload`] returns, in bytes.
    pub fn payload_nonce_len(&self) -> usize {
        if matches!(self.algorithm, Algorithm::Gmac(_)) { 12 } else { 0 }
    }

    /// Signs a message in place: sets SMB2_FLAGS_SIGNED and fills in the signature.
    ///
    /// # Panics
    /// If `message` is shorter than a header: we emitted it.
    pub fn sign(&self, sender: Sender, message: &mut [u8]) {
        let (head, rest) = message.split_at_mut(HEADER_LEN);
        self.sign_parts(sender, head, &[rest]);
    }

    /// Signs a message in parts: `head` starts with the header, `rest` follows it. GMAC copies no part as long as the
    /// length of every part but the last is a multiple of 16, as in READ responses and WRITE requests.
    ///
    /// # Panics
    /// If `head` is shorter than a header.
    pub fn sign_parts(&self, sender: Sender, head: &mut [u8], rest: &[&[u8]]) {
        let first: &[u8; HEADER_LEN] = head.first_chunk().expect("a header");
        let nonce = nonce(sender, first);
        let flags = header::Flags(flags_of(first)) | header::Flags::SIGNED;
        header::patch_flags(head, flags);
        header::patch_signature(head, &[0; 16]);
        let mut parts = Vec::with_capacity(rest.len().saturating_add(1));
        parts.push(&*head);
        parts.extend_from_slice(rest);
        let signature = self.tag_of(&nonce, &parts);
        header::patch_signature(head, &signature);
    }

    /// Whether a message of `sender` carries the right signature, compared in constant time.
    #[must_use]
    pub fn verify(&self, sender: Sender, message: &[u8]) -> bool {
        let Some((head, rest)) = message.split_first_chunk::<HEADER_LEN>() else { return false };
        let mut zeroed = *head;
        header::patch_signature(&mut zeroed, &[0; 16]);
        let expected = self.tag_of(&nonce(sender, head), &[&zeroed, rest]);
        // The signature is the last field of the header.
        head.last_chunk::<16>().is_some_and(|signature| bool::from(expected.ct_eq(signature)))
    }

    fn tag_of(&self, nonce: &[u8], parts: &[&[u8]]) -> [u8; 16] {
        let mut tag = [0; 16];
        match &self.algorithm {
            Algorithm::HmacSha256(key) => {
                let mut mac = hmac::Context::with_key(key);
                parts.iter().for_each(|part| mac.update(part));
                tag = *mac.sign().as_ref().first_chunk().expect("HMAC-SHA256 has 32 bytes");
            }
            Algorithm::Cmac(key) => {
                let mut mac = cmac::Context::with_key(key);
                let result = parts.iter().try_for_each(|part| mac.update(part)).and_then(|()| mac.sign());
                tag.copy_from_slice(result.expect("CMAC of memory does not fail").as_ref());
            }
            Algorithm::Gmac(key) => {
                tag = key.tag(nonce.try_into().expect("GMAC nonces have 12 bytes"), parts)
            }
        }
        tag
    }
}

/// MessageId, then a word with the sender in bit 0 and CANCEL in bit 1.
fn nonce(sender: Sender, head: &[u8; HEADER_LEN]) -> [u8; 12] {
    let mut nonce = [0; 12];
    nonce[..8].copy_from_slice(&head[header::MESSAGE_ID_AT..header::MESSAGE_ID_AT + 8]);
    let command = Command::from_code(u16::from_le_bytes([head[12], head[13]]));
    nonce[8] = match sender {
        Sender::Client if command == Command::Cancel => 2,
        Sender::Client => 0,
        Sender::Server => 1,
    };
    nonce
}

fn flags_of(head: &[u8; HEADER_LEN]) -> u32 {
    const AT: usize = header::FLAGS_AT;
    u32::from_le_bytes([head[AT], head[AT + 1], head[AT + 2], head[AT + 3]])
}
