//! NEGOTIATE ([MS-SMB2] 2.2.3, 2.2.4): dialect, capabilities, limits and algorithms. Old clients open with the SMB1
//! form (3.3.5.3.1).

use bytes::Bytes;

use super::field::{
    Put, Reader, TRUNCATED, array_at, behind_header, bits, codes, fixed, len16, len32, offset, pad,
    patch_u16, patch_u32, region, since, slice, u16_at, u32_at, u64_at,
};
use super::filetime::Filetime;
use super::header::MAGIC_SMB1;
use super::{Dialect, Guid, HEADER_LEN, Malformed, utf16};

/// Most negotiate contexts that are parsed. 8 types are defined, and clients send each at most once.
pub const MAX_CONTEXTS: usize = 32;
/// Most dialects that are parsed; 5 are defined.
pub const MAX_DIALECTS: usize = 64;

bits! {
    /// Signing mode of a peer.
    SecurityMode: u16 {
        /// The peer can sign.
        SIGNING_ENABLED = 0x0001;
        /// The peer requires signing.
        SIGNING_REQUIRED = 0x0002;
    }
}

bits! {
    /// Capabilities of a peer.
    Capabilities: u32 {
        /// DFS.
        DFS = 0x0000_0001;
        /// Leases.
        LEASING = 0x0000_0002;
        /// Requests that cost several credits.
        LARGE_MTU = 0x0000_0004;
        /// Several connections per session.
        MULTI_CHANNEL = 0x0000_0008;
        /// Persistent handles.
        PERSISTENT_HANDLES = 0x0000_0010;
        /// Leases on directories.
        DIRECTORY_LEASING = 0x0000_0020;
        /// Encryption (3.0 and 3.0.2; 3.1.1 uses a context).
        ENCRYPTION = 0x0000_0040;
        /// One-way notifications.
        NOTIFICATIONS = 0x0000_0080;
    }
}

codes! {
    /// Hash algorithm for preauthentication integrity.
    HashId: u16 {
        /// SHA-512.
        SHA512 = 0x0001;
    }
}

codes! {
    /// Cipher.
    CipherId: u16 {
        /// AES-128-CCM.
        AES_128_CCM = 0x0001;
        /// AES-128-GCM.
        AES_128_GCM = 0x0002;
        /// AES-256-CCM.
        AES_256_CCM = 0x0003;
        /// AES-256-GCM.
        AES_256_GCM = 0x0004;
    }
}

codes! {
    /// Signing algorithm.
    SigningId: u16 {
        /// HMAC-SHA256.
        HMAC_SHA256 = 0x0000;
        /// AES-CMAC.
        AES_CMAC = 0x0001;
        /// AES-GMAC.
        AES_GMAC = 0x0002;
    }
}

/// One negotiate context ([MS-SMB2] 2.2.3.1, 2.2.4.1); the same in both directions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Context {
    /// Hash algorithms for preauthentication integrity, and a salt.
    Preauth {
        /// By preference; the response has one.
        hashes: Vec<HashId>,
        /// Random.
        salt: Bytes,
    },
    /// Ciphers by preference. The response has one, or 0 if none is common.
    Encryption(Vec<CipherId>),
    /// Compression algorithms by preference.
    Compression {
        /// 1: chained compression.
        flags: u32,
        /// Algorithms.
        algorithms: Vec<u16>,
    },
    /// The server's name as the client knows it.
    Netname(String),
    /// 1: transport security substitutes for encryption.
    Transport {
        /// Flags.
        flags: u32,
    },
    /// Transforms for RDMA payload.
    RdmaTransform(Vec<u16>),
    /// Signing algorithms by preference.
    Signing(Vec<SigningId>),
    /// Versions of the POSIX extensions ([POSIX-SMB2] 2.2.3.1.8): see [`super::posix::EXTENSIONS`].
    Posix(Vec<Guid>),
    /// An unknown context, to be ignored.
    Unknown {
        /// ContextType.
        kind: u16,
        /// Data.
        data: Bytes,
    },
}

