//! How replication is doing, as people and programs are told.
//!
//! What: [`Status`] and its parts, serializable. Spec: the phases are those of Storage Replica's documentation where it has
//! a name for them. Does not: format text (the command line does).

use serde::Serialize;

/// Which part a side plays.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    /// It is written to.
    Source,
    /// It keeps a copy.
    Destination,
}

/// When a write is answered.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Mode {
    /// When it is durable on both sides.
    Synchronous,
    /// When it is durable in the source's log.
    Asynchronous,
}

/// What goes on between a source and one destination; on a destination, what it knows of that.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
pub enum Phase {
    /// Everything is copied, for the first time.
    InitialBlockCopy,
    /// Everything is compared by checksums, and copied where it differs.
    SeededCopy,
    /// What the log still holds is sent after an outage.
    ReplayingLog,
    /// What the bitmap names is copied after a longer outage.
    Resyncing,
    /// The destination follows: synchronously, or as closely as it can.
    ContinuouslyReplicating,
    /// Somebody said so.
    Suspended,
    /// The destination cannot be reached, or has not come yet.
    WaitingForDestination,
    /// On a destination: no source has come since it started, or it was not heard of for as long as it may be silent.
    WaitingForSource,
    /// Another source has taken over, and nothing that was answered here is missing there: this side can become a
    /// destination. Writes fail.
    Superseded,
    /// Two sources, each with something that the other lacks. Writes fail until `weft replica resolve`.
    SplitBrain,
    /// This side was set back, by a backup or a snapshot: a destination has what was written here and is here no more. Writes fail
    /// until `weft replica resolve`.
    SetBack,
    /// The destination refuses for a reason that only a person can remove; see `last_error`.
    Refused,
    /// The journal or a volume has failed; see `last_error`. Writes fail.
    Failed,
}

impl Phase {
    /// Whether it goes on over a connection, and so ends with that.
    pub fn is_connected(self) -> bool {
        matches!(
            self,
            Phase::InitialBlockCopy
                | Phase::SeededCopy
                | Phase::ReplayingLog
                | Phase::Resyncing
                | Phase::ContinuouslyReplicating
        )
    }
}

/// One side of a group.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Status {
    /// Its part.
    pub role: Role,
    /// Hexadecimal.
    pub partnership: String,
    /// Of the source that it is or follows.
    pub epoch: u64,
    /// Counts the changes of its state on disk.
    pub generation: u64,
    /// Last sequence that is durable in its log.
    pub last: u64,
    /// Last sequence that is in its volumes, with all before it.
    pub applied: u64,
    /// Whether its volumes, with the log applied, are a state that the source's once had. Always true on a source.
    pub consistent: bool,
    /// Whether it is a copy that was a source and gave up for another one, which has not overwritten anything yet: what it holds, though
    /// not called consistent, is what it had then. Always false on a source.
    pub gave_up: bool,
    /// Bytes of each volume.
    pub sizes: Vec<u64>,
    /// Bytes of its log, and of these in use.
    pub log_bytes: u64,
    /// See `log_bytes`.
    pub log_used: u64,
    /// Time that writes have waited for room in the log, in milliseconds, since it was opened.
    pub log_wait_ms: u64,
    /// Bytes written since it was opened.
    pub written_bytes: u64,
    /// Whether a disk of this side is full: what is to be written there waits, and goes on by itself when there is space.
    pub full: bool,
    /// Writes that were answered since it was opened though a synchronous destination did not have them.
    pub unprotected_writes: u64,
    /// Reads of its volumes that have failed since it was opened: bytes that this side cannot read, and a copy may have. Zero on
    /// a destination, which nobody reads.
    pub read_errors: u64,
    /// The last of them: where, and why.
    pub last_read_error: Option<String>,
    /// Why the picture of a test failover, which somebody still has, has ended. Always `None` on a source.
    pub picture_ended: Option<String>,
    /// Bytes of payload in memory, on their way.
    pub in_flight_bytes: u64,
    /// On a source, each destination; on a destination, its source.
    pub peers: Vec<PeerStatus>,
    /// What stopped it, where something did.
    pub last_error: Option<String>,
}

/// One partner.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct PeerStatus {
    /// As the caller calls it.
    pub name: String,
    /// When writes are answered. `None` on a destination that knows neither what was agreed nor what its source says.
    pub mode: Option<Mode>,
    /// What goes on.
    pub phase: Phase,
    /// Since when, milliseconds of Unix time.
    pub since_ms: u64,
    /// Last sequence that is durable there.
    pub acknowledged: u64,
    /// Last sequence that is in its volumes, as far as is known.
    pub applied: u64,
    /// Bytes of the copy or resync under way that are done, copied or found to be equal or empty.
    pub bytes_done: u64,
    /// And that remain (`NumOfBytesRemaining`).
    pub bytes_remaining: u64,
    /// Bytes of these that travelled.
    pub bytes_sent: u64,
    /// Bytes a second of the copy, over the last seconds.
    pub rate: f64,
    /// Seconds until the copy is done, where that can be told.
    pub eta_seconds: Option<f64>,
    /// Records that it does not have yet. On a destination: as far as its source has said, when it came last, that it had them.
    pub lag_records: u64,
    /// Bytes of records that it does not have yet. On a destination: of those that came and are not in its volumes.
    pub lag_bytes: u64,
    /// Age of the oldest of them, seconds.
    pub lag_seconds: f64,
    /// Whether the lag is past what was set as tolerable.
    pub lag_alert: bool,
    /// Whether writes were answered that it does not have, though it is synchronous: it was away.
    pub unprotected: bool,
    /// Records that were sent to it since the source was opened, and bytes of payload in them.
    pub records_sent: u64,
    /// See `records_sent`.
    pub record_bytes_sent: u64,
    /// When it was last heard of, milliseconds of Unix time; 0 for never.
    pub heard_ms: u64,
    /// When the connection was lost by which it was in the phase before, milliseconds of Unix time; 0 where that is not so.
    pub lost_ms: u64,
    /// The last thing that went wrong.
    pub last_error: Option<String>,
    /// Result of the last verification.
    pub verified: Option<Verified>,
}

/// What a verification found.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Verified {
    /// When it ended, milliseconds of Unix time.
    pub at_ms: u64,
    /// Bytes that were compared.
    pub bytes: u64,
    /// Bytes of pieces that differed. They are copied again where that was asked for.
    pub different: u64,
    /// The first of these pieces, no more than [`Verified::MOST_FIRST`].
    pub first: Vec<Differs>,
}

impl Verified {
    /// So many pieces are named: enough to look at both sides of one, and to see whether they lie together.
    pub const MOST_FIRST: usize = 4;
}

/// A piece of a volume that is not the same on both sides.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
pub struct Differs {
    /// Number of the volume in its group.
    pub member: usize,
    /// Where it begins, bytes.
    pub offset: u64,
    /// Bytes.
    pub len: u64,
}
