//! The file servers, SMB and NFS, for the same shares. Connections arrive from the ports as channels.

use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;

use futures_util::future::join;
use weft_machine::{LogLimit, Pool, credentials, random, rt};
use weft_nfs::server as nfs;
use weft_smb::auth::Principals;
use weft_smb::server as smb;
use weft_store::Share;
use weft_store::audit::Audit;
use weft_store::rules::{ActsAs, Rules};
use weft_transport::Channel;

use super::error::StartError;
use super::interfaces::{endpoints, interfaces};
use super::log_ons::Listed;
use super::names::{self, host_name};
use super::{durable, status};
use crate::config::{NfsConfig, Plan, ServeConfig, ShareConfig};
use crate::listen;
use crate::ready::Ready;

/// Both servers, before they listen.
#[derive(Clone)]
pub(super) struct FileServers {
    pub smb: Arc<smb::Server>,
    pub nfs: Arc<nfs::Server>,
    serves_nfs: bool,
    /// As whom NFS and SMB use folders, unless a share says it.
    nfs_acts: ActsAs,
    smb_acts: ActsAs,
}

impl FileServers {
    /// Serves these shares, and replication's door over SMB. `ready` contains the ports to announce to clients.
    pub(super) async fn new(
        plan: &Plan,
        listed: Listed,
        (shares, door): (Vec<Share>, Option<Share>),
        ready: &Ready,
        pool: &Pool,
        audit: Audit,
    ) -> Result<FileServers, StartError> {
        let (system, users) = (listed.system.clone(), users_of_nfs(&listed));
        let smb_acts = smb_acts(plan);
        let all = shares.iter().cloned().map(|share| acting(share, &smb_acts)).chain(door).collect();
        let offers = smb::Offers { system: listed.system.clone(), audit: audit.clone(), ..offers(plan)? };
        let smb = smb_server(plan, listed, offers, all, ready, pool)?;
        smb.restore().await?;
        let serves_nfs = plan.config().listeners.serve_nfs();
        let nfs_acts = if serves_nfs { nfs_acts(plan.config().nfs) } else { ActsAs::Server };
        let nfs = nfs_server(plan, by_nfs(shares, serves_nfs, &nfs_acts), ready, pool)?;
        if let Some(keytab) = &plan.keytab {
            let principals = principals(plan.config());
            nfs.accept_tickets(nfs::Kerberos { keytab: keytab.clone(), principals, system, users });
        }
        nfs.audit_to(audit);
        Ok(FileServers { smb, nfs, serves_nfs, nfs_acts, smb_acts })
    }

    /// The function that serves an SMB connection.
    pub(super) fn serve_smb(&self) -> listen::Serve {
        let smb = self.smb.clone();
        service(move |channel| {
            let served = smb.accept(channel.clone());
            let entry = status::show_smb(&served, &channel);
            async move {
                served.run().await;
                drop(entry);
                Ok::<(), std::convert::Infallible>(())
            }
        })
    }

    /// The function that serves a connection of NFS, MOUNT or rpcbind.
    pub(super) fn serve_nfs(&self) -> listen::Serve {
        let nfs = self.nfs.clone();
        service(move |channel| {
            let seen = Rc::default();
            let (nfs, entry) = (nfs.clone(), status::show_nfs(&seen, &channel));
            async move {
                let ended = nfs.serve_watched(channel, &seen).await;
                drop(entry);
                ended
            }
        })
    }

    /// Serves these shares, and replication's door over SMB, to these users from now on.
    pub(super) async fn replace(&self, shares: Vec<Share>, door: Option<Share>, listed: &Listed) {
        let by_smb = shares.iter().cloned().map(|share| acting(share, &self.smb_acts));
        let by_smb: Vec<Share> = by_smb.chain(door).collect();
        // Before clients find a share that has come back, and open the files whose handles wait for their owners.
        if let Err(e) = self.smb.restore_on(&by_smb).await {
            tracing::error!("persistent handles are not restored: {e}");
        }
        // Together, because each may wait for files that are closed on a disk that hangs.
        let nfs = self.nfs.replace_shares(by_nfs(shares, self.serves_nfs, &self.nfs_acts));
        let smb = async {
            self.smb.replace_shares(by_smb);
            self.smb.replace_users(&listed.users, &listed.groups).await;
        };
        self.nfs.replace_users(users_of_nfs(listed));
        join(nfs, smb).await;
    }

