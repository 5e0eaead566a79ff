//! A memory disk as a share: a tree in memory, the bytes of each file in a memfd.
//!
//! Files are memfds, so that a READ takes the same path as from a folder: a file range that the transport splices or
//! reads into the peer's memory. Small files that nobody has open need none (see `content`). Nothing survives the
//! process.
//! Limits: bytes (given), names (`MAX_NAMES` or one per page of the limit), and descriptors: a quarter of what the
//! process may have, for files that are open or longer than a megabyte. Permissions are not enforced, because there
//! is only one user.

mod content;
mod quota;
mod tree;
mod xattrs;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use futures_util::future::LocalBoxFuture;
use weft_machine::random;

use self::content::Content;
#[cfg(test)]
pub(super) use self::quota::MAX_FILE_BYTES;
use self::quota::Usage;
use self::tree::{Body, Entries, Tree};
use super::names;
use crate::vfs::{
    Attr, Backend, Caller, Created, Entry, Error, Exists, Hold, Kind, Listing, Make, NodeId, Op, OpenFile,
    Outcome, SetAttr, Space, Stable, Vfs,
};

/// Maximum number of names in a share of any size, at about 600 bytes each.
const MAX_NAMES: usize = 1 << 20;
/// Number of names that even the smallest share can hold.
const MIN_NAMES: usize = 1 << 14;
/// Entries that one [`Op::Readdir`] returns at most.
const MAX_ENTRIES: usize = 4096;

/// A memory disk.
pub struct Ram(Arc<Shared>);

struct Shared {
    tree: Mutex<Tree>,
    usage: Arc<Usage>,
}

impl Shared {
    // Only the growth of a map could panic under the lock.
    fn tree(&self) -> MutexGuard<'_, Tree> {
        self.tree.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// An open's claim on a node.
struct Held {
    shared: Weak<Shared>,
    node: NodeId,
}

impl Drop for Held {
    fn drop(&mut self) {
        if let Some(shared) = self.shared.upgrade() {
            shared.tree().release(self.node);
        }
    }
}

impl Ram {
    /// An empty disk whose files may occupy `limit_bytes` together.
    pub fn new(limit_bytes: u64) -> Ram {
        Ram::with_descriptors(limit_bytes, super::descriptor_limit() / 4)
    }

    /// The same, with a limit on its files' descriptors.
    pub(super) fn with_descriptors(limit_bytes: u64, descriptors: usize) -> Ram {
        let pages = usize::try_from(limit_bytes / 4096).unwrap_or(usize::MAX);
        // Distinguishes this disk's files from another's; a system without random numbers serves no clients anyway.
        let serial = u64::from_ne_bytes(random::bytes().expect("random numbers"));
        let tree = Tree::new(pages.clamp(MIN_NAMES, MAX_NAMES), serial);
        Ram(Arc::new(Shared {
            tree: Mutex::new(tree),
            usage: Arc::new(Usage::new(limit_bytes, descriptors)),
        }))
    }

    fn lookup(&self, dir: NodeId, name: &[u8], fold_case: bool) -> Result<Attr, Error> {
        names::check(name)?;
        let tree = self.0.tree();
        let entries = tree.entries(dir)?;
        let node = match name {
            b"." => dir,
            b".." => tree.parent(dir)?,
            name => entries
                .find(name)
                .or_else(|| if fold_case { entries.find_folded(name) } else { None })
                .ok_or(Error::NotFound)?,
        };
        tree.attr(node)
    }

