//! Messages of another server through the door `setup`, and their effects.

use std::fs;
use std::path::PathBuf;

use serde_json::{Value, json};
use tempfile::TempDir;
use weft_machine::rt;
use weft_replica::destination::Destination;
use weft_store::block::{Block, BlockOp};
use weft_store::volume::{Create, Storage, Volumes};
use weft_wire::repl::control::{Era, Hello, Request, Response, Sync};

use super::config::ListNumber;
use super::partners::Elsewhere;
use super::*;
use crate::admin::replica::Command;
use crate::args::replica::Objection;

const MIB: u64 = 1 << 20;
const PARTNERSHIP: &str = "abababababababababababababababab";

/// A server with volumes `vol1` and `vol2` of 1 MiB each.
struct Host {
    dir: TempDir,
    replicas: Arc<Replicas>,
}

impl Host {
    fn new() -> Host {
        let dir = tempfile::tempdir().unwrap();
        let (state, pool) = (dir.path().join("state"), Pool::new(64 << 20));
        let volumes = Volumes::at(state.join("volumes"));
        let member = |name: &str| {
            let storage = Storage::File(dir.path().join(format!("{name}.img")));
            let create =
                Create { storage, size: Some(MIB), allocate: false, direct: false, id: [7; 16], created: 1 };
            volumes.create(name, &create).unwrap();
            let volume = volumes.open(name, &pool).unwrap();
            let front = Front::new(volume.block.geometry());
            front.begin(volume.block.clone());
            let (name, medium) = (name.to_owned(), volume.superblock.medium);
            Arc::new(Member {
                name,
                medium,
                place: crate::volume::place(&volume.superblock),
                front,
                bare: volume.block.clone(),
                growth: volume.growth.clone(),
            })
        };
        let members = vec![member("vol1"), member("vol2")];
        let cores = Arc::new(Cores::start(1, "replica-test").unwrap());
        let setup: door::Setup = Arc::new(|message| Box::pin(std::future::ready(message)));
        let replicas = Arc::new(Replicas {
            cores,
            pool,
            log_memory: Default::default(),
            folder: Folder::of(&state),
            volumes: Volumes::at(state.join("volumes")),
            doors: Doors::new(setup),
            members,
            absent: Vec::new(),
            groups: Mutex::default(),
            busy: Mutex::default(),
            joins: AsyncMutex::default(),
            looking: AsyncMutex::default(),
            measuring: Arc::default(),
            ends: AtomicBool::new(false),
            own: Own { user: "alice".into(), password: Password::new("secret") },
            server: 7,
            smb_port: OnceLock::new(),
            acceptor: OnceLock::new(),
        });
        Host { dir, replicas }
    }

    fn ask(&self, message: &Value) -> Result<(), String> {
        let message = serde_json::to_vec(message).unwrap();
        match rt::block_on(self.replicas.setup(&message)).unwrap() {
            Tell::Error(why) => Err(why.into()),
            Tell::Done | Tell::Looked { .. } | Tell::Epoch(_) | Tell::Holds(_) | Tell::Known { .. } => Ok(()),
        }
    }

    fn joins() -> Value {
        let back = json!({"host": "127.0.0.1", "port": 1, "user": "x", "password": "y", "transport": "tcp",
            "encrypt": true});
        json!({"do": "join", "partnership": PARTNERSHIP, "group": "db", "volumes": ["vol1"],
            "sizes": [MIB], "log_bytes": 64 * MIB, "source": "other:db", "back": back, "synchronous": false,
            "may_overwrite": true})
    }

    fn join(&self, change: impl FnOnce(&mut Value)) -> Result<(), String> {
        let mut join = Host::joins();
        change(&mut join);
        self.ask(&join)
    }

    fn length(&self, volume: &str) -> u64 {
        fs::metadata(self.dir.path().join(format!("{volume}.img"))).unwrap().len()
    }

