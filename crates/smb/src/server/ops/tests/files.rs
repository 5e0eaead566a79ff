//! CREATE and CLOSE.

use weft_store::backend::Dir;
use weft_store::vfs::{NodeId, SetAttr};
use weft_wire::smb2::create::CreateAction;
use weft_wire::smb2::create_context::{RequestContext, ResponseContext};
use weft_wire::smb2::fscc::FileClass;
use weft_wire::smb2::fscc::file::{Basic, Disposition};
use weft_wire::smb2::{Filetime, error};

use super::*;

#[test]
fn dispositions() {
    use CreateDisposition::*;
    run(async |b| {
        let mut n = 0;
        // The result for an existing name, and for a missing one.
        for (disposition, there, missing) in [
            (Open, Ok(CreateAction::OPENED), Err(NtStatus::OBJECT_NAME_NOT_FOUND)),
            (Create, Err(NtStatus::OBJECT_NAME_COLLISION), Ok(CreateAction::CREATED)),
            (OpenIf, Ok(CreateAction::OPENED), Ok(CreateAction::CREATED)),
            (Overwrite, Ok(CreateAction::OVERWRITTEN), Err(NtStatus::OBJECT_NAME_NOT_FOUND)),
            (OverwriteIf, Ok(CreateAction::OVERWRITTEN), Ok(CreateAction::CREATED)),
            (Supersede, Ok(CreateAction::SUPERSEDED), Ok(CreateAction::CREATED)),
        ] {
            n += 1;
            let (old, new) = (format!("old{n}"), format!("new{n}"));
            b.put(&old, b"content").await;
            let before = b.create(&Wish { disposition, ..Wish::file(&old) }).await;
            assert_eq!(before.as_ref().map(|r| r.action).map_err(|e| *e), there, "{disposition:?}");
            if let Ok(response) = before {
                let kept = response.action == CreateAction::OPENED;
                assert_eq!(response.summary.end_of_file, if kept { 7 } else { 0 });
                assert_eq!(response.oplock, OplockLevel::NONE);
                b.close(response.file).await.unwrap();
            }
            let after = b.create(&Wish { disposition, ..Wish::file(&new) }).await;
            assert_eq!(after.map(|r| r.action), missing, "{disposition:?}");
        }
    });
}

#[test]
fn directories_and_files_are_told_apart() {
    run(async |b| {
        b.mkdir("d").await;
        b.put("d\\f", b"x").await;
        assert_eq!(status(b.open(&Wish::file("d")).await), NtStatus::FILE_IS_A_DIRECTORY);
        assert_eq!(status(b.open(&Wish::dir("d\\f")).await), NtStatus::NOT_A_DIRECTORY);
        assert_eq!(status(b.open(&Wish::file("d\\none")).await), NtStatus::OBJECT_NAME_NOT_FOUND);
        assert_eq!(status(b.open(&Wish::file("none\\f")).await), NtStatus::OBJECT_PATH_NOT_FOUND);
        assert_eq!(status(b.open(&Wish::file("d\\f\\g")).await), NtStatus::OBJECT_PATH_NOT_FOUND);
        let either = |path| Wish { options: CreateOptions::NONE, ..Wish::file(path) };
        for path in ["", "d", "d\\f", "D\\F", "d\\", "d\\f::$DATA"] {
            b.close(b.open(&either(path)).await.unwrap()).await.unwrap();
        }
        assert_eq!(status(b.open(&either("d\\f\\")).await), NtStatus::NOT_A_DIRECTORY);
        assert_eq!(status(b.open(&either("d::$DATA")).await), NtStatus::FILE_IS_A_DIRECTORY);
        let both = CreateOptions::DIRECTORY_FILE | CreateOptions::NON_DIRECTORY_FILE;
        let wish = Wish { options: both, ..Wish::file("d") };
        assert_eq!(status(b.open(&wish).await), NtStatus::INVALID_PARAMETER);
        let wish = Wish { disposition: CreateDisposition::Supersede, ..Wish::dir("d") };
        assert_eq!(status(b.open(&wish).await), NtStatus::INVALID_PARAMETER);
        let wish = Wish { disposition: CreateDisposition::OverwriteIf, ..either("d") };
        assert_eq!(status(b.open(&wish).await), NtStatus::OBJECT_NAME_COLLISION);
    });
}

