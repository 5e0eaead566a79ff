//! What clients may see: for each sector of each file, the writes whose content a read may return and a crash may leave.
//!
//! A sector is a register with many writers. A read may return the last write before it began, or any write in progress during the read.
//! An unanswered or refused write may have happened or not. A crash of the host may bring back any content that no durable write has
//! replaced.
//!
//! The workers report when calls begin and end; the model does not know the protocols.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::ops::Range;

/// A moment: events are numbered.
pub type Moment = u64;

/// Who calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    /// SMB.
    Smb,
    /// NFS.
    Nfs,
}

/// How a call ended that was not answered with success.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failed {
    /// The server said no; it does nothing more about it, but may have done a part.
    Refused,
    /// Nobody knows; it may still happen while the server lives.
    Unknown,
}

#[derive(Clone, Debug)]
struct Write {
    tag: u64,
    begun: Moment,
    /// From when on it changes nothing more; `None`: it may still.
    ended: Option<Moment>,
    /// Its call has not ended. A client of NFS asks a server that was started again.
    called: bool,
    /// The host has crashed since it was called: an answer may be that of the server before, and say nothing of what is left.
    crashed: bool,
    /// It was answered: it has replaced all that ended before it began.
    answered: bool,
    /// Its client keeps it, to write it again if the server has lost it before it is flushed.
    kept: bool,
    durable: bool,
    /// The open that wrote it, and its protocol.
    by: (u64, Protocol),
    /// Flushes that had failed when it began.
    failures: u64,
    /// It was there, or may have been, when the host crashed, and its client does not write it again: what is left of it is on disk.
    survivor: bool,
}

impl Write {
    /// Its client has not given up writing it.
    fn may_come_again(&self) -> bool {
        self.kept && !self.answered || self.called && self.by.1 == Protocol::Nfs
    }

    fn is_replaced_by(&self, other: &Write) -> bool {
        other.answered && self.ended.is_some_and(|ended| ended < other.begun)
    }
}

/// The model of one share.
#[derive(Default)]
pub struct Model {
    clock: Cell<Moment>,
    sectors: RefCell<BTreeMap<(usize, usize), Vec<Write>>>,
    next_tag: Cell<u64>,
}

/// A write under way.
pub struct Writing {
    /// What each 8 bytes of it are.
    pub tag: u64,
    file: usize,
    sectors: Range<usize>,
}

impl Model {
    /// One more event.
    pub fn moment(&self) -> Moment {
        self.clock.set(self.clock.get() + 1);
        self.clock.get()
    }

    fn each(&self, file: usize, sectors: Range<usize>, mut act: impl FnMut(&mut Vec<Write>)) {
        let mut all = self.sectors.borrow_mut();
        for sector in sectors {
            act(all.entry((file, sector)).or_insert_with(|| vec![Write::nothing()]));
        }
    }

    /// A write begins by this open; `failures`: flushes that have failed.
    pub fn begin_write(
        &self,
        file: usize,
        sectors: Range<usize>,
        by: (u64, Protocol),
        failures: u64,
    ) -> Writing {
        let begun = self.moment();
        self.next_tag.set(self.next_tag.get() + 1);
        let tag = self.next_tag.get();
        let write = Write { tag, begun, by, failures, ended: None, called: true, ..Write::nothing() };
        let write = Write { answered: false, durable: false, ..write };
        self.each(file, sectors.clone(), |writes| writes.push(write.clone()));
        Writing { tag, file, sectors }
    }

    /// It was answered, or not.
    pub fn end_write(&self, writing: Writing, outcome: Result<(), Failed>) {
        let now = self.moment();
        self.each(writing.file, writing.sectors, |writes| {
            for write in writes.iter_mut().filter(|write| write.tag == writing.tag) {
                write.called = false;
                write.answered = outcome.is_ok() && !write.crashed;
                write.kept = outcome.is_ok() && write.by.1 == Protocol::Nfs;
                let again = outcome == Err(Failed::Unknown) || write.may_come_again();
                write.ended = (!again).then_some(now);
            }
        });
    }

    /// A flush by this open that began at `begun` was answered; `failures`: flushes that have failed by now. A flush that failed in between has
    /// lost what others wrote; a client of NFS writes its own data again.
    pub fn flushed(&self, file: usize, begun: Moment, by: (u64, Protocol), failures: u64) {
        self.committed(file, begun, by);
        for ((of, _), writes) in self.sectors.borrow_mut().iter_mut() {
            for write in writes.iter_mut().filter(|write| *of == file && write.answered && !write.called) {
                if write.failures == failures {
                    write.durable |= write.ended.is_some_and(|ended| ended < begun);
                }
            }
        }
    }

