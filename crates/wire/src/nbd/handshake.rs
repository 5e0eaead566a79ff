//! The handshake: a greeting, the client's flags, then options and their replies until the client chooses an export.
//!
//! Implements doc/proto.md "Newstyle negotiation", "Option types" and "Option reply types": [`Greeting`],
//! [`OptionHeader`], [`Choice`], [`Reply`] and [`Chosen`]. A server limits an option's length itself, before it reads
//! the data.
//!
//! ```text
//! S  8 "NBDMAGIC" | 8 "IHAVEOPT" | 2 flags                       the greeting
//! C  4 flags
//! C  8 "IHAVEOPT" | 4 option | 4 length | data                   until GO or EXPORT_NAME
//! S  8 0x3e889045565a9 | 4 option | 4 reply type | 4 length | data
//! S  8 size | 2 transmission flags | 124 zeros                   the answer to EXPORT_NAME, without a header
//! ```

use super::{Malformed, Reader, name, put_string};

/// First magic number of the greeting.
pub const NBDMAGIC: u64 = u64::from_be_bytes(*b"NBDMAGIC");
/// Second magic number of the greeting, and the magic number of every option.
pub const IHAVEOPT: u64 = u64::from_be_bytes(*b"IHAVEOPT");
/// Magic number of every option reply.
pub const REPLY_MAGIC: u64 = 0x0003_e889_0455_65a9;

/// Bytes of the greeting.
pub const GREETING_LEN: usize = 18;
/// Bytes of the client's flags.
pub const CLIENT_FLAGS_LEN: usize = 4;
/// Bytes before an option's data.
pub const OPTION_HEADER_LEN: usize = 16;
/// Bytes before an option reply's data.
pub const REPLY_HEADER_LEN: usize = 20;
/// The longest string of the protocol.
pub const MAX_STRING: usize = 4096;
/// Zeros after the answer to EXPORT_NAME, for clients that did not decline them.
const EXPORT_ZEROS: usize = 124;

/// Handshake flags, server and client alike: options other than EXPORT_NAME work.
pub const FIXED_NEWSTYLE: u16 = 1 << 0;
/// Handshake flags: EXPORT_NAME is answered without `EXPORT_ZEROS`.
pub const NO_ZEROES: u16 = 1 << 1;

/// Transmission flags: what the server supports on an export.
pub mod transmission_flags {
    /// Always set.
    pub const HAS_FLAGS: u16 = 1 << 0;
    /// Writes are refused.
    pub const READ_ONLY: u16 = 1 << 1;
    /// FLUSH is supported.
    pub const SEND_FLUSH: u16 = 1 << 2;
    /// The FUA flag is supported.
    pub const SEND_FUA: u16 = 1 << 3;
    /// The medium rotates.
    pub const ROTATIONAL: u16 = 1 << 4;
    /// TRIM is supported.
    pub const SEND_TRIM: u16 = 1 << 5;
    /// WRITE_ZEROES and its flag NO_HOLE are supported.
    pub const SEND_WRITE_ZEROES: u16 = 1 << 6;
    /// The DF flag is supported; it needs structured replies.
    pub const SEND_DF: u16 = 1 << 7;
    /// A flush on one connection also covers writes on others.
    pub const CAN_MULTI_CONN: u16 = 1 << 8;
    /// CACHE is supported.
    pub const SEND_CACHE: u16 = 1 << 10;
    /// The FAST_ZERO flag is supported.
    pub const SEND_FAST_ZERO: u16 = 1 << 11;
}

/// The only metadata context that the specification defines.
pub const BASE_ALLOCATION: &str = "base:allocation";

/// The first bytes of a connection, sent by the server.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Greeting {
    /// [`FIXED_NEWSTYLE`] and [`NO_ZEROES`].
    pub flags: u16,
}

impl Greeting {
    /// Parses a whole greeting.
    pub fn parse(bytes: &[u8]) -> Result<Greeting, Malformed> {
        let mut r = Reader(bytes);
        for magic in [NBDMAGIC, IHAVEOPT] {
            let found = r.u64()?;
            if found != magic {
                return Err(Malformed::Magic(found));
            }
        }
        let greeting = Greeting { flags: r.u16()? };
        r.end()?;
        Ok(greeting)
    }

