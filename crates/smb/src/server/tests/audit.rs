//! The audit log: paths at the time of the act, names that replace others, reparse points, log-ons on further channels
//! and again, and the status of those that are refused.

use std::cell::Cell;
use std::io;
use std::time::Duration;

use futures_util::future::LocalBoxFuture;
use weft_store::audit::{Audit, Rules, Wanted, start};
use weft_store::backend::ram::Ram;
use weft_store::vfs::{Backend, Caller, DirName, Error, NodeId, Op, Outcome, Share, Vfs};
use weft_wire::security::SecurityDescriptor;
use weft_wire::smb2::access::AccessMask;
use weft_wire::smb2::create::{self, CreateOptions};
use weft_wire::smb2::fscc::FileClass;
use weft_wire::smb2::fscc::file::{Disposition, EndOfFile, Rename};
use weft_wire::smb2::ioctl::CtlCode;
use weft_wire::smb2::query_info::{InfoType, SecurityInformation};
use weft_wire::smb2::{Command, FileId, NtStatus, ioctl, set_info};

use super::harness::*;
use crate::crypto::{Role, SessionKeys};

/// A server with an audit log, and its files as another protocol sees them.
struct Audited {
    world: World,
    vfs: Vfs,
    audit: Audit,
    dir: tempfile::TempDir,
    read: Cell<usize>,
}

impl Audited {
    fn new() -> Audited {
        Audited::with(Wanted::ALL)
    }

    fn with(wanted: Wanted) -> Audited {
        Audited::on(Ram::new(64 << 20), wanted)
    }

    fn on(files: impl Backend + 'static, wanted: Wanted) -> Audited {
        let dir = tempfile::tempdir().unwrap();
        let audit = start(Rules { file: dir.path().join("audit.jsonl"), wanted }).unwrap();
        let vfs = Vfs::new(files);
        let world = World::with(|config| {
            config.shares = vec![Share::new("Data", vfs.clone())];
            config.offers.audit = audit.clone();
            config.multichannel = true;
        });
        Audited { world, vfs, audit, dir, read: Cell::new(0) }
    }

    /// A client who signs. What its log-on has told is not looked at.
    async fn client(&self, guid: u8, user: &str) -> Client {
        let mut client = self.world.connect();
        client.negotiate(Offer { guid: [guid; 16], ..Offer::default() }).await;
        client.log_on(user, PASSWORD).await.unwrap();
        client.sign = true;
        client.tree().await;
        self.new_lines(&[]);
        client
    }

    /// Renames as another protocol does.
    async fn rename(&self, from: &str, to: &str) {
        let name = |name| DirName { dir: NodeId::ROOT, name };
        self.vfs.rename(name(from.as_bytes()), name(to.as_bytes()), false).await.unwrap();
    }

    /// These fields of the lines since the last call; those that a line lacks are left out.
    fn new_lines(&self, fields: &[&str]) -> Vec<String> {
        assert!(self.audit.flush(Duration::from_secs(60)));
        let text = std::fs::read_to_string(self.dir.path().join("audit.jsonl")).unwrap();
        let field = |line: &str, name: &str| {
            let (_, rest) = line.split_once(&format!("\"{name}\":"))?;
            match rest.strip_prefix('"') {
                Some(text) => text.split('"').next().map(str::to_owned),
                None => rest.split([',', '}']).next().map(|value| format!("{name}={value}")),
            }
        };
        let shown =
            |line: &str| fields.iter().filter_map(|name| field(line, name)).collect::<Vec<_>>().join(" ");
        let lines: Vec<_> = text.lines().skip(self.read.get()).map(shown).collect();
        self.read.set(self.read.get() + lines.len());
        lines
    }

    fn lines(&self) -> Vec<String> {
        self.new_lines(&["event", "result", "path", "to", "object", "replaced"])
    }
}

async fn set(client: &mut Client, file: FileId, class: FileClass, buffer: Vec<u8>) -> NtStatus {
    let request = set_info::Request {
        info_type: InfoType::FILE,
        class: class.0,
        additional_information: 0,
        file,
        buffer: buffer.into(),
    };
    let charge = request.buffer.len().div_ceil(65_536).max(1) as u16;
    let request = client.request_charged(Command::SetInfo, charge, |out| request.emit(out));
    client.send(request);
    client.recv().await.unwrap().0.status
}

