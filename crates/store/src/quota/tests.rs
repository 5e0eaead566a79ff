//! The count against du(1), operation by operation and at random, and what a quota refuses.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use bytes::Bytes;
use weft_machine::rt;

use super::*;
use crate::backend::Dir;
use crate::vfs::{
    DirName, Dos, Error, Exists, Kind, Make, NodeId, ObjectOp, OpenFile, SetAttr, SetXattr, Vfs,
};

const ROOT: NodeId = NodeId::ROOT;
const MIB: u64 = 1 << 20;

/// A folder of one file system, served with a quota that is counted.
struct Host {
    folder: tempfile::TempDir,
    quota: Quota,
    vfs: Vfs,
}

impl Host {
    fn on(place: &Path, limit_bytes: u64) -> Host {
        let folder = tempfile::tempdir_in(place).unwrap();
        Host::of(folder, limit_bytes)
    }

    fn of(folder: tempfile::TempDir, limit_bytes: u64) -> Host {
        let dir = Dir::open(folder.path()).unwrap();
        let quota = Quota::new("t", dir.root().unwrap(), limit_bytes, None, &|| ()).unwrap();
        quota.recount();
        let vfs = Vfs::new(dir).limited(quota.clone());
        Host { folder, quota, vfs }
    }

    fn new(limit_bytes: u64) -> Host {
        Host::on(&std::env::temp_dir(), limit_bytes)
    }

    /// The folder as another share, with a quota of its own.
    fn again(&self, limit_bytes: u64) -> (Vfs, Quota) {
        let dir = Dir::open(self.folder.path()).unwrap();
        let quota = Quota::new("other", dir.root().unwrap(), limit_bytes, None, &|| ()).unwrap();
        (Vfs::new(dir).limited(quota.clone()), quota)
    }

    fn du(&self) -> u64 {
        du(self.folder.path())
    }

    fn used(&self) -> u64 {
        self.quota.usage().used_bytes
    }

    fn quota_files(&self) -> u64 {
        match self.quota.usage().means {
            Means::Count { files, .. } => files,
            Means::Project(_) => panic!("it is counted"),
        }
    }

    #[track_caller]
    fn agrees(&self, what: &str) {
        assert_eq!(self.used(), self.du(), "after {what}");
    }

    async fn file(&self, dir: NodeId, name: &str) -> NodeId {
        let set = SetAttr::default();
        self.vfs.create(dir, name.as_bytes(), Make::File, Exists::Reuse, set).await.unwrap().attr.node
    }

    async fn dir(&self, name: &str) -> NodeId {
        self.vfs
            .create(ROOT, name.as_bytes(), Make::Dir, Exists::Reuse, SetAttr::default())
            .await
            .unwrap()
            .attr
            .node
    }

    async fn open(&self, node: NodeId) -> OpenFile {
        self.vfs.open(node, true).await.unwrap()
    }
}

/// What du(1) says.
fn du(folder: &Path) -> u64 {
    let said = Command::new("du").args(["-s", "-B1"]).arg(folder).output().unwrap();
    assert!(said.status.success(), "{}", String::from_utf8_lossy(&said.stderr));
    String::from_utf8(said.stdout).unwrap().split_whitespace().next().unwrap().parse().unwrap()
}

/// Folders on the file systems of this host: the one of temporary files, and one in memory.
fn places() -> Vec<PathBuf> {
    let memory = PathBuf::from("/dev/shm");
    [std::env::temp_dir()].into_iter().chain(memory.is_dir().then_some(memory)).collect()
}

fn story(run: impl AsyncFnOnce()) {
    rt::block_on(run()).unwrap();
}

fn bytes(len: u64) -> [Bytes; 1] {
    [Bytes::from(vec![7; len as usize])]
}

#[track_caller]
fn is_over_quota(done: Result<(), Error>) {
    assert!(matches!(done, Err(Error::OverQuota)), "{done:?}");
}

fn sized(size: u64) -> SetAttr {
    SetAttr { size: Some(size), ..SetAttr::default() }
}

