//! Counts the requests: by command, share and transport. `weft_machine::meter` keeps the counters.
//!
//! Spec: [MS-SMB2] 2.2.1.2 (commands). A request is counted when its answer is handed to the transport; payload that
//! the transport reads afterwards is not part of its time. The flight recorder (`weft_machine::recorder`), which is told
//! here what a request is, follows it until the network has taken the answer.

use weft_machine::meter::{Class, Moved, Started, Subject, What};
use weft_machine::recorder;
use weft_transport::Kind;
use weft_wire::smb2::Command;

use super::answer::Answer;
use super::session::Tree;

/// The commands by their code. CANCEL has no answer.
const COMMANDS: &[&str] = &[
    "negotiate",
    "session_setup",
    "logoff",
    "tree_connect",
    "tree_disconnect",
    "create",
    "close",
    "flush",
    "read",
    "write",
    "lock",
    "ioctl",
    "cancel",
    "echo",
    "query_directory",
    "change_notify",
    "query_info",
    "set_info",
    "oplock_break",
];

static TCP: Class = Class::new("smb", "tcp", COMMANDS);
static DIRECT: Class = Class::new("smb", "smb-direct", COMMANDS);

/// The class of a connection.
pub(super) fn class(kind: Kind) -> &'static Class {
    match kind {
        Kind::Smbd => &DIRECT,
        _ => &TCP,
    }
}

/// What the requests of a tree are counted under.
pub(super) fn subject(tree: &Tree) -> Subject {
    tree.share.as_ref().map_or(Subject::NONE, |share| share.meter)
}

/// What a request is.
#[inline]
pub(super) fn what(class: &'static Class, command: Command, subject: Subject) -> What {
    class.what(usize::from(command.code()), subject)
}

/// A request is answered. `written` is the payload of a successful WRITE, and whether it came by RDMA.
pub(super) fn answered(
    class: &'static Class,
    subject: Subject,
    command: Command,
    started: Started,
    answer: &Answer,
    written: (u32, bool),
) {
    let mut moved = Moved { received_bytes: u64::from(written.0), by_rdma: written.1, ..Moved::default() };
    if let (Command::Read, Ok(reply)) = (command, answer) {
        moved.sent_bytes = reply.payload.as_ref().map_or(0, |payload| payload.len() as u64);
        moved.by_rdma = !reply.segments.is_empty();
    }
    recorder::moves(moved.received_bytes.saturating_add(moved.sent_bytes));
    class.answered(subject, usize::from(command.code()), started, moved);
}
