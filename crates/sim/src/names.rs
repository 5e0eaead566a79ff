//! The expected state of names and of exclusive opens.
//!
//! Only one worker makes, removes and renames its names, one change after the other. The model keeps every state that its names may be in: an answered
//! change has happened in all of them, an unanswered one in some, and it may still happen while the server lives. An observation excludes
//! the states that it contradicts. A rename is one change: no state has neither name, and none has the file under both.
//!
//! Changes that NFS has answered are durable, with all before them (RFC 1813 4.8, RFC 8881 4.2.3.1). Of the changes that SMB has
//! answered, a crash of the host leaves a beginning.
//!
//! A file is identified by its tag, which its maker writes into it.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::future::poll_fn;
use std::task::{Poll, Waker};
use std::time::Duration;

use bytes::Bytes;
use weft_machine::Time;

use crate::model::{Failed, Moment, Protocol};

/// What a file contains, in little-endian order.
pub type Tag = u64;
/// Bytes of a tag.
pub const TAG_BYTES: usize = size_of::<Tag>();

/// A change of a worker's names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// A new file, which is to contain this tag.
    Make(String, Tag),
    /// A name is removed.
    Remove(String),
    /// A file gets another name.
    Rename {
        /// Its name.
        from: String,
        /// Its new name.
        to: String,
        /// Whether a file with the new name gives way.
        replace: bool,
    },
}

/// What was found under a name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Seen {
    /// No file.
    Nothing,
    /// A file that was not read.
    Something,
    /// A file with this content.
    Content(Bytes),
}

/// A change that was called.
pub struct Changing {
    owner: usize,
    id: u64,
}

/// All names of a world.
#[derive(Default)]
pub struct Names {
    owners: RefCell<BTreeMap<usize, OwnNames>>,
    /// For each file, from when on its content is certain, also after a crash: until then it may be empty.
    written: RefCell<BTreeMap<Tag, Option<Moment>>>,
    clock: Cell<Moment>,
    /// When the process ended last, alone or with its host.
    ended: Cell<Moment>,
    /// The owner and the new name of the last rename.
    renamed: RefCell<Option<(usize, String)>>,
    /// How many renames were called, and who waits for the next.
    renames: Cell<u64>,
    waiting: RefCell<Vec<Waker>>,
}

/// The files that names lead to.
type Files = BTreeMap<String, Tag>;

/// One state that the names of a worker may be in.
#[derive(Clone, Default, PartialEq, Eq, PartialOrd, Ord)]
struct State {
    files: Files,
    /// Changes that have not happened and still may.
    pending: BTreeSet<u64>,
}

/// The names of one worker.
struct OwnNames {
    /// Changes that some state has not seen.
    changes: BTreeMap<u64, Change>,
    next: u64,
    /// The change whose call has not ended. A client of NFS asks a server that was started again.
    called: Option<u64>,
    /// The host has crashed since it was called.
    crashed: bool,
    /// What the names may be.
    now: BTreeSet<State>,
    /// What a crash of the host may make of them.
    left: BTreeSet<State>,
    /// `now` came out of a crash, and nothing was called since: it is on disk.
    on_disk: bool,
    /// Handles of a lost connection may be open: a name that SMB has removed is gone when they are.
    lingering: bool,
    /// What was possible from which moment on, for those who look while names change.
    history: Vec<(Moment, BTreeSet<Files>)>,
}

impl Default for OwnNames {
    fn default() -> OwnNames {
        let empty = BTreeSet::from([State::default()]);
        OwnNames {
            changes: BTreeMap::new(),
            next: 0,
            called: None,
            crashed: false,
            now: empty.clone(),
            left: empty,
            on_disk: true,
            lingering: false,
            history: vec![(0, BTreeSet::from([Files::new()]))],
        }
    }
}

impl Change {
    /// The files afterwards; `None`: the change must fail.
    fn of(&self, files: &Files) -> Option<Files> {
        let mut after = files.clone();
        match self {
            Change::Make(name, tag) => {
                if after.insert(name.clone(), *tag).is_some() {
                    return None;
                }
            }
            Change::Remove(name) => {
                after.remove(name)?;
            }
            Change::Rename { from, to, replace } => {
                let tag = after.remove(from)?;
                if after.insert(to.clone(), tag).is_some() && !replace {
                    return None;
                }
            }
        }
        Some(after)
    }
}

impl OwnNames {
    /// Adds the states that the pending changes may lead to.
    fn spread(&self, states: &BTreeSet<State>) -> BTreeSet<State> {
        let mut all = states.clone();
        let mut new: Vec<State> = states.iter().cloned().collect();
        while let Some(State { files, pending }) = new.pop() {
            for id in &pending {
                let Some(files) = self.changes.get(id).and_then(|change| change.of(&files)) else { continue };
                let mut pending = pending.clone();
                pending.remove(id);
                let after = State { files, pending };
                if all.insert(after.clone()) {
                    new.push(after);
                }
            }
        }
        all
    }

