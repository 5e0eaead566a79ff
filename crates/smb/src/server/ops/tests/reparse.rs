//! Files become links and pipes, and the reverse: what stays of them, also if the disk fails or the client is lost.

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use futures_util::poll;
use weft_store::access;
use weft_store::backend::Dir;
use weft_store::vfs::{
    Attr, Backend, Caller, DirName, Error, Exists, Kind as FileKind, Make, NodeId, Op, Outcome, SetAttr,
    SetXattr, Special, Vfs,
};
use weft_wire::security::SecurityDescriptor;
use weft_wire::smb2::ioctl::CtlCode;

use super::control::{control, link_to, request};
use super::*;

const UID: u32 = 4711;
const GID: u32 = 4712;
const TAG_OF_LINKS: u32 = 0xA000_000C;

/// A disk on which one operation fails.
pub(super) struct Failing {
    pub(super) disk: Ram,
    /// How many operations from now this is; 0 if none fails.
    pub(super) countdown: Arc<AtomicUsize>,
}

impl Backend for Failing {
    fn kind(&self) -> &'static str {
        self.disk.kind()
    }

    fn submit(&self, op: Op, by: Caller) -> LocalBoxFuture<'_, Result<Outcome, Error>> {
        let one_less = |left: usize| left.checked_sub(1);
        let fails = self.countdown.fetch_update(Ordering::SeqCst, Ordering::SeqCst, one_less) == Ok(1);
        Box::pin(async move {
            // No operation is finished at once.
            rt::yield_now().await;
            if fails {
                return Err(Error::Io(io::Error::from_raw_os_error(5)));
            }
            self.disk.submit(op, by).await
        })
    }
}

/// The only name in the root, with its owner, descriptor and permissions.
#[derive(Debug, PartialEq)]
struct Found {
    name: Vec<u8>,
    node: NodeId,
    kind: FileKind,
    owner: (u32, u32),
    mode: u32,
    descriptor: Option<SecurityDescriptor>,
}

async fn found(vfs: &Vfs) -> Found {
    let entries = vfs.readdir(NodeId::ROOT, 0, 10).await.unwrap().entries;
    let names: Vec<_> = entries.iter().map(|entry| entry.name.escape_ascii().to_string()).collect();
    assert_eq!(names.len(), 1, "{names:?}");
    let name = entries[0].name.clone();
    let attr = vfs.lookup(NodeId::ROOT, &name, false).await.unwrap();
    let descriptor = access::stored(vfs, &attr).await.unwrap();
    let Attr { node, kind, uid, gid, mode, .. } = attr;
    Found { name, node, kind, owner: (uid, gid), mode, descriptor }
}

/// Creates an object of another Unix user, with a descriptor of its own, in a root whose descriptor it would inherit.
async fn owned(b: &Bench, wish: &Wish<'_>) -> FileId {
    let me = b.server.directory().accounts.sid_of_user(&b.session.user);
    let sddl = |text: &str| text.replace("ME", &me.to_string()).parse::<SecurityDescriptor>().unwrap();
    access::keep(&b.vfs, NodeId::ROOT, &sddl("O:MED:P(A;OICI;FA;;;ME)(A;OICI;0x1200a9;;;WD)")).await.unwrap();
    let file = b.open(&Wish { disposition: CreateDisposition::Create, ..wish.clone() }).await.unwrap();
    let made = b.vfs.lookup(NodeId::ROOT, wish.path.as_bytes(), false).await.unwrap();
    let set = SetAttr { uid: Some(UID), gid: Some(GID), ..SetAttr::default() };
    b.vfs.setattr(made.node, set).await.unwrap();
    access::keep(&b.vfs, made.node, &sddl("O:MED:P(A;;FA;;;ME)(A;;FR;;;WD)")).await.unwrap();
    file
}

fn deletion() -> Vec<u8> {
    [&TAG_OF_LINKS.to_le_bytes()[..], &[0; 4]].concat()
}

