//! QUERY_INFO: returns metadata of a file, its file system, or its security.
//!
//! Spec: [MS-SMB2] 3.3.5.20, [MS-FSA] 2.1.5.12 to 2.1.5.14, [MS-FSCC] 2.4, 2.5. Quotas are not supported; they are
//! answered as [MS-FSA] says for such an object store.

use std::sync::atomic::Ordering;

use weft_store::backend::short_name;
use weft_store::vfs::{Attr, DirName, Dos, Kind, NodeId, Vfs, XattrSummary};
use weft_wire::smb2::access::AccessMask;
use weft_wire::smb2::create::CreateOptions;
use weft_wire::smb2::error;
use weft_wire::smb2::fscc::ea::FullEa;
use weft_wire::smb2::fscc::file::{self, NetworkOpen};
use weft_wire::smb2::fscc::filesystem as fs;
use weft_wire::smb2::fscc::{self, FileClass, FsClass};
use weft_wire::smb2::query_info::{InfoType, Request, Response, SecurityInformation};
use weft_wire::smb2::{Dialect, NtStatus, utf16};

use super::opens::{ChangeTime, Open};
use super::{afp_streams, attributes, ea, path, reparse_tag, security, volume};
use crate::server::answer::{Answer, Failure, Reply};
use crate::server::context::OpContext;

/// The units of FileFsSizeInformation: clusters of 4 KiB, sectors of 512 bytes.
const BYTES_PER_SECTOR: u32 = 512;
const SECTORS_PER_UNIT: u32 = 8;
const UNIT: u64 = (BYTES_PER_SECTOR * SECTORS_PER_UNIT) as u64;
/// The options that FileModeInformation shows ([MS-FSCC] 2.4.31).
const MODE: CreateOptions = CreateOptions(
    CreateOptions::WRITE_THROUGH.0
        | CreateOptions::SEQUENTIAL_ONLY.0
        | CreateOptions::NO_INTERMEDIATE_BUFFERING.0
        | CreateOptions::DELETE_ON_CLOSE.0,
);
/// Size of an entry of FileStreamInformation without its name ([MS-FSCC] 2.4.44).
const STREAM_BYTES: usize = 24;
/// The deepest directory whose path is returned.
const MAX_DEPTH: usize = 1024;

/// An answer, and how much of it must fit the client's buffer.
struct Info {
    bytes: Vec<u8>,
    fixed_len: usize,
    /// Padded with zeros up to this length, if the client's buffer has room for them.
    padded_len: usize,
}

impl Info {
    /// A class without a variable part.
    fn fixed(emit: impl FnOnce(&mut Vec<u8>)) -> Info {
        let mut bytes = Vec::with_capacity(104);
        emit(&mut bytes);
        Info { fixed_len: bytes.len(), bytes, padded_len: 0 }
    }

    /// A class that ends in a variable part.
    fn variable(fixed_len: usize, emit: impl FnOnce(&mut Vec<u8>)) -> Info {
        Info { fixed_len, ..Info::fixed(emit) }
    }
}

pub(super) async fn query_info(cx: &OpContext) -> Answer {
    let request = Request::parse(cx.message())?;
    let open = cx.open(request.file)?;
    if request.output_buffer_length > cx.max_payload() {
        return Err(NtStatus::INVALID_PARAMETER.into());
    }
    let limit = request.output_buffer_length as usize;
    let is_list = matches!(FileClass(request.class), FileClass::STREAM | FileClass::FULL_EA);
    // Other answers are short, whatever the client's buffer holds.
    let room = match request.info_type {
        InfoType::FILE if is_list => cx.room(limit).await,
        InfoType::SECURITY => cx.room(limit).await,
        _ => None,
    };
    let mut info = match request.info_type {
        InfoType::FILE => file_info(cx, &open, FileClass(request.class), &request.input, limit).await?,
        InfoType::FILESYSTEM => fs_info(cx, &open, FsClass(request.class)).await?,
        InfoType::SECURITY => {
            let wanted = SecurityInformation(request.additional_information);
            let bytes = security::query(cx, &open, wanted).await?;
            if bytes.len() > limit {
                let needed = u32::try_from(bytes.len()).unwrap_or(u32::MAX);
                let data = error::Response::buffer_too_small(needed, cx.dialect() >= Dialect::V3_1_1);
                return Err(Failure { data, ..NtStatus::BUFFER_TOO_SMALL.into() });
            }
            Info { fixed_len: bytes.len(), bytes, padded_len: 0 }
        }
        InfoType::QUOTA => return Err(NtStatus::NOT_SUPPORTED.into()),
        _ => return Err(NtStatus::INVALID_PARAMETER.into()),
    };
    // 3.3.5.20.1: the buffer must hold at least the fixed structure, including padding.
    if limit < info.fixed_len {
        return Err(NtStatus::INFO_LENGTH_MISMATCH.into());
    }
    if info.bytes.len() < info.padded_len.min(limit) {
        info.bytes.resize(info.padded_len.min(limit), 0);
    }
    let Some(cut) = fscc::truncate(&mut info.bytes, limit, info.fixed_len) else {
        return Err(NtStatus::INFO_LENGTH_MISMATCH.into());
    };
    let mut reply = Reply::with_capacity(info.bytes.len().saturating_add(8));
    reply.status = if cut { NtStatus::BUFFER_OVERFLOW } else { NtStatus::SUCCESS };
    Response { buffer: info.bytes.into() }.emit(&mut reply.message);
    reply.room = room;
    Ok(reply)
}

