//! The files of large streams when the power fails, a step fails, a name is reused, or another program deletes.

use std::collections::HashMap;
use std::fs;
use std::future::poll_fn;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::Poll;
use std::time::{Duration, Instant};

use futures_util::future::{LocalBoxFuture, join};
use futures_util::{FutureExt, poll};

use super::large_streams::{MIB, depot, found, listed, make, pattern, served};
use super::unlinked::nameless;
use super::*;
use crate::vfs::object::{Ended, Layer, Object, ObjectOp, Submission};

type Durable = Arc<Mutex<HashMap<u64, Vec<u8>>>>;

/// What happens to flushes of files.
#[derive(Debug, Default)]
struct Flushing {
    begun: AtomicU64,
    /// Whether the next one fails.
    loses: AtomicBool,
    /// While set, a flush that fails goes on; or has failed, but is not answered.
    goes_on: AtomicBool,
    is_unanswered: AtomicBool,
}

impl Flushing {
    async fn fails(&self, ended: Ended) -> Result<Done, Error> {
        let done = Err(rustix::io::Errno::IO.into());
        while self.goes_on.load(Ordering::SeqCst) {
            rt::yield_now().await;
        }
        ended(&done);
        while self.is_unanswered.load(Ordering::SeqCst) {
            rt::yield_now().await;
        }
        done.map(|()| Done::Done)
    }
}

/// A file whose durable state a test knows.
#[derive(Debug)]
struct Synced(OpenFile, Durable, Arc<Flushing>);

impl Layer for Synced {
    fn inner(&self) -> &dyn Object {
        self.0.object()
    }

    fn submit<'a>(&'a self, op: ObjectOp<'a>) -> Submission<'a> {
        let syncs = matches!(op, ObjectOp::Sync { .. });
        let op = match op {
            ObjectOp::Sync { ended } => {
                self.2.begun.fetch_add(1, Ordering::SeqCst);
                if self.2.loses.swap(false, Ordering::SeqCst) {
                    return Submission::later(self.2.fails(ended));
                }
                ObjectOp::Sync { ended }
            }
            op => op,
        };
        self.inner().submit(op).then(move |done| {
            if syncs && done.is_ok() {
                let file = self.inner().content().unwrap();
                let mut bytes = vec![0; file.len().unwrap() as usize];
                let read = rustix::io::pread(file, &mut bytes[..], 0).unwrap();
                assert_eq!(read, bytes.len());
                let inode = rustix::fs::fstat(file).unwrap().st_ino;
                self.1.lock().unwrap().insert(inode, bytes);
            }
            Submission::Now(done)
        })
    }
}

type Fails = Box<dyn FnMut(&Op) -> bool + Send>;

/// A folder controlled by a test.
#[derive(Clone)]
struct Watched(Arc<Behind>);

struct Behind {
    dir: Dir,
    /// Names, with their directories, that are lost in a power failure.
    unsynced: Mutex<Vec<(NodeId, Vec<u8>)>>,
    /// The operations that fail.
    fails: Mutex<Option<Fails>>,
    /// The durable bytes of files, by inode.
    durable: Durable,
    flushing: Arc<Flushing>,
    /// While set, changes of attributes wait; then one has reached that point.
    waits: AtomicBool,
    waiting: AtomicBool,
    /// Whether all files are on another device than the root.
    elsewhere: bool,
}

impl Watched {
    fn open(folder: &Path, elsewhere: bool) -> Watched {
        Watched(Arc::new(Behind {
            dir: Dir::open(folder).unwrap(),
            unsynced: Mutex::default(),
            fails: Mutex::default(),
            durable: Arc::default(),
            flushing: Arc::default(),
            waits: AtomicBool::new(false),
            waiting: AtomicBool::new(false),
            elsewhere,
        }))
    }

    fn vfs(&self) -> Vfs {
        Vfs::new(self.clone())
    }

    fn fail(&self, fails: impl FnMut(&Op) -> bool + Send + 'static) {
        *self.0.fails.lock().unwrap() = Some(Box::new(fails));
    }

    fn mend(&self) {
        *self.0.fails.lock().unwrap() = None;
    }

    /// Removes everything in the folder of streams that was not made durable.
    async fn lose_power(&self, folder: &Path) {
        let unsynced = std::mem::take(&mut *self.0.unsynced.lock().unwrap());
        for (mut at, name) in unsynced {
            let mut path = vec![String::from_utf8(name).unwrap()];
            while at != ROOT
                && let Ok(Outcome::Place(DirName { dir, name })) =
                    self.0.dir.submit(Op::Place { node: at }, Caller::Server).await
            {
                path.push(String::from_utf8(name).unwrap());
                at = dir;
            }
            path.reverse();
            let path: std::path::PathBuf = path.iter().collect();
            if path.starts_with(".weft-streams") {
                let path = folder.join(path);
                let _ = if path.is_dir() { fs::remove_dir_all(path) } else { fs::remove_file(path) };
            }
        }
        for path in depot(folder) {
            let inode = fs::metadata(&path).unwrap().ino();
            fs::write(path, self.0.durable.lock().unwrap().get(&inode).map_or(&[][..], Vec::as_slice))
                .unwrap();
        }
    }

