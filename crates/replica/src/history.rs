//! Two rows of eras beside each other: where they part, and what a source says to another.
//!
//! Spec: the crate's page, "Histories". Owns: nothing. Does not: know what was written in an era.

use weft_wire::repl::control::{Era, Refusal};

/// Whether two eras are the same one, whatever is said of where it began.
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

/// Whether somebody was promoted behind the era of number `at`. A source that has only lost the end of its log, and begun an
/// era of the same epoch, is who it was.
fn promoted(eras: &[Era], at: usize) -> bool {
    let behind = |era: &Era| eras.iter().skip(at).any(|later| later.epoch > era.epoch);
    eras.get(at).is_some_and(behind)
}

/// Positions, in both, of the last era that both know.
fn common(mine: &[Era], theirs: &[Era]) -> Option<(usize, usize)> {
    let known = |(i, era): (usize, &Era)| theirs.iter().position(|other| same(era, other)).map(|j| (i, j));
    mine.iter().enumerate().rev().find_map(known)
}

/// Compares histories; `None` where they have nothing in common.
pub(crate) fn fork(mine: &[Era], last: u64, theirs: &[Era]) -> Option<Fork> {
    let (i, j) = common(mine, theirs)?;
    let my_end = mine.get(i.saturating_add(1)).map_or(last, |next| next.after);
    let their_end = theirs.get(j.saturating_add(1)).map_or(u64::MAX, |next| next.after);
    Some(Fork { at: my_end.min(their_end), own_era: promoted(mine, i) })
}

/// What a source of one history says to that of another, who takes it for its destination: who came later counts, unless both
/// went their own way.
pub(crate) fn refusal(mine: &[Era], theirs: &[Era]) -> Refusal {
    let Some(own) = mine.last().copied() else { return Refusal::Invalid };
    // Of the same partnership, and apart for so many eras that where they part is forgotten.
    let Some((i, j)) = common(mine, theirs) else { return Refusal::SplitBrain(own) };
    if !promoted(mine, i) {
        // The other knows all of this history but what was lost, and perhaps more: this side learns of it by its own hello,
        // or is about to give up.
        return Refusal::Inconsistent;
    }
    // What the other wrote behind the point at which this side went on alone, or it did, is missing here.
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
    fn of_two_sources_the_later_one_counts_unless_both_went_on() {
        let (first, mine, theirs) = (era(1, 10, 0), era(2, 20, 5), era(2, 30, 7));
        assert_eq!(refusal(&[first, mine], &[first]), Refusal::Fenced(era(2, 20, 5)));
        assert_eq!(refusal(&[first, mine], &[first, theirs]), Refusal::SplitBrain(era(2, 20, 5)));
        assert_eq!(refusal(&[first, mine, era(3, 21, 9)], &[first]), Refusal::Fenced(era(3, 21, 5)));
        // A rightful successor, before this side knows of it.
        assert_eq!(refusal(&[first], &[first, theirs]), Refusal::Inconsistent);
        assert_eq!(refusal(&[first], &[first]), Refusal::Inconsistent);
        // One that was opened anew, and had lost the end of its log, is the same source.
        let again = era(1, 11, 4);
        assert_eq!(refusal(&[first, mine], &[first, again]), Refusal::Fenced(era(2, 20, 4)));
        assert_eq!(refusal(&[first, era(1, 11, 6), mine], &[first]), Refusal::Fenced(era(2, 20, 6)));
        assert_eq!(refusal(&[first, again], &[first, mine]), Refusal::Inconsistent);
        assert_eq!(
            refusal(&[first, mine], &[first, again, era(2, 30, 7)]),
            Refusal::SplitBrain(era(2, 20, 4))
        );
        // Where they part is forgotten.
        assert_eq!(refusal(&[era(40, 1, 9)], &[era(2, 11, 0)]), Refusal::SplitBrain(era(40, 1, 9)));
    }
}
