//! The reports that the sides of a group exchange about being stopped.
//!
//! See [`super::setup::Ask::Stopped`] and [`super::setup::Ask::Goes`]. This module owns the received reports, by
//! speaker, and decides when a report is repeated.

use std::collections::BTreeMap;
use std::time::Duration;

use futures_util::future::{Either, join_all, select};
use serde::{Deserialize, Serialize};
use weft_machine::clock::Time;
use weft_machine::rt;
use weft_replica::group::Cause;

use super::most::Most;

/// How often a stopped group reports to its partners, and how long a report is valid there.
const SAY_STOPPED_EVERY: Duration = Duration::from_secs(10);
const STOPPED_COUNTS: Duration = Duration::from_secs(35);
/// How often it reports that it runs again, until a partner confirms that or it no longer matters.
const SAY_GOES_EVERY: Duration = Duration::from_secs(1);
/// The longest stored reason of another server, in bytes.
const MOST_REASON: usize = 1024;
/// The longest stored name and cause, in bytes.
const MOST_NAME: usize = 255;
/// Number of speakers remembered: a source and its other destinations.
const MOST_SPEAKERS: usize = 32;

/// Identifies a speaker and orders its reports.
#[derive(Serialize, Deserialize, Clone, Copy, Debug, Default, PartialEq, Eq)]
#[serde(default)]
pub(super) struct Mark {
    /// A random number of one side of a group. Zero from a server that does not send it.
    pub speaker: u64,
    /// The number of this speaker's report.
    pub number: u64,
}

/// The received reports, by speaker.
#[derive(Debug, Default)]
pub(super) struct Heard(BTreeMap<u64, Word>);

/// Why a partner is stopped, in its own words.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Reason {
    /// Its own sentence, where "here" is that host.
    pub why: String,
    /// One of [`word_of`]; empty from a server that does not send it.
    pub cause: String,
    /// Its host; empty from a server that does not send it.
    pub host: String,
    /// The side with the most data, as far as it knows.
    pub most: Most,
}

/// The word for a cause in messages.
pub(super) fn word_of(cause: Cause) -> &'static str {
    match cause {
        Cause::Journal => "journal",
        Cause::Volume => "volume",
        Cause::Log => "log",
        Cause::Split => "split",
        Cause::SetBack => "set-back",
        Cause::Over => "over",
        Cause::Full => "full",
        Cause::Failed => "failed",
    }
}

impl Reason {
    /// The reason in this side's words. This side is a copy with everything through a record of an epoch, or not a
    /// copy.
    pub fn told(&self, group: &str, copy: Option<(u64, u64)>) -> String {
        let Reason { why, cause, host, most } = self;
        let what = match cause.as_str() {
            "journal" => "its journal is lost or unreliable",
            "volume" => "the file of a volume was replaced",
            "log" => "its log is damaged",
            "split" => "both sides were written to",
            "set-back" => "it was set back to a backup or snapshot, and lacks records that a copy has",
            "over" => "after its start, another side answered that it has ended the partnership",
            "full" => "a disk is full there; it continues by itself when there is room",
            // Its reason names what must be fixed.
            "failed" if !host.is_empty() => return format!("{host}: where \"here\" is {host}, {why}"),
            _ => return why.clone(),
        };
        let host = if host.is_empty() { "the other host" } else { host };
        let there = format!("`weft replica status` on {host} says what to type");
        let lacks_something = matches!(cause.as_str(), "journal" | "volume" | "log" | "set-back");
        match copy.filter(|_| lacks_something).map(|(epoch, last)| most.missing(epoch, last)) {
            Some(Some(missing)) => format!(
                "{host}: {what}; {missing}: run `weft replica switch {group} --failover` on {}, not here. {there}",
                most.holder
            ),
            Some(None) => {
                let unasked = most.unasked();
                let unasked = if unasked.is_empty() { unasked } else { format!(" ({unasked})") };
                format!(
                    "{host}: {what}; to continue with this copy{unasked}: `weft replica switch {group} --failover` here, then `weft replica \
                     resolve {group} --keep there` on {host}. {there}"
                )
            }
            None => format!("{host}: {what}. {there}"),
        }
    }
}

