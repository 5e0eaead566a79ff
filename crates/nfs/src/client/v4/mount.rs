//! A mounted export of version 4.1: paths and directories.
//!
//! See RFC 8881 7.7 (one tree of all exports), 18.4, 18.13, 18.23, 18.25, 18.26 and 18.30. Symbolic links are not
//! followed; a path is walked name by name below the root, most of it in one compound.

use std::future::poll_fn;
use std::rc::Rc;
use std::task::Poll;
use std::time::Duration;

use bytes::Bytes;
use weft_machine::{random, rt};
use weft_transport::{Channel, Traffic};
use weft_wire::nfs4::{
    Acl, Attributes as Values, Bitmap, Create, CreateHow, CreateType, Fattr, FileType, Handle, LinkText, Op,
    Readdir, ReaddirOk, Rename, Setattr, Stateid, Status, Text, Verifier, attr, opnum, share,
};
use weft_wire::xdr::Malformed;

use super::attributes::{WANTED, changes, shown};
use super::compound::Results;
use super::opened::{Opened, Sharing, skip};
use super::security;
use super::session::{Client, Keep, NFS, part};
use super::walk::{PendingWalk, names};
use crate::client::connections::{Connections, Dial};
use crate::client::listing::Listed;
use crate::client::rpc::{Cargo, Rpc};
use crate::client::{Attributes, Entry, Error, File, Offered, Options, SetAttributes};

/// Most bytes of a directory requested at once.
const MAX_LISTING_BYTES: u32 = 64 << 10;
/// RPC header and SEQUENCE around a listing or a link's target.
const AROUND_BYTES: usize = 512;
/// Longest target of a link.
const MAX_TARGET: usize = 4096;
/// The lease time assumed for a server that reports none; most use it.
const LEASE: Duration = Duration::from_secs(60);

/// The longest ACL for which we make room: some 1,000 entries.
const MAX_ACL_BYTES: usize = 64 << 10;

/// What a file carries beside the attributes that a copy gives to another file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Extras {
    /// The ACL (RFC 8881 6.2.1), also where it says no more than the mode; `None` if the server shows none.
    pub acl: Option<Acl>,
    /// Whether the file has named attributes (RFC 8881 5.3).
    pub named_attributes: bool,
}

/// A mounted export. Cloning shares the session.
#[derive(Clone)]
pub struct Mount {
    pub(super) client: Rc<Client>,
    root: Handle,
    /// Renews the lease, and closes abandoned files with locks; ends with the last clone.
    _keeper: Rc<rt::Task<()>>,
}

impl Mount {
    /// Mounts `path` ("/NAME", or a folder below it) over a channel that answers NFS. With `again`, this many
    /// connections carry the session (at most [`MAX_LINES`](crate::client::MAX_LINES)), and a lost one is dialled
    /// again.
    ///
    /// # Errors
    /// [`Error::Rpc`], or [`Error::Status4`] with MINOR_VERS_MISMATCH: the server does not support version 4.1.
    /// [`Error::Flavors`]: the export does not accept the flavor of the credential.
    pub async fn connect(
        channel: Rc<dyn Channel>,
        path: &str,
        options: Options,
        again: Option<(Dial, usize)>,
    ) -> Result<Mount, Error> {
        let Options { credential, pool } = options;
        let rpc = Rpc::new(channel, credential.clone());
        let lines = Connections::one(&rpc, credential);
        let lines = match again {
            Some((dial, connections)) => lines.many(dial, connections),
            None => lines,
        };
        let client = Client::new(lines, pool)?;
        match Mount::of(&client, path).await {
            Err(Error::Status4(Status::WRONGSEC)) => {
                let offered = security::flavors(&client, path).await;
                // The caller comes again as another client.
                if let Err(e) = client.end().await {
                    tracing::debug!("the client was not ended: {e}");
                }
                client.connections.end_context(NFS).await;
                Err(Error::Flavors(Offered(offered?)))
            }
            mounted => mounted,
        }
    }

