//! What a workload runs against: an open remote file, whatever the protocol and transport.
//!
//! Owns: nothing. Does not: open the file; the caller hands over the clients' own handles.

use bytes::Bytes;
use futures_util::future::LocalBoxFuture;

/// Why an operation failed, as the client said it.
pub type TargetError = Box<dyn std::error::Error>;

/// A file that takes reads and writes, many at a time.
pub trait Target {
    /// Reads `len` bytes at `offset`; the number that came.
    fn read(&self, offset: u64, len: u32) -> LocalBoxFuture<'_, Result<usize, TargetError>>;
    /// Writes all of `data` at `offset`.
    fn write(&self, offset: u64, data: Bytes) -> LocalBoxFuture<'_, Result<(), TargetError>>;
}
