//! The journal of one side of a group: state, bitmaps and log, in one block of its own.
//!
//! The layouts of the parts are in `crate::state`, `crate::bitmap` and `crate::log`. Nothing here locks the journal
//! against a second process.
//!
//! ```text
//!      0   4096   state, copy 0
//!   4096   4096   state, copy 1
//!   8192      .   bitmaps: of peer 0 for each volume, of peer 1 for each volume, ... (so many bytes each, see the state)
//!      .      .   the ring log
//! ```
//!
//! Everything is flushed before anything relies on it. A promise of the state is written to both copies, one after the
//! other, so that a torn write or a page that is damaged later leaves one of them.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use weft_machine::clock::Time;
use weft_machine::{Payload, Pool, rt};
use weft_store::block::{Block, BlockOp, Outcome};
use weft_wire::repl::control::Era;
use weft_wire::repl::record::{MAX_MEMBERS, SECTOR};

use crate::bitmap::{self, Bitmap, PAGE_BYTES};
use crate::error::Error;
pub use crate::record::MIN_LOG_BYTES;
use crate::signal::Gate;
use crate::state::{COPY_BYTES, Damaged, Layout, MAX_PEERS, Member, State, Tail, bitmap_at};
use crate::status::Role;

/// The default size of a log: a few seconds of a fast disk.
pub const DEFAULT_LOG_BYTES: u64 = 1 << 30;

/// The parameters of a new journal.
#[derive(Clone, Debug)]
pub struct Format {
    /// The partnership: random, the same on all sides.
    pub partnership: [u8; 16],
    /// The initial role.
    pub role: Role,
    /// A random tag for the log, and for the first era of a source.
    pub tag: u64,
    /// Bytes of each volume, in the group's order.
    pub sizes: Vec<u64>,
    /// Bytes of the ring log, at least [`MIN_LOG_BYTES`].
    pub log_bytes: u64,
}

/// A group with its journal.
#[derive(Clone, Debug)]
pub struct Side {
    /// The block of the journal; [`bytes()`] gives its length.
    pub journal: Arc<dyn Block>,
    /// The volumes, in the group's order.
    pub members: Vec<Arc<dyn Block>>,
    /// The pool for reads.
    pub pool: Pool,
    /// What the logs of all groups that share the pool keep of it.
    pub log_memory: LogMemory,
    /// The clock.
    pub wall: Wall,
    /// Its names in messages.
    pub names: Names,
    /// A random number, drawn for each opening.
    pub draw: u64,
}

/// Bytes of the pool that the logs of all groups of a server keep in written records.
#[derive(Clone, Debug, Default)]
pub struct LogMemory(pub(crate) Arc<AtomicUsize>);

/// The names of a group and its volumes in messages.
#[derive(Clone, Debug)]
pub struct Names(Arc<(String, Vec<String>)>);

impl Names {
    /// The volumes in the group's order.
    pub fn new(group: &str, volumes: impl IntoIterator<Item = String>) -> Names {
        Names(Arc::new((group.to_owned(), volumes.into_iter().collect())))
    }

    /// The group.
    pub fn group(&self) -> &str {
        &self.0.0
    }

    /// "volume NAME", or its number if it has no name.
    pub fn volume(&self, member: usize) -> String {
        match self.0.1.get(member) {
            Some(name) => format!("volume {name}"),
            None => format!("volume number {member}"),
        }
    }
}

/// Unix time, derived from the monotonic clock and one reading of both.
#[derive(Clone, Copy, Debug)]
pub struct Wall {
    unix_ms: u64,
    at: Time,
}

impl Wall {
    /// Starts the clock at `unix_ms` milliseconds of Unix time.
    pub fn new(unix_ms: u64) -> Wall {
        Wall { unix_ms, at: rt::now() }
    }

    /// The time, milliseconds of Unix time.
    pub fn now_ms(&self) -> u64 {
        let since = u64::try_from(rt::now().since(self.at).as_millis()).unwrap_or(u64::MAX);
        self.unix_ms.saturating_add(since)
    }

