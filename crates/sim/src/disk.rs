//! The simulated twin of a folder: a [`Backend`] whose files lie in memory and are durable only as far as they were flushed.
//!
//! What a crash of the host leaves, sector by sector and name by name, the seed decides within these rules:
//!
//! | changed | durable after |
//! |---|---|
//! | bytes and size of a file | [`ObjectOp::Sync`] of it; until then each sector is old or new |
//! | a file's creation, and all changes of names before it | also by [`ObjectOp::Sync`] of it, as the journals of Linux' file systems have it |
//! | other names | [`Op::SyncDir`], [`Op::SyncAll`]; until then the first of the changes, in their order, are there |
//! | attributes | with a name, or with a flush of the file |
//!
//! A flush that fails has lost what it was to write, as Linux has it: later flushes succeed and do not write it, and every open of the
//! file is told once. A crash of the process loses nothing: the page cache is the kernel's.
//! There are no hard links and no large extended attributes.
//!
//! [`ObjectOp::Sync`]: weft_store::ObjectOp::Sync

mod medium;
mod open;

use std::collections::BTreeMap;
use std::io;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::future::LocalBoxFuture;
use weft_machine::rt;
use weft_machine::sim::with_rng;
use weft_store::{
    Backend, Caller, Created, DirName, Dos, Entry, Error, Exists, Hold, Kind, Listing, Make, NodeId, Op,
    OpenFile, Outcome, SetAttr, SetXattr, Space, XattrSummary,
};

use self::medium::{Meta, State, now};
use self::open::Open;

/// What is written as a whole or not at all.
pub const SECTOR: usize = 512;
/// EIO, ENOSPC.
const EIO: i32 = 5;

/// How the disk behaves.
#[derive(Clone, Copy, Debug, Default)]
pub struct Faults {
    /// One operation in so many waits; 0: none does.
    pub slow_one_in: u64,
    /// How long it waits at most.
    pub wait: Duration,
    /// One flush in so many fails; 0: none does.
    pub failing_flush_one_in: u64,
    /// One write in so many fails; 0: none does.
    pub failing_write_one_in: u64,
    /// Bytes that all files together may have; 0: as many as they like.
    pub limit_bytes: usize,
}

/// A disk, and the file system on it, as one process sees it.
#[derive(Clone, Default)]
pub struct Disk {
    shared: Arc<Shared>,
    /// Which process: one that has ended changes nothing any more.
    process: u64,
}

#[derive(Default)]
struct Shared(Mutex<State>);

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits where the seed says so.
    async fn travel(&self) {
        let Faults { slow_one_in, wait, .. } = self.lock().faults;
        if happens(slow_one_in) {
            let nanos = u64::try_from(wait.as_nanos()).unwrap_or(u64::MAX);
            rt::sleep(Duration::from_nanos(with_rng(|rng| rng.within(1..=nanos)))).await;
        }
    }
}

fn happens(one_in: u64) -> bool {
    one_in != 0 && with_rng(|rng| rng.one_in(one_in))
}

fn eio() -> Error {
    Error::Io(io::Error::from_raw_os_error(EIO))
}

impl Disk {
    /// Behaves so from now on.
    pub fn set_faults(&self, faults: Faults) {
        self.lock().faults = faults;
    }

    /// How it behaves.
    pub fn faults(&self) -> Faults {
        self.lock().faults
    }

    /// The host crashes: of what was not flushed the seed decides what is left.
    pub fn crash(&self) {
        self.lock().crash();
    }

    /// The process ends; what it has written stays.
    pub fn end_process(&self) {
        self.lock().end_process();
    }

    /// The disk as a new process sees it.
    pub fn for_process(&self) -> Disk {
        Disk { shared: self.shared.clone(), process: self.lock().process }
    }

    /// Nodes that the process keeps within reach.
    pub fn held(&self) -> usize {
        self.lock().held.len()
    }

    /// What a node is called, for messages.
    pub fn name_of(&self, node: NodeId) -> String {
        let state = self.lock();
        let place = state.tree().get(&node).and_then(|meta| meta.place.as_ref());
        place.map_or(format!("{node:?}"), |(_, name)| String::from_utf8_lossy(name).into_owned())
    }

