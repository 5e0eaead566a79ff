//! Matches names against the pattern of a listing.
//!
//! Spec: [MS-FSA] 2.1.4.3 (wildcards), 2.1.4.4 (matching).

use weft_wire::smb2::NtStatus;

/// The longest pattern in characters.
const MAX_LEN: usize = 255;

/// A pattern, in upper case.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Pattern {
    /// Matches everything.
    All,
    /// Matches one name, case-insensitively; in the client's spelling.
    Exact(String),
    /// A pattern with wildcards.
    Wild(Box<Wild>),
}

fn upper(c: char) -> char {
    let mut upper = c.to_uppercase();
    match (upper.next(), upper.next()) {
        (Some(one), None) => one,
        _ => c,
    }
}

impl Pattern {
    /// Parses a pattern; an empty one matches everything.
    pub(super) fn parse(pattern: &str) -> Result<Pattern, NtStatus> {
        let bad = |c| matches!(c, '\\' | '/' | ':' | '|' | '\u{0}'..='\u{1f}');
        if pattern.chars().count() > MAX_LEN || pattern.chars().any(bad) {
            return Err(NtStatus::OBJECT_NAME_INVALID);
        }
        Ok(match pattern {
            "" | "*" | "*.*" => Pattern::All,
            _ if pattern.contains(['*', '?', '<', '>', '"']) => {
                Pattern::Wild(Box::new(Wild::new(pattern.chars().map(upper))))
            }
            _ => Pattern::Exact(pattern.to_owned()),
        })
    }

    /// Whether `name` matches.
    pub(super) fn matches(&self, name: &str) -> bool {
        match self {
            Pattern::All => true,
            Pattern::Exact(exact) => exact.chars().map(upper).eq(name.chars().map(upper)),
            Pattern::Wild(pattern) => pattern.matches(name),
        }
    }
}

/// A set of positions in a pattern: bit `p` stands for character `p`, the one after the last for the end. [`MAX_LEN`]
/// characters and the end fit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Positions([u64; 4]);

impl Positions {
    fn insert(&mut self, at: usize) {
        if let Some(word) = self.0.get_mut(at / 64) {
            *word |= 1 << (at % 64);
        }
    }

    fn contains(self, at: usize) -> bool {
        self.0.get(at / 64).is_some_and(|word| word & (1 << (at % 64)) != 0)
    }

    fn is_empty(self) -> bool {
        self.0 == [0; 4]
    }

    fn zip(self, other: Positions, f: impl Fn(u64, u64) -> u64) -> Positions {
        let ([a, b, c, d], [e, g, h, i]) = (self.0, other.0);
        Positions([f(a, e), f(b, g), f(c, h), f(d, i)])
    }

    fn and(self, other: Positions) -> Positions {
        self.zip(other, |a, b| a & b)
    }

    fn or(self, other: Positions) -> Positions {
        self.zip(other, |a, b| a | b)
    }

    /// All positions moved one forward.
    fn next(self) -> Positions {
        let [a, b, c, d] = self.0;
        Positions([a << 1, b << 1 | a >> 63, c << 1 | b >> 63, d << 1 | c >> 63])
    }

    /// All positions moved `1 << power` back: those from which such a step leads to one of these.
    fn backwards(self, power: usize) -> Positions {
        let [a, b, c, d] = self.0;
        let reversed = Positions([d, c, b, a].map(u64::reverse_bits)).further(power);
        let [a, b, c, d] = reversed.0;
        Positions([d, c, b, a].map(u64::reverse_bits))
    }

    /// All positions moved `1 << power` forward.
    fn further(self, power: usize) -> Positions {
        match power {
            0..6 => {
                let by = 1u32 << power;
                let carry = |word: u64| word >> (64u32.saturating_sub(by));
                let [a, b, c, d] = self.0;
                Positions([a << by, b << by | carry(a), c << by | carry(b), d << by | carry(c)])
            }
            6 => Positions([0, self.0[0], self.0[1], self.0[2]]),
            7 => Positions([0, 0, self.0[0], self.0[1]]),
            _ => Positions::default(),
        }
    }
}

