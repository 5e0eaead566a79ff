//! What the channels of tests have in common: they lie in memory and know nothing of RDMA.
//!
//! Spec: the contract is [`weft_transport::Channel`]. Owns: nothing; each test has queues of its own.
//! Does not: answer anything.

#[cfg(test)]
use bytes::Bytes;
#[cfg(test)]
use weft_machine::Payload;
#[cfg(test)]
use weft_transport::{Outgoing, Part};

/// The methods of a `Channel` that are the same in all tests: NFS names no segments where a call comes as one record.
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
