//! Reports a core that has not returned to its loop: a task that computes, loops or blocks delays all connections of
//! its core.
//!
//! Each core updates its [`Beat`] once per turn of its loop; a thread checks the beats a few times a second. This file
//! owns the beats and the thread; it ends and moves nothing, and only writes to the log.
//!
//! It counts checks, not time: a stopped process, or a host that slept, is no stuck core.

use std::panic::Location;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicPtr, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError, mpsc};
use std::thread::JoinHandle;
use std::time::Duration;

/// From one check of the beats to the next.
const LOOK_EVERY: Duration = Duration::from_millis(250);
/// A core is reported after this many checks of an unchanged beat: one second.
const LOOKS_UNTIL_REPORT: u32 = 4;
/// A core that stays away is reported again after twice as many checks, but at the latest after this many: one minute.
const LOOKS_BETWEEN_REPORTS: u32 = 240;

/// The state that one core publishes. Only the core writes, but for `away`.
#[derive(Debug)]
pub(super) struct Beat {
    /// Changes with each turn of the loop; odd while the core runs, even while it sleeps in the kernel.
    stamp: AtomicU64,
    /// Where the last polled task was spawned; null before the first.
    task: AtomicPtr<Location<'static>>,
    /// The thread id, as in /proc.
    thread: AtomicI32,
    /// The watchdog has reported the core, and it is not back.
    away: AtomicBool,
}

/// The state of a core that has not returned.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Seen {
    pub(super) stamp: u64,
    pub(super) task: Option<&'static Location<'static>>,
}

impl Beat {
    const fn new() -> Beat {
        Beat {
            stamp: AtomicU64::new(0),
            task: AtomicPtr::new(ptr::null_mut()),
            thread: AtomicI32::new(0),
            away: AtomicBool::new(false),
        }
    }

    /// A beat for a new core. Beats live as long as the process, and are reused.
    pub(super) fn take() -> &'static Beat {
        let free = FREE.lock().unwrap_or_else(PoisonError::into_inner).pop();
        let beat = free.unwrap_or_else(|| Box::leak(Box::new(Beat::new())));
        beat.stamp.store(0, Ordering::Relaxed);
        beat.task.store(ptr::null_mut(), Ordering::Relaxed);
        beat.away.store(false, Ordering::Relaxed);
        beat
    }

    /// The core has ended, and nobody checks its beat any more.
    pub(super) fn give_back(&'static self) {
        FREE.lock().unwrap_or_else(PoisonError::into_inner).push(self);
    }

    /// The core of this thread starts.
    pub(super) fn begin(&self) {
        self.thread.store(rustix::thread::gettid().as_raw_nonzero().get(), Ordering::Relaxed);
    }

    /// Another turn of the loop begins: the only store on the hot path.
    pub(super) fn turn(&self) {
        self.stamp.store(self.stamp.load(Ordering::Relaxed).wrapping_add(2) | 1, Ordering::Relaxed);
    }

    /// The core goes to sleep.
    pub(super) fn sleeps(&self) {
        self.stamp.store(self.stamp.load(Ordering::Relaxed) & !1, Ordering::Relaxed);
    }

    /// A task is about to be polled.
    pub(super) fn runs(&self, spawned: &'static Location<'static>) {
        self.task.store(ptr::from_ref(spawned).cast_mut(), Ordering::Relaxed);
    }

    pub(super) fn observe(&self) -> Seen {
        let task = self.task.load(Ordering::Relaxed);
        // SAFETY: null, or the argument of `runs`: a shared reference that is valid forever.
        let task = unsafe { task.as_ref() };
        Seen { stamp: self.stamp.load(Ordering::Relaxed), task }
    }

    /// Whether the core was reported as one that does not return, and has not returned since.
    pub(super) fn is_away(&self) -> bool {
        self.away.load(Ordering::Relaxed)
    }

    /// What the kernel reports about the thread: "running", or the number of a system call.
    fn doing(&self) -> String {
        let path = format!("/proc/self/task/{}/syscall", self.thread.load(Ordering::Relaxed));
        match std::fs::read_to_string(path) {
            Ok(line) => match line.split_whitespace().next() {
                Some("running") | None => "running".into(),
                Some(number) => format!("in system call {number}"),
            },
            Err(_) => "unknown".into(),
        }
    }
}

static FREE: Mutex<Vec<&'static Beat>> = Mutex::new(Vec::new());

/// The beat of a thread that belongs to no set of cores; nobody checks it.
pub(super) static NO_CORE: Beat = Beat::new();

/// The observations of one core.
#[derive(Debug, Default)]
pub(super) struct Patience {
    stamp: u64,
    /// Checks in a row that found the same beat.
    looks: u32,
    /// The number of checks at which it is reported next.
    report_at: u32,
}

/// What to log about a core.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// Nothing.
    Fine,
    /// It has not returned for this long.
    Away(Duration),
    /// It had been reported, and returned after this long.
    Back(Duration),
}

impl Patience {
    /// Evaluates the next check.
    pub(super) fn judge(&mut self, stamp: u64) -> Verdict {
        let awake = stamp & 1 == 1;
        if awake && stamp == self.stamp {
            self.looks += 1;
            self.report_at = self.report_at.max(LOOKS_UNTIL_REPORT);
            if self.looks < self.report_at {
                return Verdict::Fine;
            }
            self.report_at = self.looks + self.looks.min(LOOKS_BETWEEN_REPORTS);
            return Verdict::Away(LOOK_EVERY * self.looks);
        }
        let away = self.looks;
        *self = Patience { stamp, ..Patience::default() };
        if away >= LOOKS_UNTIL_REPORT { Verdict::Back(LOOK_EVERY * away) } else { Verdict::Fine }
    }
}

