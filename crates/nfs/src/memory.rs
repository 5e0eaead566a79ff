//! Common parts of the tests' channels, which are in memory and do not use RDMA.
//!
//! They implement [`weft_transport::Channel`]; each test has queues of its own.

#[cfg(test)]
use bytes::Bytes;
#[cfg(test)]
use weft_machine::Payload;
#[cfg(test)]
use weft_transport::{Outgoing, Part};

/// The `Channel` methods that are the same in all tests: NFS names no segments where a call is one record.
macro_rules! without_rdma {
    () => {
        fn kind(&self) -> weft_transport::Kind {
            weft_transport::Kind::Record
        }
        fn medium(&self) -> &'static str {
            "memory"
        }
        fn limits(&self) -> weft_transport::Limits {
            weft_transport::Limits { max_message: 1 << 20, max_rdma: None }
        }
        fn cork(&self, _on: bool) {}
        fn expose(
            &self,
            _buf: weft_machine::Buf,
            _access: weft_transport::Access,
        ) -> Result<weft_transport::Exposed, weft_transport::Error> {
            unreachable!("NFS names no segments")
        }
        fn revoke(&self, _exposed: weft_transport::Exposed) -> Option<weft_machine::Buf> {
            None
        }
    };
}
pub(crate) use without_rdma;

/// The bytes of a message as a record carries them.
#[cfg(test)]
pub(crate) fn record(message: Outgoing) -> Bytes {
    let mut body = Vec::new();
    for part in message.parts {
        match part {
            Part::Bytes(bytes) => body.extend_from_slice(&bytes),
            Part::Payload { data: Payload::Chain(chain), .. } => {
                let data = chain.concat();
                body.extend_from_slice(&data);
                body.resize(body.len() + weft_wire::xdr::pad(data.len()), 0);
            }
            other => panic!("{other:?}"),
        }
    }
    body.into()
}
