//! The server's end of a pipe: packets in, packets out.
//!
//! Spec: C706 12.6.4, [MS-RPCE] 3.3.1.5 (connection-oriented server). Owns: what was bound, the fragments of a call
//! that is not whole yet, the handles that calls were given.
//! Does not: authenticate by itself (whoever has the pipe has logged on), keep calls apart in time (one is answered
//! before the next is read), or speak anything but NDR.

use std::sync::atomic::{AtomicU32, Ordering};

use bytes::{Bytes, BytesMut};
use weft_wire::dcerpc::ndr::Handle;
use weft_wire::dcerpc::pdu::{
    self, Bind, BindAck, Flags, HEADER_LEN, Header, MUST_RECEIVE_LEN, NakReason, PacketType, Request, Verdict,
};
use weft_wire::dcerpc::{FaultStatus, Syntax};
use weft_wire::smb2::fscc::security::Sid;

use super::{lsarpc, samr, srvsvc};
use crate::server::Server;
use crate::server::session::Session;

/// The largest fragment that is taken or sent, as Windows has it.
const MAX_FRAGMENT: u16 = 4280;
/// The stub of a whole call: the longest that is of use, a thousand names, is well below.
const MAX_CALL_BYTES: usize = 512 << 10;
/// Presentation contexts of one association.
const MAX_CONTEXTS: usize = 64;
/// Handles of one association.
const MAX_HANDLES: usize = 256;
/// Answers to what one WRITE brings. Clients wait for an answer before they call again; each call takes a while, and everybody
/// whose requests run on this core waits for it.
const MAX_ANSWERS_AT_ONCE: usize = 64;

/// On whose behalf a call runs.
pub(super) struct Caller<'a> {
    pub(super) server: &'a Server,
    pub(super) session: &'a Session,
    pub(super) peer: &'a str,
}

/// An interface, by the pipe that it is found at.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Service {
    Srvsvc,
    Wkssvc,
    Lsarpc,
    Samr,
}

impl Service {
    const ALL: [Service; 4] = [Service::Srvsvc, Service::Wkssvc, Service::Lsarpc, Service::Samr];

    fn name(self) -> &'static str {
        match self {
            Service::Srvsvc => "srvsvc",
            Service::Wkssvc => "wkssvc",
            Service::Lsarpc => "lsarpc",
            Service::Samr => "samr",
        }
    }

    /// The service at a pipe, with or without the name space that some clients put before it.
    pub(super) fn of_pipe(path: &str) -> Option<Service> {
        let path = path.trim_start_matches('\\').to_ascii_lowercase();
        let name = path.strip_prefix("pipe\\").unwrap_or(&path);
        Service::ALL.into_iter().find(|service| service.name() == name)
    }

    /// Which of the services at this pipe has this interface: a host's services share a process by twos.
    fn of_interface(self, interface: &Syntax) -> Option<Service> {
        let here = match self {
            Service::Srvsvc | Service::Wkssvc => [Service::Srvsvc, Service::Wkssvc],
            Service::Lsarpc | Service::Samr => [Service::Lsarpc, Service::Samr],
        };
        // Minor versions are in the high half; those asked for must not be newer than ours, which are all 0.
        here.into_iter().find(|service| service.interface() == *interface)
    }

    fn interface(self) -> Syntax {
        use weft_wire::dcerpc;
        match self {
            Service::Srvsvc => dcerpc::srvsvc::INTERFACE,
            Service::Wkssvc => dcerpc::wkssvc::INTERFACE,
            Service::Lsarpc => dcerpc::lsarpc::INTERFACE,
            Service::Samr => dcerpc::samr::INTERFACE,
        }
    }
}

/// What a handle stands for.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Object {
    /// A policy of the local security authority.
    Policy,
    /// The account manager.
    SamServer,
    /// One of its domains.
    Domain(Sid),
    /// A user of the host's domain, by relative id.
    User(u32),
    /// The group that they are all in.
    Everybody,
}

/// The handles that were given out.
#[derive(Default)]
pub(super) struct Handles {
    serial: u32,
    open: Vec<(u32, Object)>,
}

impl Handles {
    /// A new handle.
    pub(super) fn open(&mut self, object: Object) -> Result<Handle, FaultStatus> {
        if self.open.len() >= MAX_HANDLES {
            return Err(FaultStatus::NO_MEMORY);
        }
        // All zeros mean "closed".
        self.serial = self.serial.wrapping_add(1).max(1);
        self.open.push((self.serial, object));
        let mut handle = Handle::default();
        handle.0[4..8].copy_from_slice(&self.serial.to_le_bytes());
        // The rest of the UUID is the same for all: a handle is good on its own pipe only.
        handle.0[12..20].copy_from_slice(b"weft rpc");
        Ok(handle)
    }

