//! How much memory clients can make the server keep by NFSv4 and NLM, all together and from one address.
//!
//! Whatever is kept for a client holds a [`Charge`], which gives its bytes back when it is dropped: client records, sessions
//! with all replies that their slots may keep, owners, opens, locks with their byte ranges, and delegations; of NLM hosts,
//! owners, locks that wait, share modes and byte ranges. So nothing can grow past the budget by way of something that nobody
//! counts.
//!
//! An address may hold a quarter of what is still free (the dynamic threshold of shared switch buffers, Choudhury and
//! Hahne 1998): one that is alone gets a fifth of all, and ten that one after the other take all they can leave a tenth for
//! whoever comes next. An address that got more when there was more is overdrawn: its sessions are asked to use fewer slots,
//! and its idle clients go when others find no room.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use weft_machine::Source;
use weft_wire::nfs4::{ChannelAttrs, Status};

/// A client record, its lease, its last CREATE_SESSION and its places in tables; its names and addresses come on top.
pub const CLIENT_BYTES: usize = 2048;
/// An owner of opens or locks with the last answer (minor version 0), its name not counted.
pub const OWNER_BYTES: usize = 1024;
/// An open, a set of locks or a delegation, with its places in tables.
pub const STATE_BYTES: usize = 512;
/// A byte range of an owner, with the room that lists keep in advance.
pub const RANGE_BYTES: usize = 128;
/// A lock that a client is told of when it can be had: the task that waits for it.
pub const AWAITED_BYTES: usize = 2048;
/// A session without its slots, with its back channel.
const SESSION_BYTES: usize = 4096;
/// A slot without the reply that it keeps.
const SLOT_BYTES: usize = 256;
/// Under pressure a session gets fewer slots, down to this, before they keep shorter replies.
const FEW_SLOTS: u32 = 8;
/// Kept replies are not cut shorter than this: enough for an OPEN with attributes, so that what must not be done twice can be
/// asked for with its reply kept.
const SHORT_REPLY: u32 = 2048;
/// An address may hold this part of the memory that is free.
const SOURCE_SHARE: usize = 4;
/// Of descriptors an address may hold as many as it leaves free: one alone gets half, and ten leave an eleventh.
const DESCRIPTOR_SHARE: usize = 1;
/// Descriptors of an open or a delegation: of the file, and of its node, which has to stay within reach.
pub const DESCRIPTORS_OF_OPEN: usize = 2;
/// What a session may take of what its address may still take.
const SESSION_SHARE: usize = 4;

/// There is no room. The client can ask again when others have given up something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Full;

impl Full {
    /// RFC 7530 13.1.4.8; from minor version 1 on nobody answers NFS4ERR_RESOURCE (RFC 8881 15.1.16.4), and who is told
    /// NFS4ERR_DELAY asks again (15.1.1.3).
    pub fn status(self, minor: u32) -> Status {
        if minor == 0 { Status::RESOURCE } else { Status::DELAY }
    }
}

/// Cloning shares it. One for memory, in bytes, and one for descriptors, where a "byte" is a descriptor.
#[derive(Clone)]
pub struct Budget(Arc<Inner>);

struct Inner {
    limit_bytes: usize,
    /// An address may hold one in so many of those that are free.
    source_share: usize,
    used: Mutex<Used>,
    /// So much is taken that somebody may be overdrawn.
    scarce: AtomicBool,
}

#[derive(Default)]
struct Used {
    /// `total_bytes <= limit_bytes`
    total_bytes: usize,
    /// Those that hold something.
    by_source: HashMap<Source, usize>,
}

impl Used {
    fn of(&self, source: Source) -> usize {
        self.by_source.get(&source).copied().unwrap_or(0)
    }
}

impl Budget {
    /// Of memory.
    pub fn new(limit_bytes: usize) -> Budget {
        Budget::shared(limit_bytes, SOURCE_SHARE)
    }

