//! Tracks which files a worker thread is changing with calls during which the kernel locks the file.
//!
//! fallocate, ftruncate and copies hold the file's inode lock until they end: for minutes, if a client has fragmented
//! the file. A write or a chmod of the same file by any descriptor waits for that lock inside the kernel, so on a core
//! it holds up everybody whom the core serves. Therefore such a call claims the file here while it runs. A task that is
//! about to take the inode lock checks here first, and waits without blocking its core. Reads from disk and syncs,
//! which wait for such a call as well, also claim the file, because all files share their few worker places.
//!
//! The claims are those of this process, by inode. Other processes are not covered, nor are calls on the core, which
//! are short.
//!
//! Claims of a file are granted in order of request: an exclusive claim when all others are gone, shared ones together.
//! Claims for seeks have their own queue, and the two queues alternate. So at most one worker waits for the lock of a
//! file, and no other worker thread waits in the kernel for it. A claim is granted before its call takes a worker
//! place, and claims of several files are taken in the files' order, so no two claims wait for each other. A task that
//! waits for one of several files claims them all, because the others may be requested meanwhile. A requested claim
//! must be polled until it is granted, or dropped.
//!
//! A change of a file on a core costs one atomic load while nobody requests a file exclusively. The load claims
//! nothing: a worker's call may begin between it and the system call that follows. That is rare, because such a call
//! must reach its thread first.

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
use crate::recorder::{self, Hop};
use crate::{rt, sim};

/// Identifies a file, however many descriptors and names it has.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Inode {
    device: u64,
    number: u64,
}

impl Inode {
    /// The inode of a descriptor, which may have been opened with O_PATH. Its file system is not queried: the number
    /// never changes.
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

    /// The inode of a name in a directory; for a symbolic link, the link's own.
    pub fn named(dir: BorrowedFd<'_>, name: &[u8]) -> io::Result<Inode> {
        Ok(Inode::from(&rustix::fs::statat(dir, name, AtFlags::SYMLINK_NOFOLLOW)?))
    }
}

impl From<&Stat> for Inode {
    fn from(stat: &Stat) -> Inode {
        Inode { device: stat.st_dev, number: stat.st_ino }
    }
}

/// A right to use a file; dropping it lets waiting claims proceed.
#[derive(Debug)]
#[must_use = "a claim ends when it is dropped"]
pub struct Claim {
    inode: Inode,
}

/// Must be passed to a system call on a core that takes the locks of files: no worker had an exclusive claim on any of
/// these files when this was granted. If somebody requested one of them, no exclusive claim begins while this is held.
#[derive(Debug)]
#[must_use = "workers may lock the files when it is dropped"]
pub struct Unlocked {
    /// In order. `None`: all files.
    files: Option<Vec<Inode>>,
    claims: Vec<Claim>,
}

impl Unlocked {
    /// Granted at once if nobody requests any file exclusively: one atomic load.
    pub fn all() -> Option<Unlocked> {
        (!any()).then_some(Unlocked { files: None, claims: Vec::new() })
    }

    /// Granted at once if nobody requests one of these files exclusively: then there is nothing to wait for, and nobody
    /// must wait for a system call. Otherwise returns the files in order, without duplicates.
    pub fn now(mut files: Vec<Inode>) -> Result<Unlocked, Vec<Inode>> {
        files.sort_unstable();
        files.dedup();
        // One lock for all files.
        let table = table();
        if files.iter().any(|file| table.get(file).is_some_and(|claims| claims.alone > 0)) {
            return Err(files);
        }
        Ok(Unlocked { files: Some(files), claims: Vec::new() })
    }

    /// The claims that keep workers from the files, if somebody requested one.
    pub(super) fn into_claims(self) -> Vec<Claim> {
        self.claims
    }

