//! Prints a status for people.

use std::collections::BTreeMap;
use std::io::{self, Write};

use super::{Connection, Quota, Session, Status};
use crate::replica::print as replica;
use crate::size::human;
use crate::version;

/// Prints one server.
pub(super) fn status(out: &mut impl Write, status: &Status) -> io::Result<()> {
    let Status { pid, listen, driver, .. } = status;
    let version = version::text(&status.version, &status.build);
    writeln!(out, "weft {version}, process {pid}, on {listen} ({driver}), up {}", age(status.up_seconds))?;
    let ports: Vec<String> = status.ports.iter().map(|(name, port)| format!("{name} {port}")).collect();
    writeln!(out, "  ports     {}", ports.join(", "))?;
    if !status.providers.is_empty() {
        writeln!(out, "  RDMA by   {}", status.providers.join(", "))?;
    }
    if let Some(file) = &status.config {
        writeln!(out, "  config    {}", crate::out::name(file))?;
    }
    if let Some(why) = &status.state_warning {
        writeln!(out, "  state     ! {why}")?;
    }
    for why in &status.warnings {
        writeln!(out, "  server    ! {why}")?;
    }
    for share in &status.shares {
        if let Some(why) = &share.not_served {
            writeln!(out, "  share     ! {} is not served: {why}", share.name)?;
            continue;
        }
        let encrypted = if share.encrypted { ", encrypted" } else { "" };
        let (name, kind, source) = (&share.name, &share.kind, &share.source);
        writeln!(out, "  share     {name} ({kind}, {source}{encrypted}), {} open", share.opens)?;
        if let Some(why) = &share.warning {
            writeln!(out, "  share     ! {name}: {why}")?;
        }
        if let Some(quota) = &share.quota {
            writeln!(out, "  quota     {}", self::quota(name, quota))?;
        }
    }
    for volume in &status.volumes {
        if let Some(why) = &volume.not_served {
            writeln!(out, "  volume    ! {} is not served: {why}", volume.name)?;
            continue;
        }
        let size = human(volume.size);
        writeln!(
            out,
            "  volume    {} ({size}, {}), {}",
            volume.name,
            volume.source,
            counted(volume.clients, "client")
        )?;
        if let Some(why) = &volume.warning {
            writeln!(out, "  volume    ! {}: {why}", volume.name)?;
        }
    }
    for brief in status.replicas.iter().flat_map(replica::brief) {
        let care = if brief.care { "! " } else { "" };
        writeln!(out, "  replica   {care}{}", brief.line)?;
        if let Some((reason, remedy)) = brief.no_rdma {
            writeln!(out, "    not by RDMA: {reason}\n    try: {remedy}")?;
        }
    }
    let connections = counted(status.connections.len(), "connection");
    writeln!(
        out,
        "  {connections}, {}, {}",
        counted(status.sessions, "SMB session"),
        counted(status.opens, "open file")
    )?;
    for connection in &status.connections {
        self::connection(out, connection)?;
    }
    let mut advice: BTreeMap<(&str, &str), usize> = BTreeMap::new();
    for said in status.connections.iter().filter_map(|connection| connection.advice.as_ref()) {
        *advice.entry((&said.reason, &said.remedy)).or_default() += 1;
    }
    for ((reason, remedy), n) in advice {
        writeln!(out, "  {} on TCP although RDMA is served: {reason}", counted(n, "client"))?;
        writeln!(out, "    try: {remedy}")?;
    }
    Ok(())
}