#[derive(Debug)]
struct Word {
    number: u64,
    at: Time,
    /// `None`: it is running again.
    said: Option<Reason>,
}

impl Heard {
    /// A partner reports that it is stopped, and why.
    pub fn stopped(&mut self, mark: Mark, mut said: Reason, now: Time) {
        for (text, most) in
            [(&mut said.why, MOST_REASON), (&mut said.cause, MOST_NAME), (&mut said.host, MOST_NAME)]
        {
            let most = (0..=most.min(text.len())).rev().find(|at| text.is_char_boundary(*at));
            text.truncate(most.unwrap_or_default());
        }
        said.host.retain(|letter| !letter.is_control());
        said.most.keep_short();
        self.hear(mark, Some(said), now);
    }

    /// A partner reports that it is no longer stopped.
    pub fn goes(&mut self, mark: Mark, now: Time) {
        self.hear(mark, None, now);
    }

    fn hear(&mut self, mark: Mark, said: Option<Reason>, now: Time) {
        // A later report may arrive first.
        let newer = |word: &Word| word.number > mark.number && now.since(word.at) < STOPPED_COUNTS;
        if self.0.get(&mark.speaker).is_some_and(newer) {
            return;
        }
        self.0.insert(mark.speaker, Word { number: mark.number, at: now, said });
        if self.0.len() > MOST_SPEAKERS
            && let Some(oldest) = self.0.iter().min_by_key(|(_, word)| word.at).map(|(speaker, _)| *speaker)
        {
            self.0.remove(&oldest);
        }
    }

    /// Why a partner is stopped, and how long ago it said so: the most recent valid report.
    pub fn latest(&self, now: Time) -> Option<(Reason, Duration)> {
        let counts =
            self.0.values().filter(|word| now.since(word.at) < STOPPED_COUNTS && word.said.is_some());
        let last = counts.max_by_key(|word| word.at)?;
        Some((last.said.clone()?, now.since(last.at)))
    }
}

/// The state that a group reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Now {
    /// Stopped, as when this began.
    Stopped,
    /// Trying again.
    Starting,
    /// Running.
    Goes,
    /// Nothing more to report: it is stopped again, the partner has left, or the server is ending.
    Over,
}

/// Tells all partners in parallel that a group is stopped, as long as it is, and then that it is not, until that has
/// arrived. `changes` waits until the state differs from the given one; `say` sends a state and returns whether it
/// arrived.
pub(super) async fn say_to_all<P>(
    partners: &[P],
    now: impl Fn(&P) -> Now,
    changes: impl AsyncFn(Now),
    say: impl AsyncFn(&P, Now) -> bool,
) {
    let each = partners
        .iter()
        .map(|partner| say_to_one(|| now(partner), &changes, async |what: Now| say(partner, what).await));
    join_all(each).await;
}

async fn say_to_one(now: impl Fn() -> Now, changes: impl AsyncFn(Now), say: impl AsyncFn(Now) -> bool) {
    while now() == Now::Stopped {
        let said = async {
            say(Now::Stopped).await;
            rt::sleep(SAY_STOPPED_EVERY).await;
        };
        until_first(said, changes(Now::Stopped)).await;
    }
    if now() == Now::Starting {
        changes(Now::Starting).await;
    }
    // After this time the report is no longer valid there.
    let begun = rt::now();
    while now() == Now::Goes && rt::now().since(begun) < STOPPED_COUNTS {
        let said = async {
            let arrived = say(Now::Goes).await;
            if !arrived {
                rt::sleep(SAY_GOES_EVERY).await;
            }
            arrived
        };
        if until_first(said, changes(Now::Goes)).await == Some(true) {
            return;
        }
    }
}

