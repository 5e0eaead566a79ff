//! What a server promises, in either version, when the disk fails.

use std::collections::BTreeSet;
use std::pin::pin;
use std::sync::Mutex;

use futures_util::future::{LocalBoxFuture, join, poll_immediate};
use futures_util::lock::Mutex as Queue;
use weft_machine::rt;
use weft_store::{Backend, Created, Done, Error, Object, ObjectOp, OpenFile, Outcome, Submission};
use weft_wire::nfs3;
use weft_wire::nfs3::procedure;

use super::*;
use crate::server::file_id::FileId;
use crate::server::tests::{handle_of, replies_in_parts, results_for, status_of};

/// A disk for which a test knows what a power loss would destroy. It wraps an in-memory file system.
#[derive(Clone)]
pub struct Disk(Arc<DiskState>);

struct DiskState {
    ram: Ram,
    /// The next flush of a file fails, once, as the kernel reports it.
    lost: Mutex<bool>,
    /// Files that were flushed.
    flushed: Mutex<Vec<NodeId>>,
    /// Files whose attributes, and directories whose names, have changed since their last flush.
    unsettled: Mutex<BTreeSet<NodeId>>,
    /// Number of flushes of any kind, and whether they fail.
    flushes: Mutex<(usize, bool)>,
    /// While this is held, flushes of directories do not finish.
    slow: Queue<()>,
}

#[derive(Debug)]
struct Written(OpenFile, Disk);

impl std::fmt::Debug for Disk {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Disk")
    }
}

fn failed() -> Error {
    Error::Io(std::io::Error::from_raw_os_error(5))
}

impl Disk {
    pub fn new() -> Disk {
        Disk(Arc::new(DiskState {
            ram: Ram::new(16 << 20),
            lost: Mutex::default(),
            flushed: Mutex::default(),
            unsettled: Mutex::default(),
            flushes: Mutex::default(),
            slow: Queue::default(),
        }))
    }

    /// A server on this disk.
    pub fn serve(&self, limits: Limits) -> Arc<Server> {
        self.serve_as(limits, false)
    }

    fn serve_as(&self, limits: Limits, asynchronous: bool) -> Arc<Server> {
        let mut share = Share::new("ram", Vfs::new(self.clone()));
        share.rules.nfs.asynchronous = asynchronous;
        let shares = vec![share];
        let policy = Policy { decides: false, squash_root: true };
        Server::new(Config { shares, pool: weft_machine::Pool::new(16 << 20), limits, policy, durable: None })
    }
}

impl Disk {
    /// `None` is everything.
    fn flush(&self, node: Option<NodeId>) -> Result<(), Error> {
        let (count, fails) = &mut *self.0.flushes.lock().unwrap();
        *count += 1;
        if *fails {
            return Err(failed());
        }
        self.0.unsettled.lock().unwrap().retain(|known| node.is_some_and(|node| node != *known));
        Ok(())
    }

    /// The number of flushes since the last call. Asserts that a power loss would destroy nothing that was answered.
    fn settled(&self) -> usize {
        assert_eq!(*self.0.unsettled.lock().unwrap(), BTreeSet::new());
        std::mem::take(&mut self.0.flushes.lock().unwrap().0)
    }

    /// From now on flushes fail, or no longer.
    pub fn fail(&self, fails: bool) {
        self.0.flushes.lock().unwrap().1 = fails;
    }
}

/// What a power loss destroys of an operation that has succeeded.
fn touched(op: &weft_store::Op) -> Vec<NodeId> {
    use weft_store::Op::*;
    match op {
        Setattr { node, .. } | SetXattr { node, .. } | RemoveXattr { node, .. } => vec![*node],
        Create { dir, .. } | Remove { dir, .. } | Rmdir { dir, .. } => vec![*dir],
        Link { node, dir, .. } => vec![*node, *dir],
        Rename { from, to, .. } => vec![from.dir, to.dir],
        _ => Vec::new(),
    }
}