    fn moved(&self, mut attr: Attr) -> Attr {
        if self.0.elsewhere && attr.node != ROOT {
            attr.stable.0[20] = 1;
        }
        attr
    }
}

impl Backend for Watched {
    fn kind(&self) -> &'static str {
        "dir"
    }

    fn changes_on_the_host(&self) -> bool {
        true
    }

    fn sweep(&self, max: usize) {
        self.0.dir.sweep(max);
    }

    fn tidy(&self, now: Instant) {
        self.0.dir.tidy(now);
    }

    fn submit(&self, op: Op, by: Caller) -> LocalBoxFuture<'_, Result<Outcome, Error>> {
        if self.0.fails.lock().unwrap().as_mut().is_some_and(|fails| fails(&op)) {
            return Box::pin(std::future::ready(Err(Error::Io(std::io::Error::other(
                "as the test wants it",
            )))));
        }
        let made = match &op {
            Op::Create { dir, name, .. } => Some((*dir, name.clone())),
            _ => None,
        };
        let synced = match &op {
            Op::SyncDir { dir } => Some(*dir),
            _ => None,
        };
        let sets = matches!(op, Op::SetXattr { .. });
        Box::pin(async move {
            // The test polls it itself to continue.
            let wait = |_: &mut std::task::Context<'_>| {
                let waits = sets && self.0.waits.load(Ordering::SeqCst);
                self.0.waiting.store(waits, Ordering::SeqCst);
                if waits { Poll::Pending } else { Poll::Ready(()) }
            };
            poll_fn(wait).await;
            let outcome = self.0.dir.submit(op, by).await?;
            let mut unsynced = self.0.unsynced.lock().unwrap();
            unsynced.retain(|(dir, _)| Some(*dir) != synced);
            Ok(match outcome {
                Outcome::Created(Created { attr, is_new }) => {
                    unsynced.extend(made.filter(|_| is_new));
                    Outcome::Created(Created { attr: self.moved(attr), is_new })
                }
                Outcome::Attr(attr) => Outcome::Attr(self.moved(attr)),
                Outcome::File(file) => {
                    let synced = Synced(file.clone(), self.0.durable.clone(), self.0.flushing.clone());
                    Outcome::File(OpenFile::new(file.node, Arc::new(synced)))
                }
                Outcome::Stable(mut stable) if self.0.elsewhere => {
                    stable.0[20] = 1;
                    Outcome::Stable(stable)
                }
                other => other,
            })
        })
    }
}

#[test]
fn an_acknowledged_flush_of_a_stream_survives_a_loss_of_power() {
    // At once, or after something small.
    for first in [None, Some(&b"small"[..])] {
        let folder = tempfile::tempdir().unwrap();
        rt::block_on(async {
            let watched = Watched::open(folder.path(), false);
            let vfs = watched.vfs();
            let f = file(&vfs, ROOT, "f").await.node;
            let s = vfs.stream(f, b"s", true).await.unwrap().attr.node;
            let open = vfs.open(s, true).await.unwrap();
            if let Some(first) = first {
                open.write(0, &[Bytes::from_static(first)]).await.unwrap();
            }
            open.write(0, &[pattern(MIB).into()]).await.unwrap();
            open.sync().await.unwrap();
            watched.lose_power(folder.path()).await;
            let vfs = Vfs::from(Dir::open(folder.path()).unwrap());
            let f = vfs.lookup(ROOT, b"f", false).await.unwrap().node;
            assert_eq!(found(&vfs, f, "s").await, pattern(MIB));
        })
        .unwrap();
    }
}

/// The flush may come from another client than the write, and in another run.
#[test]
fn a_flush_makes_durable_what_an_earlier_run_has_written() {
    served(async |_, folder| {
        let watched = Watched::open(&folder, false);
        let f = file(&watched.vfs(), ROOT, "f").await.node;
        make(&watched.vfs(), f, "s", &pattern(MIB)).await;
        // The directory is one of the names of the first run.
        let vfs = watched.vfs();
        let s = vfs.stream(f, b"s", false).await.unwrap().attr.node;
        vfs.open(s, false).await.unwrap().sync().await.unwrap();
        watched.lose_power(&folder).await;
        assert_eq!(depot(&folder).len(), 1);
        // Once is enough.
        watched.fail(|op| matches!(op, Op::SyncDir { .. }));
        vfs.open(s, false).await.unwrap().sync().await.unwrap();
    });
}

