//! Errors in a configuration: which key, what is wrong, and what to write. The sentences name keys as they are
//! written in the configuration's origin.

use std::fmt;
use std::io;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use weft_machine::net::TlsError;
use weft_smb::server::dfs::BadNamespace;
use weft_store::snapshots::BadPattern;
use weft_store::volume::Error as VolumeError;

use super::admin::TokenFault;
use super::find::default_file;
use super::key::{self, Key, Origin};
use super::share::{FolderFault, MAX_NAME_CHARS};
use super::sources::Sources;
use super::types::{DurationText, Type};
use crate::args::Misread;
use crate::out::{ShellCommand, path_name};
use crate::system_folder::is_system_folder;

/// A configuration that cannot be served.
#[derive(Debug)]
pub(crate) struct ConfigError(Box<Wrong>);

#[derive(Debug)]
struct Wrong {
    sources: Arc<Sources>,
    /// The key that is wrong.
    key: Key,
    problem: Problem,
}

/// The problem with a key.
#[derive(Debug)]
pub(crate) enum Problem {
    /// It names a share that does not exist.
    NoShare { there: Vec<String> },
    /// It is given twice; the second would override the first.
    ExportTwice { name: String },
    /// It is given twice.
    Twice,
    /// The name is not valid for a share.
    ShareName { name: String },
    /// Clients use this name for the server's pipes.
    PipesName { name: String },
    /// Clients cannot distinguish two shares.
    SameName { name: String, other: Key },
    /// A folder cannot be served.
    Folder { path: PathBuf, fault: FolderFault },
    /// It does not apply to a share of this kind.
    Unfit(&'static str),
    /// The text is not a pattern of snapshot names.
    Pattern(BadPattern),
    /// The system has no such account.
    NoAccount { user: String },
    /// It is not known whether the system has such an account.
    Unanswered { user: String, source: io::Error },
    /// A number out of range.
    Range { least: u128, most: u128 },
    /// A duration that is too long. Its option takes microseconds.
    Duration { most: Duration },
    /// A duration out of range.
    DurationRange { least: Duration, most: Duration },
    /// A size out of range.
    Size { least: u64, most: u64 },
    /// The kernel does not offer this congestion control.
    Congestion(Misread),
    /// Two services on one TCP port.
    SamePort { other: Key, port: u16 },
    /// It has no effect without another key.
    Needs { what: &'static str, give: Give },
    /// The two keys exclude each other.
    Excludes(Key),
    /// There is no share and no volume.
    NothingServed,
    /// Nothing is served over RDMA, so there is nothing to capture.
    NothingByRdma,
    /// There is no directory for state that survives a restart.
    NoStateDir,
    /// It is not a folder.
    NoFolder(PathBuf),
    /// This host does not have the address.
    Elsewhere(IpAddr),
    /// The same, but others are left. A warning.
    NotYet(IpAddr),
    /// The volume does not exist.
    NoVolume(VolumeError),
    /// Clients of a share could read or change a file of the server's own.
    Exposed { path: PathBuf, share: String, folder: PathBuf, harm: Harm },
    /// A share serves files of another one without its rules. A warning.
    Bypass { share: String, folder: PathBuf, place: Place, other: Key, rules: Vec<&'static str> },
    /// Quotas of a folder and of one inside it. A warning.
    CountedApart { folder: PathBuf, other: Key },
    /// Clients may write in a folder, and the server's user may not. A warning.
    Closed { share: String, folder: PathBuf, user: String },
    /// Returning clients would not find a port that is chosen at each start.
    AnyPort { fixed: Key },
    /// A file cannot be read.
    Unreadable { path: PathBuf, source: io::Error },
    /// The server cannot make or open a file or socket of its own.
    NoPlace { path: PathBuf, why: NoPlace },
    /// The file system of a file or folder of the server does not answer.
    Silent { path: PathBuf, why: String },
    /// A certificate and a key that do not make TLS.
    Tls { certificate: PathBuf, key: PathBuf, source: TlsError },
    /// A file without usable authorities of clients.
    Authorities { path: PathBuf, source: TlsError },
    /// The keytab cannot be used.
    Keytab(String),
    /// The file with the admin token cannot be used.
    Token { path: PathBuf, fault: TokenFault },
    /// DFS links that contradict each other.
    Links(BadNamespace),
}

/// Why the server cannot make or open a file or socket of its own.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum NoPlace {
    /// Its folder is missing.
    #[error("there is no folder {}: {}", path_name(.0), ShellCommand::new("mkdir -p").operand(.0))]
    Folder(PathBuf),
    /// This user may not write in its folder.
    #[error("the server's user {user} may not write {}: {}", path_name(.folder), given_to(.user, .folder))]
    Closed { folder: PathBuf, user: String },
    /// Something is there that is no file.
    #[error("it is not a regular file: move it away, or choose another path")]
    NoFile,
    /// A file that is no socket.
    #[error("it is not a socket: move it away, or choose another path")]
    NoSocket,
    /// The name is too long for a socket.
    #[error("the name of a socket in a deep folder has at most {0} bytes")]
    Long(usize),
}

/// What to do about a folder that the server's user may not write.
fn given_to(user: &str, folder: &Path) -> String {
    match is_system_folder(folder) {
        true => "choose another folder".to_owned(),
        false => ShellCommand::new("chown").operand(format!("{user}:")).operand(folder).to_string(),
    }
}

/// What clients could do with a file in a served folder.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Harm {
    /// The state directory.
    #[error("they could read the keys and the users' password hashes in it: choose another folder")]
    State,
    /// A private key or a keytab.
    #[error("they could read the key in it: move it to another folder")]
    Key,
    /// A capture.
    #[error("a capture contains the data of all users: choose a file elsewhere")]
    Capture,
    /// The audit log.
    #[error("they could read and change what it says about all users: choose a file elsewhere")]
    Audit,
    /// Authorities of client certificates.
    #[error(
        "they could add an authority of their own: move it to another folder, or set read_only for the share"
    )]
    Authorities,
    /// The configuration.
    #[error("they could change what is served: move it to another folder, or set read_only for the share")]
    Configuration,
    /// The file of a volume.
    #[error(
        "they could overwrite the volume, also while it is in use: serve another folder, or set read_only for the share"
    )]
    Volume,
}

