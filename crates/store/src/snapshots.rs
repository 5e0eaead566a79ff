//! Earlier states of a share that its host keeps as folders: snapshots of ZFS or btrfs, or copies made by any other
//! tool.
//!
//! [`Snapshots`] finds them by a pattern of their names (strftime(3), in UTC), and caches the file systems of
//! recently opened snapshots. It never creates or removes any.
//!
//! One component of the pattern contains the time: `.zfs/snapshot/daily-%Y-%m-%d`. A relative pattern starts in the
//! share's folder, where clients may create names, so no symbolic link in it is followed.

use std::fmt;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use rustix::fs::{Mode, OFlags, ResolveFlags};
use time::format_description::{self, OwnedFormatItem};
use time::parsing::Parsed;
use time::{OffsetDateTime, PrimitiveDateTime};
use weft_machine::file::system::FileSystem;
use weft_machine::rt;

use crate::backend::Dir;
use crate::vfs::Vfs;

/// Maximum number of listed snapshots of a share; of more, the latest are shown.
const MAX_LISTED: usize = 4096;
/// Maximum number of cached file systems.
const MAX_HELD: usize = 16;

/// Why text is not a pattern.
#[derive(Debug, thiserror::Error)]
pub enum BadPattern {
    /// No component, or several ones, contain the time.
    #[error(
        "exactly one component of the path must contain the time, as in .zfs/snapshot/daily-%Y-%m-%d_%H.%M"
    )]
    NoTime,
    /// Not a valid format.
    #[error("{0}: use %Y %m %d %H %M %S")]
    Format(String),
    /// Day, month or year is missing.
    #[error("the time needs a year, a month and a day: %Y %m %d, %F")]
    NoDate,
    /// `..`.
    #[error("a pattern must not contain ..")]
    Parent,
}

/// The location of a share's snapshots.
pub struct Snapshots {
    pattern: Pattern,
    held: Mutex<Vec<(i64, Vfs)>>,
}

struct Pattern {
    /// The folder with the snapshots, and whether links on the way to it are followed.
    base: PathBuf,
    inside: Option<PathBuf>,
    name: OwnedFormatItem,
    /// The path after the name with the time.
    below: PathBuf,
    said: String,
}

impl fmt::Debug for Snapshots {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Snapshots({})", self.pattern.said)
    }
}

impl Snapshots {
    /// The snapshots of `folder` that match `pattern`. Does not access the file system yet.
    pub fn new(folder: &Path, pattern: &str) -> Result<Snapshots, BadPattern> {
        let parts: Vec<&str> = pattern.split('/').filter(|part| !part.is_empty() && *part != ".").collect();
        if parts.contains(&"..") {
            return Err(BadPattern::Parent);
        }
        let timed: Vec<usize> = (0..parts.len()).filter(|&at| parts[at].contains('%')).collect();
        let [at] = timed[..] else { return Err(BadPattern::NoTime) };
        let name = format_description::parse_strftime_owned(parts[at])
            .map_err(|e| BadPattern::Format(e.to_string()))?;
        // A formatted time must be readable again.
        let sample =
            OffsetDateTime::UNIX_EPOCH.format(&name).map_err(|e| BadPattern::Format(e.to_string()))?;
        if read(&name, &sample).is_none() {
            return Err(BadPattern::NoDate);
        }
        let before: PathBuf = parts[..at].iter().collect();
        let (base, inside) = match pattern.starts_with('/') {
            true => (Path::new("/").join(before), None),
            false => (folder.to_owned(), Some(before)),
        };
        let below = parts[at + 1..].iter().collect();
        let pattern = Pattern { base, inside, name, below, said: pattern.to_owned() };
        Ok(Snapshots { pattern, held: Mutex::default() })
    }

    /// The folder with the snapshots, if the pattern says where it is: it need not be below the share's.
    pub fn elsewhere(&self) -> Option<&Path> {
        let is_absolute = self.pattern.inside.is_none();
        is_absolute.then_some(&*self.pattern.base)
    }

