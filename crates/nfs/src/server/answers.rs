//! Where the bytes of long replies lie until the network has taken them: in the buffer pool, in a part that all connections of the
//! client's address share.
//!
//! Spec: none; see [`Rooms`]. Owns: the copy of a reply into its room. Does not: stop receiving (`connection`).

use weft_machine::buf::MAX_BUF;
use weft_machine::{Buf, Pool};
use weft_transport::{Channel, Part, Rooms, SHORT_ANSWER};

/// Bytes in memory that may be unsent while calls are received: short replies, of which an address with hundreds of connections has
/// as many times as much.
const MAX_UNSENT_BYTES: usize = 64 << 10;

/// The rooms of one connection's replies.
pub(super) struct Answers {
    pool: Pool,
    rooms: Rooms,
}

impl Answers {
    /// Where nobody has divided the pool, rooms come from all of it.
    pub fn of(channel: &dyn Channel, pool: &Pool) -> Answers {
        Answers { pool: channel.answers().unwrap_or_else(|| pool.clone()), rooms: Rooms::default() }
    }

    /// Room for so many bytes, as soon as there is some; none for a short reply. To be asked for while no other room is held.
    pub async fn room(&self, len: usize) -> Option<Box<Buf>> {
        match len > SHORT_ANSWER {
            true => Some(self.rooms.room(&self.pool, len).await),
            false => None,
        }
    }

    /// The same where there is some now.
    pub fn try_room(&self, len: usize) -> Option<Box<Buf>> {
        self.pool.try_alloc(len.min(MAX_BUF)).map(Box::new)
    }

    /// Brings the bytes of a long reply into its room, and waits for one where that is too small.
    pub async fn settle_in(&self, parts: &mut [Part], room: Option<Box<Buf>>) {
        let len = bytes_in(parts);
        let mut room = match room {
            Some(room) if room.capacity() >= len => *room,
            smaller => {
                drop(smaller);
                *self.rooms.room_afterwards(&self.pool, len).await
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

    /// Whether the client has to read before more is received from it.
    pub fn is_full(&self, channel: &dyn Channel) -> bool {
        self.rooms.is_full(channel, MAX_UNSENT_BYTES)
    }

    /// Whether a reply that is made has no room yet.
    pub fn is_waited_for(&self) -> bool {
        self.rooms.is_waited_for()
    }
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
