//! Clients by URL: chooses the transport and explains the choice, connects, and presents SMB and NFS as one kind of
//! remote folder.

mod channels;
mod lasting;
mod links;
mod nfs;
mod probe;
pub(crate) mod reach;
mod smb;

use std::cell::Cell;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::{Either, LocalBoxFuture, join_all, select};
use weft_machine::net::{CONNECT_LIMIT, SourcePort};
use weft_machine::rt::{self, Task};
use weft_machine::{Pool, Stream, Time};
use weft_rdma::{Provider, Traffic, rnic};
use weft_smb::client::{Session, Tree};
use zeroize::Zeroizing;

use self::smb::session::{Entered, enter};
use crate::Failure;
use crate::args::{Connect, Transport};
use crate::connect::probe::Spoken;
use crate::default_port;
use crate::misuse::Misuse;
use crate::out::{ShellCommand, shell_word};
use crate::partial::mixed_text;
use crate::password;
use crate::providers;
use crate::url::{Scheme, Url, escaped};
use crate::when::When;

/// How long a port on loopback may take to answer.
const LOOPBACK_LIMIT: Duration = Duration::from_secs(1);
/// Time limit for setting up RDMA with one address, including the protocol's negotiation. A provider's own set-up
/// limit is the same, and its error is more precise.
const RDMA_LIMIT: Duration = weft_rdma::SETUP_LIMIT;
/// How long a connected server may take to let a client in: it may have to ask domain controllers. If a port does not
/// answer, probing what it speaks happens within this limit.
const LOGON_LIMIT: Duration = Duration::from_secs(20);
/// Time limit until a server can be used: its name, all addresses, transports and versions tried, DFS links followed,
/// the log-on or mount. Each step also has its own limit.
const WHOLE_LIMIT: Duration = Duration::from_secs(90);
/// A port that stays silent for this long is probed while we keep waiting.
const LOOK_AFTER: Duration = Duration::from_millis(700);
/// Time limit of that probe.
const LOOK_LIMIT: Duration = Duration::from_millis(1500);
/// A wait for a connection exceeds the waits for its addresses by this much, because their errors are more precise.
const CONNECT_SLACK: Duration = Duration::from_millis(500);
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

/// The chosen transport.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Medium {
    Tcp,
    Iwarp,
    Shm,
    Rnic,
}

impl Medium {
    fn name(self) -> &'static str {
        match self {
            Medium::Tcp => "tcp",
            Medium::Iwarp => "iwarp",
            Medium::Shm => "shm",
            Medium::Rnic => "rnic",
        }
    }
}

/// Parameters of a connection attempt, for either protocol.
struct Dial<'a> {
    url: &'a Url,
    options: &'a Connect,
    pool: &'a Pool,
    congestion: Option<&'a str>,
    /// Addresses of the URL's host, in the order in which they are tried.
    ips: Vec<IpAddr>,
    /// The address at which the server was reached; from then on it is tried first.
    reached: Cell<Option<IpAddr>>,
    /// When [`WHOLE_LIMIT`] ends.
    until: Time,
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
        Scheme::Nfs => Ok(options.check_nfs().map_err(|e| Misuse::new(e.to_string()))?),
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

/// A TCP port that a log-on or mount uses, and the language it should speak.
#[derive(Clone, Copy, Debug)]
struct Asked {
    addr: SocketAddr,
    language: Language,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Language {
    Smb,
    Nfs,
    /// MOUNT on its own port.
    Mount,
}

impl Language {
    fn name(self) -> &'static str {
        match self {
            Language::Smb => "SMB",
            Language::Nfs => "NFS",
            Language::Mount => "MOUNT",
        }
    }

    fn is(self, spoken: &Spoken) -> bool {
        match self {
            Language::Smb => *spoken == Spoken::Smb,
            Language::Nfs => *spoken == Spoken::Nfs,
            // Weft answers both protocols on one port.
            Language::Mount => matches!(spoken, Spoken::Rpc | Spoken::Nfs),
        }
    }
}

