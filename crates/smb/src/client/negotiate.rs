//! Negotiates the dialect, limits and algorithms.
//!
//! Spec: [MS-SMB2] 3.2.4.2.2.2 (request), 3.2.5.2 (response), 3.2.5.5 (validation in 3.0 and 3.0.2).

use std::rc::Rc;

use bytes::Bytes;
use weft_machine::random;
use weft_wire::smb2::ioctl::{ValidateNegotiateRequest, ValidateNegotiateResponse};
use weft_wire::smb2::negotiate::{
    Capabilities, CipherId, Context, HashId, Request, Response, SecurityMode, SigningId,
};
use weft_wire::smb2::rdma_transform::RdmaTransformId;
use weft_wire::smb2::{Command, Dialect, Guid};

use super::error::{Denial, Error};
use super::link::{Call, Link, Protection};
use super::options::{Options, Wish};
use crate::compression::Agreed;
use crate::crypto::{Preauth, Profile};

/// A server that allows less than this per READ or WRITE is refused; none does.
const MIN_IO_BYTES: u32 = 4096;

/// What NEGOTIATE settled.
pub(super) struct Negotiated {
    pub profile: Profile,
    pub server_guid: Guid,
    pub server_capabilities: Capabilities,
    pub server_security_mode: SecurityMode,
    pub max_transact: u32,
    pub max_read: u32,
    pub max_write: u32,
    /// Whether requests may cost several credits.
    pub multi_credit: bool,
    /// The transforms of RDMA payload that both sides support.
    pub transforms: Vec<RdmaTransformId>,
    /// How messages may be compressed.
    pub compression: Option<Rc<Agreed>>,
    /// The preauthentication hash after both messages.
    pub preauth: Preauth,
    /// Our request, for validation.
    request: Request,
}

impl Negotiated {
    /// Whether one of the sides requires everything to be signed.
    pub fn signing_required(&self) -> bool {
        self.request.security_mode.contains(SecurityMode::SIGNING_REQUIRED)
            || self.server_security_mode.contains(SecurityMode::SIGNING_REQUIRED)
    }

    /// Our ClientGuid.
    pub fn client_guid(&self) -> Guid {
        self.request.client_guid
    }

    /// Whether a session may have several connections.
    pub fn multichannel(&self) -> bool {
        self.profile.dialect >= Dialect::V3_0
            && self.server_capabilities.contains(Capabilities::MULTI_CHANNEL)
    }

    /// 3.2.5.2: whether another connection to the same server agrees with the first where it must. Each connection has
    /// its own signing algorithm.
    pub fn agrees(&self, first: &Negotiated) -> bool {
        self.server_guid == first.server_guid
            && self.profile.dialect == first.profile.dialect
            && self.profile.cipher == first.profile.cipher
            && self.server_capabilities == first.server_capabilities
            && self.server_security_mode == first.server_security_mode
    }

    /// Our security mode, which SESSION_SETUP repeats.
    pub fn security_mode(&self) -> SecurityMode {
        self.request.security_mode
    }

    /// Input of FSCTL_VALIDATE_NEGOTIATE_INFO: the fields that we sent.
    pub fn validation(&self) -> Bytes {
        let mut out = Vec::new();
        ValidateNegotiateRequest {
            capabilities: self.request.capabilities,
            guid: self.request.client_guid,
            security_mode: self.request.security_mode,
            dialects: self.request.dialects.clone(),
        }
        .emit(&mut out);
        out.into()
    }

    /// Checks that the validation response matches the NEGOTIATE response.
    pub fn validate(&self, output: &[u8]) -> Result<(), Error> {
        let said = ValidateNegotiateResponse {
            capabilities: self.server_capabilities,
            guid: self.server_guid,
            security_mode: self.server_security_mode,
            dialect: self.profile.dialect,
        };
        match ValidateNegotiateResponse::parse(output)? == said {
            true => Ok(()),
            false => Err(Denial::Downgrade.into()),
        }
    }
}

