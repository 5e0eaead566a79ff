//! Named streams, as clients use them.

use weft_machine::sim::turns_of_others;
use weft_wire::smb2::fscc::FileClass;
use weft_wire::smb2::fscc::file::{DispositionEx, DispositionFlags, Rename, Stream};
use weft_wire::smb2::query_info::{self, InfoType};
use weft_wire::smb2::set_info;

use super::*;

async fn streams(b: &Bench, file: FileId) -> Vec<(String, u64)> {
    let request = query_info::Request {
        info_type: InfoType::FILE,
        class: FileClass::STREAM.0,
        output_buffer_length: 4096,
        additional_information: 0,
        flags: 0,
        file,
        input: Bytes::new(),
    };
    let message = b.ask(Command::QueryInfo, |out| request.emit(out)).await.unwrap();
    let list = Stream::parse_list(&query_info::Response::parse(&message).unwrap().buffer).unwrap();
    list.into_iter().map(|stream| (stream.name, stream.size)).collect()
}

async fn set(
    b: &Bench,
    file: FileId,
    class: FileClass,
    emit: impl FnOnce(&mut Vec<u8>),
) -> Result<(), NtStatus> {
    let mut buffer = Vec::new();
    emit(&mut buffer);
    let request = set_info::Request {
        info_type: InfoType::FILE,
        class: class.0,
        additional_information: 0,
        file,
        buffer: buffer.into(),
    };
    b.ask(Command::SetInfo, |out| request.emit(out)).await.map(drop)
}

#[test]
fn streams_are_made_listed_and_removed_with_their_file() {
    run(async |b| {
        b.put("f", b"main").await;
        b.put("f:Zone.Identifier:$DATA", b"[ZoneTransfer]").await;
        b.put("f:a", b"").await;
        let file = b.open(&Wish::file("f")).await.unwrap();
        let all = [("::$DATA", 4), (":Zone.Identifier:$DATA", 14), (":a:$DATA", 0)];
        assert_eq!(streams(&b, file).await, all.map(|(name, size)| (name.to_owned(), size)));
        let stream = b.create(&Wish::file("F:zone.identifier")).await.unwrap();
        assert_eq!(stream.summary.end_of_file, 14);
        assert_eq!(streams(&b, stream.file).await.len(), 3);
        assert_eq!(status(b.open(&Wish::file("f:none")).await), NtStatus::OBJECT_NAME_NOT_FOUND);
        assert_eq!(status(b.open(&Wish::dir("f:a")).await), NtStatus::NOT_A_DIRECTORY);
        let again = Wish { disposition: CreateDisposition::Create, ..Wish::file("f:A") };
        assert_eq!(status(b.open(&again).await), NtStatus::OBJECT_NAME_COLLISION);
        // The file is created for its stream; a directory can have streams without having data.
        b.put("new:s", b"1").await;
        assert!(b.exists("new").await);
        b.mkdir("d").await;
        b.put("d:s", b"12").await;
        let dir = b.open(&Wish::dir("d")).await.unwrap();
        assert_eq!(streams(&b, dir).await, [(":s:$DATA".to_owned(), 2)]);
        // Overwriting the file removes its streams.
        b.close(stream.file).await.unwrap();
        b.put("f", b"").await;
        assert_eq!(streams(&b, file).await, [("::$DATA".to_owned(), 0)]);
    });
}

#[test]
fn a_stream_is_deleted_shared_and_renamed_by_itself() {
    run(async |b| {
        b.put("f", b"main").await;
        b.put("f:s", b"stream").await;
        let alone = Wish { share: ShareAccess::NONE, ..Wish::file("f:s") };
        let stream = b.open(&alone).await.unwrap();
        assert_eq!(status(b.open(&Wish::file("f:S")).await), NtStatus::SHARING_VIOLATION);
        // Its file is independent, except for what removes the stream too.
        let reads = Wish { access: AccessMask::FILE_READ_DATA, ..Wish::file("f") };
        b.close(b.open(&reads).await.unwrap()).await.unwrap();
        let rename = |name: &str| Rename { replace_if_exists: false, root_directory: 0, name: name.into() };
        let to = async |name: &str| set(&b, stream, FileClass::RENAME, |out| rename(name).emit(out)).await;
        to(":t").await.unwrap();
        assert_eq!(to("g").await, Err(NtStatus::INVALID_PARAMETER));
        assert_eq!(to("::$DATA").await, Err(NtStatus::INVALID_PARAMETER));
        assert!(!b.exists("f:s").await);
        b.put("f:u", b"").await;
        assert_eq!(to(":U").await, Err(NtStatus::OBJECT_NAME_COLLISION));
        let delete = DispositionEx { flags: DispositionFlags::DELETE };
        set(&b, stream, FileClass::DISPOSITION_EX, |out| delete.emit(out)).await.unwrap();
        assert_eq!(status(b.open(&Wish::file("f:t")).await), NtStatus::DELETE_PENDING);
        b.close(stream).await.unwrap();
        assert!(!b.exists("f:t").await && b.exists("f:u").await && b.exists("f").await);
    });
}