    /// Something has changed what may be.
    fn update(&mut self, at: Moment) {
        self.now = self.spread(&self.now);
        self.left.extend(self.now.iter().cloned());
        self.history.push((at, self.now.iter().map(|state| state.files.clone()).collect()));
    }

    fn begin(&mut self, change: Change, at: Moment) -> u64 {
        let id = self.next;
        self.next += 1;
        self.changes.insert(id, change);
        for states in [&mut self.now, &mut self.left] {
            *states = std::mem::take(states)
                .into_iter()
                .map(|mut state| {
                    state.pending.insert(id);
                    state
                })
                .collect();
        }
        (self.called, self.crashed, self.on_disk) = (Some(id), false, false);
        self.update(at);
        id
    }

    /// `false`: it was answered, and cannot have happened.
    fn end(&mut self, id: u64, outcome: Result<(), Failed>, by: Protocol, at: Moment) -> bool {
        self.called = None;
        self.lingering |= outcome == Err(Failed::Unknown);
        let removal = matches!(self.changes.get(&id), Some(Change::Remove(_)));
        let waits = removal && by == Protocol::Smb && self.lingering;
        match outcome {
            // The answer was on its way when the host crashed, which may have undone the change.
            Ok(()) if by == Protocol::Smb && self.crashed => self.forget(|pending| pending == id),
            Ok(()) if !waits => {
                self.now.retain(|state| !state.pending.contains(&id));
                self.forget(|pending| pending == id);
                if by == Protocol::Nfs {
                    self.left = self.now.clone();
                }
            }
            Err(Failed::Refused) => self.forget(|pending| pending == id),
            Ok(()) | Err(Failed::Unknown) => {}
        }
        self.update(at);
        !self.now.is_empty()
    }

    /// These changes do not happen any more.
    fn forget(&mut self, which: impl Fn(u64) -> bool) {
        for states in [&mut self.now, &mut self.left] {
            *states = std::mem::take(states)
                .into_iter()
                .map(|mut state| {
                    state.pending.retain(|id| !which(*id));
                    state
                })
                .collect();
        }
        self.changes.retain(|id, _| !which(*id));
    }

    /// What was not answered happens no more.
    fn quiet(&mut self, at: Moment) {
        let called = self.called;
        self.forget(|id| called != Some(id));
        self.lingering = false;
        self.update(at);
    }

    fn host_crashed(&mut self, at: Moment) {
        self.now = self.left.clone();
        self.quiet(at);
        self.left = self.now.clone();
        self.crashed = self.called.is_some();
        self.on_disk = !self.crashed;
    }

    /// Excludes the states that an observation contradicts; `false`: there is no other.
    fn saw(&mut self, is: impl Fn(&Files) -> bool, at: Moment) -> bool {
        self.now.retain(|state| is(&state.files));
        if self.on_disk {
            self.left = self.now.clone();
        }
        self.update(at);
        !self.now.is_empty()
    }
}

impl Names {
    /// One more event.
    pub fn moment(&self) -> Moment {
        self.clock.set(self.clock.get() + 1);
        self.clock.get()
    }

    fn with<T>(&self, owner: usize, act: impl FnOnce(&mut OwnNames) -> T) -> T {
        act(self.owners.borrow_mut().entry(owner).or_default())
    }

    /// The tag of a new file.
    pub fn new_tag(&self) -> Tag {
        let mut written = self.written.borrow_mut();
        let tag = written.len() as Tag + 1;
        written.insert(tag, None);
        tag
    }

    /// The tag of this file is written and flushed.
    pub fn written(&self, tag: Tag) {
        let now = self.moment();
        self.written.borrow_mut().insert(tag, Some(now));
    }

    /// Whether a look that began at `since` may find this content in a file.
    fn may_contain(&self, tag: Tag, content: &[u8], since: Moment) -> bool {
        let written = self.written.borrow().get(&tag).copied().flatten();
        let empty = || content.len() <= TAG_BYTES && content.iter().all(|byte| *byte == 0);
        content == tag.to_le_bytes() || written.is_none_or(|written| written > since) && empty()
    }

    fn agrees(&self, files: &Files, name: &str, seen: &Seen, since: Moment) -> bool {
        match (files.get(name), seen) {
            (None, Seen::Nothing) | (Some(_), Seen::Something) => true,
            (Some(tag), Seen::Content(content)) => self.may_contain(*tag, content, since),
            _ => false,
        }
    }

