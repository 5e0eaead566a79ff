//! Converts the store's attributes to SMB's and back.
//!
//! Spec: [MS-FSCC] 2.6 (file attributes), 2.4.7; [MS-FSA] 2.1.5.1.1 (those of a new file). Attributes do not follow
//! from permissions, nor change them. What a client has set is stored beside the file (see `weft_store::vfs::Dos`);
//! until then a name that starts with a dot is HIDDEN, and every file is ARCHIVE. A file without any write permission
//! is not READONLY, which would forbid deleting it although Unix allows that; it still cannot be written.

use weft_store::vfs::{Attr, Dos, Error, Kind, NodeId, Special, Timestamp, Vfs, XattrSummary};
use weft_wire::security::Sid;
use weft_wire::smb2::Filetime;
use weft_wire::smb2::access::{AccessMask, FileAttributes};
use weft_wire::smb2::create::FileSummary;
use weft_wire::smb2::posix::{self, FileType, Information, Posix};

use super::reparse_tag;

/// All write permissions.
const WRITE_BITS: u32 = 0o222;
/// What READONLY, or a mode without any write permission, takes away from everybody.
const WRITING: AccessMask = AccessMask(AccessMask::FILE_WRITE_DATA.0 | AccessMask::FILE_APPEND_DATA.0);
/// The attributes that a client may set ([MS-FSA] 2.1.1.3, "attributes that applications can set").
const SETTABLE: FileAttributes = FileAttributes(
    FileAttributes::READONLY.0
        | FileAttributes::HIDDEN.0
        | FileAttributes::SYSTEM.0
        | FileAttributes::ARCHIVE.0
        | FileAttributes::TEMPORARY.0
        | FileAttributes::OFFLINE.0
        | FileAttributes::NOT_CONTENT_INDEXED.0,
);
/// Set-user-id and set-group-id.
const SET_ID_BITS: u32 = 0o6000;
/// The attributes that are stored beside a file.
const KEPT: FileAttributes = FileAttributes(SETTABLE.0 | FileAttributes::SPARSE_FILE.0);

/// A file's metadata: the attributes that every file has, and the DOS attributes that a client has set.
#[derive(Clone, Copy)]
pub(super) struct Metadata<'a> {
    pub(super) attr: &'a Attr,
    pub(super) dos: Option<Dos>,
}

/// A store timestamp in wire format.
pub(super) fn filetime(t: Timestamp) -> Filetime {
    Filetime::from_unix(t.secs, t.nanos)
}

/// A wire timestamp in store format.
pub(super) fn timestamp(t: Filetime) -> Timestamp {
    let (secs, nanos) = t.to_unix();
    Timestamp { secs, nanos }
}

/// Whether a file refuses to be written and deleted. Directories do not: for them READONLY is a hint to Explorer.
pub(super) fn is_readonly(attr: &Attr, dos: Option<Dos>) -> bool {
    attr.kind == Kind::File
        && dos.is_some_and(|dos| FileAttributes(dos.attributes).contains(FileAttributes::READONLY))
}

/// Whether a file refuses to be written. A mode without write permission binds SMB users like anybody else, even if the
/// server's own user may bypass permissions.
pub(super) fn refuses_writes(attr: &Attr, dos: Option<Dos>) -> bool {
    is_readonly(attr, dos) || (attr.kind == Kind::File && attr.mode & WRITE_BITS == 0)
}

/// DOS attributes of a file named `name`.
pub(super) fn attributes(attr: &Attr, dos: Option<Dos>, name: &[u8]) -> FileAttributes {
    let mut attributes = kept(attr, dos, name);
    match attr.kind {
        Kind::Dir => attributes |= FileAttributes::DIRECTORY,
        Kind::File => {}
        Kind::Symlink => {
            let leads_to = FileAttributes::DIRECTORY | FileAttributes::ARCHIVE;
            let dos = dos.map_or(FileAttributes::NONE, |dos| FileAttributes(dos.attributes));
            attributes |= FileAttributes::REPARSE_POINT | (dos & leads_to);
        }
        Kind::Special(_) => attributes |= FileAttributes::SYSTEM | FileAttributes::REPARSE_POINT,
    }
    if attributes == FileAttributes::NONE { FileAttributes::NORMAL } else { attributes }
}

/// The stored attributes, or the defaults while there are none.
fn kept(attr: &Attr, dos: Option<Dos>, name: &[u8]) -> FileAttributes {
    match dos {
        Some(dos) => FileAttributes(dos.attributes) & KEPT,
        None => {
            let hidden = is_hidden_by_name(name);
            let mut attributes = if hidden { FileAttributes::HIDDEN } else { FileAttributes::NONE };
            if attr.kind == Kind::File {
                attributes |= FileAttributes::ARCHIVE;
            }
            attributes
        }
    }
}