    /// When snapshots were taken, in Unix seconds, latest first. Empty if their folder does not exist.
    pub async fn list(self: &Arc<Self>) -> io::Result<Vec<i64>> {
        let this = self.clone();
        self.on_worker(move || this.pattern.list()).await
    }

    /// Makes calls on a worker, in the places of the file system if it may hang.
    async fn on_worker<T: Send + 'static>(
        &self,
        calls: impl FnOnce() -> io::Result<T> + Send + 'static,
    ) -> io::Result<T> {
        let system = FileSystem::at(&self.pattern.base);
        match system.may_hang() {
            true => system.data(calls).await?,
            false => rt::blocking(calls).await,
        }
    }

    /// The state at a time from [`Snapshots::list`]; it is read-only.
    pub async fn at(self: &Arc<Self>, time: i64) -> io::Result<Option<Vfs>> {
        if let Some((_, vfs)) = self.held().iter().find(|(at, _)| *at == time) {
            return Ok(Some(vfs.clone()));
        }
        let this = self.clone();
        let opened = self.on_worker(move || this.pattern.open(time)).await?;
        let Some(dir) = opened else { return Ok(None) };
        let mut held = self.held();
        // Another request may have been faster: one snapshot must have one table of opens.
        if let Some((_, vfs)) = held.iter().find(|(at, _)| *at == time) {
            return Ok(Some(vfs.clone()));
        }
        if held.len() == MAX_HELD {
            held.remove(0);
        }
        let vfs = Vfs::new(dir).read_only();
        held.push((time, vfs.clone()));
        Ok(Some(vfs))
    }

    fn held(&self) -> std::sync::MutexGuard<'_, Vec<(i64, Vfs)>> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The time in a name; missing parts of the time of day are zero.
fn read(format: &OwnedFormatItem, name: &str) -> Option<i64> {
    let mut parsed = Parsed::new();
    let rest = parsed.parse_item(name.as_bytes(), format).ok()?;
    if !rest.is_empty() {
        return None;
    }
    if parsed.hour_24().is_none() && parsed.hour_12().is_none() {
        parsed.set_hour_24(0)?;
    }
    if parsed.minute().is_none() {
        parsed.set_minute(0)?;
    }
    let at: PrimitiveDateTime = parsed.try_into().ok()?;
    Some(at.assume_utc().unix_timestamp())
}

impl Pattern {
    /// The folder with the snapshots.
    fn base(&self) -> io::Result<Option<OwnedFd>> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let base = match rustix::fs::open(&self.base, flags, Mode::empty()) {
            Err(rustix::io::Errno::NOENT) => return Ok(None),
            other => other?,
        };
        match &self.inside {
            None => Ok(Some(base)),
            Some(inside) => beneath(&base, inside),
        }
    }

    /// The folders whose names contain a time, with that time.
    fn entries(
        &self,
        base: &OwnedFd,
    ) -> io::Result<impl Iterator<Item = io::Result<(i64, std::fs::DirEntry)>> + '_> {
        let dated = |entry: std::fs::DirEntry| {
            let time = read(&self.name, entry.file_name().to_str()?)?;
            match entry.file_type() {
                Ok(kind) => kind.is_dir().then_some(Ok((time, entry))),
                Err(e) => Some(Err(e)),
            }
        };
        let entries = std::fs::read_dir(path_of(base))?;
        Ok(entries.filter_map(move |entry| entry.map_or_else(|e| Some(Err(e)), dated)))
    }

    fn list(&self) -> io::Result<Vec<i64>> {
        let Some(base) = self.base()? else { return Ok(Vec::new()) };
        let mut times =
            self.entries(&base)?.map(|entry| entry.map(|(time, _)| time)).collect::<io::Result<Vec<_>>>()?;
        times.sort_unstable_by(|a, b| b.cmp(a));
        times.dedup();
        times.truncate(MAX_LISTED);
        Ok(times)
    }

    fn open(&self, time: i64) -> io::Result<Option<Dir>> {
        let Some(base) = self.base()? else { return Ok(None) };
        for entry in self.entries(&base)? {
            let (at, entry) = entry?;
            if at == time
                && let Some(found) = beneath(&base, &Path::new(&entry.file_name()).join(&self.below))?
            {
                return Dir::open(path_of(&found)).map(Some);
            }
        }
        Ok(None)
    }
}

