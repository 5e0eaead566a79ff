//! Compares two results: `weft bench compare a.json b.json`.
//!
//! For each point that both have, it takes the ratio of each measure's medians and judges it. A difference counts
//! only if the ranges of the repetitions do not overlap and the medians differ by more than a tolerance. Points
//! measured in only one result, and points with marks, are shown too.

use serde::Serialize;

use crate::result::{Measure, Picture, Point, Report, Spread, Work};

/// How a measure changed from the first result to the second.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Judgement {
    /// Better, beyond the noise.
    Better,
    /// Worse, beyond the noise.
    Worse,
    /// The same, as far as the repetitions show.
    Same,
}

impl Judgement {
    /// The word for people.
    pub fn word(self) -> &'static str {
        match self {
            Judgement::Better => "better",
            Judgement::Worse => "worse",
            Judgement::Same => "same",
        }
    }
}

/// One measure of one point in both results.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct MeasureChange {
    /// The picture to which both belong.
    pub picture: Picture,
    /// The work measured.
    pub work: Work,
    /// The transport measured.
    pub transport: String,
    /// The measure, by its word in tables.
    pub measure: &'static str,
    /// The first result's.
    pub before: Spread,
    /// The second result's.
    pub after: Spread,
    /// The second median divided by the first; absent where the first is 0.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ratio: Option<f64>,
    /// The judgement.
    pub judgement: Judgement,
    /// Why one of the two must be read with care.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub marks: Vec<String>,
    /// The measure itself, not in the JSON.
    #[serde(skip)]
    pub of: Measure,
}

/// A point that only one of the results has.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Lone {
    /// Its picture.
    pub picture: Picture,
    /// The work measured.
    pub work: Work,
    /// The transport measured.
    pub transport: String,
    /// "first" or "second".
    pub only_in: &'static str,
}

/// A whole comparison.
#[derive(Clone, Debug, Serialize)]
pub struct Difference {
    /// The schema of this output.
    pub schema: &'static str,
    /// Medians that differ by less than this part of the first are the same, however small the noise.
    pub tolerance: f64,
    /// Number of measures that are better.
    pub better: usize,
    /// Number of measures that are worse.
    pub worse: usize,
    /// Number of measures that are the same.
    pub same: usize,
    /// How the two environments differ, which may be the reason: "kernel: 6.1, then 6.18".
    pub environment: Vec<String>,
    /// Every measure of every point of both.
    pub lines: Vec<MeasureChange>,
    /// What cannot be compared.
    pub lone: Vec<Lone>,
}

/// Judges one measure. `tolerance` is a part of the first median.
pub fn judge(measure: Measure, before: &Spread, after: &Spread, tolerance: f64) -> Judgement {
    let apart = after.max < before.min || after.min > before.max;
    if !apart || (after.median - before.median).abs() <= tolerance * before.median.abs() {
        return Judgement::Same;
    }
    if (after.median < before.median) == measure.lower_is_better() {
        Judgement::Better
    } else {
        Judgement::Worse
    }
}

/// Measures of speed or cost; a changed memory size or number of cores is shown, but is neither better nor worse by
/// itself.
pub const JUDGED: [Measure; 5] =
    [Measure::Throughput, Measure::Iops, Measure::Mean, Measure::P99, Measure::Cycles];

impl Difference {
    /// Compares `after` with `before` by `measures`.
    pub fn of(before: &Report, after: &Report, measures: &[Measure], tolerance: f64) -> Difference {
        let mut difference = Difference {
            schema: "weft-compare/1",
            tolerance,
            better: 0,
            worse: 0,
            same: 0,
            environment: environment(before, after),
            lines: Vec::new(),
            lone: Vec::new(),
        };
        let find = |report: &'_ Report, picture: Picture, point: &Point| -> Option<usize> {
            let same = |(p, other): (Picture, &Point)| {
                p == picture && other.work == point.work && other.transport == point.transport
            };
            report.points().position(same)
        };
        let lone = |picture, point: &Point, only_in| Lone {
            picture,
            work: point.work.clone(),
            transport: point.transport.clone(),
            only_in,
        };
        let others: Vec<(Picture, &Point)> = after.points().collect();
        for (picture, a) in before.points() {
            match find(after, picture, a) {
                None => difference.lone.push(lone(picture, a, "first")),
                Some(at) => difference.add(picture, a, others[at].1, measures),
            }
        }
        for (picture, b) in others {
            if find(before, picture, b).is_none() {
                difference.lone.push(lone(picture, b, "second"));
            }
        }
        difference
    }

    fn add(&mut self, picture: Picture, a: &Point, b: &Point, measures: &[Measure]) {
        let marks: Vec<String> = a.marks.iter().chain(&b.marks).map(|mark| mark.text.clone()).collect();
        for measure in measures {
            let (Some(before), Some(after)) = (measure.of(a), measure.of(b)) else { continue };
            let judgement = judge(*measure, &before, &after, self.tolerance);
            match judgement {
                Judgement::Better => self.better += 1,
                Judgement::Worse => self.worse += 1,
                Judgement::Same => self.same += 1,
            }
            self.lines.push(MeasureChange {
                picture,
                work: a.work.clone(),
                transport: a.transport.clone(),
                measure: measure.word(),
                before,
                after,
                ratio: (before.median > 0.0).then(|| after.median / before.median),
                judgement,
                marks: marks.clone(),
                of: *measure,
            });
        }
    }

    /// Number of lines of `measure` with this judgement.
    pub fn count(&self, measure: Measure, judgement: Judgement) -> usize {
        self.lines.iter().filter(|line| line.of == measure && line.judgement == judgement).count()
    }
}

