use std::time::Duration;

use weft_store::rules::{Export, Flavor, Ports, Protection, Squash};

use super::*;
use crate::config::{CAPTURE_BYTES, CertificateConfig};

fn parsed(text: &str) -> ServeConfig {
    parse(Path::new("/etc/weft/weft.toml"), text).unwrap_or_else(|e| panic!("{e}"))
}

fn refused(text: &str) -> String {
    parse(Path::new("weft.toml"), text).expect_err(text).to_string()
}

/// The first error of a file that can be read and not served.
fn unserved(text: &str) -> String {
    parsed(text).check().err().unwrap_or_else(|| panic!("{text} is not refused")).to_string()
}

#[test]
fn a_file_sets_what_it_says_and_nothing_else() {
    let config = parsed(
        r#"
user = "alice"
state_dir = "state"

[listeners]
addresses = ["127.0.0.1", "localhost"]
smb_port = 0
nfs_port = 2049

[limits]
buffers = "256M"
spin = "2ms"

[tls.nfs]
certificate = "nfs.pem"
key = "/keys/nfs.key"

[rdma]
providers = ["shm"]
capture = { file = "/tmp/x.pcapng" }

[volumes]
vol1 = { read_only = true }
vol2 = {}

[shares.projects]
path = "../srv/projects"
read_only = true
dfs_links = { "a/b" = ["//one/x", "//two/y/z"] }

[shares.projects.nfs]
squash = "all_squash"
anonuid = 1000
net = ["192.0.2.0/24", "::1"]
sec = ["sys"]
xprtsec = "tls"
secure = false
async = true

[shares."my files"]
ram = "1G"
"#,
    );
    assert_eq!(config.user.as_deref(), Some("alice"));
    assert_eq!(config.state_dir.as_deref(), Some(Path::new("/etc/weft/state")));
    assert_eq!((config.listeners.smb_port, config.listeners.nfs_port), (0, Some(2049)));
    assert_eq!(config.listeners.smb_direct_port, ServeConfig::default().listeners.smb_direct_port);
    assert_eq!(config.listeners.addresses.len(), 2);
    assert_eq!((config.limits.buffers_bytes, config.limits.spin), (256 << 20, Duration::from_millis(2)));
    let files = CertificateConfig {
        certificate: "/etc/weft/nfs.pem".into(),
        key: "/keys/nfs.key".into(),
        clients: None,
    };
    assert_eq!((config.tls.nfs, config.tls.nbd), (Some(files), None));
    assert_eq!(config.rdma.capture.unwrap().limit_bytes, CAPTURE_BYTES);
    let volumes: Vec<_> = config.volumes.iter().map(|v| (v.name.as_str(), v.read_only)).collect();
    assert_eq!(volumes, [("vol1", true), ("vol2", false)]);
    // In the order of the file.
    let [projects, files] = &config.shares[..] else { panic!("two shares") };
    assert_eq!((projects.name.as_str(), files.name.as_str()), ("projects", "my files"));
    assert_eq!(projects.source, ShareSource::Folder("/etc/weft/../srv/projects".into()));
    assert!(projects.read_only && !projects.encrypt && !files.read_only && files.nfs.is_none());
    assert_eq!(files.source, ShareSource::Ram { size_bytes: 1 << 30 });
    let export = Export {
        read_only: false,
        squash: Some(Squash::All),
        anonymous: (Some(1000), None),
        networks: vec!["192.0.2.0/24".parse().unwrap(), "::1".parse().unwrap()],
        flavors: vec![Flavor::Sys],
        protection: Protection::Tls,
        ports: Some(Ports::Any),
        asynchronous: true,
    };
    assert_eq!(projects.nfs, Some(export));
    let [link] = &projects.dfs_links[..] else { panic!("one link") };
    assert_eq!((link.root(), link.path()), ("projects", "a/b".into()));
    assert_eq!(link.targets().collect::<Vec<_>>(), ["//one/x", "//two/y/z"]);
}

