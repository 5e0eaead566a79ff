//! The procedures of NFS version 3, one file each.
//!
//! See RFC 1813 3.3. `dispatch` parses and emits. Every procedure is a plain `async fn` of its arguments; common
//! parts are here.

pub(super) mod at_once;

mod access;
mod commit;
mod create;
mod fsinfo;
mod fsstat;
mod getattr;
mod link;
mod lookup;
mod mkdir;
mod mknod;
mod pathconf;
mod read;
mod readdir;
mod readdirplus;
mod readlink;
mod remove;
mod rename;
mod rmdir;
mod setattr;
mod symlink;
mod write;

pub(super) use access::access;
pub(super) use commit::commit;
pub(super) use create::create;
pub(super) use fsinfo::fsinfo;
pub(super) use fsstat::fsstat;
pub(super) use getattr::getattr;
pub(super) use link::link;
pub(super) use lookup::lookup;
pub(super) use mkdir::mkdir;
pub(super) use mknod::mknod;
pub(super) use pathconf::pathconf;
pub(super) use read::read;
pub(super) use readdir::readdir;
pub(super) use readdirplus::readdirplus;
pub(super) use readlink::readlink;
pub(super) use remove::remove;
pub(super) use rename::rename;
pub(super) use rmdir::rmdir;
pub(super) use setattr::setattr;
pub(super) use symlink::symlink;
pub(super) use write::write;

use std::time::Duration;

use futures_util::FutureExt;
use weft_machine::rt;
use weft_store::opens::{Access, Range, Rights};
use weft_store::{Attr, Created, Error, Kind, Make, NodeId, OpenFile, SetAttr, Vfs};
use weft_wire::nfs3::{
    AttrOnly, CreateOk, DirOp, Failure, Handle, Outcome, PostOpAttr, Status, WccAttr, WccData, WccOnly,
};

use super::attributes::{attributes, status, wcc};
use super::context::{Context, Node};
use super::file_id::FileId;
use super::guard;

/// How long a request waits for others to give back cached state.
const PATIENCE: Duration = Duration::from_secs(5);

impl Node<'_> {
    fn vfs(&self) -> &Vfs {
        &self.share.vfs
    }

    /// The attributes. A file whose last name was removed is stale, even while somebody else has it open.
    async fn getattr(&self) -> Result<Attr, Error> {
        let attr = self.vfs().getattr(self.id).await?;
        if attr.kind == Kind::File && attr.nlink == 0 { Err(Error::Stale) } else { Ok(attr) }
    }

    /// post_op_attr: the attributes, if available.
    async fn post(&self) -> PostOpAttr {
        self.getattr().await.ok().map(|attr| self.attributes(&attr))
    }

    fn attributes(&self, attr: &Attr) -> weft_wire::nfs3::Attributes {
        attributes(self.share.id, attr)
    }

    async fn before(&self) -> Option<WccAttr> {
        self.getattr().await.ok().map(|attr| wcc(&attr))
    }

    async fn wcc(&self, before: Option<WccAttr>) -> WccData {
        WccData { before, after: self.post().await }
    }

    /// Checks the access against other opens of the node, over every protocol: their share modes, and what they
    /// cache. If a holder does not give back its cached state soon, the client is told to try again
    /// (NFS3ERR_JUKEBOX): it may not be willing to wait for a whole lease.
    async fn pass(&self, access: Access, rights: Rights) -> Result<(), Error> {
        let opens = self.vfs().opens();
        if let Some(passed) = opens.pass(self.id, access, rights).now_or_never() {
            return Ok(passed?);
        }
        match Box::pin(rt::timeout(PATIENCE, opens.pass(self.id, access, rights))).await {
            Ok(passed) => Ok(passed?),
            Err(rt::Elapsed) => Err(Error::Sharing),
        }
    }

    /// The file, for reading or writing this range; a conflicting SMB lock is an error.
    async fn open(
        &self,
        cx: &Context<'_>,
        attr: &Attr,
        write: bool,
        (offset, len): (u64, u32),
    ) -> Result<OpenFile, Error> {
        if let Some(range) = Range::new(offset, u64::from(len)) {
            self.vfs().opens().may_transfer(self.id, range, write)?;
        }
        cx.server.files.open_as(self.vfs(), self.share.key(), attr, write, &cx.caller).await
    }
}

