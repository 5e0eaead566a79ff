//! Captures the log of a story, for tests of messages to users.
//!
//! It owns the lines of the story that runs on a thread, and does not print them.
//!
//! One subscriber serves all threads: each logging site caches whether anybody is interested in its events, as decided
//! by the first thread that gets there.

use std::cell::RefCell;
use std::fmt;
use std::sync::Once;

use tracing::field::{Field, Visit};
use tracing::subscriber::Interest;
use tracing::{Event, Metadata, Subscriber, span};

use crate::clock::Time;
use crate::rt;

thread_local! {
    static LINES: RefCell<Option<Vec<(Time, String)>>> = const { RefCell::new(None) };
}

struct Lines;

impl Subscriber for Lines {
    fn register_callsite(&self, _: &'static Metadata<'static>) -> Interest {
        Interest::sometimes()
    }

    fn enabled(&self, _: &Metadata<'_>) -> bool {
        LINES.with_borrow(Option::is_some)
    }

    fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
        span::Id::from_u64(1)
    }

    fn record(&self, _: &span::Id, _: &span::Record<'_>) {}

    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}

    fn event(&self, event: &Event<'_>) {
        struct Message(String);
        impl Visit for Message {
            fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
                if field.name() == "message" {
                    self.0 = format!("{value:?}");
                }
            }
        }
        let mut message = Message(String::new());
        event.record(&mut message);
        LINES.with_borrow_mut(|lines| lines.get_or_insert_default().push((rt::now(), message.0)));
    }

    fn enter(&self, _: &span::Id) {}

    fn exit(&self, _: &span::Id) {}
}

/// Runs a story in simulation; returns its outcome, and the messages logged meanwhile, with the simulated time of each.
///
/// # Panics
/// If the process has another subscriber.
pub fn logged<F: Future>(seed: u64, story: F) -> (F::Output, Vec<(Time, String)>) {
    static INSTALLED: Once = Once::new();
    INSTALLED.call_once(|| tracing::subscriber::set_global_default(Lines).expect("there is no other"));
    LINES.set(Some(Vec::new()));
    let outcome = super::Sim::new(seed).run(story);
    (outcome, LINES.take().unwrap_or_default())
}
