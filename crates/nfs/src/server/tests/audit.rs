//! The audit log of READs and WRITEs, which are told the first time.

use std::time::Duration;

use weft_store::SetAttr;
use weft_store::audit::{Audit, Kind, Rules, Wanted, start};

use super::*;

/// An audit log in a folder of its own.
pub struct Log {
    audit: Audit,
    dir: tempfile::TempDir,
    read: Cell<usize>,
}

impl Log {
    /// The audit log of this server.
    pub fn of(server: &Server, wanted: Wanted) -> Log {
        let dir = tempfile::tempdir().unwrap();
        let audit = start(Rules { file: dir.path().join("audit.jsonl"), wanted }).unwrap();
        server.audit_to(audit.clone());
        Log { audit, dir, read: Cell::new(0) }
    }

    /// The lines since the last call: event, result, share, path.
    pub fn new_lines(&self) -> Vec<String> {
        self.fields(&["event", "result", "share", "path"])
    }

    /// These fields of the lines since the last call.
    pub fn fields(&self, names: &[&str]) -> Vec<String> {
        assert!(self.audit.flush(Duration::from_secs(60)));
        let text = std::fs::read_to_string(self.dir.path().join("audit.jsonl")).unwrap();
        let shown = |line| names.iter().map(|name| field(line, name)).collect::<Vec<_>>().join(" ");
        let lines: Vec<_> = text.lines().skip(self.read.get()).map(shown).collect();
        self.read.set(self.read.get() + lines.len());
        lines
    }
}

fn field<'a>(line: &'a str, name: &str) -> &'a str {
    let Some((_, rest)) = line.split_once(&format!("\"{name}\":")) else { return "-" };
    let (rest, ends) = rest.strip_prefix('"').map_or((rest, &[',', '}'][..]), |text| (text, &['"'][..]));
    rest.split(ends).next().unwrap_or("-")
}

fn set_mode(server: &Server, file: &Handle, mode: u32) {
    let set = SetAttr { uid: Some(2001), gid: Some(3000), mode: Some(mode), ..SetAttr::default() };
    let node = node_of(server, file);
    rt::block_on(async { server.vfs(0).setattr(node, set).await.unwrap() }).unwrap();
}

fn read(server: &Server, file: Handle) -> Status {
    status_of(server, procedure::READ, &ReadArgs { file, offset: 0, count: 1 })
}

fn write(server: &Server, file: Handle) -> Status {
    let head = WriteHead { file, offset: 0, count: 1, stable: Stable::FileSync };
    status_of(server, procedure::WRITE, &WriteArgs { head, data: Bytes::from_static(b"x").into() })
}

#[test]
fn what_was_denied_hides_nothing_that_is_done_and_the_other_way_round() {
    let server = server_where(Policy { decides: true, squash_root: true });
    let file = make(&server, b"f");
    let log = Log::of(&server, Wanted::ALL);
    set_mode(&server, &file, 0o600);
    assert_eq!((read(&server, file), read(&server, file)), (Status::ACCES, Status::ACCES));
    assert_eq!(log.new_lines(), ["open denied ram f"]);
    set_mode(&server, &file, 0o666);
    assert_eq!((read(&server, file), read(&server, file)), (Status::OK, Status::OK));
    assert_eq!(log.new_lines(), ["open ok ram f"]);
    assert_eq!((write(&server, file), write(&server, file)), (Status::OK, Status::OK));
    assert_eq!(log.new_lines(), ["write ok ram f"]);
    set_mode(&server, &file, 0o600);
    assert_eq!((write(&server, file), read(&server, file)), (Status::ACCES, Status::ACCES));
    assert_eq!(log.new_lines(), ["write denied ram f"], "the READ was told an instant ago");
}

#[test]
fn reads_and_writes_that_are_denied_are_told_where_nothing_else_is() {
    let server = server_where(Policy { decides: true, squash_root: true });
    let file = make(&server, b"f");
    let log = Log::of(&server, Wanted::DENIED);
    set_mode(&server, &file, 0o666);
    assert_eq!((read(&server, file), write(&server, file)), (Status::OK, Status::OK));
    set_mode(&server, &file, 0o600);
    assert_eq!((read(&server, file), write(&server, file)), (Status::ACCES, Status::ACCES));
    assert_eq!(log.new_lines(), ["open denied ram f", "write denied ram f"]);
}

#[test]
fn a_rename_that_replaces_a_file_says_so() {
    let server = server();
    let at = |name: &'static [u8]| DirOp { dir: root(&server), name: Name(Bytes::from_static(name)) };
    let file = make(&server, b"f");
    make(&server, b"g");
    let link = LinkArgs { file, link: at(b"other") };
    assert_eq!(status_of(&server, procedure::LINK, &link), Status::OK);
    // Looking for the root connects.
    let log = Log::of(&server, Wanted::of(Kind::Rename));
    let rename = |from, to| {
        let args = RenameArgs { from: at(from), to: at(to) };
        assert_eq!(status_of(&server, procedure::RENAME, &args), Status::OK);
        let mut lines = log.fields(&["event", "path", "to", "replaced"]);
        // Each call of these tests comes by a connection of its own.
        lines.retain(|line| !line.starts_with("connect "));
        lines
    };
    assert_eq!(rename(b"f", b"new"), ["rename f new -"]);
    assert_eq!(rename(b"new", b"g"), ["rename new g true"]);
    // Two names of one file: rename(2) does nothing.
    assert_eq!(rename(b"g", b"other"), ["rename g other -"]);
}
