//! The roles are exchanged, or stay what they are; whatever is slow, full, lost or typed meanwhile.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use futures_util::future::{LocalBoxFuture, join};
use weft_machine::{Payload, rt};
use weft_store::block::BlockOp;
use weft_wire::repl::control::{Request, Response};

use super::link::Link;
use super::stories::{pair, start, tell, write};
use super::three;
use super::world::{ALIVE, World};
use crate::error::Error;
use crate::peer::{self, Peer};
use crate::record::Record;
use crate::source::First;
use crate::status::{Mode, Role};

/// Writes that overlap: a copy applies one after the other.
async fn write_the_same_range(world: &World, count: u64) {
    let block = world.source(0).block(0);
    for n in 0..count {
        write(&block, 0, 4096, n as u8).await;
    }
}

/// Host 0 is the source, and is used, and host 1 its copy, as if nothing had been typed.
async fn the_roles_are_as_they_were(world: &World) {
    assert_eq!((world.role(0).await, world.role(1).await), (Role::Source, Role::Destination));
    assert!(!world.source(0).has_given_up() && world.source(0).halted().is_none());
    write(&world.source(0).block(0), 8192, 4096, 77).await;
}

/// They stay so, however long somebody waits, and are exchanged when somebody wants it again.
async fn and_stay_so_until_they_are_exchanged(world: &World) {
    the_roles_are_as_they_were(world).await;
    world.until_follows(0).await;
    rt::sleep(Duration::from_secs(100)).await;
    the_roles_are_as_they_were(world).await;
    world.until_follows(0).await;
    world.check_equal(0, 1).await;
    world.source(0).switch(0, 78).await.expect("nothing is in the way now");
    assert_eq!((world.role(0).await, world.role(1).await), (Role::Destination, Role::Source));
}

fn text(switched: Result<(), Error>) -> String {
    switched.expect_err("the roles were exchanged").to_string()
}

#[test]
fn a_copy_that_is_slow_to_apply_is_waited_for() {
    tell(async {
        let world = pair(start(Mode::Synchronous), First::Copy).await;
        world.nodes[1].members[0].slow_down(Duration::from_millis(200));
        write_the_same_range(&world, 50).await;
        let began = rt::now();
        world.source(0).switch(0, 77).await.expect("it applies what it has");
        let took = rt::now().since(began);
        let config = &world.config;
        assert!(took > config.timeout && took > config.beat, "{took:?}: nobody was waited for");
        assert_eq!((world.role(0).await, world.role(1).await), (Role::Destination, Role::Source));
    });
}

#[test]
fn a_copy_that_is_too_slow_to_apply_does_not_become_the_source() {
    tell(async {
        let world = pair(start(Mode::Asynchronous), First::Copy).await;
        let disk = &world.nodes[1].members[0];
        disk.slow_down(Duration::from_secs(10));
        write_the_same_range(&world, 40).await;
        let began = rt::now();
        let why = text(world.source(0).switch(0, 77).await);
        assert!(why.contains("within 30 s"), "{why}");
        assert!(rt::now().since(began) <= Duration::from_secs(61));
        disk.slow_down(Duration::from_micros(50));
        and_stay_so_until_they_are_exchanged(&world).await;
    });
}

#[test]
fn writes_wait_for_a_copy_that_is_slow_for_thirty_seconds_at_most() {
    tell(async {
        let world = pair(start(Mode::Asynchronous), First::Copy).await;
        // What is logged arrives there, and is not applied: the cable is not in the way.
        let disk = &world.nodes[1].members[0];
        disk.slow_down(Duration::from_secs(3));
        let source = world.source(0);
        let block = source.block(0);
        let longest = Rc::new(Cell::new(Duration::ZERO));
        let seen = longest.clone();
        let writer = rt::spawn(async move {
            loop {
                let began = rt::now();
                write(&block, 0, 4096, 1).await;
                seen.set(seen.get().max(rt::now().since(began)));
                rt::sleep(Duration::from_millis(700)).await;
            }
        });
        rt::sleep(Duration::from_secs(60)).await;
        longest.set(Duration::ZERO);
        let why = text(source.switch(0, 77).await);
        assert!(why.contains("within 30 s"), "{why}");
        rt::sleep(Duration::from_secs(2)).await;
        assert!(longest.get() <= Duration::from_secs(31), "{longest:?}");
        drop(writer);
        disk.slow_down(Duration::from_micros(50));
        and_stay_so_until_they_are_exchanged(&world).await;
    });
}

