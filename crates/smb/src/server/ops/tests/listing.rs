//! QUERY_DIRECTORY.

use std::os::unix::ffi::OsStrExt;

use weft_machine::sim::turns_of_others;
use weft_store::backend::Dir;
use weft_store::vfs::{Backend, Caller, Error, Kind, Op, Outcome, Unread};
use weft_wire::smb2::fscc::FileClass;
use weft_wire::smb2::fscc::directory::{self, Entry};
use weft_wire::smb2::query_directory::{Flags, Request, Response};

use super::*;

async fn query(
    b: &Bench,
    file: FileId,
    pattern: &str,
    flags: Flags,
    limit: u32,
) -> Result<(NtStatus, Vec<Entry>), NtStatus> {
    let request = Request {
        class: FileClass::ID_BOTH_DIRECTORY,
        flags,
        file_index: 0,
        file,
        output_buffer_length: limit,
        pattern: pattern.to_owned(),
    };
    let reply = b.answer(Command::QueryDirectory, |out| request.emit(out)).await.map_err(|f| f.status)?;
    let buffer = Response::parse(&reply.message.into()).unwrap().buffer;
    assert!(buffer.len() <= limit as usize);
    let whole = reply.status == NtStatus::SUCCESS;
    Ok((reply.status, if whole { directory::parse(request.class, &buffer).unwrap() } else { Vec::new() }))
}

/// The status of the first listing of an open directory.
pub(super) async fn status_of(b: &Bench, dir: FileId) -> NtStatus {
    let first = query(b, dir, "*", Flags::NONE, 4096).await;
    first.map_or_else(|status| status, |(status, _)| status)
}

/// Every entry that matches, sorted by name.
pub(super) async fn entries(b: &Bench, path: &str, pattern: &str) -> Vec<Entry> {
    let dir = b.open(&Wish::dir(path)).await.unwrap();
    let (_, mut entries) = query(b, dir, pattern, Flags::NONE, 1 << 16).await.unwrap();
    b.close(dir).await.unwrap();
    entries.sort_by(|a, b| a.name.cmp(&b.name));
    entries
}

/// Every name that matches, sorted, in buffers of 700 bytes.
pub(super) async fn names(b: &Bench, path: &str, pattern: &str) -> Result<Vec<String>, NtStatus> {
    let dir = b.open(&Wish::dir(path)).await.unwrap();
    let mut names = Vec::new();
    let mut first = true;
    loop {
        match query(b, dir, pattern, Flags::NONE, 700).await {
            Ok((_, entries)) => names.extend(entries.into_iter().map(|entry| entry.name)),
            Err(NtStatus::NO_MORE_FILES) if !first => break,
            Err(status) => return Err(status),
        }
        first = false;
    }
    b.close(dir).await.unwrap();
    names.sort();
    Ok(names)
}

/// A disk on which the attributes of "broken" cannot be read.
struct Broken(Ram);

impl Backend for Broken {
    fn kind(&self) -> &'static str {
        self.0.kind()
    }

    fn submit(&self, op: Op, by: Caller) -> LocalBoxFuture<'_, Result<Outcome, Error>> {
        Box::pin(async move {
            let mut done = self.0.submit(op, by).await?;
            if let Outcome::Entries(listing) = &mut done {
                let unread = Unread { fileid: 77, kind: Some(Kind::Dir), why: rustix::io::Errno::ACCESS };
                let broken = listing.entries.iter_mut().filter(|entry| entry.name == b"broken");
                broken.for_each(|entry| entry.attr = Err(unread));
            }
            Ok(done)
        })
    }
}

#[test]
fn a_file_whose_attributes_cannot_be_read_is_listed_with_the_others() {
    rt::block_on(async {
        let b = Bench::with(Vfs::new(Broken(Ram::new(DISK))), Dialect::V3_1_1, true);
        b.put("whole", b"content").await;
        b.put("broken", b"content").await;
        let listed = entries(&b, "", "*").await;
        let names: Vec<_> = listed.iter().map(|entry| &entry.name[..]).collect();
        assert_eq!(names, [".", "..", "broken", "whole"]);
        let (broken, whole) = (&listed[2], &listed[3]);
        assert_eq!(
            (broken.attributes, broken.file_id, broken.end_of_file),
            (FileAttributes::DIRECTORY, 77, 0)
        );
        assert_eq!(whole.end_of_file, 7);
    })
    .unwrap();
}

