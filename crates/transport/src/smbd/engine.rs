//! One SMB Direct connection as a state machine: negotiation, credits, fragments, keepalive.
//!
//! [`Engine`] takes events by `handle` and returns work by `poll_output`; `poll_timeout` says when to call it again. It
//! implements [MS-SMBD] 3.1; each rule is cited where it is enforced. It owns unsent messages and the message being
//! reassembled. It touches neither a queue pair nor a clock nor the pool; the driver posts receives and reports how
//! many, and supplies the buffer for a reassembly.
//!
//! `posted` receives can take the peer's messages, and the peer knows of `granted` of them (0 <= granted <= posted). A
//! message consumes one of each. New receives are announced with the next message, or with an empty message if the peer
//! runs low and nothing else is to be sent. A message in one fragment is delivered as a slice of its receive buffer;
//! several fragments are copied (counted) into one buffer, which grows as they arrive. Sent messages are sliced, never
//! copied. `handle` fails once, with the reason why the connection must end.

mod assembly;
mod negotiate;

use std::collections::VecDeque;
use std::time::Duration;

use bytes::{Buf as _, Bytes, BytesMut};
use weft_machine::meter::Events;
use weft_machine::{Buf, Time};
use weft_rdma::Stag;
use weft_wire::smbd::{DataTransfer, Malformed, NegotiateResponse, RESPONSE_REQUESTED};

use self::assembly::Assembly;
use super::config::Config;
use crate::channel::Ending;

/// [MS-SMBD] 3.1.4.1: how long the connecting side waits for the Negotiate Response.
pub const ACTIVE_NEGOTIATION: Duration = Duration::from_secs(120);
/// [MS-SMBD] 3.1.7.2: how long the accepting side waits for the Negotiate Request.
pub const PASSIVE_NEGOTIATION: Duration = Duration::from_secs(5);
/// [MS-SMBD] 3.1.5.1, note 4: how long a keepalive may stay unanswered.
pub const KEEPALIVE_ANSWER: Duration = Duration::from_secs(5);
/// The connecting side has receives to announce from the start; it waits this long for a message to carry them.
pub const FIRST_GRANT: Duration = Duration::from_millis(20);
/// Time limit for a client's first message after negotiation: a client connects because it has something to ask.
pub const FIRST_MESSAGE_LIMIT: Duration = Duration::from_secs(30);
/// Time limit for a message from its first fragment to its last, excluding the time that we need to find memory for it.
/// A mebibyte takes this long at 300 kbit/s.
pub const MESSAGE_LIMIT: Duration = Duration::from_secs(30);
/// Receives for a peer that has not used half of them yet: 80 KiB at the default size. A log-on takes six messages.
const FIRST_CREDITS: usize = 10;
/// Credits that any peer may hold. With one each, a sender has none left and is owed one at once: two idle peers would
/// pass that credit back and forth forever.
const MIN_CREDITS: usize = 2;
/// Above this many bytes of delivered messages that nobody has taken, no receive is posted: this, plus its remaining
/// credits, is what a peer costs whose messages nobody reads.
const MAX_HELD_BYTES: usize = 4 << 20;
/// Headers are cut from blocks of memory of this size.
const HEADERS_BYTES: usize = 4096;
/// [MS-ERREF] 2.3: STATUS_NOT_SUPPORTED.
const STATUS_NOT_SUPPORTED: u32 = 0xc000_00bb;

/// How often a message had to wait for a send credit, over all connections of the process.
pub static CREDIT_STALLS: Events = Events::new();

/// The results of negotiation ([MS-SMBD] 3.1.1.1); sizes in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Agreed {
    /// Longest message sent, with its header.
    pub max_send: usize,
    /// Longest message received, with its header.
    pub max_receive: usize,
    /// Longest upper-layer message that the peer reassembles.
    pub max_fragmented_send: usize,
    /// Most bytes by RDMA for one read or write.
    pub max_read_write: usize,
    /// Messages that may be sent now.
    pub send_credits: u32,
}

