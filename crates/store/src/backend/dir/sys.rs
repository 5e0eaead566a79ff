//! The system calls of the `dir` backend, each on one name below one directory descriptor.
//!
//! Confinement: a name is one component (no `/`, checked before), descriptors are O_PATH, and every
//! open asks openat2 for RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS | RESOLVE_NO_MAGICLINKS.
//! Symbolic links are never followed. A descriptor is opened for I/O by its number in /proc/self/fd, which refers to
//! the checked file and not to whatever has its name by now.
#![cfg_attr(not(test), deny(clippy::indexing_slicing, clippy::arithmetic_side_effects))]

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::fs::{
    Access, AtFlags, FileType, Mode, OFlags, RawDir, RenameFlags, ResolveFlags, Statx, StatxAttributes,
    StatxFlags, StatxTimestamp, Timespec, Timestamps,
};
use rustix::io::{Errno, Result};
use rustix::path::DecInt;
use rustix::thread::{CapabilitySet, CapabilitySets};

use weft_machine::credentials;

use super::folds::Stamp;
use crate::backend::descriptor_limit;
use crate::set_id;
use crate::vfs::{Attr, Kind, NodeId, Permissions, SetTime, Special, Stable, Timestamp};

/// openat2's restrictions: one component, no link of any kind, not out of the directory.
const CONFINED: ResolveFlags =
    ResolveFlags::BENEATH.union(ResolveFlags::NO_SYMLINKS).union(ResolveFlags::NO_MAGICLINKS);

/// The attributes of files whose data is not overwritten.
const SEALED: StatxAttributes = StatxAttributes::APPEND.union(StatxAttributes::IMMUTABLE);

/// Identifies a file, even against a later file with the same inode number (by its birth time, if the file system
/// stores that).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) struct Identity {
    device: (u32, u32),
    inode: u64,
    born: Option<(i64, u32)>,
}

impl Identity {
    pub(super) fn device(&self) -> (u32, u32) {
        self.device
    }

    pub(super) fn inode(&self) -> u64 {
        self.inode
    }

    /// The identity in the form given to clients; `home` is the device of the share's root, whose number may change
    /// at a restart.
    ///
    /// ```text
    /// 0       8            16            20                       24
    /// | inode | birth, s   | birth, ns   | device, 0 for the root's |   little-endian; ns is all ones without a birth
    /// ```
    pub(super) fn to_stable(self, home: &Identity) -> Stable {
        let (secs, nanos) = self.born.unwrap_or((0, u32::MAX));
        let mut bytes = [0; 24];
        bytes[..8].copy_from_slice(&self.inode.to_le_bytes());
        bytes[8..16].copy_from_slice(&secs.to_le_bytes());
        bytes[16..20].copy_from_slice(&nanos.to_le_bytes());
        bytes[20..].copy_from_slice(&self.device_from(home).to_le_bytes());
        Stable(bytes)
    }

    /// 12 bits of major number, 20 of minor, like the kernel.
    fn device_from(&self, home: &Identity) -> u32 {
        if self.device == home.device { 0 } else { self.device.0 << 20 | self.device.1 & 0xf_ffff }
    }

    /// Whether it was born before `since`, or its birth time is unknown. Some file systems store whole seconds.
    pub(super) fn is_older_than(&self, since: Duration) -> bool {
        self.born.is_none_or(|(secs, nanos)| {
            let since = (i64::try_from(since.as_secs()).unwrap_or(i64::MAX), since.subsec_nanos());
            if nanos == 0 { secs < since.0 } else { (secs, nanos) < since }
        })
    }

    /// Whether its file system stores birth times.
    pub(super) fn is_dated(&self) -> bool {
        self.born.is_some()
    }

    /// Whether both are on one device.
    pub(super) fn is_beside(&self, other: &Identity) -> bool {
        self.device == other.device
    }

