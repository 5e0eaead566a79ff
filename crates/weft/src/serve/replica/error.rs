//! Why the replication of a server refuses something or fails: the object, the cause, and what to type.
//!
//! An error stays a value up to the admin socket and the door `setup`, which send its text. The engine reports its
//! own state as a sentence ([`Error::Engine`]). Each function returns the narrowest type that covers its failures, and
//! the types that cross threads are `Send`.

use std::io;
use std::path::{Path, PathBuf};

use weft_machine::random::Unavailable;
use weft_smb::client::Error as SmbError;
use weft_store::volume::Error as VolumeError;
use weft_wire::repl::record::MAX_MEMBERS;

use super::names::{GroupName, NoName};
use crate::Failure;
use crate::args::replica::Objection;
use crate::connect::reach::authority;
use crate::out::{Said, ShellCommand};
use crate::size::human;

/// Why a command, or a message of another server, was not carried out.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    /// Another command is running.
    #[error(transparent)]
    Busy(#[from] Busy),
    /// A member cannot be changed.
    #[error(transparent)]
    Volume(#[from] VolumeFault),
    /// Values that no group can have.
    #[error(transparent)]
    Misfit(#[from] Misfit),
    /// Too little space is free.
    #[error(transparent)]
    NoRoom(#[from] NoRoom),
    /// Another server did not answer.
    #[error(transparent)]
    Unasked(#[from] Unasked),
    /// The group's file cannot be written.
    #[error(transparent)]
    Unrecorded(#[from] Unrecorded),
    /// This server's own address is unknown.
    #[error(transparent)]
    NoRoute(#[from] NoRoute),
    /// A group's files cannot be created.
    #[error(transparent)]
    Uncreated(#[from] Uncreated),
    /// A group's files cannot be removed.
    #[error(transparent)]
    Unremoved(#[from] Unremoved),
    /// A test failover cannot begin.
    #[error(transparent)]
    NoSnapshot(#[from] NoSnapshot),
    /// Text that cannot name a group.
    #[error(transparent)]
    NoName(#[from] NoName),
    /// The system provides no random numbers.
    #[error(transparent)]
    NoRandomness(#[from] Unavailable),
    /// The engine failed.
    #[error(transparent)]
    Replica(#[from] weft_replica::Error),
    /// A sentence of `weft_replica::group` about the group's state.
    #[error("{0}")]
    Engine(String),

    /// There are no groups.
    #[error("{0:?} is not replicated; to replicate it: `weft replica create`")]
    NoGroups(String),
    /// No group and no member has this name.
    #[error("{name:?} is not replicated; the groups are {}", .groups.join(", "))]
    NoGroup { name: String, groups: Vec<String> },
    /// A volume on the command line that cannot be opened.
    #[error("volume {volume} is not served: {why}")]
    Absent { volume: String, why: String },
    /// A volume that is not on the command line.
    #[error("volume {volume:?} is not served by this server; it serves {}", .served.join(", "))]
    NotServed { volume: String, served: Vec<String> },
    /// A message of another server names a partnership of which this one has no group.
    #[error("this server does not have the group")]
    NoPartnership,
    /// The group is stopped, and why.
    #[error("{group} is stopped: {why}")]
    Stopped { group: GroupName, why: String },
    /// The group is being opened.
    #[error("{0} is being opened: try again in a moment")]
    Opening(GroupName),
    /// The group cannot be opened, because a disk is full.
    #[error(
        "{0} is not open yet: a disk on this host is full, and the log cannot be replayed. Free some space, and it continues by \
         itself. If the other side has everything, it can take over: stop this server, and `weft replica switch {0} \
         --failover` there"
    )]
    OpeningFull(GroupName),
    /// Only the source can carry the command out; its host, if known.
    #[error("{group} is a destination on this host: run the command on its source, {}", .host.as_deref().unwrap_or("the source"))]
    AtSource { group: GroupName, host: Option<String> },
    /// Only a copy can carry the request out.
    #[error("group {0} is not a destination on this host")]
    NotDestination(GroupName),
    /// A link to a destination.
    #[error("{group} to {to}: {source}")]
    Link { group: GroupName, to: String, source: weft_replica::Error },
    /// The file of a group's configuration was lost, and its partnership with it.
    #[error("its file is unusable")]
    NoFile,
    /// A volume cannot tell how much of it is used.
    #[error(transparent)]
    Extents(#[from] weft_store::Error),
    /// A volume answered another question.
    #[error("a volume does not report its extents")]
    NoExtents,
    /// The folder of the journals cannot be written.
    #[error("the journal's folder, {}, cannot be written: {source}", .folder.display())]
    JournalFolder { folder: PathBuf, source: io::Error },
    /// A file of the folder of all groups.
    #[error("{}: {source}", .folder.display())]
    Folder { folder: PathBuf, source: io::Error },

    /// A source has several destinations.
    #[error("{group} has several destinations: choose one with --to: {}", .names.join(", "))]
    SeveralDestinations { group: GroupName, names: Vec<String> },
    /// A source without destinations.
    #[error("{0} has no destination")]
    NoDestinations(GroupName),
    /// A source without this destination.
    #[error("{group} has no destination {name:?}")]
    NoDestination { group: GroupName, name: String },
    /// The link to a destination does not run yet.
    #[error("{0} is not replicated to yet")]
    NoLink(String),

    /// A group of no volumes.
    #[error("no volume is named")]
    NoVolume,
    /// The other server answered another question.
    #[error("the other server sent an unexpected answer")]
    Unexpected,
    /// A server cannot be its own copy.
    #[error(
        "{0} is this server itself: give another host, on which weft serve --replica serves the volume for the copy"
    )]
    Itself(String),
    /// A volume of the other server is too small.
    #[error(
        "volume {volume} has {} on {host}, but {} on this host: run weft volume resize {volume} {here} there",
        human(*.there), human(*.here)
    )]
    ShorterThere { volume: Said, host: String, there: u64, here: u64 },
    /// A volume of this server is too small for its source.
    #[error("volume {volume} has {own} bytes but needs {size}: weft volume resize {volume} {size}")]
    Shorter { volume: String, own: u64, size: u64 },
    /// A volume that a copy would overwrite.
    #[error("volume {0} contains data: use --overwrite to overwrite it, or --seeded if it is an older copy")]
    HasData(String),
    /// Another group has the name.
    #[error("group {group:?} already exists, with {}: choose another name with --group", .volumes.join(","))]
    OtherVolumes { group: GroupName, volumes: Vec<String> },
    /// A group has the name.
    #[error("group {0:?} already exists: choose another name with --group")]
    Exists(GroupName),
    /// The maximum number of groups.
    #[error("limit reached: {0} groups")]
    TooManyGroups(usize),
    /// The source has this destination.
    #[error(
        "{group} is already replicated to {destination}: `weft replica status` shows its state; `{}` ends it",
        removal(group, destination)
    )]
    AlreadyReplicated { group: GroupName, destination: String },
    /// The source has this destination under another name.
    #[error(
        "{group} is already replicated to {host}, as {destination}: `weft replica status` shows its state; `{}` ends it",
        removal(group, destination)
    )]
    SecondName { group: GroupName, host: String, destination: String },
    /// A volume of this server is in a group.
    #[error(
        "volume {volume} is already in group {group}: `weft replica status` shows its state, `weft replica remove \
         {group}` ends it"
    )]
    InGroup { volume: String, group: GroupName },
    /// The same, for the server that asks for a copy.
    #[error(
        "volume {volume} is already in group {group}; `weft replica remove {group}` on that host ends that"
    )]
    InGroupThere { volume: String, group: GroupName },
    /// Options for one destination that apply to all.
    #[error("--on-loss and --on-congestion apply to the whole group {0}, which has other settings")]
    OtherPolicy(GroupName),
    /// The number of volumes differs from that of their sizes.
    #[error("the number of volumes and that of their sizes differ")]
    Sizes,
    /// The partnership is not one.
    #[error("a partnership of the wrong length")]
    PartnershipLength,
    /// A group has the partnership.
    #[error("group {0} already has this partnership")]
    PartnershipTaken(GroupName),
    /// The log is longer than any block.
    #[error("the journal would be too long")]
    JournalTooLong,
    /// The file system does not report its free space.
    #[error("cannot find out how much space is free: {0}")]
    FreeSpace(io::Error),
    /// A failed creation could not be undone.
    #[error("{why}; and the group could not be removed: {source}")]
    NotUndone { why: Box<Error>, source: Box<Error> },
    /// A failed creation may have left a copy on the other host.
    #[error(
        "{why}; if {group} is now a copy on {host}, `weft replica remove {group}` on that host ends that"
    )]
    CopyLeft { why: Box<Error>, group: GroupName, host: String },

    /// A copy follows a later source than the one that ends replication.
    #[error(
        "{group} follows the source of epoch {follows} there, not that of epoch {epoch}: run `weft replica remove` on \
         its source"
    )]
    FollowsThere { group: GroupName, follows: u64, epoch: u64 },
    /// A copy follows a source of another epoch than the one that sends its list.
    #[error("{group} follows the source of epoch {follows}, not that of epoch {epoch}")]
    Follows { group: GroupName, follows: u64, epoch: u64 },
    /// A stopped side may have data that nobody else has.
    #[error("{0} is stopped there: `weft replica remove {0} --force` on that host")]
    StoppedThere(GroupName),
    /// Only a copy is removed by its source.
    #[error("group {0} is not a destination there")]
    NotDestinationThere(GroupName),
    /// A list has an entry that nobody could reach.
    #[error("{0:?} cannot be a partner")]
    OddPartner(String),
    /// A list has too many entries.
    #[error("a source has at most {0} destinations")]
    TooManyPartners(usize),

    /// The caller of a failover hung up.
    #[error("{0} is still a copy: the failover was cancelled")]
    Cancelled(GroupName),
    /// A failover of a copy that cannot apply what it has.
    #[error(
        "{0} stays a copy: a disk is full here, and what has arrived waits for it: make room first, and try again"
    )]
    CopyFull(GroupName),
    /// A copy cannot give the source's role to itself.
    #[error(
        "{group} is a destination on this host: `weft replica switch {group}` on {host} exchanges the roles without a loss; if {host} \
         is lost, add --failover on this host"
    )]
    NeedsFailover { group: GroupName, host: String },
    /// A failover of a source.
    #[error("{0} is the source on this host: --failover is for a destination")]
    IsSource(GroupName),
    /// Objections to a failover that were not all overridden.
    #[error("{}", refusal(group, objections))]
    Objections { group: GroupName, objections: Vec<(Objection, String)> },
    /// A copy cannot be promoted.
    #[error("{group} stays a copy: {source}")]
    StaysCopy { group: GroupName, source: weft_replica::Error },
    /// A copy was promoted and is not open; a sentence about each destination that was left out.
    #[error("{source}{parted}")]
    PromotedClosed { source: weft_replica::Error, parted: String },
    /// The exchange of roles is not recorded.
    #[error("the roles are unchanged: {0}")]
    RolesUnrecorded(Unrecorded),
    /// The next source does not know that it is.
    #[error("{}", not_exchanged(group, to, others, why))]
    NotExchanged { group: GroupName, to: String, others: Vec<String>, why: Box<Untold> },
    /// The destination did not take the source's role.
    #[error("{group} to {to}: {source}; the roles are unchanged")]
    RolesUnchanged { group: GroupName, to: String, source: weft_replica::Error },

    /// A removal by force where none is needed.
    #[error(
        "{0} is running and its other side follows: `weft replica remove {0}` without --force ends replication on both"
    )]
    NeedsNoForce(GroupName),
    /// A removal that could not be recorded afterwards.
    #[error("nothing was changed: {0}")]
    Unchanged(Box<Error>),
    /// A destination does not hear that replication ends.
    #[error(
        "{destination} could not be told and would wait forever: {source}; --force removes only this side"
    )]
    NotTold { destination: String, source: Box<Unasked> },
    /// Replication has ended on the other sides only.
    #[error("{why}. Its destinations are removed: `weft replica remove {group}` ends it here, after that")]
    NotEnded { group: GroupName, why: Box<Error> },
    /// A stopped group is removed by force only.
    #[error("{group} is stopped: {why}. {log}: --force removes it")]
    StoppedNeedsForce { group: GroupName, why: String, log: LogLeft },
    /// A copy in the middle of a resync is removed by force only.
    #[error(
        "the copy of {group} is in the middle of a resync ({role:?}) and mixes data of different moments: --force removes it nevertheless"
    )]
    Resyncing { group: GroupName, role: weft_replica::status::Role },
    /// The group's record could not be removed.
    #[error("{0}; its volumes stay closed until the command is repeated")]
    VolumesClosed(Unremoved),
    /// A side that gives up its role for copies.
    #[error(
        "{group} is already a copy on {hosts}: if this side became one too, no side would be the source. To continue with this host's data: \
         `weft replica resolve {group} --keep here`. To make it a copy anyway: `weft replica resolve {group} --keep there \
         --force`, then `weft replica switch {group} --failover` on {hosts}",
        hosts = .hosts.join(" and ")
    )]
    NoSource { group: String, hosts: Vec<String> },

    /// A group has several volumes.
    #[error("{name} has several volumes: choose one of {}", .volumes.join(", "))]
    SeveralVolumes { name: String, volumes: Vec<String> },
    /// A member would become shorter.
    #[error(
        "{volume} has {}: a volume cannot shrink while it is replicated; weft replica remove {name} ends replication",
        human(*.bytes)
    )]
    Shrinks { volume: String, name: String, bytes: u64 },
    /// A destination has no room for a growth.
    #[error("{destination} cannot grow, so no volume was changed: {source}")]
    CannotGrow { destination: String, source: Box<Unasked> },
    /// The group did not grow with its volume.
    #[error("{volume}: {source}")]
    NotGrown { volume: String, source: weft_replica::Error },
}

