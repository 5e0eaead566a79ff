//! What WRITE and COMMIT promise: the write verifier, by which a client learns that data which it has not committed may be lost.
//!
//! Spec: RFC 1813 3.3.7, 3.3.21; RFC 8881 18.32.3, 18.3.3. Does not: keep what was not committed; the client does.
//!
//! ```text
//! verifier = a random number of this run + failed flushes of the share
//! ```
//!
//! A client writes again what was answered with another verifier than its COMMIT. So the verifier changes with the run, and with every
//! flush of a file of the share that fails, by whatever protocol: the kernel tells one of those who flush, and forgets the data of all.
//! A WRITE takes its verifier before it writes, and a COMMIT when its flush has ended: whatever fails in between makes the two differ.
//! Failures are counted before anybody is answered ([`Vfs::failed_flushes`]).

use weft_store::{Error, OpenFile, Vfs};
use weft_wire::nfs3::Verifier;

use super::secret;

/// The part of the verifier that tells this run from others.
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

    /// To be called before anything is written.
    pub fn writing(&self, vfs: &Vfs) -> Unflushed {
        Unflushed(self.verifier(vfs))
    }

    /// Makes durable what was written to a file, and says which data that was.
    pub async fn commit(&self, vfs: &Vfs, file: &OpenFile) -> Result<Verifier, Error> {
        file.sync().await?;
        Ok(self.verifier(vfs))
    }
}

impl Unflushed {
    /// What was written will be committed.
    pub fn unstable(self) -> Verifier {
        self.0
    }

    /// What was written to this file is durable now.
    pub async fn stable(self, file: &OpenFile) -> Result<Verifier, Error> {
        file.sync().await?;
        Ok(self.0)
    }
}
