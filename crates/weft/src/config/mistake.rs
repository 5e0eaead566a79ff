//! Mistakes in a configuration file, each with its place, its key, the cause and what to write.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use super::sources::Position;
use crate::out::{name, path_name};

/// A file that is not a configuration: everything that is wrong with it.
#[derive(Debug)]
pub(crate) struct BadFile {
    file: PathBuf,
    /// In the order of the file; at least one.
    mistakes: Vec<Mistake>,
}

/// One mistake.
#[derive(Debug)]
pub(super) struct Mistake {
    /// Its place, unless it concerns the whole file.
    pub at: Option<Position>,
    /// The key, if it concerns one.
    pub key: Option<String>,
    /// What is wrong.
    pub fault: Fault,
}

/// What is wrong.
#[derive(Debug, thiserror::Error)]
pub(super) enum Fault {
    /// The file cannot be read.
    #[error("cannot read the configuration: {0}")]
    Unreadable(io::Error),
    /// The file is no configuration.
    #[error("the file has more than {} bytes, which no configuration has", .most)]
    TooLarge { most: u64 },
    /// It is not text.
    #[error("this is not UTF-8, as TOML is: save the file as UTF-8")]
    NotUtf8,
    /// It is not TOML; the sentence is the parser's.
    #[error("{0}")]
    Syntax(String),
    /// A key or table that occurs twice.
    #[error("given twice")]
    Twice,
    /// An unknown key, and the nearest one that exists.
    #[error("there is no such key; did you mean {0}?")]
    Misspelt(String),
    /// An unknown key that resembles none; these are the keys of its table.
    #[error("there is no such key; the keys here are {}", .there.join(", "))]
    Unknown { there: Vec<String> },
    /// A value instead of a table.
    #[error("write a table, as {example}, not {}", with_article(.found))]
    NoTable { example: &'static str, found: &'static str },
    /// A value of another type.
    #[error("write {expected}, not {}", with_article(.found))]
    Type { expected: String, found: &'static str },
    /// An empty text.
    #[error("the text is empty")]
    Empty,
    /// A number out of range.
    #[error("write a number from {least} to {most}, not {found}")]
    Range { least: u64, most: u64, found: String },
    /// None of the words.
    #[error("write {}, not {text:?}", .words.join(" or "))]
    Word { text: String, words: Vec<&'static str> },
    /// A text that says nothing; the parser of its type says why.
    #[error("{text:?}: {why}")]
    Value { text: String, why: String },
    /// A share without files.
    #[error("the share has no files: give one of folder, ram or volumes")]
    NoSource,
    /// A share with two places of its files.
    #[error("a share has one of folder, ram and volumes: leave the others out")]
    SecondSource,
    /// The share does not contain the volumes.
    #[error("write true, or leave the key out")]
    NotFalse,
}

fn with_article(kind: &str) -> String {
    match kind.starts_with(['a', 'e', 'i', 'o', 'u']) {
        true => format!("an {kind}"),
        false => format!("a {kind}"),
    }
}

impl BadFile {
    pub(super) fn new(file: &Path, mut mistakes: Vec<Mistake>) -> BadFile {
        mistakes.sort_by_key(|mistake| mistake.at);
        BadFile { file: file.to_owned(), mistakes }
    }

    /// Whether the file would be wrong on every host: then the exit status is that of clap's errors.
    pub(crate) fn is_misuse(&self) -> bool {
        !self.mistakes.iter().any(|mistake| matches!(mistake.fault, Fault::Unreadable(_)))
    }

    /// Whether there is no file.
    pub(super) fn is_missing(&self) -> bool {
        let missing = |mistake: &Mistake| matches!(&mistake.fault, Fault::Unreadable(e) if e.kind() == io::ErrorKind::NotFound);
        self.mistakes.iter().any(missing)
    }
}

impl std::error::Error for BadFile {}

/// A line for each mistake.
impl fmt::Display for BadFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, mistake) in self.mistakes.iter().enumerate() {
            if i > 0 {
                f.write_str("\n")?;
            }
            f.write_str(&path_name(&self.file))?;
            if let Some(at) = mistake.at {
                write!(f, ":{at}")?;
            }
            if let Some(key) = &mistake.key {
                write!(f, ": {}", name(key))?;
            }
            write!(f, ": {}", mistake.fault)?;
        }
        Ok(())
    }
}
