//! RPCSEC_GSS: calls by a user who proves a Kerberos principal, with integrity or privacy of what they carry.
//!
//! See RFC 2203 5.2 (contexts), RFC 7530 3.2 and RFC 2623 (NFS). [`Ticket`] establishes a context with the ticket in the
//! user's credential cache at the first call, and a new one when the server does not know the last one any more or it has
//! expired. All connections of a mount share it. `rpc` sends the calls.

mod context;
mod error;
mod mechanism;
#[cfg(test)]
pub(in crate::client) mod tests;

use std::cell::RefCell;
use std::fmt;
use std::rc::Rc;

use bytes::Bytes;
use futures_util::lock::Mutex;
use weft_kerberos::{Principal, Progress};
use weft_machine::rt;
use weft_transport::Message;
use weft_wire::rpc::gss::{GssCredential, InitResult, InitToken, Procedure, Service};
use weft_wire::rpc::{AuthStat, AuthSys, Call, Credential, Flavor, Reply};
use weft_wire::xdr::{Decoder, Encoder, Malformed, Xdr};

use super::Error;
pub(crate) use context::{Context, Named};
pub use error::TicketError;
use mechanism::{Contexts, Mechanism};

/// Most tokens sent to establish a context; Kerberos needs one.
const MAX_TOKENS: usize = 4;
/// Errors of a server's GSS-API, calling or routine (RFC 2744 3.9.1).
const GSS_ERRORS: u32 = 0xffff_0000;
/// GSS_S_CONTINUE_NEEDED.
const CONTINUE_NEEDED: u32 = 1;

/// A user's ticket for the NFS service of a server. Clones share the context.
#[derive(Clone)]
pub struct Ticket(Rc<Shared>);

struct Shared {
    service: Service,
    host: String,
    /// The ids that servers are told where a ticket does not count.
    claims: AuthSys,
    make: Contexts,
    current: RefCell<Option<Rc<Context>>>,
    /// As whom the first context was established.
    client: RefCell<Option<Option<Principal>>>,
    /// Held by the task that establishes a context; the others wait for it.
    making: Mutex<()>,
}

impl fmt::Debug for Ticket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Ticket(nfs@{}, {:?})", self.0.host, self.0.service)
    }
}

/// How a message reaches the server.
pub(crate) trait Exchange {
    /// A transaction id for a message.
    fn xid(&self) -> u32;
    /// Sends a message, and waits for its reply.
    async fn exchange(&self, xid: u32, message: Bytes) -> Result<Message, Error>;
}

impl Ticket {
    /// The ticket for `nfs@host`, as the user and the KDC name the server, and how calls are protected. MOUNT, which takes
    /// no tickets, is told `claims`.
    pub fn new(host: &str, service: Service, claims: AuthSys) -> Ticket {
        Ticket::by(mechanism::of(host.to_owned()), host, service, claims)
    }

    pub(in crate::client) fn by(make: Contexts, host: &str, service: Service, claims: AuthSys) -> Ticket {
        Ticket(Rc::new(Shared {
            service,
            host: host.to_owned(),
            claims,
            make,
            current: RefCell::default(),
            client: RefCell::default(),
            making: Mutex::default(),
        }))
    }

    /// How calls are protected.
    pub fn service(&self) -> Service {
        self.0.service
    }

    /// The principal that the server was shown, such as `alice@EXAMPLE.ORG`; `None` before the first call.
    pub fn principal(&self) -> Option<String> {
        self.0.client.borrow().as_ref()?.as_ref().map(shown)
    }

    pub(crate) fn claims(&self) -> &AuthSys {
        &self.0.claims
    }

    /// The pseudo flavor (RFC 2623 4.2).
    pub(crate) fn flavor(&self) -> Flavor {
        match self.0.service {
            Service::None => Flavor::KRB5,
            Service::Integrity => Flavor::KRB5I,
            Service::Privacy => Flavor::KRB5P,
        }
    }

    /// Whether a call need not wait for a context to be established.
    pub(crate) fn is_ready(&self) -> bool {
        self.usable().is_some()
    }

    fn usable(&self) -> Option<Rc<Context>> {
        self.0.current.borrow().clone().filter(|context| !context.is_over(rt::now()))
    }

    /// The context, established if necessary by calls of this program.
    pub(crate) async fn context(
        &self,
        program: (u32, u32),
        server: &impl Exchange,
    ) -> Result<Rc<Context>, Error> {
        if let Some(context) = self.usable() {
            return Ok(context);
        }
        let _alone = self.0.making.lock().await;
        if let Some(context) = self.usable() {
            return Ok(context);
        }
        let context = Rc::new(self.establish(program, server).await?);
        let mut client = self.0.client.borrow_mut();
        match client.as_ref() {
            // The server has state of the first principal, and files would belong to another one.
            Some(was) if *was != context.client => {
                let name = |client: &Option<Principal>| client.as_ref().map_or("another user".into(), shown);
                let (was, now) = (name(was), name(&context.client));
                return Err(TicketError::Changed { was, now }.into());
            }
            _ => *client = Some(context.client.clone()),
        }
        *self.0.current.borrow_mut() = Some(context.clone());
        Ok(context)
    }

    /// This context is not used any more.
    pub(crate) fn forget(&self, context: &Rc<Context>) {
        let mut current = self.0.current.borrow_mut();
        if current.as_ref().is_some_and(|current| Rc::ptr_eq(current, context)) {
            *current = None;
        }
    }

