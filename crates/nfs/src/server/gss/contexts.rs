//! The established contexts of all clients.
//!
//! See RFC 2203 5.3.3.1 and 5.4. A context belongs to no connection: a client uses it on as many as it likes. It ends with
//! its ticket, when its client destroys it, when it was idle for long, or when another one needs its place; the client
//! then establishes a new one by itself.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use weft_kerberos::{Error, Principal};
use weft_machine::Time;
use weft_wire::rpc::gss::MAX_SEQUENCE;

use super::mechanism::Mechanism;
use super::window::Window;
use crate::gss::SecurityContext;
use crate::server::credential::{PrincipalId, Ticket};

/// Contexts of all clients, of a few KiB each.
const MAX_CONTEXTS: usize = 8192;
/// Contexts of one principal, on all its hosts.
const MAX_OF_PRINCIPAL: usize = 512;
/// How long a context is kept that nobody uses.
const IDLE: Duration = Duration::from_secs(3600);

/// The client's name for a context; unguessable, although only the key of the context makes it usable.
pub type Handle = [u8; 16];

/// The configuration by which a ticket was read: the numbers of the list of shares and of the users.
pub type Generation = (u64, u64);

/// Why a call is not of this context.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotOfContext {
    /// The verifier is not a MIC of the header.
    Checksum,
    /// The context has used up its sequence numbers.
    Exhausted,
    /// The number has come before, or is too old.
    Replayed,
}

/// One context.
pub struct Context {
    pub client: Principal,
    pub service: Principal,
    pub principal: PrincipalId,
    expires: Option<Time>,
    /// The last use, in nanoseconds of [`Time`].
    used: AtomicU64,
    inner: Mutex<Inner>,
    ticket: Mutex<(Generation, Arc<Ticket>)>,
}

struct Inner {
    mechanism: Box<dyn Mechanism>,
    window: Window,
}

impl Context {
    pub fn new(
        mechanism: Box<dyn Mechanism>,
        [client, service]: [Principal; 2],
        expires: Option<Time>,
        ticket: (Generation, Arc<Ticket>),
        now: Time,
    ) -> Context {
        Context {
            principal: PrincipalId::of(&client),
            client,
            service,
            expires,
            used: AtomicU64::new(now.as_nanos()),
            inner: Mutex::new(Inner { mechanism, window: Window::default() }),
            ticket: Mutex::new(ticket),
        }
    }

    // The library's context is usable after each call, whatever it returned.
    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn has_expired(&self, now: Time) -> bool {
        self.expires.is_some_and(|expires| expires <= now)
    }

    /// Whether `mic` is the client's MIC of the header, and the number comes for the first time (RFC 2203 5.3.3.1).
    pub fn check(&self, header: &[u8], mic: &[u8], sequence: u32, now: Time) -> Result<(), NotOfContext> {
        let mut inner = self.inner();
        if !inner.mechanism.verify(header, mic) {
            return Err(NotOfContext::Checksum);
        }
        if sequence >= MAX_SEQUENCE {
            return Err(NotOfContext::Exhausted);
        }
        self.used.store(now.as_nanos(), Ordering::Relaxed);
        if inner.window.accept(sequence) { Ok(()) } else { Err(NotOfContext::Replayed) }
    }

    /// The ticket as it was read by this configuration; `None` if it must be read again.
    pub fn ticket(&self, of: Generation) -> Option<Arc<Ticket>> {
        let known = self.ticket.lock().unwrap_or_else(PoisonError::into_inner);
        (known.0 == of).then(|| known.1.clone())
    }

    pub fn keep_ticket(&self, of: Generation, ticket: Arc<Ticket>) {
        *self.ticket.lock().unwrap_or_else(PoisonError::into_inner) = (of, ticket);
    }

    fn last_used(&self) -> u64 {
        self.used.load(Ordering::Relaxed)
    }
}

impl SecurityContext for Context {
    fn mic(&self, message: &[u8]) -> Result<Vec<u8>, Error> {
        self.inner().mechanism.mic(message)
    }

    fn verify(&self, message: &[u8], mic: &[u8]) -> bool {
        self.inner().mechanism.verify(message, mic)
    }

    fn wrap(&self, message: &[u8]) -> Result<Vec<u8>, Error> {
        self.inner().mechanism.wrap(message)
    }

    fn unwrap(&self, token: &[u8]) -> Option<Vec<u8>> {
        self.inner().mechanism.unwrap(token)
    }
}

/// The table of contexts.
#[derive(Default)]
pub struct Table {
    contexts: Mutex<HashMap<Handle, Arc<Context>>>,
}

