//! `weft sync` and `weft cp -r`: copies a folder with its contents to or from a server.
//!
//! A file counts as unchanged if its size is the same and its time differs by at most two seconds; copies get the
//! time of their source. Several files are copied at a time, each by [`crate::transfer`]; a file that fails does not
//! stop the others. SMB does not distinguish `a` from `A`: names that differ only in case are one name there, and are
//! neither copied twice nor deleted. Symbolic links are reported and left out, and permissions are not copied.

mod failed;
mod here;
mod planned;

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::io;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Instant;

use futures_util::{StreamExt, stream};
use rustix::fs::{FileType, Stat};
use serde_json::json;
use weft_machine::{Pool, rt};

use crate::Failure;
use crate::args::Sync;
use crate::connect::{Remote, password_for};
use crate::direction::{Direction, name_of};
use crate::fault::Fault;
use crate::local::{Folder, Source, Target, remove_unfinished};
use crate::misuse::Misuse;
use crate::out::{STANDARD, name};
use crate::partial::is_partial;
use crate::signals::{stop_on_signals, until_stopped};
use crate::sync::failed::{Failed, Failures, Places};
use crate::sync::here::Here;
use crate::transfer::{CLIENT_BUFFERS, Plan, fetch, join, store};
use crate::url::{Scheme, Url};
use crate::when::When;

/// Maximum depth of nested folders.
const MAX_DEPTH: usize = 256;
/// Maximum number of names on each side.
const MAX_NAMES: usize = 4 << 20;
/// Memory limit for the names of a side with their full paths, so that a server cannot exhaust memory with long
/// nested names.
const MAX_NAMES_BYTES: usize = 1 << 30;
/// Memory of a name besides its path: its slot in the list, which is two thirds full, and the overhead of an
/// allocation.
const BESIDE_PATH_BYTES: usize = size_of::<(String, Item)>() * 3 / 2 + 16;
/// Deletions outstanding at a time: enough to hide the round trip, and few for the server's disk.
const DELETIONS: usize = 16;

/// Which files are copied.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Which {
    /// Those that differ in size or time.
    Changed,
    /// All.
    All,
}

/// How the destination is to be understood.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Into {
    /// The named folder gets the contents.
    ThatFolder,
    /// If it exists, a folder in it with the source's name gets the contents.
    FolderOfThatName,
}

/// Runs `weft sync`.
pub(crate) fn run(args: Sync) -> Result<ExitCode, Failure> {
    if [&*args.from, &*args.to].contains(&STANDARD) {
        return Err(
            Misuse::new("sync copies folders, and - is not a folder: name a folder, or use weft cp").into()
        );
    }
    run_as(args, Which::Changed, Into::ThatFolder)
}

/// The same, also for `weft cp -r`.
pub(crate) fn run_as(args: Sync, which: Which, into: Into) -> Result<ExitCode, Failure> {
    let direction = Direction::of(&args.from, &args.to)?;
    let password = password_for(direction.url(), &args.transfer.connect)?;
    let stopped = stop_on_signals()?;
    rt::block_on(until_stopped(&stopped, sync(&args, direction, &password, (which, into), stopped.clone())))?
}

/// An entry below a folder, by its path from there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Item {
    folder: bool,
    size: u64,
    modified: When,
}

impl Item {
    /// `None` for anything but files and folders.
    fn of_local(found: &Stat) -> Option<Item> {
        let kind = FileType::from_raw_mode(found.st_mode);
        if !matches!(kind, FileType::Directory | FileType::RegularFile) {
            return None;
        }
        let modified = When { secs: found.st_mtime, nanos: found.st_mtime_nsec as u32 };
        Some(Item { folder: kind == FileType::Directory, size: found.st_size as u64, modified })
    }
}

type Items = BTreeMap<String, Item>;

/// Both ends, in either direction.
struct Ends {
    remote: Remote,
    places: Places,
    here: Here,
}

