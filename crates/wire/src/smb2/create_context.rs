//! Create contexts ([MS-SMB2] 2.2.13.2, 2.2.14.2): optional data of CREATE beside its fields.
//!
//! Data are slices of the message. Unknown contexts are kept as `Unknown`, to be ignored.

use bytes::Bytes;

use super::field::{Put, Reader, bits, len16, len32, pad, patch_u32, since, slice, u16_at, u32_at, u64_at};
use super::posix::{EXTENSIONS, Posix};
use super::{FileId, Filetime, Guid, Malformed, NtStatus, aapl};

/// Most contexts in one CREATE; 13 are defined.
pub const MAX_CONTEXTS: usize = 64;

bits! {
    /// Rights of a lease.
    LeaseState: u32 {
        /// Cache reads.
        READ_CACHING = 0x01;
        /// Keep handles open.
        HANDLE_CACHING = 0x02;
        /// Cache writes.
        WRITE_CACHING = 0x04;
    }
}

bits! {
    /// Flags of a lease.
    LeaseFlags: u32 {
        /// A break is in progress.
        BREAK_IN_PROGRESS = 0x02;
        /// `parent_key` is set.
        PARENT_LEASE_KEY_SET = 0x04;
    }
}

/// A lease requested or granted (2.2.13.2.8, .10; 2.2.14.2.10, .11).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lease {
    /// The client's key.
    pub key: Guid,
    /// Rights.
    pub state: LeaseState,
    /// Flags.
    pub flags: LeaseFlags,
    /// Additional fields of version 2 (3.x).
    pub v2: Option<LeaseV2>,
}

/// Fields that version 2 of a lease adds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeaseV2 {
    /// Key of the parent directory's lease.
    pub parent_key: Guid,
    /// Incremented by every change of the lease.
    pub epoch: u16,
}

impl Lease {
    fn parse(data: &[u8]) -> Result<Lease, Malformed> {
        let mut r = Reader::new(data);
        let (key, state, flags) = (r.array()?, LeaseState(r.u32()?), LeaseFlags(r.u32()?));
        r.u64()?;
        // The length distinguishes the versions: 32 or 52 bytes.
        let v2 = match r.rest().len() {
            0 => None,
            _ => Some(LeaseV2 { parent_key: r.array()?, epoch: r.u16()? }),
        };
        Ok(Lease { key, state, flags, v2 })
    }

    fn emit(&self, out: &mut Vec<u8>) {
        out.put(&self.key);
        out.put_u32(self.state.0);
        out.put_u32(self.flags.0);
        out.put_u64(0);
        if let Some(v2) = self.v2 {
            out.put(&v2.parent_key);
            out.put_u16(v2.epoch);
            out.put_u16(0);
        }
    }
}

bits! {
    /// Flags of a durable handle, version 2.
    DurableFlags: u32 {
        /// Persistent: survives a failure of the server.
        PERSISTENT = 0x0000_0002;
    }
}

/// A context of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RequestContext {
    /// `MxAc`: requests the maximal access. With a timestamp: only if the file changed since then.
    MaximalAccess(Option<Filetime>),
    /// `QFid`: requests the file's id on disk.
    OnDiskId,
    /// `DHnQ`: make the handle durable.
    Durable,
    /// `DHnC`: reconnect to this handle.
    DurableReconnect(FileId),
    /// `DH2Q`: makes the handle durable, version 2.
    DurableV2 {
        /// Milliseconds to wait for the client; 0: the server's default.
        timeout_ms: u32,
        /// Flags.
        flags: DurableFlags,
        /// Identifies the CREATE.
        create_guid: Guid,
    },
    /// `DH2C`: reconnects to a durable handle, version 2.
    DurableReconnectV2 {
        /// The handle.
        file: FileId,
        /// GUID of the original CREATE.
        create_guid: Guid,
        /// Flags.
        flags: DurableFlags,
    },
    /// `RqLs`: requests a lease.
    Lease(Lease),
    /// `TWrp`: opens the version of this time.
    Timewarp(Filetime),
    /// `AlSi`: bytes to reserve.
    AllocationSize(u64),
    /// `ExtA`: a FILE_FULL_EA_INFORMATION list.
    ExtendedAttributes(Bytes),
    /// `SecD`: a self-relative security descriptor.
    SecurityDescriptor(Bytes),
    /// SMB2_CREATE_APP_INSTANCE_ID: identifies the application that opens the file, on any node of a cluster.
    AppInstance(Guid),
    /// SMB2_CREATE_APP_INSTANCE_VERSION: version of the application instance.
    AppInstanceVersion {
        /// The high half.
        high: u64,
        /// The low half.
        low: u64,
    },
    /// [POSIX-SMB2] 2.2.13.2.16: opens with POSIX semantics; a new file gets this mode.
    Posix {
        /// Permissions.
        mode: u32,
    },
    /// `AAPL`: a question of a Mac.
    Apple(aapl::Request),
    /// Any other.
    Unknown {
        /// Name, four bytes or more.
        name: Bytes,
        /// Data.
        data: Bytes,
    },
}

