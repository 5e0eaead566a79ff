//! SESSION_SETUP ([MS-SMB2] 2.2.5, 2.2.6): one leg of authentication.
//!
//! `spnego` and `ntlm` parse the security token.

use bytes::Bytes;

use super::field::{Put, behind_header, bits, fixed, len16, region, u16_at, u32_at, u64_at};
use super::negotiate::{Capabilities, SecurityMode};
use super::{HEADER_LEN, Malformed};

bits! {
    /// Request flags.
    RequestFlags: u8 {
        /// Adds this connection to an existing session (3.x).
        BINDING = 0x01;
    }
}

bits! {
    /// Response flags.
    SessionFlags: u16 {
        /// The user is a guest.
        IS_GUEST = 0x0001;
        /// The session is anonymous.
        IS_NULL = 0x0002;
        /// All requests must be encrypted (3.x).
        ENCRYPT_DATA = 0x0004;
    }
}

/// A request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// Whether the request binds a connection.
    pub flags: RequestFlags,
    /// The client's signing mode.
    pub security_mode: SecurityMode,
    /// Only the DFS bit is used here.
    pub capabilities: Capabilities,
    /// An earlier session that ends when this one succeeds; 0 for none.
    pub previous_session_id: u64,
    /// The GSS token.
    pub token: Bytes,
}

impl Request {
    /// Parses a message.
    pub fn parse(message: &Bytes) -> Result<Request, Malformed> {
        let b = fixed::<24>(message, 25)?;
        let (offset, len) = (usize::from(u16_at(b, 12)), usize::from(u16_at(b, 14)));
        Ok(Request {
            flags: RequestFlags(b[2]),
            security_mode: SecurityMode(u16::from(b[3])),
            capabilities: Capabilities(u32_at(b, 4)),
            previous_session_id: u64_at(b, 16),
            token: region(message, offset, len, HEADER_LEN + 24, "SESSION_SETUP security buffer")?,
        })
    }

    /// Appends the body.
    pub fn emit(&self, out: &mut Vec<u8>) {
        out.put_u16(25);
        out.put_u8(self.flags.0);
        out.put_u8(self.security_mode.0 as u8);
        out.put_u32(self.capabilities.0);
        out.put_u32(0);
        out.put_u16(behind_header(24));
        out.put_u16(len16(self.token.len()));
        out.put_u64(self.previous_session_id);
        out.put(&self.token);
    }
}

/// A response with STATUS_MORE_PROCESSING_REQUIRED or STATUS_SUCCESS.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Response {
    /// Kind of the session.
    pub flags: SessionFlags,
    /// The GSS token; may be empty.
    pub token: Bytes,
}

impl Response {
    /// Parses a message.
    pub fn parse(message: &Bytes) -> Result<Response, Malformed> {
        let b = fixed::<8>(message, 9)?;
        let (offset, len) = (usize::from(u16_at(b, 4)), usize::from(u16_at(b, 6)));
        Ok(Response {
            flags: SessionFlags(u16_at(b, 2)),
            token: region(message, offset, len, HEADER_LEN + 8, "SESSION_SETUP security buffer")?,
        })
    }

    /// Appends the body.
    pub fn emit(&self, out: &mut Vec<u8>) {
        out.put_u16(9);
        out.put_u16(self.flags.0);
        out.put_u16(behind_header(8));
        out.put_u16(len16(self.token.len()));
        out.put(&self.token);
    }
}
