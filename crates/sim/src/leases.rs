//! The expected state of leases: which caching rights the server has granted, as far as clients can know.
//!
//! A claim begins when its client gets the answer to its open. Rights that the server must wait for (to cache writes, to keep handles) end
//! when the client is about to acknowledge a break; the right to read from a cache ends when a break arrives, because others do not wait
//! for the acknowledgement ([MS-FSA] 2.1.4.12). Whatever is answered while a right lasts that it excludes, and was called after the
//! right began, was answered too early:
//!
//! | right of another client | excludes |
//! |---|---|
//! | cache writes | opens, reads, writes, any lease |
//! | keep handles | taking the name away |
//! | cache reads | that the client has another answer of a later call and no break, once a write was answered |
//!
//! A client knows a file by its name only. While a name is taken away, nobody knows which file a lease is of, so no claims begin.
//! Afterwards the name leads to a new file: handles of the old one still read and write it, and no lease of the new one excludes that.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;

use crate::model::{Failed, Moment};

/// Caching rights.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rights {
    /// Answer reads from a cache.
    pub read: bool,
    /// Delay writes.
    pub write: bool,
    /// Keep a handle that its user has closed.
    pub handle: bool,
}

impl Rights {
    fn and(self, other: Rights) -> Rights {
        Rights {
            read: self.read && other.read,
            write: self.write && other.write,
            handle: self.handle && other.handle,
        }
    }
}

/// What a client does with a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Act {
    /// Opens it for its data.
    Open,
    /// Reads data.
    Read,
    /// Writes or truncates it.
    Write,
    /// Removes its name, or gives the file another one.
    TakeAway,
}

impl Act {
    fn is_excluded_by(self, rights: Rights) -> bool {
        match self {
            Act::Open | Act::Read | Act::Write => rights.write,
            Act::TakeAway => rights.handle,
        }
    }
}

/// Which of the files that a name has led to, one after the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Generation(u64);

/// How a call names its file.
#[derive(Clone, Copy, Debug)]
pub enum Through {
    /// By its name.
    Name,
    /// By a handle. `None`: the name was taken away during its open, so its file is one or the other.
    Handle(Option<Generation>),
}

/// A call that was begun.
#[derive(Debug)]
pub struct Access {
    by: usize,
    file: usize,
    act: Act,
    through: Through,
    begun: Moment,
    /// Losses of all claims, and changes of the name, until then.
    losses: u64,
    replaced: u64,
}

/// Identifies a claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClaimId(u64);

#[derive(Clone, Copy, Debug)]
struct Claim {
    id: ClaimId,
    by: usize,
    rights: Rights,
    since: Moment,
    /// When a write was answered that the holder has not been told of.
    stale: Option<Moment>,
    /// It was granted while a connection may have been silent: a break that needs no acknowledgement may be sent there, and lost.
    deaf: bool,
    /// A break was not acknowledged: until it is, the server does not say what else the holder loses.
    breaking: bool,
}

#[derive(Default)]
struct LeasedFile {
    claims: Vec<Claim>,
    /// Calls that take the name away and have not ended.
    leaving: usize,
    /// How often such calls have begun or ended.
    replaced: u64,
    /// How often such calls have ended that may have taken the name away.
    generation: u64,
}

impl LeasedFile {
    /// Whether a call concerns the file that the claims are of.
    fn is_reached(&self, through: Through) -> bool {
        match through {
            Through::Name => true,
            Through::Handle(generation) => generation == Some(Generation(self.generation)),
        }
    }

    /// Drops what its holder has lost.
    fn clean(&mut self) {
        let leaving = self.leaving > 0;
        self.claims.retain(|claim| claim.rights.handle || !leaving && claim.rights != Rights::default());
    }
}

/// All leases of a world.
#[derive(Default)]
pub struct Leases {
    files: RefCell<BTreeMap<usize, LeasedFile>>,
    clock: Cell<Moment>,
    losses: Cell<u64>,
    /// Cuts after which the server may still send to connections that nobody reads.
    silences: Cell<usize>,
    /// Claims that were made, and breaks of them that must be acknowledged.
    made: Cell<u64>,
    breaks: Cell<u64>,
}

impl Leases {
    /// One more event.
    pub fn moment(&self) -> Moment {
        self.clock.set(self.clock.get() + 1);
        self.clock.get()
    }

    fn with<T>(&self, file: usize, act: impl FnOnce(&mut LeasedFile) -> T) -> T {
        act(self.files.borrow_mut().entry(file).or_default())
    }

    fn change(&self, id: ClaimId, change: impl Fn(&mut Claim)) {
        for file in self.files.borrow_mut().values_mut() {
            file.claims.iter_mut().filter(|claim| claim.id == id).for_each(&change);
            file.clean();
        }
    }

    /// A client calls.
    pub fn begin(&self, by: usize, file: usize, act: Act, through: Through) -> Access {
        let (begun, losses) = (self.moment(), self.losses.get());
        self.with(file, |leased| {
            if act == Act::TakeAway {
                leased.leaving += 1;
                leased.replaced += 1;
                leased.clean();
            }
            Access { by, file, act, through, begun, losses, replaced: leased.replaced }
        })
    }

