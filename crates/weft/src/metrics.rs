//! The metrics of a running server, for Prometheus.
//!
//! [`families`] is the one list of their names, units and meanings: the page and docs/metrics.md are made from it.
//! [`text`] writes the formats. Operations are counted by `weft_machine::meter`, the process is read from /proc, and
//! everything else is what `weft status` shows.
//!
//! Names of shares and volumes are labels. Names of users, addresses of clients and paths are not, because every user
//! of this host may read a page that a loopback address serves.

pub(crate) mod families;
pub(crate) mod latency;
mod process;
pub(crate) mod text;

use std::slice::from_ref;

use serde_json::Value;
use weft_machine::meter;
use weft_machine::rt::Counters;
use weft_transport::rpcrdma;

use self::families as f;
use self::text::{Format, Page};
use crate::status::{OfKind, Status};

/// What a page shows beside the counters of operations.
pub(crate) struct Facts<'a> {
    /// The status; `None` if the cores did not answer.
    pub status: Option<&'a Status>,
    /// The buffers.
    pub pool: &'a weft_machine::Pool,
    /// Each core's loop.
    pub cores: Vec<Counters>,
}

/// The page.
pub(crate) fn page(facts: &Facts<'_>, format: Format) -> String {
    let mut page = Page::new(format);
    operations(&mut page);
    if let Some(status) = facts.status {
        of_status(&mut page, status);
        connections(&mut page, status);
        replication(&mut page, status);
    }
    server(&mut page, facts);
    process::put(&mut page);
    page.finish()
}

/// Clients and administrators choose between RDMA and messages by this label.
fn payload(by_rdma: bool) -> &'static str {
    if by_rdma { "rdma" } else { "inline" }
}

fn operations(page: &mut Page) {
    let samples = meter::samples();
    let labels = |sample: &meter::Sample| {
        let class = sample.class;
        [class.protocol, class.transport, payload(sample.by_rdma), &sample.share, sample.operation]
            .map(str::to_owned)
    };
    let mut family = page.family(&f::OPERATION_DURATION);
    for sample in &samples {
        family.histogram(&labels(sample), &sample.buckets, sample.seconds, meter::bound);
    }
    let mut family = page.family(&f::OPERATION_RECEIVED);
    for sample in samples.iter().filter(|sample| sample.received_bytes > 0) {
        family.sample(&labels(sample), sample.received_bytes as f64);
    }
    let mut family = page.family(&f::OPERATION_SENT);
    for sample in samples.iter().filter(|sample| sample.sent_bytes > 0) {
        family.sample(&labels(sample), sample.sent_bytes as f64);
    }
}

fn of_status(page: &mut Page, status: &Status) {
    page.family(&f::BUILD).sample(&[status.version.clone(), status.driver.clone()], 1.0);
    page.family(&f::UPTIME).sample(&[], status.up_seconds as f64);
    page.family(&f::SESSIONS).sample(&["smb".into()], status.sessions as f64);
    let mut opens = page.family(&f::OPENS);
    for share in &status.shares {
        opens.sample(from_ref(&share.name), share.opens as f64);
    }
    let mut troubled = page.family(&f::SHARE_TROUBLED);
    for share in &status.shares {
        troubled.sample(from_ref(&share.name), flag(share.warning.is_some() || share.not_served.is_some()));
    }
    let spaces = || status.shares.iter().filter_map(|share| Some((&share.name, share.space?)));
    let mut sizes = page.family(&f::SHARE_SIZE);
    for (name, space) in spaces() {
        sizes.sample(from_ref(name), space.total_bytes as f64);
    }
    let mut available = page.family(&f::SHARE_AVAILABLE);
    for (name, space) in spaces() {
        available.sample(from_ref(name), space.available_bytes as f64);
    }
    let quotas = || status.shares.iter().filter_map(|share| Some((&share.name, share.quota?)));
    let mut limits = page.family(&f::SHARE_QUOTA);
    for (name, quota) in quotas() {
        limits.sample(from_ref(name), quota.limit_bytes as f64);
    }
    let mut used = page.family(&f::SHARE_QUOTA_USED);
    for (name, quota) in quotas() {
        used.sample(from_ref(name), quota.used_bytes as f64);
    }
    let mut connections = page.family(&f::SHARE_CONNECTIONS);
    for share in &status.shares {
        connections.sample(from_ref(&share.name), share.connections as f64);
    }
    let mut sizes = page.family(&f::VOLUME_SIZE);
    let served = || status.volumes.iter().filter(|volume| volume.not_served.is_none());
    for volume in served() {
        sizes.sample(from_ref(&volume.name), volume.size as f64);
    }
    let mut clients = page.family(&f::VOLUME_CLIENTS);
    for volume in served() {
        clients.sample(from_ref(&volume.name), volume.clients as f64);
    }
    let mut troubled = page.family(&f::VOLUME_TROUBLED);
    for volume in &status.volumes {
        troubled
            .sample(from_ref(&volume.name), flag(volume.warning.is_some() || volume.not_served.is_some()));
    }
    page.family(&f::STATE_TROUBLED).sample(&[], flag(status.state_warning.is_some()));
}

