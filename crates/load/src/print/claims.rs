//! The papers' claims read one by one against a result: claim, ours, holds or not, why.
//!
//! What: a row for each published claim and each kind of RDMA that was measured. A ratio is compared with the paper's ratio,
//! because both are RDMA against TCP on one machine; figures of other hardware are put beside ours and not judged.
//! Owns: the judgement. Does not: leave out a claim that does not hold.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use super::published::{Kind, PUBLISHED, Published};
use super::{order, show};
use crate::result::{Measure, Picture, Point, Report, Section, Work};
use crate::workload::size_label;

/// What became of a claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It holds here.
    Holds,
    /// At some block sizes.
    InPart,
    /// It does not.
    DoesNot,
    /// Other hardware: put beside ours, not judged.
    Beside,
    /// Nothing here to judge it by.
    NotMeasured,
}

impl Outcome {
    /// For people.
    pub fn word(self) -> &'static str {
        match self {
            Outcome::Holds => "holds",
            Outcome::InPart => "in part",
            Outcome::DoesNot => "does not hold",
            Outcome::Beside => "not judged",
            Outcome::NotMeasured => "not measured",
        }
    }
}

/// One claim, read.
#[derive(Clone, Debug)]
pub struct Reading {
    /// The paper.
    pub paper: &'static str,
    /// What it says.
    pub claim: &'static str,
    /// What was seen, in words with figures.
    pub ours: String,
    /// Whether it holds.
    pub outcome: Outcome,
    /// Why, as far as that is known.
    pub why: &'static str,
}

const INTERRUPTS: &str = "Interrupts per second fall as the blocks grow, READ and WRITE.";

fn paper(picture: Picture) -> &'static str {
    match picture {
        Picture::Latency => "sqlio paper",
        Picture::Smb => "diskspd paper",
        Picture::Table => "Windows Server 2012 Beta",
        Picture::Nfs => "iozone paper",
        Picture::Replica => "Storage Replica post",
        Picture::Demo | Picture::Own => "",
    }
}

/// All claims, in the order of the papers.
pub fn read(report: &Report) -> Vec<Reading> {
    let mut readings = Vec::new();
    for picture in Picture::ALL {
        let sections: Vec<&Section> = report.sections.iter().filter(|s| s.picture == picture).collect();
        for claim in PUBLISHED.iter().filter(|p| p.picture == picture) {
            let before = readings.len();
            match claim.kind {
                Kind::Ratio => readings.extend(ratios(claim, &sections)),
                Kind::Value => readings.extend(beside(claim, &sections)),
            }
            if readings.len() == before {
                readings.push(nothing(picture, claim.text));
            }
        }
        if picture == Picture::Nfs {
            let before = readings.len();
            readings.extend(falls(&sections));
            if readings.len() == before {
                readings.push(nothing(picture, INTERRUPTS));
            }
        }
    }
    readings
}

fn nothing(picture: Picture, claim: &'static str) -> Reading {
    let ours = String::new();
    Reading { paper: paper(picture), claim, ours, outcome: Outcome::NotMeasured, why: "" }
}

/// Transports but TCP, in the order of legends.
fn rdma<'a>(sections: &[&'a Section]) -> Vec<&'a str> {
    let mut names: Vec<&str> = sections
        .iter()
        .flat_map(|s| s.points.iter().map(|p| p.transport.as_str()))
        .filter(|t| *t != "tcp")
        .collect();
    names.sort_by_key(|name| order(name));
    names.dedup();
    names
}

