//! The keys of a configuration file: one row each, with its type, default, options, meaning, and access to its value.
//! The parser, the reference, the example and `weft config show` use these rows.

mod announce;
mod export;
mod tls;

use weft_smb::server::{Dialect, Signing};
use weft_store::audit::Wanted;

use super::CAPTURE_BYTES;
use super::entries::{
    capture, events_of, folder_of, get_links, get_principals, get_volumes, ram_of, set_links, set_principals,
    set_volumes,
};
use super::row::{Field, Row, TakesEffect, converted, field};
use super::share::ShareSource;
use super::types::{
    AdminServer, Boolean, Count, DfsLinks, DurationText, FilePath, List, ListenAddress, NonEmpty, OneOf,
    Optional, Port, PrincipalMap, Size, Someone, Text, Type,
};
use crate::args::{Crc, ProviderKind};
use crate::logging::LogFormat;

/// The default of the keys that name the source of a share's files.
pub(super) const ONE_OF_THREE: &str = "one of path, ram and volumes is required";

/// The rows, in the order of the reference.
pub(super) const ROWS: &[Row] = &[
    field!(
        Server,
        Restart,
        "state_dir",
        Optional<FilePath>,
        ["--state-dir"],
        "$XDG_STATE_HOME/weft, or ~/.local/state/weft; none for NFS on port 0",
        "\"/var/lib/weft\"",
        "Directory for state that survives a restart: the list of volumes, NFS state, persistent SMB handles.",
        |c| c.state_dir
    ),
    field!(
        Server,
        Restart,
        "user",
        Optional<Text>,
        ["--user"],
        "none if there are users of `weft user`; otherwise $USER, or weft",
        "\"alice\"",
        "A user who may log on beside those of `weft user`, with the password from WEFT_PASSWORD; if it is unset, the server asks on the terminal or generates one, but not as a service.",
        |c| c.user
    ),
    field!(
        Server,
        Restart,
        "admin",
        Optional<AdminServer>,
        ["--admin"],
        "not served",
        "\"127.0.0.1:9470\"",
        "Where the status page (/), metrics for Prometheus (/metrics) and the status (/api/v1/status) are served over HTTP: a \
         loopback address, or unix:PATH for a Unix socket of this user and group; any other address needs admin_token_file or \
         tls.admin.clients.",
        |c| c.admin
    ),
    field!(
        Server,
        Restart,
        "admin_token_file",
        Optional<FilePath>,
        ["--admin-token-file"],
        "no token",
        "\"/etc/weft/admin.token\"",
        "File with the bearer token that clients of admin must show; only its owner may read it.",
        |c| c.admin_token_file
    ),
    field!(
        Server,
        Reload,
        "log.format",
        OneOf<LogFormat>,
        ["--log-format"],
        "\"text\"",
        "\"json\"",
        "Form of the log on standard error: text for people, or one JSON object per line. In the journal of systemd, lines have its \
         priorities, and text has no time.",
        |c| c.log.format
    ),
    field!(
        Server,
        Reload,
        "log.slow",
        DurationText,
        [],
        "\"100ms\"",
        "\"20ms\"",
        "Operations that take this long, from 1ms to 1h, are written to the log, a few a minute, and shown by `weft status --slow`, with \
         the time that they spent in each place.",
        |c| c.log.slow
    ),
    field!(
        Server,
        Restart,
        "audit.file",
        Optional<FilePath>,
        [],
        "no audit log",
        "\"/var/log/weft/audit.jsonl\"",
        "File of the audit log: who did what to which file, one JSON object per line (docs/audit.md). A reload opens it anew.",
        |c| c.audit.file
    ),
    converted!(
        Server,
        Reload,
        "audit.events",
        Optional<NonEmpty<OneOf<Wanted>>>,
        [],
        "all",
        "[\"admin\", \"logon\", \"delete\", \"rights\", \"denied\"]",
        "Events that the audit log contains; \"denied\" stands for everything that a user may not do.",
        set | c,
        value | c.audit.events = value.map(|list| list.into_iter().fold(Wanted::NONE, Wanted::and)),
        get | c | events_of(c)
    ),
    field!(
        Server,
        Restart,
        "listeners.addresses",
        NonEmpty<ListenAddress>,
        ["--listen"],
        "[\"localhost\"]",
        "[\"0.0.0.0\"]",
        "Addresses that every port listens on. Before you listen on anything but loopback, consider who can reach it.",
        |c| c.listeners.addresses
    ),
    field!(
        Server,
        Restart,
        "listeners.smb_port",
        Port,
        ["--smb-port"],
        "4450",
        "445",
        "TCP port of SMB.",
        |c| c.listeners.smb_port
    ),
    field!(
        Server,
        Restart,
        "listeners.smb_direct_port",
        Port,
        ["--smbd-port"],
        "5445",
        "5445",
        "Port of SMB Direct, for every RDMA provider.",
        |c| c.listeners.smb_direct_port
    ),
    field!(
        Server,
        Restart,
        "listeners.nfs_port",
        Optional<Port>,
        ["--nfs-port"],
        "not served",
        "2049",
        "TCP port of NFS. It has no passwords: every host that reaches the port may use every share, except shares with encrypt, and those \
         with read or write but no table nfs. Limit the hosts with shares.NAME.nfs.net.",
        |c| c.listeners.nfs_port
    ),
    field!(
        Server,
        Restart,
        "listeners.nfs_rdma_port",
        Optional<Port>,
        ["--nfs-rdma-port"],
        "not served",
        "20049",
        "Port of NFS over RDMA, for every RDMA provider.",
        |c| c.listeners.nfs_rdma_port
    ),
    field!(
        Server,
        Restart,
        "listeners.mountd_port",
        Optional<Port>,
        ["--mountd-port"],
        "not served",
        "20048",
        "TCP port of the MOUNT protocol, which NFS version 3 needs.",
        |c| c.listeners.mountd_port
    ),
    field!(
        Server,
        Restart,
        "listeners.rpcbind_port",
        Optional<Port>,
        ["--rpcbind-port"],
        "not served",
        "111",
        "Port of a built-in rpcbind, which tells NFS clients the other ports.",
        |c| c.listeners.rpcbind_port
    ),
    field!(
        Server,
        Restart,
        "listeners.nfs_udp",
        Boolean,
        ["--nfs-udp"],
        "false",
        "true",
        "Whether NFS version 3, MOUNT and rpcbind are also served over UDP, at the same ports.",
        |c| c.listeners.nfs_udp
    ),
    field!(
        Server,
        Restart,
        "listeners.nbd_port",
        Optional<Port>,
        ["--nbd", "--nbd-port"],
        "not served",
        "10809",
        "TCP port of NBD, which serves the volumes.",
        |c| c.listeners.nbd_port
    ),
    field!(
        Server,
        Restart,
        "listeners.nbd_socket",
        Optional<FilePath>,
        ["--nbd-socket"],
        "not served",
        "\"/run/weft/nbd\"",
        "Unix socket of NBD; only the server's user can connect to it.",
        |c| c.listeners.nbd_socket
    ),
    announce::MDNS,
    announce::WS_DISCOVERY,
    announce::NAME,
    announce::WORKGROUP_ROW,
    announce::INTERFACES,
    field!(
        Server,
        Restart,
        "limits.buffers",
        Size,
        ["--buffers"],
        "\"1G\"",
        "\"256M\"",
        "Memory limit of payload and long replies: from 64M to the memory of this host; the default is half of a memory below 1G.",
        |c| c.limits.buffers_bytes
    ),
    field!(
        Server,
        Restart,
        "limits.cores",
        Optional<Count>,
        ["--cores"],
        "one per processor",
        "2",
        "Serving threads: from 1 to 1024.",
        |c| c.limits.cores
    ),
    field!(
        Server,
        Restart,
        "limits.pin",
        Boolean,
        ["--pin"],
        "false",
        "true",
        "Whether serving thread i is bound to processor i.",
        |c| c.limits.pin
    ),
    field!(
        Server,
        Restart,
        "limits.spin",
        DurationText,
        ["--spin-us"],
        "\"100us\"",
        "\"0us\"",
        "Longest busy polling before a serving thread sleeps, at most 1s: trades processor time for latency.",
        |c| c.limits.spin
    ),
    field!(
        Server,
        Restart,
        "limits.congestion",
        Optional<Text>,
        ["--congestion"],
        "the system's; reno on loopback ports",
        "\"reno\"",
        "TCP congestion control of connections; this kernel must offer it.",
        |c| c.limits.congestion
    ),
    field!(
        Server,
        Restart,
        "smb.signing",
        OneOf<Signing>,
        ["--signing", "--require-signing"],
        "\"auto\"",
        "\"required\"",
        "SMB sessions that must sign: required means all; enabled means none unless the client asks; auto means all \
         except those from this host and from RDMA clients that cannot sign payload.",
        |c| c.smb.signing
    ),
    field!(
        Server,
        Restart,
        "smb.min_dialect",
        OneOf<Dialect>,
        ["--min-dialect"],
        "\"3.0\"",
        "\"3.1.1\"",
        "Oldest SMB dialect. Those below 3.0 neither encrypt nor detect a downgrade.",
        |c| c.smb.min_dialect
    ),
    field!(
        Server,
        Restart,
        "smb.server_names",
        List<Text>,
        ["--server-name"],
        "[]",
        "[\"files.example.com\"]",
        "Additional names or addresses by which SMB clients reach this server: a DNS alias, the public side of a NAT.",
        |c| c.smb.server_names
    ),
    field!(
        Server,
        Restart,
        "smb.require_encryption",
        Boolean,
        ["--require-encryption"],
        "false",
        "true",
        "Whether unencrypted SMB sessions are refused.",
        |c| c.smb.require_encryption
    ),
    field!(
        Server,
        Restart,
        "smb.posix",
        Boolean,
        ["--posix"],
        "false",
        "true",
        "Whether the POSIX extensions of SMB 3.1.1 are offered.",
        |c| c.smb.posix
    ),
    field!(
        Server,
        Restart,
        "smb.macos",
        Boolean,
        [],
        "true",
        "false",
        "Whether Macs that ask are told what this server can do for them: listings with Finder info, copies of whole files, and Time Machine.",
        |c| c.smb.macos
    ),
    field!(
        Server,
        Restart,
        "smb.mac_model",
        Text,
        [],
        "\"Xserve\"",
        "\"MacPro7,1@ECOLOR=226,226,224\"",
        "Model that Macs are told this server is, which chooses its icon in the Finder: at most 64 printable ASCII characters.",
        |c| c.smb.mac_model
    ),
    field!(
        Server,
        Restart,
        "smb.act_as_callers",
        Boolean,
        [],
        "true",
        "false",
        "Whether a server that runs as root uses folders as the accounts of its users, so that the kernel judges modes and POSIX ACLs.",
        |c| c.smb.act_as_callers
    ),
    field!(
        Server,
        Restart,
        "smb.compress",
        Boolean,
        ["--compress"],
        "false",
        "true",
        "Whether messages are compressed for clients that ask for it.",
        |c| c.smb.compress
    ),
    field!(
        Server,
        Restart,
        "smb.keytab",
        Optional<FilePath>,
        ["--keytab"],
        "passwords only",
        "\"/etc/weft/krb5.keytab\"",
        "Keytab with keys of cifs/HOST (for SMB) and nfs/HOST (for NFS), to accept Kerberos tickets.",
        |c| c.smb.keytab
    ),
    field!(
        Server,
        Restart,
        "identity.system_users",
        Optional<Boolean>,
        [],
        "true if this server runs as root",
        "true",
        "Whether a user with the name of an account of the system (NSS) has its uid, gid and groups, and rights may name groups of the system.",
        |c| c.identity.system_users
    ),
    field!(
        Server,
        Restart,
        "kerberos.system_users",
        Boolean,
        [],
        "false",
        "true",
        "Whether a principal of the realm that has the name of an account of the system may log on without being a user of `weft user`; over NFS, others are the anonymous user.",
        |c| c.kerberos.system_users
    ),
    Row {
        path: "kerberos.map",
        takes_effect: TakesEffect::Restart,
        kind: PrincipalMap::name,
        options: &[],
        default: "{}",
        example: "{ \"HTTP/host@EXAMPLE.ORG\" = \"svc\" }",
        meaning: "Users of certain principals, of any realm; a plain principal of the realm is otherwise the user of its name.",
        field: Field::Server { set: set_principals, get: get_principals },
    },
    field!(
        Server,
        Restart,
        "nfs.root_squash",
        Boolean,
        ["--no-root-squash"],
        "true",
        "true",
        "Whether root of NFS clients is mapped to nobody; shares.NAME.nfs.squash overrides it.",
        |c| c.nfs.root_squash
    ),
    field!(
        Server,
        Restart,
        "nfs.act_as_callers",
        Boolean,
        [],
        "true",
        "false",
        "Whether a server that runs as root uses folders as the users whom clients name, so that the kernel judges modes and POSIX ACLs.",
        |c| c.nfs.act_as_callers
    ),
    field!(
        Server,
        Restart,
        "nfs.register",
        Boolean,
        ["--rpcbind"],
        "false",
        "true",
        "Whether the ports of NFS are registered with this host's rpcbind.",
        |c| c.nfs.register
    ),
    field!(
        Server,
        Restart,
        "rdma.providers",
        NonEmpty<OneOf<ProviderKind>>,
        ["--rdma"],
        "[\"iwarp\", \"shm\"]",
        "[\"iwarp\", \"shm\", \"rnic\"]",
        "RDMA providers: iwarp serves any host over TCP, shm this user's clients on this host, rnic RDMA devices.",
        |c| c.rdma.providers
    ),
    field!(
        Server,
        Restart,
        "rdma.crc",
        OneOf<Crc>,
        ["--crc"],
        "\"always\"",
        "\"asked\"",
        "Whether iWARP connections always carry a CRC32C, or only if the client asks for it.",
        |c| c.rdma.crc
    ),
    converted!(
        Server,
        Restart,
        "rdma.capture.file",
        Optional<FilePath>,
        ["--pcap"],
        "no capture",
        "\"/tmp/weft.pcapng\"",
        "File that RDMA traffic is captured in, for Wireshark. It contains payload. A capture slows the server down.",
        set | c,
        file | capture(&mut c.rdma).file = file.unwrap_or_default(),
        get | c | c.rdma.capture.as_ref().map(|capture| capture.file.clone())
    ),
    converted!(
        Server,
        Restart,
        "rdma.capture.limit",
        Size,
        ["--pcap-limit"],
        "\"1G\"",
        "\"1G\"",
        "Size limit of the capture.",
        set | c,
        bytes | capture(&mut c.rdma).limit_bytes = bytes,
        get | c | c.rdma.capture.as_ref().map_or(CAPTURE_BYTES, |capture| capture.limit_bytes)
    ),
    tls::NFS_CERTIFICATE,
    tls::NFS_KEY,
    tls::NFS_CLIENTS,
    tls::NBD_CERTIFICATE,
    tls::NBD_KEY,
    tls::NBD_CLIENTS,
    tls::ADMIN_CERTIFICATE,
    tls::ADMIN_KEY,
    tls::ADMIN_CLIENTS,
    field!(
        Server,
        Restart,
        "confine.landlock",
        Boolean,
        ["--unconfined"],
        "true",
        "false",
        "Whether the server reaches only the files that this configuration names and those of the system that it needs (Landlock).",
        |c| c.confine.landlock
    ),
    field!(
        Server,
        Restart,
        "confine.seccomp",
        Boolean,
        ["--unconfined"],
        "true",
        "false",
        "Whether system calls that no server needs are refused (seccomp): running programs, mounting, tracing, and others.",
        |c| c.confine.seccomp
    ),
    field!(
        Server,
        Restart,
        "confine.folders",
        Optional<List<FilePath>>,
        [],
        "with a file: /home, /media, /mnt, /srv, and the parents of shares' folders, if not the system's",
        "[\"/srv\"]",
        "Folders below which a reload can add shares. A new share elsewhere is served after a restart. [] makes all of them wait for one.",
        |c| c.confine.folders
    ),
    field!(
        Server,
        Restart,
        "replication.enabled",
        Boolean,
        ["--replica"],
        "false",
        "true",
        "Whether the volumes can be replicated to and from other hosts (weft replica).",
        |c| c.replication.enabled
    ),
    field!(
        Volume,
        Restart,
        "volumes.*.read_only",
        Boolean,
        ["--nbd-read-only", "--volume"],
        "false",
        "true",
        "Whether writes to the volume are refused, over all protocols. `volumes.NAME = {}` serves the volume NAME (`weft volume`).",
        |v| v.read_only
    ),
    converted!(
        Share,
        Reload,
        "shares.*.path",
        Optional<FilePath>,
        ["DIR"],
        ONE_OF_THREE,
        "\"/srv/data\"",
        "The shared folder.",
        set | s,
        path | s.source = ShareSource::Folder(path.unwrap_or_default()),
        get | s | folder_of(s)
    ),
    converted!(
        Share,
        Restart,
        "shares.*.ram",
        Optional<Size>,
        ["--ram"],
        ONE_OF_THREE,
        "\"1G\"",
        "Size limit of a share in memory, which ends with the server.",
        set | s,
        bytes | s.source = ShareSource::Ram { size_bytes: bytes.unwrap_or_default() },
        get | s | ram_of(s)
    ),
    Row {
        path: "shares.*.volumes",
        takes_effect: TakesEffect::Restart,
        kind: || "true".into(),
        options: &["--share-volumes"],
        default: ONE_OF_THREE,
        example: "true",
        meaning: "The share contains the volumes, as files.",
        field: Field::Share { set: set_volumes, get: get_volumes },
    },
    field!(
        Share,
        Reload,
        "shares.*.read",
        Optional<List<Someone>>,
        [],
        "every user, or nobody but those in write if that key is given",
        "[\"@staff\", \"carol\"]",
        "Who may read over SMB: users, groups of `weft group` with a leading @, or \"*\" for every user. NFS then needs a table nfs.",
        |s| s.rights.read
    ),
    field!(
        Share,
        Reload,
        "shares.*.write",
        Optional<List<Someone>>,
        [],
        "every user, or nobody if read is given",
        "[\"alice\"]",
        "Who may read and write over SMB, in the same form. The permissions of each file apply as well.",
        |s| s.rights.write
    ),
    field!(
        Share,
        Reload,
        "shares.*.force_user",
        Optional<Text>,
        [],
        "the user himself, or the server's own user",
        "\"www-data\"",
        "Account of the system as which everybody uses the folder over SMB and NFS, if this server runs as root.",
        |s| s.force_user
    ),
    field!(
        Share,
        Reload,
        "shares.*.read_only",
        Boolean,
        ["--read-only"],
        "false",
        "true",
        "Whether all changes are refused, over all protocols.",
        |s| s.read_only
    ),
    field!(
        Share,
        Reload,
        "shares.*.encrypt",
        Boolean,
        ["--encrypt-share"],
        "false",
        "true",
        "Whether SMB encryption is required; NFS then does not offer the share.",
        |s| s.encrypt
    ),
    field!(
        Share,
        Reload,
        "shares.*.hide_unreadable",
        Boolean,
        ["--hide-unreadable"],
        "false",
        "true",
        "Whether SMB listings hide files that the user may not read.",
        |s| s.hide_unreadable
    ),
    field!(
        Share,
        Restart,
        "shares.*.continuous_availability",
        Boolean,
        ["--continuous-availability"],
        "false",
        "true",
        "Whether open handles survive a restart of the server if clients ask for it; writes go through to the disk.",
        |s| s.continuous_availability
    ),
    field!(
        Share,
        Restart,
        "shares.*.compress",
        Boolean,
        ["--compress-share"],
        "false",
        "true",
        "Whether SMB clients are told to request compression; implies smb.compress.",
        |s| s.compress
    ),
    field!(
        Share,
        Reload,
        "shares.*.time_machine",
        Boolean,
        [],
        "false",
        "true",
        "Whether Macs may back up to the share with Time Machine; needs smb.macos.",
        |s| s.time_machine
    ),
    field!(
        Share,
        Reload,
        "shares.*.snapshots",
        Optional<Text>,
        ["--snapshots"],
        "none",
        "\".zfs/snapshot/daily-%Y-%m-%d\"",
        "Pattern of the snapshot folders, whose names contain the time in UTC; SMB offers them as previous versions.",
        |s| s.snapshots
    ),
    field!(
        Share,
        Reload,
        "shares.*.quota",
        Optional<Size>,
        [],
        "none",
        "\"200G\"",
        "How much the folder may occupy, in allocated blocks; clients see it as the size of the disk. The kernel enforces it where the file system has project quotas; elsewhere the server counts the files, at most 200,000.",
        |s| s.quota
    ),
    Row {
        path: "shares.*.dfs_links",
        takes_effect: TakesEffect::Restart,
        kind: DfsLinks::name,
        options: &["--dfs-link"],
        default: "{}",
        example: "{ projects = [\"//nas/projects\"] }",
        meaning: "DFS referrals: SMB clients that open the path in this share go to the first target that they can reach.",
        field: Field::Share { set: set_links, get: get_links },
    },
    export::READ_ONLY,
    export::ASYNC,
    export::SECURE,
    export::SQUASH,
    export::ANONUID,
    export::ANONGID,
    export::NET,
    export::SEC,
    export::XPRTSEC,
];

/// The keys that an option of `weft serve` sets, if they are the server's.
pub(crate) fn keys_of_option(option: &str) -> impl Iterator<Item = &'static str> {
    let of_server = |row: &&Row| matches!(row.field, Field::Server { .. });
    let sets = move |row: &&Row| row.options.contains(&option);
    ROWS.iter().filter(of_server).filter(sets).map(|row| row.path)
}
