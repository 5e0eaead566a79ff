//! Printers: one result, one small file per format.
//!
//! The order of transports is here; ratios are of the medians in the result.

pub mod claims;
pub mod compare;
pub mod csv;
pub mod difference;
pub mod html;
pub mod json;
pub mod published;
mod show;
pub mod term;

use comfy_table::{LineStyle, TableStyle, presets};

/// Rules above, below and under the header only, because the rows of one work belong together.
fn lines() -> TableStyle {
    TableStyle { row_separator: LineStyle::none(), ..presets::UTF8_HORIZONTAL_ONLY }
}

/// The position of a transport in tables and legends: TCP first, then from the wire to memory. The references of a
/// replica's synchronous write come before them.
fn order(transport: &str) -> (usize, String) {
    const ORDER: [&str; 7] = ["local", "async", "tcp", "iwarp", "iwarp-nocrc", "rnic", "shm"];
    (ORDER.iter().position(|name| *name == transport).unwrap_or(ORDER.len()), transport.to_owned())
}
