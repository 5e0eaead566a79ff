//! One iWARP connection after set-up, without socket or clock: work and bytes in, completions and bytes out.
//!
//! Implements RFC 5040 5 (messages, order), 6.2 (teardown) and 7 (errors). It owns the posted work with its buffers,
//! the region table, and the bytes that wait for the socket. It never reads, writes, sleeps or spawns; `driver` does.
//! Its two halves, `receive` and `send`, are below it.
//!
//! `post` queues work. The driver moves bytes with `recv_slots`/`received` and `pump`/`next_out`/`sent`, and reports
//! the socket's end (`eof`, `lost`) and time (`handle_timeout`). Sends and Writes complete in order, and so do Reads; a
//! Read does not hold back the completion of a later Send (RFC 5040 5.5 rule 15 describes one queue; Reads have their
//! own here).
//!
//! Everything posted is returned by its completion. When the stream ends, everything else is flushed at once; at most
//! the FPDUs that are already framed hold payload until the socket has taken them.
//!
//! The first fault ends the stream. It goes to the peer as a Terminate and to the user as a `Disconnect`; whatever
//! arrives afterwards is discarded.

mod receive;
mod send;

use std::collections::VecDeque;
use std::io;
use std::time::Duration;

use weft_machine::{Buf, Time};
use weft_wire::{ddp, rdmap};

use self::receive::Rx;
use self::send::Tx;
use super::nudge::Nudge;
use super::patience::Patience;
use super::regions::{Regions, Taken};
use super::setup::{Agreed, Role};
use super::terminate::{self, Fault, Refused};
use crate::verbs::{
    Access, Caps, Completion, Disconnect, Done, PostError, Refusal, Segment, Stag, Traffic, Work, WorkError,
};

pub(super) use self::receive::first_staging;
pub(super) use self::send::FileNeed;

/// The connection's limits, besides what set-up agreed on.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    pub(super) max_send_work: usize,
    pub(super) max_recv_work: usize,
    pub(super) max_regions: usize,
    /// Payload bytes in one FPDU.
    pub(super) fpdu_payload: usize,
    pub(super) close_timeout: Duration,
}

/// The connection.
pub(super) struct Connection {
    pub(super) caps: Caps,
    pub(super) state: State,
    pub(super) tx: Tx,
    pub(super) rx: Rx,
    /// Reads whose request has been sent, oldest first: responses come in this order (RFC 5040 5.5 rule 20).
    pub(super) reads: VecDeque<PendingRead>,
    pub(super) regions: Regions,
    pub(super) completions: VecDeque<Completion>,
    pub(super) traffic: Traffic,
    pub(super) nudge: Nudge,
    pub(super) patience: Patience,
    close_timeout: Duration,
    /// When to stop waiting for a peer that delays the end.
    deadline: Option<Time>,
    eof: bool,
}

/// How far the stream's life has come.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum State {
    /// Work is accepted.
    Open,
    /// `close` was called: posted work is still sent.
    Draining,
    /// Everything has been flushed. What remains to send (a Terminate) is still sent; whatever arrives is discarded.
    Ended(Disconnect),
}

/// An RDMA Read whose response has not arrived in full.
pub(super) struct PendingRead {
    /// `None`: our own ready-to-receive indication.
    pub(super) user: Option<(u64, Buf)>,
    pub(super) sink_stag: u32,
    pub(super) sink_to: u64,
    pub(super) msn: u32,
    pub(super) len: usize,
    pub(super) filled: usize,
}

impl PendingRead {
    /// Bytes still to arrive; `0 <= filled <= len`.
    pub(super) fn missing(&self) -> usize {
        self.len.saturating_sub(self.filled)
    }
}

impl Connection {
    /// `staging` takes received bytes until their destination is known; `seed` makes the STags.
    pub(super) fn new(agreed: &Agreed, limits: Limits, staging: Buf, seed: [u64; 2]) -> Connection {
        let caps = Caps {
            max_send_work: limits.max_send_work,
            max_recv_work: limits.max_recv_work,
            ird: agreed.ird,
            ord: agreed.ord,
            max_regions: limits.max_regions,
            kernel_bypass: false,
            send_with_invalidate: true,
            revocable_regions: true,
            reads_into_files: false,
        };
        let mut connection = Connection {
            caps,
            state: State::Open,
            tx: Tx::new(agreed, limits.fpdu_payload),
            rx: Rx::new(agreed, staging),
            reads: VecDeque::new(),
            regions: Regions::new(limits.max_regions, seed),
            completions: VecDeque::new(),
            traffic: Traffic::default(),
            nudge: Nudge::new(matches!(agreed.role, Role::Initiator { .. })),
            patience: Patience::default(),
            close_timeout: limits.close_timeout,
            deadline: None,
            eof: false,
        };
        if let Role::Initiator { open_with: Some(opening) } = agreed.role {
            connection.open_with(opening);
        }
        connection
    }

