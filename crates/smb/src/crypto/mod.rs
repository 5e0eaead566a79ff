//! The cryptography of SMB 2 and 3: key derivation, preauthentication integrity, signing, encryption.
//!
//! Spec: [MS-SMB2] 3.1.4 (signing, keys, encryption), 2.2.41 (transform header), 3.2.5.3 and 3.3.5.5.3 (which labels).
//! Owns key schedules, which are wiped on drop. The callers decide what must be signed or encrypted, and check session
//! ids.

mod ccm;
mod cipher;
mod engine;
mod gmac;
mod kdf;
mod preauth;
mod seal;
mod sign;

pub use cipher::Engine;
pub use kdf::{Profile, Role, SessionKeys, signing_key};
pub use preauth::Preauth;
pub use seal::{Opener, SealError, Sealer, transform};
pub use sign::{Sender, SigningKey};
pub use weft_wire::smb2::transform::TRANSFORM_LEN;

#[cfg(test)]
mod tests;
