//! Observes a run from outside: warm-up, waiting until steady, counting, cool-down; and what both ends and their
//! hosts did meanwhile.
//!
//! It runs in a thread of its own, so that the threads under load only do their operations. [`crate::run::drive`]
//! runs the operations.

use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use weft_machine::counters::Counter;
use weft_machine::rt;

use crate::result::{EndSample, Second};
use crate::run::Watch;
use crate::{cpu, host, memory};

/// How often the end of a run is checked.
const GLANCE: Duration = Duration::from_millis(20);

/// A window in which no operation finished is extended, up to this.
const EMPTY_AT_MOST: Duration = Duration::from_secs(30);

/// When to count.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Timing {
    /// Uncounted time at the beginning.
    pub warm_up: Duration,
    /// Counted time.
    pub duration: Duration,
    /// Uncounted time at the end.
    pub cool_down: Duration,
    /// If set, counting begins once the throughput is steady.
    pub steady: Option<Steady>,
}

/// A throughput is steady after three consecutive windows that all lie within this distance of their mean.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Steady {
    /// Percent of the mean.
    pub percent: f64,
    /// Length of a window.
    pub window: Duration,
    /// Counting begins after this in any case, and the result is marked.
    pub at_most: Duration,
}

/// The processes of a server on this host: itself and its children, because some servers fork for each connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Server {
    /// Its process id.
    pub pid: u32,
}

/// Clients that are observed together: here, or on other hosts.
pub trait Clients {
    /// Operations finished since the start.
    fn operations(&self) -> u64;
    /// Counting begins now.
    fn begin(&mut self);
    /// Counting ends now.
    fn end(&mut self);
    /// No operation starts from now on.
    fn stop(&mut self);
    /// Whether a client has failed, so that waiting is pointless.
    fn failed(&self) -> bool;
}

/// Threads of this process.
impl Clients for Vec<Arc<Watch>> {
    fn operations(&self) -> u64 {
        self.iter().map(|watch| watch.operations()).sum()
    }
    fn begin(&mut self) {
        self.iter().for_each(|watch| watch.count(Some(rt::now()), None));
    }
    fn end(&mut self) {
        self.iter().for_each(|watch| watch.count(None, Some(rt::now())));
    }
    fn stop(&mut self) {
        self.iter().for_each(|watch| watch.stop());
    }
    fn failed(&self) -> bool {
        false
    }
}

/// The measurements of a counted window.
#[derive(Clone, Debug)]
pub struct Window {
    /// Length of the window.
    pub seconds: f64,
    /// This process and its host.
    pub client: EndSample,
    /// The server, if it is on this host.
    pub server: Option<EndSample>,
    /// One entry per second.
    pub timeline: Vec<Second>,
    /// It ended early.
    pub interrupted: bool,
    /// Whether the throughput was steady; `None` if that was not requested.
    pub steady: Option<bool>,
    /// Cores of this host kept busy by processes other than client and server; `None` if unknown.
    pub others_busy_cores: Option<f64>,
    /// Bytes that this host read from disks.
    pub paged_in: u64,
}

/// All counters at one moment.
struct Moment {
    at: Instant,
    host: host::Counters,
    client: Duration,
    server: Option<Duration>,
    operations: u64,
}

/// CPU time of a server and its children.
pub fn server_cpu(server: Server) -> io::Result<Duration> {
    family(server.pid)?.into_iter().map(cpu::time_of).sum()
}

/// Resident memory of a server and its children; shared pages count for each.
pub fn server_memory(server: Server) -> io::Result<u64> {
    family(server.pid)?.into_iter().map(memory::resident).sum()
}

/// Opens a counter for every process of a server, or for this one; `None` if the system does not permit it.
fn counters(of: &[u32], open: fn(u32) -> io::Result<Counter>) -> Option<Vec<Counter>> {
    of.iter().map(|pid| open(*pid)).collect::<io::Result<_>>().ok()
}

fn counted(counters: &Option<Vec<Counter>>) -> Option<u64> {
    counters.as_ref()?.iter().map(|counter| counter.read().ok()).sum()
}

/// Whether cycles of this process can be counted; otherwise they are derived from its CPU time.
pub fn counts_cycles() -> bool {
    Counter::cycles(std::process::id()).is_ok()
}

/// Whether a file in `/proc` cannot be read because its process or thread has ended: the file is gone or, if already
/// open, reports ESRCH.
fn is_gone(e: &io::Error) -> bool {
    e.kind() == io::ErrorKind::NotFound || Errno::from_io_error(e) == Some(Errno::SRCH)
}

/// A process and its descendants.
fn family(pid: u32) -> io::Result<Vec<u32>> {
    let mut all = vec![pid];
    for thread in std::fs::read_dir(format!("/proc/{pid}/task"))? {
        let children = match std::fs::read_to_string(thread?.path().join("children")) {
            Ok(children) => children,
            // The thread has ended, or the kernel does not list children.
            Err(e) if is_gone(&e) => continue,
            Err(e) => return Err(e),
        };
        for child in children.split_whitespace().filter_map(|child| child.parse().ok()) {
            match family(child) {
                Ok(below) => all.extend(below),
                Err(e) if is_gone(&e) => {}
                Err(e) => return Err(e),
            }
        }
    }
    Ok(all)
}

