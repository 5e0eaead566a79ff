//! Others act between the system calls of a creation.

use std::cell::RefCell;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::path::Path;

use rustix::fs::RenameFlags;
use weft_machine::credentials::{self, Credentials};
use weft_machine::rt;

use crate::backend::Dir;
use crate::vfs::{Caller, Error, Exists, Make, NodeId, SetAttr, SetTime, Special, Vfs};

thread_local! {
    static MEANWHILE: RefCell<Option<Box<dyn Fn()>>> = const { RefCell::new(None) };
}

/// Called between the creation of an object and its next use.
pub(super) fn meanwhile() {
    MEANWHILE.with_borrow(|act| act.iter().for_each(|act| act()));
}

/// Runs `story` while others `act` between its system calls.
fn while_others<T>(act: impl Fn() + 'static, story: impl Future<Output = T>) -> T {
    MEANWHILE.set(Some(Box::new(act)));
    let done = rt::block_on(story).unwrap();
    MEANWHILE.set(None);
    done
}

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// What must not change: a private file, its mode and its owner.
fn private(folder: &Path) -> std::path::PathBuf {
    let path = folder.join("private");
    std::fs::write(&path, b"diary").unwrap();
    std::fs::set_permissions(&path, PermissionsExt::from_mode(0o600)).unwrap();
    path
}

fn private_dir(folder: &Path) -> std::path::PathBuf {
    let path = folder.join("private");
    std::fs::create_dir(&path).unwrap();
    std::fs::set_permissions(&path, PermissionsExt::from_mode(0o700)).unwrap();
    path
}

/// An attacker who gives the private object every name that is new in the folder.
fn swaps_every_new_name(folder: &Path) -> impl Fn() + 'static {
    let folder = folder.to_owned();
    move || {
        for entry in std::fs::read_dir(&folder).unwrap() {
            let entry = entry.unwrap();
            if entry.file_name() != "private" && entry.file_name() != "kept" {
                let cwd = rustix::fs::CWD;
                let private = folder.join("private");
                let _ = std::fs::hard_link(&private, folder.join("kept"));
                rustix::fs::renameat_with(cwd, &private, cwd, entry.path(), RenameFlags::EXCHANGE).unwrap();
                return;
            }
        }
    }
}

fn makes() -> [Make; 3] {
    [Make::Symlink(b"/nowhere".to_vec()), Make::Dir, Make::Special(Special::Fifo)]
}

fn wide() -> SetAttr {
    SetAttr { mode: Some(0o777), ..SetAttr::default() }
}

async fn create(vfs: &Vfs, make: Make, set: SetAttr) -> Result<crate::vfs::Created, Error> {
    vfs.create(NodeId::ROOT, b"new", make, Exists::Fail, set).await
}

/// The private object, wherever it is by now.
fn unharmed(folder: &Path, inode: u64, mode: u32) {
    let mut found = 0;
    let mut left = vec![folder.to_owned()];
    while let Some(dir) = left.pop() {
        for entry in std::fs::read_dir(dir).unwrap() {
            let entry = entry.unwrap();
            let meta = entry.path().symlink_metadata().unwrap();
            if meta.ino() == inode {
                let owner = rustix::process::geteuid().as_raw();
                assert_eq!((meta.mode() & 0o7777, meta.uid()), (mode, owner), "{:?}", entry.path());
                found += 1;
            }
            if meta.is_dir() {
                left.push(entry.path());
            }
        }
    }
    assert!(found > 0, "it was removed");
}

#[test]
fn a_file_that_takes_the_name_of_a_new_object_keeps_its_mode() {
    for make in makes() {
        let folder = tempfile::tempdir().unwrap();
        let path = private(folder.path());
        let inode = path.metadata().unwrap().ino();
        let vfs: Vfs = Dir::open(folder.path()).unwrap().into();
        let made = while_others(swaps_every_new_name(folder.path()), create(&vfs, make.clone(), wide()));
        assert!(matches!(made, Err(Error::Stale)), "{make:?}: {made:?}");
        unharmed(folder.path(), inode, 0o600);
    }
}

