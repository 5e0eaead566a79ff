//! The queue between the cores and the thread that writes: bounded, and never waited for.

use std::borrow::Cow;
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, SyncSender, TrySendError, channel, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use weft_machine::meter::Events;
use weft_machine::{LogLimit, rt};

use super::cut::cut;
use super::denials::{Denials, Take};
use super::event::{Event, Kind, Outcome, Wanted};

/// Events that wait to be written, at most.
pub const MOST_EVENTS: usize = 8192;
/// Memory that they occupy, at most.
pub const MOST_BYTES: usize = 16 << 20;

/// Events that were lost, in the whole process.
pub static LOST: Events = Events::new();

/// The interval between attempts to enter a full queue before the server ends.
const PAUSE: Duration = Duration::from_millis(10);

/// What the thread receives.
pub(super) enum Message {
    Event(Box<Event>),
    /// Opens the file anew, by its name.
    Reopen,
    /// There is something to tell that is not in the queue.
    Wake,
    /// Answers when everything before it is on the disk.
    Flush(Sender<()>),
}

/// What both ends count.
#[derive(Default)]
pub(super) struct Counts {
    /// Memory of the events in the queue.
    pub bytes: AtomicUsize,
    /// Events that were told and are neither written nor lost: those in the queue, and those that the thread is writing.
    pub pending: AtomicU64,
    /// Events that were lost and not told yet.
    pub lost: AtomicU64,
    /// All that were lost, and the latest reason.
    losses: Mutex<(u64, Cow<'static, str>)>,
    /// Why the file could not be opened anew, since the last time that it could.
    fault: Mutex<Option<String>>,
    /// What clients are denied.
    pub denials: Denials,
    /// The file is to be opened anew, and the queue had no room for [`Message::Reopen`].
    pub reopen: AtomicBool,
}

/// Events that were lost.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Losses {
    /// Their number.
    pub events: u64,
    /// The latest reason.
    pub why: String,
}

impl Counts {
    /// Counts lost events, and warns at a bounded rate.
    pub fn lose(&self, events: u64, why: impl Into<Cow<'static, str>>) {
        static TOLD: LogLimit = LogLimit::new();
        let why = why.into();
        self.lost.fetch_add(events, Ordering::Relaxed);
        LOST.add(events);
        if let Some(left_out) = TOLD.pass(rt::now()) {
            tracing::warn!("audit log: {events} events are lost: {why}{left_out}");
        }
        self.count(events, why);
    }

    /// Why lost events cannot be told.
    pub fn explain(&self, why: String) {
        self.count(0, why.into());
    }

    fn count(&self, events: u64, why: Cow<'static, str>) {
        let mut losses = self.losses.lock().unwrap_or_else(PoisonError::into_inner);
        losses.0 = losses.0.saturating_add(events);
        losses.1 = why;
    }

    /// Why the file could not be opened anew; none if it could.
    pub fn set_fault(&self, fault: Option<String>) {
        *self.fault.lock().unwrap_or_else(PoisonError::into_inner) = fault;
    }
}

/// The way to the audit log. Clones are cheap; without a log, telling an event costs one branch.
#[derive(Clone, Default)]
pub struct Audit(Option<Arc<Told>>);

struct Told {
    wanted: AtomicU32,
    sender: SyncSender<Message>,
    counts: Arc<Counts>,
}

impl fmt::Debug for Audit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.is_on() { "Audit(on)" } else { "Audit(off)" })
    }
}

/// A queue of at most `events` events, and its other end.
pub(super) fn queue(events: usize, wanted: Wanted) -> (Audit, Receiver<Message>, Arc<Counts>) {
    let (sender, receiver) = sync_channel(events);
    let counts = Arc::<Counts>::default();
    let told = Told { wanted: AtomicU32::new(wanted.bits()), sender, counts: counts.clone() };
    (Audit(Some(Arc::new(told))), receiver, counts)
}

impl Audit {
    /// Whether there is an audit log.
    pub fn is_on(&self) -> bool {
        self.0.is_some()
    }

    /// Whether an event of this kind would be told if it is done.
    pub fn wants(&self, kind: Kind) -> bool {
        self.0.as_ref().is_some_and(|told| told.wanted().has(kind))
    }

    /// Whether an event of this kind would be told if it is denied: the test before the outcome is known.
    pub fn may_want(&self, kind: Kind) -> bool {
        self.0.as_ref().is_some_and(|told| told.wanted().may_take(kind))
    }

    /// Tells these events from now on.
    pub fn set_wanted(&self, wanted: Wanted) {
        if let Some(told) = &self.0 {
            told.wanted.store(wanted.bits(), Ordering::Relaxed);
        }
    }