#[test]
fn after_every_kind_of_change_the_count_is_what_du_says() {
    for place in places() {
        story(async || {
            let host = Host::on(&place, 1 << 40);
            let vfs = &host.vfs;
            host.agrees("nothing");
            let (a, b) = (host.dir("a").await, host.dir("b").await);
            host.agrees("two folders");
            let f = host.file(a, "f").await;
            host.agrees("an empty file");
            let open = host.open(f).await;
            open.write(0, &bytes(100)).await.unwrap();
            host.agrees("a short write");
            open.write(0, &bytes(3 * MIB)).await.unwrap();
            host.agrees("a long write");
            open.write(MIB, &bytes(MIB)).await.unwrap();
            host.agrees("an overwrite");
            open.write(64 * MIB, &bytes(5000)).await.unwrap();
            host.agrees("a write behind a hole");
            open.append::<Error>(&bytes(10_000)[0], |_| Ok(())).await.unwrap();
            host.agrees("an append");
            open.punch_hole(MIB, MIB).await.unwrap();
            host.agrees("a hole");
            open.zero_range(MIB, MIB / 2).await.unwrap();
            host.agrees("zeros");
            open.allocate(128 * MIB, MIB, true).await.unwrap();
            host.agrees("space behind the end");
            open.allocate(0, 4 * MIB, false).await.unwrap();
            host.agrees("an allocation");
            let g = host.file(b, "g").await;
            let other = host.open(g).await;
            assert_eq!(other.copy_from(0, &open, 0, 2 * MIB).await.unwrap(), 2 * MIB);
            host.agrees("a copy");
            match other.clone_range(4 * MIB, &open, 0, MIB).await {
                Ok(()) | Err(Error::NotSupported | Error::Invalid) => host.agrees("a clone, or none"),
                Err(e) => panic!("{e}"),
            }
            other.object().submit(ObjectOp::Resize { size: MIB }).await.unwrap();
            host.agrees("a truncation of an open file");
            vfs.setattr(f, sized(2 * MIB)).await.unwrap();
            host.agrees("a truncation");
            vfs.setattr(f, sized(1 << 40)).await.unwrap();
            host.agrees("an extension");
            vfs.link(f, b, b"second").await.unwrap();
            host.agrees("a second name");
            vfs.remove(a, b"f").await.unwrap();
            host.agrees("removal of the first name");
            let (from, to) =
                (DirName { dir: b, name: &b"second"[..] }, DirName { dir: a, name: &b"third"[..] });
            vfs.rename(from, to, false).await.unwrap();
            host.agrees("a rename between folders");
            let (from, to) = (DirName { dir: a, name: &b"third"[..] }, DirName { dir: b, name: &b"g"[..] });
            drop(other);
            vfs.rename(from, to, true).await.unwrap();
            host.agrees("a rename that replaces");
            let made = vfs.create(b, b"g", Make::File, Exists::Reuse, sized(0)).await.unwrap();
            assert!(!made.is_new);
            host.agrees("a CREATE that truncates");
            for target in ["short", &"long/".repeat(300)] {
                let link = Make::Symlink(target.into());
                let name = format!("to-{}", target.len());
                vfs.create(a, name.as_bytes(), link, Exists::Fail, SetAttr::default()).await.unwrap();
                host.agrees("a symbolic link");
            }
            for n in 0..300 {
                let name = format!("{n:0200}");
                vfs.create(a, name.as_bytes(), Make::File, Exists::Fail, SetAttr::default()).await.unwrap();
            }
            host.agrees("many names in one folder");
            for len in [10, 3000] {
                match vfs.set_xattr(g, b"x", &vec![1; len], SetXattr::Either).await {
                    Ok(()) | Err(Error::NotSupported | Error::NoSpace | Error::Stale) => {}
                    Err(e) => panic!("{e}"),
                }
                host.agrees("an extended attribute");
            }
            for n in 0..300 {
                vfs.remove(a, format!("{n:0200}").as_bytes()).await.unwrap();
            }
            host.agrees("removal of many names");
            drop(open);
            vfs.remove(b, b"g").await.unwrap();
            host.agrees("a removal");
            vfs.rmdir(ROOT, b"b").await.unwrap();
            host.agrees("removal of a folder");
        });
    }
}

