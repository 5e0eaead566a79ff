//! Compares two histories: where they part, and how one source answers another (the crate's page, "Histories").

use weft_wire::repl::control::{Era, Hello, MAX_ERAS, Refusal};

/// Whether two eras are the same, wherever they are said to begin.
pub(crate) fn same(a: &Era, b: &Era) -> bool {
    (a.epoch, a.tag) == (b.epoch, b.tag)
}

/// Where two histories part.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Fork {
    /// The last sequence that both have.
    pub at: u64,
    /// Whether this side has lived under a source that the other does not know.
    pub own_era: bool,
}

/// Whether there was a promotion behind the era of number `at`. A source that has only lost the end of its log, and
/// begun an era of the same epoch, is still the same source.
fn promoted(eras: &[Era], at: usize) -> bool {
    let behind = |era: &Era| eras.iter().skip(at).any(|later| later.epoch > era.epoch);
    eras.get(at).is_some_and(behind)
}

/// Positions, in both, of the last era that both know.
fn common(mine: &[Era], theirs: &[Era]) -> Option<(usize, usize)> {
    let known = |(i, era): (usize, &Era)| theirs.iter().position(|other| same(era, other)).map(|j| (i, j));
    mine.iter().enumerate().rev().find_map(known)
}

/// Compares histories; `None` if they have no era in common.
pub(crate) fn fork(mine: &[Era], last: u64, theirs: &[Era]) -> Option<Fork> {
    let (i, j) = common(mine, theirs)?;
    let my_end = mine.get(i.saturating_add(1)).map_or(last, |next| next.after);
    let their_end = theirs.get(j.saturating_add(1)).map_or(u64::MAX, |next| next.after);
    Some(Fork { at: my_end.min(their_end), own_era: promoted(mine, i) })
}

// The tag of an era that a source begins because it is opened: one of these in 16 bits, the number of the opening in
// the next 16, and 32 that are random.
const LOST_NOTHING: u64 = 0xc1ea;
const MAY_HAVE_LOST: u64 = 0xc1eb;

/// The tag of an era that a source begins with its opening number `life`; `draw` is random. It says whether the source
/// was opened with everything that it had ever sent: then this source has written, and since lost, any later record of
/// this history that another side has.
pub(crate) fn opening_tag(draw: u64, life: u64, lost_nothing: bool) -> u64 {
    let mark = if lost_nothing { LOST_NOTHING } else { MAY_HAVE_LOST };
    mark << 48 | (life & 0xffff) << 32 | draw & 0xffff_ffff
}

/// Whether the source that began this era when it was opened had every record that it had sent.
pub(crate) fn lost_nothing(era: &Era) -> bool {
    era.tag >> 48 == LOST_NOTHING
}

/// The number of the opening; `None` for other eras and those of older versions.
fn opening(era: &Era) -> Option<u16> {
    matches!(era.tag >> 48, LOST_NOTHING | MAY_HAVE_LOST).then_some((era.tag >> 32 & 0xffff) as u16)
}

/// Whether a source that remembers its openings from `oldest` on would remember this one.
fn is_remembered(era: &Era, oldest: &Era) -> bool {
    let ahead = |(era, oldest): (u16, u16)| era.wrapping_sub(oldest) < 1 << 15;
    opening(era).zip(opening(oldest)).is_some_and(ahead)
}

/// Whether a source of this history comes from the same promotion as the latest that this side knows, and is not an
/// earlier opening.
pub(crate) fn goes_on(mine: &[Era], theirs: &[Era]) -> bool {
    let newest = |eras: &[Era]| eras.last().map(|era| era.epoch);
    common(mine, theirs).is_some_and(|(i, j)| {
        let own = mine.get(i).map(|era| era.epoch);
        own == newest(mine) && own == newest(theirs) && j.saturating_add(1) < theirs.len()
    })
}

/// Whether the source of this history was set back, by a backup or a snapshot: it has lost records that it had durable,
/// and that a destination of that history has. Returns the last sequence that both have. The source has said that it
/// had everything through `claimed` durable.
pub(crate) fn set_back(mine: &[Era], last: u64, claimed: u64, theirs: &[Era]) -> Option<u64> {
    let (i, j) = common(mine, theirs)?;
    if promoted(mine, i) || promoted(theirs, j) {
        return None;
    }
    let at = fork(mine, last, theirs)?.at;
    let epoch = |at: usize| theirs.get(at).map(|era| era.epoch);
    let is_first = j.checked_sub(1).is_none_or(|before| epoch(before) != epoch(j));
    if last <= at {
        return None;
    }
    let next = theirs.get(j.saturating_add(1));
    if is_first && theirs.len() >= MAX_ERAS {
        // Openings that a source has forgotten lie behind the first of its epoch. One that this side knows is younger
        // than that.
        let known = mine.last().filter(|_| mine.len() > i.saturating_add(1));
        return known.zip(next).is_some_and(|(known, oldest)| is_remembered(known, oldest)).then_some(at);
    }
    // This side has followed an opening that the source does not know.
    let unknown = mine.len() > i.saturating_add(1);
    let opened = next.is_some_and(lost_nothing);
    (unknown || opened || claimed > at).then_some(at)
}

