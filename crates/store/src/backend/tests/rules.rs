//! Operations that are refused.

use std::os::unix::fs::symlink;

use super::*;
use crate::backend::ram::MAX_FILE_BYTES;

#[test]
fn names_that_no_file_can_have() {
    each(async |vfs| {
        let f = file(&vfs, ROOT, "f").await;
        let long = [b'x'; 256];
        for name in [&b""[..], b"a/b", b"/etc/passwd", b"../f", b"f\0", b"/", &long] {
            let bad = |e: &Error| match name.len() {
                256 => matches!(e, Error::NameTooLong),
                _ => matches!(e, Error::BadName),
            };
            let check = |outcome: Result<(), Error>| match outcome {
                Err(e) if bad(&e) => {}
                other => panic!("{name:?}: {other:?}"),
            };
            check(vfs.lookup(ROOT, name, false).await.map(drop));
            check(vfs.lookup(ROOT, name, true).await.map(drop));
            for make in [Make::File, Make::Dir, Make::Symlink(b"x".to_vec())] {
                check(vfs.create(ROOT, name, make, Exists::Reuse, SetAttr::default()).await.map(drop));
            }
            check(vfs.remove(ROOT, name).await);
            check(vfs.rmdir(ROOT, name).await);
            check(vfs.rename(at(ROOT, name), at(ROOT, b"g"), true).await);
            check(vfs.rename(at(ROOT, b"f"), at(ROOT, name), true).await);
            check(vfs.link(f.node, ROOT, name).await);
        }
        assert_eq!(sorted(&vfs, ROOT).await, ["f"]);
        let longest = "y".repeat(255);
        file(&vfs, ROOT, &longest).await;
        vfs.remove(ROOT, longest.as_bytes()).await.unwrap();
    });
}

#[test]
fn dots_are_not_made_removed_or_moved() {
    each(async |vfs| {
        let d = dir(&vfs, ROOT, "d").await.node;
        file(&vfs, d, "f").await;
        for name in [&b"."[..], b".."] {
            refused!(vfs.create(d, name, Make::Dir, Exists::Reuse, SetAttr::default()).await, Error::BadName);
            refused!(vfs.remove(d, name).await, Error::BadName);
            refused!(vfs.rmdir(d, name).await, Error::BadName);
            refused!(vfs.rename(at(d, name), at(ROOT, b"x"), true).await, Error::BadName);
            refused!(vfs.rename(at(d, b"f"), at(d, name), true).await, Error::BadName);
        }
    });
}

#[test]
fn errors_say_what_is_wrong() {
    each(async |vfs| {
        let f = file(&vfs, ROOT, "f").await.node;
        let d = dir(&vfs, ROOT, "d").await.node;
        refused!(vfs.lookup(ROOT, b"none", false).await, Error::NotFound);
        refused!(vfs.lookup(ROOT, b"none", true).await, Error::NotFound);
        refused!(vfs.lookup(f, b"x", false).await, Error::NotDir);
        refused!(vfs.create(f, b"x", Make::File, Exists::Fail, SetAttr::default()).await, Error::NotDir);
        refused!(vfs.readdir(f, 0, 10).await, Error::NotDir);
        refused!(vfs.sync_dir(f).await, Error::NotDir);
        refused!(vfs.open(d, false).await, Error::IsDir);
        refused!(vfs.remove(ROOT, b"none").await, Error::NotFound);
        refused!(vfs.remove(ROOT, b"d").await, Error::IsDir);
        refused!(vfs.rmdir(ROOT, b"none").await, Error::NotFound);
        refused!(vfs.rmdir(ROOT, b"f").await, Error::NotDir);
        refused!(vfs.readlink(d).await, Error::Invalid);
        refused!(vfs.place(ROOT).await, Error::Invalid);
        for target in [&b""[..], b"a\0b"] {
            let make = Make::Symlink(target.to_vec());
            refused!(vfs.create(ROOT, b"l", make, Exists::Fail, SetAttr::default()).await, Error::Invalid);
        }
        let make = Make::Symlink(vec![b'x'; 5000]);
        refused!(vfs.create(ROOT, b"l", make, Exists::Fail, SetAttr::default()).await, Error::NameTooLong);
        for node in [NodeId(0), NodeId(9999), NodeId(u64::MAX)] {
            refused!(vfs.getattr(node).await, Error::Stale);
            refused!(vfs.open(node, true).await, Error::Stale);
            refused!(vfs.lookup(node, b"x", false).await, Error::Stale);
            refused!(vfs.readdir(node, 0, 1).await, Error::Stale);
            refused!(vfs.hold(node).await.map(drop), Error::Stale);
        }
        // Cookies come from the network: any value gives a listing or an error.
        for cookie in [1, 77, u64::from(u32::MAX), i64::MAX as u64, 1 << 63, u64::MAX] {
            let _ = vfs.readdir(d, cookie, 10).await;
        }
        let open = vfs.open(f, false).await.unwrap();
        refused!(open.write(0, &[Bytes::from_static(b"x")]).await, Error::Access);
        let open = vfs.open(f, true).await.unwrap();
        assert!(open.write(u64::MAX, &[Bytes::from_static(b"x")]).await.is_err());
        let huge = SetAttr { size: Some(u64::MAX), ..SetAttr::default() };
        refused!(vfs.setattr(f, huge).await, Error::TooLarge);
        assert_eq!(vfs.getattr(f).await.unwrap().size, 0);
    });
}

