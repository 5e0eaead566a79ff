//! Lookups against the host's own /etc/passwd and /etc/group, and the growth of buffers against calls made for it.

use std::ffi::{c_char, c_int};
use std::fs;
use std::io;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use super::{
    Account, Entry, Lookups, MAX_BYTES, MAX_NAME_BYTES, NO_ID, Query, Source, Unanswered, account_of,
    account_of_uid, entry, gid_of, group_name, group_of, group_of_gid, user_of, user_of_uid,
};
use crate::rt;

/// The fields of a line of passwd(5) or group(5).
fn lines(path: &str) -> Vec<Vec<String>> {
    let text = fs::read_to_string(path).expect("the host has accounts");
    text.lines().map(|line| line.split(':').map(str::to_owned).collect()).collect()
}

fn no_account(name: &str) {
    assert_eq!(account_of(name).expect("files answer"), None, "{name:?}");
}

#[test]
fn accounts_are_those_of_the_file() {
    let groups = lines("/etc/group");
    for line in lines("/etc/passwd") {
        let [name, _, uid, gid, ..] = &line[..] else { panic!("a line of passwd: {line:?}") };
        let (uid, gid): (u32, u32) = (uid.parse().expect("a uid"), gid.parse().expect("a gid"));
        let mut expected: Vec<u32> = groups
            .iter()
            .filter(|group| group[3].split(',').any(|member| member == name))
            .map(|group| group[2].parse().expect("a gid"))
            .chain([gid])
            .collect();
        expected.sort_unstable();
        expected.dedup();
        let account = account_of(name).expect("files answer").expect("an account of the file");
        assert_eq!(account, Account { name: name.clone(), uid, gid, groups: expected });
        let by_id = account_of_uid(uid).expect("files answer").expect("an account of the file");
        assert_eq!(by_id.uid, uid);
        assert_eq!(user_of(name).expect("files answer"), Some(Entry { name: name.clone(), id: uid }));
        assert_eq!(user_of_uid(uid).expect("files answer").expect("a user of the file").id, uid);
    }
}

#[test]
fn groups_are_those_of_the_file() {
    for line in lines("/etc/group") {
        let gid: u32 = line[2].parse().expect("a gid");
        assert_eq!(gid_of(&line[0]).expect("files answer"), Some(gid));
        let group = group_of_gid(gid).expect("files answer").expect("a group of the file");
        assert_eq!(group.id, gid);
        assert_eq!(group_name(gid).expect("files answer"), Some(group.name));
    }
}

#[test]
fn root_has_the_id_zero_in_both_directions() {
    let root = account_of("root").expect("files answer").expect("every host has root");
    assert_eq!((root.uid, root.gid), (0, 0));
    assert!(root.groups.contains(&0));
    assert_eq!(account_of_uid(0).expect("files answer").expect("every host has root").uid, 0);
    assert_eq!(group_of("root").expect("files answer").expect("every host has the group").id, 0);
}

#[test]
fn a_name_that_nobody_can_have_is_unknown() {
    no_account("");
    no_account("no such account");
    no_account("root\0");
    no_account("root:x:0:0");
    no_account("root\n");
    no_account(" root");
    no_account("ROOT");
    no_account("0");
    no_account(&"a".repeat(MAX_NAME_BYTES));
    no_account(&"a".repeat(MAX_NAME_BYTES + 1));
    assert_eq!(gid_of("").expect("files answer"), None);
    assert_eq!(gid_of("0").expect("files answer"), None);
}

/// -1 means "leave as it is" where ids are set, so it must never come out of a lookup.
#[test]
fn the_id_that_stands_for_none_is_nobody() {
    assert_eq!(account_of_uid(NO_ID).expect("no question is asked"), None);
    assert_eq!(group_name(NO_ID).expect("no question is asked"), None);
}

#[test]
fn a_buffer_grows_until_the_entry_fits() {
    let needed = 1 << 20;
    let call = |place: *mut u32, _: *mut c_char, len: usize, found: *mut *mut u32| -> c_int {
        if len < needed {
            return libc::ERANGE;
        }
        // SAFETY: `entry` passes places for both.
        unsafe {
            place.write(7);
            found.write(place);
        }
        0
    };
    assert_eq!(entry(call, |&value| Ok(value)).expect("it fits"), Some(7));
}

#[test]
fn an_entry_beyond_the_limit_is_an_error_and_not_nobody() {
    let largest = std::cell::Cell::new(0);
    let call = |_: *mut u32, _: *mut c_char, len: usize, _: *mut *mut u32| -> c_int {
        largest.set(largest.get().max(len));
        libc::ERANGE
    };
    let error = entry(call, |&value| Ok(value)).expect_err("it never fits");
    assert_eq!((error.raw_os_error(), largest.get()), (Some(libc::ERANGE), MAX_BYTES));
}

