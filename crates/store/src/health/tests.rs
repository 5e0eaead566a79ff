use bytes::Bytes;
use weft_machine::rt;
use weft_machine::sim::Sim;

use super::*;
use crate::backend::{Dir, Ram};
use crate::vfs::{Exists, Make, NodeId, OpenFile, SetAttr, Vfs};

fn health() -> Health {
    // A folder whose disk is not full.
    Health::new("data", Some(Path::new("/")))
}

#[test]
fn trouble_is_told_once_until_it_is_over_or_lasts() {
    let health = health();
    let begun = rt::now();
    assert!(health.failed(Trouble::Full, Takes::Space, begun));
    // Further failures belong to the same problem.
    for second in 1..600 {
        let now = begun + Duration::from_secs(second);
        assert!(!health.failed(Trouble::Full, Takes::Space, now), "{second}");
        health.worked(Takes::Space, || now);
    }
    assert!(health.failed(Trouble::Full, Takes::Space, begun + REMIND), "it lasts");
    let said = health.trouble().unwrap();
    assert!(said.contains("the disk of / is full") && said.contains("601 requests"), "{said}");
    health.worked(Takes::Space, || begun + REMIND + (CALM - Duration::from_nanos(1)));
    assert!(health.trouble().is_some());
    health.worked(Takes::Space, || begun + REMIND + CALM);
    assert_eq!(health.trouble(), None);
    // A new problem, of a kind logged a moment ago; so its end is not logged either.
    assert!(!health.failed(Trouble::Full, Takes::Space, begun + REMIND + CALM));
    assert!(health.trouble().is_some(), "the status says so");
    assert!(health.failed(Trouble::Full, Takes::Space, begun + REMIND + REMIND));
}

#[test]
fn a_client_that_alternates_what_fails_gets_one_line_for_each_kind() {
    let (health, begun) = (health(), rt::now());
    let fails = |trouble, after| health.failed(trouble, Takes::Space, begun + Duration::from_secs(after));
    let lines = |seconds: std::ops::Range<u64>| {
        let each = seconds.flat_map(|after| [(Trouble::Full, after), (Trouble::ReadOnly, after)]);
        each.filter(|(trouble, after)| fails(*trouble, *after)).count()
    };
    assert_eq!(lines(0..600), 2);
    assert_eq!(lines(600..1200), 2, "it lasts");
}

#[test]
fn a_disk_is_full_until_something_took_space() {
    let (health, begun) = (health(), rt::now());
    let later = begun + CALM;
    health.failed(Trouble::Full, Takes::Space, begun);
    health.worked(Takes::Nothing, || later);
    health.worked(Takes::Name, || later);
    assert!(health.trouble().is_some());
    health.worked(Takes::Space, || later);
    assert_eq!(health.trouble(), None);
    // There may be space, but no room for another file.
    health.failed(Trouble::Full, Takes::Name, begun);
    health.worked(Takes::Space, || later);
    assert!(health.trouble().is_some());
    health.worked(Takes::Name, || later);
    assert_eq!(health.trouble(), None);
}

#[test]
fn overwrites_do_not_end_that_a_ramdisk_is_full() {
    Sim::new(1).run(async {
        let vfs = Vfs::new(Ram::new(1 << 20)).heard_by(Health::new("ram", None));
        write(&vfs, 4096).await.unwrap();
        assert!(matches!(write(&vfs, 2 << 20).await, Err(Error::NoSpace)));
        rt::sleep(CALM).await;
        write(&vfs, 4096).await.unwrap();
        assert!(vfs.health().unwrap().trouble().is_some());
        write(&vfs, 4097).await.unwrap();
        assert_eq!(vfs.health().unwrap().trouble(), None);
    });
}

#[test]
fn whoever_asks_for_more_than_a_disk_has_does_not_make_it_full() {
    rt::block_on(async {
        let vfs = Vfs::new(Ram::new(1 << 20)).heard_by(Health::new("ram", None));
        let made = vfs
            .create(NodeId::ROOT, b"file", Make::File, Exists::Reuse, SetAttr::default())
            .await
            .unwrap()
            .attr;
        let file = vfs.open(made.node, true).await.unwrap();
        assert!(matches!(file.allocate(0, 1 << 40, false).await, Err(Error::NoSpace)));
        let size = SetAttr { size: Some(1 << 40), ..SetAttr::default() };
        assert!(matches!(vfs.setattr(made.node, size).await, Err(Error::NoSpace)));
        assert_eq!(vfs.health().unwrap().trouble(), None);
    })
    .unwrap();
}

