//! The back channel of a session, or of a client without sessions: the server's calls to a client.
//!
//! A [`Back`] holds unanswered questions, the slots in which they are asked, and the lines that carry them. See RFC
//! 8881 2.10.3.1, 2.10.6.1 (slots work in both directions) and 20.9 (CB_SEQUENCE), and RFC 7530 section 17. `dial`
//! connects; callers interpret the answers.
//!
//! A question outlives the line on which it was asked: it is asked again on the next line, with the same sequence
//! number. It is abandoned when the back channel ends.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use futures_util::future::AbortHandle;
use weft_machine::{Time, rt};
use weft_wire::nfs4::{
    CALLBACK_VERSION, CB_COMPOUND, CallbackSec, CbCompound, CbOp, CbReplyHead, CbSequence, SessionId, Status,
    Text, UpTo, Xdr, cb_opnum,
};
use weft_wire::rpc::{Call, Credential};
use weft_wire::xdr::{Decoder, Encoder, Malformed};

use crate::server::line::{CallbackLine, Heard};

/// Questions to one client that wait for a slot.
const MAX_QUESTIONS: usize = 4096;
/// Concurrent questions to a client without sessions.
const OLD_SLOTS: u32 = 16;

/// A client that takes longer to answer counts as unreachable, which others and the client itself are told.
const PATIENCE: Duration = Duration::from_secs(15);

/// An answer: the operation's status and results, or why there is none.
pub type Answer = Result<(Status, Decoder), Unanswered>;

/// Why there is no answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unanswered {
    /// The back channel has ended, or is full.
    Ended,
    /// The client's reply is malformed.
    Nonsense,
}

/// A question, and its callback.
struct Question {
    op: CbOp,
    done: Box<dyn FnOnce(Answer) + Send>,
}

/// How to call the client.
#[derive(Clone, Debug)]
pub struct Route {
    pub program: u32,
    pub credential: Credential,
    /// Minor version 0: repeated in each call.
    pub ident: u32,
    pub minor: u32,
}

/// One back channel.
pub struct Back {
    /// `None` in minor version 0.
    session: Option<SessionId>,
    inner: Mutex<Inner>,
}

struct Inner {
    route: Route,
    lines: Vec<Arc<CallbackLine>>,
    slots: Vec<Slot>,
    waiting: VecDeque<Question>,
    /// Aborts the connection that the server made to the client (minor version 0).
    dialled: Option<AbortHandle>,
    ended: bool,
}

#[derive(Default)]
struct Slot {
    /// Sequence number of the last question that the client processed.
    sequence: u32,
    asked: Option<Question>,
    /// Since when the question has been on a line.
    on_line: Option<Time>,
}

/// The first usable one of the offered credentials (RFC 8881 18.36.3).
pub fn credential(offered: &[CallbackSec]) -> Option<Credential> {
    offered.iter().find_map(|sec| match sec {
        CallbackSec::None => Some(Credential::None),
        CallbackSec::Sys(sys) => Some(Credential::Sys(sys.clone())),
        CallbackSec::Gss => None,
    })
}

impl Back {
    /// For a session with this many slots, or for a client without sessions (`None`).
    pub fn new(session: Option<SessionId>, slots: u32, route: Route) -> Arc<Back> {
        let slots = if session.is_some() { slots } else { OLD_SLOTS };
        let slots = (0..slots).map(|_| Slot::default()).collect();
        let (lines, waiting) = (Vec::new(), VecDeque::new());
        let inner = Inner { route, lines, slots, waiting, dialled: None, ended: false };
        Arc::new(Back { session, inner: Mutex::new(inner) })
    }

    // Every change leaves the lists consistent.
    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether the client can be called, and answers.
    pub fn is_up(&self) -> bool {
        let inner = self.inner();
        let late = |slot: &Slot| slot.on_line.is_some_and(|since| rt::now().since(since) > PATIENCE);
        inner.lines.iter().any(|line| line.is_open()) && !inner.slots.iter().any(late)
    }

    pub fn route(&self) -> Route {
        self.inner().route.clone()
    }

    /// BACKCHANNEL_CTL, or a repeated SETCLIENTID: the program or credential changes.
    pub fn change(&self, program: u32, credential: Credential, ident: u32) {
        let mut inner = self.inner();
        inner.route = Route { program, credential, ident, minor: inner.route.minor };
    }

    /// Adds a line. Waiting questions are sent on it at once.
    pub fn bind(self: &Arc<Back>, line: &Arc<CallbackLine>) {
        {
            let mut inner = self.inner();
            if inner.ended || !line.is_open() {
                return;
            }
            inner.lines.retain(|known| known.is_open() && !Arc::ptr_eq(known, line));
            inner.lines.push(line.clone());
        }
        self.pump();
    }

    /// A client without sessions has announced another address: lines to the old one are dropped.
    pub fn unbind(&self) {
        let mut inner = self.inner();
        inner.lines.clear();
        if let Some(dialled) = inner.dialled.take() {
            dialled.abort();
        }
    }

    /// Registers the handle that aborts the server's connection to the client; a previous connection is aborted.
    pub fn dialled(&self, current: AbortHandle) {
        let mut inner = self.inner();
        if inner.ended {
            return current.abort();
        }
        if let Some(before) = inner.dialled.replace(current) {
            before.abort();
        }
    }

