//! Lists a directory in which file systems are mounted that may block.
//!
//! The directory itself is read where its own file system allows. What a mounted file system must be asked for is asked in that
//! file system's places, for [`LISTED_WITHIN`] at most: then the entry is listed without attributes, as one that cannot be read.
//! A file system that has not answered is not asked again before that call has ended, so a listing that is repeated waits once,
//! and occupies one place.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use weft_machine::rt;

use super::Folder;
use super::crossing::{Across, Question};
use super::site::Site;
use crate::vfs::{Attr, Caller, Entry, Error, NodeId, Op, Outcome, Unread, XattrSummary};

/// How long a listing waits for the attributes of a mounted file system's root.
pub(super) const LISTED_WITHIN: Duration = Duration::from_secs(2);

/// What is told of an entry.
type Told = (Result<Attr, Unread>, Option<XattrSummary>);

impl Folder {
    /// Whether a directory contains names of file systems which may block.
    pub(super) fn leads_across(&self, op: &Op) -> bool {
        matches!(op, Op::Readdir { dir, .. } if !self.names_across(*dir).is_empty())
    }

    /// Lists such a directory.
    pub(super) async fn list_across(
        self: Arc<Folder>,
        site: Site,
        op: Op,
        by: Caller,
    ) -> Result<Outcome, Error> {
        let Op::Readdir { dir, xattrs, .. } = op else { return self.run(site, op, by).await };
        let mut outcome = self.run(site, op, by).await?;
        let Outcome::Entries(listing) = &mut outcome else { return Ok(outcome) };
        let names = self.names_across(dir);
        let questions = listing.entries.iter_mut().filter_map(|entry| {
            let across = names.iter().find(|across| across.name == entry.name)?;
            Some(self.ask_across(dir, across, entry, xattrs))
        });
        join_all(questions).await;
        Ok(outcome)
    }

    /// Asks for the attributes of an entry, which stays as it is if its file system does not answer.
    async fn ask_across(self: &Arc<Folder>, dir: NodeId, across: &Across, entry: &mut Entry, xattrs: bool) {
        let Err(unread) = &entry.attr else { return };
        let unread = *unread;
        if !across.questions.may_ask(rt::now()) {
            return;
        }
        let (folder, name) = (self.clone(), across.name.clone());
        let questions = across.questions.clone();
        let call = move || {
            let _running = Question::begin(questions);
            folder.tell(dir, &name, unread, xattrs)
        };
        let answer = rt::timeout(LISTED_WITHIN, across.system.names(call)).await;
        match answer {
            Ok(Ok(Ok(told))) => (entry.attr, entry.xattrs) = told,
            // The directory is gone.
            Ok(Ok(Err(_))) => {}
            Ok(Err(_)) | Err(_) => across.questions.has_not_answered(rt::now()),
        }
    }

    /// What an entry says once its file system is asked. Blocks.
    fn tell(&self, dir: NodeId, name: &[u8], unread: Unread, xattrs: bool) -> Result<Told, Error> {
        let fd = self.dir_fd(dir)?;
        Ok(match self.read_entry(&fd, name, xattrs) {
            Ok((stat, xattrs)) => (Ok(self.seen(&stat, dir, name)?), xattrs),
            Err(why) => (Err(Unread { why, ..unread }), xattrs.then(XattrSummary::default)),
        })
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::sync::mpsc;

    use weft_machine::file::system::{FileSystem, MAX_PLACES};

    use super::super::site::Systems;
    use super::*;
    use crate::vfs::Kind;

    #[test]
    fn a_mount_that_hangs_is_listed_without_attributes_and_holds_up_one_listing_once() {
        let tree = tempfile::tempdir().unwrap();
        for name in ["before", "hung", "sub", "sub/hung"] {
            std::fs::create_dir(tree.path().join(name)).unwrap();
        }
        std::fs::write(tree.path().join("file"), "x").unwrap();
        rt::block_on(async {
            let folder = Arc::new(Folder::open(tree.path(), Systems::of).unwrap());
            let system = FileSystem::fixed(true);
            folder.cross(&[], b"hung", &system);
            let list = async || {
                let op = Op::Readdir { dir: NodeId::ROOT, cookie: 0, max: 100, xattrs: true };
                let site = folder.site_among(&op);
                assert!(matches!(site, Site::Core(_)) && folder.leads_across(&op));
                match folder.clone().list_across(site, op, Caller::Server).await.unwrap() {
                    Outcome::Entries(listing) => listing.entries,
                    other => panic!("{other:?}"),
                }
            };
            // As long as it answers, its entry is like every other.
            assert!(list().await.iter().all(|entry| entry.attr.is_ok()));
            // Every place of it hangs.
            let begun = Arc::new(AtomicUsize::new(0));
            let mut gates = Vec::new();
            for _ in 0..MAX_PLACES {
                let (release, gate) = mpsc::channel::<()>();
                let (system, begun) = (system.clone(), begun.clone());
                let hang = move || {
                    begun.fetch_add(1, Ordering::SeqCst);
                    _ = gate.recv();
                };
                gates.push((release, rt::spawn(async move { system.names(hang).await })));
            }
            while begun.load(Ordering::SeqCst) < MAX_PLACES {
                rt::yield_now().await;
            }
            for turn in 0..3 {
                let begun = rt::now();
                let entries = list().await;
                let took = rt::now().since(begun);
                assert_eq!(entries.len(), 4);
                for entry in entries {
                    match (&entry.name[..], entry.attr) {
                        (b"hung", Err(unread)) => {
                            let inode = std::os::unix::fs::MetadataExt::ino(
                                &tree.path().join("hung").metadata().unwrap(),
                            );
                            assert_eq!((unread.fileid, unread.kind), (inode, Some(Kind::Dir)));
                        }
                        (name, attr) => assert!(name != b"hung" && attr.is_ok(), "{name:?}: {attr:?}"),
                    }
                }
                assert_eq!(took >= LISTED_WITHIN, turn == 0, "{took:?}");
            }
            // A folder beside it.
            let sub = folder.exact(NodeId::ROOT, b"sub").unwrap().node;
            let beside = Op::Readdir { dir: sub, cookie: 0, max: 100, xattrs: false };
            assert!(!folder.leads_across(&beside));
            for (release, task) in gates {
                drop(release);
                task.await.unwrap();
            }
        })
        .unwrap();
    }
}
