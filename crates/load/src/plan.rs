//! A time budget, and how a run of many measurements keeps to it.
//!
//! A [`Part`] states what it will measure. Before each part, a [`Pace`] gives it the longest timing with which all
//! remaining parts still fit, based on the time that earlier parts took. This file reads no clock.

use std::time::Duration;

use crate::job::{Job, LARGE};
use crate::measure::{Timing, syscall_window};

/// The default budget of `weft bench`: less than ten minutes, including the server's start and the report.
pub const FULL: Duration = Duration::from_secs(560);
/// The same for a quick run: less than a minute.
pub const QUICK: Duration = Duration::from_secs(56);

/// Time of a measurement beyond its timing, until it is known: clients start and stop, counters are read.
const STEP: Duration = Duration::from_millis(20);
/// Lowest rate, in bytes per second, at which files are created.
const MAKING: u64 = 250 << 20;
/// Time for the clients of one transport to connect, open their files and disconnect.
const ENTERING: Duration = Duration::from_millis(200);
/// Shortest counted time: less would show nothing.
const LEAST: Duration = Duration::from_millis(20);
/// Part of the budget that is reserved, in case a part takes longer than earlier ones.
const RESERVE: f64 = 0.05;

/// The cost of a part of a run, apart from the length of its measurements.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Part {
    /// Measurements of one repetition.
    pub measurements: u32,
    /// Done once: creating files, connecting clients.
    pub once: Duration,
    /// Done in each repetition besides the measurements: copying.
    pub each: Duration,
}

impl Part {
    /// The part of a job over this many transports.
    pub fn of(job: &Job, transports: usize) -> Part {
        let points = job.mixes.len() * job.sizes.len();
        Part {
            measurements: u32::try_from(points * transports).unwrap_or(u32::MAX),
            once: transfer(job.bytes()) + ENTERING * u32::try_from(transports).unwrap_or(u32::MAX),
            each: Duration::ZERO,
        }
    }

    fn takes(&self, chosen: &Chosen, step: Duration) -> Duration {
        let all = self.measurements.saturating_mul(chosen.repetitions);
        self.once + self.each * chosen.repetitions + (long(&chosen.timing) + step) * all
    }
}

/// Longest time for transferring this many bytes.
pub fn transfer(bytes: u64) -> Duration {
    Duration::from_secs_f64(bytes as f64 / MAKING as f64)
}

/// The planned time of one measurement.
fn long(timing: &Timing) -> Duration {
    let steady = timing.steady.map_or(Duration::ZERO, |steady| 3 * steady.window);
    timing.warm_up + steady + timing.duration + syscall_window(timing) + timing.cool_down
}

/// The timing and repetitions of a part.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Chosen {
    /// When to count.
    pub timing: Timing,
    /// How often each point is measured.
    pub repetitions: u32,
}

/// A budget that is being spent.
#[derive(Clone, Debug)]
pub struct Pace {
    budget: Duration,
    usual: Chosen,
    step: Duration,
}

impl Pace {
    /// `usual` is what each part gets if time permits.
    pub fn new(budget: Duration, usual: Chosen) -> Pace {
        Pace { budget, usual, step: STEP }
    }

    /// The timing for the first of `left` after `spent` has passed; never more than the usual one. If the time does
    /// not suffice for the shortest measurements, there are fewer repetitions, but each point is measured at least
    /// once.
    pub fn next(&self, spent: Duration, left: &[Part]) -> Chosen {
        let room = self.budget.mul_f64(1.0 - RESERVE).saturating_sub(spent);
        let fits =
            |chosen: &Chosen| left.iter().map(|part| part.takes(chosen, self.step)).sum::<Duration>() <= room;
        if fits(&self.usual) {
            return self.usual;
        }
        let least = (LEAST.as_secs_f64() / self.usual.timing.duration.as_secs_f64().max(1e-9)).min(1.0);
        for repetitions in (1..=self.usual.repetitions).rev() {
            let at = |factor: f64| Chosen { timing: scaled(&self.usual.timing, factor), repetitions };
            if !fits(&at(least)) {
                continue;
            }
            let (mut low, mut high) = (least, 1.0);
            // A thousandth of the usual timing is exact enough.
            for _ in 0..10 {
                let middle = f64::midpoint(low, high);
                if fits(&at(middle)) { low = middle } else { high = middle }
            }
            return at(low);
        }
        Chosen { timing: scaled(&self.usual.timing, least), repetitions: 1 }
    }