    /// Serves these users from now on.
    pub(super) async fn replace_users(&self, listed: &Listed) {
        self.nfs.replace_users(users_of_nfs(listed));
        self.smb.replace_users(&listed.users, &listed.groups).await;
    }

    /// Refuses new requests; those in flight are answered.
    pub(super) fn drain(&self) {
        self.smb.drain();
        self.nfs.drain();
    }
}

/// The users for whom NFS takes principals.
fn users_of_nfs(listed: &Listed) -> nfs::Users {
    let users = listed.users.iter().map(|user| (user.name.as_str(), user.groups.as_slice()));
    nfs::Users::new(users, listed.groups.iter().map(String::as_str))
}

/// The users for whom principals stand.
fn principals(config: &ServeConfig) -> Principals {
    let mut principals: Principals = config.kerberos.map.clone();
    principals.mapped_may_be_system = config.identity.uses_system();
    principals.all_may_be_system = config.kerberos.system_users;
    principals
}

fn smb_server(
    plan: &Plan,
    listed: Listed,
    offers: smb::Offers,
    shares: Vec<Share>,
    ready: &Ready,
    pool: &Pool,
) -> Result<Arc<smb::Server>, StartError> {
    let config = &plan.config().smb;
    if config.min_dialect < smb::Dialect::V3_0 {
        tracing::warn!(
            "--min-dialect {}: this admits SMB 2 clients, whose sessions cannot be encrypted and which do not notice if an attacker \
             in between has chosen the dialect",
            config.min_dialect
        );
    }
    let server_guid = match &offers.journal {
        Some(journal) => journal.server_guid(),
        None => random::bytes()?,
    };
    let mut aliases = config.server_names.clone();
    if plan.config().announce.is_on() {
        let name = plan.config().announce.name_on(&host_name());
        aliases.extend([format!("{name}.local"), name]);
    }
    Ok(smb::Server::new(smb::Config {
        server_guid,
        name: host_name(),
        shares,
        users: listed.users,
        groups: listed.groups,
        names: names::of(&host_name(), &aliases),
        signing: config.signing,
        min_dialect: config.min_dialect,
        require_encryption: config.require_encryption,
        multichannel: true,
        interfaces: interfaces(ready),
        endpoints: endpoints(ready),
        offers,
        pool: pool.clone(),
        limits: smb::Limits::within(listen::quota::descriptors()),
    }))
}

/// As whom NFS uses folders. Its callers name Unix users, so the kernel can judge them; a server that is not root has only
/// its own rights.
fn nfs_acts(config: NfsConfig) -> ActsAs {
    if !config.act_as_callers || !weft_store::is_root() {
        return ActsAs::Server;
    }
    match credentials::check() {
        Ok(()) => {
            tracing::info!(
                "NFS uses folders as the users whom clients name: the kernel judges modes and POSIX ACLs"
            );
            ActsAs::Caller
        }
        Err(e) => {
            tracing::warn!(
                "NFS cannot use folders as the users whom clients name ({e}), so mode bits alone decide, without POSIX ACLs"
            );
            ActsAs::Server
        }
    }
}

/// As whom SMB uses folders. Its users log on, and those with an account of the system can be judged by the kernel.
fn smb_acts(plan: &Plan) -> ActsAs {
    let config = plan.config();
    if !config.smb.act_as_callers || !weft_store::is_root() || !plan.serves_files() {
        return ActsAs::Server;
    }
    if !config.identity.uses_system() {
        tracing::warn!("SMB uses folders as root for every user, because identity.system_users is false");
        return ActsAs::Server;
    }
    match credentials::check() {
        Ok(()) => {
            tracing::info!(
                "SMB uses folders as the accounts of its users: the kernel judges modes and POSIX ACLs"
            );
            ActsAs::Caller
        }
        Err(e) => {
            tracing::warn!(
                "SMB cannot use folders as the accounts of its users ({e}), so it uses them as root for every user"
            );
            ActsAs::Server
        }
    }
}

