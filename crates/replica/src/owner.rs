//! The one place where the state in memory of a side or a group changes: an event is applied, and what follows from it is
//! derived from what has changed.
//!
//! [`Owner::read`] gives a view that cannot change anything, so each change goes through [`Owner::handle`]. That applies
//! one event under the lock, has the core name those whose wait is over ([`Owned::settle`]), and checks the invariants.
//! An event therefore names nobody to be woken, and forgets nobody. Waits for a sequence are kept in the core; a
//! condition that few tasks wait for is checked whenever the outline changes ([`Owner::until`]).
//!
//! Debug builds check the invariants after each event. If one is broken, the panic leaves the lock first: what the event
//! returns may be a guard, whose drop is another event. Then every wait ends, and whoever looks at the core from then on
//! panics with the words of the first panic. A task that panics alone would leave the others waiting for it forever.

#[cfg(debug_assertions)]
use std::any::Any;
use std::fmt;
use std::ops::Deref;
#[cfg(debug_assertions)]
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::task::Waker;

use crate::signal::Signal;

/// The state in memory of a side or a group.
pub(crate) trait Owned {
    /// Everything that something waits for by no number: few tasks, for what changes rarely. It is kept from event to
    /// event, because most events leave it as it is.
    type Outline: PartialEq + fmt::Debug;
    /// What the owner of the core has to know about a change of the outline.
    type News;

    /// The outline at this moment.
    fn outline(&self) -> Self::Outline;

    /// Brings the outline up to date. `None`: it has not changed.
    fn renew(&self, outline: &mut Self::Outline) -> Option<Self::News>;

    /// Whom to wake after an event. `is_news`: it has changed the outline.
    fn settle(&mut self, is_news: bool) -> Wakes;

    /// Ends every wait that the core keeps, because an invariant is broken.
    #[cfg(debug_assertions)]
    fn everyone(&mut self) -> Wakes;

    /// Asserts what holds after each event.
    #[cfg(debug_assertions)]
    fn check(&self);
}

/// Owns the core of a side or a group.
#[derive(Debug)]
pub(crate) struct Owner<C: Owned> {
    state: Mutex<Outlined<C>>,
    /// The outline has changed.
    changed: Signal,
    /// The words of the panic of an event, or of the check after it; never set in release builds.
    broken: OnceLock<String>,
}

/// A core and its outline after the last event.
#[derive(Debug)]
struct Outlined<C: Owned> {
    core: C,
    outline: C::Outline,
}

/// The core at one moment, to look at. Nothing changes as long as it lives, so it does not live across a wait.
pub(crate) struct View<'a, C: Owned>(MutexGuard<'a, Outlined<C>>);

impl<C: Owned> Deref for View<'_, C> {
    type Target = C;

    fn deref(&self) -> &C {
        &self.0.core
    }
}

/// What follows from an event: see [`Owner::tell`].
#[derive(Debug)]
#[must_use]
pub(crate) struct Effects<N> {
    /// Tasks that go on.
    wakes: Wakes,
    /// How the event has changed the outline, if it has.
    pub news: Option<N>,
}

impl<C: Owned> Owner<C> {
    pub fn new(core: C) -> Owner<C> {
        let outline = core.outline();
        let state = Mutex::new(Outlined { core, outline });
        Owner { state, changed: Signal::default(), broken: OnceLock::new() }
    }

