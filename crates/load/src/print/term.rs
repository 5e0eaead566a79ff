//! The result as tables for a terminal.
//!
//! Owns: nothing.

use std::fmt::Write as _;

use comfy_table::{CellAlignment, ContentArrangement, Table, presets};

use super::cells;
use crate::result::Report;

/// The tables and the verdicts, ready to print.
pub fn render(report: &Report) -> String {
    let mut text = String::new();
    let env = &report.environment;
    // Writing to a String cannot fail.
    let _ = writeln!(text, "{}", report.title);
    let _ = writeln!(
        text,
        "{} x {} processors, Linux {}, {}, TCP congestion control {}, Weft {}",
        env.processor, env.processors, env.kernel, env.driver, env.congestion_control, env.version
    );
    let _ = writeln!(
        text,
        "cycles = CPU time of both ends x {:.2} GHz nominal clock; medians, +- half the range of the repetitions; ratios against tcp\n",
        env.hz / 1e9
    );
    let mut table = Table::new();
    table.load_style(presets::UTF8_HORIZONTAL_ONLY).set_content_arrangement(ContentArrangement::Disabled);
    table.set_header(vec![
        "work",
        "transport",
        "throughput",
        "+-",
        "IOPS",
        "mean",
        "x tcp",
        "p50",
        "p99",
        "p99.9",
        "max",
        "cycles/B",
        "x tcp",
    ]);
    for (work, points) in report.by_work() {
        for point in &points {
            table.add_row(std::iter::once(work.to_string()).chain(cells(&points, point)));
        }
    }
    for column in table.column_iter_mut().skip(2) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    let _ = writeln!(text, "{table}");
    for note in &report.notes {
        let _ = writeln!(text, "note: {note}");
    }
    if !report.verdicts.is_empty() {
        let _ = writeln!(text);
    }
    for verdict in &report.verdicts {
        let seen = verdict.ratio.map_or("not measured".to_owned(), |r| format!("{r:.3}"));
        let _ = writeln!(
            text,
            "{} {}: {seen}",
            if verdict.holds { "holds      " } else { "FALLS SHORT" },
            verdict.claim
        );
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::print::html;
    use crate::result::{Environment, Point, Spread, Work};
    use crate::workload::Mix;

    pub(crate) fn sample() -> Report {
        let flat = |v: f64| Spread { min: v * 0.9, median: v, max: v * 1.1 };
        let mut points = Vec::new();
        for (transport, speed) in [("tcp", 1.0), ("iwarp", 0.9), ("shm", 4.0)] {
            for size in [8192u32, 65536, 524_288] {
                for queue_depth in [1, 8] {
                    points.push(Point {
                        work: Work { protocol: "SMB".into(), mix: Mix::Read, size, queue_depth },
                        transport: transport.into(),
                        repetitions: 5,
                        throughput: flat(speed * f64::from(size) * 20_000.0),
                        iops: flat(speed * 20_000.0),
                        mean: flat(50_000.0 / speed),
                        p50: flat(45_000.0 / speed),
                        p99: flat(80_000.0 / speed),
                        p999: flat(120_000.0 / speed),
                        max: flat(1_000_000.0),
                        cycles_per_byte: flat(2.0 / speed),
                        client_cycles_per_byte: flat(1.0 / speed),
                    });
                }
            }
        }
        Report {
            title: "RDMA beside TCP".into(),
            environment: Environment {
                processor: "Test <CPU>".into(),
                hz: 2.5e9,
                processors: 2,
                kernel: "6.1".into(),
                congestion_control: "reno".into(),
                driver: "io_uring".into(),
                version: "0.1.0".into(),
                command: "weft demo".into(),
            },
            points,
            verdicts: vec![],
            notes: vec!["loopback".into()],
        }
    }

    #[test]
    fn the_table_shows_every_point_and_its_ratio() {
        let text = render(&sample());
        assert_eq!(text.matches("shm").count(), 6);
        assert!(text.contains("SMB READ 8 KiB qd 1"), "{text}");
        assert!(text.contains("0.25"), "{text}");
        assert!(text.contains("note: loopback"));
    }

    #[test]
    fn the_page_is_self_contained_and_escaped() {
        let page = html::render(&sample()).unwrap();
        assert!(page.contains("<svg"));
        assert!(page.contains("Test &lt;CPU&gt;"));
        assert!(!page.contains("http://") || !page.contains("src="), "nothing is loaded from elsewhere");
        assert!(page.len() < 2 << 20);
    }
}
