//! One sample of every message and class, each with a round-trip check.

use bytes::Bytes;

use crate::smb2::access::*;
use crate::smb2::channel::{Channel, Descriptor, Descriptors};
use crate::smb2::create_context::*;
use crate::smb2::fscc::{FileClass, directory, file, filesystem, security};
use crate::smb2::*;

pub(super) const FILE: FileId = FileId { persistent: 0x1122_3344_5566_7788, volatile: 0x99aa_bbcc_ddee_ff00 };
pub(super) const GUID: Guid = *b"0123456789abcdef";

/// A message with this body.
pub(super) fn message(emit: impl FnOnce(&mut Vec<u8>)) -> Bytes {
    let mut out = Vec::new();
    Header::request(Command::Echo, 7).emit(&mut out);
    emit(&mut out);
    out.into()
}

/// A sample: its bytes, the number of optional bytes at its end, and a function that parses it.
pub(super) struct Sample {
    pub(super) name: &'static str,
    pub(super) bytes: Bytes,
    pub(super) slack: usize,
    pub(super) parses: Box<dyn Fn(&Bytes) -> bool>,
}

/// Checks the round trip of `value`, and makes a sample of it.
pub(super) fn sample<T: PartialEq + std::fmt::Debug + 'static>(
    name: &'static str,
    slack: usize,
    value: T,
    emit: impl FnOnce(&T, &mut Vec<u8>),
    parse: impl Fn(&Bytes) -> Result<T, Malformed> + 'static,
) -> Sample {
    let bytes = message(|out| emit(&value, out));
    assert_eq!(parse(&bytes).as_ref(), Ok(&value), "{name} comes back");
    Sample { name, bytes, slack, parses: Box::new(move |b| parse(b).is_ok()) }
}

/// The same for structures without a header.
pub(super) fn bare<T: PartialEq + std::fmt::Debug + 'static>(
    name: &'static str,
    slack: usize,
    value: T,
    emit: impl FnOnce(&T, &mut Vec<u8>),
    parse: impl Fn(&[u8]) -> Result<T, Malformed> + 'static,
) -> Sample {
    let mut bytes = Vec::new();
    emit(&value, &mut bytes);
    assert_eq!(parse(&bytes).as_ref(), Ok(&value), "{name} comes back");
    Sample { name, bytes: bytes.into(), slack, parses: Box::new(move |b| parse(b).is_ok()) }
}

pub(super) fn summary() -> create::FileSummary {
    create::FileSummary {
        creation_time: Filetime(1),
        last_access_time: Filetime(2),
        last_write_time: Filetime(3),
        change_time: Filetime(4),
        allocation_size: 4096,
        end_of_file: 5,
        attributes: FileAttributes::ARCHIVE,
    }
}

pub(super) fn negotiate_contexts() -> Vec<negotiate::Context> {
    use negotiate::*;
    vec![
        Context::Preauth { hashes: vec![HashId::SHA512], salt: Bytes::from_static(b"salt and pepper") },
        Context::Encryption(vec![CipherId::AES_128_GCM, CipherId::AES_256_GCM, CipherId(77)]),
        Context::Compression { flags: 1, algorithms: vec![1, 2, 3] },
        Context::Netname("server.example".into()),
        Context::Transport { flags: 1 },
        Context::RdmaTransform(vec![1, 2]),
        Context::Signing(vec![SigningId::AES_GMAC, SigningId::AES_CMAC, SigningId::HMAC_SHA256]),
        Context::Unknown { kind: 0x100, data: Bytes::from_static(&[1, 2, 3, 4, 5]) },
    ]
}

pub(super) fn lease(v2: bool) -> Lease {
    Lease {
        key: GUID,
        state: LeaseState::READ_CACHING | LeaseState::HANDLE_CACHING,
        flags: LeaseFlags::NONE,
        v2: v2.then_some(LeaseV2 { parent_key: GUID, epoch: 3 }),
    }
}