/// Which side this is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Role {
    /// The connecting side: it sends the Negotiate Request.
    Active,
    /// The accepting side.
    Passive,
}

/// A message of the upper layer.
#[derive(Debug)]
pub struct Submission {
    /// Returned in [`Output::Send`] with the last fragment.
    pub number: u64,
    /// The message after an empty first element, which is reserved for the header.
    pub body: Vec<Bytes>,
    /// Bytes of the message: not zero, at most [`Engine::max_message_out`].
    pub len: usize,
    /// A region of the peer to revoke with the last fragment.
    pub invalidate: Option<Stag>,
}

/// An input to the engine.
#[derive(Debug)]
pub enum Event {
    /// This many receives of [`Engine::receive_size`] were posted, as [`Engine::receives_wanted`] requested.
    Posted(usize),
    /// A message arrived in a posted receive. Not allowed while [`Engine::buffer_wanted`] requests a buffer.
    Received(Buf),
    /// The buffer that [`Engine::buffer_wanted`] requested.
    Buffer(Buf),
    /// A message to send from the upper layer. Only once established.
    Submit(Submission),
    /// The upper layer took a delivered message of this many bytes.
    Taken(usize),
    /// The time of [`Engine::poll_timeout`] has come.
    Timeout,
}

/// An action for the driver.
#[derive(Debug)]
pub enum Output {
    /// Send this, in order.
    Send {
        /// The message, in parts.
        data: Vec<Bytes>,
        /// A region of the peer to revoke with it.
        invalidate: Option<Stag>,
        /// The submission that it completes.
        finishes: Option<u64>,
    },
    /// A message for the upper layer.
    Deliver(Bytes),
    /// A receive buffer that can be posted again.
    Spare(Buf),
    /// Close the connection: everything has been sent. The peer was refused.
    Close(Ending),
}

/// The state of a connection.
#[derive(Debug)]
enum Phase {
    /// Active: the request must be sent.
    Requesting,
    /// Active: waiting for the response.
    AwaitingResponse,
    /// Passive: waiting for the request.
    AwaitingRequest,
    /// Passive: the response is sent as soon as receives are posted.
    Answering,
    /// Passive: a refusal must be sent.
    Refusing,
    /// Messages flow.
    Established,
    /// The connection has ended.
    Closed,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Keepalive {
    None,
    /// To be requested with the next message.
    Pending,
    /// Requested.
    Sent,
}

/// A fragment that waits for a buffer.
#[derive(Debug)]
struct Parked {
    message: Buf,
    transfer: DataTransfer,
}

/// The sending state of the submission at the front of the queue.
#[derive(Debug, Default)]
struct Cursor {
    /// Index into the body.
    at: usize,
    /// Bytes sent so far; 0 <= sent < len.
    sent: usize,
}

/// One side of a connection.
#[derive(Debug)]
pub struct Engine {
    config: Config,
    phase: Phase,
    /// [MS-SMBD] 3.1.1.1 MaxSendSize.
    max_send: usize,
    /// MaxReceiveSize.
    max_receive: usize,
    /// MaxFragmentedSendSize.
    max_fragmented_send: usize,
    /// MaxReadWriteSize.
    max_read_write: usize,
    /// SendCredits: messages that may be sent now.
    send_credits: u32,
    /// A message waits for a credit.
    is_stalled: bool,
    /// ReceiveCreditTarget: credits that the peer requests.
    target: usize,
    /// Credits that the peer may have now: doubled whenever it has used half of them.
    reach: usize,
    /// Receives posted and not consumed.
    posted: usize,
    /// ReceiveCredits: credits that the peer holds. 0 <= granted <= posted.
    granted: usize,
    /// Messages delivered and not taken, and their bytes: their receives are not posted again.
    held: usize,
    held_bytes: usize,
    queue: VecDeque<Submission>,
    cursor: Cursor,
    assembly: Option<Assembly>,
    /// The deadline for the message being reassembled.
    message_due: Option<Time>,
    /// The peer is not identified yet.
    stranger: bool,
    /// The deadline for the client's first message; `None` once it has arrived.
    first_due: Option<Time>,
    parked: Option<Parked>,
    outputs: VecDeque<Output>,
    headers: BytesMut,
    /// The peer requested a message (SMB_DIRECT_RESPONSE_REQUESTED).
    answer_due: bool,
    keepalive: Keepalive,
    /// The negotiation timer, then the idle timer.
    deadline: Time,
    /// When to grant credits even if there is nothing else to send.
    first_grant: Option<Time>,
}

impl Engine {
    /// A connection that the provider has just established.
    pub fn new(role: Role, config: Config, now: Time) -> Engine {
        let config = config.clamped();
        let (phase, patience) = match role {
            Role::Active => (Phase::Requesting, ACTIVE_NEGOTIATION),
            Role::Passive => (Phase::AwaitingRequest, PASSIVE_NEGOTIATION),
        };
        Engine {
            config,
            phase,
            max_send: config.max_send_size as usize,
            max_receive: config.max_receive_size as usize,
            max_fragmented_send: 0,
            max_read_write: config.max_read_write_size as usize,
            send_credits: 0,
            is_stalled: false,
            target: 0,
            reach: FIRST_CREDITS,
            posted: 0,
            granted: 0,
            held: 0,
            held_bytes: 0,
            queue: VecDeque::new(),
            cursor: Cursor::default(),
            assembly: None,
            message_due: None,
            stranger: matches!(role, Role::Passive),
            first_due: None,
            parked: None,
            outputs: VecDeque::new(),
            headers: BytesMut::new(),
            answer_due: false,
            keepalive: Keepalive::None,
            deadline: now + patience,
            first_grant: None,
        }
    }

