//! House rules that the compiler does not check: room dependencies point down, `unsafe` stays in its rooms, every
//! file says what it is for, no file holds two ideas for long, and the files of a crate import each other in one
//! direction.

#[path = "house/imports.rs"]
mod imports;
#[path = "house/tokens.rs"]
mod tokens;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

/// Each room and the rooms that it may know. ARCHITECTURE.md draws this.
const ARROWS: &[(&str, &[&str])] = &[
    ("wire", &[]),
    ("machine", &[]),
    ("kerberos", &[]),
    ("ceph", &[]),
    ("rdma", &["wire", "machine"]),
    ("transport", &["wire", "machine", "rdma"]),
    ("store", &["wire", "machine", "ceph"]),
    ("smb", &["wire", "machine", "kerberos", "transport", "store"]),
    ("nfs", &["wire", "machine", "kerberos", "transport", "store"]),
    ("nbd", &["wire", "machine", "store"]),
    ("replica", &["wire", "machine", "store"]),
    ("announce", &["wire", "machine"]),
    ("load", &["wire", "machine", "rdma"]),
    ("sim", &["machine", "transport", "store", "smb", "nfs"]),
    (
        "weft",
        &[
            "wire",
            "machine",
            "kerberos",
            "rdma",
            "transport",
            "store",
            "smb",
            "nfs",
            "nbd",
            "replica",
            "announce",
            "load",
        ],
    ),
];

/// Where `unsafe` may be written.
const UNSAFE_ROOMS: &[&str] =
    &["crates/machine/", "crates/kerberos/", "crates/rdma/src/rnic/", "crates/ceph/src/native/"];

/// Code that processes bytes from the network. The attribute stands at each of these roots, so that new files inherit
/// it.
const ENGINES: &[&str] = &[
    "crates/wire/src/lib.rs",
    "crates/rdma/src/iwarp/mod.rs",
    "crates/rdma/src/shm/mod.rs",
    "crates/rdma/src/rnic/mod.rs",
    "crates/transport/src/lib.rs",
    "crates/nbd/src/lib.rs",
    "crates/nfs/src/lib.rs",
    "crates/smb/src/lib.rs",
    "crates/replica/src/lib.rs",
    "crates/announce/src/lib.rs",
    "crates/machine/src/shm.rs",
    "crates/load/src/verbs/end.rs",
    "crates/load/src/verbs/perf/exchange.rs",
    "crates/load/src/verbs/perf/server.rs",
    "crates/load/src/verbs/ping.rs",
    "crates/load/src/verbs/server.rs",
    "crates/weft/src/admin/endpoint.rs",
    "crates/weft/src/bench/secret.rs",
    "crates/weft/src/connect/probe.rs",
    "crates/weft/src/serve/replica/carrier.rs",
    "crates/weft/src/serve/replica/door.rs",
];

/// The crate without overflow checks in release builds: `machine` holds the data path, whose cost no test counts.
const UNCHECKED: &str = "machine";

/// The forbidden constructs: an index, and arithmetic without overflow handling.
const ENGINE_LINTS: [&str; 2] = ["clippy::indexing_slicing", "clippy::arithmetic_side_effects"];

/// Files that count as one, because their types hold each other: none of them is usable alone. No file is added for
/// convenience: a function that two files need, or a type that does not hold the others, goes below both.
const KNOTS: &[&[&str]] = &[
    // A client has states; a state has its owner, or is a delegation, which names its client and the state from which
    // it is recalled.
    &[
        "crates/nfs/src/server/v4/state/clients.rs",
        "crates/nfs/src/server/v4/state/delegation.rs",
        "crates/nfs/src/server/v4/state/owner.rs",
        "crates/nfs/src/server/v4/state/stateids.rs",
    ],
    // An open file sends requests through its session, which reopens it when the server has forgotten both.
    &["crates/nfs/src/client/v4/opened.rs", "crates/nfs/src/client/v4/session.rs"],
    // A session has opens. An open has an oplock or a lease, which is recalled by a notice to a session of its client.
    // It may be durable, and then refers to the table where it waits without a session; it refers to the table of
    // CREATEs, which finds it again; and it is owned by whoever takes it out of a table.
    &[
        "crates/smb/src/server/notices.rs",
        "crates/smb/src/server/ops/caching.rs",
        "crates/smb/src/server/ops/durable.rs",
        "crates/smb/src/server/ops/lease.rs",
        "crates/smb/src/server/ops/opens.rs",
        "crates/smb/src/server/ops/owned_open.rs",
        "crates/smb/src/server/ops/replay.rs",
        "crates/smb/src/server/session.rs",
    ],
];

