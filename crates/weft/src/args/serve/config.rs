//! Turns the options of `weft serve` into a configuration. `crate::config` checks whether it can be served.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use super::{Serve, SmbSigning};
use crate::config::{
    ConfigError, Key, Limits, Listeners, Looks, Origin, Problem, RdmaConfig, ReplicationConfig, ServeConfig,
    ShareConfig, ShareSource, SmbConfig, TlsConfig, VolumeConfig, capture, certificate, key, keys_of_option,
    share_of_folder,
};
use crate::default_port;
use crate::out::path_name;

/// The variable that sets `--state-dir`.
const STATE_DIR_VARIABLE: &str = "WEFT_STATE_DIR";

impl Serve {
    /// Whether the options name something to serve.
    pub(crate) fn names_served(&self) -> bool {
        !self.dirs.is_empty() || !self.ram.is_empty() || !self.volume.is_empty()
    }

    /// The configuration from these options and a file. An option that the user has given overrides the file; shares and
    /// volumes are added to those of the file.
    ///
    /// # Errors
    /// A folder has no name, or an option names no share.
    pub(crate) fn config_over(mut self, file: Option<ServeConfig>) -> Result<ServeConfig, ConfigError> {
        let typed = self.typed.take().filter(|_| file.is_some());
        let given = |option: &str| typed.as_ref().is_none_or(|typed| typed.contains(option));
        let mut config = file.unwrap_or_default();
        for option in typed.iter().flatten() {
            let option = format!("--{}", option.replace('_', "-"));
            config.sources_mut().overridden(&option, keys_of_option(&option));
        }
        if given("state_dir") {
            config.state_dir = self.state_dir.take();
            let variable = std::env::var_os(STATE_DIR_VARIABLE).map(PathBuf::from);
            if variable.is_some() && variable == config.state_dir {
                config.sources_mut().of_variable("--state-dir", STATE_DIR_VARIABLE);
            }
        }
        if given("user") {
            config.user = self.user.take();
        }
        if given("admin") {
            config.admin = self.admin.take();
        }
        if given("admin_token_file") {
            config.admin_token_file = self.admin_token_file.take();
        }
        if given("log_format") {
            config.log.format = self.log_format;
        }
        self.listeners(&mut config.listeners, &given);
        self.limits(&mut config.limits, &given);
        self.smb(&mut config.smb, &given);
        self.rdma(&mut config.rdma, &given);
        if given("no_root_squash") {
            config.nfs.root_squash = !self.no_root_squash;
        }
        if given("rpcbind") {
            config.nfs.register = self.rpcbind;
        }
        self.certificates(&mut config.tls);
        if given("unconfined") {
            (config.confine.landlock, config.confine.seccomp) = (!self.unconfined, !self.unconfined);
        }
        if given("replica") {
            config.replication = ReplicationConfig { enabled: self.replica };
        }
        let volumes = std::mem::take(&mut self.volume).into_iter();
        config.volumes.extend(volumes.map(|name| VolumeConfig { name, read_only: false }));
        for volume in config.volumes.iter_mut().filter(|_| self.nbd_read_only) {
            volume.read_only = true;
            Arc::make_mut(&mut config.sources).overridden_key(&Key::of_volume_read_only(&volume.name));
        }
        self.shares(&mut config)?;
        self.rules(&mut config)?;
        Ok(config)
    }

    fn listeners(&mut self, listeners: &mut Listeners, given: &impl Fn(&str) -> bool) {
        if given("listen") {
            listeners.addresses = std::mem::take(&mut self.listen);
        }
        if given("smb_port") {
            listeners.smb_port = self.smb_port;
        }
        if given("smbd_port") {
            listeners.smb_direct_port = self.smbd_port;
        }
        if given("nfs_port") {
            listeners.nfs_port = self.nfs_port;
        }
        if given("nfs_rdma_port") {
            listeners.nfs_rdma_port = self.nfs_rdma_port;
        }
        if given("mountd_port") {
            listeners.mountd_port = self.mountd_port;
        }
        if given("rpcbind_port") {
            listeners.rpcbind_port = self.rpcbind_port;
        }
        if given("nfs_udp") {
            listeners.nfs_udp = self.nfs_udp;
        }
        if given("nbd") || given("nbd_port") {
            listeners.nbd_port = self.nbd_port.or(self.nbd.then_some(default_port::NBD));
        }
        if given("nbd_socket") {
            listeners.nbd_socket = self.nbd_socket.take();
        }
    }

    fn limits(&mut self, limits: &mut Limits, given: &impl Fn(&str) -> bool) {
        if given("buffers") {
            limits.buffers_bytes = self.buffers;
        }
        if given("cores") {
            limits.cores = self.cores;
        }
        if given("pin") {
            limits.pin = self.pin;
        }
        if given("spin_us") {
            limits.spin = Duration::from_micros(self.spin_us);
        }
        if given("congestion") {
            limits.congestion = self.congestion.take();
        }
    }

