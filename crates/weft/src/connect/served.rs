//! A server of SMB in the process of a test, under virtual time.

use std::cell::RefCell;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;

use weft_machine::{Listener, Pool, Stream, rt, sim};
use weft_smb::auth::Secret;
use weft_smb::server::{Config, Dialect, Limits, Server, Signing, User};
use weft_store::backend::Ram;
use weft_store::{Share, Vfs};
use weft_transport::nbss;

use super::Remote;
use crate::args::{Connect, Transport};
use crate::url::Url;

/// A server that can be ended, and started again on what it had.
pub(crate) struct Served {
    share: Share,
    pool: Pool,
    addr: SocketAddr,
    running: Vec<rt::Task<()>>,
}

impl Served {
    pub fn new() -> Served {
        let share = Share::new("ram", Vfs::new(Ram::new(512 << 20)));
        let addr = ([127, 0, 0, 1], 0).into();
        let mut served = Served { share, pool: Pool::new(64 << 20), addr, running: Vec::new() };
        served.start();
        served
    }

    /// As another process, which knows nothing of the handles of the one before.
    pub fn start(&mut self) {
        let server = Server::new(Config {
            server_guid: [7; 16],
            name: "AWAY".into(),
            shares: vec![self.share.clone()],
            users: vec![User { name: "alice".into(), secret: Secret::password("secret") }],
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
        let (buffers, sessions) = (self.pool.clone(), Rc::new(RefCell::new(Vec::new())));
        self.running.push(rt::spawn(async move {
            loop {
                let stream = Stream::from_socket(listener.accept().await.unwrap()).unwrap();
                let (server, buffers): (Arc<Server>, _) = (server.clone(), buffers.clone());
                sessions.borrow_mut().push(rt::spawn(async move {
                    server.serve(nbss::Nbss::new(stream, buffers, nbss::Config::default())).await;
                }));
            }
        }));
    }

    /// Ends it, as a kill does.
    pub async fn end(&mut self) {
        self.running.clear();
        sim::cut_all(sim::CutHow::Reset);
        // What was dropped is gone at the next turn, its port too.
        rt::yield_now().await;
    }

    pub async fn remote(&self) -> Remote {
        let url = Url::parse(&format!("smb://alice@{}/ram", self.addr)).unwrap().unwrap();
        let options = Connect::by(Transport::Tcp);
        Remote::connect_as(&url, &options, &Pool::new(64 << 20), "secret", None).await.unwrap()
    }
}
