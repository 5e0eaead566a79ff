//! The interface that a server offers to sources over SMB: a hidden share whose files are doors to its destinations.
//!
//! ```text
//! setup                      messages of `super::setup`, by FSCTL_WEFT_EXCHANGE
//! measure                    takes WRITEs and forgets them, so that the way can be measured
//! PARTNERSHIP                requests of `wire::repl::control`, likewise; PARTNERSHIP is 32 hexadecimal digits
//! PARTNERSHIP,SESSION,log    each WRITE is one append, at whatever offset; SESSION is 16 hexadecimal digits
//! PARTNERSHIP,SESSION,N      each WRITE stores bytes in volume N, at its offset
//! ```
//!
//! A WRITE is answered when it is done, according to the contract of `replica::peer`; with SMB Direct its payload was
//! pulled from the source's memory by RDMA. Every user who may log on has access; the share is offered only over SMB.
//! Each open has a file of its own, with a unique number: share modes, locks, oplocks, leases and deletion work by
//! number, so nobody can use them to lock others out of a door. This module owns the files' numbers. Errors reach a
//! source as an NTSTATUS, which it treats like an unreachable server; reasons travel in control requests.
#![cfg_attr(not(test), deny(clippy::indexing_slicing, clippy::arithmetic_side_effects))]

use std::collections::{HashMap, VecDeque};
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use futures_util::future::LocalBoxFuture;
use weft_machine::recorder::{self, Hop};
use weft_machine::{DataRanges, Payload, PayloadSource, RemotePayload};
use weft_replica::destination::Destination;
use weft_replica::group::Behind;
use weft_replica::record::Record;
use weft_store::Error;
use weft_store::backend::{Item, Items};
use weft_store::vfs::{Done, NodeId, Object, ObjectOp, OpenFile, Submission};
use weft_wire::repl::control::{Refusal, Request, Response};

use crate::hex::{hex, of_hex};

/// The share's name. Clients hide names that end in a dollar sign.
pub(super) const SHARE: &str = "weft-replica$";
/// The file for messages of `super::setup`.
pub(super) const SETUP: &str = "setup";
/// The file that discards its data.
pub(super) const MEASURE: &str = "measure";
/// Number of doors remembered; older ones are looked up again.
const MOST_TARGETS: usize = 4096;
/// A file's number modulo this identifies its door.
const SLOTS: u64 = 8192;

/// Answers a message of `super::setup`, on any core.
pub(super) type Setup = Arc<dyn Fn(Bytes) -> LocalBoxFuture<'static, Bytes> + Send + Sync>;

/// All doors of a server. Clones share them.
#[derive(Clone)]
pub(super) struct Doors(Arc<Shared>);

struct Shared {
    setup: Setup,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    partnerships: HashMap<[u8; 16], Behind>,
    slots: HashMap<Target, usize>,
    /// By slot: a door, and the file count when it got the slot. Earlier files led to another door.
    targets: Vec<(Target, u64)>,
    order: VecDeque<usize>,
    /// Counts the files.
    last: u64,
}

impl State {
    /// The number of a new file that leads to a door.
    fn number(&mut self, target: Target) -> NodeId {
        self.last = self.last.saturating_add(1);
        let slot = match self.slots.get(&target) {
            Some(slot) => *slot,
            None => self.remember(target),
        };
        // Above the root's number, which is 1.
        NodeId(self.last.saturating_mul(SLOTS).saturating_add(slot as u64))
    }

    fn remember(&mut self, target: Target) -> usize {
        let entry = (target, self.last);
        let oldest = if self.targets.len() < MOST_TARGETS { None } else { self.order.pop_front() };
        let slot = match oldest.and_then(|slot| Some((slot, self.targets.get_mut(slot)?))) {
            Some((slot, old)) => {
                self.slots.remove(&old.0);
                *old = entry;
                slot
            }
            None => {
                self.targets.push(entry);
                self.targets.len().saturating_sub(1)
            }
        };
        self.slots.insert(target, slot);
        // These are for everybody, and never forgotten.
        if !matches!(target, Target::Setup | Target::Measure) {
            self.order.push_back(slot);
        }
        slot
    }

    fn target(&self, node: NodeId) -> Option<Target> {
        let slot = usize::try_from(node.0 % SLOTS).ok()?;
        self.targets.get(slot).filter(|(_, since)| *since <= node.0 / SLOTS).map(|(target, _)| *target)
    }
}

