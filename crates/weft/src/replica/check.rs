//! `weft replica check`: judges whether a host is fit to be a destination, and in which mode.
//!
//! The questions, and the bound of 5 ms, are those of Storage Replica's Test-SRTopology. `serve::replica::check`
//! measures.

use std::fmt::Write as _;
use std::io::IsTerminal;
use std::net::IpAddr;
use std::path::Path;
use std::process::ExitCode;

use serde_json::json;
use weft_machine::{Pool, rt};

use super::{address, parse_to};
use crate::Failure;
use crate::args::ReplicaCheck;
use crate::doctor::{Report, Verdict};
use crate::out::Console;
use crate::serve::replica::check::{Measured, There, Unknown, look, measure};
use crate::size::human;
use crate::transfer::CLIENT_BUFFERS;

/// A synchronous write waits for a round trip: beyond this, applications notice.
const SYNC_ROUND_TRIP_MS: f64 = 5.0;

/// Runs the command.
pub(super) fn run(state: &Path, args: ReplicaCheck) -> Result<ExitCode, Failure> {
    let console = Console::beside_json(args.json, args.html.as_deref())?;
    // HOST:VOLUME is also accepted, as for `create`.
    let (host, theirs) = match args.host.parse::<IpAddr>() {
        Ok(_) => (args.host.clone(), None),
        Err(_) => parse_to(&args.host)?,
    };
    let volumes_there = [theirs.unwrap_or_default(), args.volumes.clone()].concat();
    let address = address(&host, &args.other)?;
    let mut report = Report { host, ..Report::default() };
    let (there, measured) = rt::block_on(async {
        let pool = Pool::new(CLIENT_BUFFERS);
        let there = look(&address, &pool, &volumes_there).await;
        match there {
            Ok(there) => (Ok(there), Some(measure(&address, &pool, state).await)),
            Err(e) => (Err(e), None),
        }
    })?;
    let port = format!("port {}", address.port);
    match &there {
        Err(Unknown::Refused(why)) => {
            report.ok(port, logs_on(&address.user));
            report.fail("their log", why, "fix that on that host");
        }
        Err(Unknown::Unreachable(e)) => {
            let e = e.to_string();
            let remedy = match e.contains("STATUS_LOGON_FAILURE") {
                true => {
                    "weft replica check --user USER, as that host's weft serve has it; WEFT_PASSWORD is that user's"
                }
                false => {
                    "on that host: weft serve --volume NAME --nbd --replica --listen ADDRESS --user USER"
                }
            };
            report.fail(port, e, remedy);
        }
        Ok(there) => {
            report.ok(port, logs_on(&address.user));
            report.ok("their log", log(there.log_bytes_per_second, there.log_ms));
            volumes(&mut report, there);
        }
    }
    let measured = match measured {
        None => None,
        Some(Err(e)) => {
            report.fail("way", e.to_string(), "weft doctor shows which step fails");
            None
        }
        Some(Ok(measured)) => {
            way(&mut report, &measured);
            Some(measured)
        }
    };
    let mode = judge(&mut report, there.as_ref().ok(), measured.as_ref());
    let all = json!({ "host": args.host, "mode": mode, "steps": report.steps, "because": report.verdict.because,
        "measured": measured, "there": there.as_ref().ok() });
    if let Some(path) = &args.html {
        crate::local::save(path, page(&report).as_bytes())?;
    }
    match args.json {
        true => say!("{all}")?,
        false => console.print(format_args!("{}", report.render(std::io::stdout().is_terminal())))?,
    }
    Ok(if mode.is_some() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn logs_on(user: &str) -> String {
    format!("{user} can log on, and the server accepts replicas")
}

fn log(rate: f64, ms: f64) -> String {
    format!("{}/s durably, {ms:.2} ms for 8 KiB", human(rate as u64))
}

fn volumes(report: &mut Report, there: &There) {
    for volume in &there.volumes {
        let (size, used) = (human(volume.size), human(volume.used));
        let name = format!("volume {}", volume.name);
        match &volume.group {
            Some(group) => {
                let found = format!("{size}, already in group {group}");
                report.fail(name, found, &format!("on that host: weft replica remove {group}"));
            }
            None if volume.used > 0 => {
                let found = format!("{size}, {used} in use");
                report.warn(
                    name,
                    found,
                    "create it with --overwrite, or with --seeded if it is an older copy",
                );
            }
            None => report.ok(name, format!("{size}, empty")),
        }
    }
    for (name, why) in &there.refused {
        let remedy = format!(
            "on that host: weft volume create {name}, and weft serve --volume {name} --nbd --replica"
        );
        report.fail(format!("volume {name}"), why, &remedy);
    }
}

fn way(report: &mut Report, measured: &Measured) {
    report.ok("way", measured.description.clone());
    let (median, worst) = (measured.round_trip_ms, measured.round_trip_worst_ms);
    let trip = format!("{median:.2} ms, at worst {worst:.2}");
    match median <= SYNC_ROUND_TRIP_MS {
        true => report.ok("round trip", trip),
        false => report.warn("round trip", trip, "--mode async: no write waits for it"),
    }
    let by_rdma = match measured.rdma_bytes {
        0 => "not over RDMA".to_owned(),
        _ => "over RDMA".to_owned(),
    };
    report.ok("bandwidth", format!("{}/s, {by_rdma}", human(measured.bytes_per_second as u64)));
    report.ok("own log", log(measured.log_bytes_per_second, measured.log_ms));
}

/// The mode, "sync", "async" or none; also sets the report's verdict.
fn judge(report: &mut Report, there: Option<&There>, measured: Option<&Measured>) -> Option<&'static str> {
    let (Some(there), Some(measured), None) = (there, measured, report.first_failure()) else {
        let because = match report.first_failure() {
            Some(step) => format!("not fit to be a destination, because of {}", step.name),
            None => "not fit to be a destination".to_owned(),
        };
        report.verdict = Verdict { rdma: false, because, ..Verdict::default() };
        return None;
    };
    let slowest = [
        ("the link", measured.bytes_per_second),
        ("its log", there.log_bytes_per_second),
        ("this host's log", measured.log_bytes_per_second),
    ];
    let slowest = slowest.iter().min_by(|a, b| a.1.total_cmp(&b.1)).copied().unwrap_or(("", 0.0));
    // Both logs are written in parallel.
    let write_ms = measured.log_ms.max(measured.round_trip_ms + there.log_ms);
    let bytes: u64 = there.volumes.iter().map(|volume| volume.size).sum();
    let copy = match bytes {
        0 => String::new(),
        _ => format!(
            "; a first copy of all {} takes about {:.0} s",
            human(bytes),
            bytes as f64 / measured.bytes_per_second.max(1.0)
        ),
    };
    let bound = format!("writes are bounded by {}, {}/s", slowest.0, human(slowest.1 as u64));
    let (mode, because) = match measured.round_trip_ms <= SYNC_ROUND_TRIP_MS {
        true => (
            "sync",
            format!(
                "fit for --mode sync: a durable 8 KiB write takes about {write_ms:.2} ms instead of {:.2}; {bound}{copy}",
                measured.log_ms
            ),
        ),
        false => (
            "async",
            format!(
                "fit for --mode async: a synchronous write would take about {write_ms:.1} ms, because the round trip is longer \
                 than {SYNC_ROUND_TRIP_MS} ms; {bound}{copy}"
            ),
        ),
    };
    report.verdict = Verdict { rdma: true, because, ..Verdict::default() };
    Some(mode)
}

/// The report as one page without external resources.
fn page(report: &Report) -> String {
    let escape = |text: &str| text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;");
    let mut page = String::from(
        "<!doctype html><html lang=en><head><meta charset=utf-8><meta name=viewport content='width=device-width'><style>\
         :root{color-scheme:light dark}body{font:15px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem}\
         table{border-collapse:collapse;width:100%}td,th{padding:.3rem .6rem;text-align:left;border-bottom:1px solid #8884;\
         vertical-align:top}.ok{color:#0a7d3c}.warning{color:#b26a00}.failed{color:#c22}.skipped{color:#888}</style>",
    );
    let host = escape(&report.host);
    // Writing to a String cannot fail.
    let _ = write!(
        page,
        "<title>Replica check of {host}</title></head><body><h1>Is {host} fit to be a destination?</h1>"
    );
    let _ = write!(page, "<p><strong>{}</strong></p><table>", escape(&report.verdict.because));
    for step in &report.steps {
        let status = serde_json::to_value(step.status).ok();
        let status = status.as_ref().and_then(|status| status.as_str()).unwrap_or_default();
        let remedy = step.remedy.as_ref().map(|remedy| format!("<br>{}", escape(remedy))).unwrap_or_default();
        let _ = write!(
            page,
            "<tr><td class={status}>{status}</td><td>{}</td><td>{}{remedy}</td></tr>",
            escape(&step.name),
            escape(&step.found)
        );
    }
    page.push_str("</table></body></html>\n");
    page
}

#[cfg(test)]
mod tests {
    use super::*;

    fn measured(round_trip_ms: f64) -> Measured {
        Measured {
            transport: "iwarp",
            description: "SMB 3.1.1".into(),
            round_trip_ms,
            round_trip_worst_ms: round_trip_ms,
            bytes_per_second: 1e9,
            rdma_bytes: 1,
            log_bytes_per_second: 5e8,
            log_ms: 1.0,
        }
    }

    #[test]
    fn a_volume_that_is_not_served_is_the_reason_and_not_the_port() {
        let refused =
            vec![("nosuch".to_owned(), "volume \"nosuch\" is not served with --replica here".to_owned())];
        let there = There { log_bytes_per_second: 2e8, log_ms: 2.0, volumes: Vec::new(), refused };
        let mut report = Report::default();
        report.ok("port 4450", logs_on("alice"));
        volumes(&mut report, &there);
        assert_eq!(judge(&mut report, Some(&there), Some(&measured(0.5))), None);
        assert!(report.verdict.because.ends_with("because of volume nosuch"), "{}", report.verdict.because);
    }

    #[test]
    fn the_round_trip_decides_and_the_slowest_part_is_named() {
        let there =
            There { log_bytes_per_second: 2e8, log_ms: 2.0, volumes: Vec::new(), refused: Vec::new() };
        let mut report = Report::default();
        assert_eq!(judge(&mut report, Some(&there), Some(&measured(0.5))), Some("sync"));
        assert!(
            report.verdict.because.contains("about 2.50 ms instead of 1.00"),
            "{}",
            report.verdict.because
        );
        assert!(report.verdict.because.contains("bounded by its log"), "{}", report.verdict.because);
        assert_eq!(judge(&mut report, Some(&there), Some(&measured(9.0))), Some("async"));
        report.fail("way", "<gone>", "mend it");
        assert_eq!(judge(&mut report, Some(&there), Some(&measured(0.5))), None);
        let page = page(&report);
        assert!(page.contains("&lt;gone&gt;") && !page.contains("<gone>"));
    }
}
