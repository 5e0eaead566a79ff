//! A mounted export: paths, directories, attributes.
//!
//! Spec: RFC 1813 3.3, 5.2. Owns: nothing but the root's handle and the server's limits.
//! Does not: follow symbolic links; a path is walked name by name below the root.

use std::rc::Rc;

use bytes::Bytes;
use weft_machine::Pool;
use weft_transport::{Channel, Traffic};
use weft_wire::mount::{DirPath, Export, List, MountResult, procedure as mnt};
use weft_wire::nfs3::{self, *};
use weft_wire::rpc::Credential;
use weft_wire::xdr::Malformed;

use super::Error;
use super::attributes::{Attributes, SetAttributes};
use super::file::File;
use super::lines::{Dial, Lines};
use super::patience::Patience;
use super::rpc::{Cargo, Program, Rpc};

pub(super) const NFS: Program = Program(nfs3::PROGRAM, nfs3::VERSION);
const MOUNT: Program = Program(weft_wire::mount::PROGRAM, weft_wire::mount::VERSION);
/// Longest list of exports that is asked for.
const MAX_EXPORTS_BYTES: usize = 64 << 10;
/// Largest piece of a directory that is asked for.
const MAX_LISTING_BYTES: u32 = 64 << 10;
/// Names of one directory that are listed at most: about 1 GiB of memory beside the names themselves.
const MAX_LISTING: usize = 4 << 20;
/// And so many bytes of them.
const MAX_NAMES_BYTES: usize = 512 << 20;
/// RPC header, status and attributes around a listing or a link's target.
const AROUND_BYTES: usize = 256;

/// How to mount.
#[derive(Clone)]
pub struct Options {
    /// Who calls.
    pub credential: Credential,
    /// Where buffers for placed payload come from.
    pub pool: Pool,
}

/// A mounted export. Cloning shares the connection.
#[derive(Clone)]
pub struct Mount {
    pub(super) rpc: Rc<Lines>,
    pub(super) pool: Pool,
    root: Handle,
    info: Rc<FsinfoOk>,
}

/// A name in a directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The name.
    pub name: Bytes,
    /// Its number in the file system.
    pub fileid: u64,
    /// Attributes, if the server gave them.
    pub attributes: Option<Attributes>,
    /// Handle, if the server gave it.
    pub handle: Option<Handle>,
}

/// How much of a directory has come. What a server lists may have no end.
#[derive(Default)]
pub(super) struct Listed {
    names: usize,
    bytes: usize,
}

impl Listed {
    /// Counts a name, and gives one that owns its memory: what was parsed is a part of the reply, whose whole buffer it would
    /// keep from those who receive.
    pub(super) fn own(&mut self, name: &Bytes) -> Result<Bytes, Error> {
        self.names = self.names.saturating_add(1);
        self.bytes = self.bytes.saturating_add(name.len());
        if self.names > MAX_LISTING {
            return Err(Malformed("a directory of more than 4 million names").into());
        }
        if self.bytes > MAX_NAMES_BYTES {
            return Err(Malformed("a directory whose names have more than 512 MiB").into());
        }
        Ok(Bytes::copy_from_slice(name))
    }
}

/// The call that does nothing, on a channel that answers NFS: that it returns shows that the channel works.
pub async fn null(channel: Rc<dyn Channel>) -> Result<(), Error> {
    Rpc::new(channel, Credential::None).call::<()>(NFS, procedure::NULL, &(), Cargo::default()).await
}

/// Paths that a server exports, asked on a channel that answers MOUNT.
pub async fn exports(channel: Rc<dyn Channel>, options: &Options) -> Result<Vec<Bytes>, Error> {
    let rpc = Rpc::new(channel, options.credential.clone());
    let cargo = Cargo { longest_reply: MAX_EXPORTS_BYTES, ..Cargo::default() };
    let List(exports) = rpc.call::<List<Export>>(MOUNT, mnt::EXPORT, &(), cargo).await?;
    Ok(exports.into_iter().map(|export| export.dir.0).collect())
}

impl Mount {
    /// Mounts `path` ("/NAME", or a folder below it) over a channel that answers both MOUNT and NFS, as Weft's do.
    pub async fn connect(channel: Rc<dyn Channel>, path: &str, options: Options) -> Result<Mount, Error> {
        Mount::connect_with(channel.clone(), channel, path, options).await
    }

