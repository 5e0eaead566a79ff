//! Two hosts, their disks and the cable between them, from one seed; and stories of what goes wrong.

mod damage;
mod disk;
mod link;
mod logs;
mod seeds;
mod stories;
mod world;

use std::cell::RefCell;
use std::sync::Arc;

use crate::record::Record;
use crate::source::Source;

thread_local! {
    static PLACED: RefCell<Vec<(u64, Record)>> = const { RefCell::new(Vec::new()) };
    /// Sources of hosts that have died. What they still do, before their tasks wait for a disk, never happened.
    static DEAD: RefCell<Vec<Arc<Source>>> = const { RefCell::new(Vec::new()) };
}

/// Called where a source gives a record its place in the history: what the model of the tests is told.
pub fn placed(source: &Source, sequence: u64, record: &Record) {
    if !DEAD.with_borrow(|dead| dead.iter().any(|other| std::ptr::eq(&**other, source))) {
        PLACED.with_borrow_mut(|all| all.push((sequence, record.clone())));
    }
}

/// Its host has died.
fn bury(source: Arc<Source>) {
    DEAD.with_borrow_mut(|dead| dead.push(source));
}

/// What was placed since the last call.
fn take_placed() -> Vec<(u64, Record)> {
    PLACED.take()
}

/// Another world begins.
fn forget() {
    PLACED.take();
    DEAD.take();
}
