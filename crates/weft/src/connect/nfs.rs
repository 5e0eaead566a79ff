//! NFS exports as remote folders.
//!
//! NFS names its ports in the URL, because Weft needs no rpcbind: `mountport` for MOUNT over TCP (without it MOUNT is
//! asked on the NFS connection, as Weft's servers allow), `rdmaport` for NFS over RDMA.
//! Owns: nothing beyond the mount. Does not: choose (see the parent).

use std::rc::Rc;

use bytes::Bytes;
use futures_util::FutureExt;
use weft_nfs::client::{
    AuthSys, Credential, Error, File, FileType, Mount, Options, SetAttributes, SetTime, Status, Time,
};
use weft_rdma::Traffic;
use weft_transport::{Channel, record, rpcrdma};

use super::{Answer, Dial, Medium, NFS_RDMA_PORT, RemoteEntry, RemoteFile, RemoteFolder, RemoteStat};
use crate::Failure;
use crate::when::When;

/// Connects and mounts the export.
pub(super) async fn connect(
    dial: &Dial<'_>,
) -> Result<(Box<dyn RemoteFolder>, Medium, &'static str), Failure> {
    let mut last: Option<Failure> = None;
    for (medium, reason) in dial.choices(|medium| medium != Medium::Rnic && dial.url.rdma_port.is_some()) {
        match mount(dial, medium).await {
            Ok(mount) => return Ok((Box::new(Export { mount, medium }), medium, reason)),
            Err(e) => {
                tracing::debug!("by {}: {e}", medium.name());
                last = Some(e);
            }
        }
    }
    Err(last.unwrap_or_else(|| "no transport to try".into()))
}

async fn mount(dial: &Dial<'_>, medium: Medium) -> Result<Mount, Failure> {
    let tcp = async |port| -> Result<Rc<dyn Channel>, Failure> {
        let stream = dial.tcp(port).await?;
        let channel: Rc<dyn Channel> =
            record::Record::new(stream, dial.pool.clone(), record::Config::default());
        Ok(channel)
    };
    let channel: Rc<dyn Channel> = match dial.provider(medium) {
        None => tcp(dial.url.port).await?,
        Some(provider) => {
            let addr = dial.address(dial.url.rdma_port.unwrap_or(NFS_RDMA_PORT))?;
            rpcrdma::connect(provider.as_ref(), addr, rpcrdma::Config::default(), dial.pool.clone())
                .await
                .map_err(|e| format!("NFS over RDMA by {} to {addr}: {e}", medium.name()))?
        }
    };
    let mountd = match dial.url.mount_port {
        Some(port) => tcp(port).await?,
        None => channel.clone(),
    };
    let host = Bytes::copy_from_slice(rustix::system::uname().nodename().to_bytes());
    let (uid, gid) = (rustix::process::getuid().as_raw(), rustix::process::getgid().as_raw());
    let credential = Credential::Sys(AuthSys::new(host, uid, gid));
    let options = Options { credential, pool: dial.pool.clone() };
    let path = format!("/{}", dial.url.share);
    Ok(Mount::connect_with(channel, mountd, &path, options)
        .await
        .map_err(|e| format!("mounting {path}: {e}"))?)
}

struct Export {
    mount: Mount,
    medium: Medium,
}

impl RemoteFolder for Export {
    fn open<'a>(&'a self, path: &'a str, _write: bool) -> Answer<'a, Rc<dyn RemoteFile>> {
        async move { Ok(Rc::new(NfsFile(self.mount.clone(), self.mount.open(path).await?)) as Rc<dyn RemoteFile>) }.boxed_local()
    }

    fn create<'a>(&'a self, path: &'a str) -> Answer<'a, Rc<dyn RemoteFile>> {
        async move {
            let set = SetAttributes { size: Some(0), ..SetAttributes::default() };
            Ok(Rc::new(NfsFile(self.mount.clone(), self.mount.create(path, set).await?))
                as Rc<dyn RemoteFile>)
        }
        .boxed_local()
    }

