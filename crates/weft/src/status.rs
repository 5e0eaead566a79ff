//! `weft status`: what a running server serves, to whom, over which transport, and whether RDMA carries the payload.
//!
//! This file defines the answer, which the server makes and this command prints; fields are added, never changed.
//! `serve::status` gathers it, and [`advice`] explains it.

pub(crate) mod advice;
mod bounded;
mod kinds;
mod page;
mod print;
mod screen;
pub(crate) mod slow;
mod traffic;
pub(crate) mod usage;

use std::io::{IsTerminal, Write};
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use self::bounded::More;
pub(crate) use self::kinds::OfKind;
pub(crate) use self::traffic::Traffic;
use self::usage::Usage;
use crate::Failure;
use crate::admin::replica::Group;
use crate::admin::{self, Request, Server};
use crate::args;
use crate::misuse::Misuse;
use crate::out::path_name;
use crate::state_of_command::state_of_command;

/// One running server.
#[derive(Serialize, Deserialize, Clone, Debug, Default)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct Status {
    /// Its version of Weft.
    pub version: String,
    /// The commit that it was built from, with its date; empty if unknown.
    #[serde(default)]
    pub build: String,
    /// Its process number.
    pub pid: u32,
    /// Seconds since the server became ready.
    pub up_seconds: u64,
    /// The address that everything listens on.
    pub listen: String,
    /// Ports by service: "smb", "smbd", "nfs", "nfs-rdma", "mountd", "nbd".
    pub ports: Vec<(String, u16)>,
    /// RDMA providers.
    pub providers: Vec<String>,
    /// "io_uring" or "epoll".
    pub driver: String,
    /// A problem with its state directory: full, read-only, or not writable.
    #[serde(default)]
    pub state_warning: Option<String>,
    /// What somebody should mend, besides what is said of its shares and volumes: missing addresses, users who cannot log on.
    #[serde(default)]
    pub warnings: Vec<String>,
    /// The file that its configuration was read from.
    #[serde(default)]
    pub config: Option<String>,
    /// Open files and folders, over all protocols.
    pub opens: usize,
    /// SMB sessions.
    pub sessions: usize,
    /// The shares.
    pub shares: Vec<Share>,
    /// Volumes over NBD.
    pub volumes: Vec<Volume>,
    /// The replication groups and their state.
    #[serde(default)]
    pub replicas: Vec<Group>,
    /// The connections.
    pub connections: Vec<Connection>,
    /// What the connections that have ended had carried.
    #[serde(default)]
    pub ended: Vec<Ended>,
    /// All connections by kind, open and ended.
    #[serde(default)]
    pub kinds: Vec<OfKind>,
    /// Replication in words: a line for each partner of a group.
    #[serde(default)]
    pub replication: Vec<ReplicaLine>,
    /// What the lists of this answer leave out.
    #[serde(default)]
    pub more: More,
}

impl Status {
    /// The same with these groups.
    pub(crate) fn with_replicas(self, replicas: Vec<Group>) -> Status {
        let replication = replicas.iter().flat_map(ReplicaLine::of).collect();
        Status { replicas, replication, ..self }
    }

    /// Everything else, without the cost of a copy of the connections.
    fn without_connections(&self) -> Status {
        Status {
            version: self.version.clone(),
            build: self.build.clone(),
            pid: self.pid,
            up_seconds: self.up_seconds,
            listen: self.listen.clone(),
            ports: self.ports.clone(),
            providers: self.providers.clone(),
            driver: self.driver.clone(),
            state_warning: self.state_warning.clone(),
            warnings: self.warnings.clone(),
            config: self.config.clone(),
            opens: self.opens,
            sessions: self.sessions,
            shares: self.shares.clone(),
            volumes: self.volumes.clone(),
            replicas: self.replicas.clone(),
            connections: Vec::new(),
            ended: self.ended.clone(),
            kinds: self.kinds.clone(),
            replication: self.replication.clone(),
            more: self.more,
        }
    }
}

/// A line about the replication of a group.
#[derive(Serialize, Deserialize, Clone, Debug, Default)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct ReplicaLine {
    /// The group.
    pub group: String,
    /// "source", "destination", "starting" or "stopped".
    pub role: String,
    /// Mode, phase, lag and transport of a partner, or why there is none.
    pub text: String,
    /// Whether something is wrong or not finished.
    pub needs_attention: bool,
    /// Why the link does not use RDMA.
    pub reason: Option<String>,
    /// What to do about that.
    pub remedy: Option<String>,
}

impl ReplicaLine {
    /// The lines of a group.
    pub(crate) fn of(group: &Group) -> impl Iterator<Item = ReplicaLine> {
        crate::replica::print::brief(group).into_iter().map(|brief| {
            let (reason, remedy) = brief.no_rdma.unzip();
            ReplicaLine {
                group: group.name.clone(),
                role: group.role.clone(),
                text: brief.line,
                needs_attention: brief.care,
                reason,
                remedy,
            }
        })
    }
}

