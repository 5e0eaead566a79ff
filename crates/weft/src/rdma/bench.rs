//! `weft rdma bench`: measures the RDMA layer against references, and judges the project's bounds.
//!
//! The servers run on processor 0, this process on processor 1. In each round every group is measured once, subjects
//! next to their reference, in an order that changes between rounds; the medians of the rounds' ratios count.
//! `weft_load::verbs` takes the times.

mod peer;

use std::fmt::Write;
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::process::{ExitCode, Stdio};
use std::time::Duration;

use serde_json::json;
use weft_load::compare::{Bound, Comparison, Unit};
use weft_load::result::Environment;
use weft_load::verbs::bench::{atomic, copy, tcp};
use weft_load::verbs::perf::client::{Length, Measured, measure};
use weft_load::verbs::perf::{Mode, Op, Plan};
use weft_load::workload::size_label;
use weft_load::{cpu, print};
use weft_machine::shm::Words;
use weft_machine::{Pool, rt};
use weft_rdma::{Provider, iwarp, shm};

use super::pin;
use crate::Failure;
use crate::args::Bench;
use crate::child::Service;
use crate::misuse::none_has;
use crate::out::Console;

/// TCP congestion control on both sides: bbr, the usual default of cloud machines, paces loopback.
const CONGESTION: &str = "reno";
/// Operations outstanding; also the number of buffers that references cycle through.
const DEPTH: u16 = 8;
/// Bytes of a small message.
const SMALL: u32 = 8;
/// Memory for this side's buffers.
const BUFFERS: usize = 256 << 20;
/// Longest busy polling on both sides, in microseconds: longer than any answer takes.
const SPIN_US: &str = "1000";
/// Connections of the idle group.
const CONNECTIONS: u32 = 1000;
/// How often they are made: each time takes seconds and a new pair of processes.
const IDLE_ROUNDS: u32 = 3;
/// How long an idle server is watched.
const IDLE_WATCH: Duration = Duration::from_secs(3);

/// A way to measure a figure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum How {
    /// Bytes on a plain TCP connection.
    Tcp(u32),
    /// Writes over iWARP, with CRC or without.
    Iwarp(u32, bool),
    /// Round trips on a plain TCP connection, busy.
    TcpEcho,
    /// Round trips of Sends over iWARP.
    IwarpSend,
    /// Round trips of a word in shared memory.
    Atomic,
    /// Round trips of Sends over shared memory.
    ShmSend,
    /// memcpy.
    Copy(u32),
    /// Writes over shared memory.
    ShmWrite(u32),
}

/// A reference and the subjects compared with it.
struct Group {
    reference: How,
    subjects: Vec<(How, Comparison)>,
}

fn group(reference: (How, &str), unit: Unit, subjects: Vec<(How, String, Bound)>) -> Group {
    let (reference, name) = reference;
    let paired = |subject: String, bound| Comparison::paired(&subject, name, unit, bound);
    let subjects = subjects.into_iter().map(|(how, subject, bound)| (how, paired(subject, bound))).collect();
    Group { reference, subjects }
}

/// The bounds of the project.
fn groups() -> Vec<Group> {
    let mut groups = Vec::new();
    for size in [64 << 10, 1 << 20] {
        let label = size_label(u64::from(size));
        groups.push(group(
            (How::Tcp(size), "plain TCP"),
            Unit::BytesPerSecond,
            vec![
                (How::Iwarp(size, true), format!("iwarp {label} Writes, CRC"), Bound::AtLeast(0.9)),
                (How::Iwarp(size, false), format!("iwarp {label} Writes, no CRC"), Bound::AtLeast(0.95)),
            ],
        ));
    }
    let round_trip = |provider| format!("{provider} {SMALL} B Send round trip");
    groups.push(group(
        (How::TcpEcho, "plain TCP, busy"),
        Unit::Microseconds,
        vec![(How::IwarpSend, round_trip("iwarp"), Bound::AtMost(1.15))],
    ));
    groups.push(group(
        (How::Atomic, "a word in turns"),
        Unit::Microseconds,
        vec![(How::ShmSend, round_trip("shm"), Bound::AtMost(2.0))],
    ));
    groups.push(group(
        (How::Copy(64 << 10), "memcpy"),
        Unit::BytesPerSecond,
        vec![(How::ShmWrite(64 << 10), "shm 64 KiB Writes".into(), Bound::AtLeast(0.8))],
    ));
    groups
}

