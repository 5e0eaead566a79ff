//! Comparisons in pairs: a subject and its reference are measured side by side, round after round.
//!
//! A [`Comparison`] keeps the figures of each round. It is judged by the median of the rounds' ratios, because the
//! speed of a shared machine varies more between rounds than within one.
//!
//! No round is dropped.

use serde::Serialize;

use crate::result::{Spread, Verdict};

/// The bound that a figure must keep.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Bound {
    /// At least this.
    AtLeast(f64),
    /// At most this.
    AtMost(f64),
}

impl Bound {
    fn number(self) -> f64 {
        match self {
            Bound::AtLeast(bound) | Bound::AtMost(bound) => bound,
        }
    }

    fn holds(self, value: f64) -> bool {
        match self {
            Bound::AtLeast(bound) => value >= bound,
            Bound::AtMost(bound) => value <= bound,
        }
    }

    fn words(self) -> &'static str {
        match self {
            Bound::AtLeast(_) => "at least",
            Bound::AtMost(_) => "at most",
        }
    }
}

/// The unit of a figure, which decides how it is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Unit {
    /// Bytes per second.
    BytesPerSecond,
    /// Microseconds.
    Microseconds,
    /// Bytes.
    Bytes,
    /// Seconds.
    Seconds,
    /// Percent of a core.
    Percent,
}

impl Unit {
    /// The figure with its unit.
    pub fn show(self, value: f64) -> String {
        match self {
            Unit::BytesPerSecond => format!("{:.2} GB/s", value / 1e9),
            Unit::Microseconds => format!("{value:.2} us"),
            Unit::Bytes => format!("{:.1} KiB", value / 1024.0),
            Unit::Seconds => format!("{value:.2} s"),
            Unit::Percent => format!("{value:.2} %"),
        }
    }
}

/// One line of a bench: a subject and its reference.
#[derive(Clone, Debug, Serialize)]
pub struct Comparison {
    /// The measured subject.
    pub subject: String,
    /// The reference; `None` if the bound applies to the figure itself.
    pub reference: Option<String>,
    /// The unit of both figures.
    pub unit: Unit,
    /// The bound on the ratio, or on the figure if there is no reference.
    pub bound: Bound,
    /// Figures of the subject, one per round.
    pub figures: Vec<f64>,
    /// Figures of the reference, from the same rounds.
    pub references: Vec<f64>,
}

impl Comparison {
    /// Compares two figures by their ratio.
    pub fn paired(subject: &str, reference: &str, unit: Unit, bound: Bound) -> Comparison {
        let reference = Some(reference.to_owned());
        Comparison {
            subject: subject.into(),
            reference,
            unit,
            bound,
            figures: Vec::new(),
            references: Vec::new(),
        }
    }

    /// Judges a figure by itself.
    pub fn alone(subject: &str, unit: Unit, bound: Bound) -> Comparison {
        Comparison {
            subject: subject.into(),
            reference: None,
            unit,
            bound,
            figures: Vec::new(),
            references: Vec::new(),
        }
    }

    /// The judged value of each round.
    pub fn judged(&self) -> Option<Spread> {
        match self.reference {
            None => Spread::of(self.figures.clone()),
            Some(_) => Spread::of(self.figures.iter().zip(&self.references).map(|(a, b)| a / b).collect()),
        }
    }

    /// The line as text, and whether it holds. A line without a figure does not.
    pub fn verdict(&self) -> Verdict {
        let seen = self.judged().map(|spread| spread.median);
        let against = self.reference.as_ref().map_or(String::new(), |name| format!(" against {name}"));
        let bound = match self.reference {
            Some(_) => format!("{:.2}", self.bound.number()),
            None => self.unit.show(self.bound.number()),
        };
        Verdict {
            claim: format!("{}{against}: {} {bound}", self.subject, self.bound.words()),
            ratio: seen,
            bound: self.bound.number(),
            holds: seen.is_some_and(|seen| self.bound.holds(seen)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_of_the_ratios_counts_not_the_ratio_of_medians() {
        let mut line = Comparison::paired("iwarp", "tcp", Unit::BytesPerSecond, Bound::AtLeast(0.9));
        // The machine is twice as fast in the second round, and disturbed in the third.
        line.figures = vec![95.0, 190.0, 10.0];
        line.references = vec![100.0, 200.0, 100.0];
        assert_eq!(line.judged(), Some(Spread { min: 0.1, median: 0.95, max: 0.95 }));
        let verdict = line.verdict();
        assert!(verdict.holds);
        assert_eq!(verdict.claim, "iwarp against tcp: at least 0.90");
    }

    #[test]
    fn a_line_without_a_figure_does_not_hold() {
        let line = Comparison::alone("idle server", Unit::Percent, Bound::AtMost(1.0));
        assert!(!line.verdict().holds);
        assert_eq!(line.verdict().claim, "idle server: at most 1.00 %");
    }

    #[test]
    fn bounds_work_both_ways() {
        let mut line = Comparison::alone("memory", Unit::Bytes, Bound::AtMost(16.0 * 1024.0));
        line.figures = vec![16384.0];
        assert!(line.verdict().holds);
        line.figures = vec![16385.0];
        assert!(!line.verdict().holds);
        assert!(Bound::AtLeast(0.9).holds(0.9) && !Bound::AtLeast(0.9).holds(0.89));
    }
}