#[test]
fn what_is_fetched_ahead_is_not_gone_through_with_every_request() {
    use super::super::ahead::HANDLED;
    run(async |b| {
        b.mkdir("d").await;
        for i in 0..2000 {
            b.put(&format!("d\\{i}"), b"").await;
        }
        let dir = b.open(&Wish::dir("d")).await.unwrap();
        let (before, mut listed) = (HANDLED.get(), 0);
        while query(&b, dir, "*", Flags::RETURN_SINGLE_ENTRY, 4096).await.is_ok() {
            listed += 1;
        }
        let handled = HANDLED.get() - before;
        assert_eq!(listed, 2002);
        assert!(handled <= 2 * listed, "{handled} for {listed}");
        b.close(dir).await.unwrap();
    });
}

#[test]
fn listings_are_whole_and_patterns_choose() {
    run(async |b| {
        b.mkdir("d").await;
        for i in 0..50 {
            b.put(&format!("d\\file {i:02}.txt"), b"x").await;
        }
        b.put("d\\Straße", b"x").await;
        let all = names(&b, "d", "*").await.unwrap();
        assert_eq!(all.len(), 53);
        assert_eq!(
            (&all[..3], &all[52]),
            (&[".".to_owned(), "..".into(), "Straße".into()][..], &"file 49.txt".into())
        );
        assert_eq!(names(&b, "d", "FILE 1?.TXT").await.unwrap().len(), 10);
        assert_eq!(names(&b, "d", "<.txt").await.unwrap().len(), 50);
        assert_eq!(names(&b, "d", "*.*").await.unwrap().len(), 53);
        assert_eq!(names(&b, "d", "STRAßE").await.unwrap(), ["Straße"]);
        assert_eq!(names(&b, "d", "..").await.unwrap(), [".."]);
        for (pattern, wanted) in [
            ("none", NtStatus::NO_SUCH_FILE),
            ("none*", NtStatus::NO_SUCH_FILE),
            ("a\\b", NtStatus::OBJECT_NAME_INVALID),
        ] {
            assert_eq!(status(names(&b, "d", pattern).await), wanted);
        }
        assert_eq!(names(&b, "", "*").await.unwrap(), [".", "..", "d"]);
    });
}

#[test]
fn listings_start_over_when_asked() {
    run(async |b| {
        for name in ["a", "b", "c"] {
            b.put(name, b"x").await;
        }
        let dir = b.open(&Wish::dir("")).await.unwrap();
        let single = Flags::RETURN_SINGLE_ENTRY;
        let one =
            async |pattern, flags| query(&b, dir, pattern, flags, 4096).await.map(|(_, e)| e[0].name.clone());
        assert_eq!(one("?", single).await.unwrap(), ".");
        assert_eq!(one("", single).await.unwrap(), "a");
        // The earlier pattern stays, whatever is sent now.
        assert_eq!(one("z", single).await.unwrap(), "b");
        assert_eq!(one("", single | Flags::RESTART_SCANS).await.unwrap(), ".");
        assert_eq!(one("b", single | Flags::REOPEN).await.unwrap(), "b");
        assert_eq!(status(one("", single).await), NtStatus::NO_MORE_FILES);
        assert_eq!(status(one("z", single | Flags::RESTART_SCANS).await), NtStatus::NO_SUCH_FILE);
        let (_, rest) = query(&b, dir, "*", Flags::RESTART_SCANS, 4096).await.unwrap();
        assert_eq!(rest.len(), 5);
    });
}