/// NFS clients may reclaim files from before a restart; a new file cannot have been open.
#[test]
fn an_open_that_may_be_in_the_way_of_who_takes_back_waits_for_him() {
    use futures_util::FutureExt;

    run(async |b| {
        b.put("old", b"content").await;
        let reserved = b.vfs.opens().reserve(rt::now() + std::time::Duration::from_secs(3600));
        let reader = Wish { access: AccessMask::FILE_READ_DATA, ..Wish::file("old") };
        b.close(b.open(&reader).await.unwrap()).await.unwrap();
        b.put("new", b"content").await;
        let alone = Wish { share: ShareAccess::NONE, ..Wish::file("old") };
        let mut waits = std::pin::pin!(b.open(&alone));
        assert!(waits.as_mut().now_or_never().is_none());
        drop(reserved);
        b.close(waits.await.unwrap()).await.unwrap();
    });
}

#[test]
fn no_path_leads_out_of_the_share() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::create_dir(folder.path().join("share")).unwrap();
    std::fs::write(folder.path().join("secret"), "secret").unwrap();
    std::os::unix::fs::symlink("..", folder.path().join("share/up")).unwrap();
    std::os::unix::fs::symlink("/etc", folder.path().join("share/etc")).unwrap();
    let vfs = Dir::open(folder.path().join("share")).unwrap().into();
    let story = async |b: Bench| {
        for path in ["..\\secret", "..", "a\\..\\..\\secret"] {
            let wish = Wish { disposition: CreateDisposition::OpenIf, ..Wish::file(path) };
            assert_eq!(status(b.open(&wish).await), NtStatus::OBJECT_PATH_SYNTAX_BAD, "{path}");
        }
        let rooted = Wish { disposition: CreateDisposition::OpenIf, ..Wish::file("\\secret") };
        assert_eq!(status(b.open(&rooted).await), NtStatus::INVALID_PARAMETER);
        for path in ["../secret", "up/secret", "/etc/passwd", "a*", "a:b:c", "a\"", "\u{1}"] {
            let wish = Wish { disposition: CreateDisposition::OpenIf, ..Wish::file(path) };
            assert_eq!(status(b.open(&wish).await), NtStatus::OBJECT_NAME_INVALID, "{path}");
        }
        for path in ["up", "up\\secret", "etc\\passwd", "etc"] {
            for disposition in [CreateDisposition::Open, CreateDisposition::OverwriteIf] {
                let wish = Wish { disposition, ..Wish::file(path) };
                assert_eq!(status(b.open(&wish).await), NtStatus::STOPPED_ON_SYMLINK, "{path}");
            }
        }
        // A link inside the share reveals its target; one to a path on this host does not.
        let data = |path: &'static str| {
            let answer = b.answer(Command::Create, move |out| Wish::file(path).request().emit(out));
            async move { answer.await.unwrap_err().data }
        };
        match data("up\\secret").await {
            error::Response::Contexts(contexts) => assert_eq!(&contexts[0].data[4..8], b"SYML"),
            other => panic!("{other:?}"),
        }
        assert_eq!(data("etc").await, error::Response::EMPTY);
        // The link itself can be opened and removed.
        let link = Wish {
            access: AccessMask::DELETE,
            options: CreateOptions::OPEN_REPARSE_POINT | CreateOptions::DELETE_ON_CLOSE,
            ..Wish::file("etc")
        };
        let response = b.create(&link).await.unwrap();
        assert!(response.summary.attributes.contains(FileAttributes::REPARSE_POINT));
        b.close(response.file).await.unwrap();
    };
    rt::block_on(story(Bench::with(vfs, Dialect::V3_1_1, false))).unwrap();
    assert!(std::fs::symlink_metadata(folder.path().join("share/etc")).is_err());
    assert_eq!(std::fs::read(folder.path().join("secret")).unwrap(), b"secret");
}

