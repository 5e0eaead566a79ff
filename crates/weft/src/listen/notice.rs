//! Tells a connection to close, from any core. The task that waits for the notice closes it.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

/// See the module.
#[derive(Default)]
pub(super) struct Notice(Mutex<State>);

#[derive(Default)]
struct State {
    given: bool,
    waits: Option<Waker>,
}

impl Notice {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn give(&self) {
        let mut state = self.lock();
        state.given = true;
        let waits = state.waits.take();
        drop(state);
        if let Some(waker) = waits {
            waker.wake();
        }
    }

    pub(super) fn is_given(&self) -> bool {
        self.lock().given
    }

    /// Completes when the notice is given. One task waits for it.
    pub(super) fn poll(&self, cx: &Context<'_>) -> Poll<()> {
        let mut state = self.lock();
        if state.given {
            return Poll::Ready(());
        }
        state.waits = Some(cx.waker().clone());
        Poll::Pending
    }
}
