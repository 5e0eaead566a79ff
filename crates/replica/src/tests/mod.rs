//! Two hosts, their disks and the cable between them, from one seed; and stories of what goes wrong.

#[cfg(debug_assertions)]
mod broken;
mod commands;
mod damage;
mod exchange;
mod found;
mod full;
mod link;
mod logs;
mod messages;
mod pictures;
mod seeds;
mod servers;
mod setback;
mod stories;
mod three;
mod three_seeds;
mod wakes;
mod world;

use std::cell::{Cell, RefCell};
use std::sync::Arc;

use crate::record::Record;
use crate::source::Source;

thread_local! {
    static PLACED: RefCell<Vec<(u64, Record)>> = const { RefCell::new(Vec::new()) };
    /// The same with the source that it was.
    static PLACED_BY: RefCell<Vec<(usize, u64, Record)>> = const { RefCell::new(Vec::new()) };
    static ANSWERED: RefCell<Vec<(usize, u64, bool)>> = const { RefCell::new(Vec::new()) };
    static LOCKED: Cell<u64> = const { Cell::new(0) };
    /// Sources of hosts that have died. What they still do, before their tasks wait for a disk, never happened.
    static DEAD: RefCell<Vec<Arc<Source>>> = const { RefCell::new(Vec::new()) };
}

/// Called where the state in memory of a side, or the list of those who wait for a change, is locked.
pub fn locked() {
    LOCKED.set(LOCKED.get() + 1);
}

/// How often they were locked on this thread.
fn locks() -> u64 {
    LOCKED.get()
}

/// Called where a source gives a record its place in the history: what the model of the tests is told.
pub fn placed(source: &Source, sequence: u64, record: &Record) {
    if !DEAD.with_borrow(|dead| dead.iter().any(|other| std::ptr::eq(&**other, source))) {
        PLACED.with_borrow_mut(|all| all.push((sequence, record.clone())));
        let source = std::ptr::from_ref(source) as usize;
        PLACED_BY.with_borrow_mut(|all| all.push((source, sequence, record.clone())));
    }
}

/// Called where a source answers a write: whether all synchronous destinations have it.
pub fn answered(source: &Source, sequence: u64, protected: bool) {
    if !DEAD.with_borrow(|dead| dead.iter().any(|other| std::ptr::eq(&**other, source))) {
        let source = std::ptr::from_ref(source) as usize;
        ANSWERED.with_borrow_mut(|all| all.push((source, sequence, protected)));
    }
}

/// What was answered since the last call.
fn take_answered() -> Vec<(usize, u64, bool)> {
    ANSWERED.take()
}

/// Its host has died.
fn bury(source: Arc<Source>) {
    DEAD.with_borrow_mut(|dead| dead.push(source));
}

/// What was placed since the last call.
fn take_placed() -> Vec<(u64, Record)> {
    PLACED.take()
}

/// What was placed since the last call, and by which source.
fn take_placed_by() -> Vec<(usize, u64, Record)> {
    PLACED_BY.take()
}

/// Another world begins.
fn forget() {
    PLACED.take();
    PLACED_BY.take();
    ANSWERED.take();
    DEAD.take();
}
