//! Ceph: block images (RBD) of a cluster, by the system's librados and librbd.
//!
//! The libraries are found at run time (dlopen), so Weft builds and runs without them; without them every call says what to
//! install. The API is that of `rados/librados.h` and `rbd/librbd.h` since Ceph 16; see
//! <https://docs.ceph.com/en/latest/rbd/> for the terms.
//!
//! ```text
//! image        an image that this process has for itself: requests, size, lock, end
//! open         opening with time limits, by a thread of its own; creating, looking
//! lock         the exclusive lock: whose it is, and when a dead holder's is broken
//! client spec error
//! --------------------------------------------------------------------------------
//! native       the C objects, each with its one owner; the only unsafe code
//! ```
//!
//! librados blocks as long as a cluster does not answer. So only asynchronous requests are submitted on the caller's thread: the call
//! returns at once, and a thread of librbd wakes the task that awaits the result. All other calls are made by the image's thread.
#![deny(unsafe_code)]

mod answer;
mod client;
mod error;
mod identity;
mod image;
mod lock;
#[allow(unsafe_code)]
mod native;
mod open;
mod spec;

pub use client::{Client, DEFAULT_CONF, DEFAULT_ID};
pub use error::Error;
pub use identity::Identity;
pub use image::{Image, MAX_SLICES, Range};
pub use open::{Found, create, look, open, resize};
pub use spec::{BadSpec, ImageSpec};
