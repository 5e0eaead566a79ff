//! Fuzz targets against an arbitrary peer, during set-up and afterwards; `crate::fuzz` runs them.
//!
//! They cover RFC 5044 7.1 (set-up) and 4 (FPDUs), RFC 5041 7 and RFC 5040 7 (faults). No socket is needed; neither
//! engine has one.

mod setup;
mod stream;

pub use setup::mpa_setup;
pub use stream::fpdu_stream;
