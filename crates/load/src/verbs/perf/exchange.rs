//! What both sides of a measurement do alike: messages of the control protocol, and regions that are compared.
//!
//! Spec: `wire::perf`. Owns: nothing. Does not: know whose turn it is; see `client` and `server`.

use std::ops::Range;

use weft_rdma::{Access, Segment, Stag};
use weft_wire::perf::{Malformed, Message, Place};

use super::pattern;
use crate::verbs::end::{End, EndError};

/// The peer's next message.
pub(super) async fn control<E: From<EndError> + From<Malformed>>(end: &mut End) -> Result<Message, E> {
    let buf = end.message().await?;
    let message = Message::parse(&buf)?;
    end.recv(buf)?;
    Ok(message)
}

/// Tells the peer.
pub(super) fn tell(end: &End, message: &Message) -> Result<(), EndError> {
    end.send(message.emit().into())
}

/// Takes the region of each operation of a batch back, compares it with the pattern of the operation's number (above
/// `base`), and opens it again under a new tag: nobody may look into registered memory. How many differ.
pub(super) fn compare(
    end: &End,
    regions: &mut [Segment],
    access: Access,
    batch: Range<u64>,
    base: u64,
) -> Result<u64, EndError> {
    let slots = regions.len() as u64;
    let mut mismatches = 0;
    for n in batch {
        let region = &mut regions[(n % slots) as usize];
        let mut buf = end.take_back(region.stag)?;
        mismatches += u64::from(!pattern::matches(&buf, base + n));
        // What was there must not pass for the next.
        buf.fill(0);
        *region = end.register(buf, access)?;
    }
    Ok(mismatches)
}

/// A region, as the peer is told of it.
pub(super) fn place(region: &Segment) -> Place {
    Place { stag: region.stag.0, offset: region.offset }
}

/// `len` bytes at a place that the peer told of.
pub(super) fn segment(place: Place, len: u32) -> Segment {
    Segment { stag: Stag(place.stag), offset: place.offset, len }
}
