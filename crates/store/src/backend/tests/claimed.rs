//! Changes of a file while a worker holds its inode lock.

use std::future::Future;
use std::path::Path;
use std::sync::mpsc;
use std::task::Poll;

use weft_machine::file::busy;

use super::*;

/// Checks that each of these waits; they end when `release` is dropped.
async fn all_wait_for(release: mpsc::Sender<()>, waiting: Vec<rt::Task<Result<(), Error>>>) {
    // They are polled in a turn of their own, and those that have ended stay so.
    rt::yield_now().await;
    for (i, task) in waiting.iter().enumerate() {
        assert!(!task.is_finished(), "{i}");
    }
    drop(release);
    for task in waiting {
        task.await.unwrap();
    }
}

#[test]
fn who_changes_a_file_that_a_worker_has_waits_as_a_task_and_others_are_served() {
    let [folder, slow] = [(); 2].map(|()| tempfile::tempdir().unwrap());
    who_changes_waits(folder.path(), Dir::open(folder.path()).unwrap());
    who_changes_waits(slow.path(), Dir::open_on_workers(slow.path()).unwrap());
}

fn who_changes_waits(folder: &Path, dir: Dir) {
    rt::block_on(async {
        let vfs = Vfs::from(dir);
        let f = file(&vfs, ROOT, "f").await.node;
        let [gone, over] = ["gone", "over"].map(|name| name.as_bytes().to_vec());
        for name in [&gone, &over] {
            vfs.link(f, ROOT, name).await.unwrap();
        }
        file(&vfs, ROOT, "new").await;
        put(&vfs, f, 0, &vec![7; 2 << 20]).await.unwrap();
        let (release, gate) = mpsc::channel();
        let inode = busy::Inode::named(rustix::fs::CWD, folder.join("f").as_os_str().as_encoded_bytes());
        let inode = inode.unwrap();
        let call = rt::spawn(busy::lengthy(inode, move || gate.recv().is_err()));
        let mut begun = Box::pin(busy::shared(vec![inode]));
        let pending = std::future::poll_fn(|cx| Poll::Ready(begun.as_mut().poll(cx).is_pending()));
        rt::yield_now().await;
        assert!(pending.await);
        // A task that has asked is polled until it has its claim, or dropped.
        drop(begun);

        let open = vfs.open(f, true).await.unwrap();
        let mode = SetAttr { mode: Some(0o600), ..SetAttr::default() };
        let cut = SetAttr { size: Some(0), ..SetAttr::default() };
        let to_it = || (open.clone(), vfs.clone());
        let ((written, _), (appended, _)) = (to_it(), to_it());
        let [(_, chmod), (_, cuts), (_, set), (_, removes), (_, renames)] = std::array::from_fn(|_| to_it());
        let waiting = vec![
            rt::spawn(async move { written.write(5, &[Bytes::from_static(b"x")]).await }),
            rt::spawn(async move { appended.append(&Bytes::from_static(b"x"), |_| Ok(())).await }),
            rt::spawn(async move { chmod.setattr(f, mode).await.map(drop) }),
            rt::spawn(async move { cuts.setattr(f, cut).await.map(drop) }),
            rt::spawn(async move { set.set_xattr(f, b"a", b"b", SetXattr::Either).await }),
            rt::spawn(async move { removes.remove(ROOT, &gone).await }),
            rt::spawn(async move { renames.rename(at(ROOT, b"new"), at(ROOT, &over), true).await.map(drop) }),
        ];
        // The core serves tasks that do not need that lock.
        let other = file(&vfs, ROOT, "other").await.node;
        put(&vfs, other, 0, b"abc").await.unwrap();
        assert_eq!(vfs.getattr(f).await.unwrap().size, 2 << 20);
        all_wait_for(release, waiting).await;
        assert!(call.await);
        let attr = vfs.getattr(f).await.unwrap();
        assert_eq!((attr.mode & 0o777, attr.nlink), (0o600, 1));
    })
    .unwrap();
}

/// While it waits for one file, the name that it replaces is given to another file that a worker holds.
#[test]
fn a_rename_waits_for_the_file_that_has_the_name_when_its_turn_comes() {
    let [folder, slow] = [(); 2].map(|()| tempfile::tempdir().unwrap());
    a_rename_waits(folder.path(), Dir::open(folder.path()).unwrap());
    a_rename_waits(slow.path(), Dir::open_on_workers(slow.path()).unwrap());
}

fn a_rename_waits(folder: &Path, dir: Dir) {
    rt::block_on(async {
        let vfs = Vfs::from(dir);
        let inode = |name: &str| {
            let path = folder.join(name);
            busy::Inode::named(rustix::fs::CWD, path.as_os_str().as_encoded_bytes()).unwrap()
        };
        for name in ["new", "old", "other"] {
            file(&vfs, ROOT, name).await;
        }
        let [new, other] = [busy::alone(inode("new")).await, busy::alone(inode("other")).await];
        let renames = vfs.clone();
        let renamed =
            rt::spawn(async move { renames.rename(at(ROOT, b"new"), at(ROOT, b"old"), true).await });
        rt::yield_now().await;
        std::fs::rename(folder.join("other"), folder.join("old")).unwrap();
        drop(new);
        for _ in 0..10 {
            rt::yield_now().await;
        }
        assert!(!renamed.is_finished(), "a worker has what is replaced");
        drop(other);
        renamed.await.unwrap();
        assert!(!folder.join("new").exists());
    })
    .unwrap();
}

/// Whoever writes to the file on a core would wait in the kernel, with all whom the core serves.
#[test]
fn a_worker_that_frees_much_of_a_file_has_it_alone() {
    let folder = tempfile::tempdir().unwrap();
    let vfs = Vfs::from(Dir::open_on_workers(folder.path()).unwrap());
    rt::block_on(async {
        let f = file(&vfs, ROOT, "f").await.node;
        let empty = || SetAttr { size: Some(0), ..SetAttr::default() };
        for anew in [false, true] {
            put(&vfs, f, 0, &vec![7; 2 << 20]).await.unwrap();
            let path = folder.path().join("f");
            let inode = busy::Inode::named(rustix::fs::CWD, path.as_os_str().as_encoded_bytes()).unwrap();
            let (release, gate) = mpsc::channel::<()>();
            // It shares the file with those who take its lock for a moment.
            let call = rt::spawn(busy::blocking(inode, move || gate.recv().is_err()));
            rt::yield_now().await;
            let mut cuts: futures_util::future::LocalBoxFuture<'_, Result<(), Error>> = match anew {
                false => Box::pin(async { vfs.setattr(f, empty()).await.map(drop) }),
                true => Box::pin(async {
                    vfs.create(ROOT, b"f", Make::File, Exists::Reuse, empty()).await.map(drop)
                }),
            };
            let soon = std::time::Duration::from_millis(300);
            assert!(rt::timeout(soon, &mut cuts).await.is_err(), "anew: {anew}");
            drop(release);
            cuts.await.unwrap();
            assert!(call.await);
            assert_eq!(vfs.getattr(f).await.unwrap().size, 0);
        }
    })
    .unwrap();
}
