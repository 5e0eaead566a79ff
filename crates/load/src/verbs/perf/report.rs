//! Measurements as rows: perftest's columns for a terminal, the same figures as JSON.
//!
//! perftest shows half of the round trip as the latency of a Send or a Write, and the whole one of a Read; so does
//! this. Its MB are 2^20 bytes, which are called MiB here.

use std::fmt::Write as _;

use serde::Serialize;

use super::client::Measured;
use super::{Mode, Op};
use crate::verbs::times::Quantiles;

const MIB: f64 = (1u64 << 20) as f64;

/// One line of a table.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    /// "send", "write" or "read".
    pub op: &'static str,
    /// "latency" or "bandwidth".
    pub mode: &'static str,
    /// Bytes of an operation.
    pub size: u32,
    /// Outstanding operations, each way.
    pub queue_depth: u16,
    /// Whether the server did the same at the same time; the amounts are then sums of both ways.
    pub bidirectional: bool,
    /// The client's counted operations.
    pub iterations: u64,
    /// Half the round trip of a Send or Write, the whole of a Read; latency rows only.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub latency: Option<Quantiles>,
    /// Total bytes per second; bandwidth rows only, like all that follow.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bandwidth: Option<Bandwidth>,
    /// CPU seconds of the client's process per GiB of payload.
    pub client_cpu_s_per_gib: f64,
    /// CPU seconds of the server's process per GiB of payload.
    pub server_cpu_s_per_gib: f64,
    /// Operations with wrong bytes; `None` without comparison.
    pub mismatches: Option<u64>,
}

/// The rates of a bandwidth run.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Bandwidth {
    /// In the fastest batch, a tenth of the run.
    pub peak_bytes_per_s: f64,
    /// In the whole run.
    pub average_bytes_per_s: f64,
    /// Operations per second in the whole run.
    pub messages_per_s: f64,
}

/// The name of an operation.
pub fn name(op: Op) -> &'static str {
    match op {
        Op::Send => "send",
        Op::Write => "write",
        Op::Read => "read",
    }
}

impl From<&Measured> for Row {
    fn from(measured: &Measured) -> Row {
        let plan = &measured.plan;
        let size = f64::from(plan.size);
        let both = measured.ways() as f64;
        let ways = if plan.op == Op::Read { 1.0 } else { 2.0 };
        let gib = measured.bytes() as f64 / (1u64 << 30) as f64;
        let rate = measured.bytes_per_second();
        let latency = plan.mode == Mode::Latency;
        Row {
            op: name(plan.op),
            mode: if latency { "latency" } else { "bandwidth" },
            size: plan.size,
            queue_depth: plan.depth,
            bidirectional: plan.both_ways,
            iterations: measured.operations,
            latency: if latency { measured.times.map(|times| times.divided(ways)) } else { None },
            bandwidth: (!latency).then_some(Bandwidth {
                peak_bytes_per_s: measured.peak_rate * size * both,
                average_bytes_per_s: rate,
                messages_per_s: rate / size,
            }),
            client_cpu_s_per_gib: measured.client_cpu.as_secs_f64() / gib,
            server_cpu_s_per_gib: measured.server_cpu.as_secs_f64() / gib,
            mismatches: plan.check.then_some(measured.mismatches),
        }
    }
}

impl Row {
    /// The line of a table, under [`header`] of its mode.
    pub fn line(&self) -> String {
        let mut line = format!(" {:<10} {:<13}", self.size, self.iterations);
        // Writing to a String cannot fail.
        if let Some(q) = &self.latency {
            let columns = [q.min_us, q.max_us, q.p50_us, q.mean_us, q.stdev_us, q.p99_us, q.p999_us];
            for us in columns {
                let _ = write!(line, " {us:>11.2}");
            }
        }
        if let Some(b) = &self.bandwidth {
            let (peak, average) = (b.peak_bytes_per_s / MIB, b.average_bytes_per_s / MIB);
            let _ = write!(
                line,
                " {:>6} {peak:>14.2} {average:>17.2} {:>14.6} {:>12.3} {:>12.3}",
                self.queue_depth,
                b.messages_per_s / 1e6,
                self.client_cpu_s_per_gib,
                self.server_cpu_s_per_gib,
            );
        }
        match self.mismatches {
            None => {}
            Some(0) => line += "   all right",
            Some(n) => {
                let _ = write!(line, "   {n} WRONG");
            }
        }
        line
    }
}

/// The header of a table of `mode`.
pub fn header(mode: Mode) -> String {
    let mut line = format!(" {:<10} {:<13}", "#bytes", "#iterations");
    match mode {
        Mode::Latency => {
            for column in ["t_min[us]", "t_max", "t_typical", "t_avg", "t_stdev", "99%", "99.9%"] {
                let _ = write!(line, " {column:>11}");
            }
        }
        Mode::Bandwidth | Mode::Idle => {
            let _ = write!(
                line,
                " {:>6} {:>14} {:>17} {:>14} {:>12} {:>12}",
                "qd", "BW peak[MiB/s]", "BW average[MiB/s]", "MsgRate[Mpps]", "cl. s/GiB", "srv. s/GiB"
            );
        }
    }
    line
}
