//! What a group is at the moment, and who hears of it.

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use weft_machine::rt;
use weft_machine::sim::Sim;

use super::Servers;
use crate::group::{Cause, Group, State};

/// Two servers that follow each other.
async fn settled() -> Rc<Servers> {
    let servers = Servers::new(false).await;
    (0..2).for_each(|n| servers.start(n));
    assert_eq!(servers.settles().await, Some(0), "{}", servers.describe());
    servers
}

/// Counts how often somebody who waits for the end of the world looks at the state of a group.
fn looks(group: &Arc<Group>) -> Rc<Cell<u32>> {
    let looks = Rc::new(Cell::new(0));
    let (group, count) = (group.clone(), looks.clone());
    rt::spawn(async move {
        group
            .until(|_| {
                count.set(count.get() + 1);
                false
            })
            .await;
    })
    .detach();
    looks
}

#[test]
fn a_group_that_runs_is_not_opened_again_and_nobody_is_woken_for_that() {
    Sim::new(7).time_limit(Duration::from_secs(600)).run(async {
        let servers = settled().await;
        for n in 0..2 {
            let group = servers.running(n).expect("it runs").group;
            let looks = looks(&group);
            rt::sleep(Duration::from_millis(10)).await;
            let before = looks.get();
            // Another command has decided already, and the group is open.
            group.again();
            rt::sleep(Duration::from_secs(1)).await;
            match group.state() {
                State::Source(_) => assert_eq!(n, 0),
                State::Destination(_) => assert_eq!(n, 1),
                other => panic!("{other:?}"),
            }
            assert_eq!(looks.get(), before, "somebody is woken though nothing has changed");
        }
    });
}

#[test]
fn a_stopped_group_that_has_ended_stays_as_it_is_and_each_step_of_its_end_is_told_once() {
    Sim::new(7).time_limit(Duration::from_secs(600)).run(async {
        let servers = settled().await;
        servers.kill(1);
        servers.world.nodes[1].journal.break_down(true);
        servers.start(1);
        let group = servers.running(1).expect("it runs").group;
        group.until(|state| matches!(state, State::Stopped(_))).await;
        let looks = looks(&group);
        rt::sleep(Duration::from_millis(10)).await;
        let before = looks.get();
        group.close().await;
        rt::sleep(Duration::from_millis(10)).await;
        assert!(group.has_ended() && !group.is_settled());
        // It ends, what ran is closed, its task has ended; two looks each, as a change between them wakes nobody.
        assert!((1..=6).contains(&(looks.get() - before)), "{} looks", looks.get() - before);
        group.again();
        let State::Stopped(stopped) = group.state() else { panic!("nobody will open it") };
        assert_eq!(stopped.cause, Cause::Failed);
    });
}
