//! The measured server: one started on this host (`local`), or an existing one.

use std::process::Stdio;
use std::sync::Arc;

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use weft_load::job::Job;
use weft_load::measure;
use weft_machine::{Pool, rt};
use zeroize::Zeroizing;

use super::crew::ClientConfig;
use super::{messages, secret};
use crate::Failure;
use crate::args::{Connect, Over, ServerOf, Transport};
use crate::child::Service;
use crate::connect;
use crate::host::Host;
use crate::misuse::Misuse;
use crate::password;
use crate::url::{Scheme, Url};

/// TCP congestion control on both sides of `local`: bbr, the usual default of cloud machines, paces loopback.
pub(super) const CONGESTION: &str = "reno";
const USER: &str = "bench";
/// The share of `local`: in memory, with this size limit.
const SHARE: &str = "bench";
const SHARE_SIZE: &str = "4G";

/// A server under measurement.
pub(crate) struct Server {
    kind: Kind,
    options: ServerOf,
    password: Option<Arc<Zeroizing<String>>>,
    /// Processors of this host that the server may use; empty if it is on another host or unknown.
    pub cores: Vec<usize>,
    /// Processors that the clients may use.
    pub client_cores: Vec<usize>,
}

enum Kind {
    Local(Service),
    Named { smb: Option<Url>, nfs: Option<Url>, host: String },
}

impl Server {
    /// Starts `local`, or uses the server that `host` names. From now on this process avoids the cores of a server
    /// that it started.
    pub(crate) fn start(host: &str, options: &ServerOf) -> Result<Server, Failure> {
        let all = allowed(None)?;
        if host != "local" {
            let kind = named(host, options)?;
            let cores = options.server_pid.map(|pid| allowed(Some(pid))).transpose()?.unwrap_or_default();
            return Ok(Server { kind, options: options.clone(), password: None, cores, client_cores: all });
        }
        let mine = (options.server_cores as usize).min(all.len());
        let (service, password) = start_here(mine)?;
        let client_cores = if all.len() > mine { all[mine..].to_vec() } else { all.clone() };
        keep_to(&client_cores)?;
        let cores = all[..mine].to_vec();
        let password = Some(Arc::new(Zeroizing::new(password)));
        Ok(Server { kind: Kind::Local(service), options: options.clone(), password, cores, client_cores })
    }

    /// All processors that this process and a server started by it may use.
    pub(crate) fn all_cores(&self) -> Vec<usize> {
        let mut all = [&self.cores[..], &self.client_cores].concat();
        all.sort_unstable();
        all.dedup();
        all
    }

    /// Its process on this host, if known.
    pub(crate) fn process(&self) -> Option<measure::Server> {
        match &self.kind {
            Kind::Local(service) => Some(measure::Server { pid: service.pid() }),
            Kind::Named { .. } => self.options.server_pid.map(|pid| measure::Server { pid }),
        }
    }

    /// Whether it was started by this process.
    pub(crate) fn is_local(&self) -> bool {
        matches!(self.kind, Kind::Local(_))
    }

    /// Whether it runs on this host.
    pub(crate) fn is_here(&self) -> bool {
        let host = match &self.kind {
            Kind::Local(_) => return true,
            Kind::Named { host, .. } => host,
        };
        let loopback = host.parse::<std::net::IpAddr>().is_ok_and(|addr| addr.is_loopback());
        loopback || host == "localhost" || self.options.server_pid.is_some()
    }

    /// Processors that client and server may both use, as far as known.
    pub(crate) fn shared_cores(&self) -> usize {
        self.cores.iter().filter(|core| self.client_cores.contains(core)).count()
    }

    /// TCP congestion control of the clients' connections.
    pub(crate) fn congestion(&self) -> Option<String> {
        self.options.congestion.clone().or_else(|| self.is_local().then(|| CONGESTION.to_owned()))
    }

