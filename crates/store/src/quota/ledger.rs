//! The space of a folder, counted: how much each of its files occupies, and the sum, which limits bound: all shares of the
//! folder have one ledger, and each has its own limit ([`Allowance`]).
//!
//! What counts is allocated blocks, as du(1) shows them: holes are free, reserved space is not, a file with several names
//! counts once, and so do directories. A removed file counts until the last client has closed it.
//!
//! ```text
//! used = what was measured of each file + reservations of operations under way + credit of files that are written
//! ```
//!
//! An operation that may take space reserves it first, so concurrent writers cannot exceed the limit. Afterwards its file is
//! measured, and then the reservation ends. Of two measurements of a file, the one that began later counts, so the result
//! includes every earlier change.
//!
//! **Credit.** A WRITE should cost one atomic operation and no system call. So a file that is written gets
//! [`CREDIT_BYTES`] in advance, and its writes take from that. It is measured when the credit is used up, when the file is
//! closed, and when the sum is wanted. Near the smallest limit there is no credit, and each write is measured.
//!
//! Slack: a write that has taken credit and is still under way when its file is measured does not count until it ends. One
//! write of each serving thread can be in that state, so the limit may be exceeded by [`SLACK_BYTES`] for each of them.
//!
//! Limits: [`MAX_FILES`] files.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};

use rustix::fs::Statx;
use weft_machine::File;

use crate::vfs::{Attr, Error, Quota};

/// The most files and folders of a counted share: each takes some 50 bytes of memory.
pub const MAX_FILES: usize = 200_000;
/// What a file gets at once while it is written.
pub const CREDIT_BYTES: u64 = 4 << 20;
/// Credit is given while so much is free.
const ROOM_FOR_CREDIT_BYTES: u64 = 64 << 20;
/// What a serving thread may exceed the limit by: the longest write.
pub const SLACK_BYTES: u64 = 8 << 20;
/// Space is reserved in units of this size, the block size of most file systems.
pub(super) const BLOCK: u64 = 4096;
/// The limit of a share whose quota has ended.
pub(super) const NO_LIMIT: u64 = u64::MAX;

/// Identifies a file below the share's root.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) struct Inode {
    /// 0 for the device of the share's root.
    pub device: u32,
    pub number: u64,
}

impl Inode {
    pub(super) fn of(attr: &Attr) -> Inode {
        let [a, b, c, d, e, f, g, h, ..] = attr.stable.0;
        let [.., w, x, y, z] = attr.stable.0;
        Inode {
            device: u32::from_le_bytes([w, x, y, z]),
            number: u64::from_le_bytes([a, b, c, d, e, f, g, h]),
        }
    }

    /// The same from what the kernel says; `home` is the device of the share's root.
    pub(super) fn of_stat(stat: &Statx, home: (u32, u32)) -> Inode {
        let (major, minor) = (stat.stx_dev_major, stat.stx_dev_minor);
        let device = if (major, minor) == home { 0 } else { major << 20 | minor & 0xf_ffff };
        Inode { device, number: stat.stx_ino }
    }
}

/// When a measurement began, among all of the ledger.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) struct Begun(u64);

#[cfg(test)]
impl Begun {
    /// How many measurements have begun since another one.
    pub(super) fn since(self, other: Begun) -> u64 {
        self.0 - other.0
    }
}

/// See the module.
#[derive(Debug)]
pub(super) struct Ledger {
    /// The smallest limit of a share. Credit of an open file is for every share's writes to it, so it is given within this
    /// limit.
    least_bytes: AtomicU64,
    /// Whether the folder cannot be counted, so that nothing may grow.
    is_unknown: AtomicBool,
    used_bytes: AtomicU64,
    begun: AtomicU64,
    /// The number of known files, which can be read without the lock.
    files: AtomicUsize,
    books: Mutex<Books>,
}

#[derive(Debug, Default)]
struct Books {
    files: HashMap<Inode, Entry>,
    /// The files with credit.
    credited: HashMap<Inode, Weak<Account>>,
    /// The shares of the folder.
    allowances: Vec<Weak<Allowance>>,
    /// While the folder is counted: the count's number, and what was removed since it began.
    counting: Option<HashMap<Inode, Begun>>,
    /// The number of the last count.
    count: u32,
    /// Directories that were moved; a count may have missed what is in them.
    moved: u64,
    /// What was used when the server ended, as far as nothing that was found since explains it. Until the first count is
    /// complete.
    remembered_bytes: u64,
    /// The space of files that a count has not found again. They may be in directories that it could not read.
    hidden_bytes: u64,
}

