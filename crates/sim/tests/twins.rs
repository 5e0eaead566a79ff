//! The simulated disk keeps what was flushed, and the model refuses what may not be seen.

use std::cell::Cell;
use std::collections::BTreeSet;
use std::rc::Rc;
use std::time::Duration;

use bytes::Bytes;
use weft_machine::sim::Sim;
use weft_machine::{Time, rt};
use weft_sim::copies::{Answered, Copies};
use weft_sim::disk::{Disk, Faults, SECTOR};
use weft_sim::leases::{Act, ClaimId, Leases, Rights, Through};
use weft_sim::locks::{Claim, Locks};
use weft_sim::model::{Failed, Model, Protocol};
use weft_sim::names::{Alone, Change, Names, Seen, Tag};
use weft_store::{Attr, Exists, Make, NodeId, SetAttr, Vfs};

async fn make(vfs: &Vfs, name: &str) -> Attr {
    let made = vfs.create(NodeId::ROOT, name.as_bytes(), Make::File, Exists::Fail, SetAttr::default()).await;
    made.unwrap().attr
}

async fn content(vfs: &Vfs, name: &str) -> Vec<u8> {
    let node = vfs.lookup(NodeId::ROOT, name.as_bytes(), false).await.unwrap().node;
    let data = vfs.open(node, false).await.unwrap().read(0, 1 << 20).data().await.unwrap();
    data.into_chain(&weft_machine::Pool::new(0)).await.unwrap().concat()
}

#[test]
fn a_crash_of_the_host_leaves_old_or_new_sectors_of_what_was_not_flushed() {
    let mut seen = BTreeSet::new();
    for seed in 0..40 {
        Sim::new(seed).run(async {
            let disk = Disk::default();
            let vfs = Vfs::new(disk.for_process());
            let node = make(&vfs, "f").await.node;
            vfs.sync_dir(NodeId::ROOT).await.unwrap();
            let file = vfs.open(node, true).await.unwrap();
            file.write(0, &[Bytes::from(vec![1; 4 * SECTOR])]).await.unwrap();
            file.sync().await.unwrap();
            file.write(SECTOR as u64, &[Bytes::from(vec![2; 2 * SECTOR])]).await.unwrap();
            disk.crash();
            assert!(file.write(0, &[Bytes::from_static(b"late")]).await.is_err(), "its process is gone");
            let left = content(&Vfs::new(disk.for_process()), "f").await;
            assert_eq!(left.len(), 4 * SECTOR);
            let sectors: Vec<u8> = left
                .chunks(SECTOR)
                .map(|sector| {
                    assert!(sector.iter().all(|byte| *byte == sector[0]), "a sector is torn");
                    sector[0]
                })
                .collect();
            assert_eq!((sectors[0], sectors[3]), (1, 1), "what was flushed is there");
            seen.insert(sectors);
        });
    }
    assert_eq!(seen.len(), 4, "each of the two is old in some world and new in another: {seen:?}");
}

#[test]
fn a_crash_of_the_process_leaves_all_that_was_written() {
    Sim::new(1).run(async {
        let disk = Disk::default();
        let vfs = Vfs::new(disk.for_process());
        let file = vfs.open(make(&vfs, "f").await.node, true).await.unwrap();
        file.write(0, &[Bytes::from_static(b"written")]).await.unwrap();
        assert_eq!(disk.held(), 1);
        disk.end_process();
        assert_eq!(disk.held(), 0);
        assert_eq!(content(&Vfs::new(disk.for_process()), "f").await, b"written");
    });
}

#[test]
fn names_come_back_in_their_order_or_not_at_all() {
    let mut seen = BTreeSet::new();
    for seed in 0..40 {
        Sim::new(seed).run(async {
            let disk = Disk::default();
            let vfs = Vfs::new(disk.for_process());
            make(&vfs, "durable").await;
            vfs.sync_dir(NodeId::ROOT).await.unwrap();
            make(&vfs, "first").await;
            make(&vfs, "second").await;
            disk.crash();
            let vfs = Vfs::new(disk.for_process());
            let entries = vfs.readdir(NodeId::ROOT, 0, 100).await.unwrap().entries;
            seen.insert(
                entries.into_iter().map(|entry| String::from_utf8(entry.name).unwrap()).collect::<Vec<_>>(),
            );
        });
    }
    let all = ["durable", "first", "second"].map(str::to_owned);
    assert_eq!(seen, BTreeSet::from([all[..1].to_vec(), all[..2].to_vec(), all.to_vec()]));
}

