//! The examination: from resolving the name to the first bytes moved by RDMA.
//!
//! Each step builds on the steps before it; a step that cannot run is skipped with its reason. This file owns the
//! order of the steps and their words. It does not print or ask for a password.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use rustix::process::{Resource, getrlimit};
use weft_machine::{Pool, Stream, rt};
use weft_rdma::iwarp::probe::{self, Answer, NoAnswer, probe};
use weft_rdma::{Provider, iwarp, shm};
use weft_smb::client::{Options, Session};
use weft_transport::{nbss, smbd};
use zeroize::Zeroizing;

use super::clients::{self, Facts};
use super::report::{Report, Verdict};
use super::service::{readable, try_out};
use crate::Failure;
use crate::args::Service;
use crate::connect::reach;
use crate::default_port::{self, NFS_RDMA, SMB};
use crate::host::Host;
use crate::providers;

/// Ports examined if neither port nor service is named, with their service.
const PORTS: &[(u16, Service)] =
    &[(default_port(Service::Smb), Service::Smb), (default_port(Service::Nfs), Service::Nfs)];
/// RDMA Reads outstanding that the probe asks for: the provider's default.
const DEPTH: u16 = 64;
/// With a smaller MTU than Ethernet's, the number of packets grows noticeably.
const ETHERNET_MTU: u32 = 1500;

/// The RDMA port where a service listens unless told otherwise.
const fn default_port(service: Service) -> u16 {
    match service {
        Service::Smb => default_port::SMB_DIRECT,
        Service::Nfs => NFS_RDMA,
        Service::Ping => weft_load::verbs::ping::PORT,
    }
}

/// The ports to examine on a host if none is named.
fn usual_ports(service: Option<Service>) -> Vec<(u16, Service)> {
    match service {
        Some(service) => vec![(default_port(service), service)],
        None => PORTS.to_vec(),
    }
}

/// The subject of an examination.
pub(crate) struct Question {
    /// The host.
    pub host: Host,
    /// The service on the port; if not given, guessed from the port number.
    pub service: Option<Service>,
    /// Whether connections ask for a CRC.
    pub crc: bool,
    /// Time limit for each connection and answer.
    pub limit: Duration,
    /// The user who logs on, if the server's announcements are to be examined.
    pub logon: Option<Logon>,
    /// Where shared-memory peers meet.
    pub shm: shm::Config,
}

/// Credentials.
pub(crate) struct Logon {
    pub user: String,
    pub password: Zeroizing<String>,
    /// Port of SMB over TCP, if one was named.
    pub smb_port: Option<u16>,
}

/// Examines the host; never fails, because failures go into the report.
pub(crate) async fn examine(question: Question, pool: Pool) -> Report {
    let report = Report { host: question.host.to_string(), ..Report::default() };
    let facts = Facts::default();
    let (works, hindered, refused) = (Vec::new(), None, None);
    let mut examination = Examination { question, pool, report, works, hindered, refused, facts };
    examination.run().await;
    let Examination { mut report, works, hindered, refused, facts, .. } = examination;
    clients::judge(&mut report, &facts);
    report.verdict = verdict(&report, works, hindered);
    if let Some(why) = refused {
        // RDMA is not the cause, and we have not seen whether sessions use it.
        report.verdict.because = format!("{}; {why}", report.verdict.because);
        report.verdict.remedy.get_or_insert("check --user and WEFT_PASSWORD".into());
    }
    report
}

struct Examination {
    question: Question,
    pool: Pool,
    report: Report,
    /// The providers over which the service answered, best first.
    works: Vec<&'static str>,
    /// Why payload does not move by RDMA although connections work, and what to do.
    hindered: Option<(String, String)>,
    /// Why the log-on was refused.
    refused: Option<String>,
    /// Facts that matter to other clients.
    facts: Facts,
}

impl Examination {
    async fn run(&mut self) {
        self.own_limits();
        let Some(addresses) = self.name().await else { return };
        let reached = self.ports(&addresses).await;
        // A local server's offers do not depend on its TCP port.
        let local = addresses.iter().copied().find(|addr| reach::is_local(addr.ip()));
        let (port, service) = match (reached, self.question.host.port) {
            (Some((addr, service)), _) => {
                self.iwarp(addr, service).await;
                (addr.port(), service)
            }
            (None, Some(port)) => (port, self.service_of(port)),
            (None, None) => {
                let service = self.question.service.unwrap_or(Service::Smb);
                (default_port(service), service)
            }
        };
        self.shm(local, port, service).await;
        self.announced(&addresses, port).await;
    }

