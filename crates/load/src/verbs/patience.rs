//! Waits with a limit for a peer, and reports them to the user.
//!
//! A counter of completions from the queue pair is checked from outside, so a wait costs nothing per completion. The
//! caller that gives up drops the connection.

use std::cell::Cell;
use std::pin::pin;
use std::rc::Rc;
use std::time::Duration;

use futures_util::future::{Either, select};
use weft_machine::rt;

/// How long a peer may take to reply when nothing else is under way: when setting up a connection, or in a round of a
/// ping.
pub const ANSWER_LIMIT: Duration = Duration::from_secs(10);
/// How long a connection under load may deliver nothing: a slow path has much to deliver before a reply.
pub const LOAD_LIMIT: Duration = Duration::from_secs(30);
/// A longer silence is reported.
const UNTOLD: Duration = Duration::from_secs(2);

/// The peer owed a reply, and nothing arrived.
#[derive(Debug, thiserror::Error)]
#[error("no answer in {} s", .0.as_secs())]
pub struct Silent(pub Duration);

/// Counts completions of a queue pair.
#[derive(Clone, Debug, Default)]
pub struct Heard(Rc<Cell<u64>>);

impl Heard {
    /// Notes a completion.
    pub(super) fn note(&self) {
        self.0.set(self.0.get().wrapping_add(1));
    }

    /// Runs `work`, which is dropped once nothing has arrived for `limit`. `whom` names the peer in messages.
    pub async fn within<T>(
        &self,
        limit: Duration,
        whom: &str,
        work: impl Future<Output = T>,
    ) -> Result<T, Silent> {
        match select(pin!(work), pin!(self.silence(limit, whom))).await {
            Either::Left((done, _)) => Ok(done),
            Either::Right(_) => Err(Silent(limit)),
        }
    }

    /// Returns when nothing has arrived for this long. It returns up to one step late, never early.
    async fn silence(&self, limit: Duration, whom: &str) {
        let step = UNTOLD.min(limit);
        let mut before = self.0.get();
        loop {
            rt::sleep(step).await;
            let now = self.0.get();
            if std::mem::replace(&mut before, now) != now {
                continue;
            }
            let left = limit.saturating_sub(step);
            tracing::warn!("waiting for {whom}, for {} s at most", left.as_secs());
            let until = rt::now() + left;
            while self.0.get() == before {
                let left = until.since(rt::now());
                if left.is_zero() {
                    return;
                }
                rt::sleep(left.min(step)).await;
            }
            before = self.0.get();
        }
    }
}

#[cfg(test)]
mod tests {
    use weft_machine::sim;

    use super::*;

    #[test]
    fn a_silent_peer_is_given_up_and_one_that_says_something_is_not() {
        sim::Sim::new(1).run(async {
            let (heard, begin) = (Heard::default(), rt::now());
            let late = heard.within(ANSWER_LIMIT, "the peer", std::future::pending::<()>()).await;
            assert_eq!(late.unwrap_err().to_string(), "no answer in 10 s");
            assert_eq!((rt::now() - begin).as_secs(), 10);
            let talks = async {
                for _ in 0..20 {
                    rt::sleep(Duration::from_secs(5)).await;
                    heard.note();
                }
            };
            assert!(heard.within(ANSWER_LIMIT, "the peer", talks).await.is_ok());
            // Earlier completions do not count forever.
            let falls_silent = async {
                rt::sleep(Duration::from_secs(5)).await;
                heard.note();
                std::future::pending::<()>().await;
            };
            let begin = rt::now();
            assert!(heard.within(ANSWER_LIMIT, "the peer", falls_silent).await.is_err());
            assert!((15..=17).contains(&(rt::now() - begin).as_secs()));
        });
    }
}
