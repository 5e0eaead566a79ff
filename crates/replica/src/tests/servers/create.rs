//! What `weft replica create` and `weft replica remove` do on two servers, at any moment: the steps are those of the
//! server, in its order, and so are its refusals.

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use weft_machine::rt;
use weft_machine::sim::{Sim, with_rng};
use weft_store::block::{Block, BlockOp};

use super::{CONVERGES_WITHIN, PARTNERSHIP, Running, SLOT, Servers, Written};
use crate::destination::Force;
use crate::fuzz::disk::Disk;
use crate::group::{Cause, Partner, Settled, State};
use crate::journal::{self, Format};
use crate::source::{First, Source};
use crate::status::{Mode, Phase, Role};
use crate::tests::stories::K;

/// A command that adds or removes a group, until it is dropped.
struct CreateGuard(Rc<Servers>, usize);

impl Drop for CreateGuard {
    fn drop(&mut self) {
        self.0.busy[self.1].set(false);
    }
}

impl Servers {
    fn take_turn(self: &Rc<Self>, n: usize) -> Result<CreateGuard, String> {
        match self.busy[n].replace(true) {
            true => Err("another command is being carried out".into()),
            false => Ok(CreateGuard(self.clone(), n)),
        }
    }

    fn partnership(&self, n: usize) -> Option<[u8; 16]> {
        self.written[n].borrow().as_ref().map(|written| written.partnership)
    }

    /// Whether each server has a group, of the same partnership, and the other one as its only partner. A copy that was
    /// made for a source that died before it knew that one is not what it knows under another name.
    pub(super) fn are_partners(&self) -> bool {
        let has_one = |n: usize| {
            !self.unknown[n].get() && self.written[n].borrow().as_ref().is_some_and(|w| w.partners.len() == 1)
        };
        (0..2).all(has_one) && self.partnership(0) == self.partnership(1)
    }