/// A ratio that the paper names, for each kind of RDMA.
fn ratios(claim: &Published, sections: &[&Section]) -> Vec<Reading> {
    let lower = claim.measure.lower_is_better();
    let reach = |ratio: f64| if lower { ratio <= claim.value } else { ratio >= claim.value };
    let of = |name: &str| -> Vec<(&Work, f64)> {
        let pairs = sections.iter().flat_map(|section| {
            let points = section.points.iter().filter(|p| p.transport == name);
            points.filter_map(|p| Some((p, section.point(&p.work, "tcp")?)))
        });
        let ratio = |(p, tcp): (&'_ Point, &'_ Point)| {
            let (over, under) = (claim.measure.of(p)?.median, claim.measure.of(tcp)?.median);
            (under > 0.0).then(|| over / under)
        };
        pairs.filter_map(|(p, tcp)| Some((&p.work, ratio((p, tcp))?))).collect()
    };
    let reading = |name: &'_ str| -> Option<Reading> {
        let mut all = of(name);
        // The best first.
        all.sort_by(|a, b| if lower { a.1.total_cmp(&b.1) } else { b.1.total_cmp(&a.1) });
        let ((best, first), (worst, last)) = (all.first().copied()?, all.last().copied()?);
        let reached = all.iter().filter(|(_, ratio)| reach(*ratio)).count();
        let outcome = match (reached, claim.at_best) {
            (0, _) => Outcome::DoesNot,
            (_, true) => Outcome::Holds,
            (n, false) if n == all.len() => Outcome::Holds,
            _ => Outcome::InPart,
        };
        let place = |work: &Work| format!("{} {}", work.mix, size_label(u64::from(work.size)));
        let ours = format!(
            "{}: {} ({}) to {} ({}) of TCP's; {reached} of {} points reach it",
            show::transport(name),
            show::ratio(first),
            place(best),
            show::ratio(last),
            place(worst),
            all.len()
        );
        let why = if outcome == Outcome::Holds { "" } else { reason(name) };
        Some(Reading { paper: paper(claim.picture), claim: claim.text, ours, outcome, why })
    };
    rdma(sections).into_iter().filter_map(reading).collect()
}

/// What costs RDMA here what it does not cost the papers' cards.
fn reason(transport: &str) -> &'static str {
    match transport {
        "iwarp" => {
            "iWARP is software here, over the same sockets as TCP and with a CRC over every byte; the papers' cards do both."
        }
        "iwarp-nocrc" => {
            "iWARP is software here, over the same sockets as TCP; the papers' cards do that work."
        }
        "shm" => {
            "A processor makes the one copy that a card would make, and TCP's ends are on one host, too: it is faster here than over a wire."
        }
        _ => "",
    }
}

/// A figure of other hardware, with ours beside it.
fn beside(claim: &Published, sections: &[&Section]) -> Option<Reading> {
    let mut best: BTreeMap<(usize, String), f64> = BTreeMap::new();
    for point in sections.iter().flat_map(|section| &section.points) {
        let fits = claim.size.is_none_or(|size| size == point.work.size);
        let Some(value) = claim.measure.of(point).filter(|_| fits).map(|s| s.median) else { continue };
        let seen = best.entry(order(&point.transport)).or_insert(value);
        let better = if claim.measure.lower_is_better() { value < *seen } else { value > *seen };
        if better {
            *seen = value;
        }
    }
    let unit = claim.measure.unit();
    let ours: Vec<String> = best
        .iter()
        .map(|((_, name), value)| format!("{}: {}", show::transport(name), show::value(unit, *value)))
        .collect();
    (!ours.is_empty()).then(|| Reading {
        paper: paper(claim.picture),
        claim: claim.text,
        ours: ours.join(", "),
        outcome: Outcome::Beside,
        why: "Other hardware.",
    })
}

