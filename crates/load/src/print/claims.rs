//! Checks the papers' claims one by one against a result: claim, our figures, verdict, reason.
//!
//! Each published claim has a row for each kind of RDMA measured. A ratio is compared with the paper's ratio, because
//! both are RDMA against TCP on one machine, and only at the points that the paper covers
//! ([`super::published::Scope`]). Figures of other hardware are shown beside ours and are not judged. Claims that do
//! not hold are listed too.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use super::published::{Kind, PUBLISHED, Published};
use super::{order, show};
use crate::result::{Measure, Picture, Point, Report, Section, Work};
use crate::workload::size_label;

/// The verdict on a claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It holds.
    Holds,
    /// It holds at some block sizes.
    InPart,
    /// It does not hold.
    DoesNot,
    /// Other hardware: shown beside ours, not judged.
    Beside,
    /// Nothing was measured to judge it by.
    NotMeasured,
}

impl Outcome {
    /// The word for people.
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

/// A claim with its verdict.
#[derive(Clone, Debug)]
pub struct Reading {
    /// The paper.
    pub paper: &'static str,
    /// The claim.
    pub claim: &'static str,
    /// Our figures, as a sentence.
    pub ours: String,
    /// The verdict.
    pub outcome: Outcome,
    /// The reason, if known.
    pub why: &'static str,
}

const FEWER_INTERRUPTS: &str =
    "RDMA causes fewer interrupts per second at the client than TCP, READ and WRITE.";
const FALLING_INTERRUPTS: &str = "RDMA's interrupts per second fall as the blocks grow, READ and WRITE.";
const NO_CARD: &str = "On one host no card interrupts: these are timers and wake-ups of other processors, of both ends together.";

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

/// All claims, in the papers' order.
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
            readings.extend(interrupts(&sections));
            if readings.len() == before {
                readings.extend([FEWER_INTERRUPTS, FALLING_INTERRUPTS].map(|claim| nothing(picture, claim)));
            }
        }
    }
    readings
}

fn nothing(picture: Picture, claim: &'static str) -> Reading {
    let ours = String::new();
    Reading { paper: paper(picture), claim, ours, outcome: Outcome::NotMeasured, why: "" }
}

/// Transports other than TCP, in legend order.
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

