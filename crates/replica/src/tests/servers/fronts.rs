//! What clients meet while a copy becomes the source.

use std::time::Duration;

use bytes::Bytes;
use weft_machine::rt;
use weft_machine::sim::Sim;
use weft_store::block::{Block, BlockOp};

use super::{Runs, SLOT, Servers};
use crate::destination::Force;
use crate::group::State;

#[test]
fn requests_wait_while_a_copy_that_was_promoted_asks_its_destinations() {
    Sim::new(7).run(async {
        let servers = Servers::new(false).await;
        [0, 1].into_iter().for_each(|n| servers.start(n));
        assert_eq!(servers.settles().await, Some(0));
        servers.kill(0);
        // It comes back, and says nothing yet.
        servers.world.nodes[0].host.side.replace(Runs::Starting);
        let running = servers.running(1).expect("it runs");
        let State::Destination(copy) = running.group.state() else { panic!("a copy") };
        let write = || {
            let data = vec![Bytes::from(vec![7; SLOT])];
            running.fronts[0].submit(BlockOp::Write { offset: 0, data, durable: false })
        };
        write().await.expect_err("it is a copy");
        copy.promote(77, Force { source_alive: true, inconsistent: false, behind: false })
            .await
            .expect("it is promoted");
        rt::sleep(Duration::from_secs(1)).await;
        assert!(matches!(running.group.state(), State::Starting));
        write().await.expect("it waits, and is written");
    });
}

#[test]
fn a_front_that_is_closed_says_something_else_and_no_other_does() {
    Sim::new(7).run(async {
        let servers = Servers::new(false).await;
        [0, 1].into_iter().for_each(|n| servers.start(n));
        assert_eq!(servers.settles().await, Some(0));
        for n in [0, 1] {
            let running = servers.running(n).expect("it runs");
            running.group.is_copy_of("third:db");
            let read = running.fronts[0].submit(BlockOp::Read { offset: 0, len: SLOT }).await;
            match n {
                0 => drop(read.expect("a source stays one")),
                _ => assert!(read.expect_err("a copy").to_string().contains("third:db")),
            }
        }
    });
}
