//! Command lines of other loaders, taken as they are written in papers and turned into jobs.
//!
//! What: each reader takes the flags that change what is measured, says of harmless ones that they change nothing here, and
//! refuses every other by its name. Does not: run anything, or look for the files that are named.

pub mod diskspd;
pub mod iozone;
pub mod sqlio;

use std::time::Duration;

use crate::job::Job;
use crate::measure::Timing;

/// A command line, understood.
#[derive(Clone, Debug, PartialEq)]
pub struct Understood {
    /// What to measure. [`Job::paths`] is empty: the targets below stand for it. File sizes of 0 are the files' own.
    pub jobs: Vec<Job>,
    /// The files as they were named: `//HOST/SHARE/FILE`, a URL.
    pub targets: Vec<String>,
    /// Whether files that do not exist may be made.
    pub creates: bool,
    /// What differs from the original, a sentence each.
    pub notes: Vec<String>,
}

/// Why a command line is not understood.
#[derive(Clone, Debug, thiserror::Error, PartialEq, Eq)]
pub enum LoaderError {
    /// A flag that is not known, or cannot be done here.
    #[error("{loader}'s {flag} is not known here: {known} are")]
    Flag {
        /// Whose.
        loader: &'static str,
        /// As written.
        flag: String,
        /// Those that are.
        known: &'static str,
    },
    /// A flag with a value that it cannot have.
    #[error("{flag} takes {wants}, not {value:?}")]
    Value {
        /// The flag.
        flag: String,
        /// What was written.
        value: String,
        /// What it takes.
        wants: &'static str,
    },
    /// There is no file.
    #[error(
        "name the file at the end: //HOST/SHARE/FILE, or a URL like nfs://HOST/EXPORT/FILE?mountport=20048"
    )]
    NoTarget,
    /// What this loader cannot do together.
    #[error("{0}")]
    Conflict(&'static str),
}

/// "8K", "1M", "512": bytes; a bare number is in `unit` bytes.
fn size(flag: &str, text: &str, unit: u64) -> Result<u64, LoaderError> {
    let digits = text.trim_end_matches(|c: char| !c.is_ascii_digit());
    let factor = match text[digits.len()..].to_ascii_lowercase().as_str() {
        "" => Some(unit),
        "k" => Some(1 << 10),
        "m" => Some(1 << 20),
        "g" => Some(1 << 30),
        _ => None,
    };
    let bytes =
        digits.parse::<u64>().ok().zip(factor).and_then(|(number, factor)| number.checked_mul(factor));
    bytes.filter(|bytes| *bytes > 0).ok_or_else(|| LoaderError::Value {
        flag: flag.to_owned(),
        value: text.to_owned(),
        wants: "a size like 8K, 64K or 1M",
    })
}

/// A block: a size that fits.
fn block(flag: &str, text: &str, unit: u64) -> Result<u32, LoaderError> {
    let bytes = size(flag, text, unit)?;
    u32::try_from(bytes).map_err(|_| LoaderError::Value {
        flag: flag.to_owned(),
        value: text.to_owned(),
        wants: "a block of at most 16M",
    })
}

fn number<T: std::str::FromStr>(flag: &str, text: &str, wants: &'static str) -> Result<T, LoaderError> {
    text.parse().map_err(|_| LoaderError::Value { flag: flag.to_owned(), value: text.to_owned(), wants })
}

fn seconds(flag: &str, text: &str) -> Result<Duration, LoaderError> {
    Ok(Duration::from_secs(number::<u32>(flag, text, "whole seconds")?.into()))
}

fn timing(warm_up: Duration, duration: Duration, cool_down: Duration) -> Timing {
    Timing { warm_up, duration, cool_down, steady: None }
}
