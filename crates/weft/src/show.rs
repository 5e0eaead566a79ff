//! `weft bench show`: prints or writes an earlier result in another format, chosen by the file name's ending.

use std::fs::FileType;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use rustix::fs::{Access, access};
use weft_load::print;
use weft_load::print::term::Style;
use weft_load::result::Report;

use crate::Failure;
use crate::args::Show;
use crate::local::Destination;
use crate::misuse::Misuse;
use crate::out::{Console, is_standard_output};

/// Runs the command.
pub(crate) fn run(args: Show) -> Result<ExitCode, Failure> {
    let report = crate::compare::read(&args.result)?;
    let console = Console::beside(args.out.iter().map(PathBuf::as_path))?;
    if args.out.is_empty() {
        crate::out::print(format_args!("{}", print::term::render(&report, Style::of_stdout())))?;
    }
    // Checks all names before it touches any file.
    for path in &args.out {
        check(path)?;
    }
    for path in &args.out {
        write(&report, path)?;
        console.wrote(path)?;
    }
    Ok(ExitCode::SUCCESS)
}

/// The format of a result file.
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
            // The reader of a pipe is a program.
            _ if takes_bytes_in_order(path) => Ok(Form::Json),
            _ => {
                let forms =
                    ".html (a page), .csv, .json or .md (the papers' claims); - is standard output, as JSON";
                Err(Misuse::new(format!("{}: the name must end in {forms}", path.display())).into())
            }
        }
    }
}

/// Standard output, a FIFO or a character device, whose name says nothing about the format.
fn takes_bytes_in_order(path: &Path) -> bool {
    let special = |kind: FileType| kind.is_fifo() || kind.is_char_device();
    is_standard_output(path) || std::fs::metadata(path).is_ok_and(|metadata| special(metadata.file_type()))
}

/// Whether the name of `path` selects a format.
pub(crate) fn check(path: &Path) -> Result<(), Failure> {
    Form::of(path).map(|_| ())
}

/// Whether a file can be written at `path`; checked before a measurement that takes minutes.
pub(crate) fn check_place(path: &Path) -> Result<(), Failure> {
    let Destination::File(_) = Destination::of(path)? else { return Ok(()) };
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let place = if path.exists() { path } else { folder };
    access(place, Access::WRITE_OK).map_err(|e| format!("{}: cannot write it: {e}", path.display()))?;
    Ok(())
}

/// Writes `report` in the format that the name of `path` selects.
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

#[cfg(test)]
mod tests {
    use rustix::fs::{CWD, FileType as Node, Mode, mknodat};
    use weft_load::result::Environment;

    use super::*;

    fn report() -> Report {
        Report::new("a title", Environment::here("", "").unwrap())
    }

    #[test]
    fn what_takes_bytes_in_order_gets_json_and_files_what_their_name_says() {
        let form = |path: &str| Form::of(Path::new(path)).map_err(|e| e.to_string());
        for path in ["-", "/dev/stdout", "/dev/null"] {
            assert!(matches!(form(path), Ok(Form::Json)), "{path}");
        }
        assert!(matches!(form("a.md"), Ok(Form::Claims)));
        for path in ["a", "a.txt", "-.txt", "/dev"] {
            let refused = form(path).map(drop).unwrap_err();
            assert!(refused.starts_with(&format!("{path}: the name must end in .html")), "{refused}");
        }
    }

    #[test]
    fn a_result_is_shown_in_files_and_in_a_pipe() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        write(&report(), &at("result.json")).unwrap();
        mknodat(CWD, at("pipe"), Node::Fifo, Mode::RUSR | Mode::WUSR, 0).unwrap();
        let pipe = at("pipe");
        let reader = std::thread::spawn(move || std::fs::read(pipe).unwrap());
        let out = vec![at("page.html"), at("pipe"), "/dev/null".into()];
        run(Show { result: at("result.json"), out }).unwrap();
        assert_eq!(reader.join().unwrap(), std::fs::read(at("result.json")).unwrap());
        assert!(std::fs::read_to_string(at("page.html")).unwrap().contains("a title"));
        let twice = Show { result: at("result.json"), out: vec!["-".into(), "-".into()] };
        assert!(run(twice).unwrap_err().to_string().contains("one format"));
    }
}
