//! RDMAP: the control byte in every DDP header, and the two messages with a header of their own (RFC 5040 4).
//!
//! `iwarp::terminate` maps Terminate codes to causes, in one table.
//!
//! Control byte: `RV (2, always 01) | reserved (2) | opcode (4)`.
//!
//! Read Request, 28 bytes after the DDP header:
//!
//! ```text
//! +---------------------------------------------------------------+
//! |                      data sink STag                           |
//! +---------------------------------------------------------------+
//! |                      data sink TO (64 bits)                   |
//! +---------------------------------------------------------------+
//! |                      message size                             |
//! +---------------------------------------------------------------+
//! |                      data source STag                         |
//! +---------------------------------------------------------------+
//! |                      data source TO (64 bits)                 |
//! +---------------------------------------------------------------+
//! ```
//!
//! Terminate, 4 bytes and what M, D and R announce:
//!
//! ```text
//! +-------+-------+---------------+-+-+-+-------------------------+
//! | Layer | EType |  error code   |M|D|R|        reserved         |
//! Terminate, 4 bytes plus the fields that M, D and R announce:
//! |  DDP segment length (M or D)  |                               |
//! +-------------------------------+     refused DDP header (D)    |
//! |                               ...                             |
//! +---------------------------------------------------------------+
//! |                 refused Read Request header (R)               |
//! +---------------------------------------------------------------+
//! ```

use crate::ddp;

/// Bytes of a Read Request header.
pub const READ_REQUEST_LEN: usize = 28;
/// Bytes of the longest Terminate header.
pub const MAX_TERMINATE_LEN: usize = 4 + 2 + ddp::UNTAGGED_LEN + READ_REQUEST_LEN;
/// Untagged queue of Sends.
pub const QN_SEND: u32 = 0;
/// Untagged queue of Read Requests.
pub const QN_READ_REQUEST: u32 = 1;
/// Untagged queue of Terminates.
pub const QN_TERMINATE: u32 = 2;

const VERSION: u8 = 1;

/// Why bytes are not an RDMAP header.
#[derive(Clone, Copy, Debug, thiserror::Error, PartialEq, Eq)]
pub enum Malformed {
    /// Fewer bytes than the header needs.
    #[error("RDMAP header cut short")]
    Truncated,
    /// RV is not 1.
    #[error("RDMAP version unknown")]
    Version,
    /// Not an opcode of RFC 5040.
    #[error("RDMAP opcode {0} unknown")]
    Opcode(u8),
    /// The refused DDP header inside a Terminate is itself malformed.
    #[error("refused header inside a Terminate: {0}")]
    Refused(ddp::Malformed),
}

/// The operation of a message (RFC 5040 figure 4).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Opcode {
    /// RDMA Write.
    Write = 0,
    /// RDMA Read Request.
    ReadRequest = 1,
    /// RDMA Read Response.
    ReadResponse = 2,
    /// Send.
    Send = 3,
    /// Send with Invalidate.
    SendInvalidate = 4,
    /// Send with Solicited Event.
    SendSolicited = 5,
    /// Send with Solicited Event and Invalidate.
    SendSolicitedInvalidate = 6,
    /// Terminate.
    Terminate = 7,
}

impl Opcode {
    /// The opcode in a control byte.
    pub fn parse(control: u8) -> Result<Opcode, Malformed> {
        if control >> 6 != VERSION {
            return Err(Malformed::Version);
        }
        Ok(match control & 0x0f {
            0 => Opcode::Write,
            1 => Opcode::ReadRequest,
            2 => Opcode::ReadResponse,
            3 => Opcode::Send,
            4 => Opcode::SendInvalidate,
            5 => Opcode::SendSolicited,
            6 => Opcode::SendSolicitedInvalidate,
            7 => Opcode::Terminate,
            other => return Err(Malformed::Opcode(other)),
        })
    }

    /// The control byte.
    pub const fn control(self) -> u8 {
        VERSION << 6 | self as u8
    }

    /// The Send opcode with these properties.
    pub const fn send(invalidate: bool, solicited: bool) -> Opcode {
        match (invalidate, solicited) {
            (false, false) => Opcode::Send,
            (true, false) => Opcode::SendInvalidate,
            (false, true) => Opcode::SendSolicited,
            (true, true) => Opcode::SendSolicitedInvalidate,
        }
    }