    /// The bytes on the wire.
    pub fn emit(&self) -> [u8; GREETING_LEN] {
        let mut bytes = [0; GREETING_LEN];
        bytes[..8].copy_from_slice(&NBDMAGIC.to_be_bytes());
        bytes[8..16].copy_from_slice(&IHAVEOPT.to_be_bytes());
        bytes[16..].copy_from_slice(&self.flags.to_be_bytes());
        bytes
    }
}

/// The client's answer to the greeting.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ClientFlags {
    /// Options other than EXPORT_NAME may be used.
    pub fixed_newstyle: bool,
    /// EXPORT_NAME is answered without zeros.
    pub no_zeroes: bool,
}

impl ClientFlags {
    /// Parses the flags; an unknown flag ends the connection ("Client flags").
    pub fn parse(bytes: &[u8]) -> Result<ClientFlags, Malformed> {
        let mut r = Reader(bytes);
        let flags = r.u32()?;
        r.end()?;
        if flags & !u32::from(FIXED_NEWSTYLE | NO_ZEROES) != 0 {
            return Err(Malformed::Flags(flags));
        }
        Ok(ClientFlags {
            fixed_newstyle: flags & u32::from(FIXED_NEWSTYLE) != 0,
            no_zeroes: flags & u32::from(NO_ZEROES) != 0,
        })
    }

    /// The bytes on the wire.
    pub fn emit(&self) -> [u8; CLIENT_FLAGS_LEN] {
        let fixed = if self.fixed_newstyle { FIXED_NEWSTYLE } else { 0 };
        let zeroes = if self.no_zeroes { NO_ZEROES } else { 0 };
        u32::from(fixed | zeroes).to_be_bytes()
    }
}

/// The number of an option.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct OptionCode(pub u32);

impl OptionCode {
    /// Choose an export; the server can refuse only by disconnecting.
    pub const EXPORT_NAME: OptionCode = OptionCode(1);
    /// End the handshake.
    pub const ABORT: OptionCode = OptionCode(2);
    /// List the exports.
    pub const LIST: OptionCode = OptionCode(3);
    /// Start TLS.
    pub const STARTTLS: OptionCode = OptionCode(5);
    /// Describe an export.
    pub const INFO: OptionCode = OptionCode(6);
    /// Choose an export.
    pub const GO: OptionCode = OptionCode(7);
    /// Enable structured replies.
    pub const STRUCTURED_REPLY: OptionCode = OptionCode(8);
    /// List the metadata contexts of an export.
    pub const LIST_META_CONTEXT: OptionCode = OptionCode(9);
    /// Choose metadata contexts.
    pub const SET_META_CONTEXT: OptionCode = OptionCode(10);
}

/// The header in front of an option's data.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct OptionHeader {
    /// The option.
    pub code: OptionCode,
    /// Length of the data in bytes.
    pub len: u32,
}

impl OptionHeader {
    /// Parses the header at the start of `bytes`.
    pub fn parse(bytes: &[u8; OPTION_HEADER_LEN]) -> Result<OptionHeader, Malformed> {
        let mut r = Reader(bytes);
        match r.u64()? {
            IHAVEOPT => Ok(OptionHeader { code: OptionCode(r.u32()?), len: r.u32()? }),
            other => Err(Malformed::Magic(other)),
        }
    }

    /// The bytes on the wire.
    pub fn emit(&self) -> [u8; OPTION_HEADER_LEN] {
        let mut bytes = [0; OPTION_HEADER_LEN];
        bytes[..8].copy_from_slice(&IHAVEOPT.to_be_bytes());
        bytes[8..12].copy_from_slice(&self.code.0.to_be_bytes());
        bytes[12..].copy_from_slice(&self.len.to_be_bytes());
        bytes
    }
}

