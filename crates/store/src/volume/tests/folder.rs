//! The folder of volumes: creating, finding again, locks, and what a crash leaves behind.

use std::fs;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;
use weft_machine::buf::MAX_BUF;
use weft_machine::{File, Pool, rt};

use crate::block::{Block, BlockOp, Medium, Outcome};
use crate::health::Health;
use crate::volume::medium::Opened;
use crate::volume::plain::Plain;
use crate::volume::superblock::{COPY_BYTES, FILE_BYTES, Membership, Superblock};
use crate::volume::{Create, Error, Growth, Listed, Metadata, Storage, Volumes};

struct Home {
    dir: tempfile::TempDir,
    volumes: Volumes,
    pool: Pool,
}

fn home() -> Home {
    let dir = tempfile::tempdir().expect("a folder");
    let volumes = Volumes::at(dir.path().join("state/volumes"));
    Home { dir, volumes, pool: Pool::new(MAX_BUF) }
}

impl Home {
    fn file(&self) -> PathBuf {
        self.dir.path().join("vol1.img")
    }

    /// Another folder of volumes.
    fn elsewhere(&self) -> Volumes {
        Volumes::at(self.dir.path().join("other/volumes"))
    }

    fn metadata(&self, name: &str) -> PathBuf {
        self.volumes.dir().join(format!("{name}.volume"))
    }
}

fn on(storage: Storage, size: u64) -> Create {
    Create { storage, size: Some(size), allocate: false, direct: false, id: [7; 16], created: 1_790_000_000 }
}

fn write(block: &dyn Block, data: &'static [u8]) {
    let op = BlockOp::Write { offset: 0, data: vec![Bytes::from_static(data)], durable: true };
    let done = rt::block_on(block.submit(op)).expect("the loop starts");
    assert!(matches!(done, Ok(Outcome::Done)), "{done:?}");
}

#[test]
fn a_volume_is_created_found_again_and_forgotten() {
    let home = home();
    assert!(home.volumes.list().expect("no folder is no volumes").is_empty());
    let made = home.volumes.create("vol1", &on(Storage::File(home.file()), 1 << 20)).expect("it is created");
    assert_eq!((made.size, made.medium, made.generation), (1 << 20, Medium::File, 2));
    assert_eq!(fs::metadata(home.file()).expect("there is a file").len(), 1 << 20);

    let volume = home.volumes.open("vol1", &home.pool).expect("it opens");
    assert_eq!((volume.superblock.clone(), volume.block.geometry().size), (made.clone(), 1 << 20));
    write(&*volume.block, b"kept");
    drop(volume);
    // The file holds the volume's bytes and nothing else.
    assert_eq!(&fs::read(home.file()).expect("it can be read")[..5], b"kept\0");

    let list = home.volumes.list().expect("a list");
    let [Listed { name, volume: Ok(volume) }] = &list[..] else { panic!("{list:?}") };
    assert_eq!((name.as_str(), &volume.superblock, volume.in_use), ("vol1", &made, false));

    home.volumes.remove("vol1", false).expect("it is forgotten");
    assert!(matches!(home.volumes.open("vol1", &home.pool), Err(Error::NotFound(_))));
    // Its file stays, and can become a volume again as it is.
    let again = Create { size: None, ..on(Storage::File(home.file()), 0) };
    assert_eq!(home.volumes.create("again", &again).expect("it is taken").size, 1 << 20);
    home.volumes.remove("again", true).expect("it is removed");
    assert!(!home.file().exists() && home.volumes.list().expect("a list").is_empty());
}

