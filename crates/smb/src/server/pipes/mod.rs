//! Named pipes: opens on IPC$, and the bytes that go in and come out.
//!
//! Spec: [MS-FSCC] 2.3.41 to 2.3.47. Owns the pipes of a tree. A pipe has one reader and writer, its client; the other
//! end is an [`Association`], which answers at once, so only a READ that precedes its WRITE ever waits. There are no
//! pipes of other programs.

mod caller;
mod handles;
mod lsarpc;
mod operations;
mod rpc;
mod samr;
mod srvsvc;

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use bytes::Bytes;
use futures_util::lock::{Mutex as Turns, MutexGuard as Turn};
use slab::Slab;
use weft_machine::Charge;
use weft_machine::budget::Full;
use weft_wire::smb2::{FileId, NtStatus};

use self::caller::Caller;
pub(super) use self::operations::dispatch;
use self::rpc::{Association, Service};
use super::held::{self, PIPE_BYTES};

/// Open pipes per tree.
const MAX_PIPES: usize = 128;
/// Unread answers per pipe, in bytes: beyond this, the pipe accepts no more calls.
const MAX_UNREAD_BYTES: usize = 1 << 20;
/// Waiting READs per pipe.
const MAX_WAITING: usize = 1024;
/// Marks pipes in a FileId: a session's open table never sets this bit.
const PIPE_BIT: u64 = 1 << 63;

/// The state of a pipe.
struct State {
    rpc: Association,
    /// Messages that the client has not read yet.
    unread: VecDeque<Bytes>,
    unread_bytes: usize,
    /// FILE_PIPE_BYTE_STREAM_MODE: message boundaries are ignored.
    byte_mode: bool,
    closed: bool,
    waiting: Vec<Waker>,
    /// The charge for all of this.
    held: Charge,
}

impl State {
    fn new(held: Charge) -> State {
        State {
            rpc: Association::default(),
            unread: VecDeque::new(),
            unread_bytes: 0,
            byte_mode: false,
            closed: false,
            waiting: Vec::new(),
            held,
        }
    }

    /// Updates the charge to the current size, if the budget allows it.
    fn hold(&mut self) -> Result<(), Full> {
        let bytes = PIPE_BYTES.saturating_add(self.unread_bytes).saturating_add(self.rpc.held_bytes());
        self.held.set(bytes)
    }

    /// Closes the pipe in both directions.
    fn end(&mut self) {
        self.closed = true;
        self.unread.clear();
        self.unread_bytes = 0;
        self.rpc.give_up();
        let _ = self.hold();
    }
}

/// An open pipe.
pub(super) struct Pipe {
    service: Service,
    /// Held while bytes wait for lookups: what is written later must not overtake them.
    turns: Turns<()>,
    state: Mutex<State>,
}

/// The bytes read, and whether their message continues.
type Taken = (Bytes, bool);

impl Pipe {
    fn new(service: Service, held: Charge) -> Pipe {
        Pipe { service, turns: Turns::new(()), state: Mutex::new(State::new(held)) }
    }

