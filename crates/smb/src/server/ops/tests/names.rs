//! SET_INFO: rename, link, deletion.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use futures_util::poll;
use weft_store::audit::{self, AuditedOpen, Rules, Wanted, Who};
use weft_store::vfs::NodeId;
use weft_wire::smb2::fscc::FileClass;
use weft_wire::smb2::fscc::file::{Disposition, DispositionEx, DispositionFlags, Rename};
use weft_wire::smb2::query_info::InfoType;
use weft_wire::smb2::set_info;

use super::info::set;
use super::reparse::Failing;
use super::*;

pub(super) async fn rename(b: &Bench, file: FileId, to: &str, replace: bool) -> Result<(), NtStatus> {
    let wish = Rename { replace_if_exists: replace, root_directory: 0, name: to.to_owned() };
    set(b, file, FileClass::RENAME, |out| wish.emit(out)).await
}

async fn doom(b: &Bench, file: FileId, delete: bool) -> Result<(), NtStatus> {
    set(b, file, FileClass::DISPOSITION, |out| Disposition { delete_pending: delete }.emit(out)).await
}

async fn content(b: &Bench, path: &str) -> Vec<u8> {
    let file = b.open(&Wish::file(path)).await.unwrap();
    let data = payload::read(b, file, 0, 100).await.unwrap();
    b.close(file).await.unwrap();
    data
}

#[test]
fn files_and_directories_move() {
    run(async |b| {
        b.mkdir("d").await;
        b.put("f", b"content").await;
        let file = b.open(&Wish::file("f")).await.unwrap();
        rename(&b, file, "d\\g", false).await.unwrap();
        assert!(!b.exists("f").await);
        assert_eq!(content(&b, "d\\g").await, b"content");
        // Again with the same handle, changing only the case, and to its own name.
        rename(&b, file, "d\\G", false).await.unwrap();
        rename(&b, file, "d\\G", false).await.unwrap();
        assert_eq!(listing::names(&b, "d", "*").await.unwrap(), [".", "..", "G"]);
        // A directory with an open file in it cannot be renamed.
        let dir = b.open(&Wish::dir("d")).await.unwrap();
        assert_eq!(status(rename(&b, dir, "e", false).await), NtStatus::ACCESS_DENIED);
        b.close(file).await.unwrap();
        rename(&b, dir, "e", false).await.unwrap();
        // jcifs names directories like this.
        rename(&b, dir, "e2\\", false).await.unwrap();
        assert_eq!(status(rename(&b, dir, "e3\\\\x\\", false).await), NtStatus::OBJECT_PATH_NOT_FOUND);
        rename(&b, dir, "e", false).await.unwrap();
        let file = b.open(&Wish::file("e\\G")).await.unwrap();
        assert_eq!(payload::read(&b, file, 0, 100).await.unwrap(), b"content");
        rename(&b, file, "h", false).await.unwrap();
        assert_eq!(content(&b, "h").await, b"content");
        // Into itself.
        assert_eq!(status(rename(&b, dir, "e\\inside", false).await), NtStatus::SHARING_VIOLATION);
    });
}

#[test]
fn names_that_are_taken() {
    run(async |b| {
        b.mkdir("d").await;
        b.put("f", b"new").await;
        b.put("old", b"old").await;
        let file = b.open(&Wish::file("f")).await.unwrap();
        assert_eq!(status(rename(&b, file, "old", false).await), NtStatus::OBJECT_NAME_COLLISION);
        assert_eq!(status(rename(&b, file, "OLD", false).await), NtStatus::OBJECT_NAME_COLLISION);
        assert_eq!(status(rename(&b, file, "d", true).await), NtStatus::ACCESS_DENIED);
        let other = b.open(&Wish::file("old")).await.unwrap();
        assert_eq!(status(rename(&b, file, "old", true).await), NtStatus::ACCESS_DENIED);
        b.close(other).await.unwrap();
        rename(&b, file, "Old", true).await.unwrap();
        assert_eq!(listing::names(&b, "", "*").await.unwrap(), [".", "..", "Old", "d"]);
        assert_eq!(content(&b, "old").await, b"new");
        for (bad, status_wanted) in [
            ("none\\x", NtStatus::OBJECT_PATH_NOT_FOUND),
            ("..\\x", NtStatus::OBJECT_PATH_SYNTAX_BAD),
            ("\\x", NtStatus::INVALID_PARAMETER),
            ("", NtStatus::INVALID_PARAMETER),
            ("x*", NtStatus::OBJECT_NAME_INVALID),
            ("x:stream", NtStatus::OBJECT_NAME_INVALID),
            ("x\\", NtStatus::OBJECT_NAME_INVALID),
        ] {
            assert_eq!(status(rename(&b, file, bad, true).await), status_wanted, "{bad}");
        }
        let elsewhere = Rename { replace_if_exists: true, root_directory: 5, name: "x".into() };
        let answer = set(&b, file, FileClass::RENAME, |out| elsewhere.emit(out)).await;
        assert_eq!(status(answer), NtStatus::INVALID_PARAMETER);
        let short = set(&b, file, FileClass::RENAME, |out| out.extend([0; 19])).await;
        assert_eq!(status(short), NtStatus::INFO_LENGTH_MISMATCH);
        let root = b.open(&Wish::dir("")).await.unwrap();
        assert_eq!(status(rename(&b, root, "x", true).await), NtStatus::ACCESS_DENIED);
        let reader = b.open(&Wish { access: AccessMask::FILE_READ_DATA, ..Wish::file("old") }).await.unwrap();
        assert_eq!(status(rename(&b, reader, "x", true).await), NtStatus::ACCESS_DENIED);
    });
}

