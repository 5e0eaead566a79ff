//! Selects the figures of a section: those of its paper, in the paper's order, one chart for each kind of operation.
//!
//! [`super::chart`] draws them.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use super::chart::{self, Across, Chart, Dot, Rule, Series};
use super::escape;
use crate::print::published::{self, Kind};
use crate::print::{order, show};
use crate::result::{Measure, Picture, Point, Section, Spread, Unit, Work};
use crate::workload::{Mix, size_label};

/// Figures of one measure: a chart per panel.
pub(super) struct Row {
    pub measure: Measure,
    /// The paper's number: "Figure 1".
    number: &'static str,
    log: bool,
}

fn row(number: &'static str, measure: Measure, log: bool) -> Row {
    Row { measure, number, log }
}

/// The rows of a picture for one of its panels.
pub(super) fn rows(picture: Picture, panel: &Panel) -> Vec<Row> {
    match picture {
        Picture::Latency => {
            vec![row("Figure 1", Measure::Mean, true), row("Beyond the paper", Measure::P99, true)]
        }
        Picture::Smb => vec![
            row("Figure 1", Measure::Throughput, false),
            row("Figure 2", Measure::Iops, false),
            row("Figure 3", Measure::Cycles, true),
        ],
        Picture::Table => {
            vec![
                row("Table", Measure::Iops, false),
                row("Table", Measure::Throughput, false),
                row("Table", Measure::Mean, false),
            ]
        }
        Picture::Nfs => vec![
            row("Figures 3 to 6", Measure::Throughput, false),
            row("Figures 3 to 6", Measure::Interrupts, true),
            row("Figures 3 to 6", Measure::Idle, false),
        ],
        Picture::Replica if panel.protocol != "replica" => {
            vec![row("Beyond the post", Measure::Mean, true), row("Beyond the post", Measure::P99, true)]
        }
        Picture::Replica => vec![
            row("Post", Measure::Throughput, false),
            row("Post", Measure::ClientCores, false),
            row("Post", Measure::ServerCores, false),
            row("Post", Measure::ClientMemory, false),
            row("Post", Measure::ServerMemory, false),
        ],
        Picture::Demo if panel.depth == 1 => vec![row("", Measure::Mean, true)],
        Picture::Demo => vec![row("", Measure::Throughput, false), row("", Measure::Cycles, true)],
        Picture::Own => vec![
            row("", Measure::Throughput, false),
            row("", Measure::Iops, false),
            row("", Measure::P99, true),
            row("", Measure::Cycles, true),
        ],
    }
}

/// Points that differ only in block size and transport: one chart.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Panel {
    name: String,
    protocol: String,
    mix: Mix,
    pub depth: u32,
    shape: String,
}

impl Panel {
    fn of(work: &Work) -> Panel {
        Panel {
            name: work.name.clone(),
            protocol: work.protocol.clone(),
            mix: work.mix,
            depth: work.queue_depth,
            shape: work.shape(),
        }
    }

    fn title(&self) -> String {
        let mut title = match (self.name.as_str(), self.protocol.as_str()) {
            // The whole copy is one operation.
            ("", "replica") => return "first copy".to_owned(),
            ("", protocol) => format!("{protocol} {}", self.mix),
            (name, _) => name.to_owned(),
        };
        let _ = write!(title, ", queue depth {}", self.depth);
        if !self.shape.is_empty() {
            let _ = write!(title, ", {}", self.shape);
        }
        title
    }
}

/// The panels of a section.
pub(super) fn panels(section: &Section) -> BTreeMap<Panel, Vec<&Point>> {
    let mut panels: BTreeMap<Panel, Vec<&Point>> = BTreeMap::new();
    for point in &section.points {
        panels.entry(Panel::of(&point.work)).or_default().push(point);
    }
    panels
}

/// The transports of points, in legend order.
pub(super) fn transports(points: &[&Point]) -> Vec<String> {
    let mut names: Vec<String> = points.iter().map(|p| p.transport.clone()).collect();
    names.sort_by_key(|name| order(name));
    names.dedup();
    names
}

