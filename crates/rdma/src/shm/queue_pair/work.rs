//! Carries out posted Sends, Writes and Reads, in order, on the task that posts or polls.
//!
//! See RFC 5040 5 (ordering), and RFC 5040 and 5041 on empty Writes and Reads. It owns a Write whose file is being read
//! from disk. The parent handles the peer's news; here a failure ends the connection.

use std::io;
use std::task::{Context, Poll};

use bytes::Bytes;
use futures_util::future::LocalBoxFuture;
use weft_machine::recorder;
use weft_machine::{Buf, File, FileRange, Payload, Window};

use super::super::layout::RECV_SLOTS;
use super::super::news::{News, Posted};
use super::super::regions::{Denied, Inside};
use super::{Inner, State};
use crate::verbs::tally;
use crate::{Access, Completion, Disconnect, Done, PostError, Refusal, Segment, Stag, Work, WorkError};

/// Bytes read from disk at a time when a Write's file is not in the page cache.
const SCRATCH_BYTES: usize = 1 << 20;

/// Bytes moved to or from a file at a time while the peer cannot take its memory back.
const INSIDE_BYTES: u32 = 1 << 20;

/// Why a piece of work did not succeed.
pub(super) enum Stop {
    /// Refused by the peer's table, or for lack of receive buffers.
    Refused(Refusal),
    /// The peer has ended; its news give the reason.
    PeerEnded,
    /// The peer's shared memory is inconsistent.
    Violation(&'static str),
    /// The file could not be read.
    Payload(io::ErrorKind),
}

impl From<Denied> for Stop {
    fn from(denied: Denied) -> Stop {
        match denied {
            Denied::Refused(refusal) => Stop::Refused(refusal),
            Denied::Ended => Stop::PeerEnded,
        }
    }
}

/// A Write of a file range, resumable.
pub(super) struct FileWrite {
    pub(super) id: u64,
    range: FileRange,
    to: Segment,
    signalled: bool,
    /// Bytes placed; `done <= range.len`.
    done: usize,
    /// The read from disk of the next bytes, into our own memory: the peer's region must not be entered across an
    /// await.
    fetch: Option<LocalBoxFuture<'static, io::Result<Buf>>>,
}

impl FileWrite {
    fn rest(&self) -> Segment {
        Segment { offset: self.to.offset.saturating_add(self.done as u64), ..self.to }
    }

    fn rest_of_file(&self) -> FileRange {
        let FileRange { file, offset, len } = &self.range;
        FileRange {
            file: file.clone(),
            offset: offset.saturating_add(self.done as u64),
            len: len.saturating_sub(self.done),
        }
    }
}

impl Inner {
    /// Takes the peer's posted receive buffers out of its ring before a Send needs one.
    pub(super) fn read_ahead(&self, state: &mut State) -> Result<(), &'static str> {
        while state.ended.is_none() && state.peer_recvs.len() < RECV_SLOTS {
            let Some(posted) = next_recv(state)? else { break };
            state.peer_recvs.push_back(posted);
        }
        Ok(())
    }

    fn send(
        &self,
        state: &mut State,
        data: &[Bytes],
        invalidate: Option<Stag>,
        solicited: bool,
    ) -> Result<(), Stop> {
        let inside = self.reach.receive_buffers()?;
        let len: usize = data.iter().map(Bytes::len).sum();
        let posted = match state.peer_recvs.pop_front() {
            Some(posted) => posted,
            None => next_recv(state).map_err(Stop::Violation)?.ok_or(Stop::Refused(Refusal::NoBuffer))?,
        };
        if len > posted.capacity as usize {
            return Err(Stop::Refused(Refusal::TooLong));
        }
        let slab = self.slab(state, posted.slab)?;
        let mut at = usize::try_from(posted.offset).map_err(|_| OUTSIDE)?;
        for piece in data {
            if !slab.write_at(at, piece) {
                return Err(OUTSIDE);
            }
            at = at.saturating_add(piece.len());
        }
        if let Some(stag) = invalidate
            && !self.reach.invalidate(stag)
        {
            return Err(Stop::Refused(Refusal::InvalidStag));
        }
        drop(inside);
        let len32 = len as u32;
        self.tell(
            state,
            News::Message { slot: posted.slot, len: len32, invalidated: invalidate, solicited },
        )?;
        tally(&mut state.sent, len);
        Ok(())
    }

    fn write_chain(&self, state: &mut State, chain: &[Bytes], to: Segment) -> Result<(), Stop> {
        let len: usize = chain.iter().map(Bytes::len).sum();
        let (_inside, slab, mut at) = self.enter(state, to, len, Access::RemoteWrite)?;
        for piece in chain {
            if !slab.write_at(at, piece) {
                return Err(OUTSIDE);
            }
            at = at.saturating_add(piece.len());
        }
        Ok(())
    }

