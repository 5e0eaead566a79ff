//! Extended attributes and their summary.

use super::*;

#[test]
fn extended_attributes_are_set_listed_and_removed() {
    each(async |vfs| {
        let f = file(&vfs, ROOT, "f").await.node;
        let d = dir(&vfs, ROOT, "d").await.node;
        for node in [f, d, ROOT] {
            refused!(vfs.get_xattr(node, b"a").await, Error::NoXattr);
            refused!(vfs.set_xattr(node, b"a", b"1", SetXattr::Replace).await, Error::NoXattr);
            vfs.set_xattr(node, b"a", b"1", SetXattr::Create).await.unwrap();
            refused!(vfs.set_xattr(node, b"a", b"2", SetXattr::Create).await, Error::Exists);
            vfs.set_xattr(node, b"a", b"longer", SetXattr::Replace).await.unwrap();
            vfs.set_xattr(node, "Grüße".as_bytes(), b"", SetXattr::Either).await.unwrap();
            assert_eq!(vfs.get_xattr(node, b"a").await.unwrap(), b"longer");
            assert_eq!(vfs.get_xattr(node, "Grüße".as_bytes()).await.unwrap(), b"");
            // Names differ by case.
            refused!(vfs.get_xattr(node, b"A").await, Error::NoXattr);
            let mut names = vfs.list_xattrs(node).await.unwrap();
            names.sort();
            assert_eq!(names, ["Grüße".as_bytes(), b"a"].map(<[u8]>::to_vec));
            vfs.remove_xattr(node, b"a").await.unwrap();
            refused!(vfs.remove_xattr(node, b"a").await, Error::NoXattr);
            assert_eq!(vfs.list_xattrs(node).await.unwrap(), ["Grüße".as_bytes().to_vec()]);
        }
    });
}

#[test]
fn extended_attributes_have_limits() {
    each(async |vfs| {
        let f = file(&vfs, ROOT, "f").await.node;
        let name = [b'n'; MAX_XATTR_NAME];
        vfs.set_xattr(f, &name, b"v", SetXattr::Either).await.unwrap();
        assert_eq!(vfs.get_xattr(f, &name).await.unwrap(), b"v");
        let long = [b'n'; MAX_XATTR_NAME + 1];
        refused!(vfs.set_xattr(f, &long, b"v", SetXattr::Either).await, Error::NameTooLong);
        refused!(vfs.get_xattr(f, &long).await, Error::NameTooLong);
        for bad in [&b""[..], b"a\0b"] {
            refused!(vfs.set_xattr(f, bad, b"v", SetXattr::Either).await, Error::BadName);
            refused!(vfs.get_xattr(f, bad).await, Error::BadName);
            refused!(vfs.remove_xattr(f, bad).await, Error::BadName);
        }
        let big = vec![7; MAX_XATTR_VALUE + 1];
        refused!(vfs.set_xattr(f, b"big", &big, SetXattr::Either).await, Error::XattrTooBig);
        // As much as Linux allows, or a clear error of a file system that allows less.
        match vfs.set_xattr(f, b"big", &big[1..], SetXattr::Either).await {
            Ok(()) => assert_eq!(vfs.get_xattr(f, b"big").await.unwrap(), big[1..]),
            Err(e) => assert!(matches!(e, Error::NoSpace), "{e:?}"),
        }
        let medium = vec![8; 2000];
        vfs.set_xattr(f, b"medium", &medium, SetXattr::Either).await.unwrap();
        assert_eq!(vfs.get_xattr(f, b"medium").await.unwrap(), medium);
        refused!(vfs.get_xattr(NodeId(9999), b"a").await, Error::Stale);
    });
}