    /// How `chosen` falls short of the usual timing: "each measurement counts for 0.21 s instead of 0.50, with 2 of 3
    /// repetitions".
    pub fn shortened(&self, chosen: &Chosen) -> Option<String> {
        let seconds = |chosen: &Chosen| chosen.timing.duration.as_secs_f64();
        let fewer = match chosen.repetitions < self.usual.repetitions {
            true => format!(", with {} of {} repetitions", chosen.repetitions, self.usual.repetitions),
            false => String::new(),
        };
        (*chosen != self.usual).then(|| {
            let (now, usual) = (seconds(chosen), seconds(&self.usual));
            format!("each measurement counts for {now:.2} s instead of {usual:.2}{fewer}")
        })
    }

    /// A part with `chosen` took this long: the time of its measurements beyond their timing is expected of later
    /// ones.
    pub fn took(&mut self, part: &Part, chosen: &Chosen, took: Duration) {
        let all = part.measurements.saturating_mul(chosen.repetitions).max(1);
        self.step = took.saturating_sub(part.takes(chosen, Duration::ZERO)) / all;
    }
}

fn scaled(timing: &Timing, factor: f64) -> Timing {
    Timing {
        warm_up: timing.warm_up.mul_f64(factor),
        duration: timing.duration.mul_f64(factor),
        cool_down: timing.cool_down.mul_f64(factor),
        steady: timing.steady,
    }
}

/// What to measure of replication between two servers.
#[derive(Clone, Debug, PartialEq)]
pub struct Replication {
    /// Sizes of the durable writes, in bytes.
    pub sizes: Vec<u32>,
    /// Size of the volume for the initial copy, in bytes.
    pub copy_bytes: u32,
    /// The timing of writes.
    pub timing: Timing,
    /// How often each write and each copy is measured.
    pub repetitions: u32,
}

impl Replication {
    /// What `weft bench replica` measures, with the requested or the default volume size.
    pub fn new(quick: bool, copy_bytes: Option<u64>, chosen: Chosen) -> Result<Replication, String> {
        const KIB: u32 = 1 << 10;
        let sizes = if quick { vec![8 * KIB] } else { vec![4 * KIB, 8 * KIB, 64 * KIB, 256 * KIB] };
        let usual: u64 = if quick { 128 << 20 } else { 512 << 20 };
        let wanted = copy_bytes.unwrap_or(usual);
        let whole = wanted.is_multiple_of(KIB.into()) && wanted >= LARGE.into();
        let copy_bytes = u32::try_from(wanted).ok().filter(|_| whole);
        let copy_bytes = copy_bytes.ok_or_else(|| {
            format!("a volume to copy must have 16M to 4095M, in whole KiB, not {wanted} bytes")
        })?;
        Ok(Replication { sizes, copy_bytes, timing: chosen.timing, repetitions: chosen.repetitions })
    }

