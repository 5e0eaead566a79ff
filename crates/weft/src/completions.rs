//! `weft completions`: prints a completion script, made from the same table of arguments as `--help`.

use std::io::Write;
use std::process::ExitCode;

use clap::CommandFactory;
use clap_complete::Shell;

use crate::Failure;
use crate::args::{Args, Completions};

/// What `--help` does not show; clap_complete would.
const HIDDEN: &str = "end-with-reader";

/// Runs the command.
pub(crate) fn run(args: Completions) -> Result<ExitCode, Failure> {
    crate::out::Stdout.write_all(script(args.shell)?.as_bytes())?;
    Ok(ExitCode::SUCCESS)
}

fn script(shell: Shell) -> Result<String, Failure> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Args::command(), "weft", &mut script);
    let script = String::from_utf8(script)?;
    Ok(match shell {
        // The options of a command are the words of a line.
        Shell::Bash => script.replace(&format!(" --{HIDDEN}"), ""),
        // Each option has a line.
        _ => script.split_inclusive('\n').filter(|line| !line.contains(HIDDEN)).collect(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scripts_complete_what_help_shows() {
        for shell in [Shell::Bash, Shell::Zsh, Shell::Fish, Shell::Elvish, Shell::PowerShell] {
            let script = script(shell).unwrap();
            let known = if shell == Shell::Fish { "-l verbose" } else { "--verbose" };
            assert!(script.contains(known), "{shell}");
            assert!(!script.contains("end-with-reader"), "{shell}");
        }
    }
}