    /// The identity that was given out as `stable`.
    pub(super) fn from_stable(stable: &Stable, home: &Identity) -> Identity {
        fn field<const N: usize>(stable: &Stable, at: usize) -> [u8; N] {
            stable.0.get(at..).and_then(<[u8]>::first_chunk).copied().unwrap_or([0; N])
        }
        let born = (i64::from_le_bytes(field(stable, 8)), u32::from_le_bytes(field(stable, 16)));
        let device = u32::from_le_bytes(field(stable, 20));
        Identity {
            device: if device == 0 { home.device } else { (device >> 20, device & 0xf_ffff) },
            inode: u64::from_le_bytes(field(stable, 0)),
            born: (born.1 != u32::MAX).then_some(born),
        }
    }
}

#[cfg(test)]
impl Identity {
    pub(super) fn of(inode: u64) -> Identity {
        Identity { device: (0, 0), inode, born: None }
    }
}

/// Attributes as the kernel gives them.
pub(super) struct Stat(Statx);

impl Stat {
    pub(super) fn identity(&self) -> Identity {
        let s = &self.0;
        let born = self.born().map(|t| (t.secs, t.nanos));
        Identity { device: (s.stx_dev_major, s.stx_dev_minor), inode: s.stx_ino, born }
    }

    /// Times that change whenever the entries of a directory do.
    pub(super) fn stamp(&self) -> Stamp {
        (timestamp(self.0.stx_mtime), timestamp(self.0.stx_ctime))
    }

    fn born(&self) -> Option<Timestamp> {
        (self.0.stx_mask & StatxFlags::BTIME.bits() != 0).then(|| timestamp(self.0.stx_btime))
    }

    pub(super) fn kind(&self) -> Kind {
        match rustix::fs::FileType::from_raw_mode(self.0.stx_mode.into()) {
            rustix::fs::FileType::RegularFile => Kind::File,
            rustix::fs::FileType::Directory => Kind::Dir,
            rustix::fs::FileType::Symlink => Kind::Symlink,
            other => Kind::Special(self.special(other)),
        }
    }

    fn special(&self, kind: FileType) -> Special {
        let (major, minor) = (self.0.stx_rdev_major, self.0.stx_rdev_minor);
        match kind {
            FileType::BlockDevice => Special::Block(major, minor),
            FileType::CharacterDevice => Special::Char(major, minor),
            FileType::Socket => Special::Socket,
            _ => Special::Fifo,
        }
    }

    /// The number of names of a file; for directories it is meaningless.
    pub(super) fn links(&self) -> u32 {
        self.0.stx_nlink
    }

    pub(super) fn uid(&self) -> u32 {
        self.0.stx_uid
    }

    /// Permission bits, 12 of them.
    pub(super) fn mode(&self) -> u32 {
        u32::from(self.0.stx_mode) & 0o7777
    }

    pub(super) fn size(&self) -> u64 {
        self.0.stx_size
    }

    pub(super) fn is_set_group_id(&self) -> bool {
        u32::from(self.0.stx_mode) & Mode::SGID.bits() != 0
    }

    /// Bytes allocated.
    pub(super) fn allocated(&self) -> u64 {
        self.0.stx_blocks.saturating_mul(512)
    }

    /// `home` is the root's: inode numbers of other devices may collide with those of its device, node numbers must
    /// not.
    pub(super) fn attr(&self, node: NodeId, home: &Identity) -> Attr {
        let Stat(s) = self;
        let (kind, identity) = (self.kind(), self.identity());
        let stable = identity.to_stable(home);
        let (atime, mtime, ctime) = (timestamp(s.stx_atime), timestamp(s.stx_mtime), timestamp(s.stx_ctime));
        Attr {
            node,
            fileid: if identity.device == home.device { s.stx_ino } else { stable.number() },
            stable,
            kind,
            size: if kind == Kind::Dir { 0 } else { s.stx_size },
            allocated: self.allocated(),
            nlink: s.stx_nlink,
            mode: self.mode(),
            uid: s.stx_uid,
            gid: s.stx_gid,
            atime,
            mtime,
            ctime,
            btime: self.born().unwrap_or(atime.min(mtime).min(ctime)),
            is_sealed: s.stx_attributes.intersects(SEALED),
        }
    }
}

