//! The backends: `dir` serves a folder of the host, `ram` a memory disk. This file has their common parts: the rules
//! of names and the limit on descriptors. [`crate::opens`] decides conflicts between open files.

pub mod dir;
mod names;
pub use names::short as short_name;
pub(crate) use names::{fold, is_called};
pub mod ram;
mod read_only;
mod shelf;
pub mod volumes;

#[cfg(test)]
mod tests;

use std::sync::OnceLock;

use crate::vfs::{Attr, Caller, Error, Exists, Kind, Make, SetAttr, SetTime, Timestamp};
pub use dir::Dir;
pub use ram::Ram;
pub use read_only::ReadOnly;
use rustix::process::{Resource, Rlimit};
pub use shelf::{Item, Items, Shelf};
pub use volumes::ShareVolume;

/// How many descriptors this process may have: the first call raises the soft limit to the hard one, because a file
/// server needs one per open file and a memory disk one per file with data.
fn descriptor_limit() -> usize {
    static LIMIT: OnceLock<usize> = OnceLock::new();
    *LIMIT.get_or_init(|| {
        let now = rustix::process::getrlimit(Resource::Nofile);
        let raised = Rlimit { current: now.maximum, maximum: now.maximum };
        if let Err(e) = rustix::process::setrlimit(Resource::Nofile, raised) {
            tracing::warn!("the limit on open files stays at {:?}: {e}", now.current);
        }
        let now = rustix::process::getrlimit(Resource::Nofile).current;
        now.map_or(usize::MAX, |n| usize::try_from(n).unwrap_or(usize::MAX))
    })
}

/// Default permissions of a new file.
const FILE_MODE: u32 = 0o644;
/// Default permissions of a new directory.
const DIR_MODE: u32 = 0o755;

/// Permissions of a new file and of a new directory if none are requested. What users create is limited as on the host: by
/// the umask, or by the directory's default ACL.
fn creation_modes(by: &Caller) -> (u32, u32) {
    match by {
        Caller::Server => (FILE_MODE, DIR_MODE),
        Caller::User(_) => (0o666, 0o777),
    }
}

/// Whether an existing object satisfies a CREATE.
fn may_reuse(attr: &Attr, make: &Make, exists: Exists) -> Result<(), Error> {
    match (exists, make, attr.kind) {
        (Exists::Fail, ..) | (_, Make::Symlink(_) | Make::Special(_), _) => Err(Error::Exists),
        (Exists::Reuse, Make::File, Kind::File) | (Exists::Reuse, Make::Dir, Kind::Dir) => Ok(()),
        (Exists::Reuse, Make::File, Kind::Dir) => Err(Error::IsDir),
        (Exists::Reuse, ..) => Err(Error::Exists),
        // As it was created: empty, with the verifier in its times.
        (Exists::Verifier(verifier), Make::File, Kind::File)
            if attr.size == 0 && (attr.atime, attr.mtime) == verifier_times(verifier) =>
        {
            Ok(())
        }
        (Exists::Verifier(_), ..) => Err(Error::Exists),
    }
}

/// The attributes of a new file; an exclusive CREATE keeps its verifier in the times until the client sets them (RFC
/// 1813 3.3.8 leaves the location to the server).
fn with_verifier(set: SetAttr, exists: Exists) -> SetAttr {
    let Exists::Verifier(verifier) = exists else { return set };
    let (atime, mtime) = verifier_times(verifier);
    SetAttr { atime: Some(SetTime::To(atime)), mtime: Some(SetTime::To(mtime)), ..set }
}

/// A verifier as access and modification time. The top bit of each half is dropped so that every file system can
/// store it.
fn verifier_times(verifier: [u8; 8]) -> (Timestamp, Timestamp) {
    let [a, b, c, d, e, f, g, h] = verifier;
    let half = |bytes| Timestamp { secs: i64::from(u32::from_be_bytes(bytes) & 0x7fff_ffff), nanos: 0 };
    (half([a, b, c, d]), half([e, f, g, h]))
}
