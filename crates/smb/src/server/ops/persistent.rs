//! The state of a persistent handle, which has a record in the journal.
//!
//! Spec: [MS-SMB2] 3.3.1.10 (Open.IsPersistent). Records are written in [`super::recording`] and read in
//! [`super::restore`].

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use futures_util::lock::Mutex;
use weft_machine::Charge;
use weft_machine::budget::Full;
use weft_store::opens::Rights as Sharing;
use weft_store::vfs::Stable;
use weft_wire::smb2::access::AccessMask;

use crate::server::journal::{Journal, Record};

/// The charge for a path, in multiples of its length: pages of the journal are half full.
pub(super) const RECORD_COPIES: usize = 2;

/// The state that an open needs for its record.
pub(crate) struct Persistent {
    pub(super) journal: Journal,
    pub(super) share: Arc<str>,
    pub(super) sharing: Sharing,
    /// DesiredAccess.
    pub(super) desired: AccessMask,
    /// The share's root.
    pub(super) root: Stable,
    pub(super) file: Stable,
    /// The charge for the record's path. Changes only while `gone` is held.
    pub(super) path_bytes: AtomicUsize,
    /// Held by the writer of a record, rather than by the waiter, from building it until it is on disk, so that an
    /// older record never follows a newer one. True once the record is removed for good.
    pub(super) gone: Arc<Mutex<bool>>,
}

impl Persistent {
    /// Charges the record to the account of its open. Only its path counts; the charges for an open and a lock cover the
    /// rest.
    pub(super) fn charge(&self, held: &Charge, record: &Record) -> Result<(), Full> {
        let (bytes, charged) = (RECORD_COPIES.saturating_mul(record.path.len()), &self.path_bytes);
        let before = charged.load(Ordering::Relaxed);
        match bytes.checked_sub(before) {
            Some(more) => held.grow(more)?,
            None => held.shrink(before.saturating_sub(bytes)),
        }
        charged.store(bytes, Ordering::Relaxed);
        Ok(())
    }

    /// Removes the record of the open with this number, which is closed.
    pub(super) async fn forget(&self, id: u64) {
        let mut guard = self.gone.clone().lock_owned().await;
        if std::mem::replace(&mut *guard, true) {
            return;
        }
        if let Err(e) = self.journal.forget(vec![id], guard).await {
            tracing::error!("a closed persistent handle may come back: cannot remove its record: {e}");
        }
    }
}
