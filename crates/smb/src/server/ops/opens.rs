//! The open table of a session, and the state of an open.
//!
//! Spec: [MS-SMB2] 3.3.1.10 (Open), 3.3.4.17 (closing one), 3.3.5.9 (FileId). Owns opens, and through them file
//! descriptors and entries in the store's table of opens. A closed open lives on until the requests that use it have
//! ended. Sharing is decided in [`weft_store::opens`]; READ and WRITE take the table's mutex for one look-up.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use futures_util::future::LocalBoxFuture;
use slab::Slab;
use weft_machine::{Charge, LogLimit, rt};
use weft_store::audit::{AuditedOpen, Kind as Audited, Outcome};
use weft_store::opens::{Open as Claim, Range, Refused, Removal};
use weft_store::vfs::{DirName, Error, Hold, Kind, NodeId, OpenFile, SetAttr, SetTime, Timestamp, Vfs};
use weft_wire::smb2::access::AccessMask;
use weft_wire::smb2::create::{CreateAction, CreateOptions};
use weft_wire::smb2::{FileId, NtStatus};

use super::attributes;
use super::caching::Caching;
use super::channel_sequence::ChannelSequence;
use super::durable::Durable;
use super::lock_sequences::LockSequences;
use super::notify::Notify;
use super::owned_open::OwnedOpen;
use super::replay::Repeatable;
use super::scan::Scan;
use super::tunnel::Tunnel;
use crate::server::held::LOCK_BYTES;

/// A file or directory that a client has open.
pub(crate) struct Open {
    /// FileId.Persistent: identifies it in the whole server, whatever session it belongs to.
    pub(super) persistent: u64,
    /// The share's files.
    pub(super) vfs: Vfs,
    /// The file.
    pub(super) node: NodeId,
    /// Its kind.
    pub(super) kind: Kind,
    /// GrantedAccess.
    pub(super) access: AccessMask,
    /// CreateOptions.
    pub(super) options: CreateOptions,
    /// Its data, if it is a regular file and the access concerns data.
    pub(super) file: Option<OpenFile>,
    /// Its entry in the store's table: sharing, deletion, byte-range locks.
    pub(super) claim: Claim,
    /// For a stream: the entry of its file in that table, so that the file is not deleted before it.
    pub(super) base: OnceLock<Claim>,
    /// Its caching rights.
    pub(super) caching: Caching,
    /// The share's name, for the log.
    pub(super) share: OnceLock<Arc<str>>,
    /// What the audit log is told of it; unset without an audit log.
    pub(super) audited: OnceLock<Arc<AuditedOpen>>,
    /// If it was opened by its 8.3 name: that name, and the cache that remembers it when the file is deleted.
    pub(super) by_short: OnceLock<(Arc<Tunnel>, String)>,
    /// Set if it may outlive its session.
    pub(super) durable: OnceLock<Durable>,
    /// How long it waits for its client whatever its caching rights, in milliseconds; 0 unless the client asked for
    /// that.
    resilient_ms: AtomicU32,
    /// Identifies its CREATE if that is repeated.
    pub(super) create: OnceLock<Repeatable>,
    /// The CreateAction, for a repeated answer.
    pub(super) action: CreateAction,
    /// Opened with POSIX semantics: names are case-sensitive, and vanish at once when they are removed.
    posix: AtomicBool,
    /// IsReplayEligible.
    replayable: AtomicBool,
    pub(super) locks: LockSequences,
    /// CurrentByteOffset: stored and reported, but otherwise unused.
    pub(super) position: AtomicU64,
    /// Position of a listing. An async lock, because entries are fetched while it is held.
    pub(super) scan: futures_util::lock::Mutex<Scan>,
    /// Decides which requests are current.
    pub(super) sequence: ChannelSequence,
    /// The changes in its directory since a client first asked.
    pub(super) notify: Notify,
    /// Directory and name under which it was opened, or renamed since.
    place: Mutex<DirName>,
    /// The modification time that the client set, which its own later writes must not change.
    kept_mtime: Mutex<Option<Timestamp>>,
    /// Whether there were such writes.
    written_since: AtomicBool,
    /// How many failed flushes its client was told of.
    pub(super) told_losses: AtomicU64,
    /// Whether there were writes that its directory's listing does not show yet.
    unlisted: AtomicBool,
    /// The change time that its client sees.
    change_time: Mutex<ChangeTime>,
    /// Whether that is [`ChangeTime::Deferred`], for writers.
    defers_change: AtomicBool,
    _hold: Hold,
    /// The charge for its memory, including byte-range locks.
    held: Charge,
    descriptors: Charge,
}

