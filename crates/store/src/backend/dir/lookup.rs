//! What has a name in a directory: as it is spelled, in another case, or by its 8.3 name.
//!
//! What: one system call where the name exists as it is spelled, another where `folds` knows how it is; otherwise the
//! directory is read. Owns: who reads which directory. Limits: [`MAX_FOLD_SCAN`] entries, in steps of [`STEP`].

use std::collections::HashMap;
use std::os::fd::AsFd;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use futures_util::lock::Mutex as Queue;
use rustix::io::Errno;
use weft_machine::file::system::Descriptor;
use weft_machine::{clock, rt};

use super::folds::{self, Known, Learned};
use super::search::STEP;
use super::site::Site;
use super::{Folder, sys};
use crate::backend::names;
use crate::vfs::{Attr, Error, NodeId};

/// Entries that a look-up without regard to case reads before it gives up. The scan costs about 0.2 microseconds an
/// entry, in steps, and happens only when the exact name does not exist and `folds` cannot say that no other spelling does.
const MAX_FOLD_SCAN: usize = 1_000_000;

/// Who reads a directory for a name, one after another.
#[derive(Default)]
pub(super) struct Turns(Mutex<HashMap<NodeId, Weak<Queue<()>>>>);

impl Turns {
    fn of(&self, dir: NodeId) -> Arc<Queue<()>> {
        let mut turns = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(turn) = turns.get(&dir).and_then(Weak::upgrade) {
            return turn;
        }
        turns.retain(|_, turn| turn.strong_count() > 0);
        let turn = Arc::default();
        turns.insert(dir, Arc::downgrade(&turn));
        turn
    }
}

/// A directory that is being learned, until this is dropped.
struct Reading<'a>(&'a Folder, NodeId);

impl Reading<'_> {
    fn begin(of: &Folder, dir: NodeId) -> Reading<'_> {
        of.folds().begin(dir);
        Reading(of, dir)
    }
}

impl Drop for Reading<'_> {
    fn drop(&mut self) {
        self.0.folds().end(self.1);
    }
}

/// What a look-up without reading the directory comes to.
pub(super) enum Looked {
    /// This has the name.
    Found(Attr),
    /// The name does not exist as it is spelled, and whether another spelling does takes reading the directory.
    Unread {
        /// All its names are to be learned; otherwise nothing is left to learn.
        learns: bool,
    },
}

impl Folder {
    /// What has this name, as it is spelled.
    pub(super) fn exact(&self, dir: NodeId, name: &[u8]) -> Result<Attr, Error> {
        match self.lookup(dir, name, false)? {
            Looked::Found(attr) => Ok(attr),
            Looked::Unread { .. } => Err(Error::NotFound),
        }
    }

    /// What has this name, where that is known or takes a system call.
    pub(super) fn lookup(&self, dir: NodeId, name: &[u8], fold_case: bool) -> Result<Looked, Error> {
        names::check(name)?;
        let fd = self.dir_fd(dir)?;
        if name == b"." {
            return self.getattr(dir).map(Looked::Found);
        }
        if name == b".." {
            let (parent, _) = self.table().place(dir)?;
            return self.getattr(parent).map(Looked::Found);
        }
        match sys::stat_at(fd.as_fd(), name) {
            Ok(stat) => self.seen(&stat, dir, name).map(Looked::Found),
            Err(Errno::NOENT) if fold_case => {
                let stamp = sys::stat(fd.as_fd())?.stamp();
                let known = self.folds().ask(dir, stamp, &names::fold(name), clock::instant());
                match known {
                    Known::Absent => Err(Error::NotFound),
                    Known::Spelled(spelled) => match sys::stat_at(fd.as_fd(), &spelled) {
                        Ok(stat) => self.seen(&stat, dir, &spelled).map(Looked::Found),
                        // Somebody else took it away too quickly for the directory's times to tell: look again.
                        Err(Errno::NOENT) => {
                            self.folds().forget(dir);
                            Ok(Looked::Unread { learns: true })
                        }
                        Err(e) => Err(e.into()),
                    },
                    Known::Perhaps => Ok(Looked::Unread { learns: false }),
                    Known::Nothing => Ok(Looked::Unread { learns: true }),
                }
            }
            Err(e) => Err(e.into()),
        }
    }

    /// [`Folder::lookup`] by reading the directory, in steps between which others have their turn. One reads a directory at a time: the
    /// others may then know what they want without reading it again.
    pub(super) async fn search_folded(
        self: &Arc<Folder>,
        site: &Site,
        dir: NodeId,
        name: &[u8],
    ) -> Result<Attr, Error> {
        let turn = self.turns.of(dir);
        let _turn = turn.lock().await;
        let wanted = name.to_vec();
        let learns = match self.step(site, move |folder| folder.lookup(dir, &wanted, true)).await? {
            Looked::Found(attr) => return Ok(attr),
            Looked::Unread { learns } => learns,
        };
        // What we change from here on is told; its times are asked for after that.
        let _reading = learns.then(|| Reading::begin(self, dir));
        let (wanted, now) = (names::fold(name), clock::instant());
        let opened = self.step(site, move |folder| {
            let fd = folder.dir_fd(dir)?;
            // Learning takes the whole directory; who only wants to find is done.
            let stamp = learns.then(|| sys::stat(fd.as_fd())).transpose()?.map(|stat| stat.stamp());
            Ok((folder.open_dir(dir)?, stamp))
        });
        let (open, stamp) = opened.await?;
        let mut learned = stamp.map(|stamp| (stamp, Learned::default()));
        let (mut cookie, mut scanned) = (0, 0);
        let mut found: Option<Vec<u8>> = None;
        loop {
            let from = open.clone();
            let (batch, end) =
                self.step(site, move |_| Ok(sys::entries(from.as_fd(), cookie, STEP)?)).await?;
            scanned += batch.len();
            cookie = batch.last().map_or(cookie, |last| last.cookie);
            if found.is_none() {
                let called = batch.iter().find(|raw| names::is_called(&raw.name, &wanted));
                found = called.map(|raw| raw.name.clone());
            }
            if scanned > folds::MAX_KEYS {
                learned = None;
            }
            if let Some((_, learned)) = &mut learned {
                batch.into_iter().for_each(|raw| learned.add(raw.name));
            }
            if end || (found.is_some() && learned.is_none()) {
                break;
            }
            if scanned >= MAX_FOLD_SCAN {
                return Err(Error::Limit("entries of a directory searched without regard to case"));
            }
            rt::yield_now().await;
        }
        if let Some((stamp, learned)) = learned {
            self.folds().learn(dir, stamp, learned, now);
        }
        let spelled = found.ok_or(Error::NotFound)?;
        let seen = self.step(site, move |folder| {
            let fd = folder.dir_fd(dir)?;
            folder.seen(&sys::stat_at(fd.as_fd(), &spelled)?, dir, &spelled)
        });
        seen.await
    }

    /// A directory opened for reading its entries.
    pub(super) fn open_dir(&self, dir: NodeId) -> Result<Arc<Descriptor>, Error> {
        let open = sys::open_dir(&self.dir_fd(dir)?)?;
        Ok(Arc::new(Descriptor::new(open, Some(self.system_of(dir)?))))
    }
}
