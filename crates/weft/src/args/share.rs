//! The command line of `weft share`. `crate::share_command` carries it out.

use std::path::PathBuf;

use clap::Subcommand;
use weft_store::rights::Principal;

/// Why a value is refused.
type Failure = Box<dyn std::error::Error + Send + Sync>;

/// `weft share`.
#[derive(clap::Args, Debug)]
#[command(
    after_help = "Examples:\n  weft share add team /srv/team --read @staff --write alice\n  weft share add scans /srv/scans --quota 200GiB\n  weft share list\n  \
weft share remove team\n\n\
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
