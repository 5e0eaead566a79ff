//! The events of the audit log, and the choice of those that are told.

use std::sync::Arc;
use std::time::Duration;

use weft_machine::{Source, clock};

/// What was done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// The server was administered, started or stopped.
    Admin,
    /// A user logged on, or tried to.
    Logon,
    /// A session ended.
    Logoff,
    /// A client connected to a share.
    Connect,
    /// A file, directory or link was created.
    Create,
    /// A file was opened.
    Open,
    /// A file was changed: once for each open.
    Write,
    /// An open was closed.
    Close,
    /// A name was removed.
    Delete,
    /// A name was changed.
    Rename,
    /// A file got a further name.
    Link,
    /// Permissions, owner or group were changed.
    Rights,
}

impl Kind {
    /// All of them, in the order of the reference.
    pub const ALL: [Kind; 12] = [
        Kind::Admin,
        Kind::Logon,
        Kind::Logoff,
        Kind::Connect,
        Kind::Create,
        Kind::Open,
        Kind::Write,
        Kind::Close,
        Kind::Delete,
        Kind::Rename,
        Kind::Link,
        Kind::Rights,
    ];

    /// The value of the field `event`.
    pub fn name(self) -> &'static str {
        match self {
            Kind::Admin => "admin",
            Kind::Logon => "logon",
            Kind::Logoff => "logoff",
            Kind::Connect => "connect",
            Kind::Create => "create",
            Kind::Open => "open",
            Kind::Write => "write",
            Kind::Close => "close",
            Kind::Delete => "delete",
            Kind::Rename => "rename",
            Kind::Link => "link",
            Kind::Rights => "rights",
        }
    }
}

/// How it ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It was done.
    Done,
    /// The user may not do it; with the protocol's status.
    Denied(String),
    /// It failed for another reason.
    Failed(String),
}

/// Who did it, and from where.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Who {
    /// The user's name, if the protocol has names.
    pub user: Option<Arc<str>>,
    /// The user's SID.
    pub sid: Option<Arc<str>>,
    /// The user's id on this host or, over NFS, the one that the client claims.
    pub uid: Option<u32>,
    /// The client's address with its port.
    pub client: Option<Arc<str>>,
    /// The client as limits count it; `None` for the server's own commands.
    pub source: Option<Source>,
    /// "smb", "nfs3", "nfs4"; `None` for the server's own commands.
    pub protocol: Option<&'static str>,
    /// "tcp", "smb-direct" and so on, as in the metrics.
    pub transport: Option<&'static str>,
}