    /// Whether negotiation has succeeded and the connection has not ended.
    pub fn is_established(&self) -> bool {
        matches!(self.phase, Phase::Established)
    }

    /// The peer is identified from now on.
    pub fn authenticated(&mut self) {
        self.stranger = false;
    }

    /// Capacity that a posted receive needs, in bytes.
    pub fn receive_size(&self) -> usize {
        self.max_receive
    }

    /// Longest message that the peer reassembles, in bytes.
    pub fn max_message_out(&self) -> usize {
        self.max_fragmented_send
    }

    /// Longest message that this side reassembles, in bytes.
    pub fn max_message_in(&self) -> usize {
        self.config.max_fragmented_size as usize
    }

    /// The negotiated parameters.
    pub fn agreed(&self) -> Agreed {
        Agreed {
            max_send: self.max_send,
            max_receive: self.max_receive,
            max_fragmented_send: self.max_fragmented_send,
            max_read_write: self.max_read_write,
            send_credits: self.send_credits,
        }
    }

    /// Most bytes by RDMA for one read or write.
    pub fn max_read_write(&self) -> usize {
        self.max_read_write
    }

    /// Whether every submission has been returned by [`Engine::poll_output`].
    pub fn is_drained(&self) -> bool {
        self.queue.is_empty() && self.outputs.is_empty()
    }

    /// Whether the peer has begun a message and not finished it.
    pub fn is_mid_message(&self) -> bool {
        self.assembly.is_some() || self.parked.is_some()
    }

    /// How many receives to post now. If memory is short, the driver may post fewer and ask again later.
    pub fn receives_wanted(&self) -> usize {
        let goal = match self.phase {
            Phase::Requesting | Phase::AwaitingResponse | Phase::AwaitingRequest => 1,
            Phase::Answering | Phase::Established => self.receive_goal(),
            Phase::Refusing | Phase::Closed => 0,
        };
        goal.saturating_sub(self.posted)
    }

