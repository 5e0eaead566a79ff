//! iWARP in user space: RDMAP over DDP over MPA over an ordinary TCP socket.
//!
//! Spec: RFC 5044 (MPA), 5041 (DDP), 5040 (RDMAP), 6581 (enhanced set-up).
//! Owns: the connections. Does not: need root, a kernel module or hardware.

mod config;

pub use config::Config;

use std::io;
use std::net::SocketAddr;
use std::rc::Rc;

use bytes::Bytes;
use futures_util::future::LocalBoxFuture;
use weft_machine::Pool;

use crate::verbs::{self, Caps, ConnectError, ConnectParams, QueuePair};

/// Makes iWARP connections.
#[derive(Clone, Debug)]
pub struct Provider {
    #[expect(dead_code, reason = "used by the driver")]
    pool: Pool,
    config: Config,
}

impl Provider {
    /// A provider whose connections take their buffers from `pool`.
    pub fn new(pool: Pool, config: Config) -> Provider {
        Provider { pool, config }
    }
}

impl verbs::Provider for Provider {
    fn name(&self) -> &'static str {
        "iwarp"
    }

    fn caps(&self) -> Caps {
        Caps {
            max_send_work: self.config.max_send_work,
            max_recv_work: self.config.max_recv_work,
            ird: self.config.ird,
            ord: self.config.ord,
            max_regions: self.config.max_regions,
            kernel_bypass: false,
        }
    }

    fn listen(&self, _addr: SocketAddr) -> LocalBoxFuture<'_, io::Result<Box<dyn verbs::Listener>>> {
        Box::pin(async { Err(io::ErrorKind::Unsupported.into()) })
    }

    fn connect(
        &self,
        _addr: SocketAddr,
        _params: ConnectParams,
    ) -> LocalBoxFuture<'_, Result<(Rc<dyn QueuePair>, Bytes), ConnectError>> {
        Box::pin(async { Err(ConnectError::Io(io::ErrorKind::Unsupported.into())) })
    }
}