async fn name(client: &mut Client, file: FileId, class: FileClass, to: &str, replaces: bool) -> NtStatus {
    let mut buffer = Vec::new();
    Rename { replace_if_exists: replaces, root_directory: 0, name: to.into() }.emit(&mut buffer);
    set(client, file, class, buffer).await
}

async fn rename(client: &mut Client, file: FileId, to: &str, replaces: bool) -> NtStatus {
    name(client, file, FileClass::RENAME, to, replaces).await
}

async fn delete(client: &mut Client, file: FileId) -> NtStatus {
    let mut buffer = Vec::new();
    Disposition { delete_pending: true }.emit(&mut buffer);
    set(client, file, FileClass::DISPOSITION, buffer).await
}

async fn protect(client: &mut Client, file: FileId) -> NtStatus {
    let everybody: SecurityDescriptor = "D:(A;;FA;;;WD)".parse().unwrap();
    let request = set_info::Request {
        info_type: InfoType::SECURITY,
        class: 0,
        additional_information: SecurityInformation::DACL.0,
        file,
        buffer: everybody.to_bytes().into(),
    };
    client.status(Command::SetInfo, |out| request.emit(out)).await
}

async fn control(client: &mut Client, code: CtlCode, file: FileId, input: &[u8]) -> NtStatus {
    let request = ioctl::Request {
        code,
        file,
        input: input.to_vec().into(),
        max_input_response: 0,
        max_output_response: 4096,
        flags: ioctl::Flags::IS_FSCTL,
    };
    client.status(Command::Ioctl, |out| request.emit(out)).await
}

async fn open_with(client: &mut Client, name: &str, access: AccessMask) -> FileId {
    let request = create::Request { desired_access: access, ..create_request(name, CreateOptions::NONE) };
    let (header, bytes) = client.call(Command::Create, |out| request.emit(out)).await;
    assert_eq!(header.status, NtStatus::SUCCESS);
    create::Response::parse(&bytes).unwrap().file
}

#[test]
fn a_line_has_the_path_that_the_file_has_by_then() {
    story(async {
        let audited = Audited::new();
        let mut alice = audited.client(1, "alice").await;
        let mut bob = audited.client(2, "bob").await;
        let dir = alice.open("d", CreateOptions::DIRECTORY_FILE).await;
        assert_eq!(alice.close(dir).await, NtStatus::SUCCESS);
        let file = alice.open(r"d\f", CreateOptions::NONE).await;
        assert_eq!(audited.lines(), ["create ok d directory", "create ok d/f file"]);
        // Another user moves it through another open.
        let his = bob.open(r"d\f", CreateOptions::NONE).await;
        assert_eq!(rename(&mut bob, his, r"d\g", false).await, NtStatus::SUCCESS);
        assert_eq!(audited.lines(), ["open ok d/f file", "rename ok d/f d/g"]);
        assert_eq!(alice.write(file, b"x").await, NtStatus::SUCCESS);
        assert_eq!(audited.lines(), ["write ok d/g"]);
        assert_eq!(bob.close(his).await, NtStatus::SUCCESS);
        assert_eq!(audited.lines(), ["close ok d/g"]);
        // Another protocol moves the folder above it.
        audited.rename("d", "e").await;
        assert_eq!(protect(&mut alice, file).await, NtStatus::SUCCESS);
        assert_eq!(audited.lines(), ["rights ok e/g"]);
        audited.rename("e", "h").await;
        assert_eq!(rename(&mut alice, file, r"H\I", false).await, NtStatus::SUCCESS);
        assert_eq!(audited.lines(), ["rename ok h/g h/I"], "as the server spells them");
        assert_eq!(delete(&mut alice, file).await, NtStatus::SUCCESS);
        audited.rename("h", "i").await;
        assert_eq!(alice.close(file).await, NtStatus::SUCCESS);
        assert_eq!(audited.lines(), ["close ok i/I", "delete ok i/I"]);
    });
}