pub(super) fn request_contexts() -> Vec<RequestContext> {
    vec![
        RequestContext::MaximalAccess(None),
        RequestContext::MaximalAccess(Some(Filetime(9))),
        RequestContext::OnDiskId,
        RequestContext::Durable,
        RequestContext::DurableReconnect(FILE),
        RequestContext::DurableV2 { timeout_ms: 60_000, flags: DurableFlags::PERSISTENT, create_guid: GUID },
        RequestContext::DurableReconnectV2 { file: FILE, create_guid: GUID, flags: DurableFlags::NONE },
        RequestContext::Lease(lease(false)),
        RequestContext::Lease(lease(true)),
        RequestContext::Timewarp(Filetime(10)),
        RequestContext::AllocationSize(1 << 40),
        RequestContext::ExtendedAttributes(Bytes::from_static(&[1; 13])),
        RequestContext::SecurityDescriptor(Bytes::from_static(&[2; 20])),
        RequestContext::Apple(aapl::Request::Query { parts: aapl::Parts(7), client: aapl::ServerCaps(0x3f) }),
        RequestContext::Unknown { name: Bytes::from_static(b"AAPX"), data: Bytes::from_static(&[3; 24]) },
        RequestContext::Unknown { name: Bytes::from_static(&GUID), data: Bytes::from_static(&[4; 7]) },
    ]
}

pub(super) fn create_request(name: &str, contexts: Vec<RequestContext>) -> create::Request {
    create::Request {
        oplock: create::OplockLevel::LEASE,
        impersonation: 2,
        desired_access: AccessMask::GENERIC_READ | AccessMask::DELETE,
        attributes: FileAttributes::NORMAL,
        share_access: ShareAccess::ALL,
        disposition: create::CreateDisposition::OpenIf,
        options: create::CreateOptions::NON_DIRECTORY_FILE,
        name: name.into(),
        contexts,
    }
}

pub(super) fn descriptors() -> Descriptors {
    [
        Descriptor { offset: 0x1000, token: 0xdead_beef, length: 65536 },
        Descriptor { offset: 0x2000, token: 7, length: 1 },
    ]
    .into_iter()
    .collect()
}

pub(super) fn read_request(channel: Channel) -> read::Request {
    read::Request {
        padding: 0x50,
        flags: read::Flags::READ_UNBUFFERED,
        length: 65537,
        offset: 1 << 33,
        file: FILE,
        minimum_count: 1,
        channel,
        remaining_bytes: 65537,
    }
}

pub(super) fn write_request(channel: Channel, data: &'static [u8]) -> write::Request {
    write::Request {
        offset: 1 << 34,
        file: FILE,
        channel,
        remaining_bytes: 65537,
        flags: write::Flags::WRITE_THROUGH,
        data: Bytes::from_static(data),
    }
}

pub(super) fn emit_write(request: &write::Request, out: &mut Vec<u8>) {
    request.emit_head(out);
    out.extend_from_slice(&request.data);
}

pub(super) fn entry(name: &str) -> directory::Entry {
    directory::Entry {
        file_index: 3,
        creation_time: Filetime(1),
        last_access_time: Filetime(2),
        last_write_time: Filetime(3),
        change_time: Filetime(4),
        end_of_file: 5,
        allocation_size: 4096,
        attributes: FileAttributes::DIRECTORY,
        ea_size: 6,
        file_id: 7,
        short_name: "SHORT~1.TXT".into(),
        name: name.into(),
        mac: None,
        posix: None,
    }
}

pub(super) const LISTINGS: [FileClass; 7] = [
    FileClass::DIRECTORY,
    FileClass::FULL_DIRECTORY,
    FileClass::BOTH_DIRECTORY,
    FileClass::NAMES,
    FileClass::ID_BOTH_DIRECTORY,
    FileClass::ID_FULL_DIRECTORY,
    FileClass::ID_EXTD_DIRECTORY,
];

pub(super) fn listing(class: FileClass) -> Vec<u8> {
    let mut writer = directory::Writer::new(class, 4096).expect("a directory class");
    for name in ["a", "größer.txt", "日本"] {
        assert!(writer.push(&entry(name)));
    }
    writer.finish()
}

