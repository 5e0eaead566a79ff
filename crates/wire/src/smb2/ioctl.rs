//! IOCTL ([MS-SMB2] 2.2.31, 2.2.32): control codes ([MS-FSCC] 2.3) and some of their data.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use bytes::Bytes;

use super::field::{
    Put, Reader, array_at, behind_header, bits, chained, codes, fixed, len16, len32, pad, patch_u32, region,
    since, u32_at,
};
use super::negotiate::{Capabilities, SecurityMode};
use super::{Dialect, FileId, Guid, HEADER_LEN, Malformed};

codes! {
    /// A control code.
    CtlCode: u32 {
        /// DFS referrals; STATUS_NOT_FOUND without DFS (3.3.5.15.2).
        DFS_GET_REFERRALS = 0x0006_0194;
        /// DFS referrals, newer form.
        DFS_GET_REFERRALS_EX = 0x0006_01B0;
        /// Named pipe: peeks at available data.
        PIPE_PEEK = 0x0011_400C;
        /// Named pipe: waits for an instance.
        PIPE_WAIT = 0x0011_0018;
        /// Named pipe: sends a call and receives its answer.
        PIPE_TRANSCEIVE = 0x0011_C017;
        /// Server-side copy.
        SRV_COPYCHUNK = 0x0014_40F2;
        /// Server-side copy.
        SRV_COPYCHUNK_WRITE = 0x0014_80F2;
        /// Snapshots.
        SRV_ENUMERATE_SNAPSHOTS = 0x0014_4064;
        /// Key for a server-side copy.
        SRV_REQUEST_RESUME_KEY = 0x0014_0078;
        /// BranchCache.
        SRV_READ_HASH = 0x0014_41BB;
        /// Resilient handle.
        LMR_REQUEST_RESILIENCY = 0x0014_01D4;
        /// Network interfaces of the server.
        QUERY_NETWORK_INTERFACE_INFO = 0x0014_01FC;
        /// Validates NEGOTIATE against tampering (3.0, 3.0.2).
        VALIDATE_NEGOTIATE_INFO = 0x0014_0204;
        /// Weft's own: the server's listening endpoints, as UTF-8 lines. CTL_CODE(0x14, 0xE57, METHOD_BUFFERED,
        /// FILE_ANY_ACCESS).
        WEFT_ENDPOINTS = 0x0014_395C;
        /// Weft's own: exchanges a message with the service behind a special file. CTL_CODE(0x14, 0xE58,
        /// METHOD_BUFFERED, FILE_WRITE_DATA).
        WEFT_EXCHANGE = 0x0014_B960;
        /// Reparse point.
        GET_REPARSE_POINT = 0x0009_00A8;
        /// Reparse point.
        SET_REPARSE_POINT = 0x0009_00A4;
        /// Reparse point.
        DELETE_REPARSE_POINT = 0x0009_00AC;
        /// Trim.
        FILE_LEVEL_TRIM = 0x0009_8208;
        /// Holes.
        SET_SPARSE = 0x0009_00C4;
        /// Holes.
        SET_ZERO_DATA = 0x0009_80C8;
        /// Holes.
        QUERY_ALLOCATED_RANGES = 0x0009_40CF;
        /// Object id.
        CREATE_OR_GET_OBJECT_ID = 0x0009_00C0;
        /// Compression.
        GET_COMPRESSION = 0x0009_003C;
        /// Compression.
        SET_COMPRESSION = 0x0009_C040;
        /// Integrity.
        GET_INTEGRITY_INFORMATION = 0x0009_027C;
        /// Block cloning.
        DUPLICATE_EXTENTS_TO_FILE = 0x0009_8344;
        /// Block cloning, newer form.
        DUPLICATE_EXTENTS_TO_FILE_EX = 0x0009_83E8;
        /// Copy by token.
        OFFLOAD_READ = 0x0009_4264;
        /// Copy by token.
        OFFLOAD_WRITE = 0x0009_8268;
        /// Object id.
        GET_OBJECT_ID = 0x0009_009C;
        /// Integrity.
        SET_INTEGRITY_INFORMATION = 0x0009_C280;
        /// Regions.
        QUERY_FILE_REGIONS = 0x0009_0284;
    }
}

bits! {
    /// Flags.
    Flags: u32 {
        /// A file system control; without this flag the server answers STATUS_NOT_SUPPORTED.
        IS_FSCTL = 0x0000_0001;
    }
}