    /// Whether posting them must not wait for an idle moment: the peer could run out of credits, or we need one to
    /// grant.
    pub fn receives_urgent(&self) -> bool {
        let wanted = self.receives_wanted();
        wanted > 0 && (wanted.saturating_mul(4) > self.credit_ceiling() || self.send_credits <= 1)
    }

    /// [`Engine::receives_wanted`] without the receives that only add speed.
    pub fn receives_needed(&self) -> usize {
        match self.phase {
            Phase::Answering | Phase::Established => {
                self.goal(self.credit_ceiling().min(FIRST_CREDITS)).saturating_sub(self.posted)
            }
            _ => self.receives_wanted(),
        }
    }

    /// Receives that should be posted at present.
    fn receive_goal(&self) -> usize {
        self.goal(self.credit_ceiling())
    }

    fn goal(&self, ceiling: usize) -> usize {
        let goal = match self.held_bytes {
            0..=MAX_HELD_BYTES => ceiling.saturating_sub(self.held),
            _ => 0,
        };
        // 3.1.5.9: the last send credit is spent only on a message that grants one, so there must be one to grant, even
        // beyond the peer's request. The peer can spend its credits only by sending, which returns them: granted never
        // exceeds the ceiling by more than one.
        if self.send_credits == 1 && self.has_something_to_send() {
            goal.max(self.granted.saturating_add(1))
        } else {
            goal
        }
    }

    /// Credits that the peer requests and may have.
    fn credit_ceiling(&self) -> usize {
        self.target.min(self.config.receive_credits as usize).min(self.reach).max(MIN_CREDITS)
    }

    /// The size of the buffer needed to take in the last received fragment.
    pub fn buffer_wanted(&self) -> Option<usize> {
        let (parked, assembly) = (self.parked.as_ref()?, self.assembly.as_ref()?);
        assembly.wanted(parked.transfer.data.len())
    }

    /// Whether the peer cannot send, because no receive is posted.
    pub fn is_without_receives(&self) -> bool {
        self.posted == 0
    }

    /// When to handle [`Event::Timeout`].
    pub fn poll_timeout(&self) -> Option<Time> {
        match self.phase {
            Phase::Closed => None,
            _ => {
                let others = self.first_grant.into_iter().chain(self.message_due).chain(self.first_due);
                others.chain([self.deadline]).min()
            }
        }
    }

    /// Processes an event. After an error the connection has ended.
    pub fn handle(&mut self, event: Event, now: Time) -> Result<(), Ending> {
        let result = match event {
            Event::Posted(n) => {
                self.posted = self.posted.saturating_add(n);
                Ok(())
            }
            Event::Received(message) => self.received(message, now),
            Event::Buffer(buf) => {
                if let (Some(Parked { message, transfer }), Some(assembly)) =
                    (self.parked.take(), &mut self.assembly)
                {
                    assembly.move_to(buf);
                    // The peer may have had no credits while we waited for memory.
                    self.message_due = Some(now + MESSAGE_LIMIT);
                    self.append(message, &transfer);
                }
                Ok(())
            }
            Event::Submit(submission) => {
                self.queue.push_back(submission);
                Ok(())
            }
            Event::Taken(len) => {
                self.held = self.held.saturating_sub(1);
                self.held_bytes = self.held_bytes.saturating_sub(len);
                Ok(())
            }
            Event::Timeout => self.timed_out(now),
        };
        if result.is_err() {
            self.phase = Phase::Closed;
            self.queue.clear();
        }
        result
    }

