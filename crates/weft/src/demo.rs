//! `weft demo`: a server on one core, a client on another, the same work over TCP, iWARP and shared memory.
//!
//! This file starts the server process and holds the plan of points and the bounds. `weft_load` measures.

use std::path::PathBuf;
use std::process::{ExitCode, Stdio};
use std::rc::Rc;
use std::time::Duration;

use bytes::Bytes;
use indicatif::{ProgressBar, ProgressStyle};
use weft_load::gate::{Figure, Gate};
use weft_load::print;
use weft_load::result::{Environment, Peer, Picture, Point, Refusal, Report, Sample, Section, Work};
use weft_load::run::run as measure;
use weft_load::workload::{Mix, Order, Workload, size_label};
use weft_machine::{Pool, random, rt};

use crate::Failure;
use crate::args::{Connect, Demo, Transport};
use crate::bench::Measured;
use crate::child::Service;
use crate::connect::Remote;
use crate::hex::hex;
use crate::misuse::{Misuse, none_has};
use crate::out::{self, Console};
use crate::rdma::pin;
use crate::signals::{stop_on_signals, unless_stopped};
use crate::transfer::CLIENT_BUFFERS;
use crate::url::Url;

/// TCP congestion control on both sides: bbr, the usual default of cloud machines, paces loopback.
const CONGESTION: &str = "reno";
const USER: &str = "demo";

/// A transport to measure.
struct Path {
    label: &'static str,
    connect: Connect,
}