#[test]
fn an_unknown_key_is_named_with_the_nearest_one() {
    for (text, says) in [
        (
            "[listeners]\nsmb_prot = 1\n",
            "weft.toml:2:1: listeners.smb_prot: unknown key; did you mean listeners.smb_port?",
        ),
        ("[listener]\n", "weft.toml:1:2: listener: unknown key; did you mean listeners?"),
        (
            "[shares.a]\nram = \"1M\"\nreadonly = true\n",
            "weft.toml:3:1: shares.a.readonly: unknown key; did you mean shares.a.read_only?",
        ),
        ("[shares.a]\nram = \"1M\"\nnfs = { ro = true }\n", "weft.toml:3:9: shares.a.nfs.ro: unknown key"),
        // The name of the option.
        ("[listeners]\nsmbd-port = 1\n", "did you mean listeners.smb_direct_port?"),
        // A key of another table.
        (
            "spin = \"1ms\"\n",
            "weft.toml:1:1: spin: unknown key here; [limits] has it: did you mean limits.spin?",
        ),
        ("[limits]\nstate_dir = \"/s\"\n", "the top of the file has it: did you mean state_dir?"),
        // Although a key of this table is similar.
        (
            "[shares.a]\nram = \"1M\"\ncrc = \"always\"\n",
            "shares.a.crc: unknown key here; [rdma] has it: did you mean rdma.crc?",
        ),
        (
            "[shares.a]\nram = \"1M\"\nnfs = { quota = \"1G\" }\n",
            "shares.a.nfs.quota: unknown key here; [shares.a] has it: did you mean shares.a.quota?",
        ),
        (
            "read_only = true\n",
            "[volumes.NAME] and [shares.NAME] and [shares.NAME.nfs] have it: did you mean volumes.NAME.read_only or \
             shares.NAME.read_only or shares.NAME.nfs.read_only?",
        ),
        ("[capture]\nfile = \"x\"\n", "[rdma] has it: did you mean rdma.capture?"),
        ("[shares.a]\nram = \"1M\"\nRead-Only = true\n", "did you mean shares.a.read_only?"),
        (
            "[limits]\nzzzz = 1\n",
            "weft.toml:2:1: limits.zzzz: unknown key; the keys of this table are buffers, cores, pin, spin, congestion",
        ),
        ("[limits]\n\"\\u001b[31m\" = 1\n", "weft.toml:2:1: limits.\"\\u001B[31m\": unknown key"),
        // The opposite of a key.
        (
            "[nfs]\nno_root_squash = true\n",
            "nfs.no_root_squash: unknown key; did you mean nfs.root_squash, whose sense is reversed? Write nfs.root_squash = false",
        ),
        (
            "[shares.a]\nram = \"1M\"\nnfs = { no_root_squash = true }\n",
            "did you mean shares.a.nfs.squash = \"no_root_squash\"?",
        ),
        ("[shares.a]\nram = \"1M\"\nnfs.insecure = true\n", "Write shares.a.nfs.secure = false"),
        (
            "password = \"secret\"\n",
            "password: passwords are not part of the configuration: set WEFT_PASSWORD",
        ),
    ] {
        let refused = refused(text);
        assert!(refused.contains(says), "{says}: {refused}");
    }
}

