//! A local file that a command writes: an existing file keeps its mode, owner, ACLs and extended attributes.
//!
//! New content goes into a draft beside the file, which replaces the file when it is complete. Where that would lose
//! something (other hard links, an owner that we cannot set) the draft is copied into the file at the end; where the
//! folder accepts no draft the file itself is written. Symbolic links that the user has named are followed. FIFOs and
//! character devices receive the bytes in order. A draft that is not kept is removed. Links below a folder that the
//! user has named are not followed (see [`folder`]).

mod folder;
mod source;

use std::cell::Cell;
use std::ffi::OsString;
use std::fs::{File, Metadata, TryLockError};
use std::io::{self, Seek, SeekFrom, Write};
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{Access, AtFlags, CWD, Gid, OFlags, Uid, XattrFlags};

pub(crate) use self::folder::Folder;
pub(crate) use self::source::Source;

use crate::Failure;
use crate::fault::Fault;
use crate::out::{STANDARD, ShellCommand, path_name};
use crate::when::When;

/// Longest chain of symbolic links: Linux's limit.
const MAX_LINKS: usize = 40;
/// Longest list of attribute names, and longest value: the kernel's limits (XATTR_LIST_MAX, XATTR_SIZE_MAX).
const MAX_XATTR_BYTES: usize = 64 << 10;
/// Attributes that certify the old content: like a write, a replacement drops them, and the set-id bits.
const OF_CONTENT: [&[u8]; 3] = [b"security.capability", b"security.ima", b"security.evm"];
/// Where a command writes.
#[derive(Debug)]
pub(crate) enum Destination {
    /// Takes bytes in order and cannot be read again.
    Stream(Stream),
    /// A file, or a block device.
    File(Box<Target>),
}

/// Standard output, a FIFO or a character device.
#[derive(Debug)]
pub(crate) struct Stream(Option<PathBuf>);

/// An existing file, or one to be created.
#[derive(Debug)]
pub(crate) struct Target {
    /// The path that messages show, with all links resolved. Only [`Named::OpenFile`] is opened by it.
    path: PathBuf,
    existing: Option<Metadata>,
    named: Named,
}

/// How a target is reached.
#[derive(Debug)]
enum Named {
    /// By its name in a folder that is open.
    In(Folder, String),
    /// By a path through /proc: the file that a process has open, whatever its name.
    OpenFile,
}

/// The address of a socket, in socat's syntax.
fn unix_connect(path: &Path) -> OsString {
    let mut address = OsString::from("UNIX-CONNECT:");
    address.push(path);
    address
}

impl Destination {
    /// The object that `path` names. `-` is standard output.
    pub(crate) fn of(path: &Path) -> Result<Destination, Failure> {
        if path == Path::new(STANDARD) {
            return Ok(Destination::Stream(Stream(None)));
        }
        let shown = path_name(path);
        let existing = match std::fs::metadata(path) {
            Ok(existing) => Some(existing),
            Err(e) if e.kind() == io::ErrorKind::NotFound => None,
            Err(e) => return Err(format!("{shown}: {e}").into()),
        };
        if let Some(kind) = existing.as_ref().map(Metadata::file_type) {
            if kind.is_dir() {
                return Err(format!("{shown} is a folder; name a file in it").into());
            }
            if kind.is_socket() {
                return Err(format!(
                    "{shown} is a socket, which cannot be opened for writing; `{}` sends to it",
                    ShellCommand::new("weft cat URL | socat -").operand(unix_connect(path))
                )
                .into());
            }
            if kind.is_fifo() || kind.is_char_device() {
                return Ok(Destination::Stream(Stream(Some(path.to_owned()))));
            }
        }
        // A trailing slash names a folder.
        if existing.is_none() && path.as_os_str().as_encoded_bytes().ends_with(b"/") {
            let make = ShellCommand::new("mkdir -p").operand(path);
            return Err(format!("{shown}: no such folder; create it: {make}").into());
        }
        if existing.is_none()
            && let Some(folder) = path.parent().filter(|folder| !folder.as_os_str().is_empty())
            && !folder.exists()
        {
            let (named, make) = (path_name(folder), ShellCommand::new("mkdir -p").operand(folder));
            return Err(format!("{shown}: there is no folder {named}; create it: {make}").into());
        }
        let (behind, through_proc) = behind_links(path)?;
        // A link in /proc/PID/fd shows a name that may belong to another file by now.
        if through_proc {
            return Ok(Destination::File(Box::new(Target {
                path: path.to_owned(),
                existing,
                named: Named::OpenFile,
            })));
        }
        let name = behind.file_name().and_then(|name| name.to_str());
        let name = name.ok_or_else(|| format!("{} does not name a file", behind.display()))?.to_owned();
        let folder = Folder::named(behind.parent().unwrap_or(Path::new("")));
        let folder = folder.map_err(|e| Fault::here(&behind, &e).reason())?;
        let existing = folder.look(&name).map_err(|e| Fault::here(&behind, &e).reason())?;
        Ok(Destination::File(Box::new(Target { path: behind, existing, named: Named::In(folder, name) })))
    }
}

