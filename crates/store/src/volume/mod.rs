//! Volumes: named blocks, recorded in a folder.
//!
//! [`Volumes`] is the folder; [`Volume`] is an open volume. The layout is that of [`superblock`]. This module owns
//! `NAME.volume` in the folder, and the locks of open volumes. The `nbd` crate serves volumes. A volume's file
//! contains only the volume's data.
//!
//! Operation: everything here may block and is for start-up and the command line; only [`Block::submit`] may run on
//! cores.
//! Locks: an open volume holds flock(2) on its metadata and on its file (a device is opened with O_EXCL, which the
//! kernel refuses while it is mounted), so a volume is open only once, under any name. The locks end with the
//! process.
//! Order: a file grows before its superblock says so, and shrinks after; whatever happens in between, all bytes that
//! the superblock promises exist.

pub mod identity;
pub mod plain;
pub mod rbd;
pub mod superblock;

mod abandoned;
mod growth;
mod medium;
#[cfg(test)]
mod tests;

use std::fs::{self, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::{DirBuilderExt, FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::fs::FlockOperation;
use rustix::io::Errno;
use weft_machine::file::regular;
use weft_machine::{File, Pool};

pub use weft_ceph::{Client, DEFAULT_CONF, DEFAULT_ID, ImageSpec};

pub use self::growth::{Before, Growth, Store, free_bytes};
use self::identity::FileIdentity;
use self::medium::Opened;
use self::superblock::{COPY_BYTES, Damaged, FILE_BYTES, MAX_PATH, Superblock};
use crate::block::{Block, Medium};
use crate::health::Health;

/// The longest name: `NAME.volume`, and replication's file names, must fit into a file name.
pub const MAX_NAME: usize = 200;
/// The largest volume: the limit of file offsets.
pub const MAX_SIZE: u64 = i64::MAX as u64;
/// Sizes are multiples of this, as every client of block devices expects.
pub const SIZE_UNIT: u64 = 512;

const SUFFIX: &str = ".volume";

/// Whether this is a valid volume name, which becomes a part of a file name and must not lead to another folder.
pub fn is_name(name: &str) -> bool {
    let allowed = |c: char| c.is_alphanumeric() || matches!(c, '-' | '_' | '.');
    !name.is_empty() && name.len() <= MAX_NAME && !name.starts_with('.') && name.chars().all(allowed)
}

/// Why an operation on a volume failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// An invalid name.
    #[error(
        "{0:?} cannot name a volume: use letters, digits, '-', '_' and '.', at most {MAX_NAME}, without a leading '.'"
    )]
    Name(String),
    /// The volume does not exist.
    #[error("there is no volume {0:?}; `weft volume list` lists the volumes")]
    NotFound(String),
    /// The volume already exists.
    #[error("volume {0:?} already exists")]
    Exists(String),
    /// The file belongs to another volume.
    #[error("{path} already is the file of volume {name}, and a file can hold only one volume; `weft volume info {name}` shows it", path = .path.display())]
    Taken {
        /// The file.
        path: PathBuf,
        /// The volume.
        name: String,
    },
    /// The image belongs to another volume.
    #[error("image {spec} already is the storage of volume {name}; `weft volume info {name}` shows it")]
    TakenImage {
        /// The image.
        spec: String,
        /// The volume.
        name: String,
    },
    /// The volume is in a group.
    #[error(
        "volume {name} is replicated, in the group {group}: first end that with `weft replica remove {group}`"
    )]
    InGroup {
        /// The volume.
        name: String,
        /// Its group.
        group: String,
    },
    /// Another process has it open.
    #[error("{} is in use by another process; only one process can use it, and `weft status` shows the servers of a state directory", .0.display())]
    InUse(PathBuf),
    /// Its cluster or image is unusable.
    #[error(transparent)]
    Ceph(Box<weft_ceph::Error>),
    /// An image is not deleted with its volume.
    #[error(
        "images are not deleted: `weft volume remove {name}` forgets the volume, and `rbd rm {spec}` deletes its image"
    )]
    KeepsImage {
        /// The volume.
        name: String,
        /// Its image.
        spec: String,
    },
    /// Its metadata is unusable.
    #[error("the metadata of the volume, {}, is unusable: {why}", .path.display())]
    Damaged {
        /// The metadata's file.
        path: PathBuf,
        /// What is wrong.
        why: Damaged,
    },
    /// Its file is too short.
    #[error("{} has {actual} bytes but should have {expected}: it was truncated or replaced", .path.display())]
    Shrunk {
        /// The volume's file.
        path: PathBuf,
        /// Bytes of the volume.
        expected: u64,
        /// Bytes of the file.
        actual: u64,
    },
    /// A size that no volume can have, and why.
    #[error("{0}")]
    ImpossibleSize(String),
    /// A size that this volume cannot have, and why.
    #[error("{0}")]
    Size(String),
    /// A path that cannot hold a volume, and why.
    #[error("{}: {why}", .path.display())]
    Path {
        /// The path.
        path: PathBuf,
        /// What is wrong.
        why: &'static str,
    },
    /// The system refused.
    #[error("{doing} {}: {source}", .path.display())]
    Io {
        /// "cannot open", ...
        doing: &'static str,
        /// The file of the call.
        path: PathBuf,
        /// The cause.
        #[source]
        source: io::Error,
    },
}

