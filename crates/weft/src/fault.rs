//! Why a copy failed, and at which end.
//!
//! A copy works on a local file and a remote file in turn. An error records its end where it arises, so that the
//! message names the right object. There is no conversion from `io::Error`: the code that meets one must say which
//! end it belongs to.

use std::fmt;
use std::io;
use std::path::Path;

use weft_load::job::JobError;
use weft_load::loaders::LoaderError;
use weft_store::volume::Error as VolumeError;

use crate::Failure;
use crate::config::{BadFile, ConfigError};
use crate::out::ShellCommand;
use crate::url::UrlError;

/// A command line that can never be carried out as written: the exit status is the one for lines that clap refuses.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(crate) struct Misuse(String);

impl Misuse {
    pub(crate) fn new(sentence: impl Into<String>) -> Misuse {
        Misuse(sentence.into())
    }
}

/// Refuses `--only TEXT`: `what` (a point, a line) has no such text in its name.
pub(crate) fn none_has(only: &str, what: &str) -> Misuse {
    Misuse::new(format!("--only {only:?}: no {what} has this text in its name"))
}

/// The exit status of a command that failed.
pub(crate) fn status_of(failure: &(dyn std::error::Error + 'static)) -> u8 {
    let of_loads = failure.is::<JobError>() || failure.is::<LoaderError>();
    let of_volumes = failure.downcast_ref::<VolumeError>();
    let is_of_volumes = matches!(of_volumes, Some(VolumeError::Name(_) | VolumeError::ImpossibleSize(_)));
    let is_of_config = failure.downcast_ref::<ConfigError>().is_some_and(ConfigError::is_misuse)
        || failure.downcast_ref::<BadFile>().is_some_and(BadFile::is_misuse);
    match of_loads || is_of_volumes || failure.is::<Misuse>() || failure.is::<UrlError>() || is_of_config {
        true => 2,
        false => 1,
    }
}

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
    fn a_command_line_that_is_wrong_has_the_status_of_what_clap_refuses() {
        use crate::url::Url;
        for text in
            ["smb://a@h:99999/s/f", "nfs://h/s/f?vers=5", "", "http://h/f", "smb://a@h", "smb://a@h/s"]
        {
            assert_eq!(status_of(&*Url::of_file(text).unwrap_err()), 2, "{text}");
        }
        for (from, to) in [("a", "b"), ("", "smb://a@h/s/f"), ("smb://a@h/s/f", "")] {
            let refused = crate::direction::Direction::of(from, to).err().unwrap();
            assert_eq!(status_of(&*refused), 2, "{refused}");
        }
        for refused in [VolumeError::Name("a/b".into()), VolumeError::ImpossibleSize("1000 bytes".into())] {
            assert_eq!(status_of(&refused), 2, "{refused}");
        }
        assert_eq!(status_of(&VolumeError::NotFound("vol1".into())), 1);
        assert_eq!(status_of(&*Failure::from("the disk is full")), 1);
    }

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