fn pipe() -> Vec<u8> {
    [&0x8000_0014u32.to_le_bytes()[..], &8u16.to_le_bytes(), &[0; 2], b"FIFO\0\0\0\0"].concat()
}

#[test]
fn owner_and_group_stay() {
    run(async |b| {
        let file = owned(&b, &Wish::file("f")).await;
        let before = found(&b.vfs).await;
        assert_eq!((before.owner, before.mode & 0o077), ((UID, GID), 0o044));
        control(&b, &request(CtlCode::SET_REPARSE_POINT, file, link_to("x", 1))).await.unwrap();
        let link = found(&b.vfs).await;
        assert_eq!((link.kind, link.owner), (FileKind::Symlink, before.owner));
        control(&b, &request(CtlCode::DELETE_REPARSE_POINT, file, deletion())).await.unwrap();
        let again = found(&b.vfs).await;
        assert_eq!((again.kind, again.owner), (FileKind::File, before.owner));
        // The permissions of what it inherits from the root.
        assert_eq!(again.mode & 0o077, 0o055);
        assert!(again.descriptor.is_some());
        control(&b, &request(CtlCode::SET_REPARSE_POINT, file, pipe())).await.unwrap();
        let pipe = found(&b.vfs).await;
        assert_eq!(pipe.kind, FileKind::Special(Special::Fifo));
        assert_eq!((pipe.owner, pipe.mode), (again.owner, again.mode));
        b.close(file).await.unwrap();
    });
}

/// Carries out a request as often as it has operations, each time with another one failing. `made` is an object that
/// is first converted by `first`, if that is anything.
fn with_each_failure(made: &Wish<'_>, first: Option<(CtlCode, Vec<u8>)>, code: CtlCode, input: Vec<u8>) {
    for failing in 1.. {
        let countdown = Arc::<AtomicUsize>::default();
        let disk = Failing { disk: Ram::new(DISK), countdown: countdown.clone() };
        let fired = rt::block_on(async {
            let b = Bench::with(Vfs::new(disk), Dialect::V3_1_1, true);
            let file = owned(&b, made).await;
            if let Some((code, input)) = &first {
                control(&b, &request(*code, file, input.clone())).await.unwrap();
            }
            let before = found(&b.vfs).await;
            countdown.store(failing, Ordering::SeqCst);
            let answer = control(&b, &request(code, file, input.clone())).await;
            let fired = countdown.swap(0, Ordering::SeqCst) == 0;
            if answer.is_err() {
                assert_eq!(found(&b.vfs).await, before, "{failing}");
                // The handle is as good as before.
                control(&b, &request(code, file, input.clone())).await.unwrap();
            }
            let after = found(&b.vfs).await;
            assert_eq!((&after.name, after.owner), (&before.name, before.owner), "{failing}");
            assert_ne!(after.kind, before.kind, "{failing}");
            assert_eq!(after.descriptor.is_some(), code == CtlCode::DELETE_REPARSE_POINT, "{failing}");
            b.close(file).await.unwrap();
            fired
        })
        .unwrap();
        if !fired {
            assert!(failing > 5, "only {failing} operations");
            return;
        }
    }
}

#[test]
fn a_failure_leaves_a_file_that_was_to_become_a_reparse_point() {
    with_each_failure(&Wish::file("f"), None, CtlCode::SET_REPARSE_POINT, link_to("x", 1));
    with_each_failure(&Wish::dir("d"), None, CtlCode::SET_REPARSE_POINT, link_to("x", 1));
    with_each_failure(&Wish::file("f"), None, CtlCode::SET_REPARSE_POINT, pipe());
}