    pub(super) fn caps(&self) -> Caps {
        self.caps
    }

    pub(super) fn traffic(&self) -> Traffic {
        self.traffic
    }

    pub(super) fn register(&mut self, buf: Buf, access: Access) -> Result<Segment, PostError> {
        match self.state {
            State::Open => self.regions.register(buf, access),
            _ => Err(PostError::Closed),
        }
    }

    /// Takes a region back, live or not. If Read Responses from it are under way, the FPDUs already framed are sent
    /// from a copy; if part of a response is not framed yet, the peer's Read has become an access to an invalid STag.
    pub(super) fn invalidate(&mut self, stag: Stag, now: Time) -> Option<Buf> {
        match self.regions.take(stag)? {
            Taken::Whole(buf) => Some(buf),
            Taken::Lent(lent) => {
                self.tx.out.unshare(|bytes| lent.holds(bytes));
                if let Some(refused) = self.tx.read_cut_off(|bytes| lent.holds(bytes)) {
                    self.fail(Fault::ReadInvalidStag, Some(refused), now);
                }
                let buf = lent.claim();
                assert!(buf.is_some(), "a Read Response outside the output queue");
                buf
            }
        }
    }

    /// Hands over work; on error, returns it unchanged.
    pub(super) fn post(&mut self, work: Work) -> Result<(), (PostError, Work)> {
        if self.state != State::Open {
            return Err((PostError::Closed, work));
        }
        match work {
            Work::Recv { id, buf } => {
                if self.rx.recvs.len() >= self.caps.max_recv_work {
                    return Err((PostError::QueueFull, Work::Recv { id, buf }));
                }
                self.rx.recvs.push_back((id, buf));
                Ok(())
            }
            work => self.tx.post(work, &self.caps),
        }
    }

    /// Moves the completions out.
    pub(super) fn take_completions(&mut self, out: &mut Vec<Completion>) {
        // An empty drain is not free, and a caller that polls without pause would pay for it each time.
        if !self.completions.is_empty() {
            out.extend(self.completions.drain(..));
        }
    }

    /// Whether `take_completions` or `ended` has something to report.
    pub(super) fn has_news(&self) -> bool {
        !self.completions.is_empty() || matches!(self.state, State::Ended(_))
    }

    /// Whether the stream is open and nothing waits to be sent on it.
    pub(super) fn is_quiet(&self) -> bool {
        self.state == State::Open && self.tx.drained()
    }

    /// Whether the stream has not ended.
    pub(super) fn may_receive(&self) -> bool {
        !self.eof
    }

    /// Whether the peer may start a new message and has not begun one.
    pub(super) fn is_between_messages(&self) -> bool {
        !self.eof && !self.rx.inside_fpdu()
    }

    /// Why the stream ended, once it has.
    pub(super) fn ended(&self) -> Option<&Disconnect> {
        match &self.state {
            State::Ended(reason) => Some(reason),
            _ => None,
        }
    }

    /// Begins an orderly close.
    pub(super) fn close(&mut self, now: Time) {
        if self.state != State::Open {
            return;
        }
        self.state = State::Draining;
        self.deadline = Some(now + self.close_timeout);
        // Nobody needs the data of a Read that was not requested yet.
        let dropped = self.tx.drop_queued_reads();
        self.flush_all(dropped);
        self.end_if_drained(now);
    }

    /// A draining connection ends when nothing is left to send.
    pub(super) fn end_if_drained(&mut self, now: Time) {
        // A responder that has not received a valid FPDU may not send, so what it queued cannot go out.
        if self.state == State::Draining && (self.tx.drained() || !self.tx.may_send) {
            self.end(Disconnect::Local, now);
        }
    }

    /// The peer has closed its side of the socket.
    pub(super) fn eof(&mut self, now: Time) {
        self.eof = true;
        match self.state {
            State::Open if self.rx.inside_fpdu() => {
                self.lost(io::ErrorKind::UnexpectedEof, now);
            }
            State::Open => self.end(Disconnect::Peer, now),
            State::Draining => self.end(Disconnect::Local, now),
            State::Ended(_) => {}
        }
    }

    /// The socket failed.
    pub(super) fn lost(&mut self, kind: io::ErrorKind, now: Time) {
        self.eof = true;
        self.end(Disconnect::Lost(kind), now);
        self.tx.out.clear();
    }

    /// When `handle_timeout` is due.
    pub(super) fn timeout(&self) -> Option<Time> {
        self.deadline.into_iter().chain(self.nudge.at()).chain(self.patience.at()).min()
    }

    /// When the peer is late with what it owes.
    #[cfg(test)]
    pub(super) fn patience_at(&self) -> Option<Time> {
        self.patience.at()
    }

