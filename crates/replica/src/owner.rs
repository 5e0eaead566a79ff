//! The one place where the state in memory of a side changes: an event is applied, and what follows from it is derived
//! from what has changed.
//!
//! [`Owner::read`] gives a view that cannot change anything, so each change goes through [`Owner::handle`]. That applies
//! one event under the lock, has the core name those whose wait is over ([`Owned::settle`]), and checks the invariants.
//! Whoever writes an event names nobody to be woken, and so forgets nobody.

use std::ops::Deref;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::Waker;

/// The state in memory of a side.
pub(crate) trait Owned {
    /// Everything that something waits for by no number: few tasks, for what changes rarely.
    type Outline: PartialEq;

    /// The outline at this moment.
    fn outline(&self) -> Self::Outline;

    /// Whom to wake after an event. `is_news`: it has changed the outline.
    fn settle(&mut self, is_news: bool) -> Wakes;

    /// What has to be so after each event.
    #[cfg(debug_assertions)]
    fn check(&self);
}

/// Owns the core of a side.
#[derive(Debug)]
pub(crate) struct Owner<C>(Mutex<C>);

/// The core at one moment, to look at. Nothing changes as long as it lives, so it does not live across a wait.
pub(crate) struct View<'a, C>(MutexGuard<'a, C>);

impl<C> Deref for View<'_, C> {
    type Target = C;

    fn deref(&self) -> &C {
        &self.0
    }
}

/// What follows from an event.
#[derive(Debug)]
#[must_use]
pub(crate) struct Effects<O> {
    /// Tasks that go on.
    pub wakes: Wakes,
    /// The outline before the event,
    pub before: O,
    /// and after it.
    pub after: O,
}

impl<C: Owned> Owner<C> {
    pub fn new(core: C) -> Owner<C> {
        Owner(Mutex::new(core))
    }

    fn lock(&self) -> MutexGuard<'_, C> {
        #[cfg(test)]
        crate::tests::locked();
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn read(&self) -> View<'_, C> {
        View(self.lock())
    }

    /// Applies one event. It neither waits nor calls back.
    pub fn handle<R>(&self, event: impl FnOnce(&mut C) -> R) -> (R, Effects<C::Outline>) {
        let mut core = self.lock();
        let before = core.outline();
        let result = event(&mut core);
        let after = core.outline();
        let wakes = core.settle(before != after);
        #[cfg(debug_assertions)]
        core.check();
        (result, Effects { wakes, before, after })
    }
}

/// Tasks to wake once the core's lock is released, in this order. One is the usual case, and needs no memory.
#[derive(Debug, Default)]
#[must_use]
pub(crate) struct Wakes {
    first: Option<Waker>,
    others: Vec<Waker>,
}

impl Wakes {
    pub fn push(&mut self, waker: Waker) {
        match self.first {
            None => self.first = Some(waker),
            Some(_) => self.others.push(waker),
        }
    }

    pub fn extend(&mut self, wakers: impl IntoIterator<Item = Waker>) {
        wakers.into_iter().for_each(|waker| self.push(waker));
    }

    /// Wakes them. The caller does not hold the core's lock.
    pub fn wake(self) {
        self.first.into_iter().chain(self.others).for_each(Waker::wake);
    }
}