fn flag(is: bool) -> f64 {
    f64::from(u8::from(is))
}

type Field = fn(&OfKind) -> u64;

fn connections(page: &mut Page, status: &Status) {
    let kinds = status.of_kinds();
    let labels = |kind: &OfKind| {
        [kind.protocol.clone(), kind.transport.clone(), kind.provider.clone().unwrap_or_default()]
    };
    let plain: [(&'static f::Family, Field); 3] = [
        (&f::CONNECTIONS, |of| of.open),
        (&f::CONNECTIONS_CLOSED, |of| of.ended),
        (&f::CONNECTIONS_WITHOUT_RDMA, |of| of.without_rdma),
    ];
    for (family, field) in plain {
        let mut family = page.family(family);
        for of in &kinds {
            family.sample(&labels(of), field(of) as f64);
        }
    }
    let moved: [(&'static f::Family, &[(&str, Field)]); 4] = [
        (
            &f::MESSAGE_BYTES,
            &[("received", |of| of.traffic.received_bytes), ("sent", |of| of.traffic.sent_bytes)],
        ),
        (&f::MESSAGES, &[("received", |of| of.traffic.received), ("sent", |of| of.traffic.sent)]),
        (
            &f::RDMA_BYTES,
            &[
                ("read", |of| of.traffic.rdma_read_bytes),
                ("write", |of| of.traffic.rdma_written_bytes),
                ("by_client", |of| of.traffic.rdma_by_client_bytes),
            ],
        ),
        (
            &f::RDMA_OPERATIONS,
            &[("read", |of| of.traffic.rdma_reads), ("write", |of| of.traffic.rdma_writes)],
        ),
    ];
    for (metric, fields) in moved {
        let mut family = page.family(metric);
        for of in &kinds {
            let by_rdma = matches!(of.transport.as_str(), "smb-direct" | "rpc-rdma");
            let is_rdma = std::ptr::eq(metric, &f::RDMA_BYTES) || std::ptr::eq(metric, &f::RDMA_OPERATIONS);
            if is_rdma && !by_rdma {
                continue;
            }
            for (name, field) in fields {
                let [protocol, transport, provider] = labels(of);
                family.sample(&[protocol, transport, provider, (*name).to_owned()], field(of) as f64);
            }
        }
    }
}

/// A number of an engine's report.
fn number(report: &Value, key: &str) -> Option<f64> {
    report.get(key)?.as_f64()
}

fn replication(page: &mut Page, status: &Status) {
    let groups = &status.replicas;
    let mut stopped = page.family(&f::REPLICA_STOPPED);
    for group in groups {
        let role = group.role.clone();
        stopped.sample(&[group.name.clone(), role], flag(group.stopped.is_some()));
    }
    let of_group: [(&'static f::Family, &str, f64); 4] = [
        (&f::REPLICA_LOG_SIZE, "log_bytes", 1.0),
        (&f::REPLICA_LOG_USED, "log_used", 1.0),
        (&f::REPLICA_LOG_WAIT, "log_wait_ms", 1e-3),
        (&f::REPLICA_UNPROTECTED, "unprotected_writes", 1.0),
    ];
    for (family, key, unit) in of_group {
        let mut family = page.family(family);
        for group in groups {
            if let Some(value) = number(&group.engine, key) {
                family.sample(from_ref(&group.name), value * unit);
            }
        }
    }
    let of_peer: [(&'static f::Family, &str); 4] = [
        (&f::REPLICA_LAG_RECORDS, "lag_records"),
        (&f::REPLICA_LAG_BYTES, "lag_bytes"),
        (&f::REPLICA_LAG_SECONDS, "lag_seconds"),
        (&f::REPLICA_RESYNC_REMAINING, "bytes_remaining"),
    ];
    for (family, key) in of_peer {
        let mut family = page.family(family);
        for group in groups {
            for peer in group.engine["peers"].as_array().into_iter().flatten() {
                let name = peer["name"].as_str().unwrap_or_default().to_owned();
                if let Some(value) = number(peer, key) {
                    family.sample(&[group.name.clone(), name], value);
                }
            }
        }
    }
    let mut connected = page.family(&f::REPLICA_CONNECTED);
    for group in groups {
        for link in &group.links {
            connected.sample(&[group.name.clone(), link.name.clone()], flag(!link.transport.is_empty()));
        }
    }
}

fn server(page: &mut Page, facts: &Facts<'_>) {
    page.family(&f::STATUS_AVAILABLE).sample(&[], flag(facts.status.is_some()));
    page.family(&f::LOCKS).sample(&[], weft_store::opens::locks_held() as f64);
    let pool = facts.pool;
    page.family(&f::POOL_LIMIT).sample(&[], pool.limit_bytes() as f64);
    page.family(&f::POOL_USED).sample(&[], pool.in_use_bytes() as f64);
    page.family(&f::POOL_RESIDENT).sample(&[], pool.resident_bytes() as f64);
    page.family(&f::POOL_WAITING).sample(&[], pool.waiting() as f64);
    let closed = crate::listen::memory::TOLD.total();
    page.family(&f::POOL_CLOSED).sample(&[], closed as f64);
    let stalls = weft_transport::smbd::engine::CREDIT_STALLS.total();
    page.family(&f::CREDIT_STALLS).sample(&[], stalls as f64);
    page.family(&f::RPC_CREDITS).sample(&[], rpcrdma::CREDITS_GRANTED.now() as f64);
    page.family(&f::RPC_CREDITS_EXHAUSTED).sample(&[], rpcrdma::CREDITS_EXHAUSTED.total() as f64);
    let left_out = weft_machine::log::LEFT_OUT.total() + crate::logging::LEFT_OUT.total();
    page.family(&f::LOG_LINES_LEFT_OUT).sample(&[], left_out as f64);
    page.family(&f::AUDIT_EVENTS_LOST).sample(&[], weft_store::audit::LOST.total() as f64);
    page.family(&f::SHARES_OVER_LIMIT).sample(&[], meter::refused_shares() as f64);
    let mut sleeps = page.family(&f::CORE_SLEEPS);
    for (core, counters) in facts.cores.iter().enumerate() {
        sleeps.sample(&[core.to_string()], counters.sleeps as f64);
    }
    let mut spins = page.family(&f::CORE_SPINS);
    for (core, counters) in facts.cores.iter().enumerate() {
        for (outcome, n) in [("found", counters.spins_won), ("slept", counters.spins_lost)] {
            spins.sample(&[core.to_string(), outcome.to_owned()], n as f64);
        }
    }
}

#[cfg(test)]
mod tests;
