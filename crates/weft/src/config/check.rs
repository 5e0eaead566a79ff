//! Turns a configuration into a plan: checks that it is possible and consistent.
//!
//! This file owns the rules between keys. Certificates and the keytab are read here, once, so that errors in them are
//! reported before anything is bound. Folders and volumes are not opened, because a second server may have them, and
//! no configured port is bound. What is at the shares' paths is known from [`Looks`], because file systems may hang, and the
//! server's own files are touched only if those of their file systems have answered.

use std::fmt;
use std::fs::Metadata;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use weft_machine::confine::{self, Use};
use weft_machine::credentials::Credentials;
use weft_machine::file::{pipe, regular};
use weft_machine::net::{Tls, TlsError};
use weft_machine::nss;
use weft_smb::auth::Keytab;
use weft_smb::server::dfs::{BadNamespace, Namespace};
use weft_store::rules::{ActsAs, Export, Protection};
use weft_store::snapshots::Snapshots;
use weft_store::volume::{Error as VolumeError, Volumes};
use zeroize::Zeroizing;

use super::admin::{AdminAddress, read_token};
use super::error::Give;
use super::key::{self, Key, OfShare, Origin, quoted};
use super::looks::Looks;
use super::own::{self, OwnFile, own_files, volume_files};
use super::secret::{self, Secret};
use super::share::{FolderFault, MAX_NAME_CHARS};
use super::types::{DurationText, Size, Type};
use super::{
    CertificateConfig, ConfigError, MAX_CORES, MAX_SLOW, MAX_SPIN, MIN_BUFFERS_BYTES, MIN_SLOW, Problem,
    ServeConfig, ShareConfig, ShareSource, Sources, announce, are_buffers, exposed, macs, ports,
};
use crate::addresses::Addresses;
use crate::out::{ShellCommand, path_name};

/// The longest file with certificates or a key: those of all public authorities have a quarter of it.
const MOST_PEM_BYTES: usize = 1 << 20;

/// Makes a protocol's TLS from a chain, a key, and the authorities for client certificates.
type MakeTls = fn(&[u8], &[u8], Option<&[u8]>) -> Result<Tls, TlsError>;

/// A configuration that can be served, as far as that is known without binding and opening. Only
/// [`ServeConfig::check`] makes one.
pub(crate) struct Plan {
    config: ServeConfig,
    /// The configured addresses that this host has.
    pub listen: Addresses,
    /// The shares of folders and ramdisks; their names differ.
    pub shares: Vec<PlannedShare>,
    /// The shares of the file whose folders cannot be served now.
    pub absent: Vec<AbsentShare>,
    /// TLS for NFS.
    pub nfs_tls: Option<Tls>,
    /// TLS for NBD.
    pub nbd_tls: Option<Tls>,
    /// The keytab for Kerberos tickets.
    pub keytab: Option<Arc<Keytab>>,
    /// TLS for the admin server.
    pub admin_tls: Option<Tls>,
    /// The token that clients of the admin server must show.
    pub admin_token: Option<Zeroizing<String>>,
    /// The DFS links of all shares.
    pub dfs: Namespace,
    /// What is at the shares' paths.
    pub looks: Looks,
}

/// A share that can be opened.
pub(crate) struct PlannedShare {
    /// Its configuration.
    pub config: ShareConfig,
    /// The snapshots of its folder.
    pub snapshots: Option<Arc<Snapshots>>,
}

/// A share of a configuration file whose folder cannot be served now, for example because its disk is not mounted. The
/// server continues without it.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
pub(crate) struct AbsentShare {
    /// Its name.
    pub name: String,
    /// Its folder.
    pub source: String,
    /// The reason.
    pub why: String,
    /// Whether only a restart of the server can end it.
    #[serde(default)]
    pub needs_restart: bool,
    /// Whether its file system does not answer.
    #[serde(default)]
    pub is_silent: bool,
}

impl AbsentShare {
    /// A share with this folder, for this reason.
    pub(crate) fn new(name: &str, folder: &Path, why: impl fmt::Display) -> AbsentShare {
        let source = folder.display().to_string();
        AbsentShare {
            name: name.to_owned(),
            source,
            why: why.to_string(),
            needs_restart: false,
            is_silent: false,
        }
    }

    /// The reason, and what to type.
    pub(crate) fn told(&self) -> String {
        if self.needs_restart {
            return self.why.clone();
        }
        let reload = ShellCommand::new("weft reload").here();
        if self.is_silent {
            return format!("{}. Once it answers, `{reload}` serves the share", self.why);
        }
        format!("{}. Afterwards, or once its file system is mounted, `{reload}` serves the share", self.why)
    }
}

impl fmt::Display for AbsentShare {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "share {} is not served: {}", self.name, self.told())
    }
}

impl Plan {
    /// The configuration that the plan was made from.
    pub(crate) fn config(&self) -> &ServeConfig {
        &self.config
    }