    /// The handle of an open that has just been answered.
    pub fn handle(&self, access: &Access) -> Through {
        self.with(access.file, |leased| {
            let certain = leased.leaving == 0 && leased.replaced == access.replaced;
            Through::Handle(certain.then_some(Generation(leased.generation)))
        })
    }

    /// It was answered, or not. Why that may not be.
    pub fn end(&self, access: Access, outcome: Result<(), Failed>) -> Result<(), String> {
        let now = self.moment();
        let Access { by, file, act, through, begun, .. } = access;
        self.with(file, |leased| {
            let others = |claim: &&mut Claim| claim.by != by && claim.since < begun;
            let mut judged = Ok(());
            if outcome.is_ok() && leased.is_reached(through) {
                for claim in leased.claims.iter_mut().filter(others) {
                    if act.is_excluded_by(claim.rights) {
                        judged = Err(format!("{act:?} of leased{file} is answered, and {claim:?}"));
                    }
                    if act == Act::Write && claim.rights.read && !claim.deaf {
                        claim.stale.get_or_insert(now);
                    }
                }
            }
            if act == Act::TakeAway {
                leased.replaced += 1;
                if outcome != Err(Failed::Refused) {
                    leased.claims.clear();
                    leased.generation += 1;
                }
                if outcome != Err(Failed::Unknown) {
                    leased.leaving -= 1;
                }
            }
            judged
        })
    }

    /// An open was answered, with a lease of these rights. The claim, if it is one; why that may not be.
    pub fn granted(&self, access: Access, rights: Rights) -> Result<Option<ClaimId>, String> {
        let Access { by, file, losses, replaced, .. } = access;
        self.end(access, Ok(()))?;
        let since = self.moment();
        if self.losses.get() != losses || rights == Rights::default() {
            return Ok(None);
        }
        self.with(file, |leased| {
            if leased.leaving > 0 || leased.replaced != replaced {
                return Ok(None);
            }
            let excluded = |held: &&Claim| held.by != by && (held.rights.write || rights.write);
            if let Some(held) = leased.claims.iter().find(excluded) {
                return Err(format!("{rights:?} of leased{file} is granted, and {held:?}"));
            }
            self.made.set(self.made.get() + 1);
            let id = ClaimId(self.made.get());
            let deaf = self.silences.get() > 0;
            leased.claims.push(Claim { id, by, rights, since, stale: None, deaf, breaking: false });
            Ok(Some(id))
        })
    }

    /// A break has arrived that leaves these rights, and whether its holder must acknowledge it.
    pub fn broken(&self, id: ClaimId, left: Rights, acknowledge: bool) {
        if acknowledge {
            self.breaks.set(self.breaks.get() + 1);
        }
        self.change(id, |claim| {
            claim.rights.read &= left.read;
            claim.breaking = acknowledge;
        });
    }

    /// Claims that were made, and breaks of them that must be acknowledged.
    pub fn counts(&self) -> (u64, u64) {
        (self.made.get(), self.breaks.get())
    }

    /// The holder is about to acknowledge a break, or never will, which leaves it nothing.
    pub fn gives_up(&self, id: ClaimId, left: Rights) {
        self.change(id, |claim| {
            claim.rights = claim.rights.and(left);
            claim.breaking = false;
        });
    }

    /// The holder had an answer of a call that began at `begun`, and no break. Why that may not be.
    pub fn heard(&self, id: ClaimId, begun: Moment) -> Result<(), String> {
        let files = self.files.borrow();
        let claim = files.values().flat_map(|file| &file.claims).find(|claim| claim.id == id);
        let stale = |claim: &&Claim| claim.rights.read && claim.stale.is_some_and(|stale| stale < begun);
        match claim.filter(|claim| !claim.breaking && stale(claim)) {
            Some(claim) => Err(format!("nobody tells the holder of a write: {claim:?}")),
            None => Ok(()),
        }
    }

    /// All leases of a client are about to end, or are lost for a reason that it knows.
    pub fn released_all(&self, by: usize) {
        self.files.borrow_mut().values_mut().for_each(|file| file.claims.retain(|claim| claim.by != by));
    }

    /// A client has lost one of its connections, and what was on its way there.
    pub fn connection_lost(&self, by: usize) {
        self.losses.set(self.losses.get() + 1);
        self.released_all(by);
    }

    /// The server may have forgotten leases.
    pub fn lost(&self) {
        self.losses.set(self.losses.get() + 1);
        self.files.borrow_mut().values_mut().for_each(|file| file.claims.clear());
    }

    /// Connections fall silent; the server does not know.
    pub fn silence_begins(&self) {
        self.silences.set(self.silences.get() + 1);
    }

    /// The server knows.
    pub fn silence_ends(&self) {
        self.silences.set(self.silences.get() - 1);
    }

    /// Nothing goes on any more, also of what was never answered. Why something that is left may not be.
    pub fn quiet(&self) -> Result<(), String> {
        for file in self.files.borrow_mut().values_mut() {
            file.leaving = 0;
            if let Some(claim) = file.claims.iter().find(|claim| claim.rights.read && claim.stale.is_some()) {
                return Err(format!("nobody has told the holder of a write: {claim:?}"));
            }
        }
        Ok(())
    }
}
