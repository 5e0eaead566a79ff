//! What NFS callers may do in a folder is what the kernel says: the table of `weft_store`'s backend, by the procedures of
//! version 3. Each call is compared with system calls of a thread that is the caller's user.
//!
//! Only root can act for others, so as another user these tests say that they are skipped.

use std::ops::Deref;
use std::os::unix::fs::{MetadataExt, chown};
use std::path::Path;

use rustix::fs::{Access, AtFlags, CWD, Gid, Mode, OFlags, Timespec, Timestamps, Uid};
use rustix::io::Errno;
use weft_store::backend::Dir;
use weft_store::rules::{ActsAs, NOBODY};
use weft_wire::nfs3::{
    AccessArgs, AccessOk, AttrOnly, CreateArgs, CreateHow, DirOp, LinkArgs, LookupArgs, MkdirArgs, Name,
    Outcome, Path as Target, ReadArgs, ReaddirArgs, RemoveArgs, RenameArgs, SetAttributes, SetTime,
    SetattrArgs, Stable, SymlinkArgs, WriteArgs, WriteHead, access, procedure,
};
use weft_wire::xdr::Data;

use super::*;

use self::twins::{GROUP, OWNER, Twins, USERS, User, being, give_acl, make_dir, mode, state};

#[path = "../../../../machine/src/credentials/twins.rs"]
mod twins;

const HOST: &str = "192.0.2.1:700";

/// Callers by the ids that they claim, and who they are after squashing.
fn callers() -> impl Iterator<Item = (User, User)> {
    let root: (User, User) = ((0, 0, &[GROUP]), (NOBODY, NOBODY, &[]));
    USERS.into_iter().map(|user| (user, user)).chain([root])
}

/// What an ACL gives the named user and the named group; `None` is no ACL.
type Acl = Option<twins::Acl>;

/// Two equal trees, of which the server exports one.
struct Trees {
    twins: Twins,
    server: Arc<Server>,
    xid: Cell<u32>,
}

impl Deref for Trees {
    type Target = Twins;

    fn deref(&self) -> &Twins {
        &self.twins
    }
}

impl Trees {
    /// `None` if this process or this file system cannot have such a table.
    fn new() -> Option<Trees> {
        let twins = Twins::new()?;
        let mut share = Share::new("folder", Dir::open(&twins.served).unwrap().into());
        share.rules.acts = ActsAs::Caller;
        // Nothing here needs to survive a power loss.
        share.rules.nfs.asynchronous = true;
        let policy = Policy { decides: true, squash_root: true };
        let (shares, pool, limits) = (vec![share], Pool::new(0), Limits::default());
        let server = Server::new(Config { shares, pool, limits, policy, durable: None });
        Some(Trees { twins, server, xid: Cell::default() })
    }

    async fn handle(&self, dir: NodeId, name: &str) -> Handle {
        let node = match name {
            "" => NodeId::ROOT,
            name => self.server.vfs(0).lookup(dir, name.as_bytes(), false).await.unwrap().node,
        };
        let file = FileId { share: self.server.share(0).key(), node };
        self.server.handles.make(&self.server.shares.now(), file).await.unwrap()
    }

    async fn entry(&self, dir: &str, name: &'static str) -> DirOp {
        DirOp { dir: self.handle(NodeId::ROOT, dir).await, name: Name(Bytes::from_static(name.as_bytes())) }
    }

    async fn status(&self, (uid, gid, groups): User, number: u32, args: &impl Xdr) -> Status {
        // Each is a new request, which no earlier reply answers.
        self.xid.set(self.xid.get() + 1);
        let (program, version, procedure) = (nfs3::PROGRAM, nfs3::VERSION, number);
        let credential = claim((uid, gid, groups));
        let mut e = Encoder::default();
        Call { xid: self.xid.get(), program, version, procedure, credential }.emit(&mut e);
        args.emit(&mut e);
        let calls = [e.into_bytes()];
        let (reply, mut d) = replies_in_parts(&self.server, HOST, None, &calls).await.remove(0);
        assert_eq!(reply, Reply::Success);
        refused_alike(Status(d.u32().unwrap()))
    }
}

/// The store does not tell EPERM from EACCES; NFS does so for owners.
fn refused_alike(status: Status) -> Status {
    if status == Status::PERM { Status::ACCES } else { status }
}

fn claim((uid, gid, groups): User) -> Credential {
    let mut sys = AuthSys::new(Bytes::from_static(b"host"), uid, gid);
    groups.iter().for_each(|gid| sys.push_gid(*gid));
    Credential::Sys(sys)
}