    /// Whether the message is a Send that revokes a region.
    pub const fn invalidates(self) -> bool {
        matches!(self, Opcode::SendInvalidate | Opcode::SendSolicitedInvalidate)
    }

    /// Whether the message is a Send that requests a solicited event.
    pub const fn solicited(self) -> bool {
        matches!(self, Opcode::SendSolicited | Opcode::SendSolicitedInvalidate)
    }
}

/// Header of an RDMA Read Request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReadRequest {
    /// Destination of the response: the requester's own tag, returned unchanged.
    pub sink_stag: u32,
    /// Tagged offset in the sink.
    pub sink_to: u64,
    /// Bytes requested.
    pub size: u32,
    /// The region to read.
    pub source_stag: u32,
    /// Tagged offset in the source.
    pub source_to: u64,
}

impl ReadRequest {
    /// Parses the header and ignores the bytes after it.
    pub fn parse(bytes: &[u8]) -> Result<ReadRequest, Malformed> {
        let header: &[u8; READ_REQUEST_LEN] = bytes.first_chunk().ok_or(Malformed::Truncated)?;
        // 4.4: four bytes each, and the two offsets in two halves.
        let (words, _) = header.as_chunks::<4>();
        let &[sink_stag, sink_high, sink_low, size, source_stag, source_high, source_low] = words else {
            return Err(Malformed::Truncated);
        };
        let long = |high, low| u64::from(u32::from_be_bytes(high)) << 32 | u64::from(u32::from_be_bytes(low));
        Ok(ReadRequest {
            sink_stag: u32::from_be_bytes(sink_stag),
            sink_to: long(sink_high, sink_low),
            size: u32::from_be_bytes(size),
            source_stag: u32::from_be_bytes(source_stag),
            source_to: long(source_high, source_low),
        })
    }

    /// The header's bytes.
    pub fn emit(&self) -> [u8; READ_REQUEST_LEN] {
        let mut out = [0; READ_REQUEST_LEN];
        out[..4].copy_from_slice(&self.sink_stag.to_be_bytes());
        out[4..12].copy_from_slice(&self.sink_to.to_be_bytes());
        out[12..16].copy_from_slice(&self.size.to_be_bytes());
        out[16..20].copy_from_slice(&self.source_stag.to_be_bytes());
        out[20..].copy_from_slice(&self.source_to.to_be_bytes());
        out
    }
}

/// Header of a Terminate: why the peer ends the stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Terminate {
    /// 0 RDMAP, 1 DDP, 2 MPA; 4 bits.
    pub layer: u8,
    /// Error type of that layer; 4 bits.
    pub etype: u8,
    /// Error code of that type.
    pub code: u8,
    /// Length of the refused segment, in bytes.
    pub segment_len: Option<u16>,
    /// The refused segment's header; goes with `segment_len`.
    pub header: Option<ddp::Header>,
    /// The refused Read Request.
    pub read: Option<ReadRequest>,
}

/// Layer, error type, error code.
pub type TerminateNumbers = (u8, u8, u8);

