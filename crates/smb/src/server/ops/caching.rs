//! The caching rights of an open: an oplock of its own, or its client's lease.
//!
//! Spec: [MS-SMB2] 3.3.5.9 (Oplock Acquisition), 3.3.4.6 (oplock breaks), 2.2.23.1; [MS-FSA] 2.1.5.18. Owns the route
//! of oplock breaks. The store's table of opens grants and breaks caching rights, for NFS as well, and is the only
//! place that remembers them.

use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use futures_util::future::{Either, poll_immediate, select};
use weft_machine::rt;
use weft_store::opens::{Access, Caching as Rights, Form, Holder, Key, Opens, Reach, Recall, Refused};
use weft_store::vfs::{Attr, Kind, Vfs};
use weft_wire::smb2::access::AccessMask;
use weft_wire::smb2::create::{CreateOptions, OplockLevel, Request};
use weft_wire::smb2::create_context::{self, LeaseFlags, LeaseState, RequestContext, ResponseContext};
use weft_wire::smb2::fscc::FileClass;
use weft_wire::smb2::oplock_break::Notification;
use weft_wire::smb2::{Command, Dialect, FileId, Header, NtStatus};

use super::durable::Preserved;
use super::lease::Lease;
use super::opens::Open;
use super::persistent;
use crate::server::answer::Failure;
use crate::server::context::OpContext;
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
    /// Prepares caching before there is an open: the table of opens needs the lease.
    pub(super) fn prepare(
        cx: &OpContext,
        vfs: &Vfs,
        attr: &Attr,
        wanted: &Wanted,
    ) -> Result<Caching, NtStatus> {
        Ok(match wanted {
            Wanted::Nothing => Caching::None,
            // A directory has no data, but its list of names can be cached with a lease of version 2.
            Wanted::Lease(lease) if attr.kind == Kind::Dir && lease.v2.is_some() => {
                vfs.opens().cache_directories();
                Caching::lease(cx, vfs, attr, lease)?
            }
            _ if attr.kind != Kind::File => Caching::None,
            Wanted::Oplock(_) => {
                Caching::Oplock(Arc::new(Oplock::new(&cx.server().handles.preserved, vfs.opens())))
            }
            Wanted::Lease(lease) => Caching::lease(cx, vfs, attr, lease)?,
        })
    }

    fn lease(
        cx: &OpContext,
        vfs: &Vfs,
        attr: &Attr,
        wanted: &create_context::Lease,
    ) -> Result<Caching, NtStatus> {
        let handles = &cx.server().handles;
        let (client, file) = (cx.session().client_guid, (vfs.opens(), attr.node));
        Ok(Caching::Lease(handles.leases.acquire(client, wanted, file, &handles.preserved)?))
    }

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

/// Gives an open its new FileId and session.
pub(super) fn reconnect(cx: &OpContext, open: &Open, file: FileId) {
    match &open.caching {
        Caching::None => {}
        Caching::Oplock(oplock) => oplock.connect(cx.session(), file),
        Caching::Lease(_) => cx.server().handles.leases.connect(cx.session()),
    }
}

/// Requests the rights that the client wants; returns the granted level, and adds a context if it is a lease.
pub(super) fn acquire(
    cx: &OpContext,
    open: &Open,
    wanted: &Wanted,
    file: FileId,
    contexts: &mut Vec<ResponseContext>,
) -> OplockLevel {
    match (&open.caching, wanted) {
        (Caching::Oplock(oplock), Wanted::Oplock(rights)) => {
            oplock.connect(cx.session(), file);
            level_of(open.claim.request(Form::Oplock, *rights, oplock.clone()).0)
        }
        (Caching::Lease(lease), Wanted::Lease(wanted)) => {
            cx.server().handles.leases.connect(cx.session());
            if open.options.contains(CreateOptions::DELETE_ON_CLOSE) {
                lease.set_delete_on_close();
            }
            // A directory has no writes that could be cached.
            let state = match open.kind {
                Kind::Dir => wanted.state.without(LeaseState::WRITE_CACHING),
                _ => wanted.state,
            };
            contexts.push(ResponseContext::Lease(lease.request(&open.claim, state)));
            OplockLevel::LEASE
        }
        _ => OplockLevel::NONE,
    }
}

/// The caching that a CREATE asks for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Wanted {
    /// None, or an unknown kind.
    Nothing,
    /// An oplock.
    Oplock(Rights),
    /// A lease, new or existing.
    Lease(create_context::Lease),
}

impl Wanted {
    /// 3.3.5.9, Oplock Acquisition: a lease context counts only with the level that announces it.
    pub(super) fn of(request: &Request, dialect: Dialect) -> Wanted {
        match request.oplock {
            OplockLevel::II => Wanted::Oplock(Rights::R),
            OplockLevel::EXCLUSIVE => Wanted::Oplock(Rights::RW),
            OplockLevel::BATCH => Wanted::Oplock(Rights::RWH),
            OplockLevel::LEASE if dialect >= Dialect::V2_1 => lease_of(request, dialect),
            _ => Wanted::Nothing,
        }
    }
}

