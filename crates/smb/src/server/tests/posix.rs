//! The POSIX extensions: negotiated in NEGOTIATE, then modes, links, owners and exact names.

use std::os::unix::fs::{MetadataExt, PermissionsExt};

use weft_store::backend::Dir;
use weft_store::vfs::{Share, Vfs};
use weft_wire::security::{Ace, AceFlags, Dacl, SecurityDescriptor, Sid};
use weft_wire::smb2::access::AccessMask;
use weft_wire::smb2::create::{self, CreateAction, CreateDisposition, CreateOptions};
use weft_wire::smb2::create_context::{RequestContext, ResponseContext};
use weft_wire::smb2::fscc::file::Rename;
use weft_wire::smb2::fscc::filesystem;
use weft_wire::smb2::fscc::{FileClass, FsClass, directory};
use weft_wire::smb2::ioctl::{self, CtlCode};
use weft_wire::smb2::negotiate::Context;
use weft_wire::smb2::posix::{EXTENSIONS, FileType, Information, Posix, mode};
use weft_wire::smb2::query_info::{InfoType, SecurityInformation};
use weft_wire::smb2::{Command, FileId, NtStatus, query_directory, query_info, set_info};

use super::harness::*;

fn served(dir: &std::path::Path, posix: bool) -> World {
    World::with(|config| {
        config.shares = vec![Share::new("Data", Vfs::new(Dir::open(dir).unwrap()))];
        config.offers.posix = posix;
    })
}

/// A client that asks for these versions, and whether they were granted.
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
        // Every query returns the same file number.
        let contexts = vec![RequestContext::OnDiskId, RequestContext::Posix { mode: 0 }];
        let request = create::Request {
            contexts,
            disposition: CreateDisposition::Open,
            ..create_request("f", CreateOptions::NONE)
        };
        let (_, body) = alice.call(Command::Create, |out| request.emit(out)).await;
        let answered = create::Response::parse(&body).unwrap();
        let on_disk = answered.contexts.into_iter().find_map(|context| match context {
            ResponseContext::OnDiskId { file_id, .. } => Some(file_id),
            _ => None,
        });
        assert_eq!(on_disk, Some(disk.ino()));
        assert_eq!(alice.close(answered.file).await, NtStatus::SUCCESS);
        open(&mut alice, "d", MKDIR, 0o750).await.unwrap();
        assert_eq!(std::fs::metadata(dir.path().join("d")).unwrap().permissions().mode() & 0o777, 0o750);
        // An existing file keeps its mode.
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
        // Others on the same server see each one by its own spelling.
        let (mut bob, _) = client(&world, None).await;
        bob.open("NAME", CreateOptions::NONE).await;
        // A file that is removed while open elsewhere loses its name at once.
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

/// The mode of a file in the folder.
fn mode_on_disk(dir: &std::path::Path, name: &str) -> u32 {
    std::fs::symlink_metadata(dir.join(name)).unwrap().permissions().mode() & 0o7777
}

#[test]
fn paths_as_linux_writes_them() {
    let dir = tempfile::tempdir().unwrap();
    story(async {
        let world = served(dir.path(), true);
        let (mut alice, _) = client(&world, Some(vec![EXTENSIONS])).await;
        for name in ["d", "d/e"] {
            let (made, ..) = open(&mut alice, name, MKDIR, 0o755).await.unwrap();
            assert_eq!(alice.close(made).await, NtStatus::SUCCESS);
        }
        let (file, ..) = open(&mut alice, "d/e/f", CREATE, 0o644).await.unwrap();
        let mut buffer = Vec::new();
        Rename { replace_if_exists: false, root_directory: 0, name: "d/g".into() }.emit(&mut buffer);
        let (info_type, class) = (InfoType::FILE, FileClass::RENAME.0);
        let rename =
            set_info::Request { info_type, class, additional_information: 0, file, buffer: buffer.into() };
        assert_eq!(alice.status(Command::SetInfo, |out| rename.emit(out)).await, NtStatus::SUCCESS);
        assert!(dir.path().join("d/g").exists());
        open(&mut alice, "d\\g", OPEN, 0).await.unwrap();
        assert_eq!(
            open(&mut alice, "d/../../x", CREATE, 0).await.unwrap_err(),
            NtStatus::OBJECT_PATH_SYNTAX_BAD
        );
        // For others a slash is not allowed in names.
        let (mut bob, _) = client(&world, None).await;
        assert_eq!(open(&mut bob, "d/g", OPEN, 0).await.unwrap_err(), NtStatus::OBJECT_NAME_INVALID);
    });
}