    /// The limits of this host and user.
    fn own_limits(&mut self) {
        let limit = match getrlimit(Resource::Memlock).current {
            None => "unlimited".to_owned(),
            Some(bytes) => format!("{} KiB", bytes >> 10),
        };
        self.report.ok(
            "locked memory",
            format!(
                "{limit}; iwarp and shm lock no memory (an RDMA adapter needs more: ulimit -l unlimited)"
            ),
        );
    }

    async fn name(&mut self) -> Option<Vec<SocketAddr>> {
        let host = self.question.host.clone();
        // Without a named port, this number is replaced below.
        match host.addresses(default_port::SMB_DIRECT).await {
            Ok(addresses) => {
                let list: Vec<String> = addresses.iter().map(|addr| addr.ip().to_string()).collect();
                self.report.ok("name", format!("{} is {}", self.question.host.name, list.join(", ")));
                Some(addresses)
            }
            Err(e) => {
                self.report.fail(
                    "name",
                    e.to_string(),
                    "check the name against DNS or /etc/hosts, or give the address",
                );
                None
            }
        }
    }

    fn service_of(&self, port: u16) -> Service {
        self.question.service.unwrap_or(match port {
            NFS_RDMA => Service::Nfs,
            weft_load::verbs::ping::PORT => Service::Ping,
            _ => Service::Smb,
        })
    }

    /// Tries the ports; returns the first open RDMA port.
    async fn ports(&mut self, addresses: &[SocketAddr]) -> Option<(SocketAddr, Service)> {
        if let Some(port) = self.question.host.port {
            let service = self.service_of(port);
            let what = meaning(port, service);
            return match self.reach(addresses, port).await {
                Ok(addr) => {
                    self.report.ok(format!("port {port}"), format!("{what}: open at {}", addr.ip()));
                    Some((addr, service))
                }
                Err(e) => {
                    let (found, remedy) = unreachable(&e, port, service);
                    self.report.fail(format!("port {port}"), format!("{what}: {found}"), &remedy);
                    None
                }
            };
        }
        let mut open = None;
        let mut closed = Vec::new();
        for (port, service) in usual_ports(self.question.service) {
            let what = meaning(port, service);
            match self.reach(addresses, port).await {
                Ok(addr) => {
                    self.report.ok(format!("port {port}"), format!("{what}: open at {}", addr.ip()));
                    open = open.or(Some((addr, service)));
                }
                Err(e) => closed.push((port, service, e)),
            }
        }
        for (port, service, e) in closed {
            let (found, remedy) = unreachable(&e, port, service);
            let (name, found) = (format!("port {port}"), format!("{}: {found}", meaning(port, service)));
            match open {
                // One RDMA port is enough.
                Some(_) => self.report.warn(name, found, &remedy),
                None => self.report.fail(name, found, &remedy),
            }
        }
        if self.question.service.is_none() {
            match self.reach(addresses, SMB).await {
                Ok(_) => {
                    self.facts.smb_open = Some(true);
                    self.report.ok(
                        format!("port {SMB}"),
                        "SMB over TCP: open; SMB clients begin there and ask for RDMA",
                    );
                }
                Err(e) => {
                    self.facts.smb_open = Some(false);
                    self.report.warn(
                    format!("port {SMB}"),
                    format!("SMB over TCP: {}", unreachable(&e, SMB, Service::Smb).0),
                    "SMB clients other than Weft's begin there: serve it with --smb-port 445, or redirect the port",
                );
                }
            }
        }
        open
    }

    /// The first address that accepts a TCP connection.
    async fn reach(&self, addresses: &[SocketAddr], port: u16) -> io::Result<SocketAddr> {
        let all: Vec<_> = addresses.iter().map(|addr| SocketAddr::new(addr.ip(), port)).collect();
        let connect = async |addr| Stream::connect_within(addr, self.question.limit).await;
        match reach::first(&all, connect).await {
            Ok((addr, _)) => Ok(addr),
            Err(failed) => {
                let last = failed.into_iter().next_back().map(|(_, e)| e);
                Err(last.unwrap_or_else(|| io::ErrorKind::AddrNotAvailable.into()))
            }
        }
    }

