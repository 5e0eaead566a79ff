//! `weft reload`: lets running servers read their configuration again.

use std::cell::Cell;
use std::path::Path;
use std::process::ExitCode;

use serde_json::json;

use crate::Failure;
use crate::admin::{self, Reloaded, Request, Unanswered};
use crate::args::Reload;
use crate::config;
use crate::out::path_name;
use crate::state_of_command::state_of_command;
use crate::status;

/// Runs the command.
pub(crate) fn run(args: Reload) -> Result<ExitCode, Failure> {
    let state = state_of_command(args.state_dir.as_deref())?;
    let mut reports = Vec::new();
    let answered = |pid, answer| {
        let report: Reloaded = serde_json::from_value(answer)?;
        if args.json {
            reports.push(json!({"pid": pid, "reloaded": report}));
        } else {
            say!("server {pid}: {report}")?;
        }
        Ok(())
    };
    let servers = status::chosen(&state, args.pid)?;
    let asked = admin::ask_each(&servers, &Request::Reload { file: None }, answered, |pid, e| {
        format!("the server with process number {pid}: {e}")
    });
    if args.json && !(asked.is_err() && reports.is_empty()) {
        serde_json::to_writer_pretty(&mut crate::out::Stdout, &reports)?;
        say!()?;
    }
    asked.map(|()| ExitCode::SUCCESS)
}

/// A server has not taken a changed file over.
#[derive(Debug, thiserror::Error)]
#[error("the file is changed, but {refusals}")]
pub(crate) struct NotTaken {
    /// The servers and their reasons.
    pub refusals: String,
    /// Whether all have refused it; one that has not answered may still take it over.
    pub is_refused: bool,
}

/// Lets the running servers that use this configuration file read it again. Returns their process numbers and reports.
///
/// # Errors
/// [`NotTaken`], or no server can be asked.
pub(crate) fn servers_of(file: &Path, state: Option<&Path>) -> Result<Vec<(u32, Reloaded)>, Failure> {
    let of_file = config::read(file)?.state_dir;
    let named = state.map(Path::to_owned).or(of_file);
    // Without any state directory no server of the file has a socket.
    let Ok(state) = state_of_command(named.as_deref()) else { return Ok(Vec::new()) };
    let request = Request::Reload { file: Some(std::path::absolute(file)?) };
    let (mut reports, is_refused) = (Vec::new(), Cell::new(true));
    let answered = |pid, answer| {
        if let Some(report) = serde_json::from_value::<Option<Reloaded>>(answer)? {
            say!("server {pid}: {report}")?;
            reports.push((pid, report));
        }
        Ok(())
    };
    let asked = admin::ask_each(&admin::servers(&state)?, &request, answered, |pid, e| {
        is_refused.set(is_refused.get() && !e.is::<Unanswered>());
        format!("the server with process number {pid} has not taken it over: {e}")
    });
    asked.map_err(|e| NotTaken { refusals: e.to_string(), is_refused: is_refused.get() })?;
    if reports.is_empty() {
        note!(
            "no running server with the state directory {} uses this file; --state-dir DIR names another",
            path_name(&state)
        );
    }
    Ok(reports)
}
