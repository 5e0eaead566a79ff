//! What NEGOTIATE has settled for a connection.
//!
//! Spec: [MS-SMB2] 3.3.1.7 (Connection), 3.3.5.4.

use weft_wire::smb2::negotiate::{Capabilities, SecurityMode};
use weft_wire::smb2::rdma_transform::RdmaTransformId;
use weft_wire::smb2::{Dialect, Guid};

use crate::compression::Agreed;
use crate::crypto::Profile;

/// The result of NEGOTIATE. FSCTL_VALIDATE_NEGOTIATE_INFO compares it ([MS-SMB2] 3.3.5.15.12).
pub(crate) struct Negotiated {
    /// The dialect.
    pub dialect: Dialect,
    /// Capabilities that the client sent.
    pub client_capabilities: Capabilities,
    /// Dialects that the client sent; empty for an SMB1 negotiate.
    pub client_dialects: Vec<Dialect>,
    /// SecurityMode that the client sent.
    pub client_security_mode: SecurityMode,
    /// ClientGuid.
    pub client_guid: Guid,
    /// Capabilities in our response.
    pub server_capabilities: Capabilities,
    /// SecurityMode in our response.
    pub server_security_mode: SecurityMode,
    /// Largest READ, WRITE and transact.
    pub max_io: u32,
    /// Transforms for RDMA payload.
    pub transforms: Transforms,
    /// How messages may be compressed.
    pub compression: Option<Agreed>,
    /// Whether both sides support the POSIX extensions.
    pub posix: bool,
    /// The parameters of key derivation.
    pub(super) profile: Profile,
}

/// RDMATransformIds: the transforms of RDMA payload that both sides support.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Transforms {
    /// Encryption.
    pub encryption: bool,
    /// Signing.
    pub signing: bool,
}

impl Transforms {
    pub(super) fn ids(self) -> Vec<u16> {
        let ids = [(self.encryption, RdmaTransformId::ENCRYPTION), (self.signing, RdmaTransformId::SIGNING)];
        let ids: Vec<u16> = ids.into_iter().filter_map(|(is, id)| is.then_some(id.0)).collect();
        if ids.is_empty() { vec![RdmaTransformId::NONE.0] } else { ids }
    }
}

impl Negotiated {
    /// Whether the server requires signing from the sessions of this connection.
    pub(super) fn signing_required(&self) -> bool {
        self.server_security_mode.contains(SecurityMode::SIGNING_REQUIRED)
    }

    /// Whether requests may cost several credits: from 2.1 on.
    pub(super) fn multi_credit(&self) -> bool {
        self.dialect >= Dialect::V2_1
    }
}
