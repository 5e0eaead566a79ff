//! Prints the table of keys for users: the reference, an example file, and the values of a configuration with their
//! sources.

use std::fmt::Write;

use serde::ser::Error as _;
use serde::{Serialize, Serializer};

use super::key::{Key, Origin, part};
use super::row::{Field, Row, TakesEffect};
use super::table::{ONE_OF_THREE, ROWS};
use super::{ServeConfig, ShareConfig};
use crate::out::path_name;

/// Columns of the example file.
const WIDTH: usize = 100;

/// The reference, as Markdown: one table of keys per table of a file.
pub(crate) fn markdown() -> String {
    let mut text = String::new();
    let mut section: Option<String> = None;
    for row in ROWS {
        let (table, key) = row.table_and_key();
        if section.as_ref() != Some(&table) {
            let title = if table.is_empty() { "At the top".to_owned() } else { format!("`[{table}]`") };
            let gap = if section.is_some() { "\n" } else { "" };
            // Writing to a string does not fail.
            let _ = writeln!(
                text,
                "{gap}### {title}\n\n| key | value | default | option | takes effect | meaning |\n|---|---|---|---|---|---|"
            );
            section = Some(table);
        }
        let default = match row.has_value_by_default() {
            true => format!("`{}`", row.default),
            false => row.default.to_owned(),
        };
        let options: Vec<String> = row.options.iter().map(|option| format!("`{option}`")).collect();
        let _ = writeln!(
            text,
            "| `{key}` | {} | {default} | {} | {} | {} |",
            (row.kind)(),
            options.join(", "),
            row.takes_effect.shown(),
            row.meaning
        );
    }
    text
}

/// A file that shows every key in a comment.
pub(crate) fn example() -> String {
    let mut text = String::from(
        "# Configuration of `weft serve`. Every key is shown with an example. To set one, remove the # before it\n\
         # and before the [table] above it.\n\
         # `weft config check FILE` reports every error, `weft config show` prints the effective values, and\n\
         # `weft config reference` describes the keys. An option of `weft serve` overrides its key.\n\n",
    );
    let mut section = String::new();
    for row in ROWS {
        let (table, key) = row.table_and_key();
        if section != table {
            let _ = writeln!(text, "\n#[{}]", table.replace("NAME", row.example_name()));
            section = table;
        }
        for line in wrapped(row.meaning) {
            let _ = writeln!(text, "# {line}");
        }
        let _ = writeln!(text, "# Default: {}", row.default);
        let _ = writeln!(text, "#{key} = {}", row.example);
    }
    text
}

/// The text in lines of at most `WIDTH` columns, including the two of the comment sign.
fn wrapped(text: &str) -> Vec<String> {
    let mut lines = vec![String::new()];
    for word in text.split(' ') {
        match lines.last_mut() {
            Some(line) if line.is_empty() => line.push_str(word),
            Some(line) if line.len() + 1 + word.len() <= WIDTH - 2 => {
                line.push(' ');
                line.push_str(word);
            }
            _ => lines.push(word.to_owned()),
        }
    }
    lines
}

/// An effective value.
#[derive(Serialize, Debug, PartialEq, Eq)]
pub(crate) struct Effective {
    /// The path of the key.
    pub key: String,
    /// The value as written in a file; `None` if it is not set.
    #[serde(serialize_with = "as_json")]
    pub value: Option<String>,
    /// Its origin: "default", an option, or FILE:LINE:COLUMN.
    pub origin: String,
    /// What applies if it is not set.
    #[serde(skip)]
    pub otherwise: &'static str,
    /// The share that the key is about.
    #[serde(skip)]
    pub share: Option<String>,
    /// Whether it is the value that a missing key has.
    #[serde(skip)]
    pub is_default: bool,
    /// When a running server uses a new value.
    #[serde(skip)]
    pub takes_effect: TakesEffect,
}