#[test]
fn a_flush_that_fails_has_lost_what_it_was_to_write_and_every_open_is_told_once() {
    let mut lost = 0;
    for seed in 0..20 {
        Sim::new(seed).run(async {
            let disk = Disk::default();
            let vfs = Vfs::new(disk.for_process());
            let node = make(&vfs, "f").await.node;
            vfs.sync_dir(NodeId::ROOT).await.unwrap();
            let (one, other) = (vfs.open(node, true).await.unwrap(), vfs.open(node, true).await.unwrap());
            one.write(0, &[Bytes::from(vec![1; SECTOR])]).await.unwrap();
            disk.set_faults(Faults { failing_flush_one_in: 1, ..Faults::default() });
            assert!(one.sync().await.is_err());
            disk.set_faults(Faults::default());
            assert_eq!(disk.failures(), 1);
            assert!(other.sync().await.is_err(), "it is told as well");
            assert!(one.sync().await.is_ok() && other.sync().await.is_ok(), "once");
            disk.crash();
            lost +=
                usize::from(content(&Vfs::new(disk.for_process()), "f").await.iter().all(|byte| *byte == 0));
        });
    }
    assert_eq!(lost, 20, "no later flush has written it");
}

const BY: (u64, Protocol) = (1, Protocol::Smb);

#[test]
fn a_read_sees_the_last_answered_write_or_one_that_goes_on() {
    let model = Model::default();
    let first = model.begin_write(0, 0..1, BY, 0);
    let tag = first.tag;
    assert!(model.judge(0, 0, tag, model.moment()).is_ok() && model.judge(0, 0, 0, model.moment()).is_ok());
    model.end_write(first, Ok(()));
    assert!(model.judge(0, 0, 0, model.moment()).is_err(), "it was replaced before the read began");
    let second = model.begin_write(0, 0..1, BY, 0);
    let later = second.tag;
    model.end_write(second, Err(Failed::Unknown));
    let begun = model.moment();
    assert!(model.judge(0, 0, tag, begun).is_ok() && model.judge(0, 0, later, begun).is_ok());
    assert!(model.judge(0, 0, later + 1, begun).is_err(), "nobody has written that");
    assert!(model.judge(0, 1, tag, begun).is_err(), "nor this there");
}

#[test]
fn a_crash_may_take_what_was_not_flushed_and_nothing_else() {
    let model = Model::default();
    let write = || {
        let write = model.begin_write(0, 0..1, BY, 0);
        let tag = write.tag;
        model.end_write(write, Ok(()));
        tag
    };
    let flushed = write();
    model.flushed(0, model.moment(), BY, 0);
    let unflushed = write();
    assert!(model.judge(0, 0, flushed, model.moment()).is_err());
    model.host_crashed();
    let begun = model.moment();
    assert!(model.judge(0, 0, flushed, begun).is_ok() && model.judge(0, 0, unflushed, begun).is_ok());
    assert!(model.judge(0, 0, 0, begun).is_err(), "the flushed one has replaced it for good");
    model.settle(0, 0, flushed, begun);
    assert!(model.judge(0, 0, unflushed, model.moment()).is_err(), "which of them it is has been seen");
    let lost = write();
    model.flushed(0, model.moment(), BY, 1);
    model.host_crashed();
    let begun = model.moment();
    assert!(
        model.judge(0, 0, lost, begun).is_ok() && model.judge(0, 0, flushed, begun).is_ok(),
        "a flush has failed"
    );
}

/// One worker's names in a model, and who changes them.
struct Own(Names, Protocol);

impl Own {
    fn change(&self, change: Change, outcome: Result<(), Failed>) -> Result<(), String> {
        let changing = self.0.begin(1, change);
        self.0.end(changing, outcome, self.1)
    }

