//! Serves one folder over SMB on TCP, to try other clients:
//!
//! ```text
//! cargo run -p weft-smb --example smb_serve -- FOLDER PORT USER PASSWORD [--require-signing] [--require-encryption]
//! smbclient //127.0.0.1/data -p PORT -U USER%PASSWORD
//! ```

use std::error::Error;
use std::net::SocketAddr;

use weft_machine::{Listener, Pool, Stream, rt};
use weft_smb::auth::Secret;
use weft_smb::server::{Config, Server, User};
use weft_store::backend::dir::Dir;
use weft_store::vfs::{Share, Vfs};
use weft_transport::nbss::{self, Nbss};

fn main() -> Result<(), Box<dyn Error>> {
    tracing_subscriber::fmt().with_writer(std::io::stderr).with_max_level(tracing::Level::DEBUG).init();
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [folder, port, user, password, flags @ ..] = &args[..] else {
        return Err(
            "usage: smb_serve FOLDER PORT USER PASSWORD [--require-signing] [--require-encryption]".into()
        );
    };
    let pool = Pool::new(256 << 20);
    let vfs = Vfs::new(Dir::open(folder)?);
    let server = Server::new(Config {
        signing: match flags.iter().any(|flag| flag == "--require-signing") {
            true => weft_smb::server::Signing::Required,
            false => weft_smb::server::Signing::Exposed,
        },
        require_encryption: flags.iter().any(|flag| flag == "--require-encryption"),
        ..Config::new(
            *b"weft example 16b",
            vec![Share::new("data", vfs)],
            vec![User::new(user.clone(), Secret::password(password))],
            pool.clone(),
        )
    });
    let addr = SocketAddr::from(([127, 0, 0, 1], port.parse()?));
    rt::block_on(async move {
        let listener = Listener::bind(addr)?;
        println!("ready on {}", listener.local_addr());
        loop {
            let stream = Stream::from_socket(listener.accept().await?)?;
            let channel = Nbss::channel(stream, pool.clone(), nbss::Config::default());
            let server = server.clone();
            rt::spawn(async move { server.serve(channel).await }).detach();
        }
    })?
}