    /// How long ago that was.
    pub fn age(&self, unix_ms: u64) -> Duration {
        Duration::from_millis(self.now_ms().saturating_sub(unix_ms))
    }
}

fn layout(format: &Format) -> Result<(Layout, Vec<Member>), Error> {
    let count = format.sizes.len();
    if count == 0 || count > MAX_MEMBERS {
        return Err(Error::Limit(format!("a group has 1 to {MAX_MEMBERS} volumes, not {count}")));
    }
    if format.log_bytes < MIN_LOG_BYTES || !format.log_bytes.is_multiple_of(SECTOR as u64) {
        return Err(Error::Limit(format!(
            "a log has at least {MIN_LOG_BYTES} bytes, in multiples of {SECTOR}, not {}",
            format.log_bytes
        )));
    }
    if format.sizes.contains(&0) {
        return Err(Error::Limit("a volume without bytes cannot be replicated".into()));
    }
    // The largest volume determines the length of each bitmap.
    let bitmap_bytes =
        format.sizes.iter().fold(PAGE_BYTES as u64, |least, size| bitmap::layout(*size, least).1);
    let members = format
        .sizes
        .iter()
        .map(|size| Member { size: *size, granule: bitmap::layout(*size, bitmap_bytes).0 });
    let log_at = bitmap_at(bitmap_bytes, count, MAX_PEERS, 0);
    Ok((Layout { bitmap_bytes, log_at, log_bytes: format.log_bytes }, members.collect()))
}

/// The length of the journal's block.
pub fn bytes(format: &Format) -> Result<u64, Error> {
    layout(format).map(|(layout, _)| layout.end())
}

/// Formats a journal; its previous content is lost.
pub async fn format(journal: &Arc<dyn Block>, format: &Format) -> Result<State, Error> {
    let state = erase(journal, format).await?;
    let older = State { generation: 1, ..state.clone() };
    for state in [&older, &state] {
        write_state(journal, state).await?;
    }
    Ok(state)
}

/// Erases a journal, durably, and returns the state that a new one begins with. The journal is of no use until a state
/// is written to it.
pub(crate) async fn erase(journal: &Arc<dyn Block>, format: &Format) -> Result<State, Error> {
    let (layout, members) = layout(format)?;
    let needed = layout.end();
    if journal.geometry().size < needed {
        return Err(Error::Limit(format!(
            "the journal has {} bytes and needs {needed}",
            journal.geometry().size
        )));
    }
    let source = format.role == Role::Source;
    let era = Era { epoch: source.into(), tag: if source { format.tag } else { 0 }, after: 0 };
    let state = State {
        generation: 2,
        partnership: format.partnership,
        role: format.role,
        consistent: source,
        gave_up: false,
        holds: source,
        // No record was ever placed, so an opening need not search behind its tail.
        closed: true,
        damaged: false,
        ahead: false,
        unfinished: false,
        claimed: 0,
        told: 0,
        set_back: None,
        set_back_by: None,
        log: format.tag,
        life: 1,
        tail: Tail { position: 0, sequence: 1, life: 1 },
        layout,
        promised: era,
        eras: vec![era],
        members,
        peers: Vec::new(),
    };
    // Remains of an older journal in place of the bitmaps would be read as bitmaps.
    let zero =
        BlockOp::WriteZeroes { offset: 0, len: layout.log_at, durable: true, keep_space: false, fast: false };
    journal.submit(zero).await?;
    Ok(state)
}

/// The offset of a copy of the state.
const COPIES_AT: [u64; 2] = [0, COPY_BYTES as u64];

async fn copy(journal: &Arc<dyn Block>, pool: &Pool, offset: u64) -> Result<[u8; COPY_BYTES], Error> {
    // Bytes behind the end of a truncated journal are neither a copy nor an error of its medium.
    let mut copy = [0xff; COPY_BYTES];
    if journal.geometry().size >= offset.saturating_add(COPY_BYTES as u64) {
        let bytes = read(journal, pool, offset, COPY_BYTES).await?;
        copy.iter_mut().zip(bytes.iter().flatten()).for_each(|(to, byte)| *to = *byte);
    }
    Ok(copy)
}

