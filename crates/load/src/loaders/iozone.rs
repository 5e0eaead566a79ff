//! iozone's command line in its throughput mode: `-i 0 -i 1 -r 64k -s 1g -t 16 -F nfs://HOST/EXPORT/f1 ...`.
//!
//! Follows the flag descriptions in iozone's documentation. iozone reads or writes each file once; here all streams
//! run for the same time instead.

use std::time::Duration;

use super::{LoaderError, Understood, block, number, size, timing};
use crate::job::Job;
use crate::workload::{Mix, Order};

const KNOWN: &str = "-a -c -C -e -f -F -i -I -M -n -o -O -q -r -R -s -t -w -y -+n -+u";
/// More streams than one client keeps in flight are refused.
const MAX_STREAMS: u32 = 1024;
/// Record sizes of -a, in KiB.
const RECORDS_KIB: std::ops::RangeInclusive<u32> = 4..=16384;

/// Parses the command line.
pub fn parse(args: &[String]) -> Result<Understood, LoaderError> {
    let (mut tests, mut sizes) = (Vec::new(), Vec::new());
    let (mut bytes, mut streams) = (512u64 << 10, None);
    let (mut least, mut most, mut automatic) = (4u32 << 10, 16u32 << 20, false);
    let (mut targets, mut notes) = (Vec::new(), Vec::new());
    let mut args = args.iter().peekable();
    while let Some(arg) = args.next() {
        if !arg.starts_with('-') {
            return Err(LoaderError::Flag {
                loader: "iozone",
                flag: arg.clone(),
                known: "-F and -f name files; flags",
            });
        }
        // A value may follow its flag or be part of it.
        let split = if arg.starts_with("-+") { arg.len() } else { 2.min(arg.len()) };
        let (flag, attached) = arg.split_at(split);
        let mut value = || match attached.is_empty() {
            false => Ok(attached.to_owned()),
            true => args.next().cloned().ok_or_else(|| LoaderError::Value {
                flag: flag.to_owned(),
                value: String::new(),
                wants: "a value",
            }),
        };
        match flag {
            "-i" => tests.push(number::<u8>(flag, &value()?, "0 (write), 1 (read) or 2 (random)")?),
            "-r" => sizes.push(block(flag, &value()?, 1 << 10)?),
            "-s" => bytes = size(flag, &value()?, 1 << 10)?,
            "-t" => streams = Some(number::<u32>(flag, &value()?, "a number of streams")?),
            "-y" => least = block(flag, &value()?, 1 << 10)?,
            "-q" => most = block(flag, &value()?, 1 << 10)?,
            "-f" => targets.push(value()?),
            "-F" => {
                if !attached.is_empty() {
                    targets.push(attached.to_owned());
                }
                while let Some(path) = args.next_if(|next| !next.starts_with('-')) {
                    targets.push(path.clone());
                }
            }
            "-a" if attached.is_empty() => automatic = true,
            "-c" | "-e" if attached.is_empty() => {
                notes.push(format!("{flag}: closing and flushing are not part of the measured time"));
            }
            "-I" if attached.is_empty() => notes.push("-I: Weft's clients have no cache to bypass".into()),
            "-o" if attached.is_empty() => notes.push("-o: WRITEs are not forced to disk".into()),
            "-w" if attached.is_empty() => {
                notes.push("-w: files created for the run are always removed".into())
            }
            "-M" if attached.is_empty() => {
                notes.push("-M: the report always names the machine".into());
            }
            "-+u" if attached.is_empty() => {
                notes.push("-+u: the report always shows processor time".into());
            }
            "-n" | "-C" | "-R" | "-O" | "-+n" if attached.is_empty() => {}
            "-b" => {
                return Err(LoaderError::Conflict(
                    "-b writes a spreadsheet: put --out FILE.csv before the command line instead",
                ));
            }
            _ => return Err(LoaderError::Flag { loader: "iozone", flag: arg.clone(), known: KNOWN }),
        }
    }
    let wants = "a number of streams, 1 to 1024";
    if let Some(count) = streams.filter(|count| !(1..=MAX_STREAMS).contains(count)) {
        return Err(LoaderError::Value { flag: "-t".into(), value: count.to_string(), wants });
    }
    if targets.is_empty() {
        // Streams have one file each; otherwise all share one.
        targets = match streams {
            Some(streams) => (0..streams).map(|number| format!("iozone.DUMMY.{number}")).collect(),
            None => vec!["iozone.tmp".to_owned()],
        };
    }
    if automatic {
        let powers = (0..).map(|n| RECORDS_KIB.start() << n).take_while(|kib| kib <= RECORDS_KIB.end());
        sizes = powers.map(|kib| kib << 10).filter(|size| (least..=most).contains(size)).collect();
    } else if sizes.is_empty() {
        sizes = vec![4 << 10];
    }
    sizes.retain(|size| u64::from(*size) <= bytes);
    let files = u32::try_from(targets.len()).unwrap_or(u32::MAX);
    let streams = streams.unwrap_or(files);
    if streams != files {
        return Err(LoaderError::Conflict("-t and -F do not fit: name as many files as streams"));
    }
    if tests.is_empty() {
        tests = vec![0, 1];
    }
    let mut jobs: Vec<Job> = Vec::new();
    for test in tests {
        let (mixes, order) = match test {
            0 => (vec![Mix::Write], Order::Sequential),
            1 => (vec![Mix::Read], Order::Sequential),
            2 => (vec![Mix::Read, Mix::Write], Order::Random),
            _ => {
                return Err(LoaderError::Value {
                    flag: "-i".into(),
                    value: test.to_string(),
                    wants: "0 (write), 1 (read) or 2 (random)",
                });
            }
        };
        jobs.push(Job {
            mixes,
            order,
            sizes: sizes.clone(),
            streams: true,
            queue_depth: streams,
            files,
            file_bytes: bytes,
            timing: timing(Duration::from_secs(1), Duration::from_secs(5), Duration::ZERO),
            ..Job::default()
        });
    }
    notes.push("each point is measured for a fixed time (--duration), not once through the file".into());
    Ok(Understood { jobs, targets, creates: true, notes })
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
        for (test, mix) in [(0, Mix::Write), (1, Mix::Read)] {
            for kib in [4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096u32] {
                let line = format!("-n -i {test} -M -c -e -w -I -+u -t 16 -s 1g -r {kib}K");
                let understood = parsed(&line).unwrap();
                let [job] = &understood.jobs[..] else { panic!("{understood:?}") };
                assert_eq!((&job.sizes[..], &job.mixes[..]), (&[kib << 10][..], &[mix][..]));
                assert_eq!((job.queue_depth, job.files, job.streams), (16, 16, true));
                assert_eq!((job.file_bytes, job.order), (1 << 30, Order::Sequential));
                assert_eq!(understood.targets.len(), 16);
                assert_eq!(understood.targets[15], "iozone.DUMMY.15");
                job.check().unwrap();
            }
        }
    }

    #[test]
    fn files_may_be_named() {
        let understood =
            parsed("-i 0 -i 1 -r 64k -s 16m -t 3 -c -e -w -F nfs://h/e/1 nfs://h/e/2 nfs://h/e/3").unwrap();
        let [write, read] = &understood.jobs[..] else { panic!("{understood:?}") };
        assert_eq!((&write.mixes[..], &read.mixes[..]), (&[Mix::Write][..], &[Mix::Read][..]));
        assert_eq!((read.queue_depth, read.files, read.streams), (3, 3, true));
        assert_eq!(
            (&read.sizes[..], read.file_bytes, read.order),
            (&[65536][..], 16 << 20, Order::Sequential)
        );
        assert_eq!(understood.targets.len(), 3);
        read.check().unwrap();
    }

    #[test]
    fn values_may_be_attached_and_records_swept() {
        let understood = parsed("-i1 -a -y64k -q256k -s1m -f //h/s/x").unwrap();
        assert_eq!(understood.jobs[0].sizes, [64 << 10, 128 << 10, 256 << 10]);
        let random = parsed("-i 2 -r 8k -s 1m -f //h/s/x").unwrap();
        assert_eq!((random.jobs[0].order, random.jobs[0].mixes.len()), (Order::Random, 2));
        assert_eq!(parsed("-f //h/s/x").unwrap().jobs.len(), 2, "write, then read");
    }

    #[test]
    fn what_is_not_known_is_refused_by_its_name() {
        for (line, part) in [
            ("-Z -f x", "iozone's -Z is not supported here"),
            ("-+m list -f x", "iozone's -+m"),
            ("-i 9 -f x", "-i takes 0 (write)"),
            ("-t 2 -F one", "do not fit"),
            ("-r", "-r takes a value"),
            ("-b out.xls -f x", "--out FILE.csv"),
            ("stray", "iozone's stray"),
            ("-t 0 -i 0", "-t takes a number of streams"),
            ("-t 1025 -i 0", "-t takes a number of streams"),
        ] {
            let said = parsed(line).unwrap_err().to_string();
            assert!(said.contains(part), "{line}: {said}");
        }
    }
}
