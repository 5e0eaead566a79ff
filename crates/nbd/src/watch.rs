//! What a connection has done so far, for whoever runs the server.
//!
//! Spec: none. Owns: plain counters of one connection, which stays on its core. Does not: count what was refused.

use std::cell::{Cell, OnceCell};

use weft_wire::nbd::transmission::Command;

/// Counters of a connection; give them to [`crate::Server::serve_watched`].
#[derive(Default)]
pub struct Watch {
    export: OnceCell<String>,
    tls: Cell<bool>,
    read: Cell<(u64, u64)>,
    written: Cell<(u64, u64)>,
    answered: Cell<Option<Box<dyn FnOnce()>>>,
}

impl Watch {
    /// One that calls `answered` when the first request of the client has been answered: before that, a client may be anything
    /// that connects.
    pub fn with_notice(answered: impl FnOnce() + 'static) -> Watch {
        Watch { answered: Cell::new(Some(Box::new(answered))), ..Watch::default() }
    }

    /// The export that was chosen; `None` during the handshake.
    pub fn export(&self) -> Option<&str> {
        self.export.get().map(String::as_str)
    }

    /// Whether it is spoken under TLS.
    pub fn tls(&self) -> bool {
        self.tls.get()
    }

    /// Bytes and requests of READ.
    pub fn read(&self) -> (u64, u64) {
        self.read.get()
    }

    /// Bytes and requests of WRITE.
    pub fn written(&self) -> (u64, u64) {
        self.written.get()
    }

    pub(crate) fn agreed(&self, export: &str, tls: bool) {
        // A connection agrees once.
        self.export.get_or_init(|| export.to_owned());
        self.tls.set(tls);
    }

    pub(crate) fn answered(&self) {
        if let Some(answered) = self.answered.take() {
            answered();
        }
    }

    pub(crate) fn count(&self, command: Command, len: u32) {
        let counter = match command {
            Command::READ => &self.read,
            Command::WRITE => &self.written,
            _ => return,
        };
        let (bytes, requests) = counter.get();
        counter.set((bytes.saturating_add(u64::from(len)), requests.saturating_add(1)));
    }
}