    /// What a handle stands for.
    pub(super) fn find(&self, handle: Handle) -> Result<&Object, FaultStatus> {
        let object = self.open.iter().find(|(serial, _)| is(handle, *serial)).map(|(_, object)| object);
        object.ok_or(FaultStatus::CONTEXT_MISMATCH)
    }

    /// Gives a handle back.
    pub(super) fn close(&mut self, handle: Handle) -> Result<(), FaultStatus> {
        let at = self.open.iter().position(|(serial, _)| is(handle, *serial));
        self.open.swap_remove(at.ok_or(FaultStatus::CONTEXT_MISMATCH)?);
        Ok(())
    }
}

fn is(handle: Handle, serial: u32) -> bool {
    handle.0[..4] == [0; 4] && handle.0[4..8] == serial.to_le_bytes() && handle.0[12..20] == *b"weft rpc"
}

/// A call whose last fragment has not come yet.
struct Call {
    id: u32,
    context: u16,
    opnum: u16,
    stub: Vec<u8>,
}

/// The state of one pipe's conversation.
#[derive(Default)]
pub(super) struct Association {
    /// Bytes that are not a whole packet yet.
    partial: BytesMut,
    /// What was bound: context ids and what they mean. Empty before BIND.
    contexts: Vec<(u16, Service)>,
    bound: bool,
    /// The largest fragment that the client takes.
    max_xmit: u16,
    call: Option<Call>,
    handles: Handles,
    broken: bool,
}

impl Association {
    /// Whether the client broke a rule after which nothing more is answered.
    pub(super) fn is_broken(&self) -> bool {
        self.broken
    }

    /// Takes bytes in; gives the packets that answer them.
    pub(super) fn receive(&mut self, caller: &Caller<'_>, pipe: Service, bytes: &[u8]) -> Vec<Bytes> {
        let mut answers = Vec::new();
        let (mut answered, mut before) = (0_usize, 0);
        self.partial.extend_from_slice(bytes);
        while !self.broken && self.partial.len() >= HEADER_LEN {
            let len = match Header::parse(&self.partial) {
                // Nobody may send more than BIND_ACK offered; before that, more than it will offer.
                Ok(header) if header.frag_len <= MAX_FRAGMENT => usize::from(header.frag_len),
                Ok(header) => {
                    self.refuse(&header, &mut answers);
                    break;
                }
                Err(e) => {
                    tracing::debug!("{e}");
                    self.broken = true;
                    break;
                }
            };
            if self.partial.len() < len {
                break;
            }
            let packet = self.partial.split_to(len).freeze();
            self.packet(caller, pipe, &packet, &mut answers);
            answered = answered.saturating_add(usize::from(answers.len() > before));
            before = answers.len();
            if answered > MAX_ANSWERS_AT_ONCE && !self.broken {
                tracing::debug!("limit reached: calls in one WRITE to a pipe");
                self.give_up();
            }
        }
        // A copy: what is left over would keep all that has come with it.
        self.partial = if self.broken { BytesMut::new() } else { BytesMut::from(&self.partial[..]) };
        answers
    }

    /// Bytes that are kept of what has come and is not answered yet.
    pub(super) fn held_bytes(&self) -> usize {
        let call = self.call.as_ref().map_or(0, |call| call.stub.capacity());
        self.partial.len().saturating_add(call)
    }

    /// Nothing more is answered, or kept.
    pub(super) fn give_up(&mut self) {
        self.broken = true;
        self.partial = BytesMut::new();
        self.call = None;
    }

    /// A packet against the rules: the last thing that is answered.
    fn refuse(&mut self, header: &Header, answers: &mut Vec<Bytes>) {
        let mut out = Vec::new();
        match header.kind {
            PacketType::BIND | PacketType::ALTER_CONTEXT => {
                pdu::emit_bind_nak(NakReason::NOT_SPECIFIED, header.call_id, &mut out);
            }
            _ => pdu::emit_fault(0, header.call_id, FaultStatus::PROTOCOL_ERROR, &mut out),
        }
        answers.push(out.into());
        self.broken = true;
        self.call = None;
    }

    fn packet(&mut self, caller: &Caller<'_>, pipe: Service, packet: &Bytes, answers: &mut Vec<Bytes>) {
        let Ok(header) = Header::parse(packet) else {
            self.broken = true;
            return;
        };
        match header.kind {
            PacketType::BIND if self.bound => self.refuse(&header, answers),
            PacketType::ALTER_CONTEXT if !self.bound => self.refuse(&header, answers),
            PacketType::BIND | PacketType::ALTER_CONTEXT => self.bind(pipe, &header, packet, answers),
            PacketType::REQUEST if self.bound => self.fragment(caller, &header, packet, answers),
            // There is nothing to cancel: calls are answered before the next packet is looked at. A call that is given
            // up halfway is forgotten.
            PacketType::CANCEL => {}
            PacketType::ORPHANED => self.call = None,
            _ => self.refuse(&header, answers),
        }
    }

