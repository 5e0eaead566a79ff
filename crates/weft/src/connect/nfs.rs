//! NFS exports as remote folders.
//!
//! NFS names its ports in the URL, because Weft needs no rpcbind: `mountport` for MOUNT over TCP (without it MOUNT is
//! asked on the NFS connection, as Weft's servers allow), `rdmaport` for NFS over RDMA, and `vers`: without it, and without
//! the `mountport` that only version 3 asks, 4.1 is tried first. Owns: nothing beyond the mount. Does not: choose the
//! transport (see the parent).

use std::cell::Cell;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::OnceLock;
use std::time::SystemTime;

use bytes::Bytes;
use futures_util::future::LocalBoxFuture;
use futures_util::{FutureExt, StreamExt, stream};
use weft_machine::net::{CONNECT_LIMIT, SourcePort, may_reserve};
use weft_machine::{Stream, random};
use weft_nfs::client::{
    Attributes, AuthSys, Credential, Error, File, FileType, MAX_LINES, Mount, Options, SetAttributes,
    SetTime, Status, Time, v4,
};
use weft_rdma::Traffic;
use weft_transport::{Channel, record, rpcrdma};
use weft_wire::mount::MountStatus;

use super::reach;
use super::{
    Agreed, Answer, Behind, Dial, FILE_MODE, Medium, NFS_RDMA_PORT, Partial, RemoteDraft, RemoteEntry,
    RemoteFile, RemoteFolder, RemoteStat, UNDER_WAY, let_in, note_shown,
};
use crate::Failure;
use crate::partial::partial_name;
use crate::providers;
use crate::transfer::join;
use crate::url::{NfsVersion, Url};
use crate::when::When;

/// One READ and WRITE of a copy from file to file.
const BLOCK_BYTES: u64 = 1 << 20;
/// How long nobody has written to a partial file that no command is at work on.
const DAY_SECS: u64 = 86_400;
/// Of them outstanding at a time.
const QUEUE_DEPTH: usize = 8;

/// Connects and mounts the export.
pub(super) async fn connect(
    dial: &Dial<'_>,
) -> Result<(Box<dyn RemoteFolder>, Medium, &'static str), Failure> {
    let mut last: Option<Failure> = None;
    for (medium, reason) in dial.choices(|medium| medium != Medium::Rnic && dial.url.rdma_port.is_some()) {
        match mount(dial, medium).await {
            Ok((mount, why)) => {
                return Ok((Box::new(Export { mount, medium, why, told: Cell::default() }), medium, reason));
            }
            Err(e) => {
                tracing::debug!("by {}: {e}", medium.name());
                last = Some(e);
            }
        }
    }
    Err(last.unwrap_or_else(|| "no transport to try".into()))
}

/// Paths that the server exports, as MOUNT tells them: version 4 has no such list.
pub(super) async fn exports(dial: &Dial<'_>) -> Result<Vec<String>, Failure> {
    let (addr, channel) = tcp(dial, dial.url.mount_port.unwrap_or(dial.url.port)).await?;
    let asking = async { Ok(weft_nfs::client::exports(channel, &options(dial)).await?) };
    let listed = match dial.url.mount_port {
        // Nothing but MOUNT is asked.
        Some(_) => let_in(dial, Medium::Rnic, addr, Some(addr), asking).await,
        None => let_in(dial, Medium::Tcp, addr, None, asking).await,
    };
    let listed = listed.map_err(|e| match e.downcast_ref::<Error>() {
        Some(Error::Rpc(_)) if dial.url.mount_port.is_none() => Failure::from(format!(
            "{}: MOUNT, which knows the exports, is not at port {}: name its port, ?mountport=20048",
            dial.url.host, dial.url.port
        )),
        _ => e,
    })?;
    Ok(listed.iter().map(|path| String::from_utf8_lossy(path).into_owned()).collect())
}

