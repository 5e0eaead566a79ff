//! What a connection or a link has carried: bytes and operations, by RDMA and in messages.

use std::ops::Add;

use serde::{Deserialize, Serialize};

/// Bytes and operations, as seen by the server.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct Traffic {
    /// RDMA Writes to the client, for its READs.
    pub rdma_written_bytes: u64,
    /// Number of RDMA Writes.
    pub rdma_writes: u64,
    /// RDMA Reads from the client, for its WRITEs.
    pub rdma_read_bytes: u64,
    /// Number of RDMA Reads.
    pub rdma_reads: u64,
    /// Bytes that the client itself moved by RDMA, in both directions.
    pub rdma_by_client_bytes: u64,
    /// Bytes in messages (RDMA Sends, or frames on TCP) to the client.
    pub sent_bytes: u64,
    /// Number of messages.
    pub sent: u64,
    /// Bytes in messages from the client.
    pub received_bytes: u64,
    /// Number of messages.
    pub received: u64,
}

impl From<weft_rdma::Traffic> for Traffic {
    fn from(moved: weft_rdma::Traffic) -> Traffic {
        Traffic {
            rdma_written_bytes: moved.written.0,
            rdma_writes: moved.written.1,
            rdma_read_bytes: moved.read.0,
            rdma_reads: moved.read.1,
            rdma_by_client_bytes: moved.placed.0 + moved.served.0,
            sent_bytes: moved.sent.0,
            sent: moved.sent.1,
            received_bytes: moved.received.0,
            received: moved.received.1,
        }
    }
}

impl Add for Traffic {
    type Output = Traffic;

    fn add(self, other: Traffic) -> Traffic {
        let sum = u64::saturating_add;
        Traffic {
            rdma_written_bytes: sum(self.rdma_written_bytes, other.rdma_written_bytes),
            rdma_writes: sum(self.rdma_writes, other.rdma_writes),
            rdma_read_bytes: sum(self.rdma_read_bytes, other.rdma_read_bytes),
            rdma_reads: sum(self.rdma_reads, other.rdma_reads),
            rdma_by_client_bytes: sum(self.rdma_by_client_bytes, other.rdma_by_client_bytes),
            sent_bytes: sum(self.sent_bytes, other.sent_bytes),
            sent: sum(self.sent, other.sent),
            received_bytes: sum(self.received_bytes, other.received_bytes),
            received: sum(self.received, other.received),
        }
    }
}

impl Traffic {
    /// Bytes moved by RDMA Read and Write.
    pub(crate) fn rdma_bytes(&self) -> u64 {
        self.rdma_written_bytes + self.rdma_read_bytes + self.rdma_by_client_bytes
    }

    /// Bytes in messages.
    pub(crate) fn inline_bytes(&self) -> u64 {
        self.sent_bytes + self.received_bytes
    }
}
