//! `weft status --slow`: the operations that were slow, or that have not ended, with their time by hop.
//!
//! `weft_machine::recorder` records them. Fields are added, never changed.

use std::io::{self, Write};
use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, UNIX_EPOCH};

use serde::{Deserialize, Serialize};
use weft_machine::recorder::{self, Hop, Slow, User};

use crate::Failure;
use crate::admin::Request;
use crate::args;
use crate::size::human;
use crate::when::When;

/// Operations in an answer of the admin server.
pub(crate) const MAX_OPERATIONS: usize = 256;

/// The slow operations of a server: those under way, the oldest first, then those that have ended, the latest first.
#[derive(Serialize, Deserialize, Clone, Debug, Default)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct SlowOperations {
    /// The server's process number.
    pub pid: u32,
    /// Operations that take this long are slow (`log.slow`), in milliseconds.
    pub threshold_ms: f64,
    /// The operations.
    pub operations: Vec<SlowOperation>,
    /// Operations that this answer leaves out.
    #[serde(default)]
    pub more: usize,
}

/// An operation that was slow, or that has not ended.
#[derive(Serialize, Deserialize, Clone, Debug, Default)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct SlowOperation {
    /// When its message had arrived, in UTC (RFC 3339).
    pub began: String,
    /// "smb", "nfs3", "nfs4" or "nbd"; empty if the message is not understood yet.
    pub protocol: String,
    /// "tcp", "smb-direct", "rpc-rdma", "udp" or "unix".
    pub transport: String,
    /// "read", "create", ...; of a compound, the operation that took longest.
    pub operation: String,
    /// The share or volume, if it concerns one.
    pub share: Option<String>,
    /// The client's address, if it is known.
    pub client: Option<String>,
    /// The user; "uid N": whom an NFS client claims to act for.
    pub user: Option<String>,
    /// The file by its name as far as it is known; over NBD the part of the volume.
    pub file: Option<String>,
    /// Bytes of payload, or 0.
    pub bytes: u64,
    /// Its duration so far, in milliseconds.
    pub total_ms: f64,
    /// If it has not ended: where it is, one of the names of `hops`.
    pub at: Option<String>,
    /// Its duration by hop. The sum is `total_ms`.
    pub hops: Hops,
}

/// Where the time went, in milliseconds.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, Default, PartialEq)]
#[cfg_attr(test, derive(schemars::JsonSchema))]
pub(crate) struct Hops {
    /// It waited for its turn: for its core, for credits, memory or another limit, or for another operation on the same file.
    /// Of the time before its message was received, this is what it was at most.
    pub queue: f64,
    /// Messages were decrypted, decompressed, verified or encrypted.
    pub decode: f64,
    /// The protocol's own work and the file system's names, on the core or on a worker.
    pub store: f64,
    /// It waited for a worker that makes its call of the file system.
    pub pool: f64,
    /// Data was read, written or made durable.
    pub disk: f64,
    /// Payload travelled by RDMA or was awaited, or the answer waited until the client took it.
    pub wire: f64,
    /// It waited for a partner of the replication.
    pub replica: f64,
    /// It waited for another client: a lock, or a right to cache that is recalled.
    pub peer: f64,
}

fn ms(duration: Duration) -> f64 {
    // Microseconds are as exact as the clock is compared.
    (duration.as_secs_f64() * 1e6).round() / 1e3
}

impl Hops {
    fn of(slow: &Slow) -> Hops {
        let of = |hop| ms(slow.hops.of(hop));
        Hops {
            queue: of(Hop::Queue),
            decode: of(Hop::Decode),
            store: of(Hop::Store),
            pool: of(Hop::Pool),
            disk: of(Hop::Disk),
            wire: of(Hop::Wire),
            replica: of(Hop::Replica),
            peer: of(Hop::Peer),
        }
    }

    fn named(&self) -> [(&'static str, f64); 8] {
        let Hops { queue, decode, store, pool, disk, wire, replica, peer } = *self;
        [
            ("queue", queue),
            ("decode", decode),
            ("store", store),
            ("pool", pool),
            ("disk", disk),
            ("wire", wire),
            ("replica", replica),
            ("peer", peer),
        ]
    }
}

impl From<Slow> for SlowOperation {
    fn from(slow: Slow) -> SlowOperation {
        let hops = Hops::of(&slow);
        let began = UNIX_EPOCH.checked_add(slow.began).map(When::from).unwrap_or_default();
        let (protocol, transport, operation, share) = match slow.named {
            Some(named) => (named.protocol, named.transport, named.operation, Some(named.share.to_string())),
            None => ("", "", "", None),
        };
        SlowOperation {
            began: began.rfc3339(),
            protocol: protocol.to_owned(),
            transport: transport.to_owned(),
            operation: operation.to_owned(),
            share: share.filter(|share| !share.is_empty()),
            client: slow.details.client.map(|client| client.to_string()),
            user: match slow.details.user {
                User::None => None,
                User::Named(user) => Some(user.to_string()),
                User::Id(id) => Some(format!("uid {id}")),
            },
            file: Some(slow.details.file).filter(|file| !file.is_empty()),
            bytes: slow.bytes,
            total_ms: ms(slow.total),
            at: slow.at.map(|hop| hop.name().to_owned()),
            hops,
        }
    }
}

impl SlowOperations {
    /// Those of this process.
    pub(crate) fn now() -> SlowOperations {
        SlowOperations {
            pid: std::process::id(),
            threshold_ms: recorder::threshold().map_or(0.0, ms),
            operations: recorder::slow().into_iter().map(SlowOperation::from).collect(),
            more: 0,
        }
    }

