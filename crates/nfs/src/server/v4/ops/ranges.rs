//! ALLOCATE, DEALLOCATE, SEEK, READ_PLUS and IO_ADVISE (RFC 7862 15.1, 15.4, 15.11, 15.10, 15.5).

use weft_machine::{DataRanges, Payload};
use weft_wire::nfs4::{Allocate, Bitmap, IoAdvise, Read, Seek, SeekOk, Status};

use super::super::compound::Compound;
use super::super::io::{self, Intent};
use super::super::names::status;
use crate::server::attributes::MAX_FILE_SIZE;

const DATA: u32 = 0;
const HOLE: u32 = 1;
/// Most pieces in one READ_PLUS; the client requests the remainder.
const MAX_PIECES: usize = 16;

fn check(offset: u64, length: u64) -> Result<(), Status> {
    let end = offset.checked_add(length).ok_or(Status::INVAL)?;
    if end > MAX_FILE_SIZE { Err(Status::FBIG) } else { Ok(()) }
}

pub async fn allocate(c: &Compound<'_>, args: &Allocate) -> Result<(), Status> {
    let node = c.node()?;
    let file = io::file(c, &node, &args.stateid, Intent::Write(args.offset, args.length)).await?;
    check(args.offset, args.length)?;
    file.allocate(args.offset, args.length, false).await.map_err(|e| status(&e))?;
    node.share.vfs.content_changed(node.id).await;
    Ok(())
}

pub async fn deallocate(c: &Compound<'_>, args: &Allocate) -> Result<(), Status> {
    let node = c.node()?;
    let file = io::file(c, &node, &args.stateid, Intent::Write(args.offset, args.length)).await?;
    check(args.offset, args.length)?;
    file.punch_hole(args.offset, args.length).await.map_err(|e| status(&e))?;
    node.share.vfs.content_changed(node.id).await;
    Ok(())
}

pub async fn seek(c: &Compound<'_>, args: &Seek) -> Result<SeekOk, Status> {
    let node = c.node()?;
    let file = io::file(c, &node, &args.stateid, Intent::Read(args.offset, 0)).await?;
    if args.what != DATA && args.what != HOLE {
        return Err(Status::UNION_NOTSUPP);
    }
    let size = file.len().await.map_err(|e| status(&e))?;
    if args.offset >= size {
        return Err(Status::NXIO);
    }
    let behind = size.saturating_sub(args.offset);
    let found = file.data_ranges(args.offset, behind, 1).await.map_err(|e| status(&e))?;
    let first = found.ranges.first();
    Ok(match args.what {
        DATA => match first {
            Some(data) => SeekOk { eof: false, offset: data.start },
            None => SeekOk { eof: true, offset: size },
        },
        // A search for a hole finds one at the end of the file.
        _ => match first {
            Some(data) if data.start <= args.offset => SeekOk { eof: data.end >= size, offset: data.end },
            _ => SeekOk { eof: false, offset: args.offset },
        },
    })
}

/// A piece of a file: offset, length, and the data unless it is a hole.
struct Piece {
    offset: u64,
    len: u64,
    data: Option<Payload>,
}

pub async fn read_plus(c: &mut Compound<'_>, n: u32, args: &Read) -> Status {
    let (eof, pieces) = match pieces(c, args).await {
        Ok(pieces) => pieces,
        Err(status) => return c.put::<()>(n, Err(status)),
    };
    let status = c.put(n, Ok(eof));
    c.reply.tail.u32(pieces.len() as u32);
    for Piece { offset, len, data } in pieces {
        match data {
            None => {
                c.reply.tail.u32(HOLE);
                c.reply.tail.u64(offset);
                c.reply.tail.u64(len);
            }
            Some(data) => {
                c.reply.tail.u32(DATA);
                c.reply.tail.u64(offset);
                // RFC 8267 section 6 makes no part of READ_PLUS eligible for placement.
                c.reply.inline(data);
            }
        }
    }
    status
}

async fn pieces(c: &Compound<'_>, args: &Read) -> Result<(bool, Vec<Piece>), Status> {
    let node = c.node()?;
    let count = u64::from(args.count.min(c.cx.max_payload()));
    let file = io::file(c, &node, &args.stateid, Intent::Read(args.offset, count)).await?;
    let size = file.len().await.map_err(|e| status(&e))?;
    let mut end = args.offset.saturating_add(count).min(size);
    if args.offset >= end {
        return Ok((args.offset >= size, Vec::new()));
    }
    let len = end.saturating_sub(args.offset);
    let found = file.data_ranges(args.offset, len, MAX_PIECES / 2).await.map_err(|e| status(&e))?;
    let DataRanges { ranges, more } = found;
    if more {
        end = ranges.last().map_or(end, |last| last.end.min(end));
    }
    let mut pieces = Vec::new();
    let mut at = args.offset;
    for data in ranges {
        let (start, stop) = (data.start.max(at), data.end.min(end));
        if start > at {
            pieces.push(Piece { offset: at, len: start.saturating_sub(at), data: None });
        }
        if stop > start {
            let len = stop.saturating_sub(start);
            let data = file.read_within(size, start, len as usize).await.map_err(|e| status(&e))?;
            let data = c.cx.answers.read(data).await.map_err(|e| status(&e.into()))?;
            pieces.push(Piece { offset: start, len, data: Some(data) });
        }
        at = stop.max(at);
    }
    if at < end {
        pieces.push(Piece { offset: at, len: end.saturating_sub(at), data: None });
    }
    Ok((end >= size, pieces))
}

/// The advice is accepted and ignored, which the empty reply says.
pub fn io_advise(c: &Compound<'_>, args: &IoAdvise) -> Result<Bitmap, Status> {
    let node = c.node()?;
    io::state(c, &node, &args.stateid)?;
    Ok(Bitmap::EMPTY)
}