impl From<weft_ceph::Error> for Error {
    fn from(e: weft_ceph::Error) -> Error {
        Error::Ceph(Box::new(e))
    }
}

fn io_error<'a>(doing: &'static str, path: &'a Path) -> impl FnOnce(io::Error) -> Error + 'a {
    move |source| Error::Io { doing, path: path.to_owned(), source }
}

/// The storage of a new volume.
#[derive(Clone, Debug)]
pub enum Storage {
    /// In the memory of the serving process, and lost with it.
    Ram,
    /// In this file, which is created if it is missing; an existing file is used as it is.
    File(PathBuf),
    /// On this block device.
    Device(PathBuf),
    /// In this image, which is created if it is missing; an existing image is used as it is.
    Image(Client, ImageSpec),
}

/// The parameters of a new volume.
#[derive(Clone, Debug)]
pub struct Create {
    /// Its storage.
    pub storage: Storage,
    /// Size in bytes [default: that of the file or device].
    pub size: Option<u64>,
    /// Reserve all space now; for a volume in memory, when it is opened.
    pub allocate: bool,
    /// Bypass the page cache.
    pub direct: bool,
    /// A random identity.
    pub id: [u8; 16],
    /// The current time, in seconds of Unix time.
    pub created: u64,
}

/// A recorded volume.
#[derive(Clone, Debug)]
pub struct RecordedVolume {
    /// Its name.
    pub name: String,
    /// Its metadata.
    pub superblock: Superblock,
    /// Whether a process has it open.
    pub in_use: bool,
    /// Bytes allocated for its file; `None` for ram and devices, and if the file is missing.
    pub allocated: Option<u64>,
}

/// An entry of the list.
#[derive(Debug)]
pub struct Listed {
    /// The name.
    pub name: String,
    /// The volume, or why its metadata is unusable.
    pub volume: Result<RecordedVolume, Error>,
}

/// The folder that records volumes.
#[derive(Clone, Debug)]
pub struct Volumes {
    dir: PathBuf,
}

/// An open volume. Nobody else can open it until this is dropped.
#[derive(Debug)]
pub struct Volume {
    /// Its name.
    pub name: String,
    /// Its metadata when it was opened.
    pub superblock: Superblock,
    /// Its bytes.
    pub block: Arc<dyn Block>,
    /// The file with its bytes, for reading only: writes must go through [`Volume::block`], because others need to
    /// see them. It may be longer than the volume. An image has none.
    pub content: Option<File>,
    /// Grows it while it is used, and knows whether its file was replaced.
    pub growth: Growth,
}

/// `NAME.volume`, open and locked.
#[derive(Debug)]
struct Metadata {
    file: fs::File,
    path: PathBuf,
    /// The generation of the valid copy, once it was read or written.
    generation: AtomicU64,
}

/// Which other volumes' files are examined for a conflict over one file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Look {
    /// All: before a file is given to a volume, truncated or deleted. A recorded file may have been replaced (by a
    /// restored backup).
    AtEach,
    /// Those with the recorded path or inode number: a starting server must not wait for files on file systems that
    /// do not answer.
    AtLikely,
}

