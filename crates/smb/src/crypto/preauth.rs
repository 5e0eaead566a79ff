//! Preauthentication integrity: a hash chain over every NEGOTIATE and SESSION_SETUP message.
//!
//! Spec: [MS-SMB2] 3.3.5.4, 3.3.5.5 (3.1.1 only).
//! Both ends feed whole SMB2 messages in order, header first, without transport framing. A copy continues
//! independently: there is one for the connection, and one for each session being established.

use aws_lc_rs::digest;

/// The chain's value; initially zeros.
#[derive(Clone, PartialEq, Eq)]
pub struct Preauth([u8; 64]);

impl Default for Preauth {
    fn default() -> Preauth {
        Preauth([0; 64])
    }
}

impl Preauth {
    /// Before any message.
    pub fn new() -> Preauth {
        Preauth::default()
    }

    /// Hashes the next message.
    pub fn update(&mut self, message: &[u8]) {
        self.update_parts(&[message]);
    }

    /// Hashes the next message, given in parts.
    pub fn update_parts(&mut self, parts: &[&[u8]]) {
        let mut hash = digest::Context::new(&digest::SHA512);
        hash.update(&self.0);
        for part in parts {
            hash.update(part);
        }
        self.0.copy_from_slice(hash.finish().as_ref());
    }

    /// The value, which is the key derivation's context in 3.1.1.
    pub fn value(&self) -> &[u8; 64] {
        &self.0
    }
}
