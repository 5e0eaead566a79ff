//! The metrics: name, type, unit, labels and meaning of each.
//!
//! Names follow Prometheus' conventions: a unit is the last part of a name, and `_total` follows the name of a counter.

use self::Type::{Counter, Gauge, Histogram, Info};

/// The type of a metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Type {
    /// Only grows while the process lives.
    Counter,
    /// Goes up and down.
    Gauge,
    /// Counts by duration.
    Histogram,
    /// Always 1; its labels are the information.
    Info,
}

/// A metric with all its label values.
#[derive(Debug)]
pub(crate) struct Family {
    /// Its name, without `_total` or `_info`.
    pub name: &'static str,
    /// Its type.
    pub kind: Type,
    /// Its unit; empty for numbers of things.
    pub unit: &'static str,
    /// The names of its labels.
    pub labels: &'static [&'static str],
    /// Its meaning.
    pub help: &'static str,
}

impl Family {
    /// The name of its samples; a histogram's have further suffixes.
    pub(crate) fn sample_name(&self) -> String {
        match self.kind {
            Counter => format!("{}_total", self.name),
            Info => format!("{}_info", self.name),
            Gauge | Histogram => self.name.to_owned(),
        }
    }
}

/// The families in the order of the page. The names of the statics are for the code that fills them in.
macro_rules! families {
    ($($id:ident: $name:literal, $kind:ident, $unit:literal, [$($label:literal),*], $help:literal;)*) => {
        $(pub(super) static $id: Family = Family {
            name: $name,
            kind: $kind,
            unit: $unit,
            labels: &[$($label),*],
            help: $help,
        };)*

        /// All of them, for what is made from the list.
        #[cfg(test)]
        pub(super) static ALL: &[&Family] = &[$(&$id),*];
    };
}

