//! What a user sees while it is measured: one line that changes each second on a terminal, and nothing elsewhere.
//!
//! Owns: that line. Does not: measure.

use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use weft_load::result::{Sample, Second};

/// The line.
pub(crate) struct Live {
    bar: ProgressBar,
    point: String,
}

impl Live {
    /// A line, unless it is not wanted.
    pub(crate) fn new(quiet: bool) -> Live {
        let bar = ProgressBar::no_length();
        bar.set_draw_target(if quiet { ProgressDrawTarget::hidden() } else { ProgressDrawTarget::stderr() });
        bar.set_style(
            ProgressStyle::with_template("{elapsed_precise} {bar:24} {pos}/{len} {wide_msg}")
                .expect("the template is a constant that parses"),
        );
        Live { bar, point: String::new() }
    }

    /// Something that is no measurement is done.
    pub(crate) fn doing(&mut self, what: &str) {
        self.bar.set_message(what.to_owned());
        self.bar.tick();
    }

    /// So many measurements follow.
    pub(crate) fn begin(&mut self, measurements: usize) {
        self.bar.set_length(measurements as u64);
        self.bar.set_position(0);
        self.bar.enable_steady_tick(Duration::from_secs(1));
    }

    /// This is measured now.
    pub(crate) fn point(&mut self, name: &str) {
        self.point = name.to_owned();
        self.bar.set_message(self.point.clone());
    }

    /// A second of it has passed.
    pub(crate) fn second(&mut self, second: &Second) {
        let cores = second.client_cores.map_or(String::new(), |cores| format!(", client {cores:.2} cores"));
        let server = second.server_cores.map_or(String::new(), |cores| format!(", server {cores:.2}"));
        let (rate, iops) = (second.throughput / 1e6, second.iops);
        self.bar.set_message(format!("{}: {rate:.0} MB/s, {iops:.0} IOPS{cores}{server}", self.point));
    }

    /// It was measured.
    pub(crate) fn done(&mut self, sample: &Sample) {
        let seconds = sample.seconds.max(1e-9);
        let (rate, iops) = (sample.bytes as f64 / seconds / 1e6, sample.operations as f64 / seconds);
        self.bar.set_message(format!("{}: {rate:.0} MB/s, {iops:.0} IOPS", self.point));
        self.bar.inc(1);
    }

    /// The line goes.
    pub(crate) fn clear(&mut self) {
        self.bar.disable_steady_tick();
        self.bar.finish_and_clear();
        self.bar.reset();
    }
}
