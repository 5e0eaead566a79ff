//! Why a copy failed, and at which end.
//!
//! A copy works on a local file and a remote file in turn. An error records its end where it arises, so that the
//! message names the right object. There is no conversion from `io::Error`: the code that meets one must say which
//! end it belongs to.

use std::fmt;
use std::io;
use std::path::Path;

use crate::Failure;
use crate::out::ShellCommand;

/// Why a copy failed.
#[derive(Debug)]
pub(crate) enum Fault {
    /// At the local end; the sentence names the local file.
    Here(Failure),
    /// At the server or on the way to it; the sentence does not contain the file's URL.
    There(Failure),
    /// At neither end alone: the user interrupted the copy.
    Between(Failure),
    /// The copy differs from its source, from this offset on.
    Differ(u64),
}

impl Fault {
    /// Whether a failed copy may be resumed: wrong content is not repaired by appending to it.
    pub(crate) fn may_resume(&self) -> bool {
        !matches!(self, Fault::Differ(_))
    }

    /// The local file at `path` cannot be read or written.
    pub(crate) fn here(path: &Path, e: &io::Error) -> Fault {
        let shown = path.display();
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let space = ShellCommand::new("df -h").operand(folder);
        Fault::Here(
            match e.kind() {
                io::ErrorKind::StorageFull => {
                    format!("{shown}: {e}; free some space ({space} shows how much is free), or name another folder")
                }
                io::ErrorKind::QuotaExceeded => {
                    format!("{shown}: {e}; free some space (quota -s shows how much you may use), or name another folder")
                }
                _ => format!("{shown}: {e}"),
            }
            .into(),
        )
    }

    /// The message for the user, who knows the server's file as `remote`.
    pub(crate) fn told(self, remote: impl fmt::Display) -> Failure {
        match self {
            // Unchanged: it names its file, or is a closed pipe, which is not reported.
            Fault::Here(failure) => failure,
            other => format!("{remote}: {}", other.reason()).into(),
        }
    }

    /// The same if the caller names the file.
    pub(crate) fn reason(self) -> Failure {
        match self {
            Fault::Here(failure) | Fault::There(failure) | Fault::Between(failure) => failure,
            Fault::Differ(offset) => {
                format!("verification failed: the copies differ at offset {offset}").into()
            }
        }
    }
}

impl From<&'static str> for Fault {
    fn from(sentence: &'static str) -> Fault {
        Fault::Between(sentence.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_that_failed_is_named_and_the_other_is_not() {
        let full = io::Error::from(io::ErrorKind::StorageFull);
        let said = Fault::here(Path::new("/mnt/usb/film"), &full).told("smb://a@nas/data/film").to_string();
        assert!(
            said.starts_with("/mnt/usb/film: no storage space; free some space (df -h /mnt/usb "),
            "{said}"
        );
        assert!(!said.contains("nas"), "{said}");
        let said = Fault::here(Path::new("film"), &full).reason().to_string();
        assert!(said.contains("df -h . shows"), "{said}");
        let said =
            Fault::There("no space left on the server".into()).told("smb://a@nas/data/film").to_string();
        assert_eq!(said, "smb://a@nas/data/film: no space left on the server");
    }
}