/// The last record of this era's epoch that the source of a hello has: a later epoch begins behind it.
pub(crate) fn end_of_epoch(era: Era, hello: &Hello) -> u64 {
    let later = hello.eras.iter().find(|later| later.epoch > era.epoch);
    later.map_or(hello.last, |later| later.after)
}

/// An era that has claimed this side, as a source that is refused for it is told of it: what that wrote behind the
/// point where the histories part is missing under the other.
pub(crate) fn parted(by: Era, mine: &[Era], theirs: &[Era]) -> Era {
    let next = common(mine, theirs).and_then(|(_, j)| theirs.get(j.saturating_add(1)));
    Era { after: next.map_or(by.after, |next| by.after.min(next.after)), ..by }
}

/// The source of a later epoch that has taken over from a source of this history, as told by its own: a copy was
/// promoted, and this side has been promoted no more since. With the last sequence that both have.
pub(crate) fn successor(mine: &[Era], theirs: &[Era]) -> Option<Era> {
    let (i, j) = common(mine, theirs)?;
    (!promoted(mine, i) && promoted(theirs, j)).then_some(())?;
    let ends = [mine.get(i.saturating_add(1)), theirs.get(j.saturating_add(1))];
    let after = ends.into_iter().flatten().fold(u64::MAX, |after, era| after.min(era.after));
    theirs.last().map(|by| Era { after, ..*by })
}

