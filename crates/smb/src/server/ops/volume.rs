//! The id of a share's volume.

/// Distinguishes the volumes of this server; the same for a share of the same name after a restart.
pub(super) fn id(share: &str) -> u64 {
    share.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte.to_ascii_lowercase())).wrapping_mul(0x0100_0000_01b3)
    })
}
