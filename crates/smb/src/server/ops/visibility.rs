//! The changes that a user may be told of.
//!
//! Spec: [MS-FSA] 2.1.5.11 leaves this to the object store. The handle of a directory shows the names in it. A watch of
//! the tree also reports names in the folders below, so each of them must be one that its user could reach and list, and
//! on a share that hides unreadable files from listings, each name must be one that a listing would show.
//!
//! Changes are judged when the client is told of them, by the rights of that moment. A folder or file that is gone by then
//! cannot be judged; unless this open has judged the folder before, the client is told to list again, without names.

use std::collections::HashMap;

use weft_machine::rt;
use weft_store::access::Token;
use weft_store::vfs::{Action, Change, Changes, Error, NodeId, Permissions};
use weft_wire::smb2::access::AccessMask;

use super::notify::Reach;
use super::opens::Open;
use super::security;
use crate::server::answer::Failure;
use crate::server::context::OpContext;

/// The changes without those that the user may not see; empty if none are left.
pub(super) async fn visible(cx: &OpContext, open: &Open, told: Changes) -> Result<Changes, Failure> {
    let hides = security::hides(cx);
    let alone = !open.vfs.is_judged() && !cx.server().has_several_users();
    if told.overflowed || told.ended || (alone && hides.is_none()) {
        return Ok(told);
    }
    let mut viewer = Viewer { cx, open, hides, known: HashMap::new() };
    let mut seen = Vec::with_capacity(told.changes.len());
    let mut changes = told.changes.into_iter().peekable();
    while let Some(change) = changes.next() {
        rt::yield_if_due().await;
        let renamed =
            |next: &Change| change.action == Action::RenamedFrom && next.action == Action::RenamedTo;
        let to = changes.next_if(renamed);
        let Some(sees) = viewer.sees(&change).await? else { return Ok(list_again()) };
        let Some(to) = to else {
            seen.extend(sees.then_some(change));
            continue;
        };
        let Some(sees_to) = viewer.sees(&to).await? else { return Ok(list_again()) };
        match (sees, sees_to) {
            (true, true) => seen.extend([change, to]),
            (true, false) => seen.push(Change { action: Action::Removed, ..change }),
            (false, true) => seen.push(Change { action: Action::Added, ..to }),
            (false, false) => {}
        }
    }
    Ok(Changes { changes: seen, ..Changes::default() })
}

fn list_again() -> Changes {
    Changes { overflowed: true, ..Changes::default() }
}

/// The user of a watch.
struct Viewer<'a> {
    cx: &'a OpContext,
    open: &'a Open,
    /// The user for whom the share hides unreadable files.
    hides: Option<&'a Token>,
    /// Directories of these changes; `None` for those that are gone and were never judged.
    known: HashMap<NodeId, Option<Reach>>,
}

impl Viewer<'_> {
    /// Whether the user may be told of a change; `None` if that cannot be known any more.
    async fn sees(&mut self, change: &Change) -> Result<Option<bool>, Failure> {
        if let Some((own, above)) = change.dirs.split_first() {
            // The watched directory itself was opened for listing, but may be closed to whoever wants to enter it.
            for dir in std::iter::once(&self.open.node).chain(above.iter().rev()) {
                match self.reach(*dir).await? {
                    None => return Ok(None),
                    Some(Reach { enters: false, .. }) => return Ok(Some(false)),
                    Some(_) => {}
                }
            }
            match self.reach(*own).await? {
                None => return Ok(None),
                Some(Reach { lists: false, .. }) => return Ok(Some(false)),
                Some(_) => {}
            }
        }
        match self.hides {
            None => Ok(Some(true)),
            Some(token) => self.is_listed(change, token).await,
        }
    }

    async fn reach(&mut self, dir: NodeId) -> Result<Option<Reach>, Failure> {
        if let Some(known) = self.known.get(&dir) {
            return Ok(*known);
        }
        let reach = match self.judge(dir).await {
            Ok(reach) => {
                self.open.notify.remember(dir, reach);
                Some(reach)
            }
            Err(Error::Stale | Error::NotFound) => self.open.notify.remembered(dir),
            Err(e) => return Err(e.into()),
        };
        self.known.insert(dir, reach);
        Ok(reach)
    }

    async fn judge(&self, dir: NodeId) -> Result<Reach, Error> {
        let vfs = &self.open.vfs;
        let attr = vfs.as_server().getattr(dir).await?;
        let rights = security::left_to(self.cx, vfs, &attr).await?;
        let mut reach = Reach { lists: rights.contains(AccessMask::FILE_READ_DATA), enters: true };
        if vfs.is_judged() {
            let has = vfs.access(dir, Permissions::READ | Permissions::EXECUTE).await?;
            reach.lists &= has.contains(Permissions::READ);
            reach.enters = has.contains(Permissions::EXECUTE);
        }
        Ok(reach)
    }

    /// Whether a listing that hides unreadable files shows the name.
    async fn is_listed(&self, change: &Change, token: &Token) -> Result<Option<bool>, Failure> {
        let dir = change.dirs.first().copied().unwrap_or(self.open.node);
        let name = change.path.rsplit(|&b| b == b'/').next().unwrap_or_default();
        let is_of_stream =
            matches!(change.action, Action::StreamAdded | Action::StreamRemoved | Action::StreamModified);
        // The name of a stream has no colon; that of its file may have some.
        let file = match name.iter().rposition(|&b| b == b':').filter(|_| is_of_stream) {
            Some(colon) => name.get(..colon).unwrap_or_default(),
            None => name,
        };
        let vfs = &self.open.vfs;
        let found = match vfs.as_server().lookup(dir, file, false).await {
            Ok(attr) => security::is_readable(vfs, &attr, token).await,
            Err(e) => Err(e),
        };
        match found {
            Ok(is_readable) => Ok(Some(is_readable)),
            Err(Error::Stale | Error::NotFound) => Ok(None),
            Err(e) => Err(e.into()),
        }
    }
}
