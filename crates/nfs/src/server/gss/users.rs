//! The user for whom a principal stands, and what that user may do in each share.
//!
//! `weft_kerberos` has the rules for names, the name service switch has the accounts, and `store::rights` the rights. A
//! principal that stands for nobody is the anonymous user: it may use what every caller may use.

use std::collections::{HashMap, HashSet};

use weft_kerberos::{Principal, Principals};
use weft_machine::nss::{Lookups, Query, Unanswered};
use weft_machine::{LogLimit, rt};
use weft_store::ShareList;
use weft_store::rights::{Right, folded};

use crate::server::credential::{Ids, PrincipalId, Ticket};

/// The users and groups of this server.
#[derive(Clone, Debug, Default)]
pub struct Users {
    /// The spelling and the groups of each user, by the folded name.
    by_name: HashMap<String, (String, Vec<String>)>,
    /// The folded names of all groups.
    groups: HashSet<String>,
}

impl Users {
    /// These users with their groups, and all groups.
    pub fn new<'a>(
        users: impl IntoIterator<Item = (&'a str, &'a [String])>,
        groups: impl IntoIterator<Item = &'a str>,
    ) -> Users {
        let by_name = users
            .into_iter()
            .map(|(name, groups)| (folded(name), (name.to_owned(), groups.to_vec())))
            .collect();
        Users { by_name, groups: groups.into_iter().map(folded).collect() }
    }
}

/// A user who has proved a name.
struct User<'a> {
    name: &'a str,
    /// The groups of this server that the user is in.
    groups: &'a [String],
    is_ours: bool,
}

/// Reads what a ticket proves.
///
/// # Errors
/// The name service switch did not answer: then nobody knows who the caller is.
pub(super) async fn read(
    client: &Principal,
    service: &Principal,
    principals: &Principals,
    users: &Users,
    system: Option<&Lookups>,
    shares: &ShareList,
) -> Result<Ticket, Unanswered> {
    let mut ticket = Ticket { principal: PrincipalId::of(client), ids: None, rights: HashMap::new() };
    let claimed = principals.claimed(client, service);
    let found = claimed.as_ref().and_then(|claimed| match users.by_name.get(&folded(claimed.name)) {
        // Users ignore case, and principals do not.
        Some((name, groups)) => claimed.is(name).then_some(User { name, groups, is_ours: true }),
        None if claimed.may_be_system => Some(User { name: claimed.name, groups: &[], is_ours: false }),
        None => None,
    });
    let Some((user, claimed)) = found.zip(claimed.as_ref()) else {
        tell_stranger(client);
        return Ok(ticket);
    };
    let account = match system {
        Some(system) => system.account(user.name).await?,
        None => None,
    };
    let becomes_root = account.as_ref().is_some_and(|account| account.uid == 0) && !claimed.mapped;
    // A user of this server has the account of its own name, however the directory service spells that.
    let is_theirs = user.is_ours || account.as_ref().is_some_and(|account| claimed.is(&account.name));
    if becomes_root || !is_theirs {
        tell_stranger(client);
        return Ok(ticket);
    }
    for share in shares.iter().filter(|share| !share.rules.rights.are_open()) {
        let rights = &share.rules.rights;
        let mut member_of: HashSet<String> = user.groups.iter().map(|group| folded(group)).collect();
        for group in rights.groups().filter(|group| !users.groups.contains(&folded(group))) {
            let (Some(system), Some(account)) = (system, &account) else { continue };
            let entry = system.entry(Query::Group(group.to_owned())).await?;
            if entry.is_some_and(|entry| account.groups.contains(&entry.id)) {
                member_of.insert(folded(group));
            }
        }
        let right = rights.of_member(user.name, &|group| member_of.contains(&folded(group)));
        if right > Right::None {
            ticket.rights.insert(share.id, right);
        }
    }
    ticket.ids =
        account.map(|account| Ids { uid: account.uid, gid: account.gid, groups: account.groups.clone() });
    Ok(ticket)
}

/// Logs that a principal stands for nobody, because its user sees only that files are not accessible. Every host that mounts
/// shows an instance, such as host/client@REALM, which is no user.
fn tell_stranger(client: &Principal) {
    static STRANGERS: LogLimit = LogLimit::new();
    if !client.is_plain() {
        return;
    }
    if let Some(left_out) = STRANGERS.pass(rt::now()) {
        let Principal { name, realm } = client;
        tracing::info!(
            "NFS by ticket: {} stands for no user of this server and is the anonymous user; `weft user add`, a line of \
             kerberos.map, or kerberos.system_users = true for accounts of the system changes that{left_out}",
            format_args!("{}@{}", name.escape_debug(), realm.escape_debug())
        );
    }
}
