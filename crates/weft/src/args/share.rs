//! The command line of `weft share`. `crate::share_command` carries it out.

use std::path::PathBuf;

use clap::{ArgGroup, Subcommand};
use weft_store::rights::Principal;

/// Why a value is refused.
type Failure = Box<dyn std::error::Error + Send + Sync>;

/// `weft share`.
#[derive(clap::Args, Debug)]
#[command(
    after_help = "Examples:\n  weft share add team /srv/team --read @staff --write alice\n  weft share add scans /srv/scans --quota 200GiB\n  weft share list\n  \
weft share set scans --quota 300GiB --write @office\n  weft share remove team\n\n\
The commands change the configuration file; its comments stay, and servers that use it take the change over. Without --read and --write every user may read and write."
)]
pub(crate) struct Share {
    /// Configuration file [default: the file that weft serve reads]
    #[arg(long, value_name = "FILE", global = true)]
    pub config: Option<PathBuf>,
    /// State directory of the servers that are told of a change [default: that of the file, or the user's]
    #[arg(long, value_name = "DIR", global = true, env = "WEFT_STATE_DIR", hide_env_values = true)]
    pub state_dir: Option<PathBuf>,
    /// What to do
    #[command(subcommand)]
    pub command: ShareCommand,
}

/// A command of `weft share`.
#[derive(Subcommand, Debug)]
pub(crate) enum ShareCommand {
    /// Add a share of a folder
    Add(ShareAdd),
    /// Change keys of a share
    Set(ShareSet),
    /// Remove a share; its files stay
    Remove(ShareRemove),
    /// List the shares of the file
    List(ShareList),
}

/// `weft share add`.
#[derive(clap::Args, Debug)]
pub(crate) struct ShareAdd {
    /// The name that clients see
    pub name: String,
    /// The folder
    pub path: PathBuf,
    /// Who may read: a user, a group (@staff) or every user (*); may be repeated
    #[arg(long, value_name = "WHO", value_parser = one)]
    pub read: Vec<Principal>,
    /// Who may read and write
    #[arg(long, value_name = "WHO", value_parser = one)]
    pub write: Vec<Principal>,
    /// How much the folder may occupy, such as 200GiB [default: what its disk has]
    #[arg(long, value_name = "SIZE", value_parser = super::value::parse_size)]
    pub quota: Option<u64>,
    /// Refuse all changes, also by those who may write
    #[arg(long)]
    pub read_only: bool,
    /// Require encryption; NFS then does not offer the share
    #[arg(long)]
    pub encrypt: bool,
}

/// `weft share set`.
#[derive(clap::Args, Debug)]
#[command(
    group = ArgGroup::new("change").required(true).multiple(true).args(["read", "write", "quota", "read_only", "encrypt", "key", "unset"]),
    after_help = "`weft config reference` describes the keys of a share, shares.NAME.KEY."
)]
pub(crate) struct ShareSet {
    /// The share
    pub name: String,
    /// Who may read from now on: a user, a group (@staff) or every user (*); may be repeated
    #[arg(long, value_name = "WHO", value_parser = one)]
    pub read: Vec<Principal>,
    /// Who may read and write from now on
    #[arg(long, value_name = "WHO", value_parser = one)]
    pub write: Vec<Principal>,
    /// How much the folder may occupy, such as 200GiB
    #[arg(long, value_name = "SIZE", value_parser = super::value::parse_size)]
    pub quota: Option<u64>,
    /// Whether all changes are refused
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    pub read_only: Option<bool>,
    /// Whether encryption is required
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    pub encrypt: Option<bool>,
    /// Another key with its value, such as hide_unreadable=true or nfs.squash=all_squash; may be repeated
    #[arg(long, value_name = "KEY=VALUE", value_parser = key_and_value)]
    pub key: Vec<(String, String)>,
    /// Remove a key, so that its default applies, such as quota; may be repeated
    #[arg(long, value_name = "KEY")]
    pub unset: Vec<String>,
}

fn key_and_value(text: &str) -> Result<(String, String), Failure> {
    match text.split_once('=') {
        Some((key, value)) if !key.trim().is_empty() && !value.trim().is_empty() => {
            Ok((key.trim().to_owned(), value.trim().to_owned()))
        }
        _ => Err("write KEY=VALUE, for example hide_unreadable=true".into()),
    }
}

/// Parses one user or group. A list would be the name of a user whom nobody can add.
fn one(text: &str) -> Result<Principal, Failure> {
    match text.contains(',') {
        true => Err("give one user or group, and repeat the option for others".into()),
        false => Ok(text.parse()?),
    }
}

/// `weft share remove`.
#[derive(clap::Args, Debug)]
pub(crate) struct ShareRemove {
    /// The share
    pub name: String,
}

/// `weft share list`.
#[derive(clap::Args, Debug)]
pub(crate) struct ShareList {
    /// Print a JSON array
    #[arg(long)]
    pub json: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_option_names_one_user_or_group() {
        assert_eq!(one("@staff").unwrap().to_string(), "@staff");
        assert!(one("bob,carol").unwrap_err().to_string().contains("repeat the option"));
        assert!(one("@").is_err());
    }
}