#[test]
fn a_file_that_is_deleted_waits_for_its_streams() {
    run(async |b| {
        b.put("f:s", b"stream").await;
        let stream = b.open(&Wish::file("f:s")).await.unwrap();
        let goes = CreateOptions::DELETE_ON_CLOSE | CreateOptions::NON_DIRECTORY_FILE;
        let file = b.open(&Wish { options: goes, ..Wish::file("f") }).await.unwrap();
        b.close(file).await.unwrap();
        assert_eq!(status(b.open(&Wish::file("f")).await), NtStatus::DELETE_PENDING);
        assert_eq!(status(b.open(&Wish::file("f:s")).await), NtStatus::DELETE_PENDING);
        b.close(stream).await.unwrap();
        assert!(!b.exists("f").await);
        // A stream that does not share deletion prevents the deletion of its file.
        b.put("f:s", b"stream").await;
        let share = ShareAccess::READ | ShareAccess::WRITE;
        let stream = b.open(&Wish { share, ..Wish::file("f:s") }).await.unwrap();
        let delete = Wish { access: AccessMask::DELETE, ..Wish::file("f") };
        assert_eq!(status(b.open(&delete).await), NtStatus::SHARING_VIOLATION);
        b.close(stream).await.unwrap();
        b.close(b.open(&delete).await.unwrap()).await.unwrap();
    });
}

#[test]
fn a_directory_with_open_files_below_stays_where_it_is() {
    run(async |b| {
        b.mkdir("d").await;
        b.mkdir("d\\e").await;
        b.put("d\\e\\f", b"").await;
        let file = b.open(&Wish::file("d\\e\\f")).await.unwrap();
        let dir = b.open(&Wish::dir("d")).await.unwrap();
        let rename = Rename { replace_if_exists: false, root_directory: 0, name: "new".into() };
        let moved = async || set(&b, dir, FileClass::RENAME, |out| rename.emit(out)).await;
        assert_eq!(moved().await, Err(NtStatus::ACCESS_DENIED));
        b.close(file).await.unwrap();
        moved().await.unwrap();
        assert!(b.exists("new\\e\\f").await);
    });
}

#[test]
fn a_file_that_is_open_to_be_deleted_takes_streams_along() {
    run(async |b| {
        b.put("f:s", b"stream").await;
        let deletes = Wish { access: AccessMask::DELETE, ..Wish::file("f") };
        let file = b.open(&deletes).await.unwrap();
        let share = ShareAccess::READ | ShareAccess::WRITE;
        for (name, disposition) in [("f:s", CreateDisposition::Open), ("f:t", CreateDisposition::Create)] {
            let stream = Wish { share, disposition, ..Wish::file(name) };
            assert_eq!(status(b.open(&stream).await), NtStatus::SHARING_VIOLATION, "{name}");
            // Opening for attributes never conflicts.
            let looks = Wish { access: AccessMask::FILE_READ_ATTRIBUTES, ..stream };
            b.close(b.open(&looks).await.unwrap()).await.unwrap();
        }
        b.close(file).await.unwrap();
        b.close(b.open(&Wish { share, ..Wish::file("f:s") }).await.unwrap()).await.unwrap();
    });
}

/// The space that the files of a folder occupy, in bytes.
fn occupied(folder: &std::path::Path) -> u64 {
    let entries = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap());
    let of = |entry: std::fs::DirEntry| match entry.file_type().unwrap().is_dir() {
        true => occupied(&entry.path()),
        false => std::os::unix::fs::MetadataExt::blocks(&entry.metadata().unwrap()) * 512,
    };
    entries.map(of).sum()
}

