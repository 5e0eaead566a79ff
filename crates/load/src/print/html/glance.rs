//! The first screen: a card for each common question, with all transports side by side.
//!
//! It selects the block size that a card shows. A transport that did badly is shown too.

use std::fmt::Write as _;

use super::figures::{class, text};
use super::{escape, order, show};
use crate::result::{Measure, Picture, Point, Report};
use crate::workload::{Mix, size_label};

/// A question, and the points that answer it.
struct Card {
    picture: Picture,
    protocol: &'static str,
    title: &'static str,
    measure: Measure,
    /// The block size nearest to this one is shown.
    size: u32,
    /// One operation at a time, or the deepest queue.
    one_at_a_time: bool,
}

const fn card(
    picture: Picture,
    protocol: &'static str,
    title: &'static str,
    measure: Measure,
    size: u32,
    one_at_a_time: bool,
) -> Card {
    Card { picture, protocol, title, measure, size, one_at_a_time }
}

const CARDS: &[Card] = &[
    card(Picture::Demo, "SMB", "How soon is a READ answered?", Measure::Mean, 8 << 10, true),
    card(Picture::Demo, "SMB", "How much moves a second?", Measure::Throughput, 512 << 10, false),
    card(Picture::Demo, "SMB", "What does a byte cost?", Measure::Cycles, 512 << 10, false),
    card(Picture::Demo, "NFS", "How soon is a READ answered?", Measure::Mean, 8 << 10, true),
    card(Picture::Demo, "NFS", "How much moves a second?", Measure::Throughput, 512 << 10, false),
    card(Picture::Demo, "NFS", "What does a byte cost?", Measure::Cycles, 512 << 10, false),
    card(Picture::Latency, "SMB", "How soon is a READ answered?", Measure::Mean, 8 << 10, true),
    card(Picture::Smb, "SMB", "How much moves a second?", Measure::Throughput, 256 << 10, false),
    card(Picture::Smb, "SMB", "What does a byte cost?", Measure::Cycles, 256 << 10, false),
    card(Picture::Table, "SMB", "How many small READs a second?", Measure::Iops, 1 << 10, false),
    card(Picture::Nfs, "NFS", "How much moves a second?", Measure::Throughput, 1 << 20, false),
    card(Picture::Nfs, "NFS", "How often is the processor interrupted?", Measure::Interrupts, 1 << 20, false),
    card(Picture::Replica, "replica", "How fast is the first copy?", Measure::Throughput, 1 << 20, false),
    card(Picture::Replica, "NBD", "How long does a durable write take?", Measure::Mean, 8 << 10, true),
];

/// The cards that have an answer.
pub(super) fn write(page: &mut String, report: &Report) {
    let cards: Vec<String> = CARDS.iter().filter_map(|card| draw(card, report)).collect();
    if cards.is_empty() {
        return;
    }
    // Writing to a String cannot fail.
    let _ = write!(
        page,
        "<section id=glance><h2>At a glance</h2><div class=cards>{}</div></section>",
        cards.concat()
    );
}

fn draw(card: &Card, report: &Report) -> Option<String> {
    let fits = |point: &&Point| {
        let reads = point.work.mix == Mix::Read || card.picture == Picture::Replica;
        reads && point.work.protocol == card.protocol && (point.work.queue_depth == 1 || !card.one_at_a_time)
    };
    let points =
        || report.points().filter(|(picture, _)| *picture == card.picture).map(|(_, p)| p).filter(fits);
    let wanted = points().max_by_key(|p| {
        let depth = if card.one_at_a_time { 0 } else { p.work.queue_depth };
        // The nearest size by ratio, and of those the deepest queue.
        let far = (f64::from(p.work.size.max(1)) / f64::from(card.size)).log2().abs();
        (std::cmp::Reverse((far * 100.0) as u64), depth)
    })?;
    let work = &wanted.work;
    let mut found: Vec<(&Point, f64)> =
        points().filter(|p| p.work == *work).filter_map(|p| Some((p, card.measure.of(p)?.median))).collect();
    found.sort_by_key(|(p, _)| order(&p.transport));
    let most = found.iter().map(|(_, v)| *v).fold(0.0, f64::max);
    if found.is_empty() || most <= 0.0 {
        return None;
    }
    let tcp = found.iter().find(|(p, _)| p.transport == "tcp").map(|(_, v)| *v).filter(|v| *v > 0.0);
    let what = if card.protocol == "replica" {
        format!("volume of {}", size_label(u64::from(work.size)))
    } else {
        format!(
            "{} {}, {}, queue depth {}",
            card.protocol,
            work.mix,
            size_label(u64::from(work.size)),
            work.queue_depth
        )
    };
    let direction = if card.measure.lower_is_better() { "less is better" } else { "more is better" };
    let mut html = format!(
        "<div class=card><h3>{}</h3><p class=measure>{what}: {}, {direction}</p><table>",
        card.title,
        card.measure.name()
    );
    for (point, value) in &found {
        let ratio = match tcp {
            Some(tcp) if point.transport != "tcp" => format!("{} \u{d7} TCP", show::ratio(value / tcp)),
            _ => String::new(),
        };
        let mark =
            if point.marks.is_empty() { "" } else { "<abbr title='to be read with care'>\u{2020}</abbr>" };
        let _ = write!(
            html,
            "<tr><th scope=row>{}<td class=bar><span class='fill {}' style='width:{:.1}%'></span><td>{}{mark}<td class=ratio>{ratio}",
            escape(show::transport(&point.transport)),
            class(&point.transport),
            100.0 * value / most,
            escape(&text(card.measure.unit(), *value)),
        );
    }
    html.push_str("</table></div>");
    Some(html)
}