fn lease_of(request: &Request, dialect: Dialect) -> Wanted {
    let lease = request.contexts.iter().find_map(|context| match context {
        RequestContext::Lease(lease) if lease.v2.is_none() || dialect >= Dialect::V3_0 => Some(*lease),
        _ => None,
    });
    lease.map_or(Wanted::Nothing, Wanted::Lease)
}

/// The lease of the parent directory, as the client names it itself (ParentLeaseKey): the client's own changes there do
/// not break it.
pub(super) fn parent(cx: &OpContext, opens: &Arc<Opens>, wanted: &Wanted) -> Option<Key> {
    let Wanted::Lease(lease) = wanted else { return None };
    let v2 = lease.v2.filter(|_| lease.flags.contains(LeaseFlags::PARENT_LEASE_KEY_SET))?;
    let parent = cx.server().handles.leases.find_parent(cx.session().client_guid, v2.parent_key, opens)?;
    Some(parent.store_key())
}

/// A lease state as rights. An illegal combination counts as none ([MS-FSA] 2.1.5.18).
pub(super) fn rights_of(state: LeaseState) -> Rights {
    let rights = Rights {
        read: state.contains(LeaseState::READ_CACHING),
        write: state.contains(LeaseState::WRITE_CACHING),
        handle: state.contains(LeaseState::HANDLE_CACHING),
    };
    if rights.read { rights } else { Rights::NONE }
}

/// Rights as a lease state.
pub(super) fn state_of(rights: Rights) -> LeaseState {
    let mut state = LeaseState::NONE;
    if rights.read {
        state |= LeaseState::READ_CACHING;
    }
    if rights.write {
        state |= LeaseState::WRITE_CACHING;
    }
    if rights.handle {
        state |= LeaseState::HANDLE_CACHING;
    }
    state
}

/// The level of an oplock with these rights.
pub(super) fn level_of(rights: Rights) -> OplockLevel {
    match rights {
        Rights { write: true, handle: true, .. } => OplockLevel::BATCH,
        Rights { write: true, .. } => OplockLevel::EXCLUSIVE,
        Rights { read: true, .. } => OplockLevel::II,
        _ => OplockLevel::NONE,
    }
}

/// How much of a file an access touches ([MS-FSA] 2.1.4.12, case OPEN).
pub(super) fn reach_of(access: AccessMask) -> Reach {
    let attributes =
        AccessMask::FILE_READ_ATTRIBUTES | AccessMask::FILE_WRITE_ATTRIBUTES | AccessMask::SYNCHRONIZE;
    match access.without(attributes) {
        AccessMask::NONE => Reach::Attributes,
        AccessMask::READ_CONTROL => Reach::Security,
        _ => Reach::Data,
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
            persistent::revoked(&preserved, session.as_slice(), (node, &self.opens), is_mine);
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

/// Whether a client gets an interim response while its request waits for others.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Interim {
    /// It gets one.
    Told,
    /// It gets none: Windows sends interim responses only for other commands than SET_INFO ([MS-SMB2] 3.3.4.2, note
    /// 240).
    Silent,
}

/// Waits until others have given up their caching rights, or until the client cancels. Returns whether there was a
/// wait.
pub(super) async fn wait<T>(
    cx: &OpContext,
    interim: Interim,
    work: impl Future<Output = Result<T, Refused>>,
) -> Result<(T, bool), Failure> {
    let mut work = pin!(work);
    if let Some(done) = poll_immediate(work.as_mut()).await {
        return Ok((done?, false));
    }
    if interim == Interim::Told {
        // The break may go to this same client, so it must precede the interim response.
        rt::yield_now().await;
        cx.pending();
    }
    match select(work, pin!(cx.cancelled())).await {
        Either::Left((done, _)) => Ok((done?, true)),
        Either::Right(((), _)) => Err(NtStatus::CANCELLED.into()),
    }
}

/// Breaks the caching rights that a SET_INFO would invalidate ([MS-FSA] 2.1.4.12, case SET_INFORMATION).
pub(super) async fn before_set_info(
    cx: &OpContext,
    open: &Open,
    class: FileClass,
    buffer: &[u8],
) -> Result<(), Failure> {
    let access = match class {
        FileClass::RENAME | FileClass::RENAME_EX | FileClass::LINK => Access::Rename,
        FileClass::DISPOSITION | FileClass::DISPOSITION_EX if buffer.first().is_some_and(|b| b & 1 != 0) => {
            Access::Handle
        }
        FileClass::END_OF_FILE | FileClass::ALLOCATION => Access::Write,
        _ => return Ok(()),
    };
    wait(cx, Interim::Silent, open.vfs.opens().clear(open.node, Some(open.claim.key()), access)).await?;
    Ok(())
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Its value is only replaced as a whole, so a poisoned lock is harmless.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
