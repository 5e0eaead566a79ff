//! ONC RPC version 2: the header of calls and replies (RFC 5531 section 8), AUTH_NONE and AUTH_SYS credentials (section
//! 9 and appendix A), and record marking (section 11). [`gss`] has the credentials of RPCSEC_GSS.
//!
//! Arguments and results follow [`Call`] and [`Reply`] in the stream. Callers match replies to calls and decide who may
//! call.

pub mod gss;

use std::fmt;

use bytes::Bytes;

use crate::xdr::{Decoder, Encoder, Malformed};
use gss::GssCredential;

/// RPC version (RFC 5531 section 9).
pub const RPC_VERSION: u32 = 2;
/// Longest body of an `opaque_auth` (RFC 5531 8.2).
pub const MAX_AUTH_BYTES: usize = 400;
/// Longest machine name in AUTH_SYS (RFC 5531 appendix A).
pub const MAX_MACHINE_NAME: usize = 255;
/// Most supplementary groups in AUTH_SYS.
pub const MAX_GROUPS: usize = 16;

const CALL: u32 = 0;
const REPLY: u32 = 1;

/// An authentication flavour.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Flavor(pub u32);

impl Flavor {
    /// AUTH_NONE: no identity.
    pub const NONE: Flavor = Flavor(0);
    /// AUTH_SYS: Unix ids, unproven.
    pub const SYS: Flavor = Flavor(1);
    /// RPCSEC_GSS: a context of GSS-API (RFC 2203).
    pub const GSS: Flavor = Flavor(6);
    /// The pseudo flavor of RPCSEC_GSS with Kerberos and without protection of the data (RFC 2623 4.2).
    pub const KRB5: Flavor = Flavor(390_003);
    /// The same with integrity.
    pub const KRB5I: Flavor = Flavor(390_004);
    /// The same with privacy.
    pub const KRB5P: Flavor = Flavor(390_005);
    /// AUTH_TLS: asks whether the connection may continue under TLS (RFC 9289 4.1).
    pub const TLS: Flavor = Flavor(7);

    /// Whether this is one of the pseudo flavors of Kerberos.
    pub fn is_kerberos(self) -> bool {
        matches!(self, Flavor::KRB5 | Flavor::KRB5I | Flavor::KRB5P)
    }
}

/// As mount's option `sec=` names it.
impl fmt::Display for Flavor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match *self {
            Flavor::NONE => "none",
            Flavor::SYS => "sys",
            Flavor::KRB5 => "krb5",
            Flavor::KRB5I => "krb5i",
            Flavor::KRB5P => "krb5p",
            Flavor(number) => return write!(f, "flavor {number}"),
        })
    }
}

/// The caller's identity.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Credential {
    /// AUTH_NONE.
    None,
    /// AUTH_SYS.
    Sys(AuthSys),
    /// RPCSEC_GSS.
    Gss(GssCredential),
    /// A flavour that this module does not parse; its body is skipped.
    Other(Flavor),
}

/// Unix ids that the client claims.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AuthSys {
    /// An arbitrary number of the client's.
    pub stamp: u32,
    /// The client's name.
    pub machine_name: Bytes,
    /// User.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    gids: [u32; MAX_GROUPS],
    gid_count: usize,
}

impl AuthSys {
    /// Ids without supplementary groups.
    pub fn new(machine_name: Bytes, uid: u32, gid: u32) -> AuthSys {
        AuthSys { stamp: 0, machine_name, uid, gid, gids: [0; MAX_GROUPS], gid_count: 0 }
    }

    /// Supplementary groups.
    pub fn gids(&self) -> &[u32] {
        self.gids.get(..self.gid_count).unwrap_or(&self.gids)
    }

    /// Adds a supplementary group. Groups beyond the 16th are left out, because the protocol has no room for them.
    pub fn push_gid(&mut self, gid: u32) {
        if let Some(slot) = self.gids.get_mut(self.gid_count) {
            *slot = gid;
            self.gid_count = self.gid_count.saturating_add(1);
        }
    }

    fn parse(body: Bytes) -> Result<AuthSys, Malformed> {
        let mut d = Decoder::new(body);
        let sys = AuthSys::parse_from(&mut d)?;
        d.end()?;
        Ok(sys)
    }

    /// Reads the body from a stream in which other items follow.
    pub(crate) fn parse_from(d: &mut Decoder) -> Result<AuthSys, Malformed> {
        let stamp = d.u32()?;
        let machine_name = d.opaque(MAX_MACHINE_NAME)?;
        let mut sys = AuthSys { stamp, ..AuthSys::new(machine_name, d.u32()?, d.u32()?) };
        for _ in 0..d.length(MAX_GROUPS)? {
            sys.push_gid(d.u32()?);
        }
        Ok(sys)
    }

