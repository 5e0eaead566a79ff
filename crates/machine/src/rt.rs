//! The reactor of a core: tasks, timers, sleeping and busy polling, over compio (io_uring, epoll where the kernel
//! or a seccomp filter forbids io_uring).
//!
//! Owns: the loop of each core. Does not: migrate tasks between cores.

use std::cell::RefCell;
use std::future::Future;
use std::io;
use std::rc::Rc;
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

/// Something that can have news without the kernel knowing: a ring in shared memory. Returns true when it woke a task.
pub type Poller = Rc<dyn Fn() -> bool>;

thread_local! {
    static POLLERS: RefCell<Vec<Poller>> = const { RefCell::new(Vec::new()) };
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
    Ok(runtime.block_on(future))
}
