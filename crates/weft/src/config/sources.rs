//! The source of each value of a configuration: a position in a file, an option, or the default.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::{Path, PathBuf};

use super::key::{Key, Origin};

/// A position in a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Position {
    /// Its line, from 1.
    pub line: usize,
    /// Its column in characters, from 1.
    pub column: usize,
}

/// The lines of a text.
pub(super) struct Lines<'a> {
    text: &'a str,
    /// Where each line begins.
    starts: Vec<usize>,
}

impl Lines<'_> {
    pub(super) fn of(text: &str) -> Lines<'_> {
        let behind = text.match_indices('\n').map(|(at, _)| at + 1);
        Lines { text, starts: std::iter::once(0).chain(behind).collect() }
    }

    /// The position of a byte; one that is not the first byte of a character counts as that character.
    pub(super) fn position(&self, offset: usize) -> Position {
        let line = self.starts.partition_point(|start| *start <= offset);
        let start = self.starts.get(line.saturating_sub(1)).copied().unwrap_or_default();
        let rest = self.text.get(start..).unwrap_or_default();
        let before = rest.char_indices().take_while(|(at, c)| start + at + c.len_utf8() <= offset);
        Position { line, column: before.count() + 1 }
    }
}

impl fmt::Display for Position {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.line, self.column)
    }
}

/// The sources of a configuration.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Sources {
    file: Option<PathBuf>,
    /// Whether it contains a key, also if an option overrides it.
    has_keys: bool,
    /// The positions of the keys that the file contains and no option overrides, and of the tables that contain them.
    positions: BTreeMap<String, Position>,
    /// The options that were typed in addition to the file, with and without the name of the share.
    typed: BTreeSet<String>,
    /// The keys that an option has set in addition to the file.
    overridden: BTreeSet<String>,
    /// The options whose values are those of environment variables, with the variables.
    variables: BTreeMap<&'static str, &'static str>,
}

impl Sources {
    /// The sources of a configuration from a file.
    pub(crate) fn of_file(path: &Path) -> Sources {
        Sources { file: Some(path.to_owned()), ..Sources::default() }
    }

    /// The file.
    pub(crate) fn file(&self) -> Option<&Path> {
        self.file.as_deref()
    }

    /// Records that the file contains this key.
    pub(super) fn found(&mut self, path: String, at: Position) {
        self.has_keys = true;
        self.positions.insert(path, at);
    }

    /// Whether the file was read, and contains no key: it is empty, or has only comments.
    pub(crate) fn is_empty_file(&self) -> bool {
        self.file.is_some() && !self.has_keys
    }

    /// The position of this key in the file.
    pub(super) fn position(&self, path: &str) -> Option<Position> {
        self.positions.get(path).copied()
    }

    /// Records a typed option, which overrides these keys.
    pub(crate) fn overridden<'a>(&mut self, option: &str, paths: impl IntoIterator<Item = &'a str>) {
        if self.file.is_none() {
            return;
        }
        self.typed.insert(option.to_owned());
        for path in paths {
            self.overridden.insert(path.to_owned());
            let within = format!("{path}.");
            self.positions.retain(|known, _| known != path && !known.starts_with(&within));
        }
    }

    /// Records that an option overrides this key.
    pub(crate) fn overridden_key(&mut self, key: &Key) {
        self.overridden(&key.at(Origin::Flags), [key.path()]);
    }

    /// Records that an option has the value of an environment variable.
    pub(crate) fn of_variable(&mut self, option: &'static str, variable: &'static str) {
        self.variables.insert(option, variable);
    }

    /// An option, or the variable that gives it its value.
    pub(super) fn shown<'a>(&self, option: &'a str) -> &'a str {
        self.variables.get(option).copied().unwrap_or(option)
    }

    /// Whether this option was typed.
    pub(super) fn is_typed(&self, option: &str) -> bool {
        self.typed.contains(option)
    }

    /// Whether an option has set this key in addition to the file.
    pub(super) fn is_overridden(&self, path: &str) -> bool {
        self.overridden.contains(path)
    }

    /// Where the user has written this key, or would write it.
    pub(crate) fn origin_of(&self, key: &Key) -> Origin {
        let flag = key.at(Origin::Flags);
        let option = flag.split(' ').next().unwrap_or_default();
        match &self.file {
            None => Origin::Flags,
            Some(_) if self.positions.contains_key(key.path()) => Origin::File,
            Some(_) if self.is_typed(option) || self.is_typed(&flag) => Origin::Flags,
            Some(_) => Origin::File,
        }
    }

    /// The name of this key as the user has written it, or would write it.
    pub(crate) fn named(&self, key: &Key) -> String {
        self.shown(&key.at(self.origin_of(key))).to_owned()
    }

    /// The name of this key, with its line if the file contains it.
    pub(super) fn placed(&self, key: &Key) -> String {
        let name = self.named(key);
        match self.position_of(key) {
            Some((_, Some(at))) => format!("{name} (line {})", at.line),
            _ => name,
        }
    }

    /// The file and the position of a key in it, or of the table that lacks the key.
    pub(super) fn position_of(&self, key: &Key) -> Option<(&Path, Option<Position>)> {
        let file = self.file.as_deref().filter(|_| self.origin_of(key) == Origin::File)?;
        let known = self.positions.iter().filter(|(path, _)| {
            let rest = key.path().strip_prefix(path.as_str());
            rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
        });
        Some((file, known.max_by_key(|(path, _)| path.len()).map(|(_, at)| *at)))
    }
}

#[cfg(test)]
mod tests {
    use super::super::key::{self, OfShare};
    use super::*;

    #[test]
    fn a_position_is_counted_in_lines_and_characters() {
        let text = "a = 1\nä = \"é\"\n";
        let lines = Lines::of(text);
        let at = |offset| lines.position(offset).to_string();
        assert_eq!((at(0), at(4), at(6)), ("1:1".into(), "1:5".into(), "2:1".into()));
        // The umlaut has two bytes.
        assert_eq!((at(8), at(9), at(100)), ("2:2".into(), "2:3".into(), "3:1".into()));
    }

    #[test]
    fn a_key_is_named_where_it_was_written() {
        let mut sources = Sources::of_file(Path::new("weft.toml"));
        let of = |name, of: OfShare| Key::of_share(name, of);
        for (path, line) in [("shares.a", 1), ("shares.a.read_only", 2), ("limits.cores", 7)] {
            sources.found(path.into(), Position { line, column: 1 });
        }
        assert_eq!(sources.named(&key::CORES.with(0)), "limits.cores = 0");
        assert_eq!(sources.named(&of("a", key::READ_ONLY)), "shares.a.read_only");
        let line = |sources: &Sources, key: &Key| Some(sources.position_of(key)?.1?.line);
        assert_eq!(line(&sources, &of("a", key::READ_ONLY)), Some(2));
        // A key that is missing is missing in its table.
        assert_eq!(line(&sources, &of("a", key::SNAPSHOTS)), Some(1));
        assert_eq!(line(&sources, &of("ab", key::SNAPSHOTS)), None);
        sources.overridden("--cores", ["limits.cores"]);
        sources.overridden_key(&of("a", key::READ_ONLY));
        assert_eq!(sources.named(&key::CORES.with(0)), "--cores 0");
        assert_eq!(sources.named(&of("a", key::READ_ONLY)), "--read-only a");
        assert_eq!(line(&sources, &key::CORES), None);
        assert_eq!(Sources::default().named(&key::CORES), "--cores");
    }
}
