//! Holes: SET_SPARSE, SET_ZERO_DATA, QUERY_ALLOCATED_RANGES, FILE_LEVEL_TRIM.
//!
//! Spec: [MS-FSA] 2.1.5.10.36, .37, .22, 2.1.5.10.12; [MS-FSCC] 2.3.
//! Files that are not marked sparse may have holes too, as on any Unix. The mark is kept beside the file and shown; it
//! decides whether zeroing frees space, and whether holes are reported.

use weft_machine::DataRanges;
use weft_store::vfs::{Attr, Dos, Error, Kind, XattrSummary};
use weft_wire::smb2::NtStatus;
use weft_wire::smb2::access::{AccessMask, FileAttributes};
use weft_wire::smb2::fsctl::{self, Extent};
use weft_wire::smb2::ioctl::Request;

use super::attributes;
use super::control_output::Output;
use super::opens::Open;
use crate::server::answer::Failure;

/// Ranges per FILE_LEVEL_TRIM.
const MAX_TRIMS: u32 = 4096;
/// The granularity in which space is freed.
const PAGE: u64 = 4096;

async fn facts(open: &Open) -> Result<(Attr, XattrSummary), Error> {
    Ok((open.vfs.getattr(open.node).await?, open.vfs.xattr_summary(open.node).await?))
}

fn is_sparse(attr: &Attr, xattrs: &XattrSummary) -> bool {
    attributes::attributes(attr, xattrs.dos, b"").contains(FileAttributes::SPARSE_FILE)
}

/// [MS-FSA] 2.1.5.10.36: no input means "set".
pub(super) async fn set_sparse(request: &Request, open: &Open) -> Result<Output, Failure> {
    if open.kind != Kind::File {
        return Err(NtStatus::INVALID_PARAMETER.into());
    }
    open.require_any(
        AccessMask::FILE_WRITE_DATA | AccessMask::FILE_WRITE_ATTRIBUTES | AccessMask::FILE_APPEND_DATA,
    )?;
    let set = request.input.first().is_none_or(|&flag| flag != 0);
    let (attr, xattrs) = facts(open).await?;
    if set != is_sparse(&attr, &xattrs) {
        let now = attributes::attributes(&attr, xattrs.dos, &open.name());
        let sparse = FileAttributes::SPARSE_FILE;
        let then = if set { now | sparse } else { now.without(sparse) };
        // If the mark could not be stored, the file would differ from what the client was told.
        open.vfs
            .set_dos(open.node, xattrs.dos, Dos { attributes: then.0, ..xattrs.dos.unwrap_or_default() })
            .await?;
    }
    Ok(Output::default())
}

/// [MS-FSA] 2.1.5.10.37.
pub(super) async fn set_zero_data(request: &Request, open: &Open) -> Result<Output, Failure> {
    let range = Extent::parse(&request.input)?;
    let beyond = range.len;
    if open.kind != Kind::File || range.offset > beyond || i64::try_from(beyond).is_err() {
        return Err(NtStatus::INVALID_PARAMETER.into());
    }
    open.require(AccessMask::FILE_WRITE_DATA)?;
    let Some(file) = &open.file else { return Err(NtStatus::ACCESS_DENIED.into()) };
    let len = beyond.saturating_sub(range.offset);
    open.claim.may_write(range.offset, len)?;
    if len == 0 {
        return Ok(Output::default());
    }
    let (attr, xattrs) = facts(open).await?;
    match is_sparse(&attr, &xattrs) {
        true => match file.punch_hole(range.offset, len).await {
            Err(Error::NotSupported) => file.zero_range(range.offset, len).await?,
            other => other?,
        },
        false => file.zero_range(range.offset, len).await?,
    }
    open.written(0).await;
    Ok(Output::default())
}

/// [MS-FSA] 2.1.5.10.22.
pub(super) async fn allocated_ranges(
    request: &Request,
    open: &Open,
    sparse: bool,
) -> Result<Output, Failure> {
    if open.kind != Kind::File {
        return Err(NtStatus::INVALID_PARAMETER.into());
    }
    open.require(AccessMask::FILE_READ_DATA)?;
    let wanted = Extent::parse(&request.input)?;
    let end = wanted.offset.checked_add(wanted.len).filter(|&end| i64::try_from(end).is_ok());
    let end = end.ok_or(NtStatus::INVALID_PARAMETER)?;
    let Some(file) = &open.file else { return Err(NtStatus::ACCESS_DENIED.into()) };
    let room = request.max_output_response as usize / Extent::LEN;
    let DataRanges { ranges, more } = if sparse {
        file.data_ranges(wanted.offset, wanted.len, room).await?
    } else {
        // A file that is not sparse is allocated from end to end.
        let end = file.len().await?.min(end);
        let ranges: Vec<_> = (wanted.offset < end).then_some(wanted.offset..end).into_iter().collect();
        let more = ranges.len() > room;
        DataRanges { ranges, more }
    };
    if room == 0 && more {
        return Err(NtStatus::BUFFER_TOO_SMALL.into());
    }
    let mut bytes = Vec::with_capacity(ranges.len().saturating_mul(Extent::LEN));
    for range in ranges.iter().take(room) {
        Extent { offset: range.start, len: range.end.saturating_sub(range.start) }.emit(&mut bytes);
    }
    Ok(Output { status: if more { NtStatus::BUFFER_OVERFLOW } else { NtStatus::SUCCESS }, bytes })
}

/// Whether `open` is marked sparse.
pub(super) async fn sparse(open: &Open) -> Result<bool, Failure> {
    let (attr, xattrs) = facts(open).await?;
    Ok(is_sparse(&attr, &xattrs))
}

/// [MS-FSA] 2.1.5.10.12: trimmed ranges read as zeros, which is one of the allowed results.
pub(super) async fn trim(request: &Request, open: &Open) -> Result<Output, Failure> {
    open.require(AccessMask::FILE_WRITE_DATA)?;
    let ranges = fsctl::parse_trim(&request.input, MAX_TRIMS)?;
    let Some(file) = &open.file else { return Err(NtStatus::INVALID_PARAMETER.into()) };
    let size = file.len().await?;
    let mut trimmed = 0u32;
    for range in ranges {
        let end = range.offset.saturating_add(range.len).min(size);
        // Whole pages only: a page with other data stays.
        let start = range.offset.checked_next_multiple_of(PAGE).unwrap_or(u64::MAX);
        let len = (end & !(PAGE - 1)).saturating_sub(start);
        if len > 0 {
            open.claim.may_write(start, len)?;
            match file.punch_hole(start, len).await {
                // Trimming is only a hint.
                Err(Error::NotSupported) => break,
                other => other?,
            }
        }
        trimmed = trimmed.saturating_add(1);
    }
    // FILE_LEVEL_TRIM_OUTPUT: the number of ranges, if the client has room for it.
    let bytes = if request.max_output_response >= 4 { trimmed.to_le_bytes().to_vec() } else { Vec::new() };
    Ok(bytes.into())
}
