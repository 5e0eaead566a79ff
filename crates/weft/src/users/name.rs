//! Names of users and groups. They are compared without regard to case ([MS-NLMP] 3.2.5.1.2).

use std::fmt;
use std::str::FromStr;

use weft_store::rights::folded;

/// The most characters of a name. Windows has 20 for users and 256 for groups; Linux has 32 for both.
pub(crate) const MAX_NAME_CHARS: usize = 64;

/// Accounts of every Windows host ([MS-DTYP] 2.4.2.4), in lower case.
const WELL_KNOWN: [&str; 17] = [
    "administrators",
    "anonymous logon",
    "authenticated users",
    "builtin",
    "creator group",
    "creator owner",
    "everyone",
    "guests",
    "interactive",
    "local service",
    "network",
    "network service",
    "none",
    "nt authority",
    "owner rights",
    "system",
    "users",
];

/// The name of a user or a group.
#[derive(Clone, Debug)]
pub(crate) struct Name {
    /// As it was written.
    shown: String,
    /// For comparison.
    folded: String,
}

/// A name that no user or group can have.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{0:?} cannot be a name: give 1 to {MAX_NAME_CHARS} characters without spaces at the ends, control characters, and any of \
     \" / \\ [ ] : ; | = , + * ? < > @"
)]
pub(crate) struct UnfitName(String);

impl Name {
    /// As it was written.
    pub(crate) fn as_str(&self) -> &str {
        &self.shown
    }

    /// Whether it is the name of an account that every Windows host has, so that clients would take one for the other.
    pub(crate) fn is_reserved(&self) -> bool {
        WELL_KNOWN.contains(&self.folded.as_str())
    }
}

impl FromStr for Name {
    type Err = UnfitName;

    fn from_str(text: &str) -> Result<Name, UnfitName> {
        // What Windows refuses (net user). A leading @ marks a group in rights.
        let is_reserved = |c: char| c.is_control() || r#""/\[]:;|=,+*?<>@"#.contains(c);
        let length = text.chars().count();
        let fits = (1..=MAX_NAME_CHARS).contains(&length)
            && text.trim() == text
            && !text.starts_with('-')
            && text.chars().any(|c| c != '.')
            && !text.contains(is_reserved);
        if !fits {
            return Err(UnfitName(text.to_owned()));
        }
        Ok(Name { shown: text.to_owned(), folded: folded(text) })
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.shown)
    }
}

impl PartialEq for Name {
    fn eq(&self, other: &Name) -> bool {
        self.folded == other.folded
    }
}

impl Eq for Name {}

impl PartialOrd for Name {
    fn partial_cmp(&self, other: &Name) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Name {
    fn cmp(&self, other: &Name) -> std::cmp::Ordering {
        self.folded.cmp(&other.folded)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_that_windows_takes_too() {
        let longest = "x".repeat(MAX_NAME_CHARS);
        for fit in ["alice", "Bob", "jörg", "first last", "a.b-c_d", "用户", &longest] {
            assert_eq!(fit.parse::<Name>().unwrap().as_str(), fit);
        }
        let too_long = "x".repeat(MAX_NAME_CHARS + 1);
        for unfit in ["", " a", "a ", "@staff", "a@b", "a\\b", "a/b", "a\nb", "..", "-x", "a,b", &too_long] {
            assert!(unfit.parse::<Name>().is_err(), "{unfit:?}");
        }
        assert_eq!("Alice".parse::<Name>(), "aLICE".parse::<Name>());
    }
}
