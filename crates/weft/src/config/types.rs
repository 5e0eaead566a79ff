//! The types of values in a configuration file: how each is described, read and written.

use std::marker::PhantomData;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::time::Duration;

use toml::Spanned;
use toml::de::DeValue;
use weft_smb::server::{Dialect, Signing};
use weft_store::audit::Wanted;
use weft_store::rights::Principal;
use weft_store::rules::{Flavor, Network, Protection, Squash};

use super::MAX_CORES;
use super::admin::AdminAddress;
use super::key::quoted;
use super::mistake::{Fault, Unparsed};
use crate::addresses::{Addresses, LOCALHOST};
use crate::args::{Crc, ProviderKind, parse_size};
use crate::logging::LogFormat;
use crate::size;

/// A value in a file.
pub(super) struct TomlValue<'a> {
    /// The value and its byte range.
    pub value: &'a Spanned<DeValue<'a>>,
    /// The folder of the file, to which relative paths refer.
    pub folder: &'a Path,
}

/// What a key does not accept: the value, or some elements of it.
#[derive(Debug)]
pub(super) struct Refused(pub Vec<RefusedPart>);

/// A value that is not accepted.
#[derive(Debug)]
pub(super) struct RefusedPart {
    /// Its byte range in the file.
    pub span: Range<usize>,
    /// Why.
    pub fault: Fault,
}

impl<'a> TomlValue<'a> {
    /// Refuses the value.
    pub(super) fn refuse(&self, fault: Fault) -> Refused {
        Refused(vec![RefusedPart { span: self.value.span(), fault }])
    }

    /// A value within this one.
    fn part(&self, value: &'a Spanned<DeValue<'a>>) -> TomlValue<'a> {
        TomlValue { value, folder: self.folder }
    }

    /// The string, which must not be empty.
    fn text(&self, expected: impl FnOnce() -> String) -> Result<&'a str, Refused> {
        match self.value.get_ref().as_str() {
            Some("") => Err(self.refuse(Fault::Empty)),
            Some(text) => Ok(text),
            None => Err(self.of_another_type(expected())),
        }
    }

    /// The integer, which must be in this range.
    fn number(&self, range: Range<u64>, expected: impl FnOnce() -> String) -> Result<u64, Refused> {
        let value = self.value.get_ref();
        let Some(given) = value.as_integer() else { return Err(self.of_another_type(expected())) };
        let number = u64::from_str_radix(given.as_str(), given.radix()).ok();
        number.filter(|number| range.contains(number)).ok_or_else(|| {
            let most = range.end.saturating_sub(1);
            self.refuse(Fault::Range { least: range.start, most, found: given.to_string() })
        })
    }

    /// Refuses a string that its type cannot parse.
    pub(super) fn unparsed(&self, text: &str, why: Unparsed) -> Refused {
        self.refuse(Fault::Unparsed { text: text.to_owned(), why })
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
    /// The byte range of the key in the file.
    pub span: Range<usize>,
    /// The value.
    pub value: TomlValue<'a>,
}

/// A type of values.
pub(super) trait Type {
    /// What the server uses.
    type Value;

    /// What to write.
    fn name() -> String;

    /// Reads a value.
    fn read(given: &TomlValue) -> Result<Self::Value, Refused>;

    /// The value as written in a file; `None` if it is not set.
    fn show(value: &Self::Value) -> Option<String>;
}

/// `true` or `false`.
pub(super) struct Boolean;

impl Type for Boolean {
    type Value = bool;

    fn name() -> String {
        "true or false".into()
    }

    fn read(given: &TomlValue) -> Result<bool, Refused> {
        given.value.get_ref().as_bool().ok_or_else(|| given.of_another_type(Boolean::name()))
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
        "a port from 0 to 65535 (0: any free port)".into()
    }

    fn read(given: &TomlValue) -> Result<u16, Refused> {
        let number = given.number(0..1 << 16, Port::name)?;
        // The range has been checked.
        Ok(u16::try_from(number).unwrap_or_default())
    }

    fn show(value: &u16) -> Option<String> {
        Some(value.to_string())
    }
}

/// A number of serving threads. The range is a rule of the configuration, so that options have it too.
pub(super) struct Count;

impl Type for Count {
    type Value = usize;

    fn name() -> String {
        "a number".into()
    }

    fn read(given: &TomlValue) -> Result<usize, Refused> {
        let value = given.value.get_ref();
        let Some(integer) = value.as_integer() else { return Err(given.of_another_type(Count::name())) };
        let number = usize::from_str_radix(integer.as_str(), integer.radix());
        number.map_err(|_| {
            let (least, most) = (1, MAX_CORES as u64);
            given.refuse(Fault::Range { least, most, found: integer.to_string() })
        })
    }

    fn show(value: &usize) -> Option<String> {
        Some(value.to_string())
    }
}

/// A numeric user or group ID.
pub(super) struct UnixId;

impl Type for UnixId {
    type Value = u32;

    fn name() -> String {
        "a numeric user or group ID".into()
    }

    fn read(given: &TomlValue) -> Result<u32, Refused> {
        let number = given.number(0..1 << 32, UnixId::name)?;
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
        "a size in quotes, such as \"256M\"".into()
    }

