//! `weft bench`: the published comparisons on the user's own machines, and workloads of the user's own.
//!
//! Jobs (see `weft_load::job`) run one after the other against a server; one report follows at the end, also after
//! Ctrl-C. This file decides the order of the jobs and writes the report's files. `sweep` measures,
//! `weft_load::print` draws.

mod agent;
mod crew;
mod live;
mod messages;
mod own;
mod replica;
mod secret;
mod server;
mod sweep;
mod team;

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant, SystemTime};

use weft_load::job::{Extent, Job, paper};
use weft_load::measure::{Steady, Timing};
use weft_load::plan::{self, Chosen, Pace, Part, Replication};
use weft_load::result::{Environment, Picture, Refusal, Report, Section};
use weft_load::{cpu, measure, print};
use weft_machine::rt;

pub(crate) use self::crew::Measured;
use self::live::Live;
use self::server::{Server, keep_to};
use self::sweep::Sweep;
use self::team::Observer;
use crate::Failure;
use crate::args::{BenchCommand, Measuring, PictureOf, ServerOf};
use crate::misuse::{Misuse, none_has};
use crate::out::{Console, ShellCommand};
use crate::url::Scheme;
use crate::when::When;

/// Runs the command.
pub(crate) fn run(command: BenchCommand) -> Result<ExitCode, Failure> {
    match command {
        BenchCommand::Latency(args) => pictures(&[Picture::Latency], args),
        BenchCommand::Smb(args) => pictures(&[Picture::Smb], args),
        BenchCommand::Table(args) => pictures(&[Picture::Table], args),
        BenchCommand::Nfs(args) => pictures(&[Picture::Nfs], args),
        BenchCommand::All(args) => {
            let all = [Picture::Latency, Picture::Smb, Picture::Table, Picture::Nfs, Picture::Replica];
            // We cannot know whether a server on another host has a volume to spare.
            let here = args.host == "local";
            pictures(if here { &all } else { &all[..4] }, args)
        }
        BenchCommand::Replica(args) if args.host != "local" => Err(Misuse::new(format!(
            "this measurement starts two servers on this host: weft bench replica local. To check {} as a destination: \
             {}; to see the progress of a running copy: weft replica status",
            args.host,
            ShellCommand::new("weft replica check").operand(&args.host)
        ))
        .into()),
        BenchCommand::Replica(args) => pictures(&[Picture::Replica], args),
        BenchCommand::Run(args) => own::run(args),
        BenchCommand::Diskspd(args) => own::run_as(own::Loader::Diskspd, args),
        BenchCommand::Sqlio(args) => own::run_as(own::Loader::Sqlio, args),
        BenchCommand::Iozone(args) => own::run_as(own::Loader::Iozone, args),
        BenchCommand::Compare(args) => crate::compare::run(args),
        BenchCommand::Show(args) => crate::show::run(args),
        BenchCommand::Agent(args) => agent::run(args),
    }
}

/// Measurements that run one after the other.
pub(crate) enum Assignment {
    /// A job, and the protocol it uses.
    Job(Scheme, Job),
    /// Replication between two servers.
    Replication(Replication),
}

impl Assignment {
    fn picture(&self) -> Picture {
        match self {
            Assignment::Job(_, job) => job.picture,
            Assignment::Replication(_) => Picture::Replica,
        }
    }

    fn scheme(&self) -> Option<Scheme> {
        match self {
            Assignment::Job(scheme, _) => Some(*scheme),
            Assignment::Replication(_) => None,
        }
    }

    fn part(&self, transports: usize) -> Part {
        match self {
            Assignment::Job(_, job) => Part::of(job, transports),
            Assignment::Replication(replication) => replication.part(transports),
        }
    }

    fn choose(&mut self, chosen: &Chosen) {
        let (timing, repetitions) = match self {
            Assignment::Job(_, job) => (&mut job.timing, &mut job.repetitions),
            Assignment::Replication(replication) => (&mut replication.timing, &mut replication.repetitions),
        };
        (*timing, *repetitions) = (chosen.timing, chosen.repetitions);
    }
}

/// All measurements, and their time limit.
pub(crate) struct Assignments {
    pub all: Vec<Assignment>,
    /// `None` if the user chose the duration of each measurement.
    pub pace: Option<Pace>,
}

