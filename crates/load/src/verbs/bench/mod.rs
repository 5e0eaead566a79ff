//! The references for verbs: the primitives that they are built from, measured in the same way.
//!
//! [`tcp`] is a plain program on TCP sockets, [`atomic`] is two processes that write a word in turns, [`copy`] is
//! memcpy.

pub mod atomic;
pub mod copy;
pub mod tcp;