/// The work to do, in this order. Paths refer to the lists, which hold most of the memory.
#[derive(Debug, Default, PartialEq, Eq)]
struct Work<'a> {
    /// Folders to make, parents first.
    folders: Vec<&'a str>,
    /// Files to copy, with their sizes.
    files: Vec<(&'a str, u64)>,
    /// Those of the files whose names have a different case at the destination.
    respelled: BTreeSet<&'a str>,
    /// Entries that only the destination has; contents come before their folder.
    extra: Vec<(&'a str, bool)>,
    /// Partial files of interrupted copies at the destination, which are deleted first.
    unfinished: Vec<&'a str>,
    /// Number of unchanged files.
    unchanged: usize,
    /// Entries that the destination cannot hold, and why.
    clashes: Vec<(&'a str, &'static str)>,
}

/// Which names the destination treats as the same.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Names {
    /// Only identical names.
    Exact,
    /// Also names that differ only in case.
    AnyCase,
}

impl Names {
    /// The form that all spellings of a name share.
    fn fold(self, path: &str) -> Cow<'_, str> {
        match self {
            Names::Exact => path.into(),
            // Like servers: upper case, where it is a single character.
            Names::AnyCase => {
                let upper = |c: char| {
                    let mut upper = c.to_uppercase();
                    if upper.len() == 1 { upper.next().unwrap_or(c) } else { c }
                };
                path.chars().map(upper).collect()
            }
        }
    }
}

impl<'a> Work<'a> {
    /// `left_out` lists entries of the source that are not copied. With `delete` the destination keeps entries of
    /// these names: when a symbolic link has replaced a folder, the folder's copy must not be deleted.
    fn between(
        source: &'a Items,
        left_out: &[String],
        target: &'a Items,
        names: Names,
        which: Which,
        delete: bool,
    ) -> Work<'a> {
        let mut work = Work::default();
        let there: HashMap<_, _> =
            target.iter().map(|(path, item)| (names.fold(path), (path, item))).collect();
        let mut seen = BTreeSet::new();
        // Folders that the destination cannot hold, and so their contents neither.
        let mut placeless = BTreeSet::new();
        for (path, item) in source {
            let folded = names.fold(path);
            let found = there.get(&folded);
            let inside = is_within(&folded, &placeless);
            if !seen.insert(folded.clone()) {
                work.clashes.push((
                    path,
                    "another name differs only in case, and the server treats both as one name",
                ));
                continue;
            }
            match found {
                _ if inside => {}
                Some((_, there)) if there.folder != item.folder => {
                    work.clashes.push((path, "a file at one end, a folder at the other"));
                    placeless.insert(folded);
                }
                None if item.folder => work.folders.push(path),
                Some(_) if item.folder => {}
                Some((spelled, there))
                    if which == Which::Changed
                        && there.size == item.size
                        && there.modified.is_about(item.modified)
                        && last(spelled) == last(path) =>
                {
                    work.unchanged += 1;
                }
                found => {
                    if found.is_some_and(|(spelled, _)| last(spelled) != last(path)) {
                        work.respelled.insert(path);
                    }
                    work.files.push((path, item.size));
                }
            }
        }
        if delete {
            let left_out: BTreeSet<_> = left_out.iter().map(|path| names.fold(path)).collect();
            let extra = target.iter().filter(|(path, _)| {
                let path = names.fold(path);
                !seen.contains(&path) && !is_within(&path, &left_out)
            });
            // In reverse order, a folder's contents come before the folder.
            work.extra = extra.map(|(path, item)| (path.as_str(), item.folder)).rev().collect();
        }
        work
    }

    /// Links, devices and FIFOs at the destination are not deleted, so the folders that hold them stay. Returns those
    /// that the source does not have.
    fn spare(
        &mut self,
        special: &'a [String],
        source: &Items,
        left_out: &[String],
        names: Names,
    ) -> Vec<&'a str> {
        let holders: BTreeSet<&str> =
            special.iter().flat_map(|path| path.match_indices('/').map(|(at, _)| &path[..at])).collect();
        self.extra.retain(|(path, folder)| !(*folder && holders.contains(path)));
        let of_source: BTreeSet<_> = source.keys().map(|path| names.fold(path)).collect();
        let spared = beyond(special, left_out, names).into_iter();
        spared.filter(|path| !of_source.contains(&names.fold(path))).collect()
    }

    /// Excludes local links, devices and FIFOs, and paths through them: otherwise a server that lists a folder where
    /// a symbolic link leads out of the destination could choose what is written there.
    fn keep_off(&mut self, occupied: &[String]) {
        let occupied: BTreeSet<Cow<'_, str>> = occupied.iter().map(Cow::from).collect();
        let Work { folders, files, clashes, .. } = self;
        let mut keep = |path: &'a str| {
            let free = !is_within(path, &occupied);
            if !free {
                clashes.push((path, "a symbolic link, device or FIFO is in the way"));
            }
            free
        };
        folders.retain(|path| keep(path));
        files.retain(|(path, _)| keep(path));
    }

    fn bytes(&self) -> u64 {
        self.files.iter().fold(0, |sum, (_, size)| sum.saturating_add(*size))
    }
}

