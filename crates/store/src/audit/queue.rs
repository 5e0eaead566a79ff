//! The queue between the cores and the thread that writes: bounded, and never waited for.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, SyncSender, TrySendError, channel, sync_channel};
use std::time::Duration;

use weft_machine::{LogLimit, rt};

use super::event::{Event, Kind, Wanted};

/// Events that wait to be written, at most.
pub const MOST_EVENTS: usize = 8192;
/// Memory that they occupy, at most.
pub const MOST_BYTES: usize = 16 << 20;

/// The interval between attempts to enter a full queue before the server ends.
const PAUSE: Duration = Duration::from_millis(10);

/// What the thread receives.
pub(super) enum Message {
    Event(Box<Event>),
    /// Opens the file anew, by its name.
    Reopen,
    /// Answers when everything before it is on the disk.
    Flush(Sender<()>),
}

/// What both ends count.
#[derive(Default)]
pub(super) struct Counts {
    /// Memory of the events in the queue.
    pub bytes: AtomicUsize,
    /// Events that were lost and not told yet.
    pub lost: AtomicU64,
}

impl Counts {
    /// Counts lost events, and warns at a bounded rate.
    pub fn lose(&self, events: u64, why: &dyn fmt::Display) {
        static LOST: LogLimit = LogLimit::new();
        self.lost.fetch_add(events, Ordering::Relaxed);
        if let Some(left_out) = LOST.pass(rt::now()) {
            tracing::warn!("audit log: {events} events are lost: {why}{left_out}");
        }
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
    pub fn tell(&self, event: Event) {
        let Some(told) = self.0.as_ref().filter(|told| told.wanted().takes(event.kind, &event.outcome))
        else {
            return;
        };
        let (counts, bytes) = (&told.counts, event.bytes());
        if counts.bytes.fetch_add(bytes, Ordering::Relaxed).saturating_add(bytes) > MOST_BYTES {
            counts.bytes.fetch_sub(bytes, Ordering::Relaxed);
            return counts.lose(1, &"its queue has reached its limit of memory");
        }
        match told.sender.try_send(Message::Event(Box::new(event))) {
            Ok(()) => {}
            Err(TrySendError::Full(_)) => {
                counts.bytes.fetch_sub(bytes, Ordering::Relaxed);
                counts.lose(1, &"its queue is full: the disk is slow, or hangs");
            }
            Err(TrySendError::Disconnected(_)) => {
                counts.bytes.fetch_sub(bytes, Ordering::Relaxed);
                counts.lose(1, &"its thread has ended");
            }
        }
    }

    /// Opens the file anew, because it was renamed (logrotate). False if the queue is full: try again later.
    #[must_use]
    pub fn reopen(&self) -> bool {
        self.0.as_ref().is_none_or(|told| told.sender.try_send(Message::Reopen).is_ok())
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
    use super::*;
    use crate::audit::event::{Outcome, Who};

    fn event(path: usize) -> Event {
        Event::now(Kind::Delete, Outcome::Done, Who::default()).on(vec![b'x'; path])
    }

    #[test]
    fn a_full_queue_loses_events_and_counts_them() {
        let (audit, receiver, counts) = queue(4, Wanted::ALL);
        (0..10).for_each(|_| audit.tell(event(1)));
        assert_eq!(counts.lost.load(Ordering::Relaxed), 6);
        assert_eq!(receiver.try_iter().count(), 4);
        assert!(!audit.flush(Duration::from_millis(1)), "nobody writes");
        assert!(audit.reopen());
    }

    #[test]
    fn the_memory_of_the_queue_is_bounded() {
        let (audit, receiver, counts) = queue(MOST_EVENTS, Wanted::ALL);
        (0..100).for_each(|_| audit.tell(event(MOST_BYTES / 10)));
        assert_eq!(receiver.try_iter().count(), 9);
        assert_eq!(counts.lost.load(Ordering::Relaxed), 91);
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
        assert!(Audit::default().flush(Duration::ZERO) && Audit::default().reopen());
    }
}