#[test]
fn a_copy_whose_disk_is_full_does_not_become_the_source() {
    // Its volume, which it cannot apply to; its journal, which it could not write down in what it is.
    for journal in [false, true] {
        tell(async {
            let world = pair(start(Mode::Asynchronous), First::Copy).await;
            write_the_same_range(&world, 4).await;
            world.until_follows(0).await;
            let disk = match journal {
                true => world.nodes[1].journal.clone(),
                false => world.nodes[1].members[0].clone(),
            };
            disk.fill(true);
            if !journal {
                write_the_same_range(&world, 4).await;
            }
            let began = rt::now();
            let why = text(world.source(0).switch(0, 77).await);
            assert!(why.contains("a disk of the destination is full"), "{why}");
            assert!(rt::now().since(began) < Duration::from_secs(1), "that is known at once");
            the_roles_are_as_they_were(&world).await;
            disk.fill(false);
            and_stay_so_until_they_are_exchanged(&world).await;
        });
    }
}

#[test]
fn a_source_whose_disk_is_full_stays_the_source() {
    tell(async {
        let world = pair(start(Mode::Asynchronous), First::Copy).await;
        world.nodes[0].journal.fill(true);
        let began = rt::now();
        let why = text(world.source(0).switch(0, 77).await);
        assert!(why.contains("a disk is full here"), "{why}");
        assert!(rt::now().since(began) < Duration::from_secs(1), "that is known at once");
        world.nodes[0].journal.fill(false);
        and_stay_so_until_they_are_exchanged(&world).await;
    });
}

#[test]
fn a_link_that_is_lost_while_the_copy_prepares_leaves_the_roles_as_they_are() {
    for cut_after_ms in [1, 500, 3000] {
        tell(async {
            let world = pair(start(Mode::Asynchronous), First::Copy).await;
            let disk = &world.nodes[1].members[0];
            disk.slow_down(Duration::from_secs(1));
            write_the_same_range(&world, 20).await;
            let source = world.source(0);
            let cut = async {
                rt::sleep(Duration::from_millis(cut_after_ms)).await;
                world.cut();
            };
            let (switched, ()) = join(source.switch(0, 77), cut).await;
            let why = text(switched);
            assert!(why.contains("the destination"), "{why}");
            rt::sleep(Duration::from_secs(5)).await;
            the_roles_are_as_they_were(&world).await;
            world.heal();
            disk.slow_down(Duration::from_micros(50));
            and_stay_so_until_they_are_exchanged(&world).await;
        });
    }
}

/// What befalls the request to take over.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Fate {
    /// The cable is cut before it arrives.
    Lost,
    /// It arrives, and its answer is lost.
    AnswerLost,
    /// The connection ends as soon as it has arrived, and whoever carries it out is dropped with it.
    Dropped,
    /// The destination is of a version that does not prepare.
    Older,
}

#[derive(Debug)]
struct Meddles {
    link: Link,
    fate: Cell<Option<Fate>>,
}

