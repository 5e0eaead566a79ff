//! Clients by URL: connects, and presents SMB and NFS as one kind of remote folder.
//!
//! [`dial`] reaches a server's ports and has the choice of transports, [`logon`] limits the time for a log-on or mount
//! and explains why it failed.

mod channels;
mod dial;
mod lasting;
mod links;
mod logon;
mod nfs;
mod probe;
pub(crate) mod reach;
mod smb;

use std::net::{IpAddr, SocketAddr};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::LocalBoxFuture;
use weft_machine::rt::{self, Task};
use weft_machine::{Pool, Stream, Time};
use weft_rdma::Traffic;
use weft_smb::client::{Session, Tree};
use zeroize::Zeroizing;

use self::dial::{Dial, Medium};
use self::smb::session::{Entered, enter};
use crate::Failure;
use crate::args::Connect;
use crate::default_port;
use crate::misuse::Misuse;
use crate::partial::mixed_text;
use crate::password;
use crate::url::{Scheme, Security, Url};
use crate::when::When;

/// How long a port on loopback may take to answer.
const LOOPBACK_LIMIT: Duration = Duration::from_secs(1);
/// Time limit until a server can be used: its name, all addresses, transports and versions tried, DFS links followed,
/// the log-on or mount. Each step also has its own limit.
const WHOLE_LIMIT: Duration = Duration::from_secs(90);
/// How long closing a session may take: some commands fail because the server is gone.
const CLOSE_LIMIT: Duration = Duration::from_secs(5);
/// Longest chain of symbolic links.
const MAX_LINKS: usize = 8;

/// One name in a remote folder.
pub(crate) struct RemoteEntry {
    /// Its name.
    pub name: String,
    /// The name is not UTF-8: `name` displays it, but cannot be used to find it.
    pub garbled: bool,
    /// Whether it is a folder.
    pub folder: bool,
    /// Neither a folder nor a file: a symbolic link, a junction, a device.
    pub special: bool,
    /// Bytes.
    pub size: u64,
    /// Last write.
    pub modified: When,
}

/// Metadata of a remote file or folder.
pub(crate) struct RemoteStat {
    /// Whether it is a folder.
    pub folder: bool,
    /// Neither a folder nor a file, as far as the protocol tells without another request.
    pub special: bool,
    /// Bytes.
    pub size: u64,
    /// Bytes allocated for it.
    pub allocated: u64,
    /// Creation time, if the protocol reports it.
    pub created: Option<When>,
    /// Last write.
    pub modified: When,
    /// Last read.
    pub accessed: When,
    /// Its Unix permissions, if the protocol reports them.
    pub mode: Option<u32>,
}

/// A share as a server lists it.
pub(crate) struct RemoteShare {
    /// Its name.
    pub name: String,
    /// The server's remark about the share.
    pub remark: String,
}

/// The negotiated parameters, and the server's software as far as it is known.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Agreed {
    /// "Weft", "Samba 4.17.12-Debian", ...
    pub software: Option<String>,
    /// "SMB 3.1.1", "NFS 3", "NFS 4.1".
    pub dialect: String,
    /// How messages are signed, if they are.
    pub signing: Option<String>,
    /// How messages are encrypted, if they are.
    pub encryption: Option<String>,
}

type Answer<'a, T> = LocalBoxFuture<'a, Result<T, Failure>>;

/// An open remote file; many operations at a time.
pub(crate) trait RemoteFile {
    /// Size in bytes.
    fn len(&self) -> Answer<'_, u64>;
    /// Reads; short only at the end of the file.
    fn read(&self, offset: u64, len: u32) -> Answer<'_, Bytes>;
    /// Writes all of `data`.
    fn write(&self, offset: u64, data: Bytes) -> Answer<'_, ()>;
    /// Sets the time of the last write; false if the protocol cannot represent that time.
    fn set_modified(&self, at: When) -> Answer<'_, bool>;
    /// Makes what was written durable.
    fn flush(&self) -> Answer<'_, ()>;
    /// Whether the server has restarted since the file was opened: unflushed writes from before may be missing.
    fn is_anew(&self) -> bool {
        false
    }
    /// Truncates the file to this length.
    fn set_len(&self, len: u64) -> Answer<'_, ()>;
    /// Closes the file.
    fn close(&self) -> Answer<'_, ()>;
}