/// The positions whose characters may match nothing, by the length of their runs: `runs[k]` has those where a run of `1
/// << k` such characters starts. So skipping any number of them takes one step per power of two.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Skips(Vec<Positions>);

impl Skips {
    fn over(mut run: Positions) -> Skips {
        let mut runs = Vec::new();
        while !run.is_empty() {
            // A run of twice the length starts where another one follows.
            let behind = run.backwards(runs.len());
            runs.push(run);
            run = run.and(behind);
        }
        Skips(runs)
    }

    /// `at`, and all positions reachable from there by skipping characters.
    fn from(&self, at: Positions) -> Positions {
        self.0.iter().enumerate().fold(at, |at, (power, run)| at.or(at.and(*run).further(power)))
    }
}

/// A pattern with wildcards. All possible matches are tracked at once, one character of the name at a time: the cost
/// depends on the name, not on the pattern.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Wild {
    len: usize,
    /// The positions of each plain character, sorted by character.
    plain: Vec<(char, Positions)>,
    stars: Positions,
    dos_stars: Positions,
    any: Positions,
    dos_any: Positions,
    dos_dots: Positions,
    /// The characters that may match nothing before most characters, before a dot, and at the end.
    skips: Skips,
    skips_before_dot: Skips,
    skips_at_end: Skips,
}

impl Wild {
    /// Compiles a pattern in upper case, of at most [`MAX_LEN`] characters.
    fn new(pattern: impl Iterator<Item = char>) -> Wild {
        let mut characters: Vec<char> = Vec::new();
        for c in pattern {
            match (characters.last_mut(), c) {
                // Two in a row match everything: the second one may match what the first may not, beyond the final dot.
                (Some(last @ ('*' | '<')), '*' | '<') => *last = '*',
                _ => characters.push(c),
            }
        }
        let of = |wanted: char| {
            let mut found = Positions::default();
            let places = characters.iter().enumerate().filter(|&(_, &c)| c == wanted);
            places.for_each(|(at, _)| found.insert(at));
            found
        };
        let (stars, dos_stars) = (of('*'), of('<'));
        let (any, dos_any, dos_dots) = (of('?'), of('>'), of('"'));
        let mut plain: Vec<char> = characters.clone();
        plain.retain(|c| !matches!(c, '*' | '<' | '?' | '>' | '"'));
        plain.sort_unstable();
        plain.dedup();
        let skipped = stars.or(dos_stars);
        Wild {
            len: characters.len(),
            plain: plain.into_iter().map(|c| (c, of(c))).collect(),
            skips: Skips::over(skipped),
            skips_before_dot: Skips::over(skipped.or(dos_any)),
            skips_at_end: Skips::over(skipped.or(dos_any).or(dos_dots)),
            stars,
            dos_stars,
            any,
            dos_any,
            dos_dots,
        }
    }