    /// An answered write of this tag is durable: it went through to the disk.
    pub fn written_through(&self, file: usize, tag: u64) {
        for ((of, _), writes) in self.sectors.borrow_mut().iter_mut() {
            for write in writes.iter_mut().filter(|write| *of == file && write.tag == tag) {
                write.durable = true;
            }
        }
    }

    /// A client of NFS was told, by a call that began at `begun`, that what this open wrote is durable.
    pub fn committed(&self, file: usize, begun: Moment, by: (u64, Protocol)) {
        let now = self.moment();
        for ((of, _), writes) in self.sectors.borrow_mut().iter_mut() {
            for write in writes.iter_mut().filter(|write| *of == file && write.kept && write.by == by) {
                if !write.answered {
                    // The server had lost it, and has it again.
                    (write.begun, write.ended, write.answered) = (begun, Some(now), true);
                }
                (write.kept, write.durable, write.survivor) = (false, true, false);
            }
        }
    }

    /// The open is gone: what it has kept is not written again.
    pub fn forgotten(&self, by: (u64, Protocol)) {
        let now = self.moment();
        for write in
            self.sectors.borrow_mut().values_mut().flatten().filter(|write| write.by == by && write.kept)
        {
            write.kept = false;
            write.ended.get_or_insert(now);
        }
    }

    /// A read that began at `begun` and has just ended returned `tag`. Why that may not be.
    pub fn judge(&self, file: usize, sector: usize, tag: u64, begun: Moment) -> Result<(), String> {
        let now = self.moment();
        let mut judged = Ok(());
        self.each(file, sector..sector + 1, |writes| {
            let replaced = |write: &Write| {
                let before =
                    |by: &Write| write.is_replaced_by(by) && by.ended.is_some_and(|ended| ended < begun);
                writes.iter().any(before)
            };
            let may = |write: &&Write| write.tag == tag && write.begun < now && !replaced(write);
            if !writes.iter().any(|write| may(&write)) {
                let mut told = format!("f{file} sector {sector} reads {tag} at {begun}..{now}; written were");
                for write in writes.iter() {
                    let _ = write!(
                        told,
                        " {}:{}..{}{}{}",
                        write.tag,
                        write.begun,
                        write.ended.map_or("?".into(), |ended| ended.to_string()),
                        if write.answered { "" } else { " unanswered" },
                        if write.durable { " durable" } else { "" }
                    );
                }
                judged = Err(told);
            }
        });
        judged
    }

    /// What was seen in a sector while nothing wrote to it is what it holds.
    pub fn settle(&self, file: usize, sector: usize, tag: u64, begun: Moment) {
        self.each(file, sector..sector + 1, |writes| {
            let quiet = writes.iter().all(|write| write.ended.is_some_and(|ended| ended < begun));
            if quiet && let Some(seen) = writes.iter().find(|write| write.tag == tag).cloned() {
                // Whether a crash can bring back another one is open, unless this one came through one.
                if seen.durable || seen.survivor {
                    let seen = Write { answered: true, durable: true, ..seen };
                    *writes = vec![seen];
                } else if let Some(seen) = writes.iter_mut().find(|write| write.tag == tag) {
                    seen.answered = true;
                    seen.begun = seen.begun.max(begun);
                    seen.ended = Some(begun);
                }
            }
        });
    }

    /// Nothing goes on any more, also of what was never answered.
    pub fn quiet(&self) {
        self.process_ended();
    }

    /// The server's process has ended: what was not answered happens no more.
    pub fn process_ended(&self) {
        let now = self.moment();
        for writes in self.sectors.borrow_mut().values_mut() {
            for write in writes.iter_mut().filter(|write| !write.may_come_again()) {
                write.ended.get_or_insert(now);
            }
        }
    }

    /// The server's host has crashed: whatever no durable write has replaced may be there.
    pub fn host_crashed(&self) {
        self.process_ended();
        let now = self.moment();
        for writes in self.sectors.borrow_mut().values_mut() {
            let durable: Vec<Write> = writes.iter().filter(|write| write.durable).cloned().collect();
            writes.retain(|write| !durable.iter().any(|by| write.is_replaced_by(by)));
            // It is on disk now, whichever it is, and nobody was told which.
            let certain = writes.len() == 1;
            for write in writes {
                let again = write.may_come_again() || (write.kept && !write.durable);
                write.ended = (!again).then_some(now);
                write.answered = certain;
                write.durable = certain;
                // What its client writes again is in memory, and a flush that fails may lose it.
                write.survivor = !again;
                write.crashed = write.called;
            }
        }
    }
}

impl Write {
    /// What a sector is that nobody has written.
    fn nothing() -> Write {
        Write {
            tag: 0,
            begun: 0,
            ended: Some(0),
            called: false,
            crashed: false,
            answered: true,
            kept: false,
            durable: true,
            by: (0, Protocol::Smb),
            failures: 0,
            survivor: false,
        }
    }
}
