//! The command line of `weft bench compare` and `weft bench show`.
//!
//! Owns: names, defaults and help of their options. Does not: act.

use std::path::PathBuf;

/// `weft bench compare`.
#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:\n  weft bench compare before.json after.json\n  \
weft bench compare main.json branch.json --gate --tolerance 5\n\n\
A figure is better or worse only where the ranges of its repetitions do not overlap and its medians differ by more than \
the tolerance; everything else is the same.\n\
Exit status: 0; with --gate 1 where a figure is worse; 2 for a wrong command line.")]
pub(crate) struct Compare {
    /// The result to compare with: FILE.json of weft bench --out or weft demo --json
    #[arg(value_name = "BEFORE.json")]
    pub before: PathBuf,
    /// The result in question
    #[arg(value_name = "AFTER.json")]
    pub after: PathBuf,
    /// Differences up to this are none, in percent
    #[arg(long, value_name = "PERCENT", default_value_t = 2.0, value_parser = parse_percent)]
    pub tolerance: f64,
    /// Exit with status 1 where a figure is worse: for CI
    #[arg(long)]
    pub gate: bool,
    /// Show points without a difference, too
    #[arg(long)]
    pub all: bool,
    /// Every measure that was taken (memory, interrupts, system calls, ...), not only speed, latency and cycles
    #[arg(long)]
    pub every_measure: bool,
    /// Print the comparison as a JSON object
    #[arg(long)]
    pub json: bool,
    /// Write the comparison as a page
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
    /// Write it to FILE.html (a page), FILE.csv (every percentile), FILE.json, FILE.md (the papers' claims, one by one), or -
    /// (JSON on standard output); repeatable. Without it, tables on the terminal
    #[arg(long, value_name = "FILE")]
    pub out: Vec<PathBuf>,
}

pub(super) fn parse_percent(text: &str) -> Result<f64, String> {
    let value: f64 = text
        .trim_end_matches('%')
        .parse()
        .map_err(|_| format!("not a number: {text:?} (write for example 5)"))?;
    if (0.0..=1000.0).contains(&value) {
        Ok(value)
    } else {
        Err("write a percentage from 0 to 1000".to_owned())
    }
}
