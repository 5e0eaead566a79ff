//! The schedule under a simulated clock: each test runs the same way on every machine.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeSet, VecDeque};
use std::rc::Rc;

use super::schedule::{Account, LONG_TICKS, Queue, SHARE, SHORT_TICKS};
use crate::rt::reactor::{RUN_TICKS, TASKS_PER_TURN};
use crate::rt::turn::TURN_TICKS;

/// What one turn of the loop costs beside its tasks: a microsecond.
const LOOP_TICKS: u64 = TURN_TICKS / 2000;

/// What a task does after a poll.
enum Then {
    Yields,
    Sleeps(u64),
}

/// Decides how long the next poll takes, by the limit of the turn, and what follows.
type Poll = Box<dyn FnMut(u64) -> (u64, Then)>;

struct Task {
    account: Account,
    poll: Poll,
}

#[derive(Clone, Copy, Debug, Default)]
struct Seen {
    polls: u64,
    ran: u64,
    /// When the task was woken.
    woken: u64,
    /// The longest time between that and its turn.
    waited: u64,
}

/// A core's loop (`reactor::Core`) with tasks of known length.
#[derive(Default)]
struct Core {
    now: u64,
    queue: Queue<usize>,
    /// `None` once it was cancelled.
    tasks: Vec<Option<Task>>,
    seen: Vec<Seen>,
    hot: VecDeque<usize>,
    asleep: BTreeSet<(u64, usize)>,
    polls: u64,
}

impl Core {
    fn spawn(&mut self, poll: impl FnMut(u64) -> (u64, Then) + 'static) -> usize {
        let id = self.tasks.len();
        self.tasks.push(Some(Task { account: Account::default(), poll: Box::new(poll) }));
        self.seen.push(Seen { woken: self.now, ..Seen::default() });
        self.hot.push_back(id);
        id
    }

    /// Runs until its turn is over, again and again; looks at the clock every so many ticks.
    fn spawn_busy(&mut self, step: u64) -> usize {
        self.spawn(move |limit| (limit.next_multiple_of(step), Then::Yields))
    }

    /// Runs for so long, whatever the limit, and yields or sleeps.
    fn spawn_bursts(&mut self, ticks: u64, sleep: u64) -> usize {
        self.spawn(move |_| (ticks, if sleep > 0 { Then::Sleeps(sleep) } else { Then::Yields }))
    }

    /// Requests of so many ticks, one after another, each of which looks at the clock every `step` and is followed by
    /// the time that the client takes.
    fn spawn_requests(&mut self, ticks: u64, step: u64, client: u64) -> usize {
        let mut left = ticks;
        self.spawn(move |limit| {
            let runs = left.min(limit.next_multiple_of(step));
            left -= runs;
            if left > 0 {
                return (runs, Then::Yields);
            }
            left = ticks;
            (runs, if client > 0 { Then::Sleeps(client) } else { Then::Yields })
        })
    }

    fn poll(&mut self, id: usize) {
        let Some(task) = &mut self.tasks[id] else { return };
        let turn = task.account.turn();
        let turn = turn.or_else(|| self.queue.wait_or_run(&task.account, self.now, || id));
        let Some(limit) = turn else { return };
        let seen = &mut self.seen[id];
        seen.waited = seen.waited.max(self.now - seen.woken);
        let (ticks, then) = (task.poll)(limit);
        self.now += ticks;
        self.polls += 1;
        seen.polls += 1;
        seen.ran += ticks;
        if task.account.matters(ticks) {
            self.queue.ran(&task.account, self.now, ticks);
        }
        match then {
            Then::Yields => self.hot.push_back(id),
            Then::Sleeps(time) => _ = self.asleep.insert((self.now + time, id)),
        }
        seen.woken = match then {
            Then::Sleeps(time) => self.now + time,
            Then::Yields => self.now,
        };
    }

