//! The work that is compared: everything about a measurement except the transport.
//!
//! It is the key of a point; [`crate::workload::Workload`] is what runs.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::workload::{Mix, size_label};

/// The work of a point. Two points of one work over two transports performed the same operations.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Work {
    /// Its name in a job file; empty elsewhere.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub name: String,
    /// "SMB", "NFS" or "replica".
    pub protocol: String,
    /// The mix of operations.
    pub mix: Mix,
    /// Bytes per operation.
    pub size: u32,
    /// Outstanding operations of each thread (of each client if it has one).
    pub queue_depth: u32,
    /// Order of the offsets: "random", "sequential", "zipf 0.99".
    #[serde(default = "random")]
    pub order: String,
    /// Files in use.
    #[serde(default = "one")]
    pub files: u32,
    /// Threads of each client.
    #[serde(default = "one")]
    pub threads: u32,
    /// Connections of each client's session.
    #[serde(default = "one")]
    pub channels: u32,
    /// Clients, each a process or a host of its own.
    #[serde(default = "one")]
    pub clients: u32,
    /// Requested operations per second of all clients; absent: as many as possible.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rate: Option<u64>,
}

fn random() -> String {
    "random".to_owned()
}

fn one() -> u32 {
    1
}

impl Work {
    /// Random offsets of one file, by one client with one thread and one connection.
    pub fn simple(protocol: &str, mix: Mix, size: u32, queue_depth: u32) -> Work {
        Work { protocol: protocol.to_owned(), mix, size, queue_depth, ..Work::default() }
    }

    /// What differs from [`Work::simple`] apart from the block size: "2 threads, 20 files".
    pub fn shape(&self) -> String {
        let mut parts = Vec::new();
        for (count, one) in [
            (self.clients, "client"),
            (self.threads, "thread"),
            (self.channels, "channel"),
            (self.files, "file"),
        ] {
            if count > 1 {
                parts.push(format!("{count} {one}s"));
            }
        }
        if self.order != "random" {
            parts.push(self.order.clone());
        }
        if let Some(rate) = self.rate {
            parts.push(format!("{rate}/s requested"));
        }
        parts.join(", ")
    }
}

impl Default for Work {
    fn default() -> Work {
        Work {
            name: String::new(),
            protocol: String::new(),
            mix: Mix::Read,
            size: 0,
            queue_depth: 1,
            order: random(),
            files: 1,
            threads: 1,
            channels: 1,
            clients: 1,
            rate: None,
        }
    }
}

impl fmt::Display for Work {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let size = size_label(u64::from(self.size));
        if !self.name.is_empty() {
            write!(f, "{}: ", self.name)?;
        }
        write!(f, "{} {} {size} qd {}", self.protocol, self.mix, self.queue_depth)?;
        let shape = self.shape();
        if shape.is_empty() { Ok(()) } else { write!(f, ", {shape}") }
    }
}
