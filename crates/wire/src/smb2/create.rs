//! CREATE ([MS-SMB2] 2.2.13, 2.2.14): opens or creates a file, directory or pipe.
//!
//! [`super::create_context`] has the contexts. The server checks combinations of options (3.3.5.9).

use bytes::Bytes;

use super::access::{AccessMask, FileAttributes, ShareAccess};
use super::create_context::{self, RequestContext, ResponseContext};
use super::field::{
    Put, array_at, behind_header, bits, codes, fixed, len16, len32, offset, pad, patch_u32, region, u16_at,
    u32_at, u64_at,
};
use super::{FileId, Filetime, HEADER_LEN, Malformed, utf16};

codes! {
    /// Oplock requested or granted.
    OplockLevel: u8 {
        /// None.
        NONE = 0x00;
        /// Shared read caching.
        II = 0x01;
        /// Exclusive.
        EXCLUSIVE = 0x08;
        /// Exclusive caching, and the client may keep the handle open.
        BATCH = 0x09;
        /// The lease context applies instead.
        LEASE = 0xFF;
    }
}

/// What CREATE does if the file exists and if it does not.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum CreateDisposition {
    /// Replace, or create.
    Supersede,
    /// Open, or fail.
    Open,
    /// Create, or fail if it exists.
    Create,
    /// Open, or create.
    OpenIf,
    /// Truncate, or fail.
    Overwrite,
    /// Truncate, or create.
    OverwriteIf,
    /// A value above 5: ignored in a reconnect, an error elsewhere.
    Unknown(u32),
}

impl CreateDisposition {
    fn from_code(code: u32) -> CreateDisposition {
        match code {
            0 => CreateDisposition::Supersede,
            1 => CreateDisposition::Open,
            2 => CreateDisposition::Create,
            3 => CreateDisposition::OpenIf,
            4 => CreateDisposition::Overwrite,
            5 => CreateDisposition::OverwriteIf,
            _ => CreateDisposition::Unknown(code),
        }
    }

    fn code(self) -> u32 {
        match self {
            CreateDisposition::Supersede => 0,
            CreateDisposition::Open => 1,
            CreateDisposition::Create => 2,
            CreateDisposition::OpenIf => 3,
            CreateDisposition::Overwrite => 4,
            CreateDisposition::OverwriteIf => 5,
            CreateDisposition::Unknown(code) => code,
        }
    }
}

bits! {
    /// CreateOptions.
    CreateOptions: u32 {
        /// Must be a directory.
        DIRECTORY_FILE = 0x0000_0001;
        /// Writes are durable before the response.
        WRITE_THROUGH = 0x0000_0002;
        /// Reads will be sequential.
        SEQUENTIAL_ONLY = 0x0000_0004;
        /// The server does not cache.
        NO_INTERMEDIATE_BUFFERING = 0x0000_0008;
        /// Must not be a directory.
        NON_DIRECTORY_FILE = 0x0000_0040;
        /// Fail if using the file requires an understanding of its extended attributes.
        NO_EA_KNOWLEDGE = 0x0000_0200;
        /// Reads will be random.
        RANDOM_ACCESS = 0x0000_0800;
        /// Delete when the last handle closes.
        DELETE_ON_CLOSE = 0x0000_1000;
        /// The name is a file id; the server answers STATUS_NOT_SUPPORTED.
        OPEN_BY_FILE_ID = 0x0000_2000;
        /// Opened for backup.
        OPEN_FOR_BACKUP_INTENT = 0x0000_4000;
        /// Do not compress.
        NO_COMPRESSION = 0x0000_8000;
        /// The server answers STATUS_NOT_SUPPORTED.
        RESERVE_OPFILTER = 0x0010_0000;
        /// Open a reparse point itself.
        OPEN_REPARSE_POINT = 0x0020_0000;
        /// Do not recall from offline storage.
        OPEN_NO_RECALL = 0x0040_0000;
    }
}

codes! {
    /// What CREATE did.
    CreateAction: u32 {
        /// Replaced.
        SUPERSEDED = 0;
        /// Opened.
        OPENED = 1;
        /// Created.
        CREATED = 2;
        /// Truncated.
        OVERWRITTEN = 3;
    }
}

/// A request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// Requested oplock.
    pub oplock: OplockLevel,
    /// 0 anonymous to 3 delegate; above: STATUS_BAD_IMPERSONATION_LEVEL.
    pub impersonation: u32,
    /// Requested access.
    pub desired_access: AccessMask,
    /// Attributes of a new file.
    pub attributes: FileAttributes,
    /// Access permitted to other opens.
    pub share_access: ShareAccess,
    /// What to do if the file exists or does not.
    pub disposition: CreateDisposition,
    /// Options.
    pub options: CreateOptions,
    /// Path relative to the share, `\` between names; empty for its root.
    pub name: String,
    /// Contexts.
    pub contexts: Vec<RequestContext>,
}

