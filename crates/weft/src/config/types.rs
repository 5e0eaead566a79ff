//! The types of values in a configuration file: how each is described, read and written.

use std::marker::PhantomData;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::time::Duration;

use toml::Spanned;
use toml::de::DeValue;
use weft_smb::server::{Dialect, Signing};
use weft_store::rules::{Flavor, Network, Protection, Squash};

use super::key::quoted;
use super::mistake::Fault;
use crate::addresses::{Addresses, LOCALHOST};
use crate::args::{Crc, ProviderKind, parse_size};

/// A value in a file.
pub(super) struct Given<'a> {
    /// The value and its place.
    pub value: &'a Spanned<DeValue<'a>>,
    /// The folder of the file, which relative paths start from.
    pub folder: &'a Path,
}

/// A value that a key does not accept.
#[derive(Debug)]
pub(super) struct Refused {
    /// Its place in the file, in bytes.
    pub span: Range<usize>,
    /// Why.
    pub fault: Fault,
}

impl<'a> Given<'a> {
    /// Refuses the value.
    pub(super) fn refuse(&self, fault: Fault) -> Refused {
        Refused { span: self.value.span(), fault }
    }

    /// Another value, which is part of this one.
    fn part(&self, value: &'a Spanned<DeValue<'a>>) -> Given<'a> {
        Given { value, folder: self.folder }
    }

    /// The text, if it is one that is not empty.
    fn text(&self, expected: impl FnOnce() -> String) -> Result<&'a str, Refused> {
        match self.value.get_ref().as_str() {
            Some("") => Err(self.refuse(Fault::Empty)),
            Some(text) => Ok(text),
            None => Err(self.of_another_type(expected())),
        }
    }

    /// The number, if it is one in this range.
    fn number(&self, range: Range<u64>, expected: impl FnOnce() -> String) -> Result<u64, Refused> {
        let value = self.value.get_ref();
        let Some(given) = value.as_integer() else { return Err(self.of_another_type(expected())) };
        let number = u64::from_str_radix(given.as_str(), given.radix()).ok();
        number.filter(|number| range.contains(number)).ok_or_else(|| {
            let most = range.end.saturating_sub(1);
            self.refuse(Fault::Range { least: range.start, most, found: given.to_string() })
        })
    }

    fn of_another_type(&self, expected: String) -> Refused {
        self.refuse(Fault::Type { expected, found: self.value.get_ref().type_str() })
    }

    /// The tables or values in a table, in their order in the file.
    pub(super) fn entries(&self, expected: impl FnOnce() -> String) -> Result<Vec<Entry<'a>>, Refused> {
        let table = self.value.get_ref().as_table().ok_or_else(|| self.of_another_type(expected()))?;
        let mut entries: Vec<Entry> = table
            .iter()
            .map(|(key, value)| Entry { key: key.get_ref(), span: key.span(), value: self.part(value) })
            .collect();
        entries.sort_by_key(|entry| entry.span.start);
        Ok(entries)
    }
}

/// One key of a table.
pub(super) struct Entry<'a> {
    /// The key.
    pub key: &'a str,
    /// The key's place in the file, in bytes.
    pub span: Range<usize>,
    /// The value.
    pub value: Given<'a>,
}

/// A type of values.
pub(super) trait Type {
    /// What the server uses.
    type Value;

    /// What to write.
    fn name() -> String;

    /// Reads a value.
    fn read(given: &Given) -> Result<Self::Value, Refused>;

    /// The value as a file has it; `None` if no value stands for it.
    fn show(value: &Self::Value) -> Option<String>;
}

/// `true` or `false`.
pub(super) struct Switch;

impl Type for Switch {
    type Value = bool;

    fn name() -> String {
        "true or false".into()
    }

    fn read(given: &Given) -> Result<bool, Refused> {
        given.value.get_ref().as_bool().ok_or_else(|| given.of_another_type(Switch::name()))
    }

    fn show(value: &bool) -> Option<String> {
        Some(value.to_string())
    }
}

/// A TCP or UDP port.
pub(super) struct Port;

impl Type for Port {
    type Value = u16;

    fn name() -> String {
        "a port from 0 to 65535; 0 is any free one".into()
    }

    fn read(given: &Given) -> Result<u16, Refused> {
        let number = given.number(0..1 << 16, Port::name)?;
        // The range has been checked.
        Ok(u16::try_from(number).unwrap_or_default())
    }

    fn show(value: &u16) -> Option<String> {
        Some(value.to_string())
    }
}

/// A number of things.
pub(super) struct Count;

impl Type for Count {
    type Value = usize;

    fn name() -> String {
        "a number".into()
    }

