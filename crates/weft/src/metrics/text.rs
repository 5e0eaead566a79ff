//! The formats of a page of metrics: OpenMetrics 1.0 and Prometheus' older text format 0.0.4.
//!
//! They differ in three points: in OpenMetrics the name of a counter's family has no `_total`, units have a line, and
//! the page ends with `# EOF`. The crate prometheus-client writes only OpenMetrics, and from counters of its own.

use std::fmt::Write;

use super::families::{Family, Type};

/// The format of a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Format {
    /// OpenMetrics 1.0.
    OpenMetrics,
    /// Prometheus 0.0.4.
    Prometheus,
}

impl Format {
    /// The format that a request's Accept header asks for.
    pub(crate) fn accepted(accept: &str) -> Format {
        let is_open = |range: &str| range.trim().starts_with("application/openmetrics-text");
        let is_refused = |range: &str| {
            let quality = range.split(';').find_map(|part| part.trim().strip_prefix("q="));
            quality.and_then(|q| q.trim().parse::<f32>().ok()) == Some(0.0)
        };
        match accept.split(',').any(|range| is_open(range) && !is_refused(range)) {
            true => Format::OpenMetrics,
            false => Format::Prometheus,
        }
    }

    /// The type of the page.
    pub(crate) fn content_type(self) -> &'static str {
        match self {
            Format::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
            Format::Prometheus => "text/plain; version=0.0.4; charset=utf-8",
        }
    }
}

/// A page that is being written.
pub(super) struct Page {
    text: String,
    format: Format,
}

/// A family that samples are added to.
pub(super) struct Samples<'a> {
    page: &'a mut Page,
    family: &'static Family,
    /// Whether its head is written: a family without samples is left out.
    has_head: bool,
}

impl Page {
    pub fn new(format: Format) -> Page {
        Page { text: String::new(), format }
    }

    /// Begins a family.
    pub fn family(&mut self, family: &'static Family) -> Samples<'_> {
        Samples { page: self, family, has_head: false }
    }

    /// The whole page.
    pub fn finish(mut self) -> String {
        if self.format == Format::OpenMetrics {
            self.text.push_str("# EOF\n");
        }
        self.text
    }

    // Writing to a string does not fail, here and below.
    fn head(&mut self, family: &Family) {
        let (kind, name) = match (self.format, family.kind) {
            (Format::OpenMetrics, Type::Counter) => ("counter", family.name.to_owned()),
            (Format::OpenMetrics, Type::Info) => ("info", family.name.to_owned()),
            (Format::Prometheus, Type::Counter) => ("counter", family.sample_name()),
            (_, Type::Info) => ("gauge", family.sample_name()),
            (_, Type::Gauge) => ("gauge", family.name.to_owned()),
            (_, Type::Histogram) => ("histogram", family.name.to_owned()),
        };
        // The older format knows no escape for quotes here, OpenMetrics requires one.
        let help = match self.format {
            Format::OpenMetrics => family.help.replace('\\', "\\\\").replace('"', "\\\""),
            Format::Prometheus => family.help.replace('\\', "\\\\"),
        };
        let _ = writeln!(self.text, "# HELP {name} {help}\n# TYPE {name} {kind}");
        if self.format == Format::OpenMetrics && !family.unit.is_empty() {
            let _ = writeln!(self.text, "# UNIT {name} {}", family.unit);
        }
    }

    fn line(&mut self, name: &str, labels: &[(&str, &str)], value: f64) {
        self.text.push_str(name);
        for (i, (label, value)) in labels.iter().enumerate() {
            let open = if i == 0 { '{' } else { ',' };
            let _ = write!(self.text, "{open}{label}=\"{}\"", escaped(value));
        }
        if !labels.is_empty() {
            self.text.push('}');
        }
        let _ = match value.is_finite() {
            true => writeln!(self.text, " {value}"),
            // Nothing here is negative or undefined.
            false => writeln!(self.text, " +Inf"),
        };
    }
}

/// The value of a label.
fn escaped(value: &str) -> String {
    value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

impl Samples<'_> {
    fn labels<'v>(&self, values: &'v [String]) -> Vec<(&'static str, &'v str)> {
        debug_assert_eq!(self.family.labels.len(), values.len(), "{}", self.family.name);
        self.family.labels.iter().copied().zip(values.iter().map(String::as_str)).collect()
    }

    fn begin(&mut self) {
        if !std::mem::replace(&mut self.has_head, true) {
            self.page.head(self.family);
        }
    }

    /// Adds a sample; the values are those of the labels in their order.
    pub fn sample(&mut self, values: &[String], value: f64) {
        self.begin();
        let labels = self.labels(values);
        self.page.line(&self.family.sample_name(), &labels, value);
    }

    /// Adds a histogram. `bound` returns the upper bound of a bucket.
    pub fn histogram(&mut self, values: &[String], buckets: &[u64], sum: f64, bound: fn(usize) -> f64) {
        self.begin();
        let name = self.family.name;
        let labels = self.labels(values);
        let mut below = 0;
        for (i, count) in buckets.iter().enumerate() {
            below += count;
            let bound = bound(i);
            let le = if bound.is_finite() { bound.to_string() } else { "+Inf".to_owned() };
            let labels: Vec<_> = labels.iter().copied().chain([("le", le.as_str())]).collect();
            self.page.line(&format!("{name}_bucket"), &labels, below as f64);
        }
        self.page.line(&format!("{name}_count"), &labels, below as f64);
        self.page.line(&format!("{name}_sum"), &labels, sum);
    }
}