    fn lock(&self) -> MutexGuard<'_, Outlined<C>> {
        #[cfg(test)]
        crate::tests::locked();
        // A panic of somebody who only looks at the core leaves no half of a change.
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if cfg!(debug_assertions)
            && let Some(why) = self.broken.get()
            && !std::thread::panicking()
        {
            drop(state);
            panic!("the state in memory is broken: {why}");
        }
        state
    }

    /// A view of the core.
    ///
    /// # Panics
    /// In debug builds, after an invariant was broken.
    pub fn read(&self) -> View<'_, C> {
        View(self.lock())
    }

    /// Whether an invariant was broken. Only debug builds find out. What is dropped then applies no event: a panic of a
    /// drop may end the process.
    pub fn is_broken(&self) -> bool {
        self.broken.get().is_some()
    }

    /// Applies one event, and wakes those whom it concerns. The event neither waits nor calls back, and the caller must
    /// not hold a view.
    ///
    /// # Panics
    /// In debug builds, if the event breaks an invariant, or an earlier one did.
    pub fn handle<R>(&self, event: impl FnOnce(&mut C) -> R) -> R {
        let (result, effects) = self.apply(event);
        self.tell(effects);
        result
    }

    /// Applies one event, as [`Owner::handle`] does, and leaves the rest to [`Owner::tell`].
    pub fn apply<R>(&self, event: impl FnOnce(&mut C) -> R) -> (R, Effects<C::News>) {
        self.step(self.lock(), event)
    }

    #[cfg(not(debug_assertions))]
    fn step<R>(
        &self,
        mut state: MutexGuard<'_, Outlined<C>>,
        event: impl FnOnce(&mut C) -> R,
    ) -> (R, Effects<C::News>) {
        step(&mut state, event)
    }

    /// The same, and checks the invariants.
    #[cfg(debug_assertions)]
    fn step<R>(
        &self,
        mut state: MutexGuard<'_, Outlined<C>>,
        event: impl FnOnce(&mut C) -> R,
    ) -> (R, Effects<C::News>) {
        let mut result = None;
        let applied = catch_unwind(AssertUnwindSafe(|| {
            let (returned, effects) = step(&mut state, event);
            result = Some(returned);
            // While something else unwinds, a second panic would only hide the first one.
            if !std::thread::panicking() {
                state.core.check();
                assert_eq!(state.outline, state.core.outline(), "the outline is out of date");
            }
            effects
        }));
        match (applied, result) {
            (Ok(effects), Some(result)) => (result, effects),
            (Ok(_), None) => unreachable!("an event that was applied has a result"),
            (Err(panic), result) => self.fail(state, result, panic),
        }
    }

    /// Ends every wait, and passes the panic on.
    #[cfg(debug_assertions)]
    fn fail<R>(&self, mut state: MutexGuard<'_, Outlined<C>>, result: R, panic: Box<dyn Any + Send>) -> ! {
        let why = panic.downcast_ref::<String>().map(String::as_str);
        let why = why.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("an event panicked");
        self.broken.get_or_init(|| why.to_owned());
        let wakes = state.core.everyone();
        drop(state);
        drop(result);
        wakes.wake();
        self.changed.notify();
        resume_unwind(panic)
    }

    /// Wakes those whom an event concerns. The caller does not hold a view.
    pub fn tell(&self, effects: Effects<C::News>) {
        effects.wakes.wake();
        if effects.news.is_some() {
            self.changed.notify();
        }
    }

    /// Waits until `look` has an answer, which depends on the outline. It looks at once, and whenever that has changed.
    pub async fn until<T>(&self, look: impl FnMut() -> Option<T>) -> T {
        self.changed.until(look).await
    }
}

fn step<C: Owned, R>(
    Outlined { core, outline }: &mut Outlined<C>,
    event: impl FnOnce(&mut C) -> R,
) -> (R, Effects<C::News>) {
    let result = event(core);
    let news = core.renew(outline);
    let wakes = core.settle(news.is_some());
    (result, Effects { wakes, news })
}

/// Puts the new outline in place of the old one. `None`: they are equal.
pub(crate) fn replace<O: PartialEq>(outline: &mut O, new: O) -> Option<()> {
    let is_news = *outline != new;
    *outline = new;
    is_news.then_some(())
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
        if let Some(first) = self.first {
            first.wake();
            self.others.into_iter().for_each(Waker::wake);
        }
    }
}