    /// iWARP: MPA's reply, its parameters, the path, and one use of the service.
    async fn iwarp(&mut self, addr: SocketAddr, service: Service) {
        let Some((answer, crc)) = self.mpa(addr).await else { return };
        self.terms(&answer, crc);
        self.path(addr, &answer);
        let config = iwarp::Config { crc, setup_timeout: self.question.limit, ..iwarp::Config::default() };
        let provider = iwarp::Provider::new(self.pool.clone(), config);
        match self.use_service(service, &provider, addr).await {
            // If CRC is refused, a working connection differs from Weft's default.
            Ok(found) => {
                self.report.ok(service_step(service), format!("{found} (iwarp)"));
                self.facts.iwarp = Some((addr.port(), service));
                self.facts.loopback = addr.ip().is_loopback();
                self.facts.crc_refused = !crc && self.question.crc;
                if crc == self.question.crc {
                    self.works.push("iwarp");
                }
            }
            Err(e) => {
                self.report.fail(service_step(service), format!("over iwarp: {e}"), wrong_service(service))
            }
        }
    }

    async fn use_service(
        &self,
        service: Service,
        provider: &dyn Provider,
        addr: SocketAddr,
    ) -> Result<String, Failure> {
        try_out(service, provider, addr, self.question.limit, &self.pool).await
    }

    /// MPA's reply, and the CRC setting with which it came.
    async fn mpa(&mut self, addr: SocketAddr) -> Option<(Answer, bool)> {
        let limit = self.question.limit;
        let ask = |crc, enhanced| probe::Question { crc, enhanced, peer_to_peer: true, depth: DEPTH, limit };
        let wish = self.question.crc;
        let first = probe(addr, ask(wish, true)).await;
        if matches!(first, Err(NoAnswer::Closed))
            && let Ok(answer) = probe(addr, ask(wish, false)).await
            && !answer.rejected
        {
            // The provider also retries this way.
            self.report.warn(
                "MPA",
                format!(
                    "revision {}; the peer closes the connection on the enhanced request",
                    answer.revision
                ),
                "each connection needs two attempts: use MPA revision 2 at the peer",
            );
            return Some((answer, wish));
        }
        let refused = match &first {
            Ok(answer) => answer.rejected,
            Err(NoAnswer::Closed) => true,
            Err(_) => false,
        };
        if refused
            && let Ok(answer) = probe(addr, ask(!wish, true)).await
            && !answer.rejected
        {
            self.report.ok("MPA", format!("revision {}", answer.revision));
            match wish {
                true => self.report.fail(
                    "CRC",
                    "the peer refuses connections that ask for a CRC",
                    "enable CRCs at the peer, or do without: weft cp --no-crc, weft rdma --crc asked",
                ),
                false => self.report.fail(
                    "CRC",
                    "the peer refuses connections that do not ask for a CRC",
                    "ask for one: omit --no-crc and --crc asked",
                ),
            }
            return Some((answer, !wish));
        }
        let e = match first {
            Ok(answer) if !answer.rejected => {
                self.report.ok("MPA", format!("revision {}", answer.revision));
                return Some((answer, wish));
            }
            Ok(answer) => {
                let why = match answer.private_data.is_empty() {
                    true => "without private data".to_owned(),
                    false => format!("its private data: {}", readable(&answer.private_data)),
                };
                self.report.fail(
                    "MPA",
                    format!("the peer speaks MPA and rejects the connection, {why}"),
                    "see the peer's log: it may expect other private data or another port, or be full",
                );
                return None;
            }
            Err(e) => e,
        };
        let (found, remedy) = match &e {
            NoAnswer::Foreign(bytes) => (
                format!("{e}; its first bytes: {}", readable(bytes)),
                "another program uses this port: give the RDMA port, HOST:PORT",
            ),
            NoAnswer::Silent => (
                format!("{e}"),
                "the listener does not speak iWARP (or hangs): give the RDMA port, HOST:PORT",
            ),
            NoAnswer::Closed => (
                format!("{e}"),
                "the listener does not speak iWARP, or is full: see its log, or give another port",
            ),
            NoAnswer::Malformed(_) => {
                (format!("{e}"), "the peer's iWARP is broken: report it with its version")
            }
            NoAnswer::Tcp(_) | NoAnswer::Io(_) => (format!("{e}"), "try again; the network may lose packets"),
        };
        self.report.fail("MPA", found, remedy);
        None
    }

