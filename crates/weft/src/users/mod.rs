//! The users who may log on to servers of a state directory, and their groups: the commands that change them, and what
//! a server reads.
//!
//! [`store`] owns the file, [`seal`] its secrets, [`name`] the rules for names, [`rights`] finds where shares use them. Rights of users on shares are part of
//! the configuration (`crate::config`), which refers to them by name.

mod command;
mod name;
mod rights;
mod seal;
pub(crate) mod store;

pub(crate) use self::command::{group, user};
pub(crate) use self::name::{Name, UnfitName};

fn joined<'a>(names: impl IntoIterator<Item = &'a Name>) -> String {
    names.into_iter().map(Name::as_str).collect::<Vec<_>>().join(", ")
}
