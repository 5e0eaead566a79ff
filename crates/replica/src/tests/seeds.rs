//! Everything at once, from one number: modes, sizes, faults and their moments follow from the seed.
//!
//! What is checked: a source that comes back holds all that it answered; a destination that calls itself consistent is
//! what the source once was, all volumes of the group at the same moment; a write that was answered while the source
//! said that it was protected is on a destination that is promoted; nothing that was answered is given up without a
//! word; and when the faults stop, both sides become equal, and a comparison finds that, or finds what a disk has
//! changed by itself.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use weft_machine::rt;
use weft_machine::sim::{Rng, Sim, with_rng};

use super::world::{ALIVE, Start, World};
use crate::error::Error;
use crate::rescue;
use crate::source::{Config, First, OnFull, OnLoss, Source};
use crate::status::{Mode, Phase, Role};

/// How many seeds are run: an eighth of a second of one core each in the test profile. `WEFT_REPLICA_SEEDS` says
/// otherwise; of what `WEFT_SEEDS` says to all simulations (CI: 4,000) a twentieth is run here.
const SEEDS: u64 = 200;
const SHARE: u64 = 20;

/// How often a source came back with less than its copy, was superseded by one that had more, and by one that had what
/// the source had written anew.
static AHEAD: [AtomicU64; 3] = [const { AtomicU64::new(0) }; 3];

fn start(rng: &mut Rng) -> Start {
    let members = 1 + rng.below(3);
    let sizes = (0..members).map(|_| rng.within(1..=4) * (48 << 10)).collect();
    let log = |rng: &mut Rng| rng.within(64..=512) * 1024;
    let mode = if rng.below(3) > 0 { Mode::Synchronous } else { Mode::Asynchronous };
    Start {
        sizes,
        log_bytes: vec![log(rng), log(rng)],
        mode,
        config: Config {
            memory_bytes: 32 << 10,
            on_loss: if rng.below(2) == 0 { OnLoss::Wait } else { OnLoss::Continue },
            on_full: if rng.below(3) > 0 { OnFull::Slow } else { OnFull::Resync },
            retry: Duration::from_millis(20),
            timeout: Duration::from_millis(500),
            find_zeroes: rng.below(2) == 0,
            ..Config::default()
        },
        slow_disk: Duration::from_micros([20, 200, 2000][rng.below(3)]),
        slow_cable: Duration::from_micros([10, 100, 3000][rng.below(3)]),
        filled: rng.within(0..=200_000),
        same: rng.below(3) == 0,
    }
}

struct Story {
    world: World,
    source: usize,
    copy: usize,
    tag: u64,
}

impl Story {
    fn write(&self) {
        let (writers, pause) = with_rng(|rng| (1 + rng.below(4), [1000, 4000, 10_000][rng.below(3)]));
        (0..writers).for_each(|_| self.world.write_on(self.source, Duration::from_micros(pause)));
    }

    /// The source dies: half of the time when its copy has something that it does not have yet, if that happens soon.
    async fn kill_source(&self) {
        let both = self.world.running(self.source, self.copy);
        if let Some((source, copy)) = both.filter(|_| with_rng(|rng| rng.below(2) == 0)) {
            for _ in 0..1000 {
                if copy.status().consistent && copy.status().last > source.status().last {
                    break;
                }
                rt::sleep(Duration::from_micros(50)).await;
            }
        }
        self.world.kill(self.source);
    }

    async fn restart_source(&mut self) {
        self.kill_source().await;
        self.nap(30).await;
        let source = self.world.start_source(self.source).await;
        let copy = self.world.running(self.source, self.copy);
        let ahead = copy.is_some_and(|(_, copy)| copy.status().last > source.status().last);
        AHEAD[0].fetch_add(ahead.into(), Ordering::Relaxed);
        self.world.ship(self.source, 0, self.copy);
        self.write();
    }

    async fn restart_copy(&mut self) {
        self.world.kill(self.copy);
        self.nap(30).await;
        self.world.start_destination(self.copy).await;
    }

    async fn nap(&self, most_ms: u64) {
        rt::sleep(Duration::from_micros(with_rng(|rng| rng.within(0..=most_ms * 1000)))).await;
    }

