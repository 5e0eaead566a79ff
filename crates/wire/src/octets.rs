//! Maps file names that are not UTF-8 to text and back, so that protocols whose names are text can show, open, rename
//! and remove such files.
//!
//! No specification covers this; the mapping is MirOS's OPTU-16, an entry of the ConScript registry. Characters that a
//! protocol reserves are left alone here (see `smb2::spelling`).
//!
//! A byte from 0x80 to 0xFF that belongs to no character becomes the private-use character U+EF80 to U+EFFF. Each byte
//! of a real character in that range is mapped the same way, so that every name has exactly one text and no two names
//! share one:
//!
//! ```text
//! name in the file system          text
//! "caf" E9                         "caf" U+EFE9            Latin-1
//! "café"                           "café"
//! EE BE 80 (the character U+EF80)  U+EFEE U+EFBE U+EF80    three bytes, each by itself
//! none                             U+EFC3 U+EFA9           C3 A9 is "é", which has a text already: no name
//! ```
//! A text has no more UTF-16 units than its name has bytes.

use std::borrow::Cow;

/// U+EF80 stands for 0x80.
const STAND_INS: u32 = 0xEF00;

/// The stand-in of a byte; an ASCII byte needs none and stands for itself.
fn to_stand_in(byte: u8) -> char {
    match byte {
        ..0x80 => char::from(byte),
        byte => char::from_u32(STAND_INS | u32::from(byte)).unwrap_or(char::REPLACEMENT_CHARACTER),
    }
}

fn from_stand_in(c: char) -> Option<u8> {
    u32::from(c).checked_sub(STAND_INS).and_then(|byte| u8::try_from(byte).ok()).filter(|byte| *byte >= 0x80)
}

/// A name as text.
pub fn to_text(name: &[u8]) -> Cow<'_, str> {
    if let Ok(text) = std::str::from_utf8(name)
        && !text.chars().any(|c| from_stand_in(c).is_some())
    {
        return Cow::Borrowed(text);
    }
    let mut text = String::with_capacity(name.len().saturating_mul(3));
    for chunk in name.utf8_chunks() {
        for c in chunk.valid().chars() {
            match from_stand_in(c) {
                None => text.push(c),
                Some(_) => text.extend(c.encode_utf8(&mut [0; 4]).bytes().map(to_stand_in)),
            }
        }
        text.extend(chunk.invalid().iter().copied().map(to_stand_in));
    }
    Cow::Owned(text)
}

/// The name that a text stands for; `None` for a text that no name maps to, such as stand-ins that together form a
/// character (that name has another text).
pub fn from_text(text: &str) -> Option<Cow<'_, [u8]>> {
    if !text.chars().any(|c| from_stand_in(c).is_some()) {
        return Some(Cow::Borrowed(text.as_bytes()));
    }
    let mut name = Vec::with_capacity(text.len());
    for c in text.chars() {
        match from_stand_in(c) {
            Some(byte) => name.push(byte),
            None => name.extend_from_slice(c.encode_utf8(&mut [0; 4]).as_bytes()),
        }
    }
    (to_text(&name) == text).then_some(Cow::Owned(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_are_text_stay_as_they_are() {
        for name in ["plain", "Grüße", "\u{f022}", "\u{ef7f}\u{f000}", "😀"] {
            assert!(matches!(to_text(name.as_bytes()), Cow::Borrowed(text) if text == name));
            assert!(matches!(from_text(name), Some(Cow::Borrowed(bytes)) if bytes == name.as_bytes()));
        }
    }

    #[test]
    fn every_name_has_one_text_of_its_own() {
        for (name, text) in [
            (&b"caf\xe9"[..], "caf\u{efe9}"),
            (b"\xff", "\u{efff}"),
            (b"\x80a\xfe", "\u{ef80}a\u{effe}"),
            // Half of a character, and a surrogate.
            (b"a\xc3", "a\u{efc3}"),
            (b"\xed\xa0\x80", "\u{efed}\u{efa0}\u{ef80}"),
            // A real character of the range.
            ("\u{ef80}".as_bytes(), "\u{efee}\u{efbe}\u{ef80}"),
            ("ü\u{efff}\u{ef00}".as_bytes(), "ü\u{efee}\u{efbf}\u{efbf}\u{ef00}"),
        ] {
            assert_eq!(to_text(name), text);
            assert_eq!(from_text(text).as_deref(), Some(name));
            assert!(text.encode_utf16().count() <= name.len());
        }
        for text in ["\u{efc3}\u{efa9}", "a\u{efee}\u{efbe}\u{ef81}\u{efc3}\u{efa9}"] {
            assert_eq!(from_text(text), None);
        }
    }

    proptest::proptest! {
        #[test]
        fn there_and_back(name in proptest::collection::vec(proptest::num::u8::ANY, 0..40)) {
            let text = to_text(&name).into_owned();
            let again = from_text(&text).map(Cow::into_owned);
            proptest::prop_assert_eq!(again, Some(name));
        }

        #[test]
        fn back_and_there(text in "[\u{ef80}-\u{efff}a-c\u{e9}]{0,12}") {
            if let Some(name) = from_text(&text) {
                let again = to_text(&name).into_owned();
                proptest::prop_assert_eq!(again, text);
            }
        }
    }
}
