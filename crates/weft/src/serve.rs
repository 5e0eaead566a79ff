//! `weft serve`: binds everything, prints `ready`, serves until a signal, drains, ends. It owns the cores and the
//! process; the command line is turned into a configuration by `crate::config`.

mod activation;
mod admin;
mod announced;
mod audit;
mod capture;
mod ceph;
mod confine;
mod durable;
pub(crate) mod error;
mod files;
mod http;
mod interfaces;
mod log_ons;
mod names;
mod nbd;
mod neighbours;
mod notify;
mod page;
mod ports;
mod registration;
mod reload;
pub(crate) mod replica;
mod rpc;
mod service;
mod start;
mod starting;
mod state_dir;
mod status;
mod volumes;

use std::io::{IsTerminal, Write};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use weft_machine::rt::{self, Cores, CoresOptions};

use self::log_ons::LogOns;
use self::service::ServiceManager;
use self::start::{Services, Start};
use self::starting::Step;
use crate::Failure;
use crate::addresses;
use crate::args::Serve;
use crate::child;
use crate::config;
use crate::config_command;
use crate::listen::{self, Stop};
use crate::logging;
use crate::out;
use crate::shares;
use crate::signals::{Asked, Signals};

/// How long requests in flight may take to finish after a signal.
const DRAIN: Duration = Duration::from_secs(10);