    pub(crate) fn emit(&self, e: &mut Encoder) {
        e.u32(self.stamp);
        e.opaque(&self.machine_name);
        e.u32(self.uid);
        e.u32(self.gid);
        e.u32(self.gid_count as u32);
        self.gids().iter().for_each(|gid| e.u32(*gid));
    }
}

/// Why a credential is refused (`auth_stat`, RFC 5531 section 9).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AuthStat(pub u32);

impl AuthStat {
    /// Bad credential (broken body).
    pub const BADCRED: AuthStat = AuthStat(1);
    /// The client must begin anew.
    pub const REJECTEDCRED: AuthStat = AuthStat(2);
    /// Rejected for security reasons.
    pub const TOOWEAK: AuthStat = AuthStat(5);
    /// RPCSEC_GSS: the context is unknown, or its checksum is wrong.
    pub const GSS_CREDPROBLEM: AuthStat = AuthStat(13);
    /// RPCSEC_GSS: the context has expired.
    pub const GSS_CTXPROBLEM: AuthStat = AuthStat(14);
}

impl fmt::Display for AuthStat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (words, name) = match self.0 {
            1 => ("it cannot read the credential", "AUTH_BADCRED"),
            2 => ("it has dropped the credential", "AUTH_REJECTEDCRED"),
            3 => ("it cannot read the verifier", "AUTH_BADVERF"),
            4 => ("the verifier has expired or was used before", "AUTH_REJECTEDVERF"),
            5 => ("it wants stronger authentication", "AUTH_TOOWEAK"),
            6 => ("it sent a wrong verifier", "AUTH_INVALIDRESP"),
            7 => ("it cannot check the credential", "AUTH_FAILED"),
            13 => ("it does not know the Kerberos credential", "RPCSEC_GSS_CREDPROBLEM"),
            14 => ("the Kerberos context has a problem", "RPCSEC_GSS_CTXPROBLEM"),
            other => return write!(f, "auth_stat {other}"),
        };
        write!(f, "{words} ({name})")
    }
}

/// The header of a call; the arguments follow.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Call {
    /// Transaction id.
    pub xid: u32,
    /// Program number.
    pub program: u32,
    /// Program version.
    pub version: u32,
    /// Procedure number.
    pub procedure: u32,
    /// The caller's identity.
    pub credential: Credential,
}

/// Why a message is not a call that can be dispatched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotACall {
    /// Not an RPC call message at all: no answer is possible.
    Malformed(Malformed),
    /// A call of another RPC version: answer [`Reply::RpcMismatch`].
    RpcVersion {
        /// Transaction id.
        xid: u32,
    },
    /// A call whose credential is malformed: answer [`Reply::AuthError`].
    Auth {
        /// Transaction id.
        xid: u32,
        /// The reason.
        stat: AuthStat,
    },
}

impl From<Malformed> for NotACall {
    fn from(e: Malformed) -> NotACall {
        NotACall::Malformed(e)
    }
}

fn opaque_auth(d: &mut Decoder) -> Result<(Flavor, Bytes), Malformed> {
    Ok((Flavor(d.u32()?), d.opaque(MAX_AUTH_BYTES)?))
}

impl Call {
    /// Reads the header from the stream.
    pub fn parse(d: &mut Decoder) -> Result<Call, NotACall> {
        let xid = d.u32()?;
        if d.u32()? != CALL {
            return Err(Malformed("RFC 5531 9: not a call").into());
        }
        if d.u32()? != RPC_VERSION {
            return Err(NotACall::RpcVersion { xid });
        }
        let (program, version, procedure) = (d.u32()?, d.u32()?, d.u32()?);
        let (flavor, body) = opaque_auth(d)?;
        let covered_bytes = d.position();
        let verifier = opaque_auth(d)?;
        let credential = match flavor {
            Flavor::NONE => Credential::None,
            Flavor::SYS => match AuthSys::parse(body) {
                Ok(sys) => Credential::Sys(sys),
                Err(_) => return Err(NotACall::Auth { xid, stat: AuthStat::BADCRED }),
            },
            Flavor::GSS => match GssCredential::parse(body, covered_bytes, verifier) {
                Ok(gss) => Credential::Gss(gss),
                Err(_) => return Err(NotACall::Auth { xid, stat: AuthStat::BADCRED }),
            },
            other => Credential::Other(other),
        };
        Ok(Call { xid, program, version, procedure, credential })
    }

