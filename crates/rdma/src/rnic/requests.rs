//! Turns work into device requests: payload into memory, memory into pieces with keys, pieces into requests.
//!
//! `Queues::hand_on` hands over the oldest waiting work. A request takes a limited number of pieces (ibv_post_send(3)).
//! `queues` completes the work.
//!
//! Pool memory is sent from its place. Message heads in other memory are gathered in one buffer; small pieces are
//! copied there, large ones are registered for the time of the request.

use std::collections::VecDeque;
use std::io;
use std::task::{Context, Poll};

use bytes::Bytes;
use weft_machine::{Payload, Pool, buf};

use super::cm::Operation;
use super::memory::{Local, Piece};
use super::queues::{Flight, Head, Loading, Queues, Stop, What};
use crate::{Caps, Disconnect, PostError, Segment, Stag, Work, WorkError};

/// Pieces up to this length outside the pool are gathered with their neighbours: message heads.
const HEAD_BYTES: usize = 512;
/// Up to this length they are copied, which costs less than registering them.
const COPY_BYTES: usize = 8192;
/// The longest InfiniBand message is 2 GiB; half of that is safe in signed lengths as well.
const MAX_MESSAGE: usize = 1 << 30;

impl Queues {
    /// Hands one request to the device; false when none waits or there is no room.
    pub(super) fn hand_on(&mut self, cx: Option<&mut Context<'_>>) -> Result<bool, (u64, Stop)> {
        let doomed = matches!(&self.deadline, Some((_, reason)) if *reason != Disconnect::Local);
        if doomed || self.sends.len() >= self.caps.max_send_work {
            return Ok(false);
        }
        match self.head.take() {
            Some(Head::Loading { mut future, then, awaited }) => {
                let waits = cx.is_some();
                match cx.map_or(Poll::Pending, |cx| future.as_mut().poll(cx)) {
                    Poll::Pending => {
                        self.head = Some(Head::Loading { future, then, awaited: awaited || waits });
                        Ok(false)
                    }
                    Poll::Ready(Ok(chain)) => self.loaded(then, chain).map(|()| true),
                    Poll::Ready(Err(e)) => {
                        self.unreadable(then.id(), &e);
                        Ok(true)
                    }
                }
            }
            Some(Head::Writing { id, chain, to, done, len, signalled }) => {
                self.write_on(id, chain, to, (done, len), signalled).map(|()| true)
            }
            None => match self.queue.pop_front() {
                None => Ok(false),
                Some(work) => self.begin(work).map(|()| true),
            },
        }
    }

    /// Whether the payload at the head requires waiting, and nobody waits for it yet.
    pub(super) fn wants_waiting(&self) -> bool {
        matches!(self.head, Some(Head::Loading { awaited: false, .. }))
    }

    /// The payload's file failed: completes the work with the error and ends the connection.
    fn unreadable(&mut self, id: u64, error: &io::Error) {
        self.fail(id, WorkError::Payload(error.kind()));
        self.reason = Some(Disconnect::Local);
    }