/// A log-on or mount over a connection to `addr`, with the time limit common to both, because the layers below have
/// none. A server that answers late or wrongly is probed; so is `mountd` if it is asked over TCP.
async fn let_in<T>(
    dial: &Dial<'_>,
    medium: Medium,
    addr: SocketAddr,
    mountd: Option<SocketAddr>,
    step: impl Future<Output = Result<T, Failure>>,
) -> Result<T, Failure> {
    let language = match dial.url.scheme {
        Scheme::Smb => Language::Smb,
        Scheme::Nfs => Language::Nfs,
    };
    let whom = format!("{} at {}", language.name(), reach::authority(&dial.url.host, addr.port()));
    // Large futures; a benchmark's threads would otherwise hold several of them on their stacks.
    let step = Box::pin(step);
    let served = (medium == Medium::Tcp).then_some(Asked { addr, language });
    let mountd = mountd.map(|addr| Asked { addr, language: Language::Mount });
    let ports: Vec<Asked> = served.into_iter().chain(mountd).collect();
    if ports.is_empty() {
        return reach::patiently_until(dial.until, LOGON_LIMIT, whom, step).await;
    }
    let looked_at = async {
        let mut step = pin!(reach::within(LOGON_LIMIT.saturating_sub(LOOK_LIMIT), &whom, step));
        let answered = match rt::timeout(LOOK_AFTER, &mut step).await {
            Ok(answered) => answered,
            // Some protocols wait for the remainder of what they take for a long message. A slow server speaks its
            // protocol correctly.
            Err(_) => match select(step, Box::pin(other_language(dial.url, &ports))).await {
                Either::Left((answered, _)) => answered,
                Either::Right((Some(wrong), _)) => return Err(wrong.into()),
                Either::Right((None, step)) => step.await,
            },
        };
        match answered {
            Err(e) => Err(Box::pin(explained(dial.url, &ports, e)).await),
            done => done,
        }
    };
    reach::patiently_until(dial.until, LOGON_LIMIT, &whom, Box::pin(looked_at)).await
}

/// The ports that speak another protocol than they should, or misbehave.
async fn otherwise(ports: &[Asked]) -> impl Iterator<Item = (Asked, Spoken)> {
    let looks = ports.iter().map(async |asked| {
        let spoken = rt::timeout(LOOK_LIMIT, probe::probe(asked.addr)).await.ok();
        spoken.filter(|spoken| !asked.language.is(spoken)).map(|spoken| (*asked, spoken))
    });
    join_all(looks).await.into_iter().flatten()
}

/// What is wrong with a port that speaks another protocol; `None` if no such port is known.
async fn other_language(url: &Url, ports: &[Asked]) -> Option<String> {
    let known = |spoken: &Spoken| !matches!(spoken, Spoken::Silent | Spoken::Closes | Spoken::Gone);
    let mut otherwise = otherwise(ports).await;
    otherwise.find(|(_, spoken)| known(spoken)).map(|(asked, spoken)| told_of(url, asked, &spoken, ""))
}

/// Explains why no session or mount came about: if the server did not answer as it should, says what the port speaks.
async fn explained(url: &Url, ports: &[Asked], failure: Failure) -> Failure {
    let answered = failure.downcast_ref::<weft_smb::client::Error>().is_some_and(|e| match e {
        weft_smb::client::Error::Malformed(_) => false,
        e => !e.is_loss(),
    }) || failure.downcast_ref::<weft_nfs::client::Error>().is_some_and(|e| {
        !matches!(
            e,
            weft_nfs::client::Error::Channel(_)
                | weft_nfs::client::Error::Malformed(_)
                | weft_nfs::client::Error::Late(_)
        )
    });
    if answered {
        return failure;
    }
    let wrong = otherwise(ports).await.next();
    match wrong {
        Some((asked, spoken)) => told_of(url, asked, &spoken, &failure.to_string()).into(),
        None => failure,
    }
}