/// Reads the state of a journal without opening it. A copy that cannot be read is skipped if the other one is valid;
/// else it may be the valid one, and the medium's error is returned.
pub async fn look(journal: &Arc<dyn Block>, pool: &Pool) -> Result<State, Error> {
    let [first, second] = COPIES_AT.map(|at| copy(journal, pool, at));
    let state = match (first.await, second.await) {
        (Ok(first), Ok(second)) => State::latest(&first, &second)?,
        (Ok(one), Err(e)) | (Err(e), Ok(one)) => match State::parse(&one) {
            Err(version @ Damaged::Version(_)) => return Err(version.into()),
            parsed => parsed.map_err(|_| e)?,
        },
        (Err(e), Err(_)) => return Err(e),
    };
    let (has, needs) = (journal.geometry().size, state.layout.end());
    if has < needs {
        // Answered records may have been behind the cut, and nothing in front of it would show that.
        return Err(Damaged::Short { has, needs }.into());
    }
    Ok(state)
}

/// Reads the state of a side that nobody has open, and logs and repairs a damaged copy.
pub async fn mend(side: &Side) -> Result<State, Error> {
    let mut state = look(&side.journal, &side.pool).await?;
    for at in COPIES_AT {
        let parsed = match copy(&side.journal, &side.pool, at).await {
            Ok(copy) => State::parse(&copy).map_err(Error::from),
            Err(e) => Err(e),
        };
        let Err(why) = parsed else { continue };
        let (group, end) = (side.names.group(), at.saturating_add(COPY_BYTES as u64));
        tracing::warn!(
            "group {group}: one of the two copies of the state in its journal, bytes {at} to {end} of {group}.log, cannot be used: {why}. \
             The other copy counts, and this one is written anew. A crash in the middle of a write leaves that; if there was none, \
             that disk changes or loses what it keeps: check it, and move the state directory to a good one"
        );
        state.generation =
            state.generation.checked_add(1).ok_or(Error::State("its journal counts no further"))?;
        write_state(&side.journal, &state).await?;
    }
    Ok(state)
}

async fn write_state(journal: &Arc<dyn Block>, state: &State) -> Result<(), Error> {
    let offset = if state.generation.is_multiple_of(2) { 0 } else { COPY_BYTES as u64 };
    let data = vec![Bytes::copy_from_slice(&state.emit())];
    journal.submit(BlockOp::Write { offset, data, durable: true }).await?;
    Ok(())
}

/// Reads bytes of a block into memory.
pub(crate) async fn read(
    block: &Arc<dyn Block>,
    pool: &Pool,
    offset: u64,
    len: usize,
) -> Result<Vec<Bytes>, Error> {
    match block.submit(BlockOp::Read { offset, len }).await? {
        Outcome::Data(payload) => {
            Ok(Payload::into_chain(payload, pool).await.map_err(weft_store::Error::from)?)
        }
        other => unreachable!("a read is answered with {other:?}"),
    }
}

/// An open journal, apart from its log.
#[derive(Debug)]
pub(crate) struct Journal {
    pub block: Arc<dyn Block>,
    pub pool: Pool,
    /// One write of the state or the bitmaps at a time.
    pub gate: Gate,
    generation: AtomicU64,
    /// The state that was written last, if both copies promise it.
    told: Mutex<Option<State>>,
    /// The journal was opened again, and must not be written through this handle.
    retired: AtomicBool,
}

impl Journal {
    pub fn new(side: &Side, state: &State) -> Journal {
        let generation = AtomicU64::new(state.generation);
        Journal {
            block: side.journal.clone(),
            pool: side.pool.clone(),
            gate: Gate::default(),
            generation,
            // A crash may have left the two different, and older versions wrote only one.
            told: Mutex::default(),
            retired: AtomicBool::new(false),
        }
    }

