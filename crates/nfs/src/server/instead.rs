//! The answer to a call whose reply cannot be sent, because the file with its payload cannot be read.
//!
//! See RFC 1813 3.3.6 (READ3resfail), RFC 8881 16.2 (a COMPOUND ends with the first operation that fails) and RFC 5531
//! section 9 (SYSTEM_ERR). `dispatch` makes an [`Instead`] for each reply with a range of a file, which is read when the
//! reply is sent; `connection` sends it if that fails. It is made from the beginning of that reply.

use std::fmt::Display;
use std::sync::Arc;

use bytes::Bytes;
use weft_machine::{LogLimit, Payload, rt};
use weft_transport::{Outgoing, Part, Peer, Ticket};
use weft_wire::nfs3::{AttrOnly, Xdr};
use weft_wire::rpc::Reply;
use weft_wire::xdr::Encoder;
use weft_wire::{nfs3, nfs4};

/// Bytes of READ3resok between the attributes, which READ3resfail has as well, and the data: count, eof, length.
const BEHIND_ATTRIBUTES: usize = 12;
/// SYSTEM_ERR, as accept_stat.
const SYSTEM_ERR: [u8; 4] = [0, 0, 0, 5];
/// The longest error that a slot keeps: as long as a reply that is kept without a request to do so.
const MAX_KEPT: usize = 128;

/// A reply, and what to send if a file with its payload cannot be read.
pub(super) struct Answer {
    pub reply: Outgoing,
    pub instead: Option<Instead>,
}

impl From<Outgoing> for Answer {
    fn from(reply: Outgoing) -> Answer {
        Answer { reply, instead: None }
    }
}

impl Answer {
    /// With the call's ticket.
    pub fn with(self, ticket: Ticket) -> Answer {
        let Answer { reply, instead } = self;
        Answer { reply: Outgoing { ticket, ..reply }, instead }
    }
}

/// How an error is made of results whose payload cannot be read.
#[derive(Default)]
pub(super) enum Cut {
    /// Not at all: what was carried out behind the READ has changed something, and the client must not believe that it was not
    /// carried out.
    #[default]
    Never,
    /// The results of READ of version 3.
    Read3,
    Compound(CompoundCut),
}

/// The same for a COMPOUND. Offsets are in its results.
pub(super) struct CompoundCut {
    /// Of the number of results.
    pub count_at: u32,
    /// Of the status of the first operation with payload.
    pub status_at: u32,
    /// The number of results up to that of this operation.
    pub count: u32,
    /// What the slot of the request keeps must be what the client gets.
    pub slot: Option<RequestSlot>,
}

/// The slot of a request.
pub(super) struct RequestSlot {
    pub session: Arc<dyn KeepsReplies>,
    pub slot: u32,
    pub sequence: u32,
}

/// A session, whose slots keep replies for repetitions.
pub(super) trait KeepsReplies {
    /// The reply to this request, which was not kept, could not be sent: the client gets this one, also if it repeats the
    /// request.
    fn answered_instead(&self, slot: u32, sequence: u32, reply: Bytes);
}

impl Cut {
    /// The results with the error. `results` end where the first payload follows.
    pub fn results(self, results: &[u8]) -> Option<Encoder> {
        let mut e = Encoder::with_capacity(results.len().saturating_add(4));
        match self {
            Cut::Never => return None,
            Cut::Read3 => {
                e.raw(results.get(..results.len().checked_sub(BEHIND_ATTRIBUTES)?)?);
                e.patch_u32(0, nfs3::Status::IO.0);
            }
            Cut::Compound(CompoundCut { count_at, status_at, count, slot }) => {
                e.raw(results.get(..status_at as usize)?);
                e.u32(nfs4::Status::IO.0);
                e.patch_u32(0, nfs4::Status::IO.0);
                e.patch_u32(count_at as usize, count);
                if let Some(RequestSlot { session, slot, sequence }) = slot
                    && e.len() <= MAX_KEPT
                {
                    session.answered_instead(slot, sequence, e.copy_from(0));
                }
            }
        }
        Some(e)
    }
}

/// What to send if a reply cannot be sent.
pub(super) enum Instead {
    /// A reply without attributes to a READ of version 3 with this transaction id.
    Read3 { xid: u32 },
    /// What is made of the reply.
    Made(Made),
}

/// See [`Instead::Made`].
pub(super) struct Made {
    /// The reply's header if it has a verifier; otherwise `head` begins with the header.
    verified: Option<Box<Bytes>>,
    /// The reply up to its first payload.
    head: Bytes,
    cut: Cut,
}

impl Instead {
    /// For a reply of these parts, if it may become unreadable.
    pub fn of(parts: &[Part], cut: Cut) -> Option<Instead> {
        let [Part::Bytes(head), rest @ ..] = parts else { return None };
        reads_files(rest).then(|| Instead::Made(Made { verified: None, head: head.clone(), cut }))
    }

    /// The same for a reply whose header is a part of its own.
    pub fn of_verified(parts: &[Part], cut: Cut) -> Option<Instead> {
        let [Part::Bytes(header), Part::Bytes(head), rest @ ..] = parts else { return None };
        let made = || Made { verified: Some(Box::new(header.clone())), head: head.clone(), cut };
        reads_files(rest).then(|| Instead::Made(made()))
    }

    /// The reply.
    pub fn reply(self) -> Outgoing {
        let Made { verified, head, cut } = match self {
            Instead::Made(made) => made,
            Instead::Read3 { xid } => {
                let mut e = Encoder::with_capacity(Reply::SUCCESS_BYTES.saturating_add(8));
                Reply::Success.emit(xid, &mut e);
                e.u32(nfs3::Status::IO.0);
                AttrOnly::default().emit(&mut e);
                return Outgoing::bytes(e.into_bytes());
            }
        };
        let (header, results) = match &verified {
            None => head.split_at(Reply::SUCCESS_BYTES.min(head.len())),
            Some(header) => (&***header, &*head),
        };
        let mut e = Encoder::with_capacity(header.len().saturating_add(results.len()));
        match cut.results(results) {
            Some(results) => {
                e.raw(header);
                e.raw(results.after(0));
            }
            // A header of a call that succeeded ends with its accept_stat.
            None => {
                e.raw(header.split_at(header.len().saturating_sub(SYSTEM_ERR.len())).0);
                e.raw(&SYSTEM_ERR);
            }
        }
        Outgoing::bytes(e.into_bytes())
    }
}

fn reads_files(parts: &[Part]) -> bool {
    parts.iter().any(|part| matches!(part, Part::Payload { data: Payload::File(_), .. }))
}

/// Tells that a call of this peer gets an error, because a file cannot be read.
pub(super) fn tell(peer: Peer, e: &dyn Display) {
    static UNREADABLE: LogLimit = LogLimit::new();
    if let Some(left_out) = UNREADABLE.pass(rt::now()) {
        tracing::warn!(%peer, "a READ failed: {e}{left_out}");
    }
}
