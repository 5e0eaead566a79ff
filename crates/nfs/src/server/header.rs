//! The header of a call without its credential, which is checked once and then kept apart.
//!
//! See RFC 5531 section 9. It is small because the future of each call contains it.

use weft_wire::rpc::{self, Call};

/// What is called.
#[derive(Clone, Copy, Debug)]
pub(super) struct Header {
    pub xid: u32,
    pub program: u32,
    pub version: u32,
    pub procedure: u32,
}

impl Header {
    /// The header and the credential of a call.
    pub fn of(call: Call) -> (Header, rpc::Credential) {
        let Call { xid, program, version, procedure, credential } = call;
        (Header { xid, program, version, procedure }, credential)
    }
}
