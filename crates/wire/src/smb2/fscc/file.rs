//! Information classes of files ([MS-FSCC] 2.4). `directory` has those that list directories.

use crate::smb2::access::{AccessMask, FileAttributes};
use crate::smb2::create::FileSummary;
use crate::smb2::field::{Put, Reader, bits, chained, len32, pad, since};
use crate::smb2::{Filetime, Malformed, utf16};

/// Classes that consist of a fixed sequence of fields.
macro_rules! fixed_class {
    ($($(#[$meta:meta])* $name:ident { $($(#[$doc:meta])* $field:ident: $ty:ty = $get:ident $wrap:expr, $put:ident $unwrap:expr;)* } pad $pad:literal;)*) => {$(
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct $name {
            $($(#[$doc])* pub $field: $ty,)*
        }

        impl $name {
            /// Parses the structure.
            pub fn parse(bytes: &[u8]) -> Result<$name, Malformed> {
                let mut r = Reader::new(bytes);
                let value = $name { $($field: $wrap(r.$get()?),)* };
                r.take($pad)?;
                Ok(value)
            }

            /// Appends the structure.
            pub fn emit(&self, out: &mut Vec<u8>) {
                $(out.$put($unwrap(self.$field));)*
                out.put_zeros($pad);
            }
        }
    )*};
}

fn same<T>(value: T) -> T {
    value
}
fn time_of(time: Filetime) -> u64 {
    time.0
}
fn bits_of(attributes: FileAttributes) -> u32 {
    attributes.0
}
fn mask_of(access: AccessMask) -> u32 {
    access.0
}
fn disposition_of(flags: DispositionFlags) -> u32 {
    flags.0
}
fn flag(value: u8) -> bool {
    value != 0
}

bits! {
    /// Flags of [`DispositionEx`].
    DispositionFlags: u32 {
        /// Delete.
        DELETE = 0x01;
        /// Remove the name at once.
        POSIX_SEMANTICS = 0x02;
        /// Not while the file is executed.
        FORCE_IMAGE_SECTION_CHECK = 0x04;
        /// Change delete-on-close.
        ON_CLOSE = 0x08;
        /// Even if the file is read-only.
        IGNORE_READONLY_ATTRIBUTE = 0x10;
    }
}

fixed_class! {
    /// FileBasicInformation (2.4.7). For SET_INFO see [`Filetime::to_set`]; attributes of 0 mean no change.
    Basic {
        /// Time of creation.
        creation_time: Filetime = u64 Filetime, put_u64 time_of;
        /// Last read.
        last_access_time: Filetime = u64 Filetime, put_u64 time_of;
        /// Last write.
        last_write_time: Filetime = u64 Filetime, put_u64 time_of;
        /// Last change of data or metadata.
        change_time: Filetime = u64 Filetime, put_u64 time_of;
        /// Attributes.
        attributes: FileAttributes = u32 FileAttributes, put_u32 bits_of;
    } pad 4;

    /// FileStandardInformation (2.4.47).
    Standard {
        /// Allocated bytes.
        allocation_size: u64 = u64 same, put_u64 same;
        /// Size in bytes.
        end_of_file: u64 = u64 same, put_u64 same;
        /// Number of hard links.
        number_of_links: u32 = u32 same, put_u32 same;
        /// Whether the file is deleted when the last handle closes.
        delete_pending: bool = u8 flag, put_u8 u8::from;
        /// Whether it is a directory.
        directory: bool = u8 flag, put_u8 u8::from;
    } pad 2;

    /// FileInternalInformation (2.4.27).
    Internal {
        /// Id of the file on its volume.
        index_number: u64 = u64 same, put_u64 same;
    } pad 0;

    /// FileEaInformation (2.4.13).
    Ea {
        /// Bytes of extended attributes.
        ea_size: u32 = u32 same, put_u32 same;
    } pad 0;

    /// FileAccessInformation (2.4.1).
    Access {
        /// Access rights of the handle.
        access: AccessMask = u32 AccessMask, put_u32 mask_of;
    } pad 0;

    /// FilePositionInformation (2.4.40).
    Position {
        /// Current position of the handle.
        current_byte_offset: u64 = u64 same, put_u64 same;
    } pad 0;

    /// FileModeInformation (2.4.31).
    Mode {
        /// The create options that the handle keeps.
        mode: u32 = u32 same, put_u32 same;
    } pad 0;

    /// FileAlignmentInformation (2.4.3).
    Alignment {
        /// Mask of the address bits that must be zero.
        alignment_requirement: u32 = u32 same, put_u32 same;
    } pad 0;

    /// FileNetworkOpenInformation (2.4.34).
    NetworkOpen {
        /// Time of creation.
        creation_time: Filetime = u64 Filetime, put_u64 time_of;
        /// Last read.
        last_access_time: Filetime = u64 Filetime, put_u64 time_of;
        /// Last write.
        last_write_time: Filetime = u64 Filetime, put_u64 time_of;
        /// Last change of data or metadata.
        change_time: Filetime = u64 Filetime, put_u64 time_of;
        /// Allocated bytes.
        allocation_size: u64 = u64 same, put_u64 same;
        /// Size in bytes.
        end_of_file: u64 = u64 same, put_u64 same;
        /// Attributes.
        attributes: FileAttributes = u32 FileAttributes, put_u32 bits_of;
    } pad 4;

    /// FileAttributeTagInformation (2.4.6).
    AttributeTag {
        /// Attributes.
        attributes: FileAttributes = u32 FileAttributes, put_u32 bits_of;
        /// Tag of the reparse point, or 0.
        reparse_tag: u32 = u32 same, put_u32 same;
    } pad 0;

    /// FileEndOfFileInformation (2.4.14).
    EndOfFile {
        /// New size.
        end_of_file: u64 = u64 same, put_u64 same;
    } pad 0;

    /// FileAllocationInformation (2.4.4).
    Allocation {
        /// New allocated size; a value below the file size truncates the file.
        allocation_size: u64 = u64 same, put_u64 same;
    } pad 0;

    /// FileDispositionInformation (2.4.11).
    Disposition {
        /// Delete when the last handle closes.
        delete_pending: bool = u8 flag, put_u8 u8::from;
    } pad 0;

    /// FileDispositionInformationEx (2.4.12).
    DispositionEx {
        /// Flags.
        flags: DispositionFlags = u32 DispositionFlags, put_u32 disposition_of;
    } pad 0;

    /// FileCompressionInformation (2.4.9).
    Compression {
        /// Bytes stored.
        compressed_file_size: u64 = u64 same, put_u64 same;
        /// 0: not compressed.
        compression_format: u16 = u16 same, put_u16 same;
    } pad 6;
}

/// FileIdInformation (2.4.26).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Id {
    /// Id of the volume.
    pub volume_serial_number: u64,
    /// 128-bit file id.
    pub file_id: [u8; 16],
}

impl Id {
    /// Parses the structure.
    pub fn parse(bytes: &[u8]) -> Result<Id, Malformed> {
        let mut r = Reader::new(bytes);
        Ok(Id { volume_serial_number: r.u64()?, file_id: r.array()? })
    }

    /// Appends the structure.
    pub fn emit(&self, out: &mut Vec<u8>) {
        out.put_u64(self.volume_serial_number);
        out.put(&self.file_id);
    }
}

/// FileNameInformation, FileNormalizedNameInformation, FileAlternateNameInformation (2.4.32, 2.4.35, 2.4.5; 2.1.7).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Name {
    /// The name from the share's root, `\\` between components.
    pub name: String,
}

impl Name {
    /// Length of the fixed part in bytes.
    pub const FIXED_LEN: usize = 4;

    /// Parses the structure.
    pub fn parse(bytes: &[u8]) -> Result<Name, Malformed> {
        let mut r = Reader::new(bytes);
        let len = r.u32()? as usize;
        Ok(Name { name: utf16::decode_lossy(r.take(len)?)? })
    }

    /// Appends the structure.
    pub fn emit(&self, out: &mut Vec<u8>) {
        out.put_u32(len32(utf16::encoded_len(&self.name)));
        utf16::encode(&self.name, out);
    }
}

/// FileAllInformation (2.4.2).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct All {
    /// Times and attributes.
    pub basic: Basic,
    /// Sizes.
    pub standard: Standard,
    /// File id.
    pub internal: Internal,
    /// Extended attributes.
    pub ea: Ea,
    /// Access rights of the handle.
    pub access: Access,
    /// Current position of the handle.
    pub position: Position,
    /// Mode of the handle.
    pub mode: Mode,
    /// Alignment.
    pub alignment: Alignment,
    /// Name.
    pub name: Name,
}