fn timestamp(t: StatxTimestamp) -> Timestamp {
    Timestamp { secs: t.tv_sec, nanos: t.tv_nsec }
}

#[inline]
fn statx(dir: BorrowedFd<'_>, name: &[u8], flags: AtFlags) -> Result<Stat> {
    let flags = flags | AtFlags::SYMLINK_NOFOLLOW | AtFlags::NO_AUTOMOUNT;
    rustix::fs::statx(dir, name, flags, StatxFlags::BASIC_STATS | StatxFlags::BTIME).map(Stat)
}

/// Attributes of the file behind a descriptor.
pub(super) fn stat(fd: BorrowedFd<'_>) -> Result<Stat> {
    statx(fd, b"", AtFlags::EMPTY_PATH)
}

/// The attributes of the file behind a descriptor, as those of a node.
pub(super) fn attr(fd: BorrowedFd<'_>, node: NodeId, home: &Identity) -> Result<Attr> {
    // By reference: nearly every request needs them, and the kernel's 256 bytes are not worth a move.
    match &statx(fd, b"", AtFlags::EMPTY_PATH) {
        Ok(stat) => Ok(stat.attr(node, home)),
        Err(e) => Err(*e),
    }
}

/// Whether a directory can be changed, from faccessat(2); false if only the operation itself can tell.
fn may_change(ask: impl Fn(AtFlags) -> Result<()>, real_are_effective: impl Fn() -> bool) -> Result<bool> {
    match ask(AtFlags::EACCESS) {
        // Kernels before 5.8 cannot check effective rights.
        Err(Errno::NOSYS) => Ok(false),
        // Seccomp filters that do not know faccessat2 answer EPERM, and so does the kernel for an immutable
        // directory. Every filter knows faccessat, which checks real rights.
        Err(Errno::PERM) if real_are_effective() => ask(AtFlags::empty()).map(|()| true),
        Err(Errno::PERM) => Ok(false),
        other => other.map(|()| true),
    }
}

/// Whether faccessat(2) without flags reflects this thread's rights: it uses real ids, and then only root keeps
/// capabilities.
fn real_rights_are_effective() -> bool {
    use rustix::process::{getegid, geteuid, getgid, getuid};

    if credentials::is_another() {
        return false;
    }
    let overrides = |sets: CapabilitySets| sets.effective.contains(CapabilitySet::DAC_OVERRIDE);
    getuid() == geteuid()
        && getgid() == getegid()
        && (getuid().is_root() || !rustix::thread::capabilities(None).is_ok_and(overrides))
}

/// Fails like unlink(2) of the user `uid`, for whom the thread acts, would for missing rights or a read-only file system.
pub(super) fn may_unlink(dir: BorrowedFd<'_>, name: &[u8], uid: u32) -> Result<()> {
    let ask = |how| rustix::fs::accessat(dir, c".", Access::WRITE_OK | Access::EXEC_OK, how);
    if !may_change(ask, real_rights_are_effective)? {
        return Ok(());
    }
    let folder = stat(dir)?.0;
    if u32::from(folder.stx_mode) & Mode::SVTX.bits() == 0 {
        return Ok(());
    }
    // unlink(2), EPERM: in a sticky directory, only the owner of the name, the owner of the directory, or CAP_FOWNER
    // may remove it.
    let owns = folder.stx_uid == uid || stat_at(dir, name)?.0.stx_uid == uid;
    let may = |sets: CapabilitySets| sets.effective.contains(CapabilitySet::FOWNER);
    if owns || rustix::thread::capabilities(None).is_ok_and(may) { Ok(()) } else { Err(Errno::PERM) }
}

