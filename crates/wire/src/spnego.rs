//! SPNEGO tokens: NegTokenInit (and Microsoft's NegTokenInit2) and NegTokenResp.
//!
//! Implements RFC 4178 4.2 and [MS-SPNG] 2.2.1, with RFC 2743 3.1 for the frame of the first token. `smb::auth` chooses
//! a mechanism and computes the mechListMIC.
//!
//! ```text
//! 60 len  06 06 2b0601050502  a0 len  30 len         NegTokenInit, framed
//!                                       a0 mechTypes  a1 reqFlags  a2 mechToken  a3 mechListMIC (NegTokenInit2: a3 negHints, a4 mechListMIC)
//! a1 len  30 len                                     NegTokenResp, bare
//!           a0 negState  a1 supportedMech  a2 responseToken  a3 mechListMIC
//! ```

use der::asn1::AnyRef;
pub use der::asn1::ObjectIdentifier;
use der::{Decode, Encode, Reader, SliceReader, Tag, TagNumber, Tagged};

/// SPNEGO.
pub const SPNEGO: ObjectIdentifier = ObjectIdentifier::new_unwrap("1.3.6.1.5.5.2");
/// NTLM.
pub const NTLMSSP: ObjectIdentifier = ObjectIdentifier::new_unwrap("1.3.6.1.4.1.311.2.2.10");
/// Kerberos 5.
pub const KERBEROS: ObjectIdentifier = ObjectIdentifier::new_unwrap("1.2.840.113554.1.2.2");
/// Kerberos 5 under the mistyped identifier that Windows sends first.
pub const MS_KERBEROS: ObjectIdentifier = ObjectIdentifier::new_unwrap("1.2.840.48018.1.2.2");

/// Most mechanisms that a token may list. Windows sends four.
const MAX_MECHANISMS: usize = 32;

/// A token that RFC 4178 does not allow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("malformed SPNEGO token: {0}")]
pub struct Malformed(pub &'static str);

impl From<der::Error> for Malformed {
    fn from(_: der::Error) -> Malformed {
        Malformed("not DER")
    }
}

/// The first token of a negotiation.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NegTokenInit {
    /// Mechanisms, the preferred one first.
    pub mech_types: Vec<ObjectIdentifier>,
    /// The DER of MechTypeList on the wire, which a mechListMIC covers. Computed from `mech_types` when emitted.
    pub mech_types_der: Vec<u8>,
    /// First token of the preferred mechanism, sent in case that it is chosen.
    pub mech_token: Option<Vec<u8>>,
}

/// negState.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "names of RFC 4178 4.2.2")]
pub enum NegState {
    AcceptCompleted = 0,
    AcceptIncomplete = 1,
    Reject = 2,
    RequestMic = 3,
}

/// Any later token.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NegTokenResp {
    /// State of the negotiation; an initiator omits it.
    pub neg_state: Option<NegState>,
    /// The chosen mechanism, in the acceptor's first token.
    pub supported_mech: Option<ObjectIdentifier>,
    /// The mechanism's token.
    pub response_token: Option<Vec<u8>>,
    /// Integrity of the mechanism list.
    pub mech_list_mic: Option<Vec<u8>>,
}

/// A token from a peer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Token {
    /// The first token.
    Init(NegTokenInit),
    /// A later token.
    Resp(NegTokenResp),
}

impl Token {
    /// Parses a token; its tag tells the kind.
    pub fn parse(bytes: &[u8]) -> Result<Token, Malformed> {
        match bytes.first() {
            Some(0x60) => NegTokenInit::parse(bytes).map(Token::Init),
            Some(0xa1) => NegTokenResp::parse(bytes).map(Token::Resp),
            _ => Err(Malformed("neither NegTokenInit nor NegTokenResp")),
        }
    }
}

impl NegTokenInit {
    /// A token that offers these mechanisms.
    pub fn new(mech_types: &[ObjectIdentifier], mech_token: Option<Vec<u8>>) -> NegTokenInit {
        let list: Vec<u8> =
            mech_types.iter().flat_map(|oid| tlv(Tag::ObjectIdentifier, oid.as_bytes())).collect();
        let mech_types_der = tlv(Tag::Sequence, &list);
        NegTokenInit { mech_types: mech_types.to_vec(), mech_types_der, mech_token }
    }

    /// Parses the framed token and skips the fields that we do not use (reqFlags, negHints).
    pub fn parse(bytes: &[u8]) -> Result<NegTokenInit, Malformed> {
        let frame = only(bytes)?;
        if frame.tag() != (Tag::Application { constructed: true, number: TagNumber(0) }) {
            return Err(Malformed("RFC 2743 3.1: not a framed first token"));
        }
        let mut reader = SliceReader::new(frame.value())?;
        if ObjectIdentifier::decode(&mut reader)? != SPNEGO {
            return Err(Malformed("RFC 2743 3.1: not SPNEGO"));
        }
        let choice = AnyRef::decode(&mut reader)?;
        reader.finish()?;
        if choice.tag() != context(0) {
            return Err(Malformed("RFC 4178 4.2: not a negTokenInit"));
        }
        let mut token = NegTokenInit::default();
        for field in fields(choice.value())? {
            if field.tag() == context(0) {
                token.mech_types_der = field.value().to_vec();
                token.mech_types = mech_types(field.value())?;
            } else if field.tag() == context(2) {
                token.mech_token = Some(octets(field.value())?);
            } else if ![1, 3, 4].map(context).contains(&field.tag()) {
                return Err(Malformed("RFC 4178 4.2.1: unknown field"));
            }
        }
        match token.mech_types.is_empty() {
            true => Err(Malformed("RFC 4178 4.2.1: no mechTypes")),
            false => Ok(token),
        }
    }

