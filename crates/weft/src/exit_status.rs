//! The exit status of commands.

use weft_load::job::JobError;
use weft_load::loaders::LoaderError;
use weft_store::volume::Error as VolumeError;

use crate::config::{BadFile, ConfigError};
use crate::misuse::Misuse;
use crate::url::UrlError;

/// The status of a command line that can never be carried out as written; clap's errors have it, too.
const MISUSE: u8 = 2;
/// The status of any other failure.
const FAILED: u8 = 1;

/// The exit status of a command that failed.
pub(crate) fn status_of(failure: &(dyn std::error::Error + 'static)) -> u8 {
    let of_loads = failure.is::<JobError>() || failure.is::<LoaderError>();
    let of_volumes = failure.downcast_ref::<VolumeError>();
    let is_of_volumes = matches!(of_volumes, Some(VolumeError::Name(_) | VolumeError::ImpossibleSize(_)));
    let is_of_config = failure.downcast_ref::<ConfigError>().is_some_and(ConfigError::is_misuse)
        || failure.downcast_ref::<BadFile>().is_some_and(BadFile::is_misuse);
    match of_loads || is_of_volumes || failure.is::<Misuse>() || failure.is::<UrlError>() || is_of_config {
        true => MISUSE,
        false => FAILED,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Failure;
    use crate::url::Url;

    #[test]
    fn a_command_line_that_is_wrong_has_the_status_of_what_clap_refuses() {
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
}
