//! The cost of the work at one end, and the traffic between both.
//!
//! An [`EndSample`] is one repetition's sample of an end; an [`End`] is reduced from all of them. A counter that
//! cannot be read is absent.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::Spread;

/// One repetition's sample of one end. Counts cover the counted time only.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct EndSample {
    /// CPU time of the process.
    pub cpu: Option<Duration>,
    /// Cycles from the processor's counter, if available; otherwise they are derived from the CPU time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cycles: Option<u64>,
    /// Idle time of each core of the host, 0 to 100.
    pub idle_percent: Vec<f64>,
    /// Hardware interrupts of the host.
    pub interrupts: Option<u64>,
    /// Soft interrupts of the host.
    pub softirqs: Option<u64>,
    /// Context switches of the host.
    pub context_switches: Option<u64>,
    /// System calls of the process.
    pub syscalls: Option<u64>,
    /// Bytes of payload that the process itself copied.
    pub copied_bytes: Option<u64>,
    /// Resident memory of the process at the end, in bytes.
    pub memory_bytes: Option<u64>,
}

/// The cost of the work at one end; every figure is over the repetitions.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct End {
    /// Cores that the process kept busy: CPU seconds per second.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cores_busy: Option<Spread>,
    /// Cycles per payload byte: from the processor's counter if available, otherwise CPU time times the nominal
    /// clock; the environment says which.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cycles_per_byte: Option<Spread>,
    /// Idle time of all cores of the host, 0 to 100.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub idle_percent: Option<Spread>,
    /// The same for each core, as medians.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub idle_percent_per_core: Vec<f64>,
    /// Hardware interrupts of the host per second.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub interrupts_per_second: Option<Spread>,
    /// Soft interrupts of the host per second.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub softirqs_per_second: Option<Spread>,
    /// Context switches of the host per second.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub context_switches_per_second: Option<Spread>,
    /// System calls of the process per operation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub syscalls_per_operation: Option<Spread>,
    /// How often the process itself copied each payload byte.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub copies_per_operation: Option<Spread>,
    /// Resident memory of the process, in bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_bytes: Option<Spread>,
}

impl EndSample {
    /// Cycles as counted, or the CPU time at the nominal clock `hz`.
    pub(super) fn cycles(&self, hz: f64) -> Option<f64> {
        self.cycles.map(|cycles| cycles as f64).or_else(|| self.cpu.map(|cpu| cpu.as_secs_f64() * hz))
    }
}

impl End {
    /// Reduces `samples`, each with the seconds, operations and payload bytes of its repetition.
    pub(super) fn of(hz: f64, samples: &[(&EndSample, f64, u64, u64)]) -> End {
        // A figure that is missing in one repetition is left out: a median of the others would hide that.
        let all = |f: &dyn Fn(&EndSample, f64, u64, u64) -> Option<f64>| -> Option<Spread> {
            let values: Option<Vec<f64>> = samples.iter().map(|(s, t, n, b)| f(s, *t, *n, *b)).collect();
            values.and_then(Spread::of)
        };
        let rate = |f: fn(&EndSample) -> Option<u64>| all(&move |s, t, _, _| f(s).map(|n| n as f64 / t));
        let cores = samples.iter().map(|(s, ..)| s.idle_percent.len()).min().unwrap_or(0);
        let core = |i: usize| Spread::of(samples.iter().map(|(s, ..)| s.idle_percent[i]).collect());
        End {
            cores_busy: all(&|s, t, _, _| s.cpu.map(|cpu| cpu.as_secs_f64() / t)),
            cycles_per_byte: all(&|s, _, _, b| s.cycles(hz).map(|cycles| cycles / b.max(1) as f64)),
            idle_percent: all(&|s, _, _, _| {
                let n = s.idle_percent.len();
                (n > 0).then(|| s.idle_percent.iter().sum::<f64>() / n as f64)
            }),
            idle_percent_per_core: (0..cores).filter_map(core).map(|spread| spread.median).collect(),
            interrupts_per_second: rate(|s| s.interrupts),
            softirqs_per_second: rate(|s| s.softirqs),
            context_switches_per_second: rate(|s| s.context_switches),
            syscalls_per_operation: all(&|s, _, n, _| s.syscalls.map(|calls| calls as f64 / n.max(1) as f64)),
            copies_per_operation: all(&|s, _, _, b| {
                s.copied_bytes.map(|copied| copied as f64 / b.max(1) as f64)
            }),
            memory_bytes: all(&|s, _, _, _| s.memory_bytes.map(|bytes| bytes as f64)),
        }
    }
}

/// How the payload travelled; sums over the repetitions.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Traffic {
    /// "iwarp", "shm", a device; absent for TCP.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub provider: Option<String>,
    /// Bytes by RDMA Read.
    pub rdma_read_bytes: u64,
    /// Bytes by RDMA Write.
    pub rdma_write_bytes: u64,
    /// Bytes of Sends: the messages, including payload inside them.
    pub send_bytes: u64,
    /// Payload bytes inside messages, by Send or TCP.
    pub inline_bytes: u64,
    /// How often a message waited for a credit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub credits_starved: Option<u64>,
}

impl Traffic {
    /// Adds the traffic of another repetition or client.
    pub fn add(&mut self, other: &Traffic) {
        self.provider = self.provider.take().or_else(|| other.provider.clone());
        self.rdma_read_bytes += other.rdma_read_bytes;
        self.rdma_write_bytes += other.rdma_write_bytes;
        self.send_bytes += other.send_bytes;
        self.inline_bytes += other.inline_bytes;
        self.credits_starved = match (self.credits_starved, other.credits_starved) {
            (Some(a), Some(b)) => Some(a + b),
            (a, b) => a.or(b),
        };
    }

    /// The part of the payload that travelled by RDMA Read and Write, 0 to 1; `None` if nothing did.
    pub fn by_rdma(&self) -> Option<f64> {
        let rdma = self.rdma_read_bytes + self.rdma_write_bytes;
        let all = rdma + self.inline_bytes;
        (all > 0).then(|| rdma as f64 / all as f64)
    }
}

/// One second of a run, for figures over time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Second {
    /// Seconds since counting began.
    pub at: f64,
    /// Payload bytes per second.
    pub throughput: f64,
    /// Operations per second.
    pub iops: f64,
    /// Cores kept busy by the loader (the source of a replica).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub client_cores: Option<f64>,
    /// Cores kept busy by the server (the destination).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub server_cores: Option<f64>,
    /// Resident memory of the loader (the source), in bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub client_memory_bytes: Option<u64>,
    /// Resident memory of the server (the destination), in bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub server_memory_bytes: Option<u64>,
}
