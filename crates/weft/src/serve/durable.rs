//! State that survives a restart of the server: persistent handles of SMB, and NFS's client records.
//!
//! A returning client needs the same port: if the port is chosen at each start, nothing is kept unless a directory is
//! named.

use weft_nfs::server::Durable;
use weft_smb::server as smb;

use super::error::StartError;
use crate::config::Plan;
use crate::ready::Ready;

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