/// Those of `paths` that are neither left out nor inside an entry that is.
fn beyond<'a>(paths: &'a [String], left_out: &[String], names: Names) -> Vec<&'a str> {
    let left_out: BTreeSet<_> = left_out.iter().map(|path| names.fold(path)).collect();
    paths.iter().filter(|path| !is_within(&names.fold(path), &left_out)).map(String::as_str).collect()
}

/// Whether the path or a folder above it is one of these.
fn is_within(path: &str, names: &BTreeSet<Cow<'_, str>>) -> bool {
    let above = path.match_indices('/').map(|(at, _)| &path[..at]);
    above.chain([path]).any(|part| names.contains(part))
}

/// The last component of a path.
fn last(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or(path)
}

async fn sync(
    args: &Sync,
    direction: Direction,
    password: &str,
    (which, into): (Which, Into),
    stopped: Arc<AtomicBool>,
) -> Result<ExitCode, Failure> {
    let (options, pool) = (&args.transfer, Pool::new(CLIENT_BUFFERS));
    let remote = Remote::connect_as(direction.url(), &options.connect, &pool, password, None).await?;
    remote.outlast(options.patience(), stopped.clone());
    if !options.quiet {
        note!("{}", remote.describe());
    }
    let ends = Ends::find(remote, &direction, into).await?;
    let (mut here, mut there) = (Listing::default(), Listing::default());
    if let Some(root) = ends.here.open().map_err(|e| ends.places.at_host("", e))? {
        here.read_local(&root, &ends.places)?;
    }
    match ends.remote.stat(&ends.places.there).await.map_err(|e| ends.places.at_server("", e))? {
        Some(stat) if stat.folder => there.read_remote(&ends).await?,
        Some(_) => return Err(ends.places.at_server("", "is not a folder").into()),
        None if ends.places.up => {}
        None => return Err(ends.places.at_server("", "no such folder").into()),
    }
    let (source, target) = if ends.places.up { (here, there) } else { (there, here) };
    let names =
        if ends.places.up && direction.url().scheme == Scheme::Smb { Names::AnyCase } else { Names::Exact };
    let left_out: Vec<String> = source.skipped.iter().chain(&source.unfinished).cloned().collect();
    let mut work = Work::between(&source.items, &left_out, &target.items, names, which, args.delete);
    if args.delete {
        work.unfinished = beyond(&target.unfinished, &left_out, names);
        let spared = work.spare(&target.skipped, &source.items, &left_out, names);
        for path in spared.iter().filter(|_| !options.quiet) {
            note!("not deleted at the destination, neither a file nor a folder: {}", name(path));
        }
    }
    if !ends.places.up {
        work.keep_off(&target.skipped);
    }
    if !options.quiet {
        for path in &source.skipped {
            note!("left out, neither a file nor a folder: {}", name(path));
        }
        for path in &source.unfinished {
            note!("left out, an unfinished copy according to its name: {}", name(path));
        }
        for path in target.unfinished.iter().filter(|_| !args.delete && !options.resume) {
            note!(
                "left at the destination, an unfinished copy according to its name (--delete removes it): {}",
                name(path)
            );
        }
    }
    // Unreadable entries at the destination matter only when entries are to be deleted.
    let mut failed = source.unread;
    if args.delete {
        failed.append(target.unread)?;
    }
    for (path, reason) in &work.clashes {
        failed.push(ends.places.at_destination(path, reason))?;
    }
    if args.dry_run {
        match options.json {
            true => say!("{}", planned::to_json(&failed, &work, &left_out, ends.remote.transport()))?,
            false => planned::print(&failed, &work)?,
        }
        ends.remote.close().await;
        let all = failed.is_empty();
        return Ok(if all { ExitCode::SUCCESS } else { ExitCode::FAILURE });
    }
    let started = Instant::now();
    let mut plan = Plan::new(options, stopped);
    plan.keep_times = true;
    plan.begin_many(work.bytes());
    let done = ends.carry_out(&work, failed, &plan, args.files.max(1) as usize).await?;
    plan.finish();
    report(args, &work, &done, &left_out, started, ends.remote.transport())?;
    ends.remote.close().await;
    Ok(if done.failed.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// The result.
#[derive(Default)]
struct Done {
    copied: usize,
    bytes: u64,
    deleted: usize,
    failed: Failures,
}

impl Ends {
    async fn find(remote: Remote, direction: &Direction, into: Into) -> Result<Ends, Failure> {
        let inside = into == Into::FolderOfThatName;
        let url = direction.url().clone();
        match direction {
            Direction::Up(from, to) => {
                let local = Here::source(from)?;
                let exists = to.path.is_empty() || {
                    let found = remote.is_folder(&to.path).await;
                    found.map_err(|e| format!("destination {to}: {e}"))?
                };
                let there = match inside && exists {
                    true => join(&to.path, name_of(&from.canonicalize()?)?),
                    false => to.path.clone(),
                };
                let places = Places { url, there, here: from.clone(), up: true };
                Ok(Ends { remote, places, here: local })
            }
            Direction::Down(from, to) => {
                let inside = inside.then(|| own_name(from));
                let local = Here::destination(to, inside)?;
                let places = Places { url, there: from.path.clone(), here: local.shown(), up: false };
                Ok(Ends { remote, places, here: local })
            }
        }
    }

    /// Carries out the work. `failed`: failures so far.
    async fn carry_out(
        &self,
        work: &Work<'_>,
        failed: Failures,
        plan: &Plan,
        files: usize,
    ) -> Result<Done, Failure> {
        let mut done = Done { failed, ..Done::default() };
        self.make_root().await?;
        for path in &work.folders {
            if let Err(e) = self.make_folder(path).await {
                done.failed.push(self.places.at_destination(path, e))?;
            }
        }
        let mut copies = stream::iter(&work.files)
            .take_while(|_| std::future::ready(!plan.is_stopped()))
            .map(|(path, _)| async move {
                let copied = self.copy(path, plan).await;
                if copied.is_ok()
                    && work.respelled.contains(path)
                    && let Err(e) = self.remote.respell(&join(&self.places.there, path)).await
                {
                    return (path, Err(Fault::There(e)));
                }
                (path, copied)
            })
            .buffer_unordered(files);
        while let Some((path, outcome)) = copies.next().await {
            match outcome {
                Ok(bytes) => {
                    done.copied += 1;
                    done.bytes += bytes;
                }
                Err(fault) => done.failed.push(self.places.at_fault(path, fault))?,
            }
        }
        if plan.is_stopped() {
            return Err("interrupted; repeat the command to continue".into());
        }
        // Deletes extra entries only after everything in the source has been copied.
        if !done.failed.is_empty() {
            return Ok(done);
        }
        for path in &work.unfinished {
            match self.remove_unfinished(path).await {
                Ok(true) => done.deleted += 1,
                Ok(false) => {}
                Err(e) => done.failed.push(self.places.at_destination(path, e))?,
            }
        }
        plan.begin_count("deleting", work.extra.len() as u64);
        for step in deletions(&work.extra) {
            let mut deletions = stream::iter(step)
                .take_while(|_| std::future::ready(!plan.is_stopped()))
                .map(|(path, folder)| async move { (path, self.delete(path, *folder).await) })
                .buffer_unordered(DELETIONS);
            while let Some((path, outcome)) = deletions.next().await {
                plan.count_one();
                match outcome {
                    Ok(()) => done.deleted += 1,
                    Err(e) => done.failed.push(self.places.at_destination(path, e))?,
                }
            }
            if plan.is_stopped() {
                return Err("interrupted; repeat the command to continue".into());
            }
        }
        Ok(done)
    }

    async fn make_root(&self) -> Result<(), Failure> {
        if !self.places.up {
            return Ok(self.here.make().map_err(|e| self.places.at_host("", e))?);
        }
        // Each folder on the way there.
        for (at, _) in self.places.there.match_indices('/') {
            let above = &self.places.there[..at];
            let made = self.remote.mkdir(above).await;
            made.map_err(|e| self.places.above(above, e))?;
        }
        if self.places.there.is_empty() {
            return Ok(());
        }
        Ok(self.remote.mkdir(&self.places.there).await.map_err(|e| self.places.at_server("", e))?)
    }

    async fn make_folder(&self, path: &str) -> Result<(), Failure> {
        match self.places.up {
            true => self.remote.mkdir(&join(&self.places.there, path)).await,
            false => {
                let (folder, name) = self.here.root()?.holder(path)?;
                Ok(folder.make(name)?)
            }
        }
    }

    async fn copy(&self, path: &str, plan: &Plan) -> Result<u64, Fault> {
        let there = join(&self.places.there, path);
        let root = self.here.root().map_err(|e| Fault::here(&self.places.here, &e))?;
        match self.places.up {
            true => store(&self.remote, Source::below(&root, path)?, &there, plan).await,
            false => {
                let target = Target::below(&root, path).map_err(Fault::Here)?;
                fetch(&self.remote, &there, target, plan).await
            }
        }
    }

    async fn remove_unfinished(&self, path: &str) -> Result<bool, Failure> {
        if self.places.up {
            return self.remote.remove_unfinished(&join(&self.places.there, path)).await;
        }
        let root = self.here.root()?;
        let (folder, name) = root.holder(path)?;
        Ok(remove_unfinished(&folder, name)?)
    }

    async fn delete(&self, path: &str, folder: bool) -> Result<(), Failure> {
        let there = join(&self.places.there, path);
        match (self.places.up, folder) {
            (true, true) => self.remote.rmdir(&there).await,
            (true, false) => self.remote.remove(&there).await,
            (false, folder) => {
                let (root, path) = (self.here.root()?, path.to_owned());
                let delete = move || {
                    let (above, name) = root.holder(&path)?;
                    above.remove(name, folder)
                };
                // The connection is kept alive meanwhile.
                Ok(rt::blocking(delete).await?)
            }
        }
    }
}

/// Sets of entries that may be deleted in parallel, in this order: the files, then the folders from the deepest up.
fn deletions<'e, 'a>(extra: &'e [(&'a str, bool)]) -> Vec<Vec<&'e (&'a str, bool)>> {
    let mut folders: BTreeMap<usize, Vec<_>> = BTreeMap::new();
    for item in extra.iter().filter(|(_, folder)| *folder) {
        folders.entry(item.0.matches('/').count()).or_default().push(item);
    }
    let files = extra.iter().filter(|(_, folder)| !folder).collect();
    std::iter::once(files).chain(folders.into_values().rev()).collect()
}