/// The first future's result, unless the second completes before it.
async fn until_first<T>(first: impl Future<Output = T>, second: impl Future<Output = ()>) -> Option<T> {
    match select(std::pin::pin!(first), std::pin::pin!(second)).await {
        Either::Left((done, _)) => Some(done),
        Either::Right(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use std::cell::{Cell, RefCell};

    use weft_machine::sim::Sim;

    use super::*;

    const A: u64 = 7;
    const B: u64 = 8;

    fn says(why: &str) -> Reason {
        Reason { why: why.into(), host: "ä".repeat(MOST_NAME), ..Reason::default() }
    }

    fn why(heard: &Heard, now: Time) -> Option<String> {
        heard.latest(now).map(|(said, _)| said.told("db", None))
    }

    #[test]
    fn a_reason_is_told_in_the_words_of_whoever_reads_it() {
        let mut said = Reason {
            why: "`--keep there` here".into(),
            cause: "set-back".into(),
            host: "alpha".into(),
            ..Reason::default()
        };
        let copy = said.told("db", Some((1, 7)));
        assert!(
            copy.contains("`weft replica switch db --failover` here")
                && copy.contains("--keep there` on alpha"),
            "{copy}"
        );
        assert!(!copy.contains(&said.why), "{copy}");
        for cause in [
            Cause::Journal,
            Cause::Volume,
            Cause::Log,
            Cause::Split,
            Cause::SetBack,
            Cause::Over,
            Cause::Full,
            Cause::Failed,
        ] {
            said.cause = word_of(cause).into();
            assert!(said.told("db", None).starts_with("alpha: "), "{cause:?}");
        }
        // From another version.
        said.cause = "moon".into();
        assert_eq!(said.told("db", Some((1, 7))), said.why);
    }

    #[test]
    fn only_the_copy_that_has_most_is_told_to_take_over() {
        for cause in ["set-back", "journal", "volume", "log"] {
            let most = Most {
                epoch: 1,
                last: 8009,
                holder: "beta".to_owned().into(),
                silent: vec!["gamma".to_owned().into()],
            };
            let said =
                Reason { why: String::new(), cause: cause.into(), host: "alpha".into(), most: most.clone() };
            let lags = said.told("db", Some((1, 1491)));
            assert!(lags.contains("this copy lacks records 1492 to 8009; beta has them"), "{lags}");
            assert!(!lags.contains("--failover` here"), "{lags}");
            let whole = said.told("db", Some((1, 8009)));
            assert!(whole.contains("`weft replica switch db --failover` here"), "{whole}");
            assert!(whole.contains("gamma could not be asked and may have more"), "{whole}");
            // Another side was promoted since.
            let later = Reason { most: Most { epoch: 2, last: 1491, ..most }, ..said };
            assert!(!later.told("db", Some((1, 8009))).contains("--failover` here"));
        }
    }

    fn mark(speaker: u64, number: u64) -> Mark {
        Mark { speaker, number }
    }

    #[test]
    fn one_partner_that_goes_leaves_what_another_has_said() {
        let (mut heard, now) = (Heard::default(), rt::now());
        heard.stopped(mark(A, 0), says("a disk is full"), now);
        heard.stopped(mark(B, 0), says("a journal is lost"), now);
        heard.goes(mark(B, 1), now);
        assert_eq!(why(&heard, now).as_deref(), Some("a disk is full"));
        assert_eq!(why(&heard, now + STOPPED_COUNTS), None);
        heard.goes(mark(A, 1), now);
        assert_eq!(why(&heard, now), None);
    }

    #[test]
    fn what_arrives_late_does_not_count() {
        let (mut heard, now) = (Heard::default(), rt::now());
        heard.stopped(mark(A, 2), says("again"), now);
        heard.goes(mark(A, 1), now);
        heard.stopped(mark(A, 0), says("before"), now);
        assert_eq!(why(&heard, now).as_deref(), Some("again"));
        // A server whose clock was set back restarts its numbers there.
        let later = now + STOPPED_COUNTS;
        heard.goes(mark(A, 1), later);
        assert_eq!(why(&heard, later), None);
        heard.stopped(mark(A, 2), says("again"), now);
        // A server that does not number its reports.
        heard.stopped(mark(0, 0), says("an older one"), now + SAY_GOES_EVERY);
        assert_eq!(why(&heard, now + SAY_GOES_EVERY).as_deref(), Some("an older one"));
        heard.goes(mark(0, 0), now + SAY_GOES_EVERY);
        assert_eq!(why(&heard, now).as_deref(), Some("again"));
    }

    #[test]
    fn speakers_and_reasons_are_bounded() {
        let (mut heard, now) = (Heard::default(), rt::now());
        for speaker in 0..1000 {
            let most = Most {
                last: 1,
                holder: "x".repeat(MOST_REASON).into(),
                silent: vec!["x".repeat(MOST_REASON).into(); 1000],
                ..Most::default()
            };
            heard.stopped(mark(speaker, 0), Reason { most, ..says(&"ä".repeat(MOST_REASON)) }, now);
        }
        assert_eq!(heard.latest(now).map(|(said, _)| said.most), Some(Most::default()));
        assert_eq!(heard.0.len(), MOST_SPEAKERS);
        assert!(why(&heard, now).is_some_and(|why| why.len() <= MOST_REASON));
    }

    /// The states told to a partner that can be reached after `hears_after`, by a group that runs after 25 s, and is
    /// `then` after 40 s.
    fn said(hears_after: u64, then: Now) -> Vec<(u64, Now)> {
        let said = RefCell::new(Vec::new());
        Sim::new(3).run(async {
            let begun = rt::now();
            let seconds = || rt::now().since(begun).as_secs();
            let now = || match seconds() {
                0..25 => Now::Stopped,
                25..40 => Now::Goes,
                _ => then,
            };
            let changes = async |was: Now| {
                while now() == was {
                    rt::sleep(Duration::from_millis(100)).await;
                }
            };
            let tell = async |what: Now| {
                said.borrow_mut().push((seconds(), what));
                if seconds() < hears_after {
                    // Nobody answers.
                    rt::sleep(Duration::from_secs(3)).await;
                }
                seconds() >= hears_after
            };
            say_to_one(now, changes, tell).await;
        });
        said.into_inner()
    }

    #[test]
    fn that_it_goes_is_said_until_it_arrives() {
        let stopped = [(0, Now::Stopped), (10, Now::Stopped), (20, Now::Stopped)];
        assert_eq!(said(0, Now::Goes), [&stopped[..], &[(25, Now::Goes)]].concat());
        let lost = said(30, Now::Goes);
        assert_eq!(lost[lost.len() - 2..], [(25, Now::Goes), (29, Now::Goes)]);
        // Until the report is no longer valid there.
        let last = said(1000, Now::Goes).last().copied();
        assert!(last.is_some_and(|(at, _)| (55..60).contains(&at)), "{last:?}");
    }

    #[test]
    fn that_it_goes_is_not_said_when_it_is_stopped_again() {
        let last = said(1000, Now::Over).last().copied();
        assert!(last.is_some_and(|(at, what)| what == Now::Goes && at < 40), "{last:?}");
    }

    #[test]
    fn a_partner_that_does_not_answer_keeps_no_other_waiting() {
        let heard = Cell::new(false);
        Sim::new(3).run(async {
            let never = async |_: Now| std::future::pending::<()>().await;
            let tell = async |partner: &u64, _: Now| {
                if *partner == A {
                    std::future::pending::<()>().await;
                }
                heard.set(true);
                true
            };
            let all = say_to_all(&[A, B], |_| Now::Goes, never, tell);
            assert!(rt::timeout(Duration::from_secs(1), all).await.is_err());
        });
        assert!(heard.get());
    }
}