    fn turn(&mut self) {
        let began = self.now;
        for _ in 0..TASKS_PER_TURN {
            let Some(id) = self.hot.pop_front() else { break };
            self.poll(id);
            if self.now - began >= RUN_TICKS {
                break;
            }
        }
        let more = !self.hot.is_empty();
        self.wake();
        if self.queue.is_empty() {
            self.queue.rest(self.polls);
        } else {
            let woken = RefCell::new(Vec::new());
            self.queue.offer(self.now, self.polls, more, |id| woken.borrow_mut().push(*id));
            self.hot.extend(woken.into_inner());
        }
        self.now += LOOP_TICKS;
        if self.hot.is_empty() && self.queue.is_empty() {
            let next = self.asleep.first().expect("somebody wakes up").0;
            self.now = self.now.max(next);
            self.wake();
        }
    }

    fn wake(&mut self) {
        while self.asleep.first().is_some_and(|(at, _)| *at <= self.now) {
            self.hot.extend(self.asleep.pop_first().map(|(_, id)| id));
        }
    }

    fn run_for(&mut self, ticks: u64) {
        let end = self.now + ticks;
        while self.now < end {
            self.turn();
        }
    }

    fn cancel(&mut self, id: usize) {
        self.tasks[id] = None;
    }

    /// The share of the time that a task has had while the core runs for so long.
    fn shares(&mut self, ticks: u64) -> Vec<f64> {
        let before: Vec<u64> = self.seen.iter().map(|seen| seen.ran).collect();
        let began = self.now;
        self.run_for(ticks);
        let passed = (self.now - began) as f64;
        self.seen.iter().zip(before).map(|(seen, before)| (seen.ran - before) as f64 / passed).collect()
    }

    /// Forgets the longest waits so far.
    fn forget_waits(&mut self) {
        self.seen.iter_mut().for_each(|seen| seen.waited = 0);
    }
}

/// So many tasks that were seen to be busy: all of them wait in the background.
fn with_busy(count: usize) -> (Core, Vec<usize>) {
    let mut core = Core::default();
    let ids = (0..count).map(|_| core.spawn_busy(LOOP_TICKS)).collect();
    core.run_for(20 * TURN_TICKS * count as u64);
    (core, ids)
}

fn sum(shares: &[f64], ids: &[usize]) -> f64 {
    ids.iter().map(|id| shares[*id]).sum()
}

#[test]
fn tasks_beside_an_idle_foreground_have_the_whole_core() {
    for count in [1, 10] {
        let (mut core, busy) = with_busy(count);
        let shares = core.shares(2000 * TURN_TICKS);
        let all = sum(&shares, &busy);
        assert!(all > 0.99, "{count}: {all}");
        assert!(shares.iter().all(|share| (share * count as f64 - all).abs() < 0.01), "{shares:?}");
    }
}

#[test]
fn a_task_with_little_to_do_waits_for_one_short_turn_and_not_for_all_who_have_much() {
    let (mut core, busy) = with_busy(10);
    let light = core.spawn_bursts(LOOP_TICKS, TURN_TICKS / 100);
    core.run_for(2 * TURN_TICKS);
    core.forget_waits();
    let shares = core.shares(100 * TURN_TICKS);
    assert!(core.seen[light].waited <= SHORT_TICKS + 2 * LOOP_TICKS, "{:?}", core.seen[light]);
    assert!(sum(&shares, &busy) > 0.9, "{shares:?}");
}

/// They are never told that their turns are over.
#[test]
fn a_task_with_little_to_do_waits_for_one_turn_of_those_that_end_just_in_time() {
    let mut core = Core::default();
    let burst = TURN_TICKS * 9 / 10;
    (0..10).for_each(|_| _ = core.spawn_bursts(burst, 0));
    core.run_for(100 * TURN_TICKS);
    let light = core.spawn_bursts(LOOP_TICKS, TURN_TICKS);
    core.run_for(10 * TURN_TICKS);
    core.forget_waits();
    core.run_for(100 * TURN_TICKS);
    assert!(core.seen[light].waited <= burst + 2 * LOOP_TICKS, "{:?}", core.seen[light]);
}

