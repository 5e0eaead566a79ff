//! TREE_CONNECT ([MS-SMB2] 2.2.9, 2.2.9.1, 2.2.10): connects to a share.
//!
//! The path of an extended request is parsed; its tree connect contexts (remoted identity) are ignored.

use bytes::Bytes;

use super::field::{Put, behind_header, bits, fixed, len16, region, u16_at, u32_at};
use super::{HEADER_LEN, Malformed, utf16};

bits! {
    /// Request flags (3.1.1).
    RequestFlags: u16 {
        /// Reconnect of a clustered share.
        CLUSTER_RECONNECT = 0x0001;
        /// The client can follow share redirects.
        REDIRECT_TO_OWNER = 0x0002;
        /// The extension of 2.2.9.1 follows.
        EXTENSION_PRESENT = 0x0004;
    }
}

bits! {
    /// Share flags.
    ShareFlags: u32 {
        /// Clients may not cache offline.
        NO_CACHING = 0x0000_0030;
        /// Part of a DFS namespace.
        DFS = 0x0000_0001;
        /// Root of a DFS namespace.
        DFS_ROOT = 0x0000_0002;
        /// List only what the user may read.
        ACCESS_BASED_DIRECTORY_ENUM = 0x0000_0800;
        /// All requests on this tree must be encrypted.
        ENCRYPT_DATA = 0x0000_8000;
        /// The client should compress.
        COMPRESS_DATA = 0x0010_0000;
    }
}

bits! {
    /// Share capabilities.
    ShareCapabilities: u32 {
        /// The share is in a DFS namespace.
        DFS = 0x0000_0008;
        /// Handles survive a failure of the server.
        CONTINUOUS_AVAILABILITY = 0x0000_0010;
        /// Scale-out share.
        SCALEOUT = 0x0000_0020;
        /// Clustered share.
        CLUSTER = 0x0000_0040;
    }
}

/// Kind of a share.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ShareType {
    /// Files.
    Disk,
    /// Named pipes (`IPC$`).
    Pipe,
    /// A printer.
    Print,
}

/// A request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// Flags.
    pub flags: RequestFlags,
    /// `\\server\share`.
    pub path: String,
}

impl Request {
    /// The path's last component: the share's name.
    pub fn share(&self) -> &str {
        self.path.rsplit('\\').next().unwrap_or("")
    }

    /// Parses a message.
    pub fn parse(message: &Bytes) -> Result<Request, Malformed> {
        let b = fixed::<8>(message, 9)?;
        let flags = RequestFlags(u16_at(b, 2));
        // 2.2.9: with the extension, PathOffset counts from the extension's start, which follows the fixed part.
        let base = if flags.contains(RequestFlags::EXTENSION_PRESENT) { HEADER_LEN + 8 } else { 0 };
        let offset = usize::from(u16_at(b, 4)).saturating_add(base);
        let path = region(message, offset, usize::from(u16_at(b, 6)), HEADER_LEN + 8, "TREE_CONNECT path")?;
        Ok(Request { flags, path: utf16::decode(&path)? })
    }

    /// Appends the body (without extension).
    pub fn emit(&self, out: &mut Vec<u8>) {
        out.put_u16(9);
        out.put_u16(self.flags.without(RequestFlags::EXTENSION_PRESENT).0);
        out.put_u16(behind_header(8));
        out.put_u16(len16(utf16::encoded_len(&self.path)));
        utf16::encode(&self.path, out);
    }
}

/// A response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Response {
    /// Kind of the share.
    pub share_type: ShareType,
    /// Flags.
    pub flags: ShareFlags,
    /// Capabilities.
    pub capabilities: ShareCapabilities,
    /// The user's maximal access, as an access mask.
    pub maximal_access: u32,
}

impl Response {
    /// Parses a message.
    pub fn parse(message: &Bytes) -> Result<Response, Malformed> {
        let b = fixed::<16>(message, 16)?;
        let share_type = match b[2] {
            1 => ShareType::Disk,
            2 => ShareType::Pipe,
            3 => ShareType::Print,
            _ => return Err(Malformed("ShareType")),
        };
        Ok(Response {
            share_type,
            flags: ShareFlags(u32_at(b, 4)),
            capabilities: ShareCapabilities(u32_at(b, 8)),
            maximal_access: u32_at(b, 12),
        })
    }

    /// Appends the body.
    pub fn emit(&self, out: &mut Vec<u8>) {
        out.put_u16(16);
        out.put_u8(match self.share_type {
            ShareType::Disk => 1,
            ShareType::Pipe => 2,
            ShareType::Print => 3,
        });
        out.put_u8(0);
        out.put_u32(self.flags.0);
        out.put_u32(self.capabilities.0);
        out.put_u32(self.maximal_access);
    }
}