impl Written {
    fn sync(&self) -> Result<(), Error> {
        let known = &self.1.0;
        known.flushed.lock().unwrap().push(self.0.node);
        let lost = std::mem::take(&mut *known.lost.lock().unwrap());
        if lost { Err(failed()) } else { self.1.flush(Some(self.0.node)) }
    }
}

impl Object for Written {
    fn submit<'a>(&'a self, op: ObjectOp<'a>) -> Submission<'a> {
        let ObjectOp::Sync { ended } = op else { return self.0.object().submit(op) };
        let done = self.sync();
        ended(&done);
        Submission::Now(done.map(|()| Done::Done))
    }
}

impl Backend for Disk {
    fn kind(&self) -> &'static str {
        "dir"
    }

    fn changes_on_the_host(&self) -> bool {
        true
    }

    fn submit(
        &self,
        op: weft_store::Op,
        by: weft_store::Caller,
    ) -> LocalBoxFuture<'_, Result<Outcome, Error>> {
        Box::pin(async move {
            match &op {
                weft_store::Op::SyncDir { dir } => {
                    self.flush(Some(*dir))?;
                    drop(self.0.slow.lock().await);
                }
                weft_store::Op::SyncAll { .. } => self.flush(None)?,
                _ => {}
            }
            let touched = touched(&op);
            let outcome = self.0.ram.submit(op, by).await?;
            let mut unsettled = self.0.unsettled.lock().unwrap();
            unsettled.extend(touched);
            Ok(match outcome {
                Outcome::Created(Created { attr, is_new }) => {
                    // A link or pipe without a particular owner has nothing of its own.
                    if is_new && matches!(attr.kind, weft_store::Kind::File | weft_store::Kind::Dir) {
                        unsettled.insert(attr.node);
                    }
                    Outcome::Created(Created { attr, is_new })
                }
                Outcome::File(file) => {
                    let written = Written(file.clone(), self.clone());
                    Outcome::File(OpenFile::new(file.node, Arc::new(written)))
                }
                other => other,
            })
        })
    }
}

/// A call of version 3.
async fn ask<T: nfs3::Xdr>(server: &Server, number: u32, args: &impl nfs3::Xdr) -> T {
    results_for(server, PEER, (nfs3::PROGRAM, nfs3::VERSION, number), args).await
}

fn name(text: &str) -> nfs3::Name {
    nfs3::Name(Bytes::copy_from_slice(text.as_bytes()))
}

fn at_root(server: &Server, text: &str) -> nfs3::DirOp {
    nfs3::DirOp { dir: handle_of(server, 0, NodeId::ROOT), name: name(text) }
}

async fn make(server: &Server, object: nfs3::DirOp) -> nfs3::Handle {
    let args = nfs3::CreateArgs { object, how: nfs3::CreateHow::Guarded(nfs3::SetAttributes::default()) };
    let made: nfs3::Outcome<nfs3::CreateOk, nfs3::WccOnly> = ask(server, procedure::CREATE, &args).await;
    made.unwrap().object.unwrap()
}

async fn write(server: &Server, file: nfs3::Handle, stable: nfs3::Stable) -> Result<Verifier, nfs3::Status> {
    let args = nfs3::WriteArgs {
        head: nfs3::WriteHead { file, offset: 0, count: 4, stable },
        data: Bytes::from_static(b"data").into(),
    };
    let done: nfs3::Outcome<nfs3::WriteOk, nfs3::WccOnly> = ask(server, procedure::WRITE, &args).await;
    done.map(|ok| ok.verifier).map_err(|failed| failed.status)
}

async fn commit(server: &Server, file: nfs3::Handle) -> Result<Verifier, nfs3::Status> {
    let args = nfs3::CommitArgs { file, offset: 0, count: 0 };
    let done: nfs3::Outcome<nfs3::CommitOk, nfs3::WccOnly> = ask(server, procedure::COMMIT, &args).await;
    done.map(|ok| ok.verifier).map_err(|failed| failed.status)
}

