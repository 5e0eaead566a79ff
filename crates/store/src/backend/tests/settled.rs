//! Changes that are durable when they are answered: objects of a host's folder that cannot be flushed individually do
//! not prevent that.

use super::*;

#[test]
fn everything_that_can_be_changed_can_be_settled() {
    each(|vfs| async move {
        let vfs = vfs.settled();
        let all = [
            ("file", Make::File),
            ("dir", Make::Dir),
            ("link", Make::Symlink(b"nowhere".to_vec())),
            ("pipe", Make::Special(Special::Fifo)),
        ];
        for (name, make) in all {
            let set = SetAttr { mtime: Some(SetTime::Now), mode: Some(0), ..SetAttr::default() };
            let Created { attr, is_new } =
                vfs.create(ROOT, name.as_bytes(), make, Exists::Fail, set.clone()).await.unwrap();
            assert!(is_new);
            vfs.setattr(attr.node, set).await.unwrap();
            vfs.rename(at(ROOT, name.as_bytes()), at(ROOT, b"renamed"), false).await.unwrap();
            let dir = attr.kind == Kind::Dir;
            if !dir {
                vfs.link(attr.node, ROOT, b"linked").await.unwrap();
                vfs.remove(ROOT, b"linked").await.unwrap();
            }
            let gone =
                if dir { vfs.rmdir(ROOT, b"renamed").await } else { vfs.remove(ROOT, b"renamed").await };
            gone.unwrap();
        }
    });
}

#[test]
fn ranges_that_are_reserved_or_freed_are_settled_and_writes_are_not() {
    let folder = tempfile::tempdir().unwrap();
    let vfs = Vfs::new(Dir::open(folder.path()).unwrap());
    rt::block_on(async {
        let made = vfs.create(ROOT, b"f", Make::File, Exists::Fail, SetAttr::default()).await;
        let node = made.unwrap().attr.node;
        for (vfs, settles) in [(vfs.clone(), false), (vfs.clone().settled(), true)] {
            let file = vfs.open(node, true).await.unwrap();
            file.allocate(0, 8192, false).await.unwrap();
            assert_eq!(file.is_unflushed(), !settles);
            file.punch_hole(0, 4096).await.unwrap();
            assert_eq!(file.is_unflushed(), !settles);
            file.write(0, &[Bytes::from_static(b"data")]).await.unwrap();
            assert!(file.is_unflushed());
            file.sync().await.unwrap();
            assert!(!file.is_unflushed());
        }
    })
    .unwrap();
}
