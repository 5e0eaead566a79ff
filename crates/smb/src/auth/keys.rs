//! The arithmetic of NTLMv2: response keys, proofs, session keys, integrity codes.
//!
//! Spec: [MS-NLMP] 3.3.2 (NTLMv2), 3.4.4.2 (MAC), 3.4.5 (SIGNKEY, SEALKEY), 3.1.5.1.2 (MIC).
//! Callers compare the results, in constant time.

use md4::Md4;
use md5::{Digest, Md5};
use rc4::{KeyInit, Rc4, StreamCipher};
use weft_wire::ntlm::{Flags, MIC, utf16};
use zeroize::{Zeroize, Zeroizing};

use super::{Secret, SessionKey};

/// MD4 of the UTF-16 password: NTOWFv1.
pub(super) fn nt_hash(password: &str) -> [u8; 16] {
    let unicode = Zeroizing::new(utf16(password));
    Md4::digest(&*unicode).into()
}

/// Uppercases as Windows does when it compares names: one character maps to one character.
pub(super) fn upper(name: &str) -> String {
    name.chars()
        .map(|c| {
            let mut upper = c.to_uppercase();
            match (upper.next(), upper.next()) {
                (Some(u), None) => u,
                _ => c,
            }
        })
        .collect()
}

/// NTOWFv2: the response key of a user.
pub(super) fn response_key(secret: &Secret, user: &str, domain: &str) -> SessionKey {
    Zeroizing::new(hmac_md5(&secret.0, &[&utf16(&upper(user)), &utf16(domain)]))
}

/// NTProofStr.
pub(super) fn proof(response_key: &[u8; 16], server_challenge: &[u8; 8], temp: &[u8]) -> [u8; 16] {
    hmac_md5(response_key, &[server_challenge, temp])
}

/// SessionBaseKey, which with NTLMv2 is also the KeyExchangeKey (3.4.5.1).
pub(super) fn session_base_key(response_key: &[u8; 16], proof: &[u8; 16]) -> SessionKey {
    Zeroizing::new(hmac_md5(response_key, &[proof]))
}

/// RC4K of 16 bytes, both ways.
pub(super) fn rc4k(key: &[u8; 16], data: &[u8; 16]) -> SessionKey {
    let mut out = Zeroizing::new(*data);
    Rc4::new(key.into()).apply_keystream(&mut *out);
    out
}

/// The MIC of the three messages; the third is hashed with zeros in its MIC field.
pub(super) fn mic(
    session_key: &[u8; 16],
    negotiate: &[u8],
    challenge: &[u8],
    authenticate: &[u8],
) -> [u8; 16] {
    let (before, after) = authenticate.split_at(MIC.start.min(authenticate.len()));
    let after = after.get(MIC.len()..).unwrap_or_default();
    hmac_md5(session_key, &[negotiate, challenge, before, &[0; 16], after])
}

/// The side that computes a mechListMIC.
#[derive(Clone, Copy)]
pub(super) enum Side {
    Client,
    Server,
}

/// GSS_GetMIC with sequence number 0: the mechListMIC of SPNEGO (3.4.8, 3.4.4.2). Each side computes exactly one, so
/// the RC4 stream is at its start.
pub(super) fn mech_list_mic(session_key: &[u8; 16], flags: Flags, side: Side, mech_types: &[u8]) -> [u8; 16] {
    let (sign, seal): (&[u8], &[u8]) = match side {
        Side::Client => (
            b"session key to client-to-server signing key magic constant\0",
            b"session key to client-to-server sealing key magic constant\0",
        ),
        Side::Server => (
            b"session key to server-to-client signing key magic constant\0",
            b"session key to server-to-client sealing key magic constant\0",
        ),
    };
    let sign_key = Zeroizing::new(md5(&[session_key, sign]));
    let mut checksum = hmac_md5(&sign_key, &[&0u32.to_le_bytes(), mech_types]);
    if flags.contains(Flags::NEGOTIATE_KEY_EXCH) {
        // SEALKEY weakens the key to the negotiated strength.
        let strength = match () {
            () if flags.contains(Flags::NEGOTIATE_128) => 16,
            () if flags.contains(Flags::NEGOTIATE_56) => 7,
            () => 5,
        };
        let weakened = session_key.get(..strength).unwrap_or(session_key);
        let seal_key = Zeroizing::new(md5(&[weakened, seal]));
        Rc4::new((&*seal_key).into()).apply_keystream(&mut checksum[..8]);
    }
    let mut mic = [0; 16];
    mic[0] = 1;
    mic[4..12].copy_from_slice(&checksum[..8]);
    mic
}

fn md5(parts: &[&[u8]]) -> [u8; 16] {
    let mut hash = Md5::new();
    parts.iter().for_each(|part| hash.update(part));
    hash.finalize().into()
}

/// RFC 2104 with MD5, for keys of at most one block.
pub(super) fn hmac_md5(key: &[u8; 16], parts: &[&[u8]]) -> [u8; 16] {
    let mut pad = [0x36u8; 64];
    pad.iter_mut().zip(key).for_each(|(p, k)| *p ^= k);
    let mut inner = Md5::new();
    inner.update(pad);
    parts.iter().for_each(|part| inner.update(part));
    // Turns the inner pad into the outer one.
    pad.iter_mut().for_each(|p| *p ^= 0x36 ^ 0x5c);
    let mut outer = Md5::new();
    outer.update(pad);
    outer.update(inner.finalize());
    pad.zeroize();
    outer.finalize().into()
}
