//! Watches are notified once about changes that other programs make in a served folder, and not twice about our own.
//!
//! No test waits for a time: each waits for a change that must come, and examines the changes before it.

use std::fs;
use std::path::Path;

use super::*;

/// Runs a story on a served folder.
fn served<F: Future<Output = ()>>(story: impl FnOnce(Vfs, std::path::PathBuf) -> F) {
    let folder = tempfile::tempdir().unwrap();
    let vfs: Vfs = Dir::open(folder.path()).unwrap().into();
    rt::block_on(story(vfs, folder.path().to_owned())).unwrap();
}

/// All changes until `last`, a file created and removed for this purpose, is seen to be removed.
async fn until(watch: &Watch, folder: &Path, last: &str) -> Vec<(Action, String)> {
    fs::write(folder.join(last), b"").unwrap();
    fs::remove_file(folder.join(last)).unwrap();
    let mut seen = Vec::new();
    loop {
        let changes = watch.next().await;
        assert!(!changes.overflowed && !changes.ended, "{changes:?}");
        for change in changes.changes {
            let path = String::from_utf8(change.path.to_vec()).unwrap();
            match path.ends_with(last) {
                true if change.action == Action::Removed => return seen,
                true => {}
                false => seen.push((change.action, path)),
            }
        }
    }
}

fn told(action: Action, path: &str) -> (Action, String) {
    (action, path.to_owned())
}

#[test]
fn names_that_others_make_move_and_remove() {
    served(async |vfs, folder| {
        let watch = vfs.watch(ROOT, false, What::FILE_NAME | What::DIR_NAME, room()).await.unwrap();
        fs::write(folder.join("a"), b"1").unwrap();
        fs::rename(folder.join("a"), folder.join("b")).unwrap();
        fs::create_dir(folder.join("d")).unwrap();
        fs::rename(folder.join("b"), folder.join("d/b")).unwrap();
        fs::rename(folder.join("d/b"), folder.join("c")).unwrap();
        fs::remove_file(folder.join("c")).unwrap();
        let seen = until(&watch, &folder, "end").await;
        let expected = [
            told(Action::Added, "a"),
            told(Action::RenamedFrom, "a"),
            told(Action::RenamedTo, "b"),
            told(Action::Added, "d"),
            told(Action::Removed, "b"),
            told(Action::Added, "c"),
            told(Action::Removed, "c"),
        ];
        assert_eq!(seen, expected);
    });
}

#[test]
fn content_that_others_change() {
    served(async |vfs, folder| {
        fs::write(folder.join("f"), b"1").unwrap();
        let sizes = vfs.watch(ROOT, false, What::SIZE | What::FILE_NAME, room()).await.unwrap();
        fs::write(folder.join("f"), b"more").unwrap();
        assert!(until(&sizes, &folder, "end").await.contains(&told(Action::Modified, "f")));
        let security = vfs.watch(ROOT, false, What::SECURITY | What::FILE_NAME, room()).await.unwrap();
        let mut readonly = fs::metadata(folder.join("f")).unwrap().permissions();
        readonly.set_readonly(true);
        fs::set_permissions(folder.join("f"), readonly).unwrap();
        assert_eq!(until(&security, &folder, "end").await, [told(Action::Modified, "f")]);
    });
}

#[test]
fn what_we_change_is_told_once() {
    served(async |vfs, folder| {
        let watch = vfs.watch(ROOT, true, What::ALL, room()).await.unwrap();
        let d = dir(&vfs, ROOT, "d").await.node;
        let f = file(&vfs, d, "f").await.node;
        put(&vfs, f, 0, b"content").await.unwrap();
        vfs.set_xattr(f, b"x", b"y", SetXattr::Create).await.unwrap();
        vfs.rename(at(d, b"f"), at(ROOT, b"g"), false).await.unwrap();
        vfs.remove(ROOT, b"g").await.unwrap();
        // A failed operation leaves no mark: the same change by another program is reported.
        refused!(vfs.rmdir(ROOT, b"x").await, Error::NotFound);
        fs::create_dir(folder.join("x")).unwrap();
        fs::remove_dir(folder.join("x")).unwrap();
        let seen = until(&watch, &folder, "end").await;
        let expected = [
            told(Action::Added, "d"),
            told(Action::Added, "d/f"),
            told(Action::Modified, "d/f"),
            told(Action::Removed, "d/f"),
            told(Action::Added, "g"),
            told(Action::Removed, "g"),
            told(Action::Added, "x"),
            told(Action::Removed, "x"),
        ];
        assert_eq!(seen, expected);
    });
}

#[test]
fn trees_grow_while_they_are_watched() {
    served(async |vfs, folder| {
        fs::create_dir_all(folder.join("old/deep")).unwrap();
        let watch = vfs.watch(ROOT, true, What::FILE_NAME, room()).await.unwrap();
        // The walk through the existing tree is finished when a deep change is reported.
        let mut n = 0;
        while watch.take().is_empty() {
            fs::write(folder.join(format!("old/deep/{n}")), b"").unwrap();
            n += 1;
            std::thread::yield_now();
        }
        // Created at once: its contents may exist before anybody looks.
        fs::create_dir_all(folder.join("new/er")).unwrap();
        fs::write(folder.join("new/er/f"), b"").unwrap();
        let mut seen = Vec::new();
        while !seen.contains(&told(Action::Added, "new/er/f")) {
            seen.extend(
                watch
                    .next()
                    .await
                    .changes
                    .into_iter()
                    .map(|change| told(change.action, std::str::from_utf8(&change.path).unwrap())),
            );
        }
        drop(watch);
        // The next one starts anew.
        let watch = vfs.watch(ROOT, false, What::FILE_NAME, room()).await.unwrap();
        fs::write(folder.join("new/er/g"), b"").unwrap();
        assert!(until(&watch, &folder, "end").await.is_empty());
    });
}

#[test]
fn a_directory_that_goes_ends_its_watch() {
    served(async |vfs, folder| {
        fs::create_dir(folder.join("d")).unwrap();
        let d = vfs.lookup(ROOT, b"d", false).await.unwrap().node;
        let watch = vfs.watch(d, false, What::ALL, room()).await.unwrap();
        fs::remove_dir(folder.join("d")).unwrap();
        assert!(watch.next().await.ended);
    });
}

/// Without a descriptor of ours the kernel ends its own watch of the directory before it reports the removed name.
#[test]
fn a_directory_that_nobody_holds_ends_its_watch() {
    let dir = tempfile::tempdir().unwrap();
    let vfs: Vfs = Dir::open_without_cache(dir.path()).unwrap().into();
    rt::block_on(async {
        fs::create_dir(dir.path().join("d")).unwrap();
        let d = vfs.lookup(ROOT, b"d", false).await.unwrap().node;
        let watch = vfs.watch(d, false, What::ALL, room()).await.unwrap();
        fs::remove_dir(dir.path().join("d")).unwrap();
        assert!(watch.next().await.ended);
    })
    .unwrap();
}
