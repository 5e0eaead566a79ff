//! `weft completions`: prints a completion script, made from the same table of arguments as `--help`.

use std::io::Write;
use std::process::ExitCode;

use clap::CommandFactory;

use crate::Failure;
use crate::args::{Args, Completions};

/// Runs the command.
pub(crate) fn run(args: Completions) -> Result<ExitCode, Failure> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Args::command(), "weft", &mut script);
    crate::out::Stdout.write_all(&script)?;
    Ok(ExitCode::SUCCESS)
}
