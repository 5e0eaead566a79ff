//! Verbs: move messages and memory between two processes, over any provider.
//!
//! What: [`Provider`] makes [`QueuePair`]s; work goes in by [`QueuePair::post`], completions come out by
//! [`QueuePair::poll`]. Every buffer is owned: posting moves it in, its completion hands it back.
//! Spec: RFC 5040 (RDMAP verbs behaviour), the common denominator of iWARP and InfiniBand: Send, Send with
//! Invalidate, Write, Read, local invalidate. No immediate data, no atomics.
//! Owns: registered memory, posted buffers. Does not: retry, reconnect, or know what a message means.
#![deny(unsafe_code)]

#[cfg(any(test, fuzzing))]
pub mod fuzz;
pub mod iwarp;
#[allow(unsafe_code)]
pub mod rnic;
pub mod shm;
mod verbs;
pub mod wrap;

pub use verbs::*;
