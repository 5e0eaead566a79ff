//! SMB shares as remote folders.
//!
//! A Weft server tells over TCP where its RDMA endpoints are; other servers are assumed at the standard port.
//! Owns: nothing beyond the session. Does not: choose (see the parent).

use std::cell::RefCell;
use std::rc::Rc;

use bytes::Bytes;
use futures_util::FutureExt;
use weft_machine::rt::{self, Task};
use weft_rdma::Traffic;
use weft_smb::client::{Carrier, Endpoint, File, Filetime, OpenOptions, Options, Session, Tree, Wish};

use super::channels::{self, Keeper};
use super::{
    Answer, Dial, Medium, RemoteEntry, RemoteFile, RemoteFolder, RemoteShare, RemoteStat, SMB_DIRECT_PORT,
};
use crate::Failure;
use crate::args::Transport;
use crate::when::When;

/// Connects and enters the share.
pub(super) async fn connect(
    dial: &Dial<'_>,
    password: &str,
) -> Result<(Box<dyn RemoteFolder>, Medium, &'static str), Failure> {
    let mut announced: Vec<Endpoint> = Vec::new();
    let wants_tcp = dial.options.transport == Transport::Tcp;
    if !wants_tcp && dial.url.rdma_port.is_none() {
        // Ask over TCP. A server that does not know the question has no RDMA that we could find by asking.
        let session = log_on(dial, Medium::Tcp, 0, password).await?;
        match session.endpoints().await {
            Ok(endpoints) => announced = endpoints,
            Err(e) if e.status().is_some() => tracing::debug!("the server announces no endpoints: {e}"),
            Err(e) => return Err(e.into()),
        }
        session.logoff().await?;
    }
    let announced = |medium: Medium| -> Option<u16> {
        announced.iter().find(|e| e.kind == medium.name()).and_then(|e| e.address.parse().ok())
    };
    // An iWARP device and our own iWARP understand each other.
    let port_of = |medium: Medium| {
        let alike = match medium {
            Medium::Rnic => announced(Medium::Iwarp),
            Medium::Iwarp => announced(Medium::Rnic),
            Medium::Tcp | Medium::Shm => None,
        };
        dial.url.rdma_port.or_else(|| announced(medium)).or(alike)
    };
    // A port in the URL does not say that devices reach it, and one that does not answer costs seconds.
    let worth_trying = |medium| match medium {
        Medium::Rnic => announced(medium).is_some(),
        _ => dial.url.rdma_port.or_else(|| announced(medium)).is_some(),
    };
    let mut last: Option<Failure> = None;
    for (medium, reason) in dial.choices(worth_trying) {
        let port = port_of(medium).unwrap_or(SMB_DIRECT_PORT);
        match log_on(dial, medium, port, password).await {
            Ok(session) => {
                let tree = session.tree(&dial.url.share).await?;
                let port = if medium == Medium::Tcp { dial.url.port } else { port };
                let keeper = Keeper::new(dial, medium, dial.address(port)?);
                keeper.fill(&session).await;
                let _keeper = rt::spawn(keeper.keep(session.clone()));
                return Ok((Box::new(SmbShare { session, tree, _keeper }), medium, reason));
            }
            Err(e) => {
                tracing::debug!("by {}: {e}", medium.name());
                last = Some(e);
            }
        }
    }
    Err(last.unwrap_or_else(|| "no transport to try".into()))
}

/// The shares of a server, asked over TCP. Those that are not meant to be shown are left out.
pub(super) async fn shares(dial: &Dial<'_>, password: &str) -> Result<Vec<RemoteShare>, Failure> {
    let session = log_on(dial, Medium::Tcp, 0, password).await?;
    let shares = session.shares().await?;
    session.logoff().await?;
    let shown = shares.into_iter().filter(|share| share.is_disk && !share.hidden);
    Ok(shown.map(|share| RemoteShare { name: share.name, remark: share.remark }).collect())
}

async fn log_on(dial: &Dial<'_>, medium: Medium, port: u16, password: &str) -> Result<Session, Failure> {
    let port = if medium == Medium::Tcp { dial.url.port } else { port };
    let channel = channels::open(dial, medium, dial.address(port)?).await?;
    let mut options = Options::new(&dial.url.host, &dial.url.user, password, dial.pool.clone());
    if dial.options.sign {
        options.signing = Wish::Required;
    }
    if dial.options.encrypt {
        options.encryption = Wish::Required;
    }
    Ok(Session::connect(channel, options).await?)
}

struct SmbShare {
    session: Session,
    tree: Tree,
    /// Looks after the connections; ends with this.
    _keeper: Task<()>,
}

impl RemoteFolder for SmbShare {
    fn open<'a>(&'a self, path: &'a str, write: bool) -> Answer<'a, Rc<dyn RemoteFile>> {
        let options = if write { OpenOptions::write() } else { OpenOptions::read() };
        async move { Ok(SmbFile::opened(self.tree.open(path, options).await?)) }.boxed_local()
    }