/// 3.3.5.20.1.
async fn file_info(
    cx: &OpContext,
    open: &Open,
    class: FileClass,
    input: &[u8],
    limit: usize,
) -> Result<Info, Failure> {
    let needs_attributes =
        [FileClass::BASIC, FileClass::ALL, FileClass::NETWORK_OPEN, FileClass::ATTRIBUTE_TAG];
    if needs_attributes.contains(&class) {
        open.require(AccessMask::FILE_READ_ATTRIBUTES)?;
    }
    let mut attr = open.vfs.getattr(open.node).await?;
    let mut xattrs = open.vfs.xattr_summary(open.node).await?;
    // UserSetModificationTime: later writes do not show.
    attr.mtime = open.kept_mtime().unwrap_or(attr.mtime);
    if let ChangeTime::Deferred(shown) | ChangeTime::Frozen(shown) = open.change_time() {
        attr.ctime = shown;
        xattrs.dos = xattrs.dos.map(|dos| Dos { changed: None, ..dos });
    }
    let facts = Facts { cx, open, attr: &attr, xattrs: &xattrs };
    Ok(match class {
        FileClass::BASIC => Info::fixed(|out| facts.basic().emit(out)),
        FileClass::STANDARD => Info::fixed(|out| facts.standard().emit(out)),
        FileClass::INTERNAL => Info::fixed(|out| facts.internal().emit(out)),
        FileClass::EA => Info::fixed(|out| facts.ea().emit(out)),
        FileClass::ACCESS => Info::fixed(|out| facts.access().emit(out)),
        FileClass::POSITION => Info::fixed(|out| facts.position().emit(out)),
        FileClass::MODE => Info::fixed(|out| facts.mode().emit(out)),
        FileClass::ALIGNMENT => Info::fixed(|out| file::Alignment::default().emit(out)),
        // A server should leave the name empty (3.3.5.20.1), as Windows has done since 2016. Samba and older Windows
        // return the path, and some clients (smb-rs) accept nothing else. A file without a path gets an empty name; the
        // size counts at least one character of it, because Linux refuses 100 bytes.
        FileClass::ALL => {
            let name = path_of(open).await.map_or_else(|_| String::new(), |path| format!("\\{path}"));
            Info {
                padded_len: file::All::PADDED_LEN,
                ..Info::variable(file::All::PADDED_LEN, |out| facts.all(name).emit(out))
            }
        }
        FileClass::NETWORK_OPEN => {
            let summary = attributes::summary(&attr, xattrs.dos, &open.name());
            Info::fixed(|out| NetworkOpen::from(summary).emit(out))
        }
        FileClass::ATTRIBUTE_TAG => Info::fixed(|out| facts.attribute_tag().emit(out)),
        FileClass::STREAM => {
            let streams = facts.streams(limit).await?;
            Info::variable(32, |out| file::Stream::emit_list(&streams, out))
        }
        FileClass::COMPRESSION => Info::fixed(|out| facts.compression().emit(out)),
        FileClass::ID => Info::fixed(|out| facts.id().emit(out)),
        FileClass::NORMALIZED_NAME if cx.dialect() >= Dialect::V3_1_1 => {
            let name = path_of(open).await?;
            Info::variable(file::Name::FIXED_LEN.next_multiple_of(8), |out| file::Name { name }.emit(out))
        }
        FileClass::POSIX if cx.connection().negotiated().posix => {
            open.require(AccessMask::FILE_READ_ATTRIBUTES)?;
            let (own, device) = (open.name(), volume_of(cx) as u32);
            let shown = path::from_store(&own);
            let summary = attributes::summary(&attr, xattrs.dos, &own);
            let information = attributes::information(&attr, &summary, &shown, device);
            Info::fixed(|out| information.emit(out))
        }
        FileClass::POSIX => return Err(NtStatus::INVALID_INFO_CLASS.into()),
        FileClass::ALTERNATE_NAME => {
            // A name that is a valid 8.3 name has no other one.
            let own = open.name();
            let name =
                short_name(&own).or_else(|| Some(path::from_store(&own))).filter(|name| !name.is_empty());
            let name = name.ok_or(NtStatus::OBJECT_NAME_NOT_FOUND)?;
            Info::variable(file::Name::FIXED_LEN.next_multiple_of(8), |out| file::Name { name }.emit(out))
        }
        FileClass::FULL_EA => {
            open.require(AccessMask::FILE_READ_EA)?;
            let list = ea::list(&open.vfs, open.node, input).await?;
            // The first entry must fit.
            let mut first = Vec::new();
            FullEa::emit_list(list.get(..1).unwrap_or_default(), &mut first);
            Info::variable(first.len(), |out| FullEa::emit_list(&list, out))
        }
        class => return Err(refusal(class).into()),
    })
}