    /// The parameters that both sides would agree on.
    fn terms(&mut self, answer: &Answer, crc: bool) {
        let report = &mut self.report;
        if crc == self.question.crc {
            report.ok(
                "CRC",
                match (crc, answer.crc) {
                    (true, true) => "CRC32C on every FPDU: both sides ask for it",
                    (true, false) => "CRC32C on every FPDU: we ask for it",
                    (false, true) => "CRC32C on every FPDU: the peer asks for it",
                    (false, false) => "none: neither side asks for it",
                },
            );
        }
        if answer.markers {
            report.warn(
                "markers",
                "the peer asks for markers in the data it receives",
                "disable markers at the peer: they cost copies",
            );
        } else {
            report.ok("markers", "none");
        }
        match answer.depths {
            Some((0, _)) => report.warn(
                "IRD/ORD",
                "the peer accepts no RDMA Reads (IRD 0)",
                "raise the peer's IRD: servers read WRITE payload from their clients by RDMA Read",
            ),
            Some((ird, ord)) => report
                .ok("IRD/ORD", format!("the peer accepts {ird} outstanding RDMA Reads and issues {ord}")),
            None => report.warn(
                "IRD/ORD",
                "unknown: the peer's MPA has no enhanced set-up",
                "configure both sides with the same number of RDMA Reads, or use MPA revision 2 at the peer",
            ),
        }
        match &answer.peer_to_peer {
            Some(openings) => {
                report.ok("peer-to-peer", format!("the peer can be opened by {}", openings.join(", ")))
            }
            None => report.skip("peer-to-peer", "the peer does not support it; Weft never needs it", None),
        }
    }

    fn path(&mut self, addr: SocketAddr, answer: &Answer) {
        if let Some(path) = answer.path {
            let found =
                format!("MTU {} bytes, {} bytes of payload in a segment", path.mtu_bytes, path.segment_bytes);
            if path.mtu_bytes < ETHERNET_MTU {
                let remedy = "a tunnel or a misconfigured link makes packets small: ip link set dev DEV mtu 1500 (or 9000)";
                self.report.warn("path", found, remedy);
            } else {
                self.report.ok("path", found);
            }
        }
        let control = &answer.congestion;
        if control == "bbr" && reach::is_local(addr.ip()) {
            self.report.warn(
                "congestion control",
                format!("{control} paces even on one host"),
                "start both sides with --congestion reno, or sysctl net.ipv4.tcp_congestion_control=cubic",
            );
        } else {
            self.report.ok("congestion control", control.clone());
        }
    }

    async fn shm(&mut self, local: Option<SocketAddr>, port: u16, service: Service) {
        let Some(addr) = local else {
            return self.report.skip("shm", "the server is on another host", None);
        };
        let uid = rustix::process::geteuid().as_raw();
        let addr = SocketAddr::new(addr.ip(), port);
        let provider = shm::Provider::new(self.pool.clone(), self.question.shm.clone());
        match self.use_service(service, &provider, addr).await {
            Ok(found) => {
                self.report.ok("shm", format!("{found} (shm, uid {uid} on both sides)"));
                // Preferred to iWARP.
                self.works.insert(0, "shm");
            }
            Err(e) => {
                let dir = self.question.shm.dir.display();
                let remedy = format!(
                    "run the server on this host as uid {uid}, with sockets in {dir} (XDG_RUNTIME_DIR)"
                );
                self.report.warn("shm", e.to_string(), &remedy);
            }
        }
    }

