//! The durability that a request asks for, and gives to its open.
//!
//! Spec: [MS-SMB2] 3.3.5.9.6, 3.3.5.9.10 (requests), 3.3.5.15.9 (resilient handles). See [`super::durable`] for what
//! becomes of the handle.

use std::time::Duration;

use weft_store::vfs::Kind;
use weft_wire::smb2::create_context::{DurableFlags, RequestContext, ResponseContext};
use weft_wire::smb2::{Dialect, FileId, Guid, NtStatus};

use super::durable::Durable;
use super::opens::Open;
use super::persistent::Persistent;
use crate::server::context::OpContext;

/// The timeout of version 1, and of version 2 if the client names none.
const DEFAULT_TIMEOUT: Duration = Duration::from_secs(60);
/// The longest timeout that a client can ask for (3.3.5.9.10).
const MAX_TIMEOUT: Duration = Duration::from_secs(300);

/// The timeout of a resilient handle if the client names none, and the longest one that it can name.
const DEFAULT_RESILIENCY: Duration = Duration::from_secs(120);
const MAX_RESILIENCY: Duration = Duration::from_secs(300);

/// The durability that a CREATE asks for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Wanted {
    /// An open that ends with its session.
    Nothing,
    /// `DHnQ`.
    V1,
    /// `DH2Q`.
    V2 { timeout: Duration, create_guid: Guid, persistent: bool },
    /// `DHnC`: reconnects this handle.
    Reconnect { file: FileId },
    /// `DH2C`.
    ReconnectV2 { file: FileId, create_guid: Guid, persistent: bool },
}

impl Wanted {
    /// The relevant one of the four contexts, if they do not contradict each other.
    pub(super) fn of(contexts: &[RequestContext], dialect: Dialect) -> Result<Wanted, NtStatus> {
        let (mut v1, mut v2) = (Wanted::Nothing, Wanted::Nothing);
        let mut versions = (0u32, 0u32);
        for context in contexts {
            match context {
                RequestContext::Durable => {
                    versions.0 = versions.0.saturating_add(1);
                    if v1 == Wanted::Nothing {
                        v1 = Wanted::V1;
                    }
                }
                RequestContext::DurableReconnect(file) => {
                    versions.0 = versions.0.saturating_add(1);
                    v1 = Wanted::Reconnect { file: *file };
                }
                RequestContext::DurableV2 { timeout_ms, create_guid, flags } => {
                    versions.1 = versions.1.saturating_add(1);
                    let timeout = match timeout_ms {
                        0 => DEFAULT_TIMEOUT,
                        &ms => Duration::from_millis(ms.into()).min(MAX_TIMEOUT),
                    };
                    let persistent = flags.contains(DurableFlags::PERSISTENT);
                    v2 = Wanted::V2 { timeout, create_guid: *create_guid, persistent };
                }
                RequestContext::DurableReconnectV2 { file, create_guid, flags } => {
                    versions.1 = versions.1.saturating_add(1);
                    let persistent = flags.contains(DurableFlags::PERSISTENT);
                    v2 = Wanted::ReconnectV2 { file: *file, create_guid: *create_guid, persistent };
                }
                _ => {}
            }
        }
        // 3.3.5.9.6, .7, .10, .12: only a request and a reconnect of version 1 may occur together; this server
        // recognizes version 2 even on older connections, where it has no effect of its own.
        match versions {
            (_, 0) => Ok(v1),
            (0, _) if dialect < Dialect::V3_0 => Ok(Wanted::Nothing),
            (0, 1) => Ok(v2),
            _ => Err(NtStatus::INVALID_PARAMETER),
        }
    }
}

/// Makes an open durable if possible, and adds the context for the client. An open needs a batch oplock or a lease with
/// handle caching to be durable.
pub(super) fn make(cx: &OpContext, open: &Open, wanted: &Wanted, contexts: &mut Vec<ResponseContext>) {
    if let Some(durable) = open.durable.get().filter(|durable| durable.persistent().is_some()) {
        contexts.push(durable.describe());
        return;
    }
    let (create_guid, timeout) = match *wanted {
        Wanted::V1 => (None, DEFAULT_TIMEOUT),
        Wanted::V2 { timeout, create_guid, .. } => (Some(create_guid), timeout),
        _ => return,
    };
    // 3.3.5.9.6, 3.3.5.9.10: directories are never durable.
    if open.kind == Kind::Dir || !open.may_be_kept() {
        return;
    }
    let durable = of(cx, create_guid, timeout, None);
    let described = durable.describe();
    if open.durable.set(durable).is_ok() {
        contexts.push(described);
    }
}

/// Makes the open persistent. Called before any other request can find it: whoever closes it removes its record.
pub(super) fn make_persistent(cx: &OpContext, open: &Open, wanted: &Wanted, persistent: Persistent) {
    let Wanted::V2 { timeout, create_guid, .. } = *wanted else { return };
    let durable = of(cx, Some(create_guid), timeout, Some(persistent));
    let first = open.durable.set(durable).is_ok();
    debug_assert!(first, "it was just made");
}

/// FSCTL_LMR_REQUEST_RESILIENCY (3.3.5.15.9): the handle waits this long for its client, whatever its caching rights.
pub(super) fn make_resilient(cx: &OpContext, open: &Open, input: &[u8]) -> Result<(), NtStatus> {
    let Some((timeout, _reserved)) = input.split_first_chunk().filter(|(_, rest)| rest.len() >= 4) else {
        return Err(NtStatus::INVALID_PARAMETER);
    };
    let timeout = match u32::from_le_bytes(*timeout) {
        0 => DEFAULT_RESILIENCY,
        ms => Duration::from_millis(ms.into()),
    };
    if timeout > MAX_RESILIENCY {
        return Err(NtStatus::INVALID_PARAMETER);
    }
    // An open that is durable already keeps its owner.
    open.durable.get_or_init(|| of(cx, None, timeout, None));
    open.set_resilient(timeout);
    Ok(())
}

/// The state of an open that this request made.
fn of(
    cx: &OpContext,
    create_guid: Option<Guid>,
    timeout: Duration,
    persistent: Option<Persistent>,
) -> Durable {
    Durable {
        create_guid,
        user: cx.session().user.clone(),
        user_id: cx.session().user_id,
        client: cx.session().client_guid,
        timeout,
        home: cx.server().handles.preserved.clone(),
        persistent,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn contexts_of_both_versions_contradict_each_other_on_every_dialect() {
        let file = FileId { persistent: 1, volatile: 2 };
        let v1 = RequestContext::DurableReconnect(file);
        let (create_guid, flags) = ([7; 16], DurableFlags::NONE);
        let v2 = RequestContext::DurableV2 { timeout_ms: 0, create_guid, flags };
        let v2_again = RequestContext::DurableReconnectV2 { file, create_guid, flags };
        for dialect in [Dialect::V2_1, Dialect::V3_0, Dialect::V3_1_1] {
            for first in [v1.clone(), RequestContext::Durable] {
                for second in [&v2, &v2_again] {
                    let both = Wanted::of(&[first.clone(), second.clone()], dialect);
                    assert_eq!(both, Err(NtStatus::INVALID_PARAMETER), "{dialect}");
                }
            }
            assert_eq!(
                Wanted::of(&[RequestContext::Durable, v1.clone()], dialect),
                Ok(Wanted::Reconnect { file })
            );
        }
        assert_eq!(Wanted::of(std::slice::from_ref(&v2), Dialect::V2_1), Ok(Wanted::Nothing));
        assert!(matches!(Wanted::of(&[v2], Dialect::V3_0), Ok(Wanted::V2 { .. })));
    }
}