#[test]
fn links() {
    run(async |b| {
        b.put("f", b"content").await;
        b.put("g", b"other").await;
        let file = b.open(&Wish::file("f")).await.unwrap();
        let link = async |name: &str, replace| {
            let wish = Rename { replace_if_exists: replace, root_directory: 0, name: name.to_owned() };
            set(&b, file, FileClass::LINK, |out| wish.emit(out)).await
        };
        link("h", false).await.unwrap();
        assert_eq!(status(link("g", false).await), NtStatus::OBJECT_NAME_COLLISION);
        link("g", true).await.unwrap();
        assert_eq!(content(&b, "g").await, b"content");
        // A name of the file itself counts as existing.
        assert_eq!(status(link("g", false).await), NtStatus::OBJECT_NAME_COLLISION);
        link("g", true).await.unwrap();
        assert_eq!(info::standard(&b, file).await.number_of_links, 3);
        // Renaming it to another of its names removes one name.
        rename(&b, file, "h", true).await.unwrap();
        assert_eq!(info::standard(&b, file).await.number_of_links, 2);
        assert!(!b.exists("f").await);
        // smbclient's `hardlink` writes it like this.
        link("\\i", false).await.unwrap();
        assert!(b.exists("i").await);
        assert_eq!(status(link("\\\\k", false).await), NtStatus::INVALID_PARAMETER);
    });
}

/// Links a file to the name of another one.
fn link_over(to: &str) -> Rename {
    Rename { replace_if_exists: true, root_directory: 0, name: to.into() }
}

/// The names in the root, and what the file that had one of them has now.
async fn left(b: &Bench) -> (Vec<String>, Vec<u8>) {
    let names = listing::names(b, "", "*").await.unwrap().split_off(2);
    (names, content(b, "g").await)
}

#[test]
fn a_link_that_fails_leaves_the_file_that_has_the_name() {
    let mut failed = 0;
    for failing in 1.. {
        let countdown = Arc::<AtomicUsize>::default();
        let disk = Failing { disk: Ram::new(DISK), countdown: countdown.clone() };
        let fired = rt::block_on(async {
            let b = Bench::with(Vfs::new(disk), Dialect::V3_1_1, true);
            b.put("f", b"content").await;
            b.put("g", b"other").await;
            let file = b.open(&Wish::file("f")).await.unwrap();
            countdown.store(failing, Ordering::SeqCst);
            let answer = set(&b, file, FileClass::LINK, |out| link_over("g").emit(out)).await;
            let fired = countdown.swap(0, Ordering::SeqCst) == 0;
            let (names, has) = left(&b).await;
            assert_eq!(names, ["f", "g"], "{failing}");
            assert_eq!(has, if answer.is_ok() { &b"content"[..] } else { b"other" }, "{failing}");
            failed += usize::from(answer.is_err());
            b.close(file).await.unwrap();
            fired
        })
        .unwrap();
        if !fired {
            assert!(failed > 5, "{failed} of {failing}");
            return;
        }
    }
}

