//! What WRITE and COMMIT promise: the write verifier, by which a client learns that its uncommitted data may be lost.
//!
//! See RFC 1813 3.3.7 and 3.3.21, RFC 8881 18.32.3 and 18.3.3. The client, not the server, keeps uncommitted data.
//!
//! ```text
//! verifier = a random number of this run + failed flushes of the share
//! ```
//!
//! A client repeats each WRITE whose verifier differs from that of its COMMIT. So the verifier changes with each run,
//! and with each failed flush of a file of the share, over any protocol: the kernel reports the failure to one of
//! those who flush, and drops the data of all. A WRITE takes its verifier before it writes, and a COMMIT after its
//! flush, so any failure in between makes the two differ. Failures are counted before any reply is sent
//! ([`Vfs::failed_flushes`]).

use weft_store::{Error, OpenFile, Vfs};
use weft_wire::nfs3::Verifier;

use super::secret;

/// The part of the verifier that distinguishes this run from others.
pub(super) struct Run(u64);

/// The verifier of data that is about to be written.
#[must_use]
pub(super) struct Unflushed(Verifier);

impl Run {
    pub fn new() -> Run {
        Run(u64::from_be_bytes(secret()))
    }

    fn verifier(&self, vfs: &Vfs) -> Verifier {
        self.0.wrapping_add(vfs.failed_flushes()).to_be_bytes()
    }

    /// Call this before anything is written.
    pub fn writing(&self, vfs: &Vfs) -> Unflushed {
        Unflushed(self.verifier(vfs))
    }

    /// Makes the data of a file durable, and returns the verifier for it.
    pub async fn commit(&self, vfs: &Vfs, file: &OpenFile) -> Result<Verifier, Error> {
        file.sync().await?;
        Ok(self.verifier(vfs))
    }
}

impl Unflushed {
    /// The verifier of data that will be committed later.
    pub fn unstable(self) -> Verifier {
        self.0
    }

    /// Makes the data written to this file durable.
    pub async fn stable(self, file: &OpenFile) -> Result<Verifier, Error> {
        file.sync().await?;
        Ok(self.0)
    }
}
