//! Closing an open: removes its entry in the table of opens, its locks, and perhaps the file's name.
//!
//! See RFC 7530 9.10 and RFC 8881 9.9.

use std::sync::Arc;

use weft_store::Kind as NodeKind;
use weft_store::opens::{Open, Removal};
use weft_store::{DirName, Error, ShareKey, Vfs};

use super::audited;
use super::state::clients::Taken;
use super::state::{Kind, State};
use crate::server::Server;
use crate::server::context::Node;

/// Closes what a state holds, also in a share that is no longer served. A second time does nothing.
pub(super) async fn close(state: &State) {
    let share = &state.share;
    match &state.kind {
        Kind::Open { .. } | Kind::Delegation { .. } => {
            if let Some(right) = state.delegation() {
                right.give_back();
            }
            let (open, locks, audited) = {
                let mut held = state.held_mut();
                let open = held.hold.take().and(held.open.take());
                (open, std::mem::take(&mut held.locks), std::mem::take(&mut held.audited))
            };
            if !audited.is_empty() {
                Box::pin(audited::closed(state, audited)).await;
            }
            // They refer to this open and would keep it forever.
            drop(locks);
            if let Some(open) = open {
                close_open(&share.vfs, open).await;
            }
        }
        Kind::Lock { id, .. } => {
            state.end();
            share.vfs.opens().release_ranges(state.file.node, *id);
        }
    }
}

/// Removes an open from the table, and the file's name if its deletion waited for this open.
pub(in crate::server) async fn close_open(vfs: &Vfs, open: Open) {
    if let Some(removal) = open.close() {
        remove(vfs, removal).await;
    }
}

/// Revokes what clients with expired leases hold on this file. Returns whether there was anything.
pub(in crate::server) async fn clear_lapsed(server: &Server, node: &Node<'_>) -> bool {
    let taken = server.states.take_lapsed(node.file(), weft_machine::rt::now());
    let any = !taken.0.is_empty();
    give_up(taken).await;
    any
}

/// Closes what was revoked from clients.
pub(super) async fn give_up(taken: Taken) {
    for state in &taken.0 {
        close(state).await;
    }
}

/// Closes what a client did not receive after all.
pub(super) async fn give_back(server: &Server, state: Arc<State>) {
    server.states.leave(&state);
    give_up(Taken(vec![state])).await;
}

/// The last close of a file that another client (SMB) has marked for deletion. That client was permitted to delete it; who
/// happens to close it last need not be.
async fn remove(vfs: &Vfs, removal: Removal) {
    let vfs = vfs.as_server();
    let removed = async {
        if let Some((base, name)) = vfs.stream_of(removal.node()) {
            return vfs.remove_stream(base, &name).await;
        }
        let kind = vfs.getattr(removal.node()).await?.kind;
        let DirName { dir, name } = vfs.place(removal.node()).await?;
        if kind == NodeKind::Dir { vfs.rmdir(dir, &name).await } else { vfs.remove(dir, &name).await }
    };
    match removed.await {
        Ok(()) | Err(Error::NotFound | Error::Stale) => {}
        Err(e) => tracing::warn!("could not delete a file on its last close: {e}"),
    }
}

/// Revokes the state of clients that have been silent for long. Call this periodically.
pub(in crate::server) async fn sweep(server: &Server) {
    let taken = server.states.sweep(weft_machine::rt::now());
    give_up(taken).await;
}

/// Releases what clients hold in these shares, which are no longer served.
pub(in crate::server) async fn release(server: &Server, gone: &[ShareKey]) {
    give_up(server.states.take_from(gone)).await;
}
