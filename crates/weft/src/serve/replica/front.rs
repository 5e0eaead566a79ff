//! A volume as its users have it while what stands behind it changes: the volume itself, a source, or nobody.
//!
//! Owns: which of them it is. Does not: replicate.
//!
//! Operation: a request looks up what is behind, and counts as long as that carries it out. A change takes what is behind
//! away, waits until nobody uses it any more, and puts the next there; requests that come in between wait. So no write reaches
//! the bare volume after a source has begun to copy it, or the other way round.
//! Cost: an atomic counter and a read lock that is written to only by a change.

use std::fmt;
use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::task::{Poll, Waker};

use futures_util::future::LocalBoxFuture;
use weft_store::Error;
use weft_store::block::{Block, BlockOp, Geometry, Outcome};

/// See the module.
pub(super) struct Front {
    /// Of what was behind last: a group may have less of a volume than there is, and it may grow.
    geometry: Mutex<Geometry>,
    behind: RwLock<Behind>,
    active: AtomicUsize,
    waiting: Mutex<Vec<Waker>>,
}

#[derive(Clone)]
enum Behind {
    Block(Arc<dyn Block>),
    /// Something else comes.
    Changing,
    /// Nobody may use it, and why.
    Closed(Arc<str>),
}

impl fmt::Debug for Front {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Front").field("geometry", &self.geometry()).finish_non_exhaustive()
    }
}

impl Front {
    /// Before this block.
    pub fn new(block: Arc<dyn Block>) -> Arc<Front> {
        let geometry = Mutex::new(block.geometry());
        let behind = RwLock::new(Behind::Block(block));
        Arc::new(Front { geometry, behind, active: AtomicUsize::new(0), waiting: Mutex::default() })
    }

    /// Lets this block carry out what comes from now on.
    pub async fn open(&self, block: Arc<dyn Block>) {
        self.change(Behind::Block(block)).await;
    }

    /// Refuses what comes from now on.
    pub async fn close(&self, why: &str) {
        self.change(Behind::Closed(why.into())).await;
    }

    /// Lets requests wait, and waits for those that are being carried out.
    pub async fn hold(&self) {
        *self.behind.write().unwrap_or_else(PoisonError::into_inner) = Behind::Changing;
        self.until(|| (self.active.load(Ordering::SeqCst) == 0).then_some(())).await;
    }

    async fn change(&self, next: Behind) {
        self.hold().await;
        *self.behind.write().unwrap_or_else(PoisonError::into_inner) = next;
        self.wake();
    }

    fn wake(&self) {
        let waiting = std::mem::take(&mut *self.waiting.lock().unwrap_or_else(PoisonError::into_inner));
        waiting.into_iter().for_each(Waker::wake);
    }

    async fn until<T>(&self, mut check: impl FnMut() -> Option<T>) -> T {
        std::future::poll_fn(|cx| {
            if let Some(found) = check() {
                return Poll::Ready(found);
            }
            self.waiting.lock().unwrap_or_else(PoisonError::into_inner).push(cx.waker().clone());
            // What changed between the first look and now has woken nobody.
            check().map_or(Poll::Pending, Poll::Ready)
        })
        .await
    }

    /// What is behind, counted; `None` while it changes.
    fn enter(&self) -> Option<Result<Entered<'_>, Error>> {
        // Counted first: a change that sees nobody counted has been seen by whoever comes later.
        self.active.fetch_add(1, Ordering::SeqCst);
        let guard = Guard(self);
        match self.behind.read().unwrap_or_else(PoisonError::into_inner).clone() {
            Behind::Block(block) => Some(Ok(Entered { block, _guard: guard })),
            Behind::Changing => None,
            Behind::Closed(why) => Some(Err(Error::Io(io::Error::other(why.to_string())))),
        }
    }
}

struct Entered<'a> {
    block: Arc<dyn Block>,
    _guard: Guard<'a>,
}

struct Guard<'a>(&'a Front);

impl Drop for Guard<'_> {
    fn drop(&mut self) {
        if self.0.active.fetch_sub(1, Ordering::SeqCst) == 1
            && matches!(*self.0.behind.read().unwrap_or_else(PoisonError::into_inner), Behind::Changing)
        {
            self.0.wake();
        }
    }
}

impl Block for Front {
    fn geometry(&self) -> Geometry {
        let mut last = self.geometry.lock().unwrap_or_else(PoisonError::into_inner);
        if let Behind::Block(block) = &*self.behind.read().unwrap_or_else(PoisonError::into_inner) {
            *last = block.geometry();
        }
        *last
    }

    fn submit(&self, op: BlockOp) -> LocalBoxFuture<'_, Result<Outcome, Error>> {
        Box::pin(async move {
            let entered = match self.enter() {
                Some(entered) => entered?,
                None => self.until(|| self.enter()).await?,
            };
            entered.block.submit(op).await
        })
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use futures_util::future::{join, select};
    use weft_machine::rt;
    use weft_store::volume::plain::Plain;

    use super::*;

    fn write(front: &Arc<Front>) -> impl Future<Output = Result<Outcome, Error>> + use<> {
        let front = front.clone();
        let data = vec![Bytes::from_static(b"warp")];
        async move { front.submit(BlockOp::Write { offset: 0, data, durable: false }).await }
    }

    /// A block that carries a request out when it is told to.
    #[derive(Debug)]
    struct Slow(Plain, Mutex<Option<Waker>>, AtomicUsize);

    impl Block for Slow {
        fn geometry(&self) -> Geometry {
            self.0.geometry()
        }

        fn submit(&self, op: BlockOp) -> LocalBoxFuture<'_, Result<Outcome, Error>> {
            Box::pin(async move {
                std::future::poll_fn(|cx| {
                    *self.1.lock().unwrap() = Some(cx.waker().clone());
                    if self.2.load(Ordering::SeqCst) > 0 { Poll::Ready(()) } else { Poll::Pending }
                })
                .await;
                self.0.submit(op).await
            })
        }
    }

    #[test]
    fn a_change_waits_for_what_is_carried_out_and_holds_back_what_comes() {
        rt::block_on(async {
            let slow = Arc::new(Slow(Plain::in_memory(4096).unwrap(), Mutex::default(), AtomicUsize::new(0)));
            let front = Front::new(slow.clone());
            let first = Box::pin(write(&front));
            let change = Box::pin(front.open(Arc::new(Plain::in_memory(4096).unwrap())));
            // Both are begun, neither ends.
            let both = Box::pin(join(first, change));
            let futures_util::future::Either::Right((_, both)) =
                select(both, Box::pin(rt::yield_now())).await
            else {
                panic!("a change that did not wait")
            };
            let second = Box::pin(write(&front));
            let futures_util::future::Either::Right((_, second)) =
                select(second, Box::pin(rt::yield_now())).await
            else {
                panic!("a write during a change")
            };
            slow.2.store(1, Ordering::SeqCst);
            slow.1.lock().unwrap().take().unwrap().wake();
            let ((first, ()), second) = join(both, second).await;
            first.unwrap();
            second.unwrap();
        })
        .unwrap();
    }

    #[test]
    fn what_is_closed_says_why() {
        rt::block_on(async {
            let front = Front::new(Arc::new(Plain::in_memory(4096).unwrap()));
            write(&front).await.unwrap();
            front.close("it is a copy").await;
            assert!(write(&front).await.unwrap_err().to_string().contains("it is a copy"));
            front.open(Arc::new(Plain::in_memory(4096).unwrap())).await;
            write(&front).await.unwrap();
        })
        .unwrap();
    }
}