/// How a source refuses the hello of another source: the later one counts, unless both have records of their own. For a
/// [`successor`] another rule holds.
pub(crate) fn refusal(mine: &[Era], theirs: &[Era]) -> Refusal {
    let Some(own) = mine.last().copied() else { return Refusal::Invalid };
    // Both are of the same partnership, but the era where they part is forgotten.
    let Some((i, j)) = common(mine, theirs) else { return Refusal::SplitBrain(own) };
    if !promoted(mine, i) {
        // There was no promotion: the other is a twin of this side, or an earlier or later opening.
        return Refusal::Inconsistent;
    }
    // Records of the other behind the point where one of them went on alone are missing here.
    let next = |eras: &[Era], at: usize| eras.get(at.saturating_add(1)).map(|era| era.after);
    let ends = next(mine, i).into_iter().chain(next(theirs, j));
    let by = Era { after: ends.fold(u64::MAX, u64::min), ..own };
    if promoted(theirs, j) { Refusal::SplitBrain(by) } else { Refusal::Fenced(by) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn era(epoch: u64, tag: u64, after: u64) -> Era {
        Era { epoch, tag, after }
    }

    #[test]
    fn histories_part_where_the_first_of_them_begins_an_era() {
        let first = era(1, 10, 0);
        let at = |mine: &[Era], last, theirs: &[Era]| fork(mine, last, theirs).map(|f| (f.at, f.own_era));
        // The same history: as far as this side has it.
        assert_eq!(at(&[first], 7, &[first]), Some((7, false)));
        // The other was promoted behind 5: what was written here after that is gone.
        assert_eq!(at(&[first], 7, &[first, era(2, 20, 5)]), Some((5, false)));
        assert_eq!(at(&[first], 3, &[first, era(2, 20, 5)]), Some((3, false)));
        // Both were promoted.
        assert_eq!(at(&[first, era(2, 21, 4)], 9, &[first, era(2, 20, 5)]), Some((4, true)));
        assert_eq!(at(&[era(1, 11, 0)], 9, &[first]), None);
        // The source has lost what was behind 5; so it has of what this side was told of before another was promoted.
        assert_eq!(at(&[first], 7, &[first, era(1, 11, 5)]), Some((5, false)));
        assert_eq!(at(&[first, era(1, 11, 5)], 9, &[first, era(2, 20, 7)]), Some((5, false)));
        // The oldest eras are forgotten: what is left still meets.
        assert_eq!(at(&[first, era(2, 20, 5)], 9, &[era(2, 20, 5), era(3, 30, 8)]), Some((8, false)));
    }

    #[test]
    fn a_source_that_has_had_what_its_copy_has_was_set_back() {
        let (first, lost, nothing) = (era(1, 10, 0), opening_tag(7, 2, false), opening_tag(7, 2, true));
        let is = |mine: &[Era], last, claimed, theirs: &[Era]| set_back(mine, last, claimed, theirs);
        // Opened after a crash, it may have lost what it had sent and nobody was told; but not what it had durable.
        assert_eq!(is(&[first], 691, 0, &[first, era(1, lost, 300)]), None);
        assert_eq!(is(&[first], 691, 300, &[first, era(1, lost, 300)]), None);
        assert_eq!(is(&[first], 691, 690, &[first, era(1, lost, 300)]), Some(300));
        // Opened with all that it had ever written.
        assert_eq!(is(&[first], 691, 0, &[first, era(1, nothing, 206)]), Some(206));
        assert_eq!(is(&[first], 206, 206, &[first, era(1, nothing, 206)]), None);
        // It has gone on alone, past what the copy has, and was opened again: what the copy has was written by another
        // opening.
        let mine = [first, era(1, 77, 206)];
        assert_eq!(is(&mine, 691, 0, &[first, era(1, lost, 206), era(1, lost ^ 1, 1700)]), Some(206));
        assert_eq!(is(&mine, 206, 0, &[first, era(1, lost, 206)]), None);
        // A twin of a source that runs: the copy follows the other one.
        assert_eq!(is(&[first, era(1, 77, 206)], 300, 0, &[first]), Some(206));
        // Somebody was promoted: that is another matter.
        assert_eq!(is(&mine, 691, 691, &[first, era(2, 20, 206)]), None);
        assert_eq!(is(&[first, era(2, 20, 206)], 691, 691, &[first, era(1, nothing, 206)]), None);
        // What the source has forgotten nobody can tell.
        let many: Vec<Era> =
            (1..MAX_ERAS as u64).map(|n| era(1, opening_tag(n, 0xfff0 + n, true), 100 * n)).collect();
        let forgotten = [&[first], &many[..]].concat();
        for opened in [77, opening_tag(77, 0xfff0, true)] {
            assert_eq!(is(&[first, era(1, opened, 50)], 190, 190, &forgotten), None);
        }
        // But openings that it would remember.
        for life in [0xfff1, 0x1000f, 0x10030] {
            assert_eq!(is(&[first, era(1, opening_tag(77, life, true), 50)], 190, 0, &forgotten), Some(50));
        }
        assert_eq!(is(&[first, many[3], era(1, 77, 450)], 470, 0, &forgotten), Some(450));
    }

    #[test]
    fn an_opening_says_whether_anything_was_lost() {
        for draw in [0, 1, u64::MAX] {
            for all in [true, false] {
                let opened = era(1, opening_tag(draw, 0x2_1234, all), 0);
                assert_eq!((lost_nothing(&opened), opening(&opened)), (all, Some(0x1234)), "{draw:x}");
            }
        }
        assert_eq!(opening(&era(1, 77, 0)), None);
    }

    #[test]
    fn a_later_opening_goes_on_and_an_earlier_one_or_another_source_does_not() {
        let (first, opened, again) = (era(1, 10, 0), era(1, 11, 5), era(1, 12, 5));
        assert!(goes_on(&[first], &[first, opened]));
        // The copy knows an opening in which nothing was written, which the source does not remember.
        assert!(goes_on(&[first, opened], &[first, again]));
        assert!(!goes_on(&[first, opened], &[first]));
        assert!(!goes_on(&[first, era(2, 20, 5)], &[first, era(2, 21, 5)]));
        assert!(!goes_on(&[first], &[first, era(2, 21, 5)]));
        assert!(!goes_on(&[era(2, 20, 5)], &[era(2, 21, 5)]));
    }

    #[test]
    fn of_two_sources_the_later_one_counts_unless_both_went_on() {
        let (first, mine, theirs) = (era(1, 10, 0), era(2, 20, 5), era(2, 30, 7));
        assert_eq!(refusal(&[first, mine], &[first]), Refusal::Fenced(era(2, 20, 5)));
        assert_eq!(refusal(&[first, mine], &[first, theirs]), Refusal::SplitBrain(era(2, 20, 5)));
        assert_eq!(refusal(&[first, mine, era(3, 21, 9)], &[first]), Refusal::Fenced(era(3, 21, 5)));
        assert_eq!(refusal(&[first], &[first]), Refusal::Inconsistent);
        // One that was opened anew, and had lost the end of its log, is the same source.
        let again = era(1, 11, 4);
        assert_eq!(refusal(&[first, mine], &[first, again]), Refusal::Fenced(era(2, 20, 4)));
        assert_eq!(refusal(&[first, era(1, 11, 6), mine], &[first]), Refusal::Fenced(era(2, 20, 6)));
        assert_eq!(
            refusal(&[first, mine], &[first, again, era(2, 30, 7)]),
            Refusal::SplitBrain(era(2, 20, 4))
        );
        // Where they part is forgotten.
        assert_eq!(refusal(&[era(40, 1, 9)], &[era(2, 11, 0)]), Refusal::SplitBrain(era(40, 1, 9)));
    }
    #[test]
    fn a_copy_that_was_promoted_is_the_successor_of_a_source_that_was_not() {
        let (first, again, theirs) = (era(1, 10, 0), era(1, 11, 4), era(2, 30, 7));
        assert_eq!(successor(&[first], &[first, theirs]), Some(theirs));
        assert_eq!(successor(&[first], &[first, theirs, era(3, 31, 9)]), Some(era(3, 31, 7)));
        // This side was opened anew since, and had lost the end of its log.
        assert_eq!(successor(&[first, again], &[first, theirs]), Some(era(2, 30, 4)));
        assert_eq!(successor(&[first], &[first]), None);
        assert_eq!(successor(&[first], &[first, again]), None);
        // Both were promoted, or this side alone, or they have nothing in common.
        assert_eq!(successor(&[first, era(2, 20, 5)], &[first, theirs]), None);
        assert_eq!(successor(&[first, theirs], &[first]), None);
        assert_eq!(successor(&[first], &[theirs]), None);
    }
}