#[test]
fn access_that_nobody_gets() {
    run(async |b| {
        b.put("f", b"x").await;
        let with = |access| Wish { access, ..Wish::file("f") };
        assert_eq!(status(b.open(&with(AccessMask::NONE)).await), NtStatus::ACCESS_DENIED);
        // SYNCHRONIZE alone is valid, unlike no access: an open that touches no data (nor can it read attributes).
        b.open(&with(AccessMask::SYNCHRONIZE)).await.unwrap();
        assert_eq!(status(b.open(&with(AccessMask(0x0020_0001))).await), NtStatus::ACCESS_DENIED);
        assert_eq!(
            status(b.open(&with(AccessMask::ACCESS_SYSTEM_SECURITY)).await),
            NtStatus::PRIVILEGE_NOT_HELD
        );
        let by_id = Wish { options: CreateOptions::OPEN_BY_FILE_ID, ..Wish::file("f") };
        assert_eq!(status(b.open(&by_id).await), NtStatus::NOT_SUPPORTED);
        let doomed = Wish { options: CreateOptions::DELETE_ON_CLOSE, ..with(AccessMask::FILE_READ_DATA) };
        assert_eq!(status(b.open(&doomed).await), NtStatus::INVALID_PARAMETER);
        let mut request = Wish::file("f").request();
        request.impersonation = 4;
        let answer = b.ask(Command::Create, |out| request.emit(out)).await;
        assert_eq!(status(answer), NtStatus::BAD_IMPERSONATION_LEVEL);
        // All available rights.
        let most = b.open(&with(AccessMask::MAXIMUM_ALLOWED)).await.unwrap();
        assert_eq!(info::access(&b, most).await, AccessMask::FILE_ALL);
        let generic = b.open(&with(AccessMask::GENERIC_READ)).await.unwrap();
        assert_eq!(info::access(&b, generic).await, AccessMask::FILE_GENERIC_READ);
    });
}

#[test]
fn read_only_files() {
    run(async |b| {
        let wish = Wish {
            disposition: CreateDisposition::Create,
            attributes: FileAttributes::READONLY,
            ..Wish::file("f")
        };
        let made = b.create(&wish).await.unwrap();
        assert!(made.summary.attributes.contains(FileAttributes::READONLY));
        // The creator may fill it.
        payload::write(&b, made.file, 0, b"x").await.unwrap();
        b.close(made.file).await.unwrap();
        assert_eq!(status(b.open(&Wish::file("f")).await), NtStatus::ACCESS_DENIED);
        for disposition in [CreateDisposition::Overwrite, CreateDisposition::Supersede] {
            let wish = Wish { disposition, access: AccessMask::FILE_READ_DATA, ..Wish::file("f") };
            assert_eq!(status(b.open(&wish).await), NtStatus::ACCESS_DENIED);
        }
        let doomed =
            Wish { access: AccessMask::DELETE, options: CreateOptions::DELETE_ON_CLOSE, ..Wish::file("f") };
        assert_eq!(status(b.open(&doomed).await), NtStatus::CANNOT_DELETE);
        let most = Wish { access: AccessMask::MAXIMUM_ALLOWED, ..Wish::file("f") };
        let file = b.open(&most).await.unwrap();
        assert!(!info::access(&b, file).await.intersects(AccessMask::FILE_WRITE_DATA));
        // A stream cannot write to it, nor another file replace it; NFS sees the permissions unchanged.
        let stream = Wish { disposition: CreateDisposition::OpenIf, ..Wish::file("f:s") };
        assert_eq!(status(b.open(&stream).await), NtStatus::ACCESS_DENIED);
        b.put("other", b"other").await;
        b.put("plain", b"plain").await;
        let before = b.vfs.lookup(NodeId::ROOT, b"plain", false).await.unwrap().mode;
        assert_eq!(b.vfs.lookup(NodeId::ROOT, b"f", false).await.unwrap().mode, before);
        let other = b.open(&Wish::file("other")).await.unwrap();
        assert_eq!(status(names::rename(&b, other, "f", true).await), NtStatus::ACCESS_DENIED);
    });
}

