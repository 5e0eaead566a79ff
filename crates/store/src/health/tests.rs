use bytes::Bytes;
use weft_machine::rt;

use super::*;
use crate::backend::{Dir, Ram};
use crate::vfs::{Exists, Make, OpenFile, SetAttr, Vfs};

fn health() -> Health {
    // A folder whose disk is not full.
    Health::new("data", Some(Path::new("/")))
}

#[test]
fn trouble_is_told_once_until_it_is_over_or_lasts() {
    let health = health();
    let begun = rt::now();
    assert!(health.failed(Trouble::Full, begun));
    // Whatever comes while something still fails is part of it.
    for second in 1..600 {
        let now = begun + Duration::from_secs(second);
        assert!(!health.failed(Trouble::Full, now), "{second}");
        health.worked(now);
    }
    assert!(health.failed(Trouble::Full, begun + REMIND), "it lasts");
    let said = health.trouble().unwrap();
    assert!(said.contains("the disk of / is full") && said.contains("601 requests"), "{said}");
    health.worked(begun + REMIND + (CALM - Duration::from_nanos(1)));
    assert!(health.trouble().is_some());
    health.worked(begun + REMIND + CALM);
    assert_eq!(health.trouble(), None);
    assert!(health.failed(Trouble::Full, begun + REMIND + CALM), "another time");
}

#[test]
fn what_is_worse_is_told_beside_what_is_known() {
    let (health, now) = (health(), rt::now());
    assert!(health.failed(Trouble::Full, now));
    assert!(health.failed(Trouble::Failing, now));
    assert!(!health.failed(Trouble::Full, now) && !health.failed(Trouble::Failing, now));
    assert!(health.trouble().unwrap().contains("fails"));
}

#[test]
fn only_what_is_the_disks_fault_counts() {
    let of = |errno: Errno| Trouble::of(&Error::from(errno));
    assert_eq!([of(Errno::NOSPC), of(Errno::DQUOT)], [Some(Trouble::Full); 2]);
    assert_eq!(of(Errno::ROFS), Some(Trouble::ReadOnly));
    assert_eq!([of(Errno::IO), of(Errno::NXIO)], [Some(Trouble::Failing); 2]);
    for errno in [Errno::NOENT, Errno::ACCESS, Errno::INTR, Errno::MFILE, Errno::TOOBIG, Errno::FBIG] {
        assert_eq!(of(errno), None, "{errno}");
    }
}

/// Writes to a new file until `bytes` are there.
async fn write(vfs: &Vfs, bytes: usize) -> Result<(), Error> {
    let made = vfs.create(NodeId::ROOT, b"file", Make::File, Exists::Reuse, SetAttr::default()).await?;
    vfs.open(made.0.node, true).await?.write(0, &[Bytes::from(vec![1; bytes])]).await
}

#[test]
fn a_full_ramdisk_is_heard_of() {
    rt::block_on(async {
        let vfs = Vfs::new(Ram::new(1 << 20)).heard_by(Health::new("ram", None));
        write(&vfs, 4096).await.unwrap();
        assert_eq!(vfs.health().unwrap().trouble(), None);
        assert!(matches!(write(&vfs, 2 << 20).await, Err(Error::NoSpace)));
        assert!(vfs.health().unwrap().trouble().unwrap().contains("--ram NAME=SIZE"));
        // Whoever may change nothing is refused for another reason than the disk.
        let vfs = Vfs::new(Ram::new(1 << 20)).heard_by(Health::new("ram", None)).read_only();
        assert!(matches!(write(&vfs, 1).await, Err(Error::ReadOnly)));
        assert_eq!(vfs.health().unwrap().trouble(), None);
    })
    .unwrap();
}

#[test]
fn a_full_disk_is_heard_of_whatever_is_done_to_a_file() {
    rt::block_on(async {
        // The kernel refuses every write to it (full(4)).
        let full = || std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
        let heard = |health: &Arc<Health>| {
            let file = weft_machine::File::from(std::os::fd::OwnedFd::from(full()));
            OpenFile::new(NodeId::ROOT, file, None).heard_by(Some(health.clone()))
        };
        let health = Arc::new(health());
        let written = heard(&health).write(0, &[Bytes::from_static(b"x")]).await;
        assert!(matches!(written, Err(Error::NoSpace)), "{written:?}");
        assert!(health.trouble().unwrap().contains("df -h /"));
    })
    .unwrap();
}

#[test]
fn a_folder_whose_names_can_be_changed_is_well() {
    let folder = tempfile::tempdir().unwrap();
    rt::block_on(async {
        let health = Health::new("data", Some(folder.path()));
        let vfs = Vfs::new(Dir::open(folder.path()).unwrap()).heard_by(health);
        write(&vfs, 4096).await.unwrap();
        assert!(matches!(vfs.remove(NodeId::ROOT, b"none").await, Err(Error::NotFound)));
        vfs.remove(NodeId::ROOT, b"file").await.unwrap();
        assert_eq!(vfs.health().unwrap().trouble(), None);
    })
    .unwrap();
}