    /// Tells an event, unless it is not wanted. Never waits: if the queue is full, the event is lost and counted.
    pub fn tell(&self, mut event: Event) {
        let Some(told) = self.0.as_ref().filter(|told| told.wanted().takes(event.kind, &event.outcome))
        else {
            return;
        };
        if matches!(event.outcome, Outcome::Denied(_)) {
            let lines;
            (event, lines) = cut(event);
            let take = event.who.source.map(|source| told.counts.denials.take(source, lines, rt::now()));
            match take {
                None | Some(Take::Line) => {}
                Some(Take::Counted) => return,
                Some(Take::FirstCounted) => {
                    // A thread that does not wait for a message looks by itself.
                    let _ = told.sender.try_send(Message::Wake);
                    return;
                }
            }
        }
        let (counts, bytes) = (&told.counts, event.bytes());
        if counts.bytes.fetch_add(bytes, Ordering::Relaxed).saturating_add(bytes) > MOST_BYTES {
            counts.bytes.fetch_sub(bytes, Ordering::Relaxed);
            return counts.lose(1, "its queue has reached its limit of memory");
        }
        // Before the thread can be done with it.
        counts.pending.fetch_add(1, Ordering::Relaxed);
        let why = match told.sender.try_send(Message::Event(Box::new(event))) {
            Ok(()) => return,
            Err(TrySendError::Full(_)) => "its queue is full: the disk is slow, or hangs",
            Err(TrySendError::Disconnected(_)) => "its thread has ended",
        };
        counts.bytes.fetch_sub(bytes, Ordering::Relaxed);
        counts.lose(1, why);
        counts.pending.fetch_sub(1, Ordering::Relaxed);
    }

    /// What was lost since the start, if anything was.
    pub fn losses(&self) -> Option<Losses> {
        let losses = self.0.as_ref()?.counts.losses.lock().unwrap_or_else(PoisonError::into_inner);
        let (events, why) = (losses.0, losses.1.as_ref().to_owned());
        (events > 0).then_some(Losses { events, why })
    }

    /// What is missing in the file and not told there, if anything is: also what is not written yet.
    pub fn untold(&self) -> Option<Losses> {
        let counts = &self.0.as_ref()?.counts;
        let pending = counts.pending.load(Ordering::Relaxed);
        let lost = counts.lost.load(Ordering::Relaxed).saturating_add(counts.denials.left_out());
        let events = lost.saturating_add(pending);
        let why = match pending {
            0 => counts.losses.lock().unwrap_or_else(PoisonError::into_inner).1.as_ref().to_owned(),
            _ => "its disk does not answer".to_owned(),
        };
        (events > 0).then_some(Losses { events, why })
    }

    /// So many events were lost by an earlier run, which could not tell it. The next line does.
    pub fn lost_before(&self, events: u64) {
        if let Some(told) = &self.0 {
            told.counts.lost.fetch_add(events, Ordering::Relaxed);
        }
    }

    /// Why the file could not be opened anew, until it can.
    pub fn fault(&self) -> Option<String> {
        self.0.as_ref()?.counts.fault.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Opens the file anew, because it was renamed (logrotate): after the events that were told before or, if the queue is
    /// full, as soon as the thread is done with the write that it is at.
    pub fn reopen(&self) {
        let Some(told) = &self.0 else { return };
        if let Err(TrySendError::Full(message)) = told.sender.try_send(Message::Reopen) {
            told.counts.reopen.store(true, Ordering::SeqCst);
            // The thread may have emptied the queue since, and would wait. If it is still full, the thread looks again.
            let _ = told.sender.try_send(message);
        }
    }

    /// Waits at most this long until everything that was told is on the disk; false if it is not. Not for cores.
    #[must_use]
    pub fn flush(&self, patience: Duration) -> bool {
        let Some(told) = &self.0 else { return true };
        let (done, is_done) = channel();
        let mut left = patience;
        loop {
            match told.sender.try_send(Message::Flush(done.clone())) {
                Ok(()) => return is_done.recv_timeout(left).is_ok(),
                Err(TrySendError::Disconnected(_)) => return false,
                Err(TrySendError::Full(_)) => {}
            }
            left = match left.checked_sub(PAUSE) {
                Some(left) => left,
                None => return false,
            };
            std::thread::sleep(PAUSE);
        }
    }
}

impl Told {
    fn wanted(&self) -> Wanted {
        Wanted::from_bits(self.wanted.load(Ordering::Relaxed))
    }
}

#[cfg(test)]
mod tests {
    use weft_machine::Source;

    use super::*;
    use crate::audit::denials::BURST;
    use crate::audit::event::Who;

    fn event(path: usize) -> Event {
        Event::now(Kind::Delete, Outcome::Done, Who::default()).on(vec![b'x'; path])
    }

    #[test]
    fn a_full_queue_loses_events_and_counts_them() {
        let (audit, receiver, counts) = queue(4, Wanted::ALL);
        (0..10).for_each(|_| audit.tell(event(1)));
        assert_eq!(counts.lost.load(Ordering::Relaxed), 6);
        assert_eq!(audit.untold().map(|losses| losses.events), Some(10), "four of them wait");
        assert_eq!(receiver.try_iter().count(), 4);
        assert!(!audit.flush(Duration::from_millis(1)), "nobody writes");
        audit.reopen();
        assert!(matches!(receiver.try_iter().last(), Some(Message::Reopen)));
        assert!(!counts.reopen.load(Ordering::SeqCst), "there was room");
    }

