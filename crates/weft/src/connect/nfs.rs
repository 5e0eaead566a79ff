//! NFS exports as remote folders.
//!
//! The URL contains the NFS ports, because Weft needs no rpcbind: `mountport` for MOUNT over TCP (without it, MOUNT
//! is sent on the NFS connection, as Weft's servers allow) and `rdmaport` for NFS over RDMA. `vers` chooses the
//! version; without it, and without `mountport`, which only version 3 uses, 4.1 is tried first. [`flavor`] chooses how
//! the server learns who calls. The parent module chooses the transport.

mod flavor;

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
    Attributes, Credential, Error, File, FileType, MAX_LINES, Mount, Options, Service, SetAttributes,
    SetTime, Status, Time, v4,
};
use weft_rdma::Traffic;
use weft_transport::{Channel, record, rpcrdma};
use weft_wire::mount::MountStatus;
use weft_wire::nfs4::Status as Status4;
use weft_wire::rpc::{AuthStat, Reply};

use self::flavor::Chosen;
use super::dial::{Dial, Medium};
use super::logon::let_in;
use super::reach;
use super::{
    Agreed, Answer, Behind, FILE_MODE, Partial, RemoteDraft, RemoteEntry, RemoteFile, RemoteFolder,
    RemoteStat, UNDER_WAY, note_shown,
};
use crate::Failure;
use crate::default_port;
use crate::misuse::Misuse;
use crate::out::shell_word;
use crate::partial::partial_name;
use crate::providers;
use crate::transfer::join;
use crate::url::{NfsVersion, Security, Url};
use crate::when::When;

/// Size of one READ and WRITE in a copy from file to file.
const BLOCK_BYTES: u64 = 1 << 20;
/// After this time without a write, a partial file is considered unused.
const DAY_SECS: u64 = 86_400;
/// READs and WRITEs outstanding at a time.
const QUEUE_DEPTH: usize = 8;

/// Connects and mounts the export.
pub(super) async fn connect(
    dial: &Dial<'_>,
) -> Result<(Box<dyn RemoteFolder>, Medium, &'static str), Failure> {
    let mut last: Option<Failure> = None;
    for (medium, reason) in dial.choices(|medium| medium != Medium::Rnic && dial.url.rdma_port.is_some()) {
        match mount(dial, medium).await {
            Ok(((mount, chosen, because), why)) => {
                let told = Cell::default();
                let export = Export { mount, medium, chosen, because, why, told };
                return Ok((Box::new(export), medium, reason));
            }
            Err(e) => {
                tracing::debug!("by {}: {e}", medium.name());
                last = Some(e);
            }
        }
    }
    Err(last.unwrap_or_else(|| "no transport to try".into()))
}

/// Paths that the server exports, from MOUNT: version 4 has no such list.
pub(super) async fn exports(dial: &Dial<'_>) -> Result<Vec<String>, Failure> {
    let (addr, channel) = tcp(dial, dial.url.mount_port.unwrap_or(dial.url.port)).await?;
    let asking = async { Ok(weft_nfs::client::exports(channel, &options(dial, flavor::ids())).await?) };
    let listed = match dial.url.mount_port {
        // Only MOUNT is asked.
        Some(_) => let_in(dial, Medium::Rnic, addr, Some(addr), asking).await,
        None => let_in(dial, Medium::Tcp, addr, None, asking).await,
    };
    let listed = listed.map_err(|e| match e.downcast_ref::<Error>() {
        Some(Error::Rpc(_)) if dial.url.mount_port.is_none() => Failure::from(format!(
            "{}: MOUNT, which lists the exports, is not at port {}: append its port to the URL, ?mountport=20048",
            dial.url.host, dial.url.port
        )),
        _ => e,
    })?;
    Ok(listed.iter().map(|path| String::from_utf8_lossy(path).into_owned()).collect())
}

/// A mount with its flavor.
type Ready = flavor::Mounted<Mounted>;