    /// Whether it covers all these files.
    pub fn covers(&self, files: &[Inode]) -> bool {
        self.files.as_ref().is_none_or(|known| files.iter().all(|file| known.binary_search(file).is_ok()))
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Mode {
    /// For a worker whose call locks the file.
    Alone,
    /// For a worker that seeks holes: exclusive, but claims of those who change the file get their turn before the next
    /// seek. Otherwise a user who may only read could keep writers from the file.
    Seek,
    /// For a call that takes the lock for a moment, or that reads.
    Shared,
}

type Queue = BTreeMap<u64, (Mode, Waker)>;

/// The claims of one file: at least one is granted, unless its table is about to remove the entry.
#[derive(Default)]
struct Claims {
    granted: Granted,
    /// Exclusive claims and those of seeks, granted or waiting.
    alone: usize,
    next: u64,
    /// Waiting seeks, in order.
    seeks: Queue,
    /// All other waiting claims, in order.
    others: Queue,
    /// The last granted claim was a seek, so the others have their turn.
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
    /// Grants what can be granted. Returns the wakers of the granted claims.
    fn advance(&mut self) -> Vec<Waker> {
        let mut woken = Vec::new();
        // Shared claims that wait now are one turn; later ones wait for the next turn if a seek waits.
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

/// The number of files with exclusive or seek claims, granted or waiting. It changes under the lock of [`TABLE`]. While
/// it is zero, a call proceeds without that lock.
static WANTED_ALONE: AtomicUsize = AtomicUsize::new(0);
static TABLE: Mutex<BTreeMap<Inode, Claims>> = Mutex::new(BTreeMap::new());

// Nothing below panics between two changes of the table.
fn table() -> MutexGuard<'static, BTreeMap<Inode, Claims>> {
    TABLE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Ends a claim, or a wait for one, by `end`.
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
                // Only this claim can be granted.
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

/// Whether any file has an exclusive claim, granted or waiting: one atomic load.
pub fn any() -> bool {
    WANTED_ALONE.load(Ordering::Acquire) != 0
}

/// Whether a worker has an exclusive claim on this file, so that a system call on it may have to wait.
pub fn is_locked(fd: impl AsFd) -> bool {
    any()
        && Inode::of(fd)
            .is_ok_and(|inode| table().get(&inode).is_some_and(|claims| claims.granted == Granted::Alone))
}

/// Claims a file exclusively for a call on a worker that locks it; the call holds the claim until it ends. Under
/// simulation such a call runs at once, and nobody waits for it.
pub async fn alone(inode: Inode) -> Option<Claim> {
    claimed(inode, Mode::Alone).await
}

async fn claimed(inode: Inode, mode: Mode) -> Option<Claim> {
    if sim::active() {
        return None;
    }
    Some(Claiming::new(inode, mode).await)
}

/// Claims one file exclusively and another one with `source_mode`.
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

/// Waits until no worker has an exclusive claim on any of these files. The result is for system calls that take the
/// files' locks on this core, and must not be held across another wait.
pub async fn shared(files: Vec<Inode>) -> Unlocked {
    let files = match Unlocked::now(files) {
        Ok(unlocked) => return unlocked,
        Err(files) => files,
    };
    // Claims all of them, including those that nobody requests yet: somebody may while this waits for another one.
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

/// Claims a file for a call on a worker that would wait in the kernel while another worker locks the file: it begins
/// when there is no exclusive claim, and none begins before it ends. So it occupies its worker place no longer than its
/// disk takes.
pub(super) async fn to_read(inode: Inode) -> Option<Claim> {
    if sim::active() {
        return None;
    }
    Some(Claiming::new(inode, Mode::Shared).await)
}

/// [`rt::blocking`] for such a call.
pub async fn blocking<T: Send + 'static>(inode: Inode, call: impl FnOnce() -> T + Send + 'static) -> T {
    recorder::at(Hop::Disk, async {
        let claim = to_read(inode).await;
        rt::blocking(with(claim, call)).await
    })
    .await
}

/// [`blocking`] for a call on a file, in the places of its file system if that may block.
pub async fn blocking_in<T: Send + 'static>(
    file: &File,
    call: impl FnOnce() -> T + Send + 'static,
) -> io::Result<T> {
    let claim = to_read(file.inode()?).await;
    in_places_of(file.blocking(), with(claim, call), rt::blocking).await
}

/// Runs a call in the places of its file system, if that may block: otherwise one that hangs would occupy the places of
/// all. Elsewhere it runs like `usual`.
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
    recorder::at(Hop::Disk, in_places_of(file.blocking(), with(claim, call), rt::ranged)).await
}

/// [`rt::lengthy`] for a call that locks a file.
pub async fn lengthy<T: Send + 'static>(inode: Inode, call: impl FnOnce() -> T + Send + 'static) -> T {
    let claim = alone(inode).await;
    recorder::at(Hop::Disk, rt::lengthy(with(claim, call))).await
}

/// [`rt::seeking`] in a file. A seek claims the file, because a write would wait for it in the kernel; so the seeks of
/// one file take one place. After each seek, those who wait for the file get their turn.
pub(super) async fn seeking<T: Send + 'static>(
    file: &File,
    call: impl FnOnce() -> T + Send + 'static,
) -> io::Result<T> {
    let claim = claimed(Inode::of(file)?, Mode::Seek).await;
    recorder::at(Hop::Disk, in_places_of(file.blocking(), with(claim, call), rt::seeking)).await
}

/// [`ranged`] for a call that locks the file `to` and reads `source`; with `locks_source` it locks that as well.
pub(super) async fn ranged_between<T: Send + 'static>(
    to: &File,
    source: &File,
    locks_source: bool,
    call: impl FnOnce() -> T + Send + 'static,
) -> io::Result<T> {
    let mode = if locks_source { Mode::Alone } else { Mode::Shared };
    let claims = both(Inode::of(to)?, Inode::of(source)?, mode).await;
    let call = in_places_of(to.blocking().or(source.blocking()), with(claims, call), rt::ranged);
    recorder::at(Hop::Disk, call).await
}

/// Wraps `call` so that it keeps `held` until it has ended, even if nobody waits for it any more.
fn with<T>(held: impl Send + 'static, call: impl FnOnce() -> T) -> impl FnOnce() -> T {
    move || {
        let _held = held;
        call()
    }
}

#[cfg(test)]
mod tests;
