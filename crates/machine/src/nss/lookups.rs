//! Lookups for tasks of a core: on a thread of their own, with a time-out, and with a cache of names and ids.
//!
//! An account with its groups is looked up each time, because a user gets the groups that he has when he logs on. Names and
//! ids of users and groups are kept: answers for a minute, "not found" for ten seconds, and a failure for two, so that a
//! service that hangs is not asked again by everybody. A failure is never "not found". A name that many ask for is looked
//! up once at a time, so one that hangs occupies one thread.
//!
//! Translations, which clients cause at will, neither share threads with decisions ([`Lookups::account`],
//! [`Lookups::entry`]) nor make them pause.

use std::collections::HashMap;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::questions::Questions;
use super::{Account, Entry};
use crate::Time;
use crate::rt::{self, Purpose};

/// Kept names and ids.
const MAX_KEPT: usize = 4096;
/// How long an entry is kept.
const FOUND: Duration = Duration::from_secs(60);
/// How long it is kept that there is no such entry.
const NOT_FOUND: Duration = Duration::from_secs(10);
/// How long nobody asks again after a failure.
const FAILED: Duration = Duration::from_secs(2);
/// How long an answer may take.
const TIMEOUT: Duration = Duration::from_secs(10);

/// A question for a name or an id.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Query {
    /// The user with this name.
    User(String),
    /// The user with this id.
    Uid(u32),
    /// The group with this name.
    Group(String),
    /// The group with this id.
    Gid(u32),
}

/// What answers. The calls may block.
pub trait Source: Send + Sync + 'static {
    /// The account with this name, and its groups.
    ///
    /// # Errors
    /// A service failed.
    fn account(&self, name: &str) -> io::Result<Option<Account>>;

    /// A name or an id.
    ///
    /// # Errors
    /// A service failed.
    fn entry(&self, query: &Query) -> io::Result<Option<Entry>>;
}

/// The system's name service switch.
#[derive(Clone, Copy, Debug)]
pub struct Switch;

impl Source for Switch {
    fn account(&self, name: &str) -> io::Result<Option<Account>> {
        super::account_of(name)
    }

    fn entry(&self, query: &Query) -> io::Result<Option<Entry>> {
        match query {
            Query::User(name) => super::user_of(name),
            Query::Uid(uid) => super::user_of_uid(*uid),
            Query::Group(name) => super::group_of(name),
            Query::Gid(gid) => super::group_of_gid(*gid),
        }
    }
}

/// Why it is not known whether there is such an entry.
#[derive(Clone, Debug, thiserror::Error)]
pub enum Unanswered {
    /// There was no answer in time.
    #[error("the system's user database (NSS) did not answer within {} s", .0.as_secs())]
    TimedOut(Duration),
    /// A service failed.
    #[error("the system's user database (NSS) failed: {0}")]
    Failed(Arc<io::Error>),
    /// It failed a moment ago, and was not asked again.
    #[error("the system's user database (NSS) failed a moment ago")]
    Paused,
}

/// See the module.
pub struct Lookups {
    source: Arc<dyn Source>,
    timeout: Duration,
    accounts: Questions<String, Account>,
    decisions: Questions<Query, Entry>,
    translations: Questions<Query, Entry>,
    kept: Arc<Memory>,
}

/// What a service says about an entry.
type Answer = Option<Arc<Entry>>;

/// The kept answers.
#[derive(Default)]
struct Memory(Mutex<HashMap<Query, Kept>>);

/// An answer, and until when it counts.
struct Kept {
    /// An error: the service failed when it was asked for this purpose.
    answer: Result<Answer, Purpose>,
    until: Time,
}

impl std::fmt::Debug for Lookups {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Lookups")
    }
}

impl Lookups {
    /// Asks the system's name service switch.
    pub fn of_system() -> Lookups {
        Lookups::new(Arc::new(Switch), TIMEOUT)
    }

    /// Asks this source, which has so long to answer.
    pub fn new(source: Arc<dyn Source>, timeout: Duration) -> Lookups {
        Lookups {
            source,
            timeout,
            accounts: Questions::new(Purpose::Decision),
            decisions: Questions::new(Purpose::Decision),
            translations: Questions::new(Purpose::Translation),
            kept: Arc::default(),
        }
    }

