//! One world for tests: servers, clients, disks, network and clocks in one simulation that unfolds from a seed.
//!
//! [`run`] starts a server of SMB and one of NFS over one file system on a simulated disk, lets clients of both work on the same files,
//! and breaks things: links are cut, the process or the host crashes, the disk fails, the clock is set. What clients see is held against a
//! [`model`]. A run that fails panics, and prints its last events; the seed repeats it.
//!
//! What is checked: a write that was answered is read, by both protocols; what was flushed survives every crash; a file that is open for
//! one alone is open for no other; every call ends; nothing is left open and no buffer is lost when all clients have gone.
//!
//! Does not: know the insides of a server; it sees what clients see.
#![forbid(unsafe_code)]

pub mod disk;
pub mod model;
pub mod names;
mod run;
mod trace;
mod work;
mod world;

pub use run::{Report, run};
