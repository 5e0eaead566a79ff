//! Operations whose file system does not block, on the calling core. What waits for the disk by design runs on a worker.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use futures_util::future::LocalBoxFuture;
use rustix::fs::OFlags;
use rustix::io::Errno;
use weft_machine::file::busy::{self, Inode, Unlocked};
use weft_machine::file::ending::MUCH_BYTES;
use weft_machine::recorder::{self, Hop};
use weft_machine::{clock, rt};

use super::lookup::Looked;
use super::site::Site;
use super::{Done, Folder, sys};
use crate::vfs::{Caller, Created, Error, Exists, Kind, Make, NodeId, Op, Outcome, SetAttr};

impl Folder {
    /// Runs an operation whose file system does not block.
    pub(super) fn on_core(
        self: &Arc<Folder>,
        op: Op,
        by: Caller,
    ) -> LocalBoxFuture<'_, Result<Outcome, Error>> {
        if let Some(unlocked) = Unlocked::all() {
            return self.begin(op, by, &unlocked);
        }
        if let Ok(unlocked) = Unlocked::now(self.locks(&op)) {
            return self.begin(op, by, &unlocked);
        }
        Box::pin(async move {
            let unlocked = self.unlocked(&op).await;
            let begun = self.begin(op, by, &unlocked);
            // The locked files of this core are done; work on a worker claims the file itself.
            drop(unlocked);
            begun.await
        })
    }

    /// Runs the parts of an operation that this core can do, and answers the rest.
    fn begin<'a>(
        self: &'a Arc<Folder>,
        op: Op,
        by: Caller,
        unlocked: &Unlocked,
    ) -> LocalBoxFuture<'a, Result<Outcome, Error>> {
        match op {
            // It changes nothing, and needs no permission of the caller.
            Op::Getattr { node } => Box::pin(std::future::ready(self.getattr(node).map(Outcome::Attr))),
            Op::SyncDir { dir } => Box::pin(async move {
                recorder::at(Hop::Disk, rt::blocking(self.sync_dir(dir)?)).await?;
                Ok(Outcome::Done)
            }),
            // Syncing a whole file system takes long: it runs in the places of lengthy work.
            Op::SyncAll { node } => Box::pin(async move {
                recorder::at(Hop::Disk, rt::lengthy(self.sync_all(node))).await?;
                Ok(Outcome::Done)
            }),
            Op::Find { stable } => {
                Box::pin(async move { self.find(&Site::Core(None), stable).await.map(Outcome::Attr) })
            }
            Op::Lookup { dir, name, fold_case } => match self.lookup(dir, &name, fold_case, &by) {
                Ok(Looked::Found(attr)) => Box::pin(std::future::ready(Ok(Outcome::Attr(attr)))),
                Ok(Looked::Unread { .. }) => Box::pin(async move {
                    self.search_folded(&Site::Core(None), dir, &name).await.map(Outcome::Attr)
                }),
                Err(e) => Box::pin(std::future::ready(Err(e))),
            },
            Op::Setattr { node, set: SetAttr { size: Some(size), .. } }
                if self.has_much_behind(node, size) =>
            {
                Box::pin(async move {
                    self.shrink(node, size, &by).await?;
                    let unlocked = self.unlocked(&op).await;
                    self.carry_out(op, &by, &unlocked).map(|done| done.outcome)
                })
            }
            Op::Create { dir, name, make: Make::File, exists: Exists::Reuse, set }
                if set.size.is_some() && self.is_large(dir, &name) =>
            {
                Box::pin(self.create_emptied(dir, name, set, by))
            }
            op => match self.carry_out(op, &by, unlocked) {
                Ok(Done { outcome, ending: Some(ending) }) => Box::pin(async move {
                    // When this is answered the space is free, unless a client has the file open.
                    rt::lengthy(move || ending.close()).await;
                    Ok(outcome)
                }),
                done => Box::pin(std::future::ready(done.map(|done| done.outcome))),
            },
        }
    }

    /// Creates a file, or truncates the existing one.
    async fn create_emptied(
        self: &Arc<Folder>,
        dir: NodeId,
        name: Vec<u8>,
        set: SetAttr,
        by: Caller,
    ) -> Result<Outcome, Error> {
        let (size, set) = (set.size, SetAttr { size: None, ..set });
        let make = Op::Create { dir, name, make: Make::File, exists: Exists::Reuse, set };
        let unlocked = self.unlocked(&make).await;
        let made = self.carry_out(make, &by, &unlocked)?.outcome;
        // The truncation waits by itself.
        drop(unlocked);
        let Outcome::Created(Created { attr, is_new }) = made else {
            return Err(Error::Invalid);
        };
        let set = SetAttr { size, ..SetAttr::default() };
        match self.on_core(Op::Setattr { node: attr.node, set }, by).await? {
            Outcome::Attr(attr) => Ok(Outcome::Created(Created { attr, is_new })),
            _ => Err(Error::Invalid),
        }
    }

    /// Truncates a file where waiting is possible.
    async fn shrink(&self, node: NodeId, size: u64, by: &Caller) -> Result<(), Error> {
        let file = self.to_shrink(node, by)?;
        let inode = Inode::of(&file)?;
        Ok(busy::lengthy(inode, move || rustix::fs::ftruncate(&file, size)).await?)
    }

    /// A file that is about to be truncated.
    pub(super) fn to_shrink(&self, node: NodeId, by: &Caller) -> Result<OwnedFd, Error> {
        let (fd, kind) = (self.fd(node)?, self.table().kind(node)?);
        let file = by.run(|| self.reopen(&fd, kind, OFlags::WRONLY))?;
        if let Some(observer) = self.observer.get().and_then(Option::as_ref) {
            observer.own().content(node, clock::instant());
        }
        Ok(file)
    }

    pub(super) fn is_large(&self, dir: NodeId, name: &[u8]) -> bool {
        self.dir_fd(dir).is_ok_and(|fd| self.named(&fd, name).1.is_some())
    }

    /// Whether truncating a file to `size` may free much space: all its data may lie behind `size`.
    pub(super) fn has_much_behind(&self, node: NodeId, size: u64) -> bool {
        let stat = self.fd(node).and_then(|fd| Ok(sys::stat(fd.as_fd())?));
        stat.is_ok_and(|stat| {
            let reserved = stat.allocated().saturating_sub(stat.size());
            let behind = stat.size().saturating_sub(size).saturating_add(reserved);
            stat.kind() == Kind::File && stat.size() >= size && stat.allocated().min(behind) >= MUCH_BYTES
        })
    }

    /// The files whose inode locks an operation takes on this core while a worker may hold them (see [`busy`]). Only
    /// regular files are ever claimed.
    pub(super) fn locks(&self, op: &Op) -> Vec<Inode> {
        let named = |dir: &NodeId, name: &[u8]| {
            self.dir_fd(*dir).ok().and_then(|dir| Inode::named(dir.as_fd(), name).ok())
        };
        let locked = match op {
            Op::Setattr { node, .. }
            | Op::SetXattr { node, .. }
            | Op::RemoveXattr { node, .. }
            | Op::Link { node, .. } => [self.fd(*node).ok().and_then(|fd| Inode::of(&*fd).ok()), None],
            Op::Create { dir, name, make: Make::File, exists: Exists::Reuse, set } if set.size.is_some() => {
                [named(dir, name), None]
            }
            Op::Remove { dir, name } => [named(dir, name), None],
            Op::Rename { from, to, .. } => [named(&from.dir, &from.name), named(&to.dir, &to.name)],
            _ => [None, None],
        };
        locked.into_iter().flatten().collect()
    }

    /// Waits until no worker holds a file whose lock `op` takes on this core.
    async fn unlocked(&self, op: &Op) -> Unlocked {
        let mut locks = self.locks(op);
        loop {
            let unlocked = busy::shared(locks).await;
            // Meanwhile its names may have been given to other files.
            locks = self.locks(op);
            if unlocked.covers(&locks) {
                return unlocked;
            }
        }
    }

    /// Makes a directory's entries durable; the result blocks when it is called.
    pub(super) fn sync_dir(
        &self,
        dir: NodeId,
    ) -> Result<impl FnOnce() -> Result<(), Errno> + Send + 'static, Error> {
        let open = sys::open_dir(&self.dir_fd(dir)?)?;
        Ok(move || rustix::fs::fsync(open))
    }

    /// Makes all data on the file system of a node durable; the result blocks when it is called.
    pub(super) fn sync_all(&self, node: NodeId) -> impl FnOnce() -> Result<(), Errno> + Send + 'static {
        let dir = self.any_dir_beside(node);
        move || match dir {
            Some(dir) => rustix::fs::syncfs(dir),
            // If there is no directory that the server may read or has open, sync everything.
            None => {
                rustix::fs::sync();
                Ok(())
            }
        }
    }

    /// Any directory on the file system of a node that can be opened.
    fn any_dir_beside(&self, node: NodeId) -> Option<OwnedFd> {
        let device = self.fd(node).and_then(|fd| Ok(sys::stat(fd.as_fd())?.identity().device())).ok();
        let above = self.place(node).map_or(NodeId::ROOT, |place| place.dir);
        [node, above, NodeId::ROOT].into_iter().find_map(|dir| {
            let open = sys::open_dir(&self.dir_fd(dir).ok()?).ok()?;
            let of = sys::stat(open.as_fd()).ok()?.identity().device();
            let same = device == Some(of);
            same.then_some(open)
        })
    }
}
