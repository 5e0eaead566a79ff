//! RPCSEC_GSS: callers who prove a Kerberos principal, with integrity or privacy of what they send and get.
//!
//! See RFC 2203 (the protocol), RFC 2623 and RFC 7530 3.2 (NFS), RFC 4121 (Kerberos' tokens, by [`weft_kerberos`]) and RFC
//! 8166 8.2.2 (RPC-over-RDMA). This file establishes contexts, and wraps `dispatch`: it takes a call out of its
//! protection before the procedure sees it, and protects the reply. The procedures know of it only the
//! [`Credential::Ticket`] of their caller.
//! The forms of protected bodies are in `crate::gss`, for the client as well.
//!
//! Tickets are checked on worker threads: the library reads the keytab and writes its replay cache. MICs and encryption
//! only compute, and run on the core. What waits for memory are replies: each connection protects one at a time.

mod contexts;
mod mechanism;
#[cfg(test)]
pub(crate) mod tests;
mod users;
mod window;

use std::hash::Hasher;
use std::rc::Rc;
use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use futures_util::lock::Mutex as Queue;
use weft_kerberos::{Keytab, Principal, Principals, Step};
use weft_machine::nss::{Lookups, Unanswered};
use weft_machine::recorder::{self, Hop};
use weft_machine::{Buf, LogLimit, Pool, random, rt};
use weft_store::ShareList;
use weft_transport::{Kind, Outgoing, Part, Peer, RemotePayload, SHORT_ANSWER};
use weft_wire::nfs3::Xdr;
use weft_wire::rpc::gss::{GssCredential, InitResult, InitToken, Procedure, Service};
use weft_wire::rpc::{AuthStat, Reply};
use weft_wire::xdr::{Decoder, Encoder, fill};

use super::answers::bytes_in;
use super::context::Connection;
use super::credential::{Credential, Ticket};
use super::header::{Header, NotRpc, header_only};
use super::instead::{self, Answer, Cut, Instead};
use super::meter::CallMeter;
use super::shard;
use super::v4::state::numbers::random_hasher;
use crate::gss::{self as protection, PROTECTION_BYTES, SecurityContext};
use contexts::{Context, Generation, NotOfContext, Table};
use mechanism::{Contexts, Mechanism};
pub use users::Users;
use window::WINDOW;

/// GSS_S_FAILURE (RFC 2744 3.9.1).
const FAILURE: u32 = 13 << 16;

/// Tickets checked at once, so that a flood of them leaves the worker threads to others. A host occupies one place.
const CHECKED_AT_ONCE: usize = 4;

/// How callers prove who they are.
pub struct Kerberos {
    /// The keys of nfs/HOST.
    pub keytab: Arc<Keytab>,
    /// For which users principals stand.
    pub principals: Principals,
    /// Finds accounts of the system, if users have them.
    pub system: Option<Arc<Lookups>>,
    /// The users of this server.
    pub users: Users,
}

/// The state of all contexts.
pub(super) struct Gss {
    make: Contexts,
    principals: Principals,
    system: Option<Arc<Lookups>>,
    /// The users, and how often they were replaced.
    users: Mutex<(u64, Arc<Users>)>,
    table: Table,
    checking: [Queue<()>; CHECKED_AT_ONCE],
}

impl Gss {
    pub fn new(kerberos: Kerberos) -> Gss {
        let Kerberos { keytab, principals, system, users } = kerberos;
        Gss::by(mechanism::of(keytab), principals, system, users)
    }

    fn by(make: Contexts, principals: Principals, system: Option<Arc<Lookups>>, users: Users) -> Gss {
        let users = Mutex::new((0, Arc::new(users)));
        Gss { make, principals, system, users, table: Table::default(), checking: Default::default() }
    }

    /// These are the users from now on. What contexts know of their user is read again at their next call.
    pub fn replace_users(&self, users: Users) {
        let mut current = self.users.lock().unwrap_or_else(PoisonError::into_inner);
        *current = (current.0.wrapping_add(1), Arc::new(users));
    }

    /// Ends contexts that nobody uses.
    pub fn sweep(&self) {
        self.table.sweep(rt::now());
    }

