//! Recalls in the table: starting them, waiting for them, and notifying holders.
//!
//! [MS-FSA] 2.1.5.1.2 (the order in which an open breaks conflicting rights), 2.1.4.12.1. The rules are in
//! [`super::grants`]. No shard mutex is held while waiting or notifying.
//!
//! A waiter checks again after every acknowledgment, close or timeout, and starts the recalls that are then still
//! needed. So a waiter that gives up leaves only recalls behind that were needed anyway.

use std::future::{Future, poll_fn};
use std::sync::Arc;
use std::task::{Poll, Waker};
use std::time::Duration;

use weft_machine::recorder::{self, Hop};
use weft_machine::{Time, rt};

use super::grants::Event;
use super::{Access, AckFailed, Caching, Key, Node, Open, Opening, Opens, Reach, Refused, Rights};
use crate::vfs::NodeId;

/// After this time, an open of a node whose name is being removed or given away checks again even without an event.
const REMOVAL_TIMEOUT: Duration = Duration::from_secs(1);

/// Tasks that waited for something a holder has given back. They are woken when this is dropped.
#[must_use = "they go on at once where nothing is to come before"]
#[derive(Debug)]
pub struct Waiters(Vec<Waker>);

impl Drop for Waiters {
    fn drop(&mut self) {
        self.0.drain(..).for_each(Waker::wake);
    }
}

/// Why an access must wait or fails.
enum Blocked {
    Refused(Refused),
    Recalling(Pause),
    /// A client may reclaim what it had, at most until then.
    Reclaiming(Time),
}

/// How long to wait for acknowledgments, and the generation when the wait began.
struct Pause {
    deadline: Time,
    generation: u64,
}

impl From<Blocked> for Refused {
    fn from(blocked: Blocked) -> Refused {
        match blocked {
            Blocked::Refused(refused) => refused,
            Blocked::Recalling(_) | Blocked::Reclaiming(_) => Refused::Recalling,
        }
    }
}

impl Node {
    /// Starts the recalls that `access` needs.
    fn recall(
        &mut self,
        node: NodeId,
        by: Option<Key>,
        access: Access,
        events: &mut Vec<Event>,
    ) -> Result<(), Blocked> {
        if self.grants.is_empty() {
            return Ok(());
        }
        match self.grants.recall(node, by, access, rt::now(), events) {
            None => Ok(()),
            Some(deadline) => Err(Blocked::Recalling(Pause { deadline, generation: self.grants.generation })),
        }
    }

    /// [MS-FSA] 2.1.5.1.2: batch oplocks break first; then share modes decide, where handles that need not be open
    /// are asked to be closed; remaining caching rights break last.
    fn make_way(&mut self, node: NodeId, opening: &Opening, events: &mut Vec<Event>) -> Result<(), Blocked> {
        if self.removing || self.alone {
            // Its name is being removed or given to another node right now. After that there is another node, or none.
            return Err(Blocked::Recalling(Pause {
                deadline: rt::now() + REMOVAL_TIMEOUT,
                generation: self.grants.generation,
            }));
        }
        let by = Some(opening.key);
        let access = match () {
            () if opening.overwrites => Access::Overwrite,
            () if opening.access.write || !opening.share.read => Access::OpenToWrite,
            () => Access::Open,
        };
        let cares = |reach| opening.overwrites || opening.reach > reach;
        if cares(Reach::Attributes) && self.grants.has_batch() {
            self.recall(node, by, access, events)?;
        }
        if let Err(refused) = self.admits(opening.needs(), opening.share) {
            if refused == Refused::Sharing {
                self.recall(node, by, Access::Close, events)?;
            }
            return Err(Blocked::Refused(refused));
        }
        let oplock_cares = cares(Reach::Attributes) && self.grants.has_oplocks();
        if oplock_cares || cares(Reach::Security) {
            self.recall(node, by, access, events)?;
        }
        Ok(())
    }
}

impl Opens {
    /// Opens `node`, or returns [`Refused::Recalling`] if conflicting rights were recalled or clients may still
    /// reclaim: the same request may succeed later.
    pub fn try_open(self: &Arc<Opens>, node: NodeId, opening: &Opening) -> Result<Open, Refused> {
        self.attempt(node, || self.open_once(node, opening))
    }

    /// Opens `node` as soon as holders of conflicting rights have given them back or have exceeded their time
    /// ([`super::Holder::patience`]). Dropping the future cancels the open.
    pub async fn open(self: &Arc<Opens>, node: NodeId, opening: &Opening) -> Result<Open, Refused> {
        self.persist(node, || self.open_once(node, opening)).await
    }

    fn open_once(self: &Arc<Opens>, node: NodeId, opening: &Opening) -> Result<Open, Blocked> {
        if opening.is_in_the_way()
            && let Some(deadline) = self.reclaims.deadline()
        {
            return Err(Blocked::Reclaiming(deadline));
        }
        let mut events = Vec::new();
        let mut shard = self.shard(node);
        let way = match shard.get_mut(&node) {
            Some(known) => known.make_way(node, opening, &mut events),
            None => Ok(()),
        };
        let opened = way.and_then(|()| self.enter(&mut shard, node, opening).map_err(Blocked::Refused));
        drop(shard);
        self.tell(events);
        opened
    }

    /// Starts the recalls that `access` to `node` needs. [`Refused::Recalling`]: it should wait for them.
    pub fn recall(&self, node: NodeId, by: Option<Key>, access: Access) -> Result<(), Refused> {
        self.attempt(node, || self.recall_once(node, by, access))
    }

