//! `weft cp`: copies a file or a folder to or from a server: pipelined, with progress, verified; a failure leaves no
//! half-done copy behind.
//!
//! [`crate::transfer`] copies files, [`crate::sync`] walks folders. Nothing here depends on the protocol or
//! transport.

use std::fmt::Display;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Instant;

use serde_json::json;
use weft_machine::{Pool, rt};
use weft_rdma::Traffic;

use crate::Failure;
use crate::args::{Cp, Sync, Transfer};
use crate::cat;
use crate::connect::{Remote, password_for};
use crate::direction::{Direction, name_of};
use crate::fault::Fault;
use crate::local::{Destination, Source};
use crate::misuse::Misuse;
use crate::out::{STANDARD, ShellCommand, path_name};
use crate::signals::{stop_on_signals, unless_stopped, until_stopped};
use crate::sync;
use crate::transfer::{CLIENT_BUFFERS, Plan, fetch, store};
use crate::url::Url;

/// Runs the command.
pub(crate) fn run(args: Cp) -> Result<ExitCode, Failure> {
    let direction = Direction::of(&args.from, &args.to)?;
    if args.recursive && [&args.from, &args.to].contains(&&STANDARD.to_owned()) {
        return Err(Misuse::new("-r copies folders, and - is not a folder: omit one of the two").into());
    }
    if args.recursive {
        let to = sync::Into::FolderOfThatName;
        let args = Sync {
            from: args.from,
            to: args.to,
            delete: false,
            dry_run: false,
            transfer: args.transfer,
            files: args.files,
        };
        return sync::run_as(args, sync::Which::All, to);
    }
    match &direction {
        // The share's own folder, which the URL alone shows.
        Direction::Down(from, _) if from.path.is_empty() => {
            return Err(Misuse::new(is_folder(from, &args)).into());
        }
        Direction::Up(from, to) if from == Path::new(STANDARD) && (to.path.is_empty() || to.folder) => {
            return Err(Misuse::new(no_name(to)).into());
        }
        Direction::Up(from, _) if from.is_dir() => return Err(is_folder(path_name(from), &args).into()),
        Direction::Up(..) | Direction::Down(..) => {}
    }
    let password = password_for(direction.url(), &args.transfer.connect)?;
    let stopped = stop_on_signals()?;
    rt::block_on(until_stopped(&stopped, copy(&args, direction, &password, stopped.clone())))??;
    Ok(ExitCode::SUCCESS)
}

/// Refuses a source that is a folder: the message shows the commands for folders.
fn is_folder(from: impl Display, args: &Cp) -> String {
    let typed = |words| ShellCommand::new(words).operand(&args.from).operand(&args.to);
    format!(
        "{from} is a folder: copy it with -r: `{}`; `{}` makes the destination itself equal to it, copying only what differs",
        typed("weft cp -r"),
        typed("weft sync")
    )
}

/// Refuses to write standard input to a folder.
fn no_name(to: &Url) -> String {
    format!("{to} is a folder: name the file in it, {}", to.join("NAME"))
}

async fn copy(
    args: &Cp,
    direction: Direction,
    password: &str,
    stopped: Arc<AtomicBool>,
) -> Result<(), Failure> {
    let (options, pool) = (&args.transfer.connect, Pool::new(CLIENT_BUFFERS));
    let remote = Remote::connect_as(direction.url(), options, &pool, password, None).await?;
    remote.outlast(args.transfer.patience(), stopped.clone());
    if !args.transfer.quiet {
        note!("{}", remote.describe());
    }
    let carried = carry(args, direction, &remote, stopped).await;
    // Also after a failure: otherwise the server keeps the file open, and its space in use, until it considers us
    // lost.
    remote.close().await;
    carried
}