pub(super) fn descriptor() -> security::SecurityDescriptor {
    use security::*;
    SecurityDescriptor {
        owner: Some(Sid::unix_user(1000)),
        group: Some(Sid::unix_group(100)),
        control: Control::DACL_PROTECTED,
        dacl: Dacl::List(vec![
            Ace::Allow { flags: AceFlags(3), mask: AccessMask::FILE_ALL, sid: Sid::everyone() },
            Ace::Deny { flags: AceFlags::NONE, mask: AccessMask::DELETE, sid: Sid::unix_user(7) },
            Ace::Other { kind: 5, flags: AceFlags(1), body: vec![9; 12] },
        ]),
    }
}

/// One macro line per sample, for modules of the usual shape.
macro_rules! usual {
    ($samples:ident, $name:literal, $slack:expr, $ty:ty, $value:expr) => {
        $samples.push(sample::<$ty>($name, $slack, $value, |v, out| v.emit(out), |b| <$ty>::parse(b)));
    };
}

pub(super) fn samples() -> Vec<Sample> {
    let mut s = Vec::new();
    usual!(
        s,
        "negotiate request",
        0,
        negotiate::Request,
        negotiate::Request {
            security_mode: negotiate::SecurityMode::SIGNING_ENABLED,
            capabilities: negotiate::Capabilities::LARGE_MTU,
            client_guid: GUID,
            dialects: vec![Dialect::V2_1, Dialect::V3_0, Dialect::V3_1_1],
            contexts: negotiate_contexts(),
        }
    );
    usual!(
        s,
        "negotiate request before 3.1.1",
        0,
        negotiate::Request,
        negotiate::Request {
            security_mode: negotiate::SecurityMode::NONE,
            capabilities: negotiate::Capabilities::NONE,
            client_guid: GUID,
            dialects: vec![Dialect::V2_0_2],
            contexts: vec![],
        }
    );
    usual!(
        s,
        "negotiate response",
        0,
        negotiate::Response,
        negotiate::Response {
            security_mode: negotiate::SecurityMode::SIGNING_REQUIRED,
            dialect: Dialect::V3_1_1,
            server_guid: GUID,
            capabilities: negotiate::Capabilities::LARGE_MTU,
            max_transact_size: 1 << 20,
            max_read_size: 8 << 20,
            max_write_size: 4 << 20,
            system_time: Filetime(1 << 57),
            server_start_time: Filetime::ZERO,
            token: Bytes::from_static(b"token"),
            contexts: negotiate_contexts(),
        }
    );
    usual!(
        s,
        "session setup request",
        0,
        session_setup::Request,
        session_setup::Request {
            flags: session_setup::RequestFlags::BINDING,
            security_mode: negotiate::SecurityMode::SIGNING_ENABLED,
            capabilities: negotiate::Capabilities::DFS,
            previous_session_id: 99,
            token: Bytes::from_static(b"a token"),
        }
    );
    usual!(
        s,
        "session setup response",
        0,
        session_setup::Response,
        session_setup::Response {
            flags: session_setup::SessionFlags::ENCRYPT_DATA,
            token: Bytes::from_static(b"another"),
        }
    );
    usual!(s, "logoff request", 0, logoff::Request, logoff::Request);
    usual!(s, "logoff response", 0, logoff::Response, logoff::Response);
    usual!(
        s,
        "tree connect request",
        0,
        tree_connect::Request,
        tree_connect::Request { flags: tree_connect::RequestFlags::NONE, path: r"\\server\share".into() }
    );
    usual!(
        s,
        "tree connect response",
        0,
        tree_connect::Response,
        tree_connect::Response {
            share_type: tree_connect::ShareType::Disk,
            flags: tree_connect::ShareFlags::ENCRYPT_DATA,
            capabilities: tree_connect::ShareCapabilities::NONE,
            maximal_access: 0x1f01ff,
        }
    );
    usual!(s, "tree disconnect request", 0, tree_disconnect::Request, tree_disconnect::Request);
    usual!(s, "tree disconnect response", 0, tree_disconnect::Response, tree_disconnect::Response);
    usual!(s, "create request", 0, create::Request, create_request("dir\\größe 😀", request_contexts()));
    usual!(s, "create request of the root", 1, create::Request, create_request("", vec![]));
    usual!(
        s,
        "create response",
        0,
        create::Response,
        create::Response {
            oplock: create::OplockLevel::NONE,
            flags: 1,
            action: create::CreateAction::CREATED,
            summary: summary(),
            file: FILE,
            contexts: vec![
                ResponseContext::MaximalAccess { status: NtStatus::SUCCESS, access: 0x1f01ff },
                ResponseContext::OnDiskId { file_id: 5, volume_id: 6 },
                ResponseContext::Durable,
                ResponseContext::DurableV2 { timeout_ms: 1000, flags: DurableFlags::NONE },
                ResponseContext::Lease(lease(false)),
                ResponseContext::Lease(lease(true)),
                ResponseContext::Apple(aapl::Response::Query {
                    server: Some(aapl::ServerCaps::UNIX_BASED),
                    volume: Some(aapl::VolumeCaps::FULL_SYNC),
                    model: Some("Xserve".into()),
                }),
                ResponseContext::Unknown {
                    name: Bytes::from_static(b"AAPX"),
                    data: Bytes::from_static(b"pear"),
                },
            ],
        }
    );
    usual!(
        s,
        "close request",
        0,
        close::Request,
        close::Request { flags: close::Flags::POSTQUERY_ATTRIB, file: FILE }
    );
    usual!(s, "close response", 0, close::Response, close::Response { summary: Some(summary()) });
    usual!(s, "flush request", 0, flush::Request, flush::Request { file: FILE, full_sync: true });
    usual!(s, "flush response", 0, flush::Response, flush::Response);
    // The byte that only StructureSize counts may be missing.
    usual!(s, "read request", 1, read::Request, read_request(Channel::None));
    usual!(s, "read request V1", 0, read::Request, read_request(Channel::RdmaV1(descriptors())));
    usual!(
        s,
        "read request V1_INVALIDATE",
        0,
        read::Request,
        read_request(Channel::RdmaV1Invalidate(descriptors()))
    );
    usual!(s, "read request of an unknown channel", 1, read::Request, read_request(Channel::Unknown(9)));
    s.push(sample(
        "read response",
        0,
        read::Response { data: Bytes::from_static(b"data"), data_remaining: 0, transform: None },
        |v, out| {
            read::Response::emit_head(v.data.len() as u32, v.data_remaining, out);
            out.extend_from_slice(&v.data);
        },
        read::Response::parse,
    ));
    s.push(sample(
        "write request",
        0,
        write_request(Channel::None, b"some data"),
        emit_write,
        write::Request::parse,
    ));
    s.push(sample(
        "write request V1",
        0,
        write_request(Channel::RdmaV1(descriptors()), b""),
        emit_write,
        write::Request::parse,
    ));
    usual!(s, "write response", 0, write::Response, write::Response { count: 77 });
    usual!(
        s,
        "lock request",
        0,
        lock::Request,
        lock::Request {
            sequence: 1,
            file: FILE,
            locks: vec![
                lock::Element { offset: 1, length: 2, flags: lock::Flags::SHARED_LOCK },
                lock::Element { offset: u64::MAX, length: 1, flags: lock::Flags::UNLOCK },
            ],
        }
    );
    usual!(s, "lock response", 0, lock::Response, lock::Response);
    usual!(
        s,
        "ioctl request",
        0,
        ioctl::Request,
        ioctl::Request {
            code: ioctl::CtlCode::PIPE_TRANSCEIVE,
            file: FILE,
            input: Bytes::from_static(b"input"),
            max_input_response: 0,
            max_output_response: 4096,
            flags: ioctl::Flags::IS_FSCTL,
        }
    );
    usual!(
        s,
        "ioctl response",
        0,
        ioctl::Response,
        ioctl::Response {
            code: ioctl::CtlCode::WEFT_ENDPOINTS,
            file: FILE,
            output: Bytes::from_static(b"iwarp 127.0.0.1:5445\n"),
        }
    );
    usual!(s, "cancel request", 0, cancel::Request, cancel::Request);
    usual!(s, "echo request", 0, echo::Request, echo::Request);
    usual!(s, "echo response", 0, echo::Response, echo::Response);
    usual!(
        s,
        "query directory request",
        0,
        query_directory::Request,
        query_directory::Request {
            class: FileClass::ID_BOTH_DIRECTORY,
            flags: query_directory::Flags::RESTART_SCANS,
            file_index: 1,
            file: FILE,
            output_buffer_length: 65536,
            pattern: "*".into(),
        }
    );
    usual!(
        s,
        "query directory response",
        0,
        query_directory::Response,
        query_directory::Response { buffer: listing(FileClass::ID_BOTH_DIRECTORY).into() }
    );
    usual!(
        s,
        "change notify request",
        0,
        change_notify::Request,
        change_notify::Request {
            flags: change_notify::Flags::WATCH_TREE,
            output_buffer_length: 4096,
            file: FILE,
            completion_filter: 0xfff,
        }
    );
    usual!(
        s,
        "change notify response",
        0,
        change_notify::Response,
        change_notify::Response { buffer: Bytes::from_static(b"changes") }
    );
    usual!(
        s,
        "query info request",
        0,
        query_info::Request,
        query_info::Request {
            info_type: query_info::InfoType::SECURITY,
            class: 0,
            output_buffer_length: 4096,
            additional_information: query_info::SecurityInformation::OWNER.0,
            flags: 0,
            file: FILE,
            input: Bytes::from_static(b"in"),
        }
    );
    usual!(
        s,
        "query info response",
        0,
        query_info::Response,
        query_info::Response { buffer: Bytes::from_static(b"out") }
    );
    usual!(
        s,
        "set info request",
        0,
        set_info::Request,
        set_info::Request {
            info_type: query_info::InfoType::FILE,
            class: FileClass::END_OF_FILE.0,
            additional_information: 0,
            file: FILE,
            buffer: Bytes::from_static(&[1, 0, 0, 0, 0, 0, 0, 0]),
        }
    );
    usual!(s, "set info response", 0, set_info::Response, set_info::Response);
    usual!(
        s,
        "oplock break notification",
        0,
        oplock_break::Notification,
        oplock_break::Notification::Oplock { level: create::OplockLevel::II, file: FILE }
    );
    usual!(
        s,
        "lease break notification",
        0,
        oplock_break::Notification,
        oplock_break::Notification::Lease {
            epoch: 1,
            flags: oplock_break::ACK_REQUIRED,
            key: GUID,
            current: LeaseState::READ_CACHING | LeaseState::WRITE_CACHING,
            new: LeaseState::READ_CACHING,
        }
    );
    usual!(
        s,
        "oplock acknowledgment",
        0,
        oplock_break::Acknowledgment,
        oplock_break::Acknowledgment::Oplock { level: create::OplockLevel::NONE, file: FILE }
    );
    usual!(
        s,
        "lease acknowledgment",
        0,
        oplock_break::Acknowledgment,
        oplock_break::Acknowledgment::Lease { key: GUID, state: LeaseState::NONE }
    );
    usual!(s, "error", 1, error::Response, error::Response::EMPTY);
    usual!(s, "error with a length", 0, error::Response, error::Response::buffer_too_small(99, false));
    usual!(
        s,
        "error with contexts",
        0,
        error::Response,
        error::Response::Contexts(vec![
            error::ErrorContext { id: error::ERROR_ID_DEFAULT, data: Bytes::from_static(&[1, 2, 3]) },
            error::ErrorContext { id: error::ERROR_ID_SHARE_REDIRECT, data: Bytes::from_static(&[4; 9]) },
        ])
    );
    bare_samples(&mut s);
    s
}

