//! For tests of the protocols, which include this file: counts the recalls of a cached directory.

use std::sync::atomic::{AtomicUsize, Ordering};

use weft_store::opens::{Holder, Recall};

#[derive(Default)]
pub struct Recalled(pub AtomicUsize);

impl Holder for Recalled {
    fn recall(&self, _: Recall) -> bool {
        self.0.fetch_add(1, Ordering::SeqCst);
        false
    }
}
