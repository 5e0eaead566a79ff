//! An SMB server, optionally also NFS, in a test's process, under virtual time.

use std::cell::RefCell;
use std::net::SocketAddr;
use std::sync::Arc;

use weft_machine::{Listener, Pool, Stream, rt, sim};
use weft_nfs::server as nfsd;
use weft_smb::auth::Secret;
use weft_smb::server::{Config, Dialect, Limits, Server, Signing, User};
use weft_store::backend::Ram;
use weft_store::{Attr, NodeId, SetAttr, Share, Vfs};
use weft_transport::{nbss, record};

use super::Remote;
use crate::args::{Connect, Transport};
use crate::url::Url;

/// A server that can be ended, and restarted on the same files.
pub(crate) struct Served {
    share: Share,
    pool: Pool,
    addr: SocketAddr,
    nfs_addr: SocketAddr,
    running: Vec<rt::Task<()>>,
}

impl Served {
    pub fn new() -> Served {
        let share = Share::new("ram", Vfs::new(Ram::new(512 << 20)));
        let addr = ([127, 0, 0, 1], 0).into();
        let mut served =
            Served { share, pool: Pool::new(64 << 20), addr, nfs_addr: addr, running: Vec::new() };
        served.start();
        served
    }

    /// The server's attributes of the file with this name.
    pub async fn found(&self, name: &str) -> Attr {
        self.share.vfs.lookup(NodeId::ROOT, name.as_bytes(), false).await.unwrap()
    }

    /// Changes a file without the clients' knowledge.
    pub async fn set(&self, name: &str, set: SetAttr) {
        let node = self.found(name).await.node;
        self.share.vfs.setattr(node, set).await.unwrap();
    }

    /// Starts as another process, which does not know the previous one's handles.
    pub fn start(&mut self) {
        let server = Server::new(Config {
            server_guid: [7; 16],
            name: "AWAY".into(),
            shares: vec![self.share.clone()],
            users: vec![User::new("alice", Secret::password("secret"))],
            groups: Vec::new(),
            names: weft_smb::auth::ServerNames::new(["weft"], Vec::new).into(),
            signing: Signing::Enabled,
            min_dialect: Dialect::V3_0,
            require_encryption: false,
            multichannel: false,
            interfaces: Vec::new().into(),
            endpoints: String::new(),
            offers: Default::default(),
            pool: self.pool.clone(),
            limits: Limits::default(),
        });
        let listener = Listener::bind(self.addr).unwrap();
        self.addr = listener.local_addr();
        let (buffers, sessions) = (self.pool.clone(), RefCell::new(Vec::new()));
        self.running.push(rt::spawn(async move {
            loop {
                let stream = Stream::from_socket(listener.accept().await.unwrap()).unwrap();
                let (server, buffers): (Arc<Server>, _) = (server.clone(), buffers.clone());
                sessions.borrow_mut().push(rt::spawn(async move {
                    server.serve(nbss::Nbss::channel(stream, buffers, nbss::Config::default())).await;
                }));
            }
        }));
    }

    /// Ends it abruptly.
    pub async fn end(&mut self) {
        self.running.clear();
        sim::cut_all(sim::CutHow::Reset);
        // Dropped values, including the port, are gone after the next turn.
        rt::yield_now().await;
    }

    pub async fn remote(&self) -> Remote {
        self.remote_by(&format!("smb://alice@{}/ram", self.addr)).await
    }

    /// The same files over this version of NFS.
    pub async fn nfs(&mut self, version: &str) -> Remote {
        self.start_nfs();
        let addr = self.nfs_addr;
        self.remote_by(&format!("nfs://{addr}/ram?vers={version}")).await
    }

    /// Also serves NFS.
    pub fn start_nfs(&mut self) {
        let server = nfsd::Server::new(nfsd::Config {
            shares: vec![self.share.clone()],
            pool: self.pool.clone(),
            limits: nfsd::Limits::default(),
            policy: nfsd::Policy { decides: false, squash_root: true },
            durable: None,
        });
        let listener = Listener::bind(self.nfs_addr).unwrap();
        self.nfs_addr = listener.local_addr();
        let (buffers, mounts) = (self.pool.clone(), RefCell::new(Vec::new()));
        self.running.push(rt::spawn(async move {
            loop {
                let stream = Stream::from_socket(listener.accept().await.unwrap()).unwrap();
                let (server, buffers) = (server.clone(), buffers.clone());
                mounts.borrow_mut().push(rt::spawn(async move {
                    // It ends when its client does.
                    let _ = server
                        .serve(record::Record::channel(stream, buffers, record::Config::default()))
                        .await;
                }));
            }
        }));
    }

    async fn remote_by(&self, url: &str) -> Remote {
        let url = Url::parse(url).unwrap().unwrap();
        let options = Connect::by(Transport::Tcp);
        Remote::connect_as(&url, &options, &Pool::new(64 << 20), "secret", None).await.unwrap()
    }
}