    /// The agent on its host.
    pub(crate) fn agent(&self) -> Option<&Host> {
        self.options.server_agent.as_ref()
    }

    /// What to type if the server's resource use is unknown.
    pub(crate) fn unknown(&self) -> Option<String> {
        if self.process().is_some() || self.agent().is_some() {
            return None;
        }
        let host = self.host();
        Some(match self.is_here() {
            true => "the server's own figures are missing (processor time, memory, cycles per byte of both ends): give its process with \
                     --server-pid PID"
                .to_owned(),
            false => format!(
                "the server's own figures are missing (processor time, memory, interrupts, cycles per byte of both ends): on {host} \
                 start `weft bench agent --listen ADDRESS:{} --server` (another server than Weft's: --server-pid PID), and on this host add \
                 --server-agent {host}",
                messages::PORT
            ),
        })
    }

    /// Agents that run clients.
    pub(crate) fn agents(&self) -> &[Host] {
        &self.options.agent
    }

    /// The host, as the user wrote it.
    pub(crate) fn host(&self) -> String {
        match &self.kind {
            Kind::Local(_) => "local".to_owned(),
            Kind::Named { host, .. } => host.clone(),
        }
    }

    /// The transports to measure, and whether the user named them: then an unavailable one is an error.
    pub(crate) fn transports(&self) -> (Vec<Over>, bool) {
        if !self.options.transport.is_empty() {
            return (self.options.transport.clone(), true);
        }
        match self.is_local() {
            true => (vec![Over::Tcp, Over::Iwarp, Over::Shm], false),
            false => (vec![Over::Tcp, Over::Rnic, Over::Iwarp, Over::Shm], false),
        }
    }

    /// How clients reach the share of a protocol over a transport.
    pub(crate) fn client_config(
        &mut self,
        scheme: Scheme,
        over: Over,
        job: &Job,
    ) -> Result<ClientConfig, Failure> {
        let transport = match over {
            Over::Tcp => Transport::Tcp,
            Over::Iwarp | Over::IwarpNocrc => Transport::Iwarp,
            Over::Shm => Transport::Shm,
            Over::Rnic => Transport::Rnic,
        };
        let connect = Connect {
            no_crc: over == Over::IwarpNocrc,
            encrypt: self.options.encrypt,
            sign: self.options.sign,
            compress: self.options.compress,
            channels: (job.channels > 1).then_some(job.channels),
            ..Connect::by(transport)
        };
        if scheme == Scheme::Nfs {
            connect.check_nfs().map_err(|e| Misuse::new(e.to_string()))?;
        }
        let (url, password) = self.url(scheme)?;
        Ok(ClientConfig { url, connect, password, congestion: self.congestion() })
    }

    fn url(&mut self, scheme: Scheme) -> Result<(Url, Arc<Zeroizing<String>>), Failure> {
        let url = match (&self.kind, scheme) {
            (Kind::Local(service), Scheme::Smb) => {
                let (smb, smbd) = (service.port("smb_port")?, service.port("smbd_port")?);
                parse(&format!("smb://{USER}@127.0.0.1:{smb}/{SHARE}?rdmaport={smbd}"))?
            }
            (Kind::Local(service), Scheme::Nfs) => {
                let port = |name| service.port(name);
                let (nfs, mountd, rdma) = (port("nfs_port")?, port("mountd_port")?, port("nfs_rdma_port")?);
                parse(&format!("nfs://127.0.0.1:{nfs}/{SHARE}?vers=3&mountport={mountd}&rdmaport={rdma}"))?
            }
            (Kind::Named { smb, host, .. }, Scheme::Smb) => smb.clone().ok_or_else(|| {
                Misuse::new(format!("{host} is an NFS server: for SMB give HOST or smb://USER@HOST/SHARE"))
            })?,
            (Kind::Named { nfs, host, .. }, Scheme::Nfs) => nfs.clone().ok_or_else(|| {
                Misuse::new(format!(
                    "the NFS export of {host} is unknown: give nfs://HOST/EXPORT?mountport=20048 (for `all`: --nfs URL)"
                ))
            })?,
        };
        let password = match (&self.password, scheme) {
            (Some(password), _) => password.clone(),
            (None, Scheme::Nfs) => Arc::new(Zeroizing::new(String::new())),
            (None, Scheme::Smb) => {
                let asked = Arc::new(password::for_client(&url.user, &url.host)?);
                self.password = Some(asked.clone());
                asked
            }
        };
        if !url.share.is_empty() {
            return Ok((url, password));
        }
        if scheme == Scheme::Nfs {
            return Err(Misuse::new("no export is given: use --share, or nfs://HOST/EXPORT").into());
        }
        let share = only_share(&url, &password)?;
        if let Kind::Named { smb: Some(smb), .. } = &mut self.kind {
            smb.share = share.clone();
        }
        Ok((Url { share, ..url }, password))
    }

