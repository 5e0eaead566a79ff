//! A memory disk has few descriptors, and many files.

use super::*;

const DESCRIPTORS: usize = 8;

fn disk() -> Vfs {
    Ram::with_descriptors(64 << 20, DESCRIPTORS).into()
}

#[test]
fn small_files_need_no_descriptors_of_their_own() {
    let run = async |vfs: Vfs| {
        let mut files = Vec::new();
        for n in 0..500_u32 {
            let f = file(&vfs, ROOT, &format!("f{n}")).await.node;
            put(&vfs, f, 0, &n.to_le_bytes()).await.unwrap();
            files.push((f, vfs.getattr(f).await.unwrap()));
        }
        let free = vfs.statfs().await.unwrap().free;
        for (n, (f, before)) in files.iter().enumerate() {
            // The location of the bytes is not visible.
            assert_eq!(vfs.getattr(*f).await.unwrap(), *before);
            assert_eq!(contents(&vfs, *f).await, (n as u32).to_le_bytes());
            assert_eq!(vfs.getattr(*f).await.unwrap(), *before);
        }
        assert_eq!(vfs.statfs().await.unwrap().free, free);
        // Writing, truncating and extending work as before.
        let (f, before) = &files[0];
        put(&vfs, *f, 4, b"more").await.unwrap();
        let after = vfs.getattr(*f).await.unwrap();
        assert!(after.mtime > before.mtime && after.ctime > before.ctime);
        assert_eq!(contents(&vfs, *f).await, b"\0\0\0\0more");
        let set = |size| SetAttr { size: Some(size), ..SetAttr::default() };
        assert_eq!(vfs.setattr(files[1].0, set(6)).await.unwrap().size, 6);
        assert_eq!(contents(&vfs, files[1].0).await, [1, 0, 0, 0, 0, 0]);
        for n in 0..500 {
            vfs.remove(ROOT, format!("f{n}").as_bytes()).await.unwrap();
        }
        let space = vfs.statfs().await.unwrap();
        assert_eq!(space.free, space.total);
    };
    rt::block_on(run(disk())).unwrap();
}

#[test]
fn who_has_all_descriptors_is_told_that_there_is_no_space_and_can_delete() {
    let run = async |vfs: Vfs| {
        // Open files, and files too long for the heap.
        let mut open = Vec::new();
        for n in 0..DESCRIPTORS / 2 {
            let f = file(&vfs, ROOT, &format!("open{n}")).await.node;
            open.push(vfs.open(f, true).await.unwrap());
            let long = file(&vfs, ROOT, &format!("long{n}")).await.node;
            put(&vfs, long, 0, &vec![7; (1 << 20) + 1]).await.unwrap();
        }
        let f = file(&vfs, ROOT, "one more").await.node;
        refused!(put(&vfs, f, 0, b"x").await, Error::NoSpace);
        refused!(vfs.setattr(f, SetAttr { size: Some(1), ..SetAttr::default() }).await, Error::NoSpace);
        open[0].write(0, &[Bytes::from_static(b"still")]).await.unwrap();
        vfs.remove(ROOT, b"long0").await.unwrap();
        put(&vfs, f, 0, b"x").await.unwrap();
        let g = file(&vfs, ROOT, "another").await.node;
        // The small file gives way; an open one does not.
        put(&vfs, g, 0, b"y").await.unwrap();
        assert_eq!(contents(&vfs, f).await, b"x");
        assert_eq!(read(&open[0], 0, 10).await, b"still");
        open.clear();
        put(&vfs, file(&vfs, ROOT, "last").await.node, 0, b"z").await.unwrap();
    };
    rt::block_on(run(disk())).unwrap();
}

#[test]
fn files_that_come_and_go_leave_nothing_behind() {
    let run = async |vfs: Vfs| {
        for _ in 0..5_000 {
            let f = file(&vfs, ROOT, "f").await.node;
            put(&vfs, f, 0, b"x").await.unwrap();
            vfs.remove(ROOT, b"f").await.unwrap();
        }
    };
    rt::block_on(run(disk())).unwrap();
}