fn pictures(which: &[Picture], args: PictureOf) -> Result<ExitCode, Failure> {
    let extent = extent(&args);
    let usual = Chosen { timing: extent.timing, repetitions: extent.repetitions };
    let mut all = Vec::new();
    for picture in which {
        if *picture == Picture::Replica {
            // A size that the user chose applies to the files of the other comparisons.
            let size = args.measuring.file_size.filter(|_| which.len() == 1);
            all.push(Assignment::Replication(Replication::new(extent.quick, size, usual)?));
        }
        let scheme = if *picture == Picture::Nfs { Scheme::Nfs } else { Scheme::Smb };
        for job in paper(*picture, &extent) {
            all.push(Assignment::Job(scheme, adapt(job, &args)?));
        }
    }
    let budget = if extent.quick { plan::QUICK } else { plan::FULL };
    let Measuring { duration, until_steady, repetitions, .. } = &args.measuring;
    let asked = duration.is_some() || until_steady.is_some() || repetitions.is_some();
    let pace = (!asked).then(|| Pace::new(budget, usual));
    let assignments = Assignments { all, pace };
    let title = match which {
        [one] => format!("weft bench {one}: RDMA beside TCP"),
        _ => "weft bench: RDMA beside TCP".to_owned(),
    };
    session(&title, &args.host, &args.server, &args.measuring, &args.only, Vec::new(), assignments)
}

/// Applies the options to a comparison.
fn adapt(job: Job, args: &PictureOf) -> Result<Job, Failure> {
    let measuring = &args.measuring;
    let mut job = Job { verify: measuring.verify, channels: args.server.channels.unwrap_or(1), ..job };
    if let Some(bytes) = measuring.file_size {
        job.file_bytes = bytes;
    }
    if let Some(clients) = args.clients.filter(|_| job.picture != Picture::Nfs) {
        job.clients = clients;
    }
    if let Some(clients) = args.clients.filter(|_| job.picture == Picture::Nfs) {
        if !job.files.is_multiple_of(clients) {
            return Err(Misuse::new(format!(
                "{} streams cannot be divided among {clients} clients: use 1, 2, 4, 8 or 16",
                job.files
            ))
            .into());
        }
        (job.clients, job.queue_depth) = (clients, job.files / clients);
    }
    job.check()?;
    Ok(job)
}

fn extent(args: &PictureOf) -> Extent {
    let measuring = &args.measuring;
    let usual = if args.quick { 0.08 } else { 0.5 };
    Extent {
        quick: args.quick,
        timing: timing(measuring, usual),
        repetitions: measuring.repetitions.unwrap_or(3),
    }
}

/// The measuring window according to the options; a fifth of the time is warm-up.
fn timing(measuring: &Measuring, usual_seconds: f64) -> Timing {
    let duration = Duration::from_secs_f64(measuring.duration.unwrap_or(usual_seconds));
    let window = (duration / 5).clamp(Duration::from_millis(20), Duration::from_secs(1));
    Timing {
        warm_up: duration / 5,
        duration,
        cool_down: Duration::ZERO,
        steady: measuring.until_steady.map(|percent| Steady { percent, window, at_most: 30 * window }),
    }
}

/// Runs assignments against a server and reports on the terminal and in the requested files.
pub(crate) fn session(
    title: &str,
    host: &str,
    options: &ServerOf,
    measuring: &Measuring,
    only: &str,
    notes_before: Vec<String>,
    assignments: Assignments,
) -> Result<ExitCode, Failure> {
    let schemes: Vec<Scheme> = assignments.all.iter().filter_map(Assignment::scheme).collect();
    server::check(host, &schemes, options)?;
    let console = Console::beside(measuring.out.iter().map(PathBuf::as_path))?;
    for path in &measuring.out {
        crate::show::check(path)?;
        crate::show::check_place(path)?;
    }
    let stop = crate::signals::stop_on_signals()?;
    let started = Instant::now();
    let moment = When::from(SystemTime::now());
    // Taken before this process is bound to some processors.
    let environment = Environment::here("", "")?;
    let mut server = Server::start(host, options)?;
    let observer = server.agent().map(Observer::meet).transpose()?;
    let congestion = server.congestion().map_or_else(system_congestion, Ok)?;
    let driver = rt::block_on(async { rt::driver() })?;
    let environment = Environment {
        driver: driver.to_owned(),
        congestion_control: congestion,
        cycles: if measure::counts_cycles() { cpu::COUNTED } else { cpu::CYCLES }.to_owned(),
        role: if server.is_here() { "client and server" } else { "client" }.to_owned(),
        ..environment
    };
    let environment = if server.is_here() { environment.through("lo") } else { environment };
    let mut report = Report::new(title, environment);
    report.started = Some(moment.rfc3339());
    if assignments.all.iter().any(|assignment| matches!(assignment, Assignment::Job(..))) {
        report.notes = notes(&server);
        report.notes.extend(server.unknown());
    }
    report.notes.extend(notes_before);
    let mut live = Live::new(measuring.quiet);
    let hz = report.environment.hz;
    let outcome = sections(
        &mut server,
        observer.as_ref(),
        &stop,
        &mut live,
        only,
        hz,
        measuring.strict,
        assignments,
        &mut report,
    );
    report.interrupted = stop.load(Ordering::Relaxed);
    report.seconds = Some(started.elapsed().as_secs_f64());
    let stopped = server.stop();
    // Writes the measured points even if something failed afterwards.
    if report.points().next().is_some() || report.interrupted {
        console.print(format_args!("{}", print::term::render(&report, print::term::Style::of_stdout())))?;
        for path in &measuring.out {
            crate::show::write(&report, path)?;
            console.wrote(path)?;
        }
    }
    outcome?;
    stopped?;
    if report.interrupted {
        note!("stopped: the results up to this point are above");
        return Ok(ExitCode::FAILURE);
    }
    if report.points().next().is_none() {
        let reasons: Vec<&str> =
            report.sections.iter().flat_map(|s| s.refusals.iter().map(|r| r.reason.as_str())).collect();
        return Err(match reasons.is_empty() {
            true => none_has(only, "point").into(),
            false => format!("nothing was measured: {}", reasons.join("; ")).into(),
        });
    }
    Ok(ExitCode::SUCCESS)
}

