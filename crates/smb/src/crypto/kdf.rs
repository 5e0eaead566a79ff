//! Derives session keys from the key that authentication agreed on.
//!
//! Spec: [MS-SMB2] 3.1.4.2 (SP800-108 in counter mode, HMAC-SHA256, r = 32), 3.2.5.3.1 and 3.3.5.5.3 (labels). Raw key
//! bytes live only until they are expanded.

use std::sync::Arc;

use aws_lc_rs::hmac;
use weft_wire::smb2::Dialect;
use weft_wire::smb2::negotiate::{CipherId, SigningId};
use zeroize::Zeroizing;

use super::cipher::key_len;
use super::preauth::Preauth;
use super::seal::{Opener, Sealer};
use super::sign::SigningKey;

/// Our end of the connection: decides which key seals and which opens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// We sent NEGOTIATE.
    Client,
    /// We answered it.
    Server,
}

/// What NEGOTIATE settled about keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Profile {
    /// The dialect.
    pub dialect: Dialect,
    /// The signing algorithm: HMAC-SHA256 before 3.0, AES-CMAC in 3.x unless 3.1.1 negotiated another.
    pub signing: SigningId,
    /// The cipher, if both ends can encrypt.
    pub cipher: Option<CipherId>,
}

/// The expanded keys of a session. Clones for further connections share the nonce counter.
#[derive(Clone)]
pub struct SessionKeys {
    /// Signs and verifies. Shared with the session's first channel, whose key it is.
    pub signing: Arc<SigningKey>,
    /// Encrypts what we send; `None` without a cipher.
    pub sealer: Option<Arc<Sealer>>,
    /// Decrypts what we receive.
    pub opener: Option<Arc<Opener>>,
}

impl SessionKeys {
    /// Derives the keys of a session. `preauth` is the session's chain up to and including the last SESSION_SETUP
    /// request ([MS-SMB2] 3.3.5.5.3); dialects before 3.1.1 ignore it.
    pub fn derive(role: Role, profile: &Profile, session_key: &[u8; 16], preauth: &Preauth) -> SessionKeys {
        SessionKeys::derive_from(role, profile, session_key, session_key, preauth)
    }

    /// Like [`SessionKeys::derive`], for an authentication that agreed on a longer key, `full_key`, whose first 16
    /// bytes are the session key: 256-bit keys are derived from all of it (Session.FullSessionKey).
    pub fn derive_from(
        role: Role,
        profile: &Profile,
        session_key: &[u8; 16],
        full_key: &[u8],
        preauth: &Preauth,
    ) -> SessionKeys {
        let signing = Arc::new(signing_key(profile, session_key, preauth));
        let Some(cipher) = profile.cipher.filter(|_| profile.dialect >= Dialect::V3_0) else {
            return SessionKeys { signing, sealer: None, opener: None };
        };
        let len = key_len(cipher);
        let session_key = if len == 32 { full_key } else { &session_key[..] };
        let key = |label_311: &[u8], label_30: &[u8], context_30: &[u8], len: usize| {
            derived(profile, session_key, preauth, (label_311, label_30, context_30), len)
        };
        // The blank in "ServerIn " is in the specification; the label means the server's incoming direction.
        let c2s = key(b"SMBC2SCipherKey\0", b"SMB2AESCCM\0", b"ServerIn \0", len);
        let s2c = key(b"SMBS2CCipherKey\0", b"SMB2AESCCM\0", b"ServerOut\0", len);
        let (ours, theirs) = match role {
            Role::Client => (c2s, s2c),
            Role::Server => (s2c, c2s),
        };
        SessionKeys {
            signing,
            sealer: Some(Arc::new(Sealer::new(cipher, &ours))),
            opener: Some(Arc::new(Opener::new(cipher, &theirs))),
        }
    }
}

/// The signing key of one connection. For the first connection of a session it is the session's; for each further one
/// it is derived from the key of the authentication that bound it, and from that connection's own chain (3.3.5.5.3).
pub fn signing_key(profile: &Profile, session_key: &[u8; 16], preauth: &Preauth) -> SigningKey {
    if profile.dialect < Dialect::V3_0 {
        return SigningKey::new(SigningId::HMAC_SHA256, session_key);
    }
    let names: Names<'_> = (b"SMBSigningKey\0", b"SMB2AESCMAC\0", b"SmbSign\0");
    let key = derived(profile, session_key, preauth, names, 16);
    SigningKey::new(profile.signing, key.first_chunk().expect("16 bytes were derived"))
}

/// Label of 3.1.1, label and context of 3.0 and 3.0.2.
type Names<'a> = (&'a [u8], &'a [u8], &'a [u8]);

fn derived(
    profile: &Profile,
    session_key: &[u8],
    preauth: &Preauth,
    (label_311, label_30, context_30): Names<'_>,
    len: usize,
) -> Zeroizing<Vec<u8>> {
    match profile.dialect >= Dialect::V3_1_1 {
        true => kdf(session_key, label_311, preauth.value(), len),
        false => kdf(session_key, label_30, context_30, len),
    }
}

/// SP800-108 5.1 with one iteration, which yields at most 32 bytes.
pub(super) fn kdf(key: &[u8], label: &[u8], context: &[u8], len: usize) -> Zeroizing<Vec<u8>> {
    assert!(len == 16 || len == 32, "one iteration of HMAC-SHA256");
    let mut mac = hmac::Context::with_key(&hmac::Key::new(hmac::HMAC_SHA256, key));
    mac.update(&1u32.to_be_bytes());
    mac.update(label);
    mac.update(&[0]);
    mac.update(context);
    // In bits.
    mac.update(&((len as u32) << 3).to_be_bytes());
    Zeroizing::new(mac.sign().as_ref().get(..len).expect("HMAC-SHA256 has 32 bytes").to_vec())
}
