//! Who may log on to the file servers: the users of the state directory's store, and the one whom the configuration
//! names. The store is read again when its users change.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use weft_machine::deadline;
use weft_machine::nss::{Lookups, Query};
use weft_smb::auth::Secret;
use weft_smb::server as smb;
use weft_store::Share;
use weft_store::rights::{Principal, folded};

use super::replica::Own;
use crate::Failure;
use crate::args::default_user;
use crate::config::{LOOK_LIMIT, Plan};
use crate::out::{ShellCommand, path_name};
use crate::password::{self, Password};
use crate::users::Name;
use crate::users::store::{Listing, Store, StoreError};

/// See the module.
pub(super) struct LogOns {
    store: Option<Store>,
    /// Whether the store had users when it was last read.
    had_users: AtomicBool,
    configured: Option<Configured>,
    /// The user of examples.
    first: String,
    /// Finds accounts of the system, if users have them.
    system: Option<Arc<Lookups>>,
    /// Whether users of the system may log on by ticket.
    admits_system: bool,
}

/// Users and groups at one time.
#[derive(Default)]
pub(super) struct Listed {
    /// Everybody who may log on with a password.
    pub users: Vec<smb::User>,
    /// The names of all groups.
    pub groups: Vec<String>,
    /// Finds accounts of the system, if users have them.
    pub system: Option<Arc<Lookups>>,
    /// Whether users of the system may log on by ticket.
    pub admits_system: bool,
    /// What an administrator should mend: users who cannot log on.
    pub warnings: Vec<String>,
}

/// The user whom the configuration names, or the default one.
struct Configured {
    name: String,
    password: Password,
}

impl LogOns {
    /// Reads the store, and gets the password of the configured user. Without users in the store somebody must be able
    /// to log on if anything is shared, and replication logs on to other servers with a password.
    pub(super) fn of(plan: &Plan) -> Result<LogOns, Failure> {
        let store = plan.state_dir().map(|state| Store::of(&state));
        let listing = store.as_ref().map(read_in_time).transpose()?.flatten().unwrap_or_default();
        let named = plan.config().user.clone();
        // The password of a default user would have to be printed, and the journal of a service is no place for it.
        let is_alone =
            listing.users.is_empty() && !plan.config().shares.is_empty() && !password::is_in_service();
        let is_needed = named.is_some() || is_alone || plan.config().replication.enabled;
        let configured = match is_needed {
            true => {
                let is_named = named.is_some();
                let name = named.unwrap_or_else(default_user);
                let password = match is_named || !password::is_in_service() {
                    true => password::for_server(&name)?,
                    // Only other servers would need it, to replicate to this one.
                    false => {
                        tracing::warn!(
                            "other servers cannot log on to replicate to this one: set {} in the environment of the service",
                            password::VARIABLE
                        );
                        Password { made_up: false, ..password::generated()? }
                    }
                };
                Some(Configured { name, password })
            }
            false => None,
        };
        let stored = listing.users.keys().next().map(Name::as_str);
        let first =
            configured.as_ref().map(|user| user.name.as_str()).or(stored).unwrap_or_default().to_owned();
        let config = plan.config();
        let system = config.identity.uses_system().then(|| Arc::new(Lookups::of_system()));
        let had_users = AtomicBool::new(!listing.users.is_empty());
        Ok(LogOns {
            store,
            had_users,
            configured,
            first,
            system,
            admits_system: config.kerberos.system_users,
        })
    }

    /// The user of examples.
    pub(super) fn first(&self) -> &str {
        &self.first
    }

    /// How other servers log on to this one.
    pub(super) fn own(&self) -> Option<Own> {
        self.configured.as_ref().map(|user| Own::new(&user.name, &user.password.text))
    }

    /// The name of the configured user.
    pub(super) fn configured(&self) -> Option<&str> {
        self.configured.as_ref().map(|user| user.name.as_str())
    }

    /// The password of the configured user.
    pub(super) fn password(&self) -> Option<&Password> {
        self.configured.as_ref().map(|user| &user.password)
    }

