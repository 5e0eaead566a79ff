//! The status of replication, for people and programs.
//!
//! The phases have the names of Storage Replica's documentation, where that has one. The command line formats the text.

use serde::Serialize;

/// The role of a side.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    /// Users write to it.
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

/// What happens between a source and one destination; on a destination, as far as it knows.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
pub enum Phase {
    /// Everything is copied, for the first time.
    InitialBlockCopy,
    /// Everything is compared by checksums, and differing ranges are copied.
    SeededCopy,
    /// After an outage, records from the log are sent.
    ReplayingLog,
    /// After a longer outage, the ranges in the bitmap are copied.
    Resyncing,
    /// The destination follows: synchronously, or as closely as possible.
    ContinuouslyReplicating,
    /// An administrator has suspended it.
    Suspended,
    /// The destination cannot be reached, or was not reached yet.
    WaitingForDestination,
    /// On a destination: no source has connected since it started, or its source was silent for too long.
    WaitingForSource,
    /// Another source has taken over, and no write that was answered here is missing there: this side can become a
    /// destination. Writes fail.
    Superseded,
    /// There are two sources, each with records that the other lacks. Writes fail until `weft replica resolve`.
    SplitBrain,
    /// This side was set back, by a backup or a snapshot: a destination has records that were written here and are lost
    /// here. Writes fail until `weft replica resolve`.
    SetBack,
    /// The destination refuses for a reason that only a person can remove; see `last_error`.
    Refused,
    /// The journal or a volume has failed; see `last_error`. Writes fail.
    Failed,
}

impl Phase {
    /// Whether it needs a connection, and so ends with that.
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
    /// Its role.
    pub role: Role,
    /// Hexadecimal.
    pub partnership: String,
    /// The epoch of the source that it is or follows.
    pub epoch: u64,
    /// Counts the changes of its state on disk.
    pub generation: u64,
    /// Last sequence that is durable in its log.
    pub last: u64,
    /// Everything through this sequence is in its volumes.
    pub applied: u64,
    /// Whether its volumes, with the log applied, hold a state that the source's once had. Always true on a source.
    pub consistent: bool,
    /// Whether it is a copy that was a source and gave up for another one, which has not overwritten anything yet: its
    /// volumes, though not called consistent, hold what they held then. Always false on a source.
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
    /// Whether a disk of this side is full: writes to it wait, and go on by themselves when there is space.
    pub full: bool,
    /// Writes that were answered since it was opened though a synchronous destination did not have them.
    pub unprotected_writes: u64,
    /// Reads of its volumes that have failed since it was opened; a copy may have the bytes. Zero on a destination,
    /// which nobody reads.
    pub read_errors: u64,
    /// The last failed read: where and why.
    pub last_read_error: Option<String>,
    /// Why the snapshot of a running test failover has ended, if it has. Always `None` on a source.
    pub picture_ended: Option<String>,
    /// Bytes of payload in flight, in memory.
    pub in_flight_bytes: u64,
    /// On a source, each destination; on a destination, its source.
    pub peers: Vec<PeerStatus>,
    /// Why it has stopped, if it has.
    pub last_error: Option<String>,
}

/// One partner.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct PeerStatus {
    /// Its name, as the caller gave it.
    pub name: String,
    /// When writes are answered. `None` on a destination that knows neither the agreed mode nor that of its source.
    pub mode: Option<Mode>,
    /// Its phase.
    pub phase: Phase,
    /// The start of the phase, milliseconds of Unix time.
    pub since_ms: u64,
    /// Last sequence that is durable there.
    pub acknowledged: u64,
    /// Last sequence in its volumes, as far as is known.
    pub applied: u64,
    /// Bytes of the current copy or resync that are done: copied, or found to be equal or empty.
    pub bytes_done: u64,
    /// Bytes of it that remain (`NumOfBytesRemaining`).
    pub bytes_remaining: u64,
    /// Bytes of it that travelled.
    pub bytes_sent: u64,
    /// Bytes a second of the copy, over the last seconds.
    pub rate: f64,
    /// Estimated seconds until the copy is done.
    pub eta_seconds: Option<f64>,
    /// Records that it lacks. On a destination: those that its source reported when it connected last.
    pub lag_records: u64,
    /// Bytes of records that it lacks. On a destination: of those that arrived and are not in its volumes.
    pub lag_bytes: u64,
    /// Age of the oldest of them, seconds.
    pub lag_seconds: f64,
    /// Whether the lag exceeds the configured limit.
    pub lag_alert: bool,
    /// Whether writes may have been answered without it, though it is synchronous, because it was unreachable.
    pub unprotected: bool,
    /// Records that were sent to it since the source was opened, and bytes of payload in them.
    pub records_sent: u64,
    /// See `records_sent`.
    pub record_bytes_sent: u64,
    /// When it was last heard from, milliseconds of Unix time; 0 for never.
    pub heard_ms: u64,
    /// When the connection of the previous phase was lost, milliseconds of Unix time; 0 if none was.
    pub lost_ms: u64,
    /// The last error.
    pub last_error: Option<String>,
    /// The result of the last verification.
    pub verified: Option<Verified>,
}

/// The result of a verification.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Verified {
    /// When it ended, milliseconds of Unix time.
    pub at_ms: u64,
    /// Bytes that were compared.
    pub bytes: u64,
    /// Bytes of pieces that differed. They are copied again if that was requested.
    pub different: u64,
    /// The first of these pieces, at most [`Verified::MOST_FIRST`].
    pub first: Vec<Differs>,
}

impl Verified {
    /// How many pieces are named: enough to inspect one on both sides, and to see whether they are adjacent.
    pub const MOST_FIRST: usize = 4;
}

/// A piece of a volume that differs between the sides.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
pub struct Differs {
    /// Number of the volume in its group.
    pub member: usize,
    /// Its offset, bytes.
    pub offset: u64,
    /// Its length, bytes.
    pub len: u64,
}