/// An open partial file, beside the file whose new content it will hold.
pub(crate) struct Partial {
    /// Its path.
    pub path: String,
    /// The path of the file to replace, with all links resolved.
    pub target: String,
    /// The file to write to.
    pub file: Rc<dyn RemoteFile>,
    /// A later command can find it by its name.
    pub resumable: bool,
}

/// New content of a file, being written. No other command writes to the partial file until this is closed.
pub(crate) trait RemoteDraft {
    /// The partial file.
    fn partial(&self) -> &Partial;
    /// Replaces the target's content with the partial file's, closes the partial file and removes it. An existing
    /// target keeps its mode, owner, ACLs, hard links and other metadata, as far as the protocol allows. After a
    /// failure the partial file is closed and stays.
    fn replace(&self) -> Answer<'_, ()>;
    /// Removes the partial file.
    fn discard(&self) -> Answer<'_, ()>;
}

/// The mode passed to open(2), before the umask.
pub(crate) const FILE_MODE: u32 = 0o666;

/// Warns that a server does not hide new content from other users.
fn note_shown(path: &str) {
    note!("weft: the server cannot hide the new content of {path} from other users while it is incomplete");
}

/// The error for the second of two concurrent copies.
const UNDER_WAY: &str = "another copy to this file is under way";

/// A share or export.
trait RemoteFolder {
    fn open<'a>(&'a self, path: &'a str, write: bool) -> Answer<'a, Rc<dyn RemoteFile>>;
    fn create<'a>(&'a self, path: &'a str) -> Answer<'a, Rc<dyn RemoteFile>>;
    fn list<'a>(&'a self, path: &'a str) -> Answer<'a, Vec<RemoteEntry>>;
    /// `None` if nothing exists there.
    fn stat<'a>(&'a self, path: &'a str) -> Answer<'a, Option<RemoteStat>>;
    /// A link's target; `None` if it is not a link or the server does not tell.
    fn target<'a>(&'a self, path: &'a str) -> Answer<'a, Option<String>>;
    /// An existing folder is not an error.
    fn mkdir<'a>(&'a self, path: &'a str) -> Answer<'a, ()>;
    fn rmdir<'a>(&'a self, path: &'a str) -> Answer<'a, ()>;
    fn remove<'a>(&'a self, path: &'a str) -> Answer<'a, ()>;
    /// See [`Remote::remove_unfinished`].
    fn remove_unfinished<'a>(&'a self, path: &'a str) -> Answer<'a, bool>;
    /// See [`Remote::draft`]; `target` is not a link.
    fn draft<'a>(
        &'a self,
        target: Behind,
        tag: Option<&'a str>,
        mode: u32,
    ) -> Answer<'a, Box<dyn RemoteDraft + 'a>>;
    /// Changes the spelling of a file's name to the one in `path`.
    fn respell<'a>(&'a self, path: &'a str) -> Answer<'a, ()>;
    fn traffic(&self) -> Traffic;
    fn describe(&self) -> String;
    fn agreed(&self) -> LocalBoxFuture<'_, Agreed>;
    /// How often a request waited for a credit; `None` if the protocol has no credits.
    fn credits_starved(&self) -> Option<u64> {
        None
    }
    /// The current connections, described in a few words each; empty if there is only ever one.
    fn connections(&self) -> Vec<String> {
        Vec::new()
    }
    /// How many connections were lost without effect on operations.
    fn lost_connections(&self) -> u32 {
        0
    }
    /// See [`Remote::outlast`].
    fn outlast(&self, _patience: Duration, _until: Arc<AtomicBool>) {}
    /// How often all connections were lost and re-established.
    fn losses(&self) -> u32 {
        0
    }
    fn close(&self) -> Answer<'_, ()>;
}

/// A connection to a share or export.
pub(crate) struct Remote {
    folder: Box<dyn RemoteFolder>,
    medium: Medium,
    reason: &'static str,
    pool: Pool,
    origin: u32,
}

impl Remote {
    /// Connects to the share of `url`; asks for a password if one is needed and not set.
    pub(crate) async fn connect(url: &Url, options: &Connect, pool: &Pool) -> Result<Remote, Failure> {
        let password = password_for(url, options)?;
        Remote::connect_as(url, options, pool, &password, None).await
    }

