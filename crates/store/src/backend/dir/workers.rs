//! Carries out an operation on workers, because its file system may block.

use std::sync::Arc;

use weft_machine::file::busy::{self, Inode, Unlocked};
use weft_machine::file::system::FileSystem;
use weft_machine::recorder::{self, Hop};

use super::Folder;
use super::lookup::Looked;
use super::site::Site;
use crate::vfs::{Caller, DirName, Error, Exists, Make, NodeId, Op, Outcome, SetAttr};

impl Folder {
    /// Runs an operation on workers.
    pub(super) async fn on_workers(
        self: Arc<Folder>,
        system: Arc<FileSystem>,
        op: Op,
        by: Caller,
    ) -> Result<Outcome, Error> {
        let site = Site::Workers(system.clone());
        match op {
            Op::SyncDir { dir } => {
                let sync = move || Ok::<_, Error>(self.sync_dir(dir)?()?);
                recorder::at(Hop::Disk, system.data(sync)).await?.map(|()| Outcome::Done)
            }
            Op::SyncAll { node } => {
                recorder::at(Hop::Disk, system.data(move || self.sync_all(node)())).await??;
                Ok(Outcome::Done)
            }
            Op::Find { stable } => self.find(&site, stable).await.map(Outcome::Attr),
            Op::Lookup { dir, name, fold_case } => {
                let wanted = name.clone();
                match self.step(&site, move |folder| folder.lookup(dir, &wanted, fold_case, &by)).await? {
                    Looked::Found(attr) => Ok(Outcome::Attr(attr)),
                    Looked::Unread { .. } => self.search_folded(&site, dir, &name).await.map(Outcome::Attr),
                }
            }
            Op::Setattr { node, set: SetAttr { size: Some(size), .. } } => {
                self.shrink_alone(&site, node, size, &by).await?;
                self.whole(&site, op, by).await
            }
            Op::Create { dir, name, make: Make::File, exists: Exists::Reuse, set } if set.size.is_some() => {
                let (found, finder) = (name.clone(), by.clone());
                let emptied = move |folder: &Folder| {
                    if !folder.is_large(dir, &found) {
                        return Ok(None);
                    }
                    Ok(match folder.lookup(dir, &found, false, &finder) {
                        Ok(Looked::Found(attr)) => Some(attr.node),
                        // The operation itself reports errors in the name.
                        Ok(Looked::Unread { .. }) | Err(_) => None,
                    })
                };
                if let (Some(node), Some(size)) = (self.step(&site, emptied).await?, set.size) {
                    self.shrink_alone(&site, node, size, &by).await?;
                }
                self.whole(&site, Op::Create { dir, name, make: Make::File, exists: Exists::Reuse, set }, by)
                    .await
            }
            op => self.whole(&site, op, by).await,
        }
    }

    /// Truncates a file, if that may free much: its inode lock is held for long then, so nobody on a core must take it.
    async fn shrink_alone(
        self: &Arc<Folder>,
        site: &Site,
        node: NodeId,
        size: u64,
        by: &Caller,
    ) -> Result<(), Error> {
        let by = by.clone();
        let much = move |folder: &Folder| match folder.has_much_behind(node, size) {
            true => folder.to_shrink(node, &by).map(Some),
            false => Ok(None),
        };
        let Some(file) = self.step(site, much).await? else { return Ok(()) };
        let claim = busy::alone(Inode::of(&file)?).await;
        let cut = move |_: &Folder| {
            let _claim = claim;
            Ok(rustix::fs::ftruncate(&file, size)?)
        };
        self.step(site, cut).await
    }

    /// Runs an operation in one step. If another worker has claimed a file, the task waits here, because waiting in
    /// the kernel would occupy a place.
    async fn whole(self: &Arc<Folder>, site: &Site, mut op: Op, by: Caller) -> Result<Outcome, Error> {
        loop {
            let by = by.clone();
            let (unlocked, is_all) = match Unlocked::all() {
                Some(unlocked) => (unlocked, true),
                None => {
                    let locks;
                    (locks, op) = self.step(site, move |folder| Ok((folder.locks(&op), op))).await?;
                    (busy::shared(locks).await, false)
                }
            };
            let done = self.step(site, move |folder| {
                // Meanwhile its names may have been given to other files.
                if !is_all && !unlocked.covers(&folder.locks(&op)) {
                    return Ok(Err(op));
                }
                folder.settle(&op);
                let done = folder.carry_out(op, &by, &unlocked)?;
                drop(unlocked);
                if let Some(ending) = done.ending {
                    // When this is answered the space is free, unless a client has the file open.
                    ending.close();
                }
                Ok(Ok(done.outcome))
            });
            match done.await? {
                Ok(outcome) => return Ok(outcome),
                Err(again) => op = again,
            }
        }
    }

    /// Closes descriptors before a name is removed: on some file systems an open file prevents the removal of its
    /// folder.
    fn settle(&self, op: &Op) {
        if let Op::Remove { dir, .. } | Op::Rmdir { dir, .. } | Op::Rename { to: DirName { dir, .. }, .. } =
            op
            && let Ok(system) = self.system_of(*dir)
        {
            system.settle();
        }
    }
}
