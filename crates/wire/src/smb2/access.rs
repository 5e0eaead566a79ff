//! Access masks, file attributes and share modes ([MS-SMB2] 2.2.13.1, [MS-DTYP] 2.4.3, [MS-FSCC] 2.6): the bits common
//! to CREATE and the information classes.

use super::field::bits;

bits! {
    /// Access rights of an open. On directories the low bits have other meanings: see the second of each pair.
    AccessMask: u32 {
        /// Read a file's data; list a directory.
        FILE_READ_DATA = 0x0000_0001;
        /// Write a file's data; add a file to a directory.
        FILE_WRITE_DATA = 0x0000_0002;
        /// Append to a file; add a directory to a directory.
        FILE_APPEND_DATA = 0x0000_0004;
        /// Read extended attributes.
        FILE_READ_EA = 0x0000_0008;
        /// Write extended attributes.
        FILE_WRITE_EA = 0x0000_0010;
        /// Execute a file; traverse a directory.
        FILE_EXECUTE = 0x0000_0020;
        /// Delete the children of a directory.
        FILE_DELETE_CHILD = 0x0000_0040;
        /// Read attributes.
        FILE_READ_ATTRIBUTES = 0x0000_0080;
        /// Write attributes.
        FILE_WRITE_ATTRIBUTES = 0x0000_0100;
        /// Delete or rename.
        DELETE = 0x0001_0000;
        /// Read the security descriptor.
        READ_CONTROL = 0x0002_0000;
        /// Change the DACL.
        WRITE_DAC = 0x0004_0000;
        /// Change the owner.
        WRITE_OWNER = 0x0008_0000;
        /// Wait on the handle; ignored by servers.
        SYNCHRONIZE = 0x0010_0000;
        /// Read or change the SACL.
        ACCESS_SYSTEM_SECURITY = 0x0100_0000;
        /// All rights that the user has.
        MAXIMUM_ALLOWED = 0x0200_0000;
        /// Expands to all rights.
        GENERIC_ALL = 0x1000_0000;
        /// Expands to the rights for executing.
        GENERIC_EXECUTE = 0x2000_0000;
        /// Expands to the rights for writing.
        GENERIC_WRITE = 0x4000_0000;
        /// Expands to the rights for reading.
        GENERIC_READ = 0x8000_0000;
        /// GENERIC_ALL on files ([MS-SMB2] 2.2.13.1.1).
        FILE_ALL = 0x001F_01FF;
        /// GENERIC_READ on files.
        FILE_GENERIC_READ = 0x0012_0089;
        /// GENERIC_WRITE on files.
        FILE_GENERIC_WRITE = 0x0012_0116;
        /// GENERIC_EXECUTE on files.
        FILE_GENERIC_EXECUTE = 0x0012_00A0;
    }
}

impl AccessMask {
    /// Replaces the generic bits by the rights for files.
    #[must_use]
    pub fn expand_generic(self) -> AccessMask {
        let mut mask = self.0 & 0x0FFF_FFFF;
        for (generic, specific) in [
            (AccessMask::GENERIC_ALL, AccessMask::FILE_ALL),
            (AccessMask::GENERIC_READ, AccessMask::FILE_GENERIC_READ),
            (AccessMask::GENERIC_WRITE, AccessMask::FILE_GENERIC_WRITE),
            (AccessMask::GENERIC_EXECUTE, AccessMask::FILE_GENERIC_EXECUTE),
        ] {
            if self.contains(generic) {
                mask |= specific.0;
            }
        }
        AccessMask(mask)
    }
}

bits! {
    /// File attributes.
    FileAttributes: u32 {
        /// Writes are refused.
        READONLY = 0x0000_0001;
        /// Not shown by default.
        HIDDEN = 0x0000_0002;
        /// Belongs to the operating system.
        SYSTEM = 0x0000_0004;
        /// A directory.
        DIRECTORY = 0x0000_0010;
        /// Changed since the last backup.
        ARCHIVE = 0x0000_0020;
        /// No other attribute; only valid alone.
        NORMAL = 0x0000_0080;
        /// Temporary.
        TEMPORARY = 0x0000_0100;
        /// Has holes.
        SPARSE_FILE = 0x0000_0200;
        /// Has a reparse point.
        REPARSE_POINT = 0x0000_0400;
        /// Compressed.
        COMPRESSED = 0x0000_0800;
        /// Content is stored elsewhere.
        OFFLINE = 0x0000_1000;
        /// Not to be indexed.
        NOT_CONTENT_INDEXED = 0x0000_2000;
        /// Encrypted.
        ENCRYPTED = 0x0000_4000;
    }
}

bits! {
    /// The access that an open permits to other opens.
    ShareAccess: u32 {
        /// Read.
        READ = 0x0000_0001;
        /// Write.
        WRITE = 0x0000_0002;
        /// Delete and rename.
        DELETE = 0x0000_0004;
        /// All three.
        ALL = 0x0000_0007;
    }
}
