//! Marks: reasons to read figures with care, found by the program itself: shared cores, a busy machine, files that
//! were not cached, noise, a loader that was the bottleneck.
//!
//! The bounds are here. No point is left out; every printer shows it with its marks.

use crate::measure::Window;
use crate::result::{Mark, MarkKind, Point, Spread};

/// Other processes may keep this many cores busy.
const OTHERS_CORES: f64 = 0.15;
/// This part of the payload may come from disks although files are said to be cached.
const FROM_DISK: f64 = 0.01;
/// A point is noisy if half the range of its repetitions exceeds this part of the median.
const NOISE: f64 = 0.15;
/// A client that is busier than this has no time left.
const CLIENT_FULL: f64 = 0.95;
/// A queue with a limited rate that lags by more than this has not just had a hiccup.
const LATE: std::time::Duration = std::time::Duration::from_millis(100);
/// A server that is less busy than this waits for work.
const SERVER_FULL: f64 = 0.85;

fn mark(kind: MarkKind, text: String) -> Mark {
    Mark { kind, text }
}

/// What is known of a run's host.
#[derive(Clone, Copy, Debug)]
pub struct Setup {
    /// The server is on this host.
    pub same_host: bool,
    /// Cores that the clients may use.
    pub client_cores: usize,
    /// Cores that the server may use, if known.
    pub server_cores: Option<usize>,
    /// Cores that both may use.
    pub shared_cores: usize,
    /// Client threads of this process.
    pub threads: usize,
    /// Outstanding operations of all threads.
    pub outstanding: u32,
    /// The run claims that the file is in the server's memory.
    pub cached: bool,
}

/// The marks of one repetition with `bytes` payload bytes.
pub fn of_window(window: &Window, bytes: u64, setup: &Setup) -> Vec<Mark> {
    let mut marks = Vec::new();
    if setup.same_host && setup.shared_cores > 0 {
        let text = format!(
            "client and server may both run on {} of this host's cores: their figures depend on each other",
            setup.shared_cores
        );
        marks.push(mark(MarkKind::SharedCore, text));
    }
    // If the server is on this host and its processor time is unknown, it cannot be separated from other processes.
    let others_known = !setup.same_host || window.server.is_some();
    if let Some(others) = window.others_busy_cores.filter(|others| *others > OTHERS_CORES && others_known) {
        marks.push(mark(MarkKind::Busy, format!("other processes kept {others:.2} cores of this host busy")));
    }
    let from_disk = window.paged_in as f64 / bytes.max(1) as f64;
    // A megabyte may come from any program.
    if setup.same_host && setup.cached && from_disk > FROM_DISK && window.paged_in > 1 << 20 {
        let text = format!(
            "this host read {} MiB from disks, {:.0}% of the payload, of a file that should be cached (or for other programs)",
            window.paged_in >> 20,
            100.0 * from_disk
        );
        marks.push(mark(MarkKind::NotCached, text));
    }
    marks.extend(loader(window, setup));
    if window.steady == Some(false) {
        marks.push(mark(MarkKind::Noisy, "the throughput did not become steady".into()));
    }
    if window.interrupted {
        marks.push(mark(MarkKind::Interrupted, "the run was ended early".into()));
    }
    marks
}

/// Whether this program was the bottleneck. With one operation at a time neither end is, because they wait for each
/// other.
fn loader(window: &Window, setup: &Setup) -> Option<Mark> {
    let threads = setup.threads.min(setup.client_cores).max(1) as f64;
    let busy = window.client.cpu?.as_secs_f64() / window.seconds.max(1e-9);
    if setup.outstanding < 2 || busy < CLIENT_FULL * threads {
        return None;
    }
    let server = window.server.as_ref().and_then(|end| end.cpu);
    let words = format!("the loader used {busy:.2} of its {threads:.0} cores");
    let text = match (server, setup.server_cores) {
        (Some(cpu), Some(cores)) => {
            let served = cpu.as_secs_f64() / window.seconds.max(1e-9);
            if served >= SERVER_FULL * cores as f64 {
                return None;
            }
            format!("{words}, the server {served:.2} of its {cores}: a faster loader would show more")
        }
        _ => format!("{words}: a faster loader might show more"),
    };
    Some(mark(MarkKind::LoaderBound, text))
}

/// The mark of a limited rate that was not kept: operations had not started this long after they were due.
pub fn of_rate(late: std::time::Duration) -> Option<Mark> {
    (late > LATE).then(|| {
        let text = format!(
            "the rate was not kept: operations started up to {:.1} s after they were due",
            late.as_secs_f64()
        );
        mark(MarkKind::Other, text)
    })
}

/// Whether a run with such a mark is refused in strict mode.
pub fn is_refused(kind: MarkKind) -> bool {
    matches!(kind, MarkKind::SharedCore | MarkKind::Busy | MarkKind::NotCached)
}

/// Keeps one mark of each kind, with the text of the last.
pub fn merge(all: &mut Vec<Mark>, more: Vec<Mark>) {
    for mark in more {
        match all.iter_mut().find(|known| known.kind == mark.kind) {
            Some(known) => *known = mark,
            None => all.push(mark),
        }
    }
    all.sort_by_key(|mark| mark.kind);
}

/// Marks points of one picture whose repetitions differ more than they should, or more than the effect that they
/// show.
pub fn of_spreads(points: &mut [Point]) {
    let judged: Vec<Option<Mark>> = points
        .iter()
        .map(|point| {
            let reference = points.iter().find(|p| p.transport == "tcp" && p.work == point.work)?;
            noise(point, (point.transport != "tcp").then_some(reference))
        })
        .collect();
    for (point, found) in points.iter_mut().zip(judged) {
        merge(&mut point.marks, found.into_iter().collect());
    }
}

