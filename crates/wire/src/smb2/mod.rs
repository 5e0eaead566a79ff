//! SMB2 and SMB3 messages: the header, one module per command ([MS-SMB2] 2.2), the information classes ([MS-FSCC] 2.4
//! and 2.5) and status codes ([MS-ERREF] 2.3).
//!
//! Parsed values are slices of the message (`Bytes`), so the data of a WRITE is never copied. This module neither keeps
//! state nor signs or encrypts.
//!
//! Every `parse` takes one whole message beginning with its 64-byte header, because the offsets inside a body count
//! from there ([MS-SMB2] 2.2). In a compound, each slice of [`compound::split`] is a message. Every `emit` appends a
//! body to a buffer that ends with the header.

pub mod aapl;
pub mod access;
pub mod afp_info;
pub mod cancel;
pub mod change_notify;
pub mod channel;
pub mod close;
pub mod command;
pub mod compound;
pub mod compression;
pub mod create;
pub mod create_context;
mod descriptor;
pub mod dfs;
pub mod echo;
pub mod error;
pub(crate) mod field;
pub mod filetime;
pub mod flush;
pub mod fscc;
pub mod fsctl;
pub mod header;
pub mod ioctl;
pub mod lock;
pub mod logoff;
pub mod negotiate;
pub mod offload;
pub mod oplock_break;
pub mod posix;
pub mod query_directory;
pub mod query_info;
pub mod rdma_transform;
pub mod read;
pub mod reparse;
pub mod session_setup;
pub mod set_info;
pub mod spelling;
pub mod status;
pub mod transform;
pub mod tree_connect;
pub mod tree_disconnect;
pub mod utf16;
pub mod write;

pub use command::Command;
pub use filetime::Filetime;
pub use header::{Header, Id};
pub use status::NtStatus;

/// Length of the header in bytes.
pub const HEADER_LEN: usize = 64;

/// A malformed message, with the rule that it breaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("malformed SMB2 message: {0}")]
pub struct Malformed(pub &'static str);

/// A globally unique identifier in wire order.
pub type Guid = [u8; 16];

/// A dialect revision ([MS-SMB2] 2.2.3). Ordered: later revisions compare greater.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Dialect(pub u16);

impl Dialect {
    /// SMB 2.0.2.
    pub const V2_0_2: Dialect = Dialect(0x0202);
    /// SMB 2.1.
    pub const V2_1: Dialect = Dialect(0x0210);
    /// The answer to a multi-protocol negotiate: the server speaks SMB2, and the client negotiates again (3.3.5.3.1).
    pub const WILDCARD: Dialect = Dialect(0x02FF);
    /// SMB 3.0.
    pub const V3_0: Dialect = Dialect(0x0300);
    /// SMB 3.0.2.
    pub const V3_0_2: Dialect = Dialect(0x0302);
    /// SMB 3.1.1.
    pub const V3_1_1: Dialect = Dialect(0x0311);
}

impl std::fmt::Display for Dialect {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match *self {
            Dialect::V2_0_2 => f.write_str("2.0.2"),
            Dialect::V2_1 => f.write_str("2.1"),
            Dialect::WILDCARD => f.write_str("2.???"),
            Dialect::V3_0 => f.write_str("3.0"),
            Dialect::V3_0_2 => f.write_str("3.0.2"),
            Dialect::V3_1_1 => f.write_str("3.1.1"),
            Dialect(other) => write!(f, "{other:#06x}"),
        }
    }
}

/// A server's handle of an open ([MS-SMB2] 2.2.14.1).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct FileId {
    /// Stays the same when a durable handle reconnects.
    pub persistent: u64,
    /// Unique in the session.
    pub volatile: u64,
}

impl FileId {
    /// The handle of the previous request in the compound (3.3.5.2.7.2).
    pub const RELATED: FileId = FileId { persistent: u64::MAX, volatile: u64::MAX };

    /// Converts from wire order.
    pub fn from_bytes(bytes: [u8; 16]) -> FileId {
        FileId { persistent: field::u64_at(&bytes, 0), volatile: field::u64_at(&bytes, 8) }
    }

    /// Converts to wire order.
    pub fn to_bytes(self) -> [u8; 16] {
        let mut out = [0; 16];
        out[..8].copy_from_slice(&self.persistent.to_le_bytes());
        out[8..].copy_from_slice(&self.volatile.to_le_bytes());
        out
    }
}

#[cfg(test)]
mod tests;
