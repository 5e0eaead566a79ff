//! Copies from one open file to another, on the server if it can.
//!
//! Spec: [MS-SMB2] 2.2.31.1, 2.2.32.1, 2.2.32.3 and 3.3.5.15.6 (server-side copy). Only content is copied; the target's
//! length stays as it is.

use bytes::Bytes;
use futures_util::{StreamExt, TryStreamExt, stream};
use weft_wire::smb2::NtStatus;
use weft_wire::smb2::fsctl::{Chunk, Copied, CopyChunks, RESUME_KEY_LEN, ResumeKey};
use weft_wire::smb2::ioctl::CtlCode;

use super::error::Error;
use super::file::File;
use super::open_options::OpenOptions;
use super::tree::Tree;

/// Size of one chunk, and chunks per request: Windows' limits, which every server supports (3.3.3).
const CHUNK_BYTES: u32 = 1 << 20;
const CHUNKS: usize = 16;
/// Requests in flight while the bytes pass through us.
const QUEUE_DEPTH: usize = 8;

impl File {
    /// Copies the first `len` bytes of `source`, which must be open for reading in the same session.
    ///
    /// # Errors
    /// As [`File::read`] and [`File::write`].
    pub async fn copy_from(&self, source: &File, len: u64) -> Result<(), Error> {
        let key = match source.ioctl(CtlCode::SRV_REQUEST_RESUME_KEY, Bytes::new(), RESUME_KEY_LEN).await {
            Ok(answer) => *answer
                .first_chunk::<{ size_of::<ResumeKey>() }>()
                .ok_or(Error::Violation("SRV_REQUEST_RESUME_KEY: no key"))?,
            Err(e) if cannot(&e) => return self.copy_through_us(source, 0, len).await,
            Err(e) => return Err(e),
        };
        let mut done = 0;
        while done < len {
            let chunk = |at: u64| {
                let len = u64::from(CHUNK_BYTES).min(len.saturating_sub(at)) as u32;
                Chunk { source: at, target: at, len }
            };
            let chunks = (done..len).step_by(CHUNK_BYTES as usize).take(CHUNKS);
            let chunks: Vec<Chunk> = chunks.map(chunk).collect();
            let request = CopyChunks { source: key, count: chunks.len() as u32, chunks };
            let mut input = Vec::new();
            request.emit(&mut input);
            let copied = match self.ioctl(CtlCode::SRV_COPYCHUNK_WRITE, input.into(), Copied::LEN).await {
                Ok(answer) => u64::from(Copied::parse(&answer)?.total_bytes),
                Err(e) if cannot(&e) => return self.copy_through_us(source, done, len).await,
                Err(e) => return Err(e),
            };
            done = match done.checked_add(copied).filter(|done| copied > 0 && *done <= len) {
                Some(done) => done,
                None => return Err(Error::Violation("SRV_COPYCHUNK: the count differs from the request")),
            };
        }
        Ok(())
    }

    /// Replaces the content and the time of last write of the file at `to`, in the same share. That file keeps
    /// everything else: its identity, links, owner, ACL, attributes and streams. The server copies by itself if it can.
    ///
    /// # Errors
    /// As [`File::copy_from`] and [`super::Tree::open`].
    pub async fn overwrite(&self, to: &str) -> Result<(), Error> {
        let target = Tree::of(self.tree().clone()).open(to, OpenOptions::write()).await?;
        let found = self.stat().await?;
        target.copy_from(self, found.len).await?;
        target.set_len(found.len).await?;
        target.flush().await?;
        target.set_times(None, Some(found.modified)).await?;
        target.close().await
    }

    async fn copy_through_us(&self, source: &File, from: u64, len: u64) -> Result<(), Error> {
        let blocks = (from..len).step_by(CHUNK_BYTES as usize).map(|at| async move {
            let block = u64::from(CHUNK_BYTES).min(len.saturating_sub(at)) as usize;
            let bytes = source.read(at, block).await?;
            self.write(at, bytes).await
        });
        stream::iter(blocks).buffer_unordered(QUEUE_DEPTH).try_collect().await
    }
}

/// The server does not support server-side copy, or not chunks of this size.
fn cannot(e: &Error) -> bool {
    matches!(
        e.status(),
        Some(
            NtStatus::NOT_SUPPORTED
                | NtStatus::INVALID_DEVICE_REQUEST
                | NtStatus::INVALID_PARAMETER
                | NtStatus::OBJECT_NAME_NOT_FOUND
        )
    )
}
