//! The block that the users of a volume see: requests go to the volume itself, to a source, or nowhere
//! (docs/replication.md, "Fronts").
//!
//! A front starts closed. Servers serve the front, so nobody reaches the volume before it is known to be in no group,
//! or its group has put a source behind the front. Requests to a front that is about to open wait, at most
//! [`WAITS_AT_MOST`]; a closed front refuses them with a reason.
//!
//! A request counts as a user of the block behind the front until it is carried out. A change takes the block away,
//! waits until it has no users, and puts the next one there; requests meanwhile wait. So no write reaches the bare
//! volume after a source has begun to copy it, or the other way round. A request costs an atomic counter and a read
//! lock, which only a change takes for writing.

use std::fmt;
use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::Duration;

use futures_util::future::LocalBoxFuture;
use weft_machine::recorder::{self, Hop};
use weft_machine::rt;
use weft_store::Error;
use weft_store::block::{Block, BlockOp, Geometry, Outcome};

use crate::signal::Signal;

/// How long a request waits for a front to open: less than the minute after which SMB clients abandon a request.
pub const WAITS_AT_MOST: Duration = Duration::from_secs(45);

/// A volume as its users see it.
pub struct Front {
    /// The geometry of the block that was behind it last: a group may use less of a volume than there is, and it may
    /// grow.
    geometry: Mutex<Geometry>,
    behind: RwLock<Behind>,
    active: AtomicUsize,
    /// The last user has left.
    idle: Signal,
    /// The block behind it was changed.
    changed: Signal,
}

#[derive(Clone)]
enum Behind {
    Block(Arc<dyn Block>),
    /// Requests wait; the text says for what.
    Nothing(Arc<str>),
    /// Requests are refused; the text says why.
    Closed(Arc<str>),
}

impl fmt::Debug for Front {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Front").field("geometry", &self.geometry()).finish_non_exhaustive()
    }
}

fn refused(kind: io::ErrorKind, why: &str) -> Error {
    Error::Io(io::Error::new(kind, why.to_owned()))
}

impl Front {
    /// A front for a volume of this geometry, with nothing behind it.
    pub fn new(geometry: Geometry) -> Arc<Front> {
        let behind = RwLock::new(Behind::Nothing("the server is starting".into()));
        Arc::new(Front {
            geometry: Mutex::new(geometry),
            behind,
            active: AtomicUsize::new(0),
            idle: Signal::default(),
            changed: Signal::default(),
        })
    }

    /// Puts this block behind the front: it carries out all requests from now on.
    pub async fn open(&self, block: Arc<dyn Block>) {
        self.change(Behind::Block(block)).await;
    }

    /// Puts this block behind the front if requests wait, and does not wait for earlier requests: they were for this
    /// block, or there were none.
    pub fn begin(&self, block: Arc<dyn Block>) {
        self.end_wait(Behind::Block(block));
    }

    /// Refuses the requests that wait, and all later ones, for this reason; does nothing if none wait.
    pub(crate) fn refuse(&self, why: &str) {
        self.end_wait(Behind::Closed(why.into()));
    }

    fn end_wait(&self, next: Behind) {
        let mut behind = self.behind.write().unwrap_or_else(PoisonError::into_inner);
        if matches!(*behind, Behind::Nothing(_)) {
            *behind = next;
        }
        drop(behind);
        self.changed.notify();
    }

    /// Refuses all requests from now on, for this reason.
    pub async fn close(&self, why: &str) {
        self.change(Behind::Closed(why.into())).await;
    }

    /// Changes the reason of a closed front; any other front stays as it is.
    pub(crate) fn reword(&self, why: &str) {
        let mut behind = self.behind.write().unwrap_or_else(PoisonError::into_inner);
        if matches!(*behind, Behind::Closed(_)) {
            *behind = Behind::Closed(why.into());
        }
    }

    /// Lets new requests wait, with this text, and waits for those that are being carried out.
    pub async fn hold(&self, what_for: &str) {
        *self.behind.write().unwrap_or_else(PoisonError::into_inner) = Behind::Nothing(what_for.into());
        self.idle.until(|| (self.active.load(Ordering::SeqCst) == 0).then_some(())).await;
    }

    async fn change(&self, next: Behind) {
        self.hold("what carries it out is being changed").await;
        *self.behind.write().unwrap_or_else(PoisonError::into_inner) = next;
        self.changed.notify();
    }

    /// Sets the size while no block is behind it.
    pub(crate) fn resize(&self, size: u64) {
        self.geometry.lock().unwrap_or_else(PoisonError::into_inner).size = size;
    }

