//! The command line: names, defaults and help of every option.

mod bench;
mod client;
mod compare;
mod config;
mod rdma;
pub(crate) mod replica;
mod serve;
mod share;
mod user;
mod value;
mod volume;

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

use clap::error::{ContextKind, ErrorKind};
use clap::parser::ValueSource;
use clap::{ArgMatches, CommandFactory, FromArgMatches, Parser, Subcommand};

pub(crate) use self::bench::*;
pub(crate) use self::client::*;
pub(crate) use self::compare::*;
pub(crate) use self::config::*;
pub(crate) use self::rdma::*;
pub(crate) use self::replica::*;
pub(crate) use self::serve::*;
pub(crate) use self::share::*;
pub(crate) use self::user::*;
pub(crate) use self::value::*;
pub(crate) use self::volume::*;

/// RDMA file storage for any Ethernet, in user space.
#[derive(Parser, Debug)]
#[command(name = "weft", version = crate::version::FULL.as_str(), about, max_term_width = 100)]
pub(crate) struct Args {
    /// Log more to standard error: -v also what happens to connections (debug), -vv also single protocol steps (trace).
    /// WEFT_LOG=LEVEL, if set, is used instead
    #[arg(short, long, global = true, action = clap::ArgAction::Count)]
    pub verbose: u8,
    /// End when no process can read standard output any more: for a process that another weft starts
    #[arg(long, global = true, hide = true)]
    pub end_with_reader: bool,
    /// What to do
    #[command(subcommand)]
    pub command: Command,
}

impl Args {
    /// Parses the command line. A number or size may begin with a hyphen, so that it is refused with the allowed
    /// range and not as an unknown option.
    pub(crate) fn of_line(
        line: impl IntoIterator<Item: Into<OsString> + Clone>,
    ) -> Result<Args, clap::Error> {
        let mut command = with_negative_values(Args::command());
        let line: Vec<OsString> = line.into_iter().map(Into::into).collect();
        // Clap and the errors of files would print it.
        if line.iter().any(|word| word.to_string_lossy().contains("-----BEGIN ")) {
            let what = "an argument is the content of a PEM file, perhaps a private key: write the path of the file, and choose a new key if others could see this one";
            return Err(command.error(ErrorKind::ValueValidation, what));
        }
        let mut found = command.clone().try_get_matches_from(line).map_err(|mut error| {
            // Clap suggests passing an unknown option as a value (`weft ls -- -l`), which never helps: no URL begins
            // with a hyphen.
            if error.kind() == ErrorKind::UnknownArgument {
                error.remove(ContextKind::Suggested);
            }
            error
        })?;
        let typed = typed(&found);
        let mut args = Args::from_arg_matches_mut(&mut found).map_err(|e| e.format(&mut command.clone()))?;
        match &mut args.command {
            Command::Serve(serve) => serve.typed = Some(typed),
            Command::Config(Config { command: ConfigCommand::Show(serve) }) => serve.typed = Some(typed),
            _ => {}
        }
        Ok(args)
    }
}

/// The arguments of the innermost command that the user has given, on the command line or in the environment.
fn typed(found: &ArgMatches) -> BTreeSet<String> {
    if let Some((_, inner)) = found.subcommand() {
        return typed(inner);
    }
    let given = |id: &&clap::Id| {
        let source = found.value_source(id.as_str());
        source.is_some_and(|source| source != ValueSource::DefaultValue)
    };
    found.ids().filter(given).map(|id| id.as_str().to_owned()).collect()
}

fn with_negative_values(command: clap::Command) -> clap::Command {
    let command = command.mut_args(|arg| {
        let is_size = arg.get_value_names().is_some_and(|names| names.iter().any(|name| *name == "SIZE"));
        match arg.get_action().takes_values() && !arg.is_positional() {
            true if is_size => arg.allow_hyphen_values(true),
            true => arg.allow_negative_numbers(true),
            false => arg,
        }
    });
    command.mut_subcommands(with_negative_values)
}