#[test]
fn who_was_not_told_of_a_failed_flush_writes_again() {
    // Whether the error is reported to a COMMIT or to a stable write.
    for stable in [nfs3::Stable::Unstable, nfs3::Stable::FileSync] {
        let disk = Disk::new();
        let server = disk.serve(Limits::default());
        rt::block_on(async {
            let file = make(&server, at_root(&server, "f")).await;
            let ours = write(&server, file, nfs3::Stable::Unstable).await.unwrap();
            assert_eq!(commit(&server, file).await, Ok(ours));
            let ours = write(&server, file, nfs3::Stable::Unstable).await.unwrap();
            *disk.0.lost.lock().unwrap() = true;
            let told = match stable {
                nfs3::Stable::Unstable => commit(&server, file).await,
                _ => write(&server, file, stable).await,
            };
            assert_eq!(told, Err(nfs3::Status::IO));
            let theirs = commit(&server, file).await.unwrap();
            assert_ne!(theirs, ours, "{stable:?}");
            // Data written from now on is not written twice.
            assert_eq!(write(&server, file, nfs3::Stable::Unstable).await, Ok(theirs));
            assert_eq!(commit(&server, file).await, Ok(theirs));
        })
        .unwrap();
    }
}

#[test]
fn version_4_tells_of_a_failed_flush_by_the_verifier_too() {
    let disk = Disk::new();
    let server = disk.serve(Limits::default());
    let a = Modern::new(&server, "a");
    let (file, stateid) = a.open("f", 3, 0);
    let write = || {
        let mut answer = a.run(&[Op::Putfh(file), write_op(stateid, 0, b"data")]);
        answer.ok::<()>(opnum::PUTFH);
        answer.ok::<WriteOk>(opnum::WRITE).verifier
    };
    let commit = || {
        let mut answer = a.run(&[Op::Putfh(file), Op::Commit(Commit { offset: 0, count: 0 })]);
        answer.ok::<()>(opnum::PUTFH);
        match answer.next(opnum::COMMIT) {
            Status::OK => Ok(Verifier::parse(&mut answer.d).unwrap()),
            status => Err(status),
        }
    };
    let ours = write();
    assert_eq!(commit(), Ok(ours));
    let ours = write();
    *disk.0.lost.lock().unwrap() = true;
    assert_eq!(commit(), Err(Status::IO));
    let theirs = commit().unwrap();
    assert_ne!(theirs, ours);
    assert_eq!(write(), theirs);
}

#[test]
fn a_file_that_is_closed_for_want_of_room_is_flushed_before() {
    let disk = Disk::new();
    // Each part of the cache keeps one.
    let server = disk.serve(Limits { open_files: 16, ..Limits::default() });
    rt::block_on(async {
        let file = make(&server, at_root(&server, "f")).await;
        for other in 0..16 {
            make(&server, at_root(&server, &other.to_string())).await;
        }
        let ours = write(&server, file, nfs3::Stable::Unstable).await.unwrap();
        *disk.0.lost.lock().unwrap() = true;
        disk.0.flushed.lock().unwrap().clear();
        let vfs = &server.vfs(0);
        for other in 0..16 {
            let other = vfs.lookup(NodeId::ROOT, other.to_string().as_bytes(), false).await.unwrap();
            server
                .files
                .open(vfs, FileId { share: server.share(0).key(), node: other.node }, false)
                .await
                .unwrap();
        }
        // A file that was only read is closed without a flush.
        rt::yield_now().await;
        assert_eq!(disk.0.flushed.lock().unwrap().len(), 1);
        assert_ne!(commit(&server, file).await, Ok(ours), "the disk failed meanwhile");
    })
    .unwrap();
}

