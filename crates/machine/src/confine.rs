//! Confines this process for the rest of its life: to the files that it needs (Landlock), and to the system calls that a
//! server needs (seccomp).
//!
//! landlock(7), seccomp(2). Both bind a thread and the threads that it starts later, also those of root. Nothing widens or
//! ends either of them. They complement each other: io_uring makes no system calls that seccomp could see, but Landlock judges
//! its operations; Landlock judges paths only, and seccomp refuses what needs none.
//!
//! The caller decides what a process needs. [`to_paths`] is called while the process has one thread, before [`to_calls`].

mod calls;
mod paths;
#[cfg(test)]
mod tests;

pub use calls::{Keyrings, to_calls};
pub use paths::{Reach, Unconfined, Use, is_outside, to_paths};