    /// Over this many transports; also writes to an unreplicated volume and to an asynchronously replicated one.
    pub fn part(&self, transports: usize) -> Part {
        let transports = u32::try_from(transports).unwrap_or(u32::MAX);
        let copy = transfer(self.copy_bytes.into()) + ENTERING;
        Part {
            measurements: self.sizes.len() as u32 * (transports + 2),
            // Both servers start, the volume is filled and copied once uncounted, groups are created.
            once: Duration::from_secs(2) + copy * 2 + ENTERING * (transports + 1),
            each: copy * transports,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::job::{Extent, paper};
    use crate::result::Picture;

    const MINUTE: Duration = Duration::from_secs(60);

    fn usual(quick: bool) -> Chosen {
        let duration = Duration::from_millis(if quick { 80 } else { 500 });
        let timing = Timing { warm_up: duration / 5, duration, cool_down: Duration::ZERO, steady: None };
        Chosen { timing, repetitions: 3 }
    }

    /// Everything that `weft bench all local` measures.
    fn all(quick: bool, transports: usize) -> Vec<Part> {
        let Chosen { timing, repetitions } = usual(quick);
        let pictures = [Picture::Latency, Picture::Smb, Picture::Table, Picture::Nfs];
        let jobs = pictures.iter().flat_map(|p| paper(*p, &Extent { quick, timing, repetitions }));
        let replication = Replication::new(quick, None, usual(quick)).unwrap();
        jobs.map(|job| Part::of(&job, transports)).chain([replication.part(transports)]).collect()
    }

    /// A run on a machine where each measurement takes `step` longer than its timing, and everything else as long as
    /// planned.
    fn run(quick: bool, transports: usize, step: Duration) -> (Duration, Vec<Chosen>) {
        let parts = all(quick, transports);
        let mut pace = Pace::new(if quick { QUICK } else { FULL }, usual(quick));
        let (mut spent, mut given) = (Duration::ZERO, Vec::new());
        for n in 0..parts.len() {
            let chosen = pace.next(spent, &parts[n..]);
            let took = parts[n].takes(&chosen, step);
            pace.took(&parts[n], &chosen, took);
            spent += took;
            given.push(chosen);
        }
        (spent, given)
    }

    #[test]
    fn all_pictures_take_less_than_ten_minutes_and_a_quick_look_less_than_one() {
        for transports in 1..=5 {
            for step in [1, 30, 60, 100].map(Duration::from_millis) {
                let (full, _) = run(false, transports, step);
                assert!(full < 10 * MINUTE, "{transports} transports, {step:?} a measurement: {full:?}");
                let (quick, _) = run(true, transports, step);
                assert!(quick < MINUTE, "quick, {transports} transports, {step:?} a measurement: {quick:?}");
            }
        }
    }

    #[test]
    fn on_a_machine_as_it_is_expected_every_measurement_has_its_usual_time() {
        let (_, given) = run(false, 3, STEP);
        assert!(given.iter().all(|chosen| *chosen == usual(false)), "{given:?}");
        assert_eq!(Pace::new(FULL, usual(false)).shortened(&usual(false)), None);
    }

    #[test]
    fn a_slow_machine_gets_shorter_measurements_and_then_fewer() {
        let (spent, given) = run(true, 3, Duration::from_millis(150));
        assert!(spent < MINUTE, "{spent:?}");
        let last = given.last().unwrap();
        assert!(last.timing.duration < usual(true).timing.duration || last.repetitions < 3, "{given:?}");
        let said = Pace::new(QUICK, usual(true)).shortened(last).unwrap();
        assert!(said.contains("instead of 0.08"), "{said}");
        // Hopeless, but every point is still measured.
        let (_, given) = run(true, 3, Duration::from_secs(2));
        assert!(given[1..].iter().all(|chosen| chosen.repetitions == 1), "{given:?}");
        assert!(given.iter().all(|chosen| chosen.timing.duration >= LEAST - Duration::from_micros(1)));
    }

    #[test]
    fn what_the_first_part_saved_the_others_have() {
        let parts = all(false, 5);
        let mut pace = Pace::new(FULL, usual(false));
        let before = pace.next(Duration::ZERO, &parts[1..]);
        pace.took(&parts[0], &before, parts[0].takes(&before, Duration::from_millis(1)));
        let after = pace.next(Duration::ZERO, &parts[1..]);
        assert!(after.timing.duration > before.timing.duration, "{before:?} {after:?}");
        assert_eq!((before.repetitions, after.repetitions), (3, 3));
    }

    #[test]
    fn a_volume_to_be_copied_has_a_size_that_a_result_can_name() {
        let size = |bytes| Replication::new(true, Some(bytes), usual(true)).map(|r| r.copy_bytes);
        assert_eq!(size(64 << 20), Ok(64 << 20));
        assert!(size(8 << 30).unwrap_err().contains("16M to 4095M"));
        assert!(size((64 << 20) + 1).is_err() && size(0).is_err());
    }
}
