//! Calls of NFS that arrive twice: nothing is done twice, and the second answer says the same as the first.
//!
//! | version | a copy has | the server knows it by | its answer |
//! |---|---|---|---|
//! | 3 | the call's xid | its cache of changes (RFC 1813 4.5) | for a change, the same |
//! | 4.1 | an xid of its own, as a client's has that reconnects | slot and sequence number (RFC 8881 2.10.6.1) | the same, or that the server has not kept it, is at work on it, or has gone on |
//!
//! The client gets the answer that leaves first in version 3, and the answer to its own xid in version 4.1. That nothing is done twice is for
//! the other models to see.

use std::cell::Cell;
use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;
use std::time::Duration;

use bytes::Bytes;
use weft_machine::sim::with_rng;
use weft_machine::{Time, rt};

/// One call in so many arrives twice.
const ONE_IN: u64 = 10;
/// The longest time between the two.
const LATEST: Duration = Duration::from_secs(1);
/// The first xid of copies; those of clients begin elsewhere, and a copy is not made of a call that is numbered so.
const OWN_XIDS: u32 = 0xfff0_0000;

const NFS_PROGRAM: u32 = 100_003;
/// Bytes of an xid.
const XID_BYTES: usize = 4;
/// Procedures of version 3 that change something: SETATTR, CREATE to LINK.
const CHANGES: [u32; 9] = [2, 8, 9, 10, 11, 12, 13, 14, 15];
/// It has the same effect twice (RFC 1813 4.5), and the server carries it out twice. Its client may write anew before the copy arrives, so
/// the world makes none.
const WRITE: u32 = 7;
const COMPOUND: u32 = 1;
const OP_SEQUENCE: u32 = 53;
/// What a server of version 4.1 says about a call that it does not answer again: NFS4ERR_DELAY, BADSESSION, SEQ_MISORDERED,
/// RETRY_UNCACHED_REP, DEADSESSION.
const NOT_AGAIN: [u32; 5] = [10_008, 10_052, 10_063, 10_068, 10_078];

/// Who gets an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answered {
    /// The client that has called.
    Client,
    /// Nobody: it answers a copy.
    Nobody,
}

/// A call that arrives twice, and its answers so far, without their xids.
struct Pair {
    /// Of version 4.1.
    by_slot: bool,
    /// The second answer is the first one again.
    same: bool,
    first: Option<Bytes>,
    second: Option<Bytes>,
}

/// The calls of a connection that arrive twice.
pub struct Copies {
    /// When copies arrive.
    due: VecDeque<(Time, u32, Bytes)>,
    /// By the xid of the call.
    pairs: BTreeMap<u32, Pair>,
    /// The call of a copy that has an xid of its own.
    calls: BTreeMap<u32, u32>,
    made: u32,
    /// Copies that were answered, in this world.
    copied: Rc<Cell<u64>>,
}

/// A call's version, procedure, and whether it has a sequence number.
fn parse(call: &[u8]) -> Option<(u32, u32, bool)> {
    let word = |at| word(call, at);
    if word(12)? != NFS_PROGRAM {
        return None;
    }
    let (version, procedure) = (word(16)?, word(20)?);
    // Behind credential and verifier: tag, minor version, count, the first operation.
    let opaque = |at: usize| Some(at + 4 + word(at)?.next_multiple_of(4) as usize);
    let args = opaque(opaque(28)? + 4)?;
    let numbered = version == 4 && procedure == COMPOUND && word(opaque(args)? + 8) == Some(OP_SEQUENCE);
    Some((version, procedure, numbered))
}

/// The status of a COMPOUND's answer without its xid: behind type, acceptance, verifier and acceptance again.
fn status(answer: &[u8]) -> Option<u32> {
    let verifier = 12;
    word(answer, verifier + 4 + word(answer, verifier)?.next_multiple_of(4) as usize + 4)
}

/// The server has not carried out the call, or does not say again how that ended.
fn is_refusal(status: u32) -> bool {
    NOT_AGAIN.contains(&status)
}

fn word(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at..)?.first_chunk().map(|word| u32::from_be_bytes(*word))
}

impl Copies {
    /// None yet; `copied` counts those that are answered.
    pub fn new(copied: Rc<Cell<u64>>) -> Copies {
        let (due, pairs, calls) = (VecDeque::new(), BTreeMap::new(), BTreeMap::new());
        Copies { due, pairs, calls, made: 0, copied }
    }

    /// A call has arrived; the seed decides whether it does so again.
    pub fn called(&mut self, xid: u32, call: &Bytes) {
        let Some((version, procedure, numbered)) = parse(call) else { return };
        let may_come_again = numbered || version == 3 && procedure != WRITE;
        if !may_come_again || xid >= OWN_XIDS || !with_rng(|rng| rng.one_in(ONE_IN)) {
            return;
        }
        let late = match with_rng(|rng| rng.one_in(2)) {
            true => Duration::ZERO,
            false => Duration::from_nanos(with_rng(|rng| rng.within(0..=LATEST.as_nanos() as u64))),
        };
        let (mut copy, mut body) = (xid, call.clone());
        if numbered {
            copy = OWN_XIDS | self.made;
            self.made = self.made.wrapping_add(1) & !OWN_XIDS;
            self.calls.insert(copy, xid);
            body = [&copy.to_be_bytes(), &call[XID_BYTES..]].concat().into();
        }
        let same = numbered || CHANGES.contains(&procedure);
        self.pairs.insert(xid, Pair { by_slot: numbered, same, first: None, second: None });
        let at = rt::now() + late;
        let place = self.due.partition_point(|(before, ..)| *before <= at);
        self.due.insert(place, (at, copy, body));
    }

    /// When the next copy arrives.
    pub fn next(&self) -> Option<Time> {
        self.due.front().map(|(at, ..)| *at)
    }

    /// A copy that has arrived by now, and its xid.
    pub fn take(&mut self, now: Time) -> Option<(u32, Bytes)> {
        self.next().filter(|at| *at <= now)?;
        self.due.pop_front().map(|(_, xid, body)| (xid, body))
    }

    /// The server answers. Who gets it; why it may not say that.
    pub fn answered(&mut self, xid: u32, answer: &Bytes) -> Result<Answered, String> {
        let copied = self.calls.get(&xid).copied();
        let call = copied.unwrap_or(xid);
        let Some(pair) = self.pairs.get_mut(&call) else { return Ok(Answered::Client) };
        let said = Some(answer.slice(XID_BYTES..));
        let is_second = copied.is_some() || !pair.by_slot && pair.first.is_some();
        match is_second {
            true => pair.second = said,
            false => pair.first = said,
        }
        if let (Some(first), Some(second)) = (&pair.first, &pair.second) {
            let again = !pair.same
                || first == second
                || pair.by_slot
                    && [first, second].into_iter().filter_map(|answer| status(answer)).any(is_refusal);
            if !again {
                return Err(format!("its second answer is {second:?}, and the first was {first:?}"));
            }
            self.copied.set(self.copied.get() + 1);
            self.pairs.remove(&call);
            self.calls.retain(|_, of| *of != call);
        }
        Ok(if is_second { Answered::Nobody } else { Answered::Client })
    }
}
