//! What both sides of a measurement do alike: messages of the control protocol, and regions that are compared.
//!
//! Also the operations of a bandwidth run that are one-sided, which either side may do to the other's regions.
//! Spec: `wire::perf`. Owns: nothing. Does not: know whose turn it is; see `client` and `server`.

use std::ops::Range;

use bytes::Bytes;
use weft_machine::Buf;
use weft_rdma::{Access, Done, Segment, Stag, Work};
use weft_wire::perf::{Malformed, Message, Op, Place, Plan};

use super::{pattern, slots};
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

/// Fills a region of slot `slot` for what is done to it: what is read is there, what is written is not yet.
pub(super) fn open_slot(
    end: &End,
    plan: &Plan,
    slot: u64,
    base: u64,
    written: Access,
) -> Result<Segment, EndError> {
    let mut buf = end.buffer(plan.size as usize)?;
    if plan.op == Op::Read {
        pattern::fill(&mut buf, base + slot);
        return end.register(buf, Access::RemoteRead);
    }
    buf.fill(0);
    end.register(buf, written)
}

/// Buffers of one-sided operations of a bandwidth run, as many as may be under way.
pub(super) struct Slots {
    /// What is written, where nobody compares it; one per slot.
    sources: Vec<Bytes>,
    /// Where Reads go, while none is under way.
    sinks: Vec<Buf>,
}

impl Slots {
    /// For the operations of `plan`; all of `base` and up is this side's own.
    pub(super) fn new(end: &End, plan: &Plan, base: u64) -> Result<Slots, EndError> {
        let (mut sources, mut sinks) = (Vec::new(), Vec::new());
        for slot in 0..slots(plan) {
            let mut buf = end.buffer(plan.size as usize)?;
            pattern::fill(&mut buf, base + u64::from(slot));
            match plan.op {
                Op::Read => sinks.push(buf),
                Op::Send | Op::Write => sources.push(buf.freeze()),
            }
        }
        Ok(Slots { sources, sinks })
    }

    /// What is sent or written as operation `n`.
    pub(super) fn source(&self, end: &End, plan: &Plan, n: u64) -> Result<Bytes, EndError> {
        if !plan.check {
            return Ok(self.sources[(n % self.sources.len() as u64) as usize].clone());
        }
        let mut buf = end.buffer(plan.size as usize)?;
        pattern::fill(&mut buf, n);
        Ok(buf.freeze())
    }

    pub(super) fn post_read(
        &mut self,
        end: &End,
        plan: &Plan,
        n: u64,
        theirs: &[Segment],
    ) -> Result<(), EndError> {
        let slot = n % theirs.len() as u64;
        let mut into = self.sinks.pop().ok_or(EndError::Memory)?;
        if plan.check {
            into.fill(0);
        }
        end.post(Work::Read { id: slot, into, from: theirs[slot as usize] })
    }

    /// The next Read that finished; whether its bytes are those that the peer has in its slot (true where nobody
    /// compares), which are numbered from `base`.
    pub(super) async fn take_read(
        &mut self,
        end: &mut End,
        plan: &Plan,
        base: u64,
    ) -> Result<bool, EndError> {
        let (slot, Done::Read { buf }) = end.finished().await? else {
            return Err(EndError::Peer("something else finished than a Read"));
        };
        let right = !plan.check || pattern::matches(&buf, base + slot);
        self.sinks.push(buf);
        Ok(right)
    }

    /// Writes or reads the slots `theirs` of the peer, as many at a time as the plan says. `own` numbers what is written,
    /// `base` what is read. How many operations had wrong bytes.
    pub(super) async fn run(
        &mut self,
        end: &mut End,
        plan: &Plan,
        theirs: &[Segment],
        own: Range<u64>,
        base: u64,
    ) -> Result<u64, EndError> {
        let operations = own.end - own.start;
        let (mut posted, mut done, mut mismatches) = (0, 0, 0);
        while done < operations {
            while posted < operations && posted - done < u64::from(plan.depth) {
                let n = own.start + posted;
                match plan.op {
                    Op::Read => self.post_read(end, plan, n, theirs)?,
                    Op::Write | Op::Send => {
                        let to = theirs[(n % theirs.len() as u64) as usize];
                        let data = self.source(end, plan, n)?.into();
                        end.post(Work::Write { id: n, data, to, signalled: true })?;
                    }
                }
                posted += 1;
            }
            match plan.op {
                Op::Read => mismatches += u64::from(!self.take_read(end, plan, base).await?),
                Op::Write | Op::Send => _ = end.finished().await?,
            }
            done += 1;
        }
        Ok(mismatches)
    }
}