/// Longer files should be checked for two ideas, and split.
const MAX_LINES: usize = 1000;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../..")
        .canonicalize()
        .expect("the workspace is two levels up")
}

fn rust_files(dir: &Path, out: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(dir).expect("a readable folder") {
        let path = entry.expect("a readable entry").path();
        if path.is_dir() {
            rust_files(&path, out);
        } else if path.extension().is_some_and(|e| e == "rs") {
            out.push(path);
        }
    }
}

fn sources() -> BTreeMap<String, String> {
    let root = root();
    let mut files = Vec::new();
    rust_files(&root.join("crates"), &mut files);
    files
        .into_iter()
        .map(|path| {
            let text = fs::read_to_string(&path).expect("UTF-8 source");
            let name = path.strip_prefix(&root).expect("under the root").display().to_string();
            (name, text)
        })
        .collect()
}

#[test]
fn arrows_point_down() {
    let rooms: Vec<&str> = ARROWS.iter().map(|(room, _)| *room).collect();
    for entry in fs::read_dir(root().join("crates")).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        assert!(rooms.contains(&name.as_str()), "crates/{name} has no place in the house: add it to ARROWS");
    }
    for (room, may_know) in ARROWS {
        let manifest = fs::read_to_string(root().join(format!("crates/{room}/Cargo.toml"))).unwrap();
        let dependencies = manifest.split("[dependencies]").nth(1).unwrap();
        let dependencies = dependencies.split("[dev-dependencies]").next().unwrap();
        for line in dependencies.lines() {
            if let Some(other) = line.strip_prefix("weft-").and_then(|l| l.split(['.', ' ', '=']).next()) {
                assert!(may_know.contains(&other), "crates/{room} must not know crates/{other}");
            }
        }
    }
}

#[test]
fn files_import_in_one_direction() {
    // A file in a circle can only be read, tested and changed together with the others. Shared code goes below them.
    let sources = sources();
    for (room, _) in ARROWS {
        let root_file = if *room == "weft" { "main.rs" } else { "lib.rs" };
        let mut imports = imports::imports(&sources, &format!("crates/{room}/src/{root_file}"));
        for knot in KNOTS {
            if !knot[0].starts_with(&format!("crates/{room}/")) {
                continue;
            }
            for file in *knot {
                assert!(
                    imports::circle_of(&imports, file, knot),
                    "{file} is in no circle with {knot:?}: untie it"
                );
            }
            imports = imports::tie(&imports, knot);
        }
        if let Some(cycle) = imports::cycle(&imports) {
            let ends = cycle.iter().zip(cycle.iter().cycle().skip(1));
            let steps: Vec<_> = ends
                .map(|(file, other)| format!("{file} imports {other} by {}", imports[*file][*other]))
                .collect();
            panic!("crates/{room} has files that import each other in a circle:\n{}", steps.join("\n"));
        }
    }
}