/// The object behind a file.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Target {
    Setup,
    Measure,
    Control([u8; 16]),
    Log([u8; 16], u64),
    Volume([u8; 16], u64, u16),
}

impl Doors {
    /// Doors without destinations.
    pub fn new(setup: Setup) -> Doors {
        Doors(Arc::new(Shared { setup, state: Mutex::default() }))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// From now on the doors of this partnership lead to `behind`.
    pub fn lead(&self, partnership: [u8; 16], behind: Behind) {
        self.state().partnerships.insert(partnership, behind);
    }

    /// The doors of this partnership lead nowhere from now on.
    pub fn shut(&self, partnership: &[u8; 16]) {
        self.state().partnerships.remove(partnership);
    }

    fn behind(&self, partnership: &[u8; 16]) -> Option<Behind> {
        self.state().partnerships.get(partnership).cloned()
    }

    fn destination(&self, partnership: &[u8; 16]) -> Result<Arc<Destination>, Error> {
        match self.behind(partnership) {
            Some(Behind::Destination(destination)) => Ok(destination),
            _ => Err(refused("no copy is kept here at present")),
        }
    }

    fn item(&self, target: Target) -> Item {
        let node = self.state().number(target);
        Item { node, name: target.name().into_bytes(), size: 0 }
    }
}

impl Target {
    fn parse(name: &[u8]) -> Option<Target> {
        let text = std::str::from_utf8(name).ok()?;
        if text == SETUP {
            return Some(Target::Setup);
        }
        if text == MEASURE {
            return Some(Target::Measure);
        }
        let mut parts = text.split(',');
        let partnership = parse_partnership(parts.next()?)?;
        let Some(session) = parts.next() else { return Some(Target::Control(partnership)) };
        let session = u64::from_str_radix(session, 16).ok().filter(|_| session.len() == 16)?;
        let target = match parts.next()? {
            "log" => Target::Log(partnership, session),
            number => Target::Volume(partnership, session, number.parse().ok()?),
        };
        parts.next().is_none().then_some(target)
    }

    fn name(&self) -> String {
        match self {
            Target::Setup => SETUP.to_owned(),
            Target::Measure => MEASURE.to_owned(),
            Target::Control(partnership) => hex(partnership),
            Target::Log(partnership, session) => log_name(partnership, *session),
            Target::Volume(partnership, session, number) => volume_name(partnership, *session, *number),
        }
    }

    fn partnership(&self) -> Option<&[u8; 16]> {
        match self {
            Target::Setup | Target::Measure => None,
            Target::Control(partnership) | Target::Log(partnership, _) | Target::Volume(partnership, ..) => {
                Some(partnership)
            }
        }
    }
}

/// The door for appends of a session.
pub(super) fn log_name(partnership: &[u8; 16], session: u64) -> String {
    format!("{},{session:016x},log", hex(partnership))
}

/// The door for blocks of a session's volume.
pub(super) fn volume_name(partnership: &[u8; 16], session: u64, number: u16) -> String {
    format!("{},{session:016x},{number}", hex(partnership))
}

/// [`hex`] backwards: exactly 32 digits.
pub(super) fn parse_partnership(text: &str) -> Option<[u8; 16]> {
    of_hex(text)?.try_into().ok()
}

/// Errors that a source must understand have their own status.
fn no(refusal: Refusal) -> Error {
    match refusal {
        Refusal::NoSpace => Error::NoSpace,
        other => refused(other),
    }
}

fn refused(why: impl std::fmt::Display) -> Error {
    Error::Io(io::Error::other(why.to_string()))
}

impl Items for Doors {
    fn kind(&self) -> &'static str {
        "replica"
    }

    /// Listings are empty; a source knows the names.
    fn list(&self) -> Vec<Item> {
        Vec::new()
    }

    fn by_name(&self, name: &[u8], _fold_case: bool) -> Option<Item> {
        let target = Target::parse(name)?;
        // An unknown partnership has no doors.
        if let Some(partnership) = target.partnership() {
            self.behind(partnership)?;
        }
        Some(self.item(target))
    }

    fn by_node(&self, node: NodeId) -> Option<Item> {
        let target = self.state().target(node)?;
        Some(Item { node, name: target.name().into_bytes(), size: 0 })
    }

    fn open(&self, node: NodeId, _write: bool) -> Result<OpenFile, Error> {
        let target = self.state().target(node).ok_or(Error::Stale)?;
        let door = Door { doors: self.clone(), target, session: Mutex::default() };
        Ok(OpenFile::new(node, Arc::new(door)))
    }
}

