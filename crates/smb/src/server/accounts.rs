//! Accounts: the host's users as SIDs, and the well-known SIDs.
//!
//! Spec: [MS-DTYP] 2.4.2.4 (well-known SIDs), [MS-LSAT] 3.1.4.5 (which names), [MS-SAMR] 3.1.1.9 (relative ids). Owns
//! the host's own domain. Authentication is in [`crate::auth`]; access is decided elsewhere.
//!
//! The host is its own domain, S-1-5-21-a-b-c, where a, b and c are derived from its name. A user's relative id is that
//! of the user's creation, or derived from the name. Both are stable across restarts and independent of the order of
//! users, so descriptors stored with files keep their meaning. Unix users and groups are S-1-22-1-uid and S-1-22-2-gid, as in Samba.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet};
use std::ops::Range;

use aws_lc_rs::digest::{SHA256, digest};
use weft_machine::nss::Query;
use weft_store::rights::folded;
use weft_wire::dcerpc::lsarpc::{Domain, SidUse, Translated};
use weft_wire::dcerpc::samr::{Account, PRIMARY_GROUP};
use weft_wire::smb2::fscc::security::Sid;

use super::system::System;

/// Smaller relative ids are reserved for the system ([MS-SAMR] 3.1.1.9.1).
const FIRST_RID: u32 = 1000;
/// The relative ids that users can get when they are created. None is ever derived from a name.
pub const CREATED_RIDS: Range<u32> = (1 << 30) + FIRST_RID..1 << 31;
/// The name of [`PRIMARY_GROUP`].
pub(crate) const NONE: &str = "None";

/// The accounts of a server.
pub(crate) struct Accounts {
    /// The host as a domain: its name in capitals, and its SID.
    pub(crate) host: Domain,
    /// The users, in the order of the configuration.
    pub(crate) users: Vec<Account>,
    /// Their groups. Windows calls such groups of a host aliases.
    pub(crate) groups: Vec<Account>,
    /// Where both are, by name.
    places: HashMap<String, Place>,
    /// Their relative ids.
    rids: HashSet<u32>,
}

/// An index into the users or the groups.
#[derive(Clone, Copy)]
enum Place {
    User(usize),
    Group(usize),
}

/// A domain whose members are the same on every host.
struct WellKnown {
    domain: &'static str,
    authority: u64,
    /// The common prefix of its members' SIDs.
    prefix: &'static [u32],
    members: &'static [(&'static str, u32, SidUse)],
}

const WELL_KNOWN: [WellKnown; 4] = [
    WellKnown { domain: "", authority: 1, prefix: &[], members: &[("Everyone", 0, SidUse::WellKnownGroup)] },
    WellKnown {
        domain: "",
        authority: 3,
        prefix: &[],
        members: &[
            ("CREATOR OWNER", 0, SidUse::WellKnownGroup),
            ("CREATOR GROUP", 1, SidUse::WellKnownGroup),
            ("OWNER RIGHTS", 4, SidUse::WellKnownGroup),
        ],
    },
    WellKnown {
        domain: "NT AUTHORITY",
        authority: 5,
        prefix: &[],
        members: &[
            ("NETWORK", 2, SidUse::WellKnownGroup),
            ("INTERACTIVE", 4, SidUse::WellKnownGroup),
            ("ANONYMOUS LOGON", 7, SidUse::WellKnownGroup),
            ("Authenticated Users", 11, SidUse::WellKnownGroup),
            ("SYSTEM", 18, SidUse::WellKnownGroup),
            ("LOCAL SERVICE", 19, SidUse::WellKnownGroup),
            ("NETWORK SERVICE", 20, SidUse::WellKnownGroup),
        ],
    },
    WellKnown {
        domain: "BUILTIN",
        authority: 5,
        prefix: &[32],
        members: &[
            ("Administrators", 544, SidUse::Alias),
            ("Users", 545, SidUse::Alias),
            ("Guests", 546, SidUse::Alias),
        ],
    },
];