#[test]
fn unsafe_stays_in_its_rooms() {
    for (name, text) in sources() {
        if UNSAFE_ROOMS.iter().any(|room| name.starts_with(room)) || name == "crates/weft/tests/house.rs" {
            continue;
        }
        let uses = text.lines().any(|line| {
            let code = line.split("//").next().unwrap_or("");
            code.contains("unsafe {") || code.contains("unsafe fn") || code.contains("unsafe impl")
        });
        assert!(!uses, "{name} uses unsafe outside its rooms");
    }
    for (room, _) in ARROWS.iter().filter(|(room, _)| !["machine", "kerberos"].contains(room)) {
        let root_file = if *room == "weft" { "main.rs" } else { "lib.rs" };
        let text = fs::read_to_string(root().join(format!("crates/{room}/src/{root_file}"))).unwrap();
        // `forbid` allows no exception, so a crate with one unsafe room uses `deny`, and allows it in one place.
        let (rule, rooms) = if ["rdma", "ceph"].contains(room) {
            ("#![deny(unsafe_code)]", 1)
        } else {
            ("#![forbid(unsafe_code)]", 0)
        };
        assert!(text.contains(rule), "crates/{room} lacks {rule}");
        assert_eq!(
            text.matches("allow(unsafe_code)").count(),
            rooms,
            "crates/{room} allows unsafe code elsewhere"
        );
    }
}

#[test]
fn nothing_from_the_network_reaches_an_index() {
    let sources = sources();
    let [index, sum] = ENGINE_LINTS;
    let rule = format!("\n#![cfg_attr(not(test), deny({index}, {sum}))]\n");
    let cargo = fs::read_to_string(root().join("Cargo.toml")).unwrap();
    for engine in ENGINES {
        assert!(sources.get(*engine).is_some_and(|text| text.contains(&rule)), "{engine} lacks{rule}");
        let name = engine.split('/').nth(1).unwrap();
        if name == UNCHECKED {
            continue;
        }
        let package = if name == "weft" { name.to_owned() } else { format!("weft-{name}") };
        let checked = format!("[profile.release.package.{package}]\noverflow-checks = true\n");
        assert!(cargo.contains(&checked), "Cargo.toml lacks\n{checked}");
    }
    // An exception applies to one item and gives its reason, never to a file or module.
    let folder = |root: &'static str| {
        let of_folder = root.strip_suffix("lib.rs").or(root.strip_suffix("mod.rs"));
        of_folder.or(root.strip_suffix(".rs")).unwrap_or(root)
    };
    let folders: Vec<&str> = ENGINES.iter().copied().map(folder).collect();
    for (name, text) in &sources {
        if !folders.iter().any(|folder| name.starts_with(folder)) {
            continue;
        }
        for lint in ENGINE_LINTS {
            for (at, _) in text.match_indices(lint) {
                let (before, behind) = text.split_at(at);
                let attribute = &before[before.rfind('#').unwrap()..];
                if attribute.starts_with("#![cfg_attr(not(test), deny(") {
                    continue;
                }
                let inner = attribute.starts_with("#![");
                let item = behind.split_once("]\n").unwrap().1.trim_start();
                let module = item
                    .lines()
                    .next()
                    .is_some_and(|line| line.contains("mod ") && line.ends_with(['{', ';']));
                let reason = behind.split_once("]\n").unwrap().0.contains("reason = ");
                assert!(
                    !inner && !module && reason,
                    "{name} lifts {lint} for more than an item, or without a reason"
                );
            }
        }
    }
}

#[test]
fn every_file_says_what_it_is_for() {
    for (name, text) in sources() {
        // tests.rs belongs to the file that it tests.
        if name.ends_with("/tests.rs") || name.contains("/tests/") {
            continue;
        }
        assert!(text.starts_with("//!"), "{name} has no module doc");
    }
}

#[test]
fn no_file_holds_two_ideas_for_long() {
    for (name, text) in sources() {
        let lines = text.lines().count();
        assert!(lines <= MAX_LINES, "{name} has {lines} lines: split it, tests into tests.rs");
    }
}

/// Files that no user names as a command's output: state, and a capture, which grows while it is read.
const OWN_FILES: [&str; 2] = ["crates/weft/src/serve.rs", "crates/weft/src/serve/replica/config.rs"];

#[test]
fn commands_write_files_in_one_place_only() {
    // `local` knows the kinds of names (-, a pipe, a link) and the metadata to keep. Code that writes by itself
    // misses some of that.
    let ways =
        ["fs::write(", "File::create", ".create(true)", ".create_new(true)", "fs::rename(", "fs::copy("];
    for (name, text) in sources() {
        let own = name == "crates/weft/src/local.rs" || OWN_FILES.contains(&name.as_str());
        if !name.starts_with("crates/weft/src/") || name.contains("/tests") || own {
            continue;
        }
        let code = text.split("#[cfg(test)]\nmod tests").next().unwrap();
        for way in ways {
            assert!(!code.contains(way), "{name} writes a file by {way}: crate::local does that");
        }
    }
}

