//! Seals NT hashes: a copy of the store alone (a backup, a listing on a screen) is no secret, because the key is in
//! another file.
//!
//! NTLM needs the NT hash of the password itself ([MS-NLMP] 3.3.2): no slower hash can take its place. AES-256-GCM with
//! a random nonce; the name is authenticated as well, so that nobody can give one user the hash of another.

use std::io;
use std::path::Path;

use ring::aead::{AES_256_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use weft_machine::file::private;
use weft_machine::file::whole::{self, Access};
use weft_machine::random;
use weft_smb::auth::Secret;
use weft_store::rights::folded;
use zeroize::Zeroizing;

use super::Name;
use crate::hex::{hex, of_hex};

/// Bytes of an NT hash.
const HASH_BYTES: usize = 16;
/// Bytes of the key.
const KEY_BYTES: usize = 32;

/// The key of one store.
pub(super) struct SealingKey(LessSafeKey);

/// What is wrong with the file of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum KeyFault {
    #[error("it is missing")]
    Missing,
    #[error("it does not have {KEY_BYTES} bytes")]
    Length,
}

/// A sealed secret was changed, or was sealed with another key or for another user.
#[derive(Debug)]
pub(super) struct Broken;

impl SealingKey {
    /// The key in this file, which is created if missing.
    pub(super) fn open(path: &Path) -> io::Result<SealingKey> {
        let make = || Ok(random::bytes::<KEY_BYTES>()?.to_vec());
        SealingKey::of(Zeroizing::new(private::made_once(path, make)?))
    }

    /// The key in this file; what is wrong with it if it is missing, or no key.
    ///
    /// # Errors
    /// The file cannot be read.
    pub(super) fn existing(path: &Path) -> io::Result<Result<SealingKey, KeyFault>> {
        let bytes = match private::read(path, KEY_BYTES) {
            Ok(Some(bytes)) => Zeroizing::new(bytes),
            Ok(None) => return Ok(Err(KeyFault::Missing)),
            Err(e) if e.kind() == io::ErrorKind::FileTooLarge => return Ok(Err(KeyFault::Length)),
            Err(e) => return Err(e),
        };
        Ok(SealingKey::of(bytes).map_err(|_| KeyFault::Length))
    }

    /// A new key in this file, in place of one that opens nothing.
    pub(super) fn replace(path: &Path) -> io::Result<SealingKey> {
        let bytes = Zeroizing::new(random::bytes::<KEY_BYTES>()?);
        whole::replace(path, &*bytes, Access::Private)?;
        SealingKey::of(Zeroizing::new(bytes.to_vec()))
    }

    fn of(bytes: Zeroizing<Vec<u8>>) -> io::Result<SealingKey> {
        let unfit = |_| {
            io::Error::new(
                io::ErrorKind::InvalidData,
                format!("it does not have {KEY_BYTES} bytes: restore it from a backup"),
            )
        };
        Ok(SealingKey(LessSafeKey::new(UnboundKey::new(&AES_256_GCM, &bytes).map_err(unfit)?)))
    }

    /// Seals a secret for its user, in hexadecimal digits.
    pub(super) fn seal(&self, name: &Name, secret: &Secret) -> io::Result<String> {
        let nonce: [u8; NONCE_LEN] = random::bytes()?;
        let mut bytes = Zeroizing::new(secret.as_nt_hash().to_vec());
        let sealed = self.0.seal_in_place_separate_tag(
            Nonce::assume_unique_for_key(nonce),
            Aad::from(context(name)),
            &mut bytes,
        );
        let tag = sealed.map_err(|_| io::Error::other("the secret cannot be sealed"))?;
        Ok(hex(nonce) + &hex(&*bytes) + &hex(tag))
    }

    /// Opens what [`SealingKey::seal`] has sealed.
    pub(super) fn open_sealed(&self, name: &Name, sealed: &str) -> Result<Secret, Broken> {
        let mut bytes = Zeroizing::new(of_hex(sealed).ok_or(Broken)?);
        let (nonce, rest) = bytes.split_at_mut_checked(NONCE_LEN).ok_or(Broken)?;
        let nonce = Nonce::try_assume_unique_for_key(nonce).map_err(|_| Broken)?;
        let opened = self.0.open_in_place(nonce, Aad::from(context(name)), rest).map_err(|_| Broken)?;
        let hash: &[u8; HASH_BYTES] = (&*opened).try_into().map_err(|_| Broken)?;
        Ok(Secret::nt_hash(*hash))
    }
}

fn context(name: &Name) -> Vec<u8> {
    format!("weft user 1 {}", folded(name.as_str())).into_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_opens_with_its_key_and_for_its_user_only() {
        let dir = tempfile::tempdir().unwrap();
        let key = SealingKey::open(&dir.path().join("users.key")).unwrap();
        let (alice, bob): (Name, Name) = ("alice".parse().unwrap(), "bob".parse().unwrap());
        let secret = Secret::password("correct horse");
        let sealed = key.seal(&alice, &secret).unwrap();
        assert_eq!(
            key.open_sealed(&"ALICE".parse().unwrap(), &sealed).ok().unwrap().as_nt_hash(),
            secret.as_nt_hash()
        );
        assert!(!sealed.contains(&hex(secret.as_nt_hash())));
        assert_ne!(key.seal(&alice, &secret).unwrap(), sealed, "the nonce differs");
        assert!(key.open_sealed(&bob, &sealed).is_err());
        let other = SealingKey::open(&dir.path().join("other.key")).unwrap();
        assert!(other.open_sealed(&alice, &sealed).is_err());
        let again = SealingKey::open(&dir.path().join("users.key")).unwrap();
        assert!(again.open_sealed(&alice, &sealed).is_ok());
        for broken in ["", "0", "zz", &sealed[2..], &sealed[..sealed.len() - 2], &"00".repeat(44)] {
            assert!(key.open_sealed(&alice, broken).is_err(), "{broken}");
        }
    }
}
