//! The storage of a volume's bytes: preparing it for a new volume, opening it for an existing one.
//!
//! open(2) O_EXCL and O_DIRECT, flock(2), posix_fallocate(3). Nothing is formatted: a file or device keeps its
//! contents. The parent module records volumes.

use std::fs::{self, OpenOptions};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use rustix::fs::{FallocateFlags, OFlags, SeekFrom};
use weft_ceph::{Client, ImageSpec};
use weft_machine::{File, Pool, deadline};

use super::identity::FileIdentity;
use super::plain::{Direct, Plain};
use super::rbd::{self, ImageRecord, Rbd};
use super::superblock::Superblock;
use super::{Create, Error, SIZE_UNIT, Storage, io_error, lock, valid_path, valid_size};
use crate::block::{Block, Medium};
use crate::health::Health;

/// Units of stat(2).
const STAT_BLOCK: u64 = 512;
/// How long the file system of a listed volume may take to answer.
const ANSWERED_WITHIN: Duration = Duration::from_secs(2);

/// The storage of a new volume.
pub(super) struct Prepared {
    pub medium: Medium,
    pub size: u64,
    /// Absolute; empty for ram and images.
    pub path: PathBuf,
    /// The image.
    pub image: Option<ImageRecord>,
    /// Whether the file was created.
    pub made: bool,
    /// The file's or image's identity.
    pub identity: Option<FileIdentity>,
}

/// The open storage of a volume.
#[derive(Clone, Debug)]
pub(super) enum Opened {
    Plain(Arc<Plain>),
    Rbd(Arc<Rbd>),
}

impl Opened {
    /// Its bytes.
    pub fn block(&self) -> Arc<dyn Block> {
        match self {
            Opened::Plain(plain) => plain.clone(),
            Opened::Rbd(rbd) => rbd.clone(),
        }
    }

    /// The file with its bytes, if there is one.
    pub fn content(&self) -> Option<File> {
        match self {
            Opened::Plain(plain) => Some(plain.content()),
            Opened::Rbd(_) => None,
        }
    }

    /// Whether every flush fails until it is opened again.
    pub fn has_lost(&self) -> bool {
        match self {
            Opened::Plain(plain) => plain.has_lost(),
            Opened::Rbd(rbd) => rbd.has_lost(),
        }
    }

    /// The problem of the disk or image, if any.
    pub fn trouble(&self) -> Option<String> {
        match self {
            Opened::Plain(plain) => plain.trouble(),
            Opened::Rbd(rbd) => rbd.trouble(),
        }
    }

    /// Its storage has this larger size.
    pub fn grown(&self, size: u64) {
        // An image tells its size by itself.
        if let Opened::Plain(plain) = self {
            plain.grown(size);
        }
    }
}

/// Creates or checks the storage of a new volume.
pub(super) fn prepare(create: &Create) -> Result<Prepared, Error> {
    match &create.storage {
        Storage::Ram => {
            let size =
                create.size.ok_or_else(|| Error::ImpossibleSize("a volume in memory needs a size".into()))?;
            valid_size(size)?;
            if create.direct {
                let why = "a volume in memory has no page cache to bypass";
                return Err(Error::Path { path: "ram".into(), why });
            }
            let path = PathBuf::new();
            Ok(Prepared { medium: Medium::Ram, size, path, image: None, made: false, identity: None })
        }
        Storage::Image(client, spec) => prepare_image(create, client, spec),
        Storage::File(path) => prepare_file(create, valid_path(path)?),
        Storage::Device(path) => {
            let path = valid_path(path)?;
            let (file, is_device) = open_path(&path, Medium::Device)?;
            if !is_device {
                return Err(Error::Path { path, why: "it is not a block device" });
            }
            let there = device_size(&file, &path)?;
            let size = create.size.unwrap_or(there - there % SIZE_UNIT);
            valid_size(size)?;
            holds(there, size, &path)?;
            Ok(Prepared { medium: Medium::Device, size, path, image: None, made: false, identity: None })
        }
    }
}

/// Uses an image as it is, or creates it if it is missing and a size is given.
fn prepare_image(create: &Create, client: &Client, spec: &ImageSpec) -> Result<Prepared, Error> {
    create.size.map_or(Ok(()), valid_size)?;
    let conf = std::path::absolute(&client.conf).map_err(io_error("cannot find", &client.conf))?;
    let client = Client { conf, id: client.id.clone() };
    let found = match (weft_ceph::look(&client, spec), create.size) {
        (Err(weft_ceph::Error::NoImage(_)), Some(size)) => weft_ceph::create(&client, spec, size)?,
        (found, _) => found?,
    };
    if let Some(size) = create.size
        && size != found.size
    {
        return Err(Error::Size(format!(
            "image {spec} has {} bytes, not {size}: omit the size to use it as it is",
            found.size
        )));
    }
    let size = rbd::whole_units(found.size);
    valid_size(size)?;
    Ok(Prepared {
        medium: Medium::Rbd,
        size,
        path: PathBuf::new(),
        image: Some(ImageRecord { spec: spec.clone(), client, holder: String::new() }),
        // Whoever gives up a volume keeps its image.
        made: false,
        identity: Some(rbd::identity(&found.identity)),
    })
}

