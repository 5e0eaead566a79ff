//! Entries of a directory listing in eight layouts ([MS-FSCC] 2.4.8, 2.4.10, 2.4.15, 2.4.22, 2.4.23, 2.4.24, 2.4.33,
//! and POSIX).
//!
//! Names are not validated: a parsed name may hold anything, even `..\`.
//!
//! ```text
//!  0 NextEntryOffset | 4 FileIndex | 8 four times | 40 EndOfFile | 48 AllocationSize | 56 Attributes | 60 NameLength
//! 64 then by class:  Directory   name
//!                    Full        EaSize, name
//!                    IdFull      EaSize, Reserved 4, FileId 8, name
//!                    IdExtd      EaSize, ReparseTag 4, FileId 16, name
//!                    Both        EaSize, ShortNameLength 1, Reserved 1, ShortName 24, name
//!                    IdBoth      as Both, Reserved 2, FileId 8, name
//!                    for a Mac   MaximalAccess 4 (of a link its tag), Flags 2, ResourceForkLength 8, FinderInfo 16,
//!                                Mode 2, FileId 8, name
//! Names:             NextEntryOffset, FileIndex, NameLength, name
//! Posix:             NextEntryOffset, FileIndex, then as in [`crate::smb2::posix::Information`]
//! ```

use super::FileClass;
use crate::security::Sid;
use crate::smb2::access::FileAttributes;
use crate::smb2::field::{Put, Reader, chained, len32, pad, patch_u32};
use crate::smb2::posix::{self, FileType, Information, Posix};
use crate::smb2::{Filetime, Malformed, utf16};

/// One entry of a directory. A class omits the fields that it lacks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Entry {
    /// Position in the directory; meaningless on most servers.
    pub file_index: u32,
    /// Time of creation.
    pub creation_time: Filetime,
    /// Last read.
    pub last_access_time: Filetime,
    /// Last write.
    pub last_write_time: Filetime,
    /// Last change of data or metadata.
    pub change_time: Filetime,
    /// Size in bytes.
    pub end_of_file: u64,
    /// Allocated bytes.
    pub allocation_size: u64,
    /// Attributes.
    pub attributes: FileAttributes,
    /// Bytes of extended attributes; the reparse tag if REPARSE_POINT is set.
    pub ea_size: u32,
    /// Id of the file on its volume.
    pub file_id: u64,
    /// Its alternate 8.3 name, at most [`MAX_SHORT`] UTF-16 units; empty for none.
    pub short_name: String,
    /// Name.
    pub name: String,
    /// The POSIX properties, for clients that negotiated them.
    pub posix: Option<Box<Information>>,
    /// What a Mac is told, in the layout of its own that it negotiated for IdBoth.
    pub mac: Option<Box<Mac>>,
}

/// What a listing tells a Mac of a file instead of the sizes of its extended attributes and its 8.3 name (Apple's
/// SMBClient, `netsmb/smb_2.h`, "ReadDirAttr Support").
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Mac {
    /// All that the user may do with it. Not told of a reparse point.
    pub maximal_access: u32,
    /// Whether it has named streams, for a client of the second version.
    pub has_streams: Option<bool>,
    /// Bytes in the resource fork.
    pub resource_fork_len: u64,
    /// The fields of the Finder info that are still in use: of a file type and creator, of a directory zeros; flags, extended
    /// flags, the date when it was added.
    pub finder_info: [u8; 16],
    /// The kind and the permissions, as stat(2) has them.
    pub mode: u16,
}

/// Flags of the second version: no named streams.
const NO_STREAMS: u16 = 0x0001;
/// In the first version an 8.3 name's length and a reserved byte, which Macs ignore. Samba's test wants the length of what follows.
const FIRST_VERSION: u16 = 24;

/// The longest 8.3 name ([MS-FSCC] 2.1.5.2.1).
pub const MAX_SHORT: usize = 12;

/// The fields between the common part and the name.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Layout {
    Names,
    Directory,
    Full,
    IdFull,
    IdExtd,
    Both,
    IdBoth,
    Posix,
}

impl Layout {
    fn of(class: FileClass) -> Option<Layout> {
        Some(match class {
            FileClass::NAMES => Layout::Names,
            FileClass::DIRECTORY => Layout::Directory,
            FileClass::FULL_DIRECTORY => Layout::Full,
            FileClass::ID_FULL_DIRECTORY => Layout::IdFull,
            FileClass::ID_EXTD_DIRECTORY => Layout::IdExtd,
            FileClass::BOTH_DIRECTORY => Layout::Both,
            FileClass::ID_BOTH_DIRECTORY => Layout::IdBoth,
            FileClass::POSIX => Layout::Posix,
            _ => return None,
        })
    }

