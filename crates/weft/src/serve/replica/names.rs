//! Names of groups. A group's name is part of its files' names, and another server may have chosen it. So only a
//! checked name is a [`GroupName`], and only a [`GroupName`] becomes a path (see [`super::config::Folder`]).

use std::borrow::Borrow;
use std::fmt;
use std::ops::Deref;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use weft_store::volume::{self, MAX_NAME};

/// A valid name of a group: the rules are those of volumes, because its journal is one.
#[derive(Serialize, Deserialize, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[serde(try_from = "String", into = "String")]
pub(crate) struct GroupName(String);

/// Text that is not a valid group name.
#[derive(Debug, thiserror::Error)]
#[error(
    "{0:?} cannot name a group: use letters, digits, '-', '_' and '.', at most {MAX_NAME}, without a leading '.'"
)]
pub(crate) struct NoName(String);

impl TryFrom<String> for GroupName {
    type Error = NoName;

    fn try_from(text: String) -> Result<GroupName, NoName> {
        if volume::is_name(&text) { Ok(GroupName(text)) } else { Err(NoName(text)) }
    }
}

impl FromStr for GroupName {
    type Err = NoName;

    fn from_str(text: &str) -> Result<GroupName, NoName> {
        GroupName::try_from(text.to_owned())
    }
}

impl From<GroupName> for String {
    fn from(name: GroupName) -> String {
        name.0
    }
}

impl Deref for GroupName {
    type Target = str;

    fn deref(&self) -> &str {
        &self.0
    }
}

impl Borrow<str> for GroupName {
    fn borrow(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for GroupName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for GroupName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.0, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_leads_to_no_other_folder_and_does_nothing_to_a_terminal() {
        for name in ["db", "vol1", "a.b-c_d", "größe"] {
            assert_eq!(&*name.parse::<GroupName>().unwrap(), name);
        }
        let long = "x".repeat(MAX_NAME + 1);
        for name in
            ["", ".", "..", ".db", "./db", "../db", "/db", "a/b", "a\0b", "a b", "a\x1b[2J", "a\nb", &long]
        {
            assert!(name.parse::<GroupName>().is_err(), "{name:?}");
            let json = serde_json::to_string(name).unwrap();
            assert!(serde_json::from_str::<GroupName>(&json).is_err(), "{name:?}");
        }
    }
}