const POSIX: &[u8] = &EXTENSIONS;
const APP_INSTANCE: &[u8] = b"\x45\xbc\xa6\x6a\xef\xa7\xf7\x4a\x90\x08\xfa\x46\x2e\x14\x4d\x74";
const APP_INSTANCE_VERSION: &[u8] = b"\xb9\x82\xd0\xb7\x3b\x56\x07\x4f\xa0\x7b\x52\x4a\x81\x16\xa0\x10";

impl RequestContext {
    pub(crate) fn parse(name: Bytes, data: Bytes) -> Result<RequestContext, Malformed> {
        let mut r = Reader::new(&data);
        Ok(match &name[..] {
            b"MxAc" if data.is_empty() => RequestContext::MaximalAccess(None),
            b"MxAc" => RequestContext::MaximalAccess(Some(Filetime(r.u64()?))),
            b"QFid" => RequestContext::OnDiskId,
            b"DHnQ" => RequestContext::Durable,
            b"DHnC" => RequestContext::DurableReconnect(FileId::from_bytes(r.array()?)),
            b"DH2Q" => {
                let (timeout_ms, flags) = (r.u32()?, DurableFlags(r.u32()?));
                r.u64()?;
                RequestContext::DurableV2 { timeout_ms, flags, create_guid: r.array()? }
            }
            b"DH2C" => RequestContext::DurableReconnectV2 {
                file: FileId::from_bytes(r.array()?),
                create_guid: r.array()?,
                flags: DurableFlags(r.u32()?),
            },
            b"RqLs" => RequestContext::Lease(Lease::parse(&data)?),
            b"TWrp" => RequestContext::Timewarp(Filetime(r.u64()?)),
            b"AlSi" => RequestContext::AllocationSize(r.u64()?),
            b"ExtA" => RequestContext::ExtendedAttributes(data),
            b"SecD" => RequestContext::SecurityDescriptor(data),
            APP_INSTANCE => {
                r.u32()?;
                RequestContext::AppInstance(r.array()?)
            }
            APP_INSTANCE_VERSION => {
                r.u64()?;
                RequestContext::AppInstanceVersion { high: r.u64()?, low: r.u64()? }
            }
            POSIX => RequestContext::Posix { mode: r.u32()? },
            aapl::NAME => RequestContext::Apple(aapl::Request::parse(&data)?),
            _ => RequestContext::Unknown { name, data },
        })
    }

