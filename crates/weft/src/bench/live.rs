//! The progress display of a measurement: on a terminal one line that changes each second, elsewhere nothing.

use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use weft_load::result::{Sample, Second};

/// The line.
pub(crate) struct Live {
    bar: ProgressBar,
    point: String,
}

impl Live {
    /// A line, unless `quiet`.
    pub(crate) fn new(quiet: bool) -> Live {
        let bar = ProgressBar::no_length();
        bar.set_draw_target(if quiet { ProgressDrawTarget::hidden() } else { ProgressDrawTarget::stderr() });
        bar.set_style(
            ProgressStyle::with_template("{elapsed_precise} {bar:24} {pos}/{len} {wide_msg}")
                .expect("the template is a constant that parses"),
        );
        Live { bar, point: String::new() }
    }

    /// Shows a step that is not a measurement.
    pub(crate) fn doing(&mut self, what: &str) {
        self.bar.set_message(what.to_owned());
        self.bar.tick();
    }

    /// Announces the number of measurements that follow.
    pub(crate) fn begin(&mut self, measurements: usize) {
        self.bar.set_length(measurements as u64);
        self.bar.set_position(0);
        self.bar.enable_steady_tick(Duration::from_secs(1));
    }

    /// Shows the point being measured.
    pub(crate) fn point(&mut self, name: &str) {
        self.point = name.to_owned();
        self.bar.set_message(self.point.clone());
    }

    /// Shows the figures of the last second.
    pub(crate) fn second(&mut self, second: &Second) {
        let cores = second.client_cores.map_or(String::new(), |cores| format!(", client {cores:.2} cores"));
        let server = second.server_cores.map_or(String::new(), |cores| format!(", server {cores:.2}"));
        let (rate, iops) = (second.throughput / 1e6, second.iops);
        self.bar.set_message(format!("{}: {rate:.0} MB/s, {iops:.0} IOPS{cores}{server}", self.point));
    }

    /// Shows the result of a point.
    pub(crate) fn done(&mut self, sample: &Sample) {
        let seconds = sample.seconds.max(1e-9);
        let (rate, iops) = (sample.bytes as f64 / seconds / 1e6, sample.operations as f64 / seconds);
        self.bar.set_message(format!("{}: {rate:.0} MB/s, {iops:.0} IOPS", self.point));
        self.bar.inc(1);
    }

    /// Removes the line.
    pub(crate) fn clear(&mut self) {
        self.bar.disable_steady_tick();
        self.bar.finish_and_clear();
        self.bar.reset();
    }
}