    /// Connects with this password and, on TCP, this congestion control.
    pub(crate) async fn connect_as(
        url: &Url,
        options: &Connect,
        pool: &Pool,
        password: &str,
        congestion: Option<&str>,
    ) -> Result<Remote, Failure> {
        let connecting = async |until| {
            let url = &settled(url, options).await?;
            let dial = Dial::new(url, options, pool, congestion, until).await?;
            match url.scheme {
                Scheme::Smb => smb::connect(&dial, password).await,
                Scheme::Nfs => nfs::connect(&dial).await,
            }
        };
        let (folder, medium, reason) = in_all(&url.host, connecting).await?;
        let origin = mixed_text(&format!("{} {} {}", url.host, url.port, url.share));
        Ok(Remote { folder, medium, reason, pool: pool.clone(), origin })
    }

    /// Distinguishes the shares that users name.
    pub(crate) fn origin(&self) -> u32 {
        self.origin
    }

    /// "tcp", "iwarp", "shm" or "rnic".
    pub(crate) fn transport(&self) -> &'static str {
        self.medium.name()
    }

    /// The negotiated parameters and the reason for this transport, in one line.
    pub(crate) fn describe(&self) -> String {
        format!("{} ({})", self.folder.describe(), self.reason)
    }

    /// The negotiated parameters as fields, and the server's software.
    pub(crate) async fn agreed(&self) -> Agreed {
        self.folder.agreed().await
    }

    /// How often a request waited for a credit; `None` where the protocol has none.
    pub(crate) fn credits_starved(&self) -> Option<u64> {
        self.folder.credits_starved()
    }

    /// The pool for payload buffers.
    pub(crate) fn pool(&self) -> &Pool {
        &self.pool
    }

    /// Opens an existing file.
    pub(crate) async fn open(&self, path: &str, write: bool) -> Result<Rc<dyn RemoteFile>, Failure> {
        self.folder.open(path, write).await
    }

    /// Creates a file, or empties an existing one.
    pub(crate) async fn create(&self, path: &str) -> Result<Rc<dyn RemoteFile>, Failure> {
        self.folder.create(path).await
    }

    /// The names in a folder.
    pub(crate) async fn list(&self, path: &str) -> Result<Vec<RemoteEntry>, Failure> {
        self.folder.list(path).await
    }

    /// Metadata of a file or folder; `None` if nothing exists there.
    pub(crate) async fn stat(&self, path: &str) -> Result<Option<RemoteStat>, Failure> {
        self.folder.stat(path).await
    }

    /// A link's target; `None` if it is not a link or the server does not tell.
    pub(crate) async fn target(&self, path: &str) -> Result<Option<String>, Failure> {
        self.folder.target(path).await
    }

    /// Whether `path` is a folder; false if nothing exists there.
    pub(crate) async fn is_folder(&self, path: &str) -> Result<bool, Failure> {
        Ok(self.folder.stat(path).await?.is_some_and(|stat| stat.folder))
    }

    /// Makes a folder, unless it exists.
    pub(crate) async fn mkdir(&self, path: &str) -> Result<(), Failure> {
        self.folder.mkdir(path).await
    }

    /// Removes an empty folder.
    pub(crate) async fn rmdir(&self, path: &str) -> Result<(), Failure> {
        self.folder.rmdir(path).await
    }

    /// Removes a file.
    pub(crate) async fn remove(&self, path: &str) -> Result<(), Failure> {
        self.folder.remove(path).await
    }

    /// Removes a partial file unless it is gone or another command is using it; returns whether it did.
    pub(crate) async fn remove_unfinished(&self, path: &str) -> Result<bool, Failure> {
        self.folder.remove_unfinished(path).await
    }

    /// Begins new content for the file `target`, following a symbolic link. With a tag the partial file has a name by
    /// which a later command finds it, and usable content in it stays; without a tag it is empty. A new target gets
    /// the permissions in `mode` that the umask leaves, if the protocol has permissions.
    ///
    /// As far as the server has permissions, other users cannot read a replacement before it is complete.
    pub(crate) async fn draft<'a>(
        &'a self,
        target: &str,
        tag: Option<&'a str>,
        mode: u32,
    ) -> Result<Box<dyn RemoteDraft + 'a>, Failure> {
        self.folder.draft(behind_links(self, target).await?, tag, mode).await
    }

    /// Spells the name of a file as `path` does, on a server that ignores case.
    pub(crate) async fn respell(&self, path: &str) -> Result<(), Failure> {
        self.folder.respell(path).await
    }

    /// The current connections, described in a few words each; empty if there is only ever one.
    pub(crate) fn connections(&self) -> Vec<String> {
        self.folder.connections()
    }

    /// How many connections were lost without effect on operations.
    pub(crate) fn lost_connections(&self) -> u32 {
        self.folder.lost_connections()
    }

    /// From now on, when all connections are lost, operations and open files continue as soon as the server is
    /// reachable again, for at most `patience` or until the flag is raised. NFS always does so.
    pub(crate) fn outlast(&self, patience: Duration, until: Arc<AtomicBool>) {
        self.folder.outlast(patience, until);
    }

    /// How often all connections were lost and re-established.
    pub(crate) fn losses(&self) -> u32 {
        self.folder.losses()
    }

    /// Bytes and operations so far, by kind.
    pub(crate) fn traffic(&self) -> Traffic {
        self.folder.traffic()
    }

    /// Closes the session. A connection that is already gone is not an error.
    pub(crate) async fn close(&self) {
        match rt::timeout(CLOSE_LIMIT, self.folder.close()).await {
            Ok(Ok(())) => {}
            Ok(Err(e)) => tracing::debug!("while closing: {e}"),
            Err(_) => tracing::debug!("the server does not answer while the session is closed"),
        }
    }
}

