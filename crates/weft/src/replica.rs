//! `weft replica`: sends commands to the running server and shows the state of replication. The server replicates
//! (see `serve::replica`), so it must run.

mod check;
pub(crate) mod print;
mod verify;

use std::io::{IsTerminal, Write};
use std::net::ToSocketAddrs;
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use serde_json::json;

use crate::Failure;
use crate::admin::replica::{Command, Create, Group, Reply};
use crate::admin::{Request, Server};
use crate::args::{Keep, Other, Replica, ReplicaCommand, ReplicaCreate, ReplicaMode, ReplicaStatus};
use crate::misuse::Misuse;
use crate::out;
use crate::password;
use crate::serve::replica::config::{Address, Password};
use crate::serve::replica::{Misfit, few_and_distinct};
use crate::state_of_command::state_of_command;
use crate::status;

/// Time limit for a command that waits for the other side.
const PATIENCE: Duration = Duration::from_secs(180);
/// Time limit for a comparison.
const VERIFY_PATIENCE: Duration = Duration::from_secs(7 * 24 * 3600);

/// Runs the command.
pub(crate) fn run(args: Replica) -> Result<ExitCode, Failure> {
    let state = state_of_command(args.state_dir.as_deref())?;
    let (state, pid) = (state.as_path(), args.pid);
    let command = match args.command {
        ReplicaCommand::Status(args) => return show(state, pid, &args),
        ReplicaCommand::Check(args) => return check::run(state, args),
        ReplicaCommand::TestFailover(args) => Command::TestFailover { group: args.group, end: args.end },
        ReplicaCommand::Resize(args) => Command::Resize { group: args.group, size: args.size },
        ReplicaCommand::Create(args) => Command::Create(Box::new(wanted(args)?)),
        ReplicaCommand::Switch(args) => Command::Switch {
            group: args.group.group,
            to: args.group.to,
            failover: args.failover,
            past: args.force.unwrap_or_default(),
        },
        ReplicaCommand::Suspend(args) => Command::Suspend { group: args.group, to: args.to },
        ReplicaCommand::Resume(args) => Command::Resume { group: args.group, to: args.to },
        ReplicaCommand::Verify(args) => return verify::run(state, pid, args),
        ReplicaCommand::Remove(args) => {
            Command::Remove { group: args.group.group, to: args.group.to, force: args.force }
        }
        ReplicaCommand::Resolve(args) => {
            Command::Resolve { group: args.group, keep_here: args.keep == Keep::Here, force: args.force }
        }
    };
    match ask(&one(state, pid)?, command, PATIENCE)? {
        Reply::Done(said) => {
            say!("{said}")?;
            if let Some(advice) = out::state_dir_advice(&said) {
                say!("{advice}")?;
            }
        }
        other => return Err(format!("unexpected answer of the server: {other:?}").into()),
    }
    Ok(ExitCode::SUCCESS)
}

/// The one server that the user means.
fn one(state: &Path, pid: Option<u32>) -> Result<Server, Failure> {
    let mut servers = status::chosen(state, pid)?;
    if servers.len() > 1 {
        let pids: Vec<String> = servers.iter().map(|server| server.pid.to_string()).collect();
        return Err(
            format!("several servers run on this host: choose one with --pid: {}", pids.join(", ")).into()
        );
    }
    servers.pop().ok_or_else(|| "no server is running; start one: weft serve --replica".into())
}

fn ask(server: &Server, command: Command, patience: Duration) -> Result<Reply, Failure> {
    let answer = server.ask_within(&Request::Replica(command), patience)?;
    Ok(serde_json::from_value(answer)?)
}

fn wanted(args: ReplicaCreate) -> Result<Create, Failure> {
    let (host, theirs) = parse_to(&args.to)?;
    let their_volumes = theirs.unwrap_or_else(|| args.volumes.clone());
    if args.volumes.len() != their_volumes.len() {
        return Err(Misuse::new(Misfit::Unpaired.to_string()).into());
    }
    for volumes in [&args.volumes, &their_volumes] {
        few_and_distinct(volumes).map_err(|e| Misuse::new(e.to_string()))?;
    }
    Ok(Create {
        address: Address { compress: args.compress, ..address(&host, &args.other)? },
        volumes: args.volumes,
        their_volumes,
        group: args.group,
        synchronous: args.mode == ReplicaMode::Sync,
        seeded: args.seeded,
        overwrite: args.overwrite,
        log_bytes: args.log_size,
        return_host: args.return_host,
        on_loss: args.on_loss,
        on_congestion: args.on_congestion,
    })
}