fn request(options: &Options, rdma: bool, guid: Option<Guid>) -> Result<Request, Error> {
    const ALL: [Dialect; 4] = [Dialect::V2_1, Dialect::V3_0, Dialect::V3_0_2, Dialect::V3_1_1];
    let dialects: Vec<_> = ALL.into_iter().filter(|d| options.dialects.contains(d)).collect();
    let last = *dialects.last().ok_or(Denial::Dialect)?;
    let mut security_mode = SecurityMode::SIGNING_ENABLED;
    if options.signing == Wish::Required {
        security_mode |= SecurityMode::SIGNING_REQUIRED;
    }
    let mut capabilities = Capabilities::LARGE_MTU;
    if dialects.iter().any(|dialect| *dialect >= Dialect::V3_0) {
        capabilities |= Capabilities::MULTI_CHANNEL | Capabilities::PERSISTENT_HANDLES;
    }
    // In 3.0 and 3.0.2 the bit means AES-128-CCM. In 3.1.1 the context says everything, but Samba answers it only for
    // clients that set the bit as well.
    if options.ciphers.contains(&CipherId::AES_128_CCM) && last >= Dialect::V3_0
        || !options.ciphers.is_empty() && last == Dialect::V3_1_1
    {
        capabilities |= Capabilities::ENCRYPTION;
    }
    let mut contexts = Vec::new();
    if dialects.contains(&Dialect::V3_1_1) {
        contexts.push(Context::Preauth {
            hashes: vec![HashId::SHA512],
            salt: Bytes::copy_from_slice(&random::bytes::<32>()?),
        });
        if !options.ciphers.is_empty() {
            contexts.push(Context::Encryption(options.ciphers.clone()));
        }
        if !options.signing_algorithms.is_empty() {
            contexts.push(Context::Signing(options.signing_algorithms.clone()));
        }
        if rdma && options.rdma_transforms {
            let ids = [RdmaTransformId::ENCRYPTION, RdmaTransformId::SIGNING];
            contexts.push(Context::RdmaTransform(ids.map(|id| id.0).to_vec()));
        }
        if options.compression && !rdma {
            contexts.push(Agreed::offer());
        }
        if !options.host.is_empty() {
            contexts.push(Context::Netname(options.host.clone()));
        }
    }
    let client_guid = guid.map_or_else(random::bytes, Ok)?;
    Ok(Request { security_mode, capabilities, client_guid, dialects, contexts })
}

/// Sends NEGOTIATE and checks the response. `guid` is our ClientGuid if the server knows us already.
pub(super) async fn negotiate(
    link: &Link,
    options: &Options,
    guid: Option<Guid>,
) -> Result<Negotiated, Error> {
    let request = request(options, link.channel().limits().max_rdma.is_some(), guid)?;
    let call = Call::before_session(Command::Negotiate, Protection::None, |out| request.emit(out));
    let permit = link.permit(1).await?;
    let (pending, sent) = link.send_recorded(permit, call, 0)?;
    let reply = pending.await?;
    let message = reply.success()?;
    let mut preauth = Preauth::new();
    preauth.update(&sent);
    preauth.update(&message);
    let negotiated = judge(request, options.ciphers.contains(&CipherId::AES_128_CCM), &message, preauth)?;
    match options.server {
        Some(server) if server != negotiated.server_guid => Err(Denial::OtherServer.into()),
        _ => Ok(negotiated),
    }
}

/// Checks a response. `ccm`: whether we offer the cipher of 3.0 and 3.0.2.
fn judge(request: Request, ccm: bool, message: &Bytes, preauth: Preauth) -> Result<Negotiated, Error> {
    let response = Response::parse(message)?;
    // Also refuses the wildcard, which does not answer an SMB2 NEGOTIATE.
    if !request.dialects.contains(&response.dialect) {
        return Err(Denial::Dialect.into());
    }
    let (mut transforms, mut compression) = (Vec::new(), None);
    let (cipher, signing) = match response.dialect {
        Dialect::V3_1_1 => {
            compression = compressed(&request, &response)?;
            transforms = rdma_transforms(&request, &response)?;
            algorithms(&request, &response)?
        }
        dialect if dialect >= Dialect::V3_0 => {
            let both = ccm && response.capabilities.contains(Capabilities::ENCRYPTION);
            (both.then_some(CipherId::AES_128_CCM), SigningId::AES_CMAC)
        }
        _ => (None, SigningId::HMAC_SHA256),
    };
    if response.max_read_size.min(response.max_write_size).min(response.max_transact_size) < MIN_IO_BYTES {
        return Err(Error::Violation("NEGOTIATE: sizes below 4096"));
    }
    Ok(Negotiated {
        profile: Profile { dialect: response.dialect, signing, cipher },
        server_guid: response.server_guid,
        server_capabilities: response.capabilities,
        server_security_mode: response.security_mode,
        max_transact: response.max_transact_size,
        max_read: response.max_read_size,
        max_write: response.max_write_size,
        multi_credit: response.capabilities.contains(Capabilities::LARGE_MTU),
        transforms,
        compression,
        preauth,
        request,
    })
}

