//! The shared memory provider: the verbs between two processes of one user on one host, without the kernel.
//!
//! The initiator moves the bytes itself, directly between its buffers (or a file) and the peer's mapped slabs, after
//! checking the peer's region table. Rings carry messages to the peer; a doorbell wakes it when it sleeps. The verbs
//! behave as in RFC 5040; the layouts are our own (`layout`, `news`, `message`). A side's data is not protected from
//! its peer: both must run as the same user (this is checked), who can damage his own processes anyway.
//!
//! `setup` connects over a Unix socket and makes a `queue_pair`; the socket stays open to pass slabs and to detect that
//! the peer died. Work is carried out inside `post` unless a file is not in the page cache. The memory that peers
//! access lies in the provider's pool, whose slabs are memfds. A refused access ends the connection on both sides, as
//! on iWARP.

// No input from the peer is used as an unchecked index, and every sum that may overflow states the outcome.
#![cfg_attr(not(test), deny(clippy::indexing_slicing, clippy::arithmetic_side_effects))]

#[cfg(any(test, fuzzing))]
mod fuzz;
mod layout;
mod message;
mod moderation;
mod news;
mod quarantine;
mod queue_pair;
mod regions;
mod setup;
mod slabs;

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::rc::Rc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::LocalBoxFuture;
use weft_machine::{Pool, shm};

use crate::{Caps, ConnectError, ConnectParams, Listener, QueuePair};

#[cfg(any(test, fuzzing))]
pub use fuzz::shm_rings;

/// Limits, and where the sockets are.
#[derive(Clone, Debug)]
pub struct Config {
    /// The directory of the sockets: owned by this user, mode 0700, created if missing. Both sides must use the same
    /// one.
    pub dir: PathBuf,
    /// Sends, Writes and Reads posted and not completed.
    pub max_send_work: usize,
    /// Receive buffers posted; at most 512.
    pub max_recv_work: usize,
    /// Regions registered at a time; at most 4096.
    pub max_regions: usize,
    /// Inbound Reads offered by default. Reads complete inside `post`, so the number matters only to users that size
    /// their queues by it.
    pub ird: u16,
    /// Outbound Reads requested by default.
    pub ord: u16,
    /// Time limit for the peer's part of set-up, for all steps together.
    pub setup_limit: Duration,
    /// How long a peer that was stopped in the middle of an access may hold us up before we give up its connection. The
    /// longest honest access copies one buffer: a few milliseconds.
    pub stall_limit: Duration,
}

impl Default for Config {
    fn default() -> Config {
        Config {
            dir: shm::runtime_dir(),
            max_send_work: 1024,
            max_recv_work: layout::RECV_SLOTS,
            max_regions: layout::REGIONS,
            ird: 32,
            ord: 32,
            setup_limit: crate::SETUP_LIMIT,
            stall_limit: Duration::from_secs(1),
        }
    }
}

/// A core's provider for shared memory.
#[derive(Clone, Debug)]
pub struct Provider {
    pool: Pool,
    config: Config,
}

impl Provider {
    /// A provider whose regions, receive buffers and scratch memory come from `pool`.
    pub fn new(pool: Pool, mut config: Config) -> Provider {
        config.max_recv_work = config.max_recv_work.min(layout::RECV_SLOTS);
        config.max_regions = config.max_regions.min(layout::REGIONS);
        Provider { pool, config }
    }

    fn socket_name(port: u16) -> String {
        format!("rdma-{port}.sock")
    }
}

impl crate::Provider for Provider {
    fn name(&self) -> &'static str {
        NAME
    }

    fn caps(&self) -> Caps {
        self.config.caps()
    }

    fn listen(&self, addr: SocketAddr) -> LocalBoxFuture<'_, io::Result<Box<dyn Listener>>> {
        Box::pin(async move {
            let listener = setup::listen(self.pool.clone(), self.config.clone(), addr)?;
            Ok(Box::new(listener) as Box<dyn Listener>)
        })
    }

    fn connect(
        &self,
        addr: SocketAddr,
        params: ConnectParams,
    ) -> LocalBoxFuture<'_, Result<(Rc<dyn QueuePair>, Bytes), ConnectError>> {
        Box::pin(setup::connect(&self.pool, &self.config, addr, params))
    }
}

const NAME: &str = "shm";

impl Config {
    fn caps(&self) -> Caps {
        Caps {
            max_send_work: self.max_send_work,
            max_recv_work: self.max_recv_work,
            ird: self.ird,
            ord: self.ord,
            max_regions: self.max_regions,
            kernel_bypass: true,
            send_with_invalidate: true,
            revocable_regions: true,
            reads_into_files: true,
        }
    }
}

#[cfg(test)]
mod tests;
