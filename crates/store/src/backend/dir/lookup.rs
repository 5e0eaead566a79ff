//! Finds a name in a directory: exactly, in another case, or by its 8.3 name.
//!
//! This takes one system call if the exact name exists, and another one if `folds` knows the spelling; otherwise the
//! directory is read. Only one task at a time reads a directory. Limits: [`MAX_FOLD_SCAN`] entries, in steps of
//! [`STEP`].

use std::collections::HashMap;
use std::os::fd::AsFd;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use futures_util::lock::Mutex as Queue;
use rustix::io::Errno;
use weft_machine::file::system::Descriptor;
use weft_machine::{clock, rt};

use super::folds::{self, CachedName, Learned};
use super::search::STEP;
use super::site::Site;
use super::{Folder, sys};
use crate::backend::names;
use crate::vfs::{Attr, Caller, Error, NodeId};

/// The maximum number of entries read by a look-up that ignores case. The scan costs about 0.2 microseconds per
/// entry, in steps, and happens only if the exact name does not exist and `folds` cannot exclude other spellings.
const MAX_FOLD_SCAN: usize = 1_000_000;

/// Serializes the tasks that read a directory for a name.
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

/// Marks a directory as being read into `folds`, until this is dropped.
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

/// The result of a look-up without reading the directory.
pub(super) enum Looked {
    /// The object with the name.
    Found(Attr),
    /// The exact name does not exist, and only reading the directory shows whether another spelling does.
    Unread {
        /// Whether all its names will be stored in `folds`; otherwise nothing can be stored.
        learns: bool,
    },
}

impl Folder {
    /// The object with exactly this name.
    pub(super) fn exact(&self, dir: NodeId, name: &[u8]) -> Result<Attr, Error> {
        match self.lookup(dir, name, false, &Caller::Server)? {
            Looked::Found(attr) => Ok(attr),
            Looked::Unread { .. } => Err(Error::NotFound),
        }
    }

    /// The object with this name, if that is known or takes one system call. The kernel judges whether the caller may
    /// look for names in the directory; the server then does so.
    pub(super) fn lookup(
        &self,
        dir: NodeId,
        name: &[u8],
        fold_case: bool,
        by: &Caller,
    ) -> Result<Looked, Error> {
        names::check(name)?;
        let fd = self.dir_fd(dir)?;
        let find = |name| match sys::stat_at(fd.as_fd(), name) {
            Err(Errno::NOENT) => Ok(None),
            found => Ok(Some(found?)),
        };
        if by.is_user() && (name == b"." || name == b"..") {
            // As for any name, the caller must be allowed to use those of the directory.
            by.run(|| find(b"."))?;
        }
        if name == b"." {
            return self.getattr(dir).map(Looked::Found);
        }
        if name == b".." {
            let (parent, _) = self.table().place(dir)?;
            return self.getattr(parent).map(Looked::Found);
        }
        match by.run(|| find(name))? {
            Some(stat) => self.seen(&stat, dir, name).map(Looked::Found),
            None if fold_case => {
                let stamp = sys::stat(fd.as_fd())?.stamp();
                let known = self.folds().ask(dir, stamp, &names::fold(name), clock::instant());
                match known {
                    CachedName::Absent => Err(Error::NotFound),
                    CachedName::Spelled(spelled) => match sys::stat_at(fd.as_fd(), &spelled) {
                        Ok(stat) => self.seen(&stat, dir, &spelled).map(Looked::Found),
                        // Another program removed it within one tick of the directory's times: look again.
                        Err(Errno::NOENT) => {
                            self.folds().forget(dir);
                            Ok(Looked::Unread { learns: true })
                        }
                        Err(e) => Err(e.into()),
                    },
                    CachedName::Perhaps => Ok(Looked::Unread { learns: false }),
                    CachedName::Nothing => Ok(Looked::Unread { learns: true }),
                }
            }
            None => Err(Error::NotFound),
        }
    }

    /// [`Folder::lookup`] by reading the directory, in steps between which other tasks run. Only one task reads a
    /// directory at a time: the others may then find the answer in `folds`. The caller may look for names in it.
    pub(super) async fn search_folded(
        self: &Arc<Folder>,
        site: &Site,
        dir: NodeId,
        name: &[u8],
    ) -> Result<Attr, Error> {
        let turn = self.turns.of(dir);
        let _turn = turn.lock().await;
        let wanted = name.to_vec();
        let learns =
            match self.step(site, move |folder| folder.lookup(dir, &wanted, true, &Caller::Server)).await? {
                Looked::Found(attr) => return Ok(attr),
                Looked::Unread { learns } => learns,
            };
        // From here on our own changes are tracked; the directory's times are read after that.
        let _reading = learns.then(|| Reading::begin(self, dir));
        let (wanted, now) = (names::fold(name), clock::instant());
        let opened = self.step(site, move |folder| {
            let fd = folder.dir_fd(dir)?;
            // Storing the names takes the whole directory; a mere search is finished.
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

    /// Opens a directory for reading its entries.
    pub(super) fn open_dir(&self, dir: NodeId) -> Result<Arc<Descriptor>, Error> {
        let open = sys::open_dir(&self.dir_fd(dir)?)?;
        Ok(Arc::new(Descriptor::new(open, Some(self.system_of(dir)?))))
    }
}