/// Mounts by the version that the URL names, or the best that the server speaks; and why that, where there was a choice.
async fn mount(dial: &Dial<'_>, medium: Medium) -> Result<(Mounted, &'static str), Failure> {
    match (dial.url.version, dial.url.mount_port) {
        (Some(NfsVersion::V3), _) => return Ok((mount_v3(dial, medium).await?, "")),
        (None, Some(_)) => return Ok((mount_v3(dial, medium).await?, ", because mountport is of version 3")),
        _ => {}
    }
    let ((addr, channel), path) = (channel(dial, medium).await?, path(dial.url));
    let again = lasting(dial)?.map(|connections| (again(dial, medium), connections));
    let mounting = async { Ok(v4::Mount::connect(channel, &path, options(dial), again).await?) };
    let e = match let_in(dial, medium, addr, None, mounting).await {
        Ok(mount) => return Ok((Mounted::V4(mount), "")),
        Err(e) => match e.downcast::<Error>() {
            Ok(e) => e,
            Err(e) => return Err(e),
        },
    };
    let mounting = refused(dial.url, "4.1", &e);
    // Where the trees of both versions are not the same, MOUNT may know what LOOKUP does not.
    let other = e.is_version() || e.status() == Some(Status::NOENT);
    if dial.url.version.is_some() || !other {
        return Err(mounting.into());
    }
    match mount_v3(dial, medium).await {
        Ok(mount) if e.is_version() => Ok((mount, ", because the server does not speak 4.1")),
        Ok(mount) => Ok((mount, ", because the server exports this to version 3 alone")),
        Err(also) => Err(format!("{mounting}; {also}").into()),
    }
}

async fn mount_v3(dial: &Dial<'_>, medium: Medium) -> Result<Mounted, Failure> {
    let (addr, channel) = channel(dial, medium).await?;
    let (mountd_addr, mountd) = match dial.url.mount_port {
        Some(port) => tcp(dial, port).await.map(|(addr, mountd)| (Some(addr), mountd))?,
        None => (None, channel.clone()),
    };
    let path = path(dial.url);
    let mounting = async { Ok(Mount::connect_with(channel, mountd, &path, options(dial)).await?) };
    let mount =
        let_in(dial, medium, addr, mountd_addr, mounting).await.map_err(|e| match e.downcast::<Error>() {
            Ok(e) => refused(dial.url, "3", &e).into(),
            Err(e) => e,
        })?;
    Ok(Mounted::V3(match lasting(dial)? {
        Some(connections) => mount.keep_connected(again(dial, medium), connections),
        None => mount,
    }))
}

/// Why an export is not mounted, and what to type.
fn refused(url: &Url, version: &str, e: &Error) -> String {
    let (host, share) = (&url.host, &url.share);
    let none = match e {
        Error::Mount(status) => *status == MountStatus::NOENT,
        e => e.status() == Some(Status::NOENT),
    };
    match none {
        true => {
            format!("no export /{share} on {host} (NFSv{version}); `{}` lists them", url.server().listing())
        }
        false => format!("export /{share} on {host}: {e} (NFSv{version}){}", about_port(e, may_reserve())),
    }
}

/// What to do where a server refuses because of the port that we come from (exports(5), `secure`).
fn about_port(e: &Error, may_reserve: bool) -> &'static str {
    let refused = |status| e.status() == Some(status);
    let mount = matches!(e, Error::Mount(MountStatus::ACCES | MountStatus::PERM));
    match may_reserve {
        // Nothing else of a mount is forbidden by this word, and we had no such port to take, or none by RDMA.
        _ if refused(Status::PERM) => {
            "; the export wants a reserved port (below 1024): run weft as root, or have it exported with `insecure`"
        }
        false if mount || refused(Status::ACCES) => {
            "; if the export wants a reserved port (below 1024): run weft as root, or have it exported with `insecure`"
        }
        _ => "",
    }
}

fn path(url: &Url) -> String {
    format!("/{}", url.share)
}

/// How many connections are made, and made again where they are lost. `None`: who measures wants to see one that is lost.
fn lasting(dial: &Dial<'_>) -> Result<Option<usize>, Failure> {
    if dial.congestion.is_some() {
        return Ok(None);
    }
    let connections = dial.options.channels.unwrap_or(1) as usize;
    if connections > MAX_LINES {
        return Err(format!("--channels {connections}: {MAX_LINES} at most").into());
    }
    Ok(Some(connections))
}