/// A large stream with two opens, each of which has written.
async fn written_twice(vfs: &Vfs) -> (NodeId, [OpenFile; 2]) {
    let f = file(vfs, ROOT, "f").await.node;
    make(vfs, f, "s", &pattern(MIB)).await;
    let s = vfs.stream(f, b"s", false).await.unwrap().attr.node;
    let opens = [vfs.open(s, true).await.unwrap(), vfs.open(s, true).await.unwrap()];
    opens[0].write(0, &[Bytes::from_static(b"one")]).await.unwrap();
    opens[1].write(4096, &[Bytes::from_static(b"other")]).await.unwrap();
    (s, opens)
}

/// They share a descriptor, of which the kernel reports a failure once.
#[test]
fn each_open_of_a_stream_is_told_once_about_a_failed_flush() {
    served(async |_, folder| {
        let watched = Watched::open(&folder, false);
        let vfs = watched.vfs();
        let (s, [one, other]) = written_twice(&vfs).await;
        watched.0.flushing.loses.store(true, Ordering::SeqCst);
        refused!(one.sync().await, Error::Io(_));
        let failures = vfs.failed_flushes();
        refused!(other.sync().await, Error::Io(_));
        assert!(0 < failures && failures < vfs.failed_flushes());
        // Who opens it afterwards has lost nothing.
        let later = vfs.open(s, true).await.unwrap();
        for open in [one, other, later] {
            open.sync().await.unwrap();
        }
    });
}

#[test]
fn a_flush_of_a_stream_that_fails_late_is_not_overtaken_by_one_of_another_open() {
    served(async |_, folder| {
        let watched = Watched::open(&folder, false);
        let vfs = watched.vfs();
        let (_, [one, other]) = written_twice(&vfs).await;
        let flushing = &watched.0.flushing;
        let before = flushing.begun.load(Ordering::SeqCst);
        let begun = || flushing.begun.load(Ordering::SeqCst) - before;
        flushing.loses.store(true, Ordering::SeqCst);
        flushing.goes_on.store(true, Ordering::SeqCst);
        let (mut first, mut second) = (Box::pin(one.sync()), Box::pin(other.sync()));
        while begun() == 0 {
            assert!(poll!(&mut first).is_pending());
            rt::yield_now().await;
        }
        for _ in 0..100 {
            assert!(poll!(&mut second).is_pending());
            rt::yield_now().await;
        }
        assert_eq!(begun(), 1);
        flushing.goes_on.store(false, Ordering::SeqCst);
        let (first, second) = join(first, second).await;
        refused!(first, Error::Io(_));
        refused!(second, Error::Io(_));
    });
}

/// An open that was not there is not told, so a COMMIT by it must return another verifier than the lost WRITEs.
#[test]
fn a_failed_flush_of_a_stream_is_counted_before_another_one_begins() {
    served(async |_, folder| {
        let watched = Watched::open(&folder, false);
        let vfs = watched.vfs();
        let (s, [one, _other]) = written_twice(&vfs).await;
        let flushing = &watched.0.flushing;
        flushing.loses.store(true, Ordering::SeqCst);
        flushing.is_unanswered.store(true, Ordering::SeqCst);
        let mut first = Box::pin(one.sync());
        while flushing.loses.load(Ordering::SeqCst) {
            assert!(poll!(&mut first).is_pending());
            rt::yield_now().await;
        }
        let later = vfs.open(s, true).await.unwrap();
        later.sync().await.unwrap();
        assert_eq!(vfs.failed_flushes(), 1);
        flushing.is_unanswered.store(false, Ordering::SeqCst);
        refused!(first.await, Error::Io(_));
    });
}

#[test]
fn a_stream_that_was_flushed_is_there_after_a_loss_of_power_while_it_grew() {
    for first in [&b""[..], b"small"] {
        served(async |_, folder| {
            let watched = Watched::open(&folder, false);
            let vfs = watched.vfs();
            let f = file(&vfs, ROOT, "f").await.node;
            let s = vfs.stream(f, b"s", true).await.unwrap().attr.node;
            let open = vfs.open(s, true).await.unwrap();
            open.write(0, &[Bytes::from_static(first)]).await.unwrap();
            open.sync().await.unwrap();
            open.write(first.len() as u64, &[pattern(MIB).into()]).await.unwrap();
            watched.lose_power(&folder).await;
            let vfs = Vfs::from(Dir::open(&folder).unwrap());
            let f = vfs.lookup(ROOT, b"f", false).await.unwrap().node;
            assert_eq!(found(&vfs, f, "s").await, first);
        });
    }
}

