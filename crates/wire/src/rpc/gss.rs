//! RPCSEC_GSS version 1: the credential of a call, the control messages that establish a context, and the bodies of
//! protected calls and replies.
//!
//! See RFC 2203 section 5. The tokens and checksums are GSS-API's and opaque here.
//!
//! ```text
//! credential    version (1), gss_proc, seq_num, service, handle<>
//! integrity     opaque(seq_num, arguments or results), opaque(MIC of the first)
//! privacy       opaque(wrapped: seq_num, arguments or results)
//! ```

use bytes::Bytes;

use super::{Flavor, MAX_AUTH_BYTES};
use crate::xdr::{Decoder, Encoder, Malformed, Xdr};

/// The version of RPCSEC_GSS (RFC 2203 5.0); RFC 5403's version 2 adds channel bindings.
const VERSION: u32 = 1;
/// Longest context handle in a call. Servers choose handles, so a longer one is not ours.
pub const MAX_HANDLE: usize = 64;
/// Longest context handle that a server may choose: what fits into a credential beside its four words and the length.
const MAX_CHOSEN_HANDLE: usize = MAX_AUTH_BYTES - 20;
/// Longest token of a control message: a Kerberos ticket with the authorization data of a large Windows domain.
pub const MAX_TOKEN: usize = 64 << 10;
/// Longest MIC of the library.
const MAX_CHECKSUM: usize = 1024;
/// The first sequence number that a client must not use.
pub const MAX_SEQUENCE: u32 = 0x8000_0000;

/// What a call with this credential does (`gss_proc`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Procedure {
    /// Carries out the procedure that the header names.
    Data,
    /// Begins a context.
    Init,
    /// Continues to establish a context.
    ContinueInit,
    /// Ends a context.
    Destroy,
}

/// How arguments and results are protected.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Service {
    /// Not at all: the header proves the caller.
    None,
    /// By a MIC.
    Integrity,
    /// Encrypted.
    Privacy,
}

impl Service {
    /// The number on the wire.
    pub const fn number(self) -> u32 {
        match self {
            Service::None => 1,
            Service::Integrity => 2,
            Service::Privacy => 3,
        }
    }
}

/// The credential and the verifier of a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GssCredential {
    /// What the call does.
    pub procedure: Procedure,
    /// The number of the call in its context.
    pub sequence: u32,
    /// The protection of arguments and results.
    pub service: Service,
    /// The context; empty for [`Procedure::Init`].
    pub handle: Bytes,
    /// Bytes of the call that the verifier covers: the header up to and including the credential.
    pub covered_bytes: usize,
    /// The MIC of these bytes; empty while a context is being established.
    pub mic: Bytes,
}

impl GssCredential {
    /// Parses the credential's body; the verifier follows it in the call.
    pub(super) fn parse(
        body: Bytes,
        covered_bytes: usize,
        verifier: (Flavor, Bytes),
    ) -> Result<GssCredential, Malformed> {
        let mut d = Decoder::new(body);
        if d.u32()? != VERSION {
            return Err(Malformed("RFC 2203 5.0: not version 1"));
        }
        let procedure = match d.u32()? {
            0 => Procedure::Data,
            1 => Procedure::Init,
            2 => Procedure::ContinueInit,
            3 => Procedure::Destroy,
            _ => return Err(Malformed("RFC 2203 5.0: gss_proc")),
        };
        let sequence = d.u32()?;
        let service = match (d.u32()?, procedure) {
            // RFC 2203 5.2.2: while a context is established, the service has no meaning.
            (_, Procedure::Init | Procedure::ContinueInit) | (1, _) => Service::None,
            (2, _) => Service::Integrity,
            (3, _) => Service::Privacy,
            _ => return Err(Malformed("RFC 2203 5.0: service")),
        };
        let handle = d.opaque(MAX_HANDLE)?;
        d.end()?;
        let mic = match (procedure, verifier) {
            (Procedure::Init | Procedure::ContinueInit, _) => Bytes::new(),
            (_, (Flavor::GSS, mic)) => mic,
            _ => return Err(Malformed("RFC 2203 5.3.1: the verifier's flavor")),
        };
        Ok(GssCredential { procedure, sequence, service, handle, covered_bytes, mic })
    }

    /// Appends the credential and the verifier.
    pub(super) fn emit(&self, e: &mut Encoder) {
        e.u32(Flavor::GSS.0);
        let mut body = Encoder::with_capacity(64);
        body.u32(VERSION);
        body.u32(match self.procedure {
            Procedure::Data => 0,
            Procedure::Init => 1,
            Procedure::ContinueInit => 2,
            Procedure::Destroy => 3,
        });
        body.u32(self.sequence);
        body.u32(self.service.number());
        body.opaque(&self.handle);
        e.opaque(&body.into_bytes());
        match self.procedure {
            Procedure::Data | Procedure::Destroy => emit_verifier(&self.mic, e),
            Procedure::Init | Procedure::ContinueInit => super::emit_none(e),
        }
    }
}

/// Appends a verifier with this MIC.
pub(super) fn emit_verifier(mic: &[u8], e: &mut Encoder) {
    debug_assert!(mic.len() <= MAX_AUTH_BYTES);
    e.u32(Flavor::GSS.0);
    e.opaque(mic);
}

/// The arguments of a control message: the client's token (RFC 2203 5.2.2).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InitToken(pub Bytes);

impl Xdr for InitToken {
    fn parse(d: &mut Decoder) -> Result<InitToken, Malformed> {
        d.opaque(MAX_TOKEN).map(InitToken)
    }
    fn emit(&self, e: &mut Encoder) {
        e.opaque(&self.0);
    }
}

/// The results of a control message (`rpc_gss_init_res`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InitResult {
    /// The context; empty if there is none.
    pub handle: Bytes,
    /// The major status of GSS-API (RFC 2744 3.9.1).
    pub major: u32,
    /// The mechanism's status.
    pub minor: u32,
    /// How many calls of the context may be under way.
    pub window: u32,
    /// The token for the client.
    pub token: Bytes,
}

impl Xdr for InitResult {
    fn parse(d: &mut Decoder) -> Result<InitResult, Malformed> {
        Ok(InitResult {
            handle: d.opaque(MAX_CHOSEN_HANDLE)?,
            major: d.u32()?,
            minor: d.u32()?,
            window: d.u32()?,
            token: d.opaque(MAX_TOKEN)?,
        })
    }
    fn emit(&self, e: &mut Encoder) {
        e.opaque(&self.handle);
        e.u32(self.major);
        e.u32(self.minor);
        e.u32(self.window);
        e.opaque(&self.token);
    }
}

/// A body with integrity (`rpc_gss_integ_data`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Integrity {
    /// Sequence number and arguments or results.
    pub body: Bytes,
    /// The MIC of the body.
    pub mic: Bytes,
}

impl Xdr for Integrity {
    fn parse(d: &mut Decoder) -> Result<Integrity, Malformed> {
        Ok(Integrity { body: d.opaque(d.remaining())?, mic: d.opaque(MAX_CHECKSUM)? })
    }
    fn emit(&self, e: &mut Encoder) {
        e.opaque(&self.body);
        e.opaque(&self.mic);
    }
}

/// An encrypted body (`rpc_gss_priv_data`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Privacy(pub Bytes);

impl Xdr for Privacy {
    fn parse(d: &mut Decoder) -> Result<Privacy, Malformed> {
        d.opaque(d.remaining()).map(Privacy)
    }
    fn emit(&self, e: &mut Encoder) {
        e.opaque(&self.0);
    }
}
