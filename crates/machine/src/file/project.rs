//! Project quotas of the kernel: the project of a file, and the limit of a project.
//!
//! A file's project is a number that files inherit from their directory; ext4 and XFS count the space of each project and
//! limit it. See ioctl_xfs_fsgetxattr(2) (linux/fs.h) and quotactl(2); quotactl_fd(2) takes a descriptor instead of the
//! device's name. Whoever may read a directory sees its project; setting it takes the owner's rights, and a limit
//! CAP_SYS_ADMIN. Every call returns `Unsupported`, `ESRCH` or `ENOTTY` where the file system has no such quotas.

use std::io;
use std::os::fd::{AsFd, AsRawFd};

use rustix::io::Errno;
use rustix::ioctl::{Getter, Setter, opcode};

/// The project of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Project {
    /// Its number; 0 is that of files without a project.
    pub id: u32,
    /// Whether new entries of a directory get it.
    pub is_inherited: bool,
}

/// What a project uses, and may use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ProjectUsage {
    /// Bytes that its files occupy.
    pub used_bytes: u64,
    /// Its files.
    pub files: u64,
    /// The hard limit in bytes; 0 is none.
    pub limit_bytes: u64,
}

/// `struct fsxattr` of linux/fs.h.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
struct FsXattr {
    flags: u32,
    extent_size: u32,
    extents: u32,
    project: u32,
    cow_extent_size: u32,
    pad: [u8; 8],
}

const FS_IOC_FSGETXATTR: u32 = opcode::read::<FsXattr>(b'X', 31);
const FS_IOC_FSSETXATTR: u32 = opcode::write::<FsXattr>(b'X', 32);
const FS_XFLAG_PROJINHERIT: u32 = 0x200;

/// `PRJQUOTA`, `Q_GETQUOTA`, `Q_SETQUOTA` and `QIF_BLIMITS` of linux/quota.h.
const OF_PROJECTS: u32 = 2;
const Q_GETQUOTA: u32 = 0x80_0007;
const Q_SETQUOTA: u32 = 0x80_0008;
const QIF_BLIMITS: u32 = 1;
/// The unit of limits (`QIF_DQBLKSIZE`).
const LIMIT_UNIT: u64 = 1024;

/// The project of an open file or directory.
pub fn project_of(file: impl AsFd) -> io::Result<Project> {
    let attributes = attributes(&file)?;
    Ok(Project { id: attributes.project, is_inherited: attributes.flags & FS_XFLAG_PROJINHERIT != 0 })
}

/// Gives an open file or directory this project.
pub fn set_project(file: impl AsFd, project: Project) -> io::Result<()> {
    let mut attributes = attributes(&file)?;
    attributes.project = project.id;
    attributes.flags &= !FS_XFLAG_PROJINHERIT;
    if project.is_inherited {
        attributes.flags |= FS_XFLAG_PROJINHERIT;
    }
    // SAFETY: the code takes a pointer to exactly this structure, which the kernel only reads.
    unsafe {
        let set = Setter::<FS_IOC_FSSETXATTR, FsXattr>::new(attributes);
        Ok(rustix::ioctl::ioctl(file, set)?)
    }
}

fn attributes(file: &impl AsFd) -> io::Result<FsXattr> {
    // SAFETY: the code fills exactly this structure, which may have any content.
    unsafe {
        let get = Getter::<FS_IOC_FSGETXATTR, FsXattr>::new();
        Ok(rustix::ioctl::ioctl(file, get)?)
    }
}

/// What a project on the file system of `file` uses. Needs CAP_SYS_ADMIN.
pub fn project_usage(file: impl AsFd, id: u32) -> io::Result<ProjectUsage> {
    // SAFETY: all fields are numbers.
    let mut block: libc::dqblk = unsafe { std::mem::zeroed() };
    quotactl(file, Q_GETQUOTA, id, &mut block)?;
    Ok(ProjectUsage {
        used_bytes: block.dqb_curspace,
        files: block.dqb_curinodes,
        limit_bytes: block.dqb_bhardlimit.saturating_mul(LIMIT_UNIT),
    })
}

/// Limits a project on the file system of `file`, in whole KiB; 0 is no limit. Needs CAP_SYS_ADMIN.
pub fn limit_project(file: impl AsFd, id: u32, limit_bytes: u64) -> io::Result<()> {
    // SAFETY: all fields are numbers.
    let mut block: libc::dqblk = unsafe { std::mem::zeroed() };
    block.dqb_bhardlimit = limit_bytes / LIMIT_UNIT;
    // The soft limit, too: a former one might be lower.
    block.dqb_bsoftlimit = 0;
    block.dqb_valid = QIF_BLIMITS;
    quotactl(file, Q_SETQUOTA, id, &mut block)
}

fn quotactl(file: impl AsFd, command: u32, id: u32, block: &mut libc::dqblk) -> io::Result<()> {
    // `QCMD` of linux/quota.h.
    let command = command << 8 | OF_PROJECTS;
    // SAFETY: both commands take a pointer to a `dqblk`, which the kernel reads or fills during the call.
    let done = unsafe {
        libc::syscall(libc::SYS_quotactl_fd, file.as_fd().as_raw_fd(), command, id, std::ptr::from_mut(block))
    };
    if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Whether an error of this module says that the file system has no projects or no quotas for them.
pub fn is_without_projects(e: &io::Error) -> bool {
    let errno = e.raw_os_error().map(Errno::from_raw_os_error);
    let without = [Errno::NOTTY, Errno::NOTSUP, Errno::SRCH, Errno::NOSYS, Errno::INVAL, Errno::NOENT];
    errno.is_some_and(|errno| without.contains(&errno))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn structures_and_codes_are_the_kernels() {
        assert_eq!(size_of::<FsXattr>(), 28);
        assert_eq!((FS_IOC_FSGETXATTR, FS_IOC_FSSETXATTR), (0x801c_581f, 0x401c_5820));
    }

    #[test]
    fn a_file_has_a_project_or_its_file_system_none() {
        let file = tempfile::tempfile().unwrap();
        match project_of(&file) {
            Ok(project) => assert_eq!(project.id, 0),
            Err(e) => assert!(is_without_projects(&e), "{e}"),
        }
        let memory = crate::File::in_memory("no-project").unwrap();
        assert!(is_without_projects(&project_usage(&memory, 1).unwrap_err()));
    }
}