    /// Sends a question to the client.
    pub fn ask(self: &Arc<Back>, op: CbOp, done: impl FnOnce(Answer) + Send + 'static) {
        let question = Question { op, done: Box::new(done) };
        let full = {
            let mut inner = self.inner();
            if inner.ended || inner.slots.is_empty() || inner.waiting.len() >= MAX_QUESTIONS {
                Some(question)
            } else {
                inner.waiting.push_back(question);
                None
            }
        };
        match full {
            Some(Question { done, .. }) => done(Err(Unanswered::Ended)),
            None => self.pump(),
        }
    }

    /// The session was destroyed, or the client is gone.
    pub fn end(&self) {
        let given_up: Vec<Question> = {
            let mut inner = self.inner();
            inner.ended = true;
            inner.lines.clear();
            if let Some(dialled) = inner.dialled.take() {
                dialled.abort();
            }
            let asked: Vec<_> = inner.slots.iter_mut().filter_map(|slot| slot.asked.take()).collect();
            asked.into_iter().chain(std::mem::take(&mut inner.waiting)).collect()
        };
        given_up.into_iter().for_each(|Question { done, .. }| done(Err(Unanswered::Ended)));
    }

    /// Puts questions that are on no line on one.
    fn pump(self: &Arc<Back>) {
        let mut inner = self.inner();
        let Inner { route, lines, slots, waiting, .. } = &mut *inner;
        lines.retain(|line| line.is_open());
        let highest = slots.len().saturating_sub(1) as u32;
        for (number, slot) in slots.iter_mut().enumerate() {
            if slot.asked.is_none() {
                slot.asked = waiting.pop_front();
            }
            let Some(question) = slot.asked.as_ref().filter(|_| slot.on_line.is_none()) else { continue };
            let number = number as u32;
            let sequence = self.session.map(|session| CbSequence {
                session,
                sequence: slot.sequence.wrapping_add(1),
                slot: number,
                highest_slot: highest,
                cache: false,
                referring: UpTo::default(),
            });
            // The line bound last is the client's latest connection.
            let sent = lines.iter().rev().any(|line| {
                let back: Weak<Back> = Arc::downgrade(self);
                let done = move |answer| {
                    if let Some(back) = back.upgrade() {
                        back.answered(number, answer);
                    }
                };
                line.call(|xid, e| emit(xid, e, route, sequence.clone(), &question.op), Box::new(done))
                    .is_ok()
            });
            slot.on_line = sent.then(rt::now);
        }
    }

    /// Handles the outcome of a slot's question.
    fn answered(self: &Arc<Back>, number: u32, heard: Heard) {
        let finished = {
            let mut inner = self.inner();
            let Some(slot) = inner.slots.get_mut(number as usize) else { return };
            slot.on_line = None;
            let answer = match heard {
                // It is asked again on another line.
                Heard::Ended => None,
                Heard::Refused => Some(Err(Unanswered::Nonsense)),
                Heard::Results(mut d) => Some(match parse(&mut d, self.session.is_some()) {
                    Err(Refusal::Sequence) => Err(Unanswered::Nonsense),
                    parsed => {
                        slot.sequence = slot.sequence.wrapping_add(1);
                        parsed.map(|status| (status, d)).map_err(|_| Unanswered::Nonsense)
                    }
                }),
            };
            answer.and_then(|answer| slot.asked.take().map(|question| (question, answer)))
        };
        if let Some((Question { done, .. }, answer)) = finished {
            done(answer);
        }
        self.pump();
    }
}

/// Why a reply is not an answer.
enum Refusal {
    /// CB_SEQUENCE failed, and the slot is unchanged.
    Sequence,
    Nonsense,
}

impl From<Malformed> for Refusal {
    fn from(_: Malformed) -> Refusal {
        Refusal::Nonsense
    }
}

fn emit(xid: u32, e: &mut Encoder, route: &Route, sequence: Option<CbSequence>, op: &CbOp) {
    let Route { program, credential, ident, minor } = route.clone();
    Call { xid, program, version: CALLBACK_VERSION, procedure: CB_COMPOUND, credential }.emit(e);
    let ops = sequence.map(CbOp::Sequence).into_iter().chain([op.clone()]).collect();
    CbCompound { tag: Text::default(), minor, ident, ops: UpTo(ops) }.emit(e);
}

/// The status of the operation; its results follow.
fn parse(d: &mut Decoder, sessions: bool) -> Result<Status, Refusal> {
    let head = CbReplyHead::parse(d)?;
    if sessions {
        if head.count == 0 || d.u32()? != cb_opnum::SEQUENCE {
            return Err(Refusal::Nonsense);
        }
        if Status::parse(d)? != Status::OK {
            return Err(Refusal::Sequence);
        }
        // The xid identifies the slot.
        d.fixed::<16>()?;
        (0..4).try_for_each(|_| d.u32().map(drop))?;
    }
    if head.count == u32::from(sessions) {
        return if head.status == Status::OK { Err(Refusal::Nonsense) } else { Ok(head.status) };
    }
    let _op = d.u32()?;
    Ok(Status::parse(d)?)
}