/// Code that copies folders: opening a path would follow links created after the folder was listed.
const BELOW_FOLDERS: [&str; 3] =
    ["crates/weft/src/sync.rs", "crates/weft/src/sync/", "crates/weft/src/transfer.rs"];

#[test]
fn copies_of_folders_open_no_paths() {
    let ways = [
        "std::fs",
        " fs::",
        ".exists()",
        ".metadata()",
        ".read_dir()",
        "File::open",
        "Destination::of",
        "CWD",
    ];
    for (name, text) in sources() {
        if !BELOW_FOLDERS.iter().any(|place| name.starts_with(place)) {
            continue;
        }
        let code = text.split("#[cfg(test)]\nmod tests").next().unwrap();
        for way in ways {
            assert!(!code.contains(way), "{name} reaches a file by {way}: local::Folder does that");
        }
    }
}

#[test]
fn random_numbers_come_from_one_place_only() {
    // So that a run can be repeated by giving that one place its numbers.
    for (name, text) in sources() {
        if name == "crates/machine/src/random.rs" || name == "crates/weft/tests/house.rs" {
            continue;
        }
        assert!(!text.contains("getrandom"), "{name} asks the system for random numbers itself");
    }
}

/// Crates that a simulation runs as they are: every answer of a clock in them must be the simulation's.
const SIMULATED: [&str; 8] = ["wire", "store", "smb", "nfs", "nbd", "replica", "transport", "rdma"];

/// Files of them that ask the system's clock nevertheless, and why.
const OWN_CLOCKS: [(&str, &str); 1] =
    [("crates/smb/src/crypto/engine.rs", "it measures how fast this processor encrypts, once in a process")];

#[test]
fn time_comes_from_one_place_only() {
    // `machine::rt::now`, `clock::instant` and `clock::wall` answer with the simulation's time where one runs.
    let asks = |text: &str| {
        let code = text.split("#[cfg(test)]\nmod tests").next().unwrap_or("");
        ["Instant::now", "SystemTime::now", ".elapsed()"].into_iter().find(|way| code.contains(way))
    };
    let sources = sources();
    for (name, text) in &sources {
        let simulated = SIMULATED.iter().any(|room| name.starts_with(&format!("crates/{room}/src/")));
        if !simulated || name.ends_with("/tests.rs") || name.contains("/tests/") {
            continue;
        }
        let excepted = OWN_CLOCKS.iter().any(|(file, _)| file == name);
        match asks(text) {
            Some(way) if !excepted => {
                panic!("{name} asks the system's clock by {way}: machine::clock does that")
            }
            None if excepted => panic!("{name} asks no clock any more: take it from OWN_CLOCKS"),
            _ => {}
        }
    }
}

#[test]
fn nothing_but_the_content_of_files_is_printed_as_it_is() {
    // `out` makes printed text harmless. Its type for files, and standard output itself, do not.
    let content = ["crates/weft/src/out.rs", "crates/weft/src/cat.rs", "crates/weft/src/local.rs"];
    for (name, text) in sources() {
        if name.starts_with("crates/weft/src/") && !content.contains(&name.as_str()) {
            assert!(
                !text.contains("FileToStdout"),
                "{name} prints what it is given: only files are printed so"
            );
        }
    }
}

#[test]
fn payload_is_copied_in_one_place_only() {
    // Payload moves by machine::buf::copy or Window::place, which count. A raw copy elsewhere would escape the
    // counter.
    for (name, text) in sources() {
        if name.starts_with("crates/machine/") || name == "crates/weft/tests/house.rs" {
            continue;
        }
        assert!(!text.contains("copy_nonoverlapping"), "{name} copies memory behind the counter's back");
    }
}