fn expected(kernel: Result<(), Errno>) -> Status {
    kernel.map_or_else(|e| refused_alike(crate::server::attributes::status(&e.into())), |()| Status::OK)
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Act {
    Access,
    Read,
    Write,
    Size,
    Mode(u32),
    Group(u32),
    Owner(u32),
    Now,
    Then,
}

const ACTS: [Act; 13] = [
    Act::Access,
    Act::Read,
    Act::Write,
    Act::Size,
    Act::Mode(0o600),
    Act::Mode(0o2755),
    Act::Group(GROUP),
    Act::Group(3001),
    Act::Group(3004),
    Act::Owner(OWNER),
    Act::Owner(2006),
    Act::Now,
    Act::Then,
];

async fn weft_does(trees: &Trees, user: User, object: Handle, act: Act) -> Status {
    let none = SetAttributes::default;
    let set = |attributes| SetattrArgs { object, attributes, guard: None };
    let then = SetTime::Client(weft_wire::nfs3::Time { seconds: 1_000_000, nseconds: 0 });
    let set = match act {
        Act::Access => {
            let args = AccessArgs { object, access: 0x3f };
            let number = (nfs3::PROGRAM, nfs3::VERSION, procedure::ACCESS);
            let granted: Outcome<AccessOk, AttrOnly> =
                results_for_as(&trees.server, HOST, claim(user), number, &args).await.unwrap();
            // A status that no other act has: the bits themselves.
            return Status(granted.unwrap().access);
        }
        Act::Read => {
            let args = ReadArgs { file: object, offset: 0, count: 10 };
            return trees.status(user, procedure::READ, &args).await;
        }
        Act::Write => {
            let head = WriteHead { file: object, offset: 0, count: 1, stable: Stable::Unstable };
            let args = WriteArgs { head, data: Data::Here(Bytes::from_static(b"x")) };
            return trees.status(user, procedure::WRITE, &args).await;
        }
        Act::Size => set(SetAttributes { size: Some(3), ..none() }),
        Act::Mode(mode) => set(SetAttributes { mode: Some(mode), ..none() }),
        Act::Group(gid) => set(SetAttributes { gid: Some(gid), ..none() }),
        Act::Owner(uid) => set(SetAttributes { uid: Some(uid), ..none() }),
        Act::Now => set(SetAttributes { atime: SetTime::Server, mtime: SetTime::Server, ..none() }),
        Act::Then => set(SetAttributes { atime: then, mtime: then, ..none() }),
    };
    trees.status(user, procedure::SETATTR, &set).await
}

fn kernel_does(file: &Path, owns: bool, act: Act) -> Status {
    let may = |access| rustix::fs::accessat(CWD, file, access, AtFlags::EACCESS);
    let times = |time| {
        let times = Timestamps { last_access: time, last_modification: time };
        rustix::fs::utimensat(CWD, file, &times, AtFlags::empty())
    };
    // RFC 1813 4.4: the owner reads and writes what he may have opened before the mode changed, and who may execute
    // may read.
    let reads =
        if owns { Ok(()) } else { may(Access::READ_OK).or_else(|e| may(Access::EXEC_OK).map_err(|_| e)) };
    let writes = if owns { Ok(()) } else { may(Access::WRITE_OK) };
    expected(match act {
        Act::Access => {
            let bits = |granted: Result<(), Errno>, bits| if granted.is_ok() { bits } else { 0 };
            return Status(
                bits(may(Access::READ_OK), access::READ)
                    | bits(may(Access::WRITE_OK), access::MODIFY | access::EXTEND)
                    | bits(may(Access::EXEC_OK), access::EXECUTE),
            );
        }
        Act::Read => reads,
        Act::Write | Act::Size => writes,
        Act::Mode(mode) => rustix::fs::chmod(file, Mode::from_raw_mode(mode)),
        Act::Group(gid) => rustix::fs::chown(file, None, Some(Gid::from_raw(gid))),
        Act::Owner(uid) => rustix::fs::chown(file, Some(Uid::from_raw(uid)), None),
        Act::Now => times(Timespec { tv_sec: 0, tv_nsec: rustix::fs::UTIME_NOW }),
        Act::Then => times(Timespec { tv_sec: 1_000_000, tv_nsec: 0 }),
    })
}

fn make_file(tree: &Path, acl: Acl, bits: u32) {
    let file = tree.join("f");
    chown(&file, Some(OWNER), Some(GROUP)).unwrap();
    match acl {
        None => {
            let _ = rustix::fs::removexattr(&file, "system.posix_acl_access");
        }
        Some(acl) => give_acl(&file, "access", acl).unwrap(),
    }
    mode(&file, bits);
}

/// Every set of permissions of the group and of others, for some of the owner.
fn modes(owners: &'static [u32]) -> impl Iterator<Item = u32> {
    owners.iter().flat_map(|owner| (0..0o100).map(move |rest| owner << 6 | rest))
}

#[test]
fn the_kernel_judges_what_callers_do_with_files() {
    if let Some(trees) = Trees::new() {
        rt::block_on(judge_files(trees)).unwrap();
    }
}

async fn judge_files(trees: Trees) {
    trees.each(|tree| std::fs::write(tree.join("f"), b"content").unwrap());
    let object = trees.handle(NodeId::ROOT, "f").await;
    let mut counts = [0; 2];
    for (claimed, user) in callers() {
        for acl in [None, Some((6, 5)), Some((0, 3))] {
            for bits in modes(&[0, 6]) {
                trees.each(|tree| make_file(tree, acl, bits));
                for act in ACTS {
                    let weft = weft_does(&trees, claimed, object, act).await;
                    let kernel = being(user, || kernel_does(&trees.plain.join("f"), user.0 == OWNER, act));
                    let case = || format!("uid {}: {act:?} of a file {bits:o} with {acl:?}", user.0);
                    assert_eq!(weft, kernel, "{}", case());
                    let [seen, wanted] = [&trees.served, &trees.plain].map(|tree| state(&tree.join("f")));
                    assert_eq!(seen, wanted, "{}", case());
                    counts[usize::from(weft == Status::OK)] += 1;
                    if weft == Status::OK && !matches!(act, Act::Access | Act::Read | Act::Write | Act::Size)
                    {
                        trees.each(|tree| make_file(tree, acl, bits));
                    }
                }
            }
        }
    }
    println!("{} were refused, {} were not", counts[0], counts[1]);
    assert!(counts.iter().all(|count| *count > 2_000));
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Deed {
    Lookup(&'static str),
    List,
    Create,
    Mkdir,
    Symlink,
    Remove,
    Rmdir,
    Rename,
    MoveOut,
    Replace,
    Link,
}

const DEEDS: [Deed; 12] = [
    Deed::Lookup("f"),
    Deed::Lookup("missing"),
    Deed::List,
    Deed::Create,
    Deed::Mkdir,
    Deed::Symlink,
    Deed::Remove,
    Deed::Rmdir,
    Deed::Rename,
    Deed::MoveOut,
    Deed::Replace,
    Deed::Link,
];

/// Whether the ACL is for what is created.
fn creation(inherits: bool) -> (u32, u32) {
    if inherits { (0o666, 0o777) } else { (0o640, 0o750) }
}

async fn weft_works(trees: &Trees, user: User, deed: Deed, inherits: bool) -> Status {
    let (file, folder) = creation(inherits);
    let with = |mode| SetAttributes { mode: Some(mode), ..SetAttributes::default() };
    let new = trees.entry("d", "new").await;
    let renamed = async |from, to| trees.status(user, procedure::RENAME, &RenameArgs { from, to }).await;
    match deed {
        Deed::Lookup(name) => {
            let what = trees.entry("d", name).await;
            trees.status(user, procedure::LOOKUP, &LookupArgs { what }).await
        }
        Deed::List => {
            let args = ReaddirArgs { dir: new.dir, cookie: 0, verifier: [0; 8], count: 4096 };
            trees.status(user, procedure::READDIR, &args).await
        }
        Deed::Create => {
            let args = CreateArgs { object: new, how: CreateHow::Guarded(with(file)) };
            trees.status(user, procedure::CREATE, &args).await
        }
        Deed::Mkdir => {
            let args = MkdirArgs { object: new, attributes: with(folder) };
            trees.status(user, procedure::MKDIR, &args).await
        }
        Deed::Symlink => {
            let target = Target(Bytes::from_static(b"f"));
            let args = SymlinkArgs { object: new, attributes: SetAttributes::default(), target };
            trees.status(user, procedure::SYMLINK, &args).await
        }
        Deed::Remove => {
            let object = trees.entry("d", "f").await;
            trees.status(user, procedure::REMOVE, &RemoveArgs { object }).await
        }
        Deed::Rmdir => {
            let object = trees.entry("d", "sub").await;
            trees.status(user, procedure::RMDIR, &RemoveArgs { object }).await
        }
        Deed::Rename => renamed(trees.entry("d", "f").await, new).await,
        Deed::MoveOut => renamed(trees.entry("d", "f").await, trees.entry("", "new").await).await,
        Deed::Replace => renamed(trees.entry("d", "f").await, trees.entry("d", "e").await).await,
        Deed::Link => {
            let args = LinkArgs { file: trees.handle(NodeId::ROOT, "out").await, link: new };
            trees.status(user, procedure::LINK, &args).await
        }
    }
}

fn kernel_works(tree: &Path, deed: Deed, inherits: bool) -> Status {
    let (file, folder) = creation(inherits);
    let (file, folder) = (Mode::from_raw_mode(file), Mode::from_raw_mode(folder));
    let in_dir = |name: &str| tree.join("d").join(name);
    let new = in_dir("new");
    expected(match deed {
        Deed::Lookup(name) => rustix::fs::lstat(in_dir(name)).map(drop),
        Deed::List => {
            let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
            rustix::fs::open(tree.join("d"), flags, Mode::empty()).map(drop)
        }
        Deed::Create => {
            let flags = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::CLOEXEC;
            rustix::fs::open(&new, flags, file).map(drop)
        }
        Deed::Mkdir => rustix::fs::mkdir(&new, folder),
        Deed::Symlink => rustix::fs::symlink("f", &new),
        Deed::Remove => rustix::fs::unlink(in_dir("f")),
        Deed::Rmdir => rustix::fs::rmdir(in_dir("sub")),
        Deed::Rename => rustix::fs::rename(in_dir("f"), &new),
        Deed::MoveOut => rustix::fs::rename(in_dir("f"), tree.join("new")),
        Deed::Replace => rustix::fs::rename(in_dir("f"), in_dir("e")),
        Deed::Link => rustix::fs::link(tree.join("out"), &new),
    })
}

/// Sets of permissions of the group and of others that let names be listed, used or changed, or not; with the sticky and the
/// set-group-id bit, those that differ in using and changing names.
fn modes_of_dirs() -> Vec<u32> {
    let cases: [(u32, &[u32]); 4] =
        [(0, &[0, 1, 3, 4, 7]), (0o700, &[0, 1, 3, 4, 7]), (0o1700, &[0, 1, 3]), (0o2700, &[0, 1, 3])];
    let mut modes = Vec::new();
    for (owner, digits) in cases {
        for group in digits {
            modes.extend(digits.iter().map(|others| owner | group << 3 | others));
        }
    }
    modes
}

#[test]
fn the_kernel_judges_what_callers_do_in_directories() {
    if let Some(trees) = Trees::new() {
        rt::block_on(judge_directories(trees)).unwrap();
    }
}

#[test]
fn a_new_file_has_the_size_and_the_mode_that_its_creator_asks_for() {
    let Some(trees) = Trees::new() else { return };
    rt::block_on(async {
        for (name, mode, size) in [("empty", 0o444, 0), ("sized", 0, 5)] {
            let with = SetAttributes { mode: Some(mode), size: Some(size), ..SetAttributes::default() };
            let args = CreateArgs { object: trees.entry("", name).await, how: CreateHow::Unchecked(with) };
            let user = (OWNER, 3001, &[][..]);
            assert_eq!(trees.status(user, procedure::CREATE, &args).await, Status::OK);
            let meta = trees.served.join(name).metadata().unwrap();
            assert_eq!((meta.uid(), meta.gid(), meta.mode() & 0o7777, meta.len()), (OWNER, 3001, mode, size));
            // He has it open, which the server cannot know.
            let head = WriteHead {
                file: trees.handle(NodeId::ROOT, name).await,
                offset: 0,
                count: 1,
                stable: Stable::Unstable,
            };
            let args = WriteArgs { head, data: Data::Here(Bytes::from_static(b"x")) };
            assert_eq!(trees.status(user, procedure::WRITE, &args).await, Status::OK);
            assert_eq!(trees.status((2006, 3008, &[]), procedure::WRITE, &args).await, Status::ACCES);
        }
    })
    .unwrap();
}

async fn judge_directories(trees: Trees) {
    let mut counts = [0; 2];
    for (claimed, user) in callers() {
        for acl in [None, Some(("access", (6, 5))), Some(("default", (1, 2)))] {
            let inherits = acl.is_some_and(|(kind, _)| kind == "default");
            for bits in modes_of_dirs() {
                let mut fresh = false;
                for deed in DEEDS {
                    if !std::mem::replace(&mut fresh, true) {
                        trees.each(|tree| make_dir(tree, acl, bits));
                    }
                    let weft = weft_works(&trees, claimed, deed, inherits).await;
                    let kernel = being(user, || kernel_works(&trees.plain, deed, inherits));
                    let case = || format!("uid {}: {deed:?} in a directory {bits:o} with {acl:?}", user.0);
                    fresh = weft != Status::OK || matches!(deed, Deed::Lookup(_) | Deed::List);
                    match deed {
                        // Of several reasons to refuse a link, Weft sees another one first.
                        Deed::Link => assert_eq!(weft == Status::OK, kernel == Status::OK, "{}", case()),
                        _ => assert_eq!(weft, kernel, "{}", case()),
                    }
                    for name in ["new", "d/new", "d/f", "d/e", "d/sub", "out"] {
                        let [weft, kernel] =
                            [&trees.served, &trees.plain].map(|tree| state(&tree.join(name)));
                        assert_eq!(weft, kernel, "{name} after {}", case());
                    }
                    counts[usize::from(weft == Status::OK)] += 1;
                }
            }
        }
    }
    println!("{} were refused, {} were not", counts[0], counts[1]);
    assert!(counts.iter().all(|count| *count > 2_000));
}