/// A known file.
#[derive(Debug)]
struct Entry {
    bytes: u64,
    measured: Begun,
    /// The last count that has seen it.
    count: u32,
    /// Whether its last name was removed.
    is_unlinked: bool,
    /// Present while it is open.
    account: Weak<Account>,
}

/// Space that an operation may take; given back when it is dropped, after what it took was measured.
#[derive(Debug)]
pub(super) struct Reserved {
    ledger: Arc<Ledger>,
    bytes: u64,
}

impl Drop for Reserved {
    fn drop(&mut self) {
        self.ledger.give(self.bytes);
    }
}

/// What a count has found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Counted {
    /// Files whose removal by others was noticed.
    pub gone: usize,
    /// Whether directories were moved meanwhile, so that files may have been missed.
    pub is_uncertain: bool,
}

impl Ledger {
    pub(super) fn new() -> Arc<Ledger> {
        Arc::new(Ledger {
            least_bytes: AtomicU64::new(NO_LIMIT),
            is_unknown: AtomicBool::new(false),
            used_bytes: AtomicU64::new(0),
            begun: AtomicU64::new(1),
            files: AtomicUsize::new(0),
            books: Mutex::default(),
        })
    }

    /// The folder occupied so much when it was last counted, which is the least that counts until the next count is complete.
    pub(super) fn remember(&self, used_bytes: u64) {
        let mut books = self.books();
        let more = used_bytes.saturating_sub(self.used_bytes.load(Ordering::Relaxed));
        books.remembered_bytes = books.remembered_bytes.saturating_add(more);
        self.used_bytes.fetch_add(more, Ordering::Relaxed);
    }

    // A change that panics under the lock leaves the ledger usable.
    fn books(&self) -> MutexGuard<'_, Books> {
        self.books.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A share has come or gone, or has another limit.
    fn limits_changed(&self) {
        // Dropped after the lock is free, because the last owner of one comes here.
        let mut live = Vec::new();
        let mut books = self.books();
        books.allowances.retain(|allowance| allowance.strong_count() > 0);
        live.extend(books.allowances.iter().filter_map(Weak::upgrade));
        let least = live.iter().map(|allowance| allowance.limit_bytes()).min();
        self.least_bytes.store(least.unwrap_or(NO_LIMIT), Ordering::Relaxed);
    }

    /// The smallest limit of a share.
    pub(super) fn least_bytes(&self) -> u64 {
        self.least_bytes.load(Ordering::Relaxed)
    }

    /// Whether the folder cannot be counted: then nothing may grow.
    pub(super) fn set_unknown(&self, is_unknown: bool) {
        self.is_unknown.store(is_unknown, Ordering::Relaxed);
        self.settle_all();
    }

    pub(super) fn is_unknown(&self) -> bool {
        self.is_unknown.load(Ordering::Relaxed)
    }

    /// The number of known files and directories.
    pub(super) fn files(&self) -> usize {
        self.files.load(Ordering::Relaxed)
    }

    pub(super) fn has_room_for_a_file(&self) -> bool {
        self.files() < MAX_FILES
    }

    /// What is used now. Measures the files that are being written.
    pub(super) fn used_bytes(&self) -> u64 {
        self.settle_all();
        self.used_bytes.load(Ordering::Relaxed)
    }

    /// The same without a look at any file: what is being written may count as more than it is.
    pub(super) fn used_at_most(&self) -> u64 {
        self.used_bytes.load(Ordering::Relaxed)
    }

    fn take(&self, bytes: u64, limit_bytes: u64) -> bool {
        let limit = if self.is_unknown() { 0 } else { limit_bytes };
        let fits = |used: u64| used.checked_add(bytes).filter(|&sum| sum <= limit);
        bytes == 0 || self.used_bytes.fetch_update(Ordering::Relaxed, Ordering::Relaxed, fits).is_ok()
    }

    fn give(&self, bytes: u64) {
        if bytes > 0 {
            self.used_bytes.fetch_sub(bytes, Ordering::Relaxed);
        }
    }

    /// The credit of all files is needed, or the exact sum.
    fn settle_all(&self) {
        let credited: Vec<_> = self.books().credited.values().filter_map(Weak::upgrade).collect();
        credited.iter().for_each(|account| account.settle());
    }

    /// A measurement begins: what has happened to the file until now is in it.
    pub(super) fn begin(&self) -> Begun {
        Begun(self.begun.fetch_add(1, Ordering::SeqCst))
    }

    /// Records the space that a file occupies.
    pub(super) fn measured(&self, inode: Inode, bytes: u64, begun: Begun) {
        self.found(&mut self.books(), inode, bytes, begun);
    }