#[test]
fn what_is_worse_is_told_beside_what_is_known() {
    let (health, now) = (health(), rt::now());
    assert!(health.failed(Trouble::Full, Takes::Space, now));
    assert!(health.failed(Trouble::Failing, Takes::Space, now));
    assert!(
        !health.failed(Trouble::Full, Takes::Space, now)
            && !health.failed(Trouble::Failing, Takes::Space, now)
    );
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
    vfs.open(made.attr.node, true).await?.write(0, &[Bytes::from(vec![1; bytes])]).await
}

#[test]
fn a_full_ramdisk_is_heard_of() {
    rt::block_on(async {
        let vfs = Vfs::new(Ram::new(1 << 20)).heard_by(Health::new("ram", None));
        write(&vfs, 4096).await.unwrap();
        assert_eq!(vfs.health().unwrap().trouble(), None);
        assert!(matches!(write(&vfs, 2 << 20).await, Err(Error::NoSpace)));
        assert!(vfs.health().unwrap().trouble().unwrap().contains("--ram NAME=SIZE"));
        // A read-only user is refused for another reason than the disk.
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
            OpenFile::of_file(NodeId::ROOT, file).heard_by(Some(health.clone()))
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

#[test]
fn a_name_of_a_client_begins_no_line_of_the_log() {
    let name = Path::new("a\n2026-11-23T16:40:00Z ERROR vol1: the copy is lost\u{1b}[31m\u{202e}");
    let place = place(name);
    assert!(!place.contains(char::is_control) && !place.contains('\u{202e}'), "{place}");
    assert!(place.contains("a\\n2026"), "{place}");
    assert_eq!(super::place(Path::new("/srv/a b")), ", at /srv/a b");
}

/// The folder was shown at its old path.
#[test]
fn a_folder_that_goes_while_it_is_served_is_told() {
    let work = tempfile::tempdir().unwrap();
    let (folder, moved) = (work.path().join("data"), work.path().join("moved"));
    std::fs::create_dir(&folder).unwrap();
    let root = Dir::open(&folder).unwrap().root().unwrap();
    let health = Health::new("data", Some(&folder)).of_root(root);
    assert_eq!(health.troubles(), None);
    std::fs::rename(&folder, &moved).unwrap();
    let gone = health.troubles().unwrap();
    assert!(gone.contains("data no longer exists") && gone.contains("was moved to"), "{gone}");
    std::fs::create_dir(&folder).unwrap();
    assert!(health.troubles().is_some_and(|why| why.contains("data is now another folder")));
    health.failed(Trouble::Failing, Takes::Space, rt::now());
    assert!(health.troubles().is_some_and(|why| why.contains("Move it back") && why.contains("dmesg")));
    std::fs::remove_dir(&folder).unwrap();
    std::fs::rename(&moved, &folder).unwrap();
    assert!(health.troubles().is_some_and(|why| !why.contains("Move it back")));
    std::fs::remove_dir(&folder).unwrap();
    assert!(health.troubles().is_some_and(|why| why.contains("was removed, and accepts no changes. When")));
}

/// `weft status` called the share healthy, and no client could list it.
#[test]
fn a_folder_that_the_servers_user_may_not_read_is_told() {
    use std::os::unix::fs::PermissionsExt;
    let folder = tempfile::tempdir().unwrap();
    let mode = |mode| std::fs::set_permissions(folder.path(), std::fs::Permissions::from_mode(mode)).unwrap();
    mode(0o755);
    let root = Arc::new(OwnedFd::from(std::fs::File::open(folder.path()).unwrap()));
    let health = Health::new("data", Some(folder.path())).of_root(root);
    let troubles = || {
        let as_another = || {
            if crate::is_root() {
                let nobody = Some(rustix::process::Uid::from_raw(65_534));
                rustix::thread::set_thread_res_uid(nobody, nobody, nobody).unwrap();
            }
            health.troubles()
        };
        std::thread::scope(|scope| scope.spawn(as_another).join()).unwrap()
    };
    assert_eq!(troubles(), None);
    for closed in [0o000, 0o444, 0o111] {
        mode(closed);
        let why = troubles().unwrap();
        let says =
            ["may not read it: ch", "a restart alone does not help", &folder.path().display().to_string()];
        assert!(says.iter().all(|part| why.contains(part)), "{why}");
    }
    if crate::is_root() {
        assert_eq!(health.troubles(), None);
    }
    mode(0o755);
    assert_eq!(troubles(), None);
}