    /// Whether there is such a name; `None`: nobody can know.
    pub fn is_there(&self, owner: usize, name: &str) -> Option<bool> {
        self.with(owner, |own| {
            let mut there = own.now.iter().map(|state| state.files.contains_key(name));
            let first = there.next()?;
            there.all(|other| other == first).then_some(first)
        })
    }

    /// The owner and the new name of the last rename.
    pub fn last_renamed(&self) -> Option<(usize, String)> {
        self.renamed.borrow().clone()
    }

    /// Waits until a worker calls for a rename.
    pub async fn next_rename(&self) {
        let before = self.renames.get();
        poll_fn(|cx| match self.renames.get() == before {
            true => {
                self.waiting.borrow_mut().push(cx.waker().clone());
                Poll::Pending
            }
            false => Poll::Ready(()),
        })
        .await;
    }

    /// A worker calls for a change of its names.
    pub fn begin(&self, owner: usize, change: Change) -> Changing {
        if let Change::Rename { to, .. } = &change {
            self.renamed.replace(Some((owner, to.clone())));
            self.renames.set(self.renames.get() + 1);
            self.waiting.take().into_iter().for_each(Waker::wake);
        }
        let at = self.moment();
        Changing { owner, id: self.with(owner, |own| own.begin(change, at)) }
    }

    /// It was answered, or not. Why that may not be.
    pub fn end(
        &self,
        Changing { owner, id }: Changing,
        outcome: Result<(), Failed>,
        by: Protocol,
    ) -> Result<(), String> {
        let at = self.moment();
        self.with(owner, |own| {
            let (before, change) = (told(&own.now), own.changes.get(&id).cloned());
            match own.end(id, outcome, by, at) {
                true => Ok(()),
                false => Err(format!("{change:?} was answered and cannot be; possible were{before}")),
            }
        })
    }

    /// A handle of one of these names was lost with its connection.
    pub fn lingers(&self, owner: usize) {
        self.with(owner, |own| own.lingering = true);
    }

    /// This was found under a name by a look that began at `since` and has just ended. Why that may not be.
    pub fn saw(&self, by: usize, owner: usize, name: &str, seen: &Seen, since: Moment) -> Result<(), String> {
        let at = self.moment();
        let agrees = |files: &Files| self.agrees(files, name, seen, since);
        self.with(owner, |own| {
            let before = told(&own.now);
            // Others look while the names change, and what was seen before a crash need not be there after it.
            let possible = if by == owner && self.ended.get() < since {
                own.saw(agrees, at)
            } else {
                let begun = own.history.iter().rposition(|(from, _)| *from <= since).unwrap_or_default();
                own.history[begun..].iter().any(|(_, states)| states.iter().any(agrees))
            };
            match possible {
                true => Ok(()),
                false => Err(format!("{seen:?} under {name} since {since}; possible are{before}")),
            }
        })
    }

    /// Nothing goes on any more, also of what was never answered.
    pub fn quiet(&self) {
        let at = self.moment();
        self.owners.borrow_mut().values_mut().for_each(|own| own.quiet(at));
    }

    /// The server's process has ended.
    pub fn process_ended(&self) {
        self.quiet();
        self.ended.set(self.moment());
    }

    /// The server's host has crashed.
    pub fn host_crashed(&self) {
        let at = self.moment();
        self.owners.borrow_mut().values_mut().for_each(|own| own.host_crashed(at));
        self.ended.set(self.moment());
    }

    /// What a listing that nobody disturbs must not be. Why it may not.
    pub fn judge(&self, listed: &[String]) -> Result<(), String> {
        let at = self.moment();
        let mut rest: BTreeSet<&String> = listed.iter().filter(|name| name.starts_with('n')).collect();
        for (owner, own) in self.owners.borrow_mut().iter_mut() {
            let is_own = |name: &&&String| self::owner(name) == Some(*owner);
            let names: BTreeSet<&String> = rest.iter().filter(is_own).copied().collect();
            rest.retain(|name| !is_own(&name));
            let before = told(&own.now);
            if !own.saw(|files| files.keys().collect::<BTreeSet<_>>() == names, at) {
                return Err(format!("{names:?} of {owner} are listed; possible are{before}"));
            }
        }
        match rest.first() {
            Some(name) => Err(format!("{name} was never made")),
            None => Ok(()),
        }
    }
}

/// What a name of a worker is called.
pub fn name(owner: usize, index: usize) -> String {
    format!("n{owner}-{index}")
}

fn owner(name: &str) -> Option<usize> {
    name.strip_prefix('n')?.split_once('-')?.0.parse().ok()
}

fn told(states: &BTreeSet<State>) -> String {
    states.iter().fold(String::new(), |mut told, State { files, pending }| {
        let _ = write!(told, " {files:?}");
        if !pending.is_empty() {
            let _ = write!(told, " with {} pending", pending.len());
        }
        told
    })
}

