//! A share: where its files are, and what is asked of those who use it.

use std::io;
use std::path::{Path, PathBuf};

use weft_smb::server::dfs::Link;
use weft_store::rules::{Export, Rules};

use super::error::FolderFault;
use super::key::{self, Key};

/// The longest name of a share; Windows makes none that is longer.
pub(super) const MAX_NAME_CHARS: usize = 80;

/// One share, with all that is asked of it. Whatever has no protocol in its name is for every protocol.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ShareConfig {
    /// What clients call it; they do not tell cases apart.
    pub name: String,
    /// Where its files are.
    pub source: ShareSource,
    /// Nobody changes anything.
    pub read_only: bool,
    /// Nothing of it travels unencrypted; NFS does not offer it then.
    pub encrypt: bool,
    /// Listings leave out what their user may not read, over SMB.
    pub hide_unreadable: bool,
    /// Handles survive a restart of the server where clients of SMB ask for that.
    pub continuous_availability: bool,
    /// Clients of SMB are told to ask for compression.
    pub compress: bool,
    /// Where the snapshots of the folder are, by the time in their names.
    pub snapshots: Option<String>,
    /// Names that lead elsewhere. Each has this share as its root.
    pub dfs_links: Vec<Link>,
    /// How it is offered over NFS; `None` is as the server does by itself.
    pub nfs: Option<Export>,
}

/// Where the files of a share are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ShareSource {
    /// In a folder.
    Folder(PathBuf),
    /// In memory.
    Ram {
        /// What they may take up.
        size_bytes: u64,
    },
    /// They are the volumes of this server.
    Volumes,
}

impl ShareConfig {
    /// A share that asks nothing.
    pub(crate) fn new(name: impl Into<String>, source: ShareSource) -> ShareConfig {
        ShareConfig {
            name: name.into(),
            source,
            read_only: false,
            encrypt: false,
            hide_unreadable: false,
            continuous_availability: false,
            compress: false,
            snapshots: None,
            dfs_links: Vec::new(),
            nfs: None,
        }
    }

    /// Whether clients mean this share by a name.
    pub(crate) fn is_named(&self, name: &str) -> bool {
        self.name.eq_ignore_ascii_case(name)
    }

    /// What it is called by whoever configures it.
    pub(crate) fn key(&self) -> Key {
        match &self.source {
            ShareSource::Folder(path) => Key::of_folder(&self.name, path),
            ShareSource::Ram { .. } => Key::of_share(&self.name, key::RAM),
            ShareSource::Volumes => Key::of_shared_volumes(&self.name),
        }
    }

    /// What those who use it have to keep to.
    pub(crate) fn rules(&self) -> Rules {
        let nfs = self.nfs.clone().unwrap_or_default();
        Rules {
            encrypted: self.encrypt,
            hides_unreadable: self.hide_unreadable,
            nfs: Export { read_only: nfs.read_only || self.read_only, ..nfs },
        }
    }
}

/// A share that is named after its folder, also when the path is `.` or ends in `..`.
pub(crate) fn share_of_folder(path: &Path) -> Result<ShareConfig, FolderFault> {
    let real = real_folder(path)?;
    let name = real.file_name().and_then(|name| name.to_str()).ok_or(FolderFault::Nameless)?;
    Ok(ShareConfig::new(name, ShareSource::Folder(path.to_owned())))
}

/// The folder that a path leads to, as it is called without links.
pub(super) fn real_folder(path: &Path) -> Result<PathBuf, FolderFault> {
    let real = path.canonicalize().map_err(|e| match e.kind() {
        io::ErrorKind::NotFound => FolderFault::Missing,
        _ => FolderFault::Unreachable(e),
    })?;
    match real.is_dir() {
        true => Ok(real),
        false => Err(FolderFault::NoFolder { above: real.parent().unwrap_or(Path::new("/")).to_owned() }),
    }
}