    /// Ends the server of `local`; an unsuccessful exit is an error.
    pub(crate) fn stop(self) -> Result<(), Failure> {
        match self.kind {
            Kind::Local(service) => service.stop(),
            Kind::Named { .. } => Ok(()),
        }
    }
}

fn parse(text: &str) -> Result<Url, Failure> {
    Ok(Url::parse_server(text)?
        .ok_or_else(|| Misuse::new(format!("{text:?} is not a URL: put smb:// or nfs:// before it")))?)
}

/// Refuses options that do not apply, so that a report always shows what was asked for.
pub(super) fn check(host: &str, schemes: &[Scheme], options: &ServerOf) -> Result<(), Misuse> {
    let of_named = [
        (options.user.is_some(), "--user"),
        (options.share.is_some(), "--share"),
        (options.nfs.is_some(), "--nfs"),
    ];
    if let ("local", Some((_, option))) = (host, of_named.iter().find(|(given, _)| *given)) {
        return Err(Misuse::new(format!(
            "{option} is for an existing server; `local` starts one with its own user and share: omit {option}"
        )));
    }
    match options.user.is_some() && !schemes.contains(&Scheme::Smb) {
        true => Err(Misuse::new(
            "--user is for SMB; NFS has no log-on, and the server gets the user and group ids of the user who runs weft: \
             omit --user",
        )),
        false => Ok(()),
    }
}

/// The server that HOST and the options name.
fn named(host: &str, options: &ServerOf) -> Result<Kind, Failure> {
    let share = options.share.clone().unwrap_or_default();
    let mut nfs = options.nfs.as_deref().map(parse).transpose()?;
    if nfs.as_ref().is_some_and(|url| url.scheme != Scheme::Nfs) {
        return Err(Misuse::new("--nfs takes a URL of NFS: nfs://HOST:PORT/EXPORT?mountport=N").into());
    }
    let user = options.user.clone().unwrap_or_else(crate::args::default_user);
    if host.contains("://") {
        let mut url = parse(host)?;
        if url.share.is_empty() {
            url.share = share;
        }
        let named = url.host.clone();
        if url.scheme == Scheme::Nfs {
            return Ok(Kind::Named { smb: None, nfs: Some(url), host: named });
        }
        if url.user.is_empty() || options.user.is_some() {
            url.user = user;
        }
        return Ok(Kind::Named { smb: Some(url), nfs, host: named });
    }
    let parsed: Host = host.parse().map_err(|why| Misuse::new(format!("{host:?}: {why}")))?;
    let bracketed = match parsed.name.contains(':') {
        true => format!("[{}]", parsed.name),
        false => parsed.name.clone(),
    };
    let mut smb = parse(&format!("smb://{bracketed}"))?;
    (smb.port, smb.port_named) = (parsed.port.unwrap_or(smb.port), parsed.port.is_some());
    (smb.user, smb.share) = (user, share.clone());
    if nfs.is_none() && !share.is_empty() && parsed.port.is_none() {
        nfs = Some(Url { share, ..parse(&format!("nfs://{bracketed}"))? });
    }
    Ok(Kind::Named { smb: Some(smb), nfs, host: parsed.name })
}

