//! The command line of `weft config`. `crate::config_command` carries it out.

use std::path::PathBuf;

use clap::Subcommand;

use super::Serve;

/// `weft config`.
#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:\n  weft config init weft.toml\n  weft config check weft.toml\n  \
weft config show --config weft.toml --smb-port 445\n  weft serve --config weft.toml\n\n\
The default file is $XDG_CONFIG_HOME/weft/weft.toml or ~/.config/weft/weft.toml, for root /etc/weft/weft.toml.")]
pub(crate) struct Config {
    /// What to do
    #[command(subcommand)]
    pub command: ConfigCommand,
}

/// A command of `weft config`.
#[derive(Subcommand, Debug)]
pub(crate) enum ConfigCommand {
    /// Print an example file with every key in a comment, or write it to a new file
    Init(ConfigInit),
    /// Check a file and report every error, with line and column
    Check(ConfigCheck),
    /// Print every effective value and its origin; takes the options of weft serve
    #[command(after_help = "Examples:\n  weft config show --config weft.toml\n  \
weft config show --config weft.toml --smb-port 445")]
    Show(Box<Serve>),
    /// Describe all keys, in Markdown
    Reference,
}

/// `weft config init`.
#[derive(clap::Args, Debug)]
pub(crate) struct ConfigInit {
    /// New file to write; without it, the example is printed
    #[arg(value_name = "FILE")]
    pub file: Option<PathBuf>,
}

/// `weft config check`.
#[derive(clap::Args, Debug)]
pub(crate) struct ConfigCheck {
    /// File to check [default: the file that weft serve reads]
    #[arg(value_name = "FILE")]
    pub file: Option<PathBuf>,
}