    fn matches(&self, name: &str) -> bool {
        let final_dot = name.rfind('.');
        let mut at = Positions::default();
        at.insert(0);
        for (i, c) in name.char_indices() {
            #[cfg(test)]
            tests::STEPS.set(tests::STEPS.get() + 1);
            let c = upper(c);
            let plain = self.plain.binary_search_by_key(&c, |&(c, _)| c);
            let plain = plain.ok().and_then(|found| self.plain.get(found));
            let takes = self.any.or(plain.map_or(Positions::default(), |&(_, places)| places));
            // DOS_QM is one character, or none before a dot and at the end; DOS_DOT a dot, or nothing at the end.
            let (skips, takes) = match c {
                '.' => (&self.skips_before_dot, takes.or(self.dos_dots)),
                _ => (&self.skips, takes.or(self.dos_any)),
            };
            // DOS_STAR: anything up to and including the final dot.
            let (takes, stays) = match Some(i) == final_dot {
                true => (takes.or(self.dos_stars), self.stars),
                false => (takes, self.stars.or(self.dos_stars)),
            };
            let here = skips.from(at);
            at = here.and(takes).next().or(here.and(stays));
            if at.is_empty() {
                return false;
            }
        }
        self.skips_at_end.from(at).contains(self.len)
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    thread_local! {
        /// Steps of matching.
        pub(super) static STEPS: Cell<usize> = const { Cell::new(0) };
    }

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

    /// DOS programs' patterns as they arrive: `*.` as `<`, `????????.???` as `>>>>>>>>">>>`, `*.` + `ext` as `<.ext`.
    #[test]
    fn dos_wildcards() {
        assert!(matches("<", "file"));
        assert!(matches("<", "a."));
        // `dir *.` shows names without an extension.
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

    /// [MS-FSA] 2.1.4.4 as written: one character of the pattern at a time, and the rest of the name.
    fn by_definition(pattern: &[char], name: &[char]) -> bool {
        let Some((&p, rest)) = pattern.split_first() else { return name.is_empty() };
        let (c, behind) = (name.first().copied(), name.get(1..).unwrap_or_default());
        let final_dot = c == Some('.') && !behind.contains(&'.');
        let stays = || by_definition(rest, name);
        let moves = || c.is_some() && by_definition(rest, behind);
        match p {
            '*' => stays() || c.is_some() && by_definition(pattern, behind),
            '<' if final_dot => stays() || moves(),
            '<' => stays() || c.is_some() && by_definition(pattern, behind),
            '?' => moves(),
            '>' if c.is_none_or(|c| c == '.') => stays(),
            '>' => moves(),
            '"' if c.is_none() => stays(),
            '"' => c == Some('.') && moves(),
            p => c == Some(p) && moves(),
        }
    }

    #[test]
    fn every_short_pattern_matches_what_the_definition_says() {
        let all = |alphabet: &str, most: usize| {
            let mut words = vec![String::new()];
            let mut from = 0;
            for _ in 0..most {
                let until = words.len();
                for n in from..until {
                    words.extend(alphabet.chars().map(|c| format!("{}{c}", words[n])).collect::<Vec<_>>());
                }
                from = until;
            }
            words
        };
        let names = all("AB.", 4);
        for pattern in all("A.*?<>\"", 4) {
            let wild = Wild::new(pattern.chars());
            let characters: Vec<char> = pattern.chars().collect();
            for name in &names {
                let expected = by_definition(&characters, &name.chars().collect::<Vec<_>>());
                assert_eq!(wild.matches(name), expected, "{pattern} and {name}");
            }
        }
    }

    /// Positions are stored in four words, and a run of skipped characters may cross a word boundary.
    #[test]
    fn long_patterns_match_as_short_ones_do() {
        for len in [1, 62, 63, 64, 65, 127, 128, 129, 191, 192, 193, 253] {
            let plain = "a".repeat(len);
            for (pattern, name, expected) in [
                (format!("{plain}*b"), format!("{plain}xb"), true),
                (format!("{plain}*b"), format!("{plain}x"), false),
                (format!("?{}", ">".repeat(len)), "a".to_owned(), true),
                (format!("?{}.", ">".repeat(len)), "a.".to_owned(), true),
                (format!("?{}b", ">".repeat(len)), "a.".to_owned(), false),
                (format!("{}?", ">".repeat(len)), plain.clone(), false),
                (format!("{}?", ">".repeat(len)), format!("{plain}x"), true),
            ] {
                assert_eq!(matches(&pattern, &name), expected, "{len}: {pattern} and {name}");
            }
        }
    }

    #[test]
    fn a_name_takes_as_many_steps_as_it_has_characters_whatever_the_pattern() {
        for pattern in ["*a".repeat(127) + "b", format!("*{}b", "a".repeat(253)), ">".repeat(254) + "b"] {
            let before = STEPS.get();
            assert!(!matches(&pattern, &"a".repeat(255)));
            assert!(STEPS.get() - before <= 255);
        }
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