/// The name of a URL's last component, or of its share if the URL names the whole share.
fn own_name(url: &Url) -> &str {
    match url.file_name() {
        "" => &url.share,
        name => name,
    }
}

/// The contents of a folder.
#[derive(Default)]
struct Listing {
    items: Items,
    /// Entries that are neither files nor folders.
    skipped: Vec<String>,
    /// Partial files of interrupted copies, recognized by name.
    unfinished: Vec<String>,
    /// Entries that could not be read.
    unread: Failures,
    /// Number of names listed.
    names: usize,
    /// Their memory.
    bytes: usize,
}

impl Listing {
    /// Counts a name against the limits; a folder's name is stored twice, because it is still to be listed.
    fn count(&mut self, path: &str, folder: bool) -> Result<(), &'static str> {
        let paths = if folder { 2 } else { 1 };
        self.names += 1;
        self.bytes += paths * path.len() + BESIDE_PATH_BYTES;
        if self.names > MAX_NAMES {
            return Err("more than 4 million files: copy parts of the folder");
        }
        if self.bytes > MAX_NAMES_BYTES {
            return Err("its names take more than 1 GiB of memory: copy parts of the folder");
        }
        Ok(())
    }

    fn read_local(&mut self, root: &Folder, places: &Places) -> Result<(), Failure> {
        let whole = |e| places.at_host("", e);
        let mut folders = vec![(String::new(), 0)];
        while let Some((folder, depth)) = folders.pop() {
            let listed = root.within(&folder).and_then(|open| Ok((open.list()?, open)));
            let (names, open) = match listed {
                Err(e) if depth > 0 => {
                    self.unread.push(places.at_host(&folder, e))?;
                    continue;
                }
                listed => listed.map_err(|e| places.at_host(&folder, e))?,
            };
            for name in names {
                let Some(name) = name.to_str() else {
                    let shown = join(&folder, &name.to_string_lossy());
                    let failed = places.at_host(&shown, "the name is not UTF-8; rename it (mv)");
                    self.unread.push(failed)?;
                    continue;
                };
                let path = join(&folder, name);
                let item = match open.stat(name) {
                    // Removed since it was listed.
                    Err(e) if e.kind() == io::ErrorKind::NotFound => continue,
                    Err(e) => {
                        self.unread.push(places.at_host(&path, e))?;
                        continue;
                    }
                    Ok(found) => Item::of_local(&found),
                };
                self.count(&path, item.is_some_and(|item| item.folder)).map_err(whole)?;
                let Some(item) = item else {
                    self.skipped.push(path);
                    continue;
                };
                if item.folder {
                    let deeper = descend(depth).map_err(|e| places.at_host(&path, e))?;
                    folders.push((path.clone(), deeper));
                } else if is_partial(name) {
                    self.unfinished.push(path);
                    continue;
                }
                self.items.insert(path, item);
            }
        }
        Ok(())
    }

    async fn read_remote(&mut self, ends: &Ends) -> Result<(), Failure> {
        let whole = |e| ends.places.at_server("", e);
        let mut folders = vec![(String::new(), 0)];
        while let Some((folder, depth)) = folders.pop() {
            let path = join(&ends.places.there, &folder);
            let path = path.trim_end_matches('/');
            let entries = match ends.remote.list(path).await {
                Err(e) if depth > 0 => {
                    self.unread.push(ends.places.at_server(&folder, e))?;
                    continue;
                }
                listed => listed.map_err(|e| ends.places.at_server(&folder, e))?,
            };
            for entry in entries {
                // A server must not choose where we write.
                if entry.name.contains(['/', '\0']) || matches!(&*entry.name, "" | "." | "..") {
                    let why = format!("has a file named {:?}, which no local file can be called", entry.name);
                    self.unread.push(ends.places.at_server(&folder, why))?;
                    continue;
                }
                let path = join(&folder, &entry.name);
                if entry.garbled {
                    let why = "the name is not UTF-8; rename it on the server (mv)";
                    self.unread.push(ends.places.at_server(&path, why))?;
                    continue;
                }
                self.count(&path, entry.folder).map_err(whole)?;
                if entry.special {
                    self.skipped.push(path);
                    continue;
                }
                if is_partial(&entry.name) && !entry.folder {
                    self.unfinished.push(path);
                    continue;
                }
                if entry.folder {
                    let deeper = descend(depth).map_err(|e| ends.places.at_server(&path, e))?;
                    folders.push((path.clone(), deeper));
                }
                let item = Item { folder: entry.folder, size: entry.size, modified: entry.modified };
                self.items.insert(path, item);
            }
        }
        Ok(())
    }
}