/// A ratio that the paper gives, for each kind of RDMA, at the points that the paper covers.
fn ratios(claim: &Published, sections: &[&Section]) -> Vec<Reading> {
    let lower = claim.measure.lower_is_better();
    let reach = |ratio: f64| if lower { ratio <= claim.value } else { ratio >= claim.value };
    let of = |name: &str| -> Vec<(&Work, f64)> {
        let pairs = sections.iter().flat_map(|section| {
            let points = section.points.iter().filter(|p| p.transport == name && claim.scope.covers(&p.work));
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
        // Best first.
        all.sort_by(|a, b| if lower { a.1.total_cmp(&b.1) } else { b.1.total_cmp(&a.1) });
        let ((best, first), (worst, last)) = (all.first().copied()?, all.last().copied()?);
        let reached = all.iter().filter(|(_, ratio)| reach(*ratio)).count();
        let outcome = match (reached, claim.at_best) {
            (0, _) => Outcome::DoesNot,
            (_, true) => Outcome::Holds,
            (n, false) if n == all.len() => Outcome::Holds,
            _ => Outcome::InPart,
        };
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

/// "READ 8 KiB".
fn place(work: &Work) -> String {
    format!("{} {}", work.mix, size_label(u64::from(work.size)))
}

/// Why RDMA costs more here than on the papers' cards.
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

/// A figure of other hardware beside ours: our best where the paper gives its best, otherwise our worst among the
/// points that the paper's figure covers.
fn beside(claim: &Published, sections: &[&Section]) -> Option<Reading> {
    let mut seen: BTreeMap<(usize, String), f64> = BTreeMap::new();
    for point in sections.iter().flat_map(|section| &section.points) {
        let covered = claim.scope.covers(&point.work);
        let Some(value) = claim.measure.of(point).filter(|_| covered).map(|s| s.median) else { continue };
        let kept = seen.entry(order(&point.transport)).or_insert(value);
        let better = if claim.measure.lower_is_better() { value < *kept } else { value > *kept };
        if better == claim.at_best {
            *kept = value;
        }
    }
    let unit = claim.measure.unit();
    let ours: Vec<String> = seen
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

/// One kind of RDMA beside TCP: the work, and interrupts per second of both, by mix and size.
type Curve<'a> = Vec<(&'a Work, f64, f64)>;

/// The iozone paper's two statements on interrupts: RDMA causes fewer than TCP, and fewer still with larger blocks.
/// Medians decide; a rise within the noise still counts against the claim.
fn interrupts(sections: &[&Section]) -> Vec<Reading> {
    // The paper reports the client. On one host both ends have the same count, which may be stored with either.
    let count = |point: &Point| {
        point
            .client
            .interrupts_per_second
            .or_else(|| Measure::Interrupts.of(point))
            .map(|spread| spread.median)
    };
    let curve = |name: &str| -> Curve<'_> {
        let mut curve: Curve<'_> = Vec::new();
        for section in sections {
            for point in section.points.iter().filter(|p| p.transport == name) {
                let tcp = section.point(&point.work, "tcp").and_then(count);
                if let (Some(rdma), Some(tcp)) = (count(point), tcp) {
                    curve.push((&point.work, rdma, tcp));
                }
            }
        }
        curve.sort_by_key(|(work, ..)| (work.mix, work.size));
        curve
    };
    let readings = rdma(sections).into_iter().flat_map(|name| {
        let curve = curve(name);
        [fewer(name, &curve), falling(name, &curve)]
    });
    readings.flatten().collect()
}

/// Holds at all, some or none of `of` points.
fn outcome(reached: usize, of: usize) -> Outcome {
    match reached {
        n if n == of => Outcome::Holds,
        0 => Outcome::DoesNot,
        _ => Outcome::InPart,
    }
}

fn fewer(name: &str, curve: &Curve<'_>) -> Option<Reading> {
    let below = curve.iter().filter(|(_, rdma, tcp)| rdma < tcp).count();
    let above: Vec<String> =
        curve.iter().filter(|(_, rdma, tcp)| rdma >= tcp).map(|(work, ..)| place(work)).collect();
    let but = if above.is_empty() { String::new() } else { format!(", not at {}", above.join(", ")) };
    let outcome = outcome(below, curve.len());
    (!curve.is_empty()).then(|| Reading {
        paper: paper(Picture::Nfs),
        claim: FEWER_INTERRUPTS,
        ours: format!("{}: fewer than TCP at {below} of {} points{but}", show::transport(name), curve.len()),
        outcome,
        why: if outcome == Outcome::Holds { "" } else { NO_CARD },
    })
}

fn falling(name: &str, curve: &Curve<'_>) -> Option<Reading> {
    let steps: Vec<_> = curve
        .iter()
        .zip(curve.iter().skip(1))
        .filter(|((smaller, ..), (larger, ..))| smaller.mix == larger.mix)
        .collect();
    let falls = steps.iter().filter(|((_, before, _), (_, after, _))| after < before).count();
    let rises: Vec<String> = steps
        .iter()
        .filter(|((_, before, _), (_, after, _))| after >= before)
        .map(|((smaller, ..), (larger, ..))| {
            format!("{} to {}", place(smaller), size_label(u64::from(larger.size)))
        })
        .collect();
    let but = if rises.is_empty() { String::new() } else { format!(", not {}", rises.join(", ")) };
    let outcome = outcome(falls, steps.len());
    (!steps.is_empty()).then(|| Reading {
        paper: paper(Picture::Nfs),
        claim: FALLING_INTERRUPTS,
        ours: format!("{}: {falls} of {} steps fall{but}", show::transport(name), steps.len()),
        outcome,
        why: if outcome == Outcome::Holds { "" } else { NO_CARD },
    })
}

/// The claims as a Markdown table.
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
    use crate::result::Spread;
    use crate::result::tests::{pictures, point, sample};
    use crate::workload::Mix;

    fn full() -> Report {
        Report { sections: pictures(), ..sample() }
    }

    fn of<'a>(readings: &'a [Reading], paper: &str, ours: &str) -> &'a Reading {
        let mut found = readings.iter().filter(|r| r.paper == paper && r.ours.starts_with(ours));
        found.next().unwrap_or_else(|| panic!("{paper} {ours}: {readings:#?}"))
    }

    /// The row of `claim` for shared memory, with points made by `shape` from their figures for TCP and for shared
    /// memory.
    fn judged(
        claim: &str,
        picture: Picture,
        shape: impl Fn(&mut Point, f64, bool),
        curve: &[(Work, f64, f64)],
    ) -> Outcome {
        let mut section = Section::new(picture);
        for (work, tcp, shm) in curve {
            for (name, figure) in [("tcp", *tcp), ("shm", *shm)] {
                let mut made = point(work.clone(), name, 10_000);
                shape(&mut made, figure, name == "shm");
                section.points.push(made);
            }
        }
        let report = Report { sections: vec![section], ..sample() };
        let readings = read(&report);
        let found: Vec<_> =
            readings.iter().filter(|r| r.claim.contains(claim) && !r.ours.is_empty()).collect();
        let [reading] = &found[..] else { panic!("{claim}: {readings:#?}") };
        reading.outcome
    }

    fn smb(mix: Mix, kib: u32) -> Work {
        Work::simple("SMB", mix, kib * 1024, 1)
    }

    fn all(value: f64) -> Spread {
        Spread { min: value, median: value, max: value }
    }

    #[test]
    fn latency_is_judged_up_to_8_kib_alone() {
        let latency = |point: &mut Point, figure: f64, _| point.latency.mean = all(figure);
        let judge = |claim: &str, mix, small: f64, large: f64| {
            judged(
                claim,
                Picture::Latency,
                latency,
                &[
                    (smb(mix, 1), 10_000.0, small),
                    (smb(mix, 8), 10_000.0, small),
                    (smb(mix, 16), 10_000.0, large),
                ],
            )
        };
        let read = "READ round trip of up to 8 KiB takes about";
        assert_eq!(judge(read, Mix::Read, 6_600.0, 20_000.0), Outcome::Holds, "16 KiB is none of it");
        assert_eq!(judge(read, Mix::Read, 6_800.0, 1_000.0), Outcome::DoesNot);
        let write = "WRITE round trip of up to 8 KiB takes about";
        assert_eq!(judge(write, Mix::Write, 5_900.0, 20_000.0), Outcome::Holds);
        assert_eq!(judge(write, Mix::Write, 6_600.0, 1_000.0), Outcome::DoesNot);
    }

    #[test]
    fn twice_the_throughput_is_judged_in_both_directions_at_once() {
        let rate = |point: &mut Point, figure: f64, _| point.throughput = all(figure);
        let judge = |read: f64, small: f64, both: f64| {
            let half = Mix::Percent(50);
            judged(
                "up to twice",
                Picture::Smb,
                rate,
                &[(smb(Mix::Read, 64), 1e9, read), (smb(half, 4), 1e9, small), (smb(half, 64), 1e9, both)],
            )
        };
        assert_eq!(judge(1e9, 1e9, 2e9), Outcome::Holds);
        assert_eq!(judge(3e9, 3e9, 1.9e9), Outcome::DoesNot, "READs alone and 4 KiB are none of it");
    }

    #[test]
    fn cycles_are_judged_as_the_figure_has_them() {
        let cycles = |point: &mut Point, figure: f64, _| point.cycles_per_byte = Some(all(figure));
        let judge = |claim: &str, small: f64, large: f64| {
            judged(
                claim,
                Picture::Smb,
                cycles,
                &[(smb(Mix::Read, 2), 1.0, small), (smb(Mix::Read, 256), 1.0, large)],
            )
        };
        assert_eq!(judge("at least 1.5 times", 0.66, 0.2), Outcome::Holds);
        assert_eq!(judge("at least 1.5 times", 0.7, 0.2), Outcome::InPart);
        assert_eq!(judge("at least 1.5 times", 0.7, 0.7), Outcome::DoesNot);
        assert_eq!(judge("up to 3.5 times", 0.9, 0.28), Outcome::Holds);
        assert_eq!(judge("up to 3.5 times", 0.9, 0.29), Outcome::DoesNot);
    }

    #[test]
    fn interrupts_are_judged_against_tcp_and_by_their_medians() {
        // Noise larger than the effect changes no verdict.
        let noisy = |point: &mut Point, figure: f64, _| {
            point.client.interrupts_per_second = Some(Spread { min: 0.0, median: figure, max: 1e6 });
        };
        let nfs = |kib: u32| Work::simple("NFS", Mix::Read, kib * 1024, 16);
        let judge = |claim: &str, shm: [f64; 3]| {
            let curve = [(nfs(4), 3000.0, shm[0]), (nfs(16), 2000.0, shm[1]), (nfs(64), 1000.0, shm[2])];
            judged(claim, Picture::Nfs, noisy, &curve)
        };
        assert_eq!(judge("fewer interrupts", [2900.0, 1900.0, 900.0]), Outcome::Holds);
        assert_eq!(judge("fewer interrupts", [2900.0, 1900.0, 1100.0]), Outcome::InPart);
        assert_eq!(judge("fewer interrupts", [3900.0, 2900.0, 1900.0]), Outcome::DoesNot);
        assert_eq!(judge("fall as the blocks grow", [2900.0, 1900.0, 900.0]), Outcome::Holds);
        assert_eq!(judge("fall as the blocks grow", [1900.0, 2900.0, 900.0]), Outcome::InPart);
        assert_eq!(judge("fall as the blocks grow", [900.0, 1900.0, 2900.0]), Outcome::DoesNot);
    }

    #[test]
    fn nfs_throughput_is_judged_at_every_size() {
        let rate = |point: &mut Point, figure: f64, _| point.throughput = all(figure);
        let nfs = |kib: u32| Work::simple("NFS", Mix::Read, kib * 1024, 16);
        let judge = |small: f64, large: f64| {
            judged("higher throughput", Picture::Nfs, rate, &[(nfs(4), 1e9, small), (nfs(64), 1e9, large)])
        };
        assert_eq!(judge(1.1e9, 1.2e9), Outcome::Holds);
        assert_eq!(judge(0.9e9, 1.2e9), Outcome::InPart);
        assert_eq!(judge(0.9e9, 0.8e9), Outcome::DoesNot);
    }

    /// The replica's picture also has durable writes; the post's rate is that of the initial copy.
    #[test]
    fn the_first_copy_stands_beside_the_posts_rate_alone() {
        let mut section = Section::new(Picture::Replica);
        for (protocol, transport, rate) in
            [("replica", "shm", 4e9), ("NBD", "shm", 9e9), ("NBD", "local", 8e9)]
        {
            let mut made = point(Work::simple(protocol, Mix::Write, 1 << 20, 1), transport, 10_000);
            made.throughput = all(rate);
            section.points.push(made);
        }
        let report = Report { sections: vec![section], ..sample() };
        let readings = read(&report);
        let rows: Vec<_> = readings.iter().filter(|r| r.paper == "Storage Replica post").collect();
        assert_eq!(rows.len(), 2, "25 and 100 Gbit/s");
        for row in rows {
            assert_eq!((row.ours.as_str(), row.outcome), ("shared memory: 4.00 GB/s", Outcome::Beside));
        }
    }

    #[test]
    fn a_claim_that_does_not_hold_is_written_down_as_such() {
        let readings = read(&full());
        // In the sample, shared memory takes a quarter of TCP's time, iWARP a quarter more than TCP.
        assert_eq!(of(&readings, "sqlio paper", "shared memory").outcome, Outcome::Holds);
        let iwarp = of(&readings, "sqlio paper", "iWARP");
        assert_eq!(iwarp.outcome, Outcome::DoesNot);
        assert!(iwarp.ours.contains("0 of 4 points reach it") && !iwarp.why.is_empty(), "{iwarp:?}");
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
