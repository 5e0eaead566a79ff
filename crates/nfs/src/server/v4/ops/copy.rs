//! COPY, CLONE, OFFLOAD_CANCEL, OFFLOAD_STATUS. Spec: RFC 7862 15.2, 15.13, 15.8, 15.9; 4.6 for copies on one server.
//!
//! A copy is answered when it is done, or when it has gone on for long enough: then the client asks for the rest. So
//! there is never one that could be cancelled.

use weft_store::OpenFile;
use weft_wire::nfs4::{Clone_, Copy, CopyOk, OffloadStatusOk, Stable, Stateid, Status, UpTo, WriteResponse};

use super::super::compound::Compound;
use super::super::io::{self, Intent};
use super::super::names::status;
use super::super::place::Place;
use crate::server::ops::MAX_FILE_SIZE;

/// Bytes of one COPY: well under the time after which a client asks what became of its call.
const MAX_COPY: u64 = 256 << 20;

struct Ends {
    from: OpenFile,
    to: OpenFile,
    count: u64,
}

/// Both files, and how many bytes there are to copy.
async fn ends(
    c: &Compound<'_>,
    (from_stateid, from_offset): (&Stateid, u64),
    (to_stateid, to_offset): (&Stateid, u64),
    count: u64,
    one_share: bool,
) -> Result<Ends, Status> {
    let to_node = c.node()?;
    let Place::Node(from_node) = c.saved.ok_or(Status::NOFILEHANDLE)? else { return Err(Status::ISDIR) };
    if one_share && from_node.number != to_node.number {
        return Err(Status::XDEV);
    }
    let from_stateid = saved(c, from_stateid);
    let from = io::file(c, &from_node, &from_stateid, Intent::Read(from_offset, count)).await?;
    let to = io::file(c, &to_node, to_stateid, Intent::Write(to_offset, count)).await?;
    let size = from.len().map_err(|e| status(&e))?;
    let end = from_offset.checked_add(count).ok_or(Status::INVAL)?;
    if from_offset > size || end > size {
        return Err(Status::INVAL);
    }
    let count = if count == 0 { size - from_offset } else { count };
    let to_end = to_offset.checked_add(count).ok_or(Status::INVAL)?;
    if to_end > MAX_FILE_SIZE {
        return Err(Status::FBIG);
    }
    Ok(Ends { from, to, count })
}

/// The state id of the saved file: with sessions one of them stands for the saved one.
fn saved(c: &Compound<'_>, stateid: &Stateid) -> Stateid {
    let current = c.minor > 0 && *stateid == Stateid::CURRENT;
    if current { c.saved_stateid.unwrap_or(*stateid) } else { *stateid }
}

pub async fn copy(c: &Compound<'_>, args: &Copy) -> Result<CopyOk, Status> {
    if !args.servers.0.is_empty() {
        return Err(Status::NOTSUPP);
    }
    let from_end = (&args.from_stateid, args.from_offset);
    let ends = ends(c, from_end, (&args.to_stateid, args.to_offset), args.count, false).await?;
    let count = ends.count.min(MAX_COPY);
    let done = ends.to.copy_from(args.to_offset, &ends.from, args.from_offset, count).await;
    let count = done.map_err(|e| status(&e))?;
    let response = WriteResponse {
        callback: UpTo::default(),
        count,
        committed: Stable::Unstable,
        verifier: c.cx.server.verifier,
    };
    Ok(CopyOk { response, consecutive: true, synchronous: true })
}

pub async fn clone(c: &Compound<'_>, args: &Clone_) -> Result<(), Status> {
    let from_end = (&args.from_stateid, args.from_offset);
    let ends = ends(c, from_end, (&args.to_stateid, args.to_offset), args.count, true).await?;
    let done = ends.to.clone_range(args.to_offset, &ends.from, args.from_offset, ends.count).await;
    done.map_err(|e| status(&e))
}

/// RFC 7862 15.8.3: no copy is going on.
pub fn offload_cancel(c: &Compound<'_>, _: &Stateid) -> Result<(), Status> {
    c.place()?;
    Err(Status::COMPLETE_ALREADY)
}

/// RFC 7862 15.9.3: no copy is going on.
pub fn offload_status(c: &Compound<'_>, _: &Stateid) -> Result<OffloadStatusOk, Status> {
    c.place()?;
    Err(Status::BAD_STATEID)
}
