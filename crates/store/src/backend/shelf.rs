//! A flat folder of predefined files with fixed names.
//!
//! [`Shelf`] turns [`Items`], a list of things that can be opened, into a backend. Creating, removing, renaming and
//! resizing are refused as on a read-only disk.

use futures_util::future::LocalBoxFuture;
use weft_machine::clock;

use super::names;
use crate::vfs::{
    Attr, Backend, Caller, Created, DirName, Entry, Error, Exists, Hold, Kind, Listing, Make, NodeId, Op,
    OpenFile, Outcome, SetAttr, Space, Stable, Timestamp, XattrSummary,
};

/// Entries that one [`Op::Readdir`] returns at most.
const MAX_ENTRIES: usize = 1024;
/// Only for the server's own user: over NFS nobody else has access.
const FILE_MODE: u32 = 0o600;
const DIR_MODE: u32 = 0o700;

/// A file on a shelf.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Item {
    /// Its number: not 0, not the root's, and the same as long as it can be found.
    pub node: NodeId,
    /// Its name.
    pub name: Vec<u8>,
    /// Bytes.
    pub size: u64,
}

/// The items on a shelf.
pub trait Items: Send + Sync + 'static {
    /// The kind of the share: "volumes".
    fn kind(&self) -> &'static str;
    /// All listed items, in an order that is stable as long as the list is.
    fn list(&self) -> Vec<Item>;
    /// The item with this name, ignoring case if `fold_case`; includes unlisted ones.
    fn by_name(&self, name: &[u8], fold_case: bool) -> Option<Item> {
        let list = self.list();
        let folded = fold_case.then(|| super::fold(name));
        let same = |item: &&Item| item.name == name;
        let alike = |item: &&Item| folded.as_ref().is_some_and(|folded| super::fold(&item.name) == *folded);
        list.iter().find(same).or_else(|| list.iter().find(alike)).cloned()
    }
    /// The item with this number.
    fn by_node(&self, node: NodeId) -> Option<Item> {
        self.list().into_iter().find(|item| item.node == node)
    }
    /// Opens an item.
    fn open(&self, node: NodeId, write: bool) -> Result<OpenFile, Error>;
}

/// See the module.
pub struct Shelf<I> {
    items: I,
    made: Timestamp,
}

impl<I: Items> Shelf<I> {
    /// A shelf of these items.
    pub fn new(items: I) -> Shelf<I> {
        let since = clock::wall();
        let made = Timestamp { secs: since.as_secs().cast_signed(), nanos: since.subsec_nanos() };
        Shelf { items, made }
    }

    fn attr(&self, node: NodeId, kind: Kind, size: u64) -> Attr {
        let (mode, nlink) = if kind == Kind::Dir { (DIR_MODE, 2) } else { (FILE_MODE, 1) };
        Attr {
            node,
            fileid: node.0,
            stable: Self::stable(node),
            kind,
            size,
            allocated: size,
            nlink,
            mode,
            uid: rustix::process::geteuid().as_raw(),
            gid: rustix::process::getegid().as_raw(),
            atime: self.made,
            mtime: self.made,
            ctime: self.made,
            btime: self.made,
            is_sealed: false,
        }
    }

    fn root(&self) -> Attr {
        self.attr(NodeId::ROOT, Kind::Dir, 0)
    }

    fn of(&self, item: &Item) -> Attr {
        self.attr(item.node, Kind::File, item.size)
    }

    fn getattr(&self, node: NodeId) -> Result<Attr, Error> {
        if node == NodeId::ROOT {
            return Ok(self.root());
        }
        self.items.by_node(node).map(|item| self.of(&item)).ok_or(Error::Stale)
    }

    fn in_root(dir: NodeId) -> Result<(), Error> {
        if dir == NodeId::ROOT { Ok(()) } else { Err(Error::NotDir) }
    }

    fn lookup(&self, dir: NodeId, name: &[u8], fold_case: bool) -> Result<Attr, Error> {
        Self::in_root(dir)?;
        names::check(name)?;
        if name == b"." || name == b".." {
            return Ok(self.root());
        }
        self.items.by_name(name, fold_case).map(|item| self.of(&item)).ok_or(Error::NotFound)
    }

    /// Times and owners never change; setting them succeeds without effect, because clients set times after a copy.
    fn setattr(&self, node: NodeId, set: &SetAttr) -> Result<Attr, Error> {
        let attr = self.getattr(node)?;
        match set.size {
            Some(size) if size != attr.size || attr.kind == Kind::Dir => Err(Error::NotPermitted),
            _ => Ok(attr),
        }
    }

