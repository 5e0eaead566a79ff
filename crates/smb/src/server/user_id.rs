//! Who a user is, beyond the name, which a later user may get.
//!
//! Spec: [MS-DTYP] 2.4.2 (SID). Of the SID only what tells users apart: the host's part changes with the host's name, and the
//! users stay.

/// The number in the user's SID.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum UserId {
    /// The relative id of a user of ours.
    Rid(u32),
    /// The uid of a user of the system who is none of ours.
    Uid(u32),
}
