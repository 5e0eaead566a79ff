//! `weft bench show`: a result that was written before, in another form.
//!
//! Owns: which ending of a name means which form. Does not: measure again.

use std::path::Path;
use std::process::ExitCode;

use weft_load::print;
use weft_load::print::term::Style;
use weft_load::result::Report;

use crate::Failure;
use crate::args::Show;

/// Runs the command.
pub(crate) fn run(args: Show) -> Result<ExitCode, Failure> {
    let report = crate::compare::read(&args.result)?;
    if args.out.is_empty() {
        crate::out::print(format_args!("{}", print::term::render(&report, Style::of_stdout())))?;
    }
    // All names are looked at before any file is touched.
    for path in &args.out {
        check(path)?;
    }
    for path in &args.out {
        write(&report, path)?;
        say!("wrote {}", path.display())?;
    }
    Ok(ExitCode::SUCCESS)
}

/// What a file of results can be.
#[derive(Clone, Copy)]
enum Form {
    Html,
    Csv,
    Json,
    Claims,
}

impl Form {
    fn of(path: &Path) -> Result<Form, Failure> {
        match path.extension().and_then(|e| e.to_str()) {
            Some("html" | "htm") => Ok(Form::Html),
            Some("csv") => Ok(Form::Csv),
            Some("json") => Ok(Form::Json),
            Some("md") => Ok(Form::Claims),
            _ => {
                let forms = ".html (a page), .csv, .json or .md (the papers' claims)";
                Err(format!("{}: end the name in {forms}", path.display()).into())
            }
        }
    }
}

/// Whether the name of `path` says a form.
pub(crate) fn check(path: &Path) -> Result<(), Failure> {
    Form::of(path).map(|_| ())
}

/// Writes `report` in the form that the name of `path` says.
pub(crate) fn write(report: &Report, path: &Path) -> Result<(), Failure> {
    let form = Form::of(path)?;
    let mut out = Vec::new();
    match form {
        Form::Html => out.extend(print::html::render(report).into_bytes()),
        Form::Csv => print::csv::write(report, &mut out)?,
        Form::Json => print::json::write(report, &mut out)?,
        Form::Claims => out.extend(print::claims::markdown(report).into_bytes()),
    }
    crate::local::save(path, &out)
}