/// The sentence for a port that does not speak what it should, and what to type.
fn told_of(url: &Url, asked: Asked, spoken: &Spoken, failure: &str) -> String {
    let (object, share) = (reach::authority(&url.host, asked.addr.port()), escaped(&url.share, ""));
    let other = asked.language.name();
    let named = match asked.language {
        Language::Mount => "name the port of MOUNT as ?mountport=N (weft serve: --mountd-port)".to_owned(),
        _ => format!("name the port of {other}"),
    };
    let found = match spoken {
        Spoken::Smb if asked.language == Language::Mount => format!("speaks SMB, not {other}; {named}"),
        Spoken::Smb => {
            format!("speaks SMB, not {other}; try {}", shell_word(format!("smb://USER@{object}/{share}")))
        }
        Spoken::Nfs => {
            format!("speaks NFS, not {other}; try {}", shell_word(format!("nfs://{object}/{share}")))
        }
        Spoken::Rpc => format!(
            "speaks ONC RPC, but not NFS; name the port of NFS, or this one as {}",
            match url.scheme {
                Scheme::Nfs => "?mountport=N",
                Scheme::Smb => "nfs://HOST:PORT/EXPORT?mountport=N",
            }
        ),
        Spoken::Rdma => format!(
            "is an RDMA port; name the TCP port of {other} (in a URL, the RDMA port is ?rdmaport={})",
            asked.addr.port()
        ),
        Spoken::Nbd => format!(
            "speaks NBD, not {other}; connect with an NBD client: {}",
            ShellCommand::new("nbdinfo").operand(format!("nbd://{object}"))
        ),
        Spoken::Other(name) => format!("speaks {name}, not {other}; {named}"),
        Spoken::Silent => format!(
            "accepts connections but does not answer; is it the port of {other}, or does the server hang?"
        ),
        Spoken::Closes => format!(
            "accepts connections and closes them without an answer; is it the port of {other}, and may this host use it?"
        ),
        Spoken::Gone => format!("no longer accepts connections ({failure})"),
    };
    format!("{object} {found}")
}

/// NFS servers may require a reserved port; SMB servers have passwords.
fn source_port(scheme: Scheme) -> SourcePort {
    match scheme {
        Scheme::Nfs => SourcePort::Reserved,
        Scheme::Smb => SourcePort::Any,
    }
}