    fn read(given: &Given) -> Result<usize, Refused> {
        let number = given.number(0..1 << 32, Count::name)?;
        Ok(usize::try_from(number).unwrap_or(usize::MAX))
    }

    fn show(value: &usize) -> Option<String> {
        Some(value.to_string())
    }
}

/// The number of a user or group.
pub(super) struct Id;

impl Type for Id {
    type Value = u32;

    fn name() -> String {
        "the number of a user or group".into()
    }

    fn read(given: &Given) -> Result<u32, Refused> {
        let number = given.number(0..1 << 32, Id::name)?;
        // The range has been checked.
        Ok(u32::try_from(number).unwrap_or(u32::MAX))
    }

    fn show(value: &u32) -> Option<String> {
        Some(value.to_string())
    }
}

/// A number of bytes.
pub(super) struct Size;

impl Type for Size {
    type Value = u64;

    fn name() -> String {
        "a size in quotes, as \"256M\"".into()
    }

    fn read(given: &Given) -> Result<u64, Refused> {
        let text = given.text(Size::name)?;
        parse_size(text).map_err(|e| given.refuse(Fault::Value { text: text.into(), why: e.to_string() }))
    }

    fn show(value: &u64) -> Option<String> {
        let units = [(40, "T"), (30, "G"), (20, "M"), (10, "K")];
        let unit = units.into_iter().find(|(shift, _)| *value > 0 && value % (1 << shift) == 0);
        Some(
            unit.map_or_else(
                || format!("\"{value}\""),
                |(shift, unit)| format!("\"{}{unit}\"", value >> shift),
            ),
        )
    }
}

/// A duration.
pub(super) struct Span;

impl Span {
    const UNITS: [(&'static str, u64); 3] = [("us", 1), ("ms", 1000), ("s", 1_000_000)];
}

impl Type for Span {
    type Value = Duration;

    fn name() -> String {
        "a duration in quotes, as \"100us\"".into()
    }

    fn read(given: &Given) -> Result<Duration, Refused> {
        let text = given.text(Span::name)?;
        let digits = text.trim_end_matches(|c: char| !c.is_ascii_digit());
        let unit = text[digits.len()..].trim_start();
        let factor = Span::UNITS.into_iter().find(|(name, _)| *name == unit).map(|(_, factor)| factor);
        let number = digits.bytes().all(|b| b.is_ascii_digit()).then(|| digits.parse::<u64>().ok()).flatten();
        let micros = number.zip(factor).and_then(|(number, factor)| number.checked_mul(factor));
        let why = || "write a number with us, ms or s".into();
        micros
            .map(Duration::from_micros)
            .ok_or_else(|| given.refuse(Fault::Value { text: text.into(), why: why() }))
    }

    fn show(value: &Duration) -> Option<String> {
        let micros = value.as_micros();
        let fits = |(_, factor): &&(&str, u64)| micros > 0 && micros % u128::from(*factor) == 0;
        let (unit, factor) = Span::UNITS.iter().rev().find(fits).unwrap_or(&Span::UNITS[0]);
        Some(format!("\"{}{unit}\"", micros / u128::from(*factor)))
    }
}

/// A text that is not empty.
pub(super) struct Text;

impl Type for Text {
    type Value = String;

    fn name() -> String {
        "a text".into()
    }

    fn read(given: &Given) -> Result<String, Refused> {
        given.text(Text::name).map(str::to_owned)
    }

    fn show(value: &String) -> Option<String> {
        Some(quoted(value))
    }
}

/// A path; a relative one starts at the folder of the configuration file.
pub(super) struct File;

impl Type for File {
    type Value = PathBuf;

    fn name() -> String {
        "a path".into()
    }

    fn read(given: &Given) -> Result<PathBuf, Refused> {
        Ok(given.folder.join(given.text(File::name)?))
    }

    fn show(value: &PathBuf) -> Option<String> {
        Some(quoted(&value.to_string_lossy()))
    }
}

/// Addresses to listen on.
pub(super) struct Listen;

impl Type for Listen {
    type Value = Addresses;

    fn name() -> String {
        "an address or a name of this host".into()
    }

    fn read(given: &Given) -> Result<Addresses, Refused> {
        let text = given.text(Listen::name)?;
        let addresses = text.parse::<Addresses>();
        addresses.map_err(|e| given.refuse(Fault::Value { text: text.into(), why: e.to_string() }))
    }

    fn show(value: &Addresses) -> Option<String> {
        if *value == Addresses::default() {
            return Some(quoted(LOCALHOST));
        }
        let each = value.all().iter().map(|ip| quoted(&ip.to_string()));
        Some(each.collect::<Vec<_>>().join(", "))
    }
}

/// A network of clients.
pub(super) struct Clients;

impl Type for Clients {
    type Value = Network;

    fn name() -> String {
        "an address or a network, as \"192.0.2.0/24\"".into()
    }

    fn read(given: &Given) -> Result<Network, Refused> {
        let text = given.text(Clients::name)?;
        let network = text.parse::<Network>();
        network.map_err(|e| given.refuse(Fault::Value { text: text.into(), why: e.to_string() }))
    }

    fn show(value: &Network) -> Option<String> {
        Some(quoted(&value.to_string()))
    }
}

/// A value that need not be set.
pub(super) struct Maybe<T>(PhantomData<T>);

impl<T: Type> Type for Maybe<T> {
    type Value = Option<T::Value>;

    fn name() -> String {
        T::name()
    }

    fn read(given: &Given) -> Result<Option<T::Value>, Refused> {
        T::read(given).map(Some)
    }

    fn show(value: &Option<T::Value>) -> Option<String> {
        value.as_ref().and_then(T::show)
    }
}

/// A list.
pub(super) struct List<T>(PhantomData<T>);

impl<T: Type> Type for List<T> {
    type Value = Vec<T::Value>;

    fn name() -> String {
        format!("a list, each {}", T::name())
    }

    fn read(given: &Given) -> Result<Vec<T::Value>, Refused> {
        let list = given.value.get_ref().as_array();
        let list = list.ok_or_else(|| given.of_another_type(List::<T>::name()))?;
        list.iter().map(|value| T::read(&given.part(value))).collect()
    }

    fn show(value: &Vec<T::Value>) -> Option<String> {
        let each: Vec<String> = value.iter().filter_map(T::show).collect();
        Some(format!("[{}]", each.join(", ")))
    }
}

/// DFS links: a table of lists of targets, by the path of the link in its share.
pub(super) struct Links;

impl Links {
    /// What to write.
    pub(super) fn name() -> String {
        "a table of lists, as { projects = [\"//nas/projects\"] }".into()
    }
}

/// A type with few values, each with a word.
pub(super) trait Words: Copy + PartialEq + 'static {
    /// The words.
    const WORDS: &'static [(&'static str, Self)];
}

