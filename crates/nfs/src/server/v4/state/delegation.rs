//! Delegations: a client's right to open, read or write a file without asking the server, until it is recalled.
//!
//! See RFC 8881 10.4 and 10.4.5 (recall, revocation), and RFC 7530 10.4. This file tracks each delegation, and which
//! files were recently contended. The store's table of opens decides what conflicts with one; `delegations` grants
//! them.
//!
//! The table of opens tells a [`Delegation`] that it conflicts with another open. The client is asked to return it; a
//! client that is gone, or takes longer than a lease, loses it.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::time::Duration;

use weft_machine::{Time, rt};
use weft_store::NodeId;
use weft_store::opens::{Holder, Key, Opens, Recall};
use weft_wire::nfs4::{Attributes, CbOp, CbRecall, Handle, Status};

use super::back::Unanswered;
use super::{Client, State};
use crate::server::file_id::FileId;

/// Most files remembered as contended.
const MAX_CONTENDED: usize = 4096;
/// A client that has not yet received its grant is asked again after this time.
const ASK_AGAIN: Duration = Duration::from_millis(500);

/// One delegation.
pub struct Delegation {
    pub write: bool,
    /// The client also maintains the file's times (RFC 9754).
    pub times: bool,
    pub handle: Handle,
    lease: Duration,
    opens: Arc<Opens>,
    file: FileId,
    key: Key,
    all: Arc<Delegated>,
    given_back: AtomicBool,
    /// The client and the state; unset between the grant and its entry.
    of: OnceLock<(Weak<Client>, Weak<State>)>,
    recalled: AtomicBool,
    /// The client has acknowledged the recall, or is being asked.
    told: AtomicBool,
    revoked: AtomicBool,
    /// The file's attributes as changed by the client (CB_GETATTR).
    pub seen: Mutex<Seen>,
}

/// What is known of a file that a client writes locally.
#[derive(Default)]
pub struct Seen {
    /// The client's last reply.
    pub told: Attributes,
    /// How often the file was found changed.
    pub changes: u64,
}

impl Delegation {
    #[allow(clippy::too_many_arguments, reason = "what it covers, and for whom")]
    pub fn new(
        write: bool,
        times: bool,
        handle: Handle,
        lease: Duration,
        opens: Arc<Opens>,
        file: FileId,
        key: Key,
        all: Arc<Delegated>,
    ) -> Arc<Delegation> {
        Arc::new(Delegation {
            write,
            times,
            handle,
            lease,
            opens,
            file,
            key,
            all,
            given_back: AtomicBool::new(false),
            of: OnceLock::new(),
            recalled: AtomicBool::new(false),
            told: AtomicBool::new(false),
            revoked: AtomicBool::new(false),
            seen: Mutex::default(),
        })
    }

    /// Assigns the delegation to this client and state. A recall that came before is sent now.
    pub fn entered(&self, client: &Arc<Client>, state: &Arc<State>) {
        let _ = self.of.set((Arc::downgrade(client), Arc::downgrade(state)));
        client.lease.delegations.fetch_add(1, Ordering::AcqRel);
        if self.is_recalled() {
            tell(client, state);
        }
    }

    pub fn is_recalled(&self) -> bool {
        self.recalled.load(Ordering::Acquire)
    }

    pub fn is_revoked(&self) -> bool {
        self.revoked.load(Ordering::Acquire)
    }

    /// Returns the delegation to the table of opens.
    pub fn give_back(&self) {
        // The same client may have been granted another one since.
        if !self.given_back.swap(true, Ordering::AcqRel) {
            self.opens.give_back(self.file.node, self.key);
        }
    }

    fn of(&self) -> Option<(Arc<Client>, Arc<State>)> {
        let (client, state) = self.of.get()?;
        Some((client.upgrade()?, state.upgrade()?))
    }

    /// The client has lost it, and learns that at its next use.
    fn revoke(&self) {
        if self.revoked.swap(true, Ordering::AcqRel) {
            return;
        }
        self.give_back();
        if let Some((client, _)) = self.of() {
            client.lease.delegations.fetch_sub(1, Ordering::AcqRel);
            client.lease.revoked.fetch_add(1, Ordering::AcqRel);
            client.mine().delegated.remove(&self.file);
        }
    }
}