/// The lines about many idle connections.
fn idle_lines() -> Vec<Comparison> {
    let line = |what: &str, unit, bound| {
        Comparison::alone(&format!("{CONNECTIONS} iwarp connections: {what}"), unit, Bound::AtMost(bound))
    };
    vec![
        line("connecting them", Unit::Seconds, 2.0),
        line("server's memory each", Unit::Bytes, 16.0 * 1024.0),
        line("client's memory each", Unit::Bytes, 16.0 * 1024.0),
        line("idle server, of a core", Unit::Percent, 1.0),
    ]
}

/// Runs the command.
pub(crate) fn run(args: Bench) -> Result<ExitCode, Failure> {
    if let Some(kind) = args.peer {
        return peer::run(kind, &args, CONGESTION);
    }
    let mut groups = groups();
    for group in &mut groups {
        group.subjects.retain(|(_, line)| line.subject.contains(&args.only));
    }
    groups.retain(|group| !group.subjects.is_empty());
    let mut idle = idle_lines();
    idle.retain(|line| line.subject.contains(&args.only));
    if groups.is_empty() && idle.is_empty() {
        return Err(none_has(&args.only, "line").into());
    }
    let environment = Environment::here("", CONGESTION)?;
    let processors = std::thread::available_parallelism()?.get();
    if !groups.is_empty() {
        let bench = Setup::start(&args, processors)?;
        let spin_max = Duration::from_micros(SPIN_US.parse()?);
        let core = rt::Options { spin_max, ..rt::Options::default() };
        rt::block_on_with(&core, rounds(&args, &bench, &mut groups))??;
        bench.server.stop()?;
    }
    if !idle.is_empty() {
        for _ in 0..IDLE_ROUNDS {
            let figures = connections(processors)?;
            for line in &mut idle {
                let place = idle_lines().iter().position(|all| all.subject == line.subject);
                line.figures.extend(place.map(|at| figures[at]));
            }
        }
    }
    let lines: Vec<Comparison> =
        groups.into_iter().flat_map(|group| group.subjects).map(|(_, line)| line).chain(idle).collect();
    finish(&args, &environment, processors, &lines)
}