impl WellKnown {
    fn sid(&self, last: Option<u32>) -> Sid {
        let sub_authorities = self.prefix.iter().copied().chain(last).collect();
        Sid { authority: self.authority, sub_authorities }
    }
}

/// The domain that contains the aliases of every Windows host; none of them has members here.
pub(crate) fn builtin() -> Domain {
    Domain { name: "Builtin".into(), sid: Sid { authority: 5, sub_authorities: vec![32] } }
}

/// The users and the groups of the system, which have no other domain here.
pub(crate) fn unix_domains() -> [Domain; 2] {
    [(UNIX_USER, 1), (UNIX_GROUP, 2)].map(|(name, which)| Domain {
        name: name.into(),
        sid: Sid { authority: 22, sub_authorities: vec![which] },
    })
}

impl Accounts {
    /// The accounts of a host with this name, these users, and their groups, which may be named several times. A group
    /// with the name of a user or of [`PRIMARY_GROUP`] has no SID, because names of a domain are unique.
    pub(crate) fn new<'a>(
        host: &str,
        users: impl IntoIterator<Item = (&'a str, Option<u32>)>,
        groups: impl IntoIterator<Item = &'a str>,
    ) -> Accounts {
        let name = host.to_uppercase();
        let hash = digest(&SHA256, format!("weft host {name}").as_bytes());
        let words = words(hash.as_ref()).take(3);
        let sid = Sid { authority: 5, sub_authorities: std::iter::once(21).chain(words).collect() };
        let mut made = Accounts {
            host: Domain { name, sid },
            users: Vec::new(),
            groups: Vec::new(),
            places: HashMap::new(),
            rids: HashSet::new(),
        };
        for (user, rid) in users {
            made.add(user, "user", rid);
        }
        for group in groups {
            if !group.eq_ignore_ascii_case(NONE) {
                made.add(group, "group", None);
            }
        }
        made
    }

    /// Adds a "user" or a "group", unless its name is taken.
    fn add(&mut self, name: &str, kind: &'static str, created: Option<u32>) {
        let Entry::Vacant(place) = self.places.entry(folded(name)) else { return };
        let mut rid = created.unwrap_or_else(|| rid_of(kind, name));
        // Two names with the same id are so rare that the order of the configuration may decide.
        while !self.rids.insert(rid) {
            rid = rid.wrapping_add(1);
        }
        let (list, at): (_, fn(usize) -> Place) = match kind {
            "user" => (&mut self.users, Place::User),
            _ => (&mut self.groups, Place::Group),
        };
        place.insert(at(list.len()));
        list.push(Account { name: name.to_owned(), rid });
    }

    /// The user of this name.
    pub(crate) fn find(&self, name: &str) -> Option<&Account> {
        match self.places.get(&folded(name))? {
            Place::User(at) => self.users.get(*at),
            Place::Group(_) => None,
        }
    }

    /// The group of this name.
    pub(crate) fn find_group(&self, name: &str) -> Option<&Account> {
        match self.places.get(&folded(name))? {
            Place::Group(at) => self.groups.get(*at),
            Place::User(_) => None,
        }
    }

    /// A SID in the host's own domain.
    pub(crate) fn sid(&self, rid: u32) -> Sid {
        let mut sid = self.host.sid.clone();
        sid.sub_authorities.push(rid);
        sid
    }

    /// The SID of a user, who may have logged on under a name that is not listed.
    pub(crate) fn sid_of_user(&self, name: &str) -> Sid {
        self.sid(self.find(name).map_or_else(|| rid_of("user", name), |account| account.rid))
    }

    /// The SIDs of these groups.
    pub(crate) fn sids_of_groups(&self, names: &[String]) -> impl Iterator<Item = Sid> {
        names.iter().filter_map(|name| Some(self.sid(self.find_group(name)?.rid)))
    }

    /// The group that contains every user.
    pub(crate) fn primary_group(&self) -> Sid {
        self.sid(PRIMARY_GROUP)
    }