impl Context {
    fn parse(kind: u16, data: Bytes) -> Result<Context, Malformed> {
        let mut r = Reader::new(&data);
        Ok(match kind {
            1 => {
                let (count, salt_len) = (r.u16()?, usize::from(r.u16()?));
                let hashes = u16_list(&mut r, count)?.into_iter().map(HashId).collect();
                Context::Preauth { hashes, salt: data.slice_ref(r.take(salt_len)?) }
            }
            2 => {
                let count = r.u16()?;
                Context::Encryption(u16_list(&mut r, count)?.into_iter().map(CipherId).collect())
            }
            3 => {
                let count = r.u16()?;
                r.u16()?;
                let flags = r.u32()?;
                Context::Compression { flags, algorithms: u16_list(&mut r, count)? }
            }
            5 => Context::Netname(utf16::decode(&data)?),
            6 => Context::Transport { flags: r.u32()? },
            7 => {
                let count = r.u16()?;
                r.take(6)?;
                Context::RdmaTransform(u16_list(&mut r, count)?)
            }
            8 => {
                let count = r.u16()?;
                Context::Signing(u16_list(&mut r, count)?.into_iter().map(SigningId).collect())
            }
            0x100 if data.len().is_multiple_of(16) => {
                Context::Posix(data.chunks_exact(16).map(|version| array_at(version, 0)).collect())
            }
            kind => Context::Unknown { kind, data },
        })
    }

    fn emit(&self, out: &mut Vec<u8>) {
        let start = out.len();
        out.put_u16(0);
        out.put_u16(0);
        out.put_u32(0);
        let kind = match self {
            Context::Preauth { hashes, salt } => {
                out.put_u16(len16(hashes.len()));
                out.put_u16(len16(salt.len()));
                hashes.iter().for_each(|h| out.put_u16(h.0));
                out.put(salt);
                1
            }
            Context::Encryption(ciphers) => {
                out.put_u16(len16(ciphers.len()));
                ciphers.iter().for_each(|c| out.put_u16(c.0));
                2
            }
            Context::Compression { flags, algorithms } => {
                out.put_u16(len16(algorithms.len()));
                out.put_u16(0);
                out.put_u32(*flags);
                algorithms.iter().for_each(|a| out.put_u16(*a));
                3
            }
            Context::Netname(name) => {
                utf16::encode(name, out);
                5
            }
            Context::Transport { flags } => {
                out.put_u32(*flags);
                6
            }
            Context::RdmaTransform(transforms) => {
                out.put_u16(len16(transforms.len()));
                out.put_zeros(6);
                transforms.iter().for_each(|t| out.put_u16(*t));
                7
            }
            Context::Signing(algorithms) => {
                out.put_u16(len16(algorithms.len()));
                algorithms.iter().for_each(|a| out.put_u16(a.0));
                8
            }
            Context::Posix(versions) => {
                versions.iter().for_each(|version| out.put(version));
                0x100
            }
            Context::Unknown { kind, data } => {
                out.put(data);
                *kind
            }
        };
        let len = len16(since(out, start).saturating_sub(8));
        patch_u16(out, start, kind);
        patch_u16(out, start.saturating_add(2), len);
    }
}

fn u16_list(r: &mut Reader<'_>, count: u16) -> Result<Vec<u16>, Malformed> {
    (0..count).map(|_| r.u16()).collect()
}

