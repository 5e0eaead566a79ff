//! The result as tables for a terminal: as many columns as fit, and colour only on a terminal.
//!
//! No figure is truncated: a column that does not fit is omitted, and the last line says where to find it.

use std::fmt::Write as _;
use std::io::IsTerminal;

use comfy_table::{Attribute, Cell, CellAlignment, Color, ContentArrangement, Table};

use super::{lines, order, show};
use crate::result::{Measure, Point, Report, Section, Spread, Work};

/// How to format for the terminal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Style {
    /// Columns of the terminal; `None`: unlimited (a file or a pipe).
    pub width: Option<usize>,
    /// Colours and bold.
    pub colour: bool,
}

impl Style {
    /// For a file or a pipe.
    pub const PLAIN: Style = Style { width: None, colour: false };

    /// The style for this process's standard output. Respects NO_COLOR (no-color.org).
    pub fn of_stdout() -> Style {
        let out = std::io::stdout();
        if !out.is_terminal() {
            return Style::PLAIN;
        }
        let size = rustix::termios::tcgetwinsize(&out).ok().map(|size| usize::from(size.ws_col));
        let colour = std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
        Style { width: size.filter(|columns| *columns > 0), colour }
    }
}

/// A column of the table of points.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Column {
    /// The median of a measure.
    Of(Measure),
    /// The spread of the throughput's repetitions.
    Noise,
    /// A measure divided by TCP's.
    Ratio(Measure),
    /// The part of the payload that travelled by RDMA.
    Rdma,
    /// Reasons for care.
    Care,
}

impl Column {
    /// In table order, each with its rank: the highest is omitted first if there is no space.
    const ALL: [(Column, u32); 19] = [
        (Column::Of(Measure::Throughput), 1),
        (Column::Noise, 9),
        (Column::Of(Measure::Iops), 6),
        (Column::Of(Measure::Mean), 2),
        (Column::Ratio(Measure::Mean), 4),
        (Column::Of(Measure::P50), 13),
        (Column::Of(Measure::P99), 7),
        (Column::Of(Measure::P999), 10),
        (Column::Of(Measure::Max), 12),
        (Column::Of(Measure::Cycles), 5),
        (Column::Ratio(Measure::Cycles), 8),
        (Column::Of(Measure::ClientCores), 16),
        (Column::Of(Measure::ServerCores), 15),
        (Column::Of(Measure::Idle), 14),
        (Column::Of(Measure::Interrupts), 11),
        (Column::Of(Measure::Syscalls), 18),
        (Column::Of(Measure::ServerMemory), 17),
        (Column::Rdma, 3),
        (Column::Care, 0),
    ];

    fn head(self) -> &'static str {
        match self {
            Column::Of(measure) => measure.word(),
            Column::Noise => "+-",
            Column::Ratio(_) => "x tcp",
            Column::Rdma => "by rdma",
            Column::Care => "care",
        }
    }

    /// The cell of `point` among the points of its work; `None` leaves it empty.
    fn cell(self, points: &[&Point], point: &Point) -> Option<Cell> {
        match self {
            Column::Of(measure) => {
                measure.of(point).map(|spread| Cell::new(show::value(measure.unit(), spread.median)))
            }
            Column::Noise => Some(Cell::new(show::noise(&point.throughput))),
            Column::Ratio(measure) => {
                let tcp = points.iter().find(|p| p.transport == "tcp" && point.transport != "tcp")?;
                ratio(measure, &measure.of(point)?, &measure.of(tcp)?)
            }
            Column::Rdma => {
                let part = point.traffic.as_ref()?.by_rdma()?;
                Some(Cell::new(format!("{:.0}%", 100.0 * part)))
            }
            Column::Care => {
                let mut words: Vec<&str> = point.marks.iter().map(|mark| mark.kind.word()).collect();
                words.dedup();
                (!words.is_empty()).then(|| Cell::new(words.join(", ")).fg(Color::Yellow))
            }
        }
    }
}