    fn make(&self, name: &str) -> Tag {
        let tag = self.0.new_tag();
        self.change(Change::Make(name.into(), tag), Ok(())).unwrap();
        self.0.written(tag);
        tag
    }

    fn rename(&self, from: &str, to: &str, outcome: Result<(), Failed>) -> Result<(), String> {
        self.change(Change::Rename { from: from.into(), to: to.into(), replace: true }, outcome)
    }

    fn sees(&self, name: &str, tag: Option<Tag>) -> Result<(), String> {
        let content = |tag: Tag| Seen::Content(Bytes::copy_from_slice(&tag.to_le_bytes()));
        self.0.saw(1, 1, name, &tag.map_or(Seen::Nothing, content), self.0.moment())
    }

    fn lists(&self, names: &[&str]) -> Result<(), String> {
        self.0.judge(&names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>())
    }
}

#[test]
fn an_answered_rename_leaves_one_name_with_its_file() {
    for protocol in [Protocol::Smb, Protocol::Nfs] {
        let own = Own(Names::default(), protocol);
        let (first, second) = (own.make("n1-0"), own.make("n1-1"));
        own.rename("n1-0", "n1-1", Ok(())).unwrap();
        assert!(own.sees("n1-1", Some(second)).is_err(), "it was replaced");
        let own = Own(Names::default(), protocol);
        let tag = own.make("n1-0");
        assert!(own.rename("n1-2", "n1-1", Ok(())).is_err(), "there is no such file");
        let own = Own(Names::default(), protocol);
        assert_eq!(own.make("n1-0"), tag);
        own.make("n1-1");
        let to = || Change::Rename { from: "n1-0".into(), to: "n1-1".into(), replace: false };
        assert!(own.change(to(), Ok(())).is_err(), "the name is taken");
        let own = Own(Names::default(), protocol);
        own.make("n1-0");
        own.change(to(), Ok(())).unwrap();
        assert!(own.sees("n1-1", Some(first)).is_ok() && own.sees("n1-0", None).is_ok());
        assert!(own.lists(&["n1-1"]).is_ok());
        assert!(own.lists(&["n1-0", "n1-1"]).is_err(), "both names");
        let own = Own(Names::default(), protocol);
        own.make("n1-0");
        own.change(to(), Ok(())).unwrap();
        assert!(own.lists(&[]).is_err(), "neither name");
    }
}

#[test]
fn an_unanswered_rename_leaves_either_name_until_one_was_seen() {
    let unanswered = || {
        let own = Own(Names::default(), Protocol::Smb);
        let tag = own.make("n1-0");
        own.rename("n1-0", "n1-1", Err(Failed::Unknown)).unwrap();
        (own, tag)
    };
    let (own, tag) = unanswered();
    own.sees("n1-0", Some(tag)).unwrap();
    own.sees("n1-1", Some(tag)).unwrap();
    assert!(own.sees("n1-0", Some(tag)).is_err(), "it has happened since, and happens once");
    let (own, tag) = unanswered();
    own.0.quiet();
    own.sees("n1-0", Some(tag)).unwrap();
    assert!(own.sees("n1-1", Some(tag)).is_err(), "both names have it");
    let (own, tag) = unanswered();
    own.sees("n1-0", None).unwrap();
    assert!(own.sees("n1-1", None).is_err(), "neither name has it");
    let (own, _) = unanswered();
    assert!(own.lists(&[]).is_err() && unanswered().0.lists(&["n1-0", "n1-1"]).is_err());
    // Others may have looked before it was changed, or after.
    let (own, _) = unanswered();
    let (since, content) = (own.0.moment(), Seen::Content(Bytes::copy_from_slice(&tag.to_le_bytes())));
    own.rename("n1-1", "n1-2", Ok(())).unwrap();
    own.0.saw(2, 1, "n1-0", &content, since).unwrap();
    own.0.saw(2, 1, "n1-2", &content, since).unwrap();
    assert!(own.0.saw(2, 1, "n1-0", &content, own.0.moment()).is_err(), "it was renamed before");
}