/// A command of `weft`.
#[derive(Subcommand, Debug)]
pub(crate) enum Command {
    /// Serve folders and ramdisks over SMB (and NFS), on TCP and RDMA; volumes over NBD
    Serve(Box<Serve>),
    /// Create, list, resize and remove volumes
    Volume(Volume),
    /// Let running servers read their configuration, users and groups again
    Reload(Reload),
    /// Add, remove and list the shares of the configuration file
    Share(Share),
    /// Add, change, remove and list the users who may log on
    User(User),
    /// Add, change, remove and list groups of users
    Group(Group),
    /// Replicate volumes to other hosts
    Replica(Box<Replica>),
    /// Show what the servers of a state directory serve, to whom, and whether RDMA carries the payload
    Status(Status),
    /// Copy a file or folder to or from a server, and verify the copy
    Cp(Cp),
    /// List a folder on a server, or the server's shares
    Ls(Ls),
    /// Write files from a server to standard output
    Cat(Cat),
    /// Write standard input to a file on a server
    Put(Put),
    /// Show a file's metadata
    Stat(Stat),
    /// Make one folder equal to another, to or from a server, copying only what differs
    Sync(Sync),
    /// Serve a ramdisk on this host, measure READ and WRITE over TCP, iWARP and shared memory, and write a report
    Demo(Demo),
    /// Measure a server: the published RDMA-against-TCP comparisons, or workloads of your own
    #[command(subcommand)]
    Bench(BenchCommand),
    /// Check step by step whether RDMA to a host works, and if not, why
    Doctor(Doctor),
    /// Use RDMA without storage: check data, measure, list providers
    #[command(subcommand)]
    Rdma(Rdma),
    /// Write, check and show the configuration of weft serve
    Config(Config),
    /// Write the manual pages into a folder
    Man(Man),
    /// Print a script that completes weft's commands and options in a shell
    Completions(Completions),
}

/// `weft man`.
#[derive(clap::Args, Debug)]
pub(crate) struct Man {
    /// Folder for the pages; created if missing
    #[arg(value_name = "DIR")]
    pub dir: PathBuf,
}

/// `weft completions`.
#[derive(clap::Args, Debug)]
#[command(
    after_help = "Examples:\n  weft completions bash > ~/.local/share/bash-completion/completions/weft\n  \
weft completions zsh > ~/.zfunc/_weft\n  weft completions fish > ~/.config/fish/completions/weft.fish"
)]
pub(crate) struct Completions {
    /// The shell
    #[arg(value_name = "SHELL")]
    pub shell: clap_complete::Shell,
}

impl Command {
    /// The state directory that the command line or the environment names.
    pub(crate) fn state_dir(&self) -> Option<&Path> {
        match self {
            Command::Serve(args) => args.state_dir.as_deref(),
            Command::Volume(args) => args.state_dir.as_deref(),
            Command::Replica(args) => args.state_dir.as_deref(),
            Command::Status(args) => args.state_dir.as_deref(),
            Command::User(args) => args.state_dir.as_deref(),
            Command::Reload(args) => args.state_dir.as_deref(),
            Command::Share(args) => args.state_dir.as_deref(),
            Command::Group(args) => args.state_dir.as_deref(),
            Command::Bench(BenchCommand::Agent(args)) => args.state_dir.as_deref(),
            Command::Cp(_) | Command::Ls(_) | Command::Cat(_) | Command::Put(_) | Command::Stat(_) => None,
            Command::Sync(_) | Command::Demo(_) | Command::Bench(_) => None,
            Command::Doctor(_)
            | Command::Rdma(_)
            | Command::Config(_)
            | Command::Man(_)
            | Command::Completions(_) => None,
        }
    }

    /// Whether the command stays and serves, so that its log reports what it does.
    pub(crate) fn serves(&self) -> bool {
        match self {
            Command::Serve(_)
            | Command::Rdma(Rdma::Ping(Ping { server: true, .. }) | Rdma::Perf(Perf::Server(_))) => true,
            Command::Cp(_) | Command::Ls(_) | Command::Cat(_) | Command::Put(_) => false,
            Command::Stat(_)
            | Command::Sync(_)
            | Command::Demo(_)
            | Command::Volume(_)
            | Command::Bench(_) => false,
            Command::Status(_)
            | Command::Reload(_)
            | Command::Replica(_)
            | Command::Share(_)
            | Command::User(_)
            | Command::Group(_) => false,
            Command::Doctor(_)
            | Command::Rdma(_)
            | Command::Config(_)
            | Command::Man(_)
            | Command::Completions(_) => false,
        }
    }
}

/// `weft status`.
#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:\n  weft status\n  weft status --watch\n  \
weft status --json | jq '.servers[].connections[] | [.peer, .transport, .provider, .traffic.rdma_written_bytes]'\n\n\
It shows the servers on this host that use this state directory. To see a server that was started with another one:\n  \
weft status --state-dir DIR")]
pub(crate) struct Status {
    /// The state directory whose servers are shown [default: $XDG_STATE_HOME/weft, or ~/.local/state/weft]
    #[arg(long, value_name = "DIR", env = "WEFT_STATE_DIR", hide_env_values = true)]
    pub state_dir: Option<PathBuf>,
    /// Only the server with this process number
    #[arg(long, value_name = "N", value_parser = number::<u32>(1..))]
    pub pid: Option<u32>,
    /// Show operations that were slow or have not ended, with the time that they spent in each place
    #[arg(long)]
    pub slow: bool,
    /// Print JSON: {"servers": [...]}
    #[arg(long)]
    pub json: bool,
    /// Repeat until Ctrl-C
    #[arg(long)]
    pub watch: bool,
    /// Seconds between updates
    #[arg(long, value_name = "SECONDS", default_value_t = 1, requires = "watch", value_parser = number::<u64>(1..=86_400))]
    pub every: u64,
}