impl Effective {
    /// Whether the key says where the files of a share are.
    pub(crate) fn is_source(&self) -> bool {
        self.otherwise == ONE_OF_THREE
    }
}

/// A value of a file as one of JSON.
fn as_json<S: Serializer>(value: &Option<String>, serializer: S) -> Result<S::Ok, S::Error> {
    let parse = |text: &String| format!("value = {text}").parse::<toml::Table>();
    let table = value.as_ref().map(parse).transpose().map_err(S::Error::custom)?;
    table.and_then(|mut table| table.remove("value")).serialize(serializer)
}

/// Every value of a configuration, with its source.
pub(crate) fn effective(config: &ServeConfig) -> Vec<Effective> {
    let mut all = Vec::new();
    for row in ROWS {
        if let Field::Server { get, .. } = row.field {
            all.push(row.effective(config, row.path.to_owned(), get(config), None));
        }
    }
    for volume in &config.volumes {
        for row in ROWS {
            let Field::Volume { get, .. } = row.field else { continue };
            let flag = Key::of_volume_read_only(&volume.name).at(Origin::Flags).into_owned();
            let path = row.path.replace('*', &part(&volume.name));
            all.push(row.effective(config, path, get(volume), Some(&flag)));
        }
    }
    for share in &config.shares {
        let value = |row: &Row| match row.field {
            Field::Share { get, .. } => Some((row.path.replace('*', &part(&share.name)), get(share))),
            Field::Server { .. } | Field::Volume { .. } => None,
        };
        let flag = share.key().at(Origin::Flags).into_owned();
        for row in ROWS {
            let Some((path, value)) = value(row) else { continue };
            // A share has only one of the three sources of files.
            if value.is_some() || row.default != ONE_OF_THREE {
                let one = row.effective(config, path, value, Some(&flag_of(row, share, &flag)));
                all.push(Effective { share: Some(share.name.clone()), ..one });
            }
        }
    }
    all
}

/// The option that gives a share this value, with the name of the share.
fn flag_of(row: &Row, share: &ShareConfig, of_source: &str) -> String {
    match row.options.first() {
        Some(option) if row.default != ONE_OF_THREE => format!("{option} {}", share.name),
        _ => of_source.to_owned(),
    }
}

impl Row {
    /// The table and the key in it.
    fn table_and_key(&self) -> (String, &'static str) {
        match self.path.rsplit_once('.') {
            Some((table, key)) => (table.replace('*', "NAME"), key),
            None => (String::new(), self.path),
        }
    }