async fn rename(client: &mut Client, file: FileId, to: &str) -> NtStatus {
    let mut buffer = Vec::new();
    Rename { replace_if_exists: true, root_directory: 0, name: to.into() }.emit(&mut buffer);
    let (info_type, class) = (InfoType::FILE, FileClass::RENAME.0);
    let request =
        set_info::Request { info_type, class, additional_information: 0, file, buffer: buffer.into() };
    client.status(Command::SetInfo, |out| request.emit(out)).await
}

#[test]
fn a_folder_moves_with_what_is_open_in_it() {
    let dir = tempfile::tempdir().unwrap();
    story(async {
        let world = served(dir.path(), true);
        let (mut alice, _) = client(&world, Some(vec![EXTENSIONS])).await;
        let (folder, ..) = open(&mut alice, "d", MKDIR, 0o755).await.unwrap();
        let (old, ..) = open(&mut alice, "d/old", CREATE, 0o644).await.unwrap();
        assert_eq!(rename(&mut alice, folder, "e").await, NtStatus::SUCCESS);
        assert_eq!(rename(&mut alice, old, "e/new").await, NtStatus::SUCCESS);
        assert_eq!(alice.write(old, b"data").await, NtStatus::SUCCESS);
        assert_eq!(std::fs::read(dir.path().join("e/new")).unwrap(), b"data");
    });
}

#[test]
fn a_folder_takes_the_place_of_one_that_is_empty() {
    let dir = tempfile::tempdir().unwrap();
    story(async {
        let world = served(dir.path(), true);
        let (mut alice, _) = client(&world, Some(vec![EXTENSIONS])).await;
        for name in ["empty", "used", "full"] {
            std::fs::create_dir(dir.path().join(name)).unwrap();
        }
        std::fs::write(dir.path().join("full/file"), b"").unwrap();
        let (folder, ..) = open(&mut alice, "d", MKDIR, 0o755).await.unwrap();
        let (file, ..) = open(&mut alice, "d/file", CREATE, 0o644).await.unwrap();
        let (used, ..) = open(&mut alice, "used", OPEN, 0).await.unwrap();
        assert_eq!(rename(&mut alice, folder, "full").await, NtStatus::DIRECTORY_NOT_EMPTY);
        assert_eq!(rename(&mut alice, folder, "used").await, NtStatus::ACCESS_DENIED);
        assert_eq!(rename(&mut alice, file, "empty").await, NtStatus::ACCESS_DENIED);
        assert_eq!(alice.close(used).await, NtStatus::SUCCESS);
        for name in ["empty", "used"] {
            assert_eq!(rename(&mut alice, folder, name).await, NtStatus::SUCCESS);
            assert!(dir.path().join(name).join("file").exists());
        }
        assert!(!dir.path().join("empty").exists());
        // Others may not replace folders.
        let (mut bob, _) = client(&world, None).await;
        std::fs::create_dir(dir.path().join("empty")).unwrap();
        let (folder, ..) = open(&mut bob, "used", OPEN, 0).await.unwrap();
        assert_eq!(rename(&mut bob, folder, "empty").await, NtStatus::ACCESS_DENIED);
    });
}

async fn chmod(client: &mut Client, file: FileId, mode: u32) -> NtStatus {
    let sid = Sid { authority: 5, sub_authorities: vec![88, 3, mode] };
    let dacl = Dacl::List(vec![Ace::allow(sid, AccessMask::NONE, AceFlags::NONE)]);
    let request = set_info::Request {
        info_type: InfoType::SECURITY,
        class: 0,
        additional_information: SecurityInformation::DACL.0,
        file,
        buffer: SecurityDescriptor { dacl, ..SecurityDescriptor::default() }.to_bytes().into(),
    };
    client.status(Command::SetInfo, |out| request.emit(out)).await
}

