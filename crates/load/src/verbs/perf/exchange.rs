//! Common parts of both sides of a measurement: messages of the control protocol, comparison of regions, and the
//! one-sided operations of a bandwidth run, which either side may apply to the other's regions.
//!
//! `wire::perf` defines the protocol; `client` and `server` decide what happens when.
#![cfg_attr(not(test), deny(clippy::indexing_slicing, clippy::arithmetic_side_effects))]

use std::ops::Range;

use bytes::Bytes;
use weft_machine::Buf;
use weft_rdma::{Access, Done, Segment, Stag, Work};
use weft_wire::perf::{Malformed, Message, Op, Plan, RegionAddress};

use super::{pattern, slots};
use crate::verbs::end::{End, EndError};

/// Operations cycle through the slots of a plan, of which there is at least one.
pub(super) fn slot_of(n: u64, slots: usize) -> Result<usize, EndError> {
    let slot = n.checked_rem(slots as u64).ok_or(EndError::Peer("a plan without slots"))?;
    Ok(slot as usize)
}

/// The element of `all` for operation `n`.
pub(super) fn of_operation<T>(all: &[T], n: u64) -> Result<&T, EndError> {
    all.get(slot_of(n, all.len())?).ok_or(EndError::Peer("a plan without slots"))
}

/// The peer's next message.
pub(super) async fn control<E: From<EndError> + From<Malformed>>(end: &mut End) -> Result<Message, E> {
    let buf = end.message().await?;
    let message = Message::parse(&buf)?;
    end.recv(buf)?;
    Ok(message)
}

/// Sends the peer a message.
pub(super) fn tell(end: &End, message: &Message) -> Result<(), EndError> {
    end.send(message.emit().into())
}

/// Invalidates the region of each operation in a batch, compares it with the pattern of the operation's number (above
/// `base`), and registers it again under a new tag, because registered memory must not be read. Returns how many
/// differ.
pub(super) fn compare(
    end: &End,
    regions: &mut [Segment],
    access: Access,
    batch: Range<u64>,
    base: u64,
) -> Result<u64, EndError> {
    let mut mismatches = 0u64;
    for n in batch {
        let slot = slot_of(n, regions.len())?;
        let region = regions.get_mut(slot).ok_or(EndError::Peer("a plan without slots"))?;
        let mut buf = end.take_back(region.stag)?;
        let wrong = !pattern::matches(&buf, base.wrapping_add(n));
        mismatches = mismatches.saturating_add(wrong.into());
        // Old content must not pass for the next.
        buf.fill(0);
        *region = end.register(buf, access)?;
    }
    Ok(mismatches)
}

/// The description of a region for the peer.
pub(super) fn address_of(region: &Segment) -> RegionAddress {
    RegionAddress { stag: region.stag.0, offset: region.offset }
}

/// `len` bytes at an address that the peer has announced.
pub(super) fn segment(address: RegionAddress, len: u32) -> Segment {
    Segment { stag: Stag(address.stag), offset: address.offset, len }
}

/// Fills the region of slot `slot`: regions to be read get their content, regions to be written do not.
pub(super) fn open_slot(
    end: &End,
    plan: &Plan,
    slot: u64,
    base: u64,
    written: Access,
) -> Result<Segment, EndError> {
    let mut buf = end.buffer(plan.size as usize)?;
    if plan.op == Op::Read {
        pattern::fill(&mut buf, base.wrapping_add(slot));
        return end.register(buf, Access::RemoteRead);
    }
    buf.fill(0);
    end.register(buf, written)
}

/// Buffers for the one-sided operations of a bandwidth run, one per outstanding operation.
pub(super) struct Slots {
    /// The bytes to write if nobody compares them; one per slot.
    sources: Vec<Bytes>,
    /// Idle destination buffers of Reads.
    sinks: Vec<Buf>,
}

impl Slots {
    /// For the operations of `plan`; numbers from `base` on are this side's.
    pub(super) fn new(end: &End, plan: &Plan, base: u64) -> Result<Slots, EndError> {
        let (mut sources, mut sinks) = (Vec::new(), Vec::new());
        for slot in 0..slots(plan) {
            let mut buf = end.buffer(plan.size as usize)?;
            pattern::fill(&mut buf, base.wrapping_add(slot.into()));
            match plan.op {
                Op::Read => sinks.push(buf),
                Op::Send | Op::Write => sources.push(buf.freeze()),
            }
        }
        Ok(Slots { sources, sinks })
    }

    /// The bytes to send or write as operation `n`.
    pub(super) fn source(&self, end: &End, plan: &Plan, n: u64) -> Result<Bytes, EndError> {
        if !plan.check {
            return of_operation(&self.sources, n).cloned();
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
        let (slot, from) = (slot_of(n, theirs.len())?, *of_operation(theirs, n)?);
        let mut into = self.sinks.pop().ok_or(EndError::Memory)?;
        if plan.check {
            into.fill(0);
        }
        end.post(Work::Read { id: slot as u64, into, from })
    }

    /// The next finished Read; returns whether its bytes match the peer's slot (true without comparison), whose
    /// numbers start at `base`.
    pub(super) async fn take_read(
        &mut self,
        end: &mut End,
        plan: &Plan,
        base: u64,
    ) -> Result<bool, EndError> {
        let (slot, Done::Read { buf }) = end.finished().await? else {
            return Err(EndError::Peer("something other than a Read finished"));
        };
        let right = !plan.check || pattern::matches(&buf, base.wrapping_add(slot));
        self.sinks.push(buf);
        Ok(right)
    }

    /// Writes or reads the peer's slots `theirs`, as many at a time as the plan says. `own` is the first number of
    /// written bytes, `base` of read ones. Returns how many operations had wrong bytes.
    pub(super) async fn run(
        &mut self,
        end: &mut End,
        plan: &Plan,
        theirs: &[Segment],
        own: Range<u64>,
        base: u64,
    ) -> Result<u64, EndError> {
        let operations = own.end.saturating_sub(own.start);
        let (mut posted, mut done, mut mismatches) = (0u64, 0u64, 0u64);
        while done < operations {
            while posted < operations && posted.saturating_sub(done) < u64::from(plan.depth) {
                let n = own.start.wrapping_add(posted);
                match plan.op {
                    Op::Read => self.post_read(end, plan, n, theirs)?,
                    Op::Write | Op::Send => {
                        let to = *of_operation(theirs, n)?;
                        let data = self.source(end, plan, n)?.into();
                        end.post(Work::Write { id: n, data, to, signalled: true })?;
                    }
                }
                posted = posted.saturating_add(1);
            }
            match plan.op {
                Op::Read => {
                    let wrong = !self.take_read(end, plan, base).await?;
                    mismatches = mismatches.saturating_add(wrong.into());
                }
                Op::Write | Op::Send => _ = end.finished().await?,
            }
            done = done.saturating_add(1);
        }
        Ok(mismatches)
    }
}