    /// Translates `name`, `DOMAIN\name` or `name@domain`; appends the domain to `domains` if it is missing. Names of the
    /// system must have been looked up; see [`Accounts::queries_of_name`].
    pub(crate) fn of_name(&self, name: &str, system: &System, domains: &mut Vec<Domain>) -> Translated {
        let own = self.of_own_name(name, domains);
        own.or_else(|| self.of_unix_name(name, system, domains)).unwrap_or(Translated {
            kind: SidUse::Unknown,
            name: String::new(),
            sid: None,
            domain: None,
        })
    }

    /// The names of the system that may be meant by a name.
    pub(crate) fn queries_of_name(&self, name: &str) -> Vec<Query> {
        if self.of_own_name(name, &mut Vec::new()).is_some() {
            return Vec::new();
        }
        let (domain, local) = split(name);
        let either = |name: &str| vec![Query::User(name.to_owned()), Query::Group(name.to_owned())];
        match domain {
            Some(domain) if domain.eq_ignore_ascii_case(UNIX_USER) => vec![Query::User(local.to_owned())],
            Some(domain) if domain.eq_ignore_ascii_case(UNIX_GROUP) => vec![Query::Group(local.to_owned())],
            Some(domain) if domain.eq_ignore_ascii_case(&self.host.name) => Vec::new(),
            // SSSD and winbind name users and groups of a domain so.
            _ => either(name),
        }
    }

    /// The user or group of the system with this name.
    fn of_unix_name(&self, name: &str, system: &System, domains: &mut Vec<Domain>) -> Option<Translated> {
        let found = self.queries_of_name(name).into_iter().find_map(|query| {
            let entry = system.known(&query)?;
            Some((if matches!(query, Query::User(_)) { UNIX_USER } else { UNIX_GROUP }, entry))
        });
        if let Some((domain, entry)) = found {
            return unix(domain, entry.id, Some(&entry.name), domains);
        }
        let (domain, number) = split(name);
        unix(domain?, number.parse().ok()?, None, domains)
    }

    /// Translates a name of the host or of every host.
    fn of_own_name(&self, name: &str, domains: &mut Vec<Domain>) -> Option<Translated> {
        let (domain, local) = split(name);
        let is = |a: &str, b: &str| a.to_lowercase() == b.to_lowercase();
        let in_host = domain.is_none_or(|domain| is(domain, &self.host.name));
        if in_host && let Some(account) = self.find(local) {
            return Some(self.translated(&account.name, account.rid, SidUse::User, domains));
        }
        if in_host && let Some(group) = self.find_group(local) {
            return Some(self.translated(&group.name, group.rid, SidUse::Alias, domains));
        }
        if in_host && is(local, NONE) {
            return Some(self.translated(NONE, PRIMARY_GROUP, SidUse::Group, domains));
        }
        if domain.is_none_or(|domain| domain.is_empty() || local.is_empty()) {
            let whole = if local.is_empty() { domain.unwrap_or("") } else { local };
            for candidate in [self.host.clone(), builtin()] {
                if is(whole, &candidate.name) {
                    let (name, sid) = (candidate.name.clone(), candidate.sid.clone());
                    return Some(found(SidUse::Domain, &name, sid, candidate, domains));
                }
            }
        }
        for known in &WELL_KNOWN {
            if domain.is_some_and(|domain| !is(domain, known.domain)) {
                continue;
            }
            if let Some((name, rid, kind)) = known.members.iter().find(|(name, ..)| is(name, local)) {
                let home = Domain { name: known.domain.into(), sid: known.sid(None) };
                return Some(found(*kind, name, known.sid(Some(*rid)), home, domains));
            }
        }
        None
    }

    /// The id of the system that a SID stands for.
    pub(crate) fn query_of_sid(sid: &Sid) -> Option<Query> {
        match (sid.authority, &sid.sub_authorities[..]) {
            (22, [1, uid]) => Some(Query::Uid(*uid)),
            (22, [2, gid]) => Some(Query::Gid(*gid)),
            _ => None,
        }
    }

