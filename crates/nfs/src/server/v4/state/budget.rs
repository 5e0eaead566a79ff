//! Limits the memory that NFSv4 and NLM clients can occupy, in total and per address.
//!
//! Everything kept for a client holds a [`Charge`], which returns its bytes when dropped: client records, sessions
//! with all replies that their slots may cache, owners, opens, locks with their byte ranges, and delegations; for
//! NLM: hosts, owners, blocked locks, share modes and byte ranges. So nothing can exceed the budget uncounted.
//!
//! Addresses share the free part of the budget (see [`weft_machine::budget`]). Sessions of an address that exceeds
//! its share are asked to use fewer slots, and its idle clients are removed when others find no memory.

use weft_machine::budget::{Full, Holder};
use weft_machine::{Budget, Charge};
use weft_wire::nfs4::{ChannelAttrs, Status};

/// A client record, its lease, its last CREATE_SESSION and its table entries, without names and addresses.
pub const CLIENT_BYTES: usize = 2048;
/// An owner of opens or locks with its last reply (minor version 0), without its name.
pub const OWNER_BYTES: usize = 1024;
/// An open, a set of locks or a delegation, with its table entries.
pub const STATE_BYTES: usize = 512;
/// A byte range of an owner, including the spare capacity of lists.
pub const RANGE_BYTES: usize = 128;
/// A denied lock for which the client will be notified: the task that waits for it.
pub const AWAITED_BYTES: usize = 2048;
/// A session with its back channel, without slots.
const SESSION_BYTES: usize = 4096;
/// A slot without its cached reply.
const SLOT_BYTES: usize = 256;
/// Under memory pressure, a session gets fewer slots, down to this many, before the cached replies are shortened.
const FEW_SLOTS: u32 = 8;
/// Cached replies are not shortened below this: enough for an OPEN with attributes, so that non-idempotent requests
/// can have their replies cached.
const SHORT_REPLY: u32 = 2048;
/// An address may hold as many descriptors as it leaves free: one address alone gets half, and ten addresses leave an
/// eleventh.
pub const DESCRIPTOR_SHARE: usize = 1;
/// Descriptors of an open or a delegation: the file, and its node, which must remain accessible.
pub const DESCRIPTORS_OF_OPEN: usize = 2;
/// A session may take this part of what its address may still take.
const SESSION_SHARE: usize = 4;

/// A client that exceeds the budget may try again later, when others have released memory. RFC 7530 13.1.4.8; from
/// minor version 1 on, NFS4ERR_RESOURCE is not allowed (RFC 8881 15.1.16.4), and NFS4ERR_DELAY makes the client try
/// again (15.1.1.3).
pub fn no_room(_: Full, minor: u32) -> Status {
    if minor == 0 { Status::RESOURCE } else { Status::DELAY }
}

/// Reserves memory for a session with this channel and returns what it can have: fewer slots if necessary, then
/// shorter cached replies, then a single slot.
pub fn session(
    budget: &Budget,
    holder: &Holder,
    asked: ChannelAttrs,
) -> Result<(Charge, ChannelAttrs), Full> {
    let goal = budget.allowance(holder) / SESSION_SHARE;
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
    Ok((budget.charge(holder.clone(), session_bytes(&fore))?, fore))
}

/// The charge for a slot of this channel.
pub fn slot_bytes(fore: &ChannelAttrs) -> usize {
    SLOT_BYTES.saturating_add(fore.max_response_cached as usize)
}

fn session_bytes(fore: &ChannelAttrs) -> usize {
    SESSION_BYTES.saturating_add((fore.max_requests as usize).saturating_mul(slot_bytes(fore)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use weft_machine::Source;
    use weft_wire::nfs4::UpTo;

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
    fn sessions_become_smaller_and_not_useless() {
        let budget = Budget::new(8 << 20);
        let mut held = Vec::new();
        let mut last = (64, 8192);
        while let Ok((charge, fore)) = session(&budget, &Source::Local.into(), channel(64, 8192)) {
            let (slots, cached) = (fore.max_requests, fore.max_response_cached);
            assert!(slots <= last.0 && cached <= last.1 && slots >= 1 && cached >= SHORT_REPLY);
            last = (slots, cached);
            held.push(charge);
        }
        assert_eq!(last, (1, SHORT_REPLY));
        assert!(held.len() > 10, "{}", held.len());
        // A small request is not reduced.
        held.clear();
        let (_charge, fore) = session(&budget, &Source::Local.into(), channel(2, 10)).ok().unwrap();
        assert_eq!((fore.max_requests, fore.max_response_cached), (2, 10));
    }
}
