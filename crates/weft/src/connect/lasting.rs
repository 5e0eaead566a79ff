//! An SMB share and its files that can outlast their connections.
//!
//! [MS-SMB2] 3.2.4.4 (re-establishing handles). This file owns the session and re-establishes it when all connections
//! are lost. An operation cut short by a loss is repeated, so callers must pass repeatable operations.
//!
//! An open file is reclaimed by its handle, which the server keeps for a minute. A restarted server has only handles
//! of continuously available shares. Otherwise the file is reopened by name and must be the same file; a file open
//! only for reading must also be unchanged.

use std::cell::{Cell, OnceCell, RefCell};
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures_util::future::{Either, select};
use futures_util::lock::Mutex;
use weft_machine::rt::{self, Task};
use weft_rdma::Traffic;
use weft_smb::client::{Error, File, OpenOptions, Session, Stat, Tree};

use super::channels::Keeper;
use crate::Failure;

/// Time limit of one attempt.
const ATTEMPT: Duration = Duration::from_secs(10);
/// Pause between attempts: initial and maximum.
const PAUSES: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(2));
/// How soon an interruption by the user is noticed.
const ATTENTION: Duration = Duration::from_millis(100);

/// A session connected to the share; the next session has the next number.
pub(super) struct Life {
    pub session: Session,
    pub tree: Tree,
    number: u32,
    keeper: Keeper,
    /// The keeper at work; ends with this value.
    _keeping: Task<()>,
}

impl Life {
    fn new(session: Session, tree: Tree, keeper: Keeper, number: u32) -> Life {
        let keeping = rt::spawn(keeper.clone().keep(session.clone()));
        Life { session, tree, number, keeper, _keeping: keeping }
    }

    async fn next(&self) -> Result<Life, Failure> {
        let (session, tree) = self.keeper.again(&self.session).await?;
        self.keeper.fill(&session).await;
        Ok(Life::new(session, tree, self.keeper.clone(), self.number + 1))
    }
}

/// A connected share.
pub(super) struct Share {
    life: RefCell<Rc<Life>>,
    /// How long the server may be away, and the flag of a user's interruption; `None` if a loss is an error.
    until: RefCell<Option<(Duration, Arc<AtomicBool>)>>,
    /// Held while the next session is made.
    renewing: Mutex<()>,
    /// Why there is no next session: further requests fail at once.
    given_up: OnceCell<String>,
    /// Traffic of lost sessions, and how many connections they had lost.
    before: Cell<(Traffic, u32)>,
}

impl Share {
    pub fn new(session: Session, tree: Tree, keeper: Keeper) -> Share {
        let life = Life::new(session, tree, keeper, 0);
        Share {
            life: RefCell::new(Rc::new(life)),
            until: RefCell::default(),
            renewing: Mutex::default(),
            given_up: OnceCell::new(),
            before: Cell::default(),
        }
    }

    /// From now on, losing all connections is an error only if the server stays away for `patience`, or `until` is
    /// raised. After one unsuccessful wait, further requests fail at once.
    pub fn outlast(&self, patience: Duration, until: Arc<AtomicBool>) {
        self.until.replace((!patience.is_zero()).then_some((patience, until)));
    }

    /// The current session.
    pub fn life(&self) -> Rc<Life> {
        self.life.borrow().clone()
    }

    /// How many sessions were lost.
    pub fn losses(&self) -> u32 {
        self.life.borrow().number
    }

    /// Total traffic.
    pub fn traffic(&self) -> Traffic {
        self.before.get().0 + self.life().session.traffic()
    }

    /// How many connections were lost while others remained.
    pub fn lost_connections(&self) -> u32 {
        self.before.get().1 + self.life().session.lost_connections()
    }

    fn lasts(&self) -> bool {
        self.until.borrow().is_some()
    }

    /// Runs an operation, and repeats it if its connections are lost.
    pub async fn with<T>(&self, op: impl AsyncFn(&Tree) -> Result<T, Error>) -> Result<T, Failure> {
        self.with_knowing(async |tree, _| op(tree).await).await
    }

    /// The same for an operation that needs to know whether it may have been carried out before.
    pub async fn with_knowing<T>(
        &self,
        op: impl AsyncFn(&Tree, bool) -> Result<T, Error>,
    ) -> Result<T, Failure> {
        let mut again = false;
        loop {
            let life = self.life();
            match op(&life.tree, again).await {
                Err(e) if e.is_loss() => self.renew(&life, e).await?,
                done => return Ok(done?),
            }
            again = true;
        }
    }

