//! The file of an open that the audit log tells of.

use weft_store::audit::AuditedOpen;

use super::state::State;
use crate::server::audit;

/// Where a file is by now; `None` if it has no name any more.
pub(super) async fn path_of(state: &State) -> Option<Vec<u8>> {
    audit::path_of(&state.share.vfs, state.file.node).await
}

/// An open ends, for each of its users.
pub(super) async fn closed(state: &State, audited: Vec<AuditedOpen>) {
    let path = match audited.iter().any(AuditedOpen::tells_close) {
        true => path_of(state).await,
        false => None,
    };
    for audited in audited {
        path.iter().for_each(|path| audited.is_at(path.clone()));
        audited.close();
    }
}