#[test]
fn a_crash_undoes_renames_of_smb_from_the_last_and_none_of_nfs() {
    let renamed = |protocol| {
        let own = Own(Names::default(), protocol);
        let tag = own.make("n1-0");
        own.rename("n1-0", "n1-1", Ok(())).unwrap();
        own.rename("n1-1", "n1-2", Ok(())).unwrap();
        own.0.host_crashed();
        (own, tag)
    };
    for name in ["n1-0", "n1-1", "n1-2"] {
        let (own, tag) = renamed(Protocol::Smb);
        own.sees(name, Some(tag)).unwrap();
        own.0.host_crashed();
        assert!(own.lists(&[name]).is_ok(), "what a crash has left is on disk");
        assert_eq!(renamed(Protocol::Nfs).0.lists(&[name]).is_ok(), name == "n1-2", "{name}");
    }
    assert!(renamed(Protocol::Smb).0.lists(&[]).is_ok(), "it was never made");
    assert!(renamed(Protocol::Smb).0.lists(&["n1-0", "n1-1"]).is_err(), "both names");
    assert!(renamed(Protocol::Smb).0.lists(&["n1-3"]).is_err());
    assert!(renamed(Protocol::Smb).0.lists(&["n7-0"]).is_err(), "nobody has made that");
}

/// An answer that was on its way when the host crashed says nothing of what the crash has left.
#[test]
fn an_answer_that_a_crash_overtook_promises_nothing() {
    let model = Model::default();
    let write = model.begin_write(0, 0..1, BY, 0);
    let tag = write.tag;
    model.host_crashed();
    model.end_write(write, Ok(()));
    let begun = model.moment();
    assert!(model.judge(0, 0, 0, begun).is_ok() && model.judge(0, 0, tag, begun).is_ok());
    for (protocol, may_be_lost) in [(Protocol::Smb, true), (Protocol::Nfs, false)] {
        for left in [&["n1-0"][..], &[]] {
            let own = Own(Names::default(), protocol);
            let making = own.0.begin(1, Change::Make("n1-0".into(), own.0.new_tag()));
            own.0.host_crashed();
            own.0.end(making, Ok(()), protocol).unwrap();
            let possible = !left.is_empty() || may_be_lost;
            assert_eq!(own.lists(left).is_ok(), possible, "{protocol:?} {left:?}");
            assert!(left.is_empty() || own.lists(left).is_ok());
            assert!(!left.is_empty() || own.lists(&["n1-0"]).is_err(), "it happens no more");
        }
    }
}

/// A client of NFS writes again what the server has lost. A flush that fails loses that, and a later crash brings back what was there
/// before.
#[test]
fn what_is_written_again_after_a_crash_is_in_memory_only() {
    let nfs = (1, Protocol::Nfs);
    let model = Model::default();
    let write = model.begin_write(0, 0..1, nfs, 0);
    let tag = write.tag;
    model.end_write(write, Ok(()));
    model.host_crashed();
    // Its flush was refused, and it gives up.
    model.forgotten(nfs);
    let begun = model.moment();
    model.judge(0, 0, tag, begun).unwrap();
    model.settle(0, 0, tag, begun);
    assert!(model.judge(0, 0, 0, model.moment()).is_err(), "it has been seen");
    model.host_crashed();
    assert!(model.judge(0, 0, 0, model.moment()).is_ok(), "and was not on disk");
}

#[test]
fn nobody_is_alone_twice() {
    let (alone, now) = (Alone::default(), Time::ZERO);
    assert_eq!(alone.granted((1, Protocol::Nfs), 0, false, now), Ok(true));
    assert!(alone.granted((2, Protocol::Smb), 0, false, now).is_err());
    alone.released(2);
    alone.lost(Some(Protocol::Nfs));
    assert_eq!(alone.granted((1, Protocol::Nfs), 0, false, now), Ok(false), "it was granted before the loss");
}