/// Attributes of up to 128 bytes took no reservation. ext4 gives a file a block of its own for six of them, so 600 empty files
/// could have 2.4 MB beyond the quota.
#[test]
fn short_attributes_and_streams_of_clients_do_not_exceed_it() {
    story(async || {
        let host = Host::new(MIB);
        let vfs = &host.vfs;
        let mut files = Vec::new();
        for n in 0..60 {
            files.push(host.file(ROOT, &format!("{n}")).await);
        }
        let (full, stream) = (files[0], files[1]);
        let set = async |node, name: &str, len| {
            vfs.set_xattr(node, name.as_bytes(), &vec![1; len], SetXattr::Either).await
        };
        set(full, "A0", 100).await.unwrap();
        let small = vfs.stream(stream, b"small", true).await.unwrap().attr.node;
        vfs.open(small, true).await.unwrap().write(0, &bytes(100)).await.unwrap();
        let open = host.open(full).await;
        let mut at = 0;
        while open.write(at, &bytes(4096)).await.is_ok() {
            at += 4096;
        }
        assert!(host.du() <= MIB, "{}", host.du());
        for node in &files[2..] {
            for name in 0..6 {
                is_over_quota(set(*node, &format!("A{name}"), 128).await);
                is_over_quota(set(*node, &format!("A{name}"), 0).await);
                let made = vfs.stream(*node, format!("{name}").as_bytes(), true).await;
                is_over_quota(made.map(drop));
            }
        }
        assert!(host.du() <= MIB, "{}", host.du());
        host.agrees("attributes that were refused");
        // What is there is overwritten and shortened, and Weft's own attributes are kept.
        for len in [100, 50, 0] {
            set(full, "A0", len).await.unwrap();
        }
        for size in [10, 0] {
            vfs.setattr(small, sized(size)).await.unwrap();
        }
        vfs.set_dos(full, None, Dos { attributes: 2, ..Dos::default() }).await.unwrap();
        vfs.remove_xattr(full, b"A0").await.unwrap();
        vfs.remove_stream(stream, b"small").await.unwrap();
        drop(open);
        host.agrees("all that");
    });
}

/// Two shares of one folder counted apart, so each could use its limit, and the disk was used twice.
#[test]
fn shares_of_one_folder_have_one_count_and_each_its_limit() {
    story(async || {
        let host = Host::new(8 * MIB);
        let (other, quota) = host.again(6 * MIB);
        let write = async |vfs: &Vfs, name: &str, len: u64| {
            let set = SetAttr::default();
            let made = vfs.create(ROOT, name.as_bytes(), Make::File, Exists::Reuse, set).await?;
            vfs.open(made.attr.node, true).await?.write(0, &bytes(len)).await
        };
        write(&other, "a", 3 * MIB).await.unwrap();
        assert_eq!(quota.usage().used_bytes, host.used());
        host.agrees("a write in the other share");
        let over = write(&host.vfs, "b", 6 * MIB).await;
        assert!(matches!(over, Err(Error::OverQuota)), "what the other took is taken: {over:?}");
        write(&host.vfs, "b", 4 * MIB).await.unwrap();
        host.agrees("a write in this one");
        let over = write(&other, "c", MIB).await;
        assert!(matches!(over, Err(Error::OverQuota)), "its own limit is smaller: {over:?}");
        let spaces = (host.vfs.statfs().await.unwrap(), other.statfs().await.unwrap());
        assert_eq!((spaces.0.total, spaces.1.total, spaces.1.free), (8 * MIB, 6 * MIB, 0));
        // A file that one share has open and the other removes.
        let node = host.vfs.lookup(ROOT, b"b", false).await.unwrap().node;
        let open = host.open(node).await;
        other.remove(ROOT, b"b").await.unwrap();
        assert!(host.used() >= 7 * MIB, "it still occupies its disk");
        drop(open);
        host.vfs.close_cached();
        host.agrees("its last close");
        // Each may come and go.
        let larger = quota.limited_to(16 * MIB).unwrap();
        write(&other, "c", 9 * MIB).await.unwrap();
        assert!(matches!(write(&host.vfs, "d", 1).await, Err(Error::OverQuota)));
        larger.end();
        drop((larger, quota, other));
        host.quota.recount();
        host.agrees("the end of the other share");
        host.vfs.remove(ROOT, b"c").await.unwrap();
        write(&host.vfs, "d", 4 * MIB).await.unwrap();
        let (_again, quota) = host.again(MIB);
        assert_eq!(quota.usage().used_bytes, host.du());
    });
}

