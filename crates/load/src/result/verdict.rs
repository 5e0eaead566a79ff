//! The outcome of a bound that a measurement had to keep.
//!
//! `gate` and `compare` judge.

use serde::{Deserialize, Serialize};

/// The outcome of a gate.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Verdict {
    /// The gate as text.
    pub claim: String,
    /// The ratio of medians; `None` if a point is missing.
    pub ratio: Option<f64>,
    /// Its bound.
    pub bound: f64,
    /// Whether it holds.
    pub holds: bool,
}