impl All {
    /// Length of the fixed part in bytes.
    pub const FIXED_LEN: usize = 100;
    /// Length with padding to a multiple of eight bytes, the minimum size of Windows' own structure.
    pub const PADDED_LEN: usize = 104;

    /// Parses the structure.
    pub fn parse(bytes: &[u8]) -> Result<All, Malformed> {
        let mut r = Reader::new(bytes);
        Ok(All {
            basic: Basic::parse(r.take(40)?)?,
            standard: Standard::parse(r.take(24)?)?,
            internal: Internal::parse(r.take(8)?)?,
            ea: Ea::parse(r.take(4)?)?,
            access: Access::parse(r.take(4)?)?,
            position: Position::parse(r.take(8)?)?,
            mode: Mode::parse(r.take(4)?)?,
            alignment: Alignment::parse(r.take(4)?)?,
            name: Name::parse(r.rest())?,
        })
    }

    /// Appends the structure.
    pub fn emit(&self, out: &mut Vec<u8>) {
        self.basic.emit(out);
        self.standard.emit(out);
        self.internal.emit(out);
        self.ea.emit(out);
        self.access.emit(out);
        self.position.emit(out);
        self.mode.emit(out);
        self.alignment.emit(out);
        self.name.emit(out);
    }
}

/// FileRenameInformation and FileLinkInformation in the form of SMB2 (2.4.42.2, 2.4.28.2), and FileRenameInformationEx
/// (2.4.43), whose first field is 32 flags; its bit 0 has the same meaning.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rename {
    /// Whether to replace an existing target.
    pub replace_if_exists: bool,
    /// Always 0 over the network.
    pub root_directory: u64,
    /// New name from the share's root.
    pub name: String,
}

