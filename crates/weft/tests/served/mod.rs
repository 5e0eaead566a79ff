//! Servers of one share in this process, and channels to them.

use std::rc::Rc;
use std::sync::Arc;

use weft_machine::{Listener, Pool, Stream, rt};
use weft_nfs::client::{Credential, Mount};
use weft_nfs::{client, server as nfsd};
use weft_rdma::Provider;
use weft_smb::auth::Secret;
use weft_smb::client::{File, OpenOptions, Options, Session};
use weft_smb::server::{Config, Server, User};
use weft_store::{Share, Vfs};
use weft_transport::{Channel, nbss, record, rpcrdma, smbd};

/// An SMB server of one share, `ram`.
pub fn smb(vfs: Vfs, pool: &Pool) -> Arc<Server> {
    Server::new(Config {
        name: "COPIES".into(),
        signing: weft_smb::server::Signing::Enabled,
        min_dialect: weft_smb::server::Dialect::V2_0_2,
        ..Config::new(
            [7; 16],
            vec![Share::new("ram", vfs)],
            vec![User::new("tester", Secret::password("secret"))],
            pool.clone(),
        )
    })
}

/// A channel to `server` over TCP, on this core.
pub async fn smb_over_tcp(server: Arc<Server>, pool: &Pool) -> Rc<dyn Channel> {
    let listener = Listener::bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let addr = listener.local_addr();
    let buffers = pool.clone();
    rt::spawn(async move {
        let stream = Stream::from_socket(listener.accept().await.unwrap()).unwrap();
        server.serve(nbss::Nbss::channel(stream, buffers, nbss::Config::default())).await;
    })
    .detach();
    nbss::Nbss::channel(Stream::connect(addr).await.unwrap(), pool.clone(), nbss::Config::default())
}

/// A channel to `server` over an RDMA provider, on this core.
pub async fn smb_over_rdma(server: Arc<Server>, provider: &dyn Provider, pool: &Pool) -> Rc<dyn Channel> {
    let listener = provider.listen("127.0.0.1:0".parse().unwrap()).await.unwrap();
    let addr = listener.local_addr();
    let buffers = pool.clone();
    rt::spawn(async move {
        let request = listener.accept().await.unwrap().request().await.unwrap();
        server.serve(smbd::accept(request, smbd::Config::default(), buffers).await.unwrap()).await;
    })
    .detach();
    smbd::connect(provider, addr, smbd::Config::default(), pool.clone()).await.unwrap()
}

/// A new file of the share.
pub async fn open(channel: Rc<dyn Channel>, pool: &Pool) -> (Session, File) {
    let options = Options::new("127.0.0.1", "tester", "secret", pool.clone());
    let session = Session::connect(channel, options).await.unwrap();
    let tree = session.tree("ram").await.unwrap();
    let file = tree.open("file", OpenOptions::create()).await.unwrap();
    (session, file)
}

/// An NFS server of one share, `ram`.
pub fn nfs(vfs: Vfs, pool: &Pool) -> Arc<nfsd::Server> {
    nfsd::Server::new(nfsd::Config {
        shares: vec![Share::new("ram", vfs)],
        pool: pool.clone(),
        limits: nfsd::Limits::default(),
        policy: nfsd::Policy { decides: false, squash_root: true },
        durable: None,
    })
}

/// The share over TCP, on this core.
pub async fn mounted_over_tcp(server: Arc<nfsd::Server>, pool: &Pool) -> Mount {
    let listener = Listener::bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let addr = listener.local_addr();
    let buffers = pool.clone();
    rt::spawn(async move {
        let stream = Stream::from_socket(listener.accept().await.unwrap()).unwrap();
        server.serve(record::Record::channel(stream, buffers, record::Config::default())).await.unwrap();
    })
    .detach();
    let stream = Stream::connect(addr).await.unwrap();
    mounted(record::Record::channel(stream, pool.clone(), record::Config::default()), pool).await
}

/// The share over RPC-over-RDMA, on this core.
pub async fn mounted_over_rdma(server: Arc<nfsd::Server>, provider: &dyn Provider, pool: &Pool) -> Mount {
    let listener = provider.listen("127.0.0.1:0".parse().unwrap()).await.unwrap();
    let addr = listener.local_addr();
    let buffers = pool.clone();
    rt::spawn(async move {
        let request = listener.accept().await.unwrap().request().await.unwrap();
        let channel = rpcrdma::accept(request, rpcrdma::Config::default(), buffers).await.unwrap();
        server.serve(channel).await.unwrap();
    })
    .detach();
    let channel = rpcrdma::connect(provider, addr, rpcrdma::Config::default(), pool.clone()).await.unwrap();
    mounted(channel, pool).await
}

/// The share over a channel to its server.
pub async fn mounted(channel: Rc<dyn Channel>, pool: &Pool) -> Mount {
    let options = client::Options { credential: Credential::None, pool: pool.clone() };
    Mount::connect(channel, "/ram", options).await.unwrap()
}