impl<'a> Dial<'a> {
    async fn new(
        url: &'a Url,
        options: &'a Connect,
        pool: &'a Pool,
        congestion: Option<&'a str>,
        until: Time,
    ) -> Result<Dial<'a>, Failure> {
        let ips = reach::resolve(&url.host).await?;
        Ok(Dial { url, options, pool, congestion, ips, reached: Cell::new(None), until })
    }

    /// The possible addresses of a port of the server.
    fn addresses(&self, port: u16) -> Vec<SocketAddr> {
        let reached = self.reached.get();
        let others = self.ips.iter().copied().filter(|ip| Some(*ip) != reached);
        reached.into_iter().chain(others).map(|ip| SocketAddr::new(ip, port)).collect()
    }

    /// Total time limit for all addresses: each has its own limit and starts a little after the one before.
    fn of_all(&self, one: Duration) -> Duration {
        let others = u32::try_from(self.ips.len().saturating_sub(1)).unwrap_or(u32::MAX);
        one + reach::STAGGER.saturating_mul(others) + CONNECT_SLACK
    }

    /// Connects to a port of the server at any of its addresses.
    async fn tcp(&self, port: u16) -> Result<(SocketAddr, Stream), Failure> {
        let host = &self.url.host;
        let connecting = async {
            let (congestion, source) = (self.congestion, source_port(self.url.scheme));
            let connect = async |addr| Stream::connect_from(addr, CONNECT_LIMIT, congestion, source).await;
            match reach::first(&self.addresses(port), connect).await {
                Ok(reached) => Ok(reached),
                Err(failed) => {
                    let refused = failed.iter().any(|(_, e)| e.kind() == io::ErrorKind::ConnectionRefused);
                    let advice = match refused {
                        true if self.url.scheme == Scheme::Nfs && port == self.url.port => {
                            "is the server running, and does it serve NFS at this port (weft serve: --nfs-port)?"
                        }
                        true => "is the server running, and is this its port?",
                        false => "is the address right, and does a firewall allow this port?",
                    };
                    Err(format!("{}; {advice}", reach::told(host, port, &failed)).into())
                }
            }
        };
        let limit = self.of_all(CONNECT_LIMIT);
        let whom = reach::authority(host, port);
        let (addr, stream) = reach::patiently_until(self.until, limit, whom, connecting).await?;
        self.reached.set(Some(addr.ip()));
        Ok((addr, stream))
    }

    /// Connects by RDMA to any of the server's addresses with `connect`.
    async fn rdma<T, E: std::fmt::Display>(
        &self,
        what: &str,
        port: u16,
        connect: impl AsyncFn(SocketAddr) -> Result<T, E>,
    ) -> Result<(SocketAddr, T), Failure> {
        let connecting = async {
            let connected = reach::first(&self.addresses(port), connect).await;
            connected
                .map_err(|failed| format!("{what}: {}", reach::told(&self.url.host, port, &failed)).into())
        };
        let limit = self.of_all(RDMA_LIMIT);
        let (addr, connected) = reach::patiently_until(self.until, limit, what, connecting).await?;
        self.reached.set(Some(addr.ip()));
        Ok((addr, connected))
    }

    /// The provider of an RDMA medium; `None` for TCP.
    fn provider(&self, medium: Medium) -> Result<Option<Box<dyn Provider>>, Failure> {
        Ok(match medium {
            Medium::Tcp => None,
            Medium::Iwarp => {
                let (source, crc) = (source_port(self.url.scheme), !self.options.no_crc);
                Some(providers::iwarp_from(source, self.pool, crc, self.congestion))
            }
            // Its sockets are named by port alone: a port of another host's server may be a local server's socket.
            Medium::Shm if !self.is_here() => {
                let host = &self.url.host;
                return Err(format!(
                    "shared memory reaches only servers on this host, and {host} is another host; omit --transport, or choose iwarp or tcp"
                )
                .into());
            }
            Medium::Shm => Some(providers::shm_provider(self.pool)),
            Medium::Rnic => Some(providers::rnic_provider(self.pool)),
        })
    }

    /// Whether the server's address belongs to this host.
    fn is_here(&self) -> bool {
        match self.reached.get() {
            Some(ip) => reach::is_local(ip),
            None => self.ips.iter().copied().any(reach::is_local),
        }
    }

    /// The transports to try in order, each with the reason to show if it works.
    fn choices(&self, announced: impl Fn(Medium) -> bool) -> Vec<(Medium, &'static str)> {
        match self.options.transport {
            Transport::Tcp => vec![(Medium::Tcp, "TCP, as requested")],
            Transport::Iwarp => vec![(Medium::Iwarp, "iWARP, as requested")],
            Transport::Shm => vec![(Medium::Shm, "shared memory, as requested")],
            Transport::Rnic => vec![(Medium::Rnic, "an RDMA device, as requested")],
            Transport::Auto => {
                let mut choices = Vec::new();
                if announced(Medium::Shm) {
                    choices.push((Medium::Shm, "the server is on this host"));
                }
                if announced(Medium::Rnic) && rnic::devices().is_ok() {
                    choices.push((Medium::Rnic, "both sides have an RDMA device"));
                }
                if announced(Medium::Iwarp) {
                    choices.push((Medium::Iwarp, "the server announces RDMA"));
                }
                choices
                    .push((Medium::Tcp, "no RDMA: the server does not announce it, or it was not reachable"));
                choices
            }
        }
    }
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
