//! Turns the options of `weft serve` into a configuration. `crate::config` checks whether it can be served.

use std::time::Duration;

use super::{Serve, SmbSigning};
use crate::config::{
    CAPTURE_BYTES, CaptureConfig, CertificateConfig, ConfigError, Key, Limits, Listeners, NfsConfig, Origin,
    Problem, RdmaConfig, ReplicationConfig, ServeConfig, ShareConfig, ShareSource, SmbConfig, TlsConfig,
    UserConfig, VolumeConfig, key, share_of_folder,
};
use crate::default_port;

impl Serve {
    /// The configuration that these options ask for.
    ///
    /// # Errors
    /// A folder has no name, or an option names no share.
    pub(crate) fn config(self) -> Result<ServeConfig, ConfigError> {
        let signing = self.smb_signing();
        let limit_bytes = self.pcap_limit.unwrap_or(CAPTURE_BYTES);
        let mut config = ServeConfig {
            origin: Origin::Flags,
            state_dir: self.state_dir,
            listeners: Listeners {
                addresses: self.listen,
                smb_port: self.smb_port,
                smb_direct_port: self.smbd_port,
                nfs_port: self.nfs_port,
                nfs_rdma_port: self.nfs_rdma_port,
                mountd_port: self.mountd_port,
                rpcbind_port: self.rpcbind_port,
                nfs_udp: self.nfs_udp,
                nbd_port: self.nbd_port.or(self.nbd.then_some(default_port::NBD)),
                nbd_socket: self.nbd_socket,
            },
            limits: Limits {
                buffers_bytes: self.buffers,
                cores: self.cores,
                pin: self.pin,
                spin: Duration::from_micros(self.spin_us),
                congestion: self.congestion,
            },
            users: vec![UserConfig { name: self.user }],
            shares: Vec::new(),
            volumes: self
                .volume
                .into_iter()
                .map(|name| VolumeConfig { name, read_only: self.nbd_read_only })
                .collect(),
            replication: ReplicationConfig { enabled: self.replica },
            tls: TlsConfig {
                nfs: certificate(self.nfs_tls_cert, self.nfs_tls_key, self.nfs_tls_clients),
                nbd: certificate(self.nbd_tls_cert, self.nbd_tls_key, self.nbd_tls_clients),
            },
            smb: SmbConfig {
                signing,
                min_dialect: self.min_dialect,
                server_names: self.server_name,
                require_encryption: self.require_encryption,
                posix: self.posix,
                compress: self.compress,
                keytab: self.keytab,
            },
            nfs: NfsConfig { root_squash: !self.no_root_squash, register: self.rpcbind },
            rdma: RdmaConfig {
                providers: self.rdma,
                crc: self.crc,
                capture: self.pcap.map(|file| CaptureConfig { file, limit_bytes }),
            },
        };
        for path in self.dirs {
            let share = share_of_folder(&path);
            let share = share.map_err(|fault| config.wrong(key::SHARES, Problem::Folder { path, fault }))?;
            config.shares.push(share);
        }
        let ram = |(name, size_bytes)| ShareConfig::new(name, ShareSource::Ram { size_bytes });
        config.shares.extend(self.ram.into_iter().map(ram));
        config.shares.extend(self.share_volumes.map(|name| ShareConfig::new(name, ShareSource::Volumes)));
        for export in self.export {
            let share = share_of(&mut config, key::EXPORT, &export.name)?;
            if share.nfs.replace(export.export).is_some() {
                let key = Key::of_share(&export.name, key::EXPORT);
                return Err(config.wrong(key, Problem::ExportTwice { name: export.name }));
            }
        }
        for name in &self.encrypt_share {
            share_of(&mut config, key::ENCRYPT, name)?.encrypt = true;
        }
        for name in &self.hide_unreadable {
            share_of(&mut config, key::HIDE_UNREADABLE, name)?.hide_unreadable = true;
        }
        for name in &self.read_only {
            share_of(&mut config, key::READ_ONLY, name)?.read_only = true;
        }
        for name in &self.continuous_availability {
            share_of(&mut config, key::CONTINUOUS, name)?.continuous_availability = true;
        }
        for name in &self.compress_share {
            share_of(&mut config, key::COMPRESS, name)?.compress = true;
        }
        for (name, pattern) in self.snapshots {
            share_of(&mut config, key::SNAPSHOTS, &name)?.snapshots = Some(pattern);
        }
        for link in self.dfs_link {
            let name = link.root().to_owned();
            share_of(&mut config, key::DFS_LINK, &name)?.dfs_links.push(link);
        }
        Ok(config)
    }