fn prepare_file(create: &Create, path: PathBuf) -> Result<Prepared, Error> {
    if let Some(size) = create.size {
        valid_size(size)?;
    }
    let made = match (
        OpenOptions::new().read(true).write(true).create_new(true).mode(0o600).open(&path),
        create.size,
    ) {
        (Ok(file), Some(size)) => {
            drop(file);
            Some(size)
        }
        (Ok(_), None) => {
            remove(&path);
            return Err(Error::Size(format!("{} does not exist: a new file needs a size", path.display())));
        }
        (Err(e), _) if e.kind() == io::ErrorKind::AlreadyExists => None,
        (Err(e), _) => return Err(io_error("cannot create", &path)(e)),
    };
    let prepared = fill_file(create, &path, made);
    if made.is_some() && prepared.is_err() {
        remove(&path);
    }
    let (size, identity) = prepared?;
    Ok(Prepared { medium: Medium::File, size, path, image: None, made: made.is_some(), identity })
}

/// Sizes a new file, or checks the size of an existing one, and opens it as it will be used. Returns its size and
/// identity.
fn fill_file(
    create: &Create,
    path: &Path,
    new_size: Option<u64>,
) -> Result<(u64, Option<FileIdentity>), Error> {
    let (file, is_device) = open_path(path, Medium::File)?;
    if is_device {
        return Err(Error::Path { path: path.to_owned(), why: "it is a block device: use --device" });
    }
    if let Some(size) = new_size {
        file.set_len(size).map_err(io_error("cannot size", path))?;
    }
    let there = file.metadata().map_err(io_error("cannot look at", path))?.len();
    if new_size.is_none() && !there.is_multiple_of(SIZE_UNIT) {
        let fits = there.next_multiple_of(SIZE_UNIT);
        return Err(Error::Size(format!(
            "{} has {there} bytes, but a volume's size is a multiple of {SIZE_UNIT}: `truncate --size {fits}` appends the missing zeros",
            path.display()
        )));
    }
    if let Some(size) = create.size
        && size != there
    {
        return Err(Error::Size(format!(
            "{} has {there} bytes, not {size}: omit the size to use it as it is",
            path.display()
        )));
    }
    valid_size(there)?;
    if create.allocate {
        let reserved = rustix::fs::fallocate(&file, FallocateFlags::empty(), 0, there);
        reserved.map_err(|e| io_error("cannot reserve the space of", path)(e.into()))?;
    }
    if create.direct {
        open_direct(path)?;
    }
    if new_size.is_some() {
        file.sync_all().map_err(io_error("cannot write", path))?;
        if let Some(dir) = path.parent() {
            super::sync_dir(dir)?;
        }
    }
    let identity = FileIdentity::of(&file).map_err(|e| io_error("cannot look at", path)(e.into()))?;
    Ok((there, identity))
}

fn remove(path: &Path) {
    if let Err(e) = fs::remove_file(path) {
        tracing::warn!("{} was left behind: {e}", path.display());
    }
}

/// Opens the bytes of a volume, exclusively.
pub(super) fn open(superblock: &Superblock, pool: &Pool, health: Health) -> Result<Opened, Error> {
    match &superblock.image {
        Some(image) => Ok(Opened::Rbd(Arc::new(Rbd::open(image, superblock.size, pool)?))),
        None => open_plain(superblock, pool).map(|plain| Opened::Plain(Arc::new(plain.heard_by(health)))),
    }
}

fn open_plain(superblock: &Superblock, pool: &Pool) -> Result<Plain, Error> {
    let path = &superblock.path;
    if superblock.medium == Medium::Ram {
        let made = match superblock.taken {
            true => Plain::in_taken_memory(superblock.size),
            false => Plain::in_memory(superblock.size),
        };
        return made.map_err(io_error("no memory for", Path::new("a ram volume")));
    }
    let (file, is_device) = open_path(path, superblock.medium)?;
    let actual = match (superblock.medium, is_device) {
        (Medium::Device, true) => device_size(&file, path)?,
        (Medium::Device, false) => {
            return Err(Error::Path { path: path.clone(), why: "it is no longer a block device" });
        }
        (_, true) => return Err(Error::Path { path: path.clone(), why: "it is no longer a file" }),
        (_, false) => file.metadata().map_err(io_error("cannot look at", path))?.len(),
    };
    if actual < superblock.size {
        return Err(Error::Shrunk { path: path.clone(), expected: superblock.size, actual });
    }
    let direct = match superblock.direct {
        true => Some(Direct { file: open_direct(path)?, pool: pool.clone() }),
        false => None,
    };
    Ok(Plain::new(File::from(OwnedFd::from(file)), direct, superblock.medium, superblock.size))
}

