//! What ends with an open: its place in the table of opens, its locks, and perhaps the file's name.
//!
//! Spec: RFC 7530 9.10, RFC 8881 9.9. Owns: nothing. Does not: decide that something ends.

use weft_store::Kind as NodeKind;
use weft_store::opens::Removal;
use weft_store::{Error, Vfs};

use super::state::clients::Taken;
use super::state::{Kind, State};
use crate::server::Server;

/// Closes what a state holds. A second time does nothing.
pub(super) async fn close(server: &Server, state: &State) {
    let Some(share) = server.shares.get(state.share) else { return };
    match &state.kind {
        Kind::Open { .. } => {
            let open = {
                let mut held = state.held_mut();
                held.hold.take().and(held.open.take())
            };
            if let Some(removal) = open.and_then(|open| open.close()) {
                remove(&share.vfs, removal).await;
            }
        }
        Kind::Lock { id, .. } => share.vfs.opens().release_ranges(state.node, *id),
    }
}

/// Closes what was taken from clients.
pub(super) async fn give_up(server: &Server, taken: Taken) {
    for state in &taken.0 {
        close(server, state).await;
    }
}

/// The last close of a file that somebody (SMB) wanted deleted.
async fn remove(vfs: &Vfs, removal: Removal) {
    let removed = async {
        let kind = vfs.getattr(removal.node()).await?.kind;
        let (dir, name) = vfs.place(removal.node()).await?;
        if kind == NodeKind::Dir { vfs.rmdir(dir, &name).await } else { vfs.remove(dir, &name).await }
    };
    match removed.await {
        Ok(()) | Err(Error::NotFound | Error::Stale) => {}
        Err(e) => tracing::warn!("a file that was to be deleted on its last close stays: {e}"),
    }
}

/// Takes away what clients hold that were silent for long. To be called from time to time.
pub(in crate::server) async fn sweep(server: &Server) {
    let taken = server.states.sweep(weft_machine::rt::now());
    give_up(server, taken).await;
}