/// Mounts with the version in the URL, or the best one that the server supports; also returns why, if there was a
/// choice.
async fn mount(dial: &Dial<'_>, medium: Medium) -> Result<(Ready, &'static str), Failure> {
    match (dial.url.version, dial.url.mount_port) {
        (Some(NfsVersion::V3), _) => return Ok((mount_v3(dial, medium).await?, "")),
        (None, Some(_)) => {
            return Ok((mount_v3(dial, medium).await?, ", because mountport implies version 3"));
        }
        _ => {}
    }
    let e = match mount_v4(dial, medium).await {
        Ok(mount) => return Ok((mount, "")),
        Err(e) => match e.downcast::<Error>() {
            Ok(e) => e,
            Err(e) => return Err(e),
        },
    };
    let mounting = refused(dial.url, "4.1", &e);
    // If the versions export different trees, MOUNT may find what LOOKUP does not.
    let other = e.is_version() || e.status() == Some(Status::NOENT);
    if dial.url.version.is_some() || !other {
        return Err(mounting.into());
    }
    match mount_v3(dial, medium).await {
        Ok(mount) if e.is_version() => Ok((mount, ", because the server does not support 4.1")),
        Ok(mount) => Ok((mount, ", because the server exports this only to version 3")),
        Err(also) => Err(format!("{mounting}; {also}").into()),
    }
}

async fn mount_v4(dial: &Dial<'_>, medium: Medium) -> Result<Ready, Failure> {
    let path = path(dial.url);
    let offered = async || {
        let (addr, channel) = channel(dial, medium).await?;
        let options = options(dial, flavor::any_ticket(dial.url));
        let asking = async { Ok(v4::offered(channel, &path, options).await?) };
        let_in(dial, medium, addr, None, asking).await
    };
    let attempt = async |chosen: &Chosen| {
        let (addr, channel) = channel(dial, medium).await?;
        let again = lasting(dial)?.map(|connections| (again(dial, medium), connections));
        let options = options(dial, chosen.credential());
        let mounting = async { Ok(v4::Mount::connect(channel, &path, options, again).await?) };
        let_in(dial, medium, addr, None, mounting).await.map(Mounted::V4)
    };
    flavor::mount(dial.url, dial.options, offered, attempt).await
}

async fn mount_v3(dial: &Dial<'_>, medium: Medium) -> Result<Ready, Failure> {
    let path = path(dial.url);
    let offered = async || {
        let (addr, channel) = tcp(dial, dial.url.mount_port.unwrap_or(dial.url.port)).await?;
        let options = options(dial, flavor::ids());
        let asking = async { Ok(weft_nfs::client::flavors(channel, &path, &options).await?) };
        let_in(dial, Medium::Tcp, addr, Some(addr), asking).await
    };
    let attempt = async |chosen: &Chosen| {
        let (addr, channel) = channel(dial, medium).await?;
        let (mountd_addr, mountd) = match dial.url.mount_port {
            Some(port) => tcp(dial, port).await.map(|(addr, mountd)| (Some(addr), mountd))?,
            None => (None, channel.clone()),
        };
        let options = options(dial, chosen.credential());
        let mounting = async { Ok(Mount::connect_with(channel, mountd, &path, options).await?) };
        let mount = let_in(dial, medium, addr, mountd_addr, mounting).await?;
        Ok(Mounted::V3(match lasting(dial)? {
            Some(connections) => mount.keep_connected(again(dial, medium), connections),
            None => mount,
        }))
    };
    let mounted = flavor::mount(dial.url, dial.options, offered, attempt).await;
    mounted.map_err(|e| match e.downcast::<Error>() {
        Ok(e) => refused(dial.url, "3", &e).into(),
        Err(e) => e,
    })
}

/// Why an export cannot be mounted, and what to type.
fn refused(url: &Url, version: &str, e: &Error) -> String {
    let (host, share) = (&url.host, &url.share);
    let none = match e {
        Error::Mount(status) => *status == MountStatus::NOENT,
        e => e.status() == Some(Status::NOENT),
    };
    if let Error::Flavors(offered) = e {
        return format!("export /{share} on {host}: {} (NFSv{version})", flavor::refused(url, offered));
    }
    match none {
        false if matches!(e, Error::Rpc(Reply::AuthError(AuthStat::TOOWEAK))) => {
            let other = Url { security: Some(Security::Krb5p), ..url.clone() };
            format!(
                "export /{share} on {host}: {e} (NFSv{version}); with a Kerberos ticket, write {}",
                shell_word(other.to_string())
            )
        }
        true => {
            format!(
                "no export /{share} on {host} (NFSv{version}); `{}` lists the exports",
                url.server().listing()
            )
        }
        false => format!("export /{share} on {host}: {e} (NFSv{version}){}", about_port(e, may_reserve())),
    }
}

