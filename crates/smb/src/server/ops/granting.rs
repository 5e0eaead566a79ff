//! The caching rights that a CREATE asks for and gets.
//!
//! Spec: [MS-SMB2] 3.3.5.9 (Oplock Acquisition), 3.3.5.9.8, 3.3.5.9.11 (leases). The store's table of opens decides what
//! is granted.

use std::sync::Arc;

use weft_store::opens::{Caching as Rights, Form, Key, Opens};
use weft_store::vfs::{Attr, Kind, Vfs};
use weft_wire::smb2::create::{CreateOptions, OplockLevel, Request};
use weft_wire::smb2::create_context::{self, LeaseFlags, LeaseState, RequestContext, ResponseContext};
use weft_wire::smb2::{Dialect, FileId, NtStatus};

use super::caching::{Caching, Oplock};
use super::caching_rights::level_of;
use super::lease::Claimant;
use super::opens::Open;
use crate::server::context::OpContext;

/// Prepares caching before there is an open: the table of opens needs the lease.
pub(super) fn prepare(cx: &OpContext, vfs: &Vfs, attr: &Attr, wanted: &Wanted) -> Result<Caching, NtStatus> {
    Ok(match wanted {
        Wanted::Nothing => Caching::None,
        // A directory has no data, but its list of names can be cached with a lease of version 2.
        Wanted::Lease(lease) if attr.kind == Kind::Dir && lease.v2.is_some() => {
            vfs.opens().cache_directories();
            prepare_lease(cx, vfs, attr, lease)?
        }
        _ if attr.kind != Kind::File => Caching::None,
        Wanted::Oplock(_) => {
            Caching::Oplock(Arc::new(Oplock::new(&cx.server().handles.preserved, vfs.opens())))
        }
        Wanted::Lease(lease) => prepare_lease(cx, vfs, attr, lease)?,
    })
}

fn prepare_lease(
    cx: &OpContext,
    vfs: &Vfs,
    attr: &Attr,
    wanted: &create_context::Lease,
) -> Result<Caching, NtStatus> {
    let handles = &cx.server().handles;
    let file = (vfs.opens(), attr.node);
    Ok(Caching::Lease(handles.leases.acquire(claimant(cx), wanted, file, &handles.preserved)?))
}

/// The client and user of a request, as the table of leases knows them.
pub(super) fn claimant(cx: &OpContext) -> Claimant<'_> {
    let session = cx.session();
    Claimant { client: session.client_guid, user: &session.user, source: Some(cx.connection().source) }
}

/// Gives an open its new FileId and session.
pub(super) fn reconnect(cx: &OpContext, open: &Open, file: FileId) {
    match &open.caching {
        Caching::None => {}
        Caching::Oplock(oplock) => oplock.connect(cx.session(), file),
        Caching::Lease(lease) => {
            lease.join(claimant(cx));
            cx.server().handles.leases.connect(cx.session());
        }
    }
}

/// Requests the rights that the client wants; returns the granted level, and adds a context if it is a lease.
pub(super) fn acquire(
    cx: &OpContext,
    open: &Open,
    wanted: &Wanted,
    file: FileId,
    contexts: &mut Vec<ResponseContext>,
) -> OplockLevel {
    match (&open.caching, wanted) {
        (Caching::Oplock(oplock), Wanted::Oplock(rights)) => {
            oplock.connect(cx.session(), file);
            level_of(open.claim.request(Form::Oplock, *rights, oplock.clone()).0)
        }
        (Caching::Lease(lease), Wanted::Lease(wanted)) => {
            cx.server().handles.leases.connect(cx.session());
            if open.options.contains(CreateOptions::DELETE_ON_CLOSE) {
                lease.set_delete_on_close();
            }
            // A directory has no writes that could be cached.
            let state = match open.kind {
                Kind::Dir => wanted.state.without(LeaseState::WRITE_CACHING),
                _ => wanted.state,
            };
            contexts.push(ResponseContext::Lease(lease.request(&open.claim, state)));
            OplockLevel::LEASE
        }
        _ => OplockLevel::NONE,
    }
}

/// The caching that a CREATE asks for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Wanted {
    /// None, or an unknown kind.
    Nothing,
    /// An oplock.
    Oplock(Rights),
    /// A lease, new or existing.
    Lease(create_context::Lease),
}

impl Wanted {
    /// 3.3.5.9, Oplock Acquisition: a lease context counts only with the level that announces it.
    pub(super) fn of(request: &Request, dialect: Dialect) -> Wanted {
        match request.oplock {
            OplockLevel::II => Wanted::Oplock(Rights::R),
            OplockLevel::EXCLUSIVE => Wanted::Oplock(Rights::RW),
            OplockLevel::BATCH => Wanted::Oplock(Rights::RWH),
            OplockLevel::LEASE if dialect >= Dialect::V2_1 => lease_of(request, dialect),
            _ => Wanted::Nothing,
        }
    }
}

fn lease_of(request: &Request, dialect: Dialect) -> Wanted {
    let lease = request.contexts.iter().find_map(|context| match context {
        RequestContext::Lease(lease) if lease.v2.is_none() || dialect >= Dialect::V3_0 => Some(*lease),
        _ => None,
    });
    lease.map_or(Wanted::Nothing, Wanted::Lease)
}

/// The lease of the parent directory, as the client names it itself (ParentLeaseKey): the client's own changes there do
/// not break it.
pub(super) fn parent(cx: &OpContext, opens: &Arc<Opens>, wanted: &Wanted) -> Option<Key> {
    let Wanted::Lease(lease) = wanted else { return None };
    let v2 = lease.v2.filter(|_| lease.flags.contains(LeaseFlags::PARENT_LEASE_KEY_SET))?;
    let parent = cx.server().handles.leases.find_parent(cx.session().client_guid, v2.parent_key, opens)?;
    Some(parent.store_key())
}
