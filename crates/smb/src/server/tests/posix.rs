//! The POSIX extensions: agreed on in NEGOTIATE, then modes, links, owners and exact names.

use std::os::unix::fs::{MetadataExt, PermissionsExt};

use weft_store::backend::Dir;
use weft_store::vfs::{Share, Vfs};
use weft_wire::smb2::create::{self, CreateAction, CreateDisposition, CreateOptions};
use weft_wire::smb2::create_context::{RequestContext, ResponseContext};
use weft_wire::smb2::fscc::{FileClass, directory};
use weft_wire::smb2::negotiate::Context;
use weft_wire::smb2::posix::{EXTENSIONS, FileType, Information, Posix, mode};
use weft_wire::smb2::query_info::InfoType;
use weft_wire::smb2::{Command, FileId, NtStatus, query_directory, query_info, set_info};

use super::harness::*;

fn served(dir: &std::path::Path, posix: bool) -> World {
    World::with(|config| {
        config.shares = vec![Share::new("Data", Vfs::new(Dir::open(dir).unwrap()))];
        config.offers.posix = posix;
    })
}

/// A client that asks for these versions, and whether it got what it asked for.
async fn client(world: &World, versions: Option<Vec<[u8; 16]>>) -> (Client, bool) {
    let mut client = world.connect();
    let mut offer = Offer::default();
    offer.contexts.extend(versions.map(Context::Posix));
    let answer = client.negotiate(offer).await;
    let agreed = answer.contexts.contains(&Context::Posix(vec![EXTENSIONS]));
    client.log_on("alice", PASSWORD).await.unwrap();
    client.tree().await;
    (client, agreed)
}

async fn open(
    client: &mut Client,
    name: &str,
    (disposition, options): (CreateDisposition, CreateOptions),
    mode: u32,
) -> Result<(FileId, CreateAction, Option<Posix>), NtStatus> {
    let contexts = vec![RequestContext::Posix { mode }];
    let request = create::Request { disposition, contexts, ..create_request(name, options) };
    let (header, body) = client.call(Command::Create, |out| request.emit(out)).await;
    match header.status {
        NtStatus::SUCCESS => {
            let response = create::Response::parse(&body).unwrap();
            let told = response.contexts.into_iter().find_map(|context| match context {
                ResponseContext::Posix(posix) => Some(posix),
                _ => None,
            });
            Ok((response.file, response.action, told))
        }
        status => Err(status),
    }
}

const CREATE: (CreateDisposition, CreateOptions) = (CreateDisposition::Create, CreateOptions::NONE);
const OPEN: (CreateDisposition, CreateOptions) = (CreateDisposition::Open, CreateOptions::NONE);
const MKDIR: (CreateDisposition, CreateOptions) = (CreateDisposition::Create, CreateOptions::DIRECTORY_FILE);

async fn query(client: &mut Client, file: FileId) -> Result<Information, NtStatus> {
    let request = query_info::Request {
        info_type: InfoType::FILE,
        class: FileClass::POSIX.0,
        output_buffer_length: 4096,
        additional_information: 0,
        flags: 0,
        file,
        input: Default::default(),
    };
    let (header, body) = client.call(Command::QueryInfo, |out| request.emit(out)).await;
    match header.status {
        NtStatus::SUCCESS => {
            Ok(Information::parse(&query_info::Response::parse(&body).unwrap().buffer).unwrap())
        }
        status => Err(status),
    }
}

#[test]
fn only_who_asks_gets_it_and_only_where_it_is_offered() {
    let dir = tempfile::tempdir().unwrap();
    let other = [7; 16];
    story(async {
        let world = served(dir.path(), true);
        for (versions, expected) in [
            (None, false),
            (Some(vec![other]), false),
            (Some(vec![EXTENSIONS]), true),
            (Some(vec![other, EXTENSIONS]), true),
        ] {
            let (mut client, agreed) = client(&world, versions).await;
            assert_eq!(agreed, expected);
            let name = if expected { "posix" } else { "plain" };
            let wish = (CreateDisposition::OpenIf, CreateOptions::NONE);
            let (file, _, told) = open(&mut client, name, wish, 0o600).await.unwrap();
            assert_eq!(told.is_some(), expected, "what was not agreed on is ignored");
            let asked = query(&mut client, file).await;
            assert_eq!(asked.is_ok(), expected, "{asked:?}");
        }
    });
    let plain = std::fs::metadata(dir.path().join("plain")).unwrap();
    assert_ne!(plain.permissions().mode() & 0o777, 0o600);
    story(async {
        let world = served(dir.path(), false);
        assert!(!client(&world, Some(vec![EXTENSIONS])).await.1);
    });
}