    /// Combines the two options about signing.
    fn smb_signing(&self) -> weft_smb::server::Signing {
        use weft_smb::server::Signing;
        match self.signing {
            _ if self.require_signing => Signing::Required,
            SmbSigning::Auto => Signing::Exposed,
            SmbSigning::Required => Signing::Required,
            SmbSigning::Enabled => Signing::Enabled,
        }
    }
}

/// A certificate with its key; clap requires both.
fn certificate<T>(certificate: Option<T>, key: Option<T>, clients: Option<T>) -> Option<CertificateConfig>
where
    T: Into<std::path::PathBuf>,
{
    let clients = clients.map(Into::into);
    Some(CertificateConfig { certificate: certificate?.into(), key: key?.into(), clients })
}

/// The share that an option names.
fn share_of<'a>(
    config: &'a mut ServeConfig,
    option: key::OfShare,
    name: &str,
) -> Result<&'a mut ShareConfig, ConfigError> {
    match config.shares.iter().position(|share| share.is_named(name)) {
        Some(at) => Ok(&mut config.shares[at]),
        None => {
            let there = config.shares.iter().map(|share| share.name.clone()).collect();
            Err(config.wrong(Key::of_share(name, option), Problem::NoShare { there }))
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::args::{Args, Command};

    /// Parses a command line; `./data` and `./more` are folders in `within`.
    fn config(within: &Path, line: &str) -> Result<ServeConfig, ConfigError> {
        for folder in ["data", "more"] {
            std::fs::create_dir_all(within.join(folder)).unwrap();
        }
        let in_folder = |word: &str| match word.strip_prefix("./") {
            Some(folder) => within.join(folder).display().to_string(),
            None => word.to_owned(),
        };
        let words = line.split_whitespace().map(in_folder);
        let args = Args::of_line(["weft".to_owned(), "serve".to_owned()].into_iter().chain(words)).unwrap();
        let Command::Serve(serve) = args.command else { panic!("serve") };
        serve.config()
    }

    fn refused(line: &str) -> ConfigError {
        let folder = tempfile::tempdir().unwrap();
        let checked = config(folder.path(), line).and_then(ServeConfig::check);
        checked.err().unwrap_or_else(|| panic!("{line} is not refused"))
    }

    #[test]
    fn the_defaults_of_the_options_are_those_of_the_configuration() {
        let folder = tempfile::tempdir().unwrap();
        let asked = config(folder.path(), "./data --user alice --listen localhost").unwrap();
        let shares = vec![ShareConfig::new("data", ShareSource::Folder(folder.path().join("data")))];
        let users = vec![UserConfig { name: "alice".into() }];
        // The environment may name a state directory.
        let state_dir = asked.state_dir.clone();
        assert_eq!(asked, ServeConfig { shares, users, state_dir, ..ServeConfig::default() });
        let nbd = config(folder.path(), "--volume v --nbd").unwrap();
        assert_eq!(nbd.listeners.nbd_port, Some(default_port::NBD));
    }

    #[test]
    fn an_option_of_a_share_is_of_that_share_alone() {
        let folder = tempfile::tempdir().unwrap();
        let asked = config(
            folder.path(),
            "./data ./more --nfs-port 0 --read-only DATA --encrypt-share more --hide-unreadable more --compress-share more \
             --export data:async --dfs-link more/x=//h/s --snapshots data=%F --continuous-availability more",
        )
        .unwrap();
        let [data, more] = &asked.shares[..] else { panic!("two shares") };
        assert!(data.read_only && data.rules().nfs.read_only && data.rules().nfs.asynchronous);
        assert!(
            !data.encrypt && !data.compress && data.dfs_links.is_empty() && !data.continuous_availability
        );
        assert_eq!((data.snapshots.as_deref(), &more.snapshots), (Some("%F"), &None));
        assert!(!more.read_only && more.nfs.is_none() && !more.rules().nfs.read_only);
        assert!(more.rules().encrypted && more.rules().hides_unreadable && more.compress);
        assert!(more.continuous_availability && more.dfs_links.len() == 1);
    }

    /// A mistake in the command line exits with clap's status; a problem of the host does not.
    #[test]
    fn an_error_names_the_option_and_what_to_write() {
        for (line, says, is_misuse) in [
            (
                "./data --read-only dta",
                "--read-only dta: there is no share of that name; the shares are data",
                true,
            ),
            ("./data --dfs-link x/a=//h/s", "--dfs-link x: there is no share of that name", true),
            (
                "./data --nfs-port 0 --export data:ro --export DATA:async",
                "write all options in one, DATA:ro,insecure",
                true,
            ),
            ("./data --ram data=1M", "two shares are named \"data\"", true),
            ("--ram a:b=1M", "--ram a:b: \"a:b\" cannot name a share", false),
            ("--ram ipc$=1M", "is the share of the server's pipes", false),
            ("--volume v --share-volumes=a/b", "--share-volumes=a/b: \"a/b\" cannot name a share", false),
            ("--ram a=1M --snapshots a=%F", "--snapshots a: a ramdisk has none", true),
            (
                "./data --snapshots data=daily",
                "--snapshots data=daily: exactly one component of the path must contain the time",
                true,
            ),
            (
                "--ram a=1M --continuous-availability a",
                "--continuous-availability a: a ramdisk does not survive",
                true,
            ),
            (
                "--volume v --share-volumes --snapshots volumes=%F",
                "--snapshots volumes: this option is for folders",
                true,
            ),
            ("--volume v --volume v --nbd", "--volume v is given twice", true),
            ("--volume v --nbd --pcap x", "--pcap: nothing is served over RDMA", true),
            (
                "./data --nfs-port 0 --export data:xprtsec=tls",
                "--export data:xprtsec=... needs a certificate: give --nfs-tls-cert and --nfs-tls-key",
                true,
            ),
            (
                "./data --nfs-port 0 --nfs-tls-cert /none --nfs-tls-key /none",
                "--nfs-tls-cert: cannot read /none: ",
                false,
            ),
            ("./data --keytab /none", "--keytab /none: ", false),
        ] {
            let refused = refused(line);
            assert!(refused.to_string().contains(says), "{line}: {refused}");
            assert_eq!(refused.is_misuse(), is_misuse, "{line}: {refused}");
            assert!(!refused.to_string().contains("shares."), "{line}: {refused}");
        }
    }

    #[test]
    fn an_error_of_a_file_names_its_key() {
        let folder = tempfile::tempdir().unwrap();
        let asked = |line: &str, change: fn(&mut ServeConfig)| {
            let mut asked = config(folder.path(), line).unwrap();
            asked.origin = Origin::File;
            change(&mut asked);
            asked.check().err().unwrap_or_else(|| panic!("{line} is not refused")).to_string()
        };
        let ram = "--ram a=1M";
        for (refused, says) in [
            (asked(ram, |c| c.limits.cores = Some(0)), "limits.cores = 0: write a number from 1 to 1024"),
            (asked(ram, |c| c.limits.buffers_bytes = 1), "limits.buffers = 1: write a size from 64M to "),
            (asked(ram, |c| c.limits.spin *= 1 << 20), "limits.spin = "),
            (asked(ram, |c| c.users.clear()), "users: configure exactly one user"),
            (asked(ram, |c| c.shares.clear()), "there is neither a share nor a volume"),
            (
                asked(ram, |c| c.shares[0].snapshots = Some("%F".into())),
                "shares.a.snapshots: a ramdisk has none",
            ),
            // On a command line, clap would have refused this option without NFS.
            (
                asked(ram, |c| c.listeners.mountd_port = Some(0)),
                "listeners.mountd_port needs NFS: give listeners.nfs_port or",
            ),
            (asked(ram, |c| c.nfs.root_squash = false), "nfs.root_squash needs NFS"),
            (asked(ram, |c| c.listeners.nfs_udp = true), "listeners.nfs_udp needs NFS"),
            (
                asked(ram, |c| c.listeners.nbd_port = Some(0)),
                "listeners.nbd_port needs a volume: give volumes",
            ),
            (asked("--volume v --nbd", |c| c.listeners.nbd_port = None), "volumes needs a way to serve them"),
            (
                asked("./data", |c| c.shares[0].source = ShareSource::Folder("/none/x".into())),
                "shares.data.folder: cannot serve /none/x: no such folder; create it: mkdir -p /none/x",
            ),
            (
                asked("./data", |c| c.listeners.smb_port = c.listeners.smb_direct_port),
                "listeners.smb_port and listeners.smb_direct_port are both 5445",
            ),
        ] {
            assert!(refused.contains(says), "{says}: {refused}");
            assert!(!refused.contains("--"), "{refused}");
        }
    }
}