/// A further field of an event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fact {
    /// What was created: "file", "directory", "symlink", "special".
    Object(&'static str),
    /// The access of an open.
    Access(Vec<&'static str>),
    /// What was changed: "mode", "owner", "group", "acl".
    Changes(Vec<&'static str>),
    /// A rename or link has replaced another object, whose name is gone.
    Replaced,
    /// Bytes that were read through an open.
    ReadBytes(u64),
    /// Bytes that were written through it.
    WrittenBytes(u64),
    /// Why a log-on was refused.
    Reason(String),
    /// What an administrator did.
    Command(String),
    /// What came with it.
    Added(Vec<String>),
    /// What went with it.
    Removed(Vec<String>),
    /// What was changed by it.
    Changed(Vec<String>),
    /// The client's text is longer than a refusal tells.
    Cut,
}

/// One event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// When, since 1970.
    pub at: Duration,
    /// What was done, and to what.
    pub kind: Kind,
    /// How it ended.
    pub outcome: Outcome,
    /// By whom.
    pub who: Who,
    /// In which share.
    pub share: Option<Arc<str>>,
    /// The file's path in the share, without a leading slash. Not always UTF-8.
    pub path: Option<Vec<u8>>,
    /// The new path of a RENAME, or the new name of a LINK.
    pub to: Option<Vec<u8>>,
    /// Further fields.
    pub facts: Vec<Fact>,
}

impl Event {
    /// An event that has just happened.
    pub fn now(kind: Kind, outcome: Outcome, who: Who) -> Event {
        Event { at: clock::wall(), kind, outcome, who, share: None, path: None, to: None, facts: Vec::new() }
    }

    /// In this share.
    #[must_use]
    pub fn in_share(self, share: &Arc<str>) -> Event {
        Event { share: Some(share.clone()), ..self }
    }

    /// On the file with this path.
    #[must_use]
    pub fn on(self, path: Vec<u8>) -> Event {
        Event { path: Some(path), ..self }
    }

    /// With a second path.
    #[must_use]
    pub fn to(self, to: Vec<u8>) -> Event {
        Event { to: Some(to), ..self }
    }

    /// With a further field.
    #[must_use]
    pub fn with(mut self, fact: Fact) -> Event {
        self.facts.push(fact);
        self
    }

    /// About the memory that it occupies.
    pub(super) fn bytes(&self) -> usize {
        let text = |text: &Option<Arc<str>>| text.as_ref().map_or(0, |text| text.len());
        let path = |path: &Option<Vec<u8>>| path.as_ref().map_or(0, Vec::capacity);
        let list = |list: &Vec<String>| list.iter().map(String::capacity).sum();
        let fact = |fact: &Fact| match fact {
            Fact::Reason(text) | Fact::Command(text) => text.capacity(),
            Fact::Added(names) | Fact::Removed(names) | Fact::Changed(names) => list(names),
            _ => 0,
        };
        let facts: usize = self.facts.iter().map(fact).sum();
        let names = path(&self.path).saturating_add(path(&self.to));
        let who =
            text(&self.who.user).saturating_add(text(&self.who.sid)).saturating_add(text(&self.who.client));
        size_of::<Event>().saturating_add(facts).saturating_add(names).saturating_add(who)
    }
}

/// The bit of [`Wanted`] for what was denied, whatever it was.
const DENIED: u32 = 1 << 31;

/// Which events are told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wanted(u32);

impl Wanted {
    /// All of them.
    pub const ALL: Wanted = Wanted(u32::MAX);
    /// None of them.
    pub const NONE: Wanted = Wanted(0);
    /// What was denied, whatever it was.
    pub const DENIED: Wanted = Wanted(DENIED);

    /// The names that a configuration has for events.
    pub const WORDS: [(&'static str, Wanted); 13] = [
        ("admin", Wanted::of(Kind::Admin)),
        ("logon", Wanted::of(Kind::Logon)),
        ("logoff", Wanted::of(Kind::Logoff)),
        ("connect", Wanted::of(Kind::Connect)),
        ("create", Wanted::of(Kind::Create)),
        ("open", Wanted::of(Kind::Open)),
        ("write", Wanted::of(Kind::Write)),
        ("close", Wanted::of(Kind::Close)),
        ("delete", Wanted::of(Kind::Delete)),
        ("rename", Wanted::of(Kind::Rename)),
        ("link", Wanted::of(Kind::Link)),
        ("rights", Wanted::of(Kind::Rights)),
        ("denied", Wanted::DENIED),
    ];

    /// The events of this kind.
    pub const fn of(kind: Kind) -> Wanted {
        Wanted(1 << kind as u32)
    }

    /// Each of the names by itself.
    pub fn each() -> impl Iterator<Item = Wanted> {
        Wanted::WORDS.into_iter().map(|(_, wanted)| wanted)
    }

    /// Whether it contains the other.
    pub fn contains(self, other: Wanted) -> bool {
        self.0 & other.0 == other.0
    }

    pub(super) fn from_bits(bits: u32) -> Wanted {
        Wanted(bits)
    }

    pub(super) fn bits(self) -> u32 {
        self.0
    }

    /// The events of both.
    #[must_use]
    pub fn and(self, other: Wanted) -> Wanted {
        Wanted(self.0 | other.0)
    }

    /// Whether an event of this kind is told if it is done.
    pub fn has(self, kind: Kind) -> bool {
        self.0 & 1 << kind as u32 != 0
    }

    /// Whether an event of this kind is told if it is denied, which is also told if it is done.
    pub fn may_take(self, kind: Kind) -> bool {
        self.has(kind) || self.0 & DENIED != 0
    }

    /// Whether an event is told.
    pub(super) fn takes(self, kind: Kind, outcome: &Outcome) -> bool {
        self.has(kind) || matches!(outcome, Outcome::Denied(_)) && self.may_take(kind)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_are_chosen_by_name_and_denials_also_together() {
        let wanted = Wanted::of(Kind::Delete);
        let denied = Outcome::Denied("STATUS_ACCESS_DENIED".into());
        assert!(wanted.takes(Kind::Delete, &Outcome::Done) && wanted.takes(Kind::Delete, &denied));
        assert!(!wanted.takes(Kind::Open, &denied));
        let both = wanted.and(Wanted::DENIED);
        assert!(both.takes(Kind::Open, &denied) && !both.takes(Kind::Open, &Outcome::Done));
        assert_eq!(Wanted::each().filter(|one| both.contains(*one)).count(), 2);
        assert!(Wanted::each().all(|one| Wanted::ALL.contains(one)));
        for kind in Kind::ALL {
            assert!(Wanted::WORDS.contains(&(kind.name(), Wanted::of(kind))), "{}", kind.name());
        }
    }
}