#[test]
fn a_persistent_handle_keeps_others_away_while_it_waits() {
    let held = || {
        let alone = Alone::default();
        assert_eq!(alone.granted((1, Protocol::Smb), 0, true, Time::ZERO), Ok(true));
        alone
    };
    let (soon, late) = (Time::ZERO + Duration::from_secs(40), Time::ZERO + Duration::from_secs(60));
    let alone = held();
    alone.heard(1, soon);
    alone.lost(None);
    assert!(alone.granted((2, Protocol::Nfs), 1, false, late).is_err(), "it was heard of 20 seconds ago");
    let alone = held();
    assert!(alone.granted((2, Protocol::Nfs), 0, false, late).is_err(), "its session is not lost");
    let alone = held();
    alone.lost(None);
    alone.heard(1, soon);
    assert!(alone.gone(1, soon).is_err(), "too soon");
    let alone = held();
    alone.lost(None);
    alone.back((1, Protocol::Smb), soon).unwrap();
    alone.waits(1);
    assert!(alone.gone(1, late).is_err());
    let alone = held();
    alone.lost(None);
    assert_eq!(alone.granted((2, Protocol::Nfs), 1, false, late), Ok(true), "it has waited long enough");
    assert!(alone.back((1, Protocol::Smb), late).is_err());
}

fn claim(by: usize, range: std::ops::Range<u64>, exclusive: bool) -> Claim {
    // Workers of even numbers speak SMB.
    let protocol = if by.is_multiple_of(2) { Protocol::Smb } else { Protocol::Nfs };
    Claim { by, protocol, range, exclusive }
}

#[test]
fn locks_that_exclude_each_other_are_not_granted_side_by_side() {
    // Between and within protocols.
    for other in [2, 3] {
        for (held, wished) in [(true, true), (true, false), (false, true)] {
            let locks = Locks::default();
            assert_eq!(locks.granted(claim(1, 0..10, held), 0), Ok(true));
            assert!(locks.granted(claim(other, 9..20, wished), 0).is_err(), "{held} {wished}");
            assert_eq!(locks.granted(claim(other, 10..20, wished), 0), Ok(true), "they do not meet");
        }
        let locks = Locks::default();
        assert_eq!(locks.granted(claim(1, 0..10, false), 0), Ok(true));
        assert_eq!(locks.granted(claim(other, 0..10, false), 0), Ok(true), "shared locks");
    }
}

#[test]
fn an_owner_of_smb_stacks_locks_and_one_of_nfs_replaces_them() {
    let locks = Locks::default();
    let smb = |range, exclusive| locks.granted(claim(2, range, exclusive), 0);
    assert_eq!((smb(0..10, true), smb(0..10, false)), (Ok(true), Ok(true)));
    assert!(smb(5..6, true).is_err(), "even its own");
    assert!(!locks.released(2, Protocol::Smb, &(0..5)), "a part is not what was locked");
    assert!(locks.released(2, Protocol::Smb, &(0..10)));
    assert!(locks.granted(claim(1, 0..1, true), 0).is_err(), "the shared one is left");
    assert_eq!(locks.granted(claim(1, 0..1, false), 0), Ok(true));
    assert!(locks.released(2, Protocol::Smb, &(0..10)) && !locks.has_claims(2));

    let nfs = |range, exclusive| locks.granted(claim(1, range, exclusive), 0);
    assert_eq!((nfs(0..30, true), nfs(10..20, false)), (Ok(true), Ok(true)));
    assert!(locks.granted(claim(3, 9..10, false), 0).is_err());
    assert_eq!(locks.granted(claim(3, 10..20, false), 0), Ok(true));
    assert!(locks.released(1, Protocol::Nfs, &(25..100)));
    assert_eq!(locks.granted(claim(3, 25..30, true), 0), Ok(true));
    // The server may have weakened a lock before its client is told.
    locks.requested(&claim(1, 0..5, false));
    assert_eq!(locks.granted(claim(3, 0..5, false), 0), Ok(true));
    locks.released_all(1);
    assert_eq!(locks.granted(claim(2, 5..10, true), 0), Ok(true));
}