    fn begin(&mut self, work: Work) -> Result<(), (u64, Stop)> {
        match work {
            Work::Send { id, data, invalidate, solicited, signalled } => {
                if data.iter().filter(|bytes| !bytes.is_empty()).count() <= self.send_pieces {
                    return self.send(id, data, (invalidate, solicited), signalled);
                }
                let then = Loading::Send { id, invalidate, solicited, signalled };
                let future = Box::pin(gather(self.pool.clone(), data));
                self.head = Some(Head::Loading { future, then, awaited: false });
                Ok(())
            }
            Work::Write { id, data: Payload::Chain(chain), to, signalled } => {
                let len = chain.iter().map(Bytes::len).sum();
                self.write_on(id, chain.into(), to, (0, len), signalled)
            }
            Work::Write { id, data, to, signalled } => match read_at_once(&self.pool, &data) {
                Some(Ok(chain)) => self.loaded(Loading::Write { id, to, signalled }, chain),
                Some(Err(e)) => {
                    self.unreadable(id, &e);
                    Ok(())
                }
                None => {
                    let pool = self.pool.clone();
                    let future = Box::pin(async move { data.into_chain(&pool).await });
                    let then = Loading::Write { id, to, signalled };
                    self.head = Some(Head::Loading { future, then, awaited: false });
                    Ok(())
                }
            },
            Work::Read { id, into, from } => {
                let mut into = into;
                into.set_len(from.len as usize);
                let into = into.into_window();
                // An empty Read places nothing, so it needs no memory.
                let pieces = match from.len {
                    0 => Vec::new(),
                    _ => vec![self.local.writable(&into).map_err(|e| (id, Stop::Memory(e)))?],
                };
                let operation = Operation::Read { address: from.offset, rkey: from.stag.0 };
                let flight = Flight {
                    id,
                    what: What::Read { into },
                    len: from.len as usize,
                    _pieces: pieces,
                    _data: vec![],
                };
                self.fly(operation, flight).map_err(|stop| (id, stop))
            }
            // `post` handles receives separately.
            Work::Recv { .. } => Ok(()),
        }
    }

    fn loaded(&mut self, loading: Loading, chain: Vec<Bytes>) -> Result<(), (u64, Stop)> {
        match loading {
            Loading::Send { id, invalidate, solicited, signalled } => {
                self.send(id, chain, (invalidate, solicited), signalled)
            }
            Loading::Write { id, to, signalled } => {
                let len = chain.iter().map(Bytes::len).sum();
                self.write_on(id, chain.into(), to, (0, len), signalled)
            }
        }
    }

    fn send(
        &mut self,
        id: u64,
        data: Vec<Bytes>,
        (invalidate, solicited): (Option<Stag>, bool),
        signalled: bool,
    ) -> Result<(), (u64, Stop)> {
        let len = data.iter().map(Bytes::len).sum();
        let (pieces, data) = self.pieces(data).map_err(|e| (id, Stop::Memory(e)))?;
        // If the device lacks Send with Invalidate, the region stays open until its owner takes it back.
        let invalidate = invalidate.filter(|_| self.caps.send_with_invalidate).map(|stag| stag.0);
        let what = What::Send { signalled, invalidates: invalidate.is_some() };
        let flight = Flight { id, what, len, _pieces: pieces, _data: data };
        self.fly(Operation::Send { invalidate, solicited }, flight).map_err(|stop| (id, stop))
    }

    /// Posts as much of a Write as one request takes.
    fn write_on(
        &mut self,
        id: u64,
        mut chain: VecDeque<Bytes>,
        to: Segment,
        (done, len): (usize, usize),
        signalled: bool,
    ) -> Result<(), (u64, Stop)> {
        let (mut data, mut now) = (Vec::new(), 0usize);
        while data.len() < self.send_pieces
            && let Some(bytes) = chain.front_mut()
        {
            let room = MAX_MESSAGE.saturating_sub(now);
            if room == 0 {
                break;
            }
            let piece = bytes.split_to(bytes.len().min(room));
            if bytes.is_empty() {
                chain.pop_front();
            }
            if !piece.is_empty() {
                now = now.saturating_add(piece.len());
                data.push(piece);
            }
        }
        let (pieces, data) = self.pieces(data).map_err(|e| (id, Stop::Memory(e)))?;
        let operation = Operation::Write { address: to.offset.wrapping_add(done as u64), rkey: to.stag.0 };
        let done = done.saturating_add(now);
        let last = done == len;
        let what = if last { What::Write { signalled } } else { What::Part };
        let flight = Flight { id, what, len, _pieces: pieces, _data: data };
        self.fly(operation, flight).map_err(|stop| (id, stop))?;
        if !last {
            self.head = Some(Head::Writing { id, chain, to, done, len, signalled });
        }
        Ok(())
    }