    /// The account with this name and its groups, as they are now.
    ///
    /// # Errors
    /// It is not known whether there is one.
    pub async fn account(&self, name: &str) -> Result<Option<Arc<Account>>, Unanswered> {
        let source = self.source.clone();
        let ask =
            move |name: &String| source.account(name).map(|found| found.map(Arc::new)).map_err(Arc::new);
        self.in_time(self.accounts.ask(name.to_owned(), ask)).await
    }

    /// A name or an id that a decision needs; a kept answer counts.
    ///
    /// # Errors
    /// It is not known whether there is one.
    pub async fn entry(&self, query: Query) -> Result<Option<Arc<Entry>>, Unanswered> {
        self.find(query, Purpose::Decision).await
    }

    async fn find(&self, query: Query, purpose: Purpose) -> Result<Answer, Unanswered> {
        match self.kept.find(&query) {
            Some(Ok(answer)) => return Ok(answer),
            // A service may be too slow for many names and still answer for one.
            Some(Err(failed)) if failed == Purpose::Decision || failed == purpose => {
                return Err(Unanswered::Paused);
            }
            Some(Err(_)) | None => {}
        }
        let (source, kept) = (self.source.clone(), self.kept.clone());
        // The thread keeps its answer, so one that comes too late is there for the next who ask.
        let ask = move |query: &Query| {
            let answer = source.entry(query).map(|found| found.map(Arc::new));
            kept.keep(query.clone(), answer.as_ref().map_err(|_| purpose).cloned());
            answer.map_err(Arc::new)
        };
        let questions = match purpose {
            Purpose::Decision => &self.decisions,
            Purpose::Translation => &self.translations,
        };
        let answer = self.in_time(questions.ask(query.clone(), ask)).await;
        if matches!(answer, Err(Unanswered::TimedOut(_))) {
            self.kept.keep(query, Err(purpose));
        }
        answer
    }

    /// A kept answer; `None` if there is none, or only a failure.
    pub fn known(&self, query: &Query) -> Option<Option<Arc<Entry>>> {
        self.kept.find(query)?.ok()
    }

    /// Whether [`Lookups::prefetch`] would ask for this.
    pub fn is_needed(&self, query: &Query) -> bool {
        self.kept.find(query).is_none()
    }

    /// Looks these up for a translation, so that [`Lookups::known`] knows them. Gives up after the time of one lookup.
    pub async fn prefetch(&self, queries: Vec<Query>) {
        let all = async {
            for query in queries {
                if let Err(why) = self.find(query, Purpose::Translation).await {
                    tracing::debug!("{why}");
                }
            }
        };
        if rt::timeout(self.timeout, all).await.is_err() {
            tracing::debug!("looking names up takes too long");
        }
    }

    /// Forgets kept answers.
    pub fn forget(&self) {
        self.kept.lock().clear();
    }

    async fn in_time<T>(
        &self,
        asked: impl Future<Output = Result<T, Arc<io::Error>>>,
    ) -> Result<T, Unanswered> {
        match rt::timeout(self.timeout, asked).await {
            Ok(answer) => answer.map_err(Unanswered::Failed),
            Err(_) => Err(Unanswered::TimedOut(self.timeout)),
        }
    }

    #[cfg(test)]
    pub(super) fn kept_len(&self) -> usize {
        self.kept.lock().len()
    }
}

impl Memory {
    fn lock(&self) -> MutexGuard<'_, HashMap<Query, Kept>> {
        // Each change is one call of the map.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn find(&self, query: &Query) -> Option<Result<Answer, Purpose>> {
        let now = rt::now();
        let kept = self.lock();
        let found = kept.get(query).filter(|kept| now < kept.until)?;
        Some(found.answer.clone())
    }

    fn keep(&self, query: Query, answer: Result<Answer, Purpose>) {
        let now = rt::now();
        let age = match &answer {
            Ok(Some(_)) => FOUND,
            Ok(None) => NOT_FOUND,
            Err(_) => FAILED,
        };
        let mut kept = self.lock();
        let is_answered = |known: &Kept| known.answer.is_ok() && now < known.until;
        if answer.is_err() && kept.get(&query).is_some_and(is_answered) {
            // The answer came while its asker gave up.
            return;
        }
        if kept.len() >= MAX_KEPT && !kept.contains_key(&query) {
            kept.retain(|_, kept| now < kept.until);
            // What would expire first makes room.
            if kept.len() >= MAX_KEPT
                && let Some(first) =
                    kept.iter().min_by_key(|(_, kept)| kept.until).map(|(query, _)| query.clone())
            {
                kept.remove(&first);
            }
        }
        kept.insert(query, Kept { answer, until: now + age });
    }
}