    /// A new file occupies so much.
    pub(super) fn created(&self, inode: Inode, bytes: u64, begun: Begun) {
        self.set(&mut self.books(), inode, bytes, begun);
    }

    /// A file that was there before is known from now on, and no longer part of what is remembered.
    fn found(&self, books: &mut Books, inode: Inode, bytes: u64, begun: Begun) {
        let is_explained = books.remembered_bytes > 0 && !books.files.contains_key(&inode);
        self.set(books, inode, bytes, begun);
        if is_explained {
            let explained = bytes.min(books.remembered_bytes);
            books.remembered_bytes -= explained;
            self.give(explained);
        }
    }

    fn set(&self, books: &mut Books, inode: Inode, bytes: u64, begun: Begun) {
        if books.counting.as_ref().and_then(|gone| gone.get(&inode)).is_some_and(|gone| *gone > begun) {
            return;
        }
        let count = books.count;
        let entry = books.files.entry(inode).or_insert_with(|| Entry {
            bytes: 0,
            measured: Begun(0),
            count,
            is_unlinked: false,
            account: Weak::new(),
        });
        if entry.measured <= begun {
            self.used_bytes.fetch_add(bytes, Ordering::Relaxed);
            self.give(entry.bytes);
            (entry.bytes, entry.measured) = (bytes, begun);
        }
        entry.count = count;
        self.files.store(books.files.len(), Ordering::Relaxed);
    }

    /// The file has lost its last name, by an operation that began after `begun`: it counts while a client has it open. What
    /// was measured later may be another file with its number, and stays until the next count.
    pub(super) fn unlinked(&self, inode: Inode, begun: Begun) {
        let books = &mut *self.books();
        if let Some(gone) = books.counting.as_mut() {
            gone.insert(inode, begun);
        }
        let Some(entry) = books.files.get_mut(&inode) else { return };
        if entry.account.strong_count() > 0 {
            entry.is_unlinked = true;
        } else if entry.measured <= begun {
            self.forget(books, inode);
        }
    }

    fn forget(&self, books: &mut Books, inode: Inode) {
        if let Some(entry) = books.files.remove(&inode) {
            self.give(entry.bytes);
        }
        self.files.store(books.files.len(), Ordering::Relaxed);
    }

    /// Whether the folder is being counted.
    pub(super) fn is_counting(&self) -> bool {
        self.books().counting.is_some()
    }

    /// A name is moved.
    pub(super) fn moved(&self) {
        self.books().moved += 1;
    }

    /// The account of an open file.
    pub(super) fn account(self: &Arc<Ledger>, inode: Inode, bytes: u64, begun: Begun) -> Arc<Account> {
        let mut books = self.books();
        self.found(&mut books, inode, bytes, begun);
        let new = || {
            Arc::new(Account {
                ledger: self.clone(),
                inode,
                file: OnceLock::new(),
                credit: AtomicU64::new(0),
                held: Mutex::default(),
            })
        };
        match books.files.get_mut(&inode) {
            Some(entry) => entry.account.upgrade().unwrap_or_else(|| {
                let account = new();
                entry.account = Arc::downgrade(&account);
                account
            }),
            // Removed while it was opened.
            None => new(),
        }
    }

    /// A count of the folder begins.
    pub(super) fn begin_count(&self) -> u64 {
        let mut books = self.books();
        books.count = books.count.wrapping_add(1);
        books.counting = Some(HashMap::new());
        books.moved
    }

    /// The count is complete: what it has not found was removed by others, unless directories were moved since it began. If
    /// some were closed to it, the space of what was not found still counts, so that nobody gains space by closing a directory.
    pub(super) fn end_count(&self, moved: u64, is_partial: bool) -> Counted {
        let books = &mut *self.books();
        books.counting = None;
        if books.moved != moved {
            return Counted { gone: 0, is_uncertain: true };
        }
        let before = books.files.len();
        let lost_bytes = self.keep_found(books);
        if is_partial {
            books.hidden_bytes = books.hidden_bytes.saturating_add(lost_bytes);
        } else {
            self.give(lost_bytes.saturating_add(std::mem::take(&mut books.hidden_bytes)));
        }
        Counted { gone: before - books.files.len(), is_uncertain: false }
    }

    /// A count is complete, as far as counts can be: what is remembered and was not found is gone. It may be in a folder that is
    /// closed to the count; then it counts until everything can be reached again.
    pub(super) fn forget_remembered(&self, is_partial: bool) {
        let books = &mut *self.books();
        let left = std::mem::take(&mut books.remembered_bytes);
        match is_partial {
            true => books.hidden_bytes = books.hidden_bytes.saturating_add(left),
            false => self.give(left),
        }
    }

