//! The measures of a point: each has a name, a unit and a direction.
//!
//! Tables, figures, the CSV and comparisons use this list; [`crate::print`] formats the values.

use super::{End, Point, Spread};

/// The unit of a measure, which decides how it is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// Bytes per second.
    Rate,
    /// Nanoseconds.
    Time,
    /// A count per second.
    PerSecond,
    /// Cycles per payload byte.
    Cycles,
    /// 0 to 100.
    Percent,
    /// Bytes.
    Bytes,
    /// A plain number.
    Number,
}

/// One measure of a point.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Measure {
    /// Payload bytes per second.
    Throughput,
    /// Operations per second.
    Iops,
    /// Mean latency.
    Mean,
    /// Median latency.
    P50,
    /// 99 % were faster.
    P99,
    /// 99.9 % were faster.
    P999,
    /// Longest latency.
    Max,
    /// CPU cycles of both ends per payload byte; of the loader alone if the server's are unknown.
    Cycles,
    /// Cores that the loader kept busy.
    ClientCores,
    /// Cores that the server kept busy.
    ServerCores,
    /// Idle time of the server's host, or of the loader's if the server's is unknown.
    Idle,
    /// Interrupts per second, of the same host.
    Interrupts,
    /// Context switches per second, of the same host.
    Switches,
    /// System calls of the loader per operation.
    Syscalls,
    /// How often the loader copied each payload byte.
    Copies,
    /// Memory of the loader.
    ClientMemory,
    /// Memory of the server.
    ServerMemory,
}

impl Measure {
    /// All measures, in table order.
    pub const ALL: [Measure; 17] = [
        Measure::Throughput,
        Measure::Iops,
        Measure::Mean,
        Measure::P50,
        Measure::P99,
        Measure::P999,
        Measure::Max,
        Measure::Cycles,
        Measure::ClientCores,
        Measure::ServerCores,
        Measure::Idle,
        Measure::Interrupts,
        Measure::Switches,
        Measure::Syscalls,
        Measure::Copies,
        Measure::ClientMemory,
        Measure::ServerMemory,
    ];

    /// The value of `point`; `None` if it was not measured.
    pub fn of(self, point: &Point) -> Option<Spread> {
        let host =
            |f: fn(&End) -> Option<Spread>| point.server.as_ref().and_then(f).or_else(|| f(&point.client));
        match self {
            Measure::Throughput => Some(point.throughput),
            Measure::Iops => Some(point.iops),
            Measure::Mean => Some(point.latency.mean),
            Measure::P50 => Some(point.latency.p50),
            Measure::P99 => Some(point.latency.p99),
            Measure::P999 => Some(point.latency.p999),
            Measure::Max => Some(point.latency.max),
            Measure::Cycles => point.known_cycles_per_byte(),
            Measure::ClientCores => point.client.cores_busy,
            Measure::ServerCores => point.server.as_ref().and_then(|end| end.cores_busy),
            Measure::Idle => host(|end| end.idle_percent),
            Measure::Interrupts => host(|end| end.interrupts_per_second),
            Measure::Switches => host(|end| end.context_switches_per_second),
            Measure::Syscalls => point.client.syscalls_per_operation,
            Measure::Copies => point.client.copies_per_operation,
            Measure::ClientMemory => point.client.memory_bytes,
            Measure::ServerMemory => point.server.as_ref().and_then(|end| end.memory_bytes),
        }
    }

    /// For captions: "mean latency".
    pub fn name(self) -> &'static str {
        match self {
            Measure::Throughput => "throughput",
            Measure::Iops => "operations per second",
            Measure::Mean => "mean latency",
            Measure::P50 => "median latency",
            Measure::P99 => "latency, 99th percentile",
            Measure::P999 => "latency, 99.9th percentile",
            Measure::Max => "longest latency",
            Measure::Cycles => "CPU cycles per byte",
            Measure::ClientCores => "client: cores busy",
            Measure::ServerCores => "server: cores busy",
            Measure::Idle => "CPU idle",
            Measure::Interrupts => "interrupts per second",
            Measure::Switches => "context switches per second",
            Measure::Syscalls => "system calls per operation",
            Measure::Copies => "payload copies per operation",
            Measure::ClientMemory => "client: memory",
            Measure::ServerMemory => "server: memory",
        }
    }

    /// For table heads and JSON: "mean".
    pub fn word(self) -> &'static str {
        match self {
            Measure::Throughput => "throughput",
            Measure::Iops => "iops",
            Measure::Mean => "mean",
            Measure::P50 => "p50",
            Measure::P99 => "p99",
            Measure::P999 => "p99.9",
            Measure::Max => "max",
            Measure::Cycles => "cycles/B",
            Measure::ClientCores => "client cores",
            Measure::ServerCores => "server cores",
            Measure::Idle => "idle",
            Measure::Interrupts => "irq/s",
            Measure::Switches => "ctxsw/s",
            Measure::Syscalls => "syscalls/op",
            Measure::Copies => "copies/op",
            Measure::ClientMemory => "client memory",
            Measure::ServerMemory => "server memory",
        }
    }

    /// Its unit.
    pub fn unit(self) -> Unit {
        match self {
            Measure::Throughput => Unit::Rate,
            Measure::Iops | Measure::Interrupts | Measure::Switches => Unit::PerSecond,
            Measure::Mean | Measure::P50 | Measure::P99 | Measure::P999 | Measure::Max => Unit::Time,
            Measure::Cycles => Unit::Cycles,
            Measure::Idle => Unit::Percent,
            Measure::ClientMemory | Measure::ServerMemory => Unit::Bytes,
            Measure::ClientCores | Measure::ServerCores | Measure::Syscalls | Measure::Copies => Unit::Number,
        }
    }

    /// Whether a larger value is worse.
    pub fn lower_is_better(self) -> bool {
        !matches!(self, Measure::Throughput | Measure::Iops | Measure::Idle)
    }
}