/// Where a folder is, as seen from that of another share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    Same,
    Inside,
    Around,
}

/// What else must be configured.
#[derive(Debug)]
pub(crate) enum Give {
    /// All of these.
    All(Vec<Key>),
    /// One of these.
    One(Vec<Key>),
}

impl ConfigError {
    pub(super) fn new(sources: Arc<Sources>, key: Key, problem: Problem) -> ConfigError {
        ConfigError(Box::new(Wrong { sources, key, problem }))
    }

    /// Whether a share's folder cannot be served.
    pub(crate) fn is_of_folder(&self) -> bool {
        matches!(self.0.problem, Problem::Folder { .. })
    }

    /// Whether a folder cannot be served because this process keeps out of it until it starts again.
    pub(crate) fn is_of_confinement(&self) -> bool {
        matches!(self.0.problem, Problem::Folder { fault: FolderFault::Outside, .. })
    }

    /// Whether a folder cannot be served because its file system does not answer.
    pub(crate) fn is_of_silence(&self) -> bool {
        matches!(self.0.problem, Problem::Folder { fault: FolderFault::Silent, .. })
    }

    /// Whether the server's user lacks a permission on a share's folder.
    pub(crate) fn is_of_permission(&self) -> bool {
        matches!(self.0.problem, Problem::Closed { .. })
    }

    /// Whether the configuration would be wrong on every host, whatever its files: then the exit status is that of
    /// clap's errors.
    pub(crate) fn is_misuse(&self) -> bool {
        match self.0.problem {
            Problem::Folder { .. }
            | Problem::ShareName { .. }
            | Problem::PipesName { .. }
            | Problem::Unreadable { .. }
            | Problem::NoPlace { .. }
            | Problem::Silent { .. }
            | Problem::Tls { .. }
            | Problem::Authorities { .. }
            | Problem::Keytab(_)
            | Problem::Token { .. }
            | Problem::NoStateDir
            | Problem::NoFolder(_)
            | Problem::Elsewhere(_)
            | Problem::NotYet(_)
            | Problem::NoVolume(_)
            | Problem::Exposed { .. }
            | Problem::Closed { .. }
            | Problem::CountedApart { .. }
            | Problem::Bypass { .. } => false,
            Problem::NoShare { .. }
            | Problem::ExportTwice { .. }
            | Problem::Twice
            | Problem::SameName { .. }
            | Problem::Unfit(_)
            | Problem::Pattern(_)
            | Problem::NoAccount { .. }
            | Problem::Unanswered { .. }
            | Problem::Range { .. }
            | Problem::Duration { .. }
            | Problem::DurationRange { .. }
            | Problem::Size { .. }
            | Problem::Congestion(_)
            | Problem::SamePort { .. }
            | Problem::Needs { .. }
            | Problem::Excludes(_)
            | Problem::NothingServed
            | Problem::NothingByRdma
            | Problem::AnyPort { .. }
            | Problem::Links(_) => true,
        }
    }
}

