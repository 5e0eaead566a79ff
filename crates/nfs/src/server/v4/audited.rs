//! The file of an open that the audit log tells of.

use weft_store::audit::AuditedOpen;

use super::state::State;

/// Where a file is by now; `None` if it has no name any more.
pub(super) async fn path_of(state: &State) -> Option<Vec<u8>> {
    state.share.vfs.as_server().path(state.file.node).await.ok()
}

/// An open ends.
pub(super) async fn closed(state: &State, audited: Box<AuditedOpen>) {
    if audited.tells_close()
        && let Some(path) = path_of(state).await
    {
        audited.is_at(path);
    }
    audited.close();
}
