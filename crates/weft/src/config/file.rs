//! Reads a configuration from a TOML file, with the position of each key. All mistakes in the file are reported, not only
//! the first.

use std::fs::Metadata;
use std::io::{self, Read};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;
use std::sync::Arc;

use rustix::process::{Uid, geteuid};
use toml::de::DeTable;
use weft_machine::file::pipe;

use super::key::{Origin, part};
use super::mistake::{BadFile, Fault, Mistake, Unguarded};
use super::row::{Field, Row};
use super::sources::{Lines, Position, Sources};
use super::table::ROWS;
use super::types::{Entry, Refused, TomlValue};
use super::{ServeConfig, ShareConfig, ShareSource, VolumeConfig};
use crate::out::{ShellCommand, path_name};

/// Larger files are refused.
const MAX_BYTES: u64 = 1 << 20;
/// The bits of the mode by which the group and other users may write.
const WRITABLE_BY_OTHERS: u32 = 0o022;
/// Jaro-Winkler similarity, from 0 to 1, above which one key may be a misspelling of another.
const ALIKE: f64 = 0.8;

/// Reads a file. Missing keys have their defaults.
///
/// # Errors
/// All mistakes in the file itself; [`ServeConfig::check`] checks the rules between keys.
pub(crate) fn read(path: &Path) -> Result<ServeConfig, BadFile> {
    parse(path, &text(path)?)
}

/// The text of a file.
///
/// # Errors
/// It cannot be read, it is too long, or it is not UTF-8.
pub(super) fn text(path: &Path) -> Result<String, BadFile> {
    let whole = |fault| BadFile::new(path, vec![Mistake { at: None, key: None, fault }]);
    let file = pipe::Input::open(path).map_err(|e| whole(Fault::Unreadable(e)))?;
    if let Err(unguarded) = guarded(path, file.metadata(), geteuid()) {
        match geteuid().is_root() {
            true => return Err(whole(unguarded.into())),
            false => tracing::warn!("{}: {unguarded}", path_name(path)),
        }
    }
    let is_pipe = file.metadata().file_type().is_fifo();
    let mut bytes = Vec::new();
    let read = file.take(MAX_BYTES + 1).read_to_end(&mut bytes);
    read.map_err(|e| whole(Fault::Unreadable(e)))?;
    // A server that reads its configuration again finds nothing where the first reader has taken it: that is not a
    // configuration without shares.
    if is_pipe && bytes.is_empty() {
        let why = "it is a pipe, and nothing comes from it: a configuration that is to be read again must be a file";
        return Err(whole(Fault::Unreadable(io::Error::new(io::ErrorKind::UnexpectedEof, why))));
    }
    if bytes.len() as u64 > MAX_BYTES {
        return Err(whole(Fault::TooLarge { most: MAX_BYTES }));
    }
    String::from_utf8(bytes).map_err(|e| {
        let (before, _) = e.as_bytes().split_at(e.utf8_error().valid_up_to());
        let at = Lines::of(&String::from_utf8_lossy(before)).position(before.len());
        BadFile::new(path, vec![Mistake { at: Some(at), key: None, fault: Fault::NotUtf8 }])
    })
}

/// Whether only root and this user can change the file. Pipes and devices are not judged.
fn guarded(path: &Path, found: &Metadata, user: Uid) -> Result<(), Unguarded> {
    let is_ours = [0, user.as_raw()].contains(&found.uid());
    if !found.is_file() || is_ours && found.mode() & WRITABLE_BY_OTHERS == 0 {
        return Ok(());
    }
    Err(Unguarded(match is_ours {
        true => ShellCommand::new("chmod go-w").operand(path),
        false => ShellCommand::new("chown").operand(user.as_raw().to_string()).operand(path),
    }))
}

/// Reads the text of a file.
pub(super) fn parse(path: &Path, text: &str) -> Result<ServeConfig, BadFile> {
    let lines = Lines::of(text);
    let (table, errors) = DeTable::parse_recoverable(text);
    if !errors.is_empty() {
        let mistakes = errors.iter().map(|error| {
            let span = error.span().unwrap_or_default();
            let at = Some(lines.position(span.start));
            match error.message() {
                "duplicate key" => {
                    Mistake { at, key: text.get(span).map(str::to_owned), fault: Fault::Twice }
                }
                message => Mistake { at, key: None, fault: Fault::Syntax(message.to_owned()) },
            }
        });
        return Err(BadFile::new(path, mistakes.collect()));
    }
    let config = ServeConfig { sources: Arc::new(Sources::of_file(path)), ..ServeConfig::default() };
    let mut reader = Reader { lines, config, mistakes: Vec::new() };
    let folder = path.parent().unwrap_or(Path::new(""));
    // The document is itself a table.
    let (span, table) = (table.span(), toml::de::DeValue::Table(table.into_inner()));
    let value = toml::Spanned::new(span, table);
    reader.table(&[], &TomlValue { value: &value, folder });
    match reader.mistakes.is_empty() {
        true => Ok(reader.config),
        false => Err(BadFile::new(path, reader.mistakes)),
    }
}