#[test]
fn a_lock_that_the_server_may_have_forgotten_is_no_claim() {
    let locks = Locks::default();
    assert_eq!(locks.granted(claim(1, 0..10, true), locks.losses()), Ok(true));
    let begun = locks.losses();
    locks.lost(Some(Protocol::Smb));
    assert!(locks.has_claims(1));
    assert_eq!(locks.granted(claim(2, 0..10, true), begun), Ok(false), "it was granted before the loss");
    assert!(locks.granted(claim(2, 0..10, true), locks.losses()).is_err());
    locks.lost(None);
    assert!(!locks.has_claims(1));
    assert_eq!(locks.granted(claim(2, 0..10, true), locks.losses()), Ok(true));
}

const RWH: Rights = Rights { read: true, write: true, handle: true };
const RW: Rights = Rights { handle: false, ..RWH };
const RH: Rights = Rights { write: false, ..RWH };
const R: Rights = Rights { handle: false, ..RH };

/// Client 1 has a lease of the one file.
fn leased(rights: Rights) -> (Leases, ClaimId) {
    let leases = Leases::default();
    let claim = leases.granted(leases.begin(1, 0, Act::Open, Through::Name), rights).unwrap();
    (leases, claim.expect("nothing was lost"))
}

fn does(leases: &Leases, by: usize, act: Act) -> Result<(), String> {
    leases.end(leases.begin(by, 0, act, Through::Name), Ok(()))
}

#[test]
fn nothing_is_answered_that_a_lease_excludes() {
    for act in [Act::Open, Act::Read, Act::Write] {
        assert!(does(&leased(RW).0, 2, act).is_err(), "{act:?} beside cached writes");
        assert!(does(&leased(RWH).0, 1, act).is_ok(), "{act:?} by the holder");
        assert!(does(&leased(RH).0, 2, act).is_ok(), "{act:?} beside cached reads");
        let (leases, claim) = leased(RWH);
        let access = leases.begin(2, 0, act, Through::Name);
        leases.gives_up(claim, RH);
        assert!(leases.end(access, Ok(())).is_ok(), "{act:?} has waited");
        let leases = Leases::default();
        let (before, open) =
            (leases.begin(2, 0, act, Through::Name), leases.begin(1, 0, Act::Open, Through::Name));
        assert!(leases.granted(open, RWH).unwrap().is_some());
        assert!(leases.end(before, Ok(())).is_ok(), "{act:?} may have come first");
    }
    assert!(does(&leased(RH).0, 2, Act::TakeAway).is_err() && does(&leased(RW).0, 2, Act::TakeAway).is_ok());
}

#[test]
fn leases_that_exclude_each_other_are_not_granted_side_by_side() {
    for (held, wished) in [(RW, R), (R, RW), (RWH, RH), (R, RWH)] {
        let (leases, _) = leased(held);
        let access = leases.begin(2, 0, Act::Open, Through::Name);
        assert!(leases.granted(access, wished).is_err(), "{held:?} {wished:?}");
    }
    let (leases, _) = leased(RH);
    assert!(leases.granted(leases.begin(2, 0, Act::Open, Through::Name), R).unwrap().is_some());
    leases.released_all(1);
    leases.released_all(2);
    assert!(leases.granted(leases.begin(3, 0, Act::Open, Through::Name), RWH).unwrap().is_some());
}

#[test]
fn the_holder_of_a_lease_is_told_of_writes() {
    let (leases, claim) = leased(R);
    let before = leases.moment();
    does(&leases, 2, Act::Write).unwrap();
    assert!(leases.heard(claim, before).is_ok(), "the answer may have overtaken the break");
    assert!(leases.heard(claim, leases.moment()).is_err() && leases.quiet().is_err());
    leases.broken(claim, Rights::default(), false);
    assert!(leases.heard(claim, leases.moment()).is_ok() && leases.quiet().is_ok());
    // The server says one thing after the other.
    let (leases, claim) = leased(RWH);
    leases.broken(claim, RH, true);
    leases.gives_up(claim, RH);
    leases.broken(claim, R, true);
    does(&leases, 2, Act::Write).unwrap();
    assert!(leases.heard(claim, leases.moment()).is_ok());
    leases.gives_up(claim, R);
    assert!(leases.heard(claim, leases.moment()).is_err());
    assert_eq!(leases.counts(), (1, 2));
}