/// The differences between the two environments.
fn environment(before: &Report, after: &Report) -> Vec<String> {
    let (a, b) = (&before.environment, &after.environment);
    let mtu = |mtu: Option<u32>| mtu.map_or("unknown".to_owned(), |mtu| mtu.to_string());
    [
        ("processor", a.processor.clone(), b.processor.clone()),
        ("processors", a.processors.to_string(), b.processors.to_string()),
        ("kernel", a.kernel.clone(), b.kernel.clone()),
        ("reactor", a.driver.clone(), b.driver.clone()),
        ("TCP congestion control", a.congestion_control.clone(), b.congestion_control.clone()),
        ("MTU", mtu(a.mtu), mtu(b.mtu)),
        ("Weft", a.version.clone(), b.version.clone()),
        ("command", a.command.clone(), b.command.clone()),
    ]
    .into_iter()
    .filter(|(_, a, b)| a != b)
    .map(|(what, a, b)| format!("{what}: {a}, then {b}"))
    .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::result::tests::sample;

    fn spread(min: f64, median: f64, max: f64) -> Spread {
        Spread { min, median, max }
    }

    #[test]
    fn a_difference_within_the_noise_is_none() {
        let before = spread(90.0, 100.0, 110.0);
        // The ranges touch: the same, however far the medians are apart.
        assert_eq!(judge(Measure::Mean, &before, &spread(110.0, 150.0, 160.0), 0.0), Judgement::Same);
        assert_eq!(judge(Measure::Mean, &before, &spread(111.0, 150.0, 160.0), 0.0), Judgement::Worse);
        assert_eq!(judge(Measure::Throughput, &before, &spread(111.0, 150.0, 160.0), 0.0), Judgement::Better);
        assert_eq!(judge(Measure::Throughput, &before, &spread(50.0, 60.0, 89.0), 0.0), Judgement::Worse);
        assert_eq!(judge(Measure::Cycles, &before, &spread(50.0, 60.0, 89.0), 0.0), Judgement::Better);
    }

    #[test]
    fn a_difference_below_the_tolerance_is_none() {
        let before = spread(100.0, 100.0, 100.0);
        let after = spread(101.0, 101.0, 101.0);
        assert_eq!(judge(Measure::Mean, &before, &after, 0.02), Judgement::Same);
        assert_eq!(judge(Measure::Mean, &before, &after, 0.005), Judgement::Worse);
    }

    #[test]
    fn a_result_is_the_same_as_itself() {
        let difference = Difference::of(&sample(), &sample(), &JUDGED, 0.0);
        assert_eq!((difference.better, difference.worse, difference.same), (0, 0, 18 * 5));
        assert!(difference.lone.is_empty() && difference.environment.is_empty());
    }

    #[test]
    fn what_only_one_has_is_named_and_what_differs_around_it_too() {
        let before = sample();
        let mut after = sample();
        after.environment.kernel = "6.18".into();
        let slow = &mut after.sections[0].points[0];
        slow.latency.mean = spread(1e9, 1e9, 1e9);
        after.sections[0].points.remove(1);
        let mut other = after.sections[0].points[1].clone();
        other.transport = "rnic".into();
        after.sections[0].points.push(other);
        let difference = Difference::of(&before, &after, &JUDGED, 0.0);
        assert_eq!(difference.environment, ["kernel: 6.1, then 6.18"]);
        assert_eq!((difference.better, difference.worse), (0, 1));
        assert_eq!(difference.count(Measure::Mean, Judgement::Worse), 1);
        let lone: Vec<_> =
            difference.lone.iter().map(|lone| (lone.only_in, lone.transport.as_str())).collect();
        assert_eq!(lone, [("first", "tcp"), ("second", "rnic")]);
    }
}