/// An open door.
struct Door {
    doors: Doors,
    target: Target,
    /// The last session claimed through it. It ends with the connection that opened it.
    session: Mutex<Option<u64>>,
}

impl Drop for Door {
    fn drop(&mut self) {
        let session = self.session.get_mut().unwrap_or_else(PoisonError::into_inner).take();
        if let (Some(session), Target::Control(partnership)) = (session, &self.target)
            && let Ok(destination) = self.doors.destination(partnership)
        {
            destination.connection_ended(session);
        }
    }
}

impl std::fmt::Debug for Door {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Door").field(&self.target).finish()
    }
}

impl Door {
    async fn write(&self, offset: u64, chain: Vec<Bytes>) -> Result<(), Error> {
        match &self.target {
            Target::Log(partnership, session) => {
                let destination = self.doors.destination(partnership)?;
                // An append that was cut in two on the way is not a valid sequence of records, and is refused here.
                let records = Record::parse_all(chain).map_err(refused)?;
                destination.append(*session, records).await.map_err(no)
            }
            Target::Volume(partnership, session, number) => {
                let destination = self.doors.destination(partnership)?;
                destination.write_blocks(*session, *number, offset, chain).await.map_err(no)
            }
            Target::Measure => Ok(()),
            Target::Setup | Target::Control(_) => Err(Error::NotSupported),
        }
    }

    async fn fill(&self, offset: u64, payload: &dyn RemotePayload, len: usize) -> Result<Done, Error> {
        // Records are checked before they are kept.
        let Target::Volume(partnership, session, number) = &self.target else { return Ok(Done::NeedsMemory) };
        let destination = self.doors.destination(partnership)?;
        match destination.fill_blocks(*session, *number, offset, payload, len).await.map_err(no)? {
            true => Ok(Done::Done),
            false => Ok(Done::NeedsMemory),
        }
    }

    async fn exchange(&self, message: Bytes, max: usize) -> Result<Bytes, Error> {
        let answer: Bytes = match &self.target {
            Target::Setup => (self.doors.0.setup)(message).await,
            Target::Control(partnership) => {
                let request = Request::parse(&message).map_err(refused)?;
                let response = match self.doors.behind(partnership) {
                    Some(behind) => behind.control(request).await,
                    None => Response::Refused(Refusal::Partnership),
                };
                if let Response::Welcome(welcome) = &response {
                    let mut session = self.session.lock().unwrap_or_else(PoisonError::into_inner);
                    *session = Some(welcome.session);
                }
                response.emit().into()
            }
            Target::Measure | Target::Log(..) | Target::Volume(..) => {
                return Err(Error::NotSupported);
            }
        };
        if answer.len() > max { Err(Error::Invalid) } else { Ok(answer) }
    }
}

impl Object for Door {
    fn submit<'a>(&'a self, op: ObjectOp<'a>) -> Submission<'a> {
        Submission::Now(match op {
            // The data of one protocol request arrives here in one piece.
            ObjectOp::Write { offset, source: PayloadSource::Memory(chain) } => {
                let chain = chain.to_vec();
                // It is answered when it is durable here.
                return Submission::later(recorder::at(Hop::Disk, async move {
                    self.write(offset, chain).await?;
                    Ok(Done::Done)
                }));
            }
            ObjectOp::Write { offset, source: PayloadSource::Remote { payload, len } } => {
                return Submission::later(self.fill(offset, payload, len));
            }
            ObjectOp::Exchange { message, max } => {
                // Some of these requests wait for news on purpose.
                recorder::hide();
                return Submission::later(async move { self.exchange(message, max).await.map(Done::Answer) });
            }
            // Log records were durable when their WRITE was answered; a barrier makes blocks durable.
            ObjectOp::Sync { ended } => {
                ended(&Ok(()));
                Ok(Done::Done)
            }
            ObjectOp::Read { .. } => Ok(Done::Data(Payload::Chain(Vec::new()))),
            ObjectOp::Extents { .. } => Ok(Done::Extents(DataRanges::default())),
            ObjectOp::Len => Ok(Done::Len(0)),
            ObjectOp::Append { .. }
            | ObjectOp::Allocate { .. }
            | ObjectOp::Zero { .. }
            | ObjectOp::Copy { .. }
            | ObjectOp::Clone { .. }
            | ObjectOp::Resize { .. } => Err(Error::NotSupported),
        })
    }
}

#[cfg(test)]
mod tests;