#[test]
fn a_value_that_a_key_does_not_take_is_refused_with_what_to_write() {
    for (text, says) in [
        ("[limits]\npin = \"yes\"\n", "weft.toml:2:7: limits.pin: write true or false, not a string"),
        ("[limits]\ncores = true\n", "weft.toml:2:9: limits.cores: write a number, not a boolean"),
        (
            "[limits]\nbuffers = 1\n",
            "limits.buffers: write a size in quotes, such as \"256M\", not an integer",
        ),
        ("[limits]\nbuffers = \"1X\"\n", "weft.toml:2:11: limits.buffers: \"1X\": unknown unit"),
        ("[limits]\nspin = \"1d\"\n", "limits.spin: \"1d\": write a whole number with us, ms, s, min or h"),
        ("[limits]\nspin = \"us\"\n", "limits.spin: \"us\": write a whole number with us, ms, s, min or h"),
        ("[limits]\nspin = \"1.5s\"\n", "with us, ms, s, min or h, such as 1500ms"),
        ("[limits]\nspin = \"99999999999999999999s\"\n", "write a whole number with us, ms, s, min or h"),
        (
            "[listeners]\nsmb_port = 65536\n",
            "weft.toml:2:12: listeners.smb_port: write a number from 0 to 65535, not 65536",
        ),
        ("[listeners]\nsmb_port = -1\n", "write a number from 0 to 65535, not -1"),
        ("[limits]\ncores = -1\n", "limits.cores: write a number from 1 to 1024, not -1"),
        ("[listeners]\naddresses = []\n", "listeners.addresses: the array is empty"),
        ("[rdma]\nproviders = []\n", "weft.toml:2:13: rdma.providers: the array is empty"),
        (
            "[tls.nbd]\n",
            "weft.toml:1:6: tls.nbd: the table is empty: add certificate and key, or remove the table",
        ),
        ("tls.nfs = {}\n", "tls.nfs: the table is empty: add certificate and key, or remove the table"),
        (
            "[shares.a]\npath = \"~/data\"\n",
            "weft.toml:2:8: shares.a.path: write the whole path; ~ is not expanded",
        ),
        ("state_dir = \"~\"\n", "state_dir: write the whole path; ~ is not expanded"),
        ("[listeners]\nsmb_port = \"445\"\n", "listeners.smb_port: write a port from 0 to 65535"),
        (
            "[listeners]\naddresses = [\"192.0.2.1:445\"]\n",
            "listeners.addresses: \"192.0.2.1:445\": listen addresses have no port: write \"192.0.2.1\", and listeners.smb_port = 445",
        ),
        (
            "[listeners]\naddresses = [\"192.0.2.1,192.0.2.2\"]\n",
            "write each address as an element of the array",
        ),
        (
            "[rdma]\ncrc = \"never\"\n",
            "weft.toml:2:7: rdma.crc: write \"always\" or \"asked\", not \"never\"",
        ),
        // The element, not the array.
        (
            "[listeners]\naddresses = [\"::1\",\n  \"a b\"]\n",
            "weft.toml:3:3: listeners.addresses: \"a b\": no address",
        ),
        (
            "[listeners]\naddresses = \"::1\"\n",
            "write an array, each element an address or a name of this host, not a string",
        ),
        ("user = \"\"\n", "weft.toml:1:8: user: the string is empty"),
        (
            "[smb]\nsigning = \"Required\"\n",
            "weft.toml:2:11: smb.signing: write \"auto\", \"required\" or \"enabled\", not \"Required\"",
        ),
        ("[shares.a]\nvolumes = false\n", "weft.toml:2:11: shares.a.volumes: write true, or remove the key"),
        (
            "[shares.a]\nram = \"1M\"\nnfs.net = [\"192.0.2.1/24\"]\n",
            "weft.toml:3:12: shares.a.nfs.net: \"192.0.2.1/24\": ",
        ),
        (
            "[shares.a]\nram = \"1M\"\ndfs_links = { x = [\"nas\"] }\n",
            "weft.toml:3:19: shares.a.dfs_links: \"x\": \"nas\" is not a valid link target",
        ),
        (
            "[shares.a]\nram = \"1M\"\ndfs_links = { x = [] }\n",
            "shares.a.dfs_links: \"x\": the link has no target",
        ),
        ("[[shares]]\nname = \"a\"\n", "shares: write a table, such as [shares.NAME], not an array"),
        (
            "volumes = [\"vol1\"]\n",
            "weft.toml:1:11: volumes: write a table, such as NAME = {} in [volumes], not an array",
        ),
        (
            "[shares]\na = \"/srv\"\n",
            "weft.toml:2:5: shares.a: write a table, such as [shares.NAME], not a string",
        ),
        ("[shares.a]\n", "weft.toml:1:9: shares.a: the share has no files: add path, ram or volumes"),
        (
            "[shares.a]\nram = \"1M\"\npath = \"/srv\"\n",
            "weft.toml:3:1: shares.a.path: a share has only one of path, ram and volumes: remove the others",
        ),
    ] {
        let refused = refused(text);
        assert!(refused.contains(says), "{says}: {refused}");
        assert!(!refused.contains("--"), "{refused}");
    }
}