/// The object at the end of a path.
struct Behind {
    path: String,
    /// Its metadata.
    found: Option<RemoteStat>,
}

/// Resolves symbolic links at a path. Servers that follow links themselves show none.
async fn behind_links(remote: &Remote, path: &str) -> Result<Behind, Failure> {
    let mut path = path.to_owned();
    for _ in 0..MAX_LINKS {
        let found = remote.stat(&path).await?;
        if !found.as_ref().is_some_and(|stat| stat.special) {
            return Ok(Behind { path, found });
        }
        let Some(target) = remote.target(&path).await? else { return Ok(Behind { path, found }) };
        path = followed(&path, &target)
            .ok_or_else(|| format!("{path} is a symbolic link to {target}, outside the share"))?;
    }
    Err(format!("{path}: more than {MAX_LINKS} symbolic links in a row").into())
}

/// The path within the share that a link at `path` leads to.
fn followed(path: &str, target: &str) -> Option<String> {
    let target = target.replace('\\', "/");
    if target.starts_with('/') {
        return None;
    }
    let mut names: Vec<&str> = path.split('/').collect();
    names.pop();
    for name in target.split('/') {
        match name {
            "" | "." => {}
            ".." => drop(names.pop()?),
            name => names.push(name),
        }
    }
    (!names.is_empty()).then(|| names.join("/"))
}

/// Whether the URL's protocol supports what URL and options ask for together. Every connection passes this check.
pub(crate) fn check(url: &Url, options: &Connect) -> Result<(), Failure> {
    match url.scheme {
        Scheme::Smb => Ok(url.check_user(options.kerberos)?),
        Scheme::Nfs => {
            options.check_nfs().map_err(|e| Misuse::new(e.to_string()))?;
            match options.kerberos && url.security == Some(Security::Sys) {
                true => Err(Misuse::new("--kerberos and sec=sys exclude each other: omit one").into()),
                false => Ok(()),
            }
        }
    }
}

/// The password for a URL; none is needed for a Kerberos ticket or NFS.
pub(crate) fn password_for(url: &Url, options: &Connect) -> Result<Zeroizing<String>, Failure> {
    check(url, options)?;
    match url.scheme {
        Scheme::Smb if !options.kerberos => Ok(password::for_client(&url.user, &url.host)?),
        Scheme::Smb | Scheme::Nfs => Ok(Zeroizing::new(String::new())),
    }
}