#[test]
fn a_mode_is_set_by_the_list_that_stands_for_it() {
    let dir = tempfile::tempdir().unwrap();
    story(async {
        let world = served(dir.path(), true);
        let (mut alice, _) = client(&world, Some(vec![EXTENSIONS])).await;
        // A mode of all ones means none, and set-id programs cannot be made.
        let (file, ..) = open(&mut alice, "f", CREATE, 0xffff).await.unwrap();
        assert_eq!(mode_on_disk(dir.path(), "f") & 0o7022, 0);
        open(&mut alice, "s", CREATE, 0o6755).await.unwrap();
        assert_eq!(mode_on_disk(dir.path(), "s"), 0o755);
        for (asked, kept) in [(0, 0), (0o604, 0o604), (0o6755, 0o755), (0o1640, 0o1640)] {
            assert_eq!(chmod(&mut alice, file, asked).await, NtStatus::SUCCESS);
            assert_eq!(mode_on_disk(dir.path(), "f"), kept);
            assert_eq!(query(&mut alice, file).await.unwrap().posix.mode, mode(FileType::Regular, kept));
            // An ACL that allows nothing excludes nobody, except from writing what nobody may write.
            let again = open(&mut alice, "f", OPEN, 0).await;
            assert_eq!(again.is_ok(), kept & 0o222 != 0);
            if let Ok((again, ..)) = again {
                assert_eq!(alice.close(again).await, NtStatus::SUCCESS);
            }
        }
        let (folder, ..) = open(&mut alice, "d", MKDIR, 0o755).await.unwrap();
        assert_eq!(chmod(&mut alice, folder, 0o3770).await, NtStatus::SUCCESS);
        assert_eq!(mode_on_disk(dir.path(), "d"), 0o3770);
        // For others it is an ACL like any other.
        let (mut bob, _) = client(&world, None).await;
        let (file, ..) = open(&mut bob, "s", OPEN, 0).await.unwrap();
        assert_eq!(chmod(&mut bob, file, 0o604).await, NtStatus::SUCCESS);
        assert_ne!(mode_on_disk(dir.path(), "s"), 0o604);
    });
}

#[test]
fn the_file_system_is_counted_as_statvfs_does() {
    let dir = tempfile::tempdir().unwrap();
    story(async {
        let world = served(dir.path(), true);
        let ask = async |versions| {
            let (mut client, _) = client(&world, versions).await;
            let (file, ..) = open(&mut client, "", OPEN, 0).await.unwrap();
            let request = query_info::Request {
                info_type: InfoType::FILESYSTEM,
                class: FsClass::POSIX.0,
                output_buffer_length: 56,
                additional_information: 0,
                flags: 0,
                file,
                input: Default::default(),
            };
            let (header, body) = client.call(Command::QueryInfo, |out| request.emit(out)).await;
            (header.status, body)
        };
        let (status, body) = ask(Some(vec![EXTENSIONS])).await;
        assert_eq!(status, NtStatus::SUCCESS);
        let told = query_info::Response::parse(&body).unwrap().buffer;
        let space = filesystem::Posix::parse(&told).unwrap();
        assert_eq!((told.len(), space.block_size), (56, 4096));
        assert!(space.available_blocks <= space.free_blocks && space.free_blocks <= space.total_blocks);
        assert!(space.total_blocks > 0 && space.free_files <= space.total_files);
        (0..told.len()).for_each(|len| assert!(filesystem::Posix::parse(&told[..len]).is_err()));
        assert_eq!(ask(None).await.0, NtStatus::INVALID_INFO_CLASS);
    });
}