impl Volumes {
    /// The folder, which need not exist until a volume is created.
    pub fn at(dir: impl Into<PathBuf>) -> Volumes {
        Volumes { dir: dir.into() }
    }

    /// The folder.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    fn path(&self, name: &str) -> Result<PathBuf, Error> {
        match is_name(name) {
            true => Ok(self.dir.join(format!("{name}{SUFFIX}"))),
            false => Err(Error::Name(name.to_owned())),
        }
    }

    /// Creates a volume. If a step fails, earlier steps are undone.
    pub fn create(&self, name: &str, create: &Create) -> Result<Superblock, Error> {
        let path = self.path(name)?;
        if path.exists() {
            return Err(Error::Exists(name.to_owned()));
        }
        fs::DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(&self.dir)
            .map_err(io_error("cannot make the folder", &self.dir))?;
        // If two processes give one file to two names, the second finds the first.
        let folder = fs::File::open(&self.dir).map_err(io_error("cannot open", &self.dir))?;
        let flock = |how| rustix::fs::flock(&folder, how);
        if flock(FlockOperation::NonBlockingLockExclusive) == Err(Errno::AGAIN) {
            tracing::warn!("another volume is being created in {}: waiting for that", self.dir.display());
        }
        flock(FlockOperation::LockExclusive).map_err(|e| io_error("cannot lock", &self.dir)(e.into()))?;
        if let Storage::File(path) | Storage::Device(path) = &create.storage {
            self.has_no_other(name, path)?;
        }
        if let Storage::Image(client, spec) = &create.storage {
            self.has_no_other_image(name, client, spec)?;
        }
        let place = medium::prepare(create)?;
        let superblock = Superblock {
            generation: 2,
            id: create.id,
            size: place.size,
            medium: place.medium,
            direct: create.direct,
            taken: create.allocate && place.medium == Medium::Ram,
            created: create.created,
            path: place.path.clone(),
            image: place.image,
            file: place.identity,
            membership: None,
        };
        if !superblock.fits() {
            return Err(Error::Path {
                path: superblock.storage().into(),
                why: "its names and paths are too long",
            });
        }
        let remembered = self.remember(name, &path, &superblock);
        if remembered.is_err() && place.made {
            // The file was created for this volume a moment ago; the original error tells why it stays.
            if let Err(e) = fs::remove_file(&place.path) {
                tracing::warn!("{} was left behind: {e}", place.path.display());
            }
        }
        remembered.map(|()| superblock)
    }

    /// Writes both copies to a temporary file, and gives it its name when it is durable.
    fn remember(&self, name: &str, path: &Path, superblock: &Superblock) -> Result<(), Error> {
        let older = Superblock { generation: superblock.generation - 1, ..superblock.clone() };
        let mut bytes = [0; FILE_BYTES];
        for copy in [superblock, &older] {
            let at = copy.copy_number() * COPY_BYTES;
            bytes[at..at + COPY_BYTES].copy_from_slice(&copy.emit());
        }
        let mut draft = tempfile_in(&self.dir)?;
        let written = io::Write::write_all(&mut draft.file, &bytes).and_then(|()| draft.file.sync_all());
        written.map_err(io_error("cannot write", &draft.path))?;
        // A link instead of a rename: it does not replace a volume that another process has created meanwhile.
        match fs::hard_link(&draft.path, path) {
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists => Err(Error::Exists(name.to_owned())),
            other => {
                other.map_err(io_error("cannot write", path))?;
                sync_dir(&self.dir)
            }
        }
    }

    /// Every volume, by name; one with unusable metadata is listed with its error.
    pub fn list(&self) -> Result<Vec<Listed>, Error> {
        let names = self.names()?;
        let mut volumes: Vec<_> = names.iter().map(|name| self.recorded(name)).collect();
        let known: Vec<&Superblock> = volumes.iter().flatten().map(|volume| &volume.superblock).collect();
        let allocated = medium::allocated(&known);
        for (volume, allocated) in volumes.iter_mut().flatten().zip(allocated) {
            volume.allocated = allocated;
        }
        Ok(names.into_iter().zip(volumes).map(|(name, volume)| Listed { name, volume }).collect())
    }

    fn names(&self) -> Result<Vec<String>, Error> {
        let entries = match fs::read_dir(&self.dir) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            other => other.map_err(io_error("cannot read", &self.dir))?,
        };
        let mut names = Vec::new();
        for entry in entries {
            let entry = entry.map_err(io_error("cannot read", &self.dir))?;
            if let Some(name) = entry.file_name().to_str().and_then(|name| name.strip_suffix(SUFFIX))
                && self.path(name).is_ok()
            {
                names.push(name.to_owned());
            }
        }
        names.sort();
        Ok(names)
    }

    /// What is recorded of a volume. Its own file, whose file system may not answer, is not asked.
    pub fn superblock(&self, name: &str) -> Result<Superblock, Error> {
        Metadata::open(name, self.path(name)?)?.read()
    }

    /// One volume, which may be in use.
    pub fn info(&self, name: &str) -> Result<RecordedVolume, Error> {
        let mut volume = self.recorded(name)?;
        volume.allocated = medium::allocated(&[&volume.superblock]).pop().flatten();
        Ok(volume)
    }

    /// What is known of a volume without asking its file.
    fn recorded(&self, name: &str) -> Result<RecordedVolume, Error> {
        let path = self.path(name)?;
        let metadata = Metadata::open(name, path)?;
        let superblock = metadata.read()?;
        // A shared lock, so that two queries do not see each other. A process that opens the volume at this moment is
        // told that it is in use.
        let in_use = match try_lock(&metadata.file, &metadata.path, FlockOperation::NonBlockingLockShared) {
            Ok(()) => false,
            Err(Error::InUse(_)) => true,
            Err(e) => return Err(e),
        };
        Ok(RecordedVolume { name: name.to_owned(), superblock, in_use, allocated: None })
    }

    /// Opens a volume. `pool` provides the buffers of direct reads.
    pub fn open(&self, name: &str, pool: &Pool) -> Result<Volume, Error> {
        let metadata = Metadata::open(name, self.path(name)?)?;
        metadata.lock()?;
        let superblock = metadata.mend()?;
        self.has_no_other_in_a_group(name, &superblock, Look::AtLikely)?;
        let on_disk = (superblock.medium != Medium::Ram).then_some(&*superblock.path);
        let health = Health::of_volume(name, on_disk);
        let opened = medium::open(&superblock, pool, health);
        let opened = opened.inspect_err(|e| metadata.distrust(&superblock, e))?;
        let superblock = metadata.follow(superblock, &opened)?;
        let (block, content) = (opened.block(), opened.content());
        let growth = Growth::new(metadata, opened, superblock);
        if growth.replaced().is_none() {
            // For volumes created by an older program, or on a file system without file identities.
            if let Err(e) = growth.accept() {
                tracing::warn!("volume {name}: a replaced file would not be noticed: {e}");
            }
        }
        let superblock = growth.superblock();
        Ok(Volume { name: name.to_owned(), superblock, block, content, growth })
    }

    /// Those other volumes of this folder that `matters` chooses and that use this file. Nothing is locked for that: other
    /// processes may open theirs. The files of the rest are not asked, because their file systems may not answer.
    fn others_on(
        &self,
        name: &str,
        path: &Path,
        look: Look,
        matters: impl Fn(&Superblock) -> bool,
    ) -> Result<Vec<(String, Superblock)>, Error> {
        let which = |path: &Path| fs::metadata(path).ok().map(|found| (found.dev(), found.ino()));
        let Some(file) = which(path) else { return Ok(Vec::new()) };
        let mut others = Vec::new();
        for other in self.names()?.into_iter().filter(|other| other != name) {
            let metadata = self.path(&other).and_then(|path| Metadata::open(&other, path));
            let Ok(superblock) = metadata.and_then(|metadata| metadata.read()) else { continue };
            if superblock.medium == Medium::Ram || !matters(&superblock) {
                continue;
            }
            let may_be = match look {
                Look::AtEach => true,
                Look::AtLikely => {
                    superblock.path == path || superblock.file.is_none_or(|known| known.inode == file.1)
                }
            };
            if may_be && which(&superblock.path) == Some(file) {
                others.push((other, superblock));
            }
        }
        Ok(others)
    }

    /// A file belongs to one volume: data truncated or deleted under one name is lost under the other.
    fn has_no_other(&self, name: &str, path: &Path) -> Result<(), Error> {
        match &self.others_on(name, path, Look::AtEach, |_| true)?[..] {
            [] => Ok(()),
            [(other, _), ..] => Err(Error::Taken { path: path.to_owned(), name: other.clone() }),
        }
    }

    /// The same for an image, by its name: whoever opens it is also kept out by its lock.
    fn has_no_other_image(&self, name: &str, client: &Client, spec: &ImageSpec) -> Result<(), Error> {
        let conf = std::path::absolute(&client.conf).map_err(io_error("cannot find", &client.conf))?;
        for other in self.names()?.into_iter().filter(|other| other != name) {
            let metadata = self.path(&other).and_then(|path| Metadata::open(&other, path));
            let Ok(superblock) = metadata.and_then(|metadata| metadata.read()) else { continue };
            let image = superblock.image.as_ref();
            if image.is_some_and(|image| image.spec == *spec && image.client.conf == conf) {
                return Err(Error::TakenImage { spec: spec.to_string(), name: other });
            }
        }
        Ok(())
    }

    /// Writes under another name of the file would not reach the group's copies. A volume that is itself in a group
    /// is judged by the group.
    fn has_no_other_in_a_group(&self, name: &str, superblock: &Superblock, look: Look) -> Result<(), Error> {
        if superblock.membership.is_some() {
            return Ok(());
        }
        let in_a_group = |other: &Superblock| other.membership.is_some();
        self.others_on(name, &superblock.path, look, in_a_group)?
            .iter()
            .try_for_each(|(other, of)| in_no_group(other, of))
    }

    /// Removes the membership of a volume that nobody has open, if it is in this group. Its file may be missing.
    pub fn leave_group(&self, name: &str, group: &str) -> Result<(), Error> {
        let metadata = Metadata::open(name, self.path(name)?)?;
        metadata.lock()?;
        let old = metadata.mend()?;
        if old.membership.as_ref().is_none_or(|of| of.group != group) {
            return Ok(());
        }
        metadata.write(&Superblock { membership: None, ..old }).map(drop)
    }

    /// Resizes a volume that nobody has open. Truncated data is lost; added space reads as zeros. A volume in a group
    /// cannot shrink: its group would take the zeros that follow for its content.
    pub fn resize(&self, name: &str, size: u64, may_shrink: bool) -> Result<Superblock, Error> {
        valid_size(size)?;
        let metadata = Metadata::open(name, self.path(name)?)?;
        metadata.lock()?;
        let old = metadata.mend()?;
        self.has_no_other_in_a_group(name, &old, Look::AtEach)?;
        if size < old.size && !may_shrink {
            return Err(Error::Size(format!(
                "the volume has {} bytes: data past {size} would be lost; use --shrink to allow that",
                old.size
            )));
        }
        if size < old.size {
            in_no_group(name, &old)?;
            self.has_no_other(name, &old.path)?;
        }
        let new = Superblock { size, ..old.clone() };
        if size > old.size {
            medium::set_size(&new, false)?;
        }
        let new = metadata.write(&new)?;
        if size < old.size {
            medium::set_size(&new, true)?;
        }
        Ok(new)
    }

    /// Forgets a volume that nobody has open and that is in no group; its file is removed only on request. Unreadable
    /// metadata can be forgotten, too, but then `None` is returned.
    pub fn remove(&self, name: &str, with_file: bool) -> Result<Option<Superblock>, Error> {
        let metadata = Metadata::open(name, self.path(name)?)?;
        metadata.lock()?;
        let superblock = metadata.read();
        superblock.as_ref().map_or(Ok(()), |superblock| in_no_group(name, superblock))?;
        if let Ok(Superblock { image: Some(image), .. }) = &superblock
            && with_file
        {
            return Err(Error::KeepsImage { name: name.to_owned(), spec: image.spec.to_string() });
        }
        if !with_file {
            fs::remove_file(&metadata.path).map_err(io_error("cannot remove", &metadata.path))?;
            sync_dir(&self.dir)?;
            return Ok(superblock.ok());
        }
        let superblock = superblock?;
        self.has_no_other(name, &superblock.path)?;
        // The file first: while it exists, a record of it exists.
        if superblock.medium == Medium::File {
            medium::lock_file(&superblock)?;
            match fs::remove_file(&superblock.path) {
                Err(e) if e.kind() == io::ErrorKind::NotFound => {}
                other => other.map_err(io_error("cannot remove", &superblock.path))?,
            }
        }
        fs::remove_file(&metadata.path).map_err(io_error("cannot remove", &metadata.path))?;
        sync_dir(&self.dir)?;
        Ok(Some(superblock))
    }
}

