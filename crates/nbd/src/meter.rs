//! Counts the requests: by command, volume and transport. `weft_machine::meter` keeps the counters.
//!
//! A request is counted when its reply is queued, with the payload that it asks for; refused requests are not counted.
//! The flight recorder (`weft_machine::recorder`) follows it until the network has taken the reply.

use std::sync::Arc;

use weft_machine::meter::{self, Class, Moved, Started, Subject, What};
use weft_machine::recorder::{Details, User};
use weft_wire::nbd::transmission::{Command, Request};

/// The commands by their number. DISC has no reply.
const COMMANDS: &[&str] = &["read", "write", "", "flush", "trim", "cache", "write_zeroes", "block_status"];

static TCP: Class = Class::new("nbd", "tcp", COMMANDS);
static UNIX: Class = Class::new("nbd", "unix", COMMANDS);

/// What a connection's requests are counted under.
#[derive(Clone, Copy)]
pub(crate) struct Meter {
    class: &'static Class,
    subject: Subject,
}

impl Meter {
    /// For a connection over this transport to this export.
    pub fn new(is_unix: bool, export: &str) -> Meter {
        Meter { class: if is_unix { &UNIX } else { &TCP }, subject: Subject::named(export) }
    }

    /// What a request is.
    pub fn what(self, request: &Request) -> What {
        self.class.what(usize::from(request.command.0), self.subject)
    }

    /// A request that has just been received.
    pub fn begin(self, request: &Request) -> Begun {
        let bytes = u64::from(request.len);
        let moved = match request.command {
            Command::READ => Moved { sent_bytes: bytes, ..Moved::default() },
            Command::WRITE => Moved { received_bytes: bytes, ..Moved::default() },
            _ => Moved::default(),
        };
        Begun { meter: self, command: request.command, started: meter::started(), moved }
    }
}

/// What is counted of one request.
pub(crate) struct Begun {
    meter: Meter,
    command: Command,
    started: Started,
    moved: Moved,
}

impl Begun {
    /// It is answered.
    pub fn answered(self) {
        let Begun { meter, command, started, moved } = self;
        meter.class.answered(meter.subject, usize::from(command.0), started, moved);
    }
}

/// A request of this client, for the flight recorder.
pub(crate) fn details(client: &Arc<str>, request: &Request) -> Details {
    let Request { offset, len, .. } = *request;
    Details { client: Some(client.clone()), user: User::None, file: format!("{len} bytes at {offset}") }
}