    fn create<'a>(&'a self, path: &'a str) -> Answer<'a, Rc<dyn RemoteFile>> {
        async move { Ok(SmbFile::opened(self.tree.open(path, OpenOptions::truncate()).await?)) }.boxed_local()
    }

    fn list<'a>(&'a self, path: &'a str) -> Answer<'a, Vec<RemoteEntry>> {
        async move {
            let entries = self.tree.list(path).await?;
            Ok(entries
                .into_iter()
                .map(|e| RemoteEntry {
                    name: e.name,
                    folder: e.stat.is_dir,
                    size: e.stat.len,
                    modified: When::from(e.stat.modified.to_unix()),
                })
                .collect())
        }
        .boxed_local()
    }

    fn stat<'a>(&'a self, path: &'a str) -> Answer<'a, Option<RemoteStat>> {
        async move {
            match self.tree.stat(path).await {
                Ok(stat) => Ok(Some(RemoteStat {
                    folder: stat.is_dir,
                    size: stat.len,
                    allocated: stat.allocated,
                    created: Some(When::from(stat.created.to_unix())),
                    modified: When::from(stat.modified.to_unix()),
                    accessed: When::from(stat.accessed.to_unix()),
                })),
                Err(e) if e.is_not_found() => Ok(None),
                Err(e) => Err(e.into()),
            }
        }
        .boxed_local()
    }

    fn mkdir<'a>(&'a self, path: &'a str) -> Answer<'a, ()> {
        async move {
            match self.tree.mkdir(path).await {
                Err(_) if self.tree.stat(path).await.is_ok_and(|stat| stat.is_dir) => Ok(()),
                other => Ok(other?),
            }
        }
        .boxed_local()
    }

    fn rmdir<'a>(&'a self, path: &'a str) -> Answer<'a, ()> {
        async move { Ok(self.tree.rmdir(path).await?) }.boxed_local()
    }

    fn remove<'a>(&'a self, path: &'a str) -> Answer<'a, ()> {
        async move { Ok(self.tree.remove(path).await?) }.boxed_local()
    }

    fn rename<'a>(&'a self, from: &'a str, to: &'a str) -> Answer<'a, ()> {
        async move { Ok(self.tree.rename(from, to, true).await?) }.boxed_local()
    }

    fn traffic(&self) -> Traffic {
        self.session.traffic()
    }

    fn describe(&self) -> String {
        self.session.describe().to_string()
    }

    fn connections(&self) -> Vec<String> {
        let words = |carrier: Carrier| {
            let traffic = carrier.traffic;
            let rdma = traffic.written.0 + traffic.placed.0 + traffic.read.0 + traffic.served.0;
            let messages = traffic.sent.0 + traffic.received.0;
            format!("{} to {}: {rdma} bytes by RDMA, {messages} in messages", carrier.medium, carrier.peer)
        };
        self.session.carriers().into_iter().map(words).collect()
    }

    fn lost_connections(&self) -> u32 {
        self.session.lost_connections()
    }

    fn close(&self) -> Answer<'_, ()> {
        async move { Ok(self.session.logoff().await?) }.boxed_local()
    }
}

/// An open file until it is closed.
struct SmbFile(RefCell<Option<File>>);

impl SmbFile {
    fn opened(file: File) -> Rc<dyn RemoteFile> {
        Rc::new(SmbFile(RefCell::new(Some(file))))
    }

    fn file(&self) -> Result<File, Failure> {
        self.0.borrow().clone().ok_or_else(|| "the file was closed".into())
    }
}

impl RemoteFile for SmbFile {
    fn len(&self) -> Answer<'_, u64> {
        async move { Ok(self.file()?.stat().await?.len) }.boxed_local()
    }

    fn read(&self, offset: u64, len: u32) -> Answer<'_, Bytes> {
        async move { Ok(self.file()?.read(offset, len as usize).await?) }.boxed_local()
    }

    fn write(&self, offset: u64, data: Bytes) -> Answer<'_, ()> {
        async move { Ok(self.file()?.write(offset, data).await?) }.boxed_local()
    }

    fn set_modified(&self, at: When) -> Answer<'_, ()> {
        async move {
            let time = Filetime::from_unix(at.secs, at.nanos);
            Ok(self.file()?.set_times(None, Some(time)).await?)
        }
        .boxed_local()
    }

    fn flush(&self) -> Answer<'_, ()> {
        async move { Ok(self.file()?.flush().await?) }.boxed_local()
    }

    fn close(&self) -> Answer<'_, ()> {
        let file = self.0.borrow_mut().take();
        async move {
            match file {
                Some(file) => Ok(file.close().await?),
                None => Ok(()),
            }
        }
        .boxed_local()
    }
}