fn parse_contexts(message: &Bytes, offset: usize, count: u16) -> Result<Vec<Context>, Malformed> {
    const MALFORMED: Malformed = Malformed("negotiate contexts");
    if count == 0 {
        return Ok(Vec::new());
    }
    if usize::from(count) > MAX_CONTEXTS || !offset.is_multiple_of(8) || offset < HEADER_LEN {
        return Err(MALFORMED);
    }
    let mut contexts = Vec::with_capacity(usize::from(count));
    let mut at = offset;
    for _ in 0..count {
        at = at.next_multiple_of(8);
        let head = message.get(at..).and_then(<[u8]>::first_chunk::<8>).ok_or(MALFORMED)?;
        let (kind, len) = (u16_at(head, 0), usize::from(u16_at(head, 2)));
        at = at.saturating_add(8);
        contexts.push(Context::parse(kind, slice(message, at, len).ok_or(MALFORMED)?)?);
        at = at.saturating_add(len);
    }
    Ok(contexts)
}

/// Appends contexts, each 8-byte aligned, counted from the header of the body that begins at `body`.
fn emit_contexts(contexts: &[Context], body: usize, out: &mut Vec<u8>) {
    for context in contexts {
        pad(out, body, 8);
        context.emit(out);
    }
}

/// A request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// The client's signing mode.
    pub security_mode: SecurityMode,
    /// The client's capabilities.
    pub capabilities: Capabilities,
    /// Identifies the client.
    pub client_guid: Guid,
    /// Offered dialects; never empty.
    pub dialects: Vec<Dialect>,
    /// Only in dialect 3.1.1.
    pub contexts: Vec<Context>,
}

impl Request {
    /// Parses a message.
    pub fn parse(message: &Bytes) -> Result<Request, Malformed> {
        let b = fixed::<36>(message, 36)?;
        let count = usize::from(u16_at(b, 2));
        if count == 0 || count > MAX_DIALECTS {
            return Err(Malformed("DialectCount"));
        }
        let at = HEADER_LEN + 36;
        let dialects: Vec<Dialect> = message
            .get(at..count.saturating_mul(2).saturating_add(at))
            .ok_or(TRUNCATED)?
            .chunks_exact(2)
            .map(|d| Dialect(u16_at(d, 0)))
            .collect();
        let contexts = if dialects.contains(&Dialect::V3_1_1) {
            parse_contexts(message, u32_at(b, 28) as usize, u16_at(b, 32))?
        } else {
            Vec::new()
        };
        Ok(Request {
            security_mode: SecurityMode(u16_at(b, 4)),
            capabilities: Capabilities(u32_at(b, 8)),
            client_guid: array_at(b, 12),
            dialects,
            contexts,
        })
    }

    /// Appends the body.
    pub fn emit(&self, out: &mut Vec<u8>) {
        let body = out.len();
        out.put_u16(36);
        out.put_u16(len16(self.dialects.len()));
        out.put_u16(self.security_mode.0);
        out.put_u16(0);
        out.put_u32(self.capabilities.0);
        out.put(&self.client_guid);
        out.put_u64(0);
        self.dialects.iter().for_each(|d| out.put_u16(d.0));
        if self.dialects.contains(&Dialect::V3_1_1) && !self.contexts.is_empty() {
            pad(out, body, 8);
            let at = len32(offset(out, body));
            patch_u32(out, body.saturating_add(28), at);
            patch_u16(out, body.saturating_add(32), len16(self.contexts.len()));
            emit_contexts(&self.contexts, body, out);
        }
    }
}

/// A response.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Response {
    /// The server's signing mode.
    pub security_mode: SecurityMode,
    /// The chosen dialect.
    pub dialect: Dialect,
    /// Identifies the server.
    pub server_guid: Guid,
    /// The server's capabilities.
    pub capabilities: Capabilities,
    /// Largest QUERY/SET buffer in bytes.
    pub max_transact_size: u32,
    /// Largest READ in bytes.
    pub max_read_size: u32,
    /// Largest WRITE in bytes.
    pub max_write_size: u32,
    /// The server's clock.
    pub system_time: Filetime,
    /// When the server started; most servers send 0.
    pub server_start_time: Filetime,
    /// The GSS token (a SPNEGO NegTokenInit2); may be empty.
    pub token: Bytes,
    /// Only in dialect 3.1.1.
    pub contexts: Vec<Context>,
}

