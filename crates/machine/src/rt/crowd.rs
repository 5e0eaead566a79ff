//! Detects whether more threads want to run than there are processors.
//!
//! A core that polls while its peer waits for the same processor waits for itself: on two processors the threads of two
//! servers and of their client took three times as long for a replicated write as threads that sleep at once. It owns a
//! descriptor of /proc/loadavg; `reactor` decides what to do.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::time::Duration;

/// How long a spin lasts before it checks, and between two checks: a check costs a microsecond.
pub(super) const LOOK_EVERY: Duration = Duration::from_micros(10);

/// The source of the number of runnable threads.
#[derive(Debug)]
pub(super) struct Crowd {
    /// `None` if the file does not exist: then there is never a crowd.
    loadavg: Option<File>,
    processors: usize,
}

impl Crowd {
    pub(super) fn new() -> Crowd {
        // SAFETY: a plain call that takes a number; errors are negative.
        let online = unsafe { libc::sysconf(libc::_SC_NPROCESSORS_ONLN) };
        let processors = usize::try_from(online).unwrap_or(usize::MAX);
        Crowd { loadavg: File::open("/proc/loadavg").ok(), processors }
    }

    /// True while a thread waits for a processor. The kernel counts the whole machine, so if a process may use only a
    /// few of many processors, threads that wait for those may be missed.
    pub(super) fn waits(&self) -> bool {
        let Some(file) = &self.loadavg else { return false };
        // "0.20 0.18 0.12 3/80 11206" (proc(5)).
        let mut line = [0; 128];
        let read = file.read_at(&mut line, 0).unwrap_or(0);
        running(&line[..read]).is_some_and(|running| running > self.processors)
    }
}

/// The number of running or runnable threads, from a line of /proc/loadavg.
fn running(line: &[u8]) -> Option<usize> {
    let field = line.split(|byte| *byte == b' ').nth(3)?;
    let digits = field.split(|byte| *byte == b'/').next()?;
    std::str::from_utf8(digits).ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_fourth_field_tells_who_runs() {
        assert_eq!(running(b"0.20 0.18 0.12 3/80 11206\n"), Some(3));
        assert_eq!(running(b"112.20 90.18 80.12 117/8000 4194304\n"), Some(117));
        for odd in [
            &b""[..],
            b"\n",
            b"0.20 0.18 0.12",
            b"0.20 0.18 0.12 /80",
            b"0.20 0.18 0.12 x/80 1",
            b"a b c \xff/1 2",
        ] {
            assert_eq!(running(odd), None, "{odd:?}");
        }
    }

    #[test]
    fn more_threads_than_processors_are_a_crowd() {
        let path = std::env::temp_dir().join(format!("weft-crowd-{}", std::process::id()));
        let crowd = |line: &str, processors| {
            std::fs::write(&path, line).expect("a file");
            Crowd { loadavg: Some(File::open(&path).expect("that file")), processors }.waits()
        };
        assert!(crowd("0.20 0.18 0.12 3/80 11206\n", 2));
        assert!(!crowd("0.20 0.18 0.12 2/80 11206\n", 2));
        assert!(!crowd("", 0), "nothing is known");
        assert!(!Crowd { loadavg: None, processors: 0 }.waits());
        std::fs::remove_file(&path).expect("it is there");
    }

    #[test]
    fn what_the_kernel_says_is_understood_where_it_says_anything() {
        // This thread runs.
        let crowd = Crowd { processors: 0, ..Crowd::new() };
        assert_eq!(crowd.waits(), crowd.loadavg.is_some());
    }
}