    fn smb(&mut self, smb: &mut SmbConfig, given: &impl Fn(&str) -> bool) {
        if given("signing") || given("require_signing") {
            smb.signing = self.smb_signing();
        }
        if given("min_dialect") {
            smb.min_dialect = self.min_dialect;
        }
        if given("server_name") {
            smb.server_names = std::mem::take(&mut self.server_name);
        }
        if given("require_encryption") {
            smb.require_encryption = self.require_encryption;
        }
        if given("posix") {
            smb.posix = self.posix;
        }
        if given("compress") {
            smb.compress = self.compress;
        }
        if given("keytab") {
            smb.keytab = self.keytab.take();
        }
    }

    fn rdma(&mut self, rdma: &mut RdmaConfig, given: &impl Fn(&str) -> bool) {
        if given("rdma") {
            rdma.providers = std::mem::take(&mut self.rdma);
        }
        if given("crc") {
            rdma.crc = self.crc;
        }
        // Each of the two may be given beside the other in a file.
        if let Some(file) = self.pcap.take() {
            capture(rdma).file = file;
        }
        if let Some(limit_bytes) = self.pcap_limit {
            capture(rdma).limit_bytes = limit_bytes;
        }
    }

    /// Each option replaces one path of the file. The authorities of the file stay unless an option names others:
    /// otherwise a new certificate would admit clients that the file refuses.
    fn certificates(&mut self, tls: &mut TlsConfig) {
        let nfs = (self.nfs_tls_cert.take(), self.nfs_tls_key.take(), self.nfs_tls_clients.take());
        let nbd = (self.nbd_tls_cert.take(), self.nbd_tls_key.take(), self.nbd_tls_clients.take());
        let admin = (self.admin_tls_cert.take(), self.admin_tls_key.take(), self.admin_tls_clients.take());
        let each = [(&mut tls.nfs, nfs), (&mut tls.nbd, nbd), (&mut tls.admin, admin)];
        for (files, (chain, key, clients)) in each {
            if let Some(path) = chain {
                certificate(files).certificate = path;
            }
            if let Some(path) = key {
                certificate(files).key = path;
            }
            if clients.is_some() {
                certificate(files).clients = clients;
            }
        }
    }

    /// Adds the shares.
    fn shares(&mut self, config: &mut ServeConfig) -> Result<(), ConfigError> {
        let mut shares = Vec::new();
        let looks = Looks::at(&self.dirs);
        for path in std::mem::take(&mut self.dirs) {
            let key = Key::typed(path_name(&path));
            config.sources_mut().overridden(&key.at(Origin::Flags), []);
            let share = share_of_folder(&path, &looks);
            shares.push(share.map_err(|fault| config.wrong(key, Problem::Folder { path, fault }))?);
        }
        let ram = |(name, size_bytes)| ShareConfig::new(name, ShareSource::Ram { size_bytes });
        shares.extend(std::mem::take(&mut self.ram).into_iter().map(ram));
        shares.extend(self.share_volumes.take().map(|name| ShareConfig::new(name, ShareSource::Volumes)));
        for share in shares {
            config.sources_mut().overridden(&share.key().at(Origin::Flags), []);
            config.shares.push(share);
        }
        Ok(())
    }

    /// Adds the rules of shares.
    fn rules(self, config: &mut ServeConfig) -> Result<(), ConfigError> {
        let mut exported: Vec<String> = Vec::new();
        for export in self.export {
            let share = find_share(config, key::EXPORT, &export.name)?;
            export.apply(share.nfs.get_or_insert_default());
            let keys: Vec<Key> = export.keys().map(|rule| Key::of_export(&share.name, rule)).collect();
            keys.iter().for_each(|key| config.sources_mut().overridden_key(key));
            if exported.iter().any(|name| name.eq_ignore_ascii_case(&export.name)) {
                let key = Key::of_share(&export.name, key::EXPORT);
                return Err(config.wrong(key, Problem::ExportTwice { name: export.name }));
            }
            exported.push(export.name);
        }
        for name in &self.encrypt_share {
            share_of(config, key::ENCRYPT, name)?.encrypt = true;
        }
        for name in &self.hide_unreadable {
            share_of(config, key::HIDE_UNREADABLE, name)?.hide_unreadable = true;
        }
        for name in &self.read_only {
            share_of(config, key::READ_ONLY, name)?.read_only = true;
        }
        for name in &self.continuous_availability {
            share_of(config, key::CONTINUOUS, name)?.continuous_availability = true;
        }
        for name in &self.compress_share {
            share_of(config, key::COMPRESS, name)?.compress = true;
        }
        for (name, pattern) in self.snapshots {
            share_of(config, key::SNAPSHOTS, &name)?.snapshots = Some(pattern);
        }
        for link in self.dfs_link {
            let name = link.root().to_owned();
            share_of(config, key::DFS_LINK, &name)?.dfs_links.push(link);
        }
        Ok(())
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

/// The share that an option names, whose key the option overrides.
fn share_of<'a>(
    config: &'a mut ServeConfig,
    option: key::OfShare,
    name: &str,
) -> Result<&'a mut ShareConfig, ConfigError> {
    let key = Key::of_share(&find_share(config, option, name)?.name, option);
    config.sources_mut().overridden_key(&key);
    find_share(config, option, name)
}