#[test]
fn a_service_that_fails_is_an_error_and_not_nobody() {
    for errno in [libc::ECONNREFUSED, libc::ENOENT, libc::EIO, libc::EINTR] {
        let call = |_: *mut u32, _: *mut c_char, _: usize, _: *mut *mut u32| errno;
        let error: io::Error = entry(call, |&value| Ok(value)).expect_err("the service failed");
        assert_eq!(error.raw_os_error(), Some(errno));
    }
}

/// A source that tests control.
#[derive(Default)]
struct Stub {
    asked: AtomicUsize,
    fails: AtomicBool,
    /// While this is set, it does not answer.
    hangs: Mutex<bool>,
    /// It hangs for ids only.
    knows_names: AtomicBool,
    answers: Condvar,
}

impl Stub {
    fn hang(&self) {
        *self.hangs.lock().expect("nobody panics") = true;
    }

    fn answer(&self) {
        *self.hangs.lock().expect("nobody panics") = false;
        self.answers.notify_all();
    }

    fn asked(&self) -> usize {
        self.asked.load(Ordering::Relaxed)
    }
}

impl Source for Stub {
    fn account(&self, name: &str) -> io::Result<Option<Account>> {
        let uid = self.entry(&Query::User(name.to_owned()))?;
        Ok(uid.map(|entry| Account { name: entry.name, uid: entry.id, gid: 1, groups: vec![1] }))
    }

    fn entry(&self, query: &Query) -> io::Result<Option<Entry>> {
        self.asked.fetch_add(1, Ordering::Relaxed);
        let is_name = matches!(query, Query::User(_) | Query::Group(_));
        if !is_name || !self.knows_names.load(Ordering::Relaxed) {
            let hangs = self.hangs.lock().expect("no test panics while it holds it");
            drop(self.answers.wait_while(hangs, |hangs| *hangs));
        }
        match query {
            _ if self.fails.load(Ordering::Relaxed) => Err(io::ErrorKind::ConnectionRefused.into()),
            Query::User(name) | Query::Group(name) if name == "alice" => {
                Ok(Some(Entry { name: name.clone(), id: 1000 }))
            }
            Query::User(_) | Query::Group(_) => Ok(None),
            Query::Uid(id) | Query::Gid(id) => Ok(Some(Entry { name: format!("n{id}"), id: *id })),
        }
    }
}

fn lookups(timeout: Duration, story: impl AsyncFnOnce(Arc<Stub>, Lookups)) {
    let stub = Arc::new(Stub::default());
    let lookups = Lookups::new(stub.clone(), timeout);
    rt::block_on(story(stub, lookups)).expect("a reactor");
}

const LONG: Duration = Duration::from_secs(60);

#[test]
fn names_are_kept_and_accounts_are_not() {
    lookups(LONG, async |stub, lookups| {
        for name in ["alice", "nobody"] {
            let user = Query::User(name.into());
            assert!(lookups.known(&user).is_none(), "nobody has asked");
            let answer = lookups.entry(user.clone()).await.expect("it answers");
            assert_eq!(answer.is_some(), name == "alice");
            assert_eq!(lookups.entry(user.clone()).await.expect("it answers"), answer);
            assert_eq!(lookups.known(&user), Some(answer));
        }
        assert_eq!(stub.asked.load(Ordering::Relaxed), 2);
        for _ in 0..2 {
            assert_eq!(lookups.account("alice").await.expect("it answers").expect("an account").uid, 1000);
        }
        assert_eq!(stub.asked.load(Ordering::Relaxed), 4);
        lookups.forget();
        assert!(lookups.known(&Query::User("alice".into())).is_none());
    });
}

#[test]
fn a_failed_lookup_is_not_a_missing_name_and_is_not_repeated_at_once() {
    lookups(LONG, async |stub, lookups| {
        stub.fails.store(true, Ordering::Relaxed);
        let alice = Query::User("alice".into());
        assert!(matches!(lookups.entry(alice.clone()).await, Err(Unanswered::Failed(_))));
        assert!(matches!(lookups.entry(alice.clone()).await, Err(Unanswered::Paused)));
        assert_eq!(lookups.known(&alice), None);
        assert_eq!(stub.asked.load(Ordering::Relaxed), 1);
        assert!(matches!(lookups.account("alice").await, Err(Unanswered::Failed(_))));
        stub.fails.store(false, Ordering::Relaxed);
        assert!(lookups.account("alice").await.expect("it answers again").is_some());
    });
}

