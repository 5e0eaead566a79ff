//! Which user a Kerberos principal is.
//!
//! A plain principal of our own realm is the user of that name; other realms have users with the same names. An
//! administrator may map any principal to a user. Neither rule is about whether the user exists.

use std::collections::BTreeMap;

use crate::Principal;

/// The rules for principals.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Principals {
    mapped: BTreeMap<String, String>,
    /// Whether users whom a line of the map names may be accounts of the system.
    pub mapped_may_be_system: bool,
    /// Whether every plain principal of the realm may be an account of the system.
    pub all_may_be_system: bool,
}

/// What is not a principal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("write a principal with its realm, such as \"HTTP/host@EXAMPLE.ORG\"")]
pub struct BadPrincipal;

/// A user whom a principal stands for.
#[derive(Debug, PartialEq, Eq)]
pub struct Claimed<'a> {
    /// The name.
    pub name: &'a str,
    /// Whether the map names the principal.
    pub mapped: bool,
    /// Whether the user may be an account of the system that is no user of ours.
    pub may_be_system: bool,
}

/// Whether the user or account that a directory spells `spelled` has exactly the name of a principal, apart from a domain that
/// the directory adds (`alice@example.org`, `EXAMPLE\alice`). Principals that differ in case are different users (RFC 4120 6),
/// also for a directory that finds the same user for both.
pub fn is_spelled(name: &str, spelled: &str) -> bool {
    spelled == name
        || spelled.strip_prefix(name).is_some_and(|domain| domain.starts_with('@'))
        || spelled.strip_suffix(name).is_some_and(|domain| domain.ends_with(['\\', '/', '+']))
}

impl Claimed<'_> {
    /// Whether the user or account that a directory spells `spelled`, and finds by the name, is the user for whom the
    /// principal stands: exactly of its name, unless a line of the map names the user.
    pub fn is(&self, spelled: &str) -> bool {
        self.mapped || is_spelled(self.name, spelled)
    }
}

impl Principals {
    /// Maps a principal, with its realm, to a user.
    ///
    /// # Errors
    /// The text is not a principal.
    pub fn map(&mut self, principal: &str, user: &str) -> Result<(), BadPrincipal> {
        Principal::parse(principal).ok_or(BadPrincipal)?;
        self.mapped.insert(principal.to_owned(), user.to_owned());
        Ok(())
    }

    /// The lines of the map: principals and users.
    pub fn mapped(&self) -> impl Iterator<Item = (&str, &str)> {
        self.mapped.iter().map(|(principal, user)| (principal.as_str(), user.as_str()))
    }

    /// Whether a line of the map names this user.
    pub fn names(&self, user: &str) -> bool {
        self.mapped.values().any(|known| known == user)
    }

    /// Whether some principal stands for this user as an account of the system.
    pub fn may_be_system(&self, user: &str) -> bool {
        self.all_may_be_system || (self.mapped_may_be_system && self.names(user))
    }

    /// The user whom `client` stands for at this service. Principals are compared with regard to case (RFC 4120 6).
    pub fn claimed<'a>(&'a self, client: &'a Principal, service: &Principal) -> Option<Claimed<'a>> {
        if let Some(user) = self.mapped.get(&format!("{}@{}", client.name, client.realm)) {
            return Some(Claimed { name: user, mapped: true, may_be_system: self.mapped_may_be_system });
        }
        let ours = client.realm == service.realm && client.is_plain();
        ours.then_some(Claimed { name: &client.name, mapped: false, may_be_system: self.all_may_be_system })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn principal(text: &str) -> Principal {
        Principal::parse(text).expect("a principal")
    }

    #[test]
    fn a_principal_is_the_user_of_its_name_or_of_the_map() {
        let mut principals = Principals { mapped_may_be_system: true, ..Principals::default() };
        principals.map("HTTP/host@R", "svc").unwrap();
        principals.map("alice@OTHER", "alice").unwrap();
        principals.map("root@R", "root").unwrap();
        principals.map("carol@R", "eve").unwrap();
        let service = principal("cifs/host@R");
        for (client, user) in [
            ("alice@R", Some(("alice", false))),
            ("ALICE@R", Some(("ALICE", false))),
            ("HTTP/host@R", Some(("svc", true))),
            ("alice@OTHER", Some(("alice", true))),
            ("carol@R", Some(("eve", true))),
            ("root@R", Some(("root", true))),
            ("Carol@R", Some(("Carol", false))),
            ("bob@OTHER", None),
            ("alice@other", None),
            ("HTTP/host@OTHER", None),
            ("http/host@R", None),
            ("alice/admin@R", None),
        ] {
            let client = principal(client);
            let claimed = principals.claimed(&client, &service);
            assert_eq!(claimed.as_ref().map(|claimed| (claimed.name, claimed.mapped)), user, "{client:?}");
            assert_eq!(
                claimed.is_some_and(|claimed| claimed.may_be_system),
                user.is_some_and(|(_, mapped)| mapped),
                "only mapped principals"
            );
        }
    }

    #[test]
    fn a_principal_is_no_user_who_is_spelled_otherwise() {
        let mut principals = Principals::default();
        principals.map("svc@R", "alice").unwrap();
        let service = principal("nfs/host@R");
        let is = |client: &str, spelled: &str| {
            let client = principal(client);
            principals.claimed(&client, &service).is_some_and(|claimed| claimed.is(spelled))
        };
        for spelled in ["alice", "alice@example.org", r"EXAMPLE\alice", "EXAMPLE+alice", "EXAMPLE/alice"] {
            assert!(is("alice@R", spelled), "{spelled}");
            for other in ["ALICE@R", "Alice@R", "alice@r", "ALICE@r", "lice@R", "alic@R"] {
                assert!(!is(other, spelled), "{other}: {spelled}");
            }
        }
        for spelled in ["Alice", "alices", "malice", r"EXAMPLE\Alice", ""] {
            assert!(!is("alice@R", spelled), "{spelled}");
        }
        assert!(is("svc@R", "Alice"), "an administrator has named the user, and users ignore case");
        assert!(!is("SVC@R", "alice"));
    }

    #[test]
    fn the_map_and_the_realm_say_who_may_be_an_account_of_the_system() {
        let mut principals = Principals { mapped_may_be_system: true, ..Principals::default() };
        principals.map("alice@OTHER", "alice").unwrap();
        assert!(principals.names("alice") && !principals.names("Alice") && !principals.names("bob"));
        assert!(principals.may_be_system("alice") && !principals.may_be_system("bob"));
        principals.all_may_be_system = true;
        assert!(principals.may_be_system("bob"));
        let none = Principals { mapped_may_be_system: false, all_may_be_system: false, ..principals };
        assert!(!none.may_be_system("alice"));
    }

    #[test]
    fn a_line_of_the_map_names_a_realm() {
        let mut principals = Principals::default();
        for text in ["alice", "@R", "alice@", "", "a@b@c", "a\\@b@R"] {
            assert_eq!(principals.map(text, "alice"), Err(BadPrincipal), "{text}");
        }
        assert_eq!(principals.mapped().count(), 0);
    }
}
