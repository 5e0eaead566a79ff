//! What SMB users may do in a folder is what the kernel says: a table of users, modes, ACLs and requests, each carried out in
//! a user's tree and by system calls of a thread that is this user. Both must end alike.
//!
//! Only root can act for others, so as another user these tests say that they are skipped.

use std::ops::Deref;
use std::os::unix::fs::chown;
use std::path::Path;

use rustix::fs::{Access, AtFlags, CWD, Gid, Mode, OFlags, Timespec, Timestamps, XattrFlags};
use rustix::io::Errno;
use weft_machine::credentials::Credentials;
use weft_store::backend::Dir;
use weft_store::vfs::Caller;
use weft_wire::security::{Ace, AceFlags, Dacl, SecurityDescriptor, Sid};
use weft_wire::smb2::Filetime;
use weft_wire::smb2::create_context::{RequestContext, ResponseContext};
use weft_wire::smb2::fscc::FileClass;
use weft_wire::smb2::fscc::ea::FullEa;
use weft_wire::smb2::fscc::file::{Basic, Rename};
use weft_wire::smb2::query_directory;
use weft_wire::smb2::query_info::SecurityInformation;

use self::twins::{GROUP, OWNER, Twins, USERS, User, being, give_acl, make_dir, mode, state};
use super::info::{set, set_security};
use super::*;
use crate::server::ops::rights::CHANGING;

#[path = "../../../../../machine/src/credentials/twins.rs"]
mod twins;

/// What an ACL gives the named user and the named group; `None` is no ACL.
type Acl = Option<twins::Acl>;

/// Two equal trees, of which the server serves one.
struct Trees {
    twins: Twins,
    bench: Bench,
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
        let bench = Bench::with(Dir::open(&twins.served).unwrap().into(), Dialect::V3_1_1, false);
        Some(Trees { twins, bench })
    }

    /// A tree whose files are used as this user.
    fn tree_of(&self, user: User, right: Right) -> Bench {
        self.tree_with(user, right, |_| ())
    }

    /// The same, with another rule.
    fn tree_with(&self, (uid, gid, groups): User, right: Right, rule: impl FnOnce(&mut Share)) -> Bench {
        let session = self.bench.another_session(&format!("user of {uid} {right:?}"));
        let mut share = self.bench.tree.share.clone().unwrap();
        if right < Right::Write {
            share.vfs = share.vfs.for_readers();
        }
        rule(&mut share);
        let user = Credentials::new(uid, gid, groups).unwrap();
        share.vfs = share.vfs.acting_as(Caller::User(Arc::new(user)));
        let tree = session.connect(Some(share), right, 10).unwrap();
        Bench {
            vfs: self.bench.vfs.clone(),
            server: self.bench.server.clone(),
            client: self.bench.client.clone(),
            connection: self.bench.connection.clone(),
            session,
            tree,
            ids: Cell::new(1 << 20),
        }
    }
}

/// How an operation ends, as far as both sides tell it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ending {
    Done,
    Refused,
    Missing,
}

fn of_smb<T>(answer: Result<T, NtStatus>) -> Ending {
    match answer {
        Ok(_) => Ending::Done,
        Err(NtStatus::ACCESS_DENIED) => Ending::Refused,
        Err(NtStatus::OBJECT_NAME_NOT_FOUND) => Ending::Missing,
        Err(other) => panic!("{other:?}"),
    }
}

fn of_kernel<T>(answer: Result<T, Errno>) -> Ending {
    match answer {
        Ok(_) => Ending::Done,
        Err(Errno::ACCESS | Errno::PERM) => Ending::Refused,
        Err(Errno::NOENT) => Ending::Missing,
        Err(other) => panic!("{other}"),
    }
}

/// What is done with a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Act {
    Read,
    Write,
    Execute,
    Overwrite,
    Times,
    Chmod,
    Chgrp(u32),
    Ea,
    Rename,
    Link,
    Delete,
}

const ACTS: [Act; 12] = [
    Act::Read,
    Act::Write,
    Act::Execute,
    Act::Overwrite,
    Act::Times,
    Act::Chmod,
    Act::Chgrp(3001),
    Act::Chgrp(3004),
    Act::Ea,
    Act::Rename,
    Act::Link,
    Act::Delete,
];

