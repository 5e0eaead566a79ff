//! The names of configuration keys: each has one name on the command line and one in a file. An error stores a
//! [`Key`] and prints the name that the user has written.

use std::borrow::Cow;
use std::fmt;
use std::path::Path;

use crate::out::path_name;

/// The origin of a configuration.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Origin {
    /// The command line.
    #[default]
    Flags,
    /// A file.
    File,
}

/// The names of a configured value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Key {
    flag: Cow<'static, str>,
    path: Cow<'static, str>,
    /// Its value, if messages show it.
    value: Option<String>,
}

pub(crate) const SHARES: Key = Key::new("DIR", "shares");
pub(crate) const STATE_DIR: Key = Key::new("--state-dir", "state_dir");
pub(crate) const ADMIN: Key = Key::new("--admin", "admin");
pub(crate) const ADMIN_TOKEN: Key = Key::new("--admin-token-file", "admin_token_file");
pub(crate) const AUDIT_FILE: Key = Key::new("audit.file", "audit.file");
pub(crate) const AUDIT_EVENTS: Key = Key::new("audit.events", "audit.events");
pub(crate) const ANNOUNCE_MDNS: Key = Key::new("announce.mdns", "announce.mdns");
pub(crate) const ANNOUNCE_WS_DISCOVERY: Key = Key::new("announce.ws_discovery", "announce.ws_discovery");
pub(crate) const ANNOUNCE_NAME: Key = Key::new("announce.name", "announce.name");
pub(crate) const ANNOUNCE_WORKGROUP: Key = Key::new("announce.workgroup", "announce.workgroup");
pub(crate) const ANNOUNCE_INTERFACES: Key = Key::new("announce.interfaces", "announce.interfaces");
pub(crate) const VOLUMES: Key = Key::new("--volume", "volumes");
pub(crate) const REPLICATION: Key = Key::new("--replica", "replication.enabled");
pub(crate) const LISTEN: Key = Key::new("--listen", "listeners.addresses");
pub(crate) const SMB_PORT: Key = Key::new("--smb-port", "listeners.smb_port");
pub(crate) const SMB_DIRECT_PORT: Key = Key::new("--smbd-port", "listeners.smb_direct_port");
pub(crate) const NFS_PORT: Key = Key::new("--nfs-port", "listeners.nfs_port");
pub(crate) const NFS_RDMA_PORT: Key = Key::new("--nfs-rdma-port", "listeners.nfs_rdma_port");
pub(crate) const MOUNTD_PORT: Key = Key::new("--mountd-port", "listeners.mountd_port");
pub(crate) const RPCBIND_PORT: Key = Key::new("--rpcbind-port", "listeners.rpcbind_port");
pub(crate) const NFS_UDP: Key = Key::new("--nfs-udp", "listeners.nfs_udp");
pub(crate) const NBD_PORT: Key = Key::new("--nbd-port", "listeners.nbd_port");
pub(crate) const NBD_SOCKET: Key = Key::new("--nbd-socket", "listeners.nbd_socket");
pub(crate) const BUFFERS: Key = Key::new("--buffers", "limits.buffers");
pub(crate) const CORES: Key = Key::new("--cores", "limits.cores");
pub(crate) const SPIN: Key = Key::new("--spin-us", "limits.spin");
pub(crate) const CONGESTION: Key = Key::new("--congestion", "limits.congestion");
pub(crate) const NFS_CERTIFICATE: Key = Key::new("--nfs-tls-cert", "tls.nfs.certificate");
pub(crate) const NFS_CERTIFICATE_KEY: Key = Key::new("--nfs-tls-key", "tls.nfs.key");
pub(crate) const NFS_CERTIFICATE_CLIENTS: Key = Key::new("--nfs-tls-clients", "tls.nfs.clients");
pub(crate) const NBD_CERTIFICATE: Key = Key::new("--nbd-tls-cert", "tls.nbd.certificate");
pub(crate) const NBD_CERTIFICATE_KEY: Key = Key::new("--nbd-tls-key", "tls.nbd.key");
pub(crate) const NBD_CERTIFICATE_CLIENTS: Key = Key::new("--nbd-tls-clients", "tls.nbd.clients");
pub(crate) const ADMIN_CERTIFICATE: Key = Key::new("--admin-tls-cert", "tls.admin.certificate");
pub(crate) const ADMIN_CERTIFICATE_KEY: Key = Key::new("--admin-tls-key", "tls.admin.key");
pub(crate) const ADMIN_CERTIFICATE_CLIENTS: Key = Key::new("--admin-tls-clients", "tls.admin.clients");
pub(crate) const NO_ROOT_SQUASH: Key = Key::new("--no-root-squash", "nfs.root_squash");
pub(crate) const REGISTER: Key = Key::new("--rpcbind", "nfs.register");
pub(crate) const MAC_MODEL: Key = Key::new("smb.mac_model", "smb.mac_model");
pub(crate) const KEYTAB: Key = Key::new("--keytab", "smb.keytab");
pub(crate) const SYSTEM_USERS: Key = Key::new("identity.system_users", "identity.system_users");
pub(crate) const KERBEROS_SYSTEM_USERS: Key = Key::new("kerberos.system_users", "kerberos.system_users");
pub(crate) const KERBEROS_MAP: Key = Key::new("kerberos.map", "kerberos.map");
pub(crate) const LOG_SLOW: Key = Key::new("log.slow", "log.slow");
pub(crate) const CAPTURE: Key = Key::new("--pcap", "rdma.capture.file");
pub(crate) const CAPTURE_LIMIT: Key = Key::new("--pcap-limit", "rdma.capture.limit");
pub(crate) const DFS_LINKS: Key = Key::new("--dfs-link", "shares.*.dfs_links");