    /// Whether there is something for users who log on; NBD has no users.
    pub(crate) fn serves_files(&self) -> bool {
        self.config.serves_files()
    }

    /// The directory of state that survives a restart, if there is one.
    pub(crate) fn state_dir(&self) -> Option<PathBuf> {
        self.config.state_dir()
    }

    /// The configured folders whose file systems have answered.
    pub(crate) fn folders(&self) -> impl Iterator<Item = &Path> {
        let folders = self.config.shares.iter().filter_map(|share| share.source.folder());
        folders.filter(|path| self.looks.has_answered(path))
    }

    /// The share that contains the volumes, if it is configured.
    pub(crate) fn shared_volumes(&self) -> Option<&ShareConfig> {
        self.config.shares.iter().find(|share| share.source == ShareSource::Volumes)
    }
}

/// A rule between keys.
type Rule = fn(&ServeConfig) -> Result<(), ConfigError>;

/// The rules that are checked before those of each share.
const FIRST: [Rule; 7] = [
    ServeConfig::check_buffers,
    ServeConfig::check_cores,
    ServeConfig::check_spin,
    ServeConfig::check_slow,
    ServeConfig::check_congestion,
    ServeConfig::check_admin,
    ServeConfig::check_audit,
];
/// The rules that are checked after those of each share.
const LAST: [Rule; 10] = [
    ServeConfig::check_kerberos,
    macs::check,
    ServeConfig::check_volumes,
    ServeConfig::check_nfs,
    |config| ports::check(config, config.serves_files()),
    ServeConfig::check_capture,
    ServeConfig::check_state,
    announce::check,
    ServeConfig::check_addresses,
    ServeConfig::check_stored_volumes,
];

impl ServeConfig {
    /// Checks whether it can be served, and warns about shares that bypass each other's rules.
    ///
    /// # Errors
    /// The first key that is wrong.
    pub(crate) fn check(self) -> Result<Plan, ConfigError> {
        FIRST.iter().try_for_each(|rule| rule(&self))?;
        (0..self.shares.len()).try_for_each(|i| self.check_name(i))?;
        let looks = self.look();
        self.silent_files(&looks).next().map_or(Ok(()), Err)?;
        let absent = self.absent_shares(&looks);
        let mut shares = Vec::new();
        for share in &self.shares {
            match self.check_share(share, &looks) {
                Err(e) if !self.is_tolerated(share, &e, &absent) => return Err(e),
                Ok(planned) if share.source != ShareSource::Volumes => shares.push(planned),
                _ => {}
            }
        }
        LAST.iter().try_for_each(|rule| rule(&self))?;
        exposed::check(&self, &looks)?;
        // Every file is read once, because it may be a pipe.
        let (dfs, keytab, nfs_tls, nbd_tls) = (self.dfs()?, self.keytab()?, self.nfs_tls()?, self.nbd_tls()?);
        let (admin_tls, admin_token) = (self.admin_tls()?, self.admin_token()?);
        for warning in self.warnings(&looks) {
            tracing::warn!("{warning}");
        }
        let listen = self.addresses().without_absent();
        Ok(Plan {
            listen,
            shares,
            absent,
            nfs_tls,
            nbd_tls,
            keytab,
            admin_tls,
            admin_token,
            dfs,
            looks,
            config: self,
        })
    }

    /// Looks at the folders of its shares, its volumes, and the server's own files.
    pub(crate) fn look(&self) -> Looks {
        let folders = self.shares.iter().flat_map(|share| match &share.source {
            ShareSource::Folder(path) => {
                let snapshots = share.snapshots.as_ref();
                let snapshots = snapshots.and_then(|pattern| Snapshots::new(path, pattern).ok());
                let elsewhere = snapshots.and_then(|snapshots| snapshots.elsewhere().map(Path::to_owned));
                [Some(path.clone()), elsewhere]
            }
            ShareSource::Ram { .. } | ShareSource::Volumes => [None, None],
        });
        let mut looks = Looks::at(folders.flatten().chain(self.own_paths()));
        let files = volume_files(self, &looks);
        looks.also_at(files.into_iter().map(|(_, path)| path));
        looks
    }

    /// The paths of the server's own files.
    pub(crate) fn own_paths(&self) -> impl Iterator<Item = PathBuf> {
        own_files(self).into_iter().map(|own| own.path)
    }

    /// An error for each of the server's own files whose file system does not answer. No rule may touch one.
    pub(crate) fn silent_files(&self, looks: &Looks) -> impl Iterator<Item = ConfigError> {
        let silent = |own: OwnFile| {
            let why = looks.silence(&own.path)?;
            // The configuration itself was read.
            Some(self.wrong(own.key?, Problem::Silent { path: own.path, why }))
        };
        own_files(self).into_iter().filter_map(silent)
    }