#[test]
fn links_have_no_extended_attributes() {
    each(async |vfs| {
        let make = Make::Symlink(b"f".to_vec());
        let l = vfs.create(ROOT, b"l", make, Exists::Fail, SetAttr::default()).await.unwrap().attr.node;
        // Its target has some, but links are not followed.
        let f = file(&vfs, ROOT, "f").await.node;
        vfs.set_xattr(f, b"a", b"1", SetXattr::Either).await.unwrap();
        refused!(vfs.set_xattr(l, b"a", b"1", SetXattr::Either).await, Error::NotSupported);
        refused!(vfs.get_xattr(l, b"a").await, Error::NoXattr);
        refused!(vfs.remove_xattr(l, b"a").await, Error::NoXattr);
        assert!(vfs.list_xattrs(l).await.unwrap().is_empty());
        let summary = vfs.xattr_summary(l).await.unwrap();
        assert_eq!((summary.count, summary.bytes), (0, 0));
        let entries = vfs.readdir_with_xattrs(ROOT, 0, 10).await.unwrap().entries;
        for entry in entries {
            assert_eq!(entry.xattrs.unwrap().count, u32::from(entry.name == b"f"));
        }
    });
}

#[test]
fn dos_attributes_are_kept_and_listed() {
    each(async |vfs| {
        let f = file(&vfs, ROOT, "f").await.node;
        file(&vfs, ROOT, "g").await;
        let born = Some(Timestamp { secs: 1_000_000_000, nanos: 100 });
        let dos = Dos { attributes: 0x22, born, changed: None };
        assert_eq!(vfs.xattr_summary(f).await.unwrap(), XattrSummary::default());
        vfs.set_dos(f, None, dos).await.unwrap();
        vfs.set_xattr(f, b"color", b"blue", SetXattr::Either).await.unwrap();
        let summary = XattrSummary { dos: Some(dos), count: 1, bytes: 9, streams: false };
        assert_eq!(vfs.xattr_summary(f).await.unwrap(), summary);
        let entries = vfs.readdir_with_xattrs(ROOT, 0, 10).await.unwrap().entries;
        assert_eq!(entries.len(), 2);
        for entry in entries {
            assert_eq!(
                entry.xattrs,
                Some(if entry.name == b"f" { summary } else { XattrSummary::default() })
            );
        }
        let entries = vfs.readdir(ROOT, 0, 10).await.unwrap().entries;
        assert!(entries.iter().all(|entry| entry.xattrs.is_none()));
        // They move with the file, and are deleted with it.
        vfs.rename(at(ROOT, b"f"), at(ROOT, b"h"), false).await.unwrap();
        assert_eq!(vfs.xattr_summary(f).await.unwrap().dos, Some(dos));
        vfs.remove(ROOT, b"h").await.unwrap();
        let again = file(&vfs, ROOT, "f").await.node;
        assert_eq!(vfs.xattr_summary(again).await.unwrap(), XattrSummary::default());
    });
}

#[test]
fn extended_attributes_take_space_of_a_memory_disk() {
    let run = async |vfs: Vfs| {
        let f = file(&vfs, ROOT, "f").await.node;
        let value = vec![1; MAX_XATTR_VALUE - 1];
        let fit = LIMIT / 65_536;
        for i in 0..fit {
            // One byte of name for each.
            vfs.set_xattr(f, &[b'0' + i as u8], &value, SetXattr::Create).await.unwrap();
        }
        assert_eq!(vfs.statfs().await.unwrap().free, 0);
        refused!(vfs.set_xattr(f, b"more", b"", SetXattr::Create).await, Error::NoSpace);
        vfs.remove_xattr(f, b"0").await.unwrap();
        vfs.set_xattr(f, b"1", b"", SetXattr::Replace).await.unwrap();
        assert_eq!(vfs.statfs().await.unwrap().free, 65_536 + 65_535);
        vfs.remove(ROOT, b"f").await.unwrap();
        assert_eq!(vfs.statfs().await.unwrap().free, LIMIT);
    };
    rt::block_on(run(Ram::new(LIMIT).into())).unwrap();
}
