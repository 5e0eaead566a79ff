//! The identity of a node, also after a restart.

use super::*;

#[test]
fn a_stable_identity_leads_back_to_its_node() {
    each(async |vfs| {
        let d = dir(&vfs, ROOT, "d").await.node;
        let f = file(&vfs, d, "f").await.node;
        for node in [ROOT, d, f] {
            let stable = vfs.stable(node).await.unwrap();
            assert_eq!(vfs.find(stable).await.unwrap().node, node);
        }
        let stable = vfs.stable(f).await.unwrap();
        assert_ne!(stable, vfs.stable(d).await.unwrap());
        vfs.rename(at(d, b"f"), at(ROOT, b"g"), false).await.unwrap();
        assert_eq!(vfs.stable(f).await.unwrap(), stable);
        assert_eq!(vfs.find(stable).await.unwrap().node, f);
        vfs.remove(ROOT, b"g").await.unwrap();
        // Gone, or accessible while a descriptor of it happens to be cached.
        match vfs.find(stable).await {
            Ok(attr) => assert_eq!((attr.node, attr.nlink), (f, 0)),
            Err(e) => assert!(matches!(e, Error::Stale), "{e:?}"),
        }
        refused!(vfs.find(Stable([0; 24])).await, Error::Stale);
        refused!(vfs.find(Stable([0xff; 24])).await, Error::Stale);
        refused!(vfs.stable(NodeId(9999)).await, Error::Stale);
    });
}

#[test]
fn a_folder_is_served_again_and_its_files_are_found() {
    let folder = tempfile::tempdir().unwrap();
    let serve = || Vfs::from(Dir::open(folder.path()).unwrap());
    let run = async || {
        let (mut files, mut gone) = (Vec::new(), Vec::new());
        let before = serve();
        for i in 0..30 {
            let d = dir(&before, ROOT, &format!("d{i}")).await.node;
            let e = dir(&before, d, "e").await.node;
            files.push((before.stable(e).await.unwrap(), format!("d{i}/e")));
            for j in 0..10 {
                let f = file(&before, e, &format!("f{j}")).await.node;
                files.push((before.stable(f).await.unwrap(), format!("d{i}/e/f{j}")));
            }
            let f = file(&before, e, "short-lived").await.node;
            gone.push(before.stable(f).await.unwrap());
        }
        let root = before.stable(ROOT).await.unwrap();
        drop(before);
        // Unobserved: some are removed, one is moved.
        for i in 0..30 {
            std::fs::remove_file(folder.path().join(format!("d{i}/e/short-lived"))).unwrap();
        }
        std::fs::rename(folder.path().join("d3/e"), folder.path().join("d4/moved")).unwrap();
        let after = serve();
        assert_eq!(after.find(root).await.unwrap().node, ROOT);
        // The deepest first, so that nothing on the way is known.
        for (stable, path) in files.iter().rev() {
            let found = after.find(*stable).await.unwrap();
            let DirName { dir, name } = after.place(found.node).await.unwrap();
            let path = path.replace("d3/e", "d4/moved");
            assert_eq!(path.rsplit('/').next().unwrap().as_bytes(), name);
            let mut at = ROOT;
            for part in path.split('/').rev().skip(1).collect::<Vec<_>>().iter().rev() {
                at = after.lookup(at, part.as_bytes(), false).await.unwrap().node;
            }
            assert_eq!(dir, at, "{path}");
        }
        for stable in gone {
            refused!(after.find(stable).await, Error::Stale);
        }
    };
    rt::block_on(run()).unwrap();
}

#[test]
fn a_memory_disk_of_before_is_stale() {
    let run = async || {
        let (before, after) = (Vfs::from(Ram::new(LIMIT)), Vfs::from(Ram::new(LIMIT)));
        let f = file(&before, ROOT, "f").await.node;
        assert_eq!(file(&after, ROOT, "f").await.node, f);
        refused!(after.find(before.stable(f).await.unwrap()).await, Error::Stale);
        refused!(after.find(before.stable(ROOT).await.unwrap()).await, Error::Stale);
    };
    rt::block_on(run()).unwrap();
}