#[test]
fn every_mistake_is_reported_in_the_order_of_the_file() {
    let text = "[zzzz]\n[limits]\npin = 1\ncores = \"two\"\n[shares.a]\n";
    let refused = refused(text);
    let lines: Vec<&str> = refused.lines().map(|line| line.split(' ').next().unwrap()).collect();
    assert_eq!(lines, ["weft.toml:1:2:", "weft.toml:3:7:", "weft.toml:4:9:", "weft.toml:5:9:"], "{refused}");
    // In one array, too.
    let text = "[listeners]\naddresses = [\"a b\", \"::1\",\n \"c d\"]\n\
                [shares.a]\nram = \"1M\"\ndfs_links = { x = [\"nas\"], y = [] }\n";
    let found = self::refused(text);
    let lines: Vec<&str> = found.lines().map(|line| line.split(' ').next().unwrap()).collect();
    assert_eq!(lines, ["weft.toml:2:14:", "weft.toml:3:2:", "weft.toml:6:19:", "weft.toml:6:32:"], "{found}");
    let many: String = (0..30).map(|n| format!("zzzz{n} = 1\n")).collect();
    let found = self::refused(&many);
    assert_eq!((found.lines().count(), found.lines().last()), (21, Some("and 10 more")), "{found}");
    let two = "a = \n[limits\npin = true\n";
    let refused = super::parse(Path::new("weft.toml"), two).unwrap_err();
    assert!(
        refused.to_string().lines().count() >= 2 && refused.to_string().starts_with("weft.toml:1:"),
        "{refused}"
    );
}

#[test]
fn a_key_that_is_given_twice_is_refused() {
    for (text, says) in [
        ("[limits]\npin = true\npin = false\n", "weft.toml:3:1: pin: given twice"),
        ("[limits]\npin = true\n[limits]\ncores = 1\n", "weft.toml:3:"),
        ("[shares.a]\nram = \"1M\"\n[shares.a]\npath = \"/srv\"\n", "weft.toml:3:"),
    ] {
        let refused = refused(text);
        assert!(refused.contains(says) && refused.contains("given twice"), "{says}: {refused}");
    }
}

#[test]
fn what_is_no_toml_and_no_text_is_refused_with_its_place() {
    assert!(refused("[limits\n").starts_with("weft.toml:1:"));
    assert!(refused("x = 2026-13-01\n").starts_with("weft.toml:1:"));
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("weft.toml");
    let refused = |bytes: &[u8]| {
        std::fs::write(&path, bytes).unwrap();
        read(&path).unwrap_err().to_string()
    };
    let said = refused(b"[limits]\ncongestion = \"\xff\"\n");
    assert!(said.ends_with("weft.toml:2:15: not UTF-8: save the file as UTF-8"), "{said}");
    let limit = usize::try_from(MAX_BYTES).unwrap();
    let said = refused(&vec![b'#'; limit + 1]);
    assert!(said.ends_with("weft.toml: the file is larger than the limit of 1048576 bytes"), "{said}");
    std::fs::write(&path, vec![b'#'; limit]).unwrap();
    assert!(read(&path).is_ok());
    // A folder can be opened and not read.
    let said = read(folder.path()).unwrap_err().to_string();
    assert!(said.contains("cannot read the configuration"), "{said}");
    // Deeper than the parser goes.
    let deep = format!("x = {}", "[".repeat(10_000));
    assert!(parse(Path::new("weft.toml"), &deep).is_err());
}

#[test]
fn a_file_without_shares_can_be_served_and_warns() {
    let config = parsed("[listeners]\nsmb_port = 445\n");
    let warnings: Vec<_> = config.warnings(&config.look()).iter().map(ToString::to_string).collect();
    assert_eq!(
        warnings,
        [
            "/etc/weft/weft.toml: nothing to serve yet: add a share ([shares.NAME], or weft share add) or a volume ([volumes])"
        ]
    );
    // The ports of the first share.
    assert!(config.check().is_ok_and(|plan| plan.serves_files()));
    let served = parsed("[shares.a]\nram = \"1M\"\n");
    assert!(served.warnings(&served.look()).is_empty());
    assert!(unserved("[listeners]\nnbd_port = 0\n").contains("needs a volume"));
}