    /// The block behind the front, with this request counted as a user; `None` while there is none.
    fn enter(&self) -> Option<Result<Entered<'_>, Error>> {
        // Count first: if a change sees no users, every later request sees the change.
        self.active.fetch_add(1, Ordering::SeqCst);
        let guard = Guard(self);
        match self.behind.read().unwrap_or_else(PoisonError::into_inner).clone() {
            Behind::Block(block) => Some(Ok(Entered { block, _guard: guard })),
            Behind::Nothing(_) => None,
            Behind::Closed(why) => Some(Err(refused(io::ErrorKind::Other, &why))),
        }
    }

    /// Does the same, but waits while there is none.
    async fn entered(&self) -> Result<Entered<'_>, Error> {
        if let Some(entered) = self.enter() {
            return entered;
        }
        let opened = rt::timeout(WAITS_AT_MOST, self.changed.until(|| self.enter()));
        match recorder::at(Hop::Replica, opened).await {
            Ok(entered) => entered,
            Err(_) => {
                self.readable()?;
                Err(refused(io::ErrorKind::TimedOut, "the volume was not opened in time"))
            }
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
            && matches!(*self.0.behind.read().unwrap_or_else(PoisonError::into_inner), Behind::Nothing(_))
        {
            self.0.idle.notify();
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

    fn readable(&self) -> Result<(), Error> {
        match &*self.behind.read().unwrap_or_else(PoisonError::into_inner) {
            Behind::Block(_) => Ok(()),
            Behind::Nothing(why) => Err(refused(io::ErrorKind::TimedOut, why)),
            Behind::Closed(why) => Err(refused(io::ErrorKind::Other, why)),
        }
    }

    fn until_readable(&self) -> LocalBoxFuture<'_, Result<(), Error>> {
        Box::pin(async { self.entered().await.map(drop) })
    }

    fn submit(&self, op: BlockOp) -> LocalBoxFuture<'_, Result<Outcome, Error>> {
        rt::boxed(move || async move {
            let entered = match self.enter() {
                Some(entered) => entered?,
                None => self.entered().await?,
            };
            entered.block.submit(op).await
        })
    }
}

#[cfg(test)]
mod tests {
    use std::task::{Poll, Waker};

    use bytes::Bytes;
    use futures_util::future::{join, select};
    use weft_machine::sim::Sim;
    use weft_store::volume::plain::Plain;

    use super::*;

    const GEOMETRY: Geometry =
        Geometry { size: 4096, medium: weft_store::block::Medium::Ram, preferred: 512 };

    fn write(front: &Arc<Front>) -> impl Future<Output = Result<Outcome, Error>> + use<> {
        let front = front.clone();
        let data = vec![Bytes::from_static(b"warp")];
        async move { front.submit(BlockOp::Write { offset: 0, data, durable: false }).await }
    }

    /// A block that carries out a request when it is told to.
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
            let front = Front::new(slow.geometry());
            front.begin(slow.clone());
            let first = Box::pin(write(&front));
            let change = Box::pin(front.open(Arc::new(Plain::in_memory(4096).unwrap())));
            // Both have begun, and neither ends.
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
            let front = Front::new(GEOMETRY);
            front.begin(Arc::new(Plain::in_memory(4096).unwrap()));
            write(&front).await.unwrap();
            assert!(front.readable().is_ok());
            front.close("it is a copy").await;
            assert!(write(&front).await.unwrap_err().to_string().contains("it is a copy"));
            assert!(front.readable().is_err(), "a share reads past it");
            // `begin` acts only on a front that was never opened or closed.
            front.begin(Arc::new(Plain::in_memory(4096).unwrap()));
            assert!(write(&front).await.is_err());
            front.open(Arc::new(Plain::in_memory(4096).unwrap())).await;
            write(&front).await.unwrap();
        })
        .unwrap();
    }

    #[test]
    fn who_comes_before_anything_is_decided_waits_and_not_for_ever() {
        Sim::new(3).run(async {
            let front = Front::new(GEOMETRY);
            let began = rt::now();
            let error = write(&front).await.unwrap_err().to_string();
            assert!(error.contains("starting"), "{error}");
            assert_eq!(rt::now().since(began), WAITS_AT_MOST);
            let waits = write(&front);
            let opens = async {
                rt::sleep(Duration::from_secs(1)).await;
                front.open(Arc::new(Plain::in_memory(4096).unwrap())).await;
            };
            join(waits, opens).await.0.unwrap();
        });
    }
}