struct Reader<'a> {
    lines: Lines<'a>,
    config: ServeConfig,
    mistakes: Vec<Mistake>,
}

impl Reader<'_> {
    /// Reads the keys of the table at this path.
    fn table(&mut self, at: &[&str], table: &TomlValue) {
        let expected = || "a table".to_owned();
        match table.entries(expected) {
            Ok(entries) => entries.iter().for_each(|entry| self.entry(at, entry)),
            Err(refused) => self.refused(at, refused),
        }
    }

    fn entry(&mut self, within: &[&str], entry: &Entry) {
        let at = [within, &[entry.key]].concat();
        let rows: Vec<&Row> = ROWS.iter().filter(|row| row.begins_with(&at)).collect();
        let Some(first) = rows.first() else {
            return self.mistake(entry.span.start, &at, unknown(within, entry.key));
        };
        let position = self.lines.position(entry.span.start);
        self.config.sources_mut().found(dotted(&at), position);
        if let Some(row) = rows.iter().find(|row| row.segments().count() == at.len()) {
            if let Err(refused) = self.set(row, &at, &entry.value) {
                self.refused(&at, refused);
            }
            return;
        }
        let value = entry.value.value;
        if !value.get_ref().is_table() {
            let (example, found) = (first.table_example(at.len()), value.get_ref().type_str());
            return self.mistake(value.span().start, &at, Fault::NoTable { example, found });
        }
        match at[..] {
            ["shares", name] => {
                // A placeholder until the source of the files is read.
                let source = ShareSource::Folder(Default::default());
                let share = ShareConfig { origin: Origin::File, ..ShareConfig::new(name, source) };
                self.config.shares.push(share);
                self.table(&at, &entry.value);
                self.check_source(&at, entry.span.start);
            }
            ["volumes", name] => {
                self.config.volumes.push(VolumeConfig { name: name.to_owned(), read_only: false });
                self.table(&at, &entry.value);
            }
            ["tls", _] if value.get_ref().as_table().is_some_and(|table| table.is_empty()) => {
                self.mistake(entry.span.start, &at, Fault::NoCertificate);
            }
            _ => self.table(&at, &entry.value),
        }
    }

    /// Sets a key; the share or volume that it belongs to is the last one.
    fn set(&mut self, row: &Row, at: &[&str], given: &TomlValue) -> Result<(), Refused> {
        debug_assert!(row.begins_with(at), "{} is not {at:?}", row.path);
        match row.field {
            Field::Server { set, .. } => set(&mut self.config, given),
            Field::Volume { set, .. } => {
                self.config.volumes.last_mut().map_or(Ok(()), |volume| set(volume, given))
            }
            Field::Share { set, .. } => {
                self.config.shares.last_mut().map_or(Ok(()), |share| set(share, given))
            }
        }
    }

    /// Checks that the share has exactly one source of files.
    fn check_source(&mut self, at: &[&str], offset: usize) {
        let sources = &self.config.sources;
        let mut given: Vec<(Position, &str)> = ["path", "ram", "volumes"]
            .into_iter()
            .filter_map(|key| Some((sources.position(&dotted(&[at, &[key]].concat()))?, key)))
            .collect();
        given.sort();
        match given[..] {
            [] => self.mistake(offset, at, Fault::NoSource),
            [_] => {}
            [_, (position, key), ..] => {
                let key = Some(dotted(&[at, &[key]].concat()));
                self.mistakes.push(Mistake { at: Some(position), key, fault: Fault::SecondSource });
            }
        }
    }

    fn refused(&mut self, at: &[&str], Refused(parts): Refused) {
        for part in parts {
            self.mistake(part.span.start, at, part.fault);
        }
    }

    fn mistake(&mut self, offset: usize, at: &[&str], fault: Fault) {
        let position = Some(self.lines.position(offset));
        self.mistakes.push(Mistake { at: position, key: Some(dotted(at)), fault });
    }
}