/// Seconds since 1970.
const THEN: i64 = 1_000_000;

fn opening(access: AccessMask) -> Wish<'static> {
    Wish { access, options: CreateOptions::NONE, ..Wish::file("f") }
}

async fn rename(
    b: &Bench,
    file: FileId,
    class: FileClass,
    name: &str,
    replace: bool,
) -> Result<(), NtStatus> {
    let to = Rename { replace_if_exists: replace, root_directory: 0, name: name.into() };
    set(b, file, class, |out| to.emit(out)).await
}

async fn smb_does(b: &Bench, act: Act) -> Result<(), NtStatus> {
    let access = match act {
        Act::Read => AccessMask::FILE_READ_DATA,
        Act::Write => AccessMask::FILE_WRITE_DATA,
        Act::Execute => AccessMask::FILE_EXECUTE,
        Act::Overwrite | Act::Link => AccessMask::FILE_READ_ATTRIBUTES,
        Act::Times => AccessMask::FILE_WRITE_ATTRIBUTES,
        Act::Chmod => AccessMask::WRITE_DAC,
        Act::Chgrp(_) => AccessMask::WRITE_OWNER,
        Act::Ea => AccessMask::FILE_WRITE_EA,
        Act::Rename | Act::Delete => AccessMask::DELETE,
    };
    let mut wish = opening(access);
    match act {
        Act::Overwrite => wish.disposition = CreateDisposition::Overwrite,
        Act::Delete => wish.options = CreateOptions::DELETE_ON_CLOSE,
        _ => {}
    }
    let file = b.open(&wish).await?;
    let descriptor = |group, dacl| SecurityDescriptor { group, dacl, ..SecurityDescriptor::default() };
    let done = match act {
        Act::Read | Act::Execute => payload::read(b, file, 0, 4).await.map(drop),
        Act::Write => payload::write(b, file, 0, b"more").await.map(drop),
        Act::Overwrite | Act::Delete => Ok(()),
        Act::Times => {
            let last_write_time = Filetime::from_unix(THEN, 0);
            let times = Basic { last_write_time, ..Basic::default() };
            set(b, file, FileClass::BASIC, |out| times.emit(out)).await
        }
        Act::Chmod => {
            let all = Ace::allow(Sid::everyone(), AccessMask::FILE_GENERIC_READ, AceFlags::NONE);
            let bytes = descriptor(None, Dacl::List(vec![all])).to_bytes();
            set_security(b, file, SecurityInformation::DACL, &bytes).await
        }
        Act::Chgrp(gid) => {
            let bytes = descriptor(Some(Sid::unix_group(gid)), Dacl::Absent).to_bytes();
            set_security(b, file, SecurityInformation::GROUP, &bytes).await
        }
        Act::Ea => {
            let list = [FullEa { flags: 0, name: b"X".to_vec(), value: b"1".to_vec() }];
            set(b, file, FileClass::FULL_EA, |out| FullEa::emit_list(&list, out)).await
        }
        Act::Rename => rename(b, file, FileClass::RENAME, "g", false).await,
        Act::Link => rename(b, file, FileClass::LINK, "g", false).await,
    };
    done.and(b.close(file).await.map(drop))
}