/// The change time that the client of an open sees.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum ChangeTime {
    /// The file's.
    Moves,
    /// The time before this open renamed the file: NTFS shows that change when the open is closed ([MS-FSA]
    /// 2.1.5.15.12, note 187), or at the next change.
    Deferred(Timestamp),
    /// UserSetChangeTime ([MS-FSA] 2.1.5.15.2): neither operations of this open nor its close change it.
    Frozen(Timestamp),
}

/// The initial state of an open.
pub(super) struct New {
    /// Open.DurableFileId: it stays when the handle moves to another file, and across restarts of the server.
    pub(super) id: u64,
    pub(super) sequence: ChannelSequence,
    pub(super) vfs: Vfs,
    pub(super) node: NodeId,
    pub(super) kind: Kind,
    pub(super) place: DirName,
    pub(super) access: AccessMask,
    pub(super) options: CreateOptions,
    /// `None` if its data was not requested, or if it has none.
    pub(super) file: Option<OpenFile>,
    pub(super) claim: Claim,
    pub(super) caching: Caching,
    pub(super) action: CreateAction,
    pub(super) hold: Hold,
    pub(super) held: Charge,
    pub(super) descriptors: Charge,
}

impl Open {
    pub(super) fn new(new: New) -> Open {
        let New {
            id,
            sequence,
            vfs,
            node,
            kind,
            place,
            access,
            options,
            file,
            claim,
            caching,
            action,
            hold,
            held,
            descriptors,
        } = new;
        Open {
            persistent: id,
            vfs,
            node,
            kind,
            access,
            options,
            file,
            claim,
            base: OnceLock::new(),
            caching,
            share: OnceLock::new(),
            audited: OnceLock::new(),
            by_short: OnceLock::new(),
            durable: OnceLock::new(),
            resilient_ms: AtomicU32::new(0),
            create: OnceLock::new(),
            action,
            posix: AtomicBool::new(false),
            replayable: AtomicBool::new(false),
            locks: LockSequences::default(),
            position: AtomicU64::new(0),
            scan: futures_util::lock::Mutex::default(),
            sequence,
            notify: Notify::default(),
            place: Mutex::new(place),
            kept_mtime: Mutex::new(None),
            written_since: AtomicBool::new(false),
            told_losses: AtomicU64::new(0),
            unlisted: AtomicBool::new(false),
            change_time: Mutex::new(ChangeTime::Moves),
            defers_change: AtomicBool::new(false),
            _hold: hold,
            held,
            descriptors,
        }
    }

    /// The charge for its memory, to charge a replacement to the same account.
    pub(super) fn held(&self) -> &Charge {
        &self.held
    }

    /// The charge for its descriptors.
    pub(super) fn descriptors(&self) -> &Charge {
        &self.descriptors
    }

    /// Charges a byte-range lock; pass the result to [`Open::locked`] once the lock is taken.
    pub(super) fn lock_charge(&self) -> Result<Charge, Refused> {
        self.held.beside(LOCK_BYTES).map_err(|_| Refused::Limit("memory for byte-range locks"))
    }

    /// Counts a lock that was taken.
    pub(super) fn locked(&self, charge: Charge) {
        self.held.absorb(charge);
    }

    /// Releases a lock.
    pub(super) fn unlock(&self, range: Range) -> Result<(), Refused> {
        self.claim.unlock(range)?;
        self.held.shrink(LOCK_BYTES);
        Ok(())
    }