/// Parses `HOST` or `HOST:VOLUME,...`; an IPv6 address is in brackets.
fn parse_to(text: &str) -> Result<(String, Option<Vec<String>>), Misuse> {
    let wrong = |why: &str| {
        Misuse::new(format!(
            "{text:?} {why}: write HOST or HOST:VOLUME, for example other:vol1 or [fd00::2]:vol1"
        ))
    };
    if text.contains("://") {
        return Err(wrong("is a URL, and this takes a host"));
    }
    let (host, rest) = match text.strip_prefix('[') {
        Some(rest) => {
            let (host, rest) =
                rest.split_once(']').ok_or_else(|| wrong("has a bracket that is not closed"))?;
            match rest.strip_prefix(':') {
                None if !rest.is_empty() => return Err(wrong("has text between ] and the colon")),
                volumes => (host, volumes),
            }
        }
        None => match text.split_once(':') {
            Some((host, rest)) => (host, Some(rest)),
            None => (text, None),
        },
    };
    if host.is_empty() {
        return Err(wrong("names no host"));
    }
    if rest.is_some_and(str::is_empty) {
        return Err(wrong("names no volume after the colon"));
    }
    if rest.is_some_and(|rest| rest.contains(':')) {
        return Err(wrong("has several colons, and an IPv6 address takes brackets"));
    }
    let volumes = rest.map(|rest| rest.split(',').map(str::to_owned).collect());
    Ok((host.to_owned(), volumes))
}

/// How to reach the other server; asks for the password.
pub(crate) fn address(host: &str, other: &Other) -> Result<Address, Failure> {
    let host = match other.network {
        None => host.to_owned(),
        Some(network) => {
            let found = (host, other.smb_port).to_socket_addrs().map_err(|e| format!("{host}: {e}"))?;
            let all: Vec<_> = found.map(|found| found.ip()).collect();
            let inside = all.iter().find(|address| network.contains(**address));
            let all: Vec<String> = all.iter().map(ToString::to_string).collect();
            inside
                .ok_or_else(|| format!("{host} has no address in that network, only {}", all.join(", ")))?
                .to_string()
        }
    };
    let password = password::for_client(&other.user, &host)?;
    Ok(Address {
        port: other.smb_port,
        user: other.user.clone(),
        password: Password::new(&password),
        transport: other.transport,
        encrypt: other.encrypt,
        compress: false,
        host,
    })
}

fn show(state: &Path, pid: Option<u32>, args: &ReplicaStatus) -> Result<ExitCode, Failure> {
    let mut stdout = out::Stdout;
    loop {
        let mut groups: Vec<Group> = Vec::new();
        for server in status::chosen(state, pid)? {
            // A server without --replica has no groups. A status answer waits for no other host, so a server that
            // does not answer hangs.
            match serde_json::from_value(server.ask(&Request::Replica(Command::Status))?)? {
                Reply::Status(found) => groups.extend(found),
                other => return Err(format!("unexpected answer of the server: {other:?}").into()),
            }
        }
        if args.watch && std::io::stdout().is_terminal() && !args.json {
            out::print(format_args!("\x1b[H\x1b[J"))?;
        }
        if args.json {
            serde_json::to_writer(&mut stdout, &json!({ "groups": groups }))?;
            writeln!(stdout)?;
        } else {
            let mut text = Vec::new();
            print::groups(&mut text, &groups)?;
            stdout.write_all(&text)?;
            if let Some(advice) = out::state_dir_advice(&String::from_utf8_lossy(&text)) {
                writeln!(stdout, "{advice}")?;
            }
        }
        stdout.flush()?;
        if !args.watch {
            return Ok(ExitCode::SUCCESS);
        }
        std::thread::sleep(Duration::from_secs(1));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_other_side_is_a_host_and_perhaps_its_volumes() {
        let parsed = |text: &str| parse_to(text).map_err(|e| e.to_string());
        assert_eq!(parsed("other"), Ok(("other".into(), None)));
        assert_eq!(parsed("other:a,b"), Ok(("other".into(), Some(vec!["a".into(), "b".into()]))));
        assert_eq!(parsed("[fd00::2]:a"), Ok(("fd00::2".into(), Some(vec!["a".into()]))));
        assert_eq!(parsed("[fd00::2]"), Ok(("fd00::2".into(), None)));
        for (wrong, why) in [
            ("smb://h/v", "is a URL, and this takes a host"),
            ("", "names no host"),
            (":a", "names no host"),
            ("other:", "names no volume"),
            ("fd00::2", "takes brackets"),
            ("[fd00::2", "not closed"),
            ("[fd00::2]x", "between ] and the colon"),
        ] {
            let said = parsed(wrong).unwrap_err();
            assert!(said.starts_with(&format!("{wrong:?} ")) && said.contains(why), "{said}");
        }
    }
}
