//! Information classes: the layouts in QUERY_INFO, SET_INFO and QUERY_DIRECTORY ([MS-FSCC] 2.4 for files, 2.5 for file
//! systems; [MS-DTYP] 2.4.6 for security descriptors).
//!
//! A server itself truncates a response to the client's buffer (see [`truncate`]).

pub mod directory;
pub mod ea;
pub mod file;
pub mod filesystem;
pub mod notify;

pub use crate::security;

use super::field::codes;

codes! {
    /// A class of file information ([MS-FSCC] 2.4).
    FileClass: u8 {
        /// Directory listing.
        DIRECTORY = 1;
        /// Directory listing.
        FULL_DIRECTORY = 2;
        /// Directory listing.
        BOTH_DIRECTORY = 3;
        /// Times and attributes.
        BASIC = 4;
        /// Sizes, links, pending deletion.
        STANDARD = 5;
        /// Id of the file.
        INTERNAL = 6;
        /// Size of extended attributes.
        EA = 7;
        /// Access rights of the handle.
        ACCESS = 8;
        /// Name; not used over the network.
        NAME = 9;
        /// New name.
        RENAME = 10;
        /// New link.
        LINK = 11;
        /// Directory listing.
        NAMES = 12;
        /// Delete on close.
        DISPOSITION = 13;
        /// Position of the handle.
        POSITION = 14;
        /// Extended attributes.
        FULL_EA = 15;
        /// Mode of the handle.
        MODE = 16;
        /// Alignment of buffers.
        ALIGNMENT = 17;
        /// Most of the other classes combined.
        ALL = 18;
        /// Allocated size.
        ALLOCATION = 19;
        /// Size.
        END_OF_FILE = 20;
        /// 8.3 name.
        ALTERNATE_NAME = 21;
        /// Named streams.
        STREAM = 22;
        /// Pipe.
        PIPE = 23;
        /// Pipe.
        PIPE_LOCAL = 24;
        /// Pipe.
        PIPE_REMOTE = 25;
        /// Compression.
        COMPRESSION = 28;
        /// Quota entries.
        QUOTA = 32;
        /// Times, sizes, attributes.
        NETWORK_OPEN = 34;
        /// Attributes and reparse tag.
        ATTRIBUTE_TAG = 35;
        /// Directory listing.
        ID_BOTH_DIRECTORY = 37;
        /// Directory listing.
        ID_FULL_DIRECTORY = 38;
        /// Valid data length.
        VALID_DATA_LENGTH = 39;
        /// New 8.3 name.
        SHORT_NAME = 40;
        /// Name from the share's root.
        NORMALIZED_NAME = 48;
        /// Volume and 128-bit file id.
        ID = 59;
        /// Directory listing.
        ID_EXTD_DIRECTORY = 60;
        /// Delete, with flags.
        DISPOSITION_EX = 64;
        /// New name, with flags.
        RENAME_EX = 65;
        /// POSIX properties of a file, and directory listing; only if negotiated.
        POSIX = 100;
    }
}

codes! {
    /// A class of file system information ([MS-FSCC] 2.5).
    FsClass: u8 {
        /// Label, serial number.
        VOLUME = 1;
        /// New label; not used over the network.
        LABEL = 2;
        /// Size in units.
        SIZE = 3;
        /// Kind of device.
        DEVICE = 4;
        /// Capabilities of the file system.
        ATTRIBUTE = 5;
        /// Quota control.
        CONTROL = 6;
        /// Size in units, for the caller and in total.
        FULL_SIZE = 7;
        /// Object id.
        OBJECT_ID = 8;
        /// Sectors.
        SECTOR_SIZE = 11;
        /// Space and files in POSIX terms; only if negotiated.
        POSIX = 100;
    }
}

/// Truncates a response to the client's buffer ([MS-SMB2] 3.3.5.20.1): `Some(true)` if `info` was truncated to `limit`
/// (STATUS_BUFFER_OVERFLOW), `Some(false)` if it fits, `None` if not even the fixed part of `fixed_len` bytes fits
/// (STATUS_INFO_LENGTH_MISMATCH).
pub fn truncate(info: &mut Vec<u8>, limit: usize, fixed_len: usize) -> Option<bool> {
    if limit < fixed_len.min(info.len()) {
        return None;
    }
    let cut = info.len() > limit;
    info.truncate(limit);
    Some(cut)
}
