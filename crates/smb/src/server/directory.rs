//! The users of a server, their groups, and what they may do on a share. It is replaced as a whole while the server
//! runs.
//!
//! Whoever makes something that depends on it (a session, a tree) asks again after everybody can find it: then either
//! this question or [`super::Server::replace_users`] sees the other one's change.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, PoisonError, RwLock};

use weft_machine::Account;
use weft_store::rights::{Right, folded};
use weft_store::rules::Rules;

use super::User;
use super::accounts::Accounts;
use super::system::System;
use super::user_id::UserId;
use crate::auth::Users;

/// The users at one time.
pub(crate) struct Directory {
    /// Their secrets.
    pub(crate) users: Arc<Users>,
    /// The host, its users and its groups as SIDs.
    pub(crate) accounts: Accounts,
    /// The groups of each user, by the name as it is configured.
    groups: HashMap<String, Vec<String>>,
    /// The user who is the server's own, by the name as it is configured.
    server_itself: Option<String>,
    /// The names of all groups, folded. A group of the system with such a name does not count.
    all_groups: HashSet<String>,
    /// Accounts and groups of the system.
    pub(crate) system: Arc<System>,
}

/// Who asks.
#[derive(Clone, Copy)]
pub(crate) struct Who<'a> {
    /// The name of a session's user.
    pub user: &'a str,
    /// Whether it is a user of ours; otherwise it is one of the system, who has logged on by ticket.
    pub is_ours: bool,
    /// The user's account of the system at log-on.
    pub account: Option<&'a Account>,
}

impl Directory {
    /// `all_groups` are the names of groups, with and without members.
    pub(crate) fn new(host: &str, users: &[User], all_groups: &[String], system: Arc<System>) -> Directory {
        let names = users.iter().map(|user| (user.name.as_str(), user.rid));
        let groups = || users.iter().flat_map(|user| user.groups.iter().map(String::as_str));
        Directory {
            users: Arc::new(Users::new(users.iter().map(|user| (user.name.as_str(), user.secret.clone())))),
            accounts: Accounts::new(host, names, groups()),
            groups: users.iter().map(|user| (user.name.clone(), user.groups.clone())).collect(),
            server_itself: users.iter().find(|user| user.is_server_itself).map(|user| user.name.clone()),
            all_groups: all_groups.iter().map(String::as_str).chain(groups()).map(folded).collect(),
            system,
        }
    }

    /// Whether this user may still use the server.
    pub(crate) fn knows(&self, who: Who<'_>) -> bool {
        if who.is_ours { self.is_ours(who.user) } else { self.system.admits(who.user) }
    }

    /// Whether a user of ours has this name, as it is configured.
    pub(crate) fn is_ours(&self, user: &str) -> bool {
        self.groups.contains_key(user)
    }

    /// Who has this name now.
    pub(crate) fn id_of(&self, who: Who<'_>) -> Option<UserId> {
        match who.is_ours {
            true => self.accounts.find(who.user).map(|account| UserId::Rid(account.rid)),
            false => who.account.map(|account| UserId::Uid(account.uid)),
        }
    }

    /// Whether the user with this name and this id may still use the server. If the id is unknown, the name decides.
    pub(crate) fn knows_user(&self, user: &str, id: Option<UserId>) -> bool {
        match id {
            None => self.is_ours(user) || self.system.admits(user),
            Some(UserId::Rid(rid)) => {
                self.is_ours(user) && self.accounts.find(user).is_some_and(|account| account.rid == rid)
            }
            Some(UserId::Uid(uid)) => self.system.admitted(user) == Some(uid),
        }
    }

    /// The names of all groups, folded.
    pub(crate) fn all_groups(&self) -> &HashSet<String> {
        &self.all_groups
    }

    /// The groups of a session's user.
    pub(crate) fn groups_of(&self, user: &str) -> &[String] {
        self.groups.get(user).map_or(&[], Vec::as_slice)
    }

    /// What a session's user may do on a share.
    pub(crate) fn right(&self, who: Who<'_>, rules: &Rules) -> Right {
        if !self.knows(who) {
            return Right::None;
        }
        let own = if who.is_ours { self.groups_of(who.user) } else { &[] };
        rules.rights.of_member(who.user, &|name| {
            let name_folded = folded(name);
            match self.all_groups.contains(&name_folded) {
                true => own.iter().any(|group| folded(group) == name_folded),
                false => who.account.is_some_and(|account| self.system.is_member(account, name)),
            }
        })
    }

    /// Whether a user is the server's own; see [`User::is_server_itself`].
    pub(crate) fn is_server_itself(&self, who: Who<'_>) -> bool {
        who.is_ours && self.server_itself.as_deref() == Some(who.user)
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
