//! Names against the pattern of a listing.
//!
//! Spec: [MS-FSA] 2.1.4.3 (wildcards), 2.1.4.4 (matching). Owns: the pattern. Does not: know directories.

use weft_wire::smb2::NtStatus;

/// The longest pattern in characters; matching costs at most pattern times name.
const MAX_LEN: usize = 255;

/// A pattern, in upper case.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Pattern {
    /// Everything.
    All,
    /// One name, without regard to case; as the client spelled it.
    Exact(String),
    /// With wildcards.
    Wild(Vec<char>),
}

fn upper(c: char) -> char {
    let mut upper = c.to_uppercase();
    match (upper.next(), upper.next()) {
        (Some(one), None) => one,
        _ => c,
    }
}

impl Pattern {
    /// Reads it; empty means everything.
    pub(super) fn parse(pattern: &str) -> Result<Pattern, NtStatus> {
        let bad = |c| matches!(c, '\\' | '/' | ':' | '|' | '\u{0}'..='\u{1f}');
        if pattern.chars().count() > MAX_LEN || pattern.chars().any(bad) {
            return Err(NtStatus::OBJECT_NAME_INVALID);
        }
        Ok(match pattern {
            "" | "*" | "*.*" => Pattern::All,
            _ if pattern.contains(['*', '?', '<', '>', '"']) => {
                Pattern::Wild(pattern.chars().map(upper).collect())
            }
            _ => Pattern::Exact(pattern.to_owned()),
        })
    }

    /// Whether `name` matches.
    pub(super) fn matches(&self, name: &str) -> bool {
        match self {
            Pattern::All => true,
            Pattern::Exact(exact) => exact.chars().map(upper).eq(name.chars().map(upper)),
            Pattern::Wild(pattern) => wild(pattern, &name.chars().map(upper).collect::<Vec<_>>()),
        }
    }
}

/// `after[n]`: whether the rest of the pattern matches the name from character `n` on. One row per character of the
/// pattern, from its end.
fn wild(pattern: &[char], name: &[char]) -> bool {
    let end = name.len();
    let last_dot = name.iter().rposition(|&c| c == '.');
    let mut after = vec![false; end + 1];
    after[end] = true;
    for &p in pattern.iter().rev() {
        let mut here = vec![false; end + 1];
        for n in (0..=end).rev() {
            let at_end = n == end;
            here[n] = match p {
                '*' => after[n] || (!at_end && here[n + 1]),
                // DOS_STAR: anything up to and including the final dot.
                '<' if Some(n) == last_dot => after[n] || after[n + 1],
                '<' => after[n] || (!at_end && here[n + 1]),
                '?' => !at_end && after[n + 1],
                // DOS_QM: one character, or none before a dot and at the end.
                '>' if at_end || name[n] == '.' => after[n],
                '>' => after[n + 1],
                // DOS_DOT: a dot, or nothing at the end.
                '"' if at_end => after[n],
                '"' => name[n] == '.' && after[n + 1],
                c => !at_end && name[n] == c && after[n + 1],
            };
        }
        after = here;
    }
    after[0]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn matches(pattern: &str, name: &str) -> bool {
        Pattern::parse(pattern).unwrap().matches(name)
    }

    #[test]
    fn plain_patterns() {
        assert!(matches("", "a"));
        assert!(matches("*", ".hidden"));
        assert!(matches("*.*", "no dot"));
        assert!(matches("Grüße.txt", "GRÜßE.TXT"));
        assert!(!matches("a", "ab"));
        assert!(matches("*.txt", "a.b.TXT"));
        assert!(!matches("*.txt", "txt"));
        assert!(matches("a*b*c", "aXXbYYbZc"));
        assert!(!matches("a*b*c", "aXXbYYbZ"));
        assert!(matches("??", "ab"));
        assert!(!matches("??", "a"));
        assert!(!matches("?", ""));
    }

    /// How DOS programs' patterns arrive: `*.` as `<`, `????????.???` as `>>>>>>>>">>>`, `*.` + `ext` as `<.ext`.
    #[test]
    fn dos_wildcards() {
        assert!(matches("<", "file"));
        assert!(matches("<", "a."));
        // `dir *.` shows what has no extension.
        assert!(!matches("<", "a.b"));
        assert!(matches("<.txt", "a.b.txt"));
        assert!(!matches("<.b", "a.b.txt"));
        assert!(matches(">>>>>>>>\">>>", "FILE.TXT"));
        assert!(matches(">>>>>>>>\">>>", "f"));
        assert!(matches(">>>>>>>>\">>>", "f.t"));
        assert!(!matches(">>>>>>>>\">>>", "longer than eight.txt"));
        assert!(matches("file\"", "FILE"));
        assert!(matches("file\"", "file."));
        assert!(!matches("file\"", "filex"));
        assert!(matches("a>>", "a"));
        assert!(matches("a>>", "abc"));
        assert!(!matches("a>>", "abcd"));
        assert!(matches("a>.b", "a.b"));
    }

    #[test]
    fn hostile_patterns_end_soon() {
        let pattern = "*a".repeat(127);
        assert!(!matches(&pattern, &"a".repeat(126)));
        assert!(matches(&pattern, &"a".repeat(255)));
        assert!(Pattern::parse(&"*".repeat(256)).is_err());
        for bad in ["a\\b", "a/b", "a:b", "\u{1}"] {
            assert_eq!(Pattern::parse(bad), Err(NtStatus::OBJECT_NAME_INVALID));
        }
    }
}