/// A folder below another, without following symbolic links; `None` if it does not exist.
fn beneath(base: &OwnedFd, path: &Path) -> io::Result<Option<OwnedFd>> {
    let path = if path.as_os_str().is_empty() { Path::new(".") } else { path };
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let how = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    match rustix::fs::openat2(base, path, flags, Mode::empty(), how) {
        Ok(found) => Ok(Some(found)),
        Err(rustix::io::Errno::NOENT | rustix::io::Errno::NOTDIR | rustix::io::Errno::LOOP) => Ok(None),
        Err(e) => Err(e.into()),
    }
}

/// A path to an open file.
fn path_of(fd: &OwnedFd) -> PathBuf {
    PathBuf::from(format!("/proc/self/fd/{}", fd.as_raw_fd()))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::vfs::{Error, NodeId, SetAttr};

    fn run<F: std::future::Future>(future: F) -> F::Output {
        rt::block_on(future).expect("a runtime")
    }

    #[test]
    fn patterns() {
        let told = |pattern: &str| Snapshots::new(Path::new("/srv"), pattern).map(drop);
        for pattern in
            [".zfs/snapshot/auto-%Y-%m-%d_%H.%M", "%F", "/snap/%Y%m%d%H%M%S/data", "./x/%Y.%m.%d-%H"]
        {
            assert!(told(pattern).is_ok(), "{pattern}: {:?}", told(pattern));
        }
        assert!(matches!(told("snapshots"), Err(BadPattern::NoTime)));
        assert!(matches!(told("%Y/%m-%d"), Err(BadPattern::NoTime)));
        assert!(matches!(told("../%Y-%m-%d"), Err(BadPattern::Parent)));
        assert!(matches!(told("at-%H.%M"), Err(BadPattern::NoDate)));
        assert!(matches!(told("%!"), Err(BadPattern::Format(_))));
    }

    #[test]
    fn folders_named_by_the_pattern_are_states_that_stay_as_they_are() {
        let folder = tempfile::tempdir().expect("a folder");
        let root = folder.path();
        for (name, what) in [("at-2026-01-02", "old"), ("at-2026-03-04", "newer")] {
            fs::create_dir_all(root.join(".snap").join(name).join("data")).expect("a snapshot");
            fs::write(root.join(".snap").join(name).join("data/file"), what).expect("its file");
        }
        fs::create_dir(root.join(".snap/at-never")).expect("another folder");
        std::os::unix::fs::symlink("/", root.join(".snap/at-2020-01-01")).expect("a trap");
        let snapshots = Arc::new(Snapshots::new(root, ".snap/at-%Y-%m-%d/data").expect("a pattern"));
        run(async {
            let (old, newer, trap) = (1_767_312_000, 1_772_582_400, 1_577_836_800);
            assert_eq!(snapshots.list().await.expect("a list"), [newer, old]);
            assert!(snapshots.at(trap).await.expect("no error").is_none(), "a link leads nowhere");
            assert!(snapshots.at(5).await.expect("no error").is_none());
            let vfs = snapshots.at(old).await.expect("no error").expect("it is there");
            assert!(vfs.is_read_only());
            let attr = vfs.lookup(NodeId::ROOT, b"file", false).await.expect("its file");
            assert_eq!(attr.size, 3);
            let gone = vfs.remove(NodeId::ROOT, b"file").await;
            assert!(matches!(gone, Err(Error::ReadOnly)), "{gone:?}");
            let cut = vfs.setattr(attr.node, SetAttr { size: Some(0), ..SetAttr::default() }).await;
            assert!(matches!(cut, Err(Error::ReadOnly)), "{cut:?}");
            let again = snapshots.at(old).await.expect("no error").expect("it is there");
            assert!(Arc::ptr_eq(again.opens(), vfs.opens()), "one table of opens");
        });
        let missing = Arc::new(Snapshots::new(root, ".zfs/snapshot/%F").expect("a pattern"));
        assert!(run(missing.list()).expect("none is no error").is_empty());
    }
}