    /// The next action.
    pub fn poll_output(&mut self) -> Option<Output> {
        if let Some(output) = self.outputs.pop_front() {
            return Some(output);
        }
        match self.phase {
            Phase::Requesting => {
                self.phase = Phase::AwaitingResponse;
                Some(self.negotiate_request())
            }
            // 3.1.5.6: the response grants the posted receives, so there must be some.
            Phase::Answering if self.posted > 0 => {
                self.phase = Phase::Established;
                Some(self.negotiate_response())
            }
            Phase::Refusing => {
                self.phase = Phase::Closed;
                self.outputs.push_back(Output::Close(Ending::Violation(
                    "[MS-SMBD] 3.1.5.6: the peer does not speak version 1.0",
                )));
                let mut bytes = Vec::with_capacity(NegotiateResponse::LEN);
                NegotiateResponse::refusal(STATUS_NOT_SUPPORTED).emit(&mut bytes);
                Some(control(bytes))
            }
            Phase::Established => self.data_transfer(),
            _ => None,
        }
    }

    fn timed_out(&mut self, now: Time) -> Result<(), Ending> {
        if self.first_grant.is_some_and(|at| at <= now) {
            self.first_grant = None;
        }
        if self.message_due.is_some_and(|at| at <= now) {
            return Err(Ending::TimedOut("the remainder of a fragmented message"));
        }
        if self.first_due.is_some_and(|at| at <= now) {
            return Err(Ending::TimedOut("the first message after negotiation"));
        }
        if now < self.deadline {
            return Ok(());
        }
        match self.phase {
            Phase::Closed => Ok(()),
            Phase::Established if self.keepalive == Keepalive::None => {
                // 3.1.6.2. Without a credit the keepalive cannot be sent; a peer that granted none in all this time and
                // still sends nothing is gone all the same.
                self.keepalive = Keepalive::Pending;
                self.deadline = now + KEEPALIVE_ANSWER;
                Ok(())
            }
            Phase::Established => Err(Ending::TimedOut("[MS-SMBD] 3.1.6.2: keepalive without an answer")),
            _ => Err(Ending::TimedOut("[MS-SMBD] 3.1.6.1: negotiation")),
        }
    }
}

/// Receiving.
impl Engine {
    fn received(&mut self, message: Buf, now: Time) -> Result<(), Ending> {
        debug_assert!(self.parked.is_none());
        self.posted = self.posted.saturating_sub(1);
        match self.phase {
            Phase::AwaitingRequest => {
                self.received_request(&message, now)?;
                self.outputs.push_back(Output::Spare(message));
                Ok(())
            }
            Phase::AwaitingResponse => {
                self.received_response(&message, now)?;
                self.outputs.push_back(Output::Spare(message));
                Ok(())
            }
            Phase::Established => self.received_data(message, now),
            // 3.1.5.7: a peer may not send before it knows its credits.
            Phase::Requesting | Phase::Answering => {
                Err(Ending::Violation("[MS-SMBD] 2.2: a message before negotiation"))
            }
            Phase::Refusing | Phase::Closed => Ok(()),
        }
    }