#[test]
fn files_that_nobody_may_write_can_be_deleted() {
    run(async |b| {
        for name in ["f", "g", "h"] {
            b.put(name, b"object").await;
            let node = b.vfs.lookup(NodeId::ROOT, name.as_bytes(), false).await.unwrap().node;
            b.vfs.setattr(node, SetAttr { mode: Some(0o444), ..SetAttr::default() }).await.unwrap();
        }
        assert_eq!(status(b.open(&Wish::file("f")).await), NtStatus::ACCESS_DENIED);
        let overwrite = Wish {
            disposition: CreateDisposition::Overwrite,
            access: AccessMask::FILE_READ_DATA,
            ..Wish::file("f")
        };
        assert_eq!(status(b.open(&overwrite).await), NtStatus::ACCESS_DENIED);
        // Attributes neither reflect the mode nor change it.
        let access =
            AccessMask::DELETE | AccessMask::FILE_READ_ATTRIBUTES | AccessMask::FILE_WRITE_ATTRIBUTES;
        let wish = Wish { access, ..Wish::file("f") };
        let made = b.create(&wish).await.unwrap();
        assert_eq!(made.summary.attributes, FileAttributes::ARCHIVE);
        let basic = Basic { attributes: FileAttributes::NORMAL, ..Basic::default() };
        info::set(&b, made.file, FileClass::BASIC, |out| basic.emit(out)).await.unwrap();
        assert_eq!(b.vfs.lookup(NodeId::ROOT, b"f", false).await.unwrap().mode, 0o444);
        let doomed = Disposition { delete_pending: true };
        info::set(&b, made.file, FileClass::DISPOSITION, |out| doomed.emit(out)).await.unwrap();
        b.close(made.file).await.unwrap();
        assert!(!b.exists("f").await);
        let on_close = CreateOptions::DELETE_ON_CLOSE;
        let wish = Wish { access: AccessMask::DELETE, options: on_close, ..Wish::file("g") };
        b.close(b.open(&wish).await.unwrap()).await.unwrap();
        assert!(!b.exists("g").await);
        b.put("other", b"other").await;
        let other = b.open(&Wish::file("other")).await.unwrap();
        names::rename(&b, other, "h", true).await.unwrap();
        assert_eq!(b.vfs.lookup(NodeId::ROOT, b"h", false).await.unwrap().size, 5);
    });
}

#[test]
fn hidden_files_are_overwritten_by_who_says_so() {
    run(async |b| {
        let make = |name, attributes| Wish {
            disposition: CreateDisposition::OverwriteIf,
            attributes,
            ..Wish::file(name)
        };
        let write = async |name, attributes| {
            let made = b.create(&make(name, attributes)).await?;
            b.close(made.file).await.unwrap();
            Ok::<_, NtStatus>((made.action, made.summary.attributes))
        };
        let (hidden, archive) = (FileAttributes::HIDDEN, FileAttributes::ARCHIVE);
        assert_eq!(write("f", hidden).await, Ok((CreateAction::CREATED, hidden | archive)));
        assert_eq!(write("f", FileAttributes::NONE).await, Err(NtStatus::ACCESS_DENIED));
        assert_eq!(write("f", hidden).await, Ok((CreateAction::OVERWRITTEN, hidden | archive)));
        // A name that hides its file is no reason to refuse, and keeps hiding it, whatever other attributes are kept.
        for attributes in [FileAttributes::NONE, FileAttributes::NORMAL, archive, hidden] {
            write(".f", attributes).await.unwrap();
            assert_eq!(
                write(".f", attributes).await,
                Ok((CreateAction::OVERWRITTEN, hidden | archive)),
                "{attributes:?}"
            );
        }
    });
}