async fn tcp(dial: &Dial<'_>, port: u16) -> Result<(SocketAddr, Rc<dyn Channel>), Failure> {
    let (addr, stream) = dial.tcp(port).await?;
    Ok((addr, record::Record::new(stream, dial.pool.clone(), record::Config::default())))
}

async fn channel(dial: &Dial<'_>, medium: Medium) -> Result<(SocketAddr, Rc<dyn Channel>), Failure> {
    let Some(provider) = dial.provider(medium)? else { return tcp(dial, dial.url.port).await };
    let connect = async |addr| {
        rpcrdma::connect(provider.as_ref(), addr, rpcrdma::Config::default(), dial.pool.clone()).await
    };
    let port = dial.url.rdma_port.unwrap_or(NFS_RDMA_PORT);
    let connected = dial.rdma(&format!("NFS over RDMA by {}", medium.name()), port, connect).await;
    let (addr, channel) = connected.map_err(|e| match dial.url.rdma_port {
        Some(_) => e,
        None => {
            format!("{e}; where it is at another port, name that: ?rdmaport=N (weft serve: --nfs-rdma-port)")
                .into()
        }
    })?;
    Ok((addr, channel))
}

fn options(dial: &Dial<'_>) -> Options {
    let host = Bytes::copy_from_slice(rustix::system::uname().nodename().to_bytes());
    let (uid, gid) = (rustix::process::getuid().as_raw(), rustix::process::getgid().as_raw());
    Options { credential: Credential::Sys(AuthSys::new(host, uid, gid)), pool: dial.pool.clone() }
}

/// Makes further connections like the first.
fn again(dial: &Dial<'_>, medium: Medium) -> weft_nfs::client::Dial {
    let (pool, crc) = (dial.pool.clone(), !dial.options.no_crc);
    let congestion = dial.congestion.map(str::to_owned);
    let port = match medium {
        Medium::Tcp => dial.url.port,
        _ => dial.url.rdma_port.unwrap_or(NFS_RDMA_PORT),
    };
    let addresses = dial.addresses(port);
    Rc::new(move || {
        let (pool, congestion, addresses) = (pool.clone(), congestion.clone(), addresses.clone());
        async move {
            let provider = match medium {
                Medium::Tcp => None,
                Medium::Iwarp => {
                    Some(providers::iwarp_from(SourcePort::Reserved, &pool, crc, congestion.as_deref()))
                }
                Medium::Shm => Some(providers::shm_provider(&pool)),
                Medium::Rnic => Some(providers::rnic_provider(&pool)),
            };
            let connect = async |addr| {
                let Some(provider) = &provider else {
                    let (congestion, source) = (congestion.as_deref(), SourcePort::Reserved);
                    let stream = Stream::connect_from(addr, CONNECT_LIMIT, congestion, source).await?;
                    let channel: Rc<dyn Channel> =
                        record::Record::new(stream, pool.clone(), record::Config::default());
                    return Ok(channel);
                };
                let config = rpcrdma::Config::default();
                let channel: Rc<dyn Channel> =
                    rpcrdma::connect(provider.as_ref(), addr, config, pool.clone()).await?;
                Ok::<_, weft_transport::Error>(channel)
            };
            let failed = match reach::first(&addresses, connect).await {
                Ok((_, channel)) => return Ok(channel),
                Err(failed) => failed,
            };
            // The address at which the server was reached is the first.
            Err(failed.into_iter().next().map_or(weft_transport::Error::Closed, |(_, e)| e))
        }
        .boxed_local()
    })
}

/// A mount of either version.
enum Mounted {
    V3(Mount),
    V4(v4::Mount),
}

/// What both have under one name.
macro_rules! either {
    ($mounted:expr, $mount:ident => $what:expr) => {
        match $mounted {
            Mounted::V3($mount) => $what,
            Mounted::V4($mount) => $what,
        }
    };
}

struct Export {
    mount: Mounted,
    medium: Medium,
    /// Why this version, where that needs saying.
    why: &'static str,
    /// Somebody was told that partial files are not hidden here.
    told: Cell<bool>,
}

impl RemoteFolder for Export {
    fn open<'a>(&'a self, path: &'a str, write: bool) -> Answer<'a, Rc<dyn RemoteFile>> {
        async move {
            let file = match &self.mount {
                Mounted::V3(mount) => mount.open(path).await?,
                Mounted::V4(mount) => mount.open(path, write).await?,
            };
            Ok(Rc::new(NfsFile(file)) as Rc<dyn RemoteFile>)
        }
        .boxed_local()
    }