    fn failed(&self, error: weft_kerberos::Error) -> Error {
        TicketError::Ours { host: self.0.host.clone(), error }.into()
    }

    /// RFC 2203 5.2.
    async fn establish(&self, program: (u32, u32), server: &impl Exchange) -> Result<Context, Error> {
        let begun = rt::now();
        let mut mechanism = (self.0.make)().map_err(|e| self.failed(e))?;
        let (mut answer, mut handle) = (Bytes::new(), Bytes::new());
        for at in 0..MAX_TOKENS {
            let (stepped, progress) = step(mechanism, answer).await;
            mechanism = stepped;
            let Progress::Continue(token) = progress.map_err(|e| self.failed(e))? else {
                return Err(TicketError::Unproven("the exchange ended without the server's answer").into());
            };
            let kind = if at == 0 { Procedure::Init } else { Procedure::ContinueInit };
            let (mic, result) = self.control(program, server, kind, &handle, token).await?;
            if result.major & GSS_ERRORS != 0 {
                let InitResult { major, minor, .. } = result;
                return Err(TicketError::Refused { host: self.0.host.clone(), major, minor }.into());
            }
            (answer, handle) = (result.token, result.handle);
            if result.major == CONTINUE_NEEDED {
                continue;
            }
            let (mut mechanism, progress) = step(mechanism, answer).await;
            let Progress::Done { client, lifetime, .. } = progress.map_err(|e| self.failed(e))? else {
                return Err(TicketError::Unproven("it ends the exchange too early").into());
            };
            // RFC 2203 5.2.3.1: the verifier proves the window.
            if !mic.is_some_and(|mic| mechanism.verify(&result.window.to_be_bytes(), &mic)) {
                return Err(TicketError::Unproven("its verifier is wrong").into());
            }
            if result.window == 0 {
                return Err(Malformed("RFC 2203 5.2.3.1: a sequence window of 0").into());
            }
            let expires = lifetime.map(|lifetime| begun + lifetime);
            tracing::debug!(window = result.window, ?lifetime, "a context of RPCSEC_GSS is established");
            return Ok(Context::new(mechanism, self.0.service, (handle, result.window), client, expires));
        }
        Err(TicketError::Unproven("the exchange does not end").into())
    }

    /// Sends one control message; returns the reply's verifier and results.
    async fn control(
        &self,
        (program, version): (u32, u32),
        server: &impl Exchange,
        procedure: Procedure,
        handle: &Bytes,
        token: Vec<u8>,
    ) -> Result<(Option<Bytes>, InitResult), Error> {
        let credential = Credential::Gss(GssCredential {
            procedure,
            sequence: 0,
            service: self.0.service,
            handle: handle.clone(),
            covered_bytes: 0,
            mic: Bytes::new(),
        });
        let xid = server.xid();
        let mut message = Encoder::with_capacity(token.len().saturating_add(128));
        Call { xid, program, version, procedure: 0, credential }.emit(&mut message);
        InitToken(token.into()).emit(&mut message);
        let Message { body, .. } = server.exchange(xid, message.into_bytes()).await?;
        let mut d = Decoder::new(body);
        match Reply::parse_verified(&mut d)? {
            (_, Reply::Success, mic) => {
                let result = InitResult::parse(&mut d)?;
                d.end()?;
                Ok((mic, result))
            }
            (_, Reply::AuthError(stat), _) => Err(TicketError::NotTaken(stat).into()),
            (_, refused, _) => Err(Error::Rpc(refused)),
        }
    }

    /// Makes the server forget the context (RFC 2203 5.4). Nothing depends on whether it does: it forgets by itself a
    /// context that is not used.
    pub(crate) async fn destroy(
        &self,
        (program, version): (u32, u32),
        server: &impl Exchange,
    ) -> Result<(), Error> {
        let Some(context) = self.usable() else { return Ok(()) };
        self.forget(&context);
        let Some(number) = context.number().await else { return Ok(()) };
        let xid = server.xid();
        let named = Named { xid, program, version, procedure: 0 };
        let message = context.destroy(named, &number).map_err(|e| self.failed(e))?;
        let Message { body, .. } = server.exchange(xid, message).await?;
        match Reply::parse(&mut Decoder::new(body))? {
            (_, Reply::Success) => Ok(()),
            (_, refused) => Err(Error::Rpc(refused)),
        }
    }
}

/// Processes a token where it may take its time: the library may ask the KDC.
async fn step(
    mut mechanism: Box<dyn Mechanism>,
    token: Bytes,
) -> (Box<dyn Mechanism>, Result<Progress, weft_kerberos::Error>) {
    rt::blocking(move || {
        let progress = mechanism.step(&token);
        (mechanism, progress)
    })
    .await
}

fn shown(principal: &Principal) -> String {
    format!("{}@{}", principal.name, principal.realm)
}

/// Whether a reply says that the server does not accept a call's context, so that a call in a new one may succeed
/// (RFC 2203 5.3.3.3).
pub(crate) fn is_of_context(reply: &Reply) -> bool {
    let of = [AuthStat::REJECTEDCRED, AuthStat::GSS_CREDPROBLEM, AuthStat::GSS_CTXPROBLEM];
    matches!(reply, Reply::AuthError(stat) if of.contains(stat))
}