/// Streams of any length: larger than a file system's attributes, and preserved across restarts.
#[test]
fn large_streams_are_written_read_renamed_replaced_and_give_their_space_back() {
    const MIB: usize = 1 << 20;
    let folder = tempfile::tempdir().unwrap();
    let bench = || {
        let dir = weft_store::backend::Dir::open(folder.path()).unwrap();
        Bench::with(dir.into(), weft_wire::smb2::Dialect::V3_1_1, false)
    };
    let piece = |n: usize| (0..MIB).map(|i| (i / 5 + n) as u8).collect::<Vec<u8>>();
    for mib in [1, 100] {
        let size = (mib * MIB) as u64;
        rt::block_on(async {
            let b = bench();
            b.put("f", b"main").await;
            b.put("f:s", b"").await;
            let stream = b.open(&Wish::file("f:s")).await.unwrap();
            for n in 0..mib {
                let written = payload::write(&b, stream, (n * MIB) as u64, &piece(n)).await;
                assert_eq!(written, Ok(MIB as u32));
            }
            let all = [("::$DATA".to_owned(), 4), (":s:$DATA".to_owned(), size)];
            assert_eq!(streams(&b, stream).await, all);
            let to = |name: &str| Rename { replace_if_exists: true, root_directory: 0, name: name.into() };
            set(&b, stream, FileClass::RENAME, |out| to(":t").emit(out)).await.unwrap();
            b.close(stream).await.unwrap();
            let file = b.open(&Wish::file("f")).await.unwrap();
            set(&b, file, FileClass::RENAME, |out| to("g").emit(out)).await.unwrap();
            b.close(file).await.unwrap();
        })
        .unwrap();
        rt::block_on(async {
            let b = bench();
            let stream = b.create(&Wish::file("G:T")).await.unwrap();
            assert_eq!(stream.summary.end_of_file, size);
            for n in 0..mib {
                // An answer must fit into a message with its header.
                let mut read = Vec::new();
                while read.len() < MIB {
                    let at = (n * MIB + read.len()) as u64;
                    read.extend(payload::read(&b, stream.file, at, MIB as u32 / 2).await.unwrap());
                }
                let differs = read.iter().zip(&piece(n)).position(|(is, was)| is != was);
                assert_eq!((read.len(), differs), (MIB, None), "piece {n} of {mib}");
            }
            b.close(stream.file).await.unwrap();
            assert!(!b.exists(".weft-streams").await);
            assert!(occupied(folder.path()) >= size);
            b.put("new", b"").await;
            let new = b.open(&Wish::file("new")).await.unwrap();
            let over = Rename { replace_if_exists: true, root_directory: 0, name: "g".into() };
            set(&b, new, FileClass::RENAME, |out| over.emit(out)).await.unwrap();
            assert_eq!(streams(&b, new).await, [("::$DATA".to_owned(), 0)]);
            b.close(new).await.unwrap();
            assert!(occupied(folder.path()) < MIB as u64, "replaced");
            // Overwritten, and deleted.
            b.put("g:t", &piece(0)).await;
            b.put("g", b"").await;
            assert!(occupied(folder.path()) < MIB as u64, "overwritten");
            b.put("g:t", &piece(0)).await;
            let goes = CreateOptions::DELETE_ON_CLOSE | CreateOptions::NON_DIRECTORY_FILE;
            b.close(b.open(&Wish { options: goes, ..Wish::file("g") }).await.unwrap()).await.unwrap();
            assert!(occupied(folder.path()) < MIB as u64, "deleted");
        })
        .unwrap();
    }
}

/// Thousands of streams fit a memory disk; repeated queries fetch only the beginning of their list.
#[test]
fn a_list_of_streams_ends_where_the_answer_is_full_and_gives_others_their_turn() {
    let turns = |limit: u32| {
        turns_of_others(async move {
            let b = Bench::new();
            let new = Wish { disposition: CreateDisposition::Create, ..Wish::file("f") };
            let file = b.open(&new).await.unwrap();
            let node = b.vfs.lookup(weft_store::vfs::NodeId::ROOT, b"f", false).await.unwrap().node;
            for n in 0..200 {
                b.vfs.stream(node, format!("s{n}").as_bytes(), true).await.unwrap();
            }
            let request = query_info::Request {
                info_type: InfoType::FILE,
                class: FileClass::STREAM.0,
                output_buffer_length: limit,
                additional_information: 0,
                flags: 0,
                file,
                input: Bytes::new(),
            };
            let reply = b.answer(Command::QueryInfo, |out| request.emit(out)).await.unwrap();
            let whole = if limit < 4096 { NtStatus::BUFFER_OVERFLOW } else { NtStatus::SUCCESS };
            assert_eq!(reply.status, whole);
        })
    };
    let (first, all) = (turns(128), turns(65_536));
    assert!(all >= first + 50, "{first} and {all}");
}