    fn create<'a>(&'a self, path: &'a str) -> Answer<'a, Rc<dyn RemoteFile>> {
        async move {
            let set = SetAttributes { size: Some(0), ..made(FILE_MODE) };
            let file = either!(&self.mount, mount => mount.create(path, set).await?);
            Ok(Rc::new(NfsFile(file)) as Rc<dyn RemoteFile>)
        }
        .boxed_local()
    }

    fn list<'a>(&'a self, path: &'a str) -> Answer<'a, Vec<RemoteEntry>> {
        async move {
            let mut entries = Vec::new();
            for entry in either!(&self.mount, mount => mount.list(path).await?) {
                let garbled = str::from_utf8(&entry.name).is_err();
                let name = String::from_utf8_lossy(&entry.name).into_owned();
                if name == "." || name == ".." {
                    continue;
                }
                let folder = entry.attributes.as_ref().is_some_and(|a| a.kind == FileType::Dir);
                let special = entry
                    .attributes
                    .as_ref()
                    .is_some_and(|a| !matches!(a.kind, FileType::Dir | FileType::Reg));
                let size = entry.attributes.as_ref().map_or(0, |a| a.size);
                let modified = entry.attributes.as_ref().map_or(When::default(), |a| when(a.mtime));
                entries.push(RemoteEntry { name, garbled, folder, special, size, modified });
            }
            Ok(entries)
        }
        .boxed_local()
    }

    fn stat<'a>(&'a self, path: &'a str) -> Answer<'a, Option<RemoteStat>> {
        async move {
            match either!(&self.mount, mount => mount.stat(path).await) {
                Ok(attributes) => Ok(Some(RemoteStat {
                    folder: attributes.kind == FileType::Dir,
                    special: !matches!(attributes.kind, FileType::Dir | FileType::Reg),
                    size: attributes.size,
                    allocated: attributes.used,
                    created: None,
                    modified: when(attributes.mtime),
                    accessed: when(attributes.atime),
                    mode: Some(attributes.mode & 0o7777),
                })),
                Err(e) if e.status() == Some(Status::NOENT) => Ok(None),
                Err(e) => Err(e.into()),
            }
        }
        .boxed_local()
    }

    fn target<'a>(&'a self, path: &'a str) -> Answer<'a, Option<String>> {
        async move {
            let target = match &self.mount {
                Mounted::V3(mount) => match mount.lookup(path).await {
                    Ok((link, _)) => mount.readlink(link).await,
                    Err(e) => Err(e),
                },
                Mounted::V4(mount) => mount.readlink(path).await,
            };
            match target {
                Ok(target) => Ok(Some(String::from_utf8_lossy(&target).into_owned())),
                Err(e) if e.status() == Some(Status::INVAL) => Ok(None),
                Err(e) => Err(e.into()),
            }
        }
        .boxed_local()
    }

    fn mkdir<'a>(&'a self, path: &'a str) -> Answer<'a, ()> {
        async move {
            let set = made(FOLDER_MODE);
            match either!(&self.mount, mount => mount.mkdir(path, set).await.map(drop)) {
                Err(e) if e.status() != Some(Status::EXIST) => Err(e.into()),
                _ => Ok(()),
            }
        }
        .boxed_local()
    }

    fn rmdir<'a>(&'a self, path: &'a str) -> Answer<'a, ()> {
        async move { Ok(either!(&self.mount, mount => mount.rmdir(path).await)?) }.boxed_local()
    }

    fn remove<'a>(&'a self, path: &'a str) -> Answer<'a, ()> {
        async move { Ok(either!(&self.mount, mount => mount.remove(path).await)?) }.boxed_local()
    }