    /// C706 12.6.4.4, [MS-RPCE] 3.3.1.5.3, 3.3.1.5.6.
    fn bind(&mut self, pipe: Service, header: &Header, packet: &[u8], answers: &mut Vec<Bytes>) {
        let mut out = Vec::new();
        if header.auth_len != 0 {
            // The pipe's session has authenticated its user; nothing else is asked for or understood.
            pdu::emit_bind_nak(NakReason::AUTHENTICATION_TYPE, header.call_id, &mut out);
            answers.push(out.into());
            return;
        }
        let bind = match Bind::parse(packet) {
            Ok(bind) if bind.max_recv >= MUST_RECEIVE_LEN && bind.max_xmit >= MUST_RECEIVE_LEN => bind,
            _ => return self.refuse(header, answers),
        };
        let verdicts: Vec<_> = bind.contexts.iter().map(|context| self.judge(pipe, context)).collect();
        if !self.bound {
            self.bound = true;
            self.max_xmit = bind.max_recv.min(MAX_FRAGMENT);
        }
        let kind = match header.kind {
            PacketType::BIND => PacketType::BIND_ACK,
            _ => PacketType::ALTER_CONTEXT_RESPONSE,
        };
        BindAck {
            max_xmit: self.max_xmit,
            max_recv: bind.max_xmit.min(MAX_FRAGMENT),
            group: group(bind.group),
            address: if kind == PacketType::BIND_ACK {
                format!("\\PIPE\\{}", pipe.name())
            } else {
                String::new()
            },
            verdicts,
        }
        .emit(kind, header.call_id, &mut out);
        answers.push(out.into());
    }

    fn judge(&mut self, pipe: Service, context: &pdu::Context) -> Verdict {
        // [MS-RPCE] 3.3.1.5.3: an offer of features is acknowledged with those that are supported: none.
        if context.transfers.first().is_some_and(Syntax::is_feature_negotiation) {
            return Verdict::Features(0);
        }
        let Some(service) = pipe.of_interface(&context.interface) else { return Verdict::NoInterface };
        if !context.transfers.contains(&Syntax::NDR) {
            return Verdict::NoTransfer;
        }
        self.contexts.retain(|(id, _)| *id != context.id);
        if self.contexts.len() >= MAX_CONTEXTS {
            return Verdict::Limit;
        }
        self.contexts.push((context.id, service));
        Verdict::Accepted(Syntax::NDR)
    }

    /// C706 12.6.4.9: fragments of one call come in order, and no other call's between them.
    fn fragment(&mut self, caller: &Caller<'_>, header: &Header, packet: &Bytes, answers: &mut Vec<Bytes>) {
        let request = match Request::parse(packet) {
            Ok(request) if header.auth_len == 0 => request,
            _ => return self.refuse(header, answers),
        };
        let first = header.flags.contains(Flags::FIRST);
        let mut call = match self.call.take() {
            None if first => {
                Call { id: header.call_id, context: request.context, opnum: request.opnum, stub: Vec::new() }
            }
            Some(call) if !first && call.id == header.call_id => call,
            _ => return self.refuse(header, answers),
        };
        if call.stub.len().saturating_add(request.stub.len()) > MAX_CALL_BYTES {
            return self.refuse(header, answers);
        }
        call.stub.extend_from_slice(&request.stub);
        if !header.flags.contains(Flags::LAST) {
            self.call = Some(call);
            return;
        }
        let service = self.contexts.iter().find(|(id, _)| *id == call.context).map(|(_, service)| *service);
        let answer = match service {
            Some(service) => self.call(caller, service, call.opnum, &call.stub),
            None => Err(FaultStatus::UNKNOWN_INTERFACE),
        };
        match answer {
            Ok(stub) => answers.extend(pdu::response(call.context, call.id, &stub, self.max_xmit)),
            Err(status) => {
                tracing::debug!(?service, opnum = call.opnum, "fault {:#x}", status.0);
                let mut out = Vec::new();
                pdu::emit_fault(call.context, call.id, status, &mut out);
                answers.push(out.into());
            }
        }
    }

    fn call(
        &mut self,
        caller: &Caller<'_>,
        service: Service,
        opnum: u16,
        stub: &[u8],
    ) -> Result<Vec<u8>, FaultStatus> {
        match service {
            Service::Srvsvc => srvsvc::call(caller, opnum, stub),
            Service::Wkssvc => srvsvc::workstation(caller, opnum, stub),
            Service::Lsarpc => lsarpc::call(caller, &mut self.handles, opnum, stub),
            Service::Samr => samr::call(caller, &mut self.handles, opnum, stub),
        }
    }
}

/// The association group: the client's, or a new one. Nothing is shared within a group here.
fn group(asked: u32) -> u32 {
    static NEXT: AtomicU32 = AtomicU32::new(0x5745);
    if asked != 0 { asked } else { NEXT.fetch_add(1, Ordering::Relaxed).max(1) }
}
