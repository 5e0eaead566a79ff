//! What a host does: interrupts, context switches and idle time of each core, from /proc.
//!
//! The figures include every process of the host. A value that the system does not report is an error, never zero.

use std::fs;
use std::io;
use std::time::Instant;

/// Kernel ticks a second in /proc/stat (USER_HZ); the same on every architecture that Linux is built for today.
const TICKS: f64 = 100.0;

/// The counters at one moment.
#[derive(Clone, Debug)]
pub struct Counters {
    at: Instant,
    /// Idle ticks and all ticks of each core.
    cores: Vec<(u64, u64)>,
    interrupts: u64,
    softirqs: u64,
    context_switches: u64,
    /// Read from disks, in bytes.
    paged_in: u64,
}

/// The changes between two moments.
#[derive(Clone, Debug, PartialEq)]
pub struct Use {
    /// Seconds.
    pub seconds: f64,
    /// Idle time of each core, 0 to 100; empty if too little time has passed.
    pub idle_percent: Vec<f64>,
    /// Number of busy cores, in total; `None` if too little time has passed.
    pub busy_cores: Option<f64>,
    /// Hardware interrupts of all cores.
    pub interrupts: u64,
    /// Soft interrupts.
    pub softirqs: u64,
    /// Context switches.
    pub context_switches: u64,
    /// Bytes read from disks.
    pub paged_in: u64,
}

impl Counters {
    /// The current counters.
    pub fn now() -> io::Result<Counters> {
        let at = Instant::now();
        let stat = fs::read_to_string("/proc/stat")?;
        let vmstat = fs::read_to_string("/proc/vmstat")?;
        parse(at, &stat, &vmstat).ok_or_else(|| io::Error::other("/proc/stat or /proc/vmstat lacks a line"))
    }

    /// The changes since `earlier`.
    pub fn since(&self, earlier: &Counters) -> Use {
        let seconds = self.at.duration_since(earlier.at).as_secs_f64();
        let cores: Vec<(f64, f64)> = self
            .cores
            .iter()
            .zip(&earlier.cores)
            .map(|(now, then)| ((now.0 - then.0.min(now.0)) as f64, (now.1 - then.1.min(now.1)) as f64))
            .collect();
        // A tick is 10 ms: shares of only five ticks are meaningless.
        let known = !cores.is_empty() && cores.iter().all(|(_, all)| *all >= 5.0);
        let idle = |(idle, all): &(f64, f64)| (100.0 * idle / all).clamp(0.0, 100.0);
        Use {
            seconds,
            idle_percent: if known { cores.iter().map(idle).collect() } else { Vec::new() },
            busy_cores: known.then(|| {
                cores.iter().map(|(idle, all)| (all - idle).max(0.0)).sum::<f64>() / TICKS / seconds.max(1e-9)
            }),
            interrupts: self.interrupts.saturating_sub(earlier.interrupts),
            softirqs: self.softirqs.saturating_sub(earlier.softirqs),
            context_switches: self.context_switches.saturating_sub(earlier.context_switches),
            paged_in: self.paged_in.saturating_sub(earlier.paged_in),
        }
    }
}

fn parse(at: Instant, stat: &str, vmstat: &str) -> Option<Counters> {
    let first = |text: &str, name: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '))?;
        line.split_whitespace().next()?.parse::<u64>().ok()
    };
    let mut cores = Vec::new();
    for line in stat.lines().filter(|line| line.starts_with("cpu") && !line.starts_with("cpu ")) {
        // user nice system idle iowait irq softirq steal; user already includes guest times.
        let ticks: Vec<u64> =
            line.split_whitespace().skip(1).take(8).filter_map(|field| field.parse().ok()).collect();
        cores.push((ticks.get(3)? + ticks.get(4)?, ticks.iter().sum()));
    }
    Some(Counters {
        at,
        cores,
        interrupts: first(stat, "intr")?,
        softirqs: first(stat, "softirq")?,
        context_switches: first(stat, "ctxt")?,
        paged_in: first(vmstat, "pgpgin")?.checked_mul(1024)?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const STAT: &str = "cpu  300 0 100 700 0 0 0 0 0 0\ncpu0 100 0 50 340 10 0 0 0 0 0\ncpu1 200 0 50 250 0 0 0 0 0 0\n\
        intr 1000 1 2 3\nctxt 5000\nbtime 1\nsoftirq 700 1 2\n";
    const LATER: &str = "cpu  300 0 100 700 0 0 0 0 0 0\ncpu0 150 0 50 380 20 0 0 0 0 0\ncpu1 300 0 50 250 0 0 0 0 0 0\n\
        intr 1500 1 2 3\nctxt 7000\nbtime 1\nsoftirq 900 1 2\n";

    #[test]
    fn idle_time_is_told_of_each_core() {
        let at = Instant::now();
        let later = at + std::time::Duration::from_secs(1);
        let then = parse(at, STAT, "nr_x 1\npgpgin 10\n").unwrap();
        let now = parse(later, LATER, "pgpgin 14\n").unwrap();
        let used = now.since(&then);
        assert_eq!(used.idle_percent, [50.0, 0.0]);
        assert_eq!(used.busy_cores, Some(1.5));
        assert_eq!((used.interrupts, used.softirqs, used.context_switches), (500, 200, 2000));
        assert_eq!(used.paged_in, 4096);
        // Too short an interval, and counters that decreased (a core was removed), are not idle time.
        assert_eq!(then.since(&then).busy_cores, None);
        assert_eq!(then.since(&now).interrupts, 0);
    }

    #[test]
    fn a_line_that_is_missing_is_an_error_not_zero() {
        assert!(parse(Instant::now(), STAT, "").is_none());
        assert!(parse(Instant::now(), "cpu0 1 2\n", "pgpgin 1").is_none());
        let now = Counters::now().unwrap();
        assert!(!now.cores.is_empty() && now.interrupts > 0);
    }
}
