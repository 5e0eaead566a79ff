//! What a name may be, and when two names are the same but for their case.
//!
//! Owns: nothing. Does not: know what SMB forbids beyond this (`smb` does).

use crate::vfs::{Error, MAX_XATTR_NAME};

/// The longest name that Linux file systems take, in bytes.
pub(super) const MAX_NAME: usize = 255;
/// The longest target of a symbolic link (PATH_MAX with its NUL).
pub(super) const MAX_TARGET: usize = 4095;

/// Refuses what no single file name can be. `.` and `..` pass: they exist in every directory.
pub(super) fn check(name: &[u8]) -> Result<(), Error> {
    if name.len() > MAX_NAME {
        return Err(Error::NameTooLong);
    }
    if name.is_empty() || name.iter().any(|&b| b == b'/' || b == 0) {
        return Err(Error::BadName);
    }
    Ok(())
}

/// Like [`check`] for a name that is to be made, removed or moved: `.` and `..` are not names to do that with.
pub(super) fn check_entry(name: &[u8]) -> Result<(), Error> {
    check(name)?;
    if name == b"." || name == b".." { Err(Error::BadName) } else { Ok(()) }
}

/// Refuses what no extended attribute can be called.
pub(super) fn check_xattr(name: &[u8]) -> Result<(), Error> {
    if name.len() > MAX_XATTR_NAME {
        return Err(Error::NameTooLong);
    }
    if name.is_empty() || name.contains(&0) { Err(Error::BadName) } else { Ok(()) }
}

/// Refuses what no link can point to.
pub(super) fn check_target(target: &[u8]) -> Result<(), Error> {
    if target.len() > MAX_TARGET {
        return Err(Error::NameTooLong);
    }
    if target.is_empty() || target.contains(&0) { Err(Error::Invalid) } else { Ok(()) }
}

/// A name in the one case in which names are compared: each character in upper case where that is one character, as
/// NTFS does it; bytes that are no UTF-8 only where they are ASCII.
pub(crate) fn fold(name: &[u8]) -> Vec<u8> {
    let Ok(text) = std::str::from_utf8(name) else { return name.to_ascii_uppercase() };
    let upper = |c: char| {
        let mut upper = c.to_uppercase();
        match (upper.next(), upper.next()) {
            (Some(one), None) => one,
            _ => c,
        }
    };
    text.chars().map(upper).collect::<String>().into_bytes()
}

/// A hash of the folded name: equal for names that differ by case only. A false match costs its user a scan.
pub(super) fn fold_hash(name: &[u8]) -> u64 {
    // FNV-1a.
    fold(name).iter().fold(0xcbf2_9ce4_8422_2325, |h, &b| (h ^ u64::from(b)).wrapping_mul(0x0100_0000_01b3))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names() {
        assert!(check(b"a b").is_ok());
        assert!(check(b"..").is_ok());
        assert!(matches!(check_entry(b".."), Err(Error::BadName)));
        assert!(matches!(check(b""), Err(Error::BadName)));
        assert!(matches!(check(b"a/b"), Err(Error::BadName)));
        assert!(matches!(check(b"a\0"), Err(Error::BadName)));
        assert!(check(&[b'x'; 255]).is_ok());
        assert!(matches!(check(&[b'x'; 256]), Err(Error::NameTooLong)));
    }

    #[test]
    fn folding() {
        assert_eq!(fold("Grüße".as_bytes()), fold("gRÜßE".as_bytes()));
        assert_ne!(fold(b"ss"), fold("ß".as_bytes()));
        assert_eq!(fold(b"\xffa"), b"\xffA");
    }
}