    /// Names of the groups' files.
    fn files(&self) -> Vec<String> {
        let entries = fs::read_dir(self.dir.path().join("state/replica")).into_iter().flatten();
        let mut names: Vec<String> =
            entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    fn is_destination(&self, group: &str) -> bool {
        self.replicas.group(group).is_ok_and(|group| group.is_destination())
    }
}

const OF_DB: [&str; 4] = ["db.json", "db.log", "db.members", "db.volume"];

#[test]
fn a_groups_name_is_no_path_and_removes_nothing() {
    let host = Host::new();
    host.join(|_| ()).unwrap();
    assert_eq!(host.files(), OF_DB);
    let victims: Vec<PathBuf> = ["volume", "log", "json", "members"]
        .map(|suffix| host.dir.path().join(format!("victim.{suffix}")))
        .into_iter()
        .collect();
    victims.iter().for_each(|path| fs::write(path, b"precious").unwrap());
    let absolute = host.dir.path().join("victim");
    for name in ["./db", "../../victim", absolute.to_str().unwrap(), "../replica/db", "", "."] {
        let other = |join: &mut Value| {
            join["partnership"] = json!("cd".repeat(16));
            join["group"] = json!(name);
            join["volumes"] = json!(["vol2"]);
        };
        host.join(other).unwrap_err();
        // Even if nothing else is wrong.
        host.join(|join| {
            other(join);
            join["volumes"] = json!([]);
            join["sizes"] = json!([]);
        })
        .unwrap_err();
        assert!(victims.iter().all(|path| fs::read(path).unwrap() == b"precious"), "{name}");
        assert_eq!(host.files(), OF_DB, "{name}");
    }
    assert!(host.is_destination("db"));
}

#[test]
fn a_group_whose_making_was_cut_short_is_undone_at_the_next_start() {
    // How far the creation had come: the files that already exist.
    for made in 1..=OF_DB.len() {
        let host = Host::new();
        host.join(|_| ()).unwrap();
        let folder = host.dir.path().join("state/replica");
        let file = folder.join("db.json");
        let mut config: Value = serde_json::from_slice(&fs::read(&file).unwrap()).unwrap();
        assert_eq!(config.get("beginning"), None, "it was made");
        config["beginning"] = json!(true);
        fs::write(&file, serde_json::to_vec(&config).unwrap()).unwrap();
        for later in ["db.json", "db.volume", "db.log", "db.members"].iter().skip(made) {
            fs::remove_file(folder.join(later)).unwrap();
        }
        host.replicas.groups().clear();
        host.replicas.remember().unwrap();
        assert!(host.replicas.groups().is_empty(), "{made}");
        assert_eq!(host.files(), [""; 0], "{made}");
        assert!(host.replicas.members.iter().all(|member| member.growth.superblock().membership.is_none()));
        // The volume is free.
        host.join(|join| join["partnership"] = json!("cd".repeat(16))).unwrap();
        assert!(host.is_destination("db"), "{made}");
    }
}

#[test]
fn what_a_join_did_not_make_it_does_not_remove() {
    let host = Host::new();
    let folder = host.dir.path().join("state/replica");
    fs::create_dir_all(&folder).unwrap();
    // A group of another server with this state directory, and one that is being created.
    fs::write(folder.join("db.json"), b"another's").unwrap();
    let busy = fs::File::create(folder.join("busy.log")).unwrap();
    rustix::fs::flock(&busy, rustix::fs::FlockOperation::LockExclusive).unwrap();
    let refused = host.join(|_| ()).unwrap_err();
    assert!(refused.contains("already recorded"), "{refused}");
    let refused = host.join(|join| join["group"] = json!("busy")).unwrap_err();
    assert!(refused.contains("busy.log"), "{refused}");
    // Leftovers of a crash are no obstacle, except to an invalid message.
    fs::write(folder.join("left.log"), b"of a crash").unwrap();
    host.join(|join| {
        join["group"] = json!("left");
        join["log_bytes"] = json!(1);
    })
    .unwrap_err();
    assert_eq!(host.files(), ["busy.log", "db.json", "left.log"]);
    assert_eq!(fs::read(folder.join("db.json")).unwrap(), b"another's");
    host.join(|join| join["group"] = json!("left")).unwrap();
    assert!(host.is_destination("left"));
}

#[test]
fn a_join_that_makes_no_sense_takes_nothing() {
    let host = Host::new();
    let free = rustix::fs::statvfs(host.dir.path()).map(|found| found.f_bavail * found.f_frsize).unwrap();
    let wrong: [(&str, Value); 12] = [
        ("log_bytes", json!(u64::MAX)),
        ("log_bytes", json!(u64::MAX - 4096)),
        ("log_bytes", json!(1_u64 << 62)),
        ("log_bytes", json!(free.next_multiple_of(4096))),
        ("log_bytes", json!(0)),
        ("log_bytes", json!(64 * MIB + 512)),
        ("volumes", json!(["vol1", "vol1"])),
        ("volumes", json!(["vol1", "vol2"])),
        ("volumes", json!([])),
        ("sizes", json!([0])),
        ("sizes", json!([u64::MAX])),
        ("partnership", json!("abab")),
    ];
    for (field, value) in wrong {
        let refused = host.join(|join| join[field] = value.clone());
        assert!(refused.is_err(), "{field} {value}");
        assert_eq!(host.files(), [""; 0], "{field} {value}");
    }
    let refused = host.join(|join| {
        join["volumes"] = json!(["vol1", "vol1"]);
        join["sizes"] = json!([MIB, MIB]);
    });
    assert!(refused.unwrap_err().contains("twice"));
    host.join(|_| ()).unwrap();
    // A partnership has only one group here: its doors lead to one destination.
    for partnership in [PARTNERSHIP.to_owned(), PARTNERSHIP.to_uppercase()] {
        host.join(|join| {
            join["partnership"] = json!(partnership);
            join["group"] = json!("second");
            join["volumes"] = json!(["vol2"]);
        })
        .unwrap_err();
    }
    assert_eq!(host.files(), OF_DB);
    assert!(host.is_destination("db"));
}

#[test]
fn a_volume_grows_by_what_there_is_and_gives_back_what_nobody_has_used() {
    let host = Host::new();
    let grow = |sizes: &[u64]| host.ask(&json!({"do": "grow", "partnership": PARTNERSHIP, "sizes": sizes}));
    host.join(|join| {
        join["volumes"] = json!(["vol1", "vol2"]);
        join["sizes"] = json!([MIB, MIB]);
    })
    .unwrap();
    let lengths = || [host.length("vol1"), host.length("vol2")];
    // More than is free, in one volume, in both together, or more than possible: no volume grows.
    let free = rustix::fs::statvfs(host.dir.path()).map(|found| found.f_bavail * found.f_frsize).unwrap();
    let most = free / 512 * 512;
    for sizes in
        [[MIB, 1 << 43], [2 * most, MIB], [most / 4 * 3, most / 4 * 3], [u64::MAX, MIB], [MIB, 4 * MIB + 1]]
    {
        grow(&sizes.map(|size| size.max(MIB))).unwrap_err();
        assert_eq!(lengths(), [MIB; 2], "{sizes:?}");
    }
    grow(&[2 * MIB]).unwrap_err();
    grow(&[2 * MIB, 3 * MIB]).unwrap();
    grow(&[4 * MIB, MIB]).unwrap();
    assert_eq!(lengths(), [4 * MIB, 3 * MIB]);
    host.ask(&json!({"do": "leave", "partnership": PARTNERSHIP})).unwrap();
    assert_eq!(lengths(), [MIB; 2], "the group had not grown");
    assert!(host.files().is_empty());
    let size = |name: &str| host.replicas.member(name).unwrap().bare.geometry().size;
    assert_eq!(["vol1", "vol2"].map(size), [MIB; 2]);
}

#[test]
fn a_creation_that_was_interrupted_before_anything_is_forgotten() {
    let host = Host::new();
    let folder = host.dir.path().join("state/replica");
    let left = || {
        fs::create_dir_all(&folder).unwrap();
        fs::write(folder.join("db.members"), br#"["vol1"]"#).unwrap();
        fs::write(folder.join(".db.new"), b"{").unwrap();
    };
    left();
    host.replicas.remember().unwrap();
    assert!(host.replicas.groups().is_empty() && host.files().is_empty(), "{:?}", host.files());
    // The rest of its journal may hold records, and its volume is a member although the journal is lost.
    left();
    fs::write(folder.join("db.log"), b"records").unwrap();
    host.replicas.remember().unwrap();
    assert_eq!(host.replicas.group_of("vol1").as_deref(), Some("db"));
    fs::remove_file(folder.join("db.log")).unwrap();
    host.replicas.groups().clear();
    host.replicas.member("vol1").unwrap().enter("db", [0xab; 16]).unwrap();
    host.replicas.remember().unwrap();
    assert_eq!(host.replicas.group_of("vol1").as_deref(), Some("db"));
    assert_eq!(host.files(), [".db.new", "db.members"]);
}

#[test]
fn a_look_is_at_a_few_volumes_once_each() {
    let host = Host::new();
    let look = |volumes: Vec<&str>| host.ask(&json!({"do": "look", "volumes": volumes, "measure": false}));
    look(vec!["vol1", "vol2"]).unwrap();
    assert!(look(vec!["vol1", "vol1"]).unwrap_err().contains("twice"));
    assert!(look(vec!["vol1"; 6_500]).is_err());
}

#[test]
fn what_a_partner_says_shows_itself_and_nothing_else() {
    let host = Host::new();
    let hostile = "evil\x1b[2J\x1b]0;pwn\x07\nforged \u{9b}31m:x";
    host.join(|join| join["source"] = json!(hostile)).unwrap();
    host.ask(&json!({"do": "stopped", "partnership": PARTNERSHIP, "why": hostile})).unwrap();
    let told = host.replicas.told();
    assert!(told[0].partner_stopped.as_ref().is_some_and(|why| why.starts_with("evil\\u001b[2J")));
    let json = serde_json::to_value(&told).unwrap();
    fn texts(value: &Value) -> Vec<&str> {
        match value {
            Value::String(text) => vec![text],
            Value::Array(list) => list.iter().flat_map(texts).collect(),
            Value::Object(fields) => fields.values().flat_map(texts).collect(),
            _ => Vec::new(),
        }
    }
    let odd: Vec<&str> = texts(&json).into_iter().filter(|text| text.contains(char::is_control)).collect();
    assert_eq!(odd, [""; 0]);
    // Text in place of an address has no effect, or is not an address.
    host.join(|join| {
        join["partnership"] = json!("cd".repeat(16));
        (join["group"], join["volumes"]) = (json!("second"), json!(["vol2"]));
        join["back"]["host"] = json!(hostile);
    })
    .unwrap_err();
}

impl Host {
    /// The server's answer to a list from its source.
    fn know(&self, count: u64, partners: Value, successor: &str) -> Tell {
        let epoch = self.replicas.group("db").unwrap().latest_epoch();
        let list = json!({"number": {"epoch": epoch, "count": count}, "server": 8, "source": null,
            "partners": partners, "successor": successor});
        let know = json!({"do": "know", "partnership": PARTNERSHIP, "list": list});
        rt::block_on(self.replicas.setup(&serde_json::to_vec(&know).unwrap())).unwrap()
    }

    /// The partners of the group, and their passwords.
    fn partners(&self) -> Vec<(String, String)> {
        let partners = self.replicas.group("db").unwrap().config().partners;
        let known = |partner: config::Partner| (partner.name, partner.address.password.text().to_owned());
        partners.into_iter().map(known).collect()
    }
}

fn partner(name: &str, port: u16, password: &str) -> Value {
    let address = json!({"host": "127.0.0.1", "port": port, "user": "x", "password": password, "transport": "tcp",
        "encrypt": true});
    json!({"name": name, "address": address, "synchronous": true})
}

fn known(names: &[(&str, &str)]) -> Vec<(String, String)> {
    names.iter().map(|(name, password)| ((*name).to_owned(), (*password).to_owned())).collect()
}

#[test]
fn a_copy_that_was_told_of_its_sources_successor_is_no_source_unasked() {
    let host = Host::new();
    host.join(|_| ()).unwrap();
    let group = host.replicas.group("db").unwrap();
    let State::Destination(copy) = group.state() else { panic!("a copy") };
    let is_behind = || rt::block_on(group.is_behind(&host.replicas, &copy)).unwrap();
    assert_eq!(is_behind(), Elsewhere::default());
    // The source is already known, by name and by address.
    let all =
        || json!([partner("third:db", 2, "y"), partner("other:db", 3, "y"), partner("alias:db", 1, "y")]);
    host.know(1, all(), "third:db");
    let [(Objection::Switched, why)] = &is_behind().objections[..] else { panic!("{:?}", is_behind()) };
    assert!(why.contains("third:db is now the source"), "{why}");
    // Its source was also heard a moment ago, when it asked for a copy: a user who knows one reason was not told
    // about both.
    let refused = host.fails_over(&group, &copy, &[Objection::Alive]).unwrap_err();
    assert!(refused.contains("alive: ") && refused.contains("--force=alive,resync,switched`"), "{refused}");
    // The roles were not exchanged.
    host.know(2, json!([partner("third:db", 2, "y")]), "");
    let unasked = "127.0.0.1 could not be asked and may have more".to_owned();
    assert_eq!(is_behind(), Elsewhere { unasked, ..Elsewhere::default() });
    for odd in ["", "a\nb", &"x".repeat(129)] {
        assert!(matches!(host.know(3, json!([partner(odd, 99, "y")]), ""), Tell::Error(_)), "{odd}");
    }
    let many = |count: u16| {
        Value::from((0..count).map(|n| partner(&format!("{n}:db"), 10 + n, "y")).collect::<Vec<_>>())
    };
    assert!(matches!(host.know(3, many(9), ""), Tell::Error(_)));
    // A journal has room for eight, including the source.
    let Tell::Known { left_out, .. } = host.know(3, many(8), "") else { panic!("it is a list") };
    assert_eq!((host.partners().len(), &*left_out[0]), (8, "7:db"));
    host.know(4, json!([]), &"x".repeat(129));
    assert_eq!(group.config().successor, "another host");
}

#[test]
fn the_list_of_a_source_is_what_its_copy_knows_and_an_older_one_changes_nothing() {
    let host = Host::new();
    host.join(|_| ()).unwrap();
    let two = || json!([partner("b:db", 2, "old"), partner("c:db", 3, "y")]);
    assert!(matches!(host.know(5, two(), ""), Tell::Known { count: 5, .. }));
    assert_eq!(host.partners(), known(&[("other:db", "y"), ("b:db", "old"), ("c:db", "y")]));
    // One was removed, and the other re-added.
    host.know(7, json!([partner("b:db", 2, "new")]), "");
    assert_eq!(host.partners(), known(&[("other:db", "y"), ("b:db", "new")]));
    // An earlier list arrives late: the source learns that it is older.
    assert!(matches!(host.know(6, two(), "c:db"), Tell::Known { count: 7, .. }));
    assert_eq!(host.partners(), known(&[("other:db", "y"), ("b:db", "new")]));
    assert_eq!(host.replicas.group("db").unwrap().config().successor, "");
    // A restarted server knows that, too.
    let [Remembered::Group(kept)] = &host.replicas.folder.load().unwrap()[..] else { panic!("one group") };
    let late = ListNumber { count: 6, ..kept.list };
    assert_eq!((kept.list.later_than(late), kept.partners.len()), (Some(7), 2));
    // The same list again changes nothing.
    host.know(7, json!([partner("b:db", 2, "new")]), "");
    assert_eq!(host.partners(), known(&[("other:db", "y"), ("b:db", "new")]));
}

#[test]
fn a_copy_that_stops_concerns_its_source_and_no_other_copy() {
    let host = Host::new();
    host.join(|_| ()).unwrap();
    host.know(1, json!([partner("b:db", 2, "y"), partner("c:db", 3, "y")]), "");
    let group = host.replicas.group("db").unwrap();
    // As for a source that has sent a hello.
    group.change(&host.replicas, |config| config.list.epoch = 1).unwrap();
    let concerned = || group.config().concerned().iter().map(|other| other.name.clone()).collect::<Vec<_>>();
    assert_eq!(concerned(), ["other:db"]);
    // As a source it has its own list, whose numbers continue.
    group.change_destinations(&host.replicas, |_| ()).unwrap();
    assert_eq!(concerned(), ["other:db", "b:db", "c:db"]);
    assert!(group.config().list.count > 1);
}

#[test]
fn nothing_is_left_of_a_group_that_has_ended() {
    let host = Host::new();
    host.join(|_| ()).unwrap();
    let group = Arc::downgrade(&host.replicas.group("db").unwrap());
    host.ask(&json!({"do": "leave", "partnership": PARTNERSHIP})).unwrap();
    rt::block_on(async {
        let gone = async {
            while group.strong_count() > 0 {
                rt::yield_now().await;
            }
        };
        let gone = rt::timeout(std::time::Duration::from_secs(60), gone).await;
        assert!(gone.is_ok(), "its journal has its room still");
    })
    .unwrap();
}

#[test]
fn the_list_of_a_source_that_is_not_followed_changes_nothing() {
    let host = Host::new();
    host.join(|_| ()).unwrap();
    let epoch = host.replicas.group("db").unwrap().latest_epoch();
    for of in [epoch + 1, u64::MAX, epoch.wrapping_sub(1)] {
        let list = json!({"number": {"epoch": of, "count": 1}, "server": 8, "source": null,
            "partners": [partner("b:db", 2, "y")]});
        let refused = host.ask(&json!({"do": "know", "partnership": PARTNERSHIP, "list": list})).unwrap_err();
        assert!(refused.contains("follows the source of epoch"), "{refused}");
    }
    assert_eq!(host.partners(), known(&[("other:db", "y")]));
}

#[test]
fn a_copy_that_lacks_what_another_one_has_is_no_source_unasked() {
    let host = Host::new();
    host.join(|_| ()).unwrap();
    let group = host.replicas.group("db").unwrap();
    let State::Destination(copy) = group.state() else { panic!("a copy") };
    let stopped = |more: Value| {
        let mut message = json!({"do": "stopped", "partnership": PARTNERSHIP, "why": "it is stopped", "cause": "set-back",
            "host": "other"});
        message.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        host.ask(&message).unwrap();
        rt::block_on(group.is_behind(&host.replicas, &copy)).unwrap().objections
    };
    // A server of an older version does not report who has most.
    assert_eq!(stopped(json!({})), []);
    let epoch = copy.status().epoch;
    let behind = stopped(json!({"most_epoch": epoch, "most_last": 8009, "holder": "third"}));
    let [(Objection::OtherHasMore, why)] = &behind[..] else { panic!("{behind:?}") };
    assert!(why.contains("this copy lacks records 1 to 8009; third has them"), "{why}");
    let refused = host.fails_over(&group, &copy, &[Objection::Alive, Objection::Behind]).unwrap_err();
    assert!(refused.contains("--force=alive,resync,other-has-more`"), "{refused}");
    assert!(group.is_destination());
    let told = host.replicas.told();
    let there = told[0].partner_stopped.as_ref().unwrap();
    assert!(there.contains("on third, not here"), "{there}");
}

#[test]
fn a_copy_that_was_promoted_and_cannot_be_opened_overwrites_nobody_who_has_more() {
    let host = Host::new();
    host.join(|_| ()).unwrap();
    host.know(1, json!([partner("b:db", 2, "y"), partner("c:db", 3, "y")]), "");
    let group = host.replicas.group("db").unwrap();
    let State::Destination(copy) = group.state() else { panic!("a copy") };
    let promotes = |past: &[Objection]| {
        let others = Elsewhere { ahead: vec!["b:db".to_owned()], ..Elsewhere::default() };
        rt::block_on(failover::promote(&host.replicas, &group, &copy, 7, past, others)).unwrap().map(drop)
    };
    promotes(&[Objection::Alive]).unwrap_err();
    assert_eq!(host.partners(), known(&[("other:db", "y"), ("b:db", "y"), ("c:db", "y")]));
    // When the new source is opened, its volume turns out to belong to another group.
    let of_another = Membership { group: "other".into(), partnership: [9; 16] };
    host.replicas.member("vol1").unwrap().growth.set_membership(Some(of_another)).unwrap();
    let why = promotes(&[Objection::Alive, Objection::Resync]).unwrap_err();
    assert!(matches!(group.state(), State::Stopped(_)), "{why}");
    assert_eq!(host.partners(), known(&[("other:db", "y"), ("c:db", "y")]), "{why}");
}

#[test]
fn an_exchange_of_roles_that_cannot_be_written_down_names_no_successor() {
    let host = Host::new();
    host.join(|_| ()).unwrap();
    let group = host.replicas.group("db").unwrap();
    let State::Destination(copy) = group.state() else { panic!("a copy") };
    host.fails_over(&group, &copy, &[Objection::Alive, Objection::Resync]).unwrap();
    let State::Source(source) = group.state() else { panic!("a source") };
    rt::block_on(async {
        // What a new source records by itself.
        while group.config().list.count == 0 {
            rt::yield_now().await;
        }
    })
    .unwrap();
    fs::create_dir(host.dir.path().join("state/replica/.db.new")).unwrap();
    let switched = rt::block_on(group.hand_over(&host.replicas, &source, 0, "other:db", 8)).unwrap();
    let why = switched.unwrap_err();
    assert!(why.to_string().contains("the roles are unchanged"), "{why}");
    assert_eq!(group.successor(), "");
}

impl Host {
    /// A failover that overrides these objections.
    fn fails_over(&self, group: &Group, copy: &Destination, past: &[Objection]) -> Result<(), String> {
        let tried = rt::block_on(failover::take_over(&self.replicas, group, copy, 7, past)).unwrap();
        tried.map(drop).map_err(|e| e.to_string())
    }

    /// Sends a message, and leaves after polling this often for the answer.
    async fn ask_and_go(&self, message: &Value, looks: usize) {
        let message = serde_json::to_vec(message).unwrap();
        let mut asks = Box::pin(self.replicas.setup(&message));
        for _ in 0..looks {
            if futures_util::poll!(&mut asks).is_ready() {
                return;
            }
            rt::yield_now().await;
        }
    }

    /// Nothing is left of a group, and its volume is an ordinary one.
    async fn is_as_it_was(&self) -> bool {
        let front = self.replicas.member("vol1").unwrap().front.clone();
        let read = front.submit(BlockOp::Read { offset: 0, len: 512 });
        let is_open = matches!(futures_util::poll!(Box::pin(read)), std::task::Poll::Ready(Ok(_)));
        is_open && self.files().is_empty() && self.replicas.groups().is_empty()
    }
}

/// From one poll to more than needed.
fn looks() -> impl Iterator<Item = usize> {
    (0..14).map(|n| 1 << n)
}

#[test]
fn a_change_that_arrives_after_the_end_of_a_group_does_not_bring_its_file_back() {
    let host = Host::new();
    host.join(|_| ()).unwrap();
    let group = host.replicas.group("db").unwrap();
    group.change(&host.replicas, |config| config.epoch = 98).unwrap();
    host.ask(&json!({"do": "leave", "partnership": PARTNERSHIP})).unwrap();
    // A list of its source, for example.
    group.change(&host.replicas, |config| config.epoch = 99).unwrap_err();
    assert!(host.files().is_empty(), "{:?}", host.files());
}

#[test]
fn a_join_whose_connection_is_lost_is_carried_out_and_the_leave_that_follows_waits_for_it() {
    for looks in looks() {
        let host = Host::new();
        let leave = serde_json::to_vec(&json!({"do": "leave", "partnership": PARTNERSHIP})).unwrap();
        rt::block_on(async {
            host.ask_and_go(&Host::joins(), looks).await;
            assert!(matches!(host.replicas.setup(&leave).await, Tell::Done), "after {looks} looks");
            assert!(host.is_as_it_was().await, "after {looks} looks {:?} is left", host.files());
        })
        .unwrap();
    }
}

#[test]
fn a_leave_whose_connection_is_lost_is_carried_out() {
    for looks in looks() {
        let host = Host::new();
        host.join(|_| ()).unwrap();
        rt::block_on(async {
            host.ask_and_go(&json!({"do": "leave", "partnership": PARTNERSHIP}), looks).await;
            let left = async {
                while !host.is_as_it_was().await {
                    rt::yield_now().await;
                }
            };
            let left = rt::timeout(std::time::Duration::from_secs(60), left).await;
            assert!(left.is_ok(), "after {looks} looks {:?} is left", host.files());
        })
        .unwrap();
    }
}

#[test]
fn a_growth_whose_connection_is_lost_is_known_and_given_back() {
    for looks in looks() {
        let host = Host::new();
        host.join(|_| ()).unwrap();
        rt::block_on(async {
            host.ask_and_go(&json!({"do": "grow", "partnership": PARTNERSHIP, "sizes": [2 * MIB]}), looks)
                .await;
            rt::yield_now().await;
            while host.replicas.group("db").unwrap().take_turn("a look").is_err() {
                rt::yield_now().await;
            }
        })
        .unwrap();
        host.ask(&json!({"do": "leave", "partnership": PARTNERSHIP})).unwrap();
        assert_eq!(host.length("vol1"), MIB, "after {looks} looks");
    }
}

impl Host {
    /// Its answer about the partnership.
    fn part(&self) -> Part {
        let ask = serde_json::to_vec(&json!({"do": "holds", "partnership": PARTNERSHIP})).unwrap();
        match rt::block_on(self.replicas.setup(&ask)).unwrap() {
            Tell::Holds(holds) => holds.part,
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn a_server_that_was_told_that_a_partnership_is_over_says_so_and_another_one_does_not() {
    let host = Host::new();
    let leave = |volumes: Value| {
        host.ask(&json!({"do": "leave", "partnership": PARTNERSHIP, "volumes": volumes})).unwrap();
    };
    assert_eq!(host.part(), Part::Unknown, "it knows nothing, or was installed anew");
    host.join(|_| ()).unwrap();
    assert_eq!(host.part(), Part::Nothing);
    // A failed creation is taken back, and does not count as ended.
    leave(json!(["vol1"]));
    assert_eq!(host.part(), Part::Unknown);
    host.join(|_| ()).unwrap();
    leave(json!([]));
    assert_eq!(host.part(), Part::Ended);
    // It becomes a copy again, and is removed on this side.
    host.join(|_| ()).unwrap();
    let group = host.replicas.group("db").unwrap();
    rt::block_on(host.replicas.dissolve(&group, true)).unwrap().unwrap();
    assert_eq!(host.part(), Part::Unknown);
    // Later its source ends it, too.
    leave(json!([]));
    assert_eq!(host.part(), Part::Ended);
}

#[test]
fn a_leave_of_other_volumes_ends_nothing() {
    let host = Host::new();
    host.join(|_| ()).unwrap();
    host.ask(&json!({"do": "leave", "partnership": PARTNERSHIP, "volumes": ["vol2"]})).unwrap();
    assert!(host.is_destination("db"));
    host.ask(&json!({"do": "leave", "partnership": PARTNERSHIP, "volumes": ["vol1"]})).unwrap();
    assert_eq!(host.files(), [""; 0]);
}

#[test]
fn a_copy_that_follows_a_later_source_does_not_leave_for_an_earlier_one() {
    let host = Host::new();
    host.join(|_| ()).unwrap();
    let State::Destination(copy) = host.replicas.group("db").unwrap().state() else { panic!("a copy") };
    let control = |request| rt::block_on(copy.control(request)).unwrap();
    let eras = vec![Era { epoch: 5, tag: 1, after: 0 }];
    let (first, last, synchronous, adopt) = (1, 0, false, true);
    let hello = Hello { partnership: [0xab; 16], first, last, synchronous, adopt, sizes: vec![MIB], eras };
    let Response::Welcome(welcome) = control(Request::Hello(hello)) else { panic!("it is a copy") };
    let leave = |epoch: u64, volumes: Value| {
        let leave = json!({"do": "leave", "partnership": PARTNERSHIP, "volumes": volumes, "epoch": epoch});
        host.ask(&leave)
    };
    let refused = leave(4, json!([])).unwrap_err();
    assert!(refused.contains("follows the source of epoch 5 there, not that of epoch 4"), "{refused}");
    // The source has begun to copy to it: a join whose answer was lost is no longer taken back.
    let begin = Request::Begin { session: welcome.session, base: 0, sync: Sync::Initial };
    assert_eq!(control(begin), Response::Done);
    leave(0, json!(["vol1"])).unwrap();
    assert!(host.is_destination("db"));
    leave(5, json!([])).unwrap();
    assert!(host.files().is_empty() && host.part() == Part::Ended);
}

#[test]
fn a_group_that_cannot_be_forgotten_keeps_its_volumes_until_it_can() {
    let host = Host::new();
    host.join(|_| ()).unwrap();
    let in_the_way = host.dir.path().join("state/replica/db.members");
    fs::remove_file(&in_the_way).unwrap();
    fs::create_dir(&in_the_way).unwrap();
    let leave = json!({"do": "leave", "partnership": PARTNERSHIP});
    let refused = host.ask(&leave).unwrap_err();
    assert!(refused.contains("cannot remove the record"), "{refused}");
    let is_as_it_was = || rt::block_on(host.is_as_it_was()).unwrap();
    assert!(!is_as_it_was(), "a crash would bring the group back");
    fs::remove_dir(&in_the_way).unwrap();
    host.ask(&leave).unwrap();
    assert!(is_as_it_was());
}

#[test]
fn a_failover_that_waits_is_given_up_by_hanging_up_and_keeps_no_other_command_out() {
    let host = Host::new();
    host.join(|_| ()).unwrap();
    let failover = |past: &[Objection]| Command::Switch {
        group: "db".into(),
        to: None,
        failover: true,
        past: past.into(),
    };
    let (hung_up, stays) = (Stop::default(), Stop::default());
    rt::block_on(async {
        let waiting = host.replicas.command(failover(&[]), &hung_up);
        let mut waiting = std::pin::pin!(waiting);
        // Its source has not been silent for long enough yet.
        for _ in 0..100 {
            assert!(futures_util::poll!(&mut waiting).is_pending());
            rt::yield_now().await;
        }
        drop(host.replicas.group("db").unwrap().take_turn("another").expect("nobody is kept out"));
        hung_up.stop();
        let given_up = waiting.await.unwrap_err();
        assert!(given_up.to_string().contains("still a copy"), "{given_up}");
        assert!(host.is_destination("db"));

        // Forcing it ends another caller's wait.
        let waiting = host.replicas.command(failover(&[]), &stays);
        let mut waiting = std::pin::pin!(waiting);
        for _ in 0..100 {
            assert!(futures_util::poll!(&mut waiting).is_pending());
            rt::yield_now().await;
        }
        host.replicas.command(failover(&[Objection::Alive, Objection::Resync]), &stays).await.unwrap();
        let late = waiting.await.unwrap_err();
        assert!(late.to_string().contains("is the source on this host"), "{late}");
    })
    .unwrap();
}

#[test]
fn a_command_that_has_its_turn_is_named_to_others() {
    let host = Host::new();
    let turn = host.replicas.take_turn("`weft replica switch db`").unwrap();
    let refused = host.join(|_| ()).unwrap_err();
    assert!(refused.starts_with("`weft replica switch db` is running"), "{refused}");
    drop(turn);
    host.join(|_| ()).unwrap();
}

#[test]
fn a_group_whose_command_takes_long_keeps_no_other_group_from_its_failover() {
    let host = Host::new();
    host.join(|_| ()).unwrap();
    let other = |join: &mut Value| {
        join["partnership"] = json!("cd".repeat(16));
        join["group"] = json!("other");
        join["volumes"] = json!(["vol2"]);
    };
    host.join(other).unwrap();
    let failover = |name: &str| {
        let command = Command::Switch {
            group: name.into(),
            to: None,
            failover: true,
            past: vec![Objection::Alive, Objection::Resync],
        };
        rt::block_on(host.replicas.command(command, &Stop::default())).unwrap()
    };
    let db = host.replicas.group("db").unwrap();
    let _busy = db.take_turn("`weft replica resize db`").unwrap();
    let refused = failover("db").unwrap_err();
    assert!(refused.to_string().starts_with("`weft replica resize db` is running"), "{refused}");
    assert!(host.is_destination("db"));
    let resolve = Command::Resolve { group: "db".into(), keep_here: true, force: true };
    let refused = rt::block_on(host.replicas.command(resolve, &Stop::default())).unwrap().unwrap_err();
    assert!(refused.to_string().starts_with("`weft replica resize db` is running"), "{refused}");
    let done = failover("other").unwrap();
    assert!(matches!(done, Reply::Done(_)), "{done:?}");
    assert!(!host.is_destination("other"));
}
