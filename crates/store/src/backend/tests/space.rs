//! Holes, reserved space, copies between files.

use super::*;

const MIB: u64 = 1 << 20;

#[test]
fn holes_are_made_found_and_filled() {
    each(async |vfs| {
        let f = file(&vfs, ROOT, "f").await.node;
        put(&vfs, f, 0, &vec![7; 3 << 20]).await.unwrap();
        let open = vfs.open(f, true).await.unwrap();
        open.punch_hole(MIB, MIB).await.unwrap();
        let found = open.data_ranges(0, u64::MAX, 10).await.unwrap();
        assert_eq!((found.ranges, found.more), (vec![0..MIB, 2 * MIB..3 * MIB], false));
        assert_eq!(open.len().await.unwrap(), 3 * MIB);
        assert!(vfs.getattr(f).await.unwrap().allocated < 3 * MIB);
        open.zero_range(2 * MIB, 1).await.unwrap();
        assert_eq!(read(&open, MIB - 1, 2).await, [7, 0]);
        assert_eq!(read(&open, 2 * MIB - 1, 3).await, [0, 0, 7]);
        open.allocate(3 * MIB, MIB, true).await.unwrap();
        assert_eq!(open.len().await.unwrap(), 3 * MIB);
        open.allocate(3 * MIB, MIB, false).await.unwrap();
        assert_eq!(open.len().await.unwrap(), 4 * MIB);
        assert_eq!(read(&open, 4 * MIB - 1, 10).await, [0]);
    });
}

/// The kernel reserves a range that it zeroes: a request of a few bytes would fill the disk.
#[test]
fn zeros_take_no_space_behind_the_end_nor_more_than_there_is() {
    const HUGE: u64 = 1 << 42;
    each(async |vfs| {
        let f = file(&vfs, ROOT, "f").await.node;
        put(&vfs, f, 0, &[7; 5000]).await.unwrap();
        let open = vfs.open(f, true).await.unwrap();
        open.zero_range(1000, 64 * MIB).await.unwrap();
        open.zero_range(32 * MIB, MIB).await.unwrap();
        let attr = vfs.getattr(f).await.unwrap();
        assert!(attr.size == 5000 && attr.allocated <= MIB, "{attr:?}");
        assert_eq!(read(&open, 999, 10_000).await, [&[7][..], &[0; 4000]].concat());
        // A file of one large hole, on disks that have not so much.
        let large = SetAttr { size: Some(HUGE), ..SetAttr::default() };
        if vfs.setattr(f, large).await.is_ok() && vfs.statfs().await.unwrap().available < HUGE {
            open.zero_range(0, HUGE).await.unwrap();
            assert_eq!(read(&open, 0, 10).await, [0; 10]);
            assert!(vfs.getattr(f).await.unwrap().allocated <= MIB);
        }
    });
}

#[test]
fn files_are_copied_into_each_other() {
    each(async |vfs| {
        let (f, g) = (file(&vfs, ROOT, "f").await.node, file(&vfs, ROOT, "g").await.node);
        put(&vfs, f, 0, b"0123456789").await.unwrap();
        let (from, to) = (vfs.open(f, false).await.unwrap(), vfs.open(g, true).await.unwrap());
        assert_eq!(to.copy_from(2, &from, 5, 100).await.unwrap(), 5);
        assert_eq!(contents(&vfs, g).await, b"\0\x0056789");
        assert_eq!(to.copy_from(3, &to, 2, 4).await.unwrap(), 4);
        assert_eq!(contents(&vfs, g).await, b"\0\x0055678");
        match to.clone_range(0, &from, 0, 10).await {
            Ok(()) => assert_eq!(contents(&vfs, g).await, b"0123456789"),
            Err(e) => assert!(matches!(e, Error::NotSupported | Error::Invalid), "{e:?}"),
        }
    });
}

#[test]
fn what_is_open_for_reading_is_not_changed() {
    each(async |vfs| {
        let f = file(&vfs, ROOT, "f").await.node;
        put(&vfs, f, 0, b"abc").await.unwrap();
        let open = vfs.open(f, false).await.unwrap();
        refused!(open.punch_hole(0, 1).await, Error::Access);
        refused!(open.zero_range(0, 1).await, Error::Access);
        refused!(open.allocate(0, 10, false).await, Error::Access);
        refused!(open.copy_from(0, &open, 1, 1).await, Error::Access);
        refused!(open.clone_range(0, &open, 0, 1).await, Error::Access);
        let open = vfs.open(f, true).await.unwrap();
        refused!(open.punch_hole(u64::MAX, 1).await, Error::Invalid);
        refused!(open.allocate(i64::MAX as u64, 1, false).await, Error::Invalid);
        assert_eq!(contents(&vfs, f).await, b"abc");
    });
}

#[test]
fn reserved_space_counts_on_a_memory_disk() {
    let run = async |vfs: Vfs| {
        let f = file(&vfs, ROOT, "f").await.node;
        let open = vfs.open(f, true).await.unwrap();
        refused!(open.allocate(0, LIMIT + 1, false).await, Error::NoSpace);
        open.allocate(0, LIMIT, true).await.unwrap();
        assert_eq!(vfs.statfs().await.unwrap().free, 0);
        let g = file(&vfs, ROOT, "g").await.node;
        refused!(put(&vfs, g, 0, b"x").await, Error::NoSpace);
        drop(open);
        vfs.remove(ROOT, b"f").await.unwrap();
        put(&vfs, g, 0, &vec![1; LIMIT as usize / 2]).await.unwrap();
        let open = vfs.open(g, true).await.unwrap();
        refused!(open.copy_from(LIMIT - 10, &open, 0, 11).await, Error::NoSpace);
    };
    rt::block_on(run(Ram::new(LIMIT).into())).unwrap();
}
