//! The command line of `weft config`. `crate::config_command` carries it out.

use std::path::PathBuf;

use clap::Subcommand;

use super::Serve;

/// `weft config`.
#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:\n  weft config init weft.toml\n  weft config check weft.toml\n  \
weft config show --config weft.toml --smb-port 445\n  weft serve --config weft.toml\n\n\
Without a file, the default one is used: $XDG_CONFIG_HOME/weft/weft.toml, or ~/.config/weft/weft.toml; as root \
/etc/weft/weft.toml.")]
pub(crate) struct Config {
    /// What to do
    #[command(subcommand)]
    pub command: ConfigCommand,
}

/// A command of `weft config`.
#[derive(Subcommand, Debug)]
pub(crate) enum ConfigCommand {
    /// Print an example with every key in a comment, or write it to a new file
    Init(ConfigInit),
    /// Check a file, and report everything that is wrong with it
    Check(ConfigCheck),
    /// Print every value in effect, and where it was written, for the same options as weft serve
    #[command(after_help = "Examples:\n  weft config show --config weft.toml\n  \
weft config show --config weft.toml --smb-port 445")]
    Show(Box<Serve>),
    /// Print the description of all keys, as Markdown
    Reference,
}

/// `weft config init`.
#[derive(clap::Args, Debug)]
pub(crate) struct ConfigInit {
    /// The file, which must not exist; without it, the example is printed
    #[arg(value_name = "FILE")]
    pub file: Option<PathBuf>,
}

/// `weft config check`.
#[derive(clap::Args, Debug)]
pub(crate) struct ConfigCheck {
    /// The file [default: that of weft serve]
    #[arg(value_name = "FILE")]
    pub file: Option<PathBuf>,
}