/// An option with its data.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Choice {
    /// Choose the export at once.
    ExportName(String),
    /// End the handshake.
    Abort,
    /// List the exports.
    List,
    /// Start TLS.
    StartTls,
    /// Describe the export.
    Info(Wanted),
    /// Choose the export.
    Go(Wanted),
    /// Enable structured replies.
    StructuredReply,
    /// List the matching contexts.
    ListMetaContext(Queries),
    /// Use these contexts from now on.
    SetMetaContext(Queries),
    /// An option unknown to this module.
    Unknown(OptionCode),
}

/// The data of INFO and GO.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Wanted {
    /// The export's name; empty for the default export.
    pub export: String,
    /// Information types that the client requests (the server may send others).
    pub infos: Vec<u16>,
}

/// The data of LIST_META_CONTEXT and SET_META_CONTEXT.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Queries {
    /// The export's name.
    pub export: String,
    /// `base:allocation`, or a namespace such as `base:`.
    pub queries: Vec<String>,
}

impl Choice {
    /// Parses an option's whole data.
    pub fn parse(code: OptionCode, data: &[u8]) -> Result<Choice, Malformed> {
        let mut r = Reader(data);
        let choice = match code {
            OptionCode::EXPORT_NAME => Choice::ExportName(name(r.rest())?),
            // "NBD_OPT_ABORT": the client disconnects, whatever the data.
            OptionCode::ABORT => {
                r.rest();
                Choice::Abort
            }
            OptionCode::LIST => Choice::List,
            OptionCode::STARTTLS => Choice::StartTls,
            OptionCode::INFO => Choice::Info(Wanted::parse(&mut r)?),
            OptionCode::GO => Choice::Go(Wanted::parse(&mut r)?),
            OptionCode::STRUCTURED_REPLY => Choice::StructuredReply,
            OptionCode::LIST_META_CONTEXT => Choice::ListMetaContext(Queries::parse(&mut r)?),
            OptionCode::SET_META_CONTEXT => Choice::SetMetaContext(Queries::parse(&mut r)?),
            other => {
                r.rest();
                Choice::Unknown(other)
            }
        };
        r.end()?;
        Ok(choice)
    }

    /// Header and data on the wire.
    pub fn emit(&self) -> Vec<u8> {
        let mut data = Vec::new();
        let code = match self {
            Choice::ExportName(export) => {
                data.extend(export.as_bytes());
                OptionCode::EXPORT_NAME
            }
            Choice::Abort => OptionCode::ABORT,
            Choice::List => OptionCode::LIST,
            Choice::StartTls => OptionCode::STARTTLS,
            Choice::Info(wanted) => {
                wanted.emit(&mut data);
                OptionCode::INFO
            }
            Choice::Go(wanted) => {
                wanted.emit(&mut data);
                OptionCode::GO
            }
            Choice::StructuredReply => OptionCode::STRUCTURED_REPLY,
            Choice::ListMetaContext(queries) => {
                queries.emit(&mut data);
                OptionCode::LIST_META_CONTEXT
            }
            Choice::SetMetaContext(queries) => {
                queries.emit(&mut data);
                OptionCode::SET_META_CONTEXT
            }
            Choice::Unknown(code) => *code,
        };
        let mut bytes = OptionHeader { code, len: data.len() as u32 }.emit().to_vec();
        bytes.append(&mut data);
        bytes
    }
}

impl Wanted {
    fn parse(r: &mut Reader<'_>) -> Result<Wanted, Malformed> {
        let export = r.string()?;
        let count = usize::from(r.u16()?);
        // Two bytes each: the announced entries must be present before anything is allocated for them.
        if count * 2 != r.0.len() {
            return Err(Malformed::Range("number of information requests"));
        }
        let infos = (0..count).map(|_| r.u16()).collect::<Result<_, _>>()?;
        Ok(Wanted { export, infos })
    }

    fn emit(&self, out: &mut Vec<u8>) {
        put_string(out, &self.export);
        out.extend((self.infos.len() as u16).to_be_bytes());
        self.infos.iter().for_each(|info| out.extend(info.to_be_bytes()));
    }
}

