//! One connection: what was negotiated, and what operations may ask of it.
//!
//! Spec: [MS-SMB2] 3.3.1.7.

use std::cell::{Cell, OnceCell};
use std::rc::Rc;

use weft_transport::Channel;
use weft_wire::smb2::negotiate::{Capabilities, SecurityMode};
use weft_wire::smb2::{Dialect, Guid, Header};

use super::context::OpContext;

/// State of a connection that outlives a request.
pub(crate) struct Connection {
    /// The transport.
    pub channel: Rc<dyn Channel>,
    negotiated: OnceCell<Negotiated>,
    ended: Cell<Option<&'static str>>,
}

/// What NEGOTIATE settled. FSCTL_VALIDATE_NEGOTIATE_INFO compares it ([MS-SMB2] 3.3.5.15.12).
pub(crate) struct Negotiated {
    /// The dialect.
    pub dialect: Dialect,
    /// Capabilities that the client sent.
    pub client_capabilities: Capabilities,
    /// SecurityMode that the client sent.
    pub client_security_mode: SecurityMode,
    /// ClientGuid.
    pub client_guid: Guid,
    /// Capabilities that we answered.
    pub server_capabilities: Capabilities,
    /// SecurityMode that we answered.
    pub server_security_mode: SecurityMode,
}

impl Connection {
    /// What NEGOTIATE settled; there is always one while operations run.
    pub fn negotiated(&self) -> &Negotiated {
        self.negotiated.get().expect("operations run after NEGOTIATE")
    }

    /// The negotiated dialect.
    pub fn dialect(&self) -> Dialect {
        self.negotiated().dialect
    }

    /// Ends the connection without answering, after the operation that calls this: the peer or somebody between us
    /// broke a rule that forbids further talk (a failed negotiate validation). The first reason is logged.
    pub fn terminate(&self, reason: &'static str) {
        if self.ended.get().is_none() {
            self.ended.set(Some(reason));
        }
    }

    /// See [`OpContext::max_payload`].
    pub(super) fn max_payload(&self, _header: &Header) -> u32 {
        8 << 20
    }

    /// See [`OpContext::pending`].
    pub(super) fn interim(&self, _cx: &OpContext) {}
}
