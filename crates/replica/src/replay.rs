//! The part of opening that both sides share: read a journal of the expected role, check that the volumes fit it, and
//! apply its log once more.
//!
//! What damage to the log means is decided by the side.

use weft_store::block::BlockOp;

use crate::error::{Damage, Error};
use crate::journal::{Journal, Side, look};
use crate::log::Log;
use crate::record::Record;
use crate::scan::Scan;
use crate::state::State;
use crate::status::Role;

/// A side whose volumes are what its log says.
#[derive(Debug)]
pub(crate) struct Opened {
    /// With a new life, which the journal must hold before the first append.
    pub state: State,
    pub journal: Journal,
    pub log: Log,
    /// The damage that ends the log; the volumes may contain later records.
    pub damage: Option<Damage>,
}

/// Opens a side of this role and applies its log. Applying records a second time is harmless: the last write to each
/// byte is the same.
pub(crate) async fn open(side: &Side, wanted: Role, recent_bytes: usize) -> Result<Opened, Error> {
    open_with(side, wanted, recent_bytes, async |record: Record| apply(side, &record).await).await
}

/// Opens a side of this role and leaves the volumes as they are.
pub(crate) async fn read(side: &Side, wanted: Role, recent_bytes: usize) -> Result<Opened, Error> {
    open_with(side, wanted, recent_bytes, async |_| Ok(())).await
}

/// Applies the log of a side that was opened by [`read`]. Nothing has left it since.
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

/// Applies the records that can be read behind the damage, in order, and returns the last sequence found.
pub(crate) async fn salvage(side: &Side, opened: &Opened, damage: Damage) -> Result<u64, Error> {
    let fill = opened.log.fill();
    // From the end of the log that was opened.
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

/// Checks that the volumes are those of the journal.
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
        // A longer volume is fine: the bytes behind are not part of the group until `Source::grow`.
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

/// Carries out one record.
pub(crate) async fn apply(side: &Side, record: &Record) -> Result<(), Error> {
    let number = usize::from(record.header.member);
    let member = side.members.get(number);
    let member = member.ok_or(Error::State("a record is of a volume that the group does not have"))?;
    if let Some(op) = record.operation() {
        member.submit(op).await.map_err(|e| of_volume(side, number, e))?;
    }
    Ok(())
}

/// Adds the name of the volume to an error.
pub(crate) fn of_volume(side: &Side, number: usize, source: weft_store::Error) -> Error {
    Error::Volume { volume: side.names.volume(number), source }
}

/// Flushes the volumes.
pub(crate) async fn flush(side: &Side) -> Result<(), Error> {
    for (number, member) in side.members.iter().enumerate() {
        member.submit(BlockOp::Flush).await.map_err(|e| of_volume(side, number, e))?;
    }
    Ok(())
}
