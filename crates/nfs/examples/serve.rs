//! Serves a folder over NFSv3: `serve DIR` prints its ports and runs until it is killed.
//!
//! For trying other clients against this crate alone; users run `weft serve`.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;

use weft_machine::{Listener, Pool, Stream, rt};
use weft_nfs::server::{Config, Limits, Server};
use weft_rdma::{Provider, iwarp, shm};
use weft_store::backend::dir::Dir;
use weft_store::{Share, Vfs};
use weft_transport::{Channel, record, rpcrdma};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let dir = std::env::args().nth(1).ok_or("usage: serve DIR")?;
    let pool = Pool::new(256 << 20);
    let share = Share::new("data", Vfs::new(Dir::open(dir)?));
    let server = Server::new(Config {
        shares: vec![share],
        pool: pool.clone(),
        limits: Limits::default(),
        policy: weft_nfs::server::Policy { decides: false, squash_root: true },
        durable: None,
    });
    rt::block_on(async move {
        let any = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        let tcp = Listener::bind(any)?;
        println!("tcp {}", tcp.local_addr().port());
        let providers: [Box<dyn Provider>; 2] = [
            Box::new(iwarp::Provider::new(pool.clone(), iwarp::Config::default())),
            Box::new(shm::Provider::new(pool.clone(), shm::Config::default())),
        ];
        for provider in providers {
            let rdma = provider.listen(any).await?;
            println!("{} {}", provider.name(), rdma.local_addr().port());
            rt::spawn(over_rdma(rdma, server.clone(), pool.clone())).detach();
        }
        loop {
            let stream = Stream::from_socket(tcp.accept().await?)?;
            let channel = record::Record::channel(stream, pool.clone(), record::Config::default());
            let server = server.clone();
            rt::spawn(async move { report(server.serve(channel).await) }).detach();
        }
    })?
}

async fn over_rdma(listener: Box<dyn weft_rdma::Listener>, server: Arc<Server>, pool: Pool) {
    while let Ok(incoming) = listener.accept().await {
        let (server, pool) = (server.clone(), pool.clone());
        rt::spawn(async move {
            let accepted = async {
                let request = incoming.request().await?;
                rpcrdma::accept(request, rpcrdma::Config::default(), pool).await
            };
            match accepted.await {
                Ok(channel) => {
                    report(server.serve(channel.clone()).await);
                    eprintln!("{:?}", channel.traffic());
                }
                Err(e) => eprintln!("connection not accepted: {e}"),
            }
        })
        .detach();
    }
}

fn report(ended: Result<(), weft_transport::Error>) {
    if let Err(e) = ended {
        eprintln!("connection ended: {e}");
    }
}