/// The ended connections of one protocol, transport and provider.
#[derive(Serialize, Deserialize, Clone, Debug, Default)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct Ended {
    /// As of a connection.
    pub protocol: String,
    /// As of a connection.
    pub transport: String,
    /// As of a connection.
    pub provider: Option<String>,
    /// How many have ended.
    pub connections: u64,
    /// The sum of what they had carried.
    pub traffic: Traffic,
}

impl Ended {
    /// The total of one connection.
    pub(crate) fn of(connection: &Connection) -> Ended {
        Ended {
            protocol: connection.protocol.clone(),
            transport: connection.transport.clone(),
            provider: connection.provider.clone(),
            connections: 1,
            traffic: connection.moved(),
        }
    }

    /// Whether both are of the same kind.
    pub(crate) fn is_like(&self, other: &Ended) -> bool {
        (&self.protocol, &self.transport, &self.provider)
            == (&other.protocol, &other.transport, &other.provider)
    }
}

/// A share.
#[derive(Serialize, Deserialize, Clone, Debug, Default)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct Share {
    /// Its name.
    pub name: String,
    /// "dir" or "ram".
    pub kind: String,
    /// The folder, or the size of the ramdisk.
    pub source: String,
    /// Whether it requires encryption.
    pub encrypted: bool,
    /// Its open files and folders.
    pub opens: usize,
    /// Why it is not served, if its folder was missing or unreadable when the configuration was read.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub not_served: Option<String>,
    /// A problem with it: its disk is full, read-only or failing, or its folder was moved or removed while it is
    /// served.
    #[serde(default)]
    pub warning: Option<String>,
    /// Its space; `null` if its file system does not answer in time.
    #[serde(default)]
    pub space: Option<Space>,
    /// Its quota, if it has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub quota: Option<Quota>,
    /// SMB connections with a session that uses it.
    #[serde(default)]
    pub connections: usize,
}

/// The space of a share.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct Space {
    /// Bytes in all.
    pub total_bytes: u64,
    /// Bytes that clients can still write.
    pub available_bytes: u64,
}

/// The quota of a share.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct Quota {
    /// Bytes that its folder may occupy.
    pub limit_bytes: u64,
    /// Bytes that it occupies: more than the limit if that was lowered, or if others write to the folder.
    pub used_bytes: u64,
    /// The kernel's project, if the kernel enforces it; otherwise the server counts.
    #[serde(default)]
    pub project: Option<u32>,
    /// Counted files and folders.
    #[serde(default)]
    pub files: u64,
    /// Whether they are being counted for the first time.
    #[serde(default)]
    pub is_counting: bool,
    /// Whether they are too many to be counted, so that nothing may grow.
    #[serde(default)]
    pub is_unknown: bool,
}

/// A volume.
#[derive(Serialize, Deserialize, Clone, Debug, Default)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct Volume {
    /// Its name.
    pub name: String,
    /// "ram", "file", "device" or "rbd".
    pub kind: String,
    /// The file, device, image or memory that holds it.
    pub source: String,
    /// Bytes.
    pub size: u64,
    /// Clients that have it open.
    pub clients: usize,
    /// Why it is not served; then only its name is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub not_served: Option<String>,
    /// A problem with it: its file was removed or moved while it is served, or a flush has failed.
    #[serde(default)]
    pub warning: Option<String>,
}

/// A connection.
#[derive(Serialize, Deserialize, Clone, Debug, Default)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct Connection {
    /// "smb", "nfs", "nbd".
    pub protocol: String,
    /// The client.
    pub peer: String,
    /// "tcp", "smb-direct", "rpc-rdma", "unix".
    pub transport: String,
    /// The RDMA provider, if RDMA is used.
    pub provider: Option<String>,
    /// Seconds since it was accepted.
    pub age_seconds: u64,
    /// SMB's dialect, once negotiated; NFS's version, after the first call: "4.1".
    pub dialect: Option<String>,
    /// The SMB client's own identifier: the same on all its connections.
    pub client: Option<String>,
    /// SMB sessions on it.
    pub sessions: Vec<Session>,
    /// Bytes and operations.
    pub traffic: Traffic,
    /// NBD's counters.
    pub nbd: Option<Nbd>,
    /// NFS's users.
    pub nfs: Option<Nfs>,
    /// The RDMA-related requests and capabilities of an SMB client.
    pub seen: Seen,
    /// Why it does not use RDMA although the server offers it, and what to do about it.
    pub advice: Option<Advice>,
    /// Whether RDMA carries its payload, and why.
    #[serde(default)]
    pub rdma: Usage,
}

/// A session on a connection.
#[derive(Serialize, Deserialize, Clone, Debug, Default)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct Session {
    /// The same on all channels of a session.
    pub id: String,
    /// The user.
    pub user: String,
    /// The signing algorithm.
    pub signing: String,
    /// Whether every message must be signed.
    pub signing_required: bool,
    /// The cipher, if everything is encrypted.
    pub encryption: Option<String>,
    /// Connections of the session.
    pub channels: usize,
    /// The shares it uses.
    pub shares: Vec<String>,
    /// Those of the shares that require encryption themselves.
    pub encrypted_shares: Vec<String>,
    /// Open files and folders.
    pub opens: usize,
    /// Seconds since the log-on.
    pub age_seconds: u64,
}

