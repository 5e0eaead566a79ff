//! What a call of RPC-over-RDMA requested for its reply: the Write list and the Reply chunk (RFC 8166 4.3).
//!
//! The protocol gets it inside of a [`Ticket`](crate::Ticket) and gives it back with the reply, unread.

use weft_rdma::Stag;
use weft_wire::rpcrdma::WriteChunk;

/// A call's own part of its ticket.
#[derive(Debug)]
pub(crate) struct CallTicket {
    pub(super) xid: u32,
    pub(super) writes: Vec<WriteChunk>,
    pub(super) reply: Option<WriteChunk>,
    /// A region of the call, which the reply may revoke.
    pub(super) invalidate: Option<Stag>,
}

impl CallTicket {
    /// Whether the client offers memory for the payload of a reply.
    pub(crate) fn takes_payload(&self) -> bool {
        !self.writes.is_empty()
    }
}