/// The shares that the server of `url` offers.
pub(crate) async fn shares(url: &Url, options: &Connect, pool: &Pool) -> Result<Vec<RemoteShare>, Failure> {
    if url.scheme == Scheme::Nfs {
        let asking = async |until| {
            check(url, options)?;
            nfs::exports(&Dial::new(url, options, pool, None, until).await?).await
        };
        let exports = in_all(&url.host, asking).await?;
        return Ok(exports.into_iter().map(|name| RemoteShare { name, remark: String::new() }).collect());
    }
    let password = password_for(url, options)?;
    shares_as(url, options, pool, &password).await
}

/// Like `shares`, with this password, for an SMB server.
pub(crate) async fn shares_as(
    url: &Url,
    options: &Connect,
    pool: &Pool,
    password: &str,
) -> Result<Vec<RemoteShare>, Failure> {
    let asking = async |until| {
        let url = &settled(url, options).await?;
        smb::session::shares(&Dial::new(url, options, pool, None, until).await?, password).await
    };
    in_all(&url.host, asking).await
}

/// An SMB session with a share, for uses other than copying files.
pub(crate) struct Joined {
    /// The session.
    pub session: Session,
    /// The share.
    pub tree: Tree,
    /// "tcp", "iwarp", "shm" or "rnic".
    pub transport: &'static str,
    /// Why this transport was chosen.
    pub reason: &'static str,
    /// Keeps its connections alive; ends with this value.
    _keeping: Task<()>,
}

/// Connects to a share of SMB: host, port and user.
pub(crate) async fn join(
    (host, port, user): (&str, u16, &str),
    password: &str,
    share: &str,
    options: &Connect,
    pool: &Pool,
) -> Result<Joined, Failure> {
    let url = Url {
        scheme: Scheme::Smb,
        user: user.to_owned(),
        host: host.to_owned(),
        port,
        port_named: true,
        share: share.to_owned(),
        path: String::new(),
        folder: true,
        mount_port: None,
        rdma_port: None,
        version: None,
        security: None,
    };
    let entering = async |until| {
        let dial = Dial::new(&url, options, pool, None, until).await?;
        enter(&dial, password).await
    };
    let Entered { session, tree, keeper, medium, reason } = in_all(host, entering).await?;
    let keeping = rt::spawn(keeper.keep(session.clone()));
    Ok(Joined { session, tree, transport: medium.name(), reason, _keeping: keeping })
}

/// Everything up to a usable server, within [`WHOLE_LIMIT`]; `step` gets the moment at which that limit ends.
async fn in_all<T>(host: &str, step: impl AsyncFnOnce(Time) -> Result<T, Failure>) -> Result<T, Failure> {
    // A large future, kept off the stack like the steps of a log-on.
    let step = Box::pin(step(rt::now() + WHOLE_LIMIT));
    reach::within(WHOLE_LIMIT, format_args!("{host}, all attempts together"), step).await
}

/// Completes the URL: it must name a user, and a default port may be replaced by the one that answers.
async fn settled(url: &Url, options: &Connect) -> Result<Url, Failure> {
    check(url, options)?;
    if url.scheme != Scheme::Smb || url.port_named {
        return Ok(url.clone());
    }
    // Weft's servers listen on another port unless they were given 445, and by default only on loopback.
    let ips = reach::resolve(&url.host).await?;
    let loopback = ips.iter().all(IpAddr::is_loopback);
    let open = async |port| {
        let all: Vec<_> = ips.iter().map(|ip| SocketAddr::new(*ip, port)).collect();
        reach::first(&all, async |addr| Stream::connect_within(addr, LOOPBACK_LIMIT).await).await.is_ok()
    };
    if loopback && !open(url.port).await && open(default_port::WEFT_SMB).await {
        note!(
            "weft: nothing listens on {}; port {}, the default of weft serve, answers and is used",
            reach::authority(&url.host, url.port),
            default_port::WEFT_SMB
        );
        return Ok(Url { port: default_port::WEFT_SMB, ..url.clone() });
    }
    Ok(url.clone())
}

#[cfg(test)]
mod away;
#[cfg(test)]
pub(crate) mod served;
#[cfg(test)]
mod told;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_lead_no_further_than_their_share() {
        assert_eq!(followed("a/b/link", "../c"), Some("a/c".into()));
        assert_eq!(followed("link", "./d\\e"), Some("d/e".into()));
        for (path, target) in [("link", "../x"), ("a/link", "/etc/passwd"), ("a/link", "..")] {
            assert_eq!(followed(path, target), None, "{target}");
        }
    }
}