/// Resolves a path to a file, which need not exist, and tells whether it leads through /proc.
fn behind_links(path: &Path) -> Result<(PathBuf, bool), Failure> {
    let mut at = path.to_owned();
    for _ in 0..MAX_LINKS {
        let folder = at.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
        if folder.canonicalize().is_ok_and(|folder| folder.starts_with("/proc")) {
            return Ok((at, true));
        }
        match std::fs::read_link(&at) {
            Ok(target) => at = folder.join(target),
            // Not a link, or nothing there.
            Err(e) if matches!(e.kind(), io::ErrorKind::InvalidInput | io::ErrorKind::NotFound) => {
                return Ok((at, false));
            }
            Err(e) => return Err(format!("{}: {e}", at.display()).into()),
        }
    }
    Err(format!("{}: more than {MAX_LINKS} symbolic links in a row", path.display()).into())
}

impl Stream {
    /// Whether it is standard output, named `-`.
    pub(crate) fn is_standard(&self) -> bool {
        self.0.is_none()
    }

    /// The name that messages show.
    pub(crate) fn name(&self) -> String {
        match &self.0 {
            None => "standard output".to_owned(),
            Some(path) => path.display().to_string(),
        }
    }

    /// Opens it; for a FIFO this waits for a reader.
    pub(crate) fn open(&self) -> io::Result<Box<dyn Write + Send>> {
        Ok(match &self.0 {
            None => Box::new(crate::out::FileToStdout),
            // If it is a terminal, it must not become our controlling terminal.
            Some(path) => {
                let flags = rustix::fs::OFlags::NOCTTY.bits() as i32;
                Box::new(File::options().write(true).custom_flags(flags).open(path)?)
            }
        })
    }
}

impl Target {
    /// The existing or future file at `path` below a folder; no link is followed.
    pub(crate) fn below(root: &Folder, path: &str) -> Result<Target, Failure> {
        let shown = root.path_of(path);
        let (folder, name) = root.holder(path).map_err(|e| Fault::here(&shown, &e).reason())?;
        let existing = folder.look(name).map_err(|e| Fault::here(&shown, &e).reason())?;
        if let Some(kind) = existing.as_ref().map(Metadata::file_type) {
            if kind.is_symlink() {
                return Err("this name is a symbolic link here".into());
            }
            if kind.is_dir() {
                return Err("this name is a folder here".into());
            }
            if !kind.is_file() {
                return Err(
                    "this name is a device, FIFO or socket here; weft cp writes to it if you name it".into(),
                );
            }
        }
        Ok(Target { path: shown, existing, named: Named::In(folder, name.to_owned()) })
    }

    /// The path that messages show, with all links resolved.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Whether it is a block device, whose length is fixed.
    pub(crate) fn is_device(&self) -> bool {
        self.existing.as_ref().is_some_and(|existing| existing.file_type().is_block_device())
    }

    /// Opens the draft for new content. `name` makes the draft's name from the file's; with `resume`, content left by
    /// an earlier run stays.
    pub(crate) fn draft(self, name: impl FnOnce(&str) -> String, resume: bool) -> Result<Draft, Failure> {
        if self.is_device() {
            return self.in_place("it is a device");
        }
        let Named::In(folder, file_name) = &self.named else {
            return self.in_place("it is a file that a process has open");
        };
        let name = name(file_name);
        let file = match lock(folder, &name, self.existing.is_some(), !resume) {
            Ok(file) => file,
            Err(LockError::Io(e)) if self.existing.is_some() && is_closed_folder(&e) => {
                return self.in_place("its folder accepts no new files");
            }
            Err(e) => return Err(e.told(&self.path.with_file_name(name))),
        };
        let mut draft = Draft { name: Some(name), file, target: self, copied: None, kept: Cell::new(false) };
        if let Some(existing) = &draft.target.existing {
            draft.copied = draft.obstacle(existing);
        }
        if let Some(why) = draft.copied {
            draft.target.check_writable(why)?;
        }
        Ok(draft)
    }

