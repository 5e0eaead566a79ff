//! A server announces itself on its networks: by Multicast DNS with DNS-SD (RFC 6762, RFC 6763), as macOS and Linux
//! look for servers, and by WS-Discovery, as Windows does.
//!
//! [`Announcer`] runs on a thread of its own, so that no packet of others is parsed on a core that serves data. It is
//! given an [`Announcement`] and knows no file protocol. [`mdns`] and [`discovery`] are state machines without sockets
//! and clocks; `run` moves packets between them and the sockets of each network interface.
#![forbid(unsafe_code)]
// No value from the network is used as an index, and every sum that may overflow states what happens then.
#![cfg_attr(not(test), deny(clippy::indexing_slicing, clippy::arithmetic_side_effects))]

mod announcement;
mod bucket;
mod chance;
pub mod discovery;
mod links;
pub mod mdns;
mod metadata;
mod run;
mod services;
mod socket;

pub use announcement::{AnnouncedShare, Announcement, MAX_NAME};
pub use run::Announcer;
pub use services::{Service, services};
pub use weft_wire::wsd::Uuid;