/// Credit is given to a file, whichever share writes to it: within every share's limit.
#[test]
fn credit_that_one_share_earned_is_within_the_limit_of_the_other() {
    story(async || {
        let host = Host::new(1 << 40);
        let f = host.file(ROOT, "f").await;
        let open = host.open(f).await;
        open.write(0, &bytes(4096)).await.unwrap();
        let (other, _quota) = host.again(MIB);
        // The file has credit for 4 MiB of this share's writes, and the other share may write 1 MiB.
        let node = other.lookup(ROOT, b"f", false).await.unwrap().node;
        let over = other.open(node, true).await.unwrap().write(0, &bytes(2 * MIB)).await;
        assert!(matches!(over, Err(Error::OverQuota)), "{over:?}");
        open.write(0, &bytes(2 * MIB)).await.unwrap();
        host.agrees("a write within the larger limit");
    });
}

#[test]
fn streams_of_a_file_count() {
    for place in places() {
        story(async || {
            let host = Host::on(&place, 1 << 40);
            let f = host.file(ROOT, "f").await;
            let Ok(made) = host.vfs.stream(f, b"s", true).await else { return };
            let stream = host.open(made.attr.node).await;
            stream.write(0, &bytes(100)).await.unwrap();
            host.agrees("a short stream");
            stream.write(0, &bytes(MIB)).await.unwrap();
            host.agrees("a long stream");
            host.vfs.setattr(made.attr.node, sized(70_000)).await.unwrap();
            host.agrees("a truncation of a stream");
            drop(stream);
            host.vfs.remove_stream(f, b"s").await.unwrap();
            host.agrees("removal of a stream");
            let again = host.vfs.stream(f, b"t", true).await.unwrap().attr.node;
            host.open(again).await.write(0, &bytes(MIB)).await.unwrap();
            host.vfs.remove(ROOT, b"f").await.unwrap();
            host.agrees("removal of a file with a stream");
        });
    }
}

/// A generator of numbers: xorshift, from a seed.
struct Random(u64);

impl Random {
    fn below(&mut self, n: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % n
    }
}

#[test]
fn after_a_thousand_random_changes_the_count_is_what_du_says() {
    const NAMES: u64 = 12;
    for (place, seed) in places().into_iter().zip([0x5eed_0001, 0x5eed_0002]) {
        story(async || {
            let host = Host::on(&place, 1 << 40);
            let vfs = &host.vfs;
            let mut random = Random(seed);
            let dirs = [ROOT, host.dir("d0").await, host.dir("d1").await];
            // A few files stay open, also without a name.
            let mut open: BTreeMap<u64, OpenFile> = BTreeMap::new();
            for step in 0..1000 {
                let dir = dirs[random.below(3) as usize];
                let name = format!("n{}", random.below(NAMES));
                let (at, len) = (random.below(8 * MIB), random.below(MIB) + 1);
                let slot = random.below(4);
                let what = random.below(14);
                match what {
                    0..3 => {
                        let node = host.file(dir, &name).await;
                        open.insert(slot, host.open(node).await);
                    }
                    3 => drop(open.remove(&slot)),
                    4 => drop(vfs.remove(dir, name.as_bytes()).await),
                    5 => {
                        let to = format!("n{}", random.below(NAMES));
                        let to = DirName { dir: dirs[random.below(3) as usize], name: to.as_bytes() };
                        drop(
                            vfs.rename(DirName { dir, name: name.as_bytes() }, to, random.below(2) == 0)
                                .await,
                        );
                    }
                    6 => {
                        if let Ok(attr) = vfs.lookup(dir, name.as_bytes(), false).await
                            && attr.kind == Kind::File
                        {
                            vfs.setattr(attr.node, sized(at)).await.unwrap();
                        }
                    }
                    7 => {
                        if let Ok(attr) = vfs.lookup(dir, name.as_bytes(), false).await {
                            let other = format!("n{}", random.below(NAMES));
                            drop(vfs.link(attr.node, dirs[random.below(3) as usize], other.as_bytes()).await);
                        }
                    }
                    _ => {
                        let Some(file) = open.get(&slot) else { continue };
                        match what {
                            8 | 9 => file.write(at, &bytes(len)).await.unwrap(),
                            10 => file.append::<Error>(&bytes(len)[0], |_| Ok(())).await.unwrap(),
                            11 => file.punch_hole(at, len).await.unwrap(),
                            12 => file.allocate(at, len, len.is_multiple_of(2)).await.unwrap(),
                            _ => {
                                if let Some(other) = open.get(&((slot + 1) % 4)) {
                                    file.copy_from(at, other, 0, len).await.unwrap();
                                }
                            }
                        }
                    }
                }
                // Files without a name count here, and not for du.
                if step % 50 == 49 {
                    open.clear();
                    let (used, du) = (host.used(), host.du());
                    let what = format!("step {step} of seed {seed:#x} on {}: {used}, {du}", place.display());
                    // A disk may give a fragmented file a block for its map of extents when it writes it back.
                    let maps = if place == Path::new("/dev/shm") { 0 } else { 4096 * host.quota_files() };
                    assert!(used <= du && du - used <= maps, "{what}");
                    if used < du {
                        host.quota.recount();
                        host.agrees(&what);
                    }
                }
            }
            host.quota.recount();
            host.agrees("a count in the end");
        });
    }
}