impl Metadata {
    fn open(name: &str, path: PathBuf) -> Result<Metadata, Error> {
        match regular::open(&path, OpenOptions::new().read(true).write(true)) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => Err(Error::NotFound(name.to_owned())),
            other => Ok(Metadata {
                file: other.map_err(io_error("cannot open", &path))?,
                path,
                generation: AtomicU64::new(0),
            }),
        }
    }

    fn lock(&self) -> Result<(), Error> {
        lock(&self.file, &self.path)
    }

    fn read(&self) -> Result<Superblock, Error> {
        self.read_copies().map(|(superblock, _)| superblock)
    }

    /// The valid copy, and the file's contents.
    fn read_copies(&self) -> Result<(Superblock, Vec<u8>), Error> {
        let mut bytes = Vec::with_capacity(FILE_BYTES + 1);
        let read = (&self.file).take(FILE_BYTES as u64 + 1).read_to_end(&mut bytes);
        read.map_err(io_error("cannot read", &self.path))?;
        let latest = Superblock::latest(&bytes);
        let superblock = latest.map_err(|why| Error::Damaged { path: self.path.clone(), why })?;
        self.generation.store(superblock.generation, Ordering::Relaxed);
        Ok((superblock, bytes))
    }

    /// The same for a locked file: a damaged copy is reported, and a differing one, left by a crash or an older
    /// version, is made equal to the valid one.
    fn mend(&self) -> Result<Superblock, Error> {
        let (superblock, bytes) = self.read_copies()?;
        let other = 1 - superblock.copy_number();
        let at = other * COPY_BYTES;
        match Superblock::parse(bytes.get(at..at + COPY_BYTES).unwrap_or_default()) {
            Ok(older) => {
                if (Superblock { generation: superblock.generation, ..older }) == superblock {
                    return Ok(superblock);
                }
            }
            Err(why) => tracing::warn!(
                "one of the two copies in {path}, bytes {at} to {end}, is unusable: {why}. The other copy is used, and this one is \
                 rewritten. A crash during a write can cause this; if there was none, the disk corrupts its data: check \
                 it, and move the state directory to a good one",
                path = self.path.display(),
                end = at + COPY_BYTES
            ),
        }
        // If it cannot be written, the readable copy is still used.
        Ok(self.write_copy(superblock.clone()).unwrap_or_else(|e| {
            tracing::warn!("{e}: only one of its two copies is valid");
            superblock
        }))
    }

    /// Follows an open image: its size is that of the volume if it has grown and is still the same one, and whoever holds its lock is
    /// recorded.
    fn follow(&self, old: Superblock, opened: &Opened) -> Result<Superblock, Error> {
        let (Opened::Rbd(rbd), Some(image)) = (opened, &old.image) else { return Ok(old) };
        let image = image.held_by(rbd.image().holder());
        let now = rbd::identity(rbd.image().identity());
        let is_same = old.file.is_none_or(|file| file.is(&now));
        let size = if is_same { rbd.geometry().size.max(old.size) } else { old.size };
        self.write(&Superblock { image: Some(image), size, ..old })
    }

    /// If a volume cannot be opened because its file was truncated, that file is not trusted if it is later extended
    /// to its old size.
    fn distrust(&self, superblock: &Superblock, e: &Error) {
        let own = superblock
            .file
            .filter(|file| matches!(e, Error::Shrunk { .. }) && *file != FileIdentity::CUT_OFF);
        let Some(own) = own else { return };
        let now = regular::read_only(&superblock.path).ok();
        let now = now.and_then(|file| FileIdentity::of(&file).ok().flatten());
        // A different file is detected anyway, and so the original one may return. An image is not asked for its identity
        // again: whoever brings it back has it accepted.
        if superblock.image.is_none() && now.is_none_or(|now| !own.is(&now)) {
            return;
        }
        let file = Some(FileIdentity::CUT_OFF);
        if let Err(e) = self.write(&Superblock { file, ..superblock.clone() }) {
            tracing::warn!("cannot record that {} was truncated: {e}", superblock.path.display());
        }
    }

    /// Writes both copies, one after the other, so that damage to one of them loses nothing. Returns the written
    /// superblock with its generation.
    fn write(&self, superblock: &Superblock) -> Result<Superblock, Error> {
        self.write_copy(superblock.clone()).and_then(|first| self.write_copy(first))
    }

    /// Writes the next generation over the older copy. A failed write leaves the newer one intact, even if it is the
    /// first of two.
    fn write_copy(&self, superblock: Superblock) -> Result<Superblock, Error> {
        let new = Superblock { generation: self.generation.load(Ordering::Relaxed) + 1, ..superblock };
        let at = (new.copy_number() * COPY_BYTES) as u64;
        let written = self.file.write_all_at(&new.emit(), at).and_then(|()| self.file.sync_data());
        written.map_err(io_error("cannot write", &self.path))?;
        self.generation.store(new.generation, Ordering::Relaxed);
        Ok(new)
    }
}