#[test]
fn a_truncation_and_a_refusal_have_the_path_of_then_too() {
    story(async {
        let audited = Audited::new();
        let mut alice = audited.client(1, "alice").await;
        let file = alice.open("f", CreateOptions::NONE).await;
        let seen = open_with(&mut alice, "f", AccessMask::FILE_READ_DATA).await;
        assert_eq!(audited.lines(), ["create ok f file", "open ok f file"]);
        audited.rename("f", "g").await;
        let mut size = Vec::new();
        EndOfFile { end_of_file: 7 }.emit(&mut size);
        assert_eq!(set(&mut alice, file, FileClass::END_OF_FILE, size.clone()).await, NtStatus::SUCCESS);
        assert_eq!(audited.lines(), ["write ok g"]);
        assert_eq!(set(&mut alice, seen, FileClass::END_OF_FILE, size).await, NtStatus::ACCESS_DENIED);
        audited.rename("g", "h").await;
        assert_eq!(delete(&mut alice, seen).await, NtStatus::ACCESS_DENIED);
        assert_eq!(rename(&mut alice, seen, "i", false).await, NtStatus::ACCESS_DENIED);
        assert_eq!(protect(&mut alice, seen).await, NtStatus::ACCESS_DENIED);
        let denied = ["write denied g", "delete denied h", "rename denied h i", "rights denied h"];
        assert_eq!(audited.lines(), denied);
    });
}

#[test]
fn a_file_with_two_names_is_told_by_the_one_that_is_open() {
    story(async {
        let audited = Audited::new();
        let mut alice = audited.client(1, "alice").await;
        for (opened, other) in [("a", "b"), ("d", "c")] {
            let file = alice.open(opened, CreateOptions::NONE).await;
            assert_eq!(name(&mut alice, file, FileClass::LINK, other, false).await, NtStatus::SUCCESS);
            assert_eq!(delete(&mut alice, file).await, NtStatus::SUCCESS);
            assert_eq!(alice.close(file).await, NtStatus::SUCCESS);
            let told = ["create ok o file", "link ok o other", "close ok o", "delete ok o"];
            let told = told.map(|line| line.replace("ok o", &format!("ok {opened}")).replace("other", other));
            assert_eq!(audited.lines(), told);
            let gone = audited.vfs.lookup(NodeId::ROOT, opened.as_bytes(), false).await;
            assert!(matches!(gone, Err(Error::NotFound)), "{gone:?}");
        }
    });
}

#[test]
fn a_renamed_stream_keeps_the_name_of_its_file() {
    story(async {
        let audited = Audited::new();
        let mut alice = audited.client(1, "alice").await;
        let stream = alice.open("f:one", CreateOptions::NONE).await;
        let seen = open_with(&mut alice, "f:one", AccessMask::FILE_READ_DATA).await;
        audited.lines();
        assert_eq!(rename(&mut alice, stream, ":two", false).await, NtStatus::SUCCESS);
        assert_eq!(audited.lines(), ["rename ok f:one f:two"]);
        assert_eq!(rename(&mut alice, seen, ":three:$DATA", false).await, NtStatus::ACCESS_DENIED);
        assert_eq!(audited.lines(), ["rename denied f:two f:three"]);
        assert_eq!(alice.write(stream, b"x").await, NtStatus::SUCCESS);
        assert_eq!(audited.lines(), ["write ok f:two"]);
        audited.rename("f", "g").await;
        assert_eq!(alice.close(seen).await, NtStatus::SUCCESS);
        let third = alice.open("g:third", CreateOptions::NONE).await;
        assert_eq!(alice.close(third).await, NtStatus::SUCCESS);
        assert_eq!(audited.lines(), ["close ok g:two", "create ok g:third file", "close ok g:third"]);
        assert_eq!(rename(&mut alice, stream, ":third", true).await, NtStatus::SUCCESS);
        assert_eq!(audited.lines(), ["rename ok g:two g:third replaced=true"]);
        // The file waits for its stream, and is told by its own name.
        let file = alice.open("g", CreateOptions::NONE).await;
        assert_eq!(delete(&mut alice, file).await, NtStatus::SUCCESS);
        assert_eq!(alice.close(file).await, NtStatus::SUCCESS);
        assert_eq!(audited.lines(), ["open ok g file", "close ok g"]);
        assert_eq!(alice.close(stream).await, NtStatus::SUCCESS);
        assert_eq!(audited.lines(), ["close ok g:third", "delete ok g"]);
    });
}