/// NBD's counters of a connection.
#[derive(Serialize, Deserialize, Clone, Debug, Default)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct Nbd {
    /// The volume, once chosen.
    pub volume: Option<String>,
    /// Whether TLS is used.
    pub tls: bool,
    /// Bytes of READs.
    pub read_bytes: u64,
    /// READs.
    pub reads: u64,
    /// Bytes of WRITEs.
    pub written_bytes: u64,
    /// WRITEs.
    pub writes: u64,
}

/// NFS's users of a connection.
#[derive(Serialize, Deserialize, Clone, Debug, Default)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct Nfs {
    /// The user ids that the client has claimed in its calls.
    pub uids: Vec<u32>,
}

impl Connection {
    /// What it has carried; NBD's READs count as sent, its WRITEs as received messages.
    pub(crate) fn moved(&self) -> Traffic {
        match &self.nbd {
            Some(nbd) => Traffic {
                sent_bytes: nbd.read_bytes,
                sent: nbd.reads,
                received_bytes: nbd.written_bytes,
                received: nbd.writes,
                ..self.traffic
            },
            None => self.traffic,
        }
    }

    /// Its users: those who have logged on, or whom an NFS client claims to act for.
    pub(crate) fn users(&self) -> String {
        let mut users: Vec<String> = self.sessions.iter().map(|session| session.user.clone()).collect();
        users.dedup();
        let uids: Vec<String> = self.nfs.iter().flat_map(|nfs| nfs.uids.iter().map(u32::to_string)).collect();
        if !uids.is_empty() {
            users.push(format!("uid {}", uids.join(", ")));
        }
        users.join(", ")
    }
}

/// Capabilities and requests of an SMB client that matter for RDMA.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, Default)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct Seen {
    /// Its dialect supports SMB Direct.
    pub knows_rdma: bool,
    /// It supports Multichannel.
    pub multichannel: bool,
    /// It has asked for the interfaces.
    pub asked_interfaces: bool,
    /// It has asked for Weft's endpoints.
    pub asked_endpoints: bool,
}

/// A likely reason and what to do.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq, Eq)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct Advice {
    /// The reason.
    pub reason: String,
    /// What to type, or to change.
    pub remedy: String,
}

/// Runs the command.
pub(crate) fn run(args: args::Status) -> Result<ExitCode, Failure> {
    let state = state_of_command(args.state_dir.as_deref())?;
    let mut out = crate::out::Stdout;
    let every = Duration::from_secs(args.every);
    if args.slow {
        return slow::run(&args, &state, every);
    }
    if args.watch && !args.json && std::io::stdout().is_terminal() {
        screen::watch(state, args.pid, every)?;
        return Ok(ExitCode::SUCCESS);
    }
    loop {
        let servers = chosen(&state, args.pid)?;
        let mut list = Vec::new();
        for server in &servers {
            let status: Status = serde_json::from_value(server.ask(&Request::Status)?)?;
            list.push(status);
        }
        if args.json {
            serde_json::to_writer(&mut out, &serde_json::json!({ "servers": list }))?;
            writeln!(out)?;
        } else {
            for (i, status) in list.iter().enumerate() {
                if i > 0 {
                    writeln!(out)?;
                }
                print::status(&mut out, status)?;
            }
        }
        out.flush()?;
        if !args.watch {
            return Ok(ExitCode::SUCCESS);
        }
        std::thread::sleep(every);
    }
}

/// Where the package, or an administrator, installs the unit.
const UNITS: [&str; 3] = [
    "/etc/systemd/system/weft.service",
    "/lib/systemd/system/weft.service",
    "/usr/lib/systemd/system/weft.service",
];

/// The selected servers: all, or the one with this process number. If there is none, the error says what to type.
pub(crate) fn chosen(state: &Path, pid: Option<u32>) -> Result<Vec<Server>, Failure> {
    if state.is_file() {
        return Err(Misuse::new(format!(
            "--state-dir {}: that is a file; give the server's state directory",
            path_name(state)
        ))
        .into());
    }
    let servers = admin::servers(state)?;
    let none = || {
        let start = match UNITS.iter().any(|unit| Path::new(unit).exists()) {
            true => "systemctl start weft, or weft serve --help",
            false => "weft serve --help",
        };
        format!(
            "no server runs with the state directory {}: start one ({start}), or name that of a running server with \
             --state-dir DIR",
            state.display()
        )
    };
    match pid {
        _ if servers.is_empty() => Err(none().into()),
        None => Ok(servers),
        Some(pid) => {
            let there: Vec<String> = servers.iter().map(|server| server.pid.to_string()).collect();
            let found: Vec<Server> = servers.into_iter().filter(|server| server.pid == pid).collect();
            match found.is_empty() {
                true => {
                    Err(format!("no server has process number {pid}; running: {}", there.join(", ")).into())
                }
                false => Ok(found),
            }
        }
    }
}
