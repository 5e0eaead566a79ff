//! COPY, CLONE, OFFLOAD_CANCEL and OFFLOAD_STATUS (RFC 7862 15.2, 15.13, 15.8, 15.9; 4.6 for copies within one
//! server).
//!
//! COPY is answered when it is complete, or after a limit; then the client requests the remainder. A long one
//! continues after the reply, if the client allows that and can be notified of its end (CB_OFFLOAD).

use std::sync::Arc;

use weft_machine::{Charge, rt};
use weft_store::{CurrentShares, OpenFile, ShareKey};
use weft_wire::nfs4::{
    CbOffload, CbOp, Clone_, Copy, CopyOk, OffloadEnd, OffloadStatusOk, Stable, Stateid, Status, UpTo,
    Verifier, WriteResponse,
};

use super::super::compound::Compound;
use super::super::fs_object::FsObject;
use super::super::io::{self, Intent};
use super::super::names::status;
use super::super::state::{Client, Offload};
use crate::server::attributes::MAX_FILE_SIZE;

/// Most bytes of one synchronous COPY: it finishes well before a client's RPC timeout.
const MAX_COPY: u64 = 256 << 20;

/// A shorter copy is synchronous.
const MIN_OFFLOAD: u64 = 16 << 20;
/// Bytes copied between two checks for cancellation.
const STEP: u64 = 16 << 20;
/// Most asynchronous copies of a client; further ones are synchronous.
const MAX_OFFLOADS: usize = 16;

struct Ends {
    from: OpenFile,
    to: OpenFile,
    from_share: ShareKey,
    to_share: ShareKey,
    count: u64,
}

impl Ends {
    /// Whether both shares are still served, and the destination may still be changed.
    fn are_served(&self, shares: &CurrentShares) -> Result<(), Status> {
        let shares = shares.now();
        let (Some(_), Some(to)) = (shares.of(self.from_share), shares.of(self.to_share)) else {
            return Err(Status::STALE);
        };
        if to.vfs.is_read_only() { Err(Status::ROFS) } else { Ok(()) }
    }
}

/// Both files, and the number of bytes to copy.
async fn ends(
    c: &Compound<'_>,
    (from_stateid, from_offset): (&Stateid, u64),
    (to_stateid, to_offset): (&Stateid, u64),
    count: u64,
    one_share: bool,
) -> Result<Ends, Status> {
    let to_node = c.node()?;
    let FsObject::Node(from_node) = c.saved.ok_or(Status::NOFILEHANDLE)? else { return Err(Status::ISDIR) };
    if one_share && from_node.share.id != to_node.share.id {
        return Err(Status::XDEV);
    }
    let from_stateid = saved(c, from_stateid);
    // The source's export may treat the caller differently.
    let from_cx = c.view(FsObject::Node(from_node));
    let opened = async |count| -> Result<(OpenFile, OpenFile), Status> {
        let reads = Intent::Read(from_offset, count);
        let from = io::file_in(c, from_cx, &from_node, &from_stateid, reads).await?;
        let to = io::file(c, &to_node, to_stateid, Intent::Write(to_offset, count)).await?;
        Ok((from, to))
    };
    let (mut from, mut to) = opened(count).await?;
    let size = from.len().await.map_err(|e| status(&e))?;
    let end = from_offset.checked_add(count).ok_or(Status::INVAL)?;
    if from_offset > size || end > size {
        return Err(Status::INVAL);
    }
    let mut count = count;
    if count == 0 {
        // Up to the end of the source. No lock conflicts with an empty range, but some may with this one.
        count = size.saturating_sub(from_offset);
        (from, to) = opened(count).await?;
    }
    let to_end = to_offset.checked_add(count).ok_or(Status::INVAL)?;
    if to_end > MAX_FILE_SIZE {
        return Err(Status::FBIG);
    }
    Ok(Ends { from, to, from_share: from_node.share.key(), to_share: to_node.share.key(), count })
}

/// The state id of the saved file handle: with sessions, one special value stands for the saved state id.
fn saved(c: &Compound<'_>, stateid: &Stateid) -> Stateid {
    let current = c.minor > 0 && *stateid == Stateid::CURRENT;
    if current { c.saved_stateid.unwrap_or(*stateid) } else { *stateid }
}

pub async fn copy(c: &Compound<'_>, args: &Copy) -> Result<CopyOk, Status> {
    if !args.servers.0.is_empty() {
        return Err(Status::NOTSUPP);
    }
    let from_end = (&args.from_stateid, args.from_offset);
    let ends = ends(c, from_end, (&args.to_stateid, args.to_offset), args.count, false).await?;
    let verifier = c.cx.server.run.writing(&c.node()?.share.vfs).unstable();
    let Ends { count, .. } = ends;
    if !args.synchronous && count >= MIN_OFFLOAD {
        let client = c.client(0)?;
        let room = client.mine().copies.len() < MAX_OFFLOADS;
        // The copy keeps both files open, even if they are closed meanwhile.
        let charge = c.cx.server.states.descriptors(&client);
        if room
            && client.back().is_some_and(|back| back.is_up())
            && let Ok(charge) = charge
        {
            return offload(c, &client, (ends, charge, verifier), args).await;
        }
    }
    let count = count.min(MAX_COPY);
    let done = ends.to.copy_from(args.to_offset, &ends.from, args.from_offset, count).await;
    let count = done.map_err(|e| status(&e))?;
    content_changed(c).await?;
    let response = response(UpTo::default(), count, verifier);
    Ok(CopyOk { response, consecutive: true, synchronous: true })
}

