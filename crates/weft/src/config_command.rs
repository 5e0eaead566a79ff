//! `weft config`: writes an example of a configuration file, checks a file, and shows the effective values.

use std::path::Path;
use std::process::ExitCode;

use crate::Failure;
use crate::args::{Config, ConfigCommand, Serve};
use crate::config::reference::{self, Effective};
use crate::config::{self, ConfigError, MAX_SHOWN, ServeConfig, edit, find};
use crate::exit_status::status_of;
use crate::groups::{self, Kind};
use crate::misuse::Misuse;
use crate::out::{ShellCommand, path_name};

/// Runs the command.
pub(crate) fn run(args: Config) -> Result<ExitCode, Failure> {
    match args.command {
        ConfigCommand::Init(args) => init(args.file.as_deref()),
        ConfigCommand::Check(args) => check(args.file.as_deref()),
        ConfigCommand::Show(args) => show(*args),
        ConfigCommand::Reference => {
            crate::out::print(format_args!("{}", reference::markdown()))?;
            Ok(ExitCode::SUCCESS)
        }
    }
}

/// The configuration from these options and from the file that they name, or the default file.
pub(crate) fn requested(args: Serve) -> Result<ServeConfig, Failure> {
    let base = find::read_for(args.config.as_deref(), args.names_served())?;
    Ok(args.config_over(base)?)
}

fn init(file: Option<&Path>) -> Result<ExitCode, Failure> {
    let Some(path) = file else {
        crate::out::print(format_args!("{}", reference::example()))?;
        return Ok(ExitCode::SUCCESS);
    };
    edit::create(path, &reference::example())?;
    let check = ShellCommand::new("weft config check").operand(path);
    say!("wrote {}; edit it, then run: {check}", path_name(path))?;
    Ok(ExitCode::SUCCESS)
}

fn check(file: Option<&Path>) -> Result<ExitCode, Failure> {
    let default = find::default_file();
    let no_file =
        || Misuse::new("neither XDG_CONFIG_HOME nor HOME is set: name a file with weft config check FILE");
    let path = file.or(default.as_deref()).ok_or_else(no_file)?;
    let config = match config::read(path) {
        Ok(config) => config,
        Err(bad) => {
            note!("{bad}");
            return Ok(ExitCode::from(status_of(&bad)));
        }
    };
    let looks = config.look();
    let warnings = config.warnings(&looks);
    note_some(&warnings);
    config.absent_shares(&looks).iter().for_each(|absent| note!("{absent}"));
    // The users and groups are in the state directory.
    if config.silent_files(&looks).next().is_none() {
        for (name, kind) in groups::of_rights(&config, None) {
            match kind {
                Kind::Own | Kind::System(_) | Kind::SystemOfRoot(_) => say!("@{name}: {kind}")?,
                Kind::Unknown | Kind::Unanswered(_) => note!("@{name}: {kind}"),
            }
        }
        groups::note_unknown_users(&groups::unknown_users(&config, config.shares.iter(), None));
    }
    let errors: Vec<_> = config.errors(&looks).collect();
    note_some(&errors);
    match errors.first() {
        Some(error) => Ok(ExitCode::from(status_of(error))),
        None => {
            say!("{}: no errors", path_name(path))?;
            Ok(ExitCode::SUCCESS)
        }
    }
}

/// Prints the first messages, and counts the others.
fn note_some(errors: &[ConfigError]) {
    errors.iter().take(MAX_SHOWN).for_each(|error| note!("{error}"));
    match errors.len().saturating_sub(MAX_SHOWN) {
        0 => {}
        more => note!("and {more} more"),
    }
}

fn show(args: Serve) -> Result<ExitCode, Failure> {
    let json = args.json;
    let config = requested(args)?;
    let all = reference::effective(&config);
    if json {
        let mut out = crate::out::Stdout;
        serde_json::to_writer_pretty(&mut out, &all)?;
        say!()?;
        return Ok(ExitCode::SUCCESS);
    }
    let lines: Vec<(String, &str)> = all.iter().map(|one| (line(one), one.origin.as_str())).collect();
    let width =
        lines.iter().map(|(line, _)| line.chars().count()).filter(|n| *n <= WIDEST).max().unwrap_or(0);
    for (line, origin) in lines {
        say!("{line:width$}  # {origin}")?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Longer lines do not move the column of origins.
const WIDEST: usize = 60;

/// A value as written in a file.
fn line(one: &Effective) -> String {
    match &one.value {
        Some(value) => format!("{} = {value}", one.key),
        None => format!("# {}: {}", one.key, one.otherwise),
    }
}