/// Opens and locks; returns whether it is a block device.
fn open_path(path: &Path, medium: Medium) -> Result<(fs::File, bool), Error> {
    let mut options = OpenOptions::new();
    options.read(true).write(true);
    if medium == Medium::Device {
        // For a block device: fails if it is mounted or otherwise in use.
        options.custom_flags(OFlags::EXCL.bits() as i32);
    }
    let file = match options.open(path) {
        Err(e) if e.kind() == io::ErrorKind::ResourceBusy => return Err(Error::InUse(path.to_owned())),
        other => other.map_err(io_error("cannot open", path))?,
    };
    let kind = file.metadata().map_err(io_error("cannot look at", path))?.file_type();
    if !kind.is_file() && !kind.is_block_device() {
        return Err(Error::Path { path: path.to_owned(), why: "it is neither a file nor a block device" });
    }
    lock(&file, path)?;
    Ok((file, kind.is_block_device()))
}

fn open_direct(path: &Path) -> Result<File, Error> {
    let opened =
        OpenOptions::new().read(true).write(true).custom_flags(OFlags::DIRECT.bits() as i32).open(path);
    let file = opened.map_err(io_error("its file system has no direct transfers (O_DIRECT):", path))?;
    Ok(File::from(OwnedFd::from(file)))
}

fn device_size(device: impl AsFd, path: &Path) -> Result<u64, Error> {
    rustix::fs::seek(device, SeekFrom::End(0)).map_err(|e| io_error("cannot measure", path)(e.into()))
}

fn holds(there: u64, size: u64, path: &Path) -> Result<(), Error> {
    match there < size {
        true => Err(Error::Size(format!("{} has only {there} bytes, not {size}", path.display()))),
        false => Ok(()),
    }
}

/// Fails if a device is too short for this many bytes.
pub(super) fn device_holds(device: impl AsFd, size: u64, path: &Path) -> Result<(), Error> {
    holds(device_size(device, path)?, size, path)
}

/// Changes the size of the volume's file or image, if it has one. An image that is larger stays so, unless it may shrink.
pub(super) fn set_size(superblock: &Superblock, may_shrink: bool) -> Result<(), Error> {
    let path = &superblock.path;
    if let Some(ImageRecord { spec, client, holder }) = &superblock.image {
        let former = Some(&**holder).filter(|holder| !holder.is_empty());
        return Ok(weft_ceph::resize(client, spec, former, superblock.size, may_shrink)?);
    }
    match superblock.medium {
        Medium::Ram | Medium::Rbd => Ok(()),
        Medium::File => {
            let (file, _) = open_path(path, Medium::File)?;
            let sized = file.set_len(superblock.size).and_then(|()| file.sync_all());
            sized.map_err(io_error("cannot size", path))
        }
        Medium::Device => {
            let (device, _) = open_path(path, Medium::Device)?;
            device_holds(&device, superblock.size, path)
        }
    }
}

/// Fails if the volume's file is in use under another name.
pub(super) fn lock_file(superblock: &Superblock) -> Result<(), Error> {
    match open_path(&superblock.path, Medium::File) {
        Err(Error::Io { source, .. }) if source.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other.map(|_| ()),
    }
}

/// The bytes allocated for each of these volumes' files, as far as their file systems answer. All are asked at the same time.
pub(super) fn allocated(superblocks: &[&Superblock]) -> Vec<Option<u64>> {
    let is_file = |superblock: &&&Superblock| superblock.medium == Medium::File;
    let paths: Vec<PathBuf> =
        superblocks.iter().filter(is_file).map(|superblock| superblock.path.clone()).collect();
    let blocks =
        |path: &Path| fs::metadata(path).map_or(Vec::new(), |found| found.blocks().to_le_bytes().to_vec());
    let mut answers = deadline::answers(&paths, ANSWERED_WITHIN, blocks).into_iter();
    let bytes = |superblock: &&Superblock| {
        let answer = is_file(&superblock).then(|| answers.next()).flatten()?.ok()?;
        Some(u64::from_le_bytes(answer.try_into().ok()?) * STAT_BLOCK)
    };
    superblocks.iter().map(bytes).collect()
}
