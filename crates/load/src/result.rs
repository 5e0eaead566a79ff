//! The one result that every printer shows.
//!
//! Owns: summaries (a few numbers per point). Does not: keep samples; a run's histogram is reduced at once.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};

use crate::cpu;
use crate::gate::Verdict;
use crate::run::Measured;
use crate::workload::{Mix, size_label};

/// Smallest, middle and largest of the repetitions of one figure.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Spread {
    /// Smallest.
    pub min: f64,
    /// Median: the figure to quote.
    pub median: f64,
    /// Largest.
    pub max: f64,
}

impl Spread {
    /// The spread of `values`; `None` when there are none.
    pub fn of(mut values: Vec<f64>) -> Option<Spread> {
        values.sort_by(f64::total_cmp);
        let (min, max) = (*values.first()?, *values.last()?);
        let middle = values.len() / 2;
        let median =
            if values.len() % 2 == 1 { values[middle] } else { (values[middle - 1] + values[middle]) / 2.0 };
        Some(Spread { min, median, max })
    }
}

/// What is compared: everything but the transport.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Work {
    /// "SMB" or "NFS".
    pub protocol: String,
    /// Operations.
    pub mix: Mix,
    /// Bytes an operation.
    pub size: u32,
    /// Outstanding operations.
    pub queue_depth: u32,
}

impl fmt::Display for Work {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let size = size_label(u64::from(self.size));
        write!(f, "{} {} {size} qd {}", self.protocol, self.mix, self.queue_depth)
    }
}

/// One measured point: a work over a transport.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Point {
    /// What was done.
    pub work: Work,
    /// Over what: "tcp", "iwarp", "iwarp-nocrc", "shm".
    pub transport: String,
    /// How often it was repeated.
    pub repetitions: usize,
    /// Payload bytes per second.
    pub throughput: Spread,
    /// Operations per second.
    pub iops: Spread,
    /// Latency in nanoseconds: mean, p50, p99, p99.9, largest.
    pub mean: Spread,
    /// Half of the operations were faster.
    pub p50: Spread,
    /// 99 of a hundred were faster.
    pub p99: Spread,
    /// 999 of a thousand were faster.
    pub p999: Spread,
    /// The slowest.
    pub max: Spread,
    /// CPU cycles of both ends per payload byte; of the client alone when the server is elsewhere.
    pub cycles_per_byte: Spread,
    /// The client's part of it.
    pub client_cycles_per_byte: Spread,
}

impl Point {
    /// Reduces the repetitions of one work over one transport; `None` when there are none.
    pub fn of(work: Work, transport: &str, hz: f64, runs: &[Measured]) -> Option<Point> {
        let spread = |f: &dyn Fn(&Measured) -> f64| Spread::of(runs.iter().map(f).collect());
        let seconds = |m: &Measured| m.elapsed.as_secs_f64().max(1e-9);
        let per_byte = move |cpu: f64, m: &Measured| cpu * hz / (m.bytes.max(1) as f64);
        Some(Point {
            work,
            transport: transport.to_owned(),
            repetitions: runs.len(),
            throughput: spread(&|m| m.bytes as f64 / seconds(m))?,
            iops: spread(&|m| m.operations as f64 / seconds(m))?,
            mean: spread(&|m| m.latency.mean())?,
            p50: spread(&|m| m.latency.value_at_quantile(0.5) as f64)?,
            p99: spread(&|m| m.latency.value_at_quantile(0.99) as f64)?,
            p999: spread(&|m| m.latency.value_at_quantile(0.999) as f64)?,
            max: spread(&|m| m.latency.max() as f64)?,
            cycles_per_byte: spread(&|m| {
                per_byte((m.client_cpu + m.server_cpu.unwrap_or_default()).as_secs_f64(), m)
            })?,
            client_cycles_per_byte: spread(&|m| per_byte(m.client_cpu.as_secs_f64(), m))?,
        })
    }
}

/// Where it was measured.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Environment {
    /// Processor name.
    pub processor: String,
    /// Its nominal frequency, which turns CPU time into cycles.
    pub hz: f64,
    /// Number of processors.
    pub processors: usize,
    /// Kernel release.
    pub kernel: String,
    /// TCP congestion control of the connections.
    pub congestion_control: String,
    /// "io_uring" or "epoll".
    pub driver: String,
    /// Weft's version.
    pub version: String,
    /// How it was started.
    pub command: String,
}

impl Environment {
    /// This machine.
    pub fn here(driver: &str, congestion_control: &str) -> std::io::Result<Environment> {
        let (processor, hz) = cpu::processor()?;
        let kernel = std::fs::read_to_string("/proc/sys/kernel/osrelease")?.trim().to_owned();
        Ok(Environment {
            processor,
            hz,
            processors: std::thread::available_parallelism()?.get(),
            kernel,
            congestion_control: congestion_control.to_owned(),
            driver: driver.to_owned(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            command: std::env::args().collect::<Vec<_>>().join(" "),
        })
    }
}

/// A whole report.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Report {
    /// What the reader looks at.
    pub title: String,
    /// Where.
    pub environment: Environment,
    /// The points in the order of measurement.
    pub points: Vec<Point>,
    /// The bounds and whether they hold.
    pub verdicts: Vec<Verdict>,
    /// What the reader must know to judge the figures.
    pub notes: Vec<String>,
}

impl Report {
    /// The point of `work` over `transport`.
    pub fn point(&self, work: &Work, transport: &str) -> Option<&Point> {
        self.points.iter().find(|p| p.work == *work && p.transport == transport)
    }

    /// The points by work, in the order of the works; inside a work in the order of measurement.
    pub fn by_work(&self) -> BTreeMap<&Work, Vec<&Point>> {
        let mut works: BTreeMap<&Work, Vec<&Point>> = BTreeMap::new();
        for point in &self.points {
            works.entry(&point.work).or_default().push(point);
        }
        works
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_spread_is_the_median_with_its_ends() {
        assert_eq!(Spread::of(vec![]), None);
        assert_eq!(Spread::of(vec![3.0, 1.0, 2.0]), Some(Spread { min: 1.0, median: 2.0, max: 3.0 }));
        assert_eq!(Spread::of(vec![1.0, 2.0]), Some(Spread { min: 1.0, median: 1.5, max: 2.0 }));
    }
}
