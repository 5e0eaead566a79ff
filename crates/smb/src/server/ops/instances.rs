//! Applications that move between cluster nodes: the new instance takes over the opens of the old one.
//!
//! Spec: [MS-SMB2] 3.3.5.9.13, 2.2.13.2.13, 2.2.13.2.15. Owns the map from application instances to their opens, at
//! most [`MAX_INSTANCES`]; it does not keep them open.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use weft_store::NodeId;
use weft_store::vfs::{Attr, DirName, Vfs};
use weft_wire::smb2::access::AccessMask;
use weft_wire::smb2::create_context::RequestContext;
use weft_wire::smb2::{Dialect, Guid, NtStatus};

use super::attributes::Metadata;
use super::opens::Open;
use super::security;
use crate::server::answer::Failure;
use crate::server::context::OpContext;
use crate::server::limits;
use crate::server::session::Session;

/// Opens with an application instance, of all clients together.
const MAX_INSTANCES: usize = 16_384;
/// STATUS_FILE_FORCED_CLOSED.
const FILE_FORCED_CLOSED: NtStatus = NtStatus(0xC000_00B6);

/// AppInstanceId, and its version if there is one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Instance {
    id: Guid,
    /// The version, as far as it counts: on connections of 3.1.1.
    version: Option<(u64, u64)>,
    /// Whether the client has sent a version, on any dialect.
    names_version: bool,
}

impl Instance {
    /// The application instance that a CREATE names.
    pub(super) fn of(contexts: &[RequestContext], dialect: Dialect) -> Option<Instance> {
        let id = contexts.iter().find_map(|context| match context {
            RequestContext::AppInstance(id) if dialect >= Dialect::V3_0 => Some(*id),
            _ => None,
        })?;
        let version = contexts.iter().find_map(|context| match context {
            RequestContext::AppInstanceVersion { high, low } if dialect >= Dialect::V3_1_1 => {
                Some((*high, *low))
            }
            _ => None,
        });
        let names_version =
            contexts.iter().any(|context| matches!(context, RequestContext::AppInstanceVersion { .. }));
        Some(Instance { id, version, names_version })
    }
}

struct InstanceOpen {
    open: Weak<Open>,
    session: Weak<Session>,
    client: Guid,
    version: Option<(u64, u64)>,
}

/// An open, and its session if that still exists.
type Superseded = (Arc<Open>, Option<Arc<Session>>);

/// Opens by their AppInstanceId.
#[derive(Default)]
pub(crate) struct Instances(Mutex<HashMap<Guid, Vec<InstanceOpen>>>);

impl Instances {
    /// Records the application instance of an open.
    pub(super) fn enter(&self, cx: &OpContext, instance: Instance, open: &Arc<Open>) {
        let mut all = lock(&self.0);
        if all.len() >= MAX_INSTANCES {
            all.retain(|_, opens| {
                opens.retain(|known| known.open.strong_count() > 0);
                !opens.is_empty()
            });
        }
        if all.len() >= MAX_INSTANCES {
            limits::reached("application instances");
            return;
        }
        let opens = all.entry(instance.id).or_default();
        opens.retain(|known| known.open.strong_count() > 0);
        opens.push(InstanceOpen {
            open: Arc::downgrade(open),
            session: Arc::downgrade(cx.session()),
            client: cx.session().client_guid,
            version: instance.version,
        });
    }

    /// The opens of another client that this instance supersedes; an error if they belong to a later instance.
    fn superseded(
        &self,
        cx: &OpContext,
        instance: Instance,
        (vfs, node): (&Vfs, NodeId),
    ) -> Result<Vec<Superseded>, NtStatus> {
        let all = lock(&self.0);
        let mut old = Vec::new();
        for known in all.get(&instance.id).into_iter().flatten() {
            let Some(open) = known.open.upgrade().filter(|_| known.client != cx.session().client_guid) else {
                continue;
            };
            if open.node != node || !Arc::ptr_eq(open.vfs.opens(), vfs.opens()) {
                continue;
            }
            match (known.version, instance.version) {
                (Some(theirs), Some(ours)) if theirs >= ours => return Err(FILE_FORCED_CLOSED),
                // 3.3.5.9.13: this server knows versions, so the connection's dialect does not matter.
                (Some(_), None) if !instance.names_version => return Err(FILE_FORCED_CLOSED),
                _ => old.push((open, known.session.upgrade())),
            }
        }
        Ok(old)
    }
}

/// Closes what the application has open elsewhere (3.3.5.9.13), if the user may do to the file what that open may. The
/// specification asks only for the right to read; then a reader who has learned an AppInstanceId, which is no secret, could
/// take the file from its writer.
pub(super) async fn take_over(
    cx: &OpContext,
    instance: Instance,
    vfs: &Vfs,
    attr: &Attr,
    place: DirName<&[u8]>,
) -> Result<(), Failure> {
    let superseded = cx.server().handles.instances.superseded(cx, instance, (vfs, attr.node))?;
    if superseded.is_empty() {
        return Ok(());
    }
    let dos = vfs.xattr_summary(attr.node).await?.dos;
    let rights = security::maximal(cx, vfs, Metadata { attr, dos }, place).await?;
    for (open, session) in superseded {
        let needed = AccessMask::FILE_GENERIC_READ | open.access;
        if !rights.contains(needed.without(AccessMask::SYNCHRONIZE)) {
            continue;
        }
        let removed = match session.and_then(|session| Some((session.opens.name_of(&open)?, session))) {
            Some(((id, tree), session)) => session.opens.remove(id, tree),
            None => cx.server().handles.preserved.remove(&open),
        };
        // Somebody else may be closing it at the same time.
        if let Some(open) = removed {
            tracing::debug!("an open was closed: its application has another instance now");
            open.close().await;
        }
    }
    Ok(())
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Every update of its content is one call that cannot panic half-way, so a poisoned lock is harmless.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