    async fn of(client: &Rc<Client>, path: &str) -> Result<Mount, Error> {
        let mut at = PendingWalk { from: Op::Putrootfh, names: names(path)? };
        let walked = at.walk(client).await?;
        let limits = Bitmap::of(&[attr::LEASE_TIME, attr::MAXREAD, attr::MAXWRITE]);
        let ops = || [&walked[..], &[Op::Getfh, Op::Getattr(limits)]].concat();
        let mut results = client.run(ops, Keep::No, None, Cargo::default()).await?;
        skip(&mut results, &walked)?;
        let root = results.ok(opnum::GETFH)?;
        let limits = Values::parse(&results.ok(opnum::GETATTR)?)?;
        let (read, write) = client.room().await?;
        let at_most = |room: usize, said: Option<u64>| {
            said.map_or(room, |said| usize::try_from(said).unwrap_or(room).clamp(1, room))
        };
        client.sizes.set((at_most(read, limits.maxread), at_most(write, limits.maxwrite)));
        let lease = limits.lease_time.map_or(LEASE, |seconds| Duration::from_secs(seconds.max(1).into()));
        let keeper = rt::spawn(keep_alive(Rc::downgrade(client), lease));
        client.connections.mounted();
        Ok(Mount { client: client.clone(), root, _keeper: Rc::new(keeper) })
    }

    /// Traffic of all connections.
    pub fn traffic(&self) -> Traffic {
        self.client.connections.traffic()
    }

    /// The number of open connections, and how many were lost.
    pub fn connections(&self) -> (usize, u32) {
        self.client.connections.count()
    }

    /// How often the session was created again because the server had forgotten it.
    pub fn recovered(&self) -> u32 {
        self.client.recovered()
    }

    /// The channel that carries the mount, for traffic counters and transport names.
    pub fn channel(&self) -> Rc<dyn Channel> {
        self.client.connections.channel()
    }

    /// Closes files that are still open, makes the server forget this client and the context of a ticket, and ends all
    /// connections.
    pub async fn end(&self) -> Result<(), Error> {
        let ended = self.client.end().await;
        self.client.ended.set(true);
        self.client.connections.end_context(NFS).await;
        self.client.connections.close();
        ended
    }

    /// Largest READ in bytes; at least 1.
    pub fn max_read(&self) -> usize {
        self.client.sizes.get().0
    }

    /// Largest WRITE in bytes; at least 1.
    pub fn max_write(&self) -> usize {
        self.client.sizes.get().1
    }

    /// Sends a lone SEQUENCE and waits for the reply.
    pub async fn null(&self) -> Result<(), Error> {
        self.client.run(Vec::new, Keep::No, None, Cargo::default()).await.map(drop)
    }

    /// The operations that walk to a path.
    async fn walk(&self, path: &str) -> Result<Vec<Op>, Error> {
        let mut place = PendingWalk { from: Op::Putfh(self.root), names: names(path)? };
        place.walk(&self.client).await
    }

    /// The operations that walk to the directory of a path's last name, and that name.
    async fn place(&self, path: &str) -> Result<(Vec<Op>, Text), Error> {
        let mut names = names(path)?;
        let name = names.pop().ok_or(Error::BadPath)?;
        let mut place = PendingWalk { from: Op::Putfh(self.root), names };
        Ok((place.walk(&self.client).await?, name))
    }

    /// Sends `ops` after the operations of `walk`; returns the results after those of the walk.
    async fn ask(&self, walk: &[Op], ops: &[Op], keep: Keep, cargo: Cargo) -> Result<Results, Error> {
        let mut results = self.client.run(|| [walk, ops].concat(), keep, None, cargo).await?;
        skip(&mut results, walk)?;
        Ok(results)
    }

    /// The attributes of a path.
    pub async fn stat(&self, path: &str) -> Result<Attributes, Error> {
        let walk = self.walk(path).await?;
        let mut results = self.ask(&walk, &[Op::Getattr(WANTED)], Keep::No, Cargo::default()).await?;
        let fattr: Fattr = results.ok(opnum::GETATTR)?;
        Ok(shown(&fattr)?.ok_or(Malformed("attributes without a type"))?)
    }

    /// What a file carries beside its attributes.
    pub async fn extras(&self, path: &str) -> Result<Extras, Error> {
        let walk = self.walk(path).await?;
        let wanted = Bitmap::of(&[attr::NAMED_ATTR, attr::ACL]);
        let cargo = Cargo { longest_reply: MAX_ACL_BYTES + AROUND_BYTES, ..Cargo::default() };
        let mut results = self.ask(&walk, &[Op::Getattr(wanted)], Keep::No, cargo).await?;
        let values = Values::parse(&results.ok(opnum::GETATTR)?)?;
        Ok(Extras { acl: values.acl, named_attributes: values.named_attr == Some(true) })
    }

