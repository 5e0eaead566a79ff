//! Connection set-up: one MPA frame in each direction, and the parameters that they agree on.
//!
//! Implements RFC 5044 7.1.2 (rules), RFC 6581 9.1 (IRD, ORD), 9.2 (peer-to-peer) and 10 (mixed revisions). It reads
//! neither a socket nor a clock; bytes and time are arguments.
//!
//! ```text
//! initiator                                  responder
//! Initiator::new -> request bytes  ------->  Responder::handle -> Asked
//! Initiator::handle -> Agreed      <-------  Asked::accept -> reply bytes, Agreed  (or Asked::reject)
//! ```
//!
//! `handle` takes from its input only the bytes of the frame: what follows in the same read are FPDUs.

use bytes::Bytes;
use weft_machine::Time;
use weft_wire::mpa::{self, Enhanced, Frame, Kind, Malformed, NOT_NEGOTIATED, Rtr};

use super::frame;
use super::terminate::Fault;
use crate::verbs::ConnectError;

/// What this side offers.
#[derive(Clone, Debug)]
pub(super) struct Offer {
    pub(super) crc: bool,
    /// Require markers in what the peer sends.
    pub(super) markers: bool,
    pub(super) ird: u16,
    pub(super) ord: u16,
    pub(super) peer_to_peer: bool,
    /// As initiator, ask in the form of RFC 6581. The older form does not carry IRD, ORD or the peer-to-peer model.
    pub(super) enhanced: bool,
    pub(super) private_data: Bytes,
}

/// Which side this is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Role {
    /// Sends the request, and the first FPDU. It starts with an empty message if the peer-to-peer model requires one.
    Initiator { open_with: Option<Opening> },
    /// Sends no FPDU before it has received one (RFC 5044 7.1.2 rule 4). `empty_send_opens`: an empty Send as the very
    /// first message is an indication, which the user does not see.
    Responder { empty_send_opens: bool },
}

/// The initiator's ready-to-receive indication, one empty message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Opening {
    Write,
    Send,
    Read,
}

/// The outcome of set-up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Agreed {
    pub(super) role: Role,
    /// CRCs are generated and checked in both directions.
    pub(super) crc: bool,
    /// The peer requires markers in what we send.
    pub(super) markers: bool,
    /// We required markers in what we receive.
    pub(super) marked: bool,
    pub(super) ird: u16,
    pub(super) ord: u16,
    /// The peer's private data.
    pub(super) private_data: Bytes,
}

/// Set-up failed; `farewell` is sent before the socket closes.
#[derive(Debug)]
pub(super) struct Failure {
    pub(super) error: ConnectError,
    pub(super) farewell: Vec<u8>,
}

impl From<ConnectError> for Failure {
    fn from(error: ConnectError) -> Failure {
        Failure { error, farewell: Vec::new() }
    }
}

impl From<Malformed> for Failure {
    fn from(malformed: Malformed) -> Failure {
        ConnectError::Violation(match malformed {
            Malformed::Truncated => "MPA frame cut short",
            Malformed::Trailing => "MPA frame too long",
            Malformed::Key => "no MPA frame",
            Malformed::Revision(_) => "MPA revision unknown",
            Malformed::PrivateData(_) => "MPA private data length",
        })
        .into()
    }
}

/// Collects the bytes of one frame.
#[derive(Debug, Default)]
struct Inbox(Vec<u8>);

impl Inbox {
    /// Takes the bytes of the frame from the front of `input`; returns the frame when it is complete.
    fn take(&mut self, input: &mut &[u8]) -> Result<Option<Frame>, Malformed> {
        if !self.fill(input, mpa::FRAME_LEN) {
            return Ok(None);
        }
        let start = self.0.first_chunk().ok_or(Malformed::Truncated)?;
        let len = Frame::len_of(start)?;
        if !self.fill(input, len) {
            return Ok(None);
        }
        Frame::parse(&self.0).map(Some)
    }

    /// How many bytes the frame lacks for the next step: reading no more leaves the FPDUs that follow in the socket.
    fn wanted(&self) -> usize {
        let len = match self.0.first_chunk() {
            None => mpa::FRAME_LEN,
            Some(start) => Frame::len_of(start).unwrap_or(mpa::FRAME_LEN),
        };
        len.saturating_sub(self.0.len())
    }