#[test]
fn share_modes() {
    run(async |b| {
        b.put("f", b"content").await;
        let reader = Wish { access: AccessMask::FILE_READ_DATA, share: ShareAccess::READ, ..Wish::file("f") };
        let first = b.open(&reader).await.unwrap();
        let second = b.open(&reader).await.unwrap();
        let writer = Wish { access: AccessMask::FILE_WRITE_DATA, ..Wish::file("f") };
        assert_eq!(status(b.open(&writer).await), NtStatus::SHARING_VIOLATION);
        // Emptying a file is writing to it.
        let emptier = Wish { disposition: CreateDisposition::Overwrite, ..reader.clone() };
        assert_eq!(status(b.open(&emptier).await), NtStatus::SHARING_VIOLATION);
        // Opening for attributes never conflicts.
        let looker =
            Wish { access: AccessMask::FILE_READ_ATTRIBUTES, share: ShareAccess::NONE, ..Wish::file("f") };
        let third = b.open(&looker).await.unwrap();
        for file in [first, second, third] {
            assert_eq!(b.close(file).await.unwrap().summary.unwrap().end_of_file, 7);
        }
        b.close(b.open(&writer).await.unwrap()).await.unwrap();
    });
}

#[test]
fn contexts_are_answered_or_ignored() {
    run(async |b| {
        b.put("f", b"x").await;
        let with = |contexts| Wish { contexts, ..Wish::file("f") };
        let asked = vec![
            RequestContext::Durable,
            RequestContext::MaximalAccess(None),
            RequestContext::OnDiskId,
            RequestContext::Unknown { name: (&b"What"[..]).into(), data: (&b"ever"[..]).into() },
        ];
        let response = b.create(&with(asked)).await.unwrap();
        match &response.contexts[..] {
            [
                ResponseContext::MaximalAccess { status, access },
                ResponseContext::OnDiskId { file_id, volume_id },
            ] => {
                assert_eq!((*status, *access), (NtStatus::SUCCESS, AccessMask::FILE_ALL.0));
                assert!(*file_id != 0 && *volume_id != 0);
            }
            other => panic!("{other:?}"),
        }
        let unchanged = RequestContext::MaximalAccess(Some(response.summary.change_time));
        match &b.create(&with(vec![unchanged])).await.unwrap().contexts[..] {
            [ResponseContext::MaximalAccess { status, access: 0 }] => assert_eq!(status.0, 0xC000_0073),
            other => panic!("{other:?}"),
        }
        let fails = async |context| status(b.open(&with(vec![context])).await);
        let reconnect = RequestContext::DurableReconnect(response.file);
        assert_eq!(fails(reconnect).await, NtStatus::OBJECT_NAME_NOT_FOUND);
        assert_eq!(fails(RequestContext::Timewarp(Filetime(5))).await, NtStatus::OBJECT_NAME_NOT_FOUND);
        let list = RequestContext::ExtendedAttributes((&b"list"[..]).into());
        assert_eq!(fails(list).await, NtStatus::EA_LIST_INCONSISTENT);
        let wish = Wish {
            contexts: vec![RequestContext::AllocationSize(DISK * 2)],
            disposition: CreateDisposition::Create,
            ..Wish::file("large")
        };
        assert_eq!(status(b.open(&wish).await), NtStatus::DISK_FULL);
        assert!(!b.exists("large").await);
    });
}

