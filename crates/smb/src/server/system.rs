//! Accounts and groups of the system: which users have one, who logs on by ticket without being a user of ours, and the
//! ids of the groups that rights name.
//!
//! [`Lookups`] asks. Owns the answers that a decision depends on, because decisions are made without waiting: a group's
//! id is asked for before a tree is connected and when users are replaced, and stays as it was if nobody answers.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use weft_kerberos::is_spelled;
use weft_machine::nss::{Entry, Lookups, Query, Unanswered};
use weft_machine::{Account, rt};
use weft_store::Share;
use weft_store::rights::folded;

use crate::auth::{AuthError, Login};

/// Users by ticket who are no users of ours.
const MAX_ADMITTED: usize = 65_536;

/// Calls that wait for translations of names and ids at once, of all users. Each has one question in the queue.
pub(super) const MAX_TRANSLATING: usize = 256;
/// Of them, those of one user. A directory service that is slow for names that nobody has must not be occupied by one user.
pub(super) const MAX_TRANSLATING_OF_USER: usize = 4;

/// How long a new answer is waited for if there is an older one.
const PATIENCE: Duration = Duration::from_secs(1);

/// Why a user who has proved a name may not log on.
#[derive(Debug, thiserror::Error)]
pub(super) enum NotAdmitted {
    /// The user may not.
    #[error("{0}")]
    Refused(#[from] AuthError),
    /// It is not known whether the user has an account.
    #[error("{0}")]
    Unanswered(#[from] Unanswered),
    /// There are too many users.
    #[error("limit reached: users of the system who have logged on")]
    Full,
}

/// See the module.
#[derive(Default)]
pub(crate) struct System {
    /// `None`: users have no account of the system.
    lookups: Option<Arc<Lookups>>,
    /// The last answers about the groups that rights name.
    gids: Mutex<HashMap<String, Option<u32>>>,
    /// The uids of those who have logged on by ticket and are no users of ours.
    admitted: Mutex<HashMap<String, u32>>,
    translating: Mutex<Translating>,
}

/// How many calls wait for translations.
#[derive(Default)]
struct Translating {
    all: usize,
    by_user: HashMap<Arc<str>, usize>,
}

/// Too many calls of this user, or of all, wait for translations.
#[derive(Debug, thiserror::Error)]
#[error("limit reached: translations of names and SIDs in progress")]
pub(super) struct TooMany;

/// One of the calls that wait for translations.
struct Translation<'a> {
    system: &'a System,
    user: Arc<str>,
}

impl Drop for Translation<'_> {
    fn drop(&mut self) {
        let translating = &mut *lock(&self.system.translating);
        translating.all = translating.all.saturating_sub(1);
        if let Some(count) = translating.by_user.get_mut(&self.user) {
            *count = count.saturating_sub(1);
            if *count == 0 {
                translating.by_user.remove(&self.user);
            }
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Each change is one call of the map.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl System {
    pub(super) fn new(lookups: Option<Arc<Lookups>>) -> System {
        System { lookups, ..System::default() }
    }

    /// Whether users can have accounts of the system.
    pub(super) fn is_used(&self) -> bool {
        self.lookups.is_some()
    }

    /// The account of a user, as it is now.
    pub(super) async fn account(&self, user: &str) -> Result<Option<Arc<Account>>, Unanswered> {
        match &self.lookups {
            Some(lookups) => lookups.account(user).await,
            None => Ok(None),
        }
    }

    /// The account of a user who logs on. A user who is not ours must have one.
    pub(super) async fn log_on(&self, login: &Login) -> Result<Option<Arc<Account>>, NotAdmitted> {
        let account = self.account(&login.user).await?;
        if account.as_ref().is_some_and(|account| account.uid == 0) && !login.is_chosen {
            return Err(AuthError::Root.into());
        }
        if !login.is_ours {
            let account = account.as_ref().ok_or(AuthError::Stranger)?;
            self.admit(&login.user, account, login.is_chosen)?;
        }
        Ok(account)
    }

    /// Lets a user who is not ours use the server, if the account may be his. `is_chosen`: an administrator maps a
    /// principal to him.
    pub(super) fn admit(&self, user: &str, account: &Account, is_chosen: bool) -> Result<(), NotAdmitted> {
        if account.uid == 0 && !is_chosen {
            return Err(AuthError::Root.into());
        }
        if !is_chosen && !is_spelled(user, &account.name) {
            return Err(AuthError::Spelling.into());
        }
        let mut admitted = lock(&self.admitted);
        if admitted.len() >= MAX_ADMITTED && !admitted.contains_key(user) {
            return Err(NotAdmitted::Full);
        }
        admitted.insert(user.to_owned(), account.uid);
        Ok(())
    }

    /// Whether this user, who is not ours, may use the server.
    pub(super) fn admits(&self, user: &str) -> bool {
        self.admitted(user).is_some()
    }

    /// The uid of this user, who is not ours and may use the server.
    pub(super) fn admitted(&self, user: &str) -> Option<u32> {
        lock(&self.admitted).get(user).copied()
    }

    /// Asks for the ids of the groups that these shares name, except those of `ours`, folded names.
    pub(super) async fn resolve<'a>(&self, shares: impl Iterator<Item = &'a Share>, ours: &HashSet<String>) {
        let Some(lookups) = &self.lookups else { return };
        let named = shares.flat_map(|share| share.rules.rights.groups());
        let names: HashSet<&str> = named.filter(|name| !ours.contains(&folded(name))).collect();
        lock(&self.gids).retain(|name, _| names.contains(name.as_str()));
        for name in names {
            let asked = lookups.entry(Query::Group(name.to_owned()));
            let is_answered = lock(&self.gids).contains_key(name);
            let answer = match is_answered {
                false => asked.await,
                // The last answer will do.
                true => rt::timeout(PATIENCE, asked).await.unwrap_or(Err(Unanswered::TimedOut(PATIENCE))),
            };
            match answer {
                Ok(group) => {
                    lock(&self.gids).insert(name.to_owned(), group.map(|group| group.id));
                }
                Err(why) => {
                    if !matches!(why, Unanswered::Paused) {
                        tracing::warn!(
                            "the members of the group {name} are those of the last answer, if there was one: {why}"
                        );
                    }
                    // The others would wait as long.
                    if matches!(why, Unanswered::TimedOut(_)) {
                        return;
                    }
                }
            }
        }
    }

    /// Asks again, instead of using kept answers, and forgets admitted users whose account is gone or another one.
    pub(super) async fn read_again(&self) {
        let Some(lookups) = &self.lookups else { return };
        lookups.forget();
        let admitted: Vec<(String, u32)> =
            lock(&self.admitted).iter().map(|(user, uid)| (user.clone(), *uid)).collect();
        for (user, uid) in admitted {
            match lookups.account(&user).await {
                Ok(account) if account.as_ref().is_none_or(|account| account.uid != uid) => {
                    lock(&self.admitted).remove(&user);
                }
                Ok(_) => {}
                Err(why) => {
                    tracing::warn!("users of the system keep their sessions: {why}");
                    return;
                }
            }
        }
    }

    /// Whether an account is in the group of the system that rights name so.
    pub(super) fn is_member(&self, account: &Account, group: &str) -> bool {
        let gid = lock(&self.gids).get(group).copied().flatten();
        gid.is_some_and(|gid| account.groups.contains(&gid))
    }

    /// Looks these up for a user's call, so that [`System::known`] knows them.
    pub(super) async fn prefetch(&self, user: &Arc<str>, mut queries: Vec<Query>) -> Result<(), TooMany> {
        let Some(lookups) = &self.lookups else { return Ok(()) };
        queries.retain(|query| lookups.is_needed(query));
        if !queries.is_empty() {
            let _translation = self.translate(user)?;
            lookups.prefetch(queries).await;
        }
        Ok(())
    }

    /// Counts a call that waits for translations until the result is dropped.
    fn translate(&self, user: &Arc<str>) -> Result<Translation<'_>, TooMany> {
        let mut translating = lock(&self.translating);
        let of_user = translating.by_user.get(user).copied().unwrap_or(0);
        if translating.all >= MAX_TRANSLATING || of_user >= MAX_TRANSLATING_OF_USER {
            return Err(TooMany);
        }
        translating.all = translating.all.saturating_add(1);
        translating.by_user.insert(user.clone(), of_user.saturating_add(1));
        Ok(Translation { system: self, user: user.clone() })
    }

    /// A name or an id that was looked up.
    pub(super) fn known(&self, query: &Query) -> Option<Arc<Entry>> {
        self.lookups.as_ref()?.known(query)?
    }
}