#[test]
fn a_failure_leaves_a_link_that_was_to_become_a_file() {
    let first = || Some((CtlCode::SET_REPARSE_POINT, link_to("x", 1)));
    with_each_failure(&Wish::file("f"), first(), CtlCode::DELETE_REPARSE_POINT, deletion());
    with_each_failure(&Wish::dir("d"), first(), CtlCode::DELETE_REPARSE_POINT, deletion());
}

/// A request is dropped with its connection, after any number of steps.
#[test]
fn a_lost_connection_leaves_one_file_of_this_name() {
    for wish in [Wish::file("f"), Wish::dir("d")] {
        let mut converted = 0;
        for steps in 1..100 {
            let disk = Failing { disk: Ram::new(DISK), countdown: Arc::default() };
            rt::block_on(async {
                let b = Bench::with(Vfs::new(disk), Dialect::V3_1_1, true);
                let file = owned(&b, &wish).await;
                let before = found(&b.vfs).await;
                let set = request(CtlCode::SET_REPARSE_POINT, file, link_to("x", 1));
                let cx = b.cx(Command::Ioctl, |out| set.emit(out));
                let mut asked = Box::pin(dispatch(&cx));
                for _ in 0..steps {
                    if poll!(&mut asked).is_ready() {
                        break;
                    }
                    rt::yield_now().await;
                }
                drop(asked);
                // What goes on without the request ends.
                for _ in 0..200 {
                    rt::yield_now().await;
                }
                let after = found(&b.vfs).await;
                assert_eq!((&after.name, after.owner), (&before.name, before.owner), "{steps}");
                match after.kind {
                    FileKind::Symlink => converted += 1,
                    _ => assert_eq!(after, before, "{steps}"),
                }
                b.close(file).await.unwrap();
            })
            .unwrap();
        }
        assert!((1..99).contains(&converted), "{converted}");
    }
}

#[test]
fn a_folder_on_the_host_has_links_too() {
    let folder = tempfile::tempdir().unwrap();
    rt::block_on(async {
        let vfs = Vfs::new(Dir::open(folder.path()).unwrap());
        let b = Bench::with(vfs, Dialect::V3_1_1, true);
        for wish in [Wish::file("f"), Wish::dir("d")] {
            let path = folder.path().join(wish.path);
            let is_dir = wish.options.contains(CreateOptions::DIRECTORY_FILE);
            let file = b.open(&Wish { disposition: CreateDisposition::Create, ..wish }).await.unwrap();
            for _ in 0..2 {
                control(&b, &request(CtlCode::SET_REPARSE_POINT, file, link_to("x", 1))).await.unwrap();
                assert!(path.symlink_metadata().unwrap().is_symlink());
                control(&b, &request(CtlCode::DELETE_REPARSE_POINT, file, deletion())).await.unwrap();
                assert_eq!(path.symlink_metadata().unwrap().is_dir(), is_dir);
            }
            if !is_dir {
                payload::write(&b, file, 0, b"content").await.unwrap();
                assert_eq!(std::fs::read(&path).unwrap(), b"content");
            }
            b.close(file).await.unwrap();
        }
        let mut names: Vec<_> =
            std::fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        names.sort();
        assert_eq!(names, ["d", "f"]);
    })
    .unwrap();
}

/// A disk on which somebody else acts once the replacement of a file was made: `meddle` is given its name.
struct Meddled {
    disk: Ram,
    meddle: Mutex<Option<Meddle>>,
}

type Meddle = Box<dyn FnOnce(DirName) -> Vec<Op> + Send>;

impl Backend for Meddled {
    fn kind(&self) -> &'static str {
        self.disk.kind()
    }

    fn submit(&self, op: Op, by: Caller) -> LocalBoxFuture<'_, Result<Outcome, Error>> {
        Box::pin(async move {
            let made = match &op {
                Op::Create { dir, name, .. } if name.starts_with(b".weft-reparse-") => {
                    Some(DirName { dir: *dir, name: name.clone() })
                }
                _ => None,
            };
            let outcome = self.disk.submit(op, by).await;
            if let Some(made) = made {
                let meddle = self.meddle.lock().unwrap().take();
                for op in meddle.into_iter().flat_map(|meddle| meddle(made.clone())) {
                    self.disk.submit(op, Caller::Server).await.unwrap();
                }
            }
            outcome
        })
    }
}