#[test]
fn a_rule_between_keys_is_reported_with_the_place_of_the_key() {
    let ram = "[shares.a]\nram = \"1M\"\n";
    for (text, says) in [
        (
            format!("{ram}snapshots = \"%F\"\n"),
            "/etc/weft/weft.toml:3:1: shares.a.snapshots: a ramdisk has none",
        ),
        (
            format!("{ram}quota = \"1M\"\n"),
            "/etc/weft/weft.toml:3:1: shares.a.quota: the size of a ramdisk is its limit",
        ),
        (
            format!("[limits]\ncores = 0\n{ram}"),
            "weft.toml:2:1: limits.cores = 0: write a number from 1 to 1024",
        ),
        (
            format!("[limits]\nbuffers = \"1M\"\n{ram}"),
            "weft.toml:2:1: limits.buffers = \"1M\": write a size from 64M to ",
        ),
        (
            format!("[limits]\nspin = \"2s\"\n{ram}"),
            "weft.toml:2:1: limits.spin = \"2s\": write a duration of at most 1s",
        ),
        (
            format!("[listeners]\nmountd_port = 0\n{ram}"),
            "weft.toml:2:1: listeners.mountd_port needs NFS: give listeners.nfs_port or",
        ),
        (
            format!("{ram}[shares.A]\nram = \"1M\"\n"),
            "weft.toml:4:1: shares.A.ram: two shares are named \"A\"",
        ),
        (
            "[shares.a]\npath = \"/none/x\"\n".into(),
            "weft.toml:2:1: shares.a.path: cannot serve /none/x: no such folder",
        ),
        (
            format!("[tls.nfs]\ncertificate = \"x\"\n[listeners]\nnfs_port = 0\n{ram}"),
            "weft.toml:2:1: tls.nfs.certificate needs its private key: give tls.nfs.key",
        ),
        (
            format!("[tls.nfs]\nkey = \"x\"\n[listeners]\nnfs_port = 0\n{ram}"),
            "weft.toml:2:1: tls.nfs.key needs a certificate: give tls.nfs.certificate",
        ),
        (
            format!("[rdma.capture]\nlimit = \"1M\"\n{ram}"),
            "weft.toml:2:1: rdma.capture.limit needs a file: give rdma.capture.file",
        ),
        (
            format!("{ram}[shares.a.nfs]\nxprtsec = \"tls\"\n[listeners]\nnfs_port = 0\n"),
            "weft.toml:4:1: shares.a.nfs.xprtsec needs a certificate",
        ),
        (
            "[volumes]\nv = {}\n".into(),
            "weft.toml:1:2: volumes needs a way to serve them: give listeners.nbd_port, listeners.nbd_socket or replication.enabled",
        ),
        (
            format!("[listeners]\naddresses = [\"192.0.2.1\"]\n{ram}"),
            "weft.toml:2:1: listeners.addresses: cannot listen on 192.0.2.1: this host does not have that address",
        ),
        (
            format!("state_dir = \"/dev/null\"\n{ram}"),
            "weft.toml:1:1: state_dir: /dev/null is a file: give a folder",
        ),
        (
            "state_dir = \"/none\"\n[listeners]\nnbd_port = 0\n[volumes]\nv = {}\n".into(),
            "weft.toml:5:1: volumes.v: ",
        ),
        (
            format!("{ram}dfs_links = {{ x = [\"//h/s\"], \"x/y\" = [\"//h/s\"] }}\n"),
            "weft.toml:3:1: shares.a.dfs_links: the DFS links a/x and a/x/y conflict",
        ),
        (
            "[shares.\"..\"]\nram = \"1M\"\n".into(),
            "weft.toml:2:1: shares.\"..\".ram: \"..\" cannot name a share",
        ),
        (
            "[shares.data]\npath = \"/\"\nsnapshots = \"daily\"\n".into(),
            "weft.toml:3:1: shares.data.snapshots: exactly one component",
        ),
        (
            format!("[listeners]\nsmb_port = 5445\n{ram}"),
            "listeners.smb_port and listeners.smb_direct_port are both 5445",
        ),
    ] {
        let unserved = unserved(&text);
        assert!(unserved.contains(says), "{says}: {unserved}");
        assert!(!unserved.contains("--"), "{unserved}");
    }
    let all =
        parsed(&format!("[limits]\ncores = 0\nspin = \"2s\"\n{ram}encrypt = true\nsnapshots = \"%F\"\n"));
    let lines: Vec<String> = all.errors(&all.look()).map(|error| error.to_string()).collect();
    let [cores, spin, snapshots] = &lines[..] else { panic!("{lines:?}") };
    assert!(cores.contains(":2:1:") && spin.contains(":3:1:") && snapshots.contains(":7:1:"), "{lines:?}");
}