    /// Everybody who may log on now, and their groups.
    ///
    /// # Errors
    /// The store cannot be read, or it is gone and had users: they would all be cut off by a mistake.
    pub(super) fn now(&self) -> Result<Listed, StoreError> {
        let listing = match &self.store {
            Some(store) => match store.read()? {
                None if self.had_users.load(Ordering::Relaxed) => {
                    return Err(StoreError::Gone(store.path().to_owned()));
                }
                read => read.unwrap_or_default(),
            },
            None => Listing::default(),
        };
        self.had_users.store(!listing.users.is_empty(), Ordering::Relaxed);
        let groups = listing.groups_by_user();
        let groups_of = |user: &Name| {
            groups.get(user).into_iter().flatten().map(|group| group.as_str().to_owned()).collect::<Vec<_>>()
        };
        let rid_of = |user: &Name| listing.rids.get(user).copied();
        let configured = self.configured.as_ref().map(|user| smb::User {
            groups: user.name.parse().map_or_else(|_| Vec::new(), |name| groups_of(&name)),
            rid: user.name.parse().ok().and_then(|name| rid_of(&name)),
            is_server_itself: true,
            ..smb::User::new(&user.name, Secret::password(&user.password.text))
        });
        let own: Option<Name> = self.configured.as_ref().and_then(|user| user.name.parse().ok());
        let stored = listing.users.iter().filter(|(name, _)| own.as_ref() != Some(name));
        let stored = stored.filter_map(|(name, secret)| {
            Some(smb::User {
                groups: groups_of(name),
                rid: rid_of(name),
                ..smb::User::new(name.as_str(), secret.clone()?)
            })
        });
        let mut warnings: Vec<String> = Vec::new();
        if let Some(store) = &self.store {
            warnings.extend(store.locked(&listing));
            if store.has_lost_users() {
                warnings.push(format!(
                    "{} is missing, although there is its key: restore it from a backup, or add the users again with `weft user add`",
                    path_name(store.path())
                ));
            }
        }
        if self.configured.is_none() && listing.users.is_empty() {
            let add = ShellCommand::new("weft user add NAME").here();
            warnings.push(format!("nobody can log on with a password: there are no users; add one: {add}"));
        }
        Ok(Listed {
            warnings,
            users: configured.into_iter().chain(stored).collect(),
            groups: listing.groups.keys().map(|group| group.as_str().to_owned()).collect(),
            system: self.system.clone(),
            admits_system: self.admits_system,
        })
    }
}

/// Reads the store of a state directory that may not answer.
fn read_in_time(store: &Store) -> Result<Option<Listing>, Failure> {
    let asked = store.clone();
    match deadline::within(store.path(), LOOK_LIMIT, move || asked.read()) {
        Ok(read) => Ok(read?),
        Err(why) => Err(format!("cannot read {}: {why}", path_name(store.path())).into()),
    }
}

/// Logs what an administrator should mend. Warns of users and groups that have a right on a share and do not exist: usually a spelling mistake. Says which groups
/// are those of the system.
pub(super) async fn warn_of_unknown(shares: &[Share], listed: &Listed) {
    let known_users: HashSet<String> = listed.users.iter().map(|user| folded(&user.name)).collect();
    let known_groups: HashSet<String> =
        listed.users.iter().flat_map(|user| &user.groups).map(|group| folded(group)).collect();
    let own_groups: HashSet<String> = listed.groups.iter().map(|group| folded(group)).collect();
    for warning in &listed.warnings {
        tracing::warn!("{warning}");
    }
    for share in shares {
        for principal in share.rules.rights.principals() {
            let (is_known, kind, query) = match principal {
                Principal::Everyone => continue,
                Principal::User(name) => {
                    let query = listed.admits_system.then(|| Query::User(name.clone()));
                    (known_users.contains(&folded(name)), "user", query)
                }
                Principal::Group(name) => {
                    let query = (!own_groups.contains(&folded(name))).then(|| Query::Group(name.clone()));
                    (known_groups.contains(&folded(name)), "group with members", query)
                }
            };
            let query = query.filter(|_| !is_known);
            let found = match listed.system.as_ref().zip(query) {
                Some((system, query)) => system.entry(query).await,
                None => Ok(None),
            };
            let name = &share.name;
            match found {
                _ if is_known => {}
                Ok(Some(entry)) => {
                    tracing::info!("share {name}: {principal} is of the system, with the id {}", entry.id);
                }
                Ok(None) => {
                    tracing::warn!("share {name}: the rights name {principal}, but there is no such {kind}");
                }
                Err(why) => {
                    tracing::warn!("share {name}: the rights name {principal}: {why}");
                    // The others would wait as long.
                    return;
                }
            }
        }
    }
}
