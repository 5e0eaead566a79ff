//! `weft bench compare`: compares two results. [`weft_load::difference`] judges; this file reads the files and sets
//! the exit status.

use std::path::Path;
use std::process::ExitCode;

use weft_load::difference::{Difference, JUDGED};
use weft_load::print;
use weft_load::print::term::Style;
use weft_load::result::{Measure, Report};

use crate::Failure;
use crate::args::Compare;
use crate::out::Console;

/// A larger file is not a result: a full run with histograms has a few MiB.
const MAX_RESULT_BYTES: u64 = 256 << 20;

/// Runs the command.
pub(crate) fn run(args: Compare) -> Result<ExitCode, Failure> {
    let console = Console::beside_json(args.json, args.out.as_deref())?;
    let (before, after) = (read(&args.before)?, read(&args.after)?);
    let measures: &[Measure] = if args.every_measure { &Measure::ALL } else { &JUDGED };
    let difference = Difference::of(&before, &after, measures, args.tolerance / 100.0);
    if difference.lines.is_empty() {
        let names = format!("{} and {}", args.before.display(), args.after.display());
        return Err(format!(
            "{names} have no point in common: measure the same work over the same transport twice"
        )
        .into());
    }
    if args.json {
        serde_json::to_writer_pretty(crate::out::Stdout, &difference)?;
        say!()?;
    } else {
        console
            .print(format_args!("{}", print::difference::term(&difference, args.all, Style::of_stdout())))?;
    }
    if let Some(path) = &args.out {
        let name = |path: &Path| path.file_name().unwrap_or(path.as_os_str()).to_string_lossy().into_owned();
        let names = [name(&args.before), name(&args.after)];
        let page = print::difference::page(&difference, &before, &after, [&names[0], &names[1]]);
        crate::local::save(path, page.as_bytes())?;
        // The JSON object, or the page, may go to standard output.
        Console::Stderr.wrote(path)?;
    }
    Ok(if args.gate && difference.worse > 0 { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

/// Reads a result from a file.
pub(crate) fn read(path: &Path) -> Result<Report, Failure> {
    let named = |e: &dyn std::fmt::Display| format!("{}: {e}", path.display());
    let size = std::fs::metadata(path).map_err(|e| named(&e))?.len();
    if size > MAX_RESULT_BYTES {
        return Err(named(&"larger than any result: name a file that --json wrote").into());
    }
    let text = std::fs::read(path).map_err(|e| named(&e))?;
    Report::parse(&text).map_err(|e| named(&e).into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_and_the_object_do_not_share_standard_output() {
        let args = |json| Compare {
            before: "/nowhere/before.json".into(),
            after: "/nowhere/after.json".into(),
            tolerance: 2.0,
            gate: false,
            all: false,
            every_measure: false,
            json,
            out: Some("-".into()),
        };
        assert!(run(args(true)).unwrap_err().to_string().contains("one format"));
        assert!(run(args(false)).unwrap_err().to_string().starts_with("/nowhere/before.json: "));
    }
}