/// The ratio of two medians, coloured if their ranges do not overlap.
fn ratio(measure: Measure, over: &Spread, under: &Spread) -> Option<Cell> {
    if under.median <= 0.0 {
        return None;
    }
    let cell = Cell::new(show::ratio(over.median / under.median));
    let (less, more) = (over.max < under.min, over.min > under.max);
    let better = if measure.lower_is_better() { less } else { more };
    Some(match (better, less || more) {
        (true, _) => cell.fg(Color::Green),
        (false, true) => cell.fg(Color::Red),
        (false, false) => cell,
    })
}

/// The tables and the verdicts, ready to print.
pub fn render(report: &Report, style: Style) -> String {
    let mut text = String::new();
    let env = &report.environment;
    // Writing to a String cannot fail.
    let _ = writeln!(text, "{}", bold(style, &report.title));
    let _ = writeln!(
        text,
        "{} x {} processors, Linux {}, {}, TCP congestion control {}, Weft {}",
        env.processor, env.processors, env.kernel, env.driver, env.congestion_control, env.version
    );
    let _ = writeln!(
        text,
        "cycles = CPU time of both ends x {:.2} GHz nominal clock; medians, +- half the range of the repetitions; ratios against tcp",
        env.hz / 1e9
    );
    if report.interrupted {
        let _ = writeln!(text, "ended early: what is missing was not measured");
    }
    for section in &report.sections {
        write_section(&mut text, section, style);
    }
    for mark in &report.marks {
        let _ = writeln!(text, "care: {}", mark.text);
    }
    for note in &report.notes {
        let _ = writeln!(text, "note: {note}");
    }
    if !report.verdicts.is_empty() {
        let _ = writeln!(text);
    }
    for verdict in &report.verdicts {
        let seen = verdict.ratio.map_or("not measured".to_owned(), |r| format!("{r:.3}"));
        let word = if verdict.holds { "holds      " } else { "FALLS SHORT" };
        let _ = writeln!(
            text,
            "{} {}: {seen}",
            colour(style, if verdict.holds { 32 } else { 31 }, word),
            verdict.claim
        );
    }
    text
}

fn write_section(text: &mut String, section: &Section, style: Style) {
    let mut head = section.picture.word().to_owned();
    if let Some(peer) = &section.peer {
        let software = peer.software.as_deref().unwrap_or("an unidentified server");
        let _ = write!(head, ": {software} at {}", peer.host);
        for part in [&peer.dialect, &peer.signing, &peer.encryption].into_iter().flatten() {
            let _ = write!(head, ", {part}");
        }
    }
    let _ = writeln!(text, "\n{}", bold(style, &head));
    if !section.points.is_empty() {
        let (table, left_out) = table(section, style);
        let _ = writeln!(text, "{table}");
        if left_out > 0 {
            let _ = writeln!(text, "{left_out} columns did not fit: --csv, --json or --out has all of them");
        }
    }
    for refusal in &section.refusals {
        let work = refusal.work.as_ref().map_or(String::new(), |work| format!(" {work}"));
        let _ = writeln!(text, "not measured: {}{work}: {}", refusal.transport, refusal.reason);
    }
    for point in &section.points {
        for mark in &point.marks {
            let _ = writeln!(text, "care: {} over {}: {}", point.work, point.transport, mark.text);
        }
    }
    for note in &section.notes {
        let _ = writeln!(text, "note: {note}");
    }
}

/// The widest table that fits, and the number of columns with figures that it omits.
fn table(section: &Section, style: Style) -> (Table, usize) {
    let works = section.by_work();
    let has = |column: &Column| {
        works.values().any(|points| points.iter().any(|p| column.cell(points, p).is_some()))
    };
    let known: Vec<(Column, u32)> = Column::ALL.into_iter().filter(|(column, _)| has(column)).collect();
    let mut columns = known.clone();
    loop {
        let shown: Vec<Column> = columns.iter().map(|(column, _)| *column).collect();
        let table = with(&works, &shown, style);
        let wide = table.lines().map(|line| plain(&line)).max().unwrap_or(0);
        let least = columns.iter().enumerate().max_by_key(|(_, (_, rank))| *rank).map(|(at, _)| at);
        match least {
            Some(at) if style.width.is_some_and(|width| wide > width) && columns.len() > 1 => {
                columns.remove(at)
            }
            _ => return (table, known.len() - columns.len()),
        };
    }
}

