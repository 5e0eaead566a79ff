//! Logs limits that were reached.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use weft_machine::{Time, rt};

/// Logs that a limit was reached, and how to raise it if possible; at most every ten seconds, because limits are
/// usually reached again and again.
pub(super) fn reached(what: &'static str) {
    const PAUSE: Duration = Duration::from_secs(10);
    static LAST: Mutex<Option<(&str, Time)>> = Mutex::new(None);
    let now = rt::now();
    let mut last = LAST.lock().unwrap_or_else(PoisonError::into_inner);
    if last.is_none_or(|(known, at)| known != what || now >= at + PAUSE || now < at) {
        *last = Some((what, now));
        drop(last);
        tracing::warn!("limit reached: {what}");
    }
}