/// Attributes of a name in a directory.
pub(super) fn stat_at(dir: BorrowedFd<'_>, name: &[u8]) -> Result<Stat> {
    statx(dir, name, AtFlags::empty())
}

/// Creates a pipe, socket or device.
pub(super) fn make_special(dir: BorrowedFd<'_>, name: &[u8], special: Special, mode: Mode) -> Result<()> {
    let (kind, device) = match special {
        Special::Fifo => (FileType::Fifo, 0),
        Special::Socket => (FileType::Socket, 0),
        Special::Block(major, minor) => (FileType::BlockDevice, rustix::fs::makedev(major, minor)),
        Special::Char(major, minor) => (FileType::CharacterDevice, rustix::fs::makedev(major, minor)),
    };
    rustix::fs::mknodat(dir, name, kind, mode, device)
}

/// A descriptor that refers to a file without opening it.
pub(super) fn open_path(dir: BorrowedFd<'_>, name: &[u8]) -> Result<OwnedFd> {
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let fd = retry(|| rustix::fs::openat2(dir, name, flags, Mode::empty(), CONFINED))?;
    spared(fd, (kept_free(descriptor_limit()) / KEPT_FREE).saturating_mul(2))
}

/// Creates a regular file that must not exist yet.
pub(super) fn create_file(dir: BorrowedFd<'_>, name: &[u8], mode: Mode) -> Result<OwnedFd> {
    let flags = OFlags::CREATE | OFlags::EXCL | OFlags::RDWR | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    retry(|| rustix::fs::openat2(dir, name, flags, mode, CONFINED))
}

/// Opens a directory for reading its entries.
pub(super) fn open_dir(dir: impl AsFd) -> Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    retry(|| rustix::fs::openat2(&dir, c".", flags, Mode::empty(), CONFINED))
}

/// Opening files leaves this part of the process's descriptors to others, a third of it for the descriptors that
/// locate files. Files opened by clients are already limited per protocol and address; this covers everything that
/// has no other limit.
const KEPT_FREE: usize = 3;
const KEPT_FREE_OF: usize = 48;

/// A new descriptor for a client, unless too few are left. The kernel assigns the lowest free number, so at least
/// that many are in use.
fn spared(fd: OwnedFd, kept_free: usize) -> Result<OwnedFd> {
    let most = descriptor_limit().saturating_sub(kept_free);
    if usize::try_from(fd.as_raw_fd()).is_ok_and(|number| number < most) { Ok(fd) } else { Err(Errno::MFILE) }
}

/// How many descriptors opening files leaves free, if the process may have `of`.
pub fn kept_free(of: usize) -> usize {
    (of / KEPT_FREE_OF).saturating_mul(KEPT_FREE)
}

/// openat2 fails with EAGAIN when a concurrent rename prevents it from proving confinement, and with EINTR as usual.
fn retry<T>(mut call: impl FnMut() -> Result<T>) -> Result<T> {
    for _ in 0..128 {
        match call() {
            Err(Errno::AGAIN | Errno::INTR) => {}
            other => return other,
        }
    }
    call()
}

/// /proc/self/fd, through which an O_PATH descriptor is reopened for reading and writing.
#[derive(Debug)]
pub(super) struct Proc(OwnedFd);

