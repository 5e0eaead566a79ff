//! Authentication: NTLMv2 inside SPNEGO, both sides.
//!
//! Spec: [MS-NLMP] 3, [MS-SPNG] 3, RFC 4178.

/// What proves a user: the NT hash of the password. Wiped when dropped, never shown.
#[derive(Clone, zeroize::ZeroizeOnDrop)]
pub struct Secret(pub(crate) [u8; 16]);