    /// The same with a list of limited length.
    pub(crate) fn bounded(mut self) -> SlowOperations {
        self.more = self.operations.len().saturating_sub(MAX_OPERATIONS);
        self.operations.truncate(MAX_OPERATIONS);
        self
    }
}

/// Runs the command.
pub(super) fn run(args: &args::Status, state: &Path, every: Duration) -> Result<ExitCode, Failure> {
    let mut out = crate::out::Stdout;
    loop {
        let servers = super::chosen(state, args.pid)?;
        let mut list = Vec::new();
        for server in &servers {
            let slow: SlowOperations = serde_json::from_value(server.ask(&Request::Slow)?)?;
            list.push(slow);
        }
        if args.json {
            serde_json::to_writer(&mut out, &serde_json::json!({ "servers": list }))?;
            writeln!(out)?;
        } else {
            for (i, slow) in list.iter().enumerate() {
                if i > 0 {
                    writeln!(out)?;
                }
                print(&mut out, slow)?;
            }
        }
        out.flush()?;
        if !args.watch {
            return Ok(ExitCode::SUCCESS);
        }
        std::thread::sleep(every);
    }
}

/// Prints those of one server.
fn print(out: &mut impl Write, slow: &SlowOperations) -> io::Result<()> {
    let under_way = slow.operations.iter().filter(|operation| operation.at.is_some()).count();
    let threshold = duration(slow.threshold_ms);
    writeln!(
        out,
        "process {}: operations of {threshold} and more: {under_way} still running, {} ended",
        slow.pid,
        slow.operations.len() - under_way
    )?;
    for operation in &slow.operations {
        self::operation(out, operation)?;
    }
    Ok(())
}

fn operation(out: &mut impl Write, operation: &SlowOperation) -> io::Result<()> {
    let SlowOperation { began, protocol, operation: name, .. } = operation;
    let state = match &operation.at {
        Some(hop) => format!("still running, {}", doing(hop)),
        None => "ended".to_owned(),
    };
    let name = if name.is_empty() { "not understood yet" } else { name };
    let share = operation.share.as_deref().unwrap_or("-");
    writeln!(out, "  {began}  {:>9}  {protocol} {name} on {share}, {state}", duration(operation.total_ms))?;
    let hops = operation.hops.named();
    let hops: Vec<String> = hops
        .into_iter()
        .filter(|(_, ms)| *ms >= 0.0005)
        .map(|(hop, ms)| format!("{hop} {}", duration(ms)))
        .collect();
    writeln!(out, "    {}", hops.join(", "))?;
    let about = [
        operation.client.as_deref().map(|client| format!("client {client}")),
        operation.user.as_deref().map(|user| format!("user {}", crate::out::name(user))),
        operation.file.as_deref().map(|file| format!("file {}", crate::out::name(file))),
        (operation.bytes > 0).then(|| human(operation.bytes)),
    ];
    let about: Vec<String> = about.into_iter().flatten().collect();
    if !about.is_empty() {
        writeln!(out, "    {}", about.join(", "))?;
    }
    Ok(())
}

fn doing(hop: &str) -> &str {
    match hop {
        "queue" => "in a queue",
        "decode" => "being decoded",
        "store" => "in the file system",
        "pool" => "waiting for a worker",
        "disk" => "waiting for the disk",
        "wire" => "waiting for the network or the client",
        "replica" => "waiting for a replication partner",
        "peer" => "waiting for another client",
        other => other,
    }
}

fn duration(ms: f64) -> String {
    match ms {
        ms if ms >= 10_000.0 => format!("{:.1} s", ms / 1000.0),
        ms if ms >= 10.0 => format!("{ms:.0} ms"),
        ms => format!("{ms:.3} ms"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_operation_is_printed_with_its_hops() {
        let read = SlowOperation {
            began: "2026-11-21T23:40:05Z".into(),
            protocol: "smb".into(),
            operation: "read".into(),
            share: Some("data".into()),
            client: Some("192.0.2.7:40000".into()),
            user: Some("alice".into()),
            file: Some("big\u{1b}.bin".into()),
            bytes: 8192,
            total_ms: 1234.5,
            hops: Hops { queue: 0.25, disk: 1234.25, ..Hops::default() },
            ..SlowOperation::default()
        };
        let hangs = SlowOperation { at: Some("disk".into()), total_ms: 61_000.0, ..read.clone() };
        let slow = SlowOperations { pid: 7, threshold_ms: 100.0, operations: vec![hangs, read], more: 0 };
        let mut out = Vec::new();
        print(&mut out, &slow).unwrap();
        let out = String::from_utf8(out).unwrap();
        assert!(
            out.starts_with("process 7: operations of 100 ms and more: 1 still running, 1 ended\n"),
            "{out}"
        );
        assert!(out.contains("61.0 s  smb read on data, still running, waiting for the disk\n"), "{out}");
        assert!(out.contains("    queue 0.250 ms, disk 1234 ms\n"), "{out}");
        assert!(out.contains("client 192.0.2.7:40000, user alice, file "), "{out}");
        assert!(!out.contains('\u{1b}'), "{out:?}");
        assert_eq!(out.lines().count(), 7, "{out}");
    }
}