#[test]
fn an_open_volume_is_open_once_under_whatever_name() {
    let home = home();
    home.volumes.create("vol1", &on(Storage::File(home.file()), 4096)).expect("it is created");
    let alias = Create { size: None, ..on(Storage::File(home.file()), 0) };
    let taken = |e: &Error| matches!(e, Error::Taken { name, .. } if name == "vol1");
    assert!(home.volumes.create("alias", &alias).is_err_and(|e| taken(&e)));
    fs::hard_link(home.file(), home.file().with_extension("link")).expect("it has two names");
    let linked = Create { size: None, ..on(Storage::File(home.file().with_extension("link")), 0) };
    assert!(home.volumes.create("alias", &linked).is_err_and(|e| taken(&e)));
    let elsewhere = home.elsewhere();
    elsewhere.create("alias", &alias).expect("of other folders nothing is known");
    let volume = home.volumes.open("vol1", &home.pool).expect("it opens");
    assert!(
        matches!(home.volumes.open("vol1", &home.pool), Err(Error::InUse(path)) if path.ends_with("vol1.volume"))
    );
    assert!(matches!(elsewhere.open("alias", &home.pool), Err(Error::InUse(path)) if path == home.file()));
    assert!(home.volumes.info("vol1").expect("it can be looked at").in_use);
    assert!(matches!(home.volumes.resize("vol1", 8192, false), Err(Error::InUse(_))));
    assert!(matches!(home.volumes.remove("vol1", true), Err(Error::InUse(_))));
    assert!(matches!(elsewhere.remove("alias", true), Err(Error::InUse(_))));
    drop(volume);
    elsewhere.open("alias", &home.pool).expect("now it opens");
}

#[test]
fn a_file_that_came_into_the_place_of_a_volumes_own_is_that_volumes() {
    let home = home();
    home.volumes.create("vol1", &on(Storage::File(home.file()), 4096)).expect("it is created");
    let backup = home.file().with_extension("backup");
    fs::copy(home.file(), &backup).expect("it is copied");
    fs::rename(&backup, home.file()).expect("it is put back");
    let link = home.file().with_extension("link");
    fs::hard_link(home.file(), &link).expect("it has two names");
    for path in [home.file(), link] {
        let alias = home.volumes.create("alias", &Create { size: None, ..on(Storage::File(path), 0) });
        assert!(matches!(alias, Err(Error::Taken { name, .. }) if name == "vol1"));
    }
    // An earlier program assigned it to two volumes.
    fs::copy(home.metadata("vol1"), home.metadata("early")).expect("it is copied");
    assert!(matches!(home.volumes.remove("early", true), Err(Error::Taken { name, .. }) if name == "vol1"));
    assert!(home.file().exists());
}

#[test]
fn a_size_changes_only_when_nothing_is_lost_or_that_is_said() {
    let home = home();
    home.volumes.create("vol1", &on(Storage::File(home.file()), 8192)).expect("it is created");
    let grown = home.volumes.resize("vol1", 16384, false).expect("it grows");
    assert_eq!((grown.size, grown.generation), (16384, 4));
    assert!(matches!(home.volumes.resize("vol1", 4096, false), Err(Error::Size(_))));
    assert!(matches!(home.volumes.resize("vol1", 1000, true), Err(Error::ImpossibleSize(_))));
    let shrunk = home.volumes.resize("vol1", 4096, true).expect("it shrinks");
    assert_eq!((shrunk.size, shrunk.generation), (4096, 6));
    assert_eq!(fs::metadata(home.file()).expect("there is a file").len(), 4096);
    assert_eq!(home.volumes.open("vol1", &home.pool).expect("it opens").superblock, shrunk);
}