/// `weft reload`.
#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:\n  weft reload\n  weft reload --pid 4711 --json\n\n\
A server checks the new configuration first; if it is wrong, nothing changes. Sessions and open files live on; a share or \
user that is gone ends its own sessions only. Keys that need a restart are named and keep their values. SIGHUP does the \
same with a server that has a configuration file and no terminal.")]
pub(crate) struct Reload {
    /// The state directory of the servers [default: $XDG_STATE_HOME/weft, or ~/.local/state/weft]
    #[arg(long, value_name = "DIR", env = "WEFT_STATE_DIR", hide_env_values = true)]
    pub state_dir: Option<PathBuf>,
    /// Only the server with this process number
    #[arg(long, value_name = "N", value_parser = number::<u32>(1..))]
    pub pid: Option<u32>,
    /// Print a JSON array
    #[arg(long)]
    pub json: bool,
}

/// What the share of `weft demo`, which is in memory, has room for beside its other files.
const MOST_DEMO_BYTES: u64 = 512 << 20;

/// `weft demo`.
#[derive(clap::Args, Debug)]
pub(crate) struct Demo {
    /// File for the report; - writes it to standard output, and the tables to standard error
    #[arg(long, value_name = "FILE", default_value = "report.html")]
    pub out: PathBuf,
    /// Also write the figures as JSON to FILE (docs/result-schema.md)
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// Also write the figures as CSV to FILE, with every percentile
    #[arg(long, value_name = "FILE")]
    pub csv: Option<PathBuf>,
    /// Check the project's performance bounds; exit non-zero if one is missed
    #[arg(long)]
    pub gate: bool,
    /// Repetitions of each point; the median is reported
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = number::<usize>(1..=1000))]
    pub repetitions: usize,
    /// Length of one measurement in milliseconds
    #[arg(long, value_name = "MS", default_value_t = 150, value_parser = number::<u64>(1..=600_000))]
    pub duration_ms: u64,
    /// Size of the file that is read and written; the default exceeds every processor cache
    #[arg(long, value_name = "SIZE", default_value = "256M", value_parser = |text: &str| parse_within(text, 1 << 20, memory().min(MOST_DEMO_BYTES)))]
    pub file_size: u64,
    /// Measure fewer points
    #[arg(long)]
    pub quick: bool,
    /// Measure only points whose name contains TEXT: "SMB READ 8 KiB", "qd 1"
    #[arg(long, value_name = "TEXT", default_value = "")]
    pub only: String,
    /// Measure only over these transports; without tcp there is nothing to compare with
    #[arg(long, value_name = "NAME", value_delimiter = ',', value_parser = ["tcp", "iwarp", "iwarp-nocrc", "shm"])]
    pub over: Vec<String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Args::command().debug_assert();
    }

    #[test]
    fn a_private_key_is_not_printed() {
        let key = "-----BEGIN PRIVATE KEY-----\nMC4CAQAwBQYDK2Vw\n-----END PRIVATE KEY-----";
        let option = "--nfs-tls-key".to_owned();
        let before = ["weft", "serve", "d", "--nfs-port", "0", "--nfs-tls-cert", "c"].map(str::to_owned);
        for words in [vec![option.clone(), key.to_owned()], vec![option + "=" + key]] {
            let refused = Args::of_line(before.iter().cloned().chain(words)).unwrap_err();
            let said = refused.to_string();
            assert!(said.contains("the content of a PEM file") && !said.contains("MC4C"), "{said}");
            assert_eq!(refused.exit_code(), 2);
        }
    }

    #[test]
    fn an_option_that_does_not_exist_is_not_taken_for_a_value() {
        let refused = Args::of_line(["weft", "ls", "-l"]).unwrap_err().to_string();
        assert!(refused.contains("unexpected argument '-l'") && !refused.contains("-- -l"), "{refused}");
        let similar = Args::of_line(["weft", "ls", "--jsn", "smb://a@h"]).unwrap_err().to_string();
        assert!(similar.contains("--json"), "{similar}");
    }

    #[test]
    fn man_pages_go_where_they_are_asked_for() {
        assert!(Args::of_line(["weft", "man"]).unwrap_err().to_string().contains("<DIR>"));
        assert!(Args::command().render_help().to_string().contains("manual pages"));
    }
}