async fn carry(
    args: &Cp,
    direction: Direction,
    remote: &Remote,
    stopped: Arc<AtomicBool>,
) -> Result<(), Failure> {
    let plan = Plan::new(&args.transfer, stopped.clone());
    let started = Instant::now();
    let mut done =
        Done { bytes: 0, name: String::new(), verified: !args.transfer.no_verify, to_stdout: false };
    match &direction {
        Direction::Down(from, to) => {
            let target = if to.is_dir() { to.join(from.file_name()) } else { to.clone() };
            let copied = match Destination::of(&target)? {
                Destination::File(file) => {
                    done.name = file.path().display().to_string();
                    fetch(remote, &from.path, *file, &plan).await
                }
                Destination::Stream(stream) => {
                    // A stream cannot be read again.
                    done.verified = false;
                    done.name = stream.name();
                    done.to_stdout = stream.is_standard();
                    // A FIFO may never get a reader.
                    let opening = async { Ok(rt::blocking(move || stream.open()).await) };
                    let out = unless_stopped(&stopped, opening).await?;
                    let out = out.map_err(|e| format!("{}: {e}", done.name))?;
                    let printing = async { Ok(cat::print(remote, &from.path, (out, &done.name)).await) };
                    let printed = unless_stopped(&stopped, printing).await;
                    printed.unwrap_or_else(|e| Err(Fault::Between(e)))
                }
            };
            // Asked only now, so that a copy of a file costs no request more. If this fails too, the copy's own error
            // says why.
            if matches!(copied, Err(Fault::There(_))) {
                let asking = async { Ok(remote.is_folder(&from.path).await) };
                if let Ok(true) = unless_stopped(&stopped, asking).await? {
                    return Err(is_folder(from, args).into());
                }
            }
            done.bytes = copied.map_err(|e| e.told(from))?;
        }
        Direction::Up(from, to) => {
            let named = async || remote.is_folder(&to.path).await.map_err(|e| format!("{to}: {e}"));
            let into_folder = to.path.is_empty() || to.folder || named().await?;
            let piped = from == Path::new(STANDARD);
            let target = match into_folder {
                true if piped => {
                    return Err(no_name(to).into());
                }
                true => to.join(name_of(from)?),
                false => to.clone(),
            };
            let copied = match piped {
                false => match Source::named(from) {
                    Ok(source) => store(remote, source, &target.path, &plan).await,
                    Err(e) => Err(e),
                },
                true => {
                    done.verified = false;
                    cat::take(remote, &target.path, &stopped).await
                }
            };
            done.bytes = copied.map_err(|e| e.told(&target))?;
            done.name = target.to_string();
        }
    }
    let seconds = started.elapsed().as_secs_f64();
    plan.finish();
    done.report(&args.transfer, remote, &plan, seconds)
}

/// The result of a copy.
struct Done {
    bytes: u64,
    name: String,
    verified: bool,
    /// Standard output carries the file, so messages go to standard error.
    to_stdout: bool,
}

impl Done {
    fn report(&self, args: &Transfer, remote: &Remote, plan: &Plan, seconds: f64) -> Result<(), Failure> {
        let Done { bytes, name, verified, to_stdout } = self;
        let line = |text: String| {
            if !to_stdout {
                return say!("{text}");
            }
            note!("{text}");
            Ok(())
        };
        let by_rdma = |t: Traffic| t.written.0 + t.placed.0 + t.read.0 + t.served.0;
        let all = by_rdma(remote.traffic());
        let of_copy = plan.copied.get().map_or(all, by_rdma);
        let of_verification = all.saturating_sub(of_copy);
        if args.json {
            let outcome = json!({
                "to": name, "bytes": bytes, "seconds": seconds, "verified": verified,
                "transport": remote.transport(), "rdma_bytes": of_copy, "rdma_verify_bytes": of_verification,
                "connections": remote.connections(), "lost_connections": remote.lost_connections(),
                "reconnected": remote.losses(),
            });
            return Ok(line(outcome.to_string())?);
        }
        if args.quiet {
            return Ok(());
        }
        let outcome = match verified {
            true => format!(
                "verified; by RDMA: {of_copy} bytes of the copy, {of_verification} of the verification"
            ),
            false => format!("not verified; by RDMA: {of_copy} bytes"),
        };
        line(format!("{name}: {bytes} bytes in {seconds:.2} s over {}, {outcome}", remote.transport()))?;
        let connections = remote.connections();
        if connections.len() > 1 || remote.lost_connections() > 0 {
            for connection in &connections {
                line(format!("  {connection}"))?;
            }
        }
        match remote.lost_connections() {
            0 => {}
            n => line(format!(
                "  {n} lost during the copy; their unanswered requests were repeated on the others"
            ))?,
        }
        if remote.losses() > 0 {
            line(format!("  reconnected {} times and continued", remote.losses()))?;
        }
        Ok(())
    }
}