/// The checking thread. Dropping it ends the thread.
pub(super) struct Watchdog {
    stop: Option<mpsc::Sender<()>>,
    handle: Option<JoinHandle<()>>,
}

impl Watchdog {
    /// Watches cores, each with its name.
    pub(super) fn start(name: &str, cores: Vec<(String, &'static Beat)>) -> std::io::Result<Watchdog> {
        let (stop, stopped) = mpsc::channel::<()>();
        let watch = move || {
            let mut cores: Vec<_> =
                cores.into_iter().map(|(name, beat)| (name, beat, Patience::default())).collect();
            while stopped.recv_timeout(LOOK_EVERY) == Err(mpsc::RecvTimeoutError::Timeout) {
                for (name, beat, patience) in &mut cores {
                    let seen = beat.observe();
                    tell(name, patience.judge(seen.stamp), seen.task, beat);
                }
            }
        };
        let handle = std::thread::Builder::new().name(format!("{name}-watchdog")).spawn(watch)?;
        Ok(Watchdog { stop: Some(stop), handle: Some(handle) })
    }
}

impl Drop for Watchdog {
    fn drop(&mut self) {
        self.stop = None;
        // The thread only checks and logs.
        let _ = self.handle.take().map(JoinHandle::join);
    }
}

fn tell(name: &str, verdict: Verdict, task: Option<&Location<'_>>, beat: &Beat) {
    match verdict {
        Verdict::Fine => {}
        Verdict::Away(away) => {
            beat.away.store(true, Ordering::Relaxed);
            let task = task.map_or_else(|| "none yet".into(), ToString::to_string);
            tracing::error!(
                "core {name} has not returned to its loop for {:.1} s, and its connections wait; last task spawned at {task}, \
                 thread {}",
                away.as_secs_f32(),
                beat.doing()
            );
        }
        Verdict::Back(away) => {
            beat.away.store(false, Ordering::Relaxed);
            tracing::warn!("core {name} returned to its loop after {:.1} s", away.as_secs_f32());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::Cores;
    use super::*;

    #[test]
    fn a_core_is_reported_after_a_second_then_ever_more_rarely_and_when_it_is_back() {
        let mut patience = Patience::default();
        let reports = |patience: &mut Patience, looks: u32| -> Vec<(u32, Duration)> {
            let away = |look| match patience.judge(7) {
                Verdict::Away(away) => Some((look, away)),
                Verdict::Fine => None,
                Verdict::Back(_) => panic!("it stays away"),
            };
            (0..=looks).filter_map(away).collect()
        };
        let seconds = Duration::from_secs;
        let told = reports(&mut patience, 1000);
        assert_eq!(told[..4], [(4, seconds(1)), (8, seconds(2)), (16, seconds(4)), (32, seconds(8))]);
        let gaps: Vec<_> = told.windows(2).map(|pair| pair[1].0 - pair[0].0).collect();
        assert_eq!(gaps[6..], [240; 3], "once a minute in the end");
        assert_eq!(patience.judge(9), Verdict::Back(seconds(250)));
        assert_eq!(patience.judge(9), Verdict::Fine);
        assert_eq!(patience.judge(11), Verdict::Fine);
    }

    #[test]
    fn a_core_that_sleeps_or_works_is_fine() {
        let mut patience = Patience::default();
        for _ in 0..100 {
            assert_eq!(patience.judge(8), Verdict::Fine, "asleep");
        }
        for turn in 0..100 {
            assert_eq!(patience.judge(9 + 2 * turn), Verdict::Fine, "at work");
        }
    }

    #[test]
    fn new_work_passes_by_a_core_that_does_not_return_until_it_is_back() {
        let cores = Cores::start(3, "passed-by").unwrap();
        let (entered, has_entered) = mpsc::channel();
        let (release, released) = mpsc::channel::<()>();
        cores.run(1, move || async move {
            entered.send(()).unwrap();
            // What no task may do: block its core.
            released.recv().unwrap();
        });
        has_entered.recv().unwrap();
        let beat = cores.beats()[1];
        while !beat.is_away() {
            std::thread::yield_now();
        }
        let turns: Vec<_> = (0..6).map(|_| cores.next()).collect();
        assert!(!turns.contains(&1), "{turns:?}");
        assert!(turns.contains(&0) && turns.contains(&2), "{turns:?}");
        release.send(()).unwrap();
        while beat.is_away() {
            std::thread::yield_now();
        }
        let mut turns: Vec<_> = (0..3).map(|_| cores.next()).collect();
        turns.sort_unstable();
        assert_eq!(turns, [0, 1, 2], "it takes its turn again");
    }

    #[test]
    fn a_core_that_does_not_come_back_is_seen_with_the_task_that_keeps_it() {
        let cores = Cores::start(1, "watched").unwrap();
        let beat = cores.beats()[0];
        let (entered, has_entered) = mpsc::channel();
        let (release, released) = mpsc::channel::<()>();
        let line = line!() + 1;
        cores.run(0, move || async move {
            entered.send(()).unwrap();
            // What no task may do: block its core.
            released.recv().unwrap();
        });
        has_entered.recv().unwrap();
        let seen = beat.observe();
        assert_eq!(seen.stamp & 1, 1, "awake");
        assert_eq!(beat.observe().stamp, seen.stamp, "and not in its loop");
        let task = seen.task.unwrap();
        assert_eq!((task.file(), task.line()), (file!(), line));
        release.send(()).unwrap();
        while beat.observe().stamp == seen.stamp {
            std::thread::yield_now();
        }
    }
}
