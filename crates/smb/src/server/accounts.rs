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
use weft_store::rights::folded;
use weft_wire::dcerpc::lsarpc::{Domain, SidUse, Translated};
use weft_wire::dcerpc::samr::{Account, PRIMARY_GROUP};
use weft_wire::smb2::fscc::security::Sid;

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

    /// Translates `name`, `DOMAIN\name` or `name@domain`; appends the domain to `domains` if it is missing.
    pub(crate) fn of_name(&self, name: &str, domains: &mut Vec<Domain>) -> Translated {
        let (domain, local) = match (name.split_once('\\'), name.rsplit_once('@')) {
            (Some((domain, local)), _) | (None, Some((local, domain))) => (Some(domain), local),
            (None, None) => (None, name),
        };
        let is = |a: &str, b: &str| a.to_lowercase() == b.to_lowercase();
        let in_host = domain.is_none_or(|domain| is(domain, &self.host.name));
        if in_host && let Some(account) = self.find(local) {
            return self.translated(&account.name, account.rid, SidUse::User, domains);
        }
        if in_host && let Some(group) = self.find_group(local) {
            return self.translated(&group.name, group.rid, SidUse::Alias, domains);
        }
        if in_host && is(local, NONE) {
            return self.translated(NONE, PRIMARY_GROUP, SidUse::Group, domains);
        }
        if domain.is_none_or(|domain| domain.is_empty() || local.is_empty()) {
            let whole = if local.is_empty() { domain.unwrap_or("") } else { local };
            for candidate in [self.host.clone(), builtin()] {
                if is(whole, &candidate.name) {
                    let (name, sid) = (candidate.name.clone(), candidate.sid.clone());
                    return found(SidUse::Domain, &name, sid, candidate, domains);
                }
            }
        }
        for known in &WELL_KNOWN {
            if domain.is_some_and(|domain| !is(domain, known.domain)) {
                continue;
            }
            if let Some((name, rid, kind)) = known.members.iter().find(|(name, ..)| is(name, local)) {
                let home = Domain { name: known.domain.into(), sid: known.sid(None) };
                return found(*kind, name, known.sid(Some(*rid)), home, domains);
            }
        }
        unix(domain, local, domains).unwrap_or(Translated {
            kind: SidUse::Unknown,
            name: String::new(),
            sid: None,
            domain: None,
        })
    }

    /// Translates a SID.
    pub(crate) fn of_sid(&self, sid: &Sid, domains: &mut Vec<Domain>) -> Translated {
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
        let local = match (sid.authority, &sid.sub_authorities[..]) {
            (22, [1, id]) => unix(Some(UNIX_USER), &id.to_string(), domains),
            (22, [2, id]) => unix(Some(UNIX_GROUP), &id.to_string(), domains),
            _ => None,
        };
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

/// A Unix user or group by number; only its own host knows its name.
fn unix(domain: Option<&str>, number: &str, domains: &mut Vec<Domain>) -> Option<Translated> {
    let id: u32 = number.parse().ok()?;
    let (name, which, kind) = match domain? {
        domain if domain.eq_ignore_ascii_case(UNIX_USER) => (UNIX_USER, 1, SidUse::User),
        domain if domain.eq_ignore_ascii_case(UNIX_GROUP) => (UNIX_GROUP, 2, SidUse::Group),
        _ => return None,
    };
    let home = Domain { name: name.into(), sid: Sid { authority: 22, sub_authorities: vec![which] } };
    let sid = Sid { authority: 22, sub_authorities: vec![which, id] };
    Some(found(kind, number, sid, home, domains))
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
    use super::*;

    fn named<const N: usize>(names: [&str; N]) -> [(&str, Option<u32>); N] {
        names.map(|name| (name, None))
    }

    #[test]
    fn names_and_sids_lead_to_each_other() {
        let accounts = Accounts::new("Weft", named(["alice", "Bob"]), ["staff", "Staff", "alice"]);
        let mut domains = Vec::new();
        for name in ["alice", "WEFT\\ALICE", "alice@weft"] {
            let alice = accounts.of_name(name, &mut domains);
            assert_eq!((alice.kind, alice.name.as_str()), (SidUse::User, "alice"));
            assert_eq!(accounts.of_sid(alice.sid.as_ref().unwrap(), &mut domains), alice);
        }
        let staff = accounts.of_name("staff", &mut domains);
        assert_eq!((staff.kind, staff.name.as_str()), (SidUse::Alias, "staff"));
        assert_eq!(accounts.of_sid(staff.sid.as_ref().unwrap(), &mut domains), staff);
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
            let translated = accounts.of_name(name, &mut domains);
            assert_eq!(translated.sid.as_ref().unwrap().to_string(), sid);
            assert_eq!(accounts.of_sid(translated.sid.as_ref().unwrap(), &mut domains), translated);
        }
        for nobody in ["carol", "OTHER\\alice", "", "\\", "@", "Unix User\\x"] {
            assert_eq!(accounts.of_name(nobody, &mut domains).kind, SidUse::Unknown, "{nobody}");
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
