//! The caller of an RPC operation: the pipe's session has authenticated its user.

use crate::server::Server;
use crate::server::session::Session;

/// What an operation may know besides its parameters.
pub(super) struct Caller<'a> {
    pub server: &'a Server,
    pub session: &'a Session,
    pub peer: &'a str,
}
