//! Holds the bytes of long replies until the network has taken them: in the buffer pool, in a part that all
//! connections from the client's address share.
//!
//! See [`Rooms`]. This file copies a reply into its room; `connection` decides when to stop receiving.

use std::io;

use weft_machine::buf::MAX_BUF;
use weft_machine::{Buf, Payload, Pool};
use weft_transport::{Channel, Part, Rooms, SHORT_ANSWER, must_be_read, read_into_room};

/// Most unsent bytes in ordinary memory while calls are still received. These are short replies; an address with
/// hundreds of connections may have this many on each.
const MAX_UNSENT_BYTES: usize = 64 << 10;

/// The rooms for the replies of one connection.
pub(super) struct Answers {
    pool: Pool,
    rooms: Rooms,
}

impl Answers {
    /// If the pool has not been divided, rooms come from all of it.
    pub fn of(channel: &dyn Channel, pool: &Pool) -> Answers {
        Answers { pool: channel.answers().unwrap_or_else(|| pool.clone()), rooms: Rooms::default() }
    }

    /// Waits for room for `len` bytes; `None` for a short reply. Call this while holding no other room.
    pub async fn room(&self, len: usize) -> Option<Box<Buf>> {
        match len > SHORT_ANSWER {
            true => Some(self.rooms.room(&self.pool, len).await),
            false => None,
        }
    }

    /// The same, without waiting.
    pub fn try_room(&self, len: usize) -> Option<Box<Buf>> {
        self.pool.try_alloc(len.min(MAX_BUF)).map(Box::new)
    }

    /// Payload, read into room for it if its file system may block.
    pub async fn read(&self, data: Payload) -> io::Result<Payload> {
        match &data {
            // Boxed, so that calls do not carry the space for it.
            Payload::File(range) if must_be_read(range) => Box::pin(read_into_room(&self.pool, data)).await,
            _ => Ok(data),
        }
    }

    /// Moves the bytes of a long reply into its room, and waits for a larger one if that is too small. A reply that holds room
    /// already, for payload, does not wait: without more room its bytes stay where they are.
    pub async fn settle_in(&self, parts: &mut [Part], room: Option<Box<Buf>>) {
        let len = bytes_in(parts);
        let mut room = match room {
            Some(room) if room.capacity() >= len => *room,
            smaller => {
                drop(smaller);
                match has_payload_in_memory(parts) {
                    false => *self.rooms.room_afterwards(&self.pool, len).await,
                    true => match self.pool.try_alloc(len.min(MAX_BUF)) {
                        Some(room) => room,
                        None => return,
                    },
                }
            }
        };
        room.set_len(len.min(room.capacity()));
        let mut rest: &mut [u8] = &mut room;
        for bytes in parts_bytes(parts) {
            let Some((place, behind)) = rest.split_at_mut_checked(bytes.len()) else { return };
            place.copy_from_slice(bytes);
            rest = behind;
        }
        let mut settled = room.freeze();
        for part in parts {
            if let Part::Bytes(bytes) = part {
                *bytes = settled.split_to(bytes.len());
            }
        }
    }

    /// Whether the client must read replies before more calls are received from it.
    pub fn is_full(&self, channel: &dyn Channel) -> bool {
        self.rooms.is_full(channel, MAX_UNSENT_BYTES)
    }

    /// Whether a finished reply waits for room.
    pub fn is_waited_for(&self) -> bool {
        self.rooms.is_waited_for()
    }
}

fn has_payload_in_memory(parts: &[Part]) -> bool {
    parts.iter().any(|part| matches!(part, Part::Payload { data: Payload::Chain(_), .. }))
}

fn parts_bytes(parts: &[Part]) -> impl Iterator<Item = &bytes::Bytes> {
    parts.iter().filter_map(|part| match part {
        Part::Bytes(bytes) => Some(bytes),
        Part::Payload { .. } => None,
    })
}

/// Bytes of a reply without its payload.
pub(super) fn bytes_in(parts: &[Part]) -> usize {
    parts_bytes(parts).fold(0, |sum, bytes| sum.saturating_add(bytes.len()))
}