/// A transport's class in the style sheet.
pub(super) fn class(transport: &str) -> &'static str {
    match transport {
        "tcp" => "tcp",
        "iwarp" => "iwarp",
        "iwarp-nocrc" => "nocrc",
        "shm" => "shm",
        "rnic" => "rnic",
        "local" => "local",
        _ => "other",
    }
}

/// A figure in the page's notation, where microseconds have the Greek letter.
pub(super) fn text(unit: Unit, value: f64) -> String {
    show::value(unit, value).replace(" us", " \u{b5}s")
}

fn tick(unit: Unit) -> fn(f64) -> String {
    // Ticks are round, so trailing zeros are dropped.
    fn short(text: String) -> String {
        let (number, unit) = text.split_once(' ').unwrap_or((text.as_str(), ""));
        let (number, letter) = match number.strip_suffix(['k', 'M', '%']) {
            Some(rest) => (rest, &number[rest.len()..]),
            None => (number, ""),
        };
        let number = show::trimmed(number);
        format!("{number}{letter} {unit}").trim_end().to_owned()
    }
    match unit {
        Unit::Rate => |v| if v == 0.0 { "0".to_owned() } else { short(text(Unit::Rate, v)) },
        Unit::Time => |v| if v == 0.0 { "0".to_owned() } else { short(text(Unit::Time, v)) },
        Unit::PerSecond => |v| short(text(Unit::PerSecond, v)),
        Unit::Cycles | Unit::Number => |v| short(text(Unit::Number, v)),
        Unit::Percent => |v| text(Unit::Percent, v),
        Unit::Bytes => |v| if v == 0.0 { "0".to_owned() } else { short(text(Unit::Bytes, v)) },
    }
}

/// "8K": a block size under an axis.
fn short_size(size: u32) -> String {
    size_label(u64::from(size))
        .replace(" KiB", "K")
        .replace(" MiB", "M")
        .replace(" GiB", "G")
        .replace(" B", "")
}

/// "13.9 us (13.5 to 14.2)".
fn ranged(unit: Unit, spread: &Spread) -> String {
    format!("{} ({} to {})", text(unit, spread.median), text(unit, spread.min), text(unit, spread.max))
}

/// The range of a ratio: each end of one spread divided by the opposite end of the other.
fn quotient(over: &Spread, under: &Spread) -> Option<Spread> {
    (under.min > 0.0 && under.median > 0.0).then(|| Spread {
        min: over.min / under.max,
        median: over.median / under.median,
        max: over.max / under.min,
    })
}