/// The records of a stopped group that its removal loses or applies.
#[derive(Clone, Copy, Debug, thiserror::Error)]
pub(crate) enum LogLeft {
    /// The partnership has ended.
    #[error("Its volumes stay as they are")]
    Over,
    /// The log cannot be read.
    #[error("Records in its log that are not yet in its volumes are lost when it is removed")]
    Lost,
    /// Everything is applied.
    #[error("Its volumes contain everything in its log")]
    None,
    /// These are not applied yet.
    #[error("{0} records of its log are applied to its volumes when it is removed")]
    Records(u64),
}

/// Another command is running.
#[derive(Debug, thiserror::Error)]
#[error("{0} is running: try again when it is done")]
pub(crate) struct Busy(pub String);

/// A member cannot be changed.
#[derive(Debug, thiserror::Error)]
#[error("volume {volume}: {source}")]
pub(crate) struct VolumeFault {
    pub volume: String,
    pub source: VolumeError,
}

/// Values that no group can have.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Misfit {
    /// The partnership is not one.
    #[error("a partnership has 32 hexadecimal digits")]
    Partnership,
    /// The number of volumes is zero, or not that of their sizes.
    #[error("the number of volumes and that of their sizes differ, or there is none")]
    Sizes,
    /// No volume has this size.
    #[error("{0} bytes is not the size of a volume")]
    Size(u64),
    /// No log has this size.
    #[error("a log has at most {most} bytes, in multiples of {unit}, not {bytes}")]
    Log { bytes: u64, most: u64, unit: u64 },
    /// A text that could control a terminal.
    #[error("{0:?} cannot be a host or user")]
    Text(String),
    /// A journal has no room for as many.
    #[error("a group has at most {MAX_MEMBERS} volumes, not {0}")]
    TooMany(usize),
    /// A volume is in a group once.
    #[error("volume {0:?} is named twice")]
    Twice(String),
    /// More volumes on one host than on the other.
    #[error("give as many volumes for the other host as for this one: VOL1,VOL2 HOST:VOL1,VOL2")]
    Unpaired,
}