    /// Of descriptors.
    pub fn of_descriptors(limit: usize) -> Budget {
        Budget::shared(limit, DESCRIPTOR_SHARE)
    }

    fn shared(limit_bytes: usize, source_share: usize) -> Budget {
        let scarce = AtomicBool::new(false);
        Budget(Arc::new(Inner { limit_bytes, source_share, used: Mutex::default(), scarce }))
    }

    /// Bytes that are taken.
    #[cfg(test)]
    pub fn used_bytes(&self) -> usize {
        self.0.lock().total_bytes
    }

    /// Takes some for a source.
    pub fn charge(&self, source: Source, bytes: usize) -> Result<Charge, Full> {
        let mut charge = Charge { budget: self.clone(), source, bytes: 0 };
        charge.grow(bytes)?;
        Ok(charge)
    }

    /// How much more a source may take.
    fn allowance(&self, source: Source) -> usize {
        let used = self.0.lock();
        // What is taken is not free: `own + x <= (free - x) / SOURCE_SHARE`.
        let free = self.0.limit_bytes.saturating_sub(used.total_bytes);
        free.saturating_sub(used.of(source).saturating_mul(SOURCE_SHARE)) / (SOURCE_SHARE + 1)
    }

    /// Whether anybody may be overdrawn. To be asked with each request.
    pub fn is_scarce(&self) -> bool {
        self.0.scarce.load(Ordering::Relaxed)
    }

    /// Whether a source holds more than it would be given now.
    pub fn is_overdrawn(&self, source: Source) -> bool {
        let used = self.0.lock();
        used.of(source) > self.0.threshold(&used)
    }

    /// Room for a session that asks for this channel, with what it can have of it: fewer slots, then shorter kept replies,
    /// then one slot.
    pub fn session(&self, source: Source, asked: ChannelAttrs) -> Result<(Charge, ChannelAttrs), Full> {
        let goal = self.allowance(source) / SESSION_SHARE;
        let mut fore = asked;
        while session_bytes(&fore) > goal && fore.max_requests > FEW_SLOTS {
            fore.max_requests = (fore.max_requests / 2).max(FEW_SLOTS);
        }
        while session_bytes(&fore) > goal && fore.max_response_cached > SHORT_REPLY {
            fore.max_response_cached = (fore.max_response_cached / 2).max(SHORT_REPLY);
        }
        while session_bytes(&fore) > goal && fore.max_requests > 1 {
            fore.max_requests /= 2;
        }
        Ok((self.charge(source, session_bytes(&fore))?, fore))
    }
}

/// What a slot of this channel is charged.
pub fn slot_bytes(fore: &ChannelAttrs) -> usize {
    SLOT_BYTES.saturating_add(fore.max_response_cached as usize)
}

fn session_bytes(fore: &ChannelAttrs) -> usize {
    SESSION_BYTES.saturating_add((fore.max_requests as usize).saturating_mul(slot_bytes(fore)))
}

impl Inner {
    // Sums that are changed together, by nothing that panics.
    fn lock(&self) -> MutexGuard<'_, Used> {
        self.used.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What a source may hold.
    fn threshold(&self, used: &Used) -> usize {
        self.limit_bytes.saturating_sub(used.total_bytes).checked_div(self.source_share).unwrap_or(0)
    }

    fn note(&self, used: &Used) {
        // Nobody holds more than all together.
        self.scarce.store(used.total_bytes > self.threshold(used), Ordering::Relaxed);
    }
}

/// Bytes of the budget that somebody holds.
#[must_use = "what is not held is given back"]
pub struct Charge {
    budget: Budget,
    source: Source,
    bytes: usize,
}

impl Charge {
    pub fn budget(&self) -> &Budget {
        &self.budget
    }

    pub fn bytes(&self) -> usize {
        self.bytes
    }

    pub fn source(&self) -> Source {
        self.source
    }