/// Requests of version 3, with the names they work on and the number of flushes.
fn changes_of_3(server: &Server) -> Vec<(u32, Bytes, usize)> {
    let node = |name: &str| {
        rt::block_on(server.vfs(0).lookup(NodeId::ROOT, name.as_bytes(), false)).unwrap().unwrap().node
    };
    let (file, dir, link) = (node("file"), node("dir"), node("link"));
    let (file, dir, link) =
        (handle_of(server, 0, file), handle_of(server, 0, dir), handle_of(server, 0, link));
    let at = |text| at_root(server, text);
    let none = nfs3::SetAttributes::default;
    let set = |object, attributes| nfs3::SetattrArgs { object, attributes, guard: None };
    let bytes = |args: &dyn Fn(&mut Encoder)| {
        let mut e = Encoder::default();
        args(&mut e);
        e.into_bytes()
    };
    macro_rules! all {
        ($($procedure:ident, $args:expr, $flushes:expr;)*) => {
            vec![$((procedure::$procedure, bytes(&|e| nfs3::Xdr::emit(&$args, e)), $flushes)),*]
        };
    }
    let mode = nfs3::SetAttributes { mode: Some(0o600), ..none() };
    let size = nfs3::SetAttributes { size: Some(1), ..none() };
    let time = nfs3::SetAttributes { mtime: nfs3::SetTime::Server, ..none() };
    let create = |text, how| nfs3::CreateArgs { object: at(text), how };
    let in_dir = |text| nfs3::DirOp { dir, name: name(text) };
    let rename = |from, to| nfs3::RenameArgs { from, to };
    let target = nfs3::Path(Bytes::from_static(b"x"));
    all! {
        CREATE, create("a", nfs3::CreateHow::Unchecked(none())), 2;
        // An existing file is flushed too: its creator may have been told that the flush failed.
        CREATE, create("a", nfs3::CreateHow::Unchecked(size.clone())), 2;
        CREATE, create("b", nfs3::CreateHow::Guarded(mode.clone())), 2;
        CREATE, create("c", nfs3::CreateHow::Exclusive(*b"verifier")), 2;
        MKDIR, nfs3::MkdirArgs { object: at("d"), attributes: none() }, 2;
        SYMLINK, nfs3::SymlinkArgs { object: at("e"), attributes: none(), target: target.clone() }, 1;
        MKNOD, nfs3::MknodArgs { object: at("p"), node: nfs3::Node::Pipe(nfs3::FileType::Fifo, none()) }, 1;
        MKNOD, nfs3::MknodArgs { object: at("q"), node: nfs3::Node::Pipe(nfs3::FileType::Fifo, mode.clone()) }, 2;
        SETATTR, set(file, mode.clone()), 1;
        SETATTR, set(file, size.clone()), 1;
        SETATTR, set(file, time.clone()), 1;
        SETATTR, set(dir, mode.clone()), 1;
        SETATTR, set(link, time.clone()), 1;
        LINK, nfs3::LinkArgs { file, link: at("f") }, 2;
        RENAME, rename(at("a"), at("b")), 1;
        RENAME, rename(at("b"), in_dir("b")), 2;
        REMOVE, nfs3::RemoveArgs { object: in_dir("b") }, 1;
        RMDIR, nfs3::RemoveArgs { object: at("d") }, 1;
    }
}

/// Arguments that are already encoded.
struct Raw(Bytes);

impl nfs3::Xdr for Raw {
    fn parse(_: &mut Decoder) -> Result<Raw, weft_wire::xdr::Malformed> {
        unimplemented!()
    }

    fn emit(&self, e: &mut Encoder) {
        e.raw(&self.0);
    }
}

fn filled(disk: &Disk, server: &Server) {
    let vfs = &server.vfs(0);
    rt::block_on(async {
        use weft_store::{Exists, Make, SetAttr};
        for (name, make) in [("file", Make::File), ("dir", Make::Dir), ("link", Make::Symlink(b"x".to_vec()))]
        {
            let set = SetAttr::default();
            vfs.create(NodeId::ROOT, name.as_bytes(), make, Exists::Fail, set).await.unwrap();
        }
    })
    .unwrap();
    disk.flush(None).unwrap();
    disk.settled();
}

