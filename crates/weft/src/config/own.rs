//! The files and folders that are the server's own: its state, keys and certificates, and what it writes.

use std::fs::FileType;
use std::io;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

use weft_store::volume::Volumes;

use super::error::{Harm, NoPlace, Problem};
use super::key::{self, Key};
use super::looks::{self, Looks};
use super::{AdminAddress, ConfigError, ServeConfig, VolumeConfig};
use crate::listen::unix;

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

/// The files of the served volumes outside the state directory, each with the key of its volume.
pub(super) fn volume_files(config: &ServeConfig, looks: &Looks) -> Vec<(Key, PathBuf)> {
    let Some(state) = config.state_dir().filter(|state| looks.has_answered(state)) else { return Vec::new() };
    let stored = Volumes::at(state.join("volumes"));
    let file = |volume: &VolumeConfig| {
        let path = stored.superblock(&volume.name).ok()?.path;
        (!path.as_os_str().is_empty()).then(|| (Key::of_volume(&volume.name), path))
    };
    config.volumes.iter().filter_map(file).collect()
}

/// Checks that nothing else lies where the audit log, the capture and the sockets are to be, and that the names of sockets
/// fit. Their file systems have answered.
pub(super) fn check(config: &ServeConfig) -> Result<(), ConfigError> {
    places(config)
        .find_map(|(key, path, fits)| Some(fits(path).err()?.of(config, key, path)))
        .map_or(Ok(()), Err)
}

/// The folders that are missing for them. The service manager may make them when the service starts.
pub(super) fn missing_folders(config: &ServeConfig, looks: &Looks) -> Vec<ConfigError> {
    let missing = |(key, path, _): (Key, &Path, Fits)| {
        if !looks.has_answered(path) {
            return None;
        }
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty())?;
        let is_missing = folder.metadata().is_err_and(|e| e.kind() == io::ErrorKind::NotFound);
        is_missing.then(|| NoPlace::Folder(folder.to_owned()).of(config, key, path))
    };
    places(config).filter_map(missing).collect()
}

/// The folders in which this user may not make them, and the state directory if it is one. The service manager may run the
/// server as another user.
pub(super) fn closed_folders(config: &ServeConfig, looks: &Looks) -> Vec<ConfigError> {
    let closed = |key: Key, path: &Path, folder: &Path| {
        let why = NoPlace::Closed { folder: folder.to_owned(), user: weft_store::own_user() };
        why.of(config, key, path)
    };
    let state = config.state_dir().filter(|state| looks.is_dir(state) && looks.is_unwritable(state));
    let state = state.map(|state| closed(key::STATE_DIR, &state, &state));
    let unmade = |(key, path, _): (Key, &Path, Fits)| {
        // What is there is opened as it is.
        if !looks.has_answered(path) || kind(path).is_some() {
            return None;
        }
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty())?;
        looks::is_unwritable(folder).then(|| closed(key, path, folder))
    };
    state.into_iter().chain(places(config).filter_map(unmade)).collect()
}

/// Whether what is at a path lets the server make or open its own there.
type Fits = fn(&Path) -> Result<(), NoPlace>;

/// What the server makes or opens, each with its key and path.
fn places(config: &ServeConfig) -> impl Iterator<Item = (Key, &Path, Fits)> {
    let audit = config.audit.file.as_deref().map(|path| (key::AUDIT_FILE, path, audit as Fits));
    let capture = config.rdma.capture.as_ref().map(|own| (key::CAPTURE, own.file.as_path(), capture as Fits));
    let nbd = config.listeners.nbd_socket.as_deref().map(|path| (key::NBD_SOCKET, path, socket as Fits));
    let admin = match &config.admin {
        Some(AdminAddress::Unix(path)) => Some((key::ADMIN, path.as_path(), socket as Fits)),
        _ => None,
    };
    [audit, capture, nbd, admin].into_iter().flatten()
}

impl NoPlace {
    fn of(self, config: &ServeConfig, key: Key, path: &Path) -> ConfigError {
        config.wrong(key, Problem::NoPlace { path: path.to_owned(), why: self })
    }
}

fn kind(path: &Path) -> Option<FileType> {
    path.symlink_metadata().ok().map(|found| found.file_type())
}

/// Links are not followed.
fn audit(path: &Path) -> Result<(), NoPlace> {
    match kind(path) {
        Some(kind) if !kind.is_file() => Err(NoPlace::NoFile),
        _ => Ok(()),
    }
}

/// A capture may go to a pipe.
fn capture(path: &Path) -> Result<(), NoPlace> {
    match kind(path) {
        Some(kind) if kind.is_dir() || kind.is_socket() => Err(NoPlace::NoFile),
        _ => Ok(()),
    }
}

/// A socket that is left from an earlier server is replaced.
fn socket(path: &Path) -> Result<(), NoPlace> {
    if let Some(most) = unix::name_limit(path) {
        return Err(NoPlace::Long(most));
    }
    match kind(path) {
        Some(kind) if !kind.is_socket() => Err(NoPlace::NoSocket),
        _ => Ok(()),
    }
}