    /// The shares without which a server starts: those of the file whose folders are missing, unreadable or do not answer,
    /// unless nothing else could be served.
    pub(crate) fn absent_shares(&self, looks: &Looks) -> Vec<AbsentShare> {
        let mut absent = Vec::new();
        for share in self.shares.iter().filter(|share| share.origin == Origin::File) {
            if let (ShareSource::Folder(path), Err(e)) = (&share.source, self.check_share(share, looks))
                && e.is_of_folder()
            {
                let (needs_restart, is_silent) = (e.is_of_confinement(), e.is_of_silence());
                absent.push(AbsentShare {
                    needs_restart,
                    is_silent,
                    ..AbsentShare::new(&share.name, path, e)
                });
            }
        }
        // A server that must be restarted for its first share waits as one without shares does. One whose file systems hang may
        // take over what else has changed.
        let wait = absent.iter().all(|absent| absent.needs_restart || absent.is_silent);
        let is_all = absent.len() == self.shares.len() && self.volumes.is_empty() && !wait;
        if is_all { Vec::new() } else { absent }
    }

    /// Why the folder of a share cannot be served; `None` if it can.
    pub(crate) fn folder_error(&self, name: &str, looks: &Looks) -> Option<ConfigError> {
        let share = self.shares.iter().find(|share| share.is_named(name))?;
        self.check_share(share, looks).err().filter(ConfigError::is_of_folder)
    }

    /// Whether a server starts without a share that has this error.
    fn is_tolerated(&self, share: &ShareConfig, e: &ConfigError, absent: &[AbsentShare]) -> bool {
        e.is_of_folder() && absent.iter().any(|absent| share.is_named(&absent.name))
    }

    /// Every rule that it breaks, in the order of the rules; [`ServeConfig::check`] reports the first.
    pub(crate) fn errors(&self, looks: &Looks) -> impl Iterator<Item = ConfigError> {
        let files: [Rule; 7] = [
            |config| config.dfs().map(drop),
            |config| config.keytab().map(drop),
            |config| config.nfs_tls().map(drop),
            |config| config.nbd_tls().map(drop),
            |config| config.admin_tls().map(drop),
            |config| config.admin_token().map(drop),
            // A start makes or opens them.
            own::check,
        ];
        let names = (0..self.shares.len()).map(|i| self.check_name(i));
        let absent = self.absent_shares(looks);
        let shares = self.shares.iter().map(move |share| match self.check_share(share, looks) {
            Err(e) if !self.is_tolerated(share, &e, &absent) => Err(e),
            _ => Ok(()),
        });
        let silent: Vec<ConfigError> = self.silent_files(looks).collect();
        let all_answer = silent.is_empty();
        let first = FIRST.iter().map(|rule| rule(self));
        let last = LAST.into_iter().filter(move |_| all_answer).map(|rule| rule(self));
        let exposed = all_answer.then_some(()).into_iter().map(|()| exposed::check(self, looks));
        let files = files.into_iter().filter(move |_| all_answer).map(|rule| rule(self));
        let silent = silent.into_iter().map(Err);
        let all = first.chain(names).chain(silent).chain(shares).chain(last).chain(exposed).chain(files);
        all.filter_map(Result::err)
    }

    /// An error about this configuration.
    pub(crate) fn wrong(&self, key: Key, problem: Problem) -> ConfigError {
        ConfigError::new(self.sources.clone(), key, problem)
    }

    /// Where its values were written, to record more.
    pub(crate) fn sources_mut(&mut self) -> &mut Sources {
        Arc::make_mut(&mut self.sources)
    }

    /// Shares that serve the same files under different rules, each with its key; or that there is nothing to serve.
    pub(crate) fn warnings(&self, looks: &Looks) -> Vec<ConfigError> {
        let mut warnings = exposed::bypasses(self, looks);
        warnings.extend(self.missing_addresses());
        warnings.extend(self.closed_folders(looks));
        warnings.extend(announce::warnings(self));
        warnings.extend(own::missing_folders(self, looks));
        warnings.extend(own::closed_folders(self, looks));
        if self.shares.is_empty() && self.volumes.is_empty() {
            warnings.push(self.wrong(key::SHARES, Problem::NothingServed));
        }
        let forced = self.shares.iter().filter(|share| share.force_user.is_some());
        for share in forced.filter(|_| !weft_store::is_root()) {
            let why = "has no effect, because only a server that runs as root can act as another user";
            warnings.push(self.wrong(Key::of_share(&share.name, key::FORCE_USER), Problem::Unfit(why)));
        }
        warnings
    }

    /// A key with its value, as an option and a file have it.
    pub(super) fn with_value(&self, key: &Key, typed: impl fmt::Display, in_file: Option<String>) -> Key {
        match (self.sources.origin_of(key), in_file) {
            (Origin::File, Some(value)) => key.with(value),
            (Origin::File, None) => key.clone(),
            (Origin::Flags, _) => key.with(typed),
        }
    }