    /// Restores a lock that was released by mistake, whether there is room or not.
    pub(super) fn lock_again(&self, range: Range, exclusive: bool) -> Result<(), Refused> {
        self.claim.try_lock(range, exclusive)?;
        self.held.absorb(self.held.budget().restore(self.held.holder().clone(), LOCK_BYTES));
        Ok(())
    }

    /// Fails unless all of `access` was granted.
    pub(super) fn require(&self, access: AccessMask) -> Result<(), NtStatus> {
        if self.access.contains(access) { Ok(()) } else { Err(NtStatus::ACCESS_DENIED) }
    }

    /// Fails unless some of `access` was granted.
    pub(super) fn require_any(&self, access: AccessMask) -> Result<(), NtStatus> {
        if self.access.intersects(access) { Ok(()) } else { Err(NtStatus::ACCESS_DENIED) }
    }

    /// The name under which it was opened, or renamed since; empty for the share's root.
    pub(super) fn name(&self) -> Vec<u8> {
        lock(&self.place).name.clone()
    }

    /// The name under which it was opened, or renamed since.
    pub(in crate::server) fn last_name(&self) -> String {
        String::from_utf8_lossy(&lock(&self.place).name).into_owned()
    }

    /// The file's current directory and name: those of the open if they still refer to it, otherwise the place that
    /// another client has moved it to.
    pub(super) async fn place(&self) -> Result<DirName, Error> {
        self.place_by(&self.vfs).await
    }

    async fn place_by(&self, vfs: &Vfs) -> Result<DirName, Error> {
        let place = lock(&self.place).clone();
        match vfs.lookup(place.dir, &place.name, false).await {
            Ok(attr) if attr.node == vfs.base(self.node) => Ok(place),
            _ => vfs.place(self.node).await,
        }
    }

    /// Its current path in the share as the server sees it, whatever its user may look up: `FILE:STREAM` for a stream.
    pub(super) async fn path(&self) -> Result<Vec<u8>, Error> {
        let vfs = self.vfs.as_server();
        let mut path = match vfs.base(self.node) {
            NodeId::ROOT => Vec::new(),
            _ => path_in(&vfs, self.place_by(&vfs).await?.borrow()).await?,
        };
        if let Some((_, stream)) = vfs.stream_of(self.node) {
            path.push(b':');
            path.extend_from_slice(&stream);
        }
        Ok(path)
    }

    /// What the audit log is told of it, with the path that it has by now: it may have been moved through another open,
    /// or with a folder above it. `None` without an audit log.
    pub(super) async fn located(&self) -> Option<&AuditedOpen> {
        let audited = self.audited.get()?;
        // Boxed, so that operations that tell nothing do not carry the space for it.
        if let Ok(path) = Box::pin(self.path()).await {
            audited.is_at(path);
        }
        Some(audited)
    }

    /// The file's current place; of a file whose name another client has removed, the last one.
    pub(super) async fn place_or_last(&self) -> Result<DirName, Error> {
        match self.place().await {
            Err(Error::NotFound | Error::Stale) => Ok(self.last_place()),
            place => place,
        }
    }

    /// Its place as far as this open knows.
    pub(super) fn last_place(&self) -> DirName {
        lock(&self.place).clone()
    }

    pub(super) fn set_place(&self, place: DirName) {
        *lock(&self.place) = place;
    }

    /// From here on, writes through this open do not change the modification time ([MS-FSA] 2.1.5.15.2,
    /// UserSetModificationTime); `None` ends that.
    pub(super) fn keep_mtime(&self, mtime: Option<Timestamp>) {
        *lock(&self.kept_mtime) = mtime;
        self.written_since.store(false, Ordering::Release);
    }

    /// The modification time that the client has set and keeps, if any.
    pub(super) fn kept_mtime(&self) -> Option<Timestamp> {
        *lock(&self.kept_mtime)
    }

    /// Records a write of this many bytes; 0 if they do not count as the client's.
    pub(super) async fn written(&self, bytes: u64) {
        self.has_written();
        self.tell_change(bytes).await;
    }

