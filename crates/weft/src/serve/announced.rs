//! What the server announces of itself on its networks: the ports and shares that `weft_announce` is given, and the
//! server's identity there.

use std::io;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use weft_announce::{AnnouncedShare, Announcement, Announcer, Uuid};
use weft_machine::file::private;
use weft_machine::{random, rt};

use super::names::host_name;
use crate::config::{Plan, ServeConfig};
use crate::out::path_name;
use crate::ready::Ready;
use crate::shares::Described;

/// The file of the identity: 16 random bytes, by which Windows knows the server again whatever its name.
const FILE: &str = "announce.id";

/// See the module.
pub(super) struct Announced {
    announcer: Announcer,
    state_dir: Option<PathBuf>,
    id: OnceLock<Uuid>,
    listen: Vec<IpAddr>,
    smb_port: Option<u16>,
    nfs_port: Option<u16>,
}

impl Announced {
    /// Announces nothing yet.
    pub(super) fn new(plan: &Plan, ready: &Ready) -> Announced {
        Announced {
            announcer: Announcer::default(),
            state_dir: plan.state_dir(),
            id: OnceLock::new(),
            listen: plan.listen.all().to_vec(),
            smb_port: ready.smb_port,
            nfs_port: ready.nfs_port,
        }
    }

    /// Announces these shares as configured, or nothing any more. A failure is logged: it takes nothing away from clients that
    /// know the server.
    pub(super) async fn tell(self: Arc<Announced>, config: ServeConfig, shares: Vec<Described>) {
        // The file may be on a slow disk.
        rt::blocking(move || {
            let announcement = config.announce.is_on().then(|| self.announcement(&config, &shares));
            if let Err(e) = self.announcer.set(announcement) {
                tracing::error!("the server is not announced on its networks: {e}");
            }
        })
        .await;
    }

    /// What the administrator should know now: one sentence each.
    pub(super) fn warnings(&self) -> Vec<String> {
        self.announcer.warnings()
    }

    /// Says goodbye.
    pub(super) fn end(&self) {
        self.announcer.end();
    }

    fn announcement(&self, config: &ServeConfig, shares: &[Described]) -> Announcement {
        let announce = &config.announce;
        let shares = shares.iter().map(|Described { share, .. }| AnnouncedShare {
            name: share.name.to_string(),
            time_machine: share.rules.backs_up_macs,
            export: share.rules.withheld_from_nfs().is_none().then(|| format!("/{}", share.name)),
        });
        Announcement {
            mdns: announce.mdns,
            ws_discovery: announce.ws_discovery,
            name: announce.name_on(&host_name()),
            workgroup: announce.workgroup.clone(),
            model: config.smb.mac_model.clone(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            id: *self.id.get_or_init(|| identity(self.state_dir.as_deref())),
            interfaces: announce.interfaces.clone(),
            listen: self.listen.clone(),
            smb_port: self.smb_port,
            nfs_port: self.nfs_port,
            shares: shares.collect(),
        }
    }
}

/// The identity in the state directory, created at first use. Without it, Windows takes the server for another one after each
/// start.
fn identity(state_dir: Option<&Path>) -> Uuid {
    let make = || Ok(random::bytes::<16>()?.to_vec());
    let kept = |dir: &Path| -> io::Result<Vec<u8>> {
        private::folder(dir)?;
        private::made_once(&dir.join(FILE), make)
    };
    let bytes = state_dir.map_or_else(|| Err(io::ErrorKind::NotFound.into()), kept);
    let bytes = bytes.and_then(|bytes| bytes.try_into().map_err(|_| io::Error::other("it has not 16 bytes")));
    let bytes = bytes.unwrap_or_else(|e| {
        let file = state_dir.map_or_else(|| "the state directory".to_owned(), |dir| path_name(&dir.join(FILE)));
        tracing::warn!(
            "WS-Discovery has a new identity in this run, because {file} cannot be used: {e}; if it is damaged, remove it"
        );
        random::bytes().unwrap_or_default()
    });
    Uuid::of_random(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_identity_is_kept() {
        let dir = tempfile::tempdir().unwrap();
        let first = identity(Some(dir.path()));
        assert_eq!(identity(Some(dir.path())), first);
        std::fs::write(dir.path().join(FILE), b"short").unwrap();
        assert_ne!(identity(Some(dir.path())), first);
        assert_eq!(std::fs::read(dir.path().join(FILE)).unwrap(), b"short", "it is not overwritten");
        assert_ne!(identity(None), identity(None));
    }
}
