//! `weft rdma perf`: tables of latency and bandwidth, line by line; `weft_load::verbs::perf` measures.

use std::io::Write;
use std::process::ExitCode;
use std::sync::atomic::Ordering;
use std::time::Duration;

use weft_load::verbs::patience::ANSWER_LIMIT;
use weft_load::verbs::perf::client::{Length, MeasureError, measure};
use weft_load::verbs::perf::report::{Row, header, name};
use weft_load::verbs::perf::{Mode, Op, Plan, depth_within};
use weft_load::verbs::ping;
use weft_load::verbs::server::Answers;
use weft_machine::{Pool, rt};
use weft_rdma::{ConnectError, ConnectParams};

use super::{server, settle};
use crate::Failure;
use crate::args::{Crc, Figure, Operation, PerfClient, PerfServer, ProviderKind};
use crate::connect::reach;
use crate::misuse::Misuse;
use crate::providers;
use crate::signals::{stop_on_signals, unless_stopped, until_stopped};

/// Memory of the client's buffers, for sending and reading.
const BUFFERS: usize = 1 << 30;

/// Runs `weft rdma perf server`.
pub(crate) fn serve(args: PerfServer) -> Result<ExitCode, Failure> {
    let core = settle(&args.core)?;
    let PerfServer { listen, provider: providers, iwarp, json, .. } = args;
    server::run(server::Plan { listen, providers, iwarp, json, answers: Answers::All, core })
}

/// Runs `weft rdma perf client`.
pub(crate) fn run(args: PerfClient) -> Result<ExitCode, Failure> {
    if args.bidirectional && args.op.contains(&Operation::Send) {
        let apart = "Sends cannot be measured in both directions: use --op write,read with --bidirectional";
        return Err(Misuse::new(apart).into());
    }
    if args.bidirectional && args.only == Some(Figure::Latency) {
        return Err(Misuse::new("--bidirectional measures bandwidth: omit --only latency").into());
    }
    let core = settle(&args.core)?;
    let addresses = args.host.resolve(ping::PORT)?;
    let stopped = stop_on_signals()?;
    let length = match args.count {
        Some(count) => Length::Count(count),
        None => Length::Time(Duration::from_secs_f64(args.duration)),
    };
    rt::block_on_with(&core, async {
        let pool = Pool::new(BUFFERS);
        let provider = providers::of_kind(args.provider, &pool, &args.iwarp)?;
        let addr = match addresses[..] {
            [only] => only,
            // The first address that answers; every measurement has its own connection.
            _ => {
                let connect = async |addr| provider.connect(addr, ConnectParams::default()).await;
                let reaching = async {
                    let reached = reach::first(&addresses, connect).await;
                    reached.map_err(|failed| reach::told(&args.host.name, ping::PORT, &failed).into())
                };
                let whom = format!("an answer from {} over {}", args.host, provider.name());
                let reached = reach::patiently(ANSWER_LIMIT, whom, reaching);
                unless_stopped(&stopped, reached).await?.0
            }
        };
        let mut rows = Vec::new();
        let mut out = crate::out::Stdout;
        for (op, mode, plans) in tables(&args) {
            if !args.json {
                writeln!(out, "\n{}", title(op, mode, &args))?;
                writeln!(out, "{}", header(mode))?;
            }
            for plan in plans {
                if stopped.load(Ordering::Relaxed) {
                    break;
                }
                let stop = || stopped.load(Ordering::Relaxed);
                let measured = until_stopped(&stopped, async {
                    let measured = measure(&*provider, addr, plan, length, &pool, &stop).await;
                    measured.map_err(|e| explain(&e, &args, addr).into())
                });
                let row = Row::from(&measured.await?);
                if !args.json {
                    writeln!(out, "{}", row.line())?;
                    out.flush()?;
                }
                rows.push(row);
            }
        }
        if args.json {
            serde_json::to_writer_pretty(&mut out, &rows)?;
            writeln!(out)?;
        }
        let wrong: u64 = rows.iter().filter_map(|row| row.mismatches).sum();
        if wrong > 0 {
            return Err(format!("{wrong} operations had wrong bytes").into());
        }
        Ok(ExitCode::SUCCESS)
    })?
}

/// The measurements: a table for each operation and mode.
fn tables(args: &PerfClient) -> Vec<(Op, Mode, Vec<Plan>)> {
    let mut tables = Vec::new();
    // Parsed with bounds that fit.
    let sizes: Vec<u32> = args.size.0.iter().filter_map(|size| u32::try_from(*size).ok()).collect();
    let depths: Vec<u16> = args.qd.0.iter().filter_map(|depth| u16::try_from(*depth).ok()).collect();
    for op in args.op.iter().map(|op| Op::from(*op)) {
        let both_ways = args.bidirectional;
        let plan = |mode, size, depth| Plan { op, mode, check: args.check, both_ways, depth, size };
        if args.only != Some(Figure::Bandwidth) && !both_ways {
            let plans = sizes.iter().map(|size| plan(Mode::Latency, *size, 1)).collect();
            tables.push((op, Mode::Latency, plans));
        }
        if args.only != Some(Figure::Latency) {
            let mut plans = Vec::new();
            for size in &sizes {
                let mut within: Vec<u16> = depths.iter().map(|depth| depth_within(*size, *depth)).collect();
                // Several depths of a large operation may hit the same limit.
                within.dedup();
                plans.extend(within.into_iter().map(|depth| plan(Mode::Bandwidth, *size, depth)));
            }
            tables.push((op, Mode::Bandwidth, plans));
        }
    }
    tables
}

fn title(op: Op, mode: Mode, args: &PerfClient) -> String {
    let what = match (op, mode) {
        (Op::Read, Mode::Latency) => "latency, full round trip",
        (_, Mode::Latency) => "latency, half of the round trip",
        _ if args.bidirectional => "bandwidth, both directions together",
        _ => "bandwidth",
    };
    let how = match (args.provider, args.iwarp.crc) {
        (ProviderKind::Iwarp, Crc::Always) => "iwarp, CRC",
        (ProviderKind::Iwarp, Crc::Asked) => "iwarp, CRC if the server asks for it",
        (ProviderKind::Shm, _) => "shm",
        (ProviderKind::Rnic, _) => "rnic",
    };
    let checked = if args.check { ", every byte verified" } else { "" };
    format!("{} {what}, over {how}{checked}", name(op))
}

fn explain(error: &MeasureError, args: &PerfClient, addr: std::net::SocketAddr) -> String {
    let advice = match error {
        MeasureError::Unanswered(_)
        | MeasureError::Connect(ConnectError::Io(_) | ConnectError::TimedOut(_)) => {
            " (on that host: weft rdma perf server --listen ADDR; `weft doctor` shows the obstacle)"
        }
        MeasureError::Connect(ConnectError::Rejected(_) | ConnectError::Violation(_)) => {
            " (the listener is not a `weft rdma perf server`)"
        }
        _ => "",
    };
    format!("{} ({addr}): {error}{advice}", args.host)
}
