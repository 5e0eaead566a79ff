//! The audit log and persistent handles: what is done through one after a restart, and a rename whose client is lost
//! before its answer.

use std::time::Duration;

use weft_store::audit::{Audit, Rules, Wanted, start};
use weft_wire::smb2::fscc::file::{Disposition, Rename};

use super::*;

/// One run of a server on this folder, with an audit log.
fn told_life<T>(dir: &Path, story_of: impl AsyncFnOnce(World, Log) -> T) -> T {
    std::fs::create_dir_all(dir.join("data")).unwrap();
    story(async {
        let file = dir.join("audit.jsonl");
        let audit = start(Rules { file: file.clone(), wanted: Wanted::ALL }).unwrap();
        let journal = Journal::open(&dir.join("state"), "test").unwrap();
        let world = World::with(|config| {
            config.shares = vec![Share::new("Data", Vfs::new(Dir::open(dir.join("data")).unwrap()))];
            config.offers.journal = Some(journal.clone());
            config.offers.continuous = vec!["data".into()];
            config.offers.audit = audit.clone();
        });
        world.server.restore().await.unwrap();
        story_of(world, Log { audit, file, journal }).await
    })
}

struct Log {
    audit: Audit,
    file: std::path::PathBuf,
    journal: Journal,
}

impl Log {
    /// What the lines of files say, without the time.
    fn lines(&self) -> Vec<String> {
        assert!(self.audit.flush(Duration::from_secs(60)));
        let text = std::fs::read_to_string(&self.file).unwrap();
        let rest = |line: &str| {
            let (_, rest) = line.split_once(",\"event\":").unwrap();
            rest.trim_end_matches('}').replace('"', "").replace("result:ok,user:alice,sid:", "")
        };
        text.lines().map(rest).filter(|line| line.contains(",path:")).collect()
    }

    fn is_recorded(&self) -> bool {
        !self.journal.records(|_| true).unwrap().is_empty()
    }
}

fn information(file: FileId, class: FileClass, buffer: Vec<u8>) -> set_info::Request {
    set_info::Request {
        info_type: InfoType::FILE,
        class: class.0,
        additional_information: 0,
        file,
        buffer: buffer.into(),
    }
}

fn renaming(file: FileId, to: &str) -> set_info::Request {
    let mut buffer = Vec::new();
    Rename { replace_if_exists: false, root_directory: 0, name: to.into() }.emit(&mut buffer);
    information(file, FileClass::RENAME, buffer)
}

fn deleting(file: FileId) -> set_info::Request {
    let mut buffer = Vec::new();
    Disposition { delete_pending: true }.emit(&mut buffer);
    information(file, FileClass::DISPOSITION, buffer)
}

/// Nothing of it was told.
#[test]
fn what_is_done_through_a_handle_of_an_earlier_run_is_told_with_its_user_and_the_new_address() {
    let dir = tempfile::tempdir().unwrap();
    let file = life(dir.path(), async |world| {
        let mut alice = client_at(&world, "192.0.2.1:700", 1, "alice").await;
        create(&mut alice, &wish(vec![persistent()])).await.unwrap().file
    });
    told_life(dir.path(), async |world, log| {
        let mut alice = client_at(&world, "192.0.2.1:701", 1, "alice").await;
        let file = create(&mut alice, &wish(vec![again(file)])).await.unwrap().file;
        assert_eq!(alice.write(file, b"evil").await, NtStatus::SUCCESS);
        let renamed = alice.status(Command::SetInfo, |out| renaming(file, "g").emit(out)).await;
        assert_eq!(renamed, NtStatus::SUCCESS);
        let deleted = alice.status(Command::SetInfo, |out| deleting(file).emit(out)).await;
        assert_eq!(deleted, NtStatus::SUCCESS);
        assert_eq!(alice.close(file).await, NtStatus::SUCCESS);
        let sid = world.server.directory().accounts.sid_of_user("alice");
        let by = format!("{sid},client:192.0.2.1:701,protocol:smb,transport:tcp,share:Data");
        assert_eq!(
            log.lines(),
            [
                format!("write,{by},path:f"),
                format!("rename,{by},path:f,to:g"),
                format!("close,{by},path:g,read_bytes:0,written_bytes:4"),
                format!("delete,{by},path:g"),
            ]
        );
    });
}

#[test]
fn a_deletion_that_outlives_the_server_is_told_although_its_client_does_not_return() {
    let dir = tempfile::tempdir().unwrap();
    life(dir.path(), async |world| {
        let mut alice = client(&world, 1, "alice").await;
        let file = create(&mut alice, &wish(vec![persistent()])).await.unwrap().file;
        let deleted = alice.status(Command::SetInfo, |out| deleting(file).emit(out)).await;
        assert_eq!(deleted, NtStatus::SUCCESS);
    });
    told_life(dir.path(), async |world, log| {
        weft_machine::rt::sleep(Duration::from_secs(31)).await;
        assert!(!dir.path().join("data").join("f").exists());
        let by =
            format!("{},protocol:smb,share:Data", world.server.directory().accounts.sid_of_user("alice"));
        assert_eq!(
            log.lines(),
            [format!("close,{by},path:f,read_bytes:0,written_bytes:0"), format!("delete,{by},path:f")]
        );
    });
}

/// Its record is written after the rename, and the loss of the connection ended it there: nothing was told.
#[test]
fn a_rename_whose_client_is_lost_while_it_is_written_down_is_told() {
    let dir = tempfile::tempdir().unwrap();
    told_life(dir.path(), async |world, log| {
        let mut alice = client(&world, 1, "alice").await;
        let file = create(&mut alice, &wish(vec![persistent()])).await.unwrap().file;
        let gate = Gate::default();
        let held = gate.lock().await;
        log.journal.hold(Some(gate.clone()));
        let request = alice.request(Command::SetInfo, |out| renaming(file, "g").emit(out));
        alice.send(request);
        settle().await;
        alice.wire.hang_up();
        settle().await;
        assert_eq!(world.server.sessions.len(), 0);
        assert!(dir.path().join("data").join("g").exists());
        log.journal.hold(None);
        drop(held);
        settle().await;
        let lines = log.lines();
        assert_eq!(lines.len(), 2, "{lines:?}");
        assert!(lines[1].starts_with("rename,") && lines[1].ends_with(",path:f,to:g"), "{lines:?}");
        // The handle waits for its client, with the new path.
        assert!(log.is_recorded());
        assert_eq!(log.journal.records(|_| true).unwrap()[0].1.path, b"g");
    });
}
