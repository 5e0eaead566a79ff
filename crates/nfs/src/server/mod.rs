//! The server: NFS version 3 and MOUNT version 3 on any channel.
//!
//! What: [`Server`] holds what connections share; [`Server::serve`] runs one connection. One file per procedure in `ops`.
//! Spec: RFC 5531 (RPC), RFC 1813 (NFS, MOUNT). Owns: file handles' key, the write verifier, the cache of open files.
//! Does not: listen, register with rpcbind, know which transport carries a call, lock (NLM).
//!
//! Identity: every operation runs as the user of this process; AUTH_SYS ids are parsed and not acted upon.

mod attributes;
mod connection;
mod dispatch;
mod files;
mod handles;
mod mount;
mod ops;
mod siphash;

use std::rc::Rc;
use std::sync::Arc;

use weft_machine::Pool;
use weft_machine::rt::Drain;
use weft_store::Share;
use weft_transport::{Channel, Error};
use weft_wire::nfs3::Verifier;

use files::OpenFiles;
use handles::Handles;
use mount::Mounts;

/// What a server is made of.
pub struct Config {
    /// Shares; each is exported as "/NAME".
    pub shares: Vec<Share>,
    /// Where channels take their buffers from.
    pub pool: Pool,
    /// Bounds.
    pub limits: Limits,
}

/// Bounds of what clients can make the server hold.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Largest READ and WRITE in bytes; what FSINFO announces, unless the channel carries less.
    pub max_payload: u32,
    /// Largest READDIR and READDIRPLUS reply in bytes.
    pub max_listing: u32,
    /// Requests of one connection that are carried out at a time.
    pub requests: usize,
    /// Replies of one connection that its peer has not taken; then no more requests are read.
    pub replies: usize,
    /// Files kept open between requests.
    pub open_files: usize,
    /// Entries of the list that MOUNT's DUMP shows.
    pub mounts: usize,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            max_payload: 1 << 20,
            max_listing: 64 << 10,
            requests: 256,
            replies: 256,
            open_files: 512,
            mounts: 1024,
        }
    }
}

/// What all connections share.
pub struct Server {
    shares: Vec<Share>,
    limits: Limits,
    handles: Handles,
    files: OpenFiles,
    mounts: Mounts,
    drain: Drain,
    /// Changes with every start: data that was written UNSTABLE may be lost by then (RFC 1813 3.3.7).
    verifier: Verifier,
}

impl Server {
    /// A server for `config`.
    ///
    /// # Panics
    /// When the system has no random numbers, without which handles could be guessed.
    pub fn new(config: Config) -> Arc<Server> {
        let Config { shares, pool: _, limits } = config;
        let (mut key, mut verifier) = ([0; 16], [0; 8]);
        getrandom::fill(&mut key).and_then(|()| getrandom::fill(&mut verifier)).expect("random numbers");
        Arc::new(Server {
            shares,
            limits,
            handles: Handles::new(key),
            files: OpenFiles::new(limits.open_files),
            mounts: Mounts::new(limits.mounts),
            drain: Drain::default(),
            verifier,
        })
    }

    /// Answers the calls of one peer until it leaves, breaks the protocol or the server drains. Both programs are
    /// answered on every channel. Requests run concurrently and are answered in the order in which they finish.
    pub async fn serve(&self, channel: Rc<dyn Channel>) -> Result<(), Error> {
        connection::serve(self, channel).await
    }

    /// Ends all connections as soon as the requests that they have begun are answered.
    pub fn drain(&self) {
        self.drain.begin();
    }
}

#[cfg(test)]
mod tests;