    #[test]
    fn a_full_queue_does_not_forget_to_open_the_file_anew() {
        let (audit, receiver, counts) = queue(4, Wanted::ALL);
        (0..4).for_each(|_| audit.tell(event(1)));
        audit.reopen();
        assert!(counts.reopen.load(Ordering::SeqCst));
        assert_eq!(receiver.try_iter().count(), 4);
    }

    #[test]
    fn what_a_client_is_denied_is_counted_from_some_point_on_and_nothing_else_is() {
        let (audit, receiver, counts) = queue(MOST_EVENTS, Wanted::ALL);
        let who = |last| Who { source: Some(Source::V4([192, 0, 2, last].into())), ..Who::default() };
        let tell = |outcome: &Outcome, who: Who| audit.tell(Event::now(Kind::Open, outcome.clone(), who));
        let denied = Outcome::Denied("STATUS_ACCESS_DENIED".into());
        (0..3000).for_each(|_| tell(&denied, who(1)));
        let taken = receiver.try_iter().map(|message| matches!(message, Message::Wake)).collect::<Vec<_>>();
        let lines = taken.iter().filter(|wakes| !**wakes).count();
        // The burst, and what comes in the time that this takes.
        assert!((BURST as usize..1000).contains(&lines), "{lines} lines");
        assert_eq!(taken.len() - lines, 1, "the thread is woken once");
        assert_eq!(counts.lost.load(Ordering::Relaxed), 0, "nothing is lost by the queue");
        let left_out = counts.denials.due(rt::now(), false);
        assert_eq!(left_out.iter().map(|of| of.lines).sum::<u64>(), 3000 - lines as u64);
        (0..100).for_each(|_| tell(&Outcome::Done, who(1)));
        tell(&denied, who(2));
        tell(&denied, Who::default());
        assert_eq!(receiver.try_iter().count(), 102, "what is done, others, and the server's own");
    }

    #[test]
    fn text_of_a_client_that_is_refused_takes_no_room_from_what_others_do() {
        let (audit, receiver, counts) = queue(MOST_EVENTS, Wanted::ALL);
        let who = Who { source: Some(Source::V4([192, 0, 2, 1].into())), ..Who::default() };
        let denied = Event::now(Kind::Rename, Outcome::Denied("STATUS_ACCESS_DENIED".into()), who);
        let denied = denied.on("\u{200b}".repeat(1 << 16).into()).to("\u{200b}".repeat(1 << 16).into());
        (0..300).for_each(|_| audit.tell(denied.clone()));
        audit.tell(event(1));
        assert_eq!(counts.lost.load(Ordering::Relaxed), 0);
        let queued = receiver.try_iter().filter(|message| matches!(message, Message::Event(_))).count();
        // Each counts as nine lines, and some come in the time that this takes.
        assert!((50..100).contains(&queued), "{queued} events");
        assert!(counts.bytes.load(Ordering::Relaxed) < 1 << 20);
    }

    #[test]
    fn the_memory_of_the_queue_is_bounded() {
        let (audit, receiver, counts) = queue(MOST_EVENTS, Wanted::ALL);
        (0..100).for_each(|_| audit.tell(event(MOST_BYTES / 10)));
        assert_eq!(receiver.try_iter().count(), 9);
        assert_eq!(counts.lost.load(Ordering::Relaxed), 91);
    }

    #[test]
    fn the_latest_reason_of_a_loss_is_told_although_the_log_leaves_it_out() {
        let (audit, _receiver, counts) = queue(4, Wanted::ALL);
        (0..100).for_each(|n| counts.lose(1, format!("reason {n}")));
        assert_eq!(audit.losses(), Some(Losses { events: 100, why: "reason 99".into() }));
        counts.explain("the last".into());
        assert_eq!(audit.untold(), Some(Losses { events: 100, why: "the last".into() }));
        audit.lost_before(7);
        assert_eq!(audit.untold().map(|losses| losses.events), Some(107));
        assert_eq!(audit.losses().map(|losses| losses.events), Some(100), "since the start");
    }

    #[test]
    fn what_is_not_wanted_is_not_queued() {
        let (audit, receiver, _) = queue(4, Wanted::of(Kind::Rename));
        assert!(audit.wants(Kind::Rename) && !audit.wants(Kind::Delete));
        assert!(audit.may_want(Kind::Rename) && !audit.may_want(Kind::Delete));
        audit.set_wanted(Wanted::DENIED);
        assert!(audit.may_want(Kind::Delete) && !audit.wants(Kind::Delete));
        audit.set_wanted(Wanted::of(Kind::Rename));
        audit.tell(event(1));
        assert_eq!(receiver.try_iter().count(), 0);
        audit.set_wanted(Wanted::ALL);
        audit.tell(event(1));
        assert_eq!(receiver.try_iter().count(), 1);
        Audit::default().tell(event(1));
        Audit::default().reopen();
        assert!(Audit::default().flush(Duration::ZERO));
    }
}