impl Response {
    /// Parses a message.
    pub fn parse(message: &Bytes) -> Result<Response, Malformed> {
        let b = fixed::<64>(message, 65)?;
        let dialect = Dialect(u16_at(b, 4));
        let (at, len) = (usize::from(u16_at(b, 56)), usize::from(u16_at(b, 58)));
        let contexts = if dialect == Dialect::V3_1_1 {
            parse_contexts(message, u32_at(b, 60) as usize, u16_at(b, 6))?
        } else {
            Vec::new()
        };
        Ok(Response {
            security_mode: SecurityMode(u16_at(b, 2)),
            dialect,
            server_guid: array_at(b, 8),
            capabilities: Capabilities(u32_at(b, 24)),
            max_transact_size: u32_at(b, 28),
            max_read_size: u32_at(b, 32),
            max_write_size: u32_at(b, 36),
            system_time: Filetime(u64_at(b, 40)),
            server_start_time: Filetime(u64_at(b, 48)),
            token: region(message, at, len, HEADER_LEN + 64, "NEGOTIATE security buffer")?,
            contexts,
        })
    }

    /// Appends the body.
    pub fn emit(&self, out: &mut Vec<u8>) {
        let body = out.len();
        let with_contexts = self.dialect == Dialect::V3_1_1 && !self.contexts.is_empty();
        out.put_u16(65);
        out.put_u16(self.security_mode.0);
        out.put_u16(self.dialect.0);
        out.put_u16(if with_contexts { len16(self.contexts.len()) } else { 0 });
        out.put(&self.server_guid);
        out.put_u32(self.capabilities.0);
        out.put_u32(self.max_transact_size);
        out.put_u32(self.max_read_size);
        out.put_u32(self.max_write_size);
        out.put_u64(self.system_time.0);
        out.put_u64(self.server_start_time.0);
        out.put_u16(behind_header(64));
        out.put_u16(len16(self.token.len()));
        out.put_u32(0);
        out.put(&self.token);
        if with_contexts {
            pad(out, body, 8);
            let at = len32(offset(out, body));
            patch_u32(out, body.saturating_add(60), at);
            emit_contexts(&self.contexts, body, out);
        }
    }
}

/// The SMB1 negotiate by which old clients find out whether a server speaks SMB2 ([MS-SMB2] 3.3.5.3.1, [MS-CIFS]
/// 2.2.4.52).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Smb1Negotiate {
    /// "SMB 2.002" is offered: answer with dialect 2.0.2.
    pub smb_2_002: bool,
    /// "SMB 2.???" is offered: answer with [`Dialect::WILDCARD`].
    pub smb_2_wildcard: bool,
}

impl Smb1Negotiate {
    /// Parses a message.
    pub fn parse(message: &[u8]) -> Result<Smb1Negotiate, Malformed> {
        const COMMAND_NEGOTIATE: u8 = 0x72;
        let h = message.first_chunk::<35>().ok_or(Malformed("shorter than an SMB1 negotiate"))?;
        if array_at::<4>(h, 0) != MAGIC_SMB1 || h[4] != COMMAND_NEGOTIATE || h[32] != 0 {
            return Err(Malformed("not an SMB1 negotiate"));
        }
        let bytes = message.get(35..35 + usize::from(u16_at(h, 33))).ok_or(Malformed("SMB1 ByteCount"))?;
        let mut found = Smb1Negotiate { smb_2_002: false, smb_2_wildcard: false };
        // Each dialect is 0x02, a name, 0x00.
        for dialect in bytes.split(|&b| b == 0) {
            found.smb_2_002 |= dialect == b"\x02SMB 2.002";
            found.smb_2_wildcard |= dialect == b"\x02SMB 2.???";
        }
        Ok(found)
    }
}
