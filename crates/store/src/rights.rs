//! Who may use a share, by users and groups of the server.
//!
//! These rights hold beside the permissions of each file: a user needs both. Protocols that know who their user is
//! enforce them; names are compared without regard to case.

use std::fmt;
use std::str::FromStr;

/// A name of a user or group for comparison: letter case, and forms that Windows takes for the same letter (ı and i),
/// make no difference.
pub fn folded(name: &str) -> String {
    name.to_uppercase().to_lowercase()
}

/// What a user may do on a share.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Right {
    /// Nothing, and the share is not listed.
    None,
    /// Read.
    Read,
    /// Read and change.
    Write,
}

/// A user or group that has a right.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Principal {
    /// Every user who can log on.
    Everyone,
    /// A user.
    User(String),
    /// The members of a group.
    Group(String),
}

impl Principal {
    fn includes(&self, user: &str, is_member: &dyn Fn(&str) -> bool) -> bool {
        match self {
            Principal::Everyone => true,
            Principal::User(name) => folded(name) == folded(user),
            Principal::Group(name) => is_member(name),
        }
    }
}

/// The name of a user, a group or everyone is missing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("give a user (\"alice\"), a group (\"@staff\"), or everyone (\"*\")")]
pub struct NoPrincipal;

impl FromStr for Principal {
    type Err = NoPrincipal;

    fn from_str(text: &str) -> Result<Principal, NoPrincipal> {
        // Directory services name users and groups of a domain `staff@example.org` or `EXAMPLE\\staff`.
        let fits = |name: &str| name.trim() == name && !name.contains('*') && !name.starts_with('@');
        let named = |name: &str| match fits(name) && !name.is_empty() && !name.ends_with('@') {
            true => Ok(name.to_owned()),
            false => Err(NoPrincipal),
        };
        match (text, text.strip_prefix('@')) {
            ("*", _) => Ok(Principal::Everyone),
            (_, Some(group)) => named(group).map(Principal::Group),
            (user, None) => named(user).map(Principal::User),
        }
    }
}

impl fmt::Display for Principal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Principal::Everyone => f.write_str("*"),
            Principal::User(name) => f.write_str(name),
            Principal::Group(name) => write!(f, "@{name}"),
        }
    }
}

/// The rights on a share. With neither list every user may write; with one of them, only those whom it names have the
/// right.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rights {
    /// Who may read.
    pub read: Option<Vec<Principal>>,
    /// Who may read and write.
    pub write: Option<Vec<Principal>>,
}

impl Rights {
    /// Whether every user may write.
    pub fn are_open(&self) -> bool {
        self.read.is_none() && self.write.is_none()
    }

    /// The right of a user who is in these groups.
    pub fn of(&self, user: &str, groups: &[String]) -> Right {
        self.of_member(user, &|name| groups.iter().any(|group| folded(name) == folded(group)))
    }

    /// The right of a user; `is_member` says whether the user is in a group.
    pub fn of_member(&self, user: &str, is_member: &dyn Fn(&str) -> bool) -> Right {
        let named = |list: &Option<Vec<Principal>>| {
            list.iter().flatten().any(|principal| principal.includes(user, is_member))
        };
        if self.are_open() || named(&self.write) {
            Right::Write
        } else if named(&self.read) {
            Right::Read
        } else {
            Right::None
        }
    }

    /// The groups that they name.
    pub fn groups(&self) -> impl Iterator<Item = &str> {
        self.principals().filter_map(|principal| match principal {
            Principal::Group(name) => Some(name.as_str()),
            Principal::Everyone | Principal::User(_) => None,
        })
    }

    /// Everybody whom they name.
    pub fn principals(&self) -> impl Iterator<Item = &Principal> {
        self.read.iter().chain(&self.write).flatten()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(names: &[&str]) -> Option<Vec<Principal>> {
        Some(names.iter().map(|name| name.parse().unwrap()).collect())
    }

    #[test]
    fn a_list_gives_its_right_to_those_whom_it_names_and_to_nobody_else() {
        use Right::{None as No, Read, Write};
        let staff = ["Staff".to_owned()];
        for (read, write, alice, bob_of_staff, eve) in [
            (None, None, Write, Write, Write),
            (list(&["alice"]), None, Read, No, No),
            (None, list(&["ALICE"]), Write, No, No),
            (list(&["@staff"]), list(&["alice"]), Write, Read, No),
            (list(&["*"]), list(&["@STAFF"]), Read, Write, Read),
            (list(&["alice"]), list(&["alice"]), Write, No, No),
            (list(&[]), None, No, No, No),
            (None, list(&[]), No, No, No),
            // A user with the name of a group is not its member.
            (list(&["staff"]), None, No, No, No),
        ] {
            let rights = Rights { read, write };
            let seen = [rights.of("alice", &[]), rights.of("bob", &staff), rights.of("eve", &[])];
            assert_eq!(seen, [alice, bob_of_staff, eve], "{rights:?}");
        }
    }

    #[test]
    fn what_windows_takes_for_the_same_letter_makes_no_difference() {
        for (one, other) in [
            ("alice", "al\u{131}ce"),
            ("Jos\u{e9}", "JOS\u{c9}"),
            ("\u{17f}am", "Sam"),
            ("stra\u{df}e", "STRASSE"),
        ] {
            assert_eq!(folded(one), folded(other));
        }
        assert_ne!(folded("alice"), folded("alic"));
    }

    #[test]
    fn principals_are_read_as_they_are_shown() {
        for text in ["alice", "@staff", "*", "first last", "@domain users@example.org", "AD\\alice", "a@b"] {
            assert_eq!(text.parse::<Principal>().unwrap().to_string(), text);
        }
        for text in ["", "@", " alice", "@@x", "a@", "@a@", "@*", "**"] {
            assert_eq!(text.parse::<Principal>(), Err(NoPrincipal), "{text}");
        }
    }
}