    fn create(
        &self,
        dir: NodeId,
        name: &[u8],
        make: Make,
        exists: Exists,
        set: SetAttr,
    ) -> Result<Created, Error> {
        names::check_entry(name)?;
        let mut tree = self.0.tree();
        if let Some(node) = tree.entries(dir)?.find(name) {
            let attr = tree.attr(node)?;
            super::may_reuse(&attr, &make, exists)?;
            if let (Make::File, Exists::Reuse, Some(_)) = (&make, exists, set.size) {
                tree.set(node, &SetAttr { size: set.size, ..SetAttr::default() }, &self.0.usage)?;
            }
            return Ok(Created { attr: tree.attr(node)?, is_new: false });
        }
        let (body, mode) = match make {
            Make::File => (Body::File(Content::Empty), super::FILE_MODE),
            Make::Dir => (Body::Dir(Entries::default()), super::DIR_MODE),
            Make::Symlink(target) => {
                names::check_target(&target)?;
                (Body::Symlink(target), 0o777)
            }
            Make::Special(special) => (Body::Special(special), super::FILE_MODE),
        };
        let is_dir = matches!(body, Body::Dir(_));
        // A new directory inherits the set-group-id bit of its parent (mkdir(2)).
        let inherited = if is_dir { tree.attr(dir)?.mode & 0o2000 } else { 0 };
        let node = tree.add(dir, name, body, mode | inherited)?;
        let set = super::with_verifier(set, exists);
        let set = SetAttr { mode: set.mode.map(|mode| mode | inherited), ..set };
        // A new file is empty, so size 0 needs no memfd.
        let set = SetAttr { size: set.size.filter(|&size| size != 0), ..set };
        let made = tree.set(node, &set, &self.0.usage);
        match made.and_then(|()| tree.attr(node)) {
            Ok(attr) => Ok(Created { attr, is_new: true }),
            Err(e) => {
                tree.remove(dir, name, is_dir)?;
                Err(e)
            }
        }
    }

    fn setattr(&self, node: NodeId, set: &SetAttr) -> Result<Attr, Error> {
        let mut tree = self.0.tree();
        tree.set(node, set, &self.0.usage)?;
        tree.attr(node)
    }

    fn open_file(&self, node: NodeId, write: bool) -> Result<OpenFile, Error> {
        let data = self.0.tree().data(node, &self.0.usage)?;
        let file = OpenFile::of_file(node, data.file.clone()).limited(data);
        Ok(if write { file } else { file.read_only() })
    }

    fn readdir(&self, dir: NodeId, cookie: u64, max: usize, xattrs: bool) -> Result<Listing, Error> {
        let tree = self.0.tree();
        let mut after = tree.entries(dir)?.after(cookie);
        let entries = after
            .by_ref()
            .take(max.min(MAX_ENTRIES))
            .map(|(cookie, name, node)| {
                let found = tree.node(node)?;
                let xattrs = xattrs.then(|| found.xattr_summary());
                Ok(Entry { name: name.to_vec(), cookie, attr: Ok(tree.attr(node)?), xattrs })
            })
            .collect::<Result<Vec<_>, Error>>()?;
        Ok(Listing { entries, is_last: after.next().is_none() })
    }

    fn readlink(&self, node: NodeId) -> Result<Vec<u8>, Error> {
        match &self.0.tree().node(node)?.body {
            Body::Symlink(target) => Ok(target.clone()),
            _ => Err(Error::Invalid),
        }
    }

    fn find(&self, stable: &Stable) -> Result<Attr, Error> {
        let node = NodeId(u64::from_le_bytes(std::array::from_fn(|i| stable.0[i])));
        let tree = self.0.tree();
        if tree.stable(node) != *stable {
            return Err(Error::Stale);
        }
        tree.attr(node)
    }

    fn statfs(&self) -> Space {
        let free = self.0.usage.free_bytes();
        let tree = self.0.tree();
        Space {
            total: self.0.usage.limit_bytes(),
            free,
            available: free,
            files: tree.max_names() as u64,
            files_free: tree.free_names() as u64,
        }
    }

