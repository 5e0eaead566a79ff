//! The command line of `weft bench compare` and `weft bench show`: names, defaults and help of their options.

use std::path::PathBuf;

use super::Misread;

/// `weft bench compare`.
#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:\n  weft bench compare before.json after.json\n  \
weft bench compare main.json branch.json --gate --tolerance 5\n\n\
A figure counts as better or worse only if the ranges of its repetitions do not overlap and the medians differ by more than \
the tolerance; otherwise it is the same.\n\
Exit status: 0; with --gate 1 if a figure is worse; 2 for a wrong command line.")]
pub(crate) struct Compare {
    /// The baseline: FILE.json of weft bench --out or weft demo --json
    #[arg(value_name = "BEFORE.json")]
    pub before: PathBuf,
    /// The result to judge
    #[arg(value_name = "AFTER.json")]
    pub after: PathBuf,
    /// Ignore differences up to this percentage
    #[arg(long, value_name = "PERCENT", default_value_t = 2.0, value_parser = parse_percent)]
    pub tolerance: f64,
    /// Exit with status 1 if a figure is worse: for CI
    #[arg(long)]
    pub gate: bool,
    /// Show unchanged points too
    #[arg(long)]
    pub all: bool,
    /// Show every measure (memory, interrupts, system calls, ...), not only speed, latency and cycles
    #[arg(long)]
    pub every_measure: bool,
    /// Print the comparison as a JSON object
    #[arg(long)]
    pub json: bool,
    /// Write the comparison as an HTML page to FILE
    #[arg(long, value_name = "FILE.html")]
    pub out: Option<PathBuf>,
}

/// `weft bench show`.
#[derive(clap::Args, Debug)]
#[command(after_help = "Example:\n  weft bench show report.json --out report.html --out report.csv")]
pub(crate) struct Show {
    /// A result: FILE.json of weft bench --out or weft demo --json
    #[arg(value_name = "RESULT.json")]
    pub result: PathBuf,
    /// Write it to FILE.html, FILE.csv (every percentile), FILE.json, FILE.md (the papers' claims, one by one), or -
    /// (JSON on standard output); repeatable. Without it, tables are printed on the terminal
    #[arg(long, value_name = "FILE")]
    pub out: Vec<PathBuf>,
}

pub(super) fn parse_percent(text: &str) -> Result<f64, Misread> {
    let value: f64 = text.trim_end_matches('%').parse().map_err(|_| Misread::NotANumber(text.to_owned()))?;
    if (0.0..=1000.0).contains(&value) { Ok(value) } else { Err(Misread::Percent) }
}
