//! How long one request may take in all, and what the user is told of it.
//!
//! Spec: RFC 1813 2.6 (NFS3ERR_JUKEBOX), RFC 8881 15.1.1.3 (DELAY). Owns: the limit and the pauses of one request, whatever it takes:
//! connections that are lost, sessions that are made anew, a server that is busy. Does not: make the request.
//!
//! A request that waits for the first time is over when the server has said nothing for so long: on a slow path much may
//! be in front of its answer. Once it has to be made again there is a moment at which it ends, whatever comes.

use std::cell::Cell;
use std::fmt;
use std::time::Duration;

use weft_machine::{Time, rt};
use weft_wire::nfs3::Status;

use super::Error;

/// How long a server that owes an answer may say nothing, or be away.
pub(super) const SILENCE: Duration = Duration::from_secs(90);
/// The same while it makes durable what was written: a slow disk may have much of it, and no server tells how far it is.
pub(super) const DURABLE: Duration = Duration::from_secs(180);
/// How long a server may be busy. Servers say so while somebody else's client gives back what it caches of a file, which may
/// take half a minute, or a lease.
pub(super) const BUSY: Duration = Duration::from_secs(180);
/// The pauses between attempts grow from here to there.
const PAUSES: (Duration, Duration) = (Duration::from_millis(20), Duration::from_secs(2));
/// A call that was answered although it was sent by this part of a limit later than another has overtaken that one.
const OVERTAKES: u32 = 3;

/// Of one request.
pub(crate) struct Patience {
    begun: Time,
    silence: Duration,
    /// When it is over; `None` as long as it was made once.
    until: Cell<Option<Time>>,
    pause: Cell<Duration>,
    told: Cell<bool>,
}

/// What the connection has to know on which a request waits.
#[derive(Clone, Copy)]
pub(crate) struct Due {
    /// When it was sent there.
    pub sent: Time,
    /// See [`Patience`].
    pub until: Option<Time>,
    /// How long the server may say nothing.
    pub silence: Duration,
}

impl Due {
    /// When the request is over where nothing has come since `heard`.
    pub fn end(&self, heard: Time) -> Time {
        self.until.unwrap_or_else(|| self.sent.max(heard) + self.silence)
    }

    /// When the request is over where the server answers those that are sent later.
    pub fn passed_over(&self) -> Time {
        self.sent + self.silence
    }

    /// Whether the answer to a call that was sent at `later` has overtaken this one's.
    pub fn is_overtaken(&self, later: Time) -> bool {
        later.since(self.sent) >= self.silence.checked_div(OVERTAKES).unwrap_or(self.silence)
    }
}

impl Patience {
    /// From now on.
    pub fn new() -> Patience {
        Patience {
            begun: rt::now(),
            silence: SILENCE,
            until: Cell::new(None),
            pause: Cell::new(PAUSES.0),
            told: Cell::new(false),
        }
    }

    /// For a request that makes durable what was written.
    pub fn durable() -> Patience {
        Patience { silence: DURABLE, ..Patience::new() }
    }

    /// From now on it is over in so long at most.
    pub(super) fn hurry(&self, limit: Duration) {
        let soon = rt::now() + limit;
        self.until.set(Some(self.end().min(soon)));
    }

    /// For a connection on which it is sent now.
    pub(super) fn due(&self) -> Due {
        let until = self.until.get();
        // The first time it is sent as soon as it has begun, which saves a look at the clock.
        let sent = if until.is_some() { rt::now() } else { self.begun };
        Due { sent, until, silence: self.silence }
    }

    /// When it is over if the server is not reached.
    pub(super) fn end(&self) -> Time {
        self.until.get().unwrap_or(self.begun + self.silence)
    }

    /// Its connection, from which something came last at `heard`, is lost, or there is none. What is left.
    pub(super) fn lost(&self, heard: Time) -> Duration {
        let end = match self.until.get() {
            Some(until) => until,
            None => self.begun.max(heard) + self.silence,
        };
        self.until.set(Some(end));
        end.since(rt::now())
    }

    /// How much has passed of the limit that it has when the server is away.
    pub(super) fn so_far(&self) -> Duration {
        self.silence.saturating_sub(self.end().since(rt::now()))
    }

    /// Whether nothing is left.
    pub(super) fn is_over(&self) -> bool {
        self.until.get().is_some_and(|until| rt::now() >= until)
    }

    /// That it was over.
    pub(super) fn late(&self) -> Error {
        Error::Late(self.until.get().map_or(self.silence, |until| until.since(self.begun)))
    }

    /// The server says that it is busy. Waits; whether the request is to be made again then.
    pub async fn busy(&self, what: fmt::Arguments<'_>) -> bool {
        let until = self.begun + BUSY;
        self.until.set(Some(until));
        let (left, pause) = (until.since(rt::now()), self.pause.get());
        if left < PAUSES.0 {
            return false;
        }
        if pause >= PAUSES.1 && !self.told.replace(true) {
            tracing::warn!("{what}; waiting for {} s at most", left.as_secs());
        }
        // The last attempts lie closer together: what is told is used up.
        rt::sleep(pause.min(left.checked_div(2).unwrap_or(left))).await;
        self.pause.set(pause.saturating_mul(2).min(PAUSES.1));
        true
    }

    /// The same by version 3: whether a request that failed like this is to be made again.
    pub async fn again(&self, e: &Error) -> bool {
        matches!(e, Error::Status(Status::JUKEBOX))
            && self.busy(format_args!("the server is busy, or waits for another client ({e})")).await
    }
}

/// What the user was told of a server that does not answer, by all connections to it.
#[derive(Default)]
pub(crate) struct Told {
    /// Whether there is anything to tell: not while a mount is made, which has a limit of its caller's, who tells it.
    pub tells: Cell<bool>,
    /// Until then nobody is told again.
    until: Cell<Option<Time>>,
}

impl Told {
    /// Tells once for all requests what the server does not do and we do meanwhile, and for how long.
    pub fn tell(&self, until: Time, what: fmt::Arguments<'_>) {
        let now = rt::now();
        let left = until.since(now);
        if self.tells.get() && !left.is_zero() && self.until.get().is_none_or(|told| now >= told) {
            self.until.set(Some(until));
            tracing::warn!("{what} for {} s at most", left.as_secs());
        }
    }

    /// The server has said something: another silence is told again.
    pub fn heard(&self) {
        self.until.set(None);
    }
}
