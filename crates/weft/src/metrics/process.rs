//! The process as the kernel sees it, under the names that Prometheus' client libraries use.

use super::families as f;
use super::text::Page;

/// Adds what can be read; a value that the kernel does not tell is left out.
pub(super) fn put(page: &mut Page) {
    if let Some(stat) = Stat::read() {
        page.family(&f::PROCESS_CPU).sample(&[], stat.cpu_seconds);
        page.family(&f::PROCESS_RESIDENT).sample(&[], stat.resident_bytes);
        page.family(&f::PROCESS_VIRTUAL).sample(&[], stat.virtual_bytes);
        if let Some(start) = stat.start_seconds {
            page.family(&f::PROCESS_START).sample(&[], start);
        }
        page.family(&f::PROCESS_THREADS).sample(&[], stat.threads);
    }
    if let Ok(entries) = std::fs::read_dir("/proc/self/fd") {
        // One of them is the listing's own.
        let open = entries.count().saturating_sub(1);
        page.family(&f::PROCESS_FDS).sample(&[], open as f64);
    }
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
    page.family(&f::PROCESS_MAX_FDS).sample(&[], limit.map_or(f64::INFINITY, |limit| limit as f64));
}

/// proc_pid_stat(5).
struct Stat {
    cpu_seconds: f64,
    resident_bytes: f64,
    virtual_bytes: f64,
    threads: f64,
    start_seconds: Option<f64>,
}

impl Stat {
    fn read() -> Option<Stat> {
        let boot = std::fs::read_to_string("/proc/stat").ok();
        let boot = boot.as_ref().and_then(|text| text.lines().find_map(|line| line.strip_prefix("btime ")));
        let boot = boot.and_then(|seconds| seconds.trim().parse().ok());
        Stat::parse(&std::fs::read_to_string("/proc/self/stat").ok()?, boot)
    }

    /// `boot` is the start of the system in seconds of Unix time.
    fn parse(text: &str, boot: Option<f64>) -> Option<Stat> {
        // The name of the program may contain anything, so fields are counted from its last parenthesis: the first one
        // is number 3.
        let fields: Vec<&str> = text.rsplit_once(')')?.1.split_whitespace().collect();
        let field = |number: usize| fields.get(number - 3)?.parse::<f64>().ok();
        let tick = rustix::param::clock_ticks_per_second() as f64;
        let page = rustix::param::page_size() as f64;
        let (user, kernel, threads, start) = (field(14)?, field(15)?, field(20)?, field(22)?);
        Some(Stat {
            cpu_seconds: (user + kernel) / tick,
            threads,
            virtual_bytes: field(23)?,
            resident_bytes: field(24)? * page,
            start_seconds: boot.map(|boot| boot + start / tick),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_may_have_any_name() {
        let line =
            "7 (a) b (c)) S 1 7 7 0 -1 4194560 1 0 0 0 150 50 0 0 20 0 9 0 1000 8192 3 18446744073709551615";
        let stat = Stat::parse(line, Some(1e9)).unwrap();
        let tick = rustix::param::clock_ticks_per_second() as f64;
        assert_eq!((stat.cpu_seconds, stat.threads, stat.virtual_bytes), (200.0 / tick, 9.0, 8192.0));
        assert_eq!(stat.resident_bytes, 3.0 * rustix::param::page_size() as f64);
        assert_eq!(stat.start_seconds, Some(1e9 + 1000.0 / tick));
        assert!(Stat::parse("7 (weft) S 1", None).is_none());
        assert!(Stat::read().is_some_and(|stat| stat.threads >= 1.0 && stat.start_seconds.is_some()));
    }
}
