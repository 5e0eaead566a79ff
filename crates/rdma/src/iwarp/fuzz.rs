//! Any peer at all, during set-up and afterwards: what `crate::fuzz` runs of this room.
//!
//! Spec: RFC 5044 7.1 (set-up), 4 (FPDUs), RFC 5041 7 and RFC 5040 7 (faults).
//! Does not: use a socket; both engines are without.

mod setup;
mod stream;

pub use setup::mpa_setup;
pub use stream::fpdu_stream;