fn connection(out: &mut impl Write, connection: &Connection) -> io::Result<()> {
    let protocol = match &connection.dialect {
        Some(dialect) => format!("{} {dialect}", connection.protocol.to_uppercase()),
        None => connection.protocol.to_uppercase(),
    };
    let way = match &connection.provider {
        Some(provider) => format!("RDMA ({provider})"),
        None => connection.transport.clone(),
    };
    let since = age(connection.age_seconds);
    let users = match &connection.nfs {
        Some(nfs) if !nfs.uids.is_empty() => format!(", {}", connection.users()),
        _ => String::new(),
    };
    writeln!(out, "  {protocol:<10} {way:<13} {}, for {since}{users}", connection.peer)?;
    for session in &connection.sessions {
        writeln!(out, "    {}", self::session(session))?;
    }
    let traffic = &connection.traffic;
    if let Some(nbd) = &connection.nbd {
        let tls = if nbd.tls { ", TLS" } else { "" };
        let volume = nbd.volume.as_deref().unwrap_or("no volume yet");
        let (read, written) = (human(nbd.read_bytes), human(nbd.written_bytes));
        return writeln!(
            out,
            "    {volume}{tls}: {read} in {}, {written} in {}",
            counted(nbd.reads as usize, "read"),
            counted(nbd.writes as usize, "write")
        );
    }
    if connection.provider.is_some() {
        let (written, read) = (human(traffic.rdma_written_bytes), human(traffic.rdma_read_bytes));
        let inline = human(traffic.inline_bytes());
        let share = match traffic.rdma_bytes() + traffic.inline_bytes() {
            0 => String::new(),
            all => format!(" ({:.0}% by RDMA)", 100.0 * traffic.rdma_bytes() as f64 / all as f64),
        };
        return writeln!(out, "    RDMA Write {written}, RDMA Read {read}, in messages {inline}{share}");
    }
    writeln!(
        out,
        "    no RDMA; in messages {} to it, {} from it",
        human(traffic.sent_bytes),
        human(traffic.received_bytes)
    )
}

/// "team: 150 GiB of 200 GiB, counted in 1234 files".
fn quota(name: &str, quota: &Quota) -> String {
    let (used, limit) = (human(quota.used_bytes), human(quota.limit_bytes));
    let by = match (quota.project, quota.is_unknown, quota.is_counting) {
        (Some(id), ..) => format!("kept by the kernel as project {id}"),
        (None, true, _) => "but it cannot be counted: nothing may grow; the log says why".to_owned(),
        (None, false, true) => format!("being counted, {} so far", counted(quota.files as usize, "file")),
        (None, false, false) => format!("counted in {}", counted(quota.files as usize, "file")),
    };
    let care = if quota.is_unknown || quota.used_bytes >= quota.limit_bytes { "! " } else { "" };
    format!("{care}{name}: {used} of {limit}, {by}")
}

fn session(session: &Session) -> String {
    let protection = match &session.encryption {
        Some(cipher) => format!("encrypted ({cipher})"),
        None if session.signing_required => format!("signed ({})", session.signing),
        None => format!("neither encrypted nor required to sign ({})", session.signing),
    };
    let shares = match session.shares.is_empty() {
        true => "no share".to_owned(),
        false => session.shares.join(", "),
    };
    let encrypted = match session.encrypted_shares.is_empty() || session.encryption.is_some() {
        true => String::new(),
        false => format!("; encrypted share {}", session.encrypted_shares.join(", ")),
    };
    let (user, opens, channels) =
        (&session.user, counted(session.opens, "open file"), counted(session.channels, "channel"));
    format!("{user} in {shares}: {protection}{encrypted}, {channels}, {opens}")
}

/// "1 client", "3 clients".
pub(super) fn counted(n: usize, what: &str) -> String {
    let s = if n == 1 { "" } else { "s" };
    format!("{n} {what}{s}")
}