/// The status for a class without an answer: listing classes, and classes that can only be set, are not valid in
/// QUERY_INFO ([MS-SMB2] 3.3.5.20.1, note 415).
fn refusal(class: FileClass) -> NtStatus {
    const SET_ALONE: [FileClass; 8] = [
        FileClass::RENAME,
        FileClass::LINK,
        FileClass::DISPOSITION,
        FileClass::ALLOCATION,
        FileClass::END_OF_FILE,
        FileClass::VALID_DATA_LENGTH,
        FileClass::SHORT_NAME,
        FileClass::NAMES,
    ];
    const LISTINGS: [FileClass; 5] = [
        FileClass::DIRECTORY,
        FileClass::FULL_DIRECTORY,
        FileClass::BOTH_DIRECTORY,
        FileClass::ID_BOTH_DIRECTORY,
        FileClass::ID_FULL_DIRECTORY,
    ];
    match class {
        class if SET_ALONE.contains(&class) || LISTINGS.contains(&class) => NtStatus::INVALID_INFO_CLASS,
        // Classes that only the object store has (note 416).
        FileClass(41 | 43 | 47 | 49 | 51 | 53) => NtStatus::NOT_SUPPORTED,
        class if class.name().is_some() => NtStatus::NOT_SUPPORTED,
        _ => NtStatus::INVALID_INFO_CLASS,
    }
}

/// The source of the classes.
struct Facts<'a> {
    cx: &'a OpContext,
    open: &'a Open,
    attr: &'a Attr,
    xattrs: &'a XattrSummary,
}

