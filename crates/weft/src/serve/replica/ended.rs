//! Partnerships of which this server had a copy, until their source ended them.
//!
//! [`Folder::note_ended`] and [`Folder::has_ended`] use a file beside the folder of the groups, `replica.ended`: a
//! JSON list of partnerships, oldest first. A source whose state directory is restored from before `weft replica
//! remove` asks, and learns that its log is older than its volumes. A server that never was its copy, or was
//! reinstalled, cannot know that. [`super::carrier`] asks.

use std::fs;
use std::io;
use std::path::PathBuf;

use weft_machine::file::private;

use super::config::{Folder, MOST_BYTES, replace};

/// Number of partnerships remembered; the oldest are forgotten.
const MOST_ENDED: usize = 256;

impl Folder {
    fn ended_file(&self) -> PathBuf {
        self.path().with_extension("ended")
    }

    /// Empty if the file is missing or invalid: it is useful but not required.
    fn ended(&self) -> Vec<String> {
        let text = private::read(&self.ended_file(), MOST_BYTES).ok().flatten().unwrap_or_default();
        serde_json::from_slice(&text).unwrap_or_default()
    }

    /// Whether the source of this partnership has ended it.
    pub fn has_ended(&self, partnership: &str) -> bool {
        self.ended().iter().any(|ended| ended == partnership)
    }

    /// Records durably that the source of this partnership has ended it.
    pub fn note_ended(&self, partnership: &str) -> io::Result<()> {
        self.change_ended(|ended| {
            ended.retain(|other| other != partnership);
            ended.push(partnership.to_owned());
            ended.drain(..ended.len().saturating_sub(MOST_ENDED));
        })
    }

    /// Removes the record: this server becomes its copy again.
    pub fn forget_ended(&self, partnership: &str) -> io::Result<()> {
        self.change_ended(|ended| ended.retain(|other| other != partnership))
    }

    fn change_ended(&self, change: impl FnOnce(&mut Vec<String>)) -> io::Result<()> {
        let mut ended = self.ended();
        let before = ended.clone();
        change(&mut ended);
        if ended == before {
            return Ok(());
        }
        let (path, draft) = (self.ended_file(), self.path().with_extension("ended.new"));
        replace(&draft, &path, &serde_json::to_vec(&ended)?)?;
        match path.parent() {
            Some(folder) => fs::File::open(folder)?.sync_all(),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn partnerships_that_were_ended_are_remembered_up_to_a_limit() {
        let dir = tempfile::tempdir().unwrap();
        let folder = Folder::of(dir.path());
        assert!(!folder.has_ended("1"));
        folder.forget_ended("1").unwrap();
        assert!(!folder.ended_file().exists());
        for n in 0..=MOST_ENDED {
            folder.note_ended(&n.to_string()).unwrap();
        }
        assert!(!folder.has_ended("0") && folder.has_ended("1"));
        // A partnership that is ended again becomes the newest.
        folder.note_ended("1").unwrap();
        folder.note_ended("another").unwrap();
        assert!(folder.has_ended("1") && !folder.has_ended("2"));
        folder.forget_ended("1").unwrap();
        assert!(!Folder::of(dir.path()).has_ended("1") && folder.has_ended("another"));
        // An invalid file counts as missing.
        fs::write(folder.ended_file(), b"[").unwrap();
        assert!(!folder.has_ended("another"));
        folder.note_ended("1").unwrap();
        assert!(folder.has_ended("1"));
    }
}
