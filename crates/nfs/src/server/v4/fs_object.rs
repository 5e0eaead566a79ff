//! The object of a file handle: a node of a share, the named attribute directory of a node, or the root of the pseudo
//! file system, whose entries are the shares.
//!
//! See RFC 7530 7.3 and RFC 8881 7.3. The pseudo root is read-only.

use weft_store::{Attr, Error, Kind, Stable};
use weft_wire::nfs4::{Handle, Status};

use super::names::status;
use crate::server::context::{Context, Node};
use crate::server::export::KeptOut;
use crate::server::file_id::FileId;
use crate::server::handles::Named;

/// The current or the saved file handle.
#[derive(Clone, Copy)]
pub(super) enum FsObject<'a> {
    /// The directory of shares.
    Root,
    /// A node in a share: a file, a directory or a named attribute.
    Node(Node<'a>),
    /// The named attribute directory of a node.
    Attributes(Node<'a>),
}

/// What a caller who is refused is told.
fn refusal(kept_out: KeptOut) -> Status {
    match kept_out {
        KeptOut::Network | KeptOut::Rights => Status::ACCESS,
        KeptOut::Port => Status::PERM,
        KeptOut::Flavor => Status::WRONGSEC,
    }
}

impl<'a> FsObject<'a> {
    /// PUTFH.
    pub async fn open(cx: &Context<'a>, handle: &Handle) -> Result<FsObject<'a>, Status> {
        let bytes = weft_wire::nfs3::Handle::new(handle.as_bytes()).ok_or(Status::BADHANDLE)?;
        // Version 3's error numbers mean the same in version 4.
        let named = cx.server.handles.open(cx.list(), &bytes).await.map_err(|e| Status(e.0))?;
        let node = |FileId { share, node: id }| {
            let share = cx.list().of(share).ok_or(Status::STALE)?;
            Ok(Node { share, id })
        };
        match named {
            Named::Root => Ok(FsObject::Root),
            Named::Node(file) => node(file).map(FsObject::Node),
            Named::Attributes(file) => node(file).map(FsObject::Attributes),
        }
    }

    /// Whether the caller may use this object; a refusal is logged. If it `asks` for the security flavours, any flavour is
    /// accepted.
    pub fn admit(&self, cx: &Context<'_>, asks: bool) -> Result<(), Status> {
        let (FsObject::Node(node) | FsObject::Attributes(node)) = self else { return Ok(()) };
        match cx.judge(node.share.id) {
            Err(KeptOut::Flavor) if asks => Ok(()),
            Err(kept_out) => {
                cx.tell(node.share.id, kept_out);
                Err(refusal(kept_out))
            }
            Ok(()) => Ok(()),
        }
    }

    /// The same as a question, which is not logged.
    pub fn judge(&self, cx: &Context<'_>) -> Result<(), Status> {
        let (FsObject::Node(node) | FsObject::Attributes(node)) = self else { return Ok(()) };
        cx.judge(node.share.id).map_err(refusal)
    }

    /// GETFH.
    pub async fn handle(&self, cx: &Context<'_>) -> Result<Handle, Status> {
        let handle = match self {
            FsObject::Root => cx.server.handles.root(),
            FsObject::Node(node) => cx.handle(node.file()).await.map_err(|e| status(&e))?,
            FsObject::Attributes(node) => {
                cx.server.handles.attributes(cx.list(), node.file()).await.map_err(|e| status(&e))?
            }
        };
        Ok(Handle::new(handle.as_bytes()).expect("ours are short"))
    }

    /// The node, for a change; the pseudo root is read-only. An attribute directory has entries only, and no
    /// attributes of its own to change.
    pub fn writable(&self) -> Result<Node<'a>, Status> {
        match self {
            FsObject::Root => Err(Status::ROFS),
            FsObject::Node(node) => Ok(*node),
            FsObject::Attributes(_) => Err(Status::INVAL),
        }
    }

    /// The node as a directory in which a name is to be changed.
    pub async fn directory(&self) -> Result<(Node<'a>, Attr), Status> {
        let node = self.writable()?;
        let attr = node.attr().await?;
        if attr.kind == Kind::Dir { Ok((node, attr)) } else { Err(Status::NOTDIR) }
    }
}

/// The error for data of something other than a regular file. Minor version 1 is more specific.
pub(super) fn no_file(kind: Kind, minor: u32) -> Status {
    match kind {
        Kind::Dir => Status::ISDIR,
        _ if minor == 0 => Status::INVAL,
        Kind::Symlink => Status::SYMLINK,
        Kind::File | Kind::Special(_) => Status::WRONG_TYPE,
    }
}

impl Node<'_> {
    /// Whether this is a named attribute.
    pub fn is_attribute(&self) -> bool {
        self.share.vfs.stream_of(self.id).is_some()
    }

    /// The identity that its handles contain; read this before one of its names is removed. `None` if it is gone
    /// already.
    pub async fn stable(&self) -> Option<Stable> {
        self.share.vfs.stable(self.id).await.ok()
    }

    /// A name of this node was removed. If it was the last, and nobody has the node open, its handle is stale from
    /// now on, not only operations on it (RFC 8881 18.19.3).
    pub async fn unnamed(&self, cx: &Context<'_>, stable: Option<Stable>) {
        let Some(stable) = stable else { return };
        let nameless = match self.share.vfs.getattr(self.id).await {
            Ok(attr) => attr.nlink == 0,
            Err(e) => matches!(e, Error::Stale),
        };
        if nameless && !self.share.vfs.opens().is_open(self.id) {
            cx.server.handles.gone(self.share.key(), stable);
        }
    }

    /// The attributes; NFS4ERR_STALE if the node is gone.
    pub async fn attr(&self) -> Result<Attr, Status> {
        self.share.vfs.getattr(self.id).await.map_err(|e| status(&e))
    }
}