    fn list<'a>(&'a self, path: &'a str) -> Answer<'a, Vec<RemoteEntry>> {
        async move {
            let mut entries = Vec::new();
            for entry in self.mount.list(path).await? {
                let name = String::from_utf8_lossy(&entry.name).into_owned();
                if name == "." || name == ".." {
                    continue;
                }
                let folder = entry.attributes.as_ref().is_some_and(|a| a.kind == FileType::Dir);
                let size = entry.attributes.as_ref().map_or(0, |a| a.size);
                let modified = entry.attributes.as_ref().map_or(When::default(), |a| when(a.mtime));
                entries.push(RemoteEntry { name, folder, size, modified });
            }
            Ok(entries)
        }
        .boxed_local()
    }

    fn stat<'a>(&'a self, path: &'a str) -> Answer<'a, Option<RemoteStat>> {
        async move {
            match self.mount.stat(path).await {
                Ok(attributes) => Ok(Some(RemoteStat {
                    folder: attributes.kind == FileType::Dir,
                    size: attributes.size,
                    allocated: attributes.used,
                    created: None,
                    modified: when(attributes.mtime),
                    accessed: when(attributes.atime),
                })),
                Err(Error::Status(Status::NOENT)) => Ok(None),
                Err(e) => Err(e.into()),
            }
        }
        .boxed_local()
    }

    fn mkdir<'a>(&'a self, path: &'a str) -> Answer<'a, ()> {
        async move {
            match self.mount.mkdir(path, SetAttributes::default()).await {
                Ok(_) | Err(Error::Status(Status::EXIST)) => Ok(()),
                Err(e) => Err(e.into()),
            }
        }
        .boxed_local()
    }

    fn rmdir<'a>(&'a self, path: &'a str) -> Answer<'a, ()> {
        async move { Ok(self.mount.rmdir(path).await?) }.boxed_local()
    }

    fn remove<'a>(&'a self, path: &'a str) -> Answer<'a, ()> {
        async move { Ok(self.mount.remove(path).await?) }.boxed_local()
    }

    fn rename<'a>(&'a self, from: &'a str, to: &'a str) -> Answer<'a, ()> {
        async move { Ok(self.mount.rename(from, to).await?) }.boxed_local()
    }

    fn traffic(&self) -> Traffic {
        self.mount.channel().traffic()
    }

    fn describe(&self) -> String {
        let rdma = if self.medium == Medium::Tcp { "payload in messages" } else { "payload by RDMA" };
        format!("NFSv3 to {} by {}, {rdma}", self.mount.channel().peer(), self.medium.name())
    }

    fn close(&self) -> Answer<'_, ()> {
        async move {
            self.mount.channel().close();
            Ok(())
        }
        .boxed_local()
    }
}

fn when(time: Time) -> When {
    When { secs: i64::from(time.seconds), nanos: time.nseconds }
}

struct NfsFile(Mount, File);

impl RemoteFile for NfsFile {
    fn len(&self) -> Answer<'_, u64> {
        async move { Ok(self.1.stat().await?.size) }.boxed_local()
    }

    fn read(&self, offset: u64, len: u32) -> Answer<'_, Bytes> {
        async move { Ok(self.1.read(offset, len as usize).await?) }.boxed_local()
    }

    fn write(&self, offset: u64, data: Bytes) -> Answer<'_, ()> {
        async move { Ok(self.1.write(offset, data).await?) }.boxed_local()
    }

    fn set_modified(&self, at: When) -> Answer<'_, ()> {
        async move {
            let Ok(seconds) = u32::try_from(at.secs) else { return Ok(()) };
            let mtime = SetTime::Client(Time { seconds, nseconds: at.nanos });
            let set = SetAttributes { mtime, ..SetAttributes::default() };
            Ok(self.0.setattr(self.1.handle(), set).await?)
        }
        .boxed_local()
    }

    fn flush(&self) -> Answer<'_, ()> {
        async move { Ok(self.1.commit().await?) }.boxed_local()
    }

    fn close(&self) -> Answer<'_, ()> {
        // NFSv3 has no open state; what was written becomes durable when it is closed, as kernels do it.
        self.flush()
    }
}
