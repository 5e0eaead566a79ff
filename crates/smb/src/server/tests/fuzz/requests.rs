//! Builds one request of any kind, as a script decides. Spec: [MS-SMB2] 2.2.

use bytes::Bytes;
use weft_machine::sim::Script;
use weft_wire::smb2::aapl::{self, Parts, ServerCaps};
use weft_wire::smb2::access::{AccessMask, FileAttributes, ShareAccess};
use weft_wire::smb2::create::{self, CreateDisposition, CreateOptions, OplockLevel};
use weft_wire::smb2::create_context::{DurableFlags, Lease, LeaseFlags, LeaseState, LeaseV2, RequestContext};
use weft_wire::smb2::ioctl::CtlCode;
use weft_wire::smb2::{
    Command, FileId, Filetime, Guid, change_notify, channel, close, echo, flush, fscc, ioctl, lock, logoff,
    oplock_break, query_directory, query_info, read, set_info, tree_connect, tree_disconnect, write,
};

use super::{Client, Knowledge};

/// The bytes of an unsigned request. `related`: it refers to the previous request's handle.
pub fn request(client: &mut Client, known: &Knowledge, related: bool, script: &mut Script<'_>) -> Vec<u8> {
    let file = file(known, related, script);
    match script.byte() % 40 {
        0..=9 => {
            let request = create(known, script);
            client.request(Command::Create, |out| request.emit(out))
        }
        10 | 11 => {
            let flags = if script.flag() { close::Flags::POSTQUERY_ATTRIB } else { close::Flags::NONE };
            client.request(Command::Close, |out| close::Request { flags, file }.emit(out))
        }
        12..=14 => {
            let data = vec![0x44; script.below(5000)];
            let request = write::Request {
                offset: script.edge(),
                file,
                channel: channel(script),
                remaining_bytes: 0,
                flags: if script.rarely(4) { write::Flags::WRITE_THROUGH } else { write::Flags::NONE },
                data: Bytes::from(data),
            };
            client.request(Command::Write, |out| {
                request.emit_head(out);
                out.extend_from_slice(&request.data);
            })
        }
        15 | 16 => {
            let request = read::Request {
                padding: script.byte(),
                flags: read::Flags::NONE,
                length: script.edge() as u32,
                offset: script.edge(),
                file,
                minimum_count: if script.rarely(4) { script.edge() as u32 } else { 0 },
                channel: channel(script),
                remaining_bytes: 0,
            };
            client.request(Command::Read, |out| request.emit(out))
        }
        17 => client
            .request(Command::Flush, |out| flush::Request { file, full_sync: script.rarely(4) }.emit(out)),
        18..=20 => {
            let element = |script: &mut Script<'_>| lock::Element {
                offset: script.edge(),
                length: script.edge(),
                flags: lock::Flags(*script.one_of(&[1, 2, 4, 0x11, 0x12, 0x12, 7, 0])),
            };
            let locks = (0..=script.below(3)).map(|_| element(script)).collect();
            let sequence = if script.rarely(4) { script.edge() as u32 } else { 0 };
            client.request(Command::Lock, |out| lock::Request { sequence, file, locks }.emit(out))
        }
        21..=24 => {
            let (code, input) = control(known, file, script);
            let request = ioctl::Request {
                code,
                file: if script.rarely(16) { FileId::RELATED } else { file },
                input,
                max_input_response: 0,
                max_output_response: if script.flag() { 4096 } else { script.edge() as u32 },
                flags: ioctl::Flags::IS_FSCTL,
            };
            client.request(Command::Ioctl, |out| request.emit(out))
        }
        25 | 26 => {
            let request = query_directory::Request {
                class: fscc::FileClass(*script.one_of(&[1, 2, 3, 12, 37, 38, 60, 78, 100, 200])),
                flags: query_directory::Flags(script.byte() % 32),
                file_index: script.edge() as u32,
                file,
                output_buffer_length: if script.flag() { 4096 } else { script.edge() as u32 },
                pattern: (*script.one_of(&["*", "a", "a*", "?", "<.\"", "", "*.*"])).into(),
            };
            client.request(Command::QueryDirectory, |out| request.emit(out))
        }
        27 | 28 => {
            let request = change_notify::Request {
                flags: change_notify::Flags(u16::from(script.byte() % 2)),
                output_buffer_length: if script.flag() { 4096 } else { script.edge() as u32 },
                file,
                completion_filter: if script.flag() { 0xfff } else { script.edge() as u32 },
            };
            client.request(Command::ChangeNotify, |out| request.emit(out))
        }
        29 | 30 => {
            let request = query_info::Request {
                info_type: query_info::InfoType(script.byte() % 6),
                class: script.byte() % 80,
                output_buffer_length: if script.flag() { 4096 } else { script.edge() as u32 },
                additional_information: script.edge() as u32,
                flags: u32::from(script.byte() % 8),
                file,
                input: Bytes::copy_from_slice(script.bytes(8)),
            };
            client.request(Command::QueryInfo, |out| request.emit(out))
        }
        31..=34 => {
            let (info_type, class, buffer) = information(script);
            let request = set_info::Request {
                info_type: query_info::InfoType(info_type),
                class,
                additional_information: if script.flag() { 7 } else { script.edge() as u32 },
                file,
                buffer,
            };
            client.request(Command::SetInfo, |out| request.emit(out))
        }
        35..=37 => {
            let request = known.breaks.pick(script).unwrap_or(oplock_break::Acknowledgment::Lease {
                key: key(script),
                state: LeaseState(u32::from(script.byte() % 8)),
            });
            client.request(Command::OplockBreak, |out| request.emit(out))
        }
        38 => client.request(Command::Echo, |out| echo::Request.emit(out)),
        _ => administration(client, script),
    }
}

