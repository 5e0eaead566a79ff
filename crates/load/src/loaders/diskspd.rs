//! diskspd's command line: `-b8K -w0 -r -o10 -t2 -d20 //HOST/SHARE/FILE`.
//!
//! Follows the flag descriptions in diskspd's documentation. Threads are not bound to processors, and `-h` changes
//! nothing: Weft's clients have no cache.

use std::time::Duration;

use super::{LoaderError, Understood, block, number, seconds, size, timing};
use crate::job::Job;
use crate::workload::{Mix, Order};

const KNOWN: &str = "-b -c -C -d -D -f -F -g -h -l -L -n -o -p -r -R -s -S -t -v -w -W -x -z -Z";

/// Parses the command line.
pub fn parse(args: &[String]) -> Result<Understood, LoaderError> {
    let mut job =
        Job { sizes: vec![64 << 10], order: Order::Sequential, mixes: vec![Mix::Read], ..Job::default() };
    let (mut warm_up, mut duration, mut cool_down) =
        (Duration::from_secs(5), Duration::from_secs(10), Duration::ZERO);
    let (mut outstanding, mut of_each, mut in_all) = (2u32, 1u32, None);
    let (mut created, mut span, mut throttle) = (None, None, None);
    let (mut targets, mut notes) = (Vec::new(), Vec::new());
    for arg in args {
        let Some(rest) = arg.strip_prefix('-') else {
            targets.push(arg.clone());
            continue;
        };
        let mut letters = rest.chars();
        let letter = letters.next().unwrap_or(' ');
        let (flag, value) = (format!("-{letter}"), letters.as_str());
        let unknown = || Err(LoaderError::Flag { loader: "diskspd", flag: arg.clone(), known: KNOWN });
        match letter {
            'b' => job.sizes = vec![block(&flag, value, 1)?],
            'c' => created = Some(size(&flag, value, 1)?),
            'f' => span = Some(size(&flag, value, 1)?),
            'd' => duration = seconds(&flag, value)?,
            'W' => warm_up = seconds(&flag, value)?,
            'C' => cool_down = seconds(&flag, value)?,
            'o' => outstanding = number(&flag, value, "a number of operations")?,
            't' => of_each = number(&flag, value, "a number of threads")?,
            'F' => in_all = Some(number::<u32>(&flag, value, "a number of threads")?),
            'w' => job.mixes = vec![mix(&flag, value)?],
            'z' if value.is_empty() => {}
            'z' => job.seed = number(&flag, value, "a number")?,
            'r' | 's' => {
                job.order = if letter == 'r' { Order::Random } else { Order::Sequential };
                let stride = value.trim_start_matches('i');
                if letter == 'r' && stride.len() != value.len() {
                    return unknown();
                }
                // Blocks are contiguous here, so another stride would be another workload.
                if !stride.is_empty() && block(&flag, stride, 1)? != job.sizes[0] {
                    notes.push(format!("{arg}: offsets must be multiples of the block size"));
                }
            }
            'g' => throttle = Some(rate(&flag, value)?),
            'h' => notes.push("-h: Weft's clients have no cache to disable".into()),
            'S' if value.chars().all(|c| "bhmruw".contains(c)) => {
                if value.contains(['h', 'w']) {
                    notes.push(format!("{arg}: WRITEs are not forced to disk; the client side has no cache"));
                }
            }
            'l' | 'n' | 'x' | 'p' if value.is_empty() => {
                notes.push(format!("{arg}: affects only Windows, and has no effect here"));
            }
            'Z' => notes.push(format!("{arg}: written data is always incompressible")),
            'L' | 'v' if value.is_empty() => {}
            'D' | 'R' => {}
            _ => return unknown(),
        }
    }
    if targets.is_empty() {
        return Err(LoaderError::NoTarget);
    }
    let files = u32::try_from(targets.len()).unwrap_or(u32::MAX);
    // -t is per file, -F for all files; -o is per thread and file.
    (job.threads, job.queue_depth) = match in_all {
        Some(threads) => (threads, outstanding.saturating_mul(files)),
        None => (of_each.saturating_mul(files), outstanding),
    };
    job.files = files;
    job.file_bytes = span.or(created).unwrap_or(0);
    job.rate = throttle.map(|throttle| throttle.per_second(job.sizes[0]) * f64::from(job.threads));
    job.timing = timing(warm_up, duration, cool_down);
    Ok(Understood { jobs: vec![job], targets, creates: created.is_some(), notes })
}

fn mix(flag: &str, value: &str) -> Result<Mix, LoaderError> {
    match number::<u8>(flag, value, "the percentage of writes")? {
        0 => Ok(Mix::Read),
        100 => Ok(Mix::Write),
        writes if writes < 100 => Ok(Mix::Percent(100 - writes)),
        _ => Err(LoaderError::Conflict("-w takes 0 to 100")),
    }
}