#[test]
fn changes_of_names_and_attributes_are_durable_when_version_3_answers() {
    let disk = Disk::new();
    let server = disk.serve(Limits::default());
    filled(&disk, &server);
    for (n, (procedure, args, flushes)) in changes_of_3(&server).into_iter().enumerate() {
        let status = status_of(&server, procedure, &Raw(args));
        assert_eq!(status, nfs3::Status::OK, "{n}: procedure {procedure}");
        assert_eq!(disk.settled(), flushes, "{n}: procedure {procedure}");
    }
}

#[test]
fn what_is_not_durable_is_not_answered_with_ok() {
    let disk = Disk::new();
    let server = disk.serve(Limits::default());
    filled(&disk, &server);
    disk.fail(true);
    for (n, (procedure, args, _)) in changes_of_3(&server).into_iter().enumerate() {
        let status = status_of(&server, procedure, &Raw(args));
        assert_eq!(status, nfs3::Status::IO, "{n}: procedure {procedure}");
    }
}

#[test]
fn an_asynchronous_export_answers_before_changes_are_durable() {
    let disk = Disk::new();
    let server = disk.serve_as(Limits::default(), true);
    filled(&disk, &server);
    for (procedure, args, _) in changes_of_3(&server) {
        assert_eq!(status_of(&server, procedure, &Raw(args)), nfs3::Status::OK);
    }
    assert_eq!(disk.0.flushes.lock().unwrap().0, 0);
    // What COMMIT promised is kept nevertheless.
    let node = rt::block_on(server.vfs(0).lookup(NodeId::ROOT, b"file", false)).unwrap().unwrap().node;
    rt::block_on(commit(&server, handle_of(&server, 0, node))).unwrap().unwrap();
    assert_eq!(disk.0.flushes.lock().unwrap().0, 1);
}

#[test]
fn changes_of_names_and_attributes_are_durable_when_version_4_answers() {
    let disk = Disk::new();
    let server = disk.serve(Limits::default());
    filled(&disk, &server);
    let a = Modern::new(&server, "a");
    let fattr = || mode(0o600);
    let at_root = |ops: &[Op], flushes| {
        let answer = a.at_root(ops);
        assert_eq!(answer.status, Status::OK, "{ops:?}");
        assert_eq!(disk.settled(), flushes, "{ops:?}");
    };
    let create = |name, kind| Op::Create(Create { kind, name: text(name), attributes: Fattr::default() });
    let open = |name, how| a.open_op(name, 3, 0, Some(how));
    at_root(&[create("d", CreateType::Other(FileType::DIR))], 2);
    at_root(&[create("l", CreateType::Link(LinkText(Bytes::from_static(b"x"))))], 1);
    at_root(&[open("f", CreateHow::Unchecked(fattr()))], 2);
    at_root(&[open("g", CreateHow::Guarded(fattr()))], 2);
    at_root(&[open("h", CreateHow::Exclusive41(*b"verifier", fattr()))], 2);
    // It gets its mode after it is opened.
    at_root(&[open("i", CreateHow::Guarded(mode(0o400)))], 3);
    let truncated = Attributes { size: Some(0), ..Attributes::default() }.fattr();
    at_root(&[open("f", CreateHow::Unchecked(truncated))], 1);
    let (file, stateid) = a.open("f", 3, 0);
    disk.settled();
    let at_file = |op: Op, flushes| {
        assert_eq!(a.status(file, op.clone()), Status::OK, "{op:?}");
        assert_eq!(disk.settled(), flushes, "{op:?}");
    };
    let size = Attributes { size: Some(9), ..Attributes::default() }.fattr();
    at_file(Op::Setattr(Setattr { stateid, attributes: size }), 1);
    at_file(Op::Setattr(Setattr { stateid, attributes: mode(0o640) }), 1);
    let value = XattrValue(Bytes::from_static(b"value"));
    at_file(Op::Setxattr(Setxattr { option: 0, name: text("x"), value }), 1);
    at_file(Op::Removexattr(text("x")), 1);
    let mut answer = a.run(&[
        Op::Putfh(file),
        Op::Openattr(true),
        a.open_op("stream", 3, 0, Some(CreateHow::Guarded(Fattr::default()))),
    ]);
    answer.ok::<()>(opnum::PUTFH);
    assert_eq!((answer.status, disk.settled()), (Status::OK, 1));
    let in_attributes = |op: Op| {
        assert_eq!(a.run(&[Op::Putfh(file), Op::Openattr(true), op.clone()]).status, Status::OK, "{op:?}");
        assert_eq!(disk.settled(), 1, "{op:?}");
    };
    in_attributes(Op::Remove(text("stream")));
    let link = [Op::Putfh(file), Op::Savefh, Op::Putfh(root(&server)), Op::Link(text("f2"))];
    assert_eq!((a.run(&link).status, disk.settled()), (Status::OK, 2));
    at_root(&[Op::Savefh, Op::Rename(Rename { from: text("f"), to: text("g") })], 1);
    at_root(&[Op::Savefh, Op::Lookup(text("d")), Op::Rename(Rename { from: text("g"), to: text("g") })], 2);
    at_root(&[Op::Remove(text("h"))], 1);
    at_root(&[Op::Remove(text("l"))], 1);
    // The operation whose flush fails ends the compound.
    disk.fail(true);
    let mut answer = a.at_root(&[Op::Remove(text("i")), Op::Getfh]);
    assert_eq!((answer.status, answer.next(opnum::REMOVE)), (Status::IO, Status::IO));
    let made = a.at_root(&[open("k", CreateHow::Guarded(fattr()))]);
    assert_eq!(made.status, Status::IO);
}