/// "5 s", "3 min", "2 h 10 min", "4 d 3 h".
pub(super) fn age(seconds: u64) -> String {
    match seconds {
        0..60 => format!("{seconds} s"),
        60..3600 => format!("{} min", seconds / 60),
        3600..86_400 => format!("{} h {} min", seconds / 3600, seconds % 3600 / 60),
        _ => format!("{} d {} h", seconds / 86_400, seconds % 86_400 / 3600),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::{Advice, Group, Nfs, Traffic};
    use super::*;
    use crate::admin::replica::Link;

    fn group() -> Group {
        let link = Link {
            name: "other:vol1".into(),
            address: "other:4450".into(),
            transport: "tcp".into(),
            reason: "TCP, as requested".into(),
            ..Link::default()
        };
        Group {
            name: "vol1".into(),
            volumes: vec!["vol1".into()],
            role: "source".into(),
            engine: json!({ "peers": [{
                "name": "other:vol1", "mode": "synchronous", "phase": "ContinuouslyReplicating", "lag_bytes": 0,
                "lag_seconds": 0.0,
            }] }),
            links: vec![link],
            ..Group::default()
        }
    }

    #[test]
    fn a_status_answers_whether_rdma_is_used() {
        let session = Session {
            user: "alice".into(),
            signing: "AES-128-GMAC".into(),
            signing_required: true,
            channels: 2,
            shares: vec!["data".into()],
            opens: 1,
            ..Session::default()
        };
        let direct = Connection {
            protocol: "smb".into(),
            peer: "10.0.0.2:40000".into(),
            transport: "smb-direct".into(),
            provider: Some("iwarp".into()),
            dialect: Some("3.1.1".into()),
            sessions: vec![session],
            traffic: Traffic {
                rdma_written_bytes: 3 << 30,
                sent_bytes: 1 << 29,
                received_bytes: 1 << 29,
                ..Traffic::default()
            },
            ..Connection::default()
        };
        let advice = Some(Advice { reason: "because".into(), remedy: "weft doctor".into() });
        let plain = Connection {
            provider: None,
            transport: "tcp".into(),
            sessions: vec![],
            advice,
            ..direct.clone()
        };
        let nfs = Connection {
            protocol: "nfs".into(),
            dialect: Some("4.2".into()),
            peer: "10.0.0.3:700".into(),
            transport: "tcp".into(),
            nfs: Some(Nfs { uids: vec![0, 1000] }),
            ..Connection::default()
        };
        let stopped =
            Group { name: "db".into(), role: "stopped".into(), stopped: Some("disk".into()), ..group() };
        let all = Status {
            pid: 7,
            connections: vec![direct, plain.clone(), plain, nfs],
            replicas: vec![group(), stopped],
            ..Status::default()
        };
        let mut out = Vec::new();
        status(&mut out, &all).unwrap();
        let text = String::from_utf8(out).unwrap();
        assert!(text.contains("NFS 4.2    tcp           10.0.0.3:700, for 0 s, uid 0, 1000"), "{text}");
        assert!(
            text.contains(
                "  replica   vol1, source: synchronous to other:vol1, Continuously replicating, lag 0 B, 0.0 s, by tcp\n    not by \
                 RDMA: TCP, as requested\n    try: weft replica remove"
            ),
            "{text}"
        );
        assert!(text.contains("  replica   ! db, stopped: disk\n"), "{text}");
        assert!(text.contains("RDMA Write 3 GiB, RDMA Read 0 B, in messages 1 GiB (75% by RDMA)"), "{text}");
        assert!(text.contains("alice in data: signed (AES-128-GMAC), 2 channels, 1 open file"), "{text}");
        assert!(
            text.contains("2 clients on TCP although RDMA is served: because\n    try: weft doctor"),
            "{text}"
        );
    }

    #[test]
    fn ages_read_as_people_say_them() {
        assert_eq!([59, 61, 7800, 356_400].map(age), ["59 s", "1 min", "2 h 10 min", "4 d 3 h"]);
    }

    #[test]
    fn a_quota_is_told_with_its_use_and_who_keeps_it() {
        let counted = Quota { limit_bytes: 200 << 30, used_bytes: 150 << 30, files: 1, ..Quota::default() };
        let over = Quota { used_bytes: 201 << 30, files: 2, ..counted };
        for (told, line) in [
            (counted, "team: 150 GiB of 200 GiB, counted in 1 file"),
            (over, "! team: 201 GiB of 200 GiB, counted in 2 files"),
            (
                Quota { is_counting: true, files: 7, ..counted },
                "team: 150 GiB of 200 GiB, being counted, 7 files so far",
            ),
            (
                Quota { project: Some(9), ..counted },
                "team: 150 GiB of 200 GiB, kept by the kernel as project 9",
            ),
            (
                Quota { is_unknown: true, ..counted },
                "! team: 150 GiB of 200 GiB, but it cannot be counted: nothing may grow; the log says why",
            ),
        ] {
            assert_eq!(quota("team", &told), line);
        }
    }
}
