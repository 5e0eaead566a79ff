//! The memory that sessions occupy: the fixed rates that are charged to the server's [`Budget`].
//!
//! A rate is the size of one object with its table entries, rounded up. Names, fragments and queued changes are charged
//! by their length where they are stored. The budget is [`super::Limits::held_bytes`]; a refused client gets
//! STATUS_INSUFFICIENT_RESOURCES.
//!
//! A log-on and a session's first tree connect to a share are never refused: a client that lost its connection needs
//! them to reach its handles, and others at its address need them to get in. [`super::Limits::sessions`] and the number
//! of shares bound them. If there is no room they are not charged, so they take none from others.
//!
//! [`Budget`]: weft_machine::Budget

use weft_machine::budget::Full;
use weft_wire::smb2::NtStatus;

use super::limits;

/// A session with its keys and its entries in the tables of its connections.
pub(super) const SESSION_BYTES: usize = 4096;
/// A tree connect.
pub(super) const TREE_BYTES: usize = 512;
/// An open with its name, its node in the open table, and its caching state.
pub(super) const OPEN_BYTES: usize = 2048;
/// A byte-range lock, in a table that may be half empty.
pub(super) const LOCK_BYTES: usize = 96;
/// A pipe without its queued data.
pub(super) const PIPE_BYTES: usize = 1024;
/// A directory watch without its queued changes.
pub(super) const WATCH_BYTES: usize = 2048;
/// A prefetched directory entry without its name.
pub(super) const ENTRY_BYTES: usize = 256;

/// An address, and a user, may hold as many descriptors as it leaves free: one alone gets half, ten leave an eleventh.
pub(super) const DESCRIPTOR_SHARE: usize = 1;
/// Descriptors per open: one for the file, and one for its node, which must stay accessible.
pub(super) const DESCRIPTORS_OF_OPEN: usize = 2;

/// The status for a client that is out of memory budget.
pub(super) fn refused(_: Full) -> NtStatus {
    limits::reached("memory of the sessions of an address or user");
    NtStatus::INSUFFICIENT_RESOURCES
}

/// The status for a client that is out of descriptors.
pub(super) fn no_descriptor(_: Full) -> NtStatus {
    limits::reached("open files of an address or a user (a part of ulimit -n)");
    NtStatus::TOO_MANY_OPENED_FILES
}