    /// Checks that no share contains keys of the server, or what it trusts. [`ServeConfig::check`] does so, too.
    pub(crate) fn check_exposure(&self, looks: &Looks) -> Result<(), ConfigError> {
        exposed::check(self, looks)
    }

    /// Whether there is something for users who log on.
    pub(super) fn serves_files(&self) -> bool {
        // A server without shares, but with a file, waits for the first one.
        !self.shares.is_empty() || self.replication.enabled || self.volumes.is_empty()
    }

    /// The directory of state that survives a restart, if there is one.
    pub(crate) fn state_dir(&self) -> Option<PathBuf> {
        self.state_dir.clone().or_else(crate::state_dir::state_of_user)
    }

    fn check_buffers(&self) -> Result<(), ConfigError> {
        let (buffers, memory) = (self.limits.buffers_bytes, crate::args::memory());
        match are_buffers(buffers, memory) {
            true => Ok(()),
            false => {
                let problem = Problem::Size { least: MIN_BUFFERS_BYTES, most: memory };
                Err(self.wrong(self.with_value(&key::BUFFERS, buffers, Size::show(&buffers)), problem))
            }
        }
    }

    fn check_cores(&self) -> Result<(), ConfigError> {
        match self.limits.cores.filter(|cores| !(1..=MAX_CORES).contains(cores)) {
            Some(cores) => {
                let problem = Problem::Range { least: 1, most: MAX_CORES as u128 };
                Err(self.wrong(key::CORES.with(cores), problem))
            }
            None => Ok(()),
        }
    }

    fn check_spin(&self) -> Result<(), ConfigError> {
        if self.limits.spin <= MAX_SPIN {
            return Ok(());
        }
        let (spin, problem) = (self.limits.spin, Problem::Duration { most: MAX_SPIN });
        let key = self.with_value(&key::SPIN, spin.as_micros(), DurationText::show(&spin));
        Err(self.wrong(key, problem))
    }

    fn check_slow(&self) -> Result<(), ConfigError> {
        if (MIN_SLOW..=MAX_SLOW).contains(&self.log.slow) {
            return Ok(());
        }
        let problem = Problem::DurationRange { least: MIN_SLOW, most: MAX_SLOW };
        let shown = DurationText::show(&self.log.slow).unwrap_or_default();
        Err(self.wrong(key::LOG_SLOW.with(shown), problem))
    }

    fn check_congestion(&self) -> Result<(), ConfigError> {
        let Some(name) = &self.limits.congestion else { return Ok(()) };
        match crate::args::parse_congestion(name) {
            Ok(_) => Ok(()),
            Err(why) => Err(self.wrong(key::CONGESTION.with(name), Problem::Congestion(why))),
        }
    }

    /// An address that other hosts reach needs a token or certificates of clients; a Unix socket has permissions instead.
    fn check_admin(&self) -> Result<(), ConfigError> {
        let token = self.admin_token_file.as_ref().map(|path| key::ADMIN_TOKEN.with(path.display()));
        let given = |path: &Path| !path.as_os_str().is_empty();
        let tls = self.tls.admin.as_ref().map(|files| match &files.clients {
            _ if given(&files.certificate) => key::ADMIN_CERTIFICATE.with(files.certificate.display()),
            _ if given(&files.key) => key::ADMIN_CERTIFICATE_KEY,
            Some(clients) => key::ADMIN_CERTIFICATE_CLIENTS.with(clients.display()),
            None => key::ADMIN_CERTIFICATE_KEY,
        });
        let Some(address) = &self.admin else {
            let first = token.map(|_| key::ADMIN_TOKEN).or(tls);
            return self.needs(first, "an address", Give::All(vec![key::ADMIN]));
        };
        let has_clients = self.tls.admin.as_ref().is_some_and(|files| files.clients.is_some());
        match (address, token, tls) {
            (AdminAddress::Unix(_), Some(key), _) => {
                let why =
                    "clients of a Unix socket show no token, its permissions decide: leave the token out";
                Err(self.wrong(key, Problem::Unfit(why)))
            }
            (AdminAddress::Unix(_), None, Some(key)) => {
                let why = "a Unix socket has no TLS, its permissions decide: leave the certificate out";
                Err(self.wrong(key, Problem::Unfit(why)))
            }
            (address, None, _) if address.reached_by_others().is_some() && !has_clients => {
                let key = self.with_value(&key::ADMIN, address, Some(quoted(&address.to_string())));
                self.needs(
                    [key],
                    "a token or certificates of clients, because other hosts can reach it",
                    Give::One(vec![key::ADMIN_TOKEN, key::ADMIN_CERTIFICATE_CLIENTS]),
                )
            }
            _ => Ok(()),
        }
    }

    /// Events need a file.
    fn check_audit(&self) -> Result<(), ConfigError> {
        let events = self.audit.events.filter(|_| self.audit.file.is_none());
        self.needs(events.map(|_| key::AUDIT_EVENTS), "a file", Give::All(vec![key::AUDIT_FILE]))
    }