#[test]
fn handles_are_the_sessions_own() {
    run(async |b| {
        b.put("f", b"x").await;
        let file = b.open(&Wish::file("f")).await.unwrap();
        for wrong in [
            FileId { persistent: file.persistent + 1, ..file },
            FileId { volatile: file.volatile + 1, ..file },
            FileId { persistent: 0, volatile: 0 },
            FileId::RELATED,
        ] {
            assert_eq!(status(b.close(wrong).await), NtStatus::FILE_CLOSED);
        }
        b.close(file).await.unwrap();
        assert_eq!(status(b.close(file).await), NtStatus::FILE_CLOSED);
        // A reused slot has another FileId.
        let next = b.open(&Wish::file("f")).await.unwrap();
        assert_ne!(next, file);
        assert_eq!(status(payload::read(&b, file, 0, 1).await), NtStatus::FILE_CLOSED);
    });
}

#[test]
fn opens_are_bounded_and_end_with_their_tree() {
    run(async |b| {
        b.put("f", b"x").await;
        let mut files = Vec::new();
        for _ in 0..100 {
            files.push(b.open(&Wish::file("f")).await.unwrap());
        }
        assert_eq!(status(b.open(&Wish::file("f")).await), NtStatus::TOO_MANY_OPENED_FILES);
        let doomed = b.vfs.lookup(weft_store::NodeId::ROOT, b"f", false).await.unwrap().node;
        assert_eq!(b.vfs.opens().count(doomed), 100);
        b.close(files[0]).await.unwrap();
        let wish = Wish { options: CreateOptions::DELETE_ON_CLOSE, ..Wish::file("f") };
        b.open(&wish).await.unwrap();
        let make = Wish { disposition: CreateDisposition::OpenIf, ..Wish::file("g") };
        let late = b.cx(Command::Create, |out| make.request().emit(out));
        assert!(b.session.disconnect(b.tree.id).await);
        assert_eq!(b.vfs.opens().count(doomed), 0);
        assert!(b.vfs.lookup(weft_store::NodeId::ROOT, b"f", false).await.is_err(), "delete on close");
        let late = dispatch(&late).await.map_err(|failure| failure.status);
        assert_eq!(status(late), NtStatus::FILE_CLOSED);
        assert!(!b.vfs.opens().is_open(doomed));
    });
}

#[test]
fn options_and_attributes_that_no_file_has() {
    run(async |b| {
        let make = Wish { disposition: CreateDisposition::OpenIf, ..Wish::file("f") };
        let unknown = Wish { options: CreateOptions(0x8000_0000), ..make.clone() };
        assert_eq!(status(b.open(&unknown).await), NtStatus::INVALID_PARAMETER);
        let tree_connection = Wish { options: CreateOptions(0x80), ..make.clone() };
        assert_eq!(status(b.open(&tree_connection).await), NtStatus::NOT_SUPPORTED);
        for attribute in [0x08, 0x40] {
            let device = Wish { attributes: FileAttributes(attribute), ..make.clone() };
            assert_eq!(status(b.open(&device).await), NtStatus::INVALID_PARAMETER);
        }
        assert!(!b.exists("f").await);
        b.open(&make).await.unwrap();
        // [MS-FSA] 2.1.5.1.1.
        let attributes = FileAttributes::TEMPORARY;
        let folder = Wish { disposition: CreateDisposition::OpenIf, attributes, ..Wish::dir("d") };
        assert_eq!(status(b.open(&folder).await), NtStatus::INVALID_PARAMETER);
        assert!(!b.exists("d").await);
        b.mkdir("d").await;
        b.open(&folder).await.unwrap();
    });
}