/// One panel's chart of one measure, with the ratios below it and the same as a table; `None` if nothing was
/// measured.
pub(super) fn figure(section: &Section, panel: &Panel, points: &[&Point], row: &Row) -> Option<String> {
    let unit = row.measure.unit();
    let mut sizes: Vec<u32> = points.iter().map(|p| p.work.size).collect();
    sizes.sort_unstable();
    sizes.dedup();
    if section.picture == Picture::Table {
        // In the post's order: largest first.
        sizes.reverse();
    }
    let find = |transport: &str, size: u32| {
        let point = points.iter().find(|p| p.transport == transport && p.work.size == size)?;
        Some((*point, row.measure.of(point)?))
    };
    let names = transports(points);
    let dots = |transport: &str| -> Vec<Dot> {
        let dot = |(i, size): (usize, &u32)| {
            let (point, spread) = find(transport, *size)?;
            let mut title = format!(
                "{}, {}: {}",
                show::transport(transport),
                size_label(u64::from(*size)),
                ranged(unit, &spread)
            );
            for mark in &point.marks {
                let _ = write!(title, "; {}", mark.text);
            }
            let hollow = !point.marks.is_empty();
            Some(Dot { x: i as f64, min: spread.min, value: spread.median, max: spread.max, hollow, title })
        };
        sizes.iter().enumerate().filter_map(dot).collect()
    };
    let series: Vec<Series> = names
        .iter()
        .map(|name| Series { class: class(name), name: show::transport(name).to_owned(), dots: dots(name) })
        .filter(|series| !series.dots.is_empty())
        .collect();
    if series.is_empty() {
        return None;
    }
    let as_bars = sizes.len() == 1 || section.picture == Picture::Table;
    let rules = published_rules(section.picture, row.measure, Kind::Value, points, &sizes);
    let title = format!("{}: {}", panel.title(), row.measure.name());
    let label = |size: &u32| if as_bars { size_label(u64::from(*size)) } else { short_size(*size) };
    let description = series.iter().map(|s| {
        let ends = [s.dots.first(), s.dots.last()].into_iter().flatten().map(|d| d.title.clone());
        ends.collect::<Vec<_>>().join("; ")
    });
    let main = Chart {
        title: title.clone(),
        description: description.collect::<Vec<_>>().join(". "),
        across: Across::Categories(sizes.iter().map(label).collect()),
        series,
        rules,
        log: row.log,
        height: 220.0,
        tick: tick(unit),
    };
    let mut html = String::from("<figure>");
    // Writing to a String cannot fail.
    let number = if row.number.is_empty() {
        String::new()
    } else {
        format!("<span class=number>{}</span> ", row.number)
    };
    let _ = write!(
        html,
        "<figcaption>{number}<b>{}</b><span class=measure>{}{}</span></figcaption>",
        escape(&panel.title()),
        row.measure.name(),
        if row.measure.lower_is_better() { ", less is better" } else { ", more is better" }
    );
    html.push_str(&if as_bars { chart::bars(&main) } else { chart::lines(&main) });
    let ratios = |name: &str| -> Vec<(usize, Spread)> {
        let of =
            |(i, size): (usize, &u32)| Some((i, quotient(&find(name, *size)?.1, &find("tcp", *size)?.1)?));
        sizes.iter().enumerate().filter_map(of).collect()
    };
    if !as_bars {
        let mut rules = vec![Rule { value: 1.0, label: String::new(), class: "one", category: None }];
        rules.extend(published_rules(section.picture, row.measure, Kind::Ratio, points, &sizes));
        html.push_str(&strip(&title, &main.across, &names, rules, &ratios));
    }
    let _ = write!(html, "{}</figure>", numbers(&names, &sizes, unit, &find));
    Some(html)
}

/// Published values for some of `points`, each at its block size, or as a line across all.
fn published_rules(
    picture: Picture,
    measure: Measure,
    kind: Kind,
    points: &[&Point],
    sizes: &[u32],
) -> Vec<Rule> {
    published::of(picture, measure, kind)
        .filter(|p| points.iter().any(|point| p.scope.covers(&point.work)))
        .map(|p| Rule {
            value: p.value,
            label: format!("{}, other hardware", p.label),
            class: "published",
            category: p.scope.size().and_then(|size| sizes.iter().position(|s| *s == size)),
        })
        .collect()
}

/// The ratios against TCP, below a chart; empty if there is nothing to divide.
fn strip(
    title: &str,
    across: &Across,
    names: &[String],
    rules: Vec<Rule>,
    ratios: &dyn Fn(&str) -> Vec<(usize, Spread)>,
) -> String {
    let Across::Categories(labels) = across else { return String::new() };
    let series: Vec<Series> = names
        .iter()
        .filter(|name| *name != "tcp")
        .map(|name| Series {
            class: class(name),
            name: show::transport(name).to_owned(),
            dots: ratios(name)
                .into_iter()
                .map(|(i, ratio)| ratio_dot(i, &ratio, name, &labels[i], " of TCP's"))
                .collect(),
        })
        .filter(|series| !series.dots.is_empty())
        .collect();
    if series.is_empty() {
        return String::new();
    }
    let description =
        series.iter().flat_map(|s| s.dots.first().map(|d| d.title.clone())).collect::<Vec<_>>().join(". ");
    let chart = Chart {
        title: format!("{title}, divided by TCP's"),
        description,
        across: Across::Categories(labels.clone()),
        series,
        rules,
        log: true,
        height: 130.0,
        tick: show::short,
    };
    format!("<div class=strip><p>divided by TCP\u{2019}s, whose line is 1</p>{}</div>", chart::lines(&chart))
}