    /// The same for an open of which the audit log tells nothing.
    pub(super) fn has_written(&self) {
        if !self.unlisted.load(Ordering::Relaxed) {
            self.unlisted.store(true, Ordering::Release);
        }
        if self.defers_change.load(Ordering::Relaxed) {
            self.show_change();
        }
        self.has_resized();
    }

    fn has_resized(&self) {
        // A shared flag: written once, then only read.
        if !self.written_since.load(Ordering::Relaxed) {
            self.written_since.store(true, Ordering::Release);
        }
    }

    /// Records a change of the data about which those who cache the directory have been notified.
    pub(super) async fn resized(&self, bytes: u64) {
        self.has_resized();
        self.tell_change(bytes).await;
    }

    /// Tells the audit log of changed bytes.
    async fn tell_change(&self, bytes: u64) {
        if let Some(audited) = self.audited.get() {
            // It is told even if the connection is lost while the path is looked up.
            let told = Written { audited, bytes };
            if audited.tells_write() {
                self.located().await;
            }
            drop(told);
        }
    }

    /// The change time that its client sees, if that is not the file's.
    pub(super) fn change_time(&self) -> ChangeTime {
        *lock(&self.change_time)
    }

    pub(super) fn set_change_time(&self, to: ChangeTime) {
        *lock(&self.change_time) = to;
        self.defers_change.store(matches!(to, ChangeTime::Deferred(_)), Ordering::Relaxed);
    }

    /// Shows a deferred change time from now on.
    pub(super) fn show_change(&self) {
        if matches!(self.change_time(), ChangeTime::Deferred(_)) {
            self.set_change_time(ChangeTime::Moves);
        }
    }

    /// Whether it can wait for its client: it has handle caching, and nobody is breaking that.
    pub(super) fn may_be_kept(&self) -> bool {
        let (has, left) = self.vfs.opens().caching(self.node, self.claim.key());
        // Byte-range locks are safe only while the client is the only writer.
        let locks_are_safe = has.write || !self.claim.has_locked();
        left.is_none() && has.handle && locks_are_safe && !matches!(self.caching, Caching::None)
    }

    /// Makes it wait this long for its client, whatever its caching rights (3.3.5.15.9).
    pub(super) fn set_resilient(&self, timeout: Duration) {
        self.resilient_ms.store(u32::try_from(timeout.as_millis()).unwrap_or(u32::MAX), Ordering::Release);
    }

    /// How long it waits in any case.
    pub(super) fn resilient(&self) -> Option<Duration> {
        Some(self.resilient_ms.load(Ordering::Acquire))
            .filter(|ms| *ms > 0)
            .map(|ms| Duration::from_millis(ms.into()))
    }

    /// Whether it survives a restart of the server.
    pub(super) fn is_persistent(&self) -> bool {
        self.durable.get().is_some_and(|durable| durable.persistent().is_some())
    }

    /// Whether it was opened with POSIX semantics.
    pub(super) fn is_posix(&self) -> bool {
        self.posix.load(Ordering::Acquire)
    }

    /// Marks it as opened with POSIX semantics.
    pub(super) fn set_posix(&self) {
        self.posix.store(true, Ordering::Release);
        self.claim.set_delete_at_once(true);
    }

    /// Whether its CREATE may be repeated: nothing was done with it yet.
    pub(super) fn is_replayable(&self) -> bool {
        self.replayable.load(Ordering::Acquire)
    }

    /// Allows its CREATE to be repeated.
    pub(super) fn set_replayable(&self) {
        self.replayable.store(true, Ordering::Release);
    }

    /// Its CREATE must not be repeated any more: something is done with it.
    pub(in crate::server) fn forbid_replay(&self) {
        if self.is_replayable() {
            self.replayable.store(false, Ordering::Release);
        }
    }

