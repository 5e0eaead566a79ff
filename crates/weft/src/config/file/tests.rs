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
        ("spin = \"1ms\"\n", "did you mean limits.spin?"),
        (
            "[limits]\nzzzz = 1\n",
            "weft.toml:2:1: limits.zzzz: unknown key; the keys of this table are buffers, cores, pin, spin, congestion",
        ),
        ("[limits]\n\"\\u001b[31m\" = 1\n", "weft.toml:2:1: limits.\"\\u001B[31m\": unknown key"),
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
        ("[limits]\nspin = \"1h\"\n", "limits.spin: \"1h\": write a number with us, ms or s"),
        ("[limits]\nspin = \"us\"\n", "limits.spin: \"us\": write a number with us, ms or s"),
        ("[limits]\nspin = \"99999999999999999999s\"\n", "write a number with us, ms or s"),
        (
            "[listeners]\nsmb_port = 65536\n",
            "weft.toml:2:12: listeners.smb_port: write a number from 0 to 65535, not 65536",
        ),
        ("[listeners]\nsmb_port = -1\n", "write a number from 0 to 65535, not -1"),
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
fn a_rule_between_keys_is_reported_with_the_place_of_the_key() {
    let ram = "[shares.a]\nram = \"1M\"\n";
    for (text, says) in [
        (
            format!("{ram}snapshots = \"%F\"\n"),
            "/etc/weft/weft.toml:3:1: shares.a.snapshots: a ramdisk has none",
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
            "# nothing\n".into(),
            "weft.toml: nothing to serve: add a share ([shares.NAME]) or a volume ([volumes])",
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
    let lines: Vec<String> = all.errors().iter().map(ToString::to_string).collect();
    let [cores, spin, snapshots] = &lines[..] else { panic!("{lines:?}") };
    assert!(cores.contains(":2:1:") && spin.contains(":3:1:") && snapshots.contains(":7:1:"), "{lines:?}");
}