#[allow(
    clippy::too_many_arguments,
    reason = "called once; a struct would be filled in one line and taken apart in the next"
)]
fn sections(
    server: &mut Server,
    observer: Option<&Observer>,
    stop: &Arc<AtomicBool>,
    live: &mut Live,
    only: &str,
    hz: f64,
    strict: bool,
    assignments: Assignments,
    report: &mut Report,
) -> Result<(), Failure> {
    let Assignments { all: assignments, mut pace } = assignments;
    let (many, transports, began) = (assignments.len() > 1, server.transports().0.len(), Instant::now());
    let parts: Vec<Part> = assignments.iter().map(|assignment| assignment.part(transports)).collect();
    for (n, mut assignment) in assignments.into_iter().enumerate() {
        if stop.load(Ordering::Relaxed) {
            return Ok(());
        }
        let chosen = pace.as_ref().map(|pace| pace.next(began.elapsed(), &parts[n..]));
        if let Some(chosen) = &chosen {
            assignment.choose(chosen);
            report.notes.extend(pace.as_ref().and_then(|pace| pace.shortened(chosen)).map(|how| {
                format!(
                    "{}: {how}, to finish in the planned time; --duration measures longer",
                    assignment.picture()
                )
            }));
        }
        let (picture, at) = (assignment.picture(), Instant::now());
        let outcome = match assignment {
            Assignment::Job(scheme, job) => {
                let mut sweep =
                    Sweep { server, observer, stop: stop.clone(), live, only: only.to_owned(), hz, strict };
                sweep.run(scheme, &job)
            }
            Assignment::Replication(replication) => {
                let cores = server.all_cores();
                let mut bench =
                    replica::Bench { over: server.transports(), cores, stop, live, only, hz, strict };
                let outcome = replica::run(&mut bench, &replication);
                keep_to(&server.client_cores)?;
                outcome
            }
        };
        // With --only, the plan no longer fits the chosen part.
        if let (Some(pace), Some(chosen), true) = (&mut pace, &chosen, only.is_empty()) {
            pace.took(&parts[n], chosen, at.elapsed());
        }
        match outcome {
            Ok(section) if section.points.is_empty() && section.refusals.is_empty() => {}
            Ok(section) => report.sections.push(section),
            // If one of several comparisons fails, the others still run; a single one is an error.
            Err(e) if many && !strict => {
                let mut section = Section::new(picture);
                section.refusals.push(Refusal { work: None, transport: "all".into(), reason: e.to_string() });
                note!("weft: {picture}: {e}");
                report.sections.push(section);
            }
            Err(e) => return Err(e),
        }
    }
    Ok(())
}

/// Facts about the measured setup that a reader needs.
fn notes(server: &Server) -> Vec<String> {
    let list = |cores: &[usize]| cores.iter().map(ToString::to_string).collect::<Vec<_>>().join(",");
    if !server.is_local() {
        return Vec::new();
    }
    let mut notes = vec![format!(
        "loopback: server on processor {}, clients on {}, files in the server's memory",
        list(&server.cores),
        list(&server.client_cores)
    )];
    if server.shared_cores() > 0 {
        notes.push("server and clients share processors: figures are not those of two hosts".to_owned());
    }
    notes
}

fn system_congestion() -> Result<String, Failure> {
    let text = std::fs::read_to_string("/proc/sys/net/ipv4/tcp_congestion_control")?;
    Ok(text.trim().to_owned())
}