impl Peer for Meddles {
    fn control(&self, request: Request) -> LocalBoxFuture<'_, Result<Response, peer::Error>> {
        Box::pin(async move {
            let cut = || {
                self.link.cable.up.set(false);
                self.link.cable.cuts.set(self.link.cable.cuts.get() + 1);
            };
            match (&request, self.fate.get()) {
                (Request::Prepare { .. }, Some(Fate::Older)) => return Err(peer::Error::Unknown),
                (Request::TakeOver { .. }, Some(fate)) => {
                    self.fate.set(None);
                    match fate {
                        Fate::Lost => cut(),
                        Fate::AnswerLost => {
                            let answered = self.link.control(request).await;
                            assert_eq!(answered, Ok(Response::Done));
                            cut();
                            return Err(peer::Error::Unreachable("its answer is lost".into()));
                        }
                        Fate::Dropped => {
                            let super::link::Side::Destination(copy) = self.link.to.side.borrow().clone()
                            else {
                                panic!("it is a copy")
                            };
                            let carried = rt::timeout(Duration::from_micros(1), copy.control(request)).await;
                            carried.expect_err("its disk is slow");
                            return Err(peer::Error::Unreachable("its connection has ended".into()));
                        }
                        Fate::Older => panic!("it was to be refused before"),
                    }
                }
                _ => {}
            }
            self.link.control(request).await
        })
    }

    fn append(&self, session: u64, records: Vec<Record>) -> LocalBoxFuture<'_, Result<(), peer::Error>> {
        self.link.append(session, records)
    }

    fn write_blocks(
        &self,
        session: u64,
        member: u16,
        offset: u64,
        data: Payload,
    ) -> LocalBoxFuture<'_, Result<(), peer::Error>> {
        self.link.write_blocks(session, member, offset, data)
    }
}

/// A pair whose link has that in store.
async fn meddled(fate: Fate) -> World {
    let world = World::new(start(Mode::Synchronous)).await;
    let source = world.start_source(0).await;
    world.add_peer(&source, "copy", First::Copy).await;
    world.start_destination(1).await;
    let link = Link {
        cable: world.cable.clone(),
        to: world.nodes[1].host.clone(),
        from: world.nodes[0].host.clone(),
        life: world.nodes[0].host.life.get(),
        pool: world.pool.clone(),
    };
    let peer = Rc::new(Meddles { link, fate: Cell::new(Some(fate)) });
    rt::spawn(async move { source.ship(0, peer).await }).detach();
    world.until_follows(0).await;
    write_the_same_range(&world, 4).await;
    world
}

#[test]
fn a_link_that_is_lost_while_the_copy_takes_over_is_made_again_and_the_answer_is_true() {
    for fate in [Fate::Lost, Fate::AnswerLost, Fate::Dropped] {
        tell(async {
            let world = meddled(fate).await;
            let source = world.source(0);
            let heal = async {
                while world.cable.up.get() && fate != Fate::Dropped {
                    rt::sleep(Duration::from_millis(1)).await;
                }
                rt::sleep(Duration::from_millis(300)).await;
                world.heal();
            };
            let (switched, ()) = join(source.switch(0, 77), heal).await;
            switched.unwrap_or_else(|e| panic!("{fate:?}: {e}"));
            assert_eq!((world.role(0).await, world.role(1).await), (Role::Destination, Role::Source));
            assert_eq!(world.destination(1).status().role, Role::Source, "on its disk alone");
        });
    }
}

#[test]
fn a_copy_that_has_taken_over_and_is_opened_as_the_source_has_taken_over() {
    tell(async {
        let world = meddled(Fate::AnswerLost).await;
        let source = world.source(0);
        let opened = async {
            while world.cable.up.get() {
                rt::sleep(Duration::from_millis(1)).await;
            }
            world.kill(1);
            world.open_source(1).await;
            world.heal();
        };
        let (switched, ()) = join(source.switch(0, 77), opened).await;
        switched.expect("it is the source");
        assert_eq!((world.role(0).await, world.role(1).await), (Role::Destination, Role::Source));
    });
}

#[test]
fn a_source_that_has_given_up_is_not_read_from_while_the_next_one_is_written_to() {
    tell(async {
        let world = meddled(Fate::AnswerLost).await;
        let source = world.source(0);
        let read = async {
            while world.cable.up.get() {
                rt::sleep(Duration::from_millis(1)).await;
            }
            world.kill(1);
            write(&world.open_source(1).await.block(0), 0, 4096, 99).await;
            assert!(source.halted().is_none(), "it still waits for the answer");
            let read = source.block(0).submit(BlockOp::Read { offset: 0, len: 4096 }).await;
            assert!(read.is_err(), "what was there before is read");
        };
        drop(join(source.switch(0, 77), read).await);
    });
}

