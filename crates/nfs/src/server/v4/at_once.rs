//! READ and WRITE of an open file that the connection knows: see `server::at_once`.
//!
//! See RFC 7530 16.23 and 16.36, RFC 8881 18.22, 18.32, 2.10.6 (exactly once) and 18.46 (SEQUENCE). The COMPOUND is PUTFH and READ,
//! or PUTFH and WRITE with or without the GETATTR by which Linux looks after its cache; with sessions, SEQUENCE comes first. The
//! checks are those of `ops`. The slot is taken when nothing but the disk can refuse the request any more, before anything is
//! written, and given back as it was if the disk does.

use std::sync::Arc;

use bytes::{Buf as _, Bytes};
use futures_util::FutureExt;
use weft_machine::{Payload, Time, rt};
use weft_store::{OpenFile, Read};
use weft_transport::{Message, Outgoing, Part, To, must_be_read};
use weft_wire::nfs4::{
    Attributes, Bitmap, CompoundHead, ReadHead, ReplyHead, Sequence, Stable, Stateid, Status, Text, WriteOk,
    Xdr, opnum,
};
use weft_wire::rpc::Reply;
use weft_wire::xdr::{self, Decoder, Encoder};

use super::attributes;
use super::io::{self, Intent};
use super::ops::session::{fits, sequence_ok};
use super::state::session::{Highest, Questions};
use super::state::{Session, Speaker, State, TakenSlot};
use crate::server::attributes::MAX_FILE_SIZE;
use crate::server::context::{Connection, Context, Node};
use crate::server::credential::Credential;
use crate::server::familiar::{Known, KnownCompound, Procedure};
use crate::server::handles;
use crate::server::instead::{Answer, CompoundCut, Cut, Instead, RequestSlot};
use crate::server::meter::CallMeter;

/// SEQUENCE and its session; then sequence number, slot, highest slot and whether to cache the reply, which differ.
const SESSION: usize = 4 + 16;
const SLOT: usize = 16;
/// The number of an operation.
const NUMBER: usize = 4;
/// Offset and count.
const READ_ARGUMENTS: usize = 12;
/// Offset, stability, and the length of the data.
const WRITE_ARGUMENTS: usize = 16;
/// A reply up to its data, without a tag: the heads, SEQUENCE, PUTFH and READ; and the longest one of WRITE and GETATTR.
const READ_REPLY: usize = Reply::SUCCESS_BYTES + 12 + 44 + 8 + 16;
const WRITE_REPLY: usize = READ_REPLY + 256;
/// The longest tag of a call that is kept.
const MAX_TAG: usize = 64;

/// Lets the connection know a compound of this credential, whose operations `d` has, if it is such a one.
pub(super) fn meet(cx: &Context<'_>, credential: &Credential, head: &CompoundHead, d: &Decoder) {
    let has_session = head.minor > 0;
    let (sequence, hole) = if has_session { (SESSION + SLOT, SESSION..SESSION + SLOT) } else { (0, 0..0) };
    let ahead = sequence.saturating_add(NUMBER);
    let operations = d.peek(ahead.saturating_add(4 + handles::BYTES + NUMBER));
    let number = |at: usize| {
        operations.get(at..).and_then(<[u8]>::first_chunk).map_or(opnum::ILLEGAL, |n| u32::from_be_bytes(*n))
    };
    let operation = number(ahead.saturating_add(4 + handles::BYTES));
    let least = least_count(head.minor);
    let counts = match operation {
        opnum::READ => least..=least,
        opnum::WRITE => least..=least.saturating_add(1),
        _ => return,
    };
    let session = has_session.then(|| operations.get(NUMBER..).and_then(<[u8]>::first_chunk::<16>)).flatten();
    let is_such = number(sequence) == opnum::PUTFH
        && counts.contains(&head.count)
        && session.is_some() == has_session
        && (!has_session || number(0) == opnum::SEQUENCE)
        && head.count <= cx.server.states.limits.operations
        && head.tag.0.len() <= MAX_TAG
        && cx.origin().is_ok();
    if !is_such {
        return;
    }
    cx.meet(credential, d, (ahead, NUMBER), hole, || {
        Procedure::Compound(KnownCompound {
            minor: head.minor,
            // The call's own would keep its receive buffer.
            tag: Text(Bytes::copy_from_slice(&head.tag.0)),
            count: head.count,
            operation,
            session: session.map(|id| (*id, cx.server.states.questions.begun(credential, head.count))),
        })
    });
}

/// The number of operations up to READ or WRITE.
fn least_count(minor: u32) -> u32 {
    if minor > 0 { 3 } else { 2 }
}

/// A call that is carried out.
struct Request<'a> {
    connection: &'a Connection<'a>,
    known: &'a Known,
    compound: &'a KnownCompound,
    xid: u32,
    now: Time,
    /// With sessions.
    sequenced: Option<Sequenced>,
}

/// The SEQUENCE of a request that its session admits.
struct Sequenced {
    session: Arc<Session>,
    args: Sequence,
    highest: Highest,
    question: u64,
}