fn make(name: &[u8], kind: Make) -> Op {
    let name = name.to_vec();
    Op::Create { dir: NodeId::ROOT, name, make: kind, exists: Exists::Fail, set: SetAttr::default() }
}

fn rename(from: &[u8], to: &[u8]) -> Op {
    let at = |name: &[u8]| DirName { dir: NodeId::ROOT, name: name.to_vec() };
    Op::Rename { from: at(from), to: at(to), replace: true }
}

/// Converts an empty file or directory while `meddle` happens; returns the answer, and the names in the root with their
/// kinds.
fn meddled(
    wish: &Wish<'_>,
    meddle: impl FnOnce(NodeId, DirName) -> Vec<Op> + Send + 'static,
) -> (NtStatus, Vec<(String, FileKind)>) {
    rt::block_on(async {
        let disk = Arc::new(Meddled { disk: Ram::new(DISK), meddle: Mutex::default() });
        let b = Bench::with(Vfs::new(Shared(disk.clone())), Dialect::V3_1_1, true);
        let file = b.open(&Wish { disposition: CreateDisposition::Create, ..wish.clone() }).await.unwrap();
        let node = b.vfs.lookup(NodeId::ROOT, wish.path.as_bytes(), false).await.unwrap().node;
        *disk.meddle.lock().unwrap() = Some(Box::new(move |made| meddle(node, made)));
        let answer = control(&b, &request(CtlCode::SET_REPARSE_POINT, file, link_to("x", 1))).await;
        let entries = b.vfs.readdir(NodeId::ROOT, 0, 10).await.unwrap().entries;
        let mut names = Vec::new();
        for entry in entries {
            let kind = b.vfs.lookup(NodeId::ROOT, &entry.name, false).await.unwrap().kind;
            names.push((String::from_utf8(entry.name).unwrap(), kind));
        }
        names.sort_by(|one, other| one.0.cmp(&other.0));
        b.close(file).await.unwrap();
        (answer.map_or_else(|status| status, |_| NtStatus::SUCCESS), names)
    })
    .unwrap()
}

struct Shared(Arc<Meddled>);

impl Backend for Shared {
    fn kind(&self) -> &'static str {
        self.0.kind()
    }

    fn submit(&self, op: Op, by: Caller) -> LocalBoxFuture<'_, Result<Outcome, Error>> {
        self.0.submit(op, by)
    }
}

#[test]
fn what_was_written_meanwhile_is_not_lost() {
    let (status, names) = meddled(&Wish::file("f"), |node, _| {
        vec![Op::Setattr { node, set: SetAttr { size: Some(1), ..SetAttr::default() } }]
    });
    assert_eq!(status, NtStatus(0xC000_0278));
    assert_eq!(names, [("f".to_owned(), FileKind::File)]);
}

#[test]
fn another_file_that_has_the_name_by_now_is_not_replaced() {
    for wish in [Wish::file("f"), Wish::dir("f")] {
        let kind = if wish.options.contains(CreateOptions::DIRECTORY_FILE) { Make::Dir } else { Make::File };
        let (status, names) = meddled(&wish, move |_, _| vec![rename(b"f", b"g"), make(b"f", kind)]);
        assert_eq!(status, NtStatus::SHARING_VIOLATION);
        let names: Vec<_> =
            names.iter().map(|(name, kind)| (&name[..], *kind == FileKind::Symlink)).collect();
        assert_eq!(names, [("f", false), ("g", false)]);
    }
}

