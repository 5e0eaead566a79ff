//! Which files a worker thread changes now, by calls for which the kernel keeps everybody else from the file.
//!
//! fallocate, ftruncate and copies hold the file's inode lock until they end: minutes, where a client has fragmented the
//! file. A write or a chmod of the same file by any descriptor waits for that lock inside of the kernel, so on a core it
//! holds up everybody whom the core serves. Therefore these calls claim the file here for as long as they run. A task that
//! is about to take the inode lock looks here first, and waits without its core. Reads from the disk and syncs, which wait for
//! such a call as well, claim the file too: they are in a few places that all files share.
//!
//! Owns: the claims of this process, by inode. Does not: learn of other processes, nor of calls on the core, which are
//! short.
//!
//! Claims of a file are granted in the order in which they are asked for: a claim alone when all others are gone, shared
//! ones together. Those of seeks have a queue of their own, and the two take turns. So one worker at most waits for the lock of a file, and no other worker thread waits there. A claim is
//! granted before its call takes a place among the workers, and claims of several files are taken in the files' order; no
//! claim waits for one that waits for it. Who waits for one of several files claims them all, because the others may be wanted
//! meanwhile. Whoever has asked for a claim has to be polled until it has it, or be dropped.
//!
//! Cost: a change of a file on a core costs one atomic load while nobody wants a file alone. The load claims nothing: a worker's
//! call may begin between it and the system call that follows. That is rare, because such a call has to reach its thread first.

use std::collections::{BTreeMap, btree_map};
use std::future::Future;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::pin::Pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use rustix::fs::{AtFlags, Stat, StatxFlags};
use rustix::io::Errno;

use super::File;
use super::system::FileSystem;
use crate::{rt, sim};

/// A file, however many descriptors and names it has.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Inode {
    device: u64,
    number: u64,
}

impl Inode {
    /// That of a descriptor, which may have been opened with O_PATH. Its file system is not asked: a number never changes.
    pub fn of(fd: impl AsFd) -> io::Result<Inode> {
        let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
        match rustix::fs::statx(&fd, c"", flags, StatxFlags::INO) {
            Ok(found) => {
                let device = rustix::fs::makedev(found.stx_dev_major, found.stx_dev_minor);
                Ok(Inode { device, number: found.stx_ino })
            }
            Err(Errno::NOSYS | Errno::PERM) => Ok(Inode::from(&rustix::fs::fstat(fd)?)),
            Err(e) => Err(e.into()),
        }
    }

    /// That of a name in a directory; a symbolic link's own.
    pub fn named(dir: BorrowedFd<'_>, name: &[u8]) -> io::Result<Inode> {
        Ok(Inode::from(&rustix::fs::statat(dir, name, AtFlags::SYMLINK_NOFOLLOW)?))
    }
}

impl From<&Stat> for Inode {
    fn from(stat: &Stat) -> Inode {
        Inode { device: stat.st_dev, number: stat.st_ino }
    }
}

/// A right to a file; dropping it lets those who wait go on.
#[derive(Debug)]
#[must_use = "a claim ends when it is dropped"]
pub struct Claim {
    inode: Inode,
}

/// What a system call that takes files' locks on a core has to be given: no worker had any of these files for itself when this was
/// answered. If somebody wanted one of them, none begins while this is held.
#[derive(Debug)]
#[must_use = "workers may have the files when it is dropped"]
pub struct Unlocked {
    /// In order. `None`: all there are.
    files: Option<Vec<Inode>>,
    claims: Vec<Claim>,
}

impl Unlocked {
    /// At once, where nobody wants any file alone: one atomic load.
    pub fn all() -> Option<Unlocked> {
        (!any()).then_some(Unlocked { files: None, claims: Vec::new() })
    }