    /// The framed token.
    pub fn emit(&self) -> Vec<u8> {
        let mut body = tlv(context(0), &self.mech_types_der);
        if let Some(token) = &self.mech_token {
            body.extend(tlv(context(2), &tlv(Tag::OctetString, token)));
        }
        let mut framed = tlv(Tag::ObjectIdentifier, SPNEGO.as_bytes());
        framed.extend(tlv(context(0), &tlv(Tag::Sequence, &body)));
        tlv(Tag::Application { constructed: true, number: TagNumber(0) }, &framed)
    }
}

impl NegTokenResp {
    /// Parses a token.
    pub fn parse(bytes: &[u8]) -> Result<NegTokenResp, Malformed> {
        let choice = only(bytes)?;
        if choice.tag() != context(1) {
            return Err(Malformed("RFC 4178 4.2: not a negTokenResp"));
        }
        let mut token = NegTokenResp::default();
        for field in fields(choice.value())? {
            let tag = field.tag();
            if tag == context(0) {
                let state = only(field.value())?;
                token.neg_state = Some(match (state.tag(), state.value()) {
                    (Tag::Enumerated, [0]) => NegState::AcceptCompleted,
                    (Tag::Enumerated, [1]) => NegState::AcceptIncomplete,
                    (Tag::Enumerated, [2]) => NegState::Reject,
                    (Tag::Enumerated, [3]) => NegState::RequestMic,
                    _ => return Err(Malformed("RFC 4178 4.2.2: unknown negState")),
                });
            } else if tag == context(1) {
                token.supported_mech = Some(ObjectIdentifier::from_der(field.value())?);
            } else if tag == context(2) {
                token.response_token = Some(octets(field.value())?);
            } else if tag == context(3) {
                token.mech_list_mic = Some(octets(field.value())?);
            } else {
                return Err(Malformed("RFC 4178 4.2.2: unknown field"));
            }
        }
        Ok(token)
    }

    /// The token.
    pub fn emit(&self) -> Vec<u8> {
        let mut body = Vec::new();
        if let Some(state) = self.neg_state {
            body.extend(tlv(context(0), &tlv(Tag::Enumerated, &[state as u8])));
        }
        if let Some(mech) = self.supported_mech {
            body.extend(tlv(context(1), &tlv(Tag::ObjectIdentifier, mech.as_bytes())));
        }
        if let Some(token) = &self.response_token {
            body.extend(tlv(context(2), &tlv(Tag::OctetString, token)));
        }
        if let Some(mic) = &self.mech_list_mic {
            body.extend(tlv(context(3), &tlv(Tag::OctetString, mic)));
        }
        tlv(context(1), &tlv(Tag::Sequence, &body))
    }
}

fn context(number: u32) -> Tag {
    Tag::ContextSpecific { constructed: true, number: TagNumber(number) }
}

/// Parses `bytes` as exactly one value.
fn only(bytes: &[u8]) -> Result<AnyRef<'_>, Malformed> {
    let mut reader = SliceReader::new(bytes)?;
    let value = AnyRef::decode(&mut reader)?;
    reader.finish()?;
    Ok(value)
}

/// Parses `bytes` as one SEQUENCE and returns its elements.
fn fields(bytes: &[u8]) -> Result<Vec<AnyRef<'_>>, Malformed> {
    let sequence = only(bytes)?;
    if sequence.tag() != Tag::Sequence {
        return Err(Malformed("RFC 4178 4.2: SEQUENCE expected"));
    }
    let mut reader = SliceReader::new(sequence.value())?;
    let mut elements = Vec::new();
    while !reader.is_finished() {
        if elements.len() == MAX_MECHANISMS {
            return Err(Malformed("too many elements"));
        }
        elements.push(AnyRef::decode(&mut reader)?);
    }
    Ok(elements)
}

fn mech_types(bytes: &[u8]) -> Result<Vec<ObjectIdentifier>, Malformed> {
    fields(bytes)?
        .into_iter()
        .map(|oid| match oid.tag() {
            // No mechanism of ours has an identifier longer than `der` supports; such tokens are rejected.
            Tag::ObjectIdentifier => Ok(ObjectIdentifier::from_bytes(oid.value()).map_err(der::Error::from)?),
            _ => Err(Malformed("RFC 4178 4.1: OBJECT IDENTIFIER expected")),
        })
        .collect()
}

fn octets(bytes: &[u8]) -> Result<Vec<u8>, Malformed> {
    let value = only(bytes)?;
    match value.tag() {
        Tag::OctetString => Ok(value.value().to_vec()),
        _ => Err(Malformed("OCTET STRING expected")),
    }
}

fn tlv(tag: Tag, content: &[u8]) -> Vec<u8> {
    AnyRef::new(tag, content)
        .and_then(|any| any.to_der())
        .expect("tokens that we emit are far below DER's limit")
}

#[cfg(test)]
mod tests;