impl Row {
    /// The parts of its path.
    pub(super) fn segments(&self) -> impl Iterator<Item = &'static str> {
        self.path.split('.')
    }

    /// Whether the path begins with these parts; a name that the user chooses stands for any.
    fn begins_with(&self, at: &[&str]) -> bool {
        let mut segments = self.segments();
        at.iter().all(|part| segments.next().is_some_and(|segment| segment == "*" || segment == *part))
    }

    /// A table with this many parts in its path, as users write it.
    fn table_example(&self, parts: usize) -> &'static str {
        match (self.path.split('.').next(), parts) {
            (Some("shares"), 1 | 2) => "[shares.NAME]",
            (Some("shares"), _) => "[shares.NAME.nfs]",
            (Some("volumes"), _) => "NAME = {} in [volumes]",
            (Some("listeners"), _) => "[listeners]",
            (Some("limits"), _) => "[limits]",
            (Some("smb"), _) => "[smb]",
            (Some("identity"), _) => "[identity]",
            (Some("kerberos"), _) => "[kerberos]",
            (Some("nfs"), _) => "[nfs]",
            (Some("rdma"), 1) => "[rdma]",
            (Some("rdma"), _) => "[rdma.capture]",
            (Some("tls"), _) => "[tls.nfs]",
            _ => "[replication]",
        }
    }
}

/// A dotted key, as written in TOML.
fn dotted(at: &[&str]) -> String {
    at.iter().map(|name| part(name)).collect::<Vec<_>>().join(".")
}

/// The fault of a key with a word of exports(5) that negates an existing key.
fn reversed(within: &[&str], key: &str) -> Option<Fault> {
    let exports = match within {
        ["shares", name, ..] => dotted(&["shares", name, "nfs"]),
        _ => "shares.NAME.nfs".to_owned(),
    };
    let real = match (key, within) {
        ("no_root_squash", ["shares", ..]) => {
            return Some(Fault::Misspelt(format!("{exports}.squash = \"no_root_squash\"")));
        }
        ("no_root_squash", _) => "nfs.root_squash".to_owned(),
        ("insecure", _) => format!("{exports}.secure"),
        ("rw", _) => format!("{exports}.read_only"),
        ("sync", _) => format!("{exports}.async"),
        _ => return None,
    };
    Some(Fault::Reversed(real))
}

/// The fault of a key or table that exists, but in other tables than that at `within`.
fn misplaced(within: &[&str], key: &str) -> Option<Fault> {
    // A key of the same share is more likely than one of another.
    let named = |part: &'static str, at: usize, first: &str| match (part, within) {
        ("*", [table, name, ..]) if at == 1 && *table == first => *name,
        ("*", _) => "NAME",
        (part, _) => part,
    };
    let (mut tables, mut keys) = (Vec::new(), Vec::new());
    for row in ROWS {
        let first = row.segments().next().unwrap_or_default();
        let path: Vec<&str> = row.segments().enumerate().map(|(at, part)| named(part, at, first)).collect();
        for at in row.segments().enumerate().filter_map(|(at, part)| (part == key).then_some(at)) {
            let (above, _) = path.split_at(at);
            let found = dotted(&[above, &[key]].concat());
            if keys.contains(&found) {
                continue;
            }
            keys.push(found);
            tables.push(match above {
                [] => "the top of the file".to_owned(),
                above => format!("[{}]", dotted(above)),
            });
        }
    }
    (!keys.is_empty()).then_some(Fault::Misplaced { tables, keys })
}

/// The fault of a key that does not exist in the table at `within`.
fn unknown(within: &[&str], key: &str) -> Fault {
    let mut there: Vec<&str> = ROWS
        .iter()
        .filter(|row| row.begins_with(within))
        .filter_map(|row| row.segments().nth(within.len()))
        .collect();
    there.dedup();
    let key = key.to_lowercase().replace('-', "_");
    if key.contains("password") {
        return Fault::Password;
    }
    if let Some(fault) = reversed(within, &key) {
        return fault;
    }
    if there.contains(&key.as_str()) {
        return Fault::Misspelt(dotted(&[within, &[&key]].concat()));
    }
    if let Some(fault) = misplaced(within, &key) {
        return fault;
    }
    let likeness = |other: &str| strsim::jaro_winkler(&key, other);
    let best = |names: Vec<(&str, String)>| {
        let alike = names.into_iter().map(|(name, path)| (likeness(name), path));
        let alike = alike.filter(|(likeness, _)| *likeness >= ALIKE);
        alike.max_by(|(one, _), (other, _)| one.total_cmp(other)).map(|(_, path)| path)
    };
    // It may be the name of an option.
    let shown = |row: &Row| row.path.replace('*', "NAME");
    let option = format!("--{}", key.replace('_', "-"));
    if let Some(row) = ROWS.iter().find(|row| row.options.contains(&option.as_str())) {
        return Fault::Misspelt(shown(row));
    }
    let here = there.iter().map(|name| (*name, dotted(&[within, &[*name]].concat()))).collect();
    if let Some(near) = best(here) {
        return Fault::Misspelt(near);
    }
    // It may belong to another table.
    let last = |row: &'static Row| Some((row.segments().last()?, shown(row)));
    match best(ROWS.iter().filter_map(last).collect()) {
        Some(near) => Fault::Misspelt(near),
        None => Fault::Unknown { there: there.into_iter().map(str::to_owned).collect() },
    }
}

#[cfg(test)]
mod tests;