    /// Appends the data and returns the name.
    pub(crate) fn emit(&self, out: &mut Vec<u8>) -> Bytes {
        match self {
            RequestContext::MaximalAccess(time) => {
                if let Some(time) = time {
                    out.put_u64(time.0);
                }
                Bytes::from_static(b"MxAc")
            }
            RequestContext::OnDiskId => Bytes::from_static(b"QFid"),
            RequestContext::Durable => {
                out.put_zeros(16);
                Bytes::from_static(b"DHnQ")
            }
            RequestContext::DurableReconnect(file) => {
                out.put(&file.to_bytes());
                Bytes::from_static(b"DHnC")
            }
            RequestContext::DurableV2 { timeout_ms, flags, create_guid } => {
                out.put_u32(*timeout_ms);
                out.put_u32(flags.0);
                out.put_u64(0);
                out.put(create_guid);
                Bytes::from_static(b"DH2Q")
            }
            RequestContext::DurableReconnectV2 { file, create_guid, flags } => {
                out.put(&file.to_bytes());
                out.put(create_guid);
                out.put_u32(flags.0);
                Bytes::from_static(b"DH2C")
            }
            RequestContext::Lease(lease) => {
                lease.emit(out);
                Bytes::from_static(b"RqLs")
            }
            RequestContext::Timewarp(time) => {
                out.put_u64(time.0);
                Bytes::from_static(b"TWrp")
            }
            RequestContext::AllocationSize(bytes) => {
                out.put_u64(*bytes);
                Bytes::from_static(b"AlSi")
            }
            RequestContext::ExtendedAttributes(list) => {
                out.put(list);
                Bytes::from_static(b"ExtA")
            }
            RequestContext::SecurityDescriptor(descriptor) => {
                out.put(descriptor);
                Bytes::from_static(b"SecD")
            }
            RequestContext::AppInstance(id) => {
                out.put_u32(20);
                out.put(id);
                Bytes::from_static(APP_INSTANCE)
            }
            RequestContext::AppInstanceVersion { high, low } => {
                out.put_u64(24);
                out.put_u64(*high);
                out.put_u64(*low);
                Bytes::from_static(APP_INSTANCE_VERSION)
            }
            RequestContext::Posix { mode } => {
                out.put_u32(*mode);
                Bytes::from_static(POSIX)
            }
            RequestContext::Apple(question) => {
                question.emit(out);
                Bytes::from_static(aapl::NAME)
            }
            RequestContext::Unknown { name, data } => {
                out.put(data);
                name.clone()
            }
        }
    }
}

/// A context of a response.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ResponseContext {
    /// `MxAc`: the maximal access.
    MaximalAccess {
        /// Whether the mask is valid.
        status: NtStatus,
        /// Access mask.
        access: u32,
    },
    /// `QFid`: the file's id on disk.
    OnDiskId {
        /// Id of the file on its volume.
        file_id: u64,
        /// Id of the volume.
        volume_id: u64,
    },
    /// `DHnQ`: the handle is durable.
    Durable,
    /// `DH2Q`: the handle is durable, version 2.
    DurableV2 {
        /// Milliseconds that the server waits for the client.
        timeout_ms: u32,
        /// Flags.
        flags: DurableFlags,
    },
    /// `RqLs`: the granted lease.
    Lease(Lease),
    /// [POSIX-SMB2] 2.2.14.2.16.
    Posix(Posix),
    /// `AAPL`: the answer to a Mac.
    Apple(aapl::Response),
    /// Any other.
    Unknown {
        /// Name, four bytes or more.
        name: Bytes,
        /// Data.
        data: Bytes,
    },
}

impl ResponseContext {
    pub(crate) fn parse(name: Bytes, data: Bytes) -> Result<ResponseContext, Malformed> {
        let mut r = Reader::new(&data);
        Ok(match &name[..] {
            b"MxAc" => ResponseContext::MaximalAccess { status: NtStatus(r.u32()?), access: r.u32()? },
            b"QFid" => {
                let data = r.array::<32>()?;
                ResponseContext::OnDiskId { file_id: u64_at(&data, 0), volume_id: u64_at(&data, 8) }
            }
            b"DHnQ" => ResponseContext::Durable,
            b"DH2Q" => ResponseContext::DurableV2 { timeout_ms: r.u32()?, flags: DurableFlags(r.u32()?) },
            b"RqLs" => ResponseContext::Lease(Lease::parse(&data)?),
            POSIX => ResponseContext::Posix(Posix::parse(&data)?),
            aapl::NAME => ResponseContext::Apple(aapl::Response::parse(&data)?),
            _ => ResponseContext::Unknown { name, data },
        })
    }