/// Whether the leading dot of its name hides the file, until somebody sets its attributes.
pub(super) fn is_hidden_by_name(name: &[u8]) -> bool {
    name.starts_with(b".") && name != b"." && name != b".."
}

/// What must be stored for the attributes and creation time that a client sets; `None` if nothing visible changes. NONE
/// leaves the attributes alone, NORMAL clears them all.
pub(super) fn to_keep(
    attr: &Attr,
    dos: Option<Dos>,
    name: &[u8],
    wanted: FileAttributes,
    (born, changed): (Option<Timestamp>, Option<Timestamp>),
) -> Option<Dos> {
    let now = kept(attr, dos, name);
    let mut then = now;
    if wanted != FileAttributes::NONE {
        then = now.without(SETTABLE) | (wanted & SETTABLE);
    }
    let before = dos.unwrap_or_default();
    let changed = changed.map(|changed| (changed, attr.mtime));
    let changes = then != now || (born.is_some() && born != before.born) || changed.is_some();
    changes.then(|| Dos {
        attributes: then.0,
        born: born.or(before.born),
        changed: changed.or(before.changed),
    })
}

/// Stores them. If the file system cannot, they are lost, as on any Unix; that is no reason to fail the client's
/// operation.
pub(super) async fn keep(vfs: &Vfs, attr: &Attr, before: Option<Dos>, dos: Dos) -> Result<(), Error> {
    match vfs.set_dos(attr.node, before, dos).await {
        Err(Error::NotSupported) => {
            tracing::debug!("the file system keeps no DOS attributes");
            Ok(())
        }
        other => other,
    }
}

/// The change time as SMB shows it.
pub(super) fn changed(attr: &Attr, dos: Option<Dos>) -> Timestamp {
    dos.and_then(|dos| dos.changed_at(attr.mtime)).unwrap_or(attr.ctime)
}

/// Freezes the change time: whatever is done to the file, it keeps this one.
pub(super) async fn freeze_change(
    vfs: &Vfs,
    node: NodeId,
    name: &[u8],
    frozen: Timestamp,
) -> Result<(), Error> {
    let attr = vfs.getattr(node).await?;
    let before = vfs.xattr_summary(node).await?.dos;
    if filetime(changed(&attr, before)) == filetime(frozen) {
        return Ok(());
    }
    match to_keep(&attr, before, name, FileAttributes::NONE, (None, Some(frozen))) {
        Some(dos) => keep(vfs, &attr, before, dos).await,
        None => Ok(()),
    }
}

/// The creation time: the one that a client has set, or the file system's.
fn born(attr: &Attr, dos: Option<Dos>) -> Timestamp {
    dos.and_then(|dos| dos.born).unwrap_or(attr.btime)
}

/// The metadata in CREATE and CLOSE responses.
pub(super) fn summary(attr: &Attr, dos: Option<Dos>, name: &[u8]) -> FileSummary {
    FileSummary {
        creation_time: filetime(born(attr, dos)),
        last_access_time: filetime(attr.atime),
        last_write_time: filetime(attr.mtime),
        change_time: filetime(changed(attr, dos)),
        allocation_size: if attr.kind == Kind::Dir { 0 } else { attr.allocated },
        end_of_file: attr.size,
        attributes: attributes(attr, dos, name),
    }
}

/// The POSIX metadata beyond SMB's.
pub(super) fn posix_of(attr: &Attr) -> Posix {
    let kind = match attr.kind {
        Kind::File => FileType::Regular,
        Kind::Dir => FileType::Directory,
        Kind::Symlink => FileType::Symlink,
        Kind::Special(Special::Char(..)) => FileType::CharacterDevice,
        Kind::Special(Special::Block(..)) => FileType::BlockDevice,
        Kind::Special(Special::Fifo) => FileType::Fifo,
        Kind::Special(Special::Socket) => FileType::Socket,
    };
    Posix {
        links: attr.nlink,
        reparse_tag: reparse_tag::of(attr.kind).unwrap_or(0),
        mode: posix::mode(kind, attr.mode),
        owner: Sid::unix_user(attr.uid),
        group: Sid::unix_group(attr.gid),
    }
}

/// A file's number, stable across restarts; a stream has its file's number. A client that also sees inode numbers, by
/// the POSIX extensions, takes two numbers for two files (Linux: "Stale file handle").
pub(super) fn number(attr: &Attr, posix: bool) -> u64 {
    if posix { attr.fileid } else { attr.stable.number() }
}

/// The permissions that a client may set. All files belong to the server's own user, so a set-id program would run as
/// the server's user, whoever created it.
pub(super) fn settable_mode(mode: u32, directory: bool) -> u32 {
    if directory { mode } else { mode & !SET_ID_BITS }
}