    /// Translates a SID. An id of the system has its name if it was looked up; see [`Accounts::query_of_sid`].
    pub(crate) fn of_sid(&self, sid: &Sid, system: &System, domains: &mut Vec<Domain>) -> Translated {
        if let Some((&rid, prefix)) = sid.sub_authorities.split_last()
            && sid.authority == self.host.sid.authority
            && prefix == self.host.sid.sub_authorities
        {
            if let Some(account) = self.users.iter().find(|account| account.rid == rid) {
                return self.translated(&account.name, rid, SidUse::User, domains);
            }
            if let Some(group) = self.groups.iter().find(|group| group.rid == rid) {
                return self.translated(&group.name, rid, SidUse::Alias, domains);
            }
            if rid == PRIMARY_GROUP {
                return self.translated(NONE, rid, SidUse::Group, domains);
            }
        }
        for domain in [self.host.clone(), builtin()] {
            if *sid == domain.sid {
                let name = domain.name.clone();
                return found(SidUse::Domain, &name, sid.clone(), domain, domains);
            }
        }
        for known in &WELL_KNOWN {
            let member = known.members.iter().find(|(_, rid, _)| known.sid(Some(*rid)) == *sid);
            if let Some((name, _, kind)) = member {
                let home = Domain { name: known.domain.into(), sid: known.sid(None) };
                return found(*kind, name, sid.clone(), home, domains);
            }
        }
        let local = Accounts::query_of_sid(sid).and_then(|query| {
            let entry = system.known(&query);
            let name = entry.as_ref().map(|entry| entry.name.as_str());
            match query {
                Query::Uid(uid) => unix(UNIX_USER, uid, name, domains),
                Query::Gid(gid) => unix(UNIX_GROUP, gid, name, domains),
                Query::User(_) | Query::Group(_) => None,
            }
        });
        local.unwrap_or_else(|| Translated {
            kind: SidUse::Unknown,
            name: sid.to_string(),
            sid: Some(sid.clone()),
            domain: None,
        })
    }

    fn translated(&self, name: &str, rid: u32, kind: SidUse, domains: &mut Vec<Domain>) -> Translated {
        found(kind, name, self.sid(rid), self.host.clone(), domains)
    }
}

/// Derives a relative id from the name of a "user" or "group": 30 bits of its hash. Two names of one server collide
/// with a chance of one in a billion.
fn rid_of(kind: &str, name: &str) -> u32 {
    let hash = digest(&SHA256, format!("weft {kind} {}", name.to_lowercase()).as_bytes());
    let word = words(hash.as_ref()).next().unwrap_or(0);
    (word % (1 << 30)).saturating_add(FIRST_RID)
}

/// The 32-bit words of a hash.
fn words(hash: &[u8]) -> impl Iterator<Item = u32> {
    hash.as_chunks().0.iter().map(|word| u32::from_be_bytes(*word))
}

const UNIX_USER: &str = "Unix User";
const UNIX_GROUP: &str = "Unix Group";

/// The domain and the name in it, of `DOMAIN\name` or `name@domain`.
fn split(name: &str) -> (Option<&str>, &str) {
    match (name.split_once('\\'), name.rsplit_once('@')) {
        (Some((domain, local)), _) | (None, Some((local, domain))) => (Some(domain), local),
        (None, None) => (None, name),
    }
}

/// A Unix user or group, by its number if its name is not known.
fn unix(domain: &str, id: u32, name: Option<&str>, domains: &mut Vec<Domain>) -> Option<Translated> {
    let (home, which, kind) = match domain {
        domain if domain.eq_ignore_ascii_case(UNIX_USER) => (UNIX_USER, 1, SidUse::User),
        domain if domain.eq_ignore_ascii_case(UNIX_GROUP) => (UNIX_GROUP, 2, SidUse::Group),
        _ => return None,
    };
    let home = Domain { name: home.into(), sid: Sid { authority: 22, sub_authorities: vec![which] } };
    let sid = Sid { authority: 22, sub_authorities: vec![which, id] };
    let number = id.to_string();
    Some(found(kind, name.unwrap_or(&number), sid, home, domains))
}