#[test]
fn a_removed_file_is_stale() {
    each(async |vfs| {
        let f = file(&vfs, ROOT, "f").await.node;
        vfs.remove(ROOT, b"f").await.unwrap();
        refused!(vfs.open(f, false).await, Error::Stale);
        let next = file(&vfs, ROOT, "f").await.node;
        assert_ne!(next, f);
        refused!(vfs.open(f, false).await, Error::Stale);
    });
}

#[test]
fn a_memory_disk_has_a_limit_and_gives_back() {
    let run = async |vfs: Vfs| {
        let f = file(&vfs, ROOT, "f").await.node;
        put(&vfs, f, LIMIT - 4, b"last").await.unwrap();
        refused!(put(&vfs, f, LIMIT - 3, b"over").await, Error::NoSpace);
        assert_eq!(vfs.getattr(f).await.unwrap().size, LIMIT);
        assert_eq!(vfs.statfs().await.unwrap().free, 0);
        let g = file(&vfs, ROOT, "g").await.node;
        refused!(put(&vfs, g, 0, b"x").await, Error::NoSpace);
        let half = SetAttr { size: Some(LIMIT / 2), ..SetAttr::default() };
        vfs.setattr(f, half).await.unwrap();
        put(&vfs, g, 0, b"x").await.unwrap();
        assert_eq!(vfs.statfs().await.unwrap().free, LIMIT / 2 - 4096);
        let double = SetAttr { size: Some(LIMIT * 2), ..SetAttr::default() };
        refused!(vfs.setattr(f, double.clone()).await, Error::NoSpace);
        refused!(vfs.create(ROOT, b"h", Make::File, Exists::Fail, double).await, Error::NoSpace);
        refused!(vfs.lookup(ROOT, b"h", false).await, Error::NotFound);
        // A size that no file can have is not a lack of space.
        refused!(put(&vfs, f, MAX_FILE_BYTES - 1, b"x").await, Error::NoSpace);
        refused!(put(&vfs, f, MAX_FILE_BYTES, b"x").await, Error::TooLarge);
        refused!(put(&vfs, f, i64::MAX as u64 - 1, b"x").await, Error::TooLarge);
        let absurd = SetAttr { size: Some(MAX_FILE_BYTES + 1), ..SetAttr::default() };
        refused!(vfs.setattr(f, absurd).await, Error::TooLarge);
        // The last close of a removed file releases its bytes.
        let open = vfs.open(f, true).await.unwrap();
        vfs.remove(ROOT, b"f").await.unwrap();
        vfs.remove(ROOT, b"g").await.unwrap();
        assert_eq!(vfs.statfs().await.unwrap().free, LIMIT / 2);
        drop(open);
        assert_eq!(vfs.statfs().await.unwrap().free, LIMIT);
    };
    rt::block_on(run(Ram::new(LIMIT).into())).unwrap();
}

#[test]
fn a_memory_disk_bounds_its_names() {
    let run = async |vfs: Vfs| {
        let most = vfs.statfs().await.unwrap().files;
        for i in 0..most {
            file(&vfs, ROOT, &i.to_string()).await;
        }
        refused!(vfs.create(ROOT, b"x", Make::Dir, Exists::Fail, SetAttr::default()).await, Error::NoSpace);
        let one = vfs.lookup(ROOT, b"1", false).await.unwrap().node;
        refused!(vfs.link(one, ROOT, b"x").await, Error::NoSpace);
        vfs.remove(ROOT, b"2").await.unwrap();
        vfs.link(one, ROOT, b"x").await.unwrap();
    };
    rt::block_on(run(Ram::new(0).into())).unwrap();
}

