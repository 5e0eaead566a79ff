//! Printers: one result, one small file per form.
//!
//! Owns: nothing. Does not: compute; ratios are of the medians in the result.

pub mod compare;
pub mod html;
pub mod json;
pub mod term;

use crate::result::{Point, Spread};

/// "12.3 us" style: three significant digits and a unit that fits.
fn nanos(value: f64) -> String {
    match value {
        v if v >= 1e9 => format!("{:.2} s", v / 1e9),
        v if v >= 1e6 => format!("{:.2} ms", v / 1e6),
        v if v >= 1e3 => format!("{:.1} us", v / 1e3),
        v => format!("{v:.0} ns"),
    }
}

/// Bytes per second in MB/s (10^6) or GB/s (10^9).
fn rate(value: f64) -> String {
    if value >= 1e9 { format!("{:.2} GB/s", value / 1e9) } else { format!("{:.0} MB/s", value / 1e6) }
}

/// How far the repetitions lie apart: half the range in percent of the median.
fn spread_percent(spread: &Spread) -> f64 {
    if spread.median > 0.0 { 50.0 * (spread.max - spread.min) / spread.median } else { 0.0 }
}

/// `figure` of `point` divided by that of the TCP point of the same work.
fn against_tcp(points: &[&Point], point: &Point, figure: fn(&Point) -> f64) -> Option<f64> {
    let tcp = points.iter().find(|p| p.transport == "tcp")?;
    (point.transport != "tcp" && figure(tcp) > 0.0).then(|| figure(point) / figure(tcp))
}

/// The columns of a point behind its work, in this order: transport, throughput, spread, IOPS, mean, against TCP, p50,
/// p99, p99.9, largest, cycles per byte, against TCP. `points` are those of the same work.
pub(crate) fn cells(points: &[&Point], point: &Point) -> [String; 12] {
    let ratio = |figure| against_tcp(points, point, figure).map_or(String::new(), |r: f64| format!("{r:.2}"));
    [
        point.transport.clone(),
        rate(point.throughput.median),
        format!("{:.0}%", spread_percent(&point.throughput)),
        format!("{:.0}", point.iops.median),
        nanos(point.mean.median),
        ratio(|p| p.mean.median),
        nanos(point.p50.median),
        nanos(point.p99.median),
        nanos(point.p999.median),
        nanos(point.max.median),
        format!("{:.2}", point.cycles_per_byte.median),
        ratio(|p| p.cycles_per_byte.median),
    ]
}
