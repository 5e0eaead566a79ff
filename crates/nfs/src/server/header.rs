//! The header of a call without its credential, which is checked once and then kept apart; and replies that are no more than a
//! header.
//!
//! See RFC 5531 section 9. A header is small because the future of each call contains it.

use weft_transport::Outgoing;
use weft_wire::nfs3::procedure as nfs;
use weft_wire::rpc::{self, Call, Reply};
use weft_wire::xdr::Encoder;
use weft_wire::{nfs3, nfs4};

/// A message that cannot be answered; the connection ends.
#[derive(Debug)]
pub(super) struct NotRpc(pub &'static str);

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

    /// Whether the procedure itself takes payload from the client's memory.
    pub fn takes_remote(&self) -> bool {
        match (self.program, self.version) {
            (nfs3::PROGRAM, nfs3::VERSION) => self.procedure == nfs::WRITE,
            (nfs4::PROGRAM, nfs4::VERSION) => self.procedure == nfs4::COMPOUND,
            _ => false,
        }
    }
}

/// A reply without results.
pub(super) fn header_only(xid: u32, reply: Reply) -> Outgoing {
    let mut e = Encoder::with_capacity(32);
    reply.emit(xid, &mut e);
    Outgoing::bytes(e.into_bytes())
}