    /// Appends the header of a call in a context of RPCSEC_GSS, with the MIC that `sign` makes of everything before the
    /// verifier (RFC 2203 5.3.1). The encoder holds nothing else.
    ///
    /// # Errors
    /// Those of `sign`.
    pub fn emit_signed<E>(
        mut self,
        e: &mut Encoder,
        sign: impl FnOnce(&[u8]) -> Result<Vec<u8>, E>,
    ) -> Result<(), E> {
        debug_assert!(e.is_empty() && matches!(self.credential, Credential::Gss(_)));
        if let Credential::Gss(gss) = &mut self.credential {
            gss.mic = Bytes::new();
        }
        self.emit(e);
        // The verifier is empty, so the header ends with its flavor and its length.
        e.truncate(e.len().saturating_sub(8));
        let mic = sign(&e.copy_from(0))?;
        gss::emit_verifier(&mic, e);
        Ok(())
    }

    /// Appends the header. A credential of another flavour is emitted with an empty body.
    pub fn emit(&self, e: &mut Encoder) {
        e.u32(self.xid);
        e.u32(CALL);
        e.u32(RPC_VERSION);
        e.u32(self.program);
        e.u32(self.version);
        e.u32(self.procedure);
        match &self.credential {
            Credential::None => emit_none(e),
            Credential::Sys(sys) => {
                e.u32(Flavor::SYS.0);
                let mut body = Encoder::with_capacity(64);
                sys.emit(&mut body);
                e.opaque(&body.into_bytes());
            }
            Credential::Gss(gss) => return gss.emit(e),
            Credential::Other(flavor) => {
                e.u32(flavor.0);
                e.u32(0);
            }
        }
        emit_none(e);
    }
}

fn emit_none(e: &mut Encoder) {
    e.u32(Flavor::NONE.0);
    e.u32(0);
}

/// The header of a reply; results follow [`Reply::Success`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reply {
    /// The call was executed; its results follow.
    Success,
    /// The program is not available here.
    ProgramUnavailable,
    /// This version of the program is not available.
    ProgramMismatch {
        /// Lowest supported version.
        low: u32,
        /// Highest supported version.
        high: u32,
    },
    /// The program has no such procedure.
    ProcedureUnavailable,
    /// The arguments do not parse.
    GarbageArgs,
    /// The server failed (out of memory and the like).
    SystemError,
    /// The RPC version is not 2.
    RpcMismatch {
        /// Lowest supported RPC version.
        low: u32,
        /// Highest supported RPC version.
        high: u32,
    },
    /// The credential is refused.
    AuthError(AuthStat),
}

impl fmt::Display for Reply {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Reply::Success => f.write_str("the server carried the call out"),
            Reply::ProgramUnavailable => {
                f.write_str("the server does not have this RPC program (PROG_UNAVAIL)")
            }
            Reply::ProgramMismatch { low, high } => {
                write!(f, "the server has only versions {low} to {high} of this RPC program (PROG_MISMATCH)")
            }
            Reply::ProcedureUnavailable => {
                f.write_str("the server does not have this procedure (PROC_UNAVAIL)")
            }
            Reply::GarbageArgs => f.write_str("the server cannot read the arguments (GARBAGE_ARGS)"),
            Reply::SystemError => f.write_str("the call was not carried out (SYSTEM_ERR)"),
            Reply::RpcMismatch { low, high } => {
                write!(f, "the server has only versions {low} to {high} of RPC (RPC_MISMATCH)")
            }
            Reply::AuthError(stat) => write!(f, "the server refuses who is calling: {stat}"),
        }
    }
}

impl Reply {
    /// Bytes of the header of [`Reply::Success`] with an empty verifier; results follow.
    pub const SUCCESS_BYTES: usize = 24;

    /// Reads xid and header from the stream.
    pub fn parse(d: &mut Decoder) -> Result<(u32, Reply), Malformed> {
        Reply::parse_verified(d).map(|(xid, reply, _)| (xid, reply))
    }