    fn read(&self, state: &mut State, into: &mut Buf, from: Segment) -> Result<(), Stop> {
        let len = from.len as usize;
        let (_inside, slab, at) = self.enter(state, from, len, Access::RemoteRead)?;
        into.set_len(len);
        if slab.read_at(at, into) { Ok(()) } else { Err(OUTSIDE) }
    }

    /// A Read whose bytes are copied once, from the peer's slab into a file.
    pub(super) fn read_into(
        &self,
        state: &mut State,
        from: Segment,
        file: &File,
        offset: u64,
    ) -> Option<io::Result<()>> {
        let mut done = 0u32;
        while done < from.len {
            let len = from.len.saturating_sub(done).min(INSIDE_BYTES);
            let part = Segment { offset: from.offset.checked_add(done.into())?, len, ..from };
            let len = len as usize;
            let (_inside, slab, at) = self.enter(state, part, len, Access::RemoteRead).ok()?;
            if let Err(e) = file.place_at(offset.checked_add(done.into())?, &slab.slice(at, len)?) {
                return Some(Err(e));
            }
            done = done.saturating_add(part.len);
        }
        tally(&mut state.read, from.len as usize);
        self.count_read(from.len as usize);
        Some(Ok(()))
    }

    /// Enters a region of the peer: it is not taken back while the first value lives.
    fn enter<'s>(
        &'s self,
        state: &'s mut State,
        segment: Segment,
        len: usize,
        access: Access,
    ) -> Result<(Inside<'s>, &'s Window, usize), Stop> {
        let (inside, place) = self.reach.region(segment, len, access)?;
        let at = usize::try_from(place.offset).map_err(|_| OUTSIDE)?;
        Ok((inside, self.slab(state, place.slab)?, at))
    }

    /// Continues a Write of a file. Without `cx` it does not read from disk, and only reports that it must.
    fn write_file(
        &self,
        state: &mut State,
        write: &mut FileWrite,
        mut cx: Option<&mut Context<'_>>,
    ) -> Poll<Result<(), Stop>> {
        loop {
            if let Some(fetch) = &mut write.fetch {
                let Some(cx) = cx.as_deref_mut() else { return Poll::Pending };
                let fetched = std::task::ready!(fetch.as_mut().poll(cx));
                write.fetch = None;
                let bytes = match fetched {
                    Ok(buf) => buf.freeze(),
                    Err(e) => return Poll::Ready(Err(Stop::Payload(e.kind()))),
                };
                let placed = bytes.len();
                if let Err(stop) = self.write_chain(state, &[bytes], write.rest()) {
                    return Poll::Ready(Err(stop));
                }
                write.done = write.done.saturating_add(placed);
            }
            let rest = write.rest_of_file();
            if rest.len == 0 {
                return Poll::Ready(Ok(()));
            }
            match self.write_cached(state, &rest, write.rest()) {
                Ok(true) => return Poll::Ready(Ok(())),
                Ok(false) => {}
                Err(stop) => return Poll::Ready(Err(stop)),
            }
            let part = FileRange { len: rest.len.min(SCRATCH_BYTES), ..rest };
            let pool = self.pool.clone();
            write.fetch = Some(Box::pin(recorder::staged(&self.stage, async move {
                let mut scratch = pool.alloc(part.len).await;
                scratch.set_len(part.len);
                let window = scratch.into_window();
                part.read_into(&window).await?;
                window.try_into_buf().map_err(|_| io::ErrorKind::ResourceBusy.into())
            })));
        }
    }

    /// Reads the file straight into the peer's region, from the page cache only; false if the page cache does not hold
    /// it.
    fn write_cached(&self, state: &mut State, range: &FileRange, to: Segment) -> Result<bool, Stop> {
        let (_inside, slab, at) = self.enter(state, to, range.len, Access::RemoteWrite)?;
        let window = slab.slice(at, range.len).ok_or(OUTSIDE)?;
        match range.try_read_into(&window) {
            Some(Ok(())) => Ok(true),
            Some(Err(e)) => Err(Stop::Payload(e.kind())),
            None => Ok(false),
        }
    }

    /// Carries out one piece of work, or makes it the head that later work waits for.
    pub(super) fn execute(&self, state: &mut State, work: Work) {
        let (id, signalled, result) = match work {
            Work::Send { id, data, invalidate, solicited, signalled } => {
                let result = self.send(state, &data, invalidate, solicited);
                (id, signalled, result.map(|()| Done::Sent))
            }
            // RFC 5040 and 5041: an empty Write or Read touches no memory, so its STag is not checked.
            Work::Write { id, data, signalled, .. } if data.is_empty() => {
                (id, signalled, Ok(self.written(state, 0)))
            }
            Work::Read { id, mut into, from } if from.len == 0 => {
                into.set_len(0);
                (id, true, Ok(self.fetched(state, into)))
            }
            Work::Write { id, data: Payload::Chain(chain), to, signalled } => {
                let len = chain.iter().map(Bytes::len).sum();
                let result = self.write_chain(state, &chain, to);
                (id, signalled, result.map(|()| self.written(state, len)))
            }
            Work::Write { id, data: Payload::File(range), to, signalled } => {
                let mut write = FileWrite { id, range, to, signalled, done: 0, fetch: None };
                match self.write_file(state, &mut write, None) {
                    Poll::Ready(result) => {
                        let len = write.range.len;
                        (id, signalled, result.map(|()| self.written(state, len)))
                    }
                    Poll::Pending => {
                        state.head = Some(write);
                        // Wakes `poll`, which alone can wait for the disk.
                        self.inbox.wake();
                        return;
                    }
                }
            }
            Work::Read { id, mut into, from } => {
                let result = self.read(state, &mut into, from);
                (id, true, result.map(|()| self.fetched(state, into)))
            }
            // `post` handles receives separately.
            Work::Recv { .. } => return,
        };
        self.complete(state, id, signalled, result);
    }

    fn written(&self, state: &mut State, len: usize) -> Done {
        tally(&mut state.written, len);
        self.count_write(len);
        Done::Written
    }

    fn fetched(&self, state: &mut State, buf: Buf) -> Done {
        tally(&mut state.read, buf.len());
        self.count_read(buf.len());
        Done::Read { buf }
    }

    fn complete(&self, state: &mut State, id: u64, signalled: bool, result: Result<Done, Stop>) {
        match result {
            Ok(done) if signalled => state.completions.push_back(Completion { id, result: Ok(done) }),
            Ok(_) => state.sends_posted = state.sends_posted.saturating_sub(1),
            Err(stop) => self.stop(state, id, stop),
        }
    }

    /// A piece of work failed; this ends the connection.
    fn stop(&self, state: &mut State, id: u64, stop: Stop) {
        let (error, reason) = match stop {
            Stop::Refused(refusal) => {
                // Tells the peer which of its refusals ended the connection.
                let _ = self.tell(state, News::Refused(refusal));
                (WorkError::Remote(refusal), Some(Disconnect::Terminated(refusal)))
            }
            Stop::PeerEnded => (WorkError::Flushed, None),
            Stop::Violation(what) => (WorkError::Flushed, Some(Disconnect::Violation(what))),
            Stop::Payload(kind) => (WorkError::Payload(kind), Some(Disconnect::Local)),
        };
        state.completions.push_back(Completion { id, result: Err(error) });
        match reason {
            Some(reason) => self.end(state, reason),
            None => {
                // The peer published the reason before it set `ended`, behind its last messages.
                self.take_news(state);
                self.end(state, Disconnect::Lost(io::ErrorKind::ConnectionAborted));
            }
        }
    }

    /// Carries out the work that waits behind a file.
    pub(super) fn advance(&self, state: &mut State, cx: &mut Context<'_>) {
        while state.ended.is_none() {
            if let Some(mut write) = state.head.take() {
                match self.write_file(state, &mut write, Some(cx)) {
                    Poll::Pending => {
                        state.head = Some(write);
                        return;
                    }
                    Poll::Ready(result) => {
                        let result = result.map(|()| self.written(state, write.range.len));
                        self.complete(state, write.id, write.signalled, result);
                    }
                }
            } else if let Some(work) = state.queue.pop_front() {
                self.execute(state, work);
            } else {
                if state.closing {
                    self.end(state, Disconnect::Local);
                }
                return;
            }
        }
    }
}

/// The violation of a peer whose ring or table points outside of its slabs.
const OUTSIDE: Stop = Stop::Violation("names memory outside of its slabs");

fn next_recv(state: &mut State) -> Result<Option<Posted>, &'static str> {
    match state.peer_recv_ring.pop() {
        None => Ok(None),
        Some(slot) => Posted::parse(slot).map(Some).ok_or("malformed receive buffer"),
    }
}

/// Checks the limits of a Send, Write or Read.
pub(super) fn check(work: &Work, posted: usize, limit: usize) -> Result<(), PostError> {
    match work {
        Work::Send { data, .. } if data.iter().map(Bytes::len).sum::<usize>() > u32::MAX as usize => {
            return Err(PostError::Misuse("message longer than 4 GiB"));
        }
        Work::Write { data, to, .. } if data.len() > to.len as usize => {
            return Err(PostError::Misuse("payload longer than its segment"));
        }
        Work::Read { into, from, .. } if into.capacity() < from.len as usize => {
            return Err(PostError::Misuse("buffer smaller than the segment"));
        }
        _ => {}
    }
    if posted < limit { Ok(()) } else { Err(PostError::QueueFull) }
}
