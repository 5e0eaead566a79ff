//! Real RDMA devices: libibverbs and librdmacm of rdma-core, found at run time.
//!
//! It implements the verbs on any device that the kernel supports: InfiniBand, RoCE or iWARP, in hardware or software.
//! See the man pages of libibverbs-dev and librdmacm-dev for the interface, and RFC 5040 for the meaning of the verbs.
//! rdma-core need not be installed; without it every call returns "provider not available" and says what to install.
//!
//! ```text
//! setup        connection manager: resolve, connect, listen, accept
//! queue_pair   the connection's life: events, time, the end
//! requests     turns work into requests of the device                 safe code above this line, except
//! queues       posted work and its completions                        the calls that post and register
//! memory       keys of our memory, regions of the peer's
//! status       maps the device's errors to those of the contract
//! ------------------------------------------------------------------
//! objects cm faults devices   the C objects, each with its one owner
//! library bindings            functions and structures of rdma-core
//! ```
//!
//! The device moves the bytes. Each connection has its own event channel, completion queue and protection domain, so a
//! region is open to the peer of its connection and to nobody else. Devices report neither why an access was refused
//! (see `status`) nor what the peer did in our memory: the peer's part of [`Traffic`](crate::Traffic) stays zero.

// No input from the device or the peer is used as an unchecked index, and every sum that may overflow states the
// outcome.
#![cfg_attr(not(test), deny(clippy::indexing_slicing, clippy::arithmetic_side_effects))]

mod bindings;
mod cm;
mod devices;
mod faults;
#[cfg(test)]
mod layout;
mod library;
mod memory;
mod objects;
mod queue_pair;
mod queues;
mod requests;
mod setup;
mod status;

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use futures_util::future::LocalBoxFuture;
use weft_machine::Pool;

use crate::{Caps, ConnectError, ConnectParams, Connected, Listener};

pub use devices::{Details, Device, Limits, LinkLayer, Node, Port, PortState, Transport, devices};
pub use library::Unavailable;

const NAME: &str = "rnic";

/// Limits; lower limits of a device take precedence.
#[derive(Clone, Debug)]
pub struct Config {
    /// Sends, Writes and Reads posted and not completed.
    pub max_send_work: usize,
    /// Receive buffers posted.
    pub max_recv_work: usize,
    /// Regions registered at a time, per connection.
    pub max_regions: usize,
    /// Pieces of memory in one work request.
    pub max_pieces: usize,
    /// Inbound Reads offered by default.
    pub ird: u16,
    /// Outbound Reads requested by default.
    pub ord: u16,
    /// Time limit for set-up: as initiator for all of it, as responder for each step.
    pub setup_timeout: Duration,
    /// Time limit for sending posted Sends after a close.
    pub close_timeout: Duration,
}

impl Default for Config {
    fn default() -> Config {
        Config {
            max_send_work: 512,
            max_recv_work: 512,
            max_regions: 1024,
            max_pieces: 16,
            ird: 32,
            ord: 32,
            setup_timeout: crate::SETUP_LIMIT,
            close_timeout: Duration::from_secs(10),
        }
    }
}

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
            revocable_regions: false,
            reads_into_files: false,
        }
    }
}

/// A core's provider for the RDMA devices of this host.
#[derive(Clone, Debug)]
pub struct Provider {
    pool: Pool,
    config: Config,
}

impl Provider {
    /// A provider that takes scratch memory from `pool`. Libraries and devices are looked up on first use.
    pub fn new(pool: Pool, config: Config) -> Provider {
        Provider { pool, config }
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
    ) -> LocalBoxFuture<'_, Result<Connected, ConnectError>> {
        Box::pin(setup::connect(&self.pool, &self.config, addr, params))
    }
}