    /// The count was given up. What it had not found by then counts until the next one, and takes no memory meanwhile.
    pub(super) fn abandon_count(&self) {
        let books = &mut *self.books();
        books.counting = None;
        books.hidden_bytes = books.hidden_bytes.saturating_add(self.keep_found(books));
    }

    /// Keeps the files that the last count has found, and those that are open. Returns what the others occupied.
    fn keep_found(&self, books: &mut Books) -> u64 {
        let (count, mut lost_bytes) = (books.count, 0_u64);
        books.files.retain(|_, entry| {
            let stays = entry.count == count || entry.account.strong_count() > 0;
            if !stays {
                lost_bytes = lost_bytes.saturating_add(entry.bytes);
            }
            stays
        });
        self.files.store(books.files.len(), Ordering::Relaxed);
        lost_bytes
    }
}

/// What one share of a folder may use of it.
#[derive(Debug)]
pub(super) struct Allowance {
    ledger: Arc<Ledger>,
    limit_bytes: AtomicU64,
}

impl Allowance {
    /// Of another share of the ledger's folder.
    pub(super) fn new(ledger: Arc<Ledger>, limit_bytes: u64) -> Arc<Allowance> {
        let own = Arc::new(Allowance { ledger, limit_bytes: AtomicU64::new(limit_bytes) });
        own.ledger.books().allowances.push(Arc::downgrade(&own));
        own.ledger.limits_changed();
        // Credit was given without this limit.
        own.ledger.settle_all();
        own
    }

    pub(super) fn ledger(&self) -> &Arc<Ledger> {
        &self.ledger
    }

    pub(super) fn limit_bytes(&self) -> u64 {
        self.limit_bytes.load(Ordering::Relaxed)
    }

    pub(super) fn set_limit(&self, bytes: u64) {
        self.limit_bytes.store(bytes, Ordering::Relaxed);
        self.ledger.limits_changed();
        // Credit was given under another limit.
        self.ledger.settle_all();
    }

    fn take(&self, bytes: u64) -> bool {
        self.ledger.take(bytes, self.limit_bytes()) || {
            self.ledger.settle_all();
            self.ledger.take(bytes, self.limit_bytes())
        }
    }

    /// Reserves space for an operation on names.
    pub(super) fn reserve(&self, bytes: u64) -> Result<Reserved, Error> {
        let bytes = bytes.next_multiple_of(BLOCK);
        match self.take(bytes) {
            true => Ok(Reserved { ledger: self.ledger.clone(), bytes }),
            false => Err(Error::OverQuota),
        }
    }
}

impl Drop for Allowance {
    fn drop(&mut self) {
        self.ledger.limits_changed();
    }
}

/// The space of one open file, shared by its opens.
///
/// Credit and the number of its settlements are in one word, so that a writer takes credit and learns the number in one
/// step. A number that has changed when its write ends says that the write may have been missed.
///
/// ```text
/// bit 63              40 39            0
///     | settlements     | credit, bytes |
/// ```
#[derive(Debug)]
pub(super) struct Account {
    ledger: Arc<Ledger>,
    inode: Inode,
    /// Present once it was opened for writing.
    file: OnceLock<File>,
    credit: AtomicU64,
    held: Mutex<Held>,
}

#[derive(Debug, Default)]
struct Held {
    /// What the ledger has given for credit.
    credit_bytes: u64,
    /// Writes to space that the file occupies already, which were admitted without a reservation.
    overwrites: Vec<Range<u64>>,
}

const CREDIT_BITS: u32 = 40;
const CREDIT_MASK: u64 = (1 << CREDIT_BITS) - 1;

fn settlements(word: u64) -> u64 {
    word >> CREDIT_BITS
}

/// The bytes of the blocks that a range touches.
fn in_blocks(range: &Range<u64>) -> u64 {
    let start = range.start - range.start % BLOCK;
    range.end.checked_next_multiple_of(BLOCK).unwrap_or(u64::MAX).saturating_sub(start)
}

impl Account {
    fn held(&self) -> MutexGuard<'_, Held> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// From now on it is measured through this descriptor.
    pub(super) fn opened(&self, file: &File) {
        self.file.get_or_init(|| file.clone());
    }

    fn measure(&self) {
        let Some(file) = self.file.get() else { return };
        let begun = self.ledger.begin();
        match file.occupied_bytes() {
            Ok(occupied) => self.ledger.measured(self.inode, occupied, begun),
            // It counts what it did before, until the next operation.
            Err(e) => tracing::warn!("the space of a file is unknown: {e}"),
        }
    }

