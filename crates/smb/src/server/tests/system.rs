//! Users and groups of the system: what a session gets at log-on, and what a directory service that changes, fails or
//! lies does to it.

use std::cell::Cell;
use std::collections::HashMap;
use std::io;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use weft_machine::nss::{Entry, Lookups, Query, Source};
use weft_machine::{Account, rt};
use weft_store::rights::{Principal, Rights};
use weft_wire::smb2::NtStatus;

use super::harness::*;
use crate::auth::{AuthError, Login, Secret, Target};
use crate::server::system::{MAX_TRANSLATING, MAX_TRANSLATING_OF_USER, NotAdmitted, System};
use crate::server::{Config, User};

/// A system with these accounts and groups.
#[derive(Default)]
pub(super) struct Stub {
    accounts: Mutex<HashMap<String, Account>>,
    groups: Mutex<HashMap<String, u32>>,
    fails: AtomicBool,
    asked: AtomicUsize,
}

impl Stub {
    pub(super) fn of(accounts: &[(&str, u32, &[u32])], groups: &[(&str, u32)]) -> Arc<Stub> {
        let stub = Stub::default();
        accounts.iter().for_each(|(name, uid, groups)| stub.set(name, *uid, groups));
        groups.iter().for_each(|(name, gid)| {
            stub.groups.lock().unwrap().insert((*name).to_owned(), *gid);
        });
        Arc::new(stub)
    }

    fn set(&self, name: &str, uid: u32, groups: &[u32]) {
        let account = Account { name: name.to_owned(), uid, gid: groups[0], groups: groups.to_vec() };
        self.accounts.lock().unwrap().insert(name.to_owned(), account);
    }

    pub(super) fn lookups(self: &Arc<Stub>) -> Arc<Lookups> {
        Arc::new(Lookups::new(self.clone(), Duration::from_secs(10)))
    }

    fn answer<T>(&self, answer: Option<T>) -> io::Result<Option<T>> {
        self.asked.fetch_add(1, Ordering::Relaxed);
        match self.fails.load(Ordering::Relaxed) {
            true => Err(io::ErrorKind::ConnectionRefused.into()),
            false => Ok(answer),
        }
    }
}

impl Source for Stub {
    fn account(&self, name: &str) -> io::Result<Option<Account>> {
        self.answer(self.accounts.lock().unwrap().get(name).cloned())
    }

    fn entry(&self, query: &Query) -> io::Result<Option<Entry>> {
        let Query::Group(name) = query else { return self.answer(None) };
        let id = self.groups.lock().unwrap().get(name).copied();
        self.answer(id.map(|id| Entry { name: name.clone(), id }))
    }
}

fn list(names: &[&str]) -> Option<Vec<Principal>> {
    Some(names.iter().map(|name| name.parse().unwrap()).collect())
}

fn world(stub: &Arc<Stub>, change: impl FnOnce(&mut Config)) -> World {
    World::with(|config| {
        config.offers.system = Some(stub.lookups());
        config.users =
            ["alice", "bob", "Carol", "root"].map(|name| User::new(name, Secret::password(PASSWORD))).into();
        change(config);
    })
}

async fn logs_on(world: &World, name: &str) -> Result<Client, NtStatus> {
    let mut client = world.connect();
    client.negotiate(Offer { guid: [name.as_bytes()[0]; 16], ..Offer::default() }).await;
    client.log_on(name, PASSWORD).await.map(|_| client)
}

fn account(world: &World, client: &Client) -> Option<Arc<Account>> {
    world.server.sessions.find(client.session).expect("a session").account.clone()
}