fn kernel_does(tree: &Path, owns: bool, act: Act) -> Result<(), Errno> {
    let file = tree.join("f");
    let may = |access| rustix::fs::accessat(CWD, &file, access, AtFlags::EACCESS);
    let open = |flags| rustix::fs::open(&file, flags | OFlags::CLOEXEC, Mode::empty()).map(drop);
    match act {
        Act::Read => open(OFlags::RDONLY),
        Act::Write => open(OFlags::WRONLY),
        // A client reads what it executes; the owner may give himself the permission.
        Act::Execute => open(OFlags::RDONLY).and_then(|()| if owns { Ok(()) } else { may(Access::EXEC_OK) }),
        Act::Overwrite => open(OFlags::WRONLY | OFlags::TRUNC),
        Act::Times => {
            let time = |sec, nsec| Timespec { tv_sec: sec, tv_nsec: nsec };
            let times =
                Timestamps { last_access: time(0, rustix::fs::UTIME_OMIT), last_modification: time(THEN, 0) };
            // Over SMB, who may write may set times as well.
            let set = rustix::fs::utimensat(CWD, &file, &times, AtFlags::empty());
            set.or_else(|_| may(Access::WRITE_OK))
        }
        Act::Chmod => {
            let mode = rustix::fs::stat(&file)?.st_mode & 0o7700 | 0o044;
            rustix::fs::chmod(&file, Mode::from_raw_mode(mode))
        }
        Act::Chgrp(gid) => rustix::fs::chown(&file, None, Some(Gid::from_raw(gid))),
        Act::Ea => rustix::fs::setxattr(&file, "user.X", b"1", XattrFlags::empty()),
        Act::Rename => rustix::fs::rename(&file, tree.join("g")),
        Act::Link => rustix::fs::link(&file, tree.join("g")),
        Act::Delete => rustix::fs::unlink(&file),
    }
}

fn make_file(tree: &Path, acl: Acl, bits: u32) {
    let file = tree.join("f");
    for name in ["f", "g"] {
        let _ = std::fs::remove_file(tree.join(name));
    }
    std::fs::write(&file, b"content").unwrap();
    chown(&file, Some(OWNER), Some(GROUP)).unwrap();
    if let Some(acl) = acl {
        give_acl(&file, "access", acl).unwrap();
    }
    mode(&file, bits);
}

/// All rights by what access(2) says, in a folder that everybody may change.
fn kernel_grants(file: &Path, owns: bool) -> AccessMask {
    let may = |access| rustix::fs::accessat(CWD, file, access, AtFlags::EACCESS).is_ok();
    let (reads, writes, executes) = (may(Access::READ_OK), may(Access::WRITE_OK), may(Access::EXEC_OK));
    let mut denied = AccessMask::NONE;
    for (granted, rights) in [
        (reads, AccessMask::FILE_READ_DATA | AccessMask::FILE_READ_EA),
        (writes, AccessMask::FILE_WRITE_DATA | AccessMask::FILE_APPEND_DATA | AccessMask::FILE_WRITE_EA),
        (writes, AccessMask::FILE_DELETE_CHILD),
        (writes || owns, AccessMask::FILE_WRITE_ATTRIBUTES),
        (reads && (executes || owns), AccessMask::FILE_EXECUTE),
        (owns, AccessMask::WRITE_DAC | AccessMask::WRITE_OWNER),
    ] {
        if !granted {
            denied |= rights;
        }
    }
    AccessMask::FILE_ALL.without(denied)
}

/// What a client is told that it may do at most, and what it gets if it asks for that.
async fn smb_grants(b: &Bench) -> [AccessMask; 2] {
    let contexts = vec![RequestContext::MaximalAccess(None)];
    let made = b.create(&Wish { contexts, ..opening(AccessMask::MAXIMUM_ALLOWED) }).await.unwrap();
    let told = made.contexts.iter().find_map(|context| match context {
        ResponseContext::MaximalAccess { access, .. } => Some(AccessMask(*access)),
        _ => None,
    });
    let has = super::info::access(b, made.file).await;
    b.close(made.file).await.unwrap();
    [told.unwrap(), has]
}

/// Every set of permissions of the group and of others, for some of the owner.
fn modes() -> impl Iterator<Item = u32> {
    [0, 6].into_iter().flat_map(|owner| (0..0o100).map(move |rest| owner << 6 | rest))
}

#[test]
fn the_kernel_judges_what_users_do_with_files() {
    if let Some(trees) = Trees::new() {
        rt::block_on(judge_files(trees)).unwrap();
    }
}