fn failed<T, F>(status: Status, data: F) -> Outcome<T, F> {
    Err(Failure { status, data })
}

/// A failure with post-operation attributes.
async fn failed_at<T>(node: &Node<'_>, e: &Error) -> Outcome<T, AttrOnly> {
    failed(status(e), AttrOnly { attributes: node.post().await })
}

/// The directory in which a name changes, and its attributes before the change.
async fn begin<'a>(cx: &Context<'a>, dir: &Handle) -> Result<(Node<'a>, Option<WccAttr>), Status> {
    let dir = cx.node(dir).await?;
    let before = dir.before().await;
    Ok((dir, before))
}

/// The last part of CREATE, MKDIR and SYMLINK.
async fn created(
    cx: &Context<'_>,
    dir: &Node<'_>,
    before: Option<WccAttr>,
    made: Result<Attr, Error>,
) -> Outcome<CreateOk, WccOnly> {
    let wcc = dir.wcc(before).await;
    match made {
        Ok(attr) => Ok(CreateOk {
            object: cx.handle(FileId { node: attr.node, ..dir.file() }).await.ok(),
            attributes: Some(dir.attributes(&attr)),
            dir: wcc,
        }),
        Err(e) => failed(status(&e), WccOnly { wcc }),
    }
}

/// MKDIR and SYMLINK, which never replace.
async fn make(
    cx: &Context<'_>,
    object: &DirOp,
    make: Make,
    set: Result<SetAttr, Status>,
) -> Outcome<CreateOk, WccOnly> {
    let (dir, before) = match begin(cx, &object.dir).await {
        Ok(begun) => begun,
        Err(status) => return failed(status, WccOnly::default()),
    };
    let set = match set {
        Ok(set) => set,
        Err(status) => return failed(status, WccOnly { wcc: dir.wcc(before).await }),
    };
    let made = make_in(cx, &dir, &object.name.0, make, weft_store::Exists::Fail, set).await;
    created(cx, &dir, before, made).await
}

/// A new node, owned by the caller.
async fn make_in(
    cx: &Context<'_>,
    dir: &Node<'_>,
    name: &[u8],
    make: Make,
    exists: weft_store::Exists,
    set: SetAttr,
) -> Result<Attr, Error> {
    let attr = dir.getattr().await?;
    cx.caller.check_make(&attr)?;
    let kind = if make == Make::Dir { Kind::Dir } else { Kind::File };
    dir.admit(cx, &attr, guard::making(kind)).await?;
    let set = cx.caller.owned(set, &attr);
    let (Created { attr: made, is_new: new }, unsettled) =
        dir.vfs().make(dir.id, name, make, exists, set).await?;
    // Before the flush, which takes time: the inherited descriptor decides who may use the node. And even if the
    // flush fails: a repeated request finds the node and creates nothing.
    let handed = if new { dir.hand_down(cx, &attr, &made).await } else { Ok(()) };
    dir.vfs().settle(unsettled).await?;
    handed?;
    Ok(made)
}

/// Whether a node's name may be removed, and which node it is. Directories have no share modes of their own.
async fn removable(cx: &Context<'_>, dir: &Node<'_>, name: &[u8], access: Access) -> Result<NodeId, Error> {
    let attr = dir.vfs().lookup(dir.id, name, false).await?;
    let above = dir.getattr().await?;
    cx.caller.check_unmake(&above, &attr)?;
    dir.admit_unmake(cx, &above, &attr).await?;
    dir.may_unlink(name).await?;
    Node { id: attr.node, ..*dir }.pass(access, Rights::DELETE).await?;
    Ok(attr.node)
}