impl Holder for Delegation {
    fn recall(&self, _: Recall) -> bool {
        self.recalled.store(true, Ordering::Release);
        self.all.contend(self.file, rt::now());
        match (self.of.get(), self.of()) {
            // It is just being granted, and will be recalled after that.
            (None, _) => true,
            (Some(_), Some((client, state))) => {
                if client.lease.has_ended() || client.lease.lapsed(rt::now(), self.lease) {
                    self.revoke();
                    return false;
                }
                tell(&client, &state);
                true
            }
            (Some(_), None) => false,
        }
    }

    /// RFC 8881 10.4.5: at least a lease.
    fn patience(&self) -> Duration {
        self.lease
    }

    fn revoked(&self, _: NodeId, _: Key) {
        self.revoke();
    }
}

/// Recalls a delegation, unless a recall is already running. Without a back channel, the recall is sent when there is
/// one.
fn tell(client: &Arc<Client>, state: &Arc<State>) {
    let Some(right) = state.delegation() else { return };
    let Some(back) = client.back() else { return };
    if right.told.swap(true, Ordering::AcqRel) {
        return;
    }
    let op = CbRecall { stateid: state.stateid(), truncate: false, handle: right.handle };
    let of = (Arc::downgrade(client), Arc::downgrade(state));
    back.ask(CbOp::Recall(op), move |answer| {
        let (Some(client), Some(state)) = (of.0.upgrade(), of.1.upgrade()) else { return };
        let Some(right) = state.delegation() else { return };
        match answer {
            Ok((Status::OK, _)) => {}
            // The next back channel triggers the next attempt.
            Err(Unanswered::Ended) => right.told.store(false, Ordering::Release),
            // RFC 8881 20.2.3: for example, the client may not have received the reply that granted it.
            Ok(_) | Err(Unanswered::Nonsense) => {
                rt::spawn(async move {
                    rt::sleep(ASK_AGAIN).await;
                    if let Some(right) = state.delegation()
                        && !state.has_ended()
                        && !right.is_revoked()
                    {
                        right.told.store(false, Ordering::Release);
                        tell(&client, &state);
                    }
                })
                .detach();
            }
        }
    });
}

impl Client {
    /// A new back channel exists: sends the recalls that could not be sent before.
    pub fn ask_again(self: &Arc<Client>) {
        let recalled = |state: &&Arc<State>| state.delegation().is_some_and(|right| right.is_recalled());
        let states: Vec<_> = self.mine().states.values().filter(recalled).cloned().collect();
        states.iter().for_each(|state| tell(self, state));
    }
}

/// The delegations of all clients.
#[derive(Default)]
pub struct Delegated {
    /// Number of write delegations, so that no lookup is made while it is zero.
    writers: AtomicUsize,
    written: Mutex<HashMap<FileId, Arc<State>>>,
    contended: Mutex<HashMap<FileId, Time>>,
    /// Number of delegations granted so far.
    pub granted: AtomicU64,
}

impl Delegated {
    // Every change is one insert or remove.
    fn written(&self) -> MutexGuard<'_, HashMap<FileId, Arc<State>>> {
        self.written.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn contended(&self) -> MutexGuard<'_, HashMap<FileId, Time>> {
        self.contended.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn enter(&self, state: &Arc<State>) {
        self.granted.fetch_add(1, Ordering::Relaxed);
        if state.delegation().is_some_and(|right| right.write) {
            self.written().insert(state.file, state.clone());
            self.writers.fetch_add(1, Ordering::Release);
        }
    }

    pub fn leave(&self, state: &State) {
        let file = state.file;
        let mut written = self.written();
        if written.get(&file).is_some_and(|known| known.other == state.other) {
            let gone = written.remove(&file);
            self.writers.fetch_sub(1, Ordering::Release);
            drop(written);
            drop(gone);
        }
    }

    /// The write delegation of a file, if there is one.
    pub fn writer(&self, file: FileId) -> Option<Arc<State>> {
        if self.writers.load(Ordering::Acquire) == 0 {
            return None;
        }
        self.written().get(&file).cloned()
    }

    /// Notes a conflict about a file.
    fn contend(&self, file: FileId, now: Time) {
        let mut contended = self.contended();
        if contended.len() >= MAX_CONTENDED {
            // Entries return one by one.
            contended.clear();
        }
        contended.insert(file, now);
    }

    /// Whether the last conflict was less than `span` ago.
    pub fn is_contended(&self, file: FileId, now: Time, span: Duration) -> bool {
        let mut contended = self.contended();
        let Some(since) = contended.get(&file) else { return false };
        let recent = now.since(*since) < span;
        if !recent {
            contended.remove(&file);
        }
        recent
    }
}