#[test]
fn entries_say_what_the_file_says() {
    run(async |b| {
        b.put(".profile", b"12345").await;
        let dir = b.open(&Wish::dir("")).await.unwrap();
        let (_, entries) = query(&b, dir, ".profile", Flags::NONE, 4096).await.unwrap();
        let file = b.create(&Wish::file(".profile")).await.unwrap();
        let entry = &entries[0];
        assert_eq!(entry.end_of_file, 5);
        assert_eq!(entry.attributes, FileAttributes::ARCHIVE | FileAttributes::HIDDEN);
        assert_eq!(entry.last_write_time, file.summary.last_write_time);
        assert_eq!(entry.creation_time, file.summary.creation_time);
        assert_eq!(entry.allocation_size, file.summary.allocation_size);
        // Derived from the file and not from when it was seen: the same after a restart.
        let attr = b.vfs.lookup(weft_store::vfs::NodeId::ROOT, b".profile", false).await.unwrap();
        assert_eq!(entry.file_id, attr.stable.number());
    });
}

#[test]
fn small_buffers() {
    run(async |b| {
        b.put("a name that is longer than nothing", b"x").await;
        let dir = b.open(&Wish::dir("")).await.unwrap();
        assert_eq!(status(query(&b, dir, "a*", Flags::NONE, 103).await), NtStatus::INFO_LENGTH_MISMATCH);
        assert_eq!(
            query(&b, dir, "a*", Flags::RESTART_SCANS, 110).await.unwrap().0,
            NtStatus::BUFFER_OVERFLOW
        );
        assert_eq!(status(query(&b, dir, "", Flags::NONE, 4096).await), NtStatus::NO_MORE_FILES);
        assert_eq!(status(query(&b, dir, "", Flags::NONE, 0).await), NtStatus::NO_MORE_FILES);
        assert_eq!(status(query(&b, dir, "", Flags::NONE, u32::MAX).await), NtStatus::INVALID_PARAMETER);
        let file = b.open(&Wish::file("a name that is longer than nothing")).await.unwrap();
        assert_eq!(status(query(&b, file, "*", Flags::NONE, 4096).await), NtStatus::INVALID_PARAMETER);
        let blind =
            b.open(&Wish { access: AccessMask::FILE_READ_ATTRIBUTES, ..Wish::dir("") }).await.unwrap();
        assert_eq!(status(query(&b, blind, "*", Flags::NONE, 4096).await), NtStatus::ACCESS_DENIED);
        for (class, wanted) in [(4, NtStatus::INVALID_INFO_CLASS), (78, NtStatus::NOT_SUPPORTED)] {
            let request = Request {
                class: FileClass(class),
                flags: Flags::NONE,
                file_index: 0,
                file: dir,
                output_buffer_length: 4096,
                pattern: "*".into(),
            };
            assert_eq!(status(b.ask(Command::QueryDirectory, |out| request.emit(out)).await), wanted);
        }
    });
}

/// Names from other systems: reserved characters and non-UTF-8 bytes are shown as substitutes, by which the file can be
/// opened.
#[test]
fn foreign_names() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("a:b?"), "colon").unwrap();
    std::fs::write(folder.path().join(std::ffi::OsStr::from_bytes(b"\xff\xfe")), "latin").unwrap();
    let story = async |b: Bench| {
        let names = names(&b, "", "a*").await.unwrap();
        assert_eq!(names, ["a\u{f022}b\u{f025}"]);
        let file = b.open(&Wish::file(&names[0])).await.unwrap();
        assert_eq!(payload::read(&b, file, 0, 10).await.unwrap(), b"colon");
        let names = super::listing::names(&b, "", "*").await.unwrap();
        assert!(names.contains(&"\u{efff}\u{effe}".to_owned()), "{names:?}");
        let file = b.open(&Wish::file("\u{efff}\u{effe}")).await.unwrap();
        assert_eq!(payload::read(&b, file, 0, 10).await.unwrap(), b"latin");
        b.close(file).await.unwrap();
        // A name that a client creates with substitutes works too, and can be removed: the folder can be emptied.
        b.put("caf\u{efe9}", b"new").await;
        assert!(folder.path().join(std::ffi::OsStr::from_bytes(b"caf\xe9")).exists());
        for name in ["caf\u{efe9}", "\u{efff}\u{effe}"] {
            let options = CreateOptions::DELETE_ON_CLOSE;
            b.close(b.open(&Wish { options, ..Wish::file(name) }).await.unwrap()).await.unwrap();
        }
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
    };
    rt::block_on(story(Bench::with(Dir::open(folder.path()).unwrap().into(), Dialect::V3_1_1, false)))
        .unwrap();
}