/// Ends sessions and trees, and asks for more.
fn administration(client: &mut Client, script: &mut Script<'_>) -> Vec<u8> {
    match script.byte() % 16 {
        0 => client.request(Command::Logoff, |out| logoff::Request.emit(out)),
        1 => client.request(Command::TreeDisconnect, |out| tree_disconnect::Request.emit(out)),
        _ => {
            let path = *script.one_of(&[r"\\server\data", r"\\server\IPC$", r"\\server\none", "", r"\\"]);
            let flags = tree_connect::RequestFlags::NONE;
            let request = tree_connect::Request { flags, path: path.into() };
            client.request(Command::TreeConnect, |out| request.emit(out))
        }
    }
}

fn file(known: &Knowledge, related: bool, script: &mut Script<'_>) -> FileId {
    if related && !script.rarely(8) {
        return FileId::RELATED;
    }
    let mut file = known.files.pick(script).unwrap_or(FileId { persistent: 1, volatile: 1 });
    match script.byte() % 32 {
        1 => file.persistent ^= 1,
        2 => file.volatile ^= 1,
        _ => {}
    }
    file
}

fn channel(script: &mut Script<'_>) -> channel::Channel {
    if script.rarely(16) { channel::Channel::Unknown(7) } else { channel::Channel::None }
}

fn key(script: &mut Script<'_>) -> Guid {
    [script.byte() % 3; 16]
}

fn name(script: &mut Script<'_>) -> String {
    match script.byte() % 32 {
        0..=6 => "a".into(),
        7..=10 => "b".into(),
        11..=14 => "d".into(),
        15..=17 => r"d\a".into(),
        18 => "a:s".into(),
        19 => "a:AFP_AfpInfo".into(),
        20 => "a::$DATA".into(),
        21 => "d::$INDEX_ALLOCATION".into(),
        22 => String::new(),
        23 => r"..\a".into(),
        24 => "x".repeat(300),
        25 => "A".into(),
        26 => (*script.one_of(&["srvsvc", "lsarpc", "samr"])).into(),
        27 => r"a\b".into(),
        28 => "*".into(),
        29 => "a:s:$DATA:x".into(),
        30 => r"@GMT-2026.01.01-00.00.00\a".into(),
        _ => "e".into(),
    }
}

