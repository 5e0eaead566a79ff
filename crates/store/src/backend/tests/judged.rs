//! What users may do in a folder is what the kernel says: a table of users, modes, ACLs and operations, each carried out
//! by the backend in a user's name and by a thread that is this user in every respect. Both must end alike: the same
//! error, or the same owner, group, mode and ACL.
//!
//! Only root can act for others, so as another user these tests say that they are skipped.

use std::ops::Deref;
use std::os::unix::fs::chown;
use std::path::Path;

use rustix::fs::{Access, AtFlags, CWD, Gid, Mode, OFlags, Timespec, Timestamps, Uid, XattrFlags};
use rustix::io::Errno;
use weft_machine::credentials::Credentials;

use super::*;

use self::twins::{GROUP, OWNER, Twins, User, being, give_acl, make_dir, mode, state};

#[path = "../../../../machine/src/credentials/twins.rs"]
mod twins;

/// The users of every table, and root.
fn users() -> impl Iterator<Item = User> {
    let root: User = (0, 0, &[]);
    twins::USERS.into_iter().chain([root])
}

/// An ACL, for what has it or for what is created in it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Acl {
    None,
    /// Permissions of the named user and of the named group.
    Own(u16, u16),
    Default(u16, u16),
}

const ACLS: [Acl; 5] = [Acl::None, Acl::Own(6, 5), Acl::Own(0, 3), Acl::Default(7, 5), Acl::Default(1, 2)];

impl Acl {
    fn of_kind(self) -> Option<(&'static str, twins::Acl)> {
        match self {
            Acl::None => None,
            Acl::Own(user, group) => Some(("access", (user, group))),
            Acl::Default(user, group) => Some(("default", (user, group))),
        }
    }
}

/// Two equal trees, of which the backend serves one.
struct Trees {
    twins: Twins,
    vfs: Vfs,
}

impl Deref for Trees {
    type Target = Twins;

    fn deref(&self) -> &Twins {
        &self.twins
    }
}

impl Trees {
    fn new() -> Option<Trees> {
        let twins = Twins::new()?;
        let vfs = Dir::open(&twins.served).unwrap().into();
        Some(Trees { twins, vfs })
    }
}

/// Compares two endings, and counts them.
fn same(
    case: impl Fn() -> String,
    weft: &Result<(), Error>,
    kernel: Result<(), Errno>,
    counts: &mut [usize; 2],
) {
    let kernel = kernel.map_err(Error::from);
    assert_eq!(format!("{weft:?}"), format!("{kernel:?}"), "{}", case());
    counts[usize::from(weft.is_ok())] += 1;
}

/// What is done with a file.
#[derive(Clone, Copy, Debug)]
enum Act {
    Access(u32),
    Read,
    Write,
    Truncate,
    Chmod(u32),
    Chgrp(u32),
    Chown(u32),
    TimesNow,
    TimesTo,
    GetXattr,
    SetXattr,
    RemoveXattr,
    Link,
}

const ACTS: [Act; 21] = [
    Act::Access(4),
    Act::Access(2),
    Act::Access(1),
    Act::Access(6),
    Act::Access(7),
    Act::Read,
    Act::Write,
    Act::Truncate,
    Act::Chmod(0o600),
    Act::Chmod(0o6755),
    Act::Chgrp(GROUP),
    Act::Chgrp(3001),
    Act::Chgrp(3004),
    Act::Chown(OWNER),
    Act::Chown(2006),
    Act::TimesNow,
    Act::TimesTo,
    Act::GetXattr,
    Act::SetXattr,
    Act::RemoveXattr,
    Act::Link,
];

const THEN: Timespec = Timespec { tv_sec: 1_000_000, tv_nsec: 0 };