/// A client whose connection breaks meanwhile repeats the request on another one. The first request continues.
#[test]
fn a_change_that_is_asked_for_again_while_it_is_flushed_is_carried_out_once() {
    let disk = Disk::new();
    let server = disk.serve(Limits::default());
    filled(&disk, &server);
    let root = Op::Putfh(root(&server));
    let create =
        Create { kind: CreateType::Other(FileType::DIR), name: text("new"), attributes: Fattr::default() };
    let changes = [
        vec![Op::Rename(Rename { from: text("file"), to: text("moved") })],
        vec![Op::Lookup(text("moved")), Op::Savefh, root.clone(), Op::Link(text("link to it"))],
        vec![Op::Remove(text("moved"))],
        vec![Op::Create(create)],
    ];
    for (xid, change) in (1_u32 << 31..).zip(changes) {
        let message = numbered_call(xid, 0, 1, &[vec![root.clone(), Op::Savefh], change.clone()].concat());
        let ask = async |peer| {
            let (reply, mut d) =
                replies_in_parts(&server, peer, None, std::slice::from_ref(&message)).await.remove(0);
            assert_eq!(reply, Reply::Success);
            let status = ReplyHead::parse(&mut d).unwrap().status;
            (status, Bytes::copy_from_slice(d.peek(usize::MAX)))
        };
        disk.settled();
        let (first, again) = rt::block_on(async {
            let slow = disk.0.slow.lock().await;
            let mut first = pin!(ask(PEER));
            while disk.0.flushes.lock().unwrap().0 == 0 {
                assert_eq!(poll_immediate(&mut first).await, None, "{change:?}");
                rt::yield_now().await;
            }
            let mut again = pin!(ask("192.0.2.1:701"));
            for _ in 0..16 {
                assert_eq!(poll_immediate(&mut again).await, None, "{change:?}");
                rt::yield_now().await;
            }
            drop(slow);
            join(first, again).await
        })
        .unwrap();
        assert_eq!(first.0, Status::OK, "{change:?}");
        assert_eq!(first, again, "{change:?}");
    }
}
