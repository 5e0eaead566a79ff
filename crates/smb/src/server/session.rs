//! Sessions, their channels and tree connects: the user, the keys, and what is connected and open.
//!
//! Spec: [MS-SMB2] 3.3.1.8 (session), 3.3.1.9 (tree connect), 3.3.1.14 (channel), 3.3.7.1 (loss of a channel). Owns the
//! trees and the open table of a session, and the list of its channels. The server-wide table and the connections share
//! it by `Arc`. Authentication is in [`super::session_setup`].
//!
//! A session lives as long as its list of channels is open. The list is closed once, by whoever comes first: LOGOFF on
//! any channel, the loss of the last one, a newer session, a failed reauthentication. Joining a closed list fails, and
//! removing the last channel closes the list in the same step: no channel can join a session that is ending, and nobody
//! can end a session that has channels left.
//!
//! State of one channel, above all its signing key, is not in the list but in the [`Binding`] of its connection, which
//! is neither `Send` nor reachable from elsewhere, and is dropped with the connection. So no race between channels can
//! reveal a key to another connection, or use a freed one.

use std::collections::HashMap;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use futures_util::future::join_all;
use weft_machine::{Account, Budget, Charge, Time, rt};
use weft_store::access::Token;
use weft_store::audit::{Audit, Event, Kind, Outcome, Who as Audited};
use weft_store::rights::Right;
use weft_store::vfs::Share;
use weft_wire::smb2::aapl::ServerCaps;
use weft_wire::smb2::{Guid, NtStatus};

use super::directory::Who;
use super::held::{self, DESCRIPTORS_OF_OPEN, TREE_BYTES};
use super::notices::{Mailbox, Notice};
use super::ops::Opens;
use super::pipes::Pipes;
use super::user_id::UserId;
use crate::crypto::{Profile, SessionKeys, SigningKey};

/// An authenticated session.
pub(crate) struct Session {
    /// SessionId: random, never 0 or -1.
    pub id: u64,
    /// The user's name as configured.
    pub user: Arc<str>,
    /// Whether it is a user of ours; otherwise it is one of the system.
    pub is_ours: bool,
    /// The user's account of the system, as it was at log-on; `None` if the user has none, or accounts of the system
    /// are not used.
    pub account: Option<Arc<Account>>,
    /// Who the user is, as it was at log-on.
    pub user_id: Option<UserId>,
    /// Open files and directories.
    pub opens: Opens,
    /// What NEGOTIATE settled on the first connection; the others must agree.
    pub(super) profile: Profile,
    /// ClientGuid of the first connection; the others must have the same.
    pub(super) client_guid: Guid,
    /// When it was set up.
    pub met: Time,
    /// Where its client is, once it has connected to a share.
    pub client: OnceLock<String>,
    /// The user's token for access checks, once needed.
    pub token: OnceLock<Token>,
    /// The audit log, if there is one, and the user for it, on the connection of the log-on.
    pub(super) audited: Option<(Audit, Audited)>,
    /// The keys of the whole session. What is signed on one channel is signed by its [`Binding`].
    pub(super) keys: SessionKeys,
    /// Whether requests that are neither signed nor encrypted are refused.
    pub(super) signing_required: bool,
    /// Whether unencrypted requests are refused.
    pub(super) encrypt: bool,
    /// What a Mac and the server can do beyond SMB; no bit is set for other clients.
    mac: AtomicU64,
    /// When it expires, in nanoseconds of the runtime's clock, or [`NEVER`].
    expires: AtomicU64,
    /// True if `channels` is `None`; read without the lock.
    ended: AtomicBool,
    /// ChannelList without its keys; `None` once the session has ended.
    channels: Mutex<Option<Vec<Arc<Mailbox>>>>,
    trees: Mutex<Trees>,
    /// Charged to its user, and to the address where it was established.
    held: Charge,
}

const NEVER: u64 = u64::MAX;

/// The initial state of a session.
pub(crate) struct New {
    pub id: u64,
    pub user: Arc<str>,
    pub is_ours: bool,
    pub account: Option<Arc<Account>>,
    pub user_id: Option<UserId>,
    pub profile: Profile,
    pub client_guid: Guid,
    pub keys: SessionKeys,
    pub signing_required: bool,
    pub encrypt: bool,
    /// The audit log, if there is one, and the user for it.
    pub audited: Option<(Audit, Audited)>,
    /// The charge for the session itself; its opens are charged to the same account.
    pub held: Charge,
}

/// Why a connection cannot become a channel of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Refused {
    /// The session has ended.
    Ended,
    /// It has the maximum number of channels.
    Full,
}

/// A connection's channel of a session. Stored only in the table of that connection.
pub(super) struct Binding {
    pub session: Arc<Session>,
    /// Channel.SigningKey.
    pub signing: Arc<SigningKey>,
    /// Whether requests on this channel that are neither signed nor encrypted are refused: because the session requires
    /// it, or because a man in the middle could reach this connection.
    pub must_sign: bool,
    mailbox: Arc<Mailbox>,
}

