//! Real RDMA devices: libibverbs and librdmacm of rdma-core, found at run time.
//!
//! What: [`devices`]: what there is. Spec: rdma-core's verbs and rdma_cm (man pages of libibverbs-dev, librdmacm-dev).
//! Owns: the loaded libraries. Does not: need them to be installed; without them everything here says what to install.

// Connections follow; until then not all of it is used.
#[allow(dead_code)]
mod bindings;
mod devices;
#[cfg(test)]
mod layout;
#[allow(dead_code)]
mod library;

pub use devices::{Details, Device, Limits, LinkLayer, Node, Port, PortState, Transport, devices};
pub use library::Unavailable;