#[test]
fn an_open_volume_grows_and_whoever_has_it_sees_that() {
    for (place, allocate) in [("file", false), ("ram", false), ("ram", true)] {
        let home = home();
        let place = if place == "file" { Storage::File(home.file()) } else { Storage::Ram };
        let create = Create { allocate, ..on(place, 8192) };
        home.volumes.create("vol1", &create).expect("it is created");
        let volume = home.volumes.open("vol1", &home.pool).expect("it opens");
        assert!(matches!(volume.growth.grow(4096), Err(Error::Size(_))));
        assert!(matches!(volume.growth.grow(8200), Err(Error::ImpossibleSize(_))));
        let grown = volume.growth.grow(16384).expect("it grows");
        assert_eq!((grown.size, grown.generation), (16384, 4));
        assert_eq!(volume.growth.grow(16384).expect("it has grown").generation, 4);
        assert_eq!(volume.block.geometry().size, 16384);
        rt::block_on(async {
            let data = vec![Bytes::from_static(&[7; 512])];
            volume
                .block
                .submit(BlockOp::Write { offset: 15872, data, durable: true })
                .await
                .expect("it is written");
        })
        .expect("a runtime");
        assert_eq!(home.volumes.info("vol1").expect("it is there").superblock, grown);
        // Still exclusively open.
        drop(volume.block);
        assert!(matches!(home.volumes.open("vol1", &home.pool), Err(Error::InUse(_))));
    }
}

#[test]
fn a_torn_change_of_the_metadata_is_as_if_it_had_not_begun() {
    let home = home();
    let old = home.volumes.create("vol1", &on(Storage::File(home.file()), 8192)).expect("it is created");
    let path = home.metadata("vol1");
    let mut torn = fs::read(&path).expect("metadata");
    home.volumes.resize("vol1", 16384, false).expect("it grows");
    let whole = fs::read(&path).expect("metadata");
    assert_eq!(whole.len(), FILE_BYTES);
    // Generation 3 is in copy 1, partially written.
    torn[COPY_BYTES..][..48].copy_from_slice(&whole[COPY_BYTES..][..48]);
    fs::write(&path, &torn).expect("it is damaged");
    assert_eq!(home.volumes.info("vol1").expect("the older copy counts").superblock, old);
    // Its file is longer than the superblock says, which a crash may cause: the superblock decides.
    assert_eq!(home.volumes.open("vol1", &home.pool).expect("it opens").block.geometry().size, 8192);
    // The torn copy was then rewritten as generation 3.
    assert_eq!(home.volumes.resize("vol1", 32768, false).expect("it grows").generation, 5);
    assert_eq!(home.volumes.info("vol1").expect("it is whole").superblock.size, 32768);
}

#[test]
fn damage_is_told_and_can_be_forgotten() {
    let home = home();
    home.volumes.create("vol1", &on(Storage::Ram, 8192)).expect("it is created");
    fs::write(home.metadata("vol1"), b"no").expect("it is damaged");
    assert!(matches!(home.volumes.open("vol1", &home.pool), Err(Error::Damaged { .. })));
    let list = home.volumes.list().expect("a list");
    assert!(matches!(&list[..], [Listed { name, volume: Err(Error::Damaged { .. }) }] if name == "vol1"));
    assert!(matches!(home.volumes.remove("vol1", true), Err(Error::Damaged { .. })));
    assert!(matches!(home.volumes.remove("vol1", false), Ok(None)));
    assert!(home.volumes.list().expect("a list").is_empty());
}

#[test]
fn a_file_that_has_shrunk_is_not_served() {
    let home = home();
    home.volumes.create("vol1", &on(Storage::File(home.file()), 8192)).expect("it is created");
    fs::File::options().write(true).open(home.file()).and_then(|f| f.set_len(8191)).expect("it shrinks");
    let opened = home.volumes.open("vol1", &home.pool);
    assert!(matches!(opened, Err(Error::Shrunk { expected: 8192, actual: 8191, .. })), "{opened:?}");
    // Extended to its old length, it is the same file, but its end has other data.
    fs::File::options().write(true).open(home.file()).and_then(|f| f.set_len(8192)).expect("it grows");
    let volume = home.volumes.open("vol1", &home.pool).expect("it opens");
    assert!(volume.growth.replaced().is_some_and(|why| why.contains("shorter")));
    volume.growth.accept().expect("it is accepted");
    assert_eq!(volume.growth.replaced(), None);
    drop(volume);
    // A shorter file in its place does not affect the original file.
    fs::rename(home.file(), home.file().with_extension("own")).expect("it moves");
    fs::write(home.file(), b"short").expect("another one comes");
    assert!(matches!(home.volumes.open("vol1", &home.pool), Err(Error::Shrunk { .. })));
    fs::rename(home.file().with_extension("own"), home.file()).expect("it comes back");
    assert_eq!(home.volumes.open("vol1", &home.pool).expect("it opens").growth.replaced(), None);
    fs::remove_file(home.file()).expect("it goes");
    assert!(matches!(home.volumes.open("vol1", &home.pool), Err(Error::Io { .. })));
}

