//! A request before a connection numbers it, and its response.
//!
//! Spec: [MS-SMB2] 3.2.4.1 (sending), 3.2.5.1 (receiving). A request decides its protection when it is made, so no
//! connection can send it with less.

use bytes::Bytes;
use weft_wire::smb2::{Command, HEADER_LEN, Header, NtStatus};

use super::protect::{Policy, Protection, TreeConnect};
use crate::client::error::Error;

/// A request without its message id and credits.
#[derive(Clone)]
pub(in crate::client) struct Call {
    pub(super) command: Command,
    pub(super) tree: u32,
    pub(super) protection: Protection,
    /// [`HEADER_LEN`] bytes to be filled in, then the body.
    pub(super) message: Vec<u8>,
    /// The bytes that follow the body: the data of a WRITE.
    pub payload: Bytes,
    /// The request was sent before, over a connection that is lost.
    pub replay: bool,
    /// Credits that it costs: one per 64 KiB that it carries or asks for.
    pub charge: u16,
}

impl Call {
    /// A request of an established session, whose body `emit` appends.
    pub fn new(command: Command, tree: TreeConnect, policy: Policy, emit: impl FnOnce(&mut Vec<u8>)) -> Call {
        Call::with(command, tree.id, policy.of(tree), emit)
    }

    /// NEGOTIATE or SESSION_SETUP, which are never encrypted (3.2.4.1.8).
    pub fn before_session(command: Command, protection: Protection, emit: impl FnOnce(&mut Vec<u8>)) -> Call {
        debug_assert!(matches!(command, Command::Negotiate | Command::SessionSetup));
        Call::with(command, 0, protection, emit)
    }

    /// The same request, signed unless it is encrypted.
    pub fn at_least_signed(mut self) -> Call {
        if self.protection == Protection::None {
            self.protection = Protection::Signed;
        }
        self
    }

    fn with(command: Command, tree: u32, protection: Protection, emit: impl FnOnce(&mut Vec<u8>)) -> Call {
        // Header, the largest body on the hot path, channel information and a few descriptors.
        const ROOM: usize = 192;
        let mut message = Vec::with_capacity(ROOM);
        message.resize(HEADER_LEN, 0);
        emit(&mut message);
        Call { command, tree, protection, message, payload: Bytes::new(), replay: false, charge: 1 }
    }
}

/// A response: the whole message, header first.
pub(in crate::client) struct Reply {
    pub header: Header,
    pub message: Bytes,
}

impl Reply {
    /// The message, if the status is success.
    pub fn success(self) -> Result<Bytes, Error> {
        match self.header.status {
            NtStatus::SUCCESS => Ok(self.message),
            status => Err(Error::Status { command: self.header.command, status }),
        }
    }
}
