//! The table of opens: share modes, locks of both kinds, and caching rights with their recalls.

mod grants;
mod locks;
mod reclaim;
mod shares;

use std::task::{Wake, Waker};

use super::*;

const NODE: NodeId = NodeId(7);

fn table() -> Arc<Opens> {
    Arc::new(Opens::default())
}

fn range(offset: u64, len: u64) -> Range {
    Range::new(offset, len).unwrap()
}

fn open(t: &Arc<Opens>, access: Rights, share: Rights) -> Result<Open, Refused> {
    t.try_open(NODE, &Opening::new(access, share, t.key()))
}

struct Woken(AtomicUsize);

impl Woken {
    fn new() -> (Arc<Woken>, Waker) {
        let woken = Arc::new(Woken(AtomicUsize::new(0)));
        (woken.clone(), Waker::from(woken))
    }
}

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}