async fn judge_files(trees: Trees) {
    let mut counts = [0; 2];
    for user in USERS {
        let (b, reader) = (trees.tree_of(user, Right::Write), trees.tree_of(user, Right::Read));
        let owns = user.0 == OWNER;
        for acl in [None, Some((6, 5)), Some((0, 3))] {
            for bits in modes() {
                let case = |what: &dyn std::fmt::Debug| {
                    format!("uid {}: {what:?} of a file {bits:o} with {acl:?}", user.0)
                };
                trees.each(|tree| make_file(tree, acl, bits));
                let kernel = being(user, || kernel_grants(&trees.plain.join("f"), owns));
                assert_eq!(smb_grants(&b).await, [kernel; 2], "{}", case(&"rights"));
                assert_eq!(smb_grants(&reader).await, [kernel.without(CHANGING); 2], "{}", case(&"a reader"));
                for act in ACTS {
                    let smb = of_smb(smb_does(&b, act).await);
                    let kernel = of_kernel(being(user, || kernel_does(&trees.plain, owns, act)));
                    assert_eq!(smb, kernel, "{}", case(&act));
                    for name in ["f", "g"] {
                        let [seen, wanted] =
                            [&trees.served, &trees.plain].map(|tree| state(&tree.join(name)));
                        assert_eq!(seen, wanted, "{name}: {}", case(&act));
                    }
                    counts[usize::from(smb == Ending::Done)] += 1;
                    if smb == Ending::Done && !matches!(act, Act::Read | Act::Write | Act::Execute) {
                        trees.each(|tree| make_file(tree, acl, bits));
                    }
                }
            }
        }
    }
    println!("{} were refused, {} were not", counts[0], counts[1]);
    assert!(counts.iter().all(|count| *count > 2_000));
}

/// What is done in a directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Deed {
    Find(&'static str),
    List,
    Create,
    Mkdir,
    Remove,
    Rmdir,
    Rename,
    MoveOut,
    Replace,
    Link,
}

const DEEDS: [Deed; 11] = [
    Deed::Find("d\\f"),
    Deed::Find("d\\missing"),
    Deed::List,
    Deed::Create,
    Deed::Mkdir,
    Deed::Remove,
    Deed::Rmdir,
    Deed::Rename,
    Deed::MoveOut,
    Deed::Replace,
    Deed::Link,
];

async fn list(b: &Bench, file: FileId, pattern: &str) -> Result<(), NtStatus> {
    let request = query_directory::Request {
        class: FileClass::DIRECTORY,
        flags: query_directory::Flags::NONE,
        file_index: 0,
        file,
        output_buffer_length: 4096,
        pattern: pattern.into(),
    };
    b.ask(Command::QueryDirectory, |out| request.emit(out)).await.map(drop)
}

async fn smb_works(b: &Bench, deed: Deed) -> Result<(), NtStatus> {
    let any = |path, access| Wish { access, options: CreateOptions::NONE, ..Wish::file(path) };
    let see = AccessMask::FILE_READ_ATTRIBUTES;
    let wish = match deed {
        Deed::Find(path) => any(path, see),
        Deed::List => Wish { access: AccessMask::FILE_READ_DATA, ..Wish::dir("d") },
        Deed::Create => {
            Wish { disposition: CreateDisposition::Create, ..any("d\\new", AccessMask::FILE_ALL) }
        }
        Deed::Mkdir => Wish { disposition: CreateDisposition::Create, ..Wish::dir("d\\new") },
        Deed::Remove => Wish { options: CreateOptions::DELETE_ON_CLOSE, ..any("d\\f", AccessMask::DELETE) },
        Deed::Rmdir => {
            let options = CreateOptions::DIRECTORY_FILE | CreateOptions::DELETE_ON_CLOSE;
            Wish { options, ..any("d\\sub", AccessMask::DELETE) }
        }
        Deed::Rename | Deed::MoveOut | Deed::Replace => any("d\\f", AccessMask::DELETE),
        Deed::Link => any("out", see),
    };
    let file = b.open(&wish).await?;
    let done = match deed {
        Deed::Rename => rename(b, file, FileClass::RENAME, "d\\new", false).await,
        Deed::MoveOut => rename(b, file, FileClass::RENAME, "new", false).await,
        Deed::Replace => rename(b, file, FileClass::RENAME, "d\\e", true).await,
        Deed::Link => rename(b, file, FileClass::LINK, "d\\new", false).await,
        Deed::List => list(b, file, "*").await,
        _ => Ok(()),
    };
    done.and(b.close(file).await.map(drop))
}