/// Another file with the same name and size, as `rm` and `truncate` create it.
fn replace(file: &Path) {
    let (old, size) = (file.with_extension("old"), fs::metadata(file).expect("it is there").len());
    // The old file is kept, so that its number is not reused within one tick of the clock.
    fs::rename(file, old).expect("it goes");
    fs::File::create_new(file).and_then(|file| file.set_len(size)).expect("another one comes");
}

#[test]
fn another_file_in_place_of_a_volumes_own_is_noticed_until_it_is_accepted() {
    let home = home();
    home.volumes.create("vol1", &on(Storage::File(home.file()), 8192)).expect("it is created");
    let replaced = || home.volumes.open("vol1", &home.pool).expect("it opens").growth.replaced();
    assert_eq!(replaced(), None);
    // A change of size, and a move within the file system, do not change the file's identity.
    home.volumes.resize("vol1", 16384, false).expect("it grows");
    fs::rename(home.file(), home.file().with_extension("moved")).expect("it moves");
    fs::rename(home.file().with_extension("moved"), home.file()).expect("it moves back");
    assert_eq!(replaced(), None);
    replace(&home.file());
    for _ in 0..2 {
        let why = replaced().expect("it is another one, however often it was opened");
        assert!(why.contains("vol1.img is not the original file"), "{why}");
    }
    let volume = home.volumes.open("vol1", &home.pool).expect("it opens");
    volume.growth.accept().expect("it is accepted");
    assert_eq!(volume.growth.replaced(), None);
    drop(volume);
    assert_eq!(replaced(), None);
}

#[test]
fn metadata_of_an_older_program_learn_which_file_it_is_when_the_volume_is_opened() {
    let home = home();
    let made = home.volumes.create("vol1", &on(Storage::File(home.file()), 8192)).expect("it is created");
    assert!(made.file.is_some(), "this file system tells files apart");
    let older = crate::volume::superblock::Superblock { file: None, ..made };
    fs::write(home.metadata("vol1"), [older.emit(), older.emit()].concat()).expect("metadata");
    replace(&home.file());
    // Its original identity is unknown.
    let opened = home.volumes.open("vol1", &home.pool).expect("it opens");
    assert_eq!((opened.growth.replaced(), opened.superblock.generation), (None, 4));
    drop(opened);
    replace_again(&home.file());
    assert!(home.volumes.open("vol1", &home.pool).expect("it opens").growth.replaced().is_some());
}

fn replace_again(file: &Path) {
    fs::rename(file.with_extension("old"), file.with_extension("older")).expect("it stays, too");
    replace(file);
}

#[test]
fn a_file_that_goes_while_it_is_open_is_told() {
    let home = home();
    home.volumes.create("vol1", &on(Storage::File(home.file()), 8192)).expect("it is created");
    let volume = home.volumes.open("vol1", &home.pool).expect("it opens");
    assert_eq!(volume.growth.trouble(), None);
    let moved = home.file().with_extension("moved");
    fs::rename(home.file(), &moved).expect("it moves");
    assert!(volume.growth.trouble().is_some_and(|why| why.contains("move it back")));
    fs::remove_file(&moved).expect("it goes");
    assert!(
        volume.growth.trouble().is_some_and(|why| why.contains("no longer exists") && why.contains("copy"))
    );
    fs::write(home.file(), [0; 8192]).expect("another one");
    assert!(volume.growth.trouble().is_some_and(|why| why.contains("now another file")));
    // A volume in memory has no file to lose.
    home.volumes.create("r", &on(Storage::Ram, 4096)).expect("it is created");
    assert_eq!(home.volumes.open("r", &home.pool).expect("it opens").growth.trouble(), None);
}