impl Table {
    // Each change is one call of the map.
    fn contexts(&self) -> MutexGuard<'_, HashMap<Handle, Arc<Context>>> {
        self.contexts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn find(&self, handle: &[u8]) -> Option<Arc<Context>> {
        self.contexts().get(<&Handle>::try_from(handle).ok()?).cloned()
    }

    pub fn remove(&self, handle: &[u8]) {
        let Ok(handle) = <&Handle>::try_from(handle) else { return };
        // Dropped outside of the lock, because the library may take its time.
        let gone = self.contexts().remove(handle);
        drop(gone);
    }

    /// Enters a context. It takes the place of the one that was idle longest, if there is no other place.
    pub fn insert(&self, handle: Handle, context: Context) {
        let principal = context.principal;
        let mut contexts = self.contexts();
        let oldest = |contexts: &HashMap<Handle, Arc<Context>>, only: Option<PrincipalId>| {
            let these = contexts.iter().filter(|(_, known)| only.is_none_or(|id| known.principal == id));
            these.min_by_key(|(_, known)| known.last_used()).map(|(handle, _)| *handle)
        };
        let own = contexts.values().filter(|known| known.principal == principal).count();
        let evicted = match () {
            () if own >= MAX_OF_PRINCIPAL => oldest(&contexts, Some(principal)),
            () if contexts.len() >= MAX_CONTEXTS => oldest(&contexts, None),
            () => None,
        };
        let gone = evicted.and_then(|handle| contexts.remove(&handle));
        contexts.insert(handle, Arc::new(context));
        drop(contexts);
        if gone.is_some() {
            tracing::debug!("limit reached: contexts of RPCSEC_GSS; the one that was idle longest has ended");
        }
    }

    /// Removes contexts that have expired or that nobody uses.
    pub fn sweep(&self, now: Time) {
        let idle = u64::try_from(IDLE.as_nanos()).unwrap_or(u64::MAX);
        let mut gone = Vec::new();
        self.contexts().retain(|_, context| {
            let is_idle = now.as_nanos().saturating_sub(context.last_used()) >= idle;
            let stays = !is_idle && !context.has_expired(now);
            if !stays {
                gone.push(context.clone());
            }
            stays
        });
        drop(gone);
    }

    #[cfg(test)]
    pub fn len(&self) -> usize {
        self.contexts().len()
    }

    #[cfg(test)]
    pub fn clear(&self) {
        self.contexts().clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::server::gss::tests::Toy;

    fn context(name: &str, expires: Option<u64>, now: u64) -> Context {
        let principal = |text: &str| Principal::parse(text).unwrap();
        let names = [principal(&format!("{name}@R")), principal("nfs/host@R")];
        let ticket = Ticket { principal: PrincipalId::of(&names[0]), ids: None, rights: HashMap::new() };
        let expires = expires.map(Time::from_nanos);
        Context::new(
            Box::new(Toy::default()),
            names,
            expires,
            ((0, 0), Arc::new(ticket)),
            Time::from_nanos(now),
        )
    }

    fn handle(n: u64) -> Handle {
        u128::from(n).to_be_bytes()
    }

    #[test]
    fn a_principal_takes_places_from_itself_first_and_the_longest_idle_go() {
        let table = Table::default();
        table.insert(handle(0), context("bob", None, 0));
        for n in 1..=MAX_OF_PRINCIPAL as u64 {
            table.insert(handle(n), context("alice", None, n));
        }
        assert_eq!(table.len(), MAX_OF_PRINCIPAL + 1);
        table.insert(handle(9999), context("alice", None, 9999));
        assert!(table.find(&handle(1)).is_none() && table.find(&handle(2)).is_some());
        assert!(table.find(&handle(0)).is_some(), "although it was idle longer");
        for n in 0..MAX_CONTEXTS as u64 {
            table.insert(handle(100_000 + n), context(&format!("user{}", n % 100), None, 100_000 + n));
        }
        assert_eq!(table.len(), MAX_CONTEXTS);
        assert!(table.find(&handle(0)).is_none());
    }

    #[test]
    fn expired_and_idle_contexts_end() {
        let table = Table::default();
        let hour = IDLE.as_nanos() as u64;
        table.insert(handle(1), context("alice", Some(10), 0));
        table.insert(handle(2), context("alice", None, 0));
        table.insert(handle(3), context("alice", None, 5));
        table.sweep(Time::from_nanos(9));
        assert_eq!(table.len(), 3);
        table.sweep(Time::from_nanos(10));
        assert!(table.find(&handle(1)).is_none() && table.len() == 2);
        table.sweep(Time::from_nanos(hour));
        assert!(table.find(&handle(2)).is_none() && table.find(&handle(3)).is_some());
        table.remove(b"no handle");
        table.remove(&handle(3));
        assert_eq!(table.len(), 0);
    }
}
