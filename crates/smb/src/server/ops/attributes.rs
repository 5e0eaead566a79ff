//! Attributes of the store in SMB's terms, and back.
//!
//! Spec: [MS-FSCC] 2.6 (file attributes), 2.4.7. Owns: nothing. Does not: keep DOS attributes: a file without any
//! write permission is READONLY, a name that begins with a dot is HIDDEN, every file is ARCHIVE. Setting READONLY
//! takes the write permissions away; setting the others has no effect.

use weft_store::vfs::{Attr, Kind, Timestamp};
use weft_wire::smb2::Filetime;
use weft_wire::smb2::access::{AccessMask, FileAttributes};
use weft_wire::smb2::create::FileSummary;

/// All write permissions.
const WRITE_BITS: u32 = 0o222;
/// What a read-only file takes away from everybody.
const WRITING: AccessMask = AccessMask(AccessMask::FILE_WRITE_DATA.0 | AccessMask::FILE_APPEND_DATA.0);

/// A time of the store on the wire.
pub(super) fn filetime(t: Timestamp) -> Filetime {
    Filetime::from_unix(t.secs, t.nanos)
}

/// A time of the wire in the store.
pub(super) fn timestamp(t: Filetime) -> Timestamp {
    let (secs, nanos) = t.to_unix();
    Timestamp { secs, nanos }
}

/// Whether a file refuses to be written. Directories do not: their permissions say who makes entries.
pub(super) fn is_readonly(attr: &Attr) -> bool {
    attr.kind == Kind::File && attr.mode & WRITE_BITS == 0
}

/// Permissions with READONLY set or taken away.
pub(super) fn mode_with_readonly(attr: &Attr, readonly: bool) -> u32 {
    match readonly {
        true => attr.mode & !WRITE_BITS,
        false if is_readonly(attr) => attr.mode | 0o200,
        false => attr.mode,
    }
}

/// DOS attributes of a file that is called `name`.
pub(super) fn attributes(attr: &Attr, name: &[u8]) -> FileAttributes {
    let mut attributes = match attr.kind {
        Kind::Dir => FileAttributes::DIRECTORY,
        Kind::File => FileAttributes::ARCHIVE,
        Kind::Symlink => FileAttributes::REPARSE_POINT,
        Kind::Special(_) => FileAttributes::SYSTEM,
    };
    if is_readonly(attr) {
        attributes |= FileAttributes::READONLY;
    }
    if name.starts_with(b".") && name != b"." && name != b".." {
        attributes |= FileAttributes::HIDDEN;
    }
    attributes
}

/// What CREATE and CLOSE answer.
pub(super) fn summary(attr: &Attr, name: &[u8]) -> FileSummary {
    FileSummary {
        creation_time: filetime(attr.btime),
        last_access_time: filetime(attr.atime),
        last_write_time: filetime(attr.mtime),
        change_time: filetime(attr.ctime),
        allocation_size: if attr.kind == Kind::Dir { 0 } else { attr.allocated },
        end_of_file: attr.size,
        attributes: attributes(attr, name),
    }
}

/// What a user may do with a file at most: users of a share share it whole.
pub(super) fn maximal_access(attr: &Attr) -> AccessMask {
    if is_readonly(attr) { AccessMask::FILE_ALL.without(WRITING) } else { AccessMask::FILE_ALL }
}

#[cfg(test)]
mod tests {
    use weft_store::vfs::NodeId;

    use super::*;

    fn attr(kind: Kind, mode: u32) -> Attr {
        let t = Timestamp { secs: 1_700_000_000, nanos: 123_456_700 };
        Attr {
            fileid: 1,
            node: NodeId(2),
            kind,
            size: 5,
            allocated: 4096,
            nlink: 1,
            mode,
            uid: 0,
            gid: 0,
            atime: t,
            mtime: t,
            ctime: t,
            btime: t,
        }
    }

    #[test]
    fn dos_attributes() {
        let file = attr(Kind::File, 0o644);
        assert_eq!(attributes(&file, b"f"), FileAttributes::ARCHIVE);
        assert_eq!(attributes(&file, b".f"), FileAttributes::ARCHIVE | FileAttributes::HIDDEN);
        let readonly = attr(Kind::File, 0o444);
        assert_eq!(attributes(&readonly, b"f"), FileAttributes::ARCHIVE | FileAttributes::READONLY);
        assert_eq!(attributes(&attr(Kind::Dir, 0o555), b".."), FileAttributes::DIRECTORY);
        assert_eq!(mode_with_readonly(&file, true), 0o444);
        assert_eq!(mode_with_readonly(&readonly, false), 0o644);
        assert_eq!(mode_with_readonly(&file, false), 0o644);
        assert!(!maximal_access(&readonly).intersects(AccessMask::FILE_WRITE_DATA));
        assert_eq!(maximal_access(&file), AccessMask::FILE_ALL);
    }

    #[test]
    fn times_survive_the_wire() {
        let t = attr(Kind::File, 0).mtime;
        assert_eq!(timestamp(filetime(t)), t);
    }
}