/// Only its client's errors showed the failure.
#[test]
fn a_volume_that_cannot_be_flushed_any_more_is_told_for_as_long_as_it_is_open() {
    let home = home();
    home.volumes.create("vol1", &on(Storage::File(home.file()), 8192)).expect("it is created");
    let metadata = Metadata::open("vol1", home.metadata("vol1")).expect("it opens");
    let superblock = metadata.mend().expect("it is read");
    // fsync(2) fails on a pipe.
    let (_end, pipe) = std::io::pipe().expect("a pipe");
    let block = Plain::new(File::from(OwnedFd::from(pipe)), None, Medium::File, superblock.size);
    let block = Arc::new(block);
    let growth = Growth::new(metadata, Opened::Plain(block.clone()), superblock);
    let told = |growth: &Growth| growth.trouble().filter(|why| why.contains("every flush fails"));
    assert_eq!(told(&growth), None);
    for _ in 0..2 {
        let flushed = rt::block_on(block.submit(BlockOp::Flush)).expect("the loop starts");
        assert!(flushed.is_err());
        let why = told(&growth).expect("it is told");
        assert!(why.contains("vol1.img failed") && why.contains("restart the server"), "{why}");
        // A pipe is not the volume's file: each problem is reported.
        assert!(why.contains("is now another file"), "{why}");
    }
}

/// Only its client's errors showed a full disk.
#[test]
fn a_full_disk_below_a_volume_is_told_with_the_volume() {
    let home = home();
    home.volumes.create("vol1", &on(Storage::File(home.file()), 8192)).expect("it is created");
    let metadata = Metadata::open("vol1", home.metadata("vol1")).expect("it opens");
    let superblock = metadata.mend().expect("it is read");
    // The kernel refuses every write to it (full(4)).
    let full = fs::OpenOptions::new().read(true).write(true).open("/dev/full").expect("it opens");
    let file = File::from(OwnedFd::from(full));
    let changes = [
        BlockOp::Write { offset: 0, data: vec![Bytes::from_static(&[1; 4096])], durable: false },
        BlockOp::WriteZeroes { offset: 0, len: 4096, durable: false, keep_space: true, fast: false },
    ];
    for change in changes {
        let health = Health::of_volume("vol1", Some(&home.file()));
        let block = Plain::new(file.clone(), None, Medium::Device, superblock.size).heard_by(health);
        assert_eq!(block.trouble(), None);
        let changed = rt::block_on(block.submit(change)).expect("the loop starts");
        assert!(matches!(changed, Err(crate::Error::NoSpace)), "{changed:?}");
        let why = block.trouble().expect("it is told");
        assert!(why.contains("vol1.img is full") && why.contains("1 requests failed"), "{why}");
    }
    let health = Health::of_volume("vol1", Some(&home.file()));
    let block = Arc::new(Plain::new(file, None, Medium::File, superblock.size).heard_by(health));
    let growth = Growth::new(metadata, Opened::Plain(block.clone()), superblock);
    let written = BlockOp::Write { offset: 0, data: vec![Bytes::from_static(&[1; 4096])], durable: false };
    assert!(rt::block_on(block.submit(written)).expect("the loop starts").is_err());
    assert!(growth.trouble().is_some_and(|why| why.contains("the disk of the volume's file")));
}