    /// The server's announcements to its clients, and the properties of a session over RDMA.
    async fn announced(&mut self, addresses: &[SocketAddr], port: u16) {
        let Some(Logon { user, password, smb_port }) = self.question.logon.as_ref() else {
            let how = "give --user NAME (and WEFT_PASSWORD, --smb-port) to see what the server announces";
            return self.report.skip("announced", "needs credentials", Some(how));
        };
        let options = Options::new(&self.question.host.name, user, password, self.pool.clone());
        let (user, mut smb_port) = (user.clone(), smb_port.unwrap_or(SMB));
        let mut reached = self.reach(addresses, smb_port).await;
        let loopback = addresses.iter().all(|addr| addr.ip().is_loopback());
        if reached.is_err()
            && loopback
            && self.question.logon.as_ref().is_some_and(|logon| logon.smb_port.is_none())
        {
            // As for URLs without a port.
            let other = self.reach(addresses, default_port::WEFT_SMB).await;
            if other.is_ok() {
                self.report.ok(
                    "SMB port",
                    format!(
                        "nothing listens at {smb_port}; {}, the default of weft serve, answers and is used",
                        default_port::WEFT_SMB
                    ),
                );
                (reached, smb_port) = (other, default_port::WEFT_SMB);
            }
        }
        let addr = match reached {
            Ok(addr) => addr,
            Err(e) => {
                let (found, _) = unreachable(&e, smb_port, Service::Smb);
                return self.report.warn(
                    "announced",
                    format!("port {smb_port}: {found}"),
                    "give the port of SMB over TCP: --smb-port N",
                );
            }
        };
        let asked = rt::timeout(self.question.limit, announcements(addr, options.clone(), &self.pool)).await;
        let asked = asked.unwrap_or_else(|rt::Elapsed| Err("no answer in time".into()));
        match asked {
            // A session over RDMA would be refused as well, and count as another wrong password.
            Err(e) if is_refusal(&e) => {
                self.refused = Some(format!("{user} cannot log on at port {smb_port}: {e}"));
                self.report.fail(
                    "log-on",
                    format!("{user} at port {smb_port}: {e}"),
                    "check --user and WEFT_PASSWORD",
                );
                return;
            }
            Err(e) => {
                let found = format!("port {smb_port}: {e}");
                self.report.warn("announced", found, "check --user, WEFT_PASSWORD and --smb-port");
            }
            Ok((list, rdma)) if rdma => {
                self.facts.announced = Some(true);
                self.report.ok("announced", list);
            }
            Ok((list, _)) => {
                self.facts.announced = Some(false);
                self.report.warn(
                "announced",
                format!("{list}; no interface with RDMA"),
                "clients that ask (Linux, Windows) stay on TCP; weft serve announces RDMA with --rdma iwarp or rnic and --smbd-port 5445",
                );
            }
        }
        // The transport that a client would choose.
        let Some(medium) = self.works.first().copied() else { return };
        let provider: Box<dyn Provider> = match medium {
            "shm" => Box::new(shm::Provider::new(self.pool.clone(), self.question.shm.clone())),
            _ => providers::iwarp_provider(&self.pool, self.question.crc, None),
        };
        let addr = SocketAddr::new(addr.ip(), port);
        let session =
            rt::timeout(self.question.limit, session(provider.as_ref(), addr, options, &self.pool)).await;
        match session.unwrap_or_else(|rt::Elapsed| Err("no answer in time".into())) {
            Ok((described, true)) => self.report.ok("session", described),
            Ok((described, false)) => {
                let remedy = "payload of signed or encrypted sessions moves by RDMA only if both ends negotiate RDMA transforms: omit --require-signing, --require-encryption and --sign, --encrypt";
                self.report.warn("session", format!("{described}; payload stays inside messages"), remedy);
                self.hindered = Some((
                    format!(
                        "connections work over {medium}, but the session keeps payload inside its messages"
                    ),
                    remedy.into(),
                ));
            }
            Err(e) => {
                self.report.fail("session", format!("over {medium}: {e}"), "see the server's log");
                self.hindered =
                    Some((format!("no session over {medium}: {e}"), "see the server's log".into()));
            }
        }
    }
}

/// The interfaces and endpoints that a server announces over TCP, and whether any of them has RDMA.
async fn announcements(addr: SocketAddr, options: Options, pool: &Pool) -> Result<(String, bool), Failure> {
    let stream = Stream::connect(addr).await?;
    let channel = nbss::Nbss::channel(stream, pool.clone(), nbss::Config::default());
    let session = Session::connect(channel, options).await?;
    let dialect = session.describe().dialect;
    let mut lines = Vec::new();
    let mut rdma = false;
    match session.interfaces().await {
        Ok(mut interfaces) => {
            // An interface listed both with and without RDMA has RDMA.
            let with: Vec<_> = interfaces.iter().filter(|one| one.rdma).map(|one| one.addr).collect();
            interfaces.retain(|one| one.rdma || !with.contains(&one.addr));
            for interface in interfaces {
                let kind = if interface.rdma { "RDMA" } else { "no RDMA" };
                rdma |= interface.rdma;
                lines.push(format!(
                    "{} ({kind}, {} Gbit/s)",
                    interface.addr,
                    interface.link_speed_bps / 1_000_000_000
                ));
            }
            if lines.is_empty() {
                lines.push("no interfaces".into());
            }
        }
        Err(e) => lines.push(format!("no interface list: {e}")),
    }
    // Only Weft servers know this question.
    if let Ok(endpoints) = session.endpoints().await {
        rdma |= !endpoints.is_empty();
        lines.extend(
            endpoints.iter().map(|endpoint| format!("{} at port {}", endpoint.kind, endpoint.address)),
        );
    }
    session.logoff().await?;
    Ok((format!("SMB {dialect}: {}", lines.join(", ")), rdma))
}