    /// 3.1.5.8.
    fn received_data(&mut self, message: Buf, now: Time) -> Result<(), Ending> {
        // There may be a posted receive that the peer was not told about yet; it has no right to use it.
        if self.granted == 0 {
            return Err(Ending::Violation("[MS-SMBD] 3.1.5.1: a message without a credit"));
        }
        self.granted = self.granted.saturating_sub(1);
        let transfer = DataTransfer::parse(&message).map_err(malformed)?;
        if self.granted.saturating_mul(2) <= self.reach && self.credit_ceiling() == self.reach {
            self.reach = self.reach.saturating_mul(2);
        }
        if transfer.credits_requested == 0 {
            return Err(Ending::Violation("[MS-SMBD] 3.1.5.8: CreditsRequested is zero"));
        }
        self.target = transfer.credits_requested.into();
        // A peer cannot owe more messages than the field that grants them can express.
        self.send_credits =
            self.send_credits.saturating_add(transfer.credits_granted.into()).min(u16::MAX.into());
        self.deadline = now + self.config.keepalive_interval;
        self.keepalive = Keepalive::None;
        self.answer_due |= transfer.flags & RESPONSE_REQUESTED != 0;
        if transfer.data.is_empty() {
            // Credits or a keepalive. They may arrive between the fragments of a message.
            if transfer.remaining_data_length != 0 {
                return Err(Ending::Violation("[MS-SMBD] 3.1.5.8: an empty fragment that announces more"));
            }
            self.outputs.push_back(Output::Spare(message));
            return Ok(());
        }
        let announced = (transfer.data.len() as u64).saturating_add(transfer.remaining_data_length.into());
        if announced > u64::from(self.config.max_fragmented_size) {
            return Err(Ending::Violation("[MS-SMBD] 3.1.5.8: message longer than MaxFragmentedSize"));
        }
        if self.stranger && announced > u64::from(self.config.max_stranger_size) {
            return Err(Ending::Violation("message longer than a log-on needs"));
        }
        self.first_due = None;
        if self.assembly.is_none() && transfer.remaining_data_length == 0 {
            let mut body = message.freeze();
            body.advance(transfer.data.start);
            body.truncate(transfer.data.len());
            self.deliver(body);
            return Ok(());
        }
        let assembly = self.assembly.get_or_insert_with(|| Assembly::new(announced as usize));
        assembly.check(transfer.data.len(), transfer.remaining())?;
        if assembly.wanted(transfer.data.len()).is_some() {
            // The peer is not responsible for how long that takes.
            self.message_due = None;
            self.parked = Some(Parked { message, transfer });
        } else {
            self.append(message, &transfer);
        }
        Ok(())
    }

    /// A fragment of the message being reassembled, which was checked and fits.
    fn append(&mut self, message: Buf, transfer: &DataTransfer) {
        let Some(mut assembly) = self.assembly.take() else { return };
        // The parsed range lies inside the message.
        let whole = assembly.append(message.get(transfer.data.clone()).unwrap_or_default());
        self.outputs.push_back(Output::Spare(message));
        if whole {
            self.message_due = None;
            self.deliver(assembly.into_buf().map(Buf::freeze).unwrap_or_default());
        } else {
            self.assembly = Some(assembly);
        }
    }

    fn deliver(&mut self, body: Bytes) {
        self.held = self.held.saturating_add(1);
        self.held_bytes = self.held_bytes.saturating_add(body.len());
        self.outputs.push_back(Output::Deliver(body));
    }
}

/// Sending.
impl Engine {
    /// Whether a Data Transfer is due, credits permitting.
    fn has_something_to_send(&self) -> bool {
        !self.queue.is_empty() || self.answer_due || self.keepalive == Keepalive::Pending
    }

    /// Receives that may be announced to the peer now.
    fn grantable(&self) -> usize {
        let wished = self.posted.min(self.credit_ceiling()).saturating_sub(self.granted);
        match wished {
            0 if self.send_credits == 1 => self.posted.saturating_sub(self.granted).min(1),
            n => n,
        }
    }

    /// Whether credits are worth a message of their own: the peer has none, or runs low and gets at least two (granting
    /// one for one would answer an empty message with an empty message forever).
    fn grant_due(&self) -> bool {
        if self.first_grant.is_some() {
            return false;
        }
        match self.grantable() {
            0 => false,
            1 => self.granted == 0,
            _ => self.granted.saturating_mul(2) <= self.credit_ceiling(),
        }
    }