/// A ratio as a dot; `of` follows its number.
fn ratio_dot(category: usize, ratio: &Spread, transport: &str, label: &str, of: &str) -> Dot {
    Dot {
        x: category as f64,
        min: ratio.min,
        value: ratio.median,
        max: ratio.max,
        // No difference: the ranges overlap.
        hollow: ratio.min <= 1.0 && ratio.max >= 1.0,
        title: format!(
            "{}, {label}: {}{of} ({} to {})",
            show::transport(transport),
            show::ratio(ratio.median),
            show::ratio(ratio.min),
            show::ratio(ratio.max)
        ),
    }
}

/// For a comparison: one panel's ratios of the second result to the first; `None` if no point is in both.
pub(super) fn difference(panel: &Panel, points: &[&Point], others: &[&Point], row: &Row) -> Option<String> {
    let mut sizes: Vec<u32> = points.iter().map(|p| p.work.size).collect();
    sizes.sort_unstable();
    sizes.dedup();
    let ratio = |(i, size): (usize, &u32), name: &str| {
        let point = points.iter().find(|p| p.transport == name && p.work.size == *size)?;
        let other = others.iter().find(|p| p.transport == name && p.work == point.work)?;
        let ratio = quotient(&row.measure.of(other)?, &row.measure.of(point)?)?;
        Some(ratio_dot(i, &ratio, name, &size_label(u64::from(*size)), ""))
    };
    let series: Vec<Series> = transports(points)
        .iter()
        .map(|name| Series {
            class: class(name),
            name: show::transport(name).to_owned(),
            dots: sizes.iter().enumerate().filter_map(|at| ratio(at, name)).collect(),
        })
        .filter(|series| !series.dots.is_empty())
        .collect();
    if series.is_empty() {
        return None;
    }
    let chart = Chart {
        title: format!("{}: {}, second divided by first", panel.title(), row.measure.name()),
        description: series
            .iter()
            .flat_map(|s| &s.dots)
            .map(|d| d.title.clone())
            .collect::<Vec<_>>()
            .join(". "),
        across: Across::Categories(sizes.iter().map(|size| short_size(*size)).collect()),
        series,
        rules: vec![Rule { value: 1.0, label: String::new(), class: "one", category: None }],
        log: true,
        height: 180.0,
        tick: show::short,
    };
    Some(format!(
        "<figure><figcaption><b>{}</b><span class=measure>{}, second divided by first, {} is better</span></figcaption>{}</figure>",
        escape(&panel.title()),
        row.measure.name(),
        if row.measure.lower_is_better() { "below 1" } else { "above 1" },
        chart::lines(&chart)
    ))
}

type Find<'a> = dyn Fn(&str, u32) -> Option<(&'a Point, Spread)> + 'a;

/// The figure as a collapsed table.
fn numbers(names: &[String], sizes: &[u32], unit: Unit, find: &Find<'_>) -> String {
    let mut html = String::from(
        "<details><summary>the numbers</summary><div class=scroll><table><thead><tr><th scope=col>block",
    );
    for name in names {
        let _ = write!(html, "<th scope=col>{}", escape(show::transport(name)));
        if name != "tcp" {
            html.push_str("<th scope=col>\u{f7} TCP");
        }
    }
    html.push_str("</tr></thead><tbody>");
    for size in sizes {
        let _ = write!(html, "<tr><th scope=row>{}", size_label(u64::from(*size)));
        for name in names {
            let found = find(name, *size);
            let cell = found.as_ref().map_or("\u{2013}".to_owned(), |(_, s)| text(unit, s.median));
            let noise =
                found.as_ref().map_or(String::new(), |(_, s)| format!(" <i>\u{b1}{}</i>", show::noise(s)));
            let _ = write!(html, "<td>{}{noise}", escape(&cell));
            if name != "tcp" {
                let ratio = found.zip(find("tcp", *size)).and_then(|((_, a), (_, b))| quotient(&a, &b));
                let _ =
                    write!(html, "<td>{}", ratio.map_or("\u{2013}".to_owned(), |r| show::ratio(r.median)));
            }
        }
        html.push_str("</tr>");
    }
    html.push_str("</tbody></table></div></details>");
    html
}

