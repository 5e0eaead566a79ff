//! State that survives a restart of the server: persistent handles of SMB, and NFS's client records.
//!
//! A returning client needs the same port: if the port is chosen at each start, nothing is kept unless a directory is
//! named.

use std::io;
use std::path::Path;

use weft_machine::file::private;
use weft_nfs::server::Durable;
use weft_smb::server as smb;

use super::error::StartError;
use crate::config::Plan;
use crate::config::key::{self, Origin};
use crate::out::path_name;
use crate::ready::Ready;

/// Makes the state directory if the configuration file names it and it is missing. The log tells so: if its disk is not mounted,
/// the server lacks its users, keys and records. Blocks.
pub(super) fn make_named_dir(plan: &Plan) {
    let config = plan.config();
    let named = config.state_dir.as_ref().filter(|dir| is_missing(dir));
    let Some(dir) = named.filter(|_| config.sources.origin_of(&key::STATE_DIR) == Origin::File) else {
        return;
    };
    // A fault of it is reported where it is used.
    if private::folder(dir).is_ok() {
        tracing::warn!(
            "made the state directory {}: it was missing; if it is on a disk of its own, stop, mount it, start again",
            path_name(dir)
        );
    }
}

fn is_missing(dir: &Path) -> bool {
    dir.metadata().is_err_and(|e| e.kind() == io::ErrorKind::NotFound)
}

/// The journal of persistent handles.
pub(super) fn of_smb(plan: &Plan) -> Result<smb::journal::Journal, StartError> {
    // A plan without a directory for them would not pass the check.
    let dir = plan.state_dir().unwrap_or_default();
    let instance = format!("{}-{}", plan.listen.first(), plan.config().listeners.smb_port);
    smb::journal::Journal::open(&dir, &instance).map_err(|source| StartError::Handles { dir, source })
}

/// NFS's state that survives restarts.
pub(super) fn of_nfs(plan: &Plan, ready: &Ready) -> Result<Option<Durable>, StartError> {
    let config = plan.config();
    let fixed = |port: Option<u16>| port.filter(|port| *port != 0);
    let port = fixed(config.listeners.nfs_port).or(fixed(config.listeners.nfs_rdma_port));
    let served = ready.nfs_port.or(ready.nfs_rdma_port);
    let Some(served) = served else { return Ok(None) };
    let instance = format!("{}-{served}", plan.listen.first());
    if let Some(dir) = &config.state_dir {
        return Ok(Some(Durable::open(dir, &instance)?));
    }
    if port.is_none() {
        return Ok(None);
    }
    let Some(dir) = crate::state_dir::state_of_user() else {
        tracing::warn!(
            "NFS clients will not survive a restart: neither XDG_STATE_HOME nor HOME is set; give a --state-dir"
        );
        return Ok(None);
    };
    match Durable::open(&dir, &instance) {
        Ok(durable) => Ok(Some(durable)),
        Err(e) => {
            tracing::warn!(
                "NFS clients will not survive a restart: {e}; fix that, or give another --state-dir"
            );
            Ok(None)
        }
    }
}
