//! Questions that wait for a thread or are being answered by one. Whoever asks the same meanwhile gets the same answer.
//!
//! A question belongs to those who ask it until it has a thread: if all of them leave before, it leaves the queue. So the
//! queue is not longer than the number of tasks that wait. A thread runs to its end.

use std::collections::HashMap;
use std::future::poll_fn;
use std::hash::Hash;
use std::io;
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use crate::rt::{self, Purpose};

/// What a directory service says.
type Answer<V> = Result<Option<Arc<V>>, Arc<io::Error>>;

/// The questions that are not answered yet.
type Open<K, V> = Arc<Mutex<HashMap<K, Arc<Question<V>>>>>;

/// See the module.
pub(super) struct Questions<K, V> {
    open: Open<K, V>,
    purpose: Purpose,
}

/// One question, and who waits for its answer.
struct Question<V>(Mutex<Waiting<V>>);

struct Waiting<V> {
    answer: Option<Answer<V>>,
    wakers: Vec<Waker>,
    /// The tasks that wait. A question that nobody waits for and that has no thread is no longer open.
    askers: usize,
    has_thread: bool,
    /// The task that waits for a thread.
    queued: Option<Waker>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Nothing inside the locks can panic half-way.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl<V> Question<V> {
    fn new() -> Question<V> {
        let (answer, wakers, queued) = Default::default();
        Question(Mutex::new(Waiting { answer, wakers, askers: 0, has_thread: false, queued }))
    }

    fn poll_answer(&self, cx: &Context<'_>) -> Poll<Answer<V>> {
        let mut waiting = lock(&self.0);
        if let Some(answer) = &waiting.answer {
            return Poll::Ready(answer.clone());
        }
        // One waker for each poll; few polls happen before the answer or the time-out.
        if !waiting.wakers.iter().any(|waker| waker.will_wake(cx.waker())) {
            waiting.wakers.push(cx.waker().clone());
        }
        Poll::Pending
    }

    /// Ready when nobody asks any more.
    fn poll_abandoned(&self, cx: &Context<'_>) -> Poll<()> {
        let mut waiting = lock(&self.0);
        if waiting.askers == 0 {
            return Poll::Ready(());
        }
        waiting.queued = Some(cx.waker().clone());
        Poll::Pending
    }

    /// Whether somebody still asks; then the question has its thread now.
    fn start(&self) -> bool {
        let mut waiting = lock(&self.0);
        waiting.has_thread = waiting.askers > 0;
        waiting.has_thread
    }
}

impl<K, V> Questions<K, V>
where
    K: Clone + Eq + Hash + Send + Sync + 'static,
    V: Send + Sync + 'static,
{
    /// No questions; those to come use the places of this purpose.
    pub(super) fn new(purpose: Purpose) -> Questions<K, V> {
        Questions { open: Arc::default(), purpose }
    }

    /// The answer of `call`, which may block, or of an equal question that is not answered yet. Once it has a thread, the
    /// call runs to its end even if nobody waits any more.
    pub(super) async fn ask(&self, key: K, call: impl FnOnce(&K) -> Answer<V> + Send + 'static) -> Answer<V> {
        let (asker, is_new) = Asker::of(&self.open, key);
        if is_new {
            let asked =
                Asked { open: asker.open.clone(), key: asker.key.clone(), question: asker.question.clone() };
            // A task of its own: the others must not depend on the patience of the first.
            rt::spawn(queue(self.purpose, asked, call)).detach();
        }
        poll_fn(|cx| asker.question.poll_answer(cx)).await
    }
}

/// Waits for a place, then starts the thread, unless everybody has left meanwhile.
async fn queue<K, V>(
    purpose: Purpose,
    mut asked: Asked<K, V>,
    call: impl FnOnce(&K) -> Answer<V> + Send + 'static,
) where
    K: Eq + Hash + Send + Sync + 'static,
    V: Send + Sync + 'static,
{
    let place = {
        let mut place = pin!(rt::asking_place(purpose));
        poll_fn(|cx| match asked.question.poll_abandoned(cx) {
            Poll::Ready(()) => Poll::Ready(None),
            Poll::Pending => place.as_mut().poll(cx).map(Some),
        })
        .await
    };
    let Some(place) = place.filter(|_| asked.question.start()) else { return };
    if let Err(e) = place.start(move || asked.run(call)) {
        tracing::warn!("cannot look up a name of the system: {e}");
    }
}

/// A task that waits for an answer. Dropping it ends the wait.
struct Asker<K: Eq + Hash, V> {
    open: Open<K, V>,
    key: K,
    question: Arc<Question<V>>,
}

impl<K: Clone + Eq + Hash, V> Asker<K, V> {
    /// One of those who ask this, and whether it is the first.
    fn of(open: &Open<K, V>, key: K) -> (Asker<K, V>, bool) {
        let mut known = lock(open);
        let question = known.entry(key.clone()).or_insert_with(|| Arc::new(Question::new())).clone();
        let is_new = {
            let mut waiting = lock(&question.0);
            waiting.askers = waiting.askers.saturating_add(1);
            waiting.askers == 1 && !waiting.has_thread
        };
        (Asker { open: open.clone(), key, question }, is_new)
    }
}

impl<K: Eq + Hash, V> Drop for Asker<K, V> {
    fn drop(&mut self) {
        let queued = {
            // Both locks: nobody finds the question between the two changes.
            let mut open = lock(&self.open);
            let mut waiting = lock(&self.question.0);
            waiting.askers = waiting.askers.saturating_sub(1);
            if waiting.askers > 0 || waiting.has_thread {
                return;
            }
            close(&mut open, &self.key, &self.question);
            waiting.queued.take()
        };
        if let Some(waker) = queued {
            waker.wake();
        }
    }
}

/// Removes a question. An abandoned one may have been asked anew.
fn close<K: Eq + Hash, V>(open: &mut HashMap<K, Arc<Question<V>>>, key: &K, question: &Arc<Question<V>>) {
    if open.get(key).is_some_and(|known| Arc::ptr_eq(known, question)) {
        open.remove(key);
    }
}

/// A question in the queue or with a thread. Dropping it ends the question, also if nobody has answered.
struct Asked<K: Eq + Hash, V> {
    open: Open<K, V>,
    key: K,
    question: Arc<Question<V>>,
}

impl<K: Eq + Hash, V> Asked<K, V> {
    fn run(&mut self, call: impl FnOnce(&K) -> Answer<V>) {
        let answer = call(&self.key);
        lock(&self.question.0).answer = Some(answer);
    }
}

impl<K: Eq + Hash, V> Drop for Asked<K, V> {
    fn drop(&mut self) {
        close(&mut lock(&self.open), &self.key, &self.question);
        let wakers = {
            let mut waiting = lock(&self.question.0);
            let unanswered = || Err(Arc::new(io::Error::other("the lookup was given up")));
            waiting.answer.get_or_insert_with(unanswered);
            std::mem::take(&mut waiting.wakers)
        };
        wakers.into_iter().for_each(Waker::wake);
    }
}
