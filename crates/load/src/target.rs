//! The target of a workload: an open remote file, for any protocol and transport.
//!
//! The caller opens the file and passes its client's handle.

use bytes::Bytes;
use futures_util::future::LocalBoxFuture;
use weft_rdma::Traffic;

/// Why an operation failed, as the client reports it.
pub type TargetError = Box<dyn std::error::Error>;

/// A file that accepts many concurrent reads and writes.
pub trait Target {
    /// Reads `len` bytes at `offset`; fewer only at the end of the file.
    fn read(&self, offset: u64, len: u32) -> LocalBoxFuture<'_, Result<Bytes, TargetError>>;
    /// The same bytes in the memory that suits the transport best, as a program would keep bytes that it writes
    /// often: registrable for a server.
    fn settle(&self, data: Vec<u8>) -> Bytes {
        data.into()
    }
    /// Writes all of `data` at `offset`.
    fn write(&self, offset: u64, data: Bytes) -> LocalBoxFuture<'_, Result<(), TargetError>>;
}

/// The traffic of the connections below the files so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Carried {
    /// By path.
    pub traffic: Traffic,
    /// How often a request waited for a credit; `None` if the protocol has none, or does not count.
    pub starved: Option<u64>,
}