/// The share of operations against their latency, for one block size; percentiles that rest on less than one
/// operation are omitted.
pub(super) fn tail(panel: &Panel, points: &[&Point]) -> Option<String> {
    use crate::result::PERCENTILES;
    let size = points.iter().map(|p| p.work.size).min_by_key(|size| size.abs_diff(8 << 10))?;
    let points: Vec<&Point> = points.iter().copied().filter(|p| p.work.size == size).collect();
    let of = |name: &String| -> Option<Series> {
        let point = points.iter().find(|p| p.transport == *name)?;
        let each = point.operations as f64 / point.repetitions.max(1) as f64;
        let known = PERCENTILES.iter().zip(point.latency.percentiles()).enumerate();
        let dots =
            known.filter(|(_, ((_, q), _))| each * (1.0 - q) >= 1.0).map(|(i, ((word, _), spread))| Dot {
                x: i as f64,
                min: spread.min,
                value: spread.median,
                max: spread.max,
                hollow: !point.marks.is_empty(),
                title: format!("{}, {word}: {}", show::transport(name), ranged(Unit::Time, &spread)),
            });
        Some(Series { class: class(name), name: show::transport(name).to_owned(), dots: dots.collect() })
    };
    let series: Vec<Series> =
        transports(&points).iter().filter_map(of).filter(|series| series.dots.len() > 2).collect();
    if series.is_empty() {
        return None;
    }
    let known = series.iter().map(|s| s.dots.len()).max().unwrap_or(0);
    let title = format!("{}, {}: latency by percentile", panel.title(), size_label(u64::from(size)));
    let chart = Chart {
        description: series
            .iter()
            .flat_map(|s| s.dots.last().map(|d| d.title.clone()))
            .collect::<Vec<_>>()
            .join(". "),
        across: Across::Categories(
            PERCENTILES.iter().take(known).map(|(word, _)| (*word).to_owned()).collect(),
        ),
        series,
        rules: Vec::new(),
        log: true,
        height: 220.0,
        tick: tick(Unit::Time),
        title,
    };
    Some(format!(
        "<figure><figcaption><span class=number>Beyond the paper</span> <b>{}, {}</b><span class=measure>latency by \
         percentile, less is better</span></figcaption>{}</figure>",
        escape(&panel.title()),
        size_label(u64::from(size)),
        chart::lines(&chart)
    ))
}

/// Throughput per second, if it was recorded.
pub(super) fn timeline(panel: &Panel, points: &[&Point]) -> Option<String> {
    let mut longest = 0.0f64;
    let mut series = Vec::new();
    for point in points.iter().filter(|p| p.timeline.len() > 1) {
        longest = point.timeline.iter().map(|s| s.at).fold(longest, f64::max);
        let dot = |s: &crate::result::Second| Dot {
            x: s.at,
            min: s.throughput,
            value: s.throughput,
            max: s.throughput,
            hollow: false,
            title: format!(
                "{}, {:.0} s: {}",
                show::transport(&point.transport),
                s.at,
                text(Unit::Rate, s.throughput)
            ),
        };
        let name =
            format!("{}, {}", show::transport(&point.transport), size_label(u64::from(point.work.size)));
        series.push(Series {
            class: class(&point.transport),
            name,
            dots: point.timeline.iter().map(dot).collect(),
        });
    }
    if series.is_empty() {
        return None;
    }
    let title = format!("{}: throughput over time", panel.title());
    let chart = Chart {
        description: String::new(),
        across: Across::Seconds(longest),
        series,
        rules: Vec::new(),
        log: false,
        height: 220.0,
        tick: tick(Unit::Rate),
        title,
    };
    Some(format!(
        "<figure><figcaption><b>{}</b><span class=measure>throughput over time</span></figcaption>{}</figure>",
        escape(&panel.title()),
        chart::lines(&chart)
    ))
}
