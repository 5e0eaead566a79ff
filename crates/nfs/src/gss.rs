//! RPCSEC_GSS as client and server share it: how the body of a call or reply is put into its protection and taken out.
//!
//! See RFC 2203 5.3.2 and 5.3.3.4. The headers are `weft_wire::rpc`'s, and establishing contexts is left to each side.
//!
//! ```text
//! call     header, credential (handle, sequence, service), MIC of both | arguments, by service
//! reply    header, MIC of the sequence                                 | results, by service
//! ```

use bytes::Bytes;
use weft_kerberos::Error;
use weft_wire::rpc::gss::{Integrity, Privacy, Service};
use weft_wire::xdr::{Decoder, Encoder, Xdr};

/// Room for the header of a reply and for its protection: two MICs, or what encryption adds, each below 100 bytes.
pub(crate) const PROTECTION_BYTES: usize = 512;

/// An established security context (RFC 2743 1.1.3). These calls only compute.
pub(crate) trait SecurityContext {
    /// Computes the MIC of `message`.
    fn mic(&self, message: &[u8]) -> Result<Vec<u8>, Error>;
    /// Whether `mic` is the peer's MIC of `message`.
    fn verify(&self, message: &[u8], mic: &[u8]) -> bool;
    /// Encrypts `message` for the peer.
    fn wrap(&self, message: &[u8]) -> Result<Vec<u8>, Error>;
    /// Decrypts the peer's `token`.
    fn unwrap(&self, token: &[u8]) -> Option<Vec<u8>>;
}

/// Arguments or results, out of their protection; `None` if they are not the peer's.
pub(crate) fn open(
    context: &impl SecurityContext,
    service: Service,
    sequence: u32,
    mut d: Decoder,
) -> Option<Decoder> {
    let body = match service {
        Service::None => return Some(d),
        // RFC 8166 8.2.2.3: with either service, nothing is reduced.
        Service::Integrity | Service::Privacy if d.is_reduced() => return None,
        Service::Integrity => {
            let Integrity { body, mic } = Integrity::parse(&mut d).ok()?;
            context.verify(&body, &mic).then_some(body)?
        }
        Service::Privacy => {
            let Privacy(token) = Privacy::parse(&mut d).ok()?;
            Bytes::from(context.unwrap(&token)?)
        }
    };
    d.end().ok()?;
    let mut opened = Decoder::new(body);
    (opened.u32().ok()? == sequence).then(|| Decoder::new(opened.rest()))
}

/// The beginning of a body that will be protected; `bytes` of arguments or results follow.
pub(crate) fn body(sequence: u32, bytes: usize) -> Encoder {
    let mut body = Encoder::with_capacity(bytes.saturating_add(4));
    body.u32(sequence);
    body
}

/// Appends the protected body to a message. It is copied, because what the library protects is contiguous. Without
/// protection there is no such body: arguments and results follow the header.
pub(crate) fn seal(
    context: &impl SecurityContext,
    service: Service,
    body: Encoder,
    message: &mut Encoder,
) -> Result<(), Error> {
    let body = body.into_bytes();
    match service {
        Service::Privacy => Privacy(context.wrap(&body)?.into()).emit(message),
        Service::None | Service::Integrity => {
            let mic = context.mic(&body)?.into();
            Integrity { body, mic }.emit(message);
        }
    }
    Ok(())
}