    /// No draft: whatever is written is visible at once.
    fn in_place(self, why: &'static str) -> Result<Draft, Failure> {
        self.check_writable(why)?;
        let file = match &self.named {
            Named::In(folder, name) if self.is_device() => folder.open(name, OFlags::RDWR, 0),
            Named::In(folder, name) => folder.open_file(name, OFlags::RDWR),
            Named::OpenFile => File::options().read(true).write(true).open(&self.path),
        };
        let file = file.map_err(|e| format!("{}: {e}", self.path.display()))?;
        match file.try_lock() {
            Err(TryLockError::WouldBlock) => {
                return Err(format!("{}: another copy to this file is under way", self.path.display()).into());
            }
            Ok(()) | Err(TryLockError::Error(_)) => {}
        }
        note!("weft: {} is written in place, because {why}", self.path.display());
        Ok(Draft { name: None, file, target: self, copied: None, kept: Cell::new(false) })
    }

    /// Whether the content of a file that is not replaced can be written.
    fn check_writable(&self, why: &str) -> Result<(), Failure> {
        let shown = self.path.display();
        let wanted = Access::WRITE_OK | Access::READ_OK;
        // This only selects the message: a link that has since taken the name is not opened.
        let allowed = match &self.named {
            Named::In(folder, name) => rustix::fs::accessat(folder, name, wanted, AtFlags::EACCESS),
            Named::OpenFile => rustix::fs::accessat(CWD, &self.path, wanted, AtFlags::EACCESS),
        };
        allowed.map_err(|e| {
            format!("{shown} cannot be written ({e}), nor replaced without loss, because {why}").into()
        })
    }
}

/// Whether the folder does not let us create files.
fn is_closed_folder(e: &io::Error) -> bool {
    matches!(e.kind(), io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem)
}

/// New content of a file, being written.
pub(crate) struct Draft {
    /// The draft's name beside the target; `None` if the target itself is written.
    name: Option<String>,
    file: File,
    target: Target,
    /// Why the draft is copied into the target instead of replacing it.
    copied: Option<&'static str>,
    kept: Cell<bool>,
}

impl Draft {
    /// The file to write to and read back.
    pub(crate) fn file(&self) -> io::Result<File> {
        self.file.try_clone()
    }

    /// How many bytes an earlier run has left in it.
    pub(crate) fn begun(&self) -> io::Result<u64> {
        if self.name.is_none() { Ok(0) } else { Ok(self.file.metadata()?.len()) }
    }

    /// Truncates to this length. A device has a fixed length, which must be large enough.
    pub(crate) fn set_len(&self, len: u64) -> Result<(), Failure> {
        if !self.target.is_device() {
            return self.file.set_len(len).map_err(|e| self.told(&e));
        }
        let holds = (&self.file).seek(SeekFrom::End(0)).map_err(|e| self.told(&e))?;
        match holds < len {
            true => Err(format!("{} holds {holds} bytes, not {len}", self.target.path.display()).into()),
            false => Ok(()),
        }
    }

    /// After a failure: keeps the draft if a later run may resume it.
    pub(crate) fn leave(&self, resume: bool) {
        self.kept.set(resume);
    }

    /// Whether a failure leaves the target unchanged.
    pub(crate) fn spares_target(&self) -> bool {
        self.name.is_some()
    }

    /// The draft's name, and the target's folder and name; `None` if the target itself is written.
    fn beside(&self) -> Option<(&str, &Folder, &str)> {
        match (&self.name, &self.target.named) {
            (Some(draft), Named::In(folder, name)) => Some((draft, folder, name)),
            _ => None,
        }
    }

    /// The content is complete and verified: replaces the target with it.
    pub(crate) fn finish(&self, modified: Option<When>) -> Result<(), Failure> {
        let shown = self.target.path.display();
        let time = modified.and_then(When::to_system);
        let dated = || time.map_or(Ok(()), |time| self.file.set_modified(time)).map_err(|e| self.told(&e));
        let Some((draft, folder, name)) = self.beside() else {
            dated()?;
            return Ok(());
        };
        let obstacle = match (self.copied, &self.target.existing) {
            (Some(why), _) => Some(why),
            (None, Some(existing)) => self.take_attributes(existing, (folder, name)),
            (None, None) => None,
        };
        dated()?;
        let renamed = match obstacle {
            Some(why) => Err(why),
            None => match folder.rename(draft, name) {
                Ok(()) => Ok(()),
                // Something is mounted on it, or only owners may replace files in its folder.
                Err(e) if self.target.existing.is_some() && !is_full(&e) => {
                    tracing::debug!("{shown} is not replaced: {e}");
                    Err("the system does not allow replacing it")
                }
                Err(e) => return Err(self.told(&e)),
            },
        };
        match renamed {
            Ok(()) => self.kept.set(true),
            Err(why) => {
                note!("weft: {shown} is written in place, because {why}");
                self.copy_into((folder, name), time).map_err(|e| {
                    // The only copy of the new content.
                    self.kept.set(true);
                    let draft = self.target.path.with_file_name(draft);
                    format!("{shown}: {e}; the complete new content is in {}", draft.display())
                })?;
            }
        }
        Ok(())
    }

