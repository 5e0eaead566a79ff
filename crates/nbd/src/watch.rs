//! What a connection has done so far, for the server's administrator.
//!
//! Plain counters of one connection, which stay on its core. Refused requests are not counted.

use std::cell::{Cell, OnceCell};

use weft_wire::nbd::transmission::Command;

/// Counters of a connection; pass them to [`crate::Server::serve_watched`].
#[derive(Default)]
pub struct Watch {
    export: OnceCell<String>,
    tls: Cell<bool>,
    read: Cell<(u64, u64)>,
    written: Cell<(u64, u64)>,
    answered: Cell<Option<Box<dyn FnOnce()>>>,
}

impl Watch {
    /// Calls `answered` after the first reply to a request: before that, the client may be anything that connects.
    pub fn with_notice(answered: impl FnOnce() + 'static) -> Watch {
        Watch { answered: Cell::new(Some(Box::new(answered))), ..Watch::default() }
    }

    /// The chosen export; `None` during the handshake.
    pub fn export(&self) -> Option<&str> {
        self.export.get().map(String::as_str)
    }

    /// Whether the connection uses TLS.
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
        // A connection agrees on an export once.
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