/// Printed width of a line, without colour codes.
fn plain(line: &str) -> usize {
    let mut wide = 0;
    let mut escape = false;
    for c in line.chars() {
        match (escape, c) {
            (false, '\x1b') => escape = true,
            (false, _) => wide += 1,
            (true, 'm') => escape = false,
            (true, _) => {}
        }
    }
    wide
}

fn with(works: &std::collections::BTreeMap<&Work, Vec<&Point>>, columns: &[Column], style: Style) -> Table {
    let mut table = Table::new();
    table.load_style(lines()).set_content_arrangement(ContentArrangement::Disabled);
    if style.colour {
        table.enforce_styling();
    } else {
        table.force_no_tty();
    }
    table.set_header(["work", "transport"].into_iter().chain(columns.iter().map(|column| column.head())));
    for (work, points) in works {
        let mut points = points.clone();
        points.sort_by_key(|point| order(&point.transport));
        // The work is named once, for the lines of all its transports.
        let mut name = work.to_string();
        for point in &points {
            let head = Cell::new(std::mem::take(&mut name)).add_attribute(Attribute::Bold);
            let cells =
                columns.iter().map(|column| column.cell(&points, point).unwrap_or_else(|| Cell::new("")));
            table.add_row([head, Cell::new(&point.transport)].into_iter().chain(cells));
        }
    }
    for (column, shown) in table.column_iter_mut().skip(2).zip(columns) {
        if *shown != Column::Care {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    table
}

pub(super) fn bold(style: Style, text: &str) -> String {
    colour(style, 1, text)
}

/// Wraps `text` in an SGR code if colour is enabled.
pub(super) fn colour(style: Style, code: u8, text: &str) -> String {
    if style.colour { format!("\x1b[{code}m{text}\x1b[0m") } else { text.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::result::tests::sample;
    use crate::result::{Mark, MarkKind, Refusal};

    #[test]
    fn the_table_shows_every_point_and_its_ratio() {
        let text = render(&sample(), Style::PLAIN);
        assert_eq!(text.matches("shm").count(), 6);
        assert_eq!(text.matches("SMB READ 8 KiB qd 1 ").count(), 1, "a work is named once");
        assert!(text.contains("0.25"), "{text}");
        assert!(text.contains("note: loopback"));
        assert!(!text.contains('\x1b'), "nobody asked for colour");
    }

    #[test]
    fn a_narrow_terminal_gets_fewer_columns_never_broken_lines() {
        for width in [60, 80, 100, 132] {
            let style = Style { width: Some(width), colour: true };
            let text = render(&sample(), style);
            let table: Vec<&str> = text.lines().filter(|line| line.contains("shm")).collect();
            assert_eq!(table.len(), 6);
            assert!(table.iter().all(|line| plain(line) <= width), "{width}: {text}");
            assert!(text.contains("columns did not fit"));
        }
        let wide = render(&sample(), Style { width: Some(400), colour: false });
        assert!(!wide.contains("did not fit"));
    }

    #[test]
    fn colour_says_better_or_worse_only_beyond_the_noise() {
        let style = Style { width: None, colour: true };
        let text = render(&sample(), style);
        // comfy-table's green and red.
        assert!(text.contains("\x1b[38;5;10m") && text.contains("\x1b[38;5;9m"), "{text:?}");
    }

    #[test]
    fn marks_and_refusals_are_told() {
        let mut report = sample();
        let section = &mut report.sections[0];
        section.points[0].marks.push(Mark { kind: MarkKind::Noisy, text: "medians differ by 31%".into() });
        section.refusals.push(Refusal { work: None, transport: "rnic".into(), reason: "no device".into() });
        let text = render(&report, Style::PLAIN);
        assert!(text.contains("noisy") && text.contains("over tcp: medians differ by 31%"), "{text}");
        assert!(text.contains("not measured: rnic: no device"));
    }
}