/// Flushed data exists under its name, or under the name that replaced it.
#[test]
fn a_rename_over_a_stream_that_was_flushed_loses_nothing_with_the_power() {
    // Made large at once, grown from something small, and empty at first.
    for (first, then) in [(None, true), (Some(&b"small"[..]), true), (None, false)] {
        served(async |_, folder| {
            let watched = Watched::open(&folder, false);
            let vfs = watched.vfs();
            let f = file(&vfs, ROOT, "f").await.node;
            let b = make(&vfs, f, "b", &pattern(100_000)).await;
            vfs.open(b, true).await.unwrap().sync().await.unwrap();
            let a = make(&vfs, f, "a", first.unwrap_or_default()).await;
            if then {
                put(&vfs, a, 0, &pattern(MIB)).await.unwrap();
            }
            vfs.rename_stream(a, b"b", true).await.unwrap();
            if !then {
                // The name was guaranteed, so it exists at least.
                put(&vfs, a, 0, &pattern(MIB)).await.unwrap();
            }
            watched.lose_power(&folder).await;
            let vfs = Vfs::from(Dir::open(&folder).unwrap());
            let f = vfs.lookup(ROOT, b"f", false).await.unwrap().node;
            assert_eq!(found(&vfs, f, "b").await, if then { pattern(MIB) } else { Vec::new() });
        });
    }
}

#[test]
fn a_stream_that_moves_out_again_makes_its_new_names_durable() {
    served(async |_, folder| {
        let watched = Watched::open(&folder, false);
        let vfs = watched.vfs();
        let f = file(&vfs, ROOT, "f").await.node;
        let s = make(&vfs, f, "s", &pattern(MIB)).await;
        vfs.open(s, true).await.unwrap().sync().await.unwrap();
        // Another program puts other bytes into its attribute.
        let (path, attribute) = (folder.join("f"), "user.weft.stream.s");
        rustix::fs::setxattr(path, attribute, b"small", rustix::fs::XattrFlags::empty()).unwrap();
        let open = vfs.open(s, true).await.unwrap();
        open.write(0, &[pattern(100_000).into()]).await.unwrap();
        open.sync().await.unwrap();
        watched.lose_power(&folder).await;
        let vfs = Vfs::from(Dir::open(&folder).unwrap());
        let f = vfs.lookup(ROOT, b"f", false).await.unwrap().node;
        assert_eq!(found(&vfs, f, "s").await, pattern(100_000));
    });
}