#[test]
fn pipes_and_sockets_are_made_and_the_handle_is_theirs() {
    let dir = tempfile::tempdir().unwrap();
    story(async {
        let world = served(dir.path(), true);
        let (mut alice, _) = client(&world, Some(vec![EXTENSIONS])).await;
        let nfs = |what: &[u8]| {
            let len = (what.len() as u16).to_le_bytes();
            [&[0x14, 0, 0, 0x80][..], &len, &[0, 0], what].concat()
        };
        let control = async |client: &mut Client, code, file, input: Vec<u8>| {
            let (max_input_response, max_output_response) = (0, 4096);
            let (flags, input) = (ioctl::Flags::IS_FSCTL, input.into());
            let request =
                ioctl::Request { code, file, input, max_input_response, max_output_response, flags };
            let (header, body) = client.call(Command::Ioctl, |out| request.emit(out)).await;
            match header.status {
                NtStatus::SUCCESS => Ok(ioctl::Response::parse(&body).unwrap().output.to_vec()),
                status => Err(status),
            }
        };
        let (get, set) = (CtlCode::GET_REPARSE_POINT, CtlCode::SET_REPARSE_POINT);
        for (name, what, kind) in
            [("pipe", b"FIFO\0\0\0\0", FileType::Fifo), ("socket", b"SOCK\0\0\0\0", FileType::Socket)]
        {
            let (file, ..) = open(&mut alice, name, CREATE, 0o640).await.unwrap();
            control(&mut alice, set, file, nfs(what)).await.unwrap();
            let known = query(&mut alice, file).await.unwrap();
            assert_eq!((known.posix.mode, known.posix.reparse_tag), (mode(kind, 0o640), 0x8000_0014));
            assert_eq!(control(&mut alice, get, file, Vec::new()).await.unwrap(), nfs(what));
            assert_eq!(mode_on_disk(dir.path(), name), 0o640);
            assert_eq!(chmod(&mut alice, file, 0o604).await, NtStatus::SUCCESS);
            assert_eq!(mode_on_disk(dir.path(), name), 0o604);
            assert_eq!(alice.close(file).await, NtStatus::SUCCESS);
        }
        // A link and its target, as Linux writes it.
        let data = |target: &str| {
            let target: Vec<u8> = target.encode_utf16().flat_map(u16::to_le_bytes).collect();
            let len = target.len() as u8;
            let places = [0, 0, len, 0, 0, 0, len, 0, 1, 0, 0, 0];
            [&[0x0C, 0, 0, 0xA0, 12 + len, 0, 0, 0][..], &places, &target].concat()
        };
        let (file, ..) = open(&mut alice, "link", CREATE, 0o640).await.unwrap();
        control(&mut alice, set, file, data("d/../pipe")).await.unwrap();
        // A link has no mode of its own.
        assert_eq!(chmod(&mut alice, file, 0o604).await, NtStatus::NOT_SUPPORTED);
        assert_eq!(query(&mut alice, file).await.unwrap().posix.mode >> 12, FileType::Symlink as u32);
        assert_eq!(control(&mut alice, get, file, Vec::new()).await.unwrap(), data("d/../pipe"));
        assert_eq!(std::fs::read_link(dir.path().join("link")).unwrap().to_str(), Some("d/../pipe"));
        // Opening it returns the same.
        let contexts = vec![RequestContext::Posix { mode: 0 }];
        let follow = create::Request { contexts, ..create_request("link", CreateOptions::NONE) };
        let (header, body) = alice.call(Command::Create, |out| follow.emit(out)).await;
        assert_eq!(header.status, NtStatus::STOPPED_ON_SYMLINK);
        let spelled: Vec<u8> = "d/../pipe".encode_utf16().flat_map(u16::to_le_bytes).collect();
        assert!(body.windows(spelled.len()).any(|part| part == spelled));
        let (file, ..) = open(&mut alice, "device", CREATE, 0o640).await.unwrap();
        let device = nfs(b"CHR\0\0\0\0\0\x01\0\0\0\x03\0\0\0");
        let made = control(&mut alice, set, file, device).await;
        assert_eq!(made.unwrap_err(), NtStatus::ACCESS_DENIED);
        // The pipe becomes a file again, and can be written.
        let (pipe, ..) = open(&mut alice, "pipe", OPEN, 0).await.unwrap();
        control(&mut alice, CtlCode::DELETE_REPARSE_POINT, pipe, nfs(b"")).await.unwrap();
        assert_eq!(alice.write(pipe, b"data").await, NtStatus::SUCCESS);
        assert_eq!(std::fs::read(dir.path().join("pipe")).unwrap(), b"data");
    });
}