/// The host may have taken the processor during the turn.
#[test]
fn three_long_polls_do_not_send_a_task_to_the_background_and_four_do() {
    let mut queue = Queue::<()>::default();
    let account = Account::default();
    let waits: Vec<bool> = (1..=4)
        .map(|_| {
            queue.ran(&account, 0, 2 * TURN_TICKS);
            account.turn().is_none()
        })
        .collect();
    assert_eq!(waits, [false, false, false, true]);
}

#[test]
fn a_task_that_got_to_the_background_by_accident_leaves_it_soon() {
    let (mut core, busy) = with_busy(10);
    let mut polls = 0;
    let task = core.spawn(move |_| {
        polls += 1;
        (if polls <= 5 { TURN_TICKS } else { LOOP_TICKS }, Then::Yields)
    });
    while core.seen[task].polls < 5 + 8 {
        core.turn();
    }
    let before: u64 = busy.iter().map(|id| core.seen[*id].polls).sum();
    while core.seen[task].polls < 5 + 8 + 20 {
        core.turn();
    }
    let turns = busy.iter().map(|id| core.seen[*id].polls).sum::<u64>() - before;
    assert!(turns <= 1, "{turns}");
}

#[test]
fn the_background_has_a_fifth_of_a_busy_core() {
    for count in [1, 2, 10, 100] {
        let (mut core, busy) = with_busy(count);
        let restless = core.spawn_bursts(SHORT_TICKS, 0);
        core.run_for(100 * TURN_TICKS);
        let shares = core.shares(20_000 * TURN_TICKS);
        let (theirs, others) = (sum(&shares, &busy), shares[restless]);
        let fifth = 1.0 / (SHARE + 1) as f64;
        // One alone loses what it has saved whenever it has just run, as nobody waits then.
        let least = if count == 1 { 0.16 } else { 0.19 };
        assert!((least..fifth + 0.01).contains(&theirs), "{count}: {theirs} beside {others}");
        assert!(
            shares[..count].iter().all(|share| (share * count as f64 / theirs - 1.0).abs() < 0.1),
            "{shares:?}"
        );
    }
}

/// Hundreds of tasks are hot, so a granted turn comes late: several are granted, and each is longer.
#[test]
fn the_background_has_its_part_behind_a_crowd() {
    let (mut core, busy) = with_busy(50);
    (0..400).for_each(|_| _ = core.spawn_bursts(LONG_TICKS - 1, 0));
    core.run_for(500 * TURN_TICKS);
    let (began, before) = (core.now, busy.iter().map(|id| core.seen[*id].ran).sum::<u64>());
    while core.now - began < 5000 * TURN_TICKS {
        core.turn();
    }
    let used = busy.iter().map(|id| core.seen[*id].ran).sum::<u64>() - before;
    let part = used as f64 / (core.now - began) as f64;
    assert!((0.125..0.13).contains(&part), "{part}");
}

/// The client of each search needs more time than the server: the lister has all that is left.
#[test]
fn a_lister_has_what_slow_clients_leave() {
    let mut core = Core::default();
    for _ in 0..20 {
        core.spawn_requests(TURN_TICKS * 3 / 4, LOOP_TICKS, TURN_TICKS * 25);
    }
    let lister = core.spawn_requests(TURN_TICKS / 7, LOOP_TICKS, 0);
    core.run_for(1000 * TURN_TICKS);
    let shares = core.shares(10_000 * TURN_TICKS);
    let all: f64 = shares.iter().sum();
    assert!(all > 0.97, "{all}");
    assert!(shares[lister] > 0.38, "{}", shares[lister]);
}

