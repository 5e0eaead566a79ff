//! A server whose other side knows nothing of the partnership: replication was ended there, or everywhere, and what
//! this server remembers is of a time before that.

use std::rc::Rc;
use std::time::Duration;

use bytes::Bytes;
use weft_machine::rt;
use weft_machine::sim::Sim;
use weft_store::block::{Block, BlockOp};

use super::{Runs, SLOT, Servers};
use crate::destination::Force;
use crate::group::{Cause, State};
use crate::status::Phase;

/// One whose servers answer writes without a copy.
const SEED: u64 = 6;

impl Servers {
    /// A server knows nothing of the partnership any more.
    fn forgets(&self, n: usize) {
        self.kill(n);
        self.world.nodes[n].host.side.replace(Runs::Stranger);
    }

    /// A server is told by its source that the partnership is over.
    fn is_told_of_the_end(&self, n: usize) {
        self.kill(n);
        self.world.nodes[n].host.side.replace(Runs::Ended);
    }

    async fn is_written(&self, n: usize, byte: u8) {
        let front = self.running(n).expect("it runs").fronts[0].clone();
        let write = BlockOp::Write { offset: 0, data: vec![Bytes::from(vec![byte; SLOT])], durable: true };
        let written = rt::timeout(Duration::from_secs(60), front.submit(write)).await;
        written.expect("it is answered").expect("it is written");
    }

    async fn becomes(&self, n: usize, is: impl Fn(&State) -> bool) -> State {
        let group = self.running(n).expect("it runs").group;
        group.until(|state| is(state) || matches!(state, State::Stopped(_))).await;
        group.state()
    }
}

fn is_source(state: &State) -> bool {
    matches!(state, State::Source(_))
}

/// Replication was ended on both sides, and the volume was used; then server 0 starts with the journal of the time
/// before, which holds a write that nobody has looked at since.
async fn set_back() -> Rc<Servers> {
    let servers = Servers::new(false).await;
    (0..2).for_each(|n| servers.start(n));
    assert_eq!(servers.settles().await, Some(0), "{}", servers.describe());
    servers.is_written(0, 1).await;
    let then = servers.world.nodes[0].journal.content();
    servers.kill(0);
    servers.is_told_of_the_end(1);
    let disk = &servers.world.nodes[0].members[0];
    disk.replace(vec![9; disk.content().len()]);
    servers.world.nodes[0].journal.replace(then);
    servers.start(0);
    let State::Stopped(stopped) = servers.becomes(0, is_source).await else { panic!("it goes on") };
    assert_eq!(stopped.cause, Cause::Over, "{}", stopped.why);
    for said in ["other says", "`weft replica remove db --force`", "`weft replica resolve db --keep here`"] {
        assert!(stopped.why.contains(said), "{}", stopped.why);
    }
    servers.invariants();
    servers
}

#[test]
fn a_log_of_a_time_before_replication_was_ended_is_not_replayed() {
    Sim::new(SEED).time_limit(Duration::from_secs(600)).run(async {
        let servers = set_back().await;
        servers.resolve(0, false).await.expect_err("there is nothing to keep there");
        // So is it after another start.
        servers.kill(0);
        servers.start(0);
        assert!(matches!(servers.becomes(0, is_source).await, State::Stopped(_)));
        let bare = servers.world.side(0).members;
        let group = servers.running(0).expect("it runs").group;
        group.end(&bare, true, async |_| Ok(())).await.expect("it ends");
        assert!(servers.world.volumes(0)[0].iter().all(|byte| *byte == 9), "the log was replayed");
    });
}

#[test]
fn somebody_may_say_that_a_log_counts_whose_partnership_the_other_side_has_forgotten() {
    Sim::new(SEED).time_limit(Duration::from_secs(600)).run(async {
        let servers = set_back().await;
        servers.resolve(0, true).await.expect("it counts");
        assert!(
            servers.world.volumes(0)[0][..SLOT].iter().all(|byte| *byte == 1),
            "its log was not replayed"
        );
        servers.is_written(0, 2).await;
        servers.kill(0);
        servers.start(0);
        let State::Source(source) = servers.becomes(0, is_source).await else { panic!("it was decided") };
        assert!(source.status().peers[0].unprotected, "it claims that it is protected");
    });
}

#[test]
fn a_source_that_runs_goes_on_when_its_copy_is_removed_and_after_a_restart() {
    Sim::new(SEED).time_limit(Duration::from_secs(600)).run(async {
        let servers = Servers::new(false).await;
        (0..2).for_each(|n| servers.start(n));
        assert_eq!(servers.settles().await, Some(0), "{}", servers.describe());
        servers.forgets(1);
        let State::Source(source) = servers.becomes(0, is_source).await else { panic!("it is the source") };
        while source.status().peers[0].phase != Phase::Refused {
            rt::sleep(Duration::from_millis(50)).await;
        }
        servers.is_written(0, 1).await;
        servers.kill(0);
        servers.start(0);
        assert!(is_source(&servers.becomes(0, is_source).await), "{}", servers.describe());
    });
}

#[test]
fn a_source_goes_on_unprotected_when_its_copys_server_was_installed_anew_while_it_was_down() {
    Sim::new(SEED).time_limit(Duration::from_secs(600)).run(async {
        let servers = Servers::new(false).await;
        (0..2).for_each(|n| servers.start(n));
        assert_eq!(servers.settles().await, Some(0), "{}", servers.describe());
        servers.is_written(0, 1).await;
        servers.kill(0);
        servers.forgets(1);
        for _ in 0..2 {
            servers.start(0);
            let State::Source(source) = servers.becomes(0, is_source).await else {
                panic!("it does not serve its volumes: {}", servers.describe())
            };
            servers.is_written(0, 2).await;
            let peer = source.status().peers.swap_remove(0);
            assert!(peer.unprotected && peer.phase == Phase::Refused, "{peer:?}");
            let why = peer.last_error.expect("it says why");
            assert!(why.contains("has lost its state directory"), "{why}");
            servers.kill(0);
        }
    });
}

#[test]
fn a_copy_is_made_the_source_though_its_source_is_another_machine_by_now() {
    Sim::new(SEED).time_limit(Duration::from_secs(600)).run(async {
        let servers = Servers::new(false).await;
        (0..2).for_each(|n| servers.start(n));
        assert_eq!(servers.settles().await, Some(0), "{}", servers.describe());
        // It was lost, and is made anew.
        servers.forgets(0);
        servers.fail_over(1, Force::default()).await;
        for _ in 0..2 {
            assert!(is_source(&servers.becomes(1, is_source).await), "{}", servers.describe());
            servers.is_written(1, 3).await;
            servers.kill(1);
            servers.start(1);
        }
    });
}
