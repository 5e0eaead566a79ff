//! Printers: one result, one small file per form.
//!
//! Owns: the order of transports. Does not: compute; ratios are of the medians in the result.

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

/// Lines above, below and under the head alone: rows of one work belong together.
fn lines() -> TableStyle {
    TableStyle { row_separator: LineStyle::none(), ..presets::UTF8_HORIZONTAL_ONLY }
}

/// Where a transport stands in tables and legends: TCP first, then from the wire to the memory. Before them what a
/// synchronous write of a replica is held against.
fn order(transport: &str) -> (usize, String) {
    const ORDER: [&str; 7] = ["local", "async", "tcp", "iwarp", "iwarp-nocrc", "rnic", "shm"];
    (ORDER.iter().position(|name| *name == transport).unwrap_or(ORDER.len()), transport.to_owned())
}
