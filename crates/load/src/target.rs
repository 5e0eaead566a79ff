//! What a workload runs against: an open remote file, whatever the protocol and transport.
//!
//! Does not: open the file; the caller hands over the clients' own handles.

use bytes::Bytes;
use futures_util::future::LocalBoxFuture;
use weft_rdma::Traffic;

/// Why an operation failed, as the client said it.
pub type TargetError = Box<dyn std::error::Error>;

/// A file that takes reads and writes, many at a time.
pub trait Target {
    /// Reads `len` bytes at `offset`; fewer only at the end of the file.
    fn read(&self, offset: u64, len: u32) -> LocalBoxFuture<'_, Result<Bytes, TargetError>>;
    /// The same bytes where they leave from best, as a program has them that writes them often: in memory that can be opened
    /// to a server.
    fn settle(&self, data: Vec<u8>) -> Bytes {
        data.into()
    }
    /// Writes all of `data` at `offset`.
    fn write(&self, offset: u64, data: Bytes) -> LocalBoxFuture<'_, Result<(), TargetError>>;
}

/// What the connections below the files have carried so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Carried {
    /// By the way it went.
    pub traffic: Traffic,
    /// How often a request waited for a credit; `None` where the protocol has none, or does not count.
    pub starved: Option<u64>,
}
