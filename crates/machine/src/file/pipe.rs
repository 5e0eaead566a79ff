//! Reads and writes files that a user names and that may be pipes: `<(gpg -d key.gpg)` of a shell, or a FIFO. Another process is
//! waited for at each step, but not for ever: a pipe that nobody has at its other end is told.
//!
//! Files of the server's own are opened by [`super::regular`].

use std::fs::{File, Metadata, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use rustix::io::Errno;

/// How long the process at the other end may take to open it.
const OPENED_WITHIN: Duration = Duration::from_secs(10);
/// How long a process that has it open may take for its next bytes: somebody may be typing a passphrase.
const WRITTEN_WITHIN: Duration = Duration::from_secs(120);
/// How often it is looked whether another process has opened it.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// A file, open to be read. Bytes of a pipe are waited for.
#[derive(Debug)]
pub struct Input {
    file: File,
    found: Metadata,
    /// Whether some process had the pipe open.
    is_written: bool,
    opened_within: Duration,
    written_within: Duration,
}

impl Input {
    /// Opens a file of any kind, without waiting.
    ///
    /// # Errors
    /// It cannot be opened.
    pub fn open(path: &Path) -> io::Result<Input> {
        let mut options = OpenOptions::new();
        options.read(true).custom_flags(OFlags::NONBLOCK.bits().cast_signed());
        let file = options.open(path)?;
        Ok(Input {
            found: file.metadata()?,
            file,
            is_written: false,
            opened_within: OPENED_WITHIN,
            written_within: WRITTEN_WITHIN,
        })
    }

    /// What it was when it was opened.
    pub fn metadata(&self) -> &Metadata {
        &self.found
    }

    /// Waits until there is something to read, or until nobody has it open to write, for at most this long. Returns whether
    /// the latter is so.
    fn is_hung_up(&self, within: Duration) -> io::Result<bool> {
        let mut polled = [PollFd::new(&self.file, PollFlags::IN)];
        let within = Timespec::try_from(within).map_err(io::Error::other)?;
        match poll(&mut polled, Some(&within)) {
            Ok(_) | Err(Errno::INTR) => Ok(polled[0].revents().contains(PollFlags::HUP)),
            Err(e) => Err(e.into()),
        }
    }
}

impl Read for Input {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let begun = Instant::now();
        let mut is_over = false;
        loop {
            let limit = match self.file.read(buffer) {
                // Nobody has opened it yet.
                Ok(0) if self.found.file_type().is_fifo() && !self.is_written && !is_over => {
                    self.opened_within
                }
                Ok(n) => {
                    self.is_written |= n > 0;
                    return Ok(n);
                }
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => {
                    self.is_written = true;
                    self.written_within
                }
                Err(e) => return Err(e),
            };
            if begun.elapsed() >= limit {
                return Err(late(
                    limit,
                    match self.is_written {
                        true => "it is a pipe, and who has it open has written nothing",
                        false => "it is a pipe, and nobody has opened it to write",
                    },
                ));
            }
            is_over = self.is_hung_up(LOOK_EVERY)?;
        }
    }
}

/// Opens a pipe or a device to write. A pipe needs a reader, which is waited for; later writes wait for it as long as it
/// takes.
///
/// # Errors
/// It cannot be opened, or nobody reads it.
pub fn output(path: &Path) -> io::Result<File> {
    output_within(path, OPENED_WITHIN)
}

fn output_within(path: &Path, limit: Duration) -> io::Result<File> {
    let begun = Instant::now();
    let mut options = OpenOptions::new();
    options.write(true).custom_flags(OFlags::NONBLOCK.bits().cast_signed());
    let file = loop {
        match options.open(path) {
            // fifo(7): nobody has it open to read.
            Err(e) if e.raw_os_error() == Some(Errno::NXIO.raw_os_error()) && is_fifo(path) => {
                if begun.elapsed() >= limit {
                    return Err(late(limit, "it is a pipe, and nobody has opened it to read"));
                }
                std::thread::sleep(LOOK_EVERY);
            }
            opened => break opened?,
        }
    };
    fcntl_setfl(&file, fcntl_getfl(&file)? - OFlags::NONBLOCK)?;
    Ok(file)
}

/// The content of a file of any kind; bytes of a pipe are waited for.
///
/// # Errors
/// It cannot be read, or it is longer than `most` bytes.
pub fn read(path: &Path, most: usize) -> io::Result<Vec<u8>> {
    let input = Input::open(path)?;
    // Of a secret no copy stays behind where a buffer has grown.
    let mut content = Vec::with_capacity(usize::try_from(input.found.len()).unwrap_or(most).min(most));
    input.take(most as u64 + 1).read_to_end(&mut content)?;
    match content.len() > most {
        true => Err(io::Error::new(io::ErrorKind::FileTooLarge, format!("it has more than {most} bytes"))),
        false => Ok(content),
    }
}

