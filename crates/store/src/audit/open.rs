//! An open file in the audit log: its first WRITE is told, and its bytes when it is closed.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::event::{Event, Fact, Kind, Outcome, Who};
use super::queue::Audit;

/// See the module. Dropping it closes it.
pub struct AuditedOpen {
    audit: Audit,
    share: Arc<str>,
    known: Mutex<Known>,
    /// Whether the open itself was told: then its end is told too.
    told: bool,
    read_bytes: AtomicU64,
    written_bytes: AtomicU64,
    has_written: AtomicBool,
    closed: AtomicBool,
}

/// The last that is known.
struct Known {
    /// See [`AuditedOpen::is_by`].
    who: Who,
    /// See [`AuditedOpen::is_at`].
    path: Vec<u8>,
}

impl AuditedOpen {
    /// An open of this file. With `opened` its creation or opening is told.
    pub fn new(
        audit: Audit,
        who: Who,
        share: Arc<str>,
        path: Vec<u8>,
        opened: Option<(Kind, Vec<Fact>)>,
    ) -> AuditedOpen {
        let open = AuditedOpen::made(audit, who, share, path, opened.is_some());
        if let Some((kind, facts)) = opened {
            open.audit.tell(Event { facts, ..open.event(kind, Outcome::Done) });
        }
        open
    }

    /// An open of an earlier run of the server, which has told it then if it was `told`.
    pub fn restored(audit: Audit, who: Who, share: Arc<str>, path: Vec<u8>, told: bool) -> AuditedOpen {
        AuditedOpen::made(audit, who, share, path, told)
    }

    fn made(audit: Audit, who: Who, share: Arc<str>, path: Vec<u8>, told: bool) -> AuditedOpen {
        AuditedOpen {
            audit,
            share,
            known: Mutex::new(Known { who, path }),
            told,
            read_bytes: AtomicU64::new(0),
            written_bytes: AtomicU64::new(0),
            has_written: AtomicBool::new(false),
            closed: AtomicBool::new(false),
        }
    }

