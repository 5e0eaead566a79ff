//! How much memory clients can make the server keep by NFSv4 and NLM, all together and from one address.
//!
//! Whatever is kept for a client holds a [`Charge`], which gives its bytes back when it is dropped: client records, sessions
//! with all replies that their slots may keep, owners, opens, locks with their byte ranges, and delegations; of NLM hosts,
//! owners, locks that wait, share modes and byte ranges. So nothing can grow past the budget by way of something that nobody
//! counts.
//!
//! The budget divides what is free between addresses (see [`weft_machine::budget`]). The sessions of an address that is overdrawn
//! are asked to use fewer slots, and its idle clients go when others find no room.

use weft_machine::budget::{Full, Holder};
use weft_machine::{Budget, Charge};
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
/// Of descriptors an address may hold as many as it leaves free: one alone gets half, and ten leave an eleventh.
pub const DESCRIPTOR_SHARE: usize = 1;
/// Descriptors of an open or a delegation: of the file, and of its node, which has to stay within reach.
pub const DESCRIPTORS_OF_OPEN: usize = 2;
/// What a session may take of what its address may still take.
const SESSION_SHARE: usize = 4;

/// Who finds no room in the budget can ask again when others have given up something. RFC 7530 13.1.4.8; from minor version 1 on
/// nobody answers NFS4ERR_RESOURCE (RFC 8881 15.1.16.4), and who is told NFS4ERR_DELAY asks again (15.1.1.3).
pub fn no_room(_: Full, minor: u32) -> Status {
    if minor == 0 { Status::RESOURCE } else { Status::DELAY }
}

/// Room for a session that asks for this channel, with what it can have of it: fewer slots, then shorter kept replies,
/// then one slot.
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

/// What a slot of this channel is charged.
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
        // What asks for little is not cut.
        held.clear();
        let (_charge, fore) = session(&budget, &Source::Local.into(), channel(2, 10)).ok().unwrap();
        assert_eq!((fore.max_requests, fore.max_response_cached), (2, 10));
    }
}