/// 3.2.5.2: the RDMA transforms that the server chose from our offer.
fn rdma_transforms(request: &Request, response: &Response) -> Result<Vec<RdmaTransformId>, Error> {
    let lists = |contexts: &[Context]| -> Vec<Vec<u16>> {
        let list = |context: &Context| match context {
            Context::RdmaTransform(ids) => Some(ids.clone()),
            _ => None,
        };
        contexts.iter().filter_map(list).collect()
    };
    let offered = lists(&request.contexts).concat();
    match &lists(&response.contexts)[..] {
        [] => Ok(Vec::new()),
        [ids] if ids[..] == [RdmaTransformId::NONE.0] => Ok(Vec::new()),
        [ids] if !ids.is_empty() && ids.iter().all(|id| offered.contains(id)) => {
            Ok(ids.iter().copied().map(RdmaTransformId).collect())
        }
        [_] => Err(Error::Violation("NEGOTIATE: an RDMA transform that was not offered")),
        _ => Err(Error::Violation("NEGOTIATE: a duplicate context")),
    }
}

/// 3.2.5.2: the compression algorithms that the server chose from our offer.
fn compressed(request: &Request, response: &Response) -> Result<Option<Rc<Agreed>>, Error> {
    let lists = |contexts: &[Context]| -> Vec<(u32, Vec<u16>)> {
        let list = |context: &Context| match context {
            Context::Compression { flags, algorithms } => Some((*flags, algorithms.clone())),
            _ => None,
        };
        contexts.iter().filter_map(list).collect()
    };
    let (offered, chosen) = (lists(&request.contexts), lists(&response.contexts));
    match (&offered[..], &chosen[..]) {
        (_, []) => Ok(None),
        // NONE, or an empty list from earlier Windows: no common algorithm.
        (_, [(_, algorithms)]) if matches!(algorithms[..], [] | [0]) => Ok(None),
        ([(_, ours)], [(flags, algorithms)])
            if algorithms.iter().all(|algorithm| ours.contains(algorithm)) =>
        {
            Ok(Agreed::of(*flags, algorithms).map(Rc::new))
        }
        (_, [_]) => Err(Error::Violation("NEGOTIATE: a compression algorithm that was not offered")),
        _ => Err(Error::Violation("NEGOTIATE: a duplicate context")),
    }
}

/// 3.2.5.2: the server must choose one algorithm of each kind, from our offer.
fn algorithms(request: &Request, response: &Response) -> Result<(Option<CipherId>, SigningId), Error> {
    /// Stores a context that may occur only once.
    fn once<'a, T>(slot: &mut Option<&'a [T]>, list: &'a [T]) -> Result<(), Error> {
        match slot.replace(list) {
            None => Ok(()),
            Some(_) => Err(Error::Violation("NEGOTIATE: a duplicate context")),
        }
    }
    let offered = |wanted: fn(&Context) -> bool| request.contexts.iter().find(|c| wanted(c));
    let (mut hash, mut cipher, mut signing) = (None, None, None);
    for context in &response.contexts {
        match context {
            Context::Preauth { hashes, .. } => once(&mut hash, hashes)?,
            Context::Encryption(ciphers) => once(&mut cipher, ciphers)?,
            Context::Signing(algorithms) => once(&mut signing, algorithms)?,
            _ => {}
        }
    }
    if hash != Some(&[HashId::SHA512]) {
        return Err(Error::Violation("NEGOTIATE: not exactly one preauthentication hash"));
    }
    let cipher = match cipher {
        // 0: no common cipher.
        None | Some([CipherId(0)]) => None,
        Some([one]) => match offered(|c| matches!(c, Context::Encryption(_))) {
            Some(Context::Encryption(ours)) if ours.contains(one) => Some(*one),
            _ => return Err(Error::Violation("NEGOTIATE: a cipher that was not offered")),
        },
        Some(_) => return Err(Error::Violation("NEGOTIATE: not exactly one cipher")),
    };
    let signing = match signing {
        // Servers before Windows Server 2022 do not send the context.
        None => SigningId::AES_CMAC,
        Some([one]) => match offered(|c| matches!(c, Context::Signing(_))) {
            Some(Context::Signing(ours)) if ours.contains(one) => *one,
            _ => return Err(Error::Violation("NEGOTIATE: a signing algorithm that was not offered")),
        },
        Some(_) => return Err(Error::Violation("NEGOTIATE: not exactly one signing algorithm")),
    };
    Ok((cipher, signing))
}