    fn remove_unfinished<'a>(&'a self, path: &'a str) -> Answer<'a, bool> {
        async move {
            let held = match &self.mount {
                Mounted::V3(mount) => match mount.stat(path).await {
                    // Nobody says whether a command is at work on it, but that would write.
                    Ok(found) if is_recent(when(found.mtime)) => return Ok(false),
                    found => found.map(|_| None),
                },
                Mounted::V4(mount) => mount.open_alone(path).await.map(Some),
            };
            let held = match held {
                Err(e) if e.is_in_use() || e.status() == Some(Status::NOENT) => return Ok(false),
                held => held?,
            };
            let removed = self.remove(path).await;
            if let Some(held) = held {
                held.close().await?;
            }
            removed.map(|()| true)
        }
        .boxed_local()
    }

    fn draft<'a>(
        &'a self,
        target: Behind,
        tag: Option<&'a str>,
        mode: u32,
    ) -> Answer<'a, Box<dyn RemoteDraft + 'a>> {
        async move {
            let Behind { path: target, found } = target;
            let tagged = match tag {
                Some(tag) => self.tagged(beside(&target, tag)).await?,
                None => None,
            };
            let resumable = tagged.is_some();
            let (path, file) = match tagged {
                Some(tagged) => tagged,
                None => {
                    let path = nobody_else_s(&target)?;
                    let file = self.new_partial(&path).await?;
                    (path, file)
                }
            };
            let mode = mode & !umask();
            self.check_hidden(&file, found.and_then(|found| found.mode).unwrap_or(mode), &target).await?;
            let file = Rc::new(NfsFile(file));
            let partial = Partial { path, target, file: file.clone(), resumable };
            let draft = NfsDraft { export: self, partial, file, mode };
            Ok(Box::new(draft) as Box<dyn RemoteDraft>)
        }
        .boxed_local()
    }

    fn respell<'a>(&'a self, _: &'a str) -> Answer<'a, ()> {
        // Another spelling is another name.
        async { Ok(()) }.boxed_local()
    }

    fn traffic(&self) -> Traffic {
        either!(&self.mount, mount => mount.traffic())
    }

    fn connections(&self) -> Vec<String> {
        let (count, _) = either!(&self.mount, mount => mount.connections());
        if count < 2 { Vec::new() } else { vec![format!("{} to {}", self.medium.name(), self.peer()); count] }
    }

    fn lost_connections(&self) -> u32 {
        either!(&self.mount, mount => mount.connections()).1
    }

    fn describe(&self) -> String {
        let rdma = if self.medium == Medium::Tcp { "payload in messages" } else { "payload by RDMA" };
        let (version, by) = (self.version(), self.medium.name());
        format!("NFSv{version} to {} by {by}, {rdma}{}", self.peer(), self.why)
    }

    fn agreed(&self) -> LocalBoxFuture<'_, Agreed> {
        // NFSv3 has no field in which a server names itself; 4.1's is for logs alone (RFC 8881 18.35.3).
        async { Agreed { dialect: format!("NFS {}", self.version()), ..Agreed::default() } }.boxed_local()
    }

    fn close(&self) -> Answer<'_, ()> {
        async move {
            match &self.mount {
                Mounted::V3(mount) => mount.close(),
                Mounted::V4(mount) => mount.end().await?,
            }
            Ok(())
        }
        .boxed_local()
    }
}

/// A partial file for new content of `target`.
fn beside(target: &str, tag: &str) -> String {
    let (folder, name) = target.rsplit_once('/').unwrap_or(("", target));
    join(folder, &partial_name(name, tag))
}

/// The same by a name that nobody else has.
fn nobody_else_s(target: &str) -> Result<String, Failure> {
    let bytes: [u8; 8] = random::bytes().map_err(|e| e.to_string())?;
    Ok(beside(target, &format!(".{:016x}", u64::from_le_bytes(bytes))))
}

/// Says what it means that somebody else has a file open.
fn in_use(e: Error) -> Failure {
    if e.is_in_use() {
        format!("{UNDER_WAY}, or was killed within the lease that the server gives its clients ({e})").into()
    } else {
        e.into()
    }
}

/// A partial file, open.
///
/// Nobody finds one without a tag: its name is random, because version 3 has no opens that would keep others out. One with a tag
/// keeps them out by version 4's share reservation. By version 3 several commands may write it; the tag names one version of one
/// source, so they write the same bytes, and nobody cuts it off.
///
/// Other users' commands give theirs the same name with the same tag, and may remove ours where the folder lets them. Hence what is
/// at the name is moved or removed only while it is the file that is open.
///
/// It is its owner's alone until it is whole.
struct NfsDraft<'a> {
    export: &'a Export,
    partial: Partial,
    /// The partial file.
    file: Rc<NfsFile>,
    /// What it gets where there is no target in the end.
    mode: u32,
}