async fn weft_does(vfs: &Vfs, node: NodeId, act: Act) -> Result<(), Error> {
    let set = |set| async move { vfs.setattr(node, set).await.map(drop) };
    let none = SetAttr::default;
    match act {
        Act::Access(bits) => {
            let wanted = Permissions::from_bits(bits);
            let granted = vfs.access(node, wanted).await?;
            if granted == wanted { Ok(()) } else { Err(Error::Access) }
        }
        Act::Read => vfs.open(node, false).await.map(drop),
        Act::Write => vfs.open(node, true).await.map(drop),
        Act::Truncate => set(SetAttr { size: Some(1), ..none() }).await,
        Act::Chmod(mode) => set(SetAttr { mode: Some(mode), ..none() }).await,
        Act::Chgrp(gid) => set(SetAttr { gid: Some(gid), ..none() }).await,
        Act::Chown(uid) => set(SetAttr { uid: Some(uid), ..none() }).await,
        Act::TimesNow => {
            set(SetAttr { mtime: Some(SetTime::Now), atime: Some(SetTime::Now), ..none() }).await
        }
        Act::TimesTo => {
            let then = SetTime::To(Timestamp { secs: THEN.tv_sec, nanos: 0 });
            set(SetAttr { mtime: Some(then), atime: Some(then), ..none() }).await
        }
        Act::GetXattr => vfs.get_xattr(node, b"x").await.map(drop),
        Act::SetXattr => vfs.set_xattr(node, b"x", b"2", SetXattr::Either).await,
        Act::RemoveXattr => vfs.remove_xattr(node, b"x").await,
        Act::Link => vfs.link(node, NodeId::ROOT, b"link").await,
    }
}

fn kernel_does(file: &Path, act: Act) -> Result<(), Errno> {
    let open = |flags| rustix::fs::open(file, flags | OFlags::CLOEXEC, Mode::empty());
    let times = |time| {
        let times = Timestamps { last_access: time, last_modification: time };
        rustix::fs::utimensat(CWD, file, &times, AtFlags::empty())
    };
    match act {
        Act::Access(bits) => {
            rustix::fs::accessat(CWD, file, Access::from_bits_truncate(bits), AtFlags::EACCESS)
        }
        Act::Read => open(OFlags::RDONLY).map(drop),
        Act::Write => open(OFlags::WRONLY).map(drop),
        Act::Truncate => open(OFlags::WRONLY).and_then(|file| rustix::fs::ftruncate(file, 1)),
        Act::Chmod(mode) => rustix::fs::chmod(file, Mode::from_raw_mode(mode)),
        Act::Chgrp(gid) => rustix::fs::chown(file, None, Some(Gid::from_raw(gid))),
        Act::Chown(uid) => rustix::fs::chown(file, Some(Uid::from_raw(uid)), None),
        Act::TimesNow => times(Timespec { tv_sec: 0, tv_nsec: rustix::fs::UTIME_NOW }),
        Act::TimesTo => times(THEN),
        Act::GetXattr => rustix::fs::getxattr(file, "user.x", &mut [0; 16]).map(drop),
        Act::SetXattr => rustix::fs::setxattr(file, "user.x", b"2", XattrFlags::empty()),
        Act::RemoveXattr => rustix::fs::removexattr(file, "user.x"),
        Act::Link => rustix::fs::link(file, file.with_file_name("link")),
    }
}

/// All modes, and those of programs that run as their owner. With an ACL, those of the owner matter as without one.
fn modes_of_files(acl: Acl) -> impl Iterator<Item = u32> {
    let owners = if acl == Acl::None { (0..8).collect() } else { vec![0, 6] };
    let plain = owners.into_iter().flat_map(|owner| (0..0o100).map(move |rest| owner << 6 | rest));
    plain.chain([0o4755, 0o2755, 0o6777])
}

fn make_file(tree: &Path, acl: Acl, bits: u32) {
    let file = tree.join("f");
    let _ = std::fs::remove_file(tree.join("link"));
    chown(&file, Some(OWNER), Some(GROUP)).unwrap();
    match acl.of_kind() {
        None => {
            let _ = rustix::fs::removexattr(&file, "system.posix_acl_access");
        }
        Some((kind, acl)) => give_acl(&file, kind, acl).unwrap(),
    }
    // With an ACL, the group's bits are its mask.
    mode(&file, bits);
    rustix::fs::setxattr(&file, "user.x", b"1", XattrFlags::empty()).unwrap();
}

#[test]
fn the_kernel_judges_what_users_do_with_files() {
    if let Some(trees) = Trees::new() {
        rt::block_on(judge_files(trees)).unwrap();
    }
}