    /// The same with a channel for each program.
    pub async fn connect_with(
        nfs: Rc<dyn Channel>,
        mountd: Rc<dyn Channel>,
        path: &str,
        options: Options,
    ) -> Result<Mount, Error> {
        let Options { credential, pool } = options;
        let rpc = Rpc::new(nfs.clone(), credential.clone());
        // One table of calls for each channel: on a shared one the replies of both programs come to one reader.
        let shared = Rc::ptr_eq(&nfs, &mountd);
        let mountd = if shared { rpc.clone() } else { Rpc::new(mountd, credential.clone()) };
        let path = DirPath(Bytes::copy_from_slice(path.as_bytes()));
        let root = match mountd.call(MOUNT, mnt::MNT, &path, Cargo::default()).await? {
            MountResult::Ok { handle, .. } => handle,
            MountResult::Failed(status) => return Err(Error::Mount(status)),
        };
        let args = ObjectArgs { object: root };
        let info: Outcome<FsinfoOk, AttrOnly> =
            rpc.call(NFS, procedure::FSINFO, &args, Cargo::default()).await?;
        let lines = Lines::one(&rpc, credential);
        lines.answered();
        let rpc = Rc::new(lines);
        Ok(Mount { rpc, pool, root, info: Rc::new(ok(info)?) })
    }

    /// From now on calls take turns on so many connections (at most [`MAX_LINES`](super::MAX_LINES)), made by `dial` to the
    /// same server by the same transport. One that is lost is made again, for a minute and a half, and what it had not
    /// answered is asked again in the same words: a server that answers repetitions from its cache carries nothing out
    /// twice. What a restarted server has lost of what was written is written again by [`File::commit`].
    #[must_use]
    pub fn keep_connected(self, dial: Dial, connections: usize) -> Mount {
        let lines = self.rpc.many(dial, connections);
        lines.mounted();
        Mount { rpc: Rc::new(lines), ..self }
    }

    /// What moved on all connections.
    pub fn traffic(&self) -> Traffic {
        self.rpc.traffic()
    }

    /// How many connections there are, and how many were lost.
    pub fn connections(&self) -> (usize, u32) {
        self.rpc.count()
    }

    /// Ends all connections.
    pub fn close(&self) {
        self.rpc.close();
    }

    /// The channel that carries it: for traffic counters and names of transports.
    pub fn channel(&self) -> Rc<dyn Channel> {
        self.rpc.channel()
    }

    /// The root's handle.
    pub fn root(&self) -> Handle {
        self.root
    }

    /// What the server said of itself at mount time.
    pub fn fsinfo(&self) -> &FsinfoOk {
        &self.info
    }

    /// Largest READ in bytes; at least 1.
    pub fn max_read(&self) -> usize {
        (self.info.rtmax as usize).clamp(1, self.max_payload())
    }

    /// Largest WRITE in bytes; at least 1.
    pub fn max_write(&self) -> usize {
        (self.info.wtmax as usize).clamp(1, self.max_payload())
    }

    fn max_payload(&self) -> usize {
        let limits = self.channel().limits();
        limits.placed_payload().unwrap_or(limits.max_message.saturating_sub(4096)).clamp(1, MAX_DATA)
    }

    async fn ask<T: Xdr, F: Xdr>(&self, procedure: u32, args: &impl Xdr) -> Result<T, Error> {
        let patience = Patience::new();
        loop {
            let outcome: Outcome<T, F> =
                self.rpc.call(&patience, NFS, procedure, args, Cargo::default()).await?;
            match ok(outcome) {
                Err(e) if patience.again(&e).await => {}
                done => return done,
            }
        }
    }

    /// Does nothing, there and back.
    pub async fn null(&self) -> Result<(), Error> {
        self.rpc.call(&Patience::new(), NFS, procedure::NULL, &(), Cargo::default()).await
    }

    /// Finds a path below the root. Attributes come along if the server gives them.
    pub async fn lookup(&self, path: &str) -> Result<(Handle, Option<Attributes>), Error> {
        let mut found = (self.root, None);
        for name in names(path) {
            let args = LookupArgs { what: DirOp { dir: found.0, name: name? } };
            let ok: LookupOk = self.ask::<_, AttrOnly>(procedure::LOOKUP, &args).await?;
            found = (ok.object, ok.attributes.map(Attributes::from));
        }
        Ok(found)
    }

    /// The directory of a path's last name, and that name.
    async fn place(&self, path: &str) -> Result<DirOp, Error> {
        let path = path.trim_end_matches('/');
        let (dir, name) = path.rsplit_once('/').unwrap_or(("", path));
        let name = names(name).next().ok_or(Error::BadPath)??;
        Ok(DirOp { dir: self.lookup(dir).await?.0, name })
    }