/// Runs the command.
pub(crate) fn run(args: Demo) -> Result<ExitCode, Failure> {
    let files: Vec<&PathBuf> =
        [Some(&args.out), args.json.as_ref(), args.csv.as_ref()].into_iter().flatten().collect();
    let console = Console::beside(files.iter().map(|file| file.as_path()))?;
    for (before, file) in files.iter().enumerate() {
        crate::show::check_place(file)?;
        if files.iter().take(before).any(|other| other == file) {
            return Err(Misuse::new(format!(
                "two of --out, --json and --csv name {}: name different files",
                out::path_name(file)
            ))
            .into());
        }
    }
    if chosen(&args).is_empty() {
        return Err(none_has(&args.only, "point").into());
    }
    let stopped = stop_on_signals()?;
    let server = ServerProcess::start()?;
    // Taken before this process is bound to one processor.
    let environment = Environment::here("", CONGESTION)?;
    // The client avoids the server's core; with one processor both share it, and the report says so.
    let mut notes = Vec::new();
    match std::thread::available_parallelism()?.get() {
        1 => notes.push("one processor: server and client shared it, figures are not comparable".to_owned()),
        _ => pin(1)?,
    }
    let size = size_label(args.file_size);
    notes.push(format!(
        "loopback: server bound to processor 0, client to processor 1, a ramdisk share, one file of {size}"
    ));
    notes.push("iwarp-nocrc: the same without CRC32C, as siw and NICs allow it to be negotiated".to_owned());
    let report = rt::block_on(unless_stopped(&stopped, sweep(&args, &server, environment, notes)))??;
    console.print(format_args!("{}\n", print::term::render(&report, print::term::Style::of_stdout())))?;
    crate::local::save(&args.out, print::html::render(&report).as_bytes())?;
    console.wrote(&args.out)?;
    if let Some(path) = &args.json {
        let mut text = Vec::new();
        print::json::write(&report, &mut text)?;
        crate::local::save(path, &text)?;
        console.wrote(path)?;
    }
    if let Some(path) = &args.csv {
        let mut text = Vec::new();
        print::csv::write(&report, &mut text)?;
        crate::local::save(path, &text)?;
        console.wrote(path)?;
    }
    server.service.stop()?;
    let short: Vec<_> = report.verdicts.iter().filter(|v| !v.holds).collect();
    for verdict in &short {
        note!("falls short: {}", verdict.claim);
    }
    Ok(if args.gate && !short.is_empty() { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

async fn sweep(
    args: &Demo,
    server: &ServerProcess,
    environment: Environment,
    notes: Vec<String>,
) -> Result<Report, Failure> {
    let pool = Pool::new(CLIENT_BUFFERS);
    let environment = Environment { driver: rt::driver().to_owned(), ..environment };
    let paths = [
        Path { label: "tcp", connect: Connect::by(Transport::Tcp) },
        Path { label: "iwarp", connect: Connect::by(Transport::Iwarp) },
        Path { label: "iwarp-nocrc", connect: Connect { no_crc: true, ..Connect::by(Transport::Iwarp) } },
        Path { label: "shm", connect: Connect::by(Transport::Shm) },
    ];
    let paths: Vec<Path> = paths
        .into_iter()
        .filter(|path| args.over.is_empty() || args.over.iter().any(|name| name == path.label))
        .collect();
    let mut sections = Vec::new();
    let works = chosen(args);
    let bar = ProgressBar::new((works.len() * paths.len() * args.repetitions.max(1)) as u64);
    bar.set_style(
        ProgressStyle::with_template("measuring {bar:32} {pos}/{len} {msg}").expect("a constant that parses"),
    );
    for (protocol, url) in [("SMB", server.smb_url()?), ("NFS", server.nfs_url()?)] {
        let mut section = Section::new(Picture::Demo);
        let software = format!("Weft {}", environment.version);
        section.peer = Some(Peer {
            host: "127.0.0.1".to_owned(),
            software: Some(software),
            same_host: true,
            ..Peer::default()
        });
        let mut targets = Vec::new();
        let mut remotes = Vec::new();
        for path in &paths {
            let remote =
                Remote::connect_as(&url, &path.connect, &pool, &server.password, Some(CONGESTION)).await?;
            if targets.is_empty() {
                fill(&remote, &url.path, args.file_size).await?;
            }
            targets.push(Rc::new(Measured(remote.open(&url.path, true).await?)));
            remotes.push(remote);
        }
        for work in works.iter().filter(|w| w.protocol == protocol) {
            let mut runs: Vec<Vec<Sample>> = paths.iter().map(|_| Vec::new()).collect();
            // Interleaved, so that a drift of the machine's speed affects all of them alike.
            for _ in 0..args.repetitions.max(1) {
                for ((target, path), runs) in targets.iter().zip(&paths).zip(&mut runs) {
                    bar.set_message(format!("{protocol} {} {}", work.mix, path.label));
                    let workload =
                        workload(work, args.file_size, Duration::from_millis(args.duration_ms.max(10)));
                    let measured = measure(target.clone(), &workload, Some(server.service.pid())).await?;
                    runs.push(measured.sample());
                    bar.inc(1);
                }
            }
            for (path, runs) in paths.iter().zip(&runs) {
                match Point::of(work.clone(), path.label, environment.hz, runs) {
                    Some(point) => section.points.push(point),
                    None => section.refusals.push(Refusal {
                        work: Some(work.clone()),
                        transport: path.label.to_owned(),
                        reason: "one repetition completed no operation: measure longer, --duration-ms 500"
                            .to_owned(),
                    }),
                }
            }
        }
        for remote in remotes {
            remote.close().await;
        }
        sections.push(section);
    }
    bar.finish_and_clear();
    let mut report = Report { sections, notes, ..Report::new("Weft: RDMA beside TCP", environment) };
    report.verdicts = gates().iter().map(|gate| gate.judge(&report)).collect();
    Ok(report)
}

fn work(protocol: &str, mix: Mix, size: u32, queue_depth: u32) -> Work {
    Work::simple(protocol, mix, size, queue_depth)
}

fn works(quick: bool) -> Vec<Work> {
    let sizes: &[u32] = if quick { &[8 << 10, 512 << 10] } else { &[1 << 10, 8 << 10, 64 << 10, 512 << 10] };
    let mut works = Vec::new();
    for protocol in ["SMB", "NFS"] {
        for mix in [Mix::Read, Mix::Write] {
            for queue_depth in [1, 8] {
                works.extend(sizes.iter().map(|size| work(protocol, mix, *size, queue_depth)));
            }
        }
    }
    works
}

/// The selected points.
fn chosen(args: &Demo) -> Vec<Work> {
    works(args.quick).into_iter().filter(|work| work.to_string().contains(&args.only)).collect()
}

/// The bounds of this demo. The white papers claim 0.60 to 0.67 for latency and 1.5 to 3.5 for cycles.
fn gates() -> Vec<Gate> {
    let gate = |work: &Work, transport, figure, bound| Gate {
        work: work.clone(),
        transport,
        reference: "tcp",
        figure,
        bound,
    };
    let small = work("SMB", Mix::Read, 8 << 10, 1);
    let large = work("SMB", Mix::Read, 512 << 10, 8);
    vec![
        gate(&small, "shm", Figure::Latency, 0.25),
        gate(&large, "shm", Figure::CyclesPerByte, 1.0 / 3.5),
        gate(&large, "iwarp", Figure::Throughput, 0.75),
        gate(&large, "iwarp-nocrc", Figure::Throughput, 0.9),
    ]
}

fn workload(work: &Work, span: u64, duration: Duration) -> Workload {
    Workload {
        mix: work.mix,
        size: work.size,
        queue_depth: work.queue_depth,
        order: Order::Random,
        span,
        warm_up: duration / 5,
        duration,
        ..Workload::default()
    }
}

/// Writes the file once, so that every read returns written data.
async fn fill(remote: &Remote, path: &str, size: u64) -> Result<(), Failure> {
    let file = remote.create(path).await?;
    let block =
        Bytes::from((0..1u32 << 20).map(|i| (i.wrapping_mul(2_654_435_761) >> 11) as u8).collect::<Vec<_>>());
    for offset in (0..size).step_by(block.len()) {
        file.write(offset, block.clone()).await?;
    }
    file.close().await
}

/// The server under measurement: this same program, on processor 0.
struct ServerProcess {
    service: Service,
    password: String,
}

impl ServerProcess {
    fn start() -> Result<ServerProcess, Failure> {
        let password = hex(random::bytes::<16>()?);
        let args = [
            &["serve", "--ram", "demo=1G", "--user", USER, "--json", "--cores", "1", "--pin"][..],
            &["--smb-port", "0", "--smbd-port", "0", "--crc", "asked", "--congestion", CONGESTION],
            &["--nfs-port", "0", "--nfs-rdma-port", "0", "--mountd-port", "0", "--no-root-squash"],
            // Reserved ports are few, and this server holds only test data.
            &["--export", "demo:insecure"],
        ]
        .concat();
        let variable = Some((crate::password::VARIABLE, &password[..]));
        // Ctrl-C reaches only this process, which ends the server.
        let service = Service::start_apart(&args, variable, Stdio::null(), "warn")?;
        Ok(ServerProcess { service, password })
    }

    fn smb_url(&self) -> Result<Url, Failure> {
        let port = |name| self.service.port(name);
        let (smb, smbd) = (port("smb_port")?, port("smbd_port")?);
        let text = format!("smb://{USER}@127.0.0.1:{smb}/demo/smb.bin?rdmaport={smbd}");
        Ok(Url::parse(&text)?.ok_or("not a URL")?)
    }

    fn nfs_url(&self) -> Result<Url, Failure> {
        let port = |name| self.service.port(name);
        let (nfs, mountd, rdma) = (port("nfs_port")?, port("mountd_port")?, port("nfs_rdma_port")?);
        let text = format!("nfs://127.0.0.1:{nfs}/demo/nfs.bin?mountport={mountd}&rdmaport={rdma}");
        Ok(Url::parse(&text)?.ok_or("not a URL")?)
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::args::{Args, Command};

    #[test]
    fn standard_output_is_one_file_at_most_and_that_is_said_before_anything_is_measured() {
        let line = ["weft", "demo", "--out", "-", "--json", "-"];
        let Command::Demo(args) = Args::try_parse_from(line).unwrap().command else { panic!("demo") };
        assert!(run(args).unwrap_err().to_string().contains("one format"));
    }

    #[test]
    fn what_cannot_be_is_said_before_anything_is_measured() {
        let folder = tempfile::tempdir().unwrap();
        let out = folder.path().join("report.html");
        let says = |options: &[&str]| {
            let line = [&["weft", "demo"][..], options].concat();
            let Command::Demo(args) = Args::try_parse_from(line).unwrap().command else { panic!("demo") };
            run(args).unwrap_err().to_string()
        };
        let out = out.to_str().unwrap();
        assert!(
            says(&["--only", "nothing", "--out", out]).contains("--only \"nothing\": no point has this text")
        );
        let nowhere = folder.path().join("none/report.html");
        assert!(says(&["--out", nowhere.to_str().unwrap()]).contains("there is no folder"));
        assert!(says(&["--out", folder.path().to_str().unwrap()]).contains("is a folder"));
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
    }
}
