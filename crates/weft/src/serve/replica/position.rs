//! What a side of a group has: its role, its epoch and its last record.
//!
//! It is the answer to [`Ask::Holds`]; versions of it that lack a field are understood.
//!
//! [`Ask::Holds`]: super::setup::Ask::Holds

use serde::{Deserialize, Serialize};

use crate::out::Said;

/// The answer of a side of a group.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
#[serde(from = "Message", into = "Message")]
pub(super) struct Holds {
    /// Its role and what it has.
    pub part: Part,
    /// What it knows another side to have, because it was set back.
    pub known: Option<RemotePosition>,
    /// What it has as a copy, if it is one.
    pub copy: Option<Standing>,
}

/// The role of a side, with the epoch and last record of its data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Part {
    /// The source, which accepts writes.
    Source { epoch: u64, last: u64 },
    /// A copy that could be promoted.
    Copy { epoch: u64, last: u64 },
    /// A former source that is stopped or being opened.
    Stopped { epoch: u64, last: u64 },
    /// It has no usable data and does not report its role.
    Nothing,
    /// The server does not know the partnership.
    Unknown,
    /// The server does not know the partnership any more: its source has ended it.
    Ended,
}

/// What a side knows another one to have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct RemotePosition {
    /// Its epoch; `None` from a server of an older version.
    pub epoch: Option<u64>,
    /// The last record.
    pub last: u64,
    /// That side's host.
    pub holder: Said,
}

impl Part {
    /// The epoch and last record; zeros, less than any real position, for a side that has nothing.
    pub fn has(self) -> (u64, u64) {
        match self {
            Part::Source { epoch, last } | Part::Copy { epoch, last } | Part::Stopped { epoch, last } => {
                (epoch, last)
            }
            Part::Nothing | Part::Unknown | Part::Ended => (0, 0),
        }
    }

    /// Whether the server answers that there is no such partnership.
    pub fn is_unknown(self) -> bool {
        matches!(self, Part::Unknown | Part::Ended)
    }
}

impl From<Part> for Holds {
    fn from(part: Part) -> Holds {
        Holds { part, known: None, copy: None }
    }
}

/// [`Holds`] on the wire. An older version sends neither `part` nor `known_epoch`.
#[derive(Serialize, Deserialize, Default)]
#[serde(default)]
struct Message {
    #[serde(skip_serializing_if = "Option::is_none")]
    part: Option<Word>,
    epoch: u64,
    last: u64,
    source: bool,
    known: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    known_epoch: Option<u64>,
    holder: Said,
    copy: Option<Standing>,
}

#[derive(Serialize, Deserialize, Clone, Copy)]
#[serde(rename_all = "kebab-case")]
enum Word {
    Source,
    Copy,
    Stopped,
    Unknown,
    Ended,
    #[serde(other)]
    Nothing,
}

impl From<Message> for Holds {
    fn from(message: Message) -> Holds {
        let Message { epoch, last, .. } = message;
        // An older version reports a stopped source as no source, and zeros if it has nothing or does not know the
        // partnership.
        let word = message.part.unwrap_or(match (message.source, epoch) {
            (true, _) => Word::Source,
            (false, 0) => Word::Nothing,
            (false, _) => Word::Copy,
        });
        let part = match word {
            Word::Source => Part::Source { epoch, last },
            Word::Copy => Part::Copy { epoch, last },
            Word::Stopped => Part::Stopped { epoch, last },
            Word::Nothing => Part::Nothing,
            Word::Unknown => Part::Unknown,
            Word::Ended => Part::Ended,
        };
        let known =
            RemotePosition { epoch: message.known_epoch, last: message.known, holder: message.holder };
        Holds { part, known: (known.last > 0).then_some(known), copy: message.copy }
    }
}

impl From<Holds> for Message {
    fn from(Holds { part, known, copy }: Holds) -> Message {
        let word = match part {
            Part::Source { .. } => Word::Source,
            Part::Copy { .. } => Word::Copy,
            Part::Stopped { .. } => Word::Stopped,
            Part::Nothing => Word::Nothing,
            Part::Unknown => Word::Unknown,
            Part::Ended => Word::Ended,
        };
        let (epoch, last) = part.has();
        let source = matches!(part, Part::Source { .. });
        let (known, known_epoch, holder) =
            known.map_or((0, None, Said::default()), |known| (known.last, known.epoch, known.holder));
        Message { part: Some(word), epoch, last, source, known, known_epoch, holder, copy }
    }
}

/// What a copy has. The greater value is the better source.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Standing {
    /// Whether it is consistent: a state that a source once had.
    pub whole: bool,
    /// The epoch of that state.
    pub epoch: u64,
    /// Its last record.
    pub last: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(message: &str) -> Holds {
        serde_json::from_str(message).unwrap()
    }

    #[test]
    fn what_a_side_has_is_understood_by_and_from_the_version_before() {
        let (epoch, last) = (3, 17);
        for part in [
            Part::Source { epoch, last },
            Part::Copy { epoch, last },
            Part::Stopped { epoch, last },
            Part::Nothing,
            Part::Unknown,
            Part::Ended,
        ] {
            let known = Some(RemotePosition { epoch: Some(2), last: 9, holder: "c".to_owned().into() });
            let holds = Holds { part, known, copy: None };
            assert_eq!(parsed(&serde_json::to_string(&holds).unwrap()), holds);
        }
        let old = serde_json::to_value(Holds::from(Part::Source { epoch, last })).unwrap();
        assert_eq!((&old["epoch"], &old["last"], &old["source"]), (&3.into(), &17.into(), &true.into()));
        let from =
            |source, epoch| parsed(&format!(r#"{{"epoch":{epoch},"last":17,"source":{source},"known":4}}"#));
        assert_eq!(from(true, 3).part, Part::Source { epoch, last });
        assert_eq!(from(false, 3).part, Part::Copy { epoch, last });
        assert_eq!(from(false, 0).part, Part::Nothing);
        assert_eq!(
            from(false, 3).known,
            Some(RemotePosition { epoch: None, last: 4, holder: Said::default() })
        );
        assert_eq!(parsed(r#"{"part":"a later one"}"#).part, Part::Nothing);
    }
}