fn is_fifo(path: &Path) -> bool {
    path.metadata().is_ok_and(|found| found.file_type().is_fifo())
}

fn late(limit: Duration, why: &str) -> io::Error {
    io::Error::new(io::ErrorKind::TimedOut, format!("{why} for {} s", limit.as_secs()))
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::path::PathBuf;

    use super::*;

    const SOON: Duration = Duration::from_millis(60);
    const LONG: Duration = Duration::from_secs(60);

    fn fifo() -> (tempfile::TempDir, PathBuf) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("fifo");
        let (kind, mode) = (rustix::fs::FileType::Fifo, rustix::fs::Mode::RWXU);
        rustix::fs::mknodat(rustix::fs::CWD, &path, kind, mode, 0).unwrap();
        (dir, path)
    }

    fn input(path: &Path, opened_within: Duration, written_within: Duration) -> Input {
        Input { opened_within, written_within, ..Input::open(path).unwrap() }
    }

    fn text(mut input: Input) -> Result<String, String> {
        let mut text = String::new();
        input.read_to_string(&mut text).map(|_| text).map_err(|e| e.to_string())
    }

    #[test]
    fn a_pipe_that_nobody_writes_is_told() {
        let (_dir, path) = fifo();
        let refused = text(input(&path, SOON, LONG)).unwrap_err();
        assert_eq!(refused, "it is a pipe, and nobody has opened it to write for 0 s");
        // Somebody opens it, and writes nothing.
        let input = input(&path, LONG, SOON);
        let silent = OpenOptions::new().write(true).open(&path).unwrap();
        let refused = text(input).unwrap_err();
        assert_eq!(refused, "it is a pipe, and who has it open has written nothing for 0 s");
        drop(silent);
    }

    #[test]
    fn a_pipe_is_read_to_the_end_of_its_writer() {
        let (_dir, path) = fifo();
        const WRITTEN: [&[&str]; 2] = [&["one ", "two"], &[]];
        for parts in WRITTEN {
            let input = input(&path, LONG, LONG);
            let to = path.clone();
            let writer = std::thread::spawn(move || {
                let mut file = OpenOptions::new().write(true).open(to).unwrap();
                parts.iter().for_each(|part| file.write_all(part.as_bytes()).unwrap());
            });
            assert_eq!(text(input).unwrap(), parts.concat());
            writer.join().unwrap();
        }
        // As a shell passes one, whose writer may have ended.
        for content in ["", "written"] {
            let (reader, mut writer) = io::pipe().unwrap();
            writer.write_all(content.as_bytes()).unwrap();
            drop(writer);
            let fd = std::os::fd::AsRawFd::as_raw_fd(&reader);
            assert_eq!(text(Input::open(Path::new(&format!("/dev/fd/{fd}"))).unwrap()).unwrap(), content);
        }
    }

    #[test]
    fn other_files_are_read_as_ever() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        std::fs::write(&path, "content").unwrap();
        let opened = Input::open(&path).unwrap();
        assert!(opened.metadata().is_file());
        assert_eq!(text(opened).unwrap(), "content");
        assert_eq!(text(Input::open(Path::new("/dev/null")).unwrap()).unwrap(), "");
        assert_eq!(read(&path, 7).unwrap(), b"content");
        assert_eq!(read(&path, 6).unwrap_err().kind(), io::ErrorKind::FileTooLarge);
        assert_eq!(Input::open(&dir.path().join("none")).unwrap_err().kind(), io::ErrorKind::NotFound);
    }

    #[test]
    fn a_pipe_without_a_reader_takes_nothing() {
        let (_dir, path) = fifo();
        let refused = output_within(&path, SOON).unwrap_err();
        assert_eq!(refused.to_string(), "it is a pipe, and nobody has opened it to read for 0 s");
        let from = path.clone();
        let reader = std::thread::spawn(move || std::fs::read(from).unwrap());
        let mut file = output(&path).unwrap();
        // More than it holds: writes wait for the reader.
        let bytes = vec![7; 1 << 20];
        file.write_all(&bytes).unwrap();
        drop(file);
        assert_eq!(reader.join().unwrap(), bytes);
        output(Path::new("/dev/null")).unwrap();
    }
}
