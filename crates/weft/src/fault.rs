//! Why a copy failed, and at which of its two ends.
//!
//! A copy works on a local file and a server's in turn. An error keeps its end from where it arises, so that the message
//! names the object that is at fault. There is no conversion from `io::Error`: who meets one says whose it is.
//! Does not: print.

use std::fmt;
use std::io;
use std::path::Path;

use weft_load::job::JobError;
use weft_load::loaders::LoaderError;

use crate::Failure;
use crate::config::ConfigError;
use crate::out::ShellCommand;
use crate::url::UrlError;

/// A command line that cannot be carried out as it is written, whatever the world is like: the exit status is that of what clap refuses.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(crate) struct Misuse(String);

impl Misuse {
    pub(crate) fn new(sentence: impl Into<String>) -> Misuse {
        Misuse(sentence.into())
    }
}

/// The exit status of a command that failed.
pub(crate) fn status_of(failure: &(dyn std::error::Error + 'static)) -> u8 {
    let of_loads = failure.is::<JobError>() || failure.is::<LoaderError>();
    let is_of_config = failure.downcast_ref::<ConfigError>().is_some_and(ConfigError::is_misuse);
    match of_loads || failure.is::<Misuse>() || failure.is::<UrlError>() || is_of_config {
        true => 2,
        false => 1,
    }
}

/// Why a copy failed.
#[derive(Debug)]
pub(crate) enum Fault {
    /// Here; the sentence names the local file.
    Here(Failure),
    /// At the server, or on the way to it; the file's URL is not in the sentence.
    There(Failure),
    /// At neither end alone: the user has interrupted.
    Between(Failure),
    /// The copy is not what it is a copy of; from this offset on.
    Differ(u64),
}

impl Fault {
    /// Whether a copy that failed may be resumed: what is wrong does not become right by what follows it.
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
                    format!("{shown}: {e}; make room ({space} shows how much there is), or name another folder")
                }
                io::ErrorKind::QuotaExceeded => {
                    format!("{shown}: {e}; make room (quota -s shows how much you may use), or name another folder")
                }
                _ => format!("{shown}: {e}"),
            }
            .into(),
        )
    }

    /// As the user reads it, who knows the server's file as `remote`.
    pub(crate) fn told(self, remote: impl fmt::Display) -> Failure {
        match self {
            // As it is: it names its file, or is a closed pipe, which nobody needs to be told.
            Fault::Here(failure) => failure,
            other => format!("{remote}: {}", other.reason()).into(),
        }
    }

    /// The same where the caller names the file himself.
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
            let refused = crate::copy::Direction::of(from, to).err().unwrap();
            assert_eq!(status_of(&*refused), 2, "{refused}");
        }
        assert_eq!(status_of(&*Failure::from("the disk is full")), 1);
    }

    #[test]
    fn the_end_that_failed_is_named_and_the_other_is_not() {
        let full = io::Error::from(io::ErrorKind::StorageFull);
        let said = Fault::here(Path::new("/mnt/usb/film"), &full).told("smb://a@nas/data/film").to_string();
        assert!(said.starts_with("/mnt/usb/film: no storage space; make room (df -h /mnt/usb "), "{said}");
        assert!(!said.contains("nas"), "{said}");
        let said = Fault::here(Path::new("film"), &full).reason().to_string();
        assert!(said.contains("df -h . shows"), "{said}");
        let said =
            Fault::There("no space left on the server".into()).told("smb://a@nas/data/film").to_string();
        assert_eq!(said, "smb://a@nas/data/film: no space left on the server");
    }
}