/// A share whose folder is used as `acts`, unless it has a user of its own.
fn acting(share: Share, acts: &ActsAs) -> Share {
    match share.rules.acts {
        ActsAs::User(_) => share,
        ActsAs::Server | ActsAs::Caller => {
            Share { rules: Rules { acts: acts.clone(), ..share.rules }, ..share }
        }
    }
}

/// The shares that NFS offers, acting as `acts`; tells why it does not offer the others.
fn by_nfs(shares: Vec<Share>, serves_nfs: bool, acts: &ActsAs) -> Vec<Share> {
    let (withheld, offered): (Vec<_>, Vec<_>) =
        shares.into_iter().partition(|share| share.rules.withheld_from_nfs().is_some());
    for share in withheld.iter().filter(|_| serves_nfs) {
        let why = share.rules.withheld_from_nfs().unwrap_or_default();
        tracing::warn!("share {} is not offered over NFS, {why}", share.name);
    }
    offered.into_iter().map(|share| acting(share, acts)).collect()
}

fn nfs_server(
    plan: &Plan,
    shares: Vec<Share>,
    ready: &Ready,
    pool: &Pool,
) -> Result<Arc<nfs::Server>, StartError> {
    let config = plan.config();
    Ok(nfs::Server::new(nfs::Config {
        shares,
        pool: pool.clone(),
        limits: nfs::Limits::within(listen::quota::descriptors()),
        durable: durable::of_nfs(plan, ready)?,
        policy: nfs::Policy { decides: weft_store::is_root(), squash_root: config.nfs.root_squash },
    }))
}

/// The optional features of the SMB server that the configuration enables.
fn offers(plan: &Plan) -> Result<smb::Offers, StartError> {
    let config = plan.config();
    let named = |is: fn(&ShareConfig) -> bool| -> Vec<String> {
        config.shares.iter().filter(|share| is(share)).map(|share| share.name.to_lowercase()).collect()
    };
    let (compressed, continuous) =
        (named(|share| share.compress), named(|share| share.continuous_availability));
    let journal = if continuous.is_empty() { None } else { Some(durable::of_smb(plan)?) };
    Ok(smb::Offers {
        dfs: plan.dfs.clone(),
        compression: config.smb.compress || !compressed.is_empty(),
        compressed,
        keytab: plan.keytab.clone(),
        principals: Arc::new(principals(config)),
        system: None,
        journal,
        continuous,
        posix: config.smb.posix,
        mac_model: config.smb.macos.then(|| config.smb.mac_model.as_str().into()),
        audit: Audit::default(),
    })
}

/// Wraps a protocol's `serve` so that every core can start it; logs a connection's end.
fn service<F, E>(serve: impl Fn(Rc<dyn Channel>) -> F + Send + Sync + 'static) -> listen::Serve
where
    F: Future<Output = Result<(), E>> + 'static,
    E: std::fmt::Display,
{
    Arc::new(move |channel: Rc<dyn Channel>| {
        let (kind, medium, peer) = (channel.kind(), channel.medium(), channel.peer());
        tracing::debug!("{kind:?} over {medium} from {peer}: connected");
        let ended = serve(channel);
        let connection = async move {
            match ended.await {
                Ok(()) => tracing::debug!("{kind:?} over {medium} from {peer}: ended"),
                Err(e) => {
                    static CLOSED: LogLimit = LogLimit::new();
                    if let Some(left_out) = CLOSED.pass(rt::now()) {
                        // Several connections of an address that end about now share one line.
                        tracing::warn!(%peer, error = %e, "{kind:?} over {medium}: closed{left_out}");
                    }
                }
            }
        };
        Box::pin(connection) as Pin<Box<dyn Future<Output = ()>>>
    })
}