/// Each new task has one turn in the background and goes, and the next is there at once.
#[test]
fn newcomers_without_end_do_not_keep_others_from_their_turns() {
    let mut queue = Queue::default();
    let mut now = 0;
    let busy = || {
        let account = Account::default();
        (0..5).for_each(|_| queue.ran(&account, 0, TURN_TICKS));
        account
    };
    let accounts: Vec<Account> = std::iter::repeat_with(busy).take(300).collect();
    let old = &accounts[0];
    assert_eq!(queue.wait_or_run(old, now, || old), None);
    let woken = RefCell::new(Vec::new());
    let mut turns = 0;
    for new in &accounts[1..] {
        assert_eq!(queue.wait_or_run(new, now, || new), None);
        while woken.borrow().is_empty() {
            now += LOOP_TICKS;
            queue.offer(now, 0, false, |account| woken.borrow_mut().push(*account));
        }
        for account in woken.take() {
            assert!(queue.wait_or_run(account, now, || account).is_some());
            now += LONG_TICKS;
            queue.ran(account, now, LONG_TICKS);
            if std::ptr::eq(account, old) {
                turns += 1;
                assert_eq!(queue.wait_or_run(old, now, || old), None);
            }
        }
    }
    // Those that wait become more and more, as the core has no time for them.
    assert!((20..26).contains(&turns), "{turns}");
}

#[test]
fn a_newcomer_does_not_wait_for_a_whole_round() {
    let (mut core, busy) = with_busy(100);
    let mut polls = 0;
    let task = core.spawn(move |limit| {
        polls += 1;
        (limit, if polls == 4 { Then::Sleeps(5 * TURN_TICKS) } else { Then::Yields })
    });
    while core.seen[task].polls < 4 {
        core.turn();
    }
    let before: u64 = busy.iter().map(|id| core.seen[*id].polls).sum();
    core.run_for(5 * TURN_TICKS);
    let slept: u64 = busy.iter().map(|id| core.seen[*id].polls).sum();
    while core.seen[task].polls == 4 {
        core.turn();
    }
    let after: u64 = busy.iter().map(|id| core.seen[*id].polls).sum();
    assert!(slept > before, "nobody ran meanwhile");
    assert!(after - slept < 60, "{} turns", after - slept);
}

#[test]
fn a_task_that_has_ended_costs_nothing() {
    let (mut core, busy) = with_busy(50);
    busy.iter().for_each(|id| core.cancel(*id));
    let turns = core.seen.iter().map(|seen| seen.polls).sum::<u64>();
    let other = core.spawn_bursts(LOOP_TICKS, TURN_TICKS);
    core.run_for(TURN_TICKS);
    assert!(core.queue.is_empty());
    assert_eq!(core.seen[..50].iter().map(|seen| seen.polls).sum::<u64>(), turns);
    assert!(core.seen[other].waited <= LOOP_TICKS);
}

/// One that was granted a turn and goes before it begins: the next gets it.
#[test]
fn a_task_that_ends_while_it_waits_takes_nobodys_turn() {
    let mut queue = Queue::default();
    let accounts: Vec<_> = (0..3).map(|_| Rc::new(Account::default())).collect();
    let mut now = 0;
    for account in &accounts {
        for _ in 0..5 {
            now += TURN_TICKS;
            queue.ran(account, now, TURN_TICKS);
        }
    }
    let mut accounts: Vec<_> = accounts.into_iter().map(Some).collect();
    for (id, account) in accounts.iter().flatten().enumerate() {
        assert_eq!(queue.wait_or_run(account, now, || id), None);
    }
    let woken = Cell::new(None);
    let mut turns = |queue: &mut Queue<usize>| {
        woken.set(None);
        for _ in 0..2 {
            now += LOOP_TICKS;
            queue.offer(now, 0, false, |id| woken.set(Some(*id)));
        }
        woken.get()
    };
    assert_eq!(turns(&mut queue), Some(0));
    accounts[0] = None;
    accounts[1] = None;
    assert_eq!(turns(&mut queue), Some(2));
    accounts[2] = None;
    assert_eq!(turns(&mut queue), None);
    assert!(queue.is_empty());
}
