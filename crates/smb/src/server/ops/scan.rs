//! The position of a listing.
//!
//! Spec: [MS-FSA] 2.1.5.6.3. Owns the entries that were fetched but did not fit the client's buffer. Fetching them is in
//! [`super::query_directory`].

use weft_machine::Charge;
use weft_store::vfs::Timestamp;
use weft_wire::smb2::NtStatus;
use weft_wire::smb2::fscc::directory;
use weft_wire::smb2::query_directory::{Flags, Request};

use super::ahead::Ahead;
use super::pattern::Pattern;

/// The position of a listing.
#[derive(Default)]
pub(crate) struct Scan {
    /// `None` until the first request.
    pub(super) pattern: Option<Pattern>,
    /// Fetched entries that the client has not received; each with the position after it, 0 for `.` and `..`.
    pub(super) ready: Ahead,
    /// Position after the last entry that the client received.
    pub(super) given: u64,
    /// Times of the directory when `ready` was fetched; if they change, it is fetched again.
    pub(super) stamp: Option<(Timestamp, Timestamp)>,
    /// Where to continue in the store.
    pub(super) cookie: u64,
    /// `.` and `..` are in `ready`, or were already.
    pub(super) dots: bool,
    /// The store has no more entries.
    pub(super) end: bool,
    /// DFS links in this directory.
    pub(super) links: Vec<directory::Entry>,
    /// Distinguishes shares for clients with the POSIX extensions; `None` for others.
    pub(super) device: Option<u32>,
    /// Whether the entries are in Apple's form.
    pub(super) is_for_mac: bool,
    /// The charge for `ready` between two requests.
    held: Option<Charge>,
}

impl Scan {
    /// Restarts the listing if the request asks for it; returns whether this is the first query.
    pub(super) fn begin(&mut self, request: &Request) -> Result<bool, NtStatus> {
        let restart = request.flags.intersects(Flags::RESTART_SCANS | Flags::REOPEN);
        let first = self.pattern.is_none();
        if first || (restart && !request.pattern.is_empty()) {
            self.pattern = Some(Pattern::parse(&request.pattern)?);
        }
        if first || restart {
            let (pattern, held) = (self.pattern.take(), self.held.take());
            *self =
                Scan { pattern, held, device: self.device, is_for_mac: self.is_for_mac, ..Scan::default() };
        }
        Ok(first || restart)
    }

    /// Sets the form of the entries. Those that were fetched in the other form are fetched again.
    pub(super) fn set_form(&mut self, is_for_mac: bool) {
        if std::mem::replace(&mut self.is_for_mac, is_for_mac) != is_for_mac {
            self.drop_ahead();
        }
    }

    /// Drops entries that the client has not received; they are fetched again.
    pub(super) fn drop_ahead(&mut self) {
        self.ready.drop_stored();
        (self.cookie, self.end) = (self.given, false);
    }

    /// Charges the entries that stay until the next request to the account of their open; if they exceed the budget,
    /// they are dropped.
    pub(super) fn settle(&mut self, of_open: &Charge) {
        // Otherwise every folder that was ever listed would keep the memory of a batch.
        self.ready.shrink();
        let bytes = self.ready.bytes();
        let fits = match &self.held {
            Some(held) => held.set(bytes).is_ok(),
            None if bytes == 0 => true,
            None => {
                self.held = of_open.beside(bytes).ok();
                self.held.is_some()
            }
        };
        // Entries without a position in the store are at most the DFS links.
        if !fits && self.stamp.is_some() {
            self.drop_ahead();
            self.ready.shrink();
            self.held = None;
        }
    }

    /// The DFS link with this name.
    pub(super) fn link(&self, name: &str) -> Option<&directory::Entry> {
        // Usually there are none.
        let lower = || name.to_lowercase();
        self.links.iter().find(|link| link.name == name || link.name.to_lowercase() == lower())
    }
}
