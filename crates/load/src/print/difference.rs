//! A comparison of two results, for a terminal and as a page.
//!
//! [`crate::difference`] judges.

use std::fmt::Write as _;

use comfy_table::{Attribute, Cell, Color, ContentArrangement, Table};

use super::html::{self, escape};
use super::term::{Style, bold, colour};
use super::{lines, order, show};
use crate::difference::{Difference, Judgement, MeasureChange};
use crate::result::{Measure, Picture, Report, Work};

/// Lines of one point, in the order of measures.
struct Row<'a> {
    picture: Picture,
    work: &'a Work,
    transport: &'a str,
    lines: Vec<&'a MeasureChange>,
}

fn rows(difference: &Difference) -> Vec<Row<'_>> {
    let mut rows: Vec<Row<'_>> = Vec::new();
    for line in &difference.lines {
        let same = |row: &&mut Row<'_>| {
            row.picture == line.picture && *row.work == line.work && row.transport == line.transport
        };
        match rows.iter_mut().find(same) {
            Some(row) => row.lines.push(line),
            None => rows.push(Row {
                picture: line.picture,
                work: &line.work,
                transport: &line.transport,
                lines: vec![line],
            }),
        }
    }
    rows.sort_by_key(|row| {
        let place = Picture::ALL.iter().position(|picture| *picture == row.picture);
        (place, row.work, order(row.transport))
    });
    rows
}

/// The measures that any line has, in table order.
fn measures(difference: &Difference) -> Vec<Measure> {
    Measure::ALL.into_iter().filter(|m| difference.lines.iter().any(|line| line.of == *m)).collect()
}

/// "3 better, 1 worse, 86 the same".
fn counts(difference: &Difference) -> String {
    format!("{} better, {} worse, {} the same", difference.better, difference.worse, difference.same)
}

const HOW: &str = "Second result divided by the first; medians. Better or worse only where the ranges of the repetitions do not overlap";

/// The tables for a terminal; with `all`, also the points without a change.
pub fn term(difference: &Difference, all: bool, style: Style) -> String {
    let mut text = String::new();
    let measures = measures(difference);
    let mut hidden = 0;
    let mut table: Option<(Picture, Table)> = None;
    // Writing to a String cannot fail.
    let flush = |text: &mut String, table: Option<(Picture, Table)>| {
        if let Some((picture, table)) = table {
            let _ = writeln!(text, "{}\n{table}\n", bold(style, picture.word()));
        }
    };
    for row in rows(difference) {
        if !all && row.lines.iter().all(|line| line.judgement == Judgement::Same) {
            hidden += 1;
            continue;
        }
        if table.as_ref().is_none_or(|(picture, _)| *picture != row.picture) {
            flush(&mut text, table.take());
        }
        let (_, table) = table.get_or_insert_with(|| (row.picture, empty(&measures, style)));
        let cells = measures.iter().map(|measure| {
            let line = row.lines.iter().find(|line| line.of == *measure);
            line.map_or_else(|| Cell::new(""), |line| cell(line))
        });
        let care = if row.lines.iter().any(|line| !line.marks.is_empty()) { "care" } else { "" };
        let head = Cell::new(row.work).add_attribute(Attribute::Bold);
        table.add_row(
            [head, Cell::new(row.transport)]
                .into_iter()
                .chain(cells)
                .chain([Cell::new(care).fg(Color::Yellow)]),
        );
    }
    flush(&mut text, table);
    for lone in &difference.lone {
        let _ = writeln!(text, "only in the {}: {} over {}", lone.only_in, lone.work, lone.transport);
    }
    for line in &difference.environment {
        let _ = writeln!(text, "other {line}");
    }
    if hidden > 0 {
        let _ = writeln!(text, "{hidden} points without a difference are not shown (--all shows them)");
    }
    let code = if difference.worse > 0 { 31 } else { 32 };
    let _ = writeln!(text, "{HOW},\nand differ by more than {}%.", 100.0 * difference.tolerance);
    let _ = writeln!(text, "{}", colour(style, code, &counts(difference)));
    text
}

fn empty(measures: &[Measure], style: Style) -> Table {
    let mut table = Table::new();
    table.load_style(lines());
    match style.width {
        Some(width) => table
            .set_content_arrangement(ContentArrangement::Dynamic)
            .set_width(u16::try_from(width).unwrap_or(u16::MAX)),
        None => table.set_content_arrangement(ContentArrangement::Disabled),
    };
    if style.colour {
        table.enforce_styling();
    } else {
        table.force_no_tty();
    }
    table.set_header(["work", "transport"].into_iter().chain(measures.iter().map(|m| m.word())).chain([""]));
    table
}

fn cell(line: &MeasureChange) -> Cell {
    let ratio = line.ratio.map_or("-".to_owned(), show::ratio);
    match line.judgement {
        Judgement::Better => Cell::new(format!("{ratio} better")).fg(Color::Green),
        Judgement::Worse => Cell::new(format!("{ratio} worse")).fg(Color::Red),
        Judgement::Same => Cell::new(format!("{ratio} same")),
    }
}

