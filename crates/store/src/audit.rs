//! The audit log: who did what to which file, one line of JSON each. `docs/audit.md` is its reference.
//!
//! Protocols know the user, the client and the answer, so they make the events, at the few points where they decide
//! opens, names and rights. This room takes them: a bounded queue that never makes a core wait, a thread that writes
//! them to a file, and the count of those that were lost. It knows no protocol.
//!
//! ```text
//! smb, nfs, weft --> Audit::tell --> queue (bounded) --> thread --> file
//!                     |               \__ full: counted __/  \__ disk full: counted, told by the next line
//!                     \__ one client is denied too often: counted for its address, told by a line of its own
//! ```
//!
//! A READ or WRITE makes no event: an [`AuditedOpen`] counts its bytes, and an NFS client without an open is told
//! once in a while ([`Recent`]).

mod cut;
mod denials;
mod event;
mod file;
mod line;
mod open;
mod queue;
mod recent;

pub use self::denials::{BURST, LINES_PER_SECOND, MOST_ADDRESSES};
pub use self::event::{Event, Fact, Kind, Outcome, Wanted, Who};
pub use self::file::{Rules, Unusable, start};
pub use self::line::{FIELDS, VERSION};
pub use self::open::AuditedOpen;
pub use self::queue::{Audit, LOST, Losses, MOST_BYTES, MOST_EVENTS};
pub use self::recent::Recent;