fn create(known: &Knowledge, script: &mut Script<'_>) -> create::Request {
    let disposition = match script.byte() % 12 {
        0 => CreateDisposition::Supersede,
        1 | 2 => CreateDisposition::Open,
        3 => CreateDisposition::Create,
        4 => CreateDisposition::Overwrite,
        5 => CreateDisposition::OverwriteIf,
        6 if script.rarely(4) => CreateDisposition::Unknown(9),
        _ => CreateDisposition::OpenIf,
    };
    let oplock = *script.one_of(&[
        OplockLevel::NONE,
        OplockLevel::II,
        OplockLevel::EXCLUSIVE,
        OplockLevel::BATCH,
        OplockLevel::LEASE,
        OplockLevel::LEASE,
    ]);
    let options = match script.byte() % 12 {
        1 => CreateOptions::DIRECTORY_FILE,
        3 => CreateOptions(0x0000_1000),
        4 if script.rarely(4) => CreateOptions(script.edge() as u32),
        5 => CreateOptions(0x0000_0040),
        _ => CreateOptions::NONE,
    };
    let mut contexts = Vec::new();
    if oplock == OplockLevel::LEASE && !script.rarely(8) {
        contexts.push(RequestContext::Lease(lease(script)));
    }
    let others = if script.rarely(3) { script.below(4) } else { 0 };
    for _ in 0..others {
        contexts.push(context(known, script));
    }
    create::Request {
        oplock,
        impersonation: if script.rarely(32) { 9 } else { 2 },
        desired_access: match script.byte() % 6 {
            5 if script.flag() => AccessMask(script.edge() as u32),
            1 => AccessMask(0x0001_0080),
            2 => AccessMask(0x8000_0000),
            _ => AccessMask::FILE_ALL,
        },
        attributes: FileAttributes(if script.rarely(4) { script.edge() as u32 } else { 0 }),
        share_access: ShareAccess(if script.rarely(4) { u32::from(script.byte() % 9) } else { 7 }),
        disposition,
        options,
        name: name(script),
        contexts,
    }
}

fn lease(script: &mut Script<'_>) -> Lease {
    let v2 = LeaseV2 { parent_key: key(script), epoch: script.word() };
    Lease {
        key: key(script),
        state: LeaseState(u32::from(script.byte() % 8)),
        flags: if script.rarely(4) { LeaseFlags::PARENT_LEASE_KEY_SET } else { LeaseFlags::NONE },
        v2: (!script.rarely(4)).then_some(v2),
    }
}

fn context(known: &Knowledge, script: &mut Script<'_>) -> RequestContext {
    let file = known.files.pick(script).unwrap_or(FileId { persistent: 1, volatile: 1 });
    let flags = if script.rarely(8) { DurableFlags::PERSISTENT } else { DurableFlags::NONE };
    match script.byte() % 16 {
        0 => RequestContext::MaximalAccess(script.flag().then(|| Filetime(script.edge()))),
        1 => RequestContext::OnDiskId,
        2 => RequestContext::Durable,
        3 | 4 => RequestContext::DurableReconnect(file),
        5..=8 => {
            RequestContext::DurableV2 { timeout_ms: script.edge() as u32, flags, create_guid: key(script) }
        }
        9 | 10 => RequestContext::DurableReconnectV2 { file, create_guid: key(script), flags },
        11 => RequestContext::Timewarp(Filetime(script.edge())),
        12 => RequestContext::AllocationSize(script.edge()),
        13 => RequestContext::ExtendedAttributes(attributes(script)),
        14 => RequestContext::AppInstance(key(script)),
        _ => match script.byte() % 6 {
            0 => RequestContext::SecurityDescriptor(descriptor(script)),
            1 => RequestContext::Posix { mode: script.edge() as u32 },
            3 | 4 => {
                let parts = if script.rarely(4) { script.edge() } else { 7 };
                let client = if script.rarely(4) { script.edge() } else { 0x3f };
                RequestContext::Apple(aapl::Request::Query {
                    parts: Parts(parts),
                    client: ServerCaps(client),
                })
            }
            5 => {
                let len = script.below(40);
                let data = Bytes::copy_from_slice(script.bytes(len));
                RequestContext::Unknown { name: Bytes::from_static(b"AAPL"), data }
            }
            _ => RequestContext::AppInstanceVersion { high: script.edge(), low: script.edge() },
        },
    }
}

/// A list with one extended attribute, or a malformed one.
fn attributes(script: &mut Script<'_>) -> Bytes {
    let len = script.below(64);
    let value = script.bytes(len);
    let name: &[u8] = if script.rarely(8) { b"" } else { b"EA" };
    let mut out = vec![0; 4];
    out.extend([script.byte() & 0x80, name.len() as u8]);
    out.extend((value.len() as u16).to_le_bytes());
    out.extend(name);
    out.push(0);
    out.extend(value);
    if script.rarely(8) {
        out.truncate(script.below(out.len()));
    }
    out.into()
}