#[test]
fn a_name_that_replaces_another_says_so() {
    story(async {
        let audited = Audited::new();
        let mut alice = audited.client(1, "alice").await;
        for file in ["f", "g", "h"] {
            let file = alice.open(file, CreateOptions::NONE).await;
            assert_eq!(alice.close(file).await, NtStatus::SUCCESS);
        }
        let file = alice.open("f", CreateOptions::NONE).await;
        audited.lines();
        assert_eq!(rename(&mut alice, file, "new", true).await, NtStatus::SUCCESS);
        assert_eq!(rename(&mut alice, file, "NEW", true).await, NtStatus::SUCCESS);
        assert_eq!(rename(&mut alice, file, "g", true).await, NtStatus::SUCCESS);
        assert_eq!(
            audited.lines(),
            ["rename ok f new", "rename ok new NEW", "rename ok NEW g replaced=true"]
        );
        assert_eq!(name(&mut alice, file, FileClass::LINK, "h", true).await, NtStatus::SUCCESS);
        assert_eq!(audited.lines(), ["link ok g h replaced=true"]);
        // Both names are of one file, so nothing is lost with one of them.
        assert_eq!(rename(&mut alice, file, "h", true).await, NtStatus::SUCCESS);
        assert_eq!(audited.lines(), ["rename ok g h"]);
    });
}

/// Files that cannot be renamed to `bad`.
struct Fails(Ram);

impl Backend for Fails {
    fn kind(&self) -> &'static str {
        self.0.kind()
    }

    fn changes_on_the_host(&self) -> bool {
        self.0.changes_on_the_host()
    }

    fn submit(&self, op: Op, by: Caller) -> LocalBoxFuture<'_, Result<Outcome, Error>> {
        match &op {
            Op::Rename { to, .. } if to.name == b"bad" => {
                Box::pin(async { Err(Error::Io(io::Error::other("a bad sector"))) })
            }
            _ => self.0.submit(op, by),
        }
    }
}

/// The file that it replaces is spelled otherwise, so the new name takes two steps.
#[test]
fn a_rename_that_replaces_a_file_and_then_fails_is_told_as_far_as_it_came() {
    story(async {
        let audited = Audited::on(Fails(Ram::new(64 << 20)), Wanted::ALL);
        let mut alice = audited.client(1, "alice").await;
        let other = alice.open("BAD", CreateOptions::NONE).await;
        assert_eq!(alice.close(other).await, NtStatus::SUCCESS);
        let file = alice.open("f", CreateOptions::NONE).await;
        audited.lines();
        let failed = rename(&mut alice, file, "bad", true).await;
        assert!(!failed.is_success() && failed != NtStatus::ACCESS_DENIED, "{failed}");
        assert_eq!(audited.lines(), ["rename ok f BAD replaced=true"]);
        assert_eq!(alice.write(file, b"x").await, NtStatus::SUCCESS);
        assert_eq!(alice.close(file).await, NtStatus::SUCCESS);
        assert_eq!(audited.lines(), ["write ok BAD", "close ok BAD"]);
    });
}

/// A line of three to seventeen megabytes was written of each.
#[test]
fn a_new_name_of_any_length_is_refused_before_it_is_told() {
    story(async {
        let audited = Audited::new();
        let mut alice = audited.client(1, "alice").await;
        let file = alice.open("f", CreateOptions::NONE).await;
        let seen = open_with(&mut alice, "f", AccessMask::FILE_READ_DATA).await;
        audited.lines();
        for (units, status) in [(32_767, NtStatus::ACCESS_DENIED), (32_768, NtStatus::OBJECT_NAME_INVALID)] {
            let to = "x".repeat(units);
            for class in [FileClass::RENAME, FileClass::RENAME_EX, FileClass::LINK] {
                let of_seen = name(&mut alice, seen, class, &to, false).await;
                match class {
                    // A link needs no right on the file.
                    FileClass::LINK => assert_eq!(of_seen, NtStatus::OBJECT_NAME_INVALID),
                    _ => assert_eq!(of_seen, status),
                }
                assert_eq!(name(&mut alice, file, class, &to, false).await, NtStatus::OBJECT_NAME_INVALID);
            }
        }
        let fields = ["event", "result", "path", "cut"];
        assert_eq!(audited.new_lines(&fields), ["rename denied f cut=true"; 2]);
        let text = std::fs::read_to_string(audited.dir.path().join("audit.jsonl")).unwrap();
        assert!(text.lines().all(|line| line.len() < 5000), "a line is long");
    });
}