    /// Changes the attributes of a path.
    pub async fn setattr(&self, path: &str, set: &SetAttributes) -> Result<(), Error> {
        let walk = self.walk(path).await?;
        let op = Op::Setattr(Setattr { stateid: Stateid::ANONYMOUS, attributes: changes(set) });
        let mut results = self.ask(&walk, &[op], Keep::Yes, Cargo::default()).await?;
        match results.next(opnum::SETATTR)? {
            Status::OK => Ok(()),
            status => Err(Error::Status4(status)),
        }
    }

    /// Opens an existing file for reading, or for reading and writing.
    pub async fn open(&self, path: &str, write: bool) -> Result<File, Error> {
        let (dir, name) = self.place(path).await?;
        let access = if write { share::BOTH } else { share::READ };
        Ok(File::of_v4(Opened::open(&self.client, &dir, name, Sharing { access, deny: 0 }, None).await?))
    }

    /// Opens an existing file for writing and denies writing to others until it is closed: see
    /// [`Mount::create_alone`].
    pub async fn open_alone(&self, path: &str) -> Result<File, Error> {
        let (dir, name) = self.place(path).await?;
        let shared = Sharing { access: share::BOTH, deny: share::WRITE };
        Ok(File::of_v4(Opened::open(&self.client, &dir, name, shared, None).await?))
    }

    /// Creates a file, or opens an existing one; `set.size` of 0 truncates it.
    pub async fn create(&self, path: &str, set: SetAttributes) -> Result<File, Error> {
        self.create_how(path, 0, CreateHow::Unchecked(changes(&set))).await
    }

    /// Like [`Mount::create`], and denies others to open the file for writing until it is closed (RFC 8881 9.7).
    ///
    /// # Errors
    /// If another client has it open for writing, or denies writing to others: see [`Error::is_in_use`].
    pub async fn create_alone(&self, path: &str, set: SetAttributes) -> Result<File, Error> {
        self.create_how(path, share::WRITE, CreateHow::Unchecked(changes(&set))).await
    }

    /// Creates a file, which must not exist.
    pub async fn create_guarded(&self, path: &str, set: SetAttributes) -> Result<File, Error> {
        self.create_how(path, share::WRITE, CreateHow::Guarded(changes(&set))).await
    }

    /// Creates a file, which must not exist unless an earlier attempt of this call created it (RFC 8881 18.16.3,
    /// EXCLUSIVE4_1). This holds across a restart of the server.
    pub async fn create_new(&self, path: &str, set: SetAttributes) -> Result<File, Error> {
        let verifier: Verifier = random::bytes()?;
        self.create_how(path, 0, CreateHow::Exclusive41(verifier, changes(&set))).await
    }

    async fn create_how(&self, path: &str, deny: u32, how: CreateHow) -> Result<File, Error> {
        let (dir, name) = self.place(path).await?;
        let sharing = Sharing { access: share::BOTH, deny };
        Ok(File::of_v4(Opened::open(&self.client, &dir, name, sharing, Some(how)).await?))
    }

    /// Creates a directory.
    pub async fn mkdir(&self, path: &str, set: SetAttributes) -> Result<(), Error> {
        self.make(path, CreateType::Other(FileType::DIR), &set).await
    }

    /// Creates a symbolic link at `path` to `target`.
    pub async fn symlink(&self, path: &str, target: &str) -> Result<(), Error> {
        let target = LinkText(Bytes::copy_from_slice(target.as_bytes()));
        self.make(path, CreateType::Link(target), &SetAttributes::default()).await
    }

    async fn make(&self, path: &str, kind: CreateType, set: &SetAttributes) -> Result<(), Error> {
        let (dir, name) = self.place(path).await?;
        let op = Op::Create(Create { kind, name, attributes: changes(set) });
        self.ask(&dir, &[op], Keep::Yes, Cargo::default()).await?.passed(opnum::CREATE).map(drop)
    }

    /// A link's target.
    pub async fn readlink(&self, path: &str) -> Result<Bytes, Error> {
        let walk = self.walk(path).await?;
        let cargo = Cargo { longest_reply: MAX_TARGET + AROUND_BYTES, ..Cargo::default() };
        let mut results = self.ask(&walk, &[Op::Readlink], Keep::No, cargo).await?;
        Ok(results.ok::<LinkText>(opnum::READLINK)?.0)
    }

    /// Removes a file or link.
    pub async fn remove(&self, path: &str) -> Result<(), Error> {
        self.unlink(path, false).await
    }

    /// Removes an empty directory.
    pub async fn rmdir(&self, path: &str) -> Result<(), Error> {
        self.unlink(path, true).await
    }

