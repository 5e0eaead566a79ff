//! The command lines of `weft user` and `weft group`. `crate::users` carries them out.

use std::path::PathBuf;

use clap::Subcommand;

use crate::users::Name;

/// `weft user`.
#[derive(clap::Args, Debug)]
#[command(
    after_help = "Examples:\n  weft user add alice --group staff\n  weft user passwd alice\n  weft user list\n\n\
The users may log on to every server of the state directory, also beside the user of --user. A server that is running \
takes changes over at once. The password comes from WEFT_PASSWORD, or is asked for on the terminal."
)]
pub(crate) struct User {
    /// State directory, which contains the users [default: $XDG_STATE_HOME/weft, or ~/.local/state/weft]
    #[arg(long, value_name = "DIR", global = true, env = "WEFT_STATE_DIR", hide_env_values = true)]
    pub state_dir: Option<PathBuf>,
    /// What to do
    #[command(subcommand)]
    pub command: UserCommand,
}

/// A command of `weft user`.
#[derive(Subcommand, Debug)]
pub(crate) enum UserCommand {
    /// Add a user
    Add(UserAdd),
    /// Change a user's password; sessions that are open stay open
    Passwd(UserPasswd),
    /// Remove a user, also from groups, and end the user's sessions
    Remove(UserRemove),
    /// List the users and their groups
    List(UserList),
}

/// `weft user add`.
#[derive(clap::Args, Debug)]
pub(crate) struct UserAdd {
    /// The name; letter case makes no difference
    pub name: Name,
    /// Add the user to this group, which is created if missing; may be repeated
    #[arg(long = "group", value_name = "GROUP")]
    pub groups: Vec<Name>,
    /// Generate a password and print it
    #[arg(long)]
    pub generate: bool,
}

/// `weft user passwd`.
#[derive(clap::Args, Debug)]
pub(crate) struct UserPasswd {
    /// The user
    pub name: Name,
    /// Generate a password and print it
    #[arg(long)]
    pub generate: bool,
    /// Make a new users.key if the old one is lost; all other users then need new passwords, too
    #[arg(long)]
    pub new_key: bool,
}

/// `weft user remove`.
#[derive(clap::Args, Debug)]
pub(crate) struct UserRemove {
    /// The user
    pub name: Name,
    /// Remove the user although shares give rights to this name
    #[arg(long)]
    pub force: bool,
}

/// `weft user list`.
#[derive(clap::Args, Debug)]
pub(crate) struct UserList {
    /// Print a JSON array
    #[arg(long)]
    pub json: bool,
}

/// `weft group`.
#[derive(clap::Args, Debug)]
#[command(
    after_help = "Examples:\n  weft group add staff alice bob\n  weft group remove staff bob\n  weft group list\n\n\
The keys read and write of a share name a group as \"@staff\"."
)]
pub(crate) struct Group {
    /// State directory, which contains the groups [default: $XDG_STATE_HOME/weft, or ~/.local/state/weft]
    #[arg(long, value_name = "DIR", global = true, env = "WEFT_STATE_DIR", hide_env_values = true)]
    pub state_dir: Option<PathBuf>,
    /// What to do
    #[command(subcommand)]
    pub command: GroupCommand,
}

/// A command of `weft group`.
#[derive(Subcommand, Debug)]
pub(crate) enum GroupCommand {
    /// Add users to a group, which is created if missing
    Add(GroupAdd),
    /// Remove users from a group; without users, remove the group
    Remove(GroupRemove),
    /// List the groups and their members
    List(GroupList),
}

/// `weft group add`.
#[derive(clap::Args, Debug)]
pub(crate) struct GroupAdd {
    /// The group
    pub group: Name,
    /// The users to add
    pub users: Vec<Name>,
}

/// `weft group remove`.
#[derive(clap::Args, Debug)]
pub(crate) struct GroupRemove {
    /// The group
    pub group: Name,
    /// The users to remove
    pub users: Vec<Name>,
    /// Remove the group although shares give rights to this name
    #[arg(long)]
    pub force: bool,
}

/// `weft group list`.
#[derive(clap::Args, Debug)]
pub(crate) struct GroupList {
    /// Print a JSON array
    #[arg(long)]
    pub json: bool,
}