/// REPARSE_DATA_BUFFER of what NFS clients make.
fn nfs(what: &[u8]) -> Vec<u8> {
    let len = (what.len() as u16).to_le_bytes();
    [&[0x14, 0, 0, 0x80][..], &len, &[0, 0], what].concat()
}

/// REPARSE_DATA_BUFFER of a relative link to `x`.
fn link() -> Vec<u8> {
    let mut data = 0xA000_000Cu32.to_le_bytes().to_vec();
    for field in [14u16, 0, 0, 2, 0, 2, 1, 0, u16::from(b'x')] {
        data.extend(field.to_le_bytes());
    }
    data
}

#[test]
fn a_reparse_point_that_is_set_or_deleted_replaces_what_had_the_name() {
    story(async {
        let audited = Audited::new();
        let mut alice = audited.client(1, "alice").await;
        let file = alice.open("f", CreateOptions::NONE).await;
        assert_eq!(audited.lines(), ["create ok f file"]);
        audited.rename("f", "g").await;
        assert_eq!(control(&mut alice, CtlCode::SET_REPARSE_POINT, file, &link()).await, NtStatus::SUCCESS);
        assert_eq!(audited.lines(), ["delete ok g file", "create ok g symlink"]);
        let tag = 0xA000_000Cu32.to_le_bytes();
        let none = [&tag[..], &[0; 4]].concat();
        assert_eq!(control(&mut alice, CtlCode::DELETE_REPARSE_POINT, file, &none).await, NtStatus::SUCCESS);
        assert_eq!(audited.lines(), ["delete ok g symlink", "create ok g file"]);
        // The handle is that of the file by now, and has not ended in between.
        assert_eq!(alice.write(file, b"data").await, NtStatus::SUCCESS);
        assert_eq!(audited.lines(), ["write ok g"]);
        assert_eq!(alice.close(file).await, NtStatus::SUCCESS);
        let close = audited.new_lines(&["event", "path", "written_bytes"]);
        assert_eq!(close, ["close g written_bytes=4"]);
    });
}

#[test]
fn a_reparse_point_that_is_denied_is_told_and_one_that_is_wrong_is_not() {
    story(async {
        let audited = Audited::new();
        let mut alice = audited.client(1, "alice").await;
        let file = alice.open("f", CreateOptions::NONE).await;
        let seen = open_with(&mut alice, "f", AccessMask::FILE_READ_DATA).await;
        audited.lines();
        let device = nfs(b"CHR\0\0\0\0\0\x01\0\0\0\x03\0\0\0");
        assert_eq!(
            control(&mut alice, CtlCode::SET_REPARSE_POINT, file, &device).await,
            NtStatus::ACCESS_DENIED
        );
        assert_eq!(
            control(&mut alice, CtlCode::SET_REPARSE_POINT, seen, &link()).await,
            NtStatus::ACCESS_DENIED
        );
        assert_eq!(
            control(&mut alice, CtlCode::DELETE_REPARSE_POINT, seen, &[0; 8]).await,
            NtStatus::ACCESS_DENIED
        );
        assert_eq!(audited.lines(), ["create denied f file"; 3]);
        let other = control(&mut alice, CtlCode::SET_REPARSE_POINT, file, b"").await;
        assert!(!other.is_success() && other != NtStatus::ACCESS_DENIED, "{other}");
        assert_eq!(audited.lines(), [""; 0]);
    });
}

