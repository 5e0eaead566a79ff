//! What becomes of a copy whose server goes away.

use std::cell::RefCell;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::join_all;
use weft_machine::{Listener, Pool, Stream, rt, sim};
use weft_smb::auth::Secret;
use weft_smb::server::{Config, Dialect, Limits, Server, Signing, User};
use weft_store::backend::Ram;
use weft_store::{Share, Vfs};
use weft_transport::nbss;

use super::Remote;
use crate::args::{Connect, Transport};
use crate::cat::take_into;
use crate::transfer::take_place;
use crate::url::Url;

/// A server of SMB that can be ended, and started again on what it had.
struct Served {
    share: Share,
    pool: Pool,
    addr: SocketAddr,
    running: Vec<rt::Task<()>>,
}

impl Served {
    fn new() -> Served {
        let share = Share::new("ram", Vfs::new(Ram::new(64 << 20)));
        let addr = ([127, 0, 0, 1], 0).into();
        let mut served = Served { share, pool: Pool::new(64 << 20), addr, running: Vec::new() };
        served.start();
        served
    }

    /// As another process, which knows nothing of the handles of the one before.
    fn start(&mut self) {
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
    async fn end(&mut self) {
        self.running.clear();
        sim::cut_all(sim::CutHow::Reset);
        // What was dropped is gone at the next turn, its port too.
        rt::yield_now().await;
    }

    async fn remote(&self) -> Remote {
        let url = Url::parse(&format!("smb://alice@{}/ram", self.addr)).unwrap().unwrap();
        let options = Connect::by(Transport::Tcp);
        Remote::connect_as(&url, &options, &Pool::new(64 << 20), "secret", None).await.unwrap()
    }
}

/// Each file of a copy waited for it anew, and each three times: to write it, to remove what was written, and to close that.
#[test]
fn a_server_that_has_stayed_away_for_so_long_is_not_waited_for_again() {
    let (waited, _) = sim::logged(1, async {
        let mut served = Served::new();
        let remote = served.remote().await;
        remote.outlast(Duration::from_secs(60), Arc::default());
        let drafts = join_all(["a", "b", "c", "d"].map(|name| remote.draft(name, None))).await;
        served.end().await;
        let begun = rt::now();
        let copying = drafts.into_iter().map(async |draft| {
            let draft = draft.unwrap();
            let lost = draft.file().write(0, Bytes::from_static(b"x")).await.unwrap_err().to_string();
            assert!(lost.contains("could not be made again for 60s"), "{lost}");
            assert!(draft.discard().await.is_err());
        });
        join_all(copying).await;
        assert!(remote.stat("e").await.is_err());
        rt::now() - begun
    });
    assert!((60..62).contains(&waited.as_secs()), "{waited:?}");
}

/// What the first server had not made durable was missing in the copy, where that host had lost it.
#[test]
fn what_cannot_be_read_again_is_not_believed_on_a_server_that_was_restarted() {
    let (said, _) = sim::logged(1, async {
        let mut served = Served::new();
        let remote = served.remote().await;
        remote.outlast(Duration::from_secs(60), Arc::default());
        let draft = remote.draft("a", None).await.unwrap();
        let mut blocks = 0;
        let next_block = async || {
            blocks += 1;
            match blocks {
                1..10 => {}
                10 => {
                    served.end().await;
                    served.start();
                }
                _ => return Ok(Bytes::new()),
            }
            Ok(Bytes::from(vec![1; 1 << 20]))
        };
        let taken = take_into(draft.file(), next_block).await;
        take_place(&remote, &*draft, taken, false).await.unwrap_err().reason().to_string()
    });
    assert!(said.contains("the server was restarted"), "{said}");
}
