//! Maps names with characters that SMB reserves: `"`, `*`, `:`, `<`, `>`, `?`, `\`, `|` and control characters.
//!
//! [MS-FSCC] 2.1.5.2 defines the reserved characters; the mapping is that of Services for Macintosh. `/` is left alone,
//! since no name contains it and some callers pass paths. NUL has no stand-in.
//!
//! Each reserved character becomes a private-use character (U+F001 to U+F027), as in Linux's cifs (`mapposix`), macOS
//! and Samba, so that every file with a UTF-8 name can be seen and opened. Without the mapping, `a:b` would be the
//! stream `b` of a file `a`, and `a\b` a file in a folder.
//!
//! A space or a dot at the end of a name, which Windows strips, is legal in the protocol, and is shown as it is. Macs and
//! Linux send it as U+F028 or U+F029.

use std::borrow::Cow;

/// In the order of their stand-ins, from U+F020; those of control characters are U+F001 to U+F01F.
const RESERVED: [char; 8] = ['"', '*', ':', '<', '>', '?', '\\', '|'];
const STAND_INS: u32 = 0xF000;
/// Characters at the end of a name, with their stand-ins.
const LAST: [(char, char); 2] = [(' ', '\u{f028}'), ('.', '\u{f029}')];

/// Whether a name on the wire must not contain this character.
pub fn is_reserved(c: char) -> bool {
    RESERVED.contains(&c) || matches!(c, '/' | '\u{0}'..='\u{1f}')
}

fn to_stand_in(c: char) -> char {
    let code = match RESERVED.iter().position(|&r| r == c) {
        Some(at) => 0x20 | at as u32,
        None if matches!(c, '\u{1}'..='\u{1f}') => u32::from(c),
        None => return c,
    };
    char::from_u32(STAND_INS | code).unwrap_or(c)
}

fn from_stand_in(c: char) -> char {
    match u32::from(c).wrapping_sub(STAND_INS) {
        code @ 0x01..=0x1f => char::from_u32(code).unwrap_or(c),
        code @ 0x20..=0x27 => RESERVED.get((code & 7) as usize).copied().unwrap_or(c),
        _ => c,
    }
}

/// Most names need no change.
fn mapped(name: &str, map: fn(char) -> char) -> Cow<'_, str> {
    match name.chars().any(|c| map(c) != c) {
        true => Cow::Owned(name.chars().map(map).collect()),
        false => Cow::Borrowed(name),
    }
}

/// The form on the wire of a name, or of a path with `/` between its names.
pub fn to_wire(name: &str) -> Cow<'_, str> {
    mapped(name, to_stand_in)
}

/// The name with a stand-in for a space or a dot at its end; `None` if it ends in neither.
pub fn with_last_stand_in(name: &str) -> Option<String> {
    LAST.iter().find_map(|(c, stand_in)| {
        let front = name.strip_suffix(*c)?;
        Some(format!("{front}{stand_in}"))
    })
}

/// The name for a form on the wire. It may become `.` or `..`, although it was neither on the wire.
pub fn from_wire(name: &str) -> Cow<'_, str> {
    let name = mapped(name, from_stand_in);
    for (c, stand_in) in LAST {
        if let Some(front) = name.strip_suffix(stand_in) {
            return Cow::Owned(format!("{front}{c}"));
        }
    }
    name
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_and_back() {
        let name = "a:b\\c *?<>|\"\n\u{1}\u{1f} ünï";
        let wire = to_wire(name);
        assert!(!wire.contains(is_reserved));
        assert_eq!(from_wire(&wire), name);
        assert!(matches!(to_wire("folder/plain name"), Cow::Borrowed(_)));
        assert!(matches!(from_wire("plain name"), Cow::Borrowed(_)));
        assert_eq!(to_wire("a:b"), "a\u{f022}b");
        // Characters without a stand-in are unchanged.
        assert_eq!(to_wire("/\u{0}"), "/\u{0}");
        assert_eq!(from_wire("\u{f000}\u{f028}\u{f02f}"), "\u{f000}\u{f028}\u{f02f}");
    }

    /// macOS and Linux's `mapposix`: the last character of a name only.
    #[test]
    fn a_space_or_a_dot_at_the_end() {
        for (wire, name) in
            [("a\u{f029}", "a."), ("a \u{f028}", "a  "), (".\u{f029}", ".."), ("\u{f022}\u{f029}", ":.")]
        {
            assert_eq!(from_wire(wire), name);
            // It is shown as it is.
            assert_eq!(to_wire(name).chars().last(), name.chars().last());
        }
        assert_eq!(from_wire("\u{f029}a\u{f028}b"), "\u{f029}a\u{f028}b");
        assert_eq!(with_last_stand_in("a."), Some("a\u{f029}".into()));
        assert_eq!(with_last_stand_in("a. "), Some("a.\u{f028}".into()));
        assert_eq!(with_last_stand_in(".a"), None);
    }
}