impl Facts<'_> {
    fn basic(&self) -> file::Basic {
        let summary = attributes::summary(self.attr, self.xattrs.dos, &self.open.name());
        file::Basic {
            creation_time: summary.creation_time,
            last_access_time: summary.last_access_time,
            last_write_time: summary.last_write_time,
            change_time: summary.change_time,
            attributes: summary.attributes,
        }
    }

    fn standard(&self) -> file::Standard {
        let directory = self.attr.kind == Kind::Dir;
        let pending = self.open.claim.delete_pending();
        file::Standard {
            allocation_size: if directory { 0 } else { self.attr.allocated },
            end_of_file: self.attr.size,
            // A directory's links to itself are not counted. A name that vanishes with the last open no longer counts.
            number_of_links: if directory { 1 } else { self.attr.nlink }.saturating_sub(u32::from(pending)),
            delete_pending: pending,
            directory,
        }
    }

    fn internal(&self) -> file::Internal {
        file::Internal {
            index_number: attributes::number(self.attr, self.cx.connection().negotiated().posix),
        }
    }

    fn access(&self) -> file::Access {
        file::Access { access: self.open.access }
    }

    fn ea(&self) -> file::Ea {
        file::Ea {
            ea_size: if self.xattrs.count == 0 { 0 } else { attributes::ea_size(self.attr, self.xattrs) },
        }
    }

    fn mode(&self) -> file::Mode {
        file::Mode { mode: (self.open.options & MODE).0 }
    }

    fn position(&self) -> file::Position {
        file::Position { current_byte_offset: self.open.position.load(Ordering::Relaxed) }
    }

    fn all(&self, name: String) -> file::All {
        file::All {
            basic: self.basic(),
            standard: self.standard(),
            internal: self.internal(),
            access: self.access(),
            ea: self.ea(),
            position: self.position(),
            mode: self.mode(),
            name: file::Name { name },
            ..file::All::default()
        }
    }

    fn attribute_tag(&self) -> file::AttributeTag {
        file::AttributeTag {
            attributes: attributes::attributes(self.attr, self.xattrs.dos, &self.open.name()),
            reparse_tag: reparse_tag::of(self.attr.kind).unwrap_or(0),
        }
    }

    /// The file's data first, then its streams by name: as many as fit `limit` bytes, and one more to show that there
    /// are more.
    async fn streams(&self, limit: usize) -> Result<Vec<file::Stream>, Failure> {
        let vfs = &self.open.vfs;
        let base = vfs.base(self.open.node);
        let mut streams = Facts { attr: &vfs.getattr(base).await?, ..*self }.data();
        // The first entry does not count, because it is cut if it does not fit.
        let mut room = limit;
        let void = Box::pin(afp_streams::void(self.cx, vfs, base)).await?;
        let named = vfs.streams_while(base, |stream| {
            if void.contains(&stream.name) {
                return true;
            }
            let Ok(name) = String::from_utf8(stream.name) else { return true };
            let name = format!(":{name}:$DATA");
            let fits = room > 0;
            room = room.saturating_sub(utf16::encoded_len(&name).saturating_add(STREAM_BYTES));
            streams.push(file::Stream {
                size: stream.size,
                allocation_size: stream.size.next_multiple_of(8),
                name,
            });
            fits
        });
        named.await?;
        Ok(streams)
    }

    fn data(&self) -> Vec<file::Stream> {
        match self.attr.kind {
            Kind::File => vec![file::Stream {
                size: self.attr.size,
                allocation_size: self.attr.allocated,
                name: "::$DATA".to_owned(),
            }],
            _ => Vec::new(),
        }
    }

    fn compression(&self) -> file::Compression {
        file::Compression { compressed_file_size: self.attr.allocated, compression_format: 0 }
    }

    fn id(&self) -> file::Id {
        let mut file_id = [0; 16];
        let number = attributes::number(self.attr, self.cx.connection().negotiated().posix);
        file_id[..8].copy_from_slice(&number.to_le_bytes());
        file::Id { volume_serial_number: volume_of(self.cx), file_id }
    }
}

fn share_name(cx: &OpContext) -> &str {
    cx.tree().share.as_ref().map_or("", |share| &share.name)
}

fn volume_of(cx: &OpContext) -> u64 {
    volume::id(share_name(cx))
}

/// The current path from the share's root.
async fn path_of(open: &Open) -> Result<String, Failure> {
    let mut names = Vec::new();
    if open.node != NodeId::ROOT {
        let DirName { mut dir, name } = open.place().await?;
        names.push(name);
        while dir != NodeId::ROOT {
            if names.len() == MAX_DEPTH {
                return Err(NtStatus::NOT_SUPPORTED.into());
            }
            let above = open.vfs.place(dir).await?;
            names.push(above.name);
            dir = above.dir;
        }
    }
    let names: Vec<_> = names.iter().rev().map(|name| path::from_store(name)).collect();
    let mut path = names.join("\\");
    if let Some((_, stream)) = open.vfs.stream_of(open.node) {
        path = format!("{path}:{}", String::from_utf8_lossy(&stream));
    }
    Ok(path)
}