#[test]
fn a_lease_of_a_name_that_leads_elsewhere_is_no_claim() {
    let (leases, claim) = leased(RH);
    let (open, leaving) =
        (leases.begin(2, 0, Act::Open, Through::Name), leases.begin(3, 0, Act::TakeAway, Through::Name));
    leases.gives_up(claim, R);
    assert!(leases.end(leaving, Ok(())).is_ok());
    assert_eq!(leases.granted(open, RWH), Ok(None), "of which file?");
    assert!(
        leases.granted(leases.begin(2, 0, Act::Open, Through::Name), RWH).unwrap().is_some(),
        "the old one counts no more"
    );
    let unknown = leases.begin(3, 0, Act::TakeAway, Through::Name);
    leases.end(unknown, Err(Failed::Unknown)).unwrap();
    assert_eq!(
        leases.granted(leases.begin(4, 0, Act::Open, Through::Name), R),
        Ok(None),
        "it may still happen"
    );
    leases.quiet().unwrap();
    assert!(leases.granted(leases.begin(4, 0, Act::Open, Through::Name), R).unwrap().is_some());
    let open = leases.begin(2, 0, Act::Open, Through::Name);
    leases.lost();
    assert_eq!(leases.granted(open, RWH), Ok(None), "it was granted before the loss");
}

#[test]
fn a_handle_of_a_file_that_has_lost_its_name_gets_in_no_lease_s_way() {
    let leases = Leases::default();
    let open = leases.begin(2, 0, Act::Open, Through::Name);
    let old = leases.handle(&open);
    leases.end(open, Ok(())).unwrap();
    let reads = |by: usize, through| leases.end(leases.begin(by, 0, Act::Read, through), Ok(()));
    let take_away = |outcome| leases.end(leases.begin(3, 0, Act::TakeAway, Through::Name), outcome).unwrap();
    let during = leases.begin(4, 0, Act::Open, Through::Name);
    take_away(Ok(()));
    let unknown = leases.handle(&during);
    leases.end(during, Ok(())).unwrap();
    let open = leases.begin(1, 0, Act::Open, Through::Name);
    let new = leases.handle(&open);
    assert!(leases.granted(open, RWH).unwrap().is_some());
    assert!(reads(2, old).is_ok() && reads(4, unknown).is_ok(), "they may read another file");
    assert!(reads(2, new).is_err() && reads(2, Through::Name).is_err());
}

#[test]
fn a_refused_removal_leaves_a_handle_its_file() {
    let leases = Leases::default();
    let open = leases.begin(2, 0, Act::Open, Through::Name);
    let handle = leases.handle(&open);
    leases.end(open, Ok(())).unwrap();
    leases.end(leases.begin(3, 0, Act::TakeAway, Through::Name), Err(Failed::Refused)).unwrap();
    assert!(leases.granted(leases.begin(1, 0, Act::Open, Through::Name), RWH).unwrap().is_some());
    assert!(leases.end(leases.begin(2, 0, Act::Write, handle), Ok(())).is_err());
}

#[test]
fn a_lost_session_keeps_nothing_but_a_persistent_handle() {
    for kept in [true, false] {
        let alone = Alone::default();
        assert_eq!(alone.granted((1, Protocol::Smb), 0, kept, Time::ZERO), Ok(true));
        alone.session_lost(2);
        assert!(alone.granted((3, Protocol::Nfs), 0, false, Time::ZERO).is_err(), "that of another client");
        let alone = Alone::default();
        assert_eq!(alone.granted((1, Protocol::Smb), 0, kept, Time::ZERO), Ok(true));
        alone.session_lost(1);
        assert_eq!(alone.granted((3, Protocol::Nfs), 0, false, Time::ZERO).is_err(), kept);
    }
}

#[test]
fn a_lease_that_is_granted_in_a_silence_may_miss_a_break() {
    let leases = Leases::default();
    leases.silence_begins();
    let open = leases.begin(1, 0, Act::Open, Through::Name);
    assert!(leases.granted(open, R).unwrap().is_some());
    leases.silence_ends();
    does(&leases, 2, Act::Write).unwrap();
    assert!(leases.quiet().is_ok());
    let (leases, _) = leased(R);
    does(&leases, 2, Act::Write).unwrap();
    assert!(leases.quiet().is_err(), "it has no excuse");
}