    /// 3.1.5.1: the next Data Transfer, if one is due and credits allow it.
    fn data_transfer(&mut self) -> Option<Output> {
        let has_something = self.has_something_to_send();
        if self.send_credits == 0 || !(has_something || self.grant_due()) {
            if has_something && !std::mem::replace(&mut self.is_stalled, true) {
                CREDIT_STALLS.count();
            }
            return None;
        }
        let grant = self.grantable();
        if self.send_credits == 1 && grant == 0 {
            // The last credit is kept for a message that grants one; receive_goal requests the receive.
            return None;
        }
        self.is_stalled = false;
        self.send_credits = self.send_credits.saturating_sub(1);
        self.granted = self.granted.saturating_add(grant);
        self.first_grant = None;
        // An answer does not request another, or two idle peers would never be silent again.
        self.answer_due = false;
        let flags = match self.keepalive {
            Keepalive::Pending => {
                self.keepalive = Keepalive::Sent;
                RESPONSE_REQUESTED
            }
            _ => 0,
        };
        let header = |remaining: usize, len: usize| {
            DataTransfer::header(self.config.send_credits, grant as u16, flags, remaining as u32, len as u32)
        };
        let room = self.max_send.saturating_sub(DataTransfer::DATA_OFFSET);
        let Some(front) = self.queue.front_mut() else {
            let header = header(0, 0);
            let header = cut(&mut self.headers, &header[..DataTransfer::LEN]);
            return Some(Output::Send { data: vec![header], invalidate: None, finishes: None });
        };
        let left = front.len.saturating_sub(self.cursor.sent);
        if left > room {
            let header = cut(&mut self.headers, &header(left.saturating_sub(room), room));
            let data = fragment(front, &mut self.cursor, header, room);
            return Some(Output::Send { data, invalidate: None, finishes: None });
        }
        let header = cut(&mut self.headers, &header(0, left));
        let mut whole = self.queue.pop_front()?;
        let cursor = std::mem::take(&mut self.cursor);
        let data = if cursor.sent == 0 {
            if let Some(place) = whole.body.first_mut() {
                *place = header;
            }
            whole.body
        } else {
            std::iter::once(header).chain(whole.body.drain(cursor.at..)).collect()
        };
        // 3.1.5.4: exactly one segment carries the token. In the last segment, it takes effect when the message is
        // complete.
        Some(Output::Send { data, invalidate: whole.invalidate, finishes: Some(whole.number) })
    }
}

/// Takes the next `len` bytes of a submission, which has at least that many.
fn fragment(from: &mut Submission, cursor: &mut Cursor, header: Bytes, len: usize) -> Vec<Bytes> {
    let mut data = vec![header];
    let mut missing = len;
    cursor.at = cursor.at.max(1);
    while missing > 0 {
        let Some(piece) = from.body.get_mut(cursor.at) else { break };
        if piece.len() <= missing {
            missing = missing.saturating_sub(piece.len());
            data.push(std::mem::take(piece));
            cursor.at = cursor.at.saturating_add(1);
        } else {
            data.push(piece.split_to(missing));
            missing = 0;
        }
    }
    debug_assert_eq!(missing, 0, "a submission is as long as it says");
    cursor.sent = cursor.sent.saturating_add(len);
    data
}

/// A header in memory that is shared with its neighbours, so most need no allocation.
fn cut(headers: &mut BytesMut, header: &[u8]) -> Bytes {
    if headers.capacity() < header.len() {
        headers.reserve(HEADERS_BYTES);
    }
    headers.extend_from_slice(header);
    headers.split().freeze()
}

fn control(bytes: Vec<u8>) -> Output {
    Output::Send { data: vec![bytes.into()], invalidate: None, finishes: None }
}

fn malformed(e: Malformed) -> Ending {
    Ending::Malformed(match e {
        Malformed::Truncated => "[MS-SMBD] 3.1.5: message shorter than its fixed part",
        Malformed::Unaligned => "[MS-SMBD] 3.1.5.8: DataOffset is not 8-byte aligned",
        Malformed::OffsetInHeader => "[MS-SMBD] 3.1.5.8: DataOffset points into the header",
        Malformed::OutOfBounds => "[MS-SMBD] 3.1.5.8: data ends beyond the message",
        Malformed::NoDepth => "[MS-SMBD] 6.1: IRD/ORD header without a depth",
    })
}

/// The announced remainder as a length.
trait Remaining {
    fn remaining(&self) -> usize;
}

impl Remaining for DataTransfer {
    fn remaining(&self) -> usize {
        self.remaining_data_length as usize
    }
}

#[cfg(test)]
mod tests;