/// Every Terminate defined by the specifications: RFC 5040 figure 9, RFC 5041 7.2, RFC 5044 8, RFC 6581 8.
pub const TERMINATES: &[(TerminateNumbers, &str)] = &[
    ((0, 0, 0x00), "RDMAP: local catastrophic error"),
    ((0, 1, 0x00), "RDMAP: invalid STag"),
    ((0, 1, 0x01), "RDMAP: base or bounds violation"),
    ((0, 1, 0x02), "RDMAP: access rights violation"),
    ((0, 1, 0x03), "RDMAP: STag not associated with the stream"),
    ((0, 1, 0x04), "RDMAP: tagged offset wraps"),
    ((0, 1, 0x09), "RDMAP: STag cannot be invalidated"),
    ((0, 1, 0xff), "RDMAP: unspecified protection error"),
    ((0, 2, 0x05), "RDMAP: invalid version"),
    ((0, 2, 0x06), "RDMAP: unexpected opcode"),
    ((0, 2, 0x07), "RDMAP: catastrophic error of the stream"),
    ((0, 2, 0x08), "RDMAP: catastrophic error of the device"),
    ((0, 2, 0x09), "RDMAP: STag cannot be invalidated"),
    ((0, 2, 0xff), "RDMAP: unspecified operation error"),
    ((1, 0, 0x00), "DDP: local catastrophic error"),
    ((1, 1, 0x00), "DDP: invalid STag"),
    ((1, 1, 0x01), "DDP: base or bounds violation"),
    ((1, 1, 0x02), "DDP: STag not associated with the stream"),
    ((1, 1, 0x03), "DDP: tagged offset wraps"),
    ((1, 1, 0x04), "DDP: invalid version in a tagged segment"),
    ((1, 2, 0x01), "DDP: invalid queue number"),
    ((1, 2, 0x02), "DDP: no buffer for a message"),
    ((1, 2, 0x03), "DDP: message sequence number out of range"),
    ((1, 2, 0x04), "DDP: invalid message offset"),
    ((1, 2, 0x05), "DDP: message too long for its buffer"),
    ((1, 2, 0x06), "DDP: invalid version in an untagged segment"),
    ((2, 0, 0x01), "MPA: TCP connection lost"),
    ((2, 0, 0x02), "MPA: CRC does not match"),
    ((2, 0, 0x03), "MPA: marker and length do not agree"),
    ((2, 0, 0x04), "MPA: invalid set-up frame"),
    ((2, 0, 0x05), "MPA: local catastrophic error during set-up"),
    ((2, 0, 0x06), "MPA: insufficient IRD"),
    ((2, 0, 0x07), "MPA: no matching ready-to-receive indication"),
];

/// The name in the specifications; `None` for undefined numbers. RDMAP's local catastrophic error may have any code.
pub fn terminate_name((layer, etype, code): TerminateNumbers) -> Option<&'static str> {
    let code = if (layer, etype) == (0, 0) { 0 } else { code };
    TERMINATES.iter().find(|(numbers, _)| *numbers == (layer, etype, code)).map(|(_, name)| *name)
}

impl Terminate {
    const M: u8 = 0x80;
    const D: u8 = 0x40;
    const R: u8 = 0x20;

    /// Parses the header and ignores the bytes after it.
    pub fn parse(bytes: &[u8]) -> Result<Terminate, Malformed> {
        let (start, mut rest) = bytes.split_first_chunk::<4>().ok_or(Malformed::Truncated)?;
        let announced = start[2];
        let mut segment_len = None;
        if announced & (Self::M | Self::D) != 0 {
            let (len, after) = rest.split_first_chunk().ok_or(Malformed::Truncated)?;
            segment_len = (announced & Self::M != 0).then_some(u16::from_be_bytes(*len));
            rest = after;
        }
        let mut header = None;
        if announced & Self::D != 0 {
            let refused = ddp::Header::parse(rest).map_err(Malformed::Refused)?;
            rest = rest.get(refused.len()..).ok_or(Malformed::Truncated)?;
            header = Some(refused);
        }
        let read = if announced & Self::R != 0 { Some(ReadRequest::parse(rest)?) } else { None };
        Ok(Terminate {
            layer: start[0] >> 4,
            etype: start[0] & 0x0f,
            code: start[1],
            segment_len,
            header,
            read,
        })
    }

    /// Appends the header.
    pub fn emit(&self, to: &mut Vec<u8>) {
        let flag = |on: bool, bit: u8| if on { bit } else { 0 };
        to.push(self.layer << 4 | self.etype & 0x0f);
        to.push(self.code);
        to.push(
            flag(self.segment_len.is_some(), Self::M)
                | flag(self.header.is_some(), Self::D)
                | flag(self.read.is_some(), Self::R),
        );
        to.push(0);
        if self.segment_len.is_some() || self.header.is_some() {
            to.extend_from_slice(&self.segment_len.unwrap_or(0).to_be_bytes());
        }
        if let Some(header) = &self.header {
            header.emit(to);
        }
        if let Some(read) = &self.read {
            to.extend_from_slice(&read.emit());
        }
    }
}

#[cfg(test)]
mod tests;
