//! Named streams.

use super::*;

#[test]
fn a_stream_is_made_written_found_and_removed() {
    each(async |vfs| {
        let (f, d) = (file(&vfs, ROOT, "f").await.node, dir(&vfs, ROOT, "d").await.node);
        for base in [f, d] {
            refused!(vfs.stream(base, b"s", false).await, Error::NotFound);
            let Created { attr: made, is_new: new } = vfs.stream(base, b"Notes", true).await.unwrap();
            assert!(new && made.node != base);
            assert_eq!((made.kind, made.size), (Kind::File, 0));
            let hold = vfs.hold(made.node).await.unwrap();
            put(&vfs, made.node, 0, b"12345").await.unwrap();
            // In any case, and while it is not open.
            let Created { attr: found, is_new: new } = vfs.stream(base, b"nOTES", true).await.unwrap();
            assert_eq!((found.node, found.size, new), (made.node, 5, false));
            assert_eq!(contents(&vfs, found.node).await, b"12345");
            assert_eq!(vfs.streams(base).await.unwrap(), [StreamEntry { name: b"Notes".to_vec(), size: 5 }]);
            let cut = SetAttr { size: Some(2), mode: Some(0o600), ..SetAttr::default() };
            let cut = vfs.setattr(made.node, cut).await.unwrap();
            assert_eq!((cut.size, cut.mode), (2, 0o600));
            assert_eq!(vfs.getattr(base).await.unwrap().mode, 0o600);
            assert_eq!(vfs.place(made.node).await.unwrap(), vfs.place(base).await.unwrap());
            assert!(!vfs.list_xattrs(base).await.unwrap().is_empty());
            let summary = XattrSummary { streams: true, ..XattrSummary::default() };
            assert_eq!(vfs.xattr_summary(made.node).await.unwrap(), summary);
            vfs.remove_stream(base, b"NOTES").await.unwrap();
            refused!(vfs.remove_stream(base, b"Notes").await, Error::NotFound);
            assert!(vfs.streams(base).await.unwrap().is_empty());
            drop(hold);
        }
    });
}

#[test]
fn opens_of_a_stream_share_its_bytes_and_outlive_its_name() {
    each(async |vfs| {
        let f = file(&vfs, ROOT, "f").await.node;
        let s = vfs.stream(f, b"s", true).await.unwrap().attr.node;
        let (one, two) = (vfs.open(s, true).await.unwrap(), vfs.open(s, false).await.unwrap());
        one.write(3, &[Bytes::from_static(b"abc")]).await.unwrap();
        assert_eq!(read(&two, 0, 10).await, b"\0\0\0abc");
        one.punch_hole(3, 1).await.unwrap();
        one.copy_from(0, &two, 4, 2).await.unwrap();
        refused!(two.write(0, &[Bytes::from_static(b"x")]).await, Error::Access);
        vfs.remove_stream(f, b"s").await.unwrap();
        // Another stream with the same name, while the old one is open.
        let new = vfs.stream(f, b"s", true).await.unwrap().attr.node;
        assert_ne!(new, s);
        one.write(0, &[Bytes::from_static(b"old")]).await.unwrap();
        assert_eq!(read(&two, 0, 10).await, b"old\0bc");
        assert_eq!(contents(&vfs, new).await, b"");
        vfs.remove(ROOT, b"f").await.unwrap();
        assert_eq!(read(&two, 0, 3).await, b"old");
    });
}

#[test]
fn streams_are_renamed_and_go_with_their_file() {
    each(async |vfs| {
        let f = file(&vfs, ROOT, "f").await.node;
        let (a, b) = (
            vfs.stream(f, b"a", true).await.unwrap().attr.node,
            vfs.stream(f, b"b", true).await.unwrap().attr.node,
        );
        let open = vfs.open(a, true).await.unwrap();
        open.write(0, &[Bytes::from_static(b"bytes")]).await.unwrap();
        refused!(vfs.rename_stream(a, b"B", false).await, Error::Exists);
        vfs.rename_stream(a, b"A", false).await.unwrap();
        vfs.rename_stream(a, b"b", true).await.unwrap();
        refused!(vfs.getattr(b).await, Error::Stale);
        open.write(0, &[Bytes::from_static(b"B")]).await.unwrap();
        drop(open);
        vfs.rename(at(ROOT, b"f"), at(ROOT, b"g"), false).await.unwrap();
        assert_eq!(vfs.streams(f).await.unwrap(), [StreamEntry { name: b"b".to_vec(), size: 5 }]);
        let found = vfs.stream(f, b"b", false).await.unwrap().attr.node;
        assert_eq!(contents(&vfs, found).await, b"Bytes");
    });
}

#[test]
fn streams_have_limits() {
    each(async |vfs| {
        let f = file(&vfs, ROOT, "f").await.node;
        let longest = [b'n'; MAX_STREAM_NAME];
        let s = vfs.stream(f, &longest, true).await.unwrap().attr.node;
        refused!(vfs.stream(f, &[b'n'; MAX_STREAM_NAME + 1], true).await, Error::NameTooLong);
        refused!(put(&vfs, s, MAX_STREAM_BYTES, b"x").await, Error::NoSpace);
        let over = SetAttr { size: Some(MAX_STREAM_BYTES + 1), ..SetAttr::default() };
        refused!(vfs.setattr(s, over).await, Error::NoSpace);
        put(&vfs, s, 0, &[7; 1000]).await.unwrap();
        assert_eq!(vfs.getattr(s).await.unwrap().size, 1000);
        refused!(vfs.getattr(NodeId(u64::MAX)).await, Error::Stale);
        refused!(vfs.open(NodeId(1 << 63), false).await, Error::Stale);
    });
}

#[test]
fn streams_are_told_to_who_watches() {
    each(async |vfs| {
        let f = file(&vfs, ROOT, "f").await.node;
        let watch = vfs.watch(ROOT, false, What::STREAM_NAME | What::STREAM_WRITTEN, room()).await.unwrap();
        let s = vfs.stream(f, b"s", true).await.unwrap().attr.node;
        put(&vfs, s, 0, b"x").await.unwrap();
        vfs.remove_stream(f, b"s").await.unwrap();
        let change = |action| Change { action, path: b"f:s"[..].into(), dirs: [].into() };
        let told = [Action::StreamAdded, Action::StreamModified, Action::StreamRemoved].map(change);
        assert_eq!(watch.next().await.changes, told);
    });
}