#[test]
fn a_copy_that_cannot_be_told_to_take_over_is_named_with_what_to_type() {
    tell(async {
        let world = meddled(Fate::Lost).await;
        let source = world.source(0);
        let switched = source.switch(0, 77).await;
        let why = match switched {
            Err(Error::GivenUp(why)) => why,
            other => panic!("{other:?}"),
        };
        assert!(why.contains("copy has not said within 1.5s"), "{why}");
        assert!(why.contains("`weft replica switch replica --failover` there"), "{why}");
        assert!(source.has_given_up());
        assert_eq!((world.role(0).await, world.role(1).await), (Role::Destination, Role::Destination));
        world.destination(1).promote(78, ALIVE).await.expect("it has everything");
    });
}

#[test]
fn a_copy_of_an_older_version_is_not_handed_over_to() {
    tell(async {
        let world = meddled(Fate::Older).await;
        let why = text(world.source(0).switch(0, 77).await);
        assert!(why.contains("older") && why.contains("update it"), "{why}");
        world.until_follows(0).await;
        the_roles_are_as_they_were(&world).await;
    });
}

#[test]
fn what_nobody_waits_for_any_more_does_not_happen() {
    tell(async {
        let world = pair(start(Mode::Asynchronous), First::Copy).await;
        let disk = &world.nodes[1].members[0];
        disk.slow_down(Duration::from_secs(1));
        write_the_same_range(&world, 20).await;
        let source = world.source(0);
        rt::timeout(Duration::from_secs(1), source.switch(0, 77)).await.expect_err("its disk is slow");
        // A copy that takes over flushes that disk, for whose answer nobody waits longer than a few time-outs.
        disk.slow_down(Duration::from_micros(50));
        and_stay_so_until_they_are_exchanged(&world).await;
    });
}

#[test]
fn a_copy_that_is_being_compared_does_not_become_the_source_and_what_waits_ends_with_its_session() {
    tell(async {
        let world = pair(start(Mode::Asynchronous), First::Copy).await;
        let disk = &world.nodes[1].members[0];
        disk.slow_down(Duration::from_millis(400));
        let source = world.source(0);
        let compares = || async { source.verify(0, false).await.map_err(|e| e.to_string()) };
        let (mut first, mut second) = (Box::pin(compares()), Box::pin(compares()));
        assert!(
            futures_util::poll!(&mut first).is_pending() && futures_util::poll!(&mut second).is_pending()
        );
        let began = rt::now();
        let why = text(source.switch(0, 77).await);
        assert!(why.contains("being compared"), "{why}");
        assert_eq!(rt::now(), began, "nobody waits for a comparison");
        world.cut();
        let (first, second) = join(first, second).await;
        let mut answers = [first, second].map(|compared| compared.expect_err("its link is lost"));
        answers.sort();
        assert_eq!(answers, ["the comparison was interrupted", "the destination was lost meanwhile"]);
        world.heal();
        world.until_follows(0).await;
        rt::sleep(Duration::from_secs(60)).await;
        assert!(source.status().peers[0].verified.is_none(), "what was answered is carried out");
        disk.slow_down(Duration::from_micros(50));
        source.verify(0, false).await.expect("it follows");
        and_stay_so_until_they_are_exchanged(&world).await;
    });
}

#[test]
fn of_two_that_are_to_become_the_source_one_does() {
    for slow in [0, 1] {
        tell(async {
            let world = three::following().await;
            let disk = &world.nodes[1 + slow].members[0];
            disk.slow_down(Duration::from_secs(1));
            write_the_same_range(&world, 5).await;
            let source = world.source(0);
            let (first, second) = join(source.switch(0, 77), source.switch(1, 78)).await;
            first.expect("it was the first");
            let why = text(second);
            assert!(why.contains("being exchanged already"), "{why}");
            let roles = [world.role(0).await, world.role(1).await, world.role(2).await];
            assert_eq!(roles, [Role::Destination, Role::Source, Role::Destination]);
        });
    }
}

#[test]
fn one_that_was_refused_leaves_the_next_one_to_try() {
    tell(async {
        let world = three::following().await;
        world.nodes[1].members[0].fill(true);
        write_the_same_range(&world, 5).await;
        let source = world.source(0);
        let why = text(source.switch(0, 77).await);
        assert!(why.contains("is full"), "{why}");
        source.switch(1, 78).await.expect("the other one has room");
        assert_eq!(world.role(2).await, Role::Source);
    });
}
