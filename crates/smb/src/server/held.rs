//! What sessions make the server keep, in bytes: the rates that are charged to its [`Budget`].
//!
//! Each rate is what one of its kind takes with its places in tables, rounded up. Names, fragments and changes that wait count by
//! their length where they are kept. The budget is [`super::Limits::held_bytes`]; who is refused is answered
//! STATUS_INSUFFICIENT_RESOURCES.
//!
//! Nobody is refused a log-on, or the first tree connect of a session to a share: whoever lost his connection comes back to his
//! handles by them, and others at his address come in. [`super::Limits::sessions`] and the number of shares bound those. Where
//! they find no room they are not counted, so that they take none from others.
//!
//! [`Budget`]: weft_machine::Budget

use weft_machine::budget::Full;
use weft_wire::smb2::NtStatus;

use super::ops;

/// A session with its keys and its places in the tables of its connections.
pub(super) const SESSION_BYTES: usize = 4096;
/// A tree connect.
pub(super) const TREE_BYTES: usize = 512;
/// An open with its name, its node in the table of opens, and what it may cache.
pub(super) const OPEN_BYTES: usize = 2048;
/// A byte-range lock, in a table that may be half empty.
pub(super) const LOCK_BYTES: usize = 96;
/// A pipe, what waits in it not counted.
pub(super) const PIPE_BYTES: usize = 1024;
/// A watch of a directory, changes that wait not counted.
pub(super) const WATCH_BYTES: usize = 1024;
/// An entry of a listing that was fetched ahead, its name not counted.
pub(super) const ENTRY_BYTES: usize = 256;

/// Of descriptors an address may hold as many as it leaves free, and a user likewise: one alone gets half, ten leave an eleventh.
pub(super) const DESCRIPTOR_SHARE: usize = 1;
/// Descriptors of an open: of the file, and of its node, which has to stay within reach.
pub(super) const DESCRIPTORS_OF_OPEN: usize = 2;

/// What the client is told.
pub(super) fn refused(_: Full) -> NtStatus {
    ops::limit_reached("memory that the sessions of an address or of a user take");
    NtStatus::INSUFFICIENT_RESOURCES
}

/// The same of descriptors.
pub(super) fn no_descriptor(_: Full) -> NtStatus {
    ops::limit_reached("open files of an address or a user (a part of ulimit -n)");
    NtStatus::TOO_MANY_OPENED_FILES
}