impl Binding {
    /// Makes a connection a channel of a session; `limit` bounds their number.
    pub fn join(
        session: Arc<Session>,
        signing: Arc<SigningKey>,
        must_sign: bool,
        mailbox: &Arc<Mailbox>,
        limit: usize,
    ) -> Result<Rc<Binding>, Refused> {
        {
            let channels = &mut *lock(&session.channels);
            let channels = channels.as_mut().ok_or(Refused::Ended)?;
            if channels.len() >= limit {
                return Err(Refused::Full);
            }
            channels.push(mailbox.clone());
        }
        let must_sign = !session.encrypt && (session.signing_required || must_sign);
        Ok(Rc::new(Binding { session, signing, must_sign, mailbox: mailbox.clone() }))
    }

    /// Removes a lost connection; the session ends with its last channel (3.3.7.1).
    pub async fn leave(&self, table: &Sessions) {
        let last = {
            let channels = &mut *lock(&self.session.channels);
            let Some(list) = channels else { return };
            list.retain(|mailbox| !Arc::ptr_eq(mailbox, &self.mailbox));
            let last = list.is_empty();
            if last {
                self.session.close(channels);
            }
            last
        };
        if last {
            self.session.clean_up(table).await;
        }
    }
}

#[derive(Default)]
struct Trees {
    last: u32,
    by_id: foldhash::HashMap<u32, Arc<Tree>>,
}

/// A tree connect.
pub(crate) struct Tree {
    /// TreeId: never 0 or -1.
    pub id: u32,
    /// The share; `None` for IPC$, which has no files.
    pub share: Option<Share>,
    /// What its user may do on the share.
    pub right: Right,
    /// The open pipes, on IPC$.
    pub pipes: Pipes,
    _held: Charge,
}

impl Tree {
    /// Whether unencrypted requests are refused ([MS-SMB2] 3.3.5.2.11, Share.EncryptData).
    pub fn encrypted(&self) -> bool {
        self.share.as_ref().is_some_and(|share| share.rules.encrypted)
    }
}

impl Session {
    /// A session without channels, not in any table yet.
    pub(crate) fn new(new: New) -> Session {
        let New {
            id,
            user,
            is_ours,
            account,
            user_id,
            profile,
            client_guid,
            keys,
            signing_required,
            encrypt,
            audited,
            held,
        } = new;
        Session {
            id,
            user,
            is_ours,
            account,
            user_id,
            opens: Opens::default(),
            profile,
            client_guid,
            met: rt::now(),
            client: OnceLock::new(),
            token: OnceLock::new(),
            audited,
            keys,
            signing_required,
            encrypt,
            mac: AtomicU64::new(0),
            expires: AtomicU64::new(NEVER),
            ended: AtomicBool::new(false),
            channels: Mutex::new(Some(Vec::with_capacity(1))),
            trees: Mutex::default(),
            held,
        }
    }