    /// Takes more.
    pub fn grow(&mut self, bytes: usize) -> Result<(), Full> {
        let inner = &self.budget.0;
        let mut used = inner.lock();
        let own = used.of(self.source).checked_add(bytes).ok_or(Full)?;
        let total = used.total_bytes.checked_add(bytes).ok_or(Full)?;
        let free = inner.limit_bytes.checked_sub(total).ok_or(Full)?;
        if own > free.checked_div(inner.source_share).unwrap_or(0) {
            return Err(Full);
        }
        used.total_bytes = total;
        used.by_source.insert(self.source, own);
        inner.note(&used);
        self.bytes = self.bytes.saturating_add(bytes);
        Ok(())
    }

    /// Gives some back.
    pub fn shrink(&mut self, bytes: usize) {
        let bytes = bytes.min(self.bytes);
        self.bytes = self.bytes.saturating_sub(bytes);
        let inner = &self.budget.0;
        let mut used = inner.lock();
        used.total_bytes = used.total_bytes.saturating_sub(bytes);
        let own = used.of(self.source).saturating_sub(bytes);
        if own == 0 {
            used.by_source.remove(&self.source);
        } else {
            used.by_source.insert(self.source, own);
        }
        inner.note(&used);
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        self.shrink(self.bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use weft_wire::nfs4::UpTo;

    fn host(n: u8) -> Source {
        Source::V4([192, 0, 2, n].into())
    }

    fn channel(slots: u32, cached: u32) -> ChannelAttrs {
        ChannelAttrs {
            header_pad: 0,
            max_request: 1 << 20,
            max_response: 1 << 20,
            max_response_cached: cached,
            max_operations: 16,
            max_requests: slots,
            rdma_ird: UpTo::default(),
        }
    }

    #[test]
    fn greedy_addresses_leave_room_for_the_next() {
        let budget = Budget::new(1100);
        let mut held = Vec::new();
        while let Some(more) = (0..10).find_map(|n| budget.charge(host(n), 1).ok()) {
            held.push(more);
        }
        assert!(budget.used_bytes() <= 1000, "{}", budget.used_bytes());
        assert!(budget.charge(host(10), 20).is_ok());
        assert!((0..10).all(|n| budget.charge(host(n), 100).is_err()));
        held.clear();
        assert_eq!(budget.used_bytes(), 0);
        assert!(budget.0.lock().by_source.is_empty(), "nothing is kept of who holds nothing");
    }

    #[test]
    fn one_alone_gets_a_fifth_and_is_overdrawn_when_others_come() {
        let budget = Budget::new(1000);
        let one = budget.charge(host(1), 200).ok();
        assert!(one.is_some() && budget.charge(host(1), 1).is_err());
        assert!(!budget.is_overdrawn(host(1)));
        let other = budget.charge(host(2), 100).ok();
        assert!(other.is_some() && budget.is_overdrawn(host(1)) && !budget.is_overdrawn(host(2)));
        drop(one);
        assert!(!budget.is_overdrawn(host(1)));
    }

    #[test]
    fn sessions_become_smaller_and_not_useless() {
        let budget = Budget::new(8 << 20);
        let mut held = Vec::new();
        let mut last = (64, 8192);
        while let Ok((charge, fore)) = budget.session(Source::Local, channel(64, 8192)) {
            let (slots, cached) = (fore.max_requests, fore.max_response_cached);
            assert!(slots <= last.0 && cached <= last.1 && slots >= 1 && cached >= SHORT_REPLY);
            last = (slots, cached);
            held.push(charge);
        }
        assert_eq!(last, (1, SHORT_REPLY));
        assert!(held.len() > 10, "{}", held.len());
        // What asks for little is not cut.
        held.clear();
        let (_charge, fore) = budget.session(Source::Local, channel(2, 10)).ok().unwrap();
        assert_eq!((fore.max_requests, fore.max_response_cached), (2, 10));
    }
}