    /// Attributes of a path.
    pub async fn stat(&self, path: &str) -> Result<Attributes, Error> {
        match self.lookup(path).await? {
            (_, Some(attributes)) => Ok(attributes),
            (handle, None) => self.getattr(handle).await,
        }
    }

    /// Attributes of a handle.
    pub async fn getattr(&self, object: Handle) -> Result<Attributes, Error> {
        let ok: GetattrOk = self.ask::<_, ()>(procedure::GETATTR, &GetattrArgs { object }).await?;
        Ok(ok.attributes.into())
    }

    /// Changes attributes of a handle.
    pub async fn setattr(&self, object: Handle, attributes: SetAttributes) -> Result<(), Error> {
        let args = SetattrArgs { object, attributes: attributes.v3()?, guard: None };
        self.ask::<WccOnly, WccOnly>(procedure::SETATTR, &args).await.map(drop)
    }

    /// Which of the `access` bits are granted.
    pub async fn access(&self, object: Handle, access: u32) -> Result<u32, Error> {
        let ok: AccessOk = self.ask::<_, AttrOnly>(procedure::ACCESS, &AccessArgs { object, access }).await?;
        Ok(ok.access)
    }

    /// Opens an existing file; the server is not told (RFC 1813 has no OPEN).
    pub async fn open(&self, path: &str) -> Result<File, Error> {
        let (handle, attributes) = self.lookup(path).await?;
        let kind = match attributes {
            Some(attributes) => attributes.kind,
            None => self.getattr(handle).await?.kind,
        };
        match kind {
            FileType::Reg => Ok(File::new(self.clone(), handle)),
            FileType::Dir => Err(Status::ISDIR.into()),
            _ => Err(Status::INVAL.into()),
        }
    }

    /// Makes a file, or opens one that exists; `set.size` of 0 truncates it.
    pub async fn create(&self, path: &str, set: SetAttributes) -> Result<File, Error> {
        self.create_how(path, CreateHow::Unchecked(set.v3()?)).await
    }

    /// Makes a file that must not exist.
    pub async fn create_new(&self, path: &str, set: SetAttributes) -> Result<File, Error> {
        self.create_how(path, CreateHow::Guarded(set.v3()?)).await
    }

    /// Makes a file that must not exist, unless this very call made it before (RFC 1813 3.3.8, EXCLUSIVE).
    pub async fn create_exclusive(&self, path: &str, verifier: Verifier) -> Result<File, Error> {
        self.create_how(path, CreateHow::Exclusive(verifier)).await
    }

    async fn create_how(&self, path: &str, how: CreateHow) -> Result<File, Error> {
        let object = self.place(path).await?;
        let args = CreateArgs { object: object.clone(), how };
        let made: CreateOk = self.ask::<_, WccOnly>(procedure::CREATE, &args).await?;
        Ok(File::new(self.clone(), self.handle_of(made, object).await?))
    }

    /// A server may leave the handle of what it made out.
    async fn handle_of(&self, made: CreateOk, what: DirOp) -> Result<Handle, Error> {
        match made.object {
            Some(handle) => Ok(handle),
            None => {
                let ok: LookupOk = self.ask::<_, AttrOnly>(procedure::LOOKUP, &LookupArgs { what }).await?;
                Ok(ok.object)
            }
        }
    }

    /// Makes a directory.
    pub async fn mkdir(&self, path: &str, attributes: SetAttributes) -> Result<Handle, Error> {
        let object = self.place(path).await?;
        let args = MkdirArgs { object: object.clone(), attributes: attributes.v3()? };
        let made = self.ask::<CreateOk, WccOnly>(procedure::MKDIR, &args).await?;
        self.handle_of(made, object).await
    }

    /// Makes a symbolic link at `path` to `target`.
    pub async fn symlink(&self, path: &str, target: &str) -> Result<(), Error> {
        let object = self.place(path).await?;
        let target = Path(Bytes::copy_from_slice(target.as_bytes()));
        let args = SymlinkArgs { object, attributes: nfs3::SetAttributes::default(), target };
        self.ask::<CreateOk, WccOnly>(procedure::SYMLINK, &args).await.map(drop)
    }

    /// A link's target.
    pub async fn readlink(&self, symlink: Handle) -> Result<Bytes, Error> {
        let cargo = Cargo { longest_reply: MAX_PATH + AROUND_BYTES, ..Cargo::default() };
        let args = ReadlinkArgs { symlink };
        let outcome: Outcome<ReadlinkOk, AttrOnly> =
            self.rpc.call(&Patience::new(), NFS, procedure::READLINK, &args, cargo).await?;
        Ok(ok(outcome)?.target.0)
    }