/// A private key may stand where its path belongs.
#[test]
fn a_text_that_is_no_path_is_not_shown() {
    let pem = "-----BEGIN PRIVATE KEY-----\\nMC4CAQAw\\n-----END PRIVATE KEY-----\\n";
    for value in [pem, "-----BEGIN MC4CAQAw", "a\\u0000MC4CAQAw", "MC4CAQAw\\n"] {
        let found = refused(&format!("[tls.nbd]\ncertificate = \"/c\"\nkey = \"{value}\"\n"));
        assert_eq!(found, "weft.toml:3:7: tls.nbd.key: write the path of a file, not its content");
    }
}

/// Each error had a copy of all positions: 4000 missing folders took gigabytes.
#[test]
fn many_errors_share_the_positions_of_the_file() {
    let shares = (0..500).map(|n| format!("[shares.s{n}]\npath = \"/none/{n}\"\n"));
    let config = parsed(&shares.collect::<String>());
    let errors: Vec<_> = config.errors(&config.look()).collect();
    assert_eq!((errors.len(), Arc::strong_count(&config.sources)), (500, 501));
    assert!(errors[499].to_string().contains("weft.toml:1000:1: shares.s499.path: "), "{}", errors[499]);
}

#[test]
fn a_file_that_others_can_change_is_found() {
    use std::os::unix::fs::PermissionsExt;
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("weft.toml");
    std::fs::write(&path, "").unwrap();
    let judged = |mode: u32, user: Uid| {
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
        guarded(&path, &path.metadata().unwrap(), user).map_err(|unguarded| unguarded.to_string())
    };
    let own = geteuid();
    let chmod = format!("it can be written by other users: chmod go-w {}", path.display());
    for (mode, is_guarded) in [(0o644, true), (0o755, true), (0o600, true), (0o664, false), (0o646, false)] {
        assert_eq!(judged(mode, own), if is_guarded { Ok(()) } else { Err(chmod.clone()) }, "{mode:o}");
    }
    // A file of root is root's alone, whoever reads it; that of a third user is not.
    let other = Uid::from_raw(own.as_raw() + 1);
    match own.is_root() {
        true => assert_eq!(judged(0o644, other), Ok(())),
        false => assert!(judged(0o644, other).unwrap_err().contains(": chown ")),
    }
    assert!(guarded(Path::new("/dev/null"), &Path::new("/dev/null").metadata().unwrap(), own).is_ok());
}

/// A folder with `state`, `open` and `open/secret`.
fn folders() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    for name in ["state", "open/secret"] {
        std::fs::create_dir_all(folder.path().join(name)).unwrap();
    }
    folder
}

#[test]
fn what_clients_must_not_reach_is_in_no_share() {
    let folder = folders();
    let path = folder.path().join("weft.toml");
    for file in ["open/key", "open/secret/keytab", "clients"] {
        std::fs::write(folder.path().join(file), "").unwrap();
    }
    std::os::unix::fs::symlink(folder.path().join("clients"), folder.path().join("open/clients")).unwrap();
    let check = |text: &str| super::parse(&path, text).unwrap_or_else(|e| panic!("{e}")).check();
    let open = "[shares.open]\npath = \"open\"\n";
    let tls = |key: &str, clients: &str| {
        format!(
            "[listeners]\nnfs_port = 0\n[tls.nfs]\ncertificate = \"c\"\nkey = \"{key}\"\nclients = \"{clients}\"\n"
        )
    };
    for (text, says) in [
        (format!("state_dir = \"open\"\n{open}"), "weft.toml:1:1: state_dir: "),
        // It does not exist yet.
        (format!("state_dir = \"open/new/state\"\n{open}"), "password hashes in it: choose another folder"),
        (format!("smb.keytab = \"open/secret/keytab\"\n{open}"), ":1:5: smb.keytab: "),
        (format!("{}{open}", tls("open/key", "clients")), ":5:1: tls.nfs.key: "),
        // The link could be replaced.
        (format!("{}{open}", tls("state/key", "open/clients")), "add an authority of their own"),
        (format!("rdma.capture.file = \"open/x.pcap\"\n{open}"), "rdma.capture.file: "),
        ("state_dir = \"state\"\n[shares.all]\npath = \".\"\nread_only = true\n".into(), ":1:1: state_dir: "),
        ("state_dir = \"/none\"\n[shares.all]\npath = \".\"\n".into(), ":3:1: shares.all.path: "),
    ] {
        let said = check(&text).err().unwrap_or_else(|| panic!("{text}")).to_string();
        assert!(said.contains(says) && said.contains("whose clients can reach it"), "{says}: {said}");
    }
    let read_only = "state_dir = \"/none\"\n[shares.all]\npath = \".\"\nread_only = true\n";
    for text in [read_only.to_owned(), format!("state_dir = \"state\"\n{open}")] {
        assert!(check(&text).is_ok(), "{text}");
    }
}

