//! The simulated counterpart of the machine: virtual time, simulated sockets, and one seed that decides everything.
//!
//! `Sim::new(seed).run(async { ... })` runs the same code that runs on real cores: [`crate::rt`] and [`crate::net`]
//! check whether a simulation runs on this thread. Equal seeds give equal runs, as long as the code under test takes no
//! randomness from elsewhere (the order of a `HashMap`, the unbiased `select!`). It owns the world of each run. Files
//! are not simulated (they are real), nor are threads (`blocking` runs inline).

mod executor;
mod faults;
mod log;
pub(crate) mod net;
mod network;
mod rng;
mod script;
mod trace;

use std::cell::Cell;
use std::future::Future;
use std::rc::Rc;
use std::time::Duration;

pub(crate) use executor::{Task, active, current};
pub use faults::{Cut, CutHow, Faults, Side};
pub use log::logged;
pub use rng::Rng;
pub use script::Script;

use executor::World;

/// Virtual time after which a run counts as one that never ends.
pub const TIME_LIMIT: Duration = Duration::from_secs(3600);

/// A simulated world, and its seed.
pub struct Sim(Rc<World>);

impl Sim {
    /// The world of `seed`, with a quick and faultless network.
    pub fn new(seed: u64) -> Sim {
        Sim(Rc::new(World::new(seed, TIME_LIMIT)))
    }

    /// With another network.
    pub fn faults(self, faults: Faults) -> Sim {
        self.0.net.borrow_mut().faults = faults;
        self
    }

    /// With another limit to virtual time than [`TIME_LIMIT`].
    pub fn time_limit(self, limit: Duration) -> Sim {
        self.0.set_time_limit(limit);
        self
    }

    /// With tasks that yield wherever they would after a long turn (see [`crate::rt::yield_if_due`]): every second
    /// check of the clock in a poll finds the turn over.
    pub fn short_turns(self) -> Sim {
        self.0.short_turns.set(true);
        self
    }

    /// Runs `future` under virtual time until it ends, then drops the tasks left over. Another run continues at the
    /// current time.
    ///
    /// # Panics
    /// If every task waits and no timer is set (a deadlock; the message lists where they were spawned), if time stands
    /// still for millions of polls, or passes the limit, and with any panic of a task. The seed is printed.
    pub fn run<F: Future>(&self, future: F) -> F::Output {
        self.0.run(future)
    }

    /// Bytes that `side` of a connection has sent so far; connections are numbered from 0 in the order in which they
    /// were made. Bytes after a cut do not count.
    pub fn bytes_sent(&self, connection: u64, side: Side) -> u64 {
        self.0.net.borrow().sent(connection, side)
    }

    /// A hash of all events so far, and their number: equal for equal seeds.
    pub fn digest(&self) -> (u64, u64) {
        self.0.trace.borrow().digest()
    }
}

/// Changes the network of the running simulation: `faults` applies to new connections and new bytes.
///
/// # Panics
/// Outside [`Sim::run`].
pub fn set_faults(faults: Faults) {
    let world = current().expect("no simulation runs on this thread");
    world.net.borrow_mut().faults = faults;
}

/// Cuts every connection of the running simulation now, in both directions.
///
/// # Panics
/// Outside [`Sim::run`].
pub fn cut_all(how: CutHow) {
    let world = current().expect("no simulation runs on this thread");
    net::cut_all(&world, how);
}

/// Ends every silent connection of the running simulation, as TCP's keepalive does after a minute: both ends get ECONNRESET.
///
/// # Panics
/// Outside [`Sim::run`].
pub fn end_silent() {
    let world = current().expect("no simulation runs on this thread");
    net::end_silent(&world);
}

/// Sets the time of day of the running simulation; monotonic time and timers are not affected.
///
/// # Panics
/// Outside [`Sim::run`].
pub fn set_wall(since_1970: Duration) {
    current().expect("no simulation runs on this thread").set_wall(since_1970);
}

/// Runs `story` with [short turns](Sim::short_turns), and counts the turns that another task of its core gets
/// meanwhile.
pub fn turns_of_others<F: Future>(story: F) -> usize {
    let turns = Rc::new(Cell::new(0));
    let counted = turns.clone();
    Sim::new(1).short_turns().run(async move {
        let _other = crate::rt::spawn(async move {
            loop {
                counted.set(counted.get() + 1);
                crate::rt::yield_now().await;
            }
        });
        story.await;
    });
    turns.get()
}

/// Draws from the running simulation's randomness.
///
/// # Panics
/// Outside [`Sim::run`].
pub fn with_rng<T>(draw: impl FnOnce(&mut Rng) -> T) -> T {
    let world = current().expect("no simulation runs on this thread");
    let mut rng = world.rng.borrow_mut();
    draw(&mut rng)
}

#[cfg(test)]
mod tests;
