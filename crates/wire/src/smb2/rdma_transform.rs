//! RDMA transforms ([MS-SMB2] 2.2.43 SMB2_RDMA_TRANSFORM, 2.2.43.1 SMB2_RDMA_CRYPTO_TRANSFORM): signature and nonce of
//! a payload that RDMA transfers outside the message.
//!
//! ```text
//! transform:  0 RdmaDescriptorOffset u16 | 2 RdmaDescriptorLength u16 | 4 Channel u32 | 8 TransformCount u16 | 10 0
//! crypto:    16 TransformType u16 | 18 SignatureLength u16 | 20 NonceLength u16 | 22 0 | 24 Signature | Nonce | pad to 8
//! then:         descriptors, in a WRITE request
//! ```
//!
//! Only one crypto transform is legal, so there is one field.

use bytes::Bytes;

use super::Malformed;
use super::descriptor::Descriptors;
use super::field::{Put, codes, len16, pad, slice, u16_at, u32_at};

const HEAD_LEN: usize = 16;
const CRYPTO_LEN: usize = 8;
/// Length of the signatures and tags that we emit.
pub const SIGNATURE_LEN: usize = 16;

codes! {
    /// A transform, both in NEGOTIATE (2.2.3.1.6) and on payload.
    RdmaTransformId: u16 {
        /// No common transform.
        NONE = 0x0000;
        /// Encryption.
        ENCRYPTION = 0x0001;
        /// Signing.
        SIGNING = 0x0002;
    }
}

/// Signature and nonce of one payload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Crypto {
    /// Kind of the transform.
    pub kind: RdmaTransformId,
    /// Signature or tag.
    pub signature: Bytes,
    /// Nonce; empty if the algorithm has none.
    pub nonce: Bytes,
}

/// The channel information of a WRITE whose payload is transformed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Transformed {
    /// The crypto transform.
    pub crypto: Crypto,
    /// Whether the server's response invalidates the first token.
    pub revoke: bool,
    /// Memory that holds the payload.
    pub descriptors: Descriptors,
}

/// Length of a transform without descriptors, in bytes.
pub const fn len(nonce_len: usize) -> usize {
    nonce_len.saturating_add(HEAD_LEN + CRYPTO_LEN + SIGNATURE_LEN).next_multiple_of(8)
}

/// Parses both structures: the crypto transform, and the offset of its end.
fn parse_head(bytes: &Bytes) -> Result<(Crypto, usize), Malformed> {
    const MALFORMED: Malformed = Malformed("RDMA transform");
    let head = bytes.get(..HEAD_LEN + CRYPTO_LEN).ok_or(MALFORMED)?;
    if u16_at(head, 8) != 1 {
        return Err(Malformed("RDMA transform: count is not one"));
    }
    let kind = RdmaTransformId(u16_at(head, HEAD_LEN));
    if !matches!(kind, RdmaTransformId::ENCRYPTION | RdmaTransformId::SIGNING) {
        return Err(Malformed("RDMA transform: unknown type"));
    }
    let signature_at = HEAD_LEN + CRYPTO_LEN;
    let nonce_at = signature_at + usize::from(u16_at(head, HEAD_LEN + 2));
    let end = nonce_at.saturating_add(usize::from(u16_at(head, HEAD_LEN + 4)));
    if end > bytes.len() {
        return Err(MALFORMED);
    }
    let (signature, nonce) = (bytes.slice(signature_at..nonce_at), bytes.slice(nonce_at..end));
    Ok((Crypto { kind, signature, nonce }, end.next_multiple_of(8)))
}

fn emit_head(crypto: &Crypto, channel: u32, descriptors: usize, out: &mut Vec<u8>) {
    let start = out.len();
    let crypto_len: usize = [HEAD_LEN + CRYPTO_LEN, crypto.signature.len(), crypto.nonce.len()].iter().sum();
    let at = crypto_len.next_multiple_of(8);
    out.put_u16(if descriptors > 0 { len16(at) } else { 0 });
    out.put_u16(len16(descriptors));
    out.put_u32(channel);
    out.put_u16(1);
    out.put_zeros(6);
    out.put_u16(crypto.kind.0);
    out.put_u16(len16(crypto.signature.len()));
    out.put_u16(len16(crypto.nonce.len()));
    out.put_u16(0);
    out.put(&crypto.signature);
    out.put(&crypto.nonce);
    pad(out, start, 8);
}

