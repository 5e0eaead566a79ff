//! Mistakes in a configuration file: the position, the key, the cause, and what to write instead.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use weft_smb::auth::BadPrincipal;
use weft_store::rights::NoPrincipal;
use weft_store::rules::NotANetwork;

use super::admin::NoAdminAddress;
use super::sources::Position;
use crate::addresses::AddressError;
use crate::args::Misread;
use crate::out::{ShellCommand, name, path_name};

/// How many mistakes are shown; the others are counted.
pub(crate) const MAX_SHOWN: usize = 20;

/// A file that is not a valid configuration, with all its mistakes.
#[derive(Debug)]
pub(crate) struct BadFile {
    file: PathBuf,
    /// At least one, in the order of the file.
    mistakes: Vec<Mistake>,
}

/// One mistake.
#[derive(Debug)]
pub(super) struct Mistake {
    /// Its position, unless it concerns the whole file.
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
    #[error("cannot read the configuration: {0}{example}", example = example_of(.0))]
    Unreadable(io::Error),
    /// The file is too large for a configuration.
    #[error("the file is larger than the limit of {most} bytes")]
    TooLarge { most: u64 },
    /// It is not text.
    #[error("not UTF-8: save the file as UTF-8")]
    NotUtf8,
    /// It is not TOML; the message is the parser's.
    #[error("{0}")]
    Syntax(String),
    /// A key or table that occurs twice.
    #[error("given twice: remove one")]
    Twice,
    /// An unknown key, and the nearest one that exists.
    #[error("unknown key; did you mean {0}?")]
    Misspelt(String),
    /// A key that only other tables have.
    #[error("unknown key here; {} {it}: did you mean {}?", .tables.join(" and "), .keys.join(" or "), it = if .tables.len() == 1 { "has it" } else { "have it" })]
    Misplaced { tables: Vec<String>, keys: Vec<String> },
    /// An unknown key that resembles no other; these are the keys of its table.
    #[error("unknown key; the keys of this table are {}", .there.join(", "))]
    Unknown { there: Vec<String> },
    /// An unknown key that negates one that exists.
    #[error("unknown key; did you mean {0}, whose sense is reversed? Write {0} = false")]
    Reversed(String),
    /// A password.
    #[error(
        "passwords are not part of the configuration: set WEFT_PASSWORD for the server, or add users with weft user add"
    )]
    Password,
    /// A value instead of a table.
    #[error("write a table, such as {example}, not {}", with_article(.found))]
    NoTable { example: &'static str, found: &'static str },
    /// A value of another type.
    #[error("write {expected}, not {}", with_article(.found))]
    Type { expected: String, found: &'static str },
    /// An empty string.
    #[error("the string is empty")]
    Empty,
    /// An array without elements.
    #[error("the array is empty: write at least one element, or remove the key")]
    NoElement,
    /// A text that is no path; it may be secret.
    #[error("write the path of a file, not its content")]
    Content,
    /// A path that only a shell understands.
    #[error("write the whole path; ~ is not expanded")]
    Tilde,
    /// TLS without a certificate.
    #[error("the table is empty: add certificate and key, or remove the table")]
    NoCertificate,
    /// Other users could change the file, and with it what the server does.
    #[error(transparent)]
    Unguarded(#[from] Unguarded),
    /// A number out of range.
    #[error("write a number from {least} to {most}, not {found}")]
    Range { least: u64, most: u64, found: String },
    /// None of the words.
    #[error("write {expected}, not {text:?}")]
    Word { text: String, expected: String },
    /// A string that its type cannot parse.
    #[error("{text:?}: {why}")]
    Unparsed { text: String, why: Unparsed },
    /// A share without files.
    #[error("the share has no files: add path, ram or volumes")]
    NoSource,
    /// A share with two sources of files.
    #[error("a share has only one of path, ram and volumes: remove the others")]
    SecondSource,
    /// A share of volumes that is switched off.
    #[error("write true, or remove the key")]
    NotFalse,
}

/// A file that users other than root and ours can change.
#[derive(Debug, thiserror::Error)]
#[error("it can be written by other users: {}", .0)]
pub(super) struct Unguarded(pub ShellCommand);

/// Why a string is not a value of its type. Messages that the command line shares, and that name options, are worded for
/// a file here.
#[derive(Debug, thiserror::Error)]
pub(super) enum Unparsed {
    #[error(transparent)]
    Size(Misread),
    #[error("write a whole number with us, ms, s, min or h, such as 1500ms")]
    Duration,
    #[error("listen addresses have no port: write \"{}\", and listeners.smb_port = {}", .0.ip(), .0.port())]
    Port(SocketAddr),
    #[error("write each address as an element of the array")]
    SeveralAddresses,
    #[error(transparent)]
    Address(AddressError),
    #[error(transparent)]
    Network(NotANetwork),
    #[error("{0}")]
    Link(String),
    #[error(transparent)]
    Principal(NoPrincipal),
    #[error(transparent)]
    KerberosPrincipal(BadPrincipal),
    #[error(transparent)]
    Admin(NoAdminAddress),
}

impl From<AddressError> for Unparsed {
    fn from(error: AddressError) -> Unparsed {
        match error {
            AddressError::Port(both) => Unparsed::Port(both),
            AddressError::Several(_) => Unparsed::SeveralAddresses,
            other => Unparsed::Address(other),
        }
    }
}

/// How to begin, if the file does not exist.
fn example_of(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::NotFound => "; to write an example: weft config init FILE",
        _ => "",
    }
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
        let of_host = |fault: &Fault| matches!(fault, Fault::Unreadable(_) | Fault::Unguarded(_));
        !self.mistakes.iter().any(|mistake| of_host(&mistake.fault))
    }

    /// The same for a text that is in no file, so that a line and a column would lead nowhere.
    pub(super) fn without_positions(mut self) -> BadFile {
        self.mistakes.iter_mut().for_each(|mistake| mistake.at = None);
        self
    }

    /// Whether the file does not exist.
    pub(super) fn is_missing(&self) -> bool {
        let missing = |mistake: &Mistake| matches!(&mistake.fault, Fault::Unreadable(e) if e.kind() == io::ErrorKind::NotFound);
        self.mistakes.iter().any(missing)
    }
}

impl std::error::Error for BadFile {}

/// One line per mistake, up to [`MAX_SHOWN`].
impl fmt::Display for BadFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, mistake) in self.mistakes.iter().take(MAX_SHOWN).enumerate() {
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
        match self.mistakes.len().saturating_sub(MAX_SHOWN) {
            0 => Ok(()),
            more => write!(f, "\nand {more} more"),
        }
    }
}