/// The only share that the server lists.
fn only_share(url: &Url, password: &str) -> Result<String, Failure> {
    let connect = Connect::by(Transport::Tcp);
    let listed = rt::block_on(async {
        let pool = Pool::new(64 << 20);
        connect::shares_as(url, &connect, &pool, password).await
    })??;
    match &listed[..] {
        [one] => Ok(one.name.clone()),
        [] => Err(format!("{} lists no share: give one with --share", url.host).into()),
        many => {
            let names: Vec<&str> = many.iter().map(|share| share.name.as_str()).collect();
            Err(format!("{} has several shares: choose one with --share: {}", url.host, names.join(", "))
                .into())
        }
    }
}

fn start_here(cores: usize) -> Result<(Service, String), Failure> {
    let password = secret::generate()?;
    let (ram, cores) = (format!("{SHARE}={SHARE_SIZE}"), cores.to_string());
    let export = format!("{SHARE}:insecure");
    let args = [
        &["serve", "--ram", &ram, "--user", USER, "--json", "--cores", &cores, "--pin"][..],
        &["--smb-port", "0", "--smbd-port", "0", "--crc", "asked", "--congestion", CONGESTION],
        &["--nfs-port", "0", "--nfs-rdma-port", "0", "--mountd-port", "0", "--no-root-squash"],
        // Reserved ports are few, and this server holds only test data.
        &["--export", &export],
    ]
    .concat();
    // Ctrl-C reaches only this process, which cleans up and then ends the server.
    let service = Service::start_apart(&args, Some((password::VARIABLE, &password)), Stdio::null(), "warn")?;
    Ok((service, password))
}

/// Processors that a process may use; without one, this thread's.
fn allowed(pid: Option<u32>) -> Result<Vec<usize>, Failure> {
    let pid = pid.map(|pid| {
        let raw = i32::try_from(pid).ok().and_then(rustix::process::Pid::from_raw);
        raw.ok_or_else(|| format!("there is no process {pid}"))
    });
    let pid = pid.transpose()?;
    let set = sched_getaffinity(pid).map_err(|e| format!("the processors of the server: {e}"))?;
    Ok((0..CpuSet::MAX_CPU).filter(|cpu| set.is_set(*cpu)).collect())
}