/// 3.3.5.20.2.
async fn fs_info(cx: &OpContext, open: &Open, class: FsClass) -> Result<Info, Failure> {
    let vfs = &open.vfs;
    Ok(match class {
        FsClass::VOLUME => {
            let root = vfs.getattr(NodeId::ROOT).await?;
            let volume = fs::Volume {
                creation_time: attributes::filetime(root.btime),
                // Half of the 64-bit number is enough to distinguish volumes.
                serial_number: volume_of(cx) as u32,
                supports_objects: false,
                label: share_name(cx).to_owned(),
            };
            Info::variable(fs::Volume::FIXED_LEN.next_multiple_of(8), |out| volume.emit(out))
        }
        FsClass::SIZE => {
            let space = units(vfs).await?;
            let size = fs::Size {
                total_units: space.total,
                available_units: space.available,
                sectors_per_unit: SECTORS_PER_UNIT,
                bytes_per_sector: BYTES_PER_SECTOR,
            };
            Info::fixed(|out| size.emit(out))
        }
        FsClass::FULL_SIZE => {
            let space = units(vfs).await?;
            let size = fs::FullSize {
                total_units: space.total,
                caller_available_units: space.available,
                actual_available_units: space.free,
                sectors_per_unit: SECTORS_PER_UNIT,
                bytes_per_sector: BYTES_PER_SECTOR,
            };
            Info::fixed(|out| size.emit(out))
        }
        FsClass::DEVICE => {
            let device =
                fs::Device { device_type: fs::Device::DISK, characteristics: fs::Device::IS_MOUNTED };
            Info::fixed(|out| device.emit(out))
        }
        FsClass::ATTRIBUTE => {
            let read_only = match vfs.is_read_only() {
                true => fs::FsAttributes::READ_ONLY_VOLUME,
                false => fs::FsAttributes::NONE,
            };
            let attribute = fs::Attribute {
                attributes: read_only
                    | fs::FsAttributes::CASE_SENSITIVE_SEARCH
                    | fs::FsAttributes::CASE_PRESERVED_NAMES
                    | fs::FsAttributes::UNICODE_ON_DISK
                    | fs::FsAttributes::PERSISTENT_ACLS
                    | fs::FsAttributes::SUPPORTS_SPARSE_FILES
                    | fs::FsAttributes::SUPPORTS_REPARSE_POINTS
                    | fs::FsAttributes::NAMED_STREAMS
                    | fs::FsAttributes::SUPPORTS_EXTENDED_ATTRIBUTES
                    | fs::FsAttributes::SUPPORTS_HARD_LINKS,
                max_name_len: 255,
                // Some clients treat anything else as FAT.
                name: "NTFS".to_owned(),
            };
            Info::variable(fs::Attribute::FIXED_LEN.next_multiple_of(8), |out| attribute.emit(out))
        }
        FsClass::SECTOR_SIZE => {
            let unit = BYTES_PER_SECTOR * SECTORS_PER_UNIT;
            let sectors = fs::SectorSize {
                logical: BYTES_PER_SECTOR,
                physical_atomicity: unit,
                physical_performance: unit,
                effective_atomicity: unit,
                // Aligned device and aligned partition.
                flags: 3,
                sector_alignment: 0,
                partition_alignment: 0,
            };
            Info::fixed(|out| sectors.emit(out))
        }
        // Limits are those of users, and nobody has one. The quota of a share is the size of its file system.
        FsClass::CONTROL => Info::fixed(|out| fs::Control::UNLIMITED.emit(out)),
        FsClass::OBJECT_ID => {
            let mut object_id = [0; 16];
            object_id[..8].copy_from_slice(&volume_of(cx).to_le_bytes());
            Info::fixed(|out| fs::ObjectId { object_id, extended_info: [0; 48] }.emit(out))
        }
        FsClass::POSIX if cx.connection().negotiated().posix => {
            let space = vfs.statfs().await?;
            let posix = fs::Posix {
                optimal_transfer_size: cx.max_payload(),
                block_size: UNIT as u32,
                total_blocks: space.total / UNIT,
                free_blocks: space.free / UNIT,
                available_blocks: space.available / UNIT,
                total_files: space.files,
                free_files: space.files_free,
                identifier: volume_of(cx),
            };
            Info::fixed(|out| posix.emit(out))
        }
        FsClass::POSIX => return Err(NtStatus::INVALID_INFO_CLASS.into()),
        class if class.name().is_some() => return Err(NtStatus::NOT_SUPPORTED.into()),
        _ => return Err(NtStatus::INVALID_INFO_CLASS.into()),
    })
}

/// Space in allocation units.
struct Units {
    total: u64,
    free: u64,
    available: u64,
}

async fn units(vfs: &Vfs) -> Result<Units, Failure> {
    let space = vfs.statfs().await?;
    Ok(Units { total: space.total / UNIT, free: space.free / UNIT, available: space.available / UNIT })
}