/// All connections of a client ask for its file at once, on all cores.
#[test]
fn who_asks_while_others_search_is_not_told_that_there_is_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let serve = || Vfs::from(Dir::open(folder.path()).unwrap());
    let stable = rt::block_on(async {
        let before = serve();
        let f = file(&before, ROOT, "f").await.node;
        before.stable(f).await.unwrap()
    })
    .unwrap();
    for _ in 0..100 {
        let after = serve();
        std::thread::scope(|scope| {
            let ask = || rt::block_on(async { after.find(stable).await.unwrap().node }).unwrap();
            let asked: Vec<_> = (0..4).map(|_| scope.spawn(ask)).collect();
            let found: Vec<_> = asked.into_iter().map(|asked| asked.join().unwrap()).collect();
            assert!(found.iter().all(|node| *node == found[0]), "{found:?}");
        });
    }
}

#[test]
fn numbers_of_files_are_the_same_after_a_restart_and_no_two_are_alike() {
    let folder = tempfile::tempdir().unwrap();
    let serve = || Vfs::from(Dir::open(folder.path()).unwrap());
    let numbers = async |vfs: &Vfs| {
        let entries = vfs.readdir(ROOT, 0, 1000).await.unwrap().entries;
        let mut numbers: Vec<_> =
            entries.into_iter().map(|entry| (entry.attr.unwrap().stable.number(), entry.name)).collect();
        numbers.push((vfs.getattr(ROOT).await.unwrap().stable.number(), b".".to_vec()));
        numbers.sort();
        numbers
    };
    let run = async || {
        let first = serve();
        for n in 0..500 {
            file(&first, ROOT, &format!("f{n}")).await;
        }
        let before = numbers(&first).await;
        drop(first);
        let again = serve();
        // In another order than the first time.
        for n in (0..500).rev() {
            again.lookup(ROOT, format!("f{n}").as_bytes(), false).await.unwrap();
        }
        assert_eq!(numbers(&again).await, before);
        assert!(before.windows(2).all(|pair| pair[0].0 < pair[1].0), "two files, two numbers");
        assert!(before.iter().all(|(number, _)| *number != 0 && number >> 63 == 0));
        let attr = again.lookup(ROOT, b"f7", false).await.unwrap();
        assert_eq!(again.stable(attr.node).await.unwrap(), attr.stable);
    };
    rt::block_on(run()).unwrap();
    // A file in memory of another run is a different file.
    let of_ram = async || file(&Ram::new(LIMIT).into(), ROOT, "f").await.stable.number();
    assert_ne!(rt::block_on(of_ram()).unwrap(), rt::block_on(of_ram()).unwrap());
}

#[test]
fn a_number_tells_a_file_from_a_later_one_and_from_those_of_other_devices() {
    let stable = |inode: u64, born: u64, device: u32| {
        let mut bytes = [0; 24];
        bytes[..8].copy_from_slice(&inode.to_le_bytes());
        bytes[8..16].copy_from_slice(&born.to_le_bytes());
        bytes[20..].copy_from_slice(&device.to_le_bytes());
        Stable(bytes).number()
    };
    // Clients store these: they must not change between versions.
    assert_eq!(stable(7, 1_700_000_000, 0), 0x0789_4500_0000_0007);
    assert_eq!(stable(7, 1_700_000_000, 5) >> 62, 1);
    let all = [
        stable(7, 1, 0),
        stable(7, 2, 0),
        stable(8, 1, 0),
        stable(7, 1, 5),
        stable(7, 1, 6),
        stable(1 << 41, 1, 0),
    ];
    let different: std::collections::HashSet<_> = all.iter().collect();
    assert_eq!(different.len(), all.len());
}