    /// Looks up the names and ids of the system that these bytes need; they are written while the turn is held. Beyond the
    /// limits the bytes are refused: an answer without these names would say that nobody has them.
    async fn prepare(&self, caller: &Caller<'_>, data: &Bytes) -> Result<Option<Turn<'_, ()>>, NtStatus> {
        let system = &caller.server.system;
        if !system.is_used() {
            return Ok(None);
        }
        let turn = self.turns.lock().await;
        let queries = lock(&self.state).rpc.queries(&caller.server.directory().accounts, data);
        if let Err(limit) = system.prefetch(&caller.session.user, queries).await {
            tracing::debug!(peer = %caller.peer, user = %caller.session.user, "{limit}");
            return Err(NtStatus::INSUFFICIENT_RESOURCES);
        }
        Ok(Some(turn))
    }

    /// Processes the bytes that the client wrote; the answers are queued when this returns.
    fn write(&self, caller: &Caller<'_>, data: &Bytes) -> Result<(), NtStatus> {
        let waiting = {
            let mut state = lock(&self.state);
            if state.closed {
                return Err(NtStatus::PIPE_DISCONNECTED);
            }
            if state.unread_bytes > MAX_UNREAD_BYTES {
                return Err(NtStatus::PIPE_BUSY);
            }
            let answers = state.rpc.receive(caller, self.service, data);
            if state.rpc.is_broken() {
                // Queued answers can still be read.
                state.closed = true;
            }
            let more = answers.iter().map(Bytes::len).sum();
            state.unread_bytes = state.unread_bytes.saturating_add(more);
            state.unread.extend(answers);
            if let Err(full) = state.hold() {
                state.end();
                let waiting = std::mem::take(&mut state.waiting);
                drop(state);
                waiting.into_iter().for_each(Waker::wake);
                return Err(held::refused(full));
            }
            std::mem::take(&mut state.waiting)
        };
        waiting.into_iter().for_each(Waker::wake);
        Ok(())
    }

    /// Takes up to `len` bytes of the next message; `None` if there is none.
    fn try_read(&self, len: usize) -> Option<Taken> {
        let state = &mut *lock(&self.state);
        let first = state.unread.front_mut()?;
        let taken = first.split_to(len.min(first.len()));
        let more = !first.is_empty();
        if !more {
            state.unread.pop_front();
        }
        state.unread_bytes = state.unread_bytes.saturating_sub(taken.len());
        // The size has shrunk, so this cannot fail.
        let _ = state.hold();
        Some((taken, more && !state.byte_mode))
    }

    /// Reads, or registers the task to be woken when there is a message.
    fn poll_read(&self, task: &mut Context<'_>, len: usize) -> Poll<Result<Taken, NtStatus>> {
        if let Some(taken) = self.try_read(len) {
            return Poll::Ready(Ok(taken));
        }
        let mut state = lock(&self.state);
        if state.closed {
            return Poll::Ready(Err(NtStatus::PIPE_BROKEN));
        }
        if !state.unread.is_empty() {
            // A message arrived between the two checks.
            task.waker().wake_by_ref();
            return Poll::Pending;
        }
        if state.waiting.iter().any(|waiting| waiting.will_wake(task.waker())) {
            return Poll::Pending;
        }
        if state.waiting.len() >= MAX_WAITING {
            return Poll::Ready(Err(NtStatus::INSUFFICIENT_RESOURCES));
        }
        state.waiting.push(task.waker().clone());
        Poll::Pending
    }

    /// Closes the pipe; waiting READs fail.
    fn close(&self) {
        let waiting = {
            let mut state = lock(&self.state);
            state.end();
            std::mem::take(&mut state.waiting)
        };
        waiting.into_iter().for_each(Waker::wake);
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // A panic during a call leaves an association that answers no other call: acceptable for its client.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The open pipes of a tree.
#[derive(Default)]
pub(crate) struct Pipes {
    slots: Mutex<Slots>,
}

#[derive(Default)]
struct Slots {
    serial: u32,
    pipes: Slab<(u32, Arc<Pipe>)>,
}

impl Pipes {
    fn insert(&self, pipe: Pipe) -> Option<FileId> {
        let slots = &mut *lock(&self.slots);
        if slots.pipes.len() >= MAX_PIPES {
            return None;
        }
        slots.serial = slots.serial.wrapping_add(1) & 0x7fff_ffff;
        let slot = slots.pipes.insert((slots.serial, Arc::new(pipe)));
        Some(file_id(slots.serial, slot))
    }

    fn find(&self, id: FileId) -> Option<Arc<Pipe>> {
        let slots = lock(&self.slots);
        let slot = id.volatile as u32 as usize;
        let (serial, pipe) = slots.pipes.get(slot)?;
        (file_id(*serial, slot) == id).then(|| pipe.clone())
    }

    fn remove(&self, id: FileId) -> Option<Arc<Pipe>> {
        self.find(id)?;
        let (_, pipe) = lock(&self.slots).pipes.try_remove(id.volatile as u32 as usize)?;
        Some(pipe)
    }

    /// Closes all pipes.
    pub(super) fn close_all(&self) {
        let pipes = std::mem::take(&mut lock(&self.slots).pipes);
        pipes.into_iter().for_each(|(_, (_, pipe))| pipe.close());
    }
}

fn file_id(serial: u32, slot: usize) -> FileId {
    let id = PIPE_BIT | u64::from(serial) << 32 | slot as u64 & 0xffff_ffff;
    FileId { persistent: id, volatile: id }
}