/// The reply to a compound, and the bytes of its data.
#[inline]
pub(in crate::server) fn compound(
    connection: &Connection<'_>,
    known: &Known,
    compound: &KnownCompound,
    xid: u32,
    arguments: &[u8],
    message: &Message,
    meter: &CallMeter,
) -> Option<(Answer, u64)> {
    let (stateid, arguments) = arguments.split_first_chunk::<16>()?;
    let [s0, s1, s2, s3, other @ ..] = *stateid;
    let stateid = Stateid { seqid: u32::from_be_bytes([s0, s1, s2, s3]), other };
    let sequenced = match compound.session {
        Some(_) => Some(Sequenced::of(connection, known, compound, message)?),
        None => None,
    };
    let request = Request { connection, known, compound, xid, now: rt::now(), sequenced };
    match compound.operation {
        opnum::READ => request.read(&stateid, arguments),
        opnum::WRITE => Some((request.write(&stateid, arguments, message, meter)?, 0)),
        _ => None,
    }
}

impl Sequenced {
    /// That of this message.
    fn of(
        connection: &Connection<'_>,
        known: &Known,
        compound: &KnownCompound,
        message: &Message,
    ) -> Option<Sequenced> {
        let (id, begun) = compound.session?;
        let behind_xid = message.body.get(4..)?;
        let hole: &[u8; SLOT] = known.beginning.hole_of(behind_xid)?.try_into().ok()?;
        let mut words = hole.chunks_exact(4).filter_map(|word| word.first_chunk().copied());
        let mut word = || words.next().map(u32::from_be_bytes);
        let (sequence, slot, highest_slot, cache) = (word()?, word()?, word()?, word()?);
        if cache != 0 {
            return None;
        }
        let args = Sequence { session: id, sequence, slot, highest_slot, cache: false };
        let origin = &connection.origin;
        let session = connection.server.states.session(&id, origin).ok()?;
        let is_known_there = session.lease.owned.is_at(origin.source);
        fits(&session, &args, message.body.len(), compound.count).ok()?;
        let highest = session.all_slots().filter(|_| is_known_there)?;
        let rest = behind_xid.get(known.beginning.hole.end..)?;
        Some(Sequenced { session, args, highest, question: Questions::ended(begun, rest, rest.len()) })
    }
}