/// Runs the command. With `end_with_reader`, the process ends with whoever reads its output.
pub(crate) fn run(args: Serve, end_with_reader: bool) -> Result<ExitCode, Failure> {
    logging::use_format(args.log_format);
    // Before anything fails for lack of descriptors.
    listen::quota::raise_descriptors()?;
    if let Some(bytes) = crate::signals::longest_file() {
        tracing::warn!("`ulimit -f` limits files to {bytes} bytes: writes past that fail");
    }
    let mut signals = Signals::new()?;
    // A start may take long, and a service manager does not wait for it with a reload. SIGHUP of a terminal ends it.
    if !std::io::stdin().is_terminal() {
        signals.catch_hang_ups()?;
    }
    let json = args.json;
    let config = config_command::requested(args.clone())?;
    logging::use_format(config.log.format);
    if let Some(file) = config.sources.file() {
        tracing::info!("configuration: {}", out::path_name(file));
        // Commands that the user is told to type must name it.
        out::remember_state_dir(config.state_dir.as_deref());
    }
    let mut plan = config.check()?;
    activation::take_over(&plan)?;
    // Not before: until then a file may be a pipe that nobody writes to, and these signals end the process.
    signals.catch()?;
    durable::make_named_dir(&plan);
    // This process has no other thread yet.
    confine::confine(&plan);
    crate::signals::reap_orphans()?;
    if end_with_reader {
        child::end_with_reader();
    }
    // Before shares are opened, which are known by a number from then on.
    weft_machine::recorder::enable(plan.config().log.slow);
    if plan.config().admin.is_some() {
        // Shares get series of their own when they are opened.
        weft_machine::meter::enable();
    }
    let shares = shares::open_all(&plan.shares, plan.state_dir().as_deref(), &mut plan.absent)?;
    for absent in &plan.absent {
        tracing::warn!("{absent}");
    }
    if let ([], [first, ..], true) = (&shares[..], &plan.absent[..], plan.config().volumes.is_empty()) {
        return Err(format!("nothing is left to serve: {first}").into());
    }
    let marks = Some(neighbours::mark(&shares, &plan.looks));
    let log_ons = match plan.serves_files() {
        true => Some(Arc::new(LogOns::of(&plan)?)),
        false => None,
    };
    let password = log_ons.as_ref().and_then(|log_ons| log_ons.password());
    let cores = Arc::new(start_cores(&plan.config().limits)?);
    let (connections, stop) = (Arc::new(AtomicUsize::new(0)), Stop::default());
    let replicates = plan.config().replication.enabled;
    let audit_run = audit::start(&plan)?;
    let audit = audit_run.as_ref().map(|run| run.audit.clone()).unwrap_or_default();
    let manager = ServiceManager::of_environment()?;
    let step = Step::default();
    let start = Start {
        audit,
        own: log_ons.as_ref().filter(|_| replicates).and_then(|log_ons| log_ons.own()),
        log_ons: log_ons.clone(),
        plan,
        shares,
        cores: cores.clone(),
        connections: connections.clone(),
        stop: stop.clone(),
        args,
        marks,
        manager: manager.clone(),
        step: step.clone(),
    };

    // Everything is bound on core 0: sockets belong to the core that accepts on them.
    let (report, started) = mpsc::channel();
    cores.run(0, move || async move {
        // The receiver waits for exactly this.
        let _ = report.send(start.start().await);
    });
    let Services {
        ready,
        files,
        nbd,
        replicas,
        reload,
        announced,
        _admin,
        _admin_http,
        volumes: served,
        _registration,
    } = starting::started(&started, &step, &signals)?;
    // Also with --json: nobody could log on otherwise.
    if let Some(password) = password.filter(|password| password.made_up) {
        note!("password of {}: {}", ready.user, *password.text);
    }
    if !json && !logging::is_json() {
        crate::out::note(format_args!(
            "{}",
            ready.how_to(&addresses::in_hints(ready.listen, &interfaces::found()))
        ));
    }
    let mut stdout = std::io::stdout();
    let told = writeln!(stdout, "{}", ready.line(json)).and_then(|()| stdout.flush());
    told.map_err(|e| format!("cannot write the ready line to standard output: {e}"))?;

    manager.watch(cores.clone())?;
    let (told, summary) = mpsc::channel();
    let of_reload = reload.clone();
    // On a core, because it looks at the shares.
    cores.run(0, move || async move {
        // The receiver waits for exactly this.
        let _ = told.send(of_reload.summary().await);
    });
    manager.ready(&summary.recv().map_err(|_| "the first core ended before the server was ready")?);
    // Without a file, or at a terminal that is gone, SIGHUP asks for the end.
    let reloads = reload.has_file() && !std::io::stdin().is_terminal();
    while signals.wait()? == Asked::HangUp && reloads {
        manager.reloading();
        let (manager, reload) = (manager.clone(), reload.clone());
        cores.run(0, move || async move {
            let reloaded = reload.run(audit::By::Signal).await;
            if let Err(e) = reloaded {
                tracing::error!("the configuration is not read again, and nothing has changed: {e}");
            }
            manager.ready(&reload.summary().await);
        });
    }
    manager.stopping();
    tracing::info!(
        "draining for at most {} s: no new connections, requests in flight are answered",
        DRAIN.as_secs()
    );
    // New clients go elsewhere.
    announced.end();
    stop.stop();
    if let Some(files) = &files {
        files.drain();
    }
    if let Some(nbd) = &nbd {
        nbd.drain();
    }
    let until = Instant::now() + DRAIN;
    while (connections.load(Ordering::Relaxed) > 0 || !stop.is_over()) && Instant::now() < until {
        std::thread::sleep(Duration::from_millis(5));
    }
    if let Some(replicas) = replicas {
        // On a core, because these futures need one.
        let (done, closed) = mpsc::channel();
        cores.run(0, move || async move {
            replicas.close().await;
            // The receiver waits for exactly this, or has given up.
            let _ = done.send(());
        });
        if closed.recv_timeout(DRAIN).is_err() {
            tracing::warn!(
                "replication was not closed within {} s: the next start replays its log",
                DRAIN.as_secs()
            );
        }
    }
    let left = connections.load(Ordering::Relaxed);
    if left > 0 {
        tracing::warn!("{left} connections did not end within {} s and are closed", DRAIN.as_secs());
    }
    // After the last write.
    volumes::end(&served);
    if let Some(run) = &audit_run {
        run.end();
    }
    manager.flush();
    Ok(ExitCode::SUCCESS)
}

/// Starts the serving threads.
fn start_cores(limits: &config::Limits) -> Result<Cores, Failure> {
    weft_store::set_id::leave_to_the_kernel()?;
    let n = match limits.cores {
        Some(n) => n,
        None => std::thread::available_parallelism()?.get(),
    };
    let core = rt::Options { spin_max: limits.spin, ..rt::Options::default() };
    let options = CoresOptions { pin: limits.pin, core };
    Ok(Cores::start_with(n, "weft-core", &options)?)
}