    fn recall_once(&self, node: NodeId, by: Option<Key>, access: Access) -> Result<(), Blocked> {
        if self.is_empty() {
            return Ok(());
        }
        let mut events = Vec::new();
        let outcome = match self.shard(node).get_mut(&node) {
            Some(known) => known.recall(node, by, access, &mut events),
            None => Ok(()),
        };
        self.tell(events);
        outcome
    }

    /// Recalls rights that conflict with `access`, and waits until they are given back or time is over.
    pub async fn clear(&self, node: NodeId, by: Option<Key>, access: Access) -> Result<(), Refused> {
        self.persist(node, || self.recall_once(node, by, access)).await
    }

    /// Prepares an `access` without an open, which needs `rights`: checks share modes, recalls caching rights and
    /// waits for them.
    pub async fn pass(&self, node: NodeId, access: Access, rights: Rights) -> Result<(), Refused> {
        self.after_reclaims(access, rights).await?;
        if self.is_empty() {
            return Ok(());
        }
        if let Err(Refused::Sharing) = self.may(node, rights) {
            // A handle may be open only for caching, by a lease or a batch oplock.
            self.clear(node, None, Access::Rename).await?;
        }
        self.clear(node, None, access).await?;
        self.may(node, rights)
    }

    /// A holder acknowledges a recall and keeps `keep` of what was left to it. Another recall of the same right may
    /// reach the holder before this returns.
    pub fn acknowledge(&self, node: NodeId, key: Key, keep: Caching) -> Result<(), AckFailed> {
        self.give_way(node, key, keep).map(drop)
    }

    /// The same for a holder that must be notified before its waiters continue.
    pub fn give_way(&self, node: NodeId, key: Key, keep: Caching) -> Result<Waiters, AckFailed> {
        let mut events = Vec::new();
        let outcome = match self.shard(node).get_mut(&node) {
            Some(known) => known.grants.acknowledge(node, key, keep, rt::now(), &mut events),
            None => Err(AckFailed::NotRecalled),
        };
        self.tell(events);
        outcome.map(Waiters)
    }

    /// Removes all caching rights of the key on `node`: a delegation was returned, or its client is gone.
    pub fn give_back(&self, node: NodeId, key: Key) {
        let mut shard = self.shard(node);
        let Some(known) = shard.get_mut(&node) else { return };
        let freed = known.grants.release(key);
        self.forget_if_unused(&mut shard, node);
        drop(shard);
        freed.wake();
    }

    /// The caching rights of a key on `node`, and those that remain once it acknowledges a recall.
    pub fn caching(&self, node: NodeId, key: Key) -> (Caching, Option<Caching>) {
        let shard = self.shard(node);
        shard.get(&node).and_then(|known| known.grants.held(key)).unwrap_or_default()
    }

    /// Notifies holders. One that cannot be reached counts as having agreed.
    pub(super) fn tell(&self, events: Vec<Event>) {
        for event in events {
            match event {
                Event::Recall(holder, recall) => {
                    if !holder.recall(recall) && recall.acknowledge {
                        // It fails only if the right ended by itself.
                        let _ = self.acknowledge(recall.node, recall.key, recall.to);
                    }
                }
                Event::Revoked(holder, node, key) => holder.revoked(node, key),
            }
        }
    }

    /// Tries without waiting; once more if the holders in the way are already gone or have exceeded their time.
    fn attempt<T>(&self, node: NodeId, attempt: impl Fn() -> Result<T, Blocked>) -> Result<T, Refused> {
        match attempt() {
            Err(Blocked::Recalling(pause)) => {
                if pause.deadline <= rt::now() {
                    self.expire(node);
                }
                let same = |known: &Node| known.grants.generation == pause.generation;
                if self.shard(node).get(&node).is_some_and(same) {
                    return Err(Refused::Recalling);
                }
                Ok(attempt()?)
            }
            done => Ok(done?),
        }
    }

    /// Retries until it succeeds or fails for a reason other than recalls in progress.
    async fn persist<T>(&self, node: NodeId, attempt: impl Fn() -> Result<T, Blocked>) -> Result<T, Refused> {
        loop {
            match attempt() {
                Ok(done) => return Ok(done),
                Err(Blocked::Refused(refused)) => return Err(refused),
                Err(Blocked::Reclaiming(deadline)) => {
                    recorder::at(Hop::Peer, self.reclaims.over(deadline)).await?
                }
                Err(Blocked::Recalling(pause)) => {
                    let left = pause.deadline.since(rt::now());
                    let changed = rt::timeout(left, self.changed(node, pause.generation));
                    match recorder::at(Hop::Peer, changed).await {
                        Ok(waited) => waited?,
                        Err(rt::Elapsed) => self.expire(node),
                    }
                }
            }
        }
    }

    /// Completes once anything of `node` that matters to waiters has changed since `generation`.
    fn changed(&self, node: NodeId, generation: u64) -> impl Future<Output = Result<(), Refused>> {
        poll_fn(move |cx| match self.shard(node).get_mut(&node) {
            Some(known) if known.grants.generation == generation => match known.grants.wait(cx.waker()) {
                Ok(()) => Poll::Pending,
                Err(refused) => Poll::Ready(Err(refused)),
            },
            _ => Poll::Ready(Ok(())),
        })
    }

    fn expire(&self, node: NodeId) {
        let mut events = Vec::new();
        let waiting = match self.shard(node).get_mut(&node) {
            Some(known) => known.grants.expire(node, rt::now(), &mut events),
            None => Vec::new(),
        };
        self.tell(events);
        waiting.into_iter().for_each(Waker::wake);
    }
}