#[test]
fn a_directory_that_takes_the_name_of_a_new_one_is_not_taken_for_it() {
    let folder = tempfile::tempdir().unwrap();
    let path = private_dir(folder.path());
    let inode = path.metadata().unwrap().ino();
    // Its birth is not of the same moment.
    std::thread::sleep(super::BEHIND * 2);
    let vfs: Vfs = Dir::open(folder.path()).unwrap().into();
    let made = while_others(swaps_every_new_name(folder.path()), create(&vfs, Make::Dir, wide()));
    assert!(matches!(made, Err(Error::Stale)), "{made:?}");
    unharmed(folder.path(), inode, 0o700);
    // From now on directories are made aside.
    std::fs::remove_dir(folder.path().join("private")).unwrap();
    let made = rt::block_on(async {
        let made = vfs.create(NodeId::ROOT, b"later", Make::Dir, Exists::Fail, wide()).await;
        (made, vfs.lookup(NodeId::ROOT, b"later", false).await)
    })
    .unwrap();
    let (made, found) = (made.0.unwrap().attr, made.1.unwrap());
    assert_eq!((made.node, made.mode), (found.node, 0o777));
}

/// A client has the other new directory already.
#[test]
fn a_new_directory_is_the_result_of_one_creation_only() {
    let folder = tempfile::tempdir().unwrap();
    let vfs: Vfs = Dir::open(folder.path()).unwrap().into();
    let others = rt::block_on(vfs.create(NodeId::ROOT, b"private", Make::Dir, Exists::Fail, wide()));
    let others = others.unwrap().unwrap().attr;
    let (swap, once) = (swaps_every_new_name(folder.path()), std::cell::Cell::new(true));
    let swaps_once = move || {
        if once.replace(false) {
            swap();
        }
    };
    match while_others(swaps_once, create(&vfs, Make::Dir, wide())) {
        Ok(made) => {
            assert_ne!((made.attr.node, made.attr.stable), (others.node, others.stable));
            assert_eq!(folder.path().join("new").metadata().unwrap().ino(), made.attr.fileid);
        }
        // On a slow host its birth is not of the same moment.
        Err(e) => assert!(matches!(e, Error::Stale), "{e}"),
    }
}

/// The new directories may have the inode of the removed one, and be born in the same tick.
#[test]
fn a_directory_is_made_and_removed_again_and_again() {
    let folder = tempfile::tempdir().unwrap();
    let vfs: Vfs = Dir::open(folder.path()).unwrap().into();
    rt::block_on(async {
        for make in makes().iter().cycle().take(300) {
            assert!(create(&vfs, make.clone(), wide()).await.unwrap().is_new);
            match make {
                Make::Dir => std::fs::remove_dir(folder.path().join("new")).unwrap(),
                _ => std::fs::remove_file(folder.path().join("new")).unwrap(),
            }
        }
    })
    .unwrap();
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
}

/// The server sets an owner, as for NFS when it does not act as its callers.
#[test]
fn nobody_becomes_the_owner_of_a_file_that_takes_the_name_of_a_new_object() {
    if !is_root() {
        println!("SKIPPED: only root can give files away");
        return;
    }
    let owned = SetAttr { uid: Some(3000), gid: Some(3000), ..wide() };
    for make in makes() {
        for is_dir in [false, true] {
            let folder = tempfile::tempdir().unwrap();
            let path = if is_dir { private_dir(folder.path()) } else { private(folder.path()) };
            let (inode, mode) = (path.metadata().unwrap().ino(), if is_dir { 0o700 } else { 0o600 });
            let vfs: Vfs = Dir::open(folder.path()).unwrap().into();
            let made =
                while_others(swaps_every_new_name(folder.path()), create(&vfs, make.clone(), owned.clone()));
            // A directory that only the server can use serves as well as the one that it has made.
            assert_eq!(made.is_ok(), is_dir, "{make:?}: {made:?}");
            unharmed(folder.path(), inode, mode);
        }
    }
}

