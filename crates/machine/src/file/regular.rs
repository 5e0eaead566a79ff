//! Opens files that are regular ones or nothing: state, keys, records. To open a FIFO waits for its other end, and to read
//! one for a writer, so whatever else lies at their paths is refused at once and stays as it is.
//!
//! [`super::pipe`] reads what a user may pass through a pipe.

use std::fs::{File, FileType, OpenOptions};
use std::io;
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::Path;

use rustix::fs::OFlags;

/// It is another kind of file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("it is {0}, not a regular file: move it away")]
pub struct Irregular(&'static str);

impl Irregular {
    fn of(kind: FileType) -> Option<Irregular> {
        let is = [
            (kind.is_dir(), "a folder"),
            (kind.is_fifo(), "a FIFO"),
            (kind.is_socket(), "a socket"),
            (kind.is_char_device(), "a character device"),
            (kind.is_block_device(), "a block device"),
        ];
        is.into_iter().find_map(|(is, what)| is.then_some(Irregular(what)))
    }

    /// What is at a path, if it is another kind of file.
    fn at(path: &Path) -> Option<Irregular> {
        Irregular::of(path.metadata().ok()?.file_type())
    }

    /// Whether an error of this file is about the kind of a file.
    pub fn is_cause_of(error: &io::Error) -> bool {
        error.get_ref().is_some_and(|inner| inner.is::<Irregular>())
    }
}

impl From<Irregular> for io::Error {
    fn from(irregular: Irregular) -> io::Error {
        io::Error::new(io::ErrorKind::InvalidInput, irregular)
    }
}

/// Opens a regular file as `options` say, which have no custom flags.
///
/// # Errors
/// It cannot be opened, or it is another kind of file, [`Irregular`].
pub fn open(path: &Path, options: &OpenOptions) -> io::Result<File> {
    let mut options = options.clone();
    // It changes nothing about a regular file.
    options.custom_flags(OFlags::NONBLOCK.bits().cast_signed());
    let file = options.open(path).map_err(|e| {
        // Without a reader, or of a socket: ENXIO. To write to a folder: EISDIR.
        Irregular::at(path).map_or(e, io::Error::from)
    })?;
    match Irregular::of(file.metadata()?.file_type()) {
        Some(irregular) => Err(irregular.into()),
        None => Ok(file),
    }
}

/// Checks that nothing but a regular file is at a path, or nothing.
///
/// # Errors
/// It is another kind of file, [`Irregular`].
pub fn check(path: &Path) -> Result<(), Irregular> {
    Irregular::at(path).map_or(Ok(()), Err)
}

/// Opens a regular file to read it.
///
/// # Errors
/// As [`open`].
pub fn read_only(path: &Path) -> io::Result<File> {
    open(path, OpenOptions::new().read(true))
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;

    use super::*;

    #[test]
    fn nothing_but_a_regular_file_is_opened_and_nothing_is_waited_for() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        let fifo = rustix::fs::FileType::Fifo;
        rustix::fs::mknodat(rustix::fs::CWD, at("fifo"), fifo, rustix::fs::Mode::RWXU, 0).unwrap();
        std::fs::create_dir(at("folder")).unwrap();
        std::os::unix::fs::symlink(at("fifo"), at("link")).unwrap();
        std::fs::write(at("file"), b"kept").unwrap();
        let _socket = UnixListener::bind(at("socket")).unwrap();
        let null = Path::new("/dev/null").to_owned();
        let mut ways = [OpenOptions::new(), OpenOptions::new(), OpenOptions::new()];
        ways[0].read(true);
        ways[1].write(true).create(true);
        ways[2].read(true).write(true).create(true);
        for way in ways {
            for (path, what) in [
                (at("fifo"), "a FIFO"),
                (at("link"), "a FIFO"),
                (at("folder"), "a folder"),
                (at("socket"), "a socket"),
                (null.clone(), "a character device"),
            ] {
                let error = open(&path, &way).unwrap_err();
                assert!(Irregular::is_cause_of(&error), "{way:?} {path:?}: {error}");
                assert_eq!(error.to_string(), format!("it is {what}, not a regular file: move it away"));
                assert_eq!(check(&path), Err(Irregular(what)));
            }
            open(&at("file"), &way).unwrap();
        }
        assert_eq!([check(&at("file")), check(&at("none"))], [Ok(()); 2]);
        assert_eq!(read_only(&at("none")).unwrap_err().kind(), io::ErrorKind::NotFound);
        assert_eq!(std::fs::read(at("file")).unwrap(), b"kept");
    }
}