/// A descriptor that allows everybody everything, with some bytes changed now and then.
fn descriptor(script: &mut Script<'_>) -> Bytes {
    let mut out =
        b"\x01\0\x04\x80\0\0\0\0\0\0\0\0\0\0\0\0\x14\0\0\0\x02\0\x1c\0\x01\0\0\0\0\0\x14\0\xff\x01\x1f\0\
        \x01\x01\0\0\0\0\0\x01\0\0\0\0"
            .to_vec();
    if script.flag() {
        let at = script.below(out.len());
        out[at] = script.byte();
    }
    out.into()
}

fn words(words: &[u64]) -> Bytes {
    words.iter().flat_map(|word| word.to_le_bytes()).collect::<Vec<_>>().into()
}

fn control(known: &Knowledge, file: FileId, script: &mut Script<'_>) -> (CtlCode, Bytes) {
    let token = known.tokens.pick(script).unwrap_or_else(|| Bytes::from_static(&[0; 24]));
    match script.byte() % 24 {
        0 | 1 => (CtlCode::SRV_REQUEST_RESUME_KEY, Bytes::new()),
        2..=4 => {
            let code = if script.flag() { CtlCode::SRV_COPYCHUNK } else { CtlCode::SRV_COPYCHUNK_WRITE };
            let chunks = script.below(4);
            let mut input = token[..24].to_vec();
            input.extend((chunks as u32).to_le_bytes());
            input.extend([0; 4]);
            for _ in 0..chunks {
                input.extend(script.edge().to_le_bytes());
                input.extend(script.edge().to_le_bytes());
                input.extend((script.edge() as u32).to_le_bytes());
                input.extend([0; 4]);
            }
            (code, input.into())
        }
        5 => {
            let len = script.below(2);
            (CtlCode::SET_SPARSE, Bytes::copy_from_slice(script.bytes(len)))
        }
        6 | 7 => (CtlCode::SET_ZERO_DATA, words(&[script.edge(), script.edge()])),
        8 | 9 => (CtlCode::QUERY_ALLOCATED_RANGES, words(&[script.edge(), script.edge()])),
        10 | 11 => {
            let mut input = file.to_bytes().to_vec();
            input.extend(words(&[script.edge(), script.edge(), script.edge()]));
            (CtlCode::DUPLICATE_EXTENTS_TO_FILE, input.into())
        }
        12 => {
            let mut input = 32u32.to_le_bytes().to_vec();
            input.extend([0; 4]);
            input.extend((script.edge() as u32).to_le_bytes());
            input.extend([0; 4]);
            input.extend(words(&[script.edge(), script.edge()]));
            (CtlCode::OFFLOAD_READ, input.into())
        }
        13 => {
            let mut input = 544u32.to_le_bytes().to_vec();
            input.extend([0; 4]);
            input.extend(words(&[script.edge(), script.edge(), script.edge()]));
            input.extend_from_slice(&token);
            input.resize(544, 0);
            (CtlCode::OFFLOAD_WRITE, input.into())
        }
        14 => {
            let mut input = 0u32.to_le_bytes().to_vec();
            input.extend(1u32.to_le_bytes());
            input.extend(words(&[script.edge(), script.edge()]));
            (CtlCode::FILE_LEVEL_TRIM, input.into())
        }
        15 => (CtlCode::LMR_REQUEST_RESILIENCY, words(&[script.edge()])),
        16 => (CtlCode::PIPE_TRANSCEIVE, pipe(script)),
        17 => (CtlCode::SET_REPARSE_POINT, symlink(script)),
        18 => (CtlCode::GET_REPARSE_POINT, Bytes::new()),
        19 => (CtlCode::DELETE_REPARSE_POINT, Bytes::from_static(b"\x0c\0\0\xa0\0\0\0\0")),
        20 => (CtlCode::QUERY_FILE_REGIONS, words(&[script.edge(), script.edge(), script.edge()])),
        21 => (CtlCode::SRV_ENUMERATE_SNAPSHOTS, Bytes::new()),
        22 => (CtlCode::VALIDATE_NEGOTIATE_INFO, Bytes::copy_from_slice(script.bytes(40))),
        _ => {
            let code = *script.one_of(&[
                CtlCode::CREATE_OR_GET_OBJECT_ID,
                CtlCode::GET_OBJECT_ID,
                CtlCode::GET_COMPRESSION,
                CtlCode::SET_COMPRESSION,
                CtlCode::GET_INTEGRITY_INFORMATION,
                CtlCode::SET_INTEGRITY_INFORMATION,
                CtlCode::DUPLICATE_EXTENTS_TO_FILE_EX,
                CtlCode::DFS_GET_REFERRALS,
                CtlCode::QUERY_NETWORK_INTERFACE_INFO,
                CtlCode::WEFT_ENDPOINTS,
                CtlCode::WEFT_EXCHANGE,
                CtlCode::PIPE_PEEK,
                CtlCode::PIPE_WAIT,
                CtlCode::SRV_READ_HASH,
            ]);
            (code, Bytes::copy_from_slice(script.bytes(32)))
        }
    }
}