/// Another server may not use as much of the free space.
#[derive(Debug, thiserror::Error)]
#[error("{what} needs {bytes} bytes, but {free} are free there, of which one {part_left}th must stay free")]
pub(crate) struct NoRoom {
    pub what: &'static str,
    pub bytes: u64,
    pub free: u64,
    pub part_left: u64,
}

/// Why members have no room for their source's growth.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Unlent {
    /// One of them cannot grow.
    #[error(transparent)]
    Volume(#[from] VolumeFault),
    /// There is too little space.
    #[error(transparent)]
    NoRoom(#[from] NoRoom),
}

impl From<Unlent> for Error {
    fn from(e: Unlent) -> Error {
        match e {
            Unlent::Volume(fault) => fault.into(),
            Unlent::NoRoom(room) => room.into(),
        }
    }
}

/// Why another server did not answer a question.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Unasked {
    /// It cannot be reached, refuses the log-on, or does not accept replicas.
    #[error("{}", not_joined(host, *.port, &source.to_string()))]
    NotJoined { host: String, port: u16, source: Failure },
    /// The question or its answer was lost.
    #[error("{}", at(host, *.port, &source.to_string()))]
    Interrupted { host: String, port: u16, source: Interrupted },
    /// It refuses; its sentence.
    #[error("{host}: {why}")]
    Refused { host: String, why: Said },
}

