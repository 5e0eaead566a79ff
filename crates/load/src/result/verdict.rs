//! What became of a bound that a measurement had to keep.
//!
//! Does not: judge (`gate`, `compare`).

use serde::{Deserialize, Serialize};

/// What became of a gate.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Verdict {
    /// The gate in words.
    pub claim: String,
    /// The ratio of medians; `None` when a point is missing.
    pub ratio: Option<f64>,
    /// Its bound.
    pub bound: f64,
    /// Whether it holds.
    pub holds: bool,
}