fn descend(depth: usize) -> Result<usize, &'static str> {
    if depth >= MAX_DEPTH { Err("folders are nested deeper than 256") } else { Ok(depth + 1) }
}

fn report(
    args: &Sync,
    work: &Work<'_>,
    done: &Done,
    left_out: &[String],
    started: Instant,
    transport: &str,
) -> Result<(), Failure> {
    let seconds = started.elapsed().as_secs_f64();
    if args.transfer.json {
        let failed: Vec<_> = done.failed.iter().map(Failed::to_json).collect();
        let outcome = json!({
            "copied": done.copied, "bytes": done.bytes, "unchanged": work.unchanged, "deleted": done.deleted,
            "failed": failed, "left_out": left_out, "seconds": seconds, "transport": transport,
        });
        say!("{outcome}")?;
        return Ok(());
    }
    for failed in done.failed.iter() {
        note!("weft: {failed}");
    }
    if !args.transfer.quiet {
        say!(
            "{} files copied ({} bytes), {} unchanged, {} deleted, {} left out, {} failed in {seconds:.2} s over {transport}",
            done.copied,
            done.bytes,
            work.unchanged,
            done.deleted,
            left_out.len(),
            done.failed.iter().len(),
        )?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn items(list: &[(&str, u64, i64)]) -> Items {
        list.iter()
            .map(|(path, size, secs)| {
                let folder = path.ends_with('/');
                let modified = When { secs: *secs, nanos: 0 };
                (path.trim_end_matches('/').to_owned(), Item { folder, size: *size, modified })
            })
            .collect()
    }

    #[test]
    fn names_are_counted_with_their_whole_paths() {
        let fit = |path: &str, folder| {
            let mut listing = Listing::default();
            (0..).take_while(|_| listing.count(path, folder).is_ok()).count()
        };
        // Folders with names of 1,000 bytes, nested 200 deep: few names, but much memory.
        let deep = "n".repeat(200_000);
        assert!((5000..5400).contains(&fit(&deep, false)), "{}", fit(&deep, false));
        assert!((2500..2700).contains(&fit(&deep, true)), "{}", fit(&deep, true));
        // With paths of usual length the limit is the number of names.
        assert_eq!(fit(&"n".repeat(120), false), 4 << 20);
    }

    #[test]
    fn what_differs_is_copied_and_what_is_extra_goes_contents_first() {
        let source = items(&[("a", 1, 10), ("b", 2, 10), ("c", 3, 10), ("d/", 0, 0), ("d/e", 1, 1)]);
        let target = items(&[("a", 1, 11), ("b", 1, 10), ("c", 3, 20), ("x/", 0, 0), ("x/y", 1, 1)]);
        let work = Work::between(&source, &[], &target, Names::Exact, Which::Changed, true);
        assert_eq!(work.folders, ["d"]);
        assert_eq!(work.files, [("b", 2), ("c", 3), ("d/e", 1)]);
        assert_eq!(work.extra, [("x/y", false), ("x", true)]);
        assert_eq!((work.unchanged, work.bytes()), (1, 6));
        let all = Work::between(&source, &[], &target, Names::Exact, Which::All, false);
        assert_eq!((all.files.len(), all.unchanged, all.extra.len()), (4, 0, 0));
    }

    #[test]
    fn files_are_deleted_before_folders_and_those_from_the_deepest_up() {
        let extra: Vec<_> =
            [("x/y/z", true), ("x/y/a", false), ("x/y", true), ("w", true), ("b", false)].to_vec();
        let sets = deletions(&extra);
        let names = sets.iter().map(|set| set.iter().map(|(path, _)| *path).collect::<Vec<_>>());
        assert_eq!(names.collect::<Vec<_>>(), [vec!["x/y/a", "b"], vec!["x/y/z"], vec!["x/y"], vec!["w"]]);
        assert_eq!(deletions(&[]), [Vec::<&(&str, bool)>::new()]);
    }

    #[test]
    fn nothing_is_written_through_a_link_that_is_at_the_target() {
        let source =
            items(&[("a", 1, 1), ("link/", 0, 0), ("link/b", 1, 1), ("link/d/", 0, 0), ("linked", 1, 1)]);
        let target = Items::new();
        let mut work = Work::between(&source, &[], &target, Names::Exact, Which::All, false);
        work.keep_off(&["link".to_owned()]);
        assert_eq!(work.files, [("a", 1), ("linked", 1)]);
        let kept_off: Vec<_> = work.clashes.iter().map(|(path, _)| *path).collect();
        assert_eq!((work.folders.len(), kept_off), (0, vec!["link", "link/d", "link/b"]));
    }

    #[test]
    fn what_the_source_has_and_is_left_out_is_not_deleted_at_the_target() {
        let source = items(&[("a", 1, 1)]);
        let target = items(&[
            ("a", 1, 1),
            ("2019/", 0, 0),
            ("2019/b", 1, 1),
            ("20", 1, 1),
            ("Fifo", 1, 1),
            ("x", 1, 1),
        ]);
        let left_out = ["2019".to_owned(), "fifo".to_owned()];
        let extra = |names| Work::between(&source, &left_out, &target, names, Which::Changed, true).extra;
        assert_eq!(extra(Names::AnyCase), [("x", false), ("20", false)]);
        assert_eq!(extra(Names::Exact), [("x", false), ("Fifo", false), ("20", false)]);
    }

    #[test]
    fn a_file_is_not_put_in_the_place_of_a_folder() {
        let (file, folder) = (items(&[("a", 1, 1)]), items(&[("a/", 0, 1)]));
        let work = Work::between(&file, &[], &folder, Names::Exact, Which::Changed, false);
        assert_eq!((work.clashes[0].0, work.clashes.len(), work.files.len()), ("a", 1, 0));
    }

    #[test]
    fn nothing_is_put_in_a_folder_that_has_no_place() {
        let source = items(&[("a/", 0, 1), ("a/b/", 0, 1), ("a/f", 1, 1), ("ab", 1, 1), ("z", 1, 1)]);
        let target = items(&[("a", 1, 1), ("z/", 0, 1), ("z/p", 1, 1)]);
        let work = Work::between(&source, &[], &target, Names::Exact, Which::Changed, false);
        assert_eq!((work.folders.len(), work.files), (0, vec![("ab", 1)]));
        assert_eq!(work.clashes.iter().map(|(path, _)| *path).collect::<Vec<_>>(), ["a", "z"]);
    }

    #[test]
    fn a_folder_with_a_link_in_it_is_not_deleted() {
        let source = items(&[("s", 1, 1)]);
        let target = items(&[("x/", 0, 1), ("x/d/", 0, 1), ("x/d/f", 1, 1), ("x/e/", 0, 1)]);
        let special = ["x/d/link", "s", "left"].map(str::to_owned);
        let left_out = ["left".to_owned()];
        let mut work = Work::between(&source, &left_out, &target, Names::Exact, Which::Changed, true);
        assert_eq!(work.spare(&special, &source, &left_out, Names::Exact), ["x/d/link"]);
        assert_eq!(work.extra, [("x/e", true), ("x/d/f", false)]);
    }

    #[test]
    fn what_differs_in_case_alone_is_one_name_where_the_target_takes_it_so() {
        let source =
            items(&[("Dir/", 0, 1), ("Dir/x", 1, 1), ("README", 1, 1), ("SAME", 1, 1), ("Same", 1, 1)]);
        let target = items(&[("dir/", 0, 1), ("dir/x", 1, 1), ("readme", 1, 1)]);
        let work = Work::between(&source, &[], &target, Names::AnyCase, Which::Changed, true);
        // The new spelling is written; the old one is not deleted afterwards, because it is the same file.
        assert_eq!(work.files, [("README", 1), ("SAME", 1)]);
        assert_eq!(work.respelled, BTreeSet::from(["README"]));
        assert_eq!((work.extra.len(), work.folders.len(), work.unchanged), (0, 0, 1));
        assert_eq!((work.clashes[0].0, work.clashes.len()), ("Same", 1));
        let work = Work::between(&source, &[], &target, Names::Exact, Which::Changed, true);
        assert_eq!((work.files.len(), work.extra.len(), work.clashes.len()), (4, 3, 0));
    }
}