impl Moment {
    fn now(clients: &dyn Clients, server: Option<Server>) -> io::Result<Moment> {
        Ok(Moment {
            host: host::Counters::now()?,
            client: cpu::time_of(std::process::id())?,
            server: server.map(server_cpu).transpose()?,
            operations: clients.operations(),
            at: Instant::now(),
        })
    }
}

/// Conducts one run of `clients`, whose operations have `size` bytes. `stopped` ends it early; `tick` is called each
/// second.
pub fn conduct(
    clients: &mut dyn Clients,
    size: u32,
    timing: &Timing,
    server: Option<Server>,
    stopped: &dyn Fn() -> bool,
    tick: &mut dyn FnMut(&Second),
) -> io::Result<Window> {
    let outcome = watched(clients, size, timing, server, stopped, tick);
    // Even if counters could not be read, because nothing else would stop them.
    clients.stop();
    outcome
}

fn watched(
    clients: &mut dyn Clients,
    size: u32,
    timing: &Timing,
    server: Option<Server>,
    stopped: &dyn Fn() -> bool,
    tick: &mut dyn FnMut(&Second),
) -> io::Result<Window> {
    wait(clients, timing.warm_up, stopped);
    let steady = timing.steady.map(|steady| become_steady(clients, steady, stopped));
    let mine = [std::process::id()];
    let theirs = server.map(|server| family(server.pid)).transpose()?.unwrap_or_default();
    let cycles = [counters(&mine, Counter::cycles), counters(&theirs, Counter::cycles)];
    let begun = Moment::now(clients, server)?;
    clients.begin();
    let mut timeline = Vec::new();
    let mut last = Moment::now(clients, server)?;
    let mut interrupted = false;
    // Not before an operation has finished: an empty window shows nothing.
    let empty = |clients: &dyn Clients| {
        clients.operations() == begun.operations && begun.at.elapsed() < EMPTY_AT_MOST
    };
    while !interrupted && (begun.at.elapsed() < timing.duration || empty(clients)) {
        let left = timing.duration.saturating_sub(begun.at.elapsed()).max(GLANCE);
        interrupted = wait(clients, left.min(Duration::from_secs(1)), stopped);
        let now = Moment::now(clients, server)?;
        let seconds = now.at.duration_since(last.at).as_secs_f64();
        // A short remainder at the end is not a second.
        if seconds > 0.5 {
            let operations = now.operations.saturating_sub(last.operations) as f64;
            let cores = |now: Duration, then: Duration| now.saturating_sub(then).as_secs_f64() / seconds;
            let second = Second {
                at: now.at.duration_since(begun.at).as_secs_f64(),
                throughput: operations * f64::from(size) / seconds,
                iops: operations / seconds,
                client_cores: Some(cores(now.client, last.client)),
                server_cores: now.server.zip(last.server).map(|(now, last)| cores(now, last)),
                client_memory_bytes: memory::resident(std::process::id()).ok(),
                server_memory_bytes: server.and_then(|server| server_memory(server).ok()),
            };
            tick(&second);
            timeline.push(second);
            last = now;
        }
    }
    clients.end();
    let mut cycles = cycles.map(|counters| counted(&counters));
    if cycles.iter().any(Option::is_none) {
        // Counted cycles of one end and estimated ones of the other cannot be added.
        cycles = [None, None];
    }
    let ended = Moment::now(clients, server)?;
    let operations = ended.operations.saturating_sub(begun.operations);
    // After the window, because counting slows every call.
    let calls = if interrupted { [None, None] } else { syscalls(clients, &theirs, timing, stopped) };
    let calls = calls.map(|each| each.map(|each| (each * operations as f64).round() as u64));
    wait(clients, timing.cool_down, stopped);
    let host = ended.host.since(&begun.host);
    let client_cpu = ended.client.saturating_sub(begun.client);
    let server_cpu = ended.server.zip(begun.server).map(|(now, then)| now.saturating_sub(then));
    let seconds = ended.at.duration_since(begun.at).as_secs_f64();
    let known = (client_cpu + server_cpu.unwrap_or_default()).as_secs_f64() / seconds.max(1e-9);
    let of_host = |end: usize, cpu, memory_bytes| EndSample {
        cpu,
        cycles: cycles[end],
        syscalls: calls[end],
        idle_percent: host.idle_percent.clone(),
        interrupts: Some(host.interrupts),
        softirqs: Some(host.softirqs),
        context_switches: Some(host.context_switches),
        memory_bytes,
        ..EndSample::default()
    };
    Ok(Window {
        seconds,
        client: of_host(0, Some(client_cpu), memory::resident(std::process::id()).ok()),
        server: server.map(|server| of_host(1, server_cpu, server_memory(server).ok())),
        timeline,
        interrupted,
        steady,
        others_busy_cores: host.busy_cores.map(|busy| (busy - known).max(0.0)),
        paged_in: host.paged_in,
    })
}