    /// Takes credit for a write; returns the number of settlements.
    fn spend(&self, bytes: u64) -> Option<u64> {
        // Most files that are not written fail here, without a write to memory.
        let spent = |word: u64| (word & CREDIT_MASK >= bytes).then(|| word - bytes);
        self.credit.fetch_update(Ordering::AcqRel, Ordering::Relaxed, spent).ok().map(settlements)
    }

    /// Gets credit, if there is enough room.
    fn earn(self: &Arc<Account>) -> bool {
        self.settle();
        let used = self.ledger.used_bytes.load(Ordering::Relaxed);
        let least = self.ledger.least_bytes();
        if used.saturating_add(ROOM_FOR_CREDIT_BYTES) > least || !self.ledger.take(CREDIT_BYTES, least) {
            return false;
        }
        let mut held = self.held();
        held.credit_bytes += CREDIT_BYTES;
        // Below the bits of settlements: a file has at most the credit of as many threads as there are.
        self.credit.fetch_add(CREDIT_BYTES, Ordering::AcqRel);
        // With `held`, so that a settlement at the same time removes this entry or none.
        self.ledger.books().credited.insert(self.inode, Arc::downgrade(self));
        true
    }

    /// Gives unused credit back, and counts what was used.
    fn settle(&self) {
        let credit_bytes = {
            let mut held = self.held();
            let next = |word: u64| Some(settlements(word).wrapping_add(1) << CREDIT_BITS);
            let _ = self.credit.fetch_update(Ordering::AcqRel, Ordering::Relaxed, next);
            if held.credit_bytes == 0 {
                return;
            }
            self.ledger.books().credited.remove(&self.inode);
            std::mem::take(&mut held.credit_bytes)
        };
        // In this order there is never less than what is used.
        self.measure();
        self.ledger.give(credit_bytes);
    }
}

/// The account as the limit of a file that was opened in one share.
#[derive(Debug)]
pub(super) struct Limit {
    account: Arc<Account>,
    allowance: Arc<Allowance>,
}

impl Limit {
    pub(super) fn new(account: Arc<Account>, allowance: Arc<Allowance>) -> Limit {
        Limit { account, allowance }
    }
}

impl Quota for Limit {
    fn reserve(&self, range: Range<u64>) -> Result<(), Error> {
        let account = &self.account;
        if self.allowance.take(in_blocks(&range)) {
            return Ok(());
        }
        // Who has used everything up may still overwrite what is there.
        let blocks = range.start - range.start % BLOCK..range.end;
        if account.file.get().is_some_and(|file| file.occupies(blocks)) {
            account.held().overwrites.push(range);
            return Ok(());
        }
        Err(Error::OverQuota)
    }

    fn release(&self, range: Range<u64>, _allocated: bool) {
        let account = &self.account;
        account.measure();
        let mut held = account.held();
        match held.overwrites.iter().position(|one| *one == range) {
            Some(at) => {
                held.overwrites.swap_remove(at);
            }
            None => account.ledger.give(in_blocks(&range)),
        }
    }

    fn counts_blocks(&self) -> bool {
        true
    }

    fn write_now(
        &self,
        range: Range<u64>,
        write: &mut dyn FnMut() -> Option<Result<(), Error>>,
    ) -> Option<Result<(), Error>> {
        let account = &self.account;
        let bytes = in_blocks(&range);
        let paid = account.spend(bytes).or_else(|| {
            let may_earn = bytes <= CREDIT_BYTES && account.earn();
            if may_earn { account.spend(bytes) } else { None }
        });
        let Some(before) = paid else {
            if let Err(e) = self.reserve(range.clone()) {
                return Some(Err(e));
            }
            let written = write();
            self.release(range, false);
            return written;
        };
        let written = write();
        if settlements(account.credit.load(Ordering::Acquire)) != before {
            account.measure();
        }
        written
    }
}

impl Drop for Account {
    fn drop(&mut self) {
        self.settle();
        let books = &mut *self.ledger.books();
        books.credited.remove(&self.inode);
        // It may have been opened again meanwhile.
        let closed = books.files.get_mut(&self.inode).filter(|entry| entry.account.strong_count() == 0);
        let Some(entry) = closed else { return };
        entry.account = Weak::new();
        // In a folder that cannot be counted, files that are only opened are not kept.
        let is_needless = self.ledger.is_unknown() && books.counting.is_none();
        if entry.is_unlinked || is_needless {
            self.ledger.forget(books, self.inode);
        }
    }
}