/// Judged by the figure that the point is measured for: latency with one outstanding operation, throughput otherwise.
fn noise(point: &Point, reference: Option<&Point>) -> Option<Mark> {
    let alone = point.work.queue_depth * point.work.threads * point.work.clients == 1;
    let figure = |p: &Point| if alone { p.latency.mean } else { p.throughput };
    let (seen, name) = (figure(point), if alone { "latency" } else { "throughput" });
    if seen.noise() > NOISE {
        let text = format!(
            "{name}: the repetitions lie {:.0}% around their median, more than {:.0}%",
            100.0 * seen.noise(),
            100.0 * NOISE
        );
        return Some(mark(MarkKind::Noisy, text));
    }
    let other = figure(reference?);
    overlap(seen, other).then(|| {
        let text = format!(
            "{name}: {:.0}% from tcp's, which is less than the repetitions differ: no difference was shown",
            100.0 * (seen.median / other.median - 1.0)
        );
        mark(MarkKind::Noisy, text)
    })
}

/// Whether the ranges overlap, so that the medians prove nothing.
fn overlap(a: Spread, b: Spread) -> bool {
    a.min <= b.max && b.min <= a.max
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::result::{EndSample, Latencies, Sample, Work};
    use crate::workload::Mix;

    fn window(client: f64, server: Option<f64>) -> Window {
        let end =
            |cores: f64| EndSample { cpu: Some(Duration::from_secs_f64(cores)), ..EndSample::default() };
        Window {
            seconds: 1.0,
            client: end(client),
            server: server.map(end),
            timeline: Vec::new(),
            interrupted: false,
            steady: None,
            others_busy_cores: Some(0.05),
            paged_in: 0,
        }
    }

    const SETUP: Setup = Setup {
        same_host: true,
        client_cores: 1,
        server_cores: Some(1),
        shared_cores: 0,
        threads: 2,
        outstanding: 20,
        cached: true,
    };

    fn kinds(window: &Window, setup: &Setup) -> Vec<MarkKind> {
        of_window(window, 1 << 30, setup).into_iter().map(|mark| mark.kind).collect()
    }

    #[test]
    fn a_quiet_run_on_cores_of_their_own_has_no_mark() {
        assert_eq!(kinds(&window(0.7, Some(1.0)), &SETUP), []);
        assert_eq!(kinds(&window(1.0, Some(1.0)), &SETUP), [], "both are full: neither waits");
    }

    #[test]
    fn a_loader_without_time_says_that_it_is_the_bottleneck() {
        assert_eq!(kinds(&window(1.0, Some(0.6)), &SETUP), [MarkKind::LoaderBound]);
        assert_eq!(kinds(&window(1.0, None), &Setup { same_host: false, ..SETUP }), [MarkKind::LoaderBound]);
        assert_eq!(
            kinds(&window(1.0, Some(0.6)), &Setup { outstanding: 1, ..SETUP }),
            [],
            "both wait in turn"
        );
        assert_eq!(
            kinds(&window(1.0, Some(0.6)), &Setup { client_cores: 2, ..SETUP }),
            [],
            "half of its cores"
        );
    }

    #[test]
    fn what_spoils_a_run_is_named() {
        let spoiled = Window {
            others_busy_cores: Some(0.8),
            paged_in: 512 << 20,
            steady: Some(false),
            interrupted: true,
            ..window(0.5, Some(0.5))
        };
        let setup = Setup { shared_cores: 1, ..SETUP };
        use MarkKind::{Busy, Interrupted, Noisy, NotCached, SharedCore};
        assert_eq!(kinds(&spoiled, &setup), [SharedCore, Busy, NotCached, Noisy, Interrupted]);
        // A remote server, or one that reads from disks as declared, is not affected by our disk reads.
        let elsewhere = Setup { same_host: false, ..setup };
        assert_eq!(kinds(&spoiled, &elsewhere), [Busy, Noisy, Interrupted]);
        // Without the server's processor time, other processes cannot be told from it.
        let unknown = Window { server: None, ..spoiled };
        assert_eq!(kinds(&unknown, &setup), [SharedCore, NotCached, Noisy, Interrupted]);
    }

    #[test]
    fn a_difference_within_the_noise_is_marked() {
        let point = |transport: &str, rates: [u64; 3]| {
            let samples = rates.map(|operations| {
                let mut latency = Latencies::new();
                latency.record(1000);
                Sample { operations, bytes: operations * 4096, seconds: 1.0, latency, ..Sample::default() }
            });
            Point::of(Work::simple("SMB", Mix::Read, 4096, 8), transport, 1e9, &samples).unwrap()
        };
        let mut points = vec![
            point("tcp", [100, 102, 104]),
            point("iwarp", [101, 103, 105]),
            point("shm", [300, 305, 310]),
            point("rnic", [100, 200, 300]),
        ];
        of_spreads(&mut points);
        let texts: Vec<_> = points.iter().map(|p| p.marks.first().map(|m| m.text.as_str())).collect();
        assert_eq!(texts[0], None);
        assert!(texts[1].unwrap().contains("1% from tcp's"), "{texts:?}");
        assert_eq!(texts[2], None);
        assert!(texts[3].unwrap().contains("50% around their median"), "{texts:?}");
    }

    #[test]
    fn marks_of_a_kind_are_said_once() {
        let mut all = Vec::new();
        merge(&mut all, vec![mark(MarkKind::Busy, "1".into()), mark(MarkKind::SharedCore, "2".into())]);
        merge(&mut all, vec![mark(MarkKind::Busy, "3".into())]);
        let texts: Vec<&str> = all.iter().map(|mark| mark.text.as_str()).collect();
        assert_eq!(texts, ["2", "3"]);
    }
}