#[test]
fn a_user_has_the_account_of_the_configured_name_as_it_is_at_log_on() {
    story(async {
        let stub =
            Stub::of(&[("alice", 1000, &[100, 1000]), ("carol", 1002, &[100]), ("root", 0, &[0])], &[]);
        let world = world(&stub, |_| ());
        // The client's spelling makes no difference, that of the configuration does.
        for name in ["alice", "ALICE"] {
            let alice = logs_on(&world, name).await.unwrap();
            let found = account(&world, &alice).expect("an account");
            assert_eq!((found.uid, &found.groups[..]), (1000, &[100, 1000][..]));
        }
        for name in ["bob", "carol"] {
            let client = logs_on(&world, name).await.unwrap();
            assert_eq!(account(&world, &client), None, "{name}");
        }
        // A user of ours may be root: an administrator has made the user.
        let root = logs_on(&world, "root").await.unwrap();
        assert_eq!(account(&world, &root).map(|found| found.uid), Some(0));

        let before = logs_on(&world, "alice").await.unwrap();
        stub.set("alice", 1000, &[7]);
        let after = logs_on(&world, "alice").await.unwrap();
        assert_eq!(account(&world, &before).expect("an account").groups, [100, 1000]);
        assert_eq!(account(&world, &after).expect("an account").groups, [7]);
        stub.accounts.lock().unwrap().clear();
        let gone = logs_on(&world, "alice").await.unwrap();
        assert_eq!(account(&world, &gone), None);
    });
}

#[test]
fn a_failed_lookup_refuses_the_log_on_and_says_that_it_may_succeed_later() {
    story(async {
        let stub = Stub::of(&[("alice", 1000, &[100])], &[]);
        let world = world(&stub, |_| ());
        stub.fails.store(true, Ordering::Relaxed);
        for name in ["alice", "bob"] {
            let refused = logs_on(&world, name).await.map(|_| ()).unwrap_err();
            assert_eq!(refused, NtStatus(0xC000_005E), "{name}: not that the password is wrong");
        }
        let asked = stub.asked.load(Ordering::Relaxed);
        let mut client = world.connect();
        client.negotiate(Offer::default()).await;
        assert_eq!(client.log_on("alice", "wrong").await.unwrap_err(), NtStatus::LOGON_FAILURE);
        assert_eq!(stub.asked.load(Ordering::Relaxed), asked, "nobody asks for who has proved nothing");
        stub.fails.store(false, Ordering::Relaxed);
        let alice = logs_on(&world, "alice").await.unwrap();
        assert_eq!(account(&world, &alice).map(|found| found.uid), Some(1000));
        assert_eq!(world.server.session_count(), 1);
    });
}

/// The share may be read by two groups that differ in case, and written by another one.
fn with_groups(config: &mut Config) {
    config.shares[0].rules.rights =
        Rights { read: list(&["@Staff", "@gone"]), write: list(&["@staff", r"@AD\domain admins"]) };
}

async fn connects(client: &mut Client) -> NtStatus {
    client.tree_connect(r"\\s\data").await.0.status
}

#[test]
fn rights_may_name_groups_of_the_system_which_own_groups_hide() {
    story(async {
        let accounts: [(&str, u32, &[u32]); 3] =
            [("alice", 1000, &[50]), ("bob", 1001, &[60]), ("root", 0, &[0, 70])];
        let stub = Stub::of(&accounts, &[("Staff", 50), ("staff", 60), (r"AD\domain admins", 70)]);
        let world = world(&stub, with_groups);
        let right = async |name: &str| {
            let mut client = logs_on(&world, name).await.unwrap();
            if connects(&mut client).await != NtStatus::SUCCESS {
                return None;
            }
            let session = world.server.sessions.find(client.session).unwrap();
            Some(session.trees()[0].right)
        };
        use weft_store::rights::Right::{Read, Write};
        // The system's names are compared with regard to case: these are two groups.
        assert_eq!(right("alice").await, Some(Read));
        assert_eq!(right("bob").await, Some(Write));
        assert_eq!(right("root").await, Some(Write), "a group of a domain");
        assert_eq!(right("carol").await, None, "without an account");

        let mut alice = logs_on(&world, "alice").await.unwrap();
        let mut bob = logs_on(&world, "bob").await.unwrap();
        assert_eq!(connects(&mut alice).await, NtStatus::SUCCESS);
        bob.tree().await;
        let users = || ["alice", "bob"].map(|name| User::new(name, Secret::password(PASSWORD)));
        // Nothing changes for those who are members, also while nobody answers.
        stub.fails.store(true, Ordering::Relaxed);
        world.server.replace_users(&users(), &[]).await;
        assert!(world.server.sessions.find(bob.session).unwrap().tree(bob.tree).is_some());
        stub.fails.store(false, Ordering::Relaxed);
        // A group of ours, also one without members, has the name of both.
        world.server.replace_users(&users(), &["STAFF".into()]).await;
        assert!(world.server.sessions.find(bob.session).unwrap().tree(bob.tree).is_none());
        assert_eq!(connects(&mut alice).await, NtStatus::ACCESS_DENIED);
        // Without it the system's counts again, as it is then.
        stub.groups.lock().unwrap().insert("staff".into(), 61);
        world.server.replace_users(&users(), &[]).await;
        assert_eq!(connects(&mut bob).await, NtStatus::ACCESS_DENIED);
        assert_eq!(connects(&mut alice).await, NtStatus::SUCCESS);
    });
}