async fn judge_files(trees: Trees) {
    trees.each(|tree| std::fs::write(tree.join("f"), b"content").unwrap());
    let node = trees.vfs.lookup(NodeId::ROOT, b"f", false).await.unwrap().node;
    let mut counts = [0; 2];
    for (uid, gid, groups) in users() {
        let by = Caller::User(Arc::new(Credentials::new(uid, gid, groups).unwrap()));
        let vfs = trees.vfs.acting_as(by);
        assert!(vfs.is_judged());
        for acl in ACLS.into_iter().filter(|acl| !matches!(acl, Acl::Default(..))) {
            for bits in modes_of_files(acl) {
                let mut fresh = false;
                for act in ACTS {
                    if !std::mem::replace(&mut fresh, true) {
                        trees.each(|tree| make_file(tree, acl, bits));
                    }
                    let weft = weft_does(&vfs, node, act).await;
                    let file = trees.plain.join("f");
                    let kernel = being((uid, gid, groups), || kernel_does(&file, act));
                    let case = || format!("uid {uid}: {act:?} of a file {bits:o} with {acl:?}");
                    // What was refused has changed nothing, as the comparison shows.
                    fresh = weft.is_err()
                        || matches!(act, Act::Access(_) | Act::Read | Act::Write | Act::GetXattr);
                    same(case, &weft, kernel, &mut counts);
                    assert_eq!(state(&trees.served.join("f")), state(&trees.plain.join("f")), "{}", case());
                }
            }
        }
    }
    println!("{} were refused, {} were not", counts[0], counts[1]);
    assert!(counts.iter().all(|count| *count > 10_000));
}

/// What is done in a directory.
#[derive(Clone, Copy, Debug)]
enum Deed {
    Lookup(&'static str),
    List,
    Create,
    Mkdir,
    Symlink,
    Pipe,
    Device,
    Remove,
    Rmdir,
    Rename,
    MoveOut,
    MoveIn,
    Replace,
    Link,
}

const DEEDS: [Deed; 15] = [
    Deed::Lookup("f"),
    Deed::Lookup("missing"),
    Deed::List,
    Deed::Create,
    Deed::Mkdir,
    Deed::Symlink,
    Deed::Pipe,
    Deed::Device,
    Deed::Remove,
    Deed::Rmdir,
    Deed::Rename,
    Deed::MoveOut,
    Deed::MoveIn,
    Deed::Replace,
    Deed::Link,
];

/// Modes of what is created: with an ACL for new objects, the kernel does not use the umask.
fn creation(acl: Acl) -> (u32, u32) {
    if matches!(acl, Acl::Default(..)) { (0o666, 0o777) } else { (0o640, 0o750) }
}

async fn weft_works(server: &Vfs, vfs: &Vfs, deed: Deed, acl: Acl) -> Result<(), Error> {
    let dir = server.lookup(NodeId::ROOT, b"d", false).await?.node;
    let (file, folder) = creation(acl);
    let make = |name: &'static [u8], make, mode| async move {
        let set = SetAttr { mode, ..SetAttr::default() };
        vfs.create(dir, name, make, Exists::Fail, set).await.map(drop)
    };
    match deed {
        Deed::Lookup(name) => vfs.lookup(dir, name.as_bytes(), false).await.map(drop),
        Deed::List => {
            let mut names: Vec<_> =
                vfs.readdir(dir, 0, 10).await?.entries.into_iter().map(|entry| entry.name).collect();
            names.sort();
            assert_eq!(names, [&b"e"[..], b"f", b"sub"]);
            Ok(())
        }
        Deed::Create => make(b"new", Make::File, Some(file)).await,
        Deed::Mkdir => make(b"new", Make::Dir, Some(folder)).await,
        Deed::Symlink => make(b"new", Make::Symlink(b"f".to_vec()), None).await,
        Deed::Pipe => make(b"new", Make::Special(Special::Fifo), Some(file)).await,
        Deed::Device => make(b"new", Make::Special(Special::Char(1, 3)), Some(file)).await,
        Deed::Remove => vfs.remove(dir, b"f").await,
        Deed::Rmdir => vfs.rmdir(dir, b"sub").await,
        Deed::Rename => vfs.rename(at(dir, b"f"), at(dir, b"new"), true).await,
        Deed::MoveOut => vfs.rename(at(dir, b"f"), at(NodeId::ROOT, b"new"), true).await,
        Deed::MoveIn => vfs.rename(at(NodeId::ROOT, b"out"), at(dir, b"new"), true).await,
        Deed::Replace => vfs.rename(at(dir, b"f"), at(dir, b"e"), true).await,
        Deed::Link => {
            let out = server.lookup(NodeId::ROOT, b"out", false).await?.node;
            vfs.link(out, dir, b"new").await
        }
    }
}

