//! A row of the table of keys: its type, default, options, meaning, and access to its value.

use super::types::{Refused, TomlValue};
use super::{ServeConfig, ShareConfig, VolumeConfig};

/// A key.
pub(super) struct Row {
    /// Its path; `*` is a name that the user chooses.
    pub path: &'static str,
    /// When a running server uses a new value.
    pub takes_effect: TakesEffect,
    /// What to write: its type, in words.
    pub kind: fn() -> String,
    /// The options of `weft serve` that set it.
    pub options: &'static [&'static str],
    /// The default, as written in a file, or in words.
    pub default: &'static str,
    /// A value for the example.
    pub example: &'static str,
    /// The meaning, in one line.
    pub meaning: &'static str,
    /// Access to the value.
    pub field: Field,
}

/// When a running server uses the new value of a key. A share that comes or goes does so at a reload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TakesEffect {
    /// As soon as it reads its configuration again.
    Reload,
    /// After a restart.
    Restart,
}

impl TakesEffect {
    /// The words of the reference.
    pub(super) fn shown(self) -> &'static str {
        match self {
            TakesEffect::Reload => "at reload",
            TakesEffect::Restart => "after a restart",
        }
    }
}

/// Access to the value of a key. The getter returns it as written in a file, or `None` if it is not set.
pub(super) enum Field {
    /// Of the server.
    Server {
        set: fn(&mut ServeConfig, &TomlValue) -> Result<(), Refused>,
        get: fn(&ServeConfig) -> Option<String>,
    },
    /// Of one volume.
    Volume {
        set: fn(&mut VolumeConfig, &TomlValue) -> Result<(), Refused>,
        get: fn(&VolumeConfig) -> Option<String>,
    },
    /// Of one share.
    Share {
        set: fn(&mut ShareConfig, &TomlValue) -> Result<(), Refused>,
        get: fn(&ShareConfig) -> Option<String>,
    },
}

/// A row whose value is a field of the configuration.
macro_rules! field {
    ($of:ident, $takes_effect:ident, $path:literal, $type:ty, $options:expr, $default:expr, $example:literal, $meaning:literal,
     |$config:ident| $place:expr) => {
        Row {
            path: $path,
            takes_effect: TakesEffect::$takes_effect,
            kind: <$type as Type>::name,
            options: &$options,
            default: $default,
            example: $example,
            meaning: $meaning,
            field: Field::$of {
                set: |$config, given| {
                    $place = <$type>::read(given)?;
                    Ok(())
                },
                get: |$config| <$type>::show(&$place),
            },
        }
    };
}

/// A row whose value is converted to and from its field.
macro_rules! converted {
    ($of:ident, $takes_effect:ident, $path:literal, $type:ty, $options:expr, $default:expr, $example:literal, $meaning:literal,
     set |$to:ident, $value:ident| $store:expr, get |$from:ident| $load:expr) => {
        Row {
            path: $path,
            takes_effect: TakesEffect::$takes_effect,
            kind: <$type as Type>::name,
            options: &$options,
            default: $default,
            example: $example,
            meaning: $meaning,
            field: Field::$of {
                set: |$to, given| {
                    let $value = <$type>::read(given)?;
                    $store;
                    Ok(())
                },
                get: |$from| <$type>::show(&$load),
            },
        }
    };
}

pub(super) use {converted, field};
