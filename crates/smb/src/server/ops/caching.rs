//! The caching rights of an open: an oplock of its own, or its client's lease.
//!
//! Spec: [MS-SMB2] 3.3.4.6 (oplock breaks), 2.2.23.1; [MS-FSA] 2.1.5.18. Owns the route of oplock breaks. The store's
//! table of opens grants and breaks caching rights, for NFS as well, and is the only place that remembers them.
//! Requests get them in [`super::granting`].

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use weft_machine::rt;
use weft_store::opens::{Holder, Key, Opens, Recall};
use weft_store::vfs::Vfs;
use weft_wire::smb2::create::OplockLevel;
use weft_wire::smb2::create_context::ResponseContext;
use weft_wire::smb2::oplock_break::Notification;
use weft_wire::smb2::{Command, FileId, Header, NtStatus};

use super::caching_rights::level_of;
use super::durable::Preserved;
use super::lease::Lease;
use super::opens::Open;
use crate::server::session::Session;

/// What the caching rights of an open are based on.
pub(crate) enum Caching {
    /// No caching.
    None,
    /// Its own oplock.
    Oplock(Arc<Oplock>),
    /// The lease that it shares with other opens.
    Lease(Arc<Lease>),
}

impl Caching {
    /// The key under which the file is opened.
    pub(super) fn key(&self, vfs: &Vfs) -> Key {
        match self {
            Caching::Lease(lease) => lease.store_key(),
            Caching::None | Caching::Oplock(_) => vfs.opens().key(),
        }
    }
}

/// The caching rights that an open has now, for a repeated answer.
pub(super) fn describe(open: &Open, contexts: &mut Vec<ResponseContext>) -> OplockLevel {
    match &open.caching {
        Caching::None => OplockLevel::NONE,
        Caching::Oplock(_) => level_of(open.vfs.opens().caching(open.node, open.claim.key()).0),
        Caching::Lease(lease) => {
            contexts.push(ResponseContext::Lease(lease.describe()));
            OplockLevel::LEASE
        }
    }
}

/// Routes the breaks of an oplock.
pub(crate) struct Oplock {
    route: Mutex<Option<Route>>,
    /// Holds its open while that has no session.
    preserved: Weak<Preserved>,
    opens: Arc<Opens>,
}

struct Route {
    session: Weak<Session>,
    file: FileId,
}

impl Oplock {
    pub(super) fn new(preserved: &Arc<Preserved>, opens: &Arc<Opens>) -> Oplock {
        Oplock { route: Mutex::new(None), preserved: Arc::downgrade(preserved), opens: opens.clone() }
    }

    /// Sets the FileId and session under which the client knows the open from now on.
    pub(super) fn connect(&self, session: &Arc<Session>, file: FileId) {
        *lock(&self.route) = Some(Route { session: Arc::downgrade(session), file });
    }

    fn route(&self) -> Option<(Arc<Session>, FileId)> {
        let route = lock(&self.route);
        let route = route.as_ref()?;
        Some((route.session.upgrade()?, route.file))
    }
}

impl Holder for Oplock {
    fn recall(&self, recall: Recall) -> bool {
        let level = level_of(recall.to);
        let told = self.route().is_some_and(|(session, file)| {
            let message = message(session.id, &Notification::Oplock { level, file });
            let sent = session.notice(message.clone()).send();
            if sent {
                insist(&session, message, &self.opens, recall);
            }
            sent
        });
        let is_mine =
            |open: &Open| matches!(&open.caching, Caching::Oplock(oplock) if std::ptr::eq(&**oplock, self));
        // 3.3.4.6: a durable handle whose client cannot be notified is closed.
        told || self.preserved.upgrade().is_some_and(|kept| kept.forfeit((recall.node, &self.opens), is_mine))
    }

    fn revoked(&self, node: weft_store::NodeId, _: Key) {
        tracing::debug!("an oplock break was not acknowledged in time: {node:?}");
        let is_mine =
            |open: &Open| matches!(&open.caching, Caching::Oplock(oplock) if std::ptr::eq(&**oplock, self));
        if let Some(preserved) = self.preserved.upgrade() {
            let session = self.route().map(|(session, _)| session);
            preserved.revoked(session.as_slice(), (node, &self.opens), is_mine);
        }
    }
}

/// The longest silence before a break is sent over the next channel.
const INSIST: Duration = Duration::from_secs(5);
/// By then all channels have been tried.
const INSIST_FOR: Duration = Duration::from_secs(30);

/// Repeats a break over the other channels of its session, one after the other, until it is acknowledged (3.3.4.6,
/// 3.3.4.7: a channel may accept a message that never arrives). Clients ignore breaks that they have acknowledged.
pub(super) fn insist(session: &Arc<Session>, message: Vec<u8>, opens: &Arc<Opens>, recall: Recall) {
    // At most a few dozen.
    let channels = session.mailboxes().len() as u32;
    if !recall.acknowledge || channels < 2 {
        return;
    }
    let (session, opens) = (Arc::downgrade(session), opens.clone());
    rt::spawn(async move {
        for nth in 1..channels {
            rt::sleep(INSIST.min(INSIST_FOR.checked_div(channels).unwrap_or_default())).await;
            let (_, left) = opens.caching(recall.node, recall.key);
            let Some(session) = session.upgrade().filter(|_| left == Some(recall.to)) else { return };
            // A full or closed mailbox is skipped.
            let _ = session.notice(message.clone()).send_by(nth as usize);
        }
    })
    .detach();
}

/// An OPLOCK_BREAK notification, header first (3.3.4.6, 3.3.4.7).
pub(super) fn message(session_id: u64, notification: &Notification) -> Vec<u8> {
    let mut header = Header::request(Command::OplockBreak, u64::MAX).reply(NtStatus::SUCCESS, 0);
    (header.credit_charge, header.session_id) = (0, session_id);
    let mut message = Vec::with_capacity(108);
    header.emit(&mut message);
    notification.emit(&mut message);
    message
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Its value is only replaced as a whole, so a poisoned lock is harmless.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
