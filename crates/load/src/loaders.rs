//! Command lines of other loaders, accepted as the papers write them and turned into jobs.
//!
//! Each parser applies the flags that change what is measured, notes harmless ones as having no effect here, and
//! refuses all others by name. The named files are not opened here.

pub mod diskspd;
pub mod iozone;
pub mod sqlio;

use std::time::Duration;

use crate::job::Job;
use crate::measure::Timing;

/// A parsed command line.
#[derive(Clone, Debug, PartialEq)]
pub struct Understood {
    /// What to measure. [`Job::paths`] is empty, and the targets below take its place. A file size of 0 means the
    /// file's own.
    pub jobs: Vec<Job>,
    /// The files as named: `//HOST/SHARE/FILE`, or a URL.
    pub targets: Vec<String>,
    /// Whether missing files may be created.
    pub creates: bool,
    /// The differences from the original, one sentence each.
    pub notes: Vec<String>,
}

/// Why a command line was not accepted.
#[derive(Clone, Debug, thiserror::Error, PartialEq, Eq)]
pub enum LoaderError {
    /// A flag that is unknown or not supported here.
    #[error("{loader}'s {flag} is not supported here: {known} are")]
    Flag {
        /// The loader.
        loader: &'static str,
        /// As written.
        flag: String,
        /// The supported flags.
        known: &'static str,
    },
    /// A flag with an invalid value.
    #[error("{flag} takes {wants}, not {value:?}")]
    Value {
        /// The flag.
        flag: String,
        /// The value as written.
        value: String,
        /// What the flag takes.
        wants: &'static str,
    },
    /// No file is named.
    #[error(
        "name the file at the end: //HOST/SHARE/FILE, or a URL like nfs://HOST/EXPORT/FILE?mountport=20048"
    )]
    NoTarget,
    /// A combination that is not supported.
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

/// A block size within the limit.
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
