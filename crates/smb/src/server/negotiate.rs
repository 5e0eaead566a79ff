//! NEGOTIATE: dialect, algorithms, limits.
//!
//! Spec: [MS-SMB2] 3.3.5.3 (from SMB1), 3.3.5.4. The connection stores the result. Nothing is offered that the client
//! did not ask for.

use bytes::Bytes;
use weft_machine::{clock, random, rt};
use weft_wire::smb2::header::{Flags, Header};
use weft_wire::smb2::negotiate::{
    Capabilities, CipherId, Context, HashId, Request, Response, SecurityMode, SigningId, Smb1Negotiate,
};
use weft_wire::smb2::posix::EXTENSIONS;
use weft_wire::smb2::rdma_transform::RdmaTransformId;
use weft_wire::smb2::{Command, Dialect, Filetime, NtStatus};

use super::answer::{Answer, Failure, Reply};
use super::connection::Connection;
use super::negotiated::{Negotiated, Transforms};
use super::{Server, Signing};
use crate::auth::Acceptor;
use crate::compression::Agreed;
use crate::crypto::Profile;

/// Dialects, best first.
const DIALECTS: [Dialect; 5] =
    [Dialect::V3_1_1, Dialect::V3_0_2, Dialect::V3_0, Dialect::V2_1, Dialect::V2_0_2];
/// Signing algorithms, best first: GMAC runs at memory speed, CMAC is serial.
const SIGNING: [SigningId; 3] = [SigningId::AES_GMAC, SigningId::AES_CMAC, SigningId::HMAC_SHA256];
/// Ciphers. Within a group the client's order decides; CCM, which is serial, is for clients without GCM.
const CIPHERS: [[CipherId; 2]; 2] =
    [[CipherId::AES_128_GCM, CipherId::AES_256_GCM], [CipherId::AES_128_CCM, CipherId::AES_256_CCM]];
/// The most that a dialect without multi-credit requests may move at once.
const SINGLE_CREDIT_BYTES: u32 = 64 * 1024;

/// The current FILETIME.
pub(super) fn filetime() -> Filetime {
    let since = clock::wall();
    Filetime::from_unix(i64::try_from(since.as_secs()).unwrap_or(i64::MAX), since.subsec_nanos())
}

/// An SMB1 negotiate, which gets an SMB2 response (3.3.5.3). `Err` ends the connection.
pub(super) fn smb1(connection: &Connection, message: &[u8]) -> Result<(Header, Reply), &'static str> {
    if connection.negotiating() || connection.is_negotiated() {
        return Err("3.3.5.3: a second SMB1 negotiate");
    }
    let offered = Smb1Negotiate::parse(message).map_err(|m| m.0)?;
    let dialect = match offered {
        Smb1Negotiate { smb_2_wildcard: true, .. } => Dialect::WILDCARD,
        Smb1Negotiate { smb_2_002: true, .. } => Dialect::V2_0_2,
        _ => return Err("3.3.5.3.2: the client speaks SMB1 only"),
    };
    if dialect != Dialect::WILDCARD && dialect < connection.server.config.min_dialect {
        return Err(
            "the client's newest dialect, 2.0.2, is older than the oldest one allowed here (--min-dialect)",
        );
    }
    let negotiated = Negotiated {
        dialect,
        client_capabilities: Capabilities::NONE,
        client_dialects: Vec::new(),
        client_security_mode: SecurityMode::NONE,
        client_guid: [0; 16],
        server_capabilities: match dialect {
            Dialect::WILDCARD => Capabilities::LARGE_MTU,
            _ => Capabilities::NONE,
        },
        server_security_mode: security_mode(connection, Transforms::default()),
        max_io: max_io(connection, dialect, Transforms::default()),
        transforms: Transforms::default(),
        compression: None,
        posix: false,
        profile: Profile { dialect, signing: SigningId::HMAC_SHA256, cipher: None },
    };
    let reply = response(&connection.server, &negotiated, Vec::new());
    match dialect {
        Dialect::WILDCARD => connection.set_negotiating(),
        _ => connection.set_negotiated(negotiated),
    }
    let header = Header::request(Command::Negotiate, 0).reply(NtStatus::SUCCESS, 1);
    Ok((Header { credit_charge: 0, ..header }, reply))
}

