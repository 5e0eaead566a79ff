//! Reserves memory for a connection's long answers, from before they are made until the network has taken them.
//!
//! An answer that may become long reserves room before it is made. An answer that turned out to be long waits for room
//! afterwards, and nothing more is received meanwhile. This bounds in bytes what clients that do not read their answers
//! can occupy. This file counts the answers that wait; it neither divides the pool (see [`Channel::answers`]), nor
//! stops receiving, nor copies.

use std::cell::Cell;
use std::io;

use weft_machine::buf::MAX_BUF;
use weft_machine::{Buf, FileRange, Payload, Pool, recorder};

use crate::Channel;

/// Reserves room for one connection's answers.
#[derive(Default)]
pub struct Rooms {
    waits: Cell<u64>,
    homeless: Cell<usize>,
}

impl Rooms {
    /// Room for an answer of `len` bytes, as soon as there is some.
    pub async fn room(&self, pool: &Pool, len: usize) -> Box<Buf> {
        let len = len.min(MAX_BUF);
        let room = match pool.try_alloc(len) {
            Some(room) => room,
            None => {
                self.waits.set(self.waits.get().wrapping_add(1));
                pool.alloc(len).await
            }
        };
        Box::new(room)
    }

    /// The same for an answer that is already made.
    pub async fn room_afterwards(&self, pool: &Pool, len: usize) -> Box<Buf> {
        let _homeless = Homeless::new(&self.homeless);
        self.room(pool, len).await
    }

    /// How often an answer has waited for room.
    pub fn waits(&self) -> u64 {
        self.waits.get()
    }

    /// Whether a finished answer has no room yet.
    pub fn is_waited_for(&self) -> bool {
        self.homeless.get() > 0
    }

    /// Whether the client must read before more is received from it: more than `most` bytes are unsent.
    pub fn is_full(&self, channel: &dyn Channel, most: usize) -> bool {
        self.is_waited_for() || channel.unsent_bytes() > most
    }
}

/// Whether an operation reads this range itself, see [`read_into_room`].
pub fn must_be_read(range: &FileRange) -> bool {
    range.len <= MAX_BUF && range.file.blocking().is_some()
}

/// Payload of a file system that may block ([`must_be_read`]), read into room for it; any other payload unchanged. Queued
/// unread, an answer whose file system hangs would hold up the answers behind it, and what fails then is no longer the
/// operation. It never waits for room, because its caller may hold some, and leaves half of it to answers that have to wait:
/// without room the payload stays unread.
pub async fn read_into_room(pool: &Pool, data: Payload) -> io::Result<Payload> {
    let range = match data {
        Payload::File(range) if must_be_read(&range) => range,
        data => return Ok(data),
    };
    // Whoever looks while it hangs sees how much it reads.
    recorder::moves(range.len as u64);
    let room = if pool.has_plenty() { pool.try_alloc(range.len) } else { None };
    match room {
        Some(room) => Ok(Payload::from(range.read_to(room).await?)),
        None => Ok(Payload::File(range)),
    }
}

/// Counts one answer while it waits for room.
struct Homeless<'a>(&'a Cell<usize>);

impl Homeless<'_> {
    fn new(count: &Cell<usize>) -> Homeless<'_> {
        count.set(count.get().saturating_add(1));
        Homeless(count)
    }
}

impl Drop for Homeless<'_> {
    fn drop(&mut self) {
        self.0.set(self.0.get().saturating_sub(1));
    }
}