impl Proc {
    /// Opens it; fails if /proc is not mounted.
    pub(super) fn open() -> Result<Proc> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        rustix::fs::open("/proc/self/fd", flags, Mode::empty()).map(Proc)
    }

    /// Opens the regular file that `fd` refers to.
    pub(super) fn reopen(&self, fd: BorrowedFd<'_>, flags: OFlags) -> Result<OwnedFd> {
        // O_NONBLOCK has no effect on regular files; it prevents anything else from blocking a core.
        let flags = flags | OFlags::CLOEXEC | OFlags::NOCTTY | OFlags::NONBLOCK;
        let opened =
            retry(|| rustix::fs::openat(&self.0, DecInt::new(fd.as_raw_fd()), flags, Mode::empty()))?;
        spared(opened, kept_free(descriptor_limit()))
    }

    /// Opens the directory that `fd` refers to for reading its entries. Unlike [`open_dir`] that takes no permission to use
    /// its names.
    pub(super) fn open_dir(&self, fd: BorrowedFd<'_>) -> Result<OwnedFd> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        retry(|| rustix::fs::openat(&self.0, DecInt::new(fd.as_raw_fd()), flags, Mode::empty()))
    }

    pub(super) fn chmod(&self, fd: BorrowedFd<'_>, mode: Mode) -> Result<()> {
        let set = || rustix::fs::chmodat(&self.0, DecInt::new(fd.as_raw_fd()), mode, AtFlags::empty());
        // For a group that this process is not in, the kernel would silently drop the bit.
        if mode.contains(Mode::SGID) { set_id::allowed(set) } else { set() }
    }

    /// Which of these permissions on the object behind `fd` this thread has; faccessat(2) with effective ids uses those
    /// of the thread's file user.
    pub(super) fn access(&self, fd: BorrowedFd<'_>, wanted: Permissions) -> Result<Permissions> {
        let has = |wanted: Permissions| {
            let access = Access::from_bits_truncate(wanted.bits());
            match rustix::fs::accessat(&self.0, DecInt::new(fd.as_raw_fd()), access, AtFlags::EACCESS) {
                Ok(()) => Ok(wanted),
                // Nobody writes to a read-only file system or an immutable file.
                Err(Errno::ACCESS | Errno::ROFS | Errno::PERM) => Ok(Permissions::NONE),
                Err(e) => Err(e),
            }
        };
        // One call suffices for a caller who has what he wants.
        if has(wanted)? == wanted {
            return Ok(wanted);
        }
        let each = Permissions::EACH.into_iter().filter(|one| wanted.contains(*one));
        each.map(has).try_fold(Permissions::NONE, |all, one| Ok(all | one?))
    }

    pub(super) fn utimens(&self, fd: BorrowedFd<'_>, times: &Timestamps) -> Result<()> {
        rustix::fs::utimensat(&self.0, DecInt::new(fd.as_raw_fd()), times, AtFlags::empty())
    }

    pub(super) fn link(&self, fd: BorrowedFd<'_>, dir: BorrowedFd<'_>, name: &[u8]) -> Result<()> {
        rustix::fs::linkat(&self.0, DecInt::new(fd.as_raw_fd()), dir, name, AtFlags::SYMLINK_FOLLOW)
    }
}

pub(super) fn chown(fd: BorrowedFd<'_>, uid: Option<u32>, gid: Option<u32>) -> Result<()> {
    // -1 means "leave unchanged" to the kernel; it is not a valid id.
    if uid == Some(u32::MAX) || gid == Some(u32::MAX) {
        return Err(Errno::INVAL);
    }
    let (uid, gid) = (uid.map(rustix::fs::Uid::from_raw), gid.map(rustix::fs::Gid::from_raw));
    rustix::fs::chownat(fd, c"", uid, gid, AtFlags::EMPTY_PATH)
}