/// All metadata at once; `device` distinguishes shares.
pub(super) fn information(attr: &Attr, summary: &FileSummary, shown: &str, device: u32) -> Information {
    Information {
        creation_time: summary.creation_time,
        last_access_time: summary.last_access_time,
        last_write_time: summary.last_write_time,
        change_time: summary.change_time,
        end_of_file: summary.end_of_file,
        allocation_size: summary.allocation_size,
        attributes: summary.attributes,
        inode: attr.fileid,
        device,
        posix: posix_of(attr),
        name: shown.to_owned(),
    }
}

/// EaSize: the size of the extended attributes as a FileFullEaInformation list ([MS-FSCC] 2.4.16), without its padding;
/// for a reparse point its tag, as in listings.
pub(super) fn ea_size(attr: &Attr, xattrs: &XattrSummary) -> u32 {
    if let Some(tag) = reparse_tag::of(attr.kind) {
        return tag;
    }
    // Per entry: eight bytes of header, and the NUL after the name.
    xattrs.count.saturating_mul(9).saturating_add(xattrs.bytes)
}

/// The most that any user may do with a file, before its security descriptor is considered.
pub(super) fn maximal_access(attr: &Attr, dos: Option<Dos>) -> AccessMask {
    if refuses_writes(attr, dos) { AccessMask::FILE_ALL.without(WRITING) } else { AccessMask::FILE_ALL }
}

#[cfg(test)]
mod tests {
    use weft_store::vfs::Stable;

    use super::*;

    fn attr(kind: Kind, mode: u32) -> Attr {
        let t = Timestamp { secs: 1_700_000_000, nanos: 123_456_700 };
        Attr {
            fileid: 1,
            stable: Stable([1; 24]),
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
            is_sealed: false,
        }
    }

    #[test]
    fn dos_attributes_of_files_that_nobody_set_any_of() {
        let file = attr(Kind::File, 0o644);
        assert_eq!(attributes(&file, None, b"f"), FileAttributes::ARCHIVE);
        assert_eq!(attributes(&file, None, b".f"), FileAttributes::ARCHIVE | FileAttributes::HIDDEN);
        assert_eq!(attributes(&attr(Kind::Dir, 0o555), None, b".."), FileAttributes::DIRECTORY);
        assert_eq!(maximal_access(&file, None), AccessMask::FILE_ALL);
        // Nobody may write it, which says nothing about deleting it.
        let unwritable = attr(Kind::File, 0o444);
        assert_eq!(attributes(&unwritable, None, b"f"), FileAttributes::ARCHIVE);
        assert!(!is_readonly(&unwritable, None));
        assert!(!maximal_access(&unwritable, None).intersects(AccessMask::FILE_WRITE_DATA));
    }

    #[test]
    fn what_a_client_sets_is_kept() {
        let file = attr(Kind::File, 0o644);
        let keep = |dos, wanted, born| to_keep(&file, dos, b"f", wanted, (born, None));
        assert_eq!(keep(None, FileAttributes::NONE, None), None);
        assert_eq!(keep(None, FileAttributes::ARCHIVE, None), None);
        let hidden = keep(None, FileAttributes::HIDDEN, None).unwrap();
        assert_eq!(attributes(&file, Some(hidden), b"f"), FileAttributes::HIDDEN);
        assert_eq!(keep(Some(hidden), FileAttributes::HIDDEN, None), None);
        let none = keep(Some(hidden), FileAttributes::NORMAL, None).unwrap();
        assert_eq!(attributes(&file, Some(none), b"f"), FileAttributes::NORMAL);
        // A leading dot hides the file until its attributes are set.
        assert_eq!(attributes(&file, Some(none), b".f"), FileAttributes::NORMAL);
        let t = Timestamp { secs: 1, nanos: 0 };
        let old = keep(Some(hidden), FileAttributes::NONE, Some(t)).unwrap();
        assert_eq!(summary(&file, Some(old), b"f").creation_time, filetime(t));
        assert_eq!(summary(&file, Some(old), b"f").attributes, FileAttributes::HIDDEN);
        // Attributes cannot make a file sparse, a directory or a link.
        let all = keep(None, FileAttributes(u32::MAX), None).unwrap();
        assert_eq!(attributes(&file, Some(all), b"f"), SETTABLE);
        let dir = attr(Kind::Dir, 0o755);
        let readonly = to_keep(&dir, None, b"d", FileAttributes::READONLY, (None, None));
        let shown = attributes(&dir, readonly, b"d");
        assert_eq!(shown, FileAttributes::READONLY | FileAttributes::DIRECTORY);
        // For a directory it is a hint, for a file a lock.
        assert!(is_readonly(&file, readonly) && !is_readonly(&dir, readonly));
        assert!(!maximal_access(&file, readonly).intersects(AccessMask::FILE_WRITE_DATA));
        assert_eq!(maximal_access(&dir, readonly), AccessMask::FILE_ALL);
    }

    #[test]
    fn times_survive_the_wire() {
        let t = attr(Kind::File, 0).mtime;
        assert_eq!(timestamp(filetime(t)), t);
    }
}