/// The comparison as a page. `before` and `after` are the names of the two files.
pub fn page(difference: &Difference, before: &Report, after: &Report, names: [&str; 2]) -> String {
    let title = format!("{} against {}", names[1], names[0]);
    let mut page = html::head(&title);
    let _ = write!(
        page,
        "<header><h1>{}</h1><p class=sub>{}</p></header><main><section><p>{HOW}, and differ by more than {}%. Hollow points do not.</p>",
        escape(&title),
        escape(&counts(difference)),
        100.0 * difference.tolerance
    );
    for (what, lines) in [("What differs around the measurement", &difference.environment)] {
        if !lines.is_empty() {
            let _ = write!(page, "<aside class=care role=note><b>{what}</b><ul>");
            for line in lines {
                let _ = write!(page, "<li>{}</li>", escape(line));
            }
            page.push_str("</ul></aside>");
        }
    }
    page.push_str("</section>");
    let measures = measures(difference);
    let rows = rows(difference);
    for picture in Picture::ALL {
        let rows: Vec<&Row<'_>> = rows.iter().filter(|row| row.picture == picture).collect();
        if rows.is_empty() {
            continue;
        }
        let _ = write!(page, "<section id={picture}><h2>{}</h2>", html::words(picture).0);
        html::differences(&mut page, picture, before, after, &measures);
        page.push_str("<div class=scroll tabindex=0><table class=points><thead><tr><th scope=col>work<th scope=col>transport");
        for measure in &measures {
            let _ = write!(page, "<th scope=col title='{}'>{}", measure.name(), measure.word());
        }
        page.push_str("<th scope=col>read with care</tr></thead><tbody>");
        for row in rows {
            let _ = write!(
                page,
                "<tr><th scope=row>{}<td class=text>{}",
                escape(&row.work.to_string()),
                escape(show::transport(row.transport))
            );
            for measure in &measures {
                let Some(line) = row.lines.iter().find(|line| line.of == *measure) else {
                    page.push_str("<td>\u{2013}");
                    continue;
                };
                let (unit, word) = (measure.unit(), line.judgement.word());
                let _ = write!(
                    page,
                    "<td title=\"{} ({} to {}), then {} ({} to {})\">{} <span class={word}>{word}</span>",
                    show::value(unit, line.before.median),
                    show::value(unit, line.before.min),
                    show::value(unit, line.before.max),
                    show::value(unit, line.after.median),
                    show::value(unit, line.after.min),
                    show::value(unit, line.after.max),
                    line.ratio.map_or("\u{2013}".to_owned(), show::ratio)
                );
            }
            let mut marks: Vec<&String> = row.lines.iter().flat_map(|line| &line.marks).collect();
            marks.dedup();
            let marks: Vec<&str> = marks.into_iter().map(String::as_str).collect();
            let _ = write!(page, "<td class=text>{}</tr>", escape(&marks.join("; ")));
        }
        page.push_str("</tbody></table></div></section>");
    }
    if !difference.lone.is_empty() {
        page.push_str("<section><h2>Only in one of the two</h2><ul>");
        for lone in &difference.lone {
            let work = escape(&lone.work.to_string());
            let _ = write!(
                page,
                "<li>{}: {work}, {}</li>",
                lone.only_in,
                escape(show::transport(&lone.transport))
            );
        }
        page.push_str("</ul></section>");
    }
    page.push_str("<section><h2>How both were measured</h2>");
    for (name, report) in names.iter().zip([before, after]) {
        let _ = write!(page, "<h3>{}</h3>", escape(name));
        html::host(&mut page, &report.environment);
    }
    page.push_str("</section></main></body></html>\n");
    page
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::difference::JUDGED;
    use crate::result::Spread;
    use crate::result::tests::sample;

    fn example() -> (Report, Report) {
        let before = sample();
        let mut after = sample();
        let slow = &mut after.sections[0].points[0];
        slow.latency.mean = Spread { min: 8e8, median: 1e9, max: 2e9 };
        after.environment.kernel = "6.18 <rc>".into();
        (before, after)
    }

    #[test]
    fn a_terminal_sees_what_changed_and_how_much_did_not() {
        let (before, after) = example();
        let difference = Difference::of(&before, &after, &JUDGED, 0.02);
        let text = term(&difference, false, Style::PLAIN);
        assert!(text.contains("worse"), "{text}");
        assert!(text.contains("17 points without a difference"), "{text}");
        assert!(text.contains("0 better, 1 worse, 89 the same"), "{text}");
        assert!(text.contains("other kernel: 6.1, then 6.18 <rc>"), "{text}");
        assert_eq!(term(&difference, true, Style::PLAIN).matches("shm").count(), 6);
    }

    #[test]
    fn a_page_has_both_environments_and_a_chart_of_ratios() {
        let (before, after) = example();
        let difference = Difference::of(&before, &after, &JUDGED, 0.02);
        let page = page(&difference, &before, &after, ["a.json", "b&b.json"]);
        assert!(page.contains("<h1>b&amp;b.json against a.json</h1>"));
        assert!(page.contains("6.18 &lt;rc&gt;") && page.contains("class=worse>worse"));
        assert!(page.contains("<figure>") && !page.contains("NaN"));
        assert_eq!(page.matches("class=command").count(), 2);
    }
}
