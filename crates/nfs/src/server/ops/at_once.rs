//! READ and WRITE of a file that the connection knows: see `server::at_once`.
//!
//! See RFC 1813 3.3.6 and 3.3.7. The checks are those of `read` and `write`, in the same order.

use bytes::Buf as _;
use futures_util::FutureExt;
use weft_machine::Payload;
use weft_store::opens::{Access, Range, Rights};
use weft_store::{Attr, Kind, OpenFile, Read};
use weft_transport::{Message, Outgoing, Part, To, must_be_read};
use weft_wire::nfs3::{ReadHead, Stable, Status, WccData, WriteOk, Xdr};
use weft_wire::rpc::Reply;
use weft_wire::xdr::{self, Encoder};

use crate::server::attributes::{MAX_FILE_SIZE, wcc};
use crate::server::caller::{Caller, READ, WRITE};
use crate::server::context::{Connection, Node};
use crate::server::familiar::Known;
use crate::server::instead::{Answer, Instead};
use crate::server::meter::CallMeter;

/// Offset and count.
const READ_ARGUMENTS: usize = 12;
/// Offset, count, stability, and the length of the data.
const WRITE_ARGUMENTS: usize = 20;
/// A reply up to its data, if it has attributes (fattr3 takes 84 bytes), and a reply of WRITE.
const READ_REPLY: usize = Reply::SUCCESS_BYTES + 4 + 4 + 84 + 12;
const WRITE_REPLY: usize = Reply::SUCCESS_BYTES + 4 + 4 + 24 + 4 + 84 + 16;

#[cfg(test)]
thread_local! {
    /// Number of times that attributes were asked for.
    pub(in crate::server) static LOOKS: std::cell::Cell<usize> = const { std::cell::Cell::new(0) };
}

/// The reply of a READ, and the bytes of its data.
#[inline]
pub(in crate::server) fn read(
    connection: &Connection<'_>,
    known: &Known,
    xid: u32,
    arguments: &[u8],
) -> Option<(Answer, u64)> {
    let arguments: &[u8; READ_ARGUMENTS] = arguments.try_into().ok()?;
    let (offset, count) = arguments.split_first_chunk()?;
    let (offset, count) = (u64::from_be_bytes(*offset), u32::from_be_bytes(count.try_into().ok()?));
    let node = Node { share: &known.share, id: known.node };
    node.passes(Access::Read, Rights::READ)?;
    let attr = node.attr_now()?;
    node.permits(&known.caller, &attr, READ)?;
    let file = node.open_now(connection, &known.caller, &attr, false, (offset, count))?;
    let len = count.min(connection.max_payload()) as usize;
    let data = match file.read_known(attr.size, offset, len) {
        Read::Now(Ok(Payload::File(range))) if must_be_read(&range) => return None,
        Read::Now(Ok(data)) => data,
        Read::Now(Err(_)) | Read::Later(_) => return None,
    };
    let count = data.len() as u32;
    let eof = offset.saturating_add(u64::from(count)) >= attr.size;
    let mut body = Encoder::with_capacity(READ_REPLY);
    Reply::Success.emit(xid, &mut body);
    body.u32(Status::OK.0);
    ReadHead { attributes: Some(node.attributes(&attr)), count, eof }.emit(&mut body);
    let instead = matches!(data, Payload::File(_)).then_some(Instead::Read3 { xid });
    let parts = vec![Part::Bytes(body.into_bytes()), Part::Payload { data, to: To::Ticket }];
    Some((Answer { reply: Outgoing { parts, ..Outgoing::default() }, instead }, count.into()))
}

/// The reply of a WRITE whose data need not be durable.
#[inline]
pub(in crate::server) fn write(
    connection: &Connection<'_>,
    known: &Known,
    xid: u32,
    arguments: &[u8],
    message: &Message,
    meter: &CallMeter,
) -> Option<Answer> {
    let (head, data) = arguments.split_first_chunk::<WRITE_ARGUMENTS>()?;
    let mut head = &head[..];
    let offset = head.try_get_u64().ok()?;
    let (count, stable, len) = (head.try_get_u32().ok()?, head.try_get_u32().ok()?, head.try_get_u32().ok()?);
    let is_whole = count == len && data.len() == (len as usize).checked_add(xdr::pad(len as usize))?;
    let is_short = len <= connection.max_payload();
    let is_inside = offset.checked_add(count.into()).is_some_and(|end| end <= MAX_FILE_SIZE);
    if !is_whole || !is_short || !is_inside || stable != Stable::Unstable as u32 {
        return None;
    }
    let node = Node { share: &known.share, id: known.node };
    node.is_uncached()?;
    // What it was after a WRITE of the same batch, it is before this one: nothing has been waited for in between, and others have no
    // more time to change it unseen than they have behind a look of its own.
    let written = connection.written.borrow_mut().take();
    let before = match written {
        Some((file, after)) if file == node.file() => after,
        _ => node.attr_now()?,
    };
    node.permits(&known.caller, &before, WRITE)?;
    let unflushed = connection.server.run.writing(&known.share.vfs);
    node.passes(Access::Write, Rights::WRITE)?;
    let file = node.open_now(connection, &known.caller, &before, true, (offset, count))?;
    let data = message.body.slice_ref(data.get(..len as usize)?);
    node.write_now(&file, offset, data)?;
    meter.wrote(len as usize);
    let looked = node.attr_now();
    let after = looked.as_ref().map(|attr| node.attributes(attr));
    *connection.written.borrow_mut() = looked.map(|attr| (node.file(), attr));
    let mut body = Encoder::with_capacity(WRITE_REPLY);
    Reply::Success.emit(xid, &mut body);
    body.u32(Status::OK.0);
    let wcc = WccData { before: Some(wcc(&before)), after };
    WriteOk { wcc, count, committed: Stable::Unstable, verifier: unflushed.unstable() }.emit(&mut body);
    Some(Answer::from(Outgoing::bytes(body.into_bytes())))
}

impl Node<'_> {
    /// Whether others let this access pass at once.
    fn passes(&self, access: Access, rights: Rights) -> Option<()> {
        self.share.vfs.opens().pass(self.id, access, rights).now_or_never()?.ok()
    }

    /// The attributes of a file, if they can be had at once.
    fn attr_now(&self) -> Option<Attr> {
        #[cfg(test)]
        LOOKS.set(LOOKS.get() + 1);
        let attr = self.share.vfs.attr_now(self.id)?.ok()?;
        (attr.kind == Kind::File && attr.nlink > 0).then_some(attr)
    }

    /// Whether the caller may do this, as far as can be told at once.
    fn permits(&self, caller: &Caller, attr: &Attr, wanted: u32) -> Option<()> {
        self.check_data(caller, attr, wanted).now_or_never()?.ok()
    }

    /// The file, if it is open, its descriptor admits the caller, and nobody has locked this range of it.
    fn open_now(
        &self,
        connection: &Connection<'_>,
        caller: &Caller,
        attr: &Attr,
        write: bool,
        (offset, len): (u64, u32),
    ) -> Option<OpenFile> {
        let vfs = &self.share.vfs;
        if let Some(range) = Range::new(offset, u64::from(len)) {
            vfs.opens().may_transfer(self.id, range, write).ok()?;
        }
        connection.server.files.known_as(vfs, self.share.key(), attr, write, caller).ok()?
    }
}
