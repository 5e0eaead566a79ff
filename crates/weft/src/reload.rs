//! `weft reload`: lets running servers read their configuration again.

use std::path::Path;
use std::process::ExitCode;

use serde_json::json;

use crate::Failure;
use crate::admin::{self, Reloaded, Request};
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

/// Lets the running servers that use this configuration file read it again.
pub(crate) fn servers_of(file: &Path, state: Option<&Path>) -> Result<(), Failure> {
    let of_file = config::read(file)?.state_dir;
    let named = state.map(Path::to_owned).or(of_file);
    // Without any state directory no server of the file has a socket.
    let Ok(state) = state_of_command(named.as_deref()) else { return Ok(()) };
    let request = Request::Reload { file: Some(std::path::absolute(file)?) };
    let mut is_used = false;
    let answered = |pid, answer| {
        if let Some(report) = serde_json::from_value::<Option<Reloaded>>(answer)? {
            is_used = true;
            say!("server {pid}: {report}")?;
        }
        Ok(())
    };
    admin::ask_each(&admin::servers(&state)?, &request, answered, |pid, e| {
        format!("the file is changed, but the server with process number {pid} has not taken it over: {e}")
    })?;
    if !is_used {
        note!(
            "no running server with the state directory {} uses this file; --state-dir DIR names another",
            path_name(&state)
        );
    }
    Ok(())
}
