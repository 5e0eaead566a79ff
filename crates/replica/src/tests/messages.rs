//! What the log says names the group and the partner that it is about.

use std::fmt;
use std::sync::{Arc, Mutex};

use tracing::field::{Field, Visit};
use tracing::{Event, Metadata, Subscriber, span};

use super::stories::{pair, start, write};
use super::world::World;
use crate::group::{Group, SETTLES_WITHIN, State};
use crate::source::{Config, First};
use crate::status::{Mode, Phase};
use weft_machine::rt;
use weft_machine::sim::Sim;

/// The lines of one story.
#[derive(Clone, Default)]
struct Lines(Arc<Mutex<Vec<String>>>);

impl Subscriber for Lines {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        true
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
        self.0.lock().unwrap().push(message.0);
    }

    fn enter(&self, _: &span::Id) {}

    fn exit(&self, _: &span::Id) {}
}

/// What is logged while a story is told.
fn logged<F: Future<Output = ()>>(story: F) -> Vec<String> {
    let lines = Lines::default();
    tracing::subscriber::with_default(lines.clone(), || Sim::new(7).run(story));
    Arc::into_inner(lines.0).expect("the story is over").into_inner().unwrap()
}

fn says(lines: &[String], wanted: &str) {
    assert!(lines.iter().any(|line| line.contains(wanted)), "{wanted:?} is not in {lines:#?}");
}

async fn following() -> World {
    let start = start(Mode::Synchronous);
    let config = Config { group: "db".into(), ..start.config };
    pair(super::world::Start { config, ..start }, First::Copy).await
}

#[test]
fn a_source_that_stops_names_its_group_and_who_is_the_source_now() {
    let lines = logged(async {
        let world = following().await;
        world.source(0).switch(0, 5).await.expect("the copy follows");
    });
    says(&lines, "group db: replication to copy: ContinuouslyReplicating");
    says(&lines, "group db: replication stops, and so do writes: the roles were exchanged");
}

#[test]
fn a_destination_that_is_not_heard_of_is_named() {
    let lines = logged(async {
        let world = following().await;
        world.kill(0);
        let source = world.start_source(0).await;
        // Nobody ships to it.
        source.greeted().await;
        assert_eq!(source.status().peers[0].phase, Phase::WaitingForDestination);
    });
    says(&lines, "group db: copy did not say within 1.5s whether this side is the source still");
}

#[test]
fn a_group_that_does_not_open_says_for_how_long_it_was_waited_for() {
    Sim::new(7).run(async {
        let group = Group::new("db", Vec::new());
        let began = rt::now();
        let why =
            group.settled(|state| matches!(state, State::Source(_))).await.expect_err("nobody opens it");
        assert_eq!(rt::now().since(began), SETTLES_WITHIN);
        assert!(
            why.starts_with("db is not open after 60 s") && why.contains("`weft replica status`"),
            "{why}"
        );
    });
}

#[test]
fn a_copy_whose_disk_fails_names_its_group_and_its_source() {
    let lines = logged(async {
        let world = following().await;
        let block = world.source(0).block(0);
        write(&block, 0, 4096, 1).await;
        world.nodes[1].members[0].fail(0);
        let compared = world.source(0).verify(0, false).await;
        compared.expect_err("one of its sectors cannot be read");
        rt::sleep(std::time::Duration::from_millis(1)).await;
    });
    says(&lines, "group replica: the copy of its source: ");
}
