//! One measured point: a work over a transport, reduced from its repetitions.
//!
//! It has figures with their spreads, and one merged histogram. [`Mark`]s say why it must be read with care, and
//! every printer shows them.

use serde::{Deserialize, Serialize};

use super::{End, EndSample, Latencies, Latency, Second, Spread, Traffic, Work};

/// The measurements of one repetition, of all clients together.
#[derive(Clone, Debug, Default)]
pub struct Sample {
    /// Operations completed in the counted time.
    pub operations: u64,
    /// Their payload bytes.
    pub bytes: u64,
    /// Length of the counted time.
    pub seconds: f64,
    /// Latency of each operation.
    pub latency: Latencies,
    /// Latencies of a mix's READs.
    pub reads: Option<Latencies>,
    /// Latencies of a mix's WRITEs.
    pub writes: Option<Latencies>,
    /// The cost at the loader (for a replica: the source).
    pub client: EndSample,
    /// The cost at the server (for a replica: the destination), if known.
    pub server: Option<EndSample>,
    /// How the payload travelled, if known.
    pub traffic: Option<Traffic>,
    /// One entry per second.
    pub timeline: Vec<Second>,
}

/// Why a point must be read with care.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MarkKind {
    /// Client and server shared a core.
    SharedCore,
    /// Other processes kept the machine busy.
    Busy,
    /// The file was not cached as claimed.
    NotCached,
    /// The repetitions differ by more than the effect.
    Noisy,
    /// The loader, not the server, was the limit.
    LoaderBound,
    /// It was ended early.
    Interrupted,
    /// Something else.
    Other,
}

impl MarkKind {
    /// A short word for tables and legends.
    pub fn word(self) -> &'static str {
        match self {
            MarkKind::SharedCore => "shared core",
            MarkKind::Busy => "machine busy",
            MarkKind::NotCached => "not cached",
            MarkKind::Noisy => "noisy",
            MarkKind::LoaderBound => "loader-bound",
            MarkKind::Interrupted => "interrupted",
            MarkKind::Other => "see note",
        }
    }
}

/// A reason to read a point with care, with figures.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Mark {
    /// The kind of reason.
    pub kind: MarkKind,
    /// A sentence with figures.
    pub text: String,
}

/// One measured point.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Point {
    /// The work.
    pub work: Work,
    /// The transport: "tcp", "iwarp", "iwarp-nocrc", "shm", "rnic".
    pub transport: String,
    /// The number of repetitions.
    pub repetitions: usize,
    /// Operations of all repetitions.
    #[serde(default)]
    pub operations: u64,
    /// Payload bytes of all repetitions.
    #[serde(default)]
    pub bytes: u64,
    /// Counted seconds of all repetitions.
    #[serde(default)]
    pub seconds: f64,
    /// Payload bytes per second.
    pub throughput: Spread,
    /// Operations per second.
    pub iops: Spread,
    /// Latencies of all operations.
    pub latency: Latency,
    /// Whether they are corrected for operations delayed by slow ones (coordinated omission).
    #[serde(default)]
    pub latency_corrected: bool,
    /// Latencies of a mix's READs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reads: Option<Latency>,
    /// Latencies of a mix's WRITEs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub writes: Option<Latency>,
    /// CPU cycles of both ends per payload byte; absent if the server's are unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cycles_per_byte: Option<Spread>,
    /// The cost at the loader (for a replica: the source).
    pub client: End,
    /// The cost at the server (for a replica: the destination).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub server: Option<End>,
    /// How the payload travelled.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub traffic: Option<Traffic>,
    /// The latencies of all repetitions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub histogram: Option<Latencies>,
    /// The last repetition, per second.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub timeline: Vec<Second>,
    /// Why it must be read with care.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub marks: Vec<Mark>,
}

impl Point {
    /// Reduces the repetitions of one work over one transport; `None` if there are none, or if one has no operation.
    /// `hz` is the nominal clock.
    pub fn of(work: Work, transport: &str, hz: f64, samples: &[Sample]) -> Option<Point> {
        let seconds = |s: &Sample| s.seconds.max(1e-9);
        let spread = |f: &dyn Fn(&Sample) -> f64| Spread::of(samples.iter().map(f).collect());
        let latency = Latency::of(&samples.iter().map(|s| &s.latency).collect::<Vec<_>>())?;
        let part = |f: fn(&Sample) -> Option<&Latencies>| {
            let all: Option<Vec<&Latencies>> = samples.iter().map(f).collect();
            all.and_then(|all| Latency::of(&all))
        };
        fn with<'a>(s: &'a Sample, end: &'a EndSample) -> (&'a EndSample, f64, u64, u64) {
            (end, s.seconds.max(1e-9), s.operations, s.bytes)
        }
        let client: Vec<_> = samples.iter().map(|s| with(s, &s.client)).collect();
        let server: Option<Vec<_>> =
            samples.iter().map(|s| s.server.as_ref().map(|end| with(s, end))).collect();
        let both: Option<Vec<f64>> = samples
            .iter()
            .map(|s| {
                let cycles = s.client.cycles(hz)? + s.server.as_ref()?.cycles(hz)?;
                Some(cycles / s.bytes.max(1) as f64)
            })
            .collect();
        let mut histogram = Latencies::new();
        samples.iter().for_each(|s| histogram.merge(&s.latency));
        let traffic = samples.iter().filter_map(|s| s.traffic.as_ref()).cloned().reduce(|mut sum, more| {
            sum.add(&more);
            sum
        });
        Some(Point {
            work,
            transport: transport.to_owned(),
            repetitions: samples.len(),
            operations: samples.iter().map(|s| s.operations).sum(),
            bytes: samples.iter().map(|s| s.bytes).sum(),
            seconds: samples.iter().map(|s| s.seconds).sum(),
            throughput: spread(&|s| s.bytes as f64 / seconds(s))?,
            iops: spread(&|s| s.operations as f64 / seconds(s))?,
            latency,
            latency_corrected: false,
            reads: part(|s| s.reads.as_ref()),
            writes: part(|s| s.writes.as_ref()),
            cycles_per_byte: both.and_then(Spread::of),
            client: End::of(hz, &client),
            server: server.map(|server| End::of(hz, &server)),
            traffic,
            histogram: Some(histogram),
            timeline: samples.last().map_or_else(Vec::new, |s| s.timeline.clone()),
            marks: Vec::new(),
        })
    }

    /// Cycles per byte of both ends; of the loader alone if the server's are unknown.
    pub fn known_cycles_per_byte(&self) -> Option<Spread> {
        self.cycles_per_byte.or(self.client.cycles_per_byte)
    }
}
