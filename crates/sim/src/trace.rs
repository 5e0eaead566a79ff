//! The events of a run: the last ones as text, and a digest of all.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::fmt;

use weft_machine::rt;

/// Lines that a failure prints.
const TAIL: usize = 80;

/// The events of a run.
#[derive(Default)]
pub struct Trace(RefCell<Lines>);

#[derive(Default)]
struct Lines {
    tail: VecDeque<String>,
    digest: u64,
    count: u64,
}

impl Trace {
    /// One event.
    pub fn tell(&self, what: fmt::Arguments<'_>) {
        let line = format!("{:?} {what}", rt::now());
        let lines = &mut *self.0.borrow_mut();
        for byte in line.bytes() {
            lines.digest = (lines.digest ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3).rotate_left(7);
        }
        lines.count += 1;
        if lines.tail.len() == TAIL {
            lines.tail.pop_front();
        }
        lines.tail.push_back(line);
    }

    /// A hash of all events, and how many there were.
    pub fn digest(&self) -> (u64, u64) {
        let lines = self.0.borrow();
        (lines.digest, lines.count)
    }

    /// The last of them.
    pub fn tail(&self) -> String {
        let lines = self.0.borrow();
        lines.tail.iter().map(|line| format!("{line}\n")).collect()
    }
}
