//! Comparisons as a table for a terminal.

use comfy_table::{CellAlignment, ContentArrangement, Table, presets};

use crate::compare::Comparison;
use crate::result::Spread;

/// The table; each figure is the median of the rounds, with the range of the rounds in brackets.
pub fn render(lines: &[Comparison]) -> String {
    let mut table = Table::new();
    table.load_style(presets::UTF8_HORIZONTAL_ONLY).set_content_arrangement(ContentArrangement::Disabled);
    table.set_header(vec!["subject", "median", "reference", "median", "ratio", "rounds", "bound", ""]);
    for line in lines {
        let median = |figures: &[f64]| {
            Spread::of(figures.to_vec()).map_or("-".to_owned(), |spread| line.unit.show(spread.median))
        };
        let (ratio, rounds) = match (line.judged(), &line.reference) {
            (None, _) => ("not measured".to_owned(), String::new()),
            (Some(s), Some(_)) => (format!("{:.3}", s.median), format!("{:.3} to {:.3}", s.min, s.max)),
            (Some(s), None) => {
                (String::new(), format!("{} to {}", line.unit.show(s.min), line.unit.show(s.max)))
            }
        };
        let verdict = line.verdict();
        let claim = verdict.claim.rsplit(": ").next().unwrap_or_default().to_owned();
        table.add_row(vec![
            line.subject.clone(),
            median(&line.figures),
            line.reference.clone().unwrap_or_default(),
            if line.reference.is_some() { median(&line.references) } else { String::new() },
            ratio,
            rounds,
            claim,
            if verdict.holds { "holds" } else { "falls short" }.to_owned(),
        ]);
    }
    for column in [1, 3, 4, 5] {
        if let Some(column) = table.column_mut(column) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    format!("{table}\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compare::{Bound, Unit};

    #[test]
    fn every_line_shows_its_figures_and_its_verdict() {
        let mut fast = Comparison::paired("iwarp", "plain TCP", Unit::BytesPerSecond, Bound::AtLeast(0.9));
        fast.figures = vec![4e9, 4.5e9, 4.2e9];
        fast.references = vec![5e9, 5e9, 5e9];
        let mut idle = Comparison::alone("idle server", Unit::Percent, Bound::AtMost(1.0));
        idle.figures = vec![0.25];
        let missing = Comparison::alone("nobody", Unit::Seconds, Bound::AtMost(2.0));
        let text = render(&[fast, idle, missing]);
        for part in [
            "4.20 GB/s",
            "0.840",
            "0.800 to 0.900",
            "at least 0.90",
            "falls short",
            "0.25 %",
            "holds",
            "not measured",
        ] {
            assert!(text.contains(part), "{part:?} is not in\n{text}");
        }
    }
}