/// A bind to srvsvc or a call, as the script's bytes decide.
fn pipe(script: &mut Script<'_>) -> Bytes {
    let mut out = b"\x05\0\x0b\x03\x10\0\0\0\x48\0\0\0\x01\0\0\0\xb8\x10\xb8\x10\0\0\0\0\x01\0\0\0\0\0\x01\0\
        \xc8\x4f\x32\x4b\x70\x16\xd3\x01\x12\x78\x5a\x47\xbf\x6e\xe1\x88\x03\0\0\0\
        \x04\x5d\x88\x8a\xeb\x1c\xc9\x11\x9f\xe8\x08\0\x2b\x10\x48\x60\x02\0\0\0"
        .to_vec();
    if script.flag() {
        out = b"\x05\0\0\x03\x10\0\0\0\x40\0\0\0\x01\0\0\0\x28\0\0\0\0\0\x0f\0".to_vec();
        out[22] = script.byte() % 24;
        out.extend_from_slice(script.bytes(40));
        out.resize(64, 0);
    }
    out.into()
}

fn symlink(script: &mut Script<'_>) -> Bytes {
    let target: Vec<u8> = name(script).encode_utf16().flat_map(u16::to_le_bytes).collect();
    let len = target.len() as u16;
    let mut out = 0xA000_000Cu32.to_le_bytes().to_vec();
    out.extend((12 + 2 * len).to_le_bytes());
    out.extend([0; 2]);
    for word in [0, len, len, len] {
        out.extend(word.to_le_bytes());
    }
    out.extend(u32::from(script.flag()).to_le_bytes());
    out.extend(&target);
    out.extend(&target);
    out.into()
}

/// A SET_INFO's type, class and buffer.
fn information(script: &mut Script<'_>) -> (u8, u8, Bytes) {
    match script.byte() % 16 {
        0 | 1 => {
            let mut out: Vec<u8> = (0..4).flat_map(|_| script.edge().to_le_bytes()).collect();
            out.extend((script.edge() as u32).to_le_bytes());
            out.extend([0; 4]);
            (1, 4, out.into())
        }
        2..=4 => {
            let name: Vec<u8> = name(script).encode_utf16().flat_map(u16::to_le_bytes).collect();
            let mut out = vec![0; 16];
            out[0] = script.byte() % 4;
            out.extend((name.len() as u32).to_le_bytes());
            out.extend(name);
            (1, *script.one_of(&[10, 10, 11, 65]), out.into())
        }
        5 | 6 => (1, 13, Bytes::copy_from_slice(&[script.byte() % 2])),
        7 => (1, 64, Bytes::copy_from_slice(&u32::from(script.byte() % 32).to_le_bytes())),
        8 | 9 => (1, 20, words(&[script.edge()])),
        10 => (1, 19, words(&[script.edge()])),
        11 => (1, 39, words(&[script.edge()])),
        12 => (1, 15, attributes(script)),
        13 => (3, 0, descriptor(script)),
        14 => (1, *script.one_of(&[14, 16, 23, 36, 71]), words(&[script.edge()])),
        _ => (script.byte() % 6, script.byte() % 80, Bytes::copy_from_slice(script.bytes(64))),
    }
}
