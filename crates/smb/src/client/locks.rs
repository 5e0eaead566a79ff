//! Byte-range locks of an open file.
//!
//! Spec: [MS-SMB2] 2.2.26 (LOCK), 3.2.4.19 (locking), 3.2.4.20 (unlocking), 3.2.5.13 (the answer); [MS-FSA] 2.1.5.8,
//! 2.1.5.9. The server holds the locks, for the handle: closing it releases them. Nothing is remembered here.

use weft_wire::smb2::Command;
use weft_wire::smb2::lock::{Element, Flags, Request, Response};

use super::error::Error;
use super::file::File;
use super::lock_sequences::LockSequence;

/// A byte range of a file. It may lie beyond the end of the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ByteRange {
    /// First byte.
    pub offset: u64,
    /// Bytes; `offset + len` is at most 2^64. An empty range conflicts only with ranges that contain `offset` and the
    /// byte before it.
    pub len: u64,
}

impl ByteRange {
    /// Every byte that a file can have.
    pub const WHOLE: ByteRange = ByteRange { offset: 0, len: u64::MAX };

    fn check(self) -> Result<(), Error> {
        match self.len.checked_sub(1).map(|more| self.offset.checked_add(more)) {
            Some(None) => Err(Error::Misuse("a range of bytes ends at 2^64 at the latest")),
            _ => Ok(()),
        }
    }
}

/// Which locks of other handles a lock excludes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LockKind {
    /// Exclusive ones. Nobody can write to the range, through this handle neither.
    Shared,
    /// All. Others can neither read nor write the range.
    Exclusive,
}

/// What a lock request does while another lock conflicts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnConflict {
    /// It fails.
    Fail,
    /// It waits, for any length of time.
    Wait,
}

impl File {
    /// Locks a range for this handle. A handle may hold several locks on the same bytes if all but the first are shared;
    /// each is unlocked on its own.
    ///
    /// The server holds the lock until it is unlocked or the handle is closed, or until the session ends, unless the handle
    /// is persistent ([`File::is_persistent`]). A call that is dropped is cancelled, but the server may have granted
    /// the lock already: then it lasts until the handle is closed.
    ///
    /// # Errors
    /// [`Error::is_locked`] with [`OnConflict::Fail`] if another lock conflicts; [`Error::Misuse`] if the range ends
    /// beyond 2^64; STATUS_INVALID_PARAMETER if this is a directory.
    pub async fn lock(&self, range: ByteRange, kind: LockKind, on_conflict: OnConflict) -> Result<(), Error> {
        let kind = match kind {
            LockKind::Shared => Flags::SHARED_LOCK,
            LockKind::Exclusive => Flags::EXCLUSIVE_LOCK,
        };
        let flags = match on_conflict {
            OnConflict::Fail => kind | Flags::FAIL_IMMEDIATELY,
            OnConflict::Wait => kind,
        };
        self.change_lock(range, flags).await
    }

    /// Releases one lock of this handle on exactly this range: an exclusive one if there is one, otherwise the last
    /// shared one.
    ///
    /// # Errors
    /// STATUS_RANGE_NOT_LOCKED if this handle holds no lock on exactly this range.
    pub async fn unlock(&self, range: ByteRange) -> Result<(), Error> {
        self.change_lock(range, Flags::UNLOCK).await
    }

    async fn change_lock(&self, range: ByteRange, flags: Flags) -> Result<(), Error> {
        range.check()?;
        // 3.2.4.19: only a handle or a session that outlives a connection has requests that are sent again.
        let repeats = self.is_kept() || self.negotiated().multichannel();
        let sequence = if repeats { self.lock_sequences().take() } else { None };
        let request = Request {
            sequence: sequence.as_ref().map_or(0, LockSequence::on_wire),
            file: self.id(),
            locks: vec![Element { offset: range.offset, length: range.len, flags }],
        };
        let called = self.call(Command::Lock, |out| request.emit(out)).await;
        if let Some(sequence) = sequence {
            match &called {
                Ok(_) => sequence.done(),
                Err(e) if e.status().is_some() => sequence.refused(),
                Err(_) => {}
            }
        }
        Response::parse(&called?)?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_ends_at_the_last_possible_byte() {
        let check = |offset, len| ByteRange { offset, len }.check().is_ok();
        assert!(check(0, 0) && check(u64::MAX, 0) && check(u64::MAX, 1) && check(1, u64::MAX));
        assert!(ByteRange::WHOLE.check().is_ok());
        assert!(!check(2, u64::MAX) && !check(u64::MAX, 2));
    }
}
