//! A source that cannot reach its copy, though the copy reaches it: a firewall rule, or a password that was changed on
//! one side.
//!
//! What is checked: when the copy is promoted the source hears of that from the copy, and from then on one side answers
//! writes.

use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use weft_machine::rt;
use weft_machine::sim::Sim;
use weft_store::block::{Block, BlockOp};

use super::{SLOT, Servers};
use crate::destination::Force;
use crate::group::{Cause, State};
use crate::source::Source;
use crate::status::Phase;

/// One whose servers answer writes without a copy.
const SEED: u64 = 6;

async fn write(servers: &Servers, n: usize, byte: u8) -> bool {
    let front = servers.running(n).expect("it runs").fronts[0].clone();
    let write = BlockOp::Write { offset: 0, data: vec![Bytes::from(vec![byte; SLOT])], durable: true };
    matches!(rt::timeout(Duration::from_secs(5), front.submit(write)).await, Ok(Ok(_)))
}

/// Server 0 is the source, and what it says does not reach server 1 any more.
async fn cut_off() -> (Rc<Servers>, Arc<Source>) {
    let servers = Servers::new(false).await;
    (0..2).for_each(|n| servers.start(n));
    assert_eq!(servers.settles().await, Some(0), "{}", servers.describe());
    let State::Source(source) = servers.running(0).expect("it runs").group.state() else {
        panic!("it is the source")
    };
    servers.world.mute(0);
    while source.status().peers[0].phase == Phase::ContinuouslyReplicating {
        rt::sleep(Duration::from_millis(50)).await;
    }
    (servers, source)
}

async fn promoted(servers: &Rc<Servers>) {
    servers.fail_over(1, Force { behind: true, ..Force::default() }).await;
    assert!(write(servers, 1, 7).await, "the copy was not promoted: {}", servers.describe());
}

#[test]
fn a_source_that_cannot_reach_its_copy_hears_from_it_that_it_was_promoted() {
    Sim::new(SEED).time_limit(Duration::from_secs(600)).run(async {
        let (servers, source) = cut_off().await;
        promoted(&servers).await;
        assert!(!write(&servers, 0, 8).await, "there are two sources: {}", servers.describe());
        assert_eq!(source.halted().map(|(phase, _)| phase), Some(Phase::Superseded));
        // It becomes the copy of that, though it reaches it no more.
        assert_eq!(servers.settles().await, Some(1), "{}", servers.describe());
        servers.invariants();
    });
}

#[test]
fn a_source_that_answered_alone_stops_for_a_decision_when_its_copy_is_promoted() {
    Sim::new(SEED).time_limit(Duration::from_secs(600)).run(async {
        let (servers, _) = cut_off().await;
        assert!(write(&servers, 0, 5).await, "it answers nothing alone: choose another seed");
        promoted(&servers).await;
        assert!(!write(&servers, 0, 8).await, "there are two sources: {}", servers.describe());
        let stops = async || {
            let group = servers.running(0).expect("it runs").group;
            group.until(|state| matches!(state, State::Stopped(_))).await;
            let State::Stopped(stopped) = group.state() else { panic!("it goes on") };
            assert_eq!(stopped.cause, Cause::Split, "{}", stopped.why);
        };
        stops().await;
        // So it does when it is started again, before anybody has decided.
        servers.kill(0);
        servers.start(0);
        assert!(!write(&servers, 0, 9).await, "there are two sources: {}", servers.describe());
        stops().await;
        servers.world.heal();
        assert!(write(&servers, 1, 10).await, "{}", servers.describe());
        servers.resolve(0, false).await.expect("the other one counts");
        assert_eq!(servers.settles().await, Some(1), "{}", servers.describe());
    });
}
