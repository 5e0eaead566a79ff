//! Names that SMB cannot spell: those with `"`, `*`, `:`, `<`, `>`, `?`, `\\`, `|` or a control character in them.
//!
//! They travel as characters for private use (U+F001 to U+F027), as Linux's cifs (`mapposix`), macOS and Samba have it, and Weft's
//! server. Without this, `a:b` would be the stream `b` of a file `a`, and `a\b` a file in a folder.
//! Owns: nothing. Does not: know shares; a path has `/` between its names.

use std::borrow::Cow;

/// In the order of their stand-ins, U+F020 and on.
const RESERVED: [char; 8] = ['"', '*', ':', '<', '>', '?', '\\', '|'];
const STAND_INS: u32 = 0xF000;

/// A path as it travels.
pub(super) fn to_wire(path: &str) -> Cow<'_, str> {
    let stand_in = |c: char| {
        let code = match RESERVED.iter().position(|&r| r == c) {
            Some(at) => 0x20 + at as u32,
            None if matches!(c, '\u{1}'..='\u{1f}') => u32::from(c),
            None => return c,
        };
        char::from_u32(STAND_INS + code).unwrap_or(c)
    };
    match path.chars().any(|c| stand_in(c) != c) {
        true => Cow::Owned(path.chars().map(stand_in).collect()),
        false => Cow::Borrowed(path),
    }
}

/// A name of a listing as it is meant.
pub(super) fn from_wire(name: String) -> String {
    let meant = |c: char| match u32::from(c).wrapping_sub(STAND_INS) {
        code @ 0x01..=0x1f => char::from_u32(code).unwrap_or(c),
        code @ 0x20..=0x27 => RESERVED[code as usize - 0x20],
        _ => c,
    };
    if name.chars().any(|c| meant(c) != c) { name.chars().map(meant).collect() } else { name }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_and_back() {
        let name = "a:b\\c *?<>|\"\n\u{1}\u{1f} ünï";
        let wire = to_wire(name);
        assert!(!wire.contains([':', '\\', '*', '?', '<', '>', '|', '"', '\n', '\u{1}', '\u{1f}']));
        assert_eq!(from_wire(wire.into_owned()), name);
        assert!(matches!(to_wire("folder/plain name"), Cow::Borrowed(_)));
        assert_eq!(to_wire("a:b"), "a\u{f022}b");
    }
}
