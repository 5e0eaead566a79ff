//! The result as CSV (RFC 4180): a line per point, with every measure and percentile and their ranges.
//!
//! Units are part of the column names; an empty field was not measured. Histograms and per-second values are only in
//! the JSON.

use std::io;

use crate::result::{Measure, PERCENTILES, Point, Report, Section, Spread, Unit};

/// Writes `report` to `out`.
pub fn write(report: &Report, mut out: impl io::Write) -> io::Result<()> {
    let head: Vec<String> = fields(None).into_iter().map(|(name, _)| name).collect();
    line(&mut out, &head)?;
    for section in &report.sections {
        for point in &section.points {
            let values: Vec<String> =
                fields(Some((section, point))).into_iter().map(|(_, value)| value).collect();
            line(&mut out, &values)?;
        }
    }
    // Dropping a buffered writer would lose its content silently.
    out.flush()
}

/// The columns with their values; without a point, the values are empty.
fn fields(of: Option<(&Section, &Point)>) -> Vec<(String, String)> {
    let point = of.map(|(_, point)| point);
    let work = point.map(|point| &point.work);
    let mut fields: Vec<(String, String)> = Vec::new();
    let mut add =
        |name: &str, value: Option<String>| fields.push((name.to_owned(), value.unwrap_or_default()));
    add("picture", of.map(|(section, _)| section.picture.to_string()));
    add("peer", of.and_then(|(section, _)| section.peer.as_ref().map(|peer| peer.host.clone())));
    add("name", work.map(|w| w.name.clone()));
    add("protocol", work.map(|w| w.protocol.clone()));
    add("operations", work.map(|w| w.mix.to_string()));
    add("block_bytes", work.map(|w| w.size.to_string()));
    add("queue_depth", work.map(|w| w.queue_depth.to_string()));
    add("order", work.map(|w| w.order.clone()));
    add("files", work.map(|w| w.files.to_string()));
    add("threads", work.map(|w| w.threads.to_string()));
    add("channels", work.map(|w| w.channels.to_string()));
    add("clients", work.map(|w| w.clients.to_string()));
    add("rate_asked_per_second", work.and_then(|w| w.rate).map(|rate| rate.to_string()));
    add("transport", point.map(|p| p.transport.clone()));
    add("repetitions", point.map(|p| p.repetitions.to_string()));
    add("operations_total", point.map(|p| p.operations.to_string()));
    add("bytes_total", point.map(|p| p.bytes.to_string()));
    add("seconds_total", point.map(|p| format!("{}", p.seconds)));
    let mut spread = |name: String, value: Option<Spread>| {
        add(&name, value.map(|s| s.median.to_string()));
        add(&format!("{name}_min"), value.map(|s| s.min.to_string()));
        add(&format!("{name}_max"), value.map(|s| s.max.to_string()));
    };
    let latency = |measure: &Measure| measure.unit() == Unit::Time;
    for measure in Measure::ALL.into_iter().filter(|measure| !latency(measure)) {
        spread(column(measure), point.and_then(|p| measure.of(p)));
    }
    for (prefix, which) in [
        ("latency", point.map(|p| &p.latency)),
        ("read_latency", point.and_then(|p| p.reads.as_ref())),
        ("write_latency", point.and_then(|p| p.writes.as_ref())),
    ] {
        spread(format!("{prefix}_mean_ns"), which.map(|l| l.mean));
        spread(format!("{prefix}_min_ns"), which.map(|l| l.min));
        for (i, (word, _)) in PERCENTILES.iter().enumerate() {
            spread(format!("{prefix}_{word}_ns"), which.map(|l| l.percentiles()[i]));
        }
        spread(format!("{prefix}_max_ns"), which.map(|l| l.max));
    }
    let traffic = point.and_then(|p| p.traffic.as_ref());
    add("provider", traffic.and_then(|t| t.provider.clone()));
    add("rdma_read_bytes", traffic.map(|t| t.rdma_read_bytes.to_string()));
    add("rdma_write_bytes", traffic.map(|t| t.rdma_write_bytes.to_string()));
    add("send_bytes", traffic.map(|t| t.send_bytes.to_string()));
    add("inline_bytes", traffic.map(|t| t.inline_bytes.to_string()));
    add("credits_starved", traffic.and_then(|t| t.credits_starved).map(|n| n.to_string()));
    add("marks", point.map(|p| p.marks.iter().map(|m| m.text.clone()).collect::<Vec<_>>().join("; ")));
    fields
}

fn column(measure: Measure) -> String {
    let name = match measure {
        Measure::Throughput => "throughput_bytes_per_second",
        Measure::Iops => "operations_per_second",
        Measure::Cycles => "cycles_per_byte",
        Measure::ClientCores => "client_cores_busy",
        Measure::ServerCores => "server_cores_busy",
        Measure::Idle => "idle_percent",
        Measure::Interrupts => "interrupts_per_second",
        Measure::Switches => "context_switches_per_second",
        Measure::Syscalls => "syscalls_per_operation",
        Measure::Copies => "copies_per_operation",
        Measure::ClientMemory => "client_memory_bytes",
        Measure::ServerMemory => "server_memory_bytes",
        other => other.word(),
    };
    name.to_owned()
}

fn line(out: &mut impl io::Write, values: &[String]) -> io::Result<()> {
    let quoted = values.iter().map(|value| {
        if value.contains(['"', ',', '\n', '\r']) {
            format!("\"{}\"", value.replace('"', "\"\""))
        } else {
            value.clone()
        }
    });
    write!(out, "{}\r\n", quoted.collect::<Vec<_>>().join(","))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::result::tests::sample;
    use crate::result::{Mark, MarkKind};

    #[test]
    fn every_line_has_every_column_and_every_percentile() {
        let mut report = sample();
        let text = "a \"quoted\" reason, with a comma";
        report.sections[0].points[0].marks.push(Mark { kind: MarkKind::Other, text: text.into() });
        let mut out = Vec::new();
        write(&report, &mut out).unwrap();
        let out = String::from_utf8(out).unwrap();
        let lines: Vec<&str> = out.split_terminator("\r\n").collect();
        assert_eq!(lines.len(), 19);
        let head: Vec<&str> = lines[0].split(',').collect();
        for (word, _) in PERCENTILES {
            for end in ["", "_min", "_max"] {
                assert!(head.contains(&&*format!("latency_{word}_ns{end}")), "{word}{end}");
            }
        }
        assert!(lines[1].ends_with(",\"a \"\"quoted\"\" reason, with a comma\""), "{}", lines[1]);
        assert!(lines[2..].iter().all(|line| line.split(',').count() == head.len()));
        let at = head.iter().position(|name| *name == "latency_p99.999_ns").unwrap();
        let first: Vec<&str> = lines[2].split(',').collect();
        assert_eq!(first[at], report.sections[0].points[1].latency.p99999.median.to_string());
        let duplicates: std::collections::HashSet<_> = head.iter().collect();
        assert_eq!(duplicates.len(), head.len(), "no two columns have one name");
    }
}