    /// An example of a name that users choose.
    fn example_name(&self) -> &'static str {
        if self.path.starts_with("volumes") { "vol1" } else { "data" }
    }

    /// Whether the default is a value, not a description.
    fn has_value_by_default(&self) -> bool {
        toml::de::DeValue::parse(self.default).is_ok()
    }

    fn effective(
        &self,
        config: &ServeConfig,
        path: String,
        value: Option<String>,
        flag: Option<&str>,
    ) -> Effective {
        let sources = &config.sources;
        let from_file = sources.file().zip(sources.position(&path));
        let is_default = value == self.value_by_default();
        let typed = || match flag {
            // One option sets several keys, and names only some of them.
            Some(_) if self.options == ["--export"] && !sources.is_overridden(&path) => None,
            Some(flag) => Some(flag).filter(|flag| sources.is_typed(flag)),
            None => self.options.iter().copied().find(|option| sources.is_typed(option)),
        };
        let origin = match from_file {
            Some((file, at)) => format!("{}:{at}", path_name(file)),
            None => match typed() {
                Some(option) => sources.shown(option).to_owned(),
                // Without a file, the options are the only source.
                None if sources.file().is_none() && !is_default => {
                    sources.shown(flag.or(self.options.first().copied()).unwrap_or_default()).to_owned()
                }
                None => "default".to_owned(),
            },
        };
        let (otherwise, takes_effect) = (self.default, self.takes_effect);
        Effective { key: path, value, origin, otherwise, share: None, is_default, takes_effect }
    }

    /// The value by default.
    fn value_by_default(&self) -> Option<String> {
        match self.field {
            Field::Server { get, .. } => get(&super::ServeConfig::default()),
            Field::Volume { get, .. } => get(&super::VolumeConfig { name: String::new(), read_only: false }),
            Field::Share { get, .. } => get(&ShareConfig::new("", super::ShareSource::Volumes)),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use clap::CommandFactory;

    use super::super::file::parse;
    use super::*;
    use crate::args::Args;
    use crate::default_port;

    const DOCUMENT: &str = include_str!("../../../../docs/configuration.md");
    const BEGIN: &str = "<!-- generated by `weft config reference` -->\n\n";
    const END: &str = "\n<!-- end of the generated part -->";

    #[test]
    fn the_reference_is_the_table() {
        let (_, rest) = DOCUMENT.split_once(BEGIN).unwrap();
        let (section, _) = rest.split_once(END).unwrap();
        assert!(
            section == markdown(),
            "docs/configuration.md differs from the table: insert the output of `weft config reference`"
        );
    }

    #[test]
    fn the_default_of_every_key_is_that_of_the_configuration() {
        for row in ROWS.iter().filter(|row| row.default != ONE_OF_THREE) {
            match row.path {
                _ if row.has_value_by_default() && row.value_by_default().is_some() => {
                    assert_eq!(row.value_by_default().as_deref(), Some(row.default), "{}", row.path);
                }
                // The server chooses it.
                path => assert_eq!(row.value_by_default(), None, "{path}"),
            }
        }
    }

    /// Options without a key, and why.
    const WITHOUT_KEY: [(&str, &str); 3] = [
        ("--config", "it names the file"),
        ("--json", "it is about the output of one run"),
        ("--verbose", "it is about the log of one run; WEFT_LOG sets it for a service"),
    ];

    #[test]
    fn every_option_of_a_server_has_a_key() {
        let command = Args::command();
        let serve = command.find_subcommand("serve").unwrap();
        let mut options: Vec<String> = serve
            .get_opts()
            .chain(command.get_opts())
            .filter(|arg| !arg.is_hide_set())
            .filter_map(|arg| arg.get_long())
            .map(|long| format!("--{long}"))
            .collect();
        options.push("DIR".into());
        for option in &options {
            let has_key = ROWS.iter().any(|row| row.options.contains(&option.as_str()));
            let excepted = WITHOUT_KEY.iter().any(|(known, _)| known == option);
            assert!(
                has_key != excepted,
                "{option}: {}",
                if has_key { "has a key after all" } else { "no key" }
            );
        }
        for option in ROWS.iter().flat_map(|row| row.options) {
            assert!(options.iter().any(|known| known == option), "no option {option}");
        }
    }

    #[test]
    fn every_example_is_read_and_shown_as_it_was_written() {
        for row in ROWS {
            let path = row.path.replace('*', row.example_name());
            let mut text = format!("{path} = {}\n", row.example);
            if row.path.starts_with("shares") && row.default != ONE_OF_THREE {
                text += "shares.data.volumes = true\n";
            }
            let config =
                parse(Path::new("/etc/weft/weft.toml"), &text).unwrap_or_else(|e| panic!("{text}: {e}"));
            let found = effective(&config).into_iter().find(|one| one.key == path);
            let found = found.unwrap_or_else(|| panic!("{path} is not shown"));
            assert_eq!(found.value.as_deref(), Some(row.example), "{path}");
            assert_eq!(found.origin, "/etc/weft/weft.toml:1:".to_owned() + &column(&path), "{path}");
        }
    }

    #[test]
    fn the_examples_of_ports_are_the_standard_ones() {
        for (path, port) in [
            ("listeners.smb_port", default_port::SMB),
            ("listeners.smb_direct_port", default_port::SMB_DIRECT),
            ("listeners.nfs_port", default_port::NFS),
            ("listeners.nfs_rdma_port", default_port::NFS_RDMA),
            ("listeners.nbd_port", default_port::NBD),
        ] {
            let row = ROWS.iter().find(|row| row.path == path).unwrap();
            assert_eq!(row.example, port.to_string(), "{path}");
        }
    }

    /// The column of the last part of a path.
    fn column(path: &str) -> String {
        (path.rfind('.').map_or(0, |dot| dot + 1) + 1).to_string()
    }

    #[test]
    fn the_example_is_a_configuration_with_and_without_its_comments() {
        let text = example();
        let comments = parse(Path::new("weft.toml"), &text).unwrap();
        assert_eq!(comments.limits, Default::default());
        // Only one of the three sources of files.
        let ours = |line: &&str| !line.starts_with("#ram =") && !line.starts_with("#volumes =");
        let shown = |line: &str| match line.strip_prefix('#').filter(|rest| !rest.starts_with(' ')) {
            Some(rest) => format!("{rest}\n"),
            None => format!("{line}\n"),
        };
        let all: String = text.lines().filter(ours).map(shown).collect();
        let all = parse(Path::new("weft.toml"), &all).unwrap_or_else(|e| panic!("{e}\n{all}"));
        assert_eq!(all.shares.len(), 1);
        assert_eq!(all.listeners.smb_port, 445);
        assert!(text.lines().all(|line| line.chars().count() <= WIDTH + 20), "{text}");
    }

    #[test]
    fn a_value_in_json_has_the_type_that_it_has_in_the_file() {
        let text = "[limits]\ncores = 2\n[shares.a]\nram = \"1M\"\ndfs_links = { x = [\"//h/s\"] }\n";
        let all = effective(&parse(Path::new("weft.toml"), text).unwrap());
        let json = serde_json::to_value(&all).unwrap();
        let value = |key: &str| {
            let found = json.as_array().unwrap().iter().find(|one| one["key"] == key);
            found.unwrap_or_else(|| panic!("{key}"))["value"].clone()
        };
        assert_eq!(value("limits.cores"), 2);
        assert_eq!(value("limits.pin"), false);
        assert_eq!(value("limits.buffers"), "1G");
        assert_eq!(value("listeners.nfs_port"), serde_json::Value::Null);
        assert_eq!(value("listeners.addresses"), serde_json::json!(["localhost"]));
        assert_eq!(value("shares.a.dfs_links"), serde_json::json!({ "x": ["//h/s"] }));
    }

    #[test]
    fn every_value_is_shown_with_its_source() {
        let text = "[limits]\ncores = 2\npin = true\n[shares.a]\nram = \"1M\"\n\
                    [volumes]\nv = { read_only = true }\nw = {}\n";
        let mut config = parse(Path::new("weft.toml"), text).unwrap();
        let sources = config.sources_mut();
        sources.overridden_key(&Key::of_volume_read_only("w"));
        sources.overridden("--cores", ["limits.cores"]);
        sources.overridden("--read-only a", ["shares.a.read_only"]);
        let all = effective(&config);
        let origin = |key: &str| all.iter().find(|one| one.key == key).map(|one| one.origin.as_str());
        assert_eq!(origin("limits.cores"), Some("--cores"));
        assert_eq!(origin("limits.pin"), Some("weft.toml:3:1"));
        assert_eq!(origin("limits.spin"), Some("default"));
        assert_eq!(origin("shares.a.ram"), Some("weft.toml:5:1"));
        assert_eq!(origin("shares.a.read_only"), Some("--read-only a"));
        assert_eq!(origin("shares.a.path"), None);
        assert_eq!(origin("volumes.v.read_only"), Some("weft.toml:7:7"));
        assert_eq!(origin("volumes.w.read_only"), Some("--nbd-read-only"));
    }
}