impl Request {
    /// Parses a message.
    pub fn parse(message: &Bytes) -> Result<Request, Malformed> {
        let b = fixed::<56>(message, 57)?;
        let floor = HEADER_LEN + 56;
        let (at, len) = (usize::from(u16_at(b, 44)), usize::from(u16_at(b, 46)));
        let name = region(message, at, len, floor, "CREATE name")?;
        let (at, len) = (u32_at(b, 48) as usize, u32_at(b, 52) as usize);
        let contexts = region(message, at, len, floor, "CREATE contexts")?;
        Ok(Request {
            oplock: OplockLevel(b[3]),
            impersonation: u32_at(b, 4),
            desired_access: AccessMask(u32_at(b, 24)),
            attributes: FileAttributes(u32_at(b, 28)),
            share_access: ShareAccess(u32_at(b, 32)),
            disposition: CreateDisposition::from_code(u32_at(b, 36)),
            options: CreateOptions(u32_at(b, 40)),
            name: utf16::decode(&name)?,
            contexts: create_context::parse_list(&contexts, RequestContext::parse)?,
        })
    }

    /// Appends the body.
    pub fn emit(&self, out: &mut Vec<u8>) {
        let body = out.len();
        out.put_u16(57);
        out.put_u8(0);
        out.put_u8(self.oplock.0);
        out.put_u32(self.impersonation);
        out.put_zeros(16);
        out.put_u32(self.desired_access.0);
        out.put_u32(self.attributes.0);
        out.put_u32(self.share_access.0);
        out.put_u32(self.disposition.code());
        out.put_u32(self.options.0);
        out.put_u16(behind_header(56));
        out.put_u16(len16(utf16::encoded_len(&self.name)));
        out.put_u64(0);
        if self.name.is_empty() {
            // StructureSize counts one byte of the buffer, and servers require that byte.
            out.put_u8(0);
        }
        utf16::encode(&self.name, out);
        if !self.contexts.is_empty() {
            pad(out, body, 8);
            let at = offset(out, body);
            create_context::emit_list(&self.contexts, RequestContext::emit, out);
            let len = offset(out, body).saturating_sub(at);
            patch_u32(out, body.saturating_add(48), len32(at));
            patch_u32(out, body.saturating_add(52), len32(len));
        }
    }
}

/// Times, sizes and attributes in the responses to CREATE and CLOSE.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FileSummary {
    /// Time of creation.
    pub creation_time: Filetime,
    /// Last read.
    pub last_access_time: Filetime,
    /// Last write.
    pub last_write_time: Filetime,
    /// Last change of data or metadata.
    pub change_time: Filetime,
    /// Allocated bytes.
    pub allocation_size: u64,
    /// Size in bytes.
    pub end_of_file: u64,
    /// Attributes.
    pub attributes: FileAttributes,
}

impl FileSummary {
    /// Size on the wire.
    pub(crate) const LEN: usize = 52;

    pub(crate) fn parse(b: &[u8; FileSummary::LEN]) -> FileSummary {
        FileSummary {
            creation_time: Filetime(u64_at(b, 0)),
            last_access_time: Filetime(u64_at(b, 8)),
            last_write_time: Filetime(u64_at(b, 16)),
            change_time: Filetime(u64_at(b, 24)),
            allocation_size: u64_at(b, 32),
            end_of_file: u64_at(b, 40),
            attributes: FileAttributes(u32_at(b, 48)),
        }
    }

    pub(crate) fn emit(&self, out: &mut Vec<u8>) {
        out.put_u64(self.creation_time.0);
        out.put_u64(self.last_access_time.0);
        out.put_u64(self.last_write_time.0);
        out.put_u64(self.change_time.0);
        out.put_u64(self.allocation_size);
        out.put_u64(self.end_of_file);
        out.put_u32(self.attributes.0);
    }
}

/// A response.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Response {
    /// Granted oplock.
    pub oplock: OplockLevel,
    /// 1: the last component of the name is a reparse point (3.x).
    pub flags: u8,
    /// What the server did.
    pub action: CreateAction,
    /// Times, sizes, attributes.
    pub summary: FileSummary,
    /// The handle.
    pub file: FileId,
    /// Contexts.
    pub contexts: Vec<ResponseContext>,
}

impl Response {
    /// Parses a message.
    pub fn parse(message: &Bytes) -> Result<Response, Malformed> {
        let b = fixed::<88>(message, 89)?;
        let (at, len) = (u32_at(b, 80) as usize, u32_at(b, 84) as usize);
        let contexts = region(message, at, len, HEADER_LEN + 88, "CREATE contexts")?;
        Ok(Response {
            oplock: OplockLevel(b[2]),
            flags: b[3],
            action: CreateAction(u32_at(b, 4)),
            summary: FileSummary::parse(&array_at(b, 8)),
            file: FileId::from_bytes(array_at(b, 64)),
            contexts: create_context::parse_list(&contexts, ResponseContext::parse)?,
        })
    }

    /// Appends the body.
    pub fn emit(&self, out: &mut Vec<u8>) {
        let body = out.len();
        out.put_u16(89);
        out.put_u8(self.oplock.0);
        out.put_u8(self.flags);
        out.put_u32(self.action.0);
        self.summary.emit(out);
        out.put_u32(0);
        out.put(&self.file.to_bytes());
        out.put_u64(0);
        if !self.contexts.is_empty() {
            let at = offset(out, body);
            create_context::emit_list(&self.contexts, ResponseContext::emit, out);
            let len = offset(out, body).saturating_sub(at);
            patch_u32(out, body.saturating_add(80), len32(at));
            patch_u32(out, body.saturating_add(84), len32(len));
        }
    }
}