    /// At once, where nobody wants one of these files alone: then there is nothing to wait for, and nobody has to wait for a system
    /// call. Otherwise the files in order, each once.
    pub fn now(mut files: Vec<Inode>) -> Result<Unlocked, Vec<Inode>> {
        files.sort_unstable();
        files.dedup();
        // One lock for all.
        let table = table();
        if files.iter().any(|file| table.get(file).is_some_and(|claims| claims.alone > 0)) {
            return Err(files);
        }
        Ok(Unlocked { files: Some(files), claims: Vec::new() })
    }

    /// What keeps workers from the files, where somebody wanted one.
    pub(super) fn into_claims(self) -> Vec<Claim> {
        self.claims
    }

    /// Whether it says so of all these files.
    pub fn covers(&self, files: &[Inode]) -> bool {
        self.files.as_ref().is_none_or(|known| files.iter().all(|file| known.binary_search(file).is_ok()))
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Mode {
    /// Of a worker whose call locks the file.
    Alone,
    /// Of a worker that seeks holes: nobody else has the file meanwhile, but those who change it have their turn before the next
    /// seek. Whoever may only read could keep them from it otherwise.
    Seek,
    /// Of a call that takes the lock for a moment, or that reads.
    Shared,
}

type Queue = BTreeMap<u64, (Mode, Waker)>;

/// The claims of one file: at least one is granted, unless its table is about to forget it.
#[derive(Default)]
struct Claims {
    granted: Granted,
    /// Claims alone and those of seeks that are granted or waited for.
    alone: usize,
    next: u64,
    /// Seeks that are not granted, in order.
    seeks: Queue,
    /// All others.
    others: Queue,
    /// What was granted last was a seek: the others have their turn.
    sought_last: bool,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Granted {
    Alone,
    Shared(usize),
}

impl Default for Granted {
    fn default() -> Granted {
        Granted::Shared(0)
    }
}

impl Claims {
    /// Grants what can be granted. Answers who is to be woken.
    fn advance(&mut self) -> Vec<Waker> {
        let mut woken = Vec::new();
        // Shared claims that wait now are one turn; those that come later wait for the next one if a seek does.
        let is_turn_of_seeks = !self.sought_last;
        loop {
            let seeks = !self.seeks.is_empty() && (is_turn_of_seeks || self.others.is_empty());
            let queue = if seeks { &mut self.seeks } else { &mut self.others };
            let Some(first) = queue.first_entry() else { break };
            self.granted = match (self.granted, first.get().0) {
                (Granted::Shared(0), Mode::Alone | Mode::Seek) => Granted::Alone,
                (Granted::Shared(n), Mode::Shared) => Granted::Shared(n + 1),
                _ => break,
            };
            self.sought_last = seeks;
            woken.push(first.remove().1);
        }
        woken
    }

    fn queue(&mut self, mode: Mode) -> &mut Queue {
        if mode == Mode::Seek { &mut self.seeks } else { &mut self.others }
    }

    fn release(&mut self) {
        match self.granted {
            Granted::Alone => {
                self.granted = Granted::Shared(0);
                self.one_less(Mode::Alone);
            }
            Granted::Shared(n) => self.granted = Granted::Shared(n.saturating_sub(1)),
        }
    }

    fn one_more(&mut self, mode: Mode) {
        if mode != Mode::Shared {
            self.alone += 1;
            if self.alone == 1 {
                WANTED_ALONE.fetch_add(1, Ordering::AcqRel);
            }
        }
    }

    fn one_less(&mut self, mode: Mode) {
        if mode != Mode::Shared {
            self.alone -= 1;
            if self.alone == 0 {
                WANTED_ALONE.fetch_sub(1, Ordering::AcqRel);
            }
        }
    }

    fn are_none(&self) -> bool {
        self.granted == Granted::Shared(0) && self.seeks.is_empty() && self.others.is_empty()
    }
}

/// How many files somebody has alone or for a seek, or waits to have so. It changes under the lock of [`TABLE`]. Where it is zero, a call
/// goes on without that lock.
static WANTED_ALONE: AtomicUsize = AtomicUsize::new(0);
static TABLE: Mutex<BTreeMap<Inode, Claims>> = Mutex::new(BTreeMap::new());

// Nothing below panics between two changes of a table.
fn table() -> MutexGuard<'static, BTreeMap<Inode, Claims>> {
    TABLE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Ends a claim, or what waits for one, by `end`.
fn end(inode: Inode, end: impl FnOnce(&mut Claims)) {
    let mut table = table();
    let btree_map::Entry::Occupied(mut entry) = table.entry(inode) else { return };
    let claims = entry.get_mut();
    end(claims);
    let woken = claims.advance();
    if claims.are_none() {
        entry.remove();
    }
    drop(table);
    woken.into_iter().for_each(Waker::wake);
}

impl Drop for Claim {
    fn drop(&mut self) {
        end(self.inode, Claims::release);
    }
}

/// Waits for a claim, in order.
struct Claiming {
    inode: Inode,
    mode: Mode,
    number: Option<u64>,
}

impl Claiming {
    fn new(inode: Inode, mode: Mode) -> Claiming {
        Claiming { inode, mode, number: None }
    }
}

impl Future for Claiming {
    type Output = Claim;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Claim> {
        let (inode, mode) = (self.inode, self.mode);
        let table = &mut *table();
        let claims = table.entry(inode).or_default();
        let number = match self.number {
            Some(number) => {
                if let Some((_, waker)) = claims.queue(mode).get_mut(&number) {
                    waker.clone_from(cx.waker());
                }
                number
            }
            None => {
                let number = claims.next;
                claims.next += 1;
                claims.one_more(mode);
                claims.queue(mode).insert(number, (mode, cx.waker().clone()));
                // Whom this grants is nobody else.
                drop(claims.advance());
                number
            }
        };
        if claims.queue(mode).contains_key(&number) {
            self.number = Some(number);
            return Poll::Pending;
        }
        self.number = None;
        Poll::Ready(Claim { inode })
    }
}

impl Drop for Claiming {
    fn drop(&mut self) {
        let Some(number) = self.number else { return };
        end(self.inode, |claims| {
            match claims.queue(self.mode).remove(&number) {
                Some((mode, _)) => claims.one_less(mode),
                // It was granted, and nobody fetched it.
                None => claims.release(),
            }
        });
    }
}

/// Whether anybody has any file alone, or waits to have it: one atomic load.
pub fn any() -> bool {
    WANTED_ALONE.load(Ordering::Acquire) != 0
}

/// Whether a worker has this file for itself, so that a system call on it may have to wait.
pub fn is_locked(fd: impl AsFd) -> bool {
    any()
        && Inode::of(fd)
            .is_ok_and(|inode| table().get(&inode).is_some_and(|claims| claims.granted == Granted::Alone))
}

/// Claims a file for a call on a worker that locks it; the call holds the claim until it ends. Under simulation such a call
/// runs at once, and nobody waits for it.
pub async fn alone(inode: Inode) -> Option<Claim> {
    claimed(inode, Mode::Alone).await
}

async fn claimed(inode: Inode, mode: Mode) -> Option<Claim> {
    if sim::active() {
        return None;
    }
    Some(Claiming::new(inode, mode).await)
}

/// Claims one file alone and another one by `source_mode`.
async fn both(to: Inode, source: Inode, source_mode: Mode) -> [Option<Claim>; 2] {
    if sim::active() {
        return [None, None];
    }
    if to == source {
        return [Some(Claiming::new(to, Mode::Alone).await), None];
    }
    let mut claims = [(to, Mode::Alone), (source, source_mode)];
    claims.sort_by_key(|(inode, _)| *inode);
    let [first, second] = claims.map(|(inode, mode)| Claiming::new(inode, mode));
    let first = first.await;
    [Some(first), Some(second.await)]
}

/// Waits until no worker has any of these files for itself. The answer is for system calls that take the files' locks on this core,
/// and is held across no other wait.
pub async fn shared(files: Vec<Inode>) -> Unlocked {
    let files = match Unlocked::now(files) {
        Ok(unlocked) => return unlocked,
        Err(files) => files,
    };
    // All of them, those too that nobody wants yet: somebody may while another one is waited for.
    let mut claims = Vec::new();
    for file in &files {
        claims.push(Claiming::new(*file, Mode::Shared).await);
    }
    Unlocked { files: Some(files), claims }
}

/// [`shared`] for one file.
pub async fn shared_of(fd: impl AsFd) -> io::Result<Unlocked> {
    match Unlocked::all() {
        Some(unlocked) => Ok(unlocked),
        None => Ok(shared(vec![Inode::of(fd)?]).await),
    }
}

/// Claims a file for a call on a worker that waits in the kernel while another worker has the file: it begins when none has, and
/// none begins before it ends. So it keeps its place no longer than its disk takes.
pub(super) async fn to_read(inode: Inode) -> Option<Claim> {
    if sim::active() {
        return None;
    }
    Some(Claiming::new(inode, Mode::Shared).await)
}

/// [`rt::blocking`] for such a call.
pub async fn blocking<T: Send + 'static>(inode: Inode, call: impl FnOnce() -> T + Send + 'static) -> T {
    let claim = to_read(inode).await;
    rt::blocking(with(claim, call)).await
}

/// [`blocking`] for a call on a file, in the places of its file system where that may block.
pub async fn blocking_in<T: Send + 'static>(
    file: &File,
    call: impl FnOnce() -> T + Send + 'static,
) -> io::Result<T> {
    let claim = to_read(file.inode()?).await;
    in_places_of(file.blocking(), with(claim, call), rt::blocking).await
}

/// Carries a call out in the places of its file system, where that may block: otherwise one that hangs would take those of
/// all. As `usual` elsewhere.
pub(super) async fn in_places_of<
    T: Send + 'static,
    F: FnOnce() -> T + Send + 'static,
    U: Future<Output = T>,
>(
    system: Option<&Arc<FileSystem>>,
    call: F,
    usual: impl FnOnce(F) -> U,
) -> io::Result<T> {
    match system {
        None => Ok(usual(call).await),
        Some(system) => Ok(system.data(call).await?),
    }
}

/// [`rt::ranged`] for a call that locks the file.
pub async fn ranged<T: Send + 'static>(
    file: &File,
    call: impl FnOnce() -> T + Send + 'static,
) -> io::Result<T> {
    let claim = alone(Inode::of(file)?).await;
    in_places_of(file.blocking(), with(claim, call), rt::ranged).await
}