/// Why a question to another server has no answer although its door is open.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Interrupted {
    /// The server refused a request, or the connection ended.
    #[error(transparent)]
    Smb(#[from] SmbError),
    /// The question cannot be written.
    #[error(transparent)]
    Question(serde_json::Error),
    /// The answer cannot be read.
    #[error("an answer that cannot be read: {0}")]
    Answer(serde_json::Error),
}

/// Why a link was not measured.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Unmeasured {
    /// The other server cannot be reached.
    #[error("{0}")]
    NotJoined(Failure),
    /// The other server refused a request, or the connection ended.
    #[error(transparent)]
    Smb(#[from] SmbError),
    /// The question cannot be written.
    #[error(transparent)]
    Question(#[from] serde_json::Error),
    /// This side's log cannot be written.
    #[error("the journal's folder, {}: {source}", .folder.display())]
    Folder { folder: PathBuf, source: io::Error },
}

/// Why a destination does not have its source's list.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Untold {
    /// Its server's version does not know lists.
    #[error("its server is of an older version: update it")]
    Older,
    /// This side is no longer the source.
    #[error("{0} is not a source on this host")]
    NotSource(GroupName),
    /// Its server does not answer in time.
    #[error("{0} does not answer")]
    Silent(String),
    /// Its server refuses the list; its sentence.
    #[error("{host}: {why}")]
    Refused { host: String, why: Said },
    /// Its server answered another question.
    #[error("{0} sent an unexpected answer")]
    Unexpected(String),
    /// Its server cannot be asked.
    #[error(transparent)]
    Unasked(#[from] Unasked),
    /// A later count of the list is not recorded.
    #[error(transparent)]
    Unrecorded(#[from] Unrecorded),
}

/// Why a change of a group is not recorded.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Unrecorded {
    /// Its file must not come back.
    #[error("group {0} has ended here")]
    Ended(GroupName),
    /// Its file cannot be written.
    #[error("cannot record group {group} in {}: {source}; fix that and repeat the command", .folder.display())]
    Io { group: GroupName, folder: PathBuf, source: io::Error },
}

/// Why this host's address on the way to another one is unknown.
#[derive(Debug, thiserror::Error)]
pub(crate) enum NoRoute {
    /// The other host's name has no address.
    #[error("{host}: {source}")]
    Unresolved { host: String, source: io::Error },
    /// None of its addresses can be reached.
    #[error("there is no route to {0}")]
    Unreachable(String),
}

/// Why a group's files cannot be created.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Uncreated {
    /// The system provides no random numbers.
    #[error(transparent)]
    NoRandomness(#[from] Unavailable),
    /// The folder of all groups.
    #[error("{}: {source}", .folder.display())]
    Folder { folder: PathBuf, source: io::Error },
    /// The group's file.
    #[error("cannot record the group: {0}")]
    Record(io::Error),
    /// The journal.
    #[error("cannot create the journal: {0}")]
    Journal(VolumeError),
    /// The new journal.
    #[error(transparent)]
    OpenJournal(VolumeError),
    /// Another server, or an earlier run, has recorded a group of this name.
    #[error(
        "group {group} is already recorded in {}, by another server or an earlier run: choose another name with --group",
        .folder.display()
    )]
    Recorded { group: GroupName, folder: PathBuf },
    /// A leftover file cannot be removed.
    #[error("{} is in the way of group {group}: {source}", .path.display())]
    InTheWay { group: GroupName, path: PathBuf, source: io::Error },
}