pub(super) fn rename(
    from: (BorrowedFd<'_>, &[u8]),
    to: (BorrowedFd<'_>, &[u8]),
    replace: bool,
) -> Result<()> {
    let flags = if replace { RenameFlags::empty() } else { RenameFlags::NOREPLACE };
    rustix::fs::renameat_with(from.0, from.1, to.0, to.1, flags)
}

/// The times to set, in the kernel's form.
pub(in crate::backend) fn times(atime: Option<SetTime>, mtime: Option<SetTime>) -> Timestamps {
    let spec = |t| match t {
        None => Timespec { tv_sec: 0, tv_nsec: rustix::fs::UTIME_OMIT },
        Some(SetTime::Now) => Timespec { tv_sec: 0, tv_nsec: rustix::fs::UTIME_NOW },
        Some(SetTime::To(t)) => Timespec { tv_sec: t.secs, tv_nsec: t.nanos.into() },
    };
    Timestamps { last_access: spec(atime), last_modification: spec(mtime) }
}

/// One raw directory entry: name, and the position after it.
pub(super) struct Raw {
    pub(super) name: Vec<u8>,
    pub(super) cookie: u64,
    pub(super) inode: u64,
    /// Whether it may be a directory: its type is none of a file's, a link's or a device's, or unknown.
    pub(super) maybe_dir: bool,
    /// Its kind, if the directory lists it. Devices have numbers, which it does not list.
    pub(super) kind: Option<Kind>,
}

/// Entries after `cookie`, without `.` and `..`: at most `max`, at least one unless the directory ends (then true).
pub(super) fn entries(fd: BorrowedFd<'_>, cookie: u64, max: usize) -> Result<(Vec<Raw>, bool)> {
    // The next call reads unused entries again.
    let buffer = max.saturating_mul(64).clamp(2048, 65536);
    collect(fd, cookie, buffer, |found| found == max, |raw| Ok(Some(raw)))
}

/// What `take` makes of the entries after `cookie`, without `.` and `..`, until there is `enough`; and whether the
/// directory ends there. Each system call reads entries into a buffer of this size, in which a name takes at most 24 +
/// 256 bytes, and `take` sees them before the next call.
pub(super) fn collect<T>(
    fd: BorrowedFd<'_>,
    cookie: u64,
    buffer: usize,
    enough: impl Fn(usize) -> bool,
    mut take: impl FnMut(Raw) -> Result<Option<T>>,
) -> Result<(Vec<T>, bool)> {
    if cookie != 0 {
        rustix::fs::seek(
            fd,
            rustix::fs::SeekFrom::Start(i64::try_from(cookie).map_err(|_| Errno::INVAL)? as u64),
        )?;
    }
    let mut buf = Vec::<u8>::with_capacity(buffer);
    let mut dir = RawDir::new(fd, buf.spare_capacity_mut());
    let mut found = Vec::new();
    while let Some(entry) = dir.next() {
        let entry = match entry {
            Ok(entry) => entry,
            Err(Errno::INTR) => continue,
            Err(e) => return Err(e),
        };
        let name = entry.file_name().to_bytes();
        if name == b"." || name == b".." {
            continue;
        }
        if enough(found.len()) {
            return Ok((found, false));
        }
        found.extend(take(Raw {
            name: name.to_vec(),
            cookie: entry.next_entry_cookie(),
            inode: entry.ino(),
            maybe_dir: matches!(entry.file_type(), FileType::Directory | FileType::Unknown),
            kind: match entry.file_type() {
                FileType::RegularFile => Some(Kind::File),
                FileType::Directory => Some(Kind::Dir),
                FileType::Symlink => Some(Kind::Symlink),
                FileType::Fifo => Some(Kind::Special(Special::Fifo)),
                FileType::Socket => Some(Kind::Special(Special::Socket)),
                _ => None,
            },
        })?);
    }
    Ok((found, true))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_filter_that_does_not_know_faccessat2_forbids_nothing() {
        let host = |with_flags: Result<()>, without: Result<()>| {
            move |how: AtFlags| if how.is_empty() { without } else { with_flags }
        };
        let (perm, access) = (Err(Errno::PERM), Err(Errno::ACCESS));
        assert_eq!(may_change(host(perm, Ok(())), || true), Ok(true));
        assert_eq!(may_change(host(perm, access), || true), Err(Errno::ACCESS));
        assert_eq!(may_change(host(perm, perm), || true), Err(Errno::PERM), "an immutable directory");
        assert_eq!(may_change(host(perm, access), || false), Ok(false), "the operation tells");
        assert_eq!(may_change(host(Err(Errno::NOSYS), access), || true), Ok(false));
        assert_eq!(may_change(host(access, Ok(())), || true), Err(Errno::ACCESS));
        assert_eq!(may_change(host(Ok(()), access), || true), Ok(true));
    }
}