    /// The same with the MIC of RPCSEC_GSS that verifies the reply; `None` if it has no such verifier.
    pub fn parse_verified(d: &mut Decoder) -> Result<(u32, Reply, Option<Bytes>), Malformed> {
        let mut mic = None;
        let xid = d.u32()?;
        if d.u32()? != REPLY {
            return Err(Malformed("RFC 5531 9: not a reply"));
        }
        let reply = match d.u32()? {
            0 => {
                let (flavor, verifier) = opaque_auth(d)?;
                mic = (flavor == Flavor::GSS).then_some(verifier);
                match d.u32()? {
                    0 => Reply::Success,
                    1 => Reply::ProgramUnavailable,
                    2 => Reply::ProgramMismatch { low: d.u32()?, high: d.u32()? },
                    3 => Reply::ProcedureUnavailable,
                    4 => Reply::GarbageArgs,
                    5 => Reply::SystemError,
                    _ => return Err(Malformed("RFC 5531 9: unknown accept_stat")),
                }
            }
            1 => match d.u32()? {
                0 => Reply::RpcMismatch { low: d.u32()?, high: d.u32()? },
                1 => Reply::AuthError(AuthStat(d.u32()?)),
                _ => return Err(Malformed("RFC 5531 9: unknown reject_stat")),
            },
            _ => return Err(Malformed("RFC 5531 9: unknown reply_stat")),
        };
        Ok((xid, reply, mic))
    }

    /// Appends xid and header.
    pub fn emit(&self, xid: u32, e: &mut Encoder) {
        self.emit_with(xid, e, emit_none);
    }

    /// The same with a verifier of RPCSEC_GSS (RFC 2203 5.3.3.2). A rejected call has none.
    pub fn emit_verified(&self, xid: u32, mic: &[u8], e: &mut Encoder) {
        self.emit_with(xid, e, |e| gss::emit_verifier(mic, e));
    }

    fn emit_with(&self, xid: u32, e: &mut Encoder, verifier: impl FnOnce(&mut Encoder)) {
        e.u32(xid);
        e.u32(REPLY);
        if let Reply::RpcMismatch { .. } | Reply::AuthError(_) = self {
            e.u32(1);
        } else {
            e.u32(0);
            verifier(e);
        }
        match *self {
            Reply::Success => e.u32(0),
            Reply::ProgramUnavailable => e.u32(1),
            Reply::ProgramMismatch { low, high } => {
                e.u32(2);
                e.u32(low);
                e.u32(high);
            }
            Reply::ProcedureUnavailable => e.u32(3),
            Reply::GarbageArgs => e.u32(4),
            Reply::SystemError => e.u32(5),
            Reply::RpcMismatch { low, high } => {
                e.u32(0);
                e.u32(low);
                e.u32(high);
            }
            Reply::AuthError(stat) => {
                e.u32(1);
                e.u32(stat.0);
            }
        }
    }
}

/// The call that asks whether a connection may continue under TLS, as a record (RFC 9289 4.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Probe {
    /// Transaction id.
    pub xid: u32,
}

impl Probe {
    /// Bytes of the call, which no valid call is shorter than.
    pub const BYTES: usize = 40;

    /// Recognizes a record, fragment header included, that is such a call; `None` for anything else.
    pub fn parse(record: &[u8]) -> Option<Probe> {
        let record: &[u8; Fragment::BYTES + Probe::BYTES] = record.try_into().ok()?;
        let (head, call) = record.split_first_chunk()?;
        let whole = Fragment { last: true, len: Probe::BYTES as u32 };
        if Fragment::parse(*head) != whole {
            return None;
        }
        let mut d = Decoder::new(Bytes::copy_from_slice(call));
        let call = Call::parse(&mut d).ok()?;
        d.end().ok()?;
        let asks = call.procedure == 0 && call.credential == Credential::Other(Flavor::TLS);
        asks.then_some(Probe { xid: call.xid })
    }

    /// The affirmative answer, as a record.
    pub fn accept(&self) -> Bytes {
        let mut e = Encoder::with_capacity(40);
        e.u32(0);
        e.u32(self.xid);
        e.u32(REPLY);
        e.u32(0);
        e.u32(Flavor::NONE.0);
        e.opaque(b"STARTTLS");
        e.u32(0);
        let len = (e.len() as u32).saturating_sub(4);
        e.patch_u32(0, 1 << 31 | len);
        e.into_bytes()
    }
}

/// The header of one fragment of a record (RFC 5531 section 11).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fragment {
    /// Whether this is the record's last fragment.
    pub last: bool,
    /// Length of the fragment's data, below 2^31.
    pub len: u32,
}

impl Fragment {
    /// Bytes of the header.
    pub const BYTES: usize = 4;

    /// Parses a header. Any four bytes are one; the receiver judges the length.
    pub fn parse(bytes: [u8; 4]) -> Fragment {
        let word = u32::from_be_bytes(bytes);
        Fragment { last: word >> 31 == 1, len: word & 0x7fff_ffff }
    }

    /// The four bytes; `None` when `len` does not fit.
    pub fn emit(&self) -> Option<[u8; 4]> {
        let last = if self.last { 1 << 31 } else { 0 };
        (self.len < 1 << 31).then(|| (last | self.len).to_be_bytes())
    }
}

#[cfg(test)]
mod tests;