#[test]
fn a_service_that_hangs_delays_its_questions_and_nothing_else() {
    lookups(Duration::from_millis(20), async |stub, lookups| {
        stub.hang();
        // A name that hangs occupies one place, however many ask for it.
        for _ in 0..3 {
            assert!(matches!(lookups.account("alice").await, Err(Unanswered::TimedOut(_))));
        }
        assert!(stub.asked.load(Ordering::Relaxed) <= 1);
        // More names than there are places for them.
        for id in 0..70 {
            assert!(matches!(lookups.account(&id.to_string()).await, Err(Unanswered::TimedOut(_))));
        }
        let first = Query::Gid(1);
        assert!(matches!(lookups.entry(first.clone()).await, Err(Unanswered::TimedOut(_))));
        assert!(matches!(lookups.entry(first).await, Err(Unanswered::Paused)));
        // A thousand names take as long as one.
        rt::timeout(LONG, lookups.prefetch((0..1000).map(Query::Gid).collect())).await.expect("it gives up");
        assert_eq!(rt::blocking(|| 7).await, 7, "other calls have their own places");
        assert!(stub.asked.load(Ordering::Relaxed) <= 64, "questions wait for a place");
        stub.answer();
        while lookups.account("alice").await.is_err() {}
    });
}

#[test]
fn translations_that_hang_delay_no_log_on_and_no_group_of_a_right() {
    lookups(LONG, async |stub, lookups| {
        stub.knows_names.store(true, Ordering::Relaxed);
        stub.hang();
        let lookups = Rc::new(lookups);
        let translate = |id| {
            let lookups = lookups.clone();
            rt::spawn(async move { lookups.prefetch(vec![Query::Uid(id)]).await })
        };
        let translations: Vec<_> = (0..100).map(translate).collect();
        while stub.asked() < 16 {
            rt::yield_now().await;
        }
        let patience = Duration::from_secs(5);
        let account = rt::timeout(patience, lookups.account("alice")).await.expect("its own places");
        assert_eq!(account.expect("it answers").expect("an account").uid, 1000);
        let group = rt::timeout(patience, lookups.entry(Query::Group("alice".into()))).await;
        assert!(group.expect("its own places").expect("it answers").is_some());
        stub.answer();
        for translation in translations {
            translation.await;
        }
    });
}

#[test]
fn a_translation_that_failed_does_not_answer_who_decides_by_the_same_name() {
    lookups(Duration::from_millis(20), async |stub, lookups| {
        stub.hang();
        let group = Query::Group("alice".into());
        lookups.prefetch(vec![group.clone()]).await;
        stub.answer();
        assert!(lookups.entry(group).await.expect("it is asked again").is_some());
    });
}

#[test]
fn a_question_that_nobody_waits_for_any_more_leaves_the_queue() {
    lookups(Duration::from_millis(20), async |stub, lookups| {
        stub.hang();
        let lookups = Rc::new(lookups);
        let translate = |id| {
            let lookups = lookups.clone();
            rt::spawn(async move { lookups.prefetch(vec![Query::Uid(id)]).await })
        };
        let translations: Vec<_> = (0..200).map(translate).collect();
        for translation in translations {
            translation.await;
        }
        stub.answer();
        let last = Query::Uid(5000);
        while lookups.known(&last).is_none() {
            lookups.forget();
            lookups.prefetch(vec![last.clone()]).await;
        }
        assert!(stub.asked() < 64, "{} of 200 were asked after their askers had gone", stub.asked());
    });
}

#[test]
fn an_answer_that_comes_too_late_is_kept() {
    lookups(Duration::from_millis(20), async |stub, lookups| {
        stub.hang();
        for (query, is_known) in [(Query::Uid(7), true), (Query::User("nobody".into()), false)] {
            lookups.prefetch(vec![query.clone()]).await;
            assert_eq!(lookups.known(&query), None);
            stub.answer();
            let kept = async {
                while lookups.known(&query).is_none() {
                    rt::yield_now().await;
                }
            };
            rt::timeout(Duration::from_secs(5), kept).await.expect("the answer is kept");
            assert_eq!(lookups.known(&query).flatten().is_some(), is_known);
            let asked = stub.asked();
            stub.hang();
            lookups.prefetch(vec![query]).await;
            assert_eq!(stub.asked(), asked, "nobody asks again");
        }
        stub.answer();
    });
}

#[test]
fn what_is_kept_is_limited() {
    lookups(LONG, async |_, lookups| {
        for id in 0..5000 {
            lookups.entry(Query::Uid(id)).await.expect("it answers");
        }
        assert_eq!(lookups.kept_len(), 4096);
        assert!(lookups.known(&Query::Uid(4999)).is_some(), "the newest are kept");
    });
}
