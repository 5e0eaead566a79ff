//! RDMA payload on a protected session: it is signed or encrypted like the messages, or does not move by RDMA at all.
//!
//! Spec: [MS-SMB2] 2.2.43, 3.2.4.7 (writing), 3.2.5.11 (reading). NEGOTIATE has chosen the transform. A server that
//! omits it violates the protocol, whatever the payload is.

use bytes::Bytes;
use weft_machine::{Buf, Pool, buf};
use weft_wire::smb2::channel::Channel;
use weft_wire::smb2::rdma_transform::{Crypto, RdmaTransformId, Transformed};

use super::error::Error;
use super::link::Security;
use crate::crypto::Sender;

const NO_KEYS: Error = Error::Misuse("protection before a session is established");

/// Transforms payload with the session's keys.
pub(super) struct Protector<'a> {
    pub kind: RdmaTransformId,
    pub security: &'a Security,
    pub pool: &'a Pool,
}

impl Protector<'_> {
    /// Protects the payload of a WRITE: returns the transform, and the encrypted copy to expose instead of `data`.
    pub async fn protect(&self, data: &Buf) -> Result<(Crypto, Option<Buf>), Error> {
        if self.kind == RdmaTransformId::SIGNING {
            let (nonce, signature) = self.security.keys.signing.sign_payload(Sender::Client, &[data]);
            return Ok((Crypto { kind: self.kind, signature, nonce }, None));
        }
        let sealer = self.security.keys.sealer.as_ref().ok_or(NO_KEYS)?;
        let mut sealed = self.pool.alloc(data.len()).await;
        sealed.set_len(data.len());
        buf::copy(&mut sealed, data);
        let (nonce, signature) = sealer
            .seal_payload(&mut sealed)
            .map_err(|_| Error::Misuse("the session's nonces are used up; connect again"))?;
        Ok((Crypto { kind: self.kind, signature, nonce }, Some(sealed)))
    }

    /// Verifies or decrypts the payload of a READ.
    pub async fn restore(&self, crypto: Option<Crypto>, received: Buf) -> Result<Bytes, Error> {
        let crypto = crypto
            .filter(|crypto| crypto.kind == self.kind)
            .ok_or(Error::Violation("READ: RDMA payload without the negotiated protection"))?;
        if self.kind == RdmaTransformId::SIGNING {
            let key = &self.security.keys.signing;
            return match key.verify_payload(&crypto.nonce, &crypto.signature, &received) {
                true => Ok(received.freeze()),
                false => Err(Error::Tampered("signature of RDMA payload")),
            };
        }
        let opener = self.security.keys.opener.as_ref().ok_or(NO_KEYS)?;
        let mut plain = self.pool.alloc(received.len()).await;
        plain.set_len(received.len());
        opener
            .open_payload(&crypto.nonce, &crypto.signature, &received, &mut plain)
            .map_err(|_| Error::Tampered("decryption of RDMA payload"))?;
        Ok(plain.freeze())
    }
}

/// The channel information of a WRITE with protected payload.
pub(super) fn transformed(channel: Channel, crypto: Crypto) -> Channel {
    match channel {
        Channel::RdmaV1(descriptors) => {
            Channel::RdmaTransform(Transformed { crypto, revoke: false, descriptors })
        }
        Channel::RdmaV1Invalidate(descriptors) => {
            Channel::RdmaTransform(Transformed { crypto, revoke: true, descriptors })
        }
        other => other,
    }
}