/// Advice if the server refuses because of our source port (exports(5), `secure`).
fn about_port(e: &Error, may_reserve: bool) -> &'static str {
    let refused = |status| e.status() == Some(status);
    let mount = matches!(e, Error::Mount(MountStatus::ACCES | MountStatus::PERM));
    match may_reserve {
        // No other part of a mount fails with this status, and we could not use a reserved port, or RDMA has none.
        _ if refused(Status::PERM) => {
            "; the export requires a reserved port (below 1024): run weft as root, or add `insecure` to the export"
        }
        false if mount || refused(Status::ACCES) => {
            "; if the export requires a reserved port (below 1024): run weft as root, add `insecure` to the export, or show a Kerberos ticket (-k)"
        }
        _ => "",
    }
}

fn path(url: &Url) -> String {
    format!("/{}", url.share)
}

/// How many connections are kept open. `None`: a loss is an error, because a measurement must notice it.
fn lasting(dial: &Dial<'_>) -> Result<Option<usize>, Failure> {
    if dial.congestion.is_some() {
        return Ok(None);
    }
    let connections = dial.options.channels.unwrap_or(1) as usize;
    if connections > MAX_LINES {
        return Err(Misuse::new(format!("--channels {connections}: at most {MAX_LINES}")).into());
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
    let port = dial.url.rdma_port.unwrap_or(default_port::NFS_RDMA);
    let connected = dial.rdma(&format!("NFS over RDMA by {}", medium.name()), port, connect).await;
    let (addr, channel) = connected.map_err(|e| match dial.url.rdma_port {
        Some(_) => e,
        None => format!(
            "{e}; if it uses another port, append it to the URL: ?rdmaport=N (weft serve: --nfs-rdma-port)"
        )
        .into(),
    })?;
    Ok((addr, channel))
}

fn options(dial: &Dial<'_>, credential: Credential) -> Options {
    Options { credential, pool: dial.pool.clone() }
}

/// Opens further connections like the first.
fn again(dial: &Dial<'_>, medium: Medium) -> weft_nfs::client::Dial {
    let (pool, crc) = (dial.pool.clone(), !dial.options.no_crc);
    let congestion = dial.congestion.map(str::to_owned);
    let port = match medium {
        Medium::Tcp => dial.url.port,
        _ => dial.url.rdma_port.unwrap_or(default_port::NFS_RDMA),
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
            // The first address is the one at which the server was reached.
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

/// Calls the method of the same name in either variant.
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
    /// How the server learns who calls.
    chosen: Chosen,
    /// Why, if worth saying.
    because: &'static str,
    /// Why this version was chosen, if worth saying.
    why: &'static str,
    /// Whether the user was warned that partial files are not hidden on this server.
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
                    // A command may be using it; then it would have written recently.
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
        // Names that differ in spelling are different names.
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
        let rdma = match self.chosen.service() {
            _ if self.medium == Medium::Tcp => "payload in messages",
            None | Some(Service::None) => "payload by RDMA",
            // RFC 8166 8.2.2.3.
            Some(Service::Integrity | Service::Privacy) => "payload in protected messages",
        };
        let (version, by, who) = (self.version(), self.medium.name(), self.chosen.shown());
        format!("NFSv{version} to {} by {by}{who}{}, {rdma}{}", self.peer(), self.because, self.why)
    }

    fn agreed(&self) -> LocalBoxFuture<'_, Agreed> {
        // NFSv3 has no field in which a server names itself; that of 4.1 is for logs only (RFC 8881 18.35.3).
        let service = self.chosen.service();
        let kerberos = |only: Service| {
            service.filter(|service| *service == only).map(|service| flavor::name(service).to_owned())
        };
        let agreed = Agreed {
            dialect: format!("NFS {}", self.version()),
            signing: kerberos(Service::Integrity),
            encryption: kerberos(Service::Privacy),
            ..Agreed::default()
        };
        async { agreed }.boxed_local()
    }

    fn close(&self) -> Answer<'_, ()> {
        async move {
            match &self.mount {
                Mounted::V3(mount) => mount.end().await,
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

/// The same with an unpredictable name.
fn nobody_else_s(target: &str) -> Result<String, Failure> {
    let bytes: [u8; 8] = random::bytes().map_err(|e| e.to_string())?;
    Ok(beside(target, &format!(".{:016x}", u64::from_le_bytes(bytes))))
}

/// Explains that another client has the file open.
fn in_use(e: Error) -> Failure {
    if e.is_in_use() {
        format!("{UNDER_WAY}, or was killed within the lease that the server gives its clients ({e})").into()
    } else {
        e.into()
    }
}

/// An open partial file.
///
/// Without a tag its name is random, so that nobody else finds it: version 3 has no opens that would exclude others.
/// With a tag, version 4's share reservation excludes others. Over version 3 several commands may write it, but the
/// tag identifies one version of one source, so they write the same bytes, and none truncates it.
///
/// Commands of other users choose the same name for the same tag, and may remove our file if the folder's permissions
/// allow. So the object at that name is moved or removed only while it is the file that is open.
///
/// Only its owner can access it until it is complete.
struct NfsDraft<'a> {
    export: &'a Export,
    partial: Partial,
    /// The partial file.
    file: Rc<NfsFile>,
    /// The mode of the new file if there is no target in the end.
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
            // Some servers do not rename open files.
            file.close().await?;
            self.export.replace(path, target, self.mode).await
        }
        .boxed_local()
    }

    fn discard(&self) -> Answer<'_, ()> {
        async move {
            let Partial { path, file, resumable, .. } = &self.partial;
            let ours = if *resumable { self.export.is_at(path, &self.file.0).await } else { Ok(true) };
            // Closed before it is removed: the space of an open file is not freed.
            if let Err(e) = file.close().await {
                tracing::debug!("closing {path}: {e}");
            }
            if ours? { self.export.remove(path).await } else { Ok(()) }
        }
        .boxed_local()
    }
}