impl Queries {
    fn parse(r: &mut Reader<'_>) -> Result<Queries, Malformed> {
        let export = r.string()?;
        let count = r.u32()? as usize;
        // At least four bytes each.
        if count > r.0.len() / 4 {
            return Err(Malformed::Range("number of queries"));
        }
        let queries = (0..count).map(|_| r.string()).collect::<Result<_, _>>()?;
        Ok(Queries { export, queries })
    }

    fn emit(&self, out: &mut Vec<u8>) {
        put_string(out, &self.export);
        out.extend((self.queries.len() as u32).to_be_bytes());
        self.queries.iter().for_each(|query| put_string(out, query));
    }
}

/// Why the server refuses an option.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u32)]
pub enum Refusal {
    /// The server does not know the option.
    Unsupported = 0x8000_0001,
    /// The server's policy forbids the option.
    Policy = 0x8000_0002,
    /// The data is malformed, or the option comes at the wrong time.
    Invalid = 0x8000_0003,
    /// Unsupported on this platform.
    Platform = 0x8000_0004,
    /// Allowed only under TLS.
    TlsRequired = 0x8000_0005,
    /// No such export exists.
    UnknownExport = 0x8000_0006,
    /// The server is shutting down.
    Shutdown = 0x8000_0007,
    /// The client must request block sizes and honour them.
    BlockSizeRequired = 0x8000_0008,
    /// The data is longer than the server accepts.
    TooBig = 0x8000_0009,
}

impl Refusal {
    const ALL: [Refusal; 9] = [
        Refusal::Unsupported,
        Refusal::Policy,
        Refusal::Invalid,
        Refusal::Platform,
        Refusal::TlsRequired,
        Refusal::UnknownExport,
        Refusal::Shutdown,
        Refusal::BlockSizeRequired,
        Refusal::TooBig,
    ];
}

/// One property of an export in the answer to INFO and GO.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Info {
    /// Size in bytes and [`transmission_flags`]. Always sent.
    Export {
        /// Bytes.
        size: u64,
        /// Flags.
        flags: u16,
    },
    /// The export's name in the list.
    Name(String),
    /// A description for people.
    Description(String),
    /// Limits of requests, in bytes.
    BlockSize {
        /// Offsets and lengths must be multiples of this.
        minimum: u32,
        /// Requests of this size are fast.
        preferred: u32,
        /// Longest READ or WRITE.
        maximum: u32,
    },
}

/// Number of [`Info::Name`].
pub const INFO_NAME: u16 = 1;
/// Number of [`Info::Description`].
pub const INFO_DESCRIPTION: u16 = 2;
/// Number of [`Info::BlockSize`].
pub const INFO_BLOCK_SIZE: u16 = 3;
const INFO_EXPORT: u16 = 0;

/// A server's reply to an option.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Reply {
    /// Success, or the end of a list.
    Ack,
    /// An export in the list.
    Server(String),
    /// A property of the export.
    Info(Info),
    /// A metadata context and its number.
    MetaContext {
        /// The id of the context in block status replies.
        id: u32,
        /// Its name.
        name: String,
    },
    /// A refusal, with an explanation for people.
    Refused(Refusal, String),
}

const REP_ACK: u32 = 1;
const REP_SERVER: u32 = 2;
const REP_INFO: u32 = 3;
const REP_META_CONTEXT: u32 = 4;

impl Reply {
    /// Header and data on the wire, in reply to option `code`.
    pub fn emit(&self, code: OptionCode) -> Vec<u8> {
        let mut data = Vec::new();
        let kind = match self {
            Reply::Ack => REP_ACK,
            Reply::Server(export) => {
                put_string(&mut data, export);
                REP_SERVER
            }
            Reply::Info(info) => {
                info.emit(&mut data);
                REP_INFO
            }
            Reply::MetaContext { id, name } => {
                data.extend(id.to_be_bytes());
                data.extend(name.as_bytes());
                REP_META_CONTEXT
            }
            Reply::Refused(refusal, why) => {
                data.extend(why.as_bytes());
                *refusal as u32
            }
        };
        let mut bytes = Vec::with_capacity(REPLY_HEADER_LEN.saturating_add(data.len()));
        bytes.extend(REPLY_MAGIC.to_be_bytes());
        bytes.extend(code.0.to_be_bytes());
        bytes.extend(kind.to_be_bytes());
        bytes.extend((data.len() as u32).to_be_bytes());
        bytes.append(&mut data);
        bytes
    }