#[test]
fn only_the_file_that_was_made_for_it_takes_the_name() {
    for wish in [Wish::file("f"), Wish::dir("f")] {
        let (status, names) = meddled(&wish, |_, made| {
            vec![rename(&made.name, b"taken"), make(&made.name, Make::Symlink(b"evil".to_vec()))]
        });
        assert_eq!(status, NtStatus::SHARING_VIOLATION);
        // What has the temporary name by now is not ours to remove.
        assert_eq!(names.len(), 3, "{names:?}");
        let f = names.iter().find(|(name, _)| name == "f").unwrap();
        assert_ne!(f.1, FileKind::Symlink);
    }
}

#[test]
fn a_file_that_others_have_open_stays() {
    run(async |b| {
        for wish in [Wish::file("f"), Wish::dir("d")] {
            let make = Wish { disposition: CreateDisposition::Create, ..wish.clone() };
            let attributes = AccessMask::FILE_WRITE_ATTRIBUTES;
            let other = b.open(&make).await.unwrap();
            let file = b.open(&Wish { access: attributes, ..wish.clone() }).await.unwrap();
            let set = || request(CtlCode::SET_REPARSE_POINT, file, link_to("x", 1));
            assert_eq!(status(control(&b, &set()).await), NtStatus::SHARING_VIOLATION);
            b.close(other).await.unwrap();
            control(&b, &set()).await.unwrap();
            let options = CreateOptions::OPEN_REPARSE_POINT;
            let other = b.open(&Wish { access: attributes, options, ..wish.clone() }).await.unwrap();
            let delete = || request(CtlCode::DELETE_REPARSE_POINT, file, deletion());
            assert_eq!(status(control(&b, &set()).await), NtStatus::SHARING_VIOLATION);
            assert_eq!(status(control(&b, &delete()).await), NtStatus::SHARING_VIOLATION);
            b.close(other).await.unwrap();
            control(&b, &delete()).await.unwrap();
            b.close(file).await.unwrap();
        }
    });
}

#[test]
fn streams_and_extended_attributes_are_not_lost() {
    run(async |b| {
        b.put("f", b"").await;
        b.put("f:s", b"content").await;
        let file = b.open(&Wish::file("f")).await.unwrap();
        let set = request(CtlCode::SET_REPARSE_POINT, file, link_to("x", 1));
        assert_eq!(status(control(&b, &set).await), NtStatus::NOT_SUPPORTED);
        let node = b.vfs.lookup(NodeId::ROOT, b"f", false).await.unwrap().node;
        // An open stream is an open of its file.
        let stream = b.open(&Wish::file("f:s")).await.unwrap();
        b.vfs.remove_stream(node, b"s").await.unwrap();
        assert_eq!(status(control(&b, &set).await), NtStatus::SHARING_VIOLATION);
        b.close(stream).await.unwrap();
        b.vfs.set_xattr(node, b"A", b"1", SetXattr::Either).await.unwrap();
        assert_eq!(status(control(&b, &set).await), NtStatus::EAS_NOT_SUPPORTED);
        b.vfs.remove_xattr(node, b"A").await.unwrap();
        control(&b, &set).await.unwrap();
        b.close(file).await.unwrap();
    });
}

#[test]
fn what_a_link_was_before_is_open_to_nobody_else() {
    run(async |b| {
        for (wish, mode) in [(Wish::file("f"), 0o600), (Wish::dir("d"), 0o700)] {
            let path = wish.path.as_bytes();
            let file =
                b.open(&Wish { disposition: CreateDisposition::Create, ..wish.clone() }).await.unwrap();
            control(&b, &request(CtlCode::SET_REPARSE_POINT, file, link_to("x", 1))).await.unwrap();
            control(&b, &request(CtlCode::DELETE_REPARSE_POINT, file, deletion())).await.unwrap();
            assert_eq!(b.vfs.lookup(NodeId::ROOT, path, false).await.unwrap().mode & 0o777, mode);
            b.close(file).await.unwrap();
        }
    });
}