/// Why a journal's state is unknown.
#[derive(Debug, thiserror::Error)]
pub(super) enum NoState {
    /// It cannot be opened.
    #[error(transparent)]
    Open(#[from] VolumeError),
    /// It cannot be read.
    #[error(transparent)]
    Look(#[from] weft_replica::Error),
}

/// A group's record cannot be removed.
#[derive(Debug, thiserror::Error)]
#[error("cannot remove the record of group {group} in {}: {source}", .folder.display())]
pub(crate) struct Unremoved {
    pub group: GroupName,
    pub folder: PathBuf,
    pub source: io::Error,
}

/// Why the groups cannot be taken up when the server starts.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Unremembered {
    /// The system provides no random numbers.
    #[error(transparent)]
    NoRandomness(#[from] Unavailable),
    /// The groups cannot be listed.
    #[error(transparent)]
    Unlisted(#[from] Unlisted),
    /// A group that never began cannot be forgotten.
    #[error("{}: group {group}: {source}", .folder.display())]
    NotForgotten { folder: PathBuf, group: GroupName, source: io::Error },
    /// A volume in no group cannot be served.
    #[error(transparent)]
    Volume(#[from] VolumeFault),
}

/// The folder of all groups cannot be read.
#[derive(Debug, thiserror::Error)]
#[error("cannot read {}: {source}", .folder.display())]
pub(crate) struct Unlisted {
    pub folder: PathBuf,
    pub source: io::Error,
}

/// A group's file is unusable.
#[derive(Debug, thiserror::Error)]
#[error("{} is of no use: {fault}", .path.display())]
pub(super) struct UnusableFile {
    pub path: PathBuf,
    pub fault: FileFault,
}

/// What is wrong with a group's file.
#[derive(Debug, thiserror::Error)]
pub(super) enum FileFault {
    /// It cannot be read.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// Its text is not a group.
    #[error(transparent)]
    Json(#[from] serde_json::Error),
    /// It is of another version.
    #[error("it is of version {is}, and this is {known}")]
    Version { is: u32, known: u32 },
    /// It was renamed.
    #[error("it is of the group {0:?}")]
    OtherGroup(GroupName),
}

/// Why a test failover does not begin or end.
#[derive(Debug, thiserror::Error)]
pub(crate) enum NoSnapshot {
    /// None is open.
    #[error("there is no snapshot of {0}")]
    Missing(GroupName),
    /// This side is not a copy.
    #[error("{0} is not a destination on this host: run the test on the host of the copy")]
    NoCopy(GroupName),
    /// One is open.
    #[error("a snapshot of {0} already exists; to end it: weft replica test-failover {0} --end")]
    Open(GroupName),
    /// Its differences have no file.
    #[error("no room for the snapshot's changes: {0}")]
    Room(io::Error),
    /// The copy refuses.
    #[error(transparent)]
    Replica(#[from] weft_replica::Error),
    /// The server has not started yet.
    #[error("the server does not listen yet")]
    NotListening,
    /// The path of its socket is unknown.
    #[error("cannot find the path of the snapshot's socket: {0}")]
    Path(io::Error),
    /// Its socket cannot be bound.
    #[error("cannot serve the snapshot at {}: {source}", .path.display())]
    Socket { path: PathBuf, source: io::Error },
    /// No client could name its socket.
    #[error(
        "no NBD client could connect: the path of a Unix socket has at most {most} bytes, and paths in {} and {} are longer; \
         start the server with a shorter XDG_RUNTIME_DIR, or --state-dir",
        .folder.display(),
        .runtime.display()
    )]
    PathTooLong { most: usize, folder: PathBuf, runtime: PathBuf },
}

impl NoSnapshot {
    /// The socket at this path cannot be bound.
    pub(super) fn socket(path: &Path) -> impl FnOnce(io::Error) -> NoSnapshot {
        let path = path.to_owned();
        move |source| NoSnapshot::Socket { path, source }
    }
}

/// The command that ends replication to one destination.
fn removal(group: &str, destination: &str) -> ShellCommand {
    ShellCommand::new("weft replica remove").operand(group).option("--to", destination)
}

/// All objections, and what to type to override exactly these.
fn refusal(name: &str, objections: &[(Objection, String)]) -> String {
    let words: Vec<&str> = objections.iter().map(|(objection, _)| objection.word()).collect();
    let all: Vec<String> = objections.iter().map(|(one, why)| format!("{}: {why}", one.word())).collect();
    let (all, words) = (all.join(". "), words.join(","));
    let one = if objections.len() == 1 { "this objection" } else { "these objections" };
    format!(
        "{name} stays a copy. {all}. To make it the source despite {one}: `weft replica switch {name} --failover --force={words}`"
    )
}

/// Why roles are not exchanged with a destination that could not be told about these others.
fn not_exchanged(group: &str, to: &str, others: &[String], why: &Untold) -> String {
    if others.is_empty() {
        return format!("the roles are unchanged: {to} cannot be told to become the source: {why}");
    }
    let remove: Vec<String> = others.iter().map(|other| format!("`{}`", removal(group, other))).collect();
    format!(
        "the roles are unchanged: {to} cannot be told about the other destinations, which would be left out: {why}. To proceed without \
         them: {}",
        remove.join(", ")
    )
}

/// Why a server's share of doors cannot be used, and how to start one that has it.
fn not_joined(host: &str, port: u16, e: &str) -> String {
    let said = at(host, port, e);
    match lacks_share(e) {
        true => format!("{said}; start it with: weft serve --volume NAME --replica on {host}"),
        false => said,
    }
}

/// An error with the address at which it happened, added once.
fn at(host: &str, port: u16, e: &str) -> String {
    let address = authority(host, port);
    match e.contains(&address) {
        true => e.to_owned(),
        false => format!("{address}: {e}"),
    }
}

/// Whether the other server runs without `--replica`: it lacks the share of doors. Shared memory fails differently.
fn lacks_share(e: &str) -> bool {
    e.contains("BAD_NETWORK_NAME") || e.contains("no share ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_told_once_and_replication_is_advised_where_it_is_missing() {
        assert_eq!(
            at("10.77.0.9", 4450, "10.77.0.9:4450: No route to host"),
            "10.77.0.9:4450: No route to host"
        );
        assert_eq!(at("10.77.0.9", 4450, "it hung up"), "10.77.0.9:4450: it hung up");
        assert_eq!(at("::1", 4450, "[::1]:4450: it hung up"), "[::1]:4450: it hung up");
        assert!(lacks_share("no share weft-replica$ on beta; `weft ls smb://alice@beta` lists the shares"));
        assert!(!lacks_share("the host offers no shared memory: another machine"));
    }
    /// If the only copy was dead, the message blamed the others and advised to end replication.
    #[test]
    fn a_switch_that_reaches_nobody_blames_no_others() {
        let silent = Untold::Silent("b".into());
        let alone = not_exchanged("db", "beta:db", &[], &silent);
        assert!(alone.ends_with("beta:db cannot be told to become the source: b does not answer"), "{alone}");
        assert!(!alone.contains("remove") && !alone.contains("other"), "{alone}");
        let two = not_exchanged("db", "beta:db", &["gamma:db".to_owned()], &silent);
        assert!(two.contains("beta:db cannot be told about the other destinations"), "{two}");
        assert!(two.ends_with("`weft replica remove db --to gamma:db`"), "{two}");
    }
}