/// A request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// The control code (FSCTL).
    pub code: CtlCode,
    /// The file; [`FileId::RELATED`] if the code applies to none.
    pub file: FileId,
    /// Input.
    pub input: Bytes,
    /// Largest input in the response, in bytes.
    pub max_input_response: u32,
    /// Largest output in the response, in bytes.
    pub max_output_response: u32,
    /// Flags.
    pub flags: Flags,
}

impl Request {
    /// Parses a message.
    pub fn parse(message: &Bytes) -> Result<Request, Malformed> {
        let b = fixed::<56>(message, 57)?;
        let (at, len) = (u32_at(b, 24) as usize, u32_at(b, 28) as usize);
        Ok(Request {
            code: CtlCode(u32_at(b, 4)),
            file: FileId::from_bytes(array_at(b, 8)),
            input: region(message, at, len, HEADER_LEN + 56, "IOCTL input")?,
            max_input_response: u32_at(b, 32),
            max_output_response: u32_at(b, 44),
            flags: Flags(u32_at(b, 48)),
        })
    }

    /// Appends the body.
    pub fn emit(&self, out: &mut Vec<u8>) {
        out.put_u16(57);
        out.put_u16(0);
        out.put_u32(self.code.0);
        out.put(&self.file.to_bytes());
        out.put_u32(behind_header(56).into());
        out.put_u32(len32(self.input.len()));
        out.put_u32(self.max_input_response);
        out.put_u32(0);
        out.put_u32(0);
        out.put_u32(self.max_output_response);
        out.put_u32(self.flags.0);
        out.put_u32(0);
        out.put(&self.input);
        if self.input.is_empty() {
            // StructureSize counts one byte of the buffer, and servers require that byte.
            out.put_u8(0);
        }
    }
}

/// A response.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Response {
    /// The control code of the request.
    pub code: CtlCode,
    /// The file.
    pub file: FileId,
    /// Output.
    pub output: Bytes,
}

impl Response {
    /// Parses a message.
    pub fn parse(message: &Bytes) -> Result<Response, Malformed> {
        let b = fixed::<48>(message, 49)?;
        let (at, len) = (u32_at(b, 32) as usize, u32_at(b, 36) as usize);
        Ok(Response {
            code: CtlCode(u32_at(b, 4)),
            file: FileId::from_bytes(array_at(b, 8)),
            output: region(message, at, len, HEADER_LEN + 48, "IOCTL output")?,
        })
    }

    /// Appends the body.
    pub fn emit(&self, out: &mut Vec<u8>) {
        const AT: u32 = HEADER_LEN as u32 + 48;
        out.put_u16(49);
        out.put_u16(0);
        out.put_u32(self.code.0);
        out.put(&self.file.to_bytes());
        out.put_u32(AT);
        out.put_u32(0);
        out.put_u32(AT);
        out.put_u32(len32(self.output.len()));
        out.put_u32(0);
        out.put_u32(0);
        out.put(&self.output);
    }
}

/// Input of FSCTL_VALIDATE_NEGOTIATE_INFO (2.2.31.4): the fields of the client's NEGOTIATE request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ValidateNegotiateRequest {
    /// Capabilities.
    pub capabilities: Capabilities,
    /// The client's GUID.
    pub guid: Guid,
    /// Security mode.
    pub security_mode: SecurityMode,
    /// Offered dialects.
    pub dialects: Vec<Dialect>,
}

impl ValidateNegotiateRequest {
    /// Parses the structure.
    pub fn parse(input: &[u8]) -> Result<ValidateNegotiateRequest, Malformed> {
        let mut r = Reader::new(input);
        let (capabilities, guid) = (Capabilities(r.u32()?), r.array()?);
        let (security_mode, count) = (SecurityMode(r.u16()?), usize::from(r.u16()?));
        let dialects = (0..count).map(|_| r.u16().map(Dialect)).collect::<Result<_, _>>()?;
        Ok(ValidateNegotiateRequest { capabilities, guid, security_mode, dialects })
    }

    /// Appends the structure.
    pub fn emit(&self, out: &mut Vec<u8>) {
        out.put_u32(self.capabilities.0);
        out.put(&self.guid);
        out.put_u16(self.security_mode.0);
        out.put_u16(len16(self.dialects.len()));
        self.dialects.iter().for_each(|d| out.put_u16(d.0));
    }
}