/// Whether the server has judged the user's credentials.
fn is_refusal(failure: &Failure) -> bool {
    failure.downcast_ref::<weft_smb::client::Error>().is_some_and(|e| e.status().is_some())
}

/// A session over RDMA: its properties, and whether payload moves by RDMA.
async fn session(
    provider: &dyn Provider,
    addr: SocketAddr,
    options: Options,
    pool: &Pool,
) -> Result<(String, bool), Failure> {
    let channel = smbd::connect(provider, addr, smbd::Config::default(), pool.clone()).await?;
    let session = Session::connect(channel, options).await?;
    let described = session.describe();
    session.logoff().await?;
    Ok((described.to_string(), described.rdma))
}

fn meaning(port: u16, service: Service) -> &'static str {
    match (port, service) {
        (SMB, _) => "SMB over TCP (RDMA there is for InfiniBand and RoCE only)",
        (_, Service::Smb) => "SMB Direct over iWARP",
        (_, Service::Nfs) => "NFS over RDMA",
        (_, Service::Ping) => "RDMA pings",
    }
}

fn service_step(service: Service) -> &'static str {
    match service {
        Service::Smb => "SMB Direct",
        Service::Nfs => "NFS over RDMA",
        Service::Ping => "ping",
    }
}

fn wrong_service(service: Service) -> &'static str {
    match service {
        Service::Smb => {
            "the port speaks RDMA, but not SMB Direct: NFS and pings need --service nfs or --service ping"
        }
        Service::Nfs => {
            "the port speaks RDMA, but not RPC over RDMA: SMB Direct and pings need --service smb or --service ping"
        }
        Service::Ping => {
            "the port speaks RDMA, but not rping: SMB Direct and NFS need --service smb or --service nfs"
        }
    }
}

/// Why a port could not be reached, and what to do.
fn unreachable(error: &io::Error, port: u16, service: Service) -> (String, String) {
    let start = match service {
        Service::Smb if port == SMB => "weft serve --smb-port 445".to_owned(),
        Service::Smb => format!("weft serve --listen ADDR --smbd-port {port}"),
        Service::Nfs => format!("weft serve --listen ADDR --nfs-rdma-port {port}"),
        Service::Ping => format!("weft rdma ping --server --listen ADDR --port {port}"),
    };
    match error.kind() {
        io::ErrorKind::ConnectionRefused => (
            "closed, nothing listens on it".into(),
            format!("start the server on that host ({start}), or give its port: HOST:PORT"),
        ),
        io::ErrorKind::TimedOut => (
            "no answer".into(),
            format!("a firewall drops TCP port {port}, or the host is down: open it on every hop"),
        ),
        io::ErrorKind::HostUnreachable | io::ErrorKind::NetworkUnreachable => {
            (format!("{error}"), "check the address and the route: ip route get ADDR".into())
        }
        _ => (format!("{error}"), "check the address and the port".into()),
    }
}

fn verdict(report: &Report, works: Vec<&'static str>, hindered: Option<(String, String)>) -> Verdict {
    if let Some((why, remedy)) = hindered {
        return Verdict {
            rdma: false,
            by: works,
            because: format!("RDMA is not used: {why}"),
            remedy: Some(remedy),
        };
    }
    let session = report.steps.iter().any(|step| step.name == "session");
    match works[..] {
        [first, ..] => {
            let used = if session { "is used" } else { "would be used" };
            let others = match works[1..] {
                [] => String::new(),
                _ => format!(" (else over {})", works[1..].join(", ")),
            };
            Verdict {
                rdma: true,
                because: format!("RDMA {used}, over {first}{others}"),
                by: works,
                remedy: None,
            }
        }
        [] => {
            let (why, remedy) = match report.first_failure() {
                Some(step) if step.name == "log-on" => ("nothing that answered".into(), None),
                Some(step) => (format!("{}: {}", step.name, step.found), step.remedy.clone()),
                None => ("nothing answered".into(), None),
            };
            Verdict { rdma: false, by: works, because: format!("RDMA is not used, because of {why}"), remedy }
        }
    }
}

#[cfg(test)]
mod tests;