    /// Parses the header: option, reply type and length of the data.
    pub fn parse_header(bytes: &[u8; REPLY_HEADER_LEN]) -> Result<(OptionCode, u32, u32), Malformed> {
        let mut r = Reader(bytes);
        match r.u64()? {
            REPLY_MAGIC => Ok((OptionCode(r.u32()?), r.u32()?, r.u32()?)),
            other => Err(Malformed::Magic(other)),
        }
    }

    /// Parses the whole data of a reply of type `kind`.
    pub fn parse(kind: u32, data: &[u8]) -> Result<Reply, Malformed> {
        let mut r = Reader(data);
        let reply = match kind {
            REP_ACK => Reply::Ack,
            REP_SERVER => {
                let export = r.string()?;
                // A description for people follows the name.
                r.rest();
                Reply::Server(export)
            }
            REP_INFO => Reply::Info(Info::parse(&mut r)?),
            REP_META_CONTEXT => Reply::MetaContext { id: r.u32()?, name: name(r.rest())? },
            other => match Refusal::ALL.into_iter().find(|refusal| *refusal as u32 == other) {
                Some(refusal) => Reply::Refused(refusal, name(r.rest())?),
                None => return Err(Malformed::Range("reply type")),
            },
        };
        r.end()?;
        Ok(reply)
    }
}

impl Info {
    fn emit(&self, out: &mut Vec<u8>) {
        match self {
            Info::Export { size, flags } => {
                out.extend(INFO_EXPORT.to_be_bytes());
                out.extend(size.to_be_bytes());
                out.extend(flags.to_be_bytes());
            }
            Info::Name(text) => {
                out.extend(INFO_NAME.to_be_bytes());
                out.extend(text.as_bytes());
            }
            Info::Description(text) => {
                out.extend(INFO_DESCRIPTION.to_be_bytes());
                out.extend(text.as_bytes());
            }
            Info::BlockSize { minimum, preferred, maximum } => {
                out.extend(INFO_BLOCK_SIZE.to_be_bytes());
                [minimum, preferred, maximum].into_iter().for_each(|size| out.extend(size.to_be_bytes()));
            }
        }
    }

    fn parse(r: &mut Reader<'_>) -> Result<Info, Malformed> {
        Ok(match r.u16()? {
            INFO_EXPORT => Info::Export { size: r.u64()?, flags: r.u16()? },
            INFO_NAME => Info::Name(name(r.rest())?),
            INFO_DESCRIPTION => Info::Description(name(r.rest())?),
            INFO_BLOCK_SIZE => Info::BlockSize { minimum: r.u32()?, preferred: r.u32()?, maximum: r.u32()? },
            _ => return Err(Malformed::Range("information type")),
        })
    }
}

/// The answer to EXPORT_NAME, which has no header and cannot be a refusal.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Chosen {
    /// Size in bytes.
    pub size: u64,
    /// [`transmission_flags`].
    pub flags: u16,
}

impl Chosen {
    /// The bytes on the wire; `no_zeroes` says whether the client declined the zeros.
    pub fn emit(&self, no_zeroes: bool) -> Vec<u8> {
        let mut bytes = self.size.to_be_bytes().to_vec();
        bytes.extend(self.flags.to_be_bytes());
        if !no_zeroes {
            bytes.extend([0; EXPORT_ZEROS]);
        }
        bytes
    }

    /// Parses the whole answer.
    pub fn parse(bytes: &[u8], no_zeroes: bool) -> Result<Chosen, Malformed> {
        let mut r = Reader(bytes);
        let chosen = Chosen { size: r.u64()?, flags: r.u16()? };
        if !no_zeroes {
            r.bytes(EXPORT_ZEROS)?;
        }
        r.end()?;
        Ok(chosen)
    }
}
