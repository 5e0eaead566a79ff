//! File handles: which share, which node, and a proof that this server made them.
//!
//! Spec: RFC 1813 2.3.3 (opaque to clients). Owns: the key, which lives as long as the server.
//! Does not: keep state per handle.
//!
//! ```text
//! 0        1           4           8                 16                24
//! | layout | 0   0   0 | share, BE | node, BE        | tag, BE         |
//! ```
//! The tag is SipHash-2-4 over the first 16 bytes: whoever guesses node numbers opens nothing.

use weft_store::NodeId;
use weft_wire::nfs3::{Handle, Status};

use super::siphash::siphash;

const LAYOUT: u8 = 1;
const TAGGED: usize = 16;
const BYTES: usize = TAGGED + 8;

/// Makes and opens handles.
pub(super) struct Handles {
    key: [u8; 16],
}

impl Handles {
    pub fn new(key: [u8; 16]) -> Handles {
        Handles { key }
    }

    /// The handle of a node of the share with this number.
    pub fn make(&self, share: usize, node: NodeId) -> Handle {
        let mut bytes = [0; BYTES];
        bytes[0] = LAYOUT;
        // Shares are counted when the server starts; nobody has 2^32 of them.
        bytes[4..8].copy_from_slice(&(share as u32).to_be_bytes());
        bytes[8..16].copy_from_slice(&node.0.to_be_bytes());
        let tag = siphash(&self.key, &bytes[..TAGGED]);
        bytes[TAGGED..].copy_from_slice(&tag.to_be_bytes());
        Handle::new(&bytes).expect("24 bytes are at most 64")
    }

    /// What a handle names. One that is shaped like ours and bears another tag was made before a restart, or forged:
    /// the client is told to look the name up again.
    pub fn open(&self, handle: &Handle) -> Result<(usize, NodeId), Status> {
        let bytes: &[u8; BYTES] = handle.as_bytes().try_into().map_err(|_| Status::BADHANDLE)?;
        let [LAYOUT, 0, 0, 0, s0, s1, s2, s3, n0, n1, n2, n3, n4, n5, n6, n7, tag @ ..] = *bytes else {
            return Err(Status::BADHANDLE);
        };
        // One comparison of words: its time says nothing about where they differ.
        if u64::from_be_bytes(tag) != siphash(&self.key, &bytes[..TAGGED]) {
            return Err(Status::STALE);
        }
        let share = u32::from_be_bytes([s0, s1, s2, s3]) as usize;
        Ok((share, NodeId(u64::from_be_bytes([n0, n1, n2, n3, n4, n5, n6, n7]))))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_handle_opens_what_it_was_made_for() {
        let handles = Handles::new([7; 16]);
        let handle = handles.make(3, NodeId(1 << 40));
        assert_eq!(handles.open(&handle), Ok((3, NodeId(1 << 40))));
    }

    #[test]
    fn no_bit_of_a_handle_can_be_changed() {
        let handles = Handles::new([7; 16]);
        let good = handles.make(0, NodeId(2));
        for bit in 0..BYTES * 8 {
            let mut bytes = good.as_bytes().to_vec();
            bytes[bit / 8] ^= 1 << (bit % 8);
            assert!(handles.open(&Handle::new(&bytes).unwrap()).is_err(), "bit {bit}");
        }
    }

    #[test]
    fn a_handle_of_an_earlier_run_is_stale_and_a_foreign_one_is_bad() {
        let old = Handles::new([1; 16]).make(0, NodeId(2));
        let handles = Handles::new([7; 16]);
        assert_eq!(handles.open(&old), Err(Status::STALE));
        for len in (0..=64).filter(|len| *len != BYTES) {
            assert_eq!(handles.open(&Handle::new(&vec![1; len]).unwrap()), Err(Status::BADHANDLE));
        }
    }
}