#[test]
fn who_is_alone_lets_nobody_in() {
    let (alone, soon) = (Alone::default(), Time::ZERO + Duration::from_secs(1));
    assert_eq!(alone.granted((1, Protocol::Smb), 0, true, Time::ZERO), Ok(true));
    assert!(alone.let_in(2, 0, soon, soon).is_err());
    assert!(alone.let_in(1, 0, soon, soon).is_ok() && alone.let_in(2, 0, Time::ZERO, soon).is_ok());
    alone.lost(None);
    assert!(alone.let_in(2, 0, soon, soon).is_ok(), "it was let in before the loss");
    assert!(alone.let_in(2, 1, soon, soon).is_err(), "a persistent handle waits for its client");
    assert!(alone.let_in(2, 1, soon, Time::ZERO + Duration::from_secs(60)).is_ok(), "not for ever");
    alone.released(1);
    assert!(alone.let_in(2, 1, soon, soon).is_ok());
}

fn words(words: &[u32]) -> Bytes {
    words.iter().flat_map(|word| word.to_be_bytes()).collect()
}

/// REMOVE of version 3, its credential and verifier empty.
fn removal(xid: u32) -> Bytes {
    words(&[xid, 0, 2, 100_003, 3, 12, 0, 0, 0, 0])
}

/// A COMPOUND that begins with SEQUENCE.
fn compound(xid: u32) -> Bytes {
    words(&[xid, 0, 2, 100_003, 4, 1, 0, 0, 0, 0, 0, 1, 1, 53])
}

/// The next call that arrives twice, and its copy once that has arrived.
async fn twice(copies: &mut Copies, call: fn(u32) -> Bytes) -> (u32, u32) {
    let xid = (1..1000).find(|xid| {
        copies.called(*xid, &call(*xid));
        copies.next().is_some()
    });
    rt::sleep(Duration::from_secs(1)).await;
    let (copy, body) = copies.take(rt::now()).unwrap();
    assert_eq!(body[4..], call(0)[4..]);
    (xid.unwrap(), copy)
}

#[test]
fn a_call_that_arrives_twice_is_answered_alike() {
    Sim::new(1).run(async {
        let copied = Rc::<Cell<u64>>::default();
        let mut copies = Copies::new(copied.clone());
        let answer = |xid, status| words(&[xid, 1, 0, 0, 0, 0, status]);
        let (xid, copy) = twice(&mut copies, removal).await;
        assert_eq!(xid, copy);
        assert_eq!(copies.answered(xid, &answer(xid, 0)), Ok(Answered::Client));
        assert_eq!(copies.answered(xid, &answer(xid, 0)), Ok(Answered::Nobody));
        let (xid, _) = twice(&mut copies, removal).await;
        assert_eq!(copies.answered(xid, &answer(xid, 0)), Ok(Answered::Client));
        assert!(copies.answered(xid, &answer(xid, 2)).is_err(), "it was removed twice");
        for again in [true, false] {
            for (status, may) in [(0, true), (10_008, true), (10_068, true), (2, false)] {
                let mut copies = Copies::new(copied.clone());
                let (xid, copy) = twice(&mut copies, compound).await;
                assert_ne!(xid, copy);
                let mut answers = [(xid, 0, Answered::Client), (copy, status, Answered::Nobody)];
                if again {
                    answers.reverse();
                }
                let judged =
                    answers.map(|(xid, status, who)| (copies.answered(xid, &answer(xid, status)), who));
                assert_eq!(
                    judged.iter().all(|(judged, who)| *judged == Ok(*who)),
                    may,
                    "{status}: {judged:?}"
                );
            }
        }
        assert_eq!(copied.get(), 1 + 6);
        let written = |xid| words(&[xid, 0, 2, 100_003, 3, 7, 0, 0, 0, 0]);
        (1..1000).for_each(|xid| copies.called(xid, &written(xid)));
        assert_eq!(copies.next(), None, "a WRITE may be carried out twice");
    });
}
