//! The watchdog's messages, from the blocked core to the log: this is a separate process, whose log is read here.

use std::fmt::{Debug, Write};
use std::sync::mpsc;
use std::time::Duration;

use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};
use weft_machine::rt::Cores;

/// A log whose lines go to a channel.
struct Log(mpsc::Sender<(Level, String)>);

impl Subscriber for Log {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        *metadata.level() <= Level::WARN
    }
    fn event(&self, event: &Event<'_>) {
        let mut line = Message(String::new());
        event.record(&mut line);
        if line.0.starts_with("core ") {
            // The receiver has seen enough.
            let _ = self.0.send((*event.metadata().level(), line.0));
        }
    }
    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }
    fn record(&self, _: &Id, _: &Record<'_>) {}
    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn enter(&self, _: &Id) {}
    fn exit(&self, _: &Id) {}
}

struct Message(String);

impl Visit for Message {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        if field.name() == "message" {
            write!(self.0, "{value:?}").unwrap();
        }
    }
}

/// No test waits that long: the watchdog checks four times a second.
const PATIENCE: Duration = Duration::from_secs(60);

#[test]
fn a_core_that_is_blocked_is_named_in_the_log_with_its_task_and_again_when_it_is_back() {
    let (log, lines) = mpsc::channel();
    tracing::subscriber::set_global_default(Log(log)).unwrap();
    let line = || lines.recv_timeout(PATIENCE).expect("the watchdog says nothing");
    let cores = Cores::start(2, "watched").unwrap();
    let (release, released) = mpsc::channel::<()>();
    let spawned = format!("{}:{}:", file!(), line!() + 1);
    cores.run(1, move || async move {
        // What no task may do: block its core. It does so until the log has reported it, for at least a second.
        released.recv().unwrap();
    });
    let (level, away) = line();
    assert_eq!(level, Level::ERROR);
    assert!(away.starts_with("core watched-1 has not returned to its loop for 1.0 s"), "{away}");
    assert!(away.contains(&format!("last task spawned at {spawned}")), "{away}");
    release.send(()).unwrap();
    // On a slow machine it is reported again before its return is noticed.
    let back = loop {
        match line() {
            (Level::ERROR, line) => assert!(line.starts_with("core watched-1 has not returned"), "{line}"),
            (_, line) => break line,
        }
    };
    assert!(back.starts_with("core watched-1 returned to its loop after "), "{back}");
}
