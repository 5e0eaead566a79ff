//! READ and WRITE of a file that the connection knows (see `familiar`), if they have to wait for nothing: no future, no parsing of
//! what was parsed before. Most of the traffic consists of them, and a future for each would double their cost.
//!
//! See RFC 1813 3.3.6 and 3.3.7. `None`, with nothing done, is for everything that is not plain success: then `dispatch` carries
//! the call out, and reports what is to be reported. The checks are those of `read` and `write`, in the same order.

use futures_util::FutureExt;
use weft_machine::recorder::{self, AtOnce, Details, Operation};
use weft_machine::{Payload, rt};
use weft_store::opens::{Access, Range, Rights};
use weft_store::{Attr, Kind, OpenFile, Read};
use weft_transport::{Message, Outgoing, Part, To, must_be_read};
use weft_wire::nfs3::{ReadHead, Stable, Status, WccData, WriteOk, Xdr, procedure as nfs};
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
    /// Number of calls that were answered at once.
    pub(in crate::server) static AT_ONCE: std::cell::Cell<usize> = const { std::cell::Cell::new(0) };
}

/// Carries out a call of this kind; its reply, and its operation for the flight recorder.
pub(in crate::server) fn at_once(
    connection: &Connection<'_>,
    message: &mut Message,
) -> Option<(Answer, Operation)> {
    let known = connection.familiar.find(&message.body)?;
    let is_current = connection.server.shares.is_current(&known.shares.list);
    // The audit log tells by whom and how a file was used.
    if !is_current || connection.server.auditing.get().is_some() || message.detached.is_some() {
        return None;
    }
    let (xid, arguments) =
        (message.body.first_chunk()?, message.body.get(4..)?.get(known.beginning.len()..)?);
    let xid = u32::from_be_bytes(*xid);
    let meter =
        CallMeter::known(connection.kind, known.procedure, known.share.meter, message.ticket.takes_payload());
    let _current = AtOnce::begin(meter.what()?);
    let (answer, sent) = match known.procedure {
        nfs::READ => read(connection, &known, xid, arguments)?,
        nfs::WRITE => (write(connection, &known, xid, arguments, message, &meter)?, 0),
        _ => return None,
    };
    #[cfg(test)]
    AT_ONCE.set(AT_ONCE.get() + 1);
    connection.watch.called_again(weft_wire::nfs3::VERSION);
    meter.answered(sent);
    recorder::answered(|| Details {
        client: Some(connection.client.clone()),
        user: known.user.clone(),
        file: String::new(),
    });
    Some((answer.with(std::mem::take(&mut message.ticket)), Operation::current()))
}

/// The reply of a READ, and the bytes of its data.
fn read(connection: &Connection<'_>, known: &Known, xid: u32, arguments: &[u8]) -> Option<(Answer, u64)> {
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
fn write(
    connection: &Connection<'_>,
    known: &Known,
    xid: u32,
    arguments: &[u8],
    message: &Message,
    meter: &CallMeter,
) -> Option<Answer> {
    let (head, data) = arguments.split_first_chunk::<WRITE_ARGUMENTS>()?;
    let (offset, rest) = head.split_first_chunk()?;
    let offset = u64::from_be_bytes(*offset);
    let [count, stable, len] = [0, 4, 8]
        .map(|at| rest.get(at..).and_then(<[u8]>::first_chunk).map(|word| u32::from_be_bytes(*word)));
    let (count, stable, len) = (count?, stable?, len?);
    let is_whole = count == len && data.len() == (len as usize).checked_add(xdr::pad(len as usize))?;
    let is_short = len <= connection.max_payload();
    let is_inside = offset.checked_add(count.into()).is_some_and(|end| end <= MAX_FILE_SIZE);
    if !is_whole || !is_short || !is_inside || stable != Stable::Unstable as u32 {
        return None;
    }
    let node = Node { share: &known.share, id: known.node };
    let vfs = &known.share.vfs;
    // Whoever caches the folder is to be told, which may have to wait.
    if vfs.opens().caches_directories() {
        return None;
    }
    let before = node.attr_now()?;
    node.permits(&known.caller, &before, WRITE)?;
    let unflushed = connection.server.run.writing(vfs);
    node.passes(Access::Write, Rights::WRITE)?;
    let file = node.open_now(connection, &known.caller, &before, true, (offset, count))?;
    let data = message.body.slice_ref(data.get(..len as usize)?);
    // What has failed is written again, to the same place, and reported then.
    file.write_now(offset, &[data])?.ok()?;
    if vfs.opens().caches_directories() {
        // Somebody has begun to cache a folder meanwhile, and may have seen the old size.
        let (vfs, node) = (vfs.clone(), known.node);
        rt::spawn(async move { vfs.content_changed(node).await }).detach();
    }
    meter.wrote(len as usize);
    let after = node.attr_now().map(|attr| node.attributes(&attr));
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