    /// The user, for decisions.
    pub(crate) fn who(&self) -> Who<'_> {
        Who { user: &self.user, is_ours: self.is_ours, account: self.account.as_deref() }
    }

    /// What a Mac and the server can do beyond SMB. A Mac applies the last answer to all shares of its session.
    pub(super) fn mac(&self) -> ServerCaps {
        ServerCaps(self.mac.load(Ordering::Relaxed))
    }

    /// Whether its client is a Mac that has asked.
    pub(super) fn is_mac(&self) -> bool {
        self.mac() != ServerCaps::NONE
    }

    pub(super) fn set_mac(&self, caps: ServerCaps) {
        self.mac.store(caps.0, Ordering::Relaxed);
    }

    /// Charges memory for something that the session makes the server keep.
    pub(super) fn hold(&self, bytes: usize) -> Result<Charge, NtStatus> {
        self.held.beside(bytes).map_err(held::refused)
    }

    /// Charges the descriptors of one more open.
    pub(super) fn hold_descriptors(&self, of: &Budget) -> Result<Charge, NtStatus> {
        of.charge(self.held.holder().clone(), DESCRIPTORS_OF_OPEN).map_err(held::no_descriptor)
    }

    /// Whether it has ended.
    pub(super) fn is_ended(&self) -> bool {
        self.ended.load(Ordering::Acquire)
    }

    /// Whether the client must authenticate again (3.3.5.2.9). `now` is called only if the session expires at all.
    pub(super) fn is_expired(&self, now: impl FnOnce() -> Time) -> bool {
        match self.expires.load(Ordering::Relaxed) {
            NEVER => false,
            at => now().as_nanos() >= at,
        }
    }

    /// Sets the time of expiry; `None` for never.
    pub(super) fn expire_at(&self, at: Option<Time>) {
        self.expires.store(at.map_or(NEVER, Time::as_nanos), Ordering::Relaxed);
    }

    /// Ends it on all channels: requests no longer find it, and its opens are closed, including delete-on-close.
    pub(super) async fn end(&self, table: &Sessions) {
        let first = {
            let channels = &mut *lock(&self.channels);
            let first = channels.is_some();
            self.close(channels);
            first
        };
        if first {
            self.clean_up(table).await;
        }
    }

    /// Marks the end, under the lock of the list.
    fn close(&self, channels: &mut Option<Vec<Arc<Mailbox>>>) {
        *channels = None;
        self.ended.store(true, Ordering::Release);
    }

    async fn clean_up(&self, table: &Sessions) {
        table.remove(self.id);
        let trees = std::mem::take(&mut lock(&self.trees).by_id);
        trees.values().for_each(|tree| tree.pipes.close_all());
        self.opens.end_all().await;
        if let Some((audit, who)) = &self.audited {
            audit.tell(Event::now(Kind::Logoff, Outcome::Done, who.clone()));
        }
    }

    /// Sends an unsolicited message to the client over any channel; see [`Notice::send`]. `message` is one whole SMB2
    /// message, header first.
    #[allow(dead_code, reason = "for oplock and lease breaks")]
    pub(crate) fn notice(self: &Arc<Session>, message: Vec<u8>) -> Notice {
        Notice::new(self.clone(), message)
    }

    /// The mailboxes of its channels, oldest channel first.
    pub(super) fn mailboxes(&self) -> Vec<Arc<Mailbox>> {
        lock(&self.channels).clone().unwrap_or_default()
    }

    /// The tree with this id.
    pub(super) fn tree(&self, id: u32) -> Option<Arc<Tree>> {
        lock(&self.trees).by_id.get(&id).cloned()
    }

    /// Connects to a share, unless the session already has `limit` trees. Only a further tree of the same share needs
    /// room.
    pub(super) fn connect(&self, share: Option<Share>, right: Right, limit: usize) -> Option<Arc<Tree>> {
        let trees = &mut *lock(&self.trees);
        if trees.by_id.len() >= limit {
            return None;
        }
        let wanted = share.as_ref().map(|share| &share.name);
        let same = |tree: &Arc<Tree>| tree.share.as_ref().map(|share| &share.name) == wanted;
        let held = match trees.by_id.values().any(same) {
            true => self.hold(TREE_BYTES).ok()?,
            false => self.held.budget().charge_if_room(self.held.holder().clone(), TREE_BYTES),
        };
        // The limit is far below 2^32, so a free id is found soon.
        loop {
            trees.last = trees.last.wrapping_add(1);
            let id = trees.last;
            if id != 0 && id != u32::MAX && !trees.by_id.contains_key(&id) {
                let tree = Arc::new(Tree { id, share, right, pipes: Pipes::default(), _held: held });
                trees.by_id.insert(id, tree.clone());
                return Some(tree);
            }
        }
    }

    /// Disconnects from a share; false if there is no such tree.
    pub(super) async fn disconnect(&self, id: u32) -> bool {
        let found = lock(&self.trees).by_id.remove(&id);
        if let Some(tree) = &found {
            tree.pipes.close_all();
            self.opens.close_tree(id).await;
        }
        found.is_some()
    }

    /// Disconnects the trees for which `stays` is false: all of them, before it waits for the closing of files.
    pub(super) async fn disconnect_unless(&self, stays: impl Fn(&Tree) -> bool) {
        let lost = self.trees().into_iter().filter(|tree| !stays(tree));
        join_all(lost.map(|tree| async move { self.disconnect(tree.id).await })).await;
    }

    /// Its trees.
    pub(super) fn trees(&self) -> Vec<Arc<Tree>> {
        lock(&self.trees).by_id.values().cloned().collect()
    }

    /// Number of its trees on this share; `None` means IPC$.
    pub(super) fn connected_to(&self, share: Option<&str>) -> usize {
        let is = |tree: &&Arc<Tree>| tree.share.as_ref().map(|share| &*share.name) == share;
        lock(&self.trees).by_id.values().filter(is).count()
    }
}

/// Every session of the server: GlobalSessionTable.
#[derive(Default)]
pub(crate) struct Sessions(Mutex<HashMap<u64, Arc<Session>>>);

impl Sessions {
    /// Adds a session; false if its id is taken.
    pub(super) fn insert(&self, session: &Arc<Session>) -> bool {
        let mut table = lock(&self.0);
        match table.contains_key(&session.id) {
            true => false,
            false => table.insert(session.id, session.clone()).is_none(),
        }
    }

    pub(super) fn find(&self, id: u64) -> Option<Arc<Session>> {
        lock(&self.0).get(&id).cloned()
    }

    fn remove(&self, id: u64) {
        lock(&self.0).remove(&id);
    }

    /// All sessions.
    pub(super) fn all(&self) -> Vec<Arc<Session>> {
        lock(&self.0).values().cloned().collect()
    }

    /// Number of sessions.
    pub(super) fn len(&self) -> usize {
        lock(&self.0).len()
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Every update of these tables is one call that cannot panic half-way, so a poisoned lock is harmless.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
