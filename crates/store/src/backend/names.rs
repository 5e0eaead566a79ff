//! Valid names, and names that differ only in case. Further rules of SMB are in `smb`.

use crate::vfs::{Error, MAX_XATTR_NAME};

/// The longest name that Linux file systems take, in bytes.
pub(super) const MAX_NAME: usize = 255;
/// The longest target of a symbolic link (PATH_MAX with its NUL).
pub(super) const MAX_TARGET: usize = 4095;

/// Refuses text that cannot be a file name. `.` and `..` pass: they exist in every directory.
pub(super) fn check(name: &[u8]) -> Result<(), Error> {
    if name.len() > MAX_NAME {
        return Err(Error::NameTooLong);
    }
    if name.is_empty() || name.iter().any(|&b| b == b'/' || b == 0) {
        return Err(Error::BadName);
    }
    Ok(())
}

/// Like [`check`], for a name to be created, removed or renamed: `.` and `..` are refused.
pub(super) fn check_entry(name: &[u8]) -> Result<(), Error> {
    check(name)?;
    if name == b"." || name == b".." { Err(Error::BadName) } else { Ok(()) }
}

/// Refuses text that cannot name an extended attribute.
pub(super) fn check_xattr(name: &[u8]) -> Result<(), Error> {
    if name.len() > MAX_XATTR_NAME {
        return Err(Error::NameTooLong);
    }
    if name.is_empty() || name.contains(&0) { Err(Error::BadName) } else { Ok(()) }
}

/// Refuses text that cannot be a link's target.
pub(super) fn check_target(target: &[u8]) -> Result<(), Error> {
    if target.len() > MAX_TARGET {
        return Err(Error::NameTooLong);
    }
    if target.is_empty() || target.contains(&0) { Err(Error::Invalid) } else { Ok(()) }
}

/// The folded form in which names are compared: each character in upper case if that is a single character, like
/// NTFS; in bytes that are not UTF-8, only ASCII is folded.
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

/// The hash by which a directory's names are found: equal for names that differ only in case, and derivable from a
/// name's 8.3 name. About one pair in two thousand million collides.
pub(crate) fn key(name: &[u8]) -> u32 {
    // Below 2^32.
    (fold_hash(name) % u64::from(KEYS)) as u32
}

/// The [`key`] of names with this 8.3 name; `None` if it is not an 8.3 name.
pub(crate) fn key_of_short(name: &[u8]) -> Option<u32> {
    if !may_be_short(name) {
        return None;
    }
    let (first, last) = (name.get(1..6)?, name.get(7..8)?);
    let digits = last.iter().chain(first.iter().rev());
    digits
        .map(|digit| DIGITS.iter().position(|d| d == digit))
        .try_fold(0u64, |key, digit| Some(key * 36 + digit? as u64))
        .and_then(|key| u32::try_from(key).ok())
}

/// Six digits of base 36.
const KEYS: u32 = 36u32.pow(6);
const DIGITS: &[u8; 36] = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ";

/// A hash of the folded name: equal for names that differ only in case.
fn fold_hash(name: &[u8]) -> u64 {
    // FNV-1a.
    fold(name).iter().fold(0xcbf2_9ce4_8422_2325, |h, &b| (h ^ u64::from(b)).wrapping_mul(0x0100_0000_01b3))
}

/// The 8.3 name of a file besides its own; `None` if its own name is one ([MS-FSCC] 2.1.5.2.1).
///
/// It is derived from the name alone, so it stays the same after a restart and need not be stored: the first legal
/// character, six digits of a hash around a tilde, three legal characters of the extension. If two names in a
/// directory have the same one (one pair in some 50,000 names with the same beginning and extension), look-ups find
/// either.
pub fn short(name: &[u8]) -> Option<String> {
    if is_short(name) || name == b"." || name == b".." {
        return None;
    }
    let mut rest = key(name);
    let mut digit = || {
        let digit = DIGITS[(rest % 36) as usize];
        rest /= 36;
        char::from(digit)
    };
    let (base, extension) = match name.iter().rposition(|&b| b == b'.') {
        Some(dot) if dot > 0 => (&name[..dot], &name[dot + 1..]),
        _ => (name, &[][..]),
    };
    let legal =
        |part: &[u8]| part.iter().filter(|b| is_legal(**b)).map(u8::to_ascii_uppercase).collect::<Vec<_>>();
    let mut short = String::with_capacity(12);
    short.push(legal(base).first().map_or('_', |&b| char::from(b)));
    short.extend((0..5).map(|_| digit()));
    short.push('~');
    short.push(digit());
    let extension = legal(extension);
    if !extension.is_empty() {
        short.push('.');
        short.extend(extension.iter().take(3).map(|&b| char::from(b)));
    }
    Some(short)
}

/// Whether a name already is an 8.3 name.
fn is_short(name: &[u8]) -> bool {
    let part = |part: &[u8], max| (1..=max).contains(&part.len()) && part.iter().all(|&b| is_legal(b));
    match name.iter().position(|&b| b == b'.') {
        None => part(name, 8),
        Some(dot) => part(&name[..dot], 8) && part(&name[dot + 1..], 3),
    }
}

fn is_legal(b: u8) -> bool {
    b.is_ascii_graphic() && !b".\"*+,/:;<=>?[\\]|".contains(&b)
}

/// Whether a name looks like one from [`short`], so that it may mean another name.
pub(super) fn may_be_short(name: &[u8]) -> bool {
    name.get(6) == Some(&b'~') && matches!(name.get(8), None | Some(b'.')) && is_short(name)
}

/// Whether an entry matches: by its own name except for case (`wanted` is folded), or by its 8.3 name.
pub(crate) fn is_called(entry: &[u8], wanted: &[u8]) -> bool {
    let by_short = || may_be_short(wanted) && short(entry).is_some_and(|short| short.as_bytes() == wanted);
    fold(entry) == wanted || by_short()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_names() {
        for own in ["README.TXT", "a", "autoexec.bat", ".", "..", "a~b$c"] {
            assert_eq!(short(own.as_bytes()), None, "{own}");
        }
        for long in ["a.html", "too long", "verylongname", "a.b.c", ".profile", "a.", "ü.txt", "a+b", "..."]
        {
            let name = short(long.as_bytes()).unwrap();
            assert!(is_short(name.as_bytes()) && may_be_short(name.as_bytes()), "{long}: {name}");
            assert!(is_called(long.as_bytes(), name.as_bytes()));
            assert_eq!(key_of_short(name.as_bytes()), Some(key(long.as_bytes())));
            // The same in any case, and different for another name.
            assert_eq!(short(&fold(long.as_bytes())), Some(name.clone()));
            assert_ne!(short(format!("{long}x").as_bytes()), Some(name));
        }
        assert!(short("Grüße an alle.jpeg".as_bytes()).unwrap().ends_with(".JPE"));
        assert!(!is_called(b"other", b"TOO123~4"));
        for none in ["TOO12~34", "too123~4", "T", "ABCDEF~", "A!BCDE~F"] {
            assert_eq!(key_of_short(none.as_bytes()), None, "{none}");
        }
    }

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
