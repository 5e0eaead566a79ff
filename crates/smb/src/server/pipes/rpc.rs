//! The server end of a pipe: RPC packets in, RPC packets out.
//!
//! Spec: C706 12.6.4, [MS-RPCE] 3.3.1.5 (connection-oriented server). Owns the bound contexts and the fragments of an
//! incomplete call. There is no separate authentication (the pipe's client has logged on), no concurrency (a call is
//! answered before the next packet is read), and no transfer syntax but NDR.

use std::sync::atomic::{AtomicU32, Ordering};

use bytes::{Bytes, BytesMut};
use weft_machine::nss::Query;
use weft_wire::dcerpc::pdu::{
    self, Bind, BindAck, Flags, HEADER_LEN, Header, MUST_RECEIVE_LEN, NakReason, PacketType, Request, Verdict,
};
use weft_wire::dcerpc::{FaultStatus, Syntax};

use super::caller::Caller;
use super::handles::Handles;
use super::{lsarpc, samr, srvsvc};
use crate::server::accounts::Accounts;

/// The largest fragment received or sent, as in Windows.
const MAX_FRAGMENT: u16 = 4280;
/// Largest stub of a whole call: the longest useful one, with a thousand names, is well below.
const MAX_CALL_BYTES: usize = 512 << 10;
/// Presentation contexts of one association.
const MAX_CONTEXTS: usize = 64;
/// Answers per WRITE. Clients wait for an answer before the next call; each call takes a while, and all requests on
/// this core wait for it.
const MAX_ANSWERS_AT_ONCE: usize = 64;

/// An interface, named by its pipe.
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

    /// The service at a pipe, with or without the prefix that some clients add.
    pub(super) fn of_pipe(path: &str) -> Option<Service> {
        let path = path.trim_start_matches('\\').to_ascii_lowercase();
        let name = path.strip_prefix("pipe\\").unwrap_or(&path);
        Service::ALL.into_iter().find(|service| service.name() == name)
    }

    /// The service at this pipe with this interface: some pairs of services share one pipe.
    fn of_interface(self, interface: &Syntax) -> Option<Service> {
        let here = match self {
            Service::Srvsvc | Service::Wkssvc => [Service::Srvsvc, Service::Wkssvc],
            Service::Lsarpc | Service::Samr => [Service::Lsarpc, Service::Samr],
        };
        // The minor version is in the high half; ours are all 0, and a client must not ask for a newer one.
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

/// A call whose last fragment has not arrived.
struct Call {
    id: u32,
    context: u16,
    opnum: u16,
    stub: Vec<u8>,
}

/// The RPC state of one pipe.
#[derive(Default)]
pub(super) struct Association {
    /// Bytes of an incomplete packet.
    partial: BytesMut,
    /// The bound contexts: ids and their services. Empty before BIND.
    contexts: Vec<(u16, Service)>,
    bound: bool,
    /// The largest fragment that the client accepts.
    max_xmit: u16,
    call: Option<Call>,
    handles: Handles,
    broken: bool,
}

impl Association {
    /// Whether the client broke a rule after which nothing is answered any more.
    pub(super) fn is_broken(&self) -> bool {
        self.broken
    }

    /// Processes received bytes; returns the packets that answer them.
    pub(super) fn receive(&mut self, caller: &Caller<'_>, pipe: Service, bytes: &[u8]) -> Vec<Bytes> {
        let mut answers = Vec::new();
        let (mut answered, mut before) = (0_usize, 0);
        self.partial.extend_from_slice(bytes);
        while !self.broken && self.partial.len() >= HEADER_LEN {
            let len = match Header::parse(&self.partial) {
                // A fragment must not exceed what BIND_ACK offered, even before that is sent.
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
                tracing::debug!("limit reached: calls per WRITE to a pipe");
                self.give_up();
            }
        }
        // Copied, because a slice would keep the whole received buffer alive.
        self.partial = if self.broken { BytesMut::new() } else { BytesMut::from(&self.partial[..]) };
        answers
    }

    /// The names and ids of the system that the calls which these bytes complete need. A call is answered without
    /// waiting, so they are looked up before it is received.
    pub(super) fn queries(&self, accounts: &Accounts, bytes: &[u8]) -> Vec<Query> {
        let mut rest = Bytes::from([&self.partial[..], bytes].concat());
        let call = self.call.as_ref();
        let mut stub = call.map_or_else(Vec::new, |call| call.stub.clone());
        let mut queries = Vec::new();
        while let Ok(header) = Header::parse(&rest) {
            let len = usize::from(header.frag_len);
            if !(HEADER_LEN..=rest.len()).contains(&len) {
                break;
            }
            let packet = rest.split_to(len);
            let Some(request) =
                (header.kind == PacketType::REQUEST).then(|| Request::parse(&packet).ok()).flatten()
            else {
                continue;
            };
            if header.flags.contains(Flags::FIRST) {
                stub.clear();
            }
            stub.extend_from_slice(&request.stub);
            let mut services = self.contexts.iter().filter(|(id, _)| *id == request.context);
            match services.next().map(|(_, service)| service) {
                Some(Service::Lsarpc) if header.flags.contains(Flags::LAST) => {
                    queries.extend(lsarpc::queries(accounts, request.opnum, &stub));
                }
                Some(Service::Samr) if header.flags.contains(Flags::LAST) => {
                    queries.extend(samr::queries(request.opnum, &stub));
                }
                _ => {}
            }
        }
        queries
    }

    /// Bytes held of unanswered input.
    pub(super) fn held_bytes(&self) -> usize {
        let call = self.call.as_ref().map_or(0, |call| call.stub.capacity());
        self.partial.len().saturating_add(call)
    }

    /// Stops answering and frees everything.
    pub(super) fn give_up(&mut self) {
        self.broken = true;
        self.partial = BytesMut::new();
        self.call = None;
    }

    /// Answers an invalid packet; nothing is answered after it.
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
            // Nothing to cancel: calls are answered before the next packet is looked at. An incomplete call is dropped
            // when it is orphaned.
            PacketType::CANCEL => {}
            PacketType::ORPHANED => self.call = None,
            _ => self.refuse(&header, answers),
        }
    }

    /// C706 12.6.4.4, [MS-RPCE] 3.3.1.5.3, 3.3.1.5.6.
    fn bind(&mut self, pipe: Service, header: &Header, packet: &[u8], answers: &mut Vec<Bytes>) {
        let mut out = Vec::new();
        if header.auth_len != 0 {
            // The pipe's session has authenticated its user; no other authentication is supported.
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
        // [MS-RPCE] 3.3.1.5.3: a feature negotiation is acknowledged with the supported features, which are none.
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

    /// C706 12.6.4.9: the fragments of a call arrive in order, not interleaved with another call.
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

/// The association group: the client's, or a new one. Groups share nothing here.
fn group(asked: u32) -> u32 {
    static NEXT: AtomicU32 = AtomicU32::new(0x5745);
    if asked != 0 { asked } else { NEXT.fetch_add(1, Ordering::Relaxed).max(1) }
}
