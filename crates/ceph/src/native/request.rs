//! One asynchronous request: librbd has its memory until the completion's callback.
//!
//! The callback runs on a thread of librbd, records the result and wakes the task. It neither allocates nor calls librbd
//! except to release the completion. A future that is dropped before leaves the memory to the callback.

use std::cell::UnsafeCell;
use std::ffi::{c_int, c_void};
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::ptr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use super::failure;
use super::library::{Completion, Library};

/// A request that librbd carries out: its result, which is a number of bytes for reads, and what it has held.
pub(crate) struct Request<T>(State<T>);

enum State<T> {
    Pending(Arc<Shared<T>>),
    Failed(Option<io::Error>),
}

struct Shared<T> {
    outcome: Mutex<Outcome>,
    /// Belongs to librbd until `outcome` has a result, and then to the future.
    held: UnsafeCell<Option<T>>,
    library: &'static Library,
}

// SAFETY: `held` is used by one side at a time: by `submit` before the request begins, by librbd until the result is recorded
// under the lock, and by the future after it has seen the result under the same lock.
unsafe impl<T: Send> Sync for Shared<T> {}
// SAFETY: as above; the last side to drop it drops what it holds.
unsafe impl<T: Send> Send for Shared<T> {}

#[derive(Default)]
struct Outcome {
    result: Option<isize>,
    waker: Option<Waker>,
}

impl<T> Shared<T> {
    fn outcome(&self) -> MutexGuard<'_, Outcome> {
        self.outcome.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<T: Send + 'static> Request<T> {
    /// A request that was not made.
    pub(crate) fn failed(e: io::Error) -> Request<T> {
        Request(State::Failed(Some(e)))
    }

    /// Makes a completion and passes it to `call`, which submits a request that uses `held` alone. If `call` returns a
    /// negative number, librbd has not taken the request.
    pub(super) fn submit(
        library: &'static Library,
        held: T,
        call: impl FnOnce(&mut T, Completion) -> c_int,
    ) -> Request<T> {
        let shared =
            Arc::new(Shared { outcome: Mutex::default(), held: UnsafeCell::new(Some(held)), library });
        let theirs = Arc::into_raw(shared.clone());
        let mut completion = ptr::null_mut();
        // SAFETY: `completion` is written during the call; the callback has the type of the argument.
        let made = unsafe {
            (library.rbd_aio_create_completion)(
                theirs.cast_mut().cast::<c_void>(),
                completed::<T>,
                &mut completion,
            )
        };
        let submitted = match made {
            // SAFETY: the request has not begun, so nobody else uses what it holds; `shared` keeps it in its place.
            0 => match unsafe { &mut *shared.held.get() } {
                Some(held) => call(held, completion),
                None => 0,
            },
            failed => failed,
        };
        if submitted >= 0 {
            return Request(State::Pending(shared));
        }
        if made == 0 {
            // SAFETY: librbd has not taken it, so its callback is not called.
            unsafe { (library.rbd_aio_release)(completion) };
        }
        // SAFETY: made by `into_raw` above, and the callback that would take it back is not called.
        drop(unsafe { Arc::from_raw(theirs) });
        Request::failed(failure(submitted))
    }
}

/// Called once by librbd when a request has ended.
///
/// # Safety
/// `argument` is what `Arc::<Shared<T>>::into_raw` returned, and the completion is that of its request.
unsafe extern "C" fn completed<T>(completion: Completion, argument: *mut c_void) {
    // SAFETY: as promised; each request is completed once.
    let shared = unsafe { Arc::from_raw(argument.cast_const().cast::<Shared<T>>()) };
    // SAFETY: the completion has completed.
    let result = unsafe { (shared.library.rbd_aio_get_return_value)(completion) };
    // SAFETY: used for the last time.
    unsafe { (shared.library.rbd_aio_release)(completion) };
    let waker = {
        let mut outcome = shared.outcome();
        outcome.result = Some(result);
        outcome.waker.take()
    };
    if let Some(waker) = waker {
        waker.wake();
    }
}

impl<T> Future for Request<T> {
    type Output = io::Result<(usize, T)>;

    /// # Panics
    /// If it is polled again after it was ready.
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let shared = match &mut self.0 {
            State::Failed(e) => return Poll::Ready(Err(e.take().expect("polled once"))),
            State::Pending(shared) => shared,
        };
        let result = {
            let mut outcome = shared.outcome();
            match outcome.result {
                Some(result) => result,
                None => {
                    match &mut outcome.waker {
                        Some(waker) => waker.clone_from(cx.waker()),
                        none => *none = Some(cx.waker().clone()),
                    }
                    return Poll::Pending;
                }
            }
        };
        // SAFETY: the request has ended, so librbd does not use it any more, and the callback does not look at it.
        let held = unsafe { (*shared.held.get()).take() };
        let held = held.expect("polled once");
        Poll::Ready(usize::try_from(result).map(|bytes| (bytes, held)).map_err(|_| failure(result as i64)))
    }
}

// Nothing in it is pinned.
impl<T> Unpin for Request<T> {}
