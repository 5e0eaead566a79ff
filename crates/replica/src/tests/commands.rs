//! Commands to a destination, and what the status says of it meanwhile.

use std::cell::Cell;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::{Either, select};
use weft_machine::rt;

use super::stories::{K, pair, start, tell, write};
use super::world::Start;
use crate::source::{Config, First, OnFull, Source};
use crate::status::{Mode, Phase};

/// As long as the story goes on: whenever the status says that the destination follows, a command to it is accepted.
async fn commands_are_accepted(source: Arc<Source>, looks: &Cell<u32>) {
    loop {
        if source.status().peers[0].phase == Phase::ContinuouslyReplicating {
            // Given up at once, so that it compares nothing.
            let asked = rt::timeout(Duration::ZERO, source.verify(0, false)).await;
            let refused = asked.ok().and_then(Result::err).map(|e| e.to_string());
            // Those that were given up may still be in the queue.
            let is_queue_full = refused.as_ref().is_some_and(|why| why.contains("other commands wait"));
            assert!(refused.is_none() || is_queue_full, "{refused:?}: {:?}", source.status().peers);
            looks.set(looks.get() + 1);
        }
        rt::sleep(Duration::from_micros(200)).await;
    }
}

#[test]
fn a_destination_that_is_said_to_follow_can_be_verified() {
    tell(async {
        let config = Config { on_full: OnFull::Resync, ..start(Mode::Asynchronous).config };
        let mut start = Start { config, ..start(Mode::Asynchronous) };
        start.slow_cable = Duration::from_millis(5);
        start.log_bytes = vec![64 * K, 512 * K];
        let world = pair(start, First::Copy).await;
        let (source, looks) = (world.source(0), Cell::new(0));
        let block = source.block(0);
        let story = async {
            // Sessions end because of a repair, and because the log has no room for a slow destination.
            for round in 0..4_u8 {
                world.nodes[1].members[0].plant(4096 * usize::from(round), &[0x5a; 512]);
                let verified = loop {
                    match source.verify(0, true).await {
                        Ok(verified) => break verified,
                        Err(e) => assert!(e.to_string().contains("other commands wait"), "{e}"),
                    }
                    rt::sleep(Duration::from_millis(1)).await;
                };
                assert!(verified.different > 0, "{verified:?}");
                world.until_follows(0).await;
                let resyncs = source.status().peers[0].bytes_sent;
                assert!(resyncs > 0, "nothing was repaired");
                for n in 0..40 {
                    write(&block, n * 4096, 4096, round + 1).await;
                }
                world.until_follows(0).await;
            }
        };
        let watch = commands_are_accepted(source.clone(), &looks);
        match select(pin!(story), pin!(watch)).await {
            Either::Left(((), _)) => {}
            Either::Right(_) => unreachable!("it looks until the story ends"),
        }
        assert!(looks.get() > 100, "{} looks", looks.get());
        world.check_equal(0, 1).await;
    });
}