    /// The non-empty parts of `data` as pieces for the device, at most one piece for each, and the registrations that
    /// keep them valid.
    fn pieces(&mut self, data: Vec<Bytes>) -> io::Result<(Vec<Piece>, Vec<Bytes>)> {
        let local = &mut self.local;
        let mut data: Vec<_> = data.into_iter().filter(|bytes| !bytes.is_empty()).collect();
        let small = |local: &Local, bytes: &Bytes| bytes.len() <= COPY_BYTES && !local.is_pooled(bytes);
        let room = data.iter().filter(|bytes| small(local, bytes)).map(Bytes::len).sum::<usize>();
        // Without a free buffer, small pieces are registered like large ones.
        if room > 0
            && room <= buf::MAX_BUF
            && let Some(mut heads) = self.pool.try_alloc(room)
        {
            let mut copied = Vec::with_capacity(data.len());
            for bytes in data {
                if !small(local, &bytes) {
                    copied.push(bytes);
                    continue;
                }
                if bytes.len() <= HEAD_BYTES {
                    heads.extend_from_slice(&bytes);
                } else {
                    let filled = heads.len();
                    heads.set_len(filled.saturating_add(bytes.len()));
                    buf::copy(heads.split_at_mut(filled).1, &bytes);
                }
                let len = heads.len();
                copied.push(heads.split_to(len).freeze());
            }
            data = copied;
        }
        let pieces = data.iter().map(|bytes| local.readable(bytes)).collect::<io::Result<_>>()?;
        Ok((pieces, data))
    }
}

/// Copies many pieces into one buffer, because a device takes a limited number.
async fn gather(pool: Pool, data: Vec<Bytes>) -> io::Result<Vec<Bytes>> {
    let mut whole = pool.alloc(data.iter().map(Bytes::len).sum()).await;
    for bytes in data {
        let filled = whole.len();
        whole.set_len(filled.saturating_add(bytes.len()));
        buf::copy(whole.split_at_mut(filled).1, &bytes);
    }
    Ok(vec![whole.freeze()])
}

/// Reads from the page cache into a free buffer: the common case, without a future.
fn read_at_once(pool: &Pool, data: &Payload) -> Option<io::Result<Vec<Bytes>>> {
    let Payload::File(range) = data else { return None };
    if range.len == 0 {
        return Some(Ok(Vec::new()));
    }
    let mut buf = (range.len <= buf::MAX_BUF).then(|| pool.try_alloc(range.len)).flatten()?;
    buf.set_len(range.len);
    let window = buf.into_window();
    let read = range.try_read_into(&window)?;
    // Nobody else holds this window.
    let frozen = || window.try_into_buf().map(|buf| vec![buf.freeze()]);
    Some(read.and_then(|()| frozen().map_err(|_| io::ErrorKind::ResourceBusy.into())))
}

/// Checks the limits of a Send, Write or Read.
pub(super) fn check(work: &Work, caps: &Caps, pieces: usize) -> Result<(), PostError> {
    let sum = |data: &[Bytes]| data.iter().map(Bytes::len).sum::<usize>();
    match work {
        Work::Send { data, .. } if sum(data) > MAX_MESSAGE => {
            Err(PostError::Misuse("message longer than 1 GiB"))
        }
        Work::Send { data, .. } if data.len() > pieces && sum(data) > buf::MAX_BUF => {
            Err(PostError::Misuse("long message in more pieces than the device supports"))
        }
        Work::Write { data, to, .. } if data.len() > to.len as usize => {
            Err(PostError::Misuse("payload longer than its segment"))
        }
        Work::Read { from, .. } if from.len as usize > MAX_MESSAGE => {
            Err(PostError::Misuse("Read longer than 1 GiB"))
        }
        Work::Read { into, from, .. } if into.capacity() < from.len as usize => {
            Err(PostError::Misuse("buffer smaller than the segment"))
        }
        Work::Read { into, .. } if into.is_part() => Err(PostError::Misuse("part of a buffer to read into")),
        Work::Read { .. } if caps.ord == 0 => Err(PostError::Misuse("the peer serves no Reads")),
        _ => Ok(()),
    }
}