#[test]
fn no_flush_is_answered_before_the_move_that_it_finds() {
    served(async |_, folder| {
        let watched = Watched::open(&folder, false);
        let vfs = watched.vfs();
        let (f, g) = (file(&vfs, ROOT, "f").await.node, file(&vfs, ROOT, "g").await.node);
        let s = vfs.stream(f, b"s", true).await.unwrap().attr.node;
        let (open, other) = (vfs.open(s, true).await.unwrap(), vfs.open(g, true).await.unwrap());
        watched.0.waits.store(true, Ordering::SeqCst);
        let bytes = [pattern(MIB).into()];
        let mut write = Box::pin(open.write(0, &bytes));
        poll_fn(|cx| {
            assert!(write.as_mut().poll(cx).is_pending());
            if watched.0.waiting.load(Ordering::SeqCst) { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
        let mut flushes = [Box::pin(open.sync()), Box::pin(open.sync())];
        for _ in 0..20 {
            poll_fn(|cx| {
                for flush in &mut flushes {
                    assert!(flush.as_mut().poll(cx).is_pending());
                }
                Poll::Ready(())
            })
            .await;
            // A task that does not wait for the move is finished within this many polls.
            other.sync().await.unwrap();
        }
        watched.0.waits.store(false, Ordering::SeqCst);
        write.await.unwrap();
        for flush in flushes {
            flush.await.unwrap();
        }
        watched.lose_power(&folder).await;
        let vfs = Vfs::from(Dir::open(&folder).unwrap());
        let f = vfs.lookup(ROOT, b"f", false).await.unwrap().node;
        assert_eq!(found(&vfs, f, "s").await, pattern(MIB));
    });
}

/// Others read while the change is undone.
#[test]
fn a_change_that_is_taken_back_never_leaves_a_stream_empty() {
    served(async |_, folder| {
        let watched = Watched::open(&folder, false);
        let vfs = watched.vfs();
        let f = file(&vfs, ROOT, "f").await.node;
        let s = make(&vfs, f, "s", b"small").await;
        let open = vfs.open(s, true).await.unwrap();
        watched.fail(|op| matches!(op, Op::SetXattr { .. }));
        let done = Arc::new(AtomicBool::new(false));
        let (reader, until) = (vfs.open(s, false).await.unwrap(), done.clone());
        let reads = std::thread::spawn(move || {
            let mut shortest = u64::MAX;
            while !until.load(Ordering::SeqCst) {
                shortest = shortest.min(reader.len().now_or_never().unwrap().unwrap());
            }
            shortest
        });
        for _ in 0..5000 {
            refused!(open.write(0, &[Bytes::from_static(b"a longer one")]).await, Error::Io(_));
        }
        done.store(true, Ordering::SeqCst);
        assert!(reads.join().unwrap() >= 5);
        assert_eq!(read(&open, 0, 100).await, b"small");
    });
}

#[test]
fn a_directory_that_cannot_be_synced_fails_the_flush_until_it_can() {
    served(async |_, folder| {
        let watched = Watched::open(&folder, false);
        let vfs = watched.vfs();
        let f = file(&vfs, ROOT, "f").await.node;
        let s = make(&vfs, f, "s", &pattern(MIB)).await;
        let open = vfs.open(s, true).await.unwrap();
        watched.fail(|op| matches!(op, Op::SyncDir { .. }));
        for _ in 0..2 {
            refused!(open.sync().await, Error::Io(_));
        }
        watched.mend();
        open.sync().await.unwrap();
        watched.lose_power(&folder).await;
        assert_eq!(depot(&folder).len(), 1);
    });
}

/// The folder of the first attempt is removed, and the second one is different.
#[test]
fn a_move_that_failed_makes_nothing_durable_for_the_next() {
    served(async |_, folder| {
        let watched = Watched::open(&folder, false);
        let vfs = watched.vfs();
        let f = file(&vfs, ROOT, "f").await.node;
        let s = make(&vfs, f, "s", b"small").await;
        let open = vfs.open(s, true).await.unwrap();
        watched.fail(|op| matches!(op, Op::SetXattr { .. }));
        refused!(open.write(0, &[pattern(MIB).into()]).await, Error::Io(_));
        assert_eq!(read(&open, 0, 10).await, b"small");
        watched.mend();
        assert!(depot(&folder).is_empty());
        open.write(0, &[pattern(MIB).into()]).await.unwrap();
        open.sync().await.unwrap();
        watched.lose_power(&folder).await;
        assert_eq!(depot(&folder).len(), 1);
    });
}

#[test]
fn a_name_that_is_used_again_gets_another_file() {
    served(async |_, folder| {
        let watched = Watched::open(&folder, false);
        let vfs = watched.vfs();
        let f = file(&vfs, ROOT, "f").await.node;
        let s = make(&vfs, f, "s", &pattern(MIB)).await;
        let (open, first) = (vfs.open(s, true).await.unwrap(), depot(&folder));
        // The name is removed, and its file stays, as after a crash.
        watched.fail(|op| matches!(op, Op::Remove { .. }));
        vfs.remove_stream(f, b"s").await.unwrap();
        watched.mend();
        assert_eq!(depot(&folder), first);
        make(&vfs, f, "s", &pattern(100_000)).await;
        assert_eq!(depot(&folder).len(), 2);
        assert_eq!(read(&open, 0, MIB).await, pattern(MIB));
        open.write(0, &[Bytes::from_static(b"the old one's")]).await.unwrap();
        assert_eq!(found(&vfs, f, "s").await, pattern(100_000));
        // After a rename, another stream takes its old name.
        let s = vfs.stream(f, b"s", false).await.unwrap().attr.node;
        vfs.rename_stream(s, b"t", false).await.unwrap();
        make(&vfs, f, "s", &pattern(70_000)).await;
        assert_eq!(found(&vfs, f, "t").await, pattern(100_000));
        vfs.remove_stream(f, b"t").await.unwrap();
        assert_eq!(found(&vfs, f, "s").await, pattern(70_000));
        // Files without a reference are removed after two checks, whether or not their file is cached.
        let now = Instant::now();
        vfs.sweep(now);
        vfs.sweep(now + Duration::from_secs(3599));
        assert_eq!(depot(&folder).len(), 2);
        vfs.sweep(now + Duration::from_secs(3600));
        assert_eq!(depot(&folder).len(), 1);
        let left = depot(&folder).remove(0).with_file_name("0123456789abcdef");
        fs::write(&left, b"left").unwrap();
        let vfs = Vfs::from(Dir::open(&folder).unwrap());
        vfs.sweep(now);
        assert!(left.exists());
        vfs.sweep(now + Duration::from_secs(3600));
        assert!(!left.exists());
        let f = vfs.lookup(ROOT, b"f", false).await.unwrap().node;
        assert_eq!(found(&vfs, f, "s").await, pattern(70_000));
    });
}

/// A file on the host that has the stream attributes of `of`, like a copy.
fn copied(of: &Path, to: &Path) {
    let mut value = [0; 16];
    assert_eq!(rustix::fs::getxattr(of, "user.weft.stream.s", &mut value[..]).unwrap(), value.len());
    rustix::fs::setxattr(to, "user.weft.stream.s", &value, rustix::fs::XattrFlags::empty()).unwrap();
}

#[test]
fn another_file_with_the_inode_of_a_deleted_one_sees_none_of_its_streams() {
    served(async |vfs, folder| {
        let at = |name: &str| folder.join(name);
        let (f, h) = (file(&vfs, ROOT, "f").await, file(&vfs, ROOT, "h").await);
        make(&vfs, f.node, "s", &pattern(MIB)).await;
        let of_f = depot(&folder).remove(0).parent().unwrap().to_owned();
        make(&vfs, h.node, "s", &pattern(70_000)).await;
        let (inode, born) = (fs::metadata(at("f")).unwrap().ino(), fs::metadata(at("f")).unwrap().created());
        let mut value = [0; 16];
        rustix::fs::getxattr(at("f"), "user.weft.stream.s", &mut value[..]).unwrap();
        drop(vfs);
        fs::remove_file(at("f")).unwrap();
        // Created in another tick of the clock, with the very attribute of the old one. Not every file system reuses
        // inodes.
        let again = (0..100_000).find(|_| {
            let _ = fs::remove_file(at("g"));
            fs::write(at("g"), b"").unwrap();
            let g = fs::metadata(at("g")).unwrap();
            g.ino() != inode || (born.is_ok() && g.created().unwrap() != *born.as_ref().unwrap())
        });
        assert!(again.is_some() || born.is_err());
        if again.is_some() && fs::metadata(at("g")).unwrap().ino() == inode {
            println!("the inode was used again");
            rustix::fs::setxattr(at("g"), "user.weft.stream.s", &value, rustix::fs::XattrFlags::empty())
                .unwrap();
            let vfs = Vfs::from(Dir::open(&folder).unwrap());
            let g = vfs.lookup(ROOT, b"g", false).await.unwrap();
            assert_eq!((g.fileid, g.stable == f.stable), (f.fileid, false));
            assert!(vfs.streams(g.node).await.unwrap().is_empty());
            refused!(vfs.stream(g.node, b"s", false).await, Error::NotFound);
        }
        // And on a file system without birth times: the same identity.
        copied(&at("h"), &at("g"));
        let vfs = Vfs::from(Dir::open(&folder).unwrap());
        let g = vfs.lookup(ROOT, b"g", false).await.unwrap();
        let of_g = of_f.with_file_name(String::from_utf8(depot::folder_of(&g.stable)).unwrap());
        fs::rename(&of_f, &of_g).unwrap();
        assert!(vfs.streams(g.node).await.unwrap().is_empty());
        refused!(vfs.stream(g.node, b"s", false).await, Error::NotFound);
        make(&vfs, g.node, "s", &pattern(80_000)).await;
        assert_eq!(found(&vfs, g.node, "s").await, pattern(80_000));
        assert_eq!(fs::read_dir(&of_g).unwrap().count(), 2);
        vfs.sweep(Instant::now());
        vfs.sweep(Instant::now() + Duration::from_secs(3601));
        assert_eq!(fs::read_dir(&of_g).unwrap().count(), 1);
        assert_eq!(found(&vfs, g.node, "s").await, pattern(80_000));
    });
}

/// If attributes work, having none decides like any others.
#[test]
fn files_of_an_owner_without_attributes_go_after_two_looks() {
    served(async |vfs, folder| {
        for base in [file(&vfs, ROOT, "f").await.node, dir(&vfs, ROOT, "d").await.node] {
            make(&vfs, base, "s", &pattern(MIB)).await;
        }
        for name in ["f", "d"] {
            rustix::fs::removexattr(folder.join(name), "user.weft.stream.s").unwrap();
        }
        vfs.sweep(Instant::now());
        assert_eq!(depot(&folder).len(), 2);
        vfs.sweep(Instant::now() + Duration::from_secs(3601));
        assert!(depot(&folder).is_empty());
    });
}

#[test]
fn a_stream_that_a_program_took_away_is_not_the_next_of_its_name() {
    served(async |vfs, folder| {
        let f = file(&vfs, ROOT, "f").await.node;
        for bytes in [pattern(MIB), b"small".to_vec()] {
            let s = make(&vfs, f, "s", &bytes).await;
            let open = vfs.open(s, true).await.unwrap();
            rustix::fs::removexattr(folder.join("f"), "user.weft.stream.s").unwrap();
            refused!(vfs.stream(f, b"S", false).await, Error::NotFound);
            let Created { attr: next, is_new: made } = vfs.stream(f, b"s", true).await.unwrap();
            assert!(made && next.node != s && next.size == 0);
            open.write(0, &[Bytes::from_static(b"old")]).await.unwrap();
            assert_eq!(found(&vfs, f, "s").await, b"");
            assert_eq!(read(&open, 0, MIB).await, [b"old", &bytes[3..]].concat());
            vfs.remove_stream(f, b"s").await.unwrap();
        }
    });
}

#[test]
fn files_on_another_device_have_no_large_streams_and_lose_no_small_ones() {
    served(async |_, folder| {
        let vfs = Watched::open(&folder, true).vfs();
        let f = file(&vfs, ROOT, "f").await.node;
        let s = make(&vfs, f, "s", b"small").await;
        let open = vfs.open(s, true).await.unwrap();
        refused!(open.write(0, &[pattern(MIB).into()]).await, Error::NoSpace);
        refused!(vfs.setattr(s, SetAttr { size: Some(1 << 20), ..SetAttr::default() }).await, Error::NoSpace);
        // As much as the file system has room for among the attributes.
        let mut kept = b"small".to_vec();
        for len in (1000..60_000).step_by(1000) {
            match open.write(0, &[pattern(len).into()]).await {
                Ok(()) => kept = pattern(len),
                Err(Error::NoSpace) => {
                    assert_eq!(read(&open, 0, MIB).await, kept, "what was refused is not seen");
                    break;
                }
                Err(e) => panic!("{e}"),
            }
        }
        open.write(0, &[Bytes::from_static(b"S")]).await.unwrap();
        kept[0] = b'S';
        drop(open);
        assert_eq!(found(&vfs, f, "s").await, kept);
        assert!(!folder.join(".weft-streams").exists());
        // A rename has two of it for a while.
        vfs.setattr(s, SetAttr { size: Some(500), ..SetAttr::default() }).await.unwrap();
        vfs.rename_stream(s, b"t", false).await.unwrap();
        vfs.remove_stream(f, b"t").await.unwrap();
        vfs.remove(ROOT, b"f").await.unwrap();
    });
}

/// An earlier version stored them there.
#[test]
fn what_leads_to_a_large_stream_on_another_device_is_not_replaced() {
    served(async |_, folder| {
        let vfs = Watched::open(&folder, true).vfs();
        let f = file(&vfs, ROOT, "f").await.node;
        let (path, attribute) = (folder.join("f"), "user.weft.stream.s");
        let leads = [&b"\x89WEFT\r\n\x1a"[..], &7_u64.to_le_bytes()].concat();
        rustix::fs::setxattr(&path, attribute, &leads, rustix::fs::XattrFlags::empty()).unwrap();
        refused!(vfs.stream(f, b"S", true).await, Error::NoSpace);
        refused!(vfs.stream(f, b"s", false).await, Error::NotFound);
        let t = make(&vfs, f, "t", b"small").await;
        refused!(vfs.rename_stream(t, b"s", true).await, Error::NoSpace);
        assert_eq!(listed(&vfs.streams(f).await.unwrap()), [("t", 5)]);
        let mut value = [0; 16];
        assert_eq!(rustix::fs::getxattr(&path, attribute, &mut value[..]).unwrap(), 16);
        assert_eq!(value[..], leads);
    });
}

/// Every change of an attribute fails once, or is the last before a crash.
#[test]
fn a_rename_that_fails_loses_neither_stream() {
    let large = [pattern(MIB), pattern(100_000)];
    let small = [b"A".to_vec(), b"B".to_vec()];
    for ([a, b], to, step, crash) in [&large, &small]
        .into_iter()
        .flat_map(|bytes| ["b", "B"].into_iter().map(move |to| (bytes, to)))
        .flat_map(|(bytes, to)| (0..6).map(move |step| (bytes, to, step)))
        .flat_map(|(bytes, to, step)| [false, true].map(|crash| (bytes, to, step, crash)))
    {
        served(async |_, folder| {
            let what = format!("to {to}, step {step}, crash {crash}, {} bytes", a.len());
            let watched = Watched::open(&folder, false);
            let vfs = watched.vfs();
            let f = file(&vfs, ROOT, "f").await.node;
            let s = make(&vfs, f, "a", a).await;
            make(&vfs, f, "b", b).await;
            let mut left = step;
            watched.fail(move |op| {
                if !matches!(op, Op::SetXattr { .. } | Op::RemoveXattr { .. } | Op::Remove { .. }) {
                    return false;
                }
                left -= 1;
                left == -1 || (crash && left < 0)
            });
            let renamed = vfs.rename_stream(s, to.as_bytes(), true).await;
            watched.mend();
            let of = if crash { Vfs::from(Dir::open(&folder).unwrap()) } else { vfs };
            let f = of.lookup(ROOT, b"f", false).await.unwrap().node;
            let streams = of.streams(f).await.unwrap();
            let mut names: Vec<_> =
                listed(&streams).into_iter().map(|(name, _)| name.to_lowercase()).collect();
            if crash {
                // The crash may have come in the middle of a change of spelling.
                names.sort();
                names.dedup();
            }
            match renamed {
                Ok(()) => {
                    assert_eq!(names, ["b"], "{what}");
                    assert_eq!(found(&of, f, "b").await, *a, "{what}");
                }
                // Both exist, one of them possibly under two names.
                Err(_) if crash => {
                    assert!(
                        names.contains(&"a".to_owned()) && names.contains(&"b".to_owned()),
                        "{what}: {names:?}"
                    );
                    assert_eq!(found(&of, f, "a").await, *a, "{what}");
                    let now = found(&of, f, "b").await;
                    assert!(now == *a || now == *b, "{what}");
                }
                Err(_) => {
                    assert_eq!(names, ["a", "b"], "{what}");
                    assert_eq!(
                        (found(&of, f, "a").await, found(&of, f, "b").await),
                        (a.clone(), b.clone()),
                        "{what}"
                    );
                }
            }
        });
    }
}

#[test]
fn what_is_replaced_by_a_rename_is_gone_and_what_was_renamed_is_written_on() {
    each(async |vfs| {
        let f = file(&vfs, ROOT, "f").await.node;
        let (a, b) = (make(&vfs, f, "a", &pattern(MIB)).await, make(&vfs, f, "Bee", &pattern(100_000)).await);
        let (one, two) = (vfs.open(a, true).await.unwrap(), vfs.open(b, true).await.unwrap());
        refused!(vfs.rename_stream(a, b"bEE", false).await, Error::Exists);
        vfs.rename_stream(a, b"bEE", true).await.unwrap();
        assert_eq!(listed(&vfs.streams(f).await.unwrap()), [("bEE", MIB as u64)]);
        one.write(0, &[Bytes::from_static(b"one")]).await.unwrap();
        two.write(0, &[Bytes::from_static(b"two")]).await.unwrap();
        assert_eq!(read(&two, 0, MIB).await, [b"two", &pattern(100_000)[3..]].concat());
        assert_eq!(found(&vfs, f, "bee").await, [b"one", &pattern(MIB)[3..]].concat());
        // To itself, and to another case.
        vfs.rename_stream(a, b"bEE", true).await.unwrap();
        vfs.rename_stream(a, b"BEE", true).await.unwrap();
        assert_eq!(listed(&vfs.streams(f).await.unwrap()), [("BEE", MIB as u64)]);
        refused!(vfs.rename_stream(b, b"c", false).await, Error::Stale);
        vfs.remove_stream(f, b"Bee").await.unwrap();
        refused!(vfs.remove_stream(f, b"Bee").await, Error::NotFound);
    });
}

/// The name has been removed by then, and neither the remover nor watches may be told otherwise.
#[test]
fn a_name_that_is_gone_is_gone_although_its_file_cannot_be_asked_afterwards() {
    served(async |_, folder| {
        let watched = Watched::open(&folder, false);
        let vfs = watched.vfs();
        let d = dir(&vfs, ROOT, "d").await.node;
        for name in ["f", "g"] {
            let node = file(&vfs, d, name).await.node;
            make(&vfs, node, "s", &pattern(MIB)).await;
        }
        let over = file(&vfs, d, "over").await.node;
        let watch = vfs.watch(d, false, What::FILE_NAME, room()).await.unwrap();
        let fails_after_it = || {
            let mut done = false;
            watched.fail(move |op| {
                done |= matches!(op, Op::Remove { .. } | Op::Rename { .. });
                done && matches!(op, Op::Getattr { .. })
            });
        };
        fails_after_it();
        vfs.remove(d, b"f").await.unwrap();
        fails_after_it();
        vfs.rename(at(d, b"over"), at(d, b"g"), true).await.unwrap();
        watched.mend();
        let told: Vec<_> = watch.next().await.changes.into_iter().map(|change| change.action).collect();
        assert_eq!(told, [Action::Removed, Action::Removed, Action::RenamedFrom, Action::RenamedTo]);
        assert_eq!(vfs.lookup(d, b"g", false).await.unwrap().node, over);
        // The periodic check finds its streams.
        assert!(!depot(&folder).is_empty());
    });
}

/// A cached descriptor would keep the space of a whole stream allocated.
#[test]
fn a_file_that_is_deleted_gives_the_space_of_its_streams_back() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().canonicalize().unwrap();
    let vfs = Vfs::from(Dir::open(&path).unwrap());
    rt::block_on(async {
        let now = Instant::now();
        for by in ["the server", "a program", "a program that nobody saw"] {
            let f = file(&vfs, ROOT, "f").await.node;
            for name in ["a", "b", "c"] {
                let s = make(&vfs, f, name, &pattern(MIB)).await;
                assert_eq!(contents(&vfs, s).await, pattern(MIB));
                vfs.setattr(s, SetAttr { size: Some(3 * MIB as u64), ..SetAttr::default() }).await.unwrap();
            }
            assert_eq!(depot(&path).len(), 3);
            match by {
                "the server" => vfs.remove(ROOT, b"f").await.unwrap(),
                "a program" => {
                    fs::remove_file(path.join("f")).unwrap();
                    vfs.sweep(now);
                }
                _ => {
                    fs::remove_file(path.join("f")).unwrap();
                    // The other server does not know the file; its own sweep finds its descriptors.
                    let other = Vfs::from(Dir::open(&path).unwrap());
                    other.sweep(now);
                    assert_eq!(depot(&path).len(), 3);
                    other.sweep(now + Duration::from_secs(3600));
                    assert!(depot(&path).is_empty());
                    vfs.sweep(now + Duration::from_secs(3600));
                }
            }
            assert!(depot(&path).is_empty(), "{by}");
            assert_eq!(nameless(&path), 0, "{by}");
        }
    })
    .unwrap();
}