impl Rename {
    /// Parses the structure.
    pub fn parse(bytes: &[u8]) -> Result<Rename, Malformed> {
        let mut r = Reader::new(bytes);
        let replace_if_exists = r.u8()? & 1 != 0;
        r.take(7)?;
        let root_directory = r.u64()?;
        let len = r.u32()? as usize;
        Ok(Rename { replace_if_exists, root_directory, name: utf16::decode(r.take(len)?)? })
    }

    /// The length of the name that the structure claims, in bytes.
    pub fn name_bytes(bytes: &[u8]) -> Result<usize, Malformed> {
        let mut r = Reader::new(bytes);
        r.take(16)?;
        Ok(r.u32()? as usize)
    }

    /// Appends the structure.
    pub fn emit(&self, out: &mut Vec<u8>) {
        let start = out.len();
        out.put_u8(u8::from(self.replace_if_exists));
        out.put_zeros(7);
        out.put_u64(self.root_directory);
        out.put_u32(len32(utf16::encoded_len(&self.name)));
        utf16::encode(&self.name, out);
        // 2.4.42.2 Padding: at least 24 bytes in all.
        let len = since(out, start).max(24);
        out.resize(start.saturating_add(len), 0);
    }
}

/// One entry of FileStreamInformation (2.4.49).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stream {
    /// Size in bytes.
    pub size: u64,
    /// Allocated bytes.
    pub allocation_size: u64,
    /// `::$DATA` for the unnamed stream.
    pub name: String,
}

impl Stream {
    /// Parses a list.
    pub fn parse_list(bytes: &[u8]) -> Result<Vec<Stream>, Malformed> {
        let mut streams = Vec::new();
        let mut rest = bytes;
        while !rest.is_empty() {
            let mut r = Reader::new(rest);
            let next = r.u32()? as usize;
            let len = r.u32()? as usize;
            let (size, allocation_size) = (r.u64()?, r.u64()?);
            streams.push(Stream { size, allocation_size, name: utf16::decode_lossy(r.take(len)?)? });
            rest = chained(rest, next, 24, "stream entry")?;
        }
        Ok(streams)
    }

    /// Appends a list.
    pub fn emit_list(streams: &[Stream], out: &mut Vec<u8>) {
        let start = out.len();
        let mut streams = streams.iter().peekable();
        while let Some(stream) = streams.next() {
            pad(out, start, 8);
            let at = out.len();
            out.put_u32(0);
            out.put_u32(len32(utf16::encoded_len(&stream.name)));
            out.put_u64(stream.size);
            out.put_u64(stream.allocation_size);
            utf16::encode(&stream.name, out);
            if streams.peek().is_some() {
                let next = len32(since(out, at).next_multiple_of(8));
                crate::smb2::field::patch_u32(out, at, next);
            }
        }
    }
}

impl From<FileSummary> for NetworkOpen {
    fn from(summary: FileSummary) -> NetworkOpen {
        NetworkOpen {
            creation_time: summary.creation_time,
            last_access_time: summary.last_access_time,
            last_write_time: summary.last_write_time,
            change_time: summary.change_time,
            allocation_size: summary.allocation_size,
            end_of_file: summary.end_of_file,
            attributes: summary.attributes,
        }
    }
}