    /// Flushes that have failed so far.
    pub fn failures(&self) -> u64 {
        self.lock().failures
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.shared.lock()
    }

    /// The same for a process that still runs.
    fn running(&self) -> Result<MutexGuard<'_, State>, Error> {
        let state = self.lock();
        if state.process == self.process { Ok(state) } else { Err(eio()) }
    }

    fn hold(&self, node: NodeId) -> Result<Held, Error> {
        let mut state = self.running()?;
        state.meta(node)?;
        *state.held.entry(node).or_default() += 1;
        Ok(Held { disk: self.clone(), node })
    }

    fn create(
        &self,
        dir: NodeId,
        name: Vec<u8>,
        make: Make,
        exists: Exists,
        set: SetAttr,
    ) -> Result<Outcome, Error> {
        check(&name)?;
        let mut state = self.running()?;
        state.dir(dir)?;
        if let Some(node) = state.child(dir, &name) {
            let kind = state.meta(node)?.kind;
            match (exists, &make, kind) {
                (Exists::Reuse, Make::File, Kind::File) => {
                    if set.size.is_some() {
                        state.set(node, &SetAttr { size: set.size, ..SetAttr::default() })?;
                    }
                }
                (Exists::Reuse, Make::Dir, Kind::Dir) => {}
                (Exists::Reuse, Make::File, Kind::Dir) => return Err(Error::IsDir),
                _ => return Err(Error::Exists),
            }
            return Ok(Outcome::Created(Created { attr: state.attr(node)?, is_new: false }));
        }
        let (kind, mode, target) = match make {
            Make::File => (Kind::File, 0o644, Vec::new()),
            Make::Dir => (Kind::Dir, 0o755, Vec::new()),
            Make::Symlink(target) => (Kind::Symlink, 0o777, target),
            Make::Special(special) => (Kind::Special(special), 0o644, Vec::new()),
        };
        let node = NodeId(state.next);
        state.next += 1;
        let (place, born) = (Some((dir, name)), now());
        let meta = Meta { place, kind, mode, uid: 0, gid: 0, born, target, xattrs: BTreeMap::new() };
        state.change().insert(node, meta);
        let content = state.content(node);
        (content.mtime, content.ctime, content.atime) = (born, born, born);
        let set = SetAttr { size: set.size.filter(|size| *size != 0), ..set };
        if set != SetAttr::default() {
            state.set(node, &set)?;
        }
        Ok(Outcome::Created(Created { attr: state.attr(node)?, is_new: true }))
    }

    fn remove(&self, dir: NodeId, name: &[u8], is_dir: bool) -> Result<Outcome, Error> {
        check(name)?;
        let mut state = self.running()?;
        state.dir(dir)?;
        let node = state.child(dir, name).ok_or(Error::NotFound)?;
        match (state.meta(node)?.kind == Kind::Dir, is_dir) {
            (true, false) => return Err(Error::IsDir),
            (false, true) => return Err(Error::NotDir),
            _ => {}
        }
        if state.children(node).next().is_some() {
            return Err(Error::NotEmpty);
        }
        state.unlink(node);
        Ok(Outcome::Unlinked(Some(node)))
    }

    fn rename(&self, from: &DirName, to: &DirName, replace: bool) -> Result<Outcome, Error> {
        check(&from.name)?;
        check(&to.name)?;
        let mut state = self.running()?;
        state.dir(from.dir)?;
        state.dir(to.dir)?;
        let node = state.child(from.dir, &from.name).ok_or(Error::NotFound)?;
        let mut gone = None;
        if let Some(victim) = state.child(to.dir, &to.name) {
            if victim == node {
                return Ok(Outcome::Unlinked(None));
            }
            let (kind, of) = (state.meta(victim)?.kind, state.meta(node)?.kind);
            match (kind == Kind::Dir, of == Kind::Dir) {
                _ if !replace => return Err(Error::Exists),
                (true, false) => return Err(Error::IsDir),
                (false, true) => return Err(Error::NotDir),
                _ if state.children(victim).next().is_some() => return Err(Error::NotEmpty),
                _ => gone = Some(victim),
            }
        }
        let held = gone.is_some_and(|victim| state.held.contains_key(&victim));
        // One change, so that a crash leaves either name or the other.
        let tree = state.change();
        if let Some(victim) = gone {
            match tree.get_mut(&victim) {
                Some(meta) if held => meta.place = None,
                _ => drop(tree.remove(&victim)),
            }
        }
        tree.get_mut(&node).ok_or(Error::Stale)?.place = Some((to.dir, to.name.clone()));
        Ok(Outcome::Unlinked(gone))
    }

    fn lookup(&self, dir: NodeId, name: &[u8], fold_case: bool) -> Result<Outcome, Error> {
        let state = self.running()?;
        let meta = state.dir(dir)?;
        let node = match name {
            b"." => dir,
            b".." => meta.place.as_ref().map_or(NodeId::ROOT, |(parent, _)| *parent),
            name => {
                let folded = || {
                    let like = |meta: &Meta| {
                        meta.place.as_ref().is_some_and(|(_, called)| called.eq_ignore_ascii_case(name))
                    };
                    state.children(dir).find(|(_, meta)| like(meta)).map(|(node, _)| node)
                };
                let found = state.child(dir, name).or_else(|| if fold_case { folded() } else { None });
                found.ok_or(Error::NotFound)?
            }
        };
        Ok(Outcome::Attr(state.attr(node)?))
    }

    fn readdir(&self, dir: NodeId, cookie: u64, max: usize, xattrs: bool) -> Result<Outcome, Error> {
        let state = self.running()?;
        state.dir(dir)?;
        let mut after = state.children(dir).filter(|(node, _)| node.0 > cookie);
        let mut entries = Vec::new();
        for (node, meta) in after.by_ref().take(max) {
            let name = meta.place.as_ref().map(|(_, name)| name.clone()).unwrap_or_default();
            let xattrs = xattrs.then(|| self::xattr_summary(meta));
            entries.push(Entry { name, cookie: node.0, attr: Ok(state.attr(node)?), xattrs });
        }
        let end = after.next().is_none();
        Ok(Outcome::Entries(Listing { entries, is_last: end }))
    }

    fn xattr<T>(
        &self,
        node: NodeId,
        act: impl FnOnce(&mut BTreeMap<Vec<u8>, Vec<u8>>) -> Result<T, Error>,
    ) -> Result<T, Error> {
        let mut state = self.running()?;
        let mut xattrs = state.meta(node)?.xattrs.clone();
        let done = act(&mut xattrs)?;
        state.change().get_mut(&node).ok_or(Error::Stale)?.xattrs = xattrs;
        Ok(done)
    }

    fn carry_out(&self, op: Op) -> Result<Outcome, Error> {
        Ok(match op {
            Op::Lookup { dir, name, fold_case } => return self.lookup(dir, &name, fold_case),
            Op::Getattr { node } => Outcome::Attr(self.running()?.attr(node)?),
            Op::Setattr { node, set } => {
                let mut state = self.running()?;
                state.set(node, &set)?;
                Outcome::Attr(state.attr(node)?)
            }
            Op::Open { node, write } => {
                match self.running()?.meta(node)?.kind {
                    Kind::File => {}
                    Kind::Dir => return Err(Error::IsDir),
                    _ => return Err(Error::Invalid),
                }
                let seen = AtomicU64::new(self.running()?.content(node).failures);
                let file = OpenFile::new(node, Arc::new(Open { held: self.hold(node)?, seen }));
                Outcome::File(if write { file } else { file.read_only() })
            }
            Op::Create { dir, name, make, exists, set } => return self.create(dir, name, make, exists, set),
            Op::Remove { dir, name } => return self.remove(dir, &name, false),
            Op::Rmdir { dir, name } => return self.remove(dir, &name, true),
            Op::Rename { from, to, replace } => return self.rename(&from, &to, replace),
            Op::Link { .. } => return Err(Error::NotSupported),
            Op::Readlink { node } => match self.running()?.meta(node)? {
                meta if meta.kind == Kind::Symlink => Outcome::Target(meta.target.clone()),
                _ => return Err(Error::Invalid),
            },
            Op::Readdir { dir, cookie, max, xattrs } => return self.readdir(dir, cookie, max, xattrs),
            Op::Place { node } => {
                let (dir, name) = self.running()?.meta(node)?.place.clone().ok_or(Error::NotFound)?;
                Outcome::Place(DirName { dir, name })
            }
            Op::Statfs => {
                let state = self.running()?;
                let total = match state.faults.limit_bytes {
                    0 => 1 << 30,
                    limit => limit as u64,
                };
                let free = total.saturating_sub(state.used() as u64);
                Outcome::Space(Space { total, free, available: free, files: 1 << 20, files_free: 1 << 19 })
            }
            Op::SyncDir { dir } => {
                let mut state = self.running()?;
                state.dir(dir)?;
                state.commit_names();
                Outcome::Done
            }
            Op::SyncAll { node } => {
                let mut state = self.running()?;
                state.meta(node)?;
                state.commit_names();
                for content in state.contents.values_mut() {
                    content.synced = content.flushed();
                }
                Outcome::Done
            }
            Op::MayUnlink { .. } => Outcome::Done,
            Op::Access { wanted, .. } => Outcome::Permissions(wanted),
            Op::Hold { node } => Outcome::Held(Hold::new(Arc::new(self.hold(node)?))),
            Op::GetXattr { node, name } => {
                Outcome::Value(self.running()?.meta(node)?.xattrs.get(&name).cloned().ok_or(Error::NoXattr)?)
            }
            Op::SetXattr { node, name, value, how } => self.xattr(node, |xattrs| {
                match (how, xattrs.contains_key(&name)) {
                    (SetXattr::Create, true) => return Err(Error::Exists),
                    (SetXattr::Replace, false) => return Err(Error::NoXattr),
                    _ => {}
                }
                xattrs.insert(name, value);
                Ok(Outcome::Done)
            })?,
            Op::ListXattrs { node } => {
                Outcome::Names(self.running()?.meta(node)?.xattrs.keys().cloned().collect())
            }
            Op::RemoveXattr { node, name } => {
                self.xattr(node, |xattrs| xattrs.remove(&name).map(|_| Outcome::Done).ok_or(Error::NoXattr))?
            }
            Op::XattrSummary { node } => Outcome::XattrSummary(xattr_summary(self.running()?.meta(node)?)),
            Op::Stable { node } => Outcome::Stable(self.running()?.attr(node)?.stable),
            Op::Find { stable } => {
                let node = NodeId(u64::from_le_bytes(std::array::from_fn(|i| stable.0[i])));
                Outcome::Attr(self.running()?.attr(node)?)
            }
        })
    }
}