    /// Offset of the name, or its lowest offset in a layout that includes owners.
    fn name_at(self) -> usize {
        match self {
            Layout::Names => 12,
            Layout::Directory => 64,
            Layout::Full => 68,
            Layout::IdFull => 80,
            Layout::IdExtd => 88,
            Layout::Both => 94,
            Layout::IdBoth => 104,
            // Two SIDs without sub-authorities.
            Layout::Posix => 8 + 68 + 12 + 16 + 4,
        }
    }

    /// Offset of the name in this entry.
    fn name_of(self, entry: &Entry) -> usize {
        match (self, &entry.posix) {
            (Layout::Posix, Some(all)) => {
                [8 + 68 + 12 + 4, all.posix.owner.len(), all.posix.group.len()].iter().sum()
            }
            _ => self.name_at(),
        }
    }
}

/// Whether `class` lists directories; the server answers others with STATUS_INVALID_INFO_CLASS.
pub fn is_directory_class(class: FileClass) -> bool {
    Layout::of(class).is_some()
}

impl From<Information> for Entry {
    fn from(all: Information) -> Entry {
        Entry {
            file_index: 0,
            creation_time: all.creation_time,
            last_access_time: all.last_access_time,
            last_write_time: all.last_write_time,
            change_time: all.change_time,
            end_of_file: all.end_of_file,
            allocation_size: all.allocation_size,
            attributes: all.attributes,
            ea_size: all.posix.reparse_tag,
            file_id: all.inode,
            short_name: String::new(),
            name: all.name.clone(),
            posix: Some(Box::new(all)),
            mac: None,
        }
    }
}

impl Entry {
    /// The POSIX properties. A link to elsewhere, which is not a file of the store, becomes a directory without an
    /// owner.
    fn information(&self) -> Information {
        match &self.posix {
            Some(all) => Information::clone(all),
            None => Information {
                creation_time: self.creation_time,
                last_access_time: self.last_access_time,
                last_write_time: self.last_write_time,
                change_time: self.change_time,
                end_of_file: self.end_of_file,
                allocation_size: self.allocation_size,
                attributes: self.attributes,
                inode: self.file_id,
                device: 0,
                posix: Posix {
                    links: 1,
                    reparse_tag: self.ea_size,
                    mode: posix::mode(FileType::Directory, 0o555),
                    owner: Sid { authority: 0, sub_authorities: Vec::new() },
                    group: Sid { authority: 0, sub_authorities: Vec::new() },
                },
                name: self.name.clone(),
            },
        }
    }
}

/// Fills a buffer with entries up to a limit.
#[derive(Debug)]
pub struct Writer {
    out: Vec<u8>,
    layout: Layout,
    limit: usize,
    last: usize,
    count: usize,
}

impl std::fmt::Debug for Layout {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "name at {}", self.name_at())
    }
}

impl Writer {
    /// A buffer of at most `limit` bytes; `None` if `class` does not list directories.
    pub fn new(class: FileClass, limit: usize) -> Option<Writer> {
        // Room for a typical response; grows as needed, up to `limit`.
        const FIRST: usize = 16 << 10;
        let layout = Layout::of(class)?;
        Some(Writer { out: Vec::with_capacity(limit.min(FIRST)), layout, limit, last: 0, count: 0 })
    }

    /// Appends an entry; returns false, without a change, if it does not fit.
    #[must_use]
    pub fn push(&mut self, entry: &Entry) -> bool {
        let name_len = utf16::encoded_len(&entry.name);
        let start = self.out.len().next_multiple_of(8);
        if start.saturating_add(self.layout.name_of(entry)).saturating_add(name_len) > self.limit {
            return false;
        }
        pad(&mut self.out, 0, 8);
        if self.count > 0 {
            patch_u32(&mut self.out, self.last, len32(start.saturating_sub(self.last)));
        }
        self.last = start;
        self.count = self.count.saturating_add(1);
        self.emit(entry, name_len);
        true
    }

