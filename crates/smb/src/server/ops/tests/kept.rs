//! A file that the host does not delete is not reported as deleted, and a removed folder is not listed as empty.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use rustix::thread::{CapabilitySet, CapabilitySets};
use weft_store::backend::Dir;
use weft_wire::smb2::fscc::FileClass;
use weft_wire::smb2::query_info::InfoType;
use weft_wire::smb2::set_info;

use super::*;

/// Runs on a thread with its user's permissions only, so that root has no privileges.
fn unprivileged(test: impl AsyncFnOnce() + Send + 'static) {
    let run = move || {
        let none = CapabilitySet::empty();
        let sets = CapabilitySets { effective: none, permitted: none, inheritable: none };
        rustix::thread::set_capabilities(None, sets).unwrap();
        rt::block_on(test()).unwrap();
    };
    std::thread::spawn(run).join().unwrap();
}

fn share(folder: &Path) -> Bench {
    Bench::with(Dir::open(folder).unwrap().into(), Dialect::V3_1_1, true)
}

fn set_mode(path: &Path, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
}

async fn dispose(b: &Bench, file: FileId) -> Result<(), NtStatus> {
    let request = set_info::Request {
        info_type: InfoType::FILE,
        class: FileClass::DISPOSITION.0,
        // DeletePending.
        buffer: vec![1].into(),
        additional_information: 0,
        file,
    };
    b.ask(Command::SetInfo, |out| request.emit(out)).await.map(|_| ())
}

fn on_close(path: &str) -> Wish<'_> {
    let options = CreateOptions::NON_DIRECTORY_FILE | CreateOptions::DELETE_ON_CLOSE;
    Wish { access: AccessMask::DELETE, options, ..Wish::file(path) }
}

#[test]
fn what_the_folder_keeps_is_refused_before_it_is_told_as_deleted() {
    unprivileged(async || {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("a"), "kept").unwrap();
        fs::create_dir(dir.path().join("d")).unwrap();
        set_mode(dir.path(), 0o555);
        let b = share(dir.path());
        for wish in [Wish::file("a"), Wish::dir("d")] {
            let file = b.open(&Wish { access: AccessMask::DELETE, ..wish }).await.unwrap();
            assert_eq!(dispose(&b, file).await, Err(NtStatus::ACCESS_DENIED));
            b.close(file).await.unwrap();
        }
        assert_eq!(b.open(&on_close("a")).await, Err(NtStatus::ACCESS_DENIED));
        assert!(b.exists("a").await, "nothing is pending");
        set_mode(dir.path(), 0o755);
        let file = b.open(&Wish::file("a")).await.unwrap();
        dispose(&b, file).await.unwrap();
        b.close(file).await.unwrap();
        assert!(!dir.path().join("a").exists());
    });
}

#[test]
fn a_close_that_does_not_delete_says_so() {
    unprivileged(async || {
        let dir = tempfile::tempdir().unwrap();
        for name in ["a", "b"] {
            fs::write(dir.path().join(name), "kept").unwrap();
        }
        let b = share(dir.path());
        let marked = b.open(&Wish::file("a")).await.unwrap();
        dispose(&b, marked).await.unwrap();
        let goes = b.open(&on_close("b")).await.unwrap();
        set_mode(dir.path(), 0o555);
        for file in [marked, goes] {
            assert_eq!(b.close(file).await.err(), Some(NtStatus::ACCESS_DENIED));
            assert_eq!(b.close(file).await.err(), Some(NtStatus::FILE_CLOSED), "it is closed all the same");
        }
        assert!(dir.path().join("a").exists() && dir.path().join("b").exists());
        set_mode(dir.path(), 0o755);
    });
}

#[test]
fn a_folder_that_is_gone_is_not_listed_as_empty() {
    rt::block_on(async {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().join("share");
        fs::create_dir_all(root.join("d")).unwrap();
        let b = share(&root);
        let below = b.open(&Wish::dir("d")).await.unwrap();
        fs::remove_dir(root.join("d")).unwrap();
        assert_eq!(listing::status_of(&b, below).await, NtStatus::FILE_DELETED);
        assert_eq!(listing::names(&b, "", "*").await.unwrap(), [".", ".."]);
        fs::remove_dir(&root).unwrap();
        assert_eq!(listing::names(&b, "", "*").await, Err(NtStatus::OBJECT_PATH_NOT_FOUND));
    })
    .unwrap();
}