/// Tells those who have cached the listing with the size of the destination.
async fn content_changed(c: &Compound<'_>) -> Result<(), Status> {
    let node = c.node()?;
    node.share.vfs.content_changed(node.id).await;
    Ok(())
}

fn response(callback: UpTo<Stateid, 1>, count: u64, verifier: Verifier) -> WriteResponse {
    WriteResponse { callback, count, committed: Stable::Unstable, verifier }
}

/// Replies at once and copies in a task of its own; the client is notified of its end.
async fn offload(
    c: &Compound<'_>,
    client: &Arc<Client>,
    (ends, charge, verifier): (Ends, Charge, Verifier),
    args: &Copy,
) -> Result<CopyOk, Status> {
    let states = &c.cx.server.states;
    let copy = Arc::new(Offload::new(states.new_other(client)));
    let handle = FsObject::Node(c.node()?).handle(c.cx).await?;
    client.living().ok_or(Status::EXPIRED)?.copies.insert(copy.other, copy.clone());
    let stateid = copy.stateid();
    let client = Arc::downgrade(client);
    let (from, to) = (args.from_offset, args.to_offset);
    let (shares, node) = (c.cx.server.shares.clone(), c.node()?);
    let (vfs, node) = (node.share.vfs.clone(), node.id);
    rt::spawn(async move {
        let ended = carry_on(&copy, &ends, from, to, &shares).await;
        vfs.content_changed(node).await;
        drop((ends, charge, vfs));
        copy.end(ended);
        let Some(client) = client.upgrade() else { return };
        if copy.is_cancelled() {
            client.mine().copies.remove(&copy.other);
            return;
        }
        let end = match ended {
            Status::OK => OffloadEnd::Done(response(UpTo::default(), copy.copied(), verifier)),
            status => OffloadEnd::Failed(status, copy.copied()),
        };
        if let Some(back) = client.back() {
            let told = Arc::downgrade(&client);
            // Until it is notified, the client may ask (OFFLOAD_STATUS).
            back.ask(CbOp::Offload(CbOffload { handle, stateid, end }), move |_| {
                if let Some(client) = told.upgrade() {
                    client.mine().copies.remove(&stateid.other);
                }
            });
        }
    })
    .detach();
    let response = response(UpTo(vec![stateid]), 0, verifier);
    Ok(CopyOk { response, consecutive: true, synchronous: false })
}

async fn carry_on(copy: &Offload, ends: &Ends, from: u64, to: u64, shares: &CurrentShares) -> Status {
    while copy.copied() < ends.count && !copy.is_cancelled() {
        if let Err(status) = ends.are_served(shares) {
            return status;
        }
        let at = copy.copied();
        let step = STEP.min(ends.count.saturating_sub(at));
        // `ends` has checked that both ranges end within the largest file size.
        let (to, from) = (to.saturating_add(at), from.saturating_add(at));
        match ends.to.copy_from(to, &ends.from, from, step).await {
            // The source has been truncated.
            Ok(0) => break,
            Ok(count) => copy.add(count),
            Err(e) => return status(&e),
        }
        // Yields to other tasks of this core.
        rt::yield_now().await;
    }
    Status::OK
}

/// A copy of this client that is running, or whose end it has not been notified of.
fn find(c: &Compound<'_>, stateid: &Stateid) -> Result<Option<Arc<Offload>>, Status> {
    let named = io::actual(c, stateid)?;
    Ok(c.client(0)?.mine().copies.get(&named.other).cloned())
}

pub async fn clone(c: &Compound<'_>, args: &Clone_) -> Result<(), Status> {
    let from_end = (&args.from_stateid, args.from_offset);
    let ends = ends(c, from_end, (&args.to_stateid, args.to_offset), args.count, true).await?;
    let done = ends.to.clone_range(args.to_offset, &ends.from, args.from_offset, ends.count).await;
    done.map_err(|e| status(&e))?;
    content_changed(c).await
}

/// RFC 7862 15.8.3: a copy that has ended, and whose client was notified, counts as unknown.
pub fn offload_cancel(c: &Compound<'_>, stateid: &Stateid) -> Result<(), Status> {
    c.object()?;
    match find(c, stateid)? {
        Some(copy) if copy.outcome().is_none() => {
            copy.cancel();
            Ok(())
        }
        _ => Err(Status::COMPLETE_ALREADY),
    }
}

/// RFC 7862 15.9.3.
pub fn offload_status(c: &Compound<'_>, stateid: &Stateid) -> Result<OffloadStatusOk, Status> {
    c.object()?;
    let copy = find(c, stateid)?.ok_or(Status::BAD_STATEID)?;
    Ok(OffloadStatusOk { count: copy.copied(), complete: UpTo(copy.outcome().into_iter().collect()) })
}
