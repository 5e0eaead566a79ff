//! The reactor of a core: tasks, timers, sleeping and busy polling, over compio (io_uring, epoll where the kernel
//! or a seccomp filter forbids io_uring).
//!
//! Owns: the loop of each core. Does not: migrate tasks between cores.

use std::cell::{Cell, RefCell};
use std::future::Future;
use std::io;
use std::marker::PhantomData;
use std::rc::Rc;
use std::task::{Context, Poll};
use std::time::Duration;

use compio_runtime::Runtime;

use crate::clock::Time;

/// A spawned task. Dropping it cancels the task; [`Task::detach`] lets it run on.
#[must_use = "dropping a task cancels it"]
pub struct Task<T>(compio_runtime::JoinHandle<T>);

impl<T> Task<T> {
    /// Lets the task run to its end by itself.
    pub fn detach(self) {
        self.0.detach();
    }
}

impl<T> Future for Task<T> {
    type Output = T;
    fn poll(mut self: std::pin::Pin<&mut Self>, cx: &mut std::task::Context<'_>) -> std::task::Poll<T> {
        match std::pin::Pin::new(&mut self.0).poll(cx) {
            std::task::Poll::Pending => std::task::Poll::Pending,
            std::task::Poll::Ready(Ok(value)) => std::task::Poll::Ready(value),
            std::task::Poll::Ready(Err(e)) => panic!("a task that was awaited failed: {e:?}"),
        }
    }
}

/// Something that can have news without the kernel knowing: a ring in shared memory.
///
/// A core asks its pollers once per turn of its loop and in each turn of its busy-poll phase. The news itself reaches
/// a task by its waker. A poller whose core sleeps must be reachable by a file descriptor (an eventfd awaited through
/// [`crate::net::Readable`] by some task): the order is `before_sleep`, sleep in the kernel, `after_sleep`.
pub trait Poller {
    /// Looks for news; true when it woke a task.
    fn poll(&self) -> bool;

    /// The core is about to sleep: tell the other side that from now on it must signal the descriptor, then look
    /// once more. False: there is news after all (and its task was woken), do not sleep. `after_sleep` follows in
    /// either case.
    fn before_sleep(&self) -> bool;

    /// The core is awake again: the other side need not signal any more.
    fn after_sleep(&self);
}

/// Keeps a poller registered on the core that registered it; dropping it ends that.
#[must_use = "dropping the guard removes the poller"]
pub struct PollerGuard {
    id: u64,
    // The list is per thread.
    _local: PhantomData<Rc<()>>,
}

type PollerList = Rc<Vec<(u64, Rc<dyn Poller>)>>;

thread_local! {
    // A turn iterates over a clone of the Rc, so a poller may register or remove pollers.
    static POLLERS: RefCell<PollerList> = RefCell::new(Rc::default());
    static NEXT_POLLER: Cell<u64> = const { Cell::new(0) };
}

/// Registers `poller` with the core of this thread.
pub fn register_poller(poller: Rc<dyn Poller>) -> PollerGuard {
    let id = NEXT_POLLER.get();
    NEXT_POLLER.set(id + 1);
    POLLERS.with_borrow_mut(|list| {
        let mut longer = Vec::clone(list);
        longer.push((id, poller));
        *list = Rc::new(longer);
    });
    PollerGuard { id, _local: PhantomData }
}

impl Drop for PollerGuard {
    fn drop(&mut self) {
        // During thread exit the list may be gone already: then there is nothing to remove.
        let _ = POLLERS.try_with(|list| {
            let shorter: Vec<_> = list.borrow().iter().filter(|(id, _)| *id != self.id).cloned().collect();
            *list.borrow_mut() = Rc::new(shorter);
        });
    }
}

/// Now: real monotonic time, or the simulation's.
pub fn now() -> Time {
    Time::monotonic()
}

/// Starts a task on this core.
pub fn spawn<F: Future + 'static>(future: F) -> Task<F::Output> {
    Task(compio_runtime::spawn(future))
}

/// Waits until `deadline`.
pub async fn sleep_until(deadline: Time) {
    let wait = deadline.since(now());
    compio_runtime::time::sleep(wait).await;
}

/// Waits for `duration`.
pub async fn sleep(duration: Duration) {
    sleep_until(now() + duration).await;
}

/// Runs a call that may block on a worker thread.
pub async fn blocking<T: Send + 'static>(call: impl FnOnce() -> T + Send + 'static) -> T {
    match compio_runtime::spawn_blocking(call).await {
        Ok(value) => value,
        Err(e) => panic!("a blocking call failed: {e:?}"),
    }
}

/// Runs `future` on a reactor of this thread until it ends.
pub fn block_on<F: Future>(future: F) -> io::Result<F::Output> {
    let runtime = Runtime::new()?;
    Ok(runtime.enter(|| {
        let waker = runtime.waker();
        let mut cx = Context::from_waker(&waker);
        let mut future = std::pin::pin!(future);
        loop {
            if let Poll::Ready(value) = future.as_mut().poll(&mut cx) {
                runtime.run();
                return value;
            }
            let more = runtime.run();
            let pollers = POLLERS.with_borrow(Rc::clone);
            let mut news = more;
            for (_, poller) in pollers.iter() {
                news |= poller.poll();
            }
            if news {
                runtime.poll_with(Some(Duration::ZERO));
                continue;
            }
            let mut asleep = true;
            for (_, poller) in pollers.iter() {
                asleep &= poller.before_sleep();
            }
            runtime.poll_with(if asleep { runtime.current_timeout() } else { Some(Duration::ZERO) });
            for (_, poller) in pollers.iter() {
                poller.after_sleep();
            }
        }
    }))
}
