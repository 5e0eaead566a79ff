//! NFS exports as remote folders.
//!
//! The URL contains the NFS ports, because Weft needs no rpcbind: `mountport` for MOUNT over TCP (without it, MOUNT
//! is sent on the NFS connection, as Weft's servers allow) and `rdmaport` for NFS over RDMA. `vers` chooses the
//! version; without it, and without `mountport`, which only version 3 uses, [`mount`](mod@mount) tries 4.1 first.
//! [`flavor`] chooses how the server learns who calls, and [`draft`] how new content takes a file's place. The parent module
//! chooses the transport.

mod draft;
mod flavor;
mod mount;

use std::cell::Cell;
use std::rc::Rc;
use std::sync::OnceLock;
use std::time::SystemTime;

use bytes::Bytes;
use futures_util::FutureExt;
use futures_util::future::LocalBoxFuture;
use weft_nfs::client::{Error, File, FileType, Service, SetAttributes, SetTime, Status, Time};
use weft_rdma::Traffic;

use self::flavor::Chosen;
use self::mount::{Mounted, either, mount, options, tcp};
use super::dial::{Dial, Medium};
use super::logon::let_in;
use super::{
    Agreed, Answer, Behind, FILE_MODE, RemoteDraft, RemoteEntry, RemoteFile, RemoteFolder, RemoteStat,
};
use crate::Failure;
use crate::when::When;

/// After this time without a write, a partial file is considered unused.
const DAY_SECS: u64 = 86_400;

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
        async move { Ok(Box::new(self.begin(target, tag, mode).await?) as Box<dyn RemoteDraft>) }
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

/// The mode passed to mkdir(2), before the umask.
const FOLDER_MODE: u32 = 0o777;
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

#[cfg(test)]
mod tests;