impl RemoteDraft for NfsDraft<'_> {
    fn partial(&self) -> &Partial {
        &self.partial
    }

    fn replace(&self) -> Answer<'_, ()> {
        async move {
            let Partial { path, target, file, resumable } = &self.partial;
            if *resumable {
                let replaced = async {
                    if !self.export.is_at(path, &self.file.0).await? {
                        return Err(format!("{path} was removed or replaced meanwhile").into());
                    }
                    self.export.replace(path, target, self.mode).await
                };
                let replaced = replaced.await;
                let closed = file.close().await;
                return replaced.and(closed);
            }
            // Some servers rename no file that is open.
            file.close().await?;
            self.export.replace(path, target, self.mode).await
        }
        .boxed_local()
    }

    fn discard(&self) -> Answer<'_, ()> {
        async move {
            let Partial { path, file, resumable, .. } = &self.partial;
            let ours = if *resumable { self.export.is_at(path, &self.file.0).await } else { Ok(true) };
            // Before it is removed: the space of a file that somebody has open does not come back.
            if let Err(e) = file.close().await {
                tracing::debug!("closing {path}: {e}");
            }
            if ours? { self.export.remove(path).await } else { Ok(()) }
        }
        .boxed_local()
    }
}

/// What mkdir(2) is asked for, before the umask.
const FOLDER_MODE: u32 = 0o777;
/// That of partial files.
const PRIVATE_MODE: u32 = 0o600;
/// By which the group and others may read.
const SHOWN: u32 = 0o044;

/// How a file or folder is made. A server that is told no mode gives it one of its own: Linux' gives it 0, by which nobody may read it.
fn made(mode: u32) -> SetAttributes {
    SetAttributes { mode: Some(mode & !umask()), ..SetAttributes::default() }
}

/// That of this process, which nobody changes.
fn umask() -> u32 {
    static UMASK: OnceLock<u32> = OnceLock::new();
    *UMASK.get_or_init(|| {
        let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
        let told = status.lines().find_map(|line| line.strip_prefix("Umask:"));
        told.and_then(|octal| u32::from_str_radix(octal.trim(), 8).ok()).unwrap_or(0o022)
    })
}

impl Export {
    /// Makes the partial file of a tag, or opens the one that an earlier command has left. `None`: the name is taken by what is not
    /// like ours. It stays, because its owner may be at work on it.
    async fn tagged(&self, path: String) -> Result<Option<(String, File)>, Failure> {
        match self.new_partial(&path).await {
            Err(e) if e.status() == Some(Status::EXIST) => {}
            made => return Ok(Some((path, made?))),
        }
        let left = match &self.mount {
            Mounted::V3(mount) => mount.open(&path).await,
            Mounted::V4(mount) => mount.open_alone(&path).await,
        };
        match left {
            Ok(file) => {
                if self.is_like_new(&path, &file.stat().await?).await? {
                    return Ok(Some((path, file)));
                }
                file.close().await?;
            }
            Err(e) if e.status() == Some(Status::ACCES) => {}
            Err(e) => return Err(in_use(e)),
        }
        // Whoever made it could read what is written to it.
        note!("weft: {path} is somebody else's, or others can read it: it is not resumed");
        Ok(None)
    }

    /// Whether this name leads to this file.
    async fn is_at(&self, path: &str, file: &File) -> Result<bool, Failure> {
        let gone = |e: &Error| matches!(e.status(), Some(Status::NOENT | Status::STALE));
        let named = match either!(&self.mount, mount => mount.stat(path).await) {
            Err(e) if gone(&e) => return Ok(false),
            named => named?,
        };
        match file.stat().await {
            Err(e) if gone(&e) => Ok(false),
            open => Ok(open.map(|open| (open.fsid, open.fileid) == (named.fsid, named.fileid))?),
        }
    }

