//! Printers: one result, one small file per form.
//!
//! Owns: nothing. Does not: compute; ratios are of the medians in the result.

pub mod html;
pub mod json;
pub mod term;

use crate::result::{Point, Spread};

/// "12.3 us" style: three significant digits and a unit that fits.
pub(crate) fn nanos(value: f64) -> String {
    match value {
        v if v >= 1e9 => format!("{:.2} s", v / 1e9),
        v if v >= 1e6 => format!("{:.2} ms", v / 1e6),
        v if v >= 1e3 => format!("{:.1} us", v / 1e3),
        v => format!("{v:.0} ns"),
    }
}

/// Bytes per second in MB/s (10^6) or GB/s (10^9).
pub(crate) fn rate(value: f64) -> String {
    if value >= 1e9 { format!("{:.2} GB/s", value / 1e9) } else { format!("{:.0} MB/s", value / 1e6) }
}

/// How far the repetitions lie apart: half the range in percent of the median.
pub(crate) fn spread_percent(spread: &Spread) -> f64 {
    if spread.median > 0.0 { 50.0 * (spread.max - spread.min) / spread.median } else { 0.0 }
}

/// `figure` of `point` divided by that of the TCP point of the same work.
pub(crate) fn against_tcp(points: &[&Point], point: &Point, figure: fn(&Point) -> f64) -> Option<f64> {
    let tcp = points.iter().find(|p| p.transport == "tcp")?;
    (point.transport != "tcp" && figure(tcp) > 0.0).then(|| figure(point) / figure(tcp))
}