    /// Appends the data and returns the name.
    pub(crate) fn emit(&self, out: &mut Vec<u8>) -> Bytes {
        match self {
            ResponseContext::MaximalAccess { status, access } => {
                out.put_u32(status.0);
                out.put_u32(*access);
                Bytes::from_static(b"MxAc")
            }
            ResponseContext::OnDiskId { file_id, volume_id } => {
                out.put_u64(*file_id);
                out.put_u64(*volume_id);
                out.put_zeros(16);
                Bytes::from_static(b"QFid")
            }
            ResponseContext::Durable => {
                out.put_u64(0);
                Bytes::from_static(b"DHnQ")
            }
            ResponseContext::DurableV2 { timeout_ms, flags } => {
                out.put_u32(*timeout_ms);
                out.put_u32(flags.0);
                Bytes::from_static(b"DH2Q")
            }
            ResponseContext::Lease(lease) => {
                lease.emit(out);
                Bytes::from_static(b"RqLs")
            }
            ResponseContext::Posix(posix) => {
                posix.emit(out);
                Bytes::from_static(POSIX)
            }
            ResponseContext::Apple(answer) => {
                answer.emit(out);
                Bytes::from_static(aapl::NAME)
            }
            ResponseContext::Unknown { name, data } => {
                out.put(data);
                name.clone()
            }
        }
    }
}

/// Length of a context's fixed part, before its name.
const CONTEXT_HEAD: usize = 16;

/// Parses a chain of contexts.
pub(crate) fn parse_list<C>(
    list: &Bytes,
    parse: impl Fn(Bytes, Bytes) -> Result<C, Malformed>,
) -> Result<Vec<C>, Malformed> {
    const MALFORMED: Malformed = Malformed("create context");
    let mut contexts = Vec::new();
    let mut rest = list.clone();
    while !rest.is_empty() {
        if contexts.len() == MAX_CONTEXTS {
            return Err(Malformed("too many create contexts"));
        }
        let head: [u8; CONTEXT_HEAD] = *rest.first_chunk().ok_or(MALFORMED)?;
        let next = u32_at(&head, 0) as usize;
        let this = match next {
            0 => rest.split_off(0),
            _ if next.is_multiple_of(8) && next >= CONTEXT_HEAD && next < rest.len() => rest.split_to(next),
            _ => return Err(MALFORMED),
        };
        let part = |at: usize, len: usize| match len {
            0 => Ok(Bytes::new()),
            _ if at >= CONTEXT_HEAD => slice(&this, at, len).ok_or(MALFORMED),
            _ => Err(MALFORMED),
        };
        let name = part(usize::from(u16_at(&head, 4)), usize::from(u16_at(&head, 6)))?;
        // [MS-SMB2] 3.3.5.9: a name shorter than four bytes is STATUS_INVALID_PARAMETER.
        if name.len() < 4 {
            return Err(Malformed("create context name"));
        }
        let data = part(usize::from(u16_at(&head, 10)), u32_at(&head, 12) as usize)?;
        contexts.push(parse(name, data)?);
    }
    Ok(contexts)
}

/// Appends a chain of contexts. `out` is 8-byte aligned, counted from the message's header.
pub(crate) fn emit_list<C>(contexts: &[C], emit: impl Fn(&C, &mut Vec<u8>) -> Bytes, out: &mut Vec<u8>) {
    let mut data = Vec::new();
    let mut contexts = contexts.iter().peekable();
    while let Some(context) = contexts.next() {
        data.clear();
        let name = emit(context, &mut data);
        let start = out.len();
        let data_at = CONTEXT_HEAD.saturating_add(name.len()).next_multiple_of(8);
        out.put_u32(0);
        out.put_u16(CONTEXT_HEAD as u16);
        out.put_u16(len16(name.len()));
        out.put_u16(0);
        out.put_u16(if data.is_empty() { 0 } else { len16(data_at) });
        out.put_u32(len32(data.len()));
        out.put(&name);
        pad(out, start, 8);
        out.put(&data);
        if contexts.peek().is_some() {
            pad(out, start, 8);
            let next = len32(since(out, start));
            patch_u32(out, start, next);
        }
    }
}

impl RequestContext {
    /// Whether the context reconnects to an earlier handle. A server without durable handles answers such a request
    /// with STATUS_OBJECT_NAME_NOT_FOUND (3.3.5.9.7, 3.3.5.9.12).
    pub fn is_reconnect(&self) -> bool {
        matches!(self, RequestContext::DurableReconnect(_) | RequestContext::DurableReconnectV2 { .. })
    }
}