/// Binds this thread, and threads it starts later, to processors.
pub(super) fn keep_to(cores: &[usize]) -> Result<(), Failure> {
    let mut set = CpuSet::new();
    cores.iter().for_each(|core| set.set(*core));
    Ok(sched_setaffinity(None, &set)?)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn options() -> ServerOf {
        ServerOf {
            user: Some("alice".into()),
            share: Some("data".into()),
            nfs: None,
            transport: vec![],
            channels: None,
            sign: false,
            encrypt: false,
            compress: false,
            congestion: None,
            server_pid: None,
            server_agent: None,
            agent: vec![],
            server_cores: 1,
        }
    }

    fn urls(host: &str, options: &ServerOf) -> (Option<String>, Option<String>) {
        let Kind::Named { smb, nfs, .. } = named(host, options).unwrap() else {
            panic!("{host} is started here")
        };
        (smb.map(|url| url.to_string()), nfs.map(|url| url.to_string()))
    }

    #[test]
    fn where_nobody_knows_what_the_server_spends_it_is_said_what_to_type() {
        let said = |host: &str, options: ServerOf| {
            let kind = named(host, &options).unwrap();
            let server = Server { kind, options, password: None, cores: vec![], client_cores: vec![] };
            server.unknown()
        };
        let far = said("nas", options()).unwrap();
        assert!(
            far.contains("on nas start `weft bench agent") && far.contains("--server-agent nas"),
            "{far}"
        );
        assert!(said("127.0.0.1", options()).unwrap().contains("--server-pid PID"));
        let agent = ServerOf { server_agent: Some("nas".parse().unwrap()), ..options() };
        assert_eq!(said("nas", agent), None);
        assert_eq!(said("nas", ServerOf { server_pid: Some(1), ..options() }), None);
    }

    /// `weft bench nfs --encrypt` measured plain text, and the report did not say so.
    #[test]
    fn nfs_is_not_measured_under_options_that_only_smb_has() {
        let [latency, ..] = &weft_load::job::paper(
            weft_load::result::Picture::Nfs,
            &weft_load::job::Extent {
                quick: true,
                timing: measure::Timing {
                    warm_up: Duration::ZERO,
                    duration: Duration::from_secs(1),
                    cool_down: Duration::ZERO,
                    steady: None,
                },
                repetitions: 1,
            },
        )[..] else {
            panic!("no job")
        };
        for options in [ServerOf { encrypt: true, ..options() }, ServerOf { sign: true, ..options() }] {
            let kind = named("nfs://nas/data", &options).unwrap();
            let mut server = Server { kind, options, password: None, cores: vec![], client_cores: vec![] };
            let refused =
                server.client_config(Scheme::Nfs, Over::Tcp, latency).map(|_| ()).unwrap_err().to_string();
            assert!(refused.contains(" is for SMB; "), "{refused}");
        }
    }

    /// `weft bench nfs --user alice` was measured as the user who typed it.
    #[test]
    fn a_user_is_not_named_to_whom_nobody_logs_on() {
        let given = options();
        let refused =
            |host, schemes: &[Scheme], options| check(host, schemes, options).unwrap_err().to_string();
        assert!(refused("nas", &[Scheme::Nfs], &given).contains("omit --user"));
        assert!(check("nas", &[Scheme::Smb], &given).is_ok());
        assert!(check("nas", &[Scheme::Smb, Scheme::Nfs], &given).is_ok(), "SMB's pictures need it");
        let nobody = ServerOf { user: None, ..options() };
        assert!(check("nas", &[Scheme::Nfs], &nobody).is_ok());
        assert!(refused("local", &[Scheme::Smb], &given).contains("omit --user"));
        assert!(refused("local", &[Scheme::Smb], &nobody).contains("omit --share"));
        assert!(check("local", &[Scheme::Smb], &ServerOf { share: None, ..nobody }).is_ok());
    }

    #[test]
    fn a_host_is_both_servers_a_url_is_one() {
        let (smb, nfs) = urls("nas", &options());
        assert_eq!(smb.as_deref(), Some("smb://alice@nas/data"));
        assert_eq!(nfs.as_deref(), Some("nfs://nas/data"));
        let (smb, nfs) = urls("nas:4450", &options());
        assert_eq!(smb.as_deref(), Some("smb://alice@nas:4450/data"));
        assert_eq!(nfs, None, "a port is one server's");
        let (smb, _) = urls("[::1]:4450", &options());
        assert_eq!(smb.as_deref(), Some("smb://alice@[::1]:4450/data"));
        let (smb, nfs) = urls("nfs://nas/export?mountport=20048", &options());
        assert_eq!((smb, nfs.as_deref()), (None, Some("nfs://nas/export?mountport=20048")));
        let (smb, _) = urls("smb://bob@nas/x/folder", &ServerOf { user: None, ..options() });
        assert_eq!(smb.as_deref(), Some("smb://bob@nas/x/folder"));
    }

    #[test]
    fn what_names_no_server_says_how_to_name_one() {
        for host in ["http://nas/x", "a b", "nas:99999", "smb://u:p@nas/x"] {
            assert!(named(host, &options()).is_err(), "{host:?} was taken");
        }
        let wrong = named("nas", &ServerOf { nfs: Some("smb://nas/x".into()), ..options() });
        assert!(wrong.err().is_some_and(|e| e.to_string().contains("nfs://HOST")));
    }
}