    fn users(&self) -> (u64, Arc<Users>) {
        self.users.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// What a principal's ticket proves by the present configuration.
    async fn read(
        &self,
        [client, service]: [&Principal; 2],
        shares: &ShareList,
    ) -> Result<(Generation, Arc<Ticket>), Unanswered> {
        let (number, users) = self.users();
        let (principals, system) = (&self.principals, self.system.as_deref());
        let ticket = users::read(client, service, principals, &users, system, shares).await?;
        Ok(((shares.number(), number), Arc::new(ticket)))
    }

    /// The ticket of a context, read again if the configuration has changed.
    async fn ticket(&self, context: &Context, shares: &ShareList) -> Result<Arc<Ticket>, Unanswered> {
        if let Some(ticket) = context.ticket((shares.number(), self.users().0)) {
            return Ok(ticket);
        }
        let (of, ticket) = self.read([&context.client, &context.service], shares).await?;
        context.keep_ticket(of, ticket.clone());
        Ok(ticket)
    }
}

/// Answers a call with a credential of RPCSEC_GSS.
pub(super) async fn answer(
    connection: &Connection<'_>,
    call: Header,
    credential: GssCredential,
    d: Decoder,
    remote: Option<Rc<dyn RemotePayload>>,
    meter: &CallMeter,
) -> Result<Answer, NotRpc> {
    // A datagram may be duplicated by the network, which looks like a replay.
    let usable = connection.kind != Kind::Datagram;
    let Some(gss) = connection.server.gss.get().filter(|_| usable) else {
        return Ok(refused(&call, AuthStat::REJECTEDCRED).into());
    };
    match credential.procedure {
        Procedure::Data => data(connection, gss, call, credential, d, remote, meter).await,
        // RFC 2203 5.2.1, 5.4: control messages name the procedure NULL, which every program has.
        Procedure::Init | Procedure::Destroy if call.procedure != 0 => {
            Ok(refused(&call, AuthStat::BADCRED).into())
        }
        Procedure::Init => Ok(establish(connection, gss, &call, d).await.into()),
        // Kerberos' acceptor needs one token, so no context is ever half established.
        Procedure::ContinueInit => Ok(refused(&call, AuthStat::REJECTEDCRED).into()),
        Procedure::Destroy => destroy(gss, &call, &credential, &d).map(Answer::from),
    }
}

fn refused(call: &Header, stat: AuthStat) -> Outgoing {
    header_only(call.xid, Reply::AuthError(stat))
}

/// Establishes a context (RFC 2203 5.2).
async fn establish(connection: &Connection<'_>, gss: &Gss, call: &Header, mut d: Decoder) -> Outgoing {
    // RFC 8166 8.2.2: control messages are not reduced.
    let token = match InitToken::parse(&mut d) {
        Ok(InitToken(token)) if d.end().is_ok() && !d.is_reduced() => token,
        _ => return header_only(call.xid, Reply::GarbageArgs),
    };
    let established = {
        let mut host = random_hasher();
        host.write(&connection.origin.bytes());
        let _place = shard(&gss.checking, host.finish() as usize).lock().await;
        let mut mechanism = (gss.make)();
        rt::blocking(move || {
            let step = mechanism.step(&token);
            (mechanism, step)
        })
        .await
    };
    match enter(connection, gss, established).await {
        Ok((mic, result)) => {
            let mut e = Encoder::with_capacity(PROTECTION_BYTES);
            Reply::Success.emit_verified(call.xid, &mic, &mut e);
            result.emit(&mut e);
            Outgoing::bytes(e.into_bytes())
        }
        Err(Refusal { why, major, minor }) => {
            static REFUSED: LogLimit = LogLimit::new();
            if let Some(left_out) = REFUSED.pass(rt::now()) {
                let why = why.escape_debug();
                tracing::warn!(peer = %connection.peer, "refused a Kerberos ticket over NFS: {why}{left_out}");
            }
            let mut e = Encoder::with_capacity(PROTECTION_BYTES);
            Reply::Success.emit(call.xid, &mut e);
            let (handle, token) = (Bytes::new(), Bytes::new());
            InitResult { handle, major, minor, window: 0, token }.emit(&mut e);
            Outgoing::bytes(e.into_bytes())
        }
    }
}

/// Why no context is established.
struct Refusal {
    why: String,
    /// The status that the client is told, which says for example whose clock is wrong (RFC 2203 5.2.3.1).
    major: u32,
    minor: u32,
}

impl<E: ToString> From<E> for Refusal {
    fn from(why: E) -> Refusal {
        Refusal { why: why.to_string(), major: FAILURE, minor: 0 }
    }
}

/// Enters an established context; returns the reply's verifier, which proves the window to the client, and its results.
async fn enter(
    connection: &Connection<'_>,
    gss: &Gss,
    (mechanism, step): (Box<dyn Mechanism>, Result<Step, weft_kerberos::Error>),
) -> Result<(Vec<u8>, InitResult), Refusal> {
    let (token, client, service, lifetime) = match step {
        Ok(Step::Done { token, client, service, lifetime, .. }) => (token, client, service, lifetime),
        Ok(Step::Continue(_)) => return Err("the client wants more than one token (DCE style)".into()),
        Err(weft_kerberos::Error::Gss(failure)) => {
            return Err(Refusal { why: failure.to_string(), major: failure.major, minor: failure.minor });
        }
        Err(e) => return Err(e.into()),
    };
    // The keytab may have keys of other services, whose tickets mean those.
    if !service.name.starts_with("nfs/") {
        return Err(format!("the ticket is for {}, not for nfs/HOST", service.name).into());
    }
    let shares = connection.shares();
    let ticket = gss.read([&client, &service], &shares.list).await?;
    let handle: contexts::Handle = random::bytes()?;
    let now = rt::now();
    let who = format!("{}@{}", client.name, client.realm);
    let expires = lifetime.map(|lifetime| now + lifetime);
    let context = Context::new(mechanism, [client, service], expires, ticket, now);
    let mic = context.mic(&WINDOW.to_be_bytes())?;
    gss.table.insert(handle, context);
    tracing::debug!(peer = %connection.peer, principal = %who.escape_debug(), "NFS by ticket");
    let (handle, token) = (Bytes::copy_from_slice(&handle), Bytes::from(token));
    Ok((mic, InitResult { handle, major: 0, minor: 0, window: WINDOW, token }))
}

/// Why a call has no context.
enum NoContext {
    Refused(AuthStat),
    /// The number of the call has come before.
    Replayed,
}

impl NoContext {
    fn answer(self, call: &Header) -> Result<Outgoing, NotRpc> {
        match self {
            NoContext::Refused(stat) => Ok(refused(call, stat)),
            // RFC 2203 5.3.3.1 discards it silently; RFC 7530 3.1.1 then wants the connection to end.
            NoContext::Replayed => Err(NotRpc("RFC 2203 5.3.3.1: a replayed sequence number")),
        }
    }
}

/// The context of a call, if the call is its client's (RFC 2203 5.3.3).
fn find(gss: &Gss, credential: &GssCredential, d: &Decoder) -> Result<Arc<Context>, NoContext> {
    let now = rt::now();
    let Some(context) = gss.table.find(&credential.handle) else {
        return Err(NoContext::Refused(AuthStat::GSS_CREDPROBLEM));
    };
    let header = d.beginning(credential.covered_bytes);
    match context.check(&header, &credential.mic, credential.sequence, now) {
        Ok(()) => {}
        Err(NotOfContext::Checksum) => return Err(NoContext::Refused(AuthStat::GSS_CREDPROBLEM)),
        Err(NotOfContext::Exhausted) => return Err(NoContext::Refused(AuthStat::GSS_CTXPROBLEM)),
        Err(NotOfContext::Replayed) => return Err(NoContext::Replayed),
    }
    if context.has_expired(now) {
        gss.table.remove(&credential.handle);
        return Err(NoContext::Refused(AuthStat::GSS_CTXPROBLEM));
    }
    Ok(context)
}

/// Ends a context. Linux protects neither this call nor its reply beyond the header, and libtirpc protects the call.
fn destroy(gss: &Gss, call: &Header, credential: &GssCredential, d: &Decoder) -> Result<Outgoing, NotRpc> {
    let context = match find(gss, credential, d) {
        Ok(context) => context,
        Err(none) => return none.answer(call),
    };
    gss.table.remove(&credential.handle);
    Ok(verified(call, &context, credential.sequence, Reply::Success))
}

/// A reply without results.
fn verified(call: &Header, context: &Context, sequence: u32, reply: Reply) -> Outgoing {
    match context.mic(&sequence.to_be_bytes()) {
        Ok(mic) => {
            let mut e = Encoder::with_capacity(PROTECTION_BYTES);
            reply.emit_verified(call.xid, &mic, &mut e);
            Outgoing::bytes(e.into_bytes())
        }
        // RFC 2203 5.3.3.4.1.
        Err(_) => refused(call, AuthStat::GSS_CTXPROBLEM),
    }
}

/// Carries out a call of a context.
async fn data(
    connection: &Connection<'_>,
    gss: &Gss,
    call: Header,
    credential: GssCredential,
    d: Decoder,
    remote: Option<Rc<dyn RemotePayload>>,
    meter: &CallMeter,
) -> Result<Answer, NotRpc> {
    let context = match find(gss, &credential, &d) {
        Ok(context) => context,
        Err(none) => return none.answer(&call).map(Answer::from),
    };
    let GssCredential { sequence, service, .. } = credential;
    let shares = connection.shares();
    let ticket = match gss.ticket(&context, &shares.list).await {
        Ok(ticket) => ticket,
        Err(why) => {
            tracing::debug!(peer = %connection.peer, "a user's rights are unknown: {why}");
            return Ok(verified(&call, &context, sequence, Reply::SystemError).into());
        }
    };
    let Some(mut arguments) = protection::open(&*context, service, sequence, d) else {
        return Ok(verified(&call, &context, sequence, Reply::GarbageArgs).into());
    };
    recorder::spent(Hop::Decode);
    let caller = Credential::Ticket(service, ticket);
    if let Some(remote) = remote.as_ref().filter(|_| !call.takes_remote()) {
        let fetched = remote.fetch().await.map_err(|_| NotRpc("the payload did not arrive"))?;
        arguments.arrived(fetched);
    }
    let shares = connection.shares_of(&caller);
    let results = connection.results(&call, &caller, arguments, remote, &shares, meter);
    let results = match recorder::described(results, || connection.details(&caller)).await {
        Ok(results) => results,
        Err(reply @ (Reply::AuthError(_) | Reply::RpcMismatch { .. })) => {
            return Ok(header_only(call.xid, reply).into());
        }
        Err(reply) => return Ok(verified(&call, &context, sequence, reply).into()),
    };
    meter.answered(results.payload_bytes());
    recorder::answered(|| connection.details(&caller));
    let (parts, room, cut) = results.into_parts();
    let Ok(mic) = context.mic(&sequence.to_be_bytes()) else {
        return Ok(refused(&call, AuthStat::GSS_CTXPROBLEM).into());
    };
    let mut header = Encoder::with_capacity(PROTECTION_BYTES);
    Reply::Success.emit_verified(call.xid, &mic, &mut header);
    if service == Service::None {
        let parts = plain(connection, header, parts, room).await;
        let instead = Instead::of_verified(&parts, cut);
        return Ok(Answer { reply: Outgoing { parts, ..Outgoing::default() }, instead });
    }
    // What waits below holds no buffer of the pool.
    drop(room);
    let _one_at_a_time = connection.protecting.lock().await;
    let pool = &connection.server.pool;
    let Some(body) = body(pool, connection.peer, sequence, parts, cut).await else {
        return Ok(verified(&call, &context, sequence, Reply::SystemError).into());
    };
    // RFC 2203 5.3.3.4.2, 5.3.3.4.4: no reply is sent if this fails.
    protection::seal(&*context, service, body, &mut header).map_err(|e| {
        tracing::debug!(peer = %connection.peer, "cannot protect a reply: {e}");
        NotRpc("GSS-API cannot protect a reply")
    })?;
    recorder::spent(Hop::Decode);
    let mut parts = vec![Part::Bytes(header.into_bytes())];
    if bytes_in(&parts) > SHORT_ANSWER {
        connection.answers.settle_in(&mut parts, None).await;
    }
    Ok(Outgoing { parts, ..Outgoing::default() }.into())
}

/// A reply whose results are not protected: the transport may place their payload (RFC 8166 8.2.2.2).
async fn plain(
    connection: &Connection<'_>,
    header: Encoder,
    results: Vec<Part>,
    room: Option<Box<Buf>>,
) -> Vec<Part> {
    let mut parts = vec![Part::Bytes(header.into_bytes())];
    for (at, part) in results.into_iter().enumerate() {
        parts.push(match part {
            Part::Bytes(bytes) if at == 0 => Part::Bytes(behind_header(&bytes)),
            part => part,
        });
    }
    if bytes_in(&parts) > SHORT_ANSWER {
        connection.answers.settle_in(&mut parts, room).await;
    }
    parts
}

/// The results behind the header that `dispatch` has written, which has no verifier.
fn behind_header(bytes: &Bytes) -> Bytes {
    bytes.slice(Reply::SUCCESS_BYTES.min(bytes.len())..)
}

/// The results to protect. They are copied, because what the library protects is contiguous. `None`: payload cannot be
/// read, and no error of the procedure can say so.
async fn body(pool: &Pool, peer: Peer, sequence: u32, parts: Vec<Part>, cut: Cut) -> Option<Encoder> {
    let begin = |len| protection::body(sequence, len);
    let mut body = begin(bytes_in(&parts));
    let begins = body.len();
    let mut first_payload_at = None;
    for (at, part) in parts.into_iter().enumerate() {
        match part {
            Part::Bytes(bytes) if at == 0 => body.raw(&behind_header(&bytes)),
            Part::Bytes(bytes) => body.raw(&bytes),
            Part::Payload { data, .. } => {
                let first_payload_at = *first_payload_at.get_or_insert(body.len());
                let len = data.len();
                match data.into_chain(pool).await {
                    Ok(chain) => chain.iter().for_each(|bytes| body.raw(bytes)),
                    Err(e) => {
                        instead::tell(peer, &e);
                        body.truncate(first_payload_at);
                        let failure = cut.results(body.after(begins))?;
                        let mut body = begin(failure.len());
                        body.raw(failure.after(0));
                        return Some(body);
                    }
                }
                body.raw(fill(len));
            }
        }
    }
    Some(body)
}