    /// Writes nothing through this handle once this has returned: the journal is about to be opened again, and the old
    /// side must not overwrite what the new one writes.
    pub async fn retire(&self) {
        let _turn = self.gate.enter().await;
        self.retired.store(true, Ordering::Release);
    }

    fn check(&self) -> Result<(), Error> {
        let retired = self.retired.load(Ordering::Acquire);
        if retired { Err(Error::State("the group was opened anew meanwhile: try again")) } else { Ok(()) }
    }

    /// The generation of the last write.
    pub fn generation(&self) -> u64 {
        self.generation.load(Ordering::Relaxed)
    }

    /// Makes the state durable, as the next generation. New promises go to both copies, so that damage to one of them
    /// takes no promise back. The caller holds the gate.
    pub async fn write_state(&self, mut state: State) -> Result<(), Error> {
        self.check()?;
        let told = self.told().take();
        let copies = if told.is_some_and(|told| state.promises_as(&told)) { 1 } else { 2 };
        for _ in 0..copies {
            // The second begins when the first is durable, so a crash tears at most one.
            state.generation =
                self.generation().checked_add(1).ok_or(Error::State("its journal counts no further"))?;
            write_state(&self.block, &state).await?;
            self.generation.store(state.generation, Ordering::Relaxed);
        }
        *self.told() = Some(state);
        Ok(())
    }

    fn told(&self) -> MutexGuard<'_, Option<State>> {
        // The value is only ever replaced as a whole, so a panic leaves no half of it.
        self.told.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn bitmap_at(state: &State, peer: usize, member: usize) -> u64 {
        bitmap_at(state.layout.bitmap_bytes, state.members.len(), peer, member)
    }

    /// The number that a page of a bitmap names: its position.
    fn page_id(offset: u64) -> u32 {
        offset.checked_div(PAGE_BYTES as u64).unwrap_or(0) as u32
    }

    /// Reads the bitmaps of one peer.
    pub async fn bitmaps(&self, state: &State, peer: usize) -> Vec<Bitmap> {
        let mut bitmaps = Vec::with_capacity(state.members.len());
        for (number, member) in state.members.iter().enumerate() {
            let mut map = Bitmap::new(member.size, member.granule);
            for page in 0..map.pages() {
                let offset = Journal::page_at(state, peer, number, page);
                let read = read(&self.block, &self.pool, offset, PAGE_BYTES).await;
                let bytes = read.ok().and_then(|bytes| <[u8; PAGE_BYTES]>::try_from(bytes.concat()).ok());
                // A page that cannot be read counts as all dirty.
                map.load(page, Journal::page_id(offset), &bytes.unwrap_or([0xff; PAGE_BYTES]));
            }
            bitmaps.push(map);
        }
        bitmaps
    }

    /// The offset of a page of a bitmap.
    pub fn page_at(state: &State, peer: usize, member: usize, number: u64) -> u64 {
        let within = number.saturating_mul(PAGE_BYTES as u64);
        Journal::bitmap_at(state, peer, member).saturating_add(within)
    }

    /// The offset and content of a page of a bitmap, to be written.
    pub fn page(state: &State, peer: usize, member: usize, number: u64, map: &Bitmap) -> (u64, Bytes) {
        let offset = Journal::page_at(state, peer, member, number);
        (offset, Bytes::copy_from_slice(&map.page(number, Journal::page_id(offset))))
    }

    /// Writes pages and makes them durable. The caller holds the gate.
    pub async fn write_pages(&self, pages: Vec<(u64, Bytes)>) -> Result<(), Error> {
        if pages.is_empty() {
            return Ok(());
        }
        self.check()?;
        for (offset, bytes) in pages {
            self.block.submit(BlockOp::Write { offset, data: vec![bytes], durable: false }).await?;
        }
        self.block.submit(BlockOp::Flush).await?;
        Ok(())
    }
}