/// A key of one share: the option, and the last part of the key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct OfShare(&'static str, &'static str);

pub(crate) const READ_ONLY: OfShare = OfShare("--read-only", "read_only");
pub(crate) const ENCRYPT: OfShare = OfShare("--encrypt-share", "encrypt");
pub(crate) const HIDE_UNREADABLE: OfShare = OfShare("--hide-unreadable", "hide_unreadable");
pub(crate) const CONTINUOUS: OfShare = OfShare("--continuous-availability", "continuous_availability");
pub(crate) const COMPRESS: OfShare = OfShare("--compress-share", "compress");
/// Only a file has it.
pub(crate) const TIME_MACHINE: OfShare = OfShare("", "time_machine");
pub(crate) const SNAPSHOTS: OfShare = OfShare("--snapshots", "snapshots");
pub(crate) const DFS_LINK: OfShare = OfShare("--dfs-link", "dfs_links");
/// Only a file has it.
pub(crate) const FORCE_USER: OfShare = OfShare("", "force_user");
/// Only a file has it.
pub(crate) const QUOTA: OfShare = OfShare("", "quota");
pub(crate) const EXPORT: OfShare = OfShare("--export", "nfs");
pub(crate) const RAM: OfShare = OfShare("--ram", "ram");

impl Key {
    const fn new(flag: &'static str, path: &'static str) -> Key {
        Key { flag: Cow::Borrowed(flag), path: Cow::Borrowed(path), value: None }
    }

    /// A key of the share with this name.
    pub(crate) fn of_share(name: &str, OfShare(flag, last): OfShare) -> Key {
        Key::owned(format!("{flag} {name}"), format!("shares.{}.{last}", part(name)))
    }

    /// A key that has no name in a file: a share or a folder of the command line.
    pub(crate) fn typed(flag: String) -> Key {
        Key::owned(flag, String::new())
    }

    /// The snapshots of a share, with their pattern on the command line.
    pub(crate) fn of_snapshots(name: &str, pattern: &str) -> Key {
        Key::owned(format!("--snapshots {name}={pattern}"), format!("shares.{}.snapshots", part(name)))
    }

    /// A rule for a share's NFS clients, by its key in the share's table `nfs`.
    pub(crate) fn of_export(name: &str, rule: &str) -> Key {
        Key::owned(format!("--export {name}"), format!("shares.{}.nfs.{rule}", part(name)))
    }

    /// The value of `xprtsec` in an export.
    pub(crate) fn of_way(name: &str, value: &str) -> Key {
        let path = format!("shares.{}.nfs.xprtsec", part(name));
        Key::owned(format!("--export {name}:xprtsec={value}"), path)
    }

    /// The folder of a share. On the command line it has no option name.
    pub(crate) fn of_folder(name: &str, folder: &Path) -> Key {
        Key::owned(path_name(folder), format!("shares.{}.path", part(name)))
    }

    /// The share that contains the volumes, with this name.
    pub(crate) fn of_shared_volumes(name: &str) -> Key {
        Key::owned(format!("--share-volumes={name}"), format!("shares.{}.volumes", part(name)))
    }

    /// A volume.
    pub(crate) fn of_volume(name: &str) -> Key {
        Key::owned(format!("--volume {name}"), format!("volumes.{}", part(name)))
    }

    /// Whether a volume refuses writes. The option is for all volumes.
    pub(crate) fn of_volume_read_only(name: &str) -> Key {
        Key::owned("--nbd-read-only".into(), format!("volumes.{}.read_only", part(name)))
    }

    /// The key with its value.
    pub(crate) fn with(&self, value: impl fmt::Display) -> Key {
        Key { value: Some(value.to_string()), ..self.clone() }
    }

    fn owned(flag: String, path: String) -> Key {
        Key { flag: flag.into(), path: path.into(), value: None }
    }

