//! A share: where its files are, and the rules for its users.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use weft_smb::server::dfs::Link;
use weft_store::rights::Rights;
use weft_store::rules::{ActsAs, Export, Rules};

use super::key::{self, Key, Origin};
use crate::out::{ShellCommand, path_name};

/// The longest name of a share; Windows allows no longer one.
pub(super) const MAX_NAME_CHARS: usize = 80;

/// How long a file system may take to say what is at a path, and to open a folder. One that takes longer is treated like one
/// that is not there.
pub(crate) const LOOK_LIMIT: Duration = Duration::from_secs(5);

/// One share with its rules. A rule without a protocol in its name applies to every protocol.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ShareConfig {
    /// Where it was configured.
    pub origin: Origin,
    /// Its name; clients ignore case.
    pub name: String,
    /// Where its files are.
    pub source: ShareSource,
    /// Whether all changes are refused.
    pub read_only: bool,
    /// Who may read and write.
    pub rights: Rights,
    /// The account of the system as which everybody uses its folder.
    pub force_user: Option<String>,
    /// As whom its folder is used: the server, or this account once it was found.
    pub acts: ActsAs,
    /// How much its folder may occupy, in bytes.
    pub quota: Option<u64>,
    /// Whether encryption is required; NFS then does not offer the share.
    pub encrypt: bool,
    /// Whether listings over SMB hide what the user may not read.
    pub hide_unreadable: bool,
    /// Whether handles survive a server restart if SMB clients ask for it.
    pub continuous_availability: bool,
    /// Whether SMB clients are told to ask for compression.
    pub compress: bool,
    /// Whether Macs may back up to it with Time Machine.
    pub time_machine: bool,
    /// The pattern of the folder's snapshot names, which contain the time.
    pub snapshots: Option<String>,
    /// DFS referrals, with this share as their root.
    pub dfs_links: Vec<Link>,
    /// Its NFS options; `None` for the server's defaults.
    pub nfs: Option<Export>,
}

/// Where the files of a share are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ShareSource {
    /// In a folder.
    Folder(PathBuf),
    /// In memory.
    Ram {
        /// Their size limit.
        size_bytes: u64,
    },
    /// The volumes of this server.
    Volumes,
}

impl ShareSource {
    /// The folder, if the files are in one.
    pub(crate) fn folder(&self) -> Option<&Path> {
        match self {
            ShareSource::Folder(path) => Some(path),
            ShareSource::Ram { .. } | ShareSource::Volumes => None,
        }
    }
}

impl ShareConfig {
    /// A share of the command line, with default rules.
    pub(crate) fn new(name: impl Into<String>, source: ShareSource) -> ShareConfig {
        ShareConfig {
            origin: Origin::Flags,
            name: name.into(),
            source,
            read_only: false,
            rights: Rights::default(),
            force_user: None,
            acts: ActsAs::Server,
            quota: None,
            encrypt: false,
            hide_unreadable: false,
            continuous_availability: false,
            compress: false,
            time_machine: false,
            snapshots: None,
            dfs_links: Vec::new(),
            nfs: None,
        }
    }

    /// Whether clients mean this share by a name.
    pub(crate) fn is_named(&self, name: &str) -> bool {
        self.name.eq_ignore_ascii_case(name)
    }

    /// Its key in the configuration.
    pub(crate) fn key(&self) -> Key {
        let key = match &self.source {
            ShareSource::Folder(path) => Key::of_folder(&self.name, path),
            ShareSource::Ram { .. } => Key::of_share(&self.name, key::RAM),
            ShareSource::Volumes => Key::of_shared_volumes(&self.name),
        };
        match self.origin {
            Origin::File => key,
            // The file may have a share of the same name.
            Origin::Flags => Key::typed(key.at(Origin::Flags).into_owned()),
        }
    }

    /// The rules for its users.
    pub(crate) fn rules(&self) -> Rules {
        let nfs = self.nfs.clone().unwrap_or_default();
        Rules {
            encrypted: self.encrypt,
            hides_unreadable: self.hide_unreadable,
            backs_up_macs: self.time_machine,
            rights: self.rights.clone(),
            acts: self.acts.clone(),
            nfs: Export { read_only: nfs.read_only || self.read_only, ..nfs },
            nfs_is_chosen: self.nfs.is_some(),
        }
    }
}

/// Why a folder cannot be served.
#[derive(Debug)]
pub(crate) enum FolderFault {
    /// It does not exist.
    Missing,
    /// It cannot be reached or opened.
    Unreachable(io::Error),
    /// It is on a mount whose file system or server is gone.
    Dead { source: io::Error, point: PathBuf },
    /// It is not a folder; this is its parent folder.
    NoFolder { above: PathBuf },
    /// It has no name that could be a share's.
    Nameless,
    /// Its file system has not answered within [`LOOK_LIMIT`].
    Silent,
    /// Landlock keeps this process out of it.
    Outside,
}

impl FolderFault {
    /// The sentence for a folder, and what to do.
    pub(super) fn said(&self, path: &Path, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shown = path_name(path);
        match self {
            FolderFault::Missing => {
                let make = ShellCommand::new("mkdir -p").operand(path);
                write!(f, "cannot serve {shown}: no such folder; create it: {make}")
            }
            FolderFault::Unreachable(e) => write!(f, "cannot serve {shown}: {e}"),
            FolderFault::Dead { source, point } => {
                let unmount = ShellCommand::new("umount -l").operand(point);
                write!(
                    f,
                    "cannot serve {shown}: {source}: the disk, server or program behind its mount is gone or fails: `{unmount}`, and mount it \
                     again"
                )
            }
            FolderFault::NoFolder { above } => {
                write!(
                    f,
                    "cannot serve {shown}: it is not a folder; give its parent folder: {}",
                    path_name(above)
                )
            }
            FolderFault::Nameless => {
                write!(f, "{shown} has no name that a share could use: give a folder below it")
            }
            FolderFault::Silent => {
                let (limit, look) = (LOOK_LIMIT.as_secs(), ShellCommand::new("ls -d").operand(path));
                write!(
                    f,
                    "cannot serve {shown}: its file system has not answered within {limit} s; perhaps its disk or server is gone: {look}"
                )
            }
            FolderFault::Outside => write!(
                f,
                "cannot serve {shown} until the server is restarted: Landlock confines the one that runs to the folders that it had at its \
                 start (confine.folders names more)"
            ),
        }
    }
}
