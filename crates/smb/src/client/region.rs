//! Memory that is exposed to the server during one READ or WRITE.
//!
//! Spec: [MS-SMB2] 3.2.4.6, 3.2.4.7 (registering), 3.2.5.11, 3.2.5.12 (deregistering before the bytes are used). Owns
//! the exposed buffer until [`Region::revoke`] or drop. It is revoked locally in any case, even if the server was asked
//! to invalidate it (SMB2_CHANNEL_RDMA_V1_INVALIDATE).

use std::rc::Rc;

use weft_machine::Buf;
use weft_transport::{Access, Channel as Transport, Exposed};
use weft_wire::smb2::Dialect;
use weft_wire::smb2::channel::{Channel, Descriptor, Descriptors};

use super::error::Error;

/// See the module documentation.
pub(super) struct Region {
    transport: Rc<dyn Transport>,
    exposed: Option<Exposed>,
}

impl Region {
    /// Exposes `buf` to the server.
    pub fn expose(transport: &Rc<dyn Transport>, buf: Buf, access: Access) -> Result<Region, Error> {
        let exposed = Some(transport.expose(buf, access)?);
        Ok(Region { transport: transport.clone(), exposed })
    }

    /// The channel descriptor for the request. From 3.0.2 on the server may invalidate the region with its answer, if
    /// the provider supports that.
    pub fn channel(&self, dialect: Dialect) -> Channel {
        let segments = self.exposed.iter().flat_map(|e| &e.segments);
        let descriptors: Descriptors =
            segments.map(|s| Descriptor { offset: s.offset, token: s.stag.0, length: s.len }).collect();
        let revocable = self.exposed.as_ref().is_some_and(|exposed| exposed.revocable);
        match revocable && dialect >= Dialect::V3_0_2 {
            true => Channel::RdmaV1Invalidate(descriptors),
            false => Channel::RdmaV1(descriptors),
        }
    }

    /// Revokes the region and returns its buffer: from here on the server cannot reach it.
    pub fn revoke(mut self) -> Result<Buf, Error> {
        let exposed = self.exposed.take().and_then(|exposed| self.transport.revoke(exposed));
        // Only a region that never existed or was revoked before has no buffer; a connection that has ended still
        // returns it.
        exposed.ok_or(Error::Closed)
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        if let Some(exposed) = self.exposed.take() {
            self.transport.revoke(exposed);
        }
    }
}