#[test]
fn what_does_not_fit_is_refused_and_the_rest_goes_on() {
    story(async || {
        let host = Host::new(8 * MIB);
        let f = host.file(ROOT, "f").await;
        let open = host.open(f).await;
        open.write(0, &bytes(7 * MIB)).await.unwrap();
        let refused = |done: Result<(), Error>| assert!(matches!(done, Err(Error::OverQuota)), "{done:?}");
        refused(open.write(7 * MIB, &bytes(MIB)).await);
        refused(open.append(&bytes(MIB)[0], |_| Ok(())).await);
        refused(open.allocate(7 * MIB, MIB, true).await);
        refused(open.allocate(0, 100 * MIB, false).await);
        let other = host.open(host.file(ROOT, "g").await).await;
        refused(other.copy_from(0, &open, 0, 2 * MIB).await.map(drop));
        open.write(0, &bytes(7 * MIB)).await.unwrap();
        // A long file of one hole takes nothing.
        host.vfs.setattr(f, sized(1 << 40)).await.unwrap();
        assert!(host.used() <= 8 * MIB);
        host.agrees("refusals");
        let space = host.vfs.statfs().await.unwrap();
        assert_eq!((space.total, space.free), (8 * MIB, 8 * MIB - host.used()));
        assert!(space.available <= space.free);
        // The rest can be used up to the last block.
        let rest = 8 * MIB - host.used();
        other.write(0, &bytes(rest)).await.unwrap_or_else(|e| panic!("{rest} bytes: {e}"));
        let over = host.vfs.create(ROOT, b"h", Make::Dir, Exists::Fail, SetAttr::default()).await;
        assert!(matches!(over, Err(Error::OverQuota)), "{over:?}");
        // What exists can be created again.
        assert!(
            !host.vfs.create(ROOT, b"g", Make::File, Exists::Reuse, SetAttr::default()).await.unwrap().is_new
        );
    });
}

#[test]
fn who_has_too_much_may_read_overwrite_rename_and_delete() {
    story(async || {
        let host = Host::new(64 * MIB);
        let f = host.file(ROOT, "f").await;
        let open = host.open(f).await;
        open.write(0, &bytes(4 * MIB)).await.unwrap();
        open.allocate(8 * MIB, MIB, false).await.unwrap();
        let quota = host.quota.limited_to(MIB).unwrap();
        assert!(quota.is(&host.quota) && quota.usage().limit_bytes == MIB);
        let space = host.vfs.statfs().await.unwrap();
        assert_eq!((space.total, space.free), (MIB, 0));
        open.write(MIB, &bytes(MIB)).await.unwrap();
        open.write(8 * MIB, &bytes(MIB)).await.expect("it was reserved");
        assert!(matches!(open.write(5 * MIB, &bytes(1)).await, Err(Error::OverQuota)), "a hole");
        let read = open.read(0, 10).data().await.unwrap();
        assert_eq!(read.len(), 10);
        let (from, to) = (DirName { dir: ROOT, name: &b"f"[..] }, DirName { dir: ROOT, name: &b"g"[..] });
        host.vfs.rename(from, to, false).await.unwrap();
        host.vfs.setattr(f, sized(2 * MIB)).await.unwrap();
        drop(open);
        host.vfs.remove(ROOT, b"g").await.unwrap();
        host.agrees("a removal");
        host.open(host.file(ROOT, "h").await).await.write(0, &bytes(MIB / 2)).await.unwrap();
    });
}