    /// The first half of closing, as far as it needs no waiting. Returns the remainder, if any: only a persistent open,
    /// one that keeps a time, or one whose end is told to the audit log has one. Unless it `ends`, another open continues
    /// it.
    pub(super) fn settle(self: &Arc<Open>, ends: bool) -> Option<LocalBoxFuture<'static, ()>> {
        self.notify.close();
        let mtime = if self.written_since.load(Ordering::Acquire) { *lock(&self.kept_mtime) } else { None };
        let frozen = match self.change_time() {
            ChangeTime::Frozen(frozen) => Some(frozen),
            _ => None,
        };
        let is_told = ends && self.audited.get().is_some_and(|audited| audited.tells_close());
        if mtime.is_none() && frozen.is_none() && !self.is_persistent() && !is_told {
            self.forgotten(ends);
            return None;
        }
        let open = self.clone();
        Some(Box::pin(async move {
            if let Some(persistent) = open.durable.get().and_then(Durable::persistent) {
                persistent.forget(open.persistent).await;
            }
            open.keep_times(mtime, frozen).await;
            if is_told {
                open.located().await;
            }
            open.forgotten(ends);
        }))
    }

    /// Restores the times that the client set.
    async fn keep_times(&self, mtime: Option<Timestamp>, frozen: Option<Timestamp>) {
        // The client was allowed to set them.
        let vfs = self.vfs.as_server();
        if let Some(mtime) = mtime {
            let set = SetAttr { mtime: Some(SetTime::To(mtime)), ..SetAttr::default() };
            if let Err(e) = vfs.setattr(self.node, set).await {
                tracing::debug!("cannot keep the modification time that a client set: {e}");
            }
        }
        if let Some(frozen) = frozen
            && let Err(e) = attributes::freeze_change(&vfs, self.node, &self.name(), frozen).await
        {
            tracing::debug!("cannot keep the change time that a client set: {e}");
        }
    }

    /// Completes the first half: its CREATE cannot be repeated, and its directory's listings show what it wrote.
    fn forgotten(&self, ends: bool) {
        if let Some(create) = self.create.get() {
            create.forget(self);
        }
        if let Some(audited) = self.audited.get().filter(|_| ends) {
            audited.close();
        }
        if self.unlisted.load(Ordering::Acquire) {
            // The directory's listings contain its size and times.
            self.vfs.children_changed(lock(&self.place).dir);
        }
    }

    /// The second half of closing: releases locks, share modes and caching rights, which others notice at once. Returns
    /// the deletion of the file, if any; it fails if the file stays.
    pub(super) fn leave(self: &Arc<Open>) -> Option<LocalBoxFuture<'static, Result<(), Error>>> {
        let Some(removal) = self.claim.close() else {
            if self.kind == Kind::Dir && self.vfs.opens().delete_pending(self.node) {
                // It is deleted when the others close; watches on it end now.
                self.vfs.end_watches(self.node);
            }
            let removal = self.base.get().and_then(Claim::close)?;
            let open = self.clone();
            return Some(Box::pin(async move { open.remove_base(removal).await }));
        };
        let open = self.clone();
        Some(Box::pin(async move {
            let left = open.remove(removal).await;
            match open.base.get().and_then(Claim::close) {
                Some(removal) => left.and(open.remove_base(removal).await),
                None => left,
            }
        }))
    }

    /// Records the removal of a file that was opened by its 8.3 name, which may be created again.
    fn tunnelled(&self, dir: NodeId, name: Vec<u8>) {
        if let Some((tunnel, short)) = self.by_short.get() {
            tunnel.removed((self.vfs.opens(), dir), short, name, rt::now());
        }
    }

    /// Deletes the file of a stream, which waited for the stream to close.
    async fn remove_base(&self, removal: Removal) -> Result<(), Error> {
        let removed = match self.vfs.place(removal.node()).await {
            Ok(place) => {
                if let Some(audited) = self.audited.get()
                    && let Ok(path) = path_in(&self.vfs.as_server(), place.borrow()).await
                {
                    // The file's, not the stream's.
                    audited.is_at(path);
                }
                match self.vfs.remove(place.dir, &place.name).await {
                    Err(Error::IsDir) => self.vfs.rmdir(place.dir, &place.name).await,
                    other => other,
                }
            }
            Err(e) => Err(e),
        };
        drop(removal);
        self.report(removed).await
    }

    async fn remove(&self, removal: Removal) -> Result<(), Error> {
        // Afterwards it has no path.
        self.located().await;
        if let Some((base, name)) = self.vfs.stream_of(self.node) {
            let removed = self.vfs.remove_stream(base, &name).await;
            drop(removal);
            return self.report(removed).await;
        }
        // A client that caches the directory keeps its cache only if it is both the one who marked the file and the
        // last to close it.
        let vfs = self.vfs.in_name_of(removal.parent());
        let removed = match self.place().await {
            Ok(DirName { dir, name }) if self.kind == Kind::Dir => vfs.rmdir(dir, &name).await,
            Ok(DirName { dir, name }) => vfs.remove(dir, &name).await.inspect(|()| self.tunnelled(dir, name)),
            Err(e) => Err(e),
        };
        drop(removal);
        self.report(removed).await
    }

    /// The result of a deletion: a failure is logged, and becomes the answer of the CLOSE.
    async fn report(&self, removed: Result<(), Error>) -> Result<(), Error> {
        static STAYED: LogLimit = LogLimit::new();
        if let Some(audited) = self.audited.get() {
            match &removed {
                Ok(()) => audited.tell(Audited::Delete, Outcome::Done, Vec::new()),
                Err(Error::Access | Error::ReadOnly) => {
                    let denied = Outcome::Denied(NtStatus::ACCESS_DENIED.to_string());
                    audited.tell(Audited::Delete, denied, Vec::new());
                }
                Err(_) => {}
            }
        }
        let e = match removed {
            // [MS-FSA] 2.1.5.5: a directory that is not empty stays, and closing it succeeds.
            Ok(()) | Err(Error::NotFound | Error::Stale | Error::NotEmpty) => return Ok(()),
            Err(e) => e,
        };
        if let Some(left_out) = STAYED.pass(rt::now()) {
            let path = self.vfs.path(self.node).await.unwrap_or_else(|_| self.name());
            let share = self.share.get().map_or("", |share| share);
            tracing::warn!(
                "share {share}: cannot delete \"{}\" on close: {e}{left_out}",
                path.escape_ascii()
            );
        }
        Err(e)
    }
}

