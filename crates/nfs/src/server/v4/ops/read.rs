//! READ (RFC 8881 18.22, RFC 7530 16.23).
//!
//! The data is a range of the open file that has not been read yet, unless its file system may block; the call's ticket and
//! the transport decide where it is placed.

use weft_machine::Payload;
use weft_wire::nfs4::{Read, ReadHead, Status};

use super::super::compound::Compound;
use super::super::io::{self, Intent};
use super::super::names::status;

pub async fn read(c: &Compound<'_>, args: &Read) -> Result<(ReadHead, Payload), Status> {
    let node = c.node()?;
    let count = args.count.min(c.cx.max_payload());
    let file = io::file(c, &node, &args.stateid, Intent::Read(args.offset, u64::from(count))).await?;
    let size = file.len().await.map_err(|e| status(&e))?;
    let data = file.read_within(size, args.offset, count as usize).await.map_err(|e| status(&e))?;
    let data = c.cx.answers.read(data).await.map_err(|e| status(&e.into()))?;
    let count = data.len() as u32;
    let eof = args.offset.saturating_add(u64::from(count)) >= size;
    Ok((ReadHead { eof, count }, data))
}