    fn emit(&mut self, entry: &Entry, name_len: usize) {
        let out = &mut self.out;
        out.put_u32(0);
        out.put_u32(entry.file_index);
        if self.layout == Layout::Names {
            out.put_u32(len32(name_len));
            return utf16::encode(&entry.name, out);
        }
        if self.layout == Layout::Posix {
            return entry.information().emit(out);
        }
        out.put_u64(entry.creation_time.0);
        out.put_u64(entry.last_access_time.0);
        out.put_u64(entry.last_write_time.0);
        out.put_u64(entry.change_time.0);
        out.put_u64(entry.end_of_file);
        out.put_u64(entry.allocation_size);
        out.put_u32(entry.attributes.0);
        out.put_u32(len32(name_len));
        let mac = entry.mac.as_deref().filter(|_| self.layout == Layout::IdBoth);
        if self.layout != Layout::Directory {
            let is_link = entry.attributes.contains(FileAttributes::REPARSE_POINT);
            out.put_u32(mac.filter(|_| !is_link).map_or(entry.ea_size, |mac| mac.maximal_access));
        }
        match self.layout {
            Layout::Names | Layout::Directory | Layout::Full | Layout::Posix => {}
            Layout::IdFull => {
                out.put_u32(0);
                out.put_u64(entry.file_id);
            }
            Layout::IdExtd => {
                out.put_u32(0);
                out.put_u64(entry.file_id);
                out.put_u64(0);
            }
            Layout::Both => put_short(out, &entry.short_name),
            Layout::IdBoth => {
                match mac {
                    Some(mac) => mac.emit(out),
                    None => {
                        put_short(out, &entry.short_name);
                        out.put_u16(0);
                    }
                }
                out.put_u64(entry.file_id);
            }
        }
        utf16::encode(&entry.name, out);
    }

    /// Number of entries.
    pub fn len(&self) -> usize {
        self.count
    }

    /// Whether there are no entries.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// The buffer.
    pub fn finish(self) -> Vec<u8> {
        self.out
    }
}

/// Parses a buffer of entries. Invalid UTF-16 in names becomes U+FFFD.
pub fn parse(class: FileClass, bytes: &[u8]) -> Result<Vec<Entry>, Malformed> {
    let layout = Layout::of(class).ok_or(Malformed("not a directory class"))?;
    let mut entries = Vec::new();
    let mut rest = bytes;
    while !rest.is_empty() {
        let next = Reader::new(rest).u32()? as usize;
        let following = chained(rest, next, layout.name_at(), "directory entry")?;
        let one = rest.strip_suffix(following).ok_or(Malformed("directory entry"))?;
        entries.push(parse_one(layout, one)?);
        rest = following;
    }
    Ok(entries)
}

impl Mac {
    /// In the place of the 8.3 name and of the reserved bytes after it.
    fn emit(&self, out: &mut Vec<u8>) {
        out.put_u16(match self.has_streams {
            Some(true) => 0,
            Some(false) => NO_STREAMS,
            None => FIRST_VERSION,
        });
        out.put_u64(self.resource_fork_len);
        out.put(&self.finder_info);
        out.put_u16(self.mode);
    }
}

/// ShortNameLength, Reserved, ShortName.
fn put_short(out: &mut Vec<u8>, name: &str) {
    let end = out.len().saturating_add(26);
    let name_len = utf16::encoded_len(name);
    debug_assert!(name_len <= 2 * MAX_SHORT);
    if name_len <= 2 * MAX_SHORT {
        out.put_u16(name_len as u16);
        utf16::encode(name, out);
    }
    out.resize(end, 0);
}

fn take_short(r: &mut Reader<'_>) -> Result<String, Malformed> {
    let len = usize::from(r.u8()?);
    r.u8()?;
    let name = r.take(2 * MAX_SHORT)?;
    utf16::decode_lossy(name.get(..len).ok_or(Malformed("8.3 name"))?)
}

fn parse_one(layout: Layout, this: &[u8]) -> Result<Entry, Malformed> {
    let mut r = Reader::new(this);
    let mut entry = Entry::default();
    r.u32()?;
    entry.file_index = r.u32()?;
    if layout == Layout::Posix {
        return Ok(Entry { file_index: entry.file_index, ..Information::parse(r.rest())?.into() });
    }
    if layout != Layout::Names {
        entry.creation_time = Filetime(r.u64()?);
        entry.last_access_time = Filetime(r.u64()?);
        entry.last_write_time = Filetime(r.u64()?);
        entry.change_time = Filetime(r.u64()?);
        entry.end_of_file = r.u64()?;
        entry.allocation_size = r.u64()?;
        entry.attributes = FileAttributes(r.u32()?);
    }
    let name_len = r.u32()? as usize;
    if !matches!(layout, Layout::Names | Layout::Directory) {
        entry.ea_size = r.u32()?;
    }
    match layout {
        Layout::Names | Layout::Directory | Layout::Full | Layout::Posix => {}
        Layout::IdFull => {
            r.take(4)?;
            entry.file_id = r.u64()?;
        }
        Layout::IdExtd => {
            r.take(4)?;
            entry.file_id = r.u64()?;
            r.take(8)?;
        }
        Layout::Both => entry.short_name = take_short(&mut r)?,
        Layout::IdBoth => {
            entry.short_name = take_short(&mut r)?;
            r.take(2)?;
            entry.file_id = r.u64()?;
        }
    }
    entry.name = utf16::decode_lossy(r.take(name_len)?)?;
    Ok(entry)
}