/// How long at least a persistent handle waits for its client: a minute, less what the last answer was on its way.
const WAITS: Duration = Duration::from_secs(50);

/// Who alone may write the one file that is opened so.
#[derive(Default)]
pub struct Alone {
    holder: Cell<Option<Claim>>,
    /// How often claims may have been lost.
    losses: Cell<u64>,
}

#[derive(Clone, Copy)]
struct Claim {
    number: usize,
    protocol: Protocol,
    granted: Time,
    /// For a persistent handle, which outlives its session and the server.
    kept: Option<Kept>,
}

#[derive(Clone, Copy)]
struct Kept {
    /// When its session last had an answer.
    heard: Time,
    /// The session may be lost.
    waits: bool,
}

impl Claim {
    /// Whether the server may give the file to others.
    fn is_over(&self, now: Time) -> bool {
        self.kept.is_some_and(|Kept { heard, waits }| waits && now >= heard + WAITS)
    }
}

impl Alone {
    /// To be asked when an open begins.
    pub fn losses(&self) -> u64 {
        self.losses.get()
    }

    fn claim(&self, claim: Claim, now: Time) -> Result<(), String> {
        match self.holder.replace(Some(claim)) {
            Some(held) if held.number != claim.number && !held.is_over(now) => Err(format!(
                "{:?} {} has it open for one alone, and so has {:?} {}",
                held.protocol, held.number, claim.protocol, claim.number
            )),
            _ => Ok(()),
        }
    }

    /// Somebody else was let in to write, by an open that began at so many losses and at `since`. Why that may not be.
    pub fn let_in(&self, by: usize, losses: u64, since: Time, now: Time) -> Result<(), String> {
        let held = self.holder.get().filter(|held| held.number != by && !held.is_over(now));
        match held.filter(|held| self.losses.get() == losses && held.granted < since) {
            Some(held) => Err(format!("{:?} {} has it open for one alone", held.protocol, held.number)),
            None => Ok(()),
        }
    }

    /// An open that began at so many losses was answered; `kept`: with a persistent handle. Whether it is a claim; why that may not be.
    pub fn granted(&self, to: (usize, Protocol), losses: u64, kept: bool, now: Time) -> Result<bool, String> {
        if self.losses.get() != losses {
            // The answer was on its way when the server forgot the open.
            return Ok(false);
        }
        let kept = kept.then_some(Kept { heard: now, waits: false });
        self.claim(Claim { number: to.0, protocol: to.1, granted: now, kept }, now).map(|()| true)
    }

    /// About to be closed, or lost.
    pub fn released(&self, by: usize) {
        self.holder.set(self.holder.get().filter(|holder| holder.number != by));
    }

    /// A client has lost its session, and with it what it had open, except for a persistent handle.
    pub fn session_lost(&self, by: usize) {
        self.waits(by);
        self.holder.set(self.holder.get().filter(|holder| holder.number != by || holder.kept.is_some()));
    }

    /// The server may have forgotten opens: those of this protocol, or all.
    pub fn lost(&self, of: Option<Protocol>) {
        self.losses.set(self.losses.get() + 1);
        if let Some(holder) = self.holder.get() {
            self.waits(holder.number);
            let stays = holder.kept.is_some() || of.is_some_and(|of| of != holder.protocol);
            self.holder.set(self.holder.get().filter(|_| stays));
        }
    }

    fn keep(&self, by: usize, change: impl FnOnce(&mut Kept)) {
        let mut holder = self.holder.get();
        if let Some(Claim { number, kept: Some(kept), .. }) = &mut holder
            && *number == by
        {
            change(kept);
        }
        self.holder.set(holder);
    }

    /// The holder has lost its session.
    pub fn waits(&self, by: usize) {
        self.keep(by, |kept| kept.waits = true);
    }

    /// A client had an answer.
    pub fn heard(&self, by: usize, now: Time) {
        self.keep(by, |kept| {
            if !kept.waits {
                kept.heard = now;
            }
        });
    }

    /// A client has its persistent handle back. Why that may not be.
    pub fn back(&self, to: (usize, Protocol), now: Time) -> Result<(), String> {
        let kept = Some(Kept { heard: now, waits: false });
        self.claim(Claim { number: to.0, protocol: to.1, granted: now, kept }, now)
    }

    /// The server does not have a client's persistent handle. Why that may not be.
    pub fn gone(&self, by: usize, now: Time) -> Result<(), String> {
        let lost = self.holder.get().filter(|holder| holder.number == by && !holder.is_over(now));
        self.released(by);
        match lost {
            Some(_) => Err("its persistent handle is gone too soon".into()),
            None => Ok(()),
        }
    }
}
