//! Lists a directory.

use std::os::fd::{AsFd, OwnedFd};

use rustix::io::Errno;
use weft_machine::{credentials, rt};

use super::sys::{self, Stat};
use super::{Folder, MAX_ENTRIES, xattr};
use crate::vfs::{Caller, Entry, Error, Kind, Listing, NodeId, Unread, XattrSummary};

/// A listing reads so much of a directory at a time: less than is read for an answer, because a turn of the core may
/// end before, and what was read for later entries is read again.
const LISTING_BYTES: usize = 8192;
/// It has so many entries even if the turn ends before: opening the directory costs as much as a few of them.
const LISTED_AT_LEAST: usize = 16;

impl Folder {
    /// At most `max` entries after `cookie`, for a caller who may read the directory.
    pub(super) fn readdir(
        &self,
        dir: NodeId,
        (cookie, max): (u64, usize),
        xattrs: bool,
        by: &Caller,
    ) -> Result<Listing, Error> {
        let fd = self.dir_fd(dir)?;
        let open = match by {
            Caller::Server => sys::open_dir(fd.as_fd())?,
            Caller::User(_) => self.proc.open_dir(fd.as_fd())?,
        };
        // Who may list a directory sees the attributes of its entries ([MS-FSA] 2.1.5.1.2.1); protocols whose users do not
        // (NFS) leave them out.
        credentials::as_server(|| self.list(dir, (&fd, &open), (cookie, max), xattrs))
    }

    fn list(
        &self,
        dir: NodeId,
        (fd, open): (&OwnedFd, &OwnedFd),
        (cookie, max): (u64, usize),
        xattrs: bool,
    ) -> Result<Listing, Error> {
        let max = max.min(MAX_ENTRIES);
        let names_across = self.names_across(dir);
        // Fewer entries than asked for are an answer as well.
        let enough = |found| found == max || found >= LISTED_AT_LEAST && rt::turn_is_over();
        let (stats, is_last) = sys::collect(open.as_fd(), cookie, LISTING_BYTES, enough, |raw| {
            let read = match names_across.iter().any(|across| across.name == raw.name) {
                false => self.read_entry(fd, &raw.name, xattrs),
                // Its own file system is asked elsewhere.
                true => Err(Errno::TIMEDOUT),
            };
            match read {
                Ok((stat, xattrs)) => Ok(Some((raw, Ok(stat), xattrs))),
                // Removed since it was listed.
                Err(Errno::NOENT) => Ok(None),
                // One object that is out of order must not hide the others.
                Err(why) => {
                    let unread = Unread { fileid: raw.inode, kind: raw.kind, why };
                    Ok(Some((raw, Err(unread), xattrs.then(XattrSummary::default))))
                }
            }
        })?;
        let mut table = self.table();
        let entries = stats.into_iter().map(|(raw, stat, xattrs)| {
            let attr = match stat {
                Ok(stat) => {
                    self.saw_device_of(&stat);
                    let node = table.seen(stat.identity(), stat.kind(), dir, &raw.name)?;
                    Ok(stat.attr(node, &self.home))
                }
                Err(unread) => Err(unread),
            };
            Ok(Entry { name: raw.name, cookie: raw.cookie, attr, xattrs })
        });
        Ok(Listing { entries: entries.collect::<Result<_, Error>>()?, is_last })
    }

    /// The attributes of an entry, and the summary of its extended attributes.
    pub(super) fn read_entry(
        &self,
        fd: &OwnedFd,
        name: &[u8],
        xattrs: bool,
    ) -> Result<(Stat, Option<XattrSummary>), Errno> {
        let stat = sys::stat_at(fd.as_fd(), name)?;
        let xattrs = xattrs.then(|| match stat.kind() {
            Kind::File | Kind::Dir => xattr::summary_of_entry(fd.as_fd(), name),
            Kind::Symlink => rustix::fs::readlinkat(fd, name, Vec::new())
                .map(|target| XattrSummary::of_link(target.as_bytes()))
                .unwrap_or_default(),
            Kind::Special(_) => XattrSummary::default(),
        });
        Ok((stat, xattrs))
    }
}