    /// Returns whether the peer was given up; the caller then closes its socket.
    pub(super) fn handle_timeout(&mut self, now: Time) -> bool {
        if self.nudge.is_due(now) {
            self.tx.nudge();
        }
        if self.patience.at().is_some_and(|late| late <= now) {
            // It is not the peer's fault that the remainder of an FPDU stays in the socket while we have no memory for
            // it.
            if self.staging_wanted().is_some_and(|staging| staging.needed) {
                self.patience.fpdu_ended();
                self.patience.awaits_fpdu(now);
            }
            if self.patience.at().is_some_and(|late| late <= now) {
                self.lost(io::ErrorKind::TimedOut, now);
                return true;
            }
        }
        if self.deadline.is_some_and(|deadline| deadline <= now) {
            self.deadline = None;
            self.eof = true;
            self.end(Disconnect::Local, now);
            self.tx.out.clear();
            return true;
        }
        false
    }

    /// Nothing more will be sent: the caller closes our side of the socket.
    pub(super) fn finished_sending(&self) -> bool {
        matches!(self.state, State::Ended(_)) && self.tx.out.is_empty()
    }

    /// Nothing more will happen: the caller can drop the socket.
    pub(super) fn finished(&self) -> bool {
        self.finished_sending() && self.eof
    }

    /// The peer did something that ends the stream.
    pub(super) fn fail(&mut self, fault: Fault, refused: Option<Refused>, now: Time) {
        if matches!(self.state, State::Ended(_)) {
            return;
        }
        // RFC 5044 7.1.2 rule 4: a responder that has not received a valid FPDU may not even send the reason.
        if self.tx.may_send {
            self.tx.out.terminate(&fault.terminate(refused));
        }
        self.end(fault.disconnect(), now);
    }

    /// The peer has sent a Terminate.
    pub(super) fn terminated(&mut self, by: &rdmap::Terminate, now: Time) {
        let refusal = terminate::refusal(by);
        self.blame(by, refusal);
        self.end(Disconnect::Terminated(refusal), now);
    }

    /// The peer has sent a Terminate that cannot be parsed. It gets no answer; the stream ends anyway.
    pub(super) fn unreadable_terminate(&mut self, now: Time) {
        self.end(Fault::MalformedControl.disconnect(), now);
    }

    /// Completes the work that a Terminate refers to, if it carries enough to identify it.
    fn blame(&mut self, by: &rdmap::Terminate, refusal: Refusal) {
        let read = match (by.read, by.header) {
            (Some(read), _) => self.reads.iter().position(|r| r.sink_stag == read.sink_stag),
            (None, Some(ddp::Header::Untagged(h))) if h.qn == rdmap::QN_READ_REQUEST => {
                self.reads.iter().position(|r| r.msn == h.msn)
            }
            _ => None,
        };
        let id = match (read.and_then(|at| self.reads.remove(at)), by.header) {
            (Some(read), _) => read.user.map(|(id, _)| id),
            (None, Some(ddp::Header::Tagged(h))) => self.tx.forget_write_to(Stag(h.stag)),
            _ => None,
        };
        if let Some(id) = id {
            self.completions.push_back(Completion { id, result: Err(WorkError::Remote(refusal)) });
        }
    }

    /// The file of a Write's payload could not be read in the middle of the message: the stream cannot continue.
    pub(super) fn payload_unreadable(&mut self, kind: io::ErrorKind, now: Time) {
        if let Some(id) = self.tx.forget_current() {
            self.completions.push_back(Completion { id, result: Err(WorkError::Payload(kind)) });
        }
        if !matches!(self.state, State::Ended(_)) {
            self.tx.out.terminate(&Fault::Local.terminate(None));
            self.end(Disconnect::Local, now);
        }
    }

    /// Ends the stream for the user: everything posted completes as flushed. The first reason is kept.
    fn end(&mut self, reason: Disconnect, now: Time) {
        if matches!(self.state, State::Ended(_)) {
            return;
        }
        self.state = State::Ended(reason);
        self.nudge.end();
        self.patience = Patience::default();
        if !self.eof {
            self.deadline = Some(now + self.close_timeout);
        }
        let mut ids = self.tx.flush();
        ids.extend(self.reads.drain(..).filter_map(|read| read.user.map(|(id, _)| id)));
        ids.extend(self.rx.recvs.drain(..).map(|(id, _)| id));
        self.flush_all(ids);
        self.rx.discard();
    }

    fn flush_all(&mut self, ids: Vec<u64>) {
        let flushed = |id| Completion { id, result: Err(WorkError::Flushed) };
        self.completions.extend(ids.into_iter().map(flushed));
    }

    pub(super) fn complete(&mut self, id: u64, done: Done) {
        self.completions.push_back(Completion { id, result: Ok(done) });
    }
}