    /// Asks the other server, which carries it out whether or not the answer comes.
    async fn ask<T: 'static>(
        &self,
        to: usize,
        what: impl Future<Output = Result<T, String>> + 'static,
    ) -> Result<T, String> {
        let cuts = self.world.cable.cuts.get();
        let reached = || {
            let is = self.world.cable.up.get() && self.world.cable.cuts.get() == cuts && self.up[to].get();
            is.then_some(()).ok_or_else(|| "it cannot be reached".to_owned())
        };
        let most = self.world.cable.slowest.as_nanos() as u64;
        let hop = || rt::sleep(Duration::from_nanos(with_rng(|rng| rng.within(0..=most))));
        hop().await;
        reached()?;
        let life = self.world.nodes[to].host.life.get();
        let answer = rt::timeout(CONVERGES_WITHIN, rt::spawn(what)).await;
        hop().await;
        reached()?;
        match answer {
            Ok(answer) if self.world.nodes[to].host.life.get() == life => answer,
            _ => Err("it does not answer".into()),
        }
    }

    /// `weft replica create` is typed on a server, towards the other one, which may be called by a second name.
    pub(super) async fn create_here(self: &Rc<Self>, n: usize) -> Result<(), String> {
        let _turn = self.take_turn(n)?;
        let m = 1 - n;
        let (name, first) = with_rng(|rng| {
            (["other", "other", "alias"][rng.below(3)], [First::Copy, First::Seeded][rng.below(2)])
        });
        let existing = self.written[n].borrow().clone();
        if let Some(written) = &existing {
            let is_source = self.running(n).is_some_and(|r| matches!(r.group.state(), State::Source(_)));
            if !is_source || written.partners.iter().any(|partner| partner == name) {
                return Err("it is no source, or has this destination".into());
            }
        }
        let fresh = || {
            let mut partnership = [0; 16];
            with_rng(|rng| rng.fill(&mut partnership));
            partnership
        };
        let partnership = existing.as_ref().map_or_else(fresh, |written| written.partnership);
        self.ask(m, self.clone().join(m, partnership)).await?;
        let made = match existing {
            Some(_) => self.attach(n, name, first).await,
            None => self.begin(n, partnership, name, first).await,
        };
        if made.is_err() {
            let _unheard = self.ask(m, self.clone().leave(m, partnership)).await;
        }
        made
    }

    /// The other server's part of it.
    async fn join(self: Rc<Self>, n: usize, partnership: [u8; 16]) -> Result<(), String> {
        let _turn = self.take_turn(n)?;
        let life = self.world.nodes[n].host.life.get();
        let joined = async {
            if self.written[n].borrow().is_some() {
                return Err("the volumes are in a group".into());
            }
            self.lay_out(n, partnership, Role::Destination, &["other"]).await;
            self.unknown[n].set(true);
            let running = self.running(n).ok_or("it does not run")?;
            let settled = running.group.settled(|state| matches!(state, State::Destination(_))).await;
            if settled.is_err() {
                self.dissolve(n, &running).await;
            }
            settled
        };
        self.within_life(n, life, joined).await.unwrap_or_else(|| Err("it died".into()))
    }

    /// The source says that it is over.
    async fn leave(self: Rc<Self>, n: usize, partnership: [u8; 16]) -> Result<(), String> {
        let running = self.running(n).filter(|_| self.partnership(n) == Some(partnership));
        let Some(running) = running else { return Ok(()) };
        if !matches!(running.group.state(), State::Destination(_)) {
            return Err("it is no destination".into());
        }
        let _turn = self.take_turn(n)?;
        let life = self.world.nodes[n].host.life.get();
        let left = self.within_life(n, life, self.dissolve(n, &running)).await;
        left.filter(|left| *left).map(drop).ok_or_else(|| "it was not removed".into())
    }

    /// A new group: its journal, and what is remembered of it.
    async fn lay_out(self: &Rc<Self>, n: usize, partnership: [u8; 16], role: Role, partners: &[&str]) {
        let side = self.world.side(n);
        let sizes = side.members.iter().map(|block| block.geometry().size).collect();
        let format = Format { partnership, role, tag: self.next_tag(), sizes, log_bytes: 256 * K };
        let bytes = journal::bytes(&format).expect("a journal") as usize;
        self.world.nodes[n].journal.replace(vec![0xee; bytes]);
        journal::format(&side.journal, &format).await.expect("it is laid out");
        *self.written[n].borrow_mut() = Some(Written::new(partnership, partners));
        self.enter(n);
    }

    /// The source's part, where its volumes are in no group yet.
    async fn begin(
        self: &Rc<Self>,
        n: usize,
        partnership: [u8; 16],
        name: &str,
        first: First,
    ) -> Result<(), String> {
        if self.unsure[n].replace(false) {
            self.count(&self.versions(n));
        }
        self.lay_out(n, partnership, Role::Source, &[]).await;
        let running = self.running(n).ok_or("it does not run")?;
        let made = match running.group.settled(|state| matches!(state, State::Source(_))).await {
            Ok(()) => self.attach(n, name, first).await,
            Err(why) => Err(why),
        };
        if made.is_err() {
            self.dissolve(n, &running).await;
        }
        made
    }

    /// One more destination; and at times the plug is pulled when the journal knows it, and nothing else does.
    async fn attach(self: &Rc<Self>, n: usize, name: &str, first: First) -> Result<(), String> {
        let running = self.running(n).ok_or("it does not run")?;
        let remember = || {
            if with_rng(|rng| rng.below(4)) == 0 {
                self.kill(n);
            } else if let Some(written) = &mut *self.written[n].borrow_mut() {
                written.partners.push(name.to_owned());
                self.unknown[1 - n].set(false);
            }
            Ok(())
        };
        let partner = Partner { name: name.to_owned(), mode: Mode::Synchronous };
        running.group.attach(&self.at(n), &partner, first, remember).await
    }

    /// The same, with the plug in.
    async fn attach_as(self: &Rc<Self>, n: usize, partner: &Partner, first: First) -> Result<(), String> {
        let running = self.running(n).ok_or("it does not run")?;
        let remember = || {
            let mut written = self.written[n].borrow_mut();
            written.as_mut().ok_or("it has no group")?.partners.push(partner.name.clone());
            Ok(())
        };
        running.group.attach(&self.at(n), partner, first, remember).await
    }

    /// Ends replication on one side, as `weft replica remove` does; with `force` whatever it is, and whether or not a
    /// source's copies hear of it. Whether that was done.
    pub(super) async fn remove(self: &Rc<Self>, n: usize, force: bool) -> bool {
        let Some(running) = self.running(n) else { return false };
        let Ok(_turn) = self.take_turn(n) else { return false };
        let refuses = match running.group.state() {
            State::Starting => true,
            State::Stopped(_) => !force,
            State::Destination(copy) => !copy.status().consistent && !force,
            State::Source(_) => self.detach_all(n, &running, force).await.is_err(),
        };
        !refuses && self.dissolve(n, &running).await
    }

    async fn detach_all(self: &Rc<Self>, n: usize, running: &Running, force: bool) -> Result<(), String> {
        let Some(written) = self.written[n].borrow().clone() else { return Ok(()) };
        for name in written.partners {
            let told = match with_rng(|rng| rng.below(2)) {
                // Somebody has removed the other side alone, or will.
                0 => Ok(()),
                _ => self.ask(1 - n, self.clone().leave(1 - n, written.partnership)).await,
            };
            if !force {
                told?;
            }
            let forget = || {
                if let Some(written) = &mut *self.written[n].borrow_mut() {
                    written.partners.retain(|other| *other != name);
                }
                Ok(())
            };
            running.group.detach(&name, forget).await?;
        }
        Ok(())
    }

    /// The group is gone here. Its volumes hold what was protected, and can be used. Whether that was done.
    async fn dissolve(self: &Rc<Self>, n: usize, running: &Running) -> bool {
        let unsure = match running.group.state() {
            State::Stopped(stopped) => stopped.cause != Cause::Split,
            State::Destination(copy) => !copy.status().consistent,
            State::Starting | State::Source(_) => false,
        };
        let bare = self.world.side(n).members;
        match rt::timeout(CONVERGES_WITHIN, running.group.end(&bare, false, async |_| Ok(()))).await {
            Ok(Ok(())) => {}
            Ok(Err(_)) => return false,
            Err(_) => {
                self.fail(format!("server {n} is never removed"));
                return false;
            }
        }
        self.running.borrow_mut()[n] = None;
        *self.written[n].borrow_mut() = None;
        self.unknown[n].set(false);
        self.world.nodes[n].host.side.replace(super::Runs::Stranger);
        self.lost[n].set(None);
        self.learn();
        // Once it is not known what they hold, that a source goes on with it does not change that.
        self.unsure[n].set(unsure);
        if !unsure {
            self.check(n, "removed");
        }
        let flushed = rt::timeout(CONVERGES_WITHIN, running.fronts[0].submit(BlockOp::Flush)).await;
        if !flushed.is_ok_and(|flushed| flushed.is_ok()) {
            self.fail(format!("server {n} replicates no more, and its volumes cannot be used"));
        }
        true
    }

    /// Whatever the groups are, nobody needs a partner to get out.
    pub(super) async fn remove_all(self: &Rc<Self>) {
        for n in 0..2 {
            let until = rt::now() + CONVERGES_WITHIN;
            while self.written[n].borrow().is_some() && rt::now() < until && self.broken.borrow().is_none() {
                let force = rt::now() + CONVERGES_WITHIN / 2 > until;
                if !self.remove(n, force).await {
                    rt::sleep(Duration::from_millis(500)).await;
                }
            }
            if self.running(n).is_some() {
                self.fail(format!("server {n} cannot be removed"));
            }
        }
        self.stop.set(true);
        let sure = (0..2).filter(|n| !self.unsure[*n].get());
        sure.for_each(|n| self.check(n, "both removed"));
    }

    /// Neither server replicates any more: one begins anew, and the other becomes its copy.
    pub(super) async fn create_anew(self: &Rc<Self>) {
        let n = with_rng(|rng| rng.below(2));
        if self.unsure[n].replace(false) {
            self.count(&self.versions(n));
        }
        let first = if with_rng(|rng| rng.below(2)) == 0 { First::Copy } else { First::Seeded };
        let made = async {
            self.ask(1 - n, self.clone().join(1 - n, [7; 16])).await?;
            self.lay_out(n, [7; 16], Role::Source, &[]).await;
            let running = self.running(n).ok_or("it does not run")?;
            running.group.settled(|state| matches!(state, State::Source(_))).await?;
            let partner = Partner { name: "other".into(), mode: Mode::Synchronous };
            self.attach_as(n, &partner, first).await
        };
        if let Err(why) = made.await {
            self.fail(format!("it is not created anew: {why}"));
        }
    }
}

