//! The files and folders that are the server's own: its state, keys and certificates, and what it writes.

use std::path::PathBuf;

use super::error::Harm;
use super::key::{self, Key};
use super::{AdminAddress, ServeConfig};

/// A file or folder of the server.
pub(super) struct OwnFile {
    /// The key that names it. The configuration itself has none.
    pub key: Option<Key>,
    pub path: PathBuf,
    /// What clients could do if it were in a folder that they reach.
    pub harm: Option<Harm>,
}

/// All files and folders of the server's own that a configuration names, in the order of their keys.
pub(super) fn own_files(config: &ServeConfig) -> Vec<OwnFile> {
    let mut files = Vec::new();
    let mut add = |key: Option<Key>, path: Option<PathBuf>, harm: Option<Harm>| {
        let path = path.filter(|path| !path.as_os_str().is_empty());
        files.extend(path.map(|path| OwnFile { key, path, harm }));
    };
    add(Some(key::STATE_DIR), config.state_dir(), Some(Harm::State));
    add(Some(key::KEYTAB), config.smb.keytab.clone(), Some(Harm::Key));
    add(Some(key::ADMIN_TOKEN), config.admin_token_file.clone(), Some(Harm::Key));
    let tls = &config.tls;
    let nfs = [key::NFS_CERTIFICATE, key::NFS_CERTIFICATE_KEY, key::NFS_CERTIFICATE_CLIENTS];
    let nbd = [key::NBD_CERTIFICATE, key::NBD_CERTIFICATE_KEY, key::NBD_CERTIFICATE_CLIENTS];
    let admin = [key::ADMIN_CERTIFICATE, key::ADMIN_CERTIFICATE_KEY, key::ADMIN_CERTIFICATE_CLIENTS];
    for (files, keys) in [(&tls.nfs, nfs), (&tls.nbd, nbd), (&tls.admin, admin)] {
        let (Some(files), [chain, private, clients]) = (files, keys) else { continue };
        add(Some(chain), Some(files.certificate.clone()), None);
        add(Some(private), Some(files.key.clone()), Some(Harm::Key));
        add(Some(clients), files.clients.clone(), Some(Harm::Authorities));
    }
    let capture = config.rdma.capture.as_ref().map(|capture| capture.file.clone());
    add(Some(key::CAPTURE), capture, Some(Harm::Capture));
    add(Some(key::AUDIT_FILE), config.audit.file.clone(), Some(Harm::Audit));
    add(Some(key::NBD_SOCKET), config.listeners.nbd_socket.clone(), None);
    if let Some(AdminAddress::Unix(path)) = &config.admin {
        add(Some(key::ADMIN), Some(path.clone()), None);
    }
    add(None, config.sources.file().map(ToOwned::to_owned), Some(Harm::Configuration));
    files
}
