//! Server-side copies: SRV_COPYCHUNK and block cloning.
//!
//! Spec: [MS-SMB2] 3.3.5.15.5 to 3.3.5.15.7 (resume key, copy); [MS-FSA] 2.1.5.10.4 (duplicate extents). A resume key
//! is the FileId of the source: it gives access only to opens of the same session, so copies do not cross sessions. The
//! kernel copies, or shares blocks if it can; payload does not pass through here. A Mac's copy of a whole file, which has no
//! chunks, is in [`super::copyfile`].

use std::sync::Arc;

use weft_store::vfs::Error;
use weft_wire::smb2::access::AccessMask;
use weft_wire::smb2::fsctl::{self, Chunk, Copied, CopyChunks, DuplicateExtents, ResumeKey};
use weft_wire::smb2::ioctl::{CtlCode, Request};
use weft_wire::smb2::{FileId, NtStatus};

use super::control_output::Output;
use super::copyfile;
use super::opens::Open;
use crate::server::answer::Failure;
use crate::server::context::OpContext;

/// ServerSideCopyMaxNumberofChunks, ServerSideCopyMaxChunkSize, ServerSideCopyMaxDataSize (3.3.3, Windows' values).
const MAX_CHUNKS: u32 = 256;
const MAX_CHUNK_BYTES: u32 = 1 << 20;
const MAX_TOTAL_BYTES: u32 = 16 << 20;

/// 3.3.5.15.5.
pub(super) fn resume_key(request: &Request, file: FileId) -> Result<Output, Failure> {
    if request.max_output_response < fsctl::RESUME_KEY_LEN {
        return Err(NtStatus::INVALID_PARAMETER.into());
    }
    let mut key: ResumeKey = [0; 24];
    key[..16].copy_from_slice(&file.to_bytes());
    let mut output = Vec::new();
    fsctl::emit_resume_key(&key, &mut output);
    Ok(output.into())
}

/// The open that a key refers to.
fn source(cx: &OpContext, key: &ResumeKey) -> Result<Arc<Open>, NtStatus> {
    let [id @ .., 0, 0, 0, 0, 0, 0, 0, 0] = key else { return Err(NtStatus::OBJECT_NAME_NOT_FOUND) };
    let open = cx.session().opens.find_anywhere(FileId::from_bytes(*id));
    open.ok_or(NtStatus::OBJECT_NAME_NOT_FOUND)
}

/// 3.3.5.15.6.
pub(super) async fn copy(cx: &OpContext, request: &Request, target: &Open) -> Result<Output, Failure> {
    if request.max_output_response < Copied::LEN {
        return Err(NtStatus::INVALID_PARAMETER.into());
    }
    let wish = CopyChunks::parse(&request.input, MAX_CHUNKS)?;
    let source = source(cx, &wish.source)?;
    if wish.count == 0 && cx.session().is_mac() {
        return Ok(output(NtStatus::SUCCESS, Box::pin(copyfile::copy(cx, &source, target)).await?));
    }
    let total: u64 = wish.chunks.iter().map(|chunk| u64::from(chunk.len)).sum();
    let whole = |chunk: &Chunk| (1..=MAX_CHUNK_BYTES).contains(&chunk.len);
    if wish.count > MAX_CHUNKS || !wish.chunks.iter().all(whole) || total > u64::from(MAX_TOTAL_BYTES) {
        let limits =
            Copied { chunks: MAX_CHUNKS, chunk_bytes: MAX_CHUNK_BYTES, total_bytes: MAX_TOTAL_BYTES };
        return Ok(output(NtStatus::INVALID_PARAMETER, limits));
    }
    // A copy needs read access to the source and write access to the target; SRV_COPYCHUNK needs read access to that
    // too.
    source.require_any(AccessMask::FILE_READ_DATA | AccessMask::FILE_EXECUTE)?;
    target.require_any(AccessMask::FILE_WRITE_DATA | AccessMask::FILE_APPEND_DATA)?;
    if request.code == CtlCode::SRV_COPYCHUNK {
        target.require(AccessMask::FILE_READ_DATA)?;
    }
    let mut copied = Copied::default();
    for chunk in &wish.chunks {
        if let Err(failure) = piece(&source, target, *chunk).await {
            // The answer reports how much was copied before the failure.
            return Ok(output(failure.status, copied));
        }
        copied.chunks = copied.chunks.saturating_add(1);
        copied.total_bytes = copied.total_bytes.saturating_add(chunk.len);
    }
    Ok(output(NtStatus::SUCCESS, copied))
}

fn output(status: NtStatus, copied: Copied) -> Output {
    let mut bytes = Vec::new();
    copied.emit(&mut bytes);
    Output { status, bytes }
}

async fn piece(source: &Open, target: &Open, chunk: Chunk) -> Result<(), Failure> {
    let (Some(from), Some(to)) = (&source.file, &target.file) else {
        return Err(NtStatus::INVALID_DEVICE_REQUEST.into());
    };
    let len = u64::from(chunk.len);
    let end = chunk.source.checked_add(len).ok_or(NtStatus::INVALID_VIEW_SIZE)?;
    if end > from.len().await? {
        return Err(NtStatus::INVALID_VIEW_SIZE.into());
    }
    if chunk.target.checked_add(len).is_none_or(|end| i64::try_from(end).is_err()) {
        return Err(NtStatus::INVALID_PARAMETER.into());
    }
    source.claim.may_read(chunk.source, len)?;
    target.claim.may_write(chunk.target, len)?;
    let done = to.copy_from(chunk.target, from, chunk.source, len).await;
    // A failure may have come half-way.
    target.written(0).await;
    match done? {
        done if done == len => Ok(()),
        // Another client truncated the source meanwhile.
        _ => Err(NtStatus::INVALID_VIEW_SIZE.into()),
    }
}

/// [MS-FSA] 2.1.5.10.4, 2.1.5.10.5.
pub(super) async fn duplicate(cx: &OpContext, request: &Request, target: &Open) -> Result<Output, Failure> {
    let wish = match request.code {
        CtlCode::DUPLICATE_EXTENTS_TO_FILE => DuplicateExtents::parse(&request.input),
        _ => DuplicateExtents::parse_ex(&request.input),
    };
    let wish = wish.map_err(|_| NtStatus::BUFFER_TOO_SMALL)?;
    target.require(AccessMask::FILE_WRITE_DATA)?;
    let source = cx.session().opens.find_anywhere(wish.source).ok_or(NtStatus::INVALID_HANDLE)?;
    source.require(AccessMask::FILE_READ_DATA)?;
    let (Some(from), Some(to)) = (&source.file, &target.file) else {
        return Err(NtStatus::INVALID_PARAMETER.into());
    };
    let fits = |offset: u64, size: u64| offset.checked_add(wish.len).is_some_and(|end| end <= size);
    if !fits(wish.source_offset, from.len().await?) || !fits(wish.target_offset, to.len().await?) {
        return Err(NtStatus::NOT_SUPPORTED.into());
    }
    source.claim.may_read(wish.source_offset, wish.len)?;
    target.claim.may_write(wish.target_offset, wish.len)?;
    match to.clone_range(wish.target_offset, from, wish.source_offset, wish.len).await {
        Err(Error::NotSupported) => return Err(NtStatus::INVALID_DEVICE_REQUEST.into()),
        other => other?,
    }
    target.written(0).await;
    Ok(Output::default())
}