    /// Returns when a session newer than `lost` exists.
    async fn renew(&self, lost: &Life, why: Error) -> Result<(), Failure> {
        let Some((patience, until)) = self.until.borrow().clone() else { return Err(why.into()) };
        let _turn = self.renewing.lock().await;
        if self.losses() != lost.number {
            return Ok(());
        }
        if let Some(why) = self.given_up.get() {
            return Err(why.clone().into());
        }
        let give_up = |why: String| Failure::from(self.given_up.get_or_init(|| why).clone());
        tracing::warn!("{why}; reconnecting, for {} s at most", patience.as_secs());
        let (until_when, mut pause) = (rt::now() + patience, PAUSES.0);
        let mut last: Failure = why.into();
        // The announced limit holds: neither an attempt nor a pause exceeds it.
        let left = || until_when.since(rt::now());
        while !left().is_zero() {
            let attempt = async {
                match rt::timeout(ATTEMPT.min(left()), lost.next()).await {
                    Ok(next) => next,
                    Err(_) => Err("the server does not answer".into()),
                }
            };
            match unless(&until, attempt).await? {
                Ok(next) => {
                    let (traffic, connections) = self.before.get();
                    let traffic = traffic + lost.session.traffic();
                    self.before.set((traffic, connections + lost.session.lost_connections()));
                    self.life.replace(Rc::new(next));
                    tracing::info!("reconnected");
                    return Ok(());
                }
                Err(e) if is_final(&e) => return Err(give_up(e.to_string())),
                Err(e) => {
                    tracing::debug!("cannot reconnect: {e}");
                    last = e;
                }
            }
            unless(&until, rt::sleep(pause.min(left()))).await?;
            pause = (pause * 2).min(PAUSES.1);
        }
        Err(give_up(format!(
            "the connection was lost and could not be re-established within {patience:?}: {last}"
        )))
    }
}

/// Whether the server has refused, so that repeating is useless.
fn is_final(failure: &Failure) -> bool {
    failure.downcast_ref::<Error>().is_some_and(|e| !e.is_loss())
}

/// Waits, unless the user interrupts.
async fn unless<T>(until: &AtomicBool, what: impl Future<Output = T>) -> Result<T, Failure> {
    let raised = async {
        while !until.load(Ordering::Relaxed) {
            rt::sleep(ATTENTION).await;
        }
    };
    match select(pin!(what), pin!(raised)).await {
        Either::Left((done, _)) => Ok(done),
        Either::Right(_) => Err("interrupted while the connection was lost".into()),
    }
}

/// An open file of a share.
pub(super) struct Opened {
    share: Rc<Share>,
    path: String,
    writes: bool,
    /// The options for reopening it by name.
    by_name: OpenOptions,
    /// Its metadata when it was first opened.
    first: Stat,
    /// The file with its session's number.
    now: RefCell<(u32, File)>,
    /// Held while it is reopened.
    renewing: Mutex<()>,
    anew: Cell<bool>,
}

impl Opened {
    /// Opens a file.
    pub async fn new(share: &Rc<Share>, path: &str, options: OpenOptions) -> Result<Opened, Failure> {
        let kept = share.lasts();
        let number = Cell::new(0);
        let file = share.with(async |tree| {
            number.set(share.losses());
            if kept { tree.open_kept(path, options).await } else { tree.open(path, options).await }
        });
        let file = file.await?;
        Ok(Opened {
            share: share.clone(),
            path: path.to_owned(),
            writes: options != OpenOptions::read(),
            by_name: OpenOptions { disposition: OpenOptions::read().disposition, private: false, ..options },
            first: file.opened_as(),
            now: RefCell::new((number.get(), file)),
            renewing: Mutex::default(),
            anew: Cell::new(false),
        })
    }

    /// Runs an operation, and repeats it if its connections are lost.
    pub async fn with<T>(&self, op: impl AsyncFn(File) -> Result<T, Error>) -> Result<T, Failure> {
        loop {
            let life = self.share.life();
            let file = match self.of(&life) {
                Some(file) => Ok(file),
                None => self.again(&life).await?,
            };
            let done = match file {
                Ok(file) => op(file).await,
                Err(lost) => Err(lost),
            };
            match done {
                Err(e) if e.is_loss() => self.share.renew(&life, e).await?,
                done => return Ok(done?),
            }
        }
    }

    /// Whether the server has restarted since the file was opened: unflushed writes from before may be missing.
    pub fn is_anew(&self) -> bool {
        self.anew.get()
    }

    fn of(&self, life: &Life) -> Option<File> {
        let now = self.now.borrow();
        (now.0 == life.number).then(|| now.1.clone())
    }

    /// The same file in this session. The inner error means that this session is lost as well.
    async fn again(&self, life: &Life) -> Result<Result<File, Error>, Failure> {
        let _turn = self.renewing.lock().await;
        if let Some(file) = self.of(life) {
            return Ok(Ok(file));
        }
        let lost = self.now.borrow().1.clone();
        let file = match life.tree.reopen(&lost).await {
            Ok(file) => file,
            Err(e) if e.is_loss() => return Ok(Err(e)),
            Err(e) => {
                tracing::debug!("{} is opened by its name: {e}", self.path);
                match life.tree.open_kept(&self.path, self.by_name).await {
                    Ok(file) => self.check(&lost, file)?,
                    Err(e) if e.is_loss() => return Ok(Err(e)),
                    Err(e) => return Err(e.into()),
                }
            }
        };
        self.now.replace((life.number, file.clone()));
        Ok(Ok(file))
    }

    /// The file found by name, if it is the one that was open.
    fn check(&self, lost: &File, found: File) -> Result<File, Failure> {
        let (before, now) = (self.first, found.opened_as());
        if found.is_same_file(lost) == Some(false) || before.created != now.created {
            return Err("another file took its name while the connection was lost".into());
        }
        if !self.writes && (before.len, before.modified) != (now.len, now.modified) {
            return Err("the file changed while the connection was lost".into());
        }
        self.anew.set(true);
        Ok(found)
    }
}
