//! How long one request may take in total, and what the user is told about waiting.
//!
//! A [`Patience`] holds the limit and the pauses of one request, whatever delays it: lost connections, sessions that
//! are created again, a busy server (RFC 1813 2.6, NFS3ERR_JUKEBOX; RFC 8881 15.1.1.3, DELAY). It does not send the
//! request.
//!
//! The first attempt ends when the server has been silent for the limit: on a slow path, much data may be queued
//! before its reply. Once a request has to be repeated, it has a fixed deadline.

use std::cell::Cell;
use std::fmt;
use std::time::Duration;

use weft_machine::{Time, rt};
use weft_wire::nfs3::Status;

use super::Error;

/// How long a server that owes a reply may be silent or unreachable.
pub(super) const SILENCE: Duration = Duration::from_secs(90);
/// The same while the server makes written data durable: a slow disk may have much to write, and no server reports
/// its progress.
pub(super) const DURABLE: Duration = Duration::from_secs(180);
/// How long a server may be busy. Servers say so while another client gives back what it caches of a file, which may
/// take half a minute, or a lease.
pub(super) const BUSY: Duration = Duration::from_secs(180);
/// Shortest and longest pause between attempts.
const PAUSES: (Duration, Duration) = (Duration::from_millis(20), Duration::from_secs(2));
/// A reply overtakes an outstanding call if its own call was sent later by more than the limit divided by this.
const OVERTAKES: u32 = 3;

/// The time limit of one request.
pub(crate) struct Patience {
    begun: Time,
    silence: Duration,
    /// The deadline; `None` while the first attempt lasts.
    until: Cell<Option<Time>>,
    pause: Cell<Duration>,
    told: Cell<bool>,
}

/// What a connection needs to know about a request that waits on it.
#[derive(Clone, Copy)]
pub(crate) struct Due {
    /// When it was sent on this connection.
    pub sent: Time,
    /// The deadline, as in [`Patience`].
    pub until: Option<Time>,
    /// How long the server may be silent.
    pub silence: Duration,
}

impl Due {
    /// When the request ends if nothing has been received since `heard`.
    pub fn end(&self, heard: Time) -> Time {
        self.until.unwrap_or_else(|| self.sent.max(heard) + self.silence)
    }

    /// When the request ends if the server answers requests that were sent later.
    pub fn passed_over(&self) -> Time {
        self.sent + self.silence
    }

    /// Whether the reply to a call sent at `later` has overtaken this one's.
    pub fn is_overtaken(&self, later: Time) -> bool {
        later.since(self.sent) >= self.silence.checked_div(OVERTAKES).unwrap_or(self.silence)
    }
}

impl Patience {
    /// Starts now.
    pub fn new() -> Patience {
        Patience {
            begun: rt::now(),
            silence: SILENCE,
            until: Cell::new(None),
            pause: Cell::new(PAUSES.0),
            told: Cell::new(false),
        }
    }

    /// For a request that makes written data durable.
    pub fn durable() -> Patience {
        Patience { silence: DURABLE, ..Patience::new() }
    }

    /// Limits the remaining time to `limit`.
    pub(super) fn hurry(&self, limit: Duration) {
        let soon = rt::now() + limit;
        self.until.set(Some(self.end().min(soon)));
    }

    /// The limits for a connection on which the request is sent now.
    pub(super) fn due(&self) -> Due {
        let until = self.until.get();
        // The first attempt is sent as soon as the request begins, which saves reading the clock.
        let sent = if until.is_some() { rt::now() } else { self.begun };
        Due { sent, until, silence: self.silence }
    }

    /// When the request ends if the server cannot be reached.
    pub(super) fn end(&self) -> Time {
        self.until.get().unwrap_or(self.begun + self.silence)
    }

    /// The request's connection, on which something was last received at `heard`, is lost, or there is none. Returns
    /// the time left.
    pub(super) fn lost(&self, heard: Time) -> Duration {
        let end = match self.until.get() {
            Some(until) => until,
            None => self.begun.max(heard) + self.silence,
        };
        self.until.set(Some(end));
        end.since(rt::now())
    }

    /// How much of the limit for an unreachable server has passed.
    pub(super) fn so_far(&self) -> Duration {
        self.silence.saturating_sub(self.end().since(rt::now()))
    }

    /// Whether no time is left.
    pub(super) fn is_over(&self) -> bool {
        self.until.get().is_some_and(|until| rt::now() >= until)
    }

    /// The error that reports the limit exceeded.
    pub(super) fn late(&self) -> Error {
        Error::Late(self.until.get().map_or(self.silence, |until| until.since(self.begun)))
    }

    /// The server reports that it is busy. Waits, and returns whether to repeat the request.
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
        // The last attempts lie closer together, so that the announced time is used up.
        rt::sleep(pause.min(left.checked_div(2).unwrap_or(left))).await;
        self.pause.set(pause.saturating_mul(2).min(PAUSES.1));
        true
    }

    /// The same for version 3: returns whether to repeat a request that failed with `e`.
    pub async fn again(&self, e: &Error) -> bool {
        matches!(e, Error::Status(Status::JUKEBOX))
            && self.busy(format_args!("the server is busy, or waiting for another client ({e})")).await
    }
}

/// What the user was told about a server that does not answer, shared by all its connections.
#[derive(Default)]
pub(crate) struct Told {
    /// Whether anything is reported. Not while a mount is made: its caller has a limit and reports that itself.
    pub tells: Cell<bool>,
    /// Nothing more is reported before this time.
    until: Cell<Option<Time>>,
}

impl Told {
    /// Reports once for all requests what the server fails to do, what we do meanwhile, and for how long.
    pub fn tell(&self, until: Time, what: fmt::Arguments<'_>) {
        let now = rt::now();
        let left = until.since(now);
        if self.tells.get() && !left.is_zero() && self.until.get().is_none_or(|told| now >= told) {
            self.until.set(Some(until));
            tracing::warn!("{what} for {} s at most", left.as_secs());
        }
    }

    /// The server has sent something, so the next silence is reported again.
    pub fn heard(&self) {
        self.until.set(None);
    }
}