/// The mode passed to mkdir(2), before the umask.
const FOLDER_MODE: u32 = 0o777;
/// The mode of partial files.
const PRIVATE_MODE: u32 = 0o600;
/// The bit of a mode that lets the owner read.
const OWNER_READS: u32 = 0o400;
/// The bits that let the group and others read.
const SHOWN: u32 = 0o044;

/// Attributes of a new file or folder. Without a mode the server chooses one: Linux chooses 0, which lets nobody
/// read.
fn made(mode: u32) -> SetAttributes {
    SetAttributes { mode: Some(mode & !umask()), ..SetAttributes::default() }
}

/// This process's umask, which never changes.
fn umask() -> u32 {
    static UMASK: OnceLock<u32> = OnceLock::new();
    *UMASK.get_or_init(|| {
        let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
        let told = status.lines().find_map(|line| line.strip_prefix("Umask:"));
        told.and_then(|octal| u32::from_str_radix(octal.trim(), 8).ok()).unwrap_or(0o022)
    })
}

impl Export {
    /// Creates the partial file of a tag, or opens the one left by an earlier command. `None`: the name is taken by a
    /// file that does not look like ours. It stays, because its owner may be using it.
    async fn tagged(&self, path: String) -> Result<Option<(String, File)>, Failure> {
        match self.new_partial(&path).await {
            Err(e) if e.status() == Some(Status::EXIST) => {}
            // A server creates a file and then opens it, so another command may have opened it first.
            made => return Ok(Some((path, made.map_err(in_use)?))),
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
        // Its creator could read the content written to it.
        note!("weft: {path} belongs to another user, or others can read it: not resumed");
        Ok(None)
    }

    /// Whether this name refers to this file.
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

    /// Creates a file that must not exist yet.
    async fn new_partial(&self, path: &str) -> Result<File, Error> {
        let set = SetAttributes { mode: Some(PRIVATE_MODE), ..SetAttributes::default() };
        match &self.mount {
            Mounted::V3(mount) => mount.create_new(path, set).await,
            Mounted::V4(mount) => mount.create_guarded(path, set).await,
        }
    }

    /// Whether a partial file has the owner and mode that the server gives to our files.
    async fn is_like_new(&self, path: &str, found: &Attributes) -> Result<bool, Failure> {
        let beside = nobody_else_s(path)?;
        let new = self.new_partial(&beside).await?;
        let made = new.stat().await;
        new.close().await?;
        self.remove(&beside).await?;
        let made = made?;
        Ok((made.uid, made.mode & 0o7777) == (found.uid, found.mode & 0o7777))
    }

    /// Warns if users who may not read the target (now or with its future `mode`) can read the partial file.
    async fn check_hidden(&self, partial: &File, mode: u32, target: &str) -> Result<(), Failure> {
        let hidden = SHOWN & !mode;
        if hidden != 0 && !self.told.get() && partial.stat().await?.mode & hidden != 0 {
            self.told.set(true);
            note_shown(target);
        }
        Ok(())
    }

    /// Moves `from` over `to`, keeping the mode and owner of `to`; a new file gets `mode`.
    async fn replace(&self, from: &str, to: &str, mode: u32) -> Result<(), Failure> {
        match either!(&self.mount, mount => mount.stat(to).await) {
            Ok(there) => {
                if let Some(why) = self.why_in_place(from, to, &there).await? {
                    note!("weft: {to} is written in place: {why}");
                    return self.overwrite_alone(from, to).await;
                }
            }
            Err(e) if e.status() == Some(Status::NOENT) => self.give_mode(from, mode).await?,
            Err(e) => return Err(e.into()),
        }
        Ok(either!(&self.mount, mount => mount.rename(from, to).await)?)
    }

    /// Why `from` cannot take the place of the target `to`, whose mode and owner it gets. Version 3 shows neither ACLs
    /// nor extended attributes.
    async fn why_in_place(
        &self,
        from: &str,
        to: &str,
        there: &Attributes,
    ) -> Result<Option<&'static str>, Failure> {
        if there.nlink > 1 {
            return Ok(Some("it has hard links"));
        }
        if !self.take_attributes(from, there).await? {
            return Ok(Some("its owner or mode cannot be kept"));
        }
        let Mounted::V4(mount) = &self.mount else { return Ok(None) };
        let (theirs, ours) = futures_util::join!(mount.extras(to), mount.extras(from));
        if let (Some(theirs), Some(ours)) = (shown(theirs)?, shown(ours)?)
            && theirs == ours
        {
            return Ok(None);
        }
        if there.mode & OWNER_READS == 0 {
            // Its content is read from it.
            self.set(from, SetAttributes { mode: Some(PRIVATE_MODE), ..SetAttributes::default() }).await?;
        }
        Ok(Some("its ACL or named attributes would be lost"))
    }