    /// An error about the file, with its name.
    fn told(&self, e: &io::Error) -> Failure {
        Fault::here(&self.target.path, e).reason()
    }

    fn copy_into(
        &self,
        (folder, name): (&Folder, &str),
        time: Option<std::time::SystemTime>,
    ) -> io::Result<()> {
        let mut target = folder.open_file(name, OFlags::WRONLY)?;
        (&self.file).seek(SeekFrom::Start(0))?;
        let len = io::copy(&mut &self.file, &mut target)?;
        target.set_len(len)?;
        target.sync_data()?;
        time.map_or(Ok(()), |time| target.set_modified(time))
    }

    /// Why the draft cannot replace `existing`, as far as that is known before writing.
    fn obstacle(&self, existing: &Metadata) -> Option<&'static str> {
        if existing.nlink() > 1 {
            return Some("it has other names (hard links)");
        }
        let ours = match self.file.metadata() {
            Ok(ours) => ours,
            Err(_) => return Some("its owner cannot be kept"),
        };
        let uid = (ours.uid() != existing.uid()).then(|| Uid::from_raw(existing.uid()));
        let gid = (ours.gid() != existing.gid()).then(|| Gid::from_raw(existing.gid()));
        if uid.is_none() && gid.is_none() {
            return None;
        }
        rustix::fs::fchown(&self.file, uid, gid).is_err().then_some("its owner and group cannot be kept")
    }

    /// Copies the file's attributes to the draft; returns the reason if that fails.
    fn take_attributes(&self, existing: &Metadata, (folder, name): (&Folder, &str)) -> Option<&'static str> {
        if let Err(e) = copy_xattrs((folder, name), &self.file) {
            tracing::debug!("{}: extended attributes: {e}", self.target.path.display());
            return Some("its extended attributes cannot be kept");
        }
        // The mode comes last: setting an ACL has changed the group's bits.
        let mode = std::fs::Permissions::from_mode(existing.mode() & 0o1777);
        self.file.set_permissions(mode).is_err().then_some("its mode cannot be kept")
    }
}