impl Request<'_> {
    fn node(&self) -> Node<'_> {
        Node { share: &self.known.share, id: self.known.node }
    }

    /// The file and the state of an open that permits this.
    fn file(&self, stateid: &Stateid, intent: Intent) -> Option<(OpenFile, Arc<State>)> {
        let speaker = match &self.sequenced {
            Some(sequenced) => Speaker::Session(&sequenced.session),
            None => Speaker::Alone(&self.connection.origin),
        };
        let by = (&self.connection.server.states, speaker);
        io::file_now(by, &self.node(), &self.known.caller, stateid, intent)
    }

    /// Takes the slot, with sessions.
    fn begin(&self) -> Option<Option<TakenSlot<'_>>> {
        let Some(Sequenced { session, args, question, .. }) = &self.sequenced else { return Some(None) };
        session.begin_at_once(args.slot, args.sequence, *question).map(Some)
    }

    /// The request, which has used this state, is answered.
    fn answered(&self, slot: Option<TakenSlot<'_>>, state: &State) {
        state.lease.renew(self.now);
        if let (Some(slot), Some(Sequenced { session, .. })) = (slot, &self.sequenced) {
            slot.answered();
            session.lease.renew(self.now);
            self.connection.line.associate(&session.id);
        }
    }

    /// Whether the client takes a reply of this length.
    fn takes(&self, bytes: usize) -> Option<()> {
        let Some(Sequenced { session, .. }) = &self.sequenced else { return Some(()) };
        (bytes <= session.fore.max_response as usize).then_some(())
    }

    /// A reply up to the result of its READ or WRITE.
    fn head(&self, capacity: usize) -> Encoder {
        let KnownCompound { tag, count, operation, .. } = self.compound;
        let mut body = Encoder::with_capacity(capacity.saturating_add(tag.0.len()));
        Reply::Success.emit(self.xid, &mut body);
        ReplyHead { status: Status::OK, tag: tag.clone(), count: *count }.emit(&mut body);
        if let Some(Sequenced { session, args, highest, .. }) = &self.sequenced {
            body.u32(opnum::SEQUENCE);
            body.u32(Status::OK.0);
            sequence_ok(session, args, *highest).emit(&mut body);
        }
        body.u32(opnum::PUTFH);
        body.u32(Status::OK.0);
        body.u32(*operation);
        body
    }

    fn read(&self, stateid: &Stateid, arguments: &[u8]) -> Option<(Answer, u64)> {
        let arguments: &[u8; READ_ARGUMENTS] = arguments.try_into().ok()?;
        let (offset, count) = arguments.split_first_chunk()?;
        let (offset, count) = (u64::from_be_bytes(*offset), u32::from_be_bytes(count.try_into().ok()?));
        let count = count.min(self.connection.max_payload());
        let (file, state) = self.file(stateid, Intent::Read(offset, u64::from(count)))?;
        let size = file.len().now_or_never()?.ok()?;
        let data = match file.read_known(size, offset, count as usize) {
            Read::Now(Ok(Payload::File(range))) if must_be_read(&range) => return None,
            Read::Now(Ok(data)) => data,
            Read::Now(Err(_)) | Read::Later(_) => return None,
        };
        let count = data.len() as u32;
        let eof = offset.saturating_add(u64::from(count)) >= size;
        let mut body = self.head(READ_REPLY);
        let status_at = body.len();
        body.u32(Status::OK.0);
        ReadHead { eof, count }.emit(&mut body);
        self.takes(body.len().saturating_add(data.len()).saturating_add(xdr::pad(data.len())))?;
        self.answered(self.begin()?, &state);
        let reads_file = matches!(data, Payload::File(_));
        let parts = vec![Part::Bytes(body.into_bytes()), Part::Payload { data, to: To::Ticket }];
        let instead = reads_file.then(|| Instead::of(&parts, self.cut(status_at))).flatten();
        Some((Answer { reply: Outgoing { parts, ..Outgoing::default() }, instead }, count.into()))
    }

    /// What a READ becomes if the file cannot be read; its status is there in the reply.
    fn cut(&self, status_at: usize) -> Cut {
        let slot = self.sequenced.as_ref().map(|Sequenced { session, args, .. }| RequestSlot {
            session: session.clone(),
            slot: args.slot,
            sequence: args.sequence,
        });
        let tag = self.compound.tag.0.len();
        Cut::Compound(CompoundCut {
            // Behind the status and the tag.
            count_at: 8u32.saturating_add(tag.saturating_add(xdr::pad(tag)) as u32),
            status_at: status_at.saturating_sub(Reply::SUCCESS_BYTES) as u32,
            count: self.compound.count,
            slot,
        })
    }

    fn write(
        &self,
        stateid: &Stateid,
        arguments: &[u8],
        message: &Message,
        meter: &CallMeter,
    ) -> Option<Answer> {
        let (head, behind) = arguments.split_first_chunk::<WRITE_ARGUMENTS>()?;
        let mut head = &head[..];
        let offset = head.try_get_u64().ok()?;
        let (stable, len) = (head.try_get_u32().ok()?, head.try_get_u32().ok()?);
        let (data, behind) = behind.split_at_checked((len as usize).checked_add(xdr::pad(len as usize))?)?;
        let wanted = self.wanted_behind(behind, message)?;
        let is_inside = offset.checked_add(len.into()).is_some_and(|end| end <= MAX_FILE_SIZE);
        if !is_inside || stable != Stable::Unstable as u32 {
            return None;
        }
        let node = self.node();
        node.is_uncached()?;
        let unflushed = self.connection.server.run.writing(&self.known.share.vfs);
        let (file, state) = self.file(stateid, Intent::Write(offset, u64::from(len)))?;
        self.takes(WRITE_REPLY.saturating_add(MAX_TAG))?;
        let data = message.body.slice_ref(data.get(..len as usize)?);
        let slot = self.begin()?;
        node.write_now(&file, offset, data)?;
        // A file whose attributes cannot be had is written again, as one whose data cannot be written.
        let values = match wanted {
            Some(wanted) => Some(self.attributes(wanted)?),
            None => None,
        };
        self.answered(slot, &state);
        meter.wrote(len as usize);
        let mut body = self.head(WRITE_REPLY);
        body.u32(Status::OK.0);
        WriteOk { count: len, committed: Stable::Unstable, verifier: unflushed.unstable() }.emit(&mut body);
        if let Some(values) = values {
            body.u32(opnum::GETATTR);
            body.u32(Status::OK.0);
            values.fattr().emit(&mut body);
        }
        Some(Answer::from(Outgoing::bytes(body.into_bytes())))
    }

    /// What the GETATTR behind a WRITE asks for, if there is one: only what one look at the file tells.
    fn wanted_behind(&self, behind: &[u8], message: &Message) -> Option<Option<Bitmap>> {
        if self.compound.count == least_count(self.compound.minor) {
            return behind.is_empty().then_some(None);
        }
        let mut d = Decoder::new(message.body.slice_ref(behind));
        let is_getattr = d.u32().is_ok_and(|number| number == opnum::GETATTR);
        let wanted = Bitmap::parse(&mut d).ok().filter(|_| is_getattr && d.end().is_ok())?;
        // A client that holds a write delegation knows better.
        let is_written = self.connection.server.states.delegated.writer(self.node().file()).is_some();
        (!is_written && wanted.and(attributes::OWN) == wanted).then_some(Some(wanted))
    }

    fn attributes(&self, wanted: Bitmap) -> Option<Attributes> {
        let node = self.node();
        let attr = node.share.vfs.attr_now(node.id)?.ok()?;
        let mut values = Attributes::default();
        attributes::own_values(&mut values, &node, &attr, wanted);
        Some(values)
    }
}