    fn read(given: &TomlValue) -> Result<u64, Refused> {
        let text = given.text(Size::name)?;
        parse_size(text).map_err(|e| given.unparsed(text, Unparsed::Size(e)))
    }

    fn show(value: &u64) -> Option<String> {
        Some(format!("\"{}\"", size::exact(*value)))
    }
}

/// A duration.
pub(super) struct DurationText;

impl DurationText {
    const UNITS: [(&'static str, u64); 5] =
        [("us", 1), ("ms", 1000), ("s", 1_000_000), ("min", 60_000_000), ("h", 3_600_000_000)];
}

impl Type for DurationText {
    type Value = Duration;

    fn name() -> String {
        "a duration in quotes, such as \"100us\"".into()
    }

    fn read(given: &TomlValue) -> Result<Duration, Refused> {
        let text = given.text(DurationText::name)?;
        let digits = text.trim_end_matches(|c: char| !c.is_ascii_digit());
        let unit = text[digits.len()..].trim_start();
        let factor =
            DurationText::UNITS.into_iter().find(|(name, _)| *name == unit).map(|(_, factor)| factor);
        let number = digits.bytes().all(|b| b.is_ascii_digit()).then(|| digits.parse::<u64>().ok()).flatten();
        let micros = number.zip(factor).and_then(|(number, factor)| number.checked_mul(factor));
        micros.map(Duration::from_micros).ok_or_else(|| given.unparsed(text, Unparsed::Duration))
    }

    fn show(value: &Duration) -> Option<String> {
        let micros = value.as_micros();
        let fits = |(_, factor): &&(&str, u64)| micros > 0 && micros.is_multiple_of(u128::from(*factor));
        let (unit, factor) = DurationText::UNITS.iter().rev().find(fits).unwrap_or(&DurationText::UNITS[0]);
        Some(format!("\"{}{unit}\"", micros / u128::from(*factor)))
    }
}

/// A string that is not empty.
pub(super) struct Text;

impl Type for Text {
    type Value = String;

    fn name() -> String {
        "a string".into()
    }

    fn read(given: &TomlValue) -> Result<String, Refused> {
        given.text(Text::name).map(str::to_owned)
    }

    fn show(value: &String) -> Option<String> {
        Some(quoted(value))
    }
}

/// A user or group that has a right on a share.
pub(super) struct Someone;

impl Type for Someone {
    type Value = Principal;

    fn name() -> String {
        "a user, a group (\"@staff\") or everyone (\"*\")".into()
    }

    fn read(given: &TomlValue) -> Result<Principal, Refused> {
        let text = given.text(Someone::name)?;
        text.parse::<Principal>().map_err(|e| given.unparsed(text, Unparsed::Principal(e)))
    }

    fn show(value: &Principal) -> Option<String> {
        Some(quoted(&value.to_string()))
    }
}

/// A path; a relative one refers to the folder of the configuration file.
pub(super) struct FilePath;

impl Type for FilePath {
    type Value = PathBuf;

    fn name() -> String {
        "a path".into()
    }

    fn read(given: &TomlValue) -> Result<PathBuf, Refused> {
        let text = given.text(FilePath::name)?;
        // Somebody may have pasted the content, perhaps a private key: it is not shown.
        if text.starts_with("-----BEGIN") || text.contains(|c: char| c.is_control()) {
            return Err(given.refuse(Fault::Content));
        }
        if text == "~" || text.starts_with("~/") {
            return Err(given.refuse(Fault::Tilde));
        }
        Ok(given.folder.join(text))
    }

    fn show(value: &PathBuf) -> Option<String> {
        Some(quoted(&value.to_string_lossy()))
    }
}

/// Where the admin server listens.
pub(super) struct AdminServer;

impl Type for AdminServer {
    type Value = AdminAddress;

    fn name() -> String {
        "an address with its port, or \"unix:PATH\"".into()
    }

    fn read(given: &TomlValue) -> Result<AdminAddress, Refused> {
        let text = given.text(AdminServer::name)?;
        let address = text.parse::<AdminAddress>().map_err(|e| given.unparsed(text, Unparsed::Admin(e)))?;
        Ok(address.within(given.folder))
    }

    fn show(value: &AdminAddress) -> Option<String> {
        Some(quoted(&value.to_string()))
    }
}

/// Addresses to listen on.
pub(super) struct ListenAddress;

impl Type for ListenAddress {
    type Value = Addresses;

    fn name() -> String {
        "an address or a name of this host".into()
    }

    fn read(given: &TomlValue) -> Result<Addresses, Refused> {
        let text = given.text(ListenAddress::name)?;
        text.parse::<Addresses>().map_err(|e| given.unparsed(text, e.into()))
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
pub(super) struct ClientNetwork;

impl Type for ClientNetwork {
    type Value = Network;

    fn name() -> String {
        "an address or a network, such as \"192.0.2.0/24\"".into()
    }

    fn read(given: &TomlValue) -> Result<Network, Refused> {
        let text = given.text(ClientNetwork::name)?;
        text.parse::<Network>().map_err(|e| given.unparsed(text, Unparsed::Network(e)))
    }

    fn show(value: &Network) -> Option<String> {
        Some(quoted(&value.to_string()))
    }
}

/// A value that may be missing.
pub(super) struct Optional<T>(PhantomData<T>);

impl<T: Type> Type for Optional<T> {
    type Value = Option<T::Value>;

    fn name() -> String {
        T::name()
    }

    fn read(given: &TomlValue) -> Result<Option<T::Value>, Refused> {
        T::read(given).map(Some)
    }

    fn show(value: &Option<T::Value>) -> Option<String> {
        value.as_ref().and_then(T::show)
    }
}

/// An array.
pub(super) struct List<T>(PhantomData<T>);

impl<T: Type> Type for List<T> {
    type Value = Vec<T::Value>;

    fn name() -> String {
        format!("an array, each element {}", T::name())
    }

    fn read(given: &TomlValue) -> Result<Vec<T::Value>, Refused> {
        let list = given.value.get_ref().as_array();
        let list = list.ok_or_else(|| given.of_another_type(List::<T>::name()))?;
        all(list.iter().map(|value| T::read(&given.part(value))))
    }

    fn show(value: &Vec<T::Value>) -> Option<String> {
        let each: Vec<String> = value.iter().filter_map(T::show).collect();
        Some(format!("[{}]", each.join(", ")))
    }
}

/// All values, or everything that is refused in them.
pub(super) fn all<T>(results: impl Iterator<Item = Result<T, Refused>>) -> Result<Vec<T>, Refused> {
    let (mut values, mut refused) = (Vec::new(), Vec::new());
    for result in results {
        match result {
            Ok(value) => values.push(value),
            Err(Refused(parts)) => refused.extend(parts),
        }
    }
    if refused.is_empty() { Ok(values) } else { Err(Refused(refused)) }
}

/// An array with at least one element.
pub(super) struct NonEmpty<T>(PhantomData<T>);

impl<T: Type> Type for NonEmpty<T> {
    type Value = Vec<T::Value>;

    fn name() -> String {
        List::<T>::name()
    }

    fn read(given: &TomlValue) -> Result<Vec<T::Value>, Refused> {
        let values = List::<T>::read(given)?;
        if values.is_empty() { Err(given.refuse(Fault::NoElement)) } else { Ok(values) }
    }

    fn show(values: &Vec<T::Value>) -> Option<String> {
        List::<T>::show(values)
    }
}

/// A table of users by Kerberos principal.
pub(super) struct PrincipalMap;

impl PrincipalMap {
    /// What to write.
    pub(super) fn name() -> String {
        "a table of users, such as { \"HTTP/host@EXAMPLE.ORG\" = \"svc\" }".into()
    }
}

/// DFS links: a table of arrays of targets, by the path of the link in its share.
pub(super) struct DfsLinks;

impl DfsLinks {
    /// What to write.
    pub(super) fn name() -> String {
        "a table of arrays, such as { projects = [\"//nas/projects\"] }".into()
    }
}

/// A type whose values are words.
pub(super) trait Words: Copy + PartialEq + 'static {
    /// The words.
    const WORDS: &'static [(&'static str, Self)];
}

/// One of the words of a type.
pub(super) struct OneOf<T>(PhantomData<T>);

impl<T: Words> Type for OneOf<T> {
    type Value = T;