#[test]
fn a_directory_may_be_named_by_its_own_stream() {
    run(async |b| {
        let make = |path| Wish {
            disposition: CreateDisposition::Create,
            options: CreateOptions::NONE,
            ..Wish::file(path)
        };
        for path in ["d::$INDEX_ALLOCATION", "d\\e:$i30:$Index_Allocation"] {
            let dir = b.open(&make(path)).await.unwrap();
            assert!(info::standard(&b, dir).await.directory, "{path}");
            b.close(dir).await.unwrap();
        }
        b.put("d::$INDEX_ALLOCATION\\e:$I30\\f", b"content").await;
        assert!(b.exists("d\\e\\f").await);
        let open = async |path, options| b.open(&Wish { options, ..Wish::file(path) }).await;
        let (any, file) = (CreateOptions::NONE, CreateOptions::NON_DIRECTORY_FILE);
        assert_eq!(status(open("d\\e\\f::$INDEX_ALLOCATION", any).await), NtStatus::NOT_A_DIRECTORY);
        assert_eq!(status(open("d::$INDEX_ALLOCATION", file).await), NtStatus::FILE_IS_A_DIRECTORY);
        assert_eq!(status(open("d:$I31:$INDEX_ALLOCATION", any).await), NtStatus::INVALID_PARAMETER);
        assert_eq!(status(open("d::$BITMAP", any).await), NtStatus::OBJECT_NAME_INVALID);
        b.close(open("::$INDEX_ALLOCATION", any).await.unwrap()).await.unwrap();
    });
}

#[test]
fn whatever_is_made_of_a_link_stops_there() {
    run(async |b| {
        use weft_store::vfs::{Exists, Make, NodeId, SetAttr};
        let make = Make::Symlink("elsewhere".into());
        b.vfs.create(NodeId::ROOT, b"link", make, Exists::Fail, SetAttr::default()).await.unwrap();
        let all = [CreateDisposition::Create, CreateDisposition::Open, CreateDisposition::OverwriteIf];
        for disposition in all {
            let made = b.open(&Wish { disposition, ..Wish::file("link") }).await;
            assert_eq!(status(made), NtStatus::STOPPED_ON_SYMLINK, "{disposition:?}");
        }
        let itself = Wish {
            disposition: CreateDisposition::Create,
            options: CreateOptions::OPEN_REPARSE_POINT,
            ..Wish::file("link")
        };
        assert_eq!(status(b.open(&itself).await), NtStatus::OBJECT_NAME_COLLISION);
    });
}

#[test]
fn nothing_changes_where_nothing_may() {
    rt::block_on(async {
        let ram = Vfs::new(Ram::new(DISK));
        let b = Bench::with(ram.clone(), Dialect::V3_1_1, false);
        b.put("f", b"content").await;
        let b = Bench::with(ram.read_only(), Dialect::V3_1_1, false);
        let protected = NtStatus::MEDIA_WRITE_PROTECTED;
        let with = |access| Wish { access, ..Wish::file("f") };
        for access in
            [AccessMask::FILE_ALL, AccessMask::FILE_WRITE_DATA, AccessMask::DELETE, AccessMask::WRITE_DAC]
        {
            assert_eq!(status(b.open(&with(access)).await), protected, "{access:?}");
        }
        let reading = with(AccessMask::FILE_READ_DATA);
        for (disposition, path) in [
            (CreateDisposition::Create, "new"),
            (CreateDisposition::OpenIf, "new"),
            (CreateDisposition::OverwriteIf, "f"),
            (CreateDisposition::Supersede, "f"),
        ] {
            let wish = Wish { disposition, path, ..reading.clone() };
            assert_eq!(status(b.open(&wish).await), protected, "{disposition:?}");
        }
        let options = CreateOptions::DELETE_ON_CLOSE;
        let delete = Wish { options, ..with(AccessMask::MAXIMUM_ALLOWED) };
        assert_eq!(status(b.open(&delete).await), NtStatus::CANNOT_DELETE);
        let most = b.open(&with(AccessMask::MAXIMUM_ALLOWED)).await.unwrap();
        let granted = info::access(&b, most).await;
        assert!(granted.contains(AccessMask::FILE_GENERIC_READ), "{granted:?}");
        assert!(!granted.intersects(
            AccessMask::FILE_WRITE_DATA | AccessMask::FILE_WRITE_ATTRIBUTES | AccessMask::DELETE
        ));
        assert_eq!(b.create(&reading).await.unwrap().summary.end_of_file, 7);
    })
    .unwrap();
}