/// How long system calls are counted, after the measured window.
pub(crate) fn syscall_window(timing: &Timing) -> Duration {
    (timing.duration / 5).min(Duration::from_millis(100))
}

/// System calls of both ends per operation, counted in a window of their own; `None` if not permitted, or if no
/// operation finished.
fn syscalls(
    clients: &dyn Clients,
    server: &[u32],
    timing: &Timing,
    stopped: &dyn Fn() -> bool,
) -> [Option<f64>; 2] {
    let counters = [counters(&[std::process::id()], Counter::syscalls), counters(server, Counter::syscalls)];
    if counters[0].is_none() {
        return [None, None];
    }
    let before = clients.operations();
    wait(clients, syscall_window(timing), stopped);
    let operations = clients.operations().saturating_sub(before);
    let each =
        |counters: &Option<Vec<Counter>>| counted(counters).map(|calls| calls as f64 / operations as f64);
    if operations == 0 { [None, None] } else { counters.each_ref().map(each) }
}

/// Waits, unless stopped; returns whether it was.
fn wait(clients: &dyn Clients, time: Duration, stopped: &dyn Fn() -> bool) -> bool {
    let end = Instant::now() + time;
    loop {
        if stopped() || clients.failed() {
            return true;
        }
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return false;
        }
        std::thread::sleep(left.min(GLANCE));
    }
}

/// Waits until the throughput is steady; returns whether it is.
fn become_steady(clients: &dyn Clients, steady: Steady, stopped: &dyn Fn() -> bool) -> bool {
    let (begun, mut before, mut rates) = (Instant::now(), clients.operations(), Vec::new());
    loop {
        let at = Instant::now();
        if wait(clients, steady.window, stopped) {
            return false;
        }
        let now = clients.operations();
        rates.push((now - before) as f64 / at.elapsed().as_secs_f64());
        before = now;
        if is_steady(&rates, steady.percent) {
            return true;
        }
        if begun.elapsed() >= steady.at_most {
            return false;
        }
    }
}

/// Whether the last three of `rates` lie close together.
fn is_steady(rates: &[f64], percent: f64) -> bool {
    let Some(last) = rates.last_chunk::<3>() else { return false };
    let mean = last.iter().sum::<f64>() / 3.0;
    mean > 0.0 && last.iter().all(|rate| (rate - mean).abs() <= mean * percent / 100.0)
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    /// Each query returns more operations; records the calls that it gets.
    #[derive(Default)]
    struct Told {
        asked: Cell<u64>,
        log: Vec<&'static str>,
        fails_at: Option<u64>,
    }

    impl Clients for Told {
        fn operations(&self) -> u64 {
            self.asked.set(self.asked.get() + 1);
            self.asked.get() * 1000
        }
        fn begin(&mut self) {
            self.log.push("begin");
        }
        fn end(&mut self) {
            self.log.push("end");
        }
        fn stop(&mut self) {
            self.log.push("stop");
        }
        fn failed(&self) -> bool {
            self.fails_at.is_some_and(|at| self.asked.get() >= at)
        }
    }

    const TIMING: Timing = Timing {
        warm_up: Duration::from_millis(1),
        duration: Duration::from_millis(5),
        cool_down: Duration::from_millis(1),
        steady: None,
    };

    #[test]
    fn a_run_is_counted_between_warm_up_and_cool_down() {
        let mut clients = Told::default();
        let server = Some(Server { pid: std::process::id() });
        let window = conduct(&mut clients, 4096, &TIMING, server, &|| false, &mut |_| {}).unwrap();
        assert_eq!(clients.log, ["begin", "end", "stop"]);
        assert!(window.seconds >= 0.005 && !window.interrupted && window.steady.is_none());
        assert!(window.client.interrupts.is_some() && window.client.memory_bytes.is_some_and(|b| b > 0));
        assert!(window.server.is_some_and(|server| server.cpu.is_some()));
    }

    #[test]
    fn a_user_who_has_enough_and_a_client_that_fails_end_it() {
        let long = Timing { duration: Duration::from_secs(3600), ..TIMING };
        let mut clients = Told::default();
        let window = conduct(&mut clients, 4096, &long, None, &|| true, &mut |_| {}).unwrap();
        assert!(window.interrupted && window.server.is_none());
        let mut clients = Told { fails_at: Some(1), ..Told::default() };
        assert!(conduct(&mut clients, 4096, &long, None, &|| false, &mut |_| {}).unwrap().interrupted);
        assert_eq!(clients.log, ["begin", "end", "stop"]);
    }

    #[test]
    fn steady_is_three_windows_that_lie_together() {
        assert!(!is_steady(&[100.0, 100.0], 5.0));
        assert!(is_steady(&[5.0, 96.0, 100.0, 104.0], 5.0));
        assert!(!is_steady(&[100.0, 100.0, 120.0], 5.0));
        assert!(!is_steady(&[0.0, 0.0, 0.0], 5.0), "nothing moves");
    }

    #[test]
    fn a_server_is_counted_with_its_children() {
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let all = family(std::process::id()).unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(all.contains(&child.id()), "{all:?}");
    }
}