/// Whether interrupts fall from block size to block size, by transport; a rise within the noise is none.
fn falls(sections: &[&Section]) -> Vec<Reading> {
    let mut curves: BTreeMap<(usize, String), Vec<(&Work, crate::result::Spread)>> = BTreeMap::new();
    for point in sections.iter().flat_map(|section| &section.points) {
        if let Some(spread) = Measure::Interrupts.of(point) {
            curves.entry(order(&point.transport)).or_default().push((&point.work, spread));
        }
    }
    let reading = |((_, name), mut curve): ((usize, String), Vec<(&Work, crate::result::Spread)>)| {
        curve.sort_by_key(|(work, _)| (work.mix, work.size));
        let steps: Vec<bool> = curve
            .windows(2)
            .filter(|pair| pair[0].0.mix == pair[1].0.mix)
            .map(|pair| pair[1].1.min <= pair[0].1.max)
            .collect();
        let down = steps.iter().filter(|down| **down).count();
        let (first, last) = (curve.first()?, curve.last()?);
        if steps.is_empty() {
            return None;
        }
        let outcome = match down {
            n if n == steps.len() && last.1.median < first.1.median => Outcome::Holds,
            0 => Outcome::DoesNot,
            _ => Outcome::InPart,
        };
        let ours = format!(
            "{}: {} a second at {}, {} at {}; {down} of {} steps fall or stay",
            show::transport(&name),
            show::count(first.1.median),
            size_label(u64::from(first.0.size)),
            show::count(last.1.median),
            size_label(u64::from(last.0.size)),
            steps.len()
        );
        let why = if outcome == Outcome::Holds {
            ""
        } else {
            "On one host no card interrupts: what is left are timers and wake-ups of other processors."
        };
        Some(Reading { paper: paper(Picture::Nfs), claim: INTERRUPTS, ours, outcome, why })
    };
    curves.into_iter().filter_map(reading).collect()
}

/// A table in Markdown.
pub fn markdown(report: &Report) -> String {
    let mut text = String::from("| paper | claim | ours | | why |\n|---|---|---|---|---|\n");
    let cell = |text: &str| text.replace('|', "\\|").replace('\n', " ");
    for reading in read(report) {
        // Writing to a String cannot fail.
        let _ = writeln!(
            text,
            "| {} | {} | {} | {} | {} |",
            reading.paper,
            cell(reading.claim),
            cell(&reading.ours),
            reading.outcome.word(),
            cell(reading.why)
        );
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::result::tests::{pictures, sample};

    fn full() -> Report {
        Report { sections: pictures(), ..sample() }
    }

    fn of<'a>(readings: &'a [Reading], paper: &str, ours: &str) -> &'a Reading {
        let found: Vec<_> =
            readings.iter().filter(|r| r.paper == paper && r.ours.starts_with(ours)).collect();
        found.first().copied().unwrap_or_else(|| panic!("{paper} {ours}: {readings:#?}"))
    }

    #[test]
    fn a_claim_that_does_not_hold_is_written_down_as_such() {
        let readings = read(&full());
        // In the sample shared memory takes a quarter of TCP's time, iWARP a quarter more.
        assert_eq!(of(&readings, "sqlio paper", "shared memory").outcome, Outcome::Holds);
        let iwarp = of(&readings, "sqlio paper", "iWARP");
        assert_eq!(iwarp.outcome, Outcome::DoesNot);
        assert!(iwarp.ours.contains("0 of 18 points reach it") && !iwarp.why.is_empty(), "{iwarp:?}");
        assert_eq!(of(&readings, "iozone paper", "TCP").outcome, Outcome::Holds);
        assert_eq!(of(&readings, "Windows Server 2012 Beta", "TCP").outcome, Outcome::Beside);
    }

    #[test]
    fn every_paper_has_its_rows_also_where_nothing_was_measured() {
        let papers = |report: &Report| {
            let mut papers: Vec<_> = read(report).iter().map(|r| r.paper).collect();
            papers.dedup();
            papers
        };
        let all = [
            "sqlio paper",
            "diskspd paper",
            "Windows Server 2012 Beta",
            "iozone paper",
            "Storage Replica post",
        ];
        assert_eq!(papers(&full()), all);
        let nothing = Report { sections: vec![], ..sample() };
        assert_eq!(papers(&nothing), all);
        assert!(read(&nothing).iter().all(|r| r.outcome == Outcome::NotMeasured));
        let table = markdown(&nothing);
        assert!(
            table.lines().all(|line| line.matches(" |").count() >= 5 || line.starts_with("|---")),
            "{table}"
        );
    }
}