/// The form of -g's limit per thread.
enum Throttle {
    Bytes(f64),
    Operations(f64),
}

impl Throttle {
    fn per_second(&self, size: u32) -> f64 {
        match self {
            Throttle::Bytes(each_ms) => each_ms * 1000.0 / f64::from(size),
            Throttle::Operations(each_second) => *each_second,
        }
    }
}

fn rate(flag: &str, value: &str) -> Result<Throttle, LoaderError> {
    let wants = "bytes per millisecond, or operations per second with i behind";
    match value.strip_suffix('i') {
        Some(operations) => Ok(Throttle::Operations(f64::from(number::<u32>(flag, operations, wants)?))),
        None => Ok(Throttle::Bytes(f64::from(number::<u32>(flag, value, wants)?))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(line: &str) -> Result<Understood, LoaderError> {
        parse(&line.split_whitespace().map(str::to_owned).collect::<Vec<_>>())
    }

    /// The paper's line, with its placeholders filled in: two threads for each of 20 targets, ten operations each.
    #[test]
    fn the_papers_command_line_is_taken_verbatim() {
        let targets: Vec<String> = (1..=20).map(|n| format!(r"\\192.0.2.1\share\testfile{n}.dat")).collect();
        for (writes, mix) in [(0, Mix::Read), (100, Mix::Write), (50, Mix::Percent(50))] {
            for kib in [2, 4, 8, 16, 32, 64, 128, 256u32] {
                let line = format!("-b{kib}K -w{writes} -l -r -o10 -W20 -d20 -t2 -h {}", targets.join(" "));
                let understood = parsed(&line).unwrap();
                let job = &understood.jobs[0];
                assert_eq!((&job.sizes[..], &job.mixes[..]), (&[kib << 10][..], &[mix][..]));
                assert_eq!((job.threads, job.queue_depth, job.files), (40, 10, 20), "400 outstanding");
                assert_eq!(job.order, Order::Random);
                assert_eq!(job.timing.warm_up, Duration::from_secs(20));
                assert_eq!(job.timing.duration, Duration::from_secs(20));
                assert_eq!(understood.targets, targets);
            }
        }
    }

    #[test]
    fn a_short_command_line_has_the_loaders_defaults() {
        let understood = parsed("-b8K -w0 -r -o10 -t2 -d20 -h -L //nas/share/file").unwrap();
        assert_eq!(understood.targets, ["//nas/share/file"]);
        assert!(!understood.creates);
        let job = &understood.jobs[0];
        assert_eq!((&job.sizes[..], &job.mixes[..]), (&[8192][..], &[Mix::Read][..]));
        assert_eq!((job.queue_depth, job.threads, job.order), (10, 2, Order::Random));
        assert_eq!(
            (job.timing.duration, job.timing.warm_up),
            (Duration::from_secs(20), Duration::from_secs(5))
        );
        assert_eq!(job.file_bytes, 0, "as large as it is");
        assert_eq!(understood.notes.len(), 1, "{:?}", understood.notes);
    }

    #[test]
    fn threads_are_of_each_file_unless_all_are_counted() {
        let each = &parsed("-t2 -o4 -c64M a b c").unwrap();
        assert_eq!((each.jobs[0].threads, each.jobs[0].queue_depth, each.jobs[0].files), (6, 4, 3));
        assert!(each.creates && each.jobs[0].file_bytes == 64 << 20);
        let all = &parsed("-F2 -o4 a b c").unwrap().jobs[0];
        assert_eq!((all.threads, all.queue_depth), (2, 12));
        let default = &parsed("a").unwrap().jobs[0];
        assert_eq!((default.sizes[0], default.queue_depth, default.order), (65536, 2, Order::Sequential));
        assert_eq!(parsed("-w30 a").unwrap().jobs[0].mixes, [Mix::Percent(70)]);
    }

    #[test]
    fn a_throttle_is_a_rate() {
        assert_eq!(parsed("-b8K -g8192 -t2 a").unwrap().jobs[0].rate, Some(2000.0));
        assert_eq!(parsed("-g50i a").unwrap().jobs[0].rate, Some(50.0));
    }

    #[test]
    fn what_is_not_known_is_refused_by_its_name() {
        for (line, part) in [
            ("-X a", "diskspd's -X is not supported here"),
            ("-rs50 a", "-r takes"),
            ("-b0 a", "-b takes a size"),
            ("-bx a", "-b takes a size"),
            ("-w101 a", "-w takes 0 to 100"),
            ("-dlong a", "-d takes whole seconds"),
            ("--weird a", "diskspd's --weird"),
            ("-b8K", "name the file at the end"),
        ] {
            let said = parsed(line).unwrap_err().to_string();
            assert!(said.contains(part), "{line}: {said}");
        }
    }
}
