//! A mounted export, and the procedures that take handles.
//!
//! See RFC 1813 3.3 and 5.2. It keeps the root's handle and the server's limits. Paths are in `paths`, reads and
//! writes in `file`.

use std::rc::Rc;

use bytes::Bytes;
use weft_machine::Pool;
use weft_transport::{Channel, Traffic};
use weft_wire::mount::{DirPath, Export, List, MountResult, procedure as mount};
use weft_wire::nfs3::{self, *};
use weft_wire::rpc::Flavor;

use super::Error;
use super::attributes::{Attributes, SetAttributes};
use super::connections::{Connections, Dial};
use super::credential::Credential;
use super::patience::Patience;
use super::rpc::{Cargo, Program, Rpc};

pub(super) const NFS: Program = Program(nfs3::PROGRAM, nfs3::VERSION);
const MOUNT: Program = Program(weft_wire::mount::PROGRAM, weft_wire::mount::VERSION);
/// Longest list of exports accepted.
const MAX_EXPORTS_BYTES: usize = 64 << 10;
/// RPC header, status and attributes around a listing or a link's target.
pub(super) const AROUND_BYTES: usize = 256;

/// Options for mounting.
#[derive(Clone)]
pub struct Options {
    /// The caller's credential.
    pub credential: Credential,
    /// The pool for placed payload.
    pub pool: Pool,
}

/// A mounted export. Cloning shares the connection.
#[derive(Clone)]
pub struct Mount {
    pub(super) rpc: Rc<Connections>,
    pub(super) pool: Pool,
    pub(super) root: Handle,
    pub(super) info: Rc<FsinfoOk>,
}

/// Calls NULL on a channel that answers NFS; a reply shows that the channel works.
pub async fn null(channel: Rc<dyn Channel>) -> Result<(), Error> {
    Rpc::new(channel, Credential::None).call::<()>(NFS, procedure::NULL, &(), Cargo::default()).await
}

/// Lists the paths that a server exports, on a channel that answers MOUNT.
pub async fn exports(channel: Rc<dyn Channel>, options: &Options) -> Result<Vec<Bytes>, Error> {
    let rpc = Rpc::new(channel, options.credential.claimed());
    let cargo = Cargo { longest_reply: MAX_EXPORTS_BYTES, ..Cargo::default() };
    let List(exports) = rpc.call::<List<Export>>(MOUNT, mount::EXPORT, &(), cargo).await?;
    Ok(exports.into_iter().map(|export| export.dir.0).collect())
}

/// The security flavors that an export accepts, best first, on a channel that answers MOUNT; empty if the server does not
/// tell.
pub async fn flavors(channel: Rc<dyn Channel>, path: &str, options: &Options) -> Result<Vec<Flavor>, Error> {
    let claimed = options.credential.claimed();
    mnt(&Rpc::new(channel, claimed.clone()), &claimed, path).await.map(|(_, flavors)| flavors)
}

/// Asks MOUNT for an export's handle and flavors.
async fn mnt(rpc: &Rpc, credential: &Credential, path: &str) -> Result<(Handle, Vec<Flavor>), Error> {
    let path = DirPath(Bytes::copy_from_slice(path.as_bytes()));
    match rpc.call_as(credential, MOUNT, mount::MNT, &path, Cargo::default()).await? {
        MountResult::Ok { handle, flavors } => Ok((handle, flavors)),
        MountResult::Failed(status) => Err(Error::Mount(status)),
    }
}

impl Mount {
    /// Mounts `path` ("/NAME", or a folder below it) over a channel that answers both MOUNT and NFS, as Weft's do.
    ///
    /// # Errors
    /// [`Error::Flavors`]: the export does not accept the flavor of the credential.
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
        // MOUNT takes no tickets.
        let (root, flavors) = mnt(&mountd, &credential.claimed(), path).await?;
        credential.check(flavors)?;
        let args = ObjectArgs { object: root };
        let info: Outcome<FsinfoOk, AttrOnly> =
            rpc.call(NFS, procedure::FSINFO, &args, Cargo::default()).await?;
        let lines = Connections::one(&rpc, credential);
        lines.answered();
        let rpc = Rc::new(lines);
        Ok(Mount { rpc, pool, root, info: Rc::new(ok(info)?) })
    }

    /// From now on, calls are distributed over this many connections (at most [`MAX_LINES`](super::MAX_LINES)), which
    /// `dial` opens to the same server over the same transport. A lost connection is dialled again for a minute and a
    /// half, and unanswered calls are repeated byte for byte; a server with a duplicate request cache carries nothing
    /// out twice. Uncommitted data that a restarted server has lost is written again by
    /// [`File::commit`](super::File::commit).
    #[must_use]
    pub fn keep_connected(self, dial: Dial, connections: usize) -> Mount {
        let lines = self.rpc.many(dial, connections);
        lines.mounted();
        Mount { rpc: Rc::new(lines), ..self }
    }

    /// Traffic of all connections.
    pub fn traffic(&self) -> Traffic {
        self.rpc.traffic()
    }

    /// The number of open connections, and how many were lost.
    pub fn connections(&self) -> (usize, u32) {
        self.rpc.count()
    }

    /// Ends the context of a ticket, and all connections.
    pub async fn end(&self) {
        self.rpc.end_context(NFS).await;
        self.rpc.close();
    }

    /// Ends all connections.
    pub fn close(&self) {
        self.rpc.close();
    }

    /// The channel that carries the mount, for traffic counters and transport names.
    pub fn channel(&self) -> Rc<dyn Channel> {
        self.rpc.channel()
    }

    /// The root's handle.
    pub fn root(&self) -> Handle {
        self.root
    }

    /// The server's FSINFO reply from mount time.
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
        self.rpc.max_payload().clamp(1, MAX_DATA)
    }

    pub(super) async fn ask<T: Xdr, F: Xdr>(&self, procedure: u32, args: &impl Xdr) -> Result<T, Error> {
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

    /// Calls NULL and waits for the reply.
    pub async fn null(&self) -> Result<(), Error> {
        self.rpc.call(&Patience::new(), NFS, procedure::NULL, &(), Cargo::default()).await
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

    /// A link's target.
    pub async fn readlink(&self, symlink: Handle) -> Result<Bytes, Error> {
        let cargo = Cargo { longest_reply: MAX_PATH + AROUND_BYTES, ..Cargo::default() };
        let args = ReadlinkArgs { symlink };
        let outcome: Outcome<ReadlinkOk, AttrOnly> =
            self.rpc.call(&Patience::new(), NFS, procedure::READLINK, &args, cargo).await?;
        Ok(ok(outcome)?.target.0)
    }

    /// Space of the file system.
    pub async fn fsstat(&self) -> Result<FsstatOk, Error> {
        self.ask::<_, AttrOnly>(procedure::FSSTAT, &ObjectArgs { object: self.root }).await
    }

    /// Limits on names and links.
    pub async fn pathconf(&self) -> Result<PathconfOk, Error> {
        self.ask::<_, AttrOnly>(procedure::PATHCONF, &ObjectArgs { object: self.root }).await
    }
}

pub(super) fn ok<T, F>(outcome: Outcome<T, F>) -> Result<T, Error> {
    outcome.map_err(|failure| Error::Status(failure.status))
}