#[test]
fn a_removed_file_counts_until_it_is_closed() {
    story(async || {
        let host = Host::new(8 * MIB);
        for write in [true, false] {
            let f = host.file(ROOT, "f").await;
            host.open(f).await.write(0, &bytes(6 * MIB)).await.unwrap();
            let open = host.vfs.open(f, write).await.unwrap();
            host.vfs.remove(ROOT, b"f").await.unwrap();
            assert!(host.used() >= 6 * MIB, "it still occupies its disk");
            let g = host.open(host.file(ROOT, "g").await).await;
            assert!(matches!(g.write(0, &bytes(4 * MIB)).await, Err(Error::OverQuota)));
            host.quota.recount();
            assert!(host.used() >= 6 * MIB, "also for a count");
            drop(open);
            host.agrees("its last close");
            g.write(0, &bytes(4 * MIB)).await.unwrap();
            drop(g);
            host.vfs.remove(ROOT, b"g").await.unwrap();
        }
    });
}

#[test]
fn concurrent_writers_stay_within_the_limit() {
    const LIMIT: u64 = 96 * MIB;
    let host = Host::new(LIMIT);
    std::thread::scope(|threads| {
        for writer in 0..4_u64 {
            let vfs = host.vfs.clone();
            threads.spawn(move || {
                story(async || {
                    for n in 0..4 {
                        let name = format!("{writer}-{n}");
                        let made =
                            vfs.create(ROOT, name.as_bytes(), Make::File, Exists::Reuse, SetAttr::default());
                        let Ok(made) = made.await else { continue };
                        let file = vfs.open(made.attr.node, true).await.unwrap();
                        for at in 0..200 {
                            match file.write(at * 65_536, &bytes(65_536)).await {
                                Ok(()) | Err(Error::OverQuota) => {}
                                Err(e) => panic!("{e}"),
                            }
                        }
                    }
                });
            });
        }
    });
    host.agrees("all writers");
    let du = host.du();
    assert!(du <= LIMIT + 4 * SLACK_BYTES, "{du}");
    assert!(du > LIMIT - 2 * MIB, "all of it can be used: {du}");
}

/// In a process of its own: while another test claims any file, a write goes to a worker and is measured.
#[test]
fn a_write_costs_one_atomic_operation_and_no_measurement() {
    let mut alone = Command::new(std::env::current_exe().unwrap());
    alone.args(["--exact", "quota::tests::a_thousand_writes_are_measured_once", "--ignored"]);
    let ran = alone.output().unwrap();
    let said = String::from_utf8_lossy(&ran.stdout);
    assert!(
        ran.status.success() && said.contains("1 passed"),
        "{said}{}",
        String::from_utf8_lossy(&ran.stderr)
    );
}

#[test]
#[ignore = "is run alone by a_write_costs_one_atomic_operation_and_no_measurement"]
fn a_thousand_writes_are_measured_once() {
    story(async || {
        let host = Host::new(1 << 40);
        let By::Count(count) = &host.quota.0.by else { panic!("it is counted") };
        let open = host.open(host.file(ROOT, "f").await).await;
        open.write(0, &bytes(4096)).await.unwrap();
        let before = count.ledger().begin();
        for n in 0..1000 {
            open.write(n * 4096, &bytes(4096)).await.unwrap();
        }
        let after = count.ledger().begin();
        assert_eq!(after.since(before), 1, "4 MB are within the first credit, so that nothing is measured");
        host.agrees("a thousand writes");
    });
}

