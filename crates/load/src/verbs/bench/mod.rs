//! What verbs are held against: the bare things that they are made of, measured the same way.
//!
//! What: [`tcp`] is a plain program on TCP sockets, [`atomic`] two processes that touch a word in turns, [`copy`] memcpy.
//! Does not: start processes or judge.

pub mod atomic;
pub mod copy;
pub mod tcp;