    /// Counts what was read.
    pub fn read(&self, bytes: u64) {
        self.read_bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    /// The file has this path by now. It may have been moved through another open, or with a folder above it, so the
    /// caller looks it up before it tells something. A file without a name keeps the last one.
    pub fn is_at(&self, path: Vec<u8>) {
        self.known().path = path;
    }

    /// Its user continues it over this connection.
    pub fn is_by(&self, who: Who) {
        self.known().who = who;
    }

    /// The path of the next line.
    pub fn at(&self) -> Vec<u8> {
        self.known().path.clone()
    }

    /// Whether it is an open of this user id.
    pub fn is_of(&self, uid: u32) -> bool {
        self.known().who.uid == Some(uid)
    }

    /// Whether the next change is going to be told, with the path.
    pub fn tells_write(&self) -> bool {
        !self.has_written.load(Ordering::Relaxed) && self.audit.wants(Kind::Write)
    }

    /// Whether its end is going to be told, with the path.
    pub fn tells_close(&self) -> bool {
        self.told && !self.closed.load(Ordering::Relaxed) && self.audit.wants(Kind::Close)
    }

    /// Counts what was written; the first change is told.
    pub fn wrote(&self, bytes: u64) {
        self.written_bytes.fetch_add(bytes, Ordering::Relaxed);
        if !self.has_written.load(Ordering::Relaxed) && !self.has_written.swap(true, Ordering::Relaxed) {
            self.audit.tell(self.event(Kind::Write, Outcome::Done));
        }
    }

    /// Tells something else that was done with the file.
    pub fn tell(&self, kind: Kind, outcome: Outcome, facts: Vec<Fact>) {
        self.audit.tell(Event { facts, ..self.event(kind, outcome) });
    }

    /// Tells that the file was moved or linked to this path. If it was moved, the path is its own from now on.
    pub fn tell_name(&self, kind: Kind, outcome: Outcome, to: Vec<u8>, facts: Vec<Fact>) {
        let moved = kind == Kind::Rename && outcome == Outcome::Done;
        let event = self.event(kind, outcome).to(to.clone());
        self.audit.tell(Event { facts, ..event });
        if moved {
            self.known().path = to;
        }
    }

    /// Its end is not told.
    pub fn forget(self) {
        self.closed.store(true, Ordering::Relaxed);
    }

    /// Tells the end and the bytes, once.
    pub fn close(&self) {
        if self.told && !self.closed.swap(true, Ordering::Relaxed) {
            let bytes = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
            let facts = vec![
                Fact::ReadBytes(bytes(&self.read_bytes)),
                Fact::WrittenBytes(bytes(&self.written_bytes)),
            ];
            self.tell(Kind::Close, Outcome::Done, facts);
        }
    }

    fn event(&self, kind: Kind, outcome: Outcome) -> Event {
        let (who, path) = {
            let known = self.known();
            (known.who.clone(), known.path.clone())
        };
        Event::now(kind, outcome, who).in_share(&self.share).on(path)
    }

    fn known(&self) -> MutexGuard<'_, Known> {
        // Each part is only replaced as a whole.
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for AuditedOpen {
    fn drop(&mut self) {
        self.close();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::Receiver;

    use super::super::event::Wanted;
    use super::super::queue::{Message, queue};
    use super::*;

    fn events(receiver: &Receiver<Message>) -> Vec<String> {
        let shown = |message| match message {
            Message::Event(event) => {
                let to = event.to.map_or_else(String::new, |to| format!(" {}", to.escape_ascii()));
                format!("{} {}{to} {:?}", event.kind.name(), event.path.unwrap().escape_ascii(), event.facts)
            }
            _ => "another message".into(),
        };
        receiver.try_iter().map(shown).collect()
    }

    #[test]
    fn an_open_is_told_with_its_first_write_and_its_bytes() {
        let (audit, receiver, _) = queue(64, Wanted::ALL);
        let opened = Some((Kind::Open, vec![Fact::Access(vec!["read", "write"])]));
        let open = AuditedOpen::new(audit, Who::default(), "s".into(), b"a".to_vec(), opened);
        assert_eq!(events(&receiver), ["open a [Access([\"read\", \"write\"])]"]);
        open.read(10);
        assert!(open.tells_write());
        open.wrote(0);
        open.wrote(5);
        open.wrote(6);
        assert_eq!(events(&receiver), ["write a []"]);
        open.tell_name(Kind::Rename, Outcome::Denied("x".into()), b"no".to_vec(), Vec::new());
        open.tell_name(Kind::Rename, Outcome::Done, b"b".to_vec(), vec![Fact::Replaced]);
        assert_eq!(events(&receiver), ["rename a no []", "rename a b [Replaced]"]);
        assert!(open.tells_close() && !open.tells_write());
        open.is_at(b"moved/b".to_vec());
        open.close();
        assert!(!open.tells_close());
        drop(open);
        assert_eq!(events(&receiver), ["close moved/b [ReadBytes(10), WrittenBytes(11)]"]);
    }

    #[test]
    fn a_path_is_not_asked_for_if_nothing_is_told_with_it() {
        let (audit, _receiver, _) = queue(64, Wanted::DENIED);
        let open = AuditedOpen::new(
            audit.clone(),
            Who::default(),
            "s".into(),
            b"a".to_vec(),
            Some((Kind::Open, vec![])),
        );
        assert!(!open.tells_write() && !open.tells_close());
        audit.set_wanted(Wanted::ALL);
        assert!(open.tells_write() && open.tells_close());
    }

    #[test]
    fn an_open_of_an_earlier_run_is_closed_by_the_client_that_is_back() {
        let (audit, receiver, _) = queue(64, Wanted::ALL);
        let who = |client: Option<&str>| Who { client: client.map(Into::into), ..Who::default() };
        for told in [true, false] {
            let open = AuditedOpen::restored(audit.clone(), who(None), "s".into(), b"a".to_vec(), told);
            assert_eq!(events(&receiver), [""; 0], "it is not opened again");
            assert_eq!(open.tells_close(), told);
            open.is_by(who(Some("192.0.2.1:7")));
            open.wrote(3);
            drop(open);
            let told_now: Vec<_> = receiver.try_iter().collect();
            assert_eq!(told_now.len(), if told { 2 } else { 1 });
            for message in told_now {
                let Message::Event(event) = message else { panic!("another message") };
                assert_eq!(event.who.client.as_deref(), Some("192.0.2.1:7"));
            }
        }
    }

    #[test]
    fn an_open_that_was_not_told_is_not_closed_either() {
        let (audit, receiver, _) = queue(64, Wanted::ALL);
        let open = AuditedOpen::new(audit, Who::default(), "s".into(), b"d".to_vec(), None);
        open.tell(Kind::Delete, Outcome::Done, Vec::new());
        drop(open);
        assert_eq!(events(&receiver), ["delete d []"]);
    }
}
