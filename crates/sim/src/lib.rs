//! One world for tests: servers, clients, a disk, network and clocks in one simulation, determined by a seed.
//!
//! [`run`] starts an SMB and an NFS server over one file system on a simulated disk. Clients of both work on the same files while links
//! are cut, the process or the host crashes, the disk fails, and the clock is set. A [`model`] says what clients may see. A failing run
//! panics and prints its last events; its seed repeats it.
//!
//! Checks: both protocols read an answered write; flushed data survives every crash; a renamed file has exactly one of its names, and its
//! content; an exclusively opened file is open to no other client, and stays so over a restart for a persistent handle; locks that exclude
//! each other are not granted side by side, and one that nobody holds any more is granted again; nothing is answered that another client's
//! lease excludes; every request gets exactly one answer, and what arrives twice is done once; every call ends; after all clients have gone,
//! nothing is open and every buffer is returned.
//!
//! The checks use only what clients see and what passes between them and the servers, not the servers' internal state.
#![forbid(unsafe_code)]

pub mod copies;
pub mod disk;
pub mod fragile;
pub mod leases;
pub mod locks;
pub mod model;
pub mod names;
mod run;
mod state;
pub mod tap;
mod trace;
mod work;
mod world;

pub use run::{Report, run};