fn finish(
    args: &Bench,
    environment: &Environment,
    processors: usize,
    lines: &[Comparison],
) -> Result<ExitCode, Failure> {
    let console = Console::beside(args.json.as_deref())?;
    let mut out = String::new();
    writeln!(
        out,
        "{} x {processors}, Linux {}, TCP congestion control {CONGESTION}, Weft {}",
        environment.processor, environment.kernel, environment.version
    )?;
    writeln!(
        out,
        "server on processor 0, client on processor 1; {} rounds of {} s each, fresh connections with a quarter of that \
         as warm-up, {DEPTH} operations at a time over {DEPTH} buffers; ratios are of the same round\n",
        args.rounds, args.duration
    )?;
    write!(out, "{}", print::compare::render(lines))?;
    writeln!(out, "memory is the process's resident memory; the kernel's socket memory is not included")?;
    if cfg!(debug_assertions) {
        writeln!(out, "a build without optimization: the figures are meaningless")?;
    }
    if processors == 1 {
        writeln!(out, "one processor: both sides shared it, the figures are meaningless")?;
    }
    console.print(format_args!("{out}"))?;
    if let Some(path) = &args.json {
        let verdicts: Vec<_> = lines.iter().map(Comparison::verdict).collect();
        let report = json!({ "environment": environment, "lines": lines, "verdicts": verdicts });
        crate::local::save(path, (serde_json::to_string_pretty(&report)? + "\n").as_bytes())?;
        console.wrote(path)?;
    }
    let short: Vec<_> = lines.iter().map(Comparison::verdict).filter(|verdict| !verdict.holds).collect();
    for verdict in &short {
        note!("falls short: {}", verdict.claim);
    }
    Ok(if args.gate && !short.is_empty() { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

/// The processes of the other side, and their addresses.
struct Setup {
    server: Service,
    rdma: SocketAddr,
    _tcp: Service,
    tcp: SocketAddr,
}

/// A server of verbs on processor 0.
fn verbs_server() -> Result<Service, Failure> {
    let args = ["rdma", "perf", "server", "--port", "0", "--json", "--cpu", "0", "--spin-us", SPIN_US];
    let args = [&args[..], &["--crc", "asked", "--congestion", CONGESTION]].concat();
    // Besides its figures, only its warnings matter.
    Service::start(&args, Some(("WEFT_LOG", "warn")), Stdio::null())
}

fn loopback(port: u16) -> SocketAddr {
    ([127, 0, 0, 1], port).into()
}

impl Setup {
    fn start(args: &Bench, processors: usize) -> Result<Setup, Failure> {
        let server = verbs_server()?;
        let peer = Service::start(&["rdma", "bench", "--peer", "tcp", "--cpu", "0"], None, Stdio::null())?;
        let (rdma, tcp) = (loopback(server.port("port")?), loopback(peer.port("port")?));
        // With one processor both share it; the report says so.
        if processors > 1 {
            pin(1)?;
        }
        tracing::debug!("{} rounds against {rdma} and {tcp}", args.rounds);
        Ok(Setup { server, rdma, _tcp: peer, tcp })
    }

    async fn figure(&self, how: How, time: Duration, pool: &Pool) -> Result<f64, Failure> {
        let tcp = || tcp::Client::connect(self.tcp, CONGESTION, pool);
        let slots = usize::from(DEPTH);
        let median = |quantiles: Option<weft_load::verbs::times::Quantiles>| match quantiles {
            Some(quantiles) => Ok(quantiles.p50_us),
            None => Err(Failure::from("no round trip was measured")),
        };
        match how {
            How::Tcp(size) => Ok(tcp()?.bandwidth(size as usize, slots, time)?),
            How::TcpEcho => median(tcp()?.round_trips(SMALL as usize, time)?),
            How::Copy(size) => Ok(copy::measure(pool, size as usize, slots, time)?),
            How::Atomic => {
                let words = Words::create("weft-bench", atomic::WORDS)?;
                let memory = words.segment_fd().as_fd().try_clone_to_owned()?;
                let args = ["rdma", "bench", "--peer", "atomic", "--cpu", "0"];
                let peer = Service::start(&args, None, Stdio::from(memory))?;
                let seen = atomic::measure(&words, time);
                atomic::end(&words);
                drop(peer);
                median(seen)
            }
            How::Iwarp(size, crc) => {
                let provider = iwarp_provider(pool, crc);
                Ok(self.verbs(&provider, Op::Write, size, time, pool).await?.bytes_per_second())
            }
            How::IwarpSend => {
                let provider = iwarp_provider(pool, true);
                median(self.verbs(&provider, Op::Send, SMALL, time, pool).await?.times)
            }
            How::ShmWrite(size) => {
                let provider = shm::Provider::new(pool.clone(), shm::Config::default());
                Ok(self.verbs(&provider, Op::Write, size, time, pool).await?.bytes_per_second())
            }
            How::ShmSend => {
                let provider = shm::Provider::new(pool.clone(), shm::Config::default());
                median(self.verbs(&provider, Op::Send, SMALL, time, pool).await?.times)
            }
        }
    }

    /// Sends are measured as round trips, one at a time; Writes one way.
    async fn verbs(
        &self,
        provider: &dyn Provider,
        op: Op,
        size: u32,
        time: Duration,
        pool: &Pool,
    ) -> Result<Measured, Failure> {
        let (mode, depth) = if op == Op::Send { (Mode::Latency, 1) } else { (Mode::Bandwidth, DEPTH) };
        let plan = Plan { op, mode, check: false, both_ways: false, depth, size };
        Ok(measure(provider, self.rdma, plan, Length::Time(time), pool, &|| false).await?)
    }
}

/// The server asks for no CRC, so this side decides.
fn iwarp_provider(pool: &Pool, crc: bool) -> iwarp::Provider {
    let config = iwarp::Config { crc, congestion: Some(CONGESTION.into()), ..iwarp::Config::default() };
    iwarp::Provider::new(pool.clone(), config)
}

async fn rounds(args: &Bench, setup: &Setup, groups: &mut [Group]) -> Result<(), Failure> {
    let time = Duration::from_secs_f64(args.duration);
    let pool = Pool::new(BUFFERS);
    let bar = indicatif::ProgressBar::new(u64::from(args.rounds));
    for round in 0..args.rounds as usize {
        for group in &mut *groups {
            let mut order: Vec<usize> = (0..=group.subjects.len()).collect();
            let ways = order.len();
            order.rotate_left(round % ways);
            if (round / ways) % 2 == 1 {
                order.reverse();
            }
            let mut figures = vec![0.0; order.len()];
            for at in order {
                let how = if at == 0 { group.reference } else { group.subjects[at - 1].0 };
                figures[at] = setup.figure(how, time, &pool).await?;
            }
            for ((_, line), figure) in group.subjects.iter_mut().zip(&figures[1..]) {
                line.figures.push(*figure);
                line.references.push(figures[0]);
            }
        }
        bar.inc(1);
    }
    bar.finish_and_clear();
    Ok(())
}

/// Many connections between two new processes: seconds, bytes per connection at the server and at the client, and the
/// idle server's processor time in percent of a core.
fn connections(processors: usize) -> Result<[f64; 4], Failure> {
    let server = verbs_server()?;
    let port = server.port("port")?.to_string();
    let cpu_of_client = if processors > 1 { "1" } else { "0" };
    let hold = |connections: u32| {
        let connections = connections.to_string();
        let args = ["rdma", "bench", "--peer", "idle", "--port", &port, "--cpu", cpu_of_client];
        Service::start(&[&args[..], &["--connections", &connections]].concat(), None, Stdio::null())
    };
    // One connection first, so that one-time allocations do not count.
    drop(hold(1)?);
    let before = weft_load::memory::resident(server.pid())?;
    let client = hold(CONNECTIONS)?;
    let memory = weft_load::memory::resident(server.pid())?.saturating_sub(before);
    let used = cpu::time_of(server.pid())?;
    std::thread::sleep(IDLE_WATCH);
    let used = cpu::time_of(server.pid())?.saturating_sub(used);
    let figures = [
        client.number("seconds")?,
        memory as f64 / f64::from(CONNECTIONS),
        client.number("bytes_each")?,
        100.0 * used.as_secs_f64() / IDLE_WATCH.as_secs_f64(),
    ];
    drop(client);
    server.stop()?;
    Ok(figures)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_promise_of_the_rdma_layer_has_a_line() {
        let lines: Vec<String> = groups()
            .iter()
            .flat_map(|group| group.subjects.iter().map(|(_, line)| line.verdict().claim))
            .chain(idle_lines().iter().map(|line| line.verdict().claim))
            .collect();
        assert_eq!(
            lines,
            [
                "iwarp 64 KiB Writes, CRC against plain TCP: at least 0.90",
                "iwarp 64 KiB Writes, no CRC against plain TCP: at least 0.95",
                "iwarp 1 MiB Writes, CRC against plain TCP: at least 0.90",
                "iwarp 1 MiB Writes, no CRC against plain TCP: at least 0.95",
                "iwarp 8 B Send round trip against plain TCP, busy: at most 1.15",
                "shm 8 B Send round trip against a word in turns: at most 2.00",
                "shm 64 KiB Writes against memcpy: at least 0.80",
                "1000 iwarp connections: connecting them: at most 2.00 s",
                "1000 iwarp connections: server's memory each: at most 16.0 KiB",
                "1000 iwarp connections: client's memory each: at most 16.0 KiB",
                "1000 iwarp connections: idle server, of a core: at most 1.00 %",
            ]
        );
    }
}