    /// The source dies, the destination takes over, and the source comes back.
    async fn fail_over(&mut self) {
        let partition = with_rng(|rng| rng.below(3) == 0);
        if partition {
            // It lives on, and does not know.
            self.world.cut();
            self.nap(50).await;
        } else {
            self.kill_source().await;
        }
        if with_rng(|rng| rng.below(3) == 0) {
            // The power fails in both houses.
            self.restart_copy().await;
        }
        let copy = self.world.destination(self.copy);
        self.tag += 1;
        let promoted = copy.promote(self.tag, ALIVE).await;
        let mut had_more;
        let era = match promoted {
            Ok(era) => era,
            Err(e) => {
                assert!(!copy.status().consistent, "{e}");
                // Nobody takes over: the source comes back, or is reached again.
                self.world.heal();
                if partition {
                    return;
                }
                self.world.start_source(self.source).await;
                self.world.ship(self.source, 0, self.copy);
                return self.write();
            }
        };
        {
            let mut model = self.world.model.borrow_mut();
            let eras = copy.eras();
            if model.has_lost(&eras[..eras.len() - 1], era.after).is_some() {
                // What the old source writes from now on never happened.
                AHEAD[2].fetch_add(1, Ordering::Relaxed);
                if partition {
                    super::bury(self.world.source(self.source));
                }
            }
            had_more = model.promoted(&eras, era.after);
            let volumes = model.volumes_at(era.after);
            self.world.compare(self.copy, &volumes, "what was promoted is no prefix");
            let lost = model.protected.range(era.after + 1..).next().copied();
            assert_eq!(lost, None, "a protected write is not on the survivor, which has {}", era.after);
        }
        // The old one comes back, or is still there.
        if !partition || with_rng(|rng| rng.below(2) == 0) {
            self.world.kill(self.source);
            let old = self.world.open_source(self.source).await;
            AHEAD[1].fetch_add((old.status().last < era.after).into(), Ordering::Relaxed);
        }
        had_more |= self.world.model.borrow().answered.range(era.after + 1..).next().is_some();
        self.world.kill(self.copy);
        std::mem::swap(&mut self.source, &mut self.copy);
        self.world.cable.up.set(true);
        let old = self.world.source(self.copy);
        self.world.model.borrow_mut().learn();
        // Until it is told, the old one may go on writing: what it places is no part of the history any more.
        let new = self.world.open_source(self.source).await;
        self.world.ship(self.copy, 0, self.source);
        self.world.until("the old source is told", || old.status().last_error.is_some()).await;
        let phase = old.status().peers[0].phase;
        let answered_more =
            had_more || self.world.model.borrow().answered.range(era.after + 1..).next().is_some();
        assert!(
            phase == Phase::SplitBrain || (phase == Phase::Superseded && !answered_more),
            "{phase:?}, though something was answered behind {}",
            era.after
        );
        old.demote().await.expect("it gives up");
        self.world.kill(self.copy);
        self.world.model.borrow_mut().forget_after(era.after);
        self.world.add_peer(&new, "old", First::Partner).await;
        self.world.start_destination(self.copy).await;
        self.world.ship(self.source, 0, self.copy);
        self.write();
    }

    /// The destination comes back, and finds that a record in the middle of its log is gone.
    async fn ruin_copy(&mut self) {
        self.world.kill(self.copy);
        let ruined = self.world.ruin_log(self.copy);
        self.nap(30).await;
        let copy = self.world.start_destination(self.copy).await;
        if let Some(first) = ruined {
            let status = copy.status();
            assert!(
                !status.consistent && status.last == first - 1,
                "{first} is gone, and it says {status:?}"
            );
        }
        // A sector that cannot be read where the log ends would be damage each time.
        self.world.nodes[self.copy].journal.mend();
    }

    /// The source comes back, and finds that a record in the middle of its log is gone: it does not go on as if nothing
    /// had happened. The destination takes over where it can.
    async fn ruin_source(&mut self) {
        self.world.kill(self.source);
        if self.world.ruin_log(self.source).is_none() {
            return self.restart_source().await;
        }
        let refused = Source::open(self.world.side(self.source), self.world.config.clone()).await;
        assert!(matches!(refused, Err(Error::Log(_))), "it is opened, though its log is damaged");
        let copy = self.world.destination(self.copy);
        self.tag += 1;
        let era = match copy.promote(self.tag, ALIVE).await {
            Ok(era) => era,
            Err(e) => {
                assert!(!copy.status().consistent, "{e}");
                // Nobody has everything; but the disk is read after all.
                self.world.mend_log(self.source);
                return self.restart_source().await;
            }
        };
        {
            let mut model = self.world.model.borrow_mut();
            model.promoted(&copy.eras(), era.after);
            let volumes = model.volumes_at(era.after);
            self.world.compare(self.copy, &volumes, "what was promoted is no prefix");
            let lost = model.protected.range(era.after + 1..).next().copied();
            assert_eq!(lost, None, "a protected write is not on the survivor, which has {}", era.after);
            model.forget_after(era.after);
        }
        rescue::give_up(&self.world.side(self.source)).await.expect("it gives up");
        self.world.kill(self.copy);
        self.world.kill(self.source);
        std::mem::swap(&mut self.source, &mut self.copy);
        let new = self.world.start_source(self.source).await;
        self.world.add_peer(&new, "old", First::Partner).await;
        self.world.start_destination(self.copy).await;
        self.world.nodes[self.copy].journal.mend();
        self.world.ship(self.source, 0, self.copy);
        self.write();
    }

