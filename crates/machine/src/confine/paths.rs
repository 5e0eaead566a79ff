//! Landlock: which paths this process can still open, create, rename and remove, and for what.
//!
//! A rule belongs to a folder or a file, not to its name: whoever takes its place at the path later is outside. The kernel
//! looks for rules from an object up to the root of all mounts, and ignores folders that a mount covers.
//!
//! It judges each open by path, also one that starts at an open folder. So no thread can open a folder on behalf of a
//! confined one: a folder that no rule covers stays out of reach until the process starts again.

use std::fs::File as OsFile;
use std::io;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use landlock::{
    ABI, Access, AccessFs, BitFlags, PathBeneath, PathFd, Ruleset, RulesetAttr, RulesetCreatedAttr,
    RulesetError, RulesetStatus, Scope,
};

use crate::File;

/// The version of Landlock whose rights are restricted, as far as the kernel knows them. Version 9 restricts connections to
/// Unix sockets, too, which directory services have anywhere.
const RESTRICTED: ABI = ABI::V5;
/// The first version that can allow renames and links between folders. Version 1 forbids all of them.
const LEAST_VERSION: i32 = 2;

/// What may be done with a path and everything below it. Nothing may be executed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Use {
    /// Read files, and list folders.
    Read,
    /// Everything but commands to devices (ioctl(2)).
    Change,
    /// Create and remove sockets.
    Listen,
    /// Read and write devices, and send commands to them.
    Devices,
}

impl Use {
    fn rights(self) -> BitFlags<AccessFs> {
        match self {
            Use::Read => AccessFs::ReadFile | AccessFs::ReadDir,
            Use::Change => AccessFs::from_all(RESTRICTED) & !(AccessFs::Execute | AccessFs::IoctlDev),
            Use::Listen => AccessFs::MakeSock | AccessFs::RemoveFile,
            Use::Devices => {
                AccessFs::ReadFile
                    | AccessFs::ReadDir
                    | AccessFs::WriteFile
                    | AccessFs::Truncate
                    | AccessFs::IoctlDev
            }
        }
    }

    fn includes(self, other: Use) -> bool {
        self.rights().contains(other.rights())
    }
}

/// The paths that a process keeps. Those that do not exist are left out: a rule belongs to what is there.
#[derive(Debug, Default)]
pub struct Reach {
    paths: Vec<(PathBuf, Use)>,
    large_pages: bool,
}

impl Reach {
    /// Keeps a path, with everything below it.
    pub fn keep(&mut self, path: impl Into<PathBuf>, used: Use) {
        let rule = (path.into(), used);
        if !self.paths.contains(&rule) {
            self.paths.push(rule);
        }
    }

    /// Keeps files in memory with large pages ([`File::in_large_pages`]), if this process may have them.
    pub fn keep_large_pages(&mut self) {
        self.large_pages = true;
    }
}