#[test]
fn a_volume_in_a_group_is_neither_forgotten_nor_made_smaller_until_it_has_left() {
    let home = home();
    let group = || Some(Membership { group: "db".into(), partnership: [9; 16] });
    home.volumes.create("vol1", &on(Storage::File(home.file()), 8192)).expect("it is created");
    // An earlier program assigned a file to two volumes.
    fs::copy(home.metadata("vol1"), home.metadata("early")).expect("it is copied");
    let volume = home.volumes.open("vol1", &home.pool).expect("it opens");
    volume.growth.set_membership(group()).expect("it enters");
    let entered = volume.growth.superblock();
    volume.growth.set_membership(group()).expect("it is in it");
    assert_eq!((entered.generation, volume.growth.superblock()), (4, entered.clone()));
    drop(volume);
    // Nor can it be written to under another name, bypassing its group.
    let of_group = |e: &Error| matches!(e, Error::InGroup { name, group } if name == "vol1" && group == "db");
    assert!(home.volumes.open("early", &home.pool).is_err_and(|e| of_group(&e)));
    assert!(home.volumes.resize("early", 4096, true).is_err_and(|e| of_group(&e)));
    assert!(matches!(home.volumes.remove("early", true), Err(Error::Taken { name, .. }) if name == "vol1"));
    for with_file in [false, true] {
        assert!(home.volumes.remove("vol1", with_file).is_err_and(|e| of_group(&e)));
    }
    assert!(home.volumes.resize("vol1", 4096, true).is_err_and(|e| of_group(&e)));
    assert_eq!(home.volumes.resize("vol1", 16384, true).expect("it may grow").membership, group());
    // For another group this does nothing, and its file need not exist.
    home.volumes.leave_group("vol1", "other").expect("nothing is done");
    assert_eq!(home.volumes.info("vol1").expect("it is there").superblock.membership, group());
    fs::remove_file(home.file()).expect("it goes");
    home.volumes.leave_group("vol1", "db").expect("it leaves");
    assert_eq!(home.volumes.info("vol1").expect("it is there").superblock.membership, None);
    home.volumes.remove("vol1", true).expect("it is removed");
}

#[test]
fn what_cannot_be_created_leaves_nothing_behind() {
    let home = home();
    let file = || Storage::File(home.file());
    for name in ["", ".hidden", "a/b", "..", "a b", "x\0", &"n".repeat(201)] {
        assert!(matches!(home.volumes.create(name, &on(Storage::Ram, 512)), Err(Error::Name(_))), "{name:?}");
    }
    for size in [0, 511, 1 << 63] {
        assert!(
            matches!(home.volumes.create("v", &on(file(), size)), Err(Error::ImpossibleSize(_))),
            "{size}"
        );
    }
    let sizeless = Create { size: None, ..on(file(), 0) };
    assert!(matches!(home.volumes.create("v", &sizeless), Err(Error::Size(_))));
    let nowhere = Storage::File(home.dir.path().join("no/such/folder"));
    assert!(matches!(home.volumes.create("v", &on(nowhere, 512)), Err(Error::Io { .. })));
    let folder = Storage::File(home.dir.path().to_owned());
    assert!(home.volumes.create("v", &on(folder, 512)).is_err());
    let no_device = Storage::Device(Path::new("/dev/null").to_owned());
    assert!(matches!(home.volumes.create("v", &on(no_device, 512)), Err(Error::Path { .. })));
    assert!(!home.file().exists());
    assert!(home.volumes.list().expect("a list").is_empty());
    // Existing contents are not touched.
    fs::write(home.file(), vec![1; 1024]).expect("a file");
    assert!(matches!(home.volumes.create("v", &on(file(), 2048)), Err(Error::Size(_))));
    assert_eq!(fs::read(home.file()).expect("it is there"), vec![1; 1024]);
    home.volumes.create("v", &on(file(), 1024)).expect("it fits");
    assert!(matches!(home.volumes.create("v", &on(Storage::Ram, 512)), Err(Error::Exists(_))));
}