/// A duration as a file takes it.
fn in_units(duration: Duration) -> String {
    let quoted = DurationText::show(&duration).unwrap_or_default();
    quoted.trim_matches('"').to_owned()
}

impl std::error::Error for ConfigError {}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Wrong { sources, key, problem } = &*self.0;
        let origin = sources.origin_of(key);
        match sources.position_of(key) {
            Some((file, Some(position))) => write!(f, "{}:{position}: ", path_name(file))?,
            Some((file, None)) => write!(f, "{}: ", path_name(file))?,
            None => {}
        }
        let at = |key: &Key| sources.named(key);
        let key = at(key);
        match problem {
            Problem::NoShare { there } if there.is_empty() => {
                write!(f, "{key}: there is no share of that name, and there are no shares")
            }
            Problem::NoShare { there } => {
                write!(f, "{key}: there is no share of that name; the shares are {}", there.join(", "))
            }
            Problem::ExportTwice { name } => {
                write!(f, "{key} is given twice: write all options in one, {name}:ro,insecure")
            }
            Problem::Twice => write!(f, "{key} is given twice"),
            Problem::ShareName { name } => write!(
                f,
                "{key}: {name:?} cannot name a share: a name has 1 to {MAX_NAME_CHARS} characters, without / \\ : * ? \" < > |, \
                 and is not . or ..; choose another name ({}), or rename the folder",
                self.another()
            ),
            Problem::PipesName { name } => write!(
                f,
                "{key}: {name:?} is the share of the server's pipes: choose another name, or rename the folder"
            ),
            Problem::SameName { name, other } => match origin {
                Origin::Flags => write!(
                    f,
                    "two shares are named {name:?}, {} and {key}, which clients cannot distinguish: a folder's share has the folder's \
                     name, that of --ram and --share-volumes the one that you give it; change one of them",
                    sources.placed(other)
                ),
                Origin::File => write!(
                    f,
                    "{key}: two shares are named {name:?}, this one and {}, which clients cannot distinguish: change one of them",
                    sources.placed(other)
                ),
            },
            Problem::Folder { path, fault } => {
                if origin == Origin::File {
                    write!(f, "{key}: ")?;
                }
                fault.said(path, f)
            }
            Problem::Unfit(why) => write!(f, "{key}: {why}"),
            Problem::Pattern(why) => write!(f, "{key}: {why}"),
            Problem::NoAccount { user } => {
                let make = ShellCommand::new("useradd").operand(user);
                write!(f, "{key}: this host has no account {user}; create it ({make}) or name another one")
            }
            Problem::Unanswered { user, source } => {
                write!(f, "{key}: the name service cannot tell whether there is an account {user}: {source}")
            }
            Problem::Range { least, most } => write!(f, "{key}: write a number from {least} to {most}"),
            Problem::Duration { most } => match origin {
                Origin::Flags => write!(f, "{key}: write a number from 0 to {}", most.as_micros()),
                Origin::File => write!(f, "{key}: write a duration of at most {most:?}"),
            },
            Problem::DurationRange { least, most } => {
                write!(f, "{key}: write a duration from {} to {}", in_units(*least), in_units(*most))
            }
            Problem::Size { least, most } => write!(
                f,
                "{key}: write a size from {} to {}",
                crate::args::rounded(*least),
                crate::args::rounded(*most)
            ),
            Problem::Congestion(why) => write!(f, "{key}: {why}"),
            Problem::SamePort { other, port } => write!(
                f,
                "{} and {key} are both {port}: each service needs its own port; change one of them, or use 0 for any free port",
                at(other)
            ),
            Problem::Needs { what, give } => write!(f, "{key} needs {what}: give {}", give.at(sources)),
            Problem::Excludes(other) => write!(f, "{key} and {} exclude each other", at(other)),
            Problem::NothingServed => match origin {
                Origin::Flags => {
                    f.write_str("nothing to serve: give a folder, --ram, --volume or --config FILE")?;
                    // It was looked for, and does not exist.
                    default_file().map_or(Ok(()), |file| write!(f, "; there is no {}", path_name(&file)))
                }
                Origin::File => {
                    f.write_str("nothing to serve yet: add a share ([shares.NAME], or weft share add) or a volume ([volumes])")
                }
            },
            Problem::NothingByRdma => write!(
                f,
                "{key}: nothing is served over RDMA; give a folder, a ramdisk ({}) or {}",
                self.another(),
                at(&key::REPLICATION)
            ),
            Problem::NoStateDir => {
                write!(
                    f,
                    "{key}: neither XDG_STATE_HOME nor HOME is set: give a directory with {}",
                    at(&key::STATE_DIR)
                )
            }
            Problem::AnyPort { fixed } => {
                write!(
                    f,
                    "{key}: clients return to the same port after a restart: choose one with {}",
                    at(fixed)
                )
            }
            Problem::NoFolder(path) => write!(f, "{key}: {} is a file: give a folder", path_name(path)),
            Problem::Elsewhere(ip) => {
                write!(f, "{key}: cannot listen on {ip}: this host does not have that address")
            }
            Problem::NotYet(ip) => write!(
                f,
                "{key}: nothing listens on {ip}, because this host does not have that address; restart the server when it does"
            ),
            Problem::NoVolume(why) => write!(f, "{key}: {why}"),
            Problem::Exposed { path, share, folder, harm } => write!(
                f,
                "{key}: {} is in {}, the folder of share {share}, whose clients can reach it: {harm}",
                path_name(path),
                path_name(folder)
            ),
            Problem::Bypass { share, folder, place, other, rules } => {
                let place = match place {
                    Place::Same => "is also the folder of",
                    Place::Inside => "is inside the folder of",
                    Place::Around => "contains the folder of",
                };
                write!(
                    f,
                    "{key}: {} {place} {}, whose {} share {share} does not have: its clients bypass that; serve the files in one \
                     share only, or give both the same rules",
                    path_name(folder),
                    sources.placed(other),
                    rules.join(", ")
                )
            }
            Problem::CountedApart { folder, other } => write!(
                f,
                "{key}: {} is inside the folder of {}, and both have quotas, which count apart: what is written through one share counts \
                 for the other's quota from its next count on, and not at all where the kernel enforces them; to limit both together, \
                 serve the files in one share only",
                path_name(folder),
                sources.placed(other)
            ),
            Problem::Closed { share, folder, user } => write!(
                f,
                "{key}: clients cannot change share {share}, because the server's user {user} may not write {}: {}",
                path_name(folder),
                match is_system_folder(folder) {
                    true => "serve another folder, or set read_only for the share".to_owned(),
                    false => {
                        let give = ShellCommand::new("chown").operand(format!("{user}:")).operand(folder);
                        format!("{give}, or set read_only for the share")
                    }
                }
            ),
            Problem::Unreadable { path, source } => {
                write!(f, "{key}: cannot read {}: {source}", path_name(path))
            }
            Problem::NoPlace { path, why } => write!(f, "{key}: cannot use {}: {why}", path_name(path)),
            Problem::Silent { path, why } => write!(
                f,
                "{key}: cannot use {}: {why}; perhaps its disk or server is gone: {}",
                path_name(path),
                ShellCommand::new("ls -d").operand(path)
            ),
            Problem::Tls { certificate, key: private, source } => write!(
                f,
                "{key}: cannot use TLS with {} and {}: {source}",
                path_name(certificate),
                path_name(private)
            ),
            Problem::Authorities { path, source } => {
                write!(f, "{key}: cannot verify clients by {}: {source}", path_name(path))
            }
            Problem::Keytab(why) => write!(f, "{key}: {why}"),
            Problem::Token { path, fault } => write!(f, "{key}: {} {fault}", path_name(path)),
            Problem::Links(why) => write!(f, "{key}: {why}"),
        }
    }
}

impl ConfigError {
    /// The way to name a share that is not a folder's.
    fn another(&self) -> &'static str {
        match self.0.sources.origin_of(&self.0.key) {
            Origin::Flags => "--ram NAME=SIZE",
            Origin::File => "[shares.NAME]",
        }
    }
}

impl Give {
    fn at(&self, sources: &Sources) -> String {
        let (keys, word) = match self {
            Give::All(keys) => (keys, "and"),
            Give::One(keys) => (keys, "or"),
        };
        match &keys[..] {
            [] => String::new(),
            [one] => sources.named(one),
            [before @ .., last] => {
                let before: Vec<String> = before.iter().map(|key| sources.named(key)).collect();
                format!("{} {word} {}", before.join(", "), sources.named(last))
            }
        }
    }
}
