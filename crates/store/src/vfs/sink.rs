//! What takes the changes of a file that is more than a file: a volume, or a door to something that no file system knows.
//!
//! Does not: read. Reads go to the file beside which a sink is put, so that they cost what those of any
//! file cost; a sink without bytes to read stands beside an empty one.

use std::fmt::Debug;
use std::io;

use bytes::Bytes;
use futures_util::future::LocalBoxFuture;

use weft_machine::File;

use super::Error;

/// Puts payload straight into a file in memory, from the offset that it is told; `None` where it cannot.
pub type Put<'a> = &'a mut dyn FnMut(&File, u64) -> Option<io::Result<()>>;

/// See the module.
#[allow(clippy::len_without_is_empty, reason = "a size, not a collection's")]
pub trait Sink: Debug + Send + Sync {
    /// Bytes that there are to read. Fixed while it is open.
    fn len(&self) -> u64;

    /// Whether there is anything to be read at present. By default there is.
    fn readable(&self) -> Result<(), Error> {
        Ok(())
    }

    /// Takes the bytes of one write, whole: what a protocol carried in one request comes here in one call.
    fn write(&self, offset: u64, chain: Vec<Bytes>) -> LocalBoxFuture<'_, Result<(), Error>>;

    /// One write of `len` bytes that `put` itself brings to where they are to lie in the end. False where there is no such
    /// place, or `put` cannot: then they are to come by [`Sink::write`], and what lies there until then is not said.
    fn place<'a>(&'a self, offset: u64, len: u64, put: Put<'a>) -> LocalBoxFuture<'a, Result<bool, Error>> {
        let _ = (offset, len, put);
        Box::pin(std::future::ready(Ok(false)))
    }

    /// Makes what was taken durable.
    fn sync(&self) -> LocalBoxFuture<'_, Result<(), Error>>;

    /// Makes a range read as zeros; it keeps its space only if that is said.
    fn zero(&self, offset: u64, len: u64, keep_space: bool) -> LocalBoxFuture<'_, Result<(), Error>>;

    /// Answers a message that is no file operation, with at most `max` bytes. By default there is nothing to say.
    fn exchange(&self, message: Bytes, max: usize) -> LocalBoxFuture<'_, Result<Bytes, Error>> {
        let _ = (message, max);
        Box::pin(std::future::ready(Err(Error::NotSupported)))
    }
}
