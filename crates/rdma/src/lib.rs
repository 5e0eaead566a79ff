//! Verbs: move messages and memory between two processes, over any provider.
//!
//! [`Provider`] makes [`QueuePair`]s; work is submitted with [`QueuePair::post`], completions are returned by
//! [`QueuePair::poll`]. Every buffer is owned: posting moves it in, its completion returns it. The verbs behave as RFC
//! 5040 (RDMAP) describes, limited to what iWARP and InfiniBand share: Send, Send with Invalidate, Write, Read, local
//! invalidate. There is no immediate data and there are no atomics. The room does not retry, reconnect or interpret
//! messages.
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