fn kernel_works(tree: &Path, deed: Deed, acl: Acl) -> Result<(), Errno> {
    let (file, folder) = creation(acl);
    let (file, folder) = (Mode::from_raw_mode(file), Mode::from_raw_mode(folder));
    let in_dir = |name: &str| tree.join("d").join(name);
    let new = in_dir("new");
    let make = |kind, device| rustix::fs::mknodat(CWD, &new, kind, file, device);
    match deed {
        Deed::Lookup(name) => rustix::fs::lstat(in_dir(name)).map(drop),
        Deed::List => {
            let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
            rustix::fs::open(tree.join("d"), flags, Mode::empty()).map(drop)
        }
        Deed::Create => {
            rustix::fs::open(&new, OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::CLOEXEC, file)
                .map(drop)
        }
        Deed::Mkdir => rustix::fs::mkdir(&new, folder),
        Deed::Symlink => rustix::fs::symlink("f", &new),
        Deed::Pipe => make(rustix::fs::FileType::Fifo, 0),
        Deed::Device => make(rustix::fs::FileType::CharacterDevice, rustix::fs::makedev(1, 3)),
        Deed::Remove => rustix::fs::unlink(in_dir("f")),
        Deed::Rmdir => rustix::fs::rmdir(in_dir("sub")),
        Deed::Rename => rustix::fs::rename(in_dir("f"), &new),
        Deed::MoveOut => rustix::fs::rename(in_dir("f"), tree.join("new")),
        Deed::MoveIn => rustix::fs::rename(tree.join("out"), &new),
        Deed::Replace => rustix::fs::rename(in_dir("f"), in_dir("e")),
        Deed::Link => rustix::fs::link(tree.join("out"), &new),
    }
}

/// Modes of directories: sets of permissions that let names be listed, used or changed, or not. With an ACL, or with the
/// sticky or the set-group-id bit, those that differ in using and changing names.
fn modes_of_dirs(acl: Acl) -> Vec<u32> {
    let some = [0, 1, 3];
    let cases: &[(u32, &[u32])] = match acl {
        Acl::None => &[(0, &[0, 1, 3, 4, 7]), (0o1000, &some), (0o2000, &some)],
        _ => &[(0, &some)],
    };
    let mut modes = Vec::new();
    for (special, digits) in cases {
        for owner in *digits {
            for group in *digits {
                modes.extend(digits.iter().map(|others| special | owner << 6 | group << 3 | others));
            }
        }
    }
    modes
}

#[test]
fn the_kernel_judges_what_users_do_in_directories() {
    if Trees::new().is_some() {
        rt::block_on(judge_directories()).unwrap();
    }
}

async fn judge_directories() {
    let mut counts = [0; 2];
    for (uid, gid, groups) in users() {
        for acl in ACLS {
            for bits in modes_of_dirs(acl) {
                // One of these for all would keep a descriptor of every file that there was, and leave none to other tests.
                let trees = Trees::new().expect("there was one before");
                let by = Caller::User(Arc::new(Credentials::new(uid, gid, groups).unwrap()));
                let vfs = trees.vfs.acting_as(by);
                let mut fresh = false;
                for deed in DEEDS {
                    if !std::mem::replace(&mut fresh, true) {
                        trees.each(|tree| make_dir(tree, acl.of_kind(), bits));
                    }
                    let weft = weft_works(&trees.vfs, &vfs, deed, acl).await;
                    let kernel = being((uid, gid, groups), || kernel_works(&trees.plain, deed, acl));
                    let case = || format!("uid {uid}: {deed:?} in a directory {bits:o} with {acl:?}");
                    fresh = weft.is_err() || matches!(deed, Deed::Lookup(_) | Deed::List);
                    same(case, &weft, kernel, &mut counts);
                    for name in ["new", "d/new", "d/f", "d/e", "d/sub", "out"] {
                        let [weft, kernel] =
                            [&trees.served, &trees.plain].map(|tree| state(&tree.join(name)));
                        assert_eq!(weft, kernel, "{name} after {}", case());
                    }
                }
            }
        }
    }
    println!("{} were refused, {} were not", counts[0], counts[1]);
    assert!(counts.iter().all(|count| *count > 5_000));
}
