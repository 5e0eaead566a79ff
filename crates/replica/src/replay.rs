//! What opening either side has in common: a journal of this role, volumes that fit it, and a log that is applied once more.
//!
//! What: [`Opened`]. Spec: none. Does not: decide what a side makes of damage.

use weft_store::block::BlockOp;

use crate::error::Error;
use crate::journal::{Journal, Side, look};
use crate::log::Log;
use crate::record::Record;
use crate::scan::{Damage, Scan};
use crate::state::State;
use crate::status::Role;

/// A side whose volumes are what its log says.
#[derive(Debug)]
pub(crate) struct Opened {
    /// Of a new life, which the journal has to know before the first append.
    pub state: State,
    pub journal: Journal,
    pub log: Log,
    /// The log ends before this, and the volumes may be further.
    pub damage: Option<Damage>,
}

/// Opens a side that has to play this role. That some of its log was applied before does no harm: the last word on every byte
/// is the same.
pub(crate) async fn open(side: &Side, wanted: Role, recent_bytes: usize) -> Result<Opened, Error> {
    open_with(side, wanted, recent_bytes, async |record: Record| apply(side, &record).await).await
}

/// The same with the volumes as they are.
pub(crate) async fn read(side: &Side, wanted: Role, recent_bytes: usize) -> Result<Opened, Error> {
    open_with(side, wanted, recent_bytes, async |_| Ok(())).await
}

/// Applies what the log of a side that was read holds. Nothing has left it since.
pub(crate) async fn again(side: &Side, state: &State) -> Result<(), Error> {
    let each = async |record: Record| apply(side, &record).await;
    match Log::open(side, state, state.life, 0, each).await? {
        (_, Some(damage)) => Err(Error::Log(damage)),
        (_, None) => Ok(()),
    }
}

async fn open_with(
    side: &Side,
    wanted: Role,
    recent_bytes: usize,
    each: impl AsyncFnMut(Record) -> Result<(), Error>,
) -> Result<Opened, Error> {
    let mut state = look(&side.journal, &side.pool).await?;
    if state.role != wanted {
        return Err(Error::Role { is: state.role, wanted });
    }
    check_members(side, &state)?;
    let journal = Journal::new(side, &state);
    state.life = state.life.checked_add(1).ok_or(Error::State("its journal counts no further"))?;
    let (log, damage) = Log::open(side, &state, state.life, recent_bytes, each).await?;
    state.closed = false;
    Ok(Opened { state, journal, log, damage })
}

/// Applies what can be read behind damage, in order; the last sequence that was found.
pub(crate) async fn salvage(side: &Side, opened: &Opened, damage: Damage) -> Result<u64, Error> {
    let fill = opened.log.fill();
    // From the end of what was opened.
    let state = State { tail: opened.log.tail_after(fill.last), ..opened.state.clone() };
    let least = opened.log.headers(fill.last, fill.last).last().map_or(opened.state.tail.life, |h| h.life);
    let mut scan = Scan::new(side, &state);
    let mut rest = state.layout.to_end(fill.used);
    let mut last = fill.last;
    while let Some(record) = scan.salvage(&mut rest, last.saturating_add(1), least).await {
        last = record.header.sequence;
        apply(side, &record).await?;
    }
    Ok(last.max(damage.last))
}

/// The volumes have to be those that the journal knows.
fn check_members(side: &Side, state: &State) -> Result<(), Error> {
    if side.members.len() != state.members.len() {
        return Err(Error::Members(format!(
            "group {} has {} volumes here, and its journal is of {}",
            side.names.group(),
            side.members.len(),
            state.members.len()
        )));
    }
    for (number, (block, member)) in side.members.iter().zip(&state.members).enumerate() {
        let actual = block.geometry().size;
        // What is behind is nobody's until `Source::grow`.
        if actual < member.size {
            return Err(Error::Members(format!(
                "{volume} has {actual} bytes, and {size} of it are replicated: it was made shorter. Where the other side has the rest: \
                 `weft replica switch {group} --failover` there, unless it is the source already, then make it as long again here \
                 (`weft volume resize`), and `weft replica verify {group} --repair` there",
                volume = side.names.volume(number),
                group = side.names.group(),
                size = member.size
            )));
        }
    }
    Ok(())
}

/// Carries one record out.
pub(crate) async fn apply(side: &Side, record: &Record) -> Result<(), Error> {
    let number = usize::from(record.header.member);
    let member = side.members.get(number);
    let member = member.ok_or(Error::State("a record is of a volume that the group does not have"))?;
    if let Some(op) = record.operation() {
        member.submit(op).await.map_err(|e| of_volume(side, number, e))?;
    }
    Ok(())
}

/// Says which volume it was.
pub(crate) fn of_volume(side: &Side, number: usize, source: weft_store::Error) -> Error {
    Error::Volume { volume: side.names.volume(number), source }
}

/// Makes durable what was written to the volumes.
pub(crate) async fn flush(side: &Side) -> Result<(), Error> {
    for (number, member) in side.members.iter().enumerate() {
        member.submit(BlockOp::Flush).await.map_err(|e| of_volume(side, number, e))?;
    }
    Ok(())
}