/// Output of FSCTL_VALIDATE_NEGOTIATE_INFO (2.2.32.6): the fields of the server's NEGOTIATE response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ValidateNegotiateResponse {
    /// Capabilities.
    pub capabilities: Capabilities,
    /// The server's GUID.
    pub guid: Guid,
    /// Security mode.
    pub security_mode: SecurityMode,
    /// Chosen dialect.
    pub dialect: Dialect,
}

impl ValidateNegotiateResponse {
    /// Parses the structure.
    pub fn parse(output: &[u8]) -> Result<ValidateNegotiateResponse, Malformed> {
        let mut r = Reader::new(output);
        Ok(ValidateNegotiateResponse {
            capabilities: Capabilities(r.u32()?),
            guid: r.array()?,
            security_mode: SecurityMode(r.u16()?),
            dialect: Dialect(r.u16()?),
        })
    }

    /// Appends the structure.
    pub fn emit(&self, out: &mut Vec<u8>) {
        out.put_u32(self.capabilities.0);
        out.put(&self.guid);
        out.put_u16(self.security_mode.0);
        out.put_u16(self.dialect.0);
    }
}

/// One interface of FSCTL_QUERY_NETWORK_INTERFACE_INFO (2.2.32.5).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NetworkInterface {
    /// Interface index.
    pub index: u32,
    /// Receive-side scaling: the interface has several receive queues.
    pub rss: bool,
    /// The interface is capable of RDMA.
    pub rdma: bool,
    /// Bits per second.
    pub link_speed_bps: u64,
    /// Address.
    pub addr: IpAddr,
}

impl NetworkInterface {
    /// Length of an entry: 24 bytes and a 128-byte SOCKADDR_STORAGE.
    const LEN: usize = 152;
    /// Most entries in a list that is parsed.
    pub const MAX: usize = 1024;
    const FAMILY_V4: u16 = 0x0002;
    const FAMILY_V6: u16 = 0x0017;

    /// Parses a list. Entries of other address families are skipped.
    pub fn parse_list(output: &[u8]) -> Result<Vec<NetworkInterface>, Malformed> {
        let mut interfaces = Vec::new();
        let mut rest = output;
        while !rest.is_empty() && interfaces.len() < NetworkInterface::MAX {
            let mut r = Reader::new(rest);
            let next = r.u32()? as usize;
            let (index, capability) = (r.u32()?, r.u32()?);
            r.u32()?;
            let link_speed_bps = r.u64()?;
            let storage = r.array::<128>()?;
            let addr = match u16::from_le_bytes([storage[0], storage[1]]) {
                NetworkInterface::FAMILY_V4 => Some(IpAddr::V4(Ipv4Addr::from(array_at::<4>(&storage, 4)))),
                NetworkInterface::FAMILY_V6 => Some(IpAddr::V6(Ipv6Addr::from(array_at::<16>(&storage, 8)))),
                _ => None,
            };
            interfaces.extend(addr.map(|addr| NetworkInterface {
                index,
                rss: capability & 1 != 0,
                rdma: capability & 2 != 0,
                link_speed_bps,
                addr,
            }));
            rest = chained(rest, next, NetworkInterface::LEN, "network interface list")?;
        }
        Ok(interfaces)
    }

    /// Appends a list.
    pub fn emit_list(interfaces: &[NetworkInterface], out: &mut Vec<u8>) {
        let mut interfaces = interfaces.iter().peekable();
        while let Some(interface) = interfaces.next() {
            let start = out.len();
            out.put_u32(0);
            out.put_u32(interface.index);
            out.put_u32(u32::from(interface.rss) | u32::from(interface.rdma) << 1);
            out.put_u32(0);
            out.put_u64(interface.link_speed_bps);
            let storage = out.len();
            match interface.addr {
                IpAddr::V4(v4) => {
                    out.put_u16(NetworkInterface::FAMILY_V4);
                    out.put_u16(0);
                    out.put(&v4.octets());
                }
                IpAddr::V6(v6) => {
                    out.put_u16(NetworkInterface::FAMILY_V6);
                    out.put_zeros(6);
                    out.put(&v6.octets());
                }
            }
            out.resize(storage.saturating_add(128), 0);
            if interfaces.peek().is_some() {
                pad(out, start, 8);
                let next = len32(since(out, start));
                patch_u32(out, start, next);
            }
        }
    }
}