/// Why a process can still reach everything.
#[derive(Debug, thiserror::Error)]
pub enum Unconfined {
    /// The kernel was built without it.
    #[error("this kernel was built without it")]
    Missing,
    /// It was not enabled at boot.
    #[error("it was not enabled when this kernel started (lsm=landlock,... on its command line)")]
    Disabled,
    /// It is too old.
    #[error(
        "this kernel has version {0} of it, which forbids all renames between folders; version {LEAST_VERSION} does not (Linux 5.19)"
    )]
    TooOld(i32),
    /// Threads that run already would not be confined.
    #[error("{0} threads run already")]
    Threads(usize),
    /// The kernel refused it.
    #[error("the kernel refused it: {0}")]
    Refused(#[from] io::Error),
    /// The rules of no path can be made.
    #[error(transparent)]
    Rules(#[from] RulesetError),
    /// The rule of this path cannot be made.
    #[error("no rule can be made for {}: {source}", path.display())]
    Rule {
        /// The path.
        path: PathBuf,
        /// The reason.
        source: RulesetError,
    },
}

/// A folder or file with a rule: its file system and node, which are not used again while the rule refers to them.
type Place = (u64, u64);

/// The rules of this process.
static RULES: OnceLock<Vec<(Place, Use)>> = OnceLock::new();

/// Confines this process to these paths. Returns the version of the kernel's Landlock.
///
/// It can no longer signal other processes either (version 6).
///
/// # Errors
/// Nothing is confined.
pub fn to_paths(reach: &Reach) -> Result<i32, Unconfined> {
    match std::fs::read_dir("/proc/self/task").map(Iterator::count) {
        Ok(threads) if threads > 1 => return Err(Unconfined::Threads(threads)),
        // Without /proc nobody knows; there is none in some containers.
        _ => {}
    }
    let (version, rules) = restrict(reach)?;
    // It is set once: the process has one thread, and a second call would only confine it further.
    let _ = RULES.set(rules);
    Ok(version)
}

/// Confines this thread.
pub(super) fn restrict(reach: &Reach) -> Result<(i32, Vec<(Place, Use)>), Unconfined> {
    let version = version()?;
    if version < LEAST_VERSION {
        return Err(Unconfined::TooOld(version));
    }
    let mut rules = Vec::new();
    let ruleset = Ruleset::default().handle_access(AccessFs::from_all(RESTRICTED))?;
    let mut ruleset = ruleset.scope(Scope::Signal)?.create()?;
    for (path, used) in &reach.paths {
        // One that is missing or cannot be reached has no use now. O_PATH opens also the root of a mount whose server is gone.
        if let Ok(opened) = PathFd::new(path)
            && let Ok(place) = place(&opened)
        {
            let rule = PathBeneath::new(opened, used.rights());
            let added = ruleset.add_rule(rule);
            ruleset = added.map_err(|source| Unconfined::Rule { path: path.clone(), source })?;
            rules.push((place, *used));
        }
    }
    if let Some(folder) = reach.large_pages.then(File::folder_of_large_pages).and_then(Result::ok) {
        rules.push((place(folder)?, Use::Change));
        ruleset = ruleset.add_rule(PathBeneath::new(folder, Use::Change.rights()))?;
    }
    let status = ruleset.restrict_self()?;
    if status.ruleset == RulesetStatus::NotEnforced {
        return Err(Unconfined::Missing);
    }
    Ok((version, rules))
}

fn place(opened: impl AsFd) -> io::Result<Place> {
    let found = rustix::fs::fstat(opened)?;
    Ok((found.st_dev, found.st_ino))
}

/// The version of the kernel's Landlock.
fn version() -> Result<i32, Unconfined> {
    const VERSION: libc::c_uint = 1; // LANDLOCK_CREATE_RULESET_VERSION
    // SAFETY: with this flag the call reads no memory and creates nothing; it returns a number.
    let version = unsafe {
        libc::syscall(libc::SYS_landlock_create_ruleset, std::ptr::null::<libc::c_void>(), 0_usize, VERSION)
    };
    match (i32::try_from(version), io::Error::last_os_error()) {
        (Ok(version), _) if version >= 0 => Ok(version),
        (_, e) if e.raw_os_error() == Some(libc::ENOSYS) => Err(Unconfined::Missing),
        (_, e) if e.raw_os_error() == Some(libc::EOPNOTSUPP) => Err(Unconfined::Disabled),
        (_, e) => Err(Unconfined::Refused(e)),
    }
}

/// Whether Landlock keeps this process from using an existing folder so, by its path without links, although its permissions
/// may allow it.
pub fn is_outside(folder: &Path, wanted: Use) -> bool {
    RULES.get().is_some_and(|rules| is_outside_of(rules, folder, wanted))
}

pub(super) fn is_outside_of(rules: &[(Place, Use)], folder: &Path, wanted: Use) -> bool {
    let covers = |path: &Path| {
        let Ok(found) = rustix::fs::stat(path) else { return false };
        let place = (found.st_dev, found.st_ino);
        rules.iter().any(|(known, used)| *known == place && used.includes(wanted))
    };
    // A file system that was mounted again has the same numbers, but no rule.
    let is_refused = || OsFile::open(folder).is_err_and(|e| e.kind() == io::ErrorKind::PermissionDenied);
    !folder.ancestors().any(covers) || is_refused()
}