fn kernel_works(tree: &Path, deed: Deed) -> Result<(), Errno> {
    let in_dir = |name: &str| tree.join("d").join(name);
    let new = in_dir("new");
    match deed {
        Deed::Find(path) => rustix::fs::lstat(tree.join(path.replace('\\', "/"))).map(drop),
        Deed::List => {
            let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
            rustix::fs::open(tree.join("d"), flags, Mode::empty()).map(drop)
        }
        Deed::Create => {
            let flags = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::CLOEXEC;
            rustix::fs::open(&new, flags, Mode::from_raw_mode(0o666)).map(drop)
        }
        Deed::Mkdir => rustix::fs::mkdir(&new, Mode::from_raw_mode(0o777)),
        Deed::Remove => rustix::fs::unlink(in_dir("f")),
        Deed::Rmdir => rustix::fs::rmdir(in_dir("sub")),
        Deed::Rename => rustix::fs::rename(in_dir("f"), &new),
        Deed::MoveOut => rustix::fs::rename(in_dir("f"), tree.join("new")),
        Deed::Replace => rustix::fs::rename(in_dir("f"), in_dir("e")),
        Deed::Link => rustix::fs::link(tree.join("out"), &new),
    }
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
fn the_kernel_judges_what_users_do_in_directories() {
    if let Some(trees) = Trees::new() {
        rt::block_on(judge_directories(trees)).unwrap();
    }
}

async fn judge_directories(trees: Trees) {
    let mut counts = [0; 2];
    for user in USERS {
        let b = trees.tree_of(user, Right::Write);
        for acl in [None, Some(("access", (6, 5))), Some(("default", (1, 2)))] {
            for bits in modes_of_dirs() {
                let mut fresh = false;
                for deed in DEEDS {
                    if !std::mem::replace(&mut fresh, true) {
                        trees.each(|tree| make_dir(tree, acl, bits));
                    }
                    let smb = of_smb(smb_works(&b, deed).await);
                    let kernel = of_kernel(being(user, || kernel_works(&trees.plain, deed)));
                    let case = || format!("uid {}: {deed:?} in a directory {bits:o} with {acl:?}", user.0);
                    assert_eq!(smb, kernel, "{}", case());
                    // What was refused has changed nothing, as the comparison shows.
                    fresh = smb != Ending::Done || matches!(deed, Deed::Find(_) | Deed::List);
                    for name in ["new", "d/new", "d/f", "d/e", "d/sub", "out"] {
                        let [smb, kernel] = [&trees.served, &trees.plain].map(|tree| state(&tree.join(name)));
                        assert_eq!(smb, kernel, "{name} after {}", case());
                    }
                    counts[usize::from(smb == Ending::Done)] += 1;
                }
            }
        }
    }
    println!("{} were refused, {} were not", counts[0], counts[1]);
    assert!(counts.iter().all(|count| *count > 1_000));
}

#[test]
fn listings_that_hide_unreadable_files_ask_the_kernel() {
    if let Some(trees) = Trees::new() {
        rt::block_on(judge_listings(trees)).unwrap();
    }
}

async fn judge_listings(trees: Trees) {
    let mut counts = [0; 2];
    for user in USERS {
        let b = trees.tree_with(user, Right::Read, |share| share.rules.hides_unreadable = true);
        for acl in [None, Some((6, 5)), Some((0, 3))] {
            for bits in [0o600, 0o640, 0o604, 0o044, 0o060, 0o006, 0] {
                trees.each(|tree| make_file(tree, acl, bits));
                let root =
                    b.open(&Wish { access: AccessMask::FILE_READ_DATA, ..Wish::dir("") }).await.unwrap();
                let shown = match list(&b, root, "f*").await {
                    Ok(()) => true,
                    Err(NtStatus::NO_SUCH_FILE) => false,
                    Err(other) => panic!("{other:?}"),
                };
                b.close(root).await.unwrap();
                let file = trees.plain.join("f");
                let reads = || rustix::fs::accessat(CWD, &file, Access::READ_OK, AtFlags::EACCESS).is_ok();
                assert_eq!(shown, being(user, reads), "uid {}: a file {bits:o} with {acl:?}", user.0);
                counts[usize::from(shown)] += 1;
            }
        }
    }
    assert!(counts.iter().all(|count| *count > 20), "{counts:?}");
}