fn found(kind: SidUse, name: &str, sid: Sid, home: Domain, domains: &mut Vec<Domain>) -> Translated {
    let index = domains.iter().position(|domain| *domain == home).unwrap_or_else(|| {
        let next = domains.len();
        domains.push(home);
        next
    });
    Translated { kind, name: name.to_owned(), sid: Some(sid), domain: Some(index) }
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::sync::Arc;
    use std::time::Duration;

    use weft_machine::nss::{Entry, Lookups, Source};
    use weft_machine::rt;

    use super::*;

    fn named<const N: usize>(names: [&str; N]) -> [(&str, Option<u32>); N] {
        names.map(|name| (name, None))
    }

    #[test]
    fn names_and_sids_lead_to_each_other() {
        let accounts = Accounts::new("Weft", named(["alice", "Bob"]), ["staff", "Staff", "alice"]);
        let (mut domains, system) = (Vec::new(), System::default());
        for name in ["alice", "WEFT\\ALICE", "alice@weft"] {
            let alice = accounts.of_name(name, &system, &mut domains);
            assert_eq!((alice.kind, alice.name.as_str()), (SidUse::User, "alice"));
            assert_eq!(accounts.of_sid(alice.sid.as_ref().unwrap(), &system, &mut domains), alice);
        }
        let staff = accounts.of_name("staff", &system, &mut domains);
        assert_eq!((staff.kind, staff.name.as_str()), (SidUse::Alias, "staff"));
        assert_eq!(accounts.of_sid(staff.sid.as_ref().unwrap(), &system, &mut domains), staff);
        assert_eq!(accounts.groups.len(), 1, "one group has one account, and a user's name is not a group's");
        assert_eq!(
            accounts.sids_of_groups(&["STAFF".into(), "ops".into()]).collect::<Vec<_>>(),
            [staff.sid.unwrap()]
        );
        for (name, sid) in [
            ("Everyone", "S-1-1-0"),
            ("NT AUTHORITY\\SYSTEM", "S-1-5-18"),
            ("BUILTIN\\Users", "S-1-5-32-545"),
            ("Unix User\\1000", "S-1-22-1-1000"),
            ("Builtin", "S-1-5-32"),
        ] {
            let translated = accounts.of_name(name, &system, &mut domains);
            assert_eq!(translated.sid.as_ref().unwrap().to_string(), sid);
            assert_eq!(accounts.of_sid(translated.sid.as_ref().unwrap(), &system, &mut domains), translated);
        }
        for nobody in ["carol", "OTHER\\alice", "", "\\", "@", "Unix User\\x"] {
            assert_eq!(accounts.of_name(nobody, &system, &mut domains).kind, SidUse::Unknown, "{nobody}");
        }
    }

    /// A system with a user, a group, and one of a domain.
    struct Names;

    impl Source for Names {
        fn account(&self, _: &str) -> io::Result<Option<weft_machine::Account>> {
            Err(io::ErrorKind::Unsupported.into())
        }

        fn entry(&self, query: &Query) -> io::Result<Option<Entry>> {
            let all = [("dora", 1003), ("alice", 1000), ("1003", 7), (r"AD\eve", 70_001)];
            let entry = |(name, id): &(&str, u32)| Entry { name: (*name).to_owned(), id: *id };
            Ok(match query {
                Query::User(name) => all.iter().find(|(known, _)| known == name).map(entry),
                Query::Uid(uid) => all.iter().find(|(_, id)| id == uid).map(entry),
                Query::Group(name) if name == "crew" => Some(Entry { name: name.clone(), id: 50 }),
                Query::Gid(50) => Some(Entry { name: "crew".into(), id: 50 }),
                Query::Group(_) | Query::Gid(_) => None,
            })
        }
    }

    #[test]
    fn names_of_the_system_and_sids_lead_to_each_other() {
        let accounts = Accounts::new("Weft", named(["alice"]), ["staff"]);
        let lookups = Arc::new(Lookups::new(Arc::new(Names), Duration::from_secs(60)));
        let (system, mut domains) = (System::new(Some(lookups)), Vec::new());
        let user = "alice".into();
        let mut both = |name: &str| {
            rt::block_on(system.prefetch(&user, accounts.queries_of_name(name))).unwrap().unwrap();
            let found = accounts.of_name(name, &system, &mut domains);
            let Some(sid) = &found.sid else { return (found.name, String::new()) };
            let queries = Accounts::query_of_sid(sid).into_iter().collect();
            rt::block_on(system.prefetch(&user, queries)).unwrap().unwrap();
            assert_eq!(accounts.of_sid(sid, &system, &mut domains), found, "{name}");
            let domain = &domains[found.domain.expect("a domain")].name;
            (format!("{domain}/{}", found.name), sid.to_string())
        };
        for (name, shown, sid) in [
            ("dora", "Unix User/dora", "S-1-22-1-1003"),
            ("crew", "Unix Group/crew", "S-1-22-2-50"),
            (r"Unix User\dora", "Unix User/dora", "S-1-22-1-1003"),
            (r"unix group\CREW", "", ""),
            (r"Unix Group\dora", "", ""),
            // A name of digits is a name first.
            (r"Unix User\1003", "Unix User/1003", "S-1-22-1-7"),
            (r"Unix User\4294967296", "", ""),
            (r"AD\eve", r"Unix User/AD\eve", "S-1-22-1-70001"),
            (r"WEFT\dora", "", ""),
            ("dora@weft", "", ""),
            ("DORA", "", ""),
            ("1003", "Unix User/1003", "S-1-22-1-7"),
            ("nobody here", "", ""),
        ] {
            assert_eq!(both(name), (shown.to_owned(), sid.to_owned()), "{name}");
        }
        let numeric = accounts.of_name(r"Unix User\1000", &system, &mut Vec::new());
        assert_eq!((numeric.name.as_str(), numeric.sid), ("1000", Some(Sid::unix_user(1000))));
        // The host's own users and those of every host come first.
        assert!(both("alice").0.starts_with("WEFT/"));
        for own in ["alice", "staff", "Everyone", "None", "weft", r"BUILTIN\Users"] {
            assert!(accounts.queries_of_name(own).is_empty(), "{own}");
        }
    }

    #[test]
    fn sids_outlive_the_order_of_a_configuration() {
        let (one, other) = (
            Accounts::new("weft", named(["alice", "bob"]), []),
            Accounts::new("WEFT", named(["bob", "alice"]), ["x"]),
        );
        let rid = |accounts: &Accounts, name| accounts.find(name).unwrap().rid;
        assert_eq!(rid(&one, "alice"), rid(&other, "Alice"));
        assert_ne!(rid(&one, "alice"), rid(&one, "bob"));
        assert_eq!(one.host.sid, other.host.sid);
        assert_ne!(one.host.sid, Accounts::new("other", [], []).host.sid);
    }

    #[test]
    fn a_sid_is_that_of_the_creation_where_there_is_one() {
        let rids = |rid| Accounts::new("weft", [("alice", rid), ("bob", None)], []);
        let (first, second) = (CREATED_RIDS.start, CREATED_RIDS.end - 1);
        for rid in [first, second] {
            let accounts = rids(Some(rid));
            assert_eq!(accounts.sid_of_user("Alice"), accounts.sid(rid));
            assert_eq!(accounts.sid_of_user("bob"), rids(None).sid_of_user("bob"));
        }
        // None is derived from a name.
        let derived = |n: u32| rid_of("user", &n.to_string());
        assert!((0..10_000).all(|n| !CREATED_RIDS.contains(&derived(n))));
    }
}