    /// REMOVE accepts either type (RFC 8881 18.25), so the same compound verifies the type first.
    async fn unlink(&self, path: &str, directory: bool) -> Result<(), Error> {
        let (dir, name) = self.place(path).await?;
        let kind = Values { kind: Some(FileType::DIR), ..Values::default() }.fattr();
        let (check, wrong, says) = match directory {
            true => (Op::Verify(kind), Status::NOT_SAME, Status::NOTDIR),
            false => (Op::Nverify(kind), Status::SAME, Status::ISDIR),
        };
        let ops = [Op::Savefh, Op::Lookup(name.clone()), check, Op::Restorefh, Op::Remove(name)];
        let mut results = self.ask(&dir, &ops, Keep::Yes, Cargo::default()).await?;
        skip(&mut results, &ops[..2])?;
        match results.next(ops[2].number())? {
            Status::OK => {}
            status if status == wrong => return Err(Error::Status4(says)),
            status => return Err(Error::Status4(status)),
        }
        results.ok::<()>(opnum::RESTOREFH)?;
        results.passed(opnum::REMOVE).map(drop)
    }

    /// Renames; an existing target is replaced.
    pub async fn rename(&self, from: &str, to: &str) -> Result<(), Error> {
        let (mut walk, from) = self.place(from).await?;
        let (target, to) = self.place(to).await?;
        walk.push(Op::Savefh);
        walk.extend(target);
        let op = Op::Rename(Rename { from, to });
        self.ask(&walk, &[op], Keep::Yes, Cargo::default()).await?.passed(opnum::RENAME).map(drop)
    }

    /// Adds a hard link to a file.
    pub async fn link(&self, file: &str, path: &str) -> Result<(), Error> {
        let mut walk = self.walk(file).await?;
        let (dir, name) = self.place(path).await?;
        walk.push(Op::Savefh);
        walk.extend(dir);
        self.ask(&walk, &[Op::Link(name)], Keep::Yes, Cargo::default()).await?.passed(opnum::LINK).map(drop)
    }

    /// All names of a directory.
    pub async fn list(&self, path: &str) -> Result<Vec<Entry>, Error> {
        let walk = self.walk(path).await?;
        let mut results = self.ask(&walk, &[Op::Getfh], Keep::No, Cargo::default()).await?;
        let dir = [Op::Putfh(results.ok(opnum::GETFH)?)];
        let maxcount = MAX_LISTING_BYTES.min(self.max_read() as u32);
        let (mut cookie, mut verifier) = (0, Verifier::default());
        let (mut all, mut listed) = (Vec::new(), Listed::default());
        loop {
            let op =
                Op::Readdir(Readdir { cookie, verifier, dircount: maxcount, maxcount, attributes: WANTED });
            let cargo =
                Cargo { longest_reply: AROUND_BYTES.saturating_add(maxcount as usize), ..Cargo::default() };
            let mut results = self.ask(&dir, &[op], Keep::No, cargo).await?;
            let piece: ReaddirOk = results.ok(opnum::READDIR)?;
            match piece.entries.last() {
                Some(last) if last.cookie != cookie => cookie = last.cookie,
                _ if piece.eof => {}
                _ => return Err(Malformed("READDIR makes no progress").into()),
            }
            verifier = piece.verifier;
            for entry in piece.entries {
                let fileid = Values::parse(&entry.attributes)?.fileid.unwrap_or(0);
                let attributes = shown(&entry.attributes)?;
                all.push(Entry { name: listed.own(&entry.name.0)?, fileid, attributes, handle: None });
            }
            if piece.eof {
                return Ok(all);
            }
        }
    }
}

/// Renews the lease before it expires, even on an idle mount (RFC 8881 8.3). Closes abandoned files with locks at once,
/// because others may wait for these. Stops with the mount's end: also where that failed, nothing dials the server again.
async fn keep_alive(client: std::rc::Weak<Client>, lease: Duration) {
    let mut failed = false;
    loop {
        let left_locks =
            poll_fn(|cx| client.upgrade().map_or(Poll::Pending, |client| client.poll_left_locks(cx)));
        let pause = part(lease, 4);
        match failed {
            true => rt::sleep(pause).await,
            false => rt::timeout(pause, left_locks).await.unwrap_or_default(),
        }
        let Some(client) = client.upgrade().filter(|client| !client.ended.get()) else { return };
        let closed = client.close_left_locks().await;
        let kept = client.renew(lease).await.and(closed);
        failed = kept.is_err();
        if let Err(e) = kept {
            // The next user of the mount sees the error.
            tracing::debug!("lease not renewed, or abandoned files not closed: {e}");
        }
    }
}