#[test]
fn a_group_that_appears_counts_at_a_later_tree_connect() {
    story(async {
        let stub = Stub::of(&[("alice", 1000, &[50])], &[]);
        let world = world(&stub, with_groups);
        let mut alice = logs_on(&world, "alice").await.unwrap();
        assert_eq!(connects(&mut alice).await, NtStatus::ACCESS_DENIED);
        stub.groups.lock().unwrap().insert("gone".into(), 50);
        rt::sleep(Duration::from_secs(30)).await;
        assert_eq!(connects(&mut alice).await, NtStatus::SUCCESS);
    });
}

/// A system that translates nothing while it is closed.
#[derive(Default)]
struct Gate {
    is_open: Mutex<bool>,
    opens: Condvar,
}

impl Source for Gate {
    fn account(&self, _: &str) -> io::Result<Option<Account>> {
        Ok(None)
    }

    fn entry(&self, _: &Query) -> io::Result<Option<Entry>> {
        drop(self.opens.wait_while(self.is_open.lock().unwrap(), |is_open| !*is_open).unwrap());
        Ok(None)
    }
}

#[test]
fn a_user_has_few_translations_in_progress_and_all_users_have_a_limit() {
    rt::block_on(async {
        let gate = Arc::new(Gate::default());
        let lookups = Arc::new(Lookups::new(gate.clone(), Duration::from_secs(60)));
        let system = Rc::new(System::new(Some(lookups)));
        let begun = Rc::new(Cell::new(0));
        let translate = |user: &str, uid: u32| {
            let (system, user, begun) = (system.clone(), Arc::from(user), begun.clone());
            rt::spawn(async move {
                begun.set(begun.get() + 1);
                system.prefetch(&user, vec![Query::Uid(uid)]).await
            })
        };
        let all_begun = async |calls: usize| {
            while begun.get() < calls {
                rt::yield_now().await;
            }
        };
        let (most, of_user) = (MAX_TRANSLATING as u32, MAX_TRANSLATING_OF_USER as u32);
        let mut held: Vec<_> = (0..of_user).map(|uid| translate("eve", uid)).collect();
        all_begun(held.len()).await;
        assert!(translate("eve", of_user).await.is_err(), "one user");
        assert!(system.prefetch(&"eve".into(), Vec::new()).await.is_ok(), "nothing to look up");
        held.extend((of_user..most).map(|uid| translate(&format!("user{}", uid / of_user), uid)));
        // With the one that has been refused.
        all_begun(held.len() + 1).await;
        assert!(translate("alice", most).await.is_err(), "all users");
        *gate.is_open.lock().unwrap() = true;
        gate.opens.notify_all();
        for translation in held {
            translation.await.unwrap();
        }
        translate("eve", 0).await.unwrap();
        translate("alice", most).await.unwrap();
    })
    .unwrap();
}