/// Fills a server's log more than once.
async fn write_much(servers: &Rc<Servers>, n: usize) {
    let running = servers.running(n).expect("it runs");
    for number in 0..200 {
        let offset = (number % 24 * SLOT) as u64;
        let data = vec![Bytes::from(vec![0xaa; SLOT])];
        let write = BlockOp::Write { offset, data, durable: true };
        let written = rt::timeout(CONVERGES_WITHIN, running.fronts[0].submit(write)).await;
        written.expect("it is answered").expect("it is written");
    }
}

async fn source_of(servers: &Rc<Servers>, n: usize) -> Arc<Source> {
    let running = servers.running(n).expect("it runs");
    running.group.settled(|state| matches!(state, State::Source(_))).await.expect("it is the source");
    match running.group.state() {
        State::Source(source) => source,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_destination_that_a_crash_left_in_the_journal_alone_is_forgotten_and_can_be_added_again() {
    Sim::new(1).time_limit(Duration::from_secs(600)).run(async {
        let servers = Servers::new(false).await;
        (0..2).for_each(|n| servers.start(n));
        servers.remove_all().await;
        let partnership = [9; 16];
        servers.lay_out(0, partnership, Role::Source, &[]).await;
        servers.lay_out(1, partnership, Role::Destination, &["other"]).await;
        source_of(&servers, 0).await;
        let partner = Partner { name: "other".to_owned(), mode: Mode::Synchronous };
        let running = servers.running(0).expect("it runs");
        // The journal knows it, and the server ends before it is written down anywhere else.
        let crash = || {
            servers.kill(0);
            Ok(())
        };
        let host = servers.at(0);
        let attached = running.group.attach(&host, &partner, First::Copy, crash);
        let _never = rt::timeout(Duration::from_secs(1), attached).await;
        let side = servers.world.side(0);
        let state = journal::look(&side.journal, &side.pool).await.expect("a state");
        assert_eq!(state.peers.iter().flatten().count(), 1, "the journal knows it");

        let began = rt::now();
        servers.start(0);
        let source = source_of(&servers, 0).await;
        let waited = rt::now().since(began);
        assert!(waited < Duration::from_secs(1), "nobody is asked who is not named: {waited:?}");
        assert_eq!(source.status().peers.len(), 0, "{:?}", source.status());
        write_much(&servers, 0).await;
        source.checkpoint().await.expect("there is room");
        let status = source.status();
        assert!(status.log_used < 64 * K, "the log is kept for nobody: {status:?}");

        let copy = servers.attach_as(0, &partner, First::Copy).await;
        copy.expect("it is added again");
        assert_eq!(servers.settles().await, Some(0), "{}", servers.describe());
        // And not twice.
        let again = servers.attach_as(0, &partner, First::Copy).await;
        assert!(again.is_err_and(|why| why.contains("already")), "it is added twice");
        assert_eq!(servers.broken.borrow().clone(), None);
    });
}

#[test]
fn a_destination_that_a_crash_left_named_nowhere_when_it_was_removed_is_forgotten() {
    Sim::new(2).time_limit(Duration::from_secs(600)).run(async {
        let servers = Servers::new(false).await;
        (0..2).for_each(|n| servers.start(n));
        assert!(servers.settles().await.is_some(), "{}", servers.describe());
        let running = servers.running(0).expect("it runs");
        let crash = || {
            *servers.written[0].borrow_mut() = Some(Written::new(PARTNERSHIP, &[]));
            servers.kill(0);
            Ok(())
        };
        let _never = rt::timeout(Duration::from_secs(1), running.group.detach("other", crash)).await;
        servers.start(0);
        let source = source_of(&servers, 0).await;
        assert_eq!(source.status().peers.len(), 0, "{:?}", source.status());
        assert_eq!(servers.broken.borrow().clone(), None);
    });
}

#[test]
fn a_source_that_cannot_replay_its_log_because_its_disk_is_full_says_so_while_it_is_opened() {
    Sim::new(3).time_limit(Duration::from_secs(600)).run(async {
        let servers = Servers::new(false).await;
        (0..2).for_each(|n| servers.start(n));
        assert!(servers.settles().await.is_some(), "{}", servers.describe());
        source_of(&servers, 0).await;
        write_much(&servers, 0).await;
        servers.kill(0);
        servers.world.nodes[0].members[0].fill(true);
        servers.start(0);
        rt::sleep(Duration::from_secs(30)).await;
        let running = servers.running(0).expect("it runs");
        assert!(matches!(running.group.state(), State::Starting), "{}", servers.describe());
        let status = running.group.status().expect("its source runs");
        assert!(status.full && status.peers.len() == 1, "{status:?}");
        servers.world.nodes[0].members[0].fill(false);
        assert_eq!(servers.settles().await, Some(0), "{}", servers.describe());
        assert_eq!(servers.broken.borrow().clone(), None);
    });
}

#[test]
fn who_still_has_a_source_that_was_opened_anew_writes_nothing_over_what_is_there_now() {
    Sim::new(4).time_limit(Duration::from_secs(600)).run(async {
        let servers = Servers::new(false).await;
        (0..2).for_each(|n| servers.start(n));
        assert!(servers.settles().await.is_some(), "{}", servers.describe());
        // A command has found the source, and waits for another server.
        let source = source_of(&servers, 0).await;
        source.switch(0, servers.next_tag()).await.expect("the copy follows");
        assert_eq!(servers.settles().await, Some(1), "{}", servers.describe());
        let state = async || {
            let side = servers.world.side(0);
            journal::look(&side.journal, &side.pool).await.expect("a state")
        };
        let before = state().await;
        source.suspend(0).await.expect_err("it is no source any more");
        source.remove_peer(0).await.expect_err("it is no source any more");
        assert_eq!(state().await, before);
        assert_eq!(servers.settles().await, Some(1), "{}", servers.describe());
        assert_eq!(servers.broken.borrow().clone(), None);
    });
}

/// A copy was removed on its own side alone, and is added again by a second name, with the cable cut in the middle of
/// its first copy: to the first name it is the copy that it was.
async fn added_by_a_second_name() {
    let servers = Servers::new(false).await;
    (0..2).for_each(|n| servers.start(n));
    assert!(servers.settles().await.is_some(), "{}", servers.describe());
    write_much(&servers, 0).await;
    assert!(servers.remove(1, false).await, "{}", servers.describe());
    for disk in &servers.world.nodes[1].members {
        disk.replace(vec![0x11; disk.content().len()]);
    }
    servers.clone().join(1, PARTNERSHIP).await.expect("it is in no group");
    let alias = Partner { name: "alias".to_owned(), mode: Mode::Synchronous };
    servers.attach_as(0, &alias, First::Copy).await.expect("it has another name");
    let copy = match servers.running(1).expect("it runs").group.state() {
        State::Destination(copy) => copy,
        other => panic!("{other:?}"),
    };
    let begun = rt::now();
    let copies = || copy.status().peers.iter().any(|peer| peer.phase == Phase::InitialBlockCopy);
    while !copies() && rt::now().since(begun) < CONVERGES_WITHIN {
        rt::sleep(Duration::from_micros(50)).await;
    }
    rt::sleep(Duration::from_micros(with_rng(|rng| rng.within(0..=2000)))).await;
    servers.world.cut();
    // Both links end, and begin again in any order.
    rt::sleep(servers.world.config.timeout).await;
    servers.world.heal();
    for _ in 0..2_000 {
        if copy.status().consistent {
            assert_eq!(servers.world.volumes(0), servers.world.volumes(1), "{}", servers.describe());
        }
        rt::sleep(Duration::from_millis(1)).await;
    }
}

#[test]
fn a_copy_that_was_removed_alone_and_added_by_a_second_name_is_consistent_when_it_has_everything() {
    for seed in 0..20 {
        Sim::new(seed).time_limit(Duration::from_secs(600)).run(added_by_a_second_name());
    }
}

/// Both sides were written to, and one of them is removed with `--force` before its log was ever replayed.
#[test]
fn a_log_is_forgotten_when_the_volumes_have_all_of_it_durably() {
    // Of this seed, a source goes on alone.
    Sim::new(6).time_limit(Duration::from_secs(600)).run(async {
        let servers = Servers::new(false).await;
        (0..2).for_each(|n| servers.start(n));
        assert_eq!(servers.settles().await, Some(0), "{}", servers.describe());
        servers.kill(1);
        let write = async |n: usize, byte: u8| {
            let data = vec![Bytes::from(vec![byte; SLOT])];
            let write = BlockOp::Write { offset: 0, data, durable: true };
            let front = servers.running(n).expect("it runs").fronts[0].clone();
            rt::timeout(CONVERGES_WITHIN, front.submit(write))
                .await
                .expect("it is answered")
                .expect("it is written");
        };
        let disks = || servers.world.nodes[0].members.iter();
        let holds = |byte: u8| servers.world.volumes(0)[0][..SLOT].iter().all(|other| *other == byte);
        write(0, 0xaa).await;
        disks().for_each(Disk::forget);
        servers.kill(0);
        assert!(!holds(0xaa), "the log alone has it");

        servers.start(1);
        let running = servers.running(1).expect("it runs");
        running.group.settled(|state| matches!(state, State::Destination(_))).await.expect("it is a copy");
        let State::Destination(copy) = running.group.state() else { panic!("{}", servers.describe()) };
        running
            .group
            .failover(&copy, servers.next_tag(), Force::default())
            .await
            .expect("its source is silent");
        write(1, 0xbb).await;
        servers.start(0);
        let running = servers.running(0).expect("it runs");
        running.group.until(|state| matches!(state, State::Stopped(_))).await;
        let State::Stopped(stopped) = running.group.state() else { panic!("{}", servers.describe()) };
        assert_eq!(stopped.cause, Cause::Split, "{}", stopped.why);
        assert!(!holds(0xaa), "it was replayed before");

        let bare = servers.world.side(0).members;
        let forget = async |_: &Settled| {
            // The plug is pulled just when the log goes.
            disks().for_each(Disk::forget);
            servers.kill(0);
            Ok(())
        };
        running.group.end(&bare, false, forget).await.expect("it ends");
        assert!(holds(0xaa), "what was answered is lost with the log");
    });
}

/// A group is removed at any moment of its opening, when its log alone has what was answered.
#[test]
fn a_log_that_is_being_opened_is_not_removed_before_the_volumes_have_it() {
    let (mut refused, mut removed) = (0, 0);
    for step in 0..40 {
        // Of this seed, a source goes on alone.
        let is_removed = Sim::new(6).time_limit(Duration::from_secs(600)).run(async move {
            let servers = Servers::new(false).await;
            (0..2).for_each(|n| servers.start(n));
            assert_eq!(servers.settles().await, Some(0), "{}", servers.describe());
            servers.kill(1);
            let data = vec![Bytes::from(vec![0xaa; SLOT])];
            let write = BlockOp::Write { offset: 0, data, durable: true };
            let front = servers.running(0).expect("it runs").fronts[0].clone();
            let answered = rt::timeout(CONVERGES_WITHIN, front.submit(write)).await.expect("it is answered");
            answered.expect("it is written");
            let volume = &servers.world.nodes[0].members[0];
            volume.forget();
            servers.kill(0);
            let holds = || volume.durable()[..SLOT].iter().all(|byte| *byte == 0xaa);
            assert!(!holds(), "the log alone has it");

            servers.world.nodes[0].journal.slow_down(Duration::from_millis(1));
            servers.start(0);
            rt::sleep(Duration::from_micros(step * 500)).await;
            let running = servers.running(0).expect("it runs");
            let bare = servers.world.side(0).members;
            let removed = Cell::new(false);
            let forget = async |_: &Settled| {
                assert!(holds(), "{step}: what was answered is lost with the log");
                removed.set(true);
                Ok(())
            };
            let ended = rt::timeout(CONVERGES_WITHIN, running.group.end(&bare, false, forget)).await;
            if let Err(why) = ended.expect("it ends, or is refused") {
                assert!(why.contains("is being opened: try again"), "{why}");
                assert!(!removed.get(), "it was removed");
                // It is opened nevertheless, and then it ends.
                running.group.settled(|state| matches!(state, State::Source(_))).await.expect("it is opened");
                running.group.end(&bare, false, forget).await.expect("it ends");
                return false;
            }
            removed.get()
        });
        match is_removed {
            true => removed += 1,
            false => refused += 1,
        }
    }
    assert!(refused > 0, "{removed} were removed at once");
}

/// Its destination is away, so records stay in the log of a source that ends.
#[test]
fn a_log_stays_if_the_volumes_cannot_be_flushed() {
    // Of this seed, a source goes on alone.
    Sim::new(6).time_limit(Duration::from_secs(600)).run(async {
        let servers = Servers::new(false).await;
        (0..2).for_each(|n| servers.start(n));
        assert_eq!(servers.settles().await, Some(0), "{}", servers.describe());
        servers.kill(1);
        let running = servers.running(0).expect("it runs");
        let data = vec![Bytes::from(vec![0xaa; SLOT])];
        let write = running.fronts[0].submit(BlockOp::Write { offset: 0, data, durable: true });
        rt::timeout(CONVERGES_WITHIN, write).await.expect("it is answered").expect("it is written");
        let bare = servers.world.side(0).members;
        let removed = Cell::new(false);
        let forget = async |_: &Settled| {
            removed.set(true);
            Ok(())
        };
        let disks = &servers.world.nodes[0].members;
        disks.iter().for_each(|disk| disk.break_down(true));
        for _ in 0..2 {
            let why =
                running.group.end(&bare, true, forget).await.expect_err("the volumes may lack the write");
            assert!(why.contains("may lack what its log has"), "{why}");
        }
        disks.iter().for_each(|disk| disk.break_down(false));
        assert!(!removed.get(), "the log alone has what was answered");
    });
}

/// A copy whose disk is full has what its source has answered in its log alone: it goes when that is said, and no
/// sooner.
#[test]
fn what_a_full_copy_has_in_its_log_alone_is_given_up_by_force_only() {
    for seed in 0..8 {
        Sim::new(seed).time_limit(Duration::from_secs(600)).run(async {
            let servers = Servers::new(false).await;
            (0..2).for_each(|n| servers.start(n));
            assert_eq!(servers.settles().await, Some(0), "{}", servers.describe());
            let running = servers.running(1).expect("it runs");
            let State::Destination(copy) = running.group.state() else { panic!("{}", servers.describe()) };
            servers.world.nodes[1].members.iter().for_each(|disk| disk.fill(true));
            let data = vec![Bytes::from(vec![0xaa; SLOT])];
            let write = BlockOp::Write { offset: 0, data, durable: true };
            let front = servers.running(0).expect("it runs").fronts[0].clone();
            let answered = rt::timeout(CONVERGES_WITHIN, front.submit(write)).await.expect("it is answered");
            answered.expect("it is in both logs");
            servers.world.until("its disk is full", || copy.status().full).await;
            let holds = |byte: u8| servers.world.volumes(1)[0][..SLOT].iter().all(|other| *other == byte);
            assert!(!holds(0xaa), "its log alone has it");

            let bare = servers.world.side(1).members;
            let not_yet = async |_: &Settled| panic!("its log is removed");
            let refused =
                running.group.end(&bare, false, not_yet).await.expect_err("what is answered would go");
            assert!(refused.contains("1 records") && refused.contains("--force"), "{refused}");
            // It is as it was: nobody uses the volume past it, and it goes on when there is room.
            let read = || running.fronts[0].submit(BlockOp::Read { offset: 0, len: 512 });
            assert!(read().await.is_err(), "its front is open");
            assert!(matches!(running.group.state(), State::Destination(_)) && !running.group.has_ended());
            if seed % 2 == 0 {
                servers.world.nodes[1].members.iter().for_each(|disk| disk.fill(false));
                servers.world.until("there is room", || copy.status().applied == copy.status().last).await;
                running.group.end(&bare, false, async |_: &Settled| Ok(())).await.expect("it ends");
                assert!(holds(0xaa), "what was answered is lost with the log");
            } else {
                let ended = running.group.end(&bare, true, async |_: &Settled| Ok(()));
                rt::timeout(CONVERGES_WITHIN, ended)
                    .await
                    .expect("it does not wait for room")
                    .expect("it ends");
            }
            assert!(running.group.has_ended());
            read().await.expect("it is a volume like any other");
        });
    }
}
