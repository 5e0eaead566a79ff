//! An open file with a limit on its growth: the size limit of a ram share, or the quota of a folder.
//!
//! Space is reserved before an operation and released after it, whatever becomes of it: an error, fewer bytes than
//! announced, payload that must be fetched first, or a caller that no longer waits. A worker finishes a call that it
//! has begun; the reservation lasts as long.

use std::cell::Cell;
use std::ops::Range;
use std::rc::Rc;
use std::sync::Arc;

use bytes::Bytes;
use weft_machine::file::busy;
use weft_machine::{PayloadSource, rt};

use super::super::Error;
use super::{Admit, Layer, Object, ObjectOp, Submission};

/// Decides whether a file may grow, and counts what it occupies.
pub trait Quota: std::fmt::Debug + Send + Sync {
    /// Reserves space for these bytes of the file; `NoSpace` or `OverQuota` if there is none, `TooLarge` if the range ends
    /// behind the longest file. A reservation counts until its [`Quota::release`].
    fn reserve(&self, range: Range<u64>) -> Result<(), Error>;

    /// Ends a reservation: from now on the file counts what it occupies, and its other reservations. With `allocated`
    /// it occupies all of the reservation, whatever its length.
    fn release(&self, range: Range<u64>, allocated: bool);

    /// Whether it counts blocks: then a hole is free, and filling or sharing one takes space. Otherwise it counts lengths.
    fn counts_blocks(&self) -> bool {
        false
    }

    /// Carries out a write of these bytes that does not wait, if there is space for it.
    fn write_now(
        &self,
        range: Range<u64>,
        write: &mut dyn FnMut() -> Option<Result<(), Error>>,
    ) -> Option<Result<(), Error>> {
        if let Err(e) = self.reserve(range.clone()) {
            return Some(Err(e));
        }
        let written = write();
        self.release(range, false);
        written
    }
}

/// See the module.
#[derive(Debug)]
pub struct Limited {
    inner: Arc<dyn Object>,
    quota: Arc<dyn Quota>,
}

impl Limited {
    /// Lets `inner` grow only as `quota` allows.
    pub fn new(inner: Arc<dyn Object>, quota: Arc<dyn Quota>) -> Limited {
        Limited { inner, quota }
    }

    fn reserve(&self, range: Range<u64>) -> Result<Reservation, Error> {
        self.quota.reserve(range.clone())?;
        Ok(Reservation { quota: self.quota.clone(), range, allocated: false })
    }

    /// The bytes for which an operation may take space; an empty range where it only frees some. `None` if its space does
    /// not change.
    fn claimed(&self, op: &ObjectOp<'_>) -> Option<Range<u64>> {
        let by_blocks = self.quota.counts_blocks();
        let range = |offset: u64, len: u64| Some(offset..offset.saturating_add(len));
        match op {
            ObjectOp::Write { offset, source } => range(*offset, source.len()),
            ObjectOp::Copy { at, len, .. } => range(*at, *len),
            // Shared blocks take no space of a ramdisk, but a file that shares them counts as if they were its own.
            ObjectOp::Clone { at, len, .. } if by_blocks => range(*at, *len),
            ObjectOp::Zero { offset, len, keep_space: true } if by_blocks => range(*offset, *len),
            ObjectOp::Zero { offset, keep_space: false, .. } if by_blocks => range(*offset, 0),
            // A longer file ends in a hole.
            ObjectOp::Resize { .. } if by_blocks => range(0, 0),
            ObjectOp::Resize { size } => range(0, *size),
            _ => None,
        }
    }

    fn append<'a>(&'a self, bytes: &'a Bytes, admit: Admit<'a>) -> Submission<'a> {
        let reserved = Rc::new(Cell::new(None));
        let reserves = reserved.clone();
        let admit = Box::new(move |end: u64| {
            let all = end..end.saturating_add(bytes.len() as u64);
            reserves.set(Some(UnderWay { object: self, reservation: Some(self.reserve(all)?) }));
            admit(end)
        });
        self.inner.submit(ObjectOp::Append { bytes, admit }).then(move |done| {
            if let Some(under_way) = reserved.take() {
                under_way.end();
            }
            Submission::Now(done)
        })
    }

    /// A task of its own: only the result tells whether the space past the end of the file is occupied.
    fn allocate(&self, offset: u64, len: u64, keep_size: bool) -> Submission<'_> {
        Submission::later(async move {
            let reservation = self.reserve(offset..offset.saturating_add(len))?;
            let inner = self.inner.clone();
            rt::uncancelled(async move {
                let done = inner.submit(ObjectOp::Allocate { offset, len, keep_size }).await;
                reservation.end(keep_size && len > 0 && done.is_ok());
                done
            })
            .await
        })
    }
}

/// Reserved space, released on drop.
struct Reservation {
    quota: Arc<dyn Quota>,
    range: Range<u64>,
    allocated: bool,
}

impl Reservation {
    /// The operation has ended; see [`Quota::release`].
    fn end(mut self, allocated: bool) {
        self.allocated = allocated;
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        self.quota.release(self.range.clone(), self.allocated);
    }
}

/// The reservation of an operation, which may be cancelled.
struct UnderWay<'a> {
    object: &'a Limited,
    reservation: Option<Reservation>,
}

impl UnderWay<'_> {
    /// The operation has ended.
    fn end(mut self) {
        drop(self.reservation.take());
    }
}

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        let Some(reservation) = self.reservation.take() else { return };
        let Some(file) = self.object.inner.plain().filter(|file| busy::is_locked(file)) else { return };
        let file = file.clone();
        rt::spawn(async move {
            if let Err(e) = busy::shared_of(&file).await {
                tracing::warn!("cannot wait for the end of a call on a file: {e}");
            }
            drop(reservation);
        })
        .detach();
    }
}

impl Layer for Limited {
    fn inner(&self) -> &dyn Object {
        &*self.inner
    }

    fn submit<'a>(&'a self, op: ObjectOp<'a>) -> Submission<'a> {
        let op = match op {
            ObjectOp::Append { bytes, admit } => return self.append(bytes, admit),
            ObjectOp::Allocate { offset, len, keep_size } => return self.allocate(offset, len, keep_size),
            op => op,
        };
        let Some(range) = self.claimed(&op) else { return self.inner.submit(op) };
        let reservation = match self.reserve(range) {
            Ok(reservation) => Some(reservation),
            Err(e) => return Submission::Now(Err(e)),
        };
        let under_way = UnderWay { object: self, reservation };
        self.inner.submit(op).then(move |done| {
            under_way.end();
            Submission::Now(done)
        })
    }

    fn write_now(&self, offset: u64, chain: &[Bytes]) -> Option<Result<(), Error>> {
        let end = offset.saturating_add(PayloadSource::Memory(chain).len());
        self.quota.write_now(offset..end, &mut || self.inner.write_now(offset, chain))
    }
}