    fn admin_token(&self) -> Result<Option<Zeroizing<String>>, ConfigError> {
        let Some(path) = &self.admin_token_file else { return Ok(None) };
        let wrong = |fault| self.wrong(key::ADMIN_TOKEN, Problem::Token { path: path.clone(), fault });
        read_token(path, &self.owners_of_secrets()).map(Some).map_err(wrong)
    }

    fn owners_of_secrets(&self) -> Vec<u32> {
        secret::owners(self.state_dir().as_deref())
    }

    /// Warns of a private key or a keytab that other users can use. It is not refused: it may be another service's.
    fn warn_of_key(&self, path: &Path) {
        let judge = |found: Metadata| secret::check(Secret::Key, &found, &self.owners_of_secrets()).err();
        // A file that cannot be examined cannot be read either, which its reader reports.
        if let Some(exposed) = path.metadata().ok().and_then(judge) {
            tracing::warn!("the key in {} {exposed}", path_name(path));
        }
    }

    /// Checks that clients can name a share, and that no earlier one has its name.
    fn check_name(&self, index: usize) -> Result<(), ConfigError> {
        let (before, share) = match self.shares.split_at_checked(index) {
            Some((before, [share, ..])) => (before, share),
            _ => return Ok(()),
        };
        let name = share.name.clone();
        let bad =
            |c: char| c.is_control() || matches!(c, '/' | '\\' | ':' | '*' | '?' | '"' | '<' | '>' | '|');
        let length = name.chars().count();
        if !(1..=MAX_NAME_CHARS).contains(&length) || name.chars().any(bad) || [".", ".."].contains(&&*name) {
            return Err(self.wrong(share.key(), Problem::ShareName { name }));
        }
        if share.is_named("IPC$") {
            return Err(self.wrong(share.key(), Problem::PipesName { name }));
        }
        match before.iter().find(|other| other.is_named(&name)) {
            Some(other) => Err(self.wrong(share.key(), Problem::SameName { name, other: other.key() })),
            None => Ok(()),
        }
    }

    fn check_share(&self, share: &ShareConfig, looks: &Looks) -> Result<PlannedShare, ConfigError> {
        let name = &share.name;
        let unfit = |of: OfShare, why| Err(self.wrong(Key::of_share(name, of), Problem::Unfit(why)));
        let mut snapshots = None;
        match &share.source {
            ShareSource::Folder(path) => {
                let real = looks.folder(path).map_err(|fault| {
                    self.wrong(share.key(), Problem::Folder { path: path.clone(), fault })
                })?;
                if let Some(pattern) = &share.snapshots {
                    let found = Snapshots::new(&real, pattern)
                        .map_err(|e| self.wrong(Key::of_snapshots(name, pattern), Problem::Pattern(e)))?;
                    let outside = |path: &Path| confine::is_outside(path, Use::Read);
                    let fault = found.elsewhere().and_then(|elsewhere| match looks.real(elsewhere) {
                        Some(real) => outside(real).then_some((real, FolderFault::Outside)),
                        None if looks.has_answered(elsewhere) => None,
                        None => Some((elsewhere, FolderFault::Silent)),
                    });
                    if let Some((path, fault)) = fault {
                        let path = path.to_owned();
                        return Err(self.wrong(share.key(), Problem::Folder { path, fault }));
                    }
                    snapshots = Some(Arc::new(found));
                }
            }
            ShareSource::Ram { size_bytes } => {
                let most = crate::args::memory();
                if !(1..=most).contains(size_bytes) {
                    return Err(self.wrong(share.key(), Problem::Size { least: 1, most }));
                }
                if share.continuous_availability {
                    return unfit(key::CONTINUOUS, "a ramdisk does not survive the server");
                }
                if share.snapshots.is_some() {
                    return unfit(key::SNAPSHOTS, "a ramdisk has none");
                }
                if share.quota.is_some() {
                    return unfit(
                        key::QUOTA,
                        "the size of a ramdisk is its limit: remove quota, and change ram",
                    );
                }
            }
            ShareSource::Volumes => {}
        }
        let acts = self.forced_user(share)?;
        Ok(PlannedShare { config: ShareConfig { acts, ..share.clone() }, snapshots })
    }

    /// As whom everybody uses the folder of a share, if it names somebody. Only root can.
    pub(crate) fn forced_user(&self, share: &ShareConfig) -> Result<ActsAs, ConfigError> {
        let Some(user) = &share.force_user else { return Ok(ActsAs::Server) };
        let wrong = |problem| self.wrong(Key::of_share(&share.name, key::FORCE_USER), problem);
        match &share.source {
            ShareSource::Folder(_) => {}
            ShareSource::Ram { .. } => return Err(wrong(Problem::Unfit("a ramdisk belongs to the server"))),
            ShareSource::Volumes => return Err(wrong(Problem::Unfit("the volumes belong to the server"))),
        }
        let account = nss::account_of(user)
            .map_err(|source| wrong(Problem::Unanswered { user: user.clone(), source }))?
            .ok_or_else(|| wrong(Problem::NoAccount { user: user.clone() }))?;
        if !weft_store::is_root() {
            return Ok(ActsAs::Server);
        }
        let user = Credentials::new(account.uid, account.gid, &account.groups);
        let user = user.ok_or_else(|| wrong(Problem::NoAccount { user: account.name }))?;
        Ok(ActsAs::User(Arc::new(user)))
    }