#[test]
fn others_changes_are_found_by_the_next_count() {
    story(async || {
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir(folder.path().join("d")).unwrap();
        std::fs::write(folder.path().join("d/a"), vec![1; 100_000]).unwrap();
        std::fs::hard_link(folder.path().join("d/a"), folder.path().join("b")).unwrap();
        std::os::unix::fs::symlink("/", folder.path().join("out")).unwrap();
        let host = Host::of(folder, MIB);
        host.agrees("the first count");
        std::fs::write(host.folder.path().join("c"), vec![1; 2 << 20]).unwrap();
        std::fs::remove_dir_all(host.folder.path().join("d")).unwrap();
        host.quota.recount();
        host.agrees("a new count");
        assert_eq!(host.vfs.statfs().await.unwrap().free, 0);
        let made = host.vfs.create(ROOT, b"new", Make::File, Exists::Fail, SetAttr::default()).await;
        assert!(matches!(made, Err(Error::OverQuota)));
        let Means::Count { files, is_counting, is_unknown } = host.quota.usage().means else { panic!() };
        assert_eq!((files, is_counting, is_unknown), (4, false, false), "the root, b, c and out");
    });
}

/// Changes by clients while the folder is counted again and again.
#[test]
fn counts_beside_changes_agree_in_the_end() {
    let host = Host::new(1 << 40);
    std::thread::scope(|threads| {
        let changes = threads.spawn(|| {
            story(async || {
                let dirs = [ROOT, host.dir("a").await, host.dir("b").await];
                let mut random = Random(77);
                for n in 0..600 {
                    let dir = dirs[random.below(3) as usize];
                    let name = format!("n{}", random.below(20));
                    match n % 4 {
                        0 | 1 => {
                            let node = host.file(dir, &name).await;
                            host.open(node).await.write(0, &bytes(random.below(200_000) + 1)).await.unwrap();
                        }
                        2 => drop(host.vfs.remove(dir, name.as_bytes()).await),
                        _ => {
                            let to = DirName { dir: dirs[random.below(3) as usize], name: name.as_bytes() };
                            drop(host.vfs.rename(DirName { dir, name: name.as_bytes() }, to, true).await);
                        }
                    }
                }
            });
        });
        while !changes.is_finished() {
            host.quota.recount();
        }
        changes.join().unwrap();
    });
    host.agrees("changes beside counts");
}

#[test]
fn what_cannot_be_counted_may_not_grow() {
    story(async || {
        let host = Host::new(1 << 40);
        let open = host.open(host.file(ROOT, "f").await).await;
        open.write(0, &bytes(MIB)).await.unwrap();
        let By::Count(count) = &host.quota.0.by else { panic!("it is counted") };
        count.ledger().set_unknown(true);
        assert_eq!(host.vfs.statfs().await.unwrap().free, 0);
        let far = open.write(32 * MIB, &bytes(1)).await;
        assert!(matches!(far, Err(Error::OverQuota)), "{far:?}");
        open.write(0, &bytes(MIB)).await.unwrap();
        host.quota.recount();
        open.write(32 * MIB, &bytes(1)).await.unwrap();
    });
}

#[test]
fn nobody_gains_space_by_closing_a_directory() {
    let ledger = ledger::Ledger::new();
    let inode = |number| ledger::Inode { device: 0, number };
    let count = |found: &[(u64, u64)], is_partial| {
        let moved = ledger.begin_count();
        found.iter().for_each(|(number, bytes)| ledger.measured(inode(*number), *bytes, ledger.begin()));
        ledger.end_count(moved, is_partial);
        (ledger.used_bytes(), ledger.files())
    };
    assert_eq!(count(&[(1, 8192), (2, 4096)], false), (12288, 2));
    for _ in 0..3 {
        assert_eq!(count(&[(2, 4096)], true), (12288, 1), "what was known still counts, and takes no memory");
    }
    assert_eq!(count(&[(1, 8192), (2, 4096)], false), (12288, 2));
    // A count that is given up forgets nothing either.
    ledger.begin_count();
    ledger.abandon_count();
    assert_eq!((ledger.used_bytes(), ledger.files()), (12288, 0));
    assert_eq!(count(&[(2, 4096)], false), (4096, 1), "others have removed the file");
}

