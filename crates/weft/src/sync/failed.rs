//! Failures of a folder copy: at which end, with which object, and why.
//!
//! The object is named as the user would type it, because both ends have files with the same relative path.

use std::fmt;
use std::path::PathBuf;

use serde_json::{Value, json};

use crate::Failure;
use crate::fault::Fault;
use crate::out::name;
use crate::transfer::join;
use crate::url::Url;

/// Memory limit for stored failures.
const MAX_FAILED_BYTES: usize = 256 << 20;

/// One failure.
#[derive(Debug, thiserror::Error)]
pub(super) struct Failed {
    /// "source" or "destination".
    end: &'static str,
    /// The path below the copied folder; empty for the folder itself.
    path: String,
    /// A URL, or a local path.
    object: String,
    reason: String,
}

impl Failed {
    fn new(end: &'static str, path: &str, object: impl fmt::Display, reason: impl fmt::Display) -> Failed {
        let (object, reason) = (object.to_string(), reason.to_string());
        // The sentence may already name its object.
        let rest = reason.strip_prefix(&object).and_then(|rest| rest.strip_prefix(": "));
        let reason = rest.map(str::to_owned).unwrap_or(reason);
        Failed { end, path: path.to_owned(), object, reason }
    }

    pub(super) fn to_json(&self) -> Value {
        let Failed { end, path, object, reason } = self;
        json!({"end": end, "path": path, "object": object, "reason": reason})
    }
}

impl fmt::Display for Failed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}: {}", self.end, name(&self.object), name(&self.reason))
    }
}

/// The failures so far. A user must be able to read them, so with too many the copy ends.
#[derive(Default)]
pub(super) struct Failures {
    list: Vec<Failed>,
    bytes: usize,
}

impl Failures {
    /// Adds one failure.
    pub(super) fn push(&mut self, failed: Failed) -> Result<(), Failure> {
        self.bytes += size_of::<Failed>() + failed.path.len() + failed.object.len() + failed.reason.len();
        if self.bytes > MAX_FAILED_BYTES {
            return Err(format!(
                "{} files or folders failed, too many to continue; the next: {failed}",
                self.list.len()
            )
            .into());
        }
        self.list.push(failed);
        Ok(())
    }

    /// Adds several failures.
    pub(super) fn append(&mut self, others: Failures) -> Result<(), Failure> {
        others.list.into_iter().try_for_each(|failed| self.push(failed))
    }

    pub(super) fn iter(&self) -> std::slice::Iter<'_, Failed> {
        self.list.iter()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.list.is_empty()
    }
}

/// The locations of both ends.
pub(super) struct Places {
    /// The server's end, as the user has named it.
    pub url: Url,
    /// The folder on the server.
    pub there: String,
    /// The local folder.
    pub here: PathBuf,
    /// Whether the server is the destination.
    pub up: bool,
}

impl Places {
    /// The URL of `path` in the share, as the user would type it.
    fn named(&self, path: &str) -> Url {
        Url { path: path.to_owned(), folder: false, ..self.url.clone() }
    }

    /// A failure at the server or on the way to it.
    pub(super) fn at_server(&self, path: &str, reason: impl fmt::Display) -> Failed {
        let end = if self.up { "destination" } else { "source" };
        let there = join(&self.there, path);
        Failed::new(end, path, self.named(there.trim_end_matches('/')), reason)
    }

    /// A failure at a folder above the destination, at `path` of the share.
    pub(super) fn above(&self, path: &str, reason: impl fmt::Display) -> Failed {
        Failed::new("destination", path, self.named(path), reason)
    }

    /// A failure on this host.
    pub(super) fn at_host(&self, path: &str, reason: impl fmt::Display) -> Failed {
        let end = if self.up { "source" } else { "destination" };
        let here = if path.is_empty() { self.here.clone() } else { self.here.join(path) };
        Failed::new(end, path, here.display(), reason)
    }

    /// A failure at the destination.
    pub(super) fn at_destination(&self, path: &str, reason: impl fmt::Display) -> Failed {
        if self.up { self.at_server(path, reason) } else { self.at_host(path, reason) }
    }

    /// The copy of one file failed.
    pub(super) fn at_fault(&self, path: &str, fault: Fault) -> Failed {
        match fault {
            Fault::Here(e) => self.at_host(path, e),
            Fault::There(e) => self.at_server(path, e),
            fault @ (Fault::Between(_) | Fault::Differ(_)) => self.at_destination(path, fault.reason()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::path::Path;

    use super::*;

    fn places(up: bool) -> Places {
        let url = Url::parse("smb://alice@nas:4450/data/photos/").unwrap().unwrap();
        Places { url, there: "photos/2024".into(), here: PathBuf::from("/mnt/usb/2024"), up }
    }

    #[test]
    fn failures_are_kept_as_long_as_there_is_room_for_them() {
        let mut failures = Failures::default();
        let long = "n".repeat(1 << 20);
        let kept =
            (0..1000).take_while(|_| failures.push(Failed::new("source", &long, "x", "no")).is_ok()).count();
        assert_eq!((kept, failures.iter().len()), (255, 255));
    }

    #[test]
    fn a_failure_names_its_end_and_its_object_as_the_user_would_type_it() {
        let no = || Fault::There("STATUS_ACCESS_DENIED".into());
        let up = places(true).at_fault("a b/x.jpg", no()).to_string();
        assert_eq!(up, "destination smb://alice@nas:4450/data/photos/2024/a%20b/x.jpg: STATUS_ACCESS_DENIED");
        let down = places(false).at_fault("x.jpg", no()).to_string();
        assert_eq!(down, "source smb://alice@nas:4450/data/photos/2024/x.jpg: STATUS_ACCESS_DENIED");
        let folder = places(false).at_server("", "no such folder").to_string();
        assert_eq!(folder, "source smb://alice@nas:4450/data/photos/2024: no such folder");
        // The sentence already names the local file, and does so once.
        let denied = io::Error::from(io::ErrorKind::PermissionDenied);
        let here = Fault::here(Path::new("/mnt/usb/2024/x.jpg"), &denied);
        let up = places(true).at_fault("x.jpg", here).to_string();
        assert_eq!(up, "source /mnt/usb/2024/x.jpg: permission denied");
        let differ = places(true).at_fault("x.jpg", Fault::Differ(7)).to_string();
        assert!(differ.starts_with("destination smb://alice@nas:4450/data/photos/2024/x.jpg: "), "{differ}");
        let above = places(true).above("photos", "STATUS_ACCESS_DENIED").to_string();
        assert_eq!(above, "destination smb://alice@nas:4450/data/photos: STATUS_ACCESS_DENIED");
        let json = places(false).at_server("x.jpg", "gone").to_json();
        let object = "smb://alice@nas:4450/data/photos/2024/x.jpg";
        assert_eq!(json, json!({"end": "source", "path": "x.jpg", "object": object, "reason": "gone"}));
    }
}
