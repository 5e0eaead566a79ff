//! The expected state of names and of exclusive opens.
//!
//! Only one worker creates and removes a name, so every answer has one meaning. Changes that NFS has answered are durable
//! (RFC 1813 4.8, RFC 8881 4.2.3.1); changes that SMB has answered may be undone when the host crashes.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;

use crate::model::Protocol;

/// All names of a world.
#[derive(Default)]
pub struct Names(RefCell<BTreeMap<String, NameState>>);

/// Whether there is such a name; `None`: nobody can know.
#[derive(Clone, Copy, Default)]
struct NameState {
    now: Option<bool>,
    durable: Option<bool>,
}

impl NameState {
    const NEVER_MADE: NameState = NameState { now: Some(false), durable: Some(false) };
}

impl Names {
    fn known(&self, name: &str) -> NameState {
        self.0.borrow().get(name).copied().unwrap_or(NameState::NEVER_MADE)
    }

    /// Whether it is there, as far as that is known.
    pub fn is_there(&self, name: &str) -> Option<bool> {
        self.known(name).now
    }

    /// It is about to change.
    pub fn changes(&self, name: &str) {
        self.0.borrow_mut().insert(name.to_owned(), NameState::default());
    }

    /// It was made or removed, and that was answered.
    pub fn changed(&self, name: &str, there: bool, by: Protocol) {
        let durable = (by == Protocol::Nfs).then_some(there);
        self.0.borrow_mut().insert(name.to_owned(), NameState { now: Some(there), durable });
    }

    /// The host has crashed.
    pub fn host_crashed(&self) {
        self.0.borrow_mut().values_mut().for_each(|known| known.now = known.durable);
    }

    /// What a listing that nobody disturbs must not be. Why it may not.
    pub fn judge(&self, listed: &[String]) -> Result<(), String> {
        for (name, known) in self.0.borrow().iter() {
            let there = listed.contains(name);
            if known.now.is_some_and(|known| known != there) {
                return Err(format!("{name} is {}listed: {listed:?}", if there { "" } else { "not " }));
            }
        }
        let made = |name: &&String| name.starts_with('n') && !self.0.borrow().contains_key(*name);
        match listed.iter().find(made) {
            Some(name) => Err(format!("{name} was never made")),
            None => Ok(()),
        }
    }
}

/// Who alone may write the one file that is opened so.
#[derive(Default)]
pub struct Alone {
    holder: Cell<Option<(usize, Protocol)>>,
    /// How often claims may have been lost.
    losses: Cell<u64>,
}

impl Alone {
    /// To be asked when an open begins.
    pub fn losses(&self) -> u64 {
        self.losses.get()
    }

    /// An open that began at so many losses was answered. Whether it is a claim; why that may not be.
    pub fn granted(&self, to: (usize, Protocol), losses: u64) -> Result<bool, String> {
        if self.losses.get() != losses {
            // The answer was on its way when the server forgot the open.
            return Ok(false);
        }
        match self.holder.replace(Some(to)) {
            Some(holder) => Err(format!("{holder:?} has it open for one alone, and so has {to:?}")),
            None => Ok(true),
        }
    }

    /// About to be closed, or lost.
    pub fn released(&self, by: usize) {
        self.holder.set(self.holder.get().filter(|(holder, _)| *holder != by));
    }

    /// The server may have forgotten opens: those of this protocol, or all.
    pub fn lost(&self, of: Option<Protocol>) {
        self.losses.set(self.losses.get() + 1);
        self.holder.set(self.holder.get().filter(|(_, protocol)| of.is_some_and(|of| of != *protocol)));
    }
}