fn xattr_summary(meta: &Meta) -> XattrSummary {
    XattrSummary {
        dos: meta.xattrs.get(&b"weft.dos"[..]).and_then(|bytes| Dos::parse(bytes)),
        streams: meta.xattrs.keys().any(|name| name.starts_with(b"weft.stream.")),
        ..XattrSummary::default()
    }
}

fn check(name: &[u8]) -> Result<(), Error> {
    match name {
        b"" | b"." | b".." => Err(Error::BadName),
        name if name.len() > 255 => Err(Error::NameTooLong),
        name if name.contains(&b'/') || name.contains(&0) => Err(Error::BadName),
        _ => Ok(()),
    }
}

impl Backend for Disk {
    fn kind(&self) -> &'static str {
        "sim"
    }

    /// So that what is changed is flushed where a protocol promises that.
    fn changes_on_the_host(&self) -> bool {
        true
    }

    fn submit(&self, op: Op, _by: Caller) -> LocalBoxFuture<'_, Result<Outcome, Error>> {
        Box::pin(async {
            self.shared.travel().await;
            self.carry_out(op)
        })
    }
}

/// A claim on a node.
struct Held {
    disk: Disk,
    node: NodeId,
}

impl Drop for Held {
    fn drop(&mut self) {
        // A process that has ended has no claims.
        if let Ok(mut state) = self.disk.running() {
            state.release(self.node);
        }
    }
}
