//! The users of a server, their groups, and what they may do on a share. It is replaced as a whole while the server
//! runs.
//!
//! Whoever makes something that depends on it (a session, a tree) asks again after everybody can find it: then either
//! this question or [`super::Server::replace_users`] sees the other one's change.

use std::collections::HashMap;
use std::sync::{Arc, PoisonError, RwLock};

use weft_store::rights::Right;
use weft_store::rules::Rules;

use super::User;
use super::accounts::Accounts;
use crate::auth::Users;

/// The users at one time.
pub(crate) struct Directory {
    /// Their secrets.
    pub(crate) users: Arc<Users>,
    /// The host, its users and its groups as SIDs.
    pub(crate) accounts: Accounts,
    /// The groups of each user, by the name as it is configured.
    groups: HashMap<String, Vec<String>>,
}

impl Directory {
    pub(crate) fn new(host: &str, users: &[User]) -> Directory {
        let names = users.iter().map(|user| (user.name.as_str(), user.rid));
        let groups = users.iter().flat_map(|user| user.groups.iter().map(String::as_str));
        Directory {
            users: Arc::new(Users::new(users.iter().map(|user| (user.name.as_str(), user.secret.clone())))),
            accounts: Accounts::new(host, names, groups),
            groups: users.iter().map(|user| (user.name.clone(), user.groups.clone())).collect(),
        }
    }

    /// Whether this user may log on. `user` is the name of a session.
    pub(crate) fn knows(&self, user: &str) -> bool {
        self.groups.contains_key(user)
    }

    /// The groups of a session's user.
    pub(crate) fn groups_of(&self, user: &str) -> &[String] {
        self.groups.get(user).map_or(&[], Vec::as_slice)
    }

    /// What a session's user may do on a share.
    pub(crate) fn right(&self, user: &str, rules: &Rules) -> Right {
        match self.knows(user) {
            true => rules.rights.of(user, self.groups_of(user)),
            false => Right::None,
        }
    }

    /// Whether several users can log on.
    pub(crate) fn has_several(&self) -> bool {
        self.groups.len() > 1
    }
}

/// The current directory.
pub(crate) struct Current(RwLock<Arc<Directory>>);

impl Current {
    pub(crate) fn new(directory: Directory) -> Current {
        Current(RwLock::new(Arc::new(directory)))
    }

    pub(crate) fn get(&self) -> Arc<Directory> {
        // It guards a pointer, which no panic leaves half-changed.
        self.0.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(crate) fn replace(&self, directory: Directory) -> Arc<Directory> {
        let directory = Arc::new(directory);
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = directory.clone();
        directory
    }
}