/// The attacker's folder takes the name of the one in which an object is made.
#[test]
fn nothing_is_made_in_a_folder_of_somebody_else() {
    if !is_root() {
        println!("SKIPPED: only root can give files away");
        return;
    }
    for mode in [0o700, 0o777] {
        let folder = tempfile::tempdir().unwrap();
        let path = private_dir(folder.path());
        std::fs::set_permissions(&path, PermissionsExt::from_mode(mode)).unwrap();
        let uid = if mode == 0o700 { 3000 } else { 0 };
        chown(&path, Some(uid), Some(uid)).unwrap();
        let vfs: Vfs = Dir::open(folder.path()).unwrap().into();
        let owned = SetAttr { uid: Some(3000), gid: Some(3000), ..wide() };
        let made = while_others(swaps_every_new_name(folder.path()), create(&vfs, Make::Dir, owned));
        assert!(matches!(made, Err(Error::Access)), "{made:?}");
        assert!(!folder.path().join("new").exists());
    }
}

#[test]
fn a_failed_creation_does_not_remove_a_file_that_has_taken_its_name() {
    let folder = tempfile::tempdir().unwrap();
    let path = private(folder.path());
    let inode = path.metadata().unwrap().ino();
    let vfs: Vfs = Dir::open(folder.path()).unwrap().into();
    let too_large = SetAttr { size: Some(u64::MAX), ..SetAttr::default() };
    let make = |set| create(&vfs, Make::File, set);
    let made = while_others(swaps_every_new_name(folder.path()), make(too_large.clone()));
    assert!(matches!(made, Err(Error::TooLarge)), "{made:?}");
    unharmed(folder.path(), inode, 0o600);
    // If nobody has, the name is gone.
    std::fs::remove_file(folder.path().join("new")).unwrap();
    assert!(matches!(rt::block_on(make(too_large)).unwrap(), Err(Error::TooLarge)));
    assert!(!folder.path().join("new").exists());
}

/// Attributes that a creation cannot give are there when the name is, and nothing else is left in the directory.
#[test]
fn what_is_made_aside_is_complete_and_leaves_nothing_behind() {
    let then = SetTime::To(crate::vfs::Timestamp { secs: 1, nanos: 0 });
    for make in makes() {
        for mode in [0o755, 0o777, 0o500, 0o000] {
            let folder = tempfile::tempdir().unwrap();
            let vfs: Vfs = Dir::open(folder.path()).unwrap().into();
            let set = SetAttr { mode: Some(mode), mtime: Some(then), ..SetAttr::default() };
            rt::block_on(async {
                let made = create(&vfs, make.clone(), set.clone()).await.unwrap();
                let found = vfs.lookup(NodeId::ROOT, b"new", false).await.unwrap();
                assert_eq!((made.attr, made.is_new), (found.clone(), true));
                let is_link = matches!(make, Make::Symlink(_));
                assert_eq!((found.mtime.secs, found.mode == mode || is_link), (1, true), "{make:?}");
                let again = create(&vfs, make.clone(), set.clone()).await;
                assert!(matches!(again, Err(Error::Exists)), "{again:?}");
            })
            .unwrap();
            assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
        }
    }
}

/// A user's object is his, in the group that the directory hands down, and is moved also if its mode forbids him to write.
#[test]
fn what_is_made_aside_for_a_user_belongs_to_him() {
    if let Err(e) = credentials::check() {
        println!("SKIPPED: only root can act for other users: {e}");
        return;
    }
    let then = SetTime::To(crate::vfs::Timestamp { secs: 1, nanos: 0 });
    for make in makes() {
        let folder = tempfile::tempdir().unwrap();
        chown(folder.path(), None, Some(3000)).unwrap();
        std::fs::set_permissions(folder.path(), PermissionsExt::from_mode(0o2777)).unwrap();
        let vfs: Vfs = Dir::open(folder.path()).unwrap().into();
        let user = Credentials::new(2001, 2001, &[]).unwrap();
        let vfs = vfs.acting_as(Caller::User(std::sync::Arc::new(user)));
        let set = SetAttr { mode: Some(0o555), mtime: Some(then), ..SetAttr::default() };
        let made = rt::block_on(create(&vfs, make.clone(), set)).unwrap().unwrap().attr;
        assert_eq!((made.uid, made.gid, made.mtime.secs), (2001, 3000, 1), "{make:?}");
        let mode = match make {
            Make::Symlink(_) => 0o777,
            Make::Dir => 0o2555,
            _ => 0o555,
        };
        assert_eq!(made.mode, mode, "{make:?}");
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1);
    }
}