#[test]
fn a_share_that_bypasses_the_rules_of_another_is_named() {
    let folder = folders();
    let path = folder.path().join("weft.toml");
    let warnings = |text: &str| -> Vec<String> {
        let config = super::parse(&path, text).unwrap_or_else(|e| panic!("{e}"));
        config.warnings(&config.look()).iter().map(ToString::to_string).collect()
    };
    let shares = |open: &str, secret: &str| {
        format!("[shares.open]\npath = \"open\"\n{open}\n[shares.secret]\npath = \"open/secret\"\n{secret}\n")
    };
    for (open, secret, rules) in [
        ("", "encrypt = true", "encrypt"),
        ("", "read_only = true", "read_only"),
        ("", "read = [\"a\"]\nwrite = [\"b\"]", "read, write"),
        ("read = [\"c\"]", "read = [\"a\"]\nencrypt = true", "encrypt, read"),
    ] {
        let found = warnings(&shares(open, secret));
        let line = if open.is_empty() { 5 } else { 5 + open.lines().count() - 1 };
        let says = format!(
            "contains the folder of shares.secret.path (line {line}), whose {rules} share open does not have"
        );
        assert!(
            found[0].contains(&says) && found[0].contains("weft.toml:2:1: shares.open.path: "),
            "{says}: {found:?}"
        );
    }
    // The weaker share may be the inner one, or have the same folder.
    let found = warnings(&shares("encrypt = true", ""));
    assert!(found.len() == 1 && found[0].contains("is inside the folder of shares.open.path"), "{found:?}");
    let same = "[shares.a]\npath = \"open\"\nread_only = true\n[shares.b]\npath = \"open/../open\"\n";
    let found = warnings(same);
    assert!(
        found.len() == 1 && found[0].contains("is also the folder of shares.a.path (line 2)"),
        "{found:?}"
    );
    // A quota of one folder is that of all its shares which have one; a folder inside it is counted apart.
    let found = warnings(&shares("quota = \"1G\"", ""));
    assert!(found.len() == 1 && found[0].contains("whose quota share secret does not have"), "{found:?}");
    let found = warnings(&shares("quota = \"1G\"", "quota = \"1G\""));
    let says = "is inside the folder of shares.open.path (line 2), and both have quotas, which count apart";
    assert!(found.len() == 1 && found[0].contains(says), "{found:?}");
    let same = "[shares.a]\npath = \"open\"\nquota = \"1G\"\n[shares.b]\npath = \"open\"\nquota = \"2G\"\n";
    assert_eq!(warnings(same), [""; 0]);
    let nfs = "[listeners]\nnfs_port = 0\n";
    let found = warnings(&format!("{nfs}{}", shares("", "nfs.net = [\"192.0.2.0/24\"]")));
    assert!(found.len() == 1 && found[0].contains("whose nfs share open"), "{found:?}");
    // Equal rules, and those that no client can bypass.
    for text in [
        shares("encrypt = true", "encrypt = true"),
        shares("read_only = true", "read_only = true"),
        format!("smb.require_encryption = true\n{}", shares("", "encrypt = true")),
        "[shares.a]\npath = \"state\"\n[shares.b]\npath = \"open\"\nencrypt = true\n".into(),
    ] {
        assert_eq!(warnings(&text), Vec::<String>::new(), "{text}");
    }
}
