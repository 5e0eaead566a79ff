//! The streams in which Macs keep what is not data: the Finder info `AFP_AfpInfo` and the resource fork `AFP_Resource`.
//!
//! The store has them as streams like others, and other clients see them as such. On a Mac every file has a resource fork and
//! Finder info, so nothing tells an empty one from none: for Macs a stream that says nothing does not exist, and it is removed
//! when the last handle is closed. Finder info has a fixed form, which is checked when a Mac writes it, because a Mac
//! does not check what it reads.

use bytes::Bytes;
use weft_store::vfs::{Error, NodeId, OpenFile, StreamHead, Vfs};
use weft_wire::smb2::NtStatus;
use weft_wire::smb2::afp_info::{self, AfpInfo};

use super::opens::Open;
use super::rights::WRITE_DATA;
use crate::server::answer::Failure;
use crate::server::context::OpContext;

/// `STATUS_ALLOTTED_SPACE_EXCEEDED`.
const ALLOTTED_SPACE_EXCEEDED: NtStatus = NtStatus(0xC000_0099);

/// The part of the signature that a write must have.
const SIGNATURE_BYTES: usize = 3;

/// A stream with a meaning for Macs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum AfpStream {
    /// `AFP_AfpInfo`.
    Info,
    /// `AFP_Resource`.
    Resource,
}

impl AfpStream {
    /// The stream with this name.
    pub(super) fn named(name: &[u8]) -> Option<AfpStream> {
        if name.eq_ignore_ascii_case(afp_info::NAME) {
            Some(AfpStream::Info)
        } else if name.eq_ignore_ascii_case(afp_info::RESOURCE_NAME) {
            Some(AfpStream::Resource)
        } else {
            None
        }
    }

    /// The stream that a Mac has open; `None` for other files and other clients.
    pub(super) fn of(cx: &OpContext, open: &Open) -> Option<AfpStream> {
        if !cx.session().is_mac() {
            return None;
        }
        AfpStream::named(&open.vfs.stream_of(open.node)?.1)
    }
}

/// Both streams of a file, as far as it has them, with the content of the Finder info.
pub(super) async fn heads(cx: &OpContext, vfs: &Vfs, base: NodeId) -> Result<Vec<StreamHead>, Error> {
    let wanted = |name: &[u8]| AfpStream::named(name).is_some();
    vfs.stream_heads(base, wanted, (afp_info::LEN, &cx.config().pool)).await
}

/// The names of the streams of a file that do not exist for the client, because they say nothing.
pub(super) async fn void(cx: &OpContext, vfs: &Vfs, base: NodeId) -> Result<Vec<Vec<u8>>, Error> {
    if !cx.session().is_mac() {
        return Ok(Vec::new());
    }
    let heads = match heads(cx, vfs, base).await {
        Err(Error::NotSupported) => return Ok(Vec::new()),
        heads => heads?,
    };
    Ok(heads.into_iter().filter(is_void).map(|head| head.name).collect())
}

/// Whether a stream of a file does not exist for the client, although it is stored.
pub(super) async fn is_missing(cx: &OpContext, vfs: &Vfs, base: NodeId, name: &[u8]) -> Result<bool, Error> {
    if !cx.session().is_mac() || AfpStream::named(name).is_none() {
        return Ok(false);
    }
    let void = Box::pin(void(cx, vfs, base)).await?;
    Ok(void.iter().any(|void| void.eq_ignore_ascii_case(name)))
}

fn is_void(head: &StreamHead) -> bool {
    match AfpStream::named(&head.name) {
        Some(AfpStream::Resource) => head.size == 0,
        Some(AfpStream::Info) => head.size == 0 || says_nothing(&head.content),
        None => false,
    }
}

/// Whether Finder info is empty: with its head, or all zeros.
fn says_nothing(content: &[u8]) -> bool {
    let zeros = content.len() == afp_info::LEN && content.iter().all(|b| *b == 0);
    zeros || AfpInfo::parse(content).is_ok_and(|info| info.is_empty())
}

/// The Finder info after a Mac has written its beginning: in its form, or all zeros. A part that does not begin at its start is
/// refused, as is one after which it would have another form.
pub(super) async fn with_start(
    cx: &OpContext,
    file: &OpenFile,
    at: u64,
    start: &Bytes,
) -> Result<Bytes, Failure> {
    let start = start.get(..afp_info::LEN).unwrap_or(start);
    if at != 0 {
        return Err(NtStatus::INVALID_PARAMETER.into());
    }
    let stored = file.read(0, afp_info::LEN).data().await?;
    let mut whole = stored.into_chain(&cx.config().pool).await.map_err(Error::from)?.concat();
    if AfpInfo::parse(&whole).is_err() {
        whole = AfpInfo::default().to_bytes();
    }
    whole.iter_mut().zip(start).for_each(|(to, from)| *to = *from);
    // The first bytes tell it from anything else.
    let is_signed = start.len() >= SIGNATURE_BYTES && AfpInfo::parse(&whole).is_ok();
    if is_signed || says_nothing(&whole) { Ok(whole.into()) } else { Err(NtStatus::INVALID_PARAMETER.into()) }
}

/// Gives new Finder info its form: what a Mac reads before it has written is an empty one. Returns whether it did.
pub(super) async fn fill_info(cx: &OpContext, vfs: &Vfs, node: NodeId) -> Result<bool, Error> {
    let is_info = |name: &[u8]| AfpStream::named(name) == Some(AfpStream::Info);
    if !cx.session().is_mac() || !vfs.stream_of(node).is_some_and(|(_, name)| is_info(&name)) {
        return Ok(false);
    }
    let file = vfs.as_server().open(node, true).await?;
    file.write(0, &[AfpInfo::default().to_bytes().into()]).await?;
    Ok(true)
}

/// Whether a Mac may set the size of the Finder info, which has no effect: it always has all of its bytes.
pub(super) fn checked_size(size: u64) -> Result<(), NtStatus> {
    if size <= afp_info::LEN as u64 { Ok(()) } else { Err(ALLOTTED_SPACE_EXCEEDED) }
}

/// Before the last handle of a stream is closed: if it says nothing, it is removed with the handle.
pub(super) async fn tidy(cx: &OpContext, open: &Open) {
    if AfpStream::of(cx, open).is_none() || !open.access.intersects(WRITE_DATA) {
        return;
    }
    let Some((base, name)) = open.vfs.stream_of(open.node) else { return };
    let alone = open.vfs.opens().count(open.node) <= 1;
    // An error leaves it as it is: it does not exist for Macs.
    let gone = void(cx, &open.vfs.as_server(), base).await.unwrap_or_default();
    if alone && gone.contains(&name) {
        open.claim.set_delete_pending(true);
    }
}