    /// The roles are exchanged, both sides being well.
    async fn switch(&mut self) {
        let source = self.world.source(self.source);
        self.tag += 1;
        let switched = source.switch(0, self.tag).await;
        if let Err(Error::State(_) | Error::NoPeer(_)) = switched
            && self.world.role(self.source).await == Role::Source
        {
            return;
        }
        // Whatever was answered: there are not two sources.
        self.world.kill(self.source);
        if self.world.role(self.source).await == Role::Source {
            // It died before it gave up.
            self.world.start_source(self.source).await;
            self.world.ship(self.source, 0, self.copy);
            return self.write();
        }
        // Where it says that it was done, it was.
        assert!(switched.is_err() || self.world.role(self.copy).await == Role::Source);
        self.world.kill(self.copy);
        if self.world.role(self.copy).await == Role::Destination {
            self.world
                .start_destination(self.copy)
                .await
                .promote(self.tag + 500, ALIVE)
                .await
                .expect("all is there");
            self.world.kill(self.copy);
        }
        std::mem::swap(&mut self.source, &mut self.copy);
        let new = self.world.start_source(self.source).await;
        self.world.add_peer(&new, "old", First::Partner).await;
        self.world.start_destination(self.copy).await;
        self.world.ship(self.source, 0, self.copy);
        self.write();
    }

    /// The volumes grow while they are written to: as a rule the destination's first.
    async fn grow(&mut self) {
        let source = self.world.source(self.source);
        let mut sizes = source.status().sizes;
        let member = with_rng(|rng| rng.below(sizes.len()));
        sizes[member] += with_rng(|rng| rng.within(1..=200)) * 512;
        let late = with_rng(|rng| rng.below(4) == 0);
        if !late {
            self.world.lengthen(self.copy, &sizes);
            self.nap(20).await;
        }
        self.world.lengthen(self.source, &sizes);
        let answer = Rc::new(RefCell::new(None));
        {
            let (source, answer, sizes) = (source.clone(), answer.clone(), sizes.clone());
            let task = async move {
                let grown = source.grow(&sizes).await;
                answer.replace(Some(grown));
            };
            rt::spawn(task).detach();
        }
        // While it is at it, or a moment later, something else happens, or nothing.
        let chance = with_rng(|rng| rng.below(6));
        if chance > 0 {
            self.nap(6).await;
        }
        match chance {
            1 => self.restart_copy().await,
            2 => self.restart_source().await,
            3 => self.switch().await,
            4 => self.fail_over().await,
            _ => {}
        }
        if chance < 2 || chance == 5 {
            self.world.until("it has grown", || answer.borrow().is_some()).await;
        }
        match &*answer.borrow() {
            Some(Ok(())) if chance != 4 => {
                let now = self.world.source(self.source).status().sizes;
                assert_eq!(now, sizes, "it has grown, and forgotten it");
                self.world.learn_sizes(self.source);
                self.write();
            }
            // It died; or it went on with it as a source that had been superseded.
            None | Some(Ok(())) => {}
            Some(Err(Error::State(_) | Error::Halted(_))) if chance == 3 || chance == 4 => {}
            Some(Err(e)) => panic!("it has not grown: {e}"),
        }
        if late {
            self.nap(100).await;
            [0, 1].into_iter().for_each(|n| self.world.lengthen(n, &sizes));
        }
    }