    /// Removes a file or link.
    pub async fn remove(&self, path: &str) -> Result<(), Error> {
        let args = RemoveArgs { object: self.place(path).await? };
        self.ask::<WccOnly, WccOnly>(procedure::REMOVE, &args).await.map(drop)
    }

    /// Removes an empty directory.
    pub async fn rmdir(&self, path: &str) -> Result<(), Error> {
        let args = RemoveArgs { object: self.place(path).await? };
        self.ask::<WccOnly, WccOnly>(procedure::RMDIR, &args).await.map(drop)
    }

    /// Renames; an existing target is replaced.
    pub async fn rename(&self, from: &str, to: &str) -> Result<(), Error> {
        let args = RenameArgs { from: self.place(from).await?, to: self.place(to).await? };
        self.ask::<RenameWcc, RenameWcc>(procedure::RENAME, &args).await.map(drop)
    }

    /// A further name for a file.
    pub async fn link(&self, file: Handle, path: &str) -> Result<(), Error> {
        let args = LinkArgs { file, link: self.place(path).await? };
        self.ask::<LinkWcc, LinkWcc>(procedure::LINK, &args).await.map(drop)
    }

    /// All names of a directory, without "." and "..".
    pub async fn list(&self, path: &str) -> Result<Vec<Entry>, Error> {
        let dir = self.lookup(path).await?.0;
        let maxcount = self.info.dtpref.clamp(4096, MAX_LISTING_BYTES);
        let (mut cookie, mut verifier) = (0, Verifier::default());
        let (mut all, mut listed) = (Vec::new(), Listed::default());
        loop {
            let args = ReaddirplusArgs { dir, cookie, verifier, dircount: maxcount, maxcount };
            let cargo =
                Cargo { longest_reply: AROUND_BYTES.saturating_add(maxcount as usize), ..Cargo::default() };
            let outcome: Outcome<ReaddirplusOk, AttrOnly> =
                self.rpc.call(&Patience::new(), NFS, procedure::READDIRPLUS, &args, cargo).await?;
            let piece = ok(outcome)?;
            match piece.entries.last() {
                Some(last) if last.cookie != cookie => cookie = last.cookie,
                _ if piece.eof => {}
                _ => return Err(Malformed("READDIRPLUS makes no progress").into()),
            }
            verifier = piece.verifier;
            for e in piece.entries {
                // "." counts: a server may list it for ever.
                let name = listed.own(&e.name.0)?;
                if matches!(&name[..], b"." | b"..") {
                    continue;
                }
                let attributes = match e.attributes {
                    Some(told) => Some(told.into()),
                    None => match self.known(dir, e.name).await {
                        // Gone since it was listed.
                        Err(Error::Status(Status::NOENT)) => continue,
                        Err(Error::Status(_)) => None,
                        known => Some(known?),
                    },
                };
                all.push(Entry { name, fileid: e.fileid, attributes, handle: e.handle });
            }
            if piece.eof {
                return Ok(all);
            }
        }
    }

    /// Attributes of a name in a directory. A listing may leave them out (RFC 1813 3.3.17).
    async fn known(&self, dir: Handle, name: Name) -> Result<Attributes, Error> {
        let args = LookupArgs { what: DirOp { dir, name } };
        let found: LookupOk = self.ask::<_, AttrOnly>(procedure::LOOKUP, &args).await?;
        match found.attributes {
            Some(told) => Ok(told.into()),
            None => self.getattr(found.object).await,
        }
    }

    /// Space of the file system.
    pub async fn fsstat(&self) -> Result<FsstatOk, Error> {
        self.ask::<_, AttrOnly>(procedure::FSSTAT, &ObjectArgs { object: self.root }).await
    }

    /// Limits of names and links.
    pub async fn pathconf(&self) -> Result<PathconfOk, Error> {
        self.ask::<_, AttrOnly>(procedure::PATHCONF, &ObjectArgs { object: self.root }).await
    }
}

pub(super) fn ok<T, F>(outcome: Outcome<T, F>) -> Result<T, Error> {
    outcome.map_err(|failure| Error::Status(failure.status))
}

fn names(path: &str) -> impl Iterator<Item = Result<Name, Error>> {
    path.split('/').filter(|name| !name.is_empty()).map(|name| {
        if name.len() > MAX_NAME {
            Err(Error::BadPath)
        } else {
            Ok(Name(Bytes::copy_from_slice(name.as_bytes())))
        }
    })
}