/// Whoever had the name lost it, although the link could not be made.
#[test]
fn a_file_without_a_name_takes_none_from_another_one() {
    run(async |b| {
        b.put("f", b"content").await;
        b.put("g", b"other").await;
        let file = b.open(&Wish::file("f")).await.unwrap();
        b.vfs.remove(NodeId::ROOT, b"f").await.unwrap();
        let refused = set(&b, file, FileClass::LINK, |out| link_over("g").emit(out)).await;
        assert!(refused.is_err());
        assert_eq!(left(&b).await, (vec!["g".to_owned()], b"other".to_vec()));
    });
}

#[test]
fn a_link_spells_the_name_that_it_takes() {
    run(async |b| {
        b.put("f", b"content").await;
        b.put("g", b"other").await;
        let file = b.open(&Wish::file("f")).await.unwrap();
        set(&b, file, FileClass::LINK, |out| link_over("G").emit(out)).await.unwrap();
        let (names, has) = left(&b).await;
        assert_eq!((names, &has[..]), (vec!["G".to_owned(), "f".to_owned()], &b"content"[..]));
        assert_eq!(info::standard(&b, file).await.number_of_links, 2);
    });
}

/// A request is dropped with its connection, after any number of steps. What it replaced by then is told.
#[test]
fn a_lost_connection_leaves_a_link_whole_and_told() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("audit.jsonl");
    let log = audit::start(Rules { file: path.clone(), wanted: Wanted::ALL }).unwrap();
    let mut replaced = 0;
    for steps in 1..60 {
        let disk = Failing { disk: Ram::new(DISK), countdown: Arc::default() };
        rt::block_on(async {
            let b = Bench::with(Vfs::new(disk), Dialect::V3_1_1, true);
            b.put("f", b"content").await;
            b.put("g", b"other").await;
            let file = b.open(&Wish::file("f")).await.unwrap();
            let mut buffer = Vec::new();
            link_over("G").emit(&mut buffer);
            let request = set_info::Request {
                info_type: InfoType::FILE,
                class: FileClass::LINK.0,
                additional_information: 0,
                file,
                buffer: buffer.into(),
            };
            let cx = b.cx(Command::SetInfo, |out| request.emit(out));
            let open = cx.open(file).unwrap();
            let audited = AuditedOpen::new(log.clone(), Who::default(), "data".into(), b"f".to_vec(), None);
            assert!(open.audited.set(Arc::new(audited)).is_ok());
            let mut asked = Box::pin(dispatch(&cx));
            for _ in 0..steps {
                if poll!(&mut asked).is_ready() {
                    break;
                }
                rt::yield_now().await;
            }
            drop(asked);
            // What goes on without the request ends.
            for _ in 0..200 {
                rt::yield_now().await;
            }
            let (names, has) = left(&b).await;
            assert_eq!(names.len(), 2, "{steps}: {names:?}");
            replaced += usize::from(has == b"content");
            b.close(file).await.unwrap();
        })
        .unwrap();
    }
    assert!((1..59).contains(&replaced), "{replaced}");
    assert!(log.flush(Duration::from_secs(60)));
    let lines = std::fs::read_to_string(&path).unwrap();
    let is_told = |line: &&str| line.contains("\"link\"") && line.contains("\"replaced\":true");
    assert_eq!(lines.lines().filter(is_told).count(), replaced, "{lines}");
    assert!(lines.contains(r#""path":"f","to":"G""#), "{lines}");
}

#[test]
fn deletion_waits_for_the_last_handle() {
    run(async |b| {
        b.put("f", b"content").await;
        let one = b.open(&Wish::file("f")).await.unwrap();
        let two = b.open(&Wish::file("f")).await.unwrap();
        doom(&b, one, true).await.unwrap();
        assert!(info::standard(&b, two).await.delete_pending);
        assert_eq!(status(b.open(&Wish::file("f")).await), NtStatus::DELETE_PENDING);
        let again = Wish { disposition: CreateDisposition::Create, ..Wish::file("f") };
        assert_eq!(status(b.open(&again).await), NtStatus::DELETE_PENDING);
        assert_eq!(status(rename(&b, two, "g", false).await), NtStatus::ACCESS_DENIED);
        b.close(one).await.unwrap();
        assert_eq!(payload::read(&b, two, 0, 100).await.unwrap(), b"content");
        doom(&b, two, false).await.unwrap();
        b.close(b.open(&Wish::file("f")).await.unwrap()).await.unwrap();
        doom(&b, two, true).await.unwrap();
        assert!(b.close(two).await.unwrap().summary.is_some());
        assert!(!b.exists("f").await);
        b.close(b.open(&again).await.unwrap()).await.unwrap();
    });
}

#[test]
fn deletion_follows_a_rename() {
    run(async |b| {
        b.put("f", b"content").await;
        b.put("bystander", b"").await;
        let file =
            b.open(&Wish { options: CreateOptions::DELETE_ON_CLOSE, ..Wish::file("f") }).await.unwrap();
        rename(&b, file, "g", false).await.unwrap();
        b.put("f", b"another").await;
        b.close(file).await.unwrap();
        assert_eq!(listing::names(&b, "", "*").await.unwrap(), [".", "..", "bystander", "f"]);
    });
}

#[test]
fn what_cannot_be_deleted() {
    run(async |b| {
        b.mkdir("d").await;
        b.put("d\\f", b"").await;
        let dir = b.open(&Wish::dir("d")).await.unwrap();
        assert_eq!(status(doom(&b, dir, true).await), NtStatus::DIRECTORY_NOT_EMPTY);
        let root = b.open(&Wish::dir("")).await.unwrap();
        assert_eq!(status(doom(&b, root, true).await), NtStatus::CANNOT_DELETE);
        // A directory that is open for deletion accepts no moved names.
        let file = b.open(&Wish::file("d\\f")).await.unwrap();
        assert_eq!(status(rename(&b, file, "f", false).await), NtStatus::SHARING_VIOLATION);
        b.close(root).await.unwrap();
        let doomed =
            Wish { options: CreateOptions::DIRECTORY_FILE | CreateOptions::DELETE_ON_CLOSE, ..Wish::dir("") };
        assert_eq!(status(b.open(&doomed).await), NtStatus::CANNOT_DELETE);
        let reader =
            b.open(&Wish { access: AccessMask::FILE_READ_DATA, ..Wish::file("d\\f") }).await.unwrap();
        assert_eq!(status(doom(&b, reader, true).await), NtStatus::ACCESS_DENIED);
        // Filled again after it was marked for deletion: it stays, and can be opened.
        rename(&b, file, "f", false).await.unwrap();
        doom(&b, dir, true).await.unwrap();
        assert_eq!(status(rename(&b, file, "d\\f", false).await), NtStatus::DELETE_PENDING);
        b.put("d\\g", b"").await;
        b.close(dir).await.unwrap();
        b.close(b.open(&Wish::dir("d")).await.unwrap()).await.unwrap();
    });
}

#[test]
fn deletion_as_posix_knows_it() {
    run(async |b| {
        let dispose = async |file, flags: DispositionFlags| {
            set(&b, file, FileClass::DISPOSITION_EX, |out| DispositionEx { flags }.emit(out)).await
        };
        b.put("f", b"content").await;
        let one = b.open(&Wish::file("f")).await.unwrap();
        let two = b.open(&Wish::file("f")).await.unwrap();
        let on_close = DispositionFlags::DELETE | DispositionFlags::ON_CLOSE;
        assert_eq!(status(dispose(one, on_close).await), NtStatus::NOT_SUPPORTED);
        assert_eq!(status(dispose(one, DispositionFlags(0x100)).await), NtStatus::NOT_SUPPORTED);
        dispose(one, DispositionFlags::DELETE | DispositionFlags::POSIX_SEMANTICS).await.unwrap();
        b.close(one).await.unwrap();
        // The name is free at once; others can still use their open handles.
        assert!(!b.exists("f").await);
        b.put("f", b"another").await;
        assert_eq!(payload::read(&b, two, 0, 100).await.unwrap(), b"content");
        assert_eq!(info::standard(&b, two).await.number_of_links, 0);
        b.close(two).await.unwrap();
        assert_eq!(content(&b, "f").await, b"another");
        // Read-only files.
        let wish = Wish {
            disposition: CreateDisposition::Create,
            attributes: FileAttributes::READONLY,
            ..Wish::file("r")
        };
        b.close(b.open(&wish).await.unwrap()).await.unwrap();
        let wish = Wish { access: AccessMask::DELETE | AccessMask::FILE_WRITE_ATTRIBUTES, ..Wish::file("r") };
        let file = b.open(&wish).await.unwrap();
        assert_eq!(status(dispose(file, DispositionFlags::DELETE).await), NtStatus::CANNOT_DELETE);
        dispose(file, DispositionFlags::DELETE | DispositionFlags::IGNORE_READONLY_ATTRIBUTE).await.unwrap();
        b.close(file).await.unwrap();
        assert!(!b.exists("r").await);
    });
}