/// [`rt::lengthy`] for a call that locks a file.
pub async fn lengthy<T: Send + 'static>(inode: Inode, call: impl FnOnce() -> T + Send + 'static) -> T {
    let claim = alone(inode).await;
    rt::lengthy(with(claim, call)).await
}

/// [`rt::seeking`] in a file. A seek claims the file, because a write would wait for it in the kernel; so the seeks of one file
/// take one place. After each seek, those who wait for the file have their turn.
pub(super) async fn seeking<T: Send + 'static>(
    file: &File,
    call: impl FnOnce() -> T + Send + 'static,
) -> io::Result<T> {
    let claim = claimed(Inode::of(file)?, Mode::Seek).await;
    in_places_of(file.blocking(), with(claim, call), rt::seeking).await
}

/// [`ranged`] for a call that locks the file `to` and reads `source`; `locks_source` where it locks that as well.
pub(super) async fn ranged_between<T: Send + 'static>(
    to: &File,
    source: &File,
    locks_source: bool,
    call: impl FnOnce() -> T + Send + 'static,
) -> io::Result<T> {
    let mode = if locks_source { Mode::Alone } else { Mode::Shared };
    let claims = both(Inode::of(to)?, Inode::of(source)?, mode).await;
    in_places_of(to.blocking().or(source.blocking()), with(claims, call), rt::ranged).await
}

/// `call` with what it holds until it has ended, also where nobody waits for it any more.
fn with<T>(held: impl Send + 'static, call: impl FnOnce() -> T) -> impl FnOnce() -> T {
    move || {
        let _held = held;
        call()
    }
}

#[cfg(test)]
mod tests;
