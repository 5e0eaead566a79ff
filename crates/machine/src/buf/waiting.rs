//! A position in the queue for memory.

use std::fmt;
use std::sync::Arc;

use super::memory::Handle;

/// A request's position in the queue between two polls of it: empty until the request has to wait. Dropping it leaves
/// the queue and releases what was granted meanwhile, so that the next request is served.
#[derive(Default)]
pub struct Waiting(Option<QueuedRequest>);

pub(super) struct QueuedRequest {
    pub(super) share: Arc<Handle>,
    pub(super) id: u64,
    pub(super) orders: Vec<u8>,
}

impl fmt::Debug for Waiting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Waiting").field(&self.0.as_ref().map(|place| place.id)).finish()
    }
}

impl Waiting {
    /// Whether no request waits.
    pub fn is_empty(&self) -> bool {
        self.0.is_none()
    }

    /// Leaves the queue.
    pub fn leave(&mut self) {
        if let Some(QueuedRequest { share, id, .. }) = self.0.take() {
            share.give_up(id);
        }
    }

    /// Whether this waits for exactly these blocks of `share`.
    pub(super) fn is_for(&self, share: &Arc<Handle>, orders: &[u8]) -> bool {
        self.0.as_ref().is_some_and(|place| Arc::ptr_eq(&place.share, share) && place.orders == orders)
    }

    pub(super) fn place(&self) -> Option<u64> {
        self.0.as_ref().map(|place| place.id)
    }

    pub(super) fn enter(&mut self, place: QueuedRequest) {
        self.0 = Some(place);
    }

    /// The request was granted and fetched: nothing is left to release.
    pub(super) fn served(&mut self) {
        self.0 = None;
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        self.leave();
    }
}