    fn fill(&mut self, input: &mut &[u8], len: usize) -> bool {
        let wanted = len.saturating_sub(self.0.len()).min(input.len());
        let (now, rest) = input.split_at(wanted);
        self.0.extend_from_slice(now);
        *input = rest;
        self.0.len() >= len
    }
}

/// The active side; waits for the reply.
#[derive(Debug)]
pub(super) struct Initiator {
    offer: Offer,
    inbox: Inbox,
    deadline: Time,
}

impl Initiator {
    /// Starts set-up; the bytes are the request.
    pub(super) fn new(offer: Offer, deadline: Time) -> (Initiator, Vec<u8>) {
        let frame = Frame {
            kind: Kind::Request,
            markers: offer.markers,
            crc: offer.crc,
            rejected: false,
            revision: if offer.enhanced { 2 } else { 1 },
            enhanced: offer.enhanced.then(|| Enhanced {
                ird: offer.ird,
                ord: offer.ord,
                peer_to_peer: offer.peer_to_peer.then_some(Rtr {
                    send: true,
                    write: true,
                    read: offer.ord > 0,
                }),
            }),
            private_data: offer.private_data.clone(),
        };
        let mut request = Vec::with_capacity(mpa::FRAME_LEN + mpa::MAX_PRIVATE_DATA);
        frame.emit(&mut request);
        (Initiator { offer, inbox: Inbox::default(), deadline }, request)
    }

    pub(super) fn handle(&mut self, input: &mut &[u8]) -> Result<Option<Agreed>, Failure> {
        match self.inbox.take(input)? {
            Some(reply) => self.agree(reply).map(Some),
            None => Ok(None),
        }
    }

    pub(super) fn wanted(&self) -> usize {
        self.inbox.wanted()
    }

    /// Whether a peer that hangs up now may do so because it knows only RFC 5044, for which the request is malformed:
    /// it can then be asked again in the older form (RFC 6581 10). False if that form cannot express the request.
    pub(super) fn may_ask_again(&self) -> bool {
        self.inbox.0.is_empty() && self.offer.enhanced && !self.offer.peer_to_peer
    }

    pub(super) fn deadline(&self) -> Time {
        self.deadline
    }

    pub(super) fn handle_timeout(&self, now: Time) -> Result<(), Failure> {
        in_time(now, self.deadline, "the wait for the MPA reply")
    }

    fn agree(&self, reply: Frame) -> Result<Agreed, Failure> {
        if reply.kind != Kind::Reply {
            return Err(ConnectError::Violation("the peer is an initiator too").into());
        }
        if reply.rejected {
            return Err(ConnectError::Rejected(reply.private_data).into());
        }
        let crc = self.offer.crc || reply.crc;
        // A peer that answers without the enhanced word knows only RFC 5044: both sides then use their configured
        // values (RFC 6581 10).
        let (mut ird, mut ord, mut open_with) = (self.offer.ird, self.offer.ord, None);
        if let Some(theirs) = reply.enhanced {
            if theirs.ird != NOT_NEGOTIATED {
                ord = ord.min(theirs.ird);
            }
            if theirs.ord != NOT_NEGOTIATED {
                if theirs.ord > ird {
                    return Err(farewell(
                        Fault::InsufficientIrd,
                        crc,
                        "the peer's ORD exceeds the IRD offered",
                    ));
                }
                ird = theirs.ord.max(1).min(ird);
            }
            if self.offer.peer_to_peer {
                open_with = match theirs.peer_to_peer {
                    Some(Rtr { write: true, .. }) => Some(Opening::Write),
                    Some(Rtr { send: true, .. }) => Some(Opening::Send),
                    Some(Rtr { read: true, .. }) if ord > 0 => Some(Opening::Read),
                    _ => return Err(farewell(Fault::NoRtr, crc, "no common ready-to-receive indication")),
                };
            }
        }
        Ok(Agreed {
            role: Role::Initiator { open_with },
            crc,
            markers: reply.markers,
            marked: self.offer.markers,
            ird,
            ord,
            private_data: reply.private_data,
        })
    }
}

fn farewell(fault: Fault, crc: bool, what: &'static str) -> Failure {
    Failure {
        error: ConnectError::Violation(what),
        farewell: frame::lone_terminate(&fault.terminate(None), crc),
    }
}