families! {
    OPERATION_DURATION: "weft_operation_duration_seconds", Histogram, "seconds",
        ["protocol", "transport", "payload", "share", "operation"],
        "Answered operations by duration, from the end of the work before them to the answer's way to the transport.";
    OPERATION_RECEIVED: "weft_operation_received_bytes", Counter, "bytes",
        ["protocol", "transport", "payload", "share", "operation"],
        "Payload of operations from clients.";
    OPERATION_SENT: "weft_operation_sent_bytes", Counter, "bytes",
        ["protocol", "transport", "payload", "share", "operation"],
        "Payload of operations to clients.";
    BUILD: "weft_build", Info, "", ["version", "driver"],
        "The version, and what drives the sockets.";
    UPTIME: "weft_uptime_seconds", Gauge, "seconds", [],
        "Time since the server became ready.";
    SESSIONS: "weft_sessions", Gauge, "", ["protocol"],
        "Sessions of users who have logged on.";
    OPENS: "weft_opens", Gauge, "", ["share"],
        "Open files and folders, over all protocols.";
    SHARE_TROUBLED: "weft_share_troubled", Gauge, "", ["share"],
        "1 if weft status warns of the share: its disk is full, read-only or failing, or its folder is gone.";
    SHARE_SIZE: "weft_share_size_bytes", Gauge, "bytes", ["share"],
        "Size of the share's file system, its quota, or that of its ramdisk.";
    SHARE_AVAILABLE: "weft_share_available_bytes", Gauge, "bytes", ["share"],
        "Bytes that clients of the share can still write.";
    SHARE_QUOTA: "weft_share_quota_bytes", Gauge, "bytes", ["share"],
        "Quota of the share: what its folder may occupy.";
    SHARE_QUOTA_USED: "weft_share_quota_used_bytes", Gauge, "bytes", ["share"],
        "What the folder of a share with a quota occupies.";
    SHARE_CONNECTIONS: "weft_share_connections", Gauge, "", ["share"],
        "SMB connections with a session that uses the share.";
    VOLUME_SIZE: "weft_volume_size_bytes", Gauge, "bytes", ["volume"],
        "Size of a volume.";
    VOLUME_CLIENTS: "weft_volume_clients", Gauge, "", ["volume"],
        "NBD clients that have the volume open.";
    VOLUME_TROUBLED: "weft_volume_troubled", Gauge, "", ["volume"],
        "1 if weft status warns of the volume, or it is not served.";
    STATE_TROUBLED: "weft_state_directory_troubled", Gauge, "", [],
        "1 if the state directory is full, read-only or not writable.";
    CONNECTIONS: "weft_connections", Gauge, "", ["protocol", "transport", "provider"],
        "Open connections.";
    CONNECTIONS_CLOSED: "weft_connections_closed", Counter, "", ["protocol", "transport", "provider"],
        "Connections that have ended.";
    CONNECTIONS_WITHOUT_RDMA: "weft_connections_without_rdma", Gauge, "", ["protocol", "transport", "provider"],
        "Open connections that do not use RDMA although the server offers it; weft status says why.";
    MESSAGE_BYTES: "weft_message_bytes", Counter, "bytes", ["protocol", "transport", "provider", "direction"],
        "Bytes in messages: frames on TCP, or RDMA Sends.";
    MESSAGES: "weft_messages", Counter, "", ["protocol", "transport", "provider", "direction"],
        "Messages. For NBD, READs are sent and WRITEs are received.";
    RDMA_BYTES: "weft_rdma_bytes", Counter, "bytes", ["protocol", "transport", "provider", "operation"],
        "Bytes moved by the server's RDMA Reads and Writes, and by those of clients.";
    RDMA_OPERATIONS: "weft_rdma_operations", Counter, "", ["protocol", "transport", "provider", "operation"],
        "RDMA Reads and Writes of the server.";
    REPLICA_STOPPED: "weft_replica_stopped", Gauge, "", ["group", "role"],
        "1 if replication of the group has stopped; weft replica status says why.";
    REPLICA_LOG_SIZE: "weft_replica_log_size_bytes", Gauge, "bytes", ["group"],
        "Size of the replication log of this side.";
    REPLICA_LOG_USED: "weft_replica_log_used_bytes", Gauge, "bytes", ["group"],
        "Bytes of that log in use.";
    REPLICA_LOG_WAIT: "weft_replica_log_wait_seconds", Counter, "seconds", ["group"],
        "Time that writes have waited for room in the log.";
    REPLICA_UNPROTECTED: "weft_replica_unprotected_writes", Counter, "", ["group"],
        "Writes that were answered though a synchronous destination did not have them.";
    REPLICA_LAG_RECORDS: "weft_replica_lag_records", Gauge, "", ["group", "peer"],
        "Records that the peer lacks.";
    REPLICA_LAG_BYTES: "weft_replica_lag_bytes", Gauge, "bytes", ["group", "peer"],
        "Bytes of records that the peer lacks.";
    REPLICA_LAG_SECONDS: "weft_replica_lag_seconds", Gauge, "seconds", ["group", "peer"],
        "Age of the oldest record that the peer lacks.";
    REPLICA_RESYNC_REMAINING: "weft_replica_resync_remaining_bytes", Gauge, "bytes", ["group", "peer"],
        "Bytes of the running copy or resync that remain.";
    REPLICA_CONNECTED: "weft_replica_connected", Gauge, "", ["group", "peer"],
        "1 while there is a connection to the peer.";
    STATUS_AVAILABLE: "weft_status_available", Gauge, "", [],
        "1 if every core has reported; otherwise connections, shares, volumes and replication are missing on this page.";
    LOCKS: "weft_locks", Gauge, "", [],
        "Byte-range locks, over all protocols.";
    POOL_LIMIT: "weft_pool_limit_bytes", Gauge, "bytes", [],
        "Memory limit of payload buffers (--buffers).";
    POOL_USED: "weft_pool_used_bytes", Gauge, "bytes", [],
        "Payload buffers in use.";
    POOL_RESIDENT: "weft_pool_resident_bytes", Gauge, "bytes", [],
        "Memory of the system that payload buffers occupy, in use or kept.";
    POOL_WAITING: "weft_pool_waiting", Gauge, "", [],
        "Requests that wait for a payload buffer.";
    POOL_CLOSED: "weft_pool_connections_closed", Counter, "", [],
        "Connections that were closed because others waited for the payload buffers that they held.";
    CREDIT_STALLS: "weft_smb_direct_credit_stalls", Counter, "", [],
        "How often a message had to wait for a send credit of an SMB Direct client.";
    RPC_CREDITS: "weft_rpc_rdma_credits_granted", Gauge, "", [],
        "Credits of open RPC-over-RDMA connections: calls that their clients may have outstanding.";
    RPC_CREDITS_EXHAUSTED: "weft_rpc_rdma_credits_exhausted", Counter, "", [],
        "How often a client of RPC-over-RDMA had used its last credit, so that its next call had to wait for a reply.";
    LOG_LINES_LEFT_OUT: "weft_log_lines_left_out", Counter, "", [],
        "Lines that the limits of the log have left out.";
    AUDIT_EVENTS_LOST: "weft_audit_events_lost", Counter, "", [],
        "Events that are missing in the audit log because its file could not be written, or its queue was full.";
    SHARES_OVER_LIMIT: "weft_metrics_shares_over_limit", Gauge, "", [],
        "Shares and volumes whose operations are counted together, as share=\"*\", because there are too many.";
    CORE_SLEEPS: "weft_core_sleeps", Counter, "", ["core"],
        "Sleeps of a serving thread in the kernel.";
    CORE_SPINS: "weft_core_spins", Counter, "", ["core", "outcome"],
        "Phases of busy polling of a serving thread that found something to do, or ended in a sleep.";
    PROCESS_CPU: "process_cpu_seconds", Counter, "seconds", [],
        "Processor time of the process, in user space and in the kernel.";
    PROCESS_RESIDENT: "process_resident_memory_bytes", Gauge, "bytes", [],
        "Resident memory of the process.";
    PROCESS_VIRTUAL: "process_virtual_memory_bytes", Gauge, "bytes", [],
        "Address space of the process.";
    PROCESS_START: "process_start_time_seconds", Gauge, "seconds", [],
        "Start of the process, in seconds of Unix time.";
    PROCESS_FDS: "process_open_fds", Gauge, "", [],
        "Open file descriptors.";
    PROCESS_MAX_FDS: "process_max_fds", Gauge, "", [],
        "Limit of open file descriptors.";
    PROCESS_THREADS: "process_threads", Gauge, "", [],
        "Threads of the process.";
}

/// The table for docs/metrics.md.
#[cfg(test)]
pub(super) fn markdown() -> String {
    use std::fmt::Write;
    let mut text = String::from("| metric | type | labels | meaning |\n|---|---|---|---|\n");
    for family in ALL {
        let labels: Vec<String> = family.labels.iter().map(|label| format!("`{label}`")).collect();
        let kind = match family.kind {
            Counter => "counter",
            Gauge => "gauge",
            Histogram => "histogram",
            Info => "info",
        };
        // Writing to a string does not fail.
        let _ = writeln!(
            text,
            "| `{}` | {kind} | {} | {} |",
            family.sample_name(),
            labels.join(", "),
            family.help
        );
    }
    text
}