fn by_ticket(user: &str, is_ours: bool, is_chosen: bool) -> Login {
    Login {
        user: user.into(),
        session_key: zeroize::Zeroizing::new([0; 16]),
        full_key: zeroize::Zeroizing::new(Vec::new()),
        lifetime: None,
        is_ours,
        is_chosen,
        target: Target::Ours,
    }
}

#[test]
fn a_ticket_admits_an_account_of_the_system_but_root_only_by_the_map() {
    story(async {
        let stub = Stub::of(&[("dora", 1003, &[100]), ("root", 0, &[0]), ("toor", 0, &[0])], &[]);
        let system = System::new(Some(stub.lookups()));
        let uid = async |login: Login| match system.log_on(&login).await {
            Ok(account) => Ok(account.map(|account| account.uid)),
            Err(NotAdmitted::Refused(why)) => Err(why),
            Err(other) => panic!("{other}"),
        };
        assert_eq!(uid(by_ticket("dora", false, false)).await, Ok(Some(1003)));
        assert!(system.admits("dora") && !system.admits("eve"));
        assert_eq!(uid(by_ticket("eve", false, false)).await, Err(AuthError::Stranger));
        assert_eq!(uid(by_ticket("eve", true, false)).await, Ok(None), "a user of ours needs no account");
        for name in ["root", "toor"] {
            for is_ours in [false, true] {
                assert_eq!(uid(by_ticket(name, is_ours, false)).await, Err(AuthError::Root), "{name}");
            }
            let account = Account { name: name.into(), uid: 0, gid: 0, groups: vec![0] };
            assert!(system.admit(name, &account, false).is_err(), "nor is a handle of the last run restored");
            assert!(!system.admits(name));
            assert_eq!(uid(by_ticket(name, false, true)).await, Ok(Some(0)));
        }
        stub.fails.store(true, Ordering::Relaxed);
        let answer = system.log_on(&by_ticket("dora", false, false)).await;
        assert!(matches!(answer, Err(NotAdmitted::Unanswered(_))));

        // Those who are gone are forgotten, once somebody answers.
        stub.accounts.lock().unwrap().remove("dora");
        system.read_again().await;
        assert!(system.admits("dora"));
        stub.fails.store(false, Ordering::Relaxed);
        system.read_again().await;
        assert!(!system.admits("dora") && system.admits("root"));
        stub.set("root", 5, &[5]);
        system.read_again().await;
        assert!(!system.admits("root"), "another account of the same name");
    });
}

#[test]
fn a_ticket_does_not_admit_an_account_whose_name_is_spelled_otherwise() {
    story(async {
        let stub = Stub::of(&[], &[]);
        let system = System::new(Some(stub.lookups()));
        let admits = async |user: &str, spelled: &str, is_chosen| {
            let account = Account { name: spelled.to_owned(), uid: 1000, gid: 100, groups: vec![100] };
            stub.accounts.lock().unwrap().insert(user.to_owned(), account);
            match system.log_on(&by_ticket(user, false, is_chosen)).await {
                Ok(account) => account.is_some(),
                Err(NotAdmitted::Refused(AuthError::Spelling)) => false,
                Err(other) => panic!("{other}"),
            }
        };
        for spelled in ["alice", "alice@example.org", r"EXAMPLE\alice", "EXAMPLE+alice"] {
            assert!(admits("alice", spelled, false).await, "{spelled}");
        }
        // A directory that ignores case finds the same account for these.
        for user in ["ALICE", "Alice"] {
            for spelled in ["alice", "alice@example.org", r"EXAMPLE\alice"] {
                assert!(!admits(user, spelled, false).await, "{user}: {spelled}");
            }
            assert!(!system.admits(user));
            let account = Account { name: "alice".into(), uid: 1000, gid: 100, groups: vec![100] };
            assert!(system.admit(user, &account, false).is_err(), "nor is a handle of the last run restored");
            assert!(admits(user, "alice", true).await, "a line of the map names the account");
        }
    });
}
