//! Names of a DFS namespace, and links in it.

use weft_store::rights::Right;
use weft_wire::smb2::access::FileAttributes;
use weft_wire::smb2::dfs;
use weft_wire::smb2::fscc::{FileClass, directory};
use weft_wire::smb2::{ioctl, query_directory};

use super::*;
use crate::auth::Secret;
use crate::server::User;
use crate::server::dfs::{Link, Namespace};

fn story(story: impl AsyncFnOnce(Bench)) {
    let links = ["data/Link=//one/share,//two/share", "data/dir/deep=//three/x", "data/nowhere/x=//four/x"];
    let links = links.into_iter().map(|link| Link::parse(link).unwrap()).collect();
    let offers = Offers { dfs: Namespace::new(links).unwrap(), ..Offers::default() };
    let b = Bench::offering(offers, Ram::new(DISK).into(), Dialect::V3_1_1, false);
    rt::block_on(async {
        // Referrals are for those who have a right on the root.
        let user = User::new("tester", Secret::password("password"));
        b.server.replace_users(&[user], &[]).await;
        story(b).await;
    })
    .unwrap();
}

/// A CREATE whose name is prefixed with the namespace.
async fn open_dfs(b: &Bench, wish: &Wish<'_>) -> Result<FileId, NtStatus> {
    let asker = Asker { flags: Flags::DFS_OPERATIONS, ..b.asker() };
    let cx = b.cx_of(asker, Command::Create, |out| wish.request().emit(out));
    let reply = dispatch(&cx).await.map_err(|failure| failure.status)?;
    Ok(create::Response::parse(&reply.message.into()).unwrap().file)
}

async fn list(b: &Bench, dir: FileId, pattern: &str) -> Vec<directory::Entry> {
    let request = query_directory::Request {
        class: FileClass::ID_BOTH_DIRECTORY,
        flags: query_directory::Flags::RESTART_SCANS,
        file_index: 0,
        file: dir,
        pattern: pattern.into(),
        output_buffer_length: 65536,
    };
    let message = b.ask(Command::QueryDirectory, |out| request.emit(out)).await.unwrap();
    let response = query_directory::Response::parse(&message).unwrap();
    let entries = directory::parse(FileClass::ID_BOTH_DIRECTORY, &response.buffer).unwrap();
    entries.into_iter().filter(|entry| entry.name != "." && entry.name != "..").collect()
}

#[test]
fn names_with_the_namespace_in_front() {
    story(async |b| {
        b.mkdir("dir").await;
        b.put("dir\\f", b"content").await;
        for path in ["srv\\data\\dir\\f", "\\srv.example\\DATA\\dir\\f"] {
            let file = open_dfs(&b, &Wish::file(path)).await.unwrap();
            b.close(file).await.unwrap();
        }
        let root = open_dfs(&b, &Wish::dir("srv\\data")).await.unwrap();
        b.close(root).await.unwrap();
        // Without the flag a name is relative to the share.
        assert!(b.exists("dir\\f").await);
        assert_eq!(status(open_dfs(&b, &Wish::file("dir\\f")).await), NtStatus::OBJECT_PATH_NOT_FOUND);
    });
}

#[test]
fn what_lies_beyond_a_link_is_not_covered() {
    story(async |b| {
        b.mkdir("dir").await;
        for path in ["srv\\data\\link", "srv\\data\\LINK\\a\\b", "srv\\data\\dir\\deep\\x"] {
            assert_eq!(status(open_dfs(&b, &Wish::file(path)).await), NtStatus::PATH_NOT_COVERED, "{path}");
        }
        let make = Wish { disposition: CreateDisposition::Create, ..Wish::file("link") };
        assert_eq!(status(b.open(&make).await), NtStatus::PATH_NOT_COVERED, "it would be hidden");
        assert_eq!(status(b.open(&Wish::file("linked")).await), NtStatus::OBJECT_NAME_NOT_FOUND);
    });
}

#[test]
fn links_are_listed_where_they_lie() {
    story(async |b| {
        b.mkdir("dir").await;
        b.put("file", b"").await;
        // Created locally: the link hides it.
        use weft_store::vfs::{Exists, Make, NodeId, SetAttr};
        b.vfs.create(NodeId::ROOT, b"LINK", Make::File, Exists::Fail, SetAttr::default()).await.unwrap();
        let names = async |path: &str, pattern: &str| {
            let dir = b.open(&Wish::dir(path)).await.unwrap();
            let entries = list(&b, dir, pattern).await;
            b.close(dir).await.unwrap();
            let mut names: Vec<_> = entries.into_iter().map(|entry| entry.name).collect();
            names.sort();
            names
        };
        assert_eq!(names("", "*").await, ["Link", "dir", "file"]);
        assert_eq!(names("", "link").await, ["Link"]);
        assert_eq!(names("", "l*").await, ["Link"]);
        assert_eq!(names("dir", "*").await, ["deep"]);
        let root = b.open(&Wish::dir("")).await.unwrap();
        let link = &list(&b, root, "Link").await[0];
        assert_eq!(link.attributes, FileAttributes::DIRECTORY | FileAttributes::REPARSE_POINT);
        assert_eq!(link.ea_size, 0x8000_000A);
    });
}

#[test]
fn referrals_are_told_on_any_tree() {
    story(async |b| {
        let mut input = Vec::new();
        dfs::Request { max_level: 4, path: r"\srv\data\link\x".into() }.emit(&mut input);
        let request = ioctl::Request {
            code: ioctl::CtlCode::DFS_GET_REFERRALS,
            file: FileId::RELATED,
            input: input.into(),
            max_input_response: 0,
            max_output_response: 4096,
            flags: ioctl::Flags::IS_FSCTL,
        };
        let mut answers = Vec::new();
        for tree in [b.tree.clone(), b.session.connect(None, Right::Write, 10).unwrap()] {
            let asker = Asker { tree: tree.id, ..b.asker() };
            let cx = b.cx_of(asker, Command::Ioctl, |out| request.emit(out));
            let message = dispatch(&cx).await.unwrap().message.into();
            answers.push(ioctl::Response::parse(&message).unwrap().output);
        }
        let answer = dfs::Response::parse(&answers[0]).unwrap();
        assert_eq!(answer.targets[1].address, r"\two\share");
        assert_eq!(answers[0], answers[1], "IPC$ is where clients ask");
        let short = ioctl::Request { max_output_response: 8, ..request };
        let answer = b.ask(Command::Ioctl, |out| short.emit(out)).await;
        assert_eq!(status(answer), NtStatus::BUFFER_OVERFLOW);
    });
}
