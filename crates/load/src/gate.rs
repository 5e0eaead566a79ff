//! Bounds that a measurement must keep, as ratios of two points of one run.

use serde::{Deserialize, Serialize};

use crate::result::{Point, Report, Spread, Verdict, Work};

/// The figure of a point that is judged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Figure {
    /// Mean latency: lower is better.
    Latency,
    /// Bytes per second: higher is better.
    Throughput,
    /// Cycles per byte of both ends: lower is better.
    CyclesPerByte,
}

impl Figure {
    fn of(self, point: &Point) -> Option<Spread> {
        match self {
            Figure::Latency => Some(point.latency.mean),
            Figure::Throughput => Some(point.throughput),
            Figure::CyclesPerByte => point.cycles_per_byte,
        }
    }

    fn lower_is_better(self) -> bool {
        !matches!(self, Figure::Throughput)
    }
}

/// "`figure` of `work` over `transport`, divided by the same over `reference`, keeps `bound`".
#[derive(Clone, Debug)]
pub struct Gate {
    /// The work of both points.
    pub work: Work,
    /// The transport judged.
    pub transport: &'static str,
    /// The transport of the reference.
    pub reference: &'static str,
    /// The figure compared.
    pub figure: Figure,
    /// At most (latency, cycles) or at least (throughput) this ratio of medians.
    pub bound: f64,
}

impl Gate {
    /// Judges the gate by `report`. A missing point fails it.
    pub fn judge(&self, report: &Report) -> Verdict {
        let median =
            |transport| report.point(&self.work, transport).and_then(|p| self.figure.of(p)).map(|s| s.median);
        let ratio = median(self.transport).zip(median(self.reference)).map(|(a, b)| a / b);
        let lower = self.figure.lower_is_better();
        let holds = ratio.is_some_and(|r| if lower { r <= self.bound } else { r >= self.bound });
        let figure = match self.figure {
            Figure::Latency => "latency",
            Figure::Throughput => "throughput",
            Figure::CyclesPerByte => "cycles per byte",
        };
        let claim = format!(
            "{}: {figure} of {} against {} {} {:.3}",
            self.work,
            self.transport,
            self.reference,
            if lower { "at most" } else { "at least" },
            self.bound,
        );
        Verdict { claim, ratio, bound: self.bound, holds }
    }
}
