//! sqlio's command line: `-kR -s100 -t1 -o1 -b8 -frandom -BN -LS //HOST/SHARE/FILE`, and sqlio2's
//! `-T100 -s20 -t1 -BN -LSi -dz testfile.dat -o40 -b8`.
//!
//! Follows the flag descriptions in sqlio's documentation. `-T`, which only sqlio2 has, is the percentage of READs.
//! Parameter files are refused.

use std::time::Duration;

use super::{LoaderError, Understood, block, number, seconds, timing};
use crate::job::Job;
use crate::workload::{Mix, Order};

const KNOWN: &str = "-k -T -s -t -o -b -f -d -B -L -p -a -64";

/// Parses the command line.
pub fn parse(args: &[String]) -> Result<Understood, LoaderError> {
    let mut job = Job { sizes: vec![2 << 10], order: Order::Sequential, file_bytes: 0, ..Job::default() };
    let mut duration = Duration::from_secs(30);
    let (mut targets, mut notes, mut drive) = (Vec::new(), Vec::new(), None);
    for arg in args {
        let Some(rest) = arg.strip_prefix('-') else {
            targets.push(arg.clone());
            continue;
        };
        let mut letters = rest.chars();
        let letter = letters.next().unwrap_or(' ');
        let (flag, value) = (format!("-{letter}"), letters.as_str());
        let wrong = |wants| Err(LoaderError::Value { flag: flag.clone(), value: value.to_owned(), wants });
        match letter {
            'k' => {
                job.mixes = match value {
                    "R" => vec![Mix::Read],
                    "W" => vec![Mix::Write],
                    _ => return wrong("R or W"),
                }
            }
            'T' => {
                job.mixes = match number::<u8>(&flag, value, "the percentage of READs, 0 to 100")? {
                    100 => vec![Mix::Read],
                    0 => vec![Mix::Write],
                    reads if reads < 100 => vec![Mix::Percent(reads)],
                    _ => return wrong("the percentage of READs, 0 to 100"),
                }
            }
            'd' if value.len() == 1 && value.starts_with(|c: char| c.is_ascii_alphabetic()) => {
                drive = Some(value.to_ascii_uppercase());
            }
            'd' => return wrong("one drive letter"),
            'f' => {
                job.order = match value {
                    "random" => Order::Random,
                    "sequential" => Order::Sequential,
                    _ => return wrong("random or sequential"),
                }
            }
            's' => duration = seconds(&flag, value)?,
            't' => job.threads = number(&flag, value, "a number of threads")?,
            'o' => job.queue_depth = number(&flag, value, "a number of operations")?,
            'b' => job.sizes = vec![block(&flag, value, 1 << 10)?],
            'L' if matches!(value, "S" | "P" | "Si" | "Pi") => {}
            'B' if matches!(value, "N" | "Y" | "H" | "S") => {
                if value != "N" {
                    notes.push(format!("{arg}: Weft's clients have no cache to use"));
                }
            }
            'p' | 'a' => notes.push(format!("{arg}: threads are not bound to single processors")),
            '6' if value == "4" => {}
            'F' => {
                return Err(LoaderError::Conflict(
                    "-F names a parameter file, which is not supported: name its file at the end, its threads as -t",
                ));
            }
            _ => return Err(LoaderError::Flag { loader: "sqlio", flag: arg.clone(), known: KNOWN }),
        }
    }
    if targets.is_empty() {
        return Err(LoaderError::NoTarget);
    }
    if let Some(drive) = drive {
        notes.push(format!("-d{}: drive {drive}: is the folder of --folder", drive.to_lowercase()));
    }
    job.files = u32::try_from(targets.len()).unwrap_or(u32::MAX);
    // sqlio has no warm-up; a fifth of the duration, as elsewhere here, excludes the first operations.
    job.timing = timing((duration / 5).min(Duration::from_secs(5)), duration, Duration::ZERO);
    Ok(Understood { jobs: vec![job], targets, creates: true, notes })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(line: &str) -> Result<Understood, LoaderError> {
        parse(&line.split_whitespace().map(str::to_owned).collect::<Vec<_>>())
    }

    /// The paper's line, with its two placeholders filled in.
    #[test]
    fn the_papers_command_line_is_taken_verbatim() {
        for (reads, mix) in [(100, Mix::Read), (0, Mix::Write)] {
            for kib in [1, 2, 4, 8, 16, 32, 64, 128, 256u32] {
                let line = format!("-T{reads} -s20 -t1 -BN -LSi -dz testfile.dat -o40 -b{kib}");
                let understood = parsed(&line).unwrap();
                let job = &understood.jobs[0];
                assert_eq!((&job.sizes[..], &job.mixes[..]), (&[kib << 10][..], &[mix][..]));
                assert_eq!((job.queue_depth, job.threads, job.order), (40, 1, Order::Sequential));
                assert_eq!(job.timing.duration, Duration::from_secs(20));
                assert_eq!(understood.targets, ["testfile.dat"]);
                assert_eq!(understood.notes, ["-dz: drive Z: is the folder of --folder"]);
            }
        }
        assert_eq!(parsed("-T70 f").unwrap().jobs[0].mixes, [Mix::Percent(70)]);
    }

    #[test]
    fn sqlios_older_flags_are_taken() {
        let understood = parsed(r"-kW -s100 -t1 -o1 -b256 -frandom -BN -LS \\nas\share\file.dat").unwrap();
        let job = &understood.jobs[0];
        assert_eq!((&job.sizes[..], &job.mixes[..]), (&[262_144][..], &[Mix::Write][..]));
        assert_eq!((job.queue_depth, job.threads, job.order), (1, 1, Order::Random));
        assert_eq!(job.timing.duration, Duration::from_secs(100));
        assert_eq!(understood.targets, [r"\\nas\share\file.dat"]);
        assert_eq!(understood.notes, Vec::<String>::new());
    }

    #[test]
    fn what_is_not_known_is_refused_by_its_name() {
        for (line, part) in [
            ("-x a", "sqlio's -x is not supported here: -k"),
            ("-i5 a", "sqlio's -i5"),
            ("-kX a", "-k takes R or W"),
            ("-T101 a", "-T takes the percentage of READs"),
            ("-T a", "-T takes the percentage of READs"),
            ("-dzy a", "-d takes one drive letter"),
            ("-d a", "-d takes one drive letter"),
            ("-fstripe a", "-f takes random or sequential"),
            ("-Fparam.txt", "parameter file"),
            ("-kR", "name the file at the end"),
        ] {
            let said = parsed(line).unwrap_err().to_string();
            assert!(said.contains(part), "{line}: {said}");
        }
    }
}