    fn carry_out(&self, op: Op) -> Result<Outcome, Error> {
        Ok(match op {
            Op::Lookup { dir, name, fold_case } => Outcome::Attr(self.lookup(dir, &name, fold_case)?),
            Op::Getattr { node } => Outcome::Attr(self.0.tree().attr(node)?),
            Op::Setattr { node, set } => Outcome::Attr(self.setattr(node, &set)?),
            Op::Open { node, write } => Outcome::File(self.open_file(node, write)?),
            Op::Create { dir, name, make, exists, set } => {
                Outcome::Created(self.create(dir, &name, make, exists, set)?)
            }
            Op::Remove { dir, name } => {
                names::check_entry(&name)?;
                Outcome::Unlinked(self.0.tree().remove(dir, &name, false)?)
            }
            Op::Rmdir { dir, name } => {
                names::check_entry(&name)?;
                Outcome::Unlinked(self.0.tree().remove(dir, &name, true)?)
            }
            Op::Rename { from, to, replace } => {
                names::check_entry(&from.name)?;
                names::check_entry(&to.name)?;
                Outcome::Unlinked(self.0.tree().rename(from.borrow(), to.borrow(), replace)?)
            }
            Op::Link { node, dir, name } => {
                names::check_entry(&name)?;
                self.0.tree().link(node, dir, &name)?;
                Outcome::Done
            }
            Op::Readlink { node } => Outcome::Target(self.readlink(node)?),
            Op::Readdir { dir, cookie, max, xattrs } => {
                Outcome::Entries(self.readdir(dir, cookie, max, xattrs)?)
            }
            Op::Place { node } => Outcome::Place(self.0.tree().place(node)?),
            Op::Statfs => Outcome::Space(self.statfs()),
            // Memory has nothing to make durable, but a non-directory is still an error.
            Op::SyncDir { dir } => match self.0.tree().node(dir)?.kind() {
                Kind::Dir => Outcome::Done,
                _ => return Err(Error::NotDir),
            },
            Op::SyncAll { .. } | Op::MayUnlink { .. } => Outcome::Done,
            Op::Access { node, wanted } => {
                self.0.tree().node(node)?;
                Outcome::Permissions(wanted)
            }
            Op::GetXattr { node, name } => {
                names::check_xattr(&name)?;
                Outcome::Value(self.0.tree().node(node)?.xattrs.get(&name)?)
            }
            Op::SetXattr { node, name, value, how } => {
                names::check_xattr(&name)?;
                self.0.tree().xattrs_mut(node)?.set(name, value, how, &self.0.usage)?;
                Outcome::Done
            }
            Op::ListXattrs { node } => Outcome::Names(self.0.tree().node(node)?.xattrs.names()),
            Op::RemoveXattr { node, name } => {
                names::check_xattr(&name)?;
                // Looked up first, so that a link answers like a file without attributes.
                self.0.tree().node(node)?.xattrs.get(&name)?;
                self.0.tree().xattrs_mut(node)?.remove(&name)?;
                Outcome::Done
            }
            Op::XattrSummary { node } => Outcome::XattrSummary(self.0.tree().node(node)?.xattr_summary()),
            Op::Stable { node } => Outcome::Stable(self.0.tree().attr(node)?.stable),
            Op::Find { stable } => Outcome::Attr(self.find(&stable)?),
            Op::Hold { node } => {
                self.0.tree().hold(node)?;
                Outcome::Held(Hold::new(Arc::new(Held { shared: Arc::downgrade(&self.0), node })))
            }
        })
    }
}

impl Backend for Ram {
    fn kind(&self) -> &'static str {
        "ram"
    }

    fn attr_now(&self, node: NodeId) -> Option<Result<Attr, Error>> {
        Some(self.0.tree().attr(node))
    }

    fn submit(&self, op: Op, _by: Caller) -> LocalBoxFuture<'_, Result<Outcome, Error>> {
        Box::pin(std::future::ready(self.carry_out(op)))
    }
}

impl From<Ram> for Vfs {
    fn from(ram: Ram) -> Vfs {
        Vfs::new(ram)
    }
}