/// The share that an option names.
fn find_share<'a>(
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
    use crate::config::Sources;

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
        serve.config_over(None)
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
        let user = Some("alice".to_owned());
        // The environment may name a state directory.
        let (state_dir, sources) = (asked.state_dir.clone(), asked.sources.clone());
        assert_eq!(asked, ServeConfig { shares, user, state_dir, sources, ..ServeConfig::default() });
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

    /// The configuration of a line in addition to a file.
    fn over(file: &str, line: &str) -> Result<ServeConfig, ConfigError> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("weft.toml");
        std::fs::write(&path, file).unwrap();
        let words = ["weft", "serve", "--config", "weft.toml"].into_iter().chain(line.split_whitespace());
        let Command::Serve(serve) = Args::of_line(words).unwrap().command else { panic!("serve") };
        serve.config_over(Some(crate::config::read(&path).unwrap()))
    }

    #[test]
    fn an_option_that_is_typed_overrides_the_file_and_a_default_does_not() {
        let file = "user = \"bob\"\n[listeners]\nsmb_port = 1\nnfs_port = 2\nsmb_direct_port = 3\n\
                    [limits]\ncores = 3\npin = true\n[smb]\nsigning = \"required\"\n\
                    [shares.a]\nram = \"1M\"\nnfs.async = true\n[volumes]\nv = {}\n";
        let kept = over(file, "").unwrap();
        assert_eq!(
            (kept.listeners.smb_port, kept.listeners.nfs_port, kept.listeners.nbd_port),
            (1, Some(2), None)
        );
        assert_eq!(kept.user.as_deref(), Some("bob"));
        assert!(kept.limits.pin && kept.smb.signing == weft_smb::server::Signing::Required);
        let line =
            "--smb-port 9 --cores 4 --mountd-port 0 --nbd --read-only A --export a:ro --ram b=2M --volume w";
        let typed = over(file, line).unwrap();
        assert_eq!((typed.listeners.smb_port, typed.listeners.nfs_port), (9, Some(2)));
        assert_eq!(typed.listeners.mountd_port, Some(0));
        assert_eq!((typed.limits.cores, typed.limits.pin), (Some(4), true));
        assert_eq!(typed.listeners.nbd_port, Some(default_port::NBD));
        let [a, b] = &typed.shares[..] else { panic!("two shares") };
        assert!(a.read_only && !b.read_only && b.source == ShareSource::Ram { size_bytes: 2 << 20 });
        // The words of the option are added to those of the file.
        assert!(a.nfs.as_ref().is_some_and(|export| export.read_only && export.asynchronous));
        assert_eq!(typed.volumes.iter().map(|v| v.name.as_str()).collect::<Vec<_>>(), ["v", "w"]);
    }

    #[test]
    fn an_option_keeps_what_the_file_says_beside_it() {
        let file = "[rdma.capture]\nlimit = \"2M\"\n[tls.nbd]\ncertificate = \"a\"\nkey = \"b\"\nclients = \"/c\"\n\
                    [volumes]\nv = {}\n";
        let kept = over(file, "--pcap /x --nbd-tls-cert /d --nbd-tls-key /e --nbd-read-only").unwrap();
        assert_eq!(kept.rdma.capture.unwrap().limit_bytes, 2 << 20);
        let tls = kept.tls.nbd.unwrap();
        assert_eq!((tls.certificate, tls.key), ("/d".into(), "/e".into()));
        assert_eq!(tls.clients, Some("/c".into()));
        assert!(kept.volumes.iter().all(|volume| volume.read_only));
        let alone = over(file, "--pcap-limit 3M --nbd-tls-key /e").unwrap();
        let capture = alone.rdma.capture.unwrap();
        assert_eq!((capture.limit_bytes, capture.file.as_os_str().is_empty()), (3 << 20, true));
        // Relative paths are those of the file's folder.
        let tls = alone.tls.nbd.unwrap();
        assert!(
            tls.certificate.ends_with("a") && tls.key == Path::new("/e") && tls.clients == Some("/c".into())
        );
        let tls = over(file, "--nbd-tls-clients /f").unwrap().tls.nbd.unwrap();
        assert!(tls.certificate.ends_with("a") && tls.key.ends_with("b") && tls.clients == Some("/f".into()));
        let both =
            over(file, "--pcap /x --pcap-limit 3M --nbd-tls-cert /d --nbd-tls-key /e --nbd-tls-clients /f");
        let both = both.unwrap();
        assert_eq!(both.rdma.capture.unwrap().limit_bytes, 3 << 20);
        assert_eq!(both.tls.nbd.unwrap().clients, Some("/f".into()));
    }

    /// `--export a:async` dropped the networks, the certificates and the read-only rule of the file.
    #[test]
    fn an_option_about_one_rule_of_an_export_weakens_no_other() {
        let file = "[listeners]\nnfs_port = 0\n[shares.a]\nram = \"1M\"\n[shares.a.nfs]\nread_only = true\n\
                    squash = \"all_squash\"\nnet = [\"192.0.2.0/24\"]\nxprtsec = \"mtls\"\n";
        let before = over(file, "").unwrap().shares[0].nfs.clone().unwrap();
        let typed = over(file, "--export A:async,insecure").unwrap();
        let export = typed.shares[0].nfs.clone().unwrap();
        assert!(export.asynchronous && export.ports == Some(weft_store::rules::Ports::Any));
        let ports = before.ports;
        assert_eq!(weft_store::rules::Export { asynchronous: false, ports, ..export }, before);
        let shown = crate::config::reference::effective(&typed);
        for (rule, origin) in [
            ("async", "--export a"),
            ("secure", "--export a"),
            ("anonuid", "default"),
            ("net", "weft.toml:8:1"),
        ] {
            let found = shown.iter().find(|one| one.key == format!("shares.a.nfs.{rule}")).unwrap();
            assert!(found.origin.ends_with(origin), "{rule}: {}", found.origin);
        }
        // A rule that stays is still one of the file.
        let said = typed.check().err().unwrap().to_string();
        assert!(said.contains("weft.toml:9:1: shares.a.nfs.xprtsec needs a certificate"), "{said}");
        let typed = over(file, "--export a:xprtsec=tls").unwrap().check().err().unwrap().to_string();
        assert!(typed.starts_with("--export a:xprtsec=... needs a certificate"), "{typed}");
    }

    #[test]
    fn an_error_names_a_key_as_the_user_has_written_it() {
        let file = "[listeners]\nsmb_port = 1\n[shares.a]\nram = \"1M\"\n[limits]\ncores = 0\n";
        let said = |line: &str| {
            let checked = over(file, line).and_then(ServeConfig::check);
            checked.err().unwrap_or_else(|| panic!("{line} is not refused")).to_string()
        };
        let of_file = said("");
        assert!(
            of_file.ends_with("weft.toml:6:1: limits.cores = 0: write a number from 1 to 1024"),
            "{of_file}"
        );
        for (line, says) in [
            ("--cores 2 --smbd-port 1", "listeners.smb_port and --smbd-port are both 1"),
            ("--cores 2 --smb-port 5 --smbd-port 5", "--smb-port and --smbd-port are both 5"),
            (
                "--cores 2 --continuous-availability a",
                "--continuous-availability a: a ramdisk does not survive",
            ),
            ("--cores 2 --read-only b", "--read-only b: there is no share of that name; the shares are a"),
            (
                "--cores 2 --ram A=1M",
                "two shares are named \"A\", shares.a.ram (line 4) and --ram A, which clients cannot distinguish",
            ),
            ("--cores 2 /none/x", "cannot serve /none/x: no such folder"),
            ("--cores 2 --volume v --nbd --volume v", "--volume v is given twice"),
        ] {
            let said = said(line);
            assert!(said.starts_with(says), "{line}: {said}");
        }
    }

    #[test]
    fn an_error_of_a_file_names_its_key() {
        let folder = tempfile::tempdir().unwrap();
        let asked = |line: &str, change: fn(&mut ServeConfig)| {
            let mut asked = config(folder.path(), line).unwrap();
            asked.sources = Arc::new(Sources::of_file(Path::new("weft.toml")));
            asked.shares.iter_mut().for_each(|share| share.origin = Origin::File);
            change(&mut asked);
            asked.check().err().unwrap_or_else(|| panic!("{line} is not refused")).to_string()
        };
        let ram = "--ram a=1M";
        for (refused, says) in [
            (asked(ram, |c| c.limits.cores = Some(0)), "limits.cores = 0: write a number from 1 to 1024"),
            (asked(ram, |c| c.limits.buffers_bytes = 1), "limits.buffers = \"1\": write a size from 64M to "),
            (asked(ram, |c| c.limits.spin *= 1 << 20), "limits.spin = "),
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
                "shares.data.path: cannot serve /none/x: no such folder; create it: mkdir -p /none/x",
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