fn in_no_group(name: &str, superblock: &Superblock) -> Result<(), Error> {
    match &superblock.membership {
        None => Ok(()),
        Some(of) => Err(Error::InGroup { name: name.to_owned(), group: of.group.clone() }),
    }
}

fn valid_size(size: u64) -> Result<(), Error> {
    if size == 0 || size > MAX_SIZE || !size.is_multiple_of(SIZE_UNIT) {
        return Err(Error::ImpossibleSize(format!(
            "a volume cannot have {size} bytes: use a multiple of {SIZE_UNIT} up to {MAX_SIZE}"
        )));
    }
    Ok(())
}

/// flock(2), exclusively and without waiting.
fn lock(file: &fs::File, path: &Path) -> Result<(), Error> {
    try_lock(file, path, FlockOperation::NonBlockingLockExclusive)
}

fn try_lock(file: &fs::File, path: &Path, how: FlockOperation) -> Result<(), Error> {
    loop {
        match rustix::fs::flock(file, how) {
            Ok(()) => return Ok(()),
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN) => return Err(Error::InUse(path.to_owned())),
            Err(e) => return Err(io_error("cannot lock", path)(e.into())),
        }
    }
}

fn sync_dir(dir: &Path) -> Result<(), Error> {
    fs::File::open(dir).and_then(|dir| dir.sync_all()).map_err(io_error("cannot write", dir))
}

/// A temporary file that is removed on drop.
struct Draft {
    file: fs::File,
    path: PathBuf,
}

fn tempfile_in(dir: &Path) -> Result<Draft, Error> {
    let path = dir.join(format!(".new-{}", std::process::id()));
    let mut options = OpenOptions::new();
    options.write(true).create(true).truncate(true).mode(0o600);
    let file = regular::open(&path, &options);
    Ok(Draft { file: file.map_err(io_error("cannot write", &path))?, path })
}

impl Drop for Draft {
    fn drop(&mut self) {
        if let Err(e) = fs::remove_file(&self.path) {
            tracing::warn!("{} was left behind: {e}", self.path.display());
        }
    }
}

/// A path that fits into a superblock.
fn valid_path(path: &Path) -> Result<PathBuf, Error> {
    let absolute = std::path::absolute(path).map_err(io_error("cannot find", path))?;
    if absolute.as_os_str().len() > MAX_PATH {
        return Err(Error::Path { path: absolute, why: "the path is too long" });
    }
    Ok(absolute)
}