    /// Makes one that must not exist.
    async fn new_partial(&self, path: &str) -> Result<File, Error> {
        let set = SetAttributes { mode: Some(PRIVATE_MODE), ..SetAttributes::default() };
        match &self.mount {
            Mounted::V3(mount) => mount.create_new(path, set).await,
            Mounted::V4(mount) => mount.create_guarded(path, set).await,
        }
    }

    /// Whether a partial file has the owner and mode that the server gives to ours.
    async fn is_like_new(&self, path: &str, found: &Attributes) -> Result<bool, Failure> {
        let beside = nobody_else_s(path)?;
        let new = self.new_partial(&beside).await?;
        let made = new.stat().await;
        new.close().await?;
        self.remove(&beside).await?;
        let made = made?;
        Ok((made.uid, made.mode & 0o7777) == (found.uid, found.mode & 0o7777))
    }

    /// Says so where the server lets those read a partial file who may not read its target, which has `mode` or gets it.
    async fn check_hidden(&self, partial: &File, mode: u32, target: &str) -> Result<(), Failure> {
        let hidden = SHOWN & !mode;
        if hidden != 0 && !self.told.get() && partial.stat().await?.mode & hidden != 0 {
            self.told.set(true);
            note_shown(target);
        }
        Ok(())
    }

    /// Puts `from` in the place of `to`, which keeps its mode and owner; a new one gets `mode`.
    async fn replace(&self, from: &str, to: &str, mode: u32) -> Result<(), Failure> {
        match either!(&self.mount, mount => mount.stat(to).await) {
            // Its other names must see the new content, and so must the owner that we cannot give the new one.
            Ok(there) if there.nlink > 1 || !self.take_attributes(from, &there).await? => {
                note!(
                    "weft: {to} is written in place: it has other names, or an owner or mode that cannot be kept"
                );
                return self.overwrite_alone(from, to).await;
            }
            Err(e) if e.status() == Some(Status::NOENT) => self.give_mode(from, mode).await?,
            Err(e) => return Err(e.into()),
            Ok(_) => {}
        }
        Ok(either!(&self.mount, mount => mount.rename(from, to).await)?)
    }

    /// Gives a partial file the mode of a new one, unless the server has modes of its own.
    async fn give_mode(&self, path: &str, mode: u32) -> Result<(), Failure> {
        if mode == PRIVATE_MODE {
            return Ok(());
        }
        match self.set(path, SetAttributes { mode: Some(mode), ..SetAttributes::default() }).await {
            Err(e) if e.status().is_some() => {
                tracing::debug!("{path} does not get its mode: {e}");
                let made = either!(&self.mount, mount => mount.stat(path).await)?.mode;
                if made & mode & SHOWN != mode & SHOWN {
                    note!(
                        "weft: the server does not let us set modes: what it makes has {:04o}",
                        made & 0o7777
                    );
                }
                Ok(())
            }
            set => Ok(set?),
        }
    }

    /// Overwrites `to` while no other command does: two of them would mix their contents. A file beside it says that one is
    /// at it. Version 4 keeps that open, and the server closes it for one that was killed; by version 3 it stays then.
    async fn overwrite_alone(&self, from: &str, to: &str) -> Result<(), Failure> {
        let marker = beside(to, "");
        let set = made(FILE_MODE);
        let turn = match &self.mount {
            Mounted::V3(mount) => match mount.create_new(&marker, set).await {
                Err(e) if e.status() == Some(Status::EXIST) => {
                    let left = format!("{UNDER_WAY}, or was killed: then remove {marker}");
                    return Err(left.into());
                }
                made => made?,
            },
            Mounted::V4(mount) => mount.create_alone(&marker, set).await.map_err(in_use)?,
        };
        let overwritten = self.overwrite(from, to).await;
        // The next one comes when this is closed, and makes it anew.
        let removed = self.remove(&marker).await;
        turn.close().await?;
        overwritten.and(removed)
    }