/// No space: copying the draft would fail the same way.
fn is_full(e: &io::Error) -> bool {
    matches!(e.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}

impl Drop for Draft {
    fn drop(&mut self) {
        if let Some((draft, folder, _)) = self.beside().filter(|_| !self.kept.get())
            && let Err(e) = folder.remove(draft, false)
            && e.kind() != io::ErrorKind::NotFound
        {
            tracing::warn!("{} was not removed: {e}", self.target.path.with_file_name(draft).display());
        }
    }
}

/// Gives `to` the extended attributes of the file `from`, except those that certify content.
fn copy_xattrs((folder, from): (&Folder, &str), to: &File) -> io::Result<()> {
    let path = folder.by_descriptor(from);
    // Without /proc, a file with attributes must be opened, which requires permission to read it.
    let open = match rustix::fs::llistxattr(&path, &mut [0_u8; 0]) {
        Err(rustix::io::Errno::NOENT | rustix::io::Errno::NOTDIR) => {
            Some(folder.open_file(from, OFlags::RDONLY)?)
        }
        _ => None,
    };
    let list = |listed: rustix::io::Result<Vec<u8>>| match listed {
        Ok(names) => Ok(names),
        // The file system has no extended attributes.
        Err(rustix::io::Errno::OPNOTSUPP) => Ok(Vec::new()),
        Err(e) => Err(io::Error::from(e)),
    };
    let names = |all: &[u8]| -> Vec<Vec<u8>> {
        let names = all.split(|byte| *byte == 0).filter(|name| !name.is_empty());
        names.filter(|name| !OF_CONTENT.contains(name)).map(<[u8]>::to_vec).collect()
    };
    let had = names(&list(filled(|buf| match &open {
        None => rustix::fs::llistxattr(&path, buf),
        Some(file) => rustix::fs::flistxattr(file, buf),
    }))?);
    let has = names(&list(filled(|buf| rustix::fs::flistxattr(to, buf)))?);
    for name in has.iter().filter(|name| !had.contains(name)) {
        rustix::fs::fremovexattr(to, &name[..])?;
    }
    for name in &had {
        let value = filled(|buf| match &open {
            None => rustix::fs::lgetxattr(&path, &name[..], buf),
            Some(file) => rustix::fs::fgetxattr(file, &name[..], buf),
        })?;
        if filled(|buf| rustix::fs::fgetxattr(to, &name[..], buf)).ok().as_ref() != Some(&value) {
            rustix::fs::fsetxattr(to, &name[..], &value, XattrFlags::empty())?;
        }
    }
    Ok(())
}

fn filled(call: impl FnOnce(&mut [u8]) -> rustix::io::Result<usize>) -> rustix::io::Result<Vec<u8>> {
    let mut buf = vec![0; MAX_XATTR_BYTES];
    let len = call(&mut buf)?;
    buf.truncate(len);
    Ok(buf)
}

/// Why there is no draft.
enum LockError {
    Io(io::Error),
    UnderWay,
    Foreign,
}

impl LockError {
    fn told(self, path: &Path) -> Failure {
        let shown = path.display();
        match self {
            LockError::Io(e) => Fault::here(path, &e).reason(),
            LockError::UnderWay => format!("another copy to this file is under way ({shown})").into(),
            LockError::Foreign => format!(
                "{shown}: another user has created this file, whose name the copy needs: remove it (rm)"
            )
            .into(),
        }
    }
}

/// Opens or creates a draft for this process alone: another copy to the same file would overwrite what this one has
/// verified. Until a replacement has the file's mode, other users cannot read it.
fn lock(folder: &Folder, name: &str, replaces: bool, empty: bool) -> Result<File, LockError> {
    let mode = if replaces { 0o600 } else { 0o666 };
    let file = loop {
        // A symbolic link of that name is not ours.
        let (file, made) = match folder.open(name, OFlags::RDWR | OFlags::CREATE | OFlags::EXCL, mode) {
            Ok(file) => (file, true),
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {
                match folder.open(name, OFlags::RDWR, 0) {
                    Ok(file) => (file, false),
                    // The other copy has ended in between.
                    Err(e) if e.kind() == io::ErrorKind::NotFound => continue,
                    Err(e) => return Err(LockError::Io(e)),
                }
            }
            Err(e) => return Err(LockError::Io(e)),
        };
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Err(LockError::UnderWay),
            // The file system has no locks.
            Err(TryLockError::Error(e)) => {
                tracing::debug!("{} cannot be locked: {e}", folder.path_of(name).display());
            }
        }
        // The previous lock holder may have renamed the draft to its target meanwhile.
        let ours = file.metadata().map_err(LockError::Io)?;
        // Also in a folder where others write: the creator of the draft could read the copy, and would own it.
        if !made && (ours.uid() != rustix::process::geteuid().as_raw() || ours.nlink() > 1 || !ours.is_file())
        {
            return Err(LockError::Foreign);
        }
        match folder.look(name).map_err(LockError::Io)? {
            Some(named) if (named.dev(), named.ino()) == (ours.dev(), ours.ino()) => break file,
            _ => {}
        }
    };
    if empty {
        file.set_len(0).map_err(LockError::Io)?;
    }
    Ok(file)
}

/// Removes a draft unless it is gone or a command is using it; returns whether it did.
pub(crate) fn remove_unfinished(folder: &Folder, name: &str) -> io::Result<bool> {
    let file = match folder.open_file(name, OFlags::RDONLY) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(false),
        opened => opened?,
    };
    match file.try_lock() {
        Err(TryLockError::WouldBlock) => Ok(false),
        Ok(()) | Err(TryLockError::Error(_)) => folder.remove(name, false).map(|()| true),
    }
}

/// Writes a file atomically, for example a report: the old content stays until the new one is complete.
pub(crate) fn save(path: &Path, contents: &[u8]) -> Result<(), Failure> {
    let told = |e: &io::Error| Fault::here(path, e).reason();
    match Destination::of(path)? {
        Destination::Stream(stream) => {
            let mut out = stream.open().map_err(|e| told(&e))?;
            out.write_all(contents).and_then(|()| out.flush())?;
        }
        Destination::File(target) => {
            let draft = target.draft(|name| crate::partial::partial_name(name, ""), false)?;
            let written = draft.file().and_then(|mut file| file.write_all(contents));
            written.map_err(|e| told(&e))?;
            draft.set_len(contents.len() as u64)?;
            draft.finish(None)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests;