    fn check_volumes(&self) -> Result<(), ConfigError> {
        for (i, volume) in self.volumes.iter().enumerate() {
            if self.volumes.iter().take(i).any(|other| other.name == volume.name) {
                return Err(self.wrong(Key::of_volume(&volume.name), Problem::Twice));
            }
        }
        let shared = self.shares.iter().filter(|share| share.source == ShareSource::Volumes);
        for (i, share) in shared.clone().enumerate() {
            let unfit =
                |of: OfShare, why| Err(self.wrong(Key::of_share(&share.name, of), Problem::Unfit(why)));
            if i > 0 {
                return Err(self.wrong(share.key(), Problem::Twice));
            }
            if share.continuous_availability {
                return unfit(
                    key::CONTINUOUS,
                    "this option is for folders, and this share contains the volumes",
                );
            }
            if share.snapshots.is_some() {
                return unfit(
                    key::SNAPSHOTS,
                    "this option is for folders, and this share contains the volumes",
                );
            }
            if share.quota.is_some() {
                return unfit(key::QUOTA, "this option is for folders, and this share contains the volumes");
            }
            if !share.dfs_links.is_empty() {
                return unfit(
                    key::DFS_LINK,
                    "the share that contains the volumes cannot be the root of a DFS namespace",
                );
            }
        }
        if self.volumes.is_empty() {
            // `weft share add` can add the first share to the file of a running server.
            if self.shares.is_empty() && self.sources.file().is_none() {
                return Err(self.wrong(key::SHARES, Problem::NothingServed));
            }
            let shares_them = shared.map(ShareConfig::key).next();
            let asked = [
                (self.listeners.nbd_port.is_some(), key::NBD_PORT),
                (self.listeners.nbd_socket.is_some(), key::NBD_SOCKET),
                (self.tls.nbd.is_some(), key::NBD_CERTIFICATE),
                (self.replication.enabled, key::REPLICATION),
            ];
            let asked = asked.into_iter().filter(|(is_asked, _)| *is_asked).map(|(_, key)| key);
            return self.needs(asked.chain(shares_them), "a volume", Give::All(vec![key::VOLUMES]));
        }
        let has_door = self.listeners.serve_nbd() || self.replication.enabled || shared.count() > 0;
        let wanting = (!has_door).then_some(key::VOLUMES);
        let doors = Give::One(vec![key::NBD_PORT, key::NBD_SOCKET, key::REPLICATION]);
        self.needs(wanting, "a way to serve them", doors)
    }