    /// The path in a file, without a value.
    pub(super) fn path(&self) -> &str {
        &self.path
    }

    /// The name as written in this origin.
    pub(crate) fn at(&self, origin: Origin) -> Cow<'_, str> {
        match (origin, &self.value) {
            (Origin::Flags, None) => self.flag.as_ref().into(),
            (Origin::File, None) => self.path.as_ref().into(),
            (Origin::Flags, Some(value)) => format!("{} {value}", self.flag).into(),
            (Origin::File, Some(value)) => format!("{} = {value}", self.path).into(),
        }
    }
}

/// A part of a dotted TOML key, quoted if necessary.
pub(crate) fn part(name: &str) -> Cow<'_, str> {
    let is_bare = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_');
    match !name.is_empty() && name.chars().all(is_bare) {
        true => name.into(),
        false => quoted(name).into(),
    }
}

/// A text as TOML writes it.
pub(super) fn quoted(text: &str) -> String {
    let escaped = text.chars().map(|c| match c {
        '"' | '\\' => format!("\\{c}"),
        '\n' => "\\n".into(),
        '\t' => "\\t".into(),
        c if c.is_control() => format!("\\u{:04X}", u32::from(c)),
        c => c.to_string(),
    });
    format!("\"{}\"", escaped.collect::<String>())
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::super::row::Row;
    use super::super::table::ROWS;
    use super::*;
    use crate::args::Args;

    const OF_SERVER: [Key; 34] = [
        STATE_DIR,
        ADMIN,
        ADMIN_TOKEN,
        VOLUMES,
        REPLICATION,
        LISTEN,
        SMB_PORT,
        SMB_DIRECT_PORT,
        NFS_PORT,
        NFS_RDMA_PORT,
        MOUNTD_PORT,
        RPCBIND_PORT,
        NFS_UDP,
        NBD_PORT,
        NBD_SOCKET,
        BUFFERS,
        CORES,
        SPIN,
        CONGESTION,
        NFS_CERTIFICATE,
        NFS_CERTIFICATE_KEY,
        NFS_CERTIFICATE_CLIENTS,
        NBD_CERTIFICATE,
        NBD_CERTIFICATE_KEY,
        NBD_CERTIFICATE_CLIENTS,
        ADMIN_CERTIFICATE,
        ADMIN_CERTIFICATE_KEY,
        ADMIN_CERTIFICATE_CLIENTS,
        NO_ROOT_SQUASH,
        REGISTER,
        KEYTAB,
        CAPTURE,
        CAPTURE_LIMIT,
        DFS_LINKS,
    ];
    const OF_SHARE: [OfShare; 9] =
        [READ_ONLY, ENCRYPT, HIDE_UNREADABLE, CONTINUOUS, COMPRESS, SNAPSHOTS, DFS_LINK, EXPORT, RAM];

    #[test]
    fn every_key_has_the_name_of_an_option() {
        let command = Args::command();
        let serve = command.find_subcommand("serve").unwrap();
        let options: Vec<String> =
            serve.get_opts().filter_map(|arg| arg.get_long()).map(|long| format!("--{long}")).collect();
        let flags = OF_SERVER
            .into_iter()
            .map(|key| key.flag.to_string())
            .chain(OF_SHARE.map(|OfShare(flag, _)| flag.to_owned()));
        for flag in flags {
            assert!(options.contains(&flag), "{flag}: {options:?}");
        }
    }

    #[test]
    fn every_key_is_in_the_table_with_its_option() {
        let of_server = OF_SERVER.into_iter().map(|key| (key.flag.to_string(), key.path.to_string()));
        let of_share = OF_SHARE.map(|OfShare(flag, last)| (flag.to_owned(), format!("shares.*.{last}")));
        for (flag, path) in of_server.chain(of_share) {
            let is = |row: &&Row| row.path == path || row.path.starts_with(&format!("{path}."));
            let mut rows = ROWS.iter().filter(is).peekable();
            assert!(rows.peek().is_some(), "{path}");
            // The table of volumes has a row for each key in it.
            assert!(rows.all(|row| row.options.contains(&&*flag)), "{path} is not set by {flag}");
        }
    }

    #[test]
    fn a_key_is_written_as_its_origin_has_it() {
        let key = Key::of_share("data", READ_ONLY);
        assert_eq!(
            (&*key.at(Origin::Flags), &*key.at(Origin::File)),
            ("--read-only data", "shares.data.read_only")
        );
        let key = Key::of_share("my data", ENCRYPT);
        assert_eq!(key.at(Origin::File), "shares.\"my data\".encrypt");
        assert_eq!(CORES.with(0).at(Origin::File), "limits.cores = 0");
        assert_eq!(CORES.with(0).at(Origin::Flags), "--cores 0");
    }
}