    /// Gives a partial file the mode of a new one, unless the server ignores modes.
    async fn give_mode(&self, path: &str, mode: u32) -> Result<(), Failure> {
        if mode == PRIVATE_MODE {
            return Ok(());
        }
        // Setting an equal mode would change the ACL that its folder has handed down.
        let made = either!(&self.mount, mount => mount.stat(path).await)?.mode;
        if made & 0o7777 == mode {
            return Ok(());
        }
        match self.set(path, SetAttributes { mode: Some(mode), ..SetAttributes::default() }).await {
            Err(e) if e.status().is_some() => {
                tracing::debug!("{path} cannot get its mode: {e}");
                if made & mode & SHOWN != mode & SHOWN {
                    note!("weft: the server does not let us set modes: new files have {:04o}", made & 0o7777);
                }
                Ok(())
            }
            set => Ok(set?),
        }
    }

    /// Overwrites `to` while no other command does, because two of them would mix their contents. A marker file
    /// beside it excludes others. Over version 4 the marker is open, and the server closes it if the command is
    /// killed; over version 3 it stays then.
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
        // The next command may come when this is closed, and creates a new marker.
        let removed = self.remove(&marker).await;
        turn.close().await?;
        overwritten.and(removed)
    }

    /// Gives a file the mode and owner of another; false if the server does not allow it.
    async fn take_attributes(&self, path: &str, of: &Attributes) -> Result<bool, Failure> {
        let ours = either!(&self.mount, mount => mount.stat(path).await)?;
        let set = SetAttributes {
            // The set-id bits certified the old content.
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
                tracing::debug!("{path} cannot get the owner and mode of the file it replaces: {e}");
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

/// Whether a time is within a day from now, the largest assumed clock difference.
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
        // Closing makes the written data durable, as kernel clients do.
        async move { Ok(self.0.close().await?) }.boxed_local()
    }
}

/// What the server shows of a file's extras; `None` if it does not say.
fn shown(asked: Result<v4::Extras, Error>) -> Result<Option<v4::Extras>, Failure> {
    match asked {
        Ok(extras) => Ok(Some(extras)),
        Err(Error::Status4(Status4::NOTSUPP | Status4::ATTRNOTSUPP)) => {
            Ok(Some(v4::Extras { acl: None, named_attributes: false }))
        }
        // An ACL that is too long for us, or that we may not read.
        Err(e @ (Error::Malformed(_) | Error::Status4(_) | Error::Rpc(_))) => {
            tracing::debug!("an ACL cannot be compared: {e}");
            Ok(None)
        }
        Err(e) => Err(e.into()),
    }
}

#[cfg(test)]
mod tests;