    /// Every NFS key requires an NFS port: none is accepted without effect, and none serves NFS by itself.
    fn check_nfs(&self) -> Result<(), ConfigError> {
        let listeners = &self.listeners;
        if !listeners.serve_nfs() {
            let exports = self.shares.iter().filter(|share| share.nfs.is_some());
            let exports = exports.map(|share| Key::of_share(&share.name, key::EXPORT));
            let asked = [
                (listeners.mountd_port.is_some(), key::MOUNTD_PORT),
                (listeners.rpcbind_port.is_some(), key::RPCBIND_PORT),
                (self.nfs.register, key::REGISTER),
                (!self.nfs.root_squash, key::NO_ROOT_SQUASH),
                (self.tls.nfs.is_some(), key::NFS_CERTIFICATE),
            ];
            let asked = asked.into_iter().filter(|(is_asked, _)| *is_asked).map(|(_, key)| key);
            let ports = Give::One(vec![key::NFS_PORT, key::NFS_RDMA_PORT]);
            self.needs(asked.chain(exports), "NFS", ports)?;
        }
        let udp = (listeners.nfs_udp && listeners.nfs_port.is_none()).then_some(key::NFS_UDP);
        self.needs(udp, "NFS", Give::All(vec![key::NFS_PORT]))?;
        if self.nfs.register && listeners.rpcbind_port.is_some() {
            return Err(self.wrong(key::REGISTER, Problem::Excludes(key::RPCBIND_PORT)));
        }
        let ways = self.shares.iter().filter_map(|share| Some((&share.name, share.nfs.as_ref()?)));
        let of = |way: fn(&Export) -> bool, value: &'static str| {
            let found = ways.clone().find(|(_, export)| way(export));
            found.map(|(name, _)| Key::of_way(name, value))
        };
        match &self.tls.nfs {
            None => {
                let files = Give::All(vec![key::NFS_CERTIFICATE, key::NFS_CERTIFICATE_KEY]);
                self.needs(of(|export| export.protection > Protection::None, "..."), "a certificate", files)
            }
            Some(CertificateConfig { clients: None, .. }) => {
                let clients = Give::All(vec![key::NFS_CERTIFICATE_CLIENTS]);
                self.needs(
                    of(|export| export.protection == Protection::Mutual, "mtls"),
                    "the authorities that sign client certificates",
                    clients,
                )
            }
            Some(_) => Ok(()),
        }
    }

    /// A capture needs a file, and RDMA.
    fn check_capture(&self) -> Result<(), ConfigError> {
        match &self.rdma.capture {
            Some(capture) if capture.file.as_os_str().is_empty() => {
                self.needs([key::CAPTURE_LIMIT], "a file", Give::All(vec![key::CAPTURE]))
            }
            Some(_) if !self.serves_files() => Err(self.wrong(key::CAPTURE, Problem::NothingByRdma)),
            _ => Ok(()),
        }
    }

    /// Checks that persistent state has a directory, and that clients can find the server again.
    fn check_state(&self) -> Result<(), ConfigError> {
        if let Some(path) = self.state_dir.as_ref().filter(|path| path.exists() && !path.is_dir()) {
            return Err(self.wrong(key::STATE_DIR, Problem::NoFolder(path.clone())));
        }
        let has_place = self.state_dir().is_some();
        if self.replication.enabled && !has_place {
            return Err(self.wrong(key::REPLICATION, Problem::NoStateDir));
        }
        let Some(share) = self.shares.iter().find(|share| share.continuous_availability) else {
            return Ok(());
        };
        let key = Key::of_share(&share.name, key::CONTINUOUS);
        if self.state_dir.is_none() && self.listeners.smb_port == 0 {
            return Err(self.wrong(key, Problem::AnyPort { fixed: key::SMB_PORT }));
        }
        if has_place { Ok(()) } else { Err(self.wrong(key, Problem::NoStateDir)) }
    }

    /// Checks that this host has the addresses, before anything is bound.
    fn check_addresses(&self) -> Result<(), ConfigError> {
        match self.addresses().absent().next() {
            Some(ip) if !self.starts_without_addresses() => {
                Err(self.wrong(key::LISTEN, Problem::Elsewhere(ip)))
            }
            _ => Ok(()),
        }
    }

    /// The folders that clients may change and the server's user may not. Root may do everything.
    fn closed_folders(&self, looks: &Looks) -> Vec<ConfigError> {
        let closed = |share: &ShareConfig| {
            let path = share.source.folder()?;
            let folder = looks.folder(path).ok().filter(|_| looks.is_unwritable(path))?;
            let (share_name, user) = (share.name.clone(), weft_store::own_user());
            Some(self.wrong(share.key(), Problem::Closed { share: share_name, folder, user }))
        };
        self.shares.iter().filter(|share| exposed::may_write(share)).filter_map(closed).collect()
    }

    /// The addresses without which a server starts.
    pub(crate) fn missing_addresses(&self) -> Vec<ConfigError> {
        if !self.starts_without_addresses() {
            return Vec::new();
        }
        let asked = self.addresses();
        asked.absent().map(|ip| self.wrong(key::LISTEN, Problem::NotYet(ip))).collect()
    }

    /// The addresses to listen on.
    pub(super) fn addresses(&self) -> Addresses {
        Addresses::of_each(&self.listeners.addresses).present()
    }

    /// Whether a server starts although this host lacks some addresses: if they are those of a file, and others are
    /// left.
    fn starts_without_addresses(&self) -> bool {
        let asked = self.addresses();
        self.sources.origin_of(&key::LISTEN) == Origin::File && asked.absent().count() < asked.all().len()
    }

    /// Checks that the volumes exist. With replication, a group may restore one.
    fn check_stored_volumes(&self) -> Result<(), ConfigError> {
        let Some(state) = self.state_dir().filter(|_| !self.replication.enabled) else { return Ok(()) };
        let stored = Volumes::at(state.join("volumes"));
        for volume in &self.volumes {
            if let Err(e @ (VolumeError::NotFound(_) | VolumeError::Name(_))) =
                stored.superblock(&volume.name)
            {
                return Err(self.wrong(Key::of_volume(&volume.name), Problem::NoVolume(e)));
            }
        }
        Ok(())
    }

    /// Fails for the first of the keys in `asked`.
    pub(super) fn needs(
        &self,
        asked: impl IntoIterator<Item = Key>,
        what: &'static str,
        give: Give,
    ) -> Result<(), ConfigError> {
        match asked.into_iter().next() {
            Some(key) => Err(self.wrong(key, Problem::Needs { what, give })),
            None => Ok(()),
        }
    }

    fn dfs(&self) -> Result<Namespace, ConfigError> {
        let links = self.shares.iter().flat_map(|share| share.dfs_links.iter().cloned()).collect();
        Namespace::new(links).map_err(|e| {
            let key = match &e {
                BadNamespace::Conflict { root, .. } => Key::of_share(root, key::DFS_LINK),
                BadNamespace::TooMany => key::DFS_LINKS,
            };
            self.wrong(key, Problem::Links(e))
        })
    }

    fn check_kerberos(&self) -> Result<(), ConfigError> {
        let (system, map) = (self.kerberos.system_users, self.kerberos.map.mapped().next().is_some());
        if self.smb.keytab.is_none() {
            let exports = self.shares.iter().filter_map(|share| Some((&share.name, share.nfs.as_ref()?)));
            let ticketed = |export: &Export| export.flavors.iter().any(|flavor| flavor.is_kerberos());
            let asked = exports.filter(|(_, export)| ticketed(export));
            let asked = asked.map(|(name, _)| Key::of_export(name, "sec"));
            self.needs(asked, "a keytab with a key of nfs/HOST", Give::All(vec![key::KEYTAB]))?;
            let key = system.then_some(key::KERBEROS_SYSTEM_USERS).or(map.then_some(key::KERBEROS_MAP));
            self.needs(key, "a keytab", Give::All(vec![key::KEYTAB]))?;
        }
        let useless = system && !self.identity.uses_system();
        let accounts = Give::All(vec![key::SYSTEM_USERS.with(true)]);
        self.needs(useless.then_some(key::KERBEROS_SYSTEM_USERS), "accounts of the system", accounts)
    }

    fn keytab(&self) -> Result<Option<Arc<Keytab>>, ConfigError> {
        let Some(path) = &self.smb.keytab else { return Ok(None) };
        self.warn_of_key(path);
        let key = || key::KEYTAB.with(path.display());
        // The library reads it at each ticket, so it cannot be a pipe, for which that would wait.
        regular::check(path).map_err(|e| self.wrong(key(), Problem::Keytab(e.to_string())))?;
        Keytab::open(path).map(Some).map_err(|e| self.wrong(key(), Problem::Keytab(e.to_string())))
    }

    fn nfs_tls(&self) -> Result<Option<Tls>, ConfigError> {
        let keys = [key::NFS_CERTIFICATE, key::NFS_CERTIFICATE_KEY, key::NFS_CERTIFICATE_CLIENTS];
        self.tls.nfs.as_ref().map(|files| self.read_tls(files, keys, Tls::for_rpc)).transpose()
    }

    fn nbd_tls(&self) -> Result<Option<Tls>, ConfigError> {
        let keys = [key::NBD_CERTIFICATE, key::NBD_CERTIFICATE_KEY, key::NBD_CERTIFICATE_CLIENTS];
        self.tls.nbd.as_ref().map(|files| self.read_tls(files, keys, Tls::from_pem)).transpose()
    }

    fn admin_tls(&self) -> Result<Option<Tls>, ConfigError> {
        let keys = [key::ADMIN_CERTIFICATE, key::ADMIN_CERTIFICATE_KEY, key::ADMIN_CERTIFICATE_CLIENTS];
        self.tls.admin.as_ref().map(|files| self.read_tls(files, keys, Tls::for_http)).transpose()
    }

    fn read_tls(
        &self,
        files: &CertificateConfig,
        [certificate, private, authorities]: [Key; 3],
        make: MakeTls,
    ) -> Result<Tls, ConfigError> {
        // A file of the configuration may lack one of the two.
        let (chain, private_key) = (&files.certificate, &files.key);
        let lacks = |path: &Path| path.as_os_str().is_empty();
        if lacks(private_key) && !lacks(chain) {
            self.needs([certificate.clone()], "its private key", Give::All(vec![private.clone()]))?;
        }
        if lacks(chain) {
            let given = if lacks(private_key) { &authorities } else { &private };
            self.needs([given.clone()], "a certificate", Give::All(vec![certificate.clone()]))?;
        }
        let read = |path: &PathBuf, key: Key| {
            let read = pipe::read(path, MOST_PEM_BYTES);
            read.map_err(|source| self.wrong(key, Problem::Unreadable { path: path.clone(), source }))
        };
        let clients = files.clients.as_ref().map(|path| read(path, authorities.clone())).transpose()?;
        let chain = read(&files.certificate, certificate.clone())?;
        let key = Zeroizing::new(read(&files.key, private)?);
        self.warn_of_key(&files.key);
        make(&chain, &key, clients.as_deref()).map_err(|source| {
            if let (TlsError::Authorities(_), Some(path)) = (&source, &files.clients) {
                return self.wrong(authorities, Problem::Authorities { path: path.clone(), source });
            }
            let (certificate_file, key_file) = (files.certificate.clone(), files.key.clone());
            let problem = Problem::Tls { certificate: certificate_file, key: key_file, source };
            self.wrong(certificate, problem)
        })
    }
}