    fn name() -> String {
        one_of(T::WORDS.iter().map(|(word, _)| *word))
    }

    fn read(given: &TomlValue) -> Result<T, Refused> {
        let text = given.text(OneOf::<T>::name)?;
        let found = T::WORDS.iter().find(|(word, _)| *word == text);
        found
            .map(|(_, value)| *value)
            .ok_or_else(|| given.refuse(Fault::Word { text: text.into(), expected: OneOf::<T>::name() }))
    }

    fn show(value: &T) -> Option<String> {
        T::WORDS.iter().find(|(_, known)| known == value).map(|(word, _)| quoted(word))
    }
}

/// The words in quotes, as alternatives.
fn one_of(words: impl IntoIterator<Item = &'static str>) -> String {
    let quoted: Vec<String> = words.into_iter().map(quoted).collect();
    match &quoted[..] {
        [before @ .., last] if !before.is_empty() => format!("{} or {last}", before.join(", ")),
        all => all.concat(),
    }
}

impl Words for LogFormat {
    const WORDS: &'static [(&'static str, LogFormat)] =
        &[("text", LogFormat::Text), ("json", LogFormat::Json)];
}

impl Words for Wanted {
    const WORDS: &'static [(&'static str, Wanted)] = &Wanted::WORDS;
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
    const WORDS: &'static [(&'static str, Flavor)] = &[
        ("sys", Flavor::Sys),
        ("none", Flavor::None),
        ("krb5", Flavor::Krb5),
        ("krb5i", Flavor::Krb5i),
        ("krb5p", Flavor::Krb5p),
    ];
}

impl Words for Protection {
    const WORDS: &'static [(&'static str, Protection)] =
        &[("none", Protection::None), ("tls", Protection::Tls), ("mtls", Protection::Mutual)];
}