#[test]
fn modes_links_and_owners_are_those_of_the_file() {
    let dir = tempfile::tempdir().unwrap();
    story(async {
        let world = served(dir.path(), true);
        let (mut alice, _) = client(&world, Some(vec![EXTENSIONS])).await;
        let (file, action, told) = open(&mut alice, "f", CREATE, 0o100_640).await.unwrap();
        assert_eq!(action, CreateAction::CREATED);
        let disk = std::fs::metadata(dir.path().join("f")).unwrap();
        assert_eq!(disk.permissions().mode() & 0o7777, 0o640);
        let expected = Posix {
            links: 1,
            reparse_tag: 0,
            mode: mode(FileType::Regular, 0o640),
            owner: weft_wire::security::Sid::unix_user(disk.uid()),
            group: weft_wire::security::Sid::unix_group(disk.gid()),
        };
        assert_eq!(told.unwrap(), expected);
        std::fs::hard_link(dir.path().join("f"), dir.path().join("g")).unwrap();
        assert_eq!(alice.write(file, b"12345").await, NtStatus::SUCCESS);
        let known = query(&mut alice, file).await.unwrap();
        assert_eq!((known.posix.links, known.end_of_file, known.inode), (2, 5, disk.ino()));
        assert_eq!(known.name, "f");
        open(&mut alice, "d", MKDIR, 0o750).await.unwrap();
        assert_eq!(std::fs::metadata(dir.path().join("d")).unwrap().permissions().mode() & 0o777, 0o750);
        // What exists keeps its mode.
        let (_, _, told) = open(&mut alice, "f", OPEN, 0o777).await.unwrap();
        assert_eq!(told.unwrap().mode, mode(FileType::Regular, 0o640));

        let (root, ..) = open(&mut alice, "", OPEN, 0).await.unwrap();
        let request = query_directory::Request {
            class: FileClass::POSIX,
            flags: query_directory::Flags::NONE,
            file_index: 0,
            file: root,
            pattern: "*".into(),
            output_buffer_length: 64 << 10,
        };
        let (header, body) = alice.call(Command::QueryDirectory, |out| request.emit(out)).await;
        assert_eq!(header.status, NtStatus::SUCCESS);
        let buffer = query_directory::Response::parse(&body).unwrap().buffer;
        let mut listed: Vec<_> = directory::parse(FileClass::POSIX, &buffer)
            .unwrap()
            .into_iter()
            .map(|entry| (entry.name, entry.posix.unwrap().posix.mode))
            .collect();
        listed.retain(|(name, _)| !name.starts_with('.'));
        listed.sort();
        let file = mode(FileType::Regular, 0o640);
        let expected = [("d", mode(FileType::Directory, 0o750)), ("f", file), ("g", file)];
        assert_eq!(listed, expected.map(|(name, mode)| (name.to_owned(), mode)));
    });
}

#[test]
fn names_are_what_they_are_spelled_like_and_go_at_once() {
    let dir = tempfile::tempdir().unwrap();
    story(async {
        let world = served(dir.path(), true);
        let (mut alice, _) = client(&world, Some(vec![EXTENSIONS])).await;
        let (lower, ..) = open(&mut alice, "name", CREATE, 0o644).await.unwrap();
        assert_eq!(open(&mut alice, "NAME", OPEN, 0).await.unwrap_err(), NtStatus::OBJECT_NAME_NOT_FOUND);
        let (upper, ..) = open(&mut alice, "NAME", CREATE, 0o644).await.unwrap();
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 2);
        assert_eq!(alice.close(upper).await, NtStatus::SUCCESS);
        // Others, on the same server, see either by its own spelling.
        let (mut bob, _) = client(&world, None).await;
        bob.open("NAME", CreateOptions::NONE).await;
        // A file that is removed while others have it open has no name from then on.
        let (second, ..) = open(&mut alice, "name", OPEN, 0).await.unwrap();
        let delete = set_info::Request {
            info_type: InfoType::FILE,
            class: FileClass::DISPOSITION.0,
            additional_information: 0,
            file: lower,
            buffer: vec![1].into(),
        };
        assert_eq!(alice.status(Command::SetInfo, |out| delete.emit(out)).await, NtStatus::SUCCESS);
        assert_eq!(alice.close(lower).await, NtStatus::SUCCESS);
        assert!(!dir.path().join("name").exists());
        assert_eq!(alice.write(second, b"still").await, NtStatus::SUCCESS);
        open(&mut alice, "name", CREATE, 0o644).await.unwrap();
    });
}