    fn create(
        &self,
        dir: NodeId,
        name: &[u8],
        make: &Make,
        exists: Exists,
        set: &SetAttr,
    ) -> Result<Attr, Error> {
        match self.lookup(dir, name, false) {
            Ok(attr) => {
                super::may_reuse(&attr, make, exists)?;
                self.setattr(attr.node, set)
            }
            Err(Error::NotFound) => Err(Error::ReadOnly),
            Err(e) => Err(e),
        }
    }

    fn readdir(&self, cookie: u64, max: usize, xattrs: bool) -> Listing {
        let list = self.items.list();
        let from = usize::try_from(cookie).unwrap_or(usize::MAX).min(list.len());
        let to = list.len().min(from.saturating_add(max.min(MAX_ENTRIES)));
        let entry = |(i, item): (usize, &Item)| Entry {
            name: item.name.clone(),
            cookie: i as u64 + 1,
            attr: Ok(self.of(item)),
            xattrs: xattrs.then(XattrSummary::default),
        };
        Listing {
            entries: list[from..to].iter().enumerate().map(|(i, item)| entry((from + i, item))).collect(),
            is_last: to == list.len(),
        }
    }

    fn stable(node: NodeId) -> Stable {
        let mut bytes = [0; 24];
        bytes[..8].copy_from_slice(&node.0.to_le_bytes());
        Stable(bytes)
    }

    fn carry_out(&self, op: Op) -> Result<Outcome, Error> {
        Ok(match op {
            Op::Lookup { dir, name, fold_case } => Outcome::Attr(self.lookup(dir, &name, fold_case)?),
            Op::Getattr { node } => Outcome::Attr(self.getattr(node)?),
            Op::Setattr { node, set } => Outcome::Attr(self.setattr(node, &set)?),
            Op::Open { node, write } => match self.getattr(node)?.kind {
                Kind::Dir => return Err(Error::IsDir),
                _ => Outcome::File(self.items.open(node, write)?),
            },
            Op::Create { dir, name, make, exists, set } => Outcome::Created(Created {
                attr: self.create(dir, &name, &make, exists, &set)?,
                is_new: false,
            }),
            Op::Remove { .. } | Op::Rmdir { .. } | Op::Rename { .. } | Op::Link { .. } => {
                return Err(Error::ReadOnly);
            }
            Op::Readlink { .. } => return Err(Error::Invalid),
            Op::Readdir { dir, cookie, max, xattrs } => {
                Self::in_root(dir)?;
                Outcome::Entries(self.readdir(cookie, max, xattrs))
            }
            Op::Place { node } if node == NodeId::ROOT => {
                Outcome::Place(DirName { dir: NodeId::ROOT, name: b".".to_vec() })
            }
            Op::Place { node } => {
                let item = self.items.by_node(node).ok_or(Error::Stale)?;
                Outcome::Place(DirName { dir: NodeId::ROOT, name: item.name })
            }
            Op::Statfs => {
                let list = self.items.list();
                let total = list.iter().map(|item| item.size).sum();
                let files = list.len() as u64;
                Outcome::Space(Space { total, free: 0, available: 0, files, files_free: 0 })
            }
            Op::SyncDir { dir } => Self::in_root(dir).map(|()| Outcome::Done)?,
            Op::SyncAll { .. } => Outcome::Done,
            Op::Hold { node } => {
                self.getattr(node)?;
                Outcome::Held(Hold::new(std::sync::Arc::new(())))
            }
            Op::GetXattr { .. } | Op::RemoveXattr { .. } => return Err(Error::NoXattr),
            Op::SetXattr { .. } => return Err(Error::NotSupported),
            Op::ListXattrs { .. } => Outcome::Names(Vec::new()),
            Op::XattrSummary { .. } => Outcome::XattrSummary(XattrSummary::default()),
            Op::MayUnlink { .. } => Outcome::Done,
            Op::Access { wanted, .. } => Outcome::Permissions(wanted),
            Op::Stable { node } => {
                self.getattr(node)?;
                Outcome::Stable(Self::stable(node))
            }
            Op::Find { stable } => {
                let node = NodeId(u64::from_le_bytes(std::array::from_fn(|i| stable.0[i])));
                if Self::stable(node) != stable {
                    return Err(Error::Stale);
                }
                Outcome::Attr(self.getattr(node)?)
            }
        })
    }
}

impl<I: Items> Backend for Shelf<I> {
    fn kind(&self) -> &'static str {
        self.items.kind()
    }

    fn attr_now(&self, node: NodeId) -> Option<Result<Attr, Error>> {
        Some(self.getattr(node))
    }

    fn submit(&self, op: Op, _by: Caller) -> LocalBoxFuture<'_, Result<Outcome, Error>> {
        Box::pin(std::future::ready(self.carry_out(op)))
    }
}