    async fn something(&mut self) {
        match with_rng(|rng| rng.below(17)) {
            0 | 1 => self.restart_copy().await,
            2 => self.restart_source().await,
            3 => {
                self.kill_source().await;
                self.restart_copy().await;
                self.world.start_source(self.source).await;
                self.world.ship(self.source, 0, self.copy);
                self.write();
            }
            4 => {
                self.world.cut();
                self.nap(400).await;
                self.world.heal();
            }
            5 => {
                self.world.cut();
                self.world.heal();
            }
            6 => {
                let source = self.world.source(self.source);
                source.suspend(0).await.expect("it is suspended");
                self.nap(200).await;
                source.resume(0).await.expect("it is resumed");
            }
            7 => {
                let source = self.world.source(self.source);
                // Faults may interrupt it; what it finds, while nothing rots, is nothing.
                if let Ok(verified) = source.verify(0, false).await {
                    assert_eq!(verified.different, 0, "they differ while the destination follows");
                }
            }
            8 => {
                // Refused while a resync is under way.
                match self.world.check_snapshot(self.copy).await {
                    Ok(()) | Err(Error::State(_)) => {}
                    Err(e) => panic!("{e}"),
                }
            }
            9 => self.switch().await,
            10 => self.ruin_copy().await,
            11 => self.ruin_source().await,
            12..=14 => self.grow().await,
            _ => self.fail_over().await,
        }
    }
}

async fn story(seed: u64) {
    let start = with_rng(start);
    let first = if start.same || with_rng(|rng| rng.below(2) == 0) { First::Seeded } else { First::Copy };
    let world = World::new(start).await;
    let mut story = Story { world, source: 0, copy: 1, tag: seed.wrapping_mul(1 << 16) };
    let source = story.world.start_source(0).await;
    story.world.add_peer(&source, "copy", first).await;
    story.world.start_destination(1).await;
    story.world.ship(0, 0, 1);
    drop(source);
    story.write();
    story.world.states_rot.set(with_rng(|rng| rng.below(2)) == 0);
    if with_rng(|rng| rng.below(3)) > 0 {
        // Else the first copy is not left in peace either.
        story.world.until_follows_roughly(story.source).await;
    }
    story.world.cable.loses_one_in.set(with_rng(|rng| [0, 0, 200, 30][rng.below(4)]));
    for _ in 0..with_rng(|rng| rng.within(1..=7)) {
        story.nap(150).await;
        story.something().await;
    }
    story.nap(100).await;
    // The faults stop.
    story.world.cable.loses_one_in.set(0);
    story.world.stop.set(true);
    // It may have become the copy of one that grew when it was not there.
    story.world.lengthen(story.copy, &story.world.source(story.source).status().sizes);
    story.world.until_follows(story.source).await;
    let (source, copy) = (story.source, story.copy);
    let old = story.world.source(source);
    story.world.until("nobody writes", || old.status().in_flight_bytes == 0).await;
    story.nap(50).await;
    story.world.until_follows(source).await;
    story.world.check_equal(source, copy).await;
    // A destination that was restarted last is not known to have been until it is spoken to.
    let verified = story.world.until_verified(source).await;
    assert_eq!(verified.different, 0);
    if with_rng(|rng| rng.below(2) == 0) {
        let disk = with_rng(|rng| rng.below(story.world.nodes[copy].members.len()));
        let size = old.status().sizes[disk] as usize;
        with_rng(|rng| story.world.nodes[copy].members[disk].rot(size, rng));
        let verified = old.verify(0, true).await.expect("it is compared");
        assert!(verified.different > 0, "a byte has rotted, and nobody noticed");
        let [first] = verified.first[..] else { panic!("it says where: {verified:?}") };
        assert!(first.member == disk && first.len == verified.different, "{verified:?}");
        story.world.until_follows(source).await;
        let again = story.world.until_verified(source).await;
        assert_eq!(again.different, 0, "it was not repaired");
        story.world.check_equal(source, copy).await;
    }
}

pub(super) fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

/// `WEFT_SEED=n` runs that one alone.
#[test]
fn whatever_dies_the_promises_are_kept() {
    let all = number("WEFT_SEEDS").map_or(SEEDS, |n| n / SHARE);
    let seeds =
        number("WEFT_SEED").map_or(0..number("WEFT_REPLICA_SEEDS").unwrap_or(all), |seed| seed..seed + 1);
    let next = AtomicU64::new(seeds.start);
    let run = || loop {
        let seed = next.fetch_add(1, Ordering::Relaxed);
        if !seeds.contains(&seed) {
            return;
        }
        Sim::new(seed).time_limit(Duration::from_secs(3600)).run(story(seed));
    };
    std::thread::scope(|scope| {
        for _ in 0..std::thread::available_parallelism().map_or(1, usize::from) {
            scope.spawn(run);
        }
    });
    let ahead = AHEAD.each_ref().map(|count| count.load(Ordering::Relaxed));
    println!("the copy was ahead: {ahead:?}");
    if seeds.end - seeds.start >= SEEDS {
        assert!(ahead[0] > 0 && ahead[1] > 0, "no copy was ever ahead of its source");
    }
}