/// The path of a name in a directory.
pub(super) async fn path_in(vfs: &Vfs, at: DirName<&[u8]>) -> Result<Vec<u8>, Error> {
    let mut path = vfs.path(at.dir).await?;
    if !path.is_empty() {
        path.push(b'/');
    }
    path.extend_from_slice(at.name);
    Ok(path)
}

/// A change that the audit log is told of when this is dropped.
struct Written<'a> {
    audited: &'a AuditedOpen,
    bytes: u64,
}

impl Drop for Written<'_> {
    fn drop(&mut self) {
        self.audited.wrote(self.bytes);
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // These values are only replaced as a whole, so a poisoned lock is harmless.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The open table of a session.
#[derive(Default)]
pub(crate) struct Opens {
    slots: Mutex<Slab<Slot>>,
    /// Distinguishes successive users of a slot.
    serial: AtomicU32,
}

struct Slot {
    serial: u32,
    /// TreeId of its tree.
    tree: u32,
    open: Arc<Open>,
}

impl Slot {
    fn id(&self, at: usize) -> FileId {
        let volatile = u64::from(self.serial) << 32 | at as u64 & 0xffff_ffff;
        FileId { persistent: self.open.persistent, volatile }
    }
}

/// The slot that a FileId refers to, if any.
fn slot(id: FileId) -> usize {
    id.volatile as u32 as usize
}

impl Opens {
    /// Adds an open; returns it if the session already has `limit`.
    pub(super) fn insert(&self, open: OwnedOpen, tree: u32, limit: usize) -> Result<FileId, OwnedOpen> {
        let mut slots = lock(&self.slots);
        if slots.len() >= limit {
            return Err(open);
        }
        // Never all ones, which means "none", nor 0, which clients take for "not opened yet".
        let serial = (self.serial.fetch_add(1, Ordering::Relaxed) % 0x7fff_ffff).saturating_add(1);
        let (vacant, slot) = (slots.vacant_entry(), Slot { serial, tree, open: open.hand_over() });
        let id = slot.id(vacant.key());
        vacant.insert(slot);
        Ok(id)
    }

    /// The open that a request names, in its tree.
    pub(in crate::server) fn find(&self, id: FileId, tree: u32) -> Option<Arc<Open>> {
        let slots = lock(&self.slots);
        let found = slots.get(slot(id)).filter(|known| known.id(slot(id)) == id && known.tree == tree)?;
        Some(found.open.clone())
    }

    /// The open with this id in any tree of the session: the source of a copy may be on another share.
    pub(super) fn find_anywhere(&self, id: FileId) -> Option<Arc<Open>> {
        let slots = lock(&self.slots);
        let found = slots.get(slot(id)).filter(|known| known.id(slot(id)) == id)?;
        Some(found.open.clone())
    }

    /// Takes an open out.
    pub(super) fn remove(&self, id: FileId, tree: u32) -> Option<OwnedOpen> {
        let mut slots = lock(&self.slots);
        slots.get(slot(id)).filter(|known| known.id(slot(id)) == id && known.tree == tree)?;
        Some(OwnedOpen::new(slots.try_remove(slot(id))?.open))
    }

    /// Gives the FileId of `old` to `new`, which has the same number. Returns `old`, or `new` as an error if `old` was
    /// closed meanwhile.
    pub(super) fn replace(&self, old: &Arc<Open>, new: OwnedOpen) -> Result<OwnedOpen, OwnedOpen> {
        let mut slots = lock(&self.slots);
        let Some((_, slot)) = slots.iter_mut().find(|(_, slot)| Arc::ptr_eq(&slot.open, old)) else {
            return Err(new);
        };
        Ok(OwnedOpen::new(std::mem::replace(&mut slot.open, new.hand_over())))
    }

    /// The persistent opens that `which` selects.
    pub(super) fn select(&self, which: impl Fn(&Open) -> bool) -> Vec<Arc<Open>> {
        let slots = lock(&self.slots);
        let all = slots.iter().map(|(_, slot)| &slot.open);
        all.filter(|open| open.is_persistent() && which(open)).cloned().collect()
    }

    /// Number of opens of one node of this file system.
    pub(super) fn count_on(&self, of: &Arc<weft_store::opens::Opens>, node: NodeId) -> usize {
        let is_on = |slot: &Slot| slot.open.node == node && Arc::ptr_eq(slot.open.vfs.opens(), of);
        lock(&self.slots).iter().filter(|(_, slot)| is_on(slot)).count()
    }

    /// Number of opens.
    pub(crate) fn len(&self) -> usize {
        lock(&self.slots).len()
    }

    /// The FileId of an open in this table, and its tree.
    pub(super) fn name_of(&self, open: &Arc<Open>) -> Option<(FileId, u32)> {
        let slots = lock(&self.slots);
        let (at, slot) = slots.iter().find(|(_, slot)| Arc::ptr_eq(&slot.open, open))?;
        Some((slot.id(at), slot.tree))
    }

    /// Closes the opens of one tree, including delete-on-close.
    pub(crate) async fn close_tree(&self, tree: u32) {
        for open in self.take(|slot| slot.tree == tree) {
            open.close().await;
        }
    }

    /// Ends every open: durable ones move to where they wait for their client, the others are closed.
    pub(crate) async fn end_all(&self) {
        // Durable ones first, before any await: their clients may be back already.
        let kept = self.take(|_| true).into_iter().map(OwnedOpen::keep);
        let closing: Vec<OwnedOpen> = kept.filter_map(Result::err).collect();
        for open in closing {
            open.close().await;
        }
    }

    fn take(&self, which: impl Fn(&Slot) -> bool) -> Vec<OwnedOpen> {
        let mut taken = Vec::new();
        lock(&self.slots).retain(|_, slot| {
            let take = which(slot);
            if take {
                taken.push(OwnedOpen::new(slot.open.clone()));
            }
            !take
        });
        taken
    }
}
