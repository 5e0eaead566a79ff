//! Questions that are being answered by a thread. Whoever asks the same meanwhile gets the same answer.

use std::collections::HashMap;
use std::hash::Hash;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Poll, Waker};

use crate::rt;

/// What a directory service says.
type Answer<V> = Result<Option<Arc<V>>, Arc<io::Error>>;

/// See the module.
pub(super) struct Questions<K, V>(Arc<Mutex<HashMap<K, Arc<Question<V>>>>>);

/// One question, and who waits for its answer.
struct Question<V>(Mutex<Waiting<V>>);

struct Waiting<V> {
    answer: Option<Answer<V>>,
    wakers: Vec<Waker>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Nothing inside the locks can panic half-way.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl<K, V> Default for Questions<K, V> {
    fn default() -> Questions<K, V> {
        Questions(Arc::default())
    }
}

impl<K, V> Questions<K, V>
where
    K: Clone + Eq + Hash + Send + Sync + 'static,
    V: Send + Sync + 'static,
{
    /// The answer of `call`, which may block, or of an equal question that is not answered yet. The call runs to its end
    /// even if nobody waits any more.
    pub(super) async fn ask(
        &self,
        key: K,
        call: impl FnOnce(&K) -> io::Result<Option<V>> + Send + 'static,
    ) -> Answer<V> {
        let question = {
            let mut open = lock(&self.0);
            match open.get(&key) {
                Some(question) => question.clone(),
                None => {
                    let question =
                        Arc::new(Question(Mutex::new(Waiting { answer: None, wakers: Vec::new() })));
                    open.insert(key.clone(), question.clone());
                    let mut asked = Asked { open: self.0.clone(), key, question: question.clone() };
                    // A task of its own: the others must not depend on the patience of the first.
                    let asking = rt::asking(move || asked.run(call));
                    rt::spawn(async move {
                        if let Err(e) = asking.await {
                            tracing::warn!("cannot look up a name of the system: {e}");
                        }
                    })
                    .detach();
                    question
                }
            }
        };
        std::future::poll_fn(|cx| {
            let mut waiting = lock(&question.0);
            match &waiting.answer {
                Some(answer) => Poll::Ready(answer.clone()),
                None => {
                    // One waker for each poll; few polls happen before the answer or the time-out.
                    if !waiting.wakers.iter().any(|waker| waker.will_wake(cx.waker())) {
                        waiting.wakers.push(cx.waker().clone());
                    }
                    Poll::Pending
                }
            }
        })
        .await
    }
}

/// A question with a thread. Dropping it ends the question, also if nobody has answered.
struct Asked<K: Eq + Hash, V> {
    open: Arc<Mutex<HashMap<K, Arc<Question<V>>>>>,
    key: K,
    question: Arc<Question<V>>,
}

impl<K: Eq + Hash, V> Asked<K, V> {
    fn run(&mut self, call: impl FnOnce(&K) -> io::Result<Option<V>>) {
        let answer = call(&self.key);
        lock(&self.question.0).answer = Some(answer.map(|found| found.map(Arc::new)).map_err(Arc::new));
    }
}

impl<K: Eq + Hash, V> Drop for Asked<K, V> {
    fn drop(&mut self) {
        lock(&self.open).remove(&self.key);
        let wakers = {
            let mut waiting = lock(&self.question.0);
            let unanswered = || Err(Arc::new(io::Error::other("the lookup was given up")));
            waiting.answer.get_or_insert_with(unanswered);
            std::mem::take(&mut waiting.wakers)
        };
        wakers.into_iter().for_each(Waker::wake);
    }
}
