//! The tables of the page: bounds, how the payload travelled, every point.

use std::fmt::Write as _;

use super::figures::text;
use super::{escape, order, show};
use crate::print::claims::{self, Outcome, Reading};
use crate::result::{Measure, Picture, Report, Traffic};

/// The papers' claims, one by one; nothing if none of their pictures was measured.
pub(super) fn claims(page: &mut String, report: &Report) {
    if report.sections.iter().all(|s| matches!(s.picture, Picture::Demo | Picture::Own)) {
        return;
    }
    page.push_str(
        "<section id=claims><h2>The papers\u{2019} claims, one by one</h2><p>A ratio is held against the paper\u{2019}s ratio: both are \
         RDMA against TCP on one kind of machine. Figures of other hardware are put beside ours and not judged.</p><div \
         class=scroll tabindex=0><table class=claims><thead><tr><th scope=col>paper<th scope=col>claim<th scope=col>ours<th \
         scope=col>verdict<th scope=col>why</tr></thead><tbody>",
    );
    let readings = claims::read(report);
    for (i, reading) in readings.iter().enumerate() {
        let class = match reading.outcome {
            Outcome::Holds => "holds",
            Outcome::DoesNot => "short",
            Outcome::InPart => "part",
            Outcome::Beside | Outcome::NotMeasured => "same",
        };
        // A claim appears once, beside all its measurements.
        let same = |other: &&Reading| other.paper == reading.paper && other.claim == reading.claim;
        let head = if i > 0 && same(&&readings[i - 1]) {
            String::new()
        } else {
            let rows = readings[i..].iter().take_while(same).count();
            let claim = escape(reading.claim);
            format!("<th scope=rowgroup rowspan={rows}>{}<td rowspan={rows}>{claim}", reading.paper)
        };
        // Writing to a String cannot fail.
        let _ = write!(
            page,
            "<tr>{}<td>{}<td class={class}>{}<td>{}</tr>",
            head,
            escape(&reading.ours.replace(" us", " \u{b5}s")),
            reading.outcome.word(),
            escape(reading.why)
        );
    }
    page.push_str("</tbody></table></div></section>");
}

/// The bounds, and whether they hold.
pub(super) fn verdicts(page: &mut String, report: &Report) {
    if report.verdicts.is_empty() {
        return;
    }
    page.push_str(
        "<section id=bounds><h2>Bounds</h2><div class=scroll><table><thead><tr><th scope=col>claim<th scope=col>seen<th scope=col>\
         bound<th scope=col>verdict</tr></thead><tbody>",
    );
    for verdict in &report.verdicts {
        let (class, word) =
            if verdict.holds { ("holds", "\u{2713} holds") } else { ("short", "\u{2717} falls short") };
        let seen = verdict.ratio.map_or("not measured".to_owned(), |r| format!("{r:.3}"));
        // Writing to a String cannot fail.
        let _ = write!(
            page,
            "<tr><td class=text>{}<td>{seen}<td>{:.3}<td class={class}>{word}</tr>",
            escape(&verdict.claim),
            verdict.bound
        );
    }
    page.push_str("</tbody></table></div></section>");
}

/// How the payload travelled, by transport.
pub(super) fn traffic(page: &mut String, report: &Report) {
    let mut sums: Vec<(String, Traffic)> = Vec::new();
    for (_, point) in report.points() {
        let Some(traffic) = &point.traffic else { continue };
        match sums.iter_mut().find(|(name, _)| *name == point.transport) {
            Some((_, sum)) => sum.add(traffic),
            None => sums.push((point.transport.clone(), traffic.clone())),
        }
    }
    if sums.is_empty() {
        return;
    }
    sums.sort_by_key(|(name, _)| order(name));
    page.push_str(
        "<section id=traffic><h2>Was RDMA used?</h2><p>Bytes of the whole run, by the way they took. What moved inside messages \
         was copied by a processor; what moved by RDMA was placed at its destination.</p><div class=scroll><table><thead><tr>\
         <th scope=col>transport<th scope=col>provider<th scope=col>RDMA Read<th scope=col>RDMA Write<th scope=col>Send<th \
         scope=col>payload in messages<th scope=col>payload by RDMA<th scope=col>waits for credits</tr></thead><tbody>",
    );
    for (name, sum) in &sums {
        let part = sum.by_rdma().map_or("\u{2013}".to_owned(), |part| format!("{:.0}%", 100.0 * part));
        let _ = write!(
            page,
            "<tr><th scope=row>{}<td class=text>{}<td>{}<td>{}<td>{}<td>{}<td><b>{part}</b><td>{}</tr>",
            escape(show::transport(name)),
            escape(sum.provider.as_deref().unwrap_or("\u{2013}")),
            show::bytes(sum.rdma_read_bytes as f64),
            show::bytes(sum.rdma_write_bytes as f64),
            show::bytes(sum.send_bytes as f64),
            show::bytes(sum.inline_bytes as f64),
            sum.credits_starved.map_or("\u{2013}".to_owned(), |n| show::count(n as f64)),
        );
    }
    page.push_str("</tbody></table></div></section>");
}

/// Every point, with every measure that any point has.
pub(super) fn points(page: &mut String, report: &Report) {
    let measured = |measure: &Measure| report.points().any(|(_, point)| measure.of(point).is_some());
    let measures: Vec<Measure> = Measure::ALL.into_iter().filter(measured).collect();
    page.push_str(
        "<section id=points><h2>All points</h2><details><summary>Every figure, with half the range of its repetitions (\u{b1})\
         </summary><div class=scroll tabindex=0><table class=points><thead><tr><th scope=col>work<th scope=col>transport",
    );
    for measure in &measures {
        let _ = write!(page, "<th scope=col title='{}'>{}", measure.name(), escape(measure.word()));
    }
    page.push_str("<th scope=col>read with care</tr></thead><tbody>");
    for section in &report.sections {
        for (work, points) in section.by_work() {
            for point in points {
                let _ = write!(
                    page,
                    "<tr><th scope=row>{}<td class=text>{}",
                    escape(&work.to_string()),
                    escape(show::transport(&point.transport))
                );
                for measure in &measures {
                    let cell = match measure.of(point) {
                        Some(s) => format!(
                            "{} <i>\u{b1}{}</i>",
                            escape(&text(measure.unit(), s.median)),
                            show::noise(&s)
                        ),
                        None => "\u{2013}".to_owned(),
                    };
                    let _ = write!(page, "<td>{cell}");
                }
                let marks: Vec<&str> = point.marks.iter().map(|mark| mark.text.as_str()).collect();
                let _ = write!(page, "<td class=text>{}</tr>", escape(&marks.join("; ")));
            }
        }
    }
    page.push_str("</tbody></table></div></details></section>");
}
