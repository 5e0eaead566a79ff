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

/// Whether a pattern matches a whole name. A row of answers per character of the pattern, from its end: whether the rest of the
/// pattern matches the last characters of the name, for none of them first, then for one, up to all.
fn wild(pattern: &[char], name: &[char]) -> bool {
    let last_dot = name.iter().rev().position(|&c| c == '.').map(|at| at.saturating_add(1));
    let mut after = vec![true];
    after.resize(name.len().saturating_add(1), false);
    for &p in pattern.iter().rev() {
        let characters = std::iter::once(None).chain(name.iter().rev().copied().map(Some));
        // The answer for the rest of the pattern behind this character of the name; there is nothing behind the end.
        let behind = std::iter::once(false).chain(after.iter().copied());
        let mut here = Vec::with_capacity(after.len());
        // The answer for this character of the pattern, one character of the name further on.
        let mut further = false;
        for (n, ((c, &stays), moves)) in characters.zip(&after).zip(behind).enumerate() {
            further = match p {
                '*' => stays || further,
                // DOS_STAR: anything up to and including the final dot.
                '<' if Some(n) == last_dot => stays || moves,
                '<' => stays || further,
                '?' => moves,
                // DOS_QM: one character, or none before a dot and at the end.
                '>' if c.is_none_or(|c| c == '.') => stays,
                '>' => moves,
                // DOS_DOT: a dot, or nothing at the end.
                '"' if c.is_none() => stays,
                '"' => c == Some('.') && moves,
                p => c == Some(p) && moves,
            };
            here.push(further);
        }
        after = here;
    }
    after.last().is_some_and(|&all| all)
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