/// An SMB2 NEGOTIATE. The caller ensures that it is the first.
pub(super) fn smb2(connection: &Connection, header: &Header, message: &Bytes) -> Answer {
    if header.flags.contains(Flags::SIGNED) {
        return Err(NtStatus::INVALID_PARAMETER.into());
    }
    let request = Request::parse(message).map_err(|_| Failure::from(NtStatus::INVALID_PARAMETER))?;
    let Some(dialect) = DIALECTS.into_iter().find(|d| request.dialects.contains(d)) else {
        return Err(NtStatus::NOT_SUPPORTED.into());
    };
    let oldest = connection.server.config.min_dialect;
    if dialect < oldest {
        let reason = format_args!(
            "the client's newest dialect is {dialect}, but the oldest one allowed here is {oldest} (--min-dialect {dialect} lets it in)"
        );
        connection.server.refusals.log(None, &connection.peer, reason, rt::now());
        return Err(NtStatus::NOT_SUPPORTED.into());
    }
    let mut profile = Profile {
        dialect,
        signing: if dialect >= Dialect::V3_0 { SigningId::AES_CMAC } else { SigningId::HMAC_SHA256 },
        cipher: None,
    };
    let mut server_capabilities = Capabilities::NONE;
    if dialect >= Dialect::V2_1 {
        server_capabilities |= Capabilities::LARGE_MTU | Capabilities::LEASING;
    }
    if !connection.server.config.offers.dfs.is_empty() {
        server_capabilities |= Capabilities::DFS;
    }
    if dialect >= Dialect::V3_0
        && connection.server.config.offers.journal.is_some()
        && request.capabilities.contains(Capabilities::PERSISTENT_HANDLES)
    {
        server_capabilities |= Capabilities::PERSISTENT_HANDLES;
    }
    // 3.3.5.4: only for clients that announce it. impacket, which does not, fails on the flag.
    if dialect >= Dialect::V3_0 && request.capabilities.contains(Capabilities::DIRECTORY_LEASING) {
        server_capabilities |= Capabilities::DIRECTORY_LEASING;
    }
    if dialect >= Dialect::V3_0
        && connection.server.config.multichannel
        && request.capabilities.contains(Capabilities::MULTI_CHANNEL)
    {
        server_capabilities |= Capabilities::MULTI_CHANNEL;
    }
    let mut transforms = Transforms::default();
    let (mut compression, mut posix) = (None, false);
    let contexts = match dialect {
        Dialect::V3_1_1 => {
            let rdma = connection.channel.limits().max_rdma.is_some();
            let mut answer = contexts(&request.contexts, &mut profile, rdma.then_some(&mut transforms))?;
            // Never over RDMA ([MS-SMB2] 3.3.5.12), because only messages are compressed.
            if !rdma && connection.server.config.offers.compression {
                compression = compress(&request.contexts, &mut answer)?;
            }
            let asks = |context: &Context| matches!(context, Context::Posix(versions) if versions.contains(&EXTENSIONS));
            posix = connection.server.config.offers.posix && request.contexts.iter().any(asks);
            if posix {
                answer.push(Context::Posix(vec![EXTENSIONS]));
            }
            answer
        }
        // In these dialects a capability stands for the only cipher.
        Dialect::V3_0 | Dialect::V3_0_2 if request.capabilities.contains(Capabilities::ENCRYPTION) => {
            profile.cipher = Some(CipherId::AES_128_CCM);
            server_capabilities |= Capabilities::ENCRYPTION;
            Vec::new()
        }
        _ => Vec::new(),
    };
    let negotiated = Negotiated {
        dialect,
        client_capabilities: request.capabilities,
        client_dialects: request.dialects,
        client_security_mode: request.security_mode,
        client_guid: request.client_guid,
        server_capabilities,
        server_security_mode: security_mode(connection, transforms),
        max_io: max_io(connection, dialect, transforms),
        transforms,
        compression,
        posix,
        profile,
    };
    let reply = response(&connection.server, &negotiated, contexts);
    connection.set_negotiated(negotiated);
    Ok(reply)
}