/// One of a few words.
pub(super) struct Word<T>(PhantomData<T>);

impl<T: Words> Type for Word<T> {
    type Value = T;

    fn name() -> String {
        let words: Vec<String> = T::WORDS.iter().map(|(word, _)| format!("\"{word}\"")).collect();
        words.join(" or ")
    }

    fn read(given: &Given) -> Result<T, Refused> {
        let text = given.text(Word::<T>::name)?;
        let found = T::WORDS.iter().find(|(word, _)| *word == text);
        found.map(|(_, value)| *value).ok_or_else(|| {
            given.refuse(Fault::Word {
                text: text.into(),
                words: T::WORDS.iter().map(|(word, _)| *word).collect(),
            })
        })
    }

    fn show(value: &T) -> Option<String> {
        T::WORDS.iter().find(|(_, known)| known == value).map(|(word, _)| quoted(word))
    }
}

impl Words for Crc {
    const WORDS: &'static [(&'static str, Crc)] = &[("always", Crc::Always), ("asked", Crc::Asked)];
}

impl Words for Signing {
    const WORDS: &'static [(&'static str, Signing)] =
        &[("auto", Signing::Exposed), ("required", Signing::Required), ("enabled", Signing::Enabled)];
}

impl Words for Dialect {
    const WORDS: &'static [(&'static str, Dialect)] = &[
        ("2.0.2", Dialect::V2_0_2),
        ("2.1", Dialect::V2_1),
        ("3.0", Dialect::V3_0),
        ("3.0.2", Dialect::V3_0_2),
        ("3.1.1", Dialect::V3_1_1),
    ];
}

impl Words for ProviderKind {
    const WORDS: &'static [(&'static str, ProviderKind)] =
        &[("iwarp", ProviderKind::Iwarp), ("shm", ProviderKind::Shm), ("rnic", ProviderKind::Rnic)];
}

impl Words for Squash {
    const WORDS: &'static [(&'static str, Squash)] =
        &[("root_squash", Squash::Root), ("no_root_squash", Squash::None), ("all_squash", Squash::All)];
}

impl Words for Flavor {
    const WORDS: &'static [(&'static str, Flavor)] = &[("sys", Flavor::Sys), ("none", Flavor::None)];
}

impl Words for Protection {
    const WORDS: &'static [(&'static str, Protection)] =
        &[("none", Protection::None), ("tls", Protection::Tls), ("mtls", Protection::Mutual)];
}