impl Crypto {
    /// Parses the buffer of a READ response.
    pub fn parse(bytes: &Bytes) -> Result<Crypto, Malformed> {
        parse_head(bytes).map(|(crypto, _)| crypto)
    }

    /// Appends the buffer of a READ response.
    pub fn emit(&self, out: &mut Vec<u8>) {
        emit_head(self, 0, 0, out);
    }
}

impl Transformed {
    /// Parses channel information.
    pub(crate) fn parse(info: &Bytes) -> Result<Transformed, Malformed> {
        let (crypto, end) = parse_head(info)?;
        let (at, len) = (usize::from(u16_at(info, 0)), usize::from(u16_at(info, 2)));
        let revoke = match u32_at(info, 4) {
            1 => false,
            2 => true,
            _ => return Err(Malformed("RDMA transform: unknown channel")),
        };
        // 3.3.5.13: at the first 8-byte boundary after the transform.
        let descriptors = slice(info, at, len)
            .filter(|_| at == end)
            .ok_or(Malformed("RDMA transform: descriptors are not where they should be"))?;
        Ok(Transformed { crypto, revoke, descriptors: Descriptors::parse(descriptors)? })
    }

    /// The channel information.
    pub(crate) fn to_bytes(&self) -> Bytes {
        let mut out = Vec::new();
        let descriptors = self.descriptors.as_bytes();
        emit_head(&self.crypto, if self.revoke { 2 } else { 1 }, descriptors.len(), &mut out);
        out.put(descriptors);
        out.into()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::descriptor::Descriptor;
    use super::*;

    fn transformed(nonce: usize) -> Transformed {
        let crypto = Crypto {
            kind: RdmaTransformId::ENCRYPTION,
            signature: Bytes::from_static(&[0xaa; 16]),
            nonce: vec![0xbb; nonce].into(),
        };
        let descriptors = [Descriptor { offset: 7, token: 8, length: 9 }].into_iter().collect();
        Transformed { crypto, revoke: true, descriptors }
    }

    #[test]
    fn layout() {
        let bytes = transformed(11).to_bytes();
        let expected = [
            &[56, 0, 16, 0, 2, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0][..],
            &[1, 0, 16, 0, 11, 0, 0, 0],
            &[0xaa; 16],
            &[0xbb; 11],
            &[0; 5],
            &[7, 0, 0, 0, 0, 0, 0, 0, 8, 0, 0, 0, 9, 0, 0, 0],
        ];
        assert_eq!(bytes, expected.concat());
        for nonce in [0, 11, 12] {
            let whole = transformed(nonce);
            assert_eq!(Transformed::parse(&whole.to_bytes()), Ok(whole.clone()));
            let mut out = Vec::new();
            whole.crypto.emit(&mut out);
            assert_eq!(out.len(), len(nonce));
            assert_eq!(Crypto::parse(&out.into()), Ok(whole.crypto));
        }
    }

    #[test]
    fn what_is_cut_or_not_one_is_refused() {
        let whole = transformed(12).to_bytes();
        for n in 0..whole.len() {
            assert!(Transformed::parse(&whole.slice(..n)).is_err(), "{n}");
        }
        // Count 0, count 2, type 3, channel none, descriptors over the nonce.
        for (at, value) in [(8, 0), (8, 2), (16, 3), (4, 0), (0, 48)] {
            let mut changed = whole.to_vec();
            changed[at] = value;
            assert!(Transformed::parse(&changed.into()).is_err(), "{at}");
        }
    }

    proptest! {
        #[test]
        fn noise_is_an_error_or_a_transform(bytes in prop::collection::vec(any::<u8>(), 0..128)) {
            let bytes = Bytes::from(bytes);
            let _ = (Crypto::parse(&bytes), Transformed::parse(&bytes));
        }
    }
}