/// Names stored with substitutes: listed files can be opened, and collide with the same names.
#[test]
fn names_that_are_kept_in_disguise() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::create_dir(folder.path().join("d\u{f025}")).unwrap();
    std::fs::write(folder.path().join("d\u{f025}/a\u{f022}b"), "kept").unwrap();
    let story = async |b: Bench| {
        for (dir, shown) in [("", "d\u{f025}"), ("d\u{f025}", "a\u{f022}b")] {
            assert_eq!(names(&b, dir, "?*").await.unwrap().last().map(|name| &name[..]), Some(shown));
        }
        // In any case.
        for name in ["d\u{f025}\\a\u{f022}b", "D\u{f025}\\A\u{f022}B"] {
            let file = b.open(&Wish::file(name)).await.unwrap();
            assert_eq!(payload::read(&b, file, 0, 10).await.unwrap(), b"kept");
        }
        let again = Wish { disposition: CreateDisposition::Create, ..Wish::file("d\u{f025}\\a\u{f022}b") };
        assert_eq!(status(b.open(&again).await), NtStatus::OBJECT_NAME_COLLISION);
        // The name with the original characters takes precedence, as soon as it exists.
        std::fs::write(folder.path().join("d\u{f025}/a:b"), "meant").unwrap();
        let file = b.open(&Wish::file("d\u{f025}\\a\u{f022}b")).await.unwrap();
        assert_eq!(payload::read(&b, file, 0, 10).await.unwrap(), b"meant");
    };
    rt::block_on(story(Bench::with(Dir::open(folder.path()).unwrap().into(), Dialect::V3_1_1, false)))
        .unwrap();
}

#[test]
fn what_changes_between_two_requests_is_listed_as_it_is() {
    run(async |b| {
        for name in ["a", "b", "c"] {
            b.put(name, b"").await;
        }
        let dir = b.open(&Wish::dir("")).await.unwrap();
        let mut seen = Vec::new();
        for _ in 0..3 {
            let (_, entries) = query(&b, dir, "*", Flags::RETURN_SINGLE_ENTRY, 4096).await.unwrap();
            seen.extend(entries.into_iter().map(|entry| entry.name));
        }
        // Two of the prefetched files are left; they are removed, and another is created.
        assert_eq!(seen[..2], [".", ".."]);
        let root = weft_store::NodeId::ROOT;
        for name in ["a", "b", "c"].into_iter().filter(|name| *name != seen[2]) {
            b.vfs.remove(root, name.as_bytes()).await.unwrap();
        }
        b.put("new", b"").await;
        let (_, entries) = query(&b, dir, "*", Flags::NONE, 4096).await.unwrap();
        assert_eq!(entries.iter().map(|entry| &entry.name[..]).collect::<Vec<_>>(), ["new"]);
    });
}

/// The cost of an entry depends on the pattern, and on who may see it.
#[test]
fn others_have_their_turn_between_the_entries_of_a_listing() {
    for pattern in ["*x", "*"] {
        let turns = turns_of_others(async {
            let b = Bench::new();
            b.mkdir("d").await;
            let file = b.open(&Wish { disposition: CreateDisposition::Create, ..Wish::file("d\\0") }).await;
            b.close(file.unwrap()).await.unwrap();
            let d = b.vfs.lookup(weft_store::vfs::NodeId::ROOT, b"d", false).await.unwrap().node;
            let f = b.vfs.lookup(d, b"0", false).await.unwrap().node;
            for n in 1..300 {
                b.vfs.link(f, d, n.to_string().as_bytes()).await.unwrap();
            }
            let dir = b.open(&Wish::dir("d")).await.unwrap();
            let _ = query(&b, dir, pattern, Flags::NONE, 1 << 16).await;
        });
        assert!(turns >= 75, "{turns}");
    }
}