    /// Gives a file the mode and owner of another; false where the server does not let us.
    async fn take_attributes(&self, path: &str, of: &Attributes) -> Result<bool, Failure> {
        let ours = either!(&self.mount, mount => mount.stat(path).await)?;
        let set = SetAttributes {
            // What was made set-id was the old content.
            mode: (ours.mode & 0o7777 != of.mode & 0o1777).then_some(of.mode & 0o1777),
            uid: (ours.uid != of.uid).then_some(of.uid),
            gid: (ours.gid != of.gid).then_some(of.gid),
            ..SetAttributes::default()
        };
        if (set.mode, set.uid, set.gid) == (None, None, None) {
            return Ok(true);
        }
        match self.set(path, set).await {
            Ok(()) => Ok(true),
            Err(e) if e.status().is_some() => {
                tracing::debug!("{path} does not get the owner and mode of what it replaces: {e}");
                Ok(false)
            }
            Err(e) => Err(e.into()),
        }
    }

    async fn set(&self, path: &str, set: SetAttributes) -> Result<(), Error> {
        match &self.mount {
            Mounted::V3(mount) => mount.setattr(mount.lookup(path).await?.0, set).await,
            Mounted::V4(mount) => mount.setattr(path, &set).await,
        }
    }

    /// Copies the content of one file into another, and removes the first.
    async fn overwrite(&self, from: &str, to: &str) -> Result<(), Failure> {
        let (source, target) = match &self.mount {
            Mounted::V3(mount) => (mount.open(from).await?, mount.open(to).await?),
            Mounted::V4(mount) => (mount.open(from, false).await?, mount.open(to, true).await?),
        };
        let found = source.stat().await?;
        let blocks = (0..found.size.div_ceil(BLOCK_BYTES)).map(|i| {
            let (source, target, offset) = (&source, &target, i * BLOCK_BYTES);
            async move {
                let bytes = source.read(offset, BLOCK_BYTES.min(found.size - offset) as usize).await?;
                target.write(offset, bytes).await
            }
        });
        let mut copying = stream::iter(blocks).buffer_unordered(QUEUE_DEPTH);
        while let Some(copied) = copying.next().await {
            copied?;
        }
        drop(copying);
        target.set_len(found.size).await?;
        let mtime = SetTime::Client(found.mtime);
        target.set(SetAttributes { mtime, ..SetAttributes::default() }).await?;
        target.commit().await?;
        target.close().await?;
        source.close().await?;
        Ok(either!(&self.mount, mount => mount.remove(from).await)?)
    }

    fn version(&self) -> &'static str {
        match &self.mount {
            Mounted::V3(_) => "3",
            Mounted::V4(_) => "4.1",
        }
    }

    fn peer(&self) -> String {
        either!(&self.mount, mount => mount.channel()).peer().to_string()
    }
}

/// Whether a time is within a day from now: as far as clocks may differ.
fn is_recent(time: When) -> bool {
    When::from(SystemTime::now()).secs.abs_diff(time.secs) < DAY_SECS
}

fn when(time: Time) -> When {
    When { secs: time.seconds, nanos: time.nseconds }
}

struct NfsFile(File);

impl RemoteFile for NfsFile {
    fn len(&self) -> Answer<'_, u64> {
        async move { Ok(self.0.stat().await?.size) }.boxed_local()
    }

    fn read(&self, offset: u64, len: u32) -> Answer<'_, Bytes> {
        async move { Ok(self.0.read(offset, len as usize).await?) }.boxed_local()
    }

    fn write(&self, offset: u64, data: Bytes) -> Answer<'_, ()> {
        async move { Ok(self.0.write(offset, data).await?) }.boxed_local()
    }

    fn set_modified(&self, at: When) -> Answer<'_, bool> {
        async move {
            let mtime = SetTime::Client(Time { seconds: at.secs, nseconds: at.nanos });
            let set = SetAttributes { mtime, ..SetAttributes::default() };
            match self.0.set(set).await {
                Err(Error::Time) => Ok(false),
                done => Ok(done.map(|()| true)?),
            }
        }
        .boxed_local()
    }

    fn flush(&self) -> Answer<'_, ()> {
        async move { Ok(self.0.commit().await?) }.boxed_local()
    }

    fn set_len(&self, len: u64) -> Answer<'_, ()> {
        async move { Ok(self.0.set_len(len).await?) }.boxed_local()
    }

    fn close(&self) -> Answer<'_, ()> {
        // What was written becomes durable when it is closed, as kernels do it.
        async move { Ok(self.0.close().await?) }.boxed_local()
    }
}

#[cfg(test)]
mod tests;