fn in_time(now: Time, deadline: Time, what: &'static str) -> Result<(), Failure> {
    if now < deadline { Ok(()) } else { Err(ConnectError::TimedOut(what).into()) }
}

/// The passive side; waits for the request.
#[derive(Debug)]
pub(super) struct Responder {
    inbox: Inbox,
    deadline: Time,
}

impl Responder {
    pub(super) fn new(deadline: Time) -> Responder {
        Responder { inbox: Inbox::default(), deadline }
    }

    pub(super) fn handle(&mut self, input: &mut &[u8]) -> Result<Option<Asked>, Failure> {
        match self.inbox.take(input)? {
            Some(Frame { kind: Kind::Reply, .. }) => {
                Err(ConnectError::Violation("the peer is a responder too").into())
            }
            other => Ok(other.map(Asked)),
        }
    }

    pub(super) fn wanted(&self) -> usize {
        self.inbox.wanted()
    }

    pub(super) fn deadline(&self) -> Time {
        self.deadline
    }

    pub(super) fn handle_timeout(&self, now: Time) -> Result<(), Failure> {
        in_time(now, self.deadline, "the wait for the MPA request")
    }
}

/// A request that waits for its answer.
#[derive(Debug)]
pub(super) struct Asked(Frame);

impl Asked {
    pub(super) fn private_data(&self) -> &Bytes {
        &self.0.private_data
    }

    /// Accepts; the bytes are the reply.
    pub(super) fn accept(self, offer: &Offer) -> (Vec<u8>, Agreed) {
        let request = self.0;
        let (mut ird, mut ord, mut enhanced, mut empty_send_opens) = (offer.ird, offer.ord, None, false);
        if let Some(theirs) = request.enhanced {
            // RFC 6581 9.1: our ORD is at most their IRD; our IRD is what we support, even if that is less than they
            // want. All ones means that the users negotiate it themselves: we answer all ones, and keep our own value.
            let answer_ord = if theirs.ird == NOT_NEGOTIATED {
                NOT_NEGOTIATED
            } else {
                ord = ord.min(theirs.ird);
                ord
            };
            let answer_ird = if theirs.ord == NOT_NEGOTIATED { NOT_NEGOTIATED } else { ird };
            let peer_to_peer = theirs.peer_to_peer.map(|asked| {
                let ours = Rtr { send: true, write: true, read: ird > 0 };
                let both = Rtr {
                    send: asked.send && ours.send,
                    write: asked.write && ours.write,
                    read: asked.read && ours.read,
                };
                if both == Rtr::default() { ours } else { both }
            });
            empty_send_opens = peer_to_peer.is_some_and(|rtr| rtr.send);
            enhanced = Some(Enhanced { ird: answer_ird, ord: answer_ord, peer_to_peer });
        }
        // Without the enhanced word the peer's limits are unknown.
        ird = ird.min(NOT_NEGOTIATED - 1);
        let crc = request.crc || offer.crc;
        let reply = Frame {
            kind: Kind::Reply,
            markers: offer.markers,
            crc,
            rejected: false,
            revision: request.revision,
            enhanced,
            private_data: offer.private_data.clone(),
        };
        let agreed = Agreed {
            role: Role::Responder { empty_send_opens },
            crc,
            markers: request.markers,
            marked: offer.markers,
            ird,
            ord,
            private_data: request.private_data,
        };
        (bytes_of(&reply), agreed)
    }

    /// Rejects; the bytes are the reply.
    pub(super) fn reject(self, offer: &Offer) -> Vec<u8> {
        let request = self.0;
        bytes_of(&Frame {
            kind: Kind::Reply,
            markers: false,
            crc: offer.crc,
            rejected: true,
            revision: request.revision,
            // An enhanced request gets an enhanced answer (RFC 6581 10), also when it is rejected.
            enhanced: request.enhanced.map(|theirs| Enhanced {
                ird: offer.ird,
                ord: offer.ord,
                peer_to_peer: theirs.peer_to_peer.map(|_| Rtr {
                    send: true,
                    write: true,
                    read: offer.ird > 0,
                }),
            }),
            private_data: offer.private_data.clone(),
        })
    }
}

fn bytes_of(frame: &Frame) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(mpa::FRAME_LEN + mpa::MAX_PRIVATE_DATA);
    frame.emit(&mut bytes);
    bytes
}

#[cfg(test)]
mod tests;