#[test]
fn memory_is_taken_when_that_was_asked_for_and_no_more_than_there_is() {
    let home = home();
    let taken = |size| Create { allocate: true, ..on(Storage::Ram, size) };
    let occupied = |name| {
        let volume = home.volumes.open(name, &home.pool).expect("it opens");
        rustix::fs::fstat(volume.content.as_ref().expect("it has a file")).expect("it is there").st_blocks
            * 512
    };
    home.volumes.create("sparse", &on(Storage::Ram, 3 << 20)).expect("it is created");
    assert_eq!(occupied("sparse"), 0);
    let superblock = home.volumes.create("taken", &taken(3 << 20)).expect("it is created");
    assert!(superblock.taken && home.volumes.info("taken").expect("it is there").superblock.taken);
    assert_eq!(occupied("taken"), 3 << 20);
    let volume = home.volumes.open("taken", &home.pool).expect("it opens");
    volume.growth.grow(5 << 20).expect("it grows");
    assert_eq!(
        rustix::fs::fstat(volume.content.as_ref().expect("it has a file")).expect("it is there").st_blocks
            * 512,
        5 << 20
    );
    assert!(matches!(volume.growth.grow(1 << 60), Err(Error::Io { .. })));
    assert_eq!(volume.block.geometry().size, 5 << 20);
    home.volumes.create("large", &taken(1 << 60)).expect("nothing is taken before it opens");
    let refused = home.volumes.open("large", &home.pool).expect_err("there is not so much").to_string();
    assert!(refused.contains("are needed, but only"), "{refused}");
}

#[test]
fn a_volume_in_memory_is_new_each_time() {
    let home = home();
    home.volumes.create("r", &on(Storage::Ram, 4096)).expect("it is created");
    let volume = home.volumes.open("r", &home.pool).expect("it opens");
    write(&*volume.block, b"gone");
    drop(volume);
    let volume = home.volumes.open("r", &home.pool).expect("it opens");
    let read = rt::block_on(async {
        match volume.block.submit(BlockOp::Read { offset: 0, len: 4 }).await {
            Ok(Outcome::Data(payload)) => payload.into_chain(&home.pool).await.expect("read").concat(),
            other => panic!("{other:?}"),
        }
    });
    assert_eq!(read.expect("the loop starts"), b"\0\0\0\0");
}

#[test]
fn a_damaged_copy_of_the_metadata_takes_nothing_back_and_is_written_anew() {
    let home = home();
    home.volumes.create("vol1", &on(Storage::File(home.file()), 8192)).expect("it is created");
    let membership = Some(Membership { group: "db".into(), partnership: [9; 16] });
    {
        let volume = home.volumes.open("vol1", &home.pool).expect("it opens");
        volume.growth.set_membership(membership.clone()).expect("it is in a group");
        volume.growth.grow(16384).expect("it grows");
    }
    home.volumes.resize("vol1", 32768, false).expect("it grows");
    let copies = || {
        let bytes = fs::read(home.metadata("vol1")).expect("it can be read");
        [0, COPY_BYTES].map(|at| Superblock::parse(&bytes[at..at + COPY_BYTES]))
    };
    for damaged in [0, 1] {
        let mut bytes = fs::read(home.metadata("vol1")).expect("it can be read");
        bytes[damaged * COPY_BYTES + 100] ^= 0x55;
        fs::write(home.metadata("vol1"), bytes).expect("it is damaged");
        // A query writes nothing.
        let known = home.volumes.info("vol1").expect("the other copy is good").superblock;
        assert_eq!((known.size, &known.membership), (32768, &membership));
        assert!(copies()[damaged].is_err());
        let opened = home.volumes.open("vol1", &home.pool).expect("it opens").superblock;
        assert_eq!((opened.size, &opened.membership), (32768, &membership));
        let [Ok(first), Ok(second)] = copies() else { panic!("{:?}", copies()) };
        assert_eq!(Superblock { generation: first.generation, ..second }, first);
    }
}