/// The response's contexts; the choices go into `profile`, and into `transforms` on a connection with RDMA.
fn contexts(
    offered: &[Context],
    profile: &mut Profile,
    transforms: Option<&mut Transforms>,
) -> Result<Vec<Context>, Failure> {
    let invalid = || Failure::from(NtStatus::INVALID_PARAMETER);
    // 3.3.5.4: at most one of each kind.
    let kinds = |kind: fn(&Context) -> bool| offered.iter().filter(|c| kind(c)).count();
    let repeated = kinds(|c| matches!(c, Context::Encryption(_))) > 1
        || kinds(|c| matches!(c, Context::Compression { .. })) > 1
        || kinds(|c| matches!(c, Context::RdmaTransform(_))) > 1
        || kinds(|c| matches!(c, Context::Signing(_))) > 1;
    if repeated || kinds(|c| matches!(c, Context::Preauth { .. })) != 1 {
        return Err(invalid());
    }
    let mut answer = Vec::new();
    for context in offered {
        match context {
            Context::Preauth { hashes, .. } => {
                if !hashes.contains(&HashId::SHA512) {
                    return Err(NtStatus::SMB_NO_PREAUTH_INTEGRITY_HASH_OVERLAP.into());
                }
                let salt = Bytes::copy_from_slice(&random::bytes::<32>()?);
                answer.push(Context::Preauth { hashes: vec![HashId::SHA512], salt });
            }
            // The list must not be empty (2.2.3.1.2), but some clients with encryption disabled send an empty one, and
            // reject 0 as the answer.
            Context::Encryption(ciphers) if ciphers.is_empty() => {}
            Context::Encryption(ciphers) => {
                profile.cipher =
                    CIPHERS.iter().find_map(|group| ciphers.iter().copied().find(|c| group.contains(c)));
                // 0 means no common cipher.
                answer.push(Context::Encryption(vec![profile.cipher.unwrap_or(CipherId(0))]));
            }
            Context::Signing(algorithms) if algorithms.is_empty() => return Err(invalid()),
            Context::Signing(algorithms) => {
                let common = SIGNING.into_iter().find(|s| algorithms.contains(s));
                profile.signing = common.unwrap_or(SigningId::AES_CMAC);
                answer.push(Context::Signing(vec![profile.signing]));
            }
            Context::RdmaTransform(ids) if ids.is_empty() => return Err(invalid()),
            // Unsupported contexts are ignored; the others are processed later, when the cipher is known.
            _ => {}
        }
    }
    let ids = offered.iter().find_map(|context| match context {
        Context::RdmaTransform(ids) => Some(ids),
        _ => None,
    });
    if let (Some(ids), Some(transforms)) = (ids, transforms) {
        *transforms = Transforms {
            encryption: ids.contains(&RdmaTransformId::ENCRYPTION.0) && profile.cipher.is_some(),
            signing: ids.contains(&RdmaTransformId::SIGNING.0),
        };
        answer.push(Context::RdmaTransform(transforms.ids()));
    }
    Ok(answer)
}

/// Compression as the client offers it; appends the response's context to `answer`.
fn compress(offered: &[Context], answer: &mut Vec<Context>) -> Result<Option<Agreed>, Failure> {
    let offer = offered.iter().find_map(|context| match context {
        Context::Compression { flags, algorithms } => Some((*flags, algorithms)),
        _ => None,
    });
    let Some((flags, algorithms)) = offer else { return Ok(None) };
    if algorithms.is_empty() {
        return Err(NtStatus::INVALID_PARAMETER.into());
    }
    let agreed = Agreed::of(flags, algorithms);
    answer.push(agreed.as_ref().map_or_else(Agreed::nothing, Agreed::context));
    Ok(agreed)
}

/// 3.3.5.4: the signing requirement for the sessions of this connection.
fn security_mode(connection: &Connection, transforms: Transforms) -> SecurityMode {
    let rdma = connection.channel.limits().max_rdma.is_some();
    let required = match connection.server.config.signing {
        Signing::Required => true,
        Signing::Exposed => !connection.of_this_host && (!rdma || transforms.signing),
        Signing::Enabled => false,
    };
    match required {
        true => SecurityMode::SIGNING_ENABLED | SecurityMode::SIGNING_REQUIRED,
        false => SecurityMode::SIGNING_ENABLED,
    }
}

/// Largest READ, WRITE and transact: what the transport carries inside a message or beside it.
fn max_io(connection: &Connection, dialect: Dialect, transforms: Transforms) -> u32 {
    // Without transforms, encrypted payload does not move by RDMA. If every session is encrypted, the larger size must
    // not be announced: Linux would request it, and cannot handle a READ that is answered in part.
    let beside = match connection.server.config.require_encryption && !transforms.encryption {
        true => None,
        false => connection.channel.limits().max_rdma,
    };
    let carried = connection.max_inline().max(beside.unwrap_or(0));
    let carried = u32::try_from(carried).unwrap_or(u32::MAX).min(connection.server.config.limits.max_io);
    match dialect {
        Dialect::V2_0_2 => carried.min(SINGLE_CREDIT_BYTES),
        _ => carried,
    }
}

fn response(server: &Server, negotiated: &Negotiated, contexts: Vec<Context>) -> Reply {
    let mut reply = Reply::with_capacity(512);
    Response {
        security_mode: negotiated.server_security_mode,
        dialect: negotiated.dialect,
        server_guid: server.config.server_guid,
        capabilities: negotiated.server_capabilities,
        max_transact_size: negotiated.max_io,
        max_read_size: negotiated.max_io,
        max_write_size: negotiated.max_io,
        system_time: filetime(),
        server_start_time: Filetime::ZERO,
        token: Acceptor::hint(server.config.offers.keytab.is_some()).into(),
        contexts,
    }
    .emit(&mut reply.message);
    reply
}