#[test]
fn a_folder_without_the_right_to_enter_stops_nobody() {
    let host = Host::new(64 * MIB);
    let closed = host.folder.path().join("closed");
    std::fs::create_dir(&closed).unwrap();
    std::fs::write(closed.join("f"), [7; 5000]).unwrap();
    let deep = (0..600).fold(host.folder.path().to_owned(), |path, _| path.join("d"));
    // Longer than a path may be: one after the other.
    let mut at = rustix::fs::open(host.folder.path(), OFlags::RDONLY, Mode::empty()).unwrap();
    for _ in deep.strip_prefix(host.folder.path()).unwrap().components() {
        rustix::fs::mkdirat(&at, "d", Mode::RWXU).unwrap();
        at = rustix::fs::openat(&at, "d", OFlags::RDONLY, Mode::empty()).unwrap();
    }
    let mode =
        |mode| std::fs::set_permissions(&closed, std::os::unix::fs::PermissionsExt::from_mode(mode)).unwrap();
    mode(0o400);
    host.quota.recount();
    mode(0o700);
    let Means::Count { is_unknown, .. } = host.quota.usage().means else { panic!("it is counted") };
    assert!(!is_unknown);
}

/// Until the first count after a restart was complete, a quota admitted its limit once more.
#[test]
fn what_was_used_before_a_restart_counts_until_the_folder_is_counted() {
    let ledger = ledger::Ledger::new();
    ledger.remember(8 * MIB);
    assert_eq!(ledger.used_bytes(), 8 * MIB);
    let allowance = ledger::Allowance::new(ledger.clone(), 10 * MIB);
    assert!(allowance.reserve(3 * MIB).is_err());
    drop(allowance.reserve(2 * MIB).unwrap());
    let inode = |number| {
        let mut stat = statx_of_root();
        stat.stx_ino = number;
        ledger::Inode::of_stat(&stat, (0, 0))
    };
    let moved = ledger.begin_count();
    // Found, and therefore part of what is remembered; also if a client was faster than the count.
    ledger.measured(inode(1), 3 * MIB, ledger.begin());
    let account = ledger.account(inode(2), MIB, ledger.begin());
    ledger.measured(inode(2), MIB, ledger.begin());
    assert_eq!(ledger.used_bytes(), 8 * MIB);
    // A new one is not.
    ledger.created(inode(3), MIB, ledger.begin());
    ledger.measured(inode(3), MIB, ledger.begin());
    assert_eq!(ledger.used_bytes(), 9 * MIB);
    // The rest was removed by others meanwhile.
    ledger.end_count(moved, false);
    ledger.forget_remembered(false);
    assert_eq!(ledger.used_bytes(), 5 * MIB);
    drop(account);

    // Unless it may be in a folder that is closed to the count.
    let ledger = ledger::Ledger::new();
    ledger.remember(8 * MIB);
    let moved = ledger.begin_count();
    ledger.measured(inode(1), 3 * MIB, ledger.begin());
    ledger.end_count(moved, true);
    ledger.forget_remembered(true);
    assert_eq!(ledger.used_bytes(), 8 * MIB);
    let moved = ledger.begin_count();
    ledger.measured(inode(1), 3 * MIB, ledger.begin());
    ledger.end_count(moved, false);
    ledger.forget_remembered(false);
    assert_eq!(ledger.used_bytes(), 3 * MIB);
}

fn statx_of_root() -> rustix::fs::Statx {
    let basic = rustix::fs::StatxFlags::BASIC_STATS;
    rustix::fs::statx(rustix::fs::CWD, "/", rustix::fs::AtFlags::empty(), basic).unwrap()
}

#[test]
fn a_count_is_recorded_and_a_quota_that_ends_forgets_it() {
    let (folder, state) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    std::fs::write(folder.path().join("file"), vec![1; 1 << 20]).unwrap();
    let file = record_file(state.path(), "t", folder.path());
    let begin = || {
        let root = Dir::open(folder.path()).unwrap().root().unwrap();
        Quota::new("t", root, 8 * MIB, Some(&file), &|| ()).unwrap()
    };
    let quota = begin();
    quota.recount();
    quota.keep();
    drop(quota);
    let recorded = std::fs::read_to_string(&file).unwrap();
    assert!(recorded.ends_with(&format!("used_bytes {}\n", du(folder.path()))), "{recorded}");
    let quota = begin();
    quota.recount();
    assert_eq!(quota.usage().used_bytes, du(folder.path()), "not twice");
    quota.end();
    assert!(!file.exists());
    quota.keep();
    assert!(!file.exists());
}