#[test]
fn each_channel_and_each_log_on_again_is_a_line_and_so_is_each_that_is_refused() {
    story(async {
        let audited = Audited::new();
        let fields = ["event", "result", "status", "user", "client"];
        let mut first = audited.world.connect_from("192.0.2.1:1000");
        first.negotiate(Offer { guid: [9; 16], ..Offer::default() }).await;
        first.log_on("alice", PASSWORD).await.unwrap();
        assert_eq!(audited.new_lines(&fields), ["logon ok alice 192.0.2.1:1000"]);
        first.sign = true;
        // One more channel, which tells its own address.
        let mut second = audited.world.connect_from("192.0.2.1:2000");
        second.negotiate(Offer { guid: [9; 16], ..Offer::default() }).await;
        second.bind(&first).await.unwrap();
        second.sign = true;
        assert_eq!(audited.new_lines(&fields), ["logon ok alice 192.0.2.1:2000"]);
        second.tree().await;
        assert_eq!(audited.new_lines(&fields), ["connect ok alice 192.0.2.1:2000"]);
        // Somebody else on a third.
        let mut third = audited.world.connect_from("192.0.2.1:3000");
        third.negotiate(Offer { guid: [9; 16], ..Offer::default() }).await;
        let (profile, key, preauth) = first.material.clone().unwrap();
        let keys = || SessionKeys::derive(Role::Client, &profile, &key, &preauth);
        let refused = third.bind_as("bob", PASSWORD, first.session, keys()).await.unwrap_err();
        assert_eq!(refused, NtStatus::NOT_SUPPORTED);
        assert_eq!(audited.new_lines(&fields), ["logon denied STATUS_NOT_SUPPORTED bob 192.0.2.1:3000"]);
        let refused = third.bind_as("alice", "wrong", first.session, keys()).await.unwrap_err();
        assert_eq!(refused, NtStatus::LOGON_FAILURE);
        assert_eq!(audited.new_lines(&fields), ["logon denied STATUS_WRONG_PASSWORD alice 192.0.2.1:3000"]);
        // Again on the first.
        first.log_on("alice", PASSWORD).await.unwrap();
        assert_eq!(audited.new_lines(&fields), ["logon ok alice 192.0.2.1:1000"]);
        assert_eq!(first.log_on("bob", PASSWORD).await.unwrap_err(), NtStatus::ACCESS_DENIED);
        assert_eq!(audited.new_lines(&fields), ["logon denied STATUS_ACCESS_DENIED bob 192.0.2.1:1000"]);
        // A failure ends the session, on all channels.
        assert_eq!(first.log_on("alice", "wrong").await.unwrap_err(), NtStatus::LOGON_FAILURE);
        let ends =
            ["logon denied STATUS_WRONG_PASSWORD alice 192.0.2.1:1000", "logoff ok alice 192.0.2.1:1000"];
        assert_eq!(audited.new_lines(&fields), ends);
    });
}

#[test]
fn a_refused_log_on_has_the_status_that_the_client_is_not_told() {
    story(async {
        let audited = Audited::new();
        let fields = ["event", "result", "status", "user"];
        for (user, status) in [("alice", "STATUS_WRONG_PASSWORD"), ("nobody", "STATUS_NO_SUCH_USER")] {
            let mut client = audited.world.connect();
            client.negotiate(Offer::default()).await;
            assert_eq!(client.log_on(user, "wrong").await.unwrap_err(), NtStatus::LOGON_FAILURE, "{user}");
            assert_eq!(audited.new_lines(&fields), [format!("logon denied {status} {user}")]);
        }
    });
}

#[test]
fn a_client_that_is_refused_all_the_time_fills_no_disk() {
    story(async {
        let audited = Audited::new();
        let mut alice = audited.world.connect_from("192.0.2.1:1000");
        alice.negotiate(Offer::default()).await;
        alice.log_on("alice", PASSWORD).await.unwrap();
        alice.sign = true;
        alice.tree().await;
        let file = alice.open("f", CreateOptions::NONE).await;
        let seen = open_with(&mut alice, "f", AccessMask::FILE_READ_DATA).await;
        audited.lines();
        for _ in 0..2000 {
            assert_eq!(delete(&mut alice, seen).await, NtStatus::ACCESS_DENIED);
        }
        let told = audited.new_lines(&["event", "client", "lost"]);
        let (lost, lines): (Vec<_>, Vec<_>) = told.iter().partition(|line| line.starts_with("lost"));
        let number =
            |line: &&String| line.strip_prefix("lost 192.0.2.1 lost=").unwrap().parse::<usize>().unwrap();
        assert_eq!(lines.len() + lost.iter().map(number).sum::<usize>(), 2000, "{lost:?}");
        assert!((500..1000).contains(&lines.len()), "{} lines", lines.len());
        // What may be done is told all the same, as is what another client may not.
        assert_eq!(alice.write(file, b"x").await, NtStatus::SUCCESS);
        assert_eq!(audited.lines(), ["write ok f"]);
        let mut bob = audited.world.connect_from("192.0.2.2:1000");
        bob.negotiate(Offer { guid: [2; 16], ..Offer::default() }).await;
        assert_eq!(bob.log_on("bob", "wrong").await.unwrap_err(), NtStatus::LOGON_FAILURE);
        assert_eq!(audited.new_lines(&["event", "result", "client"]), ["logon denied 192.0.2.2:1000"]);
    });
}