#[test]
fn no_symlink_is_followed() {
    let outside = tempfile::tempdir().unwrap();
    std::fs::write(outside.path().join("secret"), "secret").unwrap();
    let folder = tempfile::tempdir().unwrap();
    symlink(outside.path(), folder.path().join("out")).unwrap();
    symlink("/etc/passwd", folder.path().join("passwd")).unwrap();
    symlink(".", folder.path().join("here")).unwrap();
    let run = async |vfs: Vfs| {
        for name in ["out", "passwd", "here"] {
            let link = vfs.lookup(ROOT, name.as_bytes(), false).await.unwrap();
            assert_eq!(link.kind, Kind::Symlink);
            refused!(vfs.open(link.node, false).await, Error::Invalid);
            refused!(vfs.open(link.node, true).await, Error::Invalid);
            refused!(vfs.lookup(link.node, b"secret", false).await, Error::NotDir);
            refused!(vfs.readdir(link.node, 0, 10).await, Error::NotDir);
            refused!(
                vfs.create(link.node, b"x", Make::File, Exists::Fail, SetAttr::default()).await,
                Error::NotDir
            );
            let cut = SetAttr { size: Some(0), ..SetAttr::default() };
            refused!(vfs.setattr(link.node, cut.clone()).await, Error::Invalid);
            refused!(vfs.create(ROOT, name.as_bytes(), Make::File, Exists::Reuse, cut).await, Error::Exists);
            let mode = SetAttr { mode: Some(0o777), ..SetAttr::default() };
            vfs.setattr(link.node, mode).await.unwrap();
        }
    };
    let before = std::fs::metadata("/etc/passwd").unwrap();
    rt::block_on(run(Dir::open(folder.path()).unwrap().into())).unwrap();
    assert_eq!(std::fs::metadata("/etc/passwd").unwrap().permissions(), before.permissions());
    assert_eq!(std::fs::read_dir(outside.path()).unwrap().count(), 1);
}

/// The name of a directory becomes a symlink between two requests.
#[test]
fn a_directory_that_turns_into_a_symlink_leads_nowhere() {
    let outside = tempfile::tempdir().unwrap();
    std::fs::write(outside.path().join("f"), "secret").unwrap();
    let folder = tempfile::tempdir().unwrap();
    let run = async |vfs: Vfs| {
        let d = dir(&vfs, ROOT, "d").await.node;
        let f = file(&vfs, d, "f").await.node;
        std::fs::rename(folder.path().join("d"), outside.path().join("moved")).unwrap();
        symlink(outside.path(), folder.path().join("d")).unwrap();
        // Either the old directory, through a cached descriptor, or nothing; never the link's target.
        match vfs.lookup(d, b"f", false).await {
            Ok(attr) => assert_eq!(attr.node, f),
            Err(e) => assert!(matches!(e, Error::Stale), "{e:?}"),
        }
        match vfs.open(f, false).await {
            Ok(open) => assert_eq!(read(&open, 0, 10).await, b""),
            Err(e) => assert!(matches!(e, Error::Stale), "{e:?}"),
        }
        let link = vfs.lookup(ROOT, b"d", false).await.unwrap();
        assert_eq!(link.kind, Kind::Symlink);
        assert_ne!(link.node, d);
    };
    rt::block_on(run(Dir::open(folder.path()).unwrap().into())).unwrap();
    assert_eq!(std::fs::read(outside.path().join("f")).unwrap(), b"secret");
}

#[test]
fn pipes_are_listed_but_not_opened() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("pipe");
    rustix::fs::mknodat(
        rustix::fs::CWD,
        &path,
        rustix::fs::FileType::Fifo,
        rustix::fs::Mode::from_raw_mode(0o600),
        0,
    )
    .unwrap();
    let run = async |vfs: Vfs| {
        let pipe = vfs.lookup(ROOT, b"pipe", false).await.unwrap();
        assert_eq!(pipe.kind, Kind::Special(Special::Fifo));
        refused!(vfs.open(pipe.node, false).await, Error::Invalid);
        assert_eq!(sorted(&vfs, ROOT).await, ["pipe"]);
    };
    rt::block_on(run(Dir::open(folder.path()).unwrap().into())).unwrap();
}

#[test]
fn what_cannot_be_served_is_said() {
    let folder = tempfile::tempdir().unwrap();
    let missing = folder.path().join("none");
    let message = |path| match Dir::open(path) {
        Ok(_) => panic!("opened"),
        Err(e) => e.to_string(),
    };
    assert!(message(missing.as_path()).contains("none: cannot be served"));
    let file = folder.path().join("file");
    std::fs::write(&file, "").unwrap();
    assert!(message(file.as_path()).contains("Not a directory"));
}