macro_rules! usual_bare {
    ($samples:ident, $name:literal, $ty:ty, $value:expr) => {
        $samples.push(bare::<$ty>($name, 0, $value, |v, out| v.emit(out), |b| <$ty>::parse(b)));
    };
}

pub(super) fn bare_samples(s: &mut Vec<Sample>) {
    let header = Header { id: Id::Async(0x1234_5678_9abc_def0), ..Header::request(Command::Read, 5) };
    let header = Header { flags: header.flags | header::Flags::ASYNC_COMMAND, ..header };
    usual_bare!(s, "asynchronous header", Header, header);
    usual_bare!(s, "header", Header, Header { id: Id::tree(9), ..Header::request(Command::Unknown(99), 5) });
    s.push(bare(
        "transform header",
        0,
        transform::TransformHeader {
            signature: GUID,
            nonce: GUID,
            original_message_size: 1000,
            session_id: 77,
        },
        |v, out| out.extend_from_slice(&v.to_bytes()),
        transform::TransformHeader::parse,
    ));
    let validate = ioctl::ValidateNegotiateRequest {
        capabilities: negotiate::Capabilities::LARGE_MTU,
        guid: GUID,
        security_mode: negotiate::SecurityMode::SIGNING_ENABLED,
        dialects: vec![Dialect::V3_0, Dialect::V3_0_2],
    };
    usual_bare!(s, "validate negotiate request", ioctl::ValidateNegotiateRequest, validate);
    let validated = ioctl::ValidateNegotiateResponse {
        capabilities: negotiate::Capabilities::LARGE_MTU,
        guid: GUID,
        security_mode: negotiate::SecurityMode::SIGNING_ENABLED,
        dialect: Dialect::V3_0,
    };
    usual_bare!(s, "validate negotiate response", ioctl::ValidateNegotiateResponse, validated);
    let all = file::All {
        standard: file::Standard { delete_pending: true, number_of_links: 2, ..Default::default() },
        name: file::Name { name: "\\a\\b".into() },
        ..Default::default()
    };
    usual_bare!(s, "all information", file::All, all);
    let basic = file::Basic { creation_time: Filetime(1), ..Default::default() };
    usual_bare!(s, "basic information", file::Basic, basic);
    usual_bare!(s, "network open information", file::NetworkOpen, summary().into());
    usual_bare!(s, "id information", file::Id, file::Id { volume_serial_number: 1, file_id: GUID });
    usual_bare!(s, "disposition", file::Disposition, file::Disposition { delete_pending: true });
    let rename = file::Rename { replace_if_exists: true, root_directory: 0, name: "new name".into() };
    usual_bare!(s, "rename", file::Rename, rename);
    let volume = filesystem::Volume { serial_number: 7, label: "weft".into(), ..Default::default() };
    usual_bare!(s, "volume", filesystem::Volume, volume);
    usual_bare!(
        s,
        "size",
        filesystem::Size,
        filesystem::Size { total_units: 9, bytes_per_sector: 512, ..Default::default() }
    );
    usual_bare!(
        s,
        "full size",
        filesystem::FullSize,
        filesystem::FullSize { total_units: 9, bytes_per_sector: 512, ..Default::default() }
    );
    usual_bare!(
        s,
        "device",
        filesystem::Device,
        filesystem::Device { device_type: filesystem::Device::DISK, characteristics: 0x20 }
    );
    usual_bare!(
        s,
        "attribute",
        filesystem::Attribute,
        filesystem::Attribute {
            attributes: filesystem::FsAttributes::UNICODE_ON_DISK,
            max_name_len: 255,
            name: "NTFS".into(),
        }
    );
    usual_bare!(
        s,
        "sector size",
        filesystem::SectorSize,
        filesystem::SectorSize { logical: 512, ..Default::default() }
    );
    usual_bare!(s, "control", filesystem::Control, filesystem::Control::UNLIMITED);
    usual_bare!(
        s,
        "object id",
        filesystem::ObjectId,
        filesystem::ObjectId { object_id: GUID, extended_info: [7; 48] }
    );
    usual_bare!(s, "security descriptor", security::SecurityDescriptor, descriptor());
}
